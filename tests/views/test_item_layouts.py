"""Values of any length in batches: padded and packed, with each sampler, layer and option."""

from __future__ import annotations

import copy
import pickle
import re
import threading
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from helpers import check_arrays
from optional import need
from ragged_batches import FIELDS, LAST, RAGGED, ROOM, Expected, RaggedHistory, check_batch

from cpprb_like import ReplayBuffer
from cpprb_like.buffers import Mixture
from cpprb_like.samplers import LegacyUniform, Prioritized, RankBased, Recency, Reverse, Uniform
from cpprb_like.testing import check_layer
from cpprb_like.views import (
    Among,
    FrameStacks,
    Hindsight,
    Layer,
    NStep,
    Packed,
    Padded,
    Sequences,
    _items_of_batch,
)

Array = npt.NDArray[Any]
N = 9
SAMPLERS = {
    "Uniform": Uniform,
    "Prioritized": lambda: Prioritized(check_for_update=True),
    "RankBased": lambda: RankBased(check_for_update=True),
    "Recency": lambda: Recency(least=10),
    "Reverse": lambda: Reverse(1),
    "LegacyUniform": LegacyUniform,
}
SIZED = {"N": 200, "E": 210, "T": 400, "U": 180}
LAYOUTS: dict[str, tuple[tuple[Layer, ...], Expected]] = {
    "default": ((), Expected()),
    "padded left": (
        (Padded(side="left", value={"ids": -100, "weight": 0.5}, multiple_of=4),),
        Expected(left="NETU", values={"ids": -100, "weight": 0.5}, multiple_of=4),
    ),
    "padded by axis": (
        (
            Padded(
                side={"T": "left"},
                value={"ids": -1},
                dtypes={"ids": "i8", "weight": "f4", "T_mask": "i8"},
            ),
        ),
        Expected(
            left="T",
            values={"ids": -1},
            dtypes={"ids": "i8", "weight": "f4", "T_mask": np.dtype("i8")},
        ),
    ),
    "padded to a length": (
        (Padded(length={"T": 11, "N": 8}),),
        Expected(length={"T": 11, "N": 8}),
    ),
    "packed": ((Packed(),), Expected(packed=True)),
    "packed, all columns": (
        (Packed(positions=True, segments=True, multiple_of=8, offsets="i8"),),
        Expected(packed=True, positions=True, segments=True, multiple_of=8, offsets=np.dtype("i8")),
    ),
    "packed to totals": (
        (
            Packed(
                total=SIZED,
                segments=True,
                dtypes={"ids": "i8", "weight": "f4"},
                value={"ids": -1, "weight": 0.5},
            ),
        ),
        Expected(
            packed=True,
            length=SIZED,
            values={"ids": -1, "weight": 0.5},
            segments=True,
            dtypes={"ids": "i8", "weight": "f4"},
        ),
    ),
}


def reward(achieved: Array, goal: Array, rows: Mapping[str, Array]) -> Array:
    """A reward that reads values of any length too."""
    lengths = [len(text) for text in rows["text"].tolist()]
    assert len(lengths) == len(rows["ids"]) == len(achieved)
    found: Array = achieved - goal
    return found


class Totals(Layer):
    """Sums of values of any length of each row and of the row before it."""

    def around(self, fields: Any) -> tuple[int, int]:
        return 1, 0

    def reads(self, fields: Any) -> list[str]:
        assert fields["ids"].shape == ("T",)
        return ["ids", "text"]

    def columns(self, fields: Any) -> dict[str, Any]:
        return {"total": ("i8", (2,)), "tokens": ("i8", (2,)), "letters": ("i8", ())}

    def fill(self, windows: Any, wanted: Any) -> dict[str, Array]:
        ids, lengths = windows.read("ids"), windows.lengths("T")
        assert ids.shape[:2] == lengths.shape
        taken = windows.take(windows.slots, ["ids", "text"])
        np.testing.assert_array_equal(taken["ids"].sum(1), ids[:, 1].sum(1))
        np.testing.assert_array_equal(taken["T_mask"].sum(1), lengths[:, 1])
        with pytest.raises(KeyError, match=r"'ids'.*windows\.take"):
            windows.values["ids"]
        assert not [name for name in windows.values if name.startswith("entry")]
        letters = np.array([len(text) for text in taken["text"].tolist()], np.int64)
        return {"total": ids.sum(2), "tokens": lengths, "letters": letters}


STACKS = FrameStacks({"obs": 3})
GOALS = Hindsight(reward, goal="goal", achieved="achieved", reward="rew", relabel_ratio=1.0)
LAYERS: dict[str, tuple[tuple[Layer, ...], dict[str, Any]]] = {
    "rows": ((), {}),
    "NStep": ((NStep(3),), {}),
    "NStep, drawn n": ((NStep((1, 4), discount=True),), {}),
    "Sequences": ((Sequences(4, burn_in=1),), {}),
    "Sequences, across": ((Sequences(3, across_episodes=True),), {}),
    "Sequences, first rows": (
        (Sequences(3, stride=2, first_only=("ids", "chosen", "text")),),
        {"single": ("ids", "chosen", "text")},
    ),
    "FrameStacks": ((STACKS,), {}),
    "Hindsight": ((GOALS,), {}),
    "Among": ((Among(lambda rows: rows["T_mask"].sum(1) >= 3, "ids"),), {}),
    "a layer of your own": ((Totals(),), {}),
    "Sequences + NStep": ((Sequences(3), NStep(2)), {}),
    "FrameStacks + Sequences": (
        (STACKS, Sequences(3, first_only=("next_ids",))),
        {"single": ("next_ids",)},
    ),
    "Hindsight + Sequences + NStep": ((GOALS, Sequences(3), NStep(2)), {}),
    "all": ((GOALS, STACKS, NStep((1, 3)), Sequences(3, across_episodes=True), Totals()), {}),
    "Among + Sequences": ((Among(lambda rows: rows["id"] % 3 > 0, "id"), Sequences(2)), {}),
}


