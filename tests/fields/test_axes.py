"""Named axes: what a declaration means, what it costs, and what is refused."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from cpprb_like import ReplayBuffer
from cpprb_like._fields.axes import Axis
from cpprb_like._fields.checked_options import CheckedOptions
from cpprb_like._fields.field import Field
from cpprb_like._fields.layout import CACHE_LINE, Layout
from cpprb_like._fields.schema import Stack, read_columns
from cpprb_like._files import arenas
from cpprb_like._files.json_codec import from_json, to_json
from cpprb_like._machine import machine_memory
from cpprb_like.typing import FieldSpec
from cpprb_like.views import NStep

TOKENS: dict[str, FieldSpec] = {
    "ids": {"shape": ("T",), "dtype": "i4"},
    "logp": {"shape": ("T",)},
    "rew": {"shape": ()},
}
GRAPH: dict[str, FieldSpec] = {
    "nodes": {"shape": ("N", 11)},
    "edges": {"shape": (2, "E"), "dtype": "i8", "counts": "N"},
    "weight": {"shape": ("E",)},
    "agent": {"shape": (), "dtype": "i8", "counts": "N"},
    "title": {"dtype": str},
    "done": {"shape": (), "dtype": bool},
}
ROOMS = {"N": 5000, "E": 7000, "title": 1000}
T: FieldSpec = {"shape": ("T",)}
IDENTITY = "9a21e9df89ad83b78d5ae2f28ee589db5ec688186f4a2efaabe864f45bf14010"  # of version 10


def read(env_dict: dict[str, FieldSpec], size: int = 100, **options: Any) -> CheckedOptions:
    """Options of a buffer that is not made."""
    return CheckedOptions.read(size, env_dict, **options)


# ---- what is declared ---------------------------------------------------------------------


def test_a_name_in_a_shape_is_an_axis() -> None:
    """Shape, items and declaration of each field follow from the place of the name."""
    fields = {field.name: field for field in read(GRAPH, room=ROOMS).schema.declared}

    nodes, edges, title = fields["nodes"], fields["edges"], fields["title"]
    assert (nodes.axis, nodes.axis_at, nodes.shape, nodes.item_shape) == ("N", 0, (0, 11), (11,))
    assert (edges.axis, edges.axis_at, edges.shape, edges.item_shape) == ("E", 1, (2, 0), (2,))
    assert (nodes.item_nbytes, edges.item_nbytes) == (44, 16)
    assert (nodes.nbytes, edges.nbytes, title.nbytes) == (0, 0, 0)
    assert nodes.declared_shape == ("N", 11)
    assert edges.declared_shape == (2, "E")
    assert (edges.counts, fields["agent"].counts, nodes.counts) == ("N", "N", None)
    assert (title.dtype, title.axis, title.is_text) == (np.dtype(np.uint8), "title", True)
    assert (title.declared_shape, title.declared_dtype) == ((), "str")
    assert not fields["agent"].is_ragged
    assert fields["done"] == Field("done", np.dtype(bool), ())


def test_axes_are_in_order_of_their_first_use() -> None:
    """Each has its room and its fields; a hidden field for each follows the others."""
    schema = read(GRAPH, room=dict(reversed(ROOMS.items()))).schema
    assert schema.axes == (
        Axis("N", 5000, ("nodes",)),
        Axis("E", 7000, ("edges", "weight")),
        Axis("title", 1000, ("title",)),
    )
    assert schema.rooms == ROOMS
    assert [field.name for field in schema.fields] == [
        *GRAPH,
        "entry of N",
        "entry of E",
        "entry of title",
    ]
    assert all(field.is_entry and field.shape == (2,) for field in schema.fields[len(GRAPH) :])


def test_names_leave_entries_out() -> None:
    """Nothing that a user gives or gets has the name of an entry."""
    rb = ReplayBuffer(9, GRAPH, room=ROOMS)
    assert rb.schema.names == tuple(GRAPH)
    rb.schema.check_names(GRAPH)
    with pytest.raises(TypeError, match="unknown fields"):
        rb.schema.check_names([*GRAPH, "entry of N"])
    with pytest.raises(ValueError, match="'entry of N'") as caught:
        read_columns(["entry of N"], rb.ring.columns)
    assert "entry of E" not in str(caught.value)
    assert "entry" not in repr(rb)
    assert rb.schema.end_fields() == [(5, -1, 3, 0)]


@pytest.mark.parametrize(("room", "dtype"), [(1, "u4"), (2**31 - 1, "u4"), (2**31, "u8")])
def test_entries_are_as_narrow_as_the_room_allows(room: int, dtype: str) -> None:
    """Places are below twice the room; the top bit of a count is kept free."""
    (axis,) = read({"x": T}, room={"T": room}).schema.axes
    assert axis.entry_dtype == np.dtype(dtype)
    assert 2 * room - 1 <= np.iinfo(dtype).max
    assert room < 2 ** (8 * axis.entry_dtype.itemsize - 1)


def test_columns_know_their_axis() -> None:
    """Compiled code reads it there; a column of a named axis takes no bytes of a row."""
    columns = {column.name: column for column in Layout.of(read(GRAPH, room=ROOMS)).columns()}
    assert {name: column.axis for name, column in columns.items()} == {
        "nodes": "N",
        "edges": "E",
        "weight": "E",
        "agent": "",
        "title": "title",
        "done": "",
        "entry of N": "N",
        "entry of E": "E",
        "entry of title": "title",
    }
    assert [name for name, column in columns.items() if column.is_entry] == [
        "entry of N",
        "entry of E",
        "entry of title",
    ]
    assert (columns["edges"].nbytes, columns["entry of E"].nbytes) == (0, 8)


@pytest.mark.parametrize("text", [str, np.str_], ids=repr)
def test_spellings_of_a_text(text: Any) -> None:
    """Only the type itself is a text of any length; ``"U"`` may be a size that was forgotten."""
    assert read({"x": {"dtype": text, "shape": ()}}, room={"x": 9}).schema.fields[0].is_text
    with pytest.raises(ValueError, match="expected a dtype with a size"):
        read({"x": {"dtype": "U"}}, room={"x": 9})


def test_the_default_dtype_is_that_of_items() -> None:
    """As for other fields; an item may have the shape of a dtype."""
    declared: dict[str, FieldSpec] = {"x": T, "y": {"shape": ("T",), "dtype": "3i2"}}
    x, y = read(declared, room={"T": 5}, default_dtype="f8").schema.declared
    assert (x.dtype.str[1:], y.dtype.str[1:], y.declared_shape) == ("f8", "i2", ("T", 3))


# ---- what is refused ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("env_dict", "message"),
    [
        ({"x": {"shape": "T"}}, r"field 'x': expected a shape such as .*\('T',\), got 'T'"),
        ({"x": {"shape": ("T", "U")}}, r"field 'x': expected at most one named axis, got .*'U'"),
        ({"x": {"shape": ("T", 3, "T")}}, "field 'x': expected at most one named axis"),
        ({"x": {"shape": ("T", 0)}}, r"field 'x': expected lengths of at least 1 .*\('T', 0\)"),
        ({"x": {"shape": ("T", -1)}}, r"field 'x': expected lengths of 0 to .*\('T', -1\)"),
        ({"x": {"shape": ("T", 1.5)}}, "field 'x': expected a shape"),
        ({"x": {"shape": ("T", *(1,) * 80)}}, "field 'x': NumPy has no arrays"),
        ({"x": {"shape": ("",)}}, "field 'x': expected the name of an axis, .* got ''"),
        ({"x": {"shape": ("3",)}}, "field 'x': expected the name of an axis, .* got '3'"),
        ({"x": {"shape": ("T",), "dtype": object}}, "field 'x': .* got Python objects"),
        ({"x": {"shape": ("T",), "dtype": [("a", "i4")]}}, "field 'x': .* got structured values"),
        ({"x": {"shape": ("T",), "dtype": str}}, r"field 'x': a text .* has the shape \(\), got"),
        ({"x": {"shape": 1, "dtype": str}}, r"field 'x': a text .* has the shape \(\), got 1"),
        ({"x": {"dtype": str}, "y": {"shape": ("x",)}}, "field 'y': axis 'x' is that of the text"),
        ({"x": {"dtype": str, "counts": "T"}, "y": T}, "field 'x': counts='T': .* got str"),
        ({"x": {"shape": ("T",), "counts": "T"}}, "field 'x': counts='T': .* got float32"),
        ({"x": {"shape": ("T",), "dtype": "?", "counts": "T"}}, "field 'x': .* got bool"),
        ({"x": {"dtype": "i4", "counts": "U"}, "y": T}, r"'x': counts='U': .* axes \['T'\]"),
        ({"x": {"dtype": "i4", "counts": "y"}, "y": {"dtype": str}}, "'x': counts='y': expected"),
        ({"x": {"dtype": "i4", "counts": "T"}}, "field 'x': counts='T': expected an axis"),
        ({"x": {"dtype": "i4", "counts": 3}}, "field 'x': counts: .* got 3"),
        ({"entry of x": {}}, "field 'entry of x': names that begin with 'entry of ' are taken"),
        ({"T_mask": {}, "x": T}, "field 'T_mask': batches have a column of this name .* 'T'"),
        ({"T_offsets": T}, "field 'T_offsets': batches have a column of this name"),
    ],
)
def test_declarations_that_are_refused(env_dict: Any, message: str) -> None:
    """The message names the field, what was expected and what came."""
    with pytest.raises((TypeError, ValueError), match=message):
        ReplayBuffer(10, env_dict, room={"T": 5})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"next_of": "x"}, r"next_of: .* axis 'T' or none, .*; \['y'\] are missing: name them too"),
        (
            {"next_of": "e"},
            "next_of: field 'e' counts items of axis 'T', whose fields have no next",
        ),
        ({"next_of": "z"}, "next_of='z': field 'next_z' is declared with float32 of shape .*'V'"),
        (
            {"next_of": "w"},
            "field 'late': axis 'next_W' is that of the next values of other fields",
        ),
        ({"next_of": "v"}, "field 'next_X_mask': batches have a column of this name"),
        ({"next_of": ["text", "next_text"]}, "next_of: .* 'next_text'"),
        ({"next_of": "at"}, "next_of: field 'at' counts items of axis 'T'"),
        ({"stack_compress": "x"}, "stack_compress: field 'x'"),
        ({"stack_compress": {"x": 0}}, "stack_compress: field 'x'"),
        ({"stack_compress": "at"}, "stack_compress: field 'at' counts items"),
        ({"terminated": "x"}, r"terminated='x': .* got float32 of shape \('T',\)"),
        ({"truncated": "entry of T"}, "truncated='entry of T': expected one of the fields"),
        ({"next_of": "entry of T"}, "next_of: .* got 'entry of T'"),
        ({"Nstep": {"size": 2, "rew": "x"}}, r"Nstep\['rew'\]: field 'x'"),
        ({"Nstep": {"size": 2, "next": "entry of T"}}, r"Nstep\['next'\]: .* got 'entry of T'"),
        ({"Nstep": {"size": 2, "next": "x"}}, "'x' comes from the last .* 'y' from the first"),
        ({"Nstep": {"size": 2, "next": ["x", "y"]}}, "'x' comes from the last .* 'at' from the"),
    ],
)
def test_options_that_no_ragged_field_has_yet(options: Any, message: str) -> None:
    """They are refused with the name of the field."""
    number: FieldSpec = {"dtype": "i8", "counts": "T"}
    env_dict = {"x": T, "y": T, "at": number, "text": FieldSpec(dtype=str), "rew": FieldSpec()}
    env_dict |= {"e": FieldSpec(shape=("E",), dtype="i8", counts="T"), "z": FieldSpec(shape=("Z",))}
    env_dict |= {"next_z": FieldSpec(shape=("V",)), "next_X_mask": {}}
    env_dict |= {"w": FieldSpec(shape=("W",)), "late": FieldSpec(shape=("next_W",))}
    env_dict |= {"v": FieldSpec(shape=("X",))}
    room = dict.fromkeys(["T", "text", "E", "Z", "V", "W", "X", "next_W"], 5)
    with pytest.raises(ValueError, match=message):
        ReplayBuffer(10, env_dict, room=room, **options)


@pytest.mark.parametrize("is_declared", [False, True])
def test_next_values_of_any_length_have_axes_in_the_room_of_their_source(
    is_declared: bool,
) -> None:
    """They may be declared, as other next values; a room of their own is refused."""
    nexts: dict[str, FieldSpec] = {
        "next_edges": {"shape": (2, "next_E"), "dtype": "i8", "counts": "next_N"},
        "next_nodes": {"shape": ("next_N", 11)},
    }
    names = ["nodes", "edges", "weight", "title", "done"]
    rows = read(GRAPH | nexts if is_declared else GRAPH, room=ROOMS, next_of=names)
    fields = {field.name: field for field in rows.schema.declared}
    assert fields["next_edges"].declared_shape == (2, "next_E")
    assert (fields["next_edges"].counts, fields["next_title"].is_text) == ("next_N", True)
    assert {(axis.name, axis.source, axis.room) for axis in rows.schema.axes[3:]} == {
        ("next_N", "N", 5000),
        ("next_E", "E", 7000),
        ("next_title", "title", 1000),
    }
    layout, before = Layout.of(rows), Layout.of(read(GRAPH, room=ROOMS))
    assert layout.items_nbytes == before.items_nbytes
    assert layout.nbytes_of(fields["next_nodes"]) == 0
    assert rows.schema.chained == {"next_done"}
    rows.check()
    assert from_json(CheckedOptions, to_json(rows), "") == rows
    assert rows.resized(50, room={"E": 9}).schema.axes[4].room == 9
    with pytest.raises(ValueError, match="room: no axis 'next_N'"):
        read(GRAPH, room=ROOMS | {"next_N": 5}, next_of=names)


def test_n_step_rows_have_next_fields_on_an_axis_of_their_own() -> None:
    """A reward for each token is no reward of a step: it was summed over as many as there are."""
    env_dict: dict[str, FieldSpec] = {"x": T, "next_x": {"shape": ("next_T",)}, "rew": {}}
    nstep = read(env_dict, room={"T": 5, "next_T": 5}, Nstep={"size": 2}).nstep
    assert nstep is not None
    assert nstep.last_step_fields == ("next_x",)
    with pytest.raises(ValueError, match=r"Nstep\['rew'\]: field 'rewards' is of shape"):
        read({"x": {}, "rewards": T}, room={"T": 5}, Nstep={"size": 2})


@pytest.mark.parametrize(
    ("field", "remedy"),
    [
        ({"shape": ("T",)}, r"shape \('next_T',\) and room for 'next_T'$"),
        ({"shape": (2, "T")}, r"shape \(2, 'next_T'\) and room for 'next_T'$"),
        ({"shape": ("E",), "dtype": "i8", "counts": "T"}, "counts='next_T'$"),
        ({"dtype": "i8", "counts": "T"}, "counts='next_T'$"),
        (
            {"shape": ("T",), "dtype": "i8", "counts": "T"},
            r"shape \('next_T',\) and room for 'next_T' and counts='next_T'$",
        ),
    ],
)
def test_the_remedy_for_a_next_field_on_the_axis_of_others(field: Any, remedy: str) -> None:
    """The words say what to declare, and are those of views too."""
    env_dict: dict[str, FieldSpec] = {"x": T, "next_x": field, "rew": {}}
    room = {"T": 5, "E": 5} if "E" in field.get("shape", ()) else {"T": 5}
    with pytest.raises(ValueError, match=rf"declare 'next_x' with {remedy}"):
        ReplayBuffer(10, env_dict, room=room, Nstep={"size": 2})
    with pytest.raises(ValueError, match=rf"declare 'next_x' with {remedy}"):
        ReplayBuffer(10, env_dict, room=room).view(NStep(2))


@pytest.mark.parametrize(
    ("room", "message"),
    [
        (5, "room: expected a dict .* got 5"),
        ({"T": 5, "U": 5}, r"room: no axis 'U'; the axes are \['T'\]"),
        ({"T": 0}, r"room\['T'\]: expected at least 1, got 0"),
        ({"T": -3}, r"room\['T'\]: expected at least 1, got -3"),
        ({"T": 1.5}, r"room\['T'\]: .* got 1.5"),
        ({"T": "9"}, r"room\['T'\]: .* got '9'"),
        ({"T": None}, r"room\['T'\]: .* got None"),
        ({"T": True}, r"room\['T'\]: .* got True"),
        ({"T": 2**60}, r"room\['T'\]: expected 1 to 36028797018963968 items, got 1152"),
    ],
    ids=repr,
)
def test_rooms_that_are_refused(room: Any, message: str) -> None:
    """Each axis needs a whole number of items, and no other name has one."""
    with pytest.raises((TypeError, ValueError), match=message):
        ReplayBuffer(10, {"x": T}, room=room)


def test_a_room_without_an_axis() -> None:
    """An option that would do nothing is an error."""
    with pytest.raises(ValueError, match=r"room: no axis 'T'; no field has a shape such as"):
        ReplayBuffer(10, {"x": {}}, room={"T": 5})
    assert not ReplayBuffer(10, {"x": {}}, room={}).schema.axes


def test_a_missing_room_is_proposed_from_the_capacity() -> None:
    """The number is one to begin with, with its rows and bytes."""
    with pytest.raises(ValueError) as caught:
        ReplayBuffer(100, TOKENS)
    assert str(caught.value) == (
        "room: expected the most items of axis 'T' that the buffer holds, such as "
        "room={'T': 100_000} for 100 rows of 1000 items, 781.2 KiB in all; got none"
    )
    with pytest.raises(ValueError, match="bytes of text 'title'") as caught:
        ReplayBuffer(100, GRAPH, room={"N": 7, "E": 8})
    assert "room={'N': 7, 'E': 8, 'title': 100_000}" in str(caught.value)
    assert "got {'N': 7, 'E': 8}" in str(caught.value)


def test_a_room_may_be_a_float() -> None:
    """As a size, such as ``2e7``."""
    assert read(TOKENS, room={"T": 2e7}).schema.rooms == {"T": 20_000_000}


# ---- memory -------------------------------------------------------------------------------


def test_items_lie_behind_all_other_memory() -> None:
    """Each field of an axis has places for nearly twice the room, from a page on."""
    layout = Layout.of(read(GRAPH, room=ROOMS))
    end = layout.nbytes
    assert [items.axis for items in layout.item_rings] == list(ROOMS)
    for items, axis in zip(layout.item_rings, layout.schema.axes, strict=True):
        assert items.room == axis.room
        assert items.units == 2 * axis.room - 1
        assert tuple(name for name, _, _ in items.columns) == axis.fields
        for name, nbytes, start in items.columns:
            (field,) = [field for field in layout.schema.fields if field.name == name]
            assert nbytes == field.item_nbytes
            assert start % 4096 == 0
            assert start >= end
            end = start + nbytes * items.units
        assert items.end >= end
        assert items.spans(3, 5) == [
            (start + 3 * n, start + 5 * n) for _, n, start in items.columns
        ]
    assert layout.length == layout.item_rings[-1].end


def test_items_follow_the_byte_rings_of_chained_fields() -> None:
    """Both kinds of parts have places of their own."""
    layout = Layout.of(read({"x": T, "obs": {"shape": 9}}, room={"T": 50}, next_of="obs"))
    assert layout.asides[-1].end <= layout.item_rings[0].columns[0][2]
    assert layout.has_parts
    names = [name for name, _, _ in layout.blocks]
    assert names[-1] == "items of T"
    assert "items of T" not in layout.row_blocks + layout.newest_blocks
    ((offset, nbytes),) = [block[1:] for block in layout.blocks if block[0] == "items of T"]
    assert (offset % 64, nbytes) == (0, CACHE_LINE)


IDS: FieldSpec = {"shape": ("T",), "dtype": "i8"}


@pytest.mark.parametrize(
    ("env_dict", "axes", "fixed", "most"),
    [
        ({"ids": IDS}, "T", 0, 16),
        ({"ids": IDS, "x": {"shape": 3}}, "T", 12, 16),
        ({"x": {"shape": ("N", 11)}, "e": {"shape": (2, "E")}, "y": {"shape": ()}}, "NE", 4, 24),
    ],
    ids=str,
)
def test_a_row_takes_sixteen_bytes_for_each_axis_at_most(
    env_dict: dict[str, FieldSpec], axes: str, fixed: int, most: int
) -> None:
    """Beside its values; of a graph with a label, at most 24 for both axes."""
    layout = Layout.of(read(env_dict, 100_000, room=dict.fromkeys(axes, 10)))
    assert layout.nbytes / layout.capacity <= fixed + most


def test_memory_is_known_before_it_is_used() -> None:
    """Bytes of a buffer count as many items as its room; not used items take no memory."""
    rb = ReplayBuffer(100, GRAPH, room=ROOMS)
    layout = rb._layout
    items = 5000 * 44 + 7000 * (16 + 4) + 1000
    assert layout.items_nbytes == items
    assert rb.nbytes == layout.total_nbytes == layout.nbytes + items
    assert rb.stats()["bytes"] == rb.nbytes
    nodes, *_, entry = layout.schema.fields
    assert layout.nbytes_of(nodes) == 5000 * 44
    assert layout.nbytes_of(entry) == 800
    assert layout.untouched_items(rb._arena) == items


def test_the_table_of_fields_has_axes_and_rooms() -> None:
    """Shapes are those of the declaration; totals are those of full rooms."""
    lines = [line.split() for line in repr(ReplayBuffer(100, GRAPH, room=ROOMS)).splitlines()]
    assert ["nodes", "float32", "('N',", "11)", "44/item", "214.8", "KiB"] in lines
    assert ["edges", "int64", "(2,", "'E')", "16/item", "109.4", "KiB"] in lines
    assert ["title", "str", "()", "1/item", "1000", "B"] in lines
    assert ["(room", "of", "N:", "5,000", "items,", "0", "in", "use)", "8", "800", "B"] in lines


def test_a_room_that_no_memory_holds() -> None:
    """It is refused before anything is allocated, with the items and a table of the fields."""
    with pytest.raises(MemoryError, match="100 steps, 10,000,000,000,000 items of 'T'") as caught:
        ReplayBuffer(100, TOKENS, room={"T": 10**13})
    assert "('T',)" in str(caught.value)


def test_items_that_are_not_used_yet_count_as_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two buffers whose rooms fit one by one, but not together, are not both made."""
    monkeypatch.setattr(arenas, "_arenas", [])  # those of other tests' buffers count as well
    room = {"T": 1 << 24}
    first = ReplayBuffer(100, TOKENS, room=room)
    left = first.nbytes * 3 // 2
    monkeypatch.setattr(machine_memory, "available_nbytes", lambda: left)
    with pytest.raises(MemoryError, match=r"beside 128\.0 MiB that other buffers"):
        ReplayBuffer(100, TOKENS, room=room)
    (items,) = first._layout.item_rings
    first._layout.item_words(first._arena, items)[:2] = 0, 1 << 23  # half of the room was used
    assert first._layout.untouched_items(first._arena) == 4 << 24
    with pytest.raises(MemoryError, match=r"beside 64\.0 MiB"):
        ReplayBuffer(100, TOKENS, room=room)
    del first
    assert len(ReplayBuffer(100, TOKENS, room=room)) == 0


