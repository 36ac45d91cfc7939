"""Single steps of an actor on a node without a host arrive as those that are added at once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cpprb_like.ray import ClusterActor, ClusterReplay


@pytest.mark.parametrize("n_envs", [1, 3])
def test_single_steps_and_several_at_once_alternate(
    n_envs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also those with priorities, and steps of some environments; a bad step adds nothing."""
    monkeypatch.setattr(ClusterReplay, "_node", lambda _: "elsewhere")
    fields: dict[str, Any] = {
        "x": {"shape": 2},
        "id": {"shape": (), "dtype": np.int64},
        "done": {"shape": (), "dtype": bool},
    }
    lead = (n_envs,) if n_envs > 1 else ()
    given = 0

    def steps(*shape: int) -> dict[str, Any]:
        nonlocal given
        ids = np.arange(given, given + int(np.prod((*shape, *lead), dtype=int)))
        given += len(ids)
        ids = ids.reshape((*shape, *lead))
        return {"x": np.stack([ids, ids + 0.5], -1), "id": ids, "done": ids % 7 == 6}

    with ClusterReplay(10_000, fields, writers=1, hosts=1, n_envs=n_envs, next_of="x") as replay:
        with replay.actor() as actor:
            assert isinstance(actor, ClusterActor)
            for number in range(150):
                now = steps()
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
                    many = steps(5)
                    actor.add(**many, next_x=many["x"] + 1)
        batch = replay.learner(seed=0).sample(20_000)
    ids = batch["id"]
    assert set(ids.tolist()) == set(range(given))
    np.testing.assert_array_equal(batch["x"], np.stack([ids, ids + 0.5], -1))
    np.testing.assert_array_equal(batch["next_x"], batch["x"] + 1)
