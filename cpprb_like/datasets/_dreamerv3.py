"""DreamerV3: chunks of a stream as ``.npz`` files, each of which names the one that follows it.

``{time}-{uuid}-{succ}-{length}.npz`` has an array for each key: the parts of the observation by
name, ``action``, ``reward``, ``is_first``, ``is_last`` and ``is_terminal``. A step has the
observation, the reward that came with it and the action that was taken then, so an episode of n
rows is n + 1 steps, of which the last has an action without meaning, zeros. An extra field is
``log_`` and its name, which DreamerV3 passes over. Parts of an action are ``action.NAME``.

NumPy alone is needed. Files are read as ``checkpoint`` reads those of cpprb: nothing is unpickled.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from cpprb_like._machine.byte_order import native
from cpprb_like.checkpoint._disk import Disk
from cpprb_like.checkpoint._npz import Archive
from cpprb_like.datasets._format import BOTH, Format, Reader, Writer
from cpprb_like.datasets._from_buffer import rows_in_chunk
from cpprb_like.datasets._header_builder import HeaderBuilder
from cpprb_like.datasets._model import (
    Array,
    EpisodeRecord,
    Field,
    Header,
    Rows,
    as_one_stream,
    key_of,
)
from cpprb_like.datasets._model import Path as Parts

__all__ = ["FORMAT", "DreamerReader", "DreamerWriter"]

NAME = "dreamerv3"
FILE = re.compile(r"([0-9TF]+)-([0-9A-Za-z]+)-([0-9A-Za-z]+)-([0-9]{1,9})\.npz")
DIGITS = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
NOBODY = "0" * 22
CHUNK_STEPS = 1024
FLAGS = ("is_first", "is_last", "is_terminal")
LOG = "log_"
OBS, ACTION, REWARD = "obs", "action", "reward"
ROLES = {OBS: "obs", ACTION: "act", REWARD: "rew"}
ENDS = ("terminated", "truncated")
IDS = ("id", "stepid")  # with which its replay buffers of all versions name a step
FLAG = np.dtype(np.bool_)


def _keys(header: Header) -> dict[str, str]:
    """The key of each field, except of next observations and of the fields that end episodes."""
    keys = {name: _key(name, path) for name, path in header.observations.items()}
    for name, path in header.actions.items():
        keys[name] = ".".join((ACTION, *map(key_of, path)))
    if header.reward is not None:
        keys[header.reward] = REWARD
    extras = header.extra_keys({*keys, *header.chained.values()})
    keys |= {name: LOG + key.removeprefix(LOG) for name, key in extras.items()}
    taken = [*keys.values(), *FLAGS]
    if len(set(taken)) != len(taken):
        raise ValueError(f"{NAME}: expected a key of its own for each field, got {keys}")
    return keys


def _key(name: str, path: Parts) -> str:
    """The key of an observation, which DreamerV3 finds by the name of the part alone.

    A name that would be taken for something else, such as that of a number, begins with ``obs.``.
    """
    key = key_of(".".join(path) if path else name)
    is_other = key in {ACTION, REWARD, *FLAGS, *IDS} or key.startswith((LOG, f"{ACTION}."))
    if is_other or key[:1].isdigit() or (path and key.split(".")[0] == OBS):
        return f"{OBS}.{key}"
    return key


def _path(key: str, keys: Iterable[str]) -> Parts:
    """The path of a key, whose first part is one of ``ROLES``, or the key of another field."""
    if key == REWARD or key in IDS or key.startswith(LOG):
        return (key,)
    first, *rest = key.split(".")
    if first in (OBS, ACTION) and (rest or first == ACTION):
        return (first, *rest)
    others = [other for other in keys if other not in FLAGS and _path(other, ())[0] == OBS]
    return (OBS,) if key == OBS and len(others) == 1 else (OBS, key)


# ---------------------------------------------------------------------- writing


class DreamerWriter(Writer):
    """Writes a folder of DreamerV3's chunks."""

    def __init__(self, path: Path, header: Header, about: Mapping[str, Any]) -> None:
        del about
        self._folder, self._header = path, header
        self._keys = _keys(header)
        nbytes = sum(header[name].nbytes for name in self._keys)
        self._size = min(
            CHUNK_STEPS, rows_in_chunk(nbytes, len({one.env for one in header.episodes}))
        )
        self._streams: dict[int, _Stream] = {}
        self._time = datetime.now()

    def episode(self, number: int, record: EpisodeRecord, chunks: Iterator[Rows]) -> None:
        """Write the steps of an episode behind those of its environment."""
        del number
        header, n = self._header, record.length
        stream = self._streams.setdefault(record.env, _Stream())
        reward = np.zeros(1, header[str(header.reward)].dtype)
        ends = np.zeros(1, FLAG), np.zeros(1, FLAG)
        at = 0
        last: Rows = {}
        for rows in chunks:
            count = len(next(iter(rows.values())))
            at += count
            rewards = np.concatenate([reward, rows[str(header.reward)].reshape(count)])
            flags = header.last_flags(rows, count, record, is_last=at == n)
            terminated, truncated = (np.concatenate(pair) for pair in zip(ends, flags, strict=True))
            steps = {key: rows[name] for name, key in self._keys.items()}
            steps["reward"] = rewards[:-1]
            steps |= _flags(
                terminated[:-1], truncated[:-1], first=at == count and not record.is_cut
            )
            self._append(stream, steps)
            reward, ends = rewards[-1:], (terminated[-1:], truncated[-1:])
            last = {name: values[-1:] for name, values in rows.items()}
        steps = {}
        for name, key in self._keys.items():
            following = header.chained.get(name)
            steps[key] = np.zeros_like(last[name]) if following is None else last[following]
        steps["reward"] = reward
        self._append(stream, steps | _flags(*ends, first=False))

    def _append(self, stream: _Stream, steps: Rows) -> None:
        n, at = len(steps["reward"]), 0
        while at < n:
            if stream.length == self._size:
                self._save(stream, following=_uuid())
            count = min(n - at, self._size - stream.length)
            stream.append({key: values[at : at + count] for key, values in steps.items()}, count)
            at += count

    def _save(self, stream: _Stream, following: str) -> None:
        self._time += timedelta(microseconds=1)
        time = self._time.strftime("%Y%m%dT%H%M%SF%f")
        name = f"{time}-{stream.uuid}-{following}-{stream.length}.npz"
        arrays: dict[str, Any] = {k: np.concatenate(pieces) for k, pieces in stream.pieces.items()}
        with (self._folder / name).open("xb") as file:
            np.savez_compressed(file, **arrays)  # numbers: NumPy 1.26 has no allow_pickle here
        stream.begin(following)

    def close(self) -> None:
        """Write the newest chunk of each stream."""
        for stream in self._streams.values():
            self._save(stream, following=NOBODY)


