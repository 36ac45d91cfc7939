"""Counts in the header of a buffer in files, read without its fields and without opening it."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from cpprb_like._core import N_STATE_WORDS, WORD_CLEARS, WORD_EPISODES, WORD_WRITTEN
from cpprb_like._fields.layout import IDENTITY, IDENTITY_NBYTES
from cpprb_like._machine.opening import open_regular

__all__ = ["counts_of"]


def counts_of(file: Path) -> dict[str, float]:
    """Entries of ``Source.stats`` of the buffer whose rows are in this file.

    Another process may write meanwhile: each count is of one moment. Raises ``OSError``, and
    ``ValueError`` for a file that does not begin as the rows of a buffer do.
    """
    with open_regular(file) as opened:
        data = opened.read(IDENTITY_NBYTES + 8 * N_STATE_WORDS)
    if not data.startswith(IDENTITY) or len(data) < IDENTITY_NBYTES + 8 * N_STATE_WORDS:
        raise ValueError(f"{file}: expected the rows of a buffer, as mmap_prefix= makes them")
    words = np.frombuffer(data, np.int64, offset=IDENTITY_NBYTES)
    return {
        "adds": int(words[WORD_WRITTEN]),
        "episodes": int(words[WORD_EPISODES]),
        "clears": int(words[WORD_CLEARS]),
        "bytes": file.stat().st_size,
    }
