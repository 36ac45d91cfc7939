"""DQN in one file, in the manner of CleanRL's scripts, with a replay buffer of cpprb_like.

Q-learning with a network and a target network (Mnih et al. 2015, "Human-level control through deep
reinforcement learning") on environments with discrete actions. Needs PyTorch and Gymnasium; the
lines that differ from a script with Stable-Baselines3's buffer are in docs/one-file-scripts.md.

Environment: CartPole-v1.
Score: at least 150 (mean return of 10 episodes).
Time: a minute on one core.
"""

import argparse
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import nn

from cpprb_like import GymnasiumRecorder, ReplayBuffer


def read_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--env-id", default="CartPole-v1")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--num-envs", type=int, default=4)
    parser.add_argument("--total-timesteps", type=int, default=60_000)
    parser.add_argument("--buffer-size", type=int, default=20_000)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--learning-starts", type=int, default=1_000)
    parser.add_argument("--exploration-fraction", type=float, default=0.3)
    parser.add_argument("--gamma", type=float, default=0.99)
    parser.add_argument("--tau", type=float, default=0.01)
    parser.add_argument("--quick", action="store_true", help="too few steps to learn")
    args = parser.parse_args()
    if args.quick:
        args.total_timesteps = 2_000
    return args


class QNetwork(nn.Sequential):  # type: ignore[misc]
    """The value of each action."""

    def __init__(self, env: Any) -> None:
        width = int(np.prod(env.observation_space.shape))
        layers = [nn.Linear(width, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU()]
        super().__init__(*layers, nn.Linear(84, int(env.action_space.n)))


def evaluate(network: nn.Module, env: Any, seed: int, episodes: int = 10) -> float:
    """The mean return of the greedy policy."""
    total = 0.0
    for episode in range(episodes):
        obs, _ = env.reset(seed=seed + episode)
        done = False
        while not done:
            with torch.no_grad():
                action = network(torch.as_tensor(obs)).argmax()
            obs, reward, terminated, truncated, _ = env.step(int(action))
            total += float(reward)
            done = terminated or truncated
    return total / episodes


def main() -> None:
    """Act, store, draw, learn."""
    args = read_arguments()
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    rng = np.random.default_rng(args.seed)

    envs = GymnasiumRecorder(gym.make_vec(args.env_id, num_envs=args.num_envs))
    rb = envs.attach(
        ReplayBuffer(args.buffer_size, envs.env_dict, n_envs=envs.n_envs, seed=args.seed)
    )
    batches = rb.batches(args.batch_size, to="torch")
    single: Any = gym.make(args.env_id)
    q_network, target_network = QNetwork(single), QNetwork(single)
    target_network.load_state_dict(q_network.state_dict())
    optimizer = torch.optim.Adam(q_network.parameters(), args.learning_rate)

    obs, _ = envs.reset(seed=args.seed)
    for step in range(0, args.total_timesteps, args.num_envs):
        epsilon = max(0.05, 1 - step / (args.exploration_fraction * args.total_timesteps))
        with torch.no_grad():
            actions = q_network(torch.as_tensor(obs)).argmax(1).numpy()
        random = rng.random(args.num_envs) < epsilon
        actions = np.where(random, rng.integers(single.action_space.n, size=len(random)), actions)
        obs, *_ = envs.step(actions)  # it stores the step, with the last observation of an episode

        if step < args.learning_starts:
            continue
        data = next(batches)
        with torch.no_grad():
            following = target_network(data.next_obs).amax(1)
            target = data.rew + args.gamma * following * ~data.terminated
        value = q_network(data.obs).gather(1, data.act[:, None]).squeeze(1)
        loss = nn.functional.mse_loss(value, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for slow, fast in zip(target_network.parameters(), q_network.parameters(), strict=True):
                slow.lerp_(fast, args.tau)

    print(f"score: {evaluate(q_network, single, seed=10_000):.1f} (mean return of 10 episodes)")


if __name__ == "__main__":
    main()
