"""Hindsight: every relabelled row against the episodes that a slow twin of the buffer knows."""

from __future__ import annotations

import copy
import functools
import pickle
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
import pytest
from distributions import chi_square, chi_square_limit
from gymnasium import spaces
from helpers import refused, rows_of
from hypothesis import given
from hypothesis import strategies as st
from memory import peak
from optional import need
from reference import ReferenceBuffer, Row
from timing import ratio

from cpprb_like import (
    GymnasiumRecorder,
    NotEnoughDataError,
    PrioritizedReplayBuffer,
    ReplayBuffer,
    create_before_add_func,
    create_env_dict,
)
from cpprb_like._core import Ring
from cpprb_like._rows.episode_index import EpisodeIndex
from cpprb_like._rows.gather import new_array
from cpprb_like.buffers import View
from cpprb_like.samplers import Extra, Sampler, Slots, Uniform
from cpprb_like.samplers._starts import choose_rows
from cpprb_like.schedules import Linear
from cpprb_like.typing import FieldSpec
from cpprb_like.views import Hindsight, NStep

Array = npt.NDArray[Any]

STRATEGIES = ["future", "final", "episode", "random"]
CELL: FieldSpec = {"shape": (), "dtype": "i8"}
FLAG: FieldSpec = {"shape": (), "dtype": bool}
FIELDS: dict[str, FieldSpec] = {
    "id": CELL,
    "at": CELL,
    "goal": CELL,
    "rew": {"shape": (), "dtype": "f8"},
    "terminated": FLAG,
    "truncated": FLAG,
}


def reward(achieved: Array, goal: Array, rows: Mapping[str, Array]) -> Array:
    """Tells for which step and which goal it was asked."""
    found: Array = achieved * 10_000.0 + goal + rows["id"] / 128 + (rows["goal"] == goal) / 2
    return found


def reward_of(step: int, achieved: int, goal: int) -> float:
    """What ``reward`` gives for one step."""
    return achieved * 10_000.0 + goal + step / 128 + 0.5


def relabeller(rb: ReplayBuffer, **options: Any) -> View:
    """A view with ``Hindsight`` over the fields of this file."""
    defaults: dict[str, Any] = {
        "reward_func": reward,
        "goal": "goal",
        "achieved": "at",
        "relabelled": True,
    }
    return rb.view(Hindsight(**(defaults | options)))


def steps(first: int, n: int, **ends: Any) -> dict[str, Array]:
    """The steps with numbers from ``first`` on."""
    number = np.arange(first, first + n)
    rows = {"id": number, "at": 3 * number + 1, "goal": -number - 1, "rew": -1.0 * number}
    return rows | {name: np.zeros(n, bool) for name in ("terminated", "truncated")} | ends


# ---- the twin ----------------------------------------------------------------------------


class Twin(ReferenceBuffer):
    """Knows which rows are of one episode, by going through all of them."""

    def living(self) -> dict[int, Row]:
        """Rows that hold a step, by row id."""
        oldest = self.written - self.stored
        return {i: row for i, row in enumerate(self.history) if i >= oldest and not row.absent}

    def candidates(self, row_id: int, strategy: str) -> list[int]:
        """Row ids of the steps that may give the goal."""
        if strategy == "random":
            return list(self.living())
        episodes: list[list[int]] = [[]]
        for i, row in self.living().items():
            if i % self.n_envs == row_id % self.n_envs:
                episodes[-1].append(i)
                if row.end:
                    episodes.append([])
        (episode,) = [ids for ids in episodes if row_id in ids]
        if strategy == "final":
            return episode[-1:]
        return [i for i in episode if i >= row_id or strategy == "episode"]


def check_batch(twin: Twin, batch: dict[str, Array], strategy: str, achieved: str) -> None:
    """Each row is what was stored, or has the goal of a candidate and the reward for that.

    The batch may lack fields, but for ``id``.
    """
    row_ids = {int(row.values["id"]): i for i, row in twin.living().items()}
    for row in rows_of(batch):
        number = int(row["id"])
        stored = twin.history[row_ids[number]].values
        expected = [stored]
        if row["relabelled"]:
            candidates = twin.candidates(row_ids[number], strategy)
            goals = [twin.history[i].values[achieved] for i in candidates]
            reached = int(stored[achieved])
            rewards = [np.array(reward_of(number, reached, int(goal))) for goal in goals]
            expected = [
                stored | {"goal": goal, "rew": value}
                for goal, value in zip(goals, rewards, strict=True)
            ]
        found = {name: row[name] for name in stored if name in row}
        assert found in [{name: one[name] for name in found} for one in expected], (row, expected)


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[Any, ...]]:
    """Calls that add, end, clear and sample, in any order."""
    call = st.one_of(
        st.tuples(st.just("add"), st.integers(1, 30), st.floats(0, 0.6)),
        st.tuples(st.just("add_where"), st.integers(1, 4), st.floats(0, 0.6)),
        st.tuples(st.just("end"), st.integers(0, 4)),
        st.just(("sample",)),
        st.sampled_from([("sample",), ("sample",), ("clear",), ("pickle",)]),
    )
    return draw(st.lists(call, min_size=1, max_size=25))


