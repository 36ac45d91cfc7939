"""``ClusterActor``: the end of a cluster that adds steps from a node without a host.

Steps go to a host in numbered blocks. A block that is sent again, as its answer was lost, adds only
missing rows. Not here: actors on a node with a host, which are actors of its shared replay
(``processes``).
"""

from __future__ import annotations

import threading
import time
import uuid
from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from ray.exceptions import GetTimeoutError

from cpprb_like._arguments.arrays import Array
from cpprb_like._fields.checked_options import CheckedOptions
from cpprb_like._fields.entries import Entries
from cpprb_like._machine.waiting import PAUSE, every, wait_until
from cpprb_like.buffers import ReplayBuffer
from cpprb_like.buffers._ragged_rows import RaggedRows
from cpprb_like.errors import RateLimitTimeoutError
from cpprb_like.limiters import RateLimiter
from cpprb_like.limiters._formulas import check_add
from cpprb_like.processes._folder import Closing
from cpprb_like.ray._blocks import Block, Steps, join_steps, pack, rows_of
from cpprb_like.ray._calls import GONE, Host, Unknown, answer_of
from cpprb_like.ray._credit import CREDIT_LEASE
from cpprb_like.samplers._prioritized import read_priorities
from cpprb_like.typing import FieldSpec

STEPS = 64  # of a block
NBYTES = 8 << 20  # of a block, at most
AHEAD = 2  # blocks without an answer


def read_steps(options: CheckedOptions, given: dict[str, Any], present: Array | None) -> Steps:
    """The values of each field, as copies: the environment may write to its arrays."""
    schema, n_envs = options.schema, options.n_envs
    if not schema.axes:
        return {
            field.name: np.array(field.convert(given[field.name], n_envs).reshape(-1, *field.shape))
            for field in schema.declared
        }
    rows = RaggedRows(schema, given, n_envs)
    if present is not None and len(present) == rows.n:
        rows.leave_out(present)
    rows.check()
    list(rows.parts(n_envs, options.capacity))  # raises for a step beyond a room
    columns: Steps = {name: np.array(values) for name, values in rows.fixed.items()}
    for axis in schema.axes:
        for name in axis.fields:
            values = rows.entries[name].values
            columns[name] = Entries(np.array(values), rows.counts[axis.name])
    return columns


