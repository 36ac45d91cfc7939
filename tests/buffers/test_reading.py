"""Rows by slot, iteration, epochs of batches, everything at once, and ``repr``."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from distributions import chi_square, chi_square_limit
from helpers import refused
from numbered_rows import numbered
from timing import ratio

from cpprb_like import ReplayBuffer
from cpprb_like.views import sequence_priorities


def test_len_counts_the_rows_that_can_be_drawn() -> None:
    """``len`` grows to the capacity; ``clear`` makes it zero; a buffer is true, also when empty."""
    rb = ReplayBuffer(3, {"x": {"shape": ()}})
    assert rb
    for i in range(5):
        assert len(rb) == min(i, 3)
        rb.add(x=i)
    rb.clear()
    assert len(rb) == 0
    assert rb


def test_indexing_by_slot() -> None:
    """An int gives one row; slices, lists, arrays and masks give rows, as in NumPy."""
    rb = numbered(8, 5)  # slots hold 5 6 7 3 4
    slots = [5, 6, 7, 3, 4]
    for i in (*range(-5, 5), np.int64(2), np.uint8(3)):
        row = rb[i]
        assert list(row) == ["x"]
        assert np.shape(row["x"]) == ()
        assert row["x"] == slots[i]
    for index in (
        slice(None),
        slice(1, 4),
        slice(None, None, 2),
        slice(None, None, -2),
        slice(-2, 100),
        slice(3, 1),
    ):
        assert rb[index]["x"].tolist() == slots[index]
    assert rb[[4, 0, -1]]["x"].tolist() == [4, 5, 4]
    assert rb[np.array([1, 1], "u1")]["x"].tolist() == [6, 6]
    assert rb[np.array([True, False, True, False, False])]["x"].tolist() == [5, 7]
    assert rb[[]]["x"].shape == (0,)


RAGGED: list[Any] = [[1, 2], [3]]


@pytest.mark.parametrize(
    ("read", "name"),
    [
        (lambda rb: rb[RAGGED], "slots"),
        (lambda rb: rb["x":], "slots"),
        (lambda rb: rb[:1.5], "slots"),
        (lambda rb: rb[::0], "slots"),
        (lambda rb: rb.stack("x", RAGGED), "slots"),
        (lambda rb: rb.stack("x", [RAGGED]), "slots"),
        (lambda rb: rb.update(RAGGED, x=[1, 2]), "indexes"),
        (lambda rb: rb.update([0, 1], x=RAGGED), "field 'x'"),
        (lambda rb: rb.add(x=RAGGED), "field 'x'"),
        (lambda rb: rb.add_where(RAGGED, x=1), "present"),
        (lambda rb: sequence_priorities(RAGGED), "td_errors"),
        (lambda rb: sequence_priorities([[1.0, 2.0]], RAGGED), "mask"),
    ],
)
def test_words_of_numpy_have_the_name_of_the_argument(
    read: Callable[[ReplayBuffer], object], name: str
) -> None:
    """A ragged list, or a slice of other things than integers, was refused without a name."""
    rb = numbered(8, 5)
    with refused(rb, (TypeError, ValueError), f"{name}:"):
        read(rb)


def test_one_array_is_stored_in_a_list() -> None:
    """In a field of objects an array is several steps; a list of one array is one, that array."""
    rb = ReplayBuffer(10, {"note": {"shape": (), "dtype": object}})
    array = np.zeros((2, 3))
    rb.add(note=[array])
    assert rb[0]["note"] is array
    assert rb.add(note=np.arange(3)) == 1
    assert rb.get_all_transitions()["note"][1:].tolist() == [0, 1, 2]
    with pytest.raises(ValueError, match=r"an array is several steps \(a list of one array is one"):
        rb.add(note=array)


def test_iteration_gives_the_rows_in_slot_order() -> None:
    """Iterating gives each row once, as a dict without a batch axis."""
    rb = ReplayBuffer(5, {"x": {"shape": 2}, "y": {"shape": (), "dtype": "i4"}})
    rb.add(x=np.arange(14).reshape(7, 2), y=np.arange(7))
    rows = list(rb)
    assert [row["y"] for row in rows] == [5, 6, 2, 3, 4]
    assert [row["x"].tolist() for row in rows] == [[2 * y, 2 * y + 1] for y in (5, 6, 2, 3, 4)]


@pytest.mark.parametrize("n", [0, 1, 9, 10, 11])
@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("drop_last", [True, False])
def test_batches_visit_every_row_once(n: int, shuffle: bool, drop_last: bool) -> None:
    """``epoch`` holds every row exactly once; ``drop_last`` leaves a short last batch out."""
    rb = ReplayBuffer(20, {"x": {"shape": (), "dtype": "i8"}}, seed=4)
    rb.add(x=np.arange(n))
    batches = [batch["x"].tolist() for batch in rb.epoch(5, shuffle=shuffle, drop_last=drop_last)]
    kept = n // 5 * 5 if drop_last else n
    assert [len(batch) for batch in batches] == [5] * (kept // 5) + [kept % 5] * (kept % 5 > 0)
    seen = [x for batch in batches for x in batch]
    assert len(set(seen)) == len(seen)
    if not shuffle:
        assert seen == list(range(kept))
    elif n >= 9 and not drop_last:
        assert sorted(seen) == list(range(n))
        assert seen != list(range(n))


def test_all_transitions_shuffled() -> None:
    """``shuffle=True`` gives the same rows in any order, each equally likely."""
    rb = ReplayBuffer(4, {"x": {"shape": (), "dtype": "i8"}, "y": {"dtype": "f4"}}, seed=8)
    rb.add(x=np.arange(4), y=np.arange(4))
    orders = {order: i for i, order in enumerate(itertools.permutations(range(4)))}
    counts = np.zeros(24)
    for _ in range(2400):
        rows = rb.get_all_transitions(shuffle=True)
        assert rows["y"][:, 0].tolist() == rows["x"].tolist()
        counts[orders[tuple(rows["x"].tolist())]] += 1
    assert chi_square(counts, 100) < chi_square_limit(23)
    assert rb.get_all_transitions()["x"].tolist() == [0, 1, 2, 3]


def test_reading_skips_absent_rows() -> None:
    """Iteration, batches, masks and ``get_all_transitions`` leave absent rows out."""
    rb = ReplayBuffer(6, {"x": {"shape": (), "dtype": "i8"}}, n_envs=2)
    rb.add_where([True, False], x=[0, 1])
    rb.add_where([False, True], x=[2, 3])
    rb.add(x=[4, 5])
    assert rb.get_all_transitions()["x"].tolist() == [0, 3, 4, 5]
    assert [int(row["x"]) for row in rb] == [0, 3, 4, 5]
    assert [b["x"].tolist() for b in rb.epoch(3, shuffle=False)] == [[0, 3, 4], [5]]
    assert len(rb) == 4


@pytest.mark.parametrize("index", [5, slice(2, 9), [3, 4]], ids=repr)
def test_reading_a_row_costs_the_same_in_any_buffer(index: Any) -> None:
    """Rows by slot take no longer in a buffer a thousand times as large, absent rows or not."""
    calls = []
    for capacity in (2**10, 2**20):
        rb = ReplayBuffer(capacity, {"x": {"shape": (), "dtype": "i8"}})
        rb.add_where([False], x=[0])
        rb.add(x=np.zeros(capacity - 1))
        calls.append(partial(rb.__getitem__, index))
    small, large = calls
    assert ratio(small, large, turns=5, number=20) < 20


def test_repr_shows_each_field_with_its_bytes() -> None:
    """``repr`` names the capacity, and the dtype, shape and bytes of each field."""
    rb = ReplayBuffer(
        1000, {"obs": {"shape": (84, 84), "dtype": "u1"}, "act": {"shape": (), "dtype": "i8"}}
    )
    rb.add(obs=np.zeros((84, 84)), act=0)
    text = repr(rb)
    for word in ("ReplayBuffer", "obs", "uint8", "(84, 84)", "7056", "act", "int64", "1000"):
        assert word in text.replace(",", "").replace("(84 84)", "(84, 84)"), word
    assert len(text.splitlines()) >= 3
