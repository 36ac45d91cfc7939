"""Recency and Reverse, and the test that finds samplers which break a promise."""

from __future__ import annotations

import contextlib
import copy
import itertools
import math
import pickle
import random
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from distributions import chi_square, chi_square_limit
from helpers import refused
from hypothesis import given
from hypothesis import strategies as st
from numbered_rows import numbered
from scale import LONG

from cpprb_like import NotEnoughDataError, PrioritizedReplayBuffer, ReplayBuffer
from cpprb_like._rows.gather import write
from cpprb_like.samplers import (
    Extra,
    LegacyUniform,
    PrioritySampler,
    Recency,
    Reverse,
    Sampler,
    Slots,
    Uniform,
)
from cpprb_like.samplers._base import reject
from cpprb_like.schedules import Linear
from cpprb_like.testing import check_sampler
from cpprb_like.typing import FieldSpec
from cpprb_like.views import Sequences

FIELDS: dict[str, FieldSpec] = {"x": {"shape": (), "dtype": "i8"}}


def drawn(rb: ReplayBuffer, n: int, *, replace: bool = True) -> list[int]:
    """The numbers of a batch."""
    numbers: list[int] = rb.sample(n, replace=replace)["x"].tolist()
    return numbers


def newest_counts(rb: ReplayBuffer, draws: int) -> list[int]:
    """How many newest numbers each of some draws came from; all of them must have come."""
    newest = int(rb.get_all_transitions()["x"].max())
    counts = []
    for _ in range(draws):
        found = set(drawn(rb, 60 * len(rb)))
        assert found == set(range(min(found), newest + 1))
        counts.append(len(found))
    return counts


# ---- Recency -----------------------------------------------------------------------------


@pytest.mark.parametrize("updates", [1, 4, 7])
@pytest.mark.parametrize("rows", [40, 90])  # of 50
def test_recency_draws_from_fewer_and_fewer_newest_rows(updates: int, rows: int) -> None:
    """Draw k of K is from the max(N eta^(1000 k / K), least) newest rows; then it starts over."""
    rb = numbered(rows, 50, sampler=Recency(0.998, updates=updates, least=8), seed=1)
    n = min(rows, 50)
    expected = [
        max(math.floor(n * 0.998 ** (1000 * k / updates)), 8) for k in range(1, updates + 1)
    ]

    assert newest_counts(rb, 2 * updates) == expected * 2


def test_recency_with_the_published_parameters() -> None:
    """Each draw of a round, for eta 0.996, 1000 updates and c_min 5000, of a million rows."""
    rb = numbered(1_000_000, sampler=Recency(), seed=3)
    for k in [*range(1, 1001), 1]:
        newest = max(1e6 * 0.996**k, 5000)
        reached = 1_000_000 - min(drawn(rb, 20_000))
        # The oldest of 20 000 draws is in the last thousandth but for once in e^20 times.
        assert newest * 0.999 <= reached <= newest


@pytest.mark.parametrize("replace", [True, False])
@pytest.mark.parametrize("rows", [30, 107])  # of 50
def test_recency_draws_each_of_the_newest_rows_equally_often(rows: int, replace: bool) -> None:
    """Counts of the rows drawn from fit a uniform distribution, wrapped or not."""
    rb = numbered(rows, 50, sampler=Recency(0.5, updates=1, least=16), seed=9)
    rounds = 4000
    counts = np.zeros(16)
    for _ in range(rounds):
        counts += np.bincount(np.array(drawn(rb, 4, replace=replace)) - (rows - 16), minlength=16)

    statistic = chi_square(counts, rounds * 4 / 16)
    assert statistic * (1 if replace else 15 / 12) < chi_square_limit(15)


@pytest.mark.parametrize("calls", [9, 23, 60])
@pytest.mark.parametrize("every", [2, 7])
def test_recency_counts_rows_that_hold_a_step(calls: int, every: int) -> None:
    """Absent rows are neither drawn nor counted among the newest."""
    rb = ReplayBuffer(40, FIELDS, n_envs=2, sampler=Recency(0.5, updates=1, least=6), seed=5)
    for i in range(calls):
        rb.add_where([i % every == 0, i % 3 > 0], x=[2 * i, 2 * i + 1])
    present = [
        x
        for i in range(max(0, calls - 20), calls)
        for x, there in [(2 * i, i % every == 0), (2 * i + 1, i % 3 > 0)]
        if there
    ]
    values, counts = np.unique(drawn(rb, 6000), return_counts=True)

    assert values.tolist() == present[-6:]
    assert chi_square(counts, 1000) < chi_square_limit(5)


def test_recency_takes_its_share_of_the_rows_that_hold_a_step() -> None:
    """N is the number of rows that can be drawn, and not that of the slots in use."""
    rb = ReplayBuffer(40, FIELDS, n_envs=2, sampler=Recency(0.9995, updates=1, least=1), seed=5)
    for i in range(30):
        rb.add_where([True, i % 2 == 0], x=[2 * i, 2 * i + 1])
    present = [x for x in range(20, 60) if x % 4 < 3]

    assert len(present) == 30
    assert sorted(set(drawn(rb, 3000))) == present[-18:]  # 30 * 0.9995**1000


