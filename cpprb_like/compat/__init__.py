"""Replay buffers under the names of other libraries, over the public interface of this one."""
