"""``Batches``: the iterator that ``Source.batches`` and ``Source.epoch`` return.

Not here: the draw of a batch (``_source`` and its subclasses), conversions to tensors
(``_tensors``), and prefetching (``_prefetch``).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from cpprb_like._arguments.arrays import Batch

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self

    from cpprb_like.buffers._prefetch import Prefetcher
    from cpprb_like.buffers._tensors import Conversion

__all__ = ["Batch", "Batches"]

T_co = TypeVar("T_co", covariant=True)


class Batches(Iterator[T_co], Generic[T_co]):
    """Iterator over batches of a source, which ``batches`` and ``epoch`` return.

    Threads that share the iterator get different batches: no batch is lost or returned twice.
    ``close()`` ends the iterator and its prefetching thread. The end of a ``with`` statement, the
    end of the program and the deletion of the iterator do the same.

    Notes
    -----
    The iterator cannot be pickled or copied. A source can. Its copy continues with the first batch
    that was not returned.

    Examples
    --------
    >>> from cpprb_like import ReplayBuffer
    >>> rb = ReplayBuffer(10, {"rew": {"shape": ()}}, seed=0)
    >>> rb.add(rew=[1, 2, 3])
    0
    >>> with rb.batches(4, prefetch=2) as batches:
    ...     next(batches)["rew"].shape, next(batches)["rew"].shape
    ((4,), (4,))
    """

    def __init__(
        self,
        draw: Callable[[], Batch],
        conversion: Conversion | None,
        prefetcher: Prefetcher | None,
    ) -> None:
        self._draw: Callable[[], Batch] | None = draw
        self._conversion = conversion
        self._prefetcher = prefetcher
        self._end: weakref.finalize[Any, Any] | None = None

    def at_end(self, function: Callable[[], object]) -> None:
        """Call a function once, when this iterator is closed or deleted."""
        self._end = weakref.finalize(self, function)

    def __next__(self) -> T_co:
        """The next batch. If its draw raises an exception, later calls draw further batches.

        A failed batch is not drawn again; an epoch continues with the next batch.
        """
        draw, prefetcher, conversion = self._draw, self._prefetcher, self._conversion
        if draw is None:
            raise StopIteration
        made: Any
        if prefetcher is not None:
            made = prefetcher.next()
        else:
            made = draw()
            if conversion is not None:
                made = conversion.make(made)
        return made if conversion is None else conversion.hand_out(made)  # type: ignore[no-any-return]

    def close(self) -> None:
        """End the iterator and drop waiting batches. Further calls have no effect."""
        self._draw = None
        if self._prefetcher is not None:
            self._prefetcher.close()
            self._prefetcher = None
        if self._end is not None:
            self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __reduce__(self) -> Any:
        raise TypeError("batches cannot be pickled or copied: make them anew from the source")
