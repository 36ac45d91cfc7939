"""Bad input is refused with the field, what was expected and came; the buffer stays as it was."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from bad_steps import SCHEMA, Fields, step
from helpers import refused, snapshot

from cpprb_like import Mixture, ReplayBuffer, ReplayMemory
from cpprb_like.samplers import new_sum_tree


def steps(n: int, **changes: Any) -> Fields:
    """``n`` good steps, with some of their columns changed."""
    columns: Fields = {}
    for name, value in step().items():
        one = np.empty((), object) if name == "thing" else np.asarray(value)
        if name == "thing":
            one[()] = value
        columns[name] = np.repeat(one[None], n, axis=0)
    return columns | changes


@pytest.fixture
def rb() -> ReplayBuffer:
    """A buffer that has wrapped and holds an open episode."""
    buffer = ReplayBuffer(7, SCHEMA, seed=1)
    for i in range(10):
        buffer.add(**step(act=i, rew=i, terminated=i == 7))
    return buffer


# ---- names -------------------------------------------------------------------------------


def test_missing_field(rb: ReplayBuffer) -> None:
    """A call without a field names it."""
    fields = step()
    del fields["rew"]
    with refused(rb, TypeError, "rew", "missing"):
        rb.add(**fields)


def test_missing_fields_are_all_named(rb: ReplayBuffer) -> None:
    """A call without any field names those that it lacks."""
    with refused(rb, TypeError, "obs", "act", "rew", "image"):
        rb.add()


def test_unknown_field(rb: ReplayBuffer) -> None:
    """An unknown name is named, with the list of the known ones."""
    with refused(rb, TypeError, "reward", *map(repr, SCHEMA)):
        rb.add(**step(reward=1.0))


def test_unknown_instead_of_known_field(rb: ReplayBuffer) -> None:
    """A misspelt name is named as unknown, although as many fields came as are declared."""
    fields = step(Rew=1.0)
    del fields["rew"]
    with refused(rb, TypeError, "Rew", "rew"):
        rb.add(**fields)


@pytest.mark.parametrize("fields", [{}, {"obs": 1}, step()], ids=["alone", "with some", "with all"])
def test_positional_field(rb: ReplayBuffer, fields: Fields) -> None:
    """Values without names are refused."""
    with refused(rb, TypeError, "positional", "obs"):
        rb.add(np.ones((2, 3)), **fields)  # type: ignore[call-arg]


def test_a_step_of_another_schema(rb: ReplayBuffer) -> None:
    """A batch of a buffer with other fields, or other shapes of the same fields, is refused."""
    other = ReplayBuffer(4, {"state": {"shape": 4}, "act": {"shape": ()}})
    other.add(state=np.zeros(4), act=0)
    with refused(rb, TypeError, "state", "obs"):
        rb.add(**other.sample(3))

    reshaped = ReplayBuffer(4, SCHEMA | {"obs": {"shape": (3, 2)}})
    reshaped.add(**step(obs=np.ones((3, 2))))
    with refused(rb, ValueError, "'obs'", "(2, 3)", "(3, 3, 2)"):
        rb.add(**reshaped.sample(3))


# ---- shapes ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("obs", (3, 2)),
        ("obs", (6,)),
        ("obs", (2,)),
        ("obs", ()),
        ("obs", (1, 2, 2, 3)),
        ("obs", (2, 3, 1)),
        ("act", (1, 2)),
        ("act", (2, 2)),
        ("rew", (1, 2)),
        ("rew", (2, 2, 1)),
        ("image", (400,)),
        ("image", (20, 21)),
        ("terminated", (1, 2)),
    ],
)
@pytest.mark.parametrize("form", ["array", "list", "other dtype"])
def test_wrong_shape(rb: ReplayBuffer, name: str, shape: tuple[int, ...], form: str) -> None:
    """A wrong shape is refused with the declared one and the one that came."""
    value: Any = np.ones(shape, {"array": SCHEMA[name].get("dtype", "f4")}.get(form, "u1"))
    if form == "list":
        value = value.tolist()
    declared = SCHEMA[name]["shape"]
    expected = str((declared,) if isinstance(declared, int) else declared)
    with refused(rb, ValueError, f"'{name}'", "expected", expected, str(shape)):
        rb.add(**step(**{name: value}))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("obs", np.ones((3, 2, 3), "f4")),
        ("obs", np.ones((0, 2, 3), "f4")),
        ("obs", np.ones((3, 2, 3), "f8").tolist()),
        ("act", np.ones(3, "i1")),
        ("rew", np.ones(3)),
        ("rew", np.ones((1, 1), "f4")),
        ("rew", np.zeros((0, 1), "f4")),
        ("image", np.ones((1, 20, 20), "u1")),
        ("terminated", [True, False, True]),
        ("thing", np.array(["a", "b", "c"], object)),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_fields_that_disagree_on_the_number_of_steps(
    rb: ReplayBuffer, name: str, value: Any
) -> None:
    """One field of another length, one step for two included, is refused; nothing is broadcast."""
    with refused(rb, ValueError, f"'{name}'", "2", str(len(value))):
        rb.add(**steps(2, **{name: value}))


def test_one_step_is_not_broadcast(rb: ReplayBuffer) -> None:
    """A single value beside two steps does not fill both."""
    for name in SCHEMA:
        if name != "thing":
            with refused(rb, ValueError, f"'{name}'"):
                rb.add(**steps(2, **{name: step()[name]}))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("obs", [[1, 2, 3], [4, 5]]),
        ("obs", [[1, 2, 3], 4]),
        ("act", [[1, 2], [3]]),
        ("image", [[0] * 20] * 19 + [[0] * 21]),
    ],
)
def test_ragged_lists(rb: ReplayBuffer, name: str, value: Any) -> None:
    """A list whose rows differ in length is refused with the field and its shape."""
    with refused(rb, ValueError, f"'{name}'", str(SCHEMA[name]["shape"])):
        rb.add(**step(**{name: value}))


@pytest.mark.parametrize("n", [0, 1, 2, 4])
def test_wrong_number_of_environments(n: int) -> None:
    """With three environments every call brings three rows."""
    rb = ReplayBuffer(9, SCHEMA, n_envs=3)
    rb.add(**steps(3))
    with refused(rb, ValueError, "'obs'", "3", str(n)):
        rb.add(**steps(n))
    with refused(rb, ValueError, "'obs'", "3", str(n)):
        rb.add_where([True] * 3, **steps(n))
    with refused(rb, ValueError, "'obs'"):
        rb.add(**step())


@pytest.mark.parametrize(
    "present",
    [
        [True],
        [True] * 4,
        [[[True, True, True]]],
        True,
        None,
        [1, 2, 3],
        [0.5, 0.5, 0.5],
        "yes",
        ["a", "b", "c"],
    ],
    ids=str,
)
def test_bad_mask_of_environments(present: Any) -> None:
    """``add_where`` takes exactly one bool for each environment."""
    rb = ReplayBuffer(9, SCHEMA, n_envs=3)
    rb.add(**steps(3))
    with refused(rb, (TypeError, ValueError), "present"):
        rb.add_where(present, **steps(3))


# ---- values ------------------------------------------------------------------------------

LOSSY: list[tuple[str, Any]] = [
    ("act", 300),
    ("act", -129),
    ("act", 10**30),
    ("act", np.int64(300)),
    ("act", np.array(300)),
    ("act", np.array([300])),
    ("act", [300]),
    ("act", 1.9),
    ("act", np.float32(1.9)),
    ("act", np.array(1.9)),
    ("act", float("nan")),
    ("act", float("inf")),
    ("act", np.float64("nan")),
    ("act", np.array([np.nan])),
    ("act", [float("nan")]),
    ("act", 1j),
    ("act", 1 + 1j),
    ("act", "1"),
    ("act", "one"),
    ("act", b"1"),
    ("act", None),
    ("act", [None]),
    ("act", object()),
    ("act", {"a": 1}),
    ("act", {1}),
    ("act", np.datetime64("2020-01-01")),
    ("id", -1),
    ("id", 2**64),
    ("id", np.int8(-1)),
    ("id", [-1]),
    ("id", np.array(-1.0)),
    ("id", 1e30),
    ("id", 0.5),
    ("image", np.full((20, 20), 256)),
    ("image", np.full((20, 20), -1)),
    ("image", np.full((20, 20), 0.5)),
    ("image", np.full((20, 20), np.nan, "f4")),
    ("rew", 1e300),
    ("rew", -1e300),
    ("rew", np.float64(1e300)),
    ("rew", np.array([1e300])),
    ("rew", [1e300]),
    ("rew", 10**400),
    ("rew", 1 + 1j),
    ("rew", "0.5"),
    ("rew", None),
    ("rew", np.array([None])),
    ("obs", np.full((2, 3), 1e300)),
    ("obs", np.full((2, 3), 1j)),
    ("obs", np.full((2, 3), "1")),
    ("obs", np.full((2, 3), None)),
    ("flag", 0.5),
    ("flag", 2),
    ("flag", -1),
    ("flag", np.int8(2)),
    ("flag", np.array(0.5)),
    ("flag", np.array([2])),
    ("flag", float("nan")),
    ("flag", "True"),
    ("flag", None),
    ("terminated", 0.5),
    ("terminated", 2),
    ("terminated", float("nan")),
    ("name", "abcd"),
    ("name", np.array("abcd")),
    ("name", ["abcd"]),
    ("name", 5),
    ("raw", b"abc"),
    ("raw", np.array([b"abc"])),
    ("raw", "é"),
    ("when", "not a date"),
    ("when", 1.5),
    ("when", np.datetime64("2020-01-01T00:00:00.5", "ms")),
]


@pytest.mark.parametrize(("name", "value"), LOSSY, ids=lambda value: repr(value)[:40])
def test_values_that_would_change_their_meaning(rb: ReplayBuffer, name: str, value: Any) -> None:
    """A value that the field's dtype cannot hold is refused with the field and the dtype."""
    dtype = str(dict(zip(rb.schema.names, rb.schema.fields, strict=True))[name].dtype)
    with refused(rb, (TypeError, ValueError), f"'{name}'", dtype):
        rb.add(**step(**{name: value}))


