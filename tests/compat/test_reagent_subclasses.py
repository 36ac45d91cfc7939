"""Signatures of ReAgent's buffers, and what they do in a subclass."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from optional import need

from cpprb_like.compat.reagent import PrioritizedReplayBuffer, ReplayBuffer
from cpprb_like.compat.reagent.circular_replay_buffer import NamesError, ReplayElement

torch = need("torch", "make test-torch")

PLAIN = ["state", "action", "reward", "next_state", "next_action", "next_reward"]
COUNTS = ["terminal", "indices", "step"]


# ---- declared fields ---------------------------------------------------------------------


def test_a_prioritized_buffer_takes_positions_in_its_own_order() -> None:
    """Behind ``batch_size`` come the horizon and gamma, and not the flags of ``ReplayBuffer``."""
    rb = PrioritizedReplayBuffer((2,), 1, 50, 4, 3, 0.5, 1000, [("x", (), "f4")], "f4", bool)
    assert (rb._update_horizon, rb._gamma) == (3, 0.5)
    for t in range(9):
        rb.add([t, t], 0, 1.0, t == 8, 0.5, 1.0)
    batch = rb.sample_transition_batch(indices=np.array([0]))
    assert batch.reward.tolist() == [[1.75]]
    assert (batch.x.tolist(), batch.state.dtype) == ([[0.5]], torch.float32)
    stacked = PrioritizedReplayBuffer((2,), 2, 50, 4, 3, return_everything_as_stack=True)
    assert stacked._settings.return_everything_as_stack


@pytest.mark.parametrize("kind", [ReplayBuffer, PrioritizedReplayBuffer])
@pytest.mark.parametrize("flag", ["return_everything_as_stack", "return_as_timeline_format"])
@pytest.mark.parametrize("value", [3, 1, 0.5, "yes"])
def test_a_flag_that_is_no_bool_is_refused(kind: type[Any], flag: str, value: Any) -> None:
    """A number there was meant for the horizon, which came first before ReAgent had the flags."""
    with pytest.raises(ValueError, match=f"{flag}: expected a bool"):
        kind(stack_size=1, replay_capacity=50, batch_size=4, **{flag: value})
    with pytest.raises(ValueError, match="update_horizon and gamma by name"):
        ReplayBuffer((2,), 1, 50, 4, 3, 0.5)
    for off in (None, False, np.False_):
        rb = kind(stack_size=1, replay_capacity=50, batch_size=4, **{flag: off})
        assert getattr(rb._settings, flag) is False


@pytest.mark.parametrize("kind", [ReplayBuffer, PrioritizedReplayBuffer])
def test_declared_buffers_have_a_signature_of_batches(kind: type[Any]) -> None:
    """Names, shapes with the batch in front, and dtypes, before the first step too."""
    extra = [ReplayElement("x", (2, 3), np.float64)]
    rb = kind((84,), 4, 100, 32, extra_storage_types=extra, action_shape=(2,))
    more = [("sampling_probabilities", (5,), np.float32)] * (kind is PrioritizedReplayBuffer)
    assert rb.get_transition_elements(5) == [
        ("state", (5, 84, 4), np.uint8),
        ("action", (5, 2), np.int32),
        ("reward", (5,), np.float32),
        ("next_state", (5, 84, 4), np.uint8),
        ("next_action", (5, 2), np.int32),
        ("next_reward", (5,), np.float32),
        ("terminal", (5,), np.uint8),
        ("indices", (5,), np.int32),
        ("step", (5,), np.int32),
        ("x", (5, 2, 3), np.float64),
        ("next_x", (5, 2, 3), np.float64),
        *more,
    ]
    by_default = rb.get_transition_elements()
    assert {type(element) for element in by_default} == {ReplayElement}
    assert {element.shape[0] for element in by_default} == {32}
    with pytest.raises(ValueError, match="batch_size"):
        rb.get_transition_elements(-1)
    rb.add(np.zeros(84), [0, 0], 0, 1, np.zeros((2, 3)))
    names = tuple(element.name for element in by_default)
    assert rb.sample_transition_batch()._fields == names


def test_buffers_without_declarations_name_the_columns() -> None:
    """As in ReAgent since July 2020."""
    rb = ReplayBuffer(replay_capacity=9)
    assert rb.get_transition_elements() == [*PLAIN, *COUNTS]
    rb.add(observation=1.0, action=1, reward=1.0, terminal=True, x=2.0)
    assert rb.get_transition_elements(7) == [*PLAIN, *COUNTS, "x", "next_x"]


# ---- subclasses --------------------------------------------------------------------------


class WithErrors(ReplayBuffer):
    """Keeps an error of each step beside the rows, as ReAgent's own class keeps priorities."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.errors: dict[int, float] = {}

    def get_add_args_signature(self) -> list[Any]:
        """One more argument."""
        return [*super().get_add_args_signature(), ReplayElement("error", (), np.float32)]

    def _add(self, /, error: float = 0.0, **fields: Any) -> None:
        super()._add(**fields)
        self.errors[int(self.cursor()) - 1] = error

    def get_transition_elements(self, batch_size: Any = None) -> list[Any]:
        """One more column."""
        elements = super().get_transition_elements(batch_size)
        if not self._settings.is_declared:
            return [*elements, "error"]
        n = self._batch_size if batch_size is None else batch_size
        return [*elements, ReplayElement("error", (n,), np.float32)]

    def sample_transition_batch(self, batch_size: Any = None, indices: Any = None) -> Any:
        """Fills the column."""
        batch = super().sample_transition_batch(batch_size, indices)
        errors = torch.tensor([[self.errors[slot]] for (slot,) in batch.indices.tolist()])
        if self._settings.is_declared:
            batch.error[:] = errors
            return batch
        assert batch.error is None
        return batch._replace(error=errors)