class _Stream:
    """The steps of a chunk that is not full yet."""

    def __init__(self) -> None:
        self.begin(_uuid())

    def begin(self, uuid: str) -> None:
        """Begin a chunk."""
        self.uuid = uuid
        self.length = 0
        self.pieces: dict[str, list[Array]] = {}

    def append(self, steps: Rows, n: int) -> None:
        """Add copies of n steps, as the caller may reuse the arrays."""
        for key, values in steps.items():
            self.pieces.setdefault(key, []).append(values.copy())
        self.length += n


def _uuid() -> str:
    """A new name of 22 letters, as DreamerV3 writes them."""
    number, letters = int.from_bytes(os.urandom(16), "big"), ""
    for _ in range(22):
        number, digit = divmod(number, 62)
        letters = DIGITS[digit] + letters
    return letters


def _flags(terminated: Array, truncated: Array, *, first: bool) -> Rows:
    is_first = np.zeros(len(terminated), FLAG)
    is_first[:1] = first
    return {"is_first": is_first, "is_last": terminated | truncated, "is_terminal": terminated}


# ---------------------------------------------------------------------- reading


class _Chunk(NamedTuple):
    """A file, by its name."""

    time: str
    uuid: str
    following: str
    length: int
    path: Path


class _Span(NamedTuple):
    """Where an episode is: its stream, its first step there, and how many rows it has."""

    stream: int
    start: int
    length: int


