"""ReAgent's buffer by priority: which priorities rows have, and what is drawn."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from optional import need
from reagent_twin import Shape, Step, Twin, histories, shapes

from cpprb_like import NotEnoughDataError
from cpprb_like.compat.reagent import PrioritizedReplayBuffer

torch = need("torch", "make test-torch")


def add(rb: Any, t: int, terminal: bool = False, **more: Any) -> None:
    """Add a step of one number."""
    rb.add(observation=[float(t)], action=t, reward=1.0, terminal=terminal, **more)


def steps(n: int, *, terminal: bool = True, **options: Any) -> Any:
    """A buffer of one episode of steps with priorities 1, 2, ..."""
    rb = PrioritizedReplayBuffer(1, 20, 4, **options)
    for t in range(n):
        add(rb, t, terminal and t == n - 1, priority=t + 1)
    return rb


@given(shape=shapes(), history=histories(), seed=st.integers(0, 999))
def test_draws_are_of_the_valid_slots_by_priority(
    shape: Shape, history: list[Step], seed: int
) -> None:
    """Rows have the priority they were given, padding 0; what is not valid is never drawn."""
    rb = PrioritizedReplayBuffer(shape.stack_size, shape.capacity, 4, shape.horizon)
    twin, given_priorities = Twin(shape), {}
    rng = np.random.default_rng(seed)
    for step in history:
        fields = twin.add(step)
        row = twin.episodes[-1].first_row + len(twin.episodes[-1].steps) - 1
        given_priorities[row] = float(rng.integers(0, 4))
        rb.add(**fields, priority=given_priorities[row])
    rows = range(max(0, twin.rows - shape.capacity), twin.rows)
    priorities = np.zeros(shape.capacity)
    for row in rows:
        priorities[row % shape.capacity] = given_priorities.get(row, 0.0)
    slots = np.arange(shape.capacity)
    np.testing.assert_array_equal(rb.get_priority(slots), priorities)
    if not history:
        return
    valid = list(twin.valid())
    batch = rb.sample_all_valid_transitions()
    assert batch.sampling_probabilities[:, 0].tolist() == priorities[valid].tolist()
    if priorities[valid].any():
        np.testing.assert_allclose(
            batch.probabilities[:, 0], priorities[valid] / priorities[valid].sum(), rtol=1e-6
        )
        drawn = rb.sample_index_batch(4000)
        assert set(drawn.tolist()) <= set(valid)
        counts = np.bincount(drawn, minlength=shape.capacity)[valid] / 4000
        np.testing.assert_allclose(counts, priorities[valid] / priorities[valid].sum(), atol=0.05)
    else:
        with pytest.raises(NotEnoughDataError):
            rb.sample_index_batch(9)
    newest = rb.get_priority([(twin.rows - 1) % shape.capacity])
    stack = batch.priority if shape.stack_size == 1 else batch.priority[:, -1:]
    assert stack[:, 0].tolist() == priorities[valid].tolist()
    assert newest.dtype == np.float32


def test_batches_have_the_true_priorities() -> None:
    """Also those of the rows behind, and zero where there is none."""
    rb = steps(3)
    batch = rb.sample_all_valid_transitions()
    assert batch._fields[-4:] == (
        "priority",
        "next_priority",
        "sampling_probabilities",
        "probabilities",
    )
    assert batch.priority.tolist() == batch.sampling_probabilities.tolist() == [[1], [2], [3]]
    assert batch.next_priority.tolist() == [[2], [3], [0]]
    assert {column.dtype for column in batch[-4:]} == {torch.float32}
    assert rb.sample_transition_batch().probabilities.shape == (4, 1)


def test_a_priority_is_the_greatest_so_far_unless_given() -> None:
    """Absent or None, by keyword; int or float does not matter."""
    rb = PrioritizedReplayBuffer(1, 20, 4)
    given_priorities: list[dict[str, Any]] = [
        {},
        {"priority": 5},
        {"priority": None},
        {"priority": 0.5},
        {},
    ]
    for t, more in enumerate(given_priorities):
        add(rb, t, **more)
    assert rb.get_priority(np.arange(5)).tolist() == [1, 5, 5, 0.5, 5]


@pytest.mark.parametrize("priority", [-1.0, float("nan"), float("inf"), "high", [1.0, 2.0], 1e308])
def test_what_is_no_priority_changes_nothing(priority: Any) -> None:
    """Neither in ``add`` nor in ``set_priority``."""
    rb = steps(3)
    with pytest.raises((ValueError, TypeError)):
        add(rb, 3, priority=priority)
    assert rb.add_count == 3
    with pytest.raises((ValueError, TypeError)):
        rb.set_priority([0], priority)
    assert rb.get_priority(np.arange(4)).tolist() == [1, 2, 3, 0]


def test_a_step_that_is_refused_leaves_the_priorities() -> None:
    """The priority of the slot is set only once the step is there."""
    rb = steps(3, terminal=False)
    wrong: dict[str, Any]
    for wrong in ({"observation": [1.0, 2.0]}, {"extra": 1}):
        step: dict[str, Any] = {"observation": [0.0], "action": 1, "reward": 1.0}
        with pytest.raises(AssertionError):
            rb.add(**{**step, **wrong}, terminal=False, priority=7.0)
    assert rb.get_priority(np.arange(4)).tolist() == [1, 2, 3, 0]
    assert rb.sum_tree.max_recorded_priority == 3


def test_setting_priorities() -> None:
    """Of duplicates the last wins; indices of a batch, any integers, tensors and lists will do."""
    rb = steps(6)
    rb.set_priority(np.array([0, 1, 0], np.int32), [5, 6, 7])
    batch = rb.sample_transition_batch(indices=[2, 3])
    rb.set_priority(batch.indices, torch.tensor([[0.25], [0.0]]))
    assert rb.get_priority(torch.arange(6)).tolist() == [7, 6, 0.25, 0, 5, 6]
    rb.sum_tree.set(4, 100.0)
    assert rb.sample_transition_batch(indices=[4]).probabilities.item() == pytest.approx(
        100 / 119.25
    )
    assert 3 not in rb.sample_index_batch(500).tolist()
    for wrong in ([20], [-1]):
        with pytest.raises(IndexError):
            rb.set_priority(wrong, [1.0])
        with pytest.raises(IndexError):
            rb.get_priority(wrong)
    for shape in (np.array(3), np.zeros((2, 2), np.int32), [0.5]):
        with pytest.raises(AssertionError):
            rb.get_priority(shape)
    with pytest.raises(ValueError):
        rb.set_priority([0, 1], [1.0])


def test_invalid_slots_are_not_drawn_whatever_their_priority() -> None:
    """Padding, the newest steps, and those that users declare invalid."""
    rb = PrioritizedReplayBuffer(2, 10, 4)
    for t in range(4):
        add(rb, t, priority=1.0)
    rb.set_priority(np.arange(10), np.full(10, 1e6))
    assert set(rb.sample_index_batch(300).tolist()) == {1, 2, 3}
    rb.set_index_valid_status(2, False)
    assert set(rb.sample_index_batch(300).tolist()) == {1, 3}
    rb.set_index_valid_status(2, True)
    assert set(rb.sample_index_batch(300).tolist()) == {1, 2, 3}


def test_rows_of_low_priority_are_drawn_seldom() -> None:
    """Draws are in proportion to the priorities."""
    torch.manual_seed(1)
    rb = steps(3)
    counts = np.bincount(rb.sample_index_batch(60_000).tolist(), minlength=3)
    np.testing.assert_allclose(counts / 60_000, [1 / 6, 2 / 6, 3 / 6], atol=1e-4)


def test_rows_beside_invalid_ones_are_drawn_no_more_often() -> None:
    """Small batches too: a draw of valid rows alone would prefer the neighbours of the others."""
    torch.manual_seed(1)
    rb = PrioritizedReplayBuffer(1, 20, 4)
    for t in range(10):  # of an open episode, so the newest step is not valid
        add(rb, t, priority=1.0)
    counts = sum(np.bincount(rb.sample_index_batch(5), minlength=9) for _ in range(3000))
    np.testing.assert_allclose(counts / 15_000, np.full(9, 1 / 9), atol=0.015)


def test_declared_buffers_take_the_priority_last() -> None:
    """As until July 2020: by position or by name, and it is no output of its own."""
    rb = PrioritizedReplayBuffer((84, 84), 4, 100, 32, max_sample_attempts=10)
    assert rb.get_add_args_signature()[-1] == ("priority", (), np.float32)
    frame = np.zeros((84, 84))
    rb.add(frame, 0, 0, 0, 2.0)
    rb.add(frame, 0, 0, 0, priority=3.0)
    rb.add(frame, 0, 0, 1)
    assert rb.cursor() == 6
    assert rb.get_priority(np.arange(7)).tolist() == [0, 0, 0, 2, 3, 3, 0]
    assert rb.sample_transition_batch()._fields[7:] == ("indices", "step", "sampling_probabilities")
    with pytest.raises(ValueError, match="Add expects"):
        rb.add(frame, 0, 0, 0, 1.0, 1.0)
    with pytest.raises(RuntimeError):
        PrioritizedReplayBuffer((84, 84), 4, 100, 32).sample_index_batch(2)


def test_a_field_cannot_be_called_priority() -> None:
    """It would stand for two things."""
    with pytest.raises(ValueError, match="priority"):
        PrioritizedReplayBuffer((1,), 1, 10, 1, extra_storage_types=[("priority", (), "f4")])
    rb = PrioritizedReplayBuffer(1, 10, 1)
    with pytest.raises(ValueError, match="priority"):
        rb.initialize_buffer(observation=1, action=1, reward=1, terminal=0, priority=1.0)
    assert rb.get_add_args_signature() == []