def test_recency_of_eta_one_draws_from_all_rows() -> None:
    """With eta 1 nothing falls out."""
    rb = numbered(30, sampler=Recency(1, updates=3, least=1), seed=2)

    assert newest_counts(rb, 4) == [30] * 4


def test_recency_draws_from_at_least_one_row() -> None:
    """However fast rows fall out, the newest one is left."""
    rb = numbered(30, sampler=Recency(1e-300, updates=1, least=1), seed=2)

    assert newest_counts(rb, 2) == [1, 1]


def test_recency_begins_rounds_of_another_length() -> None:
    """``begin`` starts a round at its first draw, with another number of updates."""
    sampler = Recency(0.999, updates=1000, least=1)
    rb = numbered(30, sampler=sampler, seed=2)
    newest_counts(rb, 3)
    assert (sampler.k, sampler.draws) == (3, 3)

    sampler.begin(2)

    assert newest_counts(rb, 3) == [math.floor(30 * 0.999**t) for t in (500, 1000, 500)]
    assert (sampler.k, sampler.draws, sampler.updates) == (1, 6, 2)


def test_eta_of_recency_follows_a_schedule_over_all_draws() -> None:
    """A schedule is asked about the number of draws before, over all rounds."""
    asked = []

    def eta(t: float) -> float:
        asked.append(t)
        return 0.999 + t * 0.0001

    rb = numbered(30, sampler=Recency(eta, updates=2, least=1), seed=2)
    expected = [math.floor(30 * (0.999 + t * 0.0001) ** (500 * (t % 2 + 1))) for t in range(5)]

    assert newest_counts(rb, 5) == expected
    assert asked == [0, 1, 2, 3, 4]


def test_recency_without_replacement_takes_older_rows_if_it_must() -> None:
    """A batch of distinct rows is drawn as long as there are as many rows at all."""
    rb = numbered(20, sampler=Recency(0.5, updates=1, least=3), seed=4)

    assert min(drawn(rb, 2, replace=False)) >= 17
    assert sorted(drawn(rb, 3, replace=False)) == [17, 18, 19]
    assert sorted(drawn(rb, 8, replace=False)) == list(range(12, 20))
    assert sorted(drawn(rb, 20, replace=False)) == list(range(20))
    with refused(rb, NotEnoughDataError, "21", "20"):
        rb.sample(21, replace=False)


def test_a_draw_of_recency_that_fails_does_not_count() -> None:
    """Neither too few rows nor a schedule out of range advance the round."""
    sampler = Recency(lambda t: 0.9 if t < 2 else 1.5, updates=5)
    rb = numbered(20, sampler=sampler, seed=4)
    rb.sample(1)
    with pytest.raises(NotEnoughDataError):
        rb.sample(21, replace=False)
    assert (sampler.k, sampler.draws) == (1, 1)
    rb.sample(1)
    with pytest.raises(ValueError, match=r"eta: expected more than 0 and at most 1, got 1\.5 from"):
        rb.sample(1)
    assert (sampler.k, sampler.draws) == (2, 2)


@pytest.mark.parametrize(
    "how", [copy.deepcopy, lambda rb: pickle.loads(pickle.dumps(rb))], ids=["copy", "pickle"]
)
@pytest.mark.parametrize("sampler", [Recency(0.99, updates=7, least=2), Reverse(3)], ids=repr)
def test_copies_go_on_where_the_original_is(how: Any, sampler: Sampler) -> None:
    """The place in a round, or in time, is copied with the buffer, and is the copy's own."""
    rb = numbered(30, sampler=copy.deepcopy(sampler), seed=2)
    for _ in range(3):
        rb.sample(5)
    twin = how(rb)
    expected = [drawn(rb, 5) for _ in range(9)]

    assert [drawn(twin, 5) for _ in range(9)] == expected


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"eta": 0}, ValueError, "eta: expected more than 0 and at most 1, got 0"),
        ({"eta": 1.01}, ValueError, "eta: expected more than 0 and at most 1, got 1.01"),
        ({"eta": math.nan}, ValueError, "eta: expected more than 0 and at most 1, got nan"),
        ({"eta": "0.9"}, TypeError, "eta: expected a number or a schedule, got '0.9'"),
        ({"eta": Linear(0.9, 1.5, 9)}, ValueError, "got 1.5 from Linear(start=0.9"),
        ({"updates": 0}, ValueError, "updates: expected at least 1, got 0"),
        ({"updates": 2.0}, TypeError, "updates: expected an integer, got 2.0"),
        ({"least": 0}, ValueError, "least: expected at least 1, got 0"),
        ({"least": None}, TypeError, "least: expected an integer, got None"),
    ],
)
def test_parameters_of_recency_are_checked(
    options: dict[str, Any], error: type[Exception], message: str
) -> None:
    """A parameter of a wrong type or value is refused, by name."""
    with pytest.raises(error) as caught:
        Recency(**options)
    assert message in str(caught.value)


