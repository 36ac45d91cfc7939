"""RLlib: Parquet with a row for each step, in the columns that ``OfflineData`` reads.

``eps_id``, ``t``, ``obs``, ``actions``, ``rewards``, ``new_obs``, ``terminateds``, ``truncateds``;
parts of an observation or action are the fields of a struct. Every other column is one of an extra
field, which RLlib takes for an output of the model. Our metadata are in the schema of the file. Of
others a folder of such files is read too, as RLlib records them. Not here: which rows are of one
episode (``_rllib_episodes``).
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from cpprb_like.datasets import _arrow, _arrow_tensors
from cpprb_like.datasets._files import begins_with, need
from cpprb_like.datasets._format import Format, Reader, Writer
from cpprb_like.datasets._from_buffer import rows_in_chunk
from cpprb_like.datasets._model import (
    Ends,
    EpisodeRecord,
    Field,
    Header,
    Rows,
    is_taken,
    key_of,
    load_json,
    only_newest_open,
    with_next,
)
from cpprb_like.datasets._model import Path as Parts
from cpprb_like.datasets._rllib_episodes import (
    AGENT,
    EPISODE,
    TIME,
    ByObservation,
    ByTime,
    Episodes,
    Mark,
    Piece,
)

__all__ = ["FORMAT", "RllibReader", "RllibWriter"]

NAME = "rllib"
MAGIC = b"PAR1"
OURS = "cpprb_like"
PATTERNS = ("*.parquet", "run-*/*.parquet", "*/run-*/*.parquet")  # of a folder, and of recorders
WHOLE = "item"  # the column in which RLlib packs episodes
COLUMNS = {
    "obs": "obs",
    "actions": "act",
    "rewards": "rew",
    "new_obs": "next_obs",
    "terminateds": "terminated",
    "truncateds": "truncated",
}
GROUPS = ("obs", "actions", "new_obs")  # which may have parts
RESERVED = {*COLUMNS, EPISODE, TIME, AGENT, "module_id", "infos", "dones", "unroll_id"}
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
            columns.setdefault(column, {})[path] = _arrow_tensors.column(rows[name])
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


class RllibReader(Reader):
    """Reads a Parquet file, ours or another, or a folder of them."""

    header: Header

    def __init__(self, path: Path) -> None:
        need("pyarrow", NAME)
        self.left_out: list[str] = []
        self._paths = sorted(_files_of(path)) if path.is_dir() else [path]
        if not self._paths:
            raise ValueError(f"{path}: expected files that end in .parquet, got none")
        self._open: tuple[int, Any] | None = None  # one at a time, as there may be thousands
        self._cursors: dict[tuple[int, int], _arrow.Cursor] = {}
        self._follows: dict[str, str] = {}
        self._pieces: list[list[Piece]] = []  # of each episode
        try:
            metadata = self._file(0).schema_arrow.metadata or {}
            is_ours = OURS.encode() in metadata and len(self._paths) == 1
            with _arrow.reading(self._paths[0]):
                if is_ours:
                    self._read_ours(metadata[OURS.encode()])
                else:
                    self._read_foreign()
            if not is_ours:
                episodes = only_newest_open(self._episodes(), self.left_out)
                self.header = replace(self.header, episodes=episodes)
        except BaseException:
            self.close()
            raise

    def _file(self, number: int) -> Any:
        """A file, opened; of others than the last one that was asked for none is."""
        if self._open is None or self._open[0] != number:
            self.close()
            self._open = number, _arrow.opened(self._paths[number])
        return self._open[1]

    def _read_ours(self, data: bytes) -> None:
        self.header = header = Header.from_json(load_json(data, OURS))
        self._places = _places(header)
        rows = self._file(0).metadata.num_rows
        if rows != header.rows:
            raise ValueError(f"expected {header.rows} rows, as the metadata say, got {rows}")
        lengths = [episode.length for episode in header.episodes]
        starts = np.cumsum([0, *lengths]).tolist()
        self._pieces = [[Piece(0, *rows)] for rows in itertools.pairwise(starts)]

    # ------------------------------------------------------------------ files of others

    def _read_foreign(self) -> None:
        first = next(self._file(0).iter_batches(1), None)
        if first is None or len(first) == 0:
            raise ValueError("expected rows, got none")
        _check_recorded(first)
        fields: dict[str, Field] = {}
        self._places = {}
        groups: dict[str, dict[str, Parts]] = {column: {} for column in GROUPS}
        for column in sorted(first.schema.names, key=lambda name: name not in COLUMNS):
            if column == TIME:  # where a row stands in its episode
                continue
            described, whole = first.schema.field(column), first.column(column)
            is_told = column in COLUMNS or groups["new_obs"]
            following = {} if is_told else groups["obs"]
            for path in _arrow_tensors.parts(described):
                name = ".".join((COLUMNS.get(column, column), *path))
                if is_taken(name, fields, following):
                    self.left_out.append(f"{'.'.join((column, *path))} (another is {name!r})")
                    continue
                found = _arrow_tensors.part(described, whole, path)
                field = None if isinstance(found, str) else _arrow.field_of(found, name)
                if field is None:
                    kind = found if isinstance(found, str) else str(whole.type)
                    self._leave_out(column, path, kind)
                    continue
                fields[name] = field
                self._places[name] = column, path
                if column in groups:
                    groups[column][name] = path
        if not groups["new_obs"]:
            for name in groups["obs"]:
                self._follows[f"next_{name}"] = name
                fields[f"next_{name}"] = replace(fields[name], name=f"next_{name}")
            self.unknown = tuple(self._follows)
        known = [name for name in ("terminated", "truncated") if name in fields]
        ends = {name: name for name in known if fields[name].can_end}
        self.header = Header(
            tuple(fields.values()), (), 1, groups["obs"], groups["actions"], ends=Ends(**ends)
        )

    def _leave_out(self, column: str, path: Parts, kind: str) -> None:
        """Tell that values of others have no place, unless there are none or these are needed."""
        if kind == "null":
            return
        if column in GROUPS and not path:
            raise ValueError(
                f"{column}: expected numbers, got {kind}: what RLlib pickles is not read; record "
                "with output_compress_columns=[] and arrays of numbers of one shape"
            )
        self.left_out.append(f"{column} ({kind})")

    def _episodes(self) -> list[EpisodeRecord]:
        """Where the rows say that episodes begin; those are open that nothing ends."""
        there = self._file(0).schema_arrow.names
        names = list(self.header.observations)
        nexts = [name for name, (column, _) in self._places.items() if column == "new_obs"]
        is_linked = sorted(nexts) == sorted(f"next_{name}" for name in names) != []
        is_linked = is_linked and EPISODE in there and TIME not in there
        linking = names if is_linked else []
        episodes = Episodes(ByObservation() if is_linked else ByTime())
        for number, path in enumerate(self._paths):
            file, at = self._file(number), 0
            with _arrow.reading(path):
                for marks in self._marks(file, linking):
                    episodes.add(number, marks, at)
                    at += len(marks)
                if file.metadata.num_rows != at:
                    raise ValueError(f"expected {file.metadata.num_rows} rows, got {at}")
        self._pieces = episodes.pieces
        return episodes.records()

    def _marks(self, file: Any, linking: list[str]) -> Iterator[list[Mark]]:
        """Of the rows of a file: what tells the episode that each is of."""
        header = self.header
        there = file.schema_arrow.names
        keys = [name for name in (EPISODE, AGENT) if name in there] if EPISODE in there else []
        ends = [self._places[name][0] for name in header.ends.names]
        nexts = [f"next_{name}" for name in linking]
        linked = {self._places[name][0] for name in (*linking, *nexts)}
        columns = [*keys, *([TIME] if TIME in there else []), *ends, *linked]
        nbytes = sum(header[name].nbytes for name in (*linking, *nexts))
        for batch in file.iter_batches(rows_in_chunk(max(nbytes, 64)), columns=columns or None):
            n = len(batch)
            found = list(zip(*(batch.column(name).to_pylist() for name in keys), strict=True))
            found = found or [()] * n
            times: list[Any] = [None] * n
            if TIME in there:
                times = _arrow.flat(batch.column(TIME), TIME)[0].reshape(n).tolist()
            flags = {
                name: _arrow.flat(batch.column(self._places[name][0]), name)[0].reshape(n)
                for name in header.ends.names
            }
            terminated, truncated = header.ends.flags(flags, n)
            marks = list(map(Mark, found, times, (terminated | truncated).tolist()))
            if linking:
                obs, new_obs = self._values(batch, linking), self._values(batch, nexts)
                for k in range(n):
                    if k == 0 or marks[k].key != marks[k - 1].key:
                        marks[k] = marks[k]._replace(obs=_digest(obs, k))
                    if k == n - 1 or marks[k].key != marks[k + 1].key:
                        marks[k] = marks[k]._replace(new_obs=_digest(new_obs, k))
            yield marks

    # ------------------------------------------------------------------ rows

    def _cursor(self, env: int, file: int, most: int) -> _arrow.Cursor:
        if (env, file) not in self._cursors:
            columns = list(dict.fromkeys(column for column, _ in self._places.values()))
            self._cursors = {key: kept for key, kept in self._cursors.items() if key[0] != env}
            path, opened = self._paths[file], self._file(file)
            self._cursors[env, file] = _arrow.Cursor(path, opened, columns, most)
        return self._cursors[env, file]

    def rows(self, number: int, most: int) -> Iterator[Rows]:
        """The rows of an episode."""
        record = self.header.episodes[number]
        held: Rows | None = None  # until the row after the last one is known
        for piece in self._pieces[number]:
            cursor = self._cursor(record.env, piece.file, most)
            for batch in cursor.read(piece.start, piece.stop):
                with _arrow.reading(self._paths[piece.file]):
                    rows = self._values(batch, self._places)
                if not self._follows:
                    yield rows
                    continue
                if held is not None:
                    yield with_next(held, rows, self._follows)
                held = rows
        if held is not None:
            yield with_next(held, None, self._follows)

    def _values(self, batch: Any, names: Iterable[str]) -> Rows:
        """The values of fields."""
        rows = {}
        for name in names:
            column, path = self._places[name]
            if column not in batch.schema.names:
                raise ValueError(f"{column}: expected a column of this name, got none")
            found = _arrow_tensors.part(batch.schema.field(column), batch.column(column), path)
            if isinstance(found, str):
                raise ValueError(f"{column}: expected numbers, got {found}")
            values = _arrow.values_of(found, column, self.header.stored(name))
            rows[name] = values.reshape(len(batch), *self.header[name].shape)
        return rows

    def close(self) -> None:
        """Close the file."""
        if self._open is not None:
            self._open[1].close()
            self._open = None


def _files_of(path: Path) -> Iterator[Path]:
    """The files of a folder."""
    return itertools.chain.from_iterable(map(path.glob, PATTERNS))


def _check_recorded(batch: Any) -> None:
    """Raise ``ValueError`` if these are no steps, but whole episodes as RLlib packs them."""
    if batch.schema.names == [WHOLE]:
        raise ValueError(
            f"{WHOLE}: expected a column for each of {list(COLUMNS)}, got whole episodes: record "
            "with output_write_episodes=False and output_compress_columns=[]"
        )


def _digest(rows: Rows, row: int) -> bytes:
    """One of the values of a row."""
    made = hashlib.blake2b(digest_size=16)
    for values in rows.values():
        made.update(values[row].tobytes())
    return made.digest()


class Rllib(Format):
    """See ``Format``."""

    name = NAME
    is_file = True
    suffixes = (".parquet",)

    def told_by(self, path: Path) -> bool:
        """Whether a path is one of this format."""
        if path.is_dir():
            return any(_files_of(path))
        return begins_with(path, MAGIC) or (path.is_file() and path.suffix in self.suffixes)

    def open_writer(self, path: Path, header: Header, about: Mapping[str, Any]) -> RllibWriter:
        """A writer of this format."""
        return RllibWriter(path, header, about)

    def open_reader(self, path: Path) -> RllibReader:
        """A reader of this format."""
        return RllibReader(path)


FORMAT = Rllib()
