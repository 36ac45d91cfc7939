"""Faults that reviews and attacks found, each with its cause."""

from __future__ import annotations

import copy
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import refused

from cpprb_like import NotEnoughDataError, ReplayBuffer
from cpprb_like._files import arenas
from cpprb_like._machine import machine_memory
from cpprb_like._rows.gather import take
from cpprb_like.samplers import Sampler, Uniform
from cpprb_like.typing import FieldSpec
from cpprb_like.views import Layer, Sequences

X: dict[str, FieldSpec] = {"x": {"shape": (), "dtype": "i8"}}


def test_strings_of_any_length_are_refused() -> None:
    """NumPy's StringDType keeps its text beside the array, where exchanging bytes corrupts it."""
    dtype = getattr(np.dtypes, "StringDType", None)
    if dtype is None:
        pytest.skip("NumPy before 2.0 has no StringDType")
    with pytest.raises(TypeError, match="'a'"):
        ReplayBuffer(5, {"a": {"dtype": dtype()}})


def test_a_name_of_odd_equality_is_no_field_twice() -> None:
    """Two keywords that spell the same name left another field without a value."""

    class Odd(str):
        __slots__ = ()

        def __hash__(self) -> int:
            return 1

        def __eq__(self, other: object) -> bool:
            return self is other

    rb = ReplayBuffer(5, {"a": {}, "b": {}})
    rb.add(a=0, b=0)
    with refused(rb, TypeError, "more than once", "'a'"):
        rb.add(**{"a": 1.0, Odd("a"): 2.0})


def test_initialising_a_buffer_inside_its_own_add() -> None:
    """The call went on with columns of a ring that was gone."""

    class Evil:
        def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
            rb.__init__(10, {"z": {}})  # type: ignore[misc]
            return np.zeros(3)

    rb = ReplayBuffer(5, {"a": {"shape": 3}, "b": {}, "c": {}, "d": {"dtype": "U3"}})
    with pytest.raises(RuntimeError, match="anew"):
        rb.add(a=Evil(), b=[1], c=1, d="x")
    rb.add(z=1)
    assert len(rb) == 1


@pytest.mark.parametrize("layers", [[], [Sequences(2)]], ids=["buffer", "view"])
def test_initialising_a_buffer_inside_an_epoch(layers: list[Layer]) -> None:
    """The epoch went on with slots of a ring that was gone: an ``IndexError`` without a reason."""
    rb = ReplayBuffer(20, X, seed=0)
    rb.add(x=np.arange(20))
    epoch = (rb.view(*layers) if layers else rb).epoch(5)
    next(epoch)
    rb.__init__(3, X)  # type: ignore[misc]
    rb.add(x=1)
    with pytest.raises(RuntimeError, match="made anew"):
        next(epoch)


@pytest.mark.parametrize(
    ("word", "value"), [(0, -(10**12)), (0, 3), (1, 2), (3, 99), (3, -1)], ids=str
)
def test_a_damaged_file_is_not_opened(tmp_path: Path, word: int, value: int) -> None:
    """Sizes in the header of a file were believed, and rows outside of it written."""
    options: dict[str, Any] = {"mmap_prefix": tmp_path / "replay", "n_envs": 2}
    rb = ReplayBuffer(6, X, **options)
    rb.add(x=[1, 2])
    del rb
    header = np.memmap(tmp_path / "replay.dat", np.int64, "r+", offset=64, shape=(5,))
    header[word] = value
    header.flush()
    del header
    with pytest.raises(ValueError, match="damaged"):
        ReplayBuffer(6, X, mmap_mode="r+", **options)


def test_streams_and_arrays_of_the_ring_are_checked() -> None:
    """Samplers get the ring: no call of it may read or write beside the memory."""
    rb = ReplayBuffer(4, X)
    rb.add(x=[1, 2])
    ring = rb.ring
    for stream in (-1, 1, 10**9):
        with pytest.raises(IndexError, match="stream"):
            ring.episode_len(stream)
    slots = np.zeros(2, np.intp)
    for arrays in (
        [np.zeros(2, "i4")],
        [np.zeros(3, "i8")],
        [np.zeros((2, 2), "i8")[:, 0]],
        [],
        [1],
    ):
        with pytest.raises(ValueError, match="expected"):
            take(ring, slots, arrays)  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", ["u1", "i1", "u2", "u8", "i4"])
def test_slots_of_any_integer_dtype(dtype: str) -> None:
    """Numbers of slots may exceed what the dtype of an index can hold."""
    rb = ReplayBuffer(1000, X)
    rb.add(x=np.arange(1000))
    index = np.array([3, 7], dtype)
    assert rb[index]["x"].tolist() == [3, 7]
    assert rb._encode_sample(index)["x"].tolist() == [3, 7]
    assert rb[index[0]]["x"] == 3


