"""What reads a folder, or a buffer, while others change it: it has one moment, whole."""

from __future__ import annotations

import copy
import pickle
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scale import repeats

from cpprb_like import Mixture, PrioritizedReplayBuffer, ReplayBuffer, checkpoint
from cpprb_like.checkpoint._open_state import OpenState
from cpprb_like.processes import SharedReplay
from cpprb_like.report import describe_saved
from cpprb_like.samplers import Prioritized

FIELDS: Any = {"x": {"shape": ()}, "obs": {"shape": 3}, "done": {"shape": ()}}


@contextmanager
def beside(job: Callable[[int], object]) -> Iterator[None]:
    """``job(0)``, ``job(1)``, ... in a thread of its own, which must not fail."""
    stop, failed = threading.Event(), []

    def run() -> None:
        count = 0
        try:
            while not stop.is_set():
                job(count)
                count += 1
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
    assert not failed


def test_loads_beside_frequent_saves(tmp_path: Path) -> None:
    """A save that keeps one state removes the files of the one that is being read.

    All files are open before one is read, and a state that is gone is replaced by the newest one.
    """
    folder = tmp_path / "folder"
    rb = PrioritizedReplayBuffer(2000, FIELDS, seed=0)
    rb.add(x=np.zeros(2000), obs=np.zeros((2000, 3)), done=np.zeros(2000))
    rb.save(folder, sync=False)

    def save(count: int) -> None:
        rb.add(x=np.full(100, count), obs=np.full((100, 3), count), done=np.zeros(100))
        rb.save(folder, keep=1, sync=False)

    with beside(save):
        for k in range(30):
            rows = PrioritizedReplayBuffer.load(folder).get_all_transitions()
            assert np.array_equal(rows["x"], rows["obs"][:, 0])
            assert all(verdict.is_in_order for verdict in checkpoint.verify(folder))
            checkpoint.copy(folder, tmp_path / f"copy{k}", sync=False)
            assert checkpoint.describe(folder)["buffers"][0]["rows"] == 2000


@contextmanager
def a_save_after(calls: int, save: Callable[[], object]) -> Iterator[list[int]]:
    """``save()`` after each of the first ``calls`` times that a reader has read a manifest."""
    choose, count = OpenState._choose, [0]

    def choose_and_save(state: OpenState) -> Any:
        found = choose(state)
        count[0] += 1
        if count[0] <= calls:
            save()
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(OpenState, "_choose", choose_and_save)
        yield count


@pytest.mark.parametrize("calls", [1, 3])
@pytest.mark.parametrize("reader", ["load", "restore", "copy", "describe", "report", "verify"])
def test_all_that_reads_a_state_goes_on_when_a_save_removes_it(
    reader: str, calls: int, tmp_path: Path
) -> None:
    """Three of them read again, and the others said that a file was missing."""
    folder = tmp_path / "folder"
    rb = PrioritizedReplayBuffer(50, FIELDS, seed=0)

    def save() -> None:
        rb.add(x=1, obs=[0, 0, 0], done=0)
        rb.save(folder, keep=1, sync=False)

    def read() -> int:
        if reader == "describe":
            return int(checkpoint.describe(folder)["buffers"][0]["rows"])
        if reader == "report":
            return int(describe_saved(folder)._document["buffers"][0]["rows"])
        if reader == "verify":
            assert all(verdict.is_in_order for verdict in checkpoint.verify(folder))
            return len(rb)
        if reader == "restore":
            other = PrioritizedReplayBuffer(50, FIELDS)
            other.restore(folder)
            return len(other)
        if reader == "copy":
            checkpoint.copy(folder, tmp_path / "copy", sync=False)
        return len(PrioritizedReplayBuffer.load(tmp_path / "copy" if reader == "copy" else folder))

    save()
    with a_save_after(calls, save) as count:
        assert read() == 1 + calls
    assert count[0] > calls