@pytest.mark.parametrize("updates", [0, -3, 1.5, True, None])
def test_a_refused_begin_changes_nothing(updates: Any) -> None:
    """The round goes on as if nothing had been asked."""
    sampler = Recency(updates=9)
    numbered(30, sampler=sampler).sample(1)
    with pytest.raises((TypeError, ValueError), match=r"updates: expected"):
        sampler.begin(updates)
    assert (sampler.updates, sampler.k) == (9, 1)


def test_samplers_show_their_parameters() -> None:
    """``repr`` is the call that makes the same sampler."""
    assert repr(Recency(0.9, updates=5, least=7)) == "Recency(0.9, updates=5, least=7)"
    assert repr(Reverse(7)) == "Reverse(7)"


# ---- Reverse -----------------------------------------------------------------------------


def test_reverse_draws_what_cpprb_draws() -> None:
    """The batches that cpprb 11 gave for 10 rows, stride 3 and batches of 4, and 4 rows and 300."""
    rb = numbered(10, sampler=Reverse(3))
    expected = [[9, 6, 3, 0], [8, 5, 2, 9], [7, 4, 1, 8], [6, 3, 0, 7], [5, 2, 9, 6], [4, 1, 8, 5]]
    assert [drawn(rb, 4) for _ in range(12)] == expected * 2

    rb = numbered(4, 10, sampler=Reverse())
    assert [drawn(rb, 3) for _ in range(5)] == [[3] * 3, [2] * 3, [1] * 3, [0] * 3, [3] * 3]


def test_reverse_draws_what_cpprb_draws_while_rows_are_added() -> None:
    """The batches of cpprb 11, with a row more after each, in a buffer of 20."""
    rb = numbered(10, 20, sampler=Reverse(3))
    batches = []
    for i in range(9):
        batches.append(drawn(rb, 4))
        rb.add(x=10 + i)

    assert batches == [
        [9, 6, 3, 0],
        [8, 5, 2, 10],
        [7, 4, 1, 10],
        [12, 9, 6, 3],
        [11, 8, 5, 2],
        [10, 7, 4, 1],
        [15, 12, 9, 6],
        [14, 11, 8, 5],
        [13, 10, 7, 4],
    ]


def test_reverse_goes_by_age_in_a_buffer_that_has_wrapped() -> None:
    """It begins at the newest row wherever that lies, and after the oldest comes the newest."""
    rb = numbered(14, 10, sampler=Reverse(3))

    assert [drawn(rb, 4) for _ in range(2)] == [[13, 10, 7, 4], [12, 9, 6, 13]]


@pytest.mark.parametrize(("added", "start"), [(0, 8), (4, 8), (5, 14), (9, 18), (100, 109)])
def test_reverse_starts_again_when_it_lags(added: int, start: int) -> None:
    """A start 2 strides or more behind the newest row, or overwritten, moves to the newest."""
    rb = numbered(10, 12, sampler=Reverse(3))
    rb.sample(1)
    rb.add(x=np.arange(10, 10 + added))

    assert drawn(rb, 2) == [start, start - 3]


def test_reverse_starts_again_after_clear() -> None:
    """Where a draw would have gone on is forgotten with the rows, also if as many are added."""
    rb = numbered(10, sampler=Reverse(9))
    rb.sample(1)
    rb.clear()
    rb.add(x=np.arange(100, 110))

    assert drawn(rb, 1) == [109]


def test_reverse_starts_at_the_newest_row_of_another_buffer() -> None:
    """A sampler that comes from a longer buffer does not start somewhere in between."""
    sampler = Reverse(9)
    numbered(10, sampler=sampler).sample(1)

    assert drawn(numbered(7, sampler=sampler), 1) == [6]


def test_reverse_without_replacement_draws_no_row_twice() -> None:
    """As long as the steps lead to new rows it draws, then it refuses and stays where it is."""
    rb = numbered(10, sampler=Reverse(4))  # 9 5 1 7 3, and round again
    assert drawn(rb, 5, replace=False) == [9, 5, 1, 7, 3]
    with refused(rb, ValueError, "6 distinct rows of 10 in steps of 4", "twice"):
        rb.sample(6, replace=False)
    with refused(rb, NotEnoughDataError, "cannot sample 11 distinct rows: the buffer holds 10"):
        rb.sample(11, replace=False)
    assert drawn(rb, 6) == [8, 4, 0, 6, 2, 8]


class ByNumber(PrioritySampler):
    """In proportion to a row's number + 1, with weights that are 1 for the rarest of a draw."""

    def draw(
        self, ring: Any, n: int, rng: Any, *, replace: bool, beta: Any = None
    ) -> tuple[Slots, Extra]:
        del beta
        slots = ring.present_slots()
        shares = (slots + 1) / (slots + 1).sum()
        slots = rng.choice(slots, n, replace=replace, p=shares)
        rarest = (slots + 1).min(initial=10**6)
        return slots, {"weights": np.float32(rarest) / (slots + 1), "indexes": slots.copy()}

    def set_new(self, first: int, clears: int, priorities: Any) -> None:
        pass

    def get_max_priority(self) -> float:
        return 1.0


