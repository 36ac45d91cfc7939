"""Rainbow: DQN with four improvements, on frames that the buffer stores once.

Algorithm: four of the six parts of Rainbow (Hessel et al. 2018, "Rainbow: Combining Improvements
  in Deep Reinforcement Learning"): double and dueling networks, prioritized replay and 3-step
  returns; without noisy and distributional networks.
Environment: a small stand-in for Atari, so that an agent learns in minutes. On 10 x 10 pixels a
  ball falls and bounces off the walls; the player catches it with a bat of two pixels. One frame
  does not tell where the ball moves to, so the network sees four. ``--env ALE/Pong-v5`` plays an
  Atari game with the same program, which takes a day to learn.
Score: at least 10 (mean return of 20 episodes); the return is the balls caught before the first
  miss, 20 at most. A random player catches less than 1.
Time: 3 minutes on one core.
"""

import argparse
import copy
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from gymnasium.wrappers import FrameStackObservation
from matplotlib.figure import Figure
from torch import Tensor, nn
from tqdm import trange

from cpprb_like import FrameStacks, GymnasiumRecorder, NStep, Prioritized, ReplayBuffer
from cpprb_like.schedules import Linear

DEPTH, BATCH, WARM_UP = 4, 32, 1_000  # frames of a stack, steps drawn, steps before learning
GAMMA, TAU, LEARNING_RATE, EXPLORATION = 0.97, 0.01, 1e-3, 0.02
SIZE, BALLS = 10, 20


