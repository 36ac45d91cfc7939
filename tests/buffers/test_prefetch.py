"""Batches that a thread makes ahead: the same ones, no thread left behind, nothing lost."""

from __future__ import annotations

import copy
import gc
import os
import pickle
import subprocess
import sys
import threading
import traceback
import weakref
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from batch_cases import SOURCES, filled, goals, listed
from forked import outcome
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from threads import drawing_ahead, eventually

from cpprb_like import NotEnoughDataError, PrioritizedReplayBuffer, ReplayBuffer
from cpprb_like._machine import prefetch_state
from cpprb_like.buffers import Batches, Mixture, Source
from cpprb_like.samplers import RankBased, Sampler
from cpprb_like.schedules import Linear
from cpprb_like.views import Sequences

SECONDS = 20


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    """Whatever a test does, its threads end."""
    yield
    gc.collect()
    eventually(lambda: not drawing_ahead())


def until_full(batches: Batches[Any]) -> None:
    """Wait until the thread has made all that it was asked for."""
    prefetcher = batches._prefetcher
    assert prefetcher is not None
    work = prefetcher._work
    eventually(lambda: sum(draw.kind is not None for draw in work.draws) == prefetcher._asked)


def of_one_generator() -> Mixture:
    """Buffers and a mixture that share a generator."""
    rng = np.random.default_rng(8)
    sources = {name: filled() for name in "ab"}
    for source in sources.values():
        source.rng = rng
    return Mixture(sources, {"a": Linear(0.2, 0.9, 20), "b": 0.5}, seed=rng)


MORE: dict[str, Callable[[], Source]] = SOURCES | {
    "ranked": lambda: filled(
        PrioritizedReplayBuffer, sampler=RankBased(beta=Linear(0.4, 1.0, 7), check_for_update=True)
    ),
    "of one generator": of_one_generator,
}


COPIES: dict[str, Callable[[Any, Path], Any]] = {
    "pickle": lambda source, _: pickle.loads(pickle.dumps(source)),
    "deepcopy": lambda source, _: copy.deepcopy(source),
    "save": lambda source, folder: (source.save(folder), type(source).load(folder))[1],
    "save_async": lambda source, folder: (
        source.save_async(folder).result(SECONDS),
        type(source).load(folder),
    )[1],
}


# ---- the same batches ------------------------------------------------------------------------


@pytest.mark.once
@pytest.mark.parametrize("ahead", [1, 2, 5])
@pytest.mark.parametrize("name", MORE)
def test_the_same_batches_as_without(name: str, ahead: int) -> None:
    """A thread draws what the learner would have drawn, in the same order."""
    with MORE[name]().batches(4, prefetch=ahead) as batches:
        found = [listed(batch) for batch in islice(batches, 12)]
    assert found == [listed(batch) for batch in islice(MORE[name]().batches(4), 12)]


@pytest.mark.once
@pytest.mark.parametrize(
    "name", [name for name in MORE if "mixture" not in name and " " not in name]
)
@pytest.mark.parametrize("ahead", [1, 3, 50])
def test_the_same_epoch_as_without(name: str, ahead: int) -> None:
    """An epoch ends, and its thread with it."""
    one, other = MORE[name](), MORE[name]()
    epoch = one.epoch(7, prefetch=ahead)
    assert [listed(batch) for batch in epoch] == [listed(batch) for batch in other.epoch(7)]
    assert list(epoch) == []
    assert listed(one.sample(9)) == listed(other.sample(9))


@pytest.mark.parametrize("ahead", [-1, 1.5, None, True], ids=repr)
def test_a_wrong_number_is_refused(ahead: Any) -> None:
    """``prefetch`` is an integer of at least 0."""
    with pytest.raises((TypeError, ValueError), match="prefetch"):
        filled().batches(4, prefetch=ahead)


# ---- saving ----------------------------------------------------------------------------------


@pytest.mark.once
@pytest.mark.parametrize("way", COPIES)
@pytest.mark.parametrize("name", MORE)
def test_a_save_loses_no_batch(name: str, way: str, tmp_path: Path) -> None:
    """What is saved while batches wait goes on with the first that was not handed out."""
    source = MORE[name]()
    with source.batches(4, prefetch=3) as batches:
        for _ in range(5):
            next(batches)
        until_full(batches)
        found = COPIES[way](source, tmp_path)
        expected = [listed(next(batches)) for _ in range(9)]
    assert [listed(batch) for batch in islice(found.batches(4), 9)] == expected


