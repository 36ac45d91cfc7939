"""The arrays of batches: other libraries take over their memory as it is.

C-contiguous, writeable, and aligned to 64 bytes, whatever is drawn or read; what other libraries
make of them is in ``test_tensors``, and what goes with what in ``views/test_combinations``.
"""

from __future__ import annotations

import gc
import itertools
import sysconfig
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from helpers import check_arrays
from hypothesis import given
from hypothesis import strategies as st
from strategies import Array

from cpprb_like import PrioritizedReplayBuffer, ReplayBuffer
from cpprb_like._machine.aligned import aligned, empty
from cpprb_like.buffers import Mixture
from cpprb_like.samplers import Extra, LaBERmean, Prioritized, Sampler, Slots, Uniform
from cpprb_like.views import FrameStacks, NStep, Sequences

SIZES = [0, 1, 2, 7, 33, 300]
FIELDS: dict[str, Any] = {
    "obs": {
        "shape": (7, 7, 4),
        "dtype": "u1",
    },  # from the pool, in batches of 300 but not of 33 ...
    "frame": {"shape": (3, 3, 2), "dtype": "f4"},
    "act": {"shape": (3,), "dtype": "i2"},
    "rew": {"shape": (), "dtype": "f4"},
    "far": {"shape": (5,), "dtype": ">f8"},
    "label": {"shape": (), "dtype": "U3"},
    "bit": {"shape": (), "dtype": bool},
    "done": {"shape": (), "dtype": "f4"},
    "any": {"shape": (), "dtype": object},
}


def steps(n: int, rng: np.random.Generator) -> dict[str, Any]:
    """Values of n steps."""
    frames = rng.normal(size=(n + 1, 3, 3))
    return {
        "obs": rng.integers(0, 255, (n, 7, 7, 4)),
        "frame": np.stack([frames[:-1], frames[1:]], axis=-1),
        "act": rng.integers(0, 99, (n, 3)),
        "rew": rng.normal(size=n),
        "far": rng.normal(size=(n, 5)),
        "label": ["abc"] * n,
        "bit": rng.integers(0, 2, n),
        "done": rng.random(n) < 0.1,
        "any": [{}] * n,
    }


def filled(kind: type[ReplayBuffer] = ReplayBuffer, **options: Any) -> ReplayBuffer:
    """A buffer that has wrapped."""
    fields = {**FIELDS, "next_obs": FIELDS["obs"]}
    rb = kind(400, fields, seed=0, **options)
    rng = np.random.default_rng(0)
    for _ in range(3):
        values = steps(200, rng)
        rb.add(**values, next_obs=np.roll(values["obs"], -1, axis=0))
    return rb


BUFFERS: dict[str, Callable[[], ReplayBuffer]] = {
    "plain": filled,
    "prioritized": lambda: filled(PrioritizedReplayBuffer),
    "handles": lambda: filled(PrioritizedReplayBuffer, check_for_update=True),
    "probabilities": lambda: filled(
        PrioritizedReplayBuffer, sampler=Prioritized(probabilities=True, weights_dtype="f8")
    ),
    "chained": lambda: filled(next_of="obs", stack_compress="frame"),
    "n-step": lambda: filled(Nstep={"size": 3, "gamma": 0.9, "rew": "rew", "discount": True}),
    "n-step, odd": lambda: filled(Nstep={"size": 3, "gamma": 0.9, "rew": ["rew", "far"]}),
    "n-step, chained": lambda: filled(next_of="obs", Nstep={"size": 3, "gamma": 0.9, "rew": "rew"}),
}
LAYERS: dict[str, tuple[Any, ...]] = {
    "rows": (),
    "n-step": (NStep(2, 0.9, rew="rew"),),
    "sequences": (Sequences(3),),
    "sequences, one value": (Sequences(3, first_only=("act",)),),
    "stacks": (FrameStacks({"act": 3, "bit": 2}),),
    "sequences of stacks": (Sequences(3), FrameStacks({"act": 3})),
}


def can_ask_indexes(rb: ReplayBuffer) -> bool:
    """Whether ``indexes=True`` is a question that the buffer answers."""
    return "weights" not in rb.columns or rb.sampler.check_for_update  # type: ignore[attr-defined]


