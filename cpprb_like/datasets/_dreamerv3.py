"""DreamerV3: chunks of a stream as ``.npz`` files, each of which names the one that follows it.

``{time}-{uuid}-{succ}-{length}.npz`` has an array for each key: the parts of the observation by
name, ``action``, ``reward``, ``is_first``, ``is_last`` and ``is_terminal``. A step has the
observation, the reward that came with it and the action that was taken then, so an episode of n
rows is n + 1 steps, of which the last has an action without meaning, zeros. What has no key of its
own is ``log_`` and its name, which DreamerV3 passes over. Our metadata are ``cpprb_like.json``.

NumPy alone is needed. Files are read as ``checkpoint`` reads those of cpprb: nothing is unpickled.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from cpprb_like._machine.byte_order import native
from cpprb_like.checkpoint._disk import Disk
from cpprb_like.checkpoint._npz import Archive
from cpprb_like.datasets._files import as_bytes, from_bytes, is_native
from cpprb_like.datasets._format import Format, Reader, Writer
from cpprb_like.datasets._from_buffer import rows_in_chunk
from cpprb_like.datasets._model import (
    Array,
    Ends,
    EpisodeRecord,
    Field,
    Header,
    Rows,
    check_steps,
    key_of,
    load_json,
    only_newest_open,
)
from cpprb_like.datasets._model import Path as Parts

__all__ = ["FORMAT", "DreamerReader", "DreamerWriter"]

NAME = "dreamerv3"
METADATA = "cpprb_like.json"
FILE = re.compile(r"([0-9TF]+)-([0-9A-Za-z]+)-([0-9A-Za-z]+)-([0-9]{1,9})\.npz")
DIGITS = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
NOBODY = "0" * 22
CHUNK_STEPS = 1024
FLAGS = ("is_first", "is_last", "is_terminal")
LOG = "log_"
IDS = ("id", "stepid")  # with which its replay buffers of all versions name a step
FLAG = np.dtype(np.bool_)


def _keys(header: Header) -> dict[str, str]:
    """The key of each field, but for those that are made of others."""
    keys = {name: _key(name, path) for name, path in header.observations.items()}
    keys |= {name: key_of(name) for name in header.actions}
    if len(header.actions) == 1:
        keys[next(iter(header.actions))] = "action"
    if header.reward is not None:
        keys[header.reward] = "reward"
    for field in header.extras:
        if field.nbytes:
            keys[field.name] = LOG + key_of(field.name)
    if header.truncated is not None:  # is_last cannot tell it of a step that is terminal too
        keys[header.truncated] = LOG + key_of(header.truncated)
    taken = [*keys.values(), *FLAGS]
    if len(set(taken)) != len(taken):
        raise ValueError(f"{NAME}: expected fields with other names than {sorted(FLAGS)}")
    return keys


def _key(name: str, path: Parts) -> str:
    """That of a part of the observation, which DreamerV3 finds by the name of the part alone.

    The whole name of the field if it would be taken for something else, as that of a number.
    """
    key = key_of(".".join(path))
    is_taken = key in {"action", "reward", *FLAGS, *IDS} or key.startswith(LOG) or key[:1].isdigit()
    return key_of(name) if not path or is_taken else key


# ---------------------------------------------------------------------- writing


class DreamerWriter(Writer):
    """Writes a folder of DreamerV3's chunks."""

    def __init__(self, path: Path, header: Header, about: Mapping[str, Any]) -> None:
        self._folder, self._header, self._about = path, header, dict(about)
        self._keys = _keys(header)
        nbytes = sum(header[name].nbytes for name in self._keys)
        self._size = min(CHUNK_STEPS, rows_in_chunk(nbytes, header.n_envs))
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
            steps = {key: _stored(rows[name], header[name]) for name, key in self._keys.items()}
            steps["reward"] = rewards[:-1]
            steps |= _flags(terminated[:-1], truncated[:-1], first=at == count)
            self._append(stream, steps)
            reward, ends = rewards[-1:], (terminated[-1:], truncated[-1:])
            last = {name: values[-1:] for name, values in rows.items()}
        steps = {}
        for name, key in self._keys.items():
            following = header.following(name) if name in header.observations else None
            values = last[name if following is None else following]
            steps[key] = _stored(values if following else np.zeros_like(values), header[name])
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
        arrays = {key: np.concatenate(pieces) for key, pieces in stream.pieces.items()}
        with (self._folder / name).open("xb") as file:
            np.savez_compressed(file, allow_pickle=False, **arrays)
        stream.begin(following)

    def close(self) -> None:
        """Write the newest chunk of each stream, and the metadata."""
        for stream in self._streams.values():
            self._save(stream, following=NOBODY)
        found = {
            **self._about,
            "cpprb_like": self._header.to_json(),
            "cpprb_like_streams": {stream.first: env for env, stream in self._streams.items()},
        }
        (self._folder / METADATA).write_text(json.dumps(found), encoding="utf-8")


