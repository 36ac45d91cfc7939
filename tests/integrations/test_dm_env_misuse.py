"""Calls at the wrong time, environments and buffers that do not fit, and bad values."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from helpers import refused
from optional import need

from cpprb_like.typing import FieldSpec

need("dm_env")

import dm_env
from dm_env import specs
from dm_env_cases import FIRST, LAST, MID, Arm, Trail, attached, env_of

from cpprb_like import ReplayBuffer
from cpprb_like.integrations.dm_env import DmEnvRecorder

BEGIN = dm_env.restart([0.0, 0.0])
STEP = dm_env.transition(1.0, [1.0, 1.0])
PAIR_BEGIN = dm_env.TimeStep([FIRST, FIRST], None, None, np.zeros((2, 2)))
PAIR_STEP = dm_env.TimeStep([MID, MID], [1.0, 1.0], [1.0, 1.0], np.ones((2, 2)))

# ---------------------------------------------------------------- calls at the wrong time


def test_step_without_a_reset() -> None:
    """An episode begins with ``reset`` or a FIRST: the first one, and each after an end."""
    recorder, rb = attached(env_of())
    with refused(rb, RuntimeError, "call reset(time_step)"):
        recorder.add(0, STEP)
    with refused(rb, RuntimeError, "call reset(time_step)"):
        recorder.add(0, BEGIN)
    recorder.reset(BEGIN)
    recorder.add(0, dm_env.termination(1.0, [1.0, 1.0]))
    for step in (STEP, dm_env.termination(1.0, [1.0, 1.0])):
        with refused(rb, RuntimeError, "has ended", "FIRST", "env.reset()"):
            recorder.add(0, step)
    recorder.reset(BEGIN)
    recorder.add(0, STEP)
    assert len(rb) == 2


def test_batched_step_without_a_reset_names_the_environments() -> None:
    """All environments whose episode ended must begin anew before their next step."""
    recorder, rb = attached(env_of(), n_envs=2)
    recorder.reset(PAIR_BEGIN)
    recorder.add([0, 0], PAIR_STEP._replace(step_type=[MID, LAST]))
    with refused(rb, RuntimeError, "environments [1]", "FIRST"):
        recorder.add([0, 0], PAIR_STEP)
    with refused(rb, RuntimeError, "environments [1]"):
        recorder.add([0, 0], PAIR_STEP._replace(step_type=[FIRST, LAST]))
    recorder.add([0, 0], PAIR_STEP._replace(step_type=[MID, FIRST]))
    assert len(rb) == 3


@pytest.mark.parametrize("step", [STEP, dm_env.termination(1.0, [1.0, 1.0])])
def test_reset_with_a_later_step(step: Any) -> None:
    """``reset`` takes what ``env.reset`` gives, and ends no episode otherwise."""
    recorder, rb = attached(env_of())
    recorder.reset(BEGIN)
    recorder.add(0, STEP)
    with refused(rb, ValueError, "type FIRST", "env.reset()"):
        recorder.reset(step)
    recorder.add(0, STEP)
    assert rb.get_current_episode_len() == 2


def test_reset_of_some_environments() -> None:
    """``reset`` is of all environments; ``add`` takes those that reset by themselves."""
    recorder, rb = attached(env_of(), n_envs=2)
    with refused(rb, ValueError, "type FIRST", "[0, 1]"):
        recorder.reset(PAIR_BEGIN._replace(step_type=[FIRST, MID]))


def test_recorder_without_a_buffer() -> None:
    """It says what to do first."""
    recorder = DmEnvRecorder(env_of())
    with pytest.raises(RuntimeError, match=r"call attach\(buffer\)"):
        recorder.reset(BEGIN)
    with pytest.raises(RuntimeError, match=r"call attach\(buffer\)"):
        recorder.add(0, STEP)


def test_attaching_a_second_buffer_needs_a_reset() -> None:
    """A buffer never begins in the middle of an episode."""
    recorder, first = attached(env_of())
    recorder.reset(BEGIN)
    recorder.add(0, STEP)
    second = recorder.attach(ReplayBuffer(10, recorder.env_dict))
    with refused(second, RuntimeError, "call reset(time_step)"):
        recorder.add(0, STEP)
    recorder.reset(BEGIN)
    recorder.add(0, STEP)
    assert (len(first), len(second)) == (1, 1)


def test_attaching_to_a_buffer_in_the_middle_of_an_episode() -> None:
    """What the buffer held before is another episode."""
    recorder, rb = attached(env_of())
    recorder.reset(BEGIN)
    recorder.add(0, STEP)
    recorder.attach(rb)
    recorder.reset(BEGIN)
    assert rb.get_current_episode_len() == 0


# ---------------------------------------------------------------- environments and buffers


@pytest.mark.parametrize("env", [3, SimpleNamespace(observation_spec=lambda: specs.Array((), int))])
def test_no_environment(env: Any) -> None:
    """Something without specs is refused."""
    with pytest.raises(TypeError, match="expected a dm_env or TF-Agents environment, got"):
        DmEnvRecorder(env)


@pytest.mark.parametrize(
    "spec", [specs.Array((2,), float), {"a": specs.Array((), float)}, [specs.Array((), float)] * 2]
)
def test_discount_of_several_parts(spec: Any) -> None:
    """An episode terminates or not: its discount is one number."""
    with pytest.raises(ValueError, match="discount_spec: expected a single number"):
        DmEnvRecorder(env_of(discount=spec))


def test_number_of_environments() -> None:
    """It is what the environment says, if that says anything, and at least 1."""
    batched = env_of(batched=True, batch_size=3)
    assert DmEnvRecorder(batched).n_envs == DmEnvRecorder(batched, n_envs=3).n_envs == 3
    assert DmEnvRecorder(env_of(batched=False, batch_size=None)).n_envs == 1
    with pytest.raises(TypeError, match="batch_size: expected an integer, got None"):
        DmEnvRecorder(env_of(batched=True, batch_size=None))
    with pytest.raises(ValueError, match="batch_size=3, got 2"):
        DmEnvRecorder(batched, n_envs=2)
    with pytest.raises(ValueError, match="n_envs: expected at least 1, got 0"):
        DmEnvRecorder(env_of(), n_envs=0)
    with pytest.raises(TypeError, match=r"n_envs: expected an integer, got 2\.0"):
        DmEnvRecorder(env_of(), n_envs=2.0)  # type: ignore[arg-type]


def test_buffer_that_does_not_fit() -> None:
    """Missing fields and another number of environments are refused, further fields are not."""
    recorder = DmEnvRecorder(env_of(), n_envs=2)
    fields = recorder.env_dict
    with pytest.raises(ValueError, match="expected a buffer of n_envs=2, got 1"):
        recorder.attach(ReplayBuffer(10, fields, n_envs=1))
    del fields["next_obs"]
    with pytest.raises(ValueError, match=r"lacks the fields \['next_obs'\]"):
        recorder.attach(ReplayBuffer(10, fields, n_envs=2))
    with pytest.raises(RuntimeError, match="call attach"):
        recorder.reset(PAIR_BEGIN)
    recorder.attach(ReplayBuffer(10, fields | {"x": {}}, n_envs=2, next_of="obs"))


def test_fields_of_other_types() -> None:
    """A buffer may declare another dtype or shape, and a first observation must fit it."""
    recorder = DmEnvRecorder(env_of())
    fields = recorder.env_dict
    fields["rew"] = {"shape": 1, "dtype": np.float64}
    fields["obs"]["dtype"] = fields["next_obs"]["dtype"] = np.int8
    rb = recorder.attach(ReplayBuffer(10, fields))
    recorder.reset(BEGIN)
    recorder.add(0, dm_env.transition(0.1, [7, 8]))
    assert rb[0]["rew"].tolist() == [0.1]
    for observation in ([0.5, 0.0], [200, 0]):
        with refused(rb, ValueError, "field 'obs'", "int8"):
            recorder.reset(dm_env.restart(observation))
        with refused(rb, ValueError, "field 'obs'", "int8"):
            recorder.add(0, dm_env.restart(observation))
    recorder.add(0, STEP)
    assert rb[1]["obs"].tolist() == [7, 8]
    assert rb.get_current_episode_len() == 2


# ---------------------------------------------------------------- values


def test_further_fields() -> None:
    """Values for fields that the recorder does not know go straight to the buffer."""
    recorder = DmEnvRecorder(env_of(), n_envs=2)
    fields: dict[str, FieldSpec] = {**recorder.env_dict, "logp": {"shape": ()}}
    rb = recorder.attach(ReplayBuffer(10, fields, n_envs=2))
    recorder.reset(PAIR_BEGIN)
    recorder.add([0, 1], PAIR_STEP._replace(step_type=[LAST, MID]), logp=[1, 2])
    recorder.add([0, 1], PAIR_STEP._replace(step_type=[FIRST, MID]), logp=[3, 4])
    assert rb.get_all_transitions()["logp"].tolist() == [1, 2, 4]
    for extra, word in (({}, "missing"), ({"logp": [1, 2], "x": 1}, "unknown")):
        for step in (PAIR_STEP, PAIR_STEP._replace(step_type=[MID, FIRST])):
            with refused(rb, TypeError, word):
                recorder.add([0, 1], step, **extra)
    with refused(rb, TypeError, "rew"):
        recorder.add([0, 1], PAIR_STEP, logp=[1, 2], rew=3)
    assert [rb.get_current_episode_len(env) for env in range(2)] == [0, 2]


def test_inputs_stay_and_later_changes_change_no_row() -> None:
    """The recorder keeps copies, and changes nothing that it is given."""
    recorder, rb = attached(env_of(), n_envs=2)
    obs, action = np.zeros((2, 2)), np.array([1, 2])
    rew, discount = np.array([1.0, np.nan]), np.array([0.5, np.nan])
    recorder.reset(PAIR_BEGIN._replace(observation=obs))
    recorder.add(action, PAIR_STEP._replace(observation=obs))
    obs += 1
    recorder.add(action, dm_env.TimeStep(np.array([MID, FIRST]), rew, discount, obs))
    assert (action.tolist(), rew.tolist()[0], discount.tolist()[0]) == ([1, 2], 1, 0.5)
    assert np.isnan([rew[1], discount[1]]).all()
    obs += 5
    action[:] = 0
    recorder.add(action, PAIR_STEP)
    batch = rb.get_all_transitions()
    assert batch["obs"][:, 0].tolist() == [0, 0, 0, 1, 1]
    assert batch["next_obs"][:, 0].tolist() == [0, 0, 1, 1, 1]
    assert batch["act"].tolist() == [1, 2, 1, 0, 0]


def arm(angles: Any = (0.0, 0.0, 0.0), held: Any = "saw") -> Arm:
    """The first part of ``Trail``'s arms."""
    return Arm(angles, held)


