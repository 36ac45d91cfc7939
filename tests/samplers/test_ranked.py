"""Rank-based draws: against the twin and the paper, and when ranks are exact."""

from __future__ import annotations

import copy
import pickle
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from interruptions import cut_at, cut_everywhere
from reference_ranked import ReferenceRanked, paper_weights

from cpprb_like import NotEnoughDataError, PrioritizedReplayBuffer
from cpprb_like._rows.row_handles import public_slots
from cpprb_like.samplers import Prioritized, PrioritySampler, RankBased
from cpprb_like.testing import check_sampler
from cpprb_like.typing import FieldSpec, NstepSpec

Floats = npt.NDArray[np.float64]
X: dict[str, FieldSpec] = {"x": {"shape": (), "dtype": np.int64}}


def rank_based(*args: Any, **options: Any) -> RankBased:
    """A sampler whose indexes are slots, with weights of float64 as those of the formula."""
    defaults = {"weights_dtype": np.float64, "check_for_update": False}
    return RankBased(*args, **{**defaults, **options})


def buffer(capacity: int, sampler: RankBased, **options: Any) -> PrioritizedReplayBuffer:
    """A buffer of numbers that draws by rank."""
    protocol: PrioritySampler = sampler
    return PrioritizedReplayBuffer(capacity, X, sampler=protocol, seed=3, **options)


def priorities_of(rb: PrioritizedReplayBuffer) -> dict[int, float]:
    """The priority of each slot that can be drawn."""
    slots = np.sort(rb.ring.present_slots())
    found = cast(RankBased, rb.sampler).row_priorities(slots)
    return dict(zip(slots.tolist(), found.tolist(), strict=True))


def weights_of(rb: PrioritizedReplayBuffer) -> dict[int, float]:
    """The weight of each slot that has one."""
    weights = cast(RankBased, rb.sampler).row_weights(np.arange(rb.ring.capacity))
    return {slot: weights[slot] for slot in np.flatnonzero(weights).tolist()}


def sort(rb: PrioritizedReplayBuffer) -> None:
    """Set all priorities to what they are, so that the next draw sorts."""
    rb.sample(1)  # slots mean the rows that a draw has seen
    known = priorities_of(rb)
    slots = np.array([*known])
    rb.update_priorities(public_slots(rb.ring, slots), list(known.values()))
    rb.sample(1)


def expected_probabilities(priorities: dict[int, float], alpha: float) -> dict[int, float]:
    """The probability of each slot, by the definition."""
    shares = paper_weights(priorities, alpha)
    return {slot: share / sum(shares.values()) for slot, share in shares.items()}


def assert_fits(counts: npt.NDArray[np.intp], probabilities: Floats) -> None:
    """Chi-square is below what it exceeds once in a million times (Wilson and Hilferty)."""
    expected = probabilities * counts.sum()
    freedom = len(counts) - 1
    spread = 2 / (9 * freedom)
    limit = freedom * (1 - spread + 4.75 * spread**0.5) ** 3
    assert ((counts - expected) ** 2 / expected).sum() < limit


def assert_draws_by(rb: PrioritizedReplayBuffer, priorities: dict[int, float]) -> None:
    """Rows have these priorities, and after a sort the chances and weights that the paper says."""
    rb.check()
    assert priorities_of(rb) == priorities
    rb = copy.deepcopy(rb)
    sort(rb)
    sampler = cast(RankBased, rb.sampler)
    expected = expected_probabilities(priorities, sampler.alpha)
    rows = sampler.rows
    found = {slot: weight / rows.total for slot, weight in weights_of(rb).items()}
    assert found == pytest.approx(expected, rel=1e-12)
    batch = rb.sample(400, beta=0.8)
    slots = (batch["indexes"] % rb.get_buffer_size()).astype(int).tolist()
    chances = floats([expected[slot] for slot in slots])
    if sampler.probabilities:
        np.testing.assert_allclose(batch["probabilities"], chances, rtol=1e-12)
    weights = (chances / min(expected.values())) ** -0.8
    np.testing.assert_allclose(batch["weights"], weights, rtol=1e-12)
    assert batch["weights"].max() <= 1.0


def floats(values: Any) -> Floats:
    """Priorities as an array."""
    return np.array(values, np.float64)


# ---- distribution -----------------------------------------------------------------------------


@pytest.mark.parametrize("alpha", [0.0, 0.7, 1.5])
@pytest.mark.parametrize("stratified", [True, False])
def test_draws_are_in_proportion_to_the_power_of_the_rank(alpha: float, stratified: bool) -> None:
    """Counts of drawn rows fit the ranks, before and after an update."""
    rb = buffer(30, rank_based(alpha, stratified=stratified))
    rng = np.random.default_rng(1)
    priorities = rng.permutation(30) * 1e3
    rb.add(x=np.arange(30), priorities=priorities)
    for _ in range(2):
        chances = expected_probabilities(dict(enumerate(priorities.tolist())), alpha)
        drawn = np.concatenate([rb.sample(100)["x"] for _ in range(300)])
        assert_fits(np.bincount(drawn, minlength=30), floats([chances[k] for k in range(30)]))
        priorities = rng.permutation(30) * 1e-3
        rb.update_priorities(np.arange(30), priorities)


def test_strata_have_one_draw_each() -> None:
    """Stratified draws take each rank as often as its share says, give or take less than two."""
    rb = buffer(30, rank_based())
    rb.add(x=np.arange(30), priorities=np.arange(30))
    chances = expected_probabilities(dict(enumerate(range(30))), 0.7)
    counts = np.bincount(rb.sample(1000)["x"], minlength=30)
    assert (abs(counts - 1000 * floats([chances[k] for k in range(30)])) < 2).all()


