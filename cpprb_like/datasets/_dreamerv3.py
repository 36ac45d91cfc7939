"""DreamerV3: chunks of a stream as ``.npz`` files, each of which names its successor.

``{time}-{uuid}-{succ}-{length}.npz`` has an array for each key: the parts of the observation by
name, ``action``, ``reward``, ``is_first``, ``is_last`` and ``is_terminal``. A step has the
observation, the reward that came with it and the action that was taken then. So an episode of n
rows is n + 1 steps, and the action of the last step is zeros. An extra field has the key
``log_NAME``, which DreamerV3 ignores. Parts of an action are ``action.NAME``.

NumPy alone is needed. Files are read by the reader of cpprb's files (``checkpoint``), which
unpickles nothing.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import numpy as np

from cpprb_like._machine.byte_order import native
from cpprb_like._machine.opening import open_regular
from cpprb_like.checkpoint._npz import Archive
from cpprb_like.datasets._files import reading
from cpprb_like.datasets._format import BOTH, LISTS, TEXTS, Format, Reader, Steps, Writer
from cpprb_like.datasets._from_buffer import rows_in_chunk
from cpprb_like.datasets._model import (
    ENDS,
    FLAG,
    Array,
    EpisodeRecord,
    Field,
    Header,
    HeaderBuilder,
    Place,
    Rows,
    between_steps,
    episodes_of,
    key_of,
)

NAME = "dreamerv3"
FILE = re.compile(r"([0-9TF]+)-([0-9A-Za-z]+)-([0-9A-Za-z]+)-([0-9]{1,9})\.npz")
NO_CHUNK = "0" * 22  # the successor that the newest chunk of a stream names
CHUNK_STEPS = 1024
FLAGS = ("is_first", "is_last", "is_terminal")
LOG = "log_"
OBS, ACTION, REWARD = "obs", "action", "reward"
ROLES = {OBS: "obs", ACTION: "act", REWARD: "rew"}
IDS = ("id", "stepid")  # keys of a step's identity in DreamerV3's buffers of all versions


def _places(header: Header) -> dict[str, Place]:
    """The key of each field, as a path of one part."""
    places: dict[str, Place] = {}
    for name, path in header.places(ROLES).items():
        if name in header.observations:
            places[name] = (_key(name, header.observations[name]),)
        elif path[0] in ROLES:
            places[name] = (".".join(path),)
        else:
            places[name] = (LOG + key_of(name).removeprefix(LOG),)
    taken = [*places.values(), *((flag,) for flag in FLAGS)]
    if len(set(taken)) != len(taken):
        raise ValueError(f"{NAME}: expected a key of its own for each field, got {places}")
    return places


def _key(name: str, path: Place) -> str:
    """The key of an observation: its name, or with ``obs.`` before it if the name is ambiguous.

    DreamerV3 names an observation by its part alone. Ambiguous are names of other keys and names
    that begin with a digit.
    """
    key = key_of(".".join(path) if path else name)
    is_other = key in {ACTION, REWARD, *FLAGS, *IDS} or key.startswith((LOG, f"{ACTION}."))
    if is_other or key[:1].isdigit() or (path and key.split(".")[0] == OBS):
        return f"{OBS}.{key}"
    return key


def _path(key: str, keys: Iterable[str]) -> Place:
    """Path of a key, whose first part is a key of ``ROLES``, or the key of another value."""
    if key == REWARD or key in IDS or key.startswith(LOG):
        return (key,)
    first, *rest = key.split(".")
    if first in (OBS, ACTION) and (rest or first == ACTION):
        return (first, *rest)
    others = [other for other in keys if other not in FLAGS and _path(other, ())[0] == OBS]
    return (OBS,) if key == OBS and len(others) == 1 else (OBS, key)


# ---------------------------------------------------------------------- writing


class DreamerWriter(Writer):
    """Writes a folder of chunks, one stream for each environment."""

    flags = (("is_terminal",), ("is_last",))

    def __init__(self, path: Path, header: Header, about: Mapping[str, Any]) -> None:
        super().__init__(header, _places(header))
        self._folder = path
        nbytes = sum(field.nbytes for field in self.columns.values())
        n_envs = len({one.env for one in header.episodes})
        self._size = min(CHUNK_STEPS, rows_in_chunk(nbytes, n_envs))
        self._streams: dict[int, _Stream] = {}
        self._time = datetime.now()

    def begin(self) -> None:
        self._stream = self._streams.setdefault(self.record.env, _Stream())
        late = (REWARD,), *self.flags
        self._late: Steps = {place: np.zeros(1, self.columns[place].dtype) for place in late}

    def steps(self, at: int, steps: Steps) -> None:
        """Write steps, each with the reward and the flags of the row before."""
        terminal, last = self.flags
        steps[last] = steps[last] | steps[terminal]
        for place, before in self._late.items():
            values = np.concatenate([before, steps[place]])
            steps[place], self._late[place] = values[:-1], values[-1:]
        is_first = np.zeros(len(steps[last]), FLAG)
        is_first[0] = at == 0 and not self.record.is_cut
        self._append(steps | {("is_first",): is_first})

    def end(self, final: Steps) -> None:
        self._append(final | self._late | {("is_first",): np.zeros(1, FLAG)})

    def _append(self, steps: Steps) -> None:
        stream, at, n = self._stream, 0, len(steps["is_first",])
        while at < n:
            if stream.length == self._size:
                self._save(stream, following=_uuid())
            count = min(n - at, self._size - stream.length)
            stream.pieces.append({key: values[at : at + count] for (key,), values in steps.items()})
            stream.length, at = stream.length + count, at + count

    def _save(self, stream: _Stream, following: str) -> None:
        self._time += timedelta(microseconds=1)
        time = self._time.strftime("%Y%m%dT%H%M%SF%f")
        name = f"{time}-{stream.uuid}-{following}-{stream.length}.npz"
        arrays: dict[str, Any] = {
            key: np.concatenate([piece[key] for piece in stream.pieces]) for key in stream.pieces[0]
        }
        # NumPy 1.26 leaves an archive open after an error of the disk; Python closes it too late.
        chunk = io.BytesIO()
        np.savez_compressed(chunk, **arrays)  # numbers only; NumPy 1.26 lacks allow_pickle=
        with (self._folder / name).open("xb") as file:
            file.write(chunk.getbuffer())
        stream.begin(following)

    def close(self) -> None:
        for stream in self._streams.values():
            self._save(stream, following=NO_CHUNK)


class _Stream:
    """The steps of a chunk that is not written yet."""

    def __init__(self) -> None:
        self.begin(_uuid())

    def begin(self, uuid: str) -> None:
        self.uuid, self.length = uuid, 0
        self.pieces: list[Rows] = []


def _uuid() -> str:
    """A new name of 22 characters, which DreamerV3 parses as a number of 128 bits."""
    return f"0{uuid4().hex[:21]}"


# ---------------------------------------------------------------------- reading


class _Chunk(NamedTuple):
    """A file, and the parts of its name."""

    time: str
    uuid: str
    following: str
    length: int
    path: Path


class _Span(NamedTuple):
    """Position of an episode: the number of its stream, and its first step in the stream."""

    stream: int
    start: int


@contextmanager
def _opened(path: Path) -> Iterator[Archive]:
    """Yield the arrays of a file. A damaged file raises ``ValueError`` that names the file."""
    with open_regular(path) as file, reading(path):
        yield Archive(file)


def _array(archive: Archive, key: str, length: int) -> Array:
    """An array of ``length`` steps, in the machine's byte order."""
    found: Array = archive.read(f"{key}.npy")
    if found.dtype.kind not in "biuf" or (found.ndim > 1 and not found.flags.c_contiguous):
        raise ValueError(f"{key!r}: expected numbers in C order, got {found.dtype}")
    if found.shape[:1] != (length,) and not (found.ndim and len(found) > length):
        raise ValueError(f"{key!r}: expected {length} steps, got an array of shape {found.shape}")
    return found[:length].astype(native(found.dtype))


