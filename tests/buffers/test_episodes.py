"""Where episodes end, for one environment and for several, and which rows are steps at all."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from cartpole import CARTPOLE, step

from cpprb_like import ReplayBuffer
from cpprb_like.typing import FieldSpec


def test_length_of_the_current_episode() -> None:
    """The length counts rows since the last end, whether a field or a call ended it."""
    rb = ReplayBuffer(100, CARTPOLE)
    lengths = []
    for i in range(12):
        rb.add(**step(i))
        lengths.append(rb.get_current_episode_len())
    assert lengths == [1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1, 2]
    rb.on_episode_end()
    assert rb.get_current_episode_len() == 0
    rb.on_episode_end()
    assert rb.get_current_episode_len() == 0


def test_length_of_an_episode_longer_than_the_ring() -> None:
    """Rows that were overwritten still count as steps of their episode."""
    rb = ReplayBuffer(3, {"x": {}})
    rb.add(x=np.arange(50))
    rb.add(x=1)
    assert rb.get_current_episode_len() == 51


@pytest.mark.parametrize("name", ["done", "terminated", "truncated"])
@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        ("?", True),
        ("f4", 1.0),
        ("f4", 0.25),
        ("f8", -1.0),
        ("f8", 5e-324),
        ("i1", -1),
        ("u8", 2**63),
        (">f4", 2.0),
        (">i2", 256),
        ("f2", 6e-8),
        ("f4", float("nan")),
    ],
)
@pytest.mark.parametrize("shape", [(), 1, (1, 1)])
def test_any_nonzero_value_ends_the_episode(name: str, dtype: str, value: Any, shape: Any) -> None:
    """A nonzero end field ends the episode, whatever its type; zero and minus zero do not."""
    rb = ReplayBuffer(9, {"x": {"shape": 2}, name: {"shape": shape, "dtype": dtype}})
    end = np.zeros((1,) if shape == 1 else shape, dtype)
    rb.add(**{"x": [1, 2], name: end})
    if np.dtype(dtype).kind == "f":
        rb.add(**{"x": [1, 2], name: -end})
    assert rb.get_current_episode_len() == 1 + (np.dtype(dtype).kind == "f")
    end[...] = value
    rb.add(**{"x": [1, 2], name: end})
    assert rb.get_current_episode_len() == 0


def test_ends_inside_a_batch_of_steps() -> None:
    """Steps added at once end their episodes where their own flags are set."""
    rb = ReplayBuffer(100, CARTPOLE)
    batch = {name: np.array([step(i)[name] for i in range(25)]) for name in CARTPOLE}
    rb.add(**batch)
    assert rb.get_current_episode_len() == 5


def test_fields_named_as_ends() -> None:
    """The constructor may name other fields that end episodes."""
    schema: dict[str, FieldSpec] = {"x": {}, "lost": {"dtype": "?"}, "timeout": {"dtype": "?"}}
    rb = ReplayBuffer(20, schema, terminated="lost", truncated="timeout")
    lengths = []
    for lost, timeout in [(0, 0), (0, 0), (1, 0), (0, 0), (0, 1), (1, 1), (0, 0)]:
        rb.add(x=1, lost=lost, timeout=timeout)
        lengths.append(rb.get_current_episode_len())
    assert lengths == [1, 2, 0, 1, 0, 0, 1]


def test_streams_have_episodes_of_their_own() -> None:
    """Each environment has an episode length of its own, ended by its own flag or call."""
    rb = ReplayBuffer(12, {"x": {}, "done": {}}, n_envs=3)

    def lengths() -> list[int]:
        return [rb.get_current_episode_len(env) for env in range(3)]

    rb.add(x=[1, 2, 3], done=[0, 0, 0])
    rb.add(x=[1, 2, 3], done=[0, 1, 0])
    assert lengths() == [2, 0, 2]
    assert rb.get_current_episode_len() == 2
    rb.on_episode_end(2)
    assert lengths() == [2, 0, 0]
    rb.add_where([True, False, True], x=[1, 2, 3], done=[0, 0, 0])
    assert lengths() == [3, 0, 1]
    rb.on_episode_end()
    assert lengths() == [0, 0, 0]


@pytest.mark.parametrize(
    "present",
    [
        [True, False],
        np.array([1, 0], bool),
        (np.True_, np.False_),
        np.array([1, 0, 0, 0], bool)[::2],
    ],
)
def test_masks_of_environments(present: Any) -> None:
    """``add_where`` takes lists, tuples and arrays of bools, and returns the first slot."""
    rb = ReplayBuffer(6, {"x": {"shape": (), "dtype": "i8"}}, n_envs=2)
    assert rb.add_where(present, x=[5, 6]) == 0
    assert rb.add_where(present, x=[7, 8]) == 2
    assert len(rb) == 2
    assert rb.get_all_transitions()["x"].tolist() == [5, 7]
    assert rb.get_next_index() == 4


def test_field_named_present() -> None:
    """A field may be called ``present``: the mask is positional."""
    rb = ReplayBuffer(4, {"present": {"shape": ()}})
    rb.add_where([True], present=[5])
    assert rb[0]["present"] == 5


class Garbage:
    """A cycle, which changes a buffer when it is collected."""

    def __init__(self, change: Callable[[], object]) -> None:
        self.itself, self.change = self, change

    def __del__(self) -> None:
        self.change()


@pytest.mark.once
def test_garbage_that_is_collected_while_episodes_are_counted() -> None:
    """Its finalizers may use the same index, which was left with records of no episode.

    Their rows had slots at random, so ``episodes.delete`` could end the process.
    """
    rows, thresholds = np.arange(3100), gc.get_threshold()
    for moment in range(1, 9):  # containers that are made before the collection
        rb = ReplayBuffer(5000, {"x": {"shape": (), "dtype": "i8"}, "done": {}}, seed=0)
        episodes = rb.episodes

        def change(rb: ReplayBuffer = rb) -> None:
            rb.clear()
            rb.add(x=rows[:8], done=rows[:8] % 2)
            len(rb.episodes)

        rb.add(x=rows[:100], done=rows[:100] % 2)
        len(episodes)
        rb.add(x=rows, done=rows % 2)
        gc.collect()
        gc.disable()
        Garbage(change)
        gc.set_threshold(moment)
        gc.enable()
        try:
            len(episodes)
        finally:
            gc.set_threshold(*thresholds)
        gc.collect()
        assert [episode["x"].tolist() for episode in episodes] == [[0, 1], [2, 3], [4, 5], [6, 7]]
