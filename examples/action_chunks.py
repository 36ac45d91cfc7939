"""Action chunks: an actor that plans four actions at a time, and a critic that values the four.

Algorithm: Q-chunking (Li, Zhou and Levine 2025, "Reinforcement Learning with Action Chunking") on
  top of TD3 (Fujimoto, van Hoof and Meger 2018). The value of a chunk is backed up over all of its
  steps, as all its actions are inputs of the critic. The flow policy of the paper, which keeps the
  actor close to offline data, is left out: all data are online here.
Environment: Pendulum-v1.
Score: at least -200 (mean return of 20 episodes).
Time: a minute on one core.
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
from cpprb_like.views import NStep, Sequences

CHUNK = 4  # actions that are planned at a time
BATCH, WARM_UP = 128, 1_000  # chunks drawn, steps before learning
GAMMA, TAU, LEARNING_RATE = 0.98, 0.005, 1e-3
EXPLORATION, SMOOTHING, MOST_SMOOTHING = 0.1, 0.2, 0.5  # noise, as shares of the greatest action
TORQUE = 2.0  # the greatest action of the environment


class Actor(nn.Module):  # type: ignore[misc]
    """A chunk of actions for each observation: shape (n, chunk, 1)."""

    def __init__(self, chunk: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(nn.Linear(3, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU()),
            *(nn.Linear(128, chunk), nn.Tanh()),
        )

    def forward(self, obs: Tensor) -> Tensor:
        """Of the deterministic policy."""
        return TORQUE * self.layers(obs)[:, :, None]


class Critic(nn.Module):  # type: ignore[misc]
    """The value of a chunk of actions: shape (n,)."""

    def __init__(self, chunk: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(nn.Linear(3 + chunk, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU()),
            nn.Linear(128, 1),
        )

    def forward(self, obs: Tensor, chunk: Tensor) -> Tensor:
        """Of the rewards during the chunk, and of what follows it."""
        return self.layers(torch.cat([obs, chunk[:, :, 0]], 1))[:, 0]


class Player:
    """Plays the chunks of an actor, action by action. A new plan is made when one has ended."""

    def __init__(self, actor: Actor) -> None:
        self.actor = actor
        self.plan: list[Any] = []

    def __call__(self, obs: Any, rng: np.random.Generator | None = None) -> Any:
        """The next action, with noise if there is a generator."""
        if not self.plan:
            with torch.no_grad():
                chunk = self.actor(torch.as_tensor(obs[None]))[0].numpy()
            if rng is not None:
                chunk = chunk + rng.normal(0, EXPLORATION * TORQUE, chunk.shape)
            self.plan = list(np.clip(chunk, -TORQUE, TORQUE).astype(np.float32))
        return self.plan.pop(0)


def train(seed: int, steps: int, chunk: int) -> tuple[Actor, list[tuple[int, float]]]:
    """Act, store, draw, learn; the actor, and step and return of each episode."""
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    env = GymnasiumRecorder(gymnasium.make("Pendulum-v1"))
    # The buffer stores single steps. The view makes chunks of them when a batch is drawn: actions
    # of the next steps, and of everything else one value for the chunk. ``rew`` is the discounted
    # sum of its rewards, ``next_obs`` the observation after it, ``discount`` what weighs that.
    buffer = env.attach(ReplayBuffer(steps, env.env_dict, seed=seed))
    first = ("obs", "next_obs", "rew", "terminated", "truncated", "discount")
    view = buffer.view(Sequences(chunk, first_only=first), NStep(chunk, gamma=GAMMA, discount=True))
    batches = view.batches(BATCH, to="torch")

    actor, critics = Actor(chunk), nn.ModuleList([Critic(chunk), Critic(chunk)])
    slow_actor, slow_critics = copy.deepcopy(actor), copy.deepcopy(critics)
    actor_optimizer = torch.optim.Adam(actor.parameters(), LEARNING_RATE, fused=True)
    critic_optimizer = torch.optim.Adam(critics.parameters(), LEARNING_RATE, fused=True)
    player, curve, total = Player(actor), [], 0.0
    obs, _ = env.reset(seed=seed)
    env.action_space.seed(seed)
    for step in (bar := trange(1, steps + 1, unit="step", mininterval=0.5)):
        action = env.action_space.sample() if step <= WARM_UP else player(obs, rng)
        obs, reward, terminated, truncated, _ = env.step(action)
        total += float(reward)
        if terminated or truncated:
            player.plan = []  # no chunk goes on in the next episode
            curve.append((step, total))
            bar.set_postfix_str(f"return {total:.0f}")
            total = 0.0
        if step <= WARM_UP:
            continue

        batch = next(batches)
        with torch.no_grad():
            noise = SMOOTHING * torch.randn_like(batch.act)
            noise = TORQUE * noise.clamp(-MOST_SMOOTHING, MOST_SMOOTHING)
            following = (slow_actor(batch.next_obs) + noise).clamp(-TORQUE, TORQUE)
            values = torch.stack([slow(batch.next_obs, following) for slow in slow_critics])
            target = batch.rew + batch.discount * values.amin(0)
        # A chunk that the end of an episode cuts has fewer actions than the critic expects, and
        # zeros in their places. ``mask`` says so: the critic learns from whole chunks only.
        whole = batch.mask[:, -1]
        errors = torch.stack([critic(batch.obs, batch.act) - target for critic in critics])
        loss = (whole * errors**2).mean(1).sum()
        critic_optimizer.zero_grad()
        loss.backward()
        critic_optimizer.step()
        if step % 2 == 0:
            actor_loss = -critics[0](batch.obs, actor(batch.obs)).mean()
            actor_optimizer.zero_grad()
            actor_loss.backward()
            actor_optimizer.step()
            with torch.no_grad():
                for slow, fast in ((slow_actor, actor), (slow_critics, critics)):
                    for one, other in zip(slow.parameters(), fast.parameters(), strict=True):
                        one.lerp_(other, TAU)
    return actor, curve


def evaluate(actor: Actor, episodes: int) -> float:
    """Mean return of the policy without noise."""
    env, total = gymnasium.make("Pendulum-v1"), 0.0
    for episode in range(episodes):
        player, over = Player(actor), False
        obs, _ = env.reset(seed=10_000 + episode)
        while not over:
            obs, reward, terminated, truncated, _ = env.step(player(obs))
            total, over = total + float(reward), terminated or truncated
    return total / episodes


def main() -> None:
    """Train, draw the learning curve, evaluate."""
    parser = argparse.ArgumentParser(description="Train with chunks of actions on Pendulum-v1.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=8_000, help="environment steps")
    parser.add_argument("--chunk", type=int, default=CHUNK, help="actions of a chunk; 1 is TD3")
    parser.add_argument("--quick", action="store_true", help="too few steps to learn")
    parser.add_argument("--picture", type=Path, default=Path("action_chunks.png"))
    options = parser.parse_args()
    steps, episodes = (1_300, 2) if options.quick else (options.steps, 20)
    torch.set_num_threads(1)
    actor, curve = train(options.seed, steps, options.chunk)

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    axes.plot(*zip(*curve, strict=True))
    axes.set(title=f"Chunks of {options.chunk} actions", xlabel="step", ylabel="return")
    figure.savefig(options.picture, dpi=110)
    print(f"Picture: {options.picture.resolve()}")
    print(f"score: {evaluate(actor, episodes):.1f} (mean return of {episodes} episodes)")


if __name__ == "__main__":
    main()
