"""Draws from several hosts are those of one buffer, also beside writers and through any layer."""

from __future__ import annotations

import contextlib
import itertools
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from cluster_cases import FIELDS, cluster, each_place, fill, steps
from interruptions import Cut, cut_at, first_and_last
from local_ray import ray
from numpy.typing import NDArray
from own_layers import ReturnsToGo

from cpprb_like import PrioritizedReplayBuffer, ReplayBuffer
from cpprb_like.ray import ClusterActor, ClusterReplay
from cpprb_like.ray._drawing import stacked_pairs
from cpprb_like.samplers import Prioritized, Uniform
from cpprb_like.views import Advantages, Hindsight, Layer, NStep, Sequences, Windows

OLD = {1: [3000], 3: [200, 2500, 700], 7: [50, 900, 150, 600, 100, 1000, 250]}  # rows of each host
BINS = 120
BATCHES, BATCH = 80, 250


@contextmanager
def writers(replay: ClusterReplay) -> Iterator[None]:
    """Threads that add to every host until the block ends, to the last ones faster."""
    done = threading.Event()
    failed: list[BaseException] = []

    def write(number: int) -> None:
        try:
            with ClusterActor(
                replay.hosts[number], replay._connection.options, 20.0, None
            ) as actor:
                first = (number + 1) * 1_000_000
                while not done.wait(0.03):
                    new = steps(first, 2 + number)
                    actor.add(**new, priorities=1.0 + new["rew"])
                    actor.flush()
                    first += len(new["id"])
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=write, args=(k,)) for k in range(len(replay.hosts))]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        done.set()
        for thread in threads:
            thread.join()
    assert not failed


def chi_square(drawn: NDArray[Any], expected: NDArray[Any]) -> None:
    """Drawn numbers of rows have this distribution: both by bins of rows."""
    edges = np.linspace(0, len(drawn), BINS + 1).astype(int)[:-1]
    observed = np.add.reduceat(drawn, edges)
    wanted = np.add.reduceat(expected, edges) * drawn.sum()
    chi = ((observed - wanted) ** 2 / wanted).sum()
    freedom = len(edges) - 1
    assert chi < freedom + 6 * np.sqrt(2 * freedom)


@pytest.mark.parametrize("hosts", OLD)
def test_draws_beside_writers_are_those_of_one_buffer(hosts: int) -> None:
    """Of the rows that were there before: their shares of each other do not change.

    Their importance-sampling weights do not change either, as the least priority of all is theirs.
    But masses of hosts have an age: few batches are drawn by shares that differ by more than 2 %.
    """
    counts, n = OLD[hosts], sum(OLD[hosts])
    priorities = 0.1 + np.random.default_rng(1).random(n) * 3
    one = PrioritizedReplayBuffer(n, FIELDS, seed=2)
    one.add(**steps(0, n), priorities=priorities)
    alone = one.sample(n, replace=False)
    weights = np.empty(n)
    weights[alone["id"]] = alone["weights"]
    powers = (priorities + 1e-4) ** 0.6
    with cluster(hosts, 40_000 * hosts) as replay:
        first = 0
        for number, count in enumerate(counts):
            given = {"priorities": priorities[first : first + count]}
            fill(replay, number, steps(first, count) | given)
            first += count
        with writers(replay):
            for _ in each_place():
                drawn, _ = draw_old(replay, Uniform(), n)
                chi_square(np.bincount(drawn, minlength=n), np.ones(n) / n)
                drawn, found = draw_old(replay, Prioritized(), n)
                chi_square(np.bincount(drawn, minlength=n), powers / powers.sum())
                errors = np.abs(found / weights[drawn] - 1.0)
                assert np.quantile(errors, 0.99) < 0.02
                owners = np.searchsorted(np.cumsum(counts), drawn, side="right")
                for host in range(hosts):
                    assert np.median(errors[owners == host]) < 0.02