@pytest.mark.parametrize("way", COPIES)
def test_a_save_at_any_time_loses_no_batch(way: str, tmp_path: Path) -> None:
    """The thread may be in the middle of anything when the source is saved."""
    source = MORE["mixture"]()
    plain = [listed(batch) for batch in islice(MORE["mixture"]().batches(4), 60)]
    with source.batches(4, prefetch=2) as batches:
        for step in range(40):
            assert listed(next(batches)) == plain[step]
            if step % 3 == 0:
                found = COPIES[way](source, tmp_path / str(step))
                assert listed(found.sample(4)) == plain[step + 1]


def test_a_save_in_an_epoch_is_that_of_a_program_without_a_thread() -> None:
    """What an epoch has drawn ahead does not count in a copy."""
    one, other = filled(), filled()
    with one.epoch(6, prefetch=3) as epoch:
        plain = other.epoch(6)
        for _ in range(3):
            assert listed(next(epoch)) == listed(next(plain))
        until_full(epoch)
        assert listed(copy.deepcopy(one).sample(9)) == listed(other.sample(9))


def test_a_save_leaves_the_source_alone() -> None:
    """To save reads and does not draw anything again."""
    source = filled(PrioritizedReplayBuffer)
    with source.batches(4, prefetch=3) as batches:
        next(batches)
        until_full(batches)
        before = source.rng.bit_generator.state, source.sampler.draws
        pickle.dumps(source)
        assert (source.rng.bit_generator.state, source.sampler.draws) == before


def test_the_oldest_batch_of_several_iterators_counts() -> None:
    """With several iterators a copy goes on with the first batch that was not handed out."""
    rb = filled()
    view = rb.view(Sequences(3))
    with rb.batches(4, prefetch=2) as one, view.batches(2, prefetch=2) as two:
        next(one)
        until_full(one)
        state = copy.deepcopy(rb).rng.bit_generator.state
        next(two)
        until_full(two)
        assert copy.deepcopy(rb).rng.bit_generator.state == state
        expected = listed(next(one))
        until_full(one)
        fresh = filled()
        fresh.rng.bit_generator.state = state
        assert listed(fresh.sample(4)) == expected


def test_a_draw_in_between_comes_after_the_batches_that_wait() -> None:
    """A draw of one's own takes the numbers after those of the batches that were drawn."""
    one, other = filled(), filled()
    with one.batches(4, prefetch=2) as batches:
        plain = other.batches(4)
        first = [listed(next(plain)) for _ in range(3)]
        assert listed(next(batches)) == first[0]
        until_full(batches)
        assert listed(one.sample(5)) == listed(other.sample(5))
        assert [listed(next(batches)) for _ in range(2)] == first[1:]


@pytest.mark.parametrize("name", MORE)
def test_restoring_gives_up_what_waits(name: str, tmp_path: Path) -> None:
    """After ``restore`` an iterator goes on with batches of the state that came back."""
    source = MORE[name]()
    source.save(tmp_path)
    expected = [listed(batch) for batch in islice(copy.deepcopy(source).batches(4), 6)]
    with source.batches(4, prefetch=3) as batches:
        assert [listed(next(batches)) for _ in range(4)] == expected[:4]
        source.restore(tmp_path)
        assert [listed(next(batches)) for _ in range(6)] == expected


@pytest.mark.parametrize("name", ["plain", "n-step", "of one generator"])
def test_reseeding_gives_up_what_waits(name: str) -> None:
    """The batch after ``reseed`` is the first of the seed, however many were drawn ahead."""
    one, other = MORE[name](), MORE[name]()
    with one.batches(4, prefetch=3) as batches:
        next(batches)
        until_full(batches)
        one.reseed(9)
        ahead = [listed(next(batches))["x"] for _ in range(5)]
    for _ in range(4 if name == "of one generator" else 0):  # the times of its schedule
        other.sample(4)
    other.reseed(9)
    assert ahead == [listed(other.sample(4))["x"] for _ in range(5)]


