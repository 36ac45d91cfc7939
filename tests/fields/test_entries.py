"""Values of ragged fields in all their forms: the same items and counts, or refused by name."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from optional import need

from cpprb_like._fields.axes import Axis
from cpprb_like._fields.entries import Entries, check_counts, check_ranges, read_entries
from cpprb_like._fields.field import Field
from cpprb_like._fields.schema import read_env_dict

Array = npt.NDArray[Any]
Rows = list[Array]

FIELDS = {
    field.name: field
    for field in read_env_dict(
        {
            "ids": {"shape": ("T",), "dtype": "i4"},
            "logp": {"shape": ("T",), "dtype": "f4"},
            "nodes": {"shape": ("N", 3), "dtype": "f4"},
            "edges": {"shape": (2, "E"), "dtype": "i8", "counts": "N"},
            "boxes": {"shape": (2, "E", 3), "dtype": "u1"},
            "flags": {"shape": ("T",), "dtype": "?"},
            "codes": {"shape": ("T",), "dtype": "U3"},
            "times": {"shape": ("T",), "dtype": "M8[s]"},
            "text": {"dtype": str},
        },
        np.float32,
    )
}
MASKED: Any = np.ma.MaskedArray([1, 2], mask=[False, True])
NUMBERS = ["ids", "logp", "nodes", "edges", "boxes"]


def row_of(field: Field, length: int, first: int = 0) -> Array:
    """A row of so many items, whose values count up from ``first`` in C order."""
    shape = tuple(length if axis == field.axis_at else n for axis, n in enumerate(field.shape))
    return np.arange(first, first + int(np.prod(shape))).reshape(shape) % 120


def rows_of(field: Field, lengths: Sequence[int]) -> Rows:
    """Rows of these lengths, of different values."""
    return [row_of(field, length, 7 * place) for place, length in enumerate(lengths)]


def expected(field: Field, rows: Rows) -> tuple[list[Any], list[int]]:
    """The slow, obvious twin: items and counts as lists."""
    items = [
        row.take(item, axis=field.axis_at).tolist()
        for row in rows
        for item in range(row.shape[field.axis_at])
    ]
    return items, [row.shape[field.axis_at] for row in rows]


def assert_entries(field: Field, entries: Entries, rows: Rows) -> None:
    """Entries hold these rows, in dense memory of the declared dtype."""
    items, counts = expected(field, rows)
    assert entries.counts.tolist() == counts
    assert entries.counts.dtype == np.int64
    assert entries.values.tolist() == items
    assert entries.values.shape == (sum(counts), *field.item_shape)
    assert entries.values.dtype == field.dtype
    assert entries.values.flags.c_contiguous


def object_array(values: Sequence[Any]) -> Array:
    """An array of objects with one axis."""
    array = np.empty(len(values), object)
    for place, value in enumerate(values):
        array[place] = value
    return array


def packed(field: Field, rows: Rows) -> tuple[Array, Array]:
    """Values with the axis in its place, and offsets."""
    values = np.concatenate([row_of(field, 0), *rows], axis=field.axis_at)
    lengths = [row.shape[field.axis_at] for row in rows]
    return values, np.cumsum([0, *lengths])


class Jagged:
    """What the library calls of a nested tensor of PyTorch."""

    is_nested = True

    def __init__(self, field: Field, rows: Rows, layout: str = "jagged", gap: int = 0) -> None:
        self.layout = f"torch.{layout}"
        self.rows, self.gap = rows, gap
        shape: list[Any] = [len(rows), *field.shape]
        shape[field.axis_at + 1] = object()
        self.shape = tuple(shape)
        self.packed = packed(field, rows)

    def lengths(self) -> Array | None:
        return np.array([len(row) for row in self.rows]) if self.gap else None

    def values(self) -> Array:
        assert not self.gap
        return self.packed[0]

    def offsets(self) -> Array:
        assert not self.gap
        return self.packed[1]

    def unbind(self) -> tuple[Array, ...]:
        return tuple(self.rows)


class Tensor:
    """An array of another library."""

    def __init__(self, array: Array) -> None:
        self.array = array
        self.ndim, self.shape = array.ndim, array.shape

    def __array__(self, dtype: Any = None, copy: Any = None) -> Array:
        return self.array


def arrow_type(field: Field, *, large: bool = False) -> Any:
    """The type of several rows in Arrow."""
    pa = need("pyarrow")
    kind = pa.from_numpy_dtype(field.dtype)
    for _ in field.shape:
        kind = pa.large_list(kind) if large else pa.list_(kind)
    return kind


def sliced_arrow(field: Field, rows: Rows) -> Any:
    """Rows of Arrow as a part of more rows."""
    pa = need("pyarrow")
    more = [row_of(field, 3, 50), *rows, row_of(field, 1, 60)]
    array = pa.array([row.tolist() for row in more], arrow_type(field))
    return array[1 : len(rows) + 1]


def chunked_arrow(field: Field, rows: Rows) -> Any:
    """Rows of Arrow in two parts."""
    pa = need("pyarrow")
    nested = [row.tolist() for row in rows]
    return pa.chunked_array([nested[:1], nested[1:]], arrow_type(field))


SEVERAL: dict[str, Callable[[Field, Rows], Any]] = {
    "list of arrays": lambda field, rows: rows,
    "arrays of the dtype": lambda field, rows: [row.astype(field.dtype) for row in rows],
    "lists": lambda field, rows: [row.tolist() for row in rows],
    "tuples": lambda field, rows: [tuple(row.tolist()) for row in rows],
    "array of objects": lambda field, rows: object_array(rows),
    "array of lists": lambda field, rows: object_array([row.tolist() for row in rows]),
    "arrays of objects": lambda field, rows: [row.astype(object) for row in rows],
    "Fortran order": lambda field, rows: [np.asfortranarray(row) for row in rows],
    "big endian": lambda field, rows: [
        row.astype(field.dtype.newbyteorder(">" if row.size % 2 else "S")) for row in rows
    ],
    "with steps": lambda field, rows: [np.repeat(row, 2, axis=-1)[..., ::2] for row in rows],
    "several dtypes": lambda field, rows: [
        row.astype(kind) for row, kind in zip(rows, itertools.cycle("bdl"), strict=False)
    ],
    "tensors": lambda field, rows: [Tensor(row) for row in rows],
    "values and offsets": packed,
    "tensors of values and offsets": lambda field, rows: tuple(map(Tensor, packed(field, rows))),
    "narrow offsets": lambda field, rows: (
        packed(field, rows)[0],
        packed(field, rows)[1].astype(np.uint8),
    ),
    "jagged": Jagged,
    "jagged with gaps": lambda field, rows: Jagged(field, rows, gap=1),
    "nested": lambda field, rows: Jagged(field, rows, layout="strided"),
    "Arrow": lambda field, rows: need("pyarrow").array(
        [row.tolist() for row in rows], arrow_type(field)
    ),
    "large Arrow": lambda field, rows: need("pyarrow").array(
        [row.tolist() for row in rows], arrow_type(field, large=True)
    ),
    "sliced Arrow": sliced_arrow,
    "chunked Arrow": chunked_arrow,
}
in_every_form = pytest.mark.parametrize("form", SEVERAL)
of_every_field = pytest.mark.parametrize("name", NUMBERS)


@in_every_form
@given(lengths=st.lists(st.integers(0, 4), min_size=1, max_size=5))
def test_several_rows(form: str, lengths: list[int]) -> None:
    """Rows of any lengths are the same items in every form."""
    for name in NUMBERS:
        field = FIELDS[name]
        if form in ("lists", "tuples", "array of lists") and field.axis_at:
            lengths[0] = max(lengths[0], 1)  # lists without values would be one row: see below
        rows = rows_of(field, lengths)

        entries = read_entries(field, SEVERAL[form](field, rows), 1)

        assert_entries(field, entries, rows)


@in_every_form
@given(lengths=st.lists(st.integers(0, 3), min_size=4, max_size=4), n_envs=st.sampled_from([2, 3]))
def test_a_step_of_each_environment(form: str, lengths: list[int], n_envs: int) -> None:
    """With several environments there is one row of each; other numbers of rows are refused."""
    lengths[0] = 1
    for name in NUMBERS:
        field = FIELDS[name]
        rows = rows_of(field, lengths)

        entries = read_entries(field, SEVERAL[form](field, rows[:n_envs]), n_envs)

        assert_entries(field, entries, rows[:n_envs])
        message = rf"^field '{name}': expected {n_envs} rows.*it has 4 rows"
        with pytest.raises(ValueError, match=message):
            read_entries(field, SEVERAL[form](field, rows), n_envs)


@in_every_form
@given(
    lengths=st.lists(st.integers(0, 3), min_size=6, max_size=6), n_envs=st.sampled_from([1, 2, 3])
)
def test_blocks(form: str, lengths: list[int], n_envs: int) -> None:
    """A list of steps, in any form, is read in the order of time, then of environments."""
    lengths[0] = 1
    for name in NUMBERS:
        field = FIELDS[name]
        rows = rows_of(field, lengths)
        steps = [rows[start : start + n_envs] for start in range(0, 6, n_envs)]

        block = [SEVERAL[form](field, step) for step in steps]

        assert_entries(field, read_entries(field, block, n_envs), rows)
        mixed = [block[0], *steps[1:]]
        assert_entries(field, read_entries(field, mixed, n_envs), rows)


@of_every_field
@pytest.mark.parametrize("length", [0, 1, 3])
def test_dense_arrays(name: str, length: int) -> None:
    """Rows of equal lengths may come as one array, with one axis more, or two."""
    field = FIELDS[name]
    rows = rows_of(field, [length] * 6)
    array = np.stack(rows)

    assert_entries(field, read_entries(field, array, 1), rows)
    assert_entries(field, read_entries(field, array, 6), rows)
    assert_entries(field, read_entries(field, array.reshape(6, 1, *array.shape[1:]), 1), rows)
    assert_entries(field, read_entries(field, array.reshape(3, 2, *array.shape[1:]), 2), rows)
    assert_entries(field, read_entries(field, Tensor(np.asfortranarray(array)), 1), rows)
    assert_entries(field, read_entries(field, array[:0], 1), [])
    for n_envs in (2, 4):
        with pytest.raises(ValueError, match=f"field '{name}': expected {n_envs} rows"):
            read_entries(field, array, n_envs)


@of_every_field
@pytest.mark.parametrize("length", [0, 1, 4])
def test_one_row(name: str, length: int) -> None:
    """One row is an array of any layout, a tensor, nested lists, or an array of Arrow."""
    field = FIELDS[name]
    row = row_of(field, length)
    readonly = row.astype(field.dtype)
    readonly.flags.writeable = False
    forms: list[Any] = [row, row.tolist(), tuple(row.tolist()), Tensor(row), readonly]
    forms += [np.asfortranarray(row), row.astype(object), row.astype(">f8"), list(row)]
    if len(field.shape) > 1:
        forms.append(need("pyarrow").array(row.tolist(), arrow_type(field).value_type))
    else:
        forms.append(need("pyarrow").array(row))

    for value in forms:
        assert_entries(field, read_entries(field, value, 1), [row])
        if length:
            with pytest.raises(ValueError, match=f"field '{name}': expected 2 rows"):
                read_entries(field, value, 2)


def test_values_of_the_declared_dtype_are_not_copied() -> None:
    """A dense row, or dense values with offsets, is used as it is."""
    row = np.arange(5, dtype=np.int32)

    for value in (row, [row], (row, np.array([0, 2, 5]))):
        assert np.shares_memory(read_entries(FIELDS["ids"], value, 1).values, row)


@of_every_field
def test_rows_without_items(name: str) -> None:
    """An empty list is one row without items, and so is an array of shape (0,)."""
    field = FIELDS[name]
    none = row_of(field, 0)
    some = row_of(field, 2)

    value: Any
    for value in ([], (), np.zeros(0), np.zeros(0, object), none, none.tolist()):
        assert_entries(field, read_entries(field, value, 1), [none])
    for value in ([[], some], [np.zeros(0), some], [[], some.tolist()]):
        assert_entries(field, read_entries(field, value, 1), [none, some])
        assert_entries(field, read_entries(field, value, 2), [none, some])
    assert_entries(
        field, read_entries(field, [[[], some], [some, []]], 2), [none, some, some, none]
    )
    with pytest.raises(ValueError, match="it has 0 rows"):
        read_entries(field, [], 2)


def test_lists_without_values() -> None:
    """Lists that hold no value have the fewest axes before those of a row that fit."""
    for name, value, n in (
        ("ids", [[], []], 2),
        ("ids", np.zeros((3, 0)), 3),
        ("ids", [[[]], [[]]], 2),
        ("nodes", [[], []], 2),
        ("nodes", np.zeros((0, 3)), 1),
        ("nodes", [np.zeros((0, 3))] * 2, 2),
        ("edges", [[], []], 1),
        ("edges", [[[], []], [[], []]], 2),
        ("edges", [[], [], []], 3),
        ("boxes", [[], []], 1),
        ("boxes", [[[], []]] * 3, 3),
    ):
        entries = read_entries(FIELDS[name], value, 1)
        assert entries.counts.tolist() == [0] * n, (name, value)
        assert entries.values.shape == (0, *FIELDS[name].item_shape)
    assert len(read_entries(FIELDS["ids"], [[[], []]], 2).counts) == 2
    assert len(read_entries(FIELDS["nodes"], [[[], []], [[], []]], 2).counts) == 4
    assert len(read_entries(FIELDS["ids"], np.zeros((0, 4)), 1).counts) == 0
    assert len(read_entries(FIELDS["ids"], np.zeros((0, 4), object), 1).counts) == 0


def test_a_tuple_of_two_arrays() -> None:
    """The axes of two arrays decide what they are, never their values."""
    ids, offsets = np.arange(4), np.array([0, 1, 4])

    assert read_entries(FIELDS["ids"], (ids, offsets), 1).counts.tolist() == [1, 3]
    assert read_entries(FIELDS["ids"], [ids, offsets], 1).counts.tolist() == [4, 3]
    assert read_entries(FIELDS["ids"], (ids.tolist(), offsets), 1).counts.tolist() == [4, 3]
    assert read_entries(FIELDS["ids"], (ids, offsets, ids), 1).counts.tolist() == [4, 3, 4]
    assert read_entries(FIELDS["ids"], (np.int8(1), np.int8(2)), 1).counts.tolist() == [2]
    assert read_entries(FIELDS["edges"], (ids, ids), 1).counts.tolist() == [4]
    both = (np.stack([ids, ids]), np.zeros((2, 1)))
    assert read_entries(FIELDS["edges"], both, 1).counts.tolist() == [4, 1]
    for wrong in ([1, 4], [0, 3], [0, 5], [0, 3, 2, 4], [], [0.0, 4.0], [[0, 4]]):
        with pytest.raises(ValueError, match=r"field 'ids': .*offsets .* end at 4|row 1 is"):
            read_entries(FIELDS["ids"], (ids, np.array(wrong)), 1)
    with pytest.raises(ValueError, match=r"field 'edges': .*row 0 is int64 of shape"):
        read_entries(FIELDS["edges"], (np.zeros((4, 2), "i8"), offsets), 1)
    with pytest.raises(ValueError, match="two rows come in a list"):
        read_entries(FIELDS["ids"], (ids, ids + 5), 1)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("ids", 5, "int32 of shape ('T',), or a list of such rows, got int"),
        ("ids", np.int32(5), "got int32 of shape ()"),
        ("ids", None, "got NoneType"),
        ("ids", "abc", "got str"),
        ("ids", {"a": 1}, "got dict"),
        ("ids", [[[[1]]]], "got list: expected 1 to 3 axes, got 4"),
        ("ids", np.zeros((2, 2, 2)), "got float64 of shape (2, 2, 2)"),
        ("ids", [1, [2, 3]], "row 0: "),
        ("ids", [[1, 2], 3], "row 1 is int"),
        ("ids", [[1, 2], [[3]]], "row 1 is int64 of shape (1, 1)"),
        ("ids", [[1, 2], "ab"], "row 1 is str"),
        ("ids", [np.zeros(2), np.zeros((2, 2))], "row 1 is float64 of shape (2, 2)"),
        ("ids", [1, 2.5], "2.5 is no integer"),
        ("ids", [[1], [2.5]], "2.5 is no integer"),
        ("ids", [np.zeros(1), np.array([2.5])], "int32 cannot hold"),
        ("ids", [2**31], "int32 cannot hold"),
        ("ids", [[1], [2**31]], "int32 cannot hold"),
        ("ids", [np.array([1]), np.array([np.nan])], "int32 cannot hold"),
        ("ids", ["a", "b"], "'a'"),
        ("ids", MASKED, "masked"),
        ("ids", [[1], MASKED], "masked"),
        ("ids", [MASKED], "masked"),
        ("ids", [[[1], [2]], [[3]]], "step 0, list: it has 2 rows"),
        ("logp", [1e300], "float32 cannot hold"),
        ("logp", [np.array([1e300]), np.array([1.0])], "float32 cannot hold"),
        ("logp", [1j], "float32 cannot hold"),
        ("flags", [[True], [2]], "bool cannot hold"),
        ("codes", [["abc"], ["abcd"]], "<U3 cannot hold"),
        ("nodes", [1, 2, 3], "float32 of shape ('N', 3), or a list of such rows, got list: "),
        ("nodes", np.zeros((4, 2)), "got float64 of shape (4, 2)"),
        ("nodes", [np.zeros((2, 3)), np.zeros((2, 4))], "row 1 is float64 of shape (2, 4)"),
        ("nodes", [np.zeros((2, 4)), np.zeros((2, 4))], "row 0 is float64 of shape (2, 4)"),
        ("nodes", np.zeros((0, 4)), "got float64 of shape (0, 4)"),
        ("edges", np.zeros((3, 2)), "int64 of shape (2, 'E'), or a list of such rows, got float64"),
        ("edges", [[0, 1], [1]], "row 0: "),
        ("text", b"abc", "field 'text': expected a str, or a list of such rows, got bytes"),
        ("text", ["a", b"abc"], "row 1 is bytes; bytes.decode makes a str of it"),
        ("text", 5, "row 0 is int"),
        ("text", [["a"], "b"], "row 0 is list"),
        ("text", [["a", "b"]], "expected 1 rows in each step"),
        ("text", ["\ud800"], "surrogates not allowed"),
        ("text", np.array([1.5]), "row 0 is float"),
    ],
)
def test_refused_values(name: str, value: Any, words: str) -> None:
    """A value that is no row of the field is refused; the message names it, and says what came."""
    with pytest.raises(ValueError, match=f"^field '{name}': expected ") as caught:
        read_entries(FIELDS[name], value, 1)
    assert words in str(caught.value)


def test_casts_are_those_of_fixed_fields() -> None:
    """Each number is converted, or refused, as one for a field of fixed shape."""
    values: list[Any] = [
        0,
        1,
        -1,
        0.5,
        2.0,
        127,
        128,
        255,
        256,
        2**31,
        2**53 + 1,
        2**63,
        -(2**63),
        1e30,
    ]
    values += [np.nan, np.inf, True, 1j, 1 + 0j, "a", None]
    for dtype in ("?", "i1", "u4", "i8", "u8", "f2", "f8", "F", "U1"):
        one, two, ragged = read_env_dict(
            {
                "one": {"shape": 1, "dtype": dtype},
                "two": {"shape": 2, "dtype": dtype},
                "ragged": {"shape": ("T",), "dtype": dtype},
            },
            None,
        )
        for pair in itertools.product(values, values):
            rows = [np.array([value]) for value in pair]
            for wanted, value in (
                (converted(two, list(pair)), list(pair)),
                (converted(two, np.array(pair)), np.array(pair)),
                (converted(one, *rows), rows),
            ):
                if wanted is None:
                    with pytest.raises(ValueError, match=r"field 'ragged': expected "):
                        read_entries(ragged, value, 1)
                else:
                    np.testing.assert_array_equal(read_entries(ragged, value, 1).values, wanted)


def converted(field: Field, *values: Any) -> Array | None:
    """The values as a field of fixed shape holds them; None if it refuses one."""
    try:
        return np.concatenate([field.convert(value, 1).ravel() for value in values])
    except ValueError:
        return None


def test_numbers_of_rows_keep_their_value_beside_other_dtypes() -> None:
    """Rows are cast one by one if their dtypes differ: integers do not become floats in between."""
    rows = [np.array([2**62 + 1]), np.array([0.0]), np.array([2**63], np.uint64)]
    (field,) = read_env_dict({"a": {"shape": ("T",), "dtype": "u8"}}, None)

    assert read_entries(field, rows, 1).values.tolist() == [2**62 + 1, 0, 2**63]
    assert read_entries(field, [row.tolist() for row in rows], 1).values.tolist() == [
        2**62 + 1,
        0,
        2**63,
    ]


def test_other_dtypes() -> None:
    """Bools, texts of one size, and times; NaN is a value as any other."""
    assert read_entries(FIELDS["flags"], [[1, 0], [True]], 1).values.tolist() == [True, False, True]
    assert read_entries(FIELDS["codes"], ["abc", "d"], 1).values.tolist() == ["abc", "d"]
    assert read_entries(FIELDS["codes"], [["abc"], []], 1).counts.tolist() == [1, 0]
    days = np.array(["2026-01-02", "NaT"], "M8[D]")
    times = read_entries(FIELDS["times"], [days[:1], days[1:]], 1).values
    np.testing.assert_array_equal(times, days)
    assert np.isnan(read_entries(FIELDS["logp"], [[np.nan], [1.0]], 1).values[0])


def test_the_given_value_is_not_changed() -> None:
    """Lists and arrays are as they were, also after a value that is refused."""
    rows = [np.arange(3.0), np.arange(2.0), [1, 2]]
    for value in (rows, [*rows, "a"]):
        before = repr(value)
        with contextlib.suppress(ValueError):
            read_entries(FIELDS["logp"], value, 1)
        assert repr(value) == before


# ------------------------------------------------------------------ texts


TEXTS = ["", "a", "héllo", "日本", "a\0b", "\U0001f600"]


@given(texts=st.lists(st.one_of(st.sampled_from(TEXTS), st.text(max_size=5)), max_size=6))
def test_texts(texts: list[str]) -> None:
    """Texts are stored as the bytes of UTF-8, whatever holds them."""
    texts = [text.encode(errors="ignore").decode() for text in texts]
    encoded = [text.encode() for text in texts]
    string = getattr(np.dtypes, "StringDType", None)
    forms: list[Any] = [texts, tuple(texts), object_array(texts)]
    forms += [[np.str_(text) for text in texts], need("pyarrow").array(texts, "string")]
    forms += [np.array(texts, string())] if string is not None else []
    forms += [] if any(text.endswith("\0") for text in texts) else [np.array(texts, "U9")]

    for value in forms:
        entries = read_entries(FIELDS["text"], value, 1)
        assert entries.values.tobytes() == b"".join(encoded)
        assert entries.values.dtype == np.uint8
        assert entries.values.ndim == 1
        assert entries.counts.tolist() == list(map(len, encoded))
        if len(texts) > 1:
            entries = read_entries(FIELDS["text"], value, len(texts))
            assert entries.counts.tolist() == list(map(len, encoded))


def test_texts_of_several_environments() -> None:
    """A text is one row; a block is a list of steps, or an array with two axes."""
    field = FIELDS["text"]

    assert bytes(read_entries(field, "héllo", 1).values).decode() == "héllo"
    assert read_entries(field, np.array("abc"), 1).counts.tolist() == [3]
    assert read_entries(field, [], 1).counts.tolist() == []
    for block in ([["a", "bc"], ["", "d"]], np.array([["a", "bc"], ["", "d"]])):
        entries = read_entries(field, block, 2)
        assert (bytes(entries.values), entries.counts.tolist()) == (b"abcd", [1, 2, 0, 1])
    for wrong in ("ab", ["a"], [["a", "b"], ["c"]], ["a", "b", "c", "d"], []):
        with pytest.raises(ValueError, match="field 'text': expected 2 rows"):
            read_entries(field, wrong, 2)


# ------------------------------------------------------------------ other libraries


def test_lists_of_arrow() -> None:
    """Lists of a fixed size, views, blocks and slices are read; nulls and other shapes are not."""
    pa = need("pyarrow")
    nodes, ids, edges = FIELDS["nodes"], FIELDS["ids"], FIELDS["edges"]
    rows = rows_of(nodes, [2, 0, 1])
    kind = pa.list_(pa.list_(pa.float64(), 3))
    assert_entries(nodes, read_entries(nodes, pa.array([r.tolist() for r in rows], kind), 1), rows)
    equal = pa.array([[1, 2], [3, 4]], pa.list_(pa.int8(), 2))
    assert read_entries(ids, equal, 1).counts.tolist() == [2, 2]
    assert read_entries(ids, equal[1:], 1).values.tolist() == [3, 4]
    view = pa.array([[1, 2], [], [3]], pa.list_view(pa.int16()))
    assert read_entries(ids, view[1:], 1).counts.tolist() == [0, 1]
    block = pa.array([[[1], [2, 3]], [[], [4]]])
    assert read_entries(ids, block, 2).counts.tolist() == [1, 2, 0, 1]
    assert read_entries(ids, pa.array([], pa.list_(pa.int32())), 1).counts.tolist() == []
    assert read_entries(edges, pa.array([], pa.list_(pa.list_(pa.int32()))), 1).counts.size == 0
    assert read_entries(ids, pa.array([1, 2]), 1).counts.tolist() == [2]
    for value, words in (
        (pa.array([[1], None]), "1 nulls"),
        (pa.array([[1, None]]), "1 nulls"),
        (pa.array([1, None]), "1 nulls"),
        (pa.array([[[[1]]]]), "expected 1 to 3 axes, got 4"),
        (pa.array([["a"]]), "got ListArray"),
        (pa.array([[[1], [2]]]), "expected 1 rows in each step"),
    ):
        with pytest.raises(ValueError, match=f"^field 'ids': expected int32.*{words}"):
            read_entries(ids, value, 1)
    with pytest.raises(ValueError, match="1 nulls"):
        read_entries(FIELDS["logp"], [[1.0], pa.array([1.0, None])], 1)
    with pytest.raises(ValueError, match=r"field 'text': .*row 1 is NoneType"):
        read_entries(FIELDS["text"], pa.array(["a", None]), 1)
    with pytest.raises(ValueError, match=r"field 'nodes': .*declared length of axis 1"):
        read_entries(nodes, pa.array([[[1.0, 2.0]]]), 1)
    for wrong in ([[[1, 2], [3]]], [[[1, 2]]], [[[1], [2], [3]]]):
        with pytest.raises(ValueError, match=r"field 'edges': .*declared length of axis"):
            read_entries(edges, pa.array(wrong), 1)


def test_nested_tensors_that_differ_in_another_axis() -> None:
    """A nested tensor whose lengths differ along an axis of fixed length is refused."""
    value = Jagged(FIELDS["nodes"], rows_of(FIELDS["nodes"], [3, 3]))
    value.shape = (2, 3, object())
    with pytest.raises(ValueError, match=r"field 'nodes': .*a nested tensor: .*along axis 2"):
        read_entries(FIELDS["nodes"], value, 1)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_tensors_of_pytorch() -> None:
    """Tensors, also of bfloat16 and with gradients, and nested tensors of both layouts."""
    torch = need("torch")
    ids, logp, nodes, edges = (FIELDS[name] for name in ("ids", "logp", "nodes", "edges"))
    rows = [torch.arange(3), torch.arange(0), torch.arange(5)]
    plain = [row.numpy() for row in rows]
    jagged = torch.nested.nested_tensor(rows, layout=torch.jagged)
    strided = torch.nested.nested_tensor(rows)
    for value in (rows, jagged, strided, (jagged.values(), jagged.offsets())):
        assert_entries(ids, read_entries(ids, value, 1), plain)
        assert_entries(ids, read_entries(ids, value, 3), plain)
        assert_entries(ids, read_entries(ids, [value, value], 3), [*plain, *plain])
    wanted = torch.ones(2, dtype=torch.bfloat16, requires_grad=True)
    assert read_entries(logp, wanted, 1).values.tolist() == [1, 1]
    assert read_entries(logp, [wanted, wanted], 1).counts.tolist() == [2, 2]
    grad = torch.nested.nested_tensor([wanted, wanted], layout=torch.jagged, requires_grad=True)
    assert read_entries(logp, grad, 1).counts.tolist() == [2, 2]
    parts = torch.nested.narrow(
        torch.arange(20).reshape(2, 10),
        1,
        torch.tensor([1, 2]),
        torch.tensor([3, 4]),
        layout=torch.jagged,
    )
    assert read_entries(ids, parts, 1).values.tolist() == [1, 2, 3, 12, 13, 14, 15]
    flat = torch.arange(12.0).reshape(4, 3)
    one = torch.nested.nested_tensor_from_jagged(flat, torch.tensor([0, 1, 4]))
    assert_entries(nodes, read_entries(nodes, one, 1), [flat[:1].numpy(), flat[1:].numpy()])
    with pytest.raises(ValueError, match=r"field 'nodes': .*along axis 2"):
        read_entries(nodes, one.transpose(1, 2), 1)
    pairs = torch.arange(12).reshape(2, 6)
    two = torch.nested.nested_tensor_from_jagged(pairs, torch.tensor([0, 2, 6]), jagged_dim=2)
    assert_entries(edges, read_entries(edges, two, 1), [pairs[:, :2].numpy(), pairs[:, 2:].numpy()])
    assert read_entries(edges, (pairs[0], pairs[1]), 1).counts.tolist() == [6]
    wrong = torch.nested.nested_tensor_from_jagged(torch.arange(6), torch.tensor([0, 2, 5]))
    with pytest.raises(ValueError, match=r"field 'ids': .*offsets"):
        read_entries(ids, wrong, 1)


def test_arrays_of_jax() -> None:
    """Arrays of JAX are rows, values and offsets."""
    jnp = need("jax").numpy
    ids, logp = FIELDS["ids"], FIELDS["logp"]
    assert read_entries(ids, jnp.arange(3), 1).counts.tolist() == [3]
    assert read_entries(ids, [jnp.arange(3), jnp.arange(0)], 1).counts.tolist() == [3, 0]
    assert read_entries(ids, (jnp.arange(3), jnp.array([0, 3])), 1).counts.tolist() == [3]
    assert read_entries(ids, jnp.ones((2, 3), "int8"), 2).counts.tolist() == [3, 3]
    assert read_entries(logp, jnp.ones(2, jnp.bfloat16), 1).values.tolist() == [1, 1]


# ------------------------------------------------------------------ checks


def entries_of(*counts: int) -> Entries:
    """Entries of one value an item."""
    return Entries(np.zeros(sum(counts), np.int32), np.array(counts, np.int64))


def test_fields_of_an_axis_agree() -> None:
    """The lengths of all fields of an axis are the same in each row."""
    axes = (Axis("T", 9, ("ids", "logp")), Axis("N", 9, ("nodes",)), Axis("E", 9, ("edges",)))
    entries = {"ids": entries_of(1, 2), "logp": entries_of(1, 2), "nodes": entries_of(3, 0)}

    found = check_counts(entries, axes)

    assert {axis: counts.tolist() for axis, counts in found.items()} == {"T": [1, 2], "N": [3, 0]}
    with pytest.raises(
        ValueError,
        match=r"^fields of axis 'T' disagree on the number of items: in row 1 'ids' has 2, "
        r"'logp' has 0$",
    ):
        check_counts(entries | {"logp": entries_of(1, 0)}, axes)
    with pytest.raises(ValueError, match=r"number of steps: 'ids' has 2, 'logp' has 1$"):
        check_counts(entries | {"logp": entries_of(1)}, axes)


@given(
    counts=st.lists(st.integers(0, 3), min_size=1, max_size=5),
    nodes=st.lists(st.integers(0, 130), min_size=5, max_size=5),
    dtype=st.sampled_from(["i1", "u1", "i8", "u8"]),
    inner=st.sampled_from([(), (2,), (2, 3)]),
    data=st.data(),
)
def test_values_number_items_of_their_row(
    counts: list[int], nodes: list[int], dtype: str, inner: tuple[int, ...], data: st.DataObject
) -> None:
    """The first value that numbers no item of its row is refused, with its row."""
    shape = (sum(counts), *inner)
    values = np.zeros(shape, dtype)
    info = np.iinfo(dtype)
    near = st.one_of(st.sampled_from([0, 1, -1, info.min, info.max]), st.integers(0, 127))
    near = near.filter(lambda value: info.min <= value <= info.max)
    for place in range(values.size):
        values.flat[place] = data.draw(near)
    rows = np.repeat(np.arange(len(counts)), counts)
    wrong = [
        (int(row), int(value))
        for row, item in zip(rows, values.reshape(len(rows), int(np.prod(inner))), strict=True)
        for value in item.tolist()
        if not 0 <= value < nodes[row]
    ]
    entries = Entries(values, np.array(counts, np.int64))
    limits = np.array(nodes[: len(counts)], np.int64)

    if not wrong:
        check_ranges(FIELDS["edges"], entries, limits)
        return
    with pytest.raises(ValueError, match=r"^field 'edges': expected ") as caught:
        check_ranges(FIELDS["edges"], entries, limits)
    row, value = wrong[0]
    assert f"row {row} has {nodes[row]} items of axis 'N', got {value}" in str(caught.value)
