"""The files of cpprb's ``save_transitions``: rows by value, of format version 1.

An ``.npz`` file with the members ``safe``, ``version``, ``data`` (a dict of arrays), ``Nstep``,
``cache`` and ``next_of``. Rows come by age, those of cpprb's own files in the order of its slots.
If a file is not ``safe``, the values of ``next_x`` are those of ``x`` in the row after, but for the
rows in ``cache``, whose values stand there. This package adds the member ``ends``, which cpprb does
not read: after which rows an episode is over.

A file is read twice: once to see that all of it is sound and fits, keeping nothing but where the
values are, then the rows that the buffer has room for. So what it unpacks to, and what its headers
promise, take no memory. Not here: pickles (``_array_pickles``) and the zip file (``_npz``).
"""

from __future__ import annotations

import io
import os
import re
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NamedTuple, Protocol, cast

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from cpprb_like._arguments.checks import as_path
from cpprb_like._arguments.narrow_dtypes import descr_of, name_of, wide
from cpprb_like._core import FLAG_END, Ring
from cpprb_like._fields.schema import Field, Schema
from cpprb_like.checkpoint._array_pickles import (
    Span,
    StoredArray,
    dump_array,
    dump_dict,
    dump_int,
    dump_text,
    load,
    wrapped,
)
from cpprb_like.checkpoint._disk import Disk, Output, open_regular
from cpprb_like.checkpoint._npz import Archive, read_header

__all__ = [
    "File",
    "Transitions",
    "describe_transitions",
    "load_transitions",
    "save_transitions",
    "slots_by_age",
]

Array = NDArray[Any]
File = str | os.PathLike[str] | IO[bytes]

VERSION = 1
SUFFIX = ".npz"
MEMBERS = ("safe", "version", "data", "Nstep", "cache", "next_of")
ENDS = "ends"
CHUNK_NBYTES = 1 << 20
# Instructions of a pickle: what cpprb writes takes 30 for an array of a row, and up to 28 for each
# compressed byte.
FEW = 1 << 16
FOR_AN_ARRAY = 64
FOR_A_BYTE = 64
NUMBERS = "biufc"
NUMBER = re.compile(r"[<>|=]?(?:b1|[iu][1248])")
TEXT = re.compile(r"[<>|=]?U(\d{1,5})")
NEXT = "next_"


class Buffer(Protocol):
    """What this module calls of a buffer."""

    @property
    def schema(self) -> Schema: ...
    @property
    def capacity(self) -> int: ...
    @property
    def n_envs(self) -> int: ...
    @property
    def fields(self) -> tuple[str, ...]: ...
    @property
    def columns(self) -> Mapping[str, Any]: ...
    def is_Nstep(self) -> bool: ...  # noqa: N802 (cpprb's name)
    def _all_by_age(self) -> tuple[dict[str, Array], NDArray[np.bool_]]: ...
    def add(self, /, **fields: Any) -> int | None: ...
    def add_where(self, present: Any, /, **fields: Any) -> int | None: ...
    def on_episode_end(self, env: int | None = None) -> None: ...
    def _hold(self, pauses: bool, call: Any, *arguments: Any) -> Any: ...


# ---------------------------------------------------------------------- names of files


def _with_suffix(file: str | os.PathLike[str]) -> Path:
    name = str(as_path("file", file))
    return Path(name if name.endswith(SUFFIX) else name + SUFFIX)


class _Raw(io.RawIOBase):
    """A new file of a ``Disk``, as Python's modules write to one."""

    def __init__(self, output: Output) -> None:
        self._output = output

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._output.write(data)
        return len(data)


@contextmanager
def _written(path: Path) -> Iterator[IO[bytes]]:
    """A file that has its name, and replaces another one, when it is complete and on the disk."""
    path = path.resolve()
    disk, unfinished = Disk(path.parent), f"{path.name}.{os.getpid()}-{os.urandom(4).hex()}.new"
    output = disk.create(unfinished)
    try:
        try:
            yield cast(IO[bytes], _Raw(output))
            output.sync()
        finally:
            output.close()
        disk.rename(unfinished, path.name)
    finally:
        disk.remove(unfinished)
    disk.sync_names()


