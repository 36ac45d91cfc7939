"""Batches out of large batches: which rows, with which weights, and what is refused."""

from __future__ import annotations

import math
import pickle
from typing import Any

import numpy as np
import pytest
from distributions import chi_square_limit
from hypothesis import given
from hypothesis import strategies as st
from numbered_rows import numbered

from cpprb_like.samplers import LaBERlazy, LaBERmax, LaBERmean

LABERS = [LaBERmean, LaBERlazy, LaBERmax]

of_each_kind = pytest.mark.parametrize("cls", LABERS)


def weights_by_hand(
    cls: type, priorities: list[float], eps: float, chosen: list[int]
) -> list[float]:
    """The weights as the paper has them, one by one."""
    p = [float(priority) + eps for priority in priorities]
    if cls is LaBERmean:
        return [sum(p) / len(p) / p[i] for i in chosen]
    if cls is LaBERlazy:
        return [sum(p) / p[i] for i in chosen]
    largest = max(1 / p[i] for i in chosen)
    return [1 / p[i] / largest for i in chosen]


@of_each_kind
@given(
    batch_size=st.integers(1, 6),
    m=st.integers(1, 5),
    eps=st.sampled_from([1e-6, 0.5, 3.0]),
    data=st.data(),
)
def test_rows_belong_together_and_weights_are_those_of_the_paper(
    cls: Any, batch_size: int, m: int, eps: float, data: Any
) -> None:
    """Fields, indexes and weights of a chosen row are that row's, by a loop over the rows."""
    n = batch_size * m
    priorities = data.draw(st.lists(st.floats(0, 1e6), min_size=n, max_size=n))
    image = np.arange(n * 6).reshape(n, 2, 3)
    batch = cls(batch_size, m, eps=eps, weights_dtype=np.float64, seed=1)(
        priorities=priorities, image=image, name=np.array([f"row {i}" for i in range(n)])
    )
    chosen = batch["indexes"].tolist()

    assert list(batch) == ["image", "name", "weights", "indexes"]
    assert len(chosen) == batch_size
    assert batch["name"].tolist() == [f"row {i}" for i in chosen]
    assert batch["image"].tolist() == [image[i].tolist() for i in chosen]
    np.testing.assert_allclose(
        batch["weights"], weights_by_hand(cls, priorities, eps, chosen), rtol=1e-12
    )


def test_weights_for_given_numbers() -> None:
    """Priorities 1, 2, 3, 4 without eps: mean 2.5, as worked out on paper."""
    for cls, table in [
        (LaBERmean, [2.5, 1.25, 2.5 / 3, 0.625]),
        (LaBERlazy, [10, 5, 10 / 3, 2.5]),
    ]:
        batch = cls(2, 2, eps=0, seed=3)(priorities=[1, 2, 3, 4])
        assert batch["weights"].tolist() == pytest.approx([table[i] for i in batch["indexes"]])
    for seed in range(20):
        batch = LaBERmax(2, 2, eps=0, seed=seed)(priorities=[1, 2, 3, 4])
        p = batch["indexes"] + 1
        assert batch["weights"].tolist() == pytest.approx((p.min() / p).tolist())


def test_weights_are_those_of_cpprb() -> None:
    """With q = p / sum(p): lazy is 1 / q, mean is lazy / n, max is lazy / its largest.

    Lazy weights were 1 / p, so programs written for cpprb learned by another rate.
    """
    assert LaBERlazy(2, 2, eps=0)(priorities=[1.0] * 4)["weights"].tolist() == [4.0, 4.0]
    assert LaBERmean(2, 2, eps=0)(priorities=[1.0] * 4)["weights"].tolist() == [1.0, 1.0]
    assert LaBERmax(2, 2, eps=0)(priorities=[1.0] * 4)["weights"].tolist() == [1.0, 1.0]
    priorities = [0.5, 2.0, 7.0, 0.25, 1.0, 3.0]
    for eps in (0.0, 0.5):
        q = (np.array(priorities) + eps) / (np.array(priorities) + eps).sum()
        lazy, mean, largest = (
            cls(3, 2, eps=eps, weights_dtype=np.float64, seed=4)(priorities=priorities)
            for cls in (LaBERlazy, LaBERmean, LaBERmax)
        )
        chosen = lazy["indexes"]
        np.testing.assert_allclose(lazy["weights"], 1 / q[chosen], rtol=1e-12)
        np.testing.assert_allclose(mean["weights"], 1 / (6 * q[chosen]), rtol=1e-12)
        np.testing.assert_allclose(
            largest["weights"], (1 / q[chosen]) / (1 / q[chosen]).max(), rtol=1e-12
        )


