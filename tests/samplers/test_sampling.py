"""Which rows are drawn, how often, in which arrays; and the other ways to read a buffer."""

from __future__ import annotations

import copy
import itertools
import pickle
from typing import Any

import numpy as np
import pytest
from distributions import chi_square, chi_square_limit
from hypothesis import given
from hypothesis import strategies as st
from numbered_rows import numbered
from strategies import assert_same

from cpprb_like import NotEnoughDataError, ReplayBuffer
from cpprb_like.samplers import LegacyUniform, Sampler, Uniform
from cpprb_like.samplers._starts import choose

BIT_GENERATORS = [
    np.random.PCG64,
    np.random.PCG64DXSM,
    np.random.MT19937,
    np.random.Philox,
    np.random.SFC64,
]


# ---- distribution ------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 2, 3, 7, 10, 100, 1000, 2**12 + 1])
@pytest.mark.parametrize("sampler", [None, LegacyUniform()], ids=["uniform", "legacy"])
def test_every_row_is_drawn_equally_often(n: int, sampler: Any) -> None:
    """Counts of rows drawn with replacement fit a uniform distribution."""
    np.random.seed(7)
    rb = numbered(n, sampler=sampler, seed=11)
    drawn = np.concatenate([rb.sample(1000)["x"] for _ in range(n // 10 + 20)])
    counts = np.bincount(drawn, minlength=n)
    assert len(counts) == n
    assert n == 1 or chi_square(counts, drawn.size / n) < chi_square_limit(n - 1)


def test_pairs_of_draws_are_independent() -> None:
    """Two draws that follow each other are uniform over all pairs."""
    rb = numbered(12, seed=5)
    drawn = rb.sample(144_000)["x"].reshape(-1, 2)
    counts = np.bincount(drawn[:, 0] * 12 + drawn[:, 1], minlength=144)
    assert chi_square(counts, 72_000 / 144) < chi_square_limit(143)


@pytest.mark.parametrize(
    ("n", "batch"), [(1, 1), (5, 5), (5, 3), (40, 13), (1000, 1000), (1000, 10), (300, 299)]
)
@pytest.mark.parametrize("sampler", [None, LegacyUniform()], ids=["uniform", "legacy"])
def test_without_replacement_rows_are_distinct(n: int, batch: int, sampler: Any) -> None:
    """A batch without replacement holds no row twice."""
    rb = numbered(n, sampler=sampler, seed=2)
    for _ in range(20):
        drawn = rb.sample(batch, replace=False)["x"]
        assert drawn.shape == (batch,)
        assert len(set(drawn.tolist())) == batch
        assert drawn.min() >= 0
        assert drawn.max() < n


@pytest.mark.parametrize(("n", "batch"), [(4, 4), (5, 3), (6, 1), (6, 5)])
def test_without_replacement_every_order_is_equally_likely(n: int, batch: int) -> None:
    """Not only the set but also the order of the rows is uniform: no position prefers a row."""
    rb = numbered(n, seed=17)
    orders = {order: i for i, order in enumerate(itertools.permutations(range(n), batch))}
    counts = np.zeros(len(orders))
    draws = 60 * len(orders)
    for _ in range(draws):
        counts[orders[tuple(rb.sample(batch, replace=False)["x"].tolist())]] += 1
    assert chi_square(counts, 60) < chi_square_limit(len(orders) - 1)


def test_without_replacement_from_many_rows_is_uniform() -> None:
    """Few distinct rows of many, and most rows of many, hit every row equally often."""
    for n, batch in [(500, 20), (500, 480)]:
        rb = numbered(n, seed=23)
        rounds = 100_000 // batch
        drawn = np.concatenate([rb.sample(batch, replace=False)["x"] for _ in range(rounds)])
        counts = np.bincount(drawn, minlength=n)
        # The rows of a batch exclude each other: counts vary less, by (n - batch) / (n - 1).
        statistic = chi_square(counts, rounds * batch / n) * (n - 1) / (n - batch)
        assert statistic < chi_square_limit(n - 1)


@pytest.mark.parametrize("capacity", [10, 64])
def test_absent_rows_are_never_drawn(capacity: int) -> None:
    """Only rows that hold a step are drawn, each equally often, however few they are."""
    rb = ReplayBuffer(capacity, {"x": {"shape": (), "dtype": "i8"}}, n_envs=2, seed=9)
    for i in range(capacity):
        rb.add_where([i % 3 == 0, i % 2 == 0], x=[2 * i, 2 * i + 1])
    alive = [
        x
        for i in range(capacity)
        for x, there in [(2 * i, i % 3 == 0), (2 * i + 1, i % 2 == 0)]
        if there
    ]
    alive = [x for x in alive if x >= capacity]
    assert len(rb) == len(alive)
    drawn = rb.sample(20_000)["x"]
    values, counts = np.unique(drawn, return_counts=True)
    assert values.tolist() == alive
    assert chi_square(counts, drawn.size / len(alive)) < chi_square_limit(len(alive) - 1)
    assert sorted(rb.sample(len(rb), replace=False)["x"].tolist()) == alive
    with pytest.raises(NotEnoughDataError):
        rb.sample(len(rb) + 1, replace=False)


def test_one_step_among_many_absent_rows() -> None:
    """A single step among a thousand absent rows is found in a reasonable time."""
    rb = ReplayBuffer(1000, {"x": {"shape": (), "dtype": "i8"}})
    rb.add_where([True], x=[42])
    for _ in range(999):
        rb.add_where([False], x=[0])
    assert (rb.sample(1000)["x"] == 42).all()
    assert rb.sample(1, replace=False)["x"].tolist() == [42]


# ---- seeds -------------------------------------------------------------------------------


@pytest.mark.parametrize("replace", [True, False])
def test_same_seed_same_batches(replace: bool) -> None:
    """Two buffers of one seed and one history draw the same batches, of another seed others."""
    a, b, c = (numbered(100, seed=seed) for seed in (3, 3, 4))
    batches = [[rb.sample(20, replace=replace)["x"].tolist() for _ in range(5)] for rb in (a, b, c)]
    assert batches[0] == batches[1]
    assert batches[0] != batches[2]


@pytest.mark.parametrize("bit_generator", BIT_GENERATORS)
def test_any_bit_generator_seeds(bit_generator: Any) -> None:
    """Whatever ``np.random.default_rng`` takes is a seed: generators, bit generators, sequences."""
    reference = numbered(50, seed=np.random.Generator(bit_generator(8))).sample(30)["x"]
    assert numbered(50, seed=bit_generator(8)).sample(30)["x"].tolist() == reference.tolist()
    assert len(set(reference.tolist())) > 10
    for seed in (np.random.SeedSequence(8), [1, 2, 3], np.int64(8)):
        assert numbered(50, seed=seed).sample(3)["x"].size == 3


@pytest.mark.parametrize("bit_generator", BIT_GENERATORS)
@pytest.mark.parametrize(
    "how", [copy.deepcopy, lambda rb: pickle.loads(pickle.dumps(rb))], ids=["copy", "pickle"]
)
def test_copies_continue_with_the_same_batches(bit_generator: Any, how: Any) -> None:
    """Copies draw what the original draws, also from between two halves of a 64-bit number."""
    for warm_up in (1, 2, 3):
        rb = numbered(100, seed=bit_generator(5))
        rb.sample(warm_up)
        twin = how(rb)
        first = [twin.sample(7)["x"].tolist() for _ in range(3)]
        assert [rb.sample(7)["x"].tolist() for _ in range(3)] == first
        twin.sample(1)
        rb.clear()
        assert len(twin) == 100


def test_global_seed_governs_unseeded_buffers() -> None:
    """Without ``seed``, ``np.random.seed`` governs the generator."""
    drawn = []
    for seed in (1, 1, 2):
        np.random.seed(seed)
        a, b = numbered(100), numbered(100)
        drawn.append((a.sample(20)["x"].tolist(), b.sample(20)["x"].tolist()))
    assert drawn[0] == drawn[1] != drawn[2]
    assert drawn[0][0] != drawn[0][1]


def test_sampling_leaves_the_global_state_alone() -> None:
    """Drawing does not touch NumPy's global generator."""
    rb = numbered(100)
    np.random.seed(3)
    before = np.random.get_state(legacy=False)
    rb.sample(10)
    rb.sample(10, replace=False)
    rb.get_all_transitions(shuffle=True)
    list(rb.epoch(10))
    after = np.random.get_state(legacy=False)
    assert repr(before) == repr(after)


def test_legacy_sampler_draws_what_one_call_of_randint_draws() -> None:
    """``LegacyUniform`` makes one call of ``np.random.randint(0, stored, n)``, as cpprb does."""
    rb = numbered(60, 100, sampler=LegacyUniform())
    np.random.seed(12)
    drawn = [rb.sample(n)["x"].tolist() for n in (5, 32, 1)]
    np.random.seed(12)
    assert drawn == [np.random.randint(0, 60, n).tolist() for n in (5, 32, 1)]


def test_rng_of_the_buffer_is_the_one_that_draws() -> None:
    """``rb.rng`` is the generator in use, and setting its state repeats batches."""
    rb = numbered(100, seed=1)
    assert isinstance(rb.rng, np.random.Generator)
    state = rb.rng.bit_generator.state
    first = rb.sample(30)["x"].tolist()
    rb.rng.bit_generator.state = state
    assert rb.sample(30)["x"].tolist() == first


GOLDEN: list[tuple[Any, list[int], list[int]]] = [
    (np.random.MT19937, [436, 306, 52, 632, 594], [992, 552, 124, 817]),
    (np.random.Philox, [268, 468, 973, 426, 126], [768, 238, 234, 141]),
    (np.random.SFC64, [977, 43, 8, 587, 244], [20, 652, 216, 697]),
    (np.random.PCG64DXSM, [650, 97, 159, 823, 750], [34, 173, 745, 884]),
]


@pytest.mark.parametrize(("bit_generator", "first", "then"), GOLDEN)
def test_slots_are_the_same_on_every_platform(
    bit_generator: Any, first: list[int], then: list[int]
) -> None:
    """A seed gives these slots, here and everywhere, with replacement and then without."""
    rb = numbered(1000, seed=bit_generator(7))
    assert rb.sample(5)["x"].tolist() == first
    assert rb.sample(4, replace=False)["x"].tolist() == then


def test_slots_of_an_integer_seed_are_the_same_on_every_platform() -> None:
    """The generator of ``seed=2024`` draws these slots, and shuffles so."""
    rb = numbered(1000, seed=2024)
    assert rb.sample(6)["x"].tolist() == [241, 675, 92, 214, 317, 309]
    assert rb.sample(6, replace=False)["x"].tolist() == [908, 799, 915, 995, 82, 146]
    assert rb.get_all_transitions(shuffle=True)["x"][:6].tolist() == [867, 79, 167, 183, 914, 362]


def halves_of_pcg64(seed: int) -> Any:
    """The 32-bit numbers of PCG64: the low half of each 64-bit number, then the high one."""
    bits = np.random.PCG64(seed)
    while True:
        word = int(bits.random_raw())
        yield word & 0xFFFFFFFF
        yield word >> 32


def numbers_by_lemires_method(n: int, count: int, seed: int) -> list[int]:
    """Numbers below n, by the published algorithm in Python's integers."""
    halves = halves_of_pcg64(seed)
    found: list[int] = []
    while len(found) < count:
        product = next(halves) * n
        if product % 2**32 >= 2**32 % n:
            found.append(product >> 32)
    return found


@pytest.mark.parametrize("n", [1, 3, 100, 1000, 2**15 + 7])
def test_slots_are_those_of_lemires_method(n: int) -> None:
    """Draws with replacement follow the published algorithm."""
    drawn = numbered(n, seed=99).sample(200)["x"]
    assert drawn.tolist() == numbers_by_lemires_method(n, 200, seed=99)


@given(st.integers(1, 2**32 - 1) | st.integers(2**31, 2**31 + 99), st.integers(0, 70))
def test_numbers_are_those_of_lemires_method_where_many_are_rejected(n: int, count: int) -> None:
    """Just above half of all 32-bit numbers every other one is rejected."""
    drawn = choose(count, n, np.random.Generator(np.random.PCG64(5)))
    assert drawn.tolist() == numbers_by_lemires_method(n, count, seed=5)


@given(st.integers(2**32, 2**62), st.integers(0, 70))
def test_numbers_of_more_bits_are_masked(n: int, count: int) -> None:
    """Whole words, of which the bits above those of ``n - 1`` are taken away."""
    bits = np.random.PCG64(5)
    found: list[int] = []
    while len(found) < count:
        number = int(bits.random_raw()) & (2 ** (n - 1).bit_length() - 1)
        if number < n:
            found.append(number)
    assert choose(count, n, np.random.Generator(np.random.PCG64(5))).tolist() == found


# ---- batches -----------------------------------------------------------------------------


def test_batch_is_a_dict_of_arrays_in_declared_order() -> None:
    """Keys come in declared order, and each array has the shape (batch, *shape)."""
    rb = ReplayBuffer(4, {"b": {"shape": 2}, "a": {"shape": ()}, "c": {}, "0": {"shape": (0, 3)}})
    rb.add(b=[1, 2], a=3, c=4, **{"0": np.zeros((0, 3))})
    for n in (0, 1, 5):
        batch = rb.sample(n)
        assert list(batch) == ["b", "a", "c", "0"]
        assert [value.shape for value in batch.values()] == [(n, 2), (n,), (n, 1), (n, 0, 3)]
        assert all(value.flags.c_contiguous and value.flags.aligned for value in batch.values())


@pytest.mark.parametrize("size", [1, 5, 20_000])
def test_batches_survive_whatever_comes_later(size: int) -> None:
    """A batch is not changed by later adds, samples, clears or the buffer's death."""
    rb = ReplayBuffer(10, {"x": {"shape": size, "dtype": "f8"}}, seed=1)
    rb.add(x=np.arange(10.0)[:, None] * np.ones(size))
    batch = rb.sample(16)["x"]
    kept = batch.copy()
    others = []
    for i in range(5):
        rb.add(x=np.full((10, size), -1.0 - i))
        others.append(rb.sample(16)["x"])
    rb.clear()
    del rb
    assert_same(kept, batch, "the first batch")
    for i, other in enumerate(others):
        assert (other == -1.0 - i).all()


def test_batches_own_their_memory_and_can_be_written() -> None:
    """Writing into a batch changes neither the buffer nor another batch."""
    rb = ReplayBuffer(3, {"x": {"shape": 30_000, "dtype": "u1"}}, seed=1)
    rb.add(x=np.ones((3, 30_000)))
    a, b = rb.sample(4)["x"], rb.sample(4)["x"]
    a[...] = 9
    everything = rb.get_all_transitions()["x"]
    everything[...] = 8
    row = rb[0]["x"]
    row[...] = 7
    assert (b == 1).all()
    assert (rb.sample(5)["x"] == 1).all()


def test_out_is_filled_and_returned() -> None:
    """``out=`` gets the rows that a fresh batch would have held, in the same arrays."""
    a, b = (
        ReplayBuffer(50, {"x": {"shape": 3}, "y": {"shape": (), "dtype": "i8"}}, seed=6)
        for _ in range(2)
    )
    for rb in (a, b):
        rb.add(x=np.arange(150).reshape(50, 3), y=np.arange(50))
    out = {"y": np.zeros(9, "i8"), "x": np.zeros((9, 3), "f4")}
    arrays = dict(out)
    for replace in (True, False):
        result = a.sample(9, replace=replace, out=out)
        fresh = b.sample(9, replace=replace)
        for name in ("x", "y"):
            assert result[name] is arrays[name]
            assert_same(fresh[name], result[name], name)


def test_out_may_be_part_of_a_larger_array() -> None:
    """A C-contiguous part of another array is filled, and nothing beside it."""
    rb = numbered(5, seed=1)
    whole = np.full(20, -1)
    rb.sample(6, out={"x": whole[7:13]})
    assert (whole[:7] == -1).all()
    assert (whole[13:] == -1).all()
    assert (whole[7:13] >= 0).all()


# ---- samplers of one's own ---------------------------------------------------------------


class Fixed(Sampler):
    """Draws the slots that it was given."""

    def __init__(self, slots: Any, extra: dict[str, Any] | None = None) -> None:
        self.slots = slots
        self.extra = extra or {}

    def draw(self, ring: Any, n: int, rng: Any, *, replace: bool = True) -> Any:
        return self.slots, self.extra


def test_a_sampler_decides_the_rows_and_adds_columns() -> None:
    """Slots and extra columns of a sampler of one's own appear in the batch."""
    rb = numbered(10, sampler=Fixed(np.array([9, 0, 0]), {"weights": np.array([1.0, 2.0, 3.0])}))
    batch = rb.sample(3)
    assert list(batch) == ["x", "weights"]
    assert batch["x"].tolist() == [9, 0, 0]
    assert batch["weights"].tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    "slots",
    [
        np.array([0, 10, 1]),
        np.array([0, -1, 1]),
        np.array([0, 5, 1]),
        np.array([0, 2**62, 1]),
        np.array([0.5, 1, 2]),
        np.array(["0", "1", "2"]),
        np.array([[0, 1, 2]]),
        None,
    ],
    ids=str,
)
def test_slots_of_a_bad_sampler_are_refused(slots: Any) -> None:
    """Slots out of range, unwritten or of no integer type are an error."""
    rb = numbered(5, 10, sampler=Fixed(slots))
    with pytest.raises((IndexError, TypeError, ValueError)):
        rb.sample(3)


@pytest.mark.parametrize("count", [0, 1, 2, 4, 9])
@pytest.mark.parametrize("given", [True, False], ids=["out", "fresh"])
def test_a_sampler_must_draw_as_many_slots_as_asked(count: int, given: bool) -> None:
    """More or fewer slots than rows are refused, and nothing is written beside ``out``."""
    rb = numbered(5, sampler=Fixed(np.zeros(count, np.intp)))
    whole = np.full(30, -1)  # room, so that writing too far would be seen and not crash
    with pytest.raises((TypeError, ValueError, IndexError)):
        rb.sample(3, out={"x": whole[10:13]} if given else None)
    assert (whole == -1).all()


def test_the_default_sampler_is_uniform() -> None:
    """A buffer without a sampler draws with ``Uniform``."""
    assert isinstance(numbered(3).sampler, Uniform)
