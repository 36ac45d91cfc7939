"""Draws by shares of values, against a loop over all rows."""

from __future__ import annotations

import os
import pickle
import random
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributions import chi_square, chi_square_limit
from helpers import Array
from hypothesis import given
from hypothesis import strategies as st
from interruptions import Cut, cut_at, first_and_last
from reference_shares import equal, probabilities
from rewound import KINDS, History, Kind
from scale import LONG, repeats

from cpprb_like import Mixture, NotEnoughDataError, ReplayBuffer
from cpprb_like.samplers import (
    LegacyUniform,
    Prioritized,
    RankBased,
    Recency,
    Reverse,
    Uniform,
    _whole_rows,
)
from cpprb_like.samplers._shares import ends_of
from cpprb_like.samplers._tree_draws import cut
from cpprb_like.schedules import Linear
from cpprb_like.views import Among, NStep, Rule, Sequences, Share

HISTORIES = int(os.environ.get("CPPRB_LIKE_MASS_HISTORIES", "60" if LONG else "2"))
FIELDS: dict[str, Any] = {
    "x": {"shape": (), "dtype": "i8"},
    "task": {"shape": (), "dtype": "i4"},
    "done": {"shape": (), "dtype": bool},
}
SHARES: dict[float, Any] = {2: 0.5, 1: 0.25, 5: 0.25, 0: 0}


def filled(n: int = 60, size: int = 100, sampler: Any = None) -> ReplayBuffer:
    """A buffer with tasks 0 to 3, in runs of one, and short episodes."""
    rb = ReplayBuffer(size, FIELDS, sampler=sampler or Uniform(), seed=0)
    rb.add(x=np.arange(n), task=np.arange(n) % 4, done=np.arange(n) % 10 == 9)
    return rb


# ------------------------------------------------------------------ histories


@pytest.mark.once
@pytest.mark.parametrize(
    "kind", [kind for kind in KINDS if kind.sampler != "recency"], ids=lambda kind: kind.name
)
def test_random_histories(tmp_path: Path, kind: Kind) -> None:
    """Each row has the weight of now in the tree of its value, and draws have their parts."""
    for seed in range(HISTORIES):
        (tmp_path / str(seed)).mkdir()
        chance = random.Random(f"shares {kind.name} {seed}")
        history = History(kind, tmp_path / str(seed), chance)
        given: dict[str, Any] = {"mark": {number: 1 + number % 3 for number in range(0, 60, 2)}}
        views = [history.rb.view(Share(given)), history.rb.view(Share({"done": "equal"}))]
        if kind.capacity >= 4 * kind.n_envs:
            views.append(history.rb.view(Share({"done": "equal"}), Odd(), Sequences(3)))
        for _ in range(40):
            history._act()  # and the file stays open
            if chance.random() < 0.6:
                for view in views:
                    compare(view)


class Odd(Rule):
    """A further rule, with masses of its own."""

    def follows(self, fields: Any) -> Any:
        del fields
        return ["mark"]

    def masses(self, rows: Any, slots: Any) -> Any:
        del slots
        return rows["mark"] % 3 / 2


def compare(view: Any) -> None:
    """Compare what a draw may return, and the parts of a batch, with all rows one by one."""
    rb, now = view.buffer, view._now
    ((field, shares),) = view.layers[0].shares.items()
    with suppress(NotEnoughDataError):
        view.sample(1)  # a draw by rank may sort, which changes weights
    slots = rb.ring.present_slots()
    stored: Any = {field: [], "mark": np.zeros(0)}
    if len(slots):
        stored = now.stored(slots, (field, "mark"))
    weights = np.ones(len(slots))
    if len(slots):
        by_sampler = rb.sampler.row_weights(slots)
        weights = weights if by_sampler is None else by_sampler
        weights = weights * (now.complete.tell(slots) == 1)
    if len(view.layers) > 1:
        weights = weights * (stored["mark"] % 3 / 2)
    values = np.asarray(stored[field]).tolist()
    by_value = equal(values) if shares == "equal" else shares
    chances = probabilities(values, weights.tolist(), by_value)
    drawable = set(slots[chances > 0].tolist())
    if not drawable:
        with pytest.raises(NotEnoughDataError):
            view.sample(3)
        return
    rng = np.random.default_rng(0)
    drawn, _ = rb.sampler.draw_starts(now.starts, 24, rng, replace=True)
    assert set(drawn.tolist()) <= drawable
    value_of = dict(zip(slots.tolist(), values, strict=True))
    counts = Counter(value_of[slot] for slot in drawn.tolist())
    for value, share in by_value.items():
        wanted = 24 * sum(chances[k] for k, one in enumerate(values) if one == value)
        assert share > 0
        assert abs(counts[value] - wanted) < 1 + 1e-6
    rows = now.starts.over(rb.sampler.rows if rb.has_priorities else None)
    for part, by, _, share in now.starts.parts(rows, 1000, rng):
        each = by.get(slots) * (part.tell(slots) == 1)
        own = each > 0
        np.testing.assert_allclose(share * each[own] / each.sum(), chances[own], rtol=1e-9)