def test_the_arena_reserves_what_rows_may_use() -> None:
    """Units become usable in all fields of an axis at once."""
    layout = Layout.of(read(TOKENS, room={"T": 3000}))
    arena = arenas.open_arena(layout)
    (items,) = layout.item_rings
    assert len(arena) == layout.length
    arenas.use(arena, items, 0, 1000)
    for start, stop in items.spans(0, 1000):
        assert not arena[start:stop].any()
        arena[start:stop] = 1


# ---- options of pickles and files ---------------------------------------------------------


def test_json_gives_the_same_options() -> None:
    """The attributes of named axes come back from a file."""
    rows = read(GRAPH, room=ROOMS)
    back = from_json(CheckedOptions, json.loads(json.dumps(to_json(rows))))
    back.check()
    assert back == rows
    assert Layout.of(back) == Layout.of(rows)
    assert pickle.loads(pickle.dumps(rows)) == rows


def test_json_of_fixed_fields_is_as_before() -> None:
    """Files of buffers without named axes stay readable for older versions, and the reverse."""
    saved = to_json(read({"x": {}}))
    assert list(saved["schema"]["fields"][0]) == ["name", "dtype", "shape"]
    assert list(saved["schema"]) == ["fields", "terminated", "truncated", "next_of", "stacks"]


