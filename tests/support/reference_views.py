"""The slow, obvious twin of the readings of rows: whole episodes, as lists of steps.

Each step keeps a copy of all its values, next values and stacks included, as they were added; only
sums over several steps are made of what other steps hold.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from cpprb_like.typing import NstepSpec

Array = npt.NDArray[Any]
Values = dict[str, Array]

END_NAMES = ("terminated", "truncated", "done")


@dataclass
class Episode:
    """Steps of one environment, in time order."""

    steps: list[Step] = field(default_factory=list)
    over: bool = False
    terminated: bool = False


@dataclass
class Step:
    """What was added, and where it belongs."""

    values: Values
    episode: Episode
    number: int  # of the steps of its episode, from 0


@dataclass(frozen=True)
class Several:
    """How several steps are read as one."""

    size: int
    gamma: float = 0.99
    rewards: tuple[str, ...] = ()
    ahead: tuple[str, ...] = ()
    discount: bool = False

    def options(self) -> NstepSpec:
        """The same as the buffer takes it."""
        return {
            "size": self.size,
            "gamma": self.gamma,
            "rew": self.rewards,
            "next": self.ahead,
            "discount": self.discount,
        }


class ReferenceViews:
    """The rows of ``n_envs`` environments in turn, of which the newest ``capacity`` are there.

    Rows of several steps are incomplete until these have come, and are there beside the others.
    """

    def __init__(self, capacity: int, n_envs: int = 1, several: Several | None = None) -> None:
        self.capacity = capacity
        self.n_envs = n_envs
        self.several = several
        self.rows: list[Step | None] = []  # by row id; None has no step
        self.past_indexes = self.span
        self.clear()

    # ---- writing -------------------------------------------------------------------------

    def clear(self) -> None:
        """Forget everything, but for the names that rows had."""
        self.past_indexes += -(-len(self.rows) // self.span) * self.span
        self.rows = []
        self.newest = [Episode() for _ in range(self.n_envs)]
        self.oldest = 0  # id of the oldest row that is not left out
        self.finished: set[int] = set()  # rows that were ever complete
        self.first_index = self.past_indexes  # what the row with the id 0 is called for ever

    def add(self, rows: list[Values], present: list[bool] | None = None) -> int | None:
        """Append ``rows``; what ``add`` of the buffer returns."""
        written, oldest, new = len(self.rows), self.oldest, list[int]()
        for i, values in enumerate(rows):
            if present is not None and not present[i]:
                self.rows.append(None)
                self.leave_out()
                continue
            stream = len(self.rows) % self.n_envs
            if self.newest[stream].over:
                self.newest[stream] = Episode()
            episode = self.newest[stream]
            step = Step(
                {name: value.copy() for name, value in values.items()}, episode, len(episode.steps)
            )
            episode.steps.append(step)
            episode.over, episode.terminated = self._ends(values)
            self.rows.append(step)
            new += self.finish()
            self.leave_out()
        if self.several is None or self.several.size == 1:
            return written % self.capacity
        slots = self.capacity + (self.several.size - 1) * self.n_envs
        if self.n_envs > 1 or None in self.rows[-slots:]:
            oldest = self.oldest  # rows that this call has left out do not count
        first = min((row for row in new if row >= oldest), default=None)
        return None if first is None else first % self.span

    def finish(self) -> set[int]:
        """The rows that have become complete since the last call."""
        new = set(self.complete()) - self.finished
        self.finished |= new
        return new

    def leave_out(self) -> None:
        """Leave rows out while there are more than ``capacity`` beside the incomplete ones."""
        while len(self.rows) - self.oldest - len(self.incomplete()) > self.capacity:
            self.oldest += 1

    @staticmethod
    def _ends(values: Values) -> tuple[bool, bool]:
        """Whether a step is the last of its episode, and whether the episode was terminated."""
        terminated, truncated, done = (
            name in values and bool(np.ravel(values[name])[0])
            for name in ("terminated", "truncated", "done")
        )
        if "terminated" in values:
            return terminated or truncated or done, terminated
        return truncated or done, done and not truncated

    def on_episode_end(self, env: int | None = None) -> None:
        """Cut the episodes that are open: of one environment, or of all."""
        for stream in range(self.n_envs) if env is None else [env]:
            if self.newest[stream].steps:
                self.newest[stream].over = True
        self.finish()
        self.leave_out()

    # ---- reading -------------------------------------------------------------------------

    @property
    def span(self) -> int:
        """Slots that there are: with one environment, incomplete rows have none."""
        size = 1 if self.several is None else self.several.size
        return self.capacity + (size - 1) * self.n_envs * (self.n_envs > 1)

    def complete(self) -> list[int]:
        """The rows that were ever complete, oldest first."""
        size = 1 if self.several is None else self.several.size
        return [
            row
            for row, step in enumerate(self.rows)
            if step is not None
            and (step.episode.over or step.number + size <= len(step.episode.steps))
        ]

    def incomplete(self) -> list[int]:
        """The rows that are not left out and have yet to be followed by others."""
        complete = set(self.complete())
        return [
            row
            for row in range(self.oldest, len(self.rows))
            if self.rows[row] is not None and row not in complete
        ]

    def drawable(self) -> list[int]:
        """The rows that can be drawn, oldest first."""
        return [row for row in self.complete() if row >= self.oldest]

    def slots(self) -> dict[int, int]:
        """The rows that can be drawn by slot, in the order of the slots."""
        return dict(sorted((row % self.span, row) for row in self.drawable()))

    @property
    def slots_in_use(self) -> int:
        """How many slots hold a row, or an absent one."""
        rows = self.rows
        stop = len(rows)
        if self.n_envs == 1:
            stop = min(self.incomplete(), default=stop)
        return min(stop, self.span)

    def episode_len(self, env: int) -> int:
        """Steps of an environment since its last end."""
        return 0 if self.newest[env].over else len(self.newest[env].steps)

    def index(self, row: int) -> int:
        """What names a row for ever."""
        return self.first_index + row

    def added(self, row: int) -> Values:
        """A row as it was added, whatever ``several`` makes of it."""
        step = self.rows[row]
        assert step is not None
        return step.values

    def part(self, row: int, fields: list[str], **options: Any) -> Values:
        """Some fields of a row, and whatever is no field, as ``read`` gives them."""
        whole = self.read(row, **options)
        no_fields = [name for name in whole if name not in self.added(row)]
        return {name: whole[name] for name in (*fields, *no_fields)}

    def read(self, row: int, size: int | None = None, gamma: float | None = None) -> Values:
        """A row as a batch holds it; ``size`` and ``gamma`` in place of those of ``several``."""
        step = self.rows[row]
        assert step is not None
        if self.several is None:
            return step.values
        size = self.several.size if size is None else size
        gamma = self.several.gamma if gamma is None else gamma
        steps = step.episode.steps[step.number : step.number + size]
        last = steps[-1]
        values = dict(step.values)
        for name in (*self.several.ahead, *END_NAMES):
            if name in values:
                values[name] = last.values[name]
        for name in self.several.rewards:
            total = sum(
                gamma**i * following.values[name].astype(np.float64)
                for i, following in enumerate(steps)
            )
            values[name] = np.asarray(total, step.values[name].dtype)
        if self.several.discount:
            over = last.episode.terminated and last is last.episode.steps[-1]
            single = any(values[name].shape == (1,) for name in self.several.rewards)
            discount = 0.0 if over else gamma ** len(steps)
            values["discount"] = np.full((1,) if single else (), discount, np.float32)
        return values
