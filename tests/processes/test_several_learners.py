"""Learners that are slower than the actors, several at once, and those that die."""

from __future__ import annotations

import os
import time
from typing import Any

import numpy as np
import pytest
import shared_rows
from shared_rows import (
    CHAINED,
    CHAINED_OPTIONS,
    EPISODE,
    FIELDS,
    METHODS,
    chained,
    ids,
    plain,
    started,
)

from cpprb_like import NotEnoughDataError
from cpprb_like.processes import SharedReplay
from cpprb_like.samplers import Prioritized, Sampler, Uniform
from cpprb_like.views import FrameStacks, Sequences

pytestmark = pytest.mark.skipif(not METHODS, reason="there are no processes")

SECONDS = 0.7  # of each trial
LONG_FIELDS: dict[str, Any] = FIELDS | {"pixels": {"shape": (120, 120), "dtype": "u1"}}


def long_rows(numbers: Any) -> dict[str, Any]:
    """Rows of ``LONG_FIELDS``: reading many of them takes longer than writing some."""
    found = plain(numbers)
    pixels = np.broadcast_to(found["pixels"][:, :1, :1], (len(numbers), 120, 120))
    return found | {"pixels": np.ascontiguousarray(pixels)}


def add_fast(replay: SharedReplay, number: int, kind: str) -> None:
    """An actor that adds as fast as it can until it is killed."""
    make = {"plain": plain, "long": long_rows, "chained": chained}[kind]
    rows = [make(ids(number, start, start + 7)) for start in range(0, 700, 7)]
    actor = replay.actor(number)
    while True:
        for row in rows:
            actor.add(**row)


@pytest.mark.once
@pytest.mark.parametrize("kind", ["plain", "long", "chained", "returns", "sequences", "stacks"])
@pytest.mark.parametrize("sampler", [Uniform, Prioritized])
def test_rows_that_are_overwritten_during_a_draw_are_never_torn(
    kind: str, sampler: type[Sampler]
) -> None:
    """A learner of tiny shards draws newer rows, whole, and never goes on for ever."""
    options: dict[str, Any] = {"env_dict": LONG_FIELDS if kind == "long" else FIELDS}
    if kind == "chained":
        options = {"env_dict": CHAINED, **CHAINED_OPTIONS}
    if kind == "returns":
        options["Nstep"] = {"size": 3, "gamma": 0.5, "rew": "rew", "next": []}
    written = {"long": "long", "chained": "chained"}.get(kind, "plain")
    with SharedReplay(400, writers=2, **options) as replay:
        learner = replay.learner(sampler(), seed=0)
        source: Any = learner
        if kind == "sequences":
            source = learner.view(Sequences(4))
        if kind == "stacks":
            source = learner.view(FrameStacks({"obs": 3}))
        with (
            started(METHODS[0], add_fast, replay, 0, written),
            started(METHODS[0], add_fast, replay, 1, written),
        ):
            until, batches = time.monotonic() + SECONDS, 0
            while time.monotonic() < until or batches < 5:
                assert time.monotonic() < until + 30
                try:
                    batch = source.sample(64)
                except NotEnoughDataError:
                    continue
                batches += 1
                check(kind, batch)
                if sampler is Prioritized:
                    learner.update_priorities(batch["indexes"], np.arange(64.0))


def check(kind: str, batch: dict[str, Any]) -> None:
    """The rows of a batch prove themselves."""
    if kind == "returns":
        shared_rows.check_returns(batch, 3)
    elif kind == "sequences":
        step = batch["id"] % shared_rows.EACH
        wanted = step[:, :1] + np.arange(4)
        np.testing.assert_array_equal(step[batch["mask"]], wanted[batch["mask"]])
        rows = {name: values[batch["mask"]] for name, values in batch.items() if values.ndim > 1}
        shared_rows.check(rows)
    elif kind == "stacks":
        step = batch["id"] % shared_rows.EACH
        first = step - step % shared_rows.EPISODE
        frames = np.maximum(step[:, None] + np.arange(-2, 1), first[:, None])
        np.testing.assert_array_equal(batch["obs"][:, 0], frames)
    else:
        make = {"long": long_rows, "chained": chained}.get(kind, plain)
        shared_rows.check(batch, make)