def draw_old(replay: ClusterReplay, sampler: Any, n: int) -> tuple[NDArray[Any], Any]:
    """The draws of a new learner of the first ``n`` rows, and their weights if they have some."""
    with replay.learner(sampler, seed=1, ahead=0) as learner:
        batches = beside_writers(learner)
    drawn = np.concatenate([batch["id"] for batch in batches])
    old = drawn < n
    weights = [batch["weights"] for batch in batches if "weights" in batch]
    return drawn[old], np.concatenate(weights)[old] if weights else None


def beside_writers(learner: Any) -> list[dict[str, Any]]:
    """So many batches that rows of all moments are in them."""
    batches: list[dict[str, Any]] = []
    new = 0
    while len(batches) < BATCHES or new < 100:
        batches.append(learner.sample(BATCH))
        new += int((batches[-1]["id"] >= 1_000_000).sum())
        time.sleep(0.002)
    return batches


GOALS: dict[str, Any] = FIELDS | {
    "achieved_goal": {"shape": 2},
    "next_achieved_goal": {"shape": 2},
    "desired_goal": {"shape": 2},
}


def with_goals(first: int, n: int) -> dict[str, Any]:
    """Steps whose achieved goal is their number."""
    ids = np.arange(first, first + n, dtype=np.float32)[:, None]
    return steps(first, n) | {
        "achieved_goal": ids + np.array([0.0, 0.5]),
        "next_achieved_goal": ids + np.array([1.0, 1.5]),
        "desired_goal": np.full((n, 2), -1.0),
    }


def reward(achieved: Any, goal: Any, rows: Any) -> Any:
    """0 where the goal was reached, less by the distance."""
    return -np.abs(achieved - goal).sum(axis=-1) - 0.25 * (np.asarray(rows["id"]) % 2)


LAYERS: dict[str, list[Any]] = {
    "alone": [],
    "n-step": [NStep(3, gamma=0.5, rew="rew")],
    "sequences": [Sequences(4)],
}


@pytest.mark.usefixtures("_by_value")
def test_goals_are_those_of_one_buffer() -> None:
    """Each row gets the same goals and rewards, each goal as often; also beside other layers."""
    counts, n = [40, 20, 60], 120
    one = ReplayBuffer(n, GOALS, seed=0)
    one.add(**with_goals(0, n))
    strategies: list[Any] = ["future", "final", "episode"]
    with cluster(3, env_dict=GOALS) as replay:
        for number, first in enumerate(np.cumsum([0, *counts[:-1]]).tolist()):
            fill(replay, number, with_goals(first, counts[number]))
        for where in each_place():
            with replay.learner(seed=0) as learner:
                for strategy, (name, layers) in itertools.product(strategies, LAYERS.items()):
                    her = Hindsight(reward, strategy=strategy, relabel_ratio=0.75, relabelled=True)
                    ours, theirs = seen(learner.view(*layers, her)), seen(one.view(*layers, her))
                    for key in ours.keys() | theirs.keys():
                        what = f"{where}, {strategy}, {name}, {key}"
                        compare(ours.get(key), theirs.get(key), what)


def compare(ours: Any, theirs: Any, what: str) -> None:
    """An item and how often it was drawn; each is drawn 25 times or more."""
    assert ours is not None, f"{what}: {theirs[1]} times by one buffer"
    assert theirs is not None, f"{what}: {ours[1]} times by the cluster"
    for name, values in ours[0].items():
        np.testing.assert_array_equal(values, theirs[0][name], err_msg=f"{what}: {name}")
    assert abs(ours[1] - theirs[1]) < 7 * np.sqrt(ours[1] + theirs[1]), what


def seen(view: Any) -> dict[Any, tuple[dict[str, Any], int]]:
    """The items of a view by their first row and its goal: an item, and how often it was drawn."""
    found: dict[Any, tuple[dict[str, Any], int]] = {}
    for _ in range(100):
        batch = view.sample(256)
        first = [np.asarray(batch[name]).reshape(256, -1) for name in ("id", "desired_goal")]
        for row in range(256):
            key = int(first[0][row, 0]), float(first[1][row, 0])
            item, count = found.get(key, (None, 0))
            if item is None:
                item = {name: values[row] for name, values in batch.items()}
            found[key] = item, count + 1
    return found


