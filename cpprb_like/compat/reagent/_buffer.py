"""ReAgent's ``ReplayBuffer``: transitions of several steps, with stacks, out of single steps.

Not here: the rows, which of them can be drawn, and the transitions that they make (``_rows``); the
arguments of the constructors (``_settings``); and files that ReAgent wrote (``_files``).
"""

from __future__ import annotations

import copy
import operator
import shutil
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any, ClassVar, SupportsIndex, overload

import numpy as np
from numpy.typing import NDArray

from cpprb_like import checkpoint
from cpprb_like._arguments.arrays import Array, Slots
from cpprb_like._arguments.checks import as_int, as_path
from cpprb_like.checkpoint import Savable
from cpprb_like.compat.reagent import _settings
from cpprb_like.compat.reagent._elements import (
    DenseMetadata,
    ElementMetadata,
    InferredElement,
    InputError,
    NamesError,
    ReplayElement,
    check_elements,
    decode_lists,
    describe,
    described,
    encode_lists,
    infer_step,
    need,
)
from cpprb_like.compat.reagent._files import Contents, read_files
from cpprb_like.compat.reagent._rows import Rows, batch_type, transition_names
from cpprb_like.compat.reagent._settings import Settings
from cpprb_like.errors import NotEnoughDataError

__all__ = ["CHECKPOINT_DURATION", "ReplayBuffer"]

CHECKPOINT_DURATION = 4  # iterations after which a save is removed

