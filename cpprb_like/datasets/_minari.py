"""Minari: episodes with one observation more than steps, in HDF5, Arrow or Parquet.

Extra fields are entries of ``infos``. Not here: the storages (``_minari_hdf5``, ``_minari_arrow``),
and ``metadata.json`` (``_minari_metadata``).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from cpprb_like.datasets import _minari_metadata
from cpprb_like.datasets._files import reading
from cpprb_like.datasets._format import CUT, LISTS, Format, Reader, Steps, Writer
from cpprb_like.datasets._minari_arrow import ArrowOutput, ArrowStorage
from cpprb_like.datasets._minari_hdf5 import Hdf5Output, Hdf5Storage
from cpprb_like.datasets._minari_metadata import ENDS, INFOS, StoredEpisode
from cpprb_like.datasets._model import (
    Array,
    EpisodeRecord,
    Field,
    Header,
    HeaderBuilder,
    Place,
    Rows,
    key_of,
    nest,
)
from cpprb_like.datasets._ragged import blank

INFO = "info."
MOST_TEXTS = 1024  # rows read at a time; many texts of a damaged file may be the same bytes of it
ROLES = {
    "observations": "obs",
    "actions": "act",
    INFOS: "info",
    "rewards": "rew",
    "terminations": "terminated",
    "truncations": "truncated",
}


def _places(header: Header) -> dict[str, Place]:
    """The path of each field's column; extra fields are below ``infos``."""
    places = header.places(ROLES)
    extras = [name for name, path in places.items() if path[0] not in ROLES]
    infos: dict[str, Place] = {}
    for name in extras:
        parts = tuple(map(key_of, name.removeprefix(INFO).split(".")))
        infos[name] = parts if all(parts) else (key_of(name),)
    try:
        nest((path, name) for name, path in infos.items())
    except ValueError:  # one path is the beginning of another
        infos = {name: (key_of(name),) for name in infos}
    return places | {name: (INFOS, *path) for name, path in infos.items()}


class MinariWriter(Writer):
    """Writes a Minari data set with HDF5."""

    flags = ENDS
    output: ClassVar[type[Hdf5Output | ArrowOutput]] = Hdf5Output

    def __init__(self, path: Path, header: Header, about: Mapping[str, Any]) -> None:
        super().__init__(header, _places(header))
        self._folder, self._about = path / "data", about
        numbers = set()
        parts = header.observations, header.actions
        for key, named in zip(_minari_metadata.SPACES, parts, strict=True):
            known = _minari_metadata.leaves(about[key], key)
            is_number = {name: known[path].kind == "Discrete" for name, path in named.items()}
            numbers |= {self.places[name] for name, found in is_number.items() if found}
        self._folder.mkdir()
        self._files = self.output(self._folder, self.columns, numbers)

    def begin(self) -> None:
        self._files.begin(self.number, self.record.length)
        for place, field in self.columns.items():
            if place[0] == INFOS:  # the info of the reset, which no buffer has: NaN, 0 or no text
                value = math.nan if field.dtype.kind == "f" else 0
                numbers = np.full((1, *field.shape), value, field.dtype)
                self._files.put(place, 0, blank(field, 1) if field.is_text else numbers)

    def steps(self, at: int, steps: Steps) -> None:
        """Write rows. Infos are one row later, after the info of the reset."""
        for place, values in steps.items():
            self._files.put(place, at + (place[0] == INFOS), values)

    def end(self, final: Steps) -> None:
        for place, values in final.items():
            if place[0] == "observations":
                self._files.put(place, self.record.length, values)
        self._files.end()

    def close(self) -> None:
        nbytes = self._files.close()
        _minari_metadata.write(self._folder, self.header, self.output.kind, nbytes, self._about)

    def abandon(self) -> None:
        self._files.abandon()


class ArrowWriter(MinariWriter):
    """Writes a Minari data set with Arrow."""

    output = ArrowOutput


