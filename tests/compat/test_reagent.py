"""ReAgent's buffer: which transitions there are, and what they are made of."""

from __future__ import annotations

import copy
import gc
import pickle
import subprocess
import sys
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from optional import need
from reagent_cases import check, check_batch, flags, made
from reagent_twin import Shape, Step, Twin, histories, shapes

import cpprb_like
from cpprb_like import NotEnoughDataError
from cpprb_like.compat.reagent import PrioritizedReplayBuffer, ReplayBuffer
from cpprb_like.compat.reagent.circular_replay_buffer import InputError, invalid_range

torch = need("torch", "make test-torch")

MODES: list[dict[str, Any]] = [
    {},
    {"return_everything_as_stack": True},
    {"return_as_timeline_format": True},
    {"return_everything_as_stack": True, "return_as_timeline_format": True},
]
CLASSES = [ReplayBuffer, PrioritizedReplayBuffer]
TABLE = ["000000", "000000", "010000", "011110", "001110", "000110", "111010"]


# ---- against the twin --------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:return_as_timeline_format")
@pytest.mark.parametrize("mode", MODES, ids=str)
@pytest.mark.parametrize("kind", CLASSES)
@given(shape=shapes(), history=histories(), every=st.integers(1, 7))
def test_transitions_are_those_of_the_episodes(
    kind: type[Any], mode: dict[str, Any], shape: Shape, history: list[Step], every: int
) -> None:
    """At any time each valid slot, and no other, gives the transition of its episode."""
    rb, twin = made(kind, shape, **mode), Twin(shape)
    for number, step in enumerate(history):
        rb.add(**twin.add(step))
        if number % every == 0:
            check(rb, twin, **mode)
    check(rb, twin, **mode)


@given(shape=shapes(), history=histories(), seed=st.integers(0, 99))
def test_drawn_slots_are_valid_and_repeated_by_a_seed(
    shape: Shape, history: list[Step], seed: int
) -> None:
    """``torch.manual_seed`` before the first step decides; slots are drawn equally often."""
    twin = Twin(shape)
    steps = [twin.add(step) for step in history]
    rb, same = made(ReplayBuffer, shape), made(ReplayBuffer, shape)
    for one in (rb, same):
        torch.manual_seed(seed)
        for fields in steps:
            one.add(**fields)
    valid = list(twin.valid())
    if not valid:
        with pytest.raises(RuntimeError):
            rb.sample_index_batch(3)
        return
    drawn = rb.sample_index_batch(20)
    assert drawn.dtype == torch.int64
    check_batch(same.sample_transition_batch(20), drawn.tolist(), twin)
    counts = np.bincount(rb.sample_index_batch(400 * len(valid)), minlength=shape.capacity)
    assert np.flatnonzero(counts).tolist() == valid
    assert 250 < counts[valid].min() <= counts[valid].max() < 550


@given(shape=shapes(), history=histories(), later=histories())
def test_copies_go_on_alike(shape: Shape, history: list[Step], later: list[Step]) -> None:
    """A pickled or copied buffer has the same transitions, also after more steps."""
    for kind in CLASSES:
        rb, twin = made(kind, shape), Twin(shape)
        for step in history:
            rb.add(**twin.add(step))
        others = [pickle.loads(pickle.dumps(rb)), copy.deepcopy(rb), copy.copy(rb)]
        for step in later:
            fields = twin.add(step)
            for other in others:
                other.add(**fields)
        for other in others:
            check(other, twin)


# ---- the rule in single cases ------------------------------------------------------------


def test_flags_after_each_step() -> None:
    """Stacks of two and two steps in six slots, with terminal steps 3 and 6."""
    rb = ReplayBuffer(stack_size=2, replay_capacity=6, update_horizon=2)
    for t, expected in enumerate(TABLE):
        rb.add(observation=[float(t)], action=t, reward=0.0, terminal=t in (3, 6))
        assert flags(rb) == expected


def test_a_long_episode() -> None:
    """Twenty steps of one episode in six slots leave three valid ones."""
    rb = ReplayBuffer(stack_size=2, replay_capacity=6, update_horizon=2)
    for t in range(20):
        rb.add(observation=[float(t)], action=t, reward=0.0, terminal=False)
    assert rb.cursor() == 3
    assert rb._store["action"].tolist() == [17, 18, 19, 14, 15, 16]
    assert flags(rb) == "100011"


def test_timeline_of_rewards() -> None:
    """Lists hold the rewards of all steps, undiscounted, fewer at the end."""
    rb = ReplayBuffer(replay_capacity=9, update_horizon=3, return_as_timeline_format=True)
    for reward in range(1, 6):
        rb.add(observation=[0.0], action=0, reward=float(reward), terminal=reward == 5)
    batch = rb.sample_transition_batch(indices=torch.arange(1, 5))
    assert [item.tolist() for item in batch.reward] == [[2, 3, 4], [3, 4, 5], [4, 5], [5]]
    assert batch.step.tolist() == [[3], [3], [2], [1]]


