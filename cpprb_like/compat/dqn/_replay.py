"""Berkeley's ``ReplayBuffer``: single frames are stored, and stacked when a batch is drawn."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

import cpprb_like
from cpprb_like._arguments.arrays import Array
from cpprb_like._arguments.checks import as_int
from cpprb_like._arguments.foreign_arrays import read_argument
from cpprb_like._machine.generators import Seed, generator
from cpprb_like.checkpoint import Checkpointed
from cpprb_like.errors import NotEnoughDataError
from cpprb_like.samplers import Where

Ints = NDArray[np.intp]
Result = TypeVar("Result")

INT32_MAX = int(np.iinfo(np.int32).max)
FLOAT32_MAX = float(np.finfo(np.float32).max)
MOST_REPEATS = 50  # repeated results for each result found, before ``sample_n_unique`` raises


class NotEnoughFramesError(NotEnoughDataError, AssertionError):
    """Error for too few stored frames; the original raises ``AssertionError``."""


class Batch(NamedTuple):
    """A batch of ``ReplayBuffer.sample``: a named tuple of five arrays."""

    obs: Array  #: views at the time of the action
    action: NDArray[np.int32]
    reward: NDArray[np.float32]
    next_obs: Array  #: views one frame later
    done_mask: NDArray[np.float32]  #: 1 where the episode ended by the action, else 0


# Fields of the effect of a frame: action, reward, done, whether the next frame begins an episode,
# and whether a transition starts at the frame. The row of the next frame stores them.
EFFECT = ("last_action", "last_reward", "last_done", "is_first", "is_known")
NOT_KNOWN: dict[str, Any] = dict(zip(EFFECT, (0, 0.0, False, False, False), strict=True))


class StoredField:
    """A field of a ``ReplayBuffer``, read when it is indexed.

    The first axis has the slots. One index selects slots, as in an array, and returns a copy.
    Slots that were never used are 0. ``numpy.asarray`` copies all slots.
    """

    def __init__(
        self, shape: tuple[int, ...], dtype: np.dtype[Any], read: Callable[[Ints], Array]
    ) -> None:
        self.shape = shape
        self.dtype = dtype
        self.ndim = len(shape)
        self._read = read

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: Any) -> Any:
        is_plain = isinstance(index, (int, np.integer, slice))  # makes no array of all slots
        slots = np.asarray((range if is_plain else np.arange)(len(self))[index], np.intp)
        values = self._read(slots.reshape(-1))
        return values.reshape((*slots.shape, *self.shape[1:]))[()]

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> Array:
        if copy is False:
            raise ValueError("copy: the values have to be copied")
        return np.asarray(self[:], dtype)


class ReplayBuffer(Checkpointed):
    """A buffer that stores each frame once, and draws random transitions of stacked frames.

    Parameters
    ----------
    size, frame_history_len : int
        Number of frames to store, and number of frames in a view, at least 1.
    dtype : dtype, optional
        Dtype of stored frames, by default the dtype of the first frame. The original has
        ``np.uint8``.
    seed : int, SeedSequence, BitGenerator, Generator, optional
        Seed of the draws. Without a seed, draws come from NumPy's global state, so that
        ``np.random.seed`` controls them.

    Attributes
    ----------
    size, frame_history_len : int
        As given.
    next_idx, num_in_buffer : int
        Slot of the next frame, and number of stored frames.
    obs, action, reward, done : StoredField or None
        Stored values by slot, for reading; None before the first frame. ``obs`` has the shape
        ``(size, *frame.shape)``, the other fields ``(size,)``.

    Notes
    -----
    A view joins the newest ``frame_history_len`` frames of the episode along their last axis, the
    axis of channels, oldest first. Frames from before the episode and overwritten frames have
    channels of 0. Frames of shape ``(height, width)`` have one channel. If observations have fewer
    axes, such as the RAM of a game, the view is the newest observation alone.

    One thread stores, and any number of threads may draw and read at the same time. A batch shows
    the state of one moment. An interrupted call has stored everything or nothing.

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

    OF_ROWS = ("size", "frame_history_len", "_dtype")

    def __init__(
        self,
        size: int,
        frame_history_len: int,
        *,
        dtype: DTypeLike | None = None,
        seed: Seed = None,
    ) -> None:
        self.size = as_int("size", size, 1)
        self.frame_history_len = as_int("frame_history_len", frame_history_len, 1)
        self._dtype = None if dtype is None else np.dtype(dtype)
        self._rng = None if seed is None else generator(seed)
        self._rows: cpprb_like.ReplayBuffer | None = None
        self._frame_shape: tuple[int, ...] = ()
        # Number and effect of the newest frame, which the row of the next frame will store.
        self._pending: tuple[int, dict[str, Any]] = (-1, NOT_KNOWN)

    # ------------------------------------------------------------------ storing

    def store_frame(self, frame: ArrayLike) -> int:
        """Store a frame, in place of the oldest frame if the buffer is full.

        Returns the slot of the frame, for ``store_effect``. No transition starts at the frame
        before ``store_effect``. Raises ``TypeError`` or ``ValueError``, and stores nothing, if the
        frame is not an array. The same holds if its shape differs from the first frame's, or the
        dtype of the frames cannot hold it.
        """
        number = self._stored
        value = frame if type(frame) is np.ndarray else read_argument("frame", frame)
        if value.dtype.hasobject:
            raise TypeError(f"frame: expected an array of numbers, got {frame!r}")
        rows = self._rows
        if rows is None:
            rows = self._open(value)
        elif value.ndim != len(self._frame_shape):
            raise self._wrong_shape(value)
        newest, effect = self._pending
        known = effect if newest == number - 1 else NOT_KNOWN
        try:
            slot = rows.add(obs=value, **known)
        except ValueError:
            if number and value.shape != self._frame_shape:
                raise self._wrong_shape(value) from None
            raise
        if number == 0:
            self._frame_shape = value.shape
            self._rows = rows  # set last: threads that find rows read the shape
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
    ) -> None:
        """Store the action after a frame, with its reward and its ``done`` flag.

        Parameters
        ----------
        idx, action, reward, done
            As in the original: slot of the frame from ``store_frame``, and values that followed.
        truncated : bool
            Whether the episode was only cut off, so that the next frame begins another episode. No
            transition starts at ``idx``, because its next observation is not known.

        Raises
        ------
        IndexError, TypeError, ValueError
            There is no frame in this slot, or the dtype of a value cannot hold it. Nothing has
            changed.
        """
        rows = self._rows
        slot = as_int("idx", idx)
        if rows is None or not 0 <= slot < self.num_in_buffer:
            raise IndexError(f"idx: expected the slot of a frame, got {idx}")
        is_done = _flag("done", done)
        is_cut = _flag("truncated", truncated) and not is_done
        number = as_int("action", action, -INT32_MAX - 1, INT32_MAX)
        values = (number, _reward(reward), is_done, is_done or is_cut, not is_cut)
        effect = dict(zip(EFFECT, values, strict=True))
        newest = self._stored - 1
        if slot == newest % self.size:
            self._pending = newest, effect
        else:
            rows.update((slot + 1) % self.size, **effect)

    def _open(self, frame: Array) -> cpprb_like.ReplayBuffer:
        """An empty buffer of rows for frames of the shape and dtype of ``frame``."""
        dtype = frame.dtype if self._dtype is None else self._dtype
        return cpprb_like.ReplayBuffer(
            self.size,
            {
                "obs": {"shape": frame.shape, "dtype": dtype},
                "last_action": {"shape": (), "dtype": np.int32},
                "last_reward": {"shape": (), "dtype": np.float32},
                "last_done": {"shape": (), "dtype": np.bool_},
                "is_first": {"shape": (), "dtype": np.bool_},
                "is_known": {"shape": (), "dtype": np.bool_},
            },
            terminated=False,  # `is_first` of the next row marks the end of an episode
            truncated=False,
            seed=0,  # not used: this class draws
        )

    # ------------------------------------------------------------------ reading

    def encode_recent_observation(self) -> Array:
        """The view of the newest frame, in the dtype of the frames.

        Its shape is ``(height, width, channels * frame_history_len)``. Observations of fewer axes
        keep their shape. Raises ``NotEnoughFramesError`` if there is no frame.
        """
        rows = self._rows
        if rows is None:
            raise NotEnoughFramesError("expected a frame to be stored, got none so far")
        view: Array = rows.consistently(partial(self._newest_view, rows))
        return view

    def _newest_view(self, rows: cpprb_like.ReplayBuffer) -> tuple[Ints, Array]:
        """The slots of the view of the newest frame, and a copy of the view."""
        windows = self._windows(rows, np.array([rows.ring.written - 1]))
        return windows[windows >= 0], self._views(rows, windows)[0]

    def can_sample(self, batch_size: int) -> bool:
        """Whether there are ``batch_size`` different transitions and at least one frame.

        No transition starts at the newest frame, or at a frame without a stored effect.
        """
        n, rows = as_int("batch_size", batch_size, 0), self._rows
        if rows is None:
            return False
        found: bool = rows.consistently(lambda: (np.empty(0, np.intp), _starts(rows).has(n)))
        return found

    def sample(self, batch_size: int) -> Batch:
        """Draw different transitions, each with the same probability.

        Returns
        -------
        tuple of ndarray
            ``obs, action, reward, next_obs, done_mask``. The views have the shape
            ``(batch_size, height, width, channels * frame_history_len)`` and the dtype of the
            frames. The other arrays have shape ``(batch_size,)`` and are int32, float32, float32.
            Where the episode ended, ``done_mask`` is 1, and ``next_obs`` is a view of the next
            episode.

        Raises
        ------
        NotEnoughFramesError
            ``can_sample(batch_size)`` is false. This error is an ``AssertionError`` and a
            ``ValueError``.
        """
        n, rows = as_int("batch_size", batch_size, 0), self._rows
        if rows is None:
            raise NotEnoughFramesError(f"cannot sample {n} different transitions of 0 frames")
        batch: Batch = rows.consistently(partial(self._sample, rows, n))
        return batch

    def _sample(self, rows: cpprb_like.ReplayBuffer, n: int) -> tuple[Ints, Batch]:
        """The slots of a random batch, and the batch; called by ``consistently``."""
        starts = _starts(rows)
        rng = self._rng
        if rng is None:
            # NumPy's global state; its stubs lack the function.
            rng = np.random.Generator(np.random.get_bit_generator())  # type: ignore[attr-defined]
        try:
            numbers = starts.draw_distinct(n, rng)
        except NotEnoughDataError as error:
            raise NotEnoughFramesError(
                f"cannot sample {n} different transitions of {self.num_in_buffer} frames"
            ) from error
        windows = self._windows(rows, np.concatenate([numbers, numbers + 1]))
        now, following = windows[:n], windows[n:]
        next_slots = following[:, -1:]
        action, reward, done = (rows.stack(name, next_slots).reshape(-1) for name in EFFECT[:3])
        batch = Batch(
            self._views(rows, now),
            action,
            reward,
            self._views(rows, following),
            done.astype(np.float32),
        )
        return windows[windows >= 0], batch

    def _windows(self, rows: cpprb_like.ReplayBuffer, numbers: Ints) -> Ints:
        """The slots of the views whose newest frames have these numbers; -1 for padding."""
        depth = self.frame_history_len if len(self._frame_shape) > 1 else 1
        windows, _, _ = rows.ring.windows(
            numbers % self.size, depth - 1, 0, starts="is_first", repeat=False
        )
        return windows

    def _views(self, rows: cpprb_like.ReplayBuffer, windows: Ints) -> Array:
        """The frames at ``windows`` as views: joined along the last axis."""
        shape, n = self._frame_shape, len(windows)
        if len(shape) < 2:
            return rows.stack("obs", windows, axis=0).reshape(n, *shape)
        if len(shape) == 2:
            return rows.stack("obs", windows)
        channels = shape[-1] * self.frame_history_len
        return rows.stack("obs", windows, axis=-2).reshape(n, *shape[:-1], channels)

    # ------------------------------------------------------------------ state

    @property
    def _stored(self) -> int:
        """Frames stored so far."""
        return 0 if self._rows is None else self._rows.ring.written

    @property
    def num_in_buffer(self) -> int:
        """Number of stored frames."""
        return min(self._stored, self.size)

    @property
    def next_idx(self) -> int:
        """Slot of the next frame."""
        return self._stored % self.size

    @property
    def obs(self) -> StoredField | None:
        """The frames by slot; None before the first frame."""
        return self._field("obs", self._frames_at)

    @property
    def action(self) -> StoredField | None:
        """The actions by slot; None before the first frame."""
        return self._field("last_action", self._effects_at)

    @property
    def reward(self) -> StoredField | None:
        """The rewards by slot; None before the first frame."""
        return self._field("last_reward", self._effects_at)

    @property
    def done(self) -> StoredField | None:
        """The flags of episode ends by slot; None before the first frame."""
        return self._field("last_done", self._effects_at)

    def _field(self, name: str, read_at: Callable[..., tuple[Ints, Array]]) -> StoredField | None:
        rows = self._rows
        if rows is None:
            return None
        field = next(field for field in rows.schema.fields if field.name == name)

        def read(slots: Ints) -> Array:
            values: Array = rows.consistently(partial(read_at, rows, name, slots))
            return values

        return StoredField((self.size, *field.shape), field.dtype, read)

    def _frames_at(
        self, rows: cpprb_like.ReplayBuffer, name: str, slots: Ints
    ) -> tuple[Ints, Array]:
        """Slots of the rows that are read, and the frames in ``slots``."""
        used = np.where(slots < self.num_in_buffer, slots, -1)
        frames = rows.stack(name, used[:, np.newaxis], axis=0)
        return used[used >= 0], frames.reshape(len(slots), *self._frame_shape)

    def _effects_at(
        self, rows: cpprb_like.ReplayBuffer, name: str, slots: Ints
    ) -> tuple[Ints, Array]:
        """Slots of the rows that are read, and effects of the frames in ``slots``."""
        # ``_pending`` is read before ``written``: between the two, another thread may store a frame
        # and its effect.
        pending, effect = self._pending
        number = rows.ring.written
        newest = (number - 1) % self.size
        older = (slots < min(number, self.size)) & (slots != newest)
        following = np.where(older, (slots + 1) % self.size, -1)
        values = rows.stack(name, following[:, np.newaxis]).reshape(-1)
        known = effect if pending == number - 1 else NOT_KNOWN
        values[slots == newest] = known[name]
        return following[older], values

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(size={self.size}, "
            f"frame_history_len={self.frame_history_len}, num_in_buffer={self.num_in_buffer})"
        )


