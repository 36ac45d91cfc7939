"""Signal handlers and finalizers in the middle of a call: nothing is lost, no thread waits."""

from __future__ import annotations

import copy
import gc
import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from forked import outcome
from scale import repeats
from views import sample_sequences

from cpprb_like import NotEnoughDataError, PrioritizedReplayBuffer, ReplayBuffer
from cpprb_like._rows.episode_index import EpisodeIndex
from cpprb_like.samplers import Prioritized, RankBased
from cpprb_like.samplers._starts import FUTURE, Starts, choose, choose_rows
from cpprb_like.samplers._uniform_draws import draw_uniform

pytestmark = [
    pytest.mark.skipif(
        sys.gettrace() is not None, reason="a tracer of Python's lines takes signals, and allocates"
    ),
    pytest.mark.skipif(
        not hasattr(signal, "setitimer"), reason="there are no timers that interrupt here"
    ),
]

FIELDS: dict[str, Any] = {"x": {"shape": (), "dtype": "i8"}, "r": {"shape": ()}, "done": {}}
ROUNDS = repeats(20_000, 8_000)
KINDS = ["uniform", "prioritized", "ranks"]
ROUNDS_OF = {"ranks": ROUNDS // 4}  # whose draws take ten times as long


def buffer_of(kind: str) -> ReplayBuffer:
    """A buffer of three-step rows, some of whose episodes are open."""
    samplers: dict[str, Any] = {
        "prioritized": Prioritized(1.0),
        "ranks": RankBased(1.0),
    }
    cls = ReplayBuffer if kind == "uniform" else PrioritizedReplayBuffer
    options: dict[str, Any] = {"Nstep": {"size": 3, "rew": "r", "next": "x"}, "seed": 0}
    rb = cls(200, FIELDS, sampler=samplers.get(kind), **options)
    fill(rb, 300)
    return rb


def fill(rb: ReplayBuffer, n: int) -> None:
    """Add n steps, of episodes of nine."""
    x = np.arange(n)
    rb.add(x=x, r=x, done=x % 9 == 8)


def work(rb: ReplayBuffer, k: int) -> None:
    """A call of each kind."""
    fill(rb, 4 + k % 4)
    batch = rb.sample(20)
    if isinstance(rb, PrioritizedReplayBuffer):
        rb.update_priorities(batch["indexes"], 1.0 + batch["x"] % 5)
    if k % 50 == 0:
        rb.clear()
        fill(rb, 30)


def on_timer(seconds: float, handler: Callable[[int, Any], Any]) -> None:
    """Have a handler called whenever so much processor time is over."""
    signal.signal(signal.SIGVTALRM, handler)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds, seconds)


def assert_whole(rb: ReplayBuffer) -> None:
    """Every row can be drawn, and a copy that starts from what is saved draws the same."""
    rb.check()
    rb.sample(len(rb), replace=False)
    twin = copy.deepcopy(rb)
    expected, found = rb.sample(50), twin.sample(50)
    for name, values in expected.items():
        np.testing.assert_array_equal(values, found[name])


@pytest.mark.parametrize("kind", KINDS)
def test_interrupted_calls_leave_nothing_half_done(kind: str) -> None:
    """After each of many interrupts all rows can be drawn, by the priorities that they had or got.

    A draw by rank that was interrupted had lost its rows for good: it held 0 of them.
    """

    def job() -> None:
        rb = buffer_of(kind)
        interrupts, checked, is_inside = 0, 0, False

        def interrupt(*_: object) -> None:
            nonlocal interrupts, is_inside
            if is_inside:
                is_inside = False
                interrupts += 1
                raise KeyboardInterrupt

        on_timer(0.001, interrupt)
        k = 0
        while k < ROUNDS or interrupts <= 10:  # a tick of processor time may be long
            k += 1
            with suppress(KeyboardInterrupt):
                is_inside = True
                work(rb, k)
                is_inside = False
            if interrupts > checked and len(rb):
                checked = interrupts
                rb.sample(len(rb), replace=False)
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        fill(rb, 30)
        assert_whole(rb)

    assert outcome(job) == 0


@pytest.mark.parametrize("kind", KINDS)
def test_signal_handlers_may_call_the_buffer(kind: str) -> None:
    """A handler runs between two steps of Python, wherever its thread is: it need not wait.

    A draw by rank waited for a lock that its own thread held.
    """

    def job() -> None:
        rb = buffer_of(kind)
        if isinstance(rb, PrioritizedReplayBuffer):
            rb.update_priorities([0, 1], [2.0, 3.0])  # imports numpy.ma now, not in the handler
        calls = []

        def handler(*_: object) -> None:
            calls.append(len(rb.sample(10)["x"]))
            if isinstance(rb, PrioritizedReplayBuffer):
                rb.update_priorities([0, 1], [2.0, 3.0])

        on_timer(0.001, handler)
        k = 0
        while k < ROUNDS_OF.get(kind, ROUNDS) or len(calls) <= 10:  # see above
            k += 1
            if k % 50:
                work(rb, k)
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        assert_whole(rb)

    assert outcome(job) == 0