def test_negative_slots_of_a_small_dtype() -> None:
    """A negative slot of one byte counts from the end of a thousand."""
    rb = ReplayBuffer(1000, X)
    rb.add(x=np.arange(1000))
    assert rb[np.array([-1], np.int8)]["x"].tolist() == [999]


def test_promised_memory_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two buffers, each of which would fit alone, are not promised the same memory."""
    size = 1000
    step: dict[str, FieldSpec] = {"x": {"shape": 10_000, "dtype": "u1"}}
    monkeypatch.setattr(machine_memory, "CHECKED_NBYTES", 0)
    monkeypatch.setattr(arenas, "_arenas", [])  # those of other tests' buffers count as well
    first = ReplayBuffer(size, step)
    monkeypatch.setattr(machine_memory, "available_nbytes", lambda: int(first.nbytes * 1.5))
    with pytest.raises(MemoryError, match="other buffers have yet to fill"):
        ReplayBuffer(size, step)
    first.add(x=np.zeros((size, 10_000), "u1"))  # now what it has is taken, and the system knows
    assert len(ReplayBuffer(size, step)) == 0


def test_every_reading_beside_clears() -> None:
    """A reading that chose its rows before a clear, and looked after it, raised foreign errors."""
    rb = ReplayBuffer(64, {"x": {"shape": 4, "dtype": "i8"}}, n_envs=2, seed=0)
    stop = time.monotonic() + 2
    failures: list[BaseException] = []

    def write() -> None:
        number = 0
        while time.monotonic() < stop:
            number += 1
            rb.add_where([number % 3 > 0, number % 5 > 0], x=[[number] * 4, [-number] * 4])
            if number % 97 == 0:
                rb.clear()

    def read() -> None:
        while time.monotonic() < stop:
            try:
                for batch in (
                    rb[:8], rb.get_all_transitions(shuffle=True), rb.get_all_transitions(),
                    rb.sample(4, replace=False), rb.sample(4),
                ):  # fmt: skip
                    assert (batch["x"] == batch["x"][:, :1]).all()
            except NotEnoughDataError:  # noqa: PERF203 (each reading is judged by itself)
                pass
            except BaseException as error:
                failures.append(error)
                raise

    threads = [threading.Thread(target=write), *(threading.Thread(target=read) for _ in range(3))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_an_epoch_ends_with_a_clear() -> None:
    """Iterating on after a clear says so, and does not name slots that were not asked for."""
    rb = ReplayBuffer(4, X)
    rb.add(x=[1, 2, 3])
    for rows in (rb.epoch(1), iter(rb)):
        next(rows)
        rb.clear()
        with pytest.raises(RuntimeError, match="cleared"):
            next(rows)
        rb.add(x=[1, 2, 3])


def test_a_constructor_that_fails_leaves_no_file(tmp_path: Path) -> None:
    """A wrong argument found late left the file behind, and the next try failed on it."""
    prefix = tmp_path / "replay"
    with pytest.raises(ValueError, match="seed"):
        ReplayBuffer(5, X, seed=-1, mmap_prefix=prefix)
    with pytest.raises((MemoryError, OSError)):
        ReplayBuffer(1e16, X, mmap_prefix=prefix)
    assert list(tmp_path.iterdir()) == []
    ReplayBuffer(5, X, mmap_prefix=prefix).add(x=7)
    with pytest.raises((MemoryError, OSError)):
        ReplayBuffer(1e16, X, mmap_prefix=prefix, mmap_mode="w")
    assert ReplayBuffer(5, X, mmap_prefix=prefix, mmap_mode="r+")[0]["x"] == 7


class Weighing(Sampler):
    """Draws with extra columns of a given kind."""

    def __init__(self, **extra: Any) -> None:
        self.extra = extra

    def draw(self, ring: Any, n: int, rng: Any, *, replace: bool) -> Any:
        """Slots, and the columns."""
        return Uniform().draw(ring, n, rng, replace=replace)[0], self.extra


def test_out_of_a_sampler_with_columns_can_be_used_again() -> None:
    """The columns that a sampler added to ``out`` were unknown fields the next time."""
    rb = ReplayBuffer(4, X, sampler=Weighing(w=np.ones(2)))
    rb.add(x=[1, 2, 3])
    out: dict[str, Any] = {"x": np.zeros(2, "i8")}
    for _ in range(3):
        assert rb.sample(2, out=out)["w"].tolist() == [1, 1]


@pytest.mark.parametrize("extra", [{"x": np.zeros(2)}, {"w": np.zeros(3)}], ids=str)
def test_columns_of_a_sampler_are_checked(extra: dict[str, Any]) -> None:
    """A column under a field's name replaced the field; one of another length went unnoticed."""
    rb = ReplayBuffer(4, X, sampler=Weighing(**extra))
    rb.add(x=[1, 2, 3])
    with pytest.raises(ValueError, match=next(iter(extra))):
        rb.sample(2)