@given(
    capacity=st.integers(1, 40),
    n_envs=st.integers(1, 4),
    strategy=st.sampled_from(STRATEGIES),
    share=st.sampled_from([0.0, 0.5, 1.0]),
    chained=st.booleans(),
    prioritized=st.booleans(),
    calls=histories(),
    seed=st.integers(0, 2**32 - 1),
)
def test_goals_come_from_the_right_rows(
    capacity: int,
    n_envs: int,
    strategy: Any,
    share: float,
    chained: bool,
    prioritized: bool,
    calls: list[tuple[Any, ...]],
    seed: int,
) -> None:
    """Whatever was added, ended, overwritten or cleared: goals are of the episode, as it is now."""
    rng = np.random.default_rng(seed)
    n_envs = min(n_envs, capacity)
    names = [*FIELDS, "next_at"] if chained else list(FIELDS)
    achieved = "next_at" if chained else "at"
    make = PrioritizedReplayBuffer if prioritized else ReplayBuffer
    options: dict[str, Any] = {"n_envs": n_envs, "seed": 1, "next_of": "at" if chained else None}
    buffer = make(capacity, FIELDS, **options)
    her = relabeller(buffer, strategy=strategy, relabel_ratio=share, achieved=achieved)
    twin = Twin(capacity, names, n_envs)
    number = 0
    for call, *given_values in [*calls, ("sample",)]:
        rb = her.buffer
        if call == "clear":
            rb.clear()
            twin.clear()
        elif call == "pickle":
            her = pickle.loads(pickle.dumps(her))
        elif call == "end":
            env = given_values[0]
            rb.on_episode_end(env if env < n_envs else None)
            twin.on_episode_end(env if env < n_envs else None)
        elif call == "sample" and len(rb):
            batch = her.sample(20)
            assert batch.keys() >= set(names)
            check_batch(twin, batch, strategy, achieved)
            some = ["id", *(name for name in names if name != "id" and rng.random() < 0.4)]
            part = her.sample(20, fields=some)
            assert part.keys() & set(names) == set(some)
            check_batch(twin, part, strategy, achieved)
            assert share == 0.5 or (batch["relabelled"] == bool(share)).all()
        elif call in ("add", "add_where"):
            n, p_end = given_values
            n = n if n_envs == 1 and call == "add" else 1 if n_envs == 1 else n_envs
            ends = {name: rng.random(n) < p_end for name in ("terminated", "truncated")}
            rows = steps(number, n, **ends)
            if chained:
                sliding = rng.random(n) < 0.7
                rows["next_at"] = np.where(sliding, rows["at"] + 3 * n_envs, rows["at"] + 2)
            number += n
            present = rng.random(n_envs) < 0.6
            if call == "add":
                rb.add(**rows)
            else:
                rb.add_where(present, **rows)
            each = [{name: values[k] for name, values in rows.items()} for k in range(n)]
            twin.add(each, present.tolist() if call == "add_where" else None)


# ---- distribution ------------------------------------------------------------------------


def example(capacity: int = 60) -> tuple[ReplayBuffer, Twin]:
    """Two environments, rows overwritten, absent rows, episodes of 1 to 15 steps."""
    rng = np.random.default_rng(3)
    rb = ReplayBuffer(capacity, FIELDS, n_envs=2, seed=5)
    twin = Twin(capacity, list(FIELDS), 2)
    for k in range(50):
        rows = steps(2 * k, 2, truncated=rng.random(2) < 0.12)
        present = rng.random(2) < 0.8
        rb.add_where(present, **rows)
        each = [{name: values[i] for name, values in rows.items()} for i in range(2)]
        twin.add(each, present.tolist())
    return rb, twin


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_candidates_are_equally_likely(strategy: Any) -> None:
    """Given the row, each step that may give the goal does so with the same probability."""
    rb, twin = example()
    her = relabeller(rb, strategy=strategy, relabel_ratio=1.0)
    batch = her.sample(200_000)
    row_ids = {int(row.values["id"]): i for i, row in twin.living().items()}
    statistic, freedom = 0.0, 0
    assert set(batch["id"].tolist()) == set(row_ids)
    for number, row_id in row_ids.items():
        goals = batch["goal"][batch["id"] == number]
        expected = [int(twin.history[i].values["at"]) for i in twin.candidates(row_id, strategy)]
        assert set(goals.tolist()) <= set(expected)
        counts = np.array([(goals == goal).sum() for goal in expected])
        statistic += chi_square(counts, len(goals) / len(expected))
        freedom += len(expected) - 1
    assert (freedom > 0) == (strategy != "final")
    assert freedom == 0 or statistic < chi_square_limit(freedom)


