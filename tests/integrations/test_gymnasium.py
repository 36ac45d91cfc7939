"""A recorder stores what the same seeded environments produce one by one, across no reset."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from gymnasium_cases import (
    MAKERS,
    MODES,
    Trail,
    assert_same_rows,
    attached,
    drawn_actions,
    plain_rows,
    run_vector,
    stored_rows,
    vector,
    with_env_number,
)
from optional import need

from cpprb_like import ReplayBuffer
from cpprb_like.integrations.gymnasium import GymnasiumRecorder
from cpprb_like.typing import FieldSpec

# Python 3.12 and newer say that a fork in a process with threads may hang; NumPy's threads sleep.
pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")

# ---------------------------------------------------------------- one environment


@pytest.mark.parametrize("name", MAKERS)
def test_single_environment_gives_the_rows_of_a_plain_loop(name: str) -> None:
    """Every step is stored as it was, and the last one of an episode with its final observation."""
    env = MAKERS[name]()
    actions = [step[0] for step in drawn_actions(env, 60, 1, seed=3)]
    recorder, rb = attached(env)
    recorder.reset(env.reset(seed=5)[0])
    for action in actions:
        step = env.step(action)
        recorder.add(action, *step)
        if step[2] or step[3]:
            recorder.reset(env.reset()[0])

    expected = plain_rows(MAKERS[name](), 5, actions, reset_takes_a_step=False)

    assert_same_rows(stored_rows(recorder, rb), expected)


def test_single_environment_that_resets_itself() -> None:
    """With the Autoreset wrapper, the step that only resets is not drawn."""
    env = gym.wrappers.Autoreset(Trail())
    actions = [step[0] for step in drawn_actions(env, 60, 1, seed=3)]
    recorder, rb = attached(env, autoreset_mode="next_step")
    recorder.reset(env.reset(seed=5)[0])
    for action in actions:
        recorder.add(action, *env.step(action))

    expected = plain_rows(Trail(), 5, actions, reset_takes_a_step=True)

    assert_same_rows(stored_rows(recorder, rb), expected)


def test_slot_of_each_step() -> None:
    """``add`` returns the slot where the step lies."""
    env = Trail()
    recorder, rb = attached(env, size=4)
    for turn in range(6):
        recorder.reset(env.reset()[0])
        slot = recorder.add((1, {"push": np.zeros(2)}), *env.step((1, {"push": np.zeros(2)})))
        assert slot == turn % 4
        np.testing.assert_array_equal(rb[slot]["obs.clock"], [turn + 1, 0])


# ---------------------------------------------------------------- vector environments


# Gymnasium hands out final observations after the reset; by then, this environment overwrote them.
LOST = ("reusing trail", AutoresetMode.SAME_STEP)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "mode"), [(name, mode) for name in MAKERS for mode in MODES if (name, mode) != LOST]
)
@pytest.mark.parametrize("kind", ["sync", "sync reused", "async", "async reused"])
def test_vector_environment_gives_the_rows_of_plain_loops(
    kind: str, name: str, mode: AutoresetMode
) -> None:
    """Each environment's rows are those of the same environment alone, in order."""
    env = vector(name, mode, kind=kind)
    actions = drawn_actions(env, 50, 3, seed=1)
    recorder, rb = with_env_number(env)
    n_ended = sum(ended.sum() for ended in run_vector(env, recorder, actions, seed=7))
    env.close()
    assert recorder.autoreset_mode is mode
    assert n_ended > 6

    rows = stored_rows(recorder, rb)
    for number in range(3):
        found = [row for row in rows if row["env"] == number]
        expected = plain_rows(
            MAKERS[name](),
            7 + number,
            [step[number] for step in actions],
            reset_takes_a_step=mode is AutoresetMode.NEXT_STEP,
        )
        assert_same_rows(found, expected)


@pytest.mark.parametrize("mode", MODES)
def test_no_row_crosses_a_reset_while_the_ring_wraps(
    mode: AutoresetMode, rng: np.random.Generator
) -> None:
    """In every row the clock is one step on, whoever resets, whenever, and rows end in order."""
    for _ in range(10):
        n_envs = int(rng.integers(1, 5))
        env = vector("trail", mode, n_envs)
        recorder, rb = with_env_number(env, size=int(rng.integers(n_envs, 40)))
        actions = drawn_actions(env, 80, n_envs, seed=0)
        for _ in run_vector(env, recorder, actions, seed=int(rng.integers(1000))):
            if rng.random() < 0.1:
                mask = rng.random(n_envs) < 0.5
                mask[rng.integers(n_envs)] = True
                recorder.reset(env.reset(options={"reset_mask": mask.copy()})[0], mask)
                assert all(
                    rb.get_current_episode_len(number) == 0
                    for number in np.flatnonzero(mask).tolist()
                )
            if rng.random() < 0.05:
                recorder.reset(env.reset()[0])
            if len(rb) == 0:
                continue
            batch = rb.get_all_transitions()
            ahead = batch["next_obs.clock"].astype(int) - batch["obs.clock"]
            np.testing.assert_array_equal(ahead, np.tile([0, 1], (len(rb), 1)))


