"""``batches(items=...)`` of rules that count draws, against a dict of returned rows."""

from __future__ import annotations

import copy
import gc
import pickle
import time
from collections import Counter
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from interruptions import cut_everywhere
from threads import eventually, run_together

from cpprb_like import NotEnoughDataError, ReplayBuffer, load
from cpprb_like._machine.prefetch_state import opened
from cpprb_like.buffers import Mixture
from cpprb_like.limiters import MinSize, RateLimited, SampleToInsertRatio
from cpprb_like.processes import SharedReplay
from cpprb_like.views import Among, AtMost, Groups, Layer, Packed, Rule, Sequences, Share
from cpprb_like.views._items_of_batch import ItemPlan

FIELDS: dict[str, Any] = {
    "ids": {"shape": ("T",), "dtype": np.int32},
    "x": {"shape": (), "dtype": np.int64},
    "key": {"shape": (), "dtype": np.int64},
}
LENGTH = 12  # most items of a row
CAPACITY = 40


def add(rb: Any, first: int, n: int, key_of: Any = lambda x: x // 2) -> None:
    """Add rows with numbers from ``first`` on, of 1 to ``LENGTH`` items."""
    for x in range(first, first + n):
        rb.add(ids=np.full(x * 7 % LENGTH + 1, x), x=x, key=key_of(x))


def filled(n: int = CAPACITY, capacity: int = CAPACITY, seed: int = 0) -> Any:
    """A buffer with such rows."""
    rb = ReplayBuffer(capacity, FIELDS, room={"T": LENGTH * capacity}, seed=seed)
    add(rb, 0, n)
    return rb


def drain(batches: Any, most: int = 10**9, *, first_only: bool = False) -> list[int]:
    """The numbers of the rows of all batches until there are no more, or of the first ones.

    ``first_only``: of sequences the first rows.
    """
    found: list[int] = []
    for _ in range(most):
        try:
            batch = next(batches)
        except NotEnoughDataError:
            return found
        found += (batch["x"][:, 0] if first_only else batch["x"]).ravel().tolist()
    return found


class History:
    """A view, an iterator over its batches, and how often each row was returned."""

    def __init__(self, m: int, layers: tuple[Layer, ...], budget: int, prefetch: int) -> None:
        self.m, self.budget, self.prefetch = m, budget, prefetch
        self.view: Any = filled(0).view(AtMost(m), Packed(), *layers)
        self.rows = 0  # that were added
        self.size = next((one.k for one in layers if isinstance(one, Groups)), 1)
        self.counts: dict[int, int] = {}
        self.begin()

    def begin(self) -> None:
        """Make the iterator anew."""
        self.batches = self.view.batches(items={"T": self.budget}, prefetch=self.prefetch)

    def left(self) -> set[int]:
        """The rows in the buffer that were returned less than m times."""
        present = range(max(0, self.rows - CAPACITY) // self.size * self.size, self.rows)
        present = present[: len(present) // self.size * self.size]
        if self.size > 1 and self.rows > CAPACITY and self.rows % self.size:
            present = present[self.size :]  # a row of the first group is gone
        return {x for x in present if self.counts.get(x, 0) < self.m}

    def note(self, rows: list[int]) -> None:
        """Note rows that were returned."""
        for x in rows:
            self.counts[x] = self.counts.get(x, 0) + 1
            assert self.counts[x] <= self.m, x

    def act(self, name: str, n: int) -> None:
        """One step of the history."""
        rb = self.view.buffer
        if name == "add":
            add(rb, self.rows, n)
            self.rows += n
        elif name == "next":
            for _ in range(n % 4 + 1):
                self.next()
        elif name == "sample":  # beside the iterator
            with suppress(NotEnoughDataError):
                self.note(self.view.sample(n % 3 * self.size)["x"].tolist())
        elif name == "save":
            self.view = pickle.loads(pickle.dumps(self.view))
            self.begin()
        elif name == "copy":  # and the old one is closed after its copy was drawn from
            old, self.view = self.batches, copy.deepcopy(self.view)
            self.begin()
            self.next()
            old.close()
        elif name == "reseed":
            rb.reseed(n)
        elif name == "close":
            self.batches.close()
            self.begin()
        else:
            self.drain()

    def next(self) -> None:
        """The next batch, which is as full as it can be."""
        try:
            batch = next(self.batches)
        except NotEnoughDataError:
            if not self.prefetch:
                assert not self.left()
            return
        used = int(batch["T_offsets"][-1])
        rows = batch["x"].tolist()
        np.testing.assert_array_equal(batch["ids"], np.repeat(rows, np.diff(batch["T_offsets"])))
        assert len(rows) % self.size == 0
        assert used <= self.budget or len(rows) == self.size
        self.note(rows)
        if not self.prefetch and used + self.size * LENGTH <= self.budget:
            assert not self.left()

    def drain(self) -> None:
        """All rows that are left come, each as often as it may."""
        while rows := drain(self.batches, 1):
            self.note(rows)
        assert not self.left()


STEPS = st.tuples(
    st.sampled_from(
        ["add", "add", "next", "next", "next", "sample", "save", "copy", "reseed", "close", "drain"]
    ),
    st.integers(1, 14),
)


@given(
    st.lists(STEPS, max_size=25),
    st.integers(1, 3),
    st.sampled_from([(), (Among("x"),), (Groups("key", 2),)]),
    st.sampled_from([5, 30, 100]),
    st.sampled_from([0, 0, 2]),
)
def test_random_histories(
    steps: list[tuple[str, int]], m: int, layers: Any, budget: int, prefetch: int
) -> None:
    """Each row is returned at most m times, and m times where it stays in the buffer."""
    history = History(m, layers, budget, prefetch)
    if layers and isinstance(layers[0], Among):  # row 0 is never drawn
        history.counts[0] = m
    try:
        for name, n in steps:
            history.act(name, n)
        history.drain()
        for counts in history.view._now.rules.unreturned.values():
            assert not len(counts)
    finally:
        history.batches.close()


@pytest.mark.parametrize("prefetch", [0, 2])
@pytest.mark.parametrize(
    "layers", [(Packed(),), (), (Sequences(2),), (Share({"key": "equal"}),), (Groups("key", 2),)]
)
def test_each_row_comes_once(layers: Any, prefetch: int) -> None:
    """The last batch has the rows that wait, then an error says why, and new rows come."""
    view = filled(30).view(AtMost(1), *layers)
    is_pair = isinstance(layers[0], Sequences) if layers else False  # its first row counts
    with view.batches(items={"T": 50}, prefetch=prefetch) as batches:
        found = drain(batches, first_only=is_pair)
        assert sorted(found) == list(range(30 - is_pair))
        with pytest.raises(NotEnoughDataError, match="AtMost leaves 0"):
            next(batches)
        add(view.buffer, 30, 4)
        assert set(drain(batches)) >= {31, 32, 33}


def test_a_source_that_is_empty_for_long_is_asked_once_for_each_batch() -> None:
    """And the batches grow again as rows come."""
    view = filled(0, 10_000).view(AtMost(1), Packed())
    asked: list[int] = []
    sample = view.sample

    def ask(n: int, **options: Any) -> Any:
        asked.append(n)
        return sample(n, **options)

    view.sample = ask
    batches = view.batches(items={"T": 200})
    add(view.buffer, 0, 300)
    assert len(drain(batches)) == 300
    for _ in range(3):
        asked.clear()
        assert drain(batches) == []
        assert asked == [1]
    add(view.buffer, 300, 3000)
    sizes = [len(next(batches)["x"]) for _ in range(30)]
    assert min(sizes) > 20
    asked.clear()
    next(batches)
    assert len(asked) <= 2


def has_left(view: Any, n: int) -> bool:
    """Whether n rows of a view are left."""
    return bool(view.stats()["rows_left"] == n)


@pytest.mark.parametrize("prefetch", [0, 2])
def test_the_rows_that_wait_are_in_no_save_as_drawn(tmp_path: Any, prefetch: int) -> None:
    """A copy draws them; the view itself does once its iterator has ended."""
    for seed in range(10):
        view = filled(seed=seed).view(AtMost(1), Packed())
        with view.batches(items={"T": 50}, prefetch=prefetch) as batches:
            returned = drain(batches, 1 + seed % 3)
            view.save(tmp_path / str(seed))
            copies = [load(tmp_path / str(seed)), pickle.loads(pickle.dumps(view))]
            copies += [copy.deepcopy(copies[0])]  # before its first draw
            for one in copies:
                assert one.stats()["rows_left"] == CAPACITY - len(returned)
                assert one.stats()["rows_used_up"] == len(returned)
                found = returned + drain(one.batches(items={"T": 50}))
                assert sorted(found) == list(range(CAPACITY))
            returned += drain(batches, 1)
        assert view.stats()["rows_left"] == CAPACITY - len(returned)
        again = view.batches(items={"T": 50}, prefetch=prefetch)
        returned += drain(again, 1)
        del again  # its end gives back too, when its thread has ended
        eventually(partial(has_left, view, CAPACITY - len(returned)))
        assert sorted(returned + drain(view.batches(items={"T": 50}))) == list(range(CAPACITY))


def test_a_save_of_plain_batches_ahead_has_their_rows_as_not_drawn() -> None:
    """And continues with the batch that waits."""
    view = filled().view(AtMost(1))
    with view.batches(4, prefetch=2) as batches:
        returned = drain(batches, 3)
        restored = pickle.loads(pickle.dumps(view))
        assert restored.stats()["rows_left"] == CAPACITY - 12
        assert next(batches)["x"].tolist() == restored.sample(4)["x"].tolist()
        returned += restored.sample(24)["x"].tolist()
    assert len(set(returned)) == 36
    assert view.stats()["rows_left"] == CAPACITY - 16


@pytest.mark.parametrize("prefetch", [0, 2])
def test_mixtures_limiters_and_learners(prefetch: int) -> None:
    """Rows of each source come once, also over an end of the iterator, and a save of a mixture."""
    options: dict[str, Any] = {"items": {"T": 40}, "prefetch": prefetch}
    sources = {name: filled(seed=seed).view(AtMost(1), Packed()) for seed, name in enumerate("ab")}
    inner = Mixture(sources, {"a": 1, "b": 3}, seed=0)
    both = {"inner": inner, "c": filled(seed=2).view(AtMost(1), Packed())}
    mixture = Mixture(both, {"inner": 1, "c": 1}, seed=0)
    returned = []
    for number in range(6):
        with mixture.batches(**options) as batches:
            returned += drain(batches, 1 + number % 2)
            mixture = pickle.loads(pickle.dumps(mixture))
    returned += drain(mixture.batches(**options))
    assert sorted(returned) == sorted([*range(CAPACITY)] * 3)

    limiter = SampleToInsertRatio(1e6, min_size_to_sample=1, error_buffer=1e9)
    limited = RateLimited(ReplayBuffer(99, FIELDS, room={"T": 2000}, seed=0), limiter)
    add(limited, 0, 50)
    replay = SharedReplay(99, FIELDS, writers=2, room={"T": 2000})
    for number in range(2):
        with replay.actor(number) as actor:
            add(actor, 25 * number, 25)
    for source in (limited, replay.learner(seed=0)):
        view = source.view(AtMost(2), Packed())
        found: list[int] = []
        for _ in range(5):
            with view.batches(**options) as batches:
                found += drain(batches, 2)
        found += drain(view.batches(**options))
        assert sorted(found) == sorted([*range(50)] * 2)


def test_rows_that_are_gone_are_not_given_back() -> None:
    """Nor is a row in the place of one that waits drawn too often; and ``clear`` forgets all."""
    view = filled().view(AtMost(1), Packed())
    batches = view.batches(items={"T": 50})
    returned = drain(batches, 1)
    add(view.buffer, CAPACITY, CAPACITY)
    batches.close()
    found = drain(view.batches(items={"T": 50}))
    assert sorted(found) == list(range(CAPACITY, 2 * CAPACITY))
    batches = view.batches(items={"T": 50})
    view.buffer.clear()
    add(view.buffer, 0, 3)
    assert sorted(drain(batches)) == [0, 1, 2]
    assert len(returned) > 3


@pytest.mark.parametrize("prefetch", [0, 2])
@pytest.mark.parametrize("m", [1, 2])
def test_rewinds_and_restored_states(tmp_path: Path, m: int, prefetch: int) -> None:
    """Each row that is there comes m times, also if rows are forgotten while others wait."""
    for seed in range(8):
        rng = np.random.default_rng(seed)
        view = filled(20, seed=seed).view(AtMost(m), Packed())
        rb, there, counts, added = view.buffer, [*range(20)], Counter[int](), 20
        batches = view.batches(items={"T": 50}, prefetch=prefetch)
        saved: Any = None
        for _ in range(12):
            counts.update(drain(batches, int(rng.integers(3))))
            step = rng.integers(4)
            if step == 0 and len(there) > 3:
                rb.rewind(rb.rows - 3)
                there = there[:-3]
            elif step == 1:
                n = int(rng.integers(1, 6))
                add(rb, added, n)
                there, added = [*there, *range(added, added + n)][-CAPACITY:], added + n
            elif step == 2:
                view.save(tmp_path / str(seed))
                saved = [*there], counts.copy()
            elif saved is not None:
                view.restore(tmp_path / str(seed))  # the iterator goes on
                rb, there, counts = view.buffer, [*saved[0]], saved[1].copy()
        counts.update(drain(batches))
        assert max(counts.values()) <= m
        assert {x: counts[x] for x in there} == dict.fromkeys(there, m)
        batches.close()


def test_a_batch_that_cannot_be_made_loses_no_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of several rows; the only row of a batch, for which no batch has places, is used up."""
    view = filled().view(AtMost(1), Packed())
    batches = view.batches(items={"T": 50})
    joined = ItemPlan.join

    def fails(*_: Any, **__: Any) -> Any:
        raise MemoryError("no room")

    returned: list[int] = []
    for _ in range(3):
        monkeypatch.setattr(ItemPlan, "join", fails)
        with pytest.raises(MemoryError):
            next(batches)
        monkeypatch.setattr(ItemPlan, "join", joined)
        returned += drain(batches, 1)
    assert sorted(returned + drain(batches)) == list(range(CAPACITY))
    small = filled().view(AtMost(1), Packed(total={"T": LENGTH - 1}))
    few = small.batches(items={"T": LENGTH - 1})
    longest = {x for x in range(CAPACITY) if x * 7 % LENGTH + 1 == LENGTH}
    found: list[int] = []
    for _ in range(CAPACITY + len(longest)):
        with suppress(ValueError):
            found += next(few)["x"].tolist()
    assert sorted(found) == sorted({*range(CAPACITY)} - longest)
    assert pickle.loads(pickle.dumps(small)).stats()["rows_left"] == 0


@pytest.mark.parametrize("options", [{"batch_size": 4}, {"items": {"T": 50}}])
def test_a_batch_ahead_that_cannot_be_converted_loses_no_row(options: dict[str, Any]) -> None:
    """Such as for lack of memory on a device."""
    view = filled().view(AtMost(1), Packed())
    batches = view.batches(**options, prefetch=1)
    work: Any = batches._prefetcher
    failed: list[Any] = []

    def fails(batch: Any) -> Any:
        if len(failed) < 3:
            failed.append(batch)
            raise MemoryError("no room")
        return batch

    work._work.make = fails
    for _ in range(3):
        with pytest.raises(MemoryError):
            next(batches)
    assert sorted(drain(batches)) == list(range(CAPACITY))


def test_an_interrupt_at_any_line_has_no_row_come_twice() -> None:
    """Rows of the batch are used up, or come in the next one, here and in a copy."""

    def make() -> Any:
        view = filled(20).view(AtMost(1), Packed())
        batches = view.batches(items={"T": 30})
        return view, batches, drain(batches, 1)

    def look(made: Any) -> Any:
        view, batches, returned = made
        of_copy = drain(pickle.loads(pickle.dumps(view)).batches(items={"T": 30}))
        of_view = drain(batches)
        for found in (of_copy, of_view):
            assert len({*returned, *found}) == len(returned) + len(found)
        assert len(returned) + len(of_copy) >= 20 - 10

    cut_everywhere(make, lambda made: next(made[1]), look, looks_first=False)


class Twice(Rule):
    """Counts draws, and has no ``given_back``."""

    def open(self, rows: Any) -> Rule:
        self.total = 0
        return self

    def masses(self, rows: Any, slots: Any) -> Any:
        return np.ones(len(slots), bool)

    def drawn(self, slots: Any) -> None:
        self.total += len(slots)


def test_rules_of_users_without_the_hook_count_rows_that_wait() -> None:
    """As drawn, also in the end."""
    rule = Twice()
    view = filled().view(rule, Packed())
    with view.batches(items={"T": 50}) as batches:
        returned = [len(drain(batches, 1)) for _ in range(3)]
        total = rule.total
    view.sample(1)
    assert rule.total == total + 1 > sum(returned)


@pytest.mark.once
@pytest.mark.parametrize("prefetch", [0, 2])
def test_threads_get_different_rows(prefetch: int) -> None:
    """Threads that share an iterator, beside one that adds, return each row once.

    A copy that is made meanwhile has each row that was added, unless a batch with it was returned.
    """
    view = filled(0, 100_000).view(AtMost(1), Packed())
    batches = view.batches(items={"T": 60}, prefetch=prefetch)
    returned: list[int] = []
    added = 0
    copies: list[tuple[int, int, list[int]]] = []

    def take() -> None:
        with suppress(NotEnoughDataError):
            returned.extend(next(batches)["x"].tolist())
        time.sleep(0.001)

    def add_more() -> None:
        nonlocal added
        if added < 99_000:
            add(view.buffer, added, 50)
            added += 50
        time.sleep(0.002)

    def save() -> None:
        known, before = added, len(returned)
        left = drain(pickle.loads(pickle.dumps(view)).batches(200, items={"T": 900}))
        copies.append((known, before, left))

    run_together(take, take, add_more, save)
    with batches:
        for known, before, left in copies:
            assert not {*returned[:before]} & {*left}
            assert {*range(known)} <= {*returned, *left}
        assert sorted(returned + drain(batches)) == list(range(added))


@pytest.mark.slow
def test_draws_after_an_interrupt_at_any_line_are_of_no_batch_by_a_budget() -> None:
    """They had the columns of pieces of batches, and waits of limiters raised ``RuntimeError``."""
    rb = RateLimited(filled(20), MinSize(30, timeout=0.001))
    other, before = filled(20).view(Packed()), set(opened)

    def look(made: Any) -> list[str]:
        view, _ = made
        with pytest.raises(TimeoutError):
            rb.sample(1)
        waiting = view._now.rules.unreturned
        before = sum(map(len, waiting.values()))
        view.sample(1)
        assert sum(map(len, waiting.values())) == before
        return sorted(other.sample(2))

    def make() -> Any:
        view = filled(20).view(AtMost(1), Packed())
        return view, view.batches(items={"T": 30})

    assert "T_offsets" in look(make())
    kept: list[Any] = []  # tracebacks that are kept keep the frames that were cut

    def call(made: Any) -> None:
        try:
            next(made[1])
        except BaseException as error:
            kept.append(error)
            raise

    try:
        cut_everywhere(make, call, look, looks_first=False)
        assert kept
    finally:
        kept.clear()  # a cycle of frames, which would keep iterators open beside later tests
    gc.collect()
    assert set(opened) <= before
