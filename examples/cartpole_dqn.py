"""Train a DQN on CartPole from a replay buffer, then draw what was learned and what was replayed.

The agent learns Q(s, a), the discounted reward to come after action a in state s (Mnih et al. 2015,
"Human-level control through deep reinforcement learning"; double estimate of van Hasselt et al.
2016). It acts by Q, stores each step, and learns from steps drawn at random: see ``train``. With
``--prioritized`` those that Q was most wrong about are drawn most often (Schaul et al. 2016,
"Prioritized Experience Replay"). ``--resume FOLDER`` goes on with a run that was stopped, with
the same options, which then ends as if it had not been: see ``save`` and ``load``.

Environment: CartPole-v1.
Score: at least 475 (mean return of 20 episodes).
Time: a minute on one core.
"""

import argparse
import os
import pickle
import sys
from pathlib import Path
from typing import Any

os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"))

import gymnasium
import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray
from tqdm import trange

from cpprb_like import GymnasiumRecorder, ReplayBuffer
from cpprb_like.checkpoint import open_beside, states
from cpprb_like.samplers import Prioritized, Uniform
from cpprb_like.schedules import Linear

CAPACITY, BATCH, WARM_UP = 20_000, 64, 1_000  # steps held, steps drawn, steps before learning
ALPHA = 0.4  # how much priorities count: 0 would be uniform
GAMMA, LEARNING_RATE, TARGET_RATE = 0.99, 1e-3, 0.005
EXPLORATION, EXPLORATION_STEPS = 0.02, 5_000  # share of random actions in the end, and from when
EVALUATE_EVERY, SAVE_EVERY, SOLVED = 1_000, 1_000, 475.0
SCALE = np.array([1.2, 1.5, 0.1, 1.5], np.float32)  # typical position, speed, angle, angular speed
RUN = ("step", "obs", "rng", "curve", "updates")  # what is saved besides networks, rows and env
Array = NDArray[Any]


class Network:
    """Two hidden layers and Adam; ``flat`` is all parameters in one array."""

    def __init__(self, rng: np.random.Generator, width: int = 128) -> None:
        shapes = [(4, width), (width,), (width, width), (width,), (width, 2), (2,)]
        ends = np.cumsum([int(np.prod(shape)) for shape in shapes])
        self.flat, self.slope, self.mean, self.square = np.zeros((4, ends[-1]), np.float32)
        self.layers, self.slopes = (
            [part.reshape(shape) for part, shape in zip(np.split(flat, ends), shapes, strict=False)]
            for flat in (self.flat, self.slope)
        )
        for layer, gain in ((0, 2.0), (2, 2.0), (4, 0.02)):
            weight = self.layers[layer]
            weight[:] = rng.normal(0.0, np.sqrt(gain / len(weight)), weight.shape)
        self.updates = 0

    def __call__(self, obs: Array) -> Array:
        """Q of both actions in each state, shape (n, 2)."""
        w1, b1, w2, b2, w3, b3 = self.layers
        self.given = obs / SCALE
        self.hidden1 = np.tanh(self.given @ w1 + b1)
        self.hidden2 = np.tanh(self.hidden1 @ w2 + b2)
        return np.asarray(self.hidden2 @ w3 + b3)

    def learn(self, obs: Array, act: Array, goal: Array, weights: Any, rate: float) -> Array:
        """One step of Adam on the weighted Huber loss of Q(obs, act) and its goal; the errors."""
        rows, error = np.arange(len(act)), np.zeros((len(act), 2), np.float32)
        wrong = self(obs)[rows, act] - goal
        error[rows, act] = weights * np.clip(wrong, -1, 1) / len(act)
        for layer, given in ((4, self.hidden2), (2, self.hidden1), (0, self.given)):
            self.slopes[layer][:] = given.T @ error
            self.slopes[layer + 1][:] = error.sum(0)
            error = (error @ self.layers[layer].T) * (1 - given**2)
        self.updates += 1
        self.mean += 0.1 * (self.slope - self.mean)
        self.square += 0.001 * (self.slope**2 - self.square)
        rate *= np.sqrt(1 - 0.999**self.updates) / (1 - 0.9**self.updates)
        self.flat -= rate * self.mean / (np.sqrt(self.square) + 1e-8)
        return np.asarray(wrong)


