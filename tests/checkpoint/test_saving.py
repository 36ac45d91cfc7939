"""Saving and loading, of every kind of buffer: what comes back goes on as the original does.

The original's copy by ``copy.deepcopy`` is the twin: it does not touch files.
"""

from __future__ import annotations

import copy
import sys
from functools import partial
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import saved_cases
from combinations import OPTIONS, SAMPLERS, Cell, build
from hypothesis import HealthCheck, given, settings
from saved_cases import small_segments
from scale import LONG, repeats

from cpprb_like import PrioritizedReplayBuffer, ReplayBuffer
from cpprb_like.checkpoint import _segments, describe, verify

KINDS = [
    Cell(sampler, "rows", option)
    for sampler in SAMPLERS
    if sampler != "LegacyUniform"  # it draws from NumPy's global state
    for option in ("sample", "n_envs", "next_of", "stack_compress", "Nstep")
]
by_kind = pytest.mark.parametrize("cell", KINDS, ids=lambda c: f"{c.sampler}-{c.option}")
assert set(OPTIONS) >= {cell.option for cell in KINDS}


def steps(rb: ReplayBuffer, n: int, start: int, rng: np.random.Generator) -> dict[str, Any]:
    """Values for n time steps of each environment."""
    shape = (n, rb.n_envs) if rb.n_envs > 1 else (n,)
    found: dict[str, Any] = {}
    for field in rb.schema.fields:
        if field.dtype.kind == "b":
            found[field.name] = rng.random(shape) < 0.08
        elif field.name == "id":
            found[field.name] = start + np.arange(np.prod(shape)).reshape(shape)
        else:
            found[field.name] = rng.random((*shape, *field.shape)).astype(field.dtype)
    if "stacked" in found:  # mostly the stack before, moved on
        for t in range(1, n):
            if rng.random() < 0.9:
                found["stacked"][t, ..., :2, :] = found["stacked"][t - 1, ..., 1:, :]
    return found


def change(rb: ReplayBuffer, what: str, amount: int, rng: np.random.Generator) -> None:
    """One of the things that change a buffer."""
    if what == "add":
        rb.add(**steps(rb, amount, rb.ring.written, rng))
    elif what == "add_where" and rb.n_envs > 1:
        values = {name: array[0] for name, array in steps(rb, 1, rb.ring.written, rng).items()}
        rb.add_where(rng.random(rb.n_envs) < 0.5, **values)
    elif what == "end":
        rb.on_episode_end()
    elif what == "clear":
        rb.clear()
    elif what == "draw" and len(rb):
        rb.sample(min(amount, len(rb)))
    elif what == "update" and len(rb):
        slots = rb.sample(min(amount, 5), indexes=True)["indexes"]
        rb.update(slots, goal=rng.random(len(slots)))
    elif what == "priorities" and rb.has_priorities and len(rb):
        indexes = rb.sample(min(amount, 9))["indexes"]
        rb.update_priorities(indexes, rng.random(len(indexes)) * 3)


def assert_same(one: ReplayBuffer, two: ReplayBuffer) -> None:
    """Two buffers have the same rows, and draw the same ones from now on."""
    assert len(one) == len(two)
    assert repr(one) == repr(two)
    for name, values in one.get_all_transitions().items():
        np.testing.assert_array_equal(values, two.get_all_transitions()[name], err_msg=name)
    two.check()
    for _ in range(3 if len(one) else 0):
        first, second = one.sample(7), two.sample(7)
        assert list(first) == list(second)
        for name, values in first.items():
            np.testing.assert_array_equal(values, second[name], err_msg=name)


_small_segments = small_segments(1 << 11)


OPERATIONS = st.tuples(
    st.sampled_from(
        ["add", "add", "add", "add_where", "end", "draw", "update", "priorities", "clear", "delete"]
    ),
    st.integers(1, 80),
)


