"""``add`` of numbers of every kind, of blocks, of values that run code, and of calls cut short."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from helpers import needs_optimised_modules, refused, snapshot
from hypothesis import given
from hypothesis import strategies as st
from interruptions import cut_everywhere, look_at
from strategies import DISGUISES, PLAIN_DTYPES, disguise, random_array
from timing import ratio

from cpprb_like import PrioritizedReplayBuffer, ReplayBuffer, SelectiveReplayBuffer
from cpprb_like._fields import casting
from cpprb_like.samplers import Prioritized, RankBased
from cpprb_like.typing import FieldSpec

NUMBER: FieldSpec = {"shape": ()}


# ---- numbers of other kinds -----------------------------------------------------------------


@given(
    wanted=st.sampled_from(PLAIN_DTYPES),
    given_dtype=st.sampled_from(PLAIN_DTYPES),
    shape=st.sampled_from([(), (1,), (3,), (2, 3), (0,)]),
    n=st.integers(0, 5),
    how=st.sampled_from(DISGUISES),
    small=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_numbers_are_cast_or_refused_as_by_the_slow_twin(
    wanted: str, given_dtype: str, shape: tuple[int, ...], n: int, how: str, small: bool, seed: int
) -> None:
    """Casts on the way into the ring give or refuse what ``casting.cast`` does."""
    rng = np.random.default_rng(seed)
    values = random_array(rng, np.dtype(given_dtype), (n, *shape))
    if small:  # numbers that most kinds can hold
        values = rng.integers(0, 2, (n, *shape)).astype(given_dtype)
    rb = ReplayBuffer(10, {"x": {"shape": shape, "dtype": wanted}})
    given_value = disguise(values, how)
    try:
        expected = casting.cast(values, np.dtype(wanted))
    except ValueError:
        with refused(rb, ValueError, "'x'"):
            rb.add(x=given_value)
        return
    if n == 0 and how in ("nested lists", "list of rows"):
        return
    rb.add(x=given_value)
    got = rb.get_all_transitions()["x"]
    assert len(rb) == n
    assert got.dtype == expected.dtype
    assert got.tobytes() == np.ascontiguousarray(expected).tobytes()


@pytest.mark.parametrize(
    ("dtype", "value", "stored"),
    [
        ("?", 0.0, False),
        ("?", 1.0, True),
        ("?", np.float32(1.0), True),
        ("i8", 1.0, 1),
        ("i8", np.float64(-3.0), -3),
        ("u1", 255.0, 255),
        ("f4", True, 1.0),
        ("f4", np.int64(7), 7.0),
        ("f8", np.float32(0.5), 0.5),
        ("i8", -(2.0**63), -(2**63)),
        ("i1", np.uint64(127), 127),
        ("f4", np.longlong(3), 3.0),
        ("f4", [[1, 2.5, True]], None),
    ],
)
def test_a_number_of_another_kind(dtype: str, value: Any, stored: Any) -> None:
    """A number that another kind can hold is that number."""
    if stored is None:
        rb = ReplayBuffer(4, {"x": {"shape": 3, "dtype": dtype}})
        rb.add(x=value)
        assert rb[0]["x"].tolist() == [1.0, 2.5, 1.0]
        return
    rb = ReplayBuffer(4, {"x": {"shape": (), "dtype": dtype}})
    rb.add(x=value)
    rb.add(x=[value])
    rb.add(x=(value, value))
    assert rb.get_all_transitions()["x"].tolist() == [stored] * 4


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        ("?", 0.5),
        ("?", 2),
        ("?", float("nan")),
        ("i8", 1.5),
        ("i8", 2.0**63),
        ("i8", float("inf")),
        ("u8", -1.0),
        ("u1", 256.0),
        ("i1", np.uint8(128)),
        ("i8", np.uint64(2**63)),
        ("f4", 1e300),
        ("f4", 10**400),
        ("f8", 10**400),
        ("f4", [1.0, 1e39]),
        ("i8", np.timedelta64(3, "s")),
        ("f4", np.timedelta64(3, "s")),
        ("?", np.timedelta64(1, "s")),
        ("i8", [1, np.timedelta64(3, "s")]),
        ("i8", np.datetime64(3, "s")),
        ("f4", [[1.0], 2.0]),
        ("f4", [1.0, None]),
        ("f4", [1.0, "2"]),
    ],
)
def test_a_number_that_another_kind_cannot_hold(dtype: str, value: Any) -> None:
    """It is refused in a sentence with the field's name, alone and in lists.

    A ``timedelta64`` counts as an integer of NumPy, and failed with a message without a name.
    """
    rb = ReplayBuffer(4, {"x": {"shape": (), "dtype": dtype}, "y": {"shape": ()}})
    for given_value in (value, [value], (value,)):
        with refused(rb, ValueError, "field 'x'"):
            rb.add(x=given_value, y=0)


class Tensor:
    """What tensors of other libraries have in common: an array that NumPy is given on request."""

    def __init__(self, values: Any) -> None:
        self.values = values

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return self.values if dtype is None else self.values.astype(dtype)


def test_tensors_are_read_by_the_array_protocol() -> None:
    """A tensor of any number dtype is cast like an array, once, and refused like one."""
    rb = ReplayBuffer(10, {"x": {"shape": 3}, "n": {"shape": (), "dtype": "i8"}})
    rb.add(x=Tensor(np.arange(6.0).reshape(2, 3)), n=Tensor(np.array([1.0, 2.0])))
    rb.add(x=memoryview(np.arange(3.0).tobytes()).cast("d"), n=Tensor(np.array(3, np.int8)))
    assert rb.get_all_transitions()["n"].tolist() == [1, 2, 3]
    assert rb[1]["x"].tolist() == [3, 4, 5]
    with refused(rb, ValueError, "'n'"):
        rb.add(x=[1, 2, 3], n=Tensor(np.array(0.5)))


def test_an_array_that_is_too_large_to_keep_room_for() -> None:
    """A cast of megabytes is right too, and lets its memory go."""
    rb = ReplayBuffer(1000, {"x": {"shape": 1000}})
    values = np.random.default_rng(0).random((1000, 1000))
    rb.add(x=values)
    assert np.array_equal(rb.get_all_transitions()["x"], values.astype(np.float32))
    rb.add(x=np.broadcast_to(np.float64(0.5), (1000, 1000)))
    assert (rb.get_all_transitions()["x"] == 0.5).all()


# ---- blocks of time steps -------------------------------------------------------------------


@pytest.mark.parametrize("n_envs", [1, 3])
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_a_block_is_its_time_steps_one_by_one(n_envs: int, dtype: str) -> None:
    """``(T, n_envs, ...)`` is T calls, with every option, also beyond the capacity."""
    rng = np.random.default_rng(1)
    for steps, capacity in ((5, 100), (20, 31), (0, 10), (1, 10)):
        fields: dict[str, FieldSpec] = {
            "obs": {"shape": 2},
            "one": {"shape": 1},
            "rew": NUMBER,
            "done": NUMBER,
        }
        options: Any = {"n_envs": n_envs, "next_of": "obs", "Nstep": {"size": 2}}
        block: Any = {
            "obs": rng.random((steps, n_envs, 2)).astype(dtype),
            "next_obs": rng.random((steps, n_envs, 2)).astype(dtype),
            "one": rng.random((steps, n_envs)).astype(dtype),
            "rew": rng.random((steps, n_envs)).astype(dtype),
            "done": (rng.random((steps, n_envs)) < 0.3).astype(dtype),
        }
        at_once, by_step = (ReplayBuffer(capacity, fields, **options) for _ in range(2))
        at_once.add(**block)
        at_once.add(**block | {"one": block["one"][..., np.newaxis]})
        for _ in range(2):
            for t in range(steps):
                by_step.add(**{name: values[t] for name, values in block.items()})
        at_once.check()
        assert snapshot(at_once) | {"rng": 0} == snapshot(by_step) | {"rng": 0}


OTHER_DTYPES = ["object", ">f4", ">i8", "<f4", "U5", "M8[s]", "c16", [("a", ">i4"), ("b", "f4")]]


@pytest.mark.parametrize("shape", [(), (1,), (2, 3)], ids=str)
@pytest.mark.parametrize("dtype", OTHER_DTYPES, ids=str)
def test_a_block_that_is_converted_is_its_time_steps_one_by_one(dtype: Any, shape: Any) -> None:
    """The conversion merged the axes T and n_envs, and the number of rows was taken for wrong.

    Of Python objects, of foreign byte order, and of what else NumPy converts.
    """
    rng = np.random.default_rng(1)
    for steps in (1, 3, 4, 0):
        given: Any = rng.integers(0, 100, (steps, 3, *shape)).astype(np.dtype(dtype))
        if dtype not in ("object", "U5"):
            given = given.astype(given.dtype.newbyteorder(">"))
        at_once, by_step = (
            ReplayBuffer(30, {"x": {"shape": shape, "dtype": dtype}, "y": NUMBER}, n_envs=3)
            for _ in range(2)
        )
        y = np.ones((steps, 3))
        at_once.add(x=given, y=y)
        at_once.add_where(np.ones((steps, 3), bool), x=given, y=y)
        if shape == (1,) and steps:
            at_once.add(x=given[..., 0], y=y)
        for _ in range(3 if shape == (1,) and steps else 2):
            for t in range(steps):
                by_step.add(x=given[t], y=y[t])
        at_once.check()
        assert len(at_once) == len(by_step)
        np.testing.assert_array_equal(at_once[:]["x"], by_step[:]["x"])
    with pytest.raises(ValueError, match=r"^field 'x': expected shape \(3"):
        at_once.add(x=np.zeros((4, 2, *shape), np.dtype(dtype)), y=np.ones((4, 3)))


class Shown:
    """Numbers that are shown by NumPy's protocol only, as tensors show theirs."""

    def __init__(self, numbers: Any) -> None:
        self.numbers = numbers

    def __array__(self, *_: object, **__: object) -> Any:
        return self.numbers


