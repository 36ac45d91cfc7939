"""What Minari's storages share: where fields are in an episode, seeds, and infos of resets.

A column of an episode has a path, such as ``("observations", "image")``. Not here: the files
(``_minari_hdf5``, ``_minari_arrow``), and the data set as a whole (``_minari``).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from cpprb_like.datasets._format import Writer
from cpprb_like.datasets._images import decoded
from cpprb_like.datasets._minari_metadata import Leaf
from cpprb_like.datasets._model import Array, Field, Header, Rows, key_of, nest
from cpprb_like.datasets._model import Path as Parts

__all__ = [
    "ENDS",
    "INFOS",
    "ROLES",
    "SEED",
    "MinariWriter",
    "Storage",
    "StoredEpisode",
    "has_seeds",
    "info_of_reset",
    "places_of",
]

INFOS, INFO = "infos", "info."
SEED = "seed"  # of a reset, in each row of its episode; -1 where there is none
ENDS = ("terminations", "truncations")
ROLES = {
    "observations": "obs",
    "actions": "act",
    INFOS: "info",
    "rewards": "rew",
    "terminations": "terminated",
    "truncations": "truncated",
}


class StoredEpisode:
    """The columns of one episode.

    Attributes
    ----------
    length : int
        Steps.
    seed : int or None
    """

    length: int
    seed: int | None

    def paths(self) -> Iterator[Parts]:
        """The paths of all columns."""
        raise NotImplementedError

    def field(self, path: Parts, name: str, leaf: Leaf | None) -> Field | str:
        """The field that a column makes, or the reason why it makes none."""
        raise NotImplementedError

    def extra(self, path: Parts) -> int:
        """Rows of a column beyond one for each step."""
        raise NotImplementedError

    def read(self, path: Parts, start: int, stop: int, field: Field) -> Array:
        """Rows of a column, as they are stored."""
        raise NotImplementedError

    def is_set(self, path: Parts) -> bool:
        """Whether the flag of the last step is set; it is not where there is no such column."""
        raise NotImplementedError

    def reset_infos(self) -> Iterator[Parts]:
        """Paths of infos whose value at the reset is not what stands for none."""
        for path in self.paths():
            if path[0] == INFOS and self.extra(path) == 1:
                field = self.field(path, "", None)
                if isinstance(field, Field):
                    value = self.read(path, 0, 1, field)
                    if not np.array_equal(value, info_of_reset(field), equal_nan=True):
                        yield path


class Storage:
    """The episodes of a data set.

    Attributes
    ----------
    place : Path
        What messages name.
    count : int
        Episodes that there can be at most.
    images : dict of tuple of str to Leaf
        Columns of JPEG images, which ``StoredEpisode.field`` finds.
    """

    place: Path
    count: int

    def __init__(self) -> None:
        self.images: dict[Parts, Leaf] = {}

    def episode(self, number: int) -> StoredEpisode:
        """An episode; ``ValueError`` if it is damaged."""
        raise NotImplementedError

    def close(self) -> None:
        """Close the files. By default none is open."""

    def decoded(self, data: bytes, path: Parts) -> Array:
        """An image, which JPEG changed when Minari wrote it."""
        return decoded(data, self.images[path].shape, "/".join(path), "minari", ("JPEG",))


class MinariWriter(Writer):
    """Writes the episodes of a data set of Minari's."""

    def __init__(self, path: Path, header: Header, about: Mapping[str, Any]) -> None:
        self._folder, self._header, self._about = path / "data", header, about
        self._places = places_of(header)
        self._uneven = 0
        self._folder.mkdir()

    def _seed_in(self, rows: Rows, known: int | None = None) -> int | None:
        """The seed of an episode, of which these rows are a part and ``known`` is that before.

        Returns -1 for none, and -2 if it differs from step to step.
        """
        if not has_seeds(self._header):
            return -1
        seeds = {int(seed) for seed in rows[SEED]} | ({known} if known is not None else set())
        seed = seeds.pop()
        return -2 if seeds or seed < -1 else seed

    def _count_seed(self, seed: int | None) -> bool:
        """Count an episode without one seed; whether there is one."""
        self._uneven += seed == -2
        if self._uneven:
            self.lost = [f"the seeds of {self._uneven} episodes, which are no number from 0 on"]
        return seed is not None and seed >= 0


def has_seeds(header: Header) -> bool:
    """Whether there is a field of seeds."""
    if SEED not in header.names or SEED in (*header.observations, *header.actions, header.reward):
        return False
    return header[SEED].dtype.kind in "iu" and header[SEED].shape == ()


def places_of(header: Header) -> dict[str, Parts]:
    """The path of each field; next observations, flags of ends and seeds have none."""
    places: dict[str, Parts] = {}
    for group, found in (("observations", header.observations), ("actions", header.actions)):
        places |= {name: (group, *map(key_of, path)) for name, path in found.items()}
    if header.reward is not None:
        places[header.reward] = ("rewards",)
    keys = header.extra_keys({*places, *header.chained.values()})
    if has_seeds(header):
        del keys[SEED]
    infos: dict[str, Parts] = {}
    for name, key in keys.items():
        parts = tuple(map(key_of, name.removeprefix(INFO).split(".")))
        infos[name] = parts if all(parts) else (key,)
    try:
        nest((path, name) for name, path in infos.items())
    except ValueError:  # one is a part of another
        infos = {name: (key,) for name, key in keys.items()}
    return places | {name: (INFOS, *path) for name, path in infos.items()}


def info_of_reset(field: Field) -> Array:
    """What stands for the info of a reset, which no buffer has: NaN, or 0 where there is none."""
    value = math.nan if field.dtype.kind == "f" else 0
    return np.full((1, *field.shape), value, field.dtype)
