"""Autoreset modes that are not what they say, calls at the wrong time, and bad values."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from gymnasium_cases import (
    ENDED,
    FINAL,
    MODES,
    OBS,
    STILL,
    Array,
    attached,
    cart_pole,
    spaces_of,
    vector,
    vector_spaces,
)
from helpers import refused

from cpprb_like import ReplayBuffer
from cpprb_like.integrations.gymnasium import GymnasiumRecorder
from cpprb_like.typing import FieldSpec

# ---------------------------------------------------------------- autoreset modes


def test_a_buffer_for_values_of_any_length() -> None:
    """Arrays of one shape go there too. Any number of items goes into no other field."""
    env = cart_pole()
    recorder = GymnasiumRecorder(env)
    fields: dict[str, Any] = recorder.env_dict | {"obs": {"shape": ("T",)}}
    rb = recorder.attach(ReplayBuffer(9, fields, room={"T": 99}))
    obs, _ = recorder.reset(seed=0)
    recorder.step(0)
    np.testing.assert_array_equal(rb[0]["obs"], obs)

    recorder = GymnasiumRecorder(spaces_of(spaces.Sequence(spaces.Discrete(3))))
    fields = recorder.env_dict
    for fixed in (FieldSpec(shape=3), FieldSpec(shape=(), dtype=object)):
        rb = ReplayBuffer(9, fields | {"obs": fixed}, room={"next_obs": 9})
        with pytest.raises(ValueError, match=r"named axis of the fields \['obs'\], as in env_dict"):
            recorder.attach(rb)


def test_texts_of_one_size() -> None:
    """A buffer may keep them in a fixed width, which refuses longer ones."""
    recorder = GymnasiumRecorder(spaces_of(spaces.Text(9)))
    fields = recorder.env_dict | {name: {"dtype": "U2"} for name in ("obs", "next_obs")}
    rb = recorder.attach(ReplayBuffer(9, fields))
    recorder.reset("ab")
    recorder.add(0, "c", 0.0, False, False, {})
    assert [rb[0][name].item() for name in ("obs", "next_obs")] == ["ab", "c"]
    with refused(rb, ValueError, "'next_obs'", "<U2"):
        recorder.add(0, "abc", 0.0, False, False, {})


@pytest.mark.parametrize(
    ("mode", "text"), [(mode, text) for mode in MODES for text in (mode.name, mode.value)]
)
def test_mode_by_name(mode: AutoresetMode, text: str) -> None:
    """Metadata and argument take the names and values of Gymnasium's modes; the argument wins."""
    assert GymnasiumRecorder(vector_spaces(mode)).autoreset_mode is mode
    assert GymnasiumRecorder(vector_spaces(text)).autoreset_mode is mode
    assert GymnasiumRecorder(vector_spaces("Disabled"), autoreset_mode=text).autoreset_mode is mode


def test_vector_environment_without_a_mode() -> None:
    """Nothing is guessed."""
    with pytest.raises(ValueError, match="give autoreset_mode='NEXT_STEP', 'SAME_STEP' or"):
        GymnasiumRecorder(vector_spaces())
    with pytest.raises(ValueError, match=r"expected one of \['NEXT_STEP'.* got 'sometimes'"):
        GymnasiumRecorder(vector_spaces("sometimes"))


def test_metadata_shared_between_vector_environments() -> None:
    """In Gymnasium 1.1 the last environment built leaves its mode in the metadata of its class."""
    shared = {"autoreset_mode": AutoresetMode.SAME_STEP}
    env = vector("cart pole", AutoresetMode.NEXT_STEP)
    env.metadata = shared
    assert GymnasiumRecorder(env).autoreset_mode is AutoresetMode.NEXT_STEP


