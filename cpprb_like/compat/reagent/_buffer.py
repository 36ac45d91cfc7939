"""ReAgent's ``ReplayBuffer``: transitions of several steps, with stacks, out of single steps.

Not here: the rows (``_store``), how a transition is made of them (``_transitions``), and files
of ReAgent's (``_files``).
"""

from __future__ import annotations

import copy
import operator
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, SupportsIndex, overload

import numpy as np
from numpy.typing import DTypeLike, NDArray

from cpprb_like import checkpoint
from cpprb_like._arguments.checks import as_int, as_path
from cpprb_like.checkpoint import Savable
from cpprb_like.compat.reagent import _settings
from cpprb_like.compat.reagent._draws import Draws, Plan, marks
from cpprb_like.compat.reagent._elements import (
    DenseMetadata,
    ElementMetadata,
    InferredElement,
    ReplayElement,
    check_elements,
    decode_lists,
    described,
    encode_lists,
    infer_step,
)
from cpprb_like.compat.reagent._errors import InputError, NamesError, need
from cpprb_like.compat.reagent._files import find_valid, read_files
from cpprb_like.compat.reagent._settings import Settings
from cpprb_like.compat.reagent._store import FINAL_FOLLOWS, FLAGS, TERMINAL, TRUNCATED, Read, Store
from cpprb_like.compat.reagent._transitions import (
    batch_type,
    read_transitions,
    transition_names,
)
from cpprb_like.errors import NotEnoughDataError

__all__ = ["CHECKPOINT_DURATION", "ReplayBuffer"]

CHECKPOINT_DURATION = 4  # iterations after which a save is removed

Array = NDArray[Any]
Slots = NDArray[np.intp]
Tensor = Any  # of PyTorch, which type checkers need not have
Element = Any  # InferredElement or ReplayElement: which one, depends on the constructor


class Pending(NamedTuple):
    """What is true beside the rows once a step is written; told before it is.

    The rows say whether it was, so whoever comes next can do what an interrupt left undone.
    """

    rows: Store
    written: int  #: of the rows' ring, when the step is there
    add_count: int
    episode_steps: int
    between_episodes: bool
    plan: Plan
    slots: Slots  #: of all rows that the step takes
    priorities: NDArray[np.float64] | None  #: theirs


