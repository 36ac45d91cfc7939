"""Behaviour cloning and offline RL from a Minari data set.

The script makes the data set itself: a rule swings a pendulum up, but does not hold it at the top,
and every second action is random. ``--data`` takes any other one with boxes of numbers, by its
folder or by its name in Minari's own folder, such as ``mujoco/hopper/medium-v0``.

Algorithm: TD3+BC (Fujimoto and Gu 2021, "A Minimalist Approach to Offline Reinforcement Learning"):
  the actor of TD3 is pulled towards the actions of the data. Without the critic it is behaviour
  cloning, which is trained beside it and does what the rule does.
Environment: Pendulum-v1.
Score: at least -200 (mean return of 20 episodes).
Time: a minute on one core.
"""

import argparse
import copy
import json
import tempfile
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn
from tqdm import trange

from cpprb_like import GymnasiumRecorder, ReplayBuffer
from cpprb_like.datasets import describe

BATCH, EVALUATE_EVERY = 256, 1_000
GAMMA, TAU, LEARNING_RATE, REWARD = 0.98, 0.005, 1e-3, 0.1  # REWARD: scale of rewards
SMOOTHING, MOST_SMOOTHING = 0.2, 0.5  # noise of the target policy, as shares of the largest action
WEIGHT = 2.5  # weight of the value beside the pull towards the data: alpha of the paper


def swing(obs: Any) -> float:
    """A rule for the pendulum: give it the energy that it has at the top. It does not hold it."""
    cosine, _, speed = obs
    missing = 5 * (1 - cosine) - speed**2 / 6
    return float(2 * np.sign(missing * speed))


def make_data_set(folder: Path, episodes: int, seed: int) -> None:
    """Play, and write what was played as a data set of Minari."""
    rng = np.random.default_rng(seed)
    env = GymnasiumRecorder(gymnasium.make("Pendulum-v1"))
    buffer = env.attach(ReplayBuffer(200 * episodes, env.env_dict, next_of="obs"))
    obs, _ = env.reset(seed=seed)
    for _ in trange(200 * episodes, desc="data set", unit="step"):
        torque = rng.uniform(-2, 2) if rng.random() < 0.5 else swing(obs)
        obs, *_ = env.step(np.array([torque], np.float32))
    about = {"observation_space": env.observation_space, "action_space": env.action_space}
    buffer.export(folder, "minari", about={**about, "env_spec": env.spec})


