"""Prioritized replay: against the twin, in proportion, with the weights of the formula."""

from __future__ import annotations

import copy
import gc
import math
import pickle
import sys
from collections.abc import Callable
from contextlib import suppress
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
import pytest
from distributions import chi_square, chi_square_limit
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from interruptions import cut_at, cut_everywhere, first_and_last, look_at
from memory import allocated
from prioritized_cases import (
    FIVE_SMALL,
    NUMBER,
    Array,
    assert_nodes_are_sums,
    prioritized,
    sampler_of,
    weights_of,
    with_priorities,
)
from reference_prioritized import ReferencePrioritized, WeightedRow
from threads import run_together
from timing import ratio

from cpprb_like import (
    NotEnoughDataError,
    PrioritizedReplayBuffer,
    ReplayBuffer,
    create_buffer,
)
from cpprb_like.samplers import Prioritized, RankBased, _prioritized
from cpprb_like.schedules import Linear, Piecewise
from cpprb_like.views import Sequences

PICKLE = pytest.mark.parametrize(
    "how", [copy.deepcopy, lambda rb: pickle.loads(pickle.dumps(rb))], ids=["copy", "pickle"]
)
BETAS = [0.0, 0.4, 1.0, 3.0]
SCHEDULES = [
    Linear(0.4, 1.0, 5),
    Piecewise([(0, 0.0), (3, 1.0), (8, 3.0)]),
    lambda t: 0.1 * t,
]

# ---- against the twin --------------------------------------------------------------------

some_priorities = st.one_of(
    st.sampled_from([0.0, 0.25, 1.0, 1.0, 3.0, 50.0]), st.floats(0, 10, width=32)
)


class PrioritizedAgainstTwin(RuleBasedStateMachine):
    """Any history of calls, with or without looks in between, on a buffer and on its twin."""

    rb: PrioritizedReplayBuffer
    twin: ReferencePrioritized
    n_envs: int
    number: int
    batches: list[tuple[Array, list[WeightedRow]]]  # indexes that the learner still has
    handles: dict[int, WeightedRow]

    @initialize(
        capacity=st.integers(1, 20),
        n_envs=st.integers(1, 3),
        alpha=st.sampled_from([0.6, 0.0, 0.5, 1.0, 2.0]),
        eps=st.sampled_from([1e-4, 0.0, 0.5]),
        check_for_update=st.booleans(),
        stratified=st.booleans(),
        weights=st.sampled_from(["all", "batch"]),
        seed=st.integers(0, 99),
    )
    def create(self, capacity: int, n_envs: int, seed: int, **options: Any) -> None:
        self.n_envs = min(n_envs, capacity)
        self.number = 0
        self.batches = []
        self.handles = {}
        beta = Linear(0.0, 2.0, 7)
        self.rb = prioritized(
            capacity, n_envs=self.n_envs, seed=seed, beta=beta, probabilities=True, **options
        )
        self.stratified = options.pop("stratified")
        self.among = options.pop("weights")
        self.twin = ReferencePrioritized(capacity, **options)

    def numbers(self, n: int) -> Array:
        self.number += n
        return np.arange(self.number - n, self.number)

    def some(self, data: st.DataObject, n: int) -> list[float] | None:
        lists = st.lists(some_priorities, min_size=n, max_size=n)
        return data.draw(st.one_of(st.none(), lists), "priorities")

    @rule(n=st.integers(0, 30), data=st.data())
    def add(self, n: int, data: st.DataObject) -> None:
        n = n if self.n_envs == 1 else self.n_envs
        priorities = self.some(data, n)
        self.rb.add(x=self.numbers(n), priorities=priorities)
        self.twin.add(n, priorities)

    @rule(times=st.integers(1, 15))
    def add_one_by_one(self, times: int) -> None:
        for _ in range(times):
            self.rb.add(x=self.numbers(self.n_envs))
            self.twin.add(self.n_envs)

    @rule(data=st.data())
    def add_where(self, data: st.DataObject) -> None:
        present = data.draw(st.lists(st.booleans(), min_size=self.n_envs, max_size=self.n_envs))
        priorities = self.some(data, self.n_envs)
        self.rb.add_where(present, x=self.numbers(self.n_envs), priorities=priorities)
        self.twin.add(self.n_envs, priorities, present)

    @rule(wrong=st.sampled_from(["name", "count", "value"]), where=st.booleans())
    def fail_to_add(self, wrong: str, where: bool) -> None:
        fields: dict[str, Any] = {"x": np.zeros(self.n_envs), "priorities": [1e9] * self.n_envs}
        if wrong == "name":
            fields["y"] = 1
        elif wrong == "count":
            fields["priorities"].append(1e9)
        else:
            fields["priorities"][-1] = math.nan
        add = partial(self.rb.add_where, [True] * self.n_envs) if where else self.rb.add
        with pytest.raises((TypeError, ValueError)):
            add(**fields)

    @rule()
    def end_episodes(self) -> None:
        self.rb.on_episode_end()

    @rule(data=st.data())
    def delete_an_episode(self, data: st.DataObject) -> None:
        self.rb.on_episode_end()
        episodes = self.rb.episodes
        if len(episodes):
            number = data.draw(st.integers(0, len(episodes) - 1), "number")
            first = self.number - len(self.twin.history)
            rows = (episodes.read(number)["x"] - first).tolist()
            assert episodes.delete(number) == len(rows)
            self.twin.delete(rows)

    @rule()
    def clear(self) -> None:
        self.rb.clear()
        self.twin.clear()

    @rule(n=st.integers(0, 20), replace=st.booleans(), data=st.data())
    def sample(self, n: int, replace: bool, data: st.DataObject) -> None:
        beta = data.draw(st.sampled_from([None, *BETAS]))
        exponent = sampler_of(self.rb).beta(self.twin.draws) if beta is None else beta  # type: ignore[operator]
        rng = copy.deepcopy(self.rb.rng)
        try:
            slots = self.twin.draw(n, rng, replace=replace, stratified=self.stratified)
        except NotEnoughDataError:
            with pytest.raises(NotEnoughDataError):
                self.rb.sample(n, beta, replace=replace)
            return
        batch = self.rb.sample(n, beta, replace=replace)

        assert (batch["indexes"] % self.twin.capacity).tolist() == slots
        first = self.number - len(self.twin.history)
        age = (len(self.twin.history) - 1 - np.array(slots, int)) % self.twin.capacity
        assert batch["x"].tolist() == (first + len(self.twin.history) - 1 - age).tolist()
        assert repr(self.rb.rng.bit_generator.state) == repr(rng.bit_generator.state)
        expected = self.twin.importance(slots, exponent, self.among)
        np.testing.assert_allclose(batch["weights"], expected, rtol=1e-12)
        probabilities = self.twin.weights[slots] / self.twin.weights.sum()
        np.testing.assert_allclose(batch["probabilities"], probabilities, rtol=1e-12)
        self.keep(batch["indexes"], slots)

    def keep(self, indexes: Array, slots: list[int]) -> None:
        rows = [self.twin.row_of_index(slot) for slot in slots]
        if self.twin.check_for_update:
            for handle, row in zip(indexes.tolist(), rows, strict=True):
                assert self.handles.setdefault(handle, row) is row, "two rows had the same handle"
        self.batches.append((indexes, rows))

    @precondition(lambda self: self.batches and self.twin.check_for_update)
    @rule(data=st.data())
    def update_an_outstanding_batch(self, data: st.DataObject) -> None:
        indexes, rows = self.batches[data.draw(st.integers(0, len(self.batches) - 1))]
        priorities = data.draw(
            st.lists(some_priorities, min_size=len(rows), max_size=len(rows)), "priorities"
        )
        try:
            self.rb.update_priorities(indexes, priorities)
        except IndexError:
            assert any(row.absent for row in rows)
        else:
            self.twin.update_rows(rows, priorities)

    @rule(data=st.data(), n=st.integers(0, 15))
    def update_slots(self, data: st.DataObject, n: int) -> None:
        slots = data.draw(
            st.lists(st.integers(0, self.twin.capacity - 1), min_size=n, max_size=n), "slots"
        )
        priorities = data.draw(st.lists(some_priorities, min_size=n, max_size=n), "priorities")
        try:
            self.twin.update_slots(slots, priorities)
        except IndexError:
            with pytest.raises(IndexError, match=r"indexes\["):
                self.rb.update_priorities(slots, priorities)
        else:
            self.rb.update_priorities(slots, priorities)

    @rule(how=st.sampled_from(["pickle", "deepcopy"]))
    def go_on_with_a_copy(self, how: str) -> None:
        old = self.rb
        self.rb = pickle.loads(pickle.dumps(old)) if how == "pickle" else copy.deepcopy(old)
        old.clear()

    @rule()
    def look(self) -> None:
        """Compare all that there is to see; after some histories only."""
        rows = sampler_of(self.rb).rows
        np.testing.assert_array_equal(weights_of(self.rb), self.twin.weights)
        np.testing.assert_allclose(rows.total, self.twin.weights.sum(), rtol=1e-14)
        assert rows.least == self.twin.least
        assert self.rb.get_max_priority() == self.twin.greatest
        assert_nodes_are_sums(self.rb)
        assert len(self.rb) == len(self.twin.steps())

    def teardown(self) -> None:
        if hasattr(self, "rb"):
            self.look()