@contextmanager
def _opened(path: Path) -> Iterator[Archive]:
    """The arrays of a file; ``ValueError`` that names it if they are damaged."""
    with Disk(path.parent).open(path.name) as file:
        try:
            yield Archive(file)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error


def _array(archive: Archive, key: str, length: int) -> Array:
    """An array of ``length`` steps, in the machine's byte order."""
    found: Array = archive.read(f"{key}.npy")
    if found.dtype.kind not in "biuf" or (found.ndim > 1 and not found.flags.c_contiguous):
        raise ValueError(f"{key!r}: expected numbers in C order, got {found.dtype}")
    if found.shape[:1] != (length,) and not (found.ndim and len(found) > length):
        raise ValueError(f"{key!r}: expected {length} steps, got an array of shape {found.shape}")
    return found[:length].astype(native(found.dtype))


class DreamerReader(Reader):
    """Reads a folder of DreamerV3's chunks."""

    header: Header

    def __init__(self, path: Path) -> None:
        self._folder = path
        self.left_out: list[str] = []
        self._streams = list(_chains(path))
        self._starts = [
            np.cumsum([0, *(chunk.length for chunk in stream)]).tolist() for stream in self._streams
        ]
        self._cached: tuple[Path, Rows] | None = None
        self.header = self._read_header()

    def _find_episodes(self) -> Iterator[tuple[_Span, bool, bool]]:
        """Where the flags say that episodes are; whether each is cut, and whether it is open."""
        for number, stream in enumerate(self._streams):
            flags: list[list[Array]] = [[], []]
            for chunk in stream:
                with _opened(chunk.path) as archive:
                    for found, key in zip(flags, FLAGS, strict=False):
                        found.append(_array(archive, key, chunk.length).reshape(chunk.length) != 0)
            is_first, is_last = (np.concatenate(found) for found in flags)
            begins = is_first.copy()
            begins[1:] |= is_last[:-1]  # with or without is_first
            begins[:1] = True
            starts = np.flatnonzero(begins).tolist()
            is_cut = not is_first[:1].any()
            for k, (start, stop) in enumerate(
                zip(starts, [*starts[1:], len(is_first)], strict=True)
            ):
                if stop - start > 1:  # else there is one observation, and nothing came of it
                    yield (
                        _Span(number, start, stop - start - 1),
                        is_cut and k == 0,
                        not is_last[stop - 1],
                    )

    def _read_header(self) -> Header:
        spans = list(self._find_episodes())
        if not spans:
            raise ValueError(f"{self._folder}: expected an episode with rows, got none")
        first = self._streams[spans[0][0].stream][0]
        with _opened(first.path) as archive:
            keys = [name.removesuffix(".npy") for name in archive.names]
            paths = {_path(key, keys): key for key in keys if key not in FLAGS}

            def field_of(path: Parts, name: str) -> Field:
                values = _array(archive, paths[path], first.length)
                return Field(name, values.dtype, values.shape[1:])

            builder = HeaderBuilder(ROLES, self.left_out, makes_next=True, made=ENDS)
            builder.add(paths, field_of)
        self._keys = {name: paths[path] for name, path in builder.places.items()}
        self._spans = [span for span, _, _ in spans]
        episodes = [EpisodeRecord(span.length, *marks) for span, *marks in spans]
        return replace(builder.header(), episodes=as_one_stream(episodes, self.left_out))

    # ------------------------------------------------------------------ rows

    def _load(self, chunk: _Chunk) -> Rows:
        """The arrays of a chunk; the last one stays in memory."""
        if self._cached is None or self._cached[0] != chunk.path:
            with _opened(chunk.path) as archive:
                keys = [*self._keys.values(), *FLAGS]
                rows = {key: _array(archive, key, chunk.length) for key in keys}
            self._cached = chunk.path, rows
        return self._cached[1]

    def _steps(self, stream: int, start: int, stop: int) -> Rows:
        """Some steps of a stream."""
        pieces: dict[str, list[Array]] = {}
        starts = self._starts[stream]
        k = int(np.searchsorted(starts, start, side="right")) - 1
        while start < stop:
            chunk = self._streams[stream][k]
            end = min(stop, starts[k + 1])
            for key, values in self._load(chunk).items():
                pieces.setdefault(key, []).append(values[start - starts[k] : end - starts[k]])
            start, k = end, k + 1
        try:
            return {key: np.concatenate(found) for key, found in pieces.items()}
        except ValueError as error:
            raise ValueError(f"{self._folder}: chunks differ: {error}") from None

    def rows(self, number: int, most: int) -> Iterator[Rows]:
        """The rows of an episode."""
        header, span = self.header, self._spans[number]
        for start in range(0, span.length, most):
            n = min(most, span.length - start)
            first = span.start + start
            steps = self._steps(span.stream, first, first + n + 1)
            rows = {}
            for name, key in self._keys.items():
                values, field = steps[key], header[name]
                if (values.dtype, values.shape[1:]) != (field.dtype, field.shape):
                    raise ValueError(
                        f"{self._folder}: field {name!r}: expected {field.dtype} of shape "
                        f"{field.shape}, got {values.dtype} of shape {values.shape[1:]}"
                    )
                rows[name] = values[1:] if name == header.reward else values[:-1]
                if name in header.chained:
                    rows[header.chained[name]] = values[1:]
            is_last, is_terminal = (steps[key][1:].reshape(n) != 0 for key in FLAGS[1:])
            rows |= dict(zip(ENDS, (is_terminal, is_last & ~is_terminal), strict=True))
            yield rows

    def close(self) -> None:
        """Forget the chunk that was read."""
        self._cached = None


