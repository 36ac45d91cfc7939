"""Which rows of RLlib's files are of one episode.

A row has the name of its episode, and at best ``t``, which counts its steps. RLlib's own recorder
leaves ``t`` out and spreads its rows over files, in each of which several episodes go on by turns:
there a row goes on the episode of its name whose newest next observation it begins with. Not here:
how the rows are read (``_rllib``).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, NamedTuple

from cpprb_like.datasets._model import EpisodeRecord

__all__ = ["ByObservation", "ByTime", "Episodes", "Key", "Mark", "Piece"]

EPISODE, TIME, AGENT = "eps_id", "t", "agent_id"
UNIQUE = re.compile("[0-9a-f]{32}")  # the names that RLlib gives, which none gets twice

Key = tuple[Any, ...]  # the episode that a row is of, and the agent; () if nothing says it


class Mark(NamedTuple):
    """What tells the episode of a row.

    Attributes
    ----------
    key : tuple
    time : int or None
    ends : bool
    obs, new_obs : bytes
        Digests, of the rows where an episode may go over into another; else empty.
    """

    key: Key
    time: int | None
    ends: bool
    obs: bytes = b""
    new_obs: bytes = b""


@dataclass(slots=True)
class Piece:
    """Rows of an episode that stand in one file."""

    file: int
    start: int
    stop: int


class _Order:
    """Tells the episode of each row, in the order in which they stand."""

    def __init__(self) -> None:
        self.current = -1

    def episode(self, file: int, mark: Mark) -> int | None:
        """The number of the episode that the next row goes on, or None if it begins one."""
        raise NotImplementedError

    def go_on(self, file: int, mark: Mark, number: int) -> None:
        """Pass over a row, of an episode of this number."""
        raise NotImplementedError


class ByTime(_Order):
    """By ``eps_id``, the end flags and ``t``.

    An episode goes on in the next file if ``t`` does. ``ValueError`` where rows of one lie apart,
    or in another order.
    """

    def __init__(self) -> None:
        super().__init__()
        self._has_ended = True
        self._file = -1
        self._key: Key | None = None
        self._time: int | None = None
        self._left: dict[Key, tuple[int, int | None]] = {}  # where those stop that never ended

    def episode(self, file: int, mark: Mark) -> int | None:
        """See ``_Order``."""
        return None if self._begins(file, mark.key, mark.time) else self.current

    def _begins(self, file: int, key: Key, time: int | None) -> bool:
        if key != self._key:
            if self._key and not self._has_ended:
                self._left[self._key] = self._file, self._time
            if key in self._left:
                there, before = self._left[key]
                if there == file or _follows(before, time):
                    raise self._error(key, "its rows in a row, got others between them")
            return True
        goes_on = _follows(self._time, time)
        if file != self._file:
            return self._has_ended or not key or not goes_on
        is_new = time == 0 and (self._has_ended or not key)
        if not (goes_on or is_new or time is None):
            raise self._error(key, f"t to count the steps, got {time} after {self._time}")
        return self._has_ended or is_new

    def _error(self, key: Key, what: str) -> ValueError:
        name = f"episode {key[0]!r}: " if key else ""
        by = f"{EPISODE}, {AGENT} and {TIME}" if len(key) > 1 else f"{EPISODE} and {TIME}"
        return ValueError(f"{name}expected {what}: sort the rows by {by}")

    def go_on(self, file: int, mark: Mark, number: int) -> None:
        """See ``_Order``."""
        self._file, self._key, self._time = file, mark.key, mark.time
        self._has_ended, self.current = mark.ends, number


def _follows(before: int | None, time: int | None) -> bool:
    """Whether a step is known to be the one after another."""
    return before is not None and time is not None and time == before + 1


class ByObservation(_Order):
    """By ``eps_id``, the end flags, and the observations where rows of one lie apart.

    ``ValueError`` where an episode of a name that none gets twice comes again after its end.
    """

    def __init__(self) -> None:
        super().__init__()
        self._file = -1
        self._last: Mark | None = None
        self._left: dict[Key, tuple[int, bytes]] = {}  # those that have not ended
        self._ended: set[Key] = set()

    def episode(self, file: int, mark: Mark) -> int | None:
        """See ``_Order``."""
        last = self._last
        if last is not None and file == self._file and mark.key == last.key:
            return None if last.ends else self.current
        if last is not None and not last.ends:
            self._left[last.key] = self.current, last.new_obs
        if mark.key in self._ended:
            raise ValueError(
                f"episode {mark.key[0]!r}: expected it once, got it again after its end: without "
                "output_max_rows_per_file RLlib records all rows again with each run, so read the "
                "folder of the last run alone"
            )
        number, following = self._left.get(mark.key, (0, b""))
        return number if following and following == mark.obs else None

    def go_on(self, file: int, mark: Mark, number: int) -> None:
        """See ``_Order``."""
        self._file, self._last, self.current = file, mark, number
        if mark.ends:
            self._left.pop(mark.key, None)
            if UNIQUE.fullmatch(str(mark.key[0])):
                self._ended.add(mark.key)


class Episodes:
    """The rows of each episode, gathered row by row, and what tells it from others."""

    def __init__(self, order: ByTime | ByObservation) -> None:
        self.pieces: list[list[Piece]] = []
        self.keys: list[Key] = []
        self._order = order
        self._have_ended: list[bool] = []

    def add(self, file: int, marks: list[Mark], at: int) -> None:
        """Rows of a file that follow one another, the first of which is row ``at`` of it."""
        for row, mark in enumerate(marks, at):
            number = self._order.episode(file, mark)
            if number is None:
                number = len(self.pieces)
                self.pieces.append([])
                self.keys.append(mark.key)
                self._have_ended.append(False)
            pieces = self.pieces[number]
            if pieces and pieces[-1].file == file and pieces[-1].stop == row:
                pieces[-1].stop = row + 1
            else:
                pieces.append(Piece(file, row, row + 1))
            self._have_ended[number] = mark.ends
            self._order.go_on(file, mark, number)

    def records(self) -> list[EpisodeRecord]:
        """Those are open that nothing ended."""
        return [
            EpisodeRecord(sum(piece.stop - piece.start for piece in pieces), is_open=not ended)
            for pieces, ended in zip(self.pieces, self._have_ended, strict=True)
        ]
