"""Train agents of Stable-Baselines3 with its own replay buffer and with ours, and draw both.

``make learning-curves`` runs it where Stable-Baselines3 and matplotlib are; with ``--draw`` only
the picture is made, from the numbers that are there. Each run is one seed, in a process of its own
with one core. Not here: what a buffer costs (``run``).
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
from importlib.metadata import version
from pathlib import Path
from typing import Any

from result_files import write

RESULTS = Path(__file__).resolve().parent / "results"
NUMBERS, PICTURE = RESULTS / "learning_curves.json", RESULTS / "learning_curves.svg"
SEEDS = (0, 1, 2)
EPISODES = 5  # of each evaluation, by the greedy policy
BUFFERS = {
    "CartPole-v1, DQN": ("Stable-Baselines3", "cpprb_like", "prioritized, 3-step"),
    "Pendulum-v1, SAC": ("Stable-Baselines3", "cpprb_like"),
}
LABELS = {
    "Stable-Baselines3": "its own buffer",
    "cpprb_like": "cpprb_like (the same batches)",
    "prioritized, 3-step": "cpprb_like, PrioritizedDQN, 3-step",
}
DQN_OPTIONS: dict[str, Any] = {
    "learning_rate": 2.3e-3,
    "batch_size": 64,
    "buffer_size": 100_000,
    "learning_starts": 1000,
    "target_update_interval": 10,
    "train_freq": 256,
    "gradient_steps": 128,
    "exploration_fraction": 0.16,
    "exploration_final_eps": 0.04,
    "policy_kwargs": {"net_arch": [128, 128]},
}
SAC_OPTIONS: dict[str, Any] = {"learning_rate": 1e-3, "policy_kwargs": {"net_arch": [64, 64]}}
STEPS = {"CartPole-v1, DQN": (30_000, 1500), "Pendulum-v1, SAC": (6_000, 500)}  # in all, between


def train(wanted: tuple[str, str, int]) -> dict[str, Any]:
    """One run: the mean return of each evaluation, and the seconds that training took."""
    import time

    import gymnasium
    import torch
    from stable_baselines3 import DQN, SAC
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.evaluation import evaluate_policy
    from stable_baselines3.common.monitor import Monitor

    from cpprb_like.integrations.stable_baselines3 import PrioritizedDQN, ReplayBuffer
    from cpprb_like.samplers import Prioritized
    from cpprb_like.schedules import Linear

    case, buffer, seed = wanted
    torch.set_num_threads(1)
    name, _, algorithm = case.partition(", ")
    steps, every = STEPS[case]
    curve: list[tuple[int, float]] = []

    class Evaluate(BaseCallback):  # type: ignore[misc]
        seconds = 0.0

        def _on_step(self) -> bool:
            if self.num_timesteps % every == 0:
                began = time.perf_counter()
                env = Monitor(gymnasium.make(name))
                env.reset(seed=1000)
                mean, _ = evaluate_policy(self.model, env, EPISODES)
                curve.append((self.num_timesteps, float(mean)))
                self.seconds += time.perf_counter() - began
            return True

    kind: Any = SAC if algorithm == "SAC" else DQN
    options: dict[str, Any] = SAC_OPTIONS if algorithm == "SAC" else DQN_OPTIONS
    if buffer != "Stable-Baselines3":
        options = {**options, "replay_buffer_class": ReplayBuffer}
    if buffer == "prioritized, 3-step":
        kind = PrioritizedDQN
        sampler = Prioritized(alpha=0.5, beta=Linear(0.4, 1.0, 20_000))
        options["replay_buffer_kwargs"] = {"sampler": sampler, "n_steps": 3, "gamma": 0.99}
    model = kind("MlpPolicy", name, seed=seed, device="cpu", **options)
    callback = Evaluate()
    began = time.perf_counter()
    model.learn(steps, callback=callback)
    seconds = time.perf_counter() - began - callback.seconds
    return {"case": case, "buffer": buffer, "seed": seed, "seconds": seconds, "curve": curve}


def run_all() -> None:
    """Every run that is not there yet, one after another; each is written at once."""
    os.environ["OMP_NUM_THREADS"] = "1"
    runs = json.loads(NUMBERS.read_text("utf-8"))["runs"] if NUMBERS.exists() else []
    done = {(run["case"], run["buffer"], run["seed"]) for run in runs}
    wanted = [
        (case, buffer, seed)
        for case, buffers in BUFFERS.items()
        for seed in SEEDS
        for buffer in buffers
        if (case, buffer, seed) not in done
    ]
    packages = ("stable_baselines3", "torch", "gymnasium", "numpy")
    versions = {name: version(name) for name in packages}
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        for run in pool.imap(train, wanted):
            runs.append(run)
            print(f"{run['case']}, {run['buffer']}, seed {run['seed']}: {run['seconds']:.0f} s")
            write(NUMBERS, {"versions": versions, "runs": runs})


def draw() -> None:
    """The picture: a panel for each case; the mean of the seeds, and each of them thinner."""
    import matplotlib as mpl
    import numpy as np
    from matplotlib.figure import Figure

    runs = json.loads(NUMBERS.read_text("utf-8"))["runs"]
    with mpl.rc_context({"svg.hashsalt": "cpprb_like", "font.size": 9}):
        figure = Figure(figsize=(10, 4), layout="constrained")
        for axes, (case, buffers) in zip(
            figure.subplots(1, len(BUFFERS)), BUFFERS.items(), strict=True
        ):
            for number, buffer in enumerate(buffers):
                curves = [
                    np.array(run["curve"])
                    for run in runs
                    if (run["case"], run["buffer"]) == (case, buffer)
                ]
                if not curves:
                    continue
                # Dashes over a broad line: curves that are the same show as both.
                style: dict[str, Any] = {"color": f"C{number}"}
                style |= {"linestyle": "--"} if number == 1 else {}
                for curve in curves:
                    axes.plot(*curve.T, alpha=0.35, linewidth=0.7, **style)
                mean = np.mean(curves, axis=0)
                width = 4 if number == 0 else 1.8
                axes.plot(*mean.T, label=LABELS[buffer], linewidth=width, **style)
            axes.set(title=case, xlabel="steps", ylabel=f"return, mean of {EPISODES} episodes")
            axes.legend(fontsize=8)
        figure.savefig(PICTURE, metadata={"Date": None})


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draw", action="store_true", help="no training")
    if not parser.parse_args().draw:
        run_all()
    draw()


if __name__ == "__main__":
    main()
