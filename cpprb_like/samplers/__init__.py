"""Samplers, which decide which rows are drawn, and the weights of rows that they store.

A sampler draws ``n`` rows of a ring and returns their slots, with further columns for the batch,
such as importance-sampling weights. It does not read the values of the rows; ``views`` do.
``cpprb_like._segment_tree`` is part of this room.
May import: ``_files`` and the rooms that ``_files`` may import.
"""

from cpprb_like._arguments.later import attach

__getattr__, __dir__ = attach(__name__, __file__)