class Dies:
    """Calls a buffer when the garbage collector finds it."""

    def __init__(self, rb: ReplayBuffer, calls: list[int]) -> None:
        self.rb, self.calls, self.itself = rb, calls, self

    def __del__(self) -> None:
        try:
            self.calls.append(len(self.rb.sample(5)["x"]))
            fill(self.rb, 1)
            if isinstance(self.rb, PrioritizedReplayBuffer):
                self.rb.update_priorities([0, 1], [2.0, 3.0])
        except NotEnoughDataError:
            pass  # it was being cleared


@pytest.mark.parametrize("kind", KINDS)
def test_finalizers_may_call_the_buffer(kind: str) -> None:
    """The garbage collector may run whenever something is allocated, also within a call."""

    def job() -> None:
        rb = buffer_of(kind)
        calls: list[int] = []
        gc.set_threshold(1, 1, 1)
        for k in range(ROUNDS // 3):
            Dies(rb, calls)
            work(rb, k)
        gc.set_threshold(700, 10, 10)
        gc.collect()
        assert len(calls) > 100
        assert_whole(rb)

    assert outcome(job) == 0


class Watched:
    """A bit generator, and its lock: a real one, which allocates nothing when it is let go."""

    def __init__(self) -> None:
        self.bit_generator = self
        self.lock = threading.Lock()
        self.generator = np.random.PCG64(0)
        self.capsule = self.generator.capsule


def half_absent() -> ReplayBuffer:
    """A buffer of two environments, one of which never has a step."""
    rb = ReplayBuffer(40, FIELDS, n_envs=2, seed=0)
    for k in range(30):
        rb.add_where([True, False], x=[k, k], r=[0, 0], done=[0, 0])
    return rb


@pytest.mark.skipif(
    os.environ.get("COVERAGE_CORE") == "sysmon",
    reason="what counts lines allocates wherever it does",
)
def test_nothing_is_allocated_or_raised_while_a_generator_is_locked() -> None:
    """The garbage collector may run wherever an error is made, and with it a finalizer that draws.

    It waited for the lock that its own thread held. (From CPython 3.12 on it runs elsewhere.)
    """
    rng: Any = Watched()
    full, empty = buffer_of("uniform").ring, ReplayBuffer(10, FIELDS).ring
    absent = half_absent()
    starts = Starts(EpisodeIndex(full), rows=5, least=1, across=False, stride=1)
    rare = Starts(EpisodeIndex(full), rows=50, least=50, across=False, stride=1)
    rows = full.present_slots()
    calls: list[Callable[[], object]] = [
        lambda: draw_uniform(full, 20, rng, True),
        lambda: draw_uniform(full, 20, rng, False),
        lambda: draw_uniform(full, 20, rng, True, 30),
        lambda: draw_uniform(absent.ring, 9, rng, False),
        lambda: draw_uniform(absent.ring, 9, rng, True, 12),
        lambda: draw_uniform(empty, 1, rng, True),
        lambda: draw_uniform(full, 1000, rng, False),
        lambda: draw_uniform(full, 10, rng, True, 0),
        lambda: choose(10, 5, rng),
        lambda: starts.draw(10, rng),
        lambda: rare.draw(10, rng),
        lambda: choose_rows(EpisodeIndex(full), rows, rng, FUTURE),
    ]
    held: list[bool] = []

    def look(phase: str, _: object) -> None:
        held.append(rng.lock.locked() and phase == "start")

    gc.callbacks.append(look)
    try:
        gc.set_threshold(1, 1, 1)
        errors = 0
        for call in calls:
            try:
                call()
            except (NotEnoughDataError, ValueError):
                errors += 1
            assert not rng.lock.locked()
    finally:
        gc.set_threshold(700, 10, 10)
        gc.callbacks.remove(look)
    assert errors == 4
    assert held
    assert not any(held)


@pytest.mark.parametrize("make", [Prioritized, RankBased])
@pytest.mark.parametrize("waiting", [0.0, 1e9])
def test_sequences_are_found_beside_rows_that_wait(make: Any, waiting: float) -> None:
    """With ``Nstep`` a sequence starts at any row that can be drawn, however few there are.

    Draws by rank gave up, and named rows whose n-step windows are incomplete.
    """
    x = np.arange(2000)
    pairs = {"x": np.repeat(x, 2), "r": np.ones(4000), "done": np.zeros(4000)}
    pairs["done"][3998] = 1.0
    rb = PrioritizedReplayBuffer(
        4000, FIELDS, sampler=make(1.0), Nstep={"size": 9, "rew": "r"}, n_envs=2, seed=0
    )
    for k in range(0, 4000, 2):
        rb.add(**{name: values[k : k + 2] for name, values in pairs.items()})
    rb.update_priorities(range(4000), np.where(pairs["x"] % 1995 == 0, 1e-6, 1.0))
    rb.update_priorities(range(3990, 4000), np.full(10, waiting))
    for n in (1, 30):
        batch = sample_sequences(rb, n, 3, burn_in=2, stride=1995)
        assert set(batch["x"][:, 0].tolist()) <= {0, 1995}
