"""cpprb's buffers that processes share: its surface, and its faults, which are none here."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import pickle
import random
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import explorers
import numpy as np
import pytest
from children import child, until
from dying_processes import CASES, Child, ended, step, torn
from scale import PROCESS_KILLS

from cpprb_like import (
    MPPrioritizedReplayBuffer,
    MPReplayBuffer,
    PrioritizedReplayBuffer,
    ReplayBuffer,
)
from cpprb_like._core import WORD_RESERVED
from cpprb_like.errors import NotEnoughDataError
from cpprb_like.processes._newest import NewestLearner
from cpprb_like.processes._shards import TIMES
from cpprb_like.typing import FieldSpec

FIELDS: Mapping[str, FieldSpec] = {
    "id": {"shape": (), "dtype": "i8"},
    "same": {"shape": 50, "dtype": "i8"},
    "done": {"shape": (), "dtype": bool},
}
BOTH = pytest.mark.parametrize("kind", [MPReplayBuffer, MPPrioritizedReplayBuffer])
N_STEPS = CASES["n-step"]
FORKS = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")


def rows(start: int, n: int = 1) -> dict[str, Any]:
    """Rows that prove themselves."""
    ids = np.arange(start, start + n)
    return {"id": ids, "same": np.repeat(ids[:, None], 50, axis=1), "done": ids % 7 == 6}


def assert_whole(batch: Mapping[str, Any]) -> None:
    """No row is torn, or was never written."""
    assert (batch["same"] == batch["id"][:, None]).all()
    assert (batch["done"] == (batch["id"] % 7 == 6)).all()


def within(seconds: float, call: Callable[[], Any]) -> Any:
    """What a call gives; an error if it hangs."""

    def late(*_: object) -> None:
        raise AssertionError(f"it hangs: {call}")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        return call()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


# ---------------------------------------------------------------------- surface


@BOTH
@pytest.mark.parametrize("method", multiprocessing.get_all_start_methods())
def test_explorers_in_processes_add_and_one_learns(kind: Any, method: str) -> None:
    """The same object is handed to all, however they are started."""
    context: Any = multiprocessing.get_context(method)
    rb = kind(1000, FIELDS, ctx=context, seed=0)
    work = [
        context.Process(target=explorers.explore, args=(rb, number * 100, 100))
        for number in range(3)
    ]
    for process in work:
        process.start()
    for process in work:
        process.join()
        assert process.exitcode == 0
    assert rb.get_stored_size() == rb.get_next_index() == 300
    assert rb.get_buffer_size() == 1000
    batch = rb.sample(64)
    assert_whole(batch)
    assert sorted(rb.get_all_transitions()["id"].tolist()) == list(range(300))
    shuffled = rb.get_all_transitions(shuffle=True)["id"].tolist()
    assert shuffled != sorted(shuffled)
    assert sorted(shuffled) == list(range(300))
    rb.close()


@BOTH
@pytest.mark.parametrize("backend", ["sharedctypes", "SharedMemory"])
def test_cpprb_options_are_taken(kind: Any, backend: str) -> None:
    """By the names that they have there."""
    rb = kind(10, {"x": {}}, default_dtype=np.int16, logger=None, ctx=None, backend=backend)
    rb.add(x=[[1], [2]])
    rb.on_episode_end()
    assert rb.sample(4)["x"].dtype == np.int16
    assert not rb.is_Nstep()
    with pytest.raises(ValueError, match="backend: expected one of"):
        kind(10, {"x": {}}, backend="files")
    with pytest.raises(TypeError, match="prioritized"):
        kind(10, {"x": {}}, prioritized=True)
    with pytest.raises(ValueError, match=r"size|capacity"):
        kind(0, {"x": {}})
    rb.close()


@BOTH
def test_the_newest_rows_of_all_stay(kind: Any) -> None:
    """As many as the size, whoever added them, and those of explorers that ended among them."""
    rb = kind(100, FIELDS, seed=0)
    rb.add(**rows(0, 90))
    assert rb.get_stored_size() == 90
    with child(lambda: rb.add(**rows(1000, 60))) as explorer:
        assert explorer.join() == 0
    assert rb.get_stored_size() == 100
    found = set(rb.get_all_transitions()["id"].tolist())
    assert found == {*range(50, 90), *range(1000, 1060)}
    with child(lambda: rb.add(**rows(2000, 99))) as explorer:
        assert explorer.join() == 0
    assert set(rb.get_all_transitions()["id"].tolist()) == {*range(2000, 2099), 1059}
    rb.close()


def test_the_number_of_explorers_divides_the_memory() -> None:
    """Then each keeps its newest."""
    rb = MPReplayBuffer(100, FIELDS, explorers=2)
    rb.add(**rows(0, 90))
    assert rb.get_stored_size() == 50
    with child(lambda: rb.add(**rows(1000, 90))) as explorer:
        assert explorer.join() == 0
    assert rb.get_stored_size() == 100
    rb.close()


@BOTH
def test_clear_forgets_the_rows_of_all(kind: Any) -> None:
    """Also of explorers that go on adding."""
    rb = kind(100, FIELDS, seed=0)
    rb.clear()

    def explore() -> None:
        rb.add(**rows(0, 10))
        until(lambda: rb.get_stored_size() == 0)
        rb.add(**rows(10, 10))

    with child(explore) as explorer:
        until(lambda: rb.get_stored_size() == 10)
        rb.add(**rows(100, 5))
        rb.clear()
        assert explorer.join() == 0
    assert sorted(rb.get_all_transitions()["id"].tolist()) == list(range(10, 20))
    rb.close()


def test_what_cpprb_swallows_works() -> None:
    """``next_of``, ``stack_compress`` and ``Nstep`` mean what they mean in one process."""
    fields: Any = {"obs": {"shape": (4, 4, 2)}, "rew": {"shape": ()}, "done": {"shape": ()}}
    options: Any = {
        "next_of": "obs", "stack_compress": "obs", "Nstep": {"size": 3, "gamma": 0.5}, "seed": 0,
    }  # fmt: skip
    rb, one = MPReplayBuffer(100, fields, **options), ReplayBuffer(100, fields, **options)
    frames = np.random.default_rng(0).normal(size=(13, 4, 4))
    steps = {
        "obs": np.stack([frames[:11], frames[1:12]], axis=-1),
        "next_obs": np.stack([frames[1:12], frames[2:13]], axis=-1),
        "rew": np.arange(11.0),
        "done": [0] * 10 + [1],
    }
    one.add(**steps)
    with child(lambda: rb.add(**steps)) as explorer:
        assert explorer.join() == 0
    assert rb.is_Nstep()
    expected = one.get_all_transitions()
    for name, found in rb.get_all_transitions().items():
        np.testing.assert_array_equal(found, expected[name])
    rb.close()


def test_priorities_are_those_of_the_learner() -> None:
    """And explorers may say what a row begins with, as in cpprb."""
    rb = MPPrioritizedReplayBuffer(100, FIELDS, alpha=1.0, eps=0.0, seed=0)
    rb.add(**rows(0, 4), priorities=[0, 0, 3, 1])
    with child(lambda: rb.add(**rows(10), priorities=4.0)) as explorer:
        assert explorer.join() == 0
    batch = rb.sample(4000, beta=1.0)
    assert batch.keys() == {*FIELDS, "weights", "indexes"}
    shares = [float((batch["id"] == number).mean()) for number in (0, 1, 2, 3, 10)]
    np.testing.assert_allclose(shares, [0, 0, 3 / 8, 1 / 8, 4 / 8], atol=0.03)
    np.testing.assert_allclose(batch["weights"][batch["id"] == 10], 1 / 4, rtol=1e-5)
    assert rb.get_max_priority() == 4.0
    rb.update_priorities(batch["indexes"], np.where(batch["id"] == 10, 1.0, 0.0))
    assert set(rb.sample(100)["id"].tolist()) == {10}
    rb.add(**rows(20))  # the greatest: 4
    assert 10 < (rb.sample(1000)["id"] == 20).sum() / 50 < 18
    for wrong in ([1.0, 2.0], [-1.0], [np.nan], "high"):
        with pytest.raises((TypeError, ValueError), match="priorities"):
            rb.add(**rows(30), priorities=wrong)
    assert rb.get_stored_size() == 6
    rb.close()


def test_late_priorities_of_overwritten_rows_are_dropped() -> None:
    """They never reach the row that came instead."""
    rb = MPPrioritizedReplayBuffer(10, FIELDS, alpha=1.0, eps=0.0, seed=0)
    rb.add(**rows(0, 10))
    batch = rb.sample(10)
    rb.add(**rows(100, 10))
    rb.update_priorities(batch["indexes"], np.zeros(10))
    assert len(set(rb.sample(200)["id"].tolist())) == 10
    rb.close()


def test_the_object_is_pickled_by_its_name() -> None:
    """And each process has ends of its own."""
    rb = MPReplayBuffer(10, FIELDS, seed=0)
    rb.add(**rows(0, 3))
    other = pickle.loads(pickle.dumps(rb))
    assert other.get_stored_size() == 3
    assert "name=" in repr(other)
    other.add(**rows(5, 2))
    assert rb.get_stored_size() == 5
    rb.close()


# ---------------------------------------------------------------------- cpprb's faults


@BOTH
def test_nothing_hangs_before_anything_is_added(kind: Any) -> None:
    """Cpprb's ``get_all_transitions`` and ``update_priorities`` wait for ever."""
    rb = kind(10, FIELDS)
    assert within(20, rb.get_all_transitions)["same"].shape == (0, 50)
    assert within(20, rb.get_stored_size) == 0
    within(20, rb.clear)
    if kind is MPPrioritizedReplayBuffer:
        within(20, lambda: rb.update_priorities([], []))
    with pytest.raises(NotEnoughDataError):
        within(20, lambda: rb.sample(4))
    rb.close()


