"""Reading with bad arguments: a clear error, and the buffer as before, its generator included."""

from __future__ import annotations

import sys
import threading
from typing import Any

import numpy as np
import pytest
from bad_steps import SCHEMA, step
from helpers import refused
from views import sample_sequences

from cpprb_like import NotEnoughDataError, ReplayBuffer
from cpprb_like._rows.gather import take
from cpprb_like.views import NStep

Fields = dict[str, Any]


@pytest.fixture
def rb() -> ReplayBuffer:
    """A buffer that has wrapped and holds an open episode."""
    buffer = ReplayBuffer(7, SCHEMA, seed=1)
    for i in range(10):
        buffer.add(**step(act=i, rew=i, terminated=i == 7))
    return buffer


@pytest.mark.parametrize("emptied", [False, True])
def test_sampling_an_empty_buffer(emptied: bool) -> None:
    """An empty or cleared buffer raises what older systems raise."""
    rb = ReplayBuffer(7, SCHEMA, seed=1)
    if emptied:
        rb.add(**step())
        rb.clear()
    for error in (NotEnoughDataError, ValueError, RuntimeError):
        with refused(rb, error, "empty"):
            rb.sample(1)
    with refused(rb, NotEnoughDataError):
        rb.sample(1, replace=False)


def test_sampling_only_absent_rows() -> None:
    """A buffer whose rows are all absent is empty."""
    rb = ReplayBuffer(6, {"x": {}}, n_envs=2)
    rb.add_where([False, False], x=[1, 2])
    with refused(rb, NotEnoughDataError):
        rb.sample(1)


@pytest.mark.parametrize("replace", [True, False])
@pytest.mark.parametrize(
    ("batch_size", "error"),
    [
        (-1, ValueError),
        (-(2**40), ValueError),
        (float("inf"), TypeError),
        (2.5, TypeError),
        ("2", TypeError),
        (None, TypeError),
    ],
)
def test_bad_batch_size(
    rb: ReplayBuffer, batch_size: Any, error: type[Exception], replace: bool
) -> None:
    """A batch size is an int of zero or more; the error shows what came."""
    with refused(rb, error, "batch_size", str(batch_size)):
        rb.sample(batch_size, replace=replace)


@pytest.mark.parametrize("batch_size", [2**62, 2**70, 10**14])
def test_huge_batch_size(rb: ReplayBuffer, batch_size: int) -> None:
    """A batch that no machine can hold is refused and draws nothing."""
    with refused(rb, (MemoryError, ValueError, OverflowError)):
        rb.sample(batch_size)


def test_more_than_there_is_without_replacement(rb: ReplayBuffer) -> None:
    """Eight different rows of seven cannot be drawn; both numbers are shown."""
    with refused(rb, NotEnoughDataError, "8", "7"):
        rb.sample(8, replace=False)


def _out(rb: ReplayBuffer, **changes: Any) -> Fields:
    return {
        name: np.zeros_like(value) for name, value in rb._encode_sample([0] * 4).items()
    } | changes


BAD_OUT: list[tuple[Any, tuple[str, ...]]] = [
    (np.zeros((4, 3, 2), "f4"), ("(4, 2, 3)", "(4, 3, 2)")),
    (np.zeros((3, 2, 3), "f4"), ("(4, 2, 3)", "(3, 2, 3)")),
    (np.zeros((5, 2, 3), "f4"), ("(4, 2, 3)", "(5, 2, 3)")),
    (np.zeros((2, 3), "f4"), ("(4, 2, 3)", "(2, 3)")),
    (np.zeros((4, 2, 3), "f8"), ("float32", "float64")),
    (np.zeros((4, 2, 3), "i4"), ("float32", "int32")),
    (np.zeros((4, 2, 3), ">f4"), ("float32", ">f4")),
    (np.zeros((4, 2, 3), "f4", order="F"), ("contiguous",)),
    (np.zeros((8, 2, 3), "f4")[::2], ("contiguous",)),
    (np.zeros((4, 2, 3), "f4").tolist(), ("list",)),
    (None, ("None",)),
]


@pytest.mark.parametrize(("value", "words"), BAD_OUT, ids=lambda value: str(value)[:20])
def test_out_array_that_does_not_fit(rb: ReplayBuffer, value: Any, words: tuple[str, ...]) -> None:
    """An array of the wrong shape, dtype, byte order or layout is refused, none touched."""
    out = _out(rb, obs=value)
    with refused(rb, (TypeError, ValueError), "'obs'", *words):
        rb.sample(4, out=out)
    assert not out["act"].any()


def test_read_only_out_array(rb: ReplayBuffer) -> None:
    """A read-only array is refused and stays as it is."""
    out = _out(rb)
    out["image"].flags.writeable = False
    with refused(rb, ValueError, "'image'", "read-only"):
        rb.sample(4, out=out)
    assert not out["image"].any()
    assert not out["obs"].any()


