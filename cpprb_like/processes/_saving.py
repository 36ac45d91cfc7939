"""Saving of a shared replay while processes add to it, and loading one.

Each shard is copied at a moment of its own: the rows that were published then. Nobody waits for
that. The copies are saved as buffers are, by the room ``checkpoint``. Not here: the methods that
users call (``_replay``).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpprb_like._core import WORD_EDITS
from cpprb_like._store.arenas import Arena
from cpprb_like._store.schema import Layout
from cpprb_like.buffers._replay import ReplayBuffer
from cpprb_like.checkpoint import Checkpointed
from cpprb_like.checkpoint._compared import ComparedSaves
from cpprb_like.checkpoint._disk import Disk
from cpprb_like.checkpoint._load import Options, State, Target, decoded
from cpprb_like.checkpoint._progress import Progress
from cpprb_like.processes._folder import IDENTITY, FileLock, is_locked
from cpprb_like.processes._shards import ROWS, Actor, FollowedFiles, ShardFiles
from cpprb_like.samplers._uniform import Uniform

__all__ = ["Saved", "SavedReplay", "save"]

TRIES = 20  # to copy a shard


class CopiedFiles(ShardFiles):
    """A copy of the files of a shard, whatever its writer does meanwhile."""

    def _read(self) -> Arena:
        with self.path.open("r+b") as file:
            self._check(file)
            self._added = self._map_time()
            self._live = FollowedFiles(self.layout, self.path.with_suffix(""), "r+")
            return self._copy(file)

    def _make_undo(self) -> Any:
        return None

    def _edits_in_place(self, state: NDArray[np.int64]) -> int:  # noqa: ARG002
        """Ends of episodes are not told: they change a byte, which is there or not."""
        in_place, hidden = int(self._added[1]), int(self._live.changes[0])
        return (in_place + hidden) * 2 + (in_place | hidden) % 2


class SavedShard(ReplayBuffer):
    """The rows of a shard at a moment; or, of a checkpoint, the shard that gets them."""

    @staticmethod
    def _files_of(layout: Layout, prefix: str | Path, mode: Any) -> ShardFiles:
        return (
            CopiedFiles(layout, prefix, mode) if mode == "r" else ShardFiles(layout, prefix, mode)
        )


class SavedReplay(Checkpointed):
    """What a checkpoint of a shared replay holds.

    Attributes
    ----------
    identity : str
        Of the replay that was saved.
    description : dict
        What it was made with.
    shards : list of SavedShard
    """

    def __init__(
        self, identity: str, description: dict[str, Any], shards: list[SavedShard | None]
    ) -> None:
        self.identity = identity
        self.description = description
        self.shards = shards


def save(
    description: dict[str, Any],
    shards: list[Path],
    locks: list[Path],
    options: Mapping[str, Any],
    folder: str | Path,
    **how: Any,
) -> None:
    """Save the shards of a replay as they are now; ``how`` goes to ``Checkpointed.save``."""
    identity = description[IDENTITY]
    copies: list[SavedShard | None] = []
    for number, (shard, lock) in enumerate(zip(shards, locks, strict=True)):
        copy = None
        if (shard / f"{ROWS}.dat").exists():
            _mend(shard, number, lock, options)
            copy = _copied(shard, options)
            copy._saves = ComparedSaves(identity)
        copies.append(copy)
    SavedReplay(identity, description, copies).save(folder, **how)


def _copied(shard: Path, options: Mapping[str, Any]) -> SavedShard:
    """A copy of a shard, made anew if an episode was ended between its header and its rows."""
    for _ in range(TRIES):
        try:
            return SavedShard(
                **options, sampler=Uniform(), seed=0, mmap_prefix=shard / ROWS, mmap_mode="r"
            )
        except ValueError as error:  # noqa: PERF203 (it contradicts itself)
            problem = error
    raise problem


def _mend(shard: Path, number: int, lock: Path, options: Mapping[str, Any]) -> None:
    """Set right what a process that was killed left half-done in a shard, if it did."""
    layout, _ = ReplayBuffer._lay_out(sampler=Uniform(), **options)
    files = FollowedFiles(layout, shard / ROWS, "r+")
    edits = int(layout.state(files.arena)[WORD_EDITS]) | int(files.changes[0])
    taken = FileLock(lock)
    if edits % 2 and not is_locked(lock) and taken.take():
        Actor(shard, number, taken, options).close()


class Saved:
    """A shared replay in a checkpoint.

    Raises ``FileNotFoundError`` if there is none, ``TypeError`` if something else was saved.
    """

    def __init__(self, folder: str | Path, state: int | None) -> None:
        self._disk = Disk(folder)
        self._options = Options((), {}, None, False, state, Progress())
        found = State(self._disk, self._options)
        root = found.manifest["root"]
        if root.get("class") != "processes.SavedReplay":
            raise TypeError(
                f"{folder} has a {root.get('class')}, no SharedReplay: its own load() gives it"
            )
        self.description: dict[str, Any] = found.part(root["state"]["description"], {})

    def fill(self, shards: list[Path], size: int) -> None:
        """Make the shards of a new replay, which keep so many rows each."""
        targets = {
            f"shards.{number}": Target(size=size, mmap_prefix=shard / ROWS, mmap_mode="x")
            for number, shard in enumerate(shards)
        }
        decoded(self._disk, self._options, targets, {})
