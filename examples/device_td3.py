"""TD3 in the manner of FastTD3: many environments, large batches, and rows on their device.

Algorithm: TD3 (Fujimoto et al. 2018) with the settings of FastTD3 (Seo et al. 2025): environments
  that step together in tensors, several updates a step with large batches, noise of another scale
  in each environment, and fast target networks. Its distributional critic is left out. Nothing
  between two evaluations waits for the device, and ``--device cuda`` runs the same program there.
Environment: the Pendulum of tensor_envs.py.
Score: at least -200 (mean return of 100 episodes).
Time: a minute on one core.
"""

import argparse
import copy
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from tensor_envs import Pendulum
from torch import Tensor, nn
from tqdm import trange

from cpprb_like.device import DeviceRecorder, DeviceReplay
from cpprb_like.views import NStep

HIDDEN, LEARNING_RATE = 128, 1e-3
GAMMA, TAU = 0.97, 0.1
WARM_UP, UPDATES, ACTOR_EVERY = 10, 4, 2  # steps with random actions, updates a step, and of those
NOISE, TARGET_NOISE, NOISE_CLIP = (0.05, 0.4), 0.2, 0.5  # shares of the greatest torque


def mlp(inputs: int, *last: nn.Module) -> nn.Sequential:
    """Two hidden layers and one number."""
    hidden = [nn.Linear(inputs, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN), nn.ReLU()]
    return nn.Sequential(*hidden, nn.Linear(HIDDEN, 1), *last)


class TD3:
    """An actor of torques from -1 to 1, two critics, and slow copies of all."""

    def __init__(self, device: torch.device) -> None:
        self.actor = mlp(Pendulum.obs_size, nn.Tanh()).to(device)
        width = Pendulum.obs_size + Pendulum.act_size
        self.critics = nn.ModuleList([mlp(width), mlp(width)]).to(device)
        self.slow_actor, self.slow_critics = copy.deepcopy((self.actor, self.critics))
        self.actor_optimizer = torch.optim.Adam(self.actor.parameters(), LEARNING_RATE, fused=True)
        self.optimizer = torch.optim.Adam(self.critics.parameters(), LEARNING_RATE, fused=True)

    def update_critics(self, batch: dict[str, Tensor]) -> None:
        """A step towards n-step returns; ``discount`` is 0 where the episode is over."""
        with torch.no_grad():
            noise = (TARGET_NOISE * torch.randn_like(batch["act"])).clamp(-NOISE_CLIP, NOISE_CLIP)
            action = (self.slow_actor(batch["next_obs"]) + noise).clamp(-1, 1)
            pairs = torch.cat([batch["next_obs"], action], 1)
            least = torch.minimum(*[critic(pairs) for critic in self.slow_critics])
            target = batch["rew"][:, None] + batch["discount"][:, None] * least
        pairs = torch.cat([batch["obs"], batch["act"]], 1)
        loss = sum(nn.functional.mse_loss(critic(pairs), target) for critic in self.critics)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()

    def update_actor(self, obs: Tensor) -> None:
        """A step towards actions of greater value, and of the slow copies."""
        loss = -self.critics[0](torch.cat([obs, self.actor(obs)], 1)).mean()
        self.actor_optimizer.zero_grad()
        loss.backward()
        self.actor_optimizer.step()
        with torch.no_grad():
            for slow, fast in ((self.slow_actor, self.actor), (self.slow_critics, self.critics)):
                for one, other in zip(slow.parameters(), fast.parameters(), strict=True):
                    one.lerp_(other, TAU)


class Torques(Pendulum):
    """Actions from -1 to 1, which are shares of the greatest torque."""

    def advance(self, state: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """A step of 0.05 s."""
        return super().advance(state, action * self.torque)


@torch.no_grad()  # type: ignore[untyped-decorator]
def evaluate(actor: nn.Module, device: torch.device, episodes: int) -> float:
    """The mean return without noise."""
    envs = Torques(episodes, device=device, seed=10_000)
    obs, _ = envs.reset()
    total = torch.zeros(episodes, device=device)
    for _ in range(envs.limit):
        obs, reward, *_ = envs.step(actor(obs))
        total += reward
    return float(total.mean())


def train(options: argparse.Namespace) -> tuple[nn.Module, list[tuple[int, float]]]:
    """Act, store, draw, learn; the actor, and step and mean return of each evaluation."""
    torch.manual_seed(options.seed)
    device, n = torch.device(options.device), options.num_envs
    fields: dict[str, Any] = {
        "obs": {"shape": Pendulum.obs_size},
        "act": {"shape": Pendulum.act_size},
        "rew": {"shape": ()},
        "terminated": {"shape": (), "dtype": torch.bool},
        "truncated": {"shape": (), "dtype": torch.bool},
    }
    # Next observations are read from the rows after. Only the last ones of episodes lie beside.
    replay = DeviceReplay(
        n * options.rows, fields, n_envs=n, next_of="obs", device=device, seed=options.seed
    )
    view = replay.view(NStep(options.n_step, gamma=GAMMA, discount=True))
    envs = DeviceRecorder(replay, Torques(n, device=device, seed=options.seed))  # it adds the steps
    td3 = TD3(device)
    scale = NOISE[0] + torch.rand(n, 1, device=device) * (NOISE[1] - NOISE[0])

    obs, curve, every = envs.reset(), [], max(1, options.steps // 10)
    for step in (bar := trange(1, options.steps + 1, unit="step", mininterval=0.5)):
        with torch.no_grad():
            noise = torch.randn(n, 1, device=device)
            action = noise if step <= WARM_UP else td3.actor(obs) + noise * scale
            obs, *_ = envs.step(action.clamp(-1, 1))
        for update in range(UPDATES if step > WARM_UP else 0):
            batch = view.sample(options.batch_size)
            td3.update_critics(batch)
            if update % ACTOR_EVERY == 0:
                td3.update_actor(batch["obs"])
        if step % every == 0:
            curve.append((step, evaluate(td3.actor, device, 20)))
            bar.set_postfix_str(f"return {curve[-1][1]:.0f}")
    return td3.actor, curve


def main() -> None:
    """Train, draw the learning curve, evaluate."""
    parser = argparse.ArgumentParser(description="TD3 on many pendulums in tensors.")
    parser.add_argument("--device", default="cpu", help="of environments, rows and networks")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=600, help="of all environments")
    parser.add_argument("--num-envs", type=int, default=128)
    parser.add_argument("--batch-size", type=int, default=512)
    parser.add_argument("--rows", type=int, default=1_000, help="of each environment")
    parser.add_argument("--n-step", type=int, default=1, help="steps of returns")
    parser.add_argument("--quick", action="store_true", help="too few steps to learn")
    parser.add_argument("--picture", type=Path, default=Path("device_td3.png"))
    options = parser.parse_args()
    if options.quick:
        options.steps = 30
    torch.set_num_threads(1)

    actor, curve = train(options)
    score = evaluate(actor, torch.device(options.device), 100)
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    axes.plot(*zip(*curve, strict=True), marker=".")
    axes.set(title="TD3 on the device", xlabel="step of all environments", ylabel="mean return")
    figure.savefig(options.picture, dpi=110)
    print(f"Picture: {options.picture.resolve()}")
    print(f"score: {score:.1f} (mean return of 100 episodes)")


if __name__ == "__main__":
    main()