@pytest.mark.once
@pytest.mark.parametrize("seed", [None, 3])
@pytest.mark.parametrize("ahead", [0, 1, 4, 50])
@pytest.mark.parametrize("name", ["plain", "sequences", "goals"])
def test_reseeding_in_an_epoch_leaves_no_row_out(name: str, ahead: int, seed: int | None) -> None:
    """What waited was thrown away, though an epoch has each row once: the same without a thread."""
    views = {"goals": lambda: goals(0, ZeroDivisionError())[0]}
    make: Callable[[], Source] = (MORE | views)[name]
    one, other = make(), make()
    with one.epoch(7, prefetch=ahead, seed=seed) as epoch:
        plain = other.epoch(7, seed=seed)
        for step in range(4):
            assert listed(next(epoch)) == listed(next(plain))
            if ahead:
                until_full(epoch)
            if step % 2:
                for source in (one, other):
                    source.reseed(step)
                assert listed(copy.deepcopy(one).sample(5)) == listed(
                    copy.deepcopy(other).sample(5)
                )
        assert [listed(batch) for batch in epoch] == [listed(batch) for batch in plain]


def test_restoring_in_an_epoch_ends_it(tmp_path: Path) -> None:
    """As without a thread: the rows that it was of are gone."""
    rb = filled()
    rb.save(tmp_path)
    with rb.epoch(7, prefetch=2) as epoch:
        next(epoch)
        until_full(epoch)
        rb.restore(tmp_path)
        with pytest.raises(RuntimeError, match="made anew"):
            next(epoch)
        assert list(epoch) == []


class Walk(Sampler):
    """Rows one after another, from a place of its own."""

    def __init__(self) -> None:
        self.place = 0

    def draw(self, ring: Any, n: int, rng: Any, *, replace: bool) -> Any:
        slots = (self.place + np.arange(n)) % len(ring)
        self.place += n
        return slots, {}

    def draw_state(self) -> dict[str, Any]:
        return {"place": self.place}


def test_a_sampler_of_the_user_says_what_its_draws_change() -> None:
    """``draw_state`` is what a copy gets from before the batches that wait."""
    rb = filled(sampler=Walk())
    with rb.batches(4, prefetch=3) as batches:
        assert next(batches)["x"].tolist() == [0, 1, 2, 3]
        until_full(batches)
        assert rb.sampler.place == 16
        assert copy.deepcopy(rb).sample(4)["x"].tolist() == [4, 5, 6, 7]


# ---- how late a batch is -----------------------------------------------------------------------


@pytest.mark.parametrize("ahead", [1, 2, 4])
def test_a_batch_lacks_the_updates_of_as_many_batches(ahead: int) -> None:
    """Priorities that are updated reach the batch after those that wait, at the latest."""
    rb = filled(PrioritizedReplayBuffer, check_for_update=True)
    with rb.batches(8, prefetch=ahead) as batches:
        next(batches)
        until_full(batches)
        every = np.arange(len(rb))
        rb.update_priorities(every, np.where(every == 7, 1e6, 0.0))
        late = [set(next(batches)["x"].tolist()) for _ in range(ahead + 3)]
    assert all(len(xs) > 1 for xs in late[:ahead])
    assert all(xs == {7} for xs in late[ahead:])


def test_a_late_update_of_an_overwritten_row_is_dropped() -> None:
    """Handles name the rows that a batch was drawn from, whatever came in their place since."""
    rb = filled(PrioritizedReplayBuffer, check_for_update=True)
    with rb.batches(8, prefetch=2) as batches:
        next(batches)
        until_full(batches)
        rb.add(x=np.arange(100, 150), rew=np.zeros(50), done=np.zeros(50, bool))
        batch = next(batches)
        assert (batch["x"] < 100).all()
        rb.update_priorities(batch["indexes"], np.full(8, 50.0))
        assert rb.get_max_priority() == 1.0


# ---- errors ------------------------------------------------------------------------------------


class Faulty(Walk):
    """Fails in its third draw."""

    def draw(self, ring: Any, n: int, rng: Any, *, replace: bool) -> Any:
        if self.place == 2 * n:
            self.place += n
            raise ZeroDivisionError("the third")
        return super().draw(ring, n, rng, replace=replace)


def test_an_error_of_the_thread_is_raised_by_next() -> None:
    """At its place among the batches, with the traceback of the draw; others follow."""
    with filled(sampler=Faulty()).batches(4, prefetch=3) as batches:
        assert [next(batches)["x"][0] for _ in range(2)] == [0, 4]
        with pytest.raises(ZeroDivisionError, match="the third") as caught:
            next(batches)
        names = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
        assert "draw" in names
        assert next(batches)["x"][0] == 12


def test_an_empty_buffer_is_judged_when_a_batch_is_asked_for() -> None:
    """That there were no rows when a batch was drawn ahead is no error later."""
    rb = filled(n=0)
    with rb.batches(3, prefetch=4) as batches:
        for _ in range(2):
            with pytest.raises(NotEnoughDataError):
                next(batches)
        rb.add(x=7, rew=0, done=False)
        for _ in range(9):
            assert next(batches)["x"].tolist() == [7, 7, 7]


