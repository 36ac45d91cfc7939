"""Rank-based draws: probabilities, weights, and the order of rows that come, go and change."""

from __future__ import annotations

import copy
import pickle
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from cpprb_like import NotEnoughDataError, PrioritizedReplayBuffer
from cpprb_like.priorities import PrioritySampler
from cpprb_like.ranked import RankBased
from cpprb_like.testing import check_sampler

Floats = npt.NDArray[np.float64]
X = {"x": {"shape": (), "dtype": np.int64}}


def buffer(capacity: int, sampler: RankBased, **options: Any) -> PrioritizedReplayBuffer:
    """A buffer of numbers that draws by rank."""
    protocol: PrioritySampler = sampler
    return PrioritizedReplayBuffer(capacity, X, sampler=protocol, seed=3, **options)


def expected_probabilities(priorities: dict[int, float], alpha: float) -> dict[int, float]:
    """The probability of each slot, by the definition."""
    order = sorted(priorities, key=lambda slot: (-priorities[slot], slot))
    shares = {slot: rank**-alpha for rank, slot in enumerate(order, 1)}
    return {slot: share / sum(shares.values()) for slot, share in shares.items()}


def assert_fits(counts: npt.NDArray[np.intp], probabilities: Floats) -> None:
    """Chi-square is below what it exceeds once in a million times (Wilson and Hilferty)."""
    expected = probabilities * counts.sum()
    freedom = len(counts) - 1
    spread = 2 / (9 * freedom)
    limit = freedom * (1 - spread + 4.75 * spread**0.5) ** 3
    assert ((counts - expected) ** 2 / expected).sum() < limit


def assert_draws_by(rb: PrioritizedReplayBuffer, priorities: dict[int, float]) -> None:
    """Each drawn row has the probability and the weight that its rank gives it."""
    sampler = rb.sampler
    assert isinstance(sampler, RankBased)
    expected = expected_probabilities(priorities, sampler.alpha)
    batch = rb.sample(400, beta=0.8)
    slots = (batch["indexes"] % rb.get_buffer_size()).astype(int).tolist()
    chances = floats([expected[slot] for slot in slots])
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
    rb = buffer(30, RankBased(alpha, stratified=stratified))
    rng = np.random.default_rng(1)
    priorities = rng.permutation(30) * 1e3
    rb.add(x=np.arange(30), priorities=priorities)
    for _ in range(2):
        chances = expected_probabilities(dict(enumerate(priorities.tolist())), alpha)
        drawn = np.concatenate([rb.sample(100)["x"] for _ in range(300)])
        assert_fits(np.bincount(drawn, minlength=30), floats([chances[k] for k in range(30)]))
        changed = rng.permutation(30)[:12]
        priorities[changed] = rng.random(12)
        rb.update_priorities(changed, priorities[changed])


def test_strata_have_one_draw_each() -> None:
    """Stratified draws take each rank as often as its share says, give or take less than two."""
    rb = buffer(30, RankBased())
    rb.add(x=np.arange(30), priorities=np.arange(30))
    chances = expected_probabilities(dict(enumerate(range(30))), 0.7)
    counts = np.bincount(rb.sample(1000)["x"], minlength=30)
    assert (abs(counts - 1000 * floats([chances[k] for k in range(30)])) < 2).all()


def test_draws_without_replacement() -> None:
    """Rows come once; the first two fit drawing one after another among those that are left."""
    rb = buffer(5, RankBased(1.0))
    rb.add(x=np.arange(5), priorities=[9, 7, 5, 3, 1])
    share = 1 / np.arange(1, 6)
    chances = share[:, None] * share / (share.sum() * (share.sum() - share[:, None]))
    pairs = np.array([rb.sample(2, replace=False)["x"] for _ in range(20_000)])
    counts = np.bincount(pairs[:, 0] * 5 + pairs[:, 1], minlength=25).reshape(5, 5)
    different = ~np.eye(5, dtype=bool)
    assert np.trace(counts) == 0
    assert_fits(counts[different], chances[different])
    assert sorted(rb.sample(5, replace=False)["x"].tolist()) == [0, 1, 2, 3, 4]
    with pytest.raises(NotEnoughDataError, match="cannot sample 6 distinct rows"):
        rb.sample(6, replace=False)


def test_only_the_order_of_priorities_counts() -> None:
    """Any growing function of the priorities draws the same rows with the same weights."""
    batches = []
    for function in (np.sqrt, np.square, np.exp):
        rb = buffer(20, RankBased())
        rb.add(x=np.arange(20), priorities=function(np.arange(20.0)[::-1]))
        batches.append(rb.sample(64))
    for batch in batches[1:]:
        for name in ("x", "weights", "indexes"):
            np.testing.assert_array_equal(batch[name], batches[0][name])


# ---- following the ring -----------------------------------------------------------------------


@pytest.mark.parametrize("capacity", [1, 2, 7, 50])
def test_rows_that_come_go_and_change(capacity: int, rng: np.random.Generator) -> None:
    """After any history, draws are those of a dict of priorities: new rows have the greatest."""
    rb = buffer(capacity, RankBased(probabilities=True))
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
    rb = buffer(6, RankBased(probabilities=True), n_envs=2)
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
    rb = buffer(4, RankBased(check_for_update=True, probabilities=True))
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
    rb = buffer(4, RankBased(check_for_update=True, probabilities=True))
    rb.add(x=[0, 1, 2, 3], priorities=[1.0, 2.0, 3.0, 4.0])
    rb.sample(1)
    rb.add(x=[4])
    rb.update_priorities([0, 1], [0.5, 0.5])
    assert_draws_by(rb, {0: 4.0, 1: 0.5, 2: 3.0, 3: 4.0})
    rb.update_priorities([0], [0.5])
    assert_draws_by(rb, {0: 0.5, 1: 0.5, 2: 3.0, 3: 4.0})


