"""Train a DQN on CartPole on a Ray cluster, in the way of Ape-X (Horgan et al., 2018).

Actors are tasks of Ray. Each explores at a rate of its own, computes the first priorities of its
steps, and plays with the newest weights. The learner draws prioritized 3-step transitions of all
actors, and sends priorities and weights back. On one machine this starts a Ray of its own; on a
cluster, with ``--address auto``, the same program uses all nodes.

Environment: CartPole-v1.
"""

import argparse
import os
import sys
import time
from pathlib import Path
from typing import Any

os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"))

import cartpole_dqn as dqn
import gymnasium
import matplotlib as mpl
import numpy as np
import ray
from numpy.typing import NDArray
from tqdm import tqdm

from cpprb_like.limiters import SampleToInsertRatio
from cpprb_like.ray import ClusterReplay
from cpprb_like.samplers import Prioritized
from cpprb_like.typing import FieldSpec, NstepSpec

CAPACITY = 20_000  # steps of all actors together
STEPS = 3  # of a return
CHUNK = 16  # steps that an actor adds at once
AHEAD = 64 * dqn.BATCH  # samples that the learner, or the actors, may be ahead
PUBLISH_EVERY, EVALUATE_EVERY = 10, 1_000  # batches
QUICK = 2_500  # steps of --quick
NSTEP: NstepSpec = {
    "size": STEPS,
    "gamma": dqn.GAMMA,
    "rew": "rew",
    "next": "next_obs",
    "discount": True,
}
FIELDS: dict[str, FieldSpec] = {
    "obs": {"shape": 4},
    "act": {"shape": (), "dtype": "int64"},
    "rew": {"shape": ()},
    "next_obs": {"shape": 4},
    "terminated": {"shape": (), "dtype": bool},
    "truncated": {"shape": (), "dtype": bool},
}


def act(replay: ClusterReplay, number: int, actors: int, seed: int) -> None:
    """Play and add steps, until the program ends."""
    rng = np.random.default_rng((seed, number))
    explore = 0.4 ** (1 + 7 * number / max(1, actors - 1))  # Ape-X, section 4
    env, network, parameters = gymnasium.make("CartPole-v1"), dqn.Network(rng), replay.parameters
    version, network.flat[:] = parameters.wait()  # until the learner has begun
    obs, _ = env.reset(seed=seed * 1_000 + number)
    with replay.actor() as actor:
        while True:
            chunk: dict[str, list[Any]] = {name: [] for name in FIELDS}
            for _ in range(CHUNK):
                greedy = rng.random() >= explore
                action = int(network(obs[None]).argmax()) if greedy else int(rng.integers(2))
                following, reward, terminated, truncated, _ = env.step(action)
                step = obs, action, reward, following, terminated, truncated
                for values, value in zip(chunk.values(), step, strict=True):
                    values.append(value)
                obs = env.reset()[0] if terminated or truncated else following
            actor.add(**chunk, priorities=np.abs(error(network, network, chunk, dqn.GAMMA)))
            newest = parameters.latest(after=version)
            if newest is not None:
                version, network.flat[:] = newest


def error(
    online: dqn.Network, target: dqn.Network, batch: dict[str, Any], discount: Any
) -> NDArray[np.float64]:
    """Temporal-difference errors of double Q-learning."""
    rows = np.arange(len(batch["act"]))
    following = np.asarray(batch["next_obs"])
    best = target(following)[rows, online(following).argmax(1)]
    goal = np.asarray(batch["rew"]) + discount * np.where(batch["terminated"], 0.0, best)
    known = online(np.asarray(batch["obs"]))[rows, batch["act"]]
    return np.asarray(goal - known, np.float64)


