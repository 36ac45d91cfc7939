"""A data set as a buffer: its episodes one after another, the oldest cut, the newest open.

Not here: what the files say (the readers), and the fields of the buffer (``_open``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from cpprb_like.datasets._files import reading
from cpprb_like.datasets._format import Reader
from cpprb_like.datasets._from_buffer import ends_of, rows_in_chunk
from cpprb_like.datasets._model import Field, Rows

__all__ = ["fill"]


def fill(buffer: Any, reader: Reader, on_read: Callable[[int], None]) -> int:
    """Add the rows of a data set to an empty buffer that has some of its fields.

    ``on_read`` is called with the bytes of the rows. Returns how many steps were left out, as the
    buffer has fields for their next values and these are not known.
    """
    header, names = reader.header, buffer.schema.names
    is_lacking = any(name in names for name in reader.unknown)
    ends = ends_of(buffer.schema, list(names))
    last, left_out = len(header.episodes) - 1, 0
    if header.episodes and header.episodes[0].is_cut:
        _add_absent(buffer, buffer.ring.capacity + 1 - header.rows)
    for number, episode in enumerate(header.episodes):
        came = 0
        for rows in _counted(reader, number):
            on_read(sum(values.nbytes for values in rows.values()))
            n = len(rows[names[0]])
            came += n
            if is_lacking and came == episode.length and not ends.flags(rows, n)[0][-1]:
                # Targets bootstrap from the next value of a step that is not terminated.
                left_out += 1
                n -= 1
            if n:
                buffer.add(**{name: rows[name][:n] for name in names})
        if not (episode.is_open and number == last):
            buffer.on_episode_end()
    return left_out


def _counted(reader: Reader, number: int) -> Iterator[Rows]:
    """The rows of an episode; ``ValueError`` unless they are as many as the header says."""
    header, came = reader.header, 0
    expected = header.episodes[number].length
    with reading(reader.path):
        for rows in reader.rows(number, rows_in_chunk(header.row_nbytes)):
            n = {len(values) for values in rows.values()}
            if len(n) != 1:
                raise ValueError(f"episode {number}: expected as many rows of each field, got {n}")
            came += n.pop()
            if came > expected:
                break
            yield rows
        if came != expected:
            raise ValueError(f"episode {number}: expected {expected} rows, got {came} or more")


def _add_absent(buffer: Any, n_steps: int) -> None:
    """Add time steps without a step of the environment, which are before a cut episode."""
    fields: tuple[Field, ...] = buffer.schema.fields
    step = rows_in_chunk(sum(field.nbytes for field in fields))
    for start in range(0, n_steps, step):
        shape = (min(step, n_steps - start), 1)
        rows = {field.name: np.zeros((*shape, *field.shape), field.dtype) for field in fields}
        buffer.add_where(np.zeros(shape, np.bool_), **rows)
