"""``ReplayMemory``: the newest objects, with every reference counted, and NumPy's draws."""

from __future__ import annotations

import collections
import contextlib
import copy
import gc
import pickle
import sys
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from threads import run_together

from cpprb_like import NotEnoughDataError, ReplayMemory

numpy_random: Any = np.random  # its type stubs leave names out


class Thing:
    """An object that can be referred to weakly, and does something when it dies."""

    def __init__(self, at_end: Any = None) -> None:
        self.at_end = at_end

    def __del__(self) -> None:
        if self.at_end is not None:
            self.at_end()


def state_words() -> list[int]:
    """NumPy's global state."""
    state: Any = np.random.get_state()
    words: list[int] = state[1].tolist()
    return words


class Sub(ReplayMemory):
    """A memory of somebody else's class, with a constructor of its own."""

    def __init__(self, label: str) -> None:
        super().__init__(3, seed=1)
        self.label = label


@pytest.fixture
def global_state() -> Iterator[None]:
    """NumPy's global state is as before afterwards, its bit generator included."""
    bits, state = numpy_random.get_bit_generator(), np.random.get_state()
    yield
    numpy_random.set_bit_generator(bits)
    np.random.set_state(state)


def filled(max_size: int, objects: int, **options: Any) -> ReplayMemory:
    """A memory to which numbers from 0 on were appended, each as a tuple."""
    memory = ReplayMemory(max_size, **options)
    for number in range(objects):
        memory.append((number,))
    return memory


# ---- contents ----------------------------------------------------------------------------


@given(
    st.integers(1, 9),
    st.lists(st.one_of(st.integers(1, 12), st.just("clear")), max_size=8),
    st.integers(0, 2**32 - 1),
)
def test_it_holds_what_a_deque_holds(max_size: int, history: list[Any], seed: int) -> None:
    """Over random histories: length, order, places, indexes and slices."""
    rng = np.random.default_rng(seed)
    memory, twin = ReplayMemory(max_size), collections.deque[Any](maxlen=max_size)
    buffer: list[Any] = [None] * max_size
    index = number = 0
    for move in history:
        if move == "clear":
            memory.clear()
            twin.clear()
            buffer, index = [None] * max_size, 0
        for _ in range(move if move != "clear" else 0):
            thing = [object(), (number, "x"), np.arange(3), None][rng.integers(4)]
            memory.append(thing)
            twin.append(thing)
            buffer[index] = thing
            index, number = (index + 1) % max_size, number + 1
        assert (len(memory), memory.size) == (len(twin), len(twin))
        assert (memory.index, memory.max_size) == (index, max_size)
        assert memory
        there = list(twin)
        for found, expected in (
            (list(memory), there),
            (list(reversed(memory)), there[::-1]),
            (memory.buffer.tolist(), buffer),
            ([memory[k] for k in range(len(twin))], there),
            ([memory[np.int64(k - len(twin))] for k in range(len(twin))], there),
        ):
            assert all(x is y for x, y in zip(found, expected, strict=True))
        bounds = [None if rng.random() < 0.3 else int(rng.integers(-12, 13)) for _ in range(3)]
        bounds[2] = [bounds[2] or None, 2**70, -(2**70)][rng.choice(3, p=[0.8, 0.1, 0.1])]
        piece = slice(*bounds)
        assert all(x is y for x, y in zip(memory[piece], there[piece], strict=True))
        for beyond in (len(twin), -len(twin) - 1, 2**70, -(2**70)):
            with pytest.raises(IndexError, match="index"):
                memory[beyond]


def test_sequences_are_single_objects() -> None:
    """Tuples, lists and arrays are stored as they are, by reference."""
    memory = ReplayMemory(3)
    array, transition = np.zeros(2), ([1.0], 2, None)
    memory.append(transition)
    memory.append(array)
    array[:] = 7
    assert memory[0] is transition
    assert memory[1].tolist() == [7, 7]
    assert memory.append([1, 2]) is None  # type: ignore[func-returns-value]
    drawn = memory.sample(50)
    assert (drawn.shape, drawn.dtype) == ((50,), np.dtype(object))
    assert {id(x) for x in drawn} <= {id(x) for x in memory}


def test_copies_are_stored_where_asked_for() -> None:
    """With ``copy=True`` later changes to an object do not show, at any depth."""
    memory = ReplayMemory(2, copy=True)
    array = np.zeros(2)
    memory.append(([array], 1))
    array[:] = 7
    assert memory[0][0][0].tolist() == [0, 0]

    class Stubborn:
        def __deepcopy__(self, memo: Any) -> Any:
            raise RuntimeError("no copy of me")

    with pytest.raises(RuntimeError, match="no copy"):
        memory.append(Stubborn())
    assert len(memory) == 1


