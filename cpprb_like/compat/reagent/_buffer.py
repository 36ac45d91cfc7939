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
from collections.abc import Callable, Sequence
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
    RESERVED,
    DenseMetadata,
    ElementMetadata,
    InferredElement,
    InputError,
    NamesError,
    ReplayElement,
    check_elements,
    column,
    describe,
    described,
    infer_step,
    need,
    read_signature,
)
from cpprb_like.compat.reagent._files import Contents, read_files
from cpprb_like.compat.reagent._rows import Columns, Rows, transition_kinds, transition_names
from cpprb_like.compat.reagent._settings import Declared, Settings, declare_spaces, declared
from cpprb_like.errors import NotEnoughDataError

CHECKPOINT_DURATION = 4  # iterations after which a save is removed

Tensor = Any  # of PyTorch, which type checkers need not have
Element = Any  # ReplayElement if fields are declared, else InferredElement


class ReplayBuffer(Savable):
    """A ring buffer of steps that returns transitions as tensors, as in the original.

    The buffer stores a step once. An episode begins with ``stack_size - 1`` rows of zeros. These
    rows take capacity and count in ``add_count``, so that slots equal ReAgent's slots.

    Parameters
    ----------
    stack_size : int
        Number of frames in a state, at least 1. All fields are stacked, along a new last axis.
    replay_capacity : int
        Number of rows, rows of zeros included. It is at least ``update_horizon + stack_size``.
    batch_size : int
        Default number of transitions in a batch.
    return_everything_as_stack : bool
        Return ``reward`` as the stack of the rewards up to the first step, and not as the sum of
        the rewards from this step on. Despite the name, all other fields are stacked in any case.
    return_as_timeline_format : bool
        Return ``reward`` and the next values as lists with a tensor for each transition. The tensor
        has a row for each step of the transition.
    update_horizon : int
        Number of steps of a transition, at least 1. It has fewer steps where the episode ends.
    gamma : float
        Discount factor of the rewards.
    observation_shape, extra_storage_types, ...
        Declarations of fields, as until July 2020. Arguments by position have ReAgent's order:
        ``observation_shape, stack_size, replay_capacity, batch_size, return_everything_as_stack,
        return_as_timeline_format, update_horizon, gamma, max_sample_attempts, extra_storage_types,
        observation_dtype, action_shape, action_dtype, reward_shape, reward_dtype``. Defaults are
        ReAgent's too. ``max_sample_attempts`` is not used, and ``terminal_dtype`` is an argument
        too.

    Raises
    ------
    InputError
        There is not enough capacity, or an argument is refused. This error is a ``ValueError`` and
        an ``AssertionError``.
    TypeError
        An argument is unknown or has a wrong type.
    ImportError
        PyTorch is not installed.

    Notes
    -----
    A step can be drawn when it is *valid*: the ``update_horizon`` steps after it are stored, or the
    episode has ended. While one thread adds, any number of threads may draw and read. A batch shows
    the state of one moment. An interrupted ``add`` has added everything or nothing.

    Draws come from a generator of the buffer. PyTorch's global generator seeds it when the fields
    become known. So ``torch.manual_seed`` before that time repeats the draws.

    A subclass may override methods as in ReAgent. ``get_add_args_signature`` determines the
    arguments of ``add``, which pass by name to ``_add``; ``ReplayBuffer._add`` stores them, and
    takes the stored fields only. ``get_transition_elements`` determines the columns of a batch.
    Where fields are declared, ``get_storage_signature`` determines the stored fields.

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

    _rows: Rows | None
    _BY_WEIGHT: ClassVar[bool] = False  # whether steps have priorities
    _OPTIONAL: ClassVar[frozenset[str]] = RESERVED  # arguments that ``add`` does not require
    _inferred: ClassVar[Callable[..., Settings]] = Settings
    _declared: ClassVar[Callable[..., Declared]] = staticmethod(declared)

    def __init__(self, *args: Any, **options: Any) -> None:
        need("torch")
        elements = None
        if "observation_shape" in options or (args and not hasattr(args[0], "__index__")):
            settings, elements = self._declared(*args, **options)
        else:
            settings = self._inferred(*args, **options)
        if settings.return_as_timeline_format and settings.update_horizon == 1:
            warnings.warn(
                "return_as_timeline_format: with update_horizon=1 all lists have one item",
                stacklevel=2,
            )
        self._open(settings, None)
        if elements is not None:
            self._declarations = elements
            self._rows = self._new_rows(read_signature(self.get_storage_signature()))

    def _open(self, settings: Settings, elements: dict[str, ElementMetadata] | None) -> None:
        """Set the attributes of an empty buffer. ``elements`` are the fields if they are known."""
        self._settings = settings
        self._earlier = 0  # rows that ReAgent had overwritten before it saved the files read here
        self._arguments: list[str] = []  # names of the arguments of ``add``, once fields are known
        self._columns: Columns | None = None  # of a batch, once one was read
        self._declarations = elements or {}  # that the constructor got; subclasses may add some
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
            Environment whose ``observation_space`` is a Box, or the Dict of a RecSim environment,
            and whose ``action_space`` is a Box, MultiDiscrete or Discrete. Other spaces raise
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
            Values in the order of the declared fields. Without declarations fields are keywords.
        **fields
            ``observation``, ``action``, ``reward``, ``terminal`` and any others. Values are arrays,
            numbers, dicts of lists of ids, or dicts of tuples of ids and scores. The first call
            fixes names, shapes and dtypes, where float64 becomes float32. Later values are
            converted where the conversion does not change their meaning.
        truncated : bool
            The episode ends here without a terminal step, such as by a time limit. The last
            ``update_horizon`` steps, whose next state is not known, never become valid.
        final_observation : array_like, optional
            Observation after the last step of an episode, which takes one more row. With it, the
            last steps of a truncated episode are valid.

        Raises
        ------
        NamesError
            Fields are missing or unknown. This error is a ``ValueError``, ``KeyError`` and
            ``AssertionError``.
        InputError
            A value has another shape, or the field's dtype cannot represent it. Or there is a final
            observation, but no end. This error is a ``ValueError`` and an ``AssertionError``. Any
            error leaves the buffer unchanged.
        """
        self._add(**self._by_name(args, fields))

    def _by_name(self, args: Sequence[Any], fields: dict[str, Any]) -> dict[str, Any]:
        """The arguments of ``add`` by name, those by position included.

        Raises ``NamesError`` if they are not those of ``get_add_args_signature``.
        """
        if args and not self._settings.is_declared:
            raise TypeError(f"add: expected keywords only, got {len(args)} positional arguments")
        if self._rows is None:  # the first step fixes the fields
            return fields
        if not self._arguments:
            self._arguments = [element.name for element in self.get_add_args_signature()]
        names = self._arguments
        by_name = {**dict(zip(names, args, strict=False)), **fields} if args else fields
        is_complete = len(by_name) == len(args) + len(fields)
        if not is_complete or by_name.keys() - self._OPTIONAL != set(names) - self._OPTIONAL:
            raise NamesError(f"Add expects {names}, got {len(args)} values and {list(fields)}")
        return by_name

    def _add(self, /, **fields: Any) -> None:
        """Add a step of stored fields. ``add`` calls this method with its arguments by name.

        A subclass whose ``get_add_args_signature`` has arguments that are not stored overrides it,
        as in ReAgent.
        """
        self._write(fields, None)

    def _write(self, fields: dict[str, Any], priority: float | None) -> None:
        """Add a step to the rows. ``priority`` is None in a uniform buffer."""
        truncated, final = fields.pop("truncated", False), fields.pop("final_observation", None)
        if not isinstance(truncated, (bool, np.bool_, int)):
            raise InputError(f"truncated: expected a bool, got {truncated!r}")
        rows = self._new_rows(infer_step(fields)) if self._rows is None else self._rows
        kinds = rows.elements
        if fields.keys() != kinds.keys():
            raise NamesError(f"Add expects {list(kinds)}, got {list(fields)}")
        step = {name: kind.read(name, fields[name]) for name, kind in kinds.items()}
        is_terminal = bool(step["terminal"])
        is_end = is_terminal or bool(truncated)
        if final is not None:
            if not is_end:
                raise InputError("final_observation: the step is neither terminal nor truncated")
            final = kinds["observation"].read("final_observation", final)
        rows.add(step, is_terminal, is_end, final, priority)
        self._rows = rows

    def initialize_buffer(self, /, **fields: Any) -> None:
        """Fix the fields by an example, as the first call of ``add`` does.

        Raises ``InputError`` if the fields are fixed already, or a value has an unknown kind.
        """
        if self._rows is not None:
            raise InputError(f"the fields are fixed already: {list(self._rows.elements)}")
        self._rows = self._new_rows(infer_step(fields))

    # ------------------------------------------------------------------ state

    @property
    def add_count(self) -> NDArray[np.int64]:
        """Number of rows ever written, rows of zeros included: an int of shape ()."""
        return np.array(0 if self._rows is None else self._rows.ring.written + self._earlier)

    @property
    def _flags(self) -> NDArray[np.bool_]:
        """A flag for each slot: whether it can be drawn. Not a copy."""
        if self._rows is None:
            return np.zeros(self._settings.replay_capacity, np.bool_)
        return self._rows.update_flags()

    @property
    def size(self) -> int:
        """Number of steps that can be drawn, and not of stored rows."""
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
        """Slot of the next row."""
        return np.int64(self.add_count % self._settings.replay_capacity)

    def is_empty(self) -> bool:
        """Whether no row was ever added."""
        return bool(self.add_count == 0)

    def is_full(self) -> bool:
        """Whether the next row overwrites a row."""
        return bool(self.add_count >= self._settings.replay_capacity)

    def is_valid_transition(self, index: Any) -> Tensor:
        """Whether slots can be drawn, as a bool tensor with the shape of ``index``."""
        return need("torch").from_numpy(np.asarray(self._flags[self._slots(index)]))

    def set_index_valid_status(self, idx: SupportsIndex, is_valid: bool) -> None:
        """Set whether a slot can be drawn, until another row takes the slot.

        Raises ``IndexError`` if there is no such slot, or for ``is_valid`` at an empty slot.
        """
        slot = int(self._slots(operator.index(idx)))
        is_there = slot < self.add_count
        if is_valid and not is_there:
            raise IndexError(f"idx: expected a slot that was written, got {idx}")
        if self._rows is not None and is_there:
            self._rows.override(slot, bool(is_valid))

    def get_storage_signature(self) -> list[Element]:
        """The stored fields: their names and kinds, or their declarations.

        The list is empty before the fields are known. Where fields are declared, an override in a
        subclass determines the stored fields.
        """
        return [self._element(name, kind) for name, kind in self._known_elements().items()]

    def _known_elements(self) -> dict[str, ElementMetadata]:
        """The fields that the constructor declares, or those of the first step."""
        if self._settings.is_declared or self._rows is None:
            return self._declarations
        return self._rows.elements

    def get_add_args_signature(self) -> list[Element]:
        """The arguments of ``add``, in their order. A subclass may return others: see the class."""
        return self.get_storage_signature()

    def _element(self, name: str, kind: ElementMetadata) -> Element:
        if self._settings.is_declared and isinstance(kind, DenseMetadata):
            return ReplayElement(name, kind.shape, kind.dtype)
        return InferredElement(name, kind)

    def get_transition_elements(self, batch_size: SupportsIndex | None = None) -> list[Any]:
        """The columns of a batch.

        An override in a subclass determines the columns, and their order. A column that the buffer
        does not have is for the subclass to fill: ``None``, or zeros where fields are declared.

        Parameters
        ----------
        batch_size : int, optional
            Number of transitions in the signature, by default the number of the constructor.

        Returns
        -------
        list of str, or of ReplayElement
            Names; before the fields are known, the fixed names alone. Where fields are declared,
            the signature of ReAgent: name, ``(batch_size, *shape)``, dtype. A state has its frames
            as a last axis there. Batches differ from it as they do in ReAgent: fields are stacked
            with ``stack_size`` above 1, and without stacks a number has shape ``(batch_size, 1)``.
            ``terminal`` is bool, and ``indices`` and ``step`` are int64.
        """
        elements, is_declared = self._known_elements(), self._settings.is_declared
        names = transition_names(elements, self._BY_WEIGHT, is_declared)
        n = as_int("batch_size", self._batch_size if batch_size is None else batch_size, 0)
        if not is_declared:
            return list(names)
        return [
            ReplayElement(name, (n, *shape), dtype)
            for name, (shape, dtype) in transition_kinds(elements, names, self._stack_size).items()
        ]

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
            No slot is valid, or no valid slot has a priority above 0. This error is a
            ``RuntimeError``.

        Notes
        -----
        Cost: proportional to ``batch_size``, and with priorities to the logarithm of the capacity.
        """
        n = as_int("batch_size", batch_size, 0)
        slots = self._consistently(lambda rows: rows.draw(n), lambda _, slots: (slots, slots))
        return need("torch").from_numpy(slots.astype(np.int64, copy=False))

    def sample_all_valid_transitions(self) -> Any:
        """All transitions that can be drawn, each once, in the order of their slots.

        The result has the form of ``sample_transition_batch``. Raises ``NotEnoughDataError``, a
        ``RuntimeError``, if nothing was ever added.
        """
        return self._consistently(lambda rows: np.flatnonzero(rows.flags), self._read_transitions)

    def sample_transition_batch(
        self, batch_size: SupportsIndex | None = None, indices: Any = None
    ) -> Any:
        """Draw transitions.

        Parameters
        ----------
        batch_size : int, optional
            Number of transitions, by default the number of ``indices`` or of the constructor.
        indices : Tensor of integers, shape (batch_size,), optional
            Valid slots to read. By default slots are drawn.

        Returns
        -------
        batch_type
            A named tuple of tensors of shape ``(batch_size, *shape, stack_size)``, or
            ``(batch_size, *shape)`` if ``stack_size`` is 1, where ``()`` counts as ``(1,)``. Its
            elements are
            ``state, action, reward, next_state, next_action, next_reward, terminal, indices, step``
            and ``x, next_x`` for each other field. ``reward`` is the float32 n-step return, and
            ``step`` is its number of steps. ``terminal`` (bool) and next values are the values
            after the last of these steps. Next values are zeros where an episode ended without a
            known final observation. The class describes ``reward`` and next values in the timeline
            format, and ``reward`` with ``return_everything_as_stack``. Id lists are
            ``{key: (offsets, ids)}`` or ``{key: (offsets, ids, scores)}``.

        Raises
        ------
        NotEnoughDataError
            No slot is valid. This error is a ``RuntimeError``.
        IndexError
            One of ``indices`` is not valid.
        InputError
            ``indices`` are not integers in one dimension, or their number is not ``batch_size``.
        """
        if indices is None:
            n = as_int("batch_size", self._batch_size if batch_size is None else batch_size, 0)
            return self._consistently(lambda rows: rows.draw(n), self._read_transitions)
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

        return self._consistently(choose, self._read_transitions)

    sample_transition_batch_tensor = sample_transition_batch

    def _read_transitions(self, rows: Rows, slots: Slots) -> tuple[Slots, Any]:
        """The oldest slot read for each transition, and the batch of the transitions."""
        if self._columns is None:
            self._columns = Columns.of(map(_name, self.get_transition_elements()), rows)
        columns = self._columns
        oldest, values = rows.transitions(slots, columns.sources)
        if columns.missing:
            values |= dict.fromkeys(columns.missing)
            if self._settings.is_declared:
                for name, shape, dtype in self.get_transition_elements(len(slots)):
                    if name in columns.missing:
                        values[name] = column(np.zeros(shape, dtype))
        return oldest, columns.batch_type(*map(values.get, columns.sources))

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

        If ``iteration_number`` is a number, the folder of ``iteration_number - 4`` is removed
        afterwards. A folder of the same number is replaced once the new files are complete. The
        folder is a checkpoint, as from ``cpprb_like.checkpoint.save``. Raises ``OSError`` if the
        directory does not exist or cannot be written to.
        """
        directory = as_path("checkpoint_dir", checkpoint_dir)
        if not directory.is_dir():
            raise FileNotFoundError(f"checkpoint_dir: there is no directory {directory}")
        folder = _folder(directory, iteration_number)
        encode = lambda lists: json.dumps(lists).encode()  # noqa: E731 (short)
        checkpoint.save(self, folder, encode=encode, classes=[type(self)])
        if isinstance(iteration_number, (int, np.integer)):
            old = _folder(directory, iteration_number - CHECKPOINT_DURATION)
            shutil.rmtree(old, ignore_errors=True)

    def load(self, checkpoint_dir: Any, suffix: Any) -> None:
        """Replace the contents of the buffer by files that ``save`` or ReAgent wrote.

        The fields need not be known yet. The terminal flags in ReAgent's files determine the valid
        slots.

        Parameters
        ----------
        checkpoint_dir : str or path
            Directory of the files.
        suffix : int or str
            ``iteration_number`` of the files.

        Raises
        ------
        FileNotFoundError
            A file is missing. Each of these errors leaves the buffer unchanged.
        ValueError
            The files come from a buffer of another class, capacity, stack size, horizon or other
            fields, or are damaged.
        """
        directory = as_path("checkpoint_dir", checkpoint_dir)
        folder = _folder(directory, suffix)
        other: ReplayBuffer
        if folder.is_dir():
            other = checkpoint.load(folder, decode=json.loads, classes=[type(self)])
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
        kept = {name: vars(self)[name] for name in ("_settings", "_declarations")}
        self.__dict__.update({**vars(other), **kept})

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
            "declared": describe(self._declarations),
            "earlier": self._earlier,
            "rows": None if rows is None else rows.rows,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._open(Settings(**state["settings"]), None)
        self._earlier = as_int("earlier", state["earlier"], 0)
        if state["rows"] is not None:
            elements = described(state["elements"])
            self._rows = Rows(state["rows"], elements, self._settings)
            self._declarations = described(state["declared"]) if "declared" in state else elements

    def __copy__(self) -> ReplayBuffer:
        """A deep copy: two buffers cannot share their rows."""
        return copy.deepcopy(self)

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(stack_size={self._stack_size}, "
            f"replay_capacity={self._replay_capacity}, update_horizon={self._update_horizon}, "
            f"size={self.size}, add_count={self.add_count})"
        )


def _name(element: Any) -> str:
    """The name of an element of ``get_transition_elements``."""
    return element if isinstance(element, str) else str(element[0])


def _folder(directory: Path, iteration: object) -> Path:
    """The folder of a save."""
    return directory / f"replay_buffer_ckpt.{iteration}"


def _picture(rb: ReplayBuffer) -> tuple[Any, ...]:
    """Class and sizes, which must be equal for one buffer to load the rows of another."""
    settings = getattr(rb, "_settings", None)
    names = "replay_capacity", "stack_size", "update_horizon"
    return type(rb).__name__, *(getattr(settings, name, None) for name in names)