# ------------------------------------------------------------------ distribution


@pytest.mark.parametrize("sampler", [Uniform, Prioritized, RankBased])
@pytest.mark.parametrize("layers", [(), (Sequences(3),), (NStep(3, rew="x"),)])
def test_draws_are_in_proportion(sampler: Callable[..., Any], layers: Any) -> None:
    """To shares, then masses times weights; weights correct the priorities alone."""
    fields: dict[str, Any] = {name: {"shape": ()} for name in ("x", "task", "mark", "done")}
    options: dict[str, Any] = {} if sampler is Uniform else {"probabilities": True}
    rb = ReplayBuffer(60, fields, sampler=sampler(**options), seed=0)
    each = np.arange(60)
    rb.add(x=each, task=each // 7 % 4, mark=each % 5, done=each % 10 == 9)
    view: Any = rb.view(Share({"task": SHARES}), Odd(), *layers)
    if rb.has_priorities:
        rb.update_priorities(each, 0.1 + np.random.default_rng(0).random(60))
        view.sample(1)  # ranks are sorted at a draw
    weights = rb.sampler.row_weights(each)
    weights = np.ones(60) if weights is None else weights
    is_complete = view._now.complete.tell(each) == 1
    masses = each % 5 % 3 / 2 * is_complete
    values = (each // 7 % 4).tolist()
    chances = probabilities(values, (weights * masses).tolist(), SHARES)
    keywords: dict[str, Any] = {"beta": 0.7} if rb.has_priorities else {}
    rng = np.random.default_rng(1)
    batches = [
        rb.sampler.draw_starts(view._now.starts, 1000, rng, replace=True, **keywords)
        for _ in range(20)
    ]
    drawn = np.concatenate([slots for slots, _ in batches])
    counts = np.bincount(drawn, minlength=60)
    there = chances > 0
    assert not counts[~there].any()
    limit = chi_square_limit(int(there.sum()) - 1)
    assert chi_square(counts[there], 20_000 * chances[there]) < limit
    for slots, extra in batches if rb.has_priorities else []:
        expected = (weights[slots] / weights[slots].min()) ** -0.7
        np.testing.assert_allclose(extra["weights"], expected, rtol=1e-5)
        np.testing.assert_allclose(extra["probabilities"], chances[slots], rtol=1e-9)
        np.testing.assert_array_equal(extra["indexes"] % rb.ring.span, slots)


@pytest.mark.parametrize("sampler", [Uniform, Prioritized])
@pytest.mark.parametrize("n", [1, 3, 7, 256])
def test_counts_are_rounded_at_random(sampler: Callable[[], Any], n: int) -> None:
    """To the number below or above, with the right mean; parts are in the order of the values."""
    view = filled(sampler=sampler()).view(Share({"task": {3: 0.1, 0: 0.6, 1: 0.3}}))
    total: Counter[int] = Counter()
    for _ in range(400):
        tasks = view.sample(n)["task"].tolist()
        assert tasks == sorted(tasks, key=[3, 0, 1].index)
        for task, share in {3: 0.1, 0: 0.6, 1: 0.3}.items():
            assert abs(tasks.count(task) - n * share) < 1
        total.update(tasks)
    for task, share in {3: 0.1, 0: 0.6, 1: 0.3}.items():
        part = n * share % 1
        assert abs(total[task] / 400 - n * share) < 5 * (part * (1 - part) / 400) ** 0.5 + 1e-9


def test_distinct_rows_of_each_value_are_drawn_by_weight() -> None:
    """The first of two comes in proportion to its weight."""
    rb = filled(8, sampler=Prioritized(alpha=1.0, eps=0.0))
    rb.update_priorities(np.arange(8), [1, 1, 1, 1, 3, 1, 1, 1])
    view = rb.view(Share({"task": {0: 1, 1: 1}}))
    first: Counter[int] = Counter()
    for _ in range(2000):
        rows = view.sample(4, replace=False)["x"].tolist()
        assert sorted(rows) == [0, 1, 4, 5]
        first[rows[0]] += 1
    assert chi_square(np.array([first[0], first[4]]), np.array([500.0, 1500.0])) < 24


# ------------------------------------------------------------------ values


def test_a_value_without_a_row_gives_its_share_to_the_others() -> None:
    """In the ratio of their shares, until it has one that can be drawn."""
    rb = ReplayBuffer(40, FIELDS, seed=0)
    view = rb.view(Share({"task": {0: 0.5, 1: 0.25, 2: 0.25}}))
    with pytest.raises(NotEnoughDataError, match="the buffer holds 0 rows, of which none"):
        view.sample(4)
    rb.add(x=[1], task=[7], done=[False])
    with pytest.raises(NotEnoughDataError, match=r"holds 1 rows, of which none .* Share leaves 0"):
        view.sample(4)
    assert view.explain(0)["reasons"] == ["Share gives its value of 'task' no share"]
    rb.add(x=[1] * 20, task=[0] * 20, done=[False] * 20)
    assert Counter(view.sample(60)["task"].tolist()) == {0: 60}
    rb.add(x=[2], task=[2], done=[False])
    assert Counter(view.sample(60)["task"].tolist()) == {0: 40, 2: 20}
    sequences: Any = rb.view(Share({"task": "equal"}), Sequences(4))
    assert set(sequences.sample(60)["task"][:, 0].tolist()) == {0, 7}
    rb.update([21], task=[1])
    assert Counter(view.sample(60)["task"].tolist()) == {0: 40, 1: 20}
    assert "probability" not in view.explain(1)


def test_values_whose_rows_others_leave_out_are_empty() -> None:
    """By another rule, or by priorities of 0; a tiny priority is enough."""
    rb = filled(sampler=Prioritized(alpha=1.0, eps=0.0))
    odd = rb.view(Share({"task": "equal"}), Among(lambda rows: rows["x"] % 4 != 2, "x"))
    assert Counter(odd.sample(60)["task"].tolist()) == {0: 20, 1: 20, 3: 20}
    view = rb.view(Share({"task": {0: 1, 1: 1}}))
    rb.update_priorities(np.arange(0, 60, 4), np.zeros(15))
    assert Counter(view.sample(60)["task"].tolist()) == {1: 60}
    rb.update_priorities([8], [1e-12])
    assert Counter(view.sample(60)["task"].tolist()) == {0: 30, 1: 30}
    assert set(view.sample(60)["x"][:30].tolist()) == {8}


def test_a_value_whose_windows_all_begin_with_weight_0_is_empty() -> None:
    """Its share goes to the others, and comes back with a priority above 0."""
    rb = ReplayBuffer(100, FIELDS, sampler=Prioritized(eps=0.0), seed=0)
    rb.add(x=range(12), task=[0] * 10 + [1, 1], done=[False] * 12)
    rb.update_priorities([10, 11], [0.0, 3.0])  # the newest row begins no window
    view = rb.view(Share({"task": "equal"}), Sequences(2))
    assert view.sample(8)["task"][:, 0].tolist() == [0] * 8
    rb.update_priorities([10], [0.001])
    assert view.sample(8)["task"][:, 0].tolist() == [0] * 4 + [1] * 4


@pytest.mark.parametrize("sampler", [Uniform, Prioritized])
@pytest.mark.parametrize("layers", [(), (Sequences(2),)])
def test_too_few_distinct_rows_of_a_value_are_an_error_that_names_it(
    sampler: Callable[[], Any], layers: Any
) -> None:
    """And says how many there are."""
    rb = filled(12, sampler=sampler())
    view = rb.view(Share({"task": {0: 1, 1: 1}}), *layers)
    for _ in range(2):
        with pytest.raises(NotEnoughDataError, match=r"5 distinct rows of task 0: .* 12 rows, of"):
            view.sample(10, replace=False)


def test_equal_shares_follow_the_values_of_now() -> None:
    """However many came and went; more than 64 at a time are refused, until they are fewer."""
    rb = ReplayBuffer(100, FIELDS, seed=0)
    view = rb.view(Share({"task": "equal"}))
    for start in range(0, 400, 20):
        rb.add(x=np.arange(100), task=start + np.arange(100) % 50, done=np.zeros(100))
        tasks = view.sample(100)["task"].tolist()
        assert Counter(tasks) == dict.fromkeys(range(start, start + 50), 2)
        assert tasks == sorted(tasks)
    rb.add(x=np.arange(100), task=np.arange(100), done=np.zeros(100))
    for _ in range(2):
        with pytest.raises(ValueError, match="at most 64 values of 'task'"):
            view.sample(4)
    rb.update(np.arange(100), task=np.arange(100) % 3)
    assert Counter(view.sample(99)["task"].tolist()) == {0: 33, 1: 33, 2: 33}


def test_values_of_rows_that_are_all_replaced_count_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also where more rows are new than rules are told of at a time."""
    monkeypatch.setattr(_whole_rows, "CHUNK", 16)
    rb = ReplayBuffer(100, FIELDS, seed=0)
    view = rb.view(Share({"task": "equal"}))
    for start in (0, 50, 100):
        rb.add(x=np.arange(100), task=start + np.arange(100) % 50, done=np.zeros(100))
        assert view.sample(50)["task"].tolist() == list(range(start, start + 50))
    rb.update(np.arange(100), task=np.arange(100) % 50)
    assert view.sample(50)["task"].tolist() == list(range(50))


@pytest.mark.parametrize("sampler", [Uniform, Prioritized])
def test_values_that_another_thread_meets_amid_a_draw_are_drawn_later(
    sampler: Callable[[], Any],
) -> None:
    """By each draw from the next one on."""
    line, last = 1, 1
    while line <= last:
        rb = ReplayBuffer(100, FIELDS, sampler=sampler(), seed=0)
        view = rb.view(Share({"task": "equal"}))

        def meet(rb: ReplayBuffer = rb, view: Any = view) -> None:
            rb.add(x=[2], task=[2], done=[False])
            view.sample(3)

        rb.add(x=[0, 1], task=[0, 1], done=[False] * 2)
        thread = threading.Thread(target=meet)

        def run(thread: threading.Thread = thread) -> None:
            thread.start()
            thread.join(0.01)  # it may wait for this draw

        with cut_at(line, run, lambda path: path.endswith(("_share.py", "_shares.py"))) as count:
            view.sample(4)
        last, line = count[0], line + 1
        if thread.ident is not None:
            thread.join()
            assert view.sample(3)["task"].tolist() == [0, 1, 2]


def test_a_part_that_loses_its_weights_amid_a_draw_gives_no_rows() -> None:
    """Such as by a thread that takes its turn when a finalizer runs."""
    view = filled().view(Share({"task": {0: 1, 1: 1}}))
    view.sample(1)
    shared: Any = view._now.starts
    every = shared.every
    trees = every.trees([0, 1])

    class Meddling(int):
        def __radd__(self, other: int) -> int:
            trees[0].put(np.arange(60), np.zeros(60), None)
            return int(self) + other

    ends = [0, Meddling(1), 2]
    rng = np.random.default_rng(0)
    assert every._now().draw_parts(trees, ends, 8, rng, stratified=False) is None
    drawn = every._now().draw_parts(trees, [0, 1, 2], 8, rng, stratified=False)
    assert set(drawn[0] % 4) == {1}


def test_values_whose_rows_are_deleted_count_no_more() -> None:
    """Also where no new row lies in their slots."""
    rb = ReplayBuffer(100, FIELDS, seed=0)
    view = rb.view(Share({"task": "equal"}))
    rb.add(x=np.arange(100), task=np.arange(100) % 50, done=np.zeros(100))
    view.sample(4)
    rb.clear()
    rb.add(x=np.arange(60), task=np.arange(100, 160), done=np.zeros(60))
    assert view.sample(60)["task"].tolist() == list(range(100, 160))


def test_shares_by_a_schedule() -> None:
    """At the number of batches drawn; a share may be 0 for a time, and not all."""
    view = filled().view(Share({"task": {0: Linear(1, 0, 10), 1: Linear(0, 1, 10)}}))
    for draw in range(12):
        assert view.sample(100)["task"].tolist().count(1) == 10 * min(draw, 10)
    shares: Any = {0: lambda t: float(t < 1), 1: lambda t: 0.0}
    none = filled().view(Share({"task": shares}))
    none.sample(4)
    with pytest.raises(ValueError, match=r"a share above 0, got \[0.0, 0.0\] for batch 1"):
        none.sample(4)


@pytest.mark.parametrize("dtype", ["?", "u1", "f2", "f4", "f8"])
def test_values_of_dtypes(dtype: str) -> None:
    """Values are those that the dtype holds; NaN has no share."""
    rb = ReplayBuffer(40, {"x": {"shape": (1,), "dtype": dtype}}, seed=0)
    rb.add(x=[0, 1, 1, 1])
    assert rb.view(Share({"x": {1: 1, False: 1}})).sample(4)["x"].ravel().tolist() == [1, 1, 0, 0]
    if dtype[0] == "f":
        rb.add(x=[0.1, np.nan])
        tenth = rb.view(Share({"x": {0.1: 1}})).sample(4)["x"]
        np.testing.assert_array_equal(tenth, np.full((4, 1), 0.1, dtype))
        assert not np.isnan(rb.view(Share({"x": "equal"})).sample(99)["x"]).any()


@pytest.mark.parametrize(
    ("shares", "error", "match"),
    [
        (3, TypeError, "expected {field: {value: share}}, got 3"),
        ({}, ValueError, "expected one field, got \\[\\]"),
        ({"x": {0: 1}, "task": {0: 1}}, ValueError, "expected one field, got \\['x', 'task'\\]"),
        ({"task": 3}, TypeError, "shares\\['task'\\]: expected {value: share} or 'equal', got 3"),
        ({"task": {}}, ValueError, "expected a share above 0"),
        ({"task": {0: 0}}, ValueError, "expected a share above 0"),
        ({"task": {0: -1}}, ValueError, "shares\\['task'\\]\\[0\\]"),
        ({"task": {0: "a"}}, TypeError, "shares\\['task'\\]\\[0\\]"),
        ({"task": {"a": 1}}, TypeError, "bools or numbers, got 'a'"),
        ({"task": dict.fromkeys(range(65), 1)}, ValueError, "at most 64 values, got 65"),
        ({"none": {0: 1}}, ValueError, "one of the fields \\['x', 'task', 'done', 'rew'\\]"),
        ({"task": {0.5: 1}}, ValueError, "'task' is int32, which does not hold 0.5"),
        ({"task": {2**31: 1}}, ValueError, "'task' is int32, which does not hold 2147483648"),
        ({"task": {2**70: 1}}, ValueError, "'task' is int32, which does not hold 11805916207174"),
        ({"task": {10**400: 1}}, ValueError, "'task' is int32, which does not hold 1000000"),
        ({"task": {Fraction(1, 2): 1}}, ValueError, r"does not hold Fraction\(1, 2\)"),
        ({"rew": {10**400: 1}}, ValueError, "'rew' is float32, which does not hold 1000000"),
        ({"task": {float("nan"): 1}}, ValueError, "which does not hold nan"),
        ({"task": {float("inf"): 1}}, ValueError, "which does not hold inf"),
        ({"done": {2: 1}}, ValueError, "'done' is bool, which does not hold 2"),
    ],
)
def test_wrong_shares_are_refused(shares: Any, error: type[Exception], match: str) -> None:
    """The error says what was expected, and what came."""
    rb = ReplayBuffer(9, FIELDS | {"rew": {"shape": ()}})
    with pytest.raises(error, match=match):
        rb.view(Share(shares))


def test_values_that_are_one_in_the_field_are_refused() -> None:
    """Their shares would be those of the last one."""
    rb = ReplayBuffer(9, {"x": {"shape": (), "dtype": "f2"}}, seed=0)
    with pytest.raises(ValueError, match=r"two of the values .* are one float16"):
        rb.view(Share({"x": {0.1: 1, 0.10000001: 1}}))


def test_what_shares_do_not_go_with_is_refused() -> None:
    """Samplers that draw by age, epochs, and groups."""
    for sampler in (Recency(), LegacyUniform(), Reverse()):
        with pytest.raises(ValueError, match=r"no Share, with .*; Uniform and prior"):
            filled(sampler=sampler).view(Share({"task": "equal"})).sample(3)
    with pytest.raises(ValueError, match="by shares"):
        next(iter(filled().view(Share({"task": "equal"})).epoch(3)))

    class Pairs(Rule):
        group_size = 2

    with pytest.raises(ValueError, match="no rule with shares beside one that draws groups"):
        filled().view(Share({"task": "equal"}), Pairs())


def test_rules_that_count_draws_go_with_shares() -> None:
    """Each row of a value comes once."""

    class Once(Rule):
        def __init__(self) -> None:
            self.gone: list[int] = []

        def open(self, rows: Any) -> Once:
            del rows
            return Once()

        def masses(self, rows: Any, slots: Any) -> Array:
            del rows
            return ~np.isin(slots, self.gone)

        def drawn(self, slots: Any) -> None:
            self.new = slots
            self.gone.extend(slots.tolist())

        def moved(self) -> Any:
            return np.array(self.gone, np.intp), np.zeros(len(self.gone))

    view = filled(12).view(Share({"task": {0: 1, 1: 1}}), Once())
    assert sorted(view.sample(4)["x"].tolist() + view.sample(2)["x"].tolist()) == [0, 1, 4, 5, 8, 9]
    with pytest.raises(NotEnoughDataError, match="none can be drawn"):
        view.sample(2)


# ------------------------------------------------------------------ sources, saves, threads


def test_mixtures_and_batches_drawn_ahead() -> None:
    """A view with shares is a source as others."""
    rb = filled()
    tasks, rest = rb.view(Share({"task": {1: 1}})), rb.view(Share({"task": {0: 1, 2: 1}}))
    mixture = Mixture({"tasks": tasks, "rest": rest}, {"tasks": 0.5, "rest": 0.5}, seed=0)
    assert mixture.sample(8)["task"].tolist() == [1, 1, 1, 1, 0, 0, 2, 2]
    with rest.batches(4, prefetch=2) as batches:
        assert next(batches)["task"].tolist() == [0, 0, 2, 2]


def test_a_mixture_asks_for_rows_before_the_first_draw() -> None:
    """The draw is by priority all the same."""
    rb = filled(sampler=Prioritized(alpha=1.0, eps=0.0))
    rb.update_priorities(np.arange(60), (np.arange(60) == 5) * 1.0)
    mixture = Mixture({"one": rb.view(Share({"task": "equal"}))}, {"one": 1}, seed=0)
    assert mixture.sample(8)["x"].tolist() == [5] * 8


@pytest.mark.parametrize("shares", [{0: Linear(1, 0, 10), 1: 0.4, 3: 0.2}, "equal"])
@pytest.mark.parametrize("sampler", [Uniform, Prioritized])
def test_a_saved_view_draws_the_same_batches(sampler: Callable[[], Any], shares: Any) -> None:
    """Also where its values came in another order than their rows lie."""
    rb = filled(8, sampler=sampler())
    view = rb.view(Share({"task": shares}))
    view.sample(4)
    rb.update(np.arange(8), task=[3, 3, 1, 1, 0, 0, 9, 9])
    view.sample(4)
    other = pickle.loads(pickle.dumps(view))
    assert repr(other.layers) == repr(view.layers)
    for _ in range(12):
        one, two = view.sample(7), other.sample(7)
        for name in one:
            np.testing.assert_array_equal(one[name], two[name])


def test_threads_that_add_and_draw() -> None:
    """A drawn row has the value of its part, whatever other threads do meanwhile."""
    rb = ReplayBuffer(300, FIELDS, seed=0)
    rb.add(x=np.zeros(300), task=np.arange(300) % 3, done=np.zeros(300))
    view, over = rb.view(Share({"task": {0: 1, 1: 2}})), threading.Event()

    def change(seed: int) -> None:
        chance = np.random.default_rng(seed)
        while not over.is_set():
            rb.add(x=[1], task=[chance.integers(3)], done=[False])
            rb.update(chance.choice(300, 3, replace=False), task=chance.integers(0, 3, 3))

    wrong: list[Any] = []

    def draw() -> None:
        try:
            for _ in range(repeats(400, 60)):
                tasks = view.sample(33)["task"].tolist()
                if tasks != [0] * 11 + [1] * 22:
                    wrong.append(tasks)
        except BaseException as error:
            wrong.append(error)

    changers = [threading.Thread(target=change, args=(seed,)) for seed in range(2)]
    drawers = [threading.Thread(target=draw) for _ in range(2)]
    for thread in changers + drawers:
        thread.start()
    for thread in drawers:
        thread.join()
    over.set()
    for thread in changers:
        thread.join()
    assert wrong == []


def test_a_draw_that_is_interrupted_at_any_line() -> None:
    """The next draws have their parts, of the rows of now."""

    def changed() -> Any:
        rb = filled(40)
        view = rb.view(Share({"task": "equal"}))
        view.sample(4)
        rb.add(x=range(90, 94), task=[7, 7, 8, 3], done=[False] * 4)
        rb.update([0, 4], task=[9, 1])
        return view

    def only(path: str) -> bool:
        return path.endswith(("_share.py", "_shares.py", "_rules.py", "_ruled.py"))

    counted = changed()
    for line in first_and_last(lambda: counted.sample(4), only):
        view = changed()
        try:
            with cut_at(line, only=only):
                view.sample(4)
        except Cut:
            pass
        tasks = view.sample(70)["task"].tolist()
        assert Counter(tasks) == dict.fromkeys([0, 1, 2, 3, 7, 8, 9], 10)
        compare_tasks(view)


def compare_tasks(view: Any) -> None:
    """Each value has the rows of now."""
    rb = view.buffer
    slots = rb.ring.present_slots()
    tasks = rb[slots]["task"]
    now = view._now
    for part, by, *_ in now.starts.parts(now.starts.over(None), 700, rb.rng):
        own = slots[by.get(slots) > 0]
        assert len({int(tasks[slot]) for slot in own}) == 1
        assert len(own) == part.count == np.sum(tasks == tasks[own[0]])


@pytest.mark.parametrize("stratified", [False, True])
@given(
    n=st.integers(0, 90),
    shares=st.lists(st.sampled_from([0.0, 0.1, 1.0, 2.5, 1e-9, 1e300]), min_size=1, max_size=4),
    seed=st.integers(0, 99),
)
def test_one_call_draws_what_a_call_for_each_value_draws(
    stratified: bool, n: int, shares: list[float], seed: int
) -> None:
    """The same rows and weights, by the same random numbers. The last value has no row."""
    rb = filled(sampler=Prioritized())
    rb.update_priorities(np.arange(60), 1 + np.arange(60) % 7)
    view = rb.view(Share({"task": {0: 1, 1: 1, 2: 1, 50: 1}}))
    view.sample(1)
    starts: Any = view._now.starts
    sampler: Any = rb.sampler
    every = starts.over(sampler.rows)
    trees = starts.every.trees(list(range(4)))[-len(shares) :]
    together, apart = np.random.default_rng(seed), np.random.default_rng(seed)
    found = every.draw_parts(trees, ends_of(tuple(shares)), n, together, stratified)
    exact = [
        Fraction(repr(share)) * (tree.total > 0) for share, tree in zip(shares, trees, strict=True)
    ]
    if not sum(exact):
        assert found is None
        assert together.random() == apart.random()
        return
    offset, stop, slots, weights, totals = Fraction(apart.random()), Fraction(0), [], [], []
    for share, tree in zip(exact, trees, strict=True):
        start, stop = stop, stop + share / sum(exact)
        count = int(n * stop + offset) - int(n * start + offset)
        if count:
            drawn = tree.draw(count, apart, True, stratified, False)
            slots += drawn[0].tolist()
            weights += drawn[2].tolist()
            totals += [tree.total / (share / sum(exact))] * count
    assert found[0].tolist() == slots
    assert found[1].tolist() == weights
    np.testing.assert_allclose(found[2], totals, rtol=1e-12)
    assert together.random() == apart.random()
    assert every.drawn == rb.ring.written
    with pytest.raises(ValueError, match="ends: expected"):
        every.draw_parts(trees, [0], n, together, stratified)


def test_places_of_parts_without_any() -> None:
    """An error: there is no last part."""
    with pytest.raises(ValueError, match="ends: expected cumulative shares, got none"):
        cut(3, [], 0.5)
