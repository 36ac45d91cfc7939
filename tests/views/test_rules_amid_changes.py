"""Rules amid interrupts, clears, restores and draws within draws: what they know stays right."""

from __future__ import annotations

import pickle
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cpprb_like import NotEnoughDataError, ReplayBuffer, load
from cpprb_like.samplers import Prioritized, Uniform, _ruled
from cpprb_like.views import Among, AtMost, Groups, Layer, Newest, Rule, Sequences, Share

FIELDS: dict[str, Any] = {
    "x": {"shape": (), "dtype": "i8"},
    "key": {"shape": (), "dtype": "i8"},
    "rew": {"shape": ()},
}


def rows_of(numbers: Any, keys: Any) -> dict[str, Any]:
    """Rows of these numbers and keys."""
    return {"x": numbers, "key": keys, "rew": np.zeros(len(numbers))}


def numbers(batch: Any) -> list[int]:
    """The numbers of the rows of a batch."""
    found: list[int] = batch["x"].tolist()
    return found


@pytest.mark.parametrize("rules", [(AtMost(1),), (Groups("key", 2), AtMost(1))], ids=["", "groups"])
def test_a_restored_view_goes_on_with_the_counts_that_were_saved(
    tmp_path: Path, rules: tuple[Rule, ...]
) -> None:
    """Restored here, in a new program, and loaded. Rows that were used up were drawn again."""
    rb = ReplayBuffer(20, FIELDS, seed=0)
    rb.add(**rows_of(range(20), np.arange(20) // 2))
    view = rb.view(*rules)
    view.sample(12)
    view.save(tmp_path / "view")
    expected = numbers(view.sample(4))
    view.restore(tmp_path / "view")
    other = ReplayBuffer(20, FIELDS, seed=3).view(*rules)
    other.restore(tmp_path / "view")
    for one in (view, other, load(tmp_path / "view")):
        assert numbers(one.sample(4)) == expected
        assert one.stats()["rows_left"] == 4


def test_shares_after_an_interrupt_are_those_of_new_values() -> None:
    """Trees of values that have no rows any more kept the rows of others."""
    is_cut = False

    def condition(rows: Any) -> Any:
        nonlocal is_cut
        if is_cut:
            is_cut = False
            raise KeyboardInterrupt
        return rows["x"] >= 0

    rb = ReplayBuffer(100, FIELDS, seed=0)
    rb.add(**rows_of(range(30), np.arange(30) // 10))
    view = rb.view(Share({"key": "equal"}), Among(condition, "x"))
    view.sample(9)
    rb.update(np.arange(20, 30), key=np.zeros(10, int))
    is_cut = True
    with pytest.raises(KeyboardInterrupt):
        view.sample(9)
    assert np.bincount(view.sample(30)["key"]).tolist() == [15, 15]
    rb.add(**rows_of([30], [3]))
    assert np.bincount(view.sample(30)["key"]).tolist() == [10, 10, 0, 10]


class Late(Layer):
    """A layer that takes its time, and calls a function meanwhile."""

    def __init__(self, then: Any) -> None:
        self.then = then

    def changes(self, fields: Any) -> Any:
        del fields
        return ["rew"]

    def fill(self, windows: Any, wanted: Any) -> Any:
        del wanted

        def late() -> Any:
            self.then()
            return {"rew": np.ones(len(windows), np.float32)}

        return late


def test_rows_that_take_the_slots_of_drawn_ones_do_not_count() -> None:
    """Another thread adds them, and looks at the counts, before the batch is done."""
    rb = ReplayBuffer(8, FIELDS, seed=0)
    rb.add(**rows_of(range(8), range(8)))
    calls: list[int] = []
    views: list[Any] = []

    def replace() -> None:
        calls.append(0)
        if len(calls) == 1:
            rb.add(**rows_of(range(8, 16), range(8)))
            thread = threading.Thread(target=views[0].stats)
            thread.start()
            thread.join(10)

    view = rb.view(AtMost(1), Late(replace))
    views.append(view)
    view.sample(4)
    assert sorted(numbers(view.sample(8))) == list(range(8, 16))


@pytest.mark.parametrize("n", [0, 2])
def test_a_clear_before_drawn_rows_are_counted(n: int) -> None:
    """The batch is returned, and the rows that follow have not been drawn."""
    rb = ReplayBuffer(8, FIELDS, seed=0)
    rb.add(**rows_of(range(8), range(8)))
    calls: list[int] = []

    def clear() -> None:
        calls.append(0)
        if len(calls) == 1:
            rb.clear()
            if n:
                rb.add(**rows_of(range(8, 8 + n), range(n)))

    view = rb.view(AtMost(1), Late(clear))
    assert len(set(numbers(view.sample(4)))) == 4
    rb.add(**rows_of(range(8 + n, 16), range(8 - n)))
    assert sorted(numbers(view.sample(8))) == list(range(8, 16))


def test_a_draw_within_a_draw_is_refused() -> None:
    """A signal handler that drew gave rows too often, as they were not counted yet."""
    rb = ReplayBuffer(8, FIELDS, seed=0)
    rb.add(**rows_of(range(8), range(8)))
    view: Any = rb.view(AtMost(1), Late(lambda: view.sample(2)))
    with pytest.raises(RuntimeError, match="drawing a batch of this view already"):
        view.sample(4)
    view.layers[1].then = lambda: None
    assert sorted(numbers(view.sample(8))) == list(range(8))


class ByKey(Rule):
    """Rows whose key is not 0."""

    def follows(self, fields: Any) -> Any:
        del fields
        return ["key"]

    def masses(self, rows: Any, slots: Any) -> Any:
        del slots
        return rows["key"] != 0


class Clearing(Rule):
    """Stands for another thread that clears while masses are computed."""

    def __init__(self, rb: Any) -> None:
        self.rb = rb

    def follows(self, fields: Any) -> Any:
        del fields
        return ["x"]

    def masses(self, rows: Any, slots: Any) -> Any:
        del rows
        if self.rb is not None:
            rb, self.rb = self.rb, None
            rb.clear()
        return np.ones(len(slots), bool)


@pytest.mark.parametrize(
    "rule",
    [
        Newest("key", 1),
        Newest("key", half_life=1),
        Newest("key", at_least=0),
        AtMost(2),
        Groups("key", 3),
        Share({"key": "equal"}),
    ],
    ids=repr,
)
def test_a_clear_while_masses_are_computed(rule: Rule) -> None:
    """Rules knew rows that were gone, and gave slots masses that have no row."""
    rb = ReplayBuffer(100, FIELDS, seed=0)
    rb.add(**rows_of(range(50), np.arange(50) + 10))
    view = rb.view(rule, Clearing(rb))
    with pytest.raises(NotEnoughDataError):
        view.sample(3)
    rb.add(**rows_of([50, 51, 52], [1, 1, 1]))
    for _ in range(2):
        assert sorted(numbers(view.sample(3, replace=False))) == [50, 51, 52]


class Moving(ByKey):
    """Says that the mass of a slot has changed."""

    def __init__(self, slot: Any) -> None:
        self.slot = slot

    def moved(self) -> Any:
        return self.slot, np.ones(len(self.slot))


@pytest.mark.parametrize("replace", [True, False])
def test_a_threshold_that_rises_amid_a_draw(replace: bool) -> None:
    """``ValueError: n: expected 0 or more, got -8`` was raised, where windows matter."""
    rb = ReplayBuffer(200, FIELDS, sampler=Prioritized(), seed=0)
    rb.add(**rows_of(range(150), range(150)))
    for last in range(40):
        cuts = [0] * last

        def cut(cuts: list[int] = cuts) -> int:
            return cuts.pop() if cuts else 1000

        view = rb.view(Newest("x", at_least=cut), Sequences(2, stride=200))  # of which there is one
        with suppress(NotEnoughDataError):
            assert (view.sample(8, replace=replace)["x"] == [0, 1]).all()


@pytest.mark.parametrize("slots", [[-1], [20], [10**8], [0.5], [[0]]])
def test_slots_that_are_none_are_refused(slots: Any) -> None:
    """They were written to memory of others."""
    rb = ReplayBuffer(20, FIELDS, seed=0)
    rb.add(**rows_of(range(8), [1] * 8))
    with pytest.raises((IndexError, ValueError), match=r"^Moving\.moved: expected slots"):
        rb.view(Moving(slots)).sample(4)


def test_slots_without_a_row_get_no_mass() -> None:
    """A rule may say that they moved."""
    rb = ReplayBuffer(20, FIELDS, seed=0)
    rb.add(**rows_of(range(8), [0] * 8))
    assert set(numbers(rb.view(Moving([3, 12])).sample(20))) == {3}


def test_a_copy_takes_in_changes_in_the_order_of_the_original() -> None:
    """Rows of new keys were told of by age, and so came before new rows."""
    rb = ReplayBuffer(20, FIELDS, seed=0)
    rb.add(**rows_of(range(3), [0, 0, 5]))
    view = rb.view(Groups("key", 2))
    view.sample(2)
    rb.update([2], key=[7])
    rb.add(**rows_of([3, 4], [7, 7]))
    for one in (view, pickle.loads(pickle.dumps(view))):
        groups = one.sample(4, replace=False)["x"].reshape(-1, 2)
        assert sorted(groups.tolist()) == [[0, 1], [3, 4]]


@pytest.mark.parametrize("sampler", [Uniform, Prioritized])
@pytest.mark.parametrize("replace", [True, False])
def test_refused_draws_count_rows_once_in_a_second(
    monkeypatch: pytest.MonkeyPatch, sampler: Any, replace: bool
) -> None:
    """A program that asks after each step pays for a look at all rows seldom."""
    rb = ReplayBuffer(20, FIELDS, sampler=sampler(), seed=0)
    rb.add(**rows_of(range(10), range(10)))
    view = rb.view(Among(lambda rows: rows["x"] < 0, "x"))
    monkeypatch.setattr(_ruled, "COUNTED", 1000.0)  # seconds: machines may be slow
    starts: Any = view._now.starts
    slots, counted = starts.slots, []

    def count() -> Any:
        counted.append(1)
        return slots()

    monkeypatch.setattr(starts, "slots", count)
    for _ in range(5):
        with pytest.raises(NotEnoughDataError, match="holds 10 rows, of which none can be drawn"):
            view.sample(4, replace=replace)
    assert len(counted) == 1
