"""Rules with each sampler, other layers, and each other: draws beside chances by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from distributions import chi_square, chi_square_limit
from helpers import Array

from cpprb_like import Mixture, NotEnoughDataError, ReplayBuffer
from cpprb_like.processes import SharedReplay
from cpprb_like.samplers import LegacyUniform, Prioritized, RankBased, Recency, Uniform
from cpprb_like.views import Among, AtMost, FrameStacks, Groups, Newest, NStep, Sequences, Share

pytestmark = pytest.mark.once

ROWS, K, DRAWS = 60, 4, 12_000
FIELDS: dict[str, Any] = {
    "x": {"shape": (), "dtype": "i8"},
    "obs": {"shape": 2},
    "rew": {"shape": ()},
    "version": {"shape": (), "dtype": "i4"},
    "key": {"shape": (), "dtype": "i4"},
    "task": {"shape": (), "dtype": "i4"},
    "done": {"shape": (), "dtype": bool},
}
X = np.arange(ROWS)
VERSION, KEY, TASK = X * 7 % 6, X * 11 % 15, X % 3  # of each key four rows, far from each other
DONE = X % 12 == 11


def step(x: int) -> dict[str, Any]:
    """A row."""
    found = {"x": x, "obs": np.full(2, x), "rew": x % 4, "done": bool(DONE[x])}
    return found | {"version": VERSION[x], "key": KEY[x], "task": TASK[x]}


def even() -> Among:
    """Half of the rows."""
    return Among(lambda rows: rows["x"] % 2 == 0, "x")


# The rules of a view, and the mass of each row by hand.
MASSES: dict[str, tuple[Callable[[], tuple[Any, ...]], Array]] = {
    "among": (lambda: (even(),), X % 2 == 0),
    "newest": (lambda: (Newest("version", 2),), VERSION >= 4),
    "both": (lambda: (even(), Newest("version", 3)), (X % 2 == 0) & (VERSION >= 3)),
    "half_life": (lambda: (Newest("version", half_life=2),), 2.0 ** ((VERSION - 5) / 2)),
    "weighed": (
        lambda: (even(), Newest("version", half_life=1)),
        (X % 2 == 0) * 2.0 ** (VERSION - 5),
    ),
}
LAYERS: dict[str, Callable[[], tuple[Any, ...]]] = {
    "rows": lambda: (),
    "n_step": lambda: (NStep(3, rew="rew"),),
    "sequences": lambda: (Sequences(3),),
    "stacks": lambda: (FrameStacks({"obs": 2}),),
}
# Rows that have what the layers need: of sequences, those with two rows behind them or an end.
SAMPLERS: dict[str, Callable[[], Any]] = {
    "uniform": Uniform,
    "prioritized": Prioritized,
    "ranks": RankBased,
    "recency": lambda: Recency(0.99, updates=1, least=60),
    "legacy": LegacyUniform,
}


@contextmanager
def source(kind: str, sampler: str) -> Iterator[tuple[Any, Array]]:
    """A buffer, or a learner of two actors, with all rows; and the weight of each row."""
    priorities = 0.1 + np.random.default_rng(0).random(ROWS)
    if kind == "learner":
        with SharedReplay(2 * ROWS, FIELDS, writers=2) as replay:
            actors = [replay.actor(number) for number in range(2)]
            for x in X.tolist():
                actors[x // 12 % 2].add(**step(x))
            learner = replay.learner(SAMPLERS[sampler](), seed=0)
            if learner.has_priorities:
                batch = learner.sample(ROWS, replace=False)
                learner.update_priorities(batch["indexes"], priorities[batch["x"]])
            yield learner, weights_of(learner.sampler, priorities)
        return
    rb = ReplayBuffer(ROWS, FIELDS, sampler=SAMPLERS[sampler](), seed=0)
    for x in X.tolist():
        rb.add(**step(x))
    if rb.has_priorities:
        rb.update_priorities(X, priorities)
        rb.sample(1)  # ranks are sorted at a draw
    found = rb.sampler.row_weights(X) if sampler == "ranks" else None
    yield rb, weights_of(rb.sampler, priorities) if found is None else found


def weights_of(sampler: Any, priorities: Array) -> Array:
    """The weights by which a sampler draws."""
    if not sampler.has_priorities:
        return np.ones(ROWS)
    found: Array = (priorities + getattr(sampler, "eps", 0.0)) ** sampler.alpha
    return found  # of ranks: they have weights of their own


def firsts(view: Any, n: int, draws: int = DRAWS) -> Array:
    """The numbers of the (first) rows of batches of n."""
    parts = [view.sample(n)["x"].reshape(n, -1)[:, 0] for _ in range(draws // n)]
    return np.concatenate(parts)


def compare(drawn: Array, chances: Array) -> None:
    """Drawn rows have these chances."""
    counts, there = np.bincount(drawn, minlength=ROWS), chances > 0
    assert not counts[~there].any()
    expected = counts.sum() * chances[there] / chances.sum()
    assert chi_square(counts[there], expected) < chi_square_limit(int(there.sum()) - 1)


def cells(samplers: Any = SAMPLERS) -> Any:
    """Each sampler and each kind of layers, of a buffer; of a learner those that it takes."""
    return [
        (kind, sampler, layers)
        for kind in ("buffer", "learner")
        for sampler in samplers
        for layers in LAYERS
        if kind == "buffer" or sampler in ("uniform", "prioritized")
    ]


@pytest.mark.parametrize("rules", MASSES)
@pytest.mark.parametrize(("kind", "sampler", "layers"), cells())
def test_rows_are_drawn_by_weight_times_mass(
    kind: str, sampler: str, layers: str, rules: str
) -> None:
    """And weights correct the priorities alone. Samplers by age take masses of 0 and 1."""
    make, masses = MASSES[rules]
    with source(kind, sampler) as (rb, weights):
        view = rb.view(*make(), *LAYERS[layers]())
        if sampler in ("recency", "legacy"):
            if set(np.unique(masses).tolist()) - {0, 1}:
                with pytest.raises(ValueError, match="expected masses of 0 and 1"):
                    view.sample(4)
                return
            drawn = firsts(view, 200)
            assert set(drawn.tolist()) == set(np.flatnonzero(masses).tolist())
            if sampler == "recency":
                return
        drawn = firsts(view, 200)
        compare(drawn, weights * masses)
        if rb.has_priorities:
            batch = view.sample(50, beta=0.5)
            own = weights[batch["x"].reshape(50, -1)[:, 0]]
            expected = (own / own.min()) ** -0.5
            np.testing.assert_allclose(batch["weights"], expected, rtol=1e-5)


@pytest.mark.parametrize(("kind", "sampler", "layers"), cells(["uniform", "prioritized", "ranks"]))
def test_groups_are_drawn_by_the_row_that_completed_them(
    kind: str, sampler: str, layers: str
) -> None:
    """Whole, in the order of their rows, and only where each row has a mass."""
    with source(kind, sampler) as (rb, weights):
        plain = rb.view(Groups("key", k=K), *LAYERS[layers]())
        fresh = rb.view(Groups("key", k=K), Newest("version", 5), *LAYERS[layers]())
        for view, fits in ((plain, np.ones(ROWS, bool)), (fresh, VERSION >= 1)):
            found = firsts(view, 200, 8000).reshape(-1, K)
            if kind == "buffer":  # over shards rows come ring by ring
                assert (np.diff(found, axis=1) > 0).all()
            assert (KEY[found] == KEY[found[:, :1]]).all()
            assert all(len(set(one)) == K for one in found.tolist())
            leaders = {KEY[one[0]]: one[-1] for one in found.tolist()}
            whole = [key for key in range(15) if fits[key == KEY].all()]
            chances = np.zeros(ROWS)
            for key in whole:
                last = leaders.get(key, X[key == KEY][-1])
                chances[last] = weights[last]
            compare(found[:, -1], chances)


@pytest.mark.parametrize(("kind", "sampler", "layers"), cells(["uniform", "prioritized", "ranks"]))
def test_shares_are_those_of_each_batch(kind: str, sampler: str, layers: str) -> None:
    """Within a value rows have the chances of the sampler, and of another rule."""
    shares = {0: 0.5, 1: 0.25, 2: 0.25}
    with source(kind, sampler) as (rb, weights):
        view = rb.view(Share({"task": shares}), Newest("version", 4), *LAYERS[layers]())
        drawn = firsts(view, 200)
        counts = np.bincount(TASK[drawn[:200]]).tolist()
        assert counts == [100, 50, 50]
        for task in shares:
            fits = (VERSION >= 2) & (task == TASK)
            compare(drawn[TASK[drawn] == task], weights * fits)


@pytest.mark.parametrize("rules", [*MASSES, "groups", "share"])
def test_views_with_rules_are_mixed(rules: str) -> None:
    """Each source has its rows, and its part of a batch."""
    with source("buffer", "prioritized") as (rb, weights):
        own: tuple[Any, ...] = (Groups("key", k=K),)
        if rules != "groups":
            own = (Share({"task": "equal"}),) if rules == "share" else MASSES[rules][0]()
        mixture = Mixture({"a": rb.view(*own), "b": rb}, {"a": 1, "b": 1}, seed=0)
        batches = [mixture.sample(40) for _ in range(200)]
        drawn = np.concatenate([batch["x"] for batch in batches])
        names = np.concatenate([batch["source"] for batch in batches])
        assert (np.bincount(names) == 4000).all()
        compare(drawn[names == 1], weights)
        if rules in MASSES:
            compare(drawn[names == 0], weights * MASSES[rules][1])


SHORT: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "at_most": ((AtMost(1),), {}),
    "sequences": ((AtMost(1), Sequences(2)), {}),
    "groups": ((AtMost(1), Groups("key", k=2)), {}),
    "share": ((AtMost(1), Share({"task": "equal"})), {}),
    "weights": ((AtMost(1),), {}),
    "distinct": ((Among(lambda rows: rows["x"] == 1, "x"),), {"replace": False}),
}


@pytest.mark.parametrize("short", SHORT)
@pytest.mark.parametrize("is_nested", [False, True])
def test_a_part_of_a_mixture_that_has_too_few_rows_uses_up_no_others(
    short: str, is_nested: bool
) -> None:
    """The rows of the first source were counted, though no batch came."""
    layers, options = SHORT[short]
    samplers = Prioritized(), Prioritized(eps=0.0)
    a, b = (ReplayBuffer(ROWS, FIELDS, sampler=sampler, seed=0) for sampler in samplers)
    for x in range(40):
        a.add(**step(x))
    for x in range(6):
        b.add(**step(x % 3) | {"key": x // 2})
    if short == "weights":  # 18 rows, of which 6 can be drawn
        for x in range(12):
            b.add(**step(x))
        b.update_priorities(np.arange(6, 18), np.zeros(12))
    first: Any = a.view(AtMost(1))
    if short == "sequences":
        first = a.view(*layers)
    last: Any = b.view(*layers)
    if is_nested:
        last = Mixture({"c": last, "d": b.view(*layers[-1:])}, {"c": 3, "d": 1}, seed=0)
    mixture = Mixture({"a": first, "b": last}, {"a": 1, "b": 1}, seed=0)
    for _ in range(3):
        with pytest.raises(NotEnoughDataError, match=r"source 'b'.* distinct"):
            mixture.sample(8 if short == "distinct" else 32, **options)
    assert first.stats()["rows_used_up"] == 0
    mixture.sample(4, **options)
    assert first.stats()["rows_used_up"] == 2


@pytest.mark.parametrize("is_nested", [False, True])
def test_parts_of_mixtures_are_whole_groups(is_nested: bool) -> None:
    """In the mean they are as large as their shares. They were of any numbers of rows."""
    with source("buffer", "uniform") as (rb, _):
        four, two = rb.view(Groups("key", k=4)), rb.view(Groups("key", k=2))
        other: Any = rb
        if is_nested:
            other = Mixture({"c": two, "d": rb}, {"c": 1, "d": 2}, seed=1)
        mixture = Mixture({"a": four, "b": other}, {"a": 0.3, "b": 0.7}, seed=0)
        parts = []
        for _ in range(400):
            batch = mixture.sample(20)
            places = batch["source"] == 0
            parts.append(places.sum())
            keys = batch["key"][places].reshape(-1, 4)
            assert (keys == keys[:, :1]).all()
        assert set(parts) == {4, 8}
        assert np.mean(parts) == pytest.approx(6, abs=0.4)
        with pytest.raises(ValueError, match=r"a multiple of 4, .* groups, got 10"):
            mixture.sample(10)