@of_each_kind
@pytest.mark.parametrize("eps", [0.0, 1.0])
def test_rows_come_as_often_as_their_priorities_say(cls: Any, eps: float) -> None:
    """The probability of row i is (p_i + eps) / sum(p + eps), each choice by itself."""
    priorities = np.array([3.0, 0.0, 1.0, 0.0, 7.0, 2.0, 11.0, 0.5])
    laber = cls(4, 2, eps=eps, seed=7)
    chosen = np.concatenate([laber(priorities=priorities)["indexes"] for _ in range(5000)])
    counts = np.bincount(chosen, minlength=8)
    shares = (priorities + eps) / (priorities + eps).sum()
    possible = shares > 0

    assert counts[~possible].sum() == 0
    expected = shares[possible] * len(chosen)
    statistic = float(((counts[possible] - expected) ** 2 / expected).sum())
    assert statistic < chi_square_limit(int(possible.sum()) - 1)
    # Each is a choice of its own: a row comes twice in a batch as often as chance has it.
    pairs = chosen.reshape(-1, 2)
    twice = int((pairs[:, 0] == pairs[:, 1]).sum())
    chance = float((shares**2).sum())
    assert abs(twice - chance * len(pairs)) < 5 * math.sqrt(len(pairs) * chance * (1 - chance))


def test_the_mean_of_weighted_losses_is_that_of_the_large_batch() -> None:
    """LaBERmean is unbiased: that is what its weights are for."""
    priorities = np.array([3.0, 0.2, 1.0, 0.1, 7.0, 2.0, 11.0, 0.5])
    losses = np.array([1.0, 5.0, -2.0, 4.0, 0.5, 9.0, 2.0, -1.0])
    laber = LaBERmean(4, 2, seed=11)
    means = []
    for _ in range(20_000):
        batch = laber(priorities=priorities, losses=losses)
        means.append((batch["weights"] * batch["losses"]).mean())

    error = np.std(means) / math.sqrt(len(means))
    assert abs(np.mean(means) - losses.mean()) < 5 * error


class Ends:
    """A generator whose numbers are the largest or the smallest there are."""

    def __init__(self, number: float) -> None:
        self.number = number

    def random(self, n: int) -> Any:
        return np.full(n, self.number)


@of_each_kind
@pytest.mark.parametrize(
    "priorities",
    [
        [0, 0, 5, 0],
        [0, 1e-300, 1e300, 0],
        [0, 1, 1e-17, 0],
        [0, 0.1, 0.2, 0],
        [0, 1.7e308, 1.7e308, 0],
        [0, 5e-324, 5e-324, 0],
        [0, 3, 1e-320, 0],
    ],
    ids=str,
)
@pytest.mark.parametrize("number", [0.0, 5e-324, 0.5, 1 - 2**-53])
@pytest.mark.filterwarnings("ignore:divide by zero|overflow:RuntimeWarning")  # 1 / 5e-324
def test_rows_of_priority_zero_are_never_chosen(
    cls: Any, priorities: list[float], number: float
) -> None:
    """Whatever random number comes, the row has a priority, and it is a row."""
    laber = cls(2, 2, eps=0, seed=1)
    laber.rng = Ends(number)

    assert set(laber(priorities=priorities)["indexes"].tolist()) <= {1, 2}


def test_the_last_row_is_chosen_by_the_largest_random_number() -> None:
    """And the first one by zero: neither end is cut off."""
    laber: Any = LaBERmean(1, 1000, seed=1)
    for number, row in [(1 - 2**-53, 999), (0.0, 0)]:
        laber.rng = Ends(number)
        assert laber(priorities=np.full(1000, 0.1))["indexes"].tolist() == [row]


def test_a_seed_gives_the_same_rows_on_every_platform() -> None:
    """The same seed chooses these rows, and others in the next call."""
    laber = LaBERmean(5, 4, seed=2024)
    first, second = (laber(priorities=np.arange(20))["indexes"].tolist() for _ in range(2))

    assert first == [16, 9, 11, 17, 19]
    assert second == [7, 5, 8, 12, 8]
    twin = pickle.loads(pickle.dumps(laber))
    assert (
        twin(priorities=np.arange(20))["indexes"].tolist()
        == laber(priorities=np.arange(20))["indexes"].tolist()
    )


