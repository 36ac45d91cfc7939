"""cpprb's buffers that several processes share: any number of processes add, and one learns.

One object is handed to all processes. A process makes an actor of a shared replay at its first
``add``, and a learner when it first reads. Not here: actors and learners (``processes``).
"""

from __future__ import annotations

import contextlib
import copy
import os
import threading
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from cpprb_like._arguments.checks import as_int
from cpprb_like._fields.checked_options import CheckedOptions
from cpprb_like._fields.schema import read_size
from cpprb_like._machine.generators import Seed
from cpprb_like.buffers._source import Batch
from cpprb_like.limiters._gates import StepCounter
from cpprb_like.processes import Actor, SharedReplay
from cpprb_like.processes._newest import NewestLearner
from cpprb_like.samplers import Prioritized, Uniform
from cpprb_like.samplers._base import Sampler
from cpprb_like.samplers._prioritized import read_priorities
from cpprb_like.schedules import Schedule
from cpprb_like.typing import FieldSpec, RowOptions, SharedOptions

if TYPE_CHECKING:
    from typing_extensions import Unpack

BACKENDS = ("sharedctypes", "SharedMemory")
LEAST_EXPLORERS = 16
PRIORITY = "_priority"  # field of the priorities given to ``add``; NaN for the default priority


class MPReplayBuffer:
    """cpprb's buffer that several processes share: explorers add, and a learner draws.

    The processes get the object by a fork, or pickled as an argument of ``Process``. For more than
    cpprb offers, such as rate limits, views or several learners, see ``SharedReplay``.

    Parameters
    ----------
    size : int
        Number of rows that can be drawn. They are the newest rows of all explorers together.
    env_dict, default_dtype, n_envs
        As for ``ReplayBuffer``. Python objects are refused.
    logger, ctx, backend : optional
        Parameters of cpprb, not needed here. Any way to start processes works.
    explorers : int, optional
        Greatest number of processes that add at the same time. By default 16, or twice the number
        of processors if that is more. Each explorer then takes the memory of ``size`` rows and 8
        bytes a row at its first ``add``. An explorer takes over the memory of an ended one. With
        ``explorers``, the buffer takes the memory of ``size`` rows in all, at once. Each explorer
        keeps its newest ``size / explorers`` rows. If all memory is used, a new explorer takes over
        the memory of the ended explorer whose newest row is the oldest.
    seed : int, SeedSequence, BitGenerator, Generator, optional
        Seed of the draws.
    **options
        ``terminated``, ``truncated``, ``next_of``, ``stack_compress`` and ``Nstep``, as for
        ``ReplayBuffer``.

    Raises
    ------
    MemoryError
        Shared memory has no room. The message says how to enlarge it.

    Notes
    -----
    Processes share no lock. A process that is killed, or whose ``add`` fails, does not block other
    processes. A row can be drawn when it is whole. Each explorer stores the machine's clock time of
    each row. So which rows are the newest does not depend on when a learner reads.

    Examples
    --------
    >>> import multiprocessing
    >>> from cpprb_like import MPReplayBuffer
    >>> rb = MPReplayBuffer(1000, {"obs": {"shape": 4}, "done": {"shape": ()}}, seed=0)
    >>> def explore():
    ...     for step in range(100):
    ...         rb.add(obs=[step] * 4, done=step == 99)
    >>> explorer = multiprocessing.get_context("fork").Process(target=explore)
    >>> explorer.start()
    >>> explorer.join()
    >>> rb.get_stored_size()
    100
    >>> rb.sample(32)["obs"].shape
    (32, 4)
    """

    _sampler: Sampler = Uniform()
    _priority_field: str | None = None

    def __init__(
        self,
        size: float,
        env_dict: Mapping[str, FieldSpec] | None = None,
        *,
        default_dtype: DTypeLike | None = None,
        n_envs: int | None = None,
        logger: object = None,  # noqa: ARG002 (cpprb's)
        ctx: object = None,  # noqa: ARG002
        backend: str = "sharedctypes",
        explorers: int | None = None,
        seed: Seed = None,
        **options: Unpack[RowOptions],
    ) -> None:
        if backend not in BACKENDS:
            raise ValueError(f"backend: expected one of {BACKENDS}, got {backend!r}")
        self.capacity = read_size(size)
        self._seed = seed
        fields: Any = {} if env_dict is None else env_dict
        rows = CheckedOptions.read(
            self.capacity, fields, default_dtype=default_dtype, n_envs=n_envs, **options
        )
        self.schema = rows.schema
        self.n_envs = rows.n_envs
        self._is_nstep = rows.nstep is not None
        self._is_divided = explorers is not None
        if explorers is None:
            writers = max(LEAST_EXPLORERS, 2 * (os.cpu_count() or 1))
            each = self.capacity
        else:
            writers = as_int("explorers", explorers, 1)
            each = -(-self.capacity // writers)
            self.capacity = each * writers
        self._replay = SharedReplay(
            each * writers,
            self._stored_fields(fields),
            writers=writers,
            default_dtype=default_dtype,
            n_envs=rows.n_envs,
            reserve=explorers is not None,
            **options,
        )
        shards = [self._replay._shard(number) for number in range(writers)]
        NewestLearner.make(self._replay.folder, shards)
        self._start()

    def _stored_fields(self, fields: Any) -> Any:
        """The fields of the shared replay: ``env_dict``, and fields that the class adds."""
        return fields

    def _start(self) -> None:
        """Drop the actor and the learner. The first use of each makes a new one in this process."""
        self._lock = threading.Lock()
        self._actor: Actor | None = None
        self._learner: NewestLearner | None = None
        self._process = os.getpid()  # last: other threads of a forked child wait for this number

    def _own_actor(self) -> Actor:
        """The actor of this process."""
        if self._process != os.getpid():
            self._start()
        if self._actor is None:
            with self._lock:
                if self._actor is None:
                    self._actor = self._make_actor()
        return self._actor

    def _own_learner(self) -> NewestLearner:
        """The learner of this process; a new one after ``clear`` in any process."""
        if self._process != os.getpid():
            self._start()
        found = self._learner
        if found is None or found.is_cleared:
            with self._lock:
                if self._learner is found:
                    self._learner = self._make_learner(self._seed if found is None else found.rng)
                    if found is not None:
                        found.close()
                found = self._learner
                assert found is not None
        return found

    def _make_actor(self) -> Actor:
        """An actor that takes over the shard of an ended explorer, or opens a new shard.

        Of ended explorers, the one with the oldest newest row is taken. If memory is divided among
        ``explorers=``, new shards come first. If another process takes the shard, the search is
        repeated.
        """
        actor: Actor | None = None
        while actor is None:
            actors = [one for one in self._replay.members() if one.kind == "actor"]
            ended = [one for one in actors if not one.alive]
            if not ended or (self._is_divided and len(actors) < self._replay.writers):
                actor = self._replay.actor()
                break
            silent = max(ended, key=lambda one: np.inf if one.age is None else one.age)
            with contextlib.suppress(BlockingIOError):  # taken by another process
                actor = self._replay.actor(silent.number)
        NewestLearner.tell_taken(self._replay.folder, actor.number)
        return actor

    def _make_learner(self, seed: Seed) -> NewestLearner:
        learner = self._replay._learner_of(NewestLearner, copy.deepcopy(self._sampler), seed)
        learner.keep(None if self._is_divided else self.capacity, self._priority_field)
        return learner

    def __getstate__(self) -> dict[str, Any]:
        own = ("_process", "_lock", "_actor", "_learner")
        return {name: value for name, value in self.__dict__.items() if name not in own}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._start()

    # ------------------------------------------------------------------ explorers

    def add(self, **fields: Any) -> int | None:
        """Add one or several steps of this process: see ``ReplayBuffer.add``.

        Returns the slot of the first row, among the slots of this process. Raises
        ``BlockingIOError`` if the greatest number of processes adds already. Raises ``MemoryError``
        if shared memory has no room for the rows of this process. After any error nothing was
        added.
        """
        return self._own_actor().add(**fields)

    def on_episode_end(self, env: int | None = None) -> None:
        """End all open episodes of this process, or of its environment ``env``, as truncated."""
        if self._process == os.getpid() and self._actor is not None:
            self._actor.on_episode_end(env)

    # ------------------------------------------------------------------ the learner

    def sample(
        self,
        batch_size: int,
        *,
        replace: bool = True,
        out: dict[str, Any] | None = None,
        fields: str | Iterable[str] | None = None,
    ) -> Batch:
        """Draw rows of all explorers: see ``ReplayBuffer.sample``."""
        return self._own_learner().sample(
            batch_size, replace=replace, out=out, fields=self._visible(fields)
        )

    def _visible(self, fields: str | Iterable[str] | None) -> str | Iterable[str] | None:
        """``fields``, or by default the fields of ``env_dict``."""
        if fields is None and self._priority_field is not None:
            return tuple(name for name in self.schema.names if name != self._priority_field)
        return fields

    def get_all_transitions(self, shuffle: bool = False) -> Batch:
        """All rows, explorer by explorer, or shuffled: see ``ReplayBuffer``."""
        learner = self._own_learner()
        return learner.all_rows(shuffle, learner._read_batch_size(0, self._visible(None))[1])

    def clear(self) -> None:
        """Delete the rows of all explorers and the greatest priority; explorers continue to add."""
        self._own_learner().clear_all()

    def _encode_sample(self, idx: ArrayLike) -> Batch:
        """The rows of ``idx``: ``batch["indexes"]``, or positions in ``get_all_transitions``.

        Raises ``IndexError`` for a row that was never stored, or was overwritten.
        """
        learner = self._own_learner()
        return learner.rows_at(idx, learner._read_batch_size(0, self._visible(None))[1])

    # ------------------------------------------------------------------ sizes

    def get_stored_size(self) -> int:
        """Number of rows that can be drawn."""
        return len(self._own_learner())

    def get_buffer_size(self) -> int:
        """Greatest number of rows that can be drawn."""
        return self.capacity

    def get_next_index(self) -> int:
        """Number of rows added since the last ``clear``, modulo the size.

        With ``Nstep``, a step counts when it can be drawn.
        """
        return self._own_learner().next_index() % self.capacity

    def is_Nstep(self) -> bool:  # noqa: N802 (cpprb's name)
        """Whether rows are read as n-step transitions."""
        return self._is_nstep

    def close(self) -> None:
        """Release the shared memory in this process; the last process to release it frees it."""
        self._replay.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}(size={self.capacity}, name={self._replay.name!r})"