@pytest.mark.parametrize("mode", MODES)
def test_length_of_the_current_episode(mode: AutoresetMode) -> None:
    """The buffer counts the steps of each environment's episode, resets not among them."""
    env = vector("trail", mode)
    recorder, rb = with_env_number(env)
    for ended in run_vector(env, recorder, drawn_actions(env, 40, 3, seed=0), seed=2):
        lengths = [rb.get_current_episode_len(number) for number in range(3)]
        steps = [int(clock[1]) for clock in env.call("clock")]
        assert lengths == [0 if ended[number] else steps[number] for number in range(3)]


def test_reset_in_the_middle_ends_the_episode_of_the_environments_that_were_reset() -> None:
    """After ``reset`` with a mask only those environments begin a new episode."""
    env = vector("cart pole", AutoresetMode.DISABLED)
    recorder, rb = attached(env)
    recorder.reset(env.reset(seed=0)[0])
    for _ in range(4):
        recorder.add(np.array([0, 1, 0]), *env.step(np.array([0, 1, 0])))
    mask = np.array([False, True, False])
    obs, _ = env.reset(options={"reset_mask": mask.copy()})
    recorder.reset(obs, mask)
    assert [rb.get_current_episode_len(number) for number in range(3)] == [4, 0, 4]
    slot = recorder.add(np.array([0, 1, 0]), *env.step(np.array([0, 1, 0])))
    assert slot is not None
    np.testing.assert_array_equal(rb[np.arange(slot, slot + 3)]["obs"], obs)
    recorder.reset(env.reset()[0])
    assert [rb.get_current_episode_len(number) for number in range(3)] == [0, 0, 0]


@pytest.mark.parametrize("mode", MODES)
def test_statistics_wrapper(mode: AutoresetMode) -> None:
    """A wrapper that adds to ``info`` changes nothing."""
    records = []
    for wrap in (lambda env: env, gym.wrappers.vector.RecordEpisodeStatistics):
        env = wrap(vector("cart pole", mode))
        recorder, rb = with_env_number(env)
        for _ in run_vector(env, recorder, drawn_actions(env, 40, 3, seed=0), seed=2):
            pass
        records.append(rb.get_all_transitions())
    np.testing.assert_equal(records[1], records[0])


@pytest.mark.parametrize("mode", MODES)
def test_wrapper_that_turns_info_into_a_list(mode: AutoresetMode) -> None:
    """``info`` may be one dict for each environment."""
    env = gym.wrappers.vector.DictInfoToList(vector("trail", mode))
    actions = drawn_actions(env, 40, 3, seed=1)
    recorder, rb = with_env_number(env)
    n_ended = sum(ended.sum() for ended in run_vector(env, recorder, actions, seed=7))
    assert n_ended > 6
    first = [row for row in stored_rows(recorder, rb) if row["env"] == 0]
    resets = mode is AutoresetMode.NEXT_STEP
    expected = plain_rows(Trail(), 7, [step[0] for step in actions], reset_takes_a_step=resets)
    assert_same_rows(first, expected)


def test_wrapper_that_changes_observations() -> None:
    """Spaces and observations are those of the outermost wrapper."""
    nested = vector("trail", AutoresetMode.NEXT_STEP)
    env = gym.wrappers.vector.FlattenObservation(nested)
    actions = drawn_actions(env, 40, 3, seed=1)
    recorder, rb = with_env_number(env)
    for _ in run_vector(env, recorder, actions, seed=7):
        pass
    batch = rb.get_all_transitions()
    expected = plain_rows(Trail(), 7, [step[0] for step in actions], reset_takes_a_step=True)
    flat = [spaces.flatten(Trail.observation_space, row["next_obs"]) for row in expected]
    np.testing.assert_array_equal(batch["next_obs"][batch["env"] == 0], np.array(flat))


@pytest.mark.filterwarnings("ignore")
def test_envpool() -> None:
    """EnvPool's environments, which reset in the next step, give rows that fit together."""
    envpool = need("envpool")
    options = {"env_type": "gymnasium", "num_envs": 3, "seed": 4, "max_episode_steps": 12}
    env = envpool.make("CartPole-v1", **options)
    recorder = GymnasiumRecorder(env, autoreset_mode="NEXT_STEP")
    fields: dict[str, FieldSpec] = {**recorder.env_dict, "env": {"shape": (), "dtype": int}}
    rb = recorder.attach(ReplayBuffer(1000, fields, n_envs=3))
    actions = np.random.default_rng(0).integers(0, 2, (60, 3))
    n_resets = 0
    recorder.reset(env.reset()[0])
    for action in actions:
        step = env.step(action)
        n_resets += int((step[4]["elapsed_step"] == 0).sum())
        recorder.add(action, *step, env=np.arange(3))
    assert n_resets > 6
    assert len(rb) == 180 - n_resets
    batch = rb.get_all_transitions()
    for number in range(3):
        obs, next_obs, terminated, truncated = (
            batch[name][batch["env"] == number]
            for name in ("obs", "next_obs", "terminated", "truncated")
        )
        ends = terminated | truncated
        follows = (next_obs[:-1] == obs[1:]).all(1)
        np.testing.assert_array_equal(follows, ~ends[:-1])
        failed = (np.abs(next_obs[:, 0]) > 2.4) | (np.abs(next_obs[:, 2]) > 12 * np.pi / 180)
        np.testing.assert_array_equal(failed, terminated)
