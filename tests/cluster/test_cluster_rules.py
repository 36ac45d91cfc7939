"""Rules of views over hosts: ``Groups`` and ``AtMost`` of each, and shares of values of all."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from cluster_cases import (
    ELSEWHERE,
    FIELDS,
    cluster,
    each_place,
    fill,
    filled,
    kill_host,
    steps,
    until,
)

from cpprb_like.errors import NotEnoughDataError
from cpprb_like.processes import Actor
from cpprb_like.ray._connection import Connection
from cpprb_like.ray._owners import distinct_owners
from cpprb_like.samplers import Prioritized
from cpprb_like.views import Among, AtMost, Groups, Newest, Packed, Rule, Sequences, Share

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


def test_each_row_comes_once_in_batches_by_a_budget() -> None:
    """Rows that wait come in the last batch; a host without rows is asked for none."""
    fields = {
        "x": {"shape": (), "dtype": np.int64},
        "tokens": {"shape": ("T",), "dtype": np.int32},
    }

    def rows(first: int, n: int) -> dict[str, Any]:
        numbers = np.arange(first, first + n)
        return {"x": numbers, "tokens": [np.full(x % 7 + 1, x) for x in numbers]}

    with cluster(2, env_dict=fields, room={"T": 4000}) as replay:
        fill(replay, 0, rows(0, 5))
        fill(replay, 1, rows(5, 60))
        added = 65
        for _ in each_place():
            with replay.learner(seed=1) as learner:
                for prefetch in (0, 2):
                    view = learner.view(AtMost(1), Packed())
                    with view.batches(items={"T": 40}, prefetch=prefetch) as batches:
                        assert drain(batches) == list(range(added))
                        fill(replay, 0, rows(added, 3))
                        assert drain(batches) == list(range(added, added + 3))
                    added += 3


def drain(batches: Any) -> list[int]:
    """The numbers of the rows of all batches until an error says that there are no more."""
    found: list[int] = []
    while True:
        try:
            batch = next(batches)
        except NotEnoughDataError:
            return sorted(found)
        assert len(batch["tokens"]) <= 40
        expected = np.repeat(batch["x"], np.diff(batch["T_offsets"]))
        np.testing.assert_array_equal(batch["tokens"], expected)
        found += batch["x"].tolist()


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


class OfAll(Rule):
    """Needs the rows of all hosts."""

    by_host = False

    def masses(self, rows: Any, slots: Any) -> Any:
        raise NotImplementedError

    def __repr__(self) -> str:
        return "OfAll()"


def test_a_rule_that_is_refused_is_named() -> None:
    """And no other one."""
    with filled([40, 40]) as replay, replay.learner(seed=0) as learner:
        with pytest.raises(TypeError, match=r"OfAll\(\) is not for a cluster") as caught:
            learner.view(AtMost(1), OfAll())
        assert "AtMost" not in str(caught.value)
        assert learner.view(Newest("id", at_least=70)).sample(20)["id"].min() >= 70
        newest = learner.view(Newest("id", 3)).sample(100)["id"]  # of each host
        assert set(newest.tolist()) <= {37, 38, 39, 77, 78, 79}


class Policy:
    """A version that cannot go to another process."""

    def __init__(self) -> None:
        self.version, self.calls = 0.0, 0

    def __reduce__(self) -> Any:
        raise TypeError("not for another process")

    def least(self) -> float:
        """The least version that may be drawn."""
        self.calls += 1
        return self.version


@pytest.mark.parametrize("hosts", [1, 2])
def test_a_function_is_asked_by_the_learner(hosts: int) -> None:
    """At each request: hosts draw by its value, which may rise and fall, and by rows of then."""
    n = 40 * hosts
    with filled([40] * hosts) as replay:
        added = n
        for _ in each_place():
            for sampler in (None, Prioritized()):
                policy = Policy()
                newest = Newest("id", at_least=policy.least)
                with replay.learner(sampler, seed=0, ahead=0) as learner:
                    view = learner.view(newest)
                    for least in (0, 30.5, n - 10, 5, n - 2):
                        policy.version = least
                        drawn = view.sample(300)["id"]
                        rows = np.arange(np.ceil(least), added)
                        assert set(drawn.tolist()) <= set(rows.tolist())
                        chi_square(
                            np.bincount(drawn, minlength=added)[rows.astype(int)], rows * 0 + 1
                        )
                    policy.version = added
                    with pytest.raises(NotEnoughDataError, match="by Newest"):
                        view.sample(1)
                    fill(replay, hosts - 1, steps(added, 1))
                    assert set(view.sample(5)["id"].tolist()) == {added}
                    policy.version, added = added - 3, added + 1
                    once = learner.view(newest, AtMost(1))
                    assert once.stats()["rows_left"] == 4
                    policy.version += 2
                    assert sorted(once.sample(2)["id"].tolist()) == [added - 2, added - 1]
                    policy.version = np.nan
                    with pytest.raises(ValueError, match="at_least: expected a number, got nan"):
                        view.sample(5)


def test_a_batch_ahead_has_the_version_of_its_request() -> None:
    """And later ones have that of theirs; values of any length come by it too."""
    fields: dict[str, Any] = {"id": {"shape": (), "dtype": int}, "ids": {"shape": ("T",)}}
    with cluster(2, env_dict=fields, room={"T": 1000}) as replay:
        for host in range(2):
            numbers = np.arange(20 * host, 20 * host + 20)
            fill(replay, host, {"id": numbers, "ids": [np.ones(x % 3 + 1) for x in numbers]})
        for _ in each_place():
            with replay.learner(seed=0, ahead=2, batches=2) as learner:
                policy = Policy()
                view = learner.view(Newest("id", at_least=policy.least), Packed())
                leasts = []
                for step in range(40):
                    policy.version = min(step, 35)
                    leasts.append(policy.version)
                    batch = view.sample(16)
                    assert batch["id"].min() >= leasts[max(0, step - 6)]
                assert batch["id"].min() == 35
                assert policy.calls <= 43


TASKS: dict[str, Any] = FIELDS | {"task": {"shape": (), "dtype": np.int64}, "least": {"shape": ()}}


def with_tasks(first: int, tasks: Any) -> dict[str, Any]:
    """Steps of these tasks."""
    rows = steps(first, len(tasks))
    return rows | {"task": np.asarray(tasks), "least": rows["id"]}


# Tasks of the rows of three hosts, in order; task 4 is of one host alone, task 5 has no share.
OF_HOSTS = [[0] * 30 + [1] * 5 + [5] * 3, [0] * 4 + [1] * 40 + [4] * 2, [0] * 7 + [5]]
SHARES: dict[Any, Any] = {4: 0.25, 0: 0.5, 1: 0.25, 9: 7}  # no row of task 9


def tasks_filled() -> tuple[Any, Any]:
    """A cluster with these tasks, and the task of each row."""
    replay, first = cluster(len(OF_HOSTS), env_dict=TASKS), 0
    for number, tasks in enumerate(OF_HOSTS):
        fill(replay, number, with_tasks(first, tasks))
        first += len(tasks)
    return replay, np.concatenate(OF_HOSTS)


def test_values_have_their_shares_of_each_batch_over_all_hosts() -> None:
    """Uniformly among the rows of a value, whichever host they are on; by priority too."""
    replay, tasks = tasks_filled()
    expected = [4] * 10 + [0] * 20 + [1] * 10
    with replay:
        priorities = 1.0 + np.arange(len(tasks)) % 5
        for _ in each_place():
            with replay.learner(seed=0, ahead=1, batches=4) as learner:
                view = learner.view(Share({"task": SHARES}))
                check_batches(view, tasks, expected, np.ones(len(tasks)))
                equal = learner.view(Share({"task": "equal"}), Sequences(2))
                one = equal.sample(40)["task"][:, 0].tolist()
                assert one == np.repeat([0, 1, 4, 5], 10).tolist()
                odd = [equal.sample(2)["task"][:, 0].tolist() for _ in range(400)]
                assert all(first < second for first, second in odd)
                chi_square(np.bincount(np.ravel(odd))[[0, 1, 4, 5]], np.ones(4))
                check_schedules(learner)
            sampler = Prioritized(alpha=1.0, eps=0.0, beta=0.5, probabilities=True)
            with replay.learner(sampler, seed=0, ahead=0) as ranked:
                view = ranked.view(Share({"task": SHARES}))
                batch = view.sample(4000)
                assert len(set(batch["id"].tolist())) == np.isin(tasks, [0, 1, 4]).sum()
                view.update_priorities(batch["indexes"], priorities[batch["id"]])
                ranked.flush()
                view.sample(400)  # of hosts by their masses before the update
                check_batches(view, tasks, expected, priorities)
                batch = ranked.view(Share({"task": SHARES}), Sequences(2)).sample(40)
                assert batch["task"][:, 0].tolist() == expected
                drawn = priorities[batch["id"][:, 0]]
                np.testing.assert_allclose(batch["weights"], (drawn / drawn.min()) ** -0.5, 1e-5)


def check_batches(view: Any, tasks: Any, expected: list[int], weights: Any) -> None:
    """Batches have exact parts, each drawn by these weights; and the columns say so."""
    counts = np.zeros(len(tasks))
    totals = np.bincount(tasks, weights)
    for _ in range(60):
        batch = view.sample(40)
        assert batch["task"].tolist() == expected
        assert (tasks[batch["id"]] == expected).all()
        np.testing.assert_array_equal(batch["obs"][:, 1], batch["id"] + 0.25)
        counts += np.bincount(batch["id"], minlength=len(tasks))
        if "weights" in batch:
            drawn = weights[batch["id"]]
            found = (drawn / drawn.min()) ** -0.5
            np.testing.assert_allclose(batch["weights"], found, rtol=1e-5)
            assert (batch["least"] == batch["id"]).all()  # a field, and no note of the draw
            shares = np.bincount(expected, minlength=6)[expected] / 40
            chances = drawn * shares / totals[expected]
            np.testing.assert_allclose(batch["probabilities"], chances, rtol=1e-6)
    for task in (0, 1, 4):
        chi_square(counts[tasks == task], weights[tasks == task])


def check_schedules(learner: Any) -> None:
    """By the number of batches of the view, although these are asked for ahead of need."""
    view = learner.view(Share({"task": {0: lambda t: 10 - t, 1: lambda t: t}}))
    other = learner.view(Share({"task": {4: lambda t: max(1 - t, 0), 9: lambda t: t}}))
    for t in range(11):
        if t in (3, 5):
            learner.sample(2)  # drops what was asked for
        assert view.sample(10)["task"].tolist() == [0] * (10 - t) + [1] * t
    with pytest.raises(ValueError, match=r"the share of 0.*-1"):
        view.sample(10)
    assert other.sample(3)["task"].tolist() == [4] * 3
    with pytest.raises(NotEnoughDataError, match="no host has a row to draw by Share"):
        other.sample(3)


def test_shares_of_a_single_host_follow_their_schedule() -> None:
    """A learner of the node draws as from one buffer."""
    with cluster(1, env_dict=TASKS) as replay:
        fill(replay, 0, with_tasks(0, np.arange(12) % 3))
        for sampler in (None, Prioritized()):
            with replay.learner(sampler, seed=0) as learner:
                view = learner.view(Share({"task": {0: lambda t: 10 - t, 1: lambda t: t}}))
                for t in range(11):
                    learner.sample(2)
                    assert view.sample(10)["task"].tolist() == [0] * (10 - t) + [1] * t
                with pytest.raises(NotEnoughDataError, match="to draw by Share"):
                    learner.view(Share({"task": {7: 1}})).sample(1)


def test_shares_go_with_rules_that_count_and_with_rows_of_any_length() -> None:
    """A value with fewer rows left than its part is named; one without any gives its share."""
    fields = {
        "key": {"shape": (), "dtype": np.int64},
        "tokens": {"shape": ("T",), "dtype": np.int32},
    }
    with cluster(2, env_dict=fields, room={"T": 4000}) as replay:
        for host, keys in enumerate(([1, 1, 2], [1, 2, 2, 2, 3])):
            fill(replay, host, {"key": keys, "tokens": [np.full(key, key) for key in keys]})
        for _ in each_place():
            with replay.learner(seed=1) as learner:
                shares = Share({"key": {2: 0.5, 1: 0.5}})
                packed = learner.view(shares, Packed()).sample(40)
                assert packed["key"].tolist() == [2] * 20 + [1] * 20
                assert packed["tokens"].tolist() == [2] * 40 + [1] * 20
                view = learner.view(shares, AtMost(1), Packed())
                more = learner.view(Share({"key": {2: 0.2, 1: 0.8}}), AtMost(1), Packed())
                with pytest.raises(NotEnoughDataError, match=r"4 distinct items of key 1.* have 3"):
                    more.sample(5)
                found = [view.sample(n)["key"].tolist() for n in (6, 1)]
                assert found == [[2, 2, 2, 1, 1, 1], [2]]
                assert view.stats()["rows_left"] == 0
                with pytest.raises(NotEnoughDataError, match="by Share, AtMost"):
                    view.sample(1)


def test_a_row_that_gets_another_value_counts_there() -> None:
    """Also where a host no longer has the rows that it was asked for."""
    with cluster(2, env_dict=TASKS) as replay, replay.actor(host=0) as actor:
        assert isinstance(actor, Actor)
        actor.add(**with_tasks(0, [0, 0, 1]))
        fill(replay, 1, with_tasks(3, [0, 2, 2]))
        for _ in each_place():
            with replay.learner(seed=0) as learner:
                view = learner.view(Share({"task": {1: 0.5, 0: 0.5}}))
                assert view.sample(40)["task"].tolist() == [1] * 20 + [0] * 20
                actor.update([2], task=[0])
                until(lambda one=view: one.sample(40)["task"].tolist() == [0] * 40)
                assert set(view.sample(200)["id"].tolist()) == {0, 1, 2, 3}
                actor.update([2], task=[1])
                until(lambda one=view: one.sample(40)["task"].tolist() == [1] * 20 + [0] * 20)
                with pytest.raises(NotEnoughDataError, match="to draw by Share"):
                    learner.view(Share({"task": {7: 1}})).sample(1)


def test_half_lives_are_behind_the_newest_version_of_all_hosts() -> None:
    """Two hosts whose masses are relative to versions 0 and 256, and one that is far behind."""
    fields = FIELDS | {"version": {"shape": (), "dtype": np.int64}}
    of_hosts = [253, 254, 255, 200], [252, 254, 256, 257], [-3000, -3000, -3000, -3000]
    versions = np.concatenate(of_hosts)
    with cluster(3, env_dict=fields) as replay:
        for host, one in enumerate(of_hosts):
            fill(replay, host, steps(4 * host, 4) | {"version": np.array(one)})
        masses = np.exp2(versions - 257.0)
        close = versions > 250
        for _ in each_place():
            with replay.learner(seed=0) as learner:
                newest = Newest("version", half_life=1)
                drawn = learner.view(newest).sample(8000)["id"]
                counts = np.bincount(drawn, minlength=12)
                assert not counts[~close].any()
                chi_square(counts[close], masses[close])
                halves = learner.view(newest, Share({"rew": {0: 0.5, 4: 0.5}}))
                counts = np.bincount(halves.sample(8000)["id"], minlength=12)
                chi_square(counts[[0, 7]], masses[[0, 7]])
                assert counts[4] == 4000  # the other row of this value is far behind
                once = learner.view(newest, AtMost(1))
                assert sorted(once.sample(8)["id"].tolist()) == list(range(8))
                assert set(once.sample(4)["version"].tolist()) == {-3000}
