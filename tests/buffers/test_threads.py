"""Threads that do nothing else: no torn row, no half-visible call, no crash."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from scale import LONG
from strategies import Array
from threads import run_together

from cpprb_like import NotEnoughDataError, PrioritizedReplayBuffer, ReplayBuffer
from cpprb_like.samplers import Prioritized, RankBased

pytestmark = pytest.mark.usefixtures("switch_often")
RUNS = 51 if LONG else 3  # of threads that delete
LARGE = 120_000  # bytes of the large field
SCHEMA: dict[str, Any] = {
    "small": {"shape": (), "dtype": "i8"},
    "copies": {"shape": 12, "dtype": "i8"},
    "large": {"shape": LARGE, "dtype": "u1"},
    "object": {"shape": (), "dtype": "O"},
    "again": {"shape": 1, "dtype": "f8"},
}


def rows(first: int, n: int) -> dict[str, Any]:
    """Rows number ``first`` to ``first + n - 1``; each field says which row it belongs to."""
    numbers = np.arange(first, first + n)
    return {
        "small": numbers,
        "copies": np.repeat(numbers[:, None], 12, axis=1),
        "large": np.repeat((numbers % 251).astype("u1")[:, None], LARGE, axis=1),
        "object": np.array([int(number) for number in numbers], object),
        "again": numbers[:, None].astype("f8"),
    }


def check_rows(batch: dict[str, Array]) -> None:
    """Every field of every row of the batch belongs to the same row."""
    numbers = batch["small"]
    assert (batch["copies"] == numbers[:, None]).all(), "a torn row of a small field"
    assert (batch["again"][:, 0] == numbers).all(), "a torn row among small fields"
    assert batch["object"].tolist() == numbers.tolist(), "a torn row of objects"
    expected = (numbers % 251).astype("u1")[:, None]
    assert (batch["large"] == expected).all(), "a torn row of a large field"


class Writer:
    """Adds numbered rows, ``n`` at a time."""

    def __init__(self, rb: ReplayBuffer, n: int, first: int = 0) -> None:
        self.rb, self.n, self.number = rb, n, first
        self.prepared = [rows(first + i * n, n) for i in range(4)]

    def __call__(self) -> None:
        self.rb.add(**self.prepared[self.number % 4])
        self.number += 1


@pytest.mark.parametrize("n", [1, 5])
def test_readers_never_see_a_torn_row(n: int) -> None:
    """Batches of one writer's small ring, overwritten all the time, consist of whole rows."""
    rb = ReplayBuffer(8, SCHEMA, seed=1)
    rb.add(**rows(0, 8))
    out = {name: np.empty_like(value) for name, value in rb.sample(16).items()}
    run_together(
        Writer(rb, n),
        lambda: check_rows(rb.sample(16)),
        lambda: check_rows(rb.sample(5, replace=False)),
        lambda: check_rows(rb.sample(16, out=out)),
    )


def test_other_readings_see_whole_rows_too() -> None:
    """Indexing, ``get_all_transitions``, ``_encode_sample`` and iteration hold the same promise."""
    rb = ReplayBuffer(6, SCHEMA, seed=1)
    rb.add(**rows(0, 6))
    run_together(
        Writer(rb, 2),
        lambda: check_rows(rb.get_all_transitions(shuffle=True)),
        lambda: check_rows(rb._encode_sample([0, 5, 3])),
        lambda: check_rows(rb[1:4]),
        lambda: list(map(check_rows, rb.epoch(3))),
    )


def test_a_call_of_add_is_seen_whole_or_not_at_all() -> None:
    """While each call replaces all five rows, every reading shows the rows of one call."""
    rb = ReplayBuffer(
        5, {"x": {"shape": (), "dtype": "i8"}, "big": {"shape": 30_000, "dtype": "i8"}}, seed=1
    )
    calls = [{"x": np.full(5, i), "big": np.full((5, 30_000), i)} for i in range(4)]
    turn = iter(range(10**9))

    def write() -> None:
        rb.add(**calls[next(turn) % 4])

    def read() -> None:
        batch = (
            rb.sample(5, replace=False) if np.random.random() < 0.5 else rb.get_all_transitions()
        )
        first = batch["x"][0]
        assert (batch["x"] == first).all()
        assert (batch["big"] == first).all()

    write()
    run_together(write, read, read)


def test_readers_beside_clears_and_several_writers() -> None:
    """Beside clears and writers, readers get whole rows or the error of an empty buffer."""
    rb = ReplayBuffer(8, SCHEMA, seed=1)

    def read() -> None:
        try:
            check_rows(rb.sample(10))
        except NotEnoughDataError:
            time.sleep(0)

    def clear() -> None:
        rb.clear()
        time.sleep(0.002)

    run_together(Writer(rb, 1), Writer(rb, 3, 1000), clear, read, read)


