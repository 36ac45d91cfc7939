"""Rate limiters between processes: they wait for one another, but not for ever nor for the dead."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from children import child, until
from hypothesis import given
from hypothesis import strategies as st
from reference_limiter import ReferenceLimiter

from cpprb_like.errors import RateLimitTimeoutError
from cpprb_like.limiters import Backlog, Bounds, MinSize, RateLimiter, SampleToInsertRatio
from cpprb_like.limiters._counters import Turn
from cpprb_like.limiters._gates import Gate
from cpprb_like.processes import SharedReplay
from cpprb_like.samplers import Prioritized
from cpprb_like.typing import FieldSpec
from cpprb_like.views import NStep

FIELDS: Mapping[str, FieldSpec] = {"x": {"shape": ()}, "obs": {"shape": 3}}
PATIENCE = 30.0

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")


def step(n: int = 1) -> dict[str, Any]:
    """Values of n steps."""
    return {"x": np.arange(n), "obs": np.zeros((n, 3))}


def shared(limiter: RateLimiter | None, *, writers: int = 3, capacity: int = 3000) -> SharedReplay:
    """A replay with a limiter."""
    return SharedReplay(capacity, FIELDS, writers=writers, limiter=limiter)


def announce(gate: Gate, n: int) -> Turn:
    """Begin a call of n items."""
    turn = Turn(gate.counters, gate.line, n)
    assert turn.begin()
    return turn


def die() -> None:
    """As ``kill -9`` of this process."""
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_learner_waits_for_actors_in_other_processes() -> None:
    """Until there are enough rows; the wait is counted where everybody sees it."""
    replay = shared(MinSize(50, timeout=PATIENCE))

    def act() -> None:
        actor = SharedReplay.attach(replay.name).actor()
        until(lambda: replay.stats()["waits_for_inserts"])
        for _ in range(25):
            actor.add(**step())

    with replay, child(act) as one, child(act) as other:
        batch = replay.learner(seed=0).sample(8)
        assert len(batch["x"]) == 8
        assert one.join() == other.join() == 0
        stats = replay.stats()
        assert (stats["inserts"], stats["samples"], stats["rows"]) == (50, 8, 50)
        assert (stats["waits_for_inserts"], stats["waits_for_samples"]) == (1, 0)
        assert 0 < stats["seconds_waiting_for_inserts"] < PATIENCE


def test_the_ratio_holds_between_processes() -> None:
    """With several actors and learners, at every moment that somebody looks."""
    ratio, start, buffer = 4.0, 50, 100.0
    replay = shared(SampleToInsertRatio(ratio, start, buffer, timeout=PATIENCE))

    def act() -> None:
        actor = replay.actor()
        for _ in range(300):
            actor.add(**step())

    def learn() -> None:
        learner = replay.learner(seed=0)
        for _ in range(68):
            learner.sample(16)

    differences = []
    with replay, child(act) as a, child(learn) as b, child(act) as c, child(learn) as d:
        while (stats := replay.stats())["samples"] < 2 * 68 * 16:
            differences.append(stats["inserts"] * ratio - stats["samples"])
            time.sleep(0.0005)
        assert [process.join() for process in (a, b, c, d)] == [0, 0, 0, 0]
        assert stats["inserts"] <= 600
    middle = ratio * start
    assert max(differences) <= middle + buffer + 16  # counts are read one after the other
    assert min(difference for difference in differences[-10:]) >= middle - buffer - 16


@pytest.mark.parametrize("when", ["waits", "adds"])
def test_a_killed_actor_blocks_no_process(when: str) -> None:
    """What it had begun is void: when it waits for its turn, and when it had it."""
    replay = shared(Backlog(4, timeout=PATIENCE))

    def act() -> None:
        actor: Any = replay.actor()
        actor.add(**step(2))
        if when == "adds":
            announce(actor._inserts, 2)
            die()
        actor.add(**step(3))

    with replay, child(act) as victim:
        if when == "waits":
            until(lambda: replay.stats()["waits_for_samples"])
            victim.kill()
        else:
            assert victim.join() == -signal.SIGKILL
        other = replay.actor()
        other.add(**step(2))
        replay.learner(seed=0).sample(4)
        other.add(**step(4))
        assert replay.stats()["inserts"] == 8
        waited = replay.stats()["seconds_waiting_for_samples"]
        time.sleep(0.05)
        assert replay.stats()["seconds_waiting_for_samples"] == waited, "the dead wait no longer"


@pytest.mark.parametrize("when", ["waits", "draws"])
def test_a_killed_learner_blocks_no_process(when: str) -> None:
    """The same on the other side."""
    replay = shared(Backlog(4, timeout=PATIENCE))
    actor, survivor = replay.actor(), replay.learner(seed=0)
    actor.add(**step(4))

    def learn() -> None:
        learner: Any = replay.learner(seed=0)
        learner.sample(1)
        if when == "draws":
            announce(learner._shards.gate, 3)
            die()
        learner.sample(4)

    with replay, child(learn) as victim:
        if when == "waits":
            until(lambda: replay.stats()["waits_for_inserts"])
            victim.kill()
        else:
            assert victim.join() == -signal.SIGKILL
        survivor.sample(3)
        actor.add(**step(3))
        assert replay.stats()["samples"] == 4


def test_a_line_that_is_taken_over_is_void() -> None:
    """No process has to wait to find that its owner had died."""
    replay = shared(Backlog(4, timeout=0.0), writers=1)

    def act() -> None:
        actor: Any = replay.actor()
        announce(actor._inserts, 4)
        die()

    with replay, child(act) as victim:
        assert victim.join() == -signal.SIGKILL
        replay.actor().add(**step(4))


def test_the_error_names_who_is_waited_for() -> None:
    """Whether they live, when they were last heard of, and what is there."""
    replay = shared(MinSize(1000, timeout=0.05))
    learner = replay.learner(seed=0)
    with pytest.raises(RateLimitTimeoutError, match=r"0 of 1000 rows.*\nno actor has come yet"):
        learner.sample(8)

    def act() -> None:
        replay.actor().add(**step(212))
        die()

    with child(act) as victim:
        victim.join()
        with pytest.raises(TimeoutError) as error:
            learner.sample(8)
    assert "212 of 1000 rows" in str(error.value)
    found = str(error.value).splitlines()[1]
    assert found.startswith(f"actor 0, process {victim.pid}, has ended, last added 0.")
    assert found.endswith("s ago, holds 212 rows")
    replay = shared(Backlog(1, timeout=0.05))
    actor, learner = replay.actor(), replay.learner()
    actor.add(**step())
    with pytest.raises(RateLimitTimeoutError) as error:
        actor.add(**step())
    assert f"learner 0, process {os.getpid()}, is there, last drew never" in str(error.value)
    learner.sample(1)


def test_a_process_that_was_stopped_is_not_taken_for_dead() -> None:
    """What it announced counts: it may go on."""
    replay = shared(Backlog(4, timeout=0.1))

    def act() -> None:
        actor: Any = replay.actor()
        turn = announce(actor._inserts, 3)
        os.kill(os.getpid(), signal.SIGSTOP)
        turn.end(1)

    with replay, child(act) as stopped:
        until(lambda: os.waitpid(stopped.pid, os.WUNTRACED | os.WNOHANG)[0])
        actor = replay.actor()
        with pytest.raises(RateLimitTimeoutError, match=r"waited 0\.1"):
            actor.add(**step(2))
        os.kill(stopped.pid, signal.SIGCONT)
        assert stopped.join() == 0
        assert replay.stats()["inserts"] == 3


def test_views_batches_and_vectors_of_environments_count() -> None:
    """Each way to add and to draw passes the limiter."""
    replay = SharedReplay(
        100, {"x": {"shape": ()}}, writers=1, n_envs=2, limiter=Backlog(8, timeout=0.02)
    )
    actor, learner = replay.actor(), replay.learner(seed=0)
    actor.add(x=[1, 2])
    actor.add_where([True, False], x=[3, 4])
    assert replay.stats()["inserts"] == 3
    assert len(next(learner.batches(2))["x"]) == 2
    with pytest.raises(RateLimitTimeoutError):
        learner.sample(2)
    actor.clear()
    assert (replay.stats()["rows"], replay.stats()["inserts"]) == (0, 3)


def test_a_loaded_replay_has_its_limiter(tmp_path: Path) -> None:
    """It begins inside of what it allows, as the counts were those of a moment."""
    replay = shared(SampleToInsertRatio(2, 10, 20, timeout=0.05))
    replay.actor().add(**step(20))
    learner = replay.learner(seed=0)
    learner.sample(40)
    with pytest.raises(RateLimitTimeoutError):
        learner.sample(1)
    replay.save(tmp_path)
    loaded = SharedReplay.load(tmp_path)
    assert loaded.stats()["rows"] == 20
    loaded.learner(seed=0).sample(20)
    loaded.learner(seed=0).sample(20)  # the balance was in the middle, and may have been here
    with pytest.raises(RateLimitTimeoutError):
        loaded.learner(seed=0).sample(1)
    loaded.actor().add(**step(20))


@pytest.mark.parametrize("first", ["add", "sample"])
def test_calls_as_large_as_the_range_go_on_after_a_load(first: str, tmp_path: Path) -> None:
    """The balance began in the middle of the range, where neither side had room for such a call."""
    replay = shared(Backlog(16, timeout=0.05))
    actor, learner = replay.actor(), replay.learner(seed=0)
    for _ in range(3):
        actor.add(**step(16))
        learner.sample(16)
    replay.save(tmp_path, learners={"main": learner})
    loaded = SharedReplay.load(tmp_path)
    again, other = loaded.restore_learner(tmp_path, "main"), loaded.actor()
    if first == "sample":
        again.sample(16)
    for _ in range(3):
        other.add(**step(16))
        with pytest.raises(RateLimitTimeoutError):
            other.add(**step(1))
        again.sample(16)
        with pytest.raises(RateLimitTimeoutError):
            again.sample(1)


def test_what_is_no_limiter_is_refused() -> None:
    """Before anything is made."""
    with pytest.raises(TypeError, match="limiter: expected one of MinSize"):
        shared(RateLimiter())
    with pytest.raises(TypeError, match="limiter: expected one of MinSize"):
        shared(5)  # type: ignore[arg-type]


CALLS = st.tuples(
    st.sampled_from(["add", "sample", "die", "clear"]), st.integers(0, 1), st.integers(1, 9)
)


def twin_of(bounds: Bounds) -> ReferenceLimiter:
    """The slow twin of a limiter."""
    low, high = (Fraction(x) if np.isfinite(x) else None for x in bounds[2:])
    return ReferenceLimiter(Fraction(bounds[0]), int(bounds[1]), low, high)


@given(
    st.sampled_from([MinSize(12, timeout=0.0), Backlog(9, timeout=0.0)])
    | st.builds(
        SampleToInsertRatio, st.sampled_from([0.5, 1.0, 3.0]), st.integers(3, 9),
        st.integers(3, 20), timeout=st.just(0.0),
    ),
    st.lists(CALLS, max_size=40),
)  # fmt: skip
def test_two_actors_and_two_learners_keep_the_formulas(
    limiter: RateLimiter, calls: list[tuple[str, int, int]]
) -> None:
    """Every call is allowed, or not, as the twin says; whatever died in between."""
    twin = twin_of(limiter.bounds)
    with SharedReplay(20, {"x": {"shape": ()}}, writers=2, limiter=limiter) as replay:
        actors: list[Any] = [replay.actor(), replay.actor()]
        learners: list[Any] = [replay.learner(seed=0), replay.learner(seed=0)]
        rows = [0, 0]
        for what, who, n in calls:
            if what == "add":
                if _is_done(twin.can_insert(n), actors[who].add, x=np.zeros(n)):
                    rows[who] = min(10, rows[who] + n)
                    twin.i += n
            elif what == "sample":
                if _is_done(twin.can_sample(n), learners[who].sample, n):
                    twin.s += n
            elif what == "die":
                if twin.can_insert(n):
                    announce(actors[who]._inserts, n)
                actors[who].close()
                actors[who] = replay.actor(who)
            elif what == "clear":
                actors[who].clear()
                rows[who] = 0
            twin.d = twin.i - sum(rows)


def _is_done(allowed: bool, call: Any, *arguments: Any, **options: Any) -> bool:
    """Make a call that is allowed, or not."""
    if allowed:
        call(*arguments, **options)
        return True
    with pytest.raises((RateLimitTimeoutError, ValueError)):
        call(*arguments, **options)
    return False


def test_an_actor_that_is_dropped_gives_its_shard_back() -> None:
    """At once, whether there is a limiter or not: nothing holds it but its caller."""
    for limiter in (None, MinSize(1)):
        with shared(limiter, writers=1) as replay:
            replay.actor().add(**step())
            replay.actor().add(**step())


@pytest.mark.parametrize("limiter", [None, MinSize(1, timeout=60.0)])
def test_the_ends_of_a_parent_are_refused_in_a_forked_child(limiter: RateLimiter | None) -> None:
    """They would draw what the parent draws, and count what it counts."""
    with shared(limiter, writers=1) as replay:
        actor, learner = replay.actor(), replay.learner(Prioritized(), seed=0)
        actor.add(**step(10))
        view = learner.view(NStep(1))

        def use() -> None:
            for call in (
                lambda: actor.add(**step()),
                lambda: learner.sample(4),
                lambda: view.sample(4),
                lambda: learner.update_priorities([0], [1.0]),
            ):
                with pytest.raises(RuntimeError, match="belongs to the parent process"):
                    call()
            assert len(replay.learner(seed=0).sample(4)["x"]) == 4

        with child(use) as other:
            assert other.join() == 0
        assert len(learner.sample(4)["x"]) == 4


def test_a_limiter_that_wants_more_rows_than_there_can_be_is_refused() -> None:
    """No draw would ever come."""
    with pytest.raises(ValueError, match=r"MinSize\(min_size=101.* of a capacity of 100"):
        shared(MinSize(101), capacity=100, writers=2)


def test_who_is_waited_for_while_shards_change_hands() -> None:
    """What a lock says is read once: it is empty while another process takes it."""
    with shared(MinSize(10, timeout=0.0), writers=1) as replay:
        learner = replay.learner(seed=0)
        path = replay._lock_path(0)
        stop = threading.Event()

        def rewrite() -> None:
            while not stop.is_set():
                path.write_bytes(b"")
                path.write_bytes(b'{"pid": 7, "since": 0.0}')

        thread = threading.Thread(target=rewrite)
        thread.start()
        try:
            for _ in range(2000):
                with pytest.raises(RateLimitTimeoutError):
                    learner.sample(1)
        finally:
            stop.set()
            thread.join()