class DreamerReader(Reader):
    """Reads a folder of chunks."""

    has_final = True

    def __init__(self, path: Path, split: str | None = None) -> None:
        super().__init__(path, split)
        self._cached: tuple[Path, Rows] | None = None

    def read_fields(self) -> HeaderBuilder:
        """The arrays of the first chunk of the first episode."""
        self._streams = list(_chains(self.path))
        self._starts = [
            np.cumsum([0, *(chunk.length for chunk in stream)]).tolist() for stream in self._streams
        ]
        self._found = list(self._find_episodes())
        first = self._streams[self._found[0][1].stream if self._found else 0][0]
        builder = HeaderBuilder(ROLES, self.left_out, derives_next=True, made=ENDS)
        with _opened(first.path) as archive:
            keys = [name.removesuffix(".npy") for name in archive.names]
            paths = {_path(key, keys): key for key in keys if key not in FLAGS}

            def field_of(path: Place, name: str) -> Field:
                values = _array(archive, paths[path], first.length)
                return Field(name, values.dtype, values.shape[1:])

            builder.add(paths, field_of)
        self._keys = {name: paths[path] for name, path in builder.places.items()}
        return builder

    def read_episodes(self) -> list[tuple[EpisodeRecord, _Span]]:
        return self._found

    def _find_episodes(self) -> Iterator[tuple[EpisodeRecord, _Span]]:
        for number, stream in enumerate(self._streams):
            flags: list[list[Array]] = [[], [], []]
            for chunk in stream:
                with _opened(chunk.path) as archive:
                    for found, key in zip(flags, FLAGS, strict=True):
                        found.append(_array(archive, key, chunk.length).reshape(chunk.length) != 0)
            is_first, is_last, is_terminal = (np.concatenate(found) for found in flags)
            is_last |= is_terminal
            for record, start in episodes_of(is_first, is_last, is_cut=not is_first[:1].any()):
                if record.length:  # a single step has an observation and makes no row
                    yield record, _Span(number, start)

    # ------------------------------------------------------------------ rows

    def _load(self, chunk: _Chunk) -> Rows:
        """The arrays of a chunk. The chunk that was read last stays in memory."""
        if self._cached is None or self._cached[0] != chunk.path:
            with _opened(chunk.path) as archive:
                keys = [*self._keys.values(), *FLAGS]
                rows = {key: _array(archive, key, chunk.length) for key in keys}
            self._cached = chunk.path, rows
        return self._cached[1]

    def _steps(self, stream: int, start: int, stop: int) -> Rows:
        """The steps ``start`` to ``stop`` of a stream, by key."""
        pieces: dict[str, list[Array]] = {}
        starts = self._starts[stream]
        k = int(np.searchsorted(starts, start, side="right")) - 1
        while start < stop:
            chunk = self._streams[stream][k]
            end = min(stop, starts[k + 1])
            for key, values in self._load(chunk).items():
                pieces.setdefault(key, []).append(values[start - starts[k] : end - starts[k]])
            start, k = end, k + 1
        return {key: np.concatenate(found) for key, found in pieces.items()}

    def read(self, number: int, most: int, names: Collection[str]) -> Iterator[Rows]:
        header, span, length = self.header, self.spans[number], self.header.episodes[number].length
        for start in range(0, length, most):
            n = min(most, length - start)
            first = span.start + start
            found = self._steps(span.stream, first, first + n + 1)
            steps: Rows = {}
            for name, key in self._keys.items():
                values, field = found[key], header[name]
                if (values.dtype, values.shape[1:]) != (field.dtype, field.shape):
                    raise ValueError(
                        f"field {name!r}: expected {field.dtype} of shape {field.shape}, got "
                        f"{values.dtype} of shape {values.shape[1:]}"
                    )
                steps[name] = values
            is_last, is_terminal = (found[key].reshape(n + 1) != 0 for key in FLAGS[1:])
            steps |= {"terminated": is_terminal, "truncated": is_last & ~is_terminal}
            yield between_steps(steps, header.chained, late=(*ENDS, str(header.reward)))

    def close(self) -> None:
        self._cached = None


def _chains(folder: Path) -> Iterator[list[_Chunk]]:
    """The chunks of each stream, linked by the names of their successors; oldest stream first."""
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
    keys = ()
    lacks = (BOTH, TEXTS, LISTS)

    def matches(self, path: Path) -> bool:
        return path.is_dir() and any(FILE.fullmatch(name) for name in os.listdir(path))  # noqa: PTH208


FORMAT = DreamerV3()
