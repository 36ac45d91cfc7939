"""Which rows are drawn, how often, in which arrays; and the other ways to read a buffer."""

from __future__ import annotations

import copy
import itertools
import pickle
from typing import Any

import numpy as np
import pytest
from strategies import Array, assert_same

from cpprb_like import NotEnoughDataError, ReplayBuffer
from cpprb_like.samplers import LegacyUniform, Uniform

BIT_GENERATORS = [np.random.PCG64, np.random.PCG64DXSM, np.random.MT19937, np.random.Philox, np.random.SFC64]


def numbered(n: int, capacity: int | None = None, **options: Any) -> ReplayBuffer:
    """A buffer to which the rows 0 to n - 1 were added."""
    rb = ReplayBuffer(capacity or n, {"x": {"shape": (), "dtype": "i8"}}, **options)
    rb.add(x=np.arange(n))
    return rb


def chi_square_limit(freedom: int) -> float:
    """What chi-square exceeds once in a million times (Wilson and Hilferty's approximation)."""
    spread = 2 / (9 * freedom)
    return float(freedom * (1 - spread + 4.75 * spread**0.5) ** 3)


def chi_square(counts: Array, expected: float) -> float:
    return float(((counts - expected) ** 2 / expected).sum())


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


@pytest.mark.parametrize(("n", "batch"), [(1, 1), (5, 5), (5, 3), (40, 13), (1000, 1000), (1000, 10), (300, 299)])
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
        # The rows of one batch exclude each other, which makes counts vary less by (n - batch) / (n - 1).
        statistic = chi_square(counts, rounds * batch / n) * (n - 1) / (n - batch)
        assert statistic < chi_square_limit(n - 1)


@pytest.mark.parametrize("capacity", [10, 64])
def test_absent_rows_are_never_drawn(capacity: int) -> None:
    """Only rows that hold a step are drawn, each equally often, however few they are."""
    rb = ReplayBuffer(capacity, {"x": {"shape": (), "dtype": "i8"}}, n_envs=2, seed=9)
    for i in range(capacity):
        rb.add_where([i % 3 == 0, i % 2 == 0], x=[2 * i, 2 * i + 1])
    alive = [x for i in range(capacity) for x, there in [(2 * i, i % 3 == 0), (2 * i + 1, i % 2 == 0)] if there]
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
@pytest.mark.parametrize("how", [copy.deepcopy, lambda rb: pickle.loads(pickle.dumps(rb))], ids=["copy", "pickle"])
def test_copies_continue_with_the_same_batches(bit_generator: Any, how: Any) -> None:
    """After copying or pickling, also between two halves of a 64-bit number, both draw the same, apart."""
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
    """Without ``seed`` the generator is seeded from NumPy's global state, so ``np.random.seed`` reproduces."""
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
    list(rb.batches(10))
    after = np.random.get_state(legacy=False)
    assert repr(before) == repr(after)


def test_legacy_sampler_draws_what_one_call_of_randint_draws() -> None:
    """``LegacyUniform`` takes one ``np.random.randint(0, stored, n)`` from the global state, as cpprb does."""
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


def halves_of_pcg64(seed: int) -> Any:
    """The 32-bit numbers of PCG64: the low half of each 64-bit number, then the high one."""
    bits = np.random.PCG64(seed)
    while True:
        word = int(bits.random_raw())
        yield word & 0xFFFFFFFF
        yield word >> 32


@pytest.mark.parametrize("n", [1, 3, 100, 1000, 2**15 + 7])
def test_slots_are_those_of_lemires_method(n: int) -> None:
    """Draws with replacement follow the published algorithm, computed here with Python's integers."""
    halves = halves_of_pcg64(99)
    expected = []
    while len(expected) < 200:
        product = next(halves) * n
        if product % 2**32 >= 2**32 % n:
            expected.append(product >> 32)
    assert numbered(n, seed=99).sample(200)["x"].tolist() == expected


# ---- batches -----------------------------------------------------------------------------


def test_batch_is_a_dict_of_arrays_in_declared_order() -> None:
    """Keys come in declared order; shapes are (batch, *shape), with (batch, 1) for shape 1 and (batch,) for ()."""
    rb = ReplayBuffer(4, {"b": {"shape": 2}, "a": {"shape": ()}, "c": {}, "0": {"shape": (0, 3)}})
    rb.add(b=[1, 2], a=3, c=4, **{"0": np.zeros((0, 3))})
    for n in (0, 1, 5):
        batch = rb.sample(n)
        assert list(batch) == ["b", "a", "c", "0"]
        assert [value.shape for value in batch.values()] == [(n, 2), (n,), (n, 1), (n, 0, 3)]
        assert all(value.flags.c_contiguous and value.flags.aligned for value in batch.values())


@pytest.mark.parametrize("size", [1, 5, 20_000])
def test_batches_survive_whatever_comes_later(size: int) -> None:
    """A batch, small or large, is not changed by later adds, samples, clears or the buffer's death."""
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
    """``out=`` gets the rows that a fresh batch would have held, and comes back with the same arrays."""
    a, b = (ReplayBuffer(50, {"x": {"shape": 3}, "y": {"shape": (), "dtype": "i8"}}, seed=6) for _ in range(2))
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


class Fixed:
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
    """Slots out of range, unwritten or of no integer type are an error and never a read outside the rows."""
    rb = numbered(5, 10, sampler=Fixed(slots))
    with pytest.raises((IndexError, TypeError, ValueError)):
        rb.sample(3)


