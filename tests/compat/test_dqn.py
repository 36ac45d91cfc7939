"""The front with the names of Berkeley's DQN code: what was stored is what is drawn."""

from __future__ import annotations

import copy
import pickle
import random
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import Array, Shape

from cpprb_like import NotEnoughDataError
from cpprb_like.compat.dqn import (
    Batch,
    LinearSchedule,
    OutsideScheduleError,
    PiecewiseSchedule,
    ReplayBuffer,
    StoredField,
    linear_interpolation,
    sample_n_unique,
)
from cpprb_like.schedules import Linear, Piecewise


@dataclass
class Step:
    """A frame, and what came after it; ``last`` if the next frame is of another episode."""

    frame: Array
    number: int
    action: int = 0
    reward: float = 0.0
    done: bool = False
    last: bool = False
    known: bool = False


@dataclass
class Twin:
    """The slow, obvious one: all steps in a list, of which the newest ``size`` are there."""

    size: int
    depth: int
    steps: list[Step] = field(default_factory=list)

    @property
    def oldest(self) -> int:
        return max(0, len(self.steps) - self.size)

    def view(self, number: int) -> Array:
        """The frames of an episode up to a step, joined along the channels."""
        frame = self.steps[number].frame
        if frame.ndim < 2:
            return frame
        frames: list[Array] = []
        for back in range(self.depth):
            here = number - back
            if here < self.oldest or (back and self.steps[here].last):
                break
            frames.insert(0, self.steps[here].frame)
        frames = [np.zeros_like(frame)] * (self.depth - len(frames)) + frames
        return np.concatenate([x[..., np.newaxis] if x.ndim == 2 else x for x in frames], 2)

    def drawable(self) -> set[int]:
        """The steps that a transition starts at."""
        return {step.number for step in self.steps[self.oldest : -1] if step.known}


def frame_of(number: int, shape: Shape, dtype: str) -> Array:
    """A frame without a zero that says which step it is of."""
    count = int(np.prod(shape))
    values = 1 + (number * 7 + np.arange(count)) % 120
    return values.astype(dtype).reshape(shape)


