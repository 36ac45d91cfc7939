"""Arithmetic of priorities: powers of a few and of many numbers, modest and extreme ones."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from cpprb_like.samplers._priority_powers import importance, least_of, weigh

Floats = npt.NDArray[np.float64]

COUNTS = [0, 1, 31, 32, 33, 300]
EXPONENTS = [0.0, 0.4, 0.6, 1.0, 1.7, 2.0, 2.5, 7.0]


def spread(n: int, decades: float) -> Floats:
    """Numbers of so many orders of magnitude around 1."""
    rng = np.random.default_rng(n)
    return np.asarray(10.0 ** rng.uniform(-decades, decades, n), np.float64)


@pytest.mark.parametrize("n", COUNTS)
@pytest.mark.parametrize("alpha", EXPONENTS)
@pytest.mark.parametrize("decades", [1, 40])
def test_weights_are_powers_of_priorities(n: int, alpha: float, decades: float) -> None:
    """They are ``(priority + eps) ** alpha`` to 1e-14, for any setting of NumPy's errors."""
    priorities = spread(n, decades)
    before = priorities.copy()
    with np.errstate(all="raise"):
        weights, heaviest = weigh(priorities, 1e-3, alpha)
    expected = np.array([(priority + 1e-3) ** alpha for priority in priorities.tolist()])
    np.testing.assert_allclose(weights, expected, rtol=1e-14)
    assert heaviest == weights.max(initial=0.0)
    np.testing.assert_array_equal(priorities, before)


@pytest.mark.parametrize("n", COUNTS)
def test_powers_beyond_float64_are_no_errors_of_numpy(n: int) -> None:
    """What is too large is infinite, for the caller to refuse; what is too small is zero."""
    with np.errstate(all="raise"):
        assert weigh(np.full(n, 1e300), 0.0, 2.0)[1] == (np.inf if n else 0.0)
        assert weigh(np.full(n, 1e-300), 0.0, 2.0)[1] == 0.0
        assert weigh(np.zeros(n), 0.0, 0.5)[1] == 0.0
        weights, heaviest = weigh(np.zeros(n), 0.0, 0.0)
    assert weights.tolist() == [1.0] * n
    assert heaviest == (1.0 if n else 0.0)


@pytest.mark.parametrize("n", COUNTS)
@pytest.mark.parametrize("beta", EXPONENTS)
@pytest.mark.parametrize("decades", [1, 40, 140, 153])
def test_importance_is_the_closed_form(n: int, beta: float, decades: float) -> None:
    """It is ``(weight / least) ** -beta`` to 1e-12, also where that ratio is no number."""
    weights = spread(n, decades)
    least = float(weights.min(initial=1.0))
    with np.errstate(all="raise"):
        double = importance(weights, least, beta, False)
        single = importance(weights, least, beta, True)
    logarithms = np.log(weights.astype(np.longdouble)) - np.log(np.longdouble(least))
    expected = np.exp(-beta * logarithms)
    known = expected > 1e-300  # below, digits are missing from every answer
    np.testing.assert_allclose(double[known], expected[known].astype(float), rtol=1e-12)
    assert (double[~known] <= 1e-299).all()
    assert double.max(initial=0.0) <= 1.0
    assert single.dtype == np.float32
    np.testing.assert_array_equal(single, double.astype(np.float32))


def test_the_rarest_row_weighs_one() -> None:
    """Exactly, for any exponent and any number of rows."""
    for n in COUNTS[1:]:
        for beta in EXPONENTS:
            assert importance(np.full(n, 0.3), 0.3, beta, False).tolist() == [1.0] * n


@pytest.mark.parametrize("n", COUNTS)
def test_the_least_of_some_weights(n: int) -> None:
    """As NumPy finds it; without any it is infinite."""
    weights = spread(n, 40)
    assert least_of(weights) == weights.min(initial=np.inf)
