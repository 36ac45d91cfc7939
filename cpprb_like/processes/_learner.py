"""``Learner``: batches from the shards of a shared replay, as from one buffer.

Not here: the rows of a shard (``_shards``), and who writes them (``_replay``).
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from cpprb_like._c.aligned import empty
from cpprb_like._c.drawn_ahead import States, live_state
from cpprb_like._c.generators import Seed, generator
from cpprb_like.buffers._replay import ReplayBuffer
from cpprb_like.buffers._source import Batch, ColumnSpec, Source
from cpprb_like.errors import NotEnoughDataError
from cpprb_like.processes._folder import FileLock, Folder
from cpprb_like.processes._shards import ROWS, Reader
from cpprb_like.samplers._base import Sampler
from cpprb_like.schedules import Schedule

__all__ = ["Learner"]


class Learner(Source):
    """The end of a shared replay that draws: ``SharedReplay.learner``.

    A ``Source`` of the rows of all actors: what is drawn has the distribution of one buffer that
    holds them all.
    """

    def __init__(
        self,
        folder: Folder,
        shards: list[Path],
        number: int,
        lock: FileLock,
        sampler: Sampler,
        seed: Seed,
        options: Mapping[str, Any],
    ) -> None:
        self._folder = folder
        self._lock = lock
        self.number = number
        self.rng = generator(seed)
        self._model = ReplayBuffer(
            **dict(options, size=options["n_envs"]), sampler=copy.copy(sampler)
        )
        self._shards = shards
        self._options = options
        self._sampler = sampler
        self._readers: list[Reader | None] = [None] * len(shards)

    def _follow(self) -> list[Reader]:
        """The shards that there are, with their newest rows."""
        found = []
        for number, shard in enumerate(self._shards):
            reader = self._readers[number]
            if reader is None and (shard / f"{ROWS}.dat").exists():
                sampler = copy.deepcopy(self._sampler)
                reader = Reader(shard, sampler, self.rng, self._options)
                self._readers[number] = reader
            if reader is not None and reader.follow():
                found.append(reader)
        return found

    def sample(
        self,
        batch_size: int,
        beta: float | Schedule | None = None,  # noqa: ARG002
        *,
        replace: bool = True,
        out: dict[str, Any] | None = None,  # noqa: ARG002
        indexes: bool = False,  # noqa: ARG002
        fields: str | Iterable[str] | None = None,
    ) -> Batch:
        """Draw rows of all shards: see ``ReplayBuffer.sample``."""
        n, _ = self._read_batch_size(batch_size, fields)
        readers = self._follow()
        sizes = np.array([len(reader) for reader in readers], np.int64)
        total = int(sizes.sum())
        if total == 0:
            raise NotEnoughDataError("cannot sample: no actor has added a row that can be drawn")
        if replace:
            rows = self.rng.integers(0, total, n)
        elif n > total:
            raise NotEnoughDataError(f"cannot sample {n} distinct rows: there are {total}")
        else:
            rows = self.rng.choice(total, n, replace=False)
        shard = np.searchsorted(np.cumsum(sizes), rows, side="right")
        batch: Batch = {}
        for number, reader in enumerate(readers):
            places = np.flatnonzero(shard == number)
            if len(places) == 0:
                continue
            part = reader.sample(len(places), replace=replace, fields=fields)
            for name, values in part.items():
                if name not in batch:
                    batch[name] = empty((n, *values.shape[1:]), values.dtype)
                batch[name][places] = values
        return batch

    def _read_batch_size(
        self, batch_size: int, fields: str | Iterable[str] | None = None
    ) -> tuple[int, tuple[str, ...] | None]:
        return self._model._read_batch_size(batch_size, fields)

    def _draw_states(self) -> States:
        yield self.rng, live_state(self.rng)

    @property
    def fields(self) -> tuple[str, ...]:
        """The names of the fields."""
        return self._model.fields

    @property
    def has_priorities(self) -> bool:
        """Whether rows are drawn by priority."""
        return False

    @property
    def columns(self) -> Mapping[str, ColumnSpec]:
        """The columns of a batch: see ``Source.columns``."""
        return self._model.columns

    def __len__(self) -> int:
        return sum(len(reader) for reader in self._follow())

    def __bool__(self) -> bool:
        """A learner is a thing and not its rows: always true."""
        return True

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError("a learner belongs to its process; hand on the SharedReplay instead")
