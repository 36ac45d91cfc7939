"""``batches(items=...)``: as many rows as a budget of items holds, against a greedy twin."""

from __future__ import annotations

import copy
import pickle
from contextlib import suppress
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from helpers import check_arrays
from ragged_batches import RaggedHistory
from threads import run_together

from cpprb_like import PrioritizedReplayBuffer, ReplayBuffer
from cpprb_like.buffers import Mixture
from cpprb_like.limiters import RateLimited, SampleToInsertRatio
from cpprb_like.processes import SharedReplay
from cpprb_like.samplers import Prioritized, Sampler
from cpprb_like.views import Among, Layer, NStep, Packed, Padded, Rule, Sequences
from cpprb_like.views._items_of_batch import ItemPlan

Array = npt.NDArray[Any]
SEQUENCES = (Sequences(3, stride=2, first_only=("ids", "chosen", "text")), Packed())
VIEWS: dict[str, tuple[Layer, ...]] = {
    "default": (),
    "padded left": (Padded(side="left", value={"ids": -1}, multiple_of=4),),
    "padded to a length": (Padded(length={"T": 11}, dtypes={"T_mask": "i8"}),),
    "packed": (Packed(),),
    "packed with fillers": (
        Packed(positions=True, segments=True, multiple_of=8, value={"ids": -1}, offsets="i8"),
    ),
    "packed to totals": (Packed(total={"N": 48, "T": 40, "E": 80, "U": 60}, segments="T"),),
    "packed, cast": (Packed(dtypes={"ids": "i8", "weight": "f4"}), NStep(2)),
    "sequences": (Sequences(3), Packed(positions=True)),
    "sequences, padded": (Sequences(3), Padded(side={"T": "left"})),
    "first rows of sequences": SEQUENCES,
}
BUDGETS: list[tuple[dict[str, int], int | None]] = [
    ({"T": 40}, None),
    ({"N": 48, "T": 40}, None),
    ({"N": 30}, 6),
    ({"T": 5}, None),  # less than most rows have
]


class Listed(Sampler):
    """Draws rows at random and writes them down, or draws the rows that it is told."""

    def __init__(self) -> None:
        self.drawn: list[int] = []
        self.given: list[int] | None = None

    def _next(self, n: int, slots: Any) -> tuple[Any, dict[str, Array]]:
        first = len(self.drawn)
        if self.given is not None:
            return np.array(self.given, np.intp), {"number": np.zeros(n, np.int64)}
        self.drawn += slots.tolist()
        return slots, {"number": np.arange(first, first + n)}

    def draw(self, ring: Any, n: int, rng: Any, *, replace: bool) -> tuple[Any, dict[str, Array]]:
        return self._next(n, rng.integers(ring.stored, size=n).astype(np.intp))

    def draw_starts(
        self, starts: Any, n: int, rng: Any, *, replace: bool
    ) -> tuple[Any, dict[str, Array]]:
        return self._next(n, starts.draw(n, rng))