def learn(replay: ClusterReplay, seed: int, steps: int) -> list[tuple[int, float]]:
    """Draw and learn, until it is solved or the actors have added so many steps: the curve."""
    rng = np.random.default_rng(seed)
    online, target, curve = dqn.Network(rng), dqn.Network(rng), []
    target.flat[:] = online.flat
    replay.parameters.publish(online.flat)
    learner = replay.learner(Prioritized(), seed=seed)
    inserted, every = 0, max(1, min(EVALUATE_EVERY, steps // 10))
    with tqdm(total=steps, unit="step", mininterval=0.5) as bar:
        while inserted < steps:
            batch = learner.sample(dqn.BATCH)  # waits if the actors lag
            # The discount is gamma to the number of steps: fewer where an episode was cut.
            wrong = error(online, target, batch, batch["discount"])
            learner.update_priorities(batch["indexes"], np.abs(wrong))
            goal = online(batch["obs"])[np.arange(dqn.BATCH), batch["act"]] + wrong
            rate = dqn.LEARNING_RATE * (1 - inserted / steps)
            online.learn(batch["obs"], batch["act"], goal, batch["weights"], rate)
            target.flat += dqn.TARGET_RATE * (online.flat - target.flat)
            if online.updates % PUBLISH_EVERY == 0:
                replay.parameters.publish(online.flat)
                inserted = int(replay.stats()["inserts"])
                bar.update(inserted - bar.n)
            if online.updates % every == 0:
                curve.append((inserted, dqn.evaluate(online, 20, seed + online.updates)))
                bar.set_postfix_str(f"greedy return {curve[-1][1]:.0f}")
                if curve[-1][1] >= dqn.SOLVED:
                    break
    print(learner.stats())
    return curve


def draw(curve: list[tuple[int, float]], path: Path) -> None:
    """The learning curve as a picture."""
    mpl.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415 (after the choice of a backend)

    plt.plot(*zip(*curve, strict=True), marker="o")
    plt.xlabel("environment steps of all actors")
    plt.ylabel("mean return of 20 greedy episodes")
    plt.savefig(path)
    print(f"Picture: {path.resolve()}")


def main() -> None:
    """Start Ray, the hosts and the actors; learn; fail if it did not learn."""
    parser = argparse.ArgumentParser(description="Train a DQN on CartPole-v1 on a Ray cluster.")
    parser.add_argument("--address", default="local", help="of the Ray cluster: auto, or local")
    parser.add_argument("--actors", type=int, default=2, help="tasks that play")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=80_000, help="environment steps at most")
    parser.add_argument(
        "--score", type=float, default=dqn.SOLVED, help="mean return that is asked for"
    )
    parser.add_argument("--quick", action="store_true", help="too few steps to learn")
    parser.add_argument("--picture", type=Path, default=Path("cartpole_cluster.png"))
    options = parser.parse_args()
    local = {"num_cpus": options.actors, "include_dashboard": False}
    ray.init(options.address, **(local if options.address == "local" else {}))
    replay = ClusterReplay(
        CAPACITY,
        FIELDS,
        writers=options.actors,
        limiter=SampleToInsertRatio(dqn.BATCH, dqn.WARM_UP, error_buffer=AHEAD),
        Nstep=NSTEP,
    )
    task = ray.remote(num_cpus=1)(act)
    began = time.monotonic()
    with replay:
        actors = [
            task.remote(replay, number, options.actors, options.seed)
            for number in range(options.actors)
        ]
        curve = learn(replay, options.seed, QUICK if options.quick else options.steps)
        print(replay.stats())
        for actor in actors:
            ray.cancel(actor, force=True)  # at any moment: no process waits for one that ended
    draw(curve, options.picture)
    best = max((found for _, found in curve), default=0.0)
    print(f"score: {best:.1f} (mean return of 20 episodes)")
    if options.quick:
        return
    if best < options.score:
        sys.exit(f"Not learned: mean return {best:.0f}, expected at least {options.score:.0f}.")
    print(f"Learned: mean return {best:.0f}, in {time.monotonic() - began:.0f} s.")


if __name__ == "__main__":
    main()