class _Stream:
    """The steps of a chunk that is not full yet."""

    def __init__(self) -> None:
        self.first = _uuid()
        self.begin(self.first)

    def begin(self, uuid: str) -> None:
        """Begin a chunk."""
        self.uuid = uuid
        self.length = 0
        self.pieces: dict[str, list[Array]] = {}

    def append(self, steps: Rows, n: int) -> None:
        """Add n steps. They are copied, as the arrays belong to somebody else."""
        for key, values in steps.items():
            self.pieces.setdefault(key, []).append(values.copy())
        self.length += n


def _uuid() -> str:
    """A name of 22 letters that nobody has, as DreamerV3 writes them."""
    number, letters = int.from_bytes(os.urandom(16), "big"), ""
    for _ in range(22):
        number, digit = divmod(number, 62)
        letters = DIGITS[digit] + letters
    return letters


def _flags(terminated: Array, truncated: Array, *, first: bool) -> Rows:
    is_first = np.zeros(len(terminated), FLAG)
    is_first[:1] = first
    return {"is_first": is_first, "is_last": terminated | truncated, "is_terminal": terminated}


def _stored(values: Array, field: Field) -> Array:
    return values if is_native(field.dtype) else as_bytes(values)


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
    """Reads a folder of DreamerV3's chunks, ours or another."""

    header: Header

    def __init__(self, path: Path) -> None:
        self._folder = path
        self.left_out: list[str] = []
        self._streams = list(_chains(path))
        self._starts = [
            np.cumsum([0, *(chunk.length for chunk in stream)]).tolist() for stream in self._streams
        ]
        self._cached: dict[int, tuple[Path, Rows]] = {}
        spans = list(self._find_episodes())
        metadata = path / METADATA
        if metadata.is_file():
            self._read_ours(metadata, [span for span, _, _ in spans])
        else:
            self._read_foreign(spans)

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
            begins[1:] |= is_last[:-1]  # what comes after an end is another episode, told or not
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

    def _read_ours(self, path: Path, spans: list[_Span]) -> None:
        found = load_json(path.read_bytes(), str(path))
        try:
            self.header = header = Header.from_json(found["cpprb_like"])
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{path}: expected our metadata: {error}") from None
        self._keys = _keys(header)
        envs = list(dict.fromkeys(episode.env for episode in header.episodes))
        waiting: dict[int, list[_Span]] = {env: [] for env in envs}
        order = {self._streams[k][0].uuid: k for k in range(len(self._streams))}
        of_stream = {order[uuid]: env for uuid, env in self._envs(envs).items()}
        for span in spans:
            waiting[of_stream[span.stream]].append(span)
        try:
            self._spans = [waiting[episode.env].pop(0) for episode in header.episodes]
        except IndexError:
            raise ValueError(f"{path}: expected {len(header.episodes)} episodes") from None
        lengths = [span.length for span in self._spans]
        expected = [episode.length for episode in header.episodes]
        if lengths != expected or any(waiting.values()):
            raise ValueError(f"{path}: expected episodes of {expected} rows, got {lengths}")

    def _envs(self, envs: list[int]) -> dict[str, int]:
        """The environment of each stream, by the name of its first chunk."""
        found = load_json((self._folder / METADATA).read_bytes(), METADATA)
        streams = found.get("cpprb_like_streams")
        firsts = {stream[0].uuid for stream in self._streams}
        if not isinstance(streams, dict) or set(streams) != firsts:
            raise ValueError(f"{self._folder}: expected streams {streams}, got {sorted(firsts)}")
        if sorted(streams.values()) != sorted(envs):
            raise ValueError(f"{self._folder}: expected streams of {envs}, got {streams}")
        return dict(streams)

    def _read_foreign(self, spans: list[tuple[_Span, bool, bool]]) -> None:
        if not spans:
            raise ValueError(f"{self._folder}: expected an episode with rows, got none")
        first = self._streams[spans[0][0].stream][0]
        observations: dict[str, Field] = {}
        others: dict[str, Field] = {}
        self._keys = {}
        with _opened(first.path) as archive:
            for member in archive.names:
                key = member.removesuffix(".npy")
                if key in FLAGS:
                    continue
                values = _array(archive, key, first.length)
                name = {"action": "act", "reward": "rew"}.get(key, f"obs.{key}")
                if key.startswith(LOG) or key in IDS:
                    name = key
                field = Field(name, values.dtype, values.shape[1:])
                (observations if name.startswith("obs.") else others)[name] = field
                self._keys[name] = key
        chained = {name: f"next_{name}" for name in observations}
        nexts = [replace(field, name=chained[name]) for name, field in observations.items()]
        flags = [Field(name, FLAG, ()) for name in ("terminated", "truncated")]
        cut = sum(is_cut for _, is_cut, _ in spans[1:])
        if cut:  # a buffer of one environment tells it of its oldest episode only
            self.left_out.append(f"that the first steps of {cut} episodes are lacking")
        episodes = [EpisodeRecord(0, span.length, *told) for span, *told in spans]
        self._spans = [span for span, _, _ in spans]
        self.header = Header(
            (*observations.values(), *others.values(), *nexts, *flags),
            only_newest_open(episodes, self.left_out),
            observations={name: (self._keys[name],) for name in observations},
            actions={"act": ()} if "act" in others else {},
            reward="rew" if "rew" in others else None,
            terminated="terminated",
            truncated="truncated",
            chained=chained,
            ends=Ends("terminated", "truncated"),
        )

    # ------------------------------------------------------------------ rows

    def _load(self, stream: int, chunk: _Chunk) -> Rows:
        """The arrays of a chunk; the last one of each stream is kept."""
        kept = self._cached.get(stream)
        if kept is not None and kept[0] == chunk.path:
            return kept[1]
        with _opened(chunk.path) as archive:
            keys = [*self._keys.values(), "reward", *FLAGS]
            there = {name.removesuffix(".npy") for name in archive.names}
            rows = {
                key: _array(archive, key, chunk.length)
                for key in dict.fromkeys(keys)
                if key != "reward" or key in there
            }
        self._cached[stream] = chunk.path, rows
        return rows

    def _steps(self, stream: int, start: int, stop: int) -> Rows:
        """Some steps of a stream."""
        pieces: dict[str, list[Array]] = {}
        starts = self._starts[stream]
        k = int(np.searchsorted(starts, start, side="right")) - 1
        while start < stop:
            chunk = self._streams[stream][k]
            end = min(stop, starts[k + 1])
            for key, values in self._load(stream, chunk).items():
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
                values = _checked(steps[key], header[name], name == header.reward, self._folder)
                rows[name] = values[1:] if name == header.reward else values[:-1]
                if name in header.chained:
                    rows[header.chained[name]] = values[1:]
            is_last, is_terminal = (steps[key][1:].reshape(n) != 0 for key in FLAGS[1:])
            for flag, values in (
                (header.terminated, is_terminal),
                (header.truncated, is_last & ~is_terminal),
            ):
                if flag is not None and flag not in self._keys:
                    rows[flag] = values.reshape(n, *header[flag].shape)
            yield rows

    def close(self) -> None:
        """Forget the chunks that were read."""
        self._cached.clear()