TestPrioritizedAgainstTwin = PrioritizedAgainstTwin.TestCase


# ---- in proportion -----------------------------------------------------------------------


def assert_drawn_in_proportion(
    rb: PrioritizedReplayBuffer, weights: Array, n: int = 50, rounds: int = 1500
) -> None:
    """Slots are drawn as often as these weights say, those of weight 0 never."""
    drawn = np.concatenate([rb.sample(n)["indexes"] for _ in range(rounds)]).astype(np.intp)
    counts = np.bincount(drawn % rb.capacity, minlength=len(weights))
    there = weights > 0
    assert counts[~there].sum() == 0
    expected = drawn.size * weights[there] / weights.sum()
    assert chi_square(counts[there], expected) < chi_square_limit(int(there.sum()) - 1)


@pytest.mark.parametrize("stratified", [True, False], ids=["stratified", "independent"])
@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0, 2.0])
def test_rows_are_drawn_in_proportion(stratified: bool, alpha: float) -> None:
    """Counts fit ``(p + eps) ** alpha``, however priorities came: by add or by update."""
    priorities = np.array([0.0, 0.1, 0.5, 1.0, 1.0, 2.0, 3.0, 4.5])
    rb = prioritized(8, alpha, eps=0.1, stratified=stratified, seed=3)
    rb.add(x=np.arange(8), priorities=priorities[::-1])
    rb.update_priorities(np.arange(8), priorities)
    assert_drawn_in_proportion(rb, (priorities + 0.1) ** alpha)


def test_rows_are_drawn_in_proportion_after_wrap_around_and_updates() -> None:
    """The same for a ring that has wrapped, part updated, part new, in many small steps."""
    rb = prioritized(11, 1.0, eps=0.0, seed=5)
    expected = np.zeros(11)
    greatest = 1.0
    for i in range(60):
        p = float(i % 5 + 1)
        if i % 3:
            rb.add(x=i, priorities=p)
            greatest = max(greatest, p)
        else:
            rb.add(x=i)
        expected[i % 11] = p if i % 3 else greatest
        if i % 7 == 6 and i > 10:
            rb.update_priorities([i % 11, (i + 4) % 11, i % 11], [9, 2, 0.5])
            expected[(i + 4) % 11], expected[i % 11] = 2, 0.5
            greatest = max(greatest, 9)
    assert_drawn_in_proportion(rb, expected)


