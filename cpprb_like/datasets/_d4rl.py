"""D4RL: one HDF5 file with a data set for each field, in which episodes follow one another.

D4RL's names are ``observations``, ``actions``, ``rewards``, ``terminals``, ``timeouts`` and
``next_observations``. A field ``info.x`` is the data set ``infos/x``. Any other field is a data set
of its own name, as D4RL's ``sequence_dataset`` requires a value of each data set for each row. If a
file lacks ``next_observations``, they are taken from the rows after, within an episode.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from cpprb_like._arguments.checks import warn
from cpprb_like.datasets import _hdf5
from cpprb_like.datasets._format import CUT, OPEN, Format, Reader, Steps, Writer
from cpprb_like.datasets._model import EpisodeRecord, Field, Header, HeaderBuilder, Place, Rows

NAME = "d4rl"
ABOUT = "metadata"
REWARDS, FLAGS = "rewards", ("terminals", "timeouts")
INFOS, INFO = "infos", "info."
ROLES = {
    "observations": "obs",
    "actions": "act",
    REWARDS: "rew",
    "next_observations": "next_obs",
    "terminals": "terminated",
    "timeouts": "truncated",
    INFOS: "info",
}


def _place(path: Place) -> Place:
    """The path of a column. Fields ``info.x`` are in the group ``infos``."""
    is_info = path[0].startswith(INFO) and path[0] != INFO
    return (INFOS, path[0].removeprefix(INFO)) if is_info else path


class D4rlWriter(Writer):
    """Writes a file of D4RL."""

    flags = ((FLAGS[0],), (FLAGS[1],))

    def __init__(self, path: Path, header: Header, about: Mapping[str, Any]) -> None:
        places = header.places(ROLES, {ABOUT})
        super().__init__(header, {name: _place(place) for name, place in places.items()})
        self._file = _hdf5.opened(path, NAME, "x")
        self._at = 0
        self._data = {
            place: self._file.create_dataset(
                "/".join(place), (header.rows, *field.shape), field.dtype
            )
            for place, field in self.columns.items()
        }
        for key, value in about.items():
            self._file.attrs[key] = value

    def steps(self, at: int, steps: Steps) -> None:
        for place, values in steps.items():
            self._data[place][self._at + at : self._at + at + len(values)] = values

    def end(self, final: Steps) -> None:
        self._at += self.record.length

    def close(self) -> None:
        self._file.close()

    abandon = close


class D4rlReader(Reader):
    """Reads a file of D4RL."""

    def __init__(self, path: Path, split: str | None = None) -> None:
        super().__init__(path, split)
        self._file = _hdf5.opened(path, NAME, "r")

    def read_fields(self) -> HeaderBuilder:
        """The fields by the names that D4RL uses."""
        found = dict(_hdf5.members(self._file))
        for path in [path for path in found if path[0] == ABOUT]:
            self.left_out.append(f"{'/'.join(path)} ({found.pop(path).dtype})")
        first = found.get((REWARDS,), found.get((FLAGS[0],)))
        if first is None or first.ndim < 1:
            raise ValueError(f"{REWARDS}: expected a data set with a value for each row, got none")
        rows = len(first)

        def field_of(path: Place, name: str) -> Field | str:
            data = found[path]
            if data.ndim and len(data) == rows:
                return _hdf5.field_of(data, "/".join(path), name)
            return f"{data.dtype} of shape {data.shape}"

        has_next = any(ROLES.get(path[0]) == "next_obs" for path in found)
        builder = HeaderBuilder(ROLES, self.left_out, derives_next=not has_next)
        builder.add(found, field_of)
        self._data = {name: found[path] for name, path in builder.places.items()}
        self._n = rows
        return builder

    def read_episodes(self) -> Iterator[tuple[EpisodeRecord, int]]:
        """Episodes, which end where the end flags are set. Rows after the last end are open."""
        ends, start = self.header.ends, 0
        if ends.truncated is None:
            warn(
                f"{self.path}: without a data set timeouts nothing tells where a time limit ended "
                "an episode: it and the one after it are read as one",
                UserWarning,
            )
        n = self._n if ends.names else 0
        terminated, truncated = ends.flags({name: self._data[name][:n] for name in ends.names}, n)
        for last in np.flatnonzero(terminated | truncated).tolist():
            yield EpisodeRecord(last + 1 - start), start
            start = last + 1
        yield EpisodeRecord(self._n - start, is_open=True), start

    def read(self, number: int, most: int) -> Iterator[Rows]:
        first = self.spans[number]
        last = first + self.header.episodes[number].length
        for start in range(first, last, most):
            stop = min(start + most, last)
            yield {
                name: _hdf5.read(data, start, stop, self.header[name])
                for name, data in self._data.items()
            }

    def close(self) -> None:
        self._file.close()


class D4rl(Format):
    """See ``Format``."""

    name = NAME
    reader, writer = D4rlReader, D4rlWriter
    is_file, magic = True, b"\x89HDF\r\n\x1a\n"
    suffixes = (".hdf5", ".h5")
    lacks = (CUT, OPEN)


FORMAT = D4rl()