def test_refused_updates_change_nothing() -> None:
    """Bad indexes and priorities raise, and the order stays as it was."""
    rb = buffer(4, RankBased(probabilities=True))
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
        rb = buffer(4, RankBased(check_for_update=check_for_update))
        rb.add(x=[0, 1], priorities=[3.0, 2.0])
        with pytest.raises(error, match=message):
            rb.update_priorities(indexes, [9.0, 9.0])
        assert rb.get_max_priority() == 3.0


def test_indexes_may_be_misaligned() -> None:
    """Numbers at odd addresses are read as what they are."""
    rb = buffer(4, RankBased(probabilities=True))
    rb.add(x=[0, 1], priorities=[1.0, 2.0])
    indexes = np.zeros(17, np.uint8)[1:].view(np.uint64)
    indexes[:] = [1, 0]
    rb.update_priorities(indexes, [4.0, 5.0])
    assert_draws_by(rb, {0: 5.0, 1: 4.0})


def test_priorities_of_absent_rows_do_not_count() -> None:
    """A number that is given for a row without a step is filler, not the greatest so far."""
    rb = buffer(6, RankBased(probabilities=True), n_envs=2)
    rb.add_where([True, False], x=[0, 1], priorities=[1.5, 100.0])
    assert rb.get_max_priority() == 1.5
    rb.add(x=[2, 3])
    assert_draws_by(rb, {0: 1.5, 2: 1.5, 3: 1.5})


def test_absent_rows_that_came_and_went_between_two_draws() -> None:
    """Draws are those of a buffer that was looked at after each call."""
    seldom, often = (buffer(4, RankBased(probabilities=True)) for _ in range(2))
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
    """Priorities of rows that are gone give no chance to slots that nobody has written."""

    class Cleared(PrioritizedReplayBuffer):
        armed = True

        def _stage(self, first: int, revision: int, priorities: Floats) -> None:
            if self.armed:
                self.clear()
            super()._stage(first, revision, priorities)

    rb = Cleared(8, X, sampler=RankBased(probabilities=True), seed=3)
    rb.add(x=np.arange(8), priorities=np.arange(8) + 2.0)
    assert rb.get_max_priority() == 1.0
    rb.armed = False
    rb.add(x=[7])
    assert set(rb.sample(20)["x"].tolist()) == {7}
    assert_draws_by(rb, {0: 1.0})


def test_priorities_that_arrive_late_and_in_another_order() -> None:
    """Rows keep the priorities that they were given, however late and by whom first."""

    class Late(PrioritizedReplayBuffer):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            self.waiting: list[tuple[int, int, Floats]] = []

        def _stage(self, first: int, revision: int, priorities: Floats) -> None:
            self.waiting.append((first, revision, priorities))

    rb = Late(6, X, sampler=RankBased(probabilities=True), seed=3)
    for k in range(4):
        rb.add(x=[k, k], priorities=[k + 2.0, 0.25])
    for first, revision, priorities in rb.waiting[::-1]:
        rb.sampler.stage(first, revision, priorities)
    # Rows 0 and 1 were overwritten by 6 and 7.
    assert_draws_by(rb, {2: 3.0, 3: 0.25, 4: 4.0, 5: 0.25, 0: 5.0, 1: 0.25})
    assert rb.get_max_priority() == 5.0


def test_indexes_that_were_drawn_before_a_clear_reach_no_new_row() -> None:
    """Tags given for rows above those that have priorities do not come again after ``clear``."""
    rb = buffer(5, RankBased(check_for_update=True, probabilities=True))
    given: set[int] = set()
    for _ in range(4):
        rb.add(x=np.arange(7))
        tags = set(rb.sample(100)["indexes"].tolist())
        assert tags.isdisjoint(given)
        given |= tags
        rb.clear()
    rb.add(x=[0, 1, 2, 3, 4])
    rb.update_priorities(np.array(sorted(given), np.uint64), np.full(len(given), 50.0))
    assert rb.get_max_priority() == 1.0


# ---- copies, parameters, threads --------------------------------------------------------------


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda rb: pickle.loads(pickle.dumps(rb))])
def test_a_copy_goes_on_like_the_original(duplicate: Callable[[Any], Any]) -> None:
    """A copied buffer draws and updates as the original does, and leaves it alone."""
    rb = buffer(7, RankBased(check_for_update=True, probabilities=True))
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
    other = buffer(10, RankBased())
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
        buffer(10, RankBased(400.0))
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
    rb, double = buffer(40, RankBased(weights_dtype=dtype)), buffer(40, RankBased())
    for each in (rb, double):
        each.add(x=np.arange(40), priorities=np.arange(40))
    weights = rb.sample(60, beta=0.7)["weights"]
    assert weights.dtype == dtype
    np.testing.assert_array_equal(weights, double.sample(60, beta=0.7)["weights"].astype(dtype))


def test_it_keeps_the_promises_of_samplers() -> None:
    """What ``check_sampler`` tries holds for each way to draw."""
    check_sampler(RankBased)
    check_sampler(lambda: RankBased(stratified=False))
    check_sampler(lambda: RankBased(check_for_update=True, probabilities=True))


def test_memory_is_what_the_documentation_says() -> None:
    """42 bytes a row."""
    assert RankBased().nbytes_for(10**6) / 10**6 == pytest.approx(42, abs=0.3)


def test_threads_add_draw_update_and_clear() -> None:
    """Calls of several threads leave an order that fits the rows."""
    rb = buffer(64, RankBased(check_for_update=True, probabilities=True))
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
