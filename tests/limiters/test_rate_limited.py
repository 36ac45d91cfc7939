"""``RateLimited``: threads that add and that draw wait for one another, and not for ever."""

from __future__ import annotations

import copy
import gc
import os
import pickle
import signal
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
from forked import outcome
from interruptions import Cut, cut_everywhere
from scale import LONG
from threads import drawing_ahead

from cpprb_like import Mixture, PrioritizedReplayBuffer, ReplayBuffer, Sequences
from cpprb_like.errors import RateLimitTimeoutError
from cpprb_like.limiters import Backlog, MinSize, RateLimited, RateLimiter, SampleToInsertRatio
from cpprb_like.limiters._counters import Turn
from cpprb_like.processes import SharedReplay
from cpprb_like.typing import FieldSpec

FIELDS: Mapping[str, FieldSpec] = {"x": {"shape": ()}, "obs": {"shape": 3}}
PATIENCE = 20.0


def limited(limiter: RateLimiter, rows: int = 0, size: int = 1000, **options: Any) -> RateLimited:
    """A buffer with a limiter, and with rows that were there before."""
    buffer = ReplayBuffer(size, FIELDS, seed=0, **options)
    if rows:
        buffer.add(x=np.arange(rows), obs=np.zeros((rows, 3)))
    return RateLimited(buffer, limiter)


def step(n: int = 1) -> dict[str, Any]:
    """Values of n steps."""
    return {"x": np.arange(n), "obs": np.zeros((n, 3))}


def beside(job: Any) -> threading.Thread:
    """A thread that does a job."""
    thread = threading.Thread(target=job, daemon=True)
    thread.start()
    return thread


def test_a_draw_waits_until_there_are_enough_rows() -> None:
    """And not longer; the wait is counted."""
    rb = limited(MinSize(10, timeout=PATIENCE))
    batches: list[Any] = []
    learner = beside(lambda: batches.append(rb.sample(4)))
    while rb.stats()["waits_for_inserts"] == 0:
        time.sleep(0.001)
    for _ in range(9):
        rb.add(x=1, obs=[1, 2, 3])
    assert batches == []
    rb.add(x=1, obs=[1, 2, 3])
    learner.join(PATIENCE)
    assert len(batches[0]["x"]) == 4
    stats = rb.stats()
    assert (stats["inserts"], stats["samples"], stats["rows"]) == (10, 4, 10)
    assert (stats["waits_for_inserts"], stats["waits_for_samples"]) == (1, 0)
    assert 0 < stats["seconds_waiting_for_inserts"] < PATIENCE
    assert stats["seconds_waiting_for_samples"] == 0


def test_actors_wait_for_the_learner() -> None:
    """The ratio holds at each moment, with several actors and learners."""
    ratio, start, buffer = 4.0, 50, 100.0
    rb = limited(SampleToInsertRatio(ratio, start, buffer, timeout=PATIENCE))
    differences: list[float] = []

    def act() -> None:
        for _ in range(300):
            rb.add(x=0, obs=[0, 0, 0])

    def learn() -> None:
        for _ in range(68):
            rb.sample(16)
            stats = rb.stats()
            differences.append(stats["inserts"] * ratio - stats["samples"])

    jobs = [beside(act), beside(learn), beside(act), beside(learn)]
    for job in jobs:
        job.join(PATIENCE)
        assert not job.is_alive()
    middle = ratio * start
    assert middle - buffer <= min(differences)
    assert max(differences) <= middle + buffer + 16  # an insert between two reads of the counts
    assert rb.stats()["inserts"] == 600
    assert rb.stats()["samples"] == 2 * 68 * 16


def test_a_queue_lets_through_what_it_holds() -> None:
    """Each row that is inserted lets one item be drawn, and no more."""
    rb = limited(Backlog(8, timeout=0.01))
    rb.add(**step(8))
    with pytest.raises(RateLimitTimeoutError):
        rb.add(**step())
    rb.sample(8)
    with pytest.raises(RateLimitTimeoutError):
        rb.sample(1)
    rb.add(**step())
    rb.sample(1)