class Catch(gymnasium.Env[Any, Any]):
    """Frames of 10 x 10 pixels. Actions: stay, left, right."""

    observation_space = spaces.Box(0, 255, (SIZE, SIZE), np.uint8)
    action_space = spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """A ball at the top, the bat anywhere."""
        super().reset(seed=seed)
        self.bat, self.caught = int(self.np_random.integers(SIZE - 1)), 0
        self._throw()
        return self._frame(), {}

    def _throw(self) -> None:
        self.y, self.x = 0, int(self.np_random.integers(SIZE))
        self.dx = int(self.np_random.choice([-1, 1]))

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Move the bat, and the ball by one pixel."""
        self.bat = min(max(self.bat + (0, -1, 1)[action], 0), SIZE - 2)
        if not 0 <= self.x + self.dx < SIZE:
            self.dx = -self.dx
        self.y, self.x = self.y + 1, self.x + self.dx
        if self.y < SIZE - 1:
            return self._frame(), 0.0, False, False, {}
        frame = self._frame()
        if self.x not in (self.bat, self.bat + 1):
            return frame, 0.0, True, False, {}
        self.caught += 1
        self._throw()
        return frame, 1.0, False, self.caught == BALLS, {}

    def _frame(self) -> Any:
        frame = np.zeros((SIZE, SIZE), np.uint8)
        frame[self.y, self.x] = frame[-1, self.bat : self.bat + 2] = 255
        return frame


def make(name: str) -> gymnasium.Env[Any, Any]:
    """The environment, whose observations are single frames."""
    if name == "catch":
        return Catch()
    import ale_py  # noqa: PLC0415 (only for Atari)

    gymnasium.register_envs(ale_py)
    return gymnasium.wrappers.AtariPreprocessing(gymnasium.make(name, frameskip=1))


class Network(nn.Module):  # type: ignore[misc]
    """A dueling network: the value of a stack, and what each action adds to it."""

    def __init__(self, shape: tuple[int, ...], actions: int) -> None:
        super().__init__()
        if shape[-1] == SIZE:
            seen: list[nn.Module] = [nn.Conv2d(DEPTH, 16, 3), nn.ReLU()]
        else:  # of Mnih et al. (2015)
            seen = [nn.Conv2d(DEPTH, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU()]
            seen += [nn.Conv2d(64, 64, 3), nn.ReLU()]
        self.seen = nn.Sequential(*seen, nn.Flatten())
        width = self.seen(torch.zeros(1, DEPTH, *shape)).shape[1]
        self.value = nn.Sequential(nn.Linear(width, 128), nn.ReLU(), nn.Linear(128, 1))
        self.added = nn.Sequential(nn.Linear(width, 128), nn.ReLU(), nn.Linear(128, actions))

    def forward(self, stacks: Tensor) -> Tensor:
        """Q of each action, shape (n, actions)."""
        seen = self.seen(stacks.float() / 255)
        added = self.added(seen)
        return self.value(seen) + added - added.mean(1, keepdim=True)

    def act(self, stack: Any) -> int:
        """The best action."""
        with torch.no_grad():
            return int(self(torch.as_tensor(np.asarray(stack))[None]).argmax())


def train(name: str, seed: int, steps: int, capacity: int) -> tuple[Network, list[Any]]:
    """Act, store, draw, learn; the network, and step and return of each evaluation."""
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    # The recorder is inside of the wrapper that stacks, so it stores single frames. ``next_of``
    # stores no frame a second time as a next observation; the view makes stacks of what is drawn.
    recorder = GymnasiumRecorder(make(name))
    env = FrameStackObservation(recorder, DEPTH)
    sampler = Prioritized(0.5, beta=Linear(0.4, 1.0, steps))
    buffer = ReplayBuffer(capacity, recorder.env_dict, next_of="obs", sampler=sampler, seed=seed)
    recorder.attach(buffer)
    layers = FrameStacks({"obs": DEPTH}, axis=0), NStep(3, gamma=GAMMA, discount=True)
    batches = buffer.view(*layers).batches(BATCH, to="torch")
    actions = int(env.action_space.n)  # type: ignore[attr-defined]
    network = Network(recorder.observation_space.shape or (), actions)
    slow = copy.deepcopy(network)
    optimizer = torch.optim.Adam(network.parameters(), LEARNING_RATE, fused=True)
    curve, every = [(0, 0.0)], max(1, min(2_000, steps // 8))
    stack, _ = env.reset(seed=seed)
    for step in (bar := trange(1, steps + 1, unit="step", mininterval=0.5)):
        explores = rng.random() < max(EXPLORATION, 1 - 4 * step / steps)
        action = int(rng.integers(actions)) if explores else network.act(stack)
        stack, _, terminated, truncated, _ = env.step(action)
        if terminated or truncated:
            stack, _ = env.reset()
        if step < WARM_UP:
            continue

        batch = next(batches)
        with torch.no_grad():
            best = network(batch.next_obs).argmax(1, keepdim=True)
            value = slow(batch.next_obs).gather(1, best)[:, 0]
            target = batch.rew + batch.discount * value  # discount: gamma ** 3, 0 at a miss
        values = network(batch.obs).gather(1, batch.act[:, None])[:, 0]
        errors = nn.functional.smooth_l1_loss(values, target, reduction="none")
        optimizer.zero_grad()
        (batch.weights * errors).mean().backward()
        optimizer.step()
        buffer.update_priorities(batch.indexes, (values.detach() - target).abs())
        with torch.no_grad():
            for one, other in zip(slow.parameters(), network.parameters(), strict=True):
                one.lerp_(other, TAU)
        if step % every == 0:
            curve.append((step, evaluate(name, network, 5)))
            bar.set_postfix_str(f"return {curve[-1][1]:.1f}")
    print(buffer)  # what the frames take
    return network, curve


def evaluate(name: str, network: Network, episodes: int) -> float:
    """Mean return without exploration."""
    env, total = FrameStackObservation(make(name), DEPTH), 0.0
    for episode in range(episodes):
        stack, _ = env.reset(seed=10_000 + episode)
        over = False
        while not over:
            stack, reward, terminated, truncated, _ = env.step(network.act(stack))
            total, over = total + float(reward), terminated or truncated
    return total / episodes


def main() -> None:
    """Train, draw the learning curve, evaluate."""
    parser = argparse.ArgumentParser(description="Rainbow on frames.")
    parser.add_argument("--env", default="catch", help="'catch', or a game such as ALE/Pong-v5")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=16_000, help="environment steps")
    parser.add_argument("--capacity", type=int, default=100_000, help="steps of the buffer")
    parser.add_argument("--quick", action="store_true", help="too few steps to learn")
    parser.add_argument("--picture", type=Path, default=Path("rainbow_frames.png"))
    options = parser.parse_args()
    steps, episodes = (1_100, 1) if options.quick else (options.steps, 20)
    torch.set_num_threads(1)

    network, curve = train(options.env, options.seed, steps, options.capacity)
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    axes.plot(*zip(*curve, strict=True), marker=".")
    axes.set(title=f"Rainbow: {options.env}", xlabel="step", ylabel="return, 5 episodes")
    figure.savefig(options.picture, dpi=110)
    print(f"Picture: {options.picture.resolve()}")
    score = evaluate(options.env, network, episodes)
    print(f"score: {score:.1f} (mean return of {episodes} episodes)")


if __name__ == "__main__":
    main()