@pytest.mark.once
def test_draws_without_replacement() -> None:
    """Rows come once; the first two fit drawing one after another among those that are left."""
    rb = buffer(5, rank_based(1.0))
    rb.add(x=np.arange(5), priorities=[9, 7, 5, 3, 1])
    share = 1 / np.arange(1, 6)
    chances = share[:, None] * share / (share.sum() * (share.sum() - share[:, None]))
    pairs = np.array([rb.sample(2, replace=False)["x"] for _ in range(20_000)])
    counts = np.bincount(pairs[:, 0] * 5 + pairs[:, 1], minlength=25).reshape(5, 5)
    different = ~np.eye(5, dtype=bool)
    assert np.trace(counts) == 0
    assert_fits(counts[different], chances[different])
    assert sorted(rb.sample(5, replace=False)["x"].tolist()) == [0, 1, 2, 3, 4]
    with pytest.raises(NotEnoughDataError, match="cannot draw 6 distinct slots"):
        rb.sample(6, replace=False)


def test_only_the_order_of_priorities_counts() -> None:
    """Any growing function of the priorities draws the same rows with the same weights."""
    batches = []
    for function in (np.sqrt, np.square, np.exp):
        rb = buffer(20, rank_based())
        rb.add(x=np.arange(20), priorities=function(np.arange(20.0)[::-1]))
        batches.append(rb.sample(64))
    for batch in batches[1:]:
        for name in ("x", "weights", "indexes"):
            np.testing.assert_array_equal(batch[name], batches[0][name])


# ---- when ranks are new -----------------------------------------------------------------------


class Coarse(RankBased):
    """Ranks are distinguished by two binary digits only, so that small buffers have groups too."""

    BITS = 1


some_priorities = st.one_of(
    st.sampled_from([0.0, 0.25, 1.0, 1.0, 3.0, 50.0]), st.floats(0, 10, width=32)
)


@given(
    data=st.data(),
    capacity=st.integers(1, 40),
    kind=st.sampled_from([RankBased, Coarse]),
    alpha=st.sampled_from([0.0, 0.7, 1.3]),
    n_envs=st.integers(1, 3),
)
def test_any_history_gives_the_weights_of_the_twin(
    data: st.DataObject, capacity: int, kind: type[RankBased], alpha: float, n_envs: int
) -> None:
    """Whatever is added, updated, deleted and drawn, and in a copy that goes on, too."""
    capacity = max(capacity - capacity % n_envs, n_envs)
    fields: dict[str, FieldSpec] = {
        "x": {"shape": (), "dtype": np.int64},
        "done": {"shape": (), "dtype": bool},
    }
    sampler: PrioritySampler = kind(
        alpha, probabilities=True, weights_dtype=np.float64, check_for_update=False
    )
    rb = PrioritizedReplayBuffer(capacity, fields, sampler=sampler, seed=1, n_envs=n_envs)
    bits = 1 if kind is Coarse else 6
    twin = ReferenceRanked(capacity, alpha, bits)
    for _ in range(data.draw(st.integers(1, 30), "calls")):
        call = data.draw(
            st.sampled_from(["add", "add", "update", "update", "draw", "draw", "delete", "rare"])
        )
        if call == "add":
            times = data.draw(st.integers(1, 2 if n_envs > 1 else capacity + 1), "times")
            n = times * n_envs
            step: dict[str, Any] = {
                "x": np.arange(n),
                "done": data.draw(st.booleans(), "done") * np.ones(n, bool),
            }
            if n_envs > 1:
                step = {name: value.reshape(times, n_envs) for name, value in step.items()}
            given_priorities = data.draw(
                st.none() | st.lists(some_priorities, min_size=n, max_size=n), "priorities"
            )
            named = {} if given_priorities is None else {"priorities": given_priorities}
            there = data.draw(st.lists(st.booleans(), min_size=n, max_size=n), "present")
            if n_envs > 1 and not all(there):
                rb.add_where(np.array(there).reshape(times, n_envs), **step, **named)
                twin.add(n, given_priorities, there)
            else:
                rb.add(**step, **named)
                twin.add(n, given_priorities)
        elif call == "update" and twin.priorities:
            slots = data.draw(st.lists(st.sampled_from([*twin.priorities]), max_size=9), "slots")
            values = [data.draw(some_priorities) for _ in slots]
            rb.update_priorities(slots, values)
            twin.update(slots, values)
        elif call == "delete" and len(rb.episodes) > 1:
            before = set(rb.ring.present_slots().tolist())
            with suppress(ValueError):  # it has not ended
                rb.episodes.delete(0)
            for slot in before - set(rb.ring.present_slots().tolist()):
                twin.drop(slot)
        elif call == "draw" and twin.priorities:
            batch = rb.sample(5, replace=len(twin.priorities) < 5)
            twin.draw()
            assert weights_of(rb) == pytest.approx(twin.weights, rel=1e-11)
            total = sum(twin.weights.values())
            slots = batch["indexes"].tolist()
            chances = [twin.weights[slot] / total for slot in slots]
            np.testing.assert_allclose(batch["probabilities"], chances, rtol=1e-11)
            least = min(twin.weights.values()) / total
            expected = (np.array(chances) / least) ** -0.5
            np.testing.assert_allclose(batch["weights"], expected, rtol=1e-11)
        elif call == "rare":
            if data.draw(st.booleans(), "clear"):
                rb.clear()
                twin.clear()
            else:
                rb = pickle.loads(pickle.dumps(rb))
        assert priorities_of(rb) == twin.priorities
        assert rb.get_max_priority() == twin.greatest
        rb.check()