@pytest.mark.parametrize("capacity", [12, 13])
def test_absent_rows_are_never_drawn_and_others_in_proportion(capacity: int) -> None:
    """With several environments, only rows that hold a step come, each in proportion."""
    rb = prioritized(capacity, 1.0, eps=0.0, n_envs=3, seed=7)
    expected = np.zeros(capacity)
    for i in range(20):
        present = [i % 2 == 0, i % 5 != 0, True]
        rb.add_where(present, x=3 * i + np.arange(3), priorities=[1 + i % 4, 2, 0.5])
        for env, p in enumerate([1 + i % 4, 2, 0.5]):
            expected[(3 * i + env) % capacity] = p * present[env]
    assert_drawn_in_proportion(rb, expected)
    there = int(np.count_nonzero(expected))
    assert len(set(rb.sample(there, replace=False)["indexes"].tolist())) == there
    with pytest.raises(NotEnoughDataError):
        rb.sample(there + 1, replace=False)


def test_stratified_draws_take_one_of_each_part() -> None:
    """Of equal rows, a stratified batch of their number holds each exactly once."""
    rb = with_priorities([2.0] * 16, stratified=True)
    for _ in range(20):
        assert sorted(rb.sample(16)["x"].tolist()) == list(range(16))
    rb = with_priorities([2.0] * 16, stratified=False)
    assert len(set(rb.sample(16)["x"].tolist())) < 16


def test_independent_draws_are_independent() -> None:
    """Pairs of draws of one batch come in proportion to the products of their weights."""
    p = np.array([1.0, 2.0, 3.0, 4.0])
    rb = with_priorities(p.tolist(), stratified=False, seed=13)
    pairs = rb.sample(100_000)["x"].reshape(-1, 2)
    counts = np.bincount(pairs[:, 0] * 4 + pairs[:, 1], minlength=16)
    assert chi_square(counts, 50_000 * np.outer(p, p).ravel() / 100) < chi_square_limit(15)


def test_distinct_draws_are_successive_draws() -> None:
    """Without replacement each pair comes as p_i / S * p_j / (S - p_i) says, and no row twice."""
    p = np.array([1.0, 2.0, 3.0, 4.0])
    rb = with_priorities(p.tolist(), seed=11)
    rounds = 12_000
    pairs = np.array([rb.sample(2, replace=False)["x"] for _ in range(rounds)])
    assert (pairs[:, 0] != pairs[:, 1]).all()
    counts = np.bincount(pairs[:, 0] * 4 + pairs[:, 1], minlength=16)
    expected = rounds * np.outer(p / 10, p) / (10 - p)[:, None]
    np.fill_diagonal(expected, 0)
    there = expected.ravel() > 0
    assert chi_square(counts[there], expected.ravel()[there]) < chi_square_limit(11)


# ---- weights -----------------------------------------------------------------------------


@pytest.mark.parametrize("replace", [True, False])
@pytest.mark.parametrize("among", ["all", "batch"])
@pytest.mark.parametrize("beta", BETAS)
def test_weights_are_those_of_the_formula(
    beta: float, among: str, replace: bool, rng: np.random.Generator
) -> None:
    """``(p_i / p_min) ** -beta`` to 1e-12, over all rows or the batch, also for large spreads."""
    priorities = 10.0 ** rng.uniform(-6, 6, 200)
    p = (priorities + 1e-9) ** 0.6
    rb = prioritized(200, 0.6, eps=1e-9, weights=among, weights_dtype=np.float64)
    rb.add(x=np.arange(200), priorities=priorities)
    for n in (1, 7, 64):
        batch = rb.sample(n, beta, replace=replace)
        drawn = p[batch["x"]]
        least = p.min() if among == "all" else drawn.min()
        assert batch["weights"].dtype == np.float64
        np.testing.assert_allclose(batch["weights"], (drawn / least) ** -beta, rtol=1e-12)
        assert batch["weights"].max() <= 1.0


@pytest.mark.parametrize("among", ["all", "batch"])
@pytest.mark.parametrize("beta", BETAS)
def test_single_weights_are_rounded_double_ones(beta: float, among: str) -> None:
    """``weights_dtype=float32`` gives the numbers of float64, rounded once."""
    priorities = np.geomspace(1e-3, 1e3, 40)
    one, other = (
        prioritized(40, weights=among, weights_dtype=dtype, seed=4)
        for dtype in (np.float32, np.float64)
    )
    for rb in (one, other):
        rb.add(x=np.arange(40), priorities=priorities)
    single, double = one.sample(100, beta)["weights"], other.sample(100, beta)["weights"]
    assert single.dtype == np.float32
    np.testing.assert_array_equal(single, double.astype(np.float32))


def test_the_weights_of_the_named_buffer_are_single() -> None:
    """``PrioritizedReplayBuffer`` has cpprb's columns: float32 weights; and int64 indexes."""
    rb = PrioritizedReplayBuffer(10, NUMBER, alpha=0.5, eps=0.0, seed=1)
    rb.add(x=[0, 1], priorities=[1.0, 16.0])
    batch = rb.sample(64, beta=1.0)
    assert list(batch) == ["x", "weights", "indexes"]
    assert batch["weights"].dtype == np.float32
    assert batch["indexes"].dtype == np.int64
    assert batch["indexes"].tolist() == batch["x"].tolist()
    assert batch["weights"].tolist() == np.where(batch["x"] == 0, 1.0, 0.25).tolist()


def test_the_default_beta_is_cpprbs() -> None:
    """Without ``beta`` the exponent is 0.4, in the buffer as in the sampler."""
    for rb in (prioritized(2, 1.0, eps=0.0), PrioritizedReplayBuffer(2, NUMBER, alpha=1, eps=0)):
        rb.add(x=[0, 1], priorities=[1.0, 32.0])
        batch = rb.sample(30)
        expected = np.where(batch["x"] == 0, 1.0, 0.25)
        np.testing.assert_allclose(batch["weights"], expected, rtol=1e-6)


