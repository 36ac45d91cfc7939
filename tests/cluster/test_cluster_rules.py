"""Rules of views that each host follows for its own rows: ``Groups`` and ``AtMost``."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from cluster_cases import ELSEWHERE, FIELDS, cluster, each_place, fill, filled, kill_host, steps

from cpprb_like.errors import NotEnoughDataError
from cpprb_like.processes import Actor
from cpprb_like.ray._ahead import distinct_owners
from cpprb_like.ray._connection import Connection
from cpprb_like.samplers import Prioritized
from cpprb_like.views import Among, AtMost, Groups, Newest, Packed, Sequences, Share

KEYED: dict[str, Any] = FIELDS | {"key": {"shape": (), "dtype": np.int64}}
K = 3


def keyed(first: int, keys: Any) -> dict[str, Any]:
    """Steps with these keys."""
    return steps(first, len(keys)) | {"key": np.asarray(keys)}


def chi_square(observed: Any, expected: Any) -> None:
    """Numbers of draws have this distribution."""
    wanted = np.asarray(expected) / np.sum(expected) * np.sum(observed)
    chi = ((observed - wanted) ** 2 / wanted).sum()
    freedom = len(wanted) - 1
    assert chi < freedom + 6 * np.sqrt(2 * freedom)


def test_groups_are_whole_and_drawn_by_the_mass_of_their_last_rows() -> None:
    """Five groups on one host, two on another one, and a third host with a part of a group."""
    with cluster(3, env_dict=KEYED) as replay:
        fill(replay, 0, keyed(0, np.tile(np.arange(5), K)))
        fill(replay, 1, keyed(15, np.repeat([5, 6], K)))
        fill(replay, 2, keyed(21, [7, 7]))
        members = [[key, key + 5, key + 10] for key in range(5)] + [[15, 16, 17], [18, 19, 20]]
        priorities = 1.0 + np.arange(7) ** 2
        for _ in each_place():
            with replay.learner(seed=0, ahead=1) as learner:
                view = learner.view(Groups("key", K))
                drawn = [draw_groups(view, members)[0] for _ in range(40)]
                chi_square(np.bincount(np.concatenate(drawn), minlength=7), np.ones(7))
                with pytest.raises(ValueError, match="a multiple of 3"):
                    view.sample(4)
                among = Among(lambda rows: rows["id"] != 11, "id")  # in the group of key 1
                both = learner.view(among, Groups("key", K), Sequences(1))
                assert set(draw_groups(both, members)[0].tolist()) == {0, 2, 3, 4, 5, 6}
            sampler = Prioritized(alpha=1.0, eps=0.0, beta=1.0)
            with replay.learner(sampler, seed=0, ahead=0) as ranked:
                view = ranked.view(Groups("key", K))
                keys, batch = draw_groups(view, members)
                last = batch["indexes"].reshape(-1, K)[:, -1]
                view.update_priorities(last, priorities[keys])
                ranked.flush()
                view.sample(120)  # of hosts by their masses before the update
                count = np.zeros(7)
                for _ in range(40):
                    keys, batch = draw_groups(view, members)
                    count += np.bincount(keys, minlength=7)
                    weights = priorities[keys].min() / priorities[keys]
                    np.testing.assert_allclose(batch["weights"][::K], weights, rtol=1e-5)
                    assert (batch["weights"].reshape(-1, K) == batch["weights"][::K, None]).all()
                chi_square(count, priorities)


def draw_groups(view: Any, members: Any) -> tuple[Any, Any]:
    """The groups of a batch, by their numbers, and the batch."""
    batch = view.sample(120, indexes=True)
    rows = batch["id"].reshape(-1, K)
    keys = batch["key"].reshape(-1, K)[:, 0]
    assert (rows == np.array(members)[keys]).all()
    assert len(set(batch["indexes"].tolist())) == len(set(batch["id"].ravel().tolist()))
    return keys, batch


def test_groups_break_when_a_row_gets_another_key() -> None:
    """Before the next draw that a learner of the node makes; without groups an error says so."""
    with cluster(2, env_dict=KEYED) as replay, replay.actor(host=0) as actor:
        assert isinstance(actor, Actor)
        actor.add(**keyed(0, np.repeat([0, 1], 2)))
        fill(replay, 1, keyed(4, [2, 3]))
        with replay.learner(seed=0) as learner:
            view = learner.view(Groups("key", 2))
            assert set(view.sample(40)["key"].tolist()) == {0, 1}
            actor.update([0], key=[9])
            assert set(view.sample(40)["id"].tolist()) == {2, 3}
            actor.update([2], key=[8])
            with pytest.raises(NotEnoughDataError, match="no host has a row to draw by Groups"):
                view.sample(2)


def test_each_row_is_drawn_at_most_so_many_times() -> None:
    """On hosts with 4, 30 and no rows; what is refused does not count, and new rows do."""
    with filled([4, 30, 1]) as replay:
        only = Among(lambda rows: rows["id"] != 34, "id")  # none of the third host
        added = 35
        for _ in each_place():
            for sampler in (None, Prioritized()):
                with replay.learner(sampler, seed=1) as learner:
                    view = learner.view(AtMost(2), only)
                    seen: Counter[int] = Counter()
                    while left := int(view.stats()["rows_left"]):
                        if left < 8:
                            with pytest.raises(NotEnoughDataError, match=f"have {left} .* AtMost"):
                                view.sample(8)
                        batch = view.sample(min(left, 8))["id"].tolist()
                        assert len(set(batch)) == len(batch)
                        seen.update(batch)
                    assert seen == dict.fromkeys({*range(added)} - {34}, 2)
                    with pytest.raises(NotEnoughDataError, match="to draw by AtMost, Among"):
                        view.sample(1)
                    fill(replay, 0, steps(added, 1))
                    assert view.sample(1)["id"].tolist() == [added]
                    added += 1


def test_groups_are_drawn_at_most_so_many_times_and_rows_of_any_length_too() -> None:
    """A host keeps one count of a view whose values travel packed."""
    fields = {
        "key": {"shape": (), "dtype": np.int64},
        "tokens": {"shape": ("T",), "dtype": np.int32},
    }
    with cluster(2, env_dict=fields, room={"T": 4000}) as replay:
        for host in range(2):
            keys = np.repeat(np.arange(4), 2) + 4 * host
            fill(replay, host, {"key": keys, "tokens": [np.full(key + 1, key) for key in keys]})
        for _ in each_place():
            with replay.learner(seed=1) as learner:
                view = learner.view(Groups("key", 2), AtMost(1), Packed())
                found = [view.sample(4) for _ in range(4)]
                keys = np.concatenate([batch["key"] for batch in found])
                assert np.bincount(keys).tolist() == [2] * 8
                for batch in found:
                    np.testing.assert_array_equal(
                        batch["tokens"], np.repeat(batch["key"], batch["key"] + 1)
                    )
                with pytest.raises(NotEnoughDataError, match="by Groups, AtMost"):
                    view.sample(2)
                assert view.stats()["rows_left"] == 0


def test_hosts_of_distinct_items_are_those_of_one_buffer() -> None:
    """With equal masses, the number of items of a host has the hypergeometric distribution."""
    rng, left = np.random.default_rng(0), np.array([3, 5, 9])
    ours, theirs = np.zeros((2, 4))
    for _ in range(4000):
        owners = distinct_owners(left.astype(float), left, 6, rng)
        assert (np.bincount(owners, minlength=3) <= left).all()
        ours[(owners == 0).sum()] += 1
        theirs[(rng.permutation(17)[:6] < 3).sum()] += 1
    chi_square(ours, theirs + 0.0)
    every = distinct_owners(np.array([1e9, 1.0]), np.array([2, 3]), 5, rng)
    assert np.bincount(every).tolist() == [2, 3]


def test_a_host_that_is_started_again_counts_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """For a learner of another node, whose counts that host had; the other host keeps its own."""
    monkeypatch.setattr(Connection, "node", lambda _: ELSEWHERE)
    with filled([6, 6]) as replay, replay.learner(seed=0) as learner:
        view = learner.view(AtMost(1))
        view.sample(12)
        kill_host(replay.hosts[0])
        assert set(view.sample(6)["id"].tolist()) == set(range(6))
        with pytest.raises(NotEnoughDataError, match="AtMost"):
            view.sample(1)


def test_a_rule_that_is_refused_is_named() -> None:
    """And no other one."""
    with filled([40, 40]) as replay, replay.learner(seed=0) as learner:
        for rule, named in (
            (Share({"id": "equal"}), "Share"),
            (Newest("id", half_life=2), "half_life=2"),
            (Newest("id", at_least=lambda: 3), "at_least=<function"),
        ):
            with pytest.raises(TypeError, match=f"{named}.* not for a cluster") as caught:
                learner.view(AtMost(1), rule)
            assert "AtMost" not in str(caught.value)
        assert learner.view(Newest("id", at_least=70)).sample(20)["id"].min() >= 70
        newest = learner.view(Newest("id", 3)).sample(100)["id"]  # of each host
        assert set(newest.tolist()) <= {37, 38, 39, 77, 78, 79}