def history_of(sampler: str = "Uniform", **options: Any) -> RaggedHistory:
    """A history that has wrapped."""
    return RaggedHistory.of(sampler=SAMPLERS[sampler](), **options)


@pytest.fixture(scope="module")
def history() -> RaggedHistory:
    """One history, for tests that only read."""
    return history_of()


def check_columns(source: Any, batch: Mapping[str, Array]) -> None:
    """A batch has the names, dtypes and shapes of ``columns``; lengths agree along each axis."""
    assert set(source.columns) == set(batch) - {"indexes"}
    n, lengths = len(batch["id"]), dict[str, int]()
    packed = {name[0] for name in batch if name.endswith("_offsets")}
    for name, spec in source.columns.items():
        values = batch[name]
        assert values.dtype == spec.dtype, name
        if name.endswith(("_offsets", "_longest")):  # numbers of a whole batch
            assert spec.shape == ()
            continue
        shape = spec.shape if packed & {*spec.shape} else (n, *spec.shape)
        assert values.ndim == len(shape), name
        for length, expected in zip(values.shape, shape, strict=True):
            if isinstance(expected, str):
                assert lengths.setdefault(expected, length) == length, name
            else:
                assert length == expected, name


class Replaced(Layer):
    """Replaces fields, of which some have values of any length, by their lengths."""

    def __init__(self, *names: str) -> None:
        self.names = names

    def reads(self, fields: Any) -> tuple[str, ...]:
        return self.names

    def columns(self, fields: Any) -> dict[str, Any]:
        return dict.fromkeys(self.names, ("i8", (2,)))

    def fill(self, windows: Any, wanted: Any) -> dict[str, Array]:
        found = {}
        for name in wanted:
            taken = windows.take(windows.slots, [name])[name]
            found[name] = np.array([[np.size(one)] * 2 for one in taken], "i8").reshape(-1, 2)
        return found


@pytest.mark.once
@pytest.mark.parametrize("layout", ["padded by axis", "packed, all columns"])
@pytest.mark.parametrize("of_rows", [(), (Sequences(3), NStep(2))])
@pytest.mark.parametrize(
    ("names", "gone"),
    [
        (("ids",), ""),
        (("ids", "chosen"), "T"),
        (("nodes",), ""),  # of which the edges count items
        (("nodes", "edges", "root"), "N"),
        (("text", "next_ids"), "U"),
    ],
)
def test_columns_of_replaced_fields(
    history: RaggedHistory,
    names: tuple[str, ...],
    gone: str,
    of_rows: tuple[Layer, ...],
    layout: str,
) -> None:
    """A field of fixed shape in place of one of any length has a row like all others.

    Masks and offsets stay as long as other fields of the axis, or those that count them, do.
    """
    of_items, expected = LAYOUTS[layout]
    view = history.rb.view(Replaced(*names), *of_rows, *of_items)
    if not expected.packed and "nodes" in names:
        gone = "N"
    for n in (4, 0):
        batch = view.sample(n)
        check_columns(view, batch)
        marks = {name[0] for name in batch if name[1] == "_"}
        assert marks == set("NETU") - set(gone)
    kinds = {"a": view, "b": history_of(seed=1).rb.view(Replaced(*names), *of_rows, *of_items)}
    mixture = Mixture(kinds, {"a": 1, "b": 1}, seed=0)
    check_columns(mixture, mixture.sample(6))
    lengths = dict.fromkeys("NETU", 9) if not expected.packed else dict.fromkeys("NETU", 400)
    out = arrays_for(view, 3, lengths, packed=expected.packed)
    if expected.packed:
        check_columns(view, view.sample(3, out=out))


@pytest.mark.once
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("layers", LAYERS)
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_a_batch_has_the_values_of_its_rows(sampler: str, layers: str, layout: str) -> None:
    """Each item of a batch is one that was added to its row, in the place that the layout says."""
    history = history_of(sampler)
    of_rows, options = LAYERS[layers]
    of_items, expected = LAYOUTS[layout]
    view = history.rb.view(*of_rows, *of_items)
    for n in (N, 1, 0, 2):
        check_batch(view.sample(n), history.rows, expected, **options)


