"""HER: an agent that learns from goals that it missed, where there is hardly ever a reward.

Algorithm: DQN with hindsight experience replay (Andrychowicz et al. 2017, "Hindsight Experience
  Replay"), strategy "future".
Environment: flip 14 bits, one in each step, until they are those of a goal (section 4.1 of the
  paper). The reward is -1 until the goal is reached, which happens hardly ever by
  chance.
Score: at least 0.9 (share of 200 goals that are reached); with ``--no-hindsight`` about 0.
Time: 1 minute on one core.
"""

import argparse
import copy
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from matplotlib.figure import Figure
from torch import nn
from tqdm import trange

from cpprb_like import GymnasiumRecorder, Hindsight, ReplayBuffer

BITS = 14
BATCH, UPDATES, EPOCH = 128, 10, 100  # rows of a batch, updates after an episode, episodes
GAMMA, TAU, LEARNING_RATE, EXPLORATION = 0.95, 0.02, 1e-3, 0.15


class Flip(gymnasium.Env[Any, Any]):
    """Bits and a goal; an action flips one bit."""

    def __init__(self) -> None:
        bits = spaces.MultiBinary(BITS)
        names = ("observation", "achieved_goal", "desired_goal")
        self.observation_space = spaces.Dict(dict.fromkeys(names, bits))
        self.action_space = spaces.Discrete(BITS)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """New bits and a new goal."""
        super().reset(seed=seed)
        self.bits, self.goal = self.np_random.integers(0, 2, (2, BITS), np.int8)
        return self._seen(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Flip this bit."""
        self.bits = self.bits.copy()
        self.bits[action] ^= 1
        reward = float(compute_reward(self.bits, self.goal, {}))
        return self._seen(), reward, reward == 0.0, False, {}

    def _seen(self) -> dict[str, Any]:
        return {"observation": self.bits, "achieved_goal": self.bits, "desired_goal": self.goal}


def compute_reward(achieved_goal: Any, desired_goal: Any, _: Any) -> Any:
    """0 where the goal is reached, else -1: of one step, or of a batch."""
    return np.where((achieved_goal == desired_goal).all(-1), 0.0, -1.0)


def is_reached(achieved_goal: Any, desired_goal: Any, _: Any) -> Any:
    """Whether a step ends its episode."""
    return (achieved_goal == desired_goal).all(-1)


def given(bits: Any, goal: Any) -> torch.Tensor:
    """What the network sees."""
    return torch.cat([torch.as_tensor(bits), torch.as_tensor(goal)], -1).float()


def train(
    seed: int, episodes: int, *, hindsight: bool
) -> tuple[nn.Module, list[tuple[int, float]]]:
    """Play an episode, store it, learn; the network, and the share of goals after each epoch."""
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    env = GymnasiumRecorder(gymnasium.wrappers.TimeLimit(Flip(), BITS))
    buffer = env.attach(ReplayBuffer(100_000, env.env_dict, seed=seed))
    # The view relabels when it draws: of each row that is drawn, 4 of 5 times, the goal is replaced
    # by one that was achieved later in the episode, and the reward is computed anew.
    source: Any = buffer
    if hindsight:
        source = buffer.view(Hindsight(compute_reward, terminated_func=is_reached))
    batches = source.batches(BATCH, to="torch")

    network = nn.Sequential(nn.Linear(2 * BITS, 256), nn.ReLU(), nn.Linear(256, BITS))
    slow = copy.deepcopy(network)
    optimizer = torch.optim.Adam(network.parameters(), LEARNING_RATE, fused=True)
    curve, every = [(0, 0.0)], max(1, min(EPOCH, episodes // 5))
    for episode in (bar := trange(1, episodes + 1, unit="episode", mininterval=0.5)):
        obs, _ = env.reset(seed=seed if episode == 1 else None)
        over = False
        while not over:
            if rng.random() < EXPLORATION:
                action = int(rng.integers(BITS))
            else:
                with torch.no_grad():
                    seen = given(obs["observation"], obs["desired_goal"])
                    action = int(network(seen).argmax())
            obs, _, terminated, truncated, _ = env.step(action)
            over = terminated or truncated
        for _ in range(UPDATES):
            batch = next(batches)
            with torch.no_grad():
                seen = given(batch["next_obs.observation"], batch["next_obs.desired_goal"])
                best = network(seen).argmax(1, keepdim=True)
                value = slow(seen).gather(1, best)[:, 0]
                target = batch.rew + GAMMA * (1 - batch.terminated.float()) * value
            seen = given(batch["obs.observation"], batch["obs.desired_goal"])
            values = network(seen).gather(1, batch.act[:, None])[:, 0]
            optimizer.zero_grad()
            nn.functional.smooth_l1_loss(values, target).backward()
            optimizer.step()
            with torch.no_grad():
                for one, other in zip(slow.parameters(), network.parameters(), strict=True):
                    one.lerp_(other, TAU)
        if episode % every == 0:
            curve.append((episode, evaluate(network, 50)))
            bar.set_postfix_str(f"goals {curve[-1][1]:.2f}")
    return network, curve


def evaluate(network: nn.Module, goals: int) -> float:
    """The share of goals that are reached without exploration."""
    env, reached = Flip(), 0
    for goal in range(goals):
        obs, _ = env.reset(seed=10_000 + goal)
        for _ in range(BITS):
            with torch.no_grad():
                action = int(network(given(obs["observation"], obs["desired_goal"])).argmax())
            obs, _, terminated, _, _ = env.step(action)
            if terminated:
                reached += 1
                break
    return reached / goals


def main() -> None:
    """Train, draw the learning curve, evaluate."""
    parser = argparse.ArgumentParser(description=f"HER: flip {BITS} bits.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--episodes", type=int, default=800)
    parser.add_argument("--no-hindsight", action="store_true", help="learn from real goals alone")
    parser.add_argument("--quick", action="store_true", help="too few episodes to learn")
    parser.add_argument("--picture", type=Path, default=Path("her_bits.png"))
    options = parser.parse_args()
    episodes, goals = (100, 20) if options.quick else (options.episodes, 200)
    torch.set_num_threads(1)

    network, curve = train(options.seed, episodes, hindsight=not options.no_hindsight)
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    axes.plot(*zip(*curve, strict=True), marker=".")
    axes.set(title=f"{BITS} bits", xlabel="episode", ylabel="share of goals reached")
    axes.set(ylim=(-0.05, 1.05))
    figure.savefig(options.picture, dpi=110)
    print(f"Picture: {options.picture.resolve()}")
    print(f"score: {evaluate(network, goals):.2f} (share of {goals} goals that are reached)")


if __name__ == "__main__":
    main()
