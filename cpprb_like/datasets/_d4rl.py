"""D4RL: one HDF5 file with an array for each field, the episodes one after another.

``observations``, ``actions``, ``rewards``, ``terminals``, ``timeouts`` and ``next_observations`` as
D4RL names them; whatever else there is in ``infos/`` by the name of its field, and our metadata in
an attribute of ``metadata``: D4RL's ``sequence_dataset`` takes a value for each row of every data
set. Of files that lack ``next_observations`` the next one is that of the row after, where that is
of the same episode.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from cpprb_like.datasets import _hdf5
from cpprb_like.datasets._files import begins_with, warn
from cpprb_like.datasets._format import Format, Reader, Writer
from cpprb_like.datasets._model import (
    Ends,
    EpisodeRecord,
    Field,
    Header,
    Rows,
    is_taken,
    key_of,
    load_json,
    with_next,
)
from cpprb_like.datasets._model import Path as Parts

__all__ = ["FORMAT", "D4rlReader", "D4rlWriter"]

NAME = "d4rl"
MAGIC = b"\x89HDF\r\n\x1a\n"
ABOUT, METADATA = "metadata", "cpprb_like"
NEXT = "next_observations"
PLACES = {
    "observations": "obs",
    "actions": "act",
    "rewards": "rew",
    NEXT: "next_obs",
    "terminals": "terminated",
    "timeouts": "truncated",
    "infos": "info",
}
FLAG = np.dtype(np.bool_)
FLAGS_AT_ONCE = 1 << 20


def _places(header: Header) -> dict[str, str]:
    """The names of the data sets, by field."""
    places = {}
    for name, path in header.observations.items():
        places[name] = "/".join(["observations", *map(key_of, path)])
        if name in header.chained:
            places[header.chained[name]] = "/".join([NEXT, *map(key_of, path)])
    places |= {
        name: "/".join(["actions", *map(key_of, path)]) for name, path in header.actions.items()
    }
    columns = {"rewards": header.reward, "terminals": header.terminated}
    columns["timeouts"] = header.truncated
    places |= {name: place for place, name in columns.items() if name is not None}
    for field in header.extras:
        places[field.name] = f"infos/{key_of(field.name)}"
    return places


class D4rlWriter(Writer):
    """Writes a file of D4RL."""

    def __init__(self, path: Path, header: Header, about: Mapping[str, Any]) -> None:
        self._header = header
        self._file = _hdf5.opened(path, NAME, "x")
        self._at = 0
        rows, places = header.rows, _places(header)
        self._columns = {
            field.name: _hdf5.create(
                self._file, places[field.name], rows, header.stored(field.name)
            )
            for field in header.fields
            if field.nbytes
        }
        self._flags = [
            None if name is not None else self._file.create_dataset(place, (rows,), FLAG)
            for name, place in ((header.terminated, "terminals"), (header.truncated, "timeouts"))
        ]
        self._file.create_group(ABOUT).attrs[METADATA] = json.dumps(header.to_json())
        for key, value in about.items():
            self._file.attrs[key] = value

    def episode(self, number: int, record: EpisodeRecord, chunks: Iterator[Rows]) -> None:
        """Write an episode behind those before."""
        del number
        stop = self._at + record.length
        for rows in chunks:
            n = len(next(iter(rows.values())))
            for name, column in self._columns.items():
                shape = (n, *self._header.stored(name).shape)
                _hdf5.write(column, self._at, rows[name].reshape(shape))
            flags = self._header.last_flags(rows, n, record, is_last=self._at + n == stop)
            for flag, values in zip(self._flags, flags, strict=True):
                if flag is not None:
                    flag[self._at : self._at + n] = values
            self._at += n

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    abandon = close


class D4rlReader(Reader):
    """Reads a file of D4RL, ours or another."""

    header: Header

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = _hdf5.opened(path, NAME, "r")
        self.left_out: list[str] = []
        self._columns: dict[str, Any]
        self._follows: dict[str, str] = {}  # next values that are those of the row after
        try:
            with _hdf5.reading(path):
                about = self._find((ABOUT,))
                ours = about.attrs.get(METADATA) if _hdf5.is_group(about) else None
                if ours is None:
                    self._read_foreign()
                else:
                    self._read_ours(ours)
        except BaseException:
            self._file.close()
            raise
        lengths = [episode.length for episode in self.header.episodes]
        self._starts = [0, *np.cumsum(lengths, dtype=np.int64).tolist()]

    def _find(self, path: tuple[str, ...]) -> Any:
        found = self._file
        for name in path:
            found = None if found is None else _hdf5.member(found, name)
        return found

    def _read_ours(self, found: Any) -> None:
        """The header that the writer left, and the data sets that it promises."""
        name = f"{ABOUT}.{METADATA}"
        if not isinstance(found, str):
            raise ValueError(f"{name}: expected text, got {type(found).__name__}")
        self.header = Header.from_json(load_json(found, name))
        rows, places = self.header.rows, _places(self.header)
        self._columns = {}
        for field in self.header.fields:
            if field.nbytes:
                place = places[field.name]
                column = self._find(tuple(place.split("/")))
                _hdf5.check(column, place, rows, self.header.stored(field.name))
                self._columns[field.name] = column

    def _read_foreign(self) -> None:
        """The fields of somebody else's file, by the names that D4RL uses."""
        found = dict(_hdf5.members(self._file))
        about = [path for path in found if path[0] == ABOUT]
        self.left_out += [f"{'/'.join(path)} ({found.pop(path).dtype})" for path in about]
        rewards = found.get(("rewards",))
        if rewards is None or rewards.ndim < 1:
            raise ValueError("rewards: expected a data set with a value for each row, got none")
        rows = len(rewards)
        fields: list[Field] = []
        groups: dict[str, dict[str, Parts]] = {"observations": {}, "actions": {}}
        self._columns = {}
        has_next = NEXT in {path[0] for path in found}
        for path, data in sorted(found.items(), key=lambda item: item[0][0] not in PLACES):
            name = ".".join((PLACES.get(path[0], path[0]), *path[1:]))
            chained = {} if has_next else groups["observations"]
            if is_taken(name, self._columns, chained):
                self.left_out.append(f"{'/'.join(path)} (another data set is {name!r})")
                continue
            field = None
            if data.ndim and len(data) == rows:
                field = _hdf5.field_of(data, "/".join(path), name)
            if field is None:
                self.left_out.append(f"{'/'.join(path)} ({data.dtype} of shape {data.shape})")
                continue
            fields.append(field)
            self._columns[name] = data
            if path[0] in groups:
                groups[path[0]][name] = path[1:]
        if not has_next:
            for name in groups["observations"]:
                following = f"next_{name}"
                self._follows[following] = name
                (source,) = [field for field in fields if field.name == name]
                fields.append(Field(following, source.dtype, source.shape))
            self.unknown = tuple(self._follows)
        known = {field.name for field in fields if field.can_end}
        ends = Ends(*(name if name in known else None for name in ("terminated", "truncated")))
        header = Header(tuple(fields), (), 1, groups["observations"], groups["actions"], ends=ends)
        self.header = replace(header, episodes=tuple(self._episodes(header, rows)))
        if ends.truncated is None:
            warn(
                f"{self._path}: without a data set timeouts nothing tells where a time limit ended "
                "an episode: it and the one after it are read as one",
                UserWarning,
            )

    def _episodes(self, header: Header, rows: int) -> Iterator[EpisodeRecord]:
        """Where the end flags say that episodes end; what comes after the last end is open."""
        start = 0
        for at in range(0, rows if header.ends.names else 0, FLAGS_AT_ONCE):
            stop = min(at + FLAGS_AT_ONCE, rows)
            flags = {name: self._columns[name][at:stop] for name in header.ends.names}
            terminated, truncated = header.ends.flags(flags, stop - at)
            for last in np.flatnonzero(terminated | truncated).tolist():
                yield EpisodeRecord(0, at + last + 1 - start)
                start = at + last + 1
        if start < rows:
            yield EpisodeRecord(0, rows - start, is_open=True)

    def rows(self, number: int, most: int) -> Iterator[Rows]:
        """The rows of an episode."""
        first, last = self._starts[number], self._starts[number + 1]
        for start in range(first, last, most):
            stop = min(start + most, last)
            rows: Rows = {}
            after: Rows | None = {} if stop < last else None
            with _hdf5.reading(self._path):
                for name, column in self._columns.items():
                    until = stop + (after is not None and name in self._follows.values())
                    values = _hdf5.read(column, start, until, self.header[name])
                    values = values.reshape(until - start, *self.header[name].shape)
                    rows[name] = values[: stop - start]
                    if after is not None:
                        after[name] = values[stop - start :]
            yield with_next(rows, after, self._follows)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class D4rl(Format):
    """See ``Format``."""

    name = NAME
    is_file = True
    suffixes = (".hdf5", ".h5")

    def told_by(self, path: Path) -> bool:
        """Whether a path is one of this format."""
        return begins_with(path, MAGIC) or (path.is_file() and path.suffix in self.suffixes)

    def open_writer(self, path: Path, header: Header, about: Mapping[str, Any]) -> D4rlWriter:
        """A writer of this format."""
        return D4rlWriter(path, header, about)

    def open_reader(self, path: Path) -> D4rlReader:
        """A reader of this format."""
        return D4rlReader(path)


FORMAT = D4rl()