@pytest.mark.parametrize("n_envs", [1, 4])
@pytest.mark.parametrize("steps", [0, 1, 3, 100_000])
def test_a_block_is_cast_whatever_its_size_and_the_other_fields(steps: int, n_envs: int) -> None:
    """A block of float64 and of tensors goes into float32 fields, also beyond a megabyte.

    What was cast into an array of its own had lost the axis of environments: "'obs' has -1".
    """
    numbers = np.arange(steps * n_envs * 3, dtype=np.float64).reshape(steps, n_envs, 3)
    rb = ReplayBuffer(400_000, {"obs": {"shape": 3}, "act": {"shape": 3}}, n_envs=n_envs)
    given = numbers if n_envs > 1 else numbers[:, 0]
    rb.add(obs=given, act=Shown(given))
    rows = rb.get_all_transitions()
    assert np.array_equal(rows["obs"], numbers.reshape(-1, 3).astype(np.float32))
    assert np.array_equal(rows["act"], rows["obs"])


def test_a_block_with_absent_environments_and_priorities() -> None:
    """``add_where`` takes a mask ``(T, n_envs)``, and priorities are given likewise."""
    steps, n_envs = 4, 3
    rng = np.random.default_rng(2)
    present = rng.random((steps, n_envs)) < 0.6
    x, priorities = rng.random((steps, n_envs)), rng.random((steps, n_envs)) + 1
    at_once, by_step = (
        PrioritizedReplayBuffer(100, {"x": NUMBER}, n_envs=n_envs) for _ in range(2)
    )
    at_once.add_where(present, x=x, priorities=priorities)
    at_once.add(x=x, priorities=priorities)
    for t in range(steps):
        by_step.add_where(present[t], x=x[t], priorities=priorities[t])
    for t in range(steps):
        by_step.add(x=x[t], priorities=priorities[t])
    at_once.check()
    slots = at_once.ring.present_slots()
    assert np.array_equal(slots, by_step.ring.present_slots())
    assert np.array_equal(at_once[slots]["x"], by_step[slots]["x"])
    ours, theirs = (
        rb.sampler.rows.get(slots)  # type: ignore[attr-defined]
        for rb in (at_once, by_step)
    )
    assert np.array_equal(ours, theirs)


