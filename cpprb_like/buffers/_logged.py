"""Logs of draws: the file of ``log_draws``, its reader ``LoggedDraws``, and ``replay_draw``.

Not here: the records (``_rows.draw_log``).
"""

from __future__ import annotations

import json
import os
import threading
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from cpprb_like._arguments.checks import as_int, as_path
from cpprb_like._files.opening import open_regular
from cpprb_like._machine.file_systems import InRoom
from cpprb_like._rows.draw_log import HEAD, DrawLog, state_of
from cpprb_like._rows.row_handles import find_rows
from cpprb_like.buffers._reading import Reading
from cpprb_like.buffers._source import Batch

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["DrawLogFile", "LoggedDraw", "LoggedDraws", "replay"]

FORMAT = "cpprb_like draws, version 1"


class DrawLogFile:
    """Writer of a log of draws, for a ``with`` statement. ``log_draws`` returns it."""

    def __init__(self, buffer: Any, path: str | os.PathLike[str]) -> None:
        if buffer._draw_log is not None:
            raise RuntimeError("log_draws: the draws of this buffer are logged already")
        self.path = as_path("path", path)
        kind = type(buffer.rng.bit_generator).__name__
        about = {"format": FORMAT, "bit_generator": kind, "sampler": repr(buffer.sampler)[:500]}
        self._buffer = buffer
        self._log = DrawLog(self._write, buffer.rng)
        self._process = os.getpid()
        self._lock = threading.Lock()  # of the file, whose records are in the order of the draws
        self._file = self.path.open("xb", buffering=0)
        buffer._set_draw_log(self._log)
        self._write([json.dumps(about).encode() + b"\n"])

    def _write(self, full: list[Any]) -> None:
        """Write records and empty the list. An error ends the log."""
        if os.getpid() != self._process:  # a forked child, which has the same file
            full.clear()
            return
        with self._lock:
            try:
                while full and not self._file.closed:
                    records = memoryview(full.pop(0))
                    while records:
                        with InRoom(self.path):
                            records = records[self._file.write(records) :]
            except BaseException:
                self._buffer._set_draw_log(None)
                self._file.close()
                raise
            full.clear()

    def flush(self) -> None:
        """Write the draws so far to the file."""
        self._log.flush()

    def close(self) -> None:
        """Write the last draws and end the log."""
        if not self._file.closed:
            self._buffer._set_draw_log(None)
            try:
                self._log.flush()
            finally:
                self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


@dataclass(frozen=True)
class LoggedDraw:
    """One draw of a log.

    Attributes
    ----------
    handles : ndarray of int64, shape (n,)
        Handles of the drawn rows, as in ``batch["indexes"]``; for sequences, of their first rows.
    ages : ndarray of int64, shape (n,)
        Number of rows that were written after each drawn row, up to the draw.
    probabilities, weights : ndarray of float32, shape (n,), or None
        Probability of each row among all rows of the buffer, and importance-sampling weight. None
        without priorities.
    written, clears, edits : int
        Version of the rows: rows written since the last clear, clears, and changes of rows.
    number : int
        Batches that the view had drawn before; 0 for a buffer.
    before, after : dict or None
        ``bit_generator.state`` before and after the choice of rows; None for generators other than
        NumPy's PCG64.
    """

    handles: NDArray[np.int64]
    ages: NDArray[np.int64]
    probabilities: NDArray[np.float32] | None
    weights: NDArray[np.float32] | None
    written: int
    clears: int
    edits: int
    number: int
    before: dict[str, Any] | None
    after: dict[str, Any] | None


