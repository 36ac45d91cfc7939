"""``ReplayBuffer``: a ring of rows with a sampler and a random generator.

A buffer checks its arguments and synchronises readers and writers of different threads. The
compiled core copies the values.
"""

from __future__ import annotations

import copy
import inspect
import operator
import os
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import lru_cache, partial
from mmap import PAGESIZE
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NoReturn, TypedDict, TypeVar

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from cpprb_like._arguments.checks import as_int, warn
from cpprb_like._arguments.foreign_arrays import read_argument, read_array
from cpprb_like._core import Beside, Ring, keep_to_header, rebuild
from cpprb_like._fields.checked_options import CheckedOptions, warn_of_rows
from cpprb_like._fields.derived import NStepReturns
from cpprb_like._fields.layout import Layout
from cpprb_like._fields.schema import Schema, read_columns, read_n_envs
from cpprb_like._files import arenas
from cpprb_like._machine.forks import BUFFER, GENERATOR, tell, tell_before, watch
from cpprb_like._machine.generators import Seed, generator
from cpprb_like._machine.prefetch_state import halted, without_prefetch
from cpprb_like._rows.changes import items_in_use
from cpprb_like._rows.column import Column
from cpprb_like._rows.edits import Tracker
from cpprb_like._rows.episode_index import EpisodeIndex
from cpprb_like._rows.gather import take, write
from cpprb_like._rows.indexing import resolve
from cpprb_like._rows.row_handles import ordered_slots, without_row
from cpprb_like.buffers._entry import (
    Attachment,
    BufferBase,
    SampleOptions,
    not_initialised,
    take_drawn,
)
from cpprb_like.buffers._epochs import EpochOrder
from cpprb_like.buffers._field_table import field_table
from cpprb_like.buffers._replacing import Updatable, read_update, updatable_fields
from cpprb_like.buffers._source import (
    Batch,
    ColumnSpec,
    Source,
    if_prioritized,
    order_generator,
)
from cpprb_like.checkpoint._savable import Change, EditsSinceSave, RowsToSave
from cpprb_like.errors import NotEnoughDataError
from cpprb_like.samplers._base import Extra, Sampler, Slots, nbytes_of, with_handles
from cpprb_like.samplers._starts import Starts
from cpprb_like.samplers._uniform import Uniform
from cpprb_like.samplers._uniform_draws import Epoch, draw_uniform
from cpprb_like.typing import FieldSpec, NstepSpec, PrioritizedOptions
from cpprb_like.views._items_of_batch import (
    ItemPlan,
    LaidItems,
    PaddedItems,
    RaggedFields,
    StoredFields,
    TakeItems,
)
from cpprb_like.views._layer import Layer
from cpprb_like.views._rows import RowReader, read_fields

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

    from cpprb_like._files import file_maps
    from cpprb_like.buffers._episodes import Episodes
    from cpprb_like.buffers._explain import Explanation
    from cpprb_like.buffers._view import View
    from cpprb_like.checkpoint._cpprb_files import File
    from cpprb_like.checkpoint._options import Target
    from cpprb_like.checkpoint._ring_reader import RingReader

__all__ = ["ReplayBuffer"]

Found = TypeVar("Found")

# Attributes that a pickle leaves out.
REBUILT = (
    "_layout", "_nstep", "_arena", "_files", "_rows", "_take", "_episodes", "_starts", "_updatable",
    "_saves", "_may_take_n_envs", "_laid", "_stored",
)  # fmt: skip
SHAPES = 8  # shapes of sequences for which a ``Starts`` is cached


class Nothing(TypedDict):
    """No keyword arguments, for type checkers."""


class _Unset:
    """Descriptor of an attribute that raises until the buffer is initialised."""

    def __get__(self, buffer: object, cls: type | None = None) -> Any:
        if buffer is None:
            return self
        raise RuntimeError(not_initialised(buffer))