def test_the_error_says_for_whom_for_how_long_and_what_is_there() -> None:
    """So that a program that stands still can be understood."""
    rb = limited(MinSize(1000, timeout=0.05))
    with pytest.raises(TimeoutError, match=r"none came so far; 0 of 1000 rows; MinSize"):
        rb.sample(32)
    rb.add(**step(212))
    with pytest.raises(
        RateLimitTimeoutError,
        match=r"^sample of 32: waited 0\.\d s for inserts, of which the last came 0\.\d s ago; "
        r"212 of 1000 rows; MinSize\(min_size=1000, timeout=0\.05\)$",
    ):
        rb.sample(32)
    rb = limited(SampleToInsertRatio(1, 4, 4, timeout=0.05))
    rb.add(**step(8))
    with pytest.raises(
        RateLimitTimeoutError,
        match=r"^add of 1: .* for samples, .* would be 9; allowed is at most 8",
    ):
        rb.add(**step())
    rb.sample(8)
    with pytest.raises(RateLimitTimeoutError, match=r"would be -1; allowed is at least 0"):
        rb.sample(1)


def test_a_batch_that_can_never_be_allowed_is_refused_at_once() -> None:
    """Without a wait: no time would be long enough."""
    rb = limited(SampleToInsertRatio(1, 10, 8, timeout=PATIENCE))
    rb.add(**step(10))
    began = time.monotonic()
    with pytest.raises(ValueError, match=r"sample of 17 items .* can never allow"):
        rb.sample(17)
    with pytest.raises(ValueError, match=r"add of 17 rows .* can never allow"):
        rb.add(**step(17))
    assert time.monotonic() - began < PATIENCE / 2


def test_two_sides_that_wait_are_an_error() -> None:
    """Batches that do not fit the range block both sides; the error names the reason."""
    limiter = SampleToInsertRatio(3, 10, 4, timeout=PATIENCE)  # 26 <= difference <= 34
    rb: Any = limited(limiter)
    rb.add(**step(11))  # 33: three more would be 36
    actor = beside(lambda: rb.add(**step()))
    while rb.stats()["waits_for_samples"] == 0:
        time.sleep(0.001)
    with pytest.raises(RateLimitTimeoutError, match="the other side waits too"):
        rb._gate.wait(Turn(rb._gate.counters, 1, 8), 0.05)  # would be 25
    rb.sample(4)
    actor.join(PATIENCE)
    assert rb.stats()["inserts"] == 12


@pytest.mark.parametrize("again", [pickle.dumps, copy.deepcopy, "save"])
def test_a_restored_limiter_lets_both_sides_go_on(again: Any, tmp_path: Path) -> None:
    """Its counts were those of a moment when one side waited: they would hold it for ever.

    Reverb's issue 118: 100073 inserts * 256 - 25503488 samples is min_diff exactly.
    """
    limiter = SampleToInsertRatio(256, 100, 1024, timeout=0.05)
    rb = limited(limiter)
    rb.add(**step(100))
    for _ in range(4):
        rb.sample(256)
    with pytest.raises(RateLimitTimeoutError):
        rb.sample(256)
    if again == "save":
        rb.save(tmp_path)
        restored = RateLimited.load(tmp_path)
    else:
        restored = pickle.loads(again(rb)) if again is pickle.dumps else again(rb)
    assert restored.limiter == limiter
    assert len(restored) == 100
    restored.sample(256)  # nobody adds any more
    restored.add(**step())
    rb = limited(SampleToInsertRatio(256, 1000, (115_200, 371_200), timeout=0.05), 2000, 5000)
    rb.sample(256)
    rb.add(**step())


@pytest.mark.parametrize("first", ["add", "sample", "small"])
def test_calls_as_large_as_the_range_go_on_after_a_load(first: str, tmp_path: Path) -> None:
    """The balance began in the middle of the range, where neither side had room for such a call."""
    rb = limited(Backlog(64, timeout=0.02))
    for _ in range(3):
        rb.add(**step(64))
        rb.sample(64)
    rb.save(tmp_path)
    rb = RateLimited.load(tmp_path)
    if first == "sample":
        rb.sample(64)
    if first == "small":
        rb.sample(8)
        rb.add(**step(8))
    for _ in range(3):
        rb.add(**step(64))
        with pytest.raises(RateLimitTimeoutError):
            rb.add(**step(1))
        rb.sample(64)
        with pytest.raises(RateLimitTimeoutError):
            rb.sample(1)


def test_an_empty_buffer_allows_no_more_than_its_bounds() -> None:
    """Only a filled buffer has an unknown balance; a new one begins at zero."""
    rb = limited(SampleToInsertRatio(1, 1, (-4, 12), timeout=0.02))
    rb.add(**step(12))
    with pytest.raises(RateLimitTimeoutError):
        rb.add(**step(1))
    rb.clear()
    rb.add(**step(2))
    rb.sample(6)
    with pytest.raises(RateLimitTimeoutError):
        rb.sample(1)


