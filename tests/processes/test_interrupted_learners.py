"""A learner that is interrupted at any of its lines misses nothing of what actors did before."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from interruptions import Cut, cut_at
from scale import LONG

from cpprb_like import NotEnoughDataError
from cpprb_like.processes import Actor, SharedReplay
from cpprb_like.samplers import Prioritized, Uniform
from cpprb_like.samplers._row_weights import update_together
from cpprb_like.views import Sequences

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="nothing is forked there")
TURNS = 5_000 if LONG else 150  # interrupts of each case
LINES = 70  # more than any of the calls has
FIELDS: dict[str, Any] = {
    "x": {"shape": (), "dtype": "i8"},
    "sum": {"shape": (), "dtype": "i8"},  # of the row and the two after it in its episode
    "r": {"shape": (), "dtype": "f8"},
    "done": {"shape": (), "dtype": bool},
}
SAMPLERS: dict[str, Any] = {
    "uniform": Uniform,
    "prioritized": lambda: Prioritized(1.0, eps=0.0),
}


class Acting:
    """An actor that adds episodes, deletes them, and clears."""

    def __init__(self, actor: Actor, rng: np.random.Generator, number: int) -> None:
        self.actor, self.rng, self.number = actor, rng, number

    def act(self) -> None:
        """Do one thing: most often delete an episode."""
        turn = self.rng.integers(12)
        if turn == 0:
            self.actor.clear()
        if turn <= 4 or len(self.actor) < 6:
            n = int(self.rng.integers(1, 7))
            x = self.number + np.arange(n)
            self.number += n
            sums = [int(x[k : k + 3].sum()) for k in range(n)]
            self.actor.add(x=x, sum=sums, r=x, done=np.arange(n) == n - 1)
        else:
            episodes = self.actor.episodes
            episodes.delete(int(self.rng.integers(len(episodes))))

    def rows(self) -> set[int]:
        """The rows that can be drawn."""
        return set(self.actor.get_all_transitions()["x"].tolist())


@pytest.mark.parametrize("nstep", [1, 3])
@pytest.mark.parametrize("kind", SAMPLERS)
def test_an_interrupted_learner_has_seen_what_actors_deleted(kind: str, nstep: int) -> None:
    """After an interrupt between any two lines all living rows can be drawn, and no others.

    What a call had learned of deleted rows was lost where it was interrupted before it notified
    the sampler. Their weights stayed, and an n-step return of one read rows of other episodes.
    """
    options: dict[str, Any] = {}
    if nstep > 1:
        options["Nstep"] = {"size": nstep, "gamma": 1.0, "rew": "r", "next": []}
    rng = np.random.default_rng(nstep)
    with SharedReplay(60, FIELDS, writers=2, **options) as replay:
        actors = [Acting(replay.actor(n), rng, 10**7 * n) for n in range(2)]
        learner = replay.learner(SAMPLERS[kind](), seed=0)
        view = learner.view(Sequences(2)) if nstep == 1 else learner
        cut = 0
        indexes: Any = []

        def draw() -> None:
            nonlocal indexes
            batch = learner.sample(4)
            indexes = batch.get("indexes", [])

        def update() -> None:
            learner.update_priorities(indexes, 1.0 + rng.random(len(indexes)))

        calls: list[Callable[[], object]] = [
            draw,
            lambda: view.sample(3),
            lambda: len(learner),
            draw,
        ]
        if kind != "uniform":
            calls += [update, learner.get_max_priority]
        for turn in range(TURNS):
            for actor in actors:
                actor.act()
            try:
                with cut_at(int(rng.integers(1, LINES))), suppress(NotEnoughDataError):
                    calls[turn % len(calls)]()
            except Cut:
                cut += 1
            living = actors[0].rows() | actors[1].rows()
            assert len(learner) == len(living)
            if not living:
                continue
            batch = learner.sample(len(living), replace=False)
            assert set(batch["x"].tolist()) == living
            if nstep > 1:
                np.testing.assert_array_equal(batch["r"], batch["sum"])
        assert cut > TURNS // 4


@pytest.mark.parametrize("clears", [False, True])
@pytest.mark.parametrize("kind", SAMPLERS)
def test_a_signal_handler_may_draw_while_rows_are_drawn(kind: str, clears: bool) -> None:
    """The indexes of a batch name its rows, although a handler overwrites and draws in between.

    Indexes of n-step returns were those of the rows that had been drawn, and the values those of
    the rows that took their places. After a clear there was an ``IndexError``.
    """
    options: Any = {"size": 2, "gamma": 1.0, "rew": "r", "next": []}
    with SharedReplay(16, FIELDS, writers=2, Nstep=options) as replay:
        actor = replay.actor()
        learner = replay.learner(SAMPLERS[kind](), seed=0)
        known: dict[int, int] = {}

        def add() -> None:
            x = np.arange(8) + 8 * len(known)
            actor.add(x=x, sum=x, r=x, done=np.arange(8) == 7)

        def handle() -> None:
            if clears:
                actor.clear()
                actor.add(x=0, sum=0, r=0, done=True)
            else:
                add()
            learner.sample(4)

        def check(batch: Any) -> None:
            for index, x in zip(batch["indexes"].tolist(), batch["x"].tolist(), strict=True):
                assert known.setdefault(index, x) == x

        for line in range(1, LINES):
            add()
            check(learner.sample(len(learner), replace=False, indexes=True))
            with cut_at(line, handle):
                batch = learner.sample(8, indexes=True)
            check(batch)


@pytest.mark.parametrize("kind", SAMPLERS)
def test_a_signal_handler_may_see_that_all_rows_are_cleared(kind: str) -> None:
    """A draw of no rows divided by 0, and ended the process: some had been deleted before."""
    with SharedReplay(16, FIELDS, writers=2) as replay:
        actor = replay.actor()
        learner = replay.learner(SAMPLERS[kind](), seed=0)

        def clear() -> None:
            actor.clear()
            assert len(learner) == 0

        for line in range(1, LINES):
            x = np.arange(8)
            actor.add(x=x, sum=x, r=x, done=x % 4 == 3)
            actor.episodes.delete(0)
            with cut_at(line, clear), suppress(NotEnoughDataError):
                learner.sample(3)


def test_priorities_of_a_learner_that_is_restored_outlive_an_interrupt(tmp_path: Any) -> None:
    """A shard whose first look was interrupted had lost the priorities that were saved for it."""
    with SharedReplay(20, FIELDS, writers=1) as replay:
        actor = replay.actor()
        actor.add(x=range(8), sum=range(8), r=range(8), done=[False] * 8)
        learner = replay.learner(Prioritized(1.0, eps=0.0, probabilities=True), seed=0)
        batch = learner.sample(8, replace=False)
        learner.update_priorities(batch["indexes"], 1.0 + batch["x"])
        replay.save(tmp_path, learners={"main": learner})
        for line in range(1, LINES):
            other = replay.restore_learner(tmp_path, "main")
            try:
                with cut_at(line):
                    other.sample(4)
            except Cut:
                pass
            again = other.sample(40)
            np.testing.assert_allclose(again["probabilities"], (1.0 + again["x"]) / 36)
            other.close()


def test_an_interrupted_update_sets_the_priorities_of_all_shards_or_of_none() -> None:
    """An interrupt between two shards had left the priorities of the first set, and no others."""
    with SharedReplay(40, FIELDS, writers=4) as replay:
        for number in range(4):
            values = range(8 * number, 8 * number + 8)
            replay.actor(number).add(x=values, sum=values, r=values, done=[False] * 8)
        learner = replay.learner(Prioritized(1.0, eps=0.0, probabilities=True), seed=0)
        batch = learner.sample(32, replace=False)
        old, new, seen = np.full(32, 1 / 32), (1.0 + np.arange(32)) / 528, 0
        for line in range(1, LINES):
            learner.update_priorities(batch["indexes"], np.ones(32))
            with suppress(Cut), cut_at(line):
                learner.update_priorities(batch["indexes"], 1.0 + batch["x"])
            again = learner.sample(40)
            is_new = [bool(np.allclose(again["probabilities"], p[again["x"]])) for p in (old, new)]
            assert any(is_new)
            seen |= 1 << is_new.index(True)
        assert seen == 3  # both were met


def test_an_update_wins_over_the_priority_that_waited_for_the_row() -> None:
    """A row that came with a priority is complete since the weights were last synchronized.

    The priority that had waited for its window was set over that of the update.
    """
    steps: Any = {"size": 3, "gamma": 0.5, "rew": "r", "next": []}
    with SharedReplay(40, FIELDS, writers=1, Nstep=steps) as replay, replay.actor() as actor:

        def add(x: int, priority: float) -> None:
            actor.add(x=x, sum=x, r=x, done=False, priorities=priority)

        learner = replay.learner(Prioritized(1.0, eps=0.0), seed=0)
        for x in range(4):
            add(x, 1.0)
        batch = learner.sample(2, replace=False)
        add(4, 7.0)
        assert len(learner) == 3
        indexes = batch["indexes"].max(keepdims=True) + 3 * (1 << learner.ring.bits)
        for x in range(5, 8):
            add(x, 1.0)
        learner.ring.follow()
        weights = learner._shards.weights
        assert weights is not None
        values = np.array([2.0])
        update_together(weights.members, learner.ring.bits, indexes, values, values.copy())
        slot = learner.ring.split(np.array([4 << learner.ring.bits]))[0][2]
        assert weights.members[0].get(slot).tolist() == [2.0]