def test_unaligned_out_array(rb: ReplayBuffer) -> None:
    """An array at an odd address is filled like any other."""
    raw = np.zeros(4 * 6 * 4 + 1, np.uint8)
    odd = raw[1:].view("f4").reshape(4, 2, 3)
    rb.sample(4, out=_out(rb, obs=odd))
    assert (odd == 1).all()


def test_out_without_a_field(rb: ReplayBuffer) -> None:
    """``out`` has all of the buffer's fields; what else is in it is left alone."""
    out = _out(rb)
    del out["obs"]
    with refused(rb, TypeError, "obs"):
        rb.sample(4, out=out)
    stranger = np.zeros(4)
    assert rb.sample(4, out=_out(rb, stranger=stranger))["stranger"] is stranger
    assert (stranger == 0).all()


@pytest.mark.parametrize("out", [[], "out", 5, (np.zeros(4),)], ids=repr)
def test_out_that_is_no_dict(rb: ReplayBuffer, out: Any) -> None:
    """``out`` is a dict of arrays."""
    with refused(rb, (TypeError, ValueError), "out"):
        rb.sample(4, out=out)


SLOTS: list[Any] = [[7], [-8], [0, 100], np.array([2**40]), np.array([2**63], "u8"), [2**70]]


@pytest.mark.parametrize("slots", SLOTS, ids=repr)
def test_slots_out_of_range(rb: ReplayBuffer, slots: Any) -> None:
    """A slot that holds no row is an IndexError."""
    with refused(rb, IndexError):
        rb._encode_sample(slots)
    with refused(rb, IndexError):
        rb[slots]


@pytest.mark.parametrize(
    "slots", [[np.nan], [0.5], ["0"], [None], "0", None, [[0, 1]], {0: 1}, object()], ids=repr
)
def test_slots_that_are_no_integers(rb: ReplayBuffer, slots: Any) -> None:
    """Slots are integers along one axis."""
    with refused(rb, (TypeError, IndexError, ValueError)):
        rb._encode_sample(slots)


@pytest.mark.parametrize("index", [7, -8, 100, 2**70])
def test_row_out_of_range(rb: ReplayBuffer, index: int) -> None:
    """A row that is not there is an IndexError with the number."""
    with refused(rb, IndexError, str(index)):
        rb[index]


@pytest.mark.parametrize("index", [1.5, "1", None, object()], ids=repr)
def test_row_that_is_no_integer(rb: ReplayBuffer, index: Any) -> None:
    """What is no integer, slice, array of integers or mask does not index."""
    with refused(rb, (TypeError, IndexError)):
        rb[index]


def test_mask_of_the_wrong_length(rb: ReplayBuffer) -> None:
    """A mask has one value for each slot in use."""
    with refused(rb, IndexError):
        rb[np.ones(5, bool)]


@pytest.mark.parametrize("env", [1, -1, 5, 2**40])
@pytest.mark.parametrize("method", ["on_episode_end", "get_current_episode_len"])
def test_environment_out_of_range(rb: ReplayBuffer, env: int, method: str) -> None:
    """A stream that the buffer does not have is an IndexError with the number."""
    with refused(rb, (IndexError, ValueError), str(env)):
        getattr(rb, method)(env)


@pytest.mark.parametrize("env", [0.0, "0"])
@pytest.mark.parametrize("method", ["on_episode_end", "get_current_episode_len"])
def test_environment_that_is_no_integer(rb: ReplayBuffer, env: Any, method: str) -> None:
    """A stream is named by an int."""
    with refused(rb, TypeError):
        getattr(rb, method)(env)


@pytest.mark.parametrize("batch_size", [0, -1, 2.5, None])
def test_bad_size_of_batches(rb: ReplayBuffer, batch_size: Any) -> None:
    """Batches hold at least one row; the error comes with the call and not later."""
    with refused(rb, (TypeError, ValueError), "batch_size"):
        rb.epoch(batch_size)


# ---------------------------------------------------------------------- steps of a draw


def several_steps() -> ReplayBuffer:
    """Episodes of ten steps with rewards of 1, read as transitions of up to 5 steps."""
    fields: dict[str, Any] = {"rew": {"shape": ()}, "done": {"shape": (), "dtype": bool}}
    rb = ReplayBuffer(100, fields, Nstep={"size": 5, "gamma": 1.0, "rew": "rew"}, seed=0)
    rb.add(rew=np.ones(60), done=np.arange(60) % 10 == 9)
    return rb