@pytest.mark.parametrize(
    ("x", "present"),
    [
        (np.zeros((4, 2)), None),
        (np.zeros((4, 3, 3)), None),
        (np.zeros(3), np.ones((4, 3), bool)),
        (np.zeros((4, 3)), np.ones(3, bool)),
        (np.zeros((3, 3)), np.ones((4, 3), bool)),
    ],
)
def test_a_block_of_another_shape(x: Any, present: Any) -> None:
    """Blocks are of whole time steps, and a mask has one bool for each row."""
    rb = ReplayBuffer(100, {"x": NUMBER}, n_envs=3)
    with refused(rb, ValueError, "expected"):
        rb.add(x=x) if present is None else rb.add_where(present, x=x)


# ---- values that run code -------------------------------------------------------------------


class Runs:
    """A value that runs code when it is read."""

    def __init__(self, code: Callable[[], object], value: Any = 1.0) -> None:
        self.code, self.value = code, value

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        self.code()
        return np.asarray(self.value, dtype)

    def __index__(self) -> int:
        self.code()
        return 1

    def __len__(self) -> int:
        self.code()
        return 1


class Name(str):
    """A name that runs code when it is compared or looked up."""

    code: Callable[[], object] = staticmethod(lambda: None)

    def __eq__(self, other: object) -> bool:
        self.code()
        return str.__eq__(self, other)

    def __hash__(self) -> int:
        self.code()
        return str.__hash__(self)