@pytest.mark.parametrize("stratified", [True, False])
def test_draws_between_two_sorts_fit_the_weights_of_the_twin(stratified: bool) -> None:
    """Counts of drawn rows fit weights of which some are as old as the sort, and some are new."""
    rb = buffer(60, Coarse(stratified=stratified, check_for_update=False))
    twin = ReferenceRanked(60, bits=1)
    priorities = np.random.default_rng(1).permutation(50) * 1.0
    rb.add(x=np.arange(50), priorities=priorities)
    twin.add(50, priorities.tolist())
    rb.sample(1)
    twin.draw()
    rb.update_priorities(np.arange(20), priorities[::-1][:20])
    twin.update([*range(20)], priorities[::-1][:20].tolist())
    rb.add(x=np.arange(5), priorities=np.arange(5) * 9.0)
    twin.add(5, (np.arange(5) * 9.0).tolist())
    assert weights_of(rb) == pytest.approx(twin.weights)
    sorted_anew = paper_weights(twin.priorities, 0.7)
    assert twin.weights != pytest.approx(sorted_anew, rel=0.05)
    slots = np.concatenate([rb.sample(100)["indexes"] for _ in range(300)])
    weights = floats([twin.weights[slot] for slot in range(55)])
    assert_fits(np.bincount(slots, minlength=55), weights / weights.sum())
    assert weights_of(rb) == pytest.approx(twin.weights)  # it was not sorted in the meantime


def test_right_after_a_sort_the_probabilities_are_those_of_the_paper() -> None:
    """``P(i) = rank ** -alpha / sum``, also of ranks that share a group."""
    n = 3000
    rb = buffer(n, rank_based(0.7, probabilities=True))
    order = np.random.default_rng(2).permutation(n)
    rb.add(x=np.arange(n), priorities=(n - order) ** 3.0)
    batch = rb.sample(n, replace=False)
    expected = np.arange(1, n + 1) ** -0.7
    np.testing.assert_allclose(
        batch["probabilities"], (expected / expected.sum())[order[batch["x"]]], rtol=1e-12
    )


def test_equal_priorities_are_drawn_uniformly() -> None:
    """Rows that nothing is known of have one probability; half of them, the sum of their ranks'."""
    rb = buffer(2000, rank_based(probabilities=True))
    rb.add(x=np.arange(2000))
    np.testing.assert_allclose(rb.sample(50)["probabilities"], 1 / 2000, rtol=1e-12)
    for _ in range(2):
        rb.update_priorities(np.arange(1000), np.full(1000, 0.5))
        rb.sample(1)
    ranks = np.arange(1, 2001) ** -0.7
    batch = rb.sample(500)
    first, second = ranks[:1000].sum() / ranks.sum(), ranks[1000:].sum() / ranks.sum()
    expected = np.where(batch["x"] < 1000, second, first) / 1000
    np.testing.assert_allclose(batch["probabilities"], expected, rtol=1e-12)


def test_a_priority_gets_the_rank_that_it_has_when_it_is_set() -> None:
    """Long after a sort, and to a few percent, since by then groups are not as they were."""
    n = 4000
    rb = buffer(n, rank_based())
    rng = np.random.default_rng(0)
    priorities = rng.exponential(size=n)
    rb.add(x=np.arange(n), priorities=priorities)
    rb.sample(1)
    for slot in rng.permutation(n)[: n - 1].tolist():
        priorities[slot] = rng.exponential()
        rb.update_priorities([slot], priorities[[slot]])
        rank = int((priorities > priorities[slot]).sum()) + 1
        weight = cast(RankBased, rb.sampler).row_weights(np.array([slot]))[0]
        assert rank < 100 or weight == pytest.approx(rank**-0.7, rel=0.1)


@pytest.mark.parametrize("growth", [1.001, 0.999])
def test_priorities_that_drift_do_not_crowd_out_the_rest(growth: float) -> None:
    """Rows are ranked among all, also if each priority since the sort is greater than those before.

    By the priorities at the sort alone each would be the first: all together a hundred times as
    much as all ranks.
    """
    n = 4000
    rb = buffer(n, rank_based())
    rng = np.random.default_rng(0)
    rb.add(x=np.arange(n), priorities=1.0 + rng.random(n))
    rb.sample(1)
    for k, slot in enumerate(rng.permutation(n)[: n - 1]):
        rb.update_priorities([slot], [(2.0 if growth > 1 else 1.0) * growth ** (k + 1)])
    total = sum(weights_of(rb).values())
    exact = (np.arange(1, n + 1) ** -0.7).sum()
    assert 0.3 * exact < total < 1 / (1 - 0.7) * exact


def test_a_draw_sorts_when_as_many_priorities_have_changed_as_there_were_rows() -> None:
    """Not before; and a draw that is refused does not, either."""
    rb = buffer(20, rank_based())
    rb.add(x=np.arange(10), priorities=np.arange(10))
    rb.sample(1)
    rb.update_priorities(np.arange(9), np.roll(np.arange(9), 3))
    kept = weights_of(rb)
    rb.sample(1)
    assert weights_of(rb) == kept
    rb.update_priorities([9], [0.5])
    kept = weights_of(rb)
    with pytest.raises(NotEnoughDataError):
        rb.sample(11, replace=False)
    assert weights_of(rb) == kept
    rb.sample(1)
    assert weights_of(rb) == pytest.approx(paper_weights(priorities_of(rb), 0.7))
    assert weights_of(rb) != kept


