"""Minari with Arrow: a folder for each episode, with one batch of its steps.

One row more than there are steps: the last has the final observation, and zeros in every other
column. Minari's loader takes each batch for an episode, so an episode is written at once and takes
its memory; it is read in pieces. Extra fields are columns ``cpprb_like.NAME``. Of others, those
with Parquet are read too. Not here: ``metadata.json`` of the data set (``_minari_metadata``).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from cpprb_like.datasets import _arrow, _minari_metadata
from cpprb_like.datasets._files import need
from cpprb_like.datasets._format import Format, Reader, Writer
from cpprb_like.datasets._minari import (
    COLUMNS,
    ENDS,
    OURS,
    SEED,
    add_seeds,
    decoded,
    foreign_header,
    seed_in,
    seeds_of,
    tell_of_resets,
    with_seeds,
)
from cpprb_like.datasets._minari_metadata import INFOS, Leaf
from cpprb_like.datasets._model import (
    Array,
    EpisodeRecord,
    Field,
    Header,
    Rows,
    check_steps,
    is_taken,
    key_of,
    load_json,
    only_newest_open,
)
from cpprb_like.datasets._model import Path as Parts

__all__ = ["FORMAT", "MinariArrowReader", "MinariArrowWriter"]

NAME = "minari-arrow"
FILE = "part-0.arrow"
METADATA = "metadata.json"
STORAGES = ("arrow", "parquet")

Place = tuple[str, Parts]  # a column, and the path in it


def _places(header: Header) -> dict[str, Place]:
    """Where each field is, but for next values that are the observation after."""
    places: dict[str, Place] = {}
    for column, found in (("observations", header.observations), ("actions", header.actions)):
        places |= {name: (column, tuple(map(key_of, path))) for name, path in found.items()}
    ends = zip((header.reward, header.terminated, header.truncated), COLUMNS, strict=True)
    places |= {name: (column, ()) for name, column in ends if name is not None}
    infos = _minari_metadata.infos(header)
    places |= {name: (INFOS, path) for name, path in infos.items()}
    extras = [field.name for field in header.extras if field.nbytes and field.name not in infos]
    return places | {name: (f"{OURS}.{key_of(name)}", ()) for name in extras}


class MinariArrowWriter(Writer):
    """Writes a folder of Minari's."""

    def __init__(self, path: Path, header: Header, about: Mapping[str, Any]) -> None:
        need("pyarrow", NAME)
        self._folder, self._header, self._about = path / "data", header, about
        self._folder.mkdir()
        self._places, self._infos = _places(header), _minari_metadata.infos(header)
        self._numbers = set()  # which Minari reads as numbers, and not as lists
        parts = header.observations, header.actions
        for key, named in zip(_minari_metadata.SPACES, parts, strict=True):
            known = _minari_metadata.leaves(about[key], key)
            self._numbers |= {
                name for name, path in named.items() if known[path].kind == "Discrete"
            }
        self._nbytes = 0

    def episode(self, number: int, record: EpisodeRecord, chunks: Iterator[Rows]) -> None:
        """Write the folder of an episode."""
        pa = need("pyarrow", NAME)
        header, n = self._header, record.length
        copies: list[Rows] = [
            {name: values.copy() for name, values in rows.items()} for rows in chunks
        ]
        rows = {
            name: np.concatenate([piece[name] for piece in copies]).astype(
                header[name].dtype, copy=False
            )
            for name in header.names
        }
        flags = header.last_flags(rows, n, record, is_last=True)
        columns: dict[str, dict[Parts, Any]] = {}
        for name, (column, path) in self._places.items():
            last = np.zeros_like(rows[name][:1])
            if column == "observations":
                last = rows[str(header.following(name))][-1:]
            pieces = [rows[name], last]
            if column == INFOS:
                pieces = [_minari_metadata.info_of_reset(header[name]), rows[name]]
            values = np.concatenate(pieces).astype(header[name].dtype, copy=False)
            values = values.reshape(n + 1, *header.stored(name).shape)
            is_flat = column in ("observations", "actions") or (column == INFOS and values.ndim > 1)
            is_flat = is_flat and name not in self._numbers
            columns.setdefault(column, {})[path] = _arrow.column(values, is_flat=is_flat)
        shapes = {path: header[name].shape for name, path in self._infos.items()}
        arrays = {
            column: _arrow.struct(found, shapes if column == INFOS else {})
            for column, found in columns.items()
        }
        for column, values in zip(("terminations", "truncations"), flags, strict=True):
            arrays.setdefault(column, pa.array(np.append(values, False)))
        folder = self._folder / str(number)
        folder.mkdir()
        batch = pa.RecordBatch.from_pydict(arrays)
        with (
            pa.OSFile(str(folder / FILE), "wb") as file,
            pa.ipc.new_file(file, batch.schema) as out,
        ):
            out.write_batch(batch)
        found = {"id": number, "total_steps": n}
        seed = seed_in(rows, header)
        if seed is not None:
            found[SEED] = seed
        (folder / METADATA).write_text(json.dumps(found), encoding="utf-8")
        self._nbytes += batch.nbytes

    def close(self) -> None:
        """Write the metadata."""
        _minari_metadata.write(self._folder, self._header, "arrow", self._nbytes, self._about)


