"""Minari: episodes with one observation more than steps, in HDF5, Arrow or Parquet.

An extra field is one of ``infos``. Not here: the storages (``_minari_hdf5``, ``_minari_arrow``),
what these share (``_minari_storage``), and ``metadata.json`` (``_minari_metadata``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from cpprb_like.datasets import _hdf5, _minari_metadata
from cpprb_like.datasets._files import reading
from cpprb_like.datasets._format import CUT, Format, Reader
from cpprb_like.datasets._header_builder import HeaderBuilder
from cpprb_like.datasets._minari_arrow import ArrowStorage, ArrowWriter
from cpprb_like.datasets._minari_hdf5 import Hdf5Storage, Hdf5Writer
from cpprb_like.datasets._minari_storage import (
    ENDS,
    INFOS,
    ROLES,
    SEED,
    Storage,
    StoredEpisode,
)
from cpprb_like.datasets._model import (
    EpisodeRecord,
    Field,
    Header,
    Rows,
    as_one_stream,
)
from cpprb_like.datasets._model import Path as Parts

__all__ = ["ARROW", "HDF5", "MinariReader"]

STORAGES: dict[str, type[Hdf5Storage | ArrowStorage]] = {
    "hdf5": Hdf5Storage,
    "arrow": ArrowStorage,
    "parquet": ArrowStorage,
}


class MinariReader(Reader):
    """Reads a data set of Minari's, whatever its storage."""

    header: Header
    has_final = True

    def __init__(self, path: Path) -> None:
        self.path = path
        folder = _minari_metadata.data_folder(path)
        kind = _minari_metadata.storage_of(path)
        if folder is None or kind is None:
            raise ValueError(f"{path}: expected a folder with {_minari_metadata.METADATA}")
        metadata = _minari_metadata.read(folder)
        self.about = _minari_metadata.about_of(metadata)
        self.left_out: list[str] = []
        self._reading = _hdf5.reading if kind == "hdf5" else reading
        self._numbers: list[int] = []
        self._places: dict[str, Parts] = {}
        self._storage: Storage = STORAGES[kind](folder, metadata)
        try:
            with self._reading(self._storage.place):
                self.header = self._read_header(metadata)
        except BaseException:
            self.close()
            raise

    def _read_header(self, metadata: Mapping[str, Any]) -> Header:
        """The fields of the first episode, and the length of each."""
        total, count = metadata.get("total_episodes", 0), self._storage.count
        if not isinstance(total, int) or not 0 <= total <= count:
            raise ValueError(
                f"total_episodes: expected as many as there are in the files, {count}, got "
                f"{total!r}"
            )
        episodes: list[EpisodeRecord] = []
        paths: Counter[Parts] = Counter()
        resets: set[Parts] = set()
        for number in range(total):
            one = self._storage.episode(number)
            if one.length > 0:
                is_open = not any(one.is_set((name,)) for name in ENDS)
                episodes.append(EpisodeRecord(one.length, is_open=is_open, seed=one.seed))
                self._numbers.append(number)
                paths.update(one.paths())
                resets |= set(one.reset_infos())
        if not episodes:
            raise ValueError("expected an episode with rows, got none")
        builder = self._read_fields(self._storage.episode(self._numbers[0]), metadata)
        known = set(builder.seen)
        infos = [name for name, path in self._places.items() if path in resets]
        if infos:
            self.left_out.append(f"{', '.join(infos)} of {len(episodes)} resets")
        self._add_seeds(builder, episodes)
        later = {path: n for path, n in paths.items() if path not in known}
        self.left_out += [f"{'/'.join(path)} of {n} episodes" for path, n in later.items()]
        return replace(builder.header(), episodes=as_one_stream(episodes, self.left_out))

    def _read_fields(self, first: StoredEpisode, metadata: Mapping[str, Any]) -> HeaderBuilder:
        spaces = {
            f"{key.removesuffix('_space')}s": _minari_metadata.leaves(metadata.get(key), key)
            for key in _minari_metadata.SPACES
        }
        builder = HeaderBuilder(ROLES, self.left_out, makes_next=True)
        builder.add(
            first.paths(),
            lambda path, name: first.field(path, name, spaces.get(path[0], {}).get(path[1:])),
        )
        self._places = builder.places
        return builder

    def _add_seeds(self, builder: HeaderBuilder, episodes: list[EpisodeRecord]) -> None:
        """Add the field of seeds, if episodes have some."""
        seeds = [episode.seed for episode in episodes if episode.seed is not None]
        if not seeds:
            return
        if SEED in builder.fields or not 0 <= min(seeds) <= max(seeds) < 1 << 63:
            self.left_out.append(f"the seeds of {len(seeds)} episodes")
        else:
            builder.fields[SEED] = Field(SEED, np.dtype(np.int64), ())

    def rows(self, number: int, most: int) -> Iterator[Rows]:
        """The rows of an episode."""
        header, record = self.header, self.header.episodes[number]
        with self._reading(self._storage.place):
            one = self._storage.episode(self._numbers[number])
        if one.length != record.length:
            raise ValueError(f"{self._storage.place}: episode {number}: {one.length} rows")
        for start in range(0, record.length, most):
            stop = min(start + most, record.length)
            rows = {}
            if SEED in header.names and SEED not in self._places:
                seed = -1 if record.seed is None else record.seed
                rows[SEED] = np.full(stop - start, seed, np.int64)
            with self._reading(self._storage.place):
                for name, path in self._places.items():
                    by = one.extra(path) if path[0] == INFOS else 0
                    after = int(name in header.chained)
                    values = one.read(path, start + by, stop + by + after, header[name])
                    rows[name] = values[: stop - start]
                    if after:
                        rows[header.chained[name]] = values[1:]
            yield rows

    def close(self) -> None:
        """Close the files."""
        self._storage.close()


class Minari(Format):
    """Minari with one of its storages. See ``Format``."""

    name = "minari"
    reader = MinariReader
    writer: ClassVar[type[Any]] = Hdf5Writer
    lacks = (CUT, "the infos of resets")
    storages: ClassVar[tuple[str, ...]] = ("hdf5",)

    def told_by(self, path: Path) -> bool:
        """Whether a path is one of this format."""
        return path.is_dir() and _minari_metadata.storage_of(path) in self.storages

    def find(self, name: str) -> Path | None:
        """Where Minari keeps a local data set of this name, if it does."""
        return _minari_metadata.find(name)

    def metadata(self, path: Path, header: Header, about: Mapping[str, Any]) -> dict[str, Any]:
        """The entries of ``metadata.json``."""
        return _minari_metadata.of_new(path, header, about)


class MinariArrow(Minari):
    """Minari with Arrow. See ``Format``."""

    name = "minari-arrow"
    storages = ("arrow", "parquet")
    writer = ArrowWriter


HDF5, ARROW = Minari(), MinariArrow()