OTHER = Arm(np.zeros((1, 2), np.uint8), True)
GOOD = {"clock": [1, 2], "arms": [arm(), OTHER]}
REWARD = {"speed": 0.0, "style": [0.0, 0.0]}
ACTION = (1, {"push": [0.0, 0.0]})


@pytest.mark.parametrize(
    ("part", "value", "words"),
    [
        ("observation", None, ["'next_obs'", "dict with the keys ['clock', 'arms']", "NoneType"]),
        ("observation", {"clock": [1, 2]}, ["'next_obs'", "['clock']"]),
        ("observation", {**GOOD, "b": 0}, ["'next_obs'", "['clock', 'arms', 'b']"]),
        ("observation", {**GOOD, "clock": [1]}, ["'next_obs.clock'", "(2,)", "(1,)"]),
        ("observation", {**GOOD, "clock": [[1], 1]}, ["'next_obs.clock'", "no array"]),
        ("observation", {**GOOD, "clock": [None, 1]}, ["'next_obs.clock'", "int32"]),
        ("observation", {**GOOD, "clock": [0.5, 1]}, ["'next_obs.clock'", "0.5"]),
        (
            "observation",
            {**GOOD, "clock": np.ma.masked_array([1, 2], [True, False])},
            ["'next_obs.clock'", "masked"],
        ),
        ("observation", {**GOOD, "arms": [arm()]}, ["'next_obs.arms'", "length 2", "length 1"]),
        ("observation", {**GOOD, "arms": np.zeros(2)}, ["'next_obs.arms'", "array of shape (2,)"]),
        ("observation", {**GOOD, "arms": [arm(), (1, 2, 3)]}, ["'next_obs.arms.1'", "angles"]),
        ("observation", {**GOOD, "arms": [arm(), dm_env.TimeStep(*"abcd")]}, ["'next_obs.arms.1'"]),
        ("observation", {**GOOD, "arms": Arm(arm(), OTHER)}, ["'next_obs.arms'", "Arm"]),
        ("observation", {**GOOD, "arms": [arm(1.0), OTHER]}, ["'next_obs.arms.0.angles'", "(3,)"]),
        ("action", 1, ["'act'", "length 2", "int"]),
        ("action", (1, {"pull": [0, 0]}), ["'act.1'", "push", "pull"]),
        ("action", (0.5, {"push": [0, 0]}), ["'act.0'"]),
        ("reward", None, ["'rew'", "speed", "NoneType"]),
        ("reward", {**REWARD, "style": 0.0}, ["'rew.style'", "(2,)", "()"]),
        ("reward", {**REWARD, "speed": None}, ["'rew.speed'"]),
        ("reward", {**REWARD, "speed": 1e300}, ["'rew.speed'"]),
        ("discount", None, ["'discount'", "from 0 to 1", "None"]),
        ("discount", 1.5, ["'discount'", "from 0 to 1", "1.5"]),
        ("discount", -1, ["'discount'", "from 0 to 1", "-1"]),
        ("discount", float("nan"), ["'discount'", "from 0 to 1", "nan"]),
        ("discount", "1", ["'discount'", "from 0 to 1", "'1'"]),
        ("discount", [1.0], ["'discount'", "()", "(1,)"]),
        ("step_type", 3, ["step_type", "FIRST (0), MID (1) or LAST (2)", "3"]),
        ("step_type", -1, ["step_type", "-1"]),
        ("step_type", None, ["step_type", "None"]),
        ("step_type", 1.0, ["step_type", "1.0"]),
        ("step_type", True, ["step_type", "True"]),
        ("step_type", "MID", ["step_type", "'MID'"]),
        ("step_type", [1], ["step_type", "()", "(1,)"]),
    ],
)
@pytest.mark.parametrize("end", [False, True])
def test_bad_step(part: str, value: Any, words: list[str], end: bool) -> None:
    """A bad value is refused by the name of its field, and the step can be given again."""
    recorder, rb = attached(Trail())
    recorder.reset(dm_env.restart(GOOD))
    good = dm_env.TimeStep(dm_env.StepType.LAST if end else MID, REWARD, 0.5, GOOD)
    if part == "action":
        action, step = value, good
    else:
        action, step = ACTION, good._replace(**{part: value})
    recorder.add(ACTION, dm_env.transition(REWARD, GOOD))
    with refused(rb, ValueError, *words):
        recorder.add(action, step)
    recorder.add(ACTION, good)
    assert len(rb) == 2
    assert rb.get_current_episode_len() == (0 if end else 2)


