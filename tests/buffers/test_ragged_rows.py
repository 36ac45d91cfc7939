"""Rows of any length against their twin of Python lists, and beside threads that write."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from forked import start
from hypothesis import given
from hypothesis import strategies as st
from ragged_histories import ACTIONS, OFTEN, Action, play, random_case, random_history, used_of
from scale import LONG, repeats
from strategies import Array
from threads import run_together

from cpprb_like import NotEnoughDataError, ReplayBuffer
from cpprb_like.buffers import _ragged_rows
from cpprb_like.samplers import Prioritized
from cpprb_like.views import Packed, Sequences

SEEDS = st.integers(0, 2**32 - 1)
HISTORIES = st.lists(st.tuples(st.sampled_from([*ACTIONS, *OFTEN]), SEEDS), max_size=40)


@given(seed=SEEDS, actions=HISTORIES)
def test_any_history_agrees_with_the_twin(seed: int, actions: list[Action]) -> None:
    """Rows, batches, counts and used memory are those of the twin after each action."""
    play(random_case(np.random.default_rng(seed)), actions)


@pytest.mark.slow
def test_many_random_histories_agree_with_the_twin() -> None:
    """As above; a hundred thousand histories before a release."""
    for seed in range(100_000 if LONG else repeats(150, 60)):
        with told(f"play(*random_history({seed}))"):
            play(*random_history(seed))


@contextmanager
def told(what: str) -> Iterator[None]:
    """Say in what the block failed."""
    try:
        yield
    except Exception as error:
        raise AssertionError(what) from error


# ---- which rows leave --------------------------------------------------------------------


def tokens(capacity: int, room: int, **options: Any) -> ReplayBuffer:
    """A buffer of rows that have a number and any number of tokens."""
    fields: dict[str, Any] = {
        "id": {"shape": (), "dtype": "i8"},
        "t": {"shape": ("T",), "dtype": "i4"},
    }
    return ReplayBuffer(capacity, fields, room={"T": room}, seed=0, **options)


def add(rb: ReplayBuffer, first: int, *lengths: int) -> None:
    """Rows of these lengths, one by one, whose tokens are their numbers."""
    for number, length in enumerate(lengths, first):
        rb.add(id=number, t=np.full(length, number, "i4"))


def ids(rb: ReplayBuffer) -> list[int]:
    """The numbers of the rows, whose tokens are all right."""
    batch = rb.get_all_transitions()
    assert (batch["t"] == np.where(batch["T_mask"], batch["id"][:, None], 0)).all()
    return sorted(batch["id"].tolist())


@pytest.mark.parametrize("room", [1, 2, 3, 10, 100])
def test_rows_of_the_extreme_lengths(room: int) -> None:
    """Lengths 0, 1, room - 1 and room, each behind each other one."""
    rb = tokens(5, room)
    lengths: list[int] = []
    for first in (0, 1, room - 1, room):
        for second in (0, 1, room - 1, room):
            for length in (first, second):
                add(rb, len(lengths), length)
                lengths.append(length)
                kept = [k for k in range(len(lengths)) if sum(lengths[k:]) <= room]
                assert ids(rb) == kept[-5:]
                assert used_of(rb)["T"] == sum(lengths[k] for k in kept[-5:])


def test_rows_wrap_before_their_items() -> None:
    """With much room a row leaves when its slot gets a new one, and none has left for room."""
    rb = tokens(4, 1000)
    add(rb, 0, *[3] * 50)
    assert ids(rb) == [46, 47, 48, 49]
    assert [memory.left for memory in rb.ring.items] == [0]


def test_items_wrap_before_rows() -> None:
    """With little room the oldest rows leave early, and are counted."""
    rb = tokens(100, 10)
    add(rb, 0, *[3] * 50)
    assert ids(rb) == [47, 48, 49]
    assert [memory.left for memory in rb.ring.items] == [47]
    assert len(rb) == rb.stats()["rows"] == 3


def test_a_row_without_items_leaves_only_with_older_ones() -> None:
    """The oldest rows leave until there is room, whatever each of them has."""
    rb = tokens(10, 4)
    add(rb, 0, 0, 2, 0, 2, 0)
    assert ids(rb) == [0, 1, 2, 3, 4]
    add(rb, 5, 1)
    assert ids(rb) == [2, 3, 4, 5]


def test_items_of_a_deleted_episode_are_free_when_older_ones_are() -> None:
    """Deleted items in the middle of the memory are no room yet."""
    rb = ReplayBuffer(
        10,
        {"id": {"shape": (), "dtype": "i8"}, "t": {"shape": ("T",)}, "done": {"shape": ()}},
        room={"T": 6},
    )
    for number in range(3):
        rb.add(id=number, t=np.zeros(2, "f4"), done=1)
    rb.episodes.delete(1)
    assert used_of(rb) == {"T": 6}
    rb.add(id=3, t=np.zeros(1, "f4"), done=1)
    assert sorted(rb.get_all_transitions()["id"].tolist()) == [2, 3]
    assert used_of(rb) == {"T": 3}


def test_an_update_with_more_items_may_cost_the_oldest_rows() -> None:
    """The new items need room beside the old ones, which are free when older ones are."""
    rb = tokens(10, 8)
    add(rb, 0, 2, 2, 2)
    indexes = rb.sample(30, indexes=True)
    (of_newest,) = set(indexes["indexes"][indexes["id"] == 2].tolist())
    rb.update([of_newest], t=[np.full(3, 2, "i4")])
    assert ids(rb) == [1, 2]
    assert used_of(rb) == {"T": 7}
    add(rb, 3, 5)
    assert ids(rb) == [2, 3]
    assert used_of(rb) == {"T": 8}


def test_an_update_for_which_its_own_row_would_leave_is_refused() -> None:
    """There is room for the new items beside the old ones only without the row."""
    rb = tokens(10, 5)
    add(rb, 0, 3)
    before = ids_and_tokens(rb), used_of(rb), rb.stats()
    with pytest.raises(ValueError, match=r"axis 'T' .*no place beside the old ones.*room=5"):
        rb.update([0], t=[np.zeros(4, "i4")])
    assert (ids_and_tokens(rb), used_of(rb), rb.stats()) == before


@pytest.mark.parametrize("n_envs", [1, 2])
def test_fields_without_a_byte_beside_items(n_envs: int) -> None:
    """A fixed field may have no values, in one row and in several."""
    fields: dict[str, Any] = {"none": {"shape": (0,)}, "t": {"shape": ("T",), "dtype": "i4"}}
    rb = ReplayBuffer(8, fields, room={"T": 40}, n_envs=n_envs)
    lead = (n_envs,) if n_envs > 1 else ()
    rows: Any = [np.arange(3), np.arange(2)][:n_envs]
    rb.add(none=np.zeros((*lead, 0)), t=rows if n_envs > 1 else rows[0])
    rb.add(none=np.zeros((3, *lead, 0)), t=[rows] * 3 if n_envs > 1 else rows * 3)
    batch = rb.get_all_transitions()
    assert batch["none"].shape == (4 * n_envs, 0)
    assert batch["T_mask"].sum(1).tolist() == [3, 2][:n_envs] * 4


def test_rows_whose_length_stays_are_updated_in_place() -> None:
    """Beside one row that gets another length, in a full room."""
    rb = tokens(10, 10)
    for k in range(3):
        add(rb, k, 3)
    rb.update([1, 2, 0], t=[np.ones(3, "i4"), np.zeros(1, "i4"), np.ones(3, "i4")])
    assert [len(row) for _, row in ids_and_tokens(rb)] == [3, 3, 1]


def test_an_update_of_rows_that_are_overwritten_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It skips them. The items of the field that it leaves as it is were read of the newer rows."""
    fields: dict[str, Any] = {"a": {"shape": ("T",)}, "b": {"shape": ("T",)}}
    rb = ReplayBuffer(4, fields, room={"T": 40}, mmap_prefix=tmp_path / "rows", mmap_mode="x")
    rb.add(a=np.ones((4, 2)), b=np.ones((4, 2)))
    real = _ragged_rows._check_update

    def check_update(*given: Any) -> None:
        real(*given)
        rb.add(a=np.full((3, 8), 5), b=np.full((3, 8), 5))

    monkeypatch.setattr(_ragged_rows, "_check_update", check_update)
    rb.update(rb.ring.span + np.arange(4), a=np.zeros((4, 2)))
    rows = rb.get_all_transitions()
    assert rows["a"][rows["T_mask"]].tolist() == [5.0] * 24 + [0.0] * 2
    assert rows["b"][rows["T_mask"]].tolist() == [5.0] * 24 + [1.0] * 2
    rb.check()


