"""Processes of a shared replay are stopped and killed: no row is torn, and no process waits."""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import shared_rows
from distributions import chi_square_limit
from dying_processes import (
    CASES,
    PLAIN,
    Child,
    act,
    ended,
    learn,
    shared_memory,
    step,
    taken,
    torn,
)
from interruptions import killed_everywhere
from scale import PROCESS_KILLS

from cpprb_like import NotEnoughDataError
from cpprb_like._core import STOPS, stop_at
from cpprb_like.processes import Learner, SharedReplay
from cpprb_like.processes._folder import MENDER, FileLock, is_owned, said_by
from cpprb_like.processes._shards import ShardFiles, mend
from cpprb_like.samplers import Prioritized, Sampler, Uniform

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there is no fork and no SIGKILL")

# Of all cases together; the long form has 1000.
CAPACITY = 60


@pytest.fixture(params=list(CASES))
def options(request: pytest.FixtureRequest) -> dict[str, Any]:
    """What the replay is made with."""
    return CASES[request.param]


@pytest.fixture
def replay(options: dict[str, Any]) -> Iterator[SharedReplay]:
    """A replay of two writers, of which nothing is left afterwards."""
    before = shared_memory()
    with SharedReplay(2 * CAPACITY, **options, writers=2) as made:
        yield made
    assert shared_memory() <= before


def stopping(
    replay: SharedReplay, options: dict[str, Any], place: str, number: int, first: int
) -> Callable[[Child], None]:
    """A job: add so many time steps, and send a signal to itself in the next one."""

    def job(child: Child) -> None:
        actor = replay.actor(0)
        for t in range(first):
            actor.add(**step(options, t))
        child.beat()
        stop_at(place, number)
        if place == "editing":
            actor.update(
                actor.sample(4, indexes=True)["indexes"], mark=np.zeros(4), same=np.zeros(4)
            )
        for t in range(first, first + 20):
            actor.add(**step(options, t))
        child.beat()
        while True:
            time.sleep(1)

    return job


def draw_whole(learner: Learner, options: dict[str, Any], n: int = 60) -> set[int]:
    """Draw many batches; returns the time steps that were drawn."""
    seen: set[int] = set()
    begun = time.monotonic()
    for _ in range(n):
        batch = learner.sample(32)
        assert torn(batch, options) is None
        seen |= set(batch["t"].tolist())
    assert time.monotonic() - begun < 10, "the learner waited"
    return seen


ADDING = sorted(set(STOPS) - {"editing", "rewinding"})


@pytest.mark.once
@pytest.mark.parametrize("place", ADDING)
@pytest.mark.parametrize("first", [7, CAPACITY + 20, CAPACITY + 22])  # the second ends an episode
def test_a_writer_that_is_stopped_within_a_row(
    replay: SharedReplay, options: dict[str, Any], place: str, first: int
) -> None:
    """No process sees the row, or waits for it, and the writer counts as alive; then it goes on."""
    child = Child("writer", stopping(replay, options, place, signal.SIGSTOP, first))
    with ended([child]):
        child.wait_until_stopped()
        learner = replay.learner(seed=0)
        seen = draw_whole(learner, options)
        open_rows = min(2, first % 9) if "Nstep" in options else 0
        assert max(seen) == first - 1 - open_rows
        (member,) = [member for member in replay.members() if member.kind == "actor"]
        assert (member.pid, member.alive) == (child.pid, True)
        with pytest.raises(BlockingIOError, match=f"process {child.pid}"):
            replay.actor(0)
        child.signal(signal.SIGCONT)
        until = time.monotonic() + 20
        while child.beats < 2:
            assert time.monotonic() < until, "it did not go on"
            time.sleep(0.001)
        assert max(draw_whole(learner, options)) > first


@pytest.mark.once
@pytest.mark.parametrize("place", ADDING)
@pytest.mark.parametrize("first", [7, CAPACITY + 22])
def test_a_writer_that_is_killed_within_a_row(
    replay: SharedReplay, options: dict[str, Any], place: str, first: int
) -> None:
    """No process sees the row; the actor that takes the shard over goes on from the one before."""
    child = Child("writer", stopping(replay, options, place, signal.SIGKILL, first))
    with ended([child]):
        assert child.end() == -signal.SIGKILL
    learner = replay.learner(seed=0)
    assert max(draw_whole(learner, options)) < first
    (member,) = [member for member in replay.members() if member.kind == "actor"]
    assert (member.pid, member.alive) == (child.pid, False)
    with replay.actor(0) as actor:
        actor.check()
        assert torn(actor.get_all_transitions(), options) is None
        assert max(draw_whole(learner, options)) == first - 1
        for t in range(first, first + 2 * CAPACITY):
            actor.add(**step(options, t))
            learner.sample(1)
        actor.check()
        assert min(draw_whole(learner, options)) > first


