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
from pathlib import Path
from typing import Any

import numpy as np

from cpprb_like.datasets import _arrow, _arrow_tensors
from cpprb_like.datasets._files import begins_with, need, reading
from cpprb_like.datasets._format import CUT, Format, Reader, Steps, Writer
from cpprb_like.datasets._from_buffer import rows_in_chunk
from cpprb_like.datasets._header_builder import HeaderBuilder
from cpprb_like.datasets._model import EpisodeRecord, Field, Header, Place, Rows
from cpprb_like.datasets._rllib_episodes import (
    AGENT,
    EPISODE,
    TIME,
    Episodes,
    Mark,
)

__all__ = ["FORMAT"]

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
RESERVED = (EPISODE, TIME, AGENT, "module_id", "infos", "dones", "unroll_id")
BYTES_AS_PARQUET = 8  # bytes that an integer of one byte takes while it is written, with its levels


class RllibWriter(Writer):
    """Writes a Parquet file, a group of rows whenever there are enough."""

    flags = (("terminateds",), ("truncateds",))

    def __init__(self, path: Path, header: Header, about: Mapping[str, Any]) -> None:
        super().__init__(header, header.places(COLUMNS, RESERVED))
        self._file = _arrow.ParquetWriter(
            path,
            rows_in_chunk(header.row_nbytes, BYTES_AS_PARQUET),
            {str(key): str(value) for key, value in about.items()},
            use_dictionary=[EPISODE],
            write_statistics=False,
        )

    def steps(self, at: int, steps: Steps) -> None:
        """Write rows behind those before."""
        pa = need("pyarrow", NAME)
        n = len(steps[self.flags[0]])
        parts: dict[str, dict[Place, Any]] = {
            EPISODE: {(): pa.array([str(self.number)] * n)},
            TIME: {(): pa.array(np.arange(at, at + n))},
        }
        for (column, *path), values in steps.items():
            parts.setdefault(column, {})[tuple(path)] = _arrow_tensors.column(values)
        self._file.add({column: _arrow.struct(found) for column, found in parts.items()})

    def close(self) -> None:
        """Write the last rows, and the footer."""
        self._file.close()

    def abandon(self) -> None:
        """Close the file."""
        self._file.abandon()


