"""DQN in one file, in the manner of CleanRL's scripts, with the buffer of Stable-Baselines3.

Q-learning with a network and a target network (Mnih et al. 2015, "Human-level control through deep
reinforcement learning") on environments with discrete actions. It is what examples/one_file_dqn.py
was before; the lines that differ are in docs/one-file-scripts.md.
"""

import argparse
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from stable_baselines3.common.buffers import ReplayBuffer
from torch import nn


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
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    rng = np.random.default_rng(args.seed)

    mode = {"autoreset_mode": gym.vector.AutoresetMode.SAME_STEP}
    envs = gym.make_vec(args.env_id, args.num_envs, "sync", vector_kwargs=mode)
    spaces = envs.single_observation_space, envs.single_action_space
    rb = ReplayBuffer(
        args.buffer_size, *spaces, "cpu", n_envs=envs.num_envs, handle_timeout_termination=False
    )
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
        next_obs, rewards, terminations, truncations, infos = envs.step(actions)
        last_obs = next_obs.copy()
        for env in np.flatnonzero(terminations | truncations):
            last_obs[env] = infos["final_obs"][env]
        rb.add(obs, last_obs, actions, rewards, terminations, [{}] * envs.num_envs)
        obs = next_obs

        if step < args.learning_starts:
            continue
        data = rb.sample(args.batch_size)
        with torch.no_grad():
            following = target_network(data.next_observations).amax(1)
            target = data.rewards[:, 0] + args.gamma * following * (1 - data.dones[:, 0])
        value = q_network(data.observations).gather(1, data.actions).squeeze(1)
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
