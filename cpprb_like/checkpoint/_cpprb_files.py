"""The files of cpprb's ``save_transitions``: rows by value, of format version 1.

An ``.npz`` file has the members ``safe``, ``version``, ``data`` (a dict of arrays), ``Nstep``,
``cache`` and ``next_of``. Rows are ordered by age, or by slot in cpprb's own files. In a file that
is not ``safe``, ``next_x`` of a row is ``x`` of the following row; ``cache`` has the values of the
other rows. This package adds the member ``ends``, which cpprb ignores: a flag for the last row of
each episode. Not here: the restricted unpickler (``_restricted_pickle``), the zip file (``_npz``).
"""

from __future__ import annotations

import os
import pickle
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from cpprb_like._arguments.arrays import Array
from cpprb_like._arguments.checks import as_path
from cpprb_like._arguments.narrow_dtypes import name_of, wide
from cpprb_like._core import FLAG_END, Ring
from cpprb_like._fields.field import NEXT, Field
from cpprb_like._fields.schema import Schema
from cpprb_like._machine.file_systems import replacing, sync_folder
from cpprb_like._machine.opening import open_regular
from cpprb_like.checkpoint._npz import Archive
from cpprb_like.checkpoint._restricted_pickle import plain

File = str | os.PathLike[str] | IO[bytes]

VERSION = 1
SUFFIX = ".npz"
ENDS = "ends"
NUMBERS = "biufc"

Buffer = Any  # a ``ReplayBuffer``, whose room is above this one


# ---------------------------------------------------------------------- names of files


def _with_suffix(file: str | os.PathLike[str]) -> Path:
    path = as_path("file", file)
    return path if path.name.endswith(SUFFIX) else as_path("file", file, SUFFIX)