@BOTH
@FORKS
def test_an_add_that_fails_blocks_no_process(kind: Any) -> None:
    """Cpprb's leaves the buffer locked: the learner waits for ever."""
    rb = kind(100, FIELDS)

    def explore() -> None:
        rb.add(**rows(0, 5))
        with pytest.raises(ValueError, match="same"):
            rb.add(id=1, same=[1, 2], done=False)
        with pytest.raises(TypeError):
            rb.add(id=1)

    with child(explore) as explorer:
        assert explorer.join() == 0
    assert within(20, rb.get_stored_size) == 5
    assert_whole(within(20, lambda: rb.sample(32)))
    rb.close()


@BOTH
@FORKS
def test_killed_explorers_block_no_process_and_tear_no_row(kind: Any) -> None:
    """Cpprb's learner waits for ever for one that was killed as it added."""
    rb = kind(500, FIELDS, seed=0)

    def explore(number: int) -> None:
        rb.add(**rows(0, 5))
        for start in range(number * 10**6, (number + 1) * 10**6, 20):
            rb.add(**rows(start, 20))

    for number in range(15):
        with child(lambda number=number: explore(number)) as explorer:  # type: ignore[misc]
            until(rb.get_stored_size)
            time.sleep(0.002 * (number % 5))
            explorer.kill()
        assert_whole(within(20, lambda: rb.sample(64)))
        assert_whole(within(20, rb.get_all_transitions))
    rb.close()


