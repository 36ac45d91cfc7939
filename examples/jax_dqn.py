"""DQN with a jitted update in JAX, fed by a replay buffer of cpprb_like.

Q-learning with a network and a target network (Mnih et al. 2015, "Human-level control through deep
reinforcement learning"). Needs JAX, Gymnasium, tqdm and Matplotlib, and no library of networks.

Environment: CartPole-v1.
Score: at least 100 (mean return of 10 episodes).
Time: a minute on one core.
"""

import argparse
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure
from tqdm import trange

from cpprb_like import GymnasiumRecorder, ReplayBuffer

SIZES = (4, 64, 64, 2)
GAMMA, TAU, LEARNING_RATE, BATCH = 0.99, 0.01, 1e-3, 128


def values(params: Any, obs: Any) -> Any:
    """Q of each action, shape (n, 2)."""
    *hidden, (weight, bias) = params
    for matrix, offset in hidden:
        obs = jax.nn.relu(obs @ matrix + offset)
    return obs @ weight + bias


def loss(params: Any, slow: Any, batch: Any) -> Any:
    """The mean squared TD error."""
    following = values(slow, batch["next_obs"]).max(1)
    target = batch["rew"] + GAMMA * following * (1 - batch["terminated"])
    found = jnp.take_along_axis(values(params, batch["obs"]), batch["act"][:, None], 1)[:, 0]
    return jnp.mean((found - jax.lax.stop_gradient(target)) ** 2)


@partial(jax.jit, donate_argnums=0)
def update(state: Any, batch: Any) -> Any:
    """A step of Adam, and of the target network."""
    params, slow, mean, square, count = state
    slope = jax.grad(loss)(params, slow, batch)
    count += 1
    mean = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, mean, slope)
    square = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g**2, square, slope)
    rate = LEARNING_RATE * jnp.sqrt(1 - 0.999**count) / (1 - 0.9**count)
    params = jax.tree.map(lambda p, m, v: p - rate * m / (jnp.sqrt(v) + 1e-8), params, mean, square)
    slow = jax.tree.map(lambda s, p: s + TAU * (p - s), slow, params)
    return params, slow, mean, square, count


def evaluate(act: Any, params: Any, episodes: int) -> float:
    """The mean return of the greedy policy."""
    env, total = gym.make("CartPole-v1"), 0.0
    for episode in range(episodes):
        obs, _ = env.reset(seed=10_000 + episode)
        done = False
        while not done:
            obs, reward, terminated, truncated, _ = env.step(int(act(params, obs[None])[0]))
            total += float(reward)
            done = terminated or truncated
    return total / episodes


def main() -> None:
    """Act, store, draw, learn."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--num-envs", type=int, default=4)
    parser.add_argument("--total-timesteps", type=int, default=60_000)
    parser.add_argument("--quick", action="store_true", help="too few steps to learn")
    parser.add_argument("--picture", type=Path, default=Path("jax_dqn.png"))
    args = parser.parse_args()
    if args.quick:
        args.total_timesteps = 2_000
    rng = np.random.default_rng(args.seed)
    params = [
        (jnp.array(rng.normal(0, (2 / n) ** 0.5, (n, m)), jnp.float32), jnp.zeros(m))
        for n, m in pairwise(SIZES)
    ]
    zeros = jax.tree.map(jnp.zeros_like, params)
    state = (params, jax.tree.map(jnp.array, params), zeros, jax.tree.map(jnp.array, zeros), 0.0)
    act = jax.jit(lambda params, obs: values(params, obs).argmax(1))

    envs = GymnasiumRecorder(gym.make_vec("CartPole-v1", num_envs=args.num_envs))
    rb = envs.attach(ReplayBuffer(20_000, envs.env_dict, n_envs=envs.n_envs, seed=args.seed))
    batches = rb.batches(BATCH, to="jax", prefetch=2)  # made by a thread beside the update
    obs, _ = envs.reset(seed=args.seed)
    curve = []
    for step in (bar := trange(0, args.total_timesteps, args.num_envs, mininterval=0.5)):
        epsilon = max(0.05, 1 - step / (0.3 * args.total_timesteps))
        random = rng.random(args.num_envs) < epsilon
        actions = np.where(random, rng.integers(2, size=args.num_envs), act(state[0], obs))
        obs, *_ = envs.step(actions)  # it stores the step
        if step >= 1_000:
            state = update(state, next(batches))
        if step % 5_000 == 0:
            curve.append((step, evaluate(act, state[0], 3)))
            bar.set_postfix_str(f"return {curve[-1][1]:.0f}")

    batches.close()

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    axes.plot(*zip(*curve, strict=True), marker=".")
    axes.set(title="DQN in JAX on CartPole", xlabel="step", ylabel="return, 3 greedy episodes")
    figure.savefig(args.picture, dpi=110)
    print(f"Picture: {args.picture.resolve()}")
    print(f"score: {evaluate(act, state[0], 10):.1f} (mean return of 10 episodes)")


if __name__ == "__main__":
    main()