@pytest.mark.parametrize(
    "nstep",
    [np.array(2), np.int64(2), np.uint8(2), (np.array(2), 2), (2, np.int16(2)), (np.int8(2),) * 2],
    ids=repr,
)
def test_whole_numbers_of_any_kind_are_steps(nstep: Any) -> None:
    """An array of no dimension was read as one number for each row, from memory behind it."""
    rb, same = several_steps(), several_steps()
    batch = rb.view(NStep(nstep)).sample(500)
    np.testing.assert_array_equal(batch["rew"], same.view(NStep(2)).sample(500)["rew"])
    assert set(batch["rew"].tolist()) == {1.0, 2.0}


@pytest.mark.parametrize(
    "nstep",
    [2.0, np.float64(2), "2", True, np.True_, [2], [1, 2], np.array([2]), np.array([[2]]),
     np.array([1, 2]), np.full(8, 2), (1, 2.0), (None, 2), (2, None), np.array(2.0), 2 + 0j],
    ids=repr,
)  # fmt: skip
def test_what_is_no_number_of_steps(nstep: Any) -> None:
    """Everything but whole numbers is refused before any row is drawn."""
    rb = several_steps()
    before = repr(rb.rng.bit_generator.state)
    with pytest.raises(TypeError, match="size: expected an integer, got"):
        rb.view(NStep(nstep))
    assert repr(rb.rng.bit_generator.state) == before


@pytest.mark.parametrize(
    "nstep", [0, -1, 105, np.array(106), (0, 2), (3, 2), (1, 200), (), (1,), (1, 2, 3), 2**70]
)
def test_numbers_of_steps_that_there_are_not(nstep: Any) -> None:
    """Numbers below 1 or above the capacity are refused, and tuples that are no pairs."""
    with pytest.raises(ValueError, match=r"size.*: expected|size.* do not fit"):
        several_steps().view(NStep(nstep))


@pytest.mark.parametrize("gamma", [np.array([0.5]), np.array([0.5, 1.0]), [0.5], "1", True])
def test_what_is_no_factor(gamma: Any) -> None:
    """The powers of a factor are those of one number."""
    with pytest.raises(TypeError, match="gamma: expected a number, got"):
        NStep(2, gamma)


@pytest.mark.parametrize(
    ("slots", "error"),
    [
        ([0, 1], TypeError),
        (None, TypeError),
        (np.zeros((2, 2), np.intp), TypeError),
        (np.array(0), TypeError),
        (np.zeros(3, np.int32), TypeError),
        (np.zeros(6, np.intp)[::2], TypeError),
        (np.zeros(6, ">i8"), TypeError),
    ],
)
def test_slots_that_samplers_and_readers_pass_on(slots: Any, error: type[Exception]) -> None:
    """Compiled functions take dense arrays of intp in one dimension, and say so otherwise."""
    rb = several_steps()
    ring, moment = rb.ring, rb.ring.now()
    for call in (
        lambda: ring.holds(moment, slots),
        lambda: ring.flags_at(slots),
        lambda: ring.absent_at(slots),
        lambda: rb._rows.take(slots),
        lambda: ring.windows(slots, 1, 2),
        lambda: take(ring, slots),
    ):
        with pytest.raises(error):
            call()
    two = np.zeros(2, np.intp)
    for steps in (np.ones(3, np.intp), np.array([1, 6]), np.array([0, 1])):
        with pytest.raises(ValueError, match="steps"):
            rb._rows.take(two, None, steps)
    wrong: Any
    for wrong in (np.ones(2, np.int32), np.ones((2, 2), np.intp), np.array(2)):
        with pytest.raises(TypeError, match="steps"):
            rb._rows.take(two, None, wrong)


# ---------------------------------------------------------------------- generators


@pytest.mark.parametrize("shared", [False, True])
def test_no_batch_comes_twice_beside_refused_draws(shared: bool) -> None:
    """A refused draw of sequences set the generator back while other threads drew from it."""
    rng = np.random.default_rng(0)
    fields: dict[str, Any] = {"x": {"shape": (), "dtype": "i8"}, "done": {"shape": ()}}
    rb = ReplayBuffer(10_000, fields, seed=rng)
    rb.add(x=np.arange(10_000), done=np.arange(10_000) % 3 == 2)
    other = ReplayBuffer(10, fields, seed=rng) if shared else rb
    if shared:
        other.add(x=1, done=0)
    stop = threading.Event()
    refused = 0

    def refuse() -> None:
        nonlocal refused
        while not stop.is_set():
            with pytest.raises(NotEnoughDataError):
                sample_sequences(other, 1, 4, burn_in=3)
            refused += 1

    thread = threading.Thread(target=refuse)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    thread.start()
    try:
        seen = {tuple(rb.sample(8)["x"].tolist()) for _ in range(3000)}
    finally:
        stop.set()
        thread.join()
        sys.setswitchinterval(interval)
    assert len(seen) == 3000
    assert refused