@BOTH
@FORKS
def test_no_row_is_drawn_before_it_is_written(kind: Any) -> None:
    """Cpprb's index moves on before the data is there; and its reads are torn."""
    rb = kind(30_000, FIELDS, seed=0)

    def explore() -> None:
        for start in range(1, 10_000_000, 3):
            rb.add(**rows(start, 3))

    with child(explore) as one, child(explore) as other:
        until(lambda: rb.get_stored_size() > 1000)
        for _ in range(200):
            batch = rb.sample(64)
            assert_whole(batch)
            assert batch["id"].min() > 0, "zeros that nobody wrote"
        one.kill()
        other.kill()
    rb.close()


@pytest.mark.once
@BOTH
@FORKS
def test_a_buffer_that_is_written_over_within_one_draw(kind: Any) -> None:
    """Newer rows are drawn then: cpprb never says that there are none.

    A draw that had left out all rows that it knew of raised ``NotEnoughDataError``.
    """
    rb = kind(300, FIELDS, seed=0, explorers=2)

    def explore() -> None:
        for start in range(1, 10_000_000, 100):
            rb.add(**rows(start, 100))

    with child(explore) as one, child(explore) as other:
        until(lambda: rb.get_stored_size() >= 300)
        for _ in range(1500):
            assert_whole(rb.sample(128))
        one.kill()
        other.kill()
    assert_whole(rb.sample(128))
    rb.close()


