"""ReAgent's buffers beside threads that add, and cut short: see ``test_together``."""

from __future__ import annotations

import copy
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from beside_writers import FRAME, SIZE, check_together, frames_of
from interruptions import cut_everywhere
from optional import need

torch: Any = need("torch", "make test-torch")

from cpprb_like.compat.reagent import (
    PrioritizedReplayBuffer,
    ReplayBuffer,
)

EPISODE = 7
DEPTH = 3
HORIZON = 2


class Uniform:
    """A step has its number in its observation, action and reward; some episodes are truncated."""

    def __init__(self) -> None:
        self.rb = self.make()
        self.x = 0
        for _ in range(SIZE + 5):
            self.add()

    def make(self) -> Any:
        return ReplayBuffer(DEPTH, SIZE, 20, update_horizon=HORIZON, gamma=1.0)

    def more(self) -> dict[str, Any]:
        return {}

    def add(self) -> None:
        self.x += 1
        episode, is_last = self.x // EPISODE, self.x % EPISODE == 0
        self.rb.add(
            observation=frames_of(np.array(self.x)),
            action=self.x,
            reward=float(self.x),
            terminal=is_last and episode % 3 > 0,
            **({"truncated": True} if is_last and episode % 3 == 0 else {}),
            **({"final_observation": np.full(FRAME, self.x + 1)} if is_last else {}),
            **self.more(),
        )

    def check(self, batch: Any) -> None:
        x = batch.action[:, -1].numpy()
        steps, first = batch.step[:, 0].numpy(), (x - 1) // EPISODE * EPISODE + 1
        assert (steps == np.minimum(HORIZON, first + EPISODE - x)).all(), "too many steps"
        after = x + steps
        for stacks, newest in ((batch.state, x), (batch.next_state, after)):
            numbers = stacks.numpy()[:, 0, 0, :]
            assert (stacks.numpy() == numbers[:, None, None, :]).all(), "a torn frame"
            wanted = newest[:, None] + np.arange(1 - DEPTH, 1)
            wanted[wanted < first[:, None]] = 0
            assert (numbers == wanted).all(), "a frame of another step"
        assert (batch.reward[:, 0].numpy() == (2 * x + steps - 1) * steps / 2).all(), "a wrong sum"
        is_last = after == first + EPISODE
        is_terminal = is_last & ((first + EPISODE - 1) // EPISODE % 3 > 0)
        assert (batch.terminal[:, 0].numpy() == is_terminal).all(), "another end"

    def sample(self) -> None:
        self.check(self.rb.sample_transition_batch())

    def sample_all(self) -> None:
        self.check(self.rb.sample_all_valid_transitions())

    def sample_indices(self) -> None:
        with suppress(IndexError):  # not valid any more
            self.check(self.rb.sample_transition_batch(indices=self.rb.sample_index_batch(20)))


class ByPriority(Uniform):
    """The same, drawn by priority."""

    def make(self) -> Any:
        return PrioritizedReplayBuffer(DEPTH, SIZE, 20, HORIZON, 1.0)

    def more(self) -> dict[str, Any]:
        return {"priority": float(self.x)}

    def check(self, batch: Any) -> None:
        super().check(batch)
        x = batch.action[:, -1].numpy()
        assert (batch.sampling_probabilities[:, 0].numpy() == x).all(), "another's priority"

    def weigh(self) -> None:
        """Priorities that are what they were."""
        batch = self.rb.sample_transition_batch()
        self.rb.set_priority(batch.indices, batch.sampling_probabilities)


CASES = [
    (place, change, read)
    for place in (Uniform, ByPriority)
    for change in (Uniform.add,)
    for read in (Uniform.sample, Uniform.sample_all, Uniform.sample_indices)
]


@pytest.mark.parametrize(
    ("place", "change", "read"),
    CASES,
    ids=[f"{place.__name__}-{read.__name__}" for place, _, read in CASES],
)
def test_what_is_read_was_there_together(place: Any, change: Any, read: Any) -> None:
    """Slots were drawn that another thread had overwritten, and fields were read one by one."""
    check_together(place(), change, read, 0.3)


def steps(kind: Any, added: int) -> Any:
    """A buffer with some steps."""
    torch.manual_seed(0)
    rb = kind(2, 9, 4, update_horizon=2)
    for number in range(1, added + 1):
        rb.add(observation=[number], action=number, reward=1.0, terminal=number % 4 == 0)
    return rb


def look(rb: Any) -> Any:
    """All that can be drawn, and what can when the program goes on."""
    assert rb.size == rb._is_index_valid.sum()
    rb = copy.deepcopy(rb)
    seen: list[Any] = []
    for number in (100, None):
        batch = rb.sample_all_valid_transitions() if rb.size else ()
        columns = [column.tolist() for column in batch]
        seen.append((int(rb.add_count), rb.size, rb._is_index_valid.tolist(), columns))
        if number is not None:
            rb.add(observation=[number], action=number, reward=1.0, terminal=False)
    return seen


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # in open files
@pytest.mark.parametrize("kind", [ReplayBuffer, PrioritizedReplayBuffer])
@pytest.mark.parametrize("added", [0, 3, 20])
@pytest.mark.parametrize(
    "options", [{"terminal": False}, {"terminal": True, "final_observation": [51]}], ids=repr
)
def test_an_add_that_is_cut_short_is_whole_or_nothing(
    kind: Any, added: int, options: dict[str, Any]
) -> None:
    """Ctrl-C between the rows and the flags of those that can be drawn parted them."""

    def add(rb: Any) -> None:
        rb.add(observation=[50], action=50, reward=1.0, **options)

    assert cut_everywhere(lambda: steps(kind, added), add, look) > 3
