"""Random schemas, random values of any dtype, and the many ways to hand values over."""

from __future__ import annotations

import array
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

Array = npt.NDArray[Any]
Shape = tuple[int, ...]
EnvDict = dict[str, Any]

NESTED = np.dtype([("pos", "<f4", (2,)), ("inner", [("flag", "?"), ("name", "U3")])])
PADDED = np.dtype([("a", "i1"), ("b", "f8")], align=True)

PLAIN_DTYPES = ["?", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8"]
DTYPES: list[Any] = [
    *PLAIN_DTYPES,
    "g",
    "F",
    "D",
    "G",
    ">i2",
    ">u8",
    ">f4",
    ">f8",
    ">c8",
    "M8[s]",
    "M8[ns]",
    "m8[us]",
    "U5",
    ">U2",
    "S3",
    "V6",
    [("x", "f4"), ("y", ">i2", (2,))],
    NESTED,
    PADDED,
    "O",
]
SHAPES: list[Shape] = [(), (1,), (3,), (2, 3), (0,), (2, 0), (1, 1), (50,), (5, 7, 4), (33, 9)]
NAMES = ["obs", "act", "rew", "x", "a b", "obs/image", "class", "0", "", "größe", "self", "out"]
END_NAMES = ["terminated", "truncated", "done"]
END_DTYPES = ["?", "f4", "i1", "u8", ">f8", "f2"]
# Those of cpprb's files: numbers, texts and bytes.
FILE_DTYPES = [d for d in DTYPES if np.dtype(d).kind in "biufcSUV" and np.dtype(d).names is None]


# ---- values ------------------------------------------------------------------------------


def random_array(rng: np.random.Generator, dtype: np.dtype[Any], shape: Shape) -> Array:
    """Values of every sign and size that ``dtype`` holds, with its special ones among them."""
    out = np.zeros(shape, dtype)
    if dtype.names is not None:
        for name in dtype.names:
            part = dtype[name]
            inner = part.shape
            out[name] = random_array(rng, part.base, shape + inner)
    elif dtype.kind == "b":
        out[...] = rng.integers(0, 2, shape)
    elif dtype.kind in "iu":
        info = np.iinfo(dtype)
        out[...] = rng.integers(info.min, info.max, shape, dtype.newbyteorder("="), endpoint=True)
    elif dtype.kind == "f":
        out[...] = _random_floats(rng, shape)
    elif dtype.kind == "c":
        out.real = _random_floats(rng, shape)
        out.imag = _random_floats(rng, shape)
    elif dtype.kind in "mM":
        out[...] = rng.integers(-(10**6), 10**6, shape).astype(dtype.str[1:])
        if out.size:
            out.reshape(-1)[0] = rng.choice([out.reshape(-1)[0], np.array("NaT", dtype)[()]])
    else:
        out[...] = rng.choice(_words(rng, dtype), shape)
    return out


def _words(rng: np.random.Generator, dtype: np.dtype[Any]) -> Array:
    """Eight texts, byte strings or objects to choose from."""
    words = np.zeros(8, dtype)
    for i in range(words.size):
        if dtype.kind == "U":
            length = rng.integers(0, dtype.itemsize // 4 + 1)
            words[i] = "".join(rng.choice(list("abzé字"), length))
        elif dtype.kind == "S":
            words[i] = bytes(
                rng.choice(list(b"abz0 "), rng.integers(0, dtype.itemsize + 1)).tolist()
            )
        elif dtype.kind == "V":
            words[i] = rng.bytes(dtype.itemsize)
        else:
            words[i] = [f"text {rng.integers(99)}", float(rng.integers(99)), None][i % 3]
    return words


def _random_floats(rng: np.random.Generator, shape: Shape) -> Array:
    values = rng.normal(size=shape).astype(np.float16)  # exact in every wider float
    special = np.array([np.nan, np.inf, -np.inf, -0.0, 0.0], np.float16)
    return np.where(rng.random(shape) < 0.1, rng.choice(special, shape), values)


# ---- comparison --------------------------------------------------------------------------


def same(expected: Array, actual: Array) -> bool:
    """Whether both hold the same dtype, shape and bytes. Padding may differ."""
    if expected.dtype != actual.dtype or expected.shape != actual.shape:
        return False
    if expected.dtype.byteorder != actual.dtype.byteorder:
        return False
    if expected.dtype.names is not None:
        return all(same(expected[name], actual[name]) for name in expected.dtype.names)
    if expected.dtype.kind == "O":
        pairs = zip(expected.reshape(-1), actual.reshape(-1), strict=True)
        return all(x is y or (type(x) is type(y) and x == y) for x, y in pairs)
    if expected.dtype.char in "gG":
        parts = [(expected.real, actual.real), (expected.imag, actual.imag)]
        return all(
            np.array_equal(x, y, equal_nan=True) and np.array_equal(np.signbit(x), np.signbit(y))
            for x, y in parts
        )
    return expected.tobytes() == actual.tobytes()


def assert_same(expected: Array, actual: Array, what: str) -> None:
    """Fail with both arrays in the message unless they are the same byte for byte."""
    assert same(expected, actual), (
        f"{what}: expected {expected.dtype} {expected.shape} {expected!r}, "
        f"got {actual.dtype} {actual.shape} {actual!r}"
    )


# ---- disguises: other ways to hand over the same values --------------------------------------


class Tagged(np.ndarray[Any, Any]):
    """A subclass of ndarray that does nothing else."""


class Wrapped:
    """An object that only NumPy's array protocol can read."""

    def __init__(self, value: Array) -> None:
        self._value = value

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return self._value if dtype is None else self._value.astype(dtype)


def _strided(value: Array) -> Array:
    wide = np.zeros((*value.shape[:-1], 2 * value.shape[-1] + 1), value.dtype)
    wide[..., 1::2] = value
    return wide[..., 1::2]


def _backwards(value: Array) -> Array:
    return np.ascontiguousarray(value[::-1])[::-1]


def _read_only(value: Array) -> Array:
    value = value.copy()
    value.flags.writeable = False
    return value


def _unaligned(value: Array) -> Array:
    raw = np.zeros(value.nbytes + 1, np.uint8)
    odd = raw[1:].view(value.dtype).reshape(value.shape)
    odd[...] = value
    return odd


def _record(value: Array) -> Array:
    inside = np.zeros(value.shape, [("pad", "i1"), ("value", value.dtype)])
    inside["value"] = value
    return inside["value"]


DISGUISES = [
    "plain",
    "strided",
    "backwards",
    "read-only",
    "swapped",
    "fortran",
    "subclass",
    "nested lists",
    "list of rows",
    "array protocol",
    "unaligned",
    "field of a record",
    "memoryview",
    "array.array",
    "wider",
]


def disguise(value: Array, how: str) -> Any:
    """``value`` in another form that means the same, or as it is where that form does not exist."""
    dtype = value.dtype
    simple = dtype.kind in "biufc" and dtype.char not in "gG"
    if dtype.kind == "O" and how in ("nested lists", "list of rows"):
        return value  # what is in such a list is a value itself
    if how == "strided" and value.ndim:
        return _strided(value)
    if how == "backwards" and value.ndim:
        return _backwards(value)
    if how == "read-only":
        return _read_only(value)
    if how == "swapped" and dtype.kind in "iufcmMU":
        return value.astype(dtype.newbyteorder())
    if how == "fortran" and value.ndim:
        return np.asfortranarray(value)
    if how == "subclass":
        return value.copy().view(Tagged)
    if how == "nested lists" and dtype.kind in "biufcUS" and value.size:
        return value.tolist()
    if how == "list of rows" and value.ndim and value.size:
        return list(value)
    if how == "array protocol" and dtype.kind != "O":  # such an object would be a value itself
        return Wrapped(value)
    if how == "unaligned" and dtype.kind in "iufc" and value.size:
        return _unaligned(value)
    if how == "field of a record" and simple:
        return _record(value)
    if how == "memoryview" and simple and dtype.isnative and dtype.char not in "eFDG":
        return memoryview(np.ascontiguousarray(value).reshape(value.shape))  # type: ignore[arg-type,unused-ignore]
    if how == "array.array" and simple and value.ndim == 1 and value.size:
        if not dtype.isnative or dtype.char not in "bBhHiIlLqQfd":
            return value
        return array.array(dtype.char, value.tobytes())
    if how == "wider" and simple:
        wider = {"b": "?", "i": "i8", "u": "u8", "f": "f8", "c": "c16"}[dtype.kind]
        return value.astype(wider)
    return value


# ---- schemas -----------------------------------------------------------------------------


@st.composite
def env_dicts(draw: st.DrawFn) -> EnvDict:
    """Up to four fields of any name, shape and dtype, and perhaps fields that end episodes."""
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=4, unique=True))
    ends = draw(st.lists(st.sampled_from(END_NAMES), max_size=2, unique=True))
    schema: EnvDict = {}
    for name in names:
        shape = draw(st.sampled_from(SHAPES))
        declared: Any = shape[0] if len(shape) == 1 and draw(st.booleans()) else shape
        schema[name] = {"shape": declared, "dtype": draw(st.sampled_from(DTYPES))}
    for name in ends:
        shape = draw(st.sampled_from([(), (1,)]))
        schema[name] = {"shape": shape, "dtype": draw(st.sampled_from(END_DTYPES))}
    return schema


