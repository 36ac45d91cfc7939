"""Saving of a shared replay while processes add rows, and loading.

The copy of a shard has the rows that were published at one moment, another one for each shard. No
process waits for a copy. Wide fields of a large shard are not copied: they are read from the shard
while it is saved, and rows that were overwritten meanwhile are left out. The room ``checkpoint``
saves the copies as buffers. Not here: the methods that users call (``_replay``).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import numpy as np
from numpy.typing import NDArray

from cpprb_like._arguments.arrays import Bytes
from cpprb_like._core import WORD_CLEARS, WORD_EDITS, WORD_RESERVED, WORD_WRITTEN
from cpprb_like._fields.checked_options import CheckedOptions
from cpprb_like._fields.layout import Layout
from cpprb_like._files import file_maps, json_codec
from cpprb_like._machine.opening import open_regular
from cpprb_like._machine.waiting import wait_until
from cpprb_like.buffers import ReplayBuffer
from cpprb_like.checkpoint import (
    SHARED,
    Checkpointed,
    OpenState,
    SaveOptions,
    Target,
    begun,
    read_folder,
    reading,
)
from cpprb_like.errors import DamagedError
from cpprb_like.processes._folder import IDENTITY, unless_gone
from cpprb_like.processes._followers import read_header
from cpprb_like.processes._limits import limiter_from_json
from cpprb_like.processes._shards import (
    ROWS,
    FollowedFiles,
    ShardFiles,
    is_being_edited,
    mend,
)
from cpprb_like.samplers import Sampler, Uniform

Found = TypeVar("Found")

HEADER_SECONDS = 0.1  # time-out for a header that its writer changes all the time
WHOLE_NBYTES = 1 << 24  # wide fields and items of a shard up to this size are copied


class Changed(Exception):  # noqa: N818 (the save is repeated)
    """Rows of a shard that are not copied were edited, or all of them were overwritten."""


class CopiedFiles(ShardFiles):
    """A copy of the files of a shard, made while its actor may write.

    If it is not ``whole``, wide fields, frames and items are not copied. Their memory is that of
    the shard, so the actor overwrites the oldest rows: see ``oldest_intact``.
    """

    def __init__(
        self, layout: Layout, prefix: str | Path, mode: file_maps.FileMode, whole: bool
    ) -> None:
        many = layout.nbytes  # at least as many as there are slots
        all_nbytes, narrow_nbytes = (
            sum(nbytes for _, nbytes in layout.spans(many, wide=wide)) for wide in (True, False)
        )
        wide_nbytes = all_nbytes - narrow_nbytes + layout.items_nbytes
        self._is_whole = self._copies_items = whole or wide_nbytes <= WHOLE_NBYTES
        super().__init__(layout, prefix, mode)
        self._of_copy = self._wide

    def _memory_of_copy(self, file: BinaryIO) -> Bytes:
        if self._is_whole:
            return super()._memory_of_copy(file)
        return self._map_privately(file)  # a page becomes private when it is written to

    def _use_of_copy(self, memory: Bytes, start: int, stop: int) -> None:
        if self._is_whole:
            super()._use_of_copy(memory, start, stop)

    def _spans_to_copy(self, written: int) -> list[tuple[int, int]]:
        return self.layout.spans(written, wide=self._is_whole)

    def oldest_intact(self) -> int:
        """Id of the oldest row that the actor has not begun to overwrite since the copy.

        Raises ``Changed`` if wide fields were edited, rows were removed or another actor took the
        shard, or if no row is left.
        """
        if self._is_whole:
            return max(self._oldest, int(self.gone[0]))  # rows that left are not written as absent
        state, now = self.layout.state(self.arena), self.layout.state(self._live.arena)
        oldest = max(int(now[WORD_RESERVED]) - self.layout.capacity, int(self._live.gone[0]))
        is_same = now[WORD_CLEARS] == state[WORD_CLEARS]
        if (
            not is_same
            or self._wide_changes() != self._of_copy
            or 0 < state[WORD_WRITTEN] <= oldest
        ):
            raise Changed
        return oldest

    def _read(self) -> Bytes:
        with open_regular(self.path, os.O_RDWR) as file:
            self._check(file)
            self._added = self._map_time()
            self._live = FollowedFiles(self.layout, self.path.with_suffix(""), "r+")
            memory = self._copy(file)
        state = self.layout.state(memory[: self.layout.nbytes])
        self._oldest = int(state[WORD_RESERVED]) - self.layout.capacity  # the copy lacks older rows
        # An episode may have ended after the header was read: ``recover`` counts again.
        state[WORD_EDITS] = self._counted | 1
        return memory

    def _header(self, live: Bytes) -> NDArray[np.int64]:
        """See ``Files._header``: a consistent copy."""
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

    def _edits_in_place(self, live: Bytes) -> int:  # noqa: ARG002
        """Counter of edits without ends of episodes, each of which changes one byte."""
        in_place, hidden = int(self._added[1]), int(self._live.changes[0])
        is_in_progress = (in_place | hidden) % 2 or self._added[2] != self._added[3]
        self._counted = (in_place + hidden) * 2 + bool(is_in_progress)
        self._wide = self._wide_changes()
        return self._counted

    def _wide_changes(self) -> tuple[int, int]:
        """Two counters: edits of fields outside of the records; removals of rows and new actors."""
        return int(self._added[2]), int(self._live.changes[0])


class SavedShard(ReplayBuffer):
    """The copy of a shard for a save, or the new shard of a load."""

    @staticmethod
    def _files_of(layout: Layout, prefix: str | Path, mode: Any) -> ShardFiles:
        if mode == "r":
            return CopiedFiles(layout, prefix, mode, whole=False)
        return ShardFiles(layout, prefix, mode)

    def _oldest_intact(self) -> int:
        assert isinstance(self._files, CopiedFiles)
        return self._files.oldest_intact()


class WholeShard(SavedShard):
    """The copy of all rows of a shard."""

    @staticmethod
    def _files_of(layout: Layout, prefix: str | Path, mode: Any) -> ShardFiles:
        return CopiedFiles(layout, prefix, mode, whole=True)


@dataclass(eq=False)
class SavedLearner:
    """The state of a learner in a checkpoint. Names of attributes are part of the file format."""

    rng: np.random.Generator
    sampler: Sampler  # without state of rows
    rows: dict[int, Any]  # priorities of the rows of each shard: see ``FollowedShards.save``
    heard: list[int]  # number of first priorities of each shard that are in ``rows``


@dataclass(eq=False)
class SavedReplay(Checkpointed):
    """The root object of a checkpoint of a shared replay."""

    identity: str  # identity of the replay that was saved
    description: dict[str, Any]  # description in the folder of this replay
    shards: list[SavedShard | None]
    learners: dict[str, SavedLearner]  # by names of the caller


def save(
    description: dict[str, Any],
    shards: list[Path],
    options: CheckedOptions,
    learners: Mapping[str, Callable[[], SavedLearner]],
    folder: str | Path,
    how: SaveOptions,
) -> None:
    """Save the shards of a replay, after the files of the caller.

    ``learners`` are copied before the shards, so each of their rows is in the shards.
    """
    with begun(folder, how) as save_object:
        copied = {name: copy() for name, copy in learners.items()}
        for cls in (SavedShard, WholeShard):
            copies = [copy_of(shard, number, options, cls) for number, shard in enumerate(shards)]
            for copy in copies:
                if copy is not None:
                    copy._saves.identity = description[IDENTITY]
            with contextlib.suppress(Changed):
                save_object(SavedReplay(description[IDENTITY], description, copies, copied))
                return


def copy_of(
    shard: Path, number: int, options: CheckedOptions, cls: type[SavedShard] = WholeShard
) -> SavedShard | None:
    """A copy of the rows of a shard at one moment; None if nothing was added to the shard.

    Raises ``RuntimeError`` if the replay was closed meanwhile.
    """
    if not (shard / f"{ROWS}.dat").exists():
        with unless_gone(shard.parent):
            shard.stat()  # the folder of a closed replay has no shards
        return None
    if is_being_edited(shard, options):
        mend(shard, number, options)
    copy = cls._of(options, Uniform(), np.random.default_rng(0), shard / ROWS, "r")
    copy.__class__ = SavedShard  # its name in files
    return copy


class Saved:
    """A shared replay in an open state of a checkpoint: see ``read_saved``."""

    def __init__(self, opened: OpenState) -> None:
        self._folder = opened.disk.folder
        self._opened = opened
        self._root = opened.root
        with reading(self._folder):
            kind = self._root.cls
        if kind != SHARED:
            raise TypeError(
                f"{self._folder} has a {kind}, no SharedReplay: its own load() gives it"
            )
        self.origin = opened.state.id
        with reading(self._folder):
            self.identity = str(self._root.attribute("identity"))
            description = opened.part(self._root.attribute("description"), {})
            self.writers = json_codec.number("writers", description["writers"], 1)
            self.options: CheckedOptions = json_codec.from_json(
                CheckedOptions, description["options"], "options"
            )
            self.options.check()
            self.limiter = limiter_from_json(description["limiter"])
            if len(self._root.attribute("shards")) != self.writers:
                raise DamagedError(f"expected a shard for each of {self.writers} writers")

    def fill(self, shards: list[Path], options: CheckedOptions) -> None:
        """Create the shards of a new replay, with the size and the rooms of these options."""
        how: dict[str, Any] = {"size": options.size, "room": options.schema.rooms or None}
        targets = {
            f"shards.{number}": Target(**how, mmap_prefix=shard / ROWS, mmap_mode="x")
            for number, shard in enumerate(shards)
        }
        with reading(self._folder):
            self._opened.decode({}, targets, without="learners")

    def learner(self, name: str) -> SavedLearner:
        """The saved learner with this name; ``ValueError`` for an unknown name."""
        with reading(self._folder):
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


def read_saved(
    folder: str | Path,
    state: int | None,
    use: Callable[[Saved], Found],
    classes: Iterable[type] = (),
    replace: Mapping[str, Any] | None = None,
) -> Found:
    """``use(saved)`` of a shared replay in a checkpoint: all that it reads is of one state.

    Raises ``FileNotFoundError`` without a checkpoint, ``TypeError`` for another saved object.
    """
    return read_folder(
        folder,
        lambda opened: use(Saved(opened)),
        classes=tuple(classes),
        replaced=dict(replace or {}),
        state=state,
    )
