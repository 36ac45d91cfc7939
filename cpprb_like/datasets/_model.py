"""Model of a data set in any format: fields, their meaning, and episodes.

``Header`` describes a data set that is written or read; ``HeaderBuilder`` makes one of columns. Not
here: how a buffer becomes a header (``_from_buffer``) and back (``_open``).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import quote, unquote

import numpy as np

from cpprb_like._arguments.arrays import Array as Array  # noqa: PLC0414 (exported)
from cpprb_like._fields.field import Field as Field  # noqa: PLC0414 (exported)
from cpprb_like.datasets._ragged import nbytes_of

Rows = dict[str, Array]
Place = tuple[str, ...]  # path of a value in a nest: () for all of it
FLAG = np.dtype(np.bool_)
ENDS = ("terminated", "truncated")  # fields that readers make from flags of steps

OBS, ACT, REW = "obs", "act", "rew"
MOST_JSON_NBYTES = 1 << 28  # largest JSON document that is parsed


@dataclass(frozen=True)
class EpisodeRecord:
    """An episode of a data set.

    Attributes
    ----------
    length : int
        Its rows: steps, each with an action.
    is_cut : bool
        Whether rows before its first one may be missing, as a ring overwrote them.
    is_open : bool
        Whether it had not ended when it was written.
    env : int
        Its environment in a buffer that is written; 0 in a data set that is read.
    """

    length: int
    is_cut: bool = False
    is_open: bool = False
    env: int = 0


@dataclass(frozen=True)
class Ends:
    """Which fields end episodes, as ``ReplayBuffer`` reads them."""

    terminated: str | None = None
    truncated: str | None = None

    @property
    def is_done(self) -> bool:
        """Whether ``done`` is set by truncations too, so that it terminates only without one."""
        return self.terminated == "done" and self.truncated is not None

    @property
    def names(self) -> list[str]:
        """The names of the fields that are not None."""
        return [name for name in (self.terminated, self.truncated) if name is not None]

    def flags(self, rows: Mapping[str, Array], n: int) -> tuple[Array, Array]:
        """Which of n rows are terminated, and which are truncated, by their fields."""
        terminated, truncated = (
            np.zeros(n, np.bool_) if name is None else rows[name].reshape(n) != 0
            for name in (self.terminated, self.truncated)
        )
        return (terminated & ~truncated if self.is_done else terminated), truncated


@dataclass(frozen=True)
class Header:
    """A data set without its rows.

    ``chained`` maps an observation to the field of its next value, if that value is the observation
    of the row after, byte for byte. It has all observations, or none.
    """

    fields: tuple[Field, ...]
    episodes: tuple[EpisodeRecord, ...]  # by time of the first step
    observations: Mapping[str, Place] = field(default_factory=dict)  # path of each part
    actions: Mapping[str, Place] = field(default_factory=dict)
    reward: str | None = None
    chained: Mapping[str, str] = field(default_factory=dict)
    ends: Ends = field(default_factory=Ends)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the fields."""
        return tuple(field.name for field in self.fields)

    @property
    def rows(self) -> int:
        """Rows of all episodes."""
        return sum(episode.length for episode in self.episodes)

    @property
    def row_nbytes(self) -> int:
        """Bytes of a row in memory, without values of any length."""
        return sum(map(nbytes_of, self.fields))

    @property
    def nexts(self) -> dict[str, str]:
        """Field of the next value of each observation; none if one of them has no such field."""
        found = {name: self.following(name) for name in self.observations}
        nexts = {name: following for name, following in found.items() if following is not None}
        return nexts if len(nexts) == len(found) else {}

    def places(self, roles: Mapping[str, str], taken: Iterable[str] = ()) -> dict[str, Place]:
        """Path of the column of each field, without the fields that end episodes.

        ``roles`` are those of ``HeaderBuilder``. Next observations have columns if ``next_obs`` is
        a role, or if they are not the observations of the rows after. No column of an extra field
        has one of the names ``taken``.
        """
        columns = {role: column for column, role in roles.items()}
        made: dict[str, Place] = {}
        for role, parts in (("obs", self.observations), ("act", self.actions)):
            made |= {name: (columns[role], *map(key_of, path)) for name, path in parts.items()}
        derived = set(self.chained.values())
        if "next_obs" in columns:
            derived = set()
            for name, following in self.nexts.items():
                made[following] = (columns["next_obs"], *made[name][1:])
        if self.reward is not None:
            made[self.reward] = (columns["rew"],)
        used = {*roles, *taken}
        for name in self.names:
            if name not in (*made, *derived, *self.ends.names):
                key = key_of(name)
                while key in used:
                    key += "_"
                used.add(key)
                made[name] = (key,)
        return made

    def following(self, name: str) -> str | None:
        """The field of the next values of an observation, if there is one."""
        following = self.chained.get(name, f"next_{name}")
        if following not in self.names:
            return None
        one, other = (
            (field.dtype, field.shape, field.is_ragged, field.axis_at, field.is_text)
            for field in (self[name], self[following])
        )
        return following if one == other else None

    def stored(self, name: str) -> Field:
        """A field as formats store it: rewards are single numbers, of shape ()."""
        found = self[name]
        return Field(name, found.dtype, ()) if name == self.reward else found

    def __getitem__(self, name: str) -> Field:
        """A field, by name."""
        for found in self.fields:
            if found.name == name:
                return found
        raise KeyError(name)


