"""ReAgent's ``ReplayBuffer``: n-step transitions with frame stacks, made from single steps.

Not here: rows and transitions (``_rows``), arguments of the constructors (``_settings``), and files
that ReAgent wrote (``_files``).
"""

from __future__ import annotations

import copy
import json
import operator
import shutil
import warnings
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any, ClassVar, SupportsIndex

import numpy as np
from numpy.typing import NDArray

from cpprb_like import checkpoint
from cpprb_like._arguments.arrays import Slots
from cpprb_like._arguments.checks import as_int, as_path
from cpprb_like.checkpoint import Savable
from cpprb_like.compat.reagent._elements import (
    DenseMetadata,
    ElementMetadata,
    InferredElement,
    InputError,
    NamesError,
    ReplayElement,
    check_elements,
    describe,
    described,
    infer_step,
    need,
)
from cpprb_like.compat.reagent._files import Contents, read_files
from cpprb_like.compat.reagent._rows import Rows, transition_names
from cpprb_like.compat.reagent._settings import Settings, declare_spaces, declared
from cpprb_like.errors import NotEnoughDataError

__all__ = ["CHECKPOINT_DURATION", "ReplayBuffer"]

CHECKPOINT_DURATION = 4  # iterations after which a save is removed

Tensor = Any  # of PyTorch, which type checkers need not have
Element = Any  # ReplayElement if fields are declared, else InferredElement