@pytest.mark.once
@by_kind
@settings(
    max_examples=max(repeats(8, 4), settings().max_examples // 6),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    deadline=None,
)
@given(data=st.data())
def test_load_goes_on_as_the_original(cell: Cell, tmp_path: Path, data: st.DataObject) -> None:
    """Random histories with several saves to one folder; each state is as its copy."""
    folder = tmp_path / str(len(list(tmp_path.iterdir())))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    rb = build(cell)
    kept = data.draw(st.integers(1, 3))
    twins: list[ReplayBuffer] = []
    for _ in range(data.draw(st.integers(1, 4))):
        for what, amount in data.draw(st.lists(OPERATIONS, max_size=5)):
            if what == "delete":
                rb.on_episode_end()
                if len(rb.episodes) > 1:
                    rb.episodes.delete(amount % 2)
            else:
                change(rb, what, amount, rng)
        if data.draw(st.booleans()):
            rb.save(folder, keep=kept)
        else:
            rb.save_async(folder, keep=kept).result()
        twins.append(copy.deepcopy(rb))
        if data.draw(st.booleans()):
            loaded = ReplayBuffer.load(folder)
            assert type(loaded) is type(rb)
            assert_same(copy.deepcopy(twins[-1]), loaded)
            if data.draw(st.booleans()):  # goes on from what was loaded, incrementally
                rb = ReplayBuffer.load(folder)
    for number, twin in list(enumerate(twins, 1))[-kept:]:
        assert_same(copy.deepcopy(twin), ReplayBuffer.load(folder, state=number))
    other = build(cell, seed=9)
    rng = np.random.default_rng(3)
    change(other, "add", 30, rng)
    generator, sampler = other.rng, other.sampler
    other.restore(folder)
    assert other.rng is generator
    assert other.sampler is sampler
    assert_same(twins[-1], other)


@by_kind
def test_another_capacity_keeps_the_newest_rows(cell: Cell, tmp_path: Path) -> None:
    """And the buffer goes on as any other."""
    rng = np.random.default_rng(5)
    rb = build(cell)
    for what in ("add", "priorities", "add", "end", "add", "draw"):
        change(rb, what, 33, rng)
    rb.save(tmp_path / "rb")
    own = rb.get_all_transitions()
    rows = {number: k for k, number in enumerate(own["id"].tolist())}
    ids = np.sort(own["id"])
    for size in (2 * rb.n_envs, 17 * rb.n_envs, 60, 61, 300):
        other = ReplayBuffer.load(tmp_path / "rb", size=size)
        other.check()
        assert other.capacity == size
        found = other.get_all_transitions()
        if size < len(ids):
            np.testing.assert_array_equal(np.sort(found["id"])[-size:], ids[-size:])
        else:
            np.testing.assert_array_equal(np.sort(found["id"]), ids)
        there = [k for k, number in enumerate(found["id"].tolist()) if number in rows]
        same = [rows[found["id"][k]] for k in there]
        for name, values in found.items():
            np.testing.assert_array_equal(values[there], own[name][same], err_msg=name)
        for what in ("add", "draw", "priorities", "end", "add"):
            change(other, what, 33, rng)
        other.check()


def test_a_subset_of_fields_and_a_file_map(tmp_path: Path) -> None:
    """Other ways to load; what does not fit is an error."""
    fields: dict[str, Any] = {
        "obs": {"shape": 4},
        "rew": {"shape": ()},
        "done": {"shape": (), "dtype": bool},
    }
    rb = ReplayBuffer(50, fields, seed=0)
    rng = np.random.default_rng(0)
    rb.add(obs=rng.random((70, 4)), rew=rng.random(70), done=rng.random(70) < 0.1)
    rb.save(tmp_path / "rb")
    some = ReplayBuffer.load(tmp_path / "rb", fields=["rew", "done"])
    assert list(some.get_all_transitions()) == ["rew", "done"]
    np.testing.assert_array_equal(
        some.get_all_transitions()["rew"], rb.get_all_transitions()["rew"]
    )
    mapped = ReplayBuffer.load(tmp_path / "rb", mmap_prefix=tmp_path / "map")
    assert (tmp_path / "map.dat").exists()
    np.testing.assert_array_equal(
        mapped.get_all_transitions()["obs"], rb.get_all_transitions()["obs"]
    )
    with pytest.raises(ValueError, match=r"'done'.* end episodes"):
        ReplayBuffer.load(tmp_path / "rb", fields=["rew"])
    for wrong in (7, [3], []):
        with pytest.raises((TypeError, ValueError), match="fields: expected names of fields, got"):
            ReplayBuffer.load(tmp_path / "rb", fields=wrong)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="has a ReplayBuffer, no Prioritized"):
        PrioritizedReplayBuffer.load(tmp_path / "rb")
    other = ReplayBuffer(50, fields | {"obs": {"shape": 5}})
    with pytest.raises(ValueError, match=r"'obs': float32 of shape \(5,\) here"):
        other.restore(tmp_path / "rb")


