"""``train``: the loop, with Gymnasium's five values of a step and with gym's four."""

from __future__ import annotations

import logging
from typing import Any

import gymnasium
import numpy as np
import pytest
from optional import need

from cpprb_like import PrioritizedReplayBuffer, ReplayBuffer, train
from cpprb_like.samplers import Uniform
from cpprb_like.typing import FieldSpec, NstepSpec

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
    assert rewards == [(0, 2, 3.0), (1, 3, 4.0)]
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
    steps: NstepSpec = {"size": 10, "rew": "rew", "gamma": 1.0, "discount": False}
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


def test_arguments_of_the_policy() -> None:
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


Call = tuple[Any, ...]


def told(calls: list[Call], name: str, answer: Any) -> Any:
    """A function that notes its arguments, transitions by what they hold."""

    def function(*given: Any) -> Any:
        calls.append((name, *(dict(one) if isinstance(one, dict) else one for one in given)))
        return answer(*given)

    return function


class Restless(OldLine):
    """Episodes of any length, from two steps on, which end by ``done`` alone."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.lengths = np.random.default_rng(seed).integers(2, 9, 100)

    def step(self, action: Any) -> Any:
        self.at += 1
        over = self.at - 100 * self.resets >= self.lengths[self.resets]
        return self.at, 0.5 * action, bool(over), {}


def loop_of_cpprb(env: Any, of: dict[str, Any], calls: list[Call], max_steps: int) -> list[Any]:
    """The loop as cpprb has it, one statement for each thing that happens; the rows it stores."""
    rows, episode, within, reward, obs = [], 0, 0, 0.0, env.reset()
    for step in range(max_steps):
        action = of["get_action"](obs, step, episode, False)
        transition = of["after_step"](obs, action, env.step(action), step, episode)
        rows.append(transition)
        calls.append(("update", step, episode))
        if "rew_sum" in of:
            reward = of["rew_sum"](reward, transition)
        else:
            reward += transition["rew"]
        done = of["done_check"](transition) if "done_check" in of else transition["done"]
        if done:
            of["episode_callback"](episode, within, reward)
            episode, within, reward, obs = episode + 1, 0, 0.0, env.reset()
        else:
            obs = of["obs_update"](transition) if "obs_update" in of else transition["next_obs"]
            within += 1
    return rows


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("own", [(), ("rew_sum",), ("done_check", "obs_update")], ids=str)
def test_the_loop_goes_on_with_what_after_step_returns(seed: int, own: tuple[str, ...]) -> None:
    """Each function gets the arguments of cpprb's loop, in its order; the rows are the same.

    The loop took observation, end and reward from the environment, so that stored observations did
    not continue stored next ones; and ``episode_callback`` got a step of the whole training.
    """
    rng = np.random.default_rng(seed)
    moves, ends, rewards = (
        rng.integers(1000, size=60),
        rng.random(60) < 0.3,
        rng.integers(9, size=60),
    )

    def after_step(obs: Any, action: Any, result: Any, step: int, episode: int) -> dict[str, Any]:
        return {
            "obs": obs,
            "act": action,
            "rew": float(rewards[step]),
            "next_obs": result[0] * 1000 + int(moves[step]),
            "done": bool(ends[step]),
        }

    functions = {
        "get_action": lambda obs, step, episode, is_warmup: step % 7,
        "after_step": after_step,
        "episode_callback": lambda *given: None,
        "rew_sum": lambda so_far, transition: 2 * so_far + transition["rew"],
        "done_check": lambda transition: transition["next_obs"] % 5 == 0,
        "obs_update": lambda transition: -transition["next_obs"],
    }
    told_to: list[list[Call]] = [[], []]
    ours, twins = (
        {
            name: told(calls, name, function)
            for name, function in functions.items()
            if name in own or name in ("get_action", "after_step", "episode_callback")
        }
        for calls in told_to
    )
    rb = ReplayBuffer(100, FIELDS | DONE, seed=0)
    learn = told(told_to[0], "update", lambda *given: None)
    train(rb, Restless(seed), update_policy=lambda _, *at: learn(*at), max_steps=60, **ours)
    rows = loop_of_cpprb(Restless(seed), twins, told_to[1], 60)
    assert told_to[0] == told_to[1]
    stored = rb.get_all_transitions()
    assert {name: stored[name].tolist() for name in stored} == {
        name: [row[name] for row in rows] for name in stored
    }
    if not own:
        goes_on = ~stored["done"][:-1]
        assert (stored["obs"][1:] == stored["next_obs"][:-1])[goes_on].all()


@pytest.mark.parametrize("own", [(), ("rew_sum",), ("done_check", "obs_update")], ids=str)
@pytest.mark.filterwarnings("ignore:.*still beta release:UserWarning")
def test_the_loop_is_that_of_cpprb(own: tuple[str, ...]) -> None:
    """The same program, with cpprb itself: every call, and every row."""
    cpprb = need("cpprb")
    rng = np.random.default_rng(3)
    moves, ends = rng.integers(1000, size=40), rng.random(40) < 0.3
    functions = {
        "get_action": lambda obs, step, episode, is_warmup: step % 7,
        "after_step": lambda obs, action, result, step, episode: {
            "obs": obs,
            "act": action,
            "rew": 1.0,
            "next_obs": result[0] + int(moves[step]),
            "done": bool(ends[step]),
        },
        "rew_sum": lambda so_far, transition: 2 * so_far + transition["rew"],
        "done_check": lambda transition: transition["next_obs"] % 5 == 0,
        "obs_update": lambda transition: -transition["next_obs"],
    }
    found = []
    for rb, run in (
        (ReplayBuffer(100, FIELDS | DONE), train),
        (cpprb.ReplayBuffer(100, {name: {"dtype": "i8"} for name in FIELDS | DONE}), cpprb.train),
    ):
        calls: list[Call] = []
        chosen = {
            name: told(calls, name, function)
            for name, function in functions.items()
            if name in own or name in ("get_action", "after_step")
        }
        learn = told(calls, "update", lambda *given: None)
        callback = told(calls, "episode_callback", lambda *given: None)
        run(
            rb,
            Restless(3),
            update_policy=lambda _, *at, learn=learn: learn(*at),
            # Without rew_sum cpprb tells the last reward only.
            episode_callback=lambda *given, tell=callback: tell(*given[: 2 + ("rew_sum" in own)]),
            max_steps=40,
            **chosen,
        )
        rows = rb.get_all_transitions()
        found.append((calls, {name: rows[name].ravel().tolist() for name in FIELDS}))
    assert found[0] == found[1]


@pytest.mark.parametrize(
    "form",
    [
        lambda obs, reward, done: {"obs": obs, "reward": reward, "done": done},
        lambda obs, reward, done: (obs, reward, done),
        lambda obs, reward, done: (obs, reward, done, {"lives": 1}, {"more": 1}),
        lambda obs, reward, done: (obs, reward, done, {"lives": 1}, {"more": 1}, 6),
        lambda obs, reward, done: [obs, reward, done, True],
    ],
    ids=["dict", "3", "5", "6", "list"],
)
def test_with_after_step_a_step_may_have_any_form(form: Any) -> None:
    """The loop reads the transition alone, as cpprb's does, where that has all that it needs.

    What ``env.step`` returned was read as well: other forms were refused, and of five values a dict
    in the fourth place was taken for a truncation.
    """

    class Own(Line):
        def step(self, action: Any) -> Any:
            obs, reward, terminated, truncated, _ = super().step(action)
            return form(obs, reward, terminated or truncated)

    def after_step(obs: Any, action: Any, result: Any, step: int, episode: int) -> dict[str, Any]:
        if isinstance(result, dict):
            result = (result["obs"], result["reward"], result["done"])
        return {"obs": obs, "act": action, "rew": result[1], "next_obs": result[0]} | {
            "done": result[2]
        }

    found = []
    for env in (Own(), Line()):
        rb = ReplayBuffer(50, FIELDS | DONE, seed=0)
        episodes: list[tuple[int, int, float]] = []
        options: dict[str, Any] = {"after_step": after_step} if isinstance(env, Own) else {}
        train(
            rb,
            env,
            always,
            nothing,
            max_steps=9,
            episode_callback=lambda *given, told=episodes: told.append(given),
            **options,
        )
        rows = rb.get_all_transitions(fields=["obs", "next_obs", "rew"])
        found.append((episodes, {name: values.tolist() for name, values in rows.items()}))
    assert found[0] == found[1]


@pytest.mark.parametrize("lacks", ["next_obs", "rew", "done"])
def test_what_the_transition_lacks_is_read_of_the_step(lacks: str) -> None:
    """If the step has no form that is known, the error says so, unless a function reads it."""

    class Own(Line):
        def step(self, action: Any) -> Any:
            return super().step(action)[:3]

    fields = {name: spec for name, spec in (FIELDS | DONE).items() if name != lacks}
    functions: dict[str, Any] = {
        "next_obs": {"obs_update": lambda transition: transition["obs"] + 1},
        "rew": {"rew_sum": lambda so_far, transition: so_far + 1},
        "done": {"done_check": lambda transition: transition["obs"] % 100 == 2},
    }

    def run(**options: Any) -> None:
        def after_step(obs: Any, action: Any, result: Any, *at: int) -> dict[str, Any]:
            step = {"obs": obs, "act": action, "rew": result[1], "next_obs": result[0]}
            return {k: v for k, v in (step | {"done": result[2]}).items() if k in fields}

        train(
            ReplayBuffer(50, fields), Own(), always, nothing,
            max_steps=5, after_step=after_step, **options,
        )  # fmt: skip

    run(**functions[lacks])
    with pytest.raises(ValueError, match=r"env\.step\(\): expected a tuple of 5 .*, got 3 values"):
        run()


def test_a_truncation_that_the_transition_does_not_tell_ends_the_episode() -> None:
    """A stored ``done`` that is the termination alone does not keep a truncated episode going."""
    rb = ReplayBuffer(50, FIELDS | DONE, seed=0)
    episodes: list[tuple[int, int]] = []
    train(
        rb,
        Line(),
        always,
        nothing,
        max_steps=9,
        after_step=lambda obs, action, result, step, episode: {
            "obs": obs,
            "act": action,
            "rew": result[1],
            "next_obs": result[0],
            "done": result[2],
        },
        episode_callback=lambda episode, step, reward: episodes.append((episode, step)),
    )
    assert episodes == [(0, 2), (1, 3)]
    assert rb.get_all_transitions()["obs"].tolist()[-2:] == [300, 301]


def test_ends_of_other_names_end_the_episode() -> None:
    """The fields that end episodes in the buffer end them in the loop."""
    ends = {"dead": DONE["done"], "late": DONE["done"]}
    rb = ReplayBuffer(50, FIELDS | ends, terminated="dead", truncated="late", seed=0)
    episodes: list[int] = []
    train(
        rb,
        Line(),
        always,
        nothing,
        max_steps=9,
        after_step=lambda obs, action, result, step, episode: {
            "obs": obs,
            "act": action,
            "rew": [result[1]],
            "next_obs": result[0],
            "dead": np.array(step == 1),
            "late": step == 6,
        },
        episode_callback=lambda episode, step, reward: episodes.append(step),
    )
    assert episodes == [1, 4]


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
            "own" if logger else "cpprb_like.train"
        ] * 2
        assert caplog.messages[1] == "episode 1: reward 4, 7 steps so far"
    assert capsys.readouterr() == ("", "")


def test_cartpole() -> None:
    """A real environment of Gymnasium: the rows are the steps, the rewards the lengths."""
    fields: dict[str, FieldSpec] = {
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


class ResetsInStep(Line):
    """The environment has reset when an episode ends; the final observation is in ``info``."""

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = super().step(action)
        if terminated or truncated:
            info["final_obs"], obs = obs, self.reset()[0]
        return obs, reward, terminated, truncated, info


@pytest.mark.parametrize("n_values", [5, 4])
def test_environments_that_reset_within_step_are_refused(n_values: int) -> None:
    """The first observation of the next episode was stored as the last one of this."""
    env: Any = ResetsInStep()
    if n_values == 4:
        whole = env.step

        def step(action: Any) -> Any:
            obs, reward, terminated, truncated, info = whole(action)
            return obs, reward, terminated or truncated, info

        env.step = step
    rb = ReplayBuffer(100, FIELDS | DONE)
    with pytest.raises(ValueError, match=r"info has final_obs: .* without its automatic reset"):
        train(rb, env, always, nothing, max_steps=20)
    assert rb.get_all_transitions()["next_obs"].tolist() == [101, 102]


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
