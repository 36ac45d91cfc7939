"""``RateLimited``: a buffer that threads share, with a limiter before ``add`` and ``sample``."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from cpprb_like._machine.forks import tell
from cpprb_like.buffers import ReplayBuffer
from cpprb_like.buffers._around import SourceAround
from cpprb_like.buffers._entry import SampleOptions
from cpprb_like.buffers._source import Batch, Source
from cpprb_like.checkpoint._savable import Change
from cpprb_like.limiters._counters import Counters, shape_for
from cpprb_like.limiters._gates import Gate, LimitedAdds, StepCounter, begin_balanced, stats
from cpprb_like.limiters._policies import RateLimiter
from cpprb_like.views._layer import Layer


class LimitedSource(SourceAround):
    """A source whose ``sample`` waits until its limiter allows the batch: see ``RateLimited``."""

    def __init__(self, source: Source, gate: Gate) -> None:
        super().__init__(source)
        self._gate = gate

    def _sample(self, batch_size: int, options: SampleOptions) -> Batch:
        n, keywords = self._read_sample(batch_size, options)
        return self._gate.run(n, self._source.sample, n, **keywords)

    def _stats(self) -> dict[str, float]:
        return self._source.stats() | stats(self._gate.counters)


class RateLimited(LimitedAdds, LimitedSource):
    """A buffer whose ``add`` and ``sample`` wait for one another, under a rate limiter.

    The class is for threads that add and threads that draw. For processes see ``SharedReplay``.

    Parameters
    ----------
    buffer : ReplayBuffer
        Any buffer, empty or not. Afterwards add and draw only with the new object.
    limiter : RateLimiter
        ``MinSize``, ``SampleToInsertRatio`` or ``Backlog``.

    Attributes
    ----------
    buffer, limiter
        As given. Use ``buffer`` for calls that do not add or draw, such as ``update``.

    Raises
    ------
    TypeError
        ``buffer`` is not a buffer, or ``limiter`` is not a limiter.

    Notes
    -----
    A limiter over a filled buffer, or after pickling or loading, begins in the middle of its
    allowed range. The first call that has no room there moves the beginning towards the end of the
    range where it has most room. Counts are not saved. If one side waited during the save, restored
    counts would block this side for ever. ``restore`` keeps the present limiter.

    ``sample`` of this object and of its views raises ``RateLimitTimeoutError``, a ``TimeoutError``.
    Then the limiter did not allow the batch within its time-out: there are too few rows, or inserts
    lag. ``sample`` raises ``ValueError`` if the limiter can never allow so many items at once. A
    sequence counts as one item. After either error nothing counts as sampled.

    Calls of one side proceed in the order in which they began to wait. So small batches do not
    starve large ones. The call that waited longest has precedence while rows come, and for one more
    second. It has no precedence while the other side waits too.

    A waiting call tests the limiter, sleeps for up to 2 ms, and tests it again. With ``prefetch``
    the thread waits, without a time-out until its batch is requested. ``close``, ``reseed`` and
    ``restore`` do not wait for this thread. An ``epoch`` is not limited, and does not count.

    Cost: some microseconds for ``add`` and for ``sample``.

    Examples
    --------
    >>> import threading
    >>> from cpprb_like import ReplayBuffer
    >>> from cpprb_like.limiters import MinSize, RateLimited
    >>> rb = RateLimited(ReplayBuffer(1000, {"x": {"shape": ()}}, seed=0), MinSize(100))
    >>> def act():
    ...     for step in range(200):
    ...         rb.add(x=step)
    >>> actor = threading.Thread(target=act)
    >>> actor.start()
    >>> rb.sample(32)["x"].shape  # waits until 100 rows are there
    (32,)
    >>> actor.join()
    >>> rb.stats()["samples"]
    32
    """

    buffer: ReplayBuffer

    def __init__(self, buffer: ReplayBuffer, limiter: RateLimiter) -> None:
        if not isinstance(buffer, ReplayBuffer):
            raise TypeError(f"buffer: expected a ReplayBuffer, got {type(buffer).__name__}")
        if not isinstance(limiter, RateLimiter):
            raise TypeError(f"limiter: expected a RateLimiter, got {limiter!r}")
        limiter._check_capacity(buffer.capacity)
        counters = Counters(np.zeros(shape_for(2), np.int64), 1, 1, *limiter.bounds)
        begin_balanced(limiter, counters, len(buffer))()
        super().__init__(buffer, Gate(limiter, counters, 1))
        self.buffer = buffer
        self.limiter = limiter
        self._inserts = Gate(limiter, counters, 0, held=weakref.ref(buffer))
        tell(self._in_child)
        self._steps = StepCounter(buffer.schema.fields, buffer.n_envs)

    def _in_child(self) -> None:
        """Drop the calls of the parent's other threads in a forked child."""
        self._inserts.counters.renew()

    @property
    def _adds(self) -> ReplayBuffer:
        return self.buffer

    def clear(self) -> None:
        """Delete all rows; the limiter starts again, as for an empty buffer."""
        super().clear()
        self._inserts.counters.set_base(0, 0)

    def view(self, *layers: Layer) -> Source:
        """A view of the rows with the same limiter: see ``ReplayBuffer.view``.

        The limiter counts draws of the view as draws of this object.
        """
        return LimitedSource(self.buffer.view(*layers), self._gate)

    def _to_take_over(self, other: RateLimited, swap: Callable[[Any], Any]) -> list[Change]:  # noqa: ARG002
        """See ``Savable._to_take_over``: the gates of threads and views stay."""
        counters, rows = self._inserts.counters, len(other.buffer)
        begin = begin_balanced(self.limiter, counters, rows)
        return [begin, partial(counters.set_rows, self._inserts.line, len(other.buffer.ring))]

    def __getstate__(self) -> dict[str, Any]:
        return {"buffer": self.buffer, "limiter": self.limiter}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["buffer"], state["limiter"])  # type: ignore[misc]

    def __repr__(self) -> str:
        return f"RateLimited({self.limiter!r}, {stats(self._gate.counters)!r}) of\n{self.buffer!r}"
