"""``SharedReplay``: a replay in shared memory, which processes add to and draw from.

This module creates the folder, its description, and the ends: actors, which add, and learners,
which draw. Not here: locks of processes (``_folder``), rows (``_shards``), batches (``_learner``).
"""

from __future__ import annotations

import errno
import math
import os
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

from cpprb_like._arguments.checks import as_int
from cpprb_like._core import (
    WORD_ABSENT_ROWS,
    WORD_CLEARED,
    WORD_EDITS,
    WORD_EPISODES,
    WORD_WRITTEN,
)
from cpprb_like._fields.checked_options import CheckedOptions, warn_of_rows
from cpprb_like._fields.layout import Layout
from cpprb_like._fields.schema import read_size
from cpprb_like._files.json_codec import from_json, to_json
from cpprb_like._machine.generators import Seed
from cpprb_like._machine.opening import read_bytes
from cpprb_like._machine.waiting import EDIT_PATIENCE, wait_until
from cpprb_like.buffers import Source
from cpprb_like.buffers._draw_counts import stats_of
from cpprb_like.checkpoint import Beside, Codec, SaveOptions
from cpprb_like.limiters import RateLimiter
from cpprb_like.processes._draws import check_sampler
from cpprb_like.processes._first_priorities import FirstPriorities
from cpprb_like.processes._folder import (
    LOCK_NBYTES,
    MENDER,
    Closing,
    FileLock,
    Folder,
    is_locked,
    is_owned,
    room_for,
    said_by,
    while_open,
)
from cpprb_like.processes._followers import read_header
from cpprb_like.processes._learner import Learner
from cpprb_like.processes._limits import (
    LimitedActor,
    Limits,
    limiter_from_json,
    limiter_to_json,
)
from cpprb_like.processes._parameters import FOLDER, Parameters
from cpprb_like.processes._saving import Saved, SavedLearner, copy_of, read_saved, save
from cpprb_like.processes._shards import (
    ROWS,
    WRITER,
    Actor,
    FollowedFiles,
    followed_files,
    last_added,
    stats_of_items,
)
from cpprb_like.processes._words import MOST_LEARNERS, Words
from cpprb_like.samplers import Sampler, Uniform
from cpprb_like.typing import FieldSpec, RowOptions

if TYPE_CHECKING:
    from typing_extensions import Unpack

Kind = TypeVar("Kind", bound=Learner)

FORMAT = 5
MENDING = 10.0  # seconds to wait for the repair of a shard, which takes 50 ms a million rows
ORIGIN = "origin"  # file with the id of the state of the checkpoint that was loaded


@dataclass(frozen=True)
class Member:
    """An actor or a learner of a shared replay, or the last one with its number.

    Attributes
    ----------
    kind : {"actor", "learner"}
        Kind of the member.
    number : int
        Number of the shard or of the learner, from 0 on.
    pid : int
        Process ID of the member. After its end, the ID of the last process with this number.
    alive : bool
        Whether the process holds the lock of the member. A stopped process holds its lock.
    since : float
        Time at which the actor or learner began, in seconds as ``time.time`` gives them.
    rows : int
        Rows of the shard that were written and not overwritten; 0 for a learner.
    age : float or None
        Seconds since the last add to the shard, within 10 ms; None if no row was added.
    updates : int
        Priorities that the learner was given; 0 for an actor.
    late_updates : int
        Priorities that came after their row was overwritten, cleared or hidden. They changed
        nothing. With a user-defined sampler the number is unknown.
    """

    kind: Literal["actor", "learner"]
    number: int
    pid: int
    alive: bool
    since: float
    rows: int
    age: float | None
    updates: int = 0
    late_updates: int = 0


