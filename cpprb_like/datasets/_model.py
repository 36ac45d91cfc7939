"""What a data set is, whatever its format: fields, what each of them means, and the episodes.

``Header`` says it of a data set that is written or read; ``to_json`` and ``from_json`` are the
metadata that every writer of this room leaves beside the rows, so that what comes back is what was
written. Not here: how a buffer becomes a header (``_from_buffer``), and back (``_into_buffer``).
"""

from __future__ import annotations

import json
import re
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from cpprb_like._fields.schema import Field

__all__ = [
    "Array",
    "Ends",
    "EpisodeRecord",
    "Field",
    "Header",
    "Path",
    "Rows",
    "as_one_stream",
    "check_chained",
    "check_steps",
    "is_taken",
    "key_of",
    "load_json",
    "nest",
    "only_newest_open",
    "with_next",
]

Array = NDArray[Any]
Rows = dict[str, Array]
Path = tuple[str, ...]  # of a field in a nest: () for the whole of it

VERSION = 1
PLAIN_DTYPE = re.compile(r"[<>|=]?[biufcmMSUV][0-9]{1,7}(\[[0-9]{0,9}[a-zA-Z]{1,2}\])?")
MOST_JSON_NBYTES = 1 << 28
OPTIONS = ("terminated", "truncated", "next_of", "stack_compress")  # of a buffer


@dataclass(frozen=True)
class EpisodeRecord:
    """An episode of a data set.

    Attributes
    ----------
    env : int
        The environment that it is of, 0 to ``n_envs - 1``.
    length : int
        Its rows: steps, each with an action.
    is_cut : bool
        Whether rows before its first one may be missing, as a ring overwrote them.
    is_open : bool
        Whether it had not ended when it was written.
    seed : int or None
        That of its reset, where the format says it.
    """

    env: int
    length: int
    is_cut: bool = False
    is_open: bool = False
    seed: int | None = None


@dataclass(frozen=True)
class Ends:
    """Which fields end episodes, as ``ReplayBuffer`` reads them."""

    terminated: str | None = None
    truncated: str | None = None

    @property
    def is_done(self) -> bool:
        """Whether ``done`` stands for both, so that it terminates where nothing truncates."""
        return self.terminated == "done" and self.truncated is not None

    @property
    def names(self) -> list[str]:
        """The fields, as far as there are any."""
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
    """A data set, but for its rows.

    Attributes
    ----------
    fields : tuple of Field
        In declared order.
    episodes : tuple of EpisodeRecord
        In the order in which they were begun.
    n_envs : int
        Environments that stepped together.
    observations, actions : dict of str to tuple of str
        Fields that are observations or actions, or parts of them, and the path of each part.
    reward, terminated, truncated : str or None
        Fields that have the place of these in the format; each is equal to what stands there.
    chained : dict of str to str
        Fields of observations, and those of their next values, where these are the observations of
        the row after, byte for byte. So only the last of each episode has to be written.
    ends : Ends
        The fields that end episodes, whatever place they have.
    options : dict
        ``terminated``, ``truncated``, ``next_of``, ``stack_compress`` of the buffer.
    """

    fields: tuple[Field, ...]
    episodes: tuple[EpisodeRecord, ...]
    n_envs: int = 1
    observations: Mapping[str, Path] = field(default_factory=dict)
    actions: Mapping[str, Path] = field(default_factory=dict)
    reward: str | None = None
    terminated: str | None = None
    truncated: str | None = None
    chained: Mapping[str, str] = field(default_factory=dict)
    ends: Ends = field(default_factory=Ends)
    options: Mapping[str, Any] = field(default_factory=dict)

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
        """Bytes of a row in memory."""
        return sum(field.nbytes for field in self.fields)

    @property
    def extras(self) -> tuple[Field, ...]:
        """Fields that have no place of their own in a format: next values that are chained have."""
        placed = {
            *self.observations,
            *self.actions,
            *self.chained.values(),
            self.reward,
            self.terminated,
            self.truncated,
        }
        return tuple(field for field in self.fields if field.name not in placed)

    @property
    def nexts(self) -> dict[str, str]:
        """Field of the next value of each observation; none if one of them has no such field."""
        found = {name: self.following(name) for name in self.observations}
        nexts = {name: following for name, following in found.items() if following is not None}
        return nexts if len(nexts) == len(found) else {}

    def extra_keys(self, placed: Container[str], taken: Iterable[str] = ()) -> dict[str, str]:
        """A key for each field that is not placed and ends no episode; none of them is taken."""
        keys: dict[str, str] = {}
        used = set(taken)
        for name in self.names:
            if name not in placed and name not in self.ends.names:
                key = key_of(name)
                while key in used:
                    key += "_"
                used.add(key)
                keys[name] = key
        return keys

    def following(self, name: str) -> str | None:
        """The field of the next values of an observation, if there is one."""
        following = self.chained.get(name, f"next_{name}")
        if following not in self.names:
            return None
        one, other = self[name], self[following]
        return following if (one.dtype, one.shape) == (other.dtype, other.shape) else None

    def stored(self, name: str) -> Field:
        """A field as formats have it: rewards and end flags are one number, of shape ()."""
        found = self[name]
        if name in (self.reward, self.terminated, self.truncated):
            return Field(found.name, found.dtype, ())
        return found

    def __getitem__(self, name: str) -> Field:
        """A field, by name."""
        for found in self.fields:
            if found.name == name:
                return found
        raise KeyError(name)

    def last_flags(
        self, rows: Mapping[str, Array], n: int, episode: EpisodeRecord, *, is_last: bool
    ) -> tuple[Array, Array]:
        """Which of n rows are terminated and truncated.

        The last row of an episode that was ended from outside is truncated.
        """
        terminated, truncated = self.ends.flags(rows, n)
        if is_last and n and not episode.is_open and not (terminated[-1] or truncated[-1]):
            truncated = truncated.copy()
            truncated[-1] = True
        return terminated, truncated

    # ------------------------------------------------------------------ metadata

    def to_json(self) -> dict[str, Any]:
        """The same as JSON."""
        return {
            "version": VERSION,
            "fields": [[one.name, one.dtype.str, list(one.shape)] for one in self.fields],
            "n_envs": self.n_envs,
            "observations": {name: list(path) for name, path in self.observations.items()},
            "actions": {name: list(path) for name, path in self.actions.items()},
            "reward": self.reward,
            "terminated": self.terminated,
            "truncated": self.truncated,
            "chained": dict(self.chained),
            "ends": [self.ends.terminated, self.ends.truncated],
            "options": dict(self.options),
            "episodes": {
                "env": [one.env for one in self.episodes],
                "length": [one.length for one in self.episodes],
                "cut": [k for k, one in enumerate(self.episodes) if one.is_cut],
                "open": [k for k, one in enumerate(self.episodes) if one.is_open],
            },
        }

    @staticmethod
    def from_json(found: Any) -> Header:
        """What ``to_json`` wrote. ``ValueError`` says what is wrong with it."""
        if not isinstance(found, dict) or found.get("version") != VERSION:
            version = found.get("version") if isinstance(found, dict) else found
            raise ValueError(f"metadata: expected version {VERSION}, got {version!r}")
        try:
            header = _read(found)
        except (AttributeError, IndexError, KeyError, OverflowError, TypeError) as error:
            raise ValueError(f"metadata: {error!r}") from error
        _check(header)
        return header


