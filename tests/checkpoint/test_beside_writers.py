"""Saves that go on while others write, are cancelled, or meet another save, a clear or a fork."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from crashing_disk import MemoryDisk
from forked import outcome
from saved_cases import (
    add,
    check_rows,
    digest,
    digest_of_copy,
    make,
    small_segments,
    update,
    versions_of,
)
from scale import LONG, repeats

from cpprb_like import ReplayBuffer
from cpprb_like.checkpoint import CancelledError, _disk, _manifest, _ring_writer, _saved, _segments

SAVES = 300 if LONG else repeats(15, 6)


_small_segments = small_segments(6000)


@pytest.fixture(autouse=True)
def _no_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_ring_writer, "COPIED_NBYTES", 0)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> MemoryDisk:
    """The disk of all folders."""
    found = MemoryDisk()
    monkeypatch.setattr(_saved, "Disk", lambda *_: found)
    return found


@contextmanager
def writer(rb: ReplayBuffer, seed: int) -> Iterator[None]:
    """Another thread that adds, updates, ends and deletes episodes."""
    rng = random.Random(seed)
    stop = threading.Event()
    errors: list[BaseException] = []

    def write() -> None:
        try:
            while not stop.is_set():
                what = rng.random()
                if what < 0.4:
                    add(rb, rng.randrange(1, 6))
                elif what < 0.9:
                    update(rb, rng.randrange(1, 9))
                elif what < 0.95:
                    rb.on_episode_end()
                elif len(rb.episodes) > 5:
                    rb.episodes.delete(rng.randrange(3))
                time.sleep(rng.random() * 0.003)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
    assert not errors, errors


@pytest.mark.slow
@pytest.mark.parametrize("copied", [0, 1 << 24])
@pytest.mark.parametrize(
    "kind",
    ["plain", "prioritized", "next_of", "next_of+stacks+n_envs", "ragged", "narrow+prioritized"],
)
def test_each_state_is_that_of_one_moment(
    kind: str, copied: int, disk: MemoryDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole rows, the newest one that of the call, and of each row no older values than then.

    Nor newer ones, if the rows are copied.
    """
    monkeypatch.setattr(_ring_writer, "COPIED_NBYTES", copied)
    monkeypatch.setattr(_segments, "SEGMENT_NBYTES", 40_000)
    is_ragged = "ragged" in kind or "narrow" in kind
    saves = SAVES // 3 if is_ragged else SAVES  # these cost five times as much
    rb = make(kind, 1200, seed=2)
    add(rb, 1200)
    rng = random.Random(1)
    disk.before = lambda *_: time.sleep(rng.random() * 0.0005)
    overwritten = 0
    with writer(rb, 3):
        for number in range(saves):
            least, first = versions_of(rb), rb.ring.written
            saving = rb.save_async("memory", keep=1 + number % 2)
            last, most = rb.ring.written, versions_of(rb) if copied else {}
            try:
                saving.result()
            except RuntimeError:  # all rows were overwritten meanwhile
                overwritten += 1
                continue
            most = most or versions_of(rb)
            loaded = ReplayBuffer.load("memory")
            assert first <= loaded.ring.written <= last
            loaded.check()
            check_rows(loaded)
            for row, version in versions_of(loaded).items():
                assert least.get(row, 0) <= version <= most.get(row, version), (number, row)
            if number % 5 == 4:
                loaded.sample(32)
                add(loaded, 1500)
                loaded.check()
                check_rows(loaded)
    assert overwritten <= saves // 2 if not copied else overwritten == 0
    rb.save("memory")
    assert digest(ReplayBuffer.load("memory")) == digest_of_copy(rb)
    disk.before = lambda *_: None
    rb.save_async("memory").result()
    assert digest(ReplayBuffer.load("memory")) == digest(rb)


def with_old_state(disk: MemoryDisk) -> tuple[ReplayBuffer, str]:
    """A buffer that has changed since it was saved, and what was saved."""
    rb = make("next_of+prioritized", 200)
    add(rb, 150)
    rb.save("memory")
    old = digest_of_copy(rb)
    add(rb, 150)
    update(rb, 9)
    disk.log.clear()
    return rb, old