@pytest.mark.parametrize("strategy", ["future", "episode", "random"])
def test_candidates_among_thousands_of_absent_rows(strategy: Any) -> None:
    """Where hardly any row holds a step, those that do are found, and equally likely."""
    rb = ReplayBuffer(50_000, FIELDS, n_envs=2, seed=5)
    for k in range(4):
        rb.add(**steps(2 * k, 2))
        for _ in range(3000):
            rb.add_where([False, False], **steps(0, 2))
    her = relabeller(rb, strategy=strategy, relabel_ratio=1.0)
    batch = her.sample(2000)
    first = batch["id"] == 0
    goals = batch["goal"][first]
    among = np.arange(8) if strategy == "random" else np.arange(0, 8, 2)
    counts = np.array([(goals == 3 * i + 1).sum() for i in among])
    assert counts.sum() == len(goals)
    assert chi_square(counts, len(goals) / len(among)) < chi_square_limit(len(among) - 1)
    assert (batch["goal"][batch["id"] == 6] % 3 == 1).all()


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.2, 0.8])
def test_rows_are_relabelled_independently_of_each_other(share: float) -> None:
    """The number of relabelled rows of a batch is binomial, and every place is as likely."""
    rb, _ = example()
    her = relabeller(rb, relabel_ratio=share)
    marks = np.array([her.sample(10)["relabelled"] for _ in range(20_000)])
    spread = (share * (1 - share)) ** 0.5
    assert (abs(marks.mean(axis=0) - share) < 5.5 * spread / 20_000**0.5).all()
    variance = marks.sum(axis=1).var()
    assert abs(variance - 10 * spread**2) < 0.1 * 10 * spread**2


def test_share_by_schedule() -> None:
    """The time of a schedule is the number of batches drawn so far; a failed call is none."""
    rb, _ = example()
    her = relabeller(rb, relabel_ratio=Linear(0.0, 1.0, 4))
    shares = []
    for _ in range(6):
        with pytest.raises(ValueError, match="batch_size"):
            her.sample(-1)
        shares.append(her.sample(4000)["relabelled"].mean())
    assert shares == pytest.approx([0, 0.25, 0.5, 0.75, 1, 1], abs=0.05)
    assert her.draws == 6


# ---- what a batch holds ------------------------------------------------------------------


def test_an_end_is_seen_that_comes_after_a_batch() -> None:
    """A row that was the newest when its episode was looked at may end it afterwards."""
    rb = ReplayBuffer(10, FIELDS, seed=0)
    her = relabeller(rb, strategy="final", relabel_ratio=1.0)
    rb.add(**steps(0, 2))
    assert set(her.sample(20)["goal"].tolist()) == {4}
    rb.on_episode_end()
    assert set(her.sample(20)["goal"].tolist()) == {4}
    rb.add(**steps(2, 2))
    batch = her.sample(40)
    assert {*zip(batch["id"].tolist(), batch["goal"].tolist(), strict=True)} == {
        (0, 4),
        (1, 4),
        (2, 10),
        (3, 10),
    }


def test_several_goal_fields_and_ends() -> None:
    """All goal fields get the new goal; terminated_func says which steps end with it."""
    fields: dict[str, FieldSpec] = {
        **FIELDS,
        "next_goal": CELL,
        "terminated": {"shape": 1, "dtype": "f4"},
    }
    rb = ReplayBuffer(100, fields, seed=0)
    rb.add(**steps(0, 50), next_goal=np.full(50, -1))
    rows_seen = []

    def ends(achieved: Array, goal: Array, rows: Mapping[str, Array]) -> Array:
        rows_seen.append(dict(rows))
        return np.equal(achieved, goal)

    her = relabeller(rb, goal=("goal", "next_goal"), terminated_func=ends, relabel_ratio=0.5)
    batch = her.sample(500)
    changed = batch["relabelled"]
    np.testing.assert_array_equal(batch["goal"][changed], batch["next_goal"][changed])
    assert (batch["next_goal"][~changed] == -1).all()
    ended = changed & (batch["goal"] == batch["at"])
    assert ended.any()
    np.testing.assert_array_equal(batch["terminated"], ended[:, np.newaxis].astype("f4"))
    assert list(rows_seen[0]) == list(rb.schema.names)
    np.testing.assert_array_equal(rows_seen[0]["next_goal"], batch["goal"][changed])