def narrow(rb: ReplayBuffer) -> Callable[[], None]:
    """Initialises a buffer anew, with fewer fields and more environments."""
    return lambda: rb.__init__(8, {"z": {"shape": ()}}, n_envs=8)  # type: ignore[misc]


@pytest.mark.parametrize("make", [ReplayBuffer, PrioritizedReplayBuffer])
def test_a_value_that_initialises_the_buffer_anew(make: Any) -> None:
    """The call is refused, and the new buffer is sound: masks and addresses are of one ring.

    A mask of two environments was read as one of eight, past its end.
    """
    fields = {"x": NUMBER, "y": NUMBER}
    for n_envs in (1, 2):
        ones = np.ones(n_envs)

        def fresh() -> Any:
            return make(64, fields, n_envs=n_envs)  # noqa: B023

        calls: list[Callable[[Any], object]] = [
            lambda rb: rb.add(x=ones, y=Runs(narrow(rb), ones)),  # noqa: B023
            lambda rb: rb.add(x=Runs(narrow(rb), ones), y=ones),  # noqa: B023
            lambda rb: rb.add_where(ones == 1, x=ones, y=Runs(narrow(rb), ones)),  # noqa: B023
            lambda rb: rb.add_where(Runs(narrow(rb), ones == 1), x=ones, y=ones),  # noqa: B023
            lambda rb: rb.update([0], x=Runs(narrow(rb), [1.0])),
        ]
        if make is PrioritizedReplayBuffer:
            calls += [
                lambda rb: rb.add(x=ones, y=ones, priorities=Runs(narrow(rb), ones)),  # noqa: B023
                lambda rb: rb.add_where(
                    ones == 1,  # noqa: B023
                    x=ones,  # noqa: B023
                    y=ones,  # noqa: B023
                    priorities=Runs(narrow(rb), ones),  # noqa: B023
                ),
            ]
        for call in calls:
            rb = fresh()
            rb.add(x=ones, y=ones)
            with pytest.raises((RuntimeError, TypeError, ValueError)):
                call(rb)
            assert rb.get_stored_size() == 0
            rb.check()
            rb.add(z=np.zeros(8))
            rb.check()


def test_names_that_run_code() -> None:
    """Names are their characters: a class of the user's own decides nothing.

    Comparing such a name could initialise the buffer anew in the middle of the call.
    """
    rb = ReplayBuffer(10, {"x": NUMBER, "y": NUMBER})
    fields = {Name("x"): 1, Name("y"): [2.0]}
    Name.code = staticmethod(narrow(rb))
    try:
        rb.add(**fields)
        rb.add_where([True], **fields)
    except (RuntimeError, TypeError, ValueError):
        pass  # Python itself may compare keywords on the way
    finally:
        Name.code = staticmethod(lambda: None)
    rb.check()
    rb = ReplayBuffer(10, {"x": NUMBER, "y": NUMBER})
    rb.add(**fields)
    assert rb[0]["x"] == 1
    with refused(rb, TypeError, "'z'"):
        rb.add(**{Name("x"): 1, Name("z"): 2})


