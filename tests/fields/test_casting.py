"""Every value into every numeric dtype: stored exactly, rounded to a narrower float, or refused."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np
import pytest
from helpers import refused

from cpprb_like import ReplayBuffer

NUMBERS = ["?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "g", "F", "D"]
VALUES: list[Any] = [
    *(sign * number for sign in (1, -1) for number in (0, 1, 2, 127, 128, 255, 256, 32768, 65535)),
    *(
        sign * (2**bits + more)
        for sign in (1, -1)
        for bits in (31, 32, 53, 63, 64)
        for more in (-1, 0, 1)
    ),
    *(0.0, -0.0, 0.5, 1.0, -1.0, 1.5, 65504.0, 65520.0, 1e30, 3.5e38, 1e300),
    *(float(sign * 2**bits) for sign in (1, -1) for bits in (31, 32, 63, 64)),
    *(math.nan, math.inf, -math.inf),
    *(1 + 0j, 1j, complex(math.nan, 0), complex(1e300, 0), complex(0, 1e300)),
]


def fits(value: Any, dtype: np.dtype[Any]) -> bool:
    """Whether ``dtype`` can hold a Python number, rounding to a narrower float aside."""
    if isinstance(value, complex):
        parts = [value.real, value.imag]
        if dtype.kind == "c":
            return all(fits(part, np.empty(0, dtype).real.dtype) for part in parts)
        return value.imag == 0 and fits(value.real, dtype)
    if dtype.kind in "fc":
        if not math.isfinite(value):
            return True
        part = np.empty(0, dtype).real.dtype
        info = np.finfo(part)
        with np.errstate(over="ignore"):
            return bool(abs(part.type(str(value))) <= info.max)
    if not math.isfinite(value) or value != int(value):
        return False
    if dtype.kind == "b":
        return int(value) in (0, 1)
    limits = np.iinfo(dtype)
    return int(limits.min) <= int(value) <= int(limits.max)


def forms(value: Any) -> dict[str, Any]:
    """A Python number as all the things that a caller may hand over, each of the same value."""
    found: dict[str, Any] = {
        "Python": value,
        "list": [value],
        "list of two": [value, value],
        "array of objects": np.array([value], object),
    }
    for name in NUMBERS:
        dtype = np.dtype(name)
        if fits(value, dtype) and not (dtype.kind != "c" and isinstance(value, complex)):
            with np.errstate(all="ignore"):
                scalar = dtype.type(value) if name != "g" else np.longdouble(str(value))
            if same_number(value, scalar):
                found[f"scalar {name}"] = scalar
                found[f"array {name}"] = np.array([scalar], dtype)
    return found


@cache
def with_forms() -> list[tuple[Any, dict[str, Any]]]:
    """All values, each with its forms."""
    return [(value, forms(value)) for value in VALUES]


def same_number(value: Any, scalar: Any) -> bool:
    """Whether a NumPy scalar is exactly a Python number."""
    if isinstance(value, complex):
        return same_number(value.real, scalar.real) and same_number(value.imag, scalar.imag)
    if np.iscomplexobj(scalar):
        return bool(scalar.imag == 0) and same_number(value, scalar.real)
    if not math.isfinite(value):
        return str(float(value)) == str(float(scalar))
    if isinstance(scalar, np.floating):
        if not np.isfinite(scalar):
            return False
        return Fraction(*scalar.as_integer_ratio()) == Fraction(value)
    return bool(int(scalar) == value)


def expected(value: Any, dtype: np.dtype[Any]) -> list[Any]:
    """What a field of ``dtype`` may hold for a value that fits."""
    if dtype.char == "g" and isinstance(value, int):
        return [np.longdouble(str(value)), np.longdouble(float(value))]  # depends on NumPy's way
    if dtype.kind in "fc":
        return [dtype.type(value)]
    return [dtype.type(int(value))]


@pytest.mark.parametrize("shape", [(), (1,)], ids=str)
@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_are_held_or_refused(name: str, shape: tuple[int, ...]) -> None:
    """A number that fits is stored, rounded to a float at most; any other is refused."""
    dtype = np.dtype(name)
    rb = ReplayBuffer(2, {"x": {"shape": shape, "dtype": dtype}})
    # A complex number with nothing imaginary may be taken for a real one or not.
    for value, found_forms in with_forms():
        if dtype.kind != "c" and isinstance(value, complex) and value.imag == 0:
            continue
        for form, given in found_forms.items():
            rb.clear()
            what = f"{value!r} as {form} into {name}"
            if not fits(value, dtype):
                with refused(rb, ValueError, "'x'", str(dtype)):
                    rb.add(x=given)
                    print(f"{what} was stored as {rb[0]['x']!r}")
                continue
            rb.add(x=given)
            stored = rb.get_all_transitions()["x"].reshape(-1)[0]
            found = [np.array_equal(stored, x, equal_nan=True) for x in expected(value, dtype)]
            assert any(found), f"{what} became {stored!r}"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("u8", [2**63 + 1, 1]),
        ("u8", np.array([2**63 + 1, 1], object)),
        ("i8", [2**62 + 1, 1.0]),
        ("i8", [2**53 + 1, 0.0]),
        ("i8", [-(2**53) - 1, 0.0]),
        ("i8", [np.int64(2**53 + 1), np.float32(0)]),
        ("u8", [np.uint64(2**64 - 1), np.int64(1)]),
    ],
    ids=repr,
)
def test_integers_in_mixed_company(name: str, value: Any) -> None:
    """An integer beside a float in a list is exact or refused."""
    rb = ReplayBuffer(2, {"x": {"shape": (), "dtype": name}})
    try:
        rb.add(x=value)
    except ValueError:
        assert len(rb) == 0
    else:
        assert rb.get_all_transitions()["x"].tolist() == [int(number) for number in value]


@pytest.mark.parametrize(
    "value", [[1, "a"], [True, "a"], [1.5, "a"], [None, "a"], ["a", {}]], ids=repr
)
def test_mixed_lists_are_no_texts(value: Any) -> None:
    """A number beside a text does not become a text, as it does not alone."""
    rb = ReplayBuffer(4, {"x": {"shape": (), "dtype": "U8"}})
    with refused(rb, ValueError, "'x'"):
        rb.add(x=value)


@pytest.mark.parametrize(
    "hidden",
    [[np.ma.masked, 1.0], [np.ma.masked_array([1.0], [True]), [2.0]]],
    ids=["scalar", "array"],
)
def test_masked_values_inside_lists(hidden: Any) -> None:
    """A masked value is refused in a list as well."""
    rb = ReplayBuffer(4, {"x": {"shape": (), "dtype": "f4"}, "y": {"dtype": "f4"}})
    name, other = ("x", "y") if np.ndim(hidden[1]) == 0 else ("y", "x")
    with refused(rb, (ValueError, UserWarning), "'" + name + "'"):
        rb.add(**{name: hidden, other: [0.0, 0.0]})


@pytest.mark.parametrize(
    ("left", "right"), [("l", "q"), ("q", "l"), ("L", "Q"), ("Q", "L"), ("i", "l"), ("p", "q")]
)
def test_c_types_of_one_size_are_one(left: str, right: str) -> None:
    """C types of one size are the same dtype, in arrays and scalars."""
    rb = ReplayBuffer(8, {"x": {"shape": (), "dtype": left}})
    rb.add(x=np.arange(3, dtype=right))
    rb.add(x=np.dtype(right).type(3))
    out = {"x": np.zeros(5, left)}
    rb.sample(5, out=out)
    assert rb.get_all_transitions()["x"].tolist() == [0, 1, 2, 3]
    assert rb.get_all_transitions()["x"].dtype == left


@pytest.mark.parametrize("given", ["f8", "i8", "?", "O", ">f4"])
def test_no_steps_of_any_dtype(given: str) -> None:
    """No steps at all are accepted from an empty array of any numeric dtype or of objects."""
    rb = ReplayBuffer(4, {"x": {"shape": (2, 3), "dtype": "f4"}})
    assert rb.add(x=np.zeros((0, 2, 3), given)) == 0
    assert len(rb) == 0