@contextmanager
def _written(path: Path) -> Iterator[IO[bytes]]:
    """A new file that takes its name when it is complete and synchronised."""
    path = path.resolve()
    with replacing(path) as unfinished, unfinished.open("xb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())
    sync_folder(path.parent)


@contextmanager
def _opened(file: File) -> Iterator[IO[bytes]]:
    """A file, open for reading; errors of a reader get the name of the file."""
    opened: AbstractContextManager[IO[bytes]]
    if isinstance(file, (str, os.PathLike)):
        given, path = as_path("file", file), _with_suffix(file)
        if not path.exists() and given.exists():
            path = given
        name, opened = str(path), open_regular(path)
    elif hasattr(file, "read") and hasattr(file, "seek"):
        name, opened = str(getattr(file, "name", "the file")), nullcontext(file)
    else:
        raise TypeError(f"file: expected a path or a binary file, got {file!r}")
    with opened as readable:
        try:
            yield readable
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from error
        except KeyError as error:
            raise KeyError(f"{name}: {error.args[0]}") from None


# ---------------------------------------------------------------------- writing


def slots_by_age(ring: Ring) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
    """Slots of all rows that can be drawn, oldest first, and whether each ends an episode.

    The end of a row may be marked in an absent row after it. Streams are not distinguished.
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
    _refuse_axes(schema)
    objects = [found.name for found in schema.fields if found.dtype.hasobject]
    if objects:
        raise ValueError(f"fields {objects} hold Python objects, which are not written to files")
    narrow = [found.name for found in schema.fields if name_of(found.dtype) is not None]
    others = [
        f"{found.name} ({found.dtype})"
        for found in schema.fields
        if found.name not in narrow and (found.dtype.kind not in "biufcSUV" or found.dtype.names)
    ]
    if others:
        raise ValueError(f"fields {others} are no numbers, texts or bytes; save() takes any dtype")
    rows, ends = buffer._all_by_age()
    for name in narrow:
        rows[name] = rows[name].astype(_in_file(rows[name].dtype))
    n_rows = len(ends)
    if buffer.is_Nstep() or buffer.n_envs > 1:
        ends[:] = True  # each row is an episode of its own
    # In a file that is not safe, cpprb takes next values from the following row.
    pairs = dict(schema.next_of)
    if safe or not n_rows or buffer.is_Nstep() or buffer.n_envs > 1:
        pairs = {}
    cache = {
        row: {name: np.asarray(rows[name][row]) for name in pairs}
        for row in (np.flatnonzero(_breaks(rows, pairs)).tolist() if pairs else ())
    }
    members: dict[str, Any] = {
        "safe": np.array(not pairs),
        "version": np.array(VERSION, np.int64),
        "data": {name: values for name, values in rows.items() if name not in pairs},
        "Nstep": np.array(buffer.is_Nstep()),
        "cache": cache if pairs else None,
        "next_of": np.array(list(pairs.values())) if pairs else None,
        ENDS: ends,
    }
    if isinstance(file, (str, os.PathLike)):
        with _written(_with_suffix(file)) as opened:
            _write(opened, members)
    elif hasattr(file, "write"):
        _write(file, members)
    else:
        raise TypeError(f"file: expected a path or a binary file, got {file!r}")


def _refuse_axes(schema: Schema) -> None:
    """Raise ``ValueError`` for values of any length, which cpprb does not have."""
    names = [name for axis in schema.axes for name in axis.fields]
    if names:
        raise ValueError(
            f"fields {names} have values of any length, which cpprb's files do not hold; save() "
            "and load() take them"
        )


def _write(file: IO[bytes], members: Mapping[str, Any]) -> None:
    """Write members as ``np.savez_compressed`` does; pickles may exceed 4 GiB."""
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as out:
                if isinstance(content, np.ndarray):
                    npy.write_array(out, content, version=(1, 0), allow_pickle=False)
                    continue
                as_object = np.array(content, object)
                npy.write_array_header_1_0(out, npy.header_data_from_array_1_0(as_object))
                pickle.dump(as_object, out, protocol=4)


def _breaks(rows: Mapping[str, Array], pairs: Mapping[str, str]) -> NDArray[np.bool_]:
    """A flag for each row whose next value is not in the following row, and for the last row."""
    n_rows = len(next(iter(rows.values())))
    breaks = np.zeros(n_rows, np.bool_)
    for name, source in pairs.items():
        after, values = _bytes_of(rows[name]), _bytes_of(rows[source])
        breaks[:-1] |= (after[:-1] != values[1:]).any(axis=1)
    breaks[-1:] = True
    return breaks


def _in_file(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype in a file: a wider one in place of ml_dtypes, which cpprb cannot read."""
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
    """The content of a file. Arrays are views of the bytes that were read."""

    is_nstep: bool
    data: dict[str, Array]
    cache: dict[int, dict[str, Array]]  # next values by row and field
    next_of: list[str]
    n_rows: int
    ends: NDArray[np.bool_] | None  # None in cpprb's own files


def load_transitions(buffer: Buffer, file: File) -> None:
    """Add the rows of a file to a buffer: see ``ReplayBuffer.load_transitions``."""
    _refuse_axes(buffer.schema)
    with _opened(file) as opened:
        content = _examine(Archive(opened))
        if content.is_nstep != buffer.is_Nstep():
            with_or = "with" if content.is_nstep else "without"
            raise ValueError(f"Nstep: the file was saved {with_or} it, by another kind of buffer")
        if content.is_nstep and "discount" in set(buffer.columns) - set(buffer.fields):
            raise ValueError(
                "Nstep: the file does not say over how many steps its rows are summed, which the "
                "column 'discount' needs"
            )
        first = max(0, content.n_rows - buffer.capacity)
        rows = {field.name: _rows(field, content, first) for field in buffer.schema.fields}
    if content.n_rows:
        buffer._hold(True, _add, buffer, rows, _ends(buffer, rows, content, first))


class Transitions(NamedTuple):
    """The content of a file of transitions, without the values.

    Attributes
    ----------
    rows : int
        Number of rows.
    fields : dict of str to (dtype, shape)
        Fields that have an array, with the shape of a row.
    next_of : tuple of str
        Fields whose next values are not stored, as the following row has them.
    is_nstep : bool
        Whether rows sum several steps. No file has the number of steps.
    """

    rows: int
    fields: dict[str, tuple[np.dtype[Any], tuple[int, ...]]]
    next_of: tuple[str, ...]
    is_nstep: bool


def describe_transitions(file: File) -> Transitions:
    """The content of a file of cpprb's ``save_transitions``. No code in it is run.

    Raises
    ------
    ValueError
        The file is damaged, of an unknown version, or holds Python objects.
    TypeError
        ``file`` is neither a path nor a file.
    OSError
        The file is missing, or cannot be read.
    MemoryError
        A member unpacks to more bytes than are free.

    Notes
    -----
    Cost: proportional to the unpacked bytes; memory: at most three times these bytes.
    """
    with _opened(file) as opened:
        content = _examine(Archive(opened))
    fields = {field: (values.dtype, values.shape[1:]) for field, values in content.data.items()}
    return Transitions(content.n_rows, fields, tuple(content.next_of), content.is_nstep)


def _examine(archive: Archive) -> _Content:
    """The content of a file; ``ValueError`` for inconsistent members."""
    version = _single(archive, "version")
    if version != VERSION:
        raise ValueError(f"unknown format version {version}; expected {VERSION}")
    is_safe, is_nstep = (bool(_single(archive, name)) for name in ("safe", "Nstep"))
    data = _arrays(archive.read("data.npy", allow_object=True), "data")
    lengths = {name: values.shape[0] if values.shape else -1 for name, values in data.items()}
    if len(set(lengths.values())) != 1 or -1 in lengths.values():
        raise ValueError(f"the fields disagree on the number of rows: {lengths}")
    n_rows = next(iter(lengths.values()))
    next_of = archive.read("next_of.npy", allow_object=True)
    cache = archive.read("cache.npy", allow_object=True)
    if (not is_safe) != (cache is not None) or (is_safe and next_of is not None):
        raise ValueError(f"safe={is_safe} contradicts its cache and next_of")
    names: list[str] = []
    if next_of is not None:
        if not isinstance(next_of, np.ndarray) or next_of.dtype.kind != "U" or next_of.ndim != 1:
            found = type(next_of).__name__
            raise ValueError(f"'next_of.npy': expected texts or None, got {found}")
        names = list(dict.fromkeys(next_of.tolist()))
    for name in names:
        if name not in data:
            raise ValueError(f"next_of: there is no field {name!r}")
    if cache is None:
        cache = {}
    if type(cache) is not dict or not all(type(row) is int for row in cache):
        raise ValueError("cache: expected rows by number")
    cached = {row: _arrays(values, "cache") for row, values in cache.items()}
    return _Content(is_nstep, data, cached, names, n_rows, _read_ends(archive, n_rows))


def _read_ends(archive: Archive, n_rows: int) -> NDArray[np.bool_] | None:
    """A flag for the last row of each episode; None in cpprb's own files."""
    name = f"{ENDS}.npy"
    if name not in archive.names:
        return None
    found: Array = archive.read(name)
    if found.dtype != np.bool_ or found.shape != (n_rows,):
        raise ValueError(
            f"{name!r}: expected {n_rows} bools, got {found.dtype} of shape {found.shape}"
        )
    return found.view(np.uint8).astype(np.bool_)


def _single(archive: Archive, name: str) -> int:
    """The integer or bool of a member."""
    found = archive.read(f"{name}.npy")
    if found.shape != () or found.dtype.kind not in "biu":
        raise ValueError(
            f"'{name}.npy': expected one integer or bool, got {found.dtype} of shape {found.shape}"
        )
    return int(found)


def _arrays(found: Any, where: str) -> dict[str, Array]:
    """The dict of arrays; ``ValueError`` for any other value."""
    arrays = {}
    if type(found) is dict:
        arrays = {name: plain(stored) for name, stored in found.items()}
    if not arrays or not all(
        type(name) is str and isinstance(values, np.ndarray) for name, values in arrays.items()
    ):
        raise ValueError(f"{where}: expected arrays by name")
    return arrays


def _rows(field: Field, content: _Content, first: int) -> Array:
    """The values of a field for the rows from ``first`` on, converted for the buffer."""
    base = field.name[len(NEXT) :] if field.name.startswith(NEXT) else ""
    is_next = field.name not in content.data and base in content.next_of
    name = base if is_next else field.name
    if name not in content.data:
        raise KeyError(f"no field {field.name!r}, but {list(content.data)}")
    values = content.data[name]
    _check(field, values.dtype, values.shape[1:])
    # The first row follows the last one, as in a full ring.
    rows = np.concatenate([values[first + 1 :], values[:1]]) if is_next else values[first:]
    cached = {row: found[field.name] for row, found in content.cache.items() if field.name in found}
    if cached:
        rows = rows.copy()
    for row, value in cached.items():
        _check(field, value.dtype, value.shape)
        if value.dtype != values.dtype:
            raise ValueError(f"cache: field {field.name!r} has another dtype than in data")
        if first <= row < content.n_rows:
            rows[row - first] = value.reshape(rows.shape[1:])
    if rows.dtype.kind == "b" and rows.size and rows.view(np.uint8).max() > 1:
        raise ValueError(f"field {field.name!r}: a bool that is neither 0 nor 1")
    return field.convert(rows.reshape(len(rows), *field.shape), 1)


def _check(field: Field, came: np.dtype[Any], shape: tuple[int, ...]) -> None:
    """Raise ``ValueError`` unless values of this dtype and shape can be rows of the field."""
    declared, expected = _in_file(field.dtype), field.shape
    if shape != expected and not (field.is_single and shape in ((), (1,))):
        raise ValueError(f"field {field.name!r}: expected shape {expected}, got {shape}")
    are_numbers = came.kind in NUMBERS and declared.kind in NUMBERS
    if not (are_numbers or np.can_cast(came, declared, "safe")):
        raise ValueError(f"field {field.name!r}: expected {declared}, got {came}")


# ---------------------------------------------------------------------- adding


def _ends(
    buffer: Buffer, rows: Mapping[str, Array], content: _Content, first: int
) -> NDArray[np.bool_]:
    """A flag for each row from ``first`` on that ends an episode.

    In cpprb's own files these are the rows whose next values are not in the following row. Each
    n-step row, and each row of several environments, is an episode of its own.
    """
    if content.is_nstep or buffer.n_envs > 1:
        return np.ones(content.n_rows - first, np.bool_)
    if content.ends is not None:
        return content.ends[first:]
    pairs = {
        NEXT + name: name
        for name, values in rows.items()
        if NEXT + name in rows
        and (rows[NEXT + name].shape, rows[NEXT + name].dtype) == (values.shape, values.dtype)
    }
    ends = _breaks(rows, pairs)
    if not pairs:
        ends[[row - first for row in content.cache if first <= row < content.n_rows]] = True
    return ends


def _add(buffer: Buffer, rows: Mapping[str, Array], ends: NDArray[np.bool_]) -> None:
    """Add rows and end episodes. The caller makes other writers wait."""
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