class ClusterActor(Closing):
    """An actor that adds steps to a host on another node: ``ClusterReplay.actor``.

    It has the methods of ``Actor`` that an environment loop needs: ``add``, ``add_where`` and
    ``on_episode_end``. Steps are sent in blocks. So a learner sees a step after up to 64 more
    steps, or after ``flush``.

    Attributes
    ----------
    number : int
        Number of the shard at its host.
    lost : int
        Number of added rows that were lost with the memory of the host. See
        ``ClusterReplay.losses``.

    Raises
    ------
    TimeoutError
        Any method raises this if the host does not answer within ``timeout`` seconds. The steps of
        earlier calls are kept, and a later call sends them. The steps of an ``add`` that raises
        are not kept: call it again with them.

    Notes
    -----
    Each step is added once, however often its host dies. When a host dies, open episodes of its
    shards are ended as truncated.

    Cost of a step: some microseconds for each field, ten with values of any length. A block is one
    call of Ray. Frames shared by stacks are sent once. So is a next value that equals the value of
    the next step, if its shape is fixed.
    """

    def __init__(
        self, host: Host, options: CheckedOptions, timeout: float, limiter: RateLimiter | None
    ) -> None:
        self._host, self._timeout = host, timeout
        self._options, self.n_envs = options, options.n_envs
        self._fields = {field.name: field for field in options.schema.declared}
        self._writer = uuid.uuid4().hex
        self._lock = threading.RLock()
        fields = self._fields.values()
        first = max(fields, key=lambda field: len(field.shape))
        lead = (self.n_envs,) if self.n_envs > 1 else ()
        self._first = first.name, (*lead, *first.shape)  # one step of this field
        self._nbytes_of_step = self.n_envs * sum(field.nbytes for field in fields)
        self._stage = self._make_stage()
        self._steps: list[Steps] = []
        self._ends: list[tuple[int, int | None]] = []
        self._count = self._nbytes = 0
        self._sent: deque[tuple[Block, Any]] = deque()
        self._has_failed = False  # the oldest block, for another reason than a host that died
        self.lost = 0
        self._sent_rows = 0
        self._waited_for_host = self._waited_for_samples = 0.0
        self._limiter, self._steps_of_block = limiter, STEPS
        if limiter is not None:
            ratio, _, low, high = limiter.bounds
            window = (high - max(low, -high)) / ratio / self.n_envs
            self._steps_of_block = int(max(1, min(STEPS, window / 4)))
        self._open()

    def _open(self) -> None:
        """Take a shard of the host, after it was started or started again."""
        given = self._host.call("open_writer", self._writer, None, 0, None, timeout=self._timeout)
        self.number, self._place, self._next = given.shard, given.place, given.rows
        self._identity = given.identity  # of the memory of the host

    def _make_stage(self) -> ReplayBuffer:
        """A buffer of plain fields, whose compiled ``add`` checks and copies single steps.

        Steps with values of any length do not come through it.
        """
        fields: dict[str, FieldSpec] = {
            name: {"shape": field.shape, "dtype": field.dtype}
            for name, field in self._fields.items()
        }
        rows = STEPS * self.n_envs
        return ReplayBuffer(rows, fields, n_envs=self.n_envs, terminated=False, truncated=False)

    # ------------------------------------------------------------------ adding

    def add(self, *, priorities: ArrayLike | None = None, **fields: Any) -> None:
        """Add one or several time steps of all environments: see ``ReplayBuffer.add``.

        ``priorities`` are the first priorities: see ``Actor``. Raises ``TypeError`` or
        ``ValueError`` if a field is missing, unknown, or of another shape or kind. Raises
        ``RateLimitTimeoutError`` if the limiter does not allow the steps in time. After any error
        nothing of the call was added.
        """
        if priorities is not None or self._options.schema.axes or not self._is_step(fields):
            self._add(fields, priorities, None)
            return
        with self._lock:
            if self._steps and len(self._steps[0]) != len(self._fields):
                self._flush()  # those have priorities
            is_whole = self._is_whole_with(1, self._nbytes_of_step)
            if is_whole:
                self._wait_for_room(1)
            self._stage.add(**fields)
            self._count += 1
            self._nbytes += self._nbytes_of_step
            if is_whole:
                self._send()

    def _is_whole_with(self, steps: int, nbytes: int) -> bool:
        """Whether the steps that were not sent make a block together with further steps."""
        count = self._count + steps
        return count >= self._steps_of_block or self._nbytes + nbytes >= NBYTES

    def _is_step(self, given: Mapping[str, Any]) -> bool:
        """Whether these are the fields of one time step, by the shape of one of them."""
        name, shape = self._first
        return name in given and np.shape(given[name]) == shape

    def _unstage(self) -> None:
        """Move the staged steps behind the other unsent steps."""
        stage = self._stage
        if len(stage):
            self._steps.append({**stage.get_all_transitions()})
            stage.clear()

    def add_where(
        self, present: ArrayLike, *, priorities: ArrayLike | None = None, **fields: Any
    ) -> None:
        """Add steps of some environments: see ``ReplayBuffer.add_where``."""
        self._add(fields, priorities, np.asarray(present, np.bool_).reshape(-1))

    def _add(
        self, given: dict[str, Any], priorities: ArrayLike | None, present: Array | None
    ) -> None:
        if given.keys() != self._fields.keys():
            missing = [name for name in self._fields if name not in given]
            unknown = [name for name in given if name not in self._fields]
            raise TypeError(f"add: fields {missing} are missing, and {unknown} are none")
        columns = read_steps(self._options, given, present)
        if priorities is not None:
            columns["priorities"] = read_priorities(np.asarray(priorities).reshape(-1))
        if present is not None:
            columns["present"] = present
        counts = {name: rows_of(values) for name, values in columns.items()}
        rows = next(iter(counts.values()))
        if len(set(counts.values())) > 1 or rows % self.n_envs:
            raise ValueError(f"add: expected as many values of each field, got {counts}")
        steps, nbytes = rows // self.n_envs, sum(values.nbytes for values in columns.values())
        with self._lock:
            self._unstage()
            if self._steps and columns.keys() != self._steps[0].keys():
                self._flush()
            is_whole = self._is_whole_with(steps, nbytes)
            if is_whole and self._limiter is not None:
                self._flush()  # a limiter may allow these steps alone, and not both together
            if is_whole:
                self._wait_for_room(steps)
            self._steps.append(columns)
            self._count += steps
            self._nbytes += nbytes
            if is_whole:
                self._send()

    def on_episode_end(self, env: int | None = None) -> None:
        """End open episodes as truncated: see ``ReplayBuffer.on_episode_end``."""
        with self._lock:
            self._ends.append((self._count, env))

    def flush(self, *, wait: bool = True) -> None:
        """Send all steps and, with ``wait``, wait until they are in the replay."""
        with self._lock:
            self._flush()
            while wait and self._sent:
                self._confirm()

    def _flush(self) -> None:
        """Send all steps and ends of episodes."""
        self._unstage()
        if self._steps or self._ends:
            self._wait_for_room(0)
            self._send()

    def _send(self) -> None:
        """Send all steps and ends of episodes as a block, without a wait."""
        self._unstage()
        steps = self._steps or [self._no_rows()]
        columns = join_steps(steps, self._options.schema)
        block = pack(self._next, self.n_envs, columns, tuple(self._ends), self._options.schema)
        self._steps, self._ends, self._count, self._nbytes = [], [], 0, 0
        self._sent.append((block, self._host.begin("add", self._writer, self._place, block)))
        self._next += block.rows
        self._sent_rows += block.rows

    def _wait_for_room(self, steps: int) -> None:
        """Wait until a block of all unsent steps and ``steps`` further ones may be sent."""
        while len(self._sent) >= AHEAD:
            self._confirm()
        rows = (self._count + steps) * self.n_envs
        if self._limiter is not None and rows:
            self._wait_for_credit(self._limiter, rows)

    def _wait_for_credit(self, limiter: RateLimiter, rows: int) -> None:
        """Wait until the limiter allows ``rows`` more rows."""
        while self._sent:  # credit is that of rows which are not written yet
            self._confirm()
        began = time.monotonic()
        check_add(limiter, rows)
        wait_until(
            lambda: self._has_credit(rows),
            limiter.timeout,
            lambda: RateLimitTimeoutError(
                f"add of {rows}: waited {time.monotonic() - began:.1f} s for learners; "
                f"{self._why(limiter)}"
            ),
            sleep=every(PAUSE),
        )
        self._waited_for_samples += time.monotonic() - began

    def _why(self, limiter: RateLimiter) -> str:
        """The reason why the limiter does not allow steps, as far as the host knows it."""
        try:
            return str(self._host.call("why", timeout=2 * CREDIT_LEASE))
        except TimeoutError:
            return f"{limiter}; {self._host} cannot ask the ledger for the reason"

    def _has_credit(self, rows: int) -> bool:
        """Whether the limiter allows ``rows`` more rows now."""
        try:
            answer = self._host.call("has_credit", self._writer, rows, timeout=self._timeout)
        except Unknown:  # the host was started again, or gave the shard to another writer
            self._resend(time.monotonic() + self._timeout)
            return False
        return bool(answer)

    def _no_rows(self) -> Steps:
        return {
            name: Entries(np.empty((0, *one.item_shape), one.dtype), np.empty(0, np.int64))
            if one.is_ragged
            else np.empty((0, *one.shape), one.dtype)
            for name, one in self._fields.items()
        }

    def _confirm(self) -> None:
        """Wait for the answer to the oldest block; send missing blocks again."""
        began = time.monotonic()
        try:
            self._confirm_oldest()
        finally:
            self._waited_for_host += time.monotonic() - began

    def _confirm_oldest(self) -> None:
        until = time.monotonic() + self._timeout
        if self._has_failed:
            self._resend(until)
        while True:
            block, answer = self._sent[0]
            try:
                written = answer_of(answer, max(0.0, until - time.monotonic()))
                if written >= block.first + block.rows:
                    self._sent.popleft()
                    return
            except GetTimeoutError:
                raise TimeoutError(
                    f"add: {self._host} did not answer in {self._timeout} s"
                ) from None
            except (*GONE, Unknown):
                pass
            except BaseException:
                self._has_failed = True
                raise
            self._resend(until)

    def _resend(self, until: float) -> None:
        """Take a shard again; send the blocks without an answer, from the first row it lacks."""
        left = max(0.0, until - time.monotonic())
        wrote = self._wrote()
        oldest = wrote[-1]
        place = self.number, self._place, wrote
        given = self._host.call("open_writer", self._writer, *place, timeout=left)
        self.number, self._place, self._identity = given.shard, given.place, given.identity
        self.lost += max(0, oldest - given.done)
        shift = given.rows - max(given.done, oldest)
        again: deque[tuple[Block, Any]] = deque()
        for block, _ in self._sent:
            moved = replace(block, first=block.first + shift)
            again.append((moved, self._host.begin("add", self._writer, self._place, moved)))
        self._sent, self._next = again, self._next + shift
        self._has_failed = False

    def _wrote(self) -> tuple[str, int, int]:
        """The memory of the host, the shard, and the rows that it had for sure."""
        oldest = self._sent[0][0].first if self._sent else self._next
        return self._identity, self.number, oldest

    # ------------------------------------------------------------------ the end

    def stats(self) -> dict[str, float]:
        """The counts of the actor, by name.

        ``host`` is the number of its host. ``adds`` counts the rows sent, and ``lost`` the sent
        rows that were lost. ``seconds_waiting_for_host`` is the time spent on waits for answers of
        the host. ``seconds_waiting_for_samples`` is the time spent on waits for the limiter.
        """
        with self._lock:
            return {
                "host": self._host.number,
                "adds": self._sent_rows,
                "lost": self.lost,
                "seconds_waiting_for_host": self._waited_for_host,
                "seconds_waiting_for_samples": self._waited_for_samples,
            }

    def close(self) -> None:
        """Send all steps and free the shard, even if the limiter does not allow these steps."""
        try:
            self.flush()
        finally:
            self._host.call("close_writer", self._writer, self._wrote(), timeout=self._timeout)

    def __repr__(self) -> str:
        return f"ClusterActor(number={self.number}, host={self._host.number})"