@pytest.mark.parametrize(
    ("mode", "flags", "info"),
    [
        ("NEXT_STEP", ENDED, {"final_obs": FINAL}),
        ("NEXT_STEP", STILL, {"final_obs": FINAL}),
        ("NEXT_STEP", ENDED, {"final_obs": np.ones((2, 2))}),
        ("DISABLED", ENDED, {"final_obs": FINAL}),
        ("DISABLED", ENDED, [{}, {"final_obs": np.ones(2)}]),
        ("SAME_STEP", ENDED, {}),
        ("SAME_STEP", ENDED, [{}, {}]),
        ("SAME_STEP", STILL, {"final_obs": FINAL}),
        ("SAME_STEP", ENDED[::-1], {"final_obs": FINAL}),
        ("SAME_STEP", ~STILL, {"final_obs": FINAL}),
        ("SAME_STEP", STILL, {"final_obs": np.ones((2, 2)), "_final_obs": ENDED}),
    ],
)
def test_info_that_contradicts_the_mode(mode: str, flags: Array, info: Any) -> None:
    """Final observations come where an episode ended in SAME_STEP mode, and nowhere else."""
    recorder, rb = attached(vector_spaces(mode))
    recorder.reset(OBS)
    with refused(rb, ValueError, "final_obs", "autoreset mode", mode):
        recorder.add([0, 1], OBS, [0, 0], flags, STILL, info)
    recorder.add([0, 1], OBS, [0, 0], STILL, STILL, {})
    assert len(rb) == 2


def test_end_in_the_step_that_should_be_a_reset() -> None:
    """An environment that ends twice in a row does not reset in the next step."""
    recorder, rb = attached(vector_spaces("NEXT_STEP"))
    recorder.reset(OBS)
    recorder.add([0, 1], OBS, [0, 0], ENDED, STILL, {})
    with refused(rb, ValueError, "environments [1]", "NEXT_STEP"):
        recorder.add([0, 1], OBS, [0, 0], STILL, ENDED, {})
    recorder.add([0, 1], OBS, [0, 0], STILL, STILL, {})
    assert len(rb) == 3


@pytest.mark.parametrize("mask", [None, ENDED])
def test_final_observations_in_a_batch(mask: Array | None) -> None:
    """``final_obs`` may be batched like observations, with or without a mask."""
    env = spaces_of(
        spaces.Dict({"a": spaces.Box(-9, 9, (2,)), "b": spaces.Discrete(9)}),
        num_envs=2,
        metadata={"autoreset_mode": "SAME_STEP"},
    )
    recorder, rb = attached(env)
    zeros, ones = ({"a": np.full((2, 2), i), "b": np.full(2, i)} for i in range(2))
    info = {"final_obs": ones} if mask is None else {"final_obs": ones, "_final_obs": mask}
    recorder.reset(zeros)
    recorder.add([0, 1], zeros, [0, 0], ENDED, STILL, info)
    recorder.add([0, 1], zeros, [0, 0], STILL, STILL, {})
    batch = rb.get_all_transitions()
    assert batch["next_obs.b"].tolist() == [0, 1, 0, 0]
    assert batch["next_obs.a"].tolist() == [[0, 0], [1, 1], [0, 0], [0, 0]]
    assert batch["obs.b"].tolist() == [0, 0, 0, 0]


def test_final_observations_of_any_length() -> None:
    """They come one by one, or batched like observations, of one environment and of several."""
    sequences = spaces.Sequence(spaces.Discrete(9))
    for info in (
        {"final_obs": np.array([None, (5, 6)], object)},
        {"final_obs": ((), (5, 6)), "_final_obs": ENDED},
        [{}, {"final_obs": (5, 6)}],
    ):
        recorder, rb = attached(spaces_of(sequences, num_envs=2), autoreset_mode="SAME_STEP")
        recorder.reset(((), (1,)))
        recorder.add([0, 0], ((2,), ()), [0, 0], ENDED, STILL, info)
        recorder.add([0, 0], ((3,), (4,)), [0, 0], STILL, STILL, {})
        assert [rb[slot]["obs"].tolist() for slot in range(4)] == [[], [1], [2], []]
        assert [rb[slot]["next_obs"].tolist() for slot in range(4)] == [[2], [5, 6], [3], [4]]
    recorder, rb = attached(spaces_of(sequences), autoreset_mode="SAME_STEP")
    recorder.reset((1,))
    recorder.add(0, (), 0.0, True, False, {"final_obs": (5, 6)})
    recorder.add(0, (3,), 0.0, False, False, {})
    assert [rb[slot]["obs"].tolist() for slot in range(2)] == [[1], []]
    assert [rb[slot]["next_obs"].tolist() for slot in range(2)] == [[5, 6], [3]]


