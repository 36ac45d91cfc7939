"""Images of crashes of the machine, at any operation of a history, with names as POSIX has them.

Each image is opened as after the crash: what the last ``flush`` promised is there, every row is
whole, and no window of rows goes over a gap.
"""

from __future__ import annotations

import copy
import errno
import random
import shutil
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from crashing_folder import CrashingFolder
from file_map_cases import Case, joined, step, twin_rows, updated
from scale import LONG

from cpprb_like import ReplayBuffer
from cpprb_like._fields.item_places import Laps, all_places_of, laps_of, living_rows
from cpprb_like._fields.layout import Items, Layout
from cpprb_like._files import dirty_chunks, file_maps
from cpprb_like._rows.gather import take
from cpprb_like._rows.row_handles import public_slots
from cpprb_like.samplers._prioritized import ByPriority

pytestmark = [
    pytest.mark.once,
    pytest.mark.skipif(sys.platform == "win32", reason="files in use have no other links"),
]

IMAGES = 5000 if LONG else 180  # of all cases together
IMAGES_PER_HISTORY = 12
OPERATIONS = 14
WHAT = [
    *["add"] * 3,
    *["flush"] * 2,
    "full",
    "update",
    "priorities",
    "end",
    "delete",
    "clear",
    "rewind",
    "reopen",
]
AROUND = 3  # rows of a window to each side

CASES = [
    Case("plain", capacity=30, updates=True, deletes=True, clears=True, wide=40),
    Case("envs", n_envs=3, capacity=30, n_step=3, wide=40),
    Case("chained", chained=True, capacity=24, clears=True, wide=4),
    Case("chained-envs", chained=True, n_envs=2, capacity=24, deletes=True, wide=4),
    Case("prioritized", prioritized=True, capacity=24, updates=True, deletes=True, wide=200),
    Case("prioritized-steps", prioritized=True, chained=True, n_step=3, capacity=24, wide=4),
    Case("ragged", room=150, capacity=24, updates=True, deletes=True, clears=True, wide=4),
    Case("ragged-steps", room=200, capacity=24, n_envs=2, n_step=3, deletes=True, wide=4),
    Case("ragged-rows-first", room=900, capacity=24, updates=True, prioritized=True, wide=4),
    Case(
        "ragged-next", room=200, capacity=24, has_next_items=True, deletes=True, clears=True, wide=4
    ),
]


@dataclass
class Promise:
    """What a flush promises, and what has been done to its rows since."""

    rows: dict[tuple[int, int], int] = field(default_factory=dict)  # which are there: mark's sign
    sure: set[tuple[int, int]] = field(default_factory=set)  # those that have to be there
    weights: dict[tuple[int, int], float] = field(default_factory=dict)
    chunks: dict[tuple[int, int], int] = field(default_factory=dict)  # of each row, absent ones too

    @classmethod
    def of(cls, rb: ReplayBuffer) -> Promise:
        """What a flush of this buffer would promise."""
        ring = rb.ring
        slots = np.flatnonzero(ring.flags() & 8 == 0)
        names = named(rb, slots)
        signs = np.sign(values(rb, "mark", slots)[:, 0]).tolist()
        drawn = ring.present_slots()
        found = cls(dict(zip(names, signs, strict=True)), set(named(rb, drawn)))
        slots = np.arange(ring.stored)
        ages = ring.row_ids(slots) - max(0, ring.written - ring.capacity)
        chunks = ages // -(-ring.capacity // dirty_chunks.CHUNKS)
        found.chunks = dict(zip(named(rb, slots), chunks.tolist(), strict=True))
        if isinstance(rb.sampler, ByPriority):
            weights = rb.sampler.rows.get(drawn).tolist()
            found.weights = dict(zip(named(rb, drawn), weights, strict=True))
        return found

    def spare(self, names: list[tuple[int, int]]) -> None:
        """Rows are about to change, so these and all of their chunks may be left out."""
        chunks = {self.chunks.get(name) for name in names}
        self.sure = {name for name in self.sure if self.chunks[name] not in chunks}
        for name in names:
            self.weights.pop(name, None)


def values(rb: ReplayBuffer, name: str, slots: Any) -> Any:
    """The values of a field in some slots of the ring, drawable or not."""
    columns = tuple(column for column in rb.ring.columns if column.name == name)
    return take(rb.ring, np.ascontiguousarray(slots, np.intp), columns=columns)[name]


def named(rb: ReplayBuffer, slots: Any) -> list[tuple[int, int]]:
    """Step number and environment of the rows in some slots of the ring."""
    t, env = values(rb, "t", slots), values(rb, "env", slots)
    return list(zip(t.tolist(), env.tolist(), strict=True))


def tail(layout: Layout, arena: Any, items: Items, rows: Any, laps: Laps) -> int:
    """Number of the oldest item of some rows."""
    return all_places_of(layout, arena, items, rows, laps)[1].first(laps.head)