def test_one_bad_value_among_many(rb: ReplayBuffer) -> None:
    """The value that does not fit is found wherever it stands in a large column, and is shown."""
    for position in (0, 500, 999):
        act = np.zeros(1000, "i8")
        act[position] = 777
        with refused(rb, ValueError, "'act'", "int8", "777"):
            rb.add(**steps(1000, act=act))


def test_the_value_is_shown(rb: ReplayBuffer) -> None:
    """The message holds what came."""
    for name, value in [("act", 300), ("act", 1.9), ("flag", 0.5), ("name", "abcd"), ("id", -1)]:
        with refused(rb, ValueError, f"'{name}'", repr(value).strip("'")):
            rb.add(**step(**{name: value}))


def test_masked_values(rb: ReplayBuffer) -> None:
    """A masked array is refused where a value is masked: there is no value to store."""
    masked = np.ma.masked_array(np.ones((2, 3), "f4"), mask=[[False, False, True], [False] * 3])
    with refused(rb, (TypeError, ValueError), "'obs'", "mask"):
        rb.add(**step(obs=masked))
    with refused(rb, (TypeError, ValueError), "'rew'"):
        rb.add(**step(rew=np.ma.masked))
    rb.add(**step(obs=np.ma.masked_array(np.full((2, 3), 4, "f4"), mask=False)))
    assert rb[3]["obs"].tolist() == [[4, 4, 4], [4, 4, 4]]


