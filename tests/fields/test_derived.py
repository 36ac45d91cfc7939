"""``next_of``, ``stack_compress`` and ``Nstep``: what they mean, and what is refused."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
from helpers import refused

from cpprb_like import ReplayBuffer
from cpprb_like._arguments.checks import as_discount
from cpprb_like._fields.derived import derive, read_nstep
from cpprb_like._fields.schema import Schema, read_env_dict
from cpprb_like.typing import FieldSpec, NstepSpec
from cpprb_like.views import NStep, Sequences

FIELDS: dict[str, Any] = {
    "obs": {"shape": (2, 4), "dtype": "u1"},
    "rew": {"shape": ()},
    "act": {"shape": (), "dtype": "i8"},
    "phase": {"shape": (), "dtype": "c8"},
    "object": {"shape": (2,), "dtype": "O"},
    "none": {"shape": (3, 0)},
    "deep": {"shape": (2, 257), "dtype": "u1"},
    "done": {"shape": ()},
}


def schema_of(**extra: Any) -> Schema:
    """The fields above, and some more."""
    return Schema(read_env_dict({**FIELDS, **extra}, np.float32))


# ---------------------------------------------------------------- what is understood


@pytest.mark.parametrize("names", ["obs", ["obs"], ("obs",), {"obs"}, iter(["obs"])])
def test_next_of_adds_a_field_behind_the_others(names: Any) -> None:
    """The next value is a field like its source: the last one, unless it is declared."""
    schema = derive(schema_of(), names, None)
    assert schema.names == (*FIELDS, "next_obs")
    field = schema.fields[-1]
    assert (field.dtype, field.shape) == (np.dtype("u1"), (2, 4))
    assert schema.next_of == (("next_obs", "obs"),)


def test_a_declared_next_field_keeps_its_place() -> None:
    """A next field that is declared as its source is not stored either, and stays where it is."""
    fields: dict[str, FieldSpec] = {"next_x": {"shape": 3}, "x": {"shape": 3}, "y": {"shape": 3}}
    rb = ReplayBuffer(100, fields, next_of="x")
    plain = ReplayBuffer(100, fields)
    assert rb.schema.names == ("next_x", "x", "y")
    rb.add(next_x=[4, 5, 6], x=[1, 2, 3], y=[0, 0, 0])
    assert list(rb.sample(1)) == ["next_x", "x", "y"]
    assert rb.nbytes < plain.nbytes


@pytest.mark.parametrize(
    ("option", "stack"),
    [
        ("obs", (1, 4)),
        (["obs"], (1, 4)),
        ({"obs": -1}, (1, 4)),
        ({"obs": 1}, (1, 4)),
        ({"obs": 0}, (0, 2)),
        ({"obs": np.int8(-2)}, (0, 2)),
    ],
)
def test_the_axis_of_the_frames(option: Any, stack: tuple[int, int]) -> None:
    """Of a shape that tells nothing the last axis is taken, unless the dict has another."""
    is_told = isinstance(option, dict)
    with nullcontext() if is_told else pytest.warns(UserWarning, match="the last is taken"):
        (found,) = derive(schema_of(), None, option).stacks
    assert (found.axis, found.depth) == stack


def test_nothing_is_derived_by_default() -> None:
    """Without options, and with empty ones, the schema is the declared one."""
    schema = schema_of()
    nothings: list[Any] = [None, [], ()]
    for nothing in nothings:
        assert derive(schema, nothing, nothing) == schema
    assert derive(schema, None, {}) == schema
    assert read_nstep(None, schema) is None


def test_options_are_not_changed() -> None:
    """What the caller passes stays as it is."""
    options: NstepSpec = {"size": 2, "rew": ["rew"], "next": ["next_obs"], "discount": True}
    stacks, names = {"obs": 0}, ["obs"]
    rb = ReplayBuffer(9, FIELDS, next_of=names, stack_compress=stacks, Nstep=options)
    options["size"] = 1
    names.append("rew")
    assert options == {"size": 1, "rew": ["rew"], "next": ["next_obs"], "discount": True}
    assert (stacks, names) == ({"obs": 0}, ["obs", "rew"])
    assert rb.schema.names == (*FIELDS, "next_obs")
    assert rb.is_Nstep()


def test_nstep_takes_ends_from_the_last_step() -> None:
    """Fields that end episodes come from the last of the steps without being named."""
    nstep = read_nstep({"size": np.int64(3), "rew": "rew", "next": "obs"}, schema_of())
    assert nstep is not None
    assert (nstep.size, nstep.gamma) == (3, 0.99)
    assert (nstep.rewards, nstep.last_step_fields) == (("rew",), ("obs", "done"))
    assert not nstep.discount


@pytest.mark.parametrize("shape", [(), (1,)])
def test_discount_has_the_shape_of_the_reward(shape: tuple[int, ...]) -> None:
    """It multiplies the value of what follows, which is added to the reward: one shape, float32."""
    rb = ReplayBuffer(
        9, {"rew": {"shape": shape}}, Nstep={"size": 2, "rew": "rew", "discount": True}
    )
    rb.add(rew=[1, 2, 3])
    batch = rb.sample(5)
    assert batch["discount"].shape == batch["rew"].shape == (5, *shape)
    assert batch["discount"].dtype == np.float32
    assert list(batch) == ["rew", "discount"]


@pytest.mark.parametrize("gamma", [0, 1, 0.5, np.float32(0.5), np.float64(0.5)])
def test_gamma_is_any_number_from_0_to_1(gamma: Any) -> None:
    """Integers and NumPy's floats will do."""
    assert as_discount("gamma", gamma) == float(gamma)


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("names", "error", "words"),
    [
        ("reward", ValueError, ["'reward'", "'rew'"]),
        ("", ValueError, ["''"]),
        (["obs", "obs"], ValueError, ["once", "'obs'"]),
        (5, TypeError, ["5"]),
        (True, TypeError, ["True"]),
        ([5], TypeError, ["5"]),
        ([["obs"]], TypeError, ["['obs']"]),
        (b"obs", TypeError, ["names of fields"]),
        (["obs", None], TypeError, ["None"]),
        ("object", ValueError, ["'object'", "Python objects"]),
        ("next_obs", ValueError, ["'next_obs'"]),
    ],
)
@pytest.mark.parametrize("option", ["next_of", "stack_compress", "rew", "next"])
def test_names_that_are_none(option: str, names: Any, error: Any, words: list[str]) -> None:
    """Names of fields are names of fields, each once; the error says which option and what."""
    if option in ("next_of", "stack_compress"):
        options: dict[str, Any] = {option: names}
    else:
        options = {"Nstep": {"size": 1, option: names}}
    with pytest.raises(error) as caught:
        ReplayBuffer(10, FIELDS, **options)
    assert all(word in str(caught.value) for word in [option, *words]), str(caught.value)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"obs": 2}, ValueError, ["'obs'", "(2, 4)", "2"]),
        ({"obs": -3}, ValueError, ["'obs'", "(2, 4)", "-3"]),
        ({"obs": True}, TypeError, ["'obs'", "True"]),
        ({"obs": "last"}, TypeError, ["'obs'", "'last'"]),
        ({"obs": None}, TypeError, ["'obs'", "None"]),
        ({"obs": 1.0}, TypeError, ["'obs'", "1.0"]),
        ({"reward": 0}, ValueError, ["'reward'"]),
        ("rew", ValueError, ["'rew'", "()"]),
        ({"none": 1}, ValueError, ["'none'", "256", "got 0"]),
        ({"deep": 1}, ValueError, ["'deep'", "256", "got 257"]),
    ],
)
def test_fields_that_are_no_stacks(options: Any, error: Any, words: list[str]) -> None:
    """A stack has an axis of 1 to 256 frames."""
    with pytest.raises(error) as caught:
        ReplayBuffer(10, FIELDS, stack_compress=options)
    message = str(caught.value)
    assert all(word in message for word in ["stack_compress", *words]), message


