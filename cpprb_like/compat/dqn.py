"""The replay buffer of Berkeley's DQN course code, and its schedules.

``ReplayBuffer`` stores single frames and joins the newest of them to the agent's view when it is
drawn; ``sample_n_unique``, ``LinearSchedule`` and ``PiecewiseSchedule`` are the helpers beside it.
The rows are those of a ``cpprb_like.ReplayBuffer``.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

import cpprb_like
from cpprb_like.compat._dqn_fields import StoredField
from cpprb_like.compat._dqn_schedules import (
    LinearSchedule,
    OutsideScheduleError,
    PiecewiseSchedule,
    linear_interpolation,
)
from cpprb_like.errors import NotEnoughDataError
from cpprb_like.samplers import Seed, generator
from cpprb_like.schedules import whole

__all__ = [
    "Batch",
    "LinearSchedule",
    "NotEnoughFramesError",
    "OutsideScheduleError",
    "PiecewiseSchedule",
    "ReplayBuffer",
    "StoredField",
    "linear_interpolation",
    "sample_n_unique",
]

Array = NDArray[Any]
Ints = NDArray[np.intp]
Result = TypeVar("Result")

INT32_MAX = int(np.iinfo(np.int32).max)
FLOAT32_MAX = float(np.finfo(np.float32).max)
PATIENCE = 50  # repeats, per result found, after which a draw of distinct results is given up
SIDE_BY_SIDE = 4  # views' worth of frames, of which the newest lie behind each other
UNSHARED = (
    4  # references to memory without a view: ours, a name for it, its joined form, and one more
)


class NotEnoughFramesError(NotEnoughDataError, AssertionError):
    """There are too few frames for what was asked; the original raises ``AssertionError``."""


class Batch(NamedTuple):
    """What ``ReplayBuffer.sample`` returns: a plain tuple of five arrays, with names."""

    obs: Array  #: views at the time of the action
    action: NDArray[np.int32]
    reward: NDArray[np.float32]
    next_obs: Array  #: views one frame later
    done_mask: NDArray[np.float32]  #: 1 where the episode ended by the action, else 0


# What came after a frame; it is stored with the next frame, when that comes. Action, reward, done;
# whether the next frame is of another episode; whether a transition starts at the frame.
Effect = tuple[int, float, bool, bool, bool]
EFFECT = ("action", "reward", "done")
NOT_KNOWN: Effect = (0, 0.0, False, False, False)


class NewestFrames:
    """The newest frames side by side, so that a view of them takes no copy.

    Frames are written behind each other. When there is no more room, the next frame goes to other
    memory, behind those of its view: to what was used before, unless a view lives on it. So nobody
    writes to a view.

    Parameters
    ----------
    depth : int
        Frames of a view.
    shape, dtype
        Of a frame as it is stored.
    """

    def __init__(self, depth: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self._depth = depth if len(shape) > 1 else 1
        self._shape, self._dtype = shape, dtype
        self.ndim = len(shape)
        self._blank = None if dtype.kind == "O" else np.zeros((), dtype)
        self._channels = shape[-1] if len(shape) > 2 else 1
        self._frames, self._joined = self._open()
        self._before = self._open()
        self._size = len(self._frames)
        self._end = self._depth - 1  # behind the newest

    def _open(self) -> tuple[Array, Array]:
        """Room for frames, and the same with their axis where a view has it."""
        frames = np.full((SIDE_BY_SIDE * self._depth, *self._shape), self._blank, self._dtype)
        joined = self._join(frames)
        joined.flags.writeable = False
        return frames, joined

    def _join(self, frames: Array) -> Array:
        """Frames with their axis last, or before that of their channels if these are several."""
        ndim = len(self._shape)
        joined = np.moveaxis(frames, 0, max(2, ndim - 1)) if ndim > 1 else frames[:]
        return joined[..., 0] if ndim > 2 and self._channels == 1 else joined

    def push(self, frame: Array) -> None:
        """The newest frame, of a value that can be stored."""
        end = self._end
        if end == self._size:
            end = self._move()
        self._frames[end] = frame
        self._end = end + 1

    def _move(self) -> int:
        """Go on in other memory, behind the frames that the next view needs."""
        frames, joined = self._before
        if sys.getrefcount(frames) > UNSHARED:
            frames, joined = self._open()
        kept = self._depth - 1
        frames[:kept] = self._frames[self._size - kept :]
        self._before = self._frames, self._joined
        self._frames, self._joined, self._end = frames, joined, kept
        return kept

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (self._depth, self._shape, self._dtype, self._frames, self._end)

    def view(self, there: int) -> Array:
        """The newest frames, joined along their last axis; of those before, zeros."""
        end, depth, shape = self._end, self._depth, self._shape
        if len(shape) < 2:
            newest: Array = self._frames[end - 1].copy()
            return newest
        if there >= depth and self._channels == 1:
            return self._joined[..., end - depth : end]
        frames = self._frames[end - depth : end].copy()
        frames[: max(0, depth - there)] = self._blank
        view = self._join(frames)
        if self._channels != 1:
            view = view.reshape(*shape[:-1], depth * self._channels)
        view.flags.writeable = False
        return view


def _restored(
    depth: int, shape: tuple[int, ...], dtype: np.dtype[Any], frames: Array, end: int
) -> NewestFrames:
    """Newest frames as they were pickled."""
    newest = NewestFrames(depth, shape, dtype)
    newest._frames[...], newest._end = frames, end
    return newest


class ReplayBuffer:
    """The newest frames, each stored once, and random transitions made of them.

    Parameters
    ----------
    size : int
        Frames held, at least 1.
    frame_history_len : int
        Frames of a view, at least 1.
    dtype : dtype, optional
        Of the frames as they are stored; that of the first frame. The original stores ``np.uint8``
        whatever comes.
    seed : int, SeedSequence, BitGenerator, Generator, optional
        Of the draws. Without one they come from NumPy's global state, so that ``np.random.seed``
        controls them.

    Attributes
    ----------
    size, frame_history_len : int
        As given.
    next_idx, num_in_buffer : int
        Slot of the next frame, and frames held.
    obs, action, reward, done : StoredField or None
        What is stored, by slot, to be looked at; None before the first frame. ``obs`` has the shape
        ``(size, *frame.shape)``, the others ``(size,)``.

    Raises
    ------
    TypeError, ValueError
        An argument is of a wrong type or value; the message names it.

    Notes
    -----
    A view joins the newest ``frame_history_len`` frames of the episode along their last axis, which
    is that of the channels, oldest first; the channels of frames before the episode began are 0.
    Frames of shape ``(height, width)`` have one channel. Of observations of fewer axes, such as the
    RAM of a game, the view is the newest one alone. What was overwritten is not there any more: a
    view never reaches across the write head.

    An object belongs to one thread.

    Source: the homework on deep Q-learning of Berkeley's CS 294-112, after Mnih et al. (2015),
    "Human-level control through deep reinforcement learning".

    Examples
    --------
    >>> import numpy as np
    >>> from cpprb_like.compat.dqn import ReplayBuffer
    >>> rb = ReplayBuffer(1000, 4, seed=0)
    >>> frames = np.random.default_rng(0).integers(0, 256, (40, 84, 84, 1), np.uint8)
    >>> for step, frame in enumerate(frames):
    ...     idx = rb.store_frame(frame)
    ...     view = rb.encode_recent_observation()
    ...     rb.store_effect(idx, step % 6, 0.5, step % 20 == 19)
    >>> view.shape
    (84, 84, 4)
    >>> obs, action, reward, next_obs, done_mask = rb.sample(32)
    >>> obs.shape, obs.dtype, action.dtype, done_mask.dtype
    ((32, 84, 84, 4), dtype('uint8'), dtype('int32'), dtype('float32'))
    """

    def __init__(
        self,
        size: int,
        frame_history_len: int,
        *,
        dtype: DTypeLike | None = None,
        seed: Seed = None,
    ) -> None:
        self.size = whole("size", size, 1)
        self.frame_history_len = whole("frame_history_len", frame_history_len, 1)
        self._dtype = None if dtype is None else np.dtype(dtype)
        self._rng = None if seed is None else generator(seed)
        self._rows: cpprb_like.ReplayBuffer | None = None
        self._newest: NewestFrames | None = None
        self._frame_shape: tuple[int, ...] = ()
        self._stored = 0  # frames so far
        self._effect = NOT_KNOWN  # of the newest frame
        self._run = 0  # frames of its episode, whether they are still there or not
        self._closed: set[int] = set()  # numbers of older frames that no transition starts at

    # ------------------------------------------------------------------ storing

    def store_frame(self, frame: ArrayLike) -> int:
        """Store a frame, in place of the oldest one when the buffer is full.

        Parameters
        ----------
        frame : array_like
            The newest observation; of the same shape as the first one.

        Returns
        -------
        int
            Its slot, for ``store_effect``. Until then no transition starts at it.

        Raises
        ------
        TypeError, ValueError
            The frame is no array, or of another shape than the first one, or the dtype of the
            frames cannot hold it. Nothing has changed.
        MemoryError
            There is no memory for ``size`` such frames.
        """
        value = frame if type(frame) is np.ndarray else _frame(frame)
        rows, newest, stored = self._rows, self._newest, self._stored
        if rows is None or newest is None:
            rows, newest = self._open(value)
        elif value.ndim != newest.ndim:
            raise self._wrong_shape(value)
        action, reward, done, is_last, is_known = self._effect
        try:
            slot = rows.add(
                obs=value, last_action=action, last_reward=reward, last_done=done, is_first=is_last
            )
        except ValueError:
            if stored and value.shape != self._frame_shape:
                raise self._wrong_shape(value) from None
            raise
        newest.push(value)
        if stored == 0:
            self._rows, self._newest, self._frame_shape = rows, newest, value.shape
        elif not is_known:
            self._closed.add(stored - 1)
        if self._closed:
            self._closed.discard(stored - self.size)
        self._effect = NOT_KNOWN
        self._run = 1 if is_last else self._run + 1
        self._stored = stored + 1
        return slot  # type: ignore[return-value]  # a row was added

    def _wrong_shape(self, frame: Array) -> ValueError:
        return ValueError(f"frame: expected shape {self._frame_shape}, got {frame.shape}")

    def store_effect(
        self,
        idx: int,
        action: int,
        reward: float,
        done: bool,
        *,
        truncated: bool = False,
        final_frame: ArrayLike | None = None,
    ) -> None:
        """Store what was done upon a frame, and what came of it.

        Parameters
        ----------
        idx : int
            What ``store_frame`` returned.
        action : int
        reward : float
        done : bool
            Whether the episode has ended and no reward will follow.
        truncated : bool
            Whether it was only cut off: the next frame is of another episode, but more reward would
            have followed.
        final_frame : array_like, optional
            The observation at which it was cut off, which is stored as a frame of its own. Without
            it no transition starts at ``idx``, because what followed is not known.

        Raises
        ------
        IndexError
            There is no frame in this slot.
        TypeError, ValueError
            A value is of a wrong type, or is not what its dtype can hold; or there is a
            ``final_frame`` without ``truncated``, or of a frame that is not the newest. Nothing has
            changed.
        """
        if (  # what programs do at each step, in half the time of all the questions below
            type(action) is int
            and type(reward) is float
            and type(done) is bool  # type: ignore[redundant-expr]
            and type(idx) is int
            and 0 <= idx == (self._stored - 1) % self.size
            and -INT32_MAX <= action <= INT32_MAX
            and -FLOAT32_MAX <= reward <= FLOAT32_MAX
            and self._stored
            and truncated is False
            and final_frame is None
        ):
            self._effect = (action, reward, done, done, True)
            return
        slot = whole("idx", idx)
        rows = self._rows
        if rows is None or not 0 <= slot < self.num_in_buffer:
            raise IndexError(f"idx: expected the slot of a frame, got {idx}")
        is_done, is_cut = _flag("done", done), _flag("truncated", truncated) and not done
        is_newest = slot == (self._stored - 1) % self.size
        if final_frame is not None and not (is_cut and is_newest):
            raise ValueError("final_frame: expected for the newest frame only, if it is truncated")
        is_last = is_done or (is_cut and final_frame is None)
        effect = (_action(action), _reward(reward), is_done, is_last, is_done or not is_last)
        if not is_newest:
            self._replace(rows, slot, effect)
            return
        before, self._effect = self._effect, effect
        if final_frame is not None:
            try:
                self.store_frame(final_frame)
            except BaseException:
                self._effect = before
                raise
            self._effect = (0, 0.0, False, True, False)

    def _replace(self, rows: cpprb_like.ReplayBuffer, slot: int, effect: Effect) -> None:
        """Store the effect of a frame that is not the newest."""
        action, reward, done, is_last, is_known = effect
        rows.update(
            (slot + 1) % self.size,
            last_action=action,
            last_reward=reward,
            last_done=done,
            is_first=is_last,
        )
        age = self._age(slot)
        number = self._stored - self.num_in_buffer + age
        (self._closed.discard if is_known else self._closed.add)(number)
        newest = np.array([self.num_in_buffer - 1])
        self._run = int((self._windows(rows, newest) >= 0).sum())

    def _open(self, frame: Array) -> tuple[cpprb_like.ReplayBuffer, NewestFrames]:
        """Rows for frames like the first one, and room for the newest of them."""
        dtype = frame.dtype if self._dtype is None else self._dtype
        rows = cpprb_like.ReplayBuffer(
            self.size,
            {
                "obs": {"shape": frame.shape, "dtype": dtype},
                "last_action": {"shape": (), "dtype": np.int32},
                "last_reward": {"shape": (), "dtype": np.float32},
                "last_done": {"shape": (), "dtype": np.bool_},
                "is_first": {"shape": (), "dtype": np.bool_},
            },
            seed=0,  # never used: the draws are our own
        )
        return rows, NewestFrames(self.frame_history_len, frame.shape, dtype)

    # ------------------------------------------------------------------ reading

    def encode_recent_observation(self) -> Array:
        """The view of the newest frame.

        Returns
        -------
        ndarray
            Shape ``(height, width, channels * frame_history_len)``, of the dtype of the frames; of
            observations of fewer axes their own shape.

        Raises
        ------
        NotEnoughFramesError
            There is no frame. It is an ``AssertionError`` and a ``ValueError``.

        Notes
        -----
        Whether the newest frame ends the episode does not matter, so its effect need not be there.
        Nobody changes a view as long as it lives, neither can its owner: it shares frames with the
        views after it. Its frames lie behind each other in memory, as those of the original do.
        """
        if self._newest is None:
            raise NotEnoughFramesError("expected a frame to be stored, got none so far")
        return self._newest.view(min(self._run, self.size))

    def can_sample(self, batch_size: int) -> bool:
        """Whether there are ``batch_size`` different transitions, and a frame at all.

        The newest frame starts none, nor does one whose effect has not been stored.
        """
        n = whole("batch_size", batch_size, 0)
        return self._rows is not None and n <= self.num_in_buffer - len(self._without_next())

    def sample(self, batch_size: int) -> Batch:
        """Draw different transitions, each with the same probability.

        Parameters
        ----------
        batch_size : int
            How many, at least 0.

        Returns
        -------
        tuple of ndarray
            ``obs, action, reward, next_obs, done_mask``. The views have the shape
            ``(batch_size, height, width, channels * frame_history_len)`` and the dtype of the
            frames; the others ``(batch_size,)`` and int32, float32, float32. ``done_mask`` is 1
            where the episode ended; there ``next_obs`` is a view of the next episode.

        Raises
        ------
        NotEnoughFramesError
            ``can_sample(batch_size)`` is false. It is an ``AssertionError`` and a ``ValueError``.
        TypeError, ValueError
            ``batch_size`` is no integer of at least 0.

        Notes
        -----
        Cost proportional to ``batch_size``, unless that is more than half of the transitions: then
        to the number of frames.
        """
        rows = self._rows
        if rows is None or not self.can_sample(batch_size):
            raise NotEnoughFramesError(
                f"cannot sample {batch_size} different transitions of {self.num_in_buffer} frames"
            )
        ages = self._draw(whole("batch_size", batch_size))
        windows = self._windows(rows, np.concatenate([ages, ages + 1]))
        now, following = windows[: len(ages)], windows[len(ages) :]
        next_slots = following[:, -1:]
        action, reward, done = (
            rows.stack(name, next_slots).reshape(-1)
            for name in ("last_action", "last_reward", "last_done")
        )
        return Batch(
            self._views(rows, now),
            action,
            reward,
            self._views(rows, following),
            done.astype(np.float32),
        )

    def _draw(self, n: int) -> Ints:
        """Different frames that a transition starts at, by age: the oldest has 0."""
        among, without = self.num_in_buffer, self._without_next()
        integers = np.random.randint if self._rng is None else self._rng.integers
        if 2 * (n + len(without)) > among:
            there = np.setdiff1d(np.arange(among), without)
            permutation = np.random.permutation if self._rng is None else self._rng.permutation
            return permutation(there)[:n]
        found = dict.fromkeys(without)
        while len(found) < n + len(without):
            missing = n + len(without) - len(found)
            found.update(dict.fromkeys(integers(0, among, missing).tolist()))
        return np.fromiter(found, np.intp, len(found))[len(without) :]

    def _without_next(self) -> list[int]:
        """The frames that no transition starts at, by age."""
        oldest = self._stored - self.num_in_buffer
        return [self._stored - 1 - oldest, *sorted(number - oldest for number in self._closed)]

    def _windows(self, rows: cpprb_like.ReplayBuffer, ages: Ints) -> Ints:
        """The slots of the frames of each view, oldest first; -1 for what is not there.

        ``ages`` are those of the newest frames.
        """
        back = ages[:, np.newaxis] + np.arange(1 - self.frame_history_len, 1)
        first = self.next_idx if self.num_in_buffer == self.size else 0
        slots = np.where(back < 0, -1, (first + back) % self.size)
        if self.frame_history_len > 1 and len(self._frame_shape) > 1:
            is_first = rows.stack("is_first", slots[:, 1:])
            is_before = np.logical_or.accumulate(is_first[:, ::-1], axis=1)[:, ::-1]
            slots[:, :-1][is_before] = -1
        return slots

    def _views(self, rows: cpprb_like.ReplayBuffer, windows: Ints) -> Array:
        """The frames of each window, joined along their last axis."""
        shape, n = self._frame_shape, len(windows)
        if len(shape) < 2:
            return rows.stack("obs", windows[:, -1:], axis=0).reshape(n, *shape)
        if len(shape) == 2:
            return rows.stack("obs", windows)
        channels = shape[-1] * self.frame_history_len
        return rows.stack("obs", windows, axis=-2).reshape(n, *shape[:-1], channels)

    # ------------------------------------------------------------------ state

    @property
    def num_in_buffer(self) -> int:
        """Frames held."""
        return min(self._stored, self.size)

    @property
    def next_idx(self) -> int:
        """Slot of the next frame."""
        return self._stored % self.size

    def _age(self, slot: int) -> int:
        """The age of a frame in a slot."""
        return (slot - self.next_idx) % self.size if self.num_in_buffer == self.size else slot

    @property
    def obs(self) -> StoredField | None:
        """The frames by slot, None before the first one."""
        return self._field("obs", self._read_frames)

    @property
    def action(self) -> StoredField | None:
        """The actions by slot, None before the first frame."""
        return self._field("last_action", partial(self._read_effects, "action"))

    @property
    def reward(self) -> StoredField | None:
        """The rewards by slot, None before the first frame."""
        return self._field("last_reward", partial(self._read_effects, "reward"))

    @property
    def done(self) -> StoredField | None:
        """Whether the episode ended, by slot; None before the first frame."""
        return self._field("last_done", partial(self._read_effects, "done"))

    def _field(self, name: str, read: Callable[[Ints], Array]) -> StoredField | None:
        if self._rows is None:
            return None
        field = next(field for field in self._rows.schema.fields if field.name == name)
        return StoredField((self.size, *field.shape), field.dtype, read)

    def _read_frames(self, slots: Ints) -> Array:
        assert self._rows is not None
        used = np.where(slots < self.num_in_buffer, slots, -1)
        frames = self._rows.stack("obs", used[:, np.newaxis], axis=0)
        return frames.reshape(len(slots), *self._frame_shape)

    def _read_effects(self, name: str, slots: Ints) -> Array:
        assert self._rows is not None
        newest = (self._stored - 1) % self.size
        older = (slots < self.num_in_buffer) & (slots != newest)
        following = np.where(older, (slots + 1) % self.size, -1)
        values = self._rows.stack(f"last_{name}", following[:, np.newaxis]).reshape(-1)
        values[slots == newest] = self._effect[EFFECT.index(name)]
        return values

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(size={self.size}, "
            f"frame_history_len={self.frame_history_len}, num_in_buffer={self.num_in_buffer})"
        )


def sample_n_unique(sampling_f: Callable[[], Result], n: int) -> list[Result]:
    """Call a function until it has given ``n`` different results.

    Parameters
    ----------
    sampling_f : callable
        Without arguments.
    n : int
        At least 0.

    Returns
    -------
    list
        The results in the order in which they came first.

    Raises
    ------
    RuntimeError
        No new result came for so many calls that there seem to be fewer than ``n``; the original
        never returns then.

    Notes
    -----
    One call of the function for each result and each repeat; proportional to that for results that
    can be hashed.

    Examples
    --------
    >>> import random
    >>> from cpprb_like.compat.dqn import sample_n_unique
    >>> sorted(sample_n_unique(lambda: random.randint(0, 3), 4))
    [0, 1, 2, 3]
    """
    wanted = whole("n", n, 0)
    results: list[Result] = []
    hashed: set[Result] = set()
    repeats = 0
    while len(results) < wanted:
        candidate = sampling_f()
        try:
            is_new = candidate not in hashed
            hashed.add(candidate)
        except TypeError:  # cannot be hashed
            is_new = candidate not in results
        if is_new:
            results.append(candidate)
            repeats = 0
            continue
        repeats += 1
        if repeats > PATIENCE * (len(results) + PATIENCE):
            raise RuntimeError(f"n: expected {n} different results, found only {len(results)}")
    return results


def _frame(value: ArrayLike) -> Array:
    """An array of numbers; of Python objects only where it is one already."""
    try:
        frame = np.asarray(value)
    except ValueError as error:  # rows of several lengths
        raise ValueError(f"frame: {error}") from None
    if frame.dtype.hasobject and not hasattr(value, "dtype"):
        raise TypeError(f"frame: expected an array, got {type(value).__name__}")
    return frame


def _flag(name: str, value: object) -> bool:
    """A bool, also of NumPy or as 0 or 1."""
    if np.ndim(value) or value not in (0, 1):  # type: ignore[arg-type]
        raise ValueError(f"{name}: expected True or False, got {value!r}")
    return bool(value)


def _action(value: int) -> int:
    action = whole("action", value)
    if not -INT32_MAX - 1 <= action <= INT32_MAX:
        raise ValueError(f"action: expected an integer that int32 can hold, got {action}")
    return action


def _reward(value: float) -> float:
    try:
        reward = float(value)
    except (TypeError, ValueError):
        raise TypeError(f"reward: expected a number, got {value!r}") from None
    if FLOAT32_MAX < abs(reward) < math.inf:
        raise ValueError(f"reward: expected a number that float32 can hold, got {reward}")
    return reward
