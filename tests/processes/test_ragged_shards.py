"""Values of any length in a shared replay: rooms, rows that leave early, reads, saves and kills."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dying_processes import (
    FULL,
    FULL_CHAINED,
    LONGEST,
    Child,
    act,
    ended,
    learn,
    shared_memory,
    step,
    torn,
)
from file_map_cases import room_for
from scale import PROCESS_KILLS

from cpprb_like._core import stop_at
from cpprb_like.limiters import MinSize
from cpprb_like.processes import Learner, SharedReplay
from cpprb_like.samplers import Prioritized, Uniform
from cpprb_like.views import Layer, Packed, Sequences
from cpprb_like.views._items_of_batch import ItemPlan

pytestmark = [
    pytest.mark.once,
    pytest.mark.skipif(sys.platform == "win32", reason="there is no fork and no SIGKILL"),
]

CAPACITY = 60
TOKENS: dict[str, Any] = {
    "id": {"shape": (), "dtype": "i8"},
    "ids": {"shape": ("T",), "dtype": "i4"},
}


@pytest.fixture(autouse=True)
def _no_memory_left() -> Iterator[None]:
    """No shared memory is left."""
    before = shared_memory()
    yield
    assert shared_memory() <= before


def full(**options: Any) -> SharedReplay:
    """A replay of two writers whose rows leave early."""
    return SharedReplay(2 * CAPACITY, **(FULL | options), writers=2)


def tokens(room: int, capacity: int = 20, **options: Any) -> SharedReplay:
    """A replay of one writer with tokens."""
    return SharedReplay(capacity, TOKENS, room={"T": room}, writers=1, **options)


def add(actor: Any, first: int, n: int, length: int = 3) -> None:
    """Add rows whose tokens are their number."""
    for number in range(first, first + n):
        actor.add(id=number, ids=np.full(length, number, np.int32))


def drawn(learner: Learner, n: int = 400) -> list[int]:
    """The numbers of rows that are drawn; each row is whole."""
    batch = learner.sample(n)
    wanted = np.where(batch["T_mask"], batch["id"][:, None], 0)
    np.testing.assert_array_equal(wanted, batch["ids"])
    return sorted(set(batch["id"].tolist()))


def test_rooms_are_split_among_the_writers() -> None:
    """Each shard has an equal part, rounded up; a row may have no more items."""
    with SharedReplay(9, TOKENS, room={"T": 10}, writers=3) as replay, replay.actor() as actor:
        add(actor, 0, 1, length=4)
        with pytest.raises(ValueError, match=r"room=\{'T': 4\} items, got 5"):
            add(actor, 1, 1, length=5)
        with replay.actor() as other:
            add(other, 1, 1, length=4)
        assert drawn(replay.learner(seed=0)) == [0, 1]


def test_a_room_that_is_missing() -> None:
    """The error proposes one for all rows of the replay."""
    with pytest.raises(ValueError, match=r"room=\{'T': 9_000\} for 9 rows"):
        SharedReplay(9, TOKENS, writers=3)


def test_rows_leave_early() -> None:
    """A learner follows that: its rows are those of the actor, and the number is counted."""
    with tokens(room=30) as replay, replay.actor() as actor:
        learner = replay.learner(seed=0)
        ranked = replay.learner(Prioritized(), seed=0)
        for first in range(0, 200, 7):
            add(actor, first, 7)
            stays = list(range(max(0, first + 7 - 10), first + 7))
            assert drawn(learner) == drawn(ranked) == stays
            assert len(learner) == len(actor) == len(stays)
        left = actor.stats()["left_for_room"]
        assert left == 203 - 10
        assert learner.stats()["left_for_room"] == replay.stats()["left_for_room"] == left
        assert drawn(replay.learner(seed=0)) == stays
        actor.clear()
        assert len(learner) == 0
        add(actor, 0, 2)
        assert drawn(learner) == drawn(ranked) == [0, 1]
        assert replay.stats()["left_for_room"] == 0


def test_arrays_of_the_caller() -> None:
    """A learner and its views copy a batch that fits, and leave arrays that are too short."""
    with tokens(room=90) as replay, replay.actor() as actor:
        add(actor, 1, 10)
        learner = replay.learner(seed=0)
        out = {"id": np.zeros(8, "i8"), "ids": np.zeros((8, 3), "i4")}
        assert learner.sample(8, out=out, indexes=True) is out
        assert {"T_mask", "indexes"} < set(out)
        assert (out["ids"] == out["id"][:, None]).all()
        out = {"id": np.zeros(8, "i8"), "ids": np.zeros(23, "i4")}
        with pytest.raises(ValueError, match=r"out\['ids'\]: expected shape \(24,\) or more"):
            learner.view(Packed()).sample(8, out=out)
        assert not any(values.any() for values in out.values())


def test_numbers_of_items_are_those_of_the_actors() -> None:
    """Also with rows whose items were moved, which are the oldest then, and after a clear."""
    rng = np.random.default_rng(0)
    with tokens(room=200, capacity=150) as replay, replay.actor() as actor:
        learner = replay.learner(seed=0)
        for number in range(300):
            add(actor, number, 1, int(rng.integers(0, 4)))
            if number % 3 == 0:
                rows = actor.ring.written - rng.integers(1, min(number + 1, 20) + 1, 3)
                given = [np.full(rng.integers(0, 6), row, np.int32) for row in rows]
                actor.update(actor.ring.span + rows, ids=given)
            found = {name: n for name, n in actor.stats().items() if "T" in name or "left" in name}
            assert found.items() <= replay.stats().items()
            assert found.items() <= learner.stats().items()
        assert found["left_for_room"] > 0
        actor.clear()
        assert learner.stats()["items of T"] == replay.stats()["items of T"] == 0
        assert learner.stats()["room of T"] == 200


def test_room_and_items_of_several_shards() -> None:
    """They are summed; a shard without an actor has room, too."""
    with SharedReplay(40, TOKENS, room={"T": 60}, writers=2) as replay, replay.actor() as actor:
        add(actor, 0, 4)
        for found in (replay.stats(), replay.learner(seed=0).stats()):
            assert (found["items of T"], found["room of T"]) == (12, 60)


def test_priorities_of_rows_that_left() -> None:
    """They are late, and change nothing."""
    with tokens(room=30) as replay, replay.actor() as actor:
        add(actor, 0, 10)
        learner = replay.learner(Prioritized(alpha=1.0, eps=0.0), seed=0)
        batch = learner.sample(200)
        add(actor, 10, 8)
        learner.update_priorities(batch["indexes"], np.where(batch["id"] == 9, 1.0, 0.0))
        assert learner.late_updates == int((batch["id"] < 8).sum())
        assert drawn(learner) == [9, *range(10, 18)]


@pytest.mark.parametrize("kind", ["plain", "packed", "sequences"])
def test_rows_that_leave_during_the_read(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """Their items are those of new rows by then: other rows are drawn."""
    put, jobs = ItemPlan.put, iter(range(10))

    def put_later(plan: ItemPlan, *arguments: Any) -> Any:
        for number in [*jobs][:1]:
            add(actor, 100 + 10 * number, 9)
        return put(plan, *arguments)

    with tokens(room=30) as replay, replay.actor() as actor:
        add(actor, 0, 10)
        learner = replay.learner(seed=0)
        layers: list[Layer] = []
        if kind in ("packed", "sequences"):
            layers = [Packed() if kind == "packed" else Sequences(2)]
        monkeypatch.setattr(ItemPlan, "put", put_later)
        batch = learner.view(*layers).sample(64)
        ids = batch["id"].ravel()
        assert set(ids.tolist()) <= {9, *range(100, 109)}
        values = batch["ids"][batch["T_mask"]] if "T_mask" in batch else batch["ids"]
        np.testing.assert_array_equal(values, np.repeat(ids, 3))


def test_a_learner_that_draws_while_an_actor_adds_all_the_time() -> None:
    """It needs few tries, although rows leave with each row that is added."""
    with full() as replay:
        children = [Child("actor", act(replay, FULL, number)) for number in range(2)]
        with ended(children):
            learner = replay.learner(seed=0)
            for child in children:
                child.wait_for_beats(20)
            began = time.monotonic()
            for _ in range(300):
                assert torn(learner.sample(32), FULL) is None
            assert time.monotonic() - began < 20
            for child in children:
                child.must_live()


@pytest.mark.parametrize("signal_number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_writer_that_ends_or_stops_while_rows_leave(signal_number: int) -> None:
    """The rows that stay can be drawn at once, as that is no edit; the next actor has them."""

    def job(child: Child) -> None:
        actor = replay.actor(0)
        add(actor, 0, 10)
        child.beat()
        stop_at("reserved", signal_number)
        add(actor, 10, 5)
        child.beat()
        while True:
            time.sleep(1)

    with tokens(room=30) as replay:
        child = Child("writer", job)
        with ended([child]):
            learner = replay.learner(seed=0)
            if signal_number == signal.SIGSTOP:
                child.wait_until_stopped()
                assert drawn(learner) == list(range(1, 10))
                child.signal(signal.SIGCONT)
                child.wait_for_beats(2)
                assert drawn(learner) == list(range(5, 15))
                child.kill()
            else:
                assert child.end() == -signal.SIGKILL
                assert drawn(learner) == list(range(1, 10))
            with replay.actor() as actor:
                actor.check()
                add(actor, 15, 10)
                actor.check()
                assert drawn(learner) == list(range(15, 25))


@pytest.mark.parametrize("options", [FULL, FULL_CHAINED], ids=["own", "next values"])
def test_kills_at_random_moments_while_rows_leave(options: dict[str, Any]) -> None:
    """No learner draws a torn row or ends, and each actor that follows a killed one goes on."""
    chance = random.Random(0)
    kills, most = 0, -(-PROCESS_KILLS // 4)
    with SharedReplay(2 * CAPACITY, **options, writers=2) as replay:
        numbers = iter(range(10**6))
        actors = [
            Child("actor", act(replay, options, next(numbers), clears=True)) for _ in range(2)
        ]
        learners = [
            Child("learner", learn(replay, options, 0, sampler))
            for sampler in (Uniform, Prioritized)
        ]
        children = actors + learners
        with ended(children):
            while kills < most:
                time.sleep(chance.random() * 0.03)
                place = chance.randrange(4)
                child = children[place]
                child.wait_for_beat()
                child.kill()
                kills += 1
                job = act(replay, options, next(numbers), clears=True)
                if place >= 2:
                    job = learn(replay, options, kills, (Uniform, Prioritized)[place - 2])
                children[place] = Child(child.kind, job)
            for child in children:
                child.wait_for_beat(3)
            for child in children:
                child.kill()
        learner = replay.learner(seed=0)
        assert torn(learner.sample(64), options) is None
        for number in range(2):
            with replay.actor(number) as actor:
                actor.check()
                assert torn(actor.get_all_transitions(), options) is None


def test_saves_while_rows_leave(tmp_path: Path) -> None:
    """Each row of the saved replay is whole; other rooms and writers hold the newest rows."""
    with full() as replay:
        child = Child("actor", act(replay, FULL, 0))
        with ended([child]):
            child.wait_for_beats(20)
            for _ in range(3):
                replay.save(tmp_path, sync=False)
                with SharedReplay.load(tmp_path) as again, again.actor(0) as actor:
                    actor.check()
                    assert torn(actor.get_all_transitions(), FULL) is None
                    assert len(actor) > 10
    room = {"T": 100, "say": 500}
    with SharedReplay.load(tmp_path, capacity=60, room=room) as again, again.actor(0) as actor:
        actor.check()
        rows = actor.get_all_transitions()
        assert torn(rows, FULL) is None
        assert 0 < rows["T_mask"].sum() <= 50
    with SharedReplay.load(tmp_path, writers=3) as again, again.actor(2) as actor:
        actor.add(**step(FULL, 1))
        with pytest.raises(ValueError, match="no axis 'q'"):
            SharedReplay.load(tmp_path, room={"q": 1})


def test_shared_memory_that_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the axis; nothing was added, and a later call succeeds."""
    with tokens(room=10**6, capacity=2000) as replay, replay.actor() as actor:
        add(actor, 0, 3)
        with monkeypatch.context() as patch:
            patch.setattr(os, "posix_fallocate", room_for(0))
            with pytest.raises(MemoryError, match=r"'T'.*enlarge it .*nothing was added"):
                add(actor, 3, 1, length=300_000)
        learner = replay.learner(seed=0)
        assert drawn(learner) == [0, 1, 2]
        add(actor, 3, 1, length=300_000)
        actor.check()
        assert len(learner) == 4