class RllibReader(Reader):
    """Reads a Parquet file, or a folder of them."""

    def __init__(self, path: Path, split: str | None = None) -> None:
        super().__init__(path, split)
        need("pyarrow", NAME)
        paths = sorted(_files_of(path)) if path.is_dir() else [path]
        if not paths:
            raise ValueError(f"{path}: expected files that end in .parquet, got none")
        self._files = _arrow.ParquetFiles(paths)

    def read_fields(self) -> HeaderBuilder:
        """The fields, from the first row of the first file."""
        with reading(self._files.paths[0]):
            return self._read_fields()

    def _read_fields(self) -> HeaderBuilder:
        first = next(self._files.open(0).iter_batches(1), None)
        if first is None or len(first) == 0:
            raise ValueError("expected rows, got none")
        _check_recorded(first)
        paths = [
            (column, *path)
            for column in first.schema.names
            for path in _arrow.parts(first.schema.field(column))
            if column != TIME  # where a row stands in its episode
            and str(first.schema.field(column).type) != "null"
        ]

        def field_of(place: Place, name: str) -> Field | str:
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
        return builder

    def read_episodes(self) -> Iterator[tuple[EpisodeRecord, list[list[int]]]]:
        """Where the rows say that episodes begin; those are open that nothing ends."""
        there = self._files.open(0).schema_arrow.names
        names = list(self.header.observations)
        nexts = [name for name, path in self.places.items() if path[0] == "new_obs"]
        is_linked = sorted(nexts) == sorted(f"next_{name}" for name in names) != []
        is_linked = is_linked and EPISODE in there and TIME not in there
        linking = names if is_linked else []
        episodes = Episodes(has_times=TIME in there, has_observations=is_linked)
        for number, (path, first) in enumerate(
            zip(self._files.paths, self._files.starts.tolist(), strict=False)
        ):
            file, at = self._files.open(number), first
            with reading(path):
                for marks in self._marks(file, linking):
                    episodes.add(number, marks, at)
                    at += len(marks)
                if file.metadata.num_rows != at - first:
                    raise ValueError(f"expected {file.metadata.num_rows} rows, got {at - first}")
        if all(key[:1] == (str(number),) for number, key in enumerate(episodes.keys)):
            # Names that only count the episodes say nothing that a buffer lacks.
            self.left_out = [text for text in self.left_out if not text.startswith(f"{EPISODE} (")]
        return zip(episodes.records(), episodes.pieces, strict=True)

    def _marks(self, file: Any, linking: list[str]) -> Iterator[list[Mark]]:
        """Of the rows of a file: what tells the episode that each is of."""
        header = self.header
        there = file.schema_arrow.names
        keys = [name for name in (EPISODE, AGENT) if name in there] if EPISODE in there else []
        ends = [self.places[name][0] for name in header.ends.names]
        nexts = [f"next_{name}" for name in linking]
        linked = {self.places[name][0] for name in (*linking, *nexts)}
        columns = [*keys, *([TIME] if TIME in there else []), *ends, *linked]
        nbytes = sum(header[name].nbytes for name in (*linking, *nexts))
        for batch in file.iter_batches(rows_in_chunk(max(nbytes, 64)), columns=columns or None):
            n = len(batch)
            found = list(zip(*(batch.column(name).to_pylist() for name in keys), strict=True))
            found = found or [()] * n
            flags = {
                name: _arrow.flat(batch.column(self.places[name][0]), name)[0].reshape(n)
                for name in header.ends.names
            }
            terminated, truncated = header.ends.flags(flags, n)
            marks = list(map(Mark, found, (terminated | truncated).tolist()))
            if TIME in there:
                times = _arrow.flat(batch.column(TIME), TIME)[0].reshape(n).tolist()
                marks = [
                    mark._replace(here=t, after=t + 1) for mark, t in zip(marks, times, strict=True)
                ]
            if linking:
                obs, new_obs = self._values(batch, linking), self._values(batch, nexts)
                for k in range(n):
                    if k == 0 or marks[k].key != marks[k - 1].key:
                        marks[k] = marks[k]._replace(here=_digest(obs, k))
                    if k == n - 1 or marks[k].key != marks[k + 1].key:
                        marks[k] = marks[k]._replace(after=_digest(new_obs, k))
            yield marks

    def read(self, number: int, most: int) -> Iterator[Rows]:
        """The rows of an episode."""
        columns = list(dict.fromkeys(path[0] for path in self.places.values()))
        for start, stop in self.spans[number]:
            yield from self._files.read(
                start, stop, columns, most, lambda batch: self._values(batch, self.places)
            )

    def _values(self, batch: Any, names: Iterable[str]) -> Rows:
        """The values of fields."""
        rows = {}
        for name in names:
            column, *path = self.places[name]
            if column not in batch.schema.names:
                raise ValueError(f"{column}: expected a column of this name, got none")
            field, whole = batch.schema.field(column), batch.column(column)
            found = _arrow_tensors.part(field, whole, tuple(path))
            if isinstance(found, str):
                raise ValueError(f"{column}: expected numbers, got {found}")
            rows[name] = _arrow.values_of(found, column, self.header[name])
        return rows

    def close(self) -> None:
        """Close the file."""
        self._files.close()


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

    def matches(self, path: Path) -> bool:
        """Whether the files at a path are of this format."""
        if path.is_dir():
            return any(_files_of(path))
        return begins_with(path, MAGIC) or (path.is_file() and path.suffix in self.suffixes)


FORMAT = Rllib()
