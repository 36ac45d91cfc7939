"""Gates, which wait for a bounded time until the limiter allows a call, and ``add`` behind one.

The time-out of a batch that is drawn ahead counts from the request for the batch. Not here: the
counters and the order of waiting calls (``_counters``), and the wait itself (``_machine.waiting``).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from cpprb_like._fields.field import Field
from cpprb_like._machine.prefetch_state import sleep, wanted_since
from cpprb_like._machine.waiting import wait_until
from cpprb_like.buffers import ReplayBuffer
from cpprb_like.errors import RateLimitTimeoutError
from cpprb_like.limiters._counters import Counters, Turn, Waits
from cpprb_like.limiters._formulas import balance_of, check_add, check_sample, samples_to_begin
from cpprb_like.limiters._policies import RateLimiter

Found = TypeVar("Found")

ALIVE = 1e-3  # seconds of a wait after which the other processes are checked for life


def waits(counters: Counters, lines: range) -> list[Waits]:
    """The waits of each of these lines until now."""
    now = time.monotonic_ns()
    return [counters.waits(line, now) for line in lines]


def begin_balanced(limiter: RateLimiter, counters: Counters, rows: int) -> Callable[[], object]:
    """A call that sets the counts for ``rows`` stored rows, with the balance inside its range.

    The balance begins in the middle of the range, so that small calls of both sides are allowed.
    The first call that is too large for that moves the balance to the end of the range where it has
    most room (``settle``), so a call as large as the range is allowed, too. Counts are not saved:
    during a save one side usually waits, and its counts would block it for ever if the other side
    changed.
    """
    bounds = limiter.bounds
    samples = samples_to_begin(bounds, rows)
    if samples is None:
        return partial(counters.set_base, rows, 0, 0, 0)
    balance = balance_of(bounds, rows, samples)
    down, up = math.floor(balance - bounds.min_diff), math.floor(bounds.max_diff - balance)
    return partial(counters.set_base, rows, samples, down, min(samples, up))


class Peers:
    """The other processes of a limiter. This base class is for threads: there are no others."""

    def release_dead(self) -> None:
        """Cancel the announcements and waits of dead processes."""

    def describe(self, lines: range) -> str:  # noqa: ARG002
        """The owners of these lines, for messages."""
        return ""


class Gate:
    """One end of a limiter: ``add`` has the line of a writer, ``sample`` the line of a reader.

    ``held()`` returns the buffer of a writer, or None after its deletion, as a weak reference does.
    """

    def __init__(
        self,
        limiter: RateLimiter,
        counters: Counters,
        line: int,
        peers: Peers | None = None,
        held: Callable[[], Any] | None = None,
    ) -> None:
        self.limiter = limiter
        self.counters = counters
        self.line = line
        self.peers = Peers() if peers is None else peers
        self._held = held
        self._adds = line < counters.writers
        self._what, self._others = ("add", "samples") if self._adds else ("sample", "inserts")
        self._other_lines = (
            range(counters.writers, counters.lines) if self._adds else range(counters.writers)
        )
        counters.use(line)
        self.count_rows()

    def run(self, n: int, call: Callable[..., Found], /, *arguments: Any, **options: Any) -> Found:
        """Wait for the limiter, then make a call that adds or draws n items."""
        turn = Turn(self.counters, self.line, n)
        try:
            if not turn.begin():
                self.wait(turn, self.limiter.timeout)
            found = call(*arguments, **options)
            turn.end(time.monotonic_ns(), self._held)
            return found
        finally:
            turn.close(self._held)  # one call of C: no signal handler can come before it

    def count_rows(self) -> None:
        """Update the number of rows that a writer holds."""
        buffer = None if self._held is None else self._held()
        if buffer is not None:
            self.counters.set_rows(self.line, len(buffer.ring))

    def wait(self, turn: Turn, timeout: float | None) -> None:
        """Wait until a turn has begun; ``RateLimitTimeoutError`` after the time-out."""
        check = check_add if self._adds else check_sample
        check(self.limiter, turn.n, self.counters.totals().balance)
        began = time.monotonic()

        def look() -> bool:
            now = time.monotonic_ns()
            turn.wait(now, wanted_since(began) is not None)
            if time.monotonic() - began > ALIVE:
                self.peers.release_dead()
            if turn.begin(now):
                return True
            return self.counters.settle(not self._adds) and turn.begin(now)

        wait_until(
            look,
            timeout,
            lambda: RateLimitTimeoutError(self._message(turn, began)),
            since=lambda: wanted_since(began),
            sleep=sleep,
        )

    def _message(self, turn: Turn, began: float) -> str:
        others = waits(self.counters, self._other_lines)
        last = max(line.last for line in others)
        ago = f"the last came {(time.monotonic_ns() - last) / 1e9:.1f} s ago"
        waited = f"{self._what} of {turn.n}: waited {time.monotonic() - began:.1f} s"
        parts = [f"{waited} for {self._others}, of which {ago if last else 'none came so far'}"]
        if any(line.items for line in others):
            parts.append("the other side waits too, so error_buffer is too small for these batches")
        if turn.behind:
            parts.append(f"{self._what} of {turn.behind} has waited for longer, and goes first")
        else:
            parts.append(self._reason(turn.n))
        found = self.peers.describe(self._other_lines)
        return "; ".join([*parts, str(self.limiter)]) + (f"\n{found}" if found else "")

    def _reason(self, n: int) -> str:
        """The reason why n items are not allowed now, for messages."""
        sums = self.counters.totals()
        ratio, min_size, low, high = self.limiter.bounds
        if self._adds:
            n, change, limit = n + sums.inserts_at_work, ratio, f"most {high:g}"
        else:
            n, change, limit = n + sums.samples_at_work, -1.0, f"least {low:g}"
            if sums.rows < min_size:
                return f"{sums.rows} of {min_size} rows"
        return (
            f"{sums.inserts} inserts, {sums.samples} samples, {sums.rows} rows: with {n} more "
            f"{'inserts' if self._adds else 'samples'}, calls at work included, inserts * "
            f"samples_per_insert - samples would be {sums.balance + n * change:g}; allowed is "
            f"at {limit}"
        )


class StepCounter:
    """Counts the rows of a call of ``add``, by the size of the smallest numeric field.

    Values of any length are read twice if there is no other field of numbers.
    """

    def __init__(self, fields: Iterable[Field], n_envs: int) -> None:
        declared = [field for field in fields if not field.is_entry]
        fixed = [field for field in declared if not field.is_ragged]
        numbers = [field for field in fixed if field.dtype.kind in "biufc"]
        ragged = [field for field in declared if field.is_ragged]
        self._ragged = ragged[0] if ragged and not numbers else None
        smallest = min(numbers, key=lambda field: field.nbytes, default=None)
        self._n_envs = n_envs
        self._name = "" if smallest is None else smallest.name
        self._size = 1 if smallest is None else max(1, int(np.prod(smallest.shape)))

    def __call__(self, fields: Mapping[str, Any]) -> int:
        """The number of rows of a call; the rows of one step if the field is missing."""
        if self._ragged is not None:
            return self._count_ragged(self._ragged, fields)
        value = fields.get(self._name)
        if value is None or isinstance(value, float | int):
            return self._n_envs
        if not isinstance(value, np.ndarray):
            try:
                value = np.asarray(value)
            except (TypeError, ValueError, RuntimeError):
                return self._n_envs  # ``add`` raises and names the fault
        return int(value.size) // self._size

    def _count_ragged(self, ragged: Field, fields: Mapping[str, Any]) -> int:
        from cpprb_like._fields.entries import read_entries  # noqa: PLC0415 (on demand)

        try:
            return len(read_entries(ragged, fields[ragged.name], self._n_envs).counts)
        except (KeyError, TypeError, ValueError, RuntimeError):
            return self._n_envs  # ``add`` raises and names the fault


class LimitedAdds:
    """The calls that change the number of rows of a writer, behind the gate of a limiter."""

    _inserts: Gate
    _steps: StepCounter

    @property
    def _adds(self) -> ReplayBuffer:
        """The buffer without the gate: an object whose ``add`` does not wait."""
        raise NotImplementedError

    def add(self, **fields: Any) -> int | None:
        """Add one or several steps when the limiter allows them: see ``add`` of the buffer.

        Raises
        ------
        RateLimitTimeoutError
            The limiter did not allow the call within its time-out, as samples lag. This error is a
            ``TimeoutError``.
        ValueError
            The limiter can never allow so many rows at once. After either error nothing was added.

        Examples
        --------
        >>> from cpprb_like import ReplayBuffer
        >>> from cpprb_like.limiters import Backlog, RateLimited
        >>> rb = RateLimited(ReplayBuffer(10, {"x": {"shape": ()}}), Backlog(2, timeout=0.01))
        >>> rb.add(x=[1, 2])
        0
        >>> rb.add(x=3)  # doctest: +ELLIPSIS
        Traceback (most recent call last):
            ...
        cpprb_like.errors.RateLimitTimeoutError: add of 1: waited ...
        """
        return self._inserts.run(self._steps(fields), self._adds.add, **fields)

    def add_where(self, present: ArrayLike, /, **fields: Any) -> int | None:
        """Add steps of some environments, as ``add`` does: see ``ReplayBuffer.add_where``.

        The limiter counts only the present steps.
        """
        mask = np.array(present)
        return self._inserts.run(int(np.count_nonzero(mask)), self._adds.add_where, mask, **fields)

    def on_episode_end(self, env: int | None = None) -> None:
        """End the open episodes as truncated: see ``ReplayBuffer.on_episode_end``."""
        self._adds.on_episode_end(env)
        self._inserts.count_rows()

    @property
    def rows(self) -> int:
        """The number of rows ever written: see ``ReplayBuffer.rows``."""
        found: int = self._adds.rows
        return found

    def rewind(self, row: int) -> int:
        """Forget row ``row`` and all later ones: see ``ReplayBuffer.rewind``. They stay inserts."""
        found: int = self._adds.rewind(row)
        self._inserts.count_rows()
        return found

    def clear(self) -> None:
        """Delete all rows, also in the counts of the limiter."""
        self._adds.clear()
        self._inserts.count_rows()


def stats(counters: Counters) -> dict[str, float]:
    """The counts of a limiter, as entries of ``Source.stats``.

    ``inserts`` and ``samples`` count rows inserted and items sampled since the limiter began.
    ``rows`` counts the rows held now. ``waits_for_inserts`` counts the calls of ``sample`` that
    waited. ``seconds_waiting_for_inserts`` is their total waiting time, present waits included.
    ``waits_for_samples`` and ``seconds_waiting_for_samples`` are the same for calls of ``add``.
    """
    sums = counters.totals()
    lines = waits(counters, range(counters.lines))
    writers, readers = lines[: counters.writers], lines[counters.writers :]
    return {
        "inserts": sums.inserts,
        "samples": sums.samples,
        "rows": sums.rows,
        "waits_for_inserts": sum(line.calls for line in readers),
        "waits_for_samples": sum(line.calls for line in writers),
        "seconds_waiting_for_inserts": sum(line.nanoseconds for line in readers) / 1e9,
        "seconds_waiting_for_samples": sum(line.nanoseconds for line in writers) / 1e9,
    }