def test_the_identity_of_fixed_fields_is_as_before() -> None:
    """A file of an earlier version opens; the digest is the one that it wrote."""
    identity = Layout.of(read({"x": {"shape": 3}, "done": {"dtype": "i4"}})).identity()
    assert identity[-32:].hex() == IDENTITY


def test_the_identity_covers_axes() -> None:
    """Rows of other rooms, or with another meaning of the items, are not opened as these."""
    declared: list[tuple[dict[str, FieldSpec], dict[str, int]]] = [
        ({"x": {"shape": ("T",), "dtype": "u1"}}, {"T": 5}),
        ({"x": {"shape": ("T",), "dtype": "u1"}}, {"T": 6}),
        ({"x": {"shape": ("U",), "dtype": "u1"}}, {"U": 5}),
        ({"x": {"shape": ("x",), "dtype": "u1"}}, {"x": 5}),
        ({"x": {"shape": ("T",), "dtype": "u1", "counts": "T"}}, {"T": 5}),
        ({"x": {"dtype": str}}, {"x": 5}),
    ]
    identities = [Layout.of(read(fields, room=room)).identity() for fields, room in declared]
    assert len(set(identities)) == len(declared)


def test_another_size_keeps_the_rooms() -> None:
    """Or takes some of the new ones, whose entries may be wider."""
    rows = read(GRAPH, room=ROOMS)
    assert rows.resized(50) == read(GRAPH, 50, room=ROOMS)
    assert rows.resized(50, room={"E": 9}) == read(GRAPH, 50, room=ROOMS | {"E": 9})
    assert rows.resized(50, room={"E": 2**40}) == read(GRAPH, 50, room=ROOMS | {"E": 2**40})
    with pytest.raises(ValueError, match="room: no axis 'T'"):
        rows.resized(50, room={"T": 5})
    with pytest.raises(TypeError, match="room: expected a dict"):
        rows.resized(50, room=5)