@pytest.mark.parametrize("schedule", SCHEDULES, ids=["linear", "piecewise", "function"])
@pytest.mark.parametrize("where", ["sampler", "call"])
def test_beta_may_change_with_the_number_of_draws(schedule: Any, where: str) -> None:
    """A schedule, of the sampler or the call, is asked about the number of batches before."""
    rb = with_priorities([1.0, 2.0, 5.0], beta=schedule if where == "sampler" else 0.1)
    p = np.array([1.0, 2.0, 5.0])
    for t in range(12):
        batch = rb.sample(20, **({} if where == "sampler" else {"beta": schedule}))
        np.testing.assert_allclose(batch["weights"], p[batch["x"]] ** -schedule(t), rtol=1e-12)
    assert sampler_of(rb).draws == 12


@pytest.mark.parametrize(
    ("low", "high", "beta"), [(1e-300, 1e300, 0.4), (5e-324, 1.0, 0.4), (1e-300, 1e100, 0.7)]
)
def test_weights_of_extreme_spreads_are_not_zero(low: float, high: float, beta: float) -> None:
    """A weight that float64 can hold is not lost because the ratio of the priorities is none."""
    rb = with_priorities([low, high, high])
    expected = math.exp(beta * (math.log(low) - math.log(high)))
    np.testing.assert_allclose(rb.sample(5, beta)["weights"], expected, rtol=1e-12)


def test_probabilities_are_shares_of_the_sum() -> None:
    """``probabilities=True`` adds what each row's share is; ``probabilities_of`` says it too."""
    rb = with_priorities([1.0, 3.0, 4.0], probabilities=True)
    share = np.array([1.0, 3.0, 4.0]) / 8
    for replace in (True, False):
        batch = rb.sample(3, replace=replace)
        assert list(batch) == ["x", "weights", "indexes", "probabilities"]
        assert batch["probabilities"].tolist() == share[batch["x"]].tolist()
    assert sampler_of(rb).probabilities_of(np.array([2, 0])).tolist() == [0.5, 0.125]


@pytest.mark.parametrize("beta", [1.5, 2.0, 3.0])
def test_beta_above_one_corrects_more_than_fully(beta: float) -> None:
    """As in cpprb: the weights are the same formula."""
    rb = with_priorities([1.0, 3.0, 4.0])
    batch = rb.sample(9, beta=beta)
    expected = (np.array([1.0, 3.0, 4.0])[batch["x"]] / 1.0) ** -beta
    np.testing.assert_allclose(batch["weights"], expected, rtol=1e-6)


# ---- priorities of new rows ----------------------------------------------------------------


def test_new_rows_get_the_greatest_priority_so_far() -> None:
    """1.0 at first; then the greatest ever given, by add or update, until ``clear``."""
    rb = prioritized(4, 1.0, eps=0.0)
    assert rb.get_max_priority() == 1.0
    rb.add(x=[0, 1], priorities=[0.5, 0.25])
    assert rb.get_max_priority() == 1.0
    rb.add(x=2)
    rb.add(x=3, priorities=7.0)
    rb.add(x=4)
    assert weights_of(rb).tolist() == [7.0, 0.25, 1.0, 7.0]
    rb.update_priorities([0, 3], [0.5, 0.5])
    rb.add(x=5)
    assert weights_of(rb).tolist() == [0.5, 7.0, 1.0, 0.5]
    assert rb.get_max_priority() == 7.0
    rb.clear()
    assert rb.get_max_priority() == 1.0
    rb.add(x=0)
    assert weights_of(rb).tolist() == [1.0, 0, 0, 0]


def test_looks_at_the_weights_beside_distinct_draws() -> None:
    """What has been drawn weighs nothing during the call: no other call sees that."""
    n = 20_000
    rb = prioritized(n, 1.0, eps=0.0)
    priorities = 1.0 + np.arange(n) / n
    rb.add(x=np.arange(n), priorities=priorities)
    rows = sampler_of(rb).rows

    def draw() -> None:
        rb.sample(n - 1, replace=False)

    def look() -> None:
        assert rows.least == 1.0

    def save() -> None:
        assert (rows.save()["values"] == priorities).all()

    run_together(draw, look, save)
    assert_nodes_are_sums(rb)


def test_priorities_of_absent_rows_do_not_count() -> None:
    """What is given for a row that holds no step is filler: it never is the greatest priority."""
    rb = prioritized(6, 1.0, eps=0.0, n_envs=2)
    rb.add_where([True, False], x=[0, 1], priorities=[2.0, 100.0])
    assert rb.get_max_priority() == 2.0
    rb.add(x=[2, 3])
    assert weights_of(rb).tolist() == [2.0, 0.0, 2.0, 2.0, 0.0, 0.0]


def test_add_with_priorities_of_every_form() -> None:
    """Scalars, lists and arrays of (N,) and (N, 1) and any number dtype are priorities."""
    rb = prioritized(30, 1.0, eps=0.0)
    for one in (2, 2.0, np.float32(2), np.array(2), [2], [[2.0]], np.array([2], "u1")):
        rb.add(x=0, priorities=one)
    for two in ([2, 2], (2.0, 2.0), np.array([[2], [2]]), np.full(4, 2, ">f4")[::2]):
        rb.add(x=[0, 0], priorities=two)
    assert weights_of(rb)[:15].tolist() == [2.0] * 15
    assert rb.add(x=np.zeros((0,)), priorities=[]) == 15


def test_priorities_may_stand_anywhere_among_the_keywords() -> None:
    """The keyword is found by its text at every place, and ``None`` is as if it was not given."""
    fields: dict[str, Any] = {"a": {"shape": ()}, "b": {"shape": ()}}
    rb = prioritized(9, 1.0, eps=0.0, fields=fields)
    name = "Priorities".lower()  # another object than the one in the code
    rb.add(**{name: 2.0, "a": 1, "b": 2})
    rb.add(a=1, priorities=3.0, b=2)
    rb.add(**{"b": 2, "a": 1, name: 4.0})
    rb.add(b=Fraction(2), a=1, priorities=5.0)  # a value that needs conversion
    rb.add(a=1, b=2, priorities=None)
    rb.add(priorities=None, a=[1], b=[Fraction(2)])
    assert weights_of(rb).tolist() == [2, 3, 4, 5, 5, 5, 0, 0, 0]
    assert rb.get_all_transitions()["a"].tolist() == [1] * 6
    assert rb.get_all_transitions()["b"].tolist() == [2] * 6