def test_a_class_of_ones_own_may_call_append_of_its_base() -> None:
    """``append`` is a method as any other."""
    memory = Sub("x")
    memory.append(1)
    ReplayMemory.append(memory, 2)
    super(Sub, memory).append(3)
    assert list(memory) == [1, 2, 3]


# ---- draws -------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 3, 8, 9, 1000, 65_536])
@pytest.mark.parametrize(
    "batch_size", [0, 1, 5, 127, 128, 129, 1000, (2, 3), (4, 0), [3], (1, 1, 2)]
)
@pytest.mark.usefixtures("global_state")
def test_draws_are_those_of_numpys_randint(size: int, batch_size: Any) -> None:
    """The same objects as ``buffer[np.random.randint(...)]``, and the same state afterwards."""
    memory = filled(2 * size, size)
    for seed in range(3):
        np.random.seed(seed)
        expected = [memory.buffer[np.random.randint(size, size=batch_size)] for _ in range(2)]
        state = np.random.get_state()
        np.random.seed(seed)
        for wanted in expected:
            drawn = memory.sample(batch_size)
            assert (drawn.shape, drawn.dtype) == (wanted.shape, wanted.dtype)
            assert all(x is y for x, y in zip(drawn.flat, wanted.flat, strict=True))
        for left, right in zip(state, np.random.get_state(), strict=True):
            np.testing.assert_array_equal(left, right)


@pytest.mark.usefixtures("global_state")
@pytest.mark.parametrize("bits", [np.random.PCG64, np.random.Philox, np.random.MT19937])
def test_draws_follow_a_change_of_the_global_bit_generator(bits: Any) -> None:
    """``np.random.set_bit_generator`` counts from the next draw on."""
    memory = filled(1000, 777)
    memory.sample(3)
    numpy_random.set_bit_generator(bits(5))
    expected = [x[0] for x in memory.buffer[np.random.randint(777, size=50)]]
    numpy_random.set_bit_generator(bits(5))
    assert [x[0] for x in memory.sample(50)] == expected


def test_a_wrapped_memory_draws_by_place() -> None:
    """The places that NumPy draws are those of ``buffer``, wherever the oldest object is."""
    memory = filled(10, 27)
    assert memory.index == 7
    np.random.seed(4)
    places = np.random.randint(10, size=100)
    np.random.seed(4)
    assert [x[0] for x in memory.sample(100)] == [x[0] for x in memory.buffer[places]]


@pytest.mark.parametrize("seed", [3, np.random.SeedSequence(3), "bits", "generator"])
def test_a_seed_of_its_own(seed: Any) -> None:
    """Equal seeds give equal draws, uniform ones, and leave NumPy's global state alone."""

    def fresh() -> Any:
        if seed == "bits":
            return np.random.PCG64(3)
        return np.random.default_rng(3) if seed == "generator" else seed

    before = state_words()
    left, right = filled(5, 7, seed=fresh()), filled(5, 7, seed=fresh())
    drawn = [left.sample(n).tolist() for n in (1, 10_000)]
    assert [right.sample(n).tolist() for n in (1, 10_000)] == drawn
    counts = np.bincount([x[0] for x in drawn[1]], minlength=7)
    assert counts[:2].tolist() == [0, 0]
    assert ((counts[2:] - 2000) ** 2 / 2000).sum() < 25
    assert state_words() == before
    assert left.rng is not None
    assert ReplayMemory(3).rng is None


@pytest.mark.parametrize("seed", [None, 1])
def test_an_empty_memory_gives_nothing(seed: int | None) -> None:
    """Before the first object and after a clear, whatever is asked for."""
    memory = ReplayMemory(3, seed=seed)
    for _ in range(2):
        for n in (0, 1, (2, 2)):
            for error in (NotEnoughDataError, ValueError, RuntimeError):
                with pytest.raises(error, match="empty"):
                    memory.sample(n)
        with pytest.raises(NotEnoughDataError):
            memory.sample_columns(1)
        memory.append(1)
        assert memory.sample(2).tolist() == [1, 1]
        memory.clear()