@pytest.fixture
def _by_value() -> Iterator[None]:
    """Hosts get functions and layers as they get those of a user's program."""
    modules = [sys.modules[ReturnsToGo.__module__], sys.modules[__name__]]
    for module in modules:
        ray.cloudpickle.register_pickle_by_value(module)
    yield
    for module in modules:
        ray.cloudpickle.unregister_pickle_by_value(module)


@pytest.mark.usefixtures("_by_value")
def test_a_layer_of_the_users_own_reads_what_one_buffer_reads() -> None:
    """Returns-to-go, row by row; drawn by priority, too."""
    n = 100
    priorities = 0.1 + np.random.default_rng(1).random(n)
    one = ReplayBuffer(n, FIELDS, seed=0)
    one.add(**steps(0, n))
    given, known = ReturnsToGo(0.9, 8), {}
    for _ in range(30):
        batch = one.view(given).sample(64)
        for row, number in enumerate(batch["id"].tolist()):
            known[number] = {name: values[row] for name, values in batch.items()}
    powers = (priorities + 1e-4) ** 0.6
    with cluster(2) as replay:
        for number, (first, count) in enumerate([(0, 40), (40, 60)]):
            own = {"priorities": priorities[first : first + count]}
            fill(replay, number, steps(first, count) | own)
        for _ in each_place():
            for kind, expected in [(Uniform, np.ones(n)), (Prioritized, powers)]:
                drawn = np.zeros(n)
                with replay.learner(kind(), seed=0) as learner:
                    view = learner.view(given)
                    for batch in (view.sample(100) for _ in range(80)):
                        drawn += np.bincount(batch["id"], minlength=n)
                        for row, number in enumerate(batch["id"].tolist()):
                            for name, value in known[number].items():
                                np.testing.assert_array_equal(batch[name][row], value)
                wanted = expected * drawn.sum() / expected.sum()
                assert ((drawn - wanted) ** 2 / wanted).sum() < n + 6 * np.sqrt(2 * n)


def test_a_view_that_is_refused_is_not_opened_at_hosts_that_come_later() -> None:
    """It is forgotten, as nobody has it."""
    with cluster(1) as replay:
        fill(replay, 0, steps(0, 30))
        for _ in each_place():
            with replay.learner(Uniform(), seed=0) as learner:
                learner.sample(1)
                before = {*learner._directory.views}
                with pytest.raises(ValueError, match="store its values with each step"):
                    learner.view(Advantages(0.9, 0.9, value=len, rew="rew"))
                assert {*learner._directory.views} == before
                assert len(learner.sample(5)["id"]) == 5


