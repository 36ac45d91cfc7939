"""A DQN that goes on where it was stopped: ``stopped_dqn.py FOLDER STEPS EVERY``.

It saves weights, environment and rows in one state after every ``EVERY`` steps. It prints the
number of each step, and at the end the digest of all that it is. Sums stand in place of matrix
products, so every version of NumPy gives the same bits.
"""

from __future__ import annotations

import hashlib
import pickle
import random
import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpprb_like import ReplayBuffer
from cpprb_like.checkpoint import open_beside
from cpprb_like.samplers import Prioritized
from cpprb_like.schedules import Linear

Array = NDArray[np.float64]
FIELDS: Any = {
    "obs": {"shape": 3, "dtype": "f8"},
    "act": {"shape": (), "dtype": "i8"},
    "rew": {"shape": (), "dtype": "f8"},
    "done": {"shape": (), "dtype": bool},
}


class Walk:
    """A noisy walk on a line; the episode ends at either border, and the right one pays."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.reset()

    def reset(self) -> None:
        """Begin an episode."""
        self.place, self.speed, self.t = self.rng.uniform(-1.0, 1.0), 0.0, 0

    @property
    def obs(self) -> Array:
        """Place, speed and time."""
        return np.array([self.place, self.speed, self.t / 50])

    def step(self, action: int) -> tuple[float, bool]:
        """The reward, and whether the episode has ended."""
        self.speed = 0.9 * self.speed + 0.1 * (2 * action - 1) + self.rng.gauss(0.0, 0.05)
        self.place, self.t = self.place + self.speed, self.t + 1
        return float(self.place > 2), abs(self.place) > 2


class Agent:
    """A network of one hidden layer, with momentum and a target network."""

    def __init__(self, seed: int, width: int = 16) -> None:
        self.rng = random.Random(seed)
        shapes = ((3, width), (width,), (width, 2), (2,))
        normal = np.vectorize(lambda _: self.rng.gauss(0.0, 0.5), otypes=[np.float64])
        self.weights = [normal(np.zeros(shape)) for shape in shapes]
        self.target = [weight.copy() for weight in self.weights]
        self.momentum = [np.zeros(shape) for shape in shapes]
        self.step = 0

    def q(self, obs: Array, weights: list[Array]) -> tuple[Array, Array]:
        """The hidden layer, and the values of both actions."""
        w1, b1, w2, b2 = weights
        hidden = np.maximum((obs[:, :, None] * w1).sum(1) + b1, 0)
        return hidden, (hidden[:, :, None] * w2).sum(1) + b2

    def act(self, obs: Array) -> int:
        """The greedy action, or a random one."""
        if self.rng.random() < 0.2:
            return self.rng.randrange(2)
        return int(self.q(obs[None], self.weights)[1].argmax())

    def learn(self, batch: dict[str, Any]) -> Array:
        """One step of gradient descent; the errors of the rows."""
        following = self.q(batch["next_obs"], self.target)[1].max(1)
        goal = batch["rew"] + 0.95 * np.where(batch["done"], 0.0, following)
        hidden, values = self.q(batch["obs"], self.weights)
        rows = np.arange(len(goal))
        wrong = values[rows, batch["act"]] - goal
        slope = np.zeros_like(values)
        slope[rows, batch["act"]] = wrong * batch["weights"] / len(goal)
        back = np.where(hidden > 0, (slope[:, None, :] * self.weights[2]).sum(2), 0.0)
        slopes = [
            (batch["obs"][:, :, None] * back[:, None, :]).sum(0),
            back.sum(0),
            (hidden[:, :, None] * slope[:, None, :]).sum(0),
            slope.sum(0),
        ]
        lists = zip(self.weights, self.momentum, self.target, slopes, strict=True)
        for weight, momentum, target, change in lists:
            momentum += 0.1 * (change - momentum)
            weight -= 0.1 * momentum
            target += 0.01 * (weight - target)
        errors: Array = np.abs(wrong)
        return errors


def main(folder: str, steps: int, every: int) -> None:
    """Go on, or begin; train, and save now and then."""
    try:
        rb = ReplayBuffer.load(folder)
    except FileNotFoundError:
        sampler = Prioritized(beta=Linear(0.4, 1.0, steps))
        rb = ReplayBuffer(300, FIELDS, next_of="obs", sampler=sampler, seed=1)
        agent, env = Agent(2), Walk(3)
    else:
        with open_beside(folder, "agent") as file:
            agent = pickle.load(file)
        with open_beside(folder, "env") as file:
            env = pickle.load(file)
    saving = None
    while agent.step < steps:
        obs = env.obs
        action = agent.act(obs)
        reward, done = env.step(action)
        rb.add(obs=obs, act=action, rew=reward, next_obs=env.obs, done=done)
        if done or env.t == 50:
            rb.on_episode_end()
            env.reset()
        if len(rb) >= 16:
            batch = rb.sample(16)
            rb.update_priorities(batch["indexes"], agent.learn(batch))
        agent.step += 1
        print(agent.step, flush=True)
        if agent.step % every == 0:
            if saving is not None:
                saving.result()
            beside: Any = {
                "agent": lambda file, agent=agent: pickle.dump(agent, file),
                "env": pickle.dumps(env),
            }
            if agent.step // every % 2:
                rb.save(folder, beside=beside, sync=False)
            else:
                saving = rb.save_async(folder, beside=beside, keep=2, sync=False)
    if saving is not None:
        saving.result()
    hashed = hashlib.sha256(repr((env.rng.getstate(), env.obs.tolist())).encode())
    hashed.update(repr(agent.rng.getstate()).encode())
    for values in (*agent.weights, *agent.momentum, *agent.target):
        hashed.update(values.tobytes())
    for columns in (rb.get_all_transitions(), rb.sample(64)):
        for column in columns.values():
            hashed.update(column.tobytes())
    print(hashed.hexdigest(), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