def _read(found: dict[str, Any]) -> Header:
    fields = tuple(
        Field(_text(name), _dtype(name, dtype), tuple(map(_natural, shape)))
        for name, dtype, shape in found["fields"]
    )
    table = found["episodes"]
    envs, lengths = list(map(_natural, table["env"])), list(map(_natural, table["length"]))
    cut, still_open = set(map(_natural, table["cut"])), set(map(_natural, table["open"]))
    episodes = tuple(
        EpisodeRecord(env, length, k in cut, k in still_open)
        for k, (env, length) in enumerate(zip(envs, lengths, strict=True))
    )
    observations, actions = (
        {_text(name): tuple(map(_text, path)) for name, path in found[group].items()}
        for group in ("observations", "actions")
    )
    terminated, truncated = found["ends"]
    options = found["options"]
    return Header(
        fields,
        episodes,
        _natural(found["n_envs"]),
        observations,
        actions,
        reward=_text_or_none(found["reward"]),
        terminated=_text_or_none(found["terminated"]),
        truncated=_text_or_none(found["truncated"]),
        chained={_text(name): _text(following) for name, following in found["chained"].items()},
        ends=Ends(_text_or_none(terminated), _text_or_none(truncated)),
        options={key: options[key] for key in OPTIONS if key in options},
    )


def _check(header: Header) -> None:
    """Raise ``ValueError`` unless the parts of a header fit one another."""
    names = header.names
    if not names or len(set(names)) != len(names):
        raise ValueError(f"metadata: expected fields with a name of their own each, got {names}")
    used = [
        *header.observations,
        *header.actions,
        *header.chained,
        *header.chained.values(),
        *(header.reward, header.terminated, header.truncated),
        *header.ends.names,
    ]
    unknown = sorted({name for name in used if name is not None} - set(names))
    if unknown:
        raise ValueError(f"metadata: expected fields of {list(names)}, got {unknown}")
    for name, following in header.chained.items():
        one, other = header[name], header[following]
        if name not in header.observations or (one.dtype, one.shape) != (other.dtype, other.shape):
            raise ValueError(f"metadata: field {following!r} cannot be the next {name!r}")
    for name in header.ends.names:
        if not header[name].can_end:
            raise ValueError(f"metadata: field {name!r} cannot end episodes")
    for flag in (header.terminated, header.truncated):
        if flag is not None and (header[flag].dtype != np.bool_ or not header[flag].is_single):
            raise ValueError(f"metadata: field {flag!r}: expected one bool, got {header[flag]}")
    if header.n_envs < 1:
        raise ValueError(f"metadata: n_envs: expected at least 1, got {header.n_envs}")
    newest = {episode.env: k for k, episode in enumerate(header.episodes)}
    for k, episode in enumerate(header.episodes):
        if episode.env >= header.n_envs or episode.length < 1:
            raise ValueError(f"metadata: episode {k}: expected rows of an environment: {episode}")
        if episode.is_open and newest[episode.env] != k:
            raise ValueError(f"metadata: episode {k}: expected the newest one to be open")


