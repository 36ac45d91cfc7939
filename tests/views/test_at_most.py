"""Rows that are drawn at most so many times, against a dict of counts."""

from __future__ import annotations

import copy
import os
import pickle
import random
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributions import chi_square, chi_square_limit
from helpers import Array
from interruptions import cut_everywhere
from rewound import KINDS, History, Kind, same_batches
from scale import LONG

from cpprb_like import NotEnoughDataError, ReplayBuffer, load
from cpprb_like._rows.row_handles import handles
from cpprb_like.processes import SharedReplay
from cpprb_like.samplers import LegacyUniform, Prioritized, RankBased, Recency, Sampler, Uniform
from cpprb_like.views import Among, AtMost, Groups, NStep, Sequences, Share

HISTORIES = int(os.environ.get("CPPRB_LIKE_MASS_HISTORIES", "60" if LONG else "2"))
FIELDS: dict[str, Any] = {"x": {"shape": (), "dtype": "i8"}, "done": {"shape": (), "dtype": bool}}
WITH_REWARD = FIELDS | {"rew": {"shape": ()}}
M = 2


@pytest.mark.once
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_random_histories(tmp_path: Path, kind: Kind) -> None:
    """A row can be drawn while its handle was drawn fewer than m times, whatever happens."""
    for seed in range(HISTORIES):
        (tmp_path / str(seed)).mkdir()
        chance = random.Random(f"at most {kind.name} {seed}")
        history = History(kind, tmp_path / str(seed), chance)
        rb = history.rb
        views: list[Any] = [
            (rb.view(AtMost(M)), {}),
            (rb.view(AtMost(M), Among(any_row, "mark")), {}),
        ]
        if kind.capacity >= 4 * kind.n_envs:
            views.append((rb.view(AtMost(M), Sequences(3)), {}))
        for _ in range(40):
            history._act()  # and the file stays open
            for view, counts in views:
                draw_and_compare(view, counts, chance)


def any_row(rows: Any) -> Array:
    """A condition that is true of each row."""
    found: Array = rows["mark"] >= 0
    return found


def draw_and_compare(view: Any, counts: dict[int, int], chance: random.Random) -> None:
    """Draw, and compare with the counts of each handle."""
    rb, now = view.buffer, view._now
    slots = rb.ring.present_slots()
    names = handles(rb.ring, slots).tolist() if len(slots) else []
    used = [counts.get(name, 0) >= M for name in names]
    found = view.stats()
    assert found["rows_used_up"] == sum(used)
    left = [slot for slot, is_used in zip(slots.tolist(), used, strict=True) if not is_used]
    left = [slot for slot in left if now.complete.tell(np.array([slot]))[0] == 1]
    assert found["rows_left"] == len(left)
    assert sorted(now.starts.slots().tolist()) == left if len(rb) else not left
    with pytest.raises(NotEnoughDataError):
        view.sample(len(left) + 1)
    if left and chance.random() < 0.7:
        drawn = view.sample(chance.randint(1, len(left)), **indexes_of(rb))["indexes"].tolist()
        assert len(set(drawn)) == len(drawn)
        for name in drawn:
            counts[name] = counts.get(name, 0) + 1
            assert counts[name] <= M


def indexes_of(rb: Any) -> dict[str, Any]:
    """Options for a batch with indexes."""
    return {} if rb.has_priorities else {"indexes": True}


@pytest.mark.parametrize("sampler", [Uniform, Prioritized, RankBased, Recency, LegacyUniform])
@pytest.mark.parametrize("layers", [(), (Sequences(1),), (NStep(3, rew="rew"),)])
def test_each_row_comes_m_times_and_then_no_more(sampler: Any, layers: Any) -> None:
    """Also by ``out=`` and ``fields=``, and the first error counts nothing."""
    rb = ReplayBuffer(50, WITH_REWARD, sampler=sampler(), seed=0)
    rb.add(x=range(50), done=np.arange(50) % 10 == 9, rew=range(50))
    view = rb.view(AtMost(3), *layers)
    out = view.sample(10, fields=["x", "done"], **indexes_of(rb))
    drawn = [out["indexes"].copy()]
    while view.stats()["rows_left"]:
        n = len(view._now.starts.slots())
        with pytest.raises(NotEnoughDataError, match=f"AtMost leaves {n}"):
            view.sample(n + 1)
        batch = view.sample(min(10, n), **indexes_of(rb))
        drawn.append(batch["indexes"])
    counts = np.unique(np.concatenate(drawn), return_counts=True)[1]
    assert counts.tolist() == [3] * 50
    assert view.explain(7)["reasons"] == ["AtMost leaves it out: it was drawn 3 of 3 times"]
    assert view.stats()["rows_used_up"] == 50
    rb.add(x=[50], done=[True], rew=[0])
    assert np.ravel(view.sample(1, fields="x")["x"]).tolist() == [50]


