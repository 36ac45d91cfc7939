"""What actors add in processes of their own, a learner draws: every row whole, of every kind."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import shared_rows
from shared_rows import CHAINED, CHAINED_OPTIONS, EACH, FIELDS, GAMMA, METHODS, finish, started

from cpprb_like import NotEnoughDataError
from cpprb_like.processes import Learner, SharedReplay

pytestmark = pytest.mark.skipif(not METHODS, reason="there are no processes")


@pytest.fixture
def replay(request: pytest.FixtureRequest) -> Iterator[SharedReplay]:
    """A replay of the options that a test is marked with."""
    with SharedReplay(**request.param) as found:
        yield found


def replays(*all_options: dict[str, Any]) -> pytest.MarkDecorator:
    """Replays of these options."""
    return pytest.mark.parametrize("replay", list(all_options), indirect=True)


PLAIN = {"capacity": 400, "env_dict": FIELDS, "writers": 2}


def drawn(learner: Learner, times: int = 40) -> set[int]:
    """The ids of the rows of many batches, each of which is whole."""
    found: set[int] = set()
    for _ in range(times):
        batch = learner.sample(64)
        shared_rows.check(batch)
        found |= set(batch["id"].tolist())
    return found


@pytest.mark.once
@pytest.mark.parametrize("method", METHODS)
@replays(PLAIN)
def test_all_rows_of_all_actors_are_drawn(replay: SharedReplay, method: str) -> None:
    """And nothing else, however the processes were started, of fields of all kinds."""
    finish(
        method,
        [
            (shared_rows.add_rows, replay, 0, 30),
            (shared_rows.add_rows, replay, 1, 170),
        ],
    )
    learner = replay.learner(seed=1)
    assert len(learner) == 200
    wanted = {*shared_rows.ids(0, 0, 30).tolist(), *shared_rows.ids(1, 0, 170).tolist()}
    assert drawn(learner) == wanted


@replays(PLAIN)
def test_shards_that_wrap_keep_their_newest_rows(replay: SharedReplay) -> None:
    """Each its own: a fast actor takes no room from a slow one."""
    finish(
        METHODS[0],
        [
            (shared_rows.add_rows, replay, 0, 777),
            (shared_rows.add_rows, replay, 1, 20),
        ],
    )
    wanted = {*shared_rows.ids(0, 577, 777).tolist(), *shared_rows.ids(1, 0, 20).tolist()}
    assert drawn(replay.learner(seed=1), times=80) == wanted


@replays({"capacity": 200, "env_dict": CHAINED, "writers": 2, **CHAINED_OPTIONS})
@pytest.mark.parametrize("stop", [60, 333])
def test_next_values_and_stacks_are_those_that_were_added(replay: SharedReplay, stop: int) -> None:
    """At the ends of episodes too, and around the end of a shard."""
    jobs = [
        (shared_rows.add_rows, replay, number, stop, shared_rows.chained) for number in range(2)
    ]
    finish(METHODS[0], jobs)
    learner = replay.learner(seed=1)
    assert len(learner) == 2 * min(stop, 100)
    for _ in range(20):
        batch = learner.sample(50)
        assert batch["next_frames"].shape == (50, 4, 4, 3)
        shared_rows.check(batch, shared_rows.chained)


@replays(PLAIN | {"Nstep": {"size": 3, "gamma": GAMMA, "rew": "rew", "next": []}})
@pytest.mark.parametrize("stop", [33, 500])
def test_returns_of_several_steps_end_with_the_episode(replay: SharedReplay, stop: int) -> None:
    """The newest rows wait for the rest of their window, in each shard."""
    finish(METHODS[0], [(shared_rows.add_rows, replay, number, stop) for number in range(2)])
    learner = replay.learner(seed=1)
    waiting = 0 if stop % shared_rows.EPISODE == 0 else min(2, stop % shared_rows.EPISODE)
    assert len(learner) == 2 * min(stop - waiting, 200)
    for _ in range(20):
        shared_rows.check_returns(learner.sample(50), 3)


@replays(PLAIN | {"n_envs": 4})
def test_rows_of_vector_environments_are_whole(replay: SharedReplay) -> None:
    """Each environment is a stream of its own."""
    jobs = [(shared_rows.add_streams, replay, number, 40 * (1 + number), 4) for number in range(2)]
    finish(METHODS[0], jobs)
    learner = replay.learner(seed=1)
    assert len(learner) == 160 + 200
    assert {number // EACH for number in drawn(learner)} == set(range(8))


@pytest.mark.once
@pytest.mark.parametrize("method", METHODS)
@replays(PLAIN)
def test_rows_are_whole_while_actors_add(replay: SharedReplay, method: str) -> None:
    """A learner draws newer and newer rows, without a wait."""
    learner = replay.learner(seed=1)
    with pytest.raises(NotEnoughDataError, match="no row"):
        learner.sample(1)
    with (
        started(method, shared_rows.add_for_ever, replay, 0, 0.0),
        started(method, shared_rows.add_for_ever, replay, 1, 0.0005),
    ):
        newest = np.zeros(2, np.int64)
        while newest.min() < 600:
            try:
                batch = learner.sample(32)
            except NotEnoughDataError:
                continue
            shared_rows.check(batch)
            for number in range(2):
                own = batch["id"][batch["id"] // EACH == number] % EACH
                newest[number] = max(newest[number], own.max(initial=0))