def test_a_ring_that_wraps_deletes_what_it_overwrites() -> None:
    """The rows that are held are at most the capacity; inserts go on counting."""
    rb = limited(MinSize(5), size=8)
    rb.add(**step(20))
    assert rb.stats()["inserts"] == 20
    assert rb.stats()["rows"] == 8


def test_after_a_clear_the_limiter_begins_anew() -> None:
    """Inserts are free until its least size is there, and draws wait for that."""
    rb = limited(SampleToInsertRatio(1, 10, 10, timeout=0.01))
    rb.add(**step(20))
    rb.sample(10)
    rb.clear()
    with pytest.raises(RateLimitTimeoutError, match="0 of 10 rows"):
        rb.sample(1)
    rb.add(**step(20))
    rb.sample(20)


def test_calls_that_fail_do_not_count() -> None:
    """A refused step, and a refused draw, change nothing."""
    rb = limited(Backlog(2, timeout=0.01))
    for wrong in ({"x": 1}, {"x": 1, "obs": [1, 2]}, {"x": [[1, 2]], "obs": 1}):
        with pytest.raises((TypeError, ValueError)):
            rb.add(**wrong)
    rb.add(**step(2))
    with pytest.raises(ValueError, match="distinct"):
        limited(MinSize(1), 1).sample(2, replace=False)
    with pytest.raises(ValueError, match="fields"):
        rb.sample(2, fields="no such field")
    assert rb.stats()["inserts"] == 2
    rb.sample(2)
    assert rb.stats()["samples"] == 2


def test_blocks_and_missing_environments_count_their_steps() -> None:
    """With several environments a call inserts as many rows as it has steps."""
    buffer = ReplayBuffer(100, {"x": {"shape": ()}}, n_envs=3)
    rb = RateLimited(buffer, MinSize(1))
    rb.add(x=[1, 2, 3])
    rb.add(x=[[1, 2, 3], [4, 5, 6]])
    rb.add_where([True, False, True], x=[1, 2, 3])
    assert rb.stats()["inserts"] == 11
    assert rb.stats()["rows"] == len(buffer) == 11
    objects = RateLimited(
        ReplayBuffer(10, {"o": {"shape": (), "dtype": object}}, n_envs=2), MinSize(1)
    )
    objects.add(o=["a", "b"])
    assert objects.stats()["inserts"] == 2


def test_it_is_a_source() -> None:
    """Priorities, views, batches, epochs and mixtures work through it, and count."""
    inner = PrioritizedReplayBuffer(100, {"x": {"shape": ()}}, seed=0)
    rb = RateLimited(inner, MinSize(10, timeout=0.01))
    rb.add(x=np.arange(10), priorities=np.arange(10))
    batch = rb.sample(4, beta=0.5, fields="x")
    rb.update_priorities(batch["indexes"], [20.0] * 4)
    assert inner.get_max_priority() == 20
    assert rb.fields == ("x",)
    assert rb.has_priorities
    assert set(rb.columns) == {"x", "weights", "indexes"}
    assert rb.view(Sequences(2)).sample(3)["x"].shape == (3, 2)
    assert rb.sample(3, fields=iter(["x"]))["x"].shape == (3,)
    with rb.batches(5, prefetch=2) as batches:
        assert len(next(batches)["x"]) == 5
    assert sum(len(batch["x"]) for batch in rb.epoch(3)) == 10
    assert rb.stats()["samples"] >= 12
    rb.on_episode_end()
    mixture = Mixture({"a": rb}, {"a": 1.0}, seed=0)
    assert len(mixture.sample(2)["x"]) == 2
    assert "MinSize" in repr(rb)
    assert bool(rb)


# ---- with batches drawn ahead ------------------------------------------------------------------


def until(holds: Callable[[], Any]) -> None:
    """Wait until something holds."""
    end = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.001)


def of_buffer(limiter: RateLimiter, stack: ExitStack) -> tuple[Any, Any]:
    """A buffer with a limiter, to add to and to draw from."""
    rb = limited(limiter)
    return rb, rb


def of_mixture(limiter: RateLimiter, stack: ExitStack) -> tuple[Any, Any]:
    """The same as a source of a mixture, which draws a number before it waits."""
    rb = limited(limiter)
    return rb, Mixture({"a": rb}, {"a": 1.0}, seed=0)


