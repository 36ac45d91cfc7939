"""A buffer beside plain lists of what was added to it: what the tests of episodes compare."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from cpprb_like import ReplayBuffer

Array = npt.NDArray[Any]

FIELDS: dict[str, Any] = {
    "x": {"shape": (), "dtype": "i8"},
    "obs": {"shape": 2, "dtype": "i4"},
    "rew": {},
    "terminated": {"shape": (), "dtype": bool},
    "truncated": {"shape": (), "dtype": "f4"},
}


@dataclass
class Step:
    """A row: what it says, and what is known of it."""

    row: int
    env: int
    values: dict[str, Any]
    present: bool = True
    deleted: bool = False
    terminated: bool = False
    truncated: bool = False

    @property
    def is_end(self) -> bool:
        """Whether it ended an episode."""
        return self.terminated or self.truncated

    @property
    def x(self) -> int:
        """The number of the step, never 0."""
        return int(self.values["x"])


@dataclass
class History:
    """A buffer, and the list of all rows since the last clear."""

    rb: ReplayBuffer
    rng: np.random.Generator
    p_end: float = 0.15
    p_absent: float = 0.1
    steps: list[Step] = field(default_factory=list)
    count: int = 0

    # ---- what is done to the buffer

    def play(self, actions: int) -> None:
        """Add steps mostly; end episodes by hand, delete and clear at times."""
        for _ in range(actions):
            action = self.rng.random()
            if action < 0.75:
                self.add(1 if self.rb.n_envs > 1 else int(self.rng.integers(1, 6)))
            elif action < 0.87:
                self.add_where()
            elif action < 0.93:
                self.end(int(self.rng.integers(self.rb.n_envs)))
            elif action < 0.99:
                self.delete_one()
            else:
                self.rb.clear()
                self.steps.clear()

    def _new(self, present: bool = True) -> Step:
        self.count += 1
        ends = self.rng.random(2) < (self.p_end, self.p_end / 2)
        values = {
            "x": self.count,
            "obs": [self.count, -self.count],
            "rew": [0.5 * self.count],
            "terminated": bool(ends[0]),
            "truncated": float(ends[1]),
            "next_obs": [self.count + self.rb.n_envs, -self.count - self.rb.n_envs],
        }
        row = len(self.steps)
        return Step(
            row,
            row % self.rb.n_envs,
            values,
            present,
            terminated=bool(ends[0]) and present,
            truncated=bool(ends[1]) and present,
        )

    def _columns(self, steps: list[Step]) -> dict[str, Any]:
        names = [column.name for column in self.rb.ring.columns]
        return {name: [step.values[name] for step in steps] for name in names}

    def add(self, times: int) -> None:
        """Add time steps at once."""
        new = []
        for _ in range(times * self.rb.n_envs):
            new.append(self._new())
            self.steps.append(new[-1])
        self.rb.add(**self._columns(new))

    def add_where(self) -> None:
        """Add a time step in which some environments have none."""
        present = self.rng.random(self.rb.n_envs) > self.p_absent
        new = []
        for there in present.tolist():
            new.append(self._new(there))
            self.steps.append(new[-1])
        self.rb.add_where(present, **self._columns(new))

    def end(self, env: int) -> None:
        """Cut the episode of an environment off."""
        self.rb.on_episode_end(env)
        steps = [step for step in self.steps if step.env == env and step.present]
        if steps and not steps[-1].is_end:
            steps[-1].truncated = True

    def delete_one(self) -> None:
        """Delete one of the episodes that have ended."""
        episodes = self.episodes()
        ended = [number for number, steps in enumerate(episodes) if steps[-1].is_end]
        if ended:
            number = int(self.rng.choice(ended))
            assert self.rb.episodes.delete(number) == len(episodes[number])
            for step in episodes[number]:
                step.deleted = True

    # ---- what is there

    def alive(self) -> list[Step]:
        """The rows in the ring that hold a step."""
        newest = self.steps[-self.rb.capacity :]
        return [step for step in newest if step.present and not step.deleted]

    def stream(self, env: int) -> list[Step]:
        """Those of an environment."""
        return [step for step in self.alive() if step.env == env]

    def episodes(self) -> list[list[Step]]:
        """Those of each episode, the one with the oldest row first."""
        episodes = []
        for env in range(self.rb.n_envs):
            rows = [step for step in self.steps if step.env == env and step.present]
            episode: list[Step] = []
            for step in rows:
                episode.append(step)
                if step.is_end:
                    episodes.append(episode)
                    episode = []
            episodes.append(episode)
        there = set(map(id, self.alive()))
        left = [[step for step in episode if id(step) in there] for episode in episodes]
        return sorted((steps for steps in left if steps), key=lambda steps: steps[0].row)

    def is_first(self, step: Step) -> bool:
        """Whether an episode is known to begin at a row in the ring."""
        newest = self.steps[-self.rb.capacity :]
        before = [
            other
            for other in newest
            if other.env == step.env and other.row < step.row and other.present
        ]
        if before:
            return before[-1].is_end
        return newest[0].row < self.rb.n_envs and newest[0].row <= step.env