def test_a_shared_replay_is_loaded_from_one_state(tmp_path: Path) -> None:
    """Its description was of one state and its rows of the next one, so no learner fitted it."""
    replay = SharedReplay(2000, {"x": {"shape": ()}}, writers=1)
    actor, learner = replay.actor(), replay.learner(Prioritized(), seed=0)
    actor.add(x=range(1000))
    learner.update_priorities(learner.sample(8)["indexes"], np.arange(1.0, 9.0))

    def save() -> None:
        actor.add(x=1)
        replay.save(tmp_path, learners={"main": learner}, keep=1, sync=False)

    save()
    with a_save_after(2, save), SharedReplay.load(tmp_path) as loaded:
        assert loaded.stats()["rows"] == 1003
        again = loaded.restore_learner(tmp_path, "main")
        assert again.sample(9)["x"].tolist() == learner.sample(9)["x"].tolist()
        save()
        with pytest.raises(ValueError, match=r"nor is this loaded from that state; .* from a copy"):
            loaded.restore_learner(tmp_path, "main")
    with a_save_after(2, save):
        assert len(replay.restore_learner(tmp_path, "main")) == 1006
    replay.close()


@pytest.mark.parametrize("how", ["pickle", "copy"])
@pytest.mark.parametrize("options", [{}, {"next_of": "obs"}, {"Nstep": {"size": 2, "rew": "x"}}])
def test_pickles_beside_threads_that_delete_and_clear(how: str, options: Any) -> None:
    """Rows, flags and priorities were of different moments, so one pickle in ten was unreadable."""
    rb = PrioritizedReplayBuffer(200, FIELDS, seed=0, **options)
    ahead: Any = {"next_obs": np.zeros((5, 3))} if "next_of" in options else {}
    done = np.array([0, 0, 0, 0, 1.0])

    def change(count: int) -> None:
        rb.add(x=np.full(5, count), obs=np.zeros((5, 3)), done=done, **ahead)
        if count % 7 == 3 and len(rb.episodes) > 1:
            rb.episodes.delete(0)
        if count % 40 == 39:
            rb.clear()

    switch = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        _take_copies(rb, how, change)
    finally:
        sys.setswitchinterval(switch)


def _take_copies(rb: Any, how: str, change: Callable[[int], None]) -> None:
    with beside(change):
        for _ in range(repeats(150, 50)):
            other = pickle.loads(pickle.dumps(rb)) if how == "pickle" else copy.deepcopy(rb)
            other.check()
            if len(other):
                other.sample(3)


def test_a_pickle_of_one_thread_copies_no_rows() -> None:
    """Without other threads the rows are views of the buffer's memory."""
    rb = ReplayBuffer(10, FIELDS)
    rb.add(x=1, obs=[1, 2, 3], done=0)
    if threading.active_count() == 1:
        assert np.shares_memory(rb.__getstate__()["records"], rb._arena)
    with beside(lambda _: None):
        assert not np.shares_memory(rb.__getstate__()["records"], rb._arena)


@pytest.mark.parametrize("first", ["buffer", "mixture"])
def test_a_restore_that_is_refused_changes_nothing(first: str, tmp_path: Path) -> None:
    """A generator of another class was found when other parts had their new state already."""

    def made(one: Any, two: Any) -> tuple[Mixture, list[ReplayBuffer]]:
        buffers = [ReplayBuffer(10, FIELDS, seed=seed) for seed in (one, two)]
        for number, rb in enumerate(buffers):
            rb.add(x=number, obs=[0, 0, 0], done=0)
        return Mixture(dict(zip("ab", buffers, strict=True)), {"a": 1, "b": 1}, seed=0), buffers

    saved, _ = made(1, 2)
    saved.save(tmp_path)
    here, buffers = made(np.random.MT19937(1) if first == "buffer" else 1, np.random.MT19937(2))
    for rb in buffers:
        rb.add(x=7, obs=[0, 0, 0], done=0)
    before = pickle.dumps(here)
    with pytest.raises(TypeError, match=r"rng: a generator of PCG64 was saved, .* MT19937"):
        here.restore(tmp_path)
    assert pickle.dumps(here) == before


def test_a_restore_of_rows_in_files_changes_nothing(tmp_path: Path) -> None:
    """Of two buffers, one of them in a file, the other one keeps its rows as well."""

    def made(**options: Any) -> Mixture:
        buffers = [ReplayBuffer(10, FIELDS, seed=1), ReplayBuffer(10, FIELDS, seed=2, **options)]
        for rb in buffers:
            rb.add(x=len(options), obs=[0, 0, 0], done=0)
        return Mixture(dict(zip("ab", buffers, strict=True)), {"a": 1, "b": 1}, seed=0)

    made().save(tmp_path / "saved")
    here = made(mmap_prefix=tmp_path / "rows")
    before = pickle.dumps(here)
    with pytest.raises(ValueError, match="rows lie in a file map"):
        here.restore(tmp_path / "saved")
    assert pickle.dumps(here) == before
