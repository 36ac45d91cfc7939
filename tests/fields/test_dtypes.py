"""Every NumPy dtype and shape goes in and comes out byte for byte."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
from strategies import Array, assert_same, random_array

from cpprb_like import ReplayBuffer

STRUCTURED = np.dtype([("x", "f4"), ("y", "i2")])
NESTED = np.dtype(
    [("pos", "<f8", (2, 2)), ("inner", [("flag", "?"), ("name", "U3"), ("id", ">u4")])]
)
ALIGNED = np.dtype([("a", "i1"), ("b", "f8"), ("c", "i2")], align=True)
WITH_GAPS = np.dtype(
    {"names": ["a", "b"], "formats": ["i2", "f4"], "offsets": [3, 11], "itemsize": 20}
)

# NumPy 2.5 warns of times without a unit; they are a dtype as long as it has them.
pytestmark = pytest.mark.filterwarnings("ignore:The 'generic' unit:DeprecationWarning")


DTYPES: dict[str, Any] = {
    "bool": np.bool_,
    **{f"int{bits}": f"i{bits // 8}" for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": f"u{bits // 8}" for bits in (8, 16, 32, 64)},
    "intc": np.intc,
    "long": "l",
    "ulong": "L",
    "longlong": "q",
    "ulonglong": "Q",
    "intp": np.intp,
    "float16": np.float16,
    "float32": np.float32,
    "float64": np.float64,
    "longdouble": np.longdouble,
    "complex64": np.complex64,
    "complex128": np.complex128,
    "clongdouble": np.clongdouble,
    **{f"datetime64 {unit}": f"M8[{unit}]" for unit in ("Y", "D", "s", "ms", "ns")},
    **{f"timedelta64 {unit}": f"m8[{unit}]" for unit in ("D", "s", "ns")},
    "timedelta64 of no unit": "m8",
    "str": "U7",
    "str of one letter": "U1",
    "bytes": "S7",
    "void": "V5",
    "structured": STRUCTURED,
    "nested": NESTED,
    "aligned": ALIGNED,
    "with gaps": WITH_GAPS,
    **{
        f"big-endian {code}": f">{code}"
        for code in ("i2", "u4", "i8", "f2", "f4", "f8", "c8", "M8[s]", "U4")
    },
    "big-endian structured": STRUCTURED.newbyteorder(">"),
    "big-endian array in a structure": [("x", ">f4", (3,)), ("y", "i1")],
    "object": object,
    "large bytes": "S300",
    "large structured": [("image", "u1", (10, 20)), ("label", "i8")],
}
SHAPES: list[Any] = [(), 1, (3,), (2, 0), (40, 9)]
NAMES = list(DTYPES)


def assert_same_value(expected: Array, actual: Any, what: str) -> None:
    """As ``assert_same``, for what may be a scalar."""
    assert_same(expected, np.asarray(actual, expected.dtype), what)


def filled(name: str, shape: Any, rng: np.random.Generator) -> tuple[ReplayBuffer, Array]:
    """A buffer that wrapped round, and the six rows that it must hold, in slot order.

    They are of the declared dtype in the byte order of this machine.
    """
    dtype = np.dtype(DTYPES[name])
    row_shape = (shape,) if isinstance(shape, int) else shape
    rows = random_array(rng, dtype, (9, *row_shape))
    rb = ReplayBuffer(6, {"before": {"dtype": "i1"}, "x": {"shape": shape, "dtype": dtype}}, seed=3)
    for i in range(4):
        rb.add(before=i, x=rows[i])
    rb.add(before=np.arange(4, 9), x=rows[4:])
    return rb, rows[[6, 7, 8, 3, 4, 5]].astype(dtype.newbyteorder("="))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_round_trip(name: str, shape: Any, rng: np.random.Generator) -> None:
    """What was added comes back from every reading with its values, dtype and shape, native."""
    rb, expected = filled(name, shape, rng)

    assert_same(expected, rb.get_all_transitions()["x"], "get_all_transitions")
    slots = rng.integers(0, 6, 20)
    assert_same(expected[slots], rb._encode_sample(slots)["x"], "_encode_sample")
    assert_same(expected[1:5], rb[1:5]["x"], "slice")
    assert_same_value(expected[2, ...], rb[2]["x"], "one row")
    batch = rb.sample(25)
    assert_same(expected[_slots(batch)], batch["x"], "sample")


def _slots(batch: dict[str, Array]) -> Array:
    """Row i of ``filled`` lies in slot i % 6."""
    return np.asarray(batch["before"][:, 0] % 6, np.intp)


@pytest.mark.parametrize("name", NAMES)
def test_out_arrays_take_every_dtype(name: str, rng: np.random.Generator) -> None:
    """``out=`` receives the same rows as a fresh batch."""
    rb, expected = filled(name, (3,), rng)
    out = {key: np.empty_like(value) for key, value in rb.sample(12).items()}

    batch = rb.sample(12, out=out)

    assert_same(expected[_slots(batch)], out["x"], "out")
    assert batch["x"] is out["x"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "how", [copy.deepcopy, lambda rb: pickle.loads(pickle.dumps(rb))], ids=["copy", "pickle"]
)
def test_copies_hold_the_same_rows(name: str, how: Any, rng: np.random.Generator) -> None:
    """A deep copy and an unpickled buffer hold every byte of the original."""
    rb, expected = filled(name, (2,), rng)
    assert_same(expected, how(rb).get_all_transitions()["x"], name)


@pytest.mark.parametrize("declared", ["i8", "f4", "U5", "M8[ms]", STRUCTURED, object], ids=str)
def test_one_value_is_one_step(declared: Any, rng: np.random.Generator) -> None:
    """A scalar of NumPy, or of Python, is one step of a field of shape ()."""
    rb = ReplayBuffer(4, {"x": {"shape": (), "dtype": declared}})
    value = random_array(rng, np.dtype(declared), ())
    rb.add(x=value[()])
    rb.add(x=value.item())
    rb.add(x=value)
    assert_same(np.full(3, value, value.dtype), rb.get_all_transitions()["x"], "x")


@pytest.mark.parametrize("dtype", ["f4", ">i2", STRUCTURED], ids=str)
def test_sub_array_dtype_becomes_shape(dtype: Any, rng: np.random.Generator) -> None:
    """A dtype that is itself an array adds its axes behind the shape, as in NumPy."""
    rb = ReplayBuffer(5, {"x": {"shape": 2, "dtype": np.dtype((dtype, (3,)))}})
    rows = random_array(rng, np.dtype(dtype), (4, 2, 3))
    rb.add(x=rows)
    rb.add(x=rows[0])
    expected = rows[[0, 1, 2, 3, 0]].astype(rows.dtype.newbyteorder("="))
    assert_same(expected, rb.get_all_transitions()["x"], "x")


@pytest.mark.parametrize("name", [name for name in NAMES if "big-endian" in name])
def test_the_declared_byte_order_is_turned_into_that_of_the_machine(
    name: str, rng: np.random.Generator
) -> None:
    """Of all parts, also for ``out=``, pickles and file maps; values may come in any order."""
    declared = np.dtype(DTYPES[name])
    native = declared.newbyteorder("=")
    rb, expected = filled(name, (3,), rng)
    assert rb.columns["x"].dtype == native != declared
    assert rb.sample(2)["x"].dtype == native
    rb.update(np.arange(6), x=expected[::-1].astype(declared))
    assert_same(expected[::-1], rb.get_all_transitions()["x"], "update")
    out = {"before": np.zeros((4, 1), "i1"), "x": np.zeros((4, 3), declared)}
    with pytest.raises(ValueError, match=r"out\['x'\]: expected .* of shape \(4, 3\), got "):
        rb.sample(4, out=out)


@pytest.mark.parametrize("dtype", [">f4", [("x", "i1"), ("y", ">f8", (2,))]], ids=str)
def test_a_pickle_of_foreign_byte_order_is_refused(dtype: Any) -> None:
    """No version makes it now, and what reads rows would take it for that of the machine."""
    rb = ReplayBuffer(3, {"x": {"dtype": dtype}})
    state = rb.__getstate__()
    (field,) = state["layout"].schema.fields
    object.__setattr__(field, "dtype", np.dtype(dtype))
    with pytest.raises(ValueError, match="field 'x': expected the byte order of this machine"):
        ReplayBuffer.__new__(ReplayBuffer).__setstate__(state)


def test_python_ints_are_exact() -> None:
    """The largest and smallest 64-bit integers survive, in lists and alone."""
    rb = ReplayBuffer(8, {"u": {"shape": (), "dtype": "u8"}, "i": {"shape": (), "dtype": "i8"}})
    big = [2**64 - 1, 1, 2**63, 2**53 + 1]
    rb.add(u=big, i=[-(2**63), 2**63 - 1, 2**53 + 1, 0])
    rb.add(u=2**64 - 1, i=-(2**63))
    stored = rb.get_all_transitions()
    assert stored["u"].tolist() == [*big, 2**64 - 1]
    assert stored["i"].tolist() == [-(2**63), 2**63 - 1, 2**53 + 1, 0, -(2**63)]


def test_objects_come_back_themselves() -> None:
    """A field of objects returns the very objects, dicts and lists among them, and no copies."""
    rb = ReplayBuffer(4, {"x": {"shape": (), "dtype": object}})
    things: list[Any] = [{"a": 1}, object(), len, None]
    for thing in things:
        rb.add(x=thing)
    assert all(a is b for a, b in zip(rb.get_all_transitions()["x"], things, strict=True))
    assert rb[0]["x"] is things[0]


def test_unwritten_memory_is_never_seen() -> None:
    """A slot that was never written is neither drawn nor read."""
    rb = ReplayBuffer(100, {"x": {"shape": 500, "dtype": "f8"}}, seed=0)
    rb.add(x=np.ones((2, 500)))
    assert (rb.sample(200)["x"] == 1).all()
    with pytest.raises(IndexError, match="2"):
        rb._encode_sample([2])


def test_rounding_to_a_narrower_float_is_accepted() -> None:
    """Floats and integers go into narrower floats, rounded."""
    rb = ReplayBuffer(4, {"a": {"shape": (), "dtype": "f4"}, "b": {"shape": (), "dtype": "f2"}})
    rb.add(a=0.1, b=0.1)
    rb.add(a=np.float64(1 / 3), b=np.array(1 / 3))
    rb.add(a=np.array([2**24 + 1]), b=[2049])
    stored = rb.get_all_transitions()
    assert stored["a"].tolist() == np.array([0.1, 1 / 3, 2**24 + 1], "f4").tolist()
    assert stored["b"].tolist() == np.array([0.1, 1 / 3, 2049], "f2").tolist()
