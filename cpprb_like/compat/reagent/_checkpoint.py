"""Files of a buffer: ours, which restore everything, and those that ReAgent wrote.

There is a gzip file for each array, named and written as ReAgent does it, and one of JSON that says
what the others are. Not here: the pickle among ReAgent's files (``_unpickle``).
"""

from __future__ import annotations

import gzip
import json
import os
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from cpprb_like.checkpoint._disk import Disk
from cpprb_like.compat.reagent._elements import (
    REQUIRED_KEYS,
    DenseMetadata,
    ElementMetadata,
    described,
)
from cpprb_like.compat.reagent._errors import InputError
from cpprb_like.compat.reagent._settings import Settings
from cpprb_like.compat.reagent._store import FLAGS, TERMINAL, Store
from cpprb_like.compat.reagent._unpickle import read_sum_tree

__all__ = [
    "CHECKPOINT_DURATION",
    "STORE_FILENAME_PREFIX",
    "Loaded",
    "check_arrays",
    "load",
    "save",
]

Array = NDArray[Any]
Words = dict[str, Any]
Make = Callable[[dict[str, ElementMetadata]], Store]

STORE_FILENAME_PREFIX = "$store$_"
CHECKPOINT_DURATION = 4  # iterations that files are kept for

CONTENTS = "$contents$"  # the file of JSON
ROW_FLAGS = "row_flags"
FORMAT = "cpprb_like.compat.reagent"
VERSION = 1
CHUNK_NBYTES = 1 << 22
SPEED = 1  # of gzip: frames get a little larger than by its default, in a tenth of the time
# What reading a file raises that was cut, changed, or written by something else.
DAMAGE = (
    EOFError,
    zlib.error,
    gzip.BadGzipFile,
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
)


@dataclass(frozen=True)
class Loaded:
    """What was read: the rows, and what a buffer's ``_state`` had said beside them."""

    rows: Store | None
    words: Words
    arrays: dict[str, Array]


def _reason(error: Exception) -> str:
    return str(error) or type(error).__name__


def _path(folder: Path, name: str, suffix: object) -> Path:
    return folder / f"{name}_ckpt.{suffix}.gz"


# ---------------------------------------------------------------------- writing


class _Output:
    """A file that is written to, and the checksum of what was."""

    def __init__(self, file: gzip.GzipFile) -> None:
        self._file = file
        self.checksum = 0

    def write(self, data: Any) -> int:
        self.checksum = zlib.crc32(data, self.checksum)
        return self._file.write(data)

    def array(self, values: Array) -> None:
        npy.write_array(cast(BinaryIO, self), values, allow_pickle=False)


def save(
    folder: Path,
    suffix: object,
    settings: Settings,
    rows: Store | None,
    words: Words,
    arrays: Mapping[str, Array],
) -> None:
    """Write all files under other names, and give them theirs when all are complete."""
    if not folder.is_dir():
        raise FileNotFoundError(f"checkpoint_dir: there is no directory {folder}")
    writers: dict[str, Callable[[_Output], None]] = {
        name: partial(_write_array, values) for name, values in arrays.items()
    }
    if rows is not None:
        for name in rows.elements:
            write_field = _write_dense if rows.is_dense(name) else _write_lists
            writers[STORE_FILENAME_PREFIX + name] = partial(write_field, rows, name)
        writers[ROW_FLAGS] = partial(_write_dense, rows, FLAGS)
    checksums: dict[str, int] = {}
    contents = {
        "format": FORMAT,
        "version": VERSION,
        "settings": _fixed(settings),
        "elements": None
        if rows is None
        else [[name, kind.description()] for name, kind in rows.elements.items()],
        "words": words,
        "checksums": checksums,
    }
    disk = Disk(folder)
    unfinished: dict[str, str] = {}
    try:
        for name, writer in writers.items():
            file = _path(folder, name, suffix).name
            unfinished[file] = _unfinished(file)
            checksums[name] = _write(disk, unfinished[file], writer)
        file = _path(folder, CONTENTS, suffix).name
        unfinished[file] = _unfinished(file)
        text = json.dumps(contents).encode()
        _write(disk, unfinished[file], lambda out: out.write(text))
        for file, temporary in unfinished.items():
            disk.rename(temporary, file)
        disk.sync_names()
    finally:
        for temporary in unfinished.values():
            disk.remove(temporary)
    if isinstance(suffix, (int, np.integer)) and suffix >= CHECKPOINT_DURATION:
        for name in (*writers, CONTENTS):
            _path(folder, name, suffix - CHECKPOINT_DURATION).unlink(missing_ok=True)


def _unfinished(name: str) -> str:
    return f"{name}.{os.getpid()}.new"