def _checked(values: Array, field: Field, is_reward: bool, folder: Path) -> Array:
    """Values of a field; ``ValueError`` if they are others."""
    n = len(values)
    shape: tuple[int, ...] = field.shape
    dtype = field.dtype
    if not is_native(dtype):
        shape, dtype = (*shape, dtype.itemsize), np.dtype(np.uint8)
    if values.dtype != dtype or (values.shape[1:] != shape and not is_reward):
        raise ValueError(
            f"{folder}: field {field.name!r}: expected {dtype} of shape {shape}, got "
            f"{values.dtype} of shape {values.shape[1:]}"
        )
    if not is_native(field.dtype):
        return from_bytes(values, field.dtype)
    return values.reshape(n, *field.shape)


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

    def told_by(self, path: Path) -> bool:
        """Whether a path is one of this format."""
        return path.is_dir() and any(FILE.fullmatch(name) for name in os.listdir(path))  # noqa: PTH208

    def check(self, header: Header) -> None:
        """Observations with final ones, actions and rewards are needed."""
        check_steps(header, NAME)

    def open_writer(self, path: Path, header: Header, about: Mapping[str, Any]) -> DreamerWriter:
        """A writer of this format."""
        return DreamerWriter(path, header, about)

    def open_reader(self, path: Path) -> DreamerReader:
        """A reader of this format."""
        return DreamerReader(path)


FORMAT = DreamerV3()