# ---------------------------------------------------------------------- which rows are the newest


WITH_REWARDS: Mapping[str, FieldSpec] = {**FIELDS, "rew": {"shape": ()}}


def of_steps(n: int) -> dict[str, Any]:
    """The option for rows of n steps."""
    return {"Nstep": {"size": n, "gamma": 1.0, "rew": "rew"}} if n > 1 else {}


def ids_of(rb: Any) -> list[int]:
    """The rows that can be drawn, ascending."""
    found: list[int] = sorted(rb.get_all_transitions()["id"].tolist())
    return found


@pytest.mark.parametrize("size", [1, 7, 60])
@pytest.mark.parametrize("steps", [1, 3])
def test_the_newest_rows_do_not_depend_on_who_looks_when(size: int, steps: int) -> None:
    """A learner that looks after each ``add``, one that does so rarely, and a new one agree.

    Which rows were left out followed from the moments at which a learner had looked.
    """
    rb = MPReplayBuffer(size, WITH_REWARDS, seed=0, **of_steps(steps))
    rare = pickle.loads(pickle.dumps(rb))
    rng, actors = np.random.default_rng(size), [rb._replay.actor() for _ in range(3)]
    added: list[list[int]] = [[], [], []]
    complete: list[int] = []
    for number in range(40 * steps):
        who, n = int(rng.integers(3)), int(rng.integers(1, 2 * size))
        ids = np.arange(n) + 1000 * number
        done = rng.random(n) < 0.2
        actors[who].add(id=ids, same=np.zeros((n, 50)), rew=np.ones(n), done=done)
        for one, last in zip(ids.tolist(), done.tolist(), strict=True):
            added[who].append(one)
            waiting = 0 if last else steps - 1
            while len(added[who]) > waiting:
                complete.append(added[who].pop(0))
        assert rb.get_stored_size() == min(size, len(complete))
        if number % 13 == 12:
            new = pickle.loads(pickle.dumps(rb))
            expected = sorted(complete)[-size:]
            assert ids_of(rb) == ids_of(rare) == ids_of(new) == expected
            new._own_learner().close()
    rb.close()


@FORKS
def test_an_explorer_takes_over_the_memory_of_one_that_has_ended() -> None:
    """So memory is that of explorers that add at the same time: each that ever was had its own."""
    rb = MPReplayBuffer(50, FIELDS, seed=0)
    for number in range(40):  # more than may add at the same time

        def explore(number: int = number) -> None:
            rb.add(**rows(1000 * number, 30))

        with child(explore) as explorer:
            assert explorer.join() == 0
        kept = [*range(1000 * number - 1000 + 10, 1000 * number - 1000 + 30)] if number else []
        assert ids_of(rb) == [*kept, *range(1000 * number, 1000 * number + 30)]
    assert len(list(rb._replay.folder.glob("shard-*/rows.dat"))) == 1
    rb.close()


@FORKS
def test_an_explorer_that_was_late_takes_over_the_memory_of_another() -> None:
    """Memory of explorers that were killed is taken over, whichever new one is faster.

    The cause: who came too late for one made memory of its own, although another had ended since.
    """
    rb = MPReplayBuffer(50, FIELDS, seed=0)
    one, other = rb._replay.actor(0), rb._replay.actor(1)
    one.close()
    look = rb._replay.members
    taken: list[Any] = []

    def members() -> Any:
        found = look()
        if not taken:
            taken.append(rb._replay.actor(0))  # another process is faster,
            other.close()  # and an explorer ends
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rb._replay, "members", members)
        rb.add(**rows(0, 3))
    assert len(list(rb._replay.folder.glob("shard-*/rows.dat"))) == 2
    assert ids_of(rb) == [0, 1, 2]
    taken[0].close()
    rb.close()


@FORKS
def test_explorers_one_after_the_other_take_over_the_oldest_rows_of_divided_memory() -> None:
    """The newest rows of all stay, and none stays for ever.

    The cause: each explorer after the last free place took the first one that was free again, so it
    replaced the newest rows, and those in the other places were never replaced.
    """
    rb = MPReplayBuffer(12, FIELDS, explorers=3, seed=0)
    for number in range(6):

        def explore(number: int = number) -> None:
            rb.add(**rows(100 * number, 4))

        with child(explore) as explorer:
            assert explorer.join() == 0
    assert ids_of(rb) == [*range(300, 304), *range(400, 404), *range(500, 504)]
    rb.close()