def test_final_observation_of_a_wider_type() -> None:
    """A final observation is not rounded to the type of the others."""
    recorder, rb = attached(vector_spaces("SAME_STEP"))
    recorder.reset(OBS)
    info = {"final_obs": np.array([None, np.array([0.5, 1.5])], object)}
    recorder.add([0, 1], OBS.astype(int), [0, 0], ENDED, STILL, info)
    assert rb.get_all_transitions()["next_obs"].tolist() == [[0, 0], [0.5, 1.5]]


def test_single_environment_that_resets_in_the_same_step() -> None:
    """The final observation is taken from ``info``."""
    recorder, rb = attached(spaces_of(spaces.Discrete(9)), autoreset_mode="SAME_STEP")
    recorder.reset(1)
    recorder.add(0, 2, 0.0, True, False, {"final_obs": 5})
    recorder.add(0, 3, 0.0, False, False, {})
    batch = rb.get_all_transitions()
    assert batch["obs"].tolist() == [1, 2]
    assert batch["next_obs"].tolist() == [5, 3]
    with refused(rb, ValueError, "final_obs"):
        recorder.add(0, 3, 0.0, False, True, {})


@pytest.mark.parametrize("mode", [None, "NEXT_STEP"])
@pytest.mark.parametrize("key", ["final_obs", "final_observation", "terminal_observation"])
def test_single_environment_that_resets_although_its_mode_says_no(key: str, mode: Any) -> None:
    """Each end got the first observation of another episode, with the final one in ``info``.

    The same info within an episode, and an end without it, say nothing of a reset.
    """
    for space in (spaces.Discrete(9), spaces.Text(3)):  # compiled, and in Python
        first, later = (1, 2) if isinstance(space, spaces.Discrete) else ("a", "b")
        recorder, rb = attached(spaces_of(space), autoreset_mode=mode)
        recorder.reset(first)
        recorder.add(0, later, 0.0, False, False, {key: first})
        with refused(rb, ValueError, key, "has reset within step", "autoreset_mode='SAME_STEP'"):
            recorder.add(0, later, 0.0, True, False, {key: later})
        with refused(rb, ValueError, key):
            recorder.add(0, later, 0.0, False, True, {key: later})
        recorder.add(0, later, 0.0, True, False, {key: None})
        assert len(rb) == 2


# ---------------------------------------------------------------- calls at the wrong time


def test_step_without_a_reset() -> None:
    """An episode begins with ``reset``: the first one, and each after an end."""
    recorder, rb = attached(cart_pole())
    obs = np.zeros(4, np.float32)
    step: Any = (0, obs, 1.0, True, False, {})
    with refused(rb, RuntimeError, "reset(obs)"):
        recorder.add(*step)
    recorder.reset(obs)
    recorder.add(*step)
    with refused(rb, RuntimeError, "has ended", "env.reset()", "autoreset_mode"):
        recorder.add(*step)
    recorder.reset(obs)
    recorder.add(*step)
    assert len(rb) == 2


def test_disabled_mode_names_the_environments_to_reset() -> None:
    """All environments whose episode ended must be reset before the next step."""
    recorder, rb = attached(vector_spaces("DISABLED"))
    recorder.reset(OBS)
    recorder.add([0, 1], OBS, [0, 0], STILL, ~STILL, {})
    recorder.reset(OBS, ENDED)
    with refused(rb, RuntimeError, "environments [0]"):
        recorder.add([0, 1], OBS, [0, 0], STILL, STILL, {})
    recorder.reset(OBS, ~ENDED)
    recorder.add([0, 1], OBS, [0, 0], STILL, STILL, {})
    assert len(rb) == 4


def test_observations_outside_the_mask_are_not_looked_at() -> None:
    """Environments that go on keep the observation of their last step."""
    recorder, rb = attached(vector_spaces("DISABLED"))
    recorder.reset(OBS)
    recorder.add([0, 1], OBS + 1, [0, 0], STILL, ENDED, {})
    recorder.reset(OBS + 7, ENDED)
    recorder.add([0, 1], OBS, [0, 0], STILL, STILL, {})
    assert rb.get_all_transitions()["obs"][2:].tolist() == [[1, 1], [7, 7]]