@pytest.mark.parametrize(
    "declared",
    [
        {"shape": (2, 4), "dtype": "i1"},
        {"shape": (2, 4), "dtype": ">u2"},
        {"shape": (4, 2), "dtype": "u1"},
        {"shape": 8, "dtype": "u1"},
    ],
)
def test_a_next_field_of_another_kind_is_refused(declared: FieldSpec) -> None:
    """A declared next field is of the dtype and shape of its source; the error names both."""
    dtype = np.dtype(declared["dtype"]).newbyteorder("=")
    with pytest.raises(ValueError, match=rf"next_of='obs'.*'next_obs'.*{dtype}.*uint8"):
        ReplayBuffer(10, {**FIELDS, "next_obs": declared}, next_of="obs")


def test_next_values_have_no_next_values() -> None:
    """A field cannot be a next value and have one."""
    fields = {**FIELDS, "next_obs": FIELDS["obs"]}
    with pytest.raises(ValueError, match=r"next_of.*'next_obs'"):
        ReplayBuffer(10, fields, next_of=["obs", "next_obs"])


@pytest.mark.parametrize("declared", [True, False])
@pytest.mark.parametrize("names", [["obs", "next_obs"], ["next_obs", "obs"], "next_obs"], ids=str)
def test_next_values_may_be_named_as_stacks_too(names: Any, declared: bool) -> None:
    """As for cpprb: they are stored with their source, so that naming them changes nothing."""
    fields: dict[str, FieldSpec] = {"obs": {"shape": (2, 2, 4)}}
    both: dict[str, FieldSpec] = {**fields, "next_obs": {"shape": (2, 2, 4)}}
    rb = ReplayBuffer(10, both if declared else fields, next_of="obs", stack_compress=names)
    stacks = np.lib.stride_tricks.sliding_window_view(np.arange(60.0), 4)[:20, None, None]
    stacks = np.broadcast_to(stacks, (20, 2, 2, 4))
    rb.add(obs=stacks[:-1], next_obs=stacks[1:])
    rows = rb[:]
    np.testing.assert_array_equal(rows["next_obs"], rows["obs"] + 1)
    assert [stack.name for stack in rb.schema.stacks] == ["obs"] * (names != "next_obs")
    with pytest.raises(ValueError, match=r"'next_obs' of shape .* has no axis 7"):
        ReplayBuffer(10, both, next_of="obs", stack_compress={"obs": 2, "next_obs": 7})