class MinariArrowReader(Reader):
    """Reads a folder of Minari's, ours or another."""

    header: Header

    def __init__(self, path: Path) -> None:
        need("pyarrow", NAME)
        folder = _minari_metadata.data_folder(path)
        if folder is None:
            raise ValueError(f"{path}: expected a folder with {_minari_metadata.METADATA}")
        self._folder = folder
        metadata, ours = _minari_metadata.read(folder)
        self.about = _minari_metadata.about_of(metadata)
        self._storage = str(metadata.get("data_format"))
        self.left_out: list[str] = []
        self._jpeg: dict[str, Leaf] = {}
        self._offsets: dict[str, int] = {}
        if ours is not None:
            self._places = _places(ours)
            self._offsets = dict.fromkeys(_minari_metadata.infos(ours), 1)
            self._ids = list(range(len(ours.episodes)))
            self.header = with_seeds(ours, self._read_seed)
        else:
            with _arrow.reading(folder):
                self._read_foreign(metadata)

    # ------------------------------------------------------------------ files of others

    def _read_foreign(self, metadata: Mapping[str, Any]) -> None:
        total = metadata.get("total_episodes", 0)
        if not isinstance(total, int) or not 0 < total <= len(list(self._folder.iterdir())):
            raise ValueError(
                f"total_episodes: expected as many as there are folders, got {total!r}"
            )
        paths: Counter[Place] = Counter()
        episodes, self._ids = [], []
        for number in range(total):
            table = self._table(number)
            rows = table.num_rows - 1
            if rows > 0:
                seed = self._read_seed(number)
                paths.update(_leaves(table))
                has_ended = any(
                    bool(table.column(name)[rows - 1].as_py())
                    for name in ENDS
                    if name in table.column_names
                )
                episodes.append(EpisodeRecord(0, rows, is_open=not has_ended, seed=seed))
                self._ids.append(number)
        if not episodes:
            raise ValueError("expected an episode with rows, got none")
        first = self._table(self._ids[0]).slice(0, 2)
        self._read_fields(first, episodes, metadata)
        self.left_out += [
            f"{'/'.join((column, *path))} of {count} episodes"
            for (column, path), count in (
                paths - Counter(dict.fromkeys(_leaves(first), total))
            ).items()
        ]
        self.header = replace(self.header, episodes=only_newest_open(episodes, self.left_out))

    def _read_seed(self, number: int) -> int | None:
        path = self._folder / str(number) / METADATA
        found = load_json(path.read_bytes(), str(path)) if path.is_file() else {}
        seed = found.get(SEED) if isinstance(found, dict) else None
        return seed if type(seed) is int else None

    def _read_fields(
        self, table: Any, episodes: list[EpisodeRecord], metadata: Mapping[str, Any]
    ) -> None:
        spaces = {
            kind: _minari_metadata.leaves(metadata.get(f"{kind[:-1]}_space"), f"{kind[:-1]}_space")
            for kind in ("observations", "actions")
        }
        fields: dict[str, Field] = {}
        parts: dict[str, dict[str, Parts]] = {"observations": {}, "actions": {}}
        self._places = {}
        own = {"observations", "actions", INFOS, *COLUMNS}
        for column in sorted(table.column_names, key=lambda name: name not in own):
            if column == "episode_id":
                continue
            whole = _whole(table, column)
            role = {"observations": "obs", "actions": "act", INFOS: "info", **COLUMNS}.get(column)
            for path in _arrow.parts(whole.type):
                name = ".".join((role or column, *path))
                if is_taken(name, fields, parts["observations"]):
                    self.left_out.append(f"{'/'.join((column, *path))} (another is {name!r})")
                    continue
                leaf = spaces.get(column, {}).get(path)
                found = _arrow.part(whole, path, column)
                field = self._field(found, name, leaf, _shape(whole.type, path))
                if field is None:
                    self.left_out.append(f"{'/'.join((column, *path))} ({found.type})")
                    continue
                fields[name] = field
                self._places[name] = column, path
                self._offsets[name] = int(column == INFOS)
                if column in parts:
                    parts[column][name] = path
        infos = [name for name in self._places if self._offsets[name]]
        tell_of_resets(infos, episodes, self.left_out)
        add_seeds(fields, parts["observations"], episodes, self.left_out)
        self.header = foreign_header(fields, parts["observations"], parts["actions"])

    def _field(
        self, found: Any, name: str, leaf: Leaf | None, shape: tuple[int, ...] | None
    ) -> Field | None:
        pa = need("pyarrow", NAME)
        if leaf is not None and leaf.is_image and pa.types.is_binary(found.type):
            self._jpeg[name] = leaf
            return Field(name, np.dtype(np.uint8), leaf.shape)
        field = _arrow.field_of(found, name)
        if field is None:
            return None
        if leaf is not None and leaf.kind != "Discrete":
            shape = leaf.shape
        if shape is not None and int(np.prod(shape)) == int(np.prod(field.shape)):
            field = replace(field, shape=shape)
        return field

    # ------------------------------------------------------------------ rows

    def _table(self, number: int) -> Any:
        """The steps of an episode, in memory that belongs to the file."""
        pa = need("pyarrow", NAME)
        folder = self._folder / str(number)
        paths = sorted(folder.glob(f"*.{self._storage}"))
        if len(paths) != 1:
            raise ValueError(f"{folder}: expected one file of {self._storage}, got {len(paths)}")
        with _arrow.reading(paths[0]):
            if self._storage == "parquet":
                table = need("pyarrow.parquet", NAME).ParquetFile(paths[0]).read()
            else:
                table = pa.ipc.open_file(pa.memory_map(str(paths[0]))).read_all()
            table.validate(full=True)
        return table

    def rows(self, number: int, most: int) -> Iterator[Rows]:
        """The rows of an episode."""
        header, n = self.header, self.header.episodes[number].length
        table = self._table(self._ids[number])
        folder = self._folder / str(self._ids[number])
        if table.num_rows != n + 1:
            raise ValueError(f"{folder}: expected {n + 1} rows, got {table.num_rows}")
        for start in range(0, n, most):
            count = min(most, n - start)
            piece = table.slice(start, count + 1)
            rows = {}
            if SEED in header.names and SEED not in self._places:
                rows[SEED] = seeds_of(header.episodes[number], count)
            with _arrow.reading(folder):
                for name, (column, path) in self._places.items():
                    values = self._values(piece, name, column, path)
                    if column == "observations":
                        rows[name] = values[:-1]
                        if name in header.chained:
                            rows[header.chained[name]] = values[1:]
                    else:
                        by = self._offsets.get(name, 0)
                        values = values[by : by + count]
                        rows[name] = values.reshape(count, *header[name].shape)
            yield rows

    def _values(self, table: Any, name: str, column: str, path: Parts) -> Array:
        if column not in table.column_names:
            raise ValueError(f"{column}: expected a column of this name, got none")
        found = _arrow.part(_whole(table, column), path, column)
        if name not in self._jpeg:
            field = self.header.stored(name)
            return _arrow.values_of(found, column, field, is_flat=True)
        shape = self._jpeg[name].shape
        return np.stack([decoded(value.as_py() or b"", shape, name) for value in found])