def test_goals_of_states() -> None:
    """goal_func makes goals of states, for the new goal and for what the step achieved."""
    fields: dict[str, FieldSpec] = {
        "state": {"shape": (2, 3)},
        "goal": {"shape": 3},
        "rew": {},
        "done": FLAG,
    }
    rb = ReplayBuffer(100, fields, seed=0)
    states = np.arange(60.0).reshape(10, 2, 3)
    rb.add(state=states, goal=np.zeros((10, 3)), rew=np.zeros(10), done=np.arange(10) % 5 == 4)
    her = rb.view(
        Hindsight(
            lambda achieved, goal, rows: achieved[:, 0] - 1000 * goal[:, 0],
            goal="goal",
            achieved="state",
            goal_func=lambda state: state[:, 1],
            strategy="final",
            relabel_ratio=1.0,
        )
    )
    batch = her.sample(100)
    last = states[(batch["state"][:, 0, 0] // 30 * 5 + 4).astype(int)][:, 1]
    np.testing.assert_array_equal(batch["goal"], last)
    np.testing.assert_array_equal(
        batch["rew"][:, 0], batch["state"][:, 1, 0] - 1000 * batch["goal"][:, 0]
    )


def test_priorities_weights_and_indexes_are_unchanged() -> None:
    """A prioritized buffer draws as ever; weights and indexes are those of the drawn rows."""
    rb = PrioritizedReplayBuffer(32, FIELDS, alpha=1.0, eps=0.0, seed=0)
    for k in range(50):
        rb.add(**steps(k, 1, truncated=[k % 5 == 4]), priorities=1 + k % 3)
    her = relabeller(rb)
    batch = her.sample(30_000, beta=1.0)
    np.testing.assert_array_equal(batch["indexes"], batch["id"] % 32)
    np.testing.assert_allclose(batch["weights"], 1 / (1 + batch["id"] % 3), rtol=1e-6)
    heavy = (batch["id"] % 3 == 2).mean()
    weights = 1 + np.arange(18, 50) % 3
    assert heavy == pytest.approx(weights[weights == 3].sum() / weights.sum(), abs=0.02)
    rb.update_priorities(batch["indexes"], np.zeros(30_000))
    with pytest.raises(NotEnoughDataError):
        her.sample(1)


def test_batches_go_into_given_arrays() -> None:
    """``out`` gets the relabelled rows, in its own arrays, and ``replace=False`` is honoured."""
    rb, twin = example()
    her = relabeller(rb, relabel_ratio=1.0)
    n = len(rb)
    out = {field.name: np.empty((n, *field.shape), field.dtype) for field in rb.schema.fields}
    arrays = dict(out)
    assert her.sample(n, out=out, replace=False) is out
    assert all(out[name] is array for name, array in arrays.items())
    assert len(set(out["id"].tolist())) == n
    check_batch(twin, out, "future", "at")


def test_batches_of_no_row() -> None:
    """An empty batch has every column, and calls no reward function."""
    rb, _ = example()
    her = relabeller(rb, reward_func=_never)
    batch = her.sample(0)
    assert {name: len(column) for name, column in batch.items()} == dict.fromkeys(
        [*FIELDS, "relabelled"], 0
    )


def test_functions_cannot_spoil_the_batch() -> None:
    """What functions of the caller write into their arguments does not reach the batch."""

    def vandal(achieved: Array, goal: Array, rows: Mapping[str, Array]) -> Array:
        found = reward(achieved, goal, rows)
        for values in (achieved, goal, *rows.values()):
            values[...] = 0
        return found

    def ends(achieved: Array, goal: Array, rows: Mapping[str, Array]) -> Array:
        seen.extend([achieved, goal, rows["id"]])
        return np.zeros(len(goal), bool)

    seen: list[Array] = []
    rb, twin = example()
    her = relabeller(rb, reward_func=vandal, terminated_func=ends, relabel_ratio=1.0)
    batch = her.sample(100)
    check_batch(twin, batch, "future", "at")
    for name, values in zip(["at", "goal", "id"], seen, strict=True):
        np.testing.assert_array_equal(batch[name], values)


class Meddling(Sampler):
    """Draws uniformly; the first time, something else happens to the buffer before it is read."""

    def __init__(self, meddle: Callable[[], object]) -> None:
        self.meddle: Callable[[], object] | None = meddle

    def draw(
        self, ring: Ring, n: int, rng: np.random.Generator, *, replace: bool
    ) -> tuple[Slots, Extra]:
        slots, extra = Uniform().draw(ring, n, rng, replace=replace)
        meddle, self.meddle = self.meddle, None
        if meddle is not None:
            meddle()
        return slots, extra


@pytest.mark.parametrize("cleared", [False, True])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_rows_that_go_away_are_drawn_again(strategy: Any, cleared: bool) -> None:
    """A batch whose rows were overwritten or cleared after the draw is drawn anew."""

    def change() -> None:
        if cleared:
            rb.clear()
        rb.add(**steps(100, 15, truncated=np.arange(15) == 6))

    rb = ReplayBuffer(20, FIELDS, sampler=Meddling(change), seed=0)
    rb.add(**steps(0, 20))
    batch = relabeller(rb, strategy=strategy, relabel_ratio=1.0).sample(300)
    expected = range(100, 115) if cleared else [*range(15, 20), *range(100, 115)]
    assert set(batch["id"].tolist()) == set(expected)
    others = (batch["goal"] - 1) // 3
    assert set(others.tolist()) <= set(expected)
    assert strategy == "random" or ((batch["id"] > 106) == (others > 106)).all()


def test_a_slow_function_beside_a_fast_writer_gets_its_fields() -> None:
    """All rows are overwritten in each call of a function, before it asks for a field."""
    calls: list[int] = []

    def reward(achieved: Array, goal: Array, rows: Mapping[str, Array]) -> Array:
        calls.append(len(goal))
        assert len(calls) < 9, "the batch is drawn again and again"
        rb.add(**steps(100 * len(calls), 20))
        return rows["id"]

    rb = ReplayBuffer(20, FIELDS, seed=0)
    rb.add(**steps(0, 20))
    her = relabeller(rb, reward_func=reward, relabel_ratio=1.0)
    for _ in range(3):
        batch = her.sample(30, fields=["goal", "rew"])
        last = 100 * (len(calls) - 1)
        assert set(batch["rew"].tolist()) <= set(range(last, last + 20))


def test_goals_that_go_away_are_chosen_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the row that gives a goal is overwritten before it is read, the batch is drawn anew."""

    class Newest(Sampler):
        def draw(
            self, ring: Ring, n: int, rng: np.random.Generator, *, replace: bool
        ) -> tuple[Slots, Extra]:
            return np.repeat(ring.newest_slots(1), n), {}

    def allocate(*arguments: Any) -> Array:
        if rb.ring.written == 20:
            rb.add(**steps(100, 10))
        return new_array(*arguments)

    monkeypatch.setattr("cpprb_like.views._rows.new_array", allocate)
    rb = ReplayBuffer(20, FIELDS, sampler=Newest(), seed=0)
    rb.add(**steps(0, 20))
    batch = relabeller(rb, strategy="episode", relabel_ratio=1.0).sample(100)
    assert set(batch["id"].tolist()) == {109}
    others = (batch["goal"] - 1) // 3
    assert set(others.tolist()) <= {*range(10, 20), *range(100, 110)}


@pytest.mark.parametrize("cleared", [False, True])
def test_rows_that_go_away_before_their_returns_are_cut(cleared: bool) -> None:
    """A draw took for ever where all rows went during each call of ``terminated_func``."""
    calls = 0

    def ends(achieved: Array, goal: Array, rows: Any) -> Array:
        nonlocal calls
        del goal, rows
        calls += 1
        assert calls < 9, "the batch is drawn again and again"
        if cleared:
            rb.clear()
        add(100 * calls)
        return np.ones(len(achieved), bool)

    def add(first: int) -> None:
        rows = steps(first, 20)
        rb.add(**rows, next_at=rows["at"] + 3)

    rb = ReplayBuffer(20, FIELDS, next_of="at", seed=0)
    add(0)
    goals = Hindsight(reward, goal="goal", achieved="at", terminated_func=ends, relabel_ratio=1.0)
    view = rb.view(goals, NStep(3, discount=False))
    batch = view.sample(30)
    assert set(batch["id"].tolist()) <= set(range(20))
    assert (batch["next_at"] == batch["at"] + 3).all()
    assert calls == 1


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_absent_rows_in_place_of_drawn_ones(strategy: Any) -> None:
    """Where absent rows came into the slots of drawn ones, the batch is drawn anew."""

    def change() -> None:
        for _ in range(15):
            rb.add_where([False], **steps(0, 1))

    rb = ReplayBuffer(20, FIELDS, sampler=Meddling(change), seed=0)
    rb.add(**steps(0, 20))
    batch = relabeller(rb, strategy=strategy, relabel_ratio=1.0).sample(300)
    assert set(batch["id"].tolist()) == set(range(15, 20))
    assert {(goal - 1) // 3 for goal in batch["goal"].tolist()} <= set(range(15, 20))


def test_episodes_that_are_longer_than_the_ring() -> None:
    """An end that was overwritten with all that followed it leads to no row of another stream."""
    rb = ReplayBuffer(7, FIELDS, n_envs=2, seed=0)
    her = relabeller(rb, strategy="episode", relabel_ratio=1.0)
    rb.add(**steps(0, 2, truncated=np.ones(2, bool)))
    rb.add(**steps(2, 2))
    her.sample(1)
    for number in range(4, 24, 2):
        rb.add(**steps(number, 2))
        batch = her.sample(100)
        others = (batch["goal"] - 1) // 3
        assert (batch["id"] % 2 == others % 2).all()
        assert (others >= number - 5).all()


# ---- seeds, copies, threads, memory --------------------------------------------------------


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_seed_gives_the_same_batches(strategy: Any) -> None:
    """Equal buffers with equal generators give equal batches, also after pickling and copying."""
    mine = [relabeller(example()[0], strategy=strategy) for _ in range(2)]
    mine[0].sample(5)
    mine[1].sample(5)
    mine += [pickle.loads(pickle.dumps(mine[0])), copy.deepcopy(mine[0])]
    batches = [her.sample(100) for her in mine]
    for batch in batches[1:]:
        for name, values in batches[0].items():
            np.testing.assert_array_equal(values, batch[name])
    assert len({id(her.buffer) for her in mine}) == 4
    assert all(her.draws == 2 for her in mine)


def test_first_batches_of_a_seed() -> None:
    """The goals of a seed are the same on every platform and with every version of NumPy."""
    rb = ReplayBuffer(100, FIELDS, seed=7)
    rb.add(**steps(0, 100, truncated=np.arange(100) % 10 == 9))
    batch = relabeller(rb).sample(8)
    assert batch["id"].tolist() == [94, 62, 68, 89, 57, 77, 83, 22]
    assert batch["goal"].tolist() == [295, -63, 205, -90, 178, 235, 259, 79]


@pytest.mark.parametrize("strategy", ["future", "episode", "final"])
def test_goals_are_of_the_episode_while_threads_add(strategy: Any) -> None:
    """While one thread wraps around and clears, no batch mixes episodes or rows."""
    rb = ReplayBuffer(500, FIELDS, n_envs=2, seed=0)
    her = relabeller(rb, strategy=strategy)
    stop = threading.Event()
    errors: list[BaseException] = []

    def write() -> None:
        number = 0
        try:
            while not stop.is_set():
                # 10 time steps to an episode: steps 20 e to 20 e + 19 are its two environments'.
                rb.add(**steps(number, 2, truncated=np.full(2, number % 20 == 18)))
                number += 2
                if number % 50_000 == 0:
                    rb.clear()
        except BaseException as error:
            errors.append(error)

    def read() -> None:
        try:
            for _ in range(300):
                try:
                    batch = her.sample(200)
                except NotEnoughDataError:
                    continue
                new = batch["relabelled"]
                other = (batch["goal"][new] - 1) // 3
                assert (batch["id"][new] // 20 == other // 20).all()
                assert (batch["id"][new] % 2 == other % 2).all()
                assert strategy != "future" or (other >= batch["id"][new]).all()
                assert (batch["goal"][~new] == -batch["id"][~new] - 1).all()
        except BaseException as error:
            errors.append(error)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    threads = [threading.Thread(target=read) for _ in range(2)]
    writer = threading.Thread(target=write)
    try:
        for thread in [writer, *threads]:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        stop.set()
        writer.join()
        sys.setswitchinterval(interval)
    assert not errors, errors


@pytest.mark.parametrize("n_envs", [1, 3])
def test_memory_is_of_the_episodes_that_are_there(n_envs: int) -> None:
    """Ends of rows that were overwritten are forgotten, however many there were."""
    rb = ReplayBuffer(300, FIELDS, n_envs=n_envs, seed=0)
    index = EpisodeIndex(rb.ring)
    rng = np.random.default_rng(0)
    for k in range(3000):
        rb.add(**steps(k * n_envs, n_envs, truncated=np.ones(n_envs, bool)))
        if k % 7 == 0:
            choose_rows(index, np.zeros(1, np.intp), rng, 1)
    assert index.nbytes <= 4 * 300 + 4 * 4 * 8 * 300 + 4 * 8 * n_envs


def test_cost_does_not_depend_on_the_length_of_episodes() -> None:
    """Batches from one episode of 200,000 steps take the time and memory of those from short ones.

    A walk to the end of the episode, for each of the rows, would take a thousand times as long.
    """
    calls = []
    for length in (10, 200_000):
        n = 200_000
        rb = ReplayBuffer(n, FIELDS, seed=0)
        rb.add(**steps(0, n, truncated=np.arange(n) % length == length - 1))
        her = relabeller(rb)
        calls.append(functools.partial(her.sample, 100))
        assert peak(calls[-1]) < 100_000
    short, long = calls
    assert ratio(short, long, turns=30, number=1) < 10


# ---- goals in observations ---------------------------------------------------------------


class Reach(gymnasium.Env[Any, Any]):
    """A robot's environment in small: a point that is pushed to a goal in the plane."""

    observation_space = spaces.Dict(
        {
            name: spaces.Box(-np.inf, np.inf, shape, np.float64)
            for name, shape in (
                ("observation", (4,)),
                ("achieved_goal", (2,)),
                ("desired_goal", (2,)),
            )
        }
    )
    action_space = spaces.Box(-1, 1, (2,))

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.at, self.speed = np.zeros((2, 2))
        self.goal = self.np_random.uniform(-1, 1, 2)
        return self.seen(), {}

    def seen(self) -> dict[str, Array]:
        return {
            "observation": np.concatenate([self.at, self.speed]),
            "achieved_goal": self.at.copy(),
            "desired_goal": self.goal,
        }

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.speed = 0.3 * action
        self.at = self.at + self.speed
        rew = float(self.compute_reward(self.at, self.goal, {}))
        return self.seen(), rew, rew == 0.0, False, {}

    def compute_reward(self, achieved_goal: Array, desired_goal: Array, info: Any) -> Array:
        far = np.linalg.norm(achieved_goal - desired_goal, axis=-1) > 0.2
        return np.where(far, -1.0, 0.0)


def record(env: Any, n_steps: int, fields: Any = None, **options: Any) -> ReplayBuffer:
    """Random steps of a single environment, as the recorder stores them."""
    recorder = GymnasiumRecorder(env)
    rb = recorder.attach(ReplayBuffer(n_steps, fields or recorder.env_dict, seed=0, **options))
    env.action_space.seed(0)
    recorder.reset(env.reset(seed=0)[0])
    for _ in range(n_steps):
        action = env.action_space.sample()
        step = env.step(action)
        recorder.add(action, *step)
        if step[2] or step[3]:
            recorder.reset(env.reset()[0])
    return rb


def check_recorded(rb: ReplayBuffer, env: Any, **options: Any) -> None:
    """Relabelled rows have one goal, that of a later step, and the reward of the environment."""
    reward_of = env.unwrapped.compute_reward
    her = rb.view(
        Hindsight(
            lambda achieved, goal, rows: reward_of(achieved, goal, {}), relabelled=True, **options
        )
    )
    batch = her.sample(500)
    goal, achieved = batch["obs.desired_goal"], batch["next_obs.achieved_goal"]
    np.testing.assert_array_equal(batch["next_obs.desired_goal"], goal)
    changed = batch["relabelled"]
    assert 300 < changed.sum() < 500
    np.testing.assert_allclose(
        batch["rew"][changed], reward_of(achieved, goal, {})[changed], rtol=1e-5
    )
    stored = rb.get_all_transitions()
    rows = {row.tobytes() for row in stored["next_obs.achieved_goal"]}
    assert all(row.tobytes() in rows for row in goal[changed])
    assert (goal[changed] == achieved[changed]).all(axis=1).any()


@pytest.mark.parametrize("next_of", [(), ("obs.desired_goal", "obs.observation")])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"goal": "obs.desired_goal"},
        {"goal": "next_obs.desired_goal"},
        {"goal": ("obs.desired_goal", "next_obs.desired_goal")},
        {"goal": "obs.desired_goal", "achieved": "next_obs.achieved_goal"},
    ],
    ids=str,
)
def test_recorded_goal_environment(options: dict[str, Any], next_of: tuple[str, ...]) -> None:
    """The goal is new in the observation and in the next one, under the recorder's names.

    ``next_obs.desired_goal`` had the old goal, so a value target was that of another goal.
    """
    env = Reach()
    fields = GymnasiumRecorder(env).env_dict
    for name in next_of:
        del fields[f"next_{name}"]
    check_recorded(record(env, 400, fields, next_of=next_of), env, **options)


