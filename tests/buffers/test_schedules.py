"""Numbers that change with time, and what is no such number."""

from __future__ import annotations

import copy
import dataclasses
import fractions
import math
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cpprb_like._arguments.checks import as_int
from cpprb_like.schedules import Linear, Piecewise, Schedule, check, value_at

FINITE = st.floats(allow_nan=False, allow_infinity=False)
SCHEDULES: list[Schedule] = [
    Linear(0.4, 1.0, 100),
    Piecewise([(5, 1.0), (10, 3.0), (30, 2.0)]),
]


@pytest.mark.parametrize(
    ("t", "number"), [(-3, 2.0), (0, 2.0), (1, 1.5), (2, 1.0), (2.5, 0.75), (4, 0.0), (99, 0.0)]
)
def test_a_line_goes_from_start_to_stop_and_stays(t: float, number: float) -> None:
    """It falls or rises in even steps, and is level before time 0 and after its end."""
    assert Linear(2, 0, 4)(t) == number
    assert Linear(-2, 0, 4)(t) == -number


@pytest.mark.parametrize(
    ("t", "number"),
    [
        (-1, 1.0),
        (0, 1.0),
        (5, 1.0),
        (7.5, 2.0),
        (10, 3.0),
        (15, 2.75),
        (29, 2.05),
        (30, 2.0),
        (99, 2),
    ],
)
def test_pieces_are_lines_between_points(t: float, number: float) -> None:
    """Between two points lies the line that joins them, and outside the nearest point's number."""
    assert SCHEDULES[1](t) == pytest.approx(number, abs=1e-15)


def test_rounding_does_not_lead_outside() -> None:
    """A level line is level to the last bit, so that a number at the end of a range stays in it."""
    line = Linear(0.1, 0.1, 1000)

    assert {line(t) for t in range(1001)} == {0.1}


def test_one_point_is_a_constant() -> None:
    """Before and after a single point its number holds."""
    assert [Piecewise([(7, 0.3)])(t) for t in (0, 7, 8)] == [0.3] * 3


@given(
    points=st.lists(st.tuples(st.integers(0, 1000), FINITE), min_size=1, unique_by=lambda p: p[0]),
    t=st.floats(-10, 1010),
)
def test_pieces_hit_their_points_and_stay_between_neighbours(
    points: list[tuple[int, float]], t: float
) -> None:
    """At the points the numbers are exact, and rounding never leads outside; as with fractions."""
    points.sort()
    schedule = Piecewise(points)
    assert [schedule(time) for time, _ in points] == [number for _, number in points]
    before = [point for point in points if point[0] <= t][-1:] or points[:1]
    after = [point for point in points if point[0] > t][:1] or points[-1:]
    (t0, low), (t1, high) = before[0], after[0]
    number = schedule(t)
    assert min(low, high) <= number <= max(low, high)
    if t0 <= t < t1:
        part = (fractions.Fraction(t) - t0) / (t1 - t0)
        exact = fractions.Fraction(low) + part * (
            fractions.Fraction(high) - fractions.Fraction(low)
        )
        scale = max(abs(low), abs(high), 1e-300)
        assert abs(fractions.Fraction(number) - exact) <= 1e-14 * fractions.Fraction(scale)


@given(start=FINITE, stop=FINITE, steps=st.integers(1, 10**9), t=st.floats(0, 2e9))
def test_a_line_is_two_points(start: float, stop: float, steps: int, t: float) -> None:
    """``Linear`` is the ``Piecewise`` of its ends, to the last bit."""
    assert Linear(start, stop, steps)(t) == Piecewise([(0, start), (steps, stop)])(t)


@pytest.mark.parametrize("schedule", SCHEDULES, ids=repr)
def test_schedules_are_values(schedule: Any) -> None:
    """They are equal by content, can be keys, copied and pickled, and cannot be changed."""
    for twin in (copy.deepcopy(schedule), pickle.loads(pickle.dumps(schedule))):
        assert twin == schedule
        assert hash(twin) == hash(schedule)
    assert len({*SCHEDULES, schedule}) == 2
    assert eval(repr(schedule)) == schedule
    for field in dataclasses.fields(schedule):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(schedule, field.name, 0)