def _leaves(table: Any) -> Iterator[Place]:
    """Where there are values in a table."""
    for column in table.schema:
        if column.name != "episode_id":
            yield from ((column.name, path) for path in _arrow.parts(column.type))


def _whole(table: Any, column: str) -> Any:
    """A column as one array."""
    pyarrow, found = need("pyarrow", NAME), table.column(column)
    return pyarrow.concat_arrays(found.chunks or [pyarrow.array([], found.type)])


def _shape(kind: Any, path: Parts) -> tuple[int, ...] | None:
    """The shape of each value, where Minari says it of a field of infos."""
    for key in path[:-1]:
        kind = kind.field(key).type
    if not path:
        return None
    said = (kind.field(path[-1]).metadata or {}).get(b"shape")
    if said is None:
        return None
    lengths = [text for text in said.decode(errors="replace").split(",") if text]
    return tuple(int(text) for text in lengths) if all(map(str.isdigit, lengths)) else None


class MinariArrow(Format):
    """See ``Format``."""

    name = NAME

    def told_by(self, path: Path) -> bool:
        """Whether a path is one of this format."""
        return path.is_dir() and _minari_metadata.storage_of(path) in STORAGES

    def check(self, header: Header) -> None:
        """Observations with final ones, actions and rewards are needed."""
        check_steps(header, NAME)

    def find(self, name: str) -> Path | None:
        """Where Minari keeps a local data set of this name, if it does."""
        return _minari_metadata.find(name)

    def metadata(self, path: Path, header: Header, about: Mapping[str, Any]) -> dict[str, Any]:
        """The entries of ``metadata.json``."""
        return _minari_metadata.of_new(path, header, about)

    def open_writer(
        self, path: Path, header: Header, about: Mapping[str, Any]
    ) -> MinariArrowWriter:
        """A writer of this format."""
        return MinariArrowWriter(path, header, about)

    def open_reader(self, path: Path) -> MinariArrowReader:
        """A reader of this format."""
        return MinariArrowReader(path)


FORMAT = MinariArrow()
