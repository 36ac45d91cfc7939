"""PPO with a rollout in a buffer: advantages are computed once, and looked up by all epochs.

Algorithm: PPO (Schulman et al. 2017, "Proximal Policy Optimization Algorithms") with GAE.
Environment: CartPole-v1, several in a vector.
Score: at least 475 (mean return of 20 episodes).
Time: a minute on one core.
"""

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn
from torch.distributions import Categorical
from tqdm import trange

from cpprb_like import Advantages, GymnasiumRecorder, ReplayBuffer

ENVS, STEPS = 8, 128  # environments, and steps of each in a rollout
EPOCHS, BATCH, CLIP, ENTROPY = 8, 256, 0.2, 0.01
GAMMA, LAMBDA, LEARNING_RATE = 0.99, 0.95, 1e-3


def network(outputs: int) -> nn.Sequential:
    """A number for each output."""
    hidden = (nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh())
    return nn.Sequential(*hidden, nn.Linear(64, outputs))


def train(seed: int, rollouts: int) -> tuple[nn.Module, list[tuple[int, float]]]:
    """Act for a rollout, learn from it; the policy, and step and return of each episode."""
    torch.manual_seed(seed)
    envs = GymnasiumRecorder(gymnasium.make_vec("CartPole-v1", ENVS))
    fields: dict[str, Any] = {**envs.env_dict, "logp": {"shape": ()}}
    # The buffer has room for one rollout: its rows replace those of the rollout before.
    buffer = envs.attach(ReplayBuffer(ENVS * STEPS, fields, n_envs=ENVS, seed=seed))
    policy, critic = network(2), network(1)
    parameters = [*policy.parameters(), *critic.parameters()]
    optimizer = torch.optim.Adam(parameters, LEARNING_RATE, fused=True)

    def value(rows: Mapping[str, Any]) -> Tensor:
        with torch.no_grad():
            return critic(torch.as_tensor(rows["obs"]))

    # Computed by the first batch of a rollout, with the critic of that time. Rows at time limits
    # and at the end of the rollout bootstrap from the value of their next observation.
    view = buffer.view(Advantages(GAMMA, LAMBDA, value=value))
    obs, _ = envs.reset(seed=seed)
    curve, totals = [], np.zeros(ENVS)
    for rollout in (bar := trange(rollouts, unit="rollout", mininterval=0.5)):
        for step in range(STEPS):
            with torch.no_grad():
                choice = Categorical(logits=policy(torch.as_tensor(obs)))
                action = choice.sample()
            logp = choice.log_prob(action).numpy()
            obs, reward, terminated, truncated, _ = envs.step(action.numpy(), logp=logp)
            totals += reward
            for k in np.flatnonzero(terminated | truncated):
                curve.append(((rollout * STEPS + step + 1) * ENVS, totals[k]))
                totals[k] = 0.0
        for group in optimizer.param_groups:
            group["lr"] = LEARNING_RATE * (1 - rollout / rollouts)
        for _ in range(EPOCHS):
            for batch in view.epoch(BATCH, to="torch", drop_last=True):
                choice = Categorical(logits=policy(batch["obs"]))
                ratio = (choice.log_prob(batch["act"]) - batch["logp"]).exp()
                gain = batch["advantage"]
                gain = (gain - gain.mean()) / (gain.std() + 1e-8)
                clipped = ratio.clamp(1 - CLIP, 1 + CLIP)
                policy_loss = -torch.minimum(ratio * gain, clipped * gain).mean()
                value_loss = (critic(batch["obs"])[:, 0] - batch["return"]).square().mean()
                loss = policy_loss + 0.5 * value_loss - ENTROPY * choice.entropy().mean()
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(parameters, 0.5)
                optimizer.step()
        bar.set_postfix_str(f"return {np.mean([total for _, total in curve[-20:]]):.0f}")
    return policy, curve


def evaluate(policy: nn.Module, episodes: int) -> float:
    """Mean return of the most likely actions."""
    env, total = gymnasium.make("CartPole-v1"), 0.0
    for episode in range(episodes):
        obs, over = env.reset(seed=10_000 + episode)[0], False
        while not over:
            with torch.no_grad():
                action = int(policy(torch.as_tensor(obs)).argmax())
            obs, reward, terminated, truncated, _ = env.step(action)
            total, over = total + float(reward), terminated or truncated
    return total / episodes


def main() -> None:
    """Train, draw the learning curve, evaluate."""
    parser = argparse.ArgumentParser(description="Train with PPO on CartPole-v1.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rollouts", type=int, default=120, help=f"of {ENVS * STEPS} steps")
    parser.add_argument("--quick", action="store_true", help="too few steps to learn")
    parser.add_argument("--picture", type=Path, default=Path("ppo.png"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    policy, curve = train(options.seed, 2 if options.quick else options.rollouts)
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    axes.plot(*zip(*curve, strict=True))
    axes.set(title="PPO on CartPole-v1", xlabel="step", ylabel="return")
    figure.savefig(options.picture, dpi=110)
    print(f"Picture: {options.picture.resolve()}")
    print(f"score: {evaluate(policy, 20):.1f} (mean return of 20 episodes)")


if __name__ == "__main__":
    main()
