"""``Among``: draws among the rows for which a condition is true, against whole lists of rows."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pytest

from cpprb_like import Mixture, NotEnoughDataError, ReplayBuffer
from cpprb_like.samplers import LegacyUniform, Prioritized, RankBased, Recency, Uniform, Where
from cpprb_like.views import Among, NStep, Sequences

Array = npt.NDArray[Any]
FIELDS: dict[str, Any] = {
    "x": {"shape": (), "dtype": "i8"},
    "tag": {"shape": (), "dtype": "i4"},
    "done": {"shape": (), "dtype": bool},
}


def filled(n: int, share: float, *, capacity: int = 60, **options: Any) -> ReplayBuffer:
    """Rows with their numbers, of which a share is tagged."""
    rb = ReplayBuffer(capacity, FIELDS, seed=0, **options)
    rng = np.random.default_rng(n)
    tags = (rng.random(n) < share) * rng.integers(1, 5, n)
    if share and n > 20:
        tags[-20] = 1  # one at least
    rb.add(x=np.arange(n), tag=tags, done=np.arange(n) % 7 == 6)
    return rb


def tagged(rb: ReplayBuffer) -> list[int]:
    """The rows that are tagged, by the slow way."""
    rows = rb.get_all_transitions()
    return sorted(int(x) for x, tag in zip(rows["x"], rows["tag"], strict=True) if tag)


@pytest.mark.parametrize("sampler", [Uniform, LegacyUniform, Prioritized, RankBased, Recency])
@pytest.mark.parametrize("share", [0.02, 0.5, 1.0])
def test_rows_for_which_it_is_true_are_drawn_and_no_others(
    sampler: Callable[[], Any], share: float
) -> None:
    """With and without replacement, by name and by a function, in an epoch, after a wrap."""
    rb = filled(150, share, capacity=100, sampler=sampler())
    expected = tagged(rb)
    assert expected
    for layer in (Among("tag"), Among(lambda rows: rows["tag"] > 0, "tag")):
        view = rb.view(layer)
        assert set(view.sample(300)["x"].tolist()) <= set(expected)
        drawn = view.sample(len(expected), replace=False)["x"].tolist()
        assert sorted(drawn) == expected
        with pytest.raises(NotEnoughDataError, match=f"{len(expected) + 1} distinct|distinct"):
            view.sample(len(expected) + 1, replace=False)
        assert sorted(x for batch in view.epoch(7) for x in batch["x"].tolist()) == expected


@pytest.mark.parametrize("share", [0.003, 0.02, 0.3])
def test_uniform_draws_are_uniform(share: float) -> None:
    """Whether rows are tried or listed."""
    rb = filled(3000, share, capacity=3000)
    expected = tagged(rb)
    n = 400 * len(expected)
    counts = np.bincount(rb.view(Among("tag")).sample(n)["x"], minlength=3000)[expected]
    assert counts.sum() == n
    assert abs(counts - 400).max() < 6 * 20


def test_draws_by_priority_are_in_proportion() -> None:
    """Among the rows of the condition, with the weights and probabilities of these."""
    sampler = Prioritized(alpha=1.0, eps=0.0, stratified=False, probabilities=True)
    rb = ReplayBuffer(9, FIELDS, sampler=sampler, seed=0)
    rb.add(x=range(6), tag=[0, 1, 1, 0, 1, 0], done=[0] * 6)
    rb.update_priorities(np.arange(6), [9.0, 1.0, 2.0, 9.0, 5.0, 9.0])
    batch = rb.view(Among("tag")).sample(8000, beta=1.0)
    counts = np.bincount(batch["x"], minlength=6) / 8000
    np.testing.assert_allclose(counts, [0, 1 / 8, 2 / 8, 0, 5 / 8, 0], atol=0.02)
    by_row = {1: 1 / 8, 2: 2 / 8, 4: 5 / 8}
    np.testing.assert_allclose(batch["probabilities"], [by_row[x] for x in batch["x"].tolist()])
    np.testing.assert_allclose(
        batch["weights"], [0.125 / by_row[x] for x in batch["x"].tolist()], rtol=1e-6
    )


def test_values_of_now_count() -> None:
    """A row is drawn once ``update`` has made the condition true, and not after it is false."""
    rb = filled(50, 0.0)
    view = rb.view(Among("tag"))
    with pytest.raises(NotEnoughDataError, match="holds 50 rows, of which none can be drawn"):
        view.sample(1)
    rb.update([3, 8], tag=[1, 1])
    assert set(view.sample(50)["x"].tolist()) == {3, 8}
    rb.update([3], tag=[0])
    assert set(view.sample(50)["x"].tolist()) == {8}
    rb.clear()
    with pytest.raises(NotEnoughDataError):
        view.sample(1)


def test_it_goes_with_other_layers() -> None:
    """Of sequences it is about the first row; rows around it need not be of the condition."""
    rb = filled(60, 0.3)
    expected = set(tagged(rb))
    batch = rb.view(Among("tag"), Sequences(3), NStep(2)).sample(200)
    assert set(batch["x"][:, 0].tolist()) <= expected
    assert not set(batch["x"][batch["mask"]].tolist()) <= expected


def test_copies_and_repeats_draw_alike() -> None:
    """A view is pickled and copied with its condition, and a seed repeats the draws."""
    rb = filled(60, 0.3)
    view = rb.view(Among("tag"))
    twins = [copy.deepcopy(view), pickle.loads(pickle.dumps(view))]
    first = view.sample(20)["x"]
    for twin in twins:
        np.testing.assert_array_equal(twin.sample(20)["x"], first)
        assert repr(twin.layers) == "(Among('tag'),)"


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ((3,), TypeError),
        ((len,), ValueError),
        ((len, 3), TypeError),
        (("tag", "x"), ValueError),
    ],
)
def test_options_that_are_none_are_refused(arguments: Any, error: type[Exception]) -> None:
    """When the layer is made."""
    with pytest.raises(error):
        Among(*arguments)


def test_a_field_of_cpprbs_default_shape_is_one_number_a_row() -> None:
    """The shape of a field without one is ``(1,)``."""
    rb = ReplayBuffer(20, {"x": {"dtype": "i8"}, "done": {}}, seed=0)
    rb.add(x=range(20), done=np.arange(20) % 4 == 3)
    assert set(rb.view(Among("done")).sample(200)["x"].ravel().tolist()) == {3, 7, 11, 15, 19}


def test_conditions_that_do_not_fit_are_refused() -> None:
    """By ``view``, or by the draw that calls the function; the buffer draws as before."""
    rb = ReplayBuffer(9, {**FIELDS, "image": {"shape": (2, 2)}}, seed=0)
    rb.add(x=range(9), tag=[1] * 9, done=[0] * 9, image=np.zeros((9, 2, 2)))
    for layer in (Among("image"), Among("other"), Among(len, "other")):
        with pytest.raises(ValueError, match="Among: expected"):
            rb.view(layer)
    wrong: list[Callable[[Any], Any]] = [
        lambda rows: rows["tag"],
        lambda rows: rows["tag"][:1] > 0,
        lambda rows: True,
    ]
    for function in wrong:
        with pytest.raises(ValueError, match="condition: expected bools of shape"):
            rb.view(Among(function, "tag")).sample(4)
    assert rb.sample(4)["x"].shape == (4,)


def test_a_condition_is_never_computed_for_no_rows() -> None:
    """If none of the tried rows can start a sequence, the function is not called: it may divide."""
    rb = filled(60, 0.5, sampler=Prioritized(alpha=1.0, eps=0.0))
    rb.update_priorities(np.arange(60), np.repeat([1e-3, 1.0], [56, 4]))  # 4 of an open episode
    sizes: list[int] = []

    def condition(rows: dict[str, Array]) -> Array:
        sizes.append(len(rows["x"]))
        return np.ones(len(rows["x"]), bool)

    view = rb.view(Sequences(7), Among(condition, "x"))
    for _ in range(50):
        assert view.sample(1)["x"][0, 0] < 56
    assert min(sizes) > 0


def test_rows_go_away_with_the_view() -> None:
    """At once, without the garbage collector."""
    rb = filled(50, 0.5)
    view = rb.view(Among("tag"), NStep(2))
    view.sample(3)
    gone = weakref.ref(rb)
    gc.disable()
    try:
        del rb, view
        assert gone() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("n", [0, 1, 30, 59])
def test_the_rows_of_a_condition_of_ones_own(n: int) -> None:
    """``Where`` lists, counts and draws what a loop over all rows finds."""
    rb = filled(n, 0.5)
    even = Where(rb.ring, lambda slots: slots % 2 == 0)
    expected = [slot for slot in range(n) if slot % 2 == 0]
    assert even.slots().tolist() == expected
    assert even.count == len(expected)
    assert [even.has(k) for k in range(n + 2)] == [k <= len(expected) for k in range(n + 2)]
    rng = np.random.default_rng(0)
    if not expected:
        with pytest.raises(NotEnoughDataError):
            even.draw(1, rng)
        return
    assert set(even.draw(200, rng).tolist()) <= set(expected)
    assert sorted(even.draw_distinct(len(expected), rng).tolist()) == expected
    three = Where(rb.ring, lambda slots: slots % 3 == 0, even)
    assert three.slots().tolist() == [slot for slot in expected if slot % 3 == 0]


def test_a_condition_of_ones_own_gives_bools() -> None:
    """Numbers are refused: as an index they would choose other slots."""
    rb = filled(30, 0.5)
    odd = Where(rb.ring, lambda slots: cast("Any", slots % 2))
    for call in (odd.slots, lambda: odd.draw(3, np.random.default_rng(0)), lambda: odd.has(1)):
        with pytest.raises(ValueError, match="condition: expected bools of shape"):
            call()


def test_a_condition_that_is_masked_is_refused() -> None:
    """Its mask would be lost: rows that it hides were drawn as their data says."""
    rb = filled(30, 0.5)
    view = rb.view(Among(lambda rows: np.ma.masked_array(rows["x"] > 5, rows["x"] > 9), "x"))
    with pytest.raises(TypeError, match="masked array"):
        view.sample(3)


def test_rows_that_go_away_while_a_condition_is_computed() -> None:
    """A clear by another thread, between two looks at rows, is no ``IndexError`` of the reader."""
    n = 20_000
    rb = ReplayBuffer(n, FIELDS, seed=0)

    def fill(rows: int, tag: int) -> None:
        rb.clear()
        rb.add(x=np.arange(rows), tag=np.full(rows, tag), done=np.zeros(rows, bool))

    def condition(rows: dict[str, Array]) -> Array:
        if len(rb) == n and len(rows["tag"]) > n // 2:  # the first of two chunks of all rows
            fill(5, tag=1)
        return rows["tag"] > 0

    view = rb.view(Among(condition, "tag"))
    fill(n, tag=0)
    assert Mixture({"view": view}, {"view": 1}, seed=0).sample(4)["x"].max() < 5
    fill(n, tag=0)
    with pytest.raises(RuntimeError, match="cleared"):
        next(view.epoch(4))
    fill(5, tag=1)
    assert sorted(next(view.epoch(5))["x"].tolist()) == [0, 1, 2, 3, 4]