@pytest.mark.parametrize("size", [3.0, np.float32(3), np.int8(3), np.float64(3)])
def test_n_may_be_a_whole_float(size: Any) -> None:
    """As a size may: ``Nstep={"size": 3.0}`` of a configuration file was refused."""
    rb = ReplayBuffer(10, {"rew": {"shape": ()}}, Nstep={"size": size, "gamma": 1.0})
    rb.add(rew=np.ones(5))
    assert rb.get_all_transitions()["rew"].tolist() == [3, 3, 3]
    wrongs: list[Any] = [2.5, float("nan"), float("inf"), True]
    for wrong in wrongs:
        with pytest.raises(TypeError, match=r"Nstep\['size'\]: expected an integer"):
            ReplayBuffer(10, {"rew": {}}, Nstep={"size": wrong})


@pytest.mark.parametrize("truncated", ["truncated", "cut"])
def test_n_step_returns_beside_truncations_want_a_discount(truncated: str) -> None:
    """A warning says once that batches do not tell over how many steps a row was summed.

    Of the option of a buffer, and of the layer of a view.

    A window before a truncation has fewer than n steps, so that ``gamma ** n`` is wrong there.
    """
    flag: FieldSpec = {"shape": (), "dtype": bool}
    number: FieldSpec = {"shape": ()}
    fields = {"obs": number, "rew": number, "next_obs": number, "done": flag, truncated: flag}
    options: dict[str, Any] = {"truncated": truncated} if truncated == "cut" else {}
    words = rf"Nstep: rows before a truncation \('{truncated}'\)"
    with pytest.warns(UserWarning, match=words) as said:
        ReplayBuffer(10, fields, Nstep={"size": 3}, **options)
    rb = ReplayBuffer(10, fields, **options)
    with pytest.warns(UserWarning, match=words) as said_of_a_view:
        rb.view(NStep(3))
    assert [one.filename for one in [*said, *said_of_a_view]] == [__file__] * 2
    quiet: list[tuple[dict[str, Any], Any]] = [
        (fields, {"size": 3, "discount": True}),
        (fields, {"size": 3, "discount": False}),
        (fields, {"size": 3, "next": []}),
        (fields, {"size": 1}),
        ({name: spec for name, spec in fields.items() if name != truncated}, {"size": 3}),
    ]
    for declared, nstep in quiet:
        given = options if truncated in declared else {}
        ReplayBuffer(10, declared, Nstep=nstep, **given).view(Sequences(2))
        ReplayBuffer(10, declared, **given).view(NStep(**nstep))