@pytest.mark.parametrize(
    ("part", "value", "words"),
    [
        ("action", 1, ["'act'", "(2,)", "()"]),
        ("action", [1, 0, 1], ["'act'", "(2,)", "(3,)"]),
        ("observation", np.zeros(2), ["'next_obs'", "(2, 2)", "(2,)"]),
        ("reward", 1.0, ["'rew'", "(2,)", "()"]),
        ("reward", [1.0, None], ["'rew'"]),
        ("discount", 1.0, ["'discount'", "(2,)", "()"]),
        ("discount", [1.0, 2.0], ["'discount'", "from 0 to 1"]),
        ("discount", [1.0, None], ["'discount'", "from 0 to 1"]),
        ("step_type", 1, ["step_type", "(2,)", "()"]),
        ("step_type", [1, 5], ["step_type", "[1, 5]"]),
    ],
)
def test_bad_step_of_a_batch(part: str, value: Any, words: list[str]) -> None:
    """A bad value is refused by the name of its field, and the step can be given again."""
    recorder, rb = attached(env_of(), n_envs=2)
    recorder.reset(PAIR_BEGIN)
    recorder.add([0, 0], PAIR_STEP)
    step = PAIR_STEP if part == "action" else PAIR_STEP._replace(**{part: value})
    with refused(rb, ValueError, *words):
        recorder.add(value if part == "action" else [0, 0], step)
    recorder.add([0, 0], PAIR_STEP)
    assert len(rb) == 4