@pytest.mark.parametrize(
    ("error", "batch_size"),
    [
        (TypeError, 2.0),
        (TypeError, "2"),
        (TypeError, None),
        (TypeError, (2, 1.5)),
        (ValueError, -1),
        (ValueError, -(2**70)),
        (ValueError, 2**70),
        (ValueError, (2, -1)),
        (ValueError, (2**40, 2**40)),
        (MemoryError, 2**45),
        (MemoryError, (2**25, 2**25)),
        (MemoryError, 2**62),
    ],
)
def test_bad_batch_sizes(error: Any, batch_size: Any) -> None:
    """A batch size is refused before anything is drawn."""
    memory = filled(3, 3)
    before = state_words()
    with pytest.raises(error):
        memory.sample(batch_size)
    with pytest.raises((TypeError, ValueError, MemoryError)):
        memory.sample_columns(batch_size)
    assert state_words() == before


def test_columns() -> None:
    """Each field of the drawn tuples as the array that the tuples make."""
    memory = ReplayMemory(50)
    rng = np.random.default_rng(0)
    for i in range(60):
        memory.append((rng.random(4), i, float(i), [i, i + 1], i % 7 == 0, f"{i}"))
    np.random.seed(2)
    drawn = memory.sample(32)
    np.random.seed(2)
    columns = memory.sample_columns(32)
    assert len(columns) == 6
    for k, column in enumerate(columns):
        expected = np.array([transition[k] for transition in drawn])
        assert column.dtype == expected.dtype
        np.testing.assert_array_equal(column, expected)


def test_bad_columns() -> None:
    """What does not make columns is refused with its reason."""
    cases: list[tuple[type[Exception], str, Any]] = [
        (TypeError, "tuples", [1, 2]),
        (TypeError, "got str", ["ab", "cd"]),
        (ValueError, "one length", [(1, 2), (1,)]),
        (ValueError, "field 1", [(1, [1, 2]), (2, [1])]),
    ]
    for error, words, objects in cases:
        memory = ReplayMemory(2, seed=0)
        for thing in objects:
            memory.append(thing)
        with pytest.raises(error, match=words):
            memory.sample_columns(30)
    with pytest.raises(ValueError, match="batch_size"):
        filled(3, 3).sample_columns(0)


# ---- references --------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [None, 0])
def test_every_reference_is_counted(seed: int | None) -> None:
    """One for a place in the memory, one for each place in a batch, list or slice."""
    memory, thing = ReplayMemory(4, seed=seed), Thing()
    alone = sys.getrefcount(thing)
    for k in range(1, 8):
        memory.append(thing)
        assert sys.getrefcount(thing) == alone + min(k, 4)
    batch = memory.sample(300)
    assert sys.getrefcount(thing) == alone + 304
    more = memory.sample((10, 20))
    assert sys.getrefcount(thing) == alone + 504
    del batch, more
    pieces = [memory[1:3], list(memory), memory[0], memory.buffer]
    assert sys.getrefcount(thing) == alone + 4 + 2 + 4 + 1 + 4
    del pieces
    for _ in range(2):
        memory.append(None)
    assert sys.getrefcount(thing) == alone + 2
    memory.append(None)
    assert sys.getrefcount(thing) == alone + 1
    memory.clear()
    assert sys.getrefcount(thing) == alone
    memory.append(thing)
    del memory
    assert sys.getrefcount(thing) == alone


def test_failed_calls_count_nothing() -> None:
    """Errors leave no reference behind."""
    gc.collect()  # of tests before, whose objects may refer to None
    memory, thing, none = filled(3, 0), Thing(), sys.getrefcount(None)
    memory.append(thing)
    before = sys.getrefcount(thing)
    for _ in range(100):
        for bad in (-1, "x", 2**70, (1, None)):
            with pytest.raises((TypeError, ValueError)):
                memory.sample(bad)  # type: ignore[arg-type]
        with pytest.raises(IndexError):
            memory[5]
        with pytest.raises(ValueError, match="expected at most"):
            memory.hold([thing] * 4, 0)
    assert sys.getrefcount(thing) == before
    assert abs(sys.getrefcount(None) - none) < 50 or sys.version_info >= (3, 12)


@pytest.mark.parametrize("n", [0, 1, 2, 3])
def test_objects_that_die_see_a_memory_that_is_whole(n: int) -> None:
    """Finalizers of what ``load`` lets go find the new objects, and may call the memory.

    They ran while it filled itself, found ``None`` in places that were counted, and what they added
    was lost.
    """
    memory = ReplayMemory(3, seed=0)
    seen: list[Any] = []

    def look() -> None:
        drawn = set(memory.sample(9).tolist()) if len(memory) else set()
        assert drawn <= set(memory)
        seen.append(memory[:])
        memory.append(f"late {len(seen)}")

    for _ in range(3):
        memory.append(Thing(look))
    new = [str(number) for number in range(n)]
    memory.hold(new, n % 3)
    late = ["late 1", "late 2", "late 3"]
    assert seen == [(new + late)[:k][-3:] for k in range(n, n + 3)]
    assert list(memory) == (new + late)[-3:]