class Failing:
    """Raises when it is looked at as an array, a float, an integer or a sequence."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def _fail(self, *_: Any, **__: Any) -> Any:
        raise self.error

    __array__ = __float__ = __int__ = __index__ = __len__ = __getitem__ = __bool__ = __complex__ = (
        _fail
    )


class FailingFloat(float):
    """A float whose conversion raises."""

    def __float__(self) -> float:
        raise ZeroDivisionError("no float today")


class FailsHalfWay:
    """A sequence that raises at its second element."""

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> float:
        if index:
            raise ZeroDivisionError("no second element today")
        return 0.0


@pytest.mark.parametrize("name", [name for name in SCHEMA if name != "thing"])
@pytest.mark.parametrize("error", [ZeroDivisionError, ValueError, TypeError, RuntimeError])
def test_values_whose_conversion_raises(
    rb: ReplayBuffer, name: str, error: type[Exception]
) -> None:
    """Whatever a value's own methods raise comes out with the field's name; nothing is stored."""
    before = snapshot(rb)
    with pytest.raises(Exception) as caught:
        rb.add(**step(**{name: Failing(error("no value today"))}))
    assert "no value today" in _whole_story(caught.value)
    assert f"'{name}'" in _whole_story(caught.value)
    assert snapshot(rb) == before


@pytest.mark.parametrize("name", ["act", "rew"])
def test_values_that_fail_half_way(rb: ReplayBuffer, name: str) -> None:
    """A sequence that raises in its middle is refused with the field's name."""
    before = snapshot(rb)
    with pytest.raises(Exception) as caught:
        rb.add(**steps(3, **{name: FailsHalfWay()}))
    assert "no second element today" in _whole_story(caught.value)
    assert f"'{name}'" in _whole_story(caught.value)
    assert snapshot(rb) == before