Tensor = Any  # of PyTorch, which type checkers need not have
Element = Any  # InferredElement or ReplayElement: which one, depends on the constructor


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
        Transitions of a batch unless ``sample_transition_batch`` gets another number.
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
        Where fields are declared, as until July 2020: ``observation_shape`` comes first, and then
        ``stack_size``, ``replay_capacity``, ``batch_size``, the options above, and
        ``max_sample_attempts``, which is not used. ``extra_storage_types`` are tuples of name,
        shape and dtype. The dtypes of the others are ``observation_dtype`` (uint8),
        ``action_dtype`` (int32), ``reward_dtype`` (float32) and ``terminal_dtype`` (uint8), and
        their shapes ``action_shape`` and ``reward_shape``.

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
    after them are there, or the episode has ended. While one thread adds, any number of threads may
    draw and read: a batch is the state of one moment. An ``add`` that is interrupted has added
    everything or nothing.

    Draws come from a generator of the buffer. PyTorch's global generator seeds it when the fields
    become known, so ``torch.manual_seed`` before that repeats them.

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

    _BY_WEIGHT: ClassVar[bool] = False  # whether steps have priorities
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
    def __init__(self, observation_shape: tuple[int, ...], *args: Any, **options: Any) -> None: ...

    def __init__(self, *args: Any, **options: Any) -> None:
        need("torch")
        self._open(*_settings.read_settings(self._inferred, args, options))

    def _open(self, settings: Settings, elements: dict[str, ElementMetadata] | None) -> None:
        """Be an empty buffer; ``elements`` are the fields if they are known."""
        self._settings = settings
        self._earlier = 0  # rows that ReAgent wrote and that had been overwritten in its files
        self._rows = None if elements is None else self._new_rows(elements)

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

    def _new_rows(self, elements: dict[str, ElementMetadata]) -> Rows:
        """Rows for these fields, or ``InputError``."""
        check_elements(elements, self._settings.stack_size)
        batch_type(self._names(elements))
        seed = int(need("torch").randint(1 << 62, ()))
        return Rows.empty(elements, self._settings, seed, self._BY_WEIGHT)

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
            The episode ends here without a terminal step: a time limit. The next step begins an
            episode. The last ``update_horizon`` steps, whose next state is not known, never become
            valid.
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
        Cost: one copy of the values. The next draw finds which steps have become valid.
        """
        self._write(self._by_name(args, fields), None)

    def _by_name(self, args: Sequence[Any], fields: Mapping[str, Any]) -> dict[str, Any]:
        """Values by position as values by name."""
        if not args:
            return dict(fields)
        names = self._add_names()
        if not self._settings.is_declared:
            raise TypeError(f"add: expected keywords only, got {len(args)} positional arguments")
        taken: dict[str, Any] = dict(zip(names, args, strict=False))
        twice = [name for name in taken if name in fields]
        if len(args) > len(names) or twice:
            raise NamesError(f"Add expects {names}, got {len(args)} values and {list(fields)}")
        return {**taken, **fields}

    def _write(self, fields: dict[str, Any], priority: float | None) -> None:
        """Add a step."""
        strict = self._settings.strict
        truncated = fields.pop("truncated", False)
        final = fields.pop("final_observation", None)
        if not isinstance(truncated, (bool, np.bool_, int)):
            raise InputError(f"truncated: expected a bool, got {truncated!r}")
        rows = self._new_rows(infer_step(fields)) if self._rows is None else self._rows
        if fields.keys() != rows.elements.keys():
            raise NamesError(f"Add expects {self._add_names()}, got {list(fields)}")
        step = {
            name: kind.read(name, fields[name], strict=strict)
            for name, kind in rows.elements.items()
        }
        is_terminal = bool(step["terminal"])
        is_end = is_terminal or bool(truncated)
        if final is not None:
            if not is_end:
                raise InputError("final_observation: the step is neither terminal nor truncated")
            kind = rows.elements["observation"]
            final = kind.read("final_observation", final, strict=strict)
        rows.add(step, is_terminal, is_end, final, priority)
        self._rows = rows

    @property
    def add_count(self) -> NDArray[np.int64]:
        """Rows ever written, those of zeros included: an int of shape ()."""
        return np.array(0 if self._rows is None else self._rows.ring.written + self._earlier)

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
        self._rows = self._new_rows(infer_step(fields))

    # ------------------------------------------------------------------ state

    @property
    def _flags(self) -> NDArray[np.bool_]:
        """Whether each slot can be drawn, to be read only."""
        if self._rows is None:
            return np.zeros(self._settings.replay_capacity, np.bool_)
        self._rows.follow()
        return self._rows.flags

    @property
    def size(self) -> int:
        """Steps that can be drawn: not the rows stored."""
        if self._rows is None:
            return 0
        self._rows.follow()
        return self._rows.count

    def _slots(self, indices: Any) -> Slots:
        """Numbers of slots as an array.

        Raises ``IndexError`` if there is no such slot, ``InputError`` if it is no number of one.
        """
        given, capacity = np.asarray(indices), self._settings.replay_capacity
        with np.errstate(invalid="ignore"):
            slots = given.astype(np.intp) if given.dtype.kind in "iuf" else given
        if slots.dtype != np.intp or (slots != given).any():
            raise InputError(f"indices: expected integers, got {indices!r}")
        if slots.size and not 0 <= slots.min() <= slots.max() < capacity:
            raise IndexError(f"indices: expected 0 to {capacity - 1}, got {indices!r}")
        return slots

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
        return need("torch").from_numpy(np.asarray(self._flags[self._slots(index)]))

    def set_index_valid_status(self, idx: SupportsIndex, is_valid: bool) -> None:
        """Say whether a slot can be drawn.

        Raises
        ------
        IndexError
            There is no such slot, or it is to be valid and holds nothing.
        """
        slot = self._slots([operator.index(idx)])
        if is_valid and slot >= self.add_count:
            raise IndexError(f"idx: expected a slot that was written, got {idx}")
        if self._rows is not None:
            self._rows.follow()
            self._rows.set_flags(slot, bool(is_valid))

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
        if self._settings.is_declared and isinstance(kind, DenseMetadata):
            return ReplayElement(name, kind.shape, kind.dtype)
        return InferredElement(name, kind)

    def get_transition_elements(self) -> list[str]:
        """The names of what a batch consists of; the fixed ones before the fields are known."""
        return list(self._names({} if self._rows is None else self._rows.elements))

    def _names(self, elements: Mapping[str, ElementMetadata]) -> tuple[str, ...]:
        return transition_names(tuple(self._outputs(elements)))

    # Names that users of ReAgent read although they are private.

    _replay_capacity = property(attrgetter("_settings.replay_capacity"))
    _batch_size = property(attrgetter("_settings.batch_size"))
    _stack_size = property(attrgetter("_settings.stack_size"))
    _update_horizon = property(attrgetter("_settings.update_horizon"))
    _gamma = property(attrgetter("_settings.gamma"))
    _num_valid_indices = property(attrgetter("size"))

    @property
    def _is_index_valid(self) -> Tensor:
        return need("torch").from_numpy(self._flags.copy())

    @property
    def _store(self) -> dict[str, Any]:
        """Each field at all slots, as copies."""
        rows, found = self._rows, dict[str, Any]()
        if rows is None:
            return found
        every = rows.place(np.arange(rows.ring.capacity, dtype=np.intp))
        for name, kind in rows.elements.items():
            values = rows.column(name, every)
            is_dense = isinstance(kind, DenseMetadata)
            found[name] = need("torch").from_numpy(values) if is_dense else values
        return found

    # ------------------------------------------------------------------ sampling

    def sample_index_batch(self, batch_size: SupportsIndex) -> Tensor:
        """Draw slots uniformly, with replacement.

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
        Cost: proportional to ``batch_size``, and with priorities to the logarithm of the capacity.
        """
        n, rows = as_int("batch_size", batch_size, 0), self._rows
        if rows is None:
            raise NotEnoughDataError(f"cannot sample {n}: nothing was ever added")
        slots = rows.rows.consistently(partial(self._choose, rows, partial(rows.draw, n)))
        return need("torch").from_numpy(slots.astype(np.int64, copy=False))

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
        return self._batch(lambda rows: np.flatnonzero(rows.flags))

    def sample_transition_batch(
        self, batch_size: SupportsIndex | None = None, indices: Any = None
    ) -> Any:
        """Draw transitions.

        Parameters
        ----------
        batch_size : int, optional
            How many; by default as many as ``indices``, or the constructor's number.
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
            return self._batch(lambda rows: rows.draw(n))
        slots = self._slots(indices)
        if slots.ndim != 1:
            raise InputError(f"indices: expected one dimension, got shape {slots.shape}")
        if batch_size is not None and len(slots) != as_int("batch_size", batch_size, 0):
            raise InputError(f"indices: expected {batch_size}, got {len(slots)}")

        def choose(rows: Rows) -> Slots:
            wrong = slots[~rows.flags[slots]]
            if wrong.size:
                raise IndexError(f"indices: expected valid ones, got {wrong[0]}")
            return slots

        return self._batch(choose)

    sample_transition_batch_tensor = sample_transition_batch

    def _batch(self, choose: Callable[[Rows], Slots]) -> Any:
        """The transitions from the slots that are chosen, as they were at one moment."""
        rows = self._rows
        if rows is None:
            raise NotEnoughDataError("cannot sample: nothing was ever added")
        return rows.rows.consistently(partial(self._read, rows, partial(choose, rows)))

    def _choose(self, rows: Rows, choose: Callable[[], Slots]) -> tuple[Slots, Slots] | None:
        """The slots that are chosen, twice; None if a row was added during the choice."""
        rows.follow()
        seen = rows.seen
        slots = choose()
        return (slots, slots) if rows.ring.written == seen else None

    def _read(self, rows: Rows, choose: Callable[[], Slots]) -> tuple[Slots, Any] | None:
        """Slots of a batch, the oldest of each stack among them, and the batch."""
        chosen = self._choose(rows, choose)
        if chosen is None:
            return None
        slots, _ = chosen
        elements = self._outputs(rows.elements)
        batch = rows.transitions(slots, elements, partial(self._column, rows))
        found = batch_type(self._names(rows.elements))(**batch, **self._beside(rows, slots))
        if rows.padding:
            slots = np.concatenate([slots, (slots - rows.padding) % rows.ring.capacity])
        return slots, found

    def _outputs(self, elements: Mapping[str, ElementMetadata]) -> Mapping[str, ElementMetadata]:
        """The fields that are given out."""
        return elements

    def _column(self, rows: Rows, name: str, slots: Slots) -> Array:
        """What is given out of a field, see ``Rows.read``."""
        return rows.read(name, slots)

    def _beside(
        self,
        rows: Rows,  # noqa: ARG002 (for subclasses)
        slots: Slots,  # noqa: ARG002
    ) -> dict[str, Any]:
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
            self._take(other)
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
        capacity = self._settings.replay_capacity
        known = None if self._rows is None else self._rows.elements
        found = read_files(directory, suffix, capacity, known, self._BY_WEIGHT)
        self._expect_fields(directory, found.elements)
        other: ReplayBuffer = object.__new__(type(self))
        other._open(self._settings, found.elements)
        other._fill(found)
        self._take(other)

    def _fill(self, found: Contents) -> None:
        """Take the rows that ReAgent wrote; of an empty buffer."""
        if self._rows is not None:
            priorities = None if found.priorities is None else found.priorities[0]
            self._rows.fill(found.columns, found.add_count, priorities)
            self._earlier = found.add_count - self._rows.ring.written

    def _take(self, other: ReplayBuffer) -> None:
        """Have all that another buffer has, but for its settings."""
        self.__dict__.update({**vars(other), "_settings": self._settings})

    def __getstate__(self) -> dict[str, Any]:
        if self._rows is None or threading.active_count() == 1:  # a forked child may lack the lock
            return self._state()
        return self._rows.rows._hold(False, self._state)

    def _state(self) -> dict[str, Any]:
        """What is pickled and saved, while other threads that write wait.

        Rows are read later: ``follow`` takes in those that were added meanwhile.
        """
        rows, flags = self._rows, self._flags
        return {
            "settings": vars(self._settings),
            "elements": None if rows is None else describe(rows.elements),
            "earlier": self._earlier,
            "rows": None if rows is None else rows.rows,
            "flags": flags.copy(),
            "seen": 0 if rows is None else rows.seen,
            "open": 0 if rows is None else rows.open,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._open(Settings(**state["settings"]), None)
        self._earlier = as_int("earlier", state["earlier"], 0)
        if state["rows"] is not None:
            self._rows = rows = Rows(state["rows"], described(state["elements"]), self._settings)
            rows.set_flags(np.arange(self._settings.replay_capacity), state["flags"])
            rows.seen = as_int("seen", state["seen"], 0)
            rows.open = as_int("open", state["open"], 0)

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