@contextmanager
def _opened(file: File) -> Iterator[tuple[IO[bytes], str]]:
    """A file to read from, and what to call it."""
    if isinstance(file, (str, os.PathLike)):
        given, path = as_path("file", file), _with_suffix(file)
        if not path.exists() and given.exists():
            path = given
        with open_regular(path) as opened:
            yield opened, str(path)
    elif hasattr(file, "read") and hasattr(file, "seek"):
        yield file, str(getattr(file, "name", "the file"))
    else:
        raise TypeError(f"file: expected a path or a binary file, got {file!r}")


# ---------------------------------------------------------------------- writing


def slots_by_age(ring: Ring) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
    """The slots of all rows that can be drawn, oldest first, and after which an episode is over.

    An end may stand in an absent row between two rows. Of several environments the ends are those
    of the rows in order of writing.
    """
    slots = ring.newest_slots(len(ring))
    if not len(slots):
        return slots, np.zeros(0, np.bool_)
    ids = ring.row_ids(slots)
    flags = ring.flags()[np.arange(ids[0], ring.written) % ring.capacity]
    ends = np.logical_or.reduceat(flags & FLAG_END != 0, ids - ids[0])
    ends[-1] = True
    return slots, ends


def save_transitions(buffer: Buffer, file: File, *, safe: bool) -> None:
    """Write all rows of a buffer: see ``ReplayBuffer.save_transitions``."""
    schema = buffer.schema
    objects = [found.name for found in schema.fields if found.dtype.hasobject]
    if objects:
        raise ValueError(f"fields {objects} hold Python objects, which are not written to files")
    narrow = [found.name for found in schema.fields if not _is_named_by_numpy(found.dtype)]
    if any(schema.fields[schema.names.index(name)].dtype.names for name in narrow):
        raise ValueError(f"fields {narrow} have parts of ml_dtypes, which are not written to files")
    rows, ends = buffer._all_by_age()
    for name in narrow:
        rows[name] = rows[name].astype(_in_file(rows[name].dtype))
    n_rows = len(ends)
    if buffer.is_Nstep() or buffer.n_envs > 1:
        ends[:] = True  # each row stands for itself
    # Next values are left out where cpprb finds them again: in the row after.
    pairs = dict(schema.next_of)
    if safe or not pairs or not n_rows or buffer.is_Nstep() or buffer.n_envs > 1:
        cache, next_of = None, None
        pairs = {}
    else:
        cache = _cache_of(rows, pairs)
        next_of = np.array(list(pairs.values()))
    data = dump_dict(
        [(dump_text(name), dump_array(rows[name])) for name in rows if name not in pairs]
    )
    members: dict[str, Array | list[bytes | memoryview]] = {
        "safe": np.array(not pairs),
        "version": np.array(VERSION, np.int64),
        "data": data,
        "Nstep": np.array(buffer.is_Nstep()),
        "cache": [b"N"] if cache is None else cache,
        "next_of": [b"N"] if next_of is None else next_of,
        ENDS: ends,
    }
    if isinstance(file, (str, os.PathLike)):
        with _written(_with_suffix(file)) as opened:
            _write(opened, members)
    elif hasattr(file, "write"):
        _write(file, members)
    else:
        raise TypeError(f"file: expected a path or a binary file, got {file!r}")


def _write(file: IO[bytes], members: Mapping[str, Array | list[bytes | memoryview]]) -> None:
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, allowZip64=True) as archive:
        for name, content in members.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as out:
                if isinstance(content, np.ndarray):
                    npy.write_array(out, content, version=(1, 0), allow_pickle=False)
                    continue
                header = {"descr": "|O", "fortran_order": False, "shape": ()}
                npy.write_array_header_1_0(out, header)
                for piece in wrapped(content):
                    for start in range(0, len(piece), CHUNK_NBYTES):
                        out.write(piece[start : start + CHUNK_NBYTES])