@pytest.mark.once
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("layers", LAYERS)
def test_options_of_draws(history: RaggedHistory, layers: str, layout: str) -> None:
    """Fields, indexes, epochs, iterators and copies give the same values."""
    of_rows, options = LAYERS[layers]
    of_items, expected = LAYOUTS[layout]
    view, rows = history.rb.view(*of_rows, *of_items), history.rows
    check_columns(view, view.sample(3))
    indexed = view.sample(3, indexes=True, replace=False)
    check_batch(indexed, rows, expected, **options)
    assert indexed["indexes"].shape == (3,)
    for fields in (("id", "edges"), ("ids", "id"), ("id", "root"), ("text", "id"), ("id", "rew")):
        batch = view.sample(4, fields=fields)
        check_batch(batch, rows, expected, fields=fields, **options)
        more = set(view._further_specs()) | set(fields) | {"mask", "is_first"}
        assert set(fields) <= set(batch) <= more
    for batch in view.epoch(7):
        check_batch(batch, rows, expected, **options)
    with view.batches(4, prefetch=2, to="numpy") as batches:
        for _ in range(3):
            check_batch(next(batches), rows, expected, **options)
    copied = copy.deepcopy(view)
    for _ in range(2):
        copies, originals = copied.sample(5), view.sample(5)
        check_batch(copies, rows, expected, **options)
        for name, values in originals.items():
            np.testing.assert_array_equal(copies[name], values)


@pytest.mark.once
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("layers", ["rows", "Sequences", "NStep", "all", "Sequences, first rows"])
def test_batches_of_several_sources(layers: str, layout: str) -> None:
    """Parts of a mixture are padded to the longest row of all, or packed one behind the other."""
    of_rows, options = LAYERS[layers]
    of_items, expected = LAYOUTS[layout]
    one, two = history_of(seed=1), history_of(seed=2)
    for row in two.rows:
        row["id"] += len(one.rows)
        row["next_id"] += len(one.rows)
    moved = RaggedHistory(ReplayBuffer(40, FIELDS, room=ROOM, seed=5), np.random.default_rng(5))
    for row in two.rows:
        moved.rb.add(**row)
    rows = one.rows + two.rows
    for shares in ({"a": 0.5, "b": 0.5}, {"a": 1.0, "b": 0.0}):
        views = {"a": one.rb.view(*of_rows, *of_items), "b": moved.rb.view(*of_rows, *of_items)}
        mixture = Mixture(views, shares, seed=3)
        for n in (8, 1):
            batch = mixture.sample(n)
            check_batch(batch, rows, expected, **options)
            check_batch(
                mixture.sample(n, fields=["edges", "id"]),
                rows,
                expected,
                fields=("edges", "id"),
                **options,
            )
            assert list(batch)[: len(FIELDS)] == list(FIELDS)
        nested = Mixture({"m": mixture}, {"m": 1.0}, seed=0)
        check_batch(nested.sample(6), rows, expected, **options)


def test_plain_buffers(history: RaggedHistory) -> None:
    """A buffer without a view pads; single rows have no padding and no mask."""
    rb, rows = history.rb, history.rows
    assert rb.fields == tuple(FIELDS)
    check_batch(rb.sample(N), rows, Expected())
    check_batch(rb.sample(N, indexes=True), rows, Expected())
    check_batch(rb.get_all_transitions(), rows, Expected())
    check_batch(
        rb.get_all_transitions(True, fields=["ids", "id"]), rows, Expected(), fields=("ids", "id")
    )
    check_batch(rb[3:9], rows, Expected())
    for batch in rb.epoch(6):
        check_batch(batch, rows, Expected())
    for one in [rb[4], *rb]:
        assert set(one) == set(FIELDS)
        own = rows[int(one["id"])]
        for name in FIELDS:
            np.testing.assert_array_equal(one[name], own[name])
    other = ReplayBuffer(40, FIELDS, room=ROOM)
    for one in rb:
        other.add(**one)
    np.testing.assert_array_equal(
        other.get_all_transitions()["edges"], rb.get_all_transitions()["edges"]
    )


def test_columns_of_batches(history: RaggedHistory) -> None:
    """Columns have the names of axes in their shapes, and no hidden field."""
    rb = history.rb
    plain = rb.columns
    assert (plain["edges"].shape, plain["T_mask"].shape, plain["text"].shape) == (
        (2, "E"),
        ("T",),
        (),
    )
    assert rb.view(Sequences(3)).columns["nodes"].shape == (3, "N", 2)
    assert rb.view(Sequences(3)).columns["T_mask"].shape == (3, "T")
    packed = rb.view(Packed(positions="T", dtypes={"ids": "i8"}), Sequences(3)).columns
    assert packed["nodes"].shape == ("N", 2)
    assert packed["ids"].dtype == "i8"
    assert "T_positions" in packed
    assert "N_positions" not in packed
    for source in (rb, rb.view(), rb.view(Packed())):
        assert not [
            name for name in (*source.columns, *source.fields, *source.sample(2)) if "entry" in name
        ]


def test_arrays_are_aligned(history: RaggedHistory) -> None:
    """Other libraries take the arrays of a batch without a copy."""
    for layers, _ in LAYOUTS.values():
        batch = history.rb.view(*layers).sample(N)
        check_arrays({k: v for k, v in batch.items() if k != "text" and not k.endswith("_longest")})


def test_episodes(history: RaggedHistory) -> None:
    """An episode is read padded to its longest row."""
    episodes = history.rb.episodes
    for batch in [episodes.read(0), episodes[-1], *episodes, *episodes.sample(3)]:
        check_batch(batch, history.rows, Expected())
    one = episodes.read(1, fields=["ids", "id"], start=1)
    check_batch(one, history.rows, Expected(), fields=("ids", "id"))


def test_explain(history: RaggedHistory) -> None:
    """Rows with values of any length are explained."""
    for view in (history.rb, history.rb.view(Packed(), Sequences(3), NStep(2))):
        assert "entry of" not in str(view.explain(45))