def test_numbers_of_any_type_are_read_as_floats() -> None:
    """Integers, NumPy's numbers and fractions give Python floats, and points may be any pairs."""
    line = Linear(np.float32(0.5), fractions.Fraction(3, 2), np.int16(10))  # type: ignore[arg-type]
    assert line == Linear(0.5, 1.5, 10)
    assert [type(value) for value in (line.start, line.stop, line.steps)] == [float, float, int]
    assert Piecewise(iter([[0, 1], (np.int64(5), 2)])) == Piecewise([(0, 1.0), (5, 2.0)])  # type: ignore[arg-type]
    assert Piecewise(np.array([[0, 1], [5, 2]])).points == ((0, 1.0), (5, 2.0))


@pytest.mark.parametrize(
    ("cls", "values", "error", "message"),
    [
        (Linear, (math.nan, 0, 1), ValueError, "start: expected a finite number, got nan"),
        (Linear, (10**400, 0, 1), ValueError, "start: expected a finite number, got 1000"),
        (Linear, ("1", 0, 1), TypeError, "start: expected a number, got '1'"),
        (Linear, (True, 0, 1), TypeError, "start: expected a number, got True"),
        (Linear, (1j, 0, 1), TypeError, "start: expected a number, got 1j"),
        (Linear, (Linear(0, 1, 2), 0, 1), TypeError, "start: expected a number, got Linear("),
        (
            Linear,
            (
                math.inf,
                0,
                1,
            ),
            ValueError,
            "start: expected a finite number, got inf",
        ),
        (
            Linear,
            (
                0,
                -math.inf,
                1,
            ),
            ValueError,
            "stop: expected a finite number, got -inf",
        ),
        (
            Linear,
            (
                0,
                1,
                0,
            ),
            ValueError,
            "steps: expected at least 1, got 0",
        ),
        (
            Linear,
            (
                0,
                1,
                10.0,
            ),
            TypeError,
            "steps: expected an integer, got 10.0",
        ),
        (
            Linear,
            (
                0,
                1,
                True,
            ),
            TypeError,
            "steps: expected an integer, got True",
        ),
        (Piecewise, ([],), ValueError, "points: expected at least one, got none"),
        (Piecewise, (5,), TypeError, "points: expected pairs of a time and a number, got 5"),
        (Piecewise, ([(1, 2, 3)],), TypeError, "points: expected pairs"),
        (Piecewise, ([1, 2],), TypeError, "points: expected pairs"),
        (Piecewise, ([(0.5, 1)],), TypeError, "time of point 0: expected an integer, got 0.5"),
        (
            Piecewise,
            ([(0, 1), (1, math.nan)],),
            ValueError,
            "value of point 1: expected a finite number, got nan",
        ),
        (
            Piecewise,
            ([(0, 1), (4, 1), (4, 2)],),
            ValueError,
            "time of point 2: expected more than 4, got 4",
        ),
        (
            Piecewise,
            ([(3, 1), (2, 1)],),
            ValueError,
            "time of point 1: expected more than 3, got 2",
        ),
    ],
)
def test_bad_parameters_are_refused(
    cls: Any, values: tuple[Any, ...], error: type[Exception], message: str
) -> None:
    """The message says which parameter, what was expected and what came."""
    with pytest.raises(error) as caught:
        cls(*values)
    assert message in str(caught.value)


# ---- a number or a schedule --------------------------------------------------------------


def square(t: float) -> float:
    """A schedule of one's own."""
    return t * t


@pytest.mark.parametrize(
    ("value", "number"),
    [(2, 2.0), (0.5, 0.5), (np.float32(0.25), 0.25), (Linear(0, 1, 4), 0.75), (square, 9.0)],
)
def test_a_number_is_a_schedule_that_does_not_change(value: Any, number: float) -> None:
    """``value_at`` gives Python floats from both."""
    found = value_at(value, 3)

    assert found == number
    assert type(found) is float