class MPPrioritizedReplayBuffer(MPReplayBuffer):
    """cpprb's buffer with priorities that several processes share.

    The process that draws holds the priorities. As in cpprb, one process learns. Rows from
    explorers get the greatest priority that this process knows, or the priority added with them.

    Parameters
    ----------
    alpha, eps : float
        Prioritization exponent, at least 0, and the number added to each priority.
    size, env_dict, **options
        As for ``MPReplayBuffer``.

    Notes
    -----
    ``indexes`` of a batch never refer to other rows later. ``update_priorities`` ignores rows that
    were overwritten since the draw. See ``Prioritized`` for probabilities and weights.

    Examples
    --------
    >>> from cpprb_like import MPPrioritizedReplayBuffer
    >>> rb = MPPrioritizedReplayBuffer(1000, {"rew": {"shape": ()}}, seed=0)
    >>> rb.add(rew=[1, 2, 3])                      # in explorers
    0
    >>> batch = rb.sample(32, beta=0.4)            # in the learner
    >>> batch["rew"].shape, batch["weights"].shape
    ((32,), (32,))
    >>> rb.update_priorities(batch["indexes"], batch["rew"])
    >>> rb.get_max_priority()
    3.0
    """

    _priority_field = PRIORITY

    def __init__(
        self,
        size: float,
        env_dict: Mapping[str, FieldSpec] | None = None,
        *,
        alpha: float = 0.6,
        eps: float = 1e-4,
        **options: Unpack[SharedOptions],
    ) -> None:
        self._sampler = Prioritized(alpha=alpha, eps=eps, check_for_update=True)
        super().__init__(size, env_dict, **options)
        self._steps = StepCounter(self.schema.fields, self.n_envs)

    def _stored_fields(self, fields: Any) -> Any:
        own = ("priorities", "weights", "indexes", PRIORITY)
        taken = [name for name in own if name in fields]
        if taken:
            raise ValueError(f"env_dict: {taken} are names of what a batch gets from priorities")
        return {**fields, PRIORITY: {"shape": (), "dtype": np.float64}}

    def add(self, *, priorities: ArrayLike | None = None, **fields: Any) -> int | None:
        """Add one or several steps of this process: see ``MPReplayBuffer.add``.

        ``priorities`` has one finite priority of at least 0 for each row. By default rows get the
        greatest priority that the learner knows.
        """
        n = self._steps(fields)
        values = np.full(n, np.nan) if priorities is None else read_priorities(priorities)
        if len(values) != n:
            raise ValueError(f"priorities: expected {n}, one for each row, got {len(values)}")
        if self.n_envs > 1 and n > self.n_envs:
            values = values.reshape(-1, self.n_envs)
        return super().add(**fields, **{PRIORITY: values})

    def sample(  # beta comes second, as in cpprb
        self,
        batch_size: int,
        beta: float | Schedule = 0.4,
        *,
        replace: bool = True,
        out: dict[str, Any] | None = None,
        fields: str | Iterable[str] | None = None,
    ) -> Batch:
        """Draw rows by priority: see ``PrioritizedReplayBuffer``."""
        return self._own_learner().sample(
            batch_size, beta, replace=replace, out=out, fields=self._visible(fields)
        )

    def update_priorities(self, indexes: ArrayLike, priorities: ArrayLike) -> None:
        """Set the priorities of drawn rows: see ``PrioritizedReplayBuffer.update_priorities``."""
        self._own_learner().update_priorities(indexes, priorities)

    def get_max_priority(self) -> float:
        """The priority of new rows: the greatest that this process knows, initially 1.0."""
        return self._own_learner().get_max_priority()