def test_without_a_seed_the_global_one_governs() -> None:
    """``np.random.seed`` repeats choices, and a generator of a buffer is taken as it is."""
    chosen = []
    for seed in (1, 1, 2):
        np.random.seed(seed)
        chosen.append(LaBERmax(20)(priorities=np.ones(80))["indexes"].tolist())
    assert chosen[0] == chosen[1] != chosen[2]

    rng = np.random.default_rng(5)
    assert LaBERmax(20, seed=rng).rng is rng


# ---- indexes and weights that were passed ------------------------------------------------


@of_each_kind
def test_indexes_that_are_passed_are_chosen_with_their_rows(cls: Any) -> None:
    """New priorities of the chosen rows go to these slots of the buffer."""
    slots = np.array([70, 50, 30, 10], np.int64)
    batch = cls(2, 2, seed=1)(priorities=np.ones(4), indexes=slots, number=slots)

    assert batch["indexes"].tolist() == batch["number"].tolist()


@of_each_kind
def test_weights_that_are_passed_are_multiplied(cls: Any) -> None:
    """The weights of a draw by priority correct that draw, and these the choice: both are due."""
    given_ = np.array([0.5, 0.25, 1.0, 0.125])
    plain = cls(2, 2, seed=4)(priorities=[1, 2, 3, 4])
    both = cls(2, 2, seed=4)(priorities=[1, 2, 3, 4], weights=given_)

    assert both["indexes"].tolist() == plain["indexes"].tolist()
    assert both["weights"].tolist() == (plain["weights"] * given_[plain["indexes"]]).tolist()


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "i4", "u1"])
def test_weights_are_single_whatever_the_priorities_are(dtype: str) -> None:
    """Float32, as all weights are; float64 if asked for. Both are computed in float64."""
    priorities = np.array([1, 2, 3, 4], dtype)
    cases: list[tuple[dict[str, Any], str]] = [({}, "f4"), ({"weights_dtype": np.float64}, "f8")]
    for options, expected in cases:
        batch = LaBERmean(2, 2, seed=0, **options)(priorities=priorities)

        assert batch["weights"].dtype == expected
        assert batch["indexes"].dtype == np.intp
        exact = 2.500001 / (batch["indexes"] + 1 + 1e-6)
        tolerance = 1e-7 if expected == "f4" else 1e-12
        np.testing.assert_allclose(batch["weights"], exact, rtol=tolerance)


def test_another_dtype_of_weights_is_refused() -> None:
    """Weights are float32 or float64."""
    with pytest.raises(ValueError, match="weights_dtype: expected float32 or float64, got 'f2'"):
        LaBERmean(2, weights_dtype="f2")


def test_priorities_may_stand_in_a_column() -> None:
    """TD errors of shape (n, 1) are n priorities."""
    column = np.array([[1.0], [2.0], [3.0], [4.0]])

    a, b = (LaBERmean(2, 2, seed=0)(priorities=p) for p in (column, column.ravel()))
    assert a["weights"].tolist() == b["weights"].tolist()
    assert a["weights"].shape == (2,)


def test_a_batch_is_fresh_and_what_was_passed_is_only_read() -> None:
    """Writing to the result changes no argument, and the call changes none."""
    arrays = {
        "priorities": np.ones(2),
        "x": np.arange(2.0),
        "weights": np.ones(2),
        "indexes": np.arange(2),
    }
    for array in arrays.values():
        array.setflags(write=False)
    batch = LaBERmean(2, 1, seed=0)(**arrays)
    for array in batch.values():
        array[...] = 77
    assert [array.tolist() for array in arrays.values()] == [[1, 1], [0, 1], [1, 1], [0, 1]]


def test_a_batch_is_of_the_byte_order_of_this_machine() -> None:
    """Whatever that of the values was, and of parts of a structure; they are equal."""
    parts = np.zeros(6, [("x", ">f8", (2,)), ("n", "u1")])
    parts["x"] = np.arange(12).reshape(6, 2)
    batch = LaBERmean(2, 3, seed=0)(priorities=np.ones(6), x=np.arange(6, dtype=">i4"), s=parts)
    assert batch["x"].dtype == np.int32
    assert batch["s"].dtype == np.dtype([("x", "=f8", (2,)), ("n", "u1")])
    assert batch["x"].tolist() == batch["indexes"].tolist()
    assert batch["s"]["x"][:, 0].tolist() == (2 * batch["indexes"]).tolist()