class LoggedDraws:
    """The draws in a file that ``log_draws`` wrote, in their order.

    Parameters
    ----------
    path : str or path
        The file. An incomplete last record is left out.

    Raises
    ------
    OSError
        The file cannot be read.
    ValueError
        The file is not a log of draws.

    Examples
    --------
    >>> import tempfile
    >>> from cpprb_like import LoggedDraws, ReplayBuffer
    >>> rb = ReplayBuffer(100, {"x": {"shape": ()}}, seed=0)
    >>> rb.add(x=range(10))
    0
    >>> path = tempfile.mkdtemp() + "/draws"
    >>> with rb.log_draws(path):
    ...     first, second = rb.sample(3), rb.sample(4)
    >>> log = LoggedDraws(path)
    >>> len(log), log[1].ages.shape
    (2, (4,))
    >>> bool((rb.replay_draw(log, 1)["x"] == second["x"]).all())
    True
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = as_path("path", path)
        with open_regular(self.path) as file:
            self._data = np.fromfile(file, np.uint8)
        first = bytes(self._data[:10_000]).partition(b"\n")[0]
        try:
            about = json.loads(first)
            is_ours = about["format"] == FORMAT
        except (KeyError, TypeError, ValueError):
            is_ours = False
        if not is_ours:
            raise ValueError(f"{path}: expected a log of draws, as log_draws writes it")
        self._kind = str(about["bit_generator"])
        self._places: list[int] = []
        place = len(first) + 1
        while (end := self._end(place)) <= len(self._data):
            self._places.append(place)
            place = end

    def _end(self, place: int) -> int:
        """Position after the record at ``place``; past the data if the record is incomplete."""
        if place + HEAD.itemsize > len(self._data):
            return len(self._data) + 1
        head = self._head(place)
        n = int(head["n"])
        if n < 0:
            return len(self._data) + 1
        return place + HEAD.itemsize + n * (12 if head["has_weights"] else 4)

    def _head(self, place: int) -> Any:
        return np.frombuffer(self._data, HEAD, 1, place)[0]

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, k: int) -> LoggedDraw:
        place = self._places[as_int("k", k)]
        head = self._head(place)
        n, place = int(head["n"]), place + HEAD.itemsize
        ages = np.frombuffer(self._data, np.uint32, n, place).astype(np.int64)
        probabilities = weights = None
        if head["has_weights"]:
            both = np.frombuffer(self._data, np.float32, 2 * n, place + 4 * n).copy()
            probabilities, weights = both[:n], both[n:]
        written = int(head["written"])
        return LoggedDraw(
            int(head["base"]) + written - 1 - ages,
            ages,
            probabilities,
            weights,
            written,
            int(head["clears"]),
            int(head["edits"]),
            int(head["number"]),
            state_of(bytes(head["before"]), self._kind),
            state_of(bytes(head["after"]), self._kind),
        )

    def __iter__(self) -> Iterator[LoggedDraw]:
        return map(self.__getitem__, range(len(self)))

    def handles(self) -> NDArray[np.int64]:
        """Handles of the rows of all draws, one after another, such as for ``describe(draws=)``."""
        return np.concatenate([np.empty(0, np.int64), *(one.handles for one in self)])


def replay(view: Any, draws: LoggedDraws, k: int) -> Batch:
    """See ``View.replay_draw``."""
    one, now, buffer = draws[k], view._now, view.buffer
    ring, sampler, rng = now.ring, now.sampler, buffer.rng
    n, edits = len(one.handles), ring.now().edits
    state = rng.bit_generator.state

    def choose() -> tuple[NDArray[np.intp], dict[str, NDArray[Any]]]:
        slots, _ = find_rows(ring, one.handles)
        if len(slots) < n:
            raise LookupError(f"replay_draw: {n - len(slots)} of {n} rows of draw {k} are gone")
        extra: dict[str, NDArray[Any]] = {}
        if one.weights is not None:
            extra["weights"] = one.weights.astype(sampler.weights_dtype)
            extra["indexes"] = sampler.rows.indexes(slots, sampler.check_for_update)
        return slots, extra

    if one.edits != edits:
        warnings.warn(
            f"replay_draw: rows were changed since draw {k}, so its batch may have new values",
            stacklevel=3,
        )
    reading = Reading(view._all, choose, n, None, one.number, located=False)
    reading.log = None
    try:
        if one.after is not None and one.after["bit_generator"] == state["bit_generator"]:
            rng.bit_generator.state = one.after
        batch: Batch = buffer.consistently(reading.attempt)
        if reading.revisions and not reading.write(batch):
            raise LookupError(f"replay_draw: rows that draw {k} read are gone")
    finally:
        rng.bit_generator.state = state
    return batch