@pytest.mark.once
@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL], ids=["stopped", "killed"])
def test_an_edit_that_is_never_ended(
    replay: SharedReplay, options: dict[str, Any], number: int
) -> None:
    """The rows of other shards are drawn until then; after a takeover, all are, whole."""
    with replay.actor(1) as other:
        for t in range(20):
            other.add(**step(options, t))
    child = Child("writer", stopping(replay, options, "editing", number, 30))
    with ended([child]):
        if number == signal.SIGKILL:
            assert child.end() == -number
        else:
            child.wait_until_stopped()
        learner = replay.learner(seed=0)
        seen = draw_whole(learner, options)
        assert (max(seen) > 20) is (number == signal.SIGKILL)
    actor = taken(replay) if number == signal.SIGKILL else replay.actor(0)
    with actor:
        actor.check()
        assert max(draw_whole(learner, options)) > 20


@pytest.mark.once
def test_an_episode_end_that_is_never_ended(replay: SharedReplay, options: dict[str, Any]) -> None:
    """Of the only writer: the learner sets its shard right, and draws all of its rows."""

    def job(child: Child) -> None:
        actor = replay.actor(0)
        for t in range(30):
            actor.add(**step(options, t))
        stop_at("editing", signal.SIGKILL)
        actor.on_episode_end()

    child = Child("writer", job)
    with ended([child]):
        assert child.end() == -signal.SIGKILL
    learner, other = replay.learner(seed=0), replay.learner(seed=1)
    assert len(learner) == len(other) == 30 * options.get("n_envs", 1)
    assert draw_whole(learner, options) == draw_whole(other, options) == set(range(30))
    assert not any(member.alive for member in replay.members() if member.kind == "actor")
    with taken(replay) as actor:
        actor.check()
        actor.add(**step(options, 30))
        actor.on_episode_end()
        assert max(draw_whole(learner, options)) == 30


@pytest.mark.once
def test_a_writer_that_is_stopped_in_an_edit_is_named(
    replay: SharedReplay, options: dict[str, Any]
) -> None:
    """If there are no other rows: a learner waits for it once. After its death they are drawn."""
    child = Child("writer", stopping(replay, options, "editing", signal.SIGSTOP, 30))
    with ended([child]):
        child.wait_until_stopped()
        learner = replay.learner(seed=0)
        told = rf"writer 0 \(process {child.pid}\).*in the middle of an edit"
        with pytest.raises(NotEnoughDataError, match=told):
            learner.sample(4)
        begun = time.monotonic()
        for _ in range(100):
            with pytest.raises(NotEnoughDataError, match=told):
                learner.sample(4)
        assert time.monotonic() - begun < 20, "the learner waited each time"
        child.kill()
    until = time.monotonic() + 20
    while not len(learner):
        assert time.monotonic() < until, "nobody has set the shard right"
    assert max(draw_whole(learner, options)) > 20


def taking_over(replay: SharedReplay, wait: Callable[[], None]) -> Callable[[Child], None]:
    """A job: take the first shard over, and wait in the middle of that."""

    def job(child: Child) -> None:
        files_of: Any = ShardFiles
        keep = ShardFiles.keep

        def kept(files: ShardFiles, ring: Any) -> None:
            child.beat()
            wait()
            keep(files, ring)

        files_of.keep = kept
        with replay.actor(0):
            child.beat()
            time.sleep(60)

    return job


@pytest.mark.once
def test_a_shard_can_be_drawn_during_its_takeover() -> None:
    """Where the last actor left nothing half-done, learners do not hear of it."""
    with SharedReplay(CAPACITY, **PLAIN, writers=1) as replay:
        learner = replay.learner(seed=0)
        with replay.actor() as actor:
            for t in range(CAPACITY + 22):
                actor.add(**step(PLAIN, t))
        child = Child("writer", taking_over(replay, lambda: os.kill(os.getpid(), signal.SIGSTOP)))
        with ended([child]):
            child.wait_until_stopped()
            for other in (learner, replay.learner(seed=1)):
                assert draw_whole(other, PLAIN) >= set(range(40, CAPACITY + 22))


