"""Dirty chunks: which rows of the last ``flush`` may have changed since, if the machine crashes.

The system writes the pages of a mapped file at any time. So after a crash each part of a page has
its bytes of the last flush, or of any later time. A chunk is a 256th of the rows of a flush. Its
mark is on the disk before its first row changes, so rows without a mark have the bytes of the
flush, and so have their items. A file beside the rows has the header, the newest values of chained
fields, and the marks, of two flushes: the last one, and one that is being written. Not here: the
rows (``file_maps``), and what follows from rows that are left out (``recovery``).
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import cast

import numpy as np
from numpy.typing import NDArray

from cpprb_like._arguments.arrays import Array, Bytes
from cpprb_like._core import WORD_WRITTEN
from cpprb_like._fields.layout import CACHE_LINE, Layout
from cpprb_like._files.json_codec import MOST
from cpprb_like._machine.crc32 import crc32
from cpprb_like._machine.file_systems import InRoom, write_at
from cpprb_like._machine.opening import open_regular, read_bytes

__all__ = ["DirtyChunks", "Flush"]

CHUNKS = 256  # the rows of one chunk at most are lost for the sake of one row that changed
UNLIMITED = (1 << 63) - 1
MAGIC = b"cpprb_like flushes, 2"
PAGE = 4096  # the two flushes of a file share no sector of the disk
WORD = 8
CHECKSUM, NUMBER, STATE = range(3)  # words of a flush; the header begins at STATE


class Flush:
    """The header and the newest values of the rows at a flush, and the marks of chunks."""

    def __init__(self, layout: Layout, half: int = 0) -> None:
        newest = [nbytes for name, _, nbytes in layout.blocks if name in layout.newest_blocks]
        latest_nbytes = sum((nbytes - CACHE_LINE) // 2 for nbytes in newest)
        self._capacity = layout.capacity
        self._chunk = -(-layout.capacity // CHUNKS)  # rows of a chunk
        n_words = layout.state_nbytes // WORD
        n_asides = len(layout.asides)
        body = WORD * (STATE + n_words + n_asides) + latest_nbytes
        self.half = half  # number of the half of the file that has this flush
        self.memory = np.zeros(body + WORD * CHUNKS, np.uint8)
        self.body = self.memory[:body]
        self.words = self.memory[: body - latest_nbytes].view(np.int64)
        self.state = self.words[STATE : STATE + n_words]
        self.extents = self.words[STATE + n_words :]  # of what chained fields keep aside
        self.latest = self.memory[body - latest_nbytes : body]
        self.marks = self.memory[body:].view(np.int64)  # the number of the flush; else no mark

    @property
    def number(self) -> int:
        """Number of the flush, which no other one of the file has."""
        return int(self.words[NUMBER])

    @property
    def oldest(self) -> int:
        """The id of the oldest row."""
        return max(0, int(self.state[WORD_WRITTEN]) - self._capacity)

    def sign(self) -> None:
        """Write the checksum of all but the marks."""
        self.words[CHECKSUM] = crc32(self.body[WORD:])

    def is_sound(self) -> bool:
        """Whether the flush was written to the end, and its numbers are possible."""
        is_whole = crc32(self.body[WORD:]) == int(self.words[CHECKSUM])
        return is_whole and bool(((self.state >= 0) & (self.state < MOST)).all())

    def chunks_of(self, rows: Array) -> Array:
        """The chunk of each row; rows that were added or overwritten since the flush have none."""
        ages = rows - self.oldest
        chunks: Array = ages[(ages >= 0) & (rows < self.state[WORD_WRITTEN])] // self._chunk
        return chunks

    def chunks_before(self, row: int) -> slice:
        """The chunks with rows before this one."""
        return slice(0, max(0, -(-(row - self.oldest) // self._chunk)))

    @property
    def kept_from(self) -> int:
        """The id of the first row of the oldest chunk without a mark."""
        first = int(np.argmin(np.append(self.marks == self.number, False)))
        return min(self.oldest + first * self._chunk, int(self.state[WORD_WRITTEN]))

    @property
    def limit(self) -> int:
        """The id of the first new row whose slot holds a row of a chunk without a mark."""
        kept_from = self.kept_from
        return UNLIMITED if kept_from == self.state[WORD_WRITTEN] else kept_from + self._capacity

    def changed(self) -> NDArray[np.int64]:
        """The ids of the rows that may have changed since."""
        rows = np.arange(self.oldest, int(self.state[WORD_WRITTEN]))
        changed: NDArray[np.int64] = rows[self.marks[self.chunks_of(rows)] == self.number]
        return changed


class DirtyChunks:
    """The file of flushes and marks.

    Attributes
    ----------
    path : Path or None
        Path of the file.
    flushes : list of Flush
        The last flush, and one that has begun since and may be on the disk or not.
    limit : ndarray of int64, shape (1,)
        The id of the first row that ``add`` may not write before ``mark_for``.
    """

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._half_nbytes = -(-len(Flush(layout).memory) // PAGE) * PAGE
        self.path: Path | None = None
        self._file = -1  # descriptor of the open file; -1: rows get no marks
        self._number = 0  # the greatest number of a flush or a mark in the file
        self._is_synchronised = True  # whether all marks are on the disk
        self._lock = threading.RLock()  # no call waits for the disk longer than for one small file
        self.flushes: list[Flush] = []
        self.limit = np.array([UNLIMITED], np.int64)

    def last(self) -> Flush:
        """The last flush that is known to be on the disk; one of no rows if there is none."""
        return self.flushes[0] if self.flushes else Flush(self._layout)

    def content(self, incarnation: bytes) -> bytes:
        """The content of a file without a flush."""
        return (MAGIC + incarnation).ljust(PAGE + 2 * self._half_nbytes, b"\0")

    def read(self, path: Path, incarnation: bytes) -> bool:
        """Read the last flush of a file; false if the file has none of this buffer."""
        data = np.frombuffer(read_bytes(path), np.uint8)
        head = np.frombuffer(MAGIC + incarnation, np.uint8)
        if len(data) != PAGE + 2 * self._half_nbytes or (data[: len(head)] != head).any():
            return False
        found = []
        for half in range(2):
            flush = Flush(self._layout, half)
            start = PAGE + half * self._half_nbytes
            flush.memory[:] = data[start : start + len(flush.memory)]
            self._number = max(self._number, int(np.clip(flush.marks, 0, MOST).max()))
            if flush.number and flush.is_sound():
                self._number = max(self._number, flush.number)
                found.append(flush)
        self.path, self.flushes = path, sorted(found, key=lambda flush: flush.number)[-1:]
        self._set_limit()
        return len(found) > 0

    def keep_open(self, path: Path) -> None:
        """Open the file for the marks to come. ``add`` needs it after its folder was renamed."""
        with open_regular(path, os.O_RDWR) as file:
            self._file = os.dup(file.fileno())
        # Not at exit: handlers and threads may add rows after it, and its number would be reused.
        weakref.finalize(self, os.close, self._file).atexit = False
        self.path = path

    # ------------------------------------------------------------------ flushes

    def begin(self, state: Array, extents: Iterable[int], latest: Bytes) -> None:
        """Begin a flush of the present rows: rows that change from now on get marks for it too."""
        with self._lock:
            if len(self.flushes) > 1:  # one that was cut short: it may be whole on the disk
                blank = Flush(self._layout, self.flushes[1].half)
                self._write([(blank, blank.memory)])
            last = self.flushes[:1]
            new = Flush(self._layout, 1 - last[0].half if last else 0)
            self._number += 1
            new.words[NUMBER] = self._number
            new.state[:], new.extents[:], new.latest[:] = state, list(extents), latest
            new.sign()
            self.flushes = [*last, new]
            self._set_limit()

    def commit(self) -> None:
        """End a flush, after all rows were synchronised with the disk."""
        with self._lock:
            new = self.flushes[-1]
            self._write([(new, new.memory)])
            self.flushes = [new]
            self._set_limit()

    # ------------------------------------------------------------------ marks

    def mark(self, rows: Array | None) -> None:
        """Mark the chunks of rows that are about to change; None: of all rows."""
        self._mark(lambda flush: slice(None) if rows is None else flush.chunks_of(rows))

    def mark_for(self, stop: int) -> None:
        """Mark the chunks whose slots rows before ``stop`` will take."""
        if stop > self.limit[0]:
            capacity = self._layout.capacity
            self._mark(lambda flush: flush.chunks_before(stop - capacity))

    def _mark(self, chunks: Callable[[Flush], slice | Array]) -> None:
        with self._lock:
            flushes: list[Flush] = []
            while flushes is not self.flushes:  # a signal handler may flush in the meantime
                flushes = self.flushes
                for flush in flushes:
                    these = chunks(flush)
                    if (flush.marks[these] != flush.number).any():
                        self._is_synchronised = False  # until the end, also after an interrupt
                        flush.marks[these] = flush.number
                if not self._is_synchronised:
                    self._write([(flush, flush.marks.view(np.uint8)) for flush in flushes])
                    self._set_limit()
                    self._is_synchronised = True

    def _set_limit(self) -> None:
        self.limit[0] = min([flush.limit for flush in self.flushes], default=UNLIMITED)

    def _write(self, parts: list[tuple[Flush, Bytes]]) -> None:
        """Write the last bytes of flushes, and synchronise the file."""
        with InRoom(cast(Path, self.path)):
            for flush, data in parts:
                end = PAGE + flush.half * self._half_nbytes + len(flush.memory)
                write_at(self._file, data, end - len(data))
            os.fsync(self._file)