@pytest.mark.parametrize("clears", [False, True])
def test_a_value_that_adds_or_clears(clears: bool) -> None:
    """Calls within a call are whole, before it."""
    rb = PrioritizedReplayBuffer(10, {"x": NUMBER, "y": {"shape": 2}})
    inner = rb.clear if clears else (lambda: rb.add(x=7.0, y=[7.0, 7.0]))
    rb.add(x=[1.0, 2.0], y=[[3, 3], [4, 4]])
    rb.add(x=np.float64(5.0), y=Runs(inner, [6.0, 6.0]), priorities=Runs(inner, 2.0))
    batch = rb.get_all_transitions()
    assert batch["x"].tolist() == ([5.0] if clears else [1.0, 2.0, 7.0, 7.0, 5.0])
    assert batch["y"][:, 0].tolist() == ([6.0] if clears else [3.0, 4.0, 7.0, 7.0, 6.0])
    rb.check()


def test_a_value_that_changes_another_value() -> None:
    """What was looked at first may have another shape in the end: it is looked at again."""
    for change in ("shape", "length"):
        rb = ReplayBuffer(10, {"x": {"shape": 4}, "y": NUMBER})
        array, items = np.ones((2, 4), np.float32), [[1.0] * 4] * 2

        def code() -> None:
            if change == "shape":  # noqa: B023
                array.shape = (4, 2)  # noqa: B023
            else:
                items.append([1.0])  # noqa: B023

        with refused(rb, (ValueError, RuntimeError), "1" if change == "length" else ""):
            rb.add(x=array if change == "shape" else items, y=Runs(code, [1.0, 2.0]))


# ---- calls cut short ------------------------------------------------------------------------


class Own(Prioritized):
    """A sampler whose hook for new priorities is Python."""

    def set_new(self, first: int, clears: int, priorities: Any) -> None:
        super().set_new(first, clears, priorities)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # in finalizers
@pytest.mark.parametrize("sampler", [Prioritized, RankBased, Own])
@pytest.mark.parametrize("n_envs", [1, 2])
def test_an_add_with_priorities_that_is_cut_short_is_whole_or_nothing(
    sampler: Any, n_envs: int
) -> None:
    """Ctrl-C between the rows and their weights left rows with the weight of others."""

    def make() -> PrioritizedReplayBuffer:
        rb = PrioritizedReplayBuffer(8, {"x": NUMBER}, sampler=sampler(0.5), seed=0, n_envs=n_envs)
        rb.add(x=[1, 2], priorities=[1, 2])
        return rb

    def look(rb: PrioritizedReplayBuffer) -> Any:
        return look_at(rb), rb.get_max_priority()

    calls: list[Callable[[Any], object]] = [
        lambda rb: rb.add(x=[4, 5], priorities=[7.0, 8.0]),
        lambda rb: rb.update_priorities([0, 1], [4.0, 9.0]),
    ]
    if n_envs == 2:
        calls.append(lambda rb: rb.add_where([True, False], x=[4, 5], priorities=[7.0, 8.0]))
    for call in calls:
        assert cut_everywhere(make, call, look) > 3


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # in finalizers
@pytest.mark.parametrize("make", [ReplayBuffer, PrioritizedReplayBuffer])
def test_a_second_init_that_is_refused_or_cut_short_keeps_the_rows(make: Any) -> None:
    """``__init__`` takes everything or nothing; refused at its end it had lost the rows."""

    def filled() -> Any:
        rb = make(8, {"x": NUMBER}, seed=0)
        rb.add(x=[1, 2, 3])
        return rb

    rb = filled()
    taken = filled()
    for options in ({"seed": "no"}, {"n_envs": 9}, {"sampler": 3}, {"Nstep": {"size": 99}}):
        with refused(rb, (TypeError, ValueError)):
            rb.__init__(8, {"x": NUMBER}, **options)
    if make is PrioritizedReplayBuffer:
        for sampler in (taken.sampler, rb.sampler):
            with refused(rb, ValueError, "belongs to another buffer"):
                rb.__init__(8, {"x": NUMBER}, sampler=sampler)
    rb.check()
    cut_everywhere(filled, lambda rb: rb.__init__(9, {"x": NUMBER}, seed=0), look_at)