class Network(nn.Module):  # type: ignore[misc]
    """Two hidden layers on observations that are normalised as the data are."""

    def __init__(self, obs: Tensor, act: Tensor, inputs: int, outputs: int) -> None:
        super().__init__()
        self.register_buffer("mean", obs.mean(0))
        self.register_buffer("std", obs.std(0) + 1e-3)
        self.register_buffer("scale", act.abs().amax(0))
        self.layers = nn.Sequential(
            *(nn.Linear(inputs, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU()),
            nn.Linear(128, outputs),
        )


class Actor(Network):
    """An action for each observation, within the range of the data."""

    def __init__(self, obs: Tensor, act: Tensor) -> None:
        super().__init__(obs, act, obs.shape[1], act.shape[1])

    def forward(self, obs: Tensor) -> Tensor:
        """Of the deterministic policy."""
        return torch.tanh(self.layers((obs - self.mean) / self.std)) * self.scale


class Critic(Network):
    """The value of an action."""

    def __init__(self, obs: Tensor, act: Tensor) -> None:
        super().__init__(obs, act, obs.shape[1] + act.shape[1], 1)

    def forward(self, obs: Tensor, act: Tensor) -> Tensor:
        """Shape (n,)."""
        return self.layers(torch.cat([(obs - self.mean) / self.std, act / self.scale], 1))[:, 0]


def train(
    source: ReplayBuffer, env_name: str, seed: int, updates: int, with_value: bool
) -> tuple[Actor, list[tuple[int, float]]]:
    """TD3+BC, or behaviour cloning without the value; the actor, and its return during training."""
    torch.manual_seed(seed)
    rows = source.get_all_transitions()
    obs, act = torch.as_tensor(rows["obs"]), torch.as_tensor(rows["act"])
    actor, critics = Actor(obs, act), nn.ModuleList([Critic(obs, act), Critic(obs, act)])
    slow_actor, slow_critics = copy.deepcopy(actor), copy.deepcopy(critics)
    actor_optimizer = torch.optim.Adam(actor.parameters(), LEARNING_RATE, fused=True)
    critic_optimizer = torch.optim.Adam(critics.parameters(), LEARNING_RATE, fused=True)
    batches, curve = source.batches(BATCH, to="torch"), []
    every = max(1, min(EVALUATE_EVERY, updates // 5))
    label = "TD3+BC" if with_value else "behaviour cloning"
    for update in (bar := trange(1, updates + 1, desc=label, unit="update", mininterval=0.5)):
        batch = next(batches)
        if with_value:
            with torch.no_grad():
                noise = SMOOTHING * torch.randn_like(batch.act)
                noise = noise.clamp(-MOST_SMOOTHING, MOST_SMOOTHING) * actor.scale
                following = slow_actor(batch.next_obs) + noise
                following = following.clamp(-actor.scale, actor.scale)
                values = torch.stack([slow(batch.next_obs, following) for slow in slow_critics])
                target = REWARD * batch.rew + GAMMA * values.amin(0) * ~batch.terminated
            errors = torch.stack([critic(batch.obs, batch.act) - target for critic in critics])
            critic_optimizer.zero_grad()
            (errors**2).mean(1).sum().backward()
            critic_optimizer.step()
        if not with_value or update % 2 == 0:
            action = actor(batch.obs)
            loss = nn.functional.mse_loss(action / actor.scale, batch.act / actor.scale)
            if with_value:
                value = critics[0](batch.obs, action)
                loss = loss - WEIGHT * value.mean() / value.detach().abs().mean()
            actor_optimizer.zero_grad()
            loss.backward()
            actor_optimizer.step()
            with torch.no_grad():
                for slow, fast in ((slow_actor, actor), (slow_critics, critics)):
                    for one, other in zip(slow.parameters(), fast.parameters(), strict=True):
                        one.lerp_(other, TAU)
        if update % every == 0:
            curve.append((update, evaluate(actor, env_name, 3)))
            bar.set_postfix_str(f"return {curve[-1][1]:.0f}")
    return actor, curve


def evaluate(actor: Actor, env_name: str, episodes: int) -> float:
    """Mean return of the policy in the environment."""
    env, total = gymnasium.make(env_name), 0.0
    for episode in range(episodes):
        obs, _ = env.reset(seed=10_000 + episode)
        over = False
        while not over:
            with torch.no_grad():
                action = actor(torch.as_tensor(obs[None], dtype=torch.float32))[0].numpy()
            obs, reward, terminated, truncated, _ = env.step(action)
            total, over = total + float(reward), terminated or truncated
    return total / episodes


def main() -> None:
    """Make a data set, read it, learn from it in two ways, draw and evaluate."""
    parser = argparse.ArgumentParser(description="Behaviour cloning and TD3+BC from Minari.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--data", help="folder or name of a data set of Minari; else one is made")
    parser.add_argument("--updates", type=int, default=10_000, help="batches to learn from")
    parser.add_argument("--quick", action="store_true", help="too few updates to learn")
    parser.add_argument("--picture", type=Path, default=Path("offline_minari.png"))
    options = parser.parse_args()
    updates, episodes = (200, 2) if options.quick else (options.updates, 20)
    torch.set_num_threads(1)

    with tempfile.TemporaryDirectory() as folder:
        path = options.data
        if path is None:
            path = Path(folder) / "pendulum-half-random-v0"
            make_data_set(path, 10 if options.quick else 100, options.seed)
        about = describe(path)
        print(f"{about.format}: {about.rows} rows, {len(about.episodes)} episodes")
        # A buffer like any other. The data set stores no next observations twice, nor does it.
        source = ReplayBuffer.from_dataset(path, next_of="obs", seed=options.seed)
    env_name = json.loads(about.about["env_spec"])["id"]

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes, scores = figure.subplots(), {}
    mean = float(source.get_all_transitions()["rew"].sum()) / len(source.episodes)
    axes.axhline(mean, color="tab:gray", linestyle="--", label="the data")
    for label, with_value in (("behaviour cloning", False), ("TD3+BC", True)):
        actor, curve = train(source, env_name, options.seed, updates, with_value)
        scores[label] = evaluate(actor, env_name, episodes)
        axes.plot(*np.array(curve).reshape(-1, 2).T, marker=".", label=label)
        print(f"{label}: {scores[label]:.1f}; the data: {mean:.1f}")
    axes.set(title=env_name, xlabel="update", ylabel="return, 3 episodes")
    axes.legend()
    figure.savefig(options.picture, dpi=110)
    print(f"Picture: {options.picture.resolve()}")
    print(f"score: {scores['TD3+BC']:.1f} (mean return of {episodes} episodes)")


if __name__ == "__main__":
    main()