@pytest.mark.filterwarnings("ignore")
def test_recorded_goal_environment_of_another_package() -> None:
    """Parking, of HighwayEnv: its observations, its goals and its own reward."""
    need("highway_env")
    env = gymnasium.make("parking-v0")
    check_recorded(record(env, 200), env)


def test_fields_of_cpprbs_helpers() -> None:
    """Names without a dot have pairs as well, and defaults that fit."""
    env: Any = Reach()
    rb = ReplayBuffer(400, create_env_dict(env), seed=0)
    before_add = create_before_add_func(env)
    obs, _ = env.reset(seed=0)
    for _ in range(50):
        action = env.action_space.sample()
        following, rew, done, _, _ = env.step(action)
        rb.add(**before_add(obs, action, following, rew, done))
        obs = env.reset()[0] if done else following
    her = rb.view(Hindsight(env.compute_reward, relabel_ratio=1.0))
    batch = her.sample(300)
    goal = batch["desired_goal"]
    np.testing.assert_array_equal(batch["next_desired_goal"], goal)
    achieved = batch["next_achieved_goal"]
    np.testing.assert_array_equal(batch["rew"][:, 0], env.compute_reward(achieved, goal, {}))


def test_a_goal_that_would_stay_old_is_refused() -> None:
    """A field of the goal's name in another place is named too, or is called something else."""
    rb = ReplayBuffer(10, {**FIELDS, "info.goal": CELL, "origin": CELL}, seed=0)
    with refused(rb, ValueError, "goal", "['info.goal'] would keep the old goal", "['goal']"):
        relabeller(rb)
    relabeller(rb, goal=("goal", "info.goal"))
    odd = ReplayBuffer(10, FIELDS | {"next_goal": {"shape": 2}}, seed=0)
    with refused(odd, ValueError, "goal", "fields alike", "'next_goal'"):
        relabeller(odd)