@pytest.mark.parametrize("row", [0, 1])
@pytest.mark.parametrize(
    ("part", "value", "words"),
    [
        ("action", [0.5, 0.5], ["'act'"]),
        ("observation", np.zeros((2, 3)), ["'next_obs'"]),
        ("reward", [None, None], ["'rew'"]),
        ("discount", [2.0, 2.0], ["'discount'"]),
    ],
)
def test_bad_step_beside_a_reset(part: str, value: Any, words: list[str], row: int) -> None:
    """A refused step ends no episode that the reset of another environment would end."""
    recorder, rb = attached(env_of(), n_envs=2)
    recorder.reset(PAIR_BEGIN)
    recorder.add([0, 0], PAIR_STEP)
    half = PAIR_STEP._replace(step_type=[FIRST, MID] if row else [MID, FIRST])
    step = half if part == "action" else half._replace(**{part: value})
    with refused(rb, ValueError, *words):
        recorder.add(value if part == "action" else [0, 0], step)
    recorder.add([0, 0], half)
    assert [rb.get_current_episode_len(env) for env in range(2)] == ([0, 2] if row else [2, 0])


@pytest.mark.parametrize(
    "step", [None, 3, (MID, 1.0, 1.0, [0, 0]), ([0, 0], 1.0, False, False, {}), {"step_type": 1}]
)
def test_no_time_step(step: Any) -> None:
    """Tuples, such as those of Gymnasium, are no time steps."""
    recorder, rb = attached(env_of())
    with refused(rb, TypeError, "expected a TimeStep, got", "step_type"):
        recorder.reset(step)
    recorder.reset(BEGIN)
    with refused(rb, TypeError, "expected a TimeStep, got", "step_type"):
        recorder.add(0, step)