def _chains(folder: Path) -> Iterator[list[_Chunk]]:
    """The chunks of each stream, by who follows whom, oldest stream first."""
    chunks = {}
    for path in sorted(folder.iterdir()):
        found = FILE.fullmatch(path.name)
        if found and path.is_file():
            chunk = _Chunk(found[1], found[2], found[3], int(found[4]), path)
            if chunk.uuid in chunks:
                raise ValueError(f"{path}: expected one chunk of this name, got two")
            chunks[chunk.uuid] = chunk
    if not chunks:
        raise ValueError(f"{folder}: expected chunks as DreamerV3 names them, got none")
    following = {chunk.following for chunk in chunks.values()}
    left = set(chunks)
    for uuid, chunk in chunks.items():
        if uuid in following:
            continue
        chain: list[_Chunk] = []
        step: _Chunk | None = chunk
        while step is not None and step.uuid in left:
            left.discard(step.uuid)
            chain.append(step)
            step = chunks.get(step.following)
        yield chain
    if left:
        raise ValueError(f"{folder}: expected chunks in a row, got a circle of {sorted(left)}")


class DreamerV3(Format):
    """See ``Format``."""

    name = NAME
    reader, writer = DreamerReader, DreamerWriter
    has_final = True
    keys = ()
    lacks = (BOTH,)

    def told_by(self, path: Path) -> bool:
        """Whether a path is one of this format."""
        return path.is_dir() and any(FILE.fullmatch(name) for name in os.listdir(path))  # noqa: PTH208


FORMAT = DreamerV3()