def test_updates_of_one_row_count_once() -> None:
    """However often its priority is set between two draws, the other rows are not sorted anew."""
    rb = buffer(2, rank_based())
    rb.add(x=np.arange(2), priorities=[1.0, 1.0])
    rb.sample(5)
    for _ in range(9):
        rb.update_priorities([0, 0], [0.0, 0.0])
    rb.sample(5)
    assert weights_of(rb)[0] == weights_of(rb)[1]


def test_a_save_between_two_updates_does_not_change_when_rows_are_sorted() -> None:
    """A row that changed before it and after it counts once, as without it."""
    found = []
    for saves in (False, True):
        rb = buffer(40, rank_based())
        rb.add(x=np.arange(10), priorities=np.arange(10))
        rb.sample(5)
        rb.update_priorities(np.arange(5), np.full(5, 5.5))
        if saves:
            pickle.dumps(rb)
        rb.update_priorities(np.arange(5), np.full(5, 5.5))
        rb.sample(5)
        found.append(weights_of(rb))
    assert found[0] == found[1]


@pytest.mark.once
@pytest.mark.parametrize("growth", [1.001, 0.999])
def test_where_priorities_drift_a_draw_sorts_sooner(growth: float) -> None:
    """After a quarter as many changes, if all weights are by a quarter off those of all ranks."""
    n = 1000
    rb = buffer(n, rank_based())
    rng = np.random.default_rng(0)
    rb.add(x=np.arange(n), priorities=rng.random(n))
    exact = (np.arange(1, n + 1) ** -0.7).sum()
    sorts = []
    for k in range(4 * n):
        rb.sample(1)
        total = cast(RankBased, rb.sampler).row_weights(np.arange(n)).sum()
        assert 0.5 * exact < total < 2 * exact
        if total == pytest.approx(exact, rel=1e-9):
            sorts.append(k)
        rb.update_priorities(rng.integers(0, n, 1), rng.random(1) * growth**k)
    assert 4 < len(sorts) <= 17
    assert min(np.diff(sorts)) >= n // 4


def test_rows_with_incomplete_windows_have_no_rank() -> None:
    """With n-step returns only rows that can be drawn count, as many as wait for others."""
    fields: dict[str, FieldSpec] = {
        "x": {"shape": (), "dtype": np.int64},
        "r": {"shape": ()},
        "done": {"shape": ()},
    }
    sampler = rank_based(1.0, probabilities=True)
    steps: NstepSpec = {"size": 4, "rew": "r"}
    rb = PrioritizedReplayBuffer(60, fields, sampler=sampler, seed=0, Nstep=steps, n_envs=3)
    rng = np.random.default_rng(0)
    for k in range(60):
        rb.add(
            x=[k] * 3, r=np.ones(3), done=rng.random(3) < 0.1,
            **({"priorities": rng.random(3)} if k % 2 else {}),
        )  # fmt: skip
        rb.check()
        if not len(rb):
            continue
        batch = rb.sample(10)
        rb.update_priorities(batch["indexes"], rng.random(10))
        assert len(weights_of(rb)) == len(rb)
        assert (np.array([*priorities_of(rb).values()]) > 0).sum() == len(rb)
    twin = copy.deepcopy(rb)
    assert twin.sample(30)["probabilities"].tolist() == rb.sample(30)["probabilities"].tolist()
    sort(rb)
    expected = expected_probabilities(priorities_of(rb), 1.0)
    batch = rb.sample(100)
    chances = [expected[slot] for slot in batch["indexes"].tolist()]
    np.testing.assert_allclose(batch["probabilities"], chances, rtol=1e-12)


@given(
    calls=st.lists(
        st.tuples(st.sampled_from(["add", "add", "pause", "delete", "draw"]), st.integers(1, 11)),
        max_size=12,
    ),
    n_envs=st.integers(1, 2),
)
@example(calls=[("add", 2), ("pause", 8), ("draw", 1), ("add", 2), ("draw", 1)], n_envs=2)
def test_rows_of_any_n_step_history_have_one_rank(
    calls: list[tuple[str, int]], n_envs: int
) -> None:
    """A row that waited at the last draw, and was left out of the oldest since, counted twice.

    A row of a paused environment that became complete late had no rank until the next sort.
    """
    fields: dict[str, FieldSpec] = {**X, "r": {"shape": ()}, "done": {"shape": ()}}
    steps: NstepSpec = {"size": 3, "rew": "r"}
    sampler = rank_based()
    rb = PrioritizedReplayBuffer(
        10 * n_envs, fields, sampler=sampler, seed=0, Nstep=steps, n_envs=n_envs
    )
    for call, n in calls:
        if call == "add":
            shape = (n, n_envs) if n_envs > 1 else (n,)
            done = np.zeros(shape)
            done[-1] = n % 2
            rb.add(x=np.zeros(shape), r=np.zeros(shape), done=done)
        elif call == "pause":
            there = np.arange(n_envs) == n % n_envs
            for _ in range(n):
                rb.add_where(there, x=np.zeros(n_envs), r=np.zeros(n_envs), done=np.zeros(n_envs))
        elif call == "delete":
            with suppress(ValueError, IndexError):  # it has not ended, or there is none
                rb.episodes.delete(0)
        elif len(rb):
            rb.sample(4)
        rb.check()