def _starts(rows: cpprb_like.ReplayBuffer) -> Where:
    """The frames at which a transition starts. The flag is in the row of the next frame."""
    ring = rows.ring

    def holds(slots: Ints) -> NDArray[np.bool_]:
        following = np.where(
            slots == (ring.written - 1) % ring.capacity, -1, (slots + 1) % ring.capacity
        )
        known: NDArray[np.bool_] = rows.stack("is_known", following[:, np.newaxis])[:, 0]
        return known

    return Where(ring, holds)


def sample_n_unique(sampling_f: Callable[[], Result], n: int) -> list[Result]:
    """Call a function until it has returned ``n`` different results.

    Results are in the order of their first return. Raises ``RuntimeError`` after so many calls
    without a new result that there seem to be fewer than ``n``. The original never returns then.

    Examples
    --------
    >>> import random
    >>> from cpprb_like.compat.dqn import sample_n_unique
    >>> sorted(sample_n_unique(lambda: random.randint(0, 3), 4))
    [0, 1, 2, 3]
    """
    wanted = as_int("n", n, 0)
    results: list[Result] = []
    repeats = 0
    while len(results) < wanted:
        candidate = sampling_f()
        if candidate not in results:
            results.append(candidate)
            repeats = 0
            continue
        repeats += 1
        if repeats > MOST_REPEATS * (len(results) + MOST_REPEATS):
            raise RuntimeError(f"n: expected {n} different results, found only {len(results)}")
    return results


def _flag(name: str, value: object) -> bool:
    """``value`` as a bool; ``ValueError`` unless it is True, False, 0 or 1."""
    if type(value) is bool:  # ten times as fast as the next line
        return value
    if np.ndim(value) or value not in (0, 1):  # type: ignore[arg-type]
        raise ValueError(f"{name}: expected True or False, got {value!r}")
    return bool(value)


def _reward(value: float) -> float:
    try:
        reward = float(value)
    except (TypeError, ValueError):
        raise TypeError(f"reward: expected a number, got {value!r}") from None
    if FLOAT32_MAX < abs(reward) < math.inf:
        raise ValueError(f"reward: expected a number that float32 can hold, got {reward}")
    return reward