def test_a_subclass_adds_an_argument_and_a_column() -> None:
    """``add`` takes the argument by position or by name; the column comes to the subclass."""
    rb = WithErrors((2,), 2, 50, 4, update_horizon=2)
    for t in range(4):
        rb.add([t, t], 0, 1.0, False, t / 2)
    rb.add([4, 4], 0, 1.0, terminal=True, error=2.0)
    batch = rb.sample_transition_batch(indices=[1, 2, 5])
    assert batch._fields == (*PLAIN, *COUNTS, "error")
    assert batch.error.dtype == torch.float32
    assert batch.error.tolist() == [[0.0], [0.5], [2.0]]
    assert batch.state[:, 0].tolist() == [[0, 0], [0, 1], [3, 4]]
    before = rb.add_count
    for args, more in [
        (([5, 5], 0, 1.0, False), {}),
        (([5, 5], 0, 1.0, False, 1.0, 1.0), {}),
        (([5, 5], 0, 1.0, False), {"priority": 1.0}),
        (([5, 5], 0, 1.0, False, 1.0), {"error": 1.0}),
    ]:
        with pytest.raises(NamesError, match=r"Add expects .*error"):
            rb.add(*args, **more)
    assert rb.add_count == before
    rb.add([5, 5], 0, 1.0, False, 1.0, truncated=True, final_observation=[6, 6])
    assert rb.add_count == before + 3


def test_a_subclass_of_inferred_fields() -> None:
    """A column that the buffer does not have is None, for the subclass to replace."""
    rb = WithErrors(replay_capacity=9, batch_size=2)
    for t in range(3):
        rb.add(observation=[t], action=t, reward=1.0, terminal=t == 2, error=t / 2)
    assert rb.sample_transition_batch(indices=[2, 1]).error.tolist() == [[1.0], [0.5]]
    with pytest.raises(NamesError, match=r"Add expects .*error"):
        rb.add(observation=[0], action=0, reward=1.0, terminal=False)


class Fewer(ReplayBuffer):
    """Asks for some columns, in an order of its own."""

    names: tuple[str, ...] = ("next_x", "observation", "step", "next_terminal", "next_observation")

    def get_transition_elements(self, batch_size: Any = None) -> list[Any]:
        """These names."""
        return list(self.names)


def test_a_subclass_chooses_columns() -> None:
    """Stored fields and their next values, and nothing that it leaves out."""
    rb = Fewer(replay_capacity=9)
    for t in range(3):
        rb.add(observation=[t], action=t, reward=1.0, terminal=t == 2, x=10 * t)
    batch = rb.sample_all_valid_transitions()
    assert batch._fields == Fewer.names
    assert batch.next_x.tolist() == [[10], [20], [0]]
    assert batch.observation.tolist() == [[0], [1], [2]]
    assert batch.next_observation.tolist() == [[1], [2], [0]]
    assert batch.next_terminal.tolist() == [[False], [True], [False]]
    assert batch.step.tolist() == [[1]] * 3

    class Wrong(Fewer):
        names = ("state", "next_y")

    rb = Wrong(replay_capacity=9)
    rb.add(observation=[0], action=0, reward=1.0, terminal=True)
    with pytest.raises(AssertionError, match="next_y: expected a stored field"):
        rb.sample_transition_batch()


PLACE = ReplayElement("place", (), np.int64)


class Logged(PrioritizedReplayBuffer):
    """Stores the position in the episode, which it counts itself."""

    place = 0

    def get_storage_signature(self) -> list[Any]:
        """One more field, which ``add`` does not take."""
        return [*super().get_storage_signature(), PLACE]

    def get_add_args_signature(self) -> list[Any]:
        """Without the field; ``priority`` is the last one."""
        return [one for one in super().get_add_args_signature() if one is not PLACE]

    def get_transition_elements(self, batch_size: Any = None) -> list[Any]:
        """The column too."""
        return [*super().get_transition_elements(batch_size), PLACE]

    def _add(self, /, *args: Any, **fields: Any) -> None:
        super()._add(*args, place=self.place, **fields)
        self.place = 0 if fields["terminal"] else self.place + 1


def test_a_subclass_stores_a_field_of_its_own(tmp_path: Path) -> None:
    """``get_storage_signature`` makes the field, and ``_add`` fills it; saves have it too."""
    rb = Logged((1,), 1, 20, 2)
    assert [one.name for one in rb.get_add_args_signature()][-1] == "priority"
    for t in range(4):
        rb.add([t], 0, 1.0, t % 2, 2.0)
    rb.add([4], 0, 1.0, 1)
    assert rb.sample_all_valid_transitions().place.tolist() == [[0], [1], [0], [1], [0]]
    assert rb.get_priority(np.arange(6)).tolist() == [2, 2, 2, 2, 2, 0]
    rb.save(tmp_path, 1)
    other = Logged((1,), 1, 20, 2)
    other.load(tmp_path, 1)
    assert other.sample_all_valid_transitions().place.tolist() == [[0], [1], [0], [1], [0]]
    other.add([5], 0, 1.0, 1, 3.0)
    assert other.size == 6
    again = copy.deepcopy(other)
    assert again.get_add_args_signature() == rb.get_add_args_signature()
    assert again.sample_transition_batch()._fields == rb.sample_transition_batch()._fields
    assert rb.sample_transition_batch()._fields[-2:] == ("sampling_probabilities", "place")
