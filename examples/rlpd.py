"""RLPD: half of each batch from online steps, half from a few episodes that a script has played.

Algorithm: RLPD (Ball, Smith, Kostrikov and Levine 2023, "Efficient Online Reinforcement Learning
  with Offline Data"): symmetric sampling, and layer normalisation in the critics. Smaller than in
  the paper: TD3 in place of SAC, 2 critics in place of 10, one update a step in place of 20.
Environment: MountainCarContinuous-v0. The only reward is at the top of the hill, and each push
  costs: an agent that has never been there learns to stay where it is.
Score: at least 90 (mean return of 20 episodes), with the offline data; without them about 0.
Time: 2 minutes on one core, for both.
"""

import argparse
import copy
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn
from tqdm import trange

from cpprb_like import GymnasiumRecorder, ReplayBuffer
from cpprb_like.buffers import Mixture
from cpprb_like.views import NStep

ENV = "MountainCarContinuous-v0"
BATCH, WARM_UP = 128, 1_000  # steps drawn, steps before learning
GAMMA, TAU, LEARNING_RATE, STEPS = 0.99, 0.01, 1e-3, 5  # STEPS: of an n-step return
EXPLORATION, SMOOTHING = 0.1, 0.2  # noise of actions, and of those that a target is made of
SCALE, REWARD = torch.tensor([0.5, 0.05]), 0.1  # typical position and speed; scale of rewards


class Actor(nn.Module):  # type: ignore[misc]
    """An action from -1 to 1 for each observation, shape (n, 1)."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1)),
            nn.Tanh(),
        )

    def forward(self, obs: Tensor) -> Tensor:
        """Of the deterministic policy."""
        return self.layers(obs / SCALE)

    def act(self, obs: Any, noise: float = 0.0) -> Any:
        """The action for one observation, with noise."""
        with torch.no_grad():
            action = self(torch.as_tensor(obs)) + noise * torch.randn(1)
        return action.clamp(-1, 1).numpy()


class Critic(nn.Module):  # type: ignore[misc]
    """The value of an action. Layer normalisation bounds it where there are no data."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(nn.Linear(3, 64), nn.LayerNorm(64), nn.ReLU()),
            *(nn.Linear(64, 64), nn.LayerNorm(64), nn.ReLU(), nn.Linear(64, 1)),
        )

    def forward(self, obs: Tensor, act: Tensor) -> Tensor:
        """Shape (n,)."""
        return self.layers(torch.cat([obs / SCALE, act], 1))[:, 0]


def play_script(episodes: int, seed: int) -> ReplayBuffer:
    """Offline data: a script that pushes where the car moves to, and at random half of the time."""
    rng = np.random.default_rng(seed)
    env = GymnasiumRecorder(gymnasium.make(ENV))
    buffer = env.attach(ReplayBuffer(episodes * 999, env.env_dict, seed=seed))
    obs, _ = env.reset(seed=seed)
    for _ in range(episodes):
        over = False
        while not over:
            push = rng.uniform(-1, 1) if rng.random() < 0.5 else np.sign(obs[1])
            obs, _, terminated, truncated, _ = env.step(np.array([push], np.float32))
            over = terminated or truncated
    return buffer