@FORKS
@BOTH
def test_an_explorer_that_was_killed_before_its_first_row_holds_no_draw(kind: Any) -> None:
    """The file with the times of its rows was empty still, and every draw of a full buffer failed.

    The cause: the file is made with the buffer, and gets its size when an explorer takes the shard.
    """
    rb = kind(8, FIELDS, seed=0)
    rb.add(**rows(0, 5))
    killed = rb._replay.actor(1)
    killed.close()
    os.truncate(rb._replay._shard(1) / TIMES, 0)
    NewestLearner.tell_taken(rb._replay.folder, 1)
    rb.add(**rows(5, 7))
    assert rb.get_stored_size() == 8
    assert set(rb.sample(64)["id"].tolist()) <= set(range(4, 12))
    with child(lambda: rb.add(**rows(100, 3))) as explorer:  # it takes the shard over
        assert explorer.join() == 0
    assert set(rb.get_all_transitions()["id"].tolist()) == {*range(7, 12), *range(100, 103)}
    rb.close()


def test_a_draw_looks_for_no_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """A look for each explorer that might come took 100 us a batch. New explorers are seen."""
    rb = MPReplayBuffer(50, FIELDS, seed=0)
    rb.add(**rows(0, 5))
    rb.sample(8)

    def look(path: Path) -> bool:
        raise AssertionError(f"it looks for {path}")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "exists", look)
        rb.sample(8)
        rb.get_stored_size()
    with child(lambda: rb.add(**rows(10, 5))) as explorer:
        assert explorer.join() == 0
    assert ids_of(rb) == [*range(5), *range(10, 15)]
    rb.close()


def test_as_many_rows_as_fit_can_be_drawn_with_nstep() -> None:
    """Steps that wait for others do not count: 6 of 8 rows were there, and none of 2."""
    for size, steps in itertools.product((2, 8), (2, 3, 5)):
        rb = MPReplayBuffer(size, WITH_REWARDS, **of_steps(steps))
        one = ReplayBuffer(size, WITH_REWARDS, **of_steps(steps))
        for number in range(40):
            for buffer in (rb, one):
                buffer.add(id=number, same=np.zeros(50), rew=1.0, done=number % 17 == 16)
            assert rb.get_stored_size() == one.get_stored_size()
            assert rb.get_next_index() == one.get_next_index()
            assert ids_of(rb) == ids_of(one)
        rb.close()


def test_priorities_reach_steps_that_wait_for_others() -> None:
    """A learner that looks after each step uses those of ``add``: it forgot them with ``Nstep``."""
    options: Any = {**of_steps(3), "alpha": 1.0, "eps": 0.0}
    fields: Any = {name: {"shape": ()} for name in ("id", "rew", "done")}
    for n_envs in (1, 2):
        rb = MPPrioritizedReplayBuffer(100, fields, seed=0, n_envs=n_envs, **options)
        one = PrioritizedReplayBuffer(100, fields, seed=0, n_envs=n_envs, **options)
        for number in range(10):
            ids = np.arange(n_envs) + n_envs * number
            step = {"id": ids, "rew": np.ones(n_envs), "done": np.full(n_envs, number == 9)}
            step = {name: value[0] if n_envs == 1 else value for name, value in step.items()}
            for buffer in (rb, one):
                buffer.add(**step, priorities=1.0 + ids % 7)
            rb.get_stored_size()
            if number > 2:
                rb.sample(1)
        found, expected = rb.sample(4000, 1.0), one.sample(4000, 1.0)
        for number in range(10 * n_envs):
            share = (found["id"] == number).mean()
            assert abs(share - (1 + number % 7) / (1.0 + np.arange(10 * n_envs) % 7).sum()) < 0.02
            weights = [one["weights"][one["id"] == number][0] for one in (found, expected)]
            np.testing.assert_allclose(weights[0], weights[1], rtol=1e-5)
        rb.close()