@pytest.mark.once
@pytest.mark.parametrize("kind", ["ragged", "narrow", "narrow+next_of+prioritized+n_envs"])
@pytest.mark.parametrize("seed", range(20 if LONG else repeats(6, 2)))
def test_values_of_any_length_go_on_as_the_original(kind: str, seed: int, tmp_path: Path) -> None:
    """Rows that leave early and that are moved, over several saves; also with other rooms."""
    rng = np.random.default_rng(seed)
    rb = saved_cases.make(kind, 60, seed)
    for _ in range(6):
        for _ in range(rng.integers(4)):
            saved_cases.add(rb, int(rng.integers(1, 30)))
            saved_cases.update(rb, int(rng.integers(1, 9)))
            if rng.random() < 0.2 and len(rb.episodes) > 2:
                rb.on_episode_end()
                rb.episodes.delete(int(rng.integers(2)))
        if rng.random() < 0.5:
            rb.save(tmp_path)
        else:
            rb.save_async(tmp_path).result()
        loaded = ReplayBuffer.load(tmp_path)
        assert [one.left for one in loaded.ring.items] == [one.left for one in rb.ring.items]
        assert_same_ragged(loaded, copy.deepcopy(rb))
        if rng.random() < 0.3:  # goes on from what was loaded, incrementally
            rb = ReplayBuffer.load(tmp_path)
    versions = saved_cases.versions_of(rb)
    room, size = int(rng.integers(8, 200)), int(rng.integers(4, 50))
    other = ReplayBuffer.load(tmp_path, size=size, room={"E": 900, "T": room})
    other.check()
    saved_cases.check_rows(other, versions)
    newest = np.sort(rb.get_all_transitions()["id"])[::-1].tolist()[: len(other)]
    assert np.sort(other.get_all_transitions()["id"])[::-1].tolist() == newest
    saved_cases.add(other, 40)
    other.check()
    saved_cases.check_rows(other)


def assert_same_ragged(one: ReplayBuffer, two: ReplayBuffer) -> None:
    """Two buffers have the same rows, and draw the same ones from now on."""
    saved_cases.check_rows(one, saved_cases.versions_of(two))
    assert saved_cases.digest(one) == saved_cases.digest(two)


TEXT_ROWS: dict[str, Any] = {
    "tokens": {"shape": ("T",), "dtype": "i4"},
    "pairs": {"shape": (2, "P"), "dtype": "i8", "counts": "T"},
    "text": {"dtype": str},
    "id": {"shape": (), "dtype": "i8"},
}


def text_rows() -> ReplayBuffer:
    """Ten rows of 0 to 9 tokens."""
    rb = ReplayBuffer(20, TEXT_ROWS, room={"T": 99, "P": 40, "text": 99})
    for n in range(10):
        rb.add(tokens=np.arange(n), pairs=np.full((2, min(n, 3)), n - 1), text="é" * n, id=n)
    return rb


