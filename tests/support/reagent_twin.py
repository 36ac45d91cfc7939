"""The slow, obvious twin of ReAgent's buffer: whole episodes as lists, and every rule by itself."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

Array = npt.NDArray[Any]
SHAPES: dict[str, tuple[int, ...]] = {
    "observation": (2,),
    "action": (),
    "reward": (),
    "extra": (2, 1),
}


@dataclass(frozen=True)
class Shape:
    """The parameters of a buffer."""

    stack_size: int
    horizon: int
    capacity: int


@dataclass(frozen=True)
class Step:
    """Arguments of one call of ``add`` beside the values."""

    terminal: bool
    truncated: bool
    final: bool


@dataclass
class Episode:
    """Steps by number, the row of the first, and how it ended."""

    first_row: int
    steps: list[int] = field(default_factory=list)
    is_over: bool = False
    is_terminal: bool = False
    final: int | None = None


def values(number: int) -> dict[str, Any]:
    """The values of a step, none of which is zero, and none of which another step has."""
    return {
        "observation": np.array([number + 1, -number - 1], np.float32),
        "action": number + 1,
        "reward": float(number + 1),
        "extra": np.array([[number + 1], [number + 0.5]], np.float32),
    }


def final_values(number: int) -> dict[str, Any]:
    """The row behind an episode that ended with this step: an observation, and else zeros."""
    return {
        "observation": np.array([-number - 1000, number + 1000], np.float32),
        "action": 0,
        "reward": 0.0,
        "extra": np.zeros((2, 1), np.float32),
    }


class Twin:
    """All steps that were ever added, and which transitions ReAgent gives out of them."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.rows = 0
        self.count = 0
        self.episodes: list[Episode] = []

    def add(self, step: Step) -> dict[str, Any]:
        """Take note of a step; the arguments of ``add``."""
        if not self.episodes or self.episodes[-1].is_over:
            self.rows += self.shape.stack_size - 1
            self.episodes.append(Episode(self.rows))
        episode = self.episodes[-1]
        number = self.count
        self.count += 1
        self.rows += 1
        episode.steps.append(number)
        episode.is_over = step.terminal or step.truncated
        episode.is_terminal = step.terminal
        fields = values(number) | {"terminal": step.terminal}
        if step.truncated:
            fields["truncated"] = True
        if step.final and episode.is_over:
            episode.final = number
            self.rows += 1
            fields["final_observation"] = final_values(number)["observation"]
        return fields

    def valid(self) -> dict[int, tuple[Episode, int]]:
        """The slots that can be drawn, in ascending order: an episode, and a place in it."""
        oldest = max(0, self.rows - self.shape.capacity)
        found = {}
        for episode in self.episodes:
            knows_end = episode.is_terminal or episode.final is not None
            for place in range(len(episode.steps)):
                row = episode.first_row + place
                has_stack = row - (self.shape.stack_size - 1) >= oldest
                has_future = place + self.shape.horizon < len(episode.steps) or knows_end
                if has_stack and has_future:
                    found[row % self.shape.capacity] = episode, place
        return dict(sorted(found.items()))

    def stack(self, name: str, episode: Episode, place: int) -> Array:
        """The stack that ends at a place of an episode: behind the last step, at the final row."""
        blank = np.zeros(SHAPES[name], np.float32)
        if place == len(episode.steps) and episode.final is None:
            return np.stack([blank] * self.shape.stack_size, axis=-1)
        frames = []
        for number in range(place - self.shape.stack_size + 1, place + 1):
            if number < 0:
                frames.append(blank)
            elif number < len(episode.steps):
                frames.append(np.asarray(values(episode.steps[number])[name]))
            else:
                assert episode.final is not None
                frames.append(np.asarray(final_values(episode.final)[name]))
        return np.stack(frames, axis=-1)

    def steps(self, episode: Episode, place: int) -> int:
        """How many steps the transition from a place on has."""
        return min(self.shape.horizon, len(episode.steps) - place)


@st.composite
def shapes(draw: st.DrawFn) -> Shape:
    """Parameters of small buffers, from the least capacity on."""
    stack_size, horizon = draw(st.integers(1, 4)), draw(st.integers(1, 5))
    return Shape(stack_size, horizon, stack_size + horizon + draw(st.integers(0, 20)))


def histories(*, truncation: bool = True) -> st.SearchStrategy[list[Step]]:
    """Steps of episodes that are mostly short, some longer than the ring."""
    flag = st.booleans() if truncation else st.just(False)
    plain = st.just(Step(False, False, False))
    end = st.builds(Step, st.booleans() if truncation else st.just(True), flag, flag)
    runs = st.tuples(st.integers(0, 30) | st.integers(0, 3), end | plain)
    return st.lists(runs, max_size=8).map(
        lambda pairs: [
            step for n, last in pairs for step in [Step(False, False, False)] * n + [last]
        ]
    )