def _natural(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 62:
        raise ValueError(f"metadata: expected an integer of at least 0, got {value!r}")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"metadata: expected a name, got {value!r}")
    return value


def _text_or_none(value: Any) -> str | None:
    return None if value is None else _text(value)


def _dtype(name: object, value: Any) -> np.dtype[Any]:
    if not isinstance(value, str) or not PLAIN_DTYPE.fullmatch(value):
        raise ValueError(f"metadata: field {name!r}: expected a dtype of numbers, got {value!r}")
    return np.dtype(value)


def load_json(data: bytes | str, name: str) -> Any:
    """A document of JSON; ``ValueError`` if it is none, or too large."""
    if len(data) > MOST_JSON_NBYTES:
        raise ValueError(f"{name}: expected at most {MOST_JSON_NBYTES} bytes, got {len(data)}")
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{name}: expected JSON: {error}") from None


# ---------------------------------------------------------------------- names and places


def key_of(name: str) -> str:
    """The name of a field as that of a file, a group or a column: no slash, no dots alone."""
    text = quote(name, safe=" .,:;!$()[]{}=@^~#+'&")
    return text.replace(".", "%2E") if set(text) <= {"."} else text


def nest(parts: Iterable[tuple[Path, Any]]) -> Any:
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


def is_taken(name: str, fields: Container[str], observations: Container[str]) -> bool:
    """Whether another field has a name, or the next values of one of these observations will."""
    return name in fields or name.removeprefix("next_") in observations


def with_next(rows: Rows, after: Rows | None, follows: Mapping[str, str]) -> Rows:
    """Rows of an episode with the next values of fields.

    ``after`` are the rows behind them, ``follows`` has the source of each next field. Without rows
    behind them, the last value is repeated: see ``Reader.unknown``.
    """
    made = dict(rows)
    for name, source in follows.items():
        last = rows[source][-1:] if after is None else after[source][:1]
        made[name] = np.concatenate([rows[source][1:], last])
    return made


def only_newest_open(
    episodes: Sequence[EpisodeRecord], left_out: list[str]
) -> tuple[EpisodeRecord, ...]:
    """The episodes of one environment as a buffer has them: what is not its newest one has ended.

    Where nothing in the files ends one, ``left_out`` is told how many these are.
    """
    count = sum(episode.is_open for episode in episodes[:-1])
    if count:
        left_out.append(
            f"that {count} episodes before the newest have no end (they count as truncated)"
        )
    ended = (replace(episode, is_open=False) for episode in episodes[:-1])
    return (*ended, *episodes[-1:])


def as_one_stream(
    episodes: Sequence[EpisodeRecord], left_out: list[str]
) -> tuple[EpisodeRecord, ...]:
    """Episodes as a buffer of one environment has them: the oldest may be cut, the newest open.

    What is cut or open in others is appended to ``left_out``.
    """
    cut = sum(episode.is_cut for episode in episodes[1:])
    if cut:
        left_out.append(f"that the first steps of {cut} episodes are lacking")
    whole = (replace(episode, is_cut=False) for episode in episodes[1:])
    return only_newest_open((*episodes[:1], *whole), left_out)


def check_chained(header: Header, format: str) -> None:  # noqa: A002 (the word that users know)
    """Raise ``ValueError`` unless next observations are the observations of the rows after.

    For formats with one observation more than there are steps.
    """
    if header.chained.keys() != header.observations.keys():
        raise ValueError(
            f"{format}: expected next observations that are the observations of the rows after, as "
            f"each step has one observation; {list(header.nexts.values())} differ somewhere; "
            "formats 'd4rl', 'rllib' and 'lerobot' hold both"
        )


def check_steps(header: Header, format: str) -> None:  # noqa: A002 (the word that users know)
    """Raise ``ValueError`` unless there are observations with final ones, actions and rewards.

    For formats with one observation more than there are steps.
    """
    for role, found in (
        ("observation", header.observations),
        ("action", header.actions),
        ("reward", header.reward),
    ):
        if not found:
            raise ValueError(
                f"{format}: expected a field of {role}s; {role}=... names it, one of "
                f"{list(header.names)}"
            )
    lacking = [name for name in header.observations if header.following(name) is None]
    if lacking:
        raise ValueError(
            f"{format}: expected fields {[f'next_{name}' for name in lacking]} of the same dtype "
            f"and shape as {lacking}, as each episode has its final observation; formats 'd4rl', "
            "'rllib' and 'lerobot' need none"
        )
