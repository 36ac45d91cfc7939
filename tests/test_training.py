"""``train``: the loop, with Gymnasium's five values of a step and with gym's four."""

from __future__ import annotations

import logging
from typing import Any

import gymnasium
import numpy as np
import pytest

from cpprb_like import PrioritizedReplayBuffer, ReplayBuffer, train
from cpprb_like.samplers import Uniform

FIELDS: dict[str, Any] = {
    "obs": {"shape": (), "dtype": "i8"},
    "act": {"shape": (), "dtype": "i8"},
    "rew": {"shape": (), "dtype": "f8"},
    "next_obs": {"shape": (), "dtype": "i8"},
}
DONE: dict[str, Any] = {"done": {"shape": (), "dtype": bool}}
BOTH: dict[str, Any] = {
    "terminated": {"shape": (), "dtype": bool},
    "truncated": {"shape": (), "dtype": bool},
}


class Line:
    """Observations count on; episodes end by turns: terminated after 3 steps, cut off after 4."""

    def __init__(self) -> None:
        self.resets = 0
        self.at = 0

    def reset(self) -> Any:
        self.resets += 1
        self.at = 100 * self.resets
        return self.at, {}

    def step(self, action: Any) -> Any:
        self.at += 1
        cut_off = self.resets % 2 == 0
        over = self.at % 100 == (4 if cut_off else 3)
        return self.at, 0.5 * action, over and not cut_off, over and cut_off, {}


class OldLine(Line):
    """The same, as gym had it before 0.26."""

    def reset(self) -> Any:
        return super().reset()[0]

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = super().step(action)
        if truncated:
            info["TimeLimit.truncated"] = True
        return obs, reward, terminated or truncated, info


def always(obs: Any, step: int, episode: int, is_warmup: bool) -> int:
    """The one action."""
    return 2


def nothing(batch: Any, step: int, episode: int) -> None:
    """A policy that learns nothing."""


@pytest.mark.parametrize("env", [Line, OldLine])
def test_every_step_is_stored_in_order(env: Any) -> None:
    """What is stored is what the environment gave, whichever way it speaks."""
    rb = ReplayBuffer(50, FIELDS | BOTH, seed=0)
    rewards: list[tuple[int, int, float]] = []
    train(rb, env(), always, nothing, max_steps=9, episode_callback=lambda *a: rewards.append(a))
    rows = rb.get_all_transitions()
    assert rows["obs"].tolist() == [100, 101, 102, 200, 201, 202, 203, 300, 301]
    assert rows["next_obs"].tolist() == [101, 102, 103, 201, 202, 203, 204, 301, 302]
    assert rows["act"].tolist() == [2] * 9
    assert rows["rew"].tolist() == [1.0] * 9
    assert np.flatnonzero(rows["terminated"]).tolist() == [2]
    assert np.flatnonzero(rows["truncated"]).tolist() == [6]
    assert rewards == [(0, 2, 3.0), (1, 6, 4.0)]
    rb.check()


@pytest.mark.parametrize("env", [Line, OldLine])
@pytest.mark.parametrize(
    ("ends", "done"), [({}, [2]), (BOTH, [2, 6]), ({"terminated": BOTH["terminated"]}, [2, 6])]
)
def test_done_means_what_the_other_fields_leave(env: Any, ends: Any, done: list[int]) -> None:
    """A lone ``done`` says that no value is left; beside others that the episode is over."""
    rb = ReplayBuffer(50, FIELDS | DONE | ends, seed=0)
    train(rb, env(), always, nothing, max_steps=7)
    assert np.flatnonzero(rb.get_all_transitions()["done"]).tolist() == done


@pytest.mark.parametrize("fields", [{}, DONE, BOTH])
def test_the_buffer_knows_where_episodes_end(fields: Any) -> None:
    """No sum over several steps crosses an end, whichever fields there are, open ends included."""
    steps = {"size": 10, "rew": "rew", "gamma": 1.0}
    rb = ReplayBuffer(50, FIELDS | fields, Nstep=steps, seed=0)
    rb.add(obs=0, act=0, rew=100, next_obs=0, **dict.fromkeys(fields, False))
    env = Line()
    train(rb, env, always, nothing, max_steps=9)
    assert rb.get_all_transitions()["rew"].tolist() == [100, 3, 2, 1, 4, 3, 2, 1, 2, 1]
    assert rb.get_current_episode_len() == 0
    assert env.resets == 3