@pytest.mark.parametrize(
    "value",
    [
        -0.1,
        1.5,
        math.nan,
        math.inf,
        Linear(2, 2, 1),
        Linear(0, 2, 5),
        Linear(-1, 1, 5),
        SCHEDULES[1],
    ],
    ids=repr,
)
def test_check_refuses_what_leaves_the_range(value: Any) -> None:
    """Numbers, and schedules that leave the range at some time, are refused at once."""
    with pytest.raises(
        ValueError, match=r"^beta: expected 0 to 1, got (-?[\d.]+|nan|inf)( from|$)"
    ):
        check("beta", value, 0, 1)


@pytest.mark.parametrize("value", [None, "0.5", [1], True, np.array([1.0]), 1j], ids=repr)
def test_check_refuses_what_is_neither_number_nor_schedule(value: Any) -> None:
    """Strings, bools and arrays are no numbers."""
    with pytest.raises(TypeError, match=r"^beta: expected a number or a schedule, got "):
        check("beta", value, 0, 1)
    with pytest.raises(TypeError, match=r"^beta: expected a number or a schedule, got "):
        value_at(value, 0, "beta")


@pytest.mark.parametrize("value", [0, 1, 0.5, np.int8(1), Linear(0, 1, 5), square], ids=repr)
def test_check_takes_the_ends_of_the_range(value: Any) -> None:
    """Both ends belong to the range; a function is not asked before its time."""
    check("beta", value, 0, 1)


def test_least_itself_may_be_left_out() -> None:
    """With ``above`` the range begins after ``least``."""
    check("eta", 5e-324, 0, 1, above=True)
    for value in (0, Linear(0, 1, 5)):
        with pytest.raises(ValueError, match=r"^eta: expected more than 0 and at most 1, got 0"):
            check("eta", value, 0, 1, above=True)
        with pytest.raises(ValueError, match=r"^eta: expected more than 0, got 0"):
            value_at(value, 0, "eta", 0, above=True)


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        (1.5, ValueError, "beta: expected 0 to 1, got 1.5 from <function"),
        (math.nan, ValueError, "beta: expected 0 to 1, got nan from <function"),
        (None, TypeError, "beta: expected a number, got None from <function"),
        ("1", TypeError, "beta: expected a number, got '1' from <function"),
    ],
)
def test_what_a_function_gives_is_checked_when_it_gives_it(
    given: Any, error: type[Exception], message: str
) -> None:
    """A schedule of one's own passes the first check, and is caught when it is wrong."""

    def schedule(t: float) -> Any:
        return given if t == 3 else 0.5

    check("beta", schedule, 0, 1)
    assert value_at(schedule, 2, "beta", 0, 1) == 0.5
    with pytest.raises(error) as caught:
        value_at(schedule, 3, "beta", 0, 1)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("value", "least", "expected"),
    [(0, -math.inf, 0), (np.uint8(7), 7, 7), (10**30, 1, 10**30), (-4, -4, -4)],
)
def test_whole_numbers_are_read_as_ints(value: Any, least: float, expected: int) -> None:
    """Python's and NumPy's integers become Python's."""
    found = as_int("n", value, least)

    assert found == expected
    assert type(found) is int


@pytest.mark.parametrize("value", [1.0, "1", None, True, np.array([1, 2])], ids=repr)
def test_what_is_no_whole_number_is_refused(value: Any) -> None:
    """Floats of integral value are none, nor are bools."""
    with pytest.raises(TypeError, match=r"^n: expected an integer, got "):
        as_int("n", value)


def test_the_protocol_takes_functions_and_our_classes() -> None:
    """Static and not only by habit: each is a ``Schedule``."""
    schedules: list[Schedule] = [square, *SCHEDULES]

    assert [schedule(0) for schedule in schedules] == [0, 0.4, 1.0]