class Machine:
    """A machine on which a buffer is written to, and that crashes now and then."""

    def __init__(
        self, case: Case, folder: Path, chance: random.Random, patch: pytest.MonkeyPatch
    ) -> None:
        self.case, self.chance, self.patch = case, chance, patch
        self.live, beside = folder / "live", folder / "beside"
        self.live.mkdir()
        beside.mkdir()
        self.starts = 0
        self.start()
        self.promises: list[Promise] = []  # of the last flush, and of one that is not done
        self.images: list[tuple[Path, list[Promise]]] = []
        self.share = 0.1
        self.folder = CrashingFolder(self.live, beside, patch, self.moment)

    def start(self) -> None:
        """Start the machine anew."""
        self.starts += 1
        name = f"start {self.starts}".encode()
        self.patch.setattr(file_maps, "_boot_id", lambda: name)

    def moment(self) -> None:
        """Make an image of a crash, perhaps."""
        if self.chance.random() < self.share and len(self.images) < IMAGES_PER_HISTORY:
            to = self.live.parent / f"image {len(self.images)}"
            to.mkdir()
            self.folder.crash(to, self.chance, self.chance.choice([512, 4096]))
            self.images.append((to, copy.deepcopy(self.promises)))

    def flush(self, rb: ReplayBuffer, call: Callable[[], object]) -> None:
        """A call that promises what is there now."""
        self.promises.append(Promise.of(rb))
        call()
        self.promises = self.promises[-1:]

    def history(self) -> None:
        """Do this and that with a buffer, and make images in between."""
        case, chance = self.case, self.chance
        rb = case.open(self.live, "x")
        self.promises, t = [Promise()], 0
        for _ in range(OPERATIONS):
            what = chance.choice(WHAT)
            if what == "add":
                for _ in range(chance.randint(1, 9)):
                    self.about_to_add(rb, t)
                    rb.add(**joined([step(case, t)], case))
                    t += 1
                    if chance.random() < 0.2:
                        self.folder.note()
            elif what == "flush":
                self.flush(rb, rb.flush)
            elif what == "full":
                with self.patch.context() as patch:
                    patch.setattr(file_maps, "sync", self.full)
                    with pytest.raises(OSError, match="disk is full"):
                        rb.flush()
            elif what == "update" and case.updates and len(rb):
                slots = np.array([int(chance.choice(rb.ring.present_slots().tolist()))])
                self.spare(named(rb, slots))
                new = {"mark": -values(rb, "mark", slots)}
                if case.room:
                    of_row = {name: values(rb, name, slots) for name in ("t", "env", "mark")}
                    new = updated(of_row)
                    self.spare_leaving(rb, new, 0)
                rb.update(public_slots(rb.ring, slots), **new)
            elif what == "priorities" and case.prioritized and len(rb):
                slots = rb.ring.present_slots()[:5]
                for promise in self.promises:
                    for name in named(rb, slots):
                        promise.weights.pop(name, None)
                rb.update_priorities(
                    public_slots(rb.ring, slots), [chance.random() * 9] * len(slots)
                )
            elif what == "end":
                rb.on_episode_end()
            elif what == "delete" and case.deletes and self.has_ended_episode(rb):
                for promise in self.promises:  # their weights go, and may come back as those of new
                    promise.weights.clear()
                self.spare(named(rb, rb.episodes._index.slots(0)[0]))
                rb.episodes.delete(0)
            elif what == "rewind" and chance.random() < 0.5:
                self.rewind(rb, chance.randint(0, 5) * case.n_envs)
            elif what == "clear" and case.clears and chance.random() < 0.3:
                for promise in self.promises:
                    promise.sure.clear()  # rows that come next take their places
                    promise.weights.clear()
                rb.clear()
            elif what == "reopen":
                self.flush(rb, rb.flush)  # as it is when it goes out of use
                del rb
                rb = case.open(self.live, "r+")
            self.folder.note()
            self.moment()
        self.flush(rb, rb.flush)

    def rewind(self, rb: ReplayBuffer, n_rows: int) -> None:
        """Forget the newest rows. None of them comes back after the call."""
        row = max(rb.rows - n_rows, rb.ring.cleared)
        ids = np.arange(row - rb.ring.cleared, rb.ring.written)
        names = named(rb, ids % rb.ring.capacity)
        for promise in self.promises:
            promise.weights.clear()
        self.spare(names)
        rb.rewind(row)
        for promise in self.promises:
            for name in names:
                promise.rows.pop(name, None)

    @staticmethod
    def full(path: Path) -> None:
        """As ``sync`` of a disk that has no room."""
        raise OSError(errno.ENOSPC, f"{path}: no space left (a test)")

    @staticmethod
    def has_ended_episode(rb: ReplayBuffer) -> bool:
        """Whether the oldest episode can be deleted."""
        return len(rb.episodes) > 0 and rb.episodes.list()[0].complete

    def about_to_add(self, rb: ReplayBuffer, t: int) -> None:
        """The oldest rows are about to be overwritten, or leave for the items of new ones."""
        ring, k = rb.ring, self.case.n_envs
        if self.case.room:
            self.spare_leaving(rb, step(self.case, t), k)
        slots = np.arange(ring.written, ring.written + k) % ring.capacity
        self.spare(named(rb, slots[slots < ring.stored]))
        if self.case.n_step > 1:  # the oldest rows are left out, and have no weight any more
            ids = np.sort(ring.row_ids(ring.present_slots()))[: 2 * self.case.n_step * k]
            for promise in self.promises:
                for name in named(rb, ids % ring.capacity):
                    promise.weights.pop(name, None)

    def spare_leaving(self, rb: ReplayBuffer, new: dict[str, Any], n_rows: int) -> None:
        """The rows that leave for the items of a call that adds so many rows."""
        layout, arena = rb._layout, rb._arena
        rows = living_rows(layout, arena)
        rows, most = rows[rows >= rb.ring.written + n_rows - rb.ring.capacity], 0
        for items in layout.item_rings:
            name = {"T": "token", "E": "edge", "say": "say"}[items.axis]
            given = [*new[name], *new.get(f"next_{name}", [])]  # or less: rows may share them
            n = sum(len(one.encode()) if items.axis == "say" else one.shape[-1] for one in given)
            laps = laps_of(layout.item_words(arena, items))
            while laps.head - tail(layout, arena, items, rows[most:], laps) + n > items.room:
                most += 1
        self.spare(named(rb, rows[:most] % rb.ring.capacity))

    def spare(self, names: list[tuple[int, int]]) -> None:
        """Rows are about to change."""
        for promise in self.promises:
            promise.spare(names)

    def look(self, folder: Path, promises: list[Promise], again: int = 1) -> None:
        """Open what a crash has left."""
        self.start()
        case = self.case
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            try:
                rb = case.open(folder, "r+")
            except (OSError, ValueError) as error:
                if promises or case.name not in str(error):  # else it was not created yet
                    raise
                return
        rb.check()
        failures = []
        for promise in promises or [Promise()]:
            try:
                self.expect(rb, promise)
                break
            except AssertionError as error:
                failures.append(error)
        else:
            raise failures[-1]
        rb.on_episode_end()  # the environments begin anew
        for t in range(1000, 1005):
            rb.add(**joined([step(case, t)], case))
        rb.check()
        self.expect_no_gaps(rb)
        if case.prioritized:
            rb.sample(20)

    def expect(self, rb: ReplayBuffer, promise: Promise) -> None:
        """The rows are those of a promise."""
        drawn = rb.ring.present_slots()
        names = named(rb, drawn)
        found = set(names)
        # With n steps the newest rows wait, and rows that are lost make others complete.
        sure = promise.sure if self.case.n_step == 1 else set()
        assert sure <= found, f"lost: {sorted(sure - found)}"
        assert found <= promise.rows.keys(), f"not flushed: {sorted(found - promise.rows.keys())}"
        twin_rows(rb.get_all_transitions(), self.case, "an image")
        signs = np.sign(values(rb, "mark", drawn)[:, 0]).tolist()
        assert [promise.rows[name] for name in names] == signs
        self.expect_no_gaps(rb)
        if isinstance(rb.sampler, ByPriority):
            weights = rb.sampler.rows.get(drawn)
            assert (weights > 0).all(), "rows that are never drawn"
            for name, weight in zip(names, weights.tolist(), strict=True):
                assert promise.weights.get(name, weight) == weight

    @staticmethod
    def expect_no_gaps(rb: ReplayBuffer) -> None:
        """The rows of a window follow one another."""
        slots = rb.ring.present_slots()
        rows, counts, _ = rb.ring.windows(slots, AROUND, AROUND, repeat=True)
        for around, (before, after) in zip(rows, counts.tolist(), strict=True):
            t = values(rb, "t", around[AROUND - before : AROUND + after + 1])
            assert (np.diff(t) == 1).all(), f"a window goes over a gap: {t}"


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_images_of_crashes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: Case) -> None:
    """What was flushed is there, whole, with its priorities, and what is left out is a gap.

    Names of new files were not put on the disk, so a flush could refer to files that a crash took;
    and episodes went on over rows that were left out.
    """
    done = 0
    for seed in range(10**6):
        monkeypatch.setattr(dirty_chunks, "CHUNKS", (4, 8, 256)[seed % 3])
        if done >= IMAGES / len(CASES):
            break
        folder = tmp_path / str(seed)
        folder.mkdir()
        with monkeypatch.context() as patch:
            machine = Machine(case, folder, random.Random(f"{case.name} {seed}"), patch)
            machine.history()
        with monkeypatch.context() as patch:
            machine.patch = patch
            for number, (image, promises) in enumerate(machine.images):
                again = shutil.copytree(image, folder / f"copy {number}")
                try:
                    machine.look(image, promises)
                except BaseException as error:
                    error.args = (f"seed {seed}, {again}: {error}",)
                    raise
                done += 1
        shutil.rmtree(folder)