class ReplayBuffer(BufferBase, Source):
    """Experience replay: a ring buffer of the newest ``size`` steps, sampled uniformly by default.

    Parameters
    ----------
    size : int
        Capacity in steps: an integer, or a float of integral value such as ``1e6``.
    env_dict : dict
        ``{name: {"shape": int or tuple, "dtype": anything NumPy takes}}``. The shape defaults to 1,
        which is ``(1,)``; shape ``()`` gives batches of shape ``(batch,)``. The buffer and its
        batches use the machine's byte order. The dict is not modified. A shape may hold one name,
        such as ``("T",)`` or ``("N", 11)``, of an axis whose length differs from row to row. Fields
        that share a name share a length in each row. ``"counts": "N"`` says that integers count
        items of axis N, as the ends of the edges of a graph do. ``{"dtype": str}`` is one text of
        any length.
    default_dtype : dtype, optional
        Dtype of fields without the key ``dtype``. Default float32. ``"dtype": None`` is float64.
    n_envs : int, optional
        Environments that step together. One call of ``add`` is then one time step of all of them.
        By default the number of the recorder to which the buffer is attached, or 1.
    terminated, truncated : str or False, optional
        Names of the end fields, which end an episode. By default ``terminated`` (or ``done``) and
        ``truncated``. False: no field ends episodes in this way. An end field is one bool, integer
        or float of up to 8 bytes; any other ``done`` ends no episodes. A field such as ``dones`` or
        ``truncations`` that no option names ends no episodes: it gets a warning, and with ``Nstep``
        an error.
    next_of : str or iterable of str, optional
        Fields with a next value, the field ``next_<name>``. ``add`` takes it and batches have it.
        It is stored only where it differs from the value of the environment's next step. Next
        values of any length have axes of their own, such as ``next_N``, in the room of their
        source; all fields of an axis are named, or none.
    stack_compress : str or iterable of str or dict, optional
        Fields that are frame stacks. Of each step only the newest frame is stored, unless the older
        frames differ from the frames of the step before. Next values of ``next_of`` may be named
        too. Frames lie along the last axis, or along the first one for a shape such as
        ``(4, 84, 84)``. A dict gives the axis of each field.
    Nstep : dict, optional
        n-step returns over ``Nstep["size"]`` steps, or fewer where the episode ends. Fields in
        ``Nstep["rew"]`` are summed, discounted by ``Nstep["gamma"]`` (default 0.99). Fields in
        ``Nstep["next"]``, and end flags, come from the last step. By default these are the field
        ``rew`` (or ``reward``), and each ``next_x`` beside ``x``; ``[]`` names none. With
        ``Nstep["discount"]``, batches have ``discount``: ``gamma ** steps``, or 0 where the episode
        was terminated. A field of truncations without this option gets a warning. A row can be
        drawn when its n-step window is complete.
    room : dict, optional
        The greatest number of items of each named axis that the buffer holds, such as
        ``{"T": 20_000_000}``; of a text, of bytes under the name of the field. Rows leave early,
        oldest first, when an axis is full. There is no default for an axis.
    sampler : Sampler, optional
        Sampler of the rows. Default ``Uniform()``.
    seed : int, SeedSequence, BitGenerator, Generator, optional
        Seed of the draws. By default the generator is seeded from NumPy's global state, so that
        ``np.random.seed`` controls it.
    mmap_prefix : str or path, optional
        Keep the rows in the file ``<mmap_prefix>.dat`` and not on the heap.
    mmap_mode : {"x", "w", "r+", "a", "r"}
        ``"x"`` creates the file and fails if it exists, ``"w"`` creates it anew, ``"r+"`` opens its
        rows, and ``"r"`` opens them read-only. ``"r+"`` truncates episodes that are open, as their
        environments are gone; ``"a"`` goes on with these episodes. Priorities, and the extra values
        of ``next_of`` and ``stack_compress``, are in files beside it. The generator and the other
        state of a sampler start anew. While a buffer has the file open, no other buffer can write
        to it or replace it. While another buffer writes to the file, ``"r"`` copies the current
        rows into memory.

    **unknown : None
        Options of other libraries, accepted if they are None.

    Raises
    ------
    TypeError, ValueError
        An argument has a wrong type or value; the message names it.
    MemoryError
        The machine lacks free memory; the message lists the bytes of each field.
    OSError
        ``mmap_prefix``: ``FileExistsError``, ``FileNotFoundError`` or another error of the file;
        ``BlockingIOError`` while another buffer has the file open.

    Notes
    -----
    Any number of threads may add, sample and clear. Every batch consists of whole rows that were in
    the buffer together. Every call of ``add`` is atomic for readers. A process that is forked
    during such calls has the rows, and its locks are free. If the rows are in a file, the process
    can only read them, and only until its parent writes. Pickling copies by value, with rows and
    generator; do not add meanwhile.

    Examples
    --------
    >>> from cpprb_like import ReplayBuffer
    >>> action, flag = {"shape": (), "dtype": "int64"}, {"shape": (), "dtype": bool}
    >>> fields = {"obs": {"shape": 4}, "act": action, "done": flag}
    >>> rb = ReplayBuffer(1000, fields, seed=1)
    >>> rb.add(obs=[0.1, 0.2, 0.3, 0.4], act=1, done=False)
    0
    >>> batch = rb.sample(32)
    >>> batch["obs"].shape, batch["act"].dtype
    ((32, 4), dtype('int64'))
    """

    rng: np.random.Generator
    # A class attribute, which raises if __init__ did not run. A method __getattr__ could raise too,
    # but it slows every method lookup of Python: add took 40 % more instructions.
    sampler: Sampler = _Unset()  # type: ignore[assignment]
    HOLDS_ROWS = True
    _takes_priorities: ClassVar[bool] = False  # ``add`` takes priorities that no sampler uses
    _files: file_maps.Files | None
    _layout: Layout
    _arena: NDArray[np.uint8]
    _rows: RowReader
    _nstep: NStepReturns | None
    _episodes: EpisodeIndex
    _starts: Callable[..., Starts]
    _take: Any
    _laid: LaidItems | None  # how batches hold values of any length
    _stored: Callable[..., Batch]  # reads fields of rows as they were added
    _updatable: Updatable
    _saves: EditsSinceSave

    def __init__(
        self,
        size: float,
        env_dict: Mapping[str, FieldSpec],
        *,
        default_dtype: DTypeLike | None = None,
        n_envs: int | None = None,
        terminated: str | Literal[False] | None = None,
        truncated: str | Literal[False] | None = None,
        next_of: str | Iterable[str] | None = None,
        stack_compress: str | Iterable[str] | Mapping[str, int] | None = None,
        Nstep: NstepSpec | Literal[False] | None = None,  # noqa: N803 (cpprb's name)
        room: Mapping[str, float] | None = None,
        sampler: Sampler | None = None,
        seed: Seed = None,
        mmap_prefix: str | Path | None = None,
        mmap_mode: file_maps.FileMode = "x",
        **unknown: Unpack[Nothing],
    ) -> None:
        given = [name for name, value in unknown.items() if value is not None]
        if given:
            raise TypeError(
                f"unknown options {given}; {type(self).__name__} has {', '.join(OPTIONS)}"
            )
        if mmap_prefix is not None:
            from cpprb_like._files import file_maps  # noqa: PLC0415 (on demand)

            file_maps.check_mode(mmap_mode)
        sampler = Uniform() if sampler is None else sampler
        if not isinstance(sampler, Sampler):
            raise TypeError(f"sampler: expected a Sampler, got {sampler!r}")
        options = CheckedOptions.read(
            size,
            env_dict,
            default_dtype=default_dtype,
            n_envs=n_envs,
            terminated=terminated,
            truncated=truncated,
            next_of=next_of,
            stack_compress=stack_compress,
            Nstep=Nstep,
            room=room,
        )
        sampler._check_fields(options.schema.names)
        opens = mmap_mode in ("r", "r+", "a") and mmap_prefix is not None
        if opens and sampler.keeps_rows and not sampler.maps_rows:
            raise ValueError(
                f"mmap_mode={mmap_mode!r}: the file holds the rows, not what {sampler!r} keeps for "
                "each, such as its priority; pickle the buffer instead"
            )
        warn_of_rows(options, Nstep)
        self._begin(options, sampler, generator(seed), mmap_prefix, mmap_mode)
        if mmap_prefix is not None and mmap_mode == "r+":
            self._end_episodes(0, self.n_envs)  # their environments ended with the last process
        self._may_take_n_envs = n_envs is None and mmap_prefix is None

    @classmethod
    def _of(cls, options: CheckedOptions, *others: Any) -> Self:
        """A buffer of rows with these options. ``_begin`` takes the further arguments."""
        buffer = cls.__new__(cls)
        buffer._begin(options, *others)
        return buffer

    def _begin(
        self,
        options: CheckedOptions,
        sampler: Sampler,
        rng: np.random.Generator,
        mmap_prefix: str | Path | None = None,
        mmap_mode: file_maps.FileMode = "x",
    ) -> None:
        """Open new rows with checked options, or the rows of a file."""
        layout = Layout.of(options, nbytes_of(sampler, options.capacity))
        opens = mmap_mode in ("r", "r+", "a")
        files, arena = self._open_memory(layout, mmap_prefix, mmap_mode)
        if files is not None and opens:
            try:
                _check_memory(layout, arena)  # before a ring uses it
            except ValueError as error:
                raise ValueError(f"{files.path}: {error}") from None
        ring = self._make_ring(layout, arena, files)
        if files is not None:
            try:
                files.keep(ring)
                if opens:
                    _check_memory(layout, arena, ring)
            except ValueError as error:
                raise ValueError(f"{files.path}: {error}") from None
        self._open(layout, arena, ring, sampler, rng=rng, _files=files)

    _may_take_n_envs = False  # stays so in a buffer that was loaded or unpickled

    def _take_n_envs(self, n_envs: int) -> None:
        """Set the number of environments, if the user gave none and there are no rows.

        Raises ``ValueError`` if the size has too few rows for this number.
        """
        self._hold(True, self._take_n_envs_now, n_envs)

    def _take_n_envs_now(self, n_envs: int) -> None:
        if not self._may_take_n_envs or self.ring.written:
            return
        options, sampler = self._layout.options, self.sampler
        options = replace(options, n_envs=read_n_envs(n_envs, options.size))
        layout = Layout.of(options, nbytes_of(sampler, options.capacity))
        _, arena = self._open_memory(layout)
        ring = self._make_ring(layout, arena)
        sampler._leave()
        try:
            self._open(layout, arena, ring, sampler, rng=self.rng, _files=None)
        except BaseException:
            sampler._leave()
            sampler.open(self.ring)
            raise

    def _open_memory(
        self, layout: Layout, prefix: str | Path | None = None, mode: file_maps.FileMode = "x"
    ) -> tuple[file_maps.Files | None, NDArray[np.uint8]]:
        """The files of a buffer with ``mmap_prefix``, and its arena."""
        try:
            files = None if prefix is None else self._files_of(layout, prefix, mode)
            return files, arenas.open_arena(layout) if files is None else files.arena
        except MemoryError as error:
            raise MemoryError(f"{error}\n{field_table(layout)}") from error

    @staticmethod
    def _files_of(layout: Layout, prefix: str | Path, mode: file_maps.FileMode) -> file_maps.Files:
        """The files of a buffer with ``mmap_prefix``."""
        from cpprb_like._files.file_maps import Files  # noqa: PLC0415 (on demand)

        return Files(layout, prefix, mode)

    @staticmethod
    def _make_ring(
        layout: Layout,
        arena: NDArray[np.uint8],
        files: file_maps.Files | None = None,
        *,
        state: NDArray[np.int64] | None = None,
        flags: NDArray[np.uint8] | None = None,
        frozen: str | None = None,
    ) -> Ring:
        columns = layout.columns()
        if state is not None or frozen is not None or (files is not None and files.frozen):
            use = None  # the rows are only read
        elif files is not None:
            use = files.use
        else:
            use = partial(arenas.use, arena)
        chains = layout.chains(arena, columns, use)
        if state is None:
            try:
                layout.find_values(arena, chains)
            except ValueError as error:
                where = "" if files is None else f"{files.path}: "
                raise ValueError(f"{where}{error}") from None
        return Ring(
            columns,
            arena,
            layout.state(arena) if state is None else state,
            layout.record,
            layout.schema.end_fields(),
            capacity=layout.capacity,
            n_envs=layout.n_envs,
            chains=chains,
            items=layout.item_memory(arena, columns, use, follows=state is not None),
            lookahead=(layout.capacity - layout.size) // layout.n_envs,
            undo=None if files is None else files.undo,
            frozen=frozen if files is None else files.frozen,
            flags=flags,
        )

    def _open(
        self,
        layout: Layout,
        arena: NDArray[np.uint8],
        ring: Ring,
        sampler: Sampler,
        **others: Any,
    ) -> None:
        """Use these rows from now on. A call that raises leaves the buffer unchanged."""
        nstep = layout.options.nstep
        rows = RowReader(ring, nstep)
        reading: Any = rows.take_of_rows() if ring.chains or nstep is not None else None
        stored: Callable[..., Batch] = partial(read_fields, ring)
        laid = None
        if layout.schema.axes:
            ragged = RaggedFields(ring, layout.schema)
            stored, laid = StoredFields(ragged).read, PaddedItems(ragged)
            reading = TakeItems(laid.plan(layout.schema.names), rows.take_of_rows())
        index = EpisodeIndex(ring)
        attributes = {
            "_layout": layout,
            "_arena": arena,
            "_nstep": nstep,
            "_rows": rows,
            "_episodes": index,
            "_starts": lru_cache(SHAPES)(partial(Starts, index)),
            "_take": reading,
            "_laid": laid,
            "_stored": stored,
            "_updatable": updatable_fields(layout.schema, ring),
            "_saves": EditsSinceSave(),
            "sampler": sampler,
        }
        files = others["_files"]
        if files is None:
            sampler.open(ring)
        else:
            with files.naming_priorities():
                sampler.open_in_file(ring, files.floats)
            files.publish()
        watch(others["rng"].bit_generator.lock, GENERATOR)
        lock: Any = threading.RLock() if files is None else files.one_process
        if files is None:
            watch(lock, BUFFER)
        self._attach(ring, lock, _further(nstep, laid), others | attributes)
        if files is not None:
            if files.frozen:
                self._have_writers_ask()
            else:
                tell_before(files.note_fork)
                tell(self._leave_file_to_parent)
                weakref.finalize(self, files.flush_at_the_end)

    def flush(self) -> None:
        """Synchronise a buffer in a file with the disk: its rows then survive a crash.

        On return the state of the buffer at the call is on the disk: rows, episode ends, extra
        values of chained fields, priorities. After a crash or power cut, opening the file finds
        these rows, without those that may have been overwritten or changed since: a 256th of them
        at a time. The end of a killed process loses nothing, even without ``flush``. Without a file
        the call does nothing.

        Raises
        ------
        OSError
            The system could not write. The previous flush stays valid.

        Notes
        -----
        Cost: the write of the bytes that changed since the last flush. Other threads that write do
        not wait for it. A buffer is also flushed at its deletion and at the end of the program.

        Examples
        --------
        >>> import tempfile
        >>> from cpprb_like import ReplayBuffer
        >>> prefix = tempfile.mkdtemp() + "/replay"
        >>> rb = ReplayBuffer(100, {"x": {"shape": ()}}, mmap_prefix=prefix)
        >>> rb.add(x=1)
        0
        >>> rb.flush()
        """
        if self._files is not None and not self._files.frozen:
            self._files.flush(self._hold)

    def prefault(self, rows: int) -> None:
        """Touch the memory of the next rows, so that ``add`` does not wait for it.

        The system hands memory out at its first use, which may take tens of milliseconds for an
        image in a file. A loop at a fixed rate calls this method before it begins. No value
        changes.

        Parameters
        ----------
        rows : int
            Number of rows that are added next, of all environments; at most all are touched.

        Raises
        ------
        TypeError, ValueError
            ``rows`` is not an integer of at least 0.
        RuntimeError
            This process was forked from the one that writes to the file.

        Notes
        -----
        Cost: that of the first use, a second or more for 500 MB in a file. Other threads that write
        wait. Values of any length are not touched, nor what is kept aside at ends of episodes, nor
        a file that is open to read.

        Examples
        --------
        >>> from cpprb_like import ReplayBuffer
        >>> rb = ReplayBuffer(100, {"image": {"shape": (480, 640, 3), "dtype": "u1"}})
        >>> rb.prefault(30)
        """
        count = as_int("rows", rows, 0)
        if self._files is None or not self._files.frozen:
            self._hold(True, self._touch, min(count, self._layout.capacity))

    def _touch(self, rows: int) -> None:
        layout = self._layout
        first = self.ring.written % layout.capacity
        for start, stop in ((first, first + rows), (0, first + rows - layout.capacity)):
            ranges = layout.spans(start), layout.spans(max(start, stop))
            for (offset, before), (_, after) in zip(*ranges, strict=True):
                span = self._arena[offset + before : offset + after]
                for touched in (span[::PAGESIZE], span[-1:]):  # the last page may be a step behind
                    np.bitwise_or(touched, 0, out=touched)

    def _warn_of_values_apart(self) -> None:
        said = [
            f"{chain.apart} of the first {chain.compared} values of {chain.name!r}"
            for chain in self.ring.chains
            if 2 * chain.apart > chain.compared
        ]
        axes = {stack.name: stack.axis for stack in self.schema.stacks}
        warn(
            f"{', '.join(said)} do not follow from the row before in their episode, so that each "
            "is stored by itself: give n_envs= if the steps are of several environments in turns"
            + (f"; the axis of the frames if it is not stack_compress={axes}" if axes else "")
            + "; leave out next_of and stack_compress if steps do not follow one another"
        )

    def _prepare_files(self) -> None:
        if self._files is not None:
            self._files.prepare()
        for chain in self.ring.chains:
            for aside in chain.asides:
                aside.prepare()

    def _leave_file_to_parent(self) -> None:
        """In a forked child: write no more, and read only until the parent writes."""
        self._have_writers_ask()
        if self._files is None:
            return
        left = self._files.leave()
        if left is None:
            return
        header, copies = left
        keep_to_header(self.ring, header)
        if copies is None:
            return
        try:
            self.sampler._leave()
            self.sampler.open_in_file(self.ring, copies)
        except Exception as error:  # noqa: BLE001 (any error of a sampler; each draw says it)
            self.sampler = _Unopened(
                f"{self._files.path}: {self.sampler!r} could not be opened in this forked process: "
                f"{error!r}. Open the file here with mmap_mode='r'"
            )

    def _have_writers_ask(self) -> None:
        """Make ``add`` check for permission to write: none after a fork, or in mode "r"."""
        self._paused = True

    # ------------------------------------------------------------------ adding

    def _add_items(self, given: dict[str, Any], mask: NDArray[np.bool_] | None) -> int | None:
        from cpprb_like.buffers._ragged_rows import add_items  # noqa: PLC0415 (on demand)

        return add_items(self, given, mask)

    def update(self, indexes: ArrayLike, /, **fields: Any) -> None:
        """Replace values of stored rows, such as recomputed targets or new latent states.

        Rows that were overwritten, deleted or cleared since they got their index are skipped.

        Parameters
        ----------
        indexes : array_like of int, shape () or (n,) or (n, 1)
            Handles: ``batch["indexes"]`` of ``sample(n, indexes=True)``, or of a
            ``PrioritizedReplayBuffer`` with ``check_for_update=True``. Or slots, which mean the
            present rows. The last of duplicates wins.
        **fields
            New values, shape ``(n, *shape)``; converted or refused as by ``add``.

        Raises
        ------
        TypeError
            A field is unknown, or none is given; or the indexes are not integers.
        ValueError
            A value has the wrong shape, or the declared dtype cannot hold it. Or the field cannot
            be replaced: fields that end episodes, fields of ``next_of`` and ``stack_compress``, and
            fields whose next value is a field of ``next_of``. Or a row gets another number of items
            without all fields of their axis, or there is no place for them while these rows stay.
        IndexError
            An index is a slot without a step, or no row ever had it. After any error the buffer is
            unchanged.
        OSError
            As ``add``: the disk of ``mmap_prefix`` failed or is full.

        Notes
        -----
        Cost: proportional to n. The update is atomic for other threads: a batch that is read
        meanwhile is read again. Priorities do not change. Values of another length need room beside
        the old ones, so the oldest rows may leave.

        Examples
        --------
        >>> from cpprb_like import ReplayBuffer
        >>> rb = ReplayBuffer(10, {"obs": {"shape": 2}, "target": {"shape": ()}}, seed=0)
        >>> rb.add(obs=[[1, 2], [3, 4]], target=[0, 0])
        0
        >>> batch = rb.sample(8, indexes=True)
        >>> rb.update(batch["indexes"], target=batch["obs"].sum(axis=1))
        >>> rb.get_all_transitions()["target"].tolist()
        [3.0, 7.0]
        """
        ring, known = self.ring, self._updatable
        rows, columns, arrays = read_update(known, indexes, fields)
        if self.ring is not ring:
            raise RuntimeError("the buffer was initialised anew while a value was read")
        ragged = {name: fields[name] for name in fields if known[name][0].is_ragged}
        if not ragged and not any(known[name][0].counts for name in fields):
            self._hold(False, write, ring, rows, columns, arrays)
            return
        from cpprb_like.buffers._ragged_rows import update_items  # noqa: PLC0415 (on demand)

        fixed = {column.name: array for column, array in zip(columns, arrays, strict=True)}
        update_items(self, rows, fixed, ragged)

    def on_episode_end(self, env: int | None = None) -> None:
        """End the open episodes of one environment, or of all, as truncated.

        After a step that ended the episode, the call has no effect.

        Raises
        ------
        IndexError
            There is no such environment.
        OSError
            As ``add``: the disk of ``mmap_prefix`` failed or is full.
        """
        if env is None:
            self._end_episodes(0, self.n_envs)
        else:
            stream = self._check_env(env)
            self._end_episodes(stream, stream + 1)

    def get_current_episode_len(self, env: int = 0) -> int:
        """Steps of an environment since its last episode end.

        Raises ``IndexError`` if there is no such environment.
        """
        return self.ring.episode_len(self._check_env(env))

    def clear(self) -> None:
        """Remove all rows, at a cost that does not depend on their number.

        Memory stays allocated. Python objects are released, about 10 ns each. With priorities, the
        next draw or update sets the weights of the removed rows to 0, less than 1 ns each. The
        generator keeps its state. Batches that wait with ``prefetch`` are dropped, and so are rows
        that are kept for the next batch of a budget.

        Raises ``OSError`` as ``add`` does if the disk of ``mmap_prefix`` failed or is full.
        """
        len(self.ring)  # raises where ``__init__`` was not called, which would lack ``rng`` too
        with halted([self.rng]):
            self._clear()

    @property
    def rows(self) -> int:
        """The number of rows ever written, and so the number of the next row, for ``rewind``.

        Rows that are gone count too. It goes on after a ``clear``, and in a buffer that is loaded.
        """
        return self.ring.rows

    def rewind(self, row: int) -> int:
        """Forget row ``row`` and all later ones, to go back to a checkpoint.

        The rows are never drawn, read or counted again, as those of deleted episodes. Their slots
        are reused when they would have been overwritten anyway. Episodes that were cut, or are
        open, end as truncated: reset the environments. The values, next values and priorities of
        rows that stay do not change.

        Parameters
        ----------
        row : int
            ``rows`` at the time to go back to; ``checkpoint.inspect(folder).rows`` at a save.

        Returns
        -------
        int
            Number of rows that were forgotten; 0 for the next row, where only open episodes end.

        Raises
        ------
        TypeError, ValueError
            ``row`` is not an integer from 0 to ``rows``, or not the first row of a time step.
        OSError
            As ``add``: the disk of ``mmap_prefix`` failed or is full.
        io.UnsupportedOperation
            The file was opened with ``mmap_mode="r"``.

        Notes
        -----
        No row is left if all before ``row`` were overwritten, or cleared since. Batches that were
        drawn ahead are dropped. In a file a killed process has forgotten all rows or none. Cost:
        about 0.1 us for each row from ``row`` on; the next call that follows episodes or
        priorities reads the flags of all rows.

        Examples
        --------
        >>> from cpprb_like import ReplayBuffer
        >>> rb = ReplayBuffer(10, {"x": {"shape": ()}, "done": {"shape": ()}})
        >>> rb.add(x=[1, 2, 3], done=[0, 0, 0])
        0
        >>> row = rb.rows
        >>> rb.add(x=[4, 5], done=[0, 1])
        3
        >>> rb.rewind(row)
        2
        >>> rb.get_all_transitions()["x"].tolist(), rb.episodes.list()[0].truncated
        ([1.0, 2.0, 3.0], True)
        """
        with halted(element for element, _ in self._draw_states()):
            return self._while_writers_wait(lambda: self._rewind(self._first_of("row", row)))

    def _first_of(self, name: str, row: int) -> int:
        """The id, since the last clear, of the first row that ``rewind`` forgets."""
        ring, number = self.ring, as_int(name, row, 0)
        if number > ring.rows:
            raise ValueError(
                f"{name}: expected at most {ring.rows}, the number of the next row, got {number}"
            )
        if number % ring.n_envs:
            raise ValueError(
                f"{name}: expected the first of the {ring.n_envs} rows of a time step, got "
                f"{number}, which is {number % ring.n_envs} behind it"
            )
        return max(number - ring.cleared, 0)

    # ------------------------------------------------------------------ sampling

    def _draw_by(
        self, options: SampleOptions
    ) -> tuple[Callable[..., tuple[Slots, Extra]], Any, tuple[Column, ...] | None]:
        """See ``BufferBase._draw_by``."""
        draw, further = self.sampler.draw, options.further
        if further:
            draw = partial(draw, **further)
        if options.indexes:
            self._check_indexes()
            if not self.has_priorities:
                draw = self._draw_named
        columns = None if options.fields is None else self._columns(options.fields)
        return draw, self._take if self._laid is None else self._reading(columns), columns

    def _stats(self) -> dict[str, float]:
        """``Source.stats`` of the rows and of the draws from them."""
        found = super()._stats()
        if self.ring.items:
            found["left_for_room"] = sum(items.left for items in self.ring.items)
            rooms = self.schema.rooms
            for axis, used in items_in_use(self.ring).items():
                found |= {f"items of {axis}": used, f"room of {axis}": rooms[axis]}
        return found

    def view(self, *layers: Layer) -> View:
        """This buffer, read in another way: n-step returns, sequences, frame stacks, new goals.

        Parameters
        ----------
        *layers : NStep, Sequences, FrameStacks, Offsets, Advantages or Hindsight
            Layers of ``cpprb_like.views``: at most one of each, in any order. Without ``NStep`` the
            option ``Nstep`` of the buffer applies, if given. ``NStep(1)`` reads single steps.

        Returns
        -------
        View
            A source that draws from this buffer, with the methods ``sample``, ``batches``,
            ``epoch`` and ``update_priorities``. Buffer and views can be used at the same time.

        Raises
        ------
        TypeError, ValueError
            An argument is not a layer, a layer comes twice, or does not fit the fields.

        Notes
        -----
        Cost: some 20 us. A view is made once.

        Examples
        --------
        >>> from cpprb_like import ReplayBuffer
        >>> from cpprb_like.views import Sequences
        >>> rb = ReplayBuffer(100, {"x": {"shape": ()}, "done": {"shape": ()}}, seed=0)
        >>> rb.add(x=range(10), done=[0] * 9 + [1])
        0
        >>> rb.view(Sequences(4)).sample(2)["x"].tolist()
        [[8.0, 9.0, 0.0, 0.0], [6.0, 7.0, 8.0, 9.0]]
        """
        from cpprb_like.buffers._view import View  # noqa: PLC0415 (on demand)

        return View(self, layers)

    def explain(self, index: int) -> Explanation:
        """Place and episode of a row, and whether it can be drawn: see ``View.explain``."""
        return self.view().explain(index)

    # ------------------------------------------------------------------ priorities

    @property
    def has_priorities(self) -> bool:
        """Whether rows are drawn by priority: then batches have ``weights`` and ``indexes``."""
        return self.sampler.has_priorities

    @if_prioritized
    def update_priorities(self, indexes: ArrayLike, priorities: ArrayLike) -> None:
        """Set priorities, such as the absolute TD errors of a batch.

        Only buffers with a prioritized ``sampler`` have this method.

        Parameters
        ----------
        indexes : array_like of int, shape (n,)
            ``batch["indexes"]``, or slots, which mean the present rows. Handles of rows that were
            overwritten are skipped. The last of duplicates wins.
        priorities : array_like, shape (n,) or (n, 1)
            Finite, at least 0.

        Raises
        ------
        TypeError
            ``indexes`` are not integers, or ``priorities`` are not numbers.
        ValueError
            Indexes and priorities differ in number, or a priority is negative, infinite or NaN.
        IndexError
            A slot holds no step. After any error all priorities are unchanged.

        Notes
        -----
        Cost: proportional to n and the logarithm of the capacity.

        Examples
        --------
        >>> from cpprb_like import ReplayBuffer
        >>> from cpprb_like.samplers import Prioritized
        >>> rb = ReplayBuffer(10, {"x": {"shape": ()}}, sampler=Prioritized(), seed=0)
        >>> rb.add(x=[1, 2, 3])
        0
        >>> rb.update_priorities([0, 1, 2], [0.5, 2.0, 7.0])
        >>> rb.get_max_priority()
        7.0
        """
        sampler: Any = self.sampler
        sampler.update_priorities(indexes, priorities)

    @if_prioritized
    def get_max_priority(self) -> float:
        """The priority of new rows: the maximum since the last ``clear``, at least 1.0.

        Only buffers with a prioritized ``sampler`` have this method.
        """
        sampler: Any = self.sampler
        found = sampler.get_max_priority()
        try:
            return float(found)
        except TypeError:
            raise TypeError(
                f"{sampler!r}.get_max_priority: expected a number, got {found!r}"
            ) from None

    def _read_priorities(self, priorities: ArrayLike) -> Beside:
        """Priorities for ``add``; see ``PrioritySampler.prepare``."""
        sampler: Any = self.sampler  # one with priorities
        if self.ring.n_envs > 1:
            priorities = self._in_time_order(priorities)
        found = sampler.prepare(priorities)
        if not isinstance(found, Beside):
            raise TypeError(f"{sampler!r}.prepare: expected an object Beside, got {found!r}")
        return found

    def _in_time_order(self, priorities: ArrayLike) -> ArrayLike:
        """Priorities of a block of time steps, flattened to one for each row."""
        try:
            # A masked array is passed on, and the sampler refuses it.
            given = priorities if isinstance(priorities, np.ndarray) else read_array(priorities)
        except (BufferError, RuntimeError, TypeError, ValueError):
            return priorities  # the sampler raises the error
        is_block = given.shape[1:] in ((self.n_envs,), (self.n_envs, 1))
        if is_block:
            return given.reshape(-1)
        return priorities if isinstance(priorities, (list, tuple)) else given  # for messages

    def _check_update(
        self, indexes: NDArray[np.int64], priorities: NDArray[np.float64]
    ) -> NDArray[np.intp]:
        sampler: Any = self.sampler
        sampler.read_priorities(priorities)
        return without_row(self.ring, indexes, sampler.check_for_update)

    # ------------------------------------------------------------------ fields and rows

    @property
    def fields(self) -> tuple[str, ...]:
        """The names of the fields, in declared order."""
        return self.schema.names

    def _field_specs(self, names: tuple[str, ...] | None) -> dict[str, ColumnSpec]:
        columns = self._columns(self.fields if names is None else names) or ()
        specs = {column.name: ColumnSpec(column.dtype, column.shape) for column in columns}
        if self._laid is not None:
            specs |= {name: spec for name, spec in self._laid.specs.items() if name in specs}
        return specs

    def _further_specs(self) -> dict[str, ColumnSpec]:
        found = {}
        if self._nstep is not None and self._nstep.discount:
            found["discount"] = ColumnSpec(np.dtype(np.float32), self._nstep.discount_shape)
        if self._laid is not None:
            found |= self._laid.marks
        return {**found, **self.sampler.columns}

    def _item_plan(self, names: tuple[str, ...] | None) -> ItemPlan | None:
        return None if self._laid is None else self._laid.plan(names or self.fields)

    def _weighs_by_batch(self) -> bool:
        return self.sampler._weighs_by_batch

    def _check_indexes(self) -> None:
        sampler: Any = self.sampler
        if self.has_priorities and not sampler.check_for_update:
            raise ValueError(
                "indexes: without check_for_update they are slots, which get other rows later; "
                "make the buffer, or its sampler, with check_for_update=True"
            )
        if "indexes" in self.schema.names:
            raise ValueError("indexes: there is a field of this name")

    def _read_batch_size(
        self, batch_size: int, fields: str | Iterable[str] | None = None
    ) -> tuple[int, tuple[str, ...] | None]:
        columns = self._columns(fields)
        names = None if columns is None else tuple(column.name for column in columns)
        return self._check_batch_size(batch_size, columns), names

    def _check_draw(self, n: int, options: SampleOptions) -> None:
        if not options.replace and n > len(self):
            raise NotEnoughDataError(
                f"cannot sample {n} distinct rows: the buffer holds {len(self)}"
            )
        self.sampler.check_draw(n, **options.of_sampler)

    def _draw_named(
        self, ring: Ring, n: int, rng: np.random.Generator, *, replace: bool
    ) -> tuple[Slots, Extra]:
        """``Sampler.draw``, with the handles of the rows as a further column."""
        sampler = self.sampler
        slots, extra = take_drawn(sampler, "draw", sampler.draw(ring, n, rng, replace=replace))
        return slots, with_handles(sampler, ring, slots, extra)

    @property
    def episodes(self) -> Episodes:
        """The episodes whose rows are in the buffer: see ``Episodes``."""
        from cpprb_like.buffers._episodes import Episodes  # noqa: PLC0415 (on demand)

        return Episodes(self, self._episodes)

    def _columns(self, fields: str | Iterable[str] | None) -> tuple[Column, ...] | None:
        """The columns of some fields, in declared order; None for all fields."""
        return read_columns(fields, self.ring.columns)

    def _reading(self, columns: tuple[Column, ...] | None) -> Any:
        """The function that reads some columns of rows, or all; None: stored values of the ring."""
        if columns is None or self._take is None:
            return self._take
        if self._laid is not None:
            plan = self._laid.plan([column.name for column in columns])
            return TakeItems(plan, self._rows.take)
        return partial(self._rows.take, columns=columns)

    def _read(
        self, choose: Callable[[], Slots], columns: tuple[Column, ...] | None = None
    ) -> Batch:
        """The rows of the slots that ``choose`` returns, read consistently with that choice."""
        ring = self.ring
        read = self._reading(columns) or partial(take, ring, columns=columns)

        def attempt() -> tuple[Slots, Batch]:
            slots = choose()
            return slots, read(slots)

        return self.consistently(attempt)

    def _to_report(self) -> Iterator[tuple[str, Any, Any]]:
        yield "", self, None

    def check(self) -> None:
        """Verify that the buffer is sound: all state that can be derived in two ways.

        The checks compare the header with the flags of the rows, and the flags with the end fields.
        They also cover the sizes, the state of ``next_of`` and ``stack_compress`` by row, and the
        weights of prioritized rows.

        Raises
        ------
        AssertionError
            A check failed; the message names the row, the expected and the found value.

        Notes
        -----
        Cost: proportional to the rows. Other threads that add wait. Values that are stored once and
        have no references, such as rewards, cannot be verified.
        """
        from cpprb_like.buffers._checking import check_rows  # noqa: PLC0415 (on demand)

        self._hold(True, check_rows, self._layout, self._arena, self.ring, self.sampler)

    def get_all_transitions(
        self, shuffle: bool = False, *, fields: str | Iterable[str] | None = None
    ) -> Batch:
        """All rows at once.

        Parameters
        ----------
        shuffle : bool
            Whether the order is random. If not, rows come in the order of slots, not of age.
        fields : str or iterable of str, optional
            The fields to read; by default all.

        Returns
        -------
        dict of ndarray
            Each field, shape ``(len(self), *shape)``. The rows are copied.

        Examples
        --------
        >>> from cpprb_like import ReplayBuffer
        >>> rb = ReplayBuffer(2, {"rew": {"shape": ()}})
        >>> rb.add(rew=[1, 2, 3])
        0
        >>> rb.get_all_transitions()["rew"].tolist()
        [3.0, 2.0]
        """
        ring, columns = self.ring, self._columns(fields)
        if not shuffle:
            return self._read(partial(ordered_slots, ring), columns)
        return self._read(
            lambda: (
                draw_uniform(ring, len(ring), self.rng, False)
                if len(ring)
                else ring.present_slots()
            ),
            columns,
        )

    def _all_by_age(self) -> tuple[Batch, NDArray[np.bool_]]:
        """All rows, oldest first, and for each whether it ends an episode."""
        from cpprb_like.checkpoint._cpprb_files import slots_by_age  # noqa: PLC0415 (on demand)

        ring = self.ring
        read = self._take or partial(take, ring)

        def attempt() -> tuple[Slots, tuple[Batch, NDArray[np.bool_]]]:
            slots, ends = slots_by_age(ring)
            return slots, (read(slots), ends)

        return self.consistently(attempt)

    def _begin_epoch(
        self, fields: tuple[str, ...] | None, shuffle: bool, rng: np.random.Generator | None
    ) -> EpochOrder | None:
        if len(self) == 0:
            return None
        ring, clears = self.ring, self.ring.clears
        columns = self._columns(fields)
        epoch = Epoch(ring, order_generator(shuffle, rng, self.rng))

        def is_gone() -> bool:
            return ring.clears != clears or self.ring is not ring

        def still_there(chosen: Slots) -> Slots:
            if is_gone():
                raise RuntimeError("the buffer was cleared or made anew while its rows were read")
            return chosen[~ring.absent_at(chosen)]

        def read(slots: Slots) -> Batch:
            return self._read(partial(still_there, slots), columns)

        return EpochOrder(epoch.take, read, is_gone)

    # ------------------------------------------------------------------ rows by slot

    def __getitem__(self, index: int | slice | ArrayLike) -> Batch:
        """Rows by slot.

        Returns a dict of values for an int, a dict of arrays for a slice, an array of ints or a
        bool mask. Negative numbers count from the last slot in use. Raises ``IndexError`` for slots
        that are not in use or hold no step.
        """
        single = not isinstance(index, slice) and read_argument("slots", index).ndim == 0
        batch = self._read(lambda: resolve(self.ring, index))
        return self._one_row(batch) if single else batch

    def _one_row(self, batch: Batch) -> Batch:
        """The values of the only row of a batch. Its own items are all, so it needs no mask."""
        marks = () if self._laid is None else self._laid.marks
        return {name: values[0] for name, values in batch.items() if name not in marks}

    def stack(
        self,
        name: str,
        slots: ArrayLike,
        *,
        axis: int = -1,
        out: NDArray[Any] | None = None,
    ) -> NDArray[Any]:
        """Stack the values of a field at several slots, such as the newest frames of an episode.

        Each row of the result is ``np.stack([values[slot] for slot in row], axis)``, where ``row``
        is a row of ``slots``, and ``values[slot]`` is the value of the field in a slot.

        Parameters
        ----------
        name : str
            The field.
        slots : array_like of int, shape (n, depth)
            The slots of each stack, in the order of its frames. A negative one is padding: zeros
            (``None`` for Python objects).
        axis : int
            Axis of the frames in a stack, without the axis of n.
        out : ndarray or tensor, optional
            Array to write into, as of ``sample``.

        Returns
        -------
        ndarray
            Shape ``(n, *shape)`` with ``depth`` inserted at ``axis``: values as they were added,
            also of absent rows. But the next value of an absent row may come from the next row.

        Raises
        ------
        TypeError, ValueError, IndexError
            There is no such field or axis, a slot is not in use, or ``slots`` or ``out`` has a
            wrong type or shape.
        MemoryError
            The stacks do not fit into memory.

        Examples
        --------
        >>> from cpprb_like import ReplayBuffer
        >>> rb = ReplayBuffer(10, {"frame": {"shape": 2, "dtype": "u1"}})
        >>> rb.add(frame=[[1, 2], [3, 4], [5, 6]])
        0
        >>> rb.stack("frame", [[0, 1, 2], [-1, -1, 0]]).tolist()
        [[[1, 3, 5], [2, 4, 6]], [[0, 0, 1], [0, 0, 2]]]
        """
        from cpprb_like.views._stacking import stack_rows  # noqa: PLC0415 (on demand)

        return stack_rows(self.ring, self.consistently, name, slots, axis, out)

    def __iter__(self) -> Iterator[Batch]:
        """Yield the rows as dicts of values, in the order of their slots: see ``epoch``."""
        for batch in self.epoch(1, shuffle=False):
            if all(len(values) for values in batch.values()):  # empty if the row was deleted since
                yield self._one_row(batch)

    __reversed__ = None

    # ------------------------------------------------------------------ data sets

    def export(
        self,
        path: str | os.PathLike[str],
        format: str | None = None,  # noqa: A002 (the word that users know)
        *,
        strict: bool = False,
        observation: str | Iterable[str] | None = None,
        action: str | Iterable[str] | None = None,
        reward: str | None = None,
        about: Mapping[str, Any] | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        """Write all rows as a data set of another library.

        A data set serves exchange. It has numbers and bools, the episodes in order with their ends,
        and further values that the format can hold. ``save`` writes a lossless copy. Rows are the
        single steps that were added. To export a view, export its buffer.

        Parameters
        ----------
        path : str or path
            The new file or folder. It takes its name when it is complete and on the disk.
        format : str, optional
            One of ``cpprb_like.datasets.FORMATS``. By default the suffix names it.
        strict : bool
            Raise an error, not a warning, for values that the format cannot hold.
        observation, action, reward : str or iterable of str, optional
            Names of these fields. By default ``obs``, ``act`` and ``rew``, or similar names, with
            parts such as ``obs.position``. If no field has such a name, each field ``x`` with a
            ``next_x`` is an observation.
        about : dict, optional
            Further metadata of the format, such as ``{"author": "..."}``. For Minari also
            ``observation_space``, ``action_space`` and ``env_spec``, as Gymnasium has them. The
            result of ``cpprb_like.datasets.describe`` for another data set can be passed.
        progress : callable, optional
            ``progress(done, total)`` is called with numbers of bytes.

        Warns
        -----
        DataLossWarning
            The format cannot hold values, such as a field of Python objects, or in most formats
            values of any length. They are left out, and the message says how much.
            ``describe(path).lacks`` lists what a format cannot hold.
        UserWarning
            A data set of Minari is written without the spaces of its environment.

        Raises
        ------
        ValueError
            There is no such format, or the buffer lacks a field that the format needs. There are no
            rows. ``about`` does not fit the fields or the format. Next observations differ from the
            observations of the next rows, and the format has no place for them. Or the format
            cannot hold a value and ``strict`` is true.
        FileExistsError
            ``path`` exists.
        ImportError
            A package is not installed; the message names it.
        OSError
            The files cannot be written. After any error nothing new is left at ``path``.

        Notes
        -----
        Other threads that write wait; threads that sample do not. Cost: each observation is read
        twice, other values once. Memory: some megabytes, for any number of rows.

        Examples
        --------
        >>> import tempfile
        >>> from cpprb_like import ReplayBuffer
        >>> number = {"shape": ()}
        >>> fields = {"obs": {"shape": 2}, "act": number, "rew": number, "truncated": number}
        >>> rb = ReplayBuffer(10, fields, next_of="obs")
        >>> rb.add(obs=[[1, 2]], act=[0], rew=[1], next_obs=[[3, 4]], truncated=[True])
        0
        >>> path = tempfile.mkdtemp() + "/episodes"
        >>> rb.export(path, "dreamerv3")
        >>> ReplayBuffer.from_dataset(path).get_all_transitions()["next_obs"].tolist()
        [[3.0, 4.0]]
        """
        from cpprb_like import datasets  # noqa: PLC0415 (on demand)

        self._hold(
            True,
            lambda: datasets.export(
                self,
                path,
                format,
                strict=strict,
                observation=observation,
                action=action,
                reward=reward,
                about=about,
                progress=progress,
            ),
        )

    @classmethod
    def from_dataset(
        cls,
        path: str | os.PathLike[str],
        format: str | None = None,  # noqa: A002 (the word that users know)
        *,
        split: str | None = None,
        capacity: float | None = None,
        env_dict: Mapping[str, FieldSpec] | None = None,
        strict: bool = False,
        resume: bool = False,
        download: bool = False,
        progress: Callable[[int, int], None] | None = None,
        **options: Unpack[PrioritizedOptions],
    ) -> Self:
        """A buffer with the rows of a data set.

        Parameters
        ----------
        path : str or path
            The file or folder. If there is none, the name that the library of a format has for a
            local data set: Minari's ``"D4RL/door/human-v2"``, LeRobot's ``"lerobot/pusht"``, or
            ``"fractal20220817_data/0.1.0"`` of TensorFlow Datasets, by default the newest version.
        format : str, optional
            One of ``cpprb_like.datasets.FORMATS``. By default the files show it.
        split : str, optional
            The split to read, if a folder of format ``"rlds"`` has several.
        capacity : int, optional
            Rows that the buffer holds, by default as many as the data set has. A smaller buffer
            holds the newest rows.
        env_dict : dict, optional
            The fields to read, with ``shape`` and ``dtype`` where these differ from the data set.
            By default all. Numbers are converted, or refused, as by ``add``.
        strict : bool
            Raise an error, not a warning, for values that a buffer cannot hold, such as Python
            objects, and for steps that would be left out.
        resume : bool
            Leave the newest episode open if it is open in the files, so the first ``add`` goes on
            with it. By default it is truncated, as its environment is gone.
        download : bool
            Whether the library of ``format``, which has to be given, downloads a data set that is
            not there: Minari, LeRobot or TensorFlow Datasets. Nothing is downloaded by default.
        progress : callable, optional
            ``progress(done, total)`` is called with numbers of bytes.
        **options
            Options of the constructor except ``n_envs``, such as ``next_of``, ``Nstep``, ``seed``.
            By default ``room`` has as many items of each named axis as all rows have. They are
            counted in a pass over the fields of any length.

        Returns
        -------
        ReplayBuffer
            A buffer of this class for one environment, with the episodes one after another. It has
            the fields ``obs``, ``act``, ``rew``, ``next_obs``, ``terminated`` and ``truncated``,
            with parts such as ``obs.position``, and others by name. The last step of an episode is
            left out if its next observation is not in the files. It is kept if it is terminated, or
            if ``env_dict`` names no field of next values.

        Warns
        -----
        DataLossWarning
            A buffer cannot hold values of the files, or steps are left out.

        Raises
        ------
        ValueError
            The files show no format or are damaged. Or a buffer cannot hold a value, and ``strict``
            is true. The message names the file and the field.
        FileNotFoundError, OSError
            The files do not exist, or cannot be read. Of a name that is not found, the message
            says where it was looked for, and which names are there.
        ImportError
            A package is not installed; the message names it.

        Notes
        -----
        No code in the files is run, and nothing is unpickled. Cost: reading the
        files, ``add`` of all rows, and memory of some megabytes beside the buffer.

        Examples
        --------
        >>> import tempfile
        >>> from cpprb_like import ReplayBuffer
        >>> number = {"shape": ()}
        >>> fields = {"obs": {"shape": 2}, "act": number, "rew": number, "done": number}
        >>> rb = ReplayBuffer(10, fields, next_of="obs")
        >>> rb.add(
        ...     obs=[[1, 2], [3, 4]], act=[0, 1], rew=[1, 2], next_obs=[[2, 3], [4, 5]], done=[1, 0]
        ... )
        0
        >>> path = tempfile.mkdtemp() + "/episodes"
        >>> rb.export(path, "dreamerv3")
        >>> other = ReplayBuffer.from_dataset(path, capacity=100)
        >>> len(other), [one.truncated for one in other.episodes.list()]
        (2, [False, True])
        """
        from cpprb_like import datasets  # noqa: PLC0415 (on demand)

        found: Self = datasets.from_dataset(
            cls,
            path,
            format,
            split=split,
            capacity=capacity,
            env_dict=env_dict,
            strict=strict,
            resume=resume,
            download=download,
            progress=progress,
            options=options,
        )
        return found

    # ------------------------------------------------------------------ cpprb's names

    def get_stored_size(self) -> int:
        """Rows that can be drawn."""
        return len(self.ring)

    def get_buffer_size(self) -> int:
        """Rows that the buffer can hold."""
        return self._layout.size

    def get_next_index(self) -> int:
        """Slot of the next row; with ``Nstep`` and one environment, of the first incomplete row."""
        return self.ring.stop % self.ring.span

    def is_Nstep(self) -> bool:  # noqa: N802 (cpprb's name)
        """Whether rows are read as transitions of several steps."""
        return self._nstep is not None

    def save_transitions(self, file: File, *, safe: bool = True) -> None:
        """Write all rows to a file that cpprb 10 and 11 read too.

        The file has the values of the rows, oldest first, with n-step returns summed, and a flag
        for each episode end, which cpprb ignores. It lacks priorities, the generator, open episodes
        and rows whose n-step window is incomplete. ``save`` writes all of these.

        Parameters
        ----------
        file : str or path or binary file
            A path without the suffix ``.npz`` gets it. The file takes its name, and replaces
            another file, when it is complete and on the disk.
        safe : bool
            Whether the next values of ``next_of`` are written for each row. If false, they are
            written only for rows whose next value differs from the value of the next row. With
            ``Nstep`` or several environments they are always written for each row.

        Raises
        ------
        TypeError, ValueError
            ``file`` is neither a path nor a file; or a field holds Python objects, or values of
            any length.
        OSError
            The file cannot be written. An existing file is unchanged.

        Examples
        --------
        >>> import tempfile
        >>> from cpprb_like import ReplayBuffer
        >>> rb = ReplayBuffer(10, {"rew": {"shape": ()}})
        >>> rb.add(rew=[1, 2, 3])
        0
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     rb.save_transitions(f"{folder}/rows")
        ...     rb.load_transitions(f"{folder}/rows")
        >>> rb.get_all_transitions()["rew"].tolist()
        [1.0, 2.0, 3.0, 1.0, 2.0, 3.0]
        """
        from cpprb_like.checkpoint import _cpprb_files  # noqa: PLC0415 (few programs need it)

        _cpprb_files.save_transitions(self, file, safe=safe)

    def load_transitions(self, file: File) -> None:
        """Add the rows of a file that this or cpprb's ``save_transitions`` wrote.

        The last ``size`` rows of the file are added in the order of the file. With priorities they
        get the priority of new rows.

        Parameters
        ----------
        file : str or path or binary file
            A path is tried with the suffix ``.npz`` first. A file has ``read`` and ``seek``.

        Raises
        ------
        KeyError
            The file lacks a field of this buffer. Other fields of the file are left out.
        TypeError, ValueError
            ``file`` is neither a path nor a file. The shape of a field differs, or the declared
            dtype cannot hold its values. ``Nstep`` differs, or has ``discount``, which no file has.
            The buffer has fields with values of any length.
            Or the file is damaged, of an unknown version, or holds Python objects. The buffer is
            unchanged.
        OSError, MemoryError
            The file cannot be read, or a part of it unpacks to more than the free memory.

        Notes
        -----
        No code in the file is run. Memory: at most three times the unpacked bytes.

        The open episode ends before the first row and after the last one. Between them, episodes
        end where they ended when the file was saved. cpprb's own files lack these ends, and their
        rows are in the order of cpprb's slots. There an episode ends at a nonzero end field, and
        where ``next_x`` differs from ``x`` of the next row. With ``Nstep``, or several
        environments, each row is its own episode.
        """
        from cpprb_like.checkpoint import _cpprb_files  # noqa: PLC0415 (few programs need it)

        _cpprb_files.load_transitions(self, file)

    def _encode_sample(self, idx: ArrayLike) -> Batch:
        """The rows at the given slots."""
        return self[np.atleast_1d(idx)]

    # ------------------------------------------------------------------ size and state

    def __len__(self) -> int:
        """Rows that can be drawn."""
        return len(self.ring)

    @property
    def schema(self) -> Schema:
        """The fields."""
        return self._layout.schema

    @property
    def capacity(self) -> int:
        """Greatest number of rows that can be drawn.

        With ``Nstep`` there are ``(Nstep["size"] - 1) * n_envs`` more slots, for the newest rows of
        unfinished episodes.
        """
        return self._layout.size

    @property
    def n_envs(self) -> int:
        """Environments that step together."""
        return self._layout.n_envs

    @property
    def nbytes(self) -> int:
        """Allocated bytes of the rows, and of the state of the sampler by row.

        ``repr`` lists bytes by field. For Python objects only the references count.
        """
        beside = sum(self._overflow().values()) + self.ring.index_nbytes
        return self._layout.total_nbytes + beside

    def _overflow(self) -> dict[str, int]:
        """Bytes of the overflow of each chained field."""
        return {chain.name: chain.overflow_nbytes for chain in self.ring.chains}

    def __repr__(self) -> str:
        envs = f", n_envs={self.n_envs}" if self.n_envs > 1 else ""
        ring, left = self.ring, sum(items.left for items in self.ring.items)
        room = f", left_for_room={left}" if left else ""
        head = f"{type(self).__name__}(size={self.capacity}{envs}, stored={len(self)}{room})"
        table = field_table(self._layout, self._overflow(), ring.index_nbytes, items_in_use(ring))
        return f"{head}\n{table}"

    def __copy__(self) -> ReplayBuffer:
        """A deep copy, as two buffers cannot share rows."""
        return copy.deepcopy(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return _blank, (type(self),), self.__getstate__()

    def __getstate__(self) -> dict[str, Any]:
        """State of a pickle, consistent while other threads write.

        With several threads, rows and sampler are copied while writers wait, as pickling takes
        longer than this call. A program of one thread needs no copy.
        """
        if self._files is not None and self._files.is_inherited:
            return self.consistently(lambda: (np.empty(0, np.intp), self._state_now(True)))
        if threading.active_count() == 1:  # a forked child too, whose lock may never be free
            return self._state_now(False)
        state: dict[str, Any] = self._hold(True, self._state_now, True)
        return state

    def _state_now(self, copies: bool) -> dict[str, Any]:
        """The state of a pickle; with ``copies`` later writes do not change it."""
        from cpprb_like._fields import snapshot  # noqa: PLC0415 (on demand)

        attributes = {name: value for name, value in self.__dict__.items() if name not in REBUILT}
        attributes["rng"] = without_prefetch(self.rng)
        sampler = without_prefetch(self.sampler)
        attributes["sampler"] = copy.deepcopy(sampler) if copies else sampler
        rows = snapshot.save(self._layout, self._arena, self.ring, copies=copies)
        return rows | {"attributes": attributes}

    def __setstate__(self, state: dict[str, Any]) -> None:
        from cpprb_like._fields import snapshot  # noqa: PLC0415 (on demand)

        # A pickle may be damaged, or come from an unknown source: all of it is checked before use.
        try:
            attributes = dict(state["attributes"])
            layout = snapshot.check_layout(state["layout"])
            _, arena = self._open_memory(layout)
            ring = self._make_ring(layout, arena)
            snapshot.load(state, arena, ring)
            _check_memory(layout, arena, ring, values=True)
            rebuild(ring)
            others = attributes | {"_files": None}
            self._open(layout, arena, ring, others.pop("sampler"), **others)
        except (ArithmeticError, AttributeError, LookupError, TypeError) as error:
            raise ValueError(f"the pickled buffer is damaged: {error!r}") from error

    # ------------------------------------------------------------------ checkpoints

    def _rows_to_save(self) -> RowsToSave:
        attributes = {name: value for name, value in self.__dict__.items() if name not in REBUILT}
        return RowsToSave(self._layout, self._arena, self.ring, self._saves, attributes)

    def _open_saved(self, attributes: dict[str, Any], reader: RingReader, target: Target) -> None:
        """See ``Savable._open_saved``."""
        saved = reader.saved.layout
        options = saved.native(target.fields)
        if target.size is not None or target.room is not None:
            size = options.size if target.size is None else target.size
            options = options.resized(size, target.room)
        options.check()
        sampler = attributes["sampler"]
        if not isinstance(sampler, Sampler):
            raise ValueError(f"sampler: expected one, got {type(sampler).__name__}")
        layout = Layout.of(options, nbytes_of(sampler, options.capacity))
        if target.mmap_prefix is not None and target.mmap_mode not in ("x", "w"):
            raise ValueError(f"mmap_mode: expected 'x' or 'w', got {target.mmap_mode!r}")
        files, arena = self._open_memory(layout, target.mmap_prefix, target.mmap_mode)
        ring = self._make_ring(layout, arena, files)
        found = reader.fill(layout, arena, ring)
        _check_memory(layout, arena, ring, values=True)
        rebuild(ring)
        if reader.salvages or not found.is_whole or layout.capacity != saved.capacity:
            sampler.move(found.old_slots(ring), ring)
        if files is not None:
            files.keep(ring)
        others = attributes | {"_files": files}
        self._open(layout, arena, ring, others.pop("sampler"), **others)
        if found.has_all_of(layout):
            self._saves.put(ring, reader.state.id, reader.number, Tracker(ring.capacity), "")

    def _to_take_over(self, other: ReplayBuffer, swap: Callable[[Any], Any]) -> list[Change]:
        """See ``Savable._to_take_over``."""
        attributes = {name: swap(value) for name, value in other.__dict__.items()}
        further = _further(other._nstep, other._laid)
        return [Attachment(self, other.ring, self._lock, further, attributes).use]

    def _expect_no_file(self) -> None:
        if self._files is not None:
            raise ValueError(
                "restore: the rows lie in a file map; load(folder, mmap_prefix=...) makes a new one"
            )

    # ------------------------------------------------------------------ checks

    def _check_env(self, env: int) -> int:
        try:
            stream = operator.index(env)
        except TypeError:
            raise TypeError(f"env: expected the number of an environment, got {env!r}") from None
        if not 0 <= stream < self.n_envs:
            raise IndexError(f"env: expected 0 to {self.n_envs - 1}, got {env}")
        return stream


class _Unopened(Sampler):
    """In a forked child: in place of a sampler that could not leave the file of the parent."""

    has_priorities = True

    def __init__(self, refusal: str) -> None:
        self._refusal = refusal

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise RuntimeError(self._refusal)

    draw = draw_starts = check_draw = update_priorities = get_max_priority = _refuse


def _check_memory(
    layout: Layout, arena: NDArray[np.uint8], ring: Ring | None = None, *, values: bool = False
) -> None:
    """Raise ``ValueError`` unless memory of a file or a pickle is sound and fits the layout."""
    from cpprb_like.buffers._checking import check_memory  # noqa: PLC0415 (on demand)

    check_memory(layout, arena, ring, values=values)


def _further(nstep: NStepReturns | None, laid: LaidItems | None) -> tuple[str, ...]:
    """Names of the columns that batches have beside the fields, with any sampler."""
    discount = ("discount",) if nstep is not None and nstep.discount else ()
    return discount if laid is None else (*discount, *laid.marks)


# Names of the options of the constructor.
OPTIONS = tuple(
    name
    for name, parameter in inspect.signature(ReplayBuffer).parameters.items()
    if parameter.kind is inspect.Parameter.KEYWORD_ONLY
)


def _blank(cls: type[ReplayBuffer]) -> ReplayBuffer:
    """A buffer without memory, for ``__setstate__``."""
    return cls.__new__(cls)