def test_calls_that_are_cut_short_are_whole_or_nothing() -> None:
    """Ctrl-C at any line of ``add``, ``update_priorities``, ``sample``: as before it, or after."""

    def make() -> PrioritizedReplayBuffer:
        rb = buffer(8, rank_based())
        rb.add(x=[1, 2, 3], priorities=[1, 2, 3])
        rb.sample(1)
        rb.update_priorities([0, 1, 2], [4.0, 9.0, 1.0])
        return rb

    def look(rb: PrioritizedReplayBuffer) -> Any:
        rb.check()
        rows = rb.get_all_transitions()["x"].tolist()
        return rows, priorities_of(rb), weights_of(rb), rb.get_max_priority()

    for call in (
        lambda rb: rb.add(x=[4, 5], priorities=[7.0, 8.0]),
        lambda rb: rb.update_priorities([2, 0], [7.0, 8.0]),
        lambda rb: rb.sample(2),
        lambda rb: rb.clear(),
    ):
        assert cut_everywhere(make, call, look) > 0


@pytest.mark.parametrize("name", ["update_priorities", "sample", "add"])
def test_a_signal_handler_that_draws_at_any_line(name: str) -> None:
    """Its draw takes the hints that the interrupted call has listed, and was about to drop."""

    def run(line: int) -> tuple[int, dict[int, float]]:
        rb = buffer(8, rank_based())
        rb.add(x=[1, 2, 3], priorities=[1, 2, 3])
        rb.sample(1)
        rb.update_priorities([0, 1, 2], [4.0, 9.0, 1.0])
        calls: dict[str, Callable[[], object]] = {
            "update_priorities": lambda: rb.update_priorities([2, 0, 1], [7.0, 8.0, 2.0]),
            "sample": lambda: rb.sample(2),
            "add": lambda: rb.add(x=[4, 5, 6], priorities=[7.0, 8.0, 6.0]),
        }
        with cut_at(line, lambda: rb.sample(2)) as count:
            calls[name]()
        rb.check()
        return count[0], priorities_of(rb)

    n, expected = run(-1)
    assert n > 20
    for line in range(1, n + 1):
        assert run(line)[1] == expected


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("weights", np.zeros(3)),
        ("weights", np.array([0.5, 0.5, 1.5])),
        ("weights", np.array([0.5, 0.5, np.nan])),
        ("weights", np.ones(2)),
        ("weights", np.ones(3, np.float32)),
        ("weights", None),
        ("bottoms", np.array([1.0, 2.0])),
        ("bottoms", np.array([1.0, np.nan])),
        ("bottoms", np.ones((1, 1))),
        ("pending", np.array([3])),
        ("pending", np.array([-1])),
        ("ordered", -1),
        ("changes", "many"),
    ],
)
def test_saved_ranks_that_cannot_be(name: str, wrong: Any) -> None:
    """A forged checkpoint may have any: then the next draw sorts the priorities."""
    rb = buffer(8, rank_based())
    rb.add(x=[1, 2, 3], priorities=[1, 2, 3])
    rb.sample(1)
    rb.update_priorities([0], [9.0])
    sampler = copy.deepcopy(rb.sampler)
    vars(sampler)["_saved_ranks"][name] = wrong
    sampler.open(rb.ring)
    sampler.draw(rb.ring, 1, np.random.default_rng(0), replace=True)
    weights = sampler.row_weights(np.arange(3))
    assert weights is not None
    np.testing.assert_allclose(weights, floats([1.0, 3**-0.7, 2**-0.7]))


# ---- following the ring -----------------------------------------------------------------------


@pytest.mark.once
@pytest.mark.parametrize("capacity", [1, 2, 7, 50])
def test_rows_that_come_go_and_change(capacity: int, rng: np.random.Generator) -> None:
    """After any history, draws are those of a dict of priorities: new rows have the greatest."""
    rb = buffer(capacity, rank_based(probabilities=True))
    priorities: dict[int, float] = {}
    greatest, written = 1.0, 0
    for _ in range(120):
        n = int(rng.integers(1, capacity + 2))
        given = rng.integers(0, 5, n) * 1.0
        match rng.choice(
            ["add", "add with priorities", "update", "clear"], p=[0.3, 0.3, 0.37, 0.03]
        ):
            case "update" if priorities:
                slots = rng.choice([*priorities], n)
                rb.update_priorities(slots, given)
                priorities |= dict(zip(slots.tolist(), given.tolist(), strict=True))
                greatest = max(greatest, given.max())
            case "clear":
                rb.clear()
                priorities, greatest, written = {}, 1.0, 0
            case kind:
                named = {"priorities": given} if kind == "add with priorities" else {}
                keys = given if named else np.full(n, greatest)
                rb.add(x=np.arange(n), **named)
                for k, key in enumerate(keys.tolist()):
                    priorities[(written + k) % capacity] = key
                written += n
                greatest = max(greatest, keys.max())
        assert rb.get_max_priority() == greatest
        if priorities:
            assert_draws_by(rb, priorities)


def test_absent_rows_are_never_drawn() -> None:
    """Rows without a step have no rank, also where a row with one was before."""
    rb = buffer(6, rank_based(probabilities=True), n_envs=2)
    rb.add_where(np.array([True, False]), x=[0, 1])
    rb.add(x=[2, 3], priorities=[5.0, 7.0])
    assert_draws_by(rb, {0: 1.0, 2: 5.0, 3: 7.0})
    rb.add(x=[4, 5])
    rb.add_where(np.array([False, True]), x=[6, 7])
    assert_draws_by(rb, {1: 7.0, 2: 5.0, 3: 7.0, 4: 7.0, 5: 7.0})
    with pytest.raises(IndexError, match=r"indexes\[1\]: expected a slot .* got 0"):
        rb.update_priorities([1, 0], [1.0, 1.0])


