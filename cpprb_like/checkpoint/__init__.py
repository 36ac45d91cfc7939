"""Checkpoints: a folder with the complete state of a buffer, and how it is loaded.

``save`` takes a snapshot while writers wait (``_save``), writes rows as segments (``_segments``)
other arrays (``_arrays``) and files of the caller (``_beside``), and commits a manifest last
(``_manifest``). ``load``
chooses a manifest (``_open_state``), builds its objects (``_values``, ``_classes``), and fills
memory with rows (``_ring_reader``). Every change of a folder goes through ``_disk``.

Three programs load no object: ``_describe`` tells the content of a folder, ``_verify`` checks its
files, and ``_copy`` copies a state. ``_cpprb_files`` writes and reads the files of cpprb's
``save_transitions``: one file, rows by value.

Public: ``Checkpointed``, the base class with ``save``, ``save_async``, ``load`` and ``restore``;
``save`` and ``load`` for any ``Savable``; ``open_beside``, which reads a file of the caller;
``Saving``, a save in another thread; ``DamagedError`` and ``CancelledError``; ``inspect``; and the
functions of the command line: ``describe``, ``states``, ``verify`` and its ``Verdict``, ``copy``
and ``describe_transitions``. Parts of these can be imported and are not listed: values of the
descriptions, the files of the caller for another save, and what holders of rows in other rooms save
a state with, ``begun`` and its ``SaveOptions``, and read it with, ``read_folder``, its
``OpenState``, ``reading``, the ``Target`` of loaded rows, and the names of their files.

May import: ``views`` and what is below it. Holders of rows derive from ``_savable.Savable``, so
no module here knows the buffers.
"""

from cpprb_like._arguments.later import attach

_PARTS = (
    *("AS_IT_IS", "Damage", "SHARED", "SavedState", "Transitions"),
    *("describe_field", "reward_of", "spread", "statistics", "structure"),
    *("CLUSTER", "OpenState", "Target", "manifest_name", "read_folder", "reading"),
    *("Beside", "beside_of", "Codec", "SaveOptions", "begun"),
)

__getattr__, __dir__ = attach(__name__, __file__, lambda: _PARTS)
