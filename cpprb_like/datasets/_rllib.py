"""RLlib: Parquet with a row for each step, in the columns that ``OfflineData`` reads.

``eps_id``, ``t``, ``obs``, ``actions``, ``rewards``, ``new_obs``, ``terminateds``, ``truncateds``;
parts of an observation or action are the fields of a struct. An extra field is a column of its
name, which RLlib takes for an output of the model. A folder of such files is read too, as RLlib
records them. Not here: which rows are of one episode (``_rllib_episodes``).
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from cpprb_like.datasets import _arrow, _arrow_tensors
from cpprb_like.datasets._files import begins_with, need
from cpprb_like.datasets._format import CUT, Format, Reader, Writer
from cpprb_like.datasets._from_buffer import rows_in_chunk
from cpprb_like.datasets._header_builder import HeaderBuilder
from cpprb_like.datasets._model import (
    Array,
    EpisodeRecord,
    Field,
    Header,
    Rows,
    as_one_stream,
    key_of,
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
FLAGS = ("terminateds", "truncateds")
RESERVED = {*COLUMNS, EPISODE, TIME, AGENT, "module_id", "infos", "dones", "unroll_id"}
BYTES_AS_PARQUET = 8  # bytes that an integer of one byte takes while it is written, with its levels


Place = tuple[str, Parts]  # a column, and the path in it


def _places(header: Header) -> dict[str, Place]:
    """The column of each field, except of those that end episodes."""
    places: dict[str, Place] = {}
    for name, path in header.observations.items():
        places[name] = "obs", tuple(map(key_of, path))
        if name in header.nexts:
            places[header.nexts[name]] = "new_obs", tuple(map(key_of, path))
    for name, path in header.actions.items():
        places[name] = "actions", tuple(map(key_of, path))
    if header.reward is not None:
        places[header.reward] = "rewards", ()
    return places | {name: (key, ()) for name, key in header.extra_keys(places, RESERVED).items()}


class RllibWriter(Writer):
    """Writes a Parquet file, a group of rows whenever there are enough."""

    def __init__(self, path: Path, header: Header, about: Mapping[str, Any]) -> None:
        need("pyarrow.parquet", NAME)
        self._path, self._header = path, header
        self._places = _places(header)
        self._most = rows_in_chunk(header.row_nbytes, BYTES_AS_PARQUET)
        self._waiting: list[dict[Place, Array]] = []
        self._n = 0
        self._writer: Any = None
        self._about = {str(key): str(value) for key, value in about.items()}

    def episode(self, number: int, record: EpisodeRecord, chunks: Iterator[Rows]) -> None:
        """Write the rows of an episode behind those before."""
        at = 0
        for rows in chunks:
            n = len(next(iter(rows.values())))
            flags = self._header.last_flags(rows, n, record, is_last=at + n == record.length)
            steps: dict[Place, Array] = {
                place: rows[name].reshape(n, *self._header.stored(name).shape)
                for name, place in self._places.items()
            }
            steps |= {(column, ()): values for column, values in zip(FLAGS, flags, strict=True)}
            steps |= {(EPISODE, ()): np.full(n, number), (TIME, ()): np.arange(at, at + n)}
            self._waiting.append(steps)
            self._n += n
            at += n
            if self._n >= self._most:
                self._write()

    def _write(self) -> None:
        """Write what waits as one group of rows."""
        pa = need("pyarrow", NAME)
        rows = {
            place: np.concatenate([steps[place] for steps in self._waiting])
            for place in self._waiting[0]
        }
        self._waiting, self._n = [], 0
        columns: dict[str, dict[Parts, Any]] = {
            EPISODE: {(): pa.array([str(number) for number in rows.pop((EPISODE, ())).tolist()])}
        }
        for (column, path), values in rows.items():
            columns.setdefault(column, {})[path] = _arrow_tensors.column(values)
        table = pa.Table.from_pydict(
            {column: _arrow.struct(found) for column, found in columns.items()}
        )
        if self._writer is None:
            schema = table.schema.with_metadata(self._about)
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
    """Reads a Parquet file, or a folder of them."""

    header: Header

    def __init__(self, path: Path) -> None:
        need("pyarrow", NAME)
        self.left_out: list[str] = []
        self.path = path
        self._paths = sorted(_files_of(path)) if path.is_dir() else [path]
        if not self._paths:
            raise ValueError(f"{path}: expected files that end in .parquet, got none")
        self._open: tuple[int, Any] | None = None  # one at a time, as there may be thousands
        self._cursor: tuple[int, _arrow.Cursor] | None = None  # of one file
        self._pieces: list[list[Piece]] = []  # of each episode
        try:
            with _arrow.reading(self._paths[0]):
                self.header = self._read_header()
            episodes = as_one_stream(self._episodes(), self.left_out)
            self.header = replace(self.header, episodes=episodes)
        except BaseException:
            self.close()
            raise

    def _file(self, number: int) -> Any:
        """A file, opened; one is open at a time."""
        if self._open is None or self._open[0] != number:
            self.close()
            self._open = number, _arrow.opened(self._paths[number])
        return self._open[1]

    def _read_header(self) -> Header:
        """The fields, from the first row of the first file."""
        first = next(self._file(0).iter_batches(1), None)
        if first is None or len(first) == 0:
            raise ValueError("expected rows, got none")
        _check_recorded(first)
        paths = [
            (column, *path)
            for column in first.schema.names
            for path in _arrow_tensors.parts(first.schema.field(column))
            if column != TIME  # where a row stands in its episode
            and str(first.schema.field(column).type) != "null"
        ]

        def field_of(place: Parts, name: str) -> Field | str:
            column, *path = place
            whole = first.column(column)
            found = _arrow_tensors.part(first.schema.field(column), whole, tuple(path))
            field = None if isinstance(found, str) else _arrow.field_of(found, name)
            kind = found if isinstance(found, str) else str(whole.type)
            if field is not None:
                return field
            if column in GROUPS and not path:
                raise ValueError(
                    f"{column}: expected numbers, got {kind}: what RLlib pickles is not read; "
                    "record with output_compress_columns=[] and arrays of numbers of one shape"
                )
            return kind

        has_next = any(path[0] == "new_obs" for path in paths)
        builder = HeaderBuilder(COLUMNS, self.left_out, makes_next=not has_next)
        builder.add(paths, field_of)
        self._places = {name: (path[0], path[1:]) for name, path in builder.places.items()}
        return builder.header()

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
        if all(key[:1] == (str(number),) for number, key in enumerate(episodes.keys)):
            # Names that only count the episodes say nothing that a buffer lacks.
            self.left_out = [text for text in self.left_out if not text.startswith(f"{EPISODE} (")]
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

    def _cursor_of(self, file: int, most: int) -> _arrow.Cursor:
        if self._cursor is None or self._cursor[0] != file:
            columns = list(dict.fromkeys(column for column, _ in self._places.values()))
            cursor = _arrow.Cursor(self._paths[file], self._file(file), columns, most)
            self._cursor = file, cursor
        return self._cursor[1]

    def rows(self, number: int, most: int) -> Iterator[Rows]:
        """The rows of an episode."""
        return with_next(self._read(number, most), self.header.chained)

    def _read(self, number: int, most: int) -> Iterator[Rows]:
        for piece in self._pieces[number]:
            cursor = self._cursor_of(piece.file, most)
            for batch in cursor.read(piece.start, piece.stop):
                with _arrow.reading(self._paths[piece.file]):
                    rows = self._values(batch, self._places)
                yield rows

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
            rows[name] = _arrow.values_of(found, column, self.header[name])
        return rows

    def close(self) -> None:
        """Close the file."""
        self._cursor = None
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
    reader, writer = RllibReader, RllibWriter
    is_file = True
    suffixes = (".parquet",)
    lacks = (CUT,)

    def told_by(self, path: Path) -> bool:
        """Whether a path is one of this format."""
        if path.is_dir():
            return any(_files_of(path))
        return begins_with(path, MAGIC) or (path.is_file() and path.suffix in self.suffixes)


FORMAT = Rllib()