def _cache_of(rows: Mapping[str, Array], pairs: Mapping[str, str]) -> list[bytes | memoryview]:
    """The pickle of the rows whose next values are not those of the row after."""
    return dump_dict(
        [
            (
                dump_int(row),
                dump_dict([(dump_text(name), dump_array(rows[name][row])) for name in pairs]),
            )
            for row in np.flatnonzero(_breaks(rows, pairs)).tolist()
        ]
    )


def _breaks(rows: Mapping[str, Array], pairs: Mapping[str, str]) -> NDArray[np.bool_]:
    """Which rows promise a next value that the row after does not have; the last one does."""
    n_rows = len(next(iter(rows.values())))
    breaks = np.zeros(n_rows, np.bool_)
    for name, source in pairs.items():
        promised, came = _bytes_of(rows[name]), _bytes_of(rows[source])
        step = max(1, CHUNK_NBYTES // max(1, promised.shape[1]))
        for start in range(0, n_rows - 1, step):
            stop = min(start + step, n_rows - 1)
            differ = promised[start:stop] != came[start + 1 : stop + 1]
            breaks[start:stop] |= differ.any(axis=1)
    breaks[-1:] = True
    return breaks


def _is_named_by_numpy(dtype: np.dtype[Any]) -> bool:
    """Whether neither the dtype nor a part of it is one of ml_dtypes."""
    return bool(descr_of(dtype) == npy.dtype_to_descr(dtype))


def _in_file(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype in a file: of ml_dtypes, whose dtypes cpprb's files do not have, a wider one."""
    if name_of(dtype) is None:
        return dtype
    own = wide(dtype)
    return np.dtype(np.float32) if own.kind == "f" else own


def _bytes_of(values: Array) -> NDArray[np.uint8]:
    """The bytes of each row."""
    n_rows = len(values)
    if not values.size:
        return np.zeros((n_rows, 0), np.uint8)
    return np.ascontiguousarray(values).reshape(n_rows, -1).view(np.uint8)


# ---------------------------------------------------------------------- reading


@dataclass
class _Content:
    """What a file holds, without the values."""

    is_nstep: bool
    data: dict[str, StoredArray]
    cache: dict[int, dict[str, StoredArray]]  # of the rows that are kept
    next_of: list[str]
    n_rows: int
    first: int  # of the rows that are kept
    ends: NDArray[np.bool_] | None  # of the same, if the file has them


class _Reads:
    """Bytes to be read from a member, each to its place in memory."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._wanted: list[tuple[int, memoryview]] = []
        self._turned: list[tuple[Array, Array]] = []

    def rows(self, stored: StoredArray, start: int, n: int) -> Array:
        """Rows of an array, n from ``start`` on; they have their values after ``read``."""
        shape = (n, *stored.shape[1:])
        out: Array = np.zeros(shape, stored.dtype)
        if stored.is_fortran and len(shape) > 1 and out.size:
            # One item of all rows after another.
            turned = np.zeros(shape[::-1], stored.dtype)
            self._turned.append((out, turned.T))
            itemsize = out.dtype.itemsize
            for number, items in enumerate(turned.reshape(-1, n)):
                self._want(stored, (number * stored.shape[0] + start) * itemsize, items)
        elif out.size:
            self._want(stored, start * (out.nbytes // n), out)
        return out

    def one(self, stored: StoredArray, out: Array) -> None:
        """All of an array into ``out``, C-contiguous and of as many items."""
        if stored.is_fortran and len(stored.shape) > 1:
            turned = np.zeros(stored.shape[::-1], stored.dtype)
            self._turned.append((out.reshape(stored.shape), turned.T))
            out = turned
        if out.size:
            self._want(stored, 0, out)

    def _want(self, stored: StoredArray, start: int, out: Array) -> None:
        memory = out.reshape(-1).view(np.uint8).data
        if isinstance(stored.data, Span):
            self._wanted.append((stored.data.start + start, memory))
        else:
            memory[:] = stored.data[start : start + len(memory)]

    def read(self, archive: Archive) -> None:
        """Read all, in the order of the file."""
        if self._wanted:
            member = archive.open(self._name)
            for start, memory in sorted(self._wanted, key=lambda wanted: wanted[0]):
                member.skip(start - member.position)
                member.read_into(memory)
        for out, turned in self._turned:
            out[...] = turned


def load_transitions(buffer: Buffer, file: File) -> None:
    """Add the rows of a file to a buffer: see ``ReplayBuffer.load_transitions``."""
    with _opened(file) as (opened, name):
        try:
            rows, content = _read(buffer, opened)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from error
        except _NoFieldError as error:
            raise KeyError(f"{name}: {error.args[0]}") from None
    if content.n_rows:
        buffer._hold(True, _add, buffer, rows, _ends(buffer, rows, content))


class Transitions(NamedTuple):
    """What a file of transitions holds, without the values.

    Attributes
    ----------
    rows : int
        How many.
    fields : dict of str to (dtype, shape)
        Those that have an array; the shape is that of a row.
    next_of : tuple of str
        Fields whose next values are not stored, as they are those of the row after.
    is_nstep : bool
        Whether rows sum several steps. Over how many, no file says.
    """

    rows: int
    fields: dict[str, tuple[np.dtype[Any], tuple[int, ...]]]
    next_of: tuple[str, ...]
    is_nstep: bool


def describe_transitions(file: File) -> Transitions:
    """What a file of cpprb's ``save_transitions`` holds. No code in it is run.

    Raises
    ------
    ValueError
        The file is damaged, of an unknown version, or holds Python objects.
    TypeError
        ``file`` is neither a path nor a file.
    OSError
        It is not there, or cannot be read.

    Notes
    -----
    Cost: in proportion to what it unpacks to; memory: little.
    """
    with _opened(file) as (opened, name):
        try:
            content = _examine(Archive(opened, most=2 * len(MEMBERS)), 0)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from error
    fields = {
        field: (stored.dtype, stored.shape[1:])
        for field, stored in content.data.items()
        if stored.dtype is not None
    }
    return Transitions(content.n_rows, fields, tuple(content.next_of), content.is_nstep)


class _NoFieldError(Exception):
    """The file lacks a field of the buffer."""


def _read(buffer: Buffer, file: IO[bytes]) -> tuple[dict[str, Array], _Content]:
    """The newest rows, of the dtypes of the buffer, and what the file says of them."""
    archive = Archive(file, most=2 * len(MEMBERS))
    content = _examine(archive, buffer.capacity)
    if content.is_nstep != buffer.is_Nstep():
        with_or = "with" if content.is_nstep else "without"
        raise ValueError(f"Nstep: the file was saved {with_or} it, by another kind of buffer")
    if content.is_nstep and "discount" in set(buffer.columns) - set(buffer.fields):
        raise ValueError(
            "Nstep: the file does not say over how many steps its rows are summed, which the "
            "column 'discount' needs"
        )
    sources = [_Source.of(found, content) for found in buffer.schema.fields]
    return _rows(archive, content, sources), content


def _rows(archive: Archive, content: _Content, sources: list[_Source]) -> dict[str, Array]:
    """The rows that are kept, of the dtypes of the buffer."""
    first, kept, reads = content.first, content.n_rows - content.first, _Reads("data.npy")
    raw = {source.name: reads.rows(source.stored, first, kept) for source in sources}
    # The row after the last one is the first: that of a buffer that was full.
    following = {
        source.name: reads.rows(source.stored, 0, 1)
        for source in sources
        if source.is_next and first and kept
    }
    reads.read(archive)
    arrays = {}
    for source in sources:  # before rows of the cache take the place of others
        if source.is_next:
            values = raw[source.name]
            arrays[source.field.name] = np.concatenate(
                [values[1:], following.get(source.name, values[:1])]
            )
    for source in sources:
        if not source.is_next:
            arrays[source.field.name] = raw[source.name]
    reads = _Reads("cache.npy")
    for row, cached in content.cache.items():
        for source in sources:
            if source.field.name in cached:
                place = row - first
                reads.one(cached[source.field.name], arrays[source.field.name][place : place + 1])
    reads.read(archive)
    return {source.field.name: source.convert(arrays.pop(source.field.name)) for source in sources}


def _examine(archive: Archive, capacity: int) -> _Content:
    """What a file holds; ``ValueError`` if anything of it is unsound."""
    version = _single(archive, "version")
    if version != VERSION:
        raise ValueError(f"unknown format version {version}; expected {VERSION}")
    is_safe, is_nstep = (bool(_single(archive, name)) for name in ("safe", "Nstep"))
    data = _arrays(_unpickle(archive, "data", 0, range(0)), "data")
    lengths = {name: stored.shape[0] if stored.shape else -1 for name, stored in data.items()}
    if len(set(lengths.values())) != 1 or -1 in lengths.values():
        raise ValueError(f"the fields disagree on the number of rows: {lengths}")
    n_rows = next(iter(lengths.values()))
    first = max(0, n_rows - capacity)
    next_of = _names(archive)
    found = _unpickle(
        archive, "cache", n_rows * max(1, len(data) + len(next_of)), range(first, n_rows)
    )
    if (not is_safe) != (found is not None) or (is_safe and next_of):
        raise ValueError(f"safe={is_safe} contradicts its cache and next_of")
    if found is None:
        found = {}
    if type(found) is not dict or not all(type(row) is int for row in found):
        raise ValueError("cache: expected rows by number")
    cache = {row: _arrays(values, "cache") for row, values in found.items()}
    for name in next_of:
        if name not in data:
            raise ValueError(f"next_of: there is no field {name!r}")
    return _Content(
        is_nstep, data, cache, next_of, n_rows, first, _read_ends(archive, n_rows, first)
    )


def _read_ends(archive: Archive, n_rows: int, first: int) -> NDArray[np.bool_] | None:
    """After which rows an episode is over, from ``first`` on; None in a file of cpprb's."""
    if f"{ENDS}.npy" not in archive.names:
        return None
    member = archive.open(f"{ENDS}.npy")
    header = read_header(member)
    if header.descr != "|b1" or header.shape != (n_rows,):
        raise ValueError(f"{member.name!r}: expected {n_rows} bools, got {header}")
    member.skip(first)
    found: NDArray[np.uint8] = np.zeros(n_rows - first, np.uint8)
    member.read_into(found.data)
    member.finish()
    return found.astype(np.bool_)


def _single(archive: Archive, name: str) -> int:
    """The integer or bool that a member is."""
    member = archive.open(f"{name}.npy")
    header = read_header(member)
    if header.shape != () or not NUMBER.fullmatch(header.descr):
        raise ValueError(f"{member.name!r}: expected one integer or bool, got {header}")
    dtype = np.dtype(header.descr)
    value = int(np.frombuffer(member.read(dtype.itemsize), dtype)[0])
    member.finish()
    return value


def _names(archive: Archive) -> list[str]:
    """The fields that ``next_of`` names."""
    member = archive.open("next_of.npy")
    header = read_header(member)
    if header.descr[-1] == "O":
        if _unpickle(archive, "next_of", 0, range(0)) is not None:
            raise ValueError("'next_of.npy': expected texts, or None")
        return []
    width = TEXT.fullmatch(header.descr)
    if width is None or len(header.shape) != 1:
        raise ValueError(f"'next_of.npy': expected texts, got {header}")
    data = member.read(4 * int(width[1]) * header.shape[0])
    member.finish()
    try:
        names: list[str] = np.frombuffer(data, np.dtype(header.descr)).tolist()
    except ValueError as error:
        raise ValueError(f"'next_of.npy': {error}") from error
    return list(dict.fromkeys(names))


def _unpickle(archive: Archive, name: str, n_arrays: int, kept: range) -> Any:
    """The object of a member, which is sound and ends where it should."""
    member = archive.open(f"{name}.npy")
    header = read_header(member)
    if header.descr != "|O" or header.shape != ():
        raise ValueError(f"{member.name!r}: expected one object, got {header}")
    budget = FEW + min(FOR_AN_ARRAY * n_arrays, FOR_A_BYTE * member.packed_nbytes)
    found = load(member, budget, kept.__contains__)
    member.finish()
    return found


def _arrays(found: object, where: str) -> dict[str, StoredArray]:
    """A dict of arrays; ``ValueError`` if it is anything else."""
    if type(found) is not dict or not found:
        raise ValueError(f"{where}: expected arrays by name")
    for name, stored in found.items():
        if type(name) is not str or not isinstance(stored, StoredArray) or stored.dtype is None:
            raise ValueError(f"{where}: expected arrays by name")
    return found


@dataclass(frozen=True)
class _Source:
    """Where a file has the values of a field."""

    field: Field
    name: str  # of the array
    stored: StoredArray
    is_next: bool  # whether they are those of the row after

    @classmethod
    def of(cls, field: Field, content: _Content) -> _Source:
        """The array of a field; raises if there is none, or it does not fit."""
        base = field.name[len(NEXT) :] if field.name.startswith(NEXT) else ""
        is_next = field.name not in content.data and base in content.next_of
        name = base if is_next else field.name
        if name not in content.data:
            raise _NoFieldError(f"no field {field.name!r}, but {list(content.data)}")
        source = cls(field, name, content.data[name], is_next)
        dtype = source.stored.dtype
        source._check(dtype, source.stored.shape[1:])
        for cached in content.cache.values():
            if field.name in cached:
                found = cached[field.name]
                source._check(found.dtype, found.shape)
                if found.dtype != dtype:
                    raise ValueError(f"cache: field {field.name!r} has another dtype than in data")
        return source

    def _check(self, came: np.dtype[Any] | None, shape: tuple[int, ...]) -> None:
        """Raise ``ValueError`` unless these can be rows of the field."""
        declared, expected = _in_file(self.field.dtype), self.field.shape
        if shape != expected and not (self.field.is_single and shape in ((), (1,))):
            raise ValueError(f"field {self.field.name!r}: expected shape {expected}, got {shape}")
        are_numbers = came is not None and came.kind in NUMBERS and declared.kind in NUMBERS
        if came is None or not (are_numbers or np.can_cast(came, declared, "safe")):
            raise ValueError(f"field {self.field.name!r}: expected {declared}, got {came}")

    def convert(self, rows: Array) -> Array:
        """The rows as the buffer takes them; ``ValueError`` if it cannot."""
        if rows.dtype.kind == "b" and rows.size and rows.view(np.uint8).max() > 1:
            raise ValueError(f"field {self.field.name!r}: a bool that is neither 0 nor 1")
        return self.field.convert(rows.reshape(len(rows), *self.field.shape), 1)


# ---------------------------------------------------------------------- adding


def _ends(buffer: Buffer, rows: Mapping[str, Array], content: _Content) -> NDArray[np.bool_]:
    """After which rows an episode is over, as far as a file tells.

    In a file of cpprb's a row is not followed by the next one if it promises other values than that
    has. Rows that sum several steps, and those of several environments, stand for themselves.
    """
    if content.is_nstep or buffer.n_envs > 1:
        return np.ones(content.n_rows - content.first, np.bool_)
    if content.ends is not None:
        return content.ends
    pairs = {
        NEXT + name: name
        for name, values in rows.items()
        if NEXT + name in rows
        and (rows[NEXT + name].shape, rows[NEXT + name].dtype) == (values.shape, values.dtype)
    }
    ends = _breaks(rows, pairs)
    if not pairs:
        ends[[row - content.first for row in content.cache]] = True
    return ends


def _add(buffer: Buffer, rows: Mapping[str, Array], ends: NDArray[np.bool_]) -> None:
    """Add rows and end episodes, while other threads that write wait."""
    buffer.on_episode_end()
    n_rows, n_envs = len(ends), buffer.n_envs
    if n_envs == 1:
        start = 0
        for stop in (np.flatnonzero(ends) + 1).tolist():
            buffer.add(**{name: values[start:stop] for name, values in rows.items()})
            buffer.on_episode_end()
            start = stop
        return
    for start in range(0, n_rows, n_envs):
        places = np.arange(start, start + n_envs)
        step = {name: values[np.minimum(places, n_rows - 1)] for name, values in rows.items()}
        if places[-1] < n_rows:
            buffer.add(**step)
        else:
            buffer.add_where(places < n_rows, **step)
        buffer.on_episode_end()
