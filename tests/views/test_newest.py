"""``Newest``: draws among the newest versions, against a look at all rows after each change."""

from __future__ import annotations

import os
import pickle
import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributions import chi_square, chi_square_limit
from helpers import Array
from interruptions import Cut, cut_at, first_and_last
from reference_newest import newest_masses
from rewound import KINDS, History, Kind, reward_of
from scale import LONG, repeats

from cpprb_like import Mixture, NotEnoughDataError, ReplayBuffer, load
from cpprb_like.samplers import LegacyUniform, Prioritized, RankBased, Recency, Reverse, Uniform
from cpprb_like.views import Among, FrameStacks, Hindsight, Newest, NStep, Sequences

HISTORIES = int(os.environ.get("CPPRB_LIKE_MASS_HISTORIES", "60" if LONG else "2"))
BIG = 2**53  # a float64 does not tell it from the next integer

FIELDS: dict[str, Any] = {
    "x": {"shape": (), "dtype": "f8"},
    "version": {"shape": (), "dtype": "i8"},
    "tag": {"shape": (), "dtype": bool},
    "done": {"shape": (), "dtype": bool},
}


def filled(versions: Any, capacity: int = 100, **options: Any) -> ReplayBuffer:
    """Rows with their numbers and versions."""
    rb = ReplayBuffer(capacity, FIELDS, seed=0, **options)
    n = len(versions)
    rb.add(x=range(n), version=versions, tag=np.arange(n) % 3 == 0, done=np.arange(n) % 7 == 6)
    return rb


def drawn_by(view: Any, n: int = 200) -> set[int]:
    """The rows that a view draws."""
    return set(view.sample(n)["x"].ravel().tolist())


# ---- the rule by itself --------------------------------------------------------------------


class Told:
    """A rule that is told of rows at random, the masses that it gave, and the versions."""

    def __init__(self, layer: Newest, dtype: str, chance: random.Random) -> None:
        rb = ReplayBuffer(3000, {"version": {"shape": (), "dtype": dtype}})
        view: Any = rb.view(layer)
        self.rule: Any = view._now.parts[0].layer
        self.versions: dict[int, Any] = {}
        self.masses: dict[int, float] = {}
        self.dtype = np.dtype(dtype)
        self.chance = chance

    def tell(self, versions: dict[int, Any], twice: int = 0) -> None:
        """Rows are new or edited; the first ones come twice, at first with other versions."""
        slots = [*versions, *list(versions)[:twice]]
        told = [*versions.values(), *list(versions.values())[:twice]]
        told[:twice] = self.chance.sample(told, twice)
        self.versions |= versions
        given = self.rule.masses(
            {"version": np.array(told, self.dtype)[:, None]}, np.array(slots, np.intp)
        )
        self.masses |= dict(zip(slots, np.asarray(given, float).tolist(), strict=True))

    def leave(self, slots: list[int]) -> None:
        """Rows leave; some were not there."""
        for slot in slots:
            self.versions.pop(slot, None)
            self.masses.pop(slot, None)
        self.rule.leave(np.array(slots, np.intp))

    def compare(self, **options: Any) -> int:
        """Compare the masses with the twin; the number of rows that have moved."""
        moved = self.rule.moved()
        if moved is not None:
            slots, masses = moved
            assert set(slots.tolist()) <= set(self.versions)
            self.masses |= dict(zip(slots.tolist(), np.asarray(masses, float), strict=True))
        expected = newest_masses(self.versions, **options)
        found = self.masses
        if "half_life" in options and found:
            top = max(found.values())
            assert 1 <= top <= 2.0**257
            found = {slot: mass / top for slot, mass in found.items()}
        assert found == pytest.approx(expected, rel=1e-9, abs=1e-250)
        return 0 if moved is None else len(moved[0])


