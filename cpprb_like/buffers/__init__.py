"""Buffers and other sources of batches: the objects that users hold.

``add`` is a compiled call of ``_entry``. ``sample`` gets slots from the sampler of the buffer,
reads a batch of them, and lets the ring check that no row changed during the read. Every object
with the method ``sample`` is a ``Source``: a buffer, a ``View`` of a buffer, a ``Mixture`` of
sources. May import: ``checkpoint`` and the rooms that it may import.
"""

from cpprb_like._arguments.later import attach

__getattr__, __dir__ = attach(__name__, __file__)