@pytest.mark.parametrize("n", [1, 4])
def test_batches_come_in_order_after_there_were_too_few_rows(n: int) -> None:
    """What was asked for before there were rows comes before what is asked for then."""
    rb, twin = filled(), filled()
    for source in (rb, twin):
        rows = source.get_all_transitions()
        source.clear()
    with rb.batches(4, prefetch=3) as batches:
        for _ in range(n):
            with pytest.raises(NotEnoughDataError):
                next(batches)
            until_full(batches)
        for source in (rb, twin):
            source.add(**rows)
        expected = twin.batches(4)
        for _ in range(6):
            assert listed(next(batches)) == listed(next(expected))
            until_full(batches)
            copies = copy.deepcopy(rb), copy.deepcopy(twin)
            one, two = (listed(source.sample(4)) for source in copies)
            assert one == two


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_breaks_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The iterator raises where it would wait for ever."""
    rb = filled()
    broken: Any = rb.batches(4, prefetch=1)
    work = broken._prefetcher._work

    def put(*result: object) -> None:
        raise SystemExit  # of which a thread says nothing

    monkeypatch.setattr(work, "put", put)
    with pytest.raises(RuntimeError, match="has ended"):
        next(broken)


def test_a_thread_that_could_not_begin_may_begin_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the machine had no more threads, each later ``next`` said that the thread had ended."""

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    one, other = filled().batches(4, prefetch=2), filled().batches(4)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        for _ in range(2):
            with pytest.raises(RuntimeError, match="can't start"):
                next(one)
    assert not prefetch_state.opened
    for _ in range(5):
        assert listed(next(one)) == listed(next(other))
    one.close()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        never = filled().batches(4, prefetch=2)
        with pytest.raises(RuntimeError, match="can't start"):
            next(never)
    never.close()


def test_an_epoch_of_a_cleared_buffer_says_so_and_ends() -> None:
    """As it does without a thread."""
    rb = filled()
    with rb.epoch(4, prefetch=1) as epoch:
        next(epoch)
        until_full(epoch)
        rb.clear()
        with pytest.raises(RuntimeError, match="cleared"):
            next(epoch)
        assert list(epoch) == []


def test_a_function_that_fails_is_raised_by_next() -> None:
    """``to`` runs in the thread; its error comes out where its batch would have."""

    def fail(batch: dict[str, Any]) -> Any:
        raise KeyError("no such column")

    with filled().batches(4, to=fail, prefetch=2) as batches:
        for _ in range(3):
            with pytest.raises(KeyError, match="no such column"):
                next(batches)


# ---- ends --------------------------------------------------------------------------------------


@pytest.mark.parametrize("ahead", [0, 1, 3])
@pytest.mark.parametrize("epoch", [True, False])
def test_threads_may_share_an_iterator(epoch: bool, ahead: int) -> None:
    """With a thread ahead they waited for each other's batches, for ever, or raised ``IndexError``.

    Without one, two of them began the epoch, so that rows came twice.
    """
    rb = ReplayBuffer(3000, {"x": {"shape": (), "dtype": int}}, seed=0)
    rb.add(x=np.arange(3000))
    batches = rb.epoch(2, prefetch=ahead) if epoch else rb.batches(2, prefetch=ahead)
    drawn: list[list[Any]] = [[] for _ in range(4)]
    errors: list[BaseException] = []

    def draw(mine: list[Any]) -> None:
        try:
            mine.extend(batch["x"] for batch in islice(batches, None if epoch else 500))
        except BaseException as error:
            errors.append(error)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    threads = [threading.Thread(target=draw, args=(mine,), daemon=True) for mine in drawn]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()
    finally:
        sys.setswitchinterval(interval)
    assert errors == []
    rows = np.concatenate([rows for mine in drawn for rows in mine])
    if epoch:
        assert sorted(rows.tolist()) == list(range(3000))
    else:
        alone = ReplayBuffer(3000, {"x": {"shape": (), "dtype": int}}, seed=0)
        alone.add(x=np.arange(3000))
        expected = np.concatenate([batch["x"] for batch in islice(alone.batches(2), 2000)])
        assert sorted(rows.tolist()) == sorted(expected.tolist())


