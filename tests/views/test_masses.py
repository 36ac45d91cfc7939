"""Masses of rows by what they say, against a loop over all rows, after random histories."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributions import chi_square, chi_square_limit
from helpers import Array
from hypothesis import given
from hypothesis import strategies as st
from rewound import KINDS, History, Kind
from scale import LONG, repeats

from cpprb_like import NotEnoughDataError, ReplayBuffer
from cpprb_like.samplers import (
    LegacyUniform,
    Prioritized,
    RankBased,
    Recency,
    Reverse,
    Uniform,
)
from cpprb_like.samplers._masses import Masses, put_by_value
from cpprb_like.samplers._prioritized import new_sum_tree
from cpprb_like.views import Among, NStep, Rule, Sequences

HISTORIES = int(os.environ.get("CPPRB_LIKE_MASS_HISTORIES", "60" if LONG else "2"))
ACTIONS = 40


def mass_of(rows: Any) -> Array:
    """0 for a third of the rows, and three other masses; an update of ``mark`` changes it."""
    found: Array = np.array([0.0, 0.5, 1.0, 3.0])[(rows["mark"] * 7 + rows["t"]) % 4]
    return found


class Marked(Rule):
    """A rule with masses of its own."""

    def follows(self, fields: Any) -> Any:
        del fields
        return "mark", "t"

    def masses(self, rows: Any, slots: Any) -> Any:
        del slots
        return mass_of(rows)


@pytest.mark.once
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_random_histories(tmp_path: Path, kind: Kind) -> None:
    """Leaves are weights times masses of the values of now, and draws are of these rows."""
    for seed in range(HISTORIES):
        (tmp_path / str(seed)).mkdir()
        chance = random.Random(f"masses {kind.name} {seed}")
        history = History(kind, tmp_path / str(seed), chance)
        views = [history.rb.view(Marked())]
        if kind.capacity >= 4 * kind.n_envs:
            views.append(history.rb.view(Marked(), Sequences(3)))
        for _ in range(ACTIONS):
            history._act()  # and the file stays open
            if chance.random() < 0.6:
                for view in views:
                    compare(view)


def compare(view: Any) -> None:
    """Compare the masses of a view, and a draw, with all rows one by one."""
    rb, now = view.buffer, view._now
    slots = rb.ring.present_slots()
    masses = mass_of(now.stored(slots, ("mark", "t"))) if len(slots) else np.zeros(0)
    weights = rb.sampler.row_weights(slots)
    rows = now.starts.over(rb.sampler.rows if rb.has_priorities else None)
    expected = masses if weights is None else weights * masses
    np.testing.assert_allclose(rows.get(slots), expected, rtol=1e-12)
    np.testing.assert_array_equal(now.starts.tell(slots) == 1, masses_can_be_drawn(now, masses))
    others = np.flatnonzero(rb.ring.flags() & 8)
    assert not rows.get(others).any()
    if rb.ring.lookahead == 0 or rb.has_priorities:
        np.testing.assert_allclose(rows.total, expected.sum(), rtol=1e-9)
    drawable = slots[(now.complete.tell(slots) == 1) & (expected > 0)] if len(slots) else slots
    if isinstance(rb.sampler, Recency) and not now.starts.cuts_only:
        return  # it refuses such masses
    if len(drawable):
        drawn, _ = rb.sampler.draw_starts(now.starts, 20, np.random.default_rng(0), replace=True)
        assert set(drawn.tolist()) <= set(drawable.tolist())
        n = len(drawable)
        drawn, _ = rb.sampler.draw_starts(now.starts, n, np.random.default_rng(0), replace=False)
        assert sorted(drawn.tolist()) == sorted(drawable.tolist())
    else:
        with pytest.raises(NotEnoughDataError):
            view.sample(1)


def masses_can_be_drawn(now: Any, masses: Array) -> Array:
    """Which of the present rows the view can draw, apart from priorities of 0."""
    found: Array = (now.complete.tell(now.ring.present_slots()) == 1) & (masses > 0)
    return found


@pytest.mark.parametrize("sampler", [Uniform, Prioritized, RankBased])
@pytest.mark.parametrize("layers", [(), (Sequences(3),), (NStep(3, rew="x"),)])
def test_draws_are_in_proportion(sampler: Callable[[], Any], layers: Any) -> None:
    """To masses times weights, with replacement; weights correct the priorities alone."""
    rb = ReplayBuffer(50, {"x": {"shape": ()}, "done": {"shape": ()}}, sampler=sampler(), seed=0)
    rb.add(x=np.arange(50) % 4, done=np.arange(50) % 10 == 9)

    class Weighted(ByX):
        def masses(self, rows: Any, slots: Any) -> Any:
            del slots
            return rows["x"] / 2

    view = rb.view(Weighted(), *layers)
    slots = np.arange(50)
    if rb.has_priorities:
        rb.update_priorities(slots, 0.1 + np.random.default_rng(0).random(50))
        view.sample(1)  # ranks are sorted at a draw
    now = view._now
    weights = rb.sampler.row_weights(slots)
    masses = (slots % 4) / 2 * (now.complete.tell(slots) == 1)
    chances = masses if weights is None else masses * weights
    chances = chances / chances.sum()
    options: dict[str, Any] = {"beta": 0.7} if rb.has_priorities else {}
    rng = np.random.default_rng(1)
    drawn, extra = rb.sampler.draw_starts(now.starts, 40_000, rng, replace=True, **options)
    counts = np.bincount(drawn, minlength=50)
    there = chances > 0
    assert not counts[~there].any()
    limit = chi_square_limit(int(there.sum()) - 1)
    assert chi_square(counts[there], 40_000 * chances[there]) < limit
    if weights is not None:
        np.testing.assert_allclose(
            extra["weights"], (weights[drawn] / weights[drawn].min()) ** -0.7, rtol=1e-5
        )


@pytest.mark.parametrize(
    ("masses", "error", "match"),
    [
        (lambda n: np.full(n, np.nan), ValueError, "finite numbers of at least 0, got nan"),
        (lambda n: np.full(n, -1.0), ValueError, "finite numbers of at least 0, got -1"),
        (lambda n: np.full(n, np.inf), ValueError, "finite numbers of at least 0, got inf"),
        (lambda n: np.ones(n + 1), ValueError, "bools or numbers of shape"),
        (lambda n: ["a"] * n, ValueError, "bools or numbers of shape"),
        (lambda n: np.ma.masked_array(np.ones(n), [True] * n), TypeError, "masked array"),
    ],
)
def test_masses_that_are_none_are_refused(
    masses: Callable[[int], Any], error: type[Exception], match: str
) -> None:
    """By the draw; later ones work once the function does."""
    rb = ReplayBuffer(9, {"x": {"shape": ()}}, seed=0)
    rb.add(x=range(9))
    is_wrong = True

    class Wrong(ByX):
        def masses(self, rows: Any, slots: Any) -> Any:
            del slots
            return masses(9) if is_wrong else rows["x"]

    view = rb.view(Wrong())
    for _ in range(2):
        with pytest.raises(error, match=match):
            view.sample(4)
    is_wrong = False
    assert view.sample(50)["x"].min() > 0


def test_a_condition_is_computed_of_new_and_edited_rows_alone() -> None:
    """Whatever is drawn: once for each row, and again after an update of it."""
    rb = ReplayBuffer(1000, {"x": {"shape": ()}, "y": {"shape": ()}}, seed=0)
    rb.add(x=np.arange(1000), y=np.zeros(1000))
    seen: list[float] = []

    def condition(rows: Any) -> Array:
        seen.extend(rows["x"].tolist())
        found: Array = rows["x"] >= 999
        return found

    view = rb.view(Among(condition, "x"))
    assert view.sample(5)["x"].tolist() == [999] * 5
    assert sorted(seen) == list(range(1000))
    seen.clear()
    view.sample(5, replace=True)
    rb.update([7], x=[2000])
    assert set(view.sample(50)["x"].tolist()) == {999, 2000}
    rb.add(x=[3000], y=[0])
    assert 3000 in view.sample(50)["x"]
    assert seen == [2000, 3000]


def test_threads_that_update_and_draw() -> None:
    """A drawn row fits at the moment of its read, whatever other threads do meanwhile."""
    rb = ReplayBuffer(500, {"x": {"shape": ()}, "tag": {"shape": ()}}, seed=0)
    rb.add(x=np.zeros(500), tag=np.arange(500) % 5 == 0)
    view, over = rb.view(Among("tag")), threading.Event()

    def change(seed: int) -> None:
        chance = np.random.default_rng(seed)
        while not over.is_set():
            slots = chance.choice(400, 3, replace=False) + 100  # some of the others stay tagged
            if seed:
                rb.update(slots, tag=chance.integers(0, 2, 3))
            else:
                rb.add(x=[1], tag=[1])

    wrong: list[Any] = []

    def draw() -> None:
        try:
            for _ in range(repeats(400, 60)):
                tags = view.sample(32)["tag"]
                wrong.extend(tags[tags == 0].tolist())
        except BaseException as error:
            wrong.append(error)

    changers = [threading.Thread(target=change, args=(seed,)) for seed in range(3)]
    drawers = [threading.Thread(target=draw) for _ in range(2)]
    for thread in changers + drawers:
        thread.start()
    for thread in drawers:
        thread.join()
    over.set()
    for thread in changers:
        thread.join()
    assert wrong == []


@pytest.mark.parametrize("sampler", [Uniform, Prioritized])
def test_explain_says_the_mass_and_who_leaves_a_row_out(sampler: Callable[[], Any]) -> None:
    """The probability is that of a draw."""
    rb = ReplayBuffer(9, {"x": {"shape": ()}}, sampler=sampler(), seed=0)
    rb.add(x=[0, 1, 3, 0])
    view = rb.view(ByX())
    found = view.explain(2)
    assert (found["mass"], found["probability"]) == (3.0, pytest.approx(0.75))
    assert view.explain(0)["reasons"] == ["ByX leaves it out"]


class ByX(Rule):
    """A rule whose mass is a field."""

    def follows(self, fields: Any) -> Any:
        del fields
        return ["x"]

    def masses(self, rows: Any, slots: Any) -> Any:
        del slots
        return rows["x"]


class Twice(ByX):
    """Another rule, with masses of one byte."""

    def masses(self, rows: Any, slots: Any) -> Any:
        return np.full(len(slots), 16, np.uint8)


class Small(ByX):
    """As ``Twice``; for the rows below 3."""

    def masses(self, rows: Any, slots: Any) -> Any:
        del slots
        return (16 * (rows["x"] < 3)).astype(np.uint8)


def test_masses_of_several_rules_are_multiplied_as_float64() -> None:
    """In bytes 16 times 16 is 0: such rows were never drawn."""
    rb = ReplayBuffer(9, {"x": {"shape": ()}}, seed=0)
    rb.add(x=range(9))
    assert set(rb.view(Twice(), Small()).sample(100)["x"].tolist()) == {0, 1, 2}


def test_masses_are_refused_where_they_would_be_ignored_or_overflow() -> None:
    """By samplers that draw all rows alike, and above 1e150."""
    for sampler in (Recency(), LegacyUniform(), Reverse()):
        rb = ReplayBuffer(9, {"x": {"shape": ()}}, sampler=sampler, seed=0)
        rb.add(x=range(9))
        with pytest.raises(ValueError, match="expected masses of 0 and 1, as of Among"):
            rb.view(ByX()).sample(3)
        assert rb.view(Small()).buffer is rb
    rb = ReplayBuffer(9, {"x": {"shape": (), "dtype": "f8"}}, seed=0)
    rb.add(x=[1.0, 1e200])
    with pytest.raises(ValueError, match="expected at most 1e150, got 1e\\+200"):
        rb.view(ByX()).sample(3)


def test_rows_that_left_early_are_not_drawn() -> None:
    """Also where an absent row took the slot of one with a mass, and left before the next draw."""
    fields: dict[str, Any] = {
        "x": {"shape": (), "dtype": "i8"},
        "ids": {"shape": ("T",), "dtype": "i4"},
    }
    rb = ReplayBuffer(8, fields, n_envs=2, room={"T": 20}, seed=0)
    view = rb.view(Among(lambda rows: rows["x"] % 2 == 0, "x"))
    lengths = [(1, 1)] * 6 + [(1, 1), (10, 10)]
    for t, (one, other) in enumerate(lengths):
        present = [t != 6, True]
        rb.add_where(present, x=[2 * t, 2 * t + 1], ids=[np.arange(one), np.arange(other)])
        if t < 6:
            view.sample(5)
    assert set(view.sample(50)["x"].tolist()) == {14}


def test_a_draw_ends_while_rows_are_added_in_its_condition() -> None:
    """The condition is computed of the rows of one moment: it went on for ever."""
    rb = ReplayBuffer(50, {"x": {"shape": ()}}, seed=0)
    rb.add(x=range(20))
    calls = 0

    def condition(rows: Any) -> Array:
        nonlocal calls
        calls += 1
        if calls < 200:
            rb.add(x=[1])
        return np.ones(len(rows["x"]), bool)

    assert len(rb.view(Among(condition, "x")).sample(3)["x"]) == 3
    assert calls < 200


@given(
    steps=st.lists(
        st.tuples(
            st.lists(
                st.tuples(st.integers(0, 9), st.integers(0, 3), st.integers(0, 2)), max_size=6
            ),
            st.lists(st.integers(0, 9), max_size=3),
        ),
        max_size=6,
    ),
    ring=st.integers(0, 1),
)
def test_a_row_has_its_mass_in_the_tree_of_its_value(steps: Any, ring: int) -> None:
    """``put_by_value`` against a dict. Of a row that comes twice the last mass counts."""
    rb = ReplayBuffer(10, {"x": {"shape": ()}})
    rb.add(x=range(10))
    trees = [Masses(rb.ring, new_sum_tree(10), None) for _ in range(3)]
    known, of_rows = np.zeros(10, np.int8), np.zeros(20, np.int8)
    _, _, moment = _stale(trees[0])
    none = np.empty(0, np.intp)
    expected: dict[int, tuple[int, float]] = {}
    put_by_value(trees, known, of_rows, 1, ring, none, np.empty(0), none, (*moment[:5], True))
    for rows, lost in steps:
        lost = [slot for slot in lost if slot not in {slot for slot, *_ in rows}]
        slots = np.array([slot for slot, *_ in rows], np.intp)
        for slot, value, mass in rows:
            of_rows[2 * slot + ring] = value
            expected[slot] = value, mass
        of_rows[2 * slots + ring] = [expected[slot][0] for slot in slots.tolist()]
        masses = np.array([mass for *_, mass in rows], float)
        gone = np.array(lost, np.intp)
        put_by_value(trees, known, of_rows, 1, ring, slots, masses, gone, (*moment[:5], False))
        for slot in lost:
            expected.pop(slot, None)
        for number, tree in enumerate(trees):
            found = [
                mass if value == number + 1 else 0
                for value, mass in (expected.get(slot, (0, 0)) for slot in range(10))
            ]
            assert tree.get(np.arange(10)).tolist() == found
            assert tree.n_rows == np.count_nonzero(found)
    with pytest.raises(IndexError, match="slots: expected 0 to 9, got 10"):
        put_by_value(trees, known, of_rows, 1, ring, np.array([10]), np.ones(1), none, moment)


def _stale(masses: Masses) -> Any:
    """What ``stale`` returns, which is not None."""
    found = masses.stale()
    assert found is not None
    return found
