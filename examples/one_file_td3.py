"""TD3 in one file, in the manner of CleanRL's scripts, with a replay buffer of cpprb_like.

Twin delayed deep deterministic policy gradients (Fujimoto, van Hoof and Meger 2018, "Addressing
Function Approximation Error in Actor-Critic Methods") on environments with continuous actions.
Needs PyTorch and Gymnasium; the lines that differ from a script with Stable-Baselines3's buffer are
those of docs/one-file-scripts.md.

Environment: Pendulum-v1.
Score: at least -200 (mean return of 10 episodes).
Time: a minute on one core.
"""

import argparse
import copy
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

from cpprb_like import GymnasiumRecorder, ReplayBuffer


def read_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--env-id", default="Pendulum-v1")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--total-timesteps", type=int, default=10_000)
    parser.add_argument("--buffer-size", type=int, default=100_000)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--learning-starts", type=int, default=1_000)
    parser.add_argument("--exploration-noise", type=float, default=0.1)
    parser.add_argument("--policy-noise", type=float, default=0.2)
    parser.add_argument("--noise-clip", type=float, default=0.5)
    parser.add_argument("--policy-frequency", type=int, default=2)
    parser.add_argument("--gamma", type=float, default=0.98)
    parser.add_argument("--tau", type=float, default=0.005)
    parser.add_argument("--quick", action="store_true", help="too few steps to learn")
    args = parser.parse_args()
    if args.quick:
        args.total_timesteps = 2_000
    return args


class Actor(nn.Module):  # type: ignore[misc]
    """An action for each observation, within the bounds of the space."""

    def __init__(self, env: Any) -> None:
        super().__init__()
        low, high = torch.as_tensor(env.action_space.low), torch.as_tensor(env.action_space.high)
        self.register_buffer("scale", (high - low) / 2)
        self.register_buffer("middle", (high + low) / 2)
        layers = [nn.Linear(env.observation_space.shape[0], 128), nn.ReLU(), nn.Linear(128, 128)]
        self.layers = nn.Sequential(*layers, nn.ReLU(), nn.Linear(128, len(low)), nn.Tanh())

    def forward(self, obs: Tensor) -> Tensor:
        """Of the deterministic policy."""
        return self.layers(obs) * self.scale + self.middle


class Critic(nn.Module):  # type: ignore[misc]
    """The value of an action."""

    def __init__(self, env: Any) -> None:
        super().__init__()
        width = env.observation_space.shape[0] + env.action_space.shape[0]
        layers = [nn.Linear(width, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU()]
        self.layers = nn.Sequential(*layers, nn.Linear(128, 1))

    def forward(self, obs: Tensor, act: Tensor) -> Tensor:
        """Shape (n,)."""
        return self.layers(torch.cat([obs, act], 1)).squeeze(1)


def evaluate(actor: nn.Module, env: Any, seed: int, episodes: int = 10) -> float:
    """The mean return of the policy without noise."""
    total = 0.0
    for episode in range(episodes):
        obs, _ = env.reset(seed=seed + episode)
        done = False
        while not done:
            with torch.no_grad():
                action = actor(torch.as_tensor(obs[None]))[0].numpy()
            obs, reward, terminated, truncated, _ = env.step(action)
            total += float(reward)
            done = terminated or truncated
    return total / episodes


def main() -> None:
    """Act, store, draw, learn."""
    args = read_arguments()
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    rng = np.random.default_rng(args.seed)

    envs = GymnasiumRecorder(gym.make_vec(args.env_id, num_envs=1))
    rb = envs.attach(
        ReplayBuffer(args.buffer_size, envs.env_dict, n_envs=envs.n_envs, seed=args.seed)
    )
    batches = rb.batches(args.batch_size, to="torch")
    single: Any = gym.make(args.env_id)
    low, high = single.action_space.low, single.action_space.high
    actor, critics = Actor(single), nn.ModuleList([Critic(single), Critic(single)])
    slow_actor, slow_critics = copy.deepcopy(actor), copy.deepcopy(critics)
    actor_optimizer = torch.optim.Adam(actor.parameters(), args.learning_rate)
    critic_optimizer = torch.optim.Adam(critics.parameters(), args.learning_rate)

    obs, _ = envs.reset(seed=args.seed)
    for step in range(args.total_timesteps):
        if step < args.learning_starts:
            actions = rng.uniform(low, high, (1, len(low))).astype(np.float32)
        else:
            with torch.no_grad():
                actions = actor(torch.as_tensor(obs)).numpy()
            noise = rng.normal(0, args.exploration_noise, actions.shape) * actor.scale.numpy()
            actions = np.clip(actions + noise, low, high).astype(np.float32)
        obs, *_ = envs.step(actions)  # it stores the step, with the last observation of an episode

        if step < args.learning_starts:
            continue
        data = next(batches)
        with torch.no_grad():
            noise = torch.randn_like(data.act) * args.policy_noise
            noise = noise.clamp(-args.noise_clip, args.noise_clip) * actor.scale
            following = slow_actor(data.next_obs) + noise
            following = following.clamp(torch.as_tensor(low), torch.as_tensor(high))
            least = torch.stack([slow(data.next_obs, following) for slow in slow_critics]).amin(0)
            target = data.rew + args.gamma * least * ~data.terminated
        loss = sum(nn.functional.mse_loss(critic(data.obs, data.act), target) for critic in critics)
        critic_optimizer.zero_grad()
        loss.backward()
        critic_optimizer.step()
        if step % args.policy_frequency == 0:
            actor_loss = -critics[0](data.obs, actor(data.obs)).mean()
            actor_optimizer.zero_grad()
            actor_loss.backward()
            actor_optimizer.step()
            with torch.no_grad():
                for slow, fast in ((slow_actor, actor), (slow_critics, critics)):
                    for one, other in zip(slow.parameters(), fast.parameters(), strict=True):
                        one.lerp_(other, args.tau)

    print(f"score: {evaluate(actor, single, seed=10_000):.1f} (mean return of 10 episodes)")


if __name__ == "__main__":
    main()