@pytest.mark.parametrize("replace", [True, False])
@pytest.mark.parametrize("ended", [1, 10, 40])
def test_weights_of_starts_are_of_one_scale(ended: int, replace: bool) -> None:
    """All starts of a batch come from one draw, whose weights are on one scale, up to 1.

    Starts were collected from several draws, each with weights of its own.
    """
    rb = PrioritizedReplayBuffer(400, FIELDS | {"done": {}}, sampler=ByNumber(), seed=0)
    rb.add(x=np.arange(400), done=np.arange(400) % 40 >= 40 - ended)
    view = rb.view(Sequences(1, burn_in=1))
    for n in (1, 7, 100) if ended < 40 and replace else (1, 5):
        if ended == 40:
            with pytest.raises(NotEnoughDataError, match="begin 2 rows of an episode"):
                view.sample(n, replace=replace)
            continue
        batch = view.sample(n, replace=replace)
        first = batch["x"][:, 0]
        assert (first % 40 < 40 - ended).all()
        assert batch["weights"].max() == 1
        np.testing.assert_allclose(batch["weights"] * (first + 1), min(first) + 1, rtol=1e-6)


def test_starts_of_a_draw_in_order_are_all_as_likely() -> None:
    """Where a draw has more starts than are asked for, it is any of them that are taken.

    The first ones were: of a draw in the order of the rows, as a stratified one is, those of the
    oldest rows.
    """

    class InOrder(Sampler):
        def draw(self, ring: Any, n: int, rng: Any, *, replace: bool) -> tuple[Slots, Extra]:
            assert replace
            return np.sort(rng.integers(0, ring.stored, n)).astype(np.intp), {}

    rb = ReplayBuffer(400, FIELDS | {"done": {}}, sampler=InOrder(), seed=0)
    rb.add(x=np.arange(400), done=np.arange(400) % 8 != 0)
    starts = rb.view(Sequences(1, burn_in=1)).sample(4000)["x"][:, 0]
    counts = np.bincount(starts, minlength=400)[::8]
    assert counts.sum() == 4000
    assert chi_square(counts, 80.0) < chi_square_limit(49)


@given(
    capacity=st.integers(1, 40),
    stride=st.integers(1, 14),
    moves=st.lists(
        st.one_of(
            st.tuples(st.just("add"), st.lists(st.booleans(), min_size=1, max_size=9)),
            st.tuples(st.just("add"), st.integers(9, 15).map(lambda n: [False] * n)),
            st.tuples(st.just("draw"), st.integers(0, 9)),
            st.tuples(st.just("clear"), st.none()),
        ),
        min_size=2,
        max_size=20,
    ),
)
def test_reverse_follows_its_rule(capacity: int, stride: int, moves: list[tuple[str, Any]]) -> None:
    """Over histories that wrap, clear and have absent rows, it draws what a plain loop draws."""
    rb = ReplayBuffer(capacity, FIELDS, sampler=Reverse(stride))
    alive: list[tuple[int, bool]] = []
    written, start = 0, -1
    for what, value in moves:
        if what == "add":
            for present in value:
                rb.add_where([present], x=[written])
                alive = [*alive, (written, present)][-capacity:]
                written += 1
        elif what == "clear":
            rb.clear()
            alive, start = [], -1
        elif any(present for _, present in alive):
            newest = alive[-1][0]
            if newest - start >= 2 * stride or start < alive[0][0]:
                start = newest
            place = start - alive[0][0]
            expected = []
            for _ in range(value):
                found = place
                while not alive[found][1]:
                    found = (found - 1) % len(alive)
                expected.append(alive[found][0])
                place = (place - stride) % len(alive)
            start -= 1
            assert drawn(rb, value) == expected


def test_reverse_steps_back_over_absent_rows() -> None:
    """One or many in a row, from the first slot to the last in use, and around the end."""
    rb = ReplayBuffer(100, FIELDS, sampler=Reverse(1))
    present = {3, 4, 30, 41, 42, 44}
    for i in range(60):
        rb.add_where([i in present], x=[i])

    expected = [max((p for p in present if p <= i), default=44) for i in range(59, -1, -1)]
    assert drawn(rb, 60) == expected

    for i in range(60, 150):
        rb.add_where([i == 70], x=[i])
    assert drawn(rb, 100) == [70] * 100


def test_reverse_steps_back_from_the_first_slot() -> None:
    """Before the first row of a buffer that is not full comes the newest."""
    rb = ReplayBuffer(5, FIELDS, sampler=Reverse(1))
    for i in range(3):
        rb.add_where([i > 0], x=[i])

    assert drawn(rb, 3) == [2, 1, 2]