def of_learner(limiter: RateLimiter, stack: ExitStack) -> tuple[Any, Any]:
    """An actor and a learner of a shared replay."""
    replay = stack.enter_context(SharedReplay(1000, FIELDS, writers=1, limiter=limiter))
    return stack.enter_context(replay.actor()), stack.enter_context(replay.learner(seed=0))


MAKE: Any = {"buffer": of_buffer, "mixture": of_mixture, "learner": of_learner}


def waits(batches: Any) -> bool:
    """Whether its thread has begun to wait for the limiter."""
    work = batches._prefetcher._work
    has_made = any(draw.kind is not None for draw in work.draws)
    return not has_made and work.requests.qsize() < batches._prefetcher._asked


@pytest.mark.once
@pytest.mark.parametrize("timeout", [None, 60.0])
@pytest.mark.parametrize("name", MAKE)
def test_a_thread_that_waits_is_not_waited_for(name: str, timeout: float | None) -> None:
    """``close`` waited for the limiter, for ever; the thread of a lost iterator did, too."""
    with ExitStack() as stack:
        adds, draws = MAKE[name](Backlog(10, timeout=timeout), stack)
        adds.add(**step(2))
        for way in ("close", "forget"):
            batches = draws.batches(2, prefetch=2)
            next(batches)
            until(partial(waits, batches))
            began = time.monotonic()
            if way == "close":
                batches.close()
                assert list(batches) == []
            del batches
            gc.collect()
            until(lambda: not drawing_ahead())
            assert time.monotonic() - began < PATIENCE / 2
            adds.add(**step(2))


@pytest.mark.parametrize("name", MAKE)
def test_seeding_does_not_wait_for_the_limiter(name: str) -> None:
    """The draw that waits is given up: the next batch is the first of the seed."""
    with ExitStack() as stack:
        adds, draws = MAKE[name](Backlog(1000, timeout=60), stack)
        adds.add(**step(8))
        with draws.batches(4, prefetch=3) as batches:
            next(batches)
            next(batches)
            until(lambda: waits(batches))
            began = time.monotonic()
            draws.reseed(7)
            assert time.monotonic() - began < PATIENCE / 2
            adds.add(**step(8))
            found = [next(batches)["x"].tolist() for _ in range(2)]
        twin_adds, twin = MAKE[name](Backlog(1000, timeout=60), stack)
        twin_adds.add(**step(8))
        for _ in range(2):
            twin.sample(4)
        twin.reseed(7)
        twin_adds.add(**step(8))
        assert found == [twin.sample(4)["x"].tolist() for _ in range(2)]


def test_restoring_does_not_wait_for_the_limiter(tmp_path: Path) -> None:
    """It waited for the turn that the draw held."""
    rb = limited(Backlog(10, timeout=60))
    rb.add(**step(2))
    rb.save(tmp_path)
    with rb.batches(2, prefetch=2) as batches:
        next(batches)
        until(lambda: waits(batches))
        began = time.monotonic()
        rb.restore(tmp_path)
        assert time.monotonic() - began < PATIENCE / 2


@pytest.mark.parametrize("name", MAKE)
@pytest.mark.parametrize("timeout", [0.0, 0.05])
def test_a_time_out_is_of_who_waits(name: str, timeout: float) -> None:
    """No wait, no error; and each ``next`` waits as long as the limiter says."""
    with ExitStack() as stack:
        adds, draws = MAKE[name](Backlog(1000, timeout=timeout), stack)
        twin_adds, twin = MAKE[name](Backlog(1000, timeout=timeout), stack)
        for one in (adds, twin_adds):
            one.add(**step(4))
        expected = twin.batches(4)
        with draws.batches(4, prefetch=2) as batches:
            assert next(batches)["x"].tolist() == next(expected)["x"].tolist()
            for _ in range(3):
                time.sleep(0.1)  # so long that a time-out would be over
                for one in (adds, twin_adds):
                    one.add(**step(4))
                work = batches._prefetcher._work
                until(lambda: any(draw.kind is not None for draw in work.draws))  # noqa: B023
                assert next(batches)["x"].tolist() == next(expected)["x"].tolist()
            for _ in range(4):
                began = time.monotonic()
                with pytest.raises(RateLimitTimeoutError):
                    next(batches)
                assert timeout <= time.monotonic() - began < PATIENCE / 2


def test_wrong_parts_are_refused() -> None:
    """With the name of the argument."""
    with pytest.raises(TypeError, match="limiter"):
        limited(1000)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="buffer"):
        RateLimited(object(), MinSize(1))  # type: ignore[arg-type]