@dataclass
class Pair:
    """A buffer and its twin, and the moves that both make."""

    rb: ReplayBuffer
    twin: Twin
    shape: Shape
    dtype: str

    def frame(self) -> int:
        """Store the next frame."""
        number = len(self.twin.steps)
        frame = frame_of(number, self.shape, self.dtype)
        idx = self.rb.store_frame(frame.copy())
        self.twin.steps.append(Step(frame, number))
        assert idx == number % self.twin.size
        np.testing.assert_array_equal(self.rb.encode_recent_observation(), self.twin.view(number))
        return number

    def effect(self, number: int, how: str) -> None:
        """Store what came after a frame that is still there."""
        step = self.twin.steps[number]
        step.action, step.reward = number + 1000, number / 4
        step.done, step.last = how == "done", how in ("done", "truncated")
        step.known = how != "truncated"
        self.rb.store_effect(
            number % self.twin.size,
            step.action,
            step.reward,
            step.done,
            truncated=how == "truncated",
        )

    def refuse(self) -> None:
        """Moves that change nothing."""
        newest = (len(self.twin.steps) - 1) % self.twin.size
        with pytest.raises(ValueError, match="shape"):
            self.rb.store_frame(np.zeros((9, 9, 9, 9), self.dtype))
        with pytest.raises(ValueError, match="action"):
            self.rb.store_effect(newest, 2**31, 7.0, True)
        with pytest.raises(IndexError, match="idx"):
            self.rb.store_effect(self.twin.size, 7, 7.0, True)

    def compare(self) -> None:
        """Everything that can be read agrees."""
        rb, twin = self.rb, self.twin
        there = twin.steps[twin.oldest :]
        assert (rb.num_in_buffer, rb.next_idx) == (len(there), len(twin.steps) % twin.size)
        drawable = twin.drawable()
        assert rb.can_sample(len(drawable))
        assert not rb.can_sample(len(drawable) + 1)
        for n in {0, 1, len(drawable) // 2, len(drawable)}:
            if n > len(drawable):
                continue
            batch = rb.sample(n)
            numbers = (batch.action - 1000).tolist()
            assert len(set(numbers)) == n
            assert set(numbers) <= drawable
            self.compare_batch(batch, numbers)
        for name in ("obs", "action", "reward", "done"):
            stored = getattr(rb, name)
            assert stored.shape[0] == twin.size
            for step in there:
                value = step.frame if name == "obs" else getattr(step, name)
                np.testing.assert_array_equal(stored[step.number % twin.size], value, name)

    def compare_batch(self, batch: Batch, numbers: list[int]) -> None:
        """Each row is that of its step."""
        steps = [self.twin.steps[number] for number in numbers]
        assert batch.obs.dtype == batch.next_obs.dtype == np.dtype(self.dtype)
        assert [x.dtype.str[1:] for x in batch[1:3]] == ["i4", "f4"]
        assert batch.done_mask.dtype == np.float32
        assert batch.reward.tolist() == [step.reward for step in steps]
        assert batch.done_mask.tolist() == [float(step.done) for step in steps]
        for row, number in enumerate(numbers):
            np.testing.assert_array_equal(batch.obs[row], self.twin.view(number))
            np.testing.assert_array_equal(batch.next_obs[row], self.twin.view(number + 1))


MOVES = [
    *["on"] * 6,
    "done",
    "truncated",
    "forget",
    "late",
    "again",
    "refuse",
]
FRAMES: list[Shape] = [(2, 3, 1), (2, 2, 3), (4, 3), (5,), (), (2, 1, 1, 2)]


@given(
    size=st.integers(1, 12),
    depth=st.integers(1, 5),
    shape=st.sampled_from(FRAMES[:5]),
    dtype=st.sampled_from(["u1", "i2", "f4", "f8"]),
    moves=st.lists(st.sampled_from(MOVES), min_size=1, max_size=60),
    seed=st.one_of(st.none(), st.integers(0, 99)),
)
def test_what_is_drawn_is_what_was_stored(
    size: int, depth: int, shape: Shape, dtype: str, moves: list[str], seed: int | None
) -> None:
    """Over random histories each transition has its own effect, and views of its episode only."""
    pair = Pair(ReplayBuffer(size, depth, seed=seed), Twin(size, depth), shape, dtype)
    for move in moves:
        number = pair.frame()
        steps = pair.twin.steps
        if move == "late" and number - 1 >= pair.twin.oldest and number:
            pair.effect(number - 1, random.choice(["on", "done", "truncated"]))
        elif move == "again":
            pair.effect(number, "done")
            pair.effect(number, "on")
        elif move == "refuse":
            pair.refuse()
        elif move in ("on", "done", "truncated"):
            pair.effect(number, move)
        if len(steps) % 5 == 0:
            pair.compare()
    pair.compare()


def filled(size: int, depth: int, frames: int, **options: Any) -> ReplayBuffer:
    """A buffer with frames numbered from 1, all in one episode, each with its number as action."""
    rb = ReplayBuffer(size, depth, **options)
    for number in range(1, frames + 1):
        idx = rb.store_frame(np.full((1, 1, 1), number, np.uint8))
        rb.store_effect(idx, number, float(number), False)
    return rb


def test_views_begin_with_zeros_and_end_with_the_newest_frame() -> None:
    """Frames 1 to 5 in views of 3, the episode over after 3."""
    rb = ReplayBuffer(10, 3)
    views = []
    for number in range(1, 6):
        idx = rb.store_frame(np.full((1, 1, 1), number, np.uint8))
        views.append(rb.encode_recent_observation().ravel().tolist())
        rb.store_effect(idx, 0, 0.0, number == 3)
    assert views == [[0, 0, 1], [0, 1, 2], [1, 2, 3], [0, 0, 4], [0, 4, 5]]


def test_a_full_ring_is_cut_at_the_write_head() -> None:
    """Of 19 frames in a ring of 8, no view joins the newest with the oldest."""
    rb = filled(8, 3, 19)
    assert rb.next_idx == 3
    batch = rb.sample(7)
    rows = {
        int(action): (obs.ravel().tolist(), following.ravel().tolist())
        for obs, action, following in zip(batch.obs, batch.action, batch.next_obs, strict=True)
    }
    assert rows == {
        12: ([0, 0, 12], [0, 12, 13]),
        13: ([0, 12, 13], [12, 13, 14]),
        **{i: ([i - 2, i - 1, i], [i - 1, i, i + 1]) for i in range(14, 19)},
    }


def test_channels_of_a_frame_stay_together() -> None:
    """A colour frame of 3 channels joins as three channels for each time, oldest first."""
    rb = ReplayBuffer(10, 2)
    first, second = np.arange(12, dtype="u1").reshape(2, 2, 3), np.full((2, 2, 3), 77, "u1")
    rb.store_frame(first)
    rb.store_frame(second)
    np.testing.assert_array_equal(
        rb.encode_recent_observation(), np.concatenate([first, second], 2)
    )


def test_frames_of_more_axes_join_along_the_last() -> None:
    """A stack of volumes is one volume with more channels."""
    rb = ReplayBuffer(10, 3)
    for number in range(4):
        idx = rb.store_frame(frame_of(number, (2, 1, 3, 2), "i4"))
        rb.store_effect(idx, number, 0.0, False)
    expected = np.concatenate([frame_of(number, (2, 1, 3, 2), "i4") for number in (1, 2, 3)], -1)
    np.testing.assert_array_equal(rb.encode_recent_observation(), expected)
    assert rb.sample(2).next_obs.shape == (2, 2, 1, 3, 6)


def test_every_transition_but_that_of_the_newest_frame_is_drawn_alike() -> None:
    """Over many draws each transition comes about equally often, in each way of drawing."""
    rb = filled(40, 2, 100)
    np.random.seed(3)
    for n in (5, 30):  # by trial, and out of a permutation
        counts = np.zeros(101)
        rounds = 39 * 200 // n
        for _ in range(rounds):
            counts[rb.sample(n).action] += 1
        assert (counts[:61] == 0).all()
        assert counts[100] == 0
        expected = rounds * n / 39
        chi_squared = ((counts[61:100] - expected) ** 2 / expected).sum()
        assert chi_squared < 80, f"{chi_squared} with 38 degrees of freedom"


@pytest.mark.parametrize("n", [1, 8, 25])
def test_numpys_seed_controls_the_draws(n: int) -> None:
    """The same global state gives the same batch, and each draw moves it on."""
    rb = filled(40, 2, 30)
    np.random.seed(5)
    first, second = rb.sample(n), rb.sample(n)
    np.random.seed(5)
    again = rb.sample(n)
    np.testing.assert_array_equal(first.action, again.action)
    assert n == 1 or (first.action != second.action).any()


def test_a_seed_of_its_own_leaves_numpys_alone() -> None:
    """Two buffers of one seed draw the same, whatever the global state is."""
    left, right = filled(40, 2, 30, seed=7), filled(40, 2, 30, seed=7)
    np.random.seed(1)
    before = repr(np.random.get_state())
    first = [left.sample(n).action.tolist() for n in (4, 25)]
    assert repr(np.random.get_state()) == before
    np.random.seed(2)
    assert [right.sample(n).action.tolist() for n in (4, 25)] == first


def test_can_sample_and_sample_agree() -> None:
    """``can_sample(n)`` for one frame more than n; ``sample`` gives that many, and no more."""
    rb = ReplayBuffer(100, 4)
    assert not rb.can_sample(0)
    for frames in range(1, 12):
        rb.store_effect(rb.store_frame(np.ones((1, 1, 1), "u1")), frames, 0.0, False)
        for n in range(13):
            assert rb.can_sample(n) == (n + 1 <= frames)
        assert sorted(rb.sample(frames - 1).action.tolist()) == list(range(1, frames))
        for error in (AssertionError, ValueError, NotEnoughDataError):
            with pytest.raises(error, match="cannot sample"):
                rb.sample(frames)


def test_frames_without_effect_are_not_drawn() -> None:
    """A forgotten effect costs its transition; an effect that comes late is taken."""
    rb = ReplayBuffer(20, 2)
    for number in range(10):
        idx = rb.store_frame(np.full((1, 1, 1), number + 1, "u1"))
        if number % 2:
            rb.store_effect(idx, number, 0.0, False)
    assert [rb.can_sample(n) for n in (4, 5)] == [True, False]
    assert sorted(rb.sample(4).action.tolist()) == [1, 3, 5, 7]
    rb.store_effect(4, 4, 2.5, True)
    batch = rb.sample(5)
    assert sorted(batch.action.tolist()) == [1, 3, 4, 5, 7]
    row = batch.action.tolist().index(4)
    assert (batch.reward[row], batch.done_mask[row]) == (2.5, 1)
    assert batch.next_obs[row].ravel().tolist() == [0, 6]


def test_a_slot_forgets_the_effect_of_the_frame_before() -> None:
    """``done`` of an overwritten frame does not cut the episode of the new one."""
    rb = ReplayBuffer(4, 3)
    for number in range(4):
        rb.store_effect(rb.store_frame(np.full((1, 1, 1), number + 1, "u1")), 9, 9.0, True)
    for number in range(4, 7):
        rb.store_frame(np.full((1, 1, 1), number + 1, "u1"))
    assert rb.encode_recent_observation().ravel().tolist() == [5, 6, 7]
    assert np.asarray(rb.done).tolist() == [False, False, False, True]
    assert np.asarray(rb.action).tolist() == [0, 0, 0, 9]


def test_low_dimensional_states_are_not_stacked() -> None:
    """Of vectors the view is the newest one, whatever the length of the history."""
    rb = ReplayBuffer(10, 4)
    for number in range(5):
        rb.store_effect(rb.store_frame([number + 0.5, -number]), number, 0.0, False)
    assert rb.encode_recent_observation().tolist() == [4.5, -4]
    batch = rb.sample(4)
    assert batch.obs.shape == batch.next_obs.shape == (4, 2)
    assert batch.obs.dtype == np.float64
    assert (batch.next_obs[:, 0] == batch.obs[:, 0] + 1).all()


def test_stored_frames_have_the_dtype_asked_for() -> None:
    """Without a dtype it is that of the first frame; with uint8 nothing is cut off in silence."""
    rb = ReplayBuffer(5, 2, dtype=np.uint8)
    rb.store_frame(np.array([[1.0, 255.0]]))
    view = rb.encode_recent_observation()
    assert (view.dtype.name, view.shape) == ("uint8", (1, 2, 2))
    for bad in (1.7, 256.0, -1.0, np.nan):
        with pytest.raises(ValueError, match="obs"):
            rb.store_frame(np.array([[1.0, bad]]))
    assert rb.num_in_buffer == 1
    assert np.asarray(rb.obs)[0].tolist() == [[1, 255]]


def test_a_batch_of_frames_is_no_frame() -> None:
    """Frames are stored one by one; their shape does not change."""
    rb = filled(5, 2, 3)
    for bad in (np.zeros((2, 1, 1, 1), "u1"), np.zeros((1, 1), "u1"), 0):
        with pytest.raises(ValueError, match=r"frame: expected shape \(1, 1, 1\)"):
            rb.store_frame(bad)
    assert rb.num_in_buffer == 3


def test_the_first_frame_may_be_refused() -> None:
    """A frame that cannot be stored leaves the buffer without a frame, open for another shape."""
    rb = ReplayBuffer(5, 2, dtype="u1")
    with pytest.raises(ValueError, match="obs"):
        rb.store_frame(np.full((3, 3), 1.5))
    assert rb.obs is None
    assert rb.num_in_buffer == 0
    with pytest.raises(MemoryError):
        ReplayBuffer(10**12, 4).store_frame(np.zeros((84, 84, 1), "u1"))
    rb.store_frame(np.ones((2, 2)))
    assert rb.obs is not None


@pytest.mark.parametrize(
    ("frame", "error"), [(None, TypeError), ({"x": 1}, TypeError), ([[1], [2, 3]], ValueError)]
)
@pytest.mark.parametrize("first", [True, False], ids=["first", "later"])
def test_what_is_no_array_is_no_frame(first: bool, frame: Any, error: type[Exception]) -> None:
    """A missing observation is refused by name, and no field of Python objects made for it."""
    buffer = ReplayBuffer(4, 2)
    for _ in range(0 if first else 2):
        buffer.store_frame(np.zeros((2, 2, 1)))
    with pytest.raises(error, match=r"^frame: "):
        buffer.store_frame(frame)
    assert buffer.num_in_buffer == (0 if first else 2)
    assert (buffer.obs is None) == first


def test_before_the_first_frame() -> None:
    """An empty buffer has no arrays, and says so when it is asked for data."""
    rb = ReplayBuffer(5, 2)
    assert (rb.obs, rb.action, rb.reward, rb.done) == (None, None, None, None)
    assert (rb.size, rb.frame_history_len, rb.next_idx, rb.num_in_buffer) == (5, 2, 0, 0)
    for error in (AssertionError, ValueError):
        with pytest.raises(error):
            rb.encode_recent_observation()
        with pytest.raises(error):
            rb.sample(1)
    with pytest.raises(IndexError, match="idx"):
        rb.store_effect(0, 0, 0.0, False)


BAD_EFFECTS: list[tuple[type[Exception], str, dict[str, Any]]] = [
    (IndexError, "idx", {"idx": 3}),
    (IndexError, "idx", {"idx": -1}),
    (TypeError, "idx", {"idx": 1.0}),
    (TypeError, "action", {"action": 1.5}),
    (TypeError, "action", {"action": None}),
    (ValueError, "action", {"action": -(2**31) - 1}),
    (TypeError, "reward", {"reward": "much"}),
    (TypeError, "reward", {"reward": None}),
    (ValueError, "reward", {"reward": 1e39}),
    (ValueError, "done", {"done": 2}),
    (ValueError, "done", {"done": None}),
    (ValueError, "done", {"done": [True]}),
    (ValueError, "truncated", {"truncated": 0.5}),
]


@pytest.mark.parametrize(("error", "words", "bad"), BAD_EFFECTS)
def test_bad_effects_change_nothing(
    error: type[Exception], words: str, bad: dict[str, Any]
) -> None:
    """A bad argument of ``store_effect`` is named, and the buffer is as before."""
    rb = filled(9, 2, 3)
    before = pickle.dumps(rb)
    with pytest.raises(error, match=words):
        rb.store_effect(**({"idx": 2, "action": 1, "reward": 1.0, "done": False} | bad))
    assert pickle.dumps(rb) == before


@pytest.mark.parametrize(
    ("error", "arguments"),
    [
        (ValueError, (0, 4)),
        (ValueError, (5, 0)),
        (TypeError, (5.0, 4)),
        (TypeError, (5, None)),
        (TypeError, (5, 4, "u1")),
    ],
)
def test_bad_declarations(error: type[Exception], arguments: tuple[Any, ...]) -> None:
    """Sizes are integers of at least 1."""
    with pytest.raises(error):
        ReplayBuffer(*arguments)
    rb = filled(9, 2, 5)
    for bad in (-1, -100):
        with pytest.raises(ValueError, match="batch_size"):
            rb.sample(bad)
    for bad_type in (2.0, "2", None):
        with pytest.raises(TypeError, match="batch_size"):
            rb.can_sample(bad_type)  # type: ignore[arg-type]


def test_batches_survive_and_stored_fields_are_copies() -> None:
    """What was drawn stays when all frames are overwritten and more batches are drawn."""
    rb = filled(50, 4, 50)
    batch = rb.sample(40)
    kept = copy.deepcopy(batch)
    assert rb.obs is not None
    obs = rb.obs[:]
    for number in range(60):
        rb.store_effect(rb.store_frame(np.full((1, 1, 1), 200, "u1")), number, 0.0, False)
        if number > 10:
            rb.sample(9)
    for left, right in zip(batch, kept, strict=True):
        np.testing.assert_array_equal(left, right)
        assert left.flags.writeable
    assert obs.max() == 50


def test_stored_fields_are_indexed_like_arrays() -> None:
    """By slot: an int, a slice, numbers or a mask; unused slots are 0."""
    rb = filled(9, 2, 4)
    action = rb.action
    assert isinstance(action, StoredField)
    full = [1, 2, 3, 4, 0, 0, 0, 0, 0]
    assert np.asarray(action).tolist() == full
    assert (action[2], action[-9], len(action)) == (3, 1, 9)
    assert action[1:4].tolist() == [2, 3, 4]
    assert action[[3, 0, 5]].tolist() == [4, 1, 0]
    assert action[np.arange(9) == 3].tolist() == [4]
    assert np.asarray(action, np.float64).dtype == np.float64
    assert rb.obs is not None
    assert (rb.obs.shape, rb.obs.ndim, rb.obs.dtype.name) == ((9, 1, 1, 1), 4, "uint8")
    assert rb.obs[[2, 3]].ravel().tolist() == [3, 4]
    with pytest.raises(IndexError):
        action[9]
    with pytest.raises(TypeError):
        action[0] = 1  # type: ignore[index]


class Meanwhile(tuple[int, ...]):
    """A shape; another thread stores frames while it is pickled."""

    def __reduce__(self) -> Any:
        self.store()  # type: ignore[attr-defined]
        return tuple, (tuple(self),)


def test_frames_without_effect_are_not_drawn_from_a_pickle_beside_a_thread() -> None:
    """Rows were pickled before the numbers of such frames, which were those of later ones."""
    rb = ReplayBuffer(6, 2, seed=0)

    def store(numbers: range) -> None:
        for number in numbers:
            slot = rb.store_frame(np.full((2, 2, 1), number))
            if number != 1:
                rb.store_effect(slot, number, 1.0, False)

    store(range(5))
    rb._frame_shape = Meanwhile(rb._frame_shape)
    rb._frame_shape.store = lambda: store(range(5, 13))  # type: ignore[attr-defined]
    other = pickle.loads(pickle.dumps(rb))
    assert rb.next_idx == 13 % 6
    assert other.next_idx == 5
    assert not other.can_sample(4)
    assert sorted(other.sample(3).action) == [0, 2, 3]


@pytest.mark.parametrize("seed", [None, 3])
def test_pickles_and_copies_go_on(seed: int | None) -> None:
    """A copy has the same frames, draws the same, and goes its own way."""
    rb = ReplayBuffer(8, 3, seed=seed)
    for number in range(13):
        rb.store_effect(
            rb.store_frame(np.full((1, 1, 1), number, "u1")), number, 0.0, number % 5 == 4
        )
    for other in (pickle.loads(pickle.dumps(rb)), copy.deepcopy(rb)):
        np.random.seed(1)
        batch = copy.deepcopy(rb).sample(5)
        np.random.seed(1)
        for left, right in zip(batch, other.sample(5), strict=True):
            np.testing.assert_array_equal(left, right)
        for number in range(99, 120):
            other.store_effect(other.store_frame(np.full((1, 1, 1), number, "u1")), 0, 0.0, False)
            assert other.encode_recent_observation()[0, 0, -1] == number
        assert rb.next_idx == 13 % 8
        assert rb.encode_recent_observation().ravel().tolist() == [10, 11, 12]


FRAME_SHAPES = [(3, 4, 1), (3, 4), (3, 4, 2), (3, 4, 2, 2), (3, 4, 2, 1), (5,), ()]


def recorded_views(shape: Shape, held: int, seed: int = 0) -> None:
    """Hold each view for some frames, and compare it with a copy and with its frames each time."""
    rb, rng = ReplayBuffer(20, 4), np.random.default_rng(seed)
    blank = [np.zeros(shape, np.uint8)] * 3
    frames = list(blank)
    views: list[tuple[Array, Array]] = []
    for number in range(150):
        frames.append(rng.integers(0, 256, shape, np.uint8))
        idx = rb.store_frame(frames[-1])
        view = rb.encode_recent_observation()
        rb.store_effect(idx, 1, 0.0, number % 50 == 49)
        expected = frames[-1]
        if len(shape) > 1:
            parts = [frame[..., np.newaxis] if len(shape) == 2 else frame for frame in frames[-4:]]
            expected = np.concatenate(parts, -1)
        np.testing.assert_array_equal(view, expected)
        views = [*views, (view, view.copy())][-held:]
        for live, copied in views:
            np.testing.assert_array_equal(live, copied)
        if number % 50 == 49:
            frames += blank


@pytest.mark.once
@pytest.mark.parametrize("held", [1, 3, 150])
@pytest.mark.parametrize("shape", FRAME_SHAPES)
def test_a_view_stays_as_it_was(shape: Shape, held: int) -> None:
    """Later frames change no view, however many of the views are alive."""
    recorded_views(shape, held)


@pytest.mark.parametrize("shape", FRAME_SHAPES)
def test_one_view_that_is_held_stays_as_it_was(shape: Shape) -> None:
    """A single live view does not change while 70 further frames come, each with its own view.

    Views shared memory, and the number of references to it decided whether a view was alive.
    CPython 3.14 counts one reference less, so frames were written over 15 of 16 live views.
    """
    for before in range(20):
        rb, rng = ReplayBuffer(20, 4), np.random.default_rng(before)
        for number in range(before + 1):
            idx = rb.store_frame(rng.integers(0, 256, shape, np.uint8))
            rb.store_effect(idx, 1, 0.0, number % 9 == 8)
        held = rb.encode_recent_observation()
        copied = held.copy()
        for number in range(70):
            idx = rb.store_frame(rng.integers(0, 256, shape, np.uint8))
            if number % 2:
                rb.encode_recent_observation()
            rb.store_effect(idx, 1, 0.0, number % 31 == 30)
            np.testing.assert_array_equal(held, copied, f"{before} frames before, {number} after")


@pytest.mark.parametrize("shape", FRAME_SHAPES)
def test_a_view_is_a_copy(shape: Shape) -> None:
    """Views share no memory, and their owner may write to them: the buffer does not change."""
    rb = ReplayBuffer(20, 4)
    for number in range(30):
        rb.store_effect(rb.store_frame(np.full(shape, number + 1, np.uint8)), 1, 0.0, False)
    first, second = np.asarray(rb.encode_recent_observation()), rb.encode_recent_observation()
    assert not np.shares_memory(first, second)
    if shape:
        assert first.flags.writeable
        first[...] = 99
    np.testing.assert_array_equal(rb.encode_recent_observation(), second)
    assert rb.obs is not None
    assert np.max(rb.obs[:]) == 30


# ---- helpers -----------------------------------------------------------------------------


def test_sample_n_unique_takes_results_in_their_order() -> None:
    """The first of each of the results, one call after the other."""
    given_out = iter([3, 1, 3, 3, 2, 1, 9, 5])
    assert sample_n_unique(lambda: next(given_out), 4) == [3, 1, 2, 9]
    assert next(given_out) == 5
    assert sample_n_unique(lambda: 1, 0) == []
    lists = iter([[1], [1], [2]])
    assert sample_n_unique(lambda: next(lists), 2) == [[1], [2]]


def test_sample_n_unique_gives_up() -> None:
    """It raises where there are fewer results than asked for, and not where there are enough."""
    with pytest.raises(RuntimeError, match="found only 3"):
        sample_n_unique(lambda: random.randrange(3), 4)
    rng = random.Random(0)
    assert sorted(sample_n_unique(lambda: rng.randrange(300), 300)) == list(range(300))
    for bad in (-1, 1.5):
        with pytest.raises((TypeError, ValueError), match="n: expected"):
            sample_n_unique(lambda: 1, bad)  # type: ignore[arg-type]


@given(
    steps=st.floats(0.5, 1e9),
    final=st.floats(-10, 10),
    initial=st.floats(-10, 10),
    t=st.floats(0, 2e9),
)
def test_linear_schedule(steps: float, final: float, initial: float, t: float) -> None:
    """From the initial value to the final one, and level afterwards."""
    schedule = LinearSchedule(steps, final, initial)
    expected = initial + min(t / steps, 1.0) * (final - initial)
    assert schedule.value(t) == pytest.approx(expected, abs=1e-9)
    assert schedule(t) == schedule.value(t)
    assert schedule.value(0) == initial
    assert schedule.value(steps) == schedule.value(2 * steps + 1) == final


def test_linear_schedule_is_that_of_the_package() -> None:
    """The same numbers as ``Linear``."""
    ours, theirs = LinearSchedule(1000, 0.1, 0.9), Linear(0.9, 0.1, 1000)
    assert [ours.value(t) for t in range(1200)] == [theirs(t) for t in range(1200)]
    assert LinearSchedule(10, 0.2).value(0) == 1.0


def test_piecewise_schedule() -> None:
    """Lines between the points; the outside value before the first and from the last one on."""
    points = [(0, 1.0), (1e6, 0.1), (2.5e6, 0.01)]
    schedule = PiecewiseSchedule(points, outside_value=0.01)
    ours = Piecewise([(0, 1.0), (10**6, 0.1), (2_500_000, 0.01)])
    for t in (0, 1, 77_777, 10**6 - 1, 10**6, 2_400_000.5, 2_500_000, 10**9):
        assert schedule.value(t) == schedule(t) == pytest.approx(ours(t), abs=1e-12)
    assert schedule.value(-1) == 0.01
    for closed in (PiecewiseSchedule(points), PiecewiseSchedule([(3, 1.0)])):
        for error in (AssertionError, ValueError, OutsideScheduleError):
            for t in (-1, 2_500_000, 10**7):
                with pytest.raises(error, match=str(t)):
                    closed.value(t)


def test_piecewise_schedule_with_jumps_and_any_interpolation() -> None:
    """Of two points at a time the later one counts; values can be anything that is interpolated."""
    schedule = PiecewiseSchedule([(0, 0.0), (5, 1.0), (5, 10.0), (10, 20.0)], outside_value=-1.0)
    assert [schedule.value(t) for t in (0, 2.5, 5, 7.5, 10)] == [0.0, 0.5, 10.0, 15.0, -1.0]
    steps = PiecewiseSchedule([(0, "a"), (4, "b"), (8, "c")], lambda left, right, alpha: left)
    assert [steps.value(t) for t in (0, 3, 4, 7)] == ["a", "a", "b", "b"]
    seen = PiecewiseSchedule([(2, 0), (6, 0)], lambda left, right, alpha: alpha)
    assert [seen.value(t) for t in (2, 3, 5)] == [0.0, 0.25, 0.75]


@pytest.mark.parametrize(
    ("error", "words", "call"),
    [
        (ValueError, "schedule_timesteps", lambda: LinearSchedule(0, 0.1)),
        (TypeError, "schedule_timesteps", lambda: LinearSchedule(None, 0.1)),  # type: ignore[arg-type]
        (ValueError, "final_p", lambda: LinearSchedule(10, np.nan)),
        (TypeError, "initial_p", lambda: LinearSchedule(10, 1, "1")),  # type: ignore[arg-type]
        (ValueError, "time of point 1", lambda: PiecewiseSchedule([(1, 0), (0, 0)])),
        (TypeError, "endpoints", lambda: PiecewiseSchedule([1, 2])),  # type: ignore[list-item]
        (TypeError, "value of point 0", lambda: PiecewiseSchedule([(1, "x")])),
        (TypeError, "interpolation", lambda: PiecewiseSchedule([(1, 1)], 3)),  # type: ignore[arg-type]
    ],
)
def test_bad_schedules(error: type[Exception], words: str, call: Any) -> None:
    """A bad parameter is named."""
    with pytest.raises(error, match=words):
        call()


def test_linear_interpolation() -> None:
    """Both ends exactly, and what lies between."""
    assert [linear_interpolation(2.0, 4.0, alpha) for alpha in (0, 0.25, 1)] == [2.0, 2.5, 4.0]