def test_stack_flag_replaces_the_sum_of_rewards() -> None:
    """With it the reward is a stack, although the next state is three steps ahead."""
    rb = ReplayBuffer(
        stack_size=2, replay_capacity=9, update_horizon=3, return_everything_as_stack=True
    )
    for t in range(5):
        rb.add(observation=float(t), action=t, reward=float(t + 1), terminal=False)
    batch = rb.sample_all_valid_transitions()
    assert batch.reward.tolist() == [[0, 1], [1, 2]]
    assert batch.next_state.tolist() == [[2, 3], [3, 4]]


def test_nothing_behind_a_terminal_step_is_given_out() -> None:
    """Next values are zeros, though there are rows behind it, or rows never written."""
    rb = ReplayBuffer(replay_capacity=5, update_horizon=2)
    for t in range(4):
        rb.add(observation=[7.0], action=7, reward=np.nan if t > 1 else 1.0, terminal=t in (1, 3))
        if t in (1, 3):
            batch = rb.sample_transition_batch(indices=[t])
            assert batch.next_state.tolist() == [[0.0]]
            assert batch.next_action.tolist() == batch.next_reward.tolist() == [[0]]
    assert rb.sample_transition_batch(indices=[0]).reward.tolist() == [[1.9900000095367432]]


def test_time_limits() -> None:
    """Steps before a truncation are valid with a final observation; the next episode is apart."""
    for final in (None, [9.0]):
        rb = ReplayBuffer(stack_size=2, replay_capacity=20, update_horizon=2)
        for t in range(3):
            ending = {"truncated": True, "final_observation": final} if t == 2 else {}
            rb.add(observation=[t + 1.0], action=t, reward=1.0, terminal=False, **ending)
        rb.add(observation=[5.0], action=5, reward=1.0, terminal=True)
        batch = rb.sample_all_valid_transitions()
        states = [[[1, 2]], [[2, 3]], [[3, 9]]] if final else []
        assert (
            batch.next_state.tolist()[: len(states)]
            == [[[2, 3]], [[3, 9]], [[3, 9]]][: len(states)]
        )
        assert batch.state.tolist()[-1] == [[0, 5]]
        assert batch.terminal[:-1].tolist() == [[False]] * (3 if final else 1)
        assert rb.add_count == (7 if final else 6)


def test_rewards_of_several_numbers() -> None:
    """The sum over steps is made for each number of a reward."""
    rb = ReplayBuffer(replay_capacity=9, update_horizon=2, gamma=0.5)
    for t in range(3):
        rb.add(observation=[0.0], action=0, reward=[t, 10 * t], terminal=t == 2)
    assert rb.sample_all_valid_transitions().reward.tolist() == [[0.5, 5], [2, 20], [2, 20]]


def test_flags_that_users_set() -> None:
    """``set_index_valid_status`` keeps the count, and draws go by it."""
    rb = ReplayBuffer(replay_capacity=9)
    for t in range(5):
        rb.add(observation=[float(t)], action=t, reward=0.0, terminal=False)
    for _ in range(2):
        rb.set_index_valid_status(1, False)
    rb.set_index_valid_status(np.int64(4), is_valid=True)
    assert (rb.size, flags(rb)) == (4, "101110000")
    assert set(rb.sample_index_batch(200).tolist()) == {0, 2, 3, 4}
    assert rb.is_valid_transition(4).dtype == torch.bool
    assert rb.is_valid_transition(4).shape == ()
    assert rb.is_valid_transition([0, 1]).tolist() == [True, False]
    for wrong in (-1, 5, 9):
        with pytest.raises(IndexError):
            rb.set_index_valid_status(wrong, True)
    assert (rb.size, flags(rb)) == (4, "101110000")


@pytest.mark.parametrize("kind", CLASSES)
def test_size_does_not_look_at_all_slots(kind: type[Any]) -> None:
    """``while rb.size < n`` took a time in proportion to the capacity for each step."""
    rb = made(kind, Shape(2, 3, 12))
    for t in range(50):
        rb.add(observation=[1.0], action=1, reward=1.0, terminal=t % 7 == 6)
        assert rb.size == rb._rows.count == flags(rb).count("1")
    rb._rows.count = None  # as a call that was cut off leaves it
    assert rb.size == flags(rb).count("1")
    rb.set_index_valid_status(flags(rb).index("1"), False)
    assert rb.size == rb._rows.count == flags(rb).count("1")