@pytest.mark.parametrize(
    ("space", "first", "later"),
    [
        (spaces.Box(-9, 9, (), np.float64), np.array([1.5, 2.5]), np.array([3, 4])),
        (spaces.Text(8), np.array(["abcdef", "ghijkl"]), np.array(["x", "y"])),
    ],
)
def test_a_masked_reset_keeps_other_observations_whatever_its_dtype(
    space: spaces.Space[Any], first: Array, later: Array
) -> None:
    """Whole numbers and short texts do not cut what the other environments go on from."""
    recorder, rb = attached(spaces_of(space, num_envs=2, metadata={"autoreset_mode": "DISABLED"}))
    recorder.reset(first)
    recorder.reset(later, ENDED)
    recorder.add([0, 1], first, [0, 0], STILL, STILL, {})
    assert ENDED.tolist() == [False, True]
    assert rb.get_all_transitions()["obs"].tolist() == [first[0], later[1]]


def test_a_reset_that_is_masked_out_changes_nothing() -> None:
    """A single environment goes on, whatever the length of what came."""
    recorder, rb = attached(spaces_of(spaces.Sequence(spaces.Discrete(9))))
    recorder.reset((1, 2))
    recorder.reset((3,), np.False_)
    recorder.add(0, (), 0.0, False, False, {})
    assert rb[0]["obs"].tolist() == [1, 2]
    recorder.reset((4, 5, 6), np.True_)
    recorder.add(0, (), 0.0, False, False, {})
    assert rb[1]["obs"].tolist() == [4, 5, 6]


def test_mask_before_the_first_reset() -> None:
    """There is no observation yet for the environments outside the mask."""
    recorder, rb = attached(vector_spaces("DISABLED"))
    with refused(rb, RuntimeError, "no mask"):
        recorder.reset(OBS, ENDED)


def test_recorder_without_a_buffer() -> None:
    """It says what to do first."""
    recorder = GymnasiumRecorder(cart_pole())
    with pytest.raises(RuntimeError, match=r"call attach\(buffer\)"):
        recorder.reset(np.zeros(4))
    with pytest.raises(RuntimeError, match=r"call attach\(buffer\)"):
        recorder.add(0, np.zeros(4), 0.0, False, False, {})


def test_attaching_a_second_buffer_needs_a_reset() -> None:
    """A buffer never begins in the middle of an episode."""
    recorder, first = attached(cart_pole())
    recorder.reset(np.zeros(4))
    recorder.add(0, np.ones(4), 0.0, False, False, {})
    second = recorder.attach(ReplayBuffer(10, recorder.env_dict))
    with refused(second, RuntimeError, "reset(obs)"):
        recorder.add(0, np.ones(4), 0.0, False, False, {})
    recorder.reset(np.zeros(4))
    recorder.add(0, np.ones(4), 0.0, False, False, {})
    assert (len(first), len(second)) == (1, 1)


def test_attaching_to_a_buffer_in_the_middle_of_an_episode() -> None:
    """What the buffer held before is another episode."""
    env = cart_pole()
    recorder = GymnasiumRecorder(env)
    rb = ReplayBuffer(10, recorder.env_dict)
    obs = np.zeros(4)
    rb.add(obs=obs, act=0, rew=0, next_obs=obs, terminated=False, truncated=False)
    recorder.attach(rb)
    recorder.reset(env.reset()[0])
    assert rb.get_current_episode_len() == 0


def test_buffer_that_does_not_fit() -> None:
    """Missing fields and another number of environments are refused, further fields are not."""
    recorder = GymnasiumRecorder(vector_spaces("DISABLED"))
    fields = recorder.env_dict
    with pytest.raises(ValueError, match="expected a buffer of n_envs=2, got 1"):
        recorder.attach(ReplayBuffer(10, fields, n_envs=1))
    del fields["next_obs"]
    with pytest.raises(ValueError, match=r"lacks the fields \['next_obs'\]"):
        recorder.attach(ReplayBuffer(10, fields, n_envs=2))
    with pytest.raises(RuntimeError, match="call attach"):
        recorder.reset(OBS)


# ---------------------------------------------------------------- values


