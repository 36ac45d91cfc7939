"""RLlib: Parquet with a row for each step, in the columns that ``OfflineData`` reads.

``eps_id``, ``t``, ``obs``, ``actions``, ``rewards``, ``new_obs``, ``terminateds``, ``truncateds``;
parts of an observation or action are the fields of a struct. Every other column is one of an extra
field, which RLlib takes for an output of the model. Our metadata are in the schema of the file. Of
others a folder of such files is read too.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from cpprb_like.datasets import _arrow
from cpprb_like.datasets._files import begins_with, need
from cpprb_like.datasets._from_buffer import rows_in_chunk
from cpprb_like.datasets._model import (
    Array,
    Ends,
    EpisodeRecord,
    Field,
    Header,
    Rows,
    key_of,
    load_json,
)
from cpprb_like.datasets._model import Path as Parts

__all__ = ["IS_FILE", "NAME", "RllibReader", "RllibWriter", "check", "told_by"]

NAME = "rllib"
IS_FILE = True
SUFFIXES = (".parquet",)
MAGIC = b"PAR1"
OURS = "cpprb_like"
EPISODE, TIME = "eps_id", "t"
COLUMNS = {
    "obs": "obs",
    "actions": "act",
    "rewards": "rew",
    "new_obs": "next_obs",
    "terminateds": "terminated",
    "truncateds": "truncated",
}
RESERVED = {*COLUMNS, EPISODE, TIME, "agent_id", "module_id", "infos", "dones", "unroll_id"}
FLAG = np.dtype(np.bool_)
BYTES_AS_PARQUET = 8  # bytes that an integer of one byte takes while it is written, with its levels


def told_by(path: Path) -> bool:
    """Whether a path is one of this format."""
    if path.is_dir():
        return any(path.glob("*.parquet"))
    return begins_with(path, MAGIC) or (path.is_file() and path.suffix in SUFFIXES)


def check(header: Header) -> None:
    """Raise ``ValueError`` if something is lacking that the format must have: nothing is."""


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


class RllibWriter:
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


class RllibReader:
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
        self._pieces: list[tuple[int, int]] = []  # the file and the first row of each episode
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
        self._pieces = [(0, start) for start in starts[:-1]]

    # ------------------------------------------------------------------ files of others

    def _read_foreign(self) -> None:
        first = next(self._files[0].iter_batches(1), None)
        if first is None or len(first) == 0:
            raise ValueError("expected rows, got none")
        fields: dict[str, Field] = {}
        self._places = {}
        groups: dict[str, dict[str, Parts]] = {"obs": {}, "actions": {}, "new_obs": {}}
        for column in first.schema.names:
            if column in (EPISODE, TIME, "agent_id", "module_id"):
                continue
            found = first.column(column)
            for path in _arrow.parts(found.type):
                name = ".".join((COLUMNS.get(column, column), *path))
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
        self.header = replace(header, episodes=tuple(self._episodes(header)))

    def _episodes(self, header: Header) -> Iterator[EpisodeRecord]:
        """Where ``eps_id`` changes, or an end flag is set; the last one may be open."""
        found: list[tuple[int, bool]] = []  # the length of each, and whether it has ended
        for number, (path, file) in enumerate(zip(self._paths, self._files, strict=True)):
            start = row = 0
            before: Any = None
            names = [name for name in (EPISODE,) if name in file.schema_arrow.names]
            columns = [*names, *(self._places[name][0] for name in header.ends.names)]
            ended = True
            for batch in file.iter_batches(1 << 16, columns=columns or None):
                n = len(batch)
                ids = batch.column(EPISODE).to_pylist() if names else [None] * n
                flags = {
                    name: _arrow.flat(batch.column(self._places[name][0]), name)[0].reshape(n)
                    for name in header.ends.names
                }
                terminated, truncated = header.ends.flags(flags, n)
                ends = (terminated | truncated).tolist()
                for k in range(n):
                    if row > start and (ended or ids[k] != before):
                        found.append((row - start, ended))
                        self._pieces.append((number, start))
                        start = row
                    before, ended = ids[k], ends[k]
                    row += 1
            if row > start:
                found.append((row - start, ended))
                self._pieces.append((number, start))
            if file.metadata.num_rows != row:
                raise ValueError(f"{path}: expected {file.metadata.num_rows} rows, got {row}")
        for k, (length, ended) in enumerate(found):
            yield EpisodeRecord(0, length, is_open=not ended and k == len(found) - 1)

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
        file, start = self._pieces[number]
        cursor = self._cursor(record.env, file, most)
        held: Rows | None = None  # until the row after the last one is known
        for batch in cursor.read(start, start + record.length):
            with _arrow.reading(self._paths[file]):
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


def open_writer(path: Path, header: Header, about: Mapping[str, Any]) -> RllibWriter:
    """A writer of this format."""
    return RllibWriter(path, header, about)


def open_reader(path: Path) -> RllibReader:
    """A reader of this format."""
    return RllibReader(path)


def find(name: str) -> None:
    """Where a data set of this name is: files have paths, and no names."""
    del name
