"""RLlib: Parquet with a row for each step, in the columns that ``OfflineData`` reads.

``eps_id``, ``t``, ``obs``, ``actions``, ``rewards``, ``new_obs``, ``terminateds``, ``truncateds``;
parts of an observation or action are the fields of a struct. Every other column is one of an extra
field, which RLlib takes for an output of the model. Our metadata are in the schema of the file. Of
others a folder of such files is read too.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from cpprb_like.datasets import _arrow
from cpprb_like.datasets._files import begins_with, need
from cpprb_like.datasets._format import Format, Reader, Writer
from cpprb_like.datasets._from_buffer import rows_in_chunk
from cpprb_like.datasets._model import (
    Array,
    Ends,
    EpisodeRecord,
    Field,
    Header,
    Rows,
    is_taken,
    key_of,
    load_json,
    only_newest_open,
)
from cpprb_like.datasets._model import Path as Parts

__all__ = ["FORMAT", "RllibReader", "RllibWriter"]

NAME = "rllib"
MAGIC = b"PAR1"
OURS = "cpprb_like"
EPISODE, TIME, AGENT = "eps_id", "t", "agent_id"
COLUMNS = {
    "obs": "obs",
    "actions": "act",
    "rewards": "rew",
    "new_obs": "next_obs",
    "terminateds": "terminated",
    "truncateds": "truncated",
}
RESERVED = {*COLUMNS, EPISODE, TIME, AGENT, "module_id", "infos", "dones", "unroll_id"}
FLAG = np.dtype(np.bool_)
BYTES_AS_PARQUET = 8  # bytes that an integer of one byte takes while it is written, with its levels


Place = tuple[str, Parts]  # a column, and the path in it


def _places(header: Header) -> dict[str, Place]:
    """Where each field is."""
    places: dict[str, Place] = {}
    nexts = {name: header.following(name) for name in header.observations}
    for name, path in header.observations.items():
        places[name] = "obs", tuple(map(key_of, path))
        following = nexts[name]
        if following is not None and None not in nexts.values():
            places[following] = "new_obs", tuple(map(key_of, path))
    for name, path in header.actions.items():
        places[name] = "actions", tuple(map(key_of, path))
    columns = {"rewards": header.reward, "terminateds": header.terminated}
    columns["truncateds"] = header.truncated
    places |= {name: (column, ()) for column, name in columns.items() if name is not None}
    for field in header.fields:
        if field.nbytes and field.name not in places:
            key = key_of(field.name)
            is_taken = key in RESERVED or key.startswith(f"{OURS}.")
            places[field.name] = f"{OURS}.{key}" if is_taken else key, ()
    return places


class RllibWriter(Writer):
    """Writes a Parquet file, a group of rows whenever there are enough."""

    def __init__(self, path: Path, header: Header, about: Mapping[str, Any]) -> None:
        need("pyarrow.parquet", NAME)
        self._path, self._header = path, header
        self._places = _places(header)
        self._most = rows_in_chunk(header.row_nbytes, BYTES_AS_PARQUET)
        self._waiting: list[Rows] = []
        self._n = 0
        self._writer: Any = None
        self._about = {str(key): str(value) for key, value in about.items()}

    def episode(self, number: int, record: EpisodeRecord, chunks: Iterator[Rows]) -> None:
        """Write the rows of an episode behind those before."""
        at = 0
        for rows in chunks:
            n = len(next(iter(rows.values())))
            flags = self._header.last_flags(rows, n, record, is_last=at + n == record.length)
            steps = {
                name: _arrow.stored(rows[name].reshape(n, *self._header.stored(name).shape))
                for name in self._places
            }
            for k, column in enumerate(("terminateds", "truncateds")):
                steps[f"{OURS}:{column}"] = flags[k]
            steps[f"{OURS}:{EPISODE}"] = np.full(n, number)
            steps[f"{OURS}:{TIME}"] = np.arange(at, at + n)
            self._waiting.append(steps)
            self._n += n
            at += n
            if self._n >= self._most:
                self._write()

    def _write(self) -> None:
        """Write what waits as one group of rows."""
        pa = need("pyarrow", NAME)
        rows = {
            name: np.concatenate([steps[name] for steps in self._waiting])
            for name in self._waiting[0]
        }
        self._waiting, self._n = [], 0
        columns: dict[str, dict[Parts, Any]] = {}
        for name, (column, path) in self._places.items():
            columns.setdefault(column, {})[path] = _arrow.column(rows[name])
        arrays = {
            EPISODE: pa.array([str(number) for number in rows[f"{OURS}:{EPISODE}"].tolist()]),
            TIME: pa.array(rows[f"{OURS}:{TIME}"]),
            **{column: _arrow.struct(found) for column, found in columns.items()},
        }
        for column in ("terminateds", "truncateds"):
            arrays.setdefault(column, pa.array(rows[f"{OURS}:{column}"]))
        table = pa.Table.from_pydict(arrays)
        if self._writer is None:
            metadata = {**self._about, OURS: json.dumps(self._header.to_json())}
            schema = table.schema.with_metadata(metadata)
            parquet = need("pyarrow.parquet", NAME)
            self._writer = parquet.ParquetWriter(
                self._path, schema, use_dictionary=[EPISODE], write_statistics=False
            )
        self._writer.write_table(table.replace_schema_metadata(self._writer.schema.metadata))

    def close(self) -> None:
        """Write the last rows, and the footer."""
        if self._n:
            self._write()
        self._writer.close()

    def abandon(self) -> None:
        """Close the file."""
        if self._writer is not None:
            self._writer.close()


Key = tuple[Any, ...]  # the episode that a row is of, and the agent; () if nothing says it


class _Piece(NamedTuple):
    """Rows of an episode that stand in one file."""

    file: int
    start: int
    stop: int


class _Order:
    """Where one episode goes over into the next, row by row.

    By ``eps_id``, the end flags and ``t``, which counts the steps of an episode. An episode goes on
    in the next file if ``t`` does. ``ValueError`` where rows of one lie apart, or in another order.
    """

    def __init__(self) -> None:
        self.has_ended = True
        self._file = -1
        self._key: Key | None = None
        self._time: int | None = None
        self._left: dict[Key, tuple[int, int | None]] = {}  # where those stop that never ended

    def begins(self, file: int, key: Key, time: int | None) -> bool:
        """Whether the next row is the first one of an episode."""
        if key != self._key:
            if self._key and not self.has_ended:
                self._left[self._key] = self._file, self._time
            if key in self._left:
                there, before = self._left[key]
                if there == file or _follows(before, time):
                    raise self._error(key, "its rows in a row, got others between them")
            return True
        goes_on = _follows(self._time, time)
        if file != self._file:
            return self.has_ended or not key or not goes_on
        is_new = time == 0 and (self.has_ended or not key)
        if not (goes_on or is_new or time is None):
            raise self._error(key, f"t to count the steps, got {time} after {self._time}")
        return self.has_ended or is_new

    def _error(self, key: Key, what: str) -> ValueError:
        name = f"episode {key[0]!r}: " if key else ""
        by = f"{EPISODE}, {AGENT} and {TIME}" if len(key) > 1 else f"{EPISODE} and {TIME}"
        return ValueError(f"{name}expected {what}: sort the rows by {by}")

    def go_on(self, file: int, key: Key, time: int | None, *, ends: bool) -> None:
        """Pass over a row."""
        self._file, self._key, self._time, self.has_ended = file, key, time, ends


def _follows(before: int | None, time: int | None) -> bool:
    """Whether a step is known to be the one after another."""
    return before is not None and time is not None and time == before + 1


class RllibReader(Reader):
    """Reads a Parquet file, ours or another, or a folder of them."""

    header: Header

    def __init__(self, path: Path) -> None:
        need("pyarrow", NAME)
        self.left_out: list[str] = []
        self._paths = sorted(path.glob("*.parquet")) if path.is_dir() else [path]
        if not self._paths:
            raise ValueError(f"{path}: expected files that end in .parquet, got none")
        self._files = [_arrow.opened(found) for found in self._paths]
        self._cursors: dict[tuple[int, int], _arrow.Cursor] = {}
        self._follows: dict[str, str] = {}
        self._pieces: list[list[_Piece]] = []  # of each episode
        try:
            with _arrow.reading(self._paths[0]):
                metadata = self._files[0].schema_arrow.metadata or {}
                if OURS.encode() in metadata and len(self._files) == 1:
                    self._read_ours(metadata[OURS.encode()])
                else:
                    self._read_foreign()
        except BaseException:
            self.close()
            raise

    def _read_ours(self, data: bytes) -> None:
        self.header = header = Header.from_json(load_json(data, OURS))
        self._places = _places(header)
        rows = self._files[0].metadata.num_rows
        if rows != header.rows:
            raise ValueError(f"expected {header.rows} rows, as the metadata say, got {rows}")
        lengths = [episode.length for episode in header.episodes]
        starts = np.cumsum([0, *lengths]).tolist()
        self._pieces = [[_Piece(0, *rows)] for rows in itertools.pairwise(starts)]

    # ------------------------------------------------------------------ files of others

    def _read_foreign(self) -> None:
        first = next(self._files[0].iter_batches(1), None)
        if first is None or len(first) == 0:
            raise ValueError("expected rows, got none")
        fields: dict[str, Field] = {}
        self._places = {}
        groups: dict[str, dict[str, Parts]] = {"obs": {}, "actions": {}, "new_obs": {}}
        for column in sorted(first.schema.names, key=lambda name: name not in COLUMNS):
            if column == TIME:  # where a row stands in its episode
                continue
            found = first.column(column)
            is_told = column in COLUMNS or groups["new_obs"]
            following = {} if is_told else groups["obs"]
            made = {"has_next"} if following else set()
            for path in _arrow.parts(found.type):
                name = ".".join((COLUMNS.get(column, column), *path))
                if is_taken(name, made | fields.keys(), following):
                    self.left_out.append(f"{'.'.join((column, *path))} (another is {name!r})")
                    continue
                field = _arrow.field_of(_arrow.part(found, path, column), name)
                if field is None:
                    self.left_out.append(f"{column} ({found.type})")
                    continue
                fields[name] = field
                self._places[name] = column, path
                if column in groups:
                    groups[column][name] = path
        if not groups["new_obs"]:
            for name in groups["obs"]:
                self._follows[f"next_{name}"] = name
                fields[f"next_{name}"] = replace(fields[name], name=f"next_{name}")
            if self._follows:
                fields["has_next"] = Field("has_next", FLAG, ())
        known = [name for name in ("terminated", "truncated") if name in fields]
        ends = {name: name for name in known if fields[name].can_end}
        header = Header(
            tuple(fields.values()), (), 1, groups["obs"], groups["actions"], ends=Ends(**ends)
        )
        episodes = only_newest_open(list(self._episodes(header)), self.left_out)
        self.header = replace(header, episodes=episodes)

    def _episodes(self, header: Header) -> Iterator[EpisodeRecord]:
        """Where the rows say that episodes begin; those are open that nothing ends."""
        order = _Order()
        have_ended: list[bool] = []
        for number, (path, file) in enumerate(zip(self._paths, self._files, strict=True)):
            start = at = 0
            with _arrow.reading(path):
                for keys, times, ends in self._marks(file, header):
                    for key, time, ends_here in zip(keys, times, ends, strict=True):
                        if order.begins(number, key, time):
                            if at > start:
                                self._pieces[-1].append(_Piece(number, start, at))
                            self._pieces.append([])
                            have_ended.append(order.has_ended)
                            start = at
                        order.go_on(number, key, time, ends=ends_here)
                        at += 1
                if at > start:
                    self._pieces[-1].append(_Piece(number, start, at))
                if file.metadata.num_rows != at:
                    raise ValueError(f"expected {file.metadata.num_rows} rows, got {at}")
        have_ended = [*have_ended[1:], order.has_ended]  # each was told by the one after it
        for pieces, has_ended in zip(self._pieces, have_ended, strict=True):
            length = sum(piece.stop - piece.start for piece in pieces)
            yield EpisodeRecord(0, length, is_open=not has_ended)

    def _marks(
        self, file: Any, header: Header
    ) -> Iterator[tuple[list[Key], list[Any], list[bool]]]:
        """Of the rows of a file: the episode that each is of, its time, and whether it ends it."""
        there = file.schema_arrow.names
        names = [name for name in (EPISODE, AGENT) if name in there] if EPISODE in there else []
        ends = [self._places[name][0] for name in header.ends.names]
        columns = [*names, *([TIME] if TIME in there else []), *ends]
        for batch in file.iter_batches(1 << 16, columns=columns or None):
            n = len(batch)
            found = [batch.column(name).to_pylist() for name in names]
            keys: list[Key] = list(zip(*found, strict=True)) if names else [()] * n
            times: list[Any] = [None] * n
            if TIME in there:
                times = _arrow.flat(batch.column(TIME), TIME)[0].reshape(n).tolist()
            flags = {
                name: _arrow.flat(batch.column(self._places[name][0]), name)[0].reshape(n)
                for name in header.ends.names
            }
            terminated, truncated = header.ends.flags(flags, n)
            yield keys, times, (terminated | truncated).tolist()

    # ------------------------------------------------------------------ rows

    def _cursor(self, env: int, file: int, most: int) -> _arrow.Cursor:
        if (env, file) not in self._cursors:
            columns = list(dict.fromkeys(column for column, _ in self._places.values()))
            self._cursors = {key: kept for key, kept in self._cursors.items() if key[0] != env}
            path = self._paths[file]
            self._cursors[env, file] = _arrow.Cursor(path, self._files[file], columns, most)
        return self._cursors[env, file]

    def rows(self, number: int, most: int) -> Iterator[Rows]:
        """The rows of an episode."""
        record = self.header.episodes[number]
        held: Rows | None = None  # until the row after the last one is known
        for piece in self._pieces[number]:
            cursor = self._cursor(record.env, piece.file, most)
            for batch in cursor.read(piece.start, piece.stop):
                with _arrow.reading(self._paths[piece.file]):
                    rows = self._columns(batch)
                if not self._follows:
                    yield rows
                    continue
                if held is not None:
                    yield self._with_next(held, rows)
                held = rows
        if held is not None:
            yield self._with_next(held, None)

    def _columns(self, batch: Any) -> Rows:
        rows = {}
        for name, (column, path) in self._places.items():
            if column not in batch.schema.names:
                raise ValueError(f"{column}: expected a column of this name, got none")
            found = _arrow.part(batch.column(column), path, column)
            values = _arrow.values_of(found, column, self.header.stored(name))
            rows[name] = values.reshape(len(batch), *self.header[name].shape)
        return rows

    def _with_next(self, rows: Rows, after: Rows | None) -> Rows:
        """Rows with the observations of the rows after; zeros where that is not known."""
        made = dict(rows)
        n = len(next(iter(rows.values())))
        for name, source in self._follows.items():
            last: Array = np.zeros_like(rows[source][:1]) if after is None else after[source][:1]
            made[name] = np.concatenate([rows[source][1:], last])
        made["has_next"] = np.arange(n) < n - (after is None)
        return made

    def close(self) -> None:
        """Close the files."""
        for file in self._files:
            file.close()


class Rllib(Format):
    """See ``Format``."""

    name = NAME
    is_file = True
    suffixes = (".parquet",)

    def told_by(self, path: Path) -> bool:
        """Whether a path is one of this format."""
        if path.is_dir():
            return any(path.glob("*.parquet"))
        return begins_with(path, MAGIC) or (path.is_file() and path.suffix in self.suffixes)

    def open_writer(self, path: Path, header: Header, about: Mapping[str, Any]) -> RllibWriter:
        """A writer of this format."""
        return RllibWriter(path, header, about)

    def open_reader(self, path: Path) -> RllibReader:
        """A reader of this format."""
        return RllibReader(path)


FORMAT = Rllib()