@pytest.mark.parametrize(
    ("nstep", "error", "words"),
    [
        (3, TypeError, ["3"]),
        ("3", TypeError, ["'3'"]),
        (True, TypeError, ["True"]),
        ([("size", 3)], TypeError, ["dict"]),
        ({"gamma": 0.9}, ValueError, ["size"]),
        ({"size": 3, "gama": 0.9}, ValueError, ["gama", "'gamma'"]),
        ({"size": 3, 5: 0.9}, ValueError, ["5: 0.9"]),
        ({"size": 0}, ValueError, ["size", "at least 1", "0"]),
        ({"size": -1}, ValueError, ["size", "at least 1", "-1"]),
        ({"size": 10**30}, ValueError, ["size", "1048576", "10"]),
        ({"size": 2.5}, TypeError, ["size", "2.5"]),
        ({"size": "3"}, TypeError, ["size", "'3'"]),
        ({"size": True}, TypeError, ["size", "True"]),
        ({"size": None}, TypeError, ["size", "None"]),
        ({"size": 2, "gamma": 1.01}, ValueError, ["gamma", "1.01"]),
        ({"size": 2, "gamma": -0.1}, ValueError, ["gamma", "-0.1"]),
        ({"size": 2, "gamma": float("nan")}, ValueError, ["gamma", "nan"]),
        ({"size": 2, "gamma": float("inf")}, ValueError, ["gamma", "inf"]),
        ({"size": 2, "gamma": True}, TypeError, ["gamma", "True"]),
        ({"size": 2, "gamma": "0.9"}, TypeError, ["gamma", "'0.9'"]),
        ({"size": 2, "gamma": None}, TypeError, ["gamma", "None"]),
        ({"size": 2, "gamma": 1j}, TypeError, ["gamma", "1j"]),
        ({"size": 2, "discount": "no"}, TypeError, ["discount", "'no'"]),
        ({"size": 2, "discount": None}, TypeError, ["discount", "None"]),
        ({"size": 2, "rew": ["rew", "done"]}, ValueError, ["rew", "'done'"]),
        ({"size": 2, "next": {"obs": 1}}, TypeError, ["next", "{'obs': 1}"]),
        ({"size": 2, "rew": "act"}, ValueError, ["rew", "'act'", "int64"]),
        ({"size": 2, "rew": "phase"}, ValueError, ["rew", "'phase'", "complex64"]),
        ({"size": 2, "rew": "rew", "next": "rew"}, ValueError, ["'rew'", "'next'"]),
    ],
)
def test_options_of_several_steps(nstep: Any, error: Any, words: list[str]) -> None:
    """A wrong option is refused when the buffer is made; the error says which and what."""
    with pytest.raises(error) as caught:
        ReplayBuffer(10, FIELDS, Nstep=nstep)
    message = str(caught.value)
    assert all(word in message for word in ["Nstep", *words]), message


def test_steps_take_no_room_from_the_rows() -> None:
    """A window may be longer than the buffer: incomplete rows have slots of their own."""
    rb = ReplayBuffer(1, {"rew": {"shape": ()}}, Nstep={"size": 4, "rew": "rew", "gamma": 1.0})
    rb.add(rew=[1, 2, 3, 4, 5])
    assert rb.sample(1)["rew"].tolist() == [14]
    assert (len(rb), rb.capacity) == (1, 1)