class Means(Layer):
    """A number in place of each stack of frames."""

    def changes(self, fields: Mapping[str, Any]) -> list[str]:
        del fields
        return ["obs"]

    def columns(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        del fields
        return {"obs": (np.float32, ())}

    def fill(self, windows: Windows, wanted: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
        del wanted
        return {"obs": windows.values["obs"].mean((1, 2)).astype(np.float32)}


def test_stacks_that_a_layer_reshapes_travel_as_they_are() -> None:
    """No axis of frames is looked for in them."""
    fields: dict[str, Any] = {"obs": {"shape": (5, 3), "dtype": np.uint8}, "done": {}}
    rb = ReplayBuffer(20, fields, stack_compress={"obs": 1})
    view = rb.view(Means())
    assert stacked_pairs(view, rb.schema, view.layers) == []


def share_of(source: Any, ids: NDArray[Any], batches: int = 20) -> float:
    """The part of the drawn items that are rows with these ids."""
    drawn = np.concatenate([source.sample(256)["id"] for _ in range(batches)])
    return float(np.isin(drawn, ids).mean())


@pytest.mark.parametrize("ahead", [0, 2])
def test_a_host_that_grows_is_drawn_by_its_new_rows(where: str, ahead: int) -> None:
    """A learner of another node used the same mass of a host until it drew a row from it."""
    with cluster(2, 80_000) as replay, replay.learner(seed=0, ahead=ahead, batches=2) as learner:
        fill(replay, 0, steps(0, 20_000))
        fill(replay, 1, steps(20_000, 1))
        for _ in range(5):
            learner.sample(64)
        fill(replay, 1, steps(20_001, 20_000))
        time.sleep(1.0)
        for _ in range(2 * (ahead + 1)):
            learner.sample(256)  # those were requested before
        assert abs(share_of(learner, np.arange(20_000, 40_001)) - 0.5) < 0.05
        assert learner.stats()["age_of_masses"] < 3.0


def test_new_rows_get_the_greatest_priority_of_any_host(where: str) -> None:
    """A host heard of a greater priority with its next rows that were drawn or updated."""
    with cluster(2, 16_000) as replay:
        fill(replay, 0, steps(0, 3000))
        fill(replay, 1, steps(3000, 1))
        sampler = Prioritized(alpha=1.0, eps=0.0)
        with replay.learner(sampler, seed=0, ahead=0) as learner:
            batch = learner.sample(64)
            of_first = batch["indexes"][batch["id"] < 3000][:1]
            learner.update_priorities(of_first, [100.0])
            learner.flush()
            fill(replay, 1, steps(3001, 10))
            time.sleep(1.0)
            right = 1000.0 / (2999.0 + 100.0 + 1.0 + 1000.0)
            assert abs(share_of(learner, np.arange(3001, 3011)) - right) < 0.04
            assert learner.get_max_priority() == 100.0
            assert learner.stats()["updates"] == 1


def test_hosts_of_a_view_are_drawn_by_priorities_of_now() -> None:
    """The mass of a view was used for twenty times as long as its count took."""
    n = 20_000
    with cluster(2, 4 * n) as replay:
        for number in range(2):
            fill(replay, number, steps(number * n, n))
        sampler = Prioritized(alpha=1.0, eps=0.0, probabilities=True)
        for _ in each_place():
            with replay.learner(sampler, seed=0, ahead=0) as learner:
                compare_masses(learner, n)


def compare_masses(learner: Any, n: int) -> None:
    """Compare the probabilities of rows of a view, of which those from n on get priorities."""
    view = learner.view(NStep(3, gamma=0.5, rew="rew"))
    batches = [view.sample(4096) for _ in range(10)]
    handles = np.unique(np.concatenate([one["indexes"][one["id"] >= n] for one in batches]))
    for priority in 20.0, 1.0:
        learner.update_priorities(handles, np.full(len(handles), priority))
        learner.flush()
        view.sample(64)  # its answers bring the masses of now
        batch = view.sample(4096)
        total = 2 * n + (priority - 1.0) * len(handles)
        expected = np.where(np.isin(batch["indexes"], handles), priority, 1.0) / total
        np.testing.assert_allclose(batch["probabilities"], expected, rtol=1e-6)
        assert abs((batch["id"] >= n).mean() - (1.0 - n / total)) < 0.05


def test_draws_are_whole_after_one_that_was_interrupted() -> None:
    """At each line of the requests: batches that are half done are dropped."""

    def is_of_requests(path: str) -> bool:
        return path.endswith("_ahead.py")

    with cluster(2) as replay, replay.learner(Prioritized(), seed=0) as learner:
        for number in range(2):
            fill(replay, number, steps(20 * number, 20))
        view = learner.view(NStep(1, rew="rew"))
        names: dict[int, int] = {}  # indexes by id

        def draw() -> None:
            batch = view.sample(8)
            for row, index in zip(batch["id"].tolist(), batch["indexes"].tolist(), strict=True):
                assert names.setdefault(row, index) == index

        for line in first_and_last(draw, is_of_requests):
            with contextlib.suppress(Cut), cut_at(line, only=is_of_requests):
                draw()
            draw()
            draw()