@pytest.mark.parametrize(
    ("observation", "words"),
    [
        (None, ["'obs'", "dict"]),
        ({**GOOD, "clock": [1, 2, 3]}, ["'obs.clock'", "(2,)", "(3,)"]),
        ({**GOOD, "clock": ["a", 2]}, ["'obs.clock'", "int32"]),
        ({**GOOD, "clock": [1e10, 2]}, ["'obs.clock'", "int32"]),
    ],
)
def test_bad_first_observation(observation: Any, words: list[str]) -> None:
    """A refused reset ends no episode and replaces no observation."""
    recorder, rb = attached(Trail())
    recorder.reset(dm_env.restart(GOOD))
    recorder.add(ACTION, dm_env.transition(REWARD, GOOD))
    with refused(rb, ValueError, *words):
        recorder.reset(dm_env.restart(observation))
    with refused(rb, ValueError, *words):
        recorder.add(ACTION, dm_env.restart(observation))
    recorder.add(ACTION, dm_env.transition(REWARD, GOOD))
    assert rb.get_current_episode_len() == 2


def test_the_number_of_environments_is_that_of_the_recorder() -> None:
    """``n_envs`` had to be given once more to the buffer."""
    recorder = DmEnvRecorder(env_of(), n_envs=2)
    assert recorder.attach(ReplayBuffer(100, recorder.env_dict)).n_envs == 2