# ---- out ---------------------------------------------------------------------------------


def arrays_for(view: Any, n: int, lengths: dict[str, int], *, packed: bool) -> dict[str, Array]:
    """Arrays for a batch, of which those along axes have some lengths."""
    found = {}
    for name in view.fields:
        spec = view.columns[name]
        shape = tuple(lengths[one] if isinstance(one, str) else one for one in spec.shape)
        lead = () if packed and shape != spec.shape else (n,)
        found[name] = (
            np.full((*lead, *shape), 7, spec.dtype)
            if name != "text"
            else np.empty((*lead, *shape), spec.dtype)
        )
    return found


@pytest.mark.parametrize(
    "layers", ["rows", "NStep", "Sequences", "Hindsight", "all", "a layer of your own"]
)
def test_padded_out(history: RaggedHistory, layers: str) -> None:
    """Batches of one length go into the caller's arrays."""
    of_rows, options = LAYERS[layers]
    lengths = {"N": 7, "E": 8, "T": 9, "U": 5}
    view = history.rb.view(*of_rows, Padded(length=lengths))
    out = arrays_for(view, N, lengths, packed=False)
    given = dict(out)
    for _ in range(3):
        batch = view.sample(N, out=out)
        assert batch is out
        assert all(batch[name] is given[name] for name in given)
        check_batch(batch, history.rows, Expected(length=lengths), **options)


def test_padded_out_of_another_length(history: RaggedHistory) -> None:
    """An array of another length is refused with the length of the batch."""
    lengths = {"N": 7, "E": 8, "T": 9, "U": 5}
    view = history.rb.view(Padded(length=lengths))
    out = arrays_for(view, N, lengths | {"E": 3}, packed=False)
    out = {name: np.zeros_like(values) for name, values in out.items()}
    for source in (view, Mixture({"a": view}, {"a": 1})):
        with pytest.raises(ValueError, match=r"out\['edges'\]: expected shape \(9, 2, 8\) for"):
            source.sample(N, out=out)
        assert not any(values.astype(bool).any() for values in out.values())
    with pytest.raises(ValueError, match=re.escape("out['ids']: expected int32 of shape (9, 'T')")):
        view.sample(N, out=out | {"ids": np.zeros(9, "i4")})
    with pytest.raises(TypeError, match="missing"):
        view.sample(N, out={})
    shared = np.zeros((N, 9), "i4")
    with pytest.raises(ValueError, match="shares memory"):
        view.sample(N, out=out | {"ids": shared, "root": shared.ravel()[:N]})


@pytest.mark.parametrize("layers", ["rows", "NStep", "Sequences", "all"])
def test_packed_out(history: RaggedHistory, layers: str) -> None:
    """Packed rows go into the first parts of longer arrays, which stay the caller's."""
    of_rows, options = LAYERS[layers]
    lengths = {"N": 300, "E": 300, "T": 300, "U": 300}
    view = history.rb.view(*of_rows, Packed(segments=True))
    out = arrays_for(view, N, lengths, packed=True)
    given = dict(out)
    for _ in range(3):
        batch = view.sample(N, out=out)
        assert batch is not out
        assert set(out) == set(given)
        assert all(out[name] is given[name] for name in given)
        assert all(np.shares_memory(batch[name], out[name]) for name in ("ids", "edges", "rew"))
        check_batch(batch, history.rows, Expected(packed=True, segments=True), **options)
    short = {name: np.zeros_like(values) for name, values in out.items()}
    short["ids"] = np.zeros(1, "i4")
    with pytest.raises(ValueError, match=r"out\['ids'\]: expected shape \(\d+,\) or more"):
        view.sample(N, out=short)
    assert not any(values.astype(bool).any() for values in short.values())


def test_plain_out(history: RaggedHistory) -> None:
    """A buffer without a view takes arrays of the length of the batch."""
    rb = history.rb
    rb.reseed(4)
    batch = rb.sample(4, fields=["ids", "id"])
    out = {"ids": np.zeros_like(batch["ids"]), "id": np.zeros(4, "i8")}
    rb.reseed(4)
    assert rb.sample(4, fields=["ids", "id"], out=out) is out
    np.testing.assert_array_equal(out["ids"], batch["ids"])
    np.testing.assert_array_equal(out["T_mask"], batch["T_mask"])