def text_field(name: str) -> Field:
    """The field of texts of any length."""
    return Field(name, np.dtype(np.uint8), (0,), name, is_text=True)


def ragged_field(name: str, dtype: np.dtype[Any], shape: tuple[int, ...], at: int) -> Field:
    """The field of values whose axis ``at`` has any length. ``HeaderBuilder`` names the axis."""
    return Field(name, dtype, (*shape[:at], 0, *shape[at + 1 :]), name, at)


class HeaderBuilder:
    """Builder of the ``Header`` of a data set that is read, from its columns.

    ``roles`` maps the first part of a column's path to the name of a field. ``left_out`` receives
    each column that makes no field, with the reason; ``mark`` joins the parts of its path.
    """

    def __init__(
        self,
        roles: Mapping[str, str],
        left_out: list[str],
        *,
        derives_next: bool,  # next observations have no columns: the reader derives them
        reads_next: bool = False,  # a column with the name of a next observation replaces it
        made: Collection[str] = (),  # fields that the reader makes without columns
        mark: str = "/",
    ) -> None:
        self.fields: dict[str, Field] = {}
        self.places: dict[str, Place] = {}  # path of the column of each field
        self.seen: set[Place] = set()  # paths of all columns
        self._parts: dict[str, dict[str, Place]] = {OBS: {}, ACT: {}}
        self._roles, self._left_out = roles, left_out
        self._derives_next, self._reads_next = derives_next, reads_next
        self._made, self._mark = made, mark

    def add(self, paths: Iterable[Place], field_of: Callable[[Place, str], Field | str]) -> None:
        """Add columns. Columns whose first part is a role come first.

        ``field_of`` makes the field of a path and a name, or returns the reason why it cannot.
        """
        for path in sorted(paths, key=lambda path: path[0] not in self._roles):
            self.seen.add(path)
            role = self._roles.get(path[0], path[0])
            name = unquote(".".join((role, *path[1:])))
            if self._is_taken(name):
                self._left_out.append(f"{self._mark.join(path)} (another is {name!r})")
                continue
            field = field_of(path, name)
            if isinstance(field, str):
                self._left_out.append(f"{self._mark.join(path)} ({field})")
                continue
            self.fields[name], self.places[name] = field, path
            if path[0] in self._roles and role in self._parts:
                self._parts[role][name] = path[1:]

    def _is_taken(self, name: str) -> bool:
        """Whether a field has this name, or a derived next observation will have it."""
        is_next = self._derives_next and not self._reads_next
        is_next = is_next and name.removeprefix("next_") in self._parts[OBS]
        return name in self.fields or name in self._made or is_next

    def header(self) -> Header:
        """The header of all fields, without episodes."""
        observations, actions = self._parts[OBS], self._parts[ACT]
        fields, chained = dict(self.fields), {}
        if self._derives_next:
            nexts = {name: f"next_{name}" for name in observations}
            chained = {
                name: following for name, following in nexts.items() if following not in fields
            }
        for name, following in chained.items():
            fields[following] = replace(fields[name], name=following)
        for name in self._made:
            fields[name] = Field(name, FLAG, ())
        for name, one in fields.items():  # no file says which fields share an axis
            fields[name] = replace(one, axis=name) if one.is_ragged else one
        first = [*observations, *actions, REW, *chained.values(), *ENDS]
        names = dict.fromkeys([name for name in first if name in fields] + list(fields))
        can_end = [name for name in ("terminated", "done", "truncated") if name in fields]
        can_end = [name for name in can_end if fields[name].can_end]
        terminated = next((name for name in can_end if name != "truncated"), None)
        return Header(
            tuple(fields[name] for name in names),
            (),
            observations=observations,
            actions=actions,
            reward=REW if REW in fields else None,
            chained=chained,
            ends=Ends(terminated, "truncated" if "truncated" in can_end else None),
        )


def load_json(data: bytes | str, name: str) -> Any:
    """Parse a JSON document; ``ValueError`` if it is invalid or too large."""
    if len(data) > MOST_JSON_NBYTES:
        raise ValueError(f"{name}: expected at most {MOST_JSON_NBYTES} bytes, got {len(data)}")
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{name}: expected JSON: {error}") from None


