"""keras-gym's ``ExperienceReplayBuffer``, which stores each frame once."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cpprb_like import ReplayBuffer
from cpprb_like._arguments.arrays import Array, Slots
from cpprb_like._arguments.checks import as_discount, as_int, as_whole
from cpprb_like._arguments.foreign_arrays import read_argument
from cpprb_like.compat.keras_gym._caches import Transitions
from cpprb_like.compat.keras_gym._env import ForEnv, InsufficientCacheError, NumpyArrayCheckError
from cpprb_like.samplers import Where
from cpprb_like.typing import FieldSpec

MOST_REJECTED = 10  # rejected rows for each row of a batch, before all transitions are listed


class Found(NamedTuple):
    """Transitions that start at given slots."""

    rows: Slots  # windows of slots, shape (n, num_frames + bootstrap_n)
    last: Slots  # place in the window of the row after the steps, or of the row that is done
    ended: NDArray[np.bool_]  # whether a row of the steps is done


class ExperienceReplayBuffer(ForEnv):
    """keras-gym's buffer of steps in which each frame is stored once.

    Parameters
    ----------
    env
        Environment with a Discrete or Box ``action_space``. ``num_frames`` of the environment, or
        of an environment that it wraps, is the number of frames in a stack, by default 1.
    capacity : int
        Number of steps to hold. The buffer stores ``bootstrap_n`` more, which the last steps need.
    batch_size : int
        Number of transitions in a batch.
    bootstrap_n : int
        Number of steps of an n-step transition.
    gamma : float
        Discount factor, from 0 to 1.
    random_seed : int, optional
        Seed of the draws. Setting the attribute seeds the draws again, deleting it unseeds them.

    Attributes
    ----------
    num_frames : int
        Number of frames in a stack. The parameters are attributes too.
    random : numpy.random.RandomState
        Generator of the draws.

    Raises
    ------
    ActionSpaceError
        The action space is neither Discrete nor a Box.

    Notes
    -----
    Only complete transitions are drawn: ``bootstrap_n`` steps and the state after them are in the
    buffer and in one episode, or the episode is done within these steps. So the newest steps are
    not drawn before they have a next state. The last ``bootstrap_n`` steps of an episode that ended
    without ``done`` are never drawn. Nor are the ``num_frames - 1`` oldest steps of a full buffer,
    because frames before them were overwritten.

    Rows are drawn by ``random.randint`` and rejected if no transition starts at them, as in
    keras-gym. keras-gym may return states that were never written or do not follow each other. With
    the same seed the draws equal keras-gym's draws up to the first such state.

    Cost of a batch: usually proportional to ``batch_size``. Where nearly every draw is rejected,
    also to the number of stored steps. One thread adds, and any number of threads may draw and
    clear at the same time. A batch shows the state of one moment. An interrupted call has done
    everything or nothing.

    Examples
    --------
    >>> import numpy as np
    >>> from types import SimpleNamespace
    >>> from cpprb_like.compat.keras_gym import ExperienceReplayBuffer
    >>> env = SimpleNamespace(action_space=SimpleNamespace(n=2), num_frames=3)
    >>> buffer = ExperienceReplayBuffer(env, capacity=100, batch_size=4, random_seed=1)
    >>> frames = np.arange(52, dtype=np.uint8)[:, None, None] * np.ones((8, 8), np.uint8)
    >>> for t in range(50):
    ...     stack = np.moveaxis(frames[t : t + 3], 0, -1)
    ...     buffer.add(stack, a=t % 2, r=1.0, done=t == 49, episode_id=7)
    >>> S, A, Rn, In, S_next, A_next = buffer.sample()
    >>> S.shape, A.shape, Rn.tolist(), In.tolist()
    ((4, 8, 8, 3), (4, 2), [1.0, 1.0, 1.0, 1.0], [0.99, 0.99, 0.99, 0.99])
    >>> bool((S_next == S + 1).all())
    True
    """

    OF_ROWS = ("capacity", "bootstrap_n", "gamma", "num_frames", "action_field")

    def __init__(
        self,
        env: Any,
        capacity: float,
        batch_size: int = 32,
        bootstrap_n: int = 1,
        gamma: float = 0.99,
        random_seed: int | None = None,
    ) -> None:
        super().__init__(env)
        self.capacity = as_whole("capacity", capacity, 1)
        self.batch_size = as_whole("batch_size", batch_size, 1)
        self.bootstrap_n = as_whole("bootstrap_n", bootstrap_n, 1)
        self.gamma = as_discount("gamma", gamma)
        self.num_frames = _num_frames(env)
        self.random_seed = random_seed
        self._slots = self.capacity + self.bootstrap_n
        self._steps: ReplayBuffer | None = None  # None until the first step, which shows the fields
        # The open episode, noted before its first step is written, so that an interrupt needs no
        # repair: number of clears, number of its first step, its id, id of the previous episode.
        # Until that first step is written, the previous episode is the open one.
        self._begun: tuple[int, int, Any, Any] = (-1, 0, None, None)

    @classmethod
    def from_value_function(
        cls,
        value_function: Any,
        capacity: float,
        batch_size: int = 32,
        random_seed: int | None = None,
    ) -> ExperienceReplayBuffer:
        """A buffer with the ``env``, ``bootstrap_n`` and ``gamma`` of a value function."""
        return cls(
            value_function.env,
            capacity,
            batch_size,
            value_function.bootstrap_n,
            value_function.gamma,
            random_seed,
        )

    @property
    def random_seed(self) -> int | None:
        """The seed of the draws; None if no seed was given."""
        return self._random_seed

    @random_seed.setter
    def random_seed(self, seed: int | None) -> None:
        try:
            self.random = np.random.RandomState(seed)
        except (TypeError, ValueError) as error:
            raise type(error)(f"random_seed: {error}") from None
        self._random_seed = seed

    @random_seed.deleter
    def random_seed(self) -> None:
        self.random_seed = None

    # ------------------------------------------------------------------ adding

    def add(self, s: Any, a: Any, r: float, done: bool, episode_id: Any) -> None:
        """Add a step.

        Parameters
        ----------
        s : array_like
            State. With ``num_frames`` above 1 the last axis has the frames, oldest first. If a
            state has three axes or more, only its last frame, the newest one, is stored. A state of
            one or two axes is stored whole and counts as a frame, as in keras-gym.
        a : int or array_like
            Action. Discrete: the number of an action, or a weight for each action. Box: an array of
            the space's shape.
        r : float
            Reward.
        done : bool
            Whether the episode terminated, so that no further reward is possible. A truncated
            episode has ``done=False``, and the next step has another ``episode_id``.
        episode_id : hashable
            Name of the episode, equal in all its steps. Another ``episode_id`` begins an episode.

        Raises
        ------
        NumpyArrayCheckError
            ``s`` is not an array of numbers, or its last axis does not have ``num_frames`` frames.
        TypeError, ValueError
            A value has a wrong type or shape. Any error leaves the buffer unchanged.
        """
        frame, action = self._newest_frame(s), self.read_action(a)
        try:
            hash(episode_id)
        except TypeError:
            raise TypeError(f"episode_id: expected a hashable, got {episode_id!r}") from None
        steps = self._open(frame) if self._steps is None else self._steps
        ring, (noted_at, first, episode, before) = steps.ring, self._begun
        clears, written = ring.clears, ring.written
        current = episode if written > first else before
        is_first = not (clears == noted_at and written > 0 and episode_id == current)
        if is_first:
            self._begun = (clears, written, episode_id, current)
        elif written <= first:  # the first step of the noted episode was not written
            self._begun = (clears, -1, current, None)
        steps.add(s=frame, a=action, r=r, done=done, is_first=is_first)
        if self._steps is None:
            self._steps = steps

    def _newest_frame(self, s: Any) -> Array:
        try:
            state = s if type(s) is np.ndarray else read_argument("s", s)
        except ValueError as error:
            raise NumpyArrayCheckError(str(error)) from None
        if state.dtype.hasobject:
            raise NumpyArrayCheckError(f"s: expected an array of numbers, got {s!r}")
        if self.num_frames == 1:
            return state
        if state.ndim == 0 or state.shape[-1] != self.num_frames:
            raise NumpyArrayCheckError(
                f"s: expected {self.num_frames} frames along the last axis, got {state.shape}"
            )
        return np.ascontiguousarray(state[..., -1]) if state.ndim >= 3 else state

    def _open(self, frame: Array) -> ReplayBuffer:
        action = self.action_field
        fields: dict[str, FieldSpec] = {
            "s": {"shape": frame.shape, "dtype": frame.dtype},
            "a": {"shape": action.shape, "dtype": action.dtype},
            "r": {"shape": (), "dtype": np.float64},
            "done": {"shape": (), "dtype": np.bool_},
            "is_first": {"shape": (), "dtype": np.bool_},  # whether an episode begins here
        }
        return ReplayBuffer(  # the seed is not used: this class draws
            self._slots, fields, terminated=False, truncated=False, seed=0
        )

    def clear(self) -> None:
        """Delete all steps; memory and the state of the generator stay."""
        if self._steps is not None:
            self._steps.clear()

    # ------------------------------------------------------------------ sampling

    def sample(self) -> Transitions:
        """Draw transitions of ``bootstrap_n`` steps.

        Returns
        -------
        S, S_next : ndarray, shape ``(batch_size, *frame, num_frames)``
            States before and after the steps, oldest frame first, in the dtype of the frames. With
            ``num_frames=1`` the last axis is missing. At the start of an episode, its first frame
            is repeated.
        A, A_next : ndarray, shape (batch_size, num_actions) or ``(batch_size, *box)``
            Actions in ``S`` and ``S_next``: one-hot and float64, or in the dtype of the Box.
        Rn : ndarray of float64, shape (batch_size,)
            n-step returns: sums of the rewards, the k-th times ``gamma ** k``, up to the end of the
            episode.
        In : ndarray of float64, shape (batch_size,)
            Bootstrap factors ``gamma ** bootstrap_n``, or 0 if the episode was done within the
            steps. Then ``S_next`` and ``A_next``, which In masks, repeat the last state and action.

        In the order ``S, A, Rn, In, S_next, A_next``.

        Raises
        ------
        InsufficientCacheError
            There are fewer than ``batch_size`` steps, or no transition starts at any of them. This
            error is a ``ValueError`` and a ``RuntimeError``.
        """
        batch_size, steps = as_whole("batch_size", self.batch_size, 1), self._steps  # it may be set
        if steps is None:
            raise InsufficientCacheError(
                f"cannot sample {batch_size} transitions: the buffer holds 0"
            )
        batch: Transitions = steps.consistently(partial(self._sample, steps, batch_size))
        return batch

    def _sample(self, steps: ReplayBuffer, batch_size: int) -> tuple[Slots, Transitions] | None:
        """The oldest slots of a random batch, and the batch; called by ``consistently``."""
        written = steps.ring.written
        held = self._held(written)
        if held < batch_size:
            raise InsufficientCacheError(
                f"cannot sample {batch_size} transitions: the buffer holds {held}"
            )
        rows, last, ended = self._draw(steps, written, batch_size)
        if steps.ring.written != written:
            return None  # the draws may have seen different states of the ring
        n, here, every = self.bootstrap_n, self.num_frames - 1, np.arange(len(rows))
        within = np.arange(n) < (last - here + ended)[:, np.newaxis]
        powers = np.array([self.gamma**k for k in range(n)])
        with np.errstate(over="ignore", invalid="ignore"):
            rewards = np.where(within, powers * steps.stack("r", rows[:, here : here + n]), 0.0)
            returns = rewards.cumsum(axis=1)[:, -1]  # in order; ``sum`` adds by pairs
        following = np.minimum(n + np.arange(self.num_frames), last[:, np.newaxis])
        actions = steps.stack("a", np.stack([rows[:, here], rows[every, last]], axis=1))
        return np.ascontiguousarray(rows[:, 0]), (
            self._states(steps, rows[:, : self.num_frames]),
            np.ascontiguousarray(actions[..., 0]),
            returns,
            np.where(ended, 0.0, self.gamma**n),
            self._states(steps, rows[every[:, np.newaxis], following]),
            np.ascontiguousarray(actions[..., 1]),
        )

    def _draw(self, steps: ReplayBuffer, written: int, n: int) -> Found:
        """Draw n transitions by rejection, as keras-gym does."""
        found: list[Found] = []
        missing, rejected = n, 0
        while missing and rejected < MOST_REJECTED * n:
            # One number for each missing row: the same numbers as of single draws.
            drawn = self.random.randint(min(written, self._slots), size=missing)
            there, _ = self._find(steps, written, drawn.astype(np.intp))
            found.append(there)
            rejected += missing - len(there.rows)
            missing -= len(there.rows)
        if missing:
            found.append(self._draw_listed(steps, written, missing))
        return (
            found[0] if len(found) == 1 else Found(*map(np.concatenate, zip(*found, strict=True)))
        )

    def _draw_listed(self, steps: ReplayBuffer, written: int, n: int) -> Found:
        """Draw n transitions from a list of all, for ``_draw`` after too many rejections."""
        there = Where(steps.ring, lambda slots: self._find(steps, written, slots)[1]).slots()
        if len(there) == 0:
            raise InsufficientCacheError(
                f"cannot sample: no step has {self.bootstrap_n} more of its episode behind it, or "
                "its end by done"
            )
        return self._find(steps, written, there[self.random.randint(len(there), size=n)])[0]

    def _find(
        self, steps: ReplayBuffer, written: int, slots: Slots
    ) -> tuple[Found, NDArray[np.bool_]]:
        """The transitions that start at ``slots``, and a flag for each slot: whether one starts."""
        n, here = self.bootstrap_n, self.num_frames - 1
        rows, counts, _ = steps.ring.windows(slots, here, n, starts="is_first")
        following = counts[:, 1]
        ends = steps.stack("done", rows[:, here : here + n])
        ends &= np.arange(n) <= following[:, np.newaxis]
        ended = np.logical_or.reduce(ends, axis=1)
        # Stacks that reach before the oldest row are rejected: the ring has overwritten frames, or
        # has few free slots, where keras-gym reads the newest row as an older one and rejects.
        stored = min(written, self._slots)
        ages = (slots - (written - stored)) % self._slots
        there = ended | (following == n)
        there &= ages >= here - (self._slots - stored)
        last = here + np.where(ended, ends.argmax(axis=1), n)
        return Found(rows[there], last[there], ended[there]), there

    def _states(self, steps: ReplayBuffer, slots: Slots) -> Array:
        """The stacks at ``slots``, without the axis of frames if ``num_frames`` is 1."""
        states = steps.stack("s", slots)
        return states[..., 0] if self.num_frames == 1 else states

    # ------------------------------------------------------------------ sizes

    def _held(self, written: int) -> int:
        """``len`` of the buffer after ``written`` steps."""
        return max(0, min(written, self._slots) - self.bootstrap_n)

    def __len__(self) -> int:
        """Number of stored steps, without the newest ``bootstrap_n``; at most ``capacity``."""
        return 0 if self._steps is None else self._held(self._steps.ring.written)

    def __bool__(self) -> bool:
        return len(self) > 0


def _num_frames(env: Any) -> int:
    """``num_frames`` of the environment or of the outermost wrapped one that has it, else 1."""
    while env is not None:
        if hasattr(env, "num_frames"):
            return as_int("env.num_frames", env.num_frames, 1)
        env = getattr(env, "env", None)
    return 1
