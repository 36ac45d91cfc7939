"""Batches from several buffers: how many rows of each, which ones, and where updates go."""

from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from helpers import snapshot
from hypothesis import example, given
from hypothesis import strategies as st
from strategies import Array, assert_same
from threads import run_together

from cpprb_like import NotEnoughDataError, PrioritizedReplayBuffer, ReplayBuffer
from cpprb_like._rows.row_handles import slots_of
from cpprb_like.buffers import Mixture
from cpprb_like.samplers import Prioritized, RankBased, Reverse, Uniform
from cpprb_like.schedules import Linear, Piecewise
from cpprb_like.typing import FieldSpec

FIELDS: dict[str, FieldSpec] = {
    "x": {"shape": (), "dtype": "i8"},
    "image": {"shape": (2, 3), "dtype": "u1"},
}
SMALLEST, LARGEST = 0.0, 1 - 2**-53  # numbers that Generator.random may give


@pytest.fixture(params=[0, 2**60], ids=["in place", "copied"])
def each_way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways in which rows come into a batch, that of large ones and that of small ones."""
    monkeypatch.setattr("cpprb_like.buffers._mixture.IN_PLACE_NBYTES", request.param)


class Numbers:
    """A generator that gives these numbers, one after the other."""

    def __init__(self, *numbers: float) -> None:
        self.numbers = list(numbers)

    def random(self) -> float:
        return self.numbers.pop(0)


def plain(first: int, n: int = 20, **options: Any) -> ReplayBuffer:
    """A buffer of the rows ``first``, ``first + 1``, ..."""
    rb = ReplayBuffer(n, FIELDS, **{"seed": first} | options)
    fill(rb, first, n)
    return rb


def by_priority(first: int, n: int = 20, **options: Any) -> PrioritizedReplayBuffer:
    """The same with the priorities 1, 2, ..."""
    rb = PrioritizedReplayBuffer(n, FIELDS, **{"seed": first} | options)
    fill(rb, first, n)
    rb.update_priorities(range(n), np.arange(1.0, n + 1))
    return rb


def fill(rb: ReplayBuffer, first: int, n: int) -> None:
    """Add ``n`` rows that are numbered from ``first`` on."""
    numbers = np.arange(first, first + n)
    rb.add(x=numbers, image=np.broadcast_to(numbers[:, None, None] % 251, (n, 2, 3)))


def buffers_of(mixture: Mixture) -> dict[str, Any]:
    """The sources of a mixture, which are buffers here."""
    return dict(mixture.sources)


@contextmanager
def refused(mixture: Mixture, error: type[Exception], *words: str) -> Iterator[None]:
    """The block raises ``error`` with all ``words`` in its message, and leaves buffers alone."""
    buffers = buffers_of(mixture).values()
    before = [snapshot(rb) | {"pickle": pickle.dumps(rb)} for rb in buffers]
    with pytest.raises(error) as caught:
        yield
    assert [word for word in words if word not in str(caught.value)] == []
    assert [snapshot(rb) | {"pickle": pickle.dumps(rb)} for rb in buffers] == before


def probabilities(rb: ReplayBuffer) -> Array:
    """How likely each slot is to be drawn."""
    assert isinstance(rb.sampler, Prioritized)
    return rb.sampler.probabilities_of(np.arange(rb.get_stored_size()))


def mix(*shares: Any, **options: Any) -> Mixture:
    """A mixture of plain buffers of 20 rows with these shares, the first from 0 on, ..."""
    buffers = {f"b{i}": plain(100 * i) for i in range(len(shares))}
    given = {name: share for name, share in zip(buffers, shares, strict=True)}  # noqa: C416
    return Mixture(buffers, given, **options)


def assert_same_batch(expected: dict[str, Array], batch: dict[str, Array]) -> None:
    """The same columns, byte for byte."""
    assert set(batch) == set(expected)
    for name, values in expected.items():
        assert_same(values, batch[name], name)


def counts(mixture: Mixture, n: int) -> list[int]:
    """Rows of each buffer in a batch."""
    source = mixture.sample(n)["source"].tolist()
    return [source.count(number) for number in range(len(buffers_of(mixture)))]


# ---- how many rows of each ---------------------------------------------------------------------


@given(
    shares=st.lists(st.integers(0, 9), min_size=1, max_size=5).filter(any),
    scale=st.sampled_from([1, 10, 1000]),
    n=st.integers(0, 70),
)
def test_counts_are_shares_rounded_and_right_on_average(
    shares: list[int], scale: int, n: int
) -> None:
    """Each count is its share of n, rounded down or up, and on average exactly the share."""
    total = sum(shares)
    mixture: Any = mix(*(share / scale for share in shares))
    # Numbers of equal distance, one in each part of equal outcome: their mean is the expectation.
    mixture.rng = Numbers(*((k + 0.5) / total for k in range(total)))
    found = [counts(mixture, n) for _ in range(total)]

    for row in found:
        assert sum(row) == n
        for count, share in zip(row, shares, strict=True):
            wanted = Fraction(n * share, total)
            assert math.floor(wanted) <= count <= math.ceil(wanted)
    assert [sum(column) for column in zip(*found, strict=True)] == [n * share for share in shares]


@given(
    shares=st.lists(st.floats(0, 1e300), min_size=1, max_size=5).filter(any),
    n=st.integers(0, 500),
    number=st.floats(SMALLEST, LARGEST),
)
@example([0.1, 0.2, 0.7], 10, SMALLEST)
@example([0.1, 0.2, 0.7], 10, LARGEST)
@example([5e-324, 1e300], 500, LARGEST)
def test_counts_of_any_shares_are_rounded(shares: list[float], n: int, number: float) -> None:
    """Whatever the shares and the random number are: rounded down or up, and n in all."""
    mixture: Any = mix(*shares)
    mixture.rng = Numbers(number)
    found = counts(mixture, n)

    exact = [Fraction(repr(share)) for share in shares]
    assert sum(found) == n
    for count, share in zip(found, exact, strict=True):
        assert math.floor(n * share / sum(exact)) <= count <= math.ceil(n * share / sum(exact))


@pytest.mark.parametrize("number", [SMALLEST, 2**-53, 0.5, LARGEST])
@pytest.mark.parametrize(
    ("shares", "n", "expected"),
    [
        ((0.1, 0.2, 0.7), 10, [1, 2, 7]),
        ((1 / 3, 1 / 3, 1 / 3), 300, [100, 100, 100]),
        ((1 / 3, 2 / 3), 256 * 3, [256, 512]),
        ((0.5, 0.5), 256, [128, 128]),
        ((3, 1), 4, [3, 1]),
        ((0.0, 2.5), 7, [0, 7]),
        ((np.float32(0.5), Fraction(1, 2)), 6, [3, 3]),
    ],
)
def test_shares_that_are_whole_rows_are_never_rounded(
    shares: Any, n: int, expected: list[int], number: float
) -> None:
    """A tenth of ten rows is one row, though 0.1 is no tenth in binary."""
    mixture: Any = mix(*shares)
    mixture.rng = Numbers(number)
    assert counts(mixture, n) == expected


@pytest.mark.once
def test_batches_of_one_row_keep_the_shares() -> None:
    """With a real generator and batches of one row, each buffer comes as often as it should."""
    mixture = mix(0.6, 0.3, 0.1, seed=5)
    draws = 20_000
    found = np.sum([counts(mixture, 1) for _ in range(draws)], axis=0)

    for count, share in zip(found, [0.6, 0.3, 0.1], strict=True):
        assert abs(count - draws * share) < 5 * math.sqrt(draws * share * (1 - share))


def test_shares_may_change_with_the_batches_drawn() -> None:
    """The time of a schedule is the number of batches before this one."""
    mixture = mix(Piecewise([(0, 0.0), (4, 1.0)]), Linear(1.0, 0.0, 4), Linear(0.0, 0.0, 1))
    assert [counts(mixture, 8) for _ in range(6)] == [
        [0, 8, 0], [2, 6, 0], [4, 4, 0], [6, 2, 0], [8, 0, 0], [8, 0, 0],
    ]  # fmt: skip
    assert mixture.draws == 6


def test_an_empty_buffer_leaves_its_share_to_the_others() -> None:
    """They get it in the ratio of their shares, until the buffer has rows."""
    mixture = mix(0.5, 0.4, 0.1)
    buffers_of(mixture)["b0"].clear()
    assert [counts(mixture, 50) for _ in range(5)] == [[0, 40, 10]] * 5
    fill(buffers_of(mixture)["b0"], 0, 1)
    assert counts(mixture, 50) == [25, 20, 5]


def test_a_mixture_without_rows_draws_nothing() -> None:
    """All empty, or all with a share: an error that names them."""
    mixture = mix(0.5, 0.5, 0.0)
    buffers_of(mixture)["b0"].clear()
    buffers_of(mixture)["b1"].clear()
    for n in (0, 4):
        with pytest.raises(NotEnoughDataError, match=r"\['b0', 'b1'\] are empty"):
            mixture.sample(n)


# ---- which rows ----------------------------------------------------------------------------------


@pytest.mark.usefixtures("each_way")
@pytest.mark.parametrize("replace", [True, False])
@pytest.mark.parametrize("beta", [None, 1.0, Linear(0.0, 1.0, 3)], ids=str)
def test_each_part_is_what_its_buffer_would_draw(replace: bool, beta: Any) -> None:
    """Rows, weights and indexes are those of a twin of the buffer that is drawn from alone."""
    online, demos = by_priority(0, alpha=0.8), by_priority(100, check_for_update=True)
    reverse = plain(200, sampler=Reverse(3))
    twins = copy.deepcopy([online, reverse, demos])
    mixture = Mixture(
        {"online": online, "reverse": reverse, "demos": demos},
        {"online": 0.5, "reverse": 0.2, "demos": 0.3},
        seed=1,
    )
    for n in [10, 7, 1, 0, 20]:
        batch = mixture.sample(n, beta, replace=replace)
        assert list(batch) == ["x", "image", "source", "weights", "indexes"]
        stop = 0
        for number, twin in enumerate(twins):
            count = int((batch["source"] == number).sum())
            start, stop = stop, stop + count
            part = {name: values[start:stop] for name, values in batch.items()}
            assert (part.pop("source") == number).all()
            named = part.pop("indexes")
            index = named >> 2  # two bits for up to four sources
            assert (named & 3 == number).all()
            if count == 0:
                continue
            if isinstance(twin, PrioritizedReplayBuffer):
                expected = twin.sample(count, beta, replace=replace)
                np.testing.assert_array_equal(index, expected.pop("indexes"))
            else:
                expected = twin.sample(count, replace=replace)
                expected["weights"] = np.ones(count, np.float32)
            assert_same_batch(expected, part)
        assert stop == n


def test_columns_have_their_dtypes_and_shapes() -> None:
    """Also in a batch of no rows; ``weights`` and ``indexes`` only where there are priorities."""
    for n in (0, 5):
        batch = mix(0.5, 0.5).sample(n)
        assert {name: (str(column.dtype), column.shape) for name, column in batch.items()} == {
            "x": ("int64", (n,)),
            "image": ("uint8", (n, 2, 3)),
            "source": (str(np.dtype(np.intp)), (n,)),
        }
        for sampler, dtype in [
            (Prioritized(weights_dtype=np.float64), "float64"),
            (Prioritized(weights_dtype=np.float32), "float32"),
        ]:
            rb = by_priority(0, sampler=sampler)
            batch = Mixture({"a": rb, "b": plain(9)}, {"a": 1, "b": 9}).sample(n)
            assert (str(batch["weights"].dtype), batch["weights"].shape) == (dtype, (n,))
            assert (str(batch["indexes"].dtype), batch["indexes"].shape) == ("int64", (n,))


@pytest.mark.usefixtures("each_way")
def test_rows_of_any_kind_come_whole() -> None:
    """Objects, strings, fields in another order, environments with absent rows."""
    fields: dict[str, Any] = {
        "object": {"shape": (), "dtype": object},
        "text": {"shape": 2, "dtype": "U5"},
        "x": {"shape": (), "dtype": "i8"},
    }
    one = ReplayBuffer(50, fields, seed=0)
    two = ReplayBuffer(50, dict(reversed(fields.items())), n_envs=2, seed=1)
    for i in range(10):
        one.add(object={i}, text=[str(i), "one"], x=i)
        values = [{i}, {i + 100}], [[str(i), "two"], [str(i + 100), "two"]], [i, i + 100]
        two.add_where([True, i % 2 == 1], object=values[0], text=values[1], x=values[2])
    batch = Mixture({"one": one, "two": two}, {"one": 1, "two": 2}, seed=3).sample(300)

    assert list(batch) == ["object", "text", "x", "source"]
    assert batch["object"].tolist() == [{x} for x in batch["x"]]
    assert batch["text"][:, 0].tolist() == [str(x) for x in batch["x"]]
    assert batch["text"][:, 1].tolist() == ["one"] * 100 + ["two"] * 200
    assert set(batch["x"][100:]) == {*range(10), *range(101, 110, 2)}


@pytest.mark.usefixtures("each_way")
def test_out_is_filled_and_returned() -> None:
    """The same rows as in fresh arrays, in the arrays that were given; columns beside them."""
    mixture = Mixture({"a": plain(0), "b": by_priority(100)}, {"a": 0.5, "b": 0.5}, seed=4)
    expected = copy.deepcopy(mixture).sample(8)
    out: dict[str, Any] = {"x": np.zeros(8, "i8"), "image": np.zeros((8, 2, 3), "u1"), "mine": None}
    arrays = dict(out)
    batch = mixture.sample(8, out=out)

    assert batch is out
    assert batch.pop("mine") is None
    assert batch["x"] is arrays["x"]
    assert batch["image"] is arrays["image"]
    assert_same_batch(expected, batch)


@pytest.mark.usefixtures("each_way")
def test_a_batch_survives_later_ones() -> None:
    """The arrays of a batch are never written to."""
    mixture = Mixture({"a": plain(0), "b": by_priority(100)}, {"a": 0.5, "b": 0.5}, seed=4)
    batch = mixture.sample(8)
    kept = copy.deepcopy(batch)
    for _ in range(5):
        mixture.sample(8)
    assert_same_batch(kept, batch)


# ---- updates -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [Prioritized, RankBased])
@pytest.mark.parametrize("check_for_update", [False, True])
@pytest.mark.parametrize("wrapped", [0, 13])
def test_updates_land_in_their_rows(
    kind: Any, check_for_update: bool, wrapped: int, rng: np.random.Generator
) -> None:
    """Parts of two batches, joined and shuffled, change the same rows as updates by hand."""
    a, c = (
        by_priority(first, sampler=kind(check_for_update=check_for_update)) for first in (0, 200)
    )
    for rb, first in [(a, 20), (c, 220)]:
        fill(rb, first, wrapped)
    mixture = Mixture({"a": a, "b": plain(100), "c": c}, {"a": 0.4, "b": 0.3, "c": 0.3}, seed=6)
    batches = [mixture.sample(30) for _ in range(2)]
    joined = {name: np.concatenate([b[name] for b in batches]) for name in batches[0]}
    chosen = rng.permutation(60)[:45]
    part = {name: values[chosen] for name, values in joined.items()}
    priorities = rng.uniform(0.1, 50.0, 45)
    twins = {0: copy.deepcopy(a), 2: copy.deepcopy(c)}
    for number, twin in twins.items():
        for x, priority in zip(part["x"], priorities, strict=True):
            if x // 100 == number:
                slot = np.flatnonzero(twin.get_all_transitions()["x"] == x)
                twin.update_priorities(slot, [priority])
    mixture.update_priorities(part["indexes"], priorities)

    for rb, number in [(a, 0), (c, 2)]:
        assert rb.get_max_priority() == twins[number].get_max_priority()
        assert_same_batch(twins[number].sample(200), rb.sample(200))


def test_rows_that_were_overwritten_are_passed_over() -> None:
    """With ``check_for_update`` a late update changes the rows that are still there, only."""
    a, b = (by_priority(first, 20, check_for_update=True) for first in (0, 100))
    mixture = Mixture({"a": a, "b": b}, {"a": 0.5, "b": 0.5}, seed=8)
    batch = mixture.sample(40, replace=False)
    fill(a, 20, 5)
    b.clear()
    fill(b, 120, 5)
    before = probabilities(a), probabilities(b)
    mixture.update_priorities(batch["indexes"], np.full(40, 1000.0))

    assert (probabilities(a)[:5] < before[0][:5]).all()
    assert (probabilities(a)[5:] > before[0][5:]).all()
    np.testing.assert_array_equal(probabilities(b), before[1])


def test_of_duplicates_the_last_wins() -> None:
    """As in the buffers."""
    rb = by_priority(0, alpha=1.0, eps=0.0)
    mixture = Mixture({"a": plain(100), "b": rb}, {"a": 0.5, "b": 0.5})
    mixture.update_priorities([7, 7, 7], [[5.0], [1.0], [9.0]])  # slot 3 of the second
    assert probabilities(rb)[3] == pytest.approx(9 / (210 - 4 + 9))


def test_rows_without_priorities_are_passed_over() -> None:
    """Their indexes are good for ``update_priorities``, and change nothing."""
    mixture = Mixture({"a": plain(0), "b": by_priority(100)}, {"a": 1.0, "b": 0.0}, seed=0)
    before = probabilities(buffers_of(mixture)["b"])
    mixture.update_priorities(mixture.sample(9)["indexes"], np.full(9, 1000.0))
    np.testing.assert_array_equal(probabilities(buffers_of(mixture)["b"]), before)

    mixture.update_priorities([], [])
    assert not hasattr(mix(1.0), "update_priorities")


@pytest.mark.parametrize(
    ("indexes", "priorities", "error", "words"),
    [
        ([0, 1], [1.0], ValueError, ["one priority for each index", "1 for 2"]),
        ([0.5, 1.0], [1.0, 2.0], TypeError, ["indexes", "integers"]),
        ([0, -1], [5.0, 2.0], IndexError, ["indexes[1]", "-1"]),
        ([0, 1], [5.0, -2.0], ValueError, ["priorities[1]", "-2.0"]),
        ([0, 1], [5.0, math.nan], ValueError, ["priorities[1]", "nan"]),
        ([0, 1], ["a", "b"], TypeError, ["priorities", "numbers"]),
        ([0, 4, 41], [5.0, 2.0, 3.0], IndexError, ["indexes[2]", "'b'", "holds 20", "got 41"]),
        ([0, 1], [5.0, 1e200], ValueError, ["too large", "1e+200"]),
        ([1, 0], [5.0, 1e200], ValueError, ["too large", "1e+200"]),
    ],
)
def test_a_refused_update_changes_no_buffer(
    indexes: Any, priorities: Any, error: type[Exception], words: list[str]
) -> None:
    """What is wrong for one buffer is refused before another has changed."""
    a, b = by_priority(0, alpha=2.0), by_priority(100, alpha=2.0)
    mixture = Mixture({"a": a, "b": b}, {"a": 0.5, "b": 0.5})
    with refused(mixture, error, *words):
        mixture.update_priorities(indexes, priorities)


def test_an_index_that_no_batch_had_changes_no_buffer() -> None:
    """A handle is judged by its own buffer, before another changes."""
    a, b = by_priority(0), by_priority(100, check_for_update=True)
    mixture = Mixture({"a": a, "b": b}, {"a": 0.5, "b": 0.5})
    with refused(mixture, IndexError, "indexes[1]", "source 'b'", "got 2000001"):
        mixture.update_priorities([0, 2 * 1_000_000 + 1], [5.0, 5.0])


@pytest.mark.parametrize("check_for_update", [False, True])
def test_an_absent_row_is_refused(check_for_update: bool) -> None:
    """An environment had no step there, so nothing was drawn from there."""
    fields: dict[str, FieldSpec] = {"x": {"shape": (), "dtype": "i8"}}
    a, b = (
        PrioritizedReplayBuffer(8, fields, n_envs=2, seed=0, check_for_update=check_for_update)
        for _ in range(2)
    )
    a.add(x=[0, 1])
    b.add_where([True, False], x=[0, 1])
    mixture = Mixture({"a": a, "b": b}, {"a": 0.5, "b": 0.5})
    with refused(mixture, IndexError, "indexes[1]", "'b'", "got 3"):
        mixture.update_priorities([0, 3], [5.0, 5.0])
    mixture.update_priorities([0, 1, 2], [5.0, 6.0, 7.0])
    assert (a.get_max_priority(), b.get_max_priority()) == (7.0, 6.0)


# ---- seeds and copies ----------------------------------------------------------------------------


def test_a_seed_gives_the_same_parts() -> None:
    """On every platform; and without one the global seed governs."""
    mixture = mix(0.5, 0.3, 0.2, seed=9)
    found = [counts(mixture, 3) for _ in range(5)]
    assert found == [[2, 1, 0], [1, 1, 1], [2, 1, 0], [2, 1, 0], [2, 1, 0]]
    drawn = []
    for seed in (1, 1, 2):
        np.random.seed(seed)
        mixture = mix(0.5, 0.5)
        drawn.append([counts(mixture, 1) for _ in range(50)])
    assert drawn[0] == drawn[1] != drawn[2]
    rng = np.random.default_rng(0)
    assert mix(1.0, seed=rng).rng is rng


@pytest.mark.parametrize("twin_of", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_a_copy_goes_on_like_the_original(twin_of: Callable[[Mixture], Mixture]) -> None:
    """Buffers, generators and the number of draws come along, and are not shared."""
    buffers = {"a": plain(0), "b": by_priority(100)}
    mixture = Mixture(buffers, {"a": Linear(0.2, 0.9, 7), "b": 0.5}, seed=1)
    mixture.sample(5)
    twin = twin_of(mixture)
    for _ in range(5):
        one, two = mixture.sample(5), twin.sample(5)
        assert_same_batch(one, two)
        mixture.update_priorities(one["indexes"], np.arange(5.0))
        twin.update_priorities(two["indexes"], np.arange(5.0))
    assert repr(twin) == repr(mixture)
    buffers_of(twin)["a"].clear()
    assert len(buffers_of(mixture)["a"]) == 20


# ---- what it tells -------------------------------------------------------------------------------


def test_it_counts_and_shows_the_rows_of_its_buffers() -> None:
    """The length is that of all buffers; it is true even without rows; the repr has it all."""
    mixture = Mixture({"mine": plain(0, 5), "demos": by_priority(9, 7)}, {"mine": 1, "demos": 0.5})
    assert len(mixture) == 12
    assert repr(mixture) == (
        "Mixture(draws=0)\n"
        "  0 'mine': 1.0 of ReplayBuffer(stored=5)\n"
        "  1 'demos': 0.5 of PrioritizedReplayBuffer(stored=7)"
    )
    for buffer in buffers_of(mixture).values():
        buffer.clear()
    assert len(mixture) == 0
    assert bool(mixture)


def test_what_was_given_is_copied_and_cannot_be_set() -> None:
    """A dict that changes afterwards, or is changed through the mixture, would not be checked."""
    buffers, shares = {"a": plain(0)}, {"a": 1.0}
    mixture = Mixture(buffers, shares)
    buffers["b"], shares["a"] = plain(1), -1.0
    assert list(buffers_of(mixture)) == ["a"]
    assert dict(mixture.shares) == {"a": 1.0}
    for mapping in (mixture.sources, mixture.shares):
        with pytest.raises(TypeError):
            mapping["b"] = 3  # type: ignore[index]


# ---- bad input -----------------------------------------------------------------------------------


class WithColumns(Uniform):
    """A sampler that gives the slots once more, under these names."""

    def __init__(self, *names: str) -> None:
        self.names = names

    def draw(self, ring: Any, n: int, rng: Any, *, replace: bool) -> Any:
        slots, _ = super().draw(ring, n, rng, replace=replace)
        return slots, {name: slots.copy() for name in self.names}


def other(**fields: Any) -> ReplayBuffer:
    """A buffer with these changes to the fields; None takes one away."""
    declared: dict[str, FieldSpec] = {
        name: field for name, field in (FIELDS | fields).items() if field is not None
    }
    return ReplayBuffer(20, declared)


A = plain(0)


@pytest.mark.parametrize(
    ("buffers", "shares", "error", "words"),
    [
        ([A], {"a": 1}, TypeError, ["sources: expected a dict", "list"]),
        ({}, {}, ValueError, ["sources: expected at least one"]),
        ({0: A}, {0: 1}, TypeError, ["sources: expected names, got 0"]),
        (
            {"a": 5},
            {"a": 1},
            TypeError,
            ["sources['a']: expected a buffer, a view or a mixture, got int"],
        ),
        ({"a": A, "b": A}, {"a": 1, "b": 1}, ValueError, ["'b'", "another source than", "'a'"]),
        (
            {"a": A, "b": other(image=None)},
            {"a": 1, "b": 1},
            ValueError,
            ["field 'image': source 'a' has it, source 'b' has not"],
        ),
        (
            {"a": A, "b": other(more={})},
            {"a": 1, "b": 1},
            ValueError,
            ["field 'more': source 'b' has it, source 'a' has not"],
        ),
        (
            {"a": A, "b": other(x={"shape": (), "dtype": "i4"})},
            {"a": 1, "b": 1},
            ValueError,
            ["field 'x'", "int64 of shape () as in source 'a'", "int32", "source 'b'"],
        ),
        (
            {"a": A, "c": plain(1), "b": other(image={"shape": 6, "dtype": "u1"})},
            {"a": 1, "b": 1, "c": 1},
            ValueError,
            ["field 'image'", "(2, 3)", "(6,) in source 'b'"],
        ),
        ({"a": other(source={})}, {"a": 1}, ValueError, ["sources['a']", "['source']"]),
        ({"a": other(weights={})}, {"a": 1}, ValueError, ["sources['a']", "['weights']"]),
        ({"a": A}, [1], TypeError, ["shares: expected a dict", "list"]),
        ({"a": A}, {}, ValueError, ["shares", "['a']", "got []"]),
        ({"a": A}, {"a": 1, "b": 1}, ValueError, ["shares", "['a']", "got ['a', 'b']"]),
        ({"a": A}, {"a": -0.5}, ValueError, ["shares['a']", "at least 0", "-0.5"]),
        ({"a": A}, {"a": math.nan}, ValueError, ["shares['a']", "nan"]),
        ({"a": A}, {"a": math.inf}, ValueError, ["shares['a']", "inf"]),
        ({"a": A}, {"a": "1"}, TypeError, ["shares['a']", "number or a schedule", "'1'"]),
        ({"a": A}, {"a": None}, TypeError, ["shares['a']", "None"]),
        ({"a": A}, {"a": Linear(1, -1, 5)}, ValueError, ["shares['a']", "-1.0 from Linear"]),
        ({"a": A}, {"a": 0.0}, ValueError, ["shares: expected one above 0", "'a': 0.0"]),
    ],
)
def test_bad_parts_are_refused(
    buffers: Any, shares: Any, error: type[Exception], words: list[str]
) -> None:
    """The message says which argument or field, what was expected, and what came."""
    with pytest.raises(error) as caught:
        Mixture(buffers, shares)
    assert [word for word in words if word not in str(caught.value)] == []


@pytest.mark.parametrize("seed", ["a", -1, 0.5])
def test_a_bad_seed_is_refused(seed: Any) -> None:
    """As by the buffers."""
    with pytest.raises((TypeError, ValueError), match="seed"):
        Mixture({"a": A}, {"a": 1}, seed=seed)


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"batch_size": -1}, ValueError, ["batch_size", "-1"]),
        ({"batch_size": 1.5}, TypeError, ["batch_size", "1.5"]),
        ({"batch_size": 2**60}, MemoryError, ["a batch of"]),
        ({"batch_size": 4, "beta": -1.0}, ValueError, ["beta", "-1.0"]),
        ({"batch_size": 4, "beta": "1"}, TypeError, ["beta", "'1'"]),
        ({"batch_size": 50, "replace": False}, NotEnoughDataError, ["'a'", "25", "holds 20"]),
        ({"batch_size": 4, "out": []}, TypeError, ["out", "list"]),
        ({"batch_size": 4, "out": {"x": np.zeros(4, "i8")}}, TypeError, ["missing", "image"]),
        (
            {"batch_size": 4, "out": {"x": np.zeros(3, "i8"), "image": np.zeros((4, 2, 3), "u1")}},
            ValueError,
            ["out['x']", "(4,)", "(3,)"],
        ),
    ],
)
def test_a_refused_batch_changes_nothing(
    arguments: Any, error: type[Exception], words: list[str]
) -> None:
    """Buffers stay as they are, and the next batches are those that would have come anyway."""
    a, b = by_priority(0), plain(100)
    mixture = Mixture({"a": a, "b": b}, {"a": 0.5, "b": 0.5}, seed=3)
    twin = copy.deepcopy(mixture)
    for _ in range(3):
        with refused(mixture, error, *words):
            mixture.sample(**arguments)
    for n in [1] * 20:
        assert_same_batch(twin.sample(n), mixture.sample(n))


def test_beta_without_priorities_is_refused() -> None:
    """It would have no receiver."""
    with pytest.raises(TypeError, match="beta"):
        mix(0.5, 0.5).sample(4, beta=0.4)


def test_bad_schedules_are_refused_when_they_are_asked() -> None:
    """A share below 0, or all shares 0, at the time of a batch."""
    with pytest.raises(ValueError, match=r"shares\['b0'\].*at least 0, got -1"):
        mix(lambda t: -1.0, 1.0).sample(4)
    mixture = mix(Linear(1.0, 0.0, 2), 0.0)
    mixture.sample(4)
    mixture.sample(4)
    with pytest.raises(ValueError, match=r"shares: expected one above 0.*batch 2"):
        mixture.sample(4)


def test_weights_that_a_mixture_does_not_know_are_refused() -> None:
    """Left out, they would be missed silently."""
    rb = plain(0, sampler=WithColumns("weights"))
    with pytest.raises(ValueError, match=r"'a'.*PrioritizedReplayBuffer.*weights"):
        Mixture({"a": rb, "b": plain(100)}, {"a": 0.5, "b": 0.5}).sample(4)


@pytest.mark.usefixtures("each_way")
def test_further_columns_are_joined() -> None:
    """What samplers add stands beside the rows that it is for; all of them add it, or it fails."""
    a, b = (plain(first, sampler=WithColumns("slot", "copy")) for first in (0, 100))
    mixture = Mixture({"a": a, "b": b}, {"a": 0.5, "b": 0.5}, seed=0)
    for n in (1, 2, 9):
        batch = mixture.sample(n)
        assert list(batch) == ["x", "image", "source", "slot", "copy"]
        np.testing.assert_array_equal(batch["x"], batch["slot"] + 100 * batch["source"])
        np.testing.assert_array_equal(batch["slot"], batch["copy"])
    for parts in ({"a": a, "c": plain(200)}, {"c": plain(200), "a": a}):
        with pytest.raises(ValueError, match=r"column '(slot|copy)': source 'a' gives it, 'c' "):
            Mixture(parts, {"a": 0.5, "c": 0.5}).sample(4)


# ---- what a call leaves behind -------------------------------------------------------------------


@pytest.mark.parametrize("check_for_update", [False, True])
@pytest.mark.parametrize("make", [Prioritized, RankBased])
def test_priorities_of_rows_that_wait_are_taken_as_the_buffer_takes_them(
    make: Any, check_for_update: bool
) -> None:
    """Slots that hold other rows by now, or whose rows are not complete, refuse no batch.

    They were distinguished from slots that hold no row by whether their rows can be drawn.
    """
    fields: dict[str, FieldSpec] = {"x": {"shape": ()}, "rew": {"shape": ()}}
    buffers = []
    for seed in range(3):
        sampler = make(1.0, check_for_update=check_for_update)
        options: dict[str, Any] = {"Nstep": {"size": 3, "rew": "rew"}, "seed": seed}
        rb = PrioritizedReplayBuffer(8, fields, sampler=sampler, **options)
        for i in range(12):
            rb.add(x=i, rew=1.0)
        buffers.append(rb)
    alone, one, two = buffers
    mixture = Mixture({"one": one, "two": two}, {"one": 1, "two": 1}, seed=0)
    batch = mixture.sample(40)
    alone.sample(1)
    slots = np.arange(6)
    for rb in buffers:
        rb.add(x=99, rew=1.0)
        rb.add(x=99, rew=1.0)
    mixture.update_priorities(batch["indexes"], np.full(40, 5.0))
    alone.update_priorities(slots, np.full(6, 7.0))
    mixture.update_priorities(2 * slots, np.full(6, 7.0))
    found = [
        # Of rows 10 and 11, which became complete since, slots pass over the priorities.
        rb.sampler.rows.get(slots_of(rb.ring, slots[[0, 1, 4, 5]]))  # type: ignore[attr-defined]
        for rb in (alone, one)
    ]
    np.testing.assert_array_equal(*found)
    assert (alone.get_max_priority(), two.get_max_priority()) == (7.0, 5.0)
    mixture.sample(40)
    for rb in buffers:
        rb.check()


def test_threads_share_a_mixture() -> None:
    """Any number of threads draw and update; one took the random number away from another."""
    mixture = Mixture({"a": by_priority(0), "b": plain(100)}, {"a": 0.3, "b": 0.7}, seed=0)

    def work() -> None:
        batch = mixture.sample(10)
        assert (np.diff(batch["source"]) >= 0).all()
        mixture.update_priorities(batch["indexes"], np.ones(10))

    run_together(work, work, work, work)


@pytest.mark.parametrize("cause", ["no weight", "few weights", "few rows", "beta", "columns"])
def test_a_refused_sample_moves_no_generator_and_writes_nothing(cause: str) -> None:
    """The first buffer had drawn, and the head of ``out`` was written, when the second refused."""
    options: dict[str, Any] = {"eps": 0.0} if "weight" in cause else {}
    if cause == "beta":
        options["beta"] = lambda time: -1.0
    if cause == "columns":
        options["probabilities"] = True
    a = by_priority(0)
    b = by_priority(100, sampler=Prioritized(1.0, **options))
    if cause == "no weight":
        b.update_priorities(range(20), np.zeros(20))
    if cause == "few weights":
        b.update_priorities(range(20), np.eye(20)[3])
    mixture = Mixture({"a": a, "b": b}, {"a": 0.5, "b": 0.5}, seed=0)
    n = 60 if cause == "few rows" else 16
    out: dict[str, Any] = {"x": np.full(n, -7), "image": np.full((n, 2, 3), 9, "u1")}
    before = [snapshot(rb) for rb in (a, b)]
    for _ in range(3):
        with pytest.raises(ValueError):
            mixture.sample(n, replace="few" not in cause, out=out)
        assert [snapshot(rb) for rb in (a, b)] == before
        assert len(out) == 2
        assert all((out[name] == value).all() for name, value in (("x", -7), ("image", 9)))
    assert mixture.draws == 0


class Breaks(Uniform):
    """A sampler that always fails."""

    def draw(self, *_: Any, **__: Any) -> Any:
        raise OSError("broken")


def test_out_is_whole_or_untouched_whatever_a_sampler_does() -> None:
    """The error of a sampler of a user's own comes after earlier parts were drawn, not written."""
    mixture = Mixture({"a": plain(0), "b": plain(1, sampler=Breaks())}, {"a": 1, "b": 1}, seed=0)
    out: dict[str, Any] = {"x": np.full(16, -7), "image": np.full((16, 2, 3), 9, "u1")}
    with pytest.raises(OSError, match="broken"):
        mixture.sample(16, out=out)
    assert all((out[name] == value).all() for name, value in (("x", -7), ("image", 9)))


