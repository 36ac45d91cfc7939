"""Single steps of an actor on a node without a host arrive as those that are added at once."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import pytest
from cluster_cases import cluster, steps, until

from cpprb_like.errors import RateLimitTimeoutError
from cpprb_like.limiters import SampleToInsertRatio
from cpprb_like.ray import ClusterActor, ClusterReplay
from cpprb_like.ray._connection import Connection


@pytest.mark.parametrize("n_envs", [1, 3])
def test_single_steps_and_several_at_once_alternate(
    n_envs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also those with priorities, and steps of some environments; a bad step adds nothing."""
    monkeypatch.setattr(Connection, "node", lambda _: "elsewhere")
    fields: dict[str, Any] = {
        "x": {"shape": 2},
        "id": {"shape": (), "dtype": np.int64},
        "done": {"shape": (), "dtype": bool},
    }
    lead = (n_envs,) if n_envs > 1 else ()
    given = 0

    def steps_of(*shape: int) -> dict[str, Any]:
        nonlocal given
        ids = np.arange(given, given + int(np.prod((*shape, *lead), dtype=int)))
        given += len(ids)
        ids = ids.reshape((*shape, *lead))
        return {"x": np.stack([ids, ids + 0.5], -1), "id": ids, "done": ids % 7 == 6}

    with ClusterReplay(10_000, fields, writers=1, hosts=1, n_envs=n_envs, next_of="x") as replay:
        with replay.actor() as actor:
            assert isinstance(actor, ClusterActor)
            for number in range(150):
                now = steps_of()
                after = {"next_x": now["x"] + 1}
                with pytest.raises((TypeError, ValueError)):
                    actor.add(**now)
                with pytest.raises((TypeError, ValueError)):
                    actor.add(**{**now, **after, "x": "no"})
                if number % 50 == 20:
                    actor.add(**now, **after, priorities=np.ones(n_envs))
                elif number % 50 == 40:
                    actor.add_where([True] * n_envs, **now, **after)
                else:
                    actor.add(**now, **after)
                now["x"][...] = -1.0  # the environment writes to its array
                if number % 40 == 39:
                    many = steps_of(5)
                    actor.add(**many, next_x=many["x"] + 1)
        batch = replay.learner(seed=0).sample(20_000)
    ids = batch["id"]
    assert set(ids.tolist()) == set(range(given))
    np.testing.assert_array_equal(batch["x"], np.stack([ids, ids + 0.5], -1))
    np.testing.assert_array_equal(batch["next_x"], batch["x"] + 1)


@pytest.mark.parametrize("n", [1, 3])
def test_a_step_that_the_limiter_refused_is_there_once_after_another_try(n: int) -> None:
    """``add`` stored the step of a call that raised, so a second try added it twice."""
    limiter = SampleToInsertRatio(1.0, 8, 16.0, timeout=0.2)
    with cluster(limiter=limiter) as replay, replay.learner(seed=0, ahead=0) as learner:
        refused = 0

        def is_allowed(call: Any, **given: Any) -> bool:
            with contextlib.suppress(RateLimitTimeoutError):
                call(**given)
                return True
            return False

        def repeated(call: Any, **given: Any) -> None:
            """Make a call until the limiter allows it, as learners draw."""
            nonlocal refused
            while not is_allowed(call, **given):
                refused += 1
                if len(learner) >= 8:  # else the machine was slow, or rows are on their way
                    learner.sample(8)

        with ClusterActor(replay.hosts[0], replay._connection.options, 20.0, limiter) as actor:
            for first in range(0, 60, n):
                given = steps(first, n)
                if n == 1:
                    given = {name: values[0] for name, values in given.items()}
                repeated(actor.add, **given)
            repeated(actor.flush)
        assert refused > 2
        until(lambda: len(learner) == 60)
        about = replay.hosts[0].call("about", timeout=20.0)
        with replay._connection.opened(about).learner() as own:
            rows = own.sample(len(own), replace=False)
    assert sorted(rows["id"].tolist()) == list(range(60))


def test_more_steps_than_a_limiter_can_ever_allow_are_refused() -> None:
    """They stayed in the actor, whose later calls all raised the same error."""
    limiter = SampleToInsertRatio(1.0, 8, 16.0, timeout=5.0)
    with cluster(limiter=limiter) as replay, replay.learner(seed=0) as learner:
        with ClusterActor(replay.hosts[0], replay._connection.options, 20.0, limiter) as actor:
            with pytest.raises(ValueError, match="can never allow"):
                actor.add(**steps(0, 500))
            actor.add(**steps(500, 8))
            actor.flush()
        assert set(learner.sample(16)["id"].tolist()) <= set(range(500, 508))
