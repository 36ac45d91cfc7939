"""SAC: an agent that is rewarded for what it reaches, and for how many ways it leaves open.

Algorithm: soft actor-critic with a learned temperature (Haarnoja et al. 2018, "Soft Actor-Critic
  Algorithms and Applications").
Environment: Pendulum-v1.
Score: at least -250 (mean return of 20 episodes); a random agent has about -1200.
Time: 1 minute on one core.
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

ENV, TORQUE = "Pendulum-v1", 2.0
BATCH, WARM_UP = 128, 500  # steps drawn, steps before learning
GAMMA, TAU, LEARNING_RATE = 0.98, 0.02, 2e-3
ENTROPY = -1.0  # that the temperature aims at: minus the number of actions


def layers(inputs: int, outputs: int) -> nn.Sequential:
    """Two hidden layers."""
    return nn.Sequential(
        *(nn.Linear(inputs, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, outputs))
    )


class Actor(nn.Module):  # type: ignore[misc]
    """A normal distribution, squashed into the bounds of the action."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = layers(3, 2)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """A sample for each observation, shape (n, 1), and its log-probability, shape (n,)."""
        mean, log_std = self.layers(obs).chunk(2, 1)
        normal = torch.distributions.Normal(mean, log_std.clamp(-5, 2).exp())
        sample = normal.rsample()
        # log(1 - tanh(x) ** 2), without loss of precision
        shrunk = 2 * (np.log(2) - sample - nn.functional.softplus(-2 * sample))
        return TORQUE * sample.tanh(), (normal.log_prob(sample) - shrunk)[:, 0]

    def act(self, obs: Any, *, greedy: bool = False) -> Any:
        """The action for one observation."""
        with torch.no_grad():
            given = torch.as_tensor(obs)[None]
            if greedy:
                return (TORQUE * self.layers(given)[0, :1].tanh()).numpy()
            return self(given)[0][0].numpy()


def train(seed: int, steps: int) -> tuple[Actor, list[tuple[int, float]]]:
    """Act, store, draw, learn; the actor, and step and return of each evaluation."""
    torch.manual_seed(seed)
    env = GymnasiumRecorder(gymnasium.make(ENV))
    buffer = env.attach(ReplayBuffer(steps, env.env_dict, seed=seed))
    batches = buffer.batches(BATCH, to="torch")
    actor, critics = Actor(), nn.ModuleList([layers(4, 1), layers(4, 1)])
    slow_critics = copy.deepcopy(critics)
    log_temperature = torch.zeros(1, requires_grad=True)
    actor_optimizer = torch.optim.Adam(actor.parameters(), LEARNING_RATE, fused=True)
    critic_optimizer = torch.optim.Adam(critics.parameters(), LEARNING_RATE, fused=True)
    temperature_optimizer = torch.optim.Adam([log_temperature], LEARNING_RATE)
    curve: list[tuple[int, float]] = []
    every = max(1, min(1_000, steps // 5))  # steps between evaluations
    obs, _ = env.reset(seed=seed)
    env.action_space.seed(seed)
    for step in (bar := trange(1, steps + 1, unit="step", mininterval=0.5)):
        obs, *_ = env.step(env.action_space.sample() if step <= WARM_UP else actor.act(obs))
        if step <= WARM_UP:
            continue

        batch = next(batches)
        temperature = log_temperature.exp().detach()
        with torch.no_grad():
            following, log_prob = actor(batch.next_obs)
            pairs = torch.cat([batch.next_obs, following], 1)
            value = torch.stack([slow(pairs)[:, 0] for slow in slow_critics]).amin(0)
            # Time is up after 200 steps, which truncates an episode. None is terminated here, but a
            # program that asks for ``terminated`` is right in any environment.
            goes_on = 1 - batch.terminated.float()
            target = batch.rew / 10 + GAMMA * goes_on * (value - temperature * log_prob)
        pairs = torch.cat([batch.obs, batch.act], 1)
        errors = torch.stack([critic(pairs)[:, 0] - target for critic in critics])
        critic_optimizer.zero_grad()
        (errors**2).mean(1).sum().backward()
        critic_optimizer.step()

        action, log_prob = actor(batch.obs)
        pairs = torch.cat([batch.obs, action], 1)
        value = torch.stack([critic(pairs)[:, 0] for critic in critics]).amin(0)
        actor_optimizer.zero_grad()
        (temperature * log_prob - value).mean().backward()
        actor_optimizer.step()
        temperature_optimizer.zero_grad()
        (-log_temperature * (log_prob.detach() + ENTROPY).mean()).backward()
        temperature_optimizer.step()
        with torch.no_grad():
            for slow, fast in zip(slow_critics.parameters(), critics.parameters(), strict=True):
                slow.lerp_(fast, TAU)
        if step % every == 0:
            curve.append((step, evaluate(actor, 5)))
            bar.set_postfix_str(f"return {curve[-1][1]:.0f}")
    return actor, curve


def evaluate(actor: Actor, episodes: int) -> float:
    """Mean return of the policy without noise."""
    env, total = gymnasium.make(ENV), 0.0
    for episode in range(episodes):
        obs, _ = env.reset(seed=10_000 + episode)
        over = False
        while not over:
            obs, reward, terminated, truncated, _ = env.step(actor.act(obs, greedy=True))
            total, over = total + float(reward), terminated or truncated
    return total / episodes


def main() -> None:
    """Train, draw the learning curve, evaluate."""
    parser = argparse.ArgumentParser(description="SAC on Pendulum-v1.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=5_000, help="environment steps")
    parser.add_argument("--quick", action="store_true", help="too few steps to learn")
    parser.add_argument("--picture", type=Path, default=Path("sac_pendulum.png"))
    options = parser.parse_args()
    steps, episodes = (1_000, 2) if options.quick else (options.steps, 20)
    torch.set_num_threads(1)

    actor, curve = train(options.seed, steps)
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    axes.plot(*zip(*curve, strict=True), marker=".")
    axes.set(title="SAC on Pendulum", xlabel="step", ylabel="return, 5 episodes")
    figure.savefig(options.picture, dpi=110)
    print(f"Picture: {options.picture.resolve()}")
    print(f"score: {evaluate(actor, episodes):.1f} (mean return of {episodes} episodes)")


if __name__ == "__main__":
    main()