@pytest.mark.parametrize("n", [1, 9, 10, 11, 35])
def test_batches_longer_than_the_ring(n: int) -> None:
    """Of a call with more rows than the ring holds, the priorities of the last ones stay."""
    rb = prioritized(10, 1.0, eps=0.0)
    rb.add(x=[0, 0, 0])
    rb.add(x=np.arange(n), priorities=1.0 + np.arange(n))
    for slot, x in enumerate(rb.get_all_transitions()["x"].tolist()):
        assert weights_of(rb)[slot] == (x + 1 if slot in {(3 + i) % 10 for i in range(n)} else 1)
    assert rb.get_max_priority() == n


# ---- indexes -----------------------------------------------------------------------------


def test_of_duplicates_the_last_wins() -> None:
    """As in an assignment by index."""
    rb = with_priorities([1.0, 1.0, 1.0])
    rb.update_priorities([0, 2, 0, 2, 2], [5, 6, 7, 8, 9])
    assert weights_of(rb).tolist() == [7, 1, 9]


def test_handles_reach_their_rows_and_no_others() -> None:
    """Of three outstanding batches, each updates the rows it drew as far as they are there."""
    rb = prioritized(6, 1.0, eps=0.0, check_for_update=True)
    batches = []
    for i in range(3):
        rb.add(x=[2 * i, 2 * i + 1])
        batches.append(rb.sample(len(rb), replace=False))
    for _ in range(2):
        rb.add(x=[100, 101])  # rows 0 to 3 are gone, their slots in use
    for batch in batches:
        assert (batch["indexes"] % 6).tolist() == (batch["x"] % 6).tolist()
        rb.update_priorities(batch["indexes"], 10.0 + batch["x"])
    assert weights_of(rb).tolist() == [1, 1, 1, 1, 14, 15]


@pytest.mark.parametrize("clears", [1, 2, 5])
@pytest.mark.parametrize("rows", [1, 4, 5, 6, 23])
def test_handles_die_with_a_clear(rows: int, clears: int) -> None:
    """Handles from before a ``clear`` are skipped, whatever came since, and never used again."""
    rb = prioritized(5, 1.0, eps=0.0, check_for_update=True)
    seen: set[int] = set()
    for _ in range(4):
        rb.add(x=np.arange(rows))
        handles = rb.sample(30)["indexes"]
        assert seen.isdisjoint(handles.tolist())
        seen.update(handles.tolist())
        for i in range(clears):
            rb.clear()
            if i % 2:
                rb.add(x=[0, 0])
        rb.update_priorities(handles, np.full(30, 9.0))
        rb.add(x=np.arange(5))
        rb.update_priorities(handles, np.full(30, 9.0))
        assert weights_of(rb).tolist() == [1.0] * 5
        rb.clear()


def test_slots_are_passed_over_if_overwritten_since_the_last_draw() -> None:
    """As in cpprb, and only with ``check_for_update``."""
    for check, expected in [(True, [5, 5, 1, 1]), (False, [5, 5, 5, 5])]:
        rb = prioritized(4, 1.0, eps=0.0, check_for_update=check)
        rb.add(x=np.arange(6))
        rb.sample(1)
        rb.add(x=[6, 7])
        rb.update_priorities(np.arange(4), [5] * 4)
        assert weights_of(rb).tolist() == expected
        rb.sample(1)
        rb.update_priorities(np.arange(4), [3] * 4)
        assert weights_of(rb).tolist() == [3] * 4


def test_slots_may_be_updated_before_anything_was_drawn() -> None:
    """Nothing has been overwritten since a draw if there was none."""
    rb = prioritized(4, 1.0, eps=0.0, check_for_update=True)
    rb.add(x=np.arange(7))
    rb.update_priorities([0, 3], [2.0, 3.0])
    assert weights_of(rb).tolist() == [2, 1, 1, 3]


def test_updates_of_nothing() -> None:
    """An update of no rows is allowed, as lists and as arrays, also of an empty buffer."""
    rb = prioritized(4)
    rb.update_priorities([], [])
    rb.update_priorities(np.zeros(0, np.uint64), np.zeros((0, 1), np.float32))
    assert rb.get_max_priority() == 1.0


# ---- seeds, copies, files ----------------------------------------------------------------


def learn(rb: PrioritizedReplayBuffer, steps: int) -> list[list[float]]:
    """Some steps of adding, drawing and updating; what was drawn and its weights."""
    seen = []
    for i in range(steps):
        rb.add(x=i)
        batch = rb.sample(8, replace=i % 3 > 0 or len(rb) < 8)
        rb.update_priorities(batch["indexes"], (batch["x"] * 7919 % 13) / 4)
        seen.append(batch["x"].tolist() + batch["weights"].tolist() + batch["indexes"].tolist())
    return seen


def test_same_seed_same_batches() -> None:
    """Two buffers of one seed and one history draw the same, of another seed others."""
    runs = [learn(prioritized(20, seed=seed), 60) for seed in (3, 3, 4)]
    assert runs[0] == runs[1]
    assert runs[0] != runs[2]


@PICKLE
@pytest.mark.parametrize("check_for_update", [True, False])
@pytest.mark.parametrize("steps", [0, 5, 33])
def test_copies_go_on_alike(how: Any, check_for_update: bool, steps: int) -> None:
    """A copy draws what the original draws, learns what it learns, and is another thing."""
    rb = prioritized(20, 0.7, beta=Linear(0, 1, 50), check_for_update=check_for_update)
    learn(rb, steps)
    rb.add(x=[1, 2, 3], priorities=[4.0, 0.0, 2.0])
    outstanding = rb.sample(5)["indexes"]
    rb.add(x=[1, 2])
    twin = how(rb)
    for each in (rb, twin):
        each.update_priorities(outstanding, np.arange(5.0))
    first = learn(twin, 30)
    assert weights_of(rb).tolist() != weights_of(twin).tolist()
    assert learn(rb, 30) == first
    assert weights_of(rb).tolist() == weights_of(twin).tolist()
    assert rb.get_max_priority() == twin.get_max_priority()
    rb.clear()
    assert weights_of(twin).any()