@pytest.mark.parametrize("fields", [TOKENS, {"ids": TOKENS["ids"]}])
def test_a_limiter_counts_rows_and_not_items(fields: dict[str, Any]) -> None:
    """Also where no field has one shape."""
    limiter = MinSize(1)
    options: dict[str, Any] = {"room": {"T": 30}, "writers": 1, "limiter": limiter}
    with SharedReplay(20, fields, **options) as replay, replay.actor() as actor:
        for number in range(5):
            row = {"id": number, "ids": np.full(7, number)}
            actor.add(**{name: row[name] for name in fields})
        block = {"id": [5, 6], "ids": [np.zeros(3), np.zeros(4)]}
        actor.add(**{name: block[name] for name in fields})
        replay.learner(seed=0).sample(3)
        found = replay.stats()
        assert (found["inserts"], found["samples"]) == (7, 3)


def test_the_longest_row_of_a_shard() -> None:
    """It takes the whole room, so the rows before the last one with items leave, and that one."""
    with tokens(room=LONGEST) as replay, replay.actor() as actor:
        learner = replay.learner(seed=0)
        for number in range(0, 10, 2):
            add(actor, number, 1, length=LONGEST)
            assert drawn(learner) == [number - 1, number][number == 0 :]
            add(actor, number + 1, 1, length=0)
            assert drawn(learner) == [number - 1, number, number + 1][number == 0 :]