class ReplayBuffer(Savable):
    """A ring of steps that gives out transitions as tensors.

    A step is stored once; states, next states and sums of rewards are put together when they are
    drawn. An episode begins with ``stack_size - 1`` rows of zeros, which take capacity and count in
    ``add_count``, so that slots are those of ReAgent.

    Parameters
    ----------
    stack_size : int
        Frames of a state, at least 1. All fields are stacked, along a new last axis.
    replay_capacity : int
        Rows, those of zeros included; at least ``update_horizon + stack_size``.
    batch_size : int
        Transitions of a batch unless ``sample_transition_batch`` is told another number.
    return_everything_as_stack : bool
        What it does, unlike its name: ``reward`` is the stack of the rewards up to the first step,
        and not the sum of those from it on. Everything else is stacked in either case.
    return_as_timeline_format : bool
        ``reward`` and the next values are lists with a tensor for each transition, which has a row
        for each of its steps.
    update_horizon : int
        Steps of a transition, at least 1, or fewer where the episode ends.
    gamma : float
        The factor of each further reward.
    strict : bool
        Refuse values of another dtype than the first ones; otherwise those that can be converted
        without changing their meaning are converted, such as 1 to 1.0 and 0 to False.
    observation_shape, extra_storage_types, ...
        Where fields are declared, as until July 2020: the shapes and dtypes of all fields. See the
        signatures.

    Raises
    ------
    InputError
        There is not enough capacity, or an argument is refused. It is a ``ValueError`` and an
        ``AssertionError``.
    TypeError
        An argument is unknown or of a wrong type.
    ImportError
        There is no PyTorch.

    Notes
    -----
    Steps become *valid*, which is to say that they can be drawn, when the ``update_horizon`` steps
    after them are there, or the episode has ended. One thread adds, and any number of threads may
    draw and read meanwhile: all of a batch was there at one moment. An ``add`` that is interrupted
    has added everything or nothing.

    Source: the replay memory of Dopamine (Castro et al., 2018), with ReAgent's changes.

    Examples
    --------
    >>> from cpprb_like.compat.reagent import ReplayBuffer
    >>> rb = ReplayBuffer(stack_size=2, replay_capacity=100, update_horizon=3, gamma=0.5)
    >>> for t in range(5):
    ...     rb.add(observation=[t, t], action=t, reward=1.0, terminal=t == 4)
    >>> batch = rb.sample_all_valid_transitions()
    >>> batch.state.shape, batch.state[1].tolist()
    (torch.Size([5, 2, 2]), [[0, 1], [0, 1]])
    >>> batch.reward.tolist()
    [[1.75], [1.75], [1.75], [1.5], [1.0]]
    >>> batch.step.tolist(), batch.terminal.tolist()
    ([[3], [3], [3], [2], [1]], [[False], [False], [True], [True], [True]])
    """

    _inferred: ClassVar[Callable[..., Settings]] = staticmethod(_settings.uniform)

    @overload
    def __init__(
        self,
        stack_size: int = 1,
        replay_capacity: int = 10000,
        batch_size: int = 1,
        return_everything_as_stack: bool | None = False,
        return_as_timeline_format: bool | None = False,
        update_horizon: int = 1,
        gamma: float = 0.99,
        *,
        strict: bool = False,
    ) -> None: ...

    @overload
    def __init__(
        self,
        observation_shape: tuple[int, ...],
        stack_size: int,
        replay_capacity: int,
        batch_size: int,
        return_everything_as_stack: bool | None = False,
        return_as_timeline_format: bool | None = False,
        update_horizon: int = 1,
        gamma: float = 0.99,
        max_sample_attempts: int = 1000,
        extra_storage_types: Iterable[tuple[str, tuple[int, ...], DTypeLike]] | None = None,
        observation_dtype: DTypeLike = np.uint8,
        action_shape: tuple[int, ...] = (),
        action_dtype: DTypeLike = np.int32,
        reward_shape: tuple[int, ...] = (),
        reward_dtype: DTypeLike = np.float32,
        terminal_dtype: DTypeLike = np.uint8,
    ) -> None: ...

    def __init__(self, *args: Any, **options: Any) -> None:
        need("torch")
        self._settings = _settings.read_settings(self._inferred, args, options)
        self._pending: Pending | None = None
        self._add_count: NDArray[np.int64] = np.array(0)
        self._valid = self._new_draws()
        self._kept: Store | None = None
        self._episode_steps = 0  # of the episode that the newest row belongs to
        self._between_episodes = True
        if self._settings.elements is not None:
            self._kept = self._new_store(dict(self._settings.elements))

    @classmethod
    def create_from_env(
        cls,
        env: Any,
        *,
        replay_memory_size: int,
        batch_size: int,
        stack_size: int = 1,
        store_log_prob: bool = True,
        **options: Any,
    ) -> ReplayBuffer:
        """A buffer with the fields of an environment's spaces declared.

        Parameters
        ----------
        env : gym.Env or gymnasium.Env
            Its ``observation_space`` is a Box, or the Dict of a RecSim environment; its
            ``action_space`` a Box, MultiDiscrete or Discrete.
        replay_memory_size, batch_size, stack_size
            As for the constructor.
        store_log_prob : bool
            Add the field ``log_prob``, behind ``mdp_id`` and ``sequence_number``.
        **options
            As for the constructor.

        Raises
        ------
        NotImplementedError
            A space is of another kind.
        """
        fields = _settings.declare_spaces(env, store_log_prob=store_log_prob)
        return cls(
            **fields,
            stack_size=stack_size,
            replay_capacity=replay_memory_size,
            batch_size=batch_size,
            **options,
        )

    def _new_draws(self) -> Draws:
        return Draws(self._settings.replay_capacity)

    def _new_store(self, elements: dict[str, ElementMetadata]) -> Store:
        """Rows for these fields, or ``InputError``."""
        check_elements(elements, self._settings.stack_size)
        store = Store.empty(self._settings.replay_capacity, elements)
        batch_type(self._names(store))
        return store

    # ------------------------------------------------------------------ adding

    def add(self, /, *args: Any, **fields: Any) -> None:
        """Add a step.

        The next observation is not passed: it is the observation of the next step.

        Parameters
        ----------
        *args
            Where fields are declared, their values in that order; else fields are keywords.
        **fields
            ``observation``, ``action``, ``reward``, ``terminal`` and any others. The first call
            fixes their names, shapes and dtypes, where float64 becomes float32: arrays, numbers,
            dicts of lists of ids, or dicts of tuples of ids and scores.
        truncated : bool
            The episode ends here without a terminal step: a time limit. The next one begins anew,
            and the last ``update_horizon`` steps, whose next state is not known, are never valid.
        final_observation : array_like, optional
            At the end of an episode, the observation behind its last step; it takes one more row.
            The last steps of a truncated episode are valid then.

        Raises
        ------
        NamesError
            Fields are missing or unknown. It is a ``ValueError``, ``KeyError`` and
            ``AssertionError``.
        InputError
            A value has another shape, or no faithful value of the field's dtype; or there is a
            final observation, but no end. It is a ``ValueError`` and an ``AssertionError``.
            Whatever is raised, the buffer is as it was.

        Notes
        -----
        Cost: one copy of the values, and at most ``stack_size + update_horizon`` flags.
        """
        self._write(self._by_name(args, fields), None)

    def _by_name(self, args: Sequence[Any], fields: Mapping[str, Any]) -> dict[str, Any]:
        """Values by position as values by name."""
        if not args:
            return dict(fields)
        names = self._add_names()
        if self._settings.elements is None:
            raise TypeError(f"add: expected keywords only, got {len(args)} positional arguments")
        taken: dict[str, Any] = dict(zip(names, args, strict=False))
        twice = [name for name in taken if name in fields]
        if len(args) > len(names) or twice:
            raise NamesError(f"Add expects {names}, got {len(args)} values and {list(fields)}")
        return {**taken, **fields}

    def _write(self, fields: dict[str, Any], priority: float | None) -> None:
        """Add a step."""
        settings = self._settings
        truncated = fields.pop("truncated", False)
        final = fields.pop("final_observation", None)
        if not isinstance(truncated, (bool, np.bool_, int)):
            raise InputError(f"truncated: expected a bool, got {truncated!r}")
        rows = self._new_store(infer_step(fields)) if self._rows is None else self._rows
        if fields.keys() != rows.elements.keys():
            raise NamesError(f"Add expects {self._add_names()}, got {list(fields)}")
        step = rows.read_step(fields, strict=self._settings.strict)
        is_terminal = bool(step["terminal"])
        is_end = is_terminal or bool(truncated)
        if final is not None:
            if not is_end:
                raise InputError("final_observation: the step is neither terminal nor truncated")
            kind = rows.elements["observation"]
            final = kind.read("final_observation", final, strict=settings.strict)
        flags = TERMINAL if is_terminal else TRUNCATED * is_end
        flags |= FINAL_FOLLOWS * (final is not None)
        rows.rows._hold(False, self._put, rows, step, flags, final, priority)

    def _put(
        self, rows: Store, step: dict[str, Any], flags: int, final: Any, priority: float | None
    ) -> None:
        """Write the rows of a step and what goes with them; other threads that write wait."""
        settings = self._settings
        self._settle()
        padding = settings.stack_size - 1 if self._between_episodes else 0
        n = padding + 1 + (final is not None)
        slots = (int(self.cursor()) + np.arange(n)) % settings.replay_capacity
        episode_steps = 1 if self._between_episodes else self._episode_steps + 1
        is_known = bool(flags & TERMINAL) or final is not None
        changes = marks(settings, slots.tolist(), padding, episode_steps, is_known)
        self._pending = Pending(
            rows,
            rows.rows.ring.written + n,
            int(self._add_count) + n,
            episode_steps,
            flags != 0,
            self._valid.plan(changes),
            slots,
            None if priority is None else np.where(np.arange(n) == padding, priority, 0.0),
        )
        try:
            rows.add(step, flags, padding, final)
        except ValueError:
            self._pending = None
            raise
        self._settle()

    def _settle(self) -> None:
        """Do what a step that was written leaves to do; nobody else writes meanwhile."""
        pending = self._pending
        if pending is not None and pending.rows.rows.ring.written == pending.written:
            self._follow(pending)
            self._pending = None

    def _follow(self, pending: Pending) -> None:
        """Do it. It may be done twice."""
        self._kept = pending.rows
        self._add_count[...] = pending.add_count
        self._episode_steps = pending.episode_steps
        self._between_episodes = pending.between_episodes
        self._valid.follow(pending.plan)

    def _catch_up(self) -> None:
        """Wait for a step that is being written, or do what an interrupt has left to do."""
        pending = self._pending
        if pending is not None:
            pending.rows.rows._hold(False, self._settle)

    @property
    def _rows(self) -> Store | None:
        self._catch_up()
        return self._kept

    @property
    def _draws(self) -> Draws:
        self._catch_up()
        return self._valid

    @property
    def add_count(self) -> NDArray[np.int64]:
        """Rows ever written, those of zeros included: an int of shape ()."""
        self._catch_up()
        return self._add_count

    def _add_names(self) -> list[str]:
        return [element.name for element in self.get_add_args_signature()]

    def initialize_buffer(self, /, **fields: Any) -> None:
        """Fix the fields as the first call of ``add`` does, by an example.

        Raises
        ------
        InputError
            They are fixed already, or no kind of value that is known.
        """
        if self._rows is not None:
            raise InputError(f"the fields are fixed already: {list(self._rows.elements)}")
        self._kept = self._new_store(infer_step(fields))

    # ------------------------------------------------------------------ state

    @property
    def size(self) -> int:
        """Steps that can be drawn: not the rows stored."""
        return self._draws.count

    def cursor(self) -> np.int64:
        """Slot that the next row goes to."""
        return np.int64(self.add_count % self._settings.replay_capacity)

    def is_empty(self) -> bool:
        """Whether nothing was ever added."""
        return bool(self.add_count == 0)

    def is_full(self) -> bool:
        """Whether the next row overwrites one."""
        return bool(self.add_count >= self._settings.replay_capacity)

    def is_valid_transition(self, index: Any) -> Tensor:
        """Whether a slot can be drawn: a tensor of bool, of the shape of ``index``."""
        return need("torch").from_numpy(np.asarray(self._draws.flags[self._draws.slots(index)]))

    def set_index_valid_status(self, idx: SupportsIndex, is_valid: bool) -> None:
        """Say whether a slot can be drawn.

        Raises
        ------
        IndexError
            There is no such slot, or it is to be valid and holds nothing.
        """
        slot = int(self._draws.slots(operator.index(idx)))
        if is_valid and slot >= self.add_count:
            raise IndexError(f"idx: expected a slot that was written, got {slot}")
        self._valid.follow(self._valid.plan([(slot, bool(is_valid))]))

    def get_storage_signature(self) -> list[Element]:
        """The fields that are stored: their names and kinds, or as they were declared.

        Empty before they are known.
        """
        if self._rows is None:
            return []
        return [self._element(name, kind) for name, kind in self._rows.elements.items()]

    def get_add_args_signature(self) -> list[Element]:
        """The fields that ``add`` takes."""
        return self.get_storage_signature()

    def _element(self, name: str, kind: ElementMetadata) -> Element:
        if self._settings.elements is not None and isinstance(kind, DenseMetadata):
            return ReplayElement(name, kind.shape, kind.dtype)
        return InferredElement(name, kind)

    def get_transition_elements(self) -> list[str]:
        """The names of what a batch consists of; the fixed ones before the fields are known."""
        return list(self._names(self._rows))

    def _names(self, rows: Store | None) -> tuple[str, ...]:
        return transition_names(() if rows is None else tuple(self._elements(rows)))

    # Names that users of ReAgent read although they are private.

    _replay_capacity = property(attrgetter("_settings.replay_capacity"))
    _batch_size = property(attrgetter("_settings.batch_size"))
    _stack_size = property(attrgetter("_settings.stack_size"))
    _update_horizon = property(attrgetter("_settings.update_horizon"))
    _gamma = property(attrgetter("_settings.gamma"))
    _num_valid_indices = property(attrgetter("_draws.count"))

    @property
    def _is_index_valid(self) -> Tensor:
        return need("torch").from_numpy(self._draws.flags.copy())

    @property
    def _store(self) -> dict[str, Any]:
        """Each field at all slots, as copies."""
        return {} if self._rows is None else self._rows.tensors()

    # ------------------------------------------------------------------ sampling

    def sample_index_batch(self, batch_size: SupportsIndex) -> Tensor:
        """Draw slots uniformly, with replacement, by PyTorch's global generator.

        With the same ``torch.manual_seed`` they are the slots that ReAgent draws.

        Parameters
        ----------
        batch_size : int
            How many, at least 0.

        Returns
        -------
        Tensor of int64, shape (batch_size,)

        Raises
        ------
        NotEnoughDataError
            No slot is valid. It is a ``RuntimeError``.

        Notes
        -----
        Cost: proportional to ``batch_size`` and the logarithm of the capacity.
        """
        n, rows = as_int("batch_size", batch_size, 0), self._rows
        slots: Slots
        if rows is None:
            slots = self._draw(n)
        else:
            slots = rows.rows.consistently(partial(self._choose, rows, lambda: self._draw(n)))
        return need("torch").from_numpy(slots.astype(np.int64, copy=False))

    def _draw(self, n: int) -> Slots:
        count = self._valid.count
        if count == 0:
            raise NotEnoughDataError(f"Cannot sample {n}: there are no valid indices so far")
        return self._valid.nth(need("torch").randint(count, (n,)).numpy())

    def sample_all_valid_transitions(self) -> Any:
        """All transitions that can be drawn, each once, in the order of their slots.

        Returns
        -------
        batch_type
            See ``sample_transition_batch``.

        Raises
        ------
        NotEnoughDataError
            Nothing was ever added. It is a ``RuntimeError``.
        """
        return self._batch(lambda: np.flatnonzero(self._valid.flags))

    def sample_transition_batch(
        self, batch_size: SupportsIndex | None = None, indices: Any = None
    ) -> Any:
        """Draw transitions.

        Parameters
        ----------
        batch_size : int, optional
            How many; by default as many as ``indices``, or what the constructor was told.
        indices : Tensor of integers, shape (batch_size,), optional
            Slots to read, all of them valid; drawn if they are not given.

        Returns
        -------
        batch_type
            A named tuple of tensors of shape ``(batch_size, *shape, stack_size)``, or
            ``(batch_size, *shape)`` if ``stack_size`` is 1, where ``()`` counts as ``(1,)``:
            ``state, action, reward, next_state, next_action, next_reward, terminal, indices, step``
            and ``x, next_x`` for each other field. ``reward`` is the discounted sum of the steps,
            float32; ``step`` their number; ``terminal``, bool, and next values are those behind
            the last of them. Next values are zeros where an episode ended and no final observation
            is known. ``reward`` and next values are different in the timeline format, and
            ``reward`` with ``return_everything_as_stack``, see the class. Id lists are
            ``{key: (offsets, ids)}`` or ``{key: (offsets, ids, scores)}``.

        Raises
        ------
        NotEnoughDataError
            No slot is valid. It is a ``RuntimeError``.
        IndexError
            One of ``indices`` is not valid.
        InputError
            ``indices`` are no integers in one dimension, or not ``batch_size`` of them.
        """
        if indices is None:
            n = as_int("batch_size", self._batch_size if batch_size is None else batch_size, 0)
            self._catch_up()
            return self._batch(lambda: self._draw(n))
        slots = self._draws.slots(indices)
        if slots.ndim != 1:
            raise InputError(f"indices: expected one dimension, got shape {slots.shape}")
        if batch_size is not None and len(slots) != as_int("batch_size", batch_size, 0):
            raise InputError(f"indices: expected {batch_size}, got {len(slots)}")

        def choose() -> Slots:
            wrong = slots[~self._valid.flags[slots]]
            if wrong.size:
                raise IndexError(f"indices: expected valid ones, got {wrong[0]}")
            return slots

        return self._batch(choose)

    sample_transition_batch_tensor = sample_transition_batch

    def _batch(self, choose: Callable[[], Slots]) -> Any:
        """The transitions from the slots that are chosen, of rows that nobody changes meanwhile."""
        rows = self._rows
        if rows is None:
            choose()  # which may have something to say itself
            raise NotEnoughDataError("cannot sample: nothing was ever added")
        return rows.rows.consistently(partial(self._read, rows, choose))

    def _choose(self, rows: Store, choose: Callable[[], Slots]) -> tuple[Slots, Slots] | None:
        """The slots that are chosen, twice; None if what they are chosen by has changed."""
        self._catch_up()
        pending, written = self._pending, rows.rows.ring.written
        slots = choose()
        if self._pending is not pending or rows.rows.ring.written != written:
            return None
        return slots, slots

    def _read(self, rows: Store, choose: Callable[[], Slots]) -> tuple[Slots, Any] | None:
        """Slots of a batch, the oldest of each stack among them, and the batch."""
        chosen = self._choose(rows, choose)
        if chosen is None:
            return None
        slots, _ = chosen
        read = self._reader(rows)
        batch = read_transitions(self._settings, rows, slots, self._elements(rows), read)
        found = batch_type(self._names(rows))(**batch, **self._beside(slots))
        depth = self._settings.stack_size
        if depth > 1:
            slots = np.concatenate([slots, (slots - (depth - 1)) % self._settings.replay_capacity])
        return slots, found

    def _elements(self, rows: Store) -> dict[str, ElementMetadata]:
        """The fields that are given out."""
        return rows.elements

    def _reader(self, rows: Store) -> Read:
        """What reads the values of a field, see ``Store.reader``."""
        return rows.reader()

    def _beside(self, slots: Slots) -> dict[str, Any]:  # noqa: ARG002 (derived classes need them)
        """What is given out beside the fields."""
        return {}

    # ------------------------------------------------------------------ files, copies

    def save(self, checkpoint_dir: Any, iteration_number: Any) -> None:
        """Save the buffer to the folder ``replay_buffer_ckpt.<iteration_number>`` of a directory.

        The folder of ``iteration_number - 4``, if it is a number, is removed afterwards.

        Parameters
        ----------
        checkpoint_dir : str or path
            It exists.
        iteration_number : int or str
            A folder of the same number is replaced once the new files are complete.

        Raises
        ------
        OSError
            There is no such directory, or it cannot be written to.

        Notes
        -----
        The folder is a checkpoint, as ``cpprb_like.checkpoint.save`` writes it; nothing is pickled.
        """
        directory = as_path("checkpoint_dir", checkpoint_dir)
        if not directory.is_dir():
            raise FileNotFoundError(f"checkpoint_dir: there is no directory {directory}")
        checkpoint.save(self, _folder(directory, iteration_number), encode=encode_lists)
        if isinstance(iteration_number, (int, np.integer)):
            old = _folder(directory, iteration_number - CHECKPOINT_DURATION)
            shutil.rmtree(old, ignore_errors=True)

    def load(self, checkpoint_dir: Any, suffix: Any) -> None:
        """Replace everything in the buffer by what ``save`` wrote, or ReAgent.

        The fields need not be known yet. Of files that ReAgent wrote, which slots are valid is
        found from the terminal flags.

        Parameters
        ----------
        checkpoint_dir : str or path
            Where the files are.
        suffix : int or str
            The ``iteration_number``.

        Raises
        ------
        FileNotFoundError
            A file is missing. It and the following leave the buffer as it was.
        ValueError
            The files were written by a buffer of another class, capacity, stack size, horizon or
            other fields, or are damaged.
        """
        directory = as_path("checkpoint_dir", checkpoint_dir)
        folder = _folder(directory, suffix)
        if folder.is_dir():
            other = checkpoint.load(folder, decode=decode_lists)
            self._expect_alike(folder, other)
            self._restore(other._rows, *other._state())
        else:
            self._import(directory, suffix)

    def _expect_alike(self, folder: Path, other: ReplayBuffer) -> None:
        """Refuse a buffer whose rows this one cannot have."""
        names = "replay_capacity", "stack_size", "update_horizon"
        ours, its = (
            (type(rb).__name__, *(getattr(rb._settings, name) for name in names))
            for rb in (self, other)
        )
        if type(other) is not type(self) or ours != its:
            raise InputError(f"{folder}: written by a buffer with {its}, not {ours}")
        if self._rows is not None and other._rows is not None:
            self._expect_fields(folder, other._rows.elements)

    def _expect_fields(self, path: Path, elements: Mapping[str, ElementMetadata]) -> None:
        if self._rows is not None and elements != self._rows.elements:
            raise InputError(
                f"{path}: written by a buffer of the fields {elements}, not {self._rows.elements}"
            )

    def _import(self, directory: Path, suffix: object) -> None:
        """Take over what ReAgent wrote."""
        settings, has_tree = self._settings, "sum_tree" in self._state()[1]
        capacity = settings.replay_capacity
        known = None if self._rows is None else self._rows.elements
        found = read_files(directory, suffix, capacity, known, has_tree)
        self._expect_fields(directory, found.elements)
        rows = self._new_store(found.elements)
        stored = min(found.add_count, capacity)
        is_terminal = found.columns["terminal"] != 0
        columns = {**found.columns, FLAGS: is_terminal * np.uint8(TERMINAL)}
        try:
            # The slots before the cursor a second time, so that the next row goes behind them.
            for stop in (stored, found.add_count % capacity if found.add_count > capacity else 0):
                rows.rows.add(**{name: values[:stop] for name, values in columns.items()})
        except ValueError as error:
            raise InputError(f"{directory}: {error}") from error
        flags, steps = find_valid(is_terminal, found.add_count, settings)
        words: dict[str, Any] = {
            "episode_steps": steps,
            "between_episodes": bool(
                found.add_count == 0 or is_terminal[(found.add_count - 1) % capacity]
            ),
        }
        arrays: dict[str, Array] = {
            "add_count": np.array(found.add_count),
            "is_index_valid": flags,
        }
        if found.priorities is not None:
            arrays["sum_tree"], words["max_recorded_priority"] = found.priorities
        self._restore(rows, words, arrays)

    def _state(self) -> tuple[dict[str, Any], dict[str, Array]]:
        """What ``save`` writes beside the rows: words and numbers, and arrays."""
        words = {
            "episode_steps": self._episode_steps,
            "between_episodes": self._between_episodes,
        }
        return words, {"add_count": self.add_count, "is_index_valid": self._draws.flags}

    def _restore(
        self, rows: Store | None, words: Mapping[str, Any], arrays: Mapping[str, Array]
    ) -> None:
        """Take over what was loaded; it has been checked."""
        self._pending = None
        self._kept = rows
        self._add_count = np.array(arrays["add_count"], np.int64)
        self._episode_steps = int(words["episode_steps"])
        self._between_episodes = bool(words["between_episodes"])
        self._valid.load(arrays["is_index_valid"])

    def __getstate__(self) -> dict[str, Any]:
        rows = self._rows
        words, arrays = self._state()
        return {
            "settings": {
                **vars(self._settings),
                "elements": _descriptions(self._settings.elements),
            },
            "elements": None if rows is None else _descriptions(rows.elements.items()),
            "rows": None if rows is None else rows.rows,
            "words": words,
            "arrays": arrays,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        declared = _described(state["settings"]["elements"])
        self._settings = Settings(**{**state["settings"], "elements": declared})
        self._valid = self._new_draws()
        elements = _described(state["elements"])
        rows = None if elements is None else Store(state["rows"], dict(elements))
        self._restore(rows, state["words"], state["arrays"])

    def __copy__(self) -> ReplayBuffer:
        """A buffer is copied whole: nothing of it can be shared."""
        return copy.deepcopy(self)

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(stack_size={self._stack_size}, "
            f"replay_capacity={self._replay_capacity}, update_horizon={self._update_horizon}, "
            f"size={self.size}, add_count={self.add_count})"
        )


def _folder(directory: Path, iteration: object) -> Path:
    """Where a buffer is saved."""
    return directory / f"replay_buffer_ckpt.{iteration}"


def _descriptions(
    elements: Iterable[tuple[str, ElementMetadata]] | None,
) -> list[tuple[str, dict[str, Any]]] | None:
    """Fields in words that JSON has."""
    return None if elements is None else [(name, kind.description()) for name, kind in elements]


def _described(
    words: Iterable[tuple[str, dict[str, Any]]] | None,
) -> tuple[tuple[str, ElementMetadata], ...] | None:
    """The fields that these words describe."""
    return None if words is None else tuple((name, described(kind)) for name, kind in words)