def test_rows_left_are_those_that_can_be_drawn() -> None:
    """With sequences the starts, with a condition the rows that it leaves, and whole groups."""
    rb = ReplayBuffer(60, FIELDS, seed=0)
    rb.add(x=np.arange(50) // 4, done=[False] * 50)
    for layers, left in {
        (): 50,
        (Sequences(10, stride=10),): 5,
        (Among(lambda rows: rows["x"] < 3, "x"),): 12,
        (Groups("x", 4),): 48,
        (Share({"x": {0: 1, 3: 1}}),): 8,
    }.items():
        view = rb.view(AtMost(1), *layers)
        assert view.stats()["rows_left"] == left
        view.sample(4)
        assert view.stats() | {"rows_used_up": 4, "rows_left": left - 4} == view.stats()
    rb.clear()
    assert view.stats()["rows_left"] == 0


def test_updates_keep_counts_and_clears_do_not() -> None:
    """A row is the same row after ``update``; rows after ``clear`` are others."""
    rb = ReplayBuffer(8, FIELDS, seed=0)
    rb.add(x=range(8), done=[False] * 8)
    view = rb.view(AtMost(1), Among("x"))
    assert sorted(view.sample(7)["x"].tolist()) == list(range(1, 8))
    rb.update(np.arange(8), x=np.arange(8) + 10)
    assert view.sample(1)["x"].tolist() == [10]
    with pytest.raises(NotEnoughDataError, match="AtMost leaves 0, Among leaves 8"):
        view.sample(1)
    rb.clear()
    rb.add(x=[1, 2], done=[False] * 2)
    assert sorted(view.sample(2)["x"].tolist()) == [1, 2]


@pytest.mark.parametrize("sampler", [Uniform, Prioritized, RankBased])
def test_saves_go_on_bit_for_bit(tmp_path: Path, sampler: Any) -> None:
    """Also a save of a copy that has not drawn yet."""
    rb = ReplayBuffer(30, FIELDS, sampler=sampler(), seed=0)
    rb.add(x=range(40), done=[False] * 40)
    view = rb.view(AtMost(2), Among("x"))
    for _ in range(4):
        view.sample(12)
    rb.add(x=range(40, 45), done=[False] * 5)
    view.save(tmp_path)
    copies: list[Any] = [load(tmp_path), pickle.loads(pickle.dumps(view))]
    copies.append(pickle.loads(pickle.dumps(copies[0])))
    for _ in range(3):
        expected = view.sample(5)
        for one in copies:
            same_batches(one.sample(5), expected)
    assert {one.stats()["rows_used_up"] for one in copies} == {view.stats()["rows_used_up"]}


@pytest.mark.parametrize("sampler", [Uniform(), Prioritized(1.0, eps=0.0)])
def test_rows_that_are_left_are_drawn_in_proportion(sampler: Sampler) -> None:
    """To their weights, out of those that are left."""
    rb: Any = ReplayBuffer(12, FIELDS, sampler=sampler, seed=0)
    rb.add(x=range(12), done=[False] * 12)
    weights = np.arange(12) + 1.0 if rb.has_priorities else np.ones(12)
    if rb.has_priorities:
        rb.update_priorities(np.arange(12), weights)
    view = rb.view(AtMost(10**9), Among(lambda rows: rows["x"] % 3 > 0, "x"))
    counts = np.zeros(12)
    for _ in range(3000):
        counts[view.sample(1)["x"]] += 1
    weights[::3] = 0
    there = weights > 0
    assert not counts[~there].any()
    expected = 3000 * weights[there] / weights.sum()
    assert chi_square(counts[there], expected) < chi_square_limit(7)


def test_threads_share_the_counts() -> None:
    """Of one view: no draw is lost, and none comes beyond m, beside a thread that adds."""
    rb = ReplayBuffer(5000, FIELDS, seed=0)
    rb.add(x=range(600), done=[False] * 600)
    view = rb.view(AtMost(3))
    drawn: list[Any] = []
    wrong: list[Any] = []
    over = threading.Event()

    def draw() -> None:
        try:
            while not over.is_set():
                with suppress(NotEnoughDataError):
                    drawn.append(view.sample(5)["x"])
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=draw) for _ in range(3)]
    for thread in threads:
        thread.start()
    for x in range(600, 700):
        rb.add(x=[x], done=[False])
    over.set()
    for thread in threads:
        thread.join()
    assert wrong == []
    while left := int(view.stats()["rows_left"]):
        drawn.append(view.sample(left)["x"])
    assert np.bincount(np.concatenate(drawn)).tolist() == [3] * 700