def train(seed: int, steps: int, offline: ReplayBuffer | None) -> tuple[Actor, list[Any]]:
    """TD3, with offline data or without; the actor, and step and return of each evaluation."""
    torch.manual_seed(seed)
    env = GymnasiumRecorder(gymnasium.make(ENV))
    online = env.attach(ReplayBuffer(steps, env.env_dict, seed=seed))
    # Views and mixtures draw as buffers do, so the rest of the program does not see the difference.
    several = NStep(STEPS, gamma=GAMMA, discount=True)  # as the reward is far away
    source: Any = online.view(several)
    if offline is not None:
        sources = {"online": source, "offline": offline.view(several)}
        source = Mixture(sources, {"online": 0.5, "offline": 0.5}, seed=seed)
    batches = source.batches(BATCH, to="torch")

    actor, critics = Actor(), nn.ModuleList([Critic(), Critic()])
    slow_actor, slow_critics = copy.deepcopy(actor), copy.deepcopy(critics)
    actor_optimizer = torch.optim.Adam(actor.parameters(), LEARNING_RATE, fused=True)
    critic_optimizer = torch.optim.Adam(critics.parameters(), LEARNING_RATE, fused=True)
    curve, every = [], max(1, min(1_000, steps // 10))
    obs, _ = env.reset(seed=seed)
    env.action_space.seed(seed)
    label = "online and offline" if offline is not None else "online alone"
    for step in (bar := trange(1, steps + 1, desc=label, unit="step", mininterval=0.5)):
        warm = step <= WARM_UP
        obs, *_ = env.step(env.action_space.sample() if warm else actor.act(obs, EXPLORATION))
        if warm:
            continue

        batch = next(batches)
        with torch.no_grad():
            noise = (SMOOTHING * torch.randn_like(batch.act)).clamp(-0.5, 0.5)
            following = (slow_actor(batch.next_obs) + noise).clamp(-1, 1)
            values = torch.stack([slow(batch.next_obs, following) for slow in slow_critics])
            target = REWARD * batch.rew + batch.discount * values.amin(0)  # discount: 0 at the top
        errors = torch.stack([critic(batch.obs, batch.act) - target for critic in critics])
        critic_optimizer.zero_grad()
        (errors**2).mean(1).sum().backward()
        critic_optimizer.step()
        if step % 2 == 0:
            actor_optimizer.zero_grad()
            (-critics[0](batch.obs, actor(batch.obs)).mean()).backward()
            actor_optimizer.step()
            with torch.no_grad():
                for slow, fast in ((slow_actor, actor), (slow_critics, critics)):
                    for one, other in zip(slow.parameters(), fast.parameters(), strict=True):
                        one.lerp_(other, TAU)
        if step % every == 0:
            curve.append((step, evaluate(actor, 3)))
            bar.set_postfix_str(f"return {curve[-1][1]:.0f}")
    return actor, curve


def evaluate(actor: Actor, episodes: int) -> float:
    """Mean return of the policy without noise."""
    env, total = gymnasium.make(ENV), 0.0
    for episode in range(episodes):
        obs, _ = env.reset(seed=10_000 + episode)
        over = False
        while not over:
            obs, reward, terminated, truncated, _ = env.step(actor.act(obs))
            total, over = total + float(reward), terminated or truncated
    return total / episodes


def main() -> None:
    """Train with and without offline data, draw both learning curves, evaluate."""
    parser = argparse.ArgumentParser(description="RLPD on MountainCarContinuous-v0.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=10_000, help="environment steps of a run")
    parser.add_argument("--quick", action="store_true", help="too few steps to learn")
    parser.add_argument("--picture", type=Path, default=Path("rlpd.png"))
    options = parser.parse_args()
    steps, episodes = (1_200, 2) if options.quick else (options.steps, 20)
    torch.set_num_threads(1)

    offline = play_script(5 if options.quick else 20, options.seed)
    print(f"Offline: {len(offline)} steps in {len(offline.episodes)} episodes.")
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes, scores = figure.subplots(), {}
    for label, data in (("online alone", None), ("online and offline", offline)):
        actor, curve = train(options.seed, steps, data)
        scores[label] = evaluate(actor, episodes)
        axes.plot(*np.array([(0, 0), *curve]).T, marker=".", label=label)
        print(f"{label}: {scores[label]:.1f}")
    axes.set(title="MountainCarContinuous", xlabel="step", ylabel="return, 3 episodes")
    axes.legend()
    figure.savefig(options.picture, dpi=110)
    print(f"Picture: {options.picture.resolve()}")
    print(f"score: {scores['online and offline']:.1f} (mean return of {episodes} episodes)")


if __name__ == "__main__":
    main()