def test_reverse_of_nothing_is_refused() -> None:
    """Without a row that holds a step there is nothing to draw, whoever asks."""
    rb = ReplayBuffer(4, FIELDS)
    for _ in range(2):
        with pytest.raises(NotEnoughDataError, match="empty"):
            Reverse().draw(rb.ring, 1, rb.rng, replace=True)
        rb.add_where([False], x=[0])


@pytest.mark.parametrize(("stride", "error"), [(0, ValueError), (-1, ValueError), (2.5, TypeError)])
def test_parameters_of_reverse_are_checked(stride: Any, error: type[Exception]) -> None:
    """A stride is an integer of at least 1."""
    with pytest.raises(error, match=r"stride: expected"):
        Reverse(stride)


def test_a_stride_may_be_larger_than_any_buffer() -> None:
    """Steps go round the buffer as often as they must."""
    rb = numbered(10, sampler=Reverse(10**30 + 3))

    assert drawn(rb, 4) == [9, 6, 3, 0]


def test_reverse_finds_rows_that_go_and_come_between_draws() -> None:
    """Rows that were cleared when it looked first, and added when it looked again, are too few.

    The buffer draws again when rows have changed; a division by their number would have escaped.
    """

    class Ring:
        first, stop, clears, absent = 0, 0, 1, 0

        def __len__(self) -> int:
            return 1

    ring: Any = Ring()
    with pytest.raises(NotEnoughDataError):
        Reverse().draw(ring, 3, np.random.default_rng(0), replace=True)


# ---- threads -----------------------------------------------------------------------------


@pytest.mark.parametrize("make", [lambda: Recency(0.99, updates=5, least=2), lambda: Reverse(3)])
@pytest.mark.parametrize("absent", [False, True], ids=["", "absent rows"])
def test_draws_while_another_thread_adds_and_clears(
    make: Callable[[], Sampler], absent: bool
) -> None:
    """A draw gives rows that hold a step, or says that there are none; no state is left broken."""
    rb = ReplayBuffer(20, FIELDS, sampler=make(), seed=1)
    done = threading.Event()
    wrong: list[object] = []
    batches = itertools.count()

    def read() -> None:
        try:
            while not done.is_set():
                with contextlib.suppress(NotEnoughDataError):
                    wrong.extend(x for x in drawn(rb, 8) if x < 0)
                    if next(batches) == 10_000:
                        done.set()
        except Exception as error:
            wrong.append(error)
            done.set()

    readers = [threading.Thread(target=read) for _ in range(2)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for reader in readers:
            reader.start()
        for i in itertools.count():
            if done.is_set():
                break
            if i % 100 < 5:
                rb.clear()
            elif absent and i % 3 == 0:
                rb.add_where([False], x=[-1])
            else:
                rb.add(x=i)
    finally:
        done.set()
        for reader in readers:
            reader.join()
        sys.setswitchinterval(interval)
    assert wrong == []
    rb.clear()
    rb.add(x=np.arange(5))
    assert set(drawn(rb, 100)) <= set(range(5))


# ---- check_sampler -----------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    "make",
    [
        Uniform,
        Recency,
        lambda: Recency(0.99, updates=3, least=2),
        lambda: Recency(Linear(0.9, 1.0, 20), updates=5, least=1),
    ],
    ids=["Uniform", "Recency", "Recency of few", "Recency with a schedule"],
)
@pytest.mark.parametrize("seed", range(2 if LONG else 1))
def test_our_samplers_keep_their_promises(make: Callable[[], Sampler], seed: int) -> None:
    """What this package has passes its own test."""
    check_sampler(make, seed=seed)


@pytest.mark.slow
@pytest.mark.parametrize("stride", [1, 2, 3, 300] if LONG else [3, 300])
def test_reverse_keeps_its_promises(stride: int) -> None:
    """``Reverse`` passes, as it says that it may refuse to draw without replacement."""
    check_sampler(lambda: Reverse(stride), distinct=False)


class Good(Sampler):
    """Draws from any of the rows, and gives their ages: the samplers below break it."""

    def draw(self, ring: Any, n: int, rng: Any, *, replace: bool) -> Any:
        among = ring.present_slots()
        if not replace and n > len(among):
            raise NotEnoughDataError(f"{n} of {len(among)}")
        slots = self.choose(ring, among, n, rng, replace)
        return slots, self.further(ring, slots)

    def choose(self, ring: Any, among: Any, n: int, rng: Any, replace: bool) -> Any:
        return rng.choice(among, n, replace=replace)

    def further(self, ring: Any, slots: Any) -> Any:
        return {"age": (ring.written - 1 - slots) % ring.capacity}

    def __repr__(self) -> str:
        return "it"


@pytest.mark.slow
def test_a_sampler_of_ones_own_passes() -> None:
    """The class that the broken ones derive from keeps all promises."""
    check_sampler(Good)


BROKEN: dict[str, tuple[type[Good], list[str]]] = {}


def breaks(*words: str) -> Callable[[type[Good]], type[Good]]:
    """Note what the test must say of a class."""

    def note(cls: type[Good]) -> type[Good]:
        BROKEN[cls.__name__] = (cls, list(words))
        return cls

    return note