def test_copies_are_stored_and_inputs_stay() -> None:
    """Later changes of what was given change no row, and the recorder changes nothing itself."""
    recorder, rb = attached(vector_spaces("SAME_STEP"))
    obs, action, rew = OBS.copy(), np.array([0, 1]), np.array([0.5, 1.5])
    term, trunc, final = ENDED.copy(), STILL.copy(), copy.deepcopy(FINAL)
    mask = ENDED.copy()
    recorder.reset(obs)
    recorder.reset(obs, mask)
    obs += 1
    recorder.add(action, obs, rew, term, trunc, {"final_obs": final})
    assert mask.tolist() == ENDED.tolist()
    assert obs.tolist() == [[1, 1], [1, 1]]
    assert (action.tolist(), rew.tolist()) == ([0, 1], [0.5, 1.5])
    assert (term.tolist(), trunc.tolist()) == (ENDED.tolist(), STILL.tolist())
    assert final[0] is None
    for array in (obs, action, rew):
        array += 1
    term[:] = True
    final[1] += 5
    recorder.add([0, 1], obs, [0, 0], STILL, STILL, {})
    batch = rb.get_all_transitions()
    assert batch["obs"].tolist() == [[0, 0], [0, 0], [1, 1], [1, 1]]
    assert batch["next_obs"].tolist() == [[1, 1], [1, 1], [2, 2], [2, 2]]
    assert batch["rew"].tolist() == [0.5, 1.5, 0, 0]
    assert batch["terminated"].tolist() == [False, True, False, False]


def test_objects_are_copied() -> None:
    """Python objects in a buffer do not change with those that were given."""
    recorder, rb = attached(spaces_of(spaces.OneOf([spaces.Box(0, 9, (1,))])))
    given = (0, np.zeros(1))
    recorder.reset(given)
    recorder.add(0, given, 0.0, False, False, {})
    given[1][0] = 7
    recorder.add(0, (0, np.ones(1)), 0.0, False, False, {})
    batch = rb.get_all_transitions()
    assert [value.tolist() for _, value in batch["obs"]] == [[0.0], [0.0]]
    assert [value.tolist() for _, value in batch["next_obs"]] == [[0.0], [1.0]]


@pytest.mark.parametrize("stack", [False, True])
@pytest.mark.parametrize("n_envs", [None, 1, 2])
def test_items_are_copied(n_envs: int | None, stack: bool) -> None:
    """Rows do not change with the items that were given, as a whole or in a tuple."""
    axis = {} if n_envs is None else {"num_envs": n_envs}
    space = spaces.Sequence(spaces.Box(0, 9, (1,)), stack=stack)
    recorder, rb = attached(spaces_of(space, **axis), autoreset_mode="DISABLED")
    item = np.zeros(1)
    whole = item[None]
    one = whole if stack else (item,)
    given: Any = one if n_envs is None else (one,) * n_envs
    zeros, flags = ((np.zeros(n_envs or ()).astype(kind)) for kind in (int, bool))
    recorder.reset(given)
    whole += 1
    recorder.add(zeros, given, zeros, flags, flags, {})
    whole += 1
    recorder.add(zeros, given, zeros, flags, flags, {})
    obs = rb.get_all_transitions()["obs"].ravel()
    assert obs.tolist() == [0] * (n_envs or 1) + [1] * (n_envs or 1)


def test_further_fields() -> None:
    """Values for fields that the recorder does not know go straight to the buffer."""
    recorder = GymnasiumRecorder(vector_spaces("NEXT_STEP"))
    fields: dict[str, FieldSpec] = {**recorder.env_dict, "logp": {"shape": ()}}
    rb = recorder.attach(ReplayBuffer(10, fields, n_envs=2))
    recorder.reset(OBS)
    recorder.add([0, 1], OBS, [0, 0], ENDED, STILL, {}, logp=[1, 2])
    recorder.add([0, 1], OBS, [0, 0], STILL, STILL, {}, logp=[3, 4])
    assert rb.get_all_transitions()["logp"].tolist() == [1, 2, 3]
    for extra, word in (({}, "missing"), ({"logp": [1, 2], "x": 1}, "unknown")):
        with refused(rb, TypeError, word):
            recorder.add([0, 1], OBS, [0, 0], STILL, STILL, {}, **extra)
    with refused(rb, TypeError, "rew"):
        recorder.add([0, 1], OBS, [0, 0], STILL, STILL, {}, logp=[1, 2], rew=3)