def test_draws_of_a_buffer_make_no_view(
    history: RaggedHistory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Draws with ``indexes`` and ``out`` take as long as others: a view took 0.3 ms."""
    rb = history.rb
    monkeypatch.setattr(type(rb), "view", None)
    batch = rb.sample(N, indexes=True)
    check_batch(batch, history.rows, Expected())
    assert rb[batch["indexes"] % rb.capacity]["id"].tolist() == batch["id"].tolist()
    out = {"id": np.zeros(N, "i8")}
    assert rb.sample(N, indexes=True, fields="id", out=out) is out
    assert rb[out["indexes"] % rb.capacity]["id"].tolist() == out["id"].tolist()


@pytest.mark.parametrize("packed", [False, True])
def test_out_of_a_mixture(packed: bool) -> None:
    """A mixture writes the items of all parts to the caller's arrays."""
    one, two = history_of(seed=1), history_of(seed=2)
    layer = Packed() if packed else Padded(length={"N": 7, "E": 8, "T": 9, "U": 5})
    lengths = dict.fromkeys("NETU", 300) if packed else {"N": 7, "E": 8, "T": 9, "U": 5}
    views = {"a": one.rb.view(layer), "b": two.rb.view(layer)}
    mixture = Mixture(views, {"a": 1, "b": 1}, seed=0)
    out = arrays_for(views["a"], 6, lengths, packed=packed)
    mixture.reseed(8)
    plain = mixture.sample(6)
    mixture.reseed(8)
    batch = mixture.sample(6, out=out)
    assert (batch is out) is not packed
    for name, values in plain.items():
        np.testing.assert_array_equal(batch[name], values, err_msg=name)
        if name in out:
            assert np.shares_memory(batch[name], out[name]) or not values.size or name == "text"


# ---- what is refused ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: Padded(side="up"), ValueError, "side: expected 'left' or 'right'"),  # type: ignore[arg-type]
        (lambda: Padded(value=[1]), TypeError, "value: expected a number"),  # type: ignore[arg-type]
        (lambda: Padded(multiple_of=0), ValueError, "multiple_of: expected at least 1"),
        (lambda: Padded(length={"T": -1}), ValueError, r"length\['T'\]"),
        (lambda: Padded(length=2.5), TypeError, "length: expected an integer"),  # type: ignore[arg-type]
        (lambda: Packed(total=-1), ValueError, "total"),
        (lambda: Packed(offsets="i2"), ValueError, "offsets: expected int32 or int64"),
        (lambda: Packed(positions=3), TypeError, "positions: expected a bool"),  # type: ignore[arg-type]
        (lambda: Packed(dtypes="i8"), TypeError, "dtypes: expected"),  # type: ignore[arg-type]
    ],
)
def test_options_are_checked_when_a_layer_is_made(make: Any, error: Any, words: str) -> None:
    """A wrong option is refused by its name."""
    with pytest.raises(error, match=words):
        make()


@pytest.mark.parametrize(
    ("layers", "words"),
    [
        ((Padded(), Packed()), "one layout of values of any length"),
        ((Padded(value={"nothing": 1}),), r"value: expected some of \['nodes'.*got 'nothing'"),
        ((Padded(value=-1),), "value: field 'chosen'"),
        ((Padded(value={"ids": 0.5}),), "value: field 'ids'"),
        ((Padded(length={"X": 3}),), r"length: expected some of \['N', 'E', 'T', 'U'\]"),
        ((Padded(length={"text": 3}),), "length"),
        ((Padded(length={"T": 6}, multiple_of=4),), "a multiple of multiple_of=4"),
        ((Packed(total=9, multiple_of=2),), "a multiple of multiple_of=2"),
        ((Packed(segments="X"),), "segments: expected some of"),
        ((Packed(dtypes={"rew": "f8"}),), "dtypes: expected some of"),
        ((Packed(dtypes={"ids": "i2"}),), "dtypes: expected a dtype with all values of 'ids'"),
        ((Sequences(2, first_only="ids"),), r"first_only: .*axis 'T'.*\['chosen'\]"),
        ((Packed(), Sequences(2, first_only=("edges", "weight"))), "first_only: .*axis 'N'"),
        ((NStep(2, next=("ids",)),), r"axis 'T'"),
        ((FrameStacks({"ids": 2}),), "field 'ids' holds values of any length"),
        ((Hindsight(reward, goal="ids", achieved="achieved"),), "goal: .*'ids' is int32 of shape"),
        ((Hindsight(reward, goal="goal", achieved="text"),), "achieved: .*'text' is str"),
        (
            (
                Hindsight(
                    reward, goal="goal", achieved="achieved", terminated_func=lambda *_: True
                ),
                NStep(2),
            ),
            "terminated_func: field 'next_ids'",
        ),
    ],
)
def test_options_are_checked_with_the_fields(
    history: RaggedHistory, layers: tuple[Layer, ...], words: str
) -> None:
    """A view is refused if a layer does not fit values of any length."""
    with pytest.raises(ValueError, match=words):
        history.rb.view(*layers)


def test_counts_need_wide_numbers() -> None:
    """Numbers of items of a batch need int32 or int64, which a cast can give."""
    fields: dict[str, Any] = {
        "nodes": {"shape": ("N",)},
        "edges": {"shape": ("E",), "dtype": "u1", "counts": "N"},
    }
    rb = ReplayBuffer(400, fields, room={"N": 4000, "E": 4000}, seed=0)
    for _ in range(300):
        rb.add(nodes=[1.0, 2.0], edges=[0, 1, 1])
    with pytest.raises(ValueError, match=r"'edges': expected int32 or int64 .*got uint8; .*'i8'}"):
        rb.view(Packed())
    fixed: dict[str, Any] = {"nodes": {"shape": ("N",)}, "root": {"dtype": "i2", "counts": "N"}}
    with pytest.raises(ValueError, match=r"'root': expected int32 or int64 .*int16; declare it so"):
        ReplayBuffer(4, fixed, room={"N": 40}).view(Packed())
    batch = rb.view(Packed(dtypes={"edges": np.int32})).sample(300)
    shift = np.repeat(batch["N_offsets"][:-1], 3)
    np.testing.assert_array_equal(batch["edges"], np.tile([0, 1, 1], 300) + shift)
    assert rb.sample(3)["edges"].dtype == np.uint8


