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
``Look``, ``states``, ``rows_of``, ``verify``, ``copy`` and ``describe_transitions``.

Beside that, ``_cpprb_files`` writes and reads the files of cpprb's ``save_transitions``: one file,
rows by value.

May import: ``views`` and what is below it. What holds rows derives from ``_held.HoldsRows``, so
nothing here knows the buffers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cpprb_like._c.later import later
from cpprb_like.checkpoint._held import Savable
from cpprb_like.checkpoint._progress import CancelledError
from cpprb_like.checkpoint._saved import Checkpointed, load, save

if TYPE_CHECKING:
    from cpprb_like.checkpoint._arrays import DamagedError
    from cpprb_like.checkpoint._copy import AS_IT_IS, copy
    from cpprb_like.checkpoint._cpprb_files import Transitions, describe_transitions
    from cpprb_like.checkpoint._look import Field, Held, Look, Rows, rows_of, states
    from cpprb_like.checkpoint._save import Saving
    from cpprb_like.checkpoint._verify import Damage, Verdict, verify

__all__ = [
    "AS_IT_IS",
    "CancelledError",
    "Checkpointed",
    "Damage",
    "DamagedError",
    "Field",
    "Held",
    "Look",
    "Rows",
    "Savable",
    "Saving",
    "Transitions",
    "Verdict",
    "copy",
    "describe_transitions",
    "load",
    "rows_of",
    "save",
    "states",
    "verify",
]

# What saves, loads and looks is imported when it is asked for: to make a buffer takes none of it.
_LATER = {
    "AS_IT_IS": "_copy",
    "Damage": "_verify",
    "DamagedError": "_arrays",
    "Field": "_look",
    "Held": "_look",
    "Look": "_look",
    "Rows": "_look",
    "Saving": "_save",
    "Transitions": "_cpprb_files",
    "Verdict": "_verify",
    "copy": "_copy",
    "describe_transitions": "_cpprb_files",
    "rows_of": "_look",
    "states": "_look",
    "verify": "_verify",
}


__getattr__ = later(__name__, _LATER)


def __dir__() -> list[str]:
    """The public names, those that are imported later too."""
    return sorted(__all__)
