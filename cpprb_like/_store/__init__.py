"""What is held: the declared fields, their memory, and where a row's values lie.

A step comes in through ``casting``, which makes an array of the declared dtype of each value;
``schema`` has read the declaration and laid out the ``arenas``; a ``column`` knows where a field's
values lie, ``chained`` and ``overflow`` hold what follows from other rows; ``gather`` copies rows
out again. The ring itself, which rows follow which, is ``cpprb_like._core`` and belongs to this
room. May import: ``_c``.
"""
