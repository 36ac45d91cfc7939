"""``Batches``: the iterator that ``Source.batches`` and ``Source.epoch`` return.

Not here: the draw of a batch (``_source`` and its subclasses), conversions to tensors
(``_tensors``), and prefetching (``_prefetch``).
"""

from __future__ import annotations

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
    """Batches of a source, one after another: what ``batches`` and ``epoch`` return.

    It is an iterator. Threads that share it have batches of their own: no batch is lost or given to
    two of them. ``close()`` ends it and the thread that draws ahead, as the end of a ``with``
    statement does, the end of the program, or that of the iterator itself.

    Notes
    -----
    It is neither pickled nor copied; a source is, and its copy goes on with the first batch that
    has not been handed out.

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
        """End it: there are no more batches, and those that wait are lost. Twice does no harm."""
        self._draw = None
        if self._prefetcher is not None:
            self._prefetcher.close()
            self._prefetcher = None

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