@FORKS
def test_clear_begins_again() -> None:
    """The next index and the greatest priority too, whichever process clears; as in cpprb."""
    rb = MPPrioritizedReplayBuffer(8, FIELDS, alpha=1.0, eps=0.0, seed=0)
    for clear in (rb.clear, lambda: assert_ends(rb.clear)):
        rb.add(**rows(0, 5))
        batch = rb.sample(32)
        rb.update_priorities(batch["indexes"], np.full(32, 9.0))
        assert (rb.get_next_index(), rb.get_max_priority()) == (5, 9.0)
        clear()
        assert (rb.get_stored_size(), rb.get_next_index(), rb.get_max_priority()) == (0, 0, 1.0)
        rb.update_priorities(batch["indexes"], np.full(32, 7.0))  # of rows that are gone
        assert rb.get_max_priority() == 1.0
        rb.add(**rows(10, 2))
        rb.add(**rows(20), priorities=2.0)
        batch = rb.sample(4000)
        assert abs((batch["id"] == 20).mean() - 0.5) < 0.05
        assert (rb.get_next_index(), rb.get_max_priority()) == (3, 2.0)
        rb.add(**rows(30, 7))
        assert (rb.get_stored_size(), rb.get_next_index()) == (8, 2)
        rb.clear()
    rb.close()


def assert_ends(call: Callable[[], None]) -> None:
    """In a process of its own, the call returns."""
    with child(call) as process:
        assert process.join() == 0


@BOTH
@pytest.mark.parametrize("steps", [1, 3])
def test_encode_sample_reads_rows_by_index(kind: Any, steps: int) -> None:
    """Under cpprb's name: by ``indexes`` of batches, and by places of all rows."""
    rb = kind(20, WITH_REWARDS, seed=0, **of_steps(steps))
    with pytest.raises(IndexError, match=r"idx\[0\]"):
        rb._encode_sample([0])
    rb.add(**rows(0, 12), rew=np.ones(12))
    with child(lambda: rb.add(**rows(100, 14), rew=np.ones(14))) as explorer:
        assert explorer.join() == 0
    every = rb.get_all_transitions()
    n = len(every["id"])
    assert n == 20
    places = np.array([n - 1, 0, 3, 3])
    for name, values in rb._encode_sample(places).items():
        np.testing.assert_array_equal(values, every[name][places])
    assert rb._encode_sample(2)["id"].tolist() == [every["id"][2]]
    assert rb._encode_sample([]).keys() == every.keys()
    with pytest.raises(IndexError, match=rf"idx\[1\]: expected 0 to {n - 1}.*got {n}"):
        rb._encode_sample([0, n])
    with pytest.raises(IndexError, match="got -1"):
        rb._encode_sample([-1])
    with pytest.raises(TypeError, match="idx: expected integers"):
        rb._encode_sample([0.5])
    if kind is MPPrioritizedReplayBuffer:
        batch = rb.sample(32)
        for name, values in rb._encode_sample(batch["indexes"]).items():
            np.testing.assert_array_equal(values, batch[name])
        rb.add(**rows(200, 20), rew=np.ones(20))
        with pytest.raises(IndexError, match="still there"):
            rb._encode_sample(batch["indexes"])
    rb.close()


@BOTH
def test_a_row_that_is_half_replaced_has_no_place(kind: Any) -> None:
    """An explorer that was killed in ``add`` leaves one; the others are read by their places.

    Its place was counted, and no try at the rows held: RuntimeError after ten seconds.
    """
    rb = kind(20, FIELDS, explorers=1)
    rb.add(**rows(0, 20))
    state = rb._actor._layout.state(rb._actor._arena)
    state[WORD_RESERVED] += 1
    assert rb._encode_sample([0])["id"].tolist() == [1]
    assert rb.get_all_transitions()["id"].tolist() == [*range(1, 20)]
    state[WORD_RESERVED] -= 1
    rb.close()


# ---------------------------------------------------------------------- kills


def priority_of(t: Any) -> Any:
    """The priority of the row of a step."""
    return 1.0 + t % 7


