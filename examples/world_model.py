"""A recurrent world model, learned from sequences, and a planner that acts by imagining in it.

Algorithm: model-predictive control with the cross-entropy method, as in PlaNet (Hafner et al. 2019,
  "Learning Latent Dynamics for Planning from Pixels"). The model is smaller: a GRU that predicts
  the next observation and the reward, without the stochastic part of PlaNet's.
Environment: Pendulum-v1, where each action is played twice. The agent does not see the speed of the
  pendulum, only where it is: the model has to remember.
Score: at least -250 (mean return of 20 episodes).
Time: a minute on one core.
"""

import argparse
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.spaces import Box
from matplotlib.figure import Figure
from torch import Tensor, nn
from tqdm import trange

from cpprb_like import GymnasiumRecorder, ReplayBuffer
from cpprb_like.views import Sequences

ENVS, LENGTH, TORQUE = 4, 100, 2.0  # environments, steps of their episodes, largest action
WARM_UP, IMAGINED = 5, 6  # steps that the model sees while it learns, and steps that it imagines
BATCH, UPDATES, LEARNING_RATE = 64, 500, 5e-3  # sequences of a batch, batches after each round
HORIZON, PLANS, BEST, ITERATIONS = 8, 64, 8, 3  # of the planner
NOISE = 0.3  # of the actions that are played for the model to learn from


class Twice(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Plays each action twice, and hides the third observation."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        self.observation_space = Box(-1, 1, (2,))

    def reset(self, **options: Any) -> Any:
        """Begin an episode."""
        obs, info = self.env.reset(**options)
        return obs[:2], info

    def step(self, action: Any) -> Any:
        """Two steps, and the sum of their rewards."""
        _, before, *_ = self.env.step(action)
        obs, reward, *end = self.env.step(action)
        return obs[:2], float(before) + float(reward), *end


class Model(nn.Module):  # type: ignore[misc]
    """What an observation and an action lead to: the next observation and the reward."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.width = width
        self.cell = nn.GRUCell(3, width)
        self.head = nn.Sequential(nn.Linear(width, width), nn.ELU(), nn.Linear(width, 3))

    def forward(self, state: Tensor, obs: Tensor, act: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The next state, the next observation, and the reward in tenths."""
        state = self.cell(torch.cat([obs, act], 1), state)
        made = self.head(state)
        return state, obs + made[:, :2], made[:, 2]

    def loss(self, batch: Any) -> Tensor:
        """Errors along sequences: the model sees their first steps, and imagines the others."""
        state, errors = torch.zeros(len(batch.obs), self.width), []
        obs = batch.obs[:, 0]
        for t in range(batch.obs.shape[1]):
            if t < WARM_UP:
                obs = batch.obs[:, t]
            state, obs, reward = self(state, obs, batch.act[:, t])
            error = ((obs - batch.next_obs[:, t]) ** 2).sum(1) + (
                reward - batch.rew[:, t] / 10
            ) ** 2
            errors.append(error)
        return (torch.stack(errors, 1) * batch.mask).sum() / batch.mask.sum()

    def plan(self, state: Tensor, obs: Tensor) -> Tensor:
        """The first actions of the best plans for n environments, by the cross-entropy method."""
        n = len(obs)
        mean, std = torch.zeros(n, 1, HORIZON), torch.full((n, 1, HORIZON), TORQUE)
        for _ in range(ITERATIONS):
            plans = mean + std * torch.randn(n, PLANS, HORIZON)
            plans = plans.clamp(-TORQUE, TORQUE)
            total = torch.zeros(n * PLANS)
            imagined = state.repeat_interleave(PLANS, 0), obs.repeat_interleave(PLANS, 0)
            for act in plans.reshape(n * PLANS, HORIZON, 1).unbind(1):
                *imagined, reward = self(*imagined, act)
                total += reward
            best = total.reshape(n, PLANS).topk(BEST, 1).indices
            chosen = plans.gather(1, best[:, :, None].expand(-1, -1, HORIZON))
            mean, std = chosen.mean(1, keepdim=True), chosen.std(1, keepdim=True)
        return mean[:, :, 0]


@torch.no_grad()  # type: ignore[untyped-decorator]
def play(env: Any, model: Model, *, noise: float, by_chance: bool = False) -> float:
    """An episode of each environment; the mean return."""
    obs, _ = env.reset()
    state, total = torch.zeros(len(obs), model.width), 0.0
    for _ in range(LENGTH):
        seen = torch.as_tensor(obs)
        if by_chance:
            act = torch.as_tensor(env.action_space.sample())
        else:
            act = model.plan(state, seen) + noise * torch.randn(len(obs), 1)
            act = act.clamp(-TORQUE, TORQUE)
            state, *_ = model(state, seen, act)
        obs, reward, *_ = env.step(act.numpy())
        total += float(reward.mean())
    return total


def main() -> None:
    """Play and learn in turns, draw the learning curve, evaluate."""
    parser = argparse.ArgumentParser(description="Planning in a recurrent model of Pendulum-v1.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=10, help="of four episodes each")
    parser.add_argument("--quick", action="store_true", help="too little to learn")
    parser.add_argument("--picture", type=Path, default=Path("world_model.png"))
    options = parser.parse_args()
    rounds, updates, episodes = (1, 5, 2) if options.quick else (options.rounds, UPDATES, 20)
    torch.set_num_threads(1)
    torch.manual_seed(options.seed)

    made: dict[str, Any] = {"vectorization_mode": "sync", "wrappers": [Twice]}
    env = GymnasiumRecorder(gymnasium.make_vec("Pendulum-v1", num_envs=ENVS, **made))
    buffer = env.attach(ReplayBuffer(50_000, env.env_dict, next_of="obs", seed=options.seed))
    env.reset(seed=options.seed)
    env.action_space.seed(options.seed)
    # Sequences start at any step. They lie in one episode: behind its end ``mask`` is false.
    batches = buffer.view(Sequences(IMAGINED, burn_in=WARM_UP)).batches(BATCH, to="torch")
    model = Model()
    optimizer = torch.optim.Adam(model.parameters(), LEARNING_RATE, fused=True)
    returns, losses = [], []
    for number in (bar := trange(rounds + 1, unit="round")):
        returns.append(play(env, model, noise=NOISE, by_chance=number == 0))
        optimizer.param_groups[0]["lr"] = LEARNING_RATE * (1 - 0.9 * number / rounds)
        for _ in range(updates):
            loss = model.loss(next(batches))
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 10.0)
            optimizer.step()
            losses.append(loss.item())
        bar.set_postfix_str(f"return {returns[-1]:.0f}, loss {np.mean(losses[-updates:]):.3f}")

    figure = Figure(figsize=(10, 4), layout="constrained")
    played, learned = figure.subplots(1, 2)
    steps = ENVS * LENGTH * np.arange(1, len(returns) + 1)
    played.plot(steps, returns, marker=".")
    played.set(title="Planning", xlabel="step", ylabel=f"return, {ENVS} episodes")
    learned.semilogy(losses)
    learned.set(title="Model", xlabel="update", ylabel="loss")
    figure.savefig(options.picture, dpi=110)
    print(f"Picture: {options.picture.resolve()}")

    test = gymnasium.make_vec("Pendulum-v1", num_envs=episodes, **made)
    test.reset(seed=10_000)
    score = play(test, model, noise=0.0)
    print(f"score: {score:.1f} (mean return of {episodes} episodes)")


if __name__ == "__main__":
    main()