class SharedReplay(Closing):
    """A replay in shared memory: processes of one machine add to it and draw from it.

    There is no server, and rows wait for no lock. Each process that adds has its own part of the
    memory, a *shard*. Learners read all shards while rows come. A process may be stopped or killed
    at any time, and no other process waits for it.

    Parameters
    ----------
    capacity : int
        Steps stored in all. The shard of each writer holds an equal part, rounded up.
    env_dict, default_dtype, n_envs, **options
        As for ``ReplayBuffer``, for each writer. Options are ``terminated``, ``truncated``,
        ``next_of``, ``stack_compress``, ``Nstep`` and ``room``. Fields of Python objects are
        refused. The ``room`` of a named axis is for all writers together. Each shard has an equal
        part of it, rounded up, so a row has at most as many items as this part.
    writers : int
        Greatest number of processes or threads that add at the same time.
    name : str, optional
        Name for ``attach``: letters, digits, ``-`` and ``_``. By default a random one.
    limiter : RateLimiter, optional
        ``MinSize``, ``SampleToInsertRatio`` or ``Backlog``. With a limiter, ``add`` of actors and
        ``sample`` of learners wait for one another. By default neither side waits.
    reserve : bool
        Whether to reserve the memory of all shards now. If false, the memory of a shard is reserved
        when an actor first takes it. The extra values of ``next_of`` and ``stack_compress``, and
        the items of named axes, are in files that grow with the rows. ``add`` raises
        ``MemoryError`` if these have no room.

    Raises
    ------
    MemoryError
        Shared memory has no room. The message says how much is needed and how to enlarge it. No
        files remain.
    FileExistsError
        A replay with this name exists.
    TypeError, ValueError
        A parameter has a wrong type or value.

    Notes
    -----
    The memory is a folder in ``/dev/shm``, or in the temporary folder on systems without it. The
    environment variable ``CPPRB_LIKE_SHARED_MEMORY`` names another folder. The last process that
    has the replay open removes the folder at its end. If all processes were killed, the next new
    ``SharedReplay`` removes the folder.

    Pickling keeps only the location of the replay, not its rows. Pass the object to processes of
    any start method: fork, spawn or forkserver.

    Examples
    --------
    >>> from cpprb_like.processes import SharedReplay
    >>> fields = {"obs": {"shape": 4}, "done": {"shape": (), "dtype": bool}}
    >>> replay = SharedReplay(1000, fields, writers=2)
    >>> with replay.actor() as actor:           # in a process of its own
    ...     actor.add(obs=[1, 2, 3, 4], done=False)
    0
    >>> learner = replay.learner(seed=0)        # in another one
    >>> learner.sample(8)["obs"].shape
    (8, 4)
    """

    def __init__(
        self,
        capacity: float,
        env_dict: Mapping[str, FieldSpec],
        *,
        writers: int,
        default_dtype: DTypeLike | None = None,
        n_envs: int = 1,
        limiter: RateLimiter | None = None,
        name: str | None = None,
        reserve: bool = True,
        **options: Unpack[RowOptions],
    ) -> None:
        self.writers = as_int("writers", writers, 1)
        whole = CheckedOptions.read(
            capacity, env_dict, default_dtype=default_dtype, n_envs=n_envs, **options
        )
        rows = options_of_each(whole, self.writers)
        names = [field.name for field in rows.schema.fields if field.dtype.hasobject]
        if names:
            raise ValueError(
                f"env_dict: fields {names} hold Python objects, which no process shares"
            )
        warn_of_rows(rows, options.get("Nstep"))
        self._make(rows, limiter, name, reserve=reserve)

    def _make(
        self,
        options: CheckedOptions,
        limiter: RateLimiter | None,
        name: str | None,
        *,
        reserve: bool = False,
        saved: Saved | None = None,
    ) -> None:
        """Create the folder of a new replay, with the rows of ``saved``."""
        description = {
            "format": FORMAT,
            "writers": self.writers,
            "limiter": limiter_to_json(limiter),
            "options": to_json(options),
        }
        if limiter is not None:
            limiter._check_capacity(options.size * self.writers)
        self._options = options
        self._folder = Folder.make(name)
        layout = Layout.of(options)
        nbytes = (layout.nbytes + layout.items_nbytes) * self.writers
        try:
            with room_for(nbytes, self._folder.path, "the replay"):
                self._fill(nbytes if reserve else 0)
                self._open_words(limiter)
                if saved is not None:
                    self._load(saved)
                self._folder.publish(description)
            self._identity = self._folder.identity
        except BaseException:
            self._folder.close()
            raise

    def _fill(self, reserved: int) -> None:
        """Create all files of the folder; with ``reserved`` bytes also all shards."""
        path = self._folder.path
        if reserved > shutil.disk_usage(path).free:  # before memory is taken from other processes
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        for number in range(self.writers):
            self._shard(number).mkdir()
            (self._shard(number) / MENDER).touch()
            if reserved:
                self._make_shard(number)
        (path / "learners").mkdir()
        (path / FOLDER).mkdir()
        Words.make(path, self.writers)

    def _make_shard(self, number: int) -> None:
        """Create a shard and reserve its memory, without a record of an owner."""
        lock = FileLock(self._lock_path(number))
        lock.take(create=True)
        Actor(self._shard(number), number, lock, self._options).close()

    def _open_words(self, limiter: RateLimiter | None) -> None:
        path, writers = self._folder.path, self.writers
        self._words = Words(path, writers)
        self._memories: dict[int, FollowedFiles] = {}
        self._first = FirstPriorities(path, writers, self._options.size)
        self._parameters = Parameters(self._folder, self._words)
        self._limits = None
        if limiter is not None:
            self._limits = Limits(
                path,
                limiter,
                self._words.limiter,
                [self._lock_path(number) for number in range(writers)],
                [self._learner_lock_path(number) for number in range(MOST_LEARNERS)],
            )

    @classmethod
    def attach(cls, name: str) -> SharedReplay:
        """Open the replay with this name, which another process has created.

        Raises ``FileNotFoundError`` if the replay was not created, or if all its processes ended.
        """
        return cls._open(name)

    @classmethod
    def _open(
        cls,
        name: str,
        base: Path | None = None,
        identity: str | None = None,
        *,
        left: bool = False,
    ) -> SharedReplay:
        """As ``attach``, with a folder ``base`` in place of the shared memory of this process.

        With an ``identity`` only this replay, and not a later one of the name. With ``left`` also a
        replay whose processes were all killed.
        """
        replay = cls.__new__(cls)
        folder = Folder.open(name, base, left=left, identity=identity)
        description = folder.description()
        if description["format"] != FORMAT:
            raise ValueError(f"the replay {name} was made by another version of cpprb_like")
        replay._folder, replay._identity = folder, folder.identity
        replay.writers = int(description["writers"])
        replay._options = from_json(CheckedOptions, description["options"], "options")
        replay._open_words(limiter_from_json(description["limiter"]))
        return replay

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self)._open, (self.name, self.folder.parent, self._identity)

    @property
    def name(self) -> str:
        """The name of the replay, for ``attach``."""
        return self._folder.path.name

    @property
    def folder(self) -> Path:
        """The folder of the replay."""
        return self._folder.path

    @property
    def capacity(self) -> int:
        """Steps stored in all."""
        return self._options.size * self.writers

    # ------------------------------------------------------------------ actors

    @while_open
    def actor(self, writer: int | None = None) -> Actor:
        """The end that adds: a ``ReplayBuffer`` over a shard that no other process writes to.

        Parameters
        ----------
        writer : int, optional
            Number of the shard to take. By default a free shard, first one that was never taken.

        Raises
        ------
        BlockingIOError
            The shard, or every shard, is taken. The message names the processes.
        MemoryError
            Shared memory is full. Only a replay made with ``reserve=False`` raises this.

        Notes
        -----
        A shard is free when its process has ended or called ``close``. Its rows stay, and new rows
        follow them. If the process was killed during a call, the new actor repairs the shard. Open
        episodes are ended as truncated.
        """
        numbers = range(self.writers)
        if writer is not None:
            number = as_int("writer", writer, 0)
            if number >= self.writers:
                raise IndexError(f"writer: expected 0 to {self.writers - 1}, got {number}")
            numbers = range(number, number + 1)
        actor = wait_until(
            lambda: self._actor_of(numbers), MENDING, lambda: self._are_taken(numbers)
        )
        assert actor is not None
        return actor

    def _actor_of(self, numbers: range) -> Actor | None:
        """An actor of a free shard; None while a shard of an actor that died is set right."""
        free = [number for number in numbers if not is_locked(self._lock_path(number))]
        for number in sorted(free, key=lambda number: bool(said_by(self._lock_path(number)))):
            lock = self._taken(self._lock_path(number), "an actor")
            if lock is None:  # another process was faster
                continue
            given = self._shard(number), number, lock, self._options, self._folder, self._first
            try:
                return self._open_actor(*given)
            except BaseException:
                lock.release()
                raise
        if all(is_owned(self._lock_path(number)) for number in numbers):
            raise self._are_taken(numbers)
        return None

    def _open_actor(self, *given: Any) -> Actor:
        """The actor of a shard whose lock was taken."""
        if self._limits is None:
            return Actor(*given)
        actor = LimitedActor(*given)
        actor.limit(self._limits)
        return actor

    def _taken(self, path: Path, whose: str) -> FileLock | None:
        """The lock at a path, taken; None if another process has it."""
        lock = FileLock(path)
        with room_for(LOCK_NBYTES, self._folder.path, f"the lock of {whose}"):
            taken = lock.take({"pid": os.getpid(), "since": time.time()}, create=True)
        return lock if taken else None

    def _are_taken(self, numbers: range) -> BlockingIOError:
        holders = [
            f"writer {member.number} by process {member.pid}, {time.time() - member.since:.1f} s"
            for member in self.members()
            if member.kind == "actor" and member.alive and member.number in numbers
        ]
        what = f"writer {numbers[0]} is" if len(numbers) == 1 else f"all {len(numbers)} writers are"
        by = "; ".join(holders) or "by a process that has just begun"
        return BlockingIOError(f"{what} taken: {by}")

    def _shard(self, number: int) -> Path:
        return self._folder.path / f"shard-{number}"

    def _shards(self) -> list[Path]:
        return [self._shard(number) for number in range(self.writers)]

    def _lock_path(self, number: int) -> Path:
        return self._shard(number) / WRITER

    def _learner_lock_path(self, number: int) -> Path:
        return self._folder.path / "learners" / str(number)

    @property
    @while_open
    def rows(self) -> tuple[int, ...]:
        """The number of rows ever written to each shard: see ``ReplayBuffer.rows``.

        ``BlockingIOError`` if a process was killed or stopped while it changed rows. The next actor
        of its shard repairs them.
        """
        return tuple(map(self._rows_ever, range(self.writers)))

    def _rows_ever(self, number: int) -> int:
        """The number of rows ever written to a shard. A clear changes two words of its header."""
        state = self._state_of(number)
        if state is None:
            return 0

        def look() -> list[NDArray[np.int64]]:
            header = read_header(state)
            return [] if header is None or header[WORD_EDITS] & 1 else [header]

        (header,) = wait_until(
            look,
            EDIT_PATIENCE,
            lambda: BlockingIOError(
                f"writer {number} was killed or stopped while it changed rows; the next actor of "
                "its shard repairs them"
            ),
        )
        return int(header[WORD_CLEARED] + header[WORD_WRITTEN])

    @while_open
    def rewind(self, rows: Sequence[int]) -> int:
        """Forget row ``rows[writer]`` and all later ones of each shard: ``ReplayBuffer.rewind``.

        Learners follow. A batch that one has drawn ahead may still have forgotten rows.

        Parameters
        ----------
        rows : sequence of int
            ``rows`` at the time to go back to; ``checkpoint.inspect(folder).rows`` at a save.

        Returns
        -------
        int
            Number of rows that were forgotten.

        Raises
        ------
        BlockingIOError
            An actor has a shard: its own ``rewind`` does it. The message names its process.
        TypeError, ValueError
            ``rows`` are not one for each writer, as ``ReplayBuffer.rewind`` takes them. After any
            error no row was forgotten.

        Notes
        -----
        A killed process may have rewound some shards: then call this again.
        """
        if not isinstance(rows, (Sequence, np.ndarray)):
            raise TypeError(f"rows: expected {self.writers} integers in a sequence, got {rows!r}")
        if len(rows) != self.writers:
            raise ValueError(f"rows: expected one for each of {self.writers} writers, got {rows}")
        states = [self._state_of(number) for number in range(self.writers)]
        numbers = [  # a clear writes the number of cleared rows before that of written ones
            number
            for number, state in enumerate(states)
            if state is not None and (state[WORD_WRITTEN] or state[WORD_CLEARED])
        ]
        for number, row in enumerate(rows):
            as_int(f"rows[{number}]", row, 0, math.inf if number in numbers else 0)
        with ExitStack() as stack:
            actors = [stack.enter_context(self.actor(number)) for number in numbers]
            for actor in actors:
                actor._first_of(f"rows[{actor.number}]", rows[actor.number])
            return sum(actor.rewind(rows[actor.number]) for actor in actors)

    # ------------------------------------------------------------------ learners

    @while_open
    def learner(self, sampler: Sampler | None = None, *, seed: Seed = None) -> Learner:
        """The end that draws: a ``Source`` of batches from the rows of all actors.

        Parameters
        ----------
        sampler : Sampler, optional
            ``Uniform()`` by default, or ``Prioritized(...)``. ``Learner`` describes each one over
            several shards.
        seed : int, SeedSequence, BitGenerator, Generator, optional
            Seed of the draws.

        Raises
        ------
        TypeError
            ``sampler`` is of another class, or of a subclass of these.
        BlockingIOError
            The replay has 64 learners already.
        """
        chosen = Uniform() if sampler is None else sampler
        learner = self._learner_of(Learner, chosen, seed)
        if self._limits is not None:
            learner._shards.gate = self._limits.gate(self.writers + learner.number)
        return learner

    @while_open
    def restore_learner(
        self,
        folder: str | Path,
        name: str,
        *,
        state: int | None = None,
        replace: Mapping[str, Any] | None = None,
        classes: Iterable[type] = (),
    ) -> Learner:
        """A learner with the priorities, sampler and generator of a saved learner.

        Rows added after the save get the greatest priority, as new rows do. Given the same rows,
        the learner draws what the saved learner would have drawn.

        Parameters
        ----------
        folder : str or path
            Folder from which this replay was loaded. Or the folder to which it was saved, for
            example if only the learner ended and its actors continue.
        name : str
            Name of the learner in ``save``.
        state, replace, classes
            As for ``ReplayBuffer.load``. An example of ``replace``:
            ``{"learners.main.sampler.beta": beta}``.

        Raises
        ------
        ValueError
            The folder has no learner with this name, or the rows of another replay. ``load`` and
            ``learner`` list further errors. For an example see ``save``.
        """
        identity, origin = self._identity, self._folder.path / ORIGIN

        def read(saved: Saved) -> tuple[SavedLearner, bool]:
            is_ours = saved.identity == identity
            loaded_from = read_bytes(origin).decode() if origin.exists() else ""
            if not is_ours and loaded_from != saved.origin:
                raise ValueError(
                    f"{folder} was not saved from this replay, nor is this loaded from that state; "
                    "while another replay saves to it, load and restore from a copy "
                    "(checkpoint.copy), or by state="
                )
            return saved.learner(name), is_ours

        found, is_ours = read_saved(folder, state, read, classes, replace)
        learner = self.learner(found.sampler, seed=found.rng)
        learner._restore(found, is_same_replay=is_ours)
        return learner

    def _learner_of(self, kind: type[Kind], sampler: Sampler, seed: Seed) -> Kind:
        """A new learner of this class, with a free number."""
        check_sampler(sampler)
        for number in range(MOST_LEARNERS):
            path = self._learner_lock_path(number)
            lock = None if is_locked(path) else self._taken(path, "a learner")
            if lock is not None:
                given = self._shards(), number, lock, sampler, seed, self._options
                return kind(self._folder, *given)
        raise BlockingIOError(f"there are {MOST_LEARNERS} learners, and no more can be")

    @property
    @while_open
    def parameters(self) -> Parameters:
        """Weights on their way from a learner to the actors: see ``Parameters``."""
        return self._parameters

    # ------------------------------------------------------------------ saving

    @while_open
    def save(
        self,
        folder: str | Path,
        *,
        learners: Mapping[str, Learner] | None = None,
        keep: int = 1,
        codec: str | None = None,
        level: int | None = None,
        sync: bool = True,
        beside: Beside | None = None,
    ) -> None:
        """Save the rows of all actors to a folder, while actors and learners continue.

        No process waits for the save. Each shard is saved as of another moment, with all rows
        published at that moment, except the oldest ones if they are overwritten during the save.
        After a crash of the program or the machine, the folder has the old state or the new one.
        A later save to the same folder, by any process, writes only the changes.

        Parameters
        ----------
        folder : str or path
            The folder, which is created if it does not exist.
        learners : dict of str to Learner, optional
            Learners of this process, by names that you choose. The save includes the sampler,
            priorities and generator of each learner. ``restore_learner`` restores them.
        keep, codec, level, sync
            As for ``ReplayBuffer.save``.
        beside : dict of str to bytes or callable, optional
            As for ``ReplayBuffer.save``. Callables run before rows and learners are copied.

        Raises
        ------
        BlockingIOError
            Another save to this folder is running. Or ``update`` edited a shard all the time: wide
            fields in less time than a copy of all of them takes. Or a writer was stopped during an
            edit.
        TypeError, ValueError, OSError
            As for ``ReplayBuffer.save``.

        Notes
        -----
        Cost: the cost of ``ReplayBuffer.save``, and memory for a copy of the fields of at most 128
        bytes a row. Wider fields and frames of ``stack_compress`` are copied only if a shard has up
        to 16 MiB of them. They are copied too if, during the save, wide fields are edited, rows are
        deleted, another actor takes the shard, or all rows are overwritten. In three cases a later
        save writes all rows of a shard again:

        - Old rows were edited since the last save.
        - The shard has absent rows.
        - Another actor took over a shard with ``next_of`` or ``stack_compress``.

        The number of batches drawn by a view, which is the time of its layers' schedules, is not
        saved.

        Examples
        --------
        >>> import tempfile
        >>> from cpprb_like.processes import SharedReplay
        >>> folder = tempfile.mkdtemp()
        >>> replay = SharedReplay(1000, {"x": {"shape": ()}}, writers=2)
        >>> with replay.actor() as actor:
        ...     actor.add(x=[1, 2, 3])
        0
        >>> learner = replay.learner(seed=0)
        >>> replay.save(folder, learners={"main": learner})
        >>> other = SharedReplay.load(folder).restore_learner(folder, "main")
        >>> bool((other.sample(8)["x"] == learner.sample(8)["x"]).all())
        True
        """
        given: dict[str, Any] = dict(learners or {})
        for name, learner in given.items():
            if not isinstance(learner, Learner):
                raise TypeError(f"learners[{name!r}]: expected a Learner, got {learner!r}")
            if learner._folder.path != self._folder.path:
                raise ValueError(f"learners[{name!r}]: {learner!r} is one of another replay")
        saved = {str(name): learner._save for name, learner in given.items()}
        how = SaveOptions(keep, Codec(codec, level), sync, beside=beside)
        save(self._folder.description(), self._shards(), self._options, saved, folder, how)

    @classmethod
    def load(
        cls,
        folder: str | Path,
        *,
        capacity: float | None = None,
        writers: int | None = None,
        room: Mapping[str, float] | None = None,
        name: str | None = None,
        state: int | None = None,
    ) -> SharedReplay:
        """A new replay with the saved rows.

        The replay has the rows of each writer, and the limiter, which begins in the middle of its
        allowed range. Open episodes are ended as truncated when an actor takes their shard.
        ``restore_learner`` restores the learners.

        Parameters
        ----------
        folder : str or path
            The folder of ``save``.
        capacity : int, optional
            New capacity. If it is smaller, each shard keeps its newest rows. By default each shard
            has its saved capacity.
        writers : int, optional
            New number of writers, by default the saved one. Further shards are empty. A smaller
            number raises ``ValueError``.
        room : dict, optional
            New rooms of named axes, for all writers together. By default the shards keep the rooms
            that they had. In a smaller room each shard keeps its newest rows.
        name, state
            As for ``SharedReplay`` and ``ReplayBuffer.load``, with the same errors.
        """
        wanted = None if writers is None else as_int("writers", writers, 1)

        def load(saved: Saved) -> SharedReplay:
            options, replay = saved.options, cls.__new__(cls)
            replay.writers = saved.writers if wanted is None else wanted
            if replay.writers < saved.writers:
                raise ValueError(
                    f"writers: expected at least {saved.writers}, as rows were saved of so many, "
                    f"got {replay.writers}"
                )
            rows = options.size * replay.writers if capacity is None else capacity
            options = _resized(options, rows, room, replay.writers)
            replay._make(options, saved.limiter, name, saved=saved)
            return replay

        return read_saved(folder, state, load)

    def _load(self, saved: Saved) -> None:
        """Create shards with the saved rows, and empty shards for further writers."""
        saved.fill(self._shards()[: saved.writers], self._options)
        for number in range(self.writers):
            if not (self._shard(number) / f"{ROWS}.dat").exists():
                self._make_shard(number)
        if self._limits is not None:
            self._limits.begin([self._rows_of(number)[0] for number in range(self.writers)])
        (self._folder.path / ORIGIN).write_text(saved.origin)

    describe = Source.describe
    report = Source.report

    def _to_report(self) -> Iterator[tuple[str, Any, Any]]:
        """Name and copy of each shard in turn; no process waits, and the reader is no member."""
        self._folder.check_open()
        for number, shard in enumerate(self._shards()):
            copy = copy_of(shard, number, self._options)
            if copy is not None:
                yield shard.name, copy, None

    # ------------------------------------------------------------------ members

    @while_open
    def members(self) -> list[Member]:
        """The present and past actors and learners: actors by number, then learners."""
        actors = [self._member("actor", number) for number in range(self.writers)]
        learners = [self._member("learner", number) for number in range(MOST_LEARNERS)]
        return [member for member in [*actors, *learners] if member is not None]

    def _member(self, kind: Literal["actor", "learner"], number: int) -> Member | None:
        is_actor = kind == "actor"
        path = self._lock_path(number) if is_actor else self._learner_lock_path(number)
        alive, about = is_owned(path), said_by(path)
        if not about:
            return None
        rows, age = self._rows_of(number) if is_actor else (0, None)
        given, late = (0, 0) if is_actor else self._words.learners[number].tolist()
        return Member(kind, number, about["pid"], alive, about["since"], rows, age, given, late)

    def _rows_of(self, number: int) -> tuple[int, float | None]:
        """The number of rows of a shard, and the age of the last one."""
        shard = self._shard(number)
        state = self._state_of(number)
        written = 0 if state is None else int(state[WORD_WRITTEN])
        return min(written, self._options.size), last_added(shard)

    @while_open
    def stats(self) -> dict[str, float]:
        """Counts and measures of all shards and learners: see ``Source.stats``.

        ``draws``, ages, ``updates`` and ``late_updates`` cover all learners together.
        ``never_drawn`` is the mean over the learners that know it. ``adds`` counts rows since the
        last ``clear`` of each writer, rows of ``load`` included. Items and room of a named axis are
        those of all writers. Any attached process may call this method.

        Notes
        -----
        Cost: some microseconds, and two more for each writer; some dozens for each of its axes.

        Examples
        --------
        >>> from cpprb_like.limiters import MinSize
        >>> from cpprb_like.processes import SharedReplay
        >>> fields = {"x": {"shape": ()}}
        >>> replay = SharedReplay(100, fields, writers=1, limiter=MinSize(3))
        >>> replay.actor().add(x=[1, 2, 3])
        0
        >>> _ = replay.learner(seed=0).sample(8)
        >>> found = replay.stats()
        >>> found["inserts"], found["samples"], found["seconds_waiting_for_inserts"]
        (3, 8, 0.0)
        """
        rows = adds = episodes = 0
        for number in range(self.writers):
            state = self._state_of(number)
            if state is not None:
                copy = read_header(state)
                header = state if copy is None else copy
                written, absent = int(header[WORD_WRITTEN]), int(header[WORD_ABSENT_ROWS])
                rows += min(written, self._options.size) - absent
                adds += written
                episodes += int(header[WORD_EPISODES])
        given, late = self._words.learners.sum(0).tolist()
        layout = Layout.of(self._options)
        found: dict[str, float] = {
            "rows": rows,
            "capacity": self.capacity,
            "bytes": layout.total_nbytes * self.writers,
            "adds": adds,
            "episodes": episodes,
            **stats_of(list(self._words.draws)),
            "updates": given,
            "late_updates": late,
        }
        if self._options.schema.axes:
            shards = [(files.arena, int(files.gone[0])) for files in self._memories.values()]
            found |= stats_of_items(layout, self.writers, shards)
        return found if self._limits is None else found | self._limits.stats()

    def _adds(self) -> tuple[int, ...]:
        """The number of rows written to each shard since its last clear."""
        states = map(self._state_of, range(self.writers))
        return tuple(0 if state is None else int(state[WORD_WRITTEN]) for state in states)

    def _state_of(self, number: int) -> NDArray[np.int64] | None:
        """The header of a shard, in shared memory; None before the shard exists."""
        found = self._memories.get(number)
        if found is None and (self._shard(number) / f"{ROWS}.dat").exists():
            found = self._memories[number] = followed_files(self._shard(number), self._options)
        return None if found is None else found.layout.state(found.arena)

    # ------------------------------------------------------------------ the end

    def close(self) -> None:
        """Close the replay in this process; the last process that closes it removes its memory.

        Actors and learners of this process keep the rows that they have mapped. Calls of other
        threads that need the folder, or wait for other members, raise ``RuntimeError``.
        """
        self._folder.close()

    def __repr__(self) -> str:
        return f"SharedReplay(capacity={self.capacity}, writers={self.writers}, name={self.name!r})"


def options_of_each(options: CheckedOptions, writers: int) -> CheckedOptions:
    """The options of a shard, from those of a replay: equal parts of the rows and of each room."""
    rooms = {name: -(-room // writers) for name, room in options.schema.rooms.items()}
    return options.resized(_rows_of_each(options.size, writers), rooms or None)


def _resized(
    options: CheckedOptions, capacity: float, room: Mapping[str, float] | None, writers: int
) -> CheckedOptions:
    """The options of a shard with another capacity, and other rooms, of all shards together."""
    rooms = {} if room is None else options.resized(capacity, room).schema.rooms
    each = {name: -(-rooms[name] // writers) for name in room or ()}
    return options.resized(_rows_of_each(capacity, writers), each or None)


def _rows_of_each(capacity: float, writers: int) -> int:
    """The capacity of each writer, so that all of them hold at least ``capacity`` steps."""
    return -(-read_size(capacity) // writers)