@pytest.mark.parametrize("call", ["batches", "epoch"])
def test_the_number_of_batches_that_wait_is_bounded(call: str) -> None:
    """Three million were taken: the memory of the machine went with the first ``next``."""
    rb = ReplayBuffer(10, {"x": {"shape": ()}}, seed=0)
    rb.add(x=1)
    with pytest.raises(ValueError, match=r"^prefetch: expected 0 to 1000 batches, .* got 3000000$"):
        getattr(rb, call)(4, prefetch=3_000_000)
    with getattr(rb, call)(4, prefetch=1000) as batches:
        next(batches)


def test_close_ends_the_thread() -> None:
    """After ``close`` there is no thread and no batch."""
    batches = filled().batches(4, prefetch=3)
    assert drawing_ahead() == []
    next(batches)
    assert len(drawing_ahead()) == 1
    batches.close()
    assert drawing_ahead() == []
    assert list(batches) == []
    batches.close()
    filled().batches(4, prefetch=3).close()


def test_a_forgotten_iterator_ends_its_thread() -> None:
    """A loop that is left early needs no ``close``; the source can be collected then."""
    rb = filled()
    for batch in rb.batches(4, prefetch=3):
        assert len(batch["x"]) == 4
        break
    gc.collect()
    eventually(lambda: not drawing_ahead())
    assert not prefetch_state.opened
    source = weakref.ref(rb)
    del rb, batch
    gc.collect()
    eventually(lambda: gc.collect() >= 0 and source() is None)


def test_an_iterator_keeps_its_source_alive() -> None:
    """The rows are there as long as somebody draws them."""
    batches = filled().batches(4, prefetch=2)
    gc.collect()
    assert len(next(batches)["x"]) == 4
    batches.close()


AT_THE_END = """
import sys, threading
import numpy as np
from cpprb_like import ReplayBuffer
rb = ReplayBuffer(1000, {"image": {"shape": (84, 84, 4), "dtype": "u1"}})
rb.add(image=np.zeros((100, 84, 84, 4), "u1"))
batches = rb.batches(256, prefetch=4)
next(batches)
kept = [rb.epoch(50, prefetch=2) for _ in range(3)]
for one in kept: next(one)
"""


@pytest.mark.parametrize(
    ("last", "code"), [("", 0), ("sys.exit(3)", 3), ("1 / 0", 1), ("raise KeyboardInterrupt", -2)]
)
def test_the_end_of_the_program_waits_for_nothing(last: str, code: int) -> None:
    """However a program ends, threads that draw ahead neither hold it up nor say a word."""
    command = [sys.executable, "-c", AT_THE_END + last]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == code or (code == -2 and done.returncode in (-2, 130, 1))
    expected = {"1 / 0": "ZeroDivisionError", "raise KeyboardInterrupt": "KeyboardInterrupt"}
    lines = done.stderr.strip().splitlines()
    assert "Fatal" not in done.stderr
    assert "thread" not in done.stderr
    assert expected.get(last, "") in done.stderr
    if last not in expected:
        assert lines == []


INTERRUPTED = """
import _thread, signal, threading, time
from cpprb_like import ReplayBuffer
signal.signal(signal.SIGINT, signal.default_int_handler)  # shells have jobs beside them ignore it
rb = ReplayBuffer(10, {"x": {"shape": ()}}, seed=0)
rb.add(x=[1, 2, 3])
def slow(batch):
    time.sleep(0.5)
    return batch["x"].tolist()
with rb.batches(4, to=slow, prefetch=1) as batches:
    threading.Timer(0.1, _thread.interrupt_main).start()
    try:
        next(batches)
    except KeyboardInterrupt:
        print("interrupted")
    found = [next(batches) for _ in range(3)]
other = ReplayBuffer(10, {"x": {"shape": ()}}, seed=0)
other.add(x=[1, 2, 3])
print(found == [other.sample(4)["x"].tolist() for _ in range(3)])
"""


def test_an_interrupt_while_waiting_loses_no_batch() -> None:
    """Ctrl-C comes out of ``next``, and the batch that it waited for comes with the next call."""
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split() == ["interrupted", "True"]


needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")


@needs_fork
def test_a_forked_process_has_no_thread_and_does_not_hang() -> None:
    """There the iterator says so, and its source can be drawn from, saved, and iterated anew."""
    rb = filled()
    batches = rb.batches(4, prefetch=3)
    next(batches)

    def child() -> None:
        with pytest.raises(RuntimeError, match="parent process"):
            next(batches)
        state = rb.rng.bit_generator.state
        assert copy.deepcopy(rb).rng.bit_generator.state == state
        with rb.batches(4, prefetch=2) as anew:
            assert len(next(anew)["x"]) == 4
        batches.close()

    for _ in range(5):
        assert outcome(child) == 0
        next(batches)
    batches.close()