@pytest.mark.parametrize("kind", ["rows", "returns", "sequences"])
@pytest.mark.parametrize("replace", [True, False])
def test_rows_that_a_draw_passed_over_can_be_drawn_again(kind: str, replace: bool) -> None:
    """An actor overtakes a learner, and then pauses: no row is hidden, and no priority is lost.

    Up to seven of eight rows were left out for good, although they were still there.
    """
    options: dict[str, Any] = {}
    if kind == "returns":
        options["Nstep"] = {"size": 3, "gamma": 0.5, "rew": "rew", "next": []}
    with SharedReplay(200, FIELDS, writers=1, **options) as replay, replay.actor() as actor:
        learner = replay.learner(Prioritized(1.0, eps=0.0, probabilities=True), seed=0)
        source: Any = learner.view(Sequences(4)) if kind == "sequences" else learner
        actor.add(**plain(ids(0, 0, 203)))
        batch = learner.sample(4000)
        learner.update_priorities(batch["indexes"], 1.0 + batch["id"] % 5)
        drawing: Any = learner._shards
        choose = drawing._choose_any
        stop, passed = 203, [40] * 2

        def overtaken(call: Any) -> Any:
            def drawn(*arguments: Any) -> Any:
                nonlocal stop
                found = call(*arguments)
                n = passed.pop(0) if passed else 0
                if n:
                    actor.add(**plain(ids(0, stop, stop + n)))
                stop += n
                return found

            return drawn

        drawing._choose_any = overtaken(choose)
        batch = source.sample(60, replace=replace)
        assert not passed
        shared_rows.check_returns(batch, 3) if kind == "returns" else check(kind, batch)
        drawing._choose_any = choose
        waiting = min(2, stop % EPISODE) if kind == "returns" else 0
        held = [int(one) for one in ids(0, stop - waiting - 200, stop - waiting)]
        assert len(learner) == 200
        batch = learner.sample(6000)
        assert set(batch["id"].tolist()) == set(held)
        masses = {one: 1.0 + one % 5 if one < 203 else 5.0 for one in held}
        found = dict(zip(batch["id"].tolist(), batch["probabilities"].tolist(), strict=True))
        for one in held:
            assert found[one] == pytest.approx(masses[one] / sum(masses.values())), one


def learn(replay: SharedReplay, seed: int, priority: float, batches: int) -> None:
    """A learner with priorities of its own: of one number for all that it draws."""
    learner = replay.learner(Prioritized(probabilities=True), seed=seed)
    done = 0
    while done < batches:
        try:
            batch = learner.sample(16)
        except NotEnoughDataError:
            time.sleep(0.01)
            continue
        shared_rows.check(batch)
        learner.update_priorities(batch["indexes"], np.full(16, priority))
        assert learner.get_max_priority() == max(1.0, priority)
        done += 1


def learn_and_die(replay: SharedReplay, pipe: int) -> None:
    """A learner that says who it is, and ends without a word in the middle of a batch."""
    learner = replay.learner(seed=1)
    learner.sample(4)
    os.write(pipe, bytes([learner.number + 1]))
    os._exit(1)


def test_several_learners_draw_side_by_side() -> None:
    """In processes of their own, from rows that come at the same time."""
    with (
        SharedReplay(400, FIELDS, writers=1) as replay,
        started(METHODS[0], shared_rows.add_for_ever, replay, 0, 0.0005),
    ):
        shared_rows.finish(
            METHODS[0], [(learn, replay, number, 2.0 + number, 60) for number in range(2)]
        )


@pytest.mark.skipif("fork" not in METHODS, reason="a pipe is handed on by a fork")
def test_a_learner_that_dies_disturbs_no_process() -> None:
    """Its place is free again, and others draw on."""
    with SharedReplay(400, FIELDS, writers=1) as replay:
        shared_rows.add_rows(replay, 0, 50)
        learner = replay.learner(seed=0)
        assert learner.number == 0
        reading, writing = os.pipe()
        with started("fork", learn_and_die, replay, writing) as process:
            assert os.read(reading, 1) == bytes([2])
            process.join(shared_rows.SECONDS)
            alive = [(one.kind, one.number, one.alive) for one in replay.members()]
            assert ("learner", 0, True) in alive
            assert ("learner", 1, False) in alive
        os.close(reading)
        os.close(writing)
        shared_rows.check(learner.sample(20))
        assert replay.learner().number == 1
        learner.close()
        assert replay.learner().number == 0
