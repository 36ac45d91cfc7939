"""Values of infos, such as masks of actions, are stored with the observations they came with."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium_cases import MODES
from helpers import refused

from cpprb_like import GymnasiumRecorder, NStep, ReplayBuffer
from cpprb_like.typing import FieldSpec

TAXI = max(name for name in gym.registry if name.startswith("Taxi-v"))
MASK: dict[str, FieldSpec] = {"mask": {"shape": 6, "dtype": np.int8}}
KEYS = {"mask": "action_mask"}


def taxi(most_steps: int) -> Callable[[], Any]:
    """Maker of a Taxi, whose mask follows from its observation."""
    return lambda: gym.make(TAXI, max_episode_steps=most_steps)


def many(mode: AutoresetMode, wrap: Callable[[Any], Any] = lambda env: env) -> Any:
    """Three of them, whose episodes end at different steps."""
    return wrap(SyncVectorEnv([taxi(2), taxi(3), taxi(5)], autoreset_mode=mode))


def at_once(env: Any) -> Any:
    """An environment that resets in the step that ends an episode."""

    class AtOnce(gym.Wrapper[Any, Any, Any, Any]):
        def step(self, action: Any) -> Any:
            obs, reward, terminated, truncated, info = self.env.step(action)
            if terminated or truncated:
                final = {"final_obs": obs, "final_info": info}
                obs, info = self.env.reset()
                info = {**info, **final}
            return obs, reward, terminated, truncated, info

    return AtOnce(env)


lists = gym.wrappers.vector.DictInfoToList
CASES: dict[str, tuple[Callable[[], Any], dict[str, Any]]] = {
    "one": (taxi(4), {}),
    "one, next step": (
        lambda: gym.wrappers.Autoreset(taxi(4)()),
        {"autoreset_mode": "NEXT_STEP"},
    ),
    "one, same step": (lambda: at_once(taxi(4)()), {"autoreset_mode": "SAME_STEP"}),
    **{mode.name: (partial(many, mode), {}) for mode in MODES},
    **{f"lists, {mode.name}": (partial(many, mode, lists), {}) for mode in MODES},
}


def attached(env: Any, next_of: Any = ("obs", "mask"), **options: Any) -> tuple[Any, ReplayBuffer]:
    """A recorder of masks, and its buffer."""
    recorder = GymnasiumRecorder(env, info_fields=KEYS, **options)
    return recorder, recorder.attach(
        ReplayBuffer(1000, recorder.env_dict | MASK, next_of=next_of, seed=0)
    )


def run(recorder: GymnasiumRecorder, *, by_hand: bool) -> None:
    """Forty steps: of the recorder, or of the environment and told to the recorder."""
    env: Any = recorder.env
    env.action_space.seed(0)
    if not by_hand:
        recorder.reset(seed=0)
        for _ in range(40):
            recorder.step(env.action_space.sample())
        return
    obs, info = env.reset(seed=0)
    recorder.reset(obs, info=info)
    for _ in range(40):
        action = env.action_space.sample()
        step = env.step(action)
        recorder.add(action, *step)
        ended = np.logical_or(step[2], step[3])
        if recorder.autoreset_mode is AutoresetMode.DISABLED and ended.any():
            if recorder.n_envs == 1:
                obs, info = env.reset()
                recorder.reset(obs, info=info)
            else:
                obs, info = env.reset(options={"reset_mask": ended.copy()})
                recorder.reset(obs, ended, info=info)


@pytest.mark.parametrize("by_hand", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_masks_are_those_of_the_observations(case: str, *, by_hand: bool) -> None:
    """Each row has the mask of its observation and that of its next one, also at ends."""
    make, options = CASES[case]
    recorder, rb = attached(make(), **options)
    if case == "lists, DISABLED" and not by_hand:
        with pytest.raises(TypeError, match=r"got list: .* wrap the recorder in DictInfoToList"):
            run(recorder, by_hand=False)
        return
    run(recorder, by_hand=by_hand)

    rows, mask = rb.get_all_transitions(), taxi(1)().unwrapped.action_mask
    for name in ("", "next_"):
        expected = [mask(int(obs)) for obs in rows[f"{name}obs"]]
        np.testing.assert_array_equal(rows[f"{name}mask"], expected)
    ends = rows["terminated"] | rows["truncated"]
    assert 6 < ends.sum() < len(ends)
    assert (rows["next_mask"][:-1] != rows["mask"][1:]).any()
    far = rb.view(NStep(3, gamma=0.9, discount=True)).sample(64)
    np.testing.assert_array_equal(far["next_mask"], [mask(int(obs)) for obs in far["next_obs"]])


@pytest.mark.parametrize("wrap", [lambda env: env, lists])
@pytest.mark.parametrize("mode", MODES)
def test_masks_to_act_on_are_in_the_info_of_a_step(mode: AutoresetMode, wrap: Any) -> None:
    """Of each environment. In mode DISABLED those that had not ended got zeros with a reset."""
    recorder, _ = attached(many(mode))
    env: Any = wrap(recorder)
    obs, info = env.reset(seed=0)
    mask, n_ended = taxi(1)().unwrapped.action_mask, 0
    for _ in range(40):
        obs, _, terminated, truncated, info = env.step(recorder.action_space.sample())
        ended, expected = terminated | truncated, [mask(int(one)) for one in obs]
        n_ended += ended.sum()
        if wrap is lists:
            assert [one["action_mask"].tolist() for one in info] == np.array(expected).tolist()
            said = [{"final_obs", "final_info"} & one.keys() for one in info]
            ends = ended & (mode is not AutoresetMode.NEXT_STEP)
            assert [len(one) for one in said] == (2 * ends).tolist()
        else:
            np.testing.assert_array_equal(info["action_mask"], expected)
            assert info["_action_mask"].all()
    assert n_ended > 9


def test_infos_of_resets_are_merged_by_environment() -> None:
    """Also in nested dicts, under keys of the step alone, and under keys without a mask."""

    class Counting(SyncVectorEnv):
        """Infos without a mask too, of the environments and of the whole."""

        def reset(self, **options: Any) -> Any:
            obs, info = super().reset(**options)
            return obs, {**info, "plain": np.array([7, 8]), "shared": np.zeros(5)}

        def step(self, actions: Any) -> Any:
            *step, info = super().step(actions)
            return *step, {**info, "plain": np.array([1, 2]), "shared": np.ones(5)}

    first: dict[str, Any] = {"in": {"x": 10}, "both": 1.5}
    then: dict[str, Any] = {"in": {"x": 20, "y": 30}, "both": 2, "of step": "s"}
    envs = [lambda n=n: Told([first, *[then] * n, first], n) for n in (2, 3)]
    env = Counting(envs, autoreset_mode=AutoresetMode.DISABLED)
    recorder: Any = GymnasiumRecorder(env)
    recorder.attach(ReplayBuffer(9, recorder.env_dict))
    recorder.reset()
    recorder.step(np.zeros(2, int))
    info = recorder.step(np.zeros(2, int))[4]
    assert info["in"]["x"].tolist() == [10, 20]
    assert info["in"]["y"].tolist() == [30, 30]
    assert info["both"].tolist() == [1.5, 2]
    assert info["of step"].tolist() == ["s", "s"]
    assert info["plain"].tolist() == [7, 2]
    assert info["shared"].tolist() == [0] * 5
    for name in ("in", "both", "of step", "final_obs"):
        assert info[f"_{name}"].tolist() == [True, name != "final_obs"], name
    assert info["final_info"]["in"]["x"].tolist() == [20, 20]


def test_the_final_info_is_that_of_the_step() -> None:
    """Of an environment whose reset writes over the array of its infos, too."""
    recorder: Any = GymnasiumRecorder(Told(told(1, 2, 3, 4, 5)), info_fields=KEYS)
    recorder.attach(ReplayBuffer(9, recorder.env_dict | FIELDS))
    recorder.reset()
    for _ in range(3):
        info = recorder.step(0)[4]
    assert info["final_info"]["action_mask"].tolist() == [4, 4]
    assert info["action_mask"].tolist() == [5, 5]


@pytest.mark.parametrize("mode", MODES)
def test_only_the_masks_of_rows(mode: AutoresetMode) -> None:
    """A buffer without next masks has those of the rows, and one with a field of that name both."""
    own: dict[str, FieldSpec] = {"next_mask": MASK["mask"]}
    for further in ({}, own):
        recorder: Any = GymnasiumRecorder(many(mode), info_fields=KEYS)
        rb = recorder.attach(ReplayBuffer(1000, recorder.env_dict | MASK | further))
        run(recorder, by_hand=False)
        rows, mask = rb.get_all_transitions(), taxi(1)().unwrapped.action_mask
        np.testing.assert_array_equal(rows["mask"], [mask(int(obs)) for obs in rows["obs"]])
        if further:
            after = [mask(int(obs)) for obs in rows["next_obs"]]
            np.testing.assert_array_equal(rows["next_mask"], after)


class Told(gym.Env[Any, Any]):
    """An environment whose infos are given, of which the array is always the same."""

    observation_space = spaces.Box(0, 99, (), np.int64)
    action_space = spaces.Discrete(2)

    def __init__(self, infos: list[dict[str, Any]], most_steps: int = 3) -> None:
        self.infos, self.most_steps, self.t = iter(infos), most_steps, 0
        self.mask = np.zeros(2, np.int8)

    def told(self) -> dict[str, Any]:
        """The next info."""
        info = dict(next(self.infos))
        if "action_mask" in info:
            self.mask[:] = info["action_mask"]
            info["action_mask"] = self.mask
        return info

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.t = 0
        return np.int64(0), self.told()

    def step(self, action: Any) -> Any:
        self.t += 1
        return np.int64(self.t), 0.0, self.t == self.most_steps, False, self.told()


def told(*masks: Any) -> list[dict[str, Any]]:
    """Infos with these masks; None for an info without."""
    return [{} if mask is None else {"action_mask": mask, "say": f"s{mask}"} for mask in masks]


FIELDS: dict[str, FieldSpec] = {"mask": {"shape": 2, "dtype": np.int8}}


def test_a_mask_that_the_environment_writes_over() -> None:
    """The recorder keeps copies."""
    recorder: Any = GymnasiumRecorder(Told(told(1, 2, 3, 4, 5)), info_fields=KEYS)
    rb = recorder.attach(ReplayBuffer(9, recorder.env_dict | FIELDS, next_of="mask"))
    recorder.reset()
    for _ in range(3):
        recorder.step(0)
    rows = rb.get_all_transitions()
    assert rows["mask"][:, 0].tolist() == [1, 2, 3]
    assert rows["next_mask"][:, 0].tolist() == [2, 3, 4]


@pytest.mark.parametrize("wrap", [lambda env: env, lists])
def test_texts(wrap: Any) -> None:
    """Values that are Python objects in the infos of a vector environment."""
    envs = [lambda: Told(told(*range(1, 9))), lambda: Told(told(*range(11, 19)), 2)]
    env = wrap(SyncVectorEnv(envs, autoreset_mode=AutoresetMode.SAME_STEP))
    recorder: Any = GymnasiumRecorder(env, info_fields={"said": "say"})
    fields = recorder.env_dict | {"said": {"dtype": str}}
    room = {"said": 200}
    rb = recorder.attach(ReplayBuffer(20, fields, next_of="said", room=room))
    recorder.reset()
    for _ in range(3):
        recorder.step(np.zeros(2, int))
    rows = rb.get_all_transitions()
    assert rows["said"].tolist() == ["s1", "s11", "s2", "s12", "s3", "s14"]
    assert rows["next_said"].tolist() == ["s2", "s12", "s3", "s13", "s4", "s15"]


@pytest.mark.parametrize("wrap", [lambda env: env, lists])
def test_an_info_without_the_key_is_refused(wrap: Any) -> None:
    """The message names environments and the way out. Nothing changes, and recording goes on."""
    envs = [lambda: Told(told(*[1] * 9)), lambda: Told(told(1, 1, None, 1, 1))]
    env = wrap(SyncVectorEnv(envs, autoreset_mode=AutoresetMode.NEXT_STEP))
    recorder: Any = GymnasiumRecorder(env, info_fields=KEYS)
    rb = recorder.attach(ReplayBuffer(9, recorder.env_dict | FIELDS, next_of="mask"))
    obs, info = env.reset()
    recorder.reset(obs, info=info)
    recorder.add(np.zeros(2, int), *env.step(np.zeros(2, int)))
    before = rb.get_all_transitions()
    step: Any = env.step(np.zeros(2, int))
    with refused(rb, ValueError, "'mask': info has no 'action_mask'", "[1]", "Dict obs"):
        recorder.add(np.zeros(2, int), *step)
    np.testing.assert_equal(rb.get_all_transitions(), before)
    info = [{"action_mask": [1, 1]}] * 2
    recorder.add(np.zeros(2, int), *step[:4], info)
    assert len(rb) == 4


def test_a_reset_within_a_step_needs_final_infos() -> None:
    """Where next masks are stored: they are in no other place."""
    for next_of, error in (("mask", ValueError), (None, None)):
        recorder: Any = GymnasiumRecorder(many(AutoresetMode.SAME_STEP), info_fields=KEYS)
        rb = recorder.attach(ReplayBuffer(99, recorder.env_dict | MASK, next_of=next_of))
        env: Any = recorder.env
        obs, info = env.reset(seed=0)
        recorder.reset(obs, info=info)
        action = np.zeros(3, int)
        recorder.add(action, *env.step(action))
        result: Any = env.step(action)
        step, info = result[:4], result[4]
        del info["final_info"]
        if error is None:
            recorder.add(action, *step, info)
            continue
        with refused(rb, error, "final_info has no 'action_mask' of environments [0]"):
            recorder.add(action, *step, info)


def test_misuse_is_named() -> None:
    """Names that are taken, fields that are lacking or given twice, infos that are not given."""
    env = taxi(4)()
    for name in ("obs", "next_obs", "terminated"):
        with pytest.raises(ValueError, match=f"info_fields: '{name}' or 'next_{name}' is another"):
            GymnasiumRecorder(env, info_fields={name: "action_mask"})
    with pytest.raises(ValueError, match="'mask' or 'next_mask' is another field"):
        GymnasiumRecorder(env, info_fields={"mask": "a", "next_mask": "b"})
    with pytest.raises(TypeError, match="expected names of fields and keys, got 3"):
        GymnasiumRecorder(env, info_fields={"mask": 3})  # type: ignore[dict-item]
    recorder: Any = GymnasiumRecorder(env, info_fields=KEYS)
    with pytest.raises(ValueError, match=r"lacks the fields \['mask'\]"):
        recorder.attach(ReplayBuffer(9, recorder.env_dict))
    recorder, rb = attached(env)
    obs, info = env.reset(seed=0)
    with pytest.raises(TypeError, match=r"expected info=, for the fields \['mask'\]"):
        recorder.reset(obs)
    with pytest.raises(TypeError, match="expected mask and info with obs"):
        recorder.reset(info=info)
    recorder.reset(obs, info=info)
    step: Any = env.step(0)
    with refused(rb, TypeError, "fields ['next_mask']: expected no values"):
        recorder.add(0, *step, next_mask=1)
    with refused(rb, ValueError, "info: expected a dict, got str"):
        recorder.add(0, *step[:4], "info")
    recorder.add(0, *step)
    for wrong in ({"action_mask": np.zeros(5)}, {"action_mask": np.full(6, 0.5)}):
        with refused(rb, ValueError, "field 'mask'"):
            recorder.reset(obs, info=wrong)
        assert rb.get_current_episode_len() == 1


def test_infos_of_a_wrong_length_are_refused() -> None:
    """In an array, in a list, and where a final value has another shape."""
    recorder, rb = attached(many(AutoresetMode.SAME_STEP))
    env: Any = recorder.env
    obs, info = env.reset(seed=0)
    recorder.reset(obs, info=info)
    action = np.zeros(3, int)
    recorder.add(action, *env.step(action))
    result: Any = env.step(action)
    step, info = result[:4], result[4]
    with refused(rb, ValueError, "field 'mask': expected 3 values of 'action_mask' in info"):
        recorder.add(action, *step, {**info, "action_mask": np.zeros((2, 6))})
    with refused(rb, ValueError, "info: expected a dict, got list"):
        recorder.add(action, *step, [{"action_mask": np.zeros(6)}] * 2)
    final = {"action_mask": np.zeros((3, 1))}
    with refused(rb, ValueError, "expected shape (3, 6), as of the values before, got (3, 1)"):
        recorder.add(action, *step, {**info, "final_info": final})
    recorder.add(action, *step, info)