@PICKLE
def test_handles_stay_right_in_copies(how: Any) -> None:
    """A copy, also one made after a ``clear``, gives no handle again and knows the old ones."""
    rb = prioritized(5, 1.0, eps=0.0, check_for_update=True)
    rb.add(x=np.arange(23))
    old = rb.sample(30)["indexes"]
    rb.clear()
    rb.add(x=np.arange(5))
    twin = how(rb)
    twin.update_priorities(old, np.full(30, 9.0))
    assert weights_of(twin).tolist() == [1.0] * 5
    assert set(old.tolist()).isdisjoint(twin.sample(30)["indexes"].tolist())


# ---- batches -----------------------------------------------------------------------------


def test_batches_survive_whatever_comes_later() -> None:
    """Weights and indexes are fresh arrays: no later call changes them (cpprb's do change)."""
    rb = with_priorities([1.0, 2.0, 3.0, 4.0], probabilities=True, check_for_update=True)
    batch = rb.sample(50)
    kept = {name: value.copy() for name, value in batch.items()}
    rb.update_priorities(batch["indexes"], np.full(50, 7.0))
    others = [rb.sample(50) for _ in range(20)]
    rb.clear()
    for name, value in batch.items():
        np.testing.assert_array_equal(value, kept[name])
        for other in others:
            assert not np.shares_memory(value, other[name])


def test_out_gets_fresh_weights_and_indexes() -> None:
    """``out`` is filled and returned, again and again, and new columns replace the old."""
    rb, twin = (with_priorities([1.0, 2.0, 3.0]) for _ in range(2))
    out: dict[str, Array] = {"x": np.zeros(6, "i8")}
    x = out["x"]
    before: Array | None = None
    for _ in range(3):
        expected = twin.sample(6, 1.0)
        assert rb.sample(6, 1.0, out=out) is out
        assert out["x"] is x
        assert out["weights"] is not before
        before = out["weights"]
        for name, value in expected.items():
            np.testing.assert_array_equal(out[name], value)


def test_create_buffer_chooses_the_class() -> None:
    """``prioritized`` decides, and options reach the class."""
    rb = create_buffer(10, NUMBER, prioritized=True, alpha=1.0, eps=0.0, seed=1)
    assert type(rb) is PrioritizedReplayBuffer
    assert repr(rb.sampler).startswith("Prioritized(alpha=1")
    assert type(create_buffer(10, NUMBER)) is ReplayBuffer
    with pytest.raises(TypeError, match="alpha"):
        create_buffer(10, NUMBER, alpha=1.0)


@pytest.mark.parametrize("sampler", [Prioritized, RankBased])
def test_a_replay_buffer_with_the_sampler_has_priorities(sampler: Any) -> None:
    """It has all that ``PrioritizedReplayBuffer`` has; ``add`` and updates refused priorities."""
    rb = ReplayBuffer(8, NUMBER, sampler=sampler(1.0), n_envs=2, seed=0)
    rb.add(x=[0, 1], priorities=[0.0, 5.0])
    rb.add_where([True, False], x=[2, 3], priorities=[7.0, 9.0])
    assert rb.has_priorities
    assert rb.get_max_priority() == 7.0
    batch = rb.sample(50, beta=0.4)
    assert {"weights", "indexes"} <= batch.keys()
    rb.update_priorities(batch["indexes"], np.full(50, 11.0))
    assert rb.get_max_priority() == 11.0
    for other in (pickle.loads(pickle.dumps(rb)), copy.deepcopy(rb)):
        assert type(other) is ReplayBuffer
        assert other.get_max_priority() == 11.0
        other.add(x=[4, 5], priorities=[13.0, 1.0])
        assert other.get_max_priority() == 13.0
    with pytest.raises(ValueError, match=r"env_dict: \['priorities'\]"):
        ReplayBuffer(8, {"priorities": {}}, sampler=sampler())


@pytest.mark.parametrize("sampler", [Prioritized, RankBased])
def test_a_replay_buffer_never_sets_the_priority_of_a_later_row(sampler: Any) -> None:
    """``indexes`` are handles by default; they were slots, and late updates reached other rows."""
    rb = ReplayBuffer(10, NUMBER, sampler=sampler(), seed=0)
    rb.add(x=np.arange(10))
    batch = rb.sample(20)
    assert (batch["indexes"] % 10 == batch["x"]).all()
    rb.add(x=np.arange(10, 20))
    rb.update_priorities(batch["indexes"], np.full(20, 100.0))
    assert rb.get_max_priority() == 1.0
    assert sampler().check_for_update


def test_the_class_of_cpprb_has_slots_by_default() -> None:
    """As in cpprb: a late update sets the priority of the row that is in the slot now."""
    rb = PrioritizedReplayBuffer(10, NUMBER, alpha=1.0, eps=0.0, seed=0)
    rb.add(x=np.arange(10))
    batch = rb.sample(20)
    assert (batch["indexes"] == batch["x"]).all()
    rb.add(x=np.arange(10, 20))
    rb.update_priorities(batch["indexes"], np.full(20, 100.0))
    assert rb.get_max_priority() == 100.0
    for options in ({"check_for_update": True}, {"sampler": Prioritized()}):
        rb = PrioritizedReplayBuffer(10, NUMBER, **options)
        rb.add(x=np.arange(10))
        assert (rb.sample(20)["indexes"] >= 10).all()


# ---- cost --------------------------------------------------------------------------------