# ---- misuse ------------------------------------------------------------------------------


def _never(*_: Any) -> Any:
    raise AssertionError("nothing to compute")


VECTOR: FieldSpec = {"shape": 2}
BAD_OPTIONS: list[tuple[dict[str, Any], type[Exception], tuple[str, ...]]] = [
    ({"reward_func": 1}, TypeError, ("reward_func", "function", "1")),
    ({"goal_func": "x"}, TypeError, ("goal_func", "function", "'x'")),
    ({"terminated_func": 0}, TypeError, ("terminated_func", "function", "0")),
    ({"goal": "target"}, ValueError, ("goal", "'id'", "'target'")),
    ({"goal": ()}, ValueError, ("goal", "at least one")),
    ({"goal": None}, ValueError, ("goal", "None", "desired_goal")),
    ({"goal": ("goal", "vector")}, ValueError, ("goal", "int64", "float32", "(2,)")),
    ({"goal": ("goal", "goal")}, ValueError, ("different", "goal")),
    ({"achieved": "nowhere"}, ValueError, ("achieved", "'nowhere'")),
    ({"achieved": "vector"}, ValueError, ("achieved", "goal_func", "int64", "(2,)")),
    ({"achieved": "rew"}, ValueError, ("achieved", "float64", "int64")),
    ({"achieved": "goal"}, ValueError, ("different",)),
    ({"reward": "r"}, ValueError, ("reward", "'r'")),
    ({"reward": "vector"}, ValueError, ("reward", "one number", "(2,)")),
    ({"reward": "goal"}, ValueError, ("different",)),
    ({"reward": ["rew"]}, ValueError, ("reward", "['rew']")),
    ({"strategy": "furthest"}, ValueError, ("strategy", "'future'", "'furthest'")),
    ({"strategy": None}, ValueError, ("strategy", "None")),
    ({"strategy": ["future"]}, ValueError, ("strategy", "['future']")),
    ({"relabel_ratio": 1.5}, ValueError, ("relabel_ratio", "0 to 1", "1.5")),
    ({"relabel_ratio": -0.1}, ValueError, ("relabel_ratio", "0 to 1", "-0.1")),
    ({"relabel_ratio": float("nan")}, ValueError, ("relabel_ratio", "nan")),
    ({"relabel_ratio": "most"}, TypeError, ("relabel_ratio", "'most'")),
    ({"relabel_ratio": True}, TypeError, ("relabel_ratio", "True")),
    ({"relabel_ratio": Linear(0, 2, 10)}, ValueError, ("relabel_ratio", "2.0", "Linear")),
    ({"terminated_func": _never, "terminated": "end"}, ValueError, ("terminated", "'end'")),
    ({"terminated_func": _never, "terminated": "rew"}, ValueError, ("different",)),
    ({"terminated_func": _never, "terminated": "vector"}, ValueError, ("terminated", "number")),
]


