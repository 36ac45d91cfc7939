"""A learner is saved with its replay, and goes on over the same rows as if nothing had happened."""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dying_processes import CASES, PLAIN, shared_memory, step, torn
from forged_folders import sealed
from interruptions import Cut, cut_at
from scale import LONG

from cpprb_like.processes import Learner, SharedReplay
from cpprb_like.samplers import Prioritized, Sampler, Uniform
from cpprb_like.schedules import Linear
from cpprb_like.views import Sequences

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="nothing is forked there")
EACH = 40  # rows of a shard
SAMPLERS: dict[str, Callable[[], Sampler]] = {
    "uniform": Uniform,
    "prioritized": lambda: Prioritized(0.7, beta=Linear(0.4, 1.0, 30)),
}


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    before = shared_memory()
    yield
    assert shared_memory() <= before


@pytest.fixture(params=list(CASES))
def options(request: pytest.FixtureRequest) -> dict[str, Any]:
    """What the replay is made with."""
    return CASES[request.param]


def add(actors: list[Any], options: dict[str, Any], first: int, stop: int) -> None:
    """Each actor adds its time steps; the first one twice as many."""
    for t in range(first, stop):
        for number, actor in enumerate(actors):
            actor.add(**step(options, t if number else 2 * t))
        actors[0].add(**step(options, 2 * t + 1))


def learn(learner: Learner, rng: np.random.Generator, updates: int) -> list[Any]:
    """Draw batches, and set priorities, if there are any; returns what was drawn."""
    drawn = []
    for _ in range(updates):
        batch = learner.sample(7)
        if learner.has_priorities:
            learner.update_priorities(batch["indexes"], rng.random(7) * 4)
        drawn.append(batch)
    return drawn


def assert_equal(one: list[Any], other: list[Any]) -> None:
    """Two lists of batches are the same, bit for bit."""
    for ours, theirs in zip(one, other, strict=True):
        assert ours.keys() == theirs.keys()
        for name, values in ours.items():
            np.testing.assert_array_equal(values, theirs[name], err_msg=name)


@pytest.mark.parametrize("kind", list(SAMPLERS))
@pytest.mark.parametrize("steps", [5, 90])
def test_what_is_loaded_goes_on(
    tmp_path: Path, options: dict[str, Any], kind: str, steps: int
) -> None:
    """The same batches, weights and handles come as without the save, also as rows come."""
    rng = np.random.default_rng(0)
    with SharedReplay(2 * EACH, **options, writers=2) as replay:
        actors = [replay.actor(number) for number in range(2)]
        learner = replay.learner(SAMPLERS[kind](), seed=3)
        add(actors, options, 0, steps)
        learn(learner, rng, 5)
        add(actors, options, steps, steps + 4)
        learn(learner, rng, 5)
        for actor in actors:
            actor.on_episode_end()
        replay.save(tmp_path, learners={"main": learner})
        with SharedReplay.load(tmp_path) as again:
            other = again.restore_learner(tmp_path, "main")
            others = [again.actor(number) for number in range(2)]
            for round_ in range(3):
                state = rng.bit_generator.state
                expected = learn(learner, rng, 4)
                rng.bit_generator.state = state
                assert_equal(learn(other, rng, 4), expected)
                first = steps + 4 + 3 * round_
                add(actors, options, first, first + 3)
                add(others, options, first, first + 3)
            if learner.has_priorities:
                assert other.get_max_priority() == learner.get_max_priority()


def test_rows_that_came_before_it_was_restored(tmp_path: Path) -> None:
    """They get the greatest priority, in place of the rows that they were written over."""
    with SharedReplay(2 * EACH, **PLAIN, writers=2) as replay:
        actors = [replay.actor(number) for number in range(2)]
        learner = replay.learner(Prioritized(1.0, eps=0.0, probabilities=True), seed=3)
        add(actors, PLAIN, 0, 30)
        batch = learner.sample(60, replace=False)
        learner.update_priorities(batch["indexes"], np.arange(60.0))
        replay.save(tmp_path, learners={"main": learner})
        add(actors, PLAIN, 30, 33)
        other = replay.restore_learner(tmp_path, "main")  # into the same replay
        for one in (learner, other):
            assert one.get_max_priority() == 59.0
            found = one.sample(50, replace=False)
            new = found["t"] >= 60
            assert new.any()
            assert np.ptp(found["probabilities"][new]) == 0.0
            assert found["probabilities"][new][0] == found["probabilities"].max()
        assert_equal([other.sample(40)], [learner.sample(40)])