@pytest.mark.parametrize("kind", CLASSES)
@pytest.mark.parametrize("is_copied", [False, True])
def test_flags_that_users_set_stay_until_the_row_goes(kind: type[Any], is_copied: bool) -> None:
    """Also while the episode goes on, after the next one has begun, and in a copy."""
    rb = made(kind, Shape(2, 3, 12))
    step = {"observation": [1.0], "action": 1, "reward": 1.0}
    for t in range(5):
        rb.add(**step, terminal=t == 4)
    rb.add(**step, terminal=False)
    before = flags(rb)
    assert before == "011111000000"
    rb.set_index_valid_status(1, False)
    rb.set_index_valid_status(5, False)
    rb.set_index_valid_status(7, True)
    if is_copied:
        rb = copy.copy(rb)
    rb.add(**step, terminal=False)
    assert flags(rb) == "001110010000"
    rb.add(**step, terminal=True)
    assert flags(rb) == "001110011100"
    for _ in range(3):
        rb.add(**step, terminal=False)
    assert flags(rb) == "000110011100"


@pytest.mark.parametrize("kind", CLASSES)
@pytest.mark.parametrize("is_copied", [False, True])
def test_a_broken_stack_is_not_drawn_whatever_was_said(kind: type[Any], is_copied: bool) -> None:
    """Its lost frames were read as zeros."""
    rb = made(kind, Shape(2, 1, 6))
    step = {"observation": [1.0], "action": 1, "reward": 1.0, "terminal": False}
    for _ in range(9):
        rb.add(**step)
    assert (flags(rb), rb.cursor()) == ("111001", 4)
    rb.set_index_valid_status(5, True)
    rb.add(**step)
    if is_copied:
        rb = copy.copy(rb)
    assert (flags(rb), rb.size) == ("111100", 4)