def test_numbers_for_flags() -> None:
    """Flags may be 0 and 1."""
    recorder, rb = attached(cart_pole())
    recorder.reset(np.zeros(4))
    recorder.add(0, np.zeros(4), 0.0, np.float32(0), 0, {})
    recorder.add(0, np.zeros(4), 0.0, 0, np.array(1.0), {})
    assert rb.get_all_transitions()["truncated"].tolist() == [False, True]


NESTED = spaces.Dict(
    {"a": spaces.Box(-9, 9, (2,)), "t": spaces.Tuple([spaces.Discrete(9), spaces.Text(3)])}
)
GOOD: dict[str, Any] = {
    "action": 1,
    "obs": {"a": np.zeros(2), "t": (0, "abc")},
    "reward": 0.0,
    "terminated": False,
    "truncated": False,
    "info": {},
}


class Unreadable:
    """Raises whatever is asked of it."""

    def __array__(self, *_: object, **__: object) -> Array:
        raise RuntimeError("unreadable")


@pytest.mark.parametrize(
    ("part", "value", "words"),
    [
        ("obs", None, ["'next_obs'", "dict with the keys ['a', 't']", "NoneType"]),
        ("obs", {"a": np.zeros(2)}, ["'next_obs'", "['a', 't']", "['a']"]),
        ("obs", {**GOOD["obs"], "b": 0}, ["'next_obs'", "['a', 't', 'b']"]),
        ("obs", {"a": np.zeros(3), "t": (0, "")}, ["'next_obs.a'", "(2,)", "(3,)"]),
        ("obs", {"a": [None, 1], "t": (0, "")}, ["'next_obs.a'", "float32", "object"]),
        ("obs", {"a": [[1], 1], "t": (0, "")}, ["'next_obs.a'", "no array"]),
        ("obs", {"a": Unreadable(), "t": (0, "")}, ["'next_obs.a'", "unreadable"]),
        ("obs", {"a": np.zeros(2), "t": (0,)}, ["'next_obs.t'", "tuple of length 2"]),
        ("obs", {"a": np.zeros(2), "t": np.zeros(2)}, ["'next_obs.t'", "array"]),
        ("obs", {"a": np.zeros(2), "t": (0, 5)}, ["'next_obs.t.1'", "a str", "int"]),
        ("obs", {"a": np.zeros(2), "t": (0, b"ab")}, ["'next_obs.t.1'", "a str", "bytes"]),
        ("obs", {"a": np.zeros(2), "t": (0.5, "")}, ["'next_obs.t.0'"]),
        ("action", [1, 2], ["'act'", "()", "(2,)"]),
        ("action", "up", ["'act'", "int64"]),
        ("action", 0.5, ["'act'"]),
        ("reward", [1.0, 2.0], ["rew"]),
        ("reward", None, ["'rew'"]),
        ("reward", 1e300, ["'rew'"]),
        ("terminated", None, ["'terminated'", "bool", "None"]),
        ("terminated", 0.5, ["'terminated'", "bool", "0.5"]),
        ("truncated", "no", ["'truncated'", "bool", "'no'"]),
        ("truncated", [False], ["'truncated'", "()", "(1,)"]),
        ("truncated", {}, ["'truncated'", "bool", "{}"]),
    ],
)
def test_bad_step_of_one_environment(part: str, value: Any, words: list[str]) -> None:
    """A bad value is refused by the name of its field, and the step can be given again."""
    recorder, rb = attached(spaces_of(NESTED))
    recorder.reset(GOOD["obs"])
    recorder.add(*GOOD.values())
    with refused(rb, ValueError, *words):
        recorder.add(*{**GOOD, part: value}.values())
    recorder.add(*GOOD.values())
    assert len(rb) == 2
    assert rb.get_current_episode_len() == 2