class ReplayBuffer(Savable):
    """A ring of steps that gives out transitions as tensors, as in the original.

    A step is stored once. An episode begins with ``stack_size - 1`` rows of zeros, which take
    capacity and count in ``add_count``, so that slots are those of ReAgent.

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
    observation_shape, extra_storage_types, ...
        Where fields are declared, as until July 2020: the order and the defaults of that time.
        ``max_sample_attempts`` is not used, and ``terminal_dtype`` is an argument too.

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
    _inferred: ClassVar[Callable[..., Settings]] = Settings

    def __init__(self, *args: Any, **options: Any) -> None:
        need("torch")
        elements = None
        if "observation_shape" in options or (args and not hasattr(args[0], "__index__")):
            settings, elements = declared(*args, **options)
        else:
            settings = self._inferred(*args, **options)
        if settings.return_as_timeline_format and settings.update_horizon == 1:
            warnings.warn(
                "return_as_timeline_format: with update_horizon=1 all lists have one item",
                stacklevel=2,
            )
        self._open(settings, elements)

    def _open(self, settings: Settings, elements: dict[str, ElementMetadata] | None) -> None:
        """Set the attributes of an empty buffer. ``elements`` are the fields if they are known."""
        self._settings = settings
        self._earlier = 0  # rows that ReAgent had overwritten before it saved the files read here
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
            ``action_space`` a Box, MultiDiscrete or Discrete. Other spaces raise
            ``NotImplementedError``.
        replay_memory_size, batch_size, stack_size, **options
            As for the constructor.
        store_log_prob : bool
            Add the field ``log_prob``, behind ``mdp_id`` and ``sequence_number``.
        """
        fields = declare_spaces(env, store_log_prob=store_log_prob)
        sizes = {"replay_capacity": replay_memory_size, "batch_size": batch_size}
        return cls(**fields, stack_size=stack_size, **sizes, **options)

    def _new_rows(self, elements: dict[str, ElementMetadata]) -> Rows:
        """New rows of these fields. Raises ``InputError`` if they are refused."""
        check_elements(elements, self._settings.stack_size)
        seed = int(need("torch").randint(1 << 62, ()))
        return Rows.empty(elements, self._settings, seed, self._BY_WEIGHT)

    # ------------------------------------------------------------------ adding

    def add(self, /, *args: Any, **fields: Any) -> None:
        """Add a step, whose next observation is the observation of the next step.

        Parameters
        ----------
        *args
            Where fields are declared, their values in that order; else fields are keywords.
        **fields
            ``observation``, ``action``, ``reward``, ``terminal`` and any others. The first call
            fixes their names, shapes and dtypes, where float64 becomes float32: arrays, numbers,
            dicts of lists of ids, or dicts of tuples of ids and scores. Later values are converted
            where that does not change their meaning.
        truncated : bool
            The episode ends here without a terminal step: a time limit. The last
            ``update_horizon`` steps, whose next state is not known, never become valid.
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
        """
        self._write(self._by_name(args, fields), None)

    def _by_name(self, args: Sequence[Any], fields: Mapping[str, Any]) -> dict[str, Any]:
        """The values of ``add`` by name, those by position included."""
        if not args:
            return dict(fields)
        names = self._add_names()
        if not self._settings.is_declared:
            raise TypeError(f"add: expected keywords only, got {len(args)} positional arguments")
        taken: dict[str, Any] = dict(zip(names, args, strict=False))
        if len(args) > len(names) or taken.keys() & fields.keys():
            raise NamesError(f"Add expects {names}, got {len(args)} values and {list(fields)}")
        return {**taken, **fields}

    def _write(self, fields: dict[str, Any], priority: float | None) -> None:
        """Add a step to the rows. ``priority`` is None in a uniform buffer."""
        truncated, final = fields.pop("truncated", False), fields.pop("final_observation", None)
        if not isinstance(truncated, (bool, np.bool_, int)):
            raise InputError(f"truncated: expected a bool, got {truncated!r}")
        rows = self._new_rows(infer_step(fields)) if self._rows is None else self._rows
        kinds = rows.elements
        if fields.keys() != kinds.keys():
            raise NamesError(f"Add expects {self._add_names()}, got {list(fields)}")
        step = {name: kind.read(name, fields[name]) for name, kind in kinds.items()}
        is_terminal = bool(step["terminal"])
        is_end = is_terminal or bool(truncated)
        if final is not None:
            if not is_end:
                raise InputError("final_observation: the step is neither terminal nor truncated")
            final = kinds["observation"].read("final_observation", final)
        rows.add(step, is_terminal, is_end, final, priority)
        self._rows = rows

    def _add_names(self) -> list[str]:
        return [element.name for element in self.get_add_args_signature()]

    def initialize_buffer(self, /, **fields: Any) -> None:
        """Fix the fields as the first call of ``add`` does, by an example.

        Raises ``InputError`` if they are fixed already, or no kind of value that is known.
        """
        if self._rows is not None:
            raise InputError(f"the fields are fixed already: {list(self._rows.elements)}")
        self._rows = self._new_rows(infer_step(fields))

    # ------------------------------------------------------------------ state

    @property
    def add_count(self) -> NDArray[np.int64]:
        """Rows ever written, those of zeros included: an int of shape ()."""
        return np.array(0 if self._rows is None else self._rows.ring.written + self._earlier)

    @property
    def _flags(self) -> NDArray[np.bool_]:
        """A flag for each slot: whether it can be drawn. Not a copy."""
        if self._rows is None:
            return np.zeros(self._settings.replay_capacity, np.bool_)
        return self._rows.update_flags()

    @property
    def size(self) -> int:
        """Steps that can be drawn: not the rows stored."""
        if self._rows is None:
            return 0
        self._rows.update_flags()
        return self._rows.size()

    def _slots(self, indices: Any) -> Slots:
        """Slots as an array.

        Raises ``IndexError`` if there is no such slot, and ``InputError`` if ``indices`` are no
        integers.
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
        """Say whether a slot can be drawn, until another row takes it.

        Raises ``IndexError`` if there is no such slot, or it is to be valid and holds nothing.
        """
        slot = int(self._slots(operator.index(idx)))
        is_there = slot < self.add_count
        if is_valid and not is_there:
            raise IndexError(f"idx: expected a slot that was written, got {idx}")
        if self._rows is not None and is_there:
            self._rows.override(slot, bool(is_valid))

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
        elements = {} if self._rows is None else self._rows.elements
        return list(transition_names(elements, self._BY_WEIGHT, self._settings.is_declared))

    # Private names of ReAgent that programs read.

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
        for name, kind in rows.elements.items():
            values = rows.column(name)
            is_dense = isinstance(kind, DenseMetadata)
            found[name] = need("torch").from_numpy(values) if is_dense else values
        return found

    # ------------------------------------------------------------------ sampling

    def sample_index_batch(self, batch_size: SupportsIndex) -> Tensor:
        """Draw slots uniformly, or by priority, with replacement.

        Returns
        -------
        Tensor of int64, shape (batch_size,)

        Raises
        ------
        NotEnoughDataError
            No slot is valid, or none of them has a priority above 0. It is a ``RuntimeError``.

        Notes
        -----
        Cost: proportional to ``batch_size``, and with priorities to the logarithm of the capacity.
        """
        n = as_int("batch_size", batch_size, 0)
        slots = self._consistently(lambda rows: rows.draw(n), lambda _, slots: (slots, slots))
        return need("torch").from_numpy(slots.astype(np.int64, copy=False))

    def sample_all_valid_transitions(self) -> Any:
        """All transitions that can be drawn, each once, in the order of their slots.

        The result is that of ``sample_transition_batch``. Raises ``NotEnoughDataError``, a
        ``RuntimeError``, if nothing was ever added.
        """
        return self._consistently(lambda rows: np.flatnonzero(rows.flags), Rows.transitions)

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
            return self._consistently(lambda rows: rows.draw(n), Rows.transitions)
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

        return self._consistently(choose, Rows.transitions)

    sample_transition_batch_tensor = sample_transition_batch

    def _consistently(
        self,
        choose: Callable[[Rows], Slots],
        read: Callable[[Rows, Slots], tuple[Slots, Any]],
    ) -> Any:
        """The result of ``read`` at the slots of ``choose``, all read from one state of the rows.

        ``read`` returns the oldest slots that it looks at, and the result.
        """
        rows = self._rows
        if rows is None:
            raise NotEnoughDataError("cannot sample: nothing was ever added")

        def attempt() -> tuple[Slots, Any] | None:
            rows.update_flags()
            seen = rows.seen
            slots = choose(rows)
            return read(rows, slots) if rows.ring.written == seen else None

        return rows.rows.consistently(attempt)

    # ------------------------------------------------------------------ files, copies

    def save(self, checkpoint_dir: Any, iteration_number: Any) -> None:
        """Save the buffer to the folder ``replay_buffer_ckpt.<iteration_number>`` of a directory.

        The folder of ``iteration_number - 4``, if it is a number, is removed afterwards. A folder
        of the same number is replaced once the new files are complete. It is a checkpoint, as
        ``cpprb_like.checkpoint.save`` writes it. Raises ``OSError`` if there is no such directory,
        or it cannot be written to.
        """
        directory = as_path("checkpoint_dir", checkpoint_dir)
        if not directory.is_dir():
            raise FileNotFoundError(f"checkpoint_dir: there is no directory {directory}")
        folder = _folder(directory, iteration_number)
        checkpoint.save(self, folder, encode=lambda lists: json.dumps(lists).encode())
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
        other: ReplayBuffer
        if folder.is_dir():
            other = checkpoint.load(folder, decode=json.loads)
            if _picture(self) != _picture(other):
                raise InputError(
                    f"{folder}: written by a buffer with {_picture(other)}, not {_picture(self)}"
                )
        else:
            capacity = self._settings.replay_capacity
            known = None if self._rows is None else self._rows.elements
            found = read_files(directory, suffix, capacity, known, self._BY_WEIGHT)
            other = object.__new__(type(self))
            other._open(self._settings, found.elements)
            other._fill(found)
        if self._rows is not None and other._rows is not None:
            its, ours = other._rows.elements, self._rows.elements
            if its != ours:
                raise InputError(f"{folder}: written by a buffer of the fields {its}, not {ours}")
        self.__dict__.update({**vars(other), "_settings": self._settings})

    def _fill(self, found: Contents) -> None:
        """Add the rows of ReAgent's files to an empty buffer."""
        assert self._rows is not None
        priorities = None if found.priorities is None else found.priorities[0]
        self._rows.fill(found.columns, found.add_count, priorities)
        self._earlier = found.add_count - self._rows.ring.written

    def __getstate__(self) -> dict[str, Any]:
        rows = self._rows
        return {
            "settings": vars(self._settings),
            "elements": None if rows is None else describe(rows.elements),
            "earlier": self._earlier,
            "rows": None if rows is None else rows.rows,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._open(Settings(**state["settings"]), None)
        self._earlier = as_int("earlier", state["earlier"], 0)
        if state["rows"] is not None:
            self._rows = Rows(state["rows"], described(state["elements"]), self._settings)

    def __copy__(self) -> ReplayBuffer:
        """A deep copy: two buffers cannot share their rows."""
        return copy.deepcopy(self)

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(stack_size={self._stack_size}, "
            f"replay_capacity={self._replay_capacity}, update_horizon={self._update_horizon}, "
            f"size={self.size}, add_count={self.add_count})"
        )


def _folder(directory: Path, iteration: object) -> Path:
    """The folder of a save."""
    return directory / f"replay_buffer_ckpt.{iteration}"


def _picture(rb: ReplayBuffer) -> tuple[Any, ...]:
    """Class and sizes, which must be equal for one buffer to load the rows of another."""
    settings = getattr(rb, "_settings", None)
    names = "replay_capacity", "stack_size", "update_horizon"
    return type(rb).__name__, *(getattr(settings, name, None) for name in names)