@pytest.mark.parametrize("n_envs", [1, 3])
def test_a_step_with_more_items_than_room_changes_nothing(n_envs: int) -> None:
    """Neither the rows nor the memory, also as the last step of a long call."""
    rb = tokens(9, 6, n_envs=n_envs)
    step: Any = np.ones(2, "i4") if n_envs == 1 else [np.ones(2, "i4")] * 3
    rb.add(id=[0] * n_envs, t=[step] if n_envs == 1 else step)
    before = ids_and_tokens(rb), used_of(rb), rb.stats()
    wide = [np.zeros(k, "i4") for k in ([1, 7, 1] if n_envs == 1 else [1, 5, 1])]
    with pytest.raises(ValueError, match=r"'t': expected at most room={'T': 6} .*got 7"):
        rb.add(id=[0] * 3, t=wide)
    assert (ids_and_tokens(rb), used_of(rb), rb.stats()) == before


class Picky(Prioritized):
    """A sampler that refuses priorities of 3 rows, as no part of a call may fail behind another."""

    def prepare(self, priorities: Any) -> Any:
        if np.size(priorities) == 3:
            raise MemoryError("no memory for three")
        return super().prepare(priorities)


def test_a_call_in_parts_is_checked_before_the_first_part() -> None:
    """What a later part needs is made before rows of the first one are written."""
    rb = tokens(9, 6, sampler=Picky())
    add(rb, 0, 2, 2)
    before = ids_and_tokens(rb), used_of(rb), rb.stats()
    rows = [np.ones(k, "i4") for k in (3, 3, 2, 2, 2)]
    with pytest.raises(MemoryError, match="three"):
        rb.add(id=range(5), t=rows, priorities=[1.0] * 5)
    assert (ids_and_tokens(rb), used_of(rb), rb.stats()) == before
    rb.add(id=range(4), t=rows[:4], priorities=[1.0, 2.0, 3.0, 4.0])
    assert sorted(ids_and_tokens(rb)) == [(2, [1, 1]), (3, [1, 1])]
    assert rb.get_max_priority() == 4.0