@pytest.fixture(params=BUFFERS)
def rb(request: pytest.FixtureRequest) -> ReplayBuffer:
    """A buffer of each kind."""
    return BUFFERS[request.param]()


@pytest.mark.parametrize("n", SIZES)
def test_batches_of_a_buffer(rb: ReplayBuffer, n: int) -> None:
    """Drawn with and without what may be asked for, of one size again and again."""
    for _ in range(3):
        check_arrays(rb.sample(n))
        check_arrays(rb.sample(n, indexes=can_ask_indexes(rb)))
        check_arrays(rb.sample(n, replace=False, fields=["rew", "obs"]))


@pytest.mark.parametrize("layers", LAYERS)
def test_batches_of_a_view(rb: ReplayBuffer, layers: str) -> None:
    """Of each set of layers, of every size."""
    view = rb.view(*LAYERS[layers])
    for n in SIZES:
        check_arrays(view.sample(n, indexes=can_ask_indexes(rb)))
    for batch in view.epoch(33):
        check_arrays(batch)


def test_batches_of_a_mixture() -> None:
    """The columns that tell whence rows came are no exception; small batches and large ones."""
    kinds = {"one": filled(PrioritizedReplayBuffer), "two": filled()}
    mixture = Mixture(kinds, {"one": 0.3, "two": 0.7}, seed=0)
    for n in (*SIZES, 20_000):
        check_arrays(mixture.sample(n))


def test_what_is_read(rb: ReplayBuffer) -> None:
    """Whole buffers, epochs, slices, masks, episodes and stacks."""
    check_arrays(rb.get_all_transitions())
    check_arrays(rb.get_all_transitions(shuffle=True, fields="rew"))
    for n in SIZES:
        check_arrays(rb[:n])
        check_arrays(rb[list(range(n))])
        if n:
            for batch in rb.epoch(n):
                check_arrays(batch)
        for name in ("rew", "obs", "frame", "next_obs"):
            check_arrays({name: rb.stack(name, np.zeros((n, 3), int), axis=0)})
    for number in range(3):
        check_arrays(rb.episodes.read(number))
    for batch in rb.episodes.sample(4):
        check_arrays(batch)


class Own(Sampler):
    """A sampler of a user, whose columns lie anywhere."""

    def draw(self, ring: Any, n: int, rng: Any, *, replace: bool) -> tuple[Slots, Extra]:
        """See ``Sampler.draw``."""
        slots, _ = Uniform().draw(ring, n, rng, replace=replace)
        fixed = np.arange(float(n))
        fixed.setflags(write=False)
        swapped = np.arange(n, dtype=np.dtype(np.int32).newbyteorder())
        parts = np.zeros(n, [("x", swapped.dtype, (2,))])
        parts["x"][:, 1] = swapped
        return slots, {
            "reversed": np.arange(n + 1)[:0:-1],
            "fixed": fixed,
            "swapped": swapped,
            "parts": parts,
        }


def test_columns_of_a_sampler_of_ones_own() -> None:
    """They are copied where they would not do, and keep their values."""
    rb = filled(sampler=Own())
    for source in (rb, rb.view(Sequences(3))):
        batch = source.sample(9)
        check_arrays(batch)
        assert batch["reversed"].tolist() == [9, 8, 7, 6, 5, 4, 3, 2, 1]
        assert batch["fixed"].tolist() == list(range(9))
        assert batch["swapped"].tolist() == batch["parts"]["x"][:, 1].tolist() == list(range(9))


def test_a_batch_of_laber() -> None:
    """The batch that is drawn out of a large one."""
    rb = filled()
    laber = LaBERmean(33, 4, seed=0)
    large = rb.sample(132, fields=["rew", "act", "obs"])
    check_arrays(laber(priorities=np.ones(132), **large))


def test_big_endian_fields_are_given_in_the_byte_order_of_this_machine(rb: ReplayBuffer) -> None:
    """So every number of a batch can be handed on, whatever the declared byte order was."""
    batch = rb.sample(9)
    assert batch["far"].dtype == np.float64
    assert (np.from_dlpack(batch["far"]) == batch["far"]).all()


def test_numpy_takes_them_without_a_copy(rb: ReplayBuffer) -> None:
    """By DLPack, each field that it can tell of, at the same address."""
    for n in SIZES:
        for name, values in rb.sample(n).items():
            if values.dtype.kind in "fiub":
                tensor = np.from_dlpack(values)
                assert n == 0 or tensor.ctypes.data == values.ctypes.data, name