def test_rows_come_and_go_while_batches_are_drawn() -> None:
    """The learner adds, clears and updates beside the thread: batches are of whole rows."""
    rb = PrioritizedReplayBuffer(
        300, {"x": {"shape": 50, "dtype": "i8"}}, seed=0, check_for_update=True
    )
    rb.add(x=np.zeros((10, 50)))
    with rb.batches(64, prefetch=3) as batches:
        for step in range(400):
            batch = next(batches)
            assert (batch["x"] == batch["x"][:, :1]).all()
            rb.update_priorities(batch["indexes"], np.ones(64))
            if step % 50 == 49:
                rb.clear()
            rb.add(x=np.full((7, 50), step))


# ---- anything, in any order --------------------------------------------------------------------


class Interleaved(RuleBasedStateMachine):
    """A source with a thread beside a twin that draws its batches ahead by itself."""

    @initialize(kind=st.sampled_from(["plain", "prioritized", "recency"]), ahead=st.integers(1, 4))
    def start(self, kind: str, ahead: int) -> None:
        self.rb: Any = SOURCES[kind]()
        self.twin: Any = SOURCES[kind]()
        self.ahead = ahead
        self.open()

    def open(self) -> None:
        self.batches = self.rb.batches(4, prefetch=self.ahead)
        self.waiting: list[tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = []

    @rule()
    def next(self) -> None:
        while len(self.waiting) <= self.ahead:  # what the thread does
            before = self.twin.rng.bit_generator.state, self.twin.sampler.draw_state()
            self.waiting.append((*before, self.twin.sample(4)))
        assert listed(next(self.batches)) == listed(self.waiting.pop(0)[-1])
        until_full(self.batches)

    @rule(n=st.integers(1, 30))
    def add(self, n: int) -> None:
        for rb in (self.rb, self.twin):
            rb.add(x=np.arange(n), rew=np.ones(n), done=np.arange(n) % 7 == 6)

    @rule()
    def sample(self) -> None:
        assert listed(self.rb.sample(3)) == listed(self.twin.sample(3))

    @rule(seed=st.integers(0, 99))
    def update(self, seed: int) -> None:
        if self.rb.has_priorities:
            rng = np.random.default_rng(seed)
            indexes, priorities = rng.integers(0, len(self.rb), 9), rng.random(9)
            for rb in (self.rb, self.twin):
                rb.update_priorities(indexes, priorities)

    @rule()
    def close(self) -> None:
        self.batches.close()
        self.open()

    @rule()
    def copy(self) -> None:
        expected = copy.deepcopy(self.twin)
        if self.waiting:
            expected.rng.bit_generator.state, state, _ = self.waiting[0]
            expected.sampler.__dict__.update(state)
        found = pickle.loads(pickle.dumps(self.rb))
        for _ in range(3):
            assert listed(found.sample(4)) == listed(expected.sample(4))

    def teardown(self) -> None:
        if hasattr(self, "batches"):
            self.batches.close()


TestInterleaved = Interleaved.TestCase
TestInterleaved.settings = settings(deadline=None)


def test_a_start_that_was_interrupted_leaves_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that was created and had not begun was taken for none, and a second one drew too."""
    rb = ReplayBuffer(10, {"x": {"shape": ()}}, seed=0)
    rb.add(x=range(10))
    start, may_begin = threading.Thread.start, threading.Event()

    def interrupted(thread: Any) -> None:
        bootstrap = thread._bootstrap
        monkeypatch.setattr(thread, "_bootstrap", lambda: (may_begin.wait(SECONDS), bootstrap()))
        monkeypatch.setattr(thread._started, "wait", lambda: None)
        start(thread)
        raise KeyboardInterrupt

    with rb.batches(4, prefetch=1) as batches:
        monkeypatch.setattr(threading.Thread, "start", interrupted)
        with pytest.raises(KeyboardInterrupt):
            next(batches)
        monkeypatch.setattr(threading.Thread, "start", start)
        expected = copy.deepcopy(rb).sample(4)["x"].tolist()
        assert next(batches)["x"].tolist() == expected
        may_begin.set()
        eventually(lambda: len(drawing_ahead()) == 1)