def test_updates_of_overwritten_rows_are_passed_over() -> None:
    """With ``check_for_update`` an index is that of a row, not of whatever is in its slot."""
    rb = buffer(4, rank_based(check_for_update=True, probabilities=True))
    rb.add(x=[0, 1, 2, 3], priorities=[1.0, 2.0, 3.0, 4.0])
    batch = rb.sample(50)
    rb.add(x=[4, 5])
    rb.update_priorities(batch["indexes"], np.full(50, 9.0))
    slots = set((batch["indexes"] % 4).tolist())
    assert_draws_by(rb, {0: 4.0, 1: 4.0} | {slot: 9.0 for slot in (2, 3) if slot in slots})
    rb.clear()
    rb.add(x=[0, 1, 2])
    rb.update_priorities(batch["indexes"], np.full(50, 99.0))
    assert rb.get_max_priority() == 1.0
    with pytest.raises(IndexError, match=r"indexes\[0\]"):
        rb.update_priorities(rb.sample(1)["indexes"] + 4, [1.0])
    with pytest.raises(IndexError, match=r"indexes\[1\]"):
        rb.update_priorities([2, 3], [1.0, 1.0])


def test_slots_that_were_overwritten_since_the_last_draw_are_passed_over() -> None:
    """With ``check_for_update``, slots mean the rows that the last draw saw there."""
    rb = buffer(4, rank_based(check_for_update=True, probabilities=True))
    rb.add(x=[0, 1, 2, 3], priorities=[1.0, 2.0, 3.0, 4.0])
    rb.sample(1)
    rb.add(x=[4])
    rb.update_priorities([0, 1], [0.5, 0.5])
    assert_draws_by(rb, {0: 4.0, 1: 0.5, 2: 3.0, 3: 4.0})
    rb.sample(1)
    rb.update_priorities([0], [0.5])
    assert_draws_by(rb, {0: 0.5, 1: 0.5, 2: 3.0, 3: 4.0})


def test_refused_updates_change_nothing() -> None:
    """Bad indexes and priorities raise, and the order stays as it was."""
    rb = buffer(4, rank_based(probabilities=True))
    rb.add(x=[0, 1, 2], priorities=[1.0, 2.0, 3.0])
    cases: list[tuple[Any, Any, type[Exception]]] = [
        ([0, 3], [9.0, 9.0], IndexError),
        ([0, 4], [9.0, 9.0], IndexError),
        ([0, -1], [9.0, 9.0], IndexError),
        ([0, 1], [9.0, np.nan], ValueError),
        ([0, 1], [9.0], ValueError),
        ([0.5, 1.0], [9.0, 9.0], TypeError),
    ]
    for indexes, priorities, error in cases:
        with pytest.raises(error):
            rb.update_priorities(indexes, priorities)
    assert rb.get_max_priority() == 3.0
    assert_draws_by(rb, {0: 1.0, 1: 2.0, 2: 3.0})


@pytest.mark.parametrize(
    ("indexes", "error", "message"),
    [
        (np.ma.array([0, 1], np.uint64, mask=[True, False]), TypeError, "indexes: .*masked"),
        ([[0], [1, 2]], ValueError, "indexes: "),
        (np.array([0, 2**63], np.uint64), IndexError, r"indexes\[1\]"),
    ],
)
def test_indexes_that_are_none(indexes: Any, error: type[Exception], message: str) -> None:
    """Masks are not ignored, and lists of lists are refused by name."""
    for check_for_update in (False, True):
        rb = buffer(4, rank_based(check_for_update=check_for_update))
        rb.add(x=[0, 1], priorities=[3.0, 2.0])
        with pytest.raises(error, match=message):
            rb.update_priorities(indexes, [9.0, 9.0])
        assert rb.get_max_priority() == 3.0


def test_indexes_may_be_misaligned() -> None:
    """Numbers at odd addresses are read as what they are."""
    rb = buffer(4, rank_based(probabilities=True))
    rb.add(x=[0, 1], priorities=[1.0, 2.0])
    indexes = np.zeros(17, np.uint8)[1:].view(np.uint64)
    indexes[:] = [1, 0]
    rb.update_priorities(indexes, [4.0, 5.0])
    assert_draws_by(rb, {0: 5.0, 1: 4.0})


def test_priorities_of_absent_rows_do_not_count() -> None:
    """A number that is given for a row without a step is filler, not the greatest so far."""
    rb = buffer(6, rank_based(probabilities=True), n_envs=2)
    rb.add_where([True, False], x=[0, 1], priorities=[1.5, 100.0])
    assert rb.get_max_priority() == 1.5
    rb.add(x=[2, 3])
    assert_draws_by(rb, {0: 1.5, 2: 1.5, 3: 1.5})


@pytest.mark.parametrize("make", [RankBased, Prioritized])
def test_priorities_of_absent_rows_that_the_same_call_overwrites(make: Any) -> None:
    """A block longer than the ring: filler counted as the greatest where a step came after it."""
    rb = PrioritizedReplayBuffer(3, X, sampler=make(), n_envs=3, seed=0)
    there = [[False, True, False], [True, False, False]]
    priorities = [[9.0, 2.0, 9.0], [1.5, 9.0, 9.0]]
    rb.add_where(there, x=np.arange(6).reshape(2, 3), priorities=priorities)
    assert rb.get_max_priority() == 2.0