# ---- the memory of small arrays -------------------------------------------------------------


@pytest.mark.parametrize("n", [0, 1, 63, 64, 65, 4095, 65535, 65536, 65537])
def test_an_empty_array_is_like_one_of_numpy(n: int) -> None:
    """Aligned, writeable, its own, and it can grow and shrink in place."""
    array = empty((n,), np.dtype(np.uint8))
    check_arrays({"array": array})
    assert array.shape == (n,)
    array[:] = np.arange(n, dtype=np.uint8)
    expected = array.copy()
    if array.flags.owndata:
        for size in (n + 1000, n // 2, 0, n):
            kept = min(size, len(expected))
            array.resize(size, refcheck=False)
            assert array.ctypes.data % 64 == 0
            np.testing.assert_array_equal(array[:kept], expected[:kept])
            assert not array[kept:].any()  # as NumPy says
            expected = array.copy()


@given(data=st.data())
def test_memory_of_arrays_that_are_gone_serves_others(data: st.DataObject) -> None:
    """Whatever is made, resized and dropped, no two arrays share a byte."""
    arrays: list[Array] = []
    for number in range(data.draw(st.integers(1, 60))):
        n = data.draw(st.sampled_from([0, 1, 63, 64, 65, 128, 4032, 4095, 4096, 4097]))
        arrays.append(empty((n,), np.dtype(np.uint8)))
        arrays[-1][:] = number
        what = data.draw(st.sampled_from(["keep", "drop", "resize"]))
        place = data.draw(st.integers(0, len(arrays) - 1))
        if what == "drop":
            del arrays[place]
        elif what == "resize":
            value = arrays[place][:1].tolist() or [0]
            arrays[place].resize(data.draw(st.integers(0, 5000)), refcheck=False)
            arrays[place][:] = value[0]
        spans = sorted((array.ctypes.data, array.nbytes) for array in arrays if array.nbytes)
        for (start, nbytes), (following, _) in itertools.pairwise(spans):
            assert start + nbytes <= following
        assert all(len({*array.tolist()}) <= 1 for array in arrays)


@pytest.mark.skipif(
    bool(sysconfig.get_config_var("Py_GIL_DISABLED")), reason="keeps none without a lock"
)
@pytest.mark.parametrize("n", [1, 64, 4096])
def test_the_next_array_of_a_size_has_the_memory_of_the_last_one(n: int) -> None:
    """Of a few that are gone; more than these are given back."""
    arrays = [empty((n,), np.dtype(np.uint8)) for _ in range(20)]
    gone = {array.ctypes.data for array in arrays}
    arrays.clear()
    again = [empty((n,), np.dtype(np.uint8)) for _ in range(8)]
    assert {array.ctypes.data for array in again} <= gone


def test_shapes_that_cannot_be() -> None:
    """Negative lengths, and more bytes than there are."""
    kind = np.dtype(np.float64)
    with pytest.raises(ValueError, match="negative"):
        empty((2, -1), kind)
    for shape in ((1 << 62, 1 << 62), (1 << 60,), (1 << 40, 1 << 15)):
        with pytest.raises((ValueError, MemoryError)):
            empty(shape, kind)
    with pytest.raises(ValueError):
        empty((1,) * 70, kind)


def test_an_aligned_array_is_not_copied() -> None:
    """Nor is what is no array; anything else is, once, with its values."""
    array = empty((3, 4), np.dtype(np.float32))
    assert aligned(array) is array
    values: Any = [1, 2]
    assert aligned(values) is values
    array[:] = 1.5
    for other in (array[:, 1:], array.T, array[1:]):
        copy = aligned(other)
        check_arrays({"copy": copy})
        np.testing.assert_array_equal(copy, other)


def test_memory_is_traced_and_given_back() -> None:
    """``tracemalloc`` sees it come and go, as it does that of NumPy."""
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        arrays: list[Array] = [empty((1000,), np.dtype(np.float32)) for _ in range(100)]
        assert tracemalloc.get_traced_memory()[0] - before >= 400_000
        del arrays
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] - before < 50_000
    finally:
        tracemalloc.stop()
