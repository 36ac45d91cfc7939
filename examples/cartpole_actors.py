"""Train a DQN on CartPole with actors in processes of their own, and one learner.

Each actor plays with the newest weights that the learner has published, and adds its steps to a
replay in shared memory; the learner draws batches from the steps of all. A rate limiter has them
keep pace: as many steps are drawn for each one that is added as in cartpole_dqn.py, whose network
and evaluation these are.

Environment: CartPole-v1.
Score: at least 475 (mean return of 20 episodes).
Time: two minutes on two cores.
"""

import argparse
import multiprocessing
import os
import sys
from pathlib import Path

os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"))

import gymnasium
import numpy as np
from cartpole_dqn import (
    BATCH,
    EXPLORATION,
    EXPLORATION_STEPS,
    GAMMA,
    LEARNING_RATE,
    SOLVED,
    TARGET_RATE,
    WARM_UP,
    Network,
    evaluate,
)
from matplotlib.figure import Figure
from tqdm import tqdm

from cpprb_like import GymnasiumRecorder
from cpprb_like.limiters import SampleToInsertRatio
from cpprb_like.processes import SharedReplay

CAPACITY = 20_000  # steps of all actors together
AHEAD = 32 * BATCH  # samples that the learner, or the actors, may be ahead: 32 steps
PUBLISH_EVERY, EVALUATE_EVERY = 10, 1_000  # batches


def act(replay: SharedReplay, number: int, actors: int, seed: int) -> None:
    """Play and add steps, until the program ends: the work of an actor process."""
    rng = np.random.default_rng((seed, number))
    env = GymnasiumRecorder(gymnasium.make("CartPole-v1"))
    env.attach(replay.actor())
    network = Network(rng)
    version, weights = replay.parameters.wait()  # until the learner has begun
    network.flat[:] = weights
    obs, _ = env.reset(seed=seed * 1_000 + number)
    step = 0
    while True:
        newest = replay.parameters.latest(after=version)
        if newest is not None:
            version, network.flat[:] = newest
        explore = rng.random() < max(EXPLORATION, 1 - step * actors / EXPLORATION_STEPS)
        action = int(rng.integers(2)) if explore else int(network(obs[None]).argmax())
        obs, *_ = env.step(action)  # adds the step, and waits if the learner lags
        step += 1


def learn(replay: SharedReplay, seed: int, steps: int) -> list[tuple[float, float]]:
    """Draw and learn, until it is solved or the actors have added so many steps.

    Returns steps and the mean return of each evaluation.
    """
    rng = np.random.default_rng(seed)
    online, target = Network(rng), Network(rng)
    target.flat[:] = online.flat
    replay.parameters.publish(online.flat)
    learner = replay.learner(seed=seed)
    curve: list[tuple[float, float]] = [(0, evaluate(online, 20, seed))]
    with tqdm(total=steps, unit="step", mininterval=0.5) as bar:
        while (inserted := replay.stats()["inserts"]) < steps:
            batch = learner.sample(BATCH)  # waits if the actors lag
            best = online(batch["next_obs"]).argmax(1)
            following = target(batch["next_obs"])[np.arange(BATCH), best]
            goal = batch["rew"] + GAMMA * np.where(batch["terminated"], 0, following)
            rate = LEARNING_RATE * (1 - inserted / steps)
            online.learn(batch["obs"], batch["act"], goal, 1.0, rate)
            target.flat += TARGET_RATE * (online.flat - target.flat)
            if online.updates % PUBLISH_EVERY == 0:
                replay.parameters.publish(online.flat)
                bar.update(inserted - bar.n)
            if online.updates % EVALUATE_EVERY == 0 and inserted > EXPLORATION_STEPS:
                curve.append((inserted, evaluate(online, 20, seed + online.updates)))
                bar.set_postfix_str(f"greedy return {curve[-1][1]:.0f}")
                if curve[-1][1] >= SOLVED:
                    return curve
    return [*curve, (steps, evaluate(online, 20, seed))]


def main() -> None:
    """Start the actors, learn, end them, and fail if it did not learn."""
    parser = argparse.ArgumentParser(description="Train a DQN on CartPole-v1 with several actors.")
    parser.add_argument("--actors", type=int, default=2, help="processes that play")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=60_000, help="environment steps at most")
    parser.add_argument("--quick", action="store_true", help="too few steps to learn")
    parser.add_argument("--picture", type=Path, default=Path("cartpole_actors.png"))
    options = parser.parse_args()
    fields = GymnasiumRecorder(gymnasium.make("CartPole-v1")).env_dict
    limiter = SampleToInsertRatio(BATCH, WARM_UP, error_buffer=AHEAD)
    with SharedReplay(CAPACITY, fields, writers=options.actors, limiter=limiter) as replay:
        actors = [
            multiprocessing.Process(
                target=act, args=(replay, number, options.actors, options.seed), daemon=True
            )
            for number in range(options.actors)
        ]
        for actor in actors:
            actor.start()
        curve = learn(replay, options.seed, 2_000 if options.quick else options.steps)
        for member in replay.members():
            print(member)
        print(replay.stats())
        for actor in actors:
            actor.terminate()  # at any moment: nobody waits for one that has ended
            actor.join()
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes, found = figure.subplots(), curve[-1][1]
    axes.plot(*zip(*curve, strict=True), marker=".")
    axes.set(title="CartPole", xlabel="step", ylabel="mean return, 20 greedy episodes")
    figure.savefig(options.picture, dpi=110)
    print(f"Picture: {options.picture.resolve()}")
    print(f"score: {found:.1f} (mean return of 20 episodes)")
    if options.quick:
        return
    if found < SOLVED:
        sys.exit(f"Not learned: mean return {found:.0f}, expected at least {SOLVED:.0f}.")
    print(f"Learned: mean return {found:.0f} over 20 greedy episodes.")


if __name__ == "__main__":
    main()