def test_buffers_without_axes_take_no_layout() -> None:
    """A layout of values of any length is refused where there are none."""
    rb = ReplayBuffer(10, {"x": {"shape": ()}})
    with pytest.raises(ValueError, match=r"Packed\(\): expected a field with a named axis"):
        rb.view(Packed())


def test_sources_of_other_layouts(history: RaggedHistory) -> None:
    """A mixture of padded and packed rows is refused."""
    other = history_of(seed=3)
    with pytest.raises(ValueError, match="'a' and 'b' have other layouts"):
        Mixture({"a": history.rb, "b": other.rb.view(Packed())}, {"a": 1, "b": 1})
    Mixture({"a": history.rb, "b": other.rb.view(Padded())}, {"a": 1, "b": 1}).sample(3)


def test_rows_that_are_too_long(history: RaggedHistory) -> None:
    """A row beyond ``length``, or a batch beyond ``total``, is refused with the numbers."""
    with pytest.raises(ValueError, match=r"length: expected at most 2 items of axis 'T', got \d+"):
        history.rb.view(Padded(length={"T": 2})).sample(30)
    with pytest.raises(ValueError, match=r"total: expected at most 10 items of axis 'N', got \d+"):
        history.rb.view(Packed(total={"N": 10})).sample(30)


def test_offsets_need_64_bits(history: RaggedHistory) -> None:
    """More items than int32 counts are refused with the option."""
    layer = Packed(total={"T": 2**31})
    with pytest.raises(ValueError, match=r"expected offsets=np\.int64"):
        history.rb.view(layer).sample(2, fields=["ids"])


def test_memory_is_required_first(history: RaggedHistory) -> None:
    """A batch that does not fit into memory is refused before anything is allocated."""
    with pytest.raises(MemoryError, match="rows and their items"):
        history.rb.view(Padded(length={"T": 2**40})).sample(4)


def required(source: Any, n: int, monkeypatch: pytest.MonkeyPatch) -> tuple[int, dict[str, Any]]:
    """The bytes of items that are required for a batch, and the batch."""
    asked: list[int] = []
    monkeypatch.setattr(_items_of_batch, "require", lambda nbytes, what: asked.append(nbytes))
    batch = source.sample(n)
    return max(asked), batch


