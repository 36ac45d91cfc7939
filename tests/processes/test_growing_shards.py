"""Values that a shard keeps aside, beside learners, whatever becomes of the writer."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from dying_processes import Child, ended, shared_memory, taken
from file_map_cases import room_for
from forked import outcome
from scale import PROCESS_KILLS

from cpprb_like._core import stop_at
from cpprb_like.processes import Learner, SharedReplay
from cpprb_like.processes._shards import ShardFiles

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there is no fork and no SIGKILL")

# Of all tests of ``test_deaths``; here a tenth. The long form has 1000.
CAPACITY = 2000
FIELDS: dict[str, Any] = {
    "x": {"shape": 5, "dtype": "i8"},
    "y": {"shape": 3, "dtype": "i8"},
}


@pytest.fixture(autouse=True)
def _no_memory_left() -> Iterator[None]:
    """No shared memory is left."""
    before = shared_memory()
    yield
    assert shared_memory() <= before


def made(capacity: int = CAPACITY, next_of: Any = ("x", "y"), **options: Any) -> SharedReplay:
    """A replay of one writer."""
    return SharedReplay(capacity, FIELDS, writers=1, next_of=list(next_of), **options)


def step(t: int) -> dict[str, Any]:
    """A step that does not follow the one before: its next values are stored apart."""
    x, y = np.full(5, t), np.full(3, t)
    return {"x": x, "next_x": -x - 1, "y": y, "next_y": -y - 2}


def add(actor: Any, first: int, n: int) -> None:
    """Add numbered steps; only the fields that there are."""
    names = actor.fields
    for t in range(first, first + n):
        actor.add(**{name: value for name, value in step(t).items() if name in names})


def whole(batch: dict[str, Any]) -> list[int]:
    """The numbers of rows, each of which is whole."""
    t = batch["x"][:, :1]
    for name, values in {"next_x": -t - 1, "y": t, "next_y": -t - 2}.items():
        assert name not in batch or (batch[name] == values).all(), name
    return sorted(set(t[:, 0].tolist()))


def drawn(learner: Learner, n: int = 200) -> list[int]:
    """The numbers of rows that are drawn."""
    return whole(learner.sample(n))


@pytest.mark.once
@pytest.mark.filterwarnings("ignore:.* do not follow:UserWarning")
@pytest.mark.parametrize("seed", range(3))
def test_kills_at_random_moments(seed: int) -> None:
    """A learner draws beside the writer, learners come, and the next actor has all rows."""
    chance = random.Random(seed)
    for _ in range(-(-PROCESS_KILLS // 30)):

        def write(child: Child) -> None:
            with taken(replay) as actor:
                child.beat()
                add(actor, 0, CAPACITY)
            while True:
                time.sleep(1)

        with made() as replay:
            old = replay.learner(seed=0)
            child = Child("writer", write)
            with ended([child]):
                child.wait_for_beats(1)
                until = time.monotonic() + chance.random() * 0.05
                while time.monotonic() < until:
                    with replay.learner(seed=0) as new:
                        for learner in (old, new):
                            if len(learner):
                                drawn(learner)
                child.kill()
            if len(old):
                drawn(old)
            with taken(replay) as actor:
                actor.check()
                rows = whole(actor.get_all_transitions())
                assert rows == list(range(len(rows)))
                add(actor, len(rows), 10)
            assert drawn(old, 20000)[-1] == len(rows) + 9


def test_a_learner_that_is_many_rounds_behind() -> None:
    """It finds the values of the rows that are there, wherever the writer has put them."""
    with made(8) as replay, replay.actor() as actor:
        learner = replay.learner(seed=0)
        first = 0
        for n in (1, 2, 5, 8, 3, 20, 1, 100, 7, 8, 9, 30, 2, 2, 2):
            add(actor, first, n)
            first += n
            assert drawn(learner) == list(range(max(0, first - 8), first))


def test_a_learner_that_lags_while_the_writer_is_opened_again() -> None:
    """It finds the values behind those that left meanwhile.

    The next writer forgets the keys of rows that left, and the learner waited for one of these.
    """

    def follow(actor: Any, first: int, n: int) -> None:
        for t in range(first, first + n):
            x, y = np.full(5, t), np.full(3, t)
            actor.add(x=x, next_x=x + 1, y=y, next_y=y + 1)

    with made(20) as replay:
        with replay.actor() as actor:
            add(actor, 0, 20)  # places that later values take again, one behind the other
            follow(actor, 20, 30)
            add(actor, 50, 1)
            follow(actor, 51, 2)
            learner = replay.learner(seed=0)
            learner.sample(1)
            add(actor, 53, 2)
            follow(actor, 55, 5)
            add(actor, 60, 1)
            follow(actor, 61, 16)
        with replay.actor() as actor:
            batch = learner.sample(500)
            x = batch["x"][:, 0]
            assert (batch["next_x"][:, 0] == np.where(x == 60, -61, x + 1)).all()
            assert 60 in x


def test_a_shard_that_needs_no_repair_is_not_read_again() -> None:
    """A new writer has learners read all rows again only after a repair."""

    def add_and_die() -> None:
        with replay.actor() as actor:
            stop_at("written", signal.SIGKILL)
            add(actor, 15, 1)

    def changes(first: int) -> int:
        with replay.actor() as actor:
            add(actor, first, 5)
            assert isinstance(actor._files, ShardFiles)
            return int(actor._files.changes[0])

    with made() as replay:
        first = changes(0)
        assert changes(5) == changes(10) == first
        assert outcome(add_and_die) == -signal.SIGKILL
        assert changes(15) > first


@pytest.mark.once
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.filterwarnings("ignore:.* do not follow:UserWarning")
def test_learners_and_writers_that_come_and_go(seed: int) -> None:
    """Learners find values in many runs, after clears and with other actors."""
    chance = random.Random(seed)
    with made(30) as replay:
        learner, late, t, first = replay.learner(seed=0), None, 0, 0
        actor = replay.actor()
        for _ in range(150):
            for _ in range(chance.choice([0, 1, 1, 2, 5, 40])):
                x, y = np.full(5, t), np.full(3, t)
                values = {"x": x, "next_x": x + 1, "y": y, "next_y": y + 1}
                if chance.random() < 0.4:
                    values |= {"next_x": -x - 1, "next_y": -y - 2}
                actor.add(**values)
                t += 1
            if chance.random() < 0.1:
                actor.close()
                actor = replay.actor()
                actor.check()
            elif chance.random() < 0.05:
                actor.clear()
                first = t
            if chance.random() < 0.2:
                late = replay.learner(seed=0)
            known = list(range(max(first, t - 30), t))
            for one in (learner, late):
                if one is not None and known and chance.random() < 0.7:
                    batch = one.sample(200)
                    x, y = batch["x"][:, :1], batch["y"][:, :1]
                    assert set(x[:, 0].tolist()) <= set(known)
                    is_last = x == -batch["next_x"][:, :1] - 1
                    assert (batch["next_x"] == np.where(is_last, -x - 1, x + 1)).all()
                    assert (batch["next_y"] == np.where(is_last, -y - 2, y + 1)).all()
        actor.close()


@pytest.mark.parametrize("first", [1, 2, 3, 10, 50])
def test_a_learner_that_comes_while_rows_are_there(first: int) -> None:
    """It finds the next values of later rows, too.

    Places of a file without a value counted as values of rows before the first one, as long as rows
    were fewer than the capacity. So the learner had no room for others, and read the next row's.
    """
    with made(100) as replay, replay.actor() as actor:
        add(actor, 0, first)
        learner = replay.learner(seed=0)
        for t in range(first, first + 150, 3):
            drawn(learner, 20)
            add(actor, t, 3)
        assert drawn(learner, 2000)[-50:] == list(range(first + 100, first + 150))


@pytest.mark.skipif(not hasattr(os, "posix_fallocate"), reason="memory cannot be reserved here")
@pytest.mark.parametrize("calls", [0, 1])
def test_memory_that_runs_out(monkeypatch: pytest.MonkeyPatch, calls: int) -> None:
    """``add`` says what to do and adds nothing; it goes on when there is room."""
    with made(100) as replay, replay.actor() as actor:
        add(actor, 0, 1)
        learner = replay.learner(seed=0)
        assert drawn(learner) == [0]
        block = [step(t) for t in range(1, 20)]
        values = {name: np.array([one[name] for one in block]) for name in block[0]}
        with monkeypatch.context() as patch:
            patch.setattr(os, "posix_fallocate", room_for(calls))
            with pytest.raises(
                MemoryError,
                match=r"keep aside needs [\d,]+ bytes .*enlarge it .*--shm-size.*nothing was added",
            ):
                actor.add(**values)
            assert whole(actor.get_all_transitions()) == drawn(learner) == [0]
            actor.check()
        actor.add(**values)
        add(actor, 20, 30)
        actor.check()
        assert drawn(learner, 1000)[-30:] == list(range(20, 50))