def _whole_story(error: BaseException) -> str:
    """The message of an error, its notes and its causes."""
    notes = getattr(error, "__notes__", [])
    cause = error.__cause__ or error.__context__
    return "\n".join([str(error), *notes, _whole_story(cause) if cause else ""])


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError, SystemExit])
def test_errors_that_are_not_about_the_value_pass(
    rb: ReplayBuffer, error: type[BaseException]
) -> None:
    """An interrupt or a lack of memory during a conversion is not turned into another error."""

    class Interrupts:
        def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
            raise error

    with refused(rb, error):
        rb.add(**step(obs=Interrupts()))


# ---- inputs ------------------------------------------------------------------------------


def _cases() -> list[Callable[[], Fields]]:
    return [step, lambda: steps(3), lambda: step(obs=np.ones((2, 3), ">f8", order="F"))]


@pytest.mark.parametrize("make", _cases())
def test_inputs_are_neither_changed_nor_referenced(
    rb: ReplayBuffer, make: Callable[[], Fields]
) -> None:
    """What the caller passed is as before, and changing it later changes nothing in the buffer."""
    fields = make()
    copies = {name: np.array(value, copy=True) for name, value in fields.items() if name != "thing"}
    rb.add(**fields)
    for name, value in copies.items():
        np.testing.assert_array_equal(value, fields[name])
    before = snapshot(rb)
    for name, value in fields.items():
        if isinstance(value, np.ndarray):
            value[...] = None if name == "thing" else np.zeros((), value.dtype)
    assert snapshot(rb) == before


def test_env_dict_is_neither_changed_nor_referenced() -> None:
    """The caller's env_dict is as before, and changing it later changes nothing in the buffer."""
    env_dict: dict[str, Any] = {"x": {"shape": [2, 3], "dtype": "i4"}, "y": {}}
    rb = ReplayBuffer(5, env_dict)
    assert env_dict == {"x": {"shape": [2, 3], "dtype": "i4"}, "y": {}}
    env_dict["x"]["shape"][0] = 7
    env_dict["y"]["shape"] = 9
    rb.add(x=np.ones((2, 3)), y=1)
    assert rb.sample(4)["x"].shape == (4, 2, 3)