def test_a_field_called_discount() -> None:
    """It cannot be asked for twice; without the option the field is a field."""
    fields: dict[str, FieldSpec] = {"discount": {"shape": ()}}
    with pytest.raises(ValueError, match=r"discount.*field"):
        ReplayBuffer(10, fields, Nstep={"size": 2, "discount": True, "rew": []})
    rb = ReplayBuffer(10, fields, Nstep={"size": 2, "rew": []})
    rb.add(discount=[1, 2, 3])
    assert rb.get_all_transitions()["discount"].tolist() == [1, 2]


# ---------------------------------------------------------------- what is refused when reading


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"size": 0}, ValueError, ["size", "0"]),
        ({"size": 13}, ValueError, ["size", "13 rows", "12 rows"]),
        ({"size": (3, 1)}, ValueError, ["size", "3", "1"]),
        ({"size": (0, 2)}, ValueError, ["size", "0"]),
        ({"size": (1, 2, 3)}, ValueError, ["size", "(1, 2, 3)"]),
        ({"size": (1,)}, ValueError, ["size", "(1,)"]),
        ({"size": ()}, ValueError, ["size", "()"]),
        ({"size": (1, None)}, TypeError, ["size", "None"]),
        ({"size": [1, 2]}, TypeError, ["size", "[1, 2]"]),
        ({"size": True}, TypeError, ["size", "True"]),
        ({"size": 1.5}, TypeError, ["size", "1.5"]),
        ({"size": "2"}, TypeError, ["size", "'2'"]),
        ({"size": 2, "gamma": 1.5}, ValueError, ["gamma", "1.5"]),
        ({"size": 2, "gamma": float("nan")}, ValueError, ["gamma", "nan"]),
        ({"size": 2, "gamma": True}, TypeError, ["gamma", "True"]),
        ({"size": 2, "gamma": "x"}, TypeError, ["gamma", "'x'"]),
        ({"size": 2, "rew": "none"}, ValueError, ["'rew'", "'none'"]),
        ({"size": 2, "rew": 3}, TypeError, ["'rew'", "3"]),
        ({"size": 2, "next": "rew"}, ValueError, ["rew", "next"]),
        ({"size": 2, "discount": 1}, TypeError, ["discount", "1"]),
    ],
)
def test_numbers_of_steps_that_are_none(
    options: dict[str, Any], error: Any, words: list[str]
) -> None:
    """A row is read as 1 step or more, up to as many as there is room for; or nothing is drawn."""
    rb = ReplayBuffer(10, {"rew": {"shape": ()}}, Nstep={"size": 3, "rew": "rew"}, seed=1)
    rb.add(rew=np.arange(9.0))
    with refused(rb, error, *words):
        rb.view(NStep(**options))


@pytest.mark.parametrize("size", [1, 2, (1, 2)])
def test_a_buffer_of_single_steps(size: Any) -> None:
    """Without ``Nstep`` a view reads several steps as well."""
    rb = ReplayBuffer(10, {"rew": {"shape": ()}}, seed=1)
    rb.add(rew=np.full(9, 1.0))
    found = set(rb.view(NStep(size, 0.5)).sample(50)["rew"].tolist())
    assert found == {1: {1.0}, 2: {1.5}, (1, 2): {1.0, 1.5}}[size]


def test_next_values_are_fields_like_others() -> None:
    """A missing or misshapen next value is refused by name, and nothing changes."""
    rb = ReplayBuffer(4, {"x": {"shape": 2}}, next_of="x", stack_compress="x")
    rb.add(x=[1, 2], next_x=[2, 3])
    with refused(rb, TypeError, "'next_x'"):
        rb.add(x=[1, 2])
    with refused(rb, ValueError, "'next_x'", "(2,)", "(3,)"):
        rb.add(x=[1, 2], next_x=[1, 2, 3])
    with refused(rb, ValueError, "'x' has 2", "'next_x' has 1"):
        rb.add(x=[[1, 2], [3, 4]], next_x=[1, 2])
    with refused(rb, ValueError, "next_x"):
        rb.sample(1, out={"x": np.zeros((1, 2), "f4"), "next_x": np.zeros((1, 2), "f8")})