def size_of(batch: dict[str, Array], axis: str, n: int) -> int:
    """What a batch takes of a budget: its items, or rows times the padded length; 1 at least."""
    if f"{axis}_mask" in batch:
        return max(batch[f"{axis}_mask"].size, n)
    counts = np.diff(batch[f"{axis}_offsets"])
    counts = counts[: len(counts) // n * n]  # without a filler
    return sum(max(sum(part), 1) for part in np.split(counts, n))


@pytest.mark.parametrize("budget", BUDGETS, ids=repr)
@pytest.mark.parametrize("name", VIEWS)
def test_batches_are_those_of_a_greedy_twin(
    name: str, budget: tuple[dict[str, int], int | None]
) -> None:
    """Each drawn row comes once, in the order of draws, until the next one would not fit.

    A batch is the one that ``sample`` makes of the same rows, column by column.
    """
    items, most = budget
    sampler = Listed()
    view = RaggedHistory.of(60, sampler=sampler).rb.view(*VIEWS[name])
    begin = 0
    # The totals of a layout hold for rows that fit alone.
    if name == "packed to totals" and items.get("T", 9) < 9:
        return
    for batch in islice(view.batches(most, items=items), 30):
        numbers = batch.pop("number")
        n = len(numbers)
        assert sorted(numbers) == list(range(begin, begin + n))
        begin += n
        check_arrays({one: values for one, values in batch.items() if values.ndim})
        kept, sampler.given = sampler.given, [sampler.drawn[k] for k in numbers]
        expected = view.sample(n)
        del expected["number"]
        assert batch.keys() == expected.keys()
        for column, values in expected.items():
            assert batch[column].dtype == values.dtype, column
            np.testing.assert_array_equal(batch[column], values, column)
        sizes = [size_of(batch, axis, n) <= limit for axis, limit in items.items()]
        assert n == 1 or (all(sizes) and n <= (most or n))
        if n != most:  # else no further row is looked at
            following = sampler.drawn[begin : begin + 1]
            sampler.given = [sampler.drawn[k] for k in sorted(numbers)] + following
            totals = view.layers and name == "packed to totals"
            if following and not totals:
                more = view.sample(n + 1)
                sizes = [size_of(more, axis, n + 1) <= limit for axis, limit in items.items()]
                assert not all(sizes) or n + 1 > min(items.values())
        sampler.given = kept


FIELDS: dict[str, Any] = {
    "ids": {"shape": ("T",), "dtype": np.int32},
    "length": {"shape": (), "dtype": np.int64},
}


def filled(rb: Any, n: int = 200, seed: int = 0) -> Any:
    """Rows of 1 to 30 items, each of which is the length of its row."""
    rng = np.random.default_rng(seed)
    for length in rng.integers(1, 31, n):
        rb.add(ids=np.full(length, length), length=length)
    return rb


def buffer(**options: Any) -> Any:
    """A buffer with such rows."""
    return filled(ReplayBuffer(300, FIELDS, room={"T": 10_000}, seed=0, **options))


def check(batch: dict[str, Array], limit: int) -> None:
    """The batch is within its budget, and has whole rows."""
    offsets = batch["T_offsets"]
    assert offsets[-1] <= limit
    np.testing.assert_array_equal(np.diff(offsets), batch["length"])
    np.testing.assert_array_equal(batch["ids"], np.repeat(batch["length"], batch["length"]))


def test_lengths_are_drawn_as_often_as_they_are_there() -> None:
    """Rows that fill a batch are carried: the mean length is that of ``sample``."""
    view = buffer().view(Packed())
    batches = list(islice(view.batches(items={"T": 60}), 2000))
    for batch in batches:
        check(batch, 60)
    lengths = np.concatenate([batch["length"] for batch in batches])
    stored = view.buffer.get_all_transitions()["length"]
    error = stored.std() / np.sqrt(len(lengths))
    assert abs(lengths.mean() - stored.mean()) < 4 * error
    # The next row, of up to 30 items, would not have fit.
    assert np.mean([batch["T_offsets"][-1] for batch in batches]) > 60 - 30


def test_rows_without_items_and_rows_above_the_budget() -> None:
    """A row counts as one item at least, and one above the budget is a batch by itself."""
    rb = ReplayBuffer(10, FIELDS, room={"T": 100})
    rb.add(ids=[], length=0)
    assert len(next(rb.view(Packed()).batches(items={"T": 7}))["length"]) == 7
    assert len(next(rb.batches(items={"T": 7}))["length"]) == 7
    rb.clear()
    rb.add(ids=range(50), length=50)
    for view in (rb, rb.view(Packed())):
        assert [len(one["length"]) for one in islice(view.batches(items={"T": 7}), 3)] == [1] * 3


class Pairs(Rule):
    """Draws rows of which the first one has an even slot, with the row after it."""

    group_size = 2

    def masses(self, rows: Any, slots: Any) -> Array:
        return np.ones(len(slots), np.bool_)

    def leaders(self, rows: Array) -> Array:
        found: Array = rows - rows % 2
        return found

    def members(self, leaders: Array) -> Array:
        found: Array = leaders[:, None] + np.arange(2)
        return found


def test_groups_stay_together() -> None:
    """Where groups are drawn, a batch has whole groups, as many as fit."""
    view = buffer().view(Pairs(), Packed())
    sizes = []
    for batch in islice(view.batches(items={"T": 100}, indexes=True), 30):
        check(batch, 100)
        slots = batch["indexes"] % view.buffer.ring.span
        assert (slots[::2] % 2 == 0).all()
        np.testing.assert_array_equal(slots[::2] + 1, slots[1::2])
        sizes.append(batch["T_offsets"][-1])
    assert min(sizes) > 100 - 60
    assert len(next(view.batches(4, items={"T": 1000}))["length"]) == 4
    with pytest.raises(ValueError, match="batch_size: expected a multiple of 2"):
        view.batches(5, items={"T": 1000})


@pytest.mark.once
@pytest.mark.parametrize("prefetch", [0, 3])
def test_other_options_and_sources(prefetch: int) -> None:
    """Fields, indexes, tensors, weights, learners, mixtures and limiters work beside a budget."""
    rb, other = buffer(), buffer()
    packed = Packed(total={"T": 64}, segments=True)
    options: dict[str, Any] = {"items": {"T": 64}, "prefetch": prefetch}
    with rb.view(packed).batches(fields=["ids"], indexes=True, to="numpy", **options) as batches:
        for batch in islice(batches, 5):
            assert batch.ids.shape == batch.T_segments.shape == (64,)
            lengths = rb[batch["indexes"] % rb.ring.span]["length"]
            np.testing.assert_array_equal(np.diff(batch.T_offsets)[:-1], lengths)
    mixture = Mixture({"a": rb.view(Packed()), "b": other.view(Packed())}, {"a": 1, "b": 3})
    batches = list(islice(mixture.batches(**options), 100))
    for batch in batches:
        check(batch, 64)
    assert 0.7 < np.mean(np.concatenate([batch["source"] for batch in batches])) < 0.8
    limiter = SampleToInsertRatio(1e6, min_size_to_sample=1, error_buffer=1e9)
    limited = filled(RateLimited(ReplayBuffer(300, FIELDS, room={"T": 10_000}, seed=0), limiter))
    for batch in islice(limited.view(Packed()).batches(**options), 5):
        check(batch, 64)
    replay = SharedReplay(300, FIELDS, writers=1, room={"T": 10_000})
    with replay.actor() as actor:
        filled(actor)
    for batch in islice(replay.learner(seed=0).view(Packed()).batches(**options), 5):
        check(batch, 64)


def test_weights_are_those_of_their_rows() -> None:
    """Weights and indexes stay with their rows, and updates change the draws that follow."""
    sampler = Prioritized(1.0, beta=1.0, eps=0.0)
    rb = filled(PrioritizedReplayBuffer(300, FIELDS, room={"T": 10_000}, sampler=sampler, seed=0))
    stored = rb.get_all_transitions()["length"].astype(float)
    rb.update_priorities(np.arange(200) + rb.ring.handle_base + rb.ring.span, stored)
    batches = rb.view(Packed()).batches(items={"T": 200})
    for batch in islice(batches, 20):
        check(batch, 200)
        np.testing.assert_allclose(batch["weights"], stored.min() / batch["length"], rtol=1e-6)
        rb.update_priorities(batch["indexes"], batch["length"])


def test_what_is_refused() -> None:
    """Each wrong budget is refused by name, before a draw."""
    rb = buffer()
    state = rb.rng.bit_generator.state
    wrong: list[tuple[type[Exception], str, dict[str, Any]]] = [
        (ValueError, r"items: expected some of the axes \['T'\].*'U'", {"items": {"U": 5}}),
        (ValueError, r"items.*'T'", {"items": {"T": 5}, "fields": ["length"]}),
        (ValueError, r"items\['T'\].*at least 1", {"items": {"T": 0}}),
        (TypeError, "items: expected numbers by named axis, got 5", {"items": 5}),
        (TypeError, "items", {"items": {}}),
        (TypeError, "batch_size.*or a budget items=", {}),
        (ValueError, "batch_size: expected at least 1", {"batch_size": 0, "items": {"T": 5}}),
        (ValueError, "replace: expected True", {"items": {"T": 5}, "replace": False}),
    ]
    for error, match, options in wrong:
        with pytest.raises(error, match=match):
            rb.batches(**options)
    total = rb.view(Packed(total={"T": 40}))
    with pytest.raises(ValueError, match=r"items\['T'\]: expected at most 40, the total"):
        total.batches(items={"T": 41})
    with pytest.raises(ValueError, match="items: expected fields with values of any length"):
        ReplayBuffer(5, {"x": {"shape": ()}}).batches(items={"x": 5})
    prioritized = PrioritizedReplayBuffer(300, FIELDS, room={"T": 10_000})
    by_batch = Prioritized(weights="batch")
    others = PrioritizedReplayBuffer(300, FIELDS, room={"T": 10_000}, sampler=by_batch)
    for source in (prioritized.view(Among("length")), others, Mixture({"a": others}, {"a": 1})):
        with pytest.raises(ValueError, match="relative to those of their draw"):
            source.batches(items={"T": 5})
    assert rb.rng.bit_generator.state == state


@pytest.mark.parametrize("prefetch", [0, 2])
def test_a_seed_drops_the_rows_that_were_kept(prefetch: int) -> None:
    """After ``reseed`` all rows of a batch are drawn anew; copies are as of any source."""
    sampler = Listed()
    rb = buffer(sampler=sampler)
    with rb.view(Packed()).batches(items={"T": 64}, prefetch=prefetch) as batches:
        for _ in range(5):
            for _ in range(4):
                check(next(batches), 64)
            before = len(sampler.drawn)
            rb.reseed(5)
            assert min(next(batches)["number"]) >= before
        assert len(copy.deepcopy(rb)) == len(pickle.loads(pickle.dumps(rb))) == len(rb)


@pytest.mark.parametrize("prefetch", [0, 2])
def test_no_row_comes_after_a_clear(prefetch: int) -> None:
    """Neither rows that were kept, nor those of batches that wait."""
    rb = buffer()
    with rb.view(Packed()).batches(items={"T": 64}, prefetch=prefetch) as batches:
        for length in range(31, 50):
            for _ in range(3):
                next(batches)
            rb.clear()
            rb.add(ids=[np.full(length, length)] * 20, length=[length] * 20)
            for _ in range(3):
                assert set(next(batches)["length"].tolist()) == {length}


def test_errors_lose_no_rows() -> None:
    """After a draw that raises, the rows that were drawn before come in the next batch."""

    class Failing(Listed):
        fails = False

        def draw(self, *arguments: Any, **options: Any) -> Any:
            if self.fails:
                raise OSError("not now")
            return super().draw(*arguments, **options)

    sampler = Failing()
    batches = buffer(sampler=sampler).batches(items={"T": 200})
    numbers = []
    for _ in range(20):
        numbers += next(batches)["number"].tolist()
        sampler.fails = True
        with suppress(OSError):  # one batch may need no draw
            numbers += next(batches)["number"].tolist()
            numbers += next(batches)["number"].tolist()
        sampler.fails = False
    assert sorted(numbers) == list(range(len(numbers)))


def test_batches_that_cannot_be_made_lose_no_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows come in the next batch, but a row that no batch has places for is dropped."""
    joined = ItemPlan.join

    def fails(*_: Any, **__: Any) -> Any:
        raise MemoryError("no room")

    batches = buffer(sampler=Listed()).view(Packed()).batches(items={"T": 200})
    numbers = []
    for _ in range(20):
        monkeypatch.setattr(ItemPlan, "join", fails)
        with pytest.raises(MemoryError):
            next(batches)
        monkeypatch.setattr(ItemPlan, "join", joined)
        check(batch := next(batches), 200)
        numbers += batch["number"].tolist()
    assert sorted(numbers) == list(range(len(numbers)))
    long = buffer(sampler=Listed()).view(Packed(total={"T": 29})).batches(items={"T": 29})
    lengths: list[int] = []
    for _ in range(40):
        with suppress(ValueError):
            lengths += np.diff(next(long)["T_offsets"])[:-1].tolist()
    assert len(lengths) > 40
    assert max(lengths) < 30


@pytest.mark.once
def test_threads_get_different_rows() -> None:
    """Threads that share the iterator get each drawn row once."""
    sampler = Listed()
    batches = buffer(sampler=sampler).view(Packed()).batches(items={"T": 100})
    numbers: list[int] = []
    run_together(
        *[lambda: numbers.extend(k for _ in range(50) for k in next(batches)["number"])] * 3
    )
    assert sorted(numbers) == list(range(len(numbers)))
