"""Episodes of RLlib's files: finds the rows that belong to each.

A row has the name of its episode, and at best ``t``, which counts its steps. RLlib's own recorder
leaves ``t`` out and spreads its rows over files, in each of which several episodes go on by turns:
there the next observation of a row links it to the row after. Not here: how the rows are read
(``_rllib``).
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from cpprb_like.datasets._model import EpisodeRecord

__all__ = ["AGENT", "EPISODE", "TIME", "Episodes", "Mark"]

EPISODE, TIME, AGENT = "eps_id", "t", "agent_id"
UNIQUE = re.compile("[0-9a-f]{32}")  # names that RLlib makes, each once

Key = tuple[Any, ...]  # name of the episode and of the agent of a row; () if no column says it


class Mark(NamedTuple):
    """What tells the episode of a row.

    Attributes
    ----------
    key : tuple
    ends : bool
    here, after : int or bytes, optional
        What links rows: the row after has as ``here`` what this one has as ``after``. Steps by
        ``t``, or digests of observations, which only the first and the last row of a run have.
    """

    key: Key
    ends: bool
    here: int | bytes | None = None
    after: int | bytes | None = None


class Episodes:
    """The rows of each episode, gathered row by row.

    In a file the row behind another of its key goes on the same episode until that ends. All other
    rows go on the newest episode of their key to which they are linked, or begin one.

    Parameters
    ----------
    has_times : bool
        Whether rows are linked by ``t``. Then it must count the steps of an episode.
    has_observations : bool
        Whether rows are linked by observations. Otherwise rows of one key that lie apart in a file
        must be linked. An episode of a unique name must not come again after its end.

    Attributes
    ----------
    pieces : list of list of [int, int]
        First row, and the row after the last, of each run of rows of an episode.
    keys : list of tuple
    """

    def __init__(self, *, has_times: bool, has_observations: bool) -> None:
        self.pieces: list[list[list[int]]] = []
        self.keys: list[Key] = []
        self._has_times, self._has_observations = has_times, has_observations
        self._have_ended: list[bool] = []
        self._file, self._number = -1, -1
        self._last: Mark | None = None
        self._left: dict[Key, tuple[int, int, int | bytes | None]] = {}  # episodes without an end
        self._ended: set[Key] = set()

    def add(self, file: int, marks: list[Mark], at: int) -> None:
        """Add rows of a file that follow one another. ``at`` is the number of the first one."""
        for row, mark in enumerate(marks, at):
            number = self._goes_on(file, mark)
            if number is None:
                number = len(self.pieces)
                self.pieces.append([])
                self.keys.append(mark.key)
                self._have_ended.append(False)
            pieces = self.pieces[number]
            if pieces and pieces[-1][1] == row:
                pieces[-1][1] = row + 1
            else:
                pieces.append([row, row + 1])
            self._have_ended[number] = mark.ends
            self._file, self._number, self._last = file, number, mark

    def _goes_on(self, file: int, mark: Mark) -> int | None:
        """Number of the episode that a row goes on, or None if it begins one."""
        last, key = self._last, mark.key
        if last is None:
            return None
        if last.ends:
            self._left.pop(last.key, None)
            if self._has_observations and UNIQUE.fullmatch(str(last.key[0])):
                self._ended.add(last.key)
        if file == self._file and key == last.key:
            begins = last.ends
            if self._has_times and last.after != mark.here:
                begins = mark.here == 0 and (last.ends or not key)
                if not begins:
                    got = f"{mark.here!r} after {last.here!r}"
                    raise _error(key, f"t to count the steps, got {got}")
            return None if begins else self._number
        if not last.ends:
            self._left[last.key] = self._number, self._file, last.after
        if key in self._ended:
            raise ValueError(
                f"episode {key[0]!r}: expected it once, got it again after its end: without "
                "output_max_rows_per_file RLlib records all rows again with each run, so read the "
                "folder of the last run alone"
            )
        if not key or key not in self._left:
            return None
        number, there, after = self._left[key]
        if after is not None and after == mark.here:
            return number
        if there == file and not self._has_observations:
            raise _error(key, "its rows in a row, got others between them")
        return None

    def records(self) -> list[EpisodeRecord]:
        """The episodes; those without an end are open."""
        return [
            EpisodeRecord(sum(stop - start for start, stop in pieces), is_open=not ended)
            for pieces, ended in zip(self.pieces, self._have_ended, strict=True)
        ]


def _error(key: Key, what: str) -> ValueError:
    name = f"episode {key[0]!r}: " if key else ""
    by = f"{EPISODE}, {AGENT} and {TIME}" if len(key) > 1 else f"{EPISODE} and {TIME}"
    return ValueError(f"{name}expected {what}: sort the rows by {by}")
