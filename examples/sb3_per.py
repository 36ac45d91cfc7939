"""DQN of Stable-Baselines3 with prioritized replay and 3-step returns.

Algorithm: DQN (Mnih et al. 2015, "Human-level control through deep reinforcement learning") with
  prioritized experience replay (Schaul et al. 2016, "Prioritized Experience Replay").
  Stable-Baselines3 has no priorities: ``PrioritizedDQN`` is its DQN with a loss that weights steps,
  and updates their priorities.
Environment: CartPole-v1.
Score: at least 450 (mean return of 20 episodes).
Time: half a minute on one core. It ends when the task is solved.
"""

import argparse
from pathlib import Path

import gymnasium
import torch
from matplotlib.figure import Figure
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor
from tqdm import tqdm

from cpprb_like.integrations.stable_baselines3 import PrioritizedDQN
from cpprb_like.samplers import Prioritized
from cpprb_like.schedules import Linear

GAMMA, SOLVED = 0.99, 475.0


class Progress(BaseCallback):  # type: ignore[misc]
    """A progress bar, and an evaluation now and then. Training ends when the task is solved."""

    def __init__(self, steps: int, every: int, seed: int) -> None:
        super().__init__()
        self.bar = tqdm(total=steps, unit="step", mininterval=0.5)
        self.every = every
        self.seed = seed
        self.curve: list[tuple[int, float]] = []

    def _on_step(self) -> bool:
        """After each step of the environment; false ends the training."""
        self.bar.update()
        if self.num_timesteps % self.every:
            return True
        self.curve.append((self.num_timesteps, evaluate(self.model, 20, self.seed)))
        self.bar.set_postfix_str(f"return {self.curve[-1][1]:.0f}")
        return self.curve[-1][1] < SOLVED

    def _on_training_end(self) -> None:
        self.bar.close()


def evaluate(model: PrioritizedDQN, episodes: int, seed: int) -> float:
    """Mean return of the greedy policy."""
    env = Monitor(gymnasium.make("CartPole-v1"))
    env.reset(seed=seed)
    mean, _ = evaluate_policy(model, env, episodes)
    return float(mean)


def main() -> None:
    """Train, draw the learning curve, evaluate."""
    parser = argparse.ArgumentParser(description="Stable-Baselines3's DQN with priorities.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=60_000, help="environment steps at most")
    parser.add_argument("--quick", action="store_true", help="too few steps to learn")
    parser.add_argument("--picture", type=Path, default=Path("sb3_per.png"))
    options = parser.parse_args()
    steps, episodes = (1_300, 2) if options.quick else (options.steps, 20)
    torch.set_num_threads(1)

    # The sampler and the n-step returns are options of the buffer. ``gamma`` is the model's: the
    # buffer has to know it too, for the sum of the rewards.
    sampler = Prioritized(alpha=0.5, beta=Linear(0.4, 1.0, steps // 2))
    model = PrioritizedDQN(
        "MlpPolicy",
        "CartPole-v1",
        learning_rate=2.3e-3,
        buffer_size=50_000,
        batch_size=64,
        gamma=GAMMA,
        learning_starts=1_000,
        train_freq=256,
        gradient_steps=128,
        target_update_interval=10,
        exploration_fraction=0.16,
        exploration_final_eps=0.04,
        policy_kwargs={"net_arch": [128, 128]},
        replay_buffer_kwargs={"sampler": sampler, "n_steps": 3, "gamma": GAMMA},
        seed=options.seed,
        device="cpu",
    )
    progress = Progress(steps, 500 if options.quick else 1_500, seed=1_000)
    model.learn(steps, callback=progress)
    print(model.replay_buffer.buffer)  # the buffer itself, with all its methods

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    axes.plot(*zip(*progress.curve, strict=True), marker=".")
    axes.axhline(SOLVED, color="tab:gray", linestyle="--")
    axes.set(title="PrioritizedDQN on CartPole", xlabel="step", ylabel="return, 20 episodes")
    figure.savefig(options.picture, dpi=110)
    print(f"Picture: {options.picture.resolve()}")
    score = evaluate(model, episodes, seed=10_000)
    print(f"score: {score:.1f} (mean return of {episodes} episodes)")


if __name__ == "__main__":
    main()