def test_a_cancelled_save_leaves_the_old_state(disk: MemoryDisk) -> None:
    """Or the new one, if all was written but the manifest; the next save is right."""
    rb, old = with_old_state(disk)
    cancelled = 0
    started: list[Any] = []
    ready = threading.Event()
    for at in range(2, 60, 7):

        def cancel(number: int, _: Any, at: int = at) -> None:
            if number == at:
                ready.wait(10)
                started[-1].cancel()

        ready.clear()
        disk.log.clear()
        disk.before = cancel
        add(rb, 1)
        update(rb, 1)
        new = digest_of_copy(rb)
        started.append(rb.save_async("memory"))
        ready.set()
        try:
            started[-1].result(30)
        except CancelledError:
            cancelled += 1
            assert digest(ReplayBuffer.load("memory")) == old
        else:
            old = new
            assert digest(ReplayBuffer.load("memory")) == new
        assert started[-1].done()
    assert cancelled > 3
    disk.before = lambda *_: None
    rb.save("memory")
    assert digest(ReplayBuffer.load("memory")) == digest(rb)


def test_a_clear_ends_a_save(disk: MemoryDisk) -> None:
    """The folder has its old state; the next save is that of the buffer as it is then."""
    rb, old = with_old_state(disk)
    disk.before = lambda number, _: rb.clear() if number == 9 else None
    with pytest.raises(RuntimeError, match="was cleared"):
        rb.save_async("memory").result()
    assert digest(ReplayBuffer.load("memory")) == old
    rb.save("memory")
    assert len(ReplayBuffer.load("memory")) == 0
    add(rb, 20)
    rb.save("memory")
    assert digest(ReplayBuffer.load("memory")) == digest(rb)


def when_written(disk: MemoryDisk, change: Callable[[], object]) -> None:
    """Make a change after the snapshot of the next save, before its first byte is written."""
    left = [change]

    def during(_: int, operation: Any) -> None:
        if left and operation[0] == "write":
            left.pop()()

    disk.before = during


def priorities_of(rb: ReplayBuffer) -> dict[int, float]:
    """The priority of each row; nothing in a buffer without priorities."""
    if not rb.has_priorities:
        return {}
    ids = rb.get_all_transitions()["id"]
    priorities: Any = rb.sampler.row_priorities(ids % rb.ring.capacity)
    return dict(zip(ids.tolist(), priorities.tolist(), strict=True))


def episodes_of(rb: ReplayBuffer) -> list[list[int]]:
    """The ids of the rows of each episode."""
    return [rb.episodes[k]["id"].tolist() for k in range(len(rb.episodes))]


def delete_some(rb: ReplayBuffer) -> None:
    """Every second episode that has ended."""
    for number in range(len(rb.episodes) - 1 - rb.n_envs, 0, -2):
        rb.episodes.delete(number)


def delete_newest(rb: ReplayBuffer) -> None:
    """The episodes that were open, and the one before."""
    for env in range(rb.n_envs):
        rb.on_episode_end(env)
    for _ in range(3):
        rb.episodes.delete(len(rb.episodes) - 1)


GOING: dict[str, Callable[[ReplayBuffer], object]] = {
    "add": partial(add, n=30),
    "delete": delete_some,
    "delete the newest": delete_newest,
}