def test_absent_rows_that_came_and_went_between_two_draws() -> None:
    """Draws are those of a buffer that was looked at after each call."""
    seldom, often = (buffer(4, rank_based(probabilities=True)) for _ in range(2))
    for rb in (seldom, often):
        rb.add(x=[0, 1, 2, 3], priorities=[10.0, 0.5, 0.5, 0.5])
        for present in (False, True, True, True, True, True, False):
            rb.add_where([present], x=[9])
            if rb is often:
                rb.get_max_priority()
    slots = {0: 10.0, 1: 10.0, 3: 10.0}
    for rb in (seldom, often):
        assert_draws_by(rb, slots)


def test_a_clear_by_another_thread_before_the_priorities_arrive() -> None:
    """Priorities of rows that are gone give no chance to unwritten slots."""
    rb = buffer(8, rank_based(probabilities=True))
    clears = rb.ring.clears
    rb.add(x=np.arange(8))
    rb.clear()
    rb.sampler.set_new(0, clears, floats(np.arange(8) + 2))
    assert rb.get_max_priority() == 1.0
    rb.add(x=[7])
    assert set(rb.sample(20)["x"].tolist()) == {7}
    assert_draws_by(rb, {0: 1.0})


def test_priorities_that_arrive_late_and_in_another_order() -> None:
    """Rows keep the priorities that they were given, however late and by whom first."""

    class Late(RankBased):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            self.waiting: list[tuple[int, int, Floats]] = []

        def set_new(self, first: int, clears: int, priorities: Floats) -> None:
            self.waiting.append((first, clears, priorities))

    sampler = Late(probabilities=True, weights_dtype=np.float64)
    rb = buffer(6, sampler)
    for k in range(4):
        rb.add(x=[k, k], priorities=[k + 2.0, 0.25])
    for first, clears, priorities in sampler.waiting[::-1]:
        RankBased.set_new(sampler, first, clears, priorities)
    # Rows 0 and 1 were overwritten by 6 and 7.
    assert_draws_by(rb, {2: 3.0, 3: 0.25, 4: 4.0, 5: 0.25, 0: 5.0, 1: 0.25})
    assert rb.get_max_priority() == 5.0


def test_indexes_that_were_drawn_before_a_clear_reach_no_new_row() -> None:
    """Handles given for rows above those that have priorities do not come again after ``clear``."""
    rb = buffer(5, rank_based(check_for_update=True, probabilities=True))
    given: set[int] = set()
    for _ in range(4):
        rb.add(x=np.arange(7))
        handles = set(rb.sample(100)["indexes"].tolist())
        assert handles.isdisjoint(given)
        given |= handles
        rb.clear()
    rb.add(x=[0, 1, 2, 3, 4])
    rb.update_priorities(np.array(sorted(given), np.uint64), np.full(len(given), 50.0))
    assert rb.get_max_priority() == 1.0


# ---- copies, parameters, threads --------------------------------------------------------------


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda rb: pickle.loads(pickle.dumps(rb))])
def test_a_copy_goes_on_like_the_original(duplicate: Callable[[Any], Any]) -> None:
    """A copied buffer draws and updates as the original does, and leaves it alone."""
    rb = buffer(7, rank_based(check_for_update=True, probabilities=True))
    rb.add(x=np.arange(10))
    rb.sample(1)
    rb.clear()  # indexes go on where they were
    rb.add(x=np.arange(8), priorities=[50.0, *range(7)])  # the greatest is overwritten at once
    rb.sample(5)
    rb.add(x=[8], priorities=[2.5])  # in slot 1, which the last draw did not have in mind
    other = duplicate(rb)
    for each in (rb, other):
        each.update_priorities([1], [99.0])
        assert each.get_max_priority() == 50.0
    for _ in range(3):
        one, two = rb.sample(20), other.sample(20)
        for name in one:
            np.testing.assert_array_equal(one[name], two[name])
        for each in (rb, other):
            each.update_priorities(one["indexes"], one["x"])
            each.add(x=[11, 12])
    before = rb.get_max_priority()
    other.update_priorities([0], [1e9])
    assert rb.get_max_priority() == before


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda rb: pickle.loads(pickle.dumps(rb))])
def test_a_sampler_that_is_copied_without_its_buffer(duplicate: Callable[[Any], Any]) -> None:
    """Over an empty buffer of any size it begins anew; a buffer with other rows refuses it."""
    sampler = RankBased(check_for_update=True, probabilities=True)
    rb = buffer(10, sampler)
    rb.add(x=np.arange(10), priorities=np.arange(10) + 5.0)
    rb.sample(1)
    for capacity in (9, 10, 11):
        fresh = buffer(capacity, duplicate(sampler))
        assert fresh.get_max_priority() == 1.0
        fresh.add(x=[3])
        assert set(fresh.sample(20)["x"].tolist()) == {3}
        assert_draws_by(fresh, {0: 1.0})
    other = buffer(10, rank_based())
    other.add(x=[1])
    with pytest.raises(ValueError, match="keeps priorities of the rows of another buffer"):
        duplicate(sampler).open(other.ring)


