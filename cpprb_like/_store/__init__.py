"""Storage: the declared fields, their memory, and where the values of a row are.

``schema`` reads ``env_dict`` and lays out the memory, which ``arenas`` allocates. A step comes in
through ``column`` and ``casting``, which convert each value to the declared dtype. ``chained`` and
``overflow`` store fields that mostly repeat other rows; ``gather`` copies rows into batches. The
ring buffer itself, ``cpprb_like._core``, belongs to this room. May import: ``_c``.
"""