def test_one_array_for_two_fields_of_out() -> None:
    """The second field overwrote the first."""
    rb = ReplayBuffer(4, {"a": {"shape": ()}, "b": {"shape": ()}})
    rb.add(a=[1, 2], b=[3, 4])
    same = np.zeros(4, "f4")
    for out in ({"a": same, "b": same}, {"a": same[:2], "b": same[1:3]}):
        n = len(out["a"])
        with refused(rb, ValueError, "shares memory"):
            rb.sample(n, out=out)
    rb.sample(2, out={"a": same[:2], "b": same[2:]})


@pytest.mark.parametrize(
    ("spec", "value"),
    [
        ({"dtype": "S3"}, b"a\0"),
        ({"dtype": "U3"}, "a\0"),
        ({"dtype": "V4"}, np.void(b"ab")),
        ({"shape": (1, 1, 2)}, [[np.ma.masked_array([1.0, 2.0], [False, True])]]),
        ({"dtype": [("b", "f8", (2,))]}, np.zeros((), [("b", "f8", (1,))])),
        ({"dtype": [("b", "f8", (2,))]}, np.zeros((), [("b", "f8")])),
    ],
    ids=str,
)
def test_values_that_would_be_filled_up_or_cut(spec: FieldSpec, value: Any) -> None:
    """What NumPy pads, drops or broadcasts is not the value that was given."""
    rb = ReplayBuffer(4, {"x": {"shape": (), **spec}})
    with refused(rb, ValueError, "'x'"):
        rb.add(x=value)


@pytest.mark.parametrize("value", [1.9, "1.5", None, {1}], ids=repr)
def test_a_refusal_names_what_came(value: Any) -> None:
    """The message named the array of objects that the value had been put into on the way."""
    rb = ReplayBuffer(4, X)
    with refused(rb, ValueError, f"got {type(value).__name__}"):
        rb.add(x=value)


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: ReplayBuffer(4, X, seed=-1), "seed"),
        (lambda: ReplayBuffer(4, X, seed="a"), "seed"),  # type: ignore[arg-type]
        (lambda: ReplayBuffer(4, {"x": {}}, default_dtype="nonsense"), "default_dtype"),
        (lambda: ReplayBuffer(4, X, sampler=5), "sampler"),  # type: ignore[arg-type]
        (lambda: ReplayBuffer(True, X), "size"),
        (lambda: ReplayBuffer(4, X).on_episode_end("x"), "env"),  # type: ignore[arg-type]
        (lambda: ReplayBuffer(4, X).get_current_episode_len(0.5), "env"),  # type: ignore[arg-type]
        (lambda: ReplayBuffer(4, X).add_where([[1], [1, 2]], x=1), "present"),
    ],
)
def test_arguments_are_named(call: Any, name: str) -> None:
    """An error about an argument names the argument."""
    with pytest.raises((TypeError, ValueError), match=name):
        call()


@pytest.mark.parametrize("index", [True, False, np.True_, (0, 0), (0,)], ids=repr)
def test_keys_that_are_no_slots(index: Any) -> None:
    """A bool is no number of a slot, and a tuple no list of them."""
    rb = ReplayBuffer(4, X)
    rb.add(x=1)
    with pytest.raises(IndexError, match="slots"):
        rb[index]


def test_reversed_is_not_offered() -> None:
    """Python would walk the slots by ``len``, which leaves some out where rows are absent."""
    with pytest.raises(TypeError):
        reversed(ReplayBuffer(4, X))


def test_a_shallow_copy_shares_nothing() -> None:
    """``copy.copy`` shared the generator, and each copy's draws changed the other's."""
    rb = ReplayBuffer(10, X, seed=3)
    rb.add(x=np.arange(10))
    twin, other = copy.copy(rb), copy.copy(rb)
    other.sample(5)
    np.testing.assert_array_equal(rb.sample(20)["x"], twin.sample(20)["x"])


def test_a_file_for_a_dtype_with_gaps(tmp_path: Path) -> None:
    """A structured dtype with fields out of order has no ``descr``, but a file all the same."""
    dtype = np.dtype({"names": ["a", "b"], "formats": ["i4", "i4"], "offsets": [4, 0]})
    env_dict: dict[str, FieldSpec] = {"x": {"shape": (), "dtype": dtype}}
    ReplayBuffer(5, env_dict, mmap_prefix=tmp_path / "replay").add(x=np.array((1, 2), dtype))
    again = ReplayBuffer(5, env_dict, mmap_prefix=tmp_path / "replay", mmap_mode="r+")
    assert again[0]["x"].tolist() == (1, 2)
