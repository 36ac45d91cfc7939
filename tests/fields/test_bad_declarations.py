"""Impossible declarations and options are refused with the name and what came."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from cpprb_like import ReplayBuffer, create_buffer
from cpprb_like.samplers import Prioritized, RankBased
from cpprb_like.typing import FieldSpec


@pytest.mark.parametrize(
    "size", [0, -1, -5, 1.5, 0.5, -1.0, float("nan"), float("inf"), 2**63, 2**70, 1e300]
)
def test_bad_sizes(size: Any) -> None:
    """Sizes that are zero, negative, fractional or huge are refused with the number."""
    with pytest.raises(ValueError, match=f"size: expected .*, got {re.escape(str(size))}"):
        ReplayBuffer(size, {"x": {}})


@pytest.mark.parametrize("size", [2**40, 2**54, 2**55, 2**55 + 1, 2**63 - 1, 2**63, 2**64, 2**70])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"sampler": Prioritized()},
        {"sampler": RankBased()},
        {"Nstep": {"size": 3}},
        {"next_of": "x", "stack_compress": "x", "n_envs": 2},
    ],
    ids=str,
)
def test_huge_sizes(options: dict[str, Any], size: int) -> None:
    """There is no memory for them, whatever is stored for rows; beyond 2**55 the size is named.

    With priorities an ``OverflowError`` said that an ``int`` does not fit, and not which.
    """
    error, words = (MemoryError, "steps") if size <= 2**55 else (ValueError, f"size: .*got {size}")
    fields: dict[str, FieldSpec] = {"x": {"shape": 4}, "rew": {}}
    with pytest.raises(error, match=words):
        ReplayBuffer(size, fields, **options)


@pytest.mark.parametrize("shape", [2**55 + 1, (2**63 - 1, 0), (0, 2**63), 2**70], ids=str)
def test_huge_shapes(shape: Any) -> None:
    """A length that no array has is refused with the field, also beside a length of 0."""
    with pytest.raises(ValueError, match="field 'x': expected lengths of 0 to 36028797018963968"):
        ReplayBuffer(4, {"x": {"shape": shape}})


@pytest.mark.parametrize("size", ["10", None, [10], 1j, np.array([3, 4]), b"1"], ids=repr)
def test_sizes_that_are_no_numbers(size: Any) -> None:
    """A size that is no number is a TypeError."""
    with pytest.raises(TypeError, match="size"):
        ReplayBuffer(size, {"x": {}})


@pytest.mark.parametrize("size", [10, 10.0, np.int32(10), np.float64(10), np.array(10)], ids=repr)
def test_integral_sizes(size: Any) -> None:
    """Any number with an integral value is a size."""
    assert ReplayBuffer(size, {"x": {}}).get_buffer_size() == 10


def test_more_memory_than_the_machine_has() -> None:
    """A buffer that does not fit is refused at once, with a table of the fields and their bytes."""
    with pytest.raises(MemoryError) as caught:
        ReplayBuffer(10**9, {"obs": {"shape": (84, 84, 4), "dtype": "u1"}, "act": {"dtype": "i8"}})
    for word in ("obs", "(84, 84, 4)", "uint8", "act", "int64"):
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("env_dict", "error"),
    [
        ({}, ValueError),
        (None, TypeError),
        ([], TypeError),
        ("obs", TypeError),
        ([("obs", {})], TypeError),
        (5, TypeError),
        ({"obs": 3}, TypeError),
        ({"obs": None}, TypeError),
        ({"obs": "f4"}, TypeError),
        ({1: {}}, TypeError),
        ({None: {}}, TypeError),
    ],
    ids=repr,
)
def test_bad_env_dict(env_dict: Any, error: type[Exception]) -> None:
    """An env_dict that is empty, no dict, or maps anything but names to dicts is refused."""
    with pytest.raises(error, match=r"env_dict|field"):
        ReplayBuffer(10, env_dict)


@pytest.mark.parametrize(
    ("spec", "word"),
    [
        ({"shpae": 3}, "shpae"),
        ({"shape": 3, "type": "f4"}, "type"),
        ({"shape": -1}, "-1"),
        ({"shape": (2, -3)}, "-3"),
        ({"shape": 1.5}, "1.5"),
        ({"shape": (2.5,)}, "2.5"),
        ({"shape": "3"}, "3"),
        ({"shape": None}, "None"),
        ({"shape": (None,)}, "None"),
        ({"shape": (1,) * 80}, "dimension"),
        ({"shape": 2**62}, "obs"),
        ({"shape": (2**40, 2**40)}, "obs"),
        ({"dtype": "float31"}, "float31"),
        ({"dtype": 7}, "7"),
        ({"dtype": "U"}, "U"),
        ({"dtype": "S0"}, "S"),
        ({"dtype": "V"}, "V"),
        ({"dtype": bytes}, "bytes"),
        ({"dtype": str}, "text"),
    ],
    ids=repr,
)
def test_bad_field_declaration(spec: FieldSpec, word: str) -> None:
    """Unknown properties, impossible shapes and dtypes are refused with the field."""
    with pytest.raises((TypeError, ValueError, MemoryError)) as caught:
        ReplayBuffer(10, {"act": {}, "obs": spec})
    assert "obs" in str(caught.value)
    assert word in str(caught.value)


def test_unknown_options() -> None:
    """A misspelt option of the constructor is a TypeError that names it."""
    with pytest.raises(TypeError, match="nevs"):
        ReplayBuffer(10, {"x": {}}, nevs=3)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="nevs"):
        create_buffer(10, {"x": {}}, nevs=3)  # type: ignore[call-arg]


@pytest.mark.parametrize("n_envs", [0, -1, 1.5, "2"])
def test_bad_number_of_environments(n_envs: Any) -> None:
    """A number of environments is at least one and whole."""
    with pytest.raises((TypeError, ValueError), match="n_envs"):
        ReplayBuffer(10, {"x": {}}, n_envs=n_envs)


@pytest.mark.parametrize("option", ["terminated", "truncated"])
@pytest.mark.parametrize("name", ["nowhere", 5, "vector"])
def test_bad_name_of_an_end_field(option: str, name: Any) -> None:
    """A field that is to end episodes must be declared and hold one value."""
    with pytest.raises((TypeError, ValueError), match=str(name)):
        ReplayBuffer(10, {"x": {}, "vector": {"shape": 3}}, **{option: name})


@pytest.mark.parametrize("seed", ["abc", -1, 1.5, object()], ids=repr)
def test_bad_seed(seed: Any) -> None:
    """What NumPy does not take as a seed is refused."""
    with pytest.raises((TypeError, ValueError)):
        ReplayBuffer(10, {"x": {}}, seed=seed)