# ---------------------------------------------------------------------- names and places


def key_of(name: str) -> str:
    """The name of a field as a valid name of a file, group or column: no slash, not only dots."""
    text = quote(name, safe=" .,:;!$()[]{}=@^~#+'&")
    return text.replace(".", "%2E") if set(text) <= {"."} else text


def nest(parts: Iterable[tuple[Place, Any]]) -> Any:
    """Values by path as nested dicts; a value of path () is the whole nest.

    Raises ``ValueError`` if a path goes through another value.
    """
    root: dict[str, Any] = {}
    for path, value in parts:
        if not path:
            if root:
                raise ValueError("a field is the whole of a nest that others are parts of")
            return value
        node = root
        for key in path[:-1]:
            node = node.setdefault(key, {})
            if not isinstance(node, dict):
                raise ValueError(f"{'.'.join(path)}: a part of what is no nest")
        if path[-1] in node:
            raise ValueError(f"{'.'.join(path)}: there twice")
        node[path[-1]] = value
    return root


def with_next(pieces: Iterable[Rows], chained: Mapping[str, str]) -> Iterator[Rows]:
    """The rows of an episode, given in pieces, with next values taken from the row after.

    ``chained`` maps a field to the field of its next value. The last row repeats its own value, as
    no row follows: see ``Reader.unknown``.
    """
    held: Rows | None = None  # the piece before, whose last next value is in this piece
    for rows in pieces:
        if held is not None:
            yield _with_next(held, rows, chained)
        held = rows
    if held is not None:
        yield _with_next(held, held, chained, is_last=True)


def _with_next(
    rows: Rows, after: Rows, chained: Mapping[str, str], *, is_last: bool = False
) -> Rows:
    made = dict(rows)
    for name, following in chained.items():
        values = rows[name]
        made[following] = np.concatenate([values[1:], values[-1:] if is_last else after[name][:1]])
    return made


def follow(nexts: Array, values: Array) -> Array:
    """For each pair of rows: whether all next values are the values of the row after.

    NaN are compared by their bytes. Floats of two sizes are compared in the smaller one.
    """
    kinds = {nexts.dtype.kind, values.dtype.kind}
    dtype = min(nexts.dtype, values.dtype, key=lambda one: one.itemsize)
    if kinds != {"f"}:
        dtype = np.result_type(nexts, values)
    with np.errstate(over="ignore"):
        one, other = (
            np.ascontiguousarray(found, dtype).reshape(len(found), -1) for found in (nexts, values)
        )
    is_same = one == other
    if dtype.kind == "f":
        words = f"u{dtype.itemsize}"
        is_same |= one.view(words) == other.view(words)
    same: Array = is_same.all(axis=1)
    return same


def episodes_of(
    is_first: Array, is_last: Array, *, is_cut: bool
) -> Iterator[tuple[EpisodeRecord, int]]:
    """The episodes in steps, of which each has one more than rows, with their first steps.

    A step after a last one begins an episode too. The first episode may be cut.
    """
    begins = is_first.copy()
    begins[1:] |= is_last[:-1]
    begins[:1] = True
    starts = np.flatnonzero(begins).tolist()
    for start, stop in zip(starts, [*starts[1:], len(is_first)], strict=True):
        is_open = not is_last[stop - 1]
        yield EpisodeRecord(stop - start - 1, is_cut and start == 0, is_open), start


def between_steps(steps: Rows, chained: Mapping[str, str], late: Container[str] = ()) -> Rows:
    """The n rows of an episode from its n + 1 steps.

    A field of ``late``, such as the reward, has its value for a row in the next step.
    """
    rows = {name: values[1:] if name in late else values[:-1] for name, values in steps.items()}
    return rows | {following: steps[name][1:] for name, following in chained.items()}


def as_one_stream(
    episodes: Sequence[EpisodeRecord], left_out: list[str]
) -> tuple[EpisodeRecord, ...]:
    """Episodes that a buffer of one environment can hold: only the oldest cut, the newest open.

    The numbers of other cut and open episodes are appended to ``left_out``.
    """
    cut = sum(episode.is_cut for episode in episodes[1:])
    if cut:
        left_out.append(f"that the first steps of {cut} episodes are lacking")
    open_ones = sum(episode.is_open for episode in episodes[:-1])
    if open_ones:
        left_out.append(
            f"that {open_ones} episodes before the newest have no end (they count as truncated)"
        )
    last = len(episodes) - 1
    return tuple(
        replace(one, is_cut=one.is_cut and k == 0, is_open=one.is_open and k == last)
        for k, one in enumerate(episodes)
    )