@pytest.mark.parametrize("layout", LAYOUTS)
def test_memory_of_all_columns_is_required(
    history: RaggedHistory, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Masks, positions and segments count, and texts by what is made of them."""
    layers, _ = LAYOUTS[layout]
    nbytes, batch = required(history.rb.view(*layers), 8, monkeypatch)
    texts = 4 * len("".join(batch["text"].tolist()).encode())
    ends = ("mask", "positions", "segments")
    arrays = [v for name, v in batch.items() if name in RAGGED or name.endswith(ends)]
    assert nbytes == texts + sum(array.nbytes for array in arrays)


def test_memory_of_casts_is_required(monkeypatch: pytest.MonkeyPatch) -> None:
    """Items of dtypes that C does not cast are cast afterwards, in an array beside the first."""
    rb = ReplayBuffer(8, {"x": {"shape": ("T", 2), "dtype": "f2"}}, room={"T": 50}, seed=0)
    rb.add(x=np.zeros((3, 2)))
    nbytes, batch = required(rb.view(Packed(dtypes={"x": "f4"})), 2, monkeypatch)
    assert nbytes == batch["x"].size * (2 + 4)


def test_layers_change_no_values_of_any_length(history: RaggedHistory) -> None:
    """A layer may replace a field, but not change its items."""

    class Changed(Layer):
        def changes(self, fields: Any) -> list[str]:
            return ["ids"]

        def fill(self, windows: Any, wanted: Any) -> Any:
            return {}

    class Lengths(Layer):
        def reads(self, fields: Any) -> list[str]:
            return ["ids"]

        def columns(self, fields: Any) -> dict[str, Any]:
            return {"ids": ("i8", ())}

        def fill(self, windows: Any, wanted: Any) -> Any:
            return {"ids": windows.lengths("T")[:, 0]}

    with pytest.raises(ValueError, match="Changed: field 'ids' has values of any length"):
        history.rb.view(Changed())
    for layout in (Padded(), Packed()):
        batch = history.rb.view(Lengths(), layout).sample(8)
        assert batch["ids"].tolist() == [len(history.rows[k]["ids"]) for k in batch["id"]]
        sequences = history.rb.view(Lengths(), layout, Sequences(2)).sample(8)
        expected = [[len(history.rows[k]["ids"]) for k in row] for row in sequences["id"]]
        np.testing.assert_array_equal(sequences["ids"], np.where(sequences["mask"], expected, 0))
        assert history.rb.view(Lengths(), layout).columns["ids"].shape == ()


def test_a_layout_is_pickled_and_shown() -> None:
    """``repr`` shows the options that differ, and a copy has them all."""
    assert repr(Padded()) == "Padded()"
    assert repr(Packed(total=8, segments="N")) == "Packed(segments=('N',), total=8)"
    layer = Packed(multiple_of={"T": 8}, dtypes={"ids": "i8"}, offsets=np.int64)
    for copied in (copy.copy(layer), pickle.loads(pickle.dumps(layer))):
        assert vars(copied) == vars(layer)


def test_rows_of_another_axis_stay_whole() -> None:
    """Batches that are drawn while rows come and leave early have the items of their own rows."""
    fields: dict[str, Any] = {
        "id": {"shape": (), "dtype": "i8"},
        "ids": {"shape": ("T",), "dtype": "i8"},
    }
    rb = ReplayBuffer(50, fields, room={"T": 300}, seed=0)
    rb.add(id=0, ids=[0] * 3)
    stop = threading.Event()

    def write() -> None:
        rng, number = np.random.default_rng(0), 1
        while not stop.is_set():
            n = int(rng.integers(0, 40))
            rb.add(id=number * 100 + n, ids=np.full(n, number))
            number += 1

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for view in (rb, rb.view(Packed(segments=True))) * 200:
            batch = view.sample(16)
            numbers, lengths = np.divmod(batch["id"], 100)
            if "T_mask" in batch:
                if not (batch["id"] == 0).any():
                    np.testing.assert_array_equal(batch["T_mask"].sum(1), lengths)
                rows = np.broadcast_to(numbers[:, None], batch["ids"].shape)
                np.testing.assert_array_equal(batch["ids"][batch["T_mask"]], rows[batch["T_mask"]])
            else:
                np.testing.assert_array_equal(batch["ids"], numbers[batch["T_segments"]])
    finally:
        stop.set()
        writer.join()


def test_dtypes_of_numbers() -> None:
    """Items of each dtype are padded and packed as they were added."""
    for code in ("?", "i1", "u2", "i4", "u8", "f2", "f4", "f8", "c8", "M8[s]", "S3", "U2"):
        dtype = np.dtype(code)
        rb = ReplayBuffer(8, {"x": {"shape": ("T", 2), "dtype": dtype}}, room={"T": 50}, seed=0)
        values = np.arange(6).reshape(3, 2).astype("i8").astype(dtype)
        rb.add(x=values)
        rb.add(x=values[:1])
        for batch in rb.epoch(2, shuffle=False):
            assert batch["x"].dtype == dtype
            np.testing.assert_array_equal(batch["x"][0], values)
            np.testing.assert_array_equal(batch["x"][1, 1:], np.zeros((2, 2), dtype))
        for batch in rb.view(Packed()).epoch(2, shuffle=False):
            np.testing.assert_array_equal(batch["x"], np.concatenate([values, values[:1]]))


@pytest.mark.parametrize(
    ("code", "other"), [("f2", "f4"), ("f4", "c8"), ("u1", "f2"), ("?", "i8"), ("f4", "f2")]
)
@pytest.mark.parametrize("total", [None, 8])
def test_casts(code: str, other: str, total: int | None) -> None:
    """Items are cast to any dtype that has their values, in C or afterwards."""
    rb = ReplayBuffer(8, {"x": {"shape": ("T", 2), "dtype": code}}, room={"T": 50}, seed=0)
    values = np.array([[0, 1], [1, 0]], code)
    rb.add(x=values), rb.add(x=values[:1])
    view = rb.view(Packed(dtypes={"x": other}, total=total))
    out = {"x": np.full((9, 2), 5, other)}
    for batch in (*view.epoch(2, shuffle=False), view.sample(2, out=out)):
        assert batch["x"].dtype == other
        assert len(batch["x"]) == total or batch["T_offsets"][-1]
    expected = np.concatenate([values, values[:1]]).astype(other)
    np.testing.assert_array_equal(next(view.epoch(2, shuffle=False))["x"][:3], expected)


class Tail(Layer):
    """The last items of each row, and the length of the row behind it: fixed values for a model."""

    def around(self, fields: Any) -> tuple[int, int]:
        return 0, 1

    def reads(self, fields: Any) -> list[str]:
        return ["ids"]

    def columns(self, fields: Any) -> dict[str, Any]:
        return {"last": ("i4", ()), "following": ("i8", ())}

    def fill(self, windows: Any, wanted: Any) -> dict[str, Array]:
        ids, lengths = windows.read("ids"), windows.lengths("T")
        found = np.zeros(len(windows), "i4")
        some = np.flatnonzero(lengths[:, 0])
        found[some] = ids[some, 0, lengths[some, 0] - 1]
        return {"last": found, "following": lengths[:, 1]}


@pytest.mark.parametrize("layers", [(), (Packed(),), (Sequences(3), Packed())])
def test_layers_read_rows_around(history: RaggedHistory, layers: tuple[Layer, ...]) -> None:
    """A layer reads the items of the rows of its windows, padded by zeros."""
    batch = history.rb.view(Tail(), *layers).sample(20)
    there = batch.get("mask", np.ones(batch["id"].shape, bool))
    for k, last, following in zip(
        batch["id"][there], batch["last"][there], batch["following"][there], strict=True
    ):
        ids = history.rows[k]["ids"]
        assert last == (ids[-1] if len(ids) else 0)
        ended = history.rows[k]["terminated"] or k + 1 == len(history.rows)
        assert following == (0 if ended else len(history.rows[k + 1]["ids"]))


@pytest.mark.parametrize("library", ["torch", "jax"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("prefetch", [0, 2])
def test_batches_of_tensors(
    history: RaggedHistory, library: Any, layout: str, prefetch: int
) -> None:
    """Items become tensors; texts and the greatest length stay on the CPU."""
    package = need(library, "make test-torch")
    layers, expected = LAYOUTS[layout]
    view = history.rb.view(*layers, Sequences(2))
    kind = package.Tensor if library == "torch" else package.Array
    with view.batches(5, to=library, prefetch=prefetch) as batches:
        for _ in range(3):
            batch = next(batches)
            assert isinstance(batch.ids, kind) or batch.ids.dtype == np.int64
            assert isinstance(batch.text, np.ndarray)
            if expected.packed:
                assert isinstance(batch["T_longest"], np.integer)
                assert int(batch.T_longest) == max(np.diff(np.asarray(batch.T_offsets)))
            plain = {name: np.asarray(values) for name, values in batch.items()}
            check_batch(plain, history.rows, expected)
            if library == "torch":
                moved = batch.to("cpu")
                assert moved.text is batch.text
                assert int(moved.get("T_longest", 0)) == int(batch.get("T_longest", 0))


@pytest.mark.parametrize("prioritized", [False, True])
def test_several_environments(prioritized: bool) -> None:
    """Rows of several environments, and with weights, have their items."""
    history = RaggedHistory.of(steps=20, n_envs=2, prioritized=prioritized, size=30)
    for layers, options in (LAYERS["rows"], LAYERS["Sequences + NStep"], LAYERS["all"]):
        for of_items, expected in LAYOUTS.values():
            view = history.rb.view(*layers, *of_items)
            batch = view.sample(7)
            ids = batch.pop("next_id")  # that of another environment
            assert ids.shape == batch["id"].shape
            names = tuple(name for name in FIELDS if name not in LAST)
            shown = {name: one for name, one in batch.items() if name[:2] != "U_"}
            check_batch(shown, history.rows, expected, fields=names, **options)
            assert ("weights" in batch) == prioritized


def test_nstep_of_the_buffer() -> None:
    """With the option ``Nstep`` items are those of the first row, next ones of the last."""
    history = RaggedHistory.of(Nstep={"size": 3, "gamma": 0.9, "discount": True})
    for of_items, expected in LAYOUTS.values():
        check_batch(history.rb.view(*of_items).sample(8), history.rows, expected)
    for batch in (history.rb.sample(8), history.rb.get_all_transitions(), history.rb[2:5]):
        check_batch(batch, history.rows, Expected())
        assert "discount" in batch


def test_next_values_of_other_fields() -> None:
    """Fields of ``next_of`` and of ``stack_compress`` are read beside items."""
    fields: dict[str, Any] = {
        "id": {"shape": (), "dtype": "i8"},
        "ids": {"shape": ("T",), "dtype": "i4"},
        "obs": {"shape": (3,)},
        "frames": {"shape": (2, 4), "dtype": "u1"},
        "done": {"shape": (), "dtype": bool},
    }
    rb = ReplayBuffer(
        30, fields, next_of="obs", stack_compress={"frames": 1}, room={"T": 300}, seed=0
    )
    for k in range(50):
        frames = np.arange(k, k + 4)[None].repeat(2, 0).astype("u1")
        rb.add(id=k, ids=np.full(k % 7, k), obs=[k] * 3, next_obs=[k + 1] * 3, frames=frames,
               done=k % 9 == 8)  # fmt: skip
    for layers in ((), (Packed(),), (Sequences(3),), (NStep(2, rew=[]), Packed())):
        batch = rb.view(*layers).sample(12)
        there = batch.get("mask", np.ones(batch["id"].shape, bool))
        ids = batch["id"][there]
        np.testing.assert_array_equal(batch["obs"][there][:, 0], ids)
        np.testing.assert_array_equal(batch["frames"][there][:, 0, 0], ids)
        if "T_mask" in batch:
            np.testing.assert_array_equal(batch["T_mask"][there].sum(1), ids % 7)
        else:
            np.testing.assert_array_equal(batch["ids"], np.repeat(ids, ids % 7))


class Unsteady(Layer):
    """A layer whose values depend on the length of the batch: it forgets that there is padding."""

    def reads(self, fields: Any) -> list[str]:
        return ["ids"]

    def columns(self, fields: Any) -> dict[str, Any]:
        return {"width": ("i8", ())}

    def fill(self, windows: Any, wanted: Any) -> dict[str, Array]:
        ids = windows.read("ids")
        return {"width": np.full(len(ids), ids.shape[2])}


def test_layers_are_tested_on_values_of_any_length() -> None:
    """``check_layer`` adds values of any length, and finds a layer that counts padding."""
    fields: dict[str, Any] = {name: FIELDS[name] for name in ("ids", "edges", "root", "text")}
    fields |= {"nodes": FIELDS["nodes"], "done": {"shape": (), "dtype": bool}}
    check_layer(Tail, fields)
    check_layer(lambda: Packed(positions=True), fields)
    check_layer(lambda: Padded(side="left"), fields)
    with pytest.raises(AssertionError, match=r"Unsteady.*'width' of slot"):
        check_layer(Unsteady, fields)


@pytest.mark.parametrize("total", [2**31, 2**64])
def test_a_total_that_offsets_cannot_say_is_refused_by_the_view(total: int) -> None:
    """So a file that says it is refused when it is loaded, and not at the first draw."""
    rb = ReplayBuffer(4, {"ids": {"shape": ("T",), "dtype": "i4"}}, room={"T": 8}, seed=0)
    with pytest.raises(ValueError, match=f"int32 has no number for {total} items"):
        rb.view(Packed(total={"T": total}))
    if total < 2**63:
        rb.view(Packed(total={"T": total}, offsets=np.int64))