def arrays_of(*networks: Network) -> list[Array]:
    """What training changes in networks."""
    return [array for one in networks for array in (one.flat, one.mean, one.square)]


def save(folder: Path, buffer: ReplayBuffer, arrays: list[Array], run: dict[str, Any]) -> None:
    """Save the whole run. A crash at any moment leaves all of the old state, or all of this one."""
    buffer.save(
        folder,
        beside={
            "networks.npz": lambda file: np.savez(file, *arrays),
            "run.pkl": lambda file: pickle.dump(run, file),
        },
    )


def load(
    folder: Path, arrays: list[Array], options: dict[str, Any]
) -> tuple[ReplayBuffer, dict[str, Any]]:
    """The buffer and the run that were saved; the arrays get their values."""
    with open_beside(folder, "run.pkl") as file:
        run = pickle.load(file)
    if run["options"] != options:
        raise ValueError(f"{folder}: expected {run['options']}, as it began, got {options}")
    with open_beside(folder, "networks.npz") as file, np.load(file) as saved:
        for array, values in zip(arrays, saved.values(), strict=True):
            array[:] = values
    return ReplayBuffer.load(folder), run


def train(
    seed: int, steps: int, prioritized: bool, folder: Path | None = None
) -> tuple[ReplayBuffer, list[tuple[int, float]]]:
    """Act, store, draw, learn; the buffer, and step and mean return of each evaluation."""
    options = {"seed": seed, "steps": steps, "prioritized": prioritized}
    rng = np.random.default_rng(seed)
    # The recorder is the environment, and stores its steps. At the end of an episode it resets: the
    # observation that is acted on is the first of the next one, and the one that is stored as next
    # the final one.
    env = GymnasiumRecorder(gymnasium.make("CartPole-v1"))
    sampler = Prioritized(ALPHA, beta=Linear(0.4, 1.0, steps)) if prioritized else Uniform()
    buffer = env.attach(ReplayBuffer(CAPACITY, env.env_dict, sampler=sampler, seed=seed))
    online, target = Network(rng), Network(rng)
    target.flat[:] = online.flat
    curve, every = [(0, evaluate(online, 20, seed))], max(1, min(EVALUATE_EVERY, steps // 4))

    obs, _ = env.reset(seed=seed)
    saved = 0
    if folder is not None and states(folder):
        buffer, run = load(folder, arrays_of(online, target), options)
        saved, obs, rng, curve, online.updates = (run[name] for name in RUN)
        env = GymnasiumRecorder(run["env"])
        env.attach(buffer)
        env.reset(obs)  # the observation that its episode begins with
    for step in (bar := trange(saved + 1, steps + 1, unit="step", mininterval=0.5)):
        explore = rng.random() < max(EXPLORATION, 1 - step / EXPLORATION_STEPS)
        action = int(rng.integers(2)) if explore else int(online(obs[None]).argmax())
        obs, _, terminated, truncated, _ = env.step(action)
        if step < WARM_UP:
            continue

        # Steps in a row resemble each other, and a network that learns from them in order forgets
        # what it knew. Steps drawn uniformly from the past are nearly independent, and each one
        # teaches several times before the ring overwrites it.
        batch = buffer.sample(BATCH)
        # An action is worth its reward and what follows. Where the pole has fallen (terminated)
        # nothing follows. Where time was up (truncated) it stood, and would have gone on standing:
        # that state keeps its value, so only ``terminated`` cuts the sum.
        best = online(batch["next_obs"]).argmax(1)
        following = target(batch["next_obs"])[np.arange(BATCH), best]
        goal = batch["rew"] + GAMMA * np.where(batch["terminated"], 0, following)
        # Steps that are drawn more often, by priority, weigh less: otherwise Q would be right for
        # the mixture that is drawn, and not for the one that happens.
        rate, weights = LEARNING_RATE * (1 - step / steps), batch.get("weights", 1.0)
        errors = online.learn(batch["obs"], batch["act"], goal, weights, rate)
        if prioritized:
            buffer.update_priorities(batch["indexes"], abs(errors))
        target.flat += TARGET_RATE * (online.flat - target.flat)  # a goal that moves slowly

        if step % every == 0 and step >= min(EXPLORATION_STEPS, steps // 4):
            curve.append((step, evaluate(online, 20, seed + step)))
            bar.set_postfix_str(f"greedy return {curve[-1][1]:.0f}")
            if curve[-1][1] >= SOLVED:
                break
        # Between two episodes, as a recorder begins with an episode.
        if folder is not None and (terminated or truncated) and step >= saved + SAVE_EVERY:
            saved = step
            run = dict(zip(RUN, (step, obs, rng, curve, online.updates), strict=True))
            run |= {"env": env.env, "options": options}
            save(folder, buffer, arrays_of(online, target), run)
    return buffer, curve


def evaluate(network: Network, episodes: int, seed: int) -> float:
    """Mean return of greedy episodes, in an environment of their own."""
    env, total = gymnasium.make("CartPole-v1"), 0.0
    for episode in range(episodes):
        obs, _ = env.reset(seed=seed * 1_000 + episode)
        over = False
        while not over:
            obs, reward, terminated, truncated, _ = env.step(int(network(obs[None]).argmax()))
            total, over = total + float(reward), terminated or truncated
    return total / episodes


def draw(buffer: ReplayBuffer, curve: list[tuple[int, float]], path: Path) -> None:
    """The learning curve, and what the buffer holds: ages, returns, rewards or priorities."""
    age = (buffer.get_next_index() - 1 - np.arange(len(buffer))) % buffer.capacity  # 0: newest
    slots = np.argsort(-age)  # oldest first
    rows = buffer[slots]
    ends = np.flatnonzero(rows["terminated"] | rows["truncated"])
    returns = np.diff(np.cumsum(rows["rew"])[ends])  # of all episodes but the oldest, now cut
    figure = Figure(figsize=(11, 7), layout="constrained")
    (learned, ages), (episodes, last) = figure.subplots(2, 2)
    learned.plot(*zip(*curve, strict=True), marker=".")
    learned.axhline(SOLVED, color="tab:gray", linestyle="--")
    learned.set(title="Learning curve", xlabel="step", ylabel="mean return, 20 greedy episodes")
    ages.hist(age, bins=40)
    ages.set(title="Age of the steps held", xlabel="age (steps)", ylabel="steps")
    episodes.plot(len(rows["rew"]) - 1 - ends[1:], returns, ".")
    episodes.set(title="Returns of the episodes held", xlabel="age (steps)", ylabel="return")
    episodes.invert_xaxis()
    kinds = [rows["terminated"], rows["truncated"], ~(rows["terminated"] | rows["truncated"])]
    labels = ["terminated", "truncated", "goes on"]
    if isinstance(buffer.sampler, Prioritized):
        often = buffer.sampler.probabilities_of(slots) * len(slots)
        bins = np.geomspace(often.min() / 2, often.max() * 2, 40)
        last.hist([often[kind] for kind in kinds], bins, label=labels, histtype="step")
        last.set(title="Priorities of the steps held", xscale="log")
        last.set(xlabel="probability of a draw, relative to uniform")
    else:
        last.hist([rows["rew"][kind] for kind in kinds], np.arange(-0.5, 2), label=labels)
        last.set(title="Rewards held", xlabel="reward", xticks=[0, 1])
    last.set(ylabel="steps", yscale="log")
    last.legend(title="the episode")
    figure.savefig(path, dpi=110)


def main() -> None:
    """Train, draw, and fail if it did not learn."""
    parser = argparse.ArgumentParser(description="Train a DQN on CartPole-v1 by replay.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=60_000, help="environment steps at most")
    parser.add_argument("--prioritized", action="store_true", help="draw steps by priority")
    parser.add_argument("--quick", action="store_true", help="too few steps to learn")
    parser.add_argument("--resume", type=Path, metavar="FOLDER", help="go on, and save, here")
    parser.add_argument("--picture", type=Path, default=Path("cartpole_dqn.png"))
    options = parser.parse_args()
    steps = 2_000 if options.quick else options.steps
    buffer, curve = train(options.seed, steps, options.prioritized, options.resume)
    draw(buffer, curve, options.picture)
    print(buffer, f"Picture: {options.picture.resolve()}", sep="\n")
    print(f"score: {curve[-1][1]:.1f} (mean return of 20 episodes)")
    if curve[-1][1] < SOLVED and not options.quick:
        sys.exit(f"Not learned: mean return {curve[-1][1]:.0f}, expected at least {SOLVED:.0f}.")
    if not options.quick:
        print(f"Learned: mean return {curve[-1][1]:.0f} over 20 greedy episodes.")


if __name__ == "__main__":
    main()