def _write(disk: Disk, name: str, writer: Callable[[_Output], object]) -> int:
    """Write a file, and synchronise it; the checksum of what was compressed."""
    disk.remove(name)
    output = disk.create(name)
    try:
        with gzip.GzipFile(name, "wb", SPEED, output) as file:
            out = _Output(file)
            writer(out)
        output.sync()
    finally:
        output.close()
    return out.checksum


def _fixed(settings: Settings) -> dict[str, int]:
    """The settings that a buffer must share with the one that wrote the files."""
    names = ("replay_capacity", "stack_size", "update_horizon")
    return {name: getattr(settings, name) for name in names}


def _chunks(n: int, row_nbytes: int) -> Iterator[tuple[int, int]]:
    """Ranges of rows that take a few megabytes each."""
    step = max(1, CHUNK_NBYTES // max(1, row_nbytes))
    return ((start, min(start + step, n)) for start in range(0, n, step))


def _write_array(values: Array, out: _Output) -> None:
    out.array(values)


def _write_dense(rows: Store, name: str, out: _Output) -> None:
    """All slots of a field as one array, without a copy of all of it."""
    field, capacity = rows.fields[name], rows.rows.capacity
    header = {
        "descr": npy.dtype_to_descr(field.dtype),
        "fortran_order": False,
        "shape": (capacity, *field.shape),
    }
    npy.write_array_header_1_0(cast(BinaryIO, out), header)
    for start, stop in _chunks(capacity, field.nbytes):
        slots = rows.place(np.arange(start, stop, dtype=np.intp))
        out.write(rows.read(name, slots[:, np.newaxis]).tobytes())


def _write_lists(rows: Store, name: str, out: _Output) -> None:
    """For each key: where the lists of each slot begin and end, and their columns."""
    kind: Any = rows.elements[name]
    lists = rows.all_rows(name).tolist()
    for key in kind.keys:
        found = [row[key] if row else kind.empty for row in lists]
        out.array(np.cumsum([0, *(len(row[0]) for row in found)], dtype=np.int64))
        for place, none in enumerate(kind.empty):
            out.array(np.concatenate([none, *(row[place] for row in found)]))


# ---------------------------------------------------------------------- reading


class _Input:
    """A file that is read from, and the checksum of what was."""

    def __init__(self, file: gzip.GzipFile) -> None:
        self.file = file
        self.checksum = 0

    def read(self, nbytes: int = -1) -> bytes:
        data = self.file.read(nbytes)
        self.checksum = zlib.crc32(data, self.checksum)
        return data

    def array(self) -> Array:
        values: Array = npy.read_array(cast(BinaryIO, self), allow_pickle=False)
        return values

    def header(self) -> tuple[tuple[int, ...], np.dtype[Any]]:
        """Shape and dtype of an array whose rows follow."""
        version = npy.read_magic(cast(BinaryIO, self))
        reader = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        shape, fortran_order, dtype = reader(cast(BinaryIO, self))
        if fortran_order and len(shape) > 1:
            raise InputError("expected an array in C order")
        return shape, dtype

    def rows(self, n: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """The next n rows of such an array."""
        nbytes = n * dtype.itemsize * int(np.prod(shape))
        data = self.read(nbytes)
        if len(data) != nbytes:
            raise EOFError("the file ends too early")
        return np.frombuffer(data, dtype).reshape(n, *shape)


class _Folder:
    """The files of one suffix. Whatever is wrong with one is said with its name."""

    def __init__(self, folder: Path, suffix: object) -> None:
        self._folder = folder
        self._suffix = suffix

    def path(self, name: str) -> Path:
        return _path(self._folder, name, self._suffix)

    def require(self, names: list[str]) -> None:
        for name in names:
            if not self.path(name).is_file():
                raise FileNotFoundError(f"Missing file: {self.path(name)}")

    def stored(self) -> list[str]:
        """Names of the fields that there are files of."""
        end = f"_ckpt.{self._suffix}.gz"
        paths = self._folder.iterdir() if self._folder.is_dir() else iter(())
        names = (path.name for path in paths)
        return sorted(
            name[len(STORE_FILENAME_PREFIX) : -len(end)]
            for name in names
            if name.startswith(STORE_FILENAME_PREFIX) and name.endswith(end)
        )

    def read(self, name: str, reader: Callable[[_Input], Any]) -> tuple[Any, int]:
        """What the reader makes of a file, and the checksum of all of it."""
        try:
            with gzip.open(self.path(name), "rb") as file:
                source = _Input(file)
                result = reader(source)
                source.read()
        except DAMAGE as error:
            raise InputError(f"{name}: {_reason(error)}") from error
        return result, source.checksum

    def array(self, name: str) -> Array:
        array: Array = self.read(name, _Input.array)[0]
        return array


def load(
    folder: Path,
    suffix: object,
    settings: Settings,
    known: Mapping[str, ElementMetadata] | None,
    state: tuple[Words, dict[str, Array]],
    make: Make,
) -> Loaded:
    """Read the files of a suffix.

    ``known`` are the fields of the buffer, if there are any yet, ``state`` what else it would write
    now; ``make`` makes empty rows for fields, or refuses them.
    """
    files = _Folder(folder, suffix)
    read = _load_ours if files.path(CONTENTS).is_file() else _load_theirs
    try:
        return read(files, settings, known, state, make)
    except DAMAGE as error:
        raise InputError(f"{files.path('*')}: {_reason(error)}") from error


def _load_ours(
    files: _Folder,
    settings: Settings,
    known: Mapping[str, ElementMetadata] | None,
    state: tuple[Words, dict[str, Array]],
    make: Make,
) -> Loaded:
    contents = files.read(CONTENTS, lambda source: json.loads(source.read()))[0]
    if contents["format"] != FORMAT or contents["version"] != VERSION:
        raise InputError(f"unknown format {contents['format']}, version {contents['version']}")
    if contents["settings"] != _fixed(settings):
        raise InputError(f"written with {contents['settings']}, not {_fixed(settings)}")
    checksums: dict[str, int] = contents["checksums"]
    files.require([*state[1], *checksums])
    words: Words = contents["words"]
    if {name: type(word) for name, word in words.items()} != {
        name: type(word) for name, word in state[0].items()
    }:
        raise InputError(f"{CONTENTS}: expected the words {list(state[0])}, got {words}")
    arrays: dict[str, Array] = {}
    found: dict[str, int] = {}
    for name in state[1]:
        arrays[name], found[name] = files.read(name, _Input.array)
    check_arrays(arrays, settings.replay_capacity)
    if contents["elements"] is None:
        rows = None if known is None else make(dict(known))
    else:
        rows = make(_agreed({name: described(kind) for name, kind in contents["elements"]}, known))
        found |= _fill(files, rows, int(arrays["add_count"]), [*_named(rows), ROW_FLAGS])
    wrong = [name for name, checksum in found.items() if checksums.get(name) != checksum]
    if wrong:
        raise InputError(f"{wrong} are of another call of save")
    return Loaded(rows, words, arrays)


def _load_theirs(
    files: _Folder,
    settings: Settings,
    known: Mapping[str, ElementMetadata] | None,
    state: tuple[Words, dict[str, Array]],
    make: Make,
) -> Loaded:
    capacity = settings.replay_capacity
    prioritized = ["sum_tree"] if "sum_tree" in state[1] else []
    names = list(known) if known is not None else _in_order(files)
    files.require([*(STORE_FILENAME_PREFIX + name for name in names), "add_count", *prioritized])
    kinds = {name: files.read(STORE_FILENAME_PREFIX + name, _Input.header)[0] for name in names}
    elements: dict[str, ElementMetadata] = {
        name: DenseMetadata(shape[1:], dtype.newbyteorder("="))
        for name, (shape, dtype) in kinds.items()
    }
    rows = make(_agreed(elements, known))
    arrays = {"add_count": files.array("add_count")}
    words: Words = {}
    if prioritized:
        arrays["sum_tree"], words["max_recorded_priority"] = files.read(
            "sum_tree", lambda source: read_sum_tree(source.file, capacity)
        )[0]
    check_arrays(arrays, capacity)
    count = int(arrays["add_count"])
    _fill(files, rows, count, _named(rows))
    terminal = rows.all_rows("terminal") != 0
    arrays["is_index_valid"], steps = _valid(terminal, count, settings)
    words["episode_steps"] = steps
    words["between_episodes"] = count == 0 or bool(terminal[(count - 1) % capacity])
    return Loaded(rows, words, arrays)


def _in_order(files: _Folder) -> list[str]:
    """The fields that there are files of: those that are required first.

    ReAgent's buffer by priority writes a field of them, which it never fills.
    """
    unused = ["priority"] if files.path("sum_tree").is_file() else []
    extras = (name for name in files.stored() if name not in REQUIRED_KEYS + unused)
    return [*REQUIRED_KEYS, *extras]


def _agreed(
    elements: dict[str, ElementMetadata], known: Mapping[str, ElementMetadata] | None
) -> dict[str, ElementMetadata]:
    if known is not None and elements != known:
        raise InputError(f"written by a buffer of the fields {elements}, not {dict(known)}")
    return elements


def _named(rows: Store) -> list[str]:
    return [STORE_FILENAME_PREFIX + name for name in rows.elements]


def check_arrays(arrays: Mapping[str, Array], capacity: int) -> None:
    """Refuse arrays of wrong shapes and kinds."""
    expected = {"add_count": ("iu", ()), "is_index_valid": ("b", (capacity,))}
    expected["sum_tree"] = ("f", (capacity,))
    for name, array in arrays.items():
        kinds, shape = expected[name]
        if array.dtype.kind not in kinds or array.shape != shape:
            raise InputError(
                f"{name}: expected shape {shape}, got {array.dtype} of shape {array.shape}"
            )
    if arrays["add_count"] < 0:
        raise InputError(f"add_count: expected at least 0, got {arrays['add_count']}")


# ---------------------------------------------------------------------- rows


def _fill(files: _Folder, rows: Store, count: int, names: list[str]) -> dict[str, int]:
    """Add the rows that the files hold, each to its slot. Returns the files' checksums."""
    capacity = rows.rows.capacity
    stored = min(count, capacity)
    lists = {}
    checksums = {}
    readers: dict[str, tuple[_Input, tuple[int, ...], np.dtype[Any]]] = {}
    with ExitStack() as opened:
        for name in names:
            field = FLAGS if name == ROW_FLAGS else name[len(STORE_FILENAME_PREFIX) :]
            if field != FLAGS and not rows.is_dense(field):
                kind = rows.elements[field]
                lists[field], checksums[name] = files.read(name, _lists_reader(kind, capacity))
                continue
            source = _Input(opened.enter_context(gzip.open(files.path(name))))
            shape, dtype = source.header()
            if shape != (capacity, *rows.fields[field].shape) or dtype.hasobject:
                raise InputError(f"{name}: expected {capacity} rows, got shape {shape}")
            readers[field] = source, shape[1:], dtype
        row_nbytes = sum(field.nbytes for field in rows.fields.values())
        for start, stop in _chunks(capacity, row_nbytes):
            columns = {
                field: source.rows(stop - start, shape, dtype)
                for field, (source, shape, dtype) in readers.items()
            }
            columns |= {field: values[start:stop] for field, values in lists.items()}
            columns.setdefault(FLAGS, (columns["terminal"] != 0) * np.uint8(TERMINAL))
            kept = min(stop, stored) - start
            if kept > 0:
                rows.rows.add(**{field: values[:kept] for field, values in columns.items()})
        for field, (source, _, _) in readers.items():
            name = ROW_FLAGS if field == FLAGS else STORE_FILENAME_PREFIX + field
            source.read()
            checksums[name] = source.checksum
    if count > capacity:
        _turn(rows, count % capacity, row_nbytes)
    return checksums


def _turn(rows: Store, n: int, row_nbytes: int) -> None:
    """Write the first n slots of a full ring again, so that the next row goes behind them."""
    for start, stop in _chunks(n, row_nbytes):
        rows.rows.add(**rows.rows[start:stop])


def _lists_reader(kind: Any, capacity: int) -> Callable[[_Input], Array]:
    """Reads what ``_write_lists`` wrote: a dict for each slot."""

    def read(source: _Input) -> Array:
        lists: Array = np.empty(capacity, object)
        lists[:] = [{} for _ in range(capacity)]
        for key in kind.keys:
            bounds = source.array()
            columns = [source.array() for _ in kind.empty]
            right = [none.dtype for none in kind.empty]
            ends = {int(bounds[-1]), *map(len, columns)}
            if (
                bounds.shape != (capacity + 1,)
                or [x.dtype for x in columns] != right
                or len(ends) > 1
            ):
                raise InputError(f"no lists of ids for {capacity} slots")
            for slot in range(capacity):
                part = slice(int(bounds[slot]), int(bounds[slot + 1]))
                lists[slot][key] = tuple(column[part].copy() for column in columns)
        return lists

    return read


def _valid(
    terminal: NDArray[np.bool_], count: int, settings: Settings
) -> tuple[NDArray[np.bool_], int]:
    """Which slots ReAgent would let be drawn, and how many steps the last episode has.

    Found from the terminal flags of all slots alone. Of the oldest episode of a full ring it is not
    known which rows are padding, but as many rows have broken stacks at least.
    """
    capacity, horizon = settings.replay_capacity, settings.update_horizon
    padding = settings.stack_size - 1
    valid = np.zeros(capacity, np.bool_)
    stored = min(count, capacity)
    if not stored:
        return valid, 0
    ids = np.arange(count - stored, count)
    ages = np.arange(stored)
    ends = terminal[ids % capacity]
    first = np.maximum.accumulate(np.where(np.append(True, ends[:-1]), ages, 0))
    end = np.minimum.accumulate(np.where(ends, ages, stored + horizon)[::-1])[::-1]
    is_known = (end < ages + horizon) | (ages + horizon < stored)
    valid[ids % capacity] = is_known & (ages - first >= padding)
    valid[np.arange(count, count + padding) % capacity] = False
    return valid, max(0, int(ages[-1] - first[-1]) + 1 - padding)