@pytest.mark.parametrize(
    ("part", "value", "words"),
    [
        ("action", 1, ["'act'", "(2,)", "()"]),
        ("action", [1, 0, 1], ["'act'", "(2,)", "(3,)"]),
        ("obs", OBS[0], ["'next_obs'", "(2, 2)", "(2,)"]),
        ("obs", OBS[:1], ["'next_obs'", "(2, 2)", "(1, 2)"]),
        ("reward", 1.0, ["'rew'", "(2,)", "()"]),
        ("reward", [1.0, 2.0, 3.0], ["'rew'", "(2,)", "(3,)"]),
        ("terminated", False, ["'terminated'", "(2,)", "()"]),
        ("terminated", [False, 2], ["'terminated'", "bool"]),
        ("truncated", [False], ["'truncated'", "(2,)", "(1,)"]),
        ("info", None, ["info", "dict", "NoneType"]),
        ("info", [{}], ["info", "2", "1"]),
        ("info", [1, 2], ["info", "dict"]),
        ("info", {"final_obs": np.array([None], object)}, ["info", "2", "1"]),
        ("info", {"final_obs": np.array([None, np.ones(3)], object)}, ["'final_obs'", "(3,)"]),
    ],
)
@pytest.mark.parametrize("mode", MODES)
def test_bad_step_of_a_vector(mode: AutoresetMode, part: str, value: Any, words: list[str]) -> None:
    """A bad value is refused by the name of its field, and the step can be given again."""
    good: dict[str, Any] = {
        "action": [0, 1],
        "obs": OBS,
        "reward": [0.0, 0.0],
        "terminated": STILL,
        "truncated": STILL,
        "info": {},
    }
    recorder, rb = attached(vector_spaces(mode))
    recorder.reset(OBS)
    recorder.add(*good.values())
    with refused(rb, ValueError, *words):
        recorder.add(*{**good, part: value}.values())
    recorder.add(*good.values())
    assert len(rb) == 4


@pytest.mark.parametrize(
    ("obs", "words"),
    [
        (None, ["'obs'", "dict"]),
        ({"a": np.zeros(3), "t": (0, "")}, ["'obs.a'", "(2,)", "(3,)"]),
        ({"a": np.zeros(2), "t": (0, 5)}, ["'obs.t.1'", "a str", "int"]),
    ],
)
def test_bad_first_observation(obs: Any, words: list[str]) -> None:
    """A refused reset ends no episode and replaces no observation."""
    recorder, rb = attached(spaces_of(NESTED))
    recorder.reset(GOOD["obs"])
    recorder.add(*GOOD.values())
    with refused(rb, ValueError, *words):
        recorder.reset(obs)
    recorder.add(*GOOD.values())
    assert rb.get_current_episode_len() == 2


@pytest.mark.parametrize("mask", [True, [True], [1, 2], [0.5, 1], ["a", "b"]])
def test_bad_mask(mask: Any) -> None:
    """A mask has one flag for each environment."""
    recorder, rb = attached(vector_spaces("DISABLED"))
    recorder.reset(OBS)
    with refused(rb, ValueError, "'mask'"):
        recorder.reset(OBS, mask)


def test_objects_of_a_vector_have_its_length() -> None:
    """Values of spaces without a fixed size come one for each environment."""
    either = spaces.OneOf([spaces.Discrete(3)])
    recorder, rb = attached(spaces_of(either, num_envs=2), autoreset_mode="DISABLED")
    for bad in ((), ((0, 1),), ((0, 1), (0, 2), ()), 3):
        with refused(rb, ValueError, "'obs'", "expected shape (2,)"):
            recorder.reset(bad)
    recorder.reset(((0, 1), (0, 0)))
    recorder.add([0, 1], ((0, 1), (0, 2)), [0, 0], STILL, STILL, {})
    assert rb.get_all_transitions()["next_obs"].tolist() == [(0, 1), (0, 2)]


GRAPH = spaces.Graph(spaces.Box(0, 1, (2,)), spaces.Discrete(3))
NODES, LINKS = np.zeros((3, 2)), np.array([[0, 1]])
PAIR: Any = spaces.GraphInstance(NODES, np.array([1]), LINKS)