@pytest.mark.parametrize(
    ("kind", "is_first"),
    [("narrow+prioritized+n_envs", True), ("narrow+next_of+ranked", False), ("narrow", False)],
)
@pytest.mark.parametrize("going", GOING)
def test_rows_of_any_length_that_go_during_a_save(
    going: str, kind: str, is_first: bool, disk: MemoryDisk
) -> None:
    """They are left out, the oldest rows or whole episodes; the rows that stay are as before.

    Priorities of absent rows, and steps of an open episode that was deleted, were refused by
    ``load``. Rows in files of an earlier state stayed, so episodes went on behind a gap.
    """
    rb = make(kind, 300)
    add(rb, 180 // rb.n_envs)
    if not is_first:
        rb.save("memory")
    add(rb, 31 // rb.n_envs)
    episodes, n = episodes_of(rb), len(rb)
    assert rb.ring.episode_len(0) > 0, "else the newest episode has ended"
    if rb.has_priorities:
        batch = rb.sample(40, indexes=True)
        rb.update_priorities(batch["indexes"], batch["id"] % 17 / 4.0)
    priorities = priorities_of(rb)
    when_written(disk, lambda: GOING[going](rb))
    rb.save_async("memory").result()
    left = episodes_of(ReplayBuffer.load("memory"))
    loaded = ReplayBuffer.load("memory")
    loaded.check()
    check_rows(loaded)
    assert 0 < len(loaded) < n
    for ids in left:
        assert any(one[-len(ids) :] == ids for one in episodes)
    if going != "add":
        assert all(ids in episodes for ids in left)
    assert priorities_of(loaded).items() <= priorities.items()
    loaded.sample(50)
    add(loaded, 1)
    loaded.check()
    check_rows(loaded)
    if going == "delete the newest":  # the next row begins an episode
        assert episodes_of(loaded)[: len(left)] == left
        assert [loaded.ring.episode_len(env) for env in range(rb.n_envs)] == [1] * rb.n_envs


@pytest.mark.parametrize("kind", ["ragged", "plain"])
def test_a_rewind_during_a_save(kind: str, disk: MemoryDisk) -> None:
    """With values of any length it ends the save: the open episode went on behind a gap.

    Other rows stay in memory, and the state is that of the call.
    """
    rb = make(kind, 200)
    add(rb, 100)
    rb.save("memory")
    old = digest_of_copy(rb)
    add(rb, 60)
    new = digest_of_copy(rb)
    when_written(disk, lambda: rb.rewind(130))
    if kind == "ragged":
        with pytest.raises(RuntimeError, match="was rewound while it was saved"):
            rb.save_async("memory").result()
        assert digest(ReplayBuffer.load("memory")) == old
    else:
        rb.save_async("memory").result()
        assert digest(ReplayBuffer.load("memory")) == new
    rb.save("memory")
    assert digest(ReplayBuffer.load("memory")) == digest_of_copy(rb)
    new = digest_of_copy(rb)

    def change() -> None:
        add(rb, 2)
        rb.rewind(162)  # of no row that is saved

    when_written(disk, change)
    rb.save_async("memory").result()
    assert digest(ReplayBuffer.load("memory")) == new


def test_rows_that_are_all_overwritten_end_a_save(disk: MemoryDisk) -> None:
    """A ring that goes round once while it is saved."""
    rb, old = with_old_state(disk)
    disk.before = lambda number, _: add(rb, 220) if number == 9 else None
    with pytest.raises(RuntimeError, match="were overwritten"):
        rb.save_async("memory").result()
    assert digest(ReplayBuffer.load("memory")) == old
    rb.save("memory")
    assert digest(ReplayBuffer.load("memory")) == digest(rb)


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[threading.Event, threading.Event]]:
    """A save to a real disk stops at its first file, and says so, until it may go on."""
    waits, may_go = threading.Event(), threading.Event()
    sync = _disk.Output.sync

    def wait(output: _disk.Output) -> None:
        waits.set()
        assert may_go.wait(30)
        sync(output)

    monkeypatch.setattr(_disk.Output, "sync", wait)
    yield waits, may_go
    may_go.set()


Held = tuple[threading.Event, threading.Event]


def test_one_save_to_a_folder_at_a_time(tmp_path: Path, held: Held) -> None:
    """Of this process, by this buffer or another; and of any other process."""
    waits, may_go = held
    rb, other = make("plain"), make("plain")
    add(rb, 30)
    saving = rb.save_async(tmp_path)
    assert waits.wait(10)
    for thing in (rb, other):
        for save in (thing.save, thing.save_async):
            with pytest.raises(BlockingIOError, match="save to this folder"):
                save(tmp_path)

    def in_child() -> None:
        with pytest.raises(BlockingIOError):
            other.save(tmp_path)

    if hasattr(os, "fork"):
        assert outcome(in_child) == 0
    may_go.set()
    saving.result()
    other.save(tmp_path)
    assert len(ReplayBuffer.load(tmp_path)) == 0
    rb.save(tmp_path)
    assert len(ReplayBuffer.load(tmp_path)) == 30


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_fork_while_a_save_goes_on(tmp_path: Path, held: Held) -> None:
    """The child can save elsewhere, and does not keep the parent's lock; the parent goes on."""
    waits, may_go = held
    rb = make("next_of+prioritized", 100)
    add(rb, 150)
    new = digest_of_copy(rb)
    saving = rb.save_async(tmp_path / "parent")
    assert waits.wait(10)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.close(writing)
            may_go.set()
            add(rb, 5)
            update(rb, 3)
            rb.check()
            rb.save(tmp_path / "child")
            assert digest(ReplayBuffer.load(tmp_path / "child")) == digest_of_copy(rb)
            update(rb, 3)
            rb.save(tmp_path / "child")
            assert digest(ReplayBuffer.load(tmp_path / "child")) == digest_of_copy(rb)
            os.read(reading, 1)  # until the parent has saved twice
            code = 0
        finally:
            os._exit(code)
    os.close(reading)
    may_go.set()
    saving.result(30)
    assert digest(ReplayBuffer.load(tmp_path / "parent")) == new
    add(rb, 3)
    rb.save(tmp_path / "parent")  # while the child lives
    assert digest(ReplayBuffer.load(tmp_path / "parent")) == digest_of_copy(rb)
    os.close(writing)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_the_state_of_a_failed_async_save_is_reported(disk: MemoryDisk) -> None:
    """``result`` raises what was raised, each time it is called."""
    rb, old = with_old_state(disk)
    disk.before = lambda number, _: "full" if number == 5 else None
    saving = rb.save_async("memory")
    for _ in range(2):
        with pytest.raises(OSError, match="no space left"):
            saving.result()
    assert saving.done()
    disk.before = lambda *_: None
    assert digest(ReplayBuffer.load("memory")) == old
    assert _manifest.numbers(disk) == [1]


@pytest.mark.parametrize("copied", [0, 1 << 24])
def test_objects_are_those_of_their_rows(
    copied: int, disk: MemoryDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that are updated while they are saved: once, the objects were those of before."""
    monkeypatch.setattr(_ring_writer, "COPIED_NBYTES", copied)
    fields: dict[str, Any] = {
        "number": {"shape": (), "dtype": "i8"},
        "thing": {"shape": (), "dtype": object},
    }
    ids = np.arange(100)
    for at in range(2, 20, 3):
        rb = ReplayBuffer(100, fields)

        def change(number: int, _: Any, at: int = at, rb: ReplayBuffer = rb) -> None:
            if number == at:
                rb.update(ids[::2], number=ids[::2] + 1000, thing=[f"{k + 1000}" for k in ids[::2]])

        rb.add(number=ids, thing=np.array([str(k) for k in ids], object))
        disk.entries.clear()
        disk.log.clear()
        disk.before = change
        rb.save_async("memory", encode=str.encode).result()
        disk.before = lambda *_: None
        for _ in range(2):
            rows = ReplayBuffer.load("memory", decode=bytes.decode).get_all_transitions()
            assert [str(number) for number in rows["number"]] == rows["thing"].tolist()
            rb.save("memory", encode=str.encode)
        assert rows["number"][0] == 1000


@pytest.mark.parametrize("change", ["add", "update", "end", "clear"])
def test_a_callback_that_changes_what_is_saved(
    change: str, disk: MemoryDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only a signal handler can: writers wait. The save is refused."""
    monkeypatch.setattr(_ring_writer, "COPIED_NBYTES", 0)
    rb, old = with_old_state(disk)
    add(rb, 1)
    assert rb.ring.episode_len(0) > 0, "else there is nothing to end"
    changes: dict[str, Callable[[], object]] = {
        "add": lambda: add(rb, 1),
        "update": lambda: update(rb, 1),
        "end": rb.on_episode_end,
        "clear": rb.clear,
    }
    done: list[object] = []

    def during(number: int, operation: Any) -> None:
        if not done and operation[0] == "write":
            done.append(changes[change]())

    disk.before = during
    with pytest.raises(RuntimeError, match="while it was saved"):
        rb.save("memory")
    assert digest(ReplayBuffer.load("memory")) == old
    disk.before = lambda *_: None
    rb.save("memory")
    assert digest(ReplayBuffer.load("memory")) == digest(rb)