def exploring(rb: Any, first: int) -> Callable[[Child], None]:
    """A job: add steps without end, one or several at a time."""
    takes = {"priorities"} if isinstance(rb, MPPrioritizedReplayBuffer) else set()

    def job(process: Child) -> None:
        chance = random.Random(first)
        t = first
        while True:
            steps = [step(N_STEPS, t + k) for k in range(chance.choice([1, 1, 1, 4]))]
            given = {name: np.array([one[name] for one in steps]) for name in steps[0]}
            rb.add(**given, **dict.fromkeys(takes, priority_of(given["t"])))
            t += len(steps)
            if chance.random() < 0.02:
                rb.on_episode_end()
            process.beat()

    return job


def assert_newest(rb: Any, size: int) -> None:
    """While no explorer adds: the rows are the newest of all that are in memory, by their times."""
    newest, every = rb._own_learner(), rb._replay.learner()

    def choose() -> Any:
        """Rows of each try, as the one that an explorer was writing over is left out after one."""
        rows: list[tuple[int, int]] = []
        for number, ring in every._shards.group.usable_rings:
            slots = ring.newest_slots(len(ring))
            numbers = every._shards.group.name(number, slots).tolist()
            rows += zip(newest._shards.times_of(number, slots).tolist(), numbers, strict=True)
        rows.sort(key=lambda row: row[0])
        return np.array([row for _, row in rows[-size:]], np.intp)

    expected = every._read_chosen(choose, ("t",))["t"]
    found = rb.get_all_transitions()
    assert torn(found, N_STEPS) is None
    assert sorted(found["t"].tolist()) == sorted(expected.tolist())
    assert rb.get_stored_size() == min(size, len(every)) == len(expected)
    every.close()


@pytest.mark.once
@BOTH
@FORKS
@pytest.mark.parametrize("size", [40, 3000])
def test_explorers_with_nstep_are_killed_at_random_moments(kind: Any, size: int) -> None:
    """Rows stay whole, the newest of all, and by their priorities; memory is taken over.

    Some explorers are stopped for a while before they are killed.
    """
    chance = random.Random(f"{kind} {size}")
    options: Any = {"alpha": 1.0, "eps": 0.0} if kind is MPPrioritizedReplayBuffer else {}
    rb = kind(size, **N_STEPS, seed=0, **options)
    started = 0

    def start() -> Child:
        nonlocal started
        started += 1
        return Child("explorer", exploring(rb, started * 100_000))

    children = [start() for _ in range(3)]
    with ended(children):
        for _ in range(-(-PROCESS_KILLS // 8)):
            time.sleep(chance.random() * 0.02)
            place = chance.randrange(3)
            process = children[place]
            if chance.random() < 0.3:
                process.wait_for_beat()
                process.signal(signal.SIGSTOP)
                process.wait_until_stopped()
            if rb.get_stored_size():
                draw_and_update(rb)
            process.kill()
            children[place] = start()
        for process in children:
            process.wait_for_beat(2)
            process.kill()
        children.clear()
    assert_newest(rb, size)
    draw_and_update(rb)
    used = list(rb._replay.folder.glob("shard-*/rows.dat"))
    assert len(used) == 3, "a new explorer takes over the memory of one that was killed"
    for number in range(3):
        with rb._replay.actor(number) as actor:  # whose open episodes end
            actor.check()
    assert_newest(rb, size)
    rb.close()


def draw_and_update(rb: Any) -> None:
    """Draw a batch of whole rows; weights are those of the priorities that came with the steps."""
    batch = rb.sample(32, *([1.0] if isinstance(rb, MPPrioritizedReplayBuffer) else []))
    assert torn(batch, N_STEPS) is None
    assert rb.get_stored_size() <= rb.get_buffer_size()
    if isinstance(rb, MPPrioritizedReplayBuffer):
        masses = batch["weights"] * priority_of(batch["t"])
        np.testing.assert_allclose(masses, masses[0], rtol=1e-5)
        rb.update_priorities(batch["indexes"], priority_of(batch["t"]))


def test_sample_takes_the_arguments_of_one_process() -> None:
    """``beta`` second where there are priorities, as in cpprb."""
    rb, one = MPPrioritizedReplayBuffer(10, FIELDS), PrioritizedReplayBuffer(10, FIELDS)
    rb.add(**rows(0, 5))
    one.add(**rows(0, 5))
    assert rb.sample(3, 0.5, fields="id").keys() == one.sample(3, 0.5, fields="id").keys()
    assert len(set(rb.sample(5, replace=False)["id"].tolist())) == 5
    rb.close()