@pytest.mark.parametrize("capacity", [20, 200])
def test_another_capacity(tmp_path: Path, capacity: int) -> None:
    """Priorities stay with their rows."""
    with SharedReplay(2 * EACH, **PLAIN, writers=2) as replay:
        actors = [replay.actor(number) for number in range(2)]
        learner = replay.learner(Prioritized(1.0, eps=0.0), seed=3)
        add(actors, PLAIN, 0, 50)
        batch = learner.sample(80, replace=False)
        learner.update_priorities(batch["indexes"], batch["t"] + 1.0)
        replay.save(tmp_path, learners={"main": learner})
    with SharedReplay.load(tmp_path, capacity=capacity) as again:
        other = again.restore_learner(tmp_path, "main")
        rows = other.sample(min(capacity, 80), beta=1.0, replace=False)
        np.testing.assert_allclose(
            rows["weights"], (rows["t"].min() + 1.0) / (rows["t"] + 1.0), rtol=1e-6
        )
        assert other.get_max_priority() == 100.0


def test_a_view_and_a_limiter(tmp_path: Path) -> None:
    """Sequences are drawn as they would have been, and a limiter is there again."""
    from cpprb_like.limiters import MinSize  # noqa: PLC0415

    with SharedReplay(200, **PLAIN, writers=2, limiter=MinSize(10)) as replay:
        actors = [replay.actor(number) for number in range(2)]
        add(actors, PLAIN, 0, 25)
        for actor in actors:
            actor.on_episode_end()
        learner = replay.learner(Prioritized(), seed=0)
        learner.sample(5)
        replay.save(tmp_path, learners={"main": learner})
        with SharedReplay.load(tmp_path) as again:
            other = again.restore_learner(tmp_path, "main")
            views = [one.view(Sequences(4)) for one in (learner, other)]
            one, two = (view.sample(6) for view in views)
            assert_equal([one], [two])
            assert again.stats()["samples"] > 0


@pytest.mark.parametrize("case", ["plain", "n-step", "chained"])
def test_a_greater_number_of_writers(tmp_path: Path, case: str) -> None:
    """Each writer has its rows, and the further shards are empty; of fewer it is refused."""
    options = CASES[case]
    with SharedReplay(3 * EACH, **options, writers=3) as replay:
        rows = []
        for number in range(3):
            with replay.actor(number) as actor:
                for t in range(100 * number, 100 * number + 25 + 5 * number):
                    actor.add(**step(options, t))
                rows.append(actor.get_all_transitions()["t"].tolist())
        learner = replay.learner(Prioritized(), seed=0)
        learner.sample(4)
        replay.save(tmp_path, learners={"main": learner})
    with SharedReplay.load(tmp_path, writers=5) as again:
        assert (again.writers, again.capacity) == (5, 5 * EACH)
        for number, expected in enumerate([*rows, [], []]):
            with again.actor(number) as actor:
                actor.check()
                batch = actor.get_all_transitions()
                assert torn(batch, options) is None
                assert set(batch["t"].tolist()) >= set(expected)
        assert torn(again.restore_learner(tmp_path, "main").sample(20), options) is None
    with pytest.raises(ValueError, match=r"writers: expected at least 3, .* got 2"):
        SharedReplay.load(tmp_path, writers=2)