def test_update_and_clear_and_ends_that_are_cut_short() -> None:
    """Each is seen whole or not at all."""

    def make() -> ReplayBuffer:
        rb = ReplayBuffer(8, {"x": NUMBER, "y": NUMBER}, seed=0)
        rb.add(x=[1, 2, 3], y=[1, 2, 3])
        return rb

    cut_everywhere(make, lambda rb: rb.update([0, 1], x=[8, 9], y=[8, 9]), look_at)
    cut_everywhere(make, lambda rb: rb.clear(), look_at)
    cut_everywhere(make, lambda rb: rb.add(x=Tensor(np.array([4, 5])), y=[6, "7"][:1] * 2), look_at)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # in finalizers
def test_a_deletion_that_is_cut_short_keeps_the_other_episodes() -> None:
    """``delete_episode`` of a selective buffer cleared all rows before it added the others."""

    def make() -> SelectiveReplayBuffer:
        rb = SelectiveReplayBuffer(3, Nepisodes=4)
        for start in (0, 10, 20):
            for i in range(3):
                rb.add(start + i, 0, 0, start + i + 1, i == 2)
        return rb

    def look(rb: SelectiveReplayBuffer) -> Any:
        episodes = [rb.get_episode(i) for i in range(rb.get_stored_episode_size())]
        return [episode["obs"].ravel().tolist() for episode in episodes], len(rb)

    assert cut_everywhere(make, lambda rb: rb.delete_episode(1), look) > 3


# ---- costs ----------------------------------------------------------------------------------


def test_equal_names_cost_little_more_than_identical_ones() -> None:
    """Names are looked up, not compared with all: 200 of them cost 50 times as much before."""
    names = [f"field {k}" for k in range(200)]
    rb = ReplayBuffer(100, dict.fromkeys(names, NUMBER))
    same = dict.fromkeys(names, 1.0)
    equal = {"".join(list(name)): 1.0 for name in names}
    assert ratio(lambda: rb.add(**same), lambda: rb.add(**equal), 30, 50) < 6


OBS = np.random.default_rng(0).random(11).astype(np.float32)


@pytest.mark.parametrize(
    ("changes", "most"),
    [
        ({"done": 0.0}, 4),
        ({"act": 1.0}, 4),
        ({"rew": 1}, 4),
        ({"rew": np.float64(0.5), "done": np.False_}, 4),
        ({"obs": OBS.astype(np.float64)}, 6),
        ({"obs": np.arange(11)}, 6),
        ({"obs": OBS.tolist()}, 10),
        ({"obs": np.arange(22.0)[::2]}, 8),
    ],
    ids=["done=0.0", "act=1.0", "rew=1", "NumPy", "float64", "int64", "list", "strided"],
)
def test_numbers_of_other_kinds_cost_little(changes: dict[str, Any], most: float) -> None:
    """A step with numbers of other kinds is cast in C; 40 to 90 times as much as without before."""
    fields: dict[str, FieldSpec] = {
        "obs": {"shape": 11},
        "act": {"dtype": "i8"},
        "rew": {},
        "done": {"dtype": "?"},
    }
    rb = ReplayBuffer(100, fields)
    step = {"obs": OBS, "act": 1, "rew": 0.5, "done": False}
    changed = step | changes
    assert ratio(lambda: rb.add(**step), lambda: rb.add(**changed), 30, 50) < most


@needs_optimised_modules
@pytest.mark.parametrize("kind", ["float64", "int64", "list"])
def test_many_numbers_of_another_kind_cost_a_few_nanoseconds_each(kind: str) -> None:
    """256 rows are cast faster than NumPy alone casts and checks them."""
    rb = ReplayBuffer(1000, {"obs": {"shape": 11}})
    values: Any = np.random.default_rng(0).random((256, 11)) * 100
    if kind == "int64":
        values = values.astype(np.int64)
    given_value = values.tolist() if kind == "list" else values

    def by_numpy() -> None:
        array = np.asarray(given_value)
        narrow = array.astype(np.float32)
        assert (np.isfinite(narrow) | ~np.isfinite(array)).all()

    assert ratio(by_numpy, lambda: rb.add(obs=given_value), 30, 20) < 1.5
