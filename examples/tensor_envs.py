"""CartPole and Pendulum of Gymnasium as many environments in tensors of PyTorch, on any device.

``device_td3.py`` learns in them. They have the methods of Gymnasium's ``VectorEnv`` with
``AutoresetMode.SAME_STEP``: where an episode ends, ``step`` returns the first observation of the
next one, and ``info["final_obs"]`` has the last one of the episode. Nothing waits for the device.
"""

import math
from typing import Any

import torch
from torch import Tensor


class TensorEnvs:
    """Environments that step together. Subclasses say how states begin, change and are observed."""

    limit: int  # steps of an episode
    obs_size: int
    low: Tensor  # of states in which episodes begin
    high: Tensor

    def __init__(self, num_envs: int, *, device: str | torch.device = "cpu", seed: int = 0) -> None:
        self.num_envs, self.device = num_envs, torch.device(device)
        self.generator = torch.Generator(self.device)
        self.low, self.high = self.low.to(self.device), self.high.to(self.device)
        self.reset(seed=seed)

    def begin(self) -> Tensor:
        """States in which episodes begin, shape (num_envs, numbers of a state)."""
        shape = (self.num_envs, len(self.low))
        units = torch.rand(shape, generator=self.generator, device=self.device)
        return self.low + units * (self.high - self.low)

    def advance(self, state: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The next states, rewards, and whether the states are final."""
        raise NotImplementedError

    def observe(self, state: Tensor) -> Tensor:
        """The observations of states, shape (num_envs, obs_size)."""
        return state

    def reset(self, *, seed: int | None = None) -> tuple[Tensor, dict[str, Any]]:
        """Begin an episode in each environment."""
        if seed is not None:
            self.generator.manual_seed(seed)
        self.state = self.begin()
        self.time = torch.zeros(self.num_envs, dtype=torch.int64, device=self.device)
        return self.observe(self.state), {}

    def step(self, action: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, dict[str, Any]]:
        """Take an action in each environment, and begin the next episodes where some end."""
        state, reward, terminated = self.advance(self.state, action)
        self.time = self.time + 1
        truncated = (self.time >= self.limit) & ~terminated
        over = terminated | truncated
        info = {"final_obs": self.observe(state), "_final_obs": over}
        self.state = torch.where(over[:, None], self.begin(), state)
        self.time = self.time * ~over
        return self.observe(self.state), reward, terminated, truncated, info


class Pendulum(TensorEnvs):
    """``Pendulum-v1``: swing a pendulum up. Actions are torques of shape (num_envs, 1)."""

    limit, obs_size, act_size = 200, 3, 1
    torque = 2.0  # at most
    low, high = torch.tensor([-math.pi, -1.0]), torch.tensor([math.pi, 1.0])  # angle and its speed

    def advance(self, state: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """A step of 0.05 s."""
        angle, speed = state.unbind(1)
        torque = action[:, 0].clamp(-self.torque, self.torque)
        away = (angle + math.pi) % (2 * math.pi) - math.pi  # from upright
        reward = -(away**2 + 0.1 * speed**2 + 0.001 * torque**2)
        speed = (speed + (15 * angle.sin() + 3 * torque) * 0.05).clamp(-8, 8)
        return torch.stack([angle + speed * 0.05, speed], 1), reward, torch.zeros_like(away).bool()

    def observe(self, state: Tensor) -> Tensor:
        """Cosine and sine of the angle, and the speed."""
        angle, speed = state.unbind(1)
        return torch.stack([angle.cos(), angle.sin(), speed], 1)


class CartPole(TensorEnvs):
    """``CartPole-v1``: balance a pole. Actions are 0 or 1, shape (num_envs,)."""

    limit, obs_size, actions = 500, 4, 2
    low, high = torch.full((4,), -0.05), torch.full((4,), 0.05)

    def advance(self, state: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """A step of 0.02 s: masses of 1 and 0.1 kg, a pole of 1 m, and a force of 10 N."""
        x, v, angle, speed = state.unbind(1)
        cos, sin = angle.cos(), angle.sin()
        push = (20.0 * action - 10.0 + 0.05 * speed**2 * sin) / 1.1
        turn = (9.8 * sin - cos * push) / (0.5 * (4 / 3 - 0.1 * cos**2 / 1.1))
        pull = push - 0.05 * turn * cos / 1.1
        changes = torch.stack([v, pull, speed, turn], 1)
        state = state + 0.02 * changes
        terminated = (state[:, 0].abs() > 2.4) | (state[:, 2].abs() > math.radians(12))
        return state, torch.ones_like(x), terminated