@pytest.mark.once
@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")  # cut between open and 'with'
def test_a_restore_of_a_learner_that_is_cut_leaves_nothing(tmp_path: Path) -> None:
    """No learner, no open file and no change of the replay; the next call gives the whole one."""
    with SharedReplay(2 * EACH, **PLAIN, writers=1) as replay:
        add([replay.actor(0)], PLAIN, 0, 30)
        learner = replay.learner(Prioritized(), seed=0)
        learner.update_priorities(learner.sample(9)["indexes"], np.arange(1.0, 10.0))
        replay.save(tmp_path, learners={"main": learner})
        expected = learner.sample(8)["t"].tolist()
        with cut_at(-1) as count:
            replay.restore_learner(tmp_path, "main").close()
        rng = np.random.default_rng(0)
        for line in rng.choice(count[0], 300 if LONG else 30, replace=False) + 1:
            with suppress(Cut), cut_at(line):
                replay.restore_learner(tmp_path, "main").close()
            gc.collect()
            alive = [one.number for one in replay.members() if one.kind == "learner" and one.alive]
            assert alive == [0], f"cut at line {line}"
        again = replay.restore_learner(tmp_path, "main")
        assert again.sample(8)["t"].tolist() == expected


def test_what_cannot_be_loaded(tmp_path: Path) -> None:
    """Another replay, another name, no learner, and no writer."""
    with SharedReplay(2 * EACH, **PLAIN, writers=2) as replay:
        actors = [replay.actor(number) for number in range(2)]
        add(actors, PLAIN, 0, 30)
        learner = replay.learner(seed=0)
        replay.save(tmp_path / "one", learners={"main": learner})
        with pytest.raises(TypeError, match=r"learners\['x'\]: expected a Learner, got 3"):
            replay.save(tmp_path / "one", learners={"x": 3})  # type: ignore[dict-item]
        with SharedReplay(2 * EACH, **PLAIN, writers=2) as other:
            with pytest.raises(ValueError, match=r"learners\['x'\]: .* is one of another replay"):
                other.save(tmp_path / "one", learners={"x": learner})
            with pytest.raises(ValueError, match="was not saved from this replay"):
                other.restore_learner(tmp_path / "one", "main")
        with pytest.raises(ValueError, match=r"expected one of the learners \['main'\], got 'x'"):
            replay.restore_learner(tmp_path / "one", "x")
    with pytest.raises(ValueError, match="writers: expected at least 1, got 0"):
        SharedReplay.load(tmp_path / "one", writers=0)
    options = CASES["envs"]
    with SharedReplay(2 * EACH, **options, writers=2) as replay:
        add([replay.actor(number) for number in range(2)], options, 0, 5)
        replay.save(tmp_path / "envs")
    with SharedReplay.load(tmp_path / "envs", writers=3) as again:
        assert len(again.learner()) == 30


def test_functions_of_the_caller(tmp_path: Path) -> None:
    """They are handed over again, and named where they are missing."""
    with SharedReplay(EACH, **PLAIN, writers=1) as replay:
        replay.actor().add(**step(PLAIN, 0))
        learner = replay.learner(Prioritized(beta=lambda draws: 0.5), seed=0)
        replay.save(tmp_path, learners={"main": learner})
        with pytest.raises((TypeError, ValueError), match="beta"):
            replay.restore_learner(tmp_path, "main")
        where = {"learners.main.sampler.beta": 0.25}
        sampler: Any = replay.restore_learner(tmp_path, "main", replace=where).sampler
        assert sampler.beta == 0.25
        assert len(SharedReplay.load(tmp_path).learner()) == 1


def test_forged_priorities_are_refused(tmp_path: Path) -> None:
    """They are read at the first draw, which raised ``KeyError``."""
    with SharedReplay(10, {"x": {}}, writers=1) as replay:
        with replay.actor() as actor:
            actor.add(x=1)
        learner = replay.learner(sampler=Prioritized())
        learner.sample(1)
        replay.save(tmp_path, learners={"main": learner})
        (file,) = tmp_path.glob("state-*.json")
        manifest = json.loads(file.read_text().splitlines()[0])
        ((_, rows),) = manifest["root"]["state"]["learners"]["main"]["state"]["rows"]["pairs"]
        del rows["capacity"]
        file.write_bytes(sealed(manifest))
        again = replay.restore_learner(tmp_path, "main")
        with pytest.raises(ValueError, match="priorities of shard 0"):
            again.sample(1)
