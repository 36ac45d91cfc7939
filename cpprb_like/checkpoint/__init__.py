"""Checkpoints: everything that a buffer is, in a folder, and back.

``save`` looks at the object while writers wait (``_save``), writes the rows as segments
(``_segments``) and other arrays as files (``_arrays``), and commits a manifest last
(``_manifest``). ``load`` chooses a manifest (``_load``), makes objects of it (``_values``,
``_classes``), and fills memory with rows (``_rows_back``). All that changes a folder goes through
``_disk``.

Programs that show, check and copy folders load nothing: ``_look`` tells what is in one, ``_verify``
whether its files are in order, and ``_copy`` copies a state.

What is public: ``Checkpointed``, the base class with ``save``, ``save_async``, ``load`` and
``restore``; ``save`` and ``load``, for whatever can be saved, a ``Savable``; ``Saving``, a save in
another thread; ``DamagedError`` and ``CancelledError``; and what the command line is made of:
``Look``, ``states``, ``rows_of``, ``verify`` and its ``Verdict``, ``copy`` and
``describe_transitions``. Parts of their results can be imported and are not listed.

Beside that, ``_cpprb_files`` writes and reads the files of cpprb's ``save_transitions``: one file,
rows by value.

May import: ``views`` and what is below it. What holds rows derives from ``_held.HoldsRows``, so
nothing here knows the buffers.
"""

from cpprb_like._arguments.later import attach

_PARTS = ("AS_IT_IS", "Damage", "Field", "Held", "Rows", "Transitions")

__getattr__, __dir__ = attach(__name__, __file__, lambda: _PARTS)
