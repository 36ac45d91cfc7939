"""DQN in JAX in one compiled program: environments, rows, draws and updates in a scan.

Algorithm: DQN (Mnih et al. 2015) with the double estimate of van Hasselt et al. (2016). A step of
  the scan acts in all environments, adds the step, draws a batch and updates the network. The state
  of rows is a part of what the scan carries, and is donated, so rows are written in place.
Environment: CartPole-v1, written in JAX below; no package but JAX is needed to learn.
Score: at least 450 (mean return of 100 episodes).
Time: a minute on one core.
"""

import argparse
import math
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from matplotlib.figure import Figure
from tqdm import trange

from cpprb_like.device import JaxReplay

SIZES = (4, 128, 128, 2)
GAINS = (2.0, 2.0, 0.02)  # of the first weights: Q begins near 0
SCALE = jnp.array([1.2, 1.5, 0.1, 1.5])  # typical position, speed, angle, angular speed
GAMMA, TAU, LEARNING_RATE = 0.99, 0.01, 1e-3
ENVS, ROWS, BATCH, WARM_UP = 16, 2_000, 256, 50  # ROWS and WARM_UP are steps of all environments
EXPLORATION, EXPLORATION_STEPS = 0.02, 1_000  # share of random actions in the end, and from when
PARTS = 10  # of the training, with an evaluation after each
LIMIT = 500  # steps of an episode

FIELDS: dict[str, Any] = {
    "obs": {"shape": 4},
    "act": {"shape": (), "dtype": jnp.int32},
    "rew": {"shape": ()},
    "terminated": {"shape": (), "dtype": jnp.bool_},
    "truncated": {"shape": (), "dtype": jnp.bool_},
}
REPLAY = JaxReplay(ENVS * ROWS, FIELDS, n_envs=ENVS, next_of="obs")


def begin(key: Any, n: int) -> Any:
    """Observations of n episodes that begin."""
    return jax.random.uniform(key, (n, 4), minval=-0.05, maxval=0.05)


def advance(obs: Any, act: Any) -> tuple[Any, Any]:
    """The next observations, and whether the pole has fallen: a step of 0.02 s."""
    _, speed, angle, turn = obs.T
    cos, sin = jnp.cos(angle), jnp.sin(angle)
    push = (20.0 * act - 10.0 + 0.05 * turn**2 * sin) / 1.1
    turns = (9.8 * sin - cos * push) / (0.5 * (4 / 3 - 0.1 * cos**2 / 1.1))
    obs = obs + 0.02 * jnp.stack([speed, push - 0.05 * turns * cos / 1.1, turn, turns], 1)
    return obs, (jnp.abs(obs[:, 0]) > 2.4) | (jnp.abs(obs[:, 2]) > math.radians(12))


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
    target = batch["rew"] + GAMMA * following * ~batch["terminated"]
    error = jnp.abs(pick(values(params, batch["obs"]), batch["act"]) - target)
    return jnp.mean(jnp.where(error < 1, error**2 / 2, error - 0.5))


def update(learner: Any, batch: Any, share: Any) -> Any:
    """A step of Adam, at a share of the learning rate, and of the target network."""
    params, slow, mean, square, count = learner
    slope = jax.grad(loss)(params, slow, batch)
    count += 1
    mean = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, mean, slope)
    square = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g**2, square, slope)
    rate = share * LEARNING_RATE * jnp.sqrt(1 - 0.999**count) / (1 - 0.9**count)
    params = jax.tree.map(lambda p, m, v: p - rate * m / (jnp.sqrt(v) + 1e-8), params, mean, square)
    slow = jax.tree.map(lambda s, p: s + TAU * (p - s), slow, params)
    return params, slow, mean, square, count


