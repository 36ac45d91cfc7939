"""A data set as a buffer: its streams side by side, its oldest episode cut, its newest one open.

Not here: what the files say (the readers), and which options of the buffer they give (``_open``).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from cpprb_like.datasets._format import Reader
from cpprb_like.datasets._from_buffer import ends_of, rows_in_chunk
from cpprb_like.datasets._model import Field, Header, Rows

__all__ = ["fill", "first_are_cut"]

Told = Callable[[int], None]


def fill(buffer: Any, reader: Reader, told: Told) -> int:
    """Add the rows of a data set to an empty buffer that has some of its fields.

    With one environment the episodes come one after another. With those of the data set each row
    comes to its own; the streams end together, and absent rows stand where one has less. ``told``
    is called with the bytes of the rows. Returns how many steps were left out, as the buffer has
    fields for their next values and these are not known.
    """
    header, names = reader.header, buffer.schema.names
    left_out = 0
    if buffer.n_envs == 1:
        left_out = _fill_one(buffer, reader, names, told)
    else:
        _Streams(buffer, reader, names, told).fill()
    if not header.episodes:
        buffer.clear()
    return left_out


def _fill_one(buffer: Any, reader: Reader, names: tuple[str, ...], told: Told) -> int:
    header = reader.header
    is_lacking = any(name in names for name in reader.unknown)
    ends = ends_of(buffer.schema, list(names))
    last, left_out = len(header.episodes) - 1, 0
    step = rows_in_chunk(header.row_nbytes)
    if header.episodes and header.episodes[0].is_cut:
        _add_absent(buffer, buffer.ring.capacity + 1 - header.rows)
    for number, episode in enumerate(header.episodes):
        came = 0
        for rows in _counted(reader, number, step, told):
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


def _counted(reader: Reader, number: int, step: int, told: Told) -> Iterator[Rows]:
    """The rows of an episode, as many as the header says."""
    expected, came = reader.header.episodes[number].length, 0
    for rows in reader.rows(number, step):
        _add_empty(reader.header, rows)
        n = {len(values) for values in rows.values()}
        if len(n) != 1:
            raise ValueError(f"episode {number}: expected as many rows of each field, got {n}")
        came += n.pop()
        if came > expected:
            break
        yield rows
        told(sum(values.nbytes for values in rows.values()))
    if came != expected:
        raise ValueError(f"episode {number}: expected {expected} rows, got {came} or more")


def _add_empty(header: Header, rows: Rows) -> None:
    """The values of fields without any byte, which no format writes."""
    for field in header.fields:
        if field.nbytes == 0 and field.name not in rows:
            n = len(next(iter(rows.values()), ()))
            rows[field.name] = np.zeros((n, *field.shape), field.dtype)


def _add_absent(buffer: Any, n_steps: int) -> None:
    """Time steps in which no environment has a step; those before a cut episode."""
    fields: tuple[Field, ...] = buffer.schema.fields
    step = rows_in_chunk(sum(field.nbytes for field in fields) * buffer.n_envs)
    for start in range(0, n_steps, step):
        shape = (min(step, n_steps - start), buffer.n_envs)
        rows = {field.name: np.zeros((*shape, *field.shape), field.dtype) for field in fields}
        buffer.add_where(np.zeros(shape, np.bool_), **rows)


def first_are_cut(header: Header) -> list[bool]:
    """Of each environment, whether its oldest episode is cut."""
    are_cut: list[bool | None] = [None] * header.n_envs
    for episode in header.episodes:
        if are_cut[episode.env] is None:
            are_cut[episode.env] = episode.is_cut
    return [bool(is_cut) for is_cut in are_cut]


class _Stream:
    """The rows of one environment, in the order of time."""

    def __init__(self, reader: Reader, numbers: list[int], step: int, told: Told) -> None:
        self._reader, self._numbers, self._step, self._told = reader, numbers, step, told
        self._chunks = self._all()
        self._rows: Rows = {}
        self._at = 0
        self._ends = False
        self.left = 0  # rows that are here already
        self.length = sum(reader.header.episodes[number].length for number in numbers)

    def _all(self) -> Iterator[tuple[Rows, bool]]:
        episodes = self._reader.header.episodes
        for number in self._numbers:
            came = 0
            for rows in _counted(self._reader, number, self._step, self._told):
                n = len(next(iter(rows.values())))
                came += n
                yield rows, came == episodes[number].length and not episodes[number].is_open

    def look(self) -> int:
        """How many rows there are before something has to be read, or an episode ends."""
        while self.left == 0:
            self._rows, self._ends = next(self._chunks)
            self._at, self.left = 0, len(next(iter(self._rows.values())))
        return self.left

    def take(self, name: str, n: int) -> Any:
        """The next n rows of a field."""
        return self._rows[name][self._at : self._at + n]

    def go_on(self, n: int) -> bool:
        """Pass over n rows; whether an episode ends there."""
        self._at, self.left = self._at + n, self.left - n
        return self.left == 0 and self._ends


class _Streams:
    """The rows of several environments, step by step."""

    def __init__(self, buffer: Any, reader: Reader, names: tuple[str, ...], told: Told) -> None:
        header = reader.header
        self._buffer, self._header = buffer, header
        self._fields = [field for field in buffer.schema.fields if field.name in names]
        self._most = rows_in_chunk(header.row_nbytes, header.n_envs)
        of_env: list[list[int]] = [[] for _ in range(header.n_envs)]
        for number, episode in enumerate(header.episodes):
            of_env[episode.env].append(number)
        self._streams = [_Stream(reader, numbers, self._most, told) for numbers in of_env]
        self._are_cut = first_are_cut(header)

    def fill(self) -> None:
        """Add all rows. The streams end together: what is open goes on behind them."""
        buffer, n_envs = self._buffer, self._header.n_envs
        n_steps = max(stream.length for stream in self._streams)
        waits = [n_steps - stream.length for stream in self._streams]
        if any(self._are_cut):
            _add_absent(buffer, -(-buffer.ring.capacity // n_envs) + 1 - n_steps)
            self._begin_whole()
        done = 0
        while done < n_steps:
            present = np.array([wait == 0 for wait in waits])
            steps = min(
                self._most,
                *(wait or stream.look() for wait, stream in zip(waits, self._streams, strict=True)),
            )
            rows = {field.name: self._block(field, steps, present) for field in self._fields}
            if present.all():
                buffer.add(**rows)
            else:
                buffer.add_where(np.broadcast_to(present, (steps, n_envs)), **rows)
            for env, stream in enumerate(self._streams):
                if waits[env]:
                    waits[env] -= steps
                elif stream.go_on(steps):
                    buffer.on_episode_end(env)
            done += steps

    def _begin_whole(self) -> None:
        """A step before the others, of an episode that is deleted: its end stays, so it is known.

        Of the environments whose oldest episode is whole.
        """
        buffer, whole = self._buffer, [not is_cut for is_cut in self._are_cut]
        if not any(whole):
            return
        rows = {
            field.name: np.zeros((len(whole), *field.shape), field.dtype) for field in self._fields
        }
        buffer.add_where(np.array(whole), **rows)
        for env in itertools.compress(range(len(whole)), whole):
            buffer.on_episode_end(env)
        for _ in range(sum(whole)):
            buffer.episodes.delete(0)

    def _block(self, field: Field, steps: int, present: Any) -> Any:
        """The values of some time steps of all environments."""
        block = np.zeros((steps, self._header.n_envs, *field.shape), field.dtype)
        for env in itertools.compress(range(len(present)), present):
            block[:, env] = self._streams[env].take(field.name, steps)
        return block
