"""Stacks of values of several rows are what ``np.stack`` makes of the rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from helpers import refused
from hypothesis import given
from hypothesis import strategies as st
from reference import ReferenceBuffer
from strategies import DTYPES, SHAPES, Array, Shape, assert_same, field_dtype, random_rows
from strategies import stack as columns_of
from threads import run_together

from cpprb_like import ReplayBuffer
from cpprb_like.typing import NstepSpec


def plain_stack(
    by_slot: list[Array], slots: Array, axis: int, shape: Shape, dtype: np.dtype[Any]
) -> Array:
    """Stacks, one after another, of values that stand in a list by slot."""
    nothing = np.full(shape, None, object) if dtype.kind == "O" else np.zeros(shape, dtype)
    at = axis % (len(shape) + 1)
    out = np.empty((len(slots), *shape[:at], slots.shape[1], *shape[at:]), dtype)
    for k, row in enumerate(slots):
        frames = [by_slot[slot] if slot >= 0 else nothing for slot in row]
        out[k, ...] = np.stack([np.asarray(frame, dtype) for frame in frames], axis)
    return out


def read_all(twin: ReferenceBuffer, name: str) -> list[Array]:
    """The values of a field by slot."""
    return [row.values[name] for row in twin.slots().values()]


@st.composite
def cases(draw: st.DrawFn) -> tuple[int, dict[str, Any], list[int], int]:
    """A capacity, a declaration, what happens (rows added at once; 0 is a clear), and a seed."""
    spec = {"shape": draw(st.sampled_from(SHAPES)), "dtype": draw(st.sampled_from(DTYPES))}
    return (
        draw(st.integers(1, 9)),
        {"x": spec, "done": {"dtype": bool}},
        draw(st.lists(st.integers(0, 12), min_size=1, max_size=6)),
        draw(st.integers(0, 2**32 - 1)),
    )


@given(cases())
def test_any_field_stacks_like_numpy(case: tuple[int, dict[str, Any], list[int], int]) -> None:
    """Whatever the dtype, shape, axis and history, values come in the order of the slots."""
    capacity, schema, history, seed = case
    rng = np.random.default_rng(seed)
    rb, twin = ReplayBuffer(capacity, schema), ReferenceBuffer(capacity, list(schema))
    shape, dtype = schema["x"]["shape"], field_dtype(schema["x"])
    for n in history:
        if n == 0:
            rb.clear()
            twin.clear()
        else:
            rows = random_rows(rng, schema, n)
            rb.add(**columns_of(rows, schema))
            twin.add(rows)
        by_slot = read_all(twin, "x")
        slots = rng.integers(-2, len(by_slot), (rng.integers(0, 4), rng.integers(1, 6)))
        axis = int(rng.integers(-len(shape) - 1, len(shape) + 1))
        expected = plain_stack(by_slot, slots, axis, shape, dtype)
        given_as: Any = [slots, slots.astype("i2"), slots.tolist(), slots[::-1][::-1]][seed % 4]
        if len(slots) == 0:
            given_as = slots

        assert_same(expected, rb.stack("x", given_as, axis=axis), f"{slots} {axis=}")
        out = np.empty_like(expected)
        assert rb.stack("x", slots, axis=axis, out=out) is out
        assert_same(expected, out, f"out of {slots} {axis=}")


@pytest.mark.parametrize("depth", [1, 2, 3, 4, 5, 9])
@pytest.mark.parametrize("dtype", ["u1", "i1", "?", "u2", "V3", "f4", "f8", "D", "V5", "g"])
@pytest.mark.parametrize("shape", [(84, 84), (1,), (70, 30, 3), (9000,)])
def test_each_size_of_items_and_depth(depth: int, dtype: str, shape: Shape) -> None:
    """The loops for items of one size, and pieces of long values, put each byte in its place."""
    rng = np.random.default_rng(depth)
    rb = ReplayBuffer(7, {"x": {"shape": shape, "dtype": dtype}})
    kind = np.dtype(dtype)
    values: Array = np.frombuffer(
        rng.integers(0, 2, 7 * kind.itemsize * int(np.prod(shape)), np.uint8).tobytes(), kind
    ).reshape(7, *shape)
    rb.add(x=values)
    slots = rng.integers(-1, 7, (3, depth))
    for axis in range(len(shape) + 1):
        stacks = rb.stack("x", slots, axis=axis)
        zero = np.zeros_like(values[0])
        for k in range(3):
            frames = np.moveaxis(stacks[k], axis, 0)
            for i, slot in enumerate(slots[k]):
                expected = values[slot] if slot >= 0 else zero
                assert np.ascontiguousarray(frames[i]).tobytes() == expected.tobytes()


CHAINED: list[dict[str, Any]] = [
    {"next_of": "obs"},
    {"stack_compress": {"obs": -1}},
    {"next_of": "obs", "stack_compress": {"obs": -1}},
]


@pytest.mark.parametrize("options", CHAINED, ids=["next_of", "stack_compress", "both"])
@pytest.mark.parametrize("depth", [1, 3])
def test_chained_fields_stack_like_others(options: dict[str, Any], depth: int) -> None:
    """A field that is not stored as it is gives the values that indexing gives."""
    rng = np.random.default_rng(depth)
    rb = ReplayBuffer(10, {"obs": {"shape": (2, 3), "dtype": "f4"}, "done": {}}, **options)
    for i in range(25):
        step = {"obs": rng.integers(0, 3, (2, 3)), "done": i % 7 == 6}
        if "next_of" in options:
            step["next_obs"] = rng.integers(0, 3, (2, 3))
        rb.add(**step)
    for name in ["obs", "next_obs"] if "next_of" in options else ["obs"]:
        slots = rng.integers(-1, 10, (6, depth))
        values = list(rb[:][name])
        for axis in (0, 1, 2, -1):
            expected = plain_stack(values, slots, axis, (2, 3), np.dtype("f4"))
            assert_same(expected, rb.stack(name, slots, axis=axis), name)
            out = np.full_like(expected, 77)
            rb.stack(name, slots, axis=axis, out=out)
            assert_same(expected, out, name)


def test_rows_that_cannot_be_drawn_are_read_too() -> None:
    """Rows of vector environments that are incomplete, and absent ones, have slots and values."""
    nstep: NstepSpec = {"size": 3, "rew": "rew"}
    rb = ReplayBuffer(8, {"rew": {"shape": ()}}, n_envs=2, Nstep=nstep)
    rb.add(rew=[1, 2])
    with pytest.raises(IndexError):
        rb[1]
    assert rb.stack("rew", [[0, 1]]).tolist() == [[1, 2]]

    rb = ReplayBuffer(8, {"rew": {"shape": ()}}, n_envs=2)
    rb.add_where([True, False], rew=[5, 6])
    assert rb.stack("rew", [[0, 1], [1, -1]]).tolist() == [[5, 6], [6, 0]]


def test_a_stack_shares_no_memory() -> None:
    """A stack stays as it is when the rows are overwritten and further stacks are made."""
    rb = ReplayBuffer(4, {"x": {"shape": (200, 200), "dtype": "u1"}})
    rb.add(x=np.ones((4, 200, 200), "u1"))
    slots = np.array([[0, 1, 2, 3]])
    first, before = rb.stack("x", slots), slots.copy()
    rb.add(x=np.full((4, 200, 200), 2, "u1"))
    second = rb.stack("x", slots)
    assert (first == 1).all()
    assert (second == 2).all()
    assert first.flags.writeable
    assert first.flags.c_contiguous
    np.testing.assert_array_equal(slots, before)


OUT = np.empty((2, 3, 4), "f4")
BAD: list[tuple[type[Exception], str, dict[str, Any]]] = [
    (TypeError, "unknown field 'y'", {"name": "y"}),
    (TypeError, "unknown field None", {"name": None}),
    (TypeError, "slots: expected integers, got float64", {"slots": [[0.0]]}),
    (TypeError, "slots: expected integers, got bool", {"slots": [[True]]}),
    (TypeError, "slots: expected integers", {"slots": [["0"]]}),
    (ValueError, "got (2,)", {"slots": [0, 1]}),
    (ValueError, "got ()", {"slots": 0}),
    (ValueError, "got (1, 1, 1)", {"slots": [[[0]]]}),
    (ValueError, "depth at least 1", {"slots": [[]]}),
    (ValueError, "depth at least 1", {"slots": np.empty((0, 0), int)}),
    (IndexError, "expected 0 to 4", {"slots": [[5]]}),
    (IndexError, "expected 0 to 4", {"slots": [[-1, 2**62]]}),
    (IndexError, "no slot", {"slots": np.array([[2**64 - 1]], np.uint64)}),
    (TypeError, "axis: expected an integer, got 1.0", {"axis": 1.0}),
    (TypeError, "axis: expected an integer, got None", {"axis": None}),
    (ValueError, "axis: expected at most 1, got 2", {"axis": 2}),
    (ValueError, "axis: expected at least -2, got -3", {"axis": -3}),
    (TypeError, "expected an array, got list", {"out": [[0]]}),
    (ValueError, "(2, 3, 4)", {"out": np.empty((2, 4, 3), "f4")}),
    (ValueError, "float32", {"out": OUT.astype("f8")}),
    (ValueError, "C-contiguous", {"out": np.asfortranarray(OUT)}),
    (ValueError, "read-only", {"out": np.broadcast_to(np.float32(0), (2, 3, 4)).copy()}),
]


@pytest.mark.parametrize(("error", "words", "bad"), BAD)
@pytest.mark.parametrize("dtype", ["f4", "O"])
def test_bad_arguments(dtype: str, error: type[Exception], words: str, bad: dict[str, Any]) -> None:
    """A bad argument is named, and nothing is written."""
    if dtype == "O" and "out" in bad:
        pytest.skip("of another dtype anyway")
    rb = ReplayBuffer(9, {"x": {"shape": 3, "dtype": dtype}})
    rb.add(x=np.ones((5, 3)))
    arguments = {"name": "x", "slots": np.zeros((2, 4), int)} | bad
    if words == "read-only":
        arguments["out"].flags.writeable = False
    before = arguments["out"].copy() if isinstance(arguments.get("out"), np.ndarray) else None
    with refused(rb, error, words):
        rb.stack(**arguments)
    if before is not None:
        np.testing.assert_array_equal(before, arguments["out"])


def test_a_slot_out_of_range_leaves_out_alone() -> None:
    """Slots are checked before the first byte is written."""
    for dtype in ("f4", "O"):
        rb = ReplayBuffer(9, {"x": {"shape": (), "dtype": dtype}})
        rb.add(x=1.0)
        out = np.full((2, 2), 7.0, dtype)
        with pytest.raises(IndexError):
            rb.stack("x", [[0, 0], [0, 1]], out=out)
        assert (out == 7).all()


def test_an_empty_buffer_has_zeros_only() -> None:
    """Of a buffer without rows, negative slots can be read and no others."""
    rb = ReplayBuffer(5, {"x": {"shape": 2}})
    assert rb.stack("x", [[-1, -9]]).tolist() == [[[0, 0], [0, 0]]]
    assert rb.stack("x", np.empty((0, 4), int)).shape == (0, 2, 4)
    with pytest.raises(IndexError, match="slots"):
        rb.stack("x", [[0]])


@pytest.mark.once
@pytest.mark.parametrize("options", [{}, {"next_of": "x"}], ids=["plain", "next_of"])
def test_stacks_are_of_rows_that_were_there_together(options: dict[str, Any]) -> None:
    """While each call replaces all rows, or an update does, a stack shows those of one moment."""
    large = 60_000
    fields: dict[str, Any] = {"x": {"shape": large, "dtype": "u1"}, "o": {"dtype": "O"}}
    rb = ReplayBuffer(4, fields, **options)
    calls = [np.full((4, large), i, "u1") for i in range(4)]
    turn: Iterator[int] = iter(range(10**9))
    named = {"next_x": calls} if options else {}

    def write() -> None:
        i = next(turn) % 4
        rb.add(x=calls[i], o=np.full(4, i, object), **{name: c[i] for name, c in named.items()})

    def replace() -> None:
        if not options:
            rb.update(np.arange(4), x=calls[next(turn) % 4])

    def read() -> None:
        for name in ("x", "o", *named):
            stacks = rb.stack(name, [[0, 1, 2, 3], [3, 1, 1, 2]])
            assert (stacks == stacks.ravel()[0]).all(), name

    write()
    counts = run_together(write, replace, read, read, seconds=0.5)
    assert min(counts) >= 3, f"a thread starved: {counts}"


@pytest.mark.parametrize("dtype", ["f8", "O"])
def test_stacks_that_do_not_fit_into_memory(dtype: str) -> None:
    """They are refused before the machine is short of memory."""
    rb = ReplayBuffer(2, {"x": {"shape": 1 << 15, "dtype": dtype}})
    rb.add(x=np.zeros(1 << 15))
    slots = np.broadcast_to(np.intp(0), (1 << 10, 1 << 12))
    with pytest.raises(MemoryError, match="1024 stacks of 4096 values"):
        rb.stack("x", slots)
