"""Minari with HDF5: one file with a group for each episode.

Written as Minari 0.5 does, never as JPEG, which would change images. Numbered parts of a nest are
``_index_0``. Observations and infos have one row more than there are steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from cpprb_like.datasets import _hdf5, _minari_metadata
from cpprb_like.datasets._minari_metadata import Leaf, is_tuple
from cpprb_like.datasets._minari_storage import (
    ENDS,
    INFOS,
    SEED,
    MinariWriter,
    Storage,
    StoredEpisode,
    info_of_reset,
)
from cpprb_like.datasets._model import Array, EpisodeRecord, Field, Header, Rows, nest
from cpprb_like.datasets._model import Path as Parts

__all__ = ["Hdf5Storage", "Hdf5Writer"]

NAME = "minari"
FILE = "main_data.hdf5"
NUMBERED = "_index_"
FLAG = np.dtype(np.bool_)
EXTRA = {"observations": (1,), INFOS: (0, 1)}  # rows beyond those of steps


def _numbered(places: Mapping[str, Parts]) -> dict[str, str]:
    """The names of data sets, in which the parts of a tuple are ``_index_0`` and so on."""

    def walk(node: Any, path: Parts) -> Iterator[tuple[str, Parts]]:
        if isinstance(node, str):
            yield node, path
            return
        mark = NUMBERED if path and path[0] != INFOS and is_tuple(node) else ""
        for key, part in node.items():
            yield from walk(part, (*path, mark + key))

    found = walk(nest((path, name) for name, path in places.items()), ())
    return {name: "/".join(path) for name, path in found}


class Hdf5Writer(MinariWriter):
    """Writes the file."""

    def __init__(self, path: Path, header: Header, about: Mapping[str, Any]) -> None:
        super().__init__(path, header, about)
        self._names = _numbered(self._places)
        self._file = _hdf5.opened(self._folder / FILE, NAME, "x")

    def episode(self, number: int, record: EpisodeRecord, chunks: Iterator[Rows]) -> None:
        """Write the group of an episode."""
        header, n = self._header, record.length
        group = self._file.create_group(f"episode_{number}")
        group.attrs["id"] = number
        group.attrs["total_steps"] = n
        group.create_group(INFOS)
        columns, before = {}, {}
        for name, place in self._names.items():
            field, kind = header.stored(name), self._places[name][0]
            rows_stored = n + (kind in EXTRA)
            columns[name] = group.create_dataset(place, (rows_stored, *field.shape), field.dtype)
            before[name] = int(kind == INFOS)
            if kind == INFOS:
                columns[name][:1] = info_of_reset(field)
        flags = [group.create_dataset(place, (n,), FLAG) for place in ENDS]
        at, seed = 0, None
        for rows in chunks:
            count = len(next(iter(rows.values())))
            seed = self._seed_in(rows, seed)
            for name, column in columns.items():
                values = rows[name].reshape(count, *header.stored(name).shape)
                column[at + before[name] : at + before[name] + count] = values
            ends = header.last_flags(rows, count, record, is_last=at + count == n)
            for flag, values in zip(flags, ends, strict=True):
                flag[at : at + count] = values
            at += count
            if at == n:
                for name, following in header.chained.items():
                    columns[name][n] = rows[following][-1]
        if self._count_seed(seed):
            group.attrs[SEED] = seed

    def close(self) -> None:
        """Close the file, and write the metadata."""
        self._file.close()
        nbytes = (self._folder / FILE).stat().st_size
        _minari_metadata.write(self._folder, self._header, "hdf5", nbytes, self._about)

    def abandon(self) -> None:
        """Close the file."""
        self._file.close()


class Hdf5Storage(Storage):
    """The groups of a file."""

    def __init__(self, folder: Path, metadata: Mapping[str, Any]) -> None:
        super().__init__()
        self.place = folder / FILE
        self.has_jpeg = bool(metadata.get("jpeg_encoding", True))
        self._file = _hdf5.opened(self.place, NAME, "r")
        with _hdf5.reading(self.place):
            self.count = len(self._file)

    def episode(self, number: int) -> StoredEpisode:
        """The group of an episode."""
        with _hdf5.reading(self.place):
            group = _hdf5.member(self._file, f"episode_{number}")
            if not _hdf5.is_group(group):
                raise ValueError(f"episode_{number}: expected a group, got {group!r}")
            return _Group(self, group)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class _Group(StoredEpisode):
    """The group of an episode."""

    def __init__(self, storage: Hdf5Storage, group: Any) -> None:
        self._storage, self._group = storage, group
        rewards = _hdf5.member(group, "rewards")
        _hdf5.check_dataset(rewards, f"{group.name}/rewards")
        self.length = len(rewards)
        seed = group.attrs.get(SEED)
        is_none = isinstance(seed, (str, bytes)) and seed in ("None", b"None")
        self.seed = None if seed is None or is_none else int(seed)
        self._found = {
            tuple(key.removeprefix(NUMBERED) for key in place): data
            for place, data in _hdf5.members(group)
        }

    def paths(self) -> Iterator[Parts]:
        """The paths of all data sets."""
        yield from self._found

    def field(self, path: Parts, name: str, leaf: Leaf | None) -> Field | str:
        """The field that a data set makes, or the reason why it makes none."""
        data = self._found[path]
        is_image = leaf is not None and leaf.is_image and self._storage.has_jpeg
        if leaf is not None and is_image and data.ndim <= 2 and len(leaf.shape) + 1 != data.ndim:
            self._storage.images[path] = leaf
        if data.ndim < 1 or self.extra(path) not in EXTRA.get(path[0], (0,)):
            return f"{data.dtype} of shape {data.shape}"
        if path in self._storage.images:
            return Field(name, np.dtype(np.uint8), self._storage.images[path].shape)
        return _hdf5.field_of(data, "/".join(path), name)

    def extra(self, path: Parts) -> int:
        """Rows of a data set beyond one for each step."""
        data = self._found[path]
        return len(data) - self.length if data.ndim else -1

    def read(self, path: Parts, start: int, stop: int, field: Field) -> Array:
        """Rows of a data set."""
        data, name = self._found.get(path), f"{self._group.name}/{'/'.join(path)}"
        extra = -1 if data is None else self.extra(path)
        n = self.length + (extra if extra in EXTRA.get(path[0], (0,)) else 0)
        if path not in self._storage.images:
            _hdf5.check(data, name, n, field)
            return _hdf5.read(data, start, stop, field)
        if data is None or data.ndim not in (1, 2) or len(data) != n:
            raise ValueError(f"{name}: expected {n} images as JPEG, got {data!r}")
        images = np.empty((stop - start, *field.shape), np.uint8)
        for k, image in enumerate(data[start:stop]):
            images[k] = self._storage.decoded(np.asarray(image, np.uint8).tobytes(), path)
        return images

    def is_set(self, path: Parts) -> bool:
        """Whether the flag of the last step is set."""
        return path in self._found and bool(self._found[path][-1])