def test_rooms_and_fields_of_loaded_rows(tmp_path: Path) -> None:
    """Rows leave oldest first, and are counted; what cannot be is refused by name."""
    rb = text_rows()
    rb.save(tmp_path)
    load = partial(ReplayBuffer.load, tmp_path)
    small = load(room={"T": 29})
    assert small.get_all_transitions()["id"].tolist() == [7, 8, 9]
    assert [one.left for one in small.ring.items] == [7, 0, 0]
    assert small.schema.rooms == {"T": 29, "P": 40, "text": 99}
    small.check()
    assert load(room={"P": 4, "T": 30}).get_all_transitions()["id"].tolist() == [9]
    with pytest.raises(ValueError, match=r"room=\{'T': 8\}: a row has 9 items"):
        load(room={"T": 8})
    with pytest.raises(ValueError, match=r"room: no axis 'Q'"):
        load(room={"Q": 8})
    with pytest.raises(ValueError, match=r"fields: 'pairs' counts items of \['tokens'\]"):
        load(fields=["pairs", "id"])
    with pytest.raises(ValueError, match=r"room: no axis 'T'"):
        load(fields="text", room={"T": 30})
    texts = load(fields=["text", "id"], room={"text": 40}, mmap_prefix=tmp_path / "rows")
    assert texts.get_all_transitions()["text"].tolist() == ["é" * n for n in (8, 9)]
    with pytest.raises(ValueError, match=r"'tokens', 'pairs', 'text'\] have values of any length"):
        rb.save_transitions(tmp_path / "file")
    with pytest.raises(ValueError, match=r"have values of any length, which cpprb's files"):
        rb.load_transitions(tmp_path / "file")


def test_a_description_has_axes_and_their_items(tmp_path: Path) -> None:
    """Shapes as declared, rooms, and how many items rows have and how many rows left."""
    rb = text_rows()
    rb.save(tmp_path)
    (found,) = describe(tmp_path)["buffers"]
    assert [one["shape"] for one in found["fields"]] == [["T"], [2, "P"], [], []]
    assert [one["dtype"] for one in found["fields"]] == ["int32", "int64", "str", "int64"]
    assert [one["nbytes"] for one in found["fields"]] == [396, 640, 99, 160]
    assert found["axes"] == [
        {"name": "T", "room": 99, "fields": ["tokens"], "items": 45, "left": 0},
        {"name": "P", "room": 40, "fields": ["pairs"], "items": 24, "left": 0},
        {"name": "text", "room": 99, "fields": ["text"], "items": 90, "left": 0},
    ]
    assert found["rows"] == 10
    (verdict,) = verify(tmp_path)
    assert verdict.is_in_order
    path = max(tmp_path.glob("*.npy"), key=lambda path: b"<i4" in path.read_bytes()[:100])
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    (verdict,) = verify(tmp_path)
    assert [one.content for one in verdict.damage] == ["field tokens of rows 0 to 9 of the buffer"]
    assert verdict.lost == {0: (9, 10)}


@pytest.mark.once
def test_files_of_edited_rows_do_not_pile_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A segment with edited rows is written again, and no other one.

    Edited rows went to patches, of which each save added one that was never joined with others.
    """
    monkeypatch.setattr(_segments, "SEGMENT_NBYTES", 1 << 10)
    rb = PrioritizedReplayBuffer(500, {"x": {"shape": ()}, "wide": {"shape": 100}}, seed=0)
    rb.add(x=np.arange(500), wide=np.zeros((500, 100)))
    rb.save(tmp_path)
    names = {path.name for path in tmp_path.iterdir()}
    for count in range(10):
        rb.update([count % 7, 300], x=[-count, count])
        rb.update_priorities([count], [count])
        rb.save(tmp_path)
        now = {path.name for path in tmp_path.iterdir()}
        assert len(now) == len(names)
        assert len(now - names) <= 14  # of two segments, priorities and the manifest
        names = now
    loaded = PrioritizedReplayBuffer.load(tmp_path)
    assert np.array_equal(loaded.get_all_transitions()["x"], rb.get_all_transitions()["x"])


@pytest.mark.parametrize("codec", [None, "zlib"])
@pytest.mark.parametrize("options", [{}, {"next_of": "wide"}, {"stack_compress": {"wide": 0}}])
def test_rows_wider_than_a_dtype_can_be(
    options: Any, codec: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NumPy has no dtype of 2**31 bytes, as which a row was copied. Here the limit is lower."""
    monkeypatch.setattr(_segments, "WIDEST", 100)
    fields: Any = {"x": {"shape": ()}, "wide": {"shape": (3, 150), "dtype": "u1"}}
    rb = ReplayBuffer(8, fields, **options)
    for t in range(11):
        values = np.full((3, 150), t) + np.arange(3)[:, None]
        following = {"next_wide": values + 1} if "next_of" in options else {}
        rb.add(x=t, wide=values, **following)
        rb.save(tmp_path, codec=codec, sync=False)
    loaded = ReplayBuffer.load(tmp_path)
    for name, values in rb.get_all_transitions().items():
        np.testing.assert_array_equal(loaded.get_all_transitions()[name], values)
    rb.save_async(tmp_path / "beside", codec=codec, sync=False).result()
    other = ReplayBuffer.load(tmp_path / "beside", size=5)
    assert sorted(other.get_all_transitions()["wide"][:, 0, 0]) == [6, 7, 8, 9, 10]


