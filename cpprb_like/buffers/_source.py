"""``Source``: what batches can be drawn from, and what all such things have in common."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cpprb_like.checkpoint._saved import Checkpointed
from cpprb_like.schedules import Schedule

__all__ = ["Batch", "ColumnSpec", "Source"]

Batch = dict[str, NDArray[Any]]


class ColumnSpec(NamedTuple):
    """A column of a batch: its dtype, and the shape of its entry for one item of the batch."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]


class Source(Checkpointed):
    """What batches can be drawn from: a buffer, a view of one, or a mixture of several.

    Code that learns from batches need not know which: all have these methods.
    """

    def sample(
        self,
        batch_size: int,
        beta: float | Schedule | None = None,
        *,
        replace: bool = True,
        out: dict[str, Any] | None = None,
        indexes: bool = False,
        fields: str | Iterable[str] | None = None,
    ) -> Batch:
        """Draw a batch.

        Parameters
        ----------
        batch_size : int
            Items to draw, at least 0: rows, or what a view makes of them, such as sequences.
        beta : float or schedule, optional
            Importance-sampling exponent, at least 0, in place of the sampler's own; of sources with
            priorities only. 1 corrects fully. The time of a schedule is the number of batches drawn
            so far.
        replace : bool
            Whether an item may be drawn more than once.
        out : dict of (ndarray or tensor), optional
            Arrays to write the fields into, or tensors on the CPU. Further columns are fresh
            arrays, which it gets under their names.
        indexes : bool
            Add the column ``indexes``, which names the drawn rows for ``update``.
        fields : str or iterable of str, optional
            The fields to read; all.

        Returns
        -------
        dict of ndarray
            The fields, and further columns, each of ``batch_size`` items: ``out``, or fresh arrays
            that nobody else writes to.
        """
        raise NotImplementedError

    def batches(
        self,
        batch_size: int,
        *,
        shuffle: bool = True,
        drop_last: bool = False,
        fields: str | Iterable[str] | None = None,
    ) -> Iterator[Batch]:
        """Each item once, in batches: one epoch."""
        raise NotImplementedError

    def update_priorities(
        self,
        indexes: ArrayLike,  # noqa: ARG002 (these are for subclasses)
        priorities: ArrayLike,  # noqa: ARG002
    ) -> None:
        """Set the priorities of drawn rows, by ``batch["indexes"]``."""
        raise TypeError(f"{type(self).__name__}: there are no priorities")

    @property
    def fields(self) -> tuple[str, ...]:
        """The names of the fields; batches may have further columns."""
        raise NotImplementedError

    @property
    def has_priorities(self) -> bool:
        """Whether rows are drawn by priority: then batches have ``weights`` and ``indexes``."""
        raise NotImplementedError

    @property
    def columns(self) -> Mapping[str, ColumnSpec]:
        """The columns of a batch, as far as they are known without one."""
        raise NotImplementedError

    def __len__(self) -> int:
        """Rows that can be drawn."""
        raise NotImplementedError

    # ------------------------------------------------------------------ for sources of sources

    def _read_batch_size(
        self, batch_size: int, fields: str | Iterable[str] | None = None
    ) -> tuple[int, tuple[str, ...] | None]:
        """A number of items that can be drawn at once, and the names of ``fields``."""
        raise NotImplementedError

    def _can_draw(self) -> bool:
        """Whether there is something to draw."""
        return len(self) > 0

    def _check_draw(self, n: int, *, replace: bool, beta: float | Schedule | None) -> None:
        """Raise what a draw of n items would raise, as far as it is known."""
        raise NotImplementedError

    def _check_update(
        self, indexes: NDArray[np.int64], priorities: NDArray[np.float64]
    ) -> NDArray[np.intp]:
        """Raise what ``update_priorities`` would for the priorities; which indexes are wrong."""
        raise NotImplementedError
