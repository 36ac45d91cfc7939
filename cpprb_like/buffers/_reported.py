"""The methods ``describe`` and ``report`` of all that has rows, as functions.

The room ``report`` does the work. The methods import it. It reads a buffer through
``RowsToReport``. Classes that take over the functions have a method ``_to_report``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cpprb_like.report import Description

Ranges = Mapping[str, tuple[float, float]]


def describe(
    self: Any,
    *,
    reward: str | None = None,
    ranges: Ranges | None = None,
    draws: Any = None,
    progress: Callable[[int, int], None] | None = None,
) -> Description:
    """Statistics of the rows, and findings about suspicious values.

    Parameters
    ----------
    reward : str, optional
        The field of rewards; by default ``rew``, ``reward`` or ``rewards``.
    ranges : dict of str to (float, float), optional
        The least and the greatest value that a field may have, such as the bounds of actions:
        ``{"act": (-1.0, 1.0)}``. Values outside are a finding.
    draws : array_like of int, optional
        Handles of drawn rows, such as all ``batch["indexes"]`` together, int64, shape ``(n,)``.
        With handles, the description counts the draws of rows.
    progress : callable, optional
        ``progress(done, total)`` is called with numbers of bytes. By default tqdm shows a bar,
        if it is installed and standard error is a terminal.

    Returns
    -------
    Description
        ``print`` shows text, a notebook shows a page. ``findings`` lists suspicious values,
        ``to_dict()`` gives all as JSON values, ``save(path)`` writes the page of ``report``.

    Raises
    ------
    TypeError, ValueError
        ``reward`` or ``ranges`` name no field of numbers; or the rows cannot be read, such as
        rows of other machines.

    Notes
    -----
    A field of up to 256 MB is read as a whole. Of a larger field, eight runs of rows with
    256 MB in total are read. Cost: about 2 seconds for 10**6 rows of small fields. Memory: some
    100 bytes for each row and megabytes for each field. Other threads that write to the buffer
    wait; threads that sample do not.

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
    self: Any,
    path: str | os.PathLike[str],
    *,
    reward: str | None = None,
    ranges: Ranges | None = None,
    draws: Any = None,
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Write a page with the statistics of the rows and the findings.

    Parameters
    ----------
    path : str or path
        The new HTML file, one page that loads nothing else. A file of this name is replaced.
    reward, ranges, draws, progress
        As for ``describe``, which documents costs and errors.

    Raises
    ------
    OSError
        The file cannot be written.

    Examples
    --------
    >>> import tempfile
    >>> from cpprb_like import ReplayBuffer
    >>> rb = ReplayBuffer(10, {"x": {"shape": ()}})
    >>> rb.add(x=[1, 2, 3])
    0
    >>> rb.report(tempfile.mkdtemp() + "/report.html")
    """
    found: Description = self.describe(reward=reward, ranges=ranges, draws=draws, progress=progress)
    found.save(path)
