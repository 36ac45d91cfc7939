"""Rows of a ring: memory of their values, order in streams, and which rows can be drawn.

``column`` has the place of a field in memory and takes in steps. ``chained`` and ``overflow`` store
fields that mostly repeat other rows. ``gather`` copies rows into batches. The ring buffer itself,
``cpprb_like._core``, belongs to this room. May import: ``_machine`` and what that may.
"""