def train_step(state: Any, step: Any, steps: int) -> tuple[Any, None]:
    """Act, add, draw, learn."""
    learner, rows, obs, time, key = state
    key, *keys = jax.random.split(key, 5)
    epsilon = jnp.maximum(EXPLORATION, 1 - step / EXPLORATION_STEPS)
    greedy = values(learner[0], obs).argmax(1)
    random = jax.random.randint(keys[0], (ENVS,), 0, 2)
    act = jnp.where(jax.random.uniform(keys[1], (ENVS,)) < epsilon, random, greedy)

    next_obs, terminated = advance(obs, act)
    truncated = (time + 1 >= LIMIT) & ~terminated
    row = {"obs": obs, "act": act.astype(jnp.int32), "rew": jnp.ones(ENVS), "next_obs": next_obs}
    rows = REPLAY.add(rows, row | {"terminated": terminated, "truncated": truncated})
    over = terminated | truncated
    obs = jnp.where(over[:, None], begin(keys[2], ENVS), next_obs)
    time = jnp.where(over, 0, time + 1)

    batch = REPLAY.sample(rows, keys[3], BATCH)
    learned = update(learner, batch, 1 - step / steps)
    learner = jax.tree.map(lambda new, old: jnp.where(step < WARM_UP, old, new), learned, learner)
    return (learner, rows, obs, time, key), None


@partial(jax.jit, static_argnames="steps", donate_argnames="state")
def train(state: Any, first: Any, steps: int) -> Any:
    """A part of the training, all on the device."""
    numbers = first + jnp.arange(steps // PARTS)
    return jax.lax.scan(partial(train_step, steps=steps), state, numbers)[0]


@partial(jax.jit, static_argnames="episodes")
def evaluate(params: Any, key: Any, episodes: int) -> Any:
    """The mean return of the greedy policy."""

    def step(state: Any, _: Any) -> tuple[Any, Any]:
        obs, stands = state
        obs, falls = advance(obs, values(params, obs).argmax(1))
        return (obs, stands & ~falls), stands

    state = (begin(key, episodes), jnp.ones(episodes, jnp.bool_))
    return jax.lax.scan(step, state, length=LIMIT)[1].sum() / episodes


def start(seed: Any) -> Any:
    """The state before the first step: learner, rows, environments and a key."""
    key, *keys = jax.random.split(jax.random.key(seed), 2 + len(GAINS))
    params = [
        ((gain / n) ** 0.5 * jax.random.normal(one, (n, m)), jnp.zeros(m))
        for one, gain, (n, m) in zip(keys[1:], GAINS, pairwise(SIZES), strict=True)
    ]
    zeros = jax.tree.map(jnp.zeros_like, params)
    learner = (params, jax.tree.map(jnp.array, params), zeros, jax.tree.map(jnp.array, zeros), 0.0)
    return learner, REPLAY.init(), begin(keys[0], ENVS), jnp.zeros(ENVS, jnp.int32), key


def main() -> None:
    """Train in parts, draw the learning curve."""
    parser = argparse.ArgumentParser(description="DQN on CartPole in one compiled program.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=12_000, help="of all environments")
    parser.add_argument("--quick", action="store_true", help="too few steps to learn")
    parser.add_argument("--picture", type=Path, default=Path("device_dqn_jax.png"))
    options = parser.parse_args()
    steps = 500 if options.quick else options.steps

    state, key = jax.jit(start)(options.seed), jax.random.key(10_000)
    curve = []
    for part in (bar := trange(PARTS, unit="part")):
        state = train(state, part * (steps // PARTS), steps)
        curve.append(((part + 1) * (steps // PARTS), float(evaluate(state[0][0], key, 100))))
        bar.set_postfix_str(f"return {curve[-1][1]:.0f}")

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    axes.plot(*zip(*curve, strict=True), marker=".")
    axes.set(title="DQN in one program", xlabel="step of all environments", ylabel="mean return")
    figure.savefig(options.picture, dpi=110)
    print(f"Picture: {options.picture.resolve()}")
    print(f"score: {curve[-1][1]:.1f} (mean return of 100 episodes)")


if __name__ == "__main__":
    main()