@breaks("slots are a C-contiguous array of intp, shape (n,)", "got list [")
class List(Good):
    """Slots as a list."""

    def draw(self, *args: Any, **options: Any) -> Any:
        slots, extra = super().draw(*args, **options)
        return slots.tolist(), extra


@breaks("a draw returns a tuple of slots and a dict of columns", "array(")
class NoColumns(Good):
    """No dict."""

    def draw(self, *args: Any, **options: Any) -> Any:
        return super().draw(*args, **options)[0]


@breaks("slots are a C-contiguous array of intp", "got an array of int32")
class Narrow(Good):
    """Slots of another integer type."""

    def choose(self, *args: Any) -> Any:
        return super().choose(*args).astype(np.int32)


@breaks("slots are a C-contiguous array of intp", "got a strided array of int64")
class Strided(Good):
    """Slots that are not dense."""

    def choose(self, *args: Any) -> Any:
        return np.repeat(super().choose(*args), 2)[::2]


@breaks("shape (n,)", "draw(n=0, ", "got an array of int64, shape (1,)")
class NeverEmpty(Good):
    """One slot where none was asked for."""

    def choose(self, ring: Any, among: Any, n: int, rng: Any, replace: bool) -> Any:
        return super().choose(ring, among, max(n, 1), rng, replace)


@breaks("slots are in use", "in use are 0 to 2, got", "3 rows of 7")
class Unwritten(Good):
    """Takes the capacity for the rows."""

    def choose(self, ring: Any, among: Any, n: int, rng: Any, replace: bool) -> Any:
        return rng.choice(ring.capacity, n, replace=replace)


@breaks("slots are in use", "got -1")
class FromTheEnd(Good):
    """Slots that count from the end."""

    def choose(self, *args: Any) -> Any:
        return super().choose(*args) - 1


@breaks("absent rows are never drawn", "2 environments", "got slot 1")
class Absent(Good):
    """Knows nothing of absent rows."""

    def choose(self, ring: Any, among: Any, n: int, rng: Any, replace: bool) -> Any:
        return rng.choice(ring.stored, n, replace=replace)


@breaks("without replace no row comes twice", "replace=False")
class Repeating(Good):
    """Always with replacement."""

    def choose(self, ring: Any, among: Any, n: int, rng: Any, replace: bool) -> Any:
        return rng.choice(among, n)


@breaks("NotEnoughDataError if n distinct rows are requested", "there are 3, and it drew")
class Overfull(Good):
    """With replacement when rows run out."""

    def draw(self, ring: Any, n: int, rng: Any, *, replace: bool) -> Any:
        return super().draw(ring, n, rng, replace=replace or n > len(ring))


@breaks("NotEnoughDataError if n distinct rows", "it raised ValueError: Cannot take a larger")
class WrongError(Good):
    """Leaves the error to NumPy."""

    def draw(self, ring: Any, n: int, rng: Any, *, replace: bool) -> Any:
        return rng.choice(ring.present_slots(), n, replace=replace), {}


@breaks("n distinct rows are drawn where there are as many (else pass distinct=False)")
class Refusing(Good):
    """Has a limit of its own."""

    def draw(self, ring: Any, n: int, rng: Any, *, replace: bool) -> Any:
        if not replace and n > 2:
            raise NotEnoughDataError("no more than two")
        return super().draw(ring, n, rng, replace=replace)


