"""Mixtures of the rows of a cluster and of a buffer, such as demonstrations."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from cluster_cases import FIELDS, cluster, each_place, filled, steps

from cpprb_like import Mixture, NotEnoughDataError, PrioritizedReplayBuffer, ReplayBuffer
from cpprb_like.samplers import Prioritized
from cpprb_like.views import AtMost, Groups, Sequences


def demonstrations(sampler: Any = None) -> ReplayBuffer:
    """A buffer of 50 rows with the numbers from 1,000 on."""
    made: Any = ReplayBuffer if sampler is None else PrioritizedReplayBuffer
    options = {} if sampler is None else {"sampler": sampler}
    rb: ReplayBuffer = made(50, FIELDS, seed=0, **options)
    rb.add(**steps(1000, 50))
    return rb


def test_a_mixture_has_the_shares_of_a_cluster_and_of_a_buffer() -> None:
    """Of the learner, and of its views."""
    with filled([30, 20]) as replay:
        for _ in each_place():
            with replay.learner(seed=0, ahead=1) as learner:
                for online, demos in (
                    (learner, demonstrations()),
                    (learner.view(Sequences(3)), demonstrations().view(Sequences(3))),
                ):
                    mixture = Mixture({"online": online, "demos": demos}, {"online": 3, "demos": 1})
                    batch = mixture.sample(40)
                    first = batch["id"].reshape(40, -1)[:, 0]
                    assert (first >= 1000).tolist() == [False] * 30 + [True] * 10
                    assert batch["source"].tolist() == [0] * 30 + [1] * 10
                    with pytest.raises(NotEnoughDataError, match="hold 50"):
                        mixture.sample(80, replace=False)


def test_priorities_of_a_mixture_go_to_the_cluster_and_to_the_buffer() -> None:
    """A wrong index changes nothing."""
    with filled([30, 20]) as replay:
        for _ in each_place():
            sampler = Prioritized(alpha=1.0, eps=0.0, beta=1.0)
            demos = demonstrations(Prioritized(alpha=1.0, eps=0.0, beta=1.0))
            with replay.learner(sampler, seed=0, ahead=0) as learner:
                mixture = Mixture({"online": learner, "demos": demos}, {"online": 1, "demos": 1})
                batch = mixture.sample(400)
                wrong = np.append(batch["indexes"], 2**62 + 12)
                with pytest.raises(IndexError, match=r"indexes\[400\]"):
                    mixture.update_priorities(wrong, np.zeros(401))
                mixture.update_priorities(batch["indexes"], (batch["id"] % 10 == 3).astype(float))
                learner.flush()
                learner.sample(10)  # of hosts by their masses before the update
                again = mixture.sample(400)["id"]
                drawn = set(batch["id"].tolist())
                assert all(one % 10 == 3 or one not in drawn for one in again.tolist())


def test_a_part_that_a_cluster_cannot_draw_counts_no_row_of_the_others() -> None:
    """Groups that are drawn at most once."""
    fields = FIELDS | {"key": {"shape": (), "dtype": np.int64}}
    with cluster(1, env_dict=fields) as replay, replay.learner(seed=0) as learner:
        with replay.actor() as actor:
            actor.add(**steps(0, 12), key=np.arange(12) // 2)
        rb = ReplayBuffer(50, fields, seed=0)
        rb.add(**steps(1000, 50), key=np.arange(50) // 2)
        rules = Groups("key", 2), AtMost(1)
        online, demos = learner.view(*rules), rb.view(Groups("key", 2), AtMost(1))
        mixture = Mixture({"demos": demos, "online": online}, {"demos": 1, "online": 1})
        with pytest.raises(NotEnoughDataError, match=r"online.* 7 distinct rows.* hold 6"):
            mixture.sample(28)
        assert demos.stats()["rows_left"] == 50
        batch = mixture.sample(24)
        assert sorted(batch["id"][12:].tolist()) == list(range(12))
        assert demos.stats()["rows_left"] == 38
        with pytest.raises(NotEnoughDataError):
            mixture.sample(4)


def test_an_empty_cluster_has_no_part_of_a_mixture() -> None:
    """As an empty buffer: training may begin with demonstrations."""
    with cluster(1) as replay, replay.learner(seed=0) as learner:
        mixture = Mixture({"online": learner, "demos": demonstrations()}, {"online": 1, "demos": 1})
        assert (mixture.sample(8)["id"] >= 1000).all()