@pytest.mark.parametrize("cls", [ReplayMemory, "sub"])
@pytest.mark.parametrize("how", ["itself", "attribute", "dict", "batch"])
def test_cycles_through_a_memory_are_collected(cls: Any, how: str) -> None:
    """A memory whose objects lead back to it dies with the last reference from outside."""
    memory: Any = Sub("x") if cls == "sub" else cls(3)
    thing = Thing()
    if how == "itself":
        memory.append(memory)
        memory.append(thing)
    elif how == "attribute":
        thing.memory = memory  # type: ignore[attr-defined]
        memory.append(thing)
    elif how == "dict":
        memory.me = [memory]
        memory.append(thing)
    else:
        memory.append({"of": [memory, thing]})
    probe = weakref.ref(thing)
    del memory, thing
    gc.collect()
    assert probe() is None


def test_the_collector_leaves_a_memory_in_use_alone() -> None:
    """What is only reachable through a memory stays, and dies with it."""
    memory = ReplayMemory(3)
    memory.append([memory, "kept"])
    probe = weakref.ref(memory)
    gc.collect()
    assert memory[0][1] == "kept"
    del memory
    gc.collect()
    assert probe() is None


def test_an_overwritten_object_may_do_anything_as_it_dies() -> None:
    """Its last words see the memory as it is after the call that let it go."""
    memory = ReplayMemory(2)
    seen: list[Any] = []

    def look() -> None:
        seen.append((list(memory), memory.index, memory.size))

    memory.append(Thing(look))
    memory.append("b")
    memory.append("c")
    assert seen == [(["b", "c"], 1, 2)]

    def appends() -> None:
        memory.append("from the grave")

    memory.append(Thing(appends))
    memory.append("d")
    memory.append("e")
    assert list(memory) == ["e", "from the grave"]

    memory.append(Thing(memory.clear))
    memory.append("f")
    memory.append("g")
    assert list(memory) == []

    memory.append(Thing(appends))
    memory.clear()
    assert list(memory) == ["from the grave"]
    kept: list[Any] = []
    riser = Thing()
    riser.at_end = lambda: kept.append(list(memory))
    memory.append(riser)
    del riser
    memory.__init__(4)  # type: ignore[misc]
    assert (len(memory), memory.max_size, kept) == (0, 4, [[]])


def test_the_collector_may_run_at_any_time() -> None:
    """Objects that change the memory as they die, collected in the middle of every call."""
    memory = ReplayMemory(8)
    threshold = gc.get_threshold()

    def cycle() -> list[Any]:
        ring: list[Any] = [Thing(last_words)]
        ring.append(ring)
        return ring

    def last_words() -> None:
        memory.append([])
        memory.sample(2)

    gc.set_threshold(1, 1, 1)
    try:
        for k in range(300):
            memory.append(cycle())
            cycle()
            assert len(memory.sample(5)) == 5
            assert len(memory[:]) <= 8
            assert len(list(memory)[1:3]) <= 2
            copy.copy(memory)
            if k % 50 == 49:
                memory.clear()
                memory.append(1)
    finally:
        gc.set_threshold(*threshold)
        memory.clear()
        gc.collect()


def test_buffer_is_a_copy_that_refuses_values() -> None:
    """It has a place for each object and stays as it is; a write, which would be lost, raises."""
    memory = filled(3, 1)
    before = memory.buffer
    memory.append([1, 2])
    assert memory.buffer.tolist() == [(0,), [1, 2], None]
    assert (before.tolist(), before.dtype) == ([(0,), None, None], np.dtype(object))
    with pytest.raises(ValueError, match="read-only"):
        before[0] = "a"


def test_a_memory_that_was_never_started() -> None:
    """Without ``__init__`` every call is an error."""

    class Forgetful(ReplayMemory):
        def __init__(self) -> None:
            pass

    memory = Forgetful()
    for call in (
        lambda: memory.append(1),
        lambda: memory.sample(1),
        lambda: memory[:],
        lambda: memory[0],
        memory.clear,
    ):
        with pytest.raises(AttributeError, match="Forgetful"):
            call()


# ---- copies ------------------------------------------------------------------------------


def equal_draws(left: ReplayMemory, right: ReplayMemory) -> bool:
    """Whether both would draw the same; a memory without a seed is given the same state."""
    drawn = []
    for memory in (left, right):
        np.random.seed(9)
        drawn.append([x[0] for x in memory.sample(20)])
    return drawn[0] == drawn[1]