def test_an_error_ends_the_episode_as_well() -> None:
    """Training that is interrupted can be begun anew: the environment is reset then."""
    rb = ReplayBuffer(50, FIELDS, seed=0)

    def interrupt(batch: Any, step: int, episode: int) -> None:
        if step == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(rb, Line(), always, interrupt)
    assert len(rb) == 2
    assert rb.get_current_episode_len() == 0


def test_what_the_policy_is_told() -> None:
    """Steps and episodes count from 0, warm-ups teach nothing, batches are as large as said."""
    actions: list[tuple[Any, ...]] = []
    updates: list[tuple[Any, ...]] = []

    def act(*told: Any) -> int:
        actions.append(told)
        return 0

    def learn(batch: Any, step: int, episode: int) -> None:
        updates.append((len(batch["obs"]), step, episode))

    rb = ReplayBuffer(50, FIELDS, seed=0)
    train(rb, Line(), act, learn, max_steps=5, n_warmups=2, batch_size=7)
    assert actions == [
        (100, 0, 0, True),
        (101, 1, 0, True),
        (102, 2, 0, False),
        (200, 3, 1, False),
        (201, 4, 1, False),
    ]
    assert updates == [(7, 2, 0), (7, 3, 1), (7, 4, 1)]


@pytest.mark.parametrize(("limits", "steps"), [({"max_episodes": 2}, 7), ({"max_steps": 0}, 0)])
def test_limits(limits: dict[str, Any], steps: int) -> None:
    """It stops after so many steps or episodes, and does not reset the environment once more."""
    rb, env = ReplayBuffer(50, FIELDS, seed=0), Line()
    train(rb, env, always, nothing, **limits)
    assert len(rb) == steps
    assert env.resets == (2 if steps else 0)


def test_own_functions_take_the_place_of_the_defaults() -> None:
    """What is stored, when it is over, what is seen next, and what counts as reward."""
    rb = ReplayBuffer(50, {"x": {"shape": (), "dtype": "i8"}, "note": {"dtype": object}}, seed=0)
    seen: list[Any] = []
    rewards: list[float] = []

    def act(obs: Any, step: int, episode: int, is_warmup: bool) -> int:
        seen.append(obs)
        return 1

    train(
        rb,
        Line(),
        act,
        nothing,
        max_steps=6,
        after_step=lambda obs, action, result, step, episode: {"x": step, "note": result[0]},
        done_check=lambda transition: transition["x"] % 2 == 1,
        obs_update=lambda transition: -transition["note"],
        rew_sum=lambda so_far, transition: max(so_far, float(transition["x"])),
        episode_callback=lambda episode, step, reward: rewards.append(reward),
    )
    assert rb.get_all_transitions()["x"].tolist() == [0, 1, 2, 3, 4, 5]
    assert seen == [100, -101, 200, -201, 300, -301]
    assert rewards == [1.0, 3.0, 5.0]


def test_priorities_are_those_that_the_policy_returns() -> None:
    """Any buffer with priorities gets them, of a subclass and with another sampler too."""

    class Own(PrioritizedReplayBuffer):
        pass

    for cls in (PrioritizedReplayBuffer, Own):
        rb = cls(50, FIELDS, seed=0, eps=0.0, alpha=1.0, check_for_update=True)
        train(rb, Line(), always, lambda batch, *_: batch["obs"] + 0.5, max_steps=9, batch_size=64)
        weights = rb.sampler.rows.get(np.arange(9))  # type: ignore[attr-defined]
        assert (weights == rb.get_all_transitions()["obs"] + 0.5).all()
        with pytest.raises(TypeError, match=r"update_policy: .* got None"):
            train(rb, Line(), always, nothing, max_steps=1)


def test_there_is_no_update_without_a_row() -> None:
    """Rows that wait for others to follow cannot be learned from yet."""
    updates: list[int] = []
    rb = ReplayBuffer(50, FIELDS, Nstep={"size": 3}, seed=0)
    train(rb, Line(), always, lambda batch, step, episode: updates.append(step), max_steps=3)
    assert updates == [2]