def test_a_limiter_that_wants_more_rows_than_there_can_be_is_refused() -> None:
    """No draw would ever come."""
    with pytest.raises(ValueError, match=r"MinSize\(min_size=9.* of a capacity of 8"):
        limited(MinSize(9), size=8)


def at_rest(rb: Any) -> bool:
    """Whether no call is announced, and none waits."""
    return not any(rb._gate.counters.is_busy(line) for line in range(2))


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("call", ["add", "sample"])
def test_calls_that_are_interrupted_leave_nothing_announced(
    call: str, waits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cut at each of their lines, when they are allowed and when they wait.

    An announcement stayed where a call was cut between it and the block that takes it back: all
    others timed out for ever, with an error by which they were allowed.
    """
    made: list[Any] = []

    def make() -> Any:
        rb = limited(Backlog(8, timeout=PATIENCE))
        rb.add(**step(4))
        made[:] = [rb]
        return rb

    def the_other_side(seconds: float) -> None:
        del seconds
        if call == "add":
            made[0].sample(2)
        else:
            made[0].add(**step(2))

    def run(rb: Any) -> None:
        if call == "add":
            rb.add(**step(4 + waits))
        else:
            rb.sample(4 + waits)

    monkeypatch.setattr("cpprb_like.limiters._gates.sleep", the_other_side)
    assert cut_everywhere(make, run, at_rest) > 10


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="there are no such signals here")
def test_signals_leave_nothing_announced() -> None:
    """As above, at any moment that a signal may come; rows are counted however a call ended."""
    rb = limited(Backlog(8, timeout=PATIENCE), size=16)

    turns = 3000 if LONG else 300
    places: list[str] = []
    swallowed: list[str] = []  # by a finalizer or a callback of another library, where errors end

    def handle(_: int, frame: FrameType | None) -> None:
        places[:] = traceback.format_stack(frame)
        raise Cut

    def run_until_cut() -> None:  # CPython 3.13 leaves the jump of a loop out of the ``with`` block
        until = time.monotonic() + 1.0
        while time.monotonic() < until:
            rb.add(**step(2))
            rb.sample(2)

    before = signal.signal(signal.SIGALRM, handle)
    gc.disable()  # Hypothesis has a callback there, in which an error is ignored
    try:
        for turn in range(turns):
            with suppress(Cut):
                places.clear()
                signal.setitimer(signal.ITIMER_REAL, 1e-5 * (1 + turn % 30))
                run_until_cut()
                swallowed.append("".join(places) or "no signal came")
            signal.setitimer(signal.ITIMER_REAL, 0)
            assert at_rest(rb), f"after interrupt {turn}"
            stats = rb.stats()
            assert stats["rows"] == len(rb)
            rb._gate.counters.set_base(4, 0)  # the interrupt may have come between the two
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        gc.enable()
    assert len(swallowed) <= turns // 100, swallowed


def test_a_large_batch_does_not_starve_beside_small_ones() -> None:
    """It is drawn as soon as it has waited for its share; the small ones go on afterwards.

    Each small batch took at once what had been inserted, so a large one never found enough.
    """
    rb = limited(SampleToInsertRatio(1, 8, (0, 200), timeout=PATIENCE))
    stop = threading.Event()
    large: list[int] = []

    def draw(n: int, found: list[int]) -> None:
        while not stop.is_set():
            with suppress(RateLimitTimeoutError):
                rb.sample(n)
                found.append(n)

    small: list[int] = []
    threads = [beside(lambda: draw(4, small)) for _ in range(2)]
    threads.append(beside(lambda: draw(64, large)))
    added = 0
    while len(large) < 5:
        rb.add(**step(4))
        added += 4
        assert added < 10_000, "the large batch starves"
    stop.set()
    assert small
    rb.limiter = MinSize(1)
    while any(thread.is_alive() for thread in threads):
        rb.add(**step(4))
        time.sleep(0.001)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_in_a_forked_child_calls_of_other_threads_are_not_at_work() -> None:
    """What another thread had announced, or waited for, stayed in the child for ever."""
    rb = limited(Backlog(4, timeout=PATIENCE))
    thread = beside(lambda: rb.sample(4))
    while rb.stats()["waits_for_inserts"] == 0:
        time.sleep(0.001)

    def child() -> None:
        assert at_rest(rb)
        rb.add(**step(4))
        rb.sample(4)

    assert outcome(child) == 0
    rb.add(**step(4))
    thread.join()
