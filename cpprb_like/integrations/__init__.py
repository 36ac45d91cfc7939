"""Bridges to other packages over the public interface; each module needs its package installed."""
