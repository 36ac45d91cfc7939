"""``Reported``: the methods ``describe`` and ``report`` of everything that has rows.

The room ``report`` does the work. These calls import it. What it reads of a buffer is
``RowsToReport``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cpprb_like.report import Description

__all__ = ["Reported"]

Ranges = Mapping[str, tuple[float, float]]


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