@pytest.mark.once
@pytest.mark.parametrize("n_envs", [None, 1, 2])
@pytest.mark.parametrize(
    ("space", "value", "words"),
    [
        (GRAPH, None, ["'obs'", "GraphInstance", "NoneType"]),
        (GRAPH, tuple(PAIR), ["'obs'", "GraphInstance"]),
        (GRAPH, PAIR._replace(nodes=None), ["'obs.nodes'", "(n, 2)", "()"]),
        (GRAPH, PAIR._replace(nodes=np.zeros((3, 1))), ["'obs.nodes'", "(n, 2)", "(3, 1)"]),
        (GRAPH, PAIR._replace(edges=np.full(1, 0.5)), ["'obs.edges'", "int64", "float"]),
        (GRAPH, PAIR._replace(edges=None), ["'obs.edges'", "disagree", "0"]),
        (GRAPH, PAIR._replace(edge_links=None), ["'obs.edges'", "disagree", "0"]),
        (GRAPH, PAIR._replace(edge_links=LINKS.T), ["'obs.edge_links'", "(n, 2)", "(2, 1)"]),
        (GRAPH, PAIR._replace(edge_links=LINKS + 2), ["'obs.edge_links'", "0 to 2", "got 3"]),
        (GRAPH, PAIR._replace(edge_links=LINKS - 1), ["'obs.edge_links'", "0 to 2", "got -1"]),
        (spaces.Graph(GRAPH.node_space, None), PAIR, ["'obs'", "no edges"]),
        (spaces.Sequence(spaces.Discrete(3)), 3, ["'obs'"]),
        (spaces.Sequence(spaces.Discrete(3)), None, ["'obs'"]),
        (spaces.Sequence(spaces.Discrete(3)), ((1,), (1, 2)), ["'obs'"]),
        (spaces.Sequence(spaces.Discrete(3)), (0.5,), ["'obs'", "int64"]),
        (spaces.Sequence(spaces.Box(0, 1, (2,))), (1.0, 1.0), ["'obs'", "(n, 2)", "(2,)"]),
        (spaces.Text(3), 3, ["'obs'", "a str", "int"]),
    ],
)
def test_bad_values_of_any_length(
    space: Any, value: Any, words: list[str], n_envs: int | None
) -> None:
    """They are refused with the name of the field at the reset, as by a step."""
    axis = {} if n_envs is None else {"num_envs": n_envs}
    recorder, rb = attached(spaces_of(space, **axis), autoreset_mode="DISABLED")
    space.seed(0)
    good = space.sample()
    given: list[Any] = [good, value]
    if n_envs is not None:
        given = [(*[good] * (n_envs - 1), one) for one in given]
    zeros, flags = ((np.zeros(n_envs or ()).astype(kind)) for kind in (int, bool))
    with refused(rb, ValueError, *words):
        recorder.reset(given[1])
    recorder.reset(given[0])
    with refused(rb, ValueError, *[word.replace("'obs", "'next_obs") for word in words]):
        recorder.add(zeros, given[1], zeros, flags, flags, {})
    recorder.add(zeros, given[0], zeros, flags, flags, {})
    assert len(rb) == (n_envs or 1)


def test_number_of_values_of_any_length() -> None:
    """A vector environment has one for each environment."""
    sequences = spaces.Sequence(spaces.Discrete(3))
    for space, value in ((sequences, (1,)), (GRAPH, PAIR), (spaces.Text(9), "ab")):
        recorder, rb = attached(spaces_of(space, num_envs=2), autoreset_mode="DISABLED")
        for bad in ((), (value,), (value,) * 3, value):
            with refused(rb, ValueError, "'obs", "expected"):
                recorder.reset(bad)
        recorder.reset((value,) * 2)


def test_a_value_beyond_the_room() -> None:
    """It is refused by the step, and the next one is recorded."""
    recorder = GymnasiumRecorder(spaces_of(spaces.Sequence(spaces.Discrete(3))))
    rb = ReplayBuffer(9, recorder.env_dict, room={"obs": 3, "next_obs": 3})
    recorder.attach(rb)
    recorder.reset(())
    with refused(rb, ValueError, "'next_obs'", "room={'next_obs': 3}", "got 4"):
        recorder.add(0, (1,) * 4, 0.0, False, False, {})
    for n in (1, 1, 2):
        recorder.add(0, (1,) * n, 0.0, False, False, {})
    assert len(rb) == 2
    assert rb.stats()["left_for_room"] == 1


def test_steps_of_old_gym() -> None:
    """The four values that ``step`` returned before Gymnasium are refused."""
    recorder, rb = attached(cart_pole())
    recorder.reset(np.zeros(4))
    with refused(rb, TypeError, "info"):
        recorder.add(0, np.zeros(4), 0.0, False, {})  # type: ignore[call-arg]