class MinariReader(Reader):
    """Reads a Minari data set, of any storage."""

    has_final = True

    def __init__(self, path: Path, split: str | None = None) -> None:
        super().__init__(path, split)
        found = _minari_metadata.load(path)
        if found is None:
            expected = f"{_minari_metadata.METADATA} that names one of {_minari_metadata.STORAGES}"
            raise ValueError(f"{path}: expected a folder with {expected}")
        folder, self._metadata = found
        kind = _minari_metadata.storage_of(self._metadata)
        self.about = _minari_metadata.about_of(self._metadata)
        storage: type[Hdf5Storage | ArrowStorage] = Hdf5Storage if kind == "hdf5" else ArrowStorage
        with reading(folder):
            self._storage = storage(folder, self._metadata)

    def read_fields(self) -> HeaderBuilder:
        """The fields of the first episode, and the length of each."""
        total, count = self._metadata.get("total_episodes", 0), self._storage.count
        if not isinstance(total, int) or not 0 <= total <= count:
            raise ValueError(
                f"total_episodes: expected as many as there are in the files, {count}, got "
                f"{total!r}"
            )
        self._found: list[tuple[EpisodeRecord, int]] = []
        paths, of_reset = Counter[Place](), Counter[str]()  # number of episodes with each
        reset_infos: set[Place] = set()  # infos with values in a reset
        first: StoredEpisode | None = None
        for number in range(total):
            one = self._storage.episode(number)
            if one.length > 0:
                first = first or one
                terminated, truncated = (_check_end(one, number, path) for path in ENDS)
                is_open = not (terminated or truncated)
                self._found.append((EpisodeRecord(one.length, is_open=is_open), number))
                paths.update(one.columns.keys())
                of_reset.update(one.of_reset)
                infos = (path for path in one.columns.keys() - reset_infos if path[0] == INFOS)
                reset_infos.update(
                    path
                    for path in infos
                    if one.columns[path].extra and _are_set(one, path, 0, 1).any()
                )
        builder = HeaderBuilder(ROLES, self.left_out, derives_next=True)
        if first is None:
            return builder
        self._add_fields(builder, first)
        later = {path: n for path, n in paths.items() if path not in builder.seen}
        self.left_out += [f"{'/'.join(path)} of {n} episodes" for path, n in later.items()]
        self.left_out += [
            f"{'/'.join(path)} of resets" for path in sorted(reset_infos & builder.seen)
        ]
        self.left_out += [f"{name} of {n} resets" for name, n in sorted(of_reset.items())]
        return builder

    def read_episodes(self) -> list[tuple[EpisodeRecord, int]]:
        return self._found

    def _add_fields(self, builder: HeaderBuilder, first: StoredEpisode) -> None:
        spaces = {
            f"{key.removesuffix('_space')}s": _minari_metadata.leaves(self._metadata.get(key), key)
            for key in _minari_metadata.SPACES
        }

        def field_of(path: Place, name: str) -> Field | str:
            leaf = spaces.get(path[0], {}).get(path[1:])
            field: Field | str = first.columns[path].field(name, leaf)
            return field

        builder.add(first.columns, field_of)

    def read(self, number: int, most: int, names: Collection[str]) -> Iterator[Rows]:
        header, record = self.header, self.header.episodes[number]
        places = {name: path for name, path in self.places.items() if name in names}
        if any(header[name].is_text for name in places):
            most = min(most, MOST_TEXTS)
        one = self._storage.episode(self.spans[number])
        if one.length != record.length:
            raise ValueError(f"{self._storage.place}: episode {number}: {one.length} rows")
        for start in range(0, record.length, most):
            stop = min(start + most, record.length)
            rows: Rows = {}
            for name, path in places.items():
                values = self._values(one, header[name], path, start, stop)
                rows[name] = values[: stop - start]
                if name in header.chained:
                    rows[header.chained[name]] = values[1:]
            yield rows

    def _values(
        self, one: StoredEpisode, field: Field, path: Place, start: int, stop: int
    ) -> Array:
        """Rows of a column. An observation has one row more, the next observation of the last."""
        if path not in one.columns:
            raise ValueError(f"{'/'.join(path)}: expected a column of this name, got none")
        column = one.columns[path]
        by = column.extra if path[0] == INFOS else 0
        start, stop = start + by, stop + by + (field.name in self.header.chained)
        values: Array = column.read(start, stop, field)
        return values

    def close(self) -> None:
        self._storage.close()


def _check_end(one: StoredEpisode, number: int, path: Place) -> bool:
    """Whether the last step has an end flag; ``ValueError`` if a step before it has one.

    The observation after such a step may be the first one of another episode.
    """
    ended = _are_set(one, path, 0, one.length)
    inner = np.flatnonzero(ended[:-1])
    if len(inner):
        raise ValueError(
            f"episode_{number}/{'/'.join(path)}: expected an end at its last step, "
            f"{one.length - 1}, only; got one at step {inner[0]} too. The files have several "
            "episodes as one, and lack the final observations of all but the last: split them there"
        )
    return bool(ended[-1])


def _are_set(one: StoredEpisode, path: Place, start: int, stop: int) -> Array:
    """Whether each row has a text, or a number other than 0 and NaN; false without the column."""
    column = one.columns.get(path)
    field = None if column is None else column.field("", None)
    if column is None or not isinstance(field, Field):
        return np.zeros(stop - start, np.bool_)
    values = column.read(start, stop, field).reshape(stop - start, -1)
    if field.is_text:
        values = values != ""
    found: Array = ((values != 0) & (values == values)).any(axis=1)
    return found


class Minari(Format):
    """Minari with one of its storages. See ``Format``."""

    name = "minari"
    reader = MinariReader
    writer: ClassVar[type[MinariWriter]] = MinariWriter
    lacks = (CUT, LISTS)
    library = "minari"
    storages: ClassVar[tuple[str, ...]] = ("hdf5",)

    def matches(self, path: Path) -> bool:
        found = _minari_metadata.load(path) if path.is_dir() else None
        return found is not None and _minari_metadata.storage_of(found[1]) in self.storages

    def root(self) -> Path:
        return _minari_metadata.root()

    def names(self) -> list[str]:
        files = (
            file
            for depth in range(5)
            for file in self.root().glob("*/" * depth + "data/metadata.json")
        )
        return [file.parents[1].relative_to(self.root()).as_posix() for file in files]

    def find(self, name: str) -> Path | None:
        """Path of the local data set of a name, of any storage."""
        path = self.root() / name
        return path if _minari_metadata.load(path) else None

    def download(self, library: Any, name: str) -> None:
        library.download_dataset(name)

    def metadata(self, path: Path, header: Header, about: Mapping[str, Any]) -> dict[str, Any]:
        return _minari_metadata.of_new(path, header, about)


class MinariArrow(Minari):
    """Minari with Arrow. See ``Format``."""

    name = "minari-arrow"
    writer = ArrowWriter
    storages = ("arrow", "parquet")


HDF5, ARROW = Minari(), MinariArrow()
