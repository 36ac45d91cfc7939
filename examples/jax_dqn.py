"""DQN with a jitted update in JAX, fed by a replay buffer of cpprb_like.

Q-learning with a network and a target network (Mnih et al. 2015, "Human-level control through deep
reinforcement learning"), with the double estimate of van Hasselt et al. (2016). Needs JAX,
Gymnasium, tqdm and Matplotlib, and no library of networks.

Environment: CartPole-v1.
Score: at least 450 (mean return of 10 episodes).
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

SIZES = (4, 128, 128, 2)
GAINS = (2.0, 2.0, 0.02)  # of the first weights: Q begins near 0
SCALE = np.array([1.2, 1.5, 0.1, 1.5], np.float32)  # typical position, speed, angle, angular speed
GAMMA, TAU, LEARNING_RATE, BATCH = 0.99, 0.005, 1e-3, 64
WARM_UP, UPDATES = 1_000, 2  # steps before learning, updates for each step of all environments
EXPLORATION, EXPLORATION_STEPS = 0.02, 8_000  # share of random actions in the end, and from when


def values(params: Any, obs: Any) -> Any:
    """Q of each action, shape (n, 2)."""
    *hidden, (weight, bias) = params
    layer = obs / SCALE
    for matrix, offset in hidden:
        layer = jnp.tanh(layer @ matrix + offset)
    return layer @ weight + bias


def pick(rows: Any, actions: Any) -> Any:
    """The value of one action in each row."""
    return jnp.take_along_axis(rows, actions[:, None], 1)[:, 0]


def loss(params: Any, slow: Any, batch: Any) -> Any:
    """The mean Huber loss of the TD error."""
    best = values(params, batch["next_obs"]).argmax(1)
    following = pick(values(slow, batch["next_obs"]), best)
    target = batch["rew"] + GAMMA * following * (1 - batch["terminated"])
    chosen = pick(values(params, batch["obs"]), batch["act"])
    error = jnp.abs(chosen - jax.lax.stop_gradient(target))
    return jnp.mean(jnp.where(error < 1, error**2 / 2, error - 0.5))


@partial(jax.jit, donate_argnums=0)
def update(state: Any, batch: Any, share: Any) -> Any:
    """A step of Adam, at a share of the learning rate, and of the target network."""
    params, slow, mean, square, count = state
    slope = jax.grad(loss)(params, slow, batch)
    count += 1
    mean = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, mean, slope)
    square = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g**2, square, slope)
    rate = share * LEARNING_RATE * jnp.sqrt(1 - 0.999**count) / (1 - 0.9**count)
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
    every = args.total_timesteps // 10 // args.num_envs * args.num_envs
    rng = np.random.default_rng(args.seed)
    params = [
        (jnp.array(rng.normal(0, (gain / n) ** 0.5, (n, m)), jnp.float32), jnp.zeros(m))
        for gain, (n, m) in zip(GAINS, pairwise(SIZES), strict=True)
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
        epsilon = max(EXPLORATION, 1 - step / EXPLORATION_STEPS)
        random = rng.random(args.num_envs) < epsilon
        actions = np.where(random, rng.integers(2, size=args.num_envs), act(state[0], obs))
        obs, *_ = envs.step(actions)  # it stores the step
        if step >= WARM_UP:
            for _ in range(UPDATES):
                state = update(state, next(batches), 1 - step / args.total_timesteps)
        if step % every == 0:
            curve.append((step, evaluate(act, state[0], 3)))
            bar.set_postfix_str(f"return {curve[-1][1]:.0f}")
    batches.close()
    score = evaluate(act, state[0], 10)
    curve.append((args.total_timesteps, score))

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    axes.plot(*zip(*curve, strict=True), marker=".")
    axes.set(title="DQN in JAX on CartPole", xlabel="step", ylabel="mean return, greedy episodes")
    figure.savefig(args.picture, dpi=110)
    print(f"Picture: {args.picture.resolve()}")
    print(f"score: {score:.1f} (mean return of 10 episodes)")


if __name__ == "__main__":
    main()