@breaks("a draw of n rows, n at least 0, works; it raised ZeroDivisionError")
class Dividing(Good):
    """Fails for the empty batch."""

    def further(self, ring: Any, slots: Any) -> Any:
        return {"share": np.full(len(slots), 1 // len(slots))}


@breaks("under names that are no fields; 'rew' is a field")
class Field(Good):
    """A column under the name of a field."""

    def further(self, ring: Any, slots: Any) -> Any:
        return {"rew": np.zeros(len(slots))}


@breaks("extra columns are arrays of length n", "got length 9 as 'age'")
class LongColumn(Good):
    """A column of a length of its own."""

    def further(self, ring: Any, slots: Any) -> Any:
        return {"age": np.zeros(9)}


@breaks("extra columns are arrays of length n", "got float 0.5 as 'beta'")
class ScalarColumn(Good):
    """A number as a column."""

    def further(self, ring: Any, slots: Any) -> Any:
        return {"beta": 0.5}


@breaks("arrays are fresh")
class OneArray(Good):
    """Draws into the same array each time."""

    def __init__(self) -> None:
        self.array = np.zeros(1000, np.intp)

    def choose(self, *args: Any) -> Any:
        slots = super().choose(*args)
        self.array[: len(slots)] = slots
        return self.array[: len(slots)]


@breaks("arrays are fresh")
class Cache(Good):
    """Hands out the array that it looks at again."""

    def __init__(self) -> None:
        self.ages = np.arange(1000)

    def further(self, ring: Any, slots: Any) -> Any:
        return {"age": self.ages[: len(slots)]}


@breaks("what is random comes from rng only", "global generator of NumPy or of Python")
class GlobalNumPy(Good):
    """Draws from NumPy's global state."""

    def choose(self, ring: Any, among: Any, n: int, rng: Any, replace: bool) -> Any:
        return np.random.choice(among, n, replace=replace)


@breaks("what is random comes from rng only", "global generator of NumPy or of Python")
class GlobalPython(Good):
    """Draws from Python's global state."""

    def further(self, ring: Any, slots: Any) -> Any:
        return {"noise": np.full(len(slots), random.random())}


@breaks(
    "what is random comes from rng only", "the same rng and history give the same draw", "became"
)
class OwnGenerator(Good):
    """Has a generator of its own."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng()

    def choose(self, ring: Any, among: Any, n: int, rng: Any, replace: bool) -> Any:
        return self.rng.choice(among, n, replace=replace)


@breaks("a sampler is copied with its buffer", "cannot pickle", "lock")
class Locked(Good):
    """Holds what cannot be pickled."""

    def __init__(self) -> None:
        self.lock = threading.Lock()


@breaks("the copy goes on with the same draws", "'turn': [")
class Forgetful(Good):
    """Is pickled without its state."""

    def __init__(self) -> None:
        self.turn = 0

    def draw_state(self) -> dict[str, Any]:
        return {"turn": self.turn}

    def further(self, ring: Any, slots: Any) -> Any:
        self.turn += 1
        return {"turn": np.full(len(slots), self.turn - 1)}

    def __setstate__(self, state: Any) -> None:
        self.turn = 0


@breaks("a draw that raises leaves the sampler as it was", "'turn': ")
class Counting(Good):
    """Counts draws that fail."""

    def __init__(self) -> None:
        self.turn = 0

    def draw_state(self) -> dict[str, Any]:
        return {"turn": self.turn}

    def draw(self, *args: Any, **options: Any) -> Any:
        self.turn += 1
        return super().draw(*args, **options)

    def further(self, ring: Any, slots: Any) -> Any:
        return {"turn": np.full(len(slots), self.turn)}


@breaks("draw_state has the attributes that a draw changes", "'turn': ")
class Untold(Good):
    """Counts its draws, and does not say so."""

    def __init__(self) -> None:
        self.turn = 0

    def further(self, ring: Any, slots: Any) -> Any:
        self.turn += 1
        return {"turn": np.full(len(slots), self.turn)}


@breaks("the ring is only read")
class WritingValues(Good):
    """Writes to the ring, past the buffer."""

    def further(self, ring: Any, slots: Any) -> Any:
        column = ring.columns[0]
        one = np.full((1, *column.shape), 77, column.dtype)
        write(ring, slots[:1].astype(np.int64), [column], [one[: len(slots)]])
        return {}


@breaks("draw_starts(n=", "draw_starts returns starts only", "got slot")
class AnyStart(Good):
    """Takes any row for a start."""

    def draw_starts(self, starts: Any, n: int, rng: Any, *, replace: bool) -> Any:
        reject(self, starts, n, rng, replace)  # what cannot be drawn is refused
        return self.draw(starts.ring, n, rng, replace=replace)


@breaks("draw_starts(n=", "replace=False", "without replace no row comes twice")
class RepeatingStart(Good):
    """Draws a start again, in spite of ``replace=False``."""

    def draw_starts(self, starts: Any, n: int, rng: Any, *, replace: bool) -> Any:
        slots, _ = super().draw_starts(starts, n, rng, replace=replace)
        slots[1:] = slots[:1]
        return slots, self.further(starts.ring, slots)


@breaks("draw_starts(n=", "extra columns are arrays of length n", "as 'age'")
class ColumnOfAllStarts(Good):
    """A column of all starts in place of those drawn."""

    def draw_starts(self, starts: Any, n: int, rng: Any, *, replace: bool) -> Any:
        slots, _ = super().draw_starts(starts, n, rng, replace=replace)
        return slots, self.further(starts.ring, starts.slots())


@breaks("draw_starts(n=", "NotEnoughDataError if n distinct rows are requested")
class StartsWithReplacement(Good):
    """Gives each start as often as it takes."""

    def draw_starts(self, starts: Any, n: int, rng: Any, *, replace: bool) -> Any:
        slots = np.resize(starts.slots(), n) if len(starts.slots()) else starts.slots()
        return slots, self.further(starts.ring, slots)


@pytest.mark.parametrize("name", BROKEN)
@pytest.mark.parametrize("seed", [0, 5] if LONG else [0])
def test_a_broken_promise_is_found_and_named(name: str, seed: int) -> None:
    """The message says which promise is broken, by whom, in which draw from which buffer."""
    make, words = BROKEN[name]
    with pytest.raises(AssertionError) as caught:
        check_sampler(make, seed=seed)
    message = str(caught.value)
    assert message.startswith("it, ")
    assert [word for word in words if word not in message] == [], message


@pytest.mark.slow
@pytest.mark.parametrize("name", BROKEN)
def test_distinct_false_permits_refusals_and_nothing_else(name: str) -> None:
    """A sampler may then refuse distinct rows; what else it breaks is found as before."""
    make, words = BROKEN[name]
    if make is Refusing:
        check_sampler(make, distinct=False)
        return
    with pytest.raises(AssertionError) as caught:
        check_sampler(make, distinct=False)
    assert [word for word in words if word not in str(caught.value)] == []


@pytest.mark.slow
def test_columns_of_every_dtype_are_compared() -> None:
    """Columns may hold NaN, strings or Python objects."""

    class Motley(Good):
        def further(self, ring: Any, slots: Any) -> Any:
            n = len(slots)
            return {
                "nan": np.full((n, 2), np.nan),
                "text": slots.astype("U5"),
                "object": np.array([str(slot) for slot in slots], object),
            }

    check_sampler(Motley)


def test_check_sampler_needs_a_new_sampler_each_time() -> None:
    """A sampler in place of its class, or the same one twice, is refused."""
    one = Uniform()
    with pytest.raises(TypeError, match=r"make_sampler: expected a callable, got Uniform\(\)"):
        check_sampler(one)  # type: ignore[arg-type]  # what is tested
    with pytest.raises(ValueError, match="make_sampler: expected a new sampler from each call"):
        check_sampler(lambda: one)


@pytest.mark.slow
def test_check_sampler_leaves_the_global_generators_alone() -> None:
    """The test itself draws nothing from NumPy's or Python's own generators."""
    before = repr(np.random.get_state(legacy=False)), random.getstate()
    check_sampler(Uniform)
    assert (repr(np.random.get_state(legacy=False)), random.getstate()) == before


def test_legacy_sampler_is_not_for_the_buffers_own_generator() -> None:
    """``LegacyUniform`` says that it draws from NumPy's global state, and is found to."""
    with pytest.raises(AssertionError, match="global generator of NumPy"):
        check_sampler(LegacyUniform)


# ---- nothing to draw, and starts among the newest rows -----------------------------------


@pytest.mark.parametrize("state", ["new", "cleared", "deleted"])
@pytest.mark.parametrize("replace", [True, False])
@pytest.mark.parametrize(
    "make", [Uniform, LegacyUniform, Recency, lambda: Recency(least=1), lambda: Reverse(2)]
)
def test_a_buffer_without_rows_is_refused_by_every_sampler(
    make: Callable[[], Any], replace: bool, state: str
) -> None:
    """It failed inside NumPy, or of itself, where the sampler was asked and not the buffer."""
    rb = ReplayBuffer(10, FIELDS, sampler=make(), seed=0)
    if state != "new":
        rb.add(x=range(4))
        rb.on_episode_end()
        rb.clear() if state == "cleared" else rb.episodes.delete(0)
    starts = rb._starts(rows=2, least=1, across=False, stride=1, before=0)
    sampler: Any = rb.sampler
    for n in (1, 4):
        for draw in (
            lambda n=n: sampler.draw(rb.ring, n, rb.rng, replace=replace),
            lambda n=n: sampler.draw_starts(starts, n, rb.rng, replace=replace),
            lambda n=n: rb.sample(n, replace=replace),
            lambda n=n: rb.view(Sequences(2)).sample(n, replace=replace),
        ):
            with pytest.raises(NotEnoughDataError):
                draw()


@pytest.mark.parametrize("replace", [True, False])
@pytest.mark.parametrize("least", [1, 7, 30, 95, 1000])
@pytest.mark.parametrize("length", [1, 3, 9, 40])
def test_starts_come_from_the_newest_rows(length: int, least: int, replace: bool) -> None:
    """Uniform over the newest rows that are starts; where these are too few, the newest starts."""
    sampler = Recency(1.0, least=least)
    rb = ReplayBuffer(100, FIELDS | {"done": {}}, sampler=sampler, seed=3)
    sampler.eta = 1e-9  # so that ``least`` decides
    x = np.arange(130)
    rb.add(x=x, done=(x % 13 == 12) & (x < 60))
    view = rb.view(Sequences(1, burn_in=length - 1))
    starts = np.sort(rb.ring.row_ids(view._now.starts.slots()))
    newest = starts[starts >= 130 - min(least, 100)]
    n = 4
    if len(newest) < (1 if replace else n):
        newest = starts[-1:] if replace else starts[-n:]
    counts = np.zeros(130)
    rounds = 500
    for _ in range(rounds):
        found = view.sample(n, replace=replace)["x"].reshape(n, -1)[:, 0]
        assert replace or len(set(found.tolist())) == n
        np.add.at(counts, found, 1)
    assert set(np.flatnonzero(counts)) <= set(newest.tolist())
    if len(newest) > 1:
        expected = np.full(len(newest), rounds * n / len(newest))
        statistic = float(((counts[newest] - expected) ** 2 / expected).sum())
        assert statistic < chi_square_limit(len(newest) - 1)