def test_add_without_priorities_does_nothing_to_the_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its memory stays as it was until somebody draws, however many rows come."""
    memory: list[Array] = []

    def allocate(n: int) -> Array:
        memory.append(np.zeros(n))
        return memory[-1]

    monkeypatch.setattr(_prioritized, "allocate_floats", allocate)
    rb = prioritized(64)
    for i in range(200):
        rb.add(x=i)
    rb.add(x=np.arange(100))
    assert not any(nodes.any() for nodes in memory)
    rb.sample(1)
    assert all(nodes.any() for nodes in memory)


def test_add_without_priorities_costs_what_a_uniform_buffer_costs() -> None:
    """The same compiled call: less than twice the time, the best of many rounds."""
    step: dict[str, Any] = {
        "obs": np.zeros(4, "f4"),
        "act": 1.0,
        "rew": 1.0,
        "next_obs": np.zeros(4, "f4"),
        "done": False,
    }
    plain, rb = ReplayBuffer(1000, FIVE_SMALL), prioritized(1000, fields=FIVE_SMALL)
    assert ratio(lambda: plain.add(**step), lambda: rb.add(**step), 30, 500) < 2


def test_memory_stays_within_the_promise() -> None:
    """Rows of five small fields keep at most 1.05 times their declared bytes and 16 in all."""
    rb = prioritized(100_000, fields=FIVE_SMALL)
    plain = ReplayBuffer(100_000, FIVE_SMALL)
    declared = 4 * (4 + 1 + 1 + 4) + 1
    sampler = sampler_of(rb).nbytes_for(100_000)
    assert rb.nbytes <= 1.05 * (declared + 16) * 100_000
    assert sampler <= 11 * 100_000
    assert rb.nbytes >= sampler + declared * 100_000
    assert "(sampler)" in repr(rb)
    assert "(sampler)" not in repr(plain)


def test_nbytes_is_what_is_allocated() -> None:
    """The trees take the memory that ``nbytes_for`` says, and no more."""
    ring = ReplayBuffer(10_000, NUMBER).ring

    def opened() -> Prioritized:
        sampler = Prioritized()
        sampler.open(ring)
        return sampler

    assert 0 <= allocated(opened) - opened().nbytes_for(10_000) < 8192


@pytest.mark.slow
def test_no_memory_is_lost() -> None:
    """A hundred thousand calls, good and bad ones, leave neither memory nor references behind."""
    rb = prioritized(50, check_for_update=True)
    rb.add(x=np.arange(50))
    priorities, index = np.ones(4), np.arange(4)
    bad = np.array([np.nan])

    def cycle(n: int) -> None:
        for _ in range(n):
            rb.add(x=1, priorities=2.0)
            batch = rb.sample(4)
            rb.update_priorities(batch["indexes"], priorities)
            rb.update_priorities(index, priorities)

    def bad_cycle(n: int) -> None:
        for _ in range(n):
            for call in (
                lambda: rb.add(x=1, priorities=bad),
                lambda: rb.add(x=1, priorities=priorities),
                lambda: rb.update_priorities([10**9], [1.0]),
                lambda: rb.sample(4, beta=-1.0),
            ):
                with pytest.raises((ValueError, IndexError)):
                    call()

    cycle(500)
    bad_cycle(100)
    gc.collect()
    references = [sys.getrefcount(thing) for thing in (rb, priorities, index, bad, rb.sampler)]

    def cycles() -> None:
        cycle(1_000)
        bad_cycle(300)
        gc.collect()

    assert allocated(cycles) < 10_000
    cycle(20_500)
    again = [sys.getrefcount(thing) for thing in (rb, priorities, index, bad, rb.sampler)]
    assert references == again


def test_a_dead_buffer_gives_its_memory_back() -> None:
    """Buffer, sampler and trees die together, without the cycle collector."""

    def live_and_die() -> None:
        for _ in range(5):
            rb = prioritized(20_000)
            rb.add(x=np.arange(20_000))
            rb.sample(10)

    assert allocated(live_and_die) < 25_000


# ---- never a row of weight zero --------------------------------------------------------------


@given(
    weights=st.lists(
        st.sampled_from([0.0, 0.0, 5e-324, 1e-300, 1e-16, 1.0, 1e16, 1e300]),
        min_size=1,
        max_size=40,
    ),
    n=st.integers(1, 30),
    stratified=st.booleans(),
    seed=st.integers(0, 2**16),
)
def test_rows_without_weight_are_never_drawn(
    weights: list[float], n: int, stratified: bool, seed: int
) -> None:
    """With ``eps=0`` rows of priority 0 never come, however much the others differ."""
    rb = with_priorities(weights, stratified=stratified, seed=seed)
    there = np.flatnonzero(weights)
    if there.size == 0:
        for replace in (True, False):
            with pytest.raises(NotEnoughDataError):
                rb.sample(n, replace=replace)
        return
    batch = rb.sample(n)
    assert set(batch["x"].tolist()) <= set(there.tolist())
    assert np.isfinite(batch["weights"]).all()
    assert sorted(rb.sample(there.size, replace=False)["x"].tolist()) == there.tolist()
    with pytest.raises(NotEnoughDataError):
        rb.sample(there.size + 1, replace=False)


# ---- deleted episodes --------------------------------------------------------------------

DELETED: dict[str, Callable[[], Prioritized | RankBased]] = {
    "prioritized": lambda: Prioritized(1.0, eps=0.0, check_for_update=True),
    "ranks": lambda: RankBased(1.0, check_for_update=True),
}
deleting = pytest.mark.parametrize(
    ("kind", "nstep", "n_envs"),
    [(kind, nstep, n_envs) for kind in DELETED for nstep in (1, 3) for n_envs in (1, 2)],
)


def of_episodes(kind: str, nstep: int, n_envs: int) -> PrioritizedReplayBuffer:
    """Ended episodes of five steps, and priorities that differ."""
    fields: dict[str, Any] = {"x": {"shape": (), "dtype": "i8"}, "r": {}, "done": {}}
    options: dict[str, Any] = {"n_envs": n_envs, "sampler": DELETED[kind](), "seed": 0}
    if nstep > 1:
        options["Nstep"] = {"size": nstep, "rew": "r", "next": []}
    rb = PrioritizedReplayBuffer(40, fields, **options)
    for t in range(30):
        x = n_envs * t + np.arange(n_envs)
        rb.add(x=x, r=x, done=np.full(n_envs, t % 5 == 4))
    batch = rb.sample(30)
    rb.update_priorities(batch["indexes"], 1.0 + batch["x"])
    return rb


@deleting
def test_an_update_at_any_line_of_a_deletion_gives_no_weight_back(
    kind: str, nstep: int, n_envs: int
) -> None:
    """Weights were set to 0 before the rows were hidden; a handler in between set them again."""
    rb = of_episodes(kind, nstep, n_envs)
    lines = first_and_last(lambda: rb.episodes.delete(1))
    assert len(lines) > 5
    for line in lines:
        rb = of_episodes(kind, nstep, n_envs)
        gone = set(rb.episodes.read(1)["x"].tolist())
        batch = rb.sample(30)

        def update(rb: Any = rb, batch: Any = batch) -> None:
            with suppress(IndexError):  # of rows that are deleted already
                rb.update_priorities(batch["indexes"], np.full(30, 7.0))

        with cut_at(line, update):
            rb.episodes.delete(1)
        rb.check()
        drawn = rb.sample(len(rb), replace=False)["x"].tolist()
        assert gone.isdisjoint(drawn)
        assert set(drawn) == set(rb.get_all_transitions()["x"].tolist())


@deleting
def test_a_deletion_that_is_cut_short_was_none_or_all(kind: str, nstep: int, n_envs: int) -> None:
    """The rows had no weight and were there, where it was cut between the two."""
    make = partial(of_episodes, kind, nstep, n_envs)
    assert cut_everywhere(make, lambda rb: rb.episodes.delete(1), look_at) > 5


def test_many_deletions_between_two_draws_are_all_followed() -> None:
    """The log of hidden rows has 64 entries; where it lacks some, all rows are looked at."""
    for deletions in (1, 63, 64, 65, 150):
        rb = prioritized(1000, alpha=1.0, eps=0.0)
        for t in range(200):
            rb.add(x=t, priorities=1.0 + t)
            rb.on_episode_end()
        rb.sample(1)
        for _ in range(deletions):
            rb.episodes.delete(len(rb.episodes) // 2)
        found = rb.sample(200 - deletions, replace=False)
        assert set(found["x"].tolist()) == set(rb.get_all_transitions()["x"].tolist())
        rb.check()


# ---- starts ------------------------------------------------------------------------------


@pytest.mark.once
@pytest.mark.parametrize("huge", [None, 2, 3], ids=["even", "a start", "no start"])
@pytest.mark.parametrize("replace", [True, False])
def test_starts_are_drawn_in_proportion_whatever_one_row_weighs(
    huge: int | None, replace: bool
) -> None:
    """Rows that were drawn are passed over: pairs come as of draws among the starts alone.

    Distinct starts were looked for by draws with repeats, which gave the row of great weight again
    and again; then all starts were looked at, for a second where there are 10^6 rows.
    """
    fields: dict[str, Any] = NUMBER | {"done": {}}
    rb = prioritized(8, 1.0, eps=0.0, fields=fields, stratified=False, seed=5)
    p = np.array([1.0, 2.0, 3.0, 4.0, 2.0, 5.0, 1.0, 3.0])
    if huge is not None:
        p[huge] = 1e12 if huge == 3 else 40.0
    rb.add(x=np.arange(8), done=np.arange(8) % 4 == 3, priorities=p)
    view = rb.view(Sequences(2, burn_in=1))  # rows 3 and 7 are no starts
    starts = np.array([0, 1, 2, 4, 5, 6])
    rounds = 6000
    pairs = np.array([view.sample(2, replace=replace)["x"][:, 0] for _ in range(rounds)])
    assert set(pairs.ravel().tolist()) <= set(starts.tolist())
    counts = np.zeros((8, 8))
    np.add.at(counts, (pairs[:, 0], pairs[:, 1]), 1)
    q = p[starts] / p[starts].sum()
    expected = rounds * np.outer(q, q)
    if not replace:
        expected /= (1 - q)[:, None]
        np.fill_diagonal(expected, 0)
    found = counts[np.ix_(starts, starts)]
    there = expected > 0
    assert found[~there].sum() == 0
    assert chi_square(found[there], expected[there]) < chi_square_limit(int(there.sum()) - 1)
    assert_nodes_are_sums(rb)
    assert weights_of(rb).tolist() == p.tolist()


def test_all_distinct_starts_are_found_and_no_more() -> None:
    """However many of the rows of great weight are none; one more is refused."""
    rb = prioritized(3000, 1.0, eps=0.0, fields=NUMBER | {"done": {}})
    x = np.arange(3000)
    rb.add(x=x, done=x % 3 == 2, priorities=np.where(x % 3 == 2, 1e9, 1.0 + x % 5))
    view = rb.view(Sequences(3, burn_in=2))
    assert sorted(view.sample(1000, replace=False)["x"][:, 0].tolist()) == list(range(0, 3000, 3))
    with pytest.raises(NotEnoughDataError, match="1001"):
        view.sample(1001, replace=False)


def test_a_draw_without_some_rows_leaves_every_weight_as_it_was() -> None:
    """Also where a row is named twice; and the rows that are named do not come."""
    rb = with_priorities([float(k + 1) for k in range(300)], seed=1)
    rows = sampler_of(rb).rows
    passed = np.array([299, 5, 299, 17, 5], np.intp)
    for replace in (True, False):
        slots, *_ = rows.draw(200, rb.rng, replace, False, False, passed)
        assert not np.isin(slots, passed).any()
        assert weights_of(rb).tolist() == [float(k + 1) for k in range(300)]
        assert_nodes_are_sums(rb)
    with pytest.raises(NotEnoughDataError):
        rows.draw(298, rb.rng, False, False, False, passed)
    with pytest.raises(IndexError):
        rows.draw(2, rb.rng, True, False, False, np.array([300], np.intp))
    assert_nodes_are_sums(rb)