@pytest.mark.parametrize(
    ("options", "error", "words"), BAD_OPTIONS, ids=[repr(bad[0]) for bad in BAD_OPTIONS]
)
def test_bad_options_are_refused(
    options: dict[str, Any], error: type[Exception], words: tuple[str, ...]
) -> None:
    """A wrong option is refused when the object is made, by a message that names it."""
    rb = ReplayBuffer(10, {**FIELDS, "vector": VECTOR}, seed=0)
    with refused(rb, error, *words):
        relabeller(rb, **options)


BAD_REWARDS: list[tuple[Callable[[int], Any], tuple[str, ...]]] = [
    (lambda n: np.zeros(n + 1), ("expected shape (", f"got ({21},)")),
    (lambda n: np.zeros((n, 2)), ("got (20, 2)",)),
    (lambda n: np.zeros((1, n)), ("got (1, 20)",)),
    (lambda n: 0.0, ("got ()",)),
    (lambda n: None, ("got ()",)),
    (lambda n: [None] * n, ("'rew'",)),
    (lambda n: ["one"] * n, ("'rew'",)),
    (lambda n: np.where(np.arange(n) == 3, np.nan, 0.0), ("finite", "nan", "row 3 of 20")),
    (lambda n: np.full(n, np.inf), ("finite", "inf", "row 0")),
    (lambda n: np.ma.array(np.zeros(n), mask=True), ("masked",)),
    (lambda n: np.full(n, 1j), ("'rew'", "1j")),
]


