"""``Source``: a buffer as a data set, with the roles of its fields, its episodes and their rows.

The rows are single steps, as they were added; n-step returns are computed only in draws. Absent
rows, and rows of deleted episodes, are left out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from cpprb_like._fields.field import Field
from cpprb_like.buffers._rows_to_report import RowsToReport
from cpprb_like.datasets._model import Ends, EpisodeRecord, Header, Place, Rows
from cpprb_like.datasets._ragged import bytes_of_rows, of_batch

OBSERVATIONS = ("obs", "observation", "observations", "state")
ACTIONS = ("act", "action", "actions")
REWARDS = ("rew", "reward", "rewards")
CHUNK_NBYTES = 4 << 20
MOST_ROWS = 1 << 16
NEXT = "next_"

Names = str | Iterable[str] | None


def rows_in_chunk(row_nbytes: int, share: int = 1) -> int:
    """Number of rows that are read at a time, if ``share`` chunks are in memory together."""
    return max(1, min(MOST_ROWS, CHUNK_NBYTES // max(1, row_nbytes * share)))


class Source:
    """The rows of a buffer, to which no other thread writes, as a data set.

    ``holds`` returns whether the format can hold a field. Without ``observation``, ``action`` and
    ``reward`` the names of fields decide: ``obs``, ``act``, ``rew`` and the like, or parts such as
    ``obs.position``. If no name is one of these, each ``x`` with a ``next_x`` is an observation.
    """

    def __init__(
        self,
        buffer: Any,
        holds: Callable[[Field], bool],
        observation: Names,
        action: Names,
        reward: str | None,
    ) -> None:
        self._buffer = buffer
        schema = buffer.schema
        fields = tuple(field for field in schema.declared if holds(field))
        names = [field.name for field in fields]
        self.has_both = False  # whether ``look`` found a step both terminated and truncated
        self.left_out = [field for field in schema.declared if not holds(field)]
        if not fields:
            raise ValueError(f"expected fields of numbers, got {list(schema.names)}")
        ends = ends_of(schema, names)
        observations = _chosen("observation", observation, names) or _by_name(names, OBSERVATIONS)
        observations = observations or {
            name: (name,) for name in names if NEXT + name in names and name not in ends.names
        }
        actions = _chosen("action", action, names) or _by_name(names, ACTIONS)
        rewards = [reward] if reward is not None else [name for name in REWARDS if name in names]
        if reward is not None and (
            reward not in names or not fields[names.index(reward)].is_single
        ):
            raise ValueError(f"reward: expected a field of one number a row, got {reward!r}")
        self.header = Header(
            fields,
            tuple(_episodes_of(buffer)),
            observations,
            actions,
            next((name for name in rewards if fields[names.index(name)].is_single), None),
            ends=ends,
        )
        self._begins, self._lengths = _lengths_of(buffer, self.header.episodes)

    def chunks(self, number: int, fields: Iterable[str] | None = None) -> Iterator[Rows]:
        chosen = [self.header[name] for name in (self.header.names if fields is None else fields)]
        length, start = self.header.episodes[number].length, 0
        names = [field.name for field in chosen]
        while start < length:
            stop = start + self._rows_in_batch(chosen, self._begins[number] + start, length - start)
            batch = self._buffer.episodes.read(number, fields=names, start=start, stop=stop)
            yield {
                field.name: of_batch(batch, field) if field.is_ragged else batch[field.name]
                for field in chosen
            }
            start = stop

    def _rows_in_batch(self, fields: Sequence[Field], start: int, most: int) -> int:
        """Number of rows, of ``most``, that are read at a time: a batch is padded to its longest.

        ``start`` is the place of the first row in ``_lengths``.
        """
        nbytes = sum(field.nbytes for field in fields)  # without values of any length
        n = min(most, rows_in_chunk(nbytes))
        of_row = np.full(n, nbytes)
        for field in fields:
            if field.is_ragged:
                lengths = self._lengths[str(field.axis)][start : start + n]
                of_row += field.item_nbytes * np.maximum.accumulate(lengths)
        fit = np.searchsorted(of_row * np.arange(1, n + 1), CHUNK_NBYTES, side="right")
        return max(1, int(fit))

    def look(self, on_read: Callable[[int], None]) -> Header:
        """The header, with ``chained``: whether next values are the values of the row after.

        Reads observations and end flags once. ``on_read`` is called with their bytes.
        """
        header = self.header
        found = {name: header.following(name) for name in header.observations}
        pairs = {name: following for name, following in found.items() if following is not None}
        chained = dict(pairs)
        names = [*chained, *chained.values(), *header.ends.names]
        for number in range(len(header.episodes) if names else 0):
            promised: Rows = {}
            for rows in self.chunks(number, names):
                n = len(next(iter(rows.values())))
                for name, following in list(chained.items()):
                    if not _follows(rows[name], rows[following], promised.get(name)):
                        del chained[name]
                    else:
                        promised[name] = rows[following][-1:].copy()
                terminated, truncated = header.ends.flags(rows, n)
                self.has_both = self.has_both or bool((terminated & truncated).any())
                on_read(sum(values.nbytes for values in rows.values()))
        # Formats derive all next observations from the row after, or none.
        return replace(header, chained=chained if len(chained) == len(pairs) else {})


def _lengths_of(buffer: Any, episodes: Iterable[EpisodeRecord]) -> tuple[list[int], dict[str, Any]]:
    """The numbers of items of all rows, by axis, and where each episode begins in them.

    The rows are in the order of environments, then of time.
    """
    rows = RowsToReport(buffer)
    here = np.flatnonzero(rows.present)
    envs = (buffer.ring.first + here) % rows.n_envs
    here = here[np.argsort(envs, kind="stable")]
    places = np.searchsorted(np.sort(envs), np.arange(rows.n_envs)).tolist()
    begins = []
    for episode in episodes:
        begins.append(places[episode.env])
        places[episode.env] += episode.length
    axes = [axis.name for axis in buffer.schema.axes]
    return begins, {axis: rows.lengths(slice(None), axis)[here] for axis in axes}


def _follows(values: Any, following: Any, promised: Any) -> bool:
    """Whether next values equal the values of the rows after, byte for byte.

    ``promised`` is the next value of the row before these rows, if there is such a row.
    """
    if promised is not None and not _are_same(promised, values[:1]):
        return False
    return _are_same(following[:-1], values[1:])


def _are_same(one: Any, other: Any) -> bool:
    """Whether two columns have the same bytes in each row."""
    if one.dtype == object:
        return bytes_of_rows(one) == bytes_of_rows(other)
    one, other = (
        np.ascontiguousarray(values).reshape(-1).view(np.uint8) for values in (one, other)
    )
    return bool(np.array_equal(one, other))


def ends_of(schema: Any, names: list[str]) -> Ends:
    """The fields of a buffer that end episodes, of the fields ``names``."""
    known = {field.name for field in schema.declared if field.can_end} & set(names)
    terminated, truncated = schema.terminated, schema.truncated
    if terminated is None:
        terminated = next((name for name in ("terminated", "done") if name in known), None)
    if truncated is None:
        truncated = "truncated" if "truncated" in known else None
    return Ends(terminated or None, truncated or None)


def _chosen(role: str, given: Names, names: list[str]) -> dict[str, Place]:
    """The fields that the caller names, with their paths."""
    chosen = [given] if isinstance(given, str) else list(given or ())
    unknown = [name for name in chosen if name not in names]
    if unknown:
        raise ValueError(f"{role}: expected fields of {names}, got {unknown}")
    return {name: () if len(chosen) == 1 else (name,) for name in chosen}


def _by_name(names: list[str], roots: Iterable[str]) -> dict[str, Place]:
    """The field with the first of these names, or its parts: ``obs.a``, ``obs/a``, ``obs0``."""
    for root in roots:
        if root in names:
            return {root: ()}
        parts = {}
        for name in names:
            found = re.fullmatch(rf"{root}(?:[./](.+)|([0-9]+))", name)
            if found:
                parts[name] = (found[2],) if found[1] is None else _split(found[1])
        if parts:
            paths = set(parts.values())
            through = any(path[:k] in paths for path in paths for k in range(1, len(path)))
            if through or len(paths) < len(parts):
                return {name: (name,) for name in parts}
            return parts
    return {}


def _split(rest: str) -> Place:
    path = tuple(re.split(r"[./]", rest))
    return path if all(path) else (rest,)


def _episodes_of(buffer: Any) -> Iterator[EpisodeRecord]:
    """Yield a record of each episode. The oldest ones may be cut, and the newest ones open."""
    listed = buffer.episodes.list()
    newest = {episode.env: k for k, episode in enumerate(listed)}
    seen: set[int] = set()
    for k, episode in enumerate(listed):
        has_ended = episode.terminated or episode.truncated or k != newest[episode.env]
        is_open = not has_ended and buffer.get_current_episode_len(episode.env) > 0
        if is_open:
            is_cut = episode.env not in seen and buffer.ring.first > 0
        else:
            is_cut = not episode.complete
        seen.add(episode.env)
        yield EpisodeRecord(episode.length, is_cut, is_open, env=episode.env)