@pytest.mark.parametrize("dtype", ["i8", "u8", "i1", "f4", "f8", ">f8", "bool"])
@pytest.mark.parametrize("option", ["k", "at_least", "half_life"])
def test_random_changes_of_versions(dtype: str, option: str) -> None:
    """Versions that rise, come late, fall and go give the masses of a look at all rows."""
    for seed in range(max(1, HISTORIES // 4)):
        chance = random.Random(f"{dtype} {option} {seed}")
        base = {"i8": BIG, "u8": 2**63 + 5, "i1": -100}.get(dtype, 0)
        most = {"bool": 1, "i1": 200}.get(dtype, 10**6)
        threshold: list[Any] = [base]
        each: dict[str, Any] = {
            "k": {"k": chance.choice([1, 2, 5, 30])},
            "at_least": {"at_least": lambda threshold=threshold: threshold[0]},
            "half_life": {"half_life": chance.choice([0.3, 2.0, 100.0])},
        }
        options = each[option]
        told = Told(Newest("version", **options), dtype, chance)
        newest = 0
        for step in range(120):
            what = chance.choice(["new"] * 6 + ["leave", "again", "fall"])
            newest += chance.choice([0, 0, 1, 1, 3, 90 * (chance.random() < 0.2)])
            if what == "new":
                slots = chance.sample(range(60), chance.randint(1, 40))
                late = [max(0, newest - chance.choice([0, 0, 1, 2, 9])) for _ in slots]
                versions = {
                    slot: np.array(min(one, most) + base, told.dtype).item()
                    for slot, one in zip(slots, late, strict=True)
                }
                told.tell(versions, twice=chance.choice([0, 0, len(slots) // 2]))
            elif what == "leave":
                told.leave(chance.sample(range(70), chance.choice([1, 5, 60])))
            elif what == "again":
                told.tell(dict(told.versions))
            elif step % 3 == 0:
                newest = chance.randint(0, 5)
            if chance.random() < 0.7:
                threshold[0] = base + newest - chance.choice([-1, 0, 1, 2.5, 6])
                expected = {"at_least": threshold[0]} if option == "at_least" else options
                told.compare(**expected)


def test_a_rise_moves_the_rows_that_it_leaves_out_alone() -> None:
    """And none that it left out before."""
    told = Told(Newest("version", 3), "i8", random.Random(0))
    rng = np.random.default_rng(0)
    for version in range(100):
        told.tell(dict.fromkeys(rng.choice(500, 50, replace=False).tolist(), version))
        newest = {one for one in told.versions.values() if one >= version - 3}
        four = sum(version in newest for version in told.versions.values())
        assert told.compare(k=3) <= four
        told.leave(rng.choice(500, 30, replace=False).tolist())
        told.compare(k=3)


# ---- views ---------------------------------------------------------------------------------


@pytest.mark.once
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_random_histories(tmp_path: Path, kind: Kind) -> None:
    """Adds, updates, deletes, wraps, clears and rewinds of all kinds of buffers."""
    for seed in range(HISTORIES):
        (tmp_path / str(seed)).mkdir()
        chance = random.Random(f"newest {kind.name} {seed}")
        history = History(kind, tmp_path / str(seed), chance)
        threshold = [0]
        options: list[dict[str, Any]] = [
            {"k": 4},
            {"at_least": lambda threshold=threshold: threshold[0]},
            {"half_life": 3.0},
        ]
        views = [history.rb.view(Newest("mark", **one)) for one in options]
        for _ in range(40):
            history._act()
            if chance.random() < 0.6:
                threshold[0] = chance.choice([0, 5, 10 * max(0, history.t - 10)])
                for view, one in zip(views, options, strict=True):
                    compare(view, {"at_least": threshold[0]} if "at_least" in one else one)


def compare(view: Any, options: dict[str, Any]) -> None:
    """Compare the masses of a view, and a draw, with all rows one by one."""
    rb, now = view.buffer, view._now
    every = np.flatnonzero(~rb.ring.flags() & 8)  # rows that wait for an n-step return as well
    every = every[rb.ring.row_ids(every) >= rb.ring.first] if len(every) else every
    marks = now.stored(every, ("mark",))["mark"].tolist() if len(every) else []
    expected = newest_masses(dict(zip(every.tolist(), marks, strict=True)), **options)
    slots = rb.ring.present_slots()
    masses = np.array([expected[slot] for slot in slots.tolist()])
    weights = rb.sampler.row_weights(slots)
    rows = now.starts.over(rb.sampler.rows if rb.has_priorities else None)
    found = now.starts.masses(slots)
    scale = now.starts.masses(every).max(initial=0) if "half_life" in options else 1
    np.testing.assert_allclose(found, scale * masses, rtol=1e-9, atol=1e-250)
    shares = scale * (masses if weights is None else weights * masses)
    np.testing.assert_allclose(rows.get(slots), shares, rtol=1e-9)
    assert not rows.get(np.flatnonzero(rb.ring.flags() & 8)).any()
    if isinstance(rb.sampler, Recency) and not now.starts.cuts_only:
        return  # it refuses such masses
    drawable = slots[(now.complete.tell(slots) == 1) & (shares > 0)] if len(slots) else slots
    if len(drawable):
        rng = np.random.default_rng(0)
        drawn, _ = rb.sampler.draw_starts(now.starts, 20, rng, replace=True)
        assert set(drawn.tolist()) <= set(drawable.tolist())
        drawn, _ = rb.sampler.draw_starts(now.starts, len(drawable), rng, replace=False)
        assert sorted(drawn.tolist()) == sorted(drawable.tolist())
    else:
        with pytest.raises(NotEnoughDataError):
            view.sample(1)


@pytest.mark.parametrize("sampler", [Uniform, Prioritized, RankBased])
@pytest.mark.parametrize("layers", [(), (Sequences(3),), (NStep(3, rew="x"),)])
@pytest.mark.parametrize("options", [{"k": 3}, {"at_least": 6}, {"half_life": 1.5}])
def test_draws_are_in_proportion(
    sampler: Callable[[], Any], layers: Any, options: dict[str, Any]
) -> None:
    """To masses times weights; importance-sampling weights correct the priorities alone."""
    versions = (np.arange(60) * 7 % 60) // 6
    rb = filled(versions, capacity=60, sampler=sampler())
    view, slots = rb.view(Newest("version", **options), *layers), np.arange(60)
    if rb.has_priorities:
        rb.update_priorities(slots, 0.1 + np.random.default_rng(0).random(60))
        view.sample(1)
    now: Any = view._now
    expected = newest_masses(dict(enumerate(versions.tolist())), **options)
    masses = np.array([expected[slot] for slot in range(60)]) * (now.complete.tell(slots) == 1)
    weights = rb.sampler.row_weights(slots)
    chances = masses if weights is None else masses * weights
    chances = chances / chances.sum()
    beta: dict[str, Any] = {"beta": 0.7} if rb.has_priorities else {}
    rng = np.random.default_rng(1)
    drawn, extra = rb.sampler.draw_starts(now.starts, 20_000, rng, replace=True, **beta)
    counts = np.bincount(drawn, minlength=60)
    there = chances > 0
    assert not counts[~there].any()
    often = chances * 20_000 > 5
    limit = chi_square_limit(int(often.sum()))
    assert chi_square(counts[often], 20_000 * chances[often]) < limit
    if weights is not None:
        np.testing.assert_allclose(
            extra["weights"], (weights[drawn] / weights[drawn].min()) ** -0.7, rtol=1e-5
        )


@pytest.mark.parametrize("sampler", [Recency, LegacyUniform, Reverse])
@pytest.mark.parametrize("options", [{"k": 2}, {"at_least": 2}])
def test_other_samplers_draw_the_newest_alone(
    sampler: Callable[[], Any], options: dict[str, Any]
) -> None:
    """Samplers of masses 0 and 1."""
    view = filled([0, 1, 2, 3] * 10, sampler=sampler()).view(Newest("version", **options))
    assert drawn_by(view, 20) <= {x for x in range(40) if x % 4 >= 2}


@pytest.mark.parametrize("layer", [Sequences(2), NStep(2, rew="x"), FrameStacks({"x": 2})])
def test_it_goes_with_other_layers_and_rules(layer: Any) -> None:
    """It is about the first row of an item; masses of several rules are multiplied."""
    rb = filled([0, 1, 2, 3] * 10)
    view = rb.view(Newest("version", 2), Among("tag"), layer)
    slots = view.sample(100, indexes=True)["indexes"] % 100
    assert set(slots.tolist()) <= {x for x in range(40) if x % 4 >= 2 and x % 3 == 0}
    rb.add(x=40, version=4, tag=True, done=True)
    slots = view.sample(100, indexes=True)["indexes"] % 100
    assert set(slots.tolist()) <= {x for x in range(41) if x % 4 == 3 and x % 3 == 0} | {40}


def test_steps_of_new_goals_are_of_the_newest_versions(tmp_path: Path) -> None:
    """With ``Hindsight`` it is about the drawn step, and not about that of its goal."""
    history = History(KINDS[0], tmp_path, random.Random(0))
    for _ in range(25):
        history.add()
    marks = sorted(history.rb.get_all_transitions()["mark"].tolist())[-5:]
    relabel = Hindsight(reward_of, achieved="at", goal="goal")
    batch = history.rb.view(relabel, Newest("mark", 5)).sample(200)
    assert set(batch["mark"].tolist()) == set(marks)


# ---- versions ------------------------------------------------------------------------------


def test_older_versions_come_back_when_newer_ones_have_gone() -> None:
    """By an update, a delete, a rewind, and after a clear."""
    rb = filled([5, 5, 6, 7, 7, 7, 7])
    rb.add(x=7, version=8, tag=True, done=True)
    rb.add(x=8, version=9, tag=True, done=False)
    view = rb.view(Newest("version", 2))
    assert drawn_by(view) == {7, 8}
    rb.rewind(8)
    assert drawn_by(view) == {3, 4, 5, 6, 7}
    rb.episodes.delete(1)
    assert drawn_by(view) == {2, 3, 4, 5, 6}
    rb.update([0, 1, 3, 4, 5, 6], version=[1, 1, 1, 1, 1, 1])
    assert drawn_by(view) == set(range(7))
    rb.update([0], version=[2])
    assert drawn_by(view) == {0, 2}
    rb.clear()
    with pytest.raises(NotEnoughDataError):
        view.sample(1)
    rb.add(x=1, version=-3, tag=True, done=False)
    assert drawn_by(view) == {1}


def test_a_threshold_that_moves() -> None:
    """It is asked for at each draw, with no row added; it may fall."""
    rb = filled(range(20))
    least: list[Any] = [18]
    view = rb.view(Newest("version", at_least=lambda: least[0]))
    for least[0], expected in (
        (18, {18, 19}),
        (16.5, {17, 18, 19}),
        (np.int64(19), {19}),
        (-(10.0**30), set(range(20))),
        (15, set(range(15, 20))),
    ):
        assert drawn_by(view, 400) == expected
    least[0] = 10**30
    with pytest.raises(NotEnoughDataError, match=r"20 rows, of which none .*Newest leaves 0"):
        view.sample(1)
    assert view.explain(3)["reasons"] == ["Newest leaves it out: version 3, at_least is inf"]
    for least[0] in (None, "3", True, np.nan):
        with pytest.raises((TypeError, ValueError), match="at_least: expected a number, got"):
            view.sample(1)
    least[0] = 15
    assert drawn_by(view) == set(range(15, 20))


def test_a_threshold_that_no_float_holds_is_refused() -> None:
    """By name: a number by the view, that of a function by the draw. Fields of integers take it."""
    rb = ReplayBuffer(5, {"version": {"shape": ()}, "whole": {"shape": (), "dtype": int}})
    rb.add(version=1, whole=1)
    match = "at_least: field 'version' is float32, which does not hold 1000"
    with pytest.raises(ValueError, match=match):
        rb.view(Newest("version", at_least=10**400))
    with pytest.raises(ValueError, match=match):
        rb.view(Newest("version", at_least=lambda: 10**400)).sample(1)
    with pytest.raises(NotEnoughDataError):
        rb.view(Newest("whole", at_least=10**400)).sample(1)


def test_large_integers_are_exact() -> None:
    """Above 2**53, where float64 has no odd numbers."""
    rb = filled([BIG, BIG + 1, BIG + 2])
    assert drawn_by(rb.view(Newest("version", 1))) == {2}
    assert drawn_by(rb.view(Newest("version", at_least=BIG + 1))) == {1, 2}
    view = rb.view(Newest("version", half_life=1))
    assert view.explain(1)["probability"] == pytest.approx(2 / 7)


def test_half_lives_have_no_end() -> None:
    """The reference moves as versions rise, and rows that are too old have mass 0."""
    rb = ReplayBuffer(50, {"x": {"shape": ()}, "version": {"shape": (), "dtype": "f8"}}, seed=0)
    view: Any = rb.view(Newest("version", half_life=0.5))
    for t in range(0, 30_000, 200):
        rb.add(x=[t, t], version=[t, t - 0.5])
        view.sample(3)
        shares = [view.explain(row)["probability"] for row in (-1, -2)]
        assert shares[1] / shares[0] == pytest.approx(2)
    rb.add(x=1, version=1e300)
    assert drawn_by(view) == {1}
    assert "half-lives behind the newest" in view.explain(-2)["reasons"][0]
    rb.rewind(rb.rows - 1)
    assert view.explain(-3)["probability"] == pytest.approx(2 / 3, rel=1e-3)


def test_nan_is_refused_and_forgotten_once_it_is_gone() -> None:
    """As is infinity with half-lives."""
    rb = ReplayBuffer(50, {"x": {"shape": ()}, "version": {"shape": ()}}, seed=0)
    rb.add(x=range(3), version=[1, np.nan, 3])
    views = [rb.view(Newest("version", 1)), rb.view(Newest("version", half_life=1))]
    for view in views * 2:
        with pytest.raises(ValueError, match="Newest: expected versions, got NaN in the field"):
            view.sample(1)
    rb.update([1], version=[np.inf])
    assert drawn_by(views[0]) == {1}
    with pytest.raises(ValueError, match="half_life: expected finite versions, got"):
        views[1].sample(1)
    rb.update([1], version=[3])
    assert drawn_by(views[0]) == {1, 2}
    assert drawn_by(views[1]) == {0, 1, 2}


@pytest.mark.parametrize(
    ("arguments", "options", "error", "match"),
    [
        (("version",), {}, ValueError, "expected one of k, at_least and half_life, got none"),
        (("version", 2), {"half_life": 1}, ValueError, r"got \['k', 'half_life'\]"),
        (("version", 0), {}, ValueError, "k: expected at least 1, got 0"),
        (("version", 1.5), {}, TypeError, "k: expected an integer, got 1.5"),
        ((3, 1), {}, TypeError, "field: expected the name of a field, got 3"),
        (("version",), {"half_life": 0}, ValueError, "half_life: expected more than 0"),
        (("version",), {"half_life": np.nan}, ValueError, "half_life: expected"),
        (("version",), {"half_life": abs}, TypeError, "half_life: expected a number, got"),
        (("version",), {"at_least": "3"}, TypeError, "at_least: expected a number, got '3'"),
        (("version",), {"at_least": np.nan}, ValueError, "at_least: expected a number, got nan"),
    ],
)
def test_bad_options_are_refused(
    arguments: Any, options: Any, error: type[Exception], match: str
) -> None:
    """The error names the option."""
    with pytest.raises(error, match=match):
        Newest(*arguments, **options)


def test_a_field_that_is_no_version_is_refused() -> None:
    """By the view: a name that is none, a vector, a text, more bits than are compared."""
    fields: dict[str, Any] = {"x": {"shape": 2}, "text": {"shape": (), "dtype": "U3"}}
    wide = np.dtype(np.longdouble)
    fields["wide"] = {"shape": 2 if wide.itemsize == 8 else (), "dtype": wide}
    rb = ReplayBuffer(5, fields)
    for name in ("version", "x", "text", "wide"):
        with pytest.raises(ValueError, match=f"Newest: expected .*{name}"):
            rb.view(Newest(name, 2))


def test_explain_names_version_and_cut() -> None:
    """As the error of a draw with too few rows says how many are left."""
    rb = filled([3, 7, 8, 9, 10])
    view = rb.view(Newest("version", 4))
    expected = "Newest leaves it out: version 3, the oldest of the newest 4 is 7"
    assert view.explain(0)["reasons"] == [expected]
    with pytest.raises(NotEnoughDataError, match=r"5 distinct.* 4 can be drawn.* leaves 4"):
        view.sample(5, replace=False)
    assert repr(Newest("version", 4)) == "Newest(field='version', k=4)"


# ---- state ---------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{"k": 3}, {"at_least": 100}, {"half_life": 0.7}])
@pytest.mark.parametrize("sampler", [Uniform, Prioritized])
def test_saved_views_go_on_alike(
    tmp_path: Path, options: dict[str, Any], sampler: Callable[[], Any]
) -> None:
    """Bit for bit: a pickled view, and one of a buffer that was saved, after many versions."""
    rb = filled(np.arange(500) // 3, capacity=120, sampler=sampler())
    view = rb.view(Newest("version", **options))
    for step in range(20):
        view.sample(5)
        rb.add(x=step, version=170 + 2 * step, tag=False, done=False)
    rb.save(tmp_path / "saved")
    twin = pickle.loads(pickle.dumps(view))
    other = load(tmp_path / "saved")
    views = [view, twin, other.view(Newest("version", **options))]
    for step in range(5):
        batches = [one.sample(16) for one in views]
        for batch in batches[1:]:
            for name, values in batch.items():
                np.testing.assert_array_equal(values, batches[0][name], err_msg=name)
        for one in views:
            one.buffer.add(x=step, version=300 + step, tag=False, done=False)


def test_mixtures_and_batches_drawn_ahead() -> None:
    """The view is a source like others."""
    rb = filled([0, 1, 2, 3] * 10)
    late = rb.view(Newest("version", 1))
    mixture = Mixture({"all": rb, "late": late}, {"all": 1, "late": 1}, seed=0)
    batch = mixture.sample(40)
    assert set(batch["version"][batch["source"] == 1].tolist()) == {3}
    with late.batches(8, prefetch=2) as batches:
        assert set(next(batches)["version"].tolist()) == {3}


def test_threads_that_add_versions_and_draw() -> None:
    """No batch has a version that was too old before its draw began."""
    rb = filled([0] * 50, capacity=500)
    view, over, newest = rb.view(Newest("version", 3)), threading.Event(), [0]

    def add() -> None:
        chance = random.Random(0)
        while not over.is_set():
            version = newest[0] + chance.choice([0, 0, 1])
            late = max(0, version - chance.choice([0, 1, 2]))
            rb.add(x=[1, 2], version=[version, late], tag=[0, 0], done=[0, 0])
            newest[0] = version

    wrong: list[Any] = []

    def draw() -> None:
        try:
            for _ in range(repeats(400, 60)):
                before = newest[0]
                versions = view.sample(32)["version"]
                wrong.extend(versions[versions < before - 2].tolist())
        except BaseException as error:
            wrong.append(error)

    adder, drawers = threading.Thread(target=add), [threading.Thread(target=draw) for _ in "ab"]
    for thread in (adder, *drawers):
        thread.start()
    for thread in drawers:
        thread.join()
    over.set()
    adder.join()
    assert wrong == []


@pytest.mark.parametrize("options", [{"k": 2}, {"at_least": 2}, {"half_life": 1.0}])
def test_an_interrupt_at_every_line(options: dict[str, Any]) -> None:
    """The next draw is that of all rows, whatever was cut short."""
    versions = [0, 1, 2, 3, 4]

    def make() -> Any:
        rb = filled([0, 1, 2, 3])
        view = rb.view(Newest("version", **options))
        view.sample(2)
        rb.add(x=4, version=4, tag=False, done=False)
        rb.update([3], version=[1])
        return view

    def is_ours(path: str) -> bool:
        return path.endswith(("_newest.py", "_rules.py", "_ruled.py"))

    versions[3] = 1
    expected = newest_masses(dict(enumerate(versions)), **options)
    view = make()
    lines = first_and_last(lambda: view.sample(2), is_ours)
    assert len(lines) > 20
    for line in lines:
        view = make()
        try:
            with cut_at(line, only=is_ours):
                view.sample(2)
        except Cut:
            pass
        masses = view._now.starts.masses(np.arange(5))
        found: Array = masses / masses.max()
        np.testing.assert_allclose(found, [expected[slot] for slot in range(5)])
