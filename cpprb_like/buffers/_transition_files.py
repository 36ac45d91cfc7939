"""The methods of cpprb for files of transitions. They are not built: each says what to use.

Not here: buffers that are pickled (``_store.snapshot``), or live in a file (``_store.arenas``).
"""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

__all__ = ["load_transitions", "save_transitions"]


def save_transitions(self: object, file: str | Path, *, safe: bool = True) -> NoReturn:
    """Write the rows to a file, as cpprb does: not built yet.

    Raises
    ------
    NotImplementedError
        Always.
    """
    del self, file, safe
    raise NotImplementedError(
        "save_transitions: cpprb's files are not written yet; pickle.dump(buffer, file) keeps all "
        "of the buffer, its generator and its priorities too"
    )


def load_transitions(self: object, file: str | Path) -> NoReturn:
    """Add the rows of a file, as cpprb does: not built yet.

    Raises
    ------
    NotImplementedError
        Always.
    """
    del self, file
    raise NotImplementedError(
        "load_transitions: cpprb's files are not read yet; pickle.load(file) gives a buffer that "
        "was pickled, and add takes the arrays of its get_all_transitions()"
    )
