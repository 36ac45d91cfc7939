"""Saving of a shared replay while processes add to it, and loading one.

Each shard is copied at a moment of its own: the rows that were published then. No process waits for
that. The copies are saved as buffers are, by the room ``checkpoint``. Not here: the methods that
users call (``_replay``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpprb_like._arguments.arrays import Bytes
from cpprb_like._core import WORD_EDITS, WORD_RESERVED, WORD_WRITTEN
from cpprb_like._fields import json_codec
from cpprb_like._fields.row_options import RowOptions
from cpprb_like._fields.schema import Layout
from cpprb_like._machine.waiting import wait_until
from cpprb_like.buffers._replay import ReplayBuffer
from cpprb_like.checkpoint import Checkpointed
from cpprb_like.checkpoint._describe import reading
from cpprb_like.checkpoint._disk import Disk
from cpprb_like.checkpoint._open_state import OpenState, decoded
from cpprb_like.checkpoint._options import LoadOptions, Target
from cpprb_like.checkpoint._savable import EditsSinceSave
from cpprb_like.errors import DamagedError
from cpprb_like.processes._folder import IDENTITY
from cpprb_like.processes._followers import read_header
from cpprb_like.processes._limits import limiter_from_json
from cpprb_like.processes._shards import (
    ROWS,
    FollowedFiles,
    ShardFiles,
    is_being_edited,
    mend,
)
from cpprb_like.samplers._base import Sampler
from cpprb_like.samplers._uniform import Uniform

__all__ = ["Saved", "SavedLearner", "SavedReplay", "save"]

HEADER_SECONDS = 0.1  # in which a header can be read that its writer changes all the time


class CopiedFiles(ShardFiles):
    """A copy of the files of a shard, beside its writer."""

    def _read(self) -> Bytes:
        with self.path.open("r+b") as file:
            self._check(file)
            self._added = self._map_time()
            self._live = FollowedFiles(self.layout, self.path.with_suffix(""), "r+")
            memory = self._copy(file)
        # An episode may have ended after the header was read: ``recover`` counts again.
        self.layout.state(memory[: self.layout.nbytes])[WORD_EDITS] = self._counted | 1
        return memory

    def _header(self, live: Bytes) -> NDArray[np.int64]:
        """See ``Files._header``: all words as they were at one time."""
        state = self.layout.state(live[: self.layout.nbytes])

        def look() -> list[NDArray[np.int64]]:
            return [header for header in [read_header(state)] if header is not None]

        (header,) = wait_until(
            look,
            HEADER_SECONDS,
            lambda: BlockingIOError(f"{self.path}: its header changes all the time"),
        )
        if header[WORD_RESERVED] != header[WORD_WRITTEN]:
            header[-self.layout.n_envs :] = self._part_of(live, self._places.lens).view(np.int64)
        return header

    def _make_undo(self) -> Any:
        return None

    def _edits_in_place(self, state: NDArray[np.int64]) -> int:  # noqa: ARG002
        """Counter of edits; ends of episodes are not counted, as each changes one byte."""
        in_place, hidden = int(self._added[1]), int(self._live.changes[0])
        self._counted = (in_place + hidden) * 2 + (in_place | hidden) % 2
        return self._counted


class SavedShard(ReplayBuffer):
    """Copy of a shard for a save; when a checkpoint is loaded, the shard that gets the rows."""

    @staticmethod
    def _files_of(layout: Layout, prefix: str | Path, mode: Any) -> ShardFiles:
        return (
            CopiedFiles(layout, prefix, mode) if mode == "r" else ShardFiles(layout, prefix, mode)
        )


@dataclass(eq=False)
class SavedLearner:
    """What a learner has of its own, in a checkpoint."""

    rng: np.random.Generator
    sampler: Sampler  # without what it keeps for rows
    rows: dict[int, Any]  # state of the rows of each shard: see ``Draws.save``
    heard: list[int]  # of each shard, how many priorities that rows came with are in ``rows``


@dataclass(eq=False)
class SavedReplay(Checkpointed):
    """What a checkpoint of a shared replay holds."""

    identity: str  # of the replay that was saved
    description: dict[str, Any]  # of its folder
    shards: list[SavedShard | None]
    learners: dict[str, SavedLearner]  # by the names that the caller gave


def save(
    description: dict[str, Any],
    shards: list[Path],
    options: RowOptions,
    learners: Mapping[str, SavedLearner],
    folder: str | Path,
    **how: Any,
) -> None:
    """Save the shards of a replay as they are now; ``how`` goes to ``Checkpointed.save``.

    The learners were saved before, so they have no row that their shard has not.
    """
    identity = description[IDENTITY]
    copies: list[SavedShard | None] = []
    for number, shard in enumerate(shards):
        copy = None
        if (shard / f"{ROWS}.dat").exists():
            if is_being_edited(shard, options):
                mend(shard, number, options)
            rng = np.random.default_rng(0)
            copy = SavedShard._of(options, Uniform(), rng, shard / ROWS, "r")
            copy._saves = EditsSinceSave(identity)
        copies.append(copy)
    SavedReplay(identity, description, copies, dict(learners)).save(folder, **how)


class Saved:
    """A shared replay in a checkpoint.

    Raises ``FileNotFoundError`` if there is none, ``TypeError`` if something else was saved.
    """

    def __init__(
        self,
        folder: str | Path,
        state: int | None,
        classes: Iterable[type] = (),
        replace: Mapping[str, Any] | None = None,
    ) -> None:
        self._disk = Disk(folder)
        self._options = LoadOptions(tuple(classes), dict(replace or {}), state=state)
        self._opened = OpenState(self._disk, self._options)
        self._root = self._opened.root
        with reading(folder):
            kind = self._root.cls
        if kind != "processes.SavedReplay":
            raise TypeError(f"{folder} has a {kind}, no SharedReplay: its own load() gives it")
        self.origin = self._opened.state.id  # the name of the state: that of no other
        with reading(folder):
            self.identity = str(self._root.attribute("identity"))  # of the replay that was saved
            description = self._opened.part(self._root.attribute("description"), {})
            self.writers = json_codec.number("writers", description["writers"], 1)
            self.options: RowOptions = json_codec.from_json(
                RowOptions, description["options"], "options"
            )
            self.options.check()
            self.limiter = limiter_from_json(description["limiter"])
            if len(self._root.attribute("shards")) != self.writers:
                raise DamagedError(f"expected a shard for each of {self.writers} writers")

    def fill(self, shards: list[Path], size: int) -> None:
        """Make the shards of a new replay, which keep so many rows each."""
        targets = {
            f"shards.{number}": Target(size=size, mmap_prefix=shard / ROWS, mmap_mode="x")
            for number, shard in enumerate(shards)
        }
        options = LoadOptions(state=self._options.state)
        decoded(self._disk, options, targets, {}, without="learners")

    def learner(self, name: str) -> SavedLearner:
        """The learner of this name; ``ValueError`` if there is none."""
        with reading(self._disk.folder):
            found = self._root.attribute("learners") or {}
            if name not in found:
                raise ValueError(
                    f"name: expected one of the learners {sorted(found)}, got {name!r}"
                )
            learner: Any = self._opened.whole_part(found[name], f"learners.{name}")
        kinds = {"rng": np.random.Generator, "sampler": Sampler, "rows": dict}
        if not isinstance(learner, SavedLearner) or not all(
            isinstance(vars(learner).get(name), kind) for name, kind in kinds.items()
        ):
            raise DamagedError(f"learners.{name}: no learner was saved")
        return learner
