"""Checkpoints: everything that a buffer is, in a folder, and back.

``save`` looks at the object while writers wait (``_save``), writes the rows as segments
(``_segments``) and other arrays as files (``_arrays``), and commits a manifest last
(``_manifest``). ``load`` chooses a manifest (``_load``), makes objects of it (``_values``,
``_classes``), and fills memory with rows (``_rows_back``). All that changes a folder goes through
``_disk``.

What is public: ``Checkpointed``, the base class with ``save``, ``save_async``, ``load`` and
``restore``; ``load``, for whatever was saved; ``Saving``, a save in another thread;
``DamagedError`` and ``CancelledError``.

Beside that, ``_cpprb_files`` writes and reads the files of cpprb's ``save_transitions``: one file,
rows by value.

May import: ``views`` and what is below it. What holds rows derives from ``_values.HoldsRows``, so
nothing here knows the buffers.
"""

from cpprb_like.checkpoint._arrays import DamagedError
from cpprb_like.checkpoint._progress import CancelledError
from cpprb_like.checkpoint._save import Saving
from cpprb_like.checkpoint._saved import Checkpointed, load

__all__ = ["CancelledError", "Checkpointed", "DamagedError", "Saving", "load"]