def test_a_batch_that_an_interrupt_cuts_off_counts_whole_or_not() -> None:
    """At each line; and the view goes on."""

    def make() -> Any:
        rb = ReplayBuffer(8, FIELDS, seed=0)
        rb.add(x=range(8), done=[False] * 8)
        view = rb.view(AtMost(2), Among("x"))
        view.sample(2)
        rb.update([0, 1, 2], x=[5, 0, 3])
        rb.add(x=[8], done=[True])
        return view

    def look(view: Any) -> Any:
        used = view.stats()["rows_used_up"]
        state = view._now.rules.state()["AtMost"]
        return used, sorted(zip(state["rows"].tolist(), state["counts"].tolist(), strict=True))

    assert cut_everywhere(make, lambda view: view.sample(3), look, looks_first=False) > 300


def test_learners_count_each_its_own() -> None:
    """Over all shards; rows that actors overwrite begin anew."""
    with SharedReplay(40, FIELDS, writers=2) as replay:
        actors = [replay.actor(number) for number in range(2)]
        for x in range(40):
            actors[x % 2].add(x=x, done=False)
        views = [replay.learner(Uniform(), seed=0).view(AtMost(2)) for _ in range(2)]
        for view in views:
            counts = np.bincount(np.concatenate([view.sample(8)["x"] for _ in range(9)]))
            assert counts.max() <= 2
            n = int(view.stats()["rows_left"])
            assert n == len(counts) - (counts == 2).sum()
            with pytest.raises(NotEnoughDataError, match=f"AtMost leaves {n}"):
                view.sample(n + 1)
            view.sample(n)
        for x in range(40, 44):
            actors[x % 2].add(x=x, done=False)
        for view in views:
            later = [*view.sample(4)["x"], *view.sample(4)["x"]]
            assert set(later[:4]) | set(later[4:]) >= {40, 41, 42, 43}


def test_a_copy_of_a_view_of_several_shards_knows_what_was_drawn() -> None:
    """Of all of them, and so does a copy of it before its first draw."""
    with SharedReplay(40, FIELDS, writers=3) as replay:
        for number in range(3):
            with replay.actor(number) as actor:
                actor.add(x=np.arange(10) + 10 * number, done=np.zeros(10))
        learner = replay.learner(Uniform(), seed=0)
        view = learner.view(AtMost(1))
        found = view.sample(15)["x"].tolist()
        other = copy.copy(copy.copy(view))
        assert other.stats()["rows_used_up"] == 15
        rest = [*other.sample(8)["x"], *copy.copy(other).sample(7)["x"]]
        assert sorted([*found, *rest]) == list(range(30))


def test_rows_of_a_prefetched_batch_count_when_it_is_made() -> None:
    """They are used up while the batch waits."""
    rb = ReplayBuffer(8, FIELDS, seed=0)
    rb.add(x=range(8), done=[False] * 8)
    view = rb.view(AtMost(1))
    with view.batches(2, prefetch=3) as batches:
        found = [next(batches)["x"] for _ in range(4)]
        assert sorted(np.concatenate(found).tolist()) == list(range(8))
        with pytest.raises(NotEnoughDataError, match="AtMost leaves 0"):
            next(batches)


@pytest.mark.parametrize(
    ("m", "error"), [(0, ValueError), (-1, ValueError), (1.5, TypeError), ("2", TypeError)]
)
def test_m_is_a_number_of_at_least_1(m: Any, error: type[Exception]) -> None:
    """Others are refused."""
    with pytest.raises(error, match="m: expected"):
        AtMost(m)
    assert repr(AtMost(2)) == "AtMost(2)"