def test_bad_parameters() -> None:
    """Parameters are checked when they are given; the message names them."""
    cases: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"alpha": -0.1}, ValueError, "alpha"),
        ({"alpha": np.nan}, ValueError, "alpha"),
        ({"alpha": "1"}, TypeError, "alpha"),
        ({"alpha": abs}, TypeError, "alpha: expected a number, got <built-in function abs>"),
        ({"beta": -1}, ValueError, "beta"),
        ({"weights_dtype": np.int32}, ValueError, "weights_dtype: expected float32 or float64"),
        ({"weights_dtype": "foo"}, ValueError, "weights_dtype: expected .* got 'foo'"),
        ({"weights_dtype": None}, ValueError, "weights_dtype: expected .* got None"),
    ]
    for options, error, words in cases:
        with pytest.raises(error, match=words):
            RankBased(**options)
    with pytest.raises(ValueError, match=r"alpha: 400\.0 is too large"):
        buffer(10, rank_based(400.0))
    with pytest.raises(RuntimeError, match="belongs to no buffer yet"):
        RankBased().get_max_priority()
    sampler = RankBased()
    buffer(10, sampler)
    with pytest.raises(ValueError, match="belongs to another buffer"):
        buffer(10, sampler)


def test_a_buffer_that_cannot_be_made_leaves_the_sampler_free() -> None:
    """A sampler whose buffer was refused can be given to another."""
    sampler = RankBased()
    with pytest.raises(ValueError, match="weights"):
        PrioritizedReplayBuffer(10, {"weights": {}}, sampler=sampler)
    assert len(buffer(10, sampler)) == 0


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_weights_have_the_dtype_that_was_asked_for(dtype: npt.DTypeLike) -> None:
    """Single weights are the double ones, rounded once."""
    rb, double = buffer(40, rank_based(weights_dtype=dtype)), buffer(40, rank_based())
    for each in (rb, double):
        each.add(x=np.arange(40), priorities=np.arange(40))
    weights = rb.sample(60, beta=0.7)["weights"]
    assert weights.dtype == dtype
    np.testing.assert_array_equal(weights, double.sample(60, beta=0.7)["weights"].astype(dtype))


@pytest.mark.slow
def test_it_keeps_the_promises_of_samplers() -> None:
    """What ``check_sampler`` tries holds for each way to draw."""
    check_sampler(RankBased)
    check_sampler(lambda: RankBased(stratified=False))
    check_sampler(lambda: RankBased(check_for_update=True, probabilities=True))


def test_memory_is_what_the_documentation_says() -> None:
    """21 bytes a row."""
    assert RankBased().nbytes_for(10**6) / 10**6 == pytest.approx(20.6, abs=0.1)


def test_threads_add_draw_update_and_clear() -> None:
    """Calls of several threads leave an order that fits the rows."""
    rb = buffer(64, rank_based(check_for_update=True, probabilities=True))
    rb.add(x=np.arange(64))
    failures: list[object] = []

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        try:
            for k in range(300):
                if seed < 2:
                    rb.add(x=np.arange(5), priorities=rng.random(5))
                    rb.add(x=np.arange(3))
                    if k % 100 == 99:
                        rb.clear()
                        rb.add(x=np.arange(9))
                    continue
                try:
                    batch = rb.sample(16)
                except NotEnoughDataError:
                    continue
                rb.update_priorities(batch["indexes"], rng.random(16))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)

    assert failures == []
    rb.update_priorities(np.arange(len(rb)), np.arange(len(rb)))
    assert_draws_by(rb, {slot: float(slot) for slot in range(len(rb))})


def test_priorities_that_change_during_a_sort_are_ranked_after_it() -> None:
    """Rows are sorted in a copy of their priorities while another thread sets others.

    The sort of so many rows lets go of the interpreter lock.
    """
    capacity = 20_000
    rb = PrioritizedReplayBuffer(capacity, {"x": {"shape": ()}}, sampler=RankBased(1.0), seed=0)
    rb.add(x=np.zeros(capacity), priorities=np.ones(capacity))
    expected = np.ones(capacity)
    rng, done = np.random.default_rng(0), threading.Event()

    def update() -> None:
        while not done.is_set():
            slots = rng.integers(0, capacity, capacity)
            expected[slots] = priorities = rng.random(capacity)
            rb.update_priorities(slots, priorities)

    updating = threading.Thread(target=update)
    updating.start()
    try:
        for _ in range(60):
            rb.sample(1)
    finally:
        done.set()
        updating.join()

    np.testing.assert_array_equal(expected, rb.sampler.row_priorities(np.arange(capacity)))
    rb.check()


def test_a_check_between_an_update_and_its_second_hint_finds_nothing() -> None:
    """A draw may have taken the first hint before the update: the groups are old for a moment."""
    sampler = RankBased()
    rb = PrioritizedReplayBuffer(20, {"x": {"shape": ()}}, sampler=sampler, seed=0)
    rb.add(x=np.arange(20), priorities=np.arange(20) + 1.0)
    rb.sample(1)
    hint = sampler._hint
    calls = []

    def hint_late(slots: Any) -> None:
        calls.append(len(slots))
        if len(calls) == 2:
            rb.check()
        hint(slots)
        rb.sample(1)  # takes the hint

    sampler._hint = hint_late  # type: ignore[method-assign]
    rb.update_priorities([0, 1], [100.0, 1e-3])
    assert calls == [2, 2]
    rb.check()


def test_an_update_that_was_interrupted_is_no_update_on_its_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A check leaves groups out while one is: it left them out for ever."""
    sampler = RankBased()
    rb = PrioritizedReplayBuffer(20, {"x": {"shape": ()}}, sampler=sampler, seed=0)
    rb.add(x=np.arange(20))
    rb.sample(1)

    def interrupt(slots: Any) -> None:
        raise KeyboardInterrupt(slots)

    monkeypatch.setattr(sampler, "_hint", interrupt)
    with pytest.raises(KeyboardInterrupt):
        rb.update_priorities([3], [1.0])
    assert sampler._updating
    assert not any(update() is not None for update in sampler._updating)