def test_a_large_batch_of_a_buffer_fits() -> None:
    """What ``sample`` gives is what it takes."""
    rb = numbered(100, seed=1)
    large = rb.sample(32)
    batch = LaBERmean(8, seed=rb.rng)(priorities=large["x"], **large)

    assert batch["x"].tolist() == large["x"][batch["indexes"]].tolist()


# ---- what is refused ---------------------------------------------------------------------


@of_each_kind
@pytest.mark.parametrize(
    ("arrays", "error", "message"),
    [
        ({"priorities": [1, 2, 3]}, ValueError, "priorities: expected batch_size * m = 4, got 3"),
        ({"priorities": np.ones((2, 4))}, ValueError, "shape (n,) or (n, 1), got (2, 4)"),
        ({"priorities": np.ones((4, 2))}, ValueError, "shape (n,) or (n, 1), got (4, 2)"),
        ({"priorities": 1.0}, ValueError, "= 4, got 1"),
        ({"priorities": [[1], [2, 3], 4, 5]}, ValueError, "priorities: "),
        ({"priorities": ["1", "2", "3", "4"]}, TypeError, "priorities: expected numbers"),
        ({"priorities": [True] * 4}, TypeError, "priorities: expected numbers"),
        ({"priorities": [1j] * 4}, TypeError, "priorities: expected numbers"),
        (
            {"priorities": [1, 2, math.nan, 4]},
            ValueError,
            "priorities[2]: expected a finite number",
        ),
        (
            {"priorities": [1, math.inf, 3, 4]},
            ValueError,
            "priorities[1]: expected a finite number",
        ),
        ({"priorities": [1, 2, 3, -1e-9]}, ValueError, "priorities[3]: expected a finite number"),
        ({"x": [1, 2, 3]}, ValueError, "x: expected batch_size * m = 4 rows, got shape (3,)"),
        ({"x": 5}, ValueError, "x: expected batch_size * m = 4 rows, got shape ()"),
        ({"indexes": np.ones(5)}, ValueError, "indexes: expected batch_size * m = 4 rows"),
        ({"weights": np.ones((4, 2))}, ValueError, "weights: expected shape (4,), got (4, 2)"),
        ({"weights": ["a"] * 4}, TypeError, "weights: expected real numbers"),
    ],
)
def test_bad_arrays_are_refused(
    cls: Any, arrays: dict[str, Any], error: type[Exception], message: str
) -> None:
    """The message says which array, and what it should be; no random number was drawn."""
    laber = cls(2, 2, seed=1)
    before = repr(laber.rng.bit_generator.state)
    with pytest.raises(error) as caught:
        laber(**({"priorities": np.ones(4)} | arrays))
    assert message in str(caught.value)
    assert repr(laber.rng.bit_generator.state) == before


@of_each_kind
def test_priorities_that_are_all_zero_need_eps(cls: Any) -> None:
    """With eps all rows are equally likely, and without it there is nothing to choose."""
    assert len(cls(2, 2, seed=0)(priorities=np.zeros(4))["indexes"]) == 2
    with pytest.raises(ValueError, match="priorities: expected one above 0, since eps is 0"):
        cls(2, 2, eps=0, seed=0)(priorities=np.zeros(4))


@of_each_kind
@pytest.mark.parametrize(
    ("values", "error", "message"),
    [
        ({"batch_size": 0}, ValueError, "batch_size: expected at least 1, got 0"),
        ({"batch_size": 2.5}, TypeError, "batch_size: expected an integer, got 2.5"),
        ({"m": 0}, ValueError, "m: expected at least 1, got 0"),
        ({"m": "4"}, TypeError, "m: expected an integer, got '4'"),
        ({"eps": -1e-9}, ValueError, "eps: expected at least 0, got -1e-09"),
        ({"eps": math.inf}, ValueError, "eps: expected at least 0"),
        ({"eps": abs}, TypeError, "eps: expected a number, got <built-in"),
        ({"seed": "one"}, TypeError, "seed: "),
    ],
)
def test_bad_parameters_are_refused(
    cls: Any, values: dict[str, Any], error: type[Exception], message: str
) -> None:
    """The message says which parameter, what was expected and what came."""
    with pytest.raises(error) as caught:
        cls(**({"batch_size": 4} | values))
    assert message in str(caught.value)


@of_each_kind
def test_repr_shows_the_parameters(cls: Any) -> None:
    """``repr`` is the call that makes the same, but for the seed."""
    assert repr(cls(32)) == f"{cls.__name__}(32, m=4, eps=1e-06)"