def ids_and_tokens(rb: ReplayBuffer) -> list[tuple[int, list[int]]]:
    """All rows in the order of their slots."""
    batch = rb.get_all_transitions()
    tokens = [row[mask] for row, mask in zip(batch["t"], batch["T_mask"], strict=True)]
    return list(zip(batch["id"].tolist(), [row.tolist() for row in tokens], strict=True))


# ---- threads -----------------------------------------------------------------------------


class Numbered:
    """Rows whose items are all their number, on three axes; some have no items."""

    def __init__(self, capacity: int, room: int, n_envs: int, **options: Any) -> None:
        fields: dict[str, Any] = {
            "id": {"shape": (), "dtype": "i8"},
            "t": {"shape": ("T",), "dtype": "i4"},
            "wide": {"shape": ("T", 500), "dtype": "i8"},
            "n": {"shape": (2, "N"), "dtype": "f8"},
            "say": {"dtype": str},
            "done": {"shape": (), "dtype": "?"},
        }
        self.rb = ReplayBuffer(
            capacity,
            fields,
            room={"T": room, "N": room, "say": 8 * room},
            n_envs=n_envs,
            seed=1,
            **options,
        )
        self.n_envs, self.number = n_envs, 0
        self.rng = np.random.default_rng(0)

    def values(self, number: int) -> dict[str, Any]:
        """The values of a row, of any lengths."""
        n_tokens, n_nodes = self.rng.integers(0, 9, 2).tolist()
        return {
            "id": number,
            "t": np.full(n_tokens, number, "i4"),
            "wide": np.full((n_tokens, 500), number, "i8"),
            "n": np.full((2, n_nodes), number, "f8"),
            "say": f"{number} " * int(self.rng.integers(4)),
            "done": number // self.n_envs % 7 == 6,
        }

    def add(self) -> None:
        """A step of each environment."""
        rows = [self.values(self.number + k) for k in range(self.n_envs)]
        self.number += self.n_envs
        self.rb.add(**{name: [row[name] for row in rows] for name in rows[0]})

    def add_one(self) -> None:
        """One row, by the short way; with one environment."""
        self.rb.add(**self.values(self.number))
        self.number += 1

    def update(self) -> None:
        """Other lengths for drawn rows, whose items are still their number."""
        with suppress(NotEnoughDataError):
            batch = self.rb.sample(3, indexes=True, fields="id")
            rows = [self.values(number) for number in batch["id"].tolist()]
            names = ["t", "wide"] if self.rng.random() < 0.5 else ["n", "say"]
            given = {name: [row[name] for row in rows] for name in names}
            try:
                self.rb.update(batch["indexes"], **given)
            except ValueError as error:
                if "no place beside the old ones" not in str(error):
                    raise

    def delete(self) -> None:
        """The oldest episode that has ended."""
        with suppress(IndexError, ValueError):
            self.rb.episodes.delete(0)

    def padded(self, *layers: Any) -> Callable[[], None]:
        """Draws padded batches."""

        def draw() -> None:
            with suppress(NotEnoughDataError):
                batch = self.rb.view(*layers).sample(8) if layers else self.rb.sample(8)
                self.check_padded(batch)

        return draw

    def check_padded(self, batch: dict[str, Array]) -> None:
        """All items of each row are its number."""
        numbers = batch["id"]
        for name, mask in [("t", "T_mask"), ("wide", "T_mask"), ("n", "N_mask")]:
            values = np.moveaxis(batch[name], -2, -1) if name == "wide" else batch[name]
            extra = values.ndim - numbers.ndim - 1
            own = numbers.reshape(*numbers.shape, *[1] * (extra + 1))
            there = batch[mask].reshape(*numbers.shape, *[1] * extra, batch[mask].shape[-1])
            assert (values == np.where(there, own, 0)).all(), f"{name}: items of another row"
        texts = zip(batch["say"].ravel().tolist(), numbers.ravel().tolist(), strict=True)
        for text, number in texts:
            assert set(text.split()) <= {str(number)}, "a text of another row"

    def packed(self) -> None:
        """Draws packed batches."""
        with suppress(NotEnoughDataError):
            batch = self.rb.view(Packed(segments=True)).sample(8)
            for name, axis in [("t", "T"), ("wide", "T"), ("n", "N")]:
                own = batch["id"][batch[f"{axis}_segments"]]
                assert (batch[name] == (own[:, None] if name == "wide" else own)).all(), name

    def everything(self) -> None:
        """Reads all rows."""
        self.check_padded(self.rb.get_all_transitions())