@pytest.mark.parametrize(("found", "words"), BAD_REWARDS)
def test_bad_rewards_are_refused(found: Callable[[int], Any], words: tuple[str, ...]) -> None:
    """What is no finite reward for each row is refused by a message that names the function."""
    rb, _ = example()
    her = relabeller(
        rb, reward_func=lambda achieved, goal, rows: found(len(goal)), relabel_ratio=1.0
    )
    with pytest.raises(ValueError) as caught:
        her.sample(20)
    for word in ("reward_func", *words):
        assert word in str(caught.value)
    assert her.draws == 0


def test_bad_goals_and_ends_are_refused() -> None:
    """Goals of another shape, or that the field cannot hold, name goal_func; ends likewise."""
    rb, _ = example()
    bad: list[tuple[dict[str, Any], str]] = [
        ({"goal_func": lambda at: at[:-1]}, r"goal_func: expected shape \(20,\).*got \(19,\)"),
        ({"goal_func": lambda at: at / 7}, "goal_func: expected int64 for field 'goal'"),
        ({"terminated_func": lambda *_: np.full(20, 2)}, "terminated_func: .*bool.*2"),
        ({"terminated_func": lambda *_: True}, r"terminated_func: .*got \(\)"),
    ]
    for options, message in bad:
        her = relabeller(rb, relabel_ratio=1.0, **options)
        with pytest.raises(ValueError, match=message):
            her.sample(20)


def test_bad_calls_are_refused() -> None:
    """What cannot be drawn is refused, and so is a ratio of a schedule when a batch is read."""
    rb, _ = example()
    her = relabeller(rb)
    with refused(rb, TypeError, "beta", "priorities"):
        her.sample(5, beta=0.4)
    with refused(rb, NotEnoughDataError, "distinct"):
        her.sample(1000, replace=False)
    with refused(rb, TypeError, "batch_size"):
        her.sample(2.5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"relabel_ratio: .*0 to 1.*7"):
        relabeller(rb, relabel_ratio=lambda t: 7.0).sample(5)
    with pytest.raises(KeyError, match="'weights' is none of the fields"):
        relabeller(rb, reward_func=lambda a, g, rows: rows["weights"], relabel_ratio=1.0).sample(5)
    empty = ReplayBuffer(10, FIELDS, seed=0)
    with refused(empty, NotEnoughDataError, "empty"):
        relabeller(empty).sample(5)
    named = ReplayBuffer(10, {**FIELDS, "relabelled": FLAG}, seed=0)
    named.add(**steps(0, 1), relabelled=False)
    batch = relabeller(named, relabelled=False).sample(3)
    assert batch["relabelled"].tolist() == [False] * 3
    with refused(named, ValueError, "relabelled", "field"):
        relabeller(named)


def test_repr_says_what_it_does() -> None:
    """The repr has the buffer and what differs from the defaults of the layers."""
    reward_func: Any = max
    layer = Hindsight(reward_func, goal="goal", achieved="at", strategy="final")
    view = ReplayBuffer(10, FIELDS, seed=0).view(layer)
    assert repr(view) == (
        "View(ReplayBuffer(size=10, stored=0), Hindsight(reward_func=<built-in function max>, "
        "goal='goal', achieved='at', strategy='final'))"
    )
