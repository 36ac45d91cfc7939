"""``Reported``: the methods ``describe`` and ``report`` of everything that has rows.

The room ``report`` does the work. These calls import it. What it reads of a buffer is a
``RowsToReport``: rows as they were added, in the order of writing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from cpprb_like._arguments.arrays import Batch
from cpprb_like._core import FLAG_ABSENT, FLAG_END, FLAG_TERMINATED

if TYPE_CHECKING:
    from cpprb_like.report import Description

__all__ = ["Reported", "RowsToReport"]

Ranges = Mapping[str, tuple[float, float]]


class RowsToReport:
    """The rows of a buffer, to which no thread writes meanwhile.

    Attributes
    ----------
    buffer : ReplayBuffer
        The holder of the rows.
    slots : ndarray of intp
        The slot of each row, oldest first; also of absent rows.
    n_envs : int
        A row and the row after it in its stream are so many places apart.
    present, ends, terminated : ndarray of bool
        Whether a row holds a step, ends an episode, ends it by termination.
    """

    def __init__(self, buffer: Any) -> None:
        self.buffer, ring = buffer, buffer.ring
        self.n_envs: int = ring.n_envs
        self.slots = (np.arange(ring.first, ring.written) % ring.capacity).astype(np.intp)
        flags = ring.flags_at(self.slots)
        self.present = flags & FLAG_ABSENT == 0
        self.ends = self.present & (flags & FLAG_END != 0)
        self.terminated = self.present & (flags & FLAG_TERMINATED == FLAG_TERMINATED)

    def __len__(self) -> int:
        return len(self.slots)

    def structure(self) -> dict[str, Any]:
        """Fields, bytes and options: see ``checkpoint.structure``."""
        from cpprb_like.checkpoint._describe import structure  # noqa: PLC0415 (on demand)

        buffer = self.buffer
        return structure(buffer._layout, buffer.ring.written, type(buffer.sampler).__name__)

    def read(self, rows: slice, names: tuple[str, ...]) -> Batch:
        """Some fields of some rows, each as it was added."""
        from cpprb_like.views._rows import read_fields  # noqa: PLC0415 (on demand)

        return read_fields(self.buffer.ring, self.slots[rows], names)

    def not_drawn(self, view: Any = None) -> dict[str, int]:
        """Rows that are never drawn, by the reason: each row for the first one that holds."""
        ring = self.buffer.ring
        drawable = np.zeros(ring.capacity, np.bool_)
        drawable[ring.present_slots()] = True
        needed = self.present & ~drawable[self.slots]
        newest = np.arange(len(self)) >= len(self) - ring.lookahead * ring.n_envs
        slots = self.slots[self.present & ~needed]
        weights = self.buffer.sampler.row_weights(slots)
        if weights is not None:
            slots = slots[weights > 0]
        zero = len(self) - int((~self.present).sum()) - int(needed.sum()) - len(slots)
        outside = 0
        if view is not None and view._now.starts is not None and len(slots):
            outside = len(slots) - int((view._now.starts.tell(slots) == 1).sum())
        found = {
            "no step, or of a deleted episode": int((~self.present).sum()),
            "waiting for the rest of an n-step return": int((needed & newest).sum()),
            "needed by the rows after": int((needed & ~newest).sum()),
            "priority 0": zero,
            "no start for the layers of the view": outside,
        }
        return {reason: n for reason, n in found.items() if n}

    def draws(self, indexes: NDArray[np.int64]) -> NDArray[np.int64]:
        """How often each row is among these handles or slots of drawn rows."""
        from cpprb_like._rows.row_handles import find_rows  # noqa: PLC0415 (on demand)

        ring = self.buffer.ring
        slots, _ = find_rows(ring, indexes)
        times = np.bincount(slots[slots >= 0], minlength=ring.capacity)
        found: NDArray[np.int64] = times[self.slots].astype(np.int64)
        return found


class Reported:
    """Base class of sources and replays: the methods ``describe`` and ``report``."""

    def _to_report(self) -> Iterator[tuple[str, Any, Any]]:
        """Yield the path, the buffer, and the view or None, of all rows that can be read."""
        raise TypeError(f"the rows of {type(self).__name__} cannot be read from here")

    def describe(
        self,
        *,
        reward: str | None = None,
        ranges: Ranges | None = None,
        draws: Any = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> Description:
        """What the rows are like, and what looks wrong with them.

        Parameters
        ----------
        reward : str, optional
            The field of rewards; by default ``rew``, ``reward`` or ``rewards``.
        ranges : dict of str to (float, float), optional
            The least and the greatest value that a field may have, such as the bounds of actions:
            ``{"act": (-1.0, 1.0)}``. Values beyond them are a finding.
        draws : array_like of int, optional
            Handles of rows that were drawn, such as those of all ``batch["indexes"]``, int64, shape
            ``(n,)``: then the description says how often rows were drawn.
        progress : callable, optional
            ``progress(done, total)`` is called with bytes; by default there is a bar of tqdm, if
            that is installed and standard error is a terminal.

        Returns
        -------
        Description
            ``print`` shows it as text, a notebook as a page. ``findings`` are what looks wrong,
            ``to_dict()`` has all as JSON values, ``save(path)`` writes the page of ``report``.

        Raises
        ------
        TypeError, ValueError
            ``reward`` or ``ranges`` name no field of numbers; or the rows cannot be read, as those
            of other machines.

        Notes
        -----
        Fields of up to 256 MB are read as a whole, and of larger ones eight runs of rows of as many
        bytes together. Cost: about 2 seconds for 10**6 rows of small fields; memory of some 100
        bytes for each row and megabytes for each field. Other threads that write to the buffer
        wait; those that sample do not.

        Examples
        --------
        >>> import numpy as np
        >>> from cpprb_like import ReplayBuffer
        >>> rb = ReplayBuffer(1000, {"obs": {"shape": 2}, "rew": {"shape": ()}})
        >>> rb.add(obs=np.ones((1000, 2)), rew=np.arange(1000) % 3)
        0
        >>> [(finding.name, finding.field) for finding in rb.describe().findings]
        [('constant', 'obs')]
        """
        from cpprb_like.report import describe  # noqa: PLC0415 (on demand)

        return describe(self, reward=reward, ranges=ranges, draws=draws, progress=progress)

    def report(
        self,
        path: str | os.PathLike[str],
        *,
        reward: str | None = None,
        ranges: Ranges | None = None,
        draws: Any = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        """Write a page that shows what the rows are like, and what looks wrong with them.

        Parameters
        ----------
        path : str or path
            The new HTML file, one page that loads nothing else. A file of this name is replaced.
        reward, ranges, draws, progress
            As for ``describe``, which says what it costs and raises.

        Raises
        ------
        OSError
            It cannot be written.

        Examples
        --------
        >>> import tempfile
        >>> from cpprb_like import ReplayBuffer
        >>> rb = ReplayBuffer(10, {"x": {"shape": ()}})
        >>> rb.add(x=[1, 2, 3])
        0
        >>> rb.report(tempfile.mkdtemp() + "/report.html")
        """
        found = self.describe(reward=reward, ranges=ranges, draws=draws, progress=progress)
        found.save(path)