@pytest.mark.once
def test_a_learner_waits_for_a_shard_that_is_set_right(
    replay: SharedReplay, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not count as empty, although that takes longer than an edit."""
    monkeypatch.setattr(
        "cpprb_like.processes._followed.EDIT_PATIENCE", 20.0
    )  # on a busy machine, too
    child = Child("writer", stopping(replay, options, ADDING[0], signal.SIGKILL, 30))
    with ended([child]):
        assert child.end() == -signal.SIGKILL
    learner = replay.learner(seed=0)
    learner.sample(4)
    child = Child("writer", taking_over(replay, lambda: time.sleep(0.1)))
    with ended([child]):
        child.wait_for_beats(1)
        draw_whole(learner, options)
        child.wait_for_beats(2)


@pytest.mark.once
def test_a_shard_is_edited_as_long_as_it_was_not_followed(
    replay: SharedReplay, options: dict[str, Any]
) -> None:
    """An edit that ends just after it was followed is waited for, or its shard counts as empty."""
    with replay.actor(0) as actor:
        for t in range(30):
            actor.add(**step(options, t))
    learner = replay.learner(seed=0)
    learner.sample(1)
    shards = learner._shards
    shards.group = SimpleNamespace(follow=lambda: [0])  # type: ignore[assignment]
    assert not shards.reader(0).follower.is_busy  # a moment later it has ended
    assert shards._wait_for({0}) == {0}


HELD: dict[str, Any] = {name: shared_rows.FIELDS[name] for name in ("id", "rew", "done")}


def rows(numbers: Any) -> dict[str, Any]:
    """Rows of ``HELD``."""
    found = shared_rows.plain(numbers)
    return {name: found[name] for name in HELD}


@pytest.mark.once
@pytest.mark.parametrize("kind", [Uniform, lambda: Prioritized(1.0, eps=0.0)])
def test_draws_follow_shards_that_die_and_come_back(kind: Callable[[], Sampler]) -> None:
    """Chi-square over all rows that are held: by actors that were killed, and by who took over."""

    def adding(start: int, stop: int) -> Callable[[Child], None]:
        def job(child: Child) -> None:
            actor = taken(shared) if start else shared.actor(0)
            assert actor.number == 0
            actor.add(**rows(shared_rows.ids(0, start, stop)))
            child.beat()
            if start == 0:
                stop_at(ADDING[0], signal.SIGKILL)
                actor.add(**rows(shared_rows.ids(0, stop, stop + 1)))
            time.sleep(60)

        return job

    with SharedReplay(120, HELD, writers=2) as shared, shared.actor(1) as other:
        other.add(**rows(shared_rows.ids(1, 0, 60)))
        learner = shared.learner(kind(), seed=6)
        priorities = {int(one): 1.0 + one % 5 for one in shared_rows.ids(1, 0, 60)}
        if learner.has_priorities:
            batch = learner.sample(60, replace=False)
            learner.update_priorities(
                batch["indexes"], [priorities[one] for one in batch["id"].tolist()]
            )
        for start, stop in ((0, 40), (40, 75)):
            child = Child("writer", adding(start, stop))
            with ended([child]):
                child.wait_for_beats(1)
                if start == 0:
                    assert child.end() == -signal.SIGKILL
                else:
                    child.kill()
            held = [*shared_rows.ids(0, max(0, stop - 60), stop), *shared_rows.ids(1, 0, 60)]
            weights = np.array(
                [priorities.get(int(one), 5.0) if learner.has_priorities else 1.0 for one in held]
            )
            counts: Counter[int] = Counter()
            for _ in range(200):
                counts.update(learner.sample(50)["id"].tolist())
            assert set(counts) == {int(one) for one in held}
            found = np.array([counts[int(one)] for one in held])
            expected = 10_000 * weights / weights.sum()
            assert ((found - expected) ** 2 / expected).sum() < chi_square_limit(len(held) - 1)


def with_priorities() -> Sampler:
    """A sampler whose priorities follow what comes and goes."""
    return Prioritized(0.7)


def update(learner: Learner, batch: dict[str, Any]) -> None:
    """Priorities of a batch, by which rows of low numbers are drawn often."""
    if learner.has_priorities:
        learner.update_priorities(batch["indexes"], 1.0 / (1.0 + batch["t"] % 7))


@pytest.mark.once
@pytest.mark.parametrize("seed", range(3))
def test_kills_at_random_moments(options: dict[str, Any], seed: int) -> None:
    """Writers and learners are killed and started anew: all rows are whole, and no process hangs.

    Some are stopped for a while before, and count as alive.
    """
    chance = random.Random(f"{seed} {sorted(options)}")
    before = shared_memory()
    replay = SharedReplay(4 * CAPACITY, **options, writers=4)  # one more than there are actors
    children: list[Child] = []

    def start(kind: str) -> Child:
        number = chance.randrange(1 << 30)
        if kind == "writer":
            return Child(kind, act(replay, options, number, clears=True))
        sampler = chance.choice([Uniform, with_priorities])
        return Child(kind, learn(replay, options, number, sampler, update=update))

    with replay, ended(children):
        children += [start(kind) for kind in ("writer", "writer", "writer", "learner", "learner")]
        for _ in range(-(-PROCESS_KILLS // (3 * len(CASES)))):
            time.sleep(chance.random() * 0.02)
            for child in children:
                child.must_live()
            place = chance.randrange(len(children))
            child = children[place]
            if chance.random() < 0.3:
                child.wait_for_beat()
                child.signal(signal.SIGSTOP)
                child.wait_until_stopped()
                alive = {member.pid for member in replay.members() if member.alive}
                assert child.pid in alive
                others = [other for other in children if other is not child]
                for other in others:
                    other.wait_for_beat()
            child.kill()
            assert child.pid not in {member.pid for member in replay.members() if member.alive}
            children[place] = start(child.kind)
        for child in children:
            child.wait_for_beat(2)
        for child in children:
            child.kill()
        children.clear()
        late = [(member.updates, member.late_updates) for member in replay.members()]
        assert all(0 <= gone <= given for given, gone in late)
        for number in range(replay.writers):
            with replay.actor(number) as actor:
                actor.check()
                assert torn(actor.get_all_transitions(), options) is None
    assert shared_memory() <= before


@pytest.mark.once
@pytest.mark.parametrize("released", ["while it looks", "before it looks"])
def test_an_actor_waits_for_who_sets_its_shard_right(
    replay: SharedReplay,
    options: dict[str, Any],
    released: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Until then the one that was killed counts as dead, although its lock is held."""
    child = Child("writer", stopping(replay, options, "editing", signal.SIGKILL, 30))
    with ended([child]):
        assert child.end() == -signal.SIGKILL
    path = replay._lock_path(0)
    lock, mender = FileLock(path), FileLock(path.with_name(MENDER))
    assert mender.take()
    assert lock.take()
    assert [one.alive for one in replay.members() if one.pid == child.pid] == [False]

    def release() -> None:
        lock.release()
        mender.release()

    mending = threading.Timer(0.1, release)

    def released_first(path: Path) -> bool:
        release()
        return is_owned(path)

    if released == "while it looks":
        mending.start()
    else:  # after it was found taken, and before it is asked by whom
        monkeypatch.setattr("cpprb_like.processes._replay.is_owned", released_first)
    with replay.actor(0) as actor:
        if mending.is_alive():  # between the release of the file and its note
            mending.join()
        assert not lock.is_held
        actor.check()
    mending.cancel()


@pytest.mark.once
def test_who_sets_a_shard_right_is_never_taken_for_its_writer(
    replay: SharedReplay, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the first moment on, in which the lock was taken and its record not yet written.

    The dead writer counted as alive then. A new explorer of ``MPReplayBuffer`` took further memory.
    """
    child = Child("writer", stopping(replay, options, "editing", signal.SIGKILL, 30))
    with ended([child]):
        assert child.end() == -signal.SIGKILL
    path, seen, real = replay._lock_path(0), [], FileLock._is_file

    def look(lock: FileLock, descriptor: int) -> bool:
        if lock.path == path:
            seen.append([one.alive for one in replay.members() if one.pid == child.pid])
        return real(lock, descriptor)

    monkeypatch.setattr(FileLock, "_is_file", look)
    assert mend(replay._shard(0), 0, replay._options)
    assert seen == [[False]]


@pytest.mark.once
def test_a_place_is_never_without_a_record_of_its_last_owner(tmp_path: Path) -> None:
    """A process that was killed while it took a shard left none, as if the shard were a new one."""

    def call(path: Path) -> Callable[[], Any]:
        return lambda: FileLock(path).take({"pid": 1}, create=True)

    def make(_: int) -> Path:
        path = tmp_path / "writer"
        lock = FileLock(path)
        assert lock.take({"pid": 10**9, "since": 1.0}, create=True)
        lock.release()
        return path

    def look(path: Path) -> None:
        assert said_by(path) in ({"pid": 10**9, "since": 1.0}, {"pid": 1})

    assert killed_everywhere((FileLock._try_once,), make, call, look) > 5