@pytest.mark.slow
@pytest.mark.skipif(not LONG, reason="CPPRB_LIKE_LONG=1 runs it: it takes 9 GB of memory")
def test_a_row_of_two_gigabytes(tmp_path: Path) -> None:
    """As above, at the true limit."""
    n = 1 << 31
    rb = ReplayBuffer(1, {"x": {"shape": ()}, "wide": {"shape": (n,), "dtype": "u1"}})
    row = np.zeros(n, np.uint8)
    row[[0, n // 2, n - 1]] = 1, 2, 3
    rb.add(x=7, wide=row)
    del row
    rb.save(tmp_path, sync=False)
    del rb
    loaded = ReplayBuffer.load(tmp_path)
    wide = loaded.get_all_transitions(fields=["wide"])["wide"][0]
    assert wide[[0, n // 2, n - 1]].tolist() == [1, 2, 3]
    assert int(wide.sum(dtype=np.int64)) == 6


@pytest.mark.parametrize("dtype", ["u1", "f4", "f8", "c16"])
def test_a_field_of_no_values_between_others(dtype: str, tmp_path: Path) -> None:
    """Its place in the record is that of another field, which NumPy takes for an overlap."""
    fields: Any = {
        "a": {"shape": (), "dtype": "f4"},
        "none": {"shape": (0,), "dtype": dtype},
        "b": {"shape": 3, "dtype": "u1"},
        "empty": {"shape": (2, 0), "dtype": "f4"},
    }
    rb = ReplayBuffer(5, fields)
    for t in range(7):
        rb.add(a=t, none=np.zeros(0), b=[t] * 3, empty=np.zeros((2, 0)))
    rb.save(tmp_path)
    rows = ReplayBuffer.load(tmp_path).get_all_transitions()
    for name, values in rb.get_all_transitions().items():
        assert rows[name].dtype == values.dtype
        assert np.array_equal(rows[name], values)


@pytest.mark.parametrize("name", ["size", "replace", "mmap_prefix"])
def test_a_wrong_argument_is_not_taken_for_damage(name: str, tmp_path: Path) -> None:
    """The message names the argument, and says nothing of the file."""
    ReplayBuffer(3, {"x": {}}).save(tmp_path)
    wrong: dict[str, Any] = {name: 7.5} if name != "size" else {name: "many"}
    with pytest.raises(TypeError, match=f"^{name}: expected"):
        ReplayBuffer.load(tmp_path, **wrong)


def test_a_level_of_a_wrong_type_is_named(tmp_path: Path) -> None:
    """As other arguments are."""
    wrong: Any = "high"
    with pytest.raises(TypeError, match=r"^level: expected an integer"):
        ReplayBuffer(3, {"x": {}}).save(tmp_path, codec="zlib", level=wrong)


def test_names_of_loaded_fields_are_those_of_keywords(tmp_path: Path) -> None:
    """``add`` compares keywords by address; with equal but other strings it took a third longer."""
    rb = ReplayBuffer(4, {"obs": {"shape": 2}, "rew": {}})
    rb.save(tmp_path / "saved")
    loaded = ReplayBuffer.load(tmp_path / "saved")
    assert [column.name is sys.intern(column.name) for column in loaded.ring.columns] == [True] * 2