def test_progress_is_logged_and_not_printed(
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each episode is a line at level INFO, of our logger or of the one that is given."""
    for logger in (None, logging.getLogger("own")):
        caplog.clear()
        with caplog.at_level(logging.INFO):
            train(ReplayBuffer(9, FIELDS), Line(), always, nothing, max_episodes=2, logger=logger)
        assert [record.name for record in caplog.records] == [
            "own" if logger else "cpprb_like.training"
        ] * 2
        assert caplog.messages[1] == "episode 1: reward 4, 7 steps so far"
    assert capsys.readouterr() == ("", "")


def test_cartpole() -> None:
    """A real environment of Gymnasium: the rows are the steps, the rewards the lengths."""
    fields = {
        "obs": {"shape": 4},
        "act": {"shape": (), "dtype": "i8"},
        "rew": {"shape": ()},
        "terminated": {"shape": (), "dtype": bool},
        "truncated": {"shape": (), "dtype": bool},
    }
    rb = ReplayBuffer(2000, fields, next_of="obs", seed=0)
    env = gymnasium.make("CartPole-v1", max_episode_steps=20)
    env.action_space.seed(0)
    rewards: list[float] = []
    train(
        rb,
        env,
        lambda obs, step, episode, is_warmup: env.action_space.sample(),
        lambda batch, step, episode: None,
        max_episodes=60,
        episode_callback=lambda episode, step, reward: rewards.append(reward),
    )
    env.close()
    rows = rb.get_all_transitions()
    ends = rows["terminated"] | rows["truncated"]
    lengths = np.diff(np.flatnonzero(ends), prepend=-1)
    assert lengths.tolist() == rewards
    assert rows["terminated"].any()
    assert (lengths[rows["truncated"][ends]] == 20).all()
    assert rows["truncated"].any()
    inner = np.flatnonzero(~ends)
    assert (rows["next_obs"][inner] == rows["obs"][inner + 1]).all()
    assert (
        (rows["next_obs"][ends] != rows["obs"][(np.flatnonzero(ends) + 1) % len(rb)])
        .any(axis=1)
        .all()
    )
    rb.check()


class Bad(Line):
    """An environment whose steps are three values."""

    def step(self, action: Any) -> Any:
        return super().step(action)[:3]


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"max_steps": -1}, ValueError, "max_steps: expected at least 0"),
        ({"max_steps": 1.5}, TypeError, "max_steps"),
        ({"max_episodes": 0}, ValueError, "max_episodes: expected at least 1"),
        ({"batch_size": 0}, ValueError, "batch_size: expected at least 1"),
        ({"n_warmups": -1}, ValueError, "n_warmups: expected at least 0"),
        ({"env": Bad()}, ValueError, r"env.step\(\): expected .* got 3 values"),
        ({"buffer": ReplayBuffer(4, FIELDS, n_envs=2)}, ValueError, "n_envs=2"),
        ({"buffer": ReplayBuffer(4, FIELDS | {"x": {}})}, ValueError, r"after_step: .*\['x'\]"),
    ],
)
def test_what_is_refused(arguments: dict[str, Any], error: type[Exception], words: str) -> None:
    """The message names the argument; nothing was stored."""
    given: dict[str, Any] = {
        "buffer": ReplayBuffer(4, FIELDS),
        "env": Line(),
        "max_steps": 3,
    } | arguments
    with pytest.raises(error, match=words):
        train(get_action=always, update_policy=nothing, **given)
    assert len(given["buffer"]) == 0


def test_samplers_of_ones_own_are_no_hindrance() -> None:
    """A buffer is learned from by whatever it draws with."""
    drawn: list[int] = []

    class Counting(Uniform):
        def draw(self, ring: Any, n: int, *args: Any, **options: Any) -> Any:
            drawn.append(n)
            return super().draw(ring, n, *args, **options)

    train(ReplayBuffer(9, FIELDS, sampler=Counting()), Line(), always, nothing, max_steps=3)
    assert drawn == [64, 64, 64]