@pytest.mark.slow
@pytest.mark.usefixtures("switch_often")
@pytest.mark.parametrize("n_envs", [1, 3])
@pytest.mark.parametrize(("capacity", "room"), [(6, 500), (500, 60), (30, 100)])
@pytest.mark.parametrize("changes", [False, True])
def test_each_row_that_is_drawn_beside_a_writer_is_one_that_was_added(
    capacity: int, room: int, n_envs: int, changes: bool
) -> None:
    """No batch has items of two rows, while rows leave, by capacity or for room."""
    options = {"sampler": Prioritized(check_for_update=True)} if changes else {}
    one = Numbered(capacity, room, n_envs, **options)
    one.add()
    write = one.add if n_envs > 1 else one.add_one

    def write_and_change() -> None:
        write()
        if one.rng.random() < 0.3:
            one.update()
        if one.rng.random() < 0.05:
            one.delete()

    run_together(
        write_and_change if changes else write,
        one.padded(),
        one.padded(Sequences(2)),
        one.packed,
        one.everything,
        seconds=10.0 if LONG else 1.0,
    )
    one.rb.check()
    assert one.number > len(one.rb)  # some have left


@pytest.mark.usefixtures("switch_often")
def test_threads_add_calls_of_different_sizes() -> None:
    """The memory of one call is not that of another, while it is made."""
    rb = ReplayBuffer(30_000, {"x": {"shape": ("T",), "dtype": "i8"}}, room={"T": 60_000})

    def add(n: int) -> Callable[[], object]:
        values = np.repeat(np.arange(n), 2), 2 * np.arange(n + 1)
        return lambda: rb.add(x=values)

    run_together(add(5000), add(10), add(3), seconds=3.0 if LONG else 0.6)
    rb.check()
    rows = rb.get_all_transitions()["x"]
    assert rows.shape[1] == 2
    assert (rows[:, 0] == rows[:, 1]).all()


def test_a_child_reads_no_items_that_an_update_of_its_parent_writes(tmp_path: Path) -> None:
    """Rows leave for the new items, which lie over theirs: reads of the child raise then."""
    room = 9_000_000
    fields: dict[str, Any] = {"x": {"shape": ("T",), "dtype": "i8"}}
    rb = ReplayBuffer(300, fields, room={"T": room}, mmap_prefix=tmp_path / "rows", seed=0)
    for row in range(90):
        rb.add(x=np.full(room // 90, row))

    def child() -> None:
        wrong = 0
        until = time.monotonic() + 5
        with suppress(RuntimeError):
            while time.monotonic() < until:
                values = rb.sample(1)["x"][0]
                wrong += int(values.min() != values.max() or values[0] < 0)
        assert wrong == 0

    process = start(child)
    time.sleep(0.2)
    for _ in range(3):
        newest = rb.ring.span + rb.ring.written - 1
        rb.update([newest], x=[np.full(room // 3, -7)])
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 0