def own_list() -> list[Any]:
    """A list that holds itself."""
    found: list[Any] = [1]
    found.append(found)
    return found


def deep_list() -> list[Any]:
    """A list in lists."""
    found: list[Any] = []
    for _ in range(100):
        found = [found]
    return found


BAD_SEEDS: dict[str, Callable[[], Any]] = {
    "matrix": lambda: np.array([[1, 2]]).view(np.matrix),
    "itself": own_list,
    "deep": deep_list,
    "in an array": lambda: np.array([own_list(), 1], object),
    "masked": lambda: np.ma.masked_array([1, 2], mask=True),
    "float": lambda: 1.5,
    "text": lambda: "12",
    "floats": lambda: [1.0],
}


@pytest.mark.parametrize("case", BAD_SEEDS)
def test_a_seed_that_numpy_cannot_read_is_refused(case: str) -> None:
    """NumPy descended into a matrix, or a list that holds itself, until the process crashed."""
    seed = BAD_SEEDS[case]()
    makers: list[Callable[[], Any]] = [
        lambda: ReplayBuffer(4, {"x": {}}, seed=seed),
        lambda: Mixture({"a": ReplayBuffer(4, {"x": {}})}, {"a": 1}, seed=seed),
        lambda: ReplayMemory(4, seed=seed),
        lambda: ReplayBuffer(4, {"x": {}}).reseed(seed),
    ]
    for make in makers:
        with pytest.raises(TypeError, match="seed: expected an integer"):
            make()


@pytest.mark.parametrize("seed", [1, [1, 2], (1, [2, 3]), range(3), np.arange(3), np.array([[1]])])
def test_seeds_that_numpy_can_read_are_those_of_numpy(seed: Any) -> None:
    """Whatever was checked before, the draws are those of ``numpy.random.default_rng``.

    NumPy 2.5 takes no nested sequences any more.
    """
    try:
        expected = np.random.default_rng(seed)
    except TypeError:
        with pytest.raises(TypeError, match=r"seed: .*nested"):
            ReplayBuffer(4, {"x": {}}, seed=seed)
        return
    rb = ReplayBuffer(4, {"x": {}}, seed=seed)
    assert rb.rng.integers(10**9) == expected.integers(10**9)


HUGE_NUMBERS: dict[str, Callable[[ReplayBuffer, int], Any]] = {
    "n": lambda rb, huge: rb.episodes.sample(huge),
    "capacity": lambda _, huge: new_sum_tree(huge),
}


@pytest.mark.parametrize("huge", [2**61, 2**62, 2**63 - 1, 2**63, 2**70])
@pytest.mark.parametrize("name", HUGE_NUMBERS)
def test_numbers_beyond_the_machine_name_their_argument(name: str, huge: int) -> None:
    """An ``OverflowError`` of C, or NumPy's words, said nothing of the argument."""
    rb = ReplayBuffer(4, {"x": {}, "done": {"dtype": bool}})
    rb.add(x=[1, 2], done=[False, True])
    with pytest.raises(ValueError, match=f"^{name}: expected at most"):
        HUGE_NUMBERS[name](rb, huge)


def test_a_list_for_one_object_says_how_to_store_it() -> None:
    """An array that is the object of one step counts as a step for each entry."""
    rb = ReplayBuffer(4, {"note": {"shape": (), "dtype": object}, "rew": {"shape": ()}})
    with refused(rb, ValueError, "'note' has 3, 'rew' has 1", "note=[value]"):
        rb.add(note=np.arange(3), rew=1.0)
    rb.add(note=[np.arange(3)], rew=1.0)
    assert rb[0]["note"].tolist() == [0, 1, 2]


def test_a_bad_seed_is_named_once() -> None:
    """The message began with ``seed: seed:``."""
    with pytest.raises(TypeError, match=r"^seed: expected an integer, or lists"):
        ReplayBuffer(4, {"x": {}}, seed=1.5)  # type: ignore[arg-type]