def test_the_default_sampler_is_uniform() -> None:
    """A buffer without a sampler draws with ``Uniform``."""
    assert isinstance(numbered(3).sampler, Uniform)


# ---- indexing and iteration --------------------------------------------------------------


def test_len_counts_the_rows_that_can_be_drawn() -> None:
    """``len`` grows to the capacity and stays there; ``clear`` makes it zero; a buffer is true, also when empty."""
    rb = ReplayBuffer(3, {"x": {"shape": ()}})
    assert rb
    for i in range(5):
        assert len(rb) == min(i, 3)
        rb.add(x=i)
    rb.clear()
    assert len(rb) == 0
    assert rb


def test_indexing_by_slot() -> None:
    """An int gives one row; slices, lists, arrays and masks give rows; negative slots count from the end."""
    rb = numbered(8, 5)  # slots hold 5 6 7 3 4
    slots = [5, 6, 7, 3, 4]
    for i in (*range(-5, 5), np.int64(2), np.uint8(3)):
        row = rb[i]
        assert list(row) == ["x"]
        assert np.shape(row["x"]) == ()
        assert row["x"] == slots[i]
    for index in (slice(None), slice(1, 4), slice(None, None, -2), slice(-2, 100), slice(3, 1)):
        assert rb[index]["x"].tolist() == slots[index]
    assert rb[[4, 0, -1]]["x"].tolist() == [4, 5, 4]
    assert rb[np.array([1, 1], "u1")]["x"].tolist() == [6, 6]
    assert rb[np.array([True, False, True, False, False])]["x"].tolist() == [5, 7]
    assert rb[[]]["x"].shape == (0,)


def test_iteration_gives_the_rows_in_slot_order() -> None:
    """Iterating gives each row once, as a dict without a batch axis."""
    rb = ReplayBuffer(5, {"x": {"shape": 2}, "y": {"shape": (), "dtype": "i4"}})
    rb.add(x=np.arange(14).reshape(7, 2), y=np.arange(7))
    rows = list(rb)
    assert [row["y"] for row in rows] == [5, 6, 2, 3, 4]
    assert [row["x"].tolist() for row in rows] == [[2 * y, 2 * y + 1] for y in (5, 6, 2, 3, 4)]


@pytest.mark.parametrize("n", [0, 1, 9, 10, 11])
@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("drop_last", [True, False])
def test_batches_visit_every_row_once(n: int, shuffle: bool, drop_last: bool) -> None:
    """One pass over ``batches`` holds every row exactly once; ``drop_last`` leaves a short last batch out."""
    rb = ReplayBuffer(20, {"x": {"shape": (), "dtype": "i8"}}, seed=4)
    rb.add(x=np.arange(n))
    batches = [batch["x"].tolist() for batch in rb.batches(5, shuffle=shuffle, drop_last=drop_last)]
    kept = n // 5 * 5 if drop_last else n
    assert [len(batch) for batch in batches] == [5] * (kept // 5) + [kept % 5] * (kept % 5 > 0)
    seen = [x for batch in batches for x in batch]
    assert len(set(seen)) == len(seen)
    if not shuffle:
        assert seen == list(range(kept))
    elif n >= 9 and not drop_last:
        assert sorted(seen) == list(range(n))
        assert seen != list(range(n))


def test_all_transitions_shuffled() -> None:
    """``shuffle=True`` gives the same rows in another order, each order equally likely, fields in step."""
    rb = ReplayBuffer(4, {"x": {"shape": (), "dtype": "i8"}, "y": {"dtype": "f4"}}, seed=8)
    rb.add(x=np.arange(4), y=np.arange(4))
    orders = {order: i for i, order in enumerate(itertools.permutations(range(4)))}
    counts = np.zeros(24)
    for _ in range(2400):
        rows = rb.get_all_transitions(shuffle=True)
        assert rows["y"][:, 0].tolist() == rows["x"].tolist()
        counts[orders[tuple(rows["x"].tolist())]] += 1
    assert chi_square(counts, 100) < chi_square_limit(23)
    assert rb.get_all_transitions()["x"].tolist() == [0, 1, 2, 3]


def test_reading_skips_absent_rows() -> None:
    """Iteration, batches, masks and ``get_all_transitions`` leave absent rows out."""
    rb = ReplayBuffer(6, {"x": {"shape": (), "dtype": "i8"}}, n_envs=2)
    rb.add_where([True, False], x=[0, 1])
    rb.add_where([False, True], x=[2, 3])
    rb.add(x=[4, 5])
    assert rb.get_all_transitions()["x"].tolist() == [0, 3, 4, 5]
    assert [int(row["x"]) for row in rb] == [0, 3, 4, 5]
    assert [b["x"].tolist() for b in rb.batches(3, shuffle=False)] == [[0, 3, 4], [5]]
    assert len(rb) == 4


def test_repr_shows_each_field_with_its_bytes() -> None:
    """``repr`` names capacity and rows, and for each field the dtype, shape, bytes a step and in all."""
    rb = ReplayBuffer(1000, {"obs": {"shape": (84, 84), "dtype": "u1"}, "act": {"shape": (), "dtype": "i8"}})
    rb.add(obs=np.zeros((84, 84)), act=0)
    text = repr(rb)
    for word in ("ReplayBuffer", "obs", "uint8", "(84, 84)", "7056", "act", "int64", "1000"):
        assert word in text.replace(",", "").replace("(84 84)", "(84, 84)"), word
    assert len(text.splitlines()) >= 3