def test_rows_of_several_writers_are_all_there() -> None:
    """Each writer's rows are all stored, once and in their order."""
    rb = ReplayBuffer(
        4000, {"who": {"shape": (), "dtype": "i8"}, "what": {"shape": 3, "dtype": "f8"}}
    )
    slots: list[list[int]] = [[], [], []]

    def write(who: int) -> None:
        for i in range(1000):
            slot = rb.add(who=who, what=[i, i, i])
            assert slot is not None
            slots[who].append(slot)

    threads = [threading.Thread(target=write, args=(who,)) for who in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(rb) == 3000
    stored = rb.get_all_transitions()
    for who in range(3):
        mine = stored["what"][stored["who"] == who]
        np.testing.assert_array_equal(mine[:, 0], np.arange(1000))
        np.testing.assert_array_equal(stored["who"][slots[who]], who)
    assert sorted(sum(slots, [])) == list(range(3000))


def test_lists_and_casts_in_threads() -> None:
    """Values that take the slow way are as whole as the others, and so are refused ones."""
    rb = ReplayBuffer(
        20, {"a": {"shape": 3, "dtype": "f4"}, "b": {"shape": (), "dtype": "i2"}}, seed=0
    )
    rb.add(a=[0, 0, 0], b=0)

    def write(i: int) -> Callable[[], object]:
        return lambda: rb.add(a=[i, i, i], b=float(i))

    def fail() -> None:
        with pytest.raises(ValueError, match="'b'"):
            rb.add(a=[9, 9, 9], b=1e9)

    def read() -> None:
        batch = rb.sample(30)
        assert (batch["a"] == batch["b"][:, None]).all()
        assert (batch["b"] != 9).all()

    run_together(write(1), write(2), fail, read, seconds=0.5)


def test_a_writer_is_not_starved_by_readers() -> None:
    """Readers of large batches leave a writer its turn, and get batches themselves."""
    rb = ReplayBuffer(4, {"x": {"shape": 500_000, "dtype": "u1"}}, seed=1)
    step = np.ones(500_000, "u1")
    rb.add(x=np.ones((4, 500_000)))
    run_together(lambda: rb.add(x=step), lambda: rb.sample(16), seconds=0.5)


SAMPLERS: dict[str, Callable[[], Any]] = {
    "prioritized": lambda: Prioritized(1.0, eps=0.0, check_for_update=True),
    "ranks": lambda: RankBased(1.0, check_for_update=True),
}


class Deleting:
    """Episodes of numbered rows, which threads add, delete, draw and update.

    A batch has no row that was deleted before it was asked for.
    """

    def __init__(self, kind: str, nstep: int, n_envs: int, seed: int) -> None:
        fields: dict[str, Any] = {"x": {"shape": (), "dtype": "i8"}, "r": {}, "done": {}}
        options: dict[str, Any] = {"n_envs": n_envs, "sampler": SAMPLERS[kind](), "seed": seed}
        if nstep > 1:
            options["Nstep"] = {"size": nstep, "rew": "r", "next": "x"}
        self.rb = PrioritizedReplayBuffer(400 * n_envs, fields, **options)
        self.n_envs, self.number = n_envs, 0
        self.rng = np.random.default_rng(seed)
        self.deleted: set[int] = set()

    def add(self) -> None:
        """An episode of each environment."""
        steps = int(self.rng.integers(1, 9))
        x = self.number + np.arange(steps * self.n_envs)
        self.number += len(x)
        done = np.arange(steps) == steps - 1
        fields = {"x": x, "r": x * 0.0, "done": np.repeat(done, self.n_envs)}
        if self.n_envs > 1:
            fields = {name: value.reshape(steps, -1) for name, value in fields.items()}
        self.rb.add(**fields)

    def delete(self) -> None:
        """One episode: that of this number now, if another thread has overwritten some."""
        episodes = self.rb.episodes
        number = int(self.rng.integers(max(len(episodes), 1)))
        with suppress(IndexError, ValueError):
            found = set(episodes.read(number)["x"].tolist())
            before = set(self.rb.get_all_transitions()["x"].tolist())
            episodes.delete(number)
            after = set(self.rb.get_all_transitions()["x"].tolist())
            self.deleted |= found & (before - after)

    def learn(self) -> None:
        """Draw a batch, and set its priorities."""
        gone = self.deleted.copy()
        with suppress(NotEnoughDataError):
            batch = self.rb.sample(40)
            assert gone.isdisjoint(batch["x"].tolist()), "a row that was deleted before was drawn"
            with suppress(IndexError):  # a row that was deleted since
                self.rb.update_priorities(batch["indexes"], 1.0 + batch["x"] % 7)


@pytest.mark.once
@pytest.mark.parametrize("n_envs", [1, 3])
@pytest.mark.parametrize("nstep", [1, 3])
@pytest.mark.parametrize("kind", SAMPLERS)
def test_deleted_rows_are_never_drawn_again(kind: str, nstep: int, n_envs: int) -> None:
    """An update that came while an episode was deleted gave its rows their weights back for good.

    The sampler had set them to 0 before the rows were hidden, and Python code ran in between.
    """
    for seed in range(RUNS):
        one = Deleting(kind, nstep, n_envs, seed)
        run_together(one.add, one.delete, one.learn, one.learn, seconds=0.15)
        one.rb.check()
        weights = one.rb.sampler.row_weights(np.arange(one.rb.ring.stored))
        assert weights is not None
        drawable = np.zeros(len(weights), bool)
        drawable[one.rb.ring.present_slots()] = True
        assert (weights[~drawable] == 0.0).all()
        assert (weights[drawable] > 0.0).all()
        assert one.deleted


@pytest.mark.parametrize("make", [Prioritized, RankBased], ids=lambda make: make.__name__)
def test_a_check_beside_updates_of_priorities_finds_nothing(make: Any) -> None:
    """Sums and groups are of one moment, although ``update_priorities`` does not wait for a check.

    One in 40 checks of a sound buffer failed.
    """
    rb = PrioritizedReplayBuffer(200, {"x": {"shape": ()}}, sampler=make(), seed=0)
    rb.add(x=np.arange(200), priorities=np.arange(200) + 1.0)
    rb.sample(1)  # sorts by rank
    rng = np.random.default_rng(0)

    def update() -> None:
        rb.update_priorities(rng.integers(200, size=32), 10.0 ** rng.uniform(-3, 3, 32))

    run_together(update, rb.check, rb.check)