@pytest.mark.parametrize("kind", CLASSES)
@pytest.mark.parametrize("is_valid", [False, True])
def test_an_interrupted_call_leaves_the_flag_with_the_row(
    kind: type[Any], is_valid: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The row was declared, but its flag stayed as it was, for as long as the row was there."""
    rb = made(kind, Shape(1, 1, 12))
    for t in range(5):
        rb.add(observation=[float(t)], action=t, reward=1.0, terminal=False)
    slot = 4 if is_valid else 1
    assert rb.is_valid_transition(slot) != is_valid

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(rb._rows, "_look", interrupt)
        with pytest.raises(KeyboardInterrupt):
            rb.set_index_valid_status(slot, is_valid)
    assert flags(rb) == flags(copy.copy(rb))
    assert rb.size == flags(rb).count("1")


def test_a_slot_made_valid_too_early_gives_zeros_for_what_is_not_there() -> None:
    """Nothing that was never written is given out, whatever the flags say."""
    rb = ReplayBuffer(stack_size=3, replay_capacity=9, update_horizon=3)
    rb.add(observation=[1.0], action=1, reward=1.0, terminal=False)
    for slot in range(3):
        rb.set_index_valid_status(slot, True)
    batch = rb.sample_all_valid_transitions()
    assert batch.state[:, 0].tolist() == [[0, 0, 0], [0, 0, 0], [0, 0, 1]]
    assert batch.next_state.flatten().tolist() == [0] * 9


# ---- what is refused ---------------------------------------------------------------------


def five_steps() -> Any:
    """A buffer of five steps, of which four are valid."""
    rb = ReplayBuffer(replay_capacity=9, batch_size=3)
    for t in range(5):
        rb.add(observation=[float(t)], action=t, reward=0.0, terminal=False)
    return rb


def test_batch_sizes() -> None:
    """The size is what the call says, that of the indices, or the argument of the constructor."""
    rb = five_steps()
    assert rb.sample_transition_batch().state.shape == (3, 1)
    assert rb.sample_transition_batch(7).state.shape == (7, 1)
    assert rb.sample_transition_batch(0).state.shape == (0, 1)
    for indices in (torch.tensor([2, 0]), torch.tensor([2.0, 0.0]), np.array([2, 0]), [2, 0]):
        assert rb.sample_transition_batch(indices=indices).action.tolist() == [[2], [0]]
        assert rb.sample_transition_batch(2, indices).action.tolist() == [[2], [0]]


@pytest.mark.parametrize("indices", [[-1], [4], [5], [9], [0, -1]])
def test_slots_that_are_not_valid_are_refused(indices: list[int]) -> None:
    """Negative, unwritten and too new slots are an ``IndexError``."""
    with pytest.raises(IndexError):
        five_steps().sample_transition_batch(indices=torch.tensor(indices))


@pytest.mark.parametrize("indices", [[0.5], [[0]], 0, [True], "0"])
def test_what_is_no_list_of_slots_is_refused(indices: Any) -> None:
    """As are other shapes and kinds, and another number than the batch size."""
    with pytest.raises(InputError):
        five_steps().sample_transition_batch(indices=indices)
    with pytest.raises(AssertionError):
        five_steps().sample_transition_batch(2, torch.tensor([0]))


def test_empty_buffers() -> None:
    """What cannot be drawn is said in a sentence; no valid slot is an empty batch."""
    rb = ReplayBuffer(stack_size=2, replay_capacity=9, batch_size=3)
    assert rb.is_empty()
    assert rb._store == {}
    for call in (rb.sample_all_valid_transitions, rb.sample_transition_batch):
        with pytest.raises(NotEnoughDataError):
            call()
    rb.add(observation=[[1.0, 2]], action=1, reward=1.0, terminal=False, x=[1, 2, 3])
    assert not rb.is_empty()
    batch = rb.sample_all_valid_transitions()
    assert batch.state.shape == (0, 1, 2, 2)
    assert batch.next_x.shape == (0, 3, 2)
    assert batch.reward.shape == batch.terminal.shape == batch.step.shape == (0, 1)
    with pytest.raises(RuntimeError):
        rb.sample_transition_batch()


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"stack_size": 10, "replay_capacity": 10}, ValueError),
        ({"stack_size": 5, "replay_capacity": 10, "update_horizon": 6}, AssertionError),
        ({"stack_size": 0}, ValueError),
        ({"update_horizon": 0}, ValueError),
        ({"replay_capacity": 2.5}, TypeError),
        ({"gamma": float("nan")}, ValueError),
        ({"gamma": "0.9"}, ValueError),
        ({"batch_size": -1}, ValueError),
        ({"capacity": 10}, TypeError),
        ({"observation_shape": [84, 84], "stack_size": 1}, TypeError),
    ],
)
def test_constructors_refuse(options: dict[str, Any], error: type[Exception]) -> None:
    """Parameters out of range, of other types, or unknown."""
    with pytest.raises(error):
        ReplayBuffer(**options)


def test_least_capacity() -> None:
    """A buffer with room for just one transition is none too small, and a warning is no error."""
    ReplayBuffer(stack_size=5, replay_capacity=10, update_horizon=5)
    with pytest.warns(UserWarning, match="update_horizon=1") as caught:
        ReplayBuffer(return_as_timeline_format=True)
    assert caught[0].filename == __file__


def test_invalid_range() -> None:
    """The slots round the cursor, around the end."""
    assert invalid_range(0, 5, 2, 1).tolist() == [4, 0, 1]
    with pytest.raises(AssertionError):
        invalid_range(5, 5, 2, 1)


@pytest.mark.parametrize("kind", CLASSES)
def test_rows_go_away_with_the_buffer(kind: type[Any]) -> None:
    """At once, without the garbage collector."""
    rb = made(kind, Shape(1, 1, 5))
    rb.add(observation=[1.0], action=1, reward=1.0, terminal=True)
    rb.sample_transition_batch()
    rows = weakref.ref(rb._rows.rows)
    gc.disable()
    try:
        del rb
        assert rows() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("name", ["done", "terminated", "weights", "indexes", "self"])
def test_names_that_mean_something_elsewhere_are_plain_fields(name: str) -> None:
    """The rows' own buffer gives them no meaning that can be seen."""
    rb = ReplayBuffer(replay_capacity=9, update_horizon=2)
    for t in range(4):
        step = {"observation": [1.0], "action": 1, "reward": 1.0, "terminal": t == 3}
        rb.add(**step, **{name: t % 2})
    batch = rb.sample_all_valid_transitions()
    assert getattr(batch, name).tolist() == [[0], [1], [0], [1]]
    assert batch.step.tolist() == [[2], [2], [2], [1]]


# ---- packages and names ------------------------------------------------------------------


def test_aliasing_the_package_is_enough() -> None:
    """Imports by ReAgent's names give the same classes, from all modules."""
    program = """
import sys
import cpprb_like.compat.reagent as front
sys.modules["reagent.replay_memory"] = front
from reagent.replay_memory import ReplayBuffer, circular_replay_buffer
from reagent.replay_memory.circular_replay_buffer import ReplayBuffer as same
from reagent.replay_memory.circular_replay_buffer import ReplayElement
from reagent.replay_memory.prioritized_replay_buffer import PrioritizedReplayBuffer
from reagent.replay_memory.sum_tree import SumTree
from reagent.replay_memory.utils import replay_buffer_to_pre_timeline_df
rb = PrioritizedReplayBuffer(1, 10, 1)
assert same is ReplayBuffer is front.ReplayBuffer is circular_replay_buffer.ReplayBuffer
assert isinstance(rb.sum_tree, SumTree) and isinstance(rb, ReplayBuffer)
"""
    place = Path(cpprb_like.__file__).parents[1]
    subprocess.run([sys.executable, "-c", program], cwd=place, check=True)