class Narrow(Prioritized):
    """A sampler whose indexes are narrow integers."""

    def draw(self, *given: Any, **options: Any) -> Any:
        slots, extra = super().draw(*given, **options)
        return slots, {**extra, "indexes": extra["indexes"].astype(np.int32)}


def test_indexes_of_a_sampler_of_a_users_may_be_any_integers() -> None:
    """Those that were not int64 were refused, as an argument ``own`` that no user gave."""
    mixture = Mixture({"a": plain(0), "b": by_priority(20, sampler=Narrow())}, {"a": 1, "b": 1})
    batch = mixture.sample(16)
    assert batch["indexes"].dtype == np.int64
    mixture.update_priorities(batch["indexes"], np.full(16, 100.0))
    source: Any = mixture.sources["b"]
    assert source.get_max_priority() == 100


def test_weights_and_indexes_are_those_of_each_source() -> None:
    """Weights correct for priorities within a source; an index has its source in the low bits."""
    sources = {
        name: ReplayBuffer(16, {"x": {"shape": ()}}, sampler=Prioritized(1.0, eps=0.0), seed=0)
        for name in ("one", "two", "three")
    }
    for scale, rb in enumerate(sources.values(), 1):
        rb.add(x=np.arange(16), priorities=scale * (1.0 + np.arange(16)))
    shares = {"one": 0.5, "two": 0.25, "three": 0.25}
    batch = Mixture(sources, shares, seed=0).sample(32, beta=1.0)
    np.testing.assert_allclose(batch["weights"], 1 / (1 + batch["x"]), rtol=1e-6)
    assert (batch["indexes"] & 3 == batch["source"]).all()
    assert ((batch["indexes"] >> 2) % 16 == batch["x"]).all()