@pytest.mark.parametrize("seed", [None, 4])
@pytest.mark.parametrize("objects", [0, 3, 5, 8])
def test_pickles_and_copies_go_on(seed: int | None, objects: int) -> None:
    """The same objects at the same places, the same draws, and nothing shared but objects."""
    memory = filled(5, objects, seed=seed)
    memory.label = "mine"  # type: ignore[attr-defined]
    others: list[Any] = [
        *(
            pickle.loads(pickle.dumps(memory, protocol))
            for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1)
        ),
        copy.deepcopy(memory),
        copy.copy(memory),
    ]
    for other in others:
        assert type(other) is ReplayMemory
        assert other.label == "mine"  # type: ignore[attr-defined]
        assert (other.max_size, other.index, other.size) == (5, memory.index, memory.size)
        assert other.buffer.tolist() == memory.buffer.tolist()
        assert objects == 0 or equal_draws(copy.deepcopy(memory), other)
        other.append((99,))
        assert len(memory) == min(objects, 5)
    if objects:
        assert copy.copy(memory)[0] is memory[0]
        memory.append([1])
        assert copy.deepcopy(memory)[-1] is not memory[-1]


def test_a_copy_of_a_memory_within_itself() -> None:
    """Deep copies and pickles of cycles are cycles of their own."""
    memory = ReplayMemory(3)
    memory.append([memory])
    for other in (copy.deepcopy(memory), pickle.loads(pickle.dumps(memory))):
        assert other is not memory
        assert other[0][0] is other


def test_copies_of_a_class_of_ones_own() -> None:
    """Its class and attributes come along, its constructor is not asked."""
    memory = Sub("x")
    memory.append((1,))
    for other in (copy.copy(memory), copy.deepcopy(memory), pickle.loads(pickle.dumps(memory))):
        assert (type(other), other.label, other[:]) == (Sub, "x", [(1,)])
        assert equal_draws(copy.copy(memory), other)


@pytest.mark.parametrize(
    ("error", "arguments"),
    [
        (ValueError, {"max_size": 0}),
        (ValueError, {"max_size": -1}),
        (TypeError, {"max_size": 2.5}),
        (TypeError, {"max_size": None}),
        (MemoryError, {"max_size": 10**15}),
        (TypeError, {"max_size": 3, "seed": "x"}),
        (ValueError, {"max_size": 3, "seed": -1}),
    ],
)
def test_bad_declarations(error: type[Exception], arguments: Any) -> None:
    """A bad argument of the constructor is named."""
    with pytest.raises(error):
        ReplayMemory(**arguments)


def test_other_bad_arguments() -> None:
    """Indexes are integers or slices; ``load`` takes what fits."""
    memory = filled(3, 2)
    for bad in (1.0, "0", None, (0,), [0]):
        with pytest.raises(TypeError, match="index"):
            memory[bad]  # type: ignore[call-overload]
    for objects, index in (([1] * 4, 0), ([1], 0), ([1] * 3, 3), ([1] * 3, -1), ([1], 2)):
        with pytest.raises(ValueError, match="expected at most"):
            memory.hold(objects, index)
    assert len(memory) == 2
    for name in ("index", "size", "max_size"):
        with pytest.raises(AttributeError):
            setattr(memory, name, 1)


def test_its_repr_says_how_full_it_is() -> None:
    """And not what is in it, which may be large."""
    assert repr(filled(9, 4)) == "ReplayMemory(max_size=9, size=4)"


@pytest.mark.parametrize("seed", [None, 0])
def test_threads(seed: int | None) -> None:
    """Writers, readers and clears at a time: no object is lost or freed too early."""
    memory = filled(50, 50, seed=seed)

    def read() -> None:
        with contextlib.suppress(NotEnoughDataError):
            assert all(type(x) is tuple for x in memory.sample(200))
        assert all(type(x) is tuple for x in memory[5:30])

    def write() -> None:
        memory.append((object(),))

    def elsewhere() -> None:
        np.random.random(10_000) if seed is None else memory.rng.random(10_000)  # type: ignore[union-attr]

    counts = run_together(write, read, read, elsewhere, memory.clear, seconds=0.5)
    assert min(counts) >= 3, f"a thread starved: {counts}"


class GrowsBehind(ReplayMemory):
    """Another thread appends an object behind a look at the index."""

    @property
    def index(self) -> int:
        found = super().index
        self.append(found)
        return found


def test_a_copy_beside_a_thread_that_appends_is_of_one_moment() -> None:
    """The index was read before the objects, so that some copies and pickles could not be made."""
    memory = GrowsBehind(5)
    for number in range(3):
        memory.append(number)
    other = copy.copy(memory)
    assert list(other) == [0, 1, 2]
