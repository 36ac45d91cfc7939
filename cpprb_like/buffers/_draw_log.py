"""``DrawLog``: the draws in a file of ``LoggedDraws``, to look at and to read again."""

from __future__ import annotations

import json
import os
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpprb_like._arguments.checks import as_path
from cpprb_like._machine.opening import open_regular
from cpprb_like._rows.row_handles import find_rows
from cpprb_like.buffers._logged import COLUMNS, HEAD, view_of
from cpprb_like.buffers._source import Batch, Source


@dataclass(frozen=True)
class LoggedDraw:
    """One draw of a log.

    Attributes
    ----------
    handles, ages : ndarray of int64, shape (n,)
        Handles of the drawn rows, as in ``batch["indexes"]``, for sequences of their first rows;
        and the number of rows that were written after each, up to the end of the draw.
    written, edits : int
        Version of the rows: rows written since the last clear, and changes of rows.
    before, after : dict
        ``rng.bit_generator.state`` of the buffer before and after the draw.
    probabilities, weights : ndarray, shape (n,), or None
        The columns of the batch, if it had them.
    """

    handles: NDArray[np.int64]
    ages: NDArray[np.int64]
    written: int
    edits: int
    before: dict[str, Any]
    after: dict[str, Any]
    probabilities: NDArray[Any] | None = None
    weights: NDArray[Any] | None = None


class DrawLog(list[LoggedDraw]):
    """The draws in a file of ``LoggedDraws``, in their order. An incomplete last one is left out.

    Parameters
    ----------
    path : str or path
        The file.

    Raises
    ------
    OSError, ValueError
        The file cannot be read, or is not a log of draws.

    Examples
    --------
    See ``LoggedDraws``.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        with open_regular(as_path("path", path)) as file:
            data = file.read()
        if not data.startswith(HEAD):
            raise ValueError(f"{path}: expected a log of draws, as LoggedDraws writes it")
        place = len(HEAD)
        while (end := data.find(b"\n", place) + 1) > 0:
            about: dict[str, Any] = json.loads(data[place:end])
            columns: dict[str, Any] = {}
            for name, kind, n in about.pop("columns"):
                place, end = end, end + n * np.dtype(kind).itemsize
                if end > len(data):
                    return
                columns[name] = np.frombuffer(data, kind, n, place)
            handles, place = columns.pop("indexes"), end
            self.append(LoggedDraw(handles, about.pop("newest") - handles, **columns, **about))

    def handles(self) -> NDArray[np.int64]:
        """Handles of the rows of all draws, one after another, such as for ``describe(draws=)``."""
        return np.concatenate([np.empty(0, np.int64), *(draw.handles for draw in self)])

    def replay(self, k: int, source: Source) -> Batch:
        """Read the rows of draw ``k`` again, from the source of the draw or from a saved one.

        Returns
        -------
        dict of ndarray
            The fields, and the columns of layers and log: bit for bit as in the batch, if its rows
            are there and unchanged. Layers that choose at random choose anew.

        Raises
        ------
        IndexError, LookupError
            The log has no such draw, or rows that it read are gone.

        Notes
        -----
        A ``UserWarning`` reports rows that were changed since the draw. The call is no draw: the
        generator is as before, if no other thread draws meanwhile.
        """
        if not -len(self) <= k < len(self):
            raise IndexError(
                f"replay: the log has {len(self)} draws, so expected k of "
                f"{-len(self)} to {len(self) - 1}, got {k}"
            )
        draw, view = self[k], view_of(source)
        ring, rng = view.buffer.ring, view.buffer.rng
        now, state = ring.now(), rng.bit_generator.state
        slots, _ = find_rows(ring, draw.handles)
        if lost := len(draw.handles) - len(slots):
            raise LookupError(f"replay: {lost} of {len(draw.handles)} rows of draw {k} are gone")
        if draw.edits != now.edits:
            what = f"replay: rows were changed since draw {k}, so its batch may have new values"
            warnings.warn(what, stacklevel=2)
        try:
            batch = view.read_at(slots, None)
        finally:
            rng.bit_generator.state = state
        if batch is None or not ring.holds(now, slots):
            raise LookupError(f"replay: rows of draw {k} were overwritten while they were read")
        logged: dict[str, Any] = {name: getattr(draw, name) for name in COLUMNS}
        if view.has_priorities:
            logged["indexes"] = draw.handles
        return batch | {name: values for name, values in logged.items() if values is not None}
