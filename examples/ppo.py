"""PPO with a rollout in a buffer: advantages are computed once, and looked up by all epochs.

Algorithm: PPO (Schulman et al. 2017, "Proximal Policy Optimization Algorithms") with GAE.
Environment: CartPole-v1, several in a vector.
Score: at least 450 (mean return of 20 episodes at the end of training).
Time: a minute on one core.
"""

import argparse
from pathlib import Path

import gymnasium
import numpy as np
import torch
from gymnasium.wrappers.vector import RecordEpisodeStatistics
from matplotlib.figure import Figure
from torch import nn
from torch.distributions import Categorical
from tqdm import trange

from cpprb_like import Advantages, GymnasiumRecorder, ReplayBuffer

ENVS, STEPS = 8, 128  # environments, and steps of each in a rollout
EPOCHS, BATCH, CLIP, ENTROPY, LEARNING_RATE = 8, 256, 0.2, 0.01, 1e-3


def network(outputs: int) -> nn.Sequential:
    """A number for each output."""
    first = nn.Linear(4, 64), nn.Tanh()
    return nn.Sequential(*first, nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, outputs))


def train(seed: int, rollouts: int) -> list[float]:
    """Act for a rollout, learn from it, and so on; the return of each episode."""
    torch.manual_seed(seed)
    episodes = RecordEpisodeStatistics(gymnasium.make_vec("CartPole-v1", ENVS), 10**6)
    envs = GymnasiumRecorder(episodes)
    # The buffer has room for one rollout: its rows replace those of the rollout before.
    fields = envs.env_dict | {"logp": {"shape": ()}}
    buffer = envs.attach(ReplayBuffer(ENVS * STEPS, fields, n_envs=ENVS, seed=seed))
    policy, critic = network(2), network(1)
    parameters = [*policy.parameters(), *critic.parameters()]
    optimizer = torch.optim.Adam(parameters, fused=True)
    # Computed by the first batch of a rollout, with the critic of that time. Rows at time limits
    # and at the end of the rollout bootstrap from the value of their next observation.
    value = torch.no_grad()(lambda rows: critic(torch.as_tensor(rows["obs"])))
    view = buffer.view(Advantages(gamma=0.99, lam=0.95, value=value))
    obs, _ = envs.reset(seed=seed)
    for rollout in trange(rollouts, unit="rollout", mininterval=0.5):
        for _ in range(STEPS):
            choice = Categorical(logits=policy(torch.as_tensor(obs)).detach())
            action = choice.sample()
            obs, *_ = envs.step(action.numpy(), logp=choice.log_prob(action).numpy())
        optimizer.param_groups[0]["lr"] = LEARNING_RATE * (1 - rollout / rollouts)
        for batch in (one for _ in range(EPOCHS) for one in view.epoch(BATCH, to="torch")):
            choice = Categorical(logits=policy(batch["obs"]))
            ratio = (choice.log_prob(batch["act"]) - batch["logp"]).exp()
            gain = batch["advantage"]
            gain = (gain - gain.mean()) / (gain.std() + 1e-8)
            clipped = ratio.clamp(1 - CLIP, 1 + CLIP)
            policy_loss = -torch.minimum(ratio * gain, clipped * gain).mean()
            value_loss = (critic(batch["obs"])[:, 0] - batch["return"]).square().mean()
            optimizer.zero_grad()
            (policy_loss + 0.5 * value_loss - ENTROPY * choice.entropy().mean()).backward()
            nn.utils.clip_grad_norm_(parameters, 0.5)
            optimizer.step()
    return [float(total) for total in episodes.return_queue]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Train with PPO on CartPole-v1.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="too few steps to learn")
    parser.add_argument("--picture", type=Path, default=Path("ppo.png"), help="of the returns")
    options = parser.parse_args()
    returns = train(options.seed, 2 if options.quick else 120)
    (figure := Figure()).subplots().plot(returns)
    figure.savefig(options.picture)
    print(f"Picture: {options.picture.resolve()}")
    print(f"score: {np.mean(returns[-20:]):.1f} (mean return of 20 episodes at the end)")
