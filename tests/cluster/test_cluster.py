"""A replay over several hosts draws what one buffer with all rows draws, and loses nothing."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cluster_cases import (
    ELSEWHERE,
    FIELDS,
    UNEVEN,
    cluster,
    each_place,
    fill,
    filled,
    flush,
    pid_of,
    steps,
    until,
    wipe,
)
from local_ray import ray

from cpprb_like import PrioritizedReplayBuffer, ReplayBuffer
from cpprb_like.errors import NotEnoughDataError, RateLimitTimeoutError
from cpprb_like.limiters import MinSize, SampleToInsertRatio
from cpprb_like.processes import Actor
from cpprb_like.ray import ClusterActor, ClusterReplay
from cpprb_like.ray._calls import Unknown
from cpprb_like.samplers import Prioritized, Uniform
from cpprb_like.views import (
    Advantages,
    Among,
    FrameStacks,
    NStep,
    Offsets,
    Sequences,
)


def test_an_actor_adds_and_a_learner_draws() -> None:
    """The words are those of a shared replay."""
    with cluster() as replay:
        for number, where in enumerate(each_place()):
            with replay.actor() as actor:
                assert isinstance(actor, ClusterActor if where == ELSEWHERE else Actor)
                for k in range(100 * number, 100 * number + 100):
                    actor.add(**{name: values[0] for name, values in steps(k, 1).items()})
            count = 100 * number + 100
            with replay.learner(seed=0) as learner:
                assert len(learner) == count
                for _ in range(20):
                    batch = learner.sample(32)
                    expected = steps(0, count)
                    for name, values in batch.items():
                        np.testing.assert_array_equal(values, expected[name][batch["id"]])
                        assert values.flags.writeable
                        assert values.ctypes.data % 64 == 0
            until(lambda count=count: replay.stats()["inserts"] == count)


@pytest.mark.parametrize("hosts", UNEVEN)
def test_draws_are_those_of_one_buffer(hosts: int) -> None:
    """By the chi-square test; weights are those of one buffer, row by row."""
    with filled(UNEVEN[hosts]) as replay:
        for _ in each_place():
            for kind in (Uniform, Prioritized):
                compare_draws(replay, sum(UNEVEN[hosts]), kind)


def compare_draws(replay: ClusterReplay, n: int, kind: Any) -> None:
    """Compare the draws of a new learner with those of one buffer with all rows."""
    priorities = 0.1 + np.random.default_rng(1).random(n) * 3
    with replay.learner(make(kind), seed=1, ahead=1) as learner:
        one = (
            ReplayBuffer(n, FIELDS, seed=2)
            if kind is Uniform
            else PrioritizedReplayBuffer(n, FIELDS, sampler=make(kind), seed=2)
        )
        one.add(**steps(0, n))
        if kind is not Uniform:
            seen: set[int] = set()
            while len(seen) < n:
                batch = learner.sample(256)
                learner.update_priorities(batch["indexes"], priorities[batch["id"]])
                seen |= set(batch["id"].tolist())
            learner.flush()
            handles = one.sample(n, replace=False)
            one.update_priorities(handles["indexes"], priorities[handles["id"]])
            learner.sample(8)
            learner._batches.groups.clear()  # those that were drawn before the updates
        drawn = np.zeros(n)
        weights: dict[int, float] = {}
        for _ in range(80):
            batch = learner.sample(250)
            drawn += np.bincount(batch["id"], minlength=n)
            if kind is not Uniform:
                weights.update(zip(batch["id"].tolist(), batch["weights"].tolist(), strict=True))
        expected = np.full(n, 1 / n)
        if kind is Prioritized:
            expected = (priorities + 1e-4) ** 0.6
            expected /= expected.sum()
            batch = one.sample(4000)
            for row, weight in zip(batch["id"].tolist(), batch["weights"].tolist(), strict=True):
                if row in weights:
                    assert weights[row] == pytest.approx(weight, rel=1e-5)
        total = drawn.sum()
        few = expected * total < 5
        chi = ((drawn - expected * total) ** 2 / (expected * total))[~few].sum()
        freedom = (~few).sum() - 1
        assert chi < freedom + 6 * np.sqrt(2 * max(freedom, 1)) + 6


def make(kind: Any) -> Any:
    """A sampler."""
    return kind()


def test_views_read_what_those_of_one_buffer_read() -> None:
    """n-step returns, sequences, stacks and goals, row by row."""
    with filled([40, 60]) as replay:
        for _ in each_place():
            with replay.learner(seed=0) as learner:
                compare_views(learner)


def compare_views(learner: Any) -> None:
    """Compare the items of each view with those of a buffer with the same rows."""
    one = ReplayBuffer(100, FIELDS, seed=0)
    one.add(**steps(0, 100))
    layers: list[tuple[Any, ...]] = [
        (NStep(3, gamma=0.5, rew="rew"),),
        (Sequences(4),),
        (Among("done"), NStep(2, gamma=0.5, rew="rew")),
        (FrameStacks({"obs": 3}),),
        (NStep(2, gamma=0.5, rew="rew"), FrameStacks({"obs": 2})),
        (Offsets({"obs": (-2, 0, 1)}), Advantages(0.5, 1.0, value=None, rew="rew")),
    ]
    for given in layers:
        ours, theirs = learner.view(*given), one.view(*given)
        known = {}
        for _ in range(200):
            batch = theirs.sample(64)
            for row in range(64):
                key = np.asarray(batch["id"][row]).reshape(-1)[0].item()
                known[key] = {name: values[row] for name, values in batch.items()}
        for _ in range(10):
            batch = ours.sample(64)
            for row in range(64):
                key = np.asarray(batch["id"][row]).reshape(-1)[0].item()
                assert batch.keys() == known[key].keys()
                for name, values in batch.items():
                    np.testing.assert_array_equal(values[row], known[key][name])


def test_no_row_is_no_endless_wait() -> None:
    """An empty cluster says so."""
    with cluster(2) as replay:
        for _ in each_place():
            with (
                replay.learner(timeout=5.0) as learner,
                pytest.raises(NotEnoughDataError, match="no host has a row"),
            ):
                learner.sample(4)


def test_updates_reach_their_rows_once_and_late_ones_are_counted(where: str) -> None:
    """A row that was written over keeps nothing of an update that comes too late."""
    with cluster(capacity=40) as replay, replay.actor() as actor:
        actor.add(**steps(0, 20))
        flush(actor)
        with replay.learner(Prioritized(alpha=1.0, eps=0.0), seed=0, ahead=0) as learner:
            batch = learner.sample(64)
            learner.update_priorities(batch["indexes"], np.where(batch["id"] == 3, 1.0, 0.0))
            learner.flush()
            missing = set(range(20)) - set(batch["id"].tolist())
            assert set(learner.sample(64)["id"].tolist()) <= {3, *missing}
            actor.add(**steps(100, 20))
            flush(actor)
            learner.update_priorities(batch["indexes"], np.full(64, 5.0))
            learner.flush()
            assert learner.stats()["late_updates"] == 64
            assert learner.stats()["updates"] == 128
            with pytest.raises(IndexError):
                learner.update_priorities([5000], [1.0])


def test_an_update_of_no_row_is_an_error_once_and_later_ones_take_effect() -> None:
    """A host on another node raised it again for each later call, and took no further update."""

    def update(learner: Any, handles: Any, priorities: Any) -> None:
        learner.update_priorities(handles, priorities)
        learner.flush()

    with cluster() as replay:
        fill(replay, 0, steps(0, 2))
        for _ in each_place():
            with replay.learner(Prioritized(alpha=1.0, eps=0.0), seed=0, ahead=0) as learner:
                no_row = learner._batches.names.name(0, np.array([2**40]))
                with pytest.raises(IndexError, match="expected that of a row"):
                    update(learner, no_row, [2.0])
                batch = learner.sample(32)
                update(learner, batch["indexes"], np.where(batch["id"] == 1, 7.0, 0.0))
                assert set(learner.sample(32)["id"].tolist()) == {1}


def test_a_host_makes_adds_in_one_thread_and_draws_in_another() -> None:
    """An update that was sent twice ran beside a newer one, and set its priorities after it."""

    class Slow:
        running = most = 0

        def get(self, *_: Any) -> None:
            self.running += 1
            self.most = max(self.most, self.running)
            time.sleep(0.02)
            self.running -= 1
            raise Unknown

    def begin(host: Any) -> None:
        host.slow = {"adds": Slow(), "draws": Slow()}
        host._writers, host._drawer = host.slow["adds"], host.slow["draws"].get

    calls: dict[str, Any] = {
        "add": ("a", 1, None),
        "has_credit": ("a", 1),
        "mass": ("a", "", 1.0),
        "draw": ("a", "", 1, {}, 1.0),
        "update": ("a", "", [(1, np.zeros(0, np.int64), np.zeros(0), 1.0)]),
    }
    with cluster() as replay:
        (host,) = replay.hosts
        ray.get(host.begin("__ray_call__", begin))
        ray.get([host.begin(name, *given) for _ in range(4) for name, given in calls.items()])
        most = ray.get(host.begin("__ray_call__", lambda it: [x.most for x in it.slow.values()]))
        assert most == [1, 1]
        ray.get(host.begin("__ray_call__", lambda it: setattr(it, "_writers", {})))


def add_each(actor: Any, n: int) -> None:
    """Add steps one by one."""
    for k in range(n):
        actor.add(**{name: values[0] for name, values in steps(k, 1).items()})


def test_bad_steps_are_refused_and_first_priorities_come_with_their_rows() -> None:
    """Nothing is added of the former; the latter are as those that actors of Ape-X compute."""
    with cluster() as replay:
        for number, _ in enumerate(each_place()):
            with replay.actor() as actor, replay.learner() as learner:
                with pytest.raises(TypeError, match="obs"):
                    actor.add(id=1, rew=0.0, done=False)
                with pytest.raises(ValueError, match="obs"):
                    actor.add(**{**steps(0, 1), "obs": [1.0, 2.0]})
                flush(actor)
                assert len(learner) == 3 * number
                actor.add(**steps(0, 3), priorities=[0.0, 4.0, 0.0])
            with replay.learner(Prioritized(alpha=1.0, eps=0.0), seed=0) as ranked:
                assert set(ranked.sample(40)["id"].tolist()) == {1}


def test_a_host_that_is_killed_comes_back_with_its_rows(where: str) -> None:
    """The memory outlives the process of its host: nothing is lost, nothing comes twice."""
    with cluster(2) as replay, replay.actor() as actor:
        learner = replay.learner(Prioritized(), seed=0, timeout=60.0)
        for k in range(300):
            actor.add(**{name: values[0] for name, values in steps(k, 1).items()})
            if k in (90, 200):
                flush(actor)
                os.kill(pid_of(replay.hosts[k % 2]), signal.SIGKILL)
            if k % 50 == 49:
                flush(actor)
                batch = learner.sample(32)
                assert (batch["obs"][:, 0] == batch["id"]).all()
                learner.update_priorities(batch["indexes"], 1.0 + batch["rew"])
        flush(actor)
        learner.flush()
        until(lambda: len(learner) == 300, 60.0)
        seen: dict[int, set[int]] = {}
        for _ in range(80):
            batch = learner.sample(128)
            for row, index in zip(batch["id"].tolist(), batch["indexes"].tolist(), strict=True):
                seen.setdefault(row, set()).add(index)
        assert set(seen) == set(range(300))
        assert max(len(one) for one in seen.values()) <= 3  # one for each incarnation of its host
        assert replay.losses() == []


def test_a_node_that_is_gone_goes_on_from_its_checkpoint(tmp_path: Path, where: str) -> None:
    """What was written since is reported as lost, in rows and seconds."""
    with cluster(checkpoints=tmp_path, checkpoint_seconds=0.3) as replay:
        with replay.actor() as actor:
            actor.add(**steps(0, 100))
        until((tmp_path / "host-0").exists)
        time.sleep(1.0)
        about = replay.hosts[0].call("about", timeout=20.0)
        with replay.actor() as actor:
            actor.add(**steps(100, 50))
            flush(actor)
            until(lambda: replay.stats()["inserts"] == 150)
            wipe(replay, about)
        learner = replay.learner(seed=0)
        until(lambda: len(learner) >= 100, 60.0)
        (loss,) = replay.losses()
        assert loss.rows == 150 - len(learner)
        assert 0 <= loss.seconds < 60


def test_a_save_is_one_commit_and_a_cluster_is_loaded_from_it(tmp_path: Path, where: str) -> None:
    """Twice, so that the second state takes the place of the first."""
    with filled([30, 50]) as replay:
        replay.save(tmp_path / "saved")
        with replay.actor() as actor:
            actor.add(**steps(80, 20))
        replay.save(tmp_path / "saved")
    with ClusterReplay.load(tmp_path / "saved") as again:
        learner = again.learner(seed=0)
        assert len(learner) == 100
        found = np.unique(learner.sample(4000)["id"])
        assert set(found.tolist()) <= set(range(100))
        assert len(found) > 90
    with pytest.raises(FileNotFoundError, match="no cluster was saved"):
        ClusterReplay.load(tmp_path / "none")


def test_parameters_reach_the_actors(where: str) -> None:
    """One array, or a dict of them; the newest version as a copy."""
    with cluster(2) as replay:
        parameters = replay.parameters
        assert parameters.latest() is None
        first = parameters.publish({"w": np.arange(3.0)})
        version, found = parameters.wait()
        assert version == first
        found["w"][0] = 7.0
        assert parameters.latest(after=version) is None
        second = parameters.publish({"w": np.ones(3)})
        latest = parameters.latest(after=version)
        assert latest is not None
        assert latest[0] == second
        np.testing.assert_array_equal(latest[1]["w"], np.ones(3))


def test_a_limiter_holds_both_sides(where: str) -> None:
    """Over all hosts; the errors say what is waited for."""
    limiter = SampleToInsertRatio(2.0, 20, 40.0, timeout=5.0)
    with cluster(2, limiter=limiter) as replay:
        learner = replay.learner(seed=0, ahead=0)
        with pytest.raises(RateLimitTimeoutError, match="waited"):
            learner.sample(8)
        with replay.actor() as actor:
            with pytest.raises(RateLimitTimeoutError):
                add_each(actor, 200)
            until(lambda: replay.stats()["inserts"] == 40)
            for _ in range(3):
                learner.sample(8)
            stats = replay.stats()
            assert stats["samples"] == 24
            assert stats["inserts"] * 2 - stats["samples"] <= 80


def test_min_size_is_over_all_hosts(where: str) -> None:
    """Not of one of them."""
    with cluster(2, limiter=MinSize(30, timeout=5.0)) as replay:
        learner = replay.learner(seed=0, ahead=0)
        with replay.actor() as actor:
            actor.add(**steps(0, 29))
            flush(actor)
            with pytest.raises(RateLimitTimeoutError, match="29 rows"):
                learner.sample(4)
            actor.add(**steps(29, 1))
            flush(actor)
            assert len(learner.sample(4)["id"]) == 4


def test_tasks_take_the_cluster_with_them() -> None:
    """As an argument; what they add is drawn by all."""
    step = {name: values[0] for name, values in steps(7, 1).items()}

    def act(replay: ClusterReplay, first: int) -> str:
        with replay.actor() as actor:
            for number in range(first, first + 50):
                actor.add(**step | {"id": number})
        return type(actor).__name__

    with cluster(writers=3) as replay:
        task = ray.remote(num_cpus=0)(act)
        kinds = ray.get([task.remote(replay, 100 * k) for k in range(3)])
        assert set(kinds) == {"Actor"}
        learner = replay.learner()
        assert len(learner) == 150
        expected = {*range(50), *range(100, 150), *range(200, 250)}
        assert set(learner.sample(5000)["id"].tolist()) <= expected
        assert [number for number, _ in replay.members()] == [0] * len(replay.members())


def test_images_travel_as_they_are_stored() -> None:
    """Frames that stacks share travel once, and come out byte for byte."""
    fields: dict[str, Any] = {
        "id": {"shape": (), "dtype": np.int64},
        "obs": {"shape": (6, 5, 4), "dtype": np.uint8},
        "next_obs": {"shape": (6, 5, 4), "dtype": np.uint8},
        "done": {"shape": (), "dtype": bool},
    }
    rng = np.random.default_rng(0)
    frames = rng.integers(0, 255, (400, 6, 5), dtype=np.uint8)
    options: dict[str, Any] = {"env_dict": fields, "next_of": "obs", "stack_compress": {"obs": -1}}
    known, start = [], 0
    for k in range(300):
        stack = [frames[max(start, k - 3 + j)] for j in range(4)]
        following = [*stack[1:], frames[k + 1]]
        step: dict[str, Any] = {
            "id": k,
            "obs": np.stack(stack, -1),
            "next_obs": np.stack(following, -1),
            "done": k % 37 == 36,
        }
        known.append(step)
        if step["done"]:
            start = k + 1
    with cluster(**options) as replay:
        for _ in each_place():
            with replay.actor() as actor:
                for step in known:
                    actor.add(**step)
            with replay.learner(seed=0) as learner:
                for batch in [learner.sample(64) for _ in range(20)]:
                    for row, number in enumerate(batch["id"].tolist()):
                        for name in fields:
                            np.testing.assert_array_equal(batch[name][row], known[number][name])