def _with_field(rows: CheckedOptions, number: int, **changes: Any) -> CheckedOptions:
    fields = list(rows.schema.fields)
    fields[number] = replace(fields[number], **changes)
    return replace(rows, schema=replace(rows.schema, fields=tuple(fields)))


@pytest.mark.parametrize(
    ("number", "changes", "message"),
    [
        (0, {"axis": None}, "expected one of the axes"),
        (2, {"axis": None}, "do not follow"),
        (0, {"axis": 3}, "expected the name of an axis"),
        (2, {"axis": "N"}, "do not follow"),
        (0, {"axis_at": 1}, "is not in shape"),
        (0, {"axis_at": -1}, "is not in shape"),
        (0, {"axis_at": 2**62}, "is not in shape"),
        (0, {"shape": (1, 11)}, "is not in shape"),
        (0, {"shape": (0, 0)}, "expected lengths of at least 1"),
        (0, {"dtype": np.dtype(object)}, "got Python objects"),
        (0, {"is_text": True}, "expected a text as bytes"),
        (0, {"is_entry": True}, "got entries"),
        (1, {"counts": "nothing"}, "expected one of the axes"),
        (3, {"is_text": True}, "expected the name of an axis"),
        (3, {"axis": "N"}, "is not in shape"),
        (4, {"name": "other"}, "expected a text as bytes"),
        (6, {"dtype": np.dtype(np.uint16)}, "do not follow"),
        (6, {"shape": (3,)}, "do not follow"),
        (6, {"axis": "E"}, "do not follow"),
        (6, {"is_entry": False}, "do not follow"),
        (7, {"name": "entry of T"}, "do not follow"),
    ],
)
def test_fields_of_a_file_are_checked(number: int, changes: Any, message: str) -> None:
    """An entry that compiled code reads with another width would lie outside of the row."""
    rows = read(GRAPH, room=ROOMS)
    rows.check()
    with pytest.raises(ValueError, match=message):
        _with_field(rows, number, **changes).check()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"axes": ()}, "names that begin with 'entry of '"),
        ({"room": 0}, r"room\['N'\]: expected at least 1"),
        ({"room": 2**60}, r"room\['N'\]: expected at most"),
        ({"room": 2**31}, "do not follow"),
        ({"fields": ("edges",)}, "do not follow"),
        ({"name": "M"}, "do not follow"),
        ({"name": "E"}, "do not follow"),
    ],
)
def test_axes_of_a_file_are_checked(changes: Any, message: str) -> None:
    """A room of another number would place items in the memory of others."""
    rows = read(GRAPH, room=ROOMS)
    axes = changes.get("axes")
    if axes is None:
        axes = (replace(rows.schema.axes[0], **changes), *rows.schema.axes[1:])
    with pytest.raises(ValueError, match=message):
        replace(rows, schema=replace(rows.schema, axes=axes)).check()


@pytest.mark.parametrize(
    "changes", [{"next_of": (("agent", "weight"),)}, {"stacks": (Stack("edges", 0, 2),)}], ids=str
)
def test_chained_fields_of_a_file_have_one_shape(changes: Any) -> None:
    """Their values lie in the rows; next values fit their sources."""
    rows = read(GRAPH, room=ROOMS)
    with pytest.raises(ValueError, match=r"next_of and stacks: field|do not follow|no next value"):
        replace(rows, schema=replace(rows.schema, **changes)).check()
