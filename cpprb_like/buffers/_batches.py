"""``Batches``: the iterator that ``Source.batches`` and ``Source.epoch`` return.

Not here: how a batch is drawn (``_source`` and its subclasses).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeAlias

from numpy.typing import NDArray

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self

__all__ = ["Batch", "Batches"]

Batch: TypeAlias = dict[str, NDArray[Any]]


class Batches(Iterator[Batch]):
    """Batches of a source, one after another: what ``batches`` and ``epoch`` return.

    It is an iterator. ``close()`` ends it, as leaving a ``with`` statement does.

    Parameters
    ----------
    make : callable
        Returns the next batch; raises ``StopIteration`` where there are no more.

    Examples
    --------
    >>> from cpprb_like import ReplayBuffer
    >>> rb = ReplayBuffer(10, {"rew": {"shape": ()}}, seed=0)
    >>> rb.add(rew=[1, 2, 3])
    0
    >>> with rb.batches(4) as batches:
    ...     next(batches)["rew"].shape, next(batches)["rew"].shape
    ((4,), (4,))
    """

    def __init__(self, make: Callable[[], Batch]) -> None:
        self._make: Callable[[], Batch] | None = make

    def __next__(self) -> Batch:
        """The next batch; what drawing it raises, after which further ones can be drawn."""
        if self._make is None:
            raise StopIteration
        return self._make()

    def close(self) -> None:
        """End it: there are no more batches. A second call does nothing."""
        self._make = None

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
