"""D4RL: one HDF5 file with an array for each field, the episodes one after another.

``observations``, ``actions``, ``rewards``, ``terminals``, ``timeouts`` and ``next_observations`` as
D4RL names them. A field ``info.x`` is ``infos/x``, and any other field a data set of its own name:
D4RL's ``sequence_dataset`` takes a value for each row of every data set. Of files that lack
``next_observations`` the next one is that of the row after, where that is of the same episode.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from cpprb_like.datasets import _hdf5
from cpprb_like.datasets._files import begins_with, warn
from cpprb_like.datasets._format import CUT, OPEN, Format, Reader, Writer
from cpprb_like.datasets._header_builder import HeaderBuilder
from cpprb_like.datasets._model import (
    EpisodeRecord,
    Field,
    Header,
    Rows,
    key_of,
    with_next,
)
from cpprb_like.datasets._model import Path as Parts

__all__ = ["FORMAT", "D4rlReader", "D4rlWriter"]

NAME = "d4rl"
MAGIC = b"\x89HDF\r\n\x1a\n"
ABOUT = "metadata"
NEXT = "next_observations"
REWARDS, FLAGS = "rewards", ("terminals", "timeouts")
INFOS, INFO = "infos", "info."
ROLES = {
    "observations": "obs",
    "actions": "act",
    REWARDS: "rew",
    NEXT: "next_obs",
    "terminals": "terminated",
    "timeouts": "truncated",
    INFOS: "info",
}
FLAG = np.dtype(np.bool_)
FLAGS_AT_ONCE = 1 << 20


def _places(header: Header) -> dict[str, str]:
    """The name of the data set of each field, except of those that end episodes."""
    places = {}
    for name, path in header.observations.items():
        places[name] = "/".join(["observations", *map(key_of, path)])
        if name in header.nexts:
            places[header.nexts[name]] = "/".join([NEXT, *map(key_of, path)])
    for name, path in header.actions.items():
        places[name] = "/".join(["actions", *map(key_of, path)])
    if header.reward is not None:
        places[header.reward] = REWARDS
    for name, key in header.extra_keys(places, {*ROLES, ABOUT}).items():
        is_info = key.startswith(INFO) and key != INFO
        places[name] = f"{INFOS}/{key.removeprefix(INFO)}" if is_info else key
    return places


class D4rlWriter(Writer):
    """Writes a file of D4RL."""

    def __init__(self, path: Path, header: Header, about: Mapping[str, Any]) -> None:
        self._header = header
        self._file = _hdf5.opened(path, NAME, "x")
        self._at = 0
        rows = header.rows
        self._columns = {
            name: self._file.create_dataset(
                place, (rows, *header.stored(name).shape), header[name].dtype
            )
            for name, place in _places(header).items()
        }
        self._flags = [self._file.create_dataset(place, (rows,), FLAG) for place in FLAGS]
        for key, value in about.items():
            self._file.attrs[key] = value

    def episode(self, number: int, record: EpisodeRecord, chunks: Iterator[Rows]) -> None:
        """Write an episode behind those before."""
        if number < len(self._header.episodes) - 1:  # without an end it would go on in the next one
            record = replace(record, is_open=False)
        stop = self._at + record.length
        for rows in chunks:
            n = len(next(iter(rows.values())))
            here = slice(self._at, self._at + n)
            for name, column in self._columns.items():
                column[here] = rows[name].reshape(n, *self._header.stored(name).shape)
            flags = self._header.last_flags(rows, n, record, is_last=here.stop == stop)
            for flag, values in zip(self._flags, flags, strict=True):
                flag[here] = values
            self._at += n

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    abandon = close


class D4rlReader(Reader):
    """Reads a file of D4RL."""

    header: Header

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = _hdf5.opened(path, NAME, "r")
        self.left_out: list[str] = []
        self._columns: dict[str, Any] = {}
        try:
            with _hdf5.reading(path):
                self.header = self._read_header()
        except BaseException:
            self._file.close()
            raise
        self.unknown = tuple(self.header.chained.values())
        lengths = [episode.length for episode in self.header.episodes]
        self._starts = [0, *np.cumsum(lengths, dtype=np.int64).tolist()]

    def _read_header(self) -> Header:
        """The fields by the names that D4RL uses, and the episodes by the end flags."""
        found = dict(_hdf5.members(self._file))
        for path in [path for path in found if path[0] == ABOUT]:
            self.left_out.append(f"{'/'.join(path)} ({found.pop(path).dtype})")
        first = found.get((REWARDS,), found.get((FLAGS[0],)))
        if first is None or first.ndim < 1:
            raise ValueError(f"{REWARDS}: expected a data set with a value for each row, got none")
        rows = len(first)

        def field_of(path: Parts, name: str) -> Field | str:
            data = found[path]
            if data.ndim and len(data) == rows:
                return _hdf5.field_of(data, "/".join(path), name)
            return f"{data.dtype} of shape {data.shape}"

        has_next = any(path[0] == NEXT for path in found)
        builder = HeaderBuilder(ROLES, self.left_out, makes_next=not has_next)
        builder.add(found, field_of)
        self._columns = {name: found[path] for name, path in builder.places.items()}
        header = builder.header()
        if header.ends.truncated is None:
            warn(
                f"{self._path}: without a data set timeouts nothing tells where a time limit ended "
                "an episode: it and the one after it are read as one",
                UserWarning,
            )
        return replace(header, episodes=tuple(self._episodes(header, rows)))

    def _episodes(self, header: Header, rows: int) -> Iterator[EpisodeRecord]:
        """Where the end flags say that episodes end; what comes after the last end is open."""
        start = 0
        for at in range(0, rows if header.ends.names else 0, FLAGS_AT_ONCE):
            stop = min(at + FLAGS_AT_ONCE, rows)
            flags = {name: self._columns[name][at:stop] for name in header.ends.names}
            terminated, truncated = header.ends.flags(flags, stop - at)
            for last in np.flatnonzero(terminated | truncated).tolist():
                yield EpisodeRecord(at + last + 1 - start)
                start = at + last + 1
        if start < rows:
            yield EpisodeRecord(rows - start, is_open=True)

    def rows(self, number: int, most: int) -> Iterator[Rows]:
        """The rows of an episode."""
        return with_next(self._read(number, most), self.header.chained)

    def _read(self, number: int, most: int) -> Iterator[Rows]:
        first, last = self._starts[number], self._starts[number + 1]
        for start in range(first, last, most):
            stop = min(start + most, last)
            with _hdf5.reading(self._path):
                rows = {
                    name: _hdf5.read(column, start, stop, self.header[name])
                    for name, column in self._columns.items()
                }
            yield rows

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class D4rl(Format):
    """See ``Format``."""

    name = NAME
    reader, writer = D4rlReader, D4rlWriter
    is_file = True
    suffixes = (".hdf5", ".h5")
    lacks = (CUT, OPEN)

    def told_by(self, path: Path) -> bool:
        """Whether a path is one of this format."""
        return begins_with(path, MAGIC) or (path.is_file() and path.suffix in self.suffixes)


FORMAT = D4rl()