def field_shape(spec: dict[str, Any]) -> Shape:
    """Shape of one step of a declared field."""
    shape = spec.get("shape", 1)
    return (shape,) if isinstance(shape, int) else tuple(shape)


def field_dtype(spec: dict[str, Any]) -> np.dtype[Any]:
    """Dtype of a declared field, in the byte order of this machine."""
    dtype: np.dtype[Any] = np.dtype(spec.get("dtype", np.float32))
    return dtype.newbyteorder("=")


def random_rows(
    rng: np.random.Generator, schema: EnvDict, n: int, *, p_end: float = 0.15
) -> list[dict[str, Array]]:
    """``n`` steps that fit ``schema``; fields that end episodes are rarely set."""
    rows = []
    for _ in range(n):
        row = {}
        for name, spec in schema.items():
            shape, dtype = field_shape(spec), field_dtype(spec)
            if name in END_NAMES:
                row[name] = np.full(shape, rng.random() < p_end, dtype)
            else:
                row[name] = random_array(rng, dtype, shape)
        rows.append(row)
    return rows


def stack(rows: Sequence[dict[str, Array]], schema: EnvDict) -> dict[str, Array]:
    """The columns of ``rows``: leading axis one step each, also when there are none."""
    columns = {}
    for name, spec in schema.items():
        column = np.zeros((len(rows), *field_shape(spec)), field_dtype(spec))
        for i, row in enumerate(rows):
            column[i, ...] = row[name]
        columns[name] = column
    return columns
