"""``verify``: checks every file of a checkpoint, and counts the rows that damage costs.

Each file that a state names is read once and not stored: its length, its checksum, and the header
that the manifest promises. Rows are read into memory only where something is damaged, to count
those that are lost.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from cpprb_like.checkpoint import _arrays, _manifest
from cpprb_like.checkpoint._arrays import DamagedError
from cpprb_like.checkpoint._disk import Disk
from cpprb_like.checkpoint._load import Options, State
from cpprb_like.checkpoint._look import as_it_is, count_lost, reading
from cpprb_like.checkpoint._progress import Progress, Tell, shown
from cpprb_like.checkpoint._rows_back import dtypes_in_files, schema_of
from cpprb_like.checkpoint._values import dtype_from_json

__all__ = ["Damage", "Verdict", "verify"]

Shape = tuple[int | None, ...]
ROW_IDS = np.dtype(np.int64)
BYTE = np.dtype(np.uint8)


class Damage(NamedTuple):
    """A damaged file: its name, what it holds, and what is wrong."""

    name: str
    content: str
    message: str


class Verdict(NamedTuple):
    """How a state is.

    Attributes
    ----------
    number : int
        Of the state.
    files, nbytes : int
        How many files it has, and their bytes as the manifest says.
    damage : list of Damage
    lost : dict of int to (int, int)
        By number of a ring: rows that are lost, and rows that there were.
    fatal : str
        Why the state cannot be loaded, even with ``salvage=True``; ``""`` if it can.
    """

    number: int
    files: int
    nbytes: int
    damage: list[Damage]
    lost: dict[int, tuple[int, int]]
    fatal: str

    @property
    def is_in_order(self) -> bool:
        """Whether nothing is damaged."""
        return not self.damage and not self.fatal


class Use(NamedTuple):
    """A file of a state, and what it should hold."""

    file: int
    content: str
    dtype: np.dtype[Any]
    shape: Shape
    ring: int | None = None


def verify(folder: str | Path, *, progress: Tell = None) -> list[Verdict]:
    """Read every file of every state of a checkpoint.

    Parameters
    ----------
    folder : str or path
        The folder that ``save`` was given.
    progress : callable or bool, optional
        As for ``save``.

    Returns
    -------
    list of Verdict
        One for each state, oldest first.

    Raises
    ------
    FileNotFoundError
        There is no checkpoint in this folder.
    ValueError
        A state is of an unknown version of the format.

    Notes
    -----
    Cost: all files are read once; little memory, but that of the rows of a buffer of which a file
    is damaged.
    """
    disk = Disk(folder)
    there = _manifest.numbers(disk)
    if not there:
        raise FileNotFoundError(f"{folder}: there is no checkpoint")
    known: dict[tuple[Any, ...], str] = {}
    with shown(progress) as on_progress:
        watch = Progress(on_progress)
        for name in disk.names():
            with contextlib.suppress(FileNotFoundError):
                watch.total += disk.size(name) if ".npy" in name else 0
        while True:
            verdicts = [_judge(disk, number, known, watch) for number in there]
            left = _manifest.numbers(disk)
            verdicts = [one for one in verdicts if one.is_in_order or one.number in left]
            if verdicts:
                return verdicts
            there = left  # a save replaced every state while its files were read


def _judge(disk: Disk, number: int, known: dict[tuple[Any, ...], str], watch: Progress) -> Verdict:
    try:
        with reading(disk.folder):
            state = State(disk, Options((), {}, as_it_is, True, number, lambda _: None))
            uses = list(_uses(state.manifest))
            entries = [state.entries[use.file] for use in uses]
    except (DamagedError, FileNotFoundError) as error:
        return Verdict(number, 0, 0, [], {}, str(error).removeprefix(f"{disk.folder}: "))
    damage, rings, fatal = [], set(), ""
    for use, entry in zip(uses, entries, strict=True):
        key = (*entry, use.dtype, use.shape)
        if key not in known:
            known[key] = _look_at(disk, entry, use, watch)
        if not known[key]:
            continue
        damage.append(Damage(entry.name, use.content, known[key]))
        if use.ring is None and use.dtype.kind == "f":
            continue  # priorities: rows that have none get that of new ones
        if use.ring is None:
            fatal = f"{use.content} is lost"
        else:
            rings.add(use.ring)
    lost = {}
    for ring in sorted(rings):
        saved = state.manifest["rings"][ring]
        try:
            with reading(disk.folder):
                lost[ring] = count_lost(state, ring), saved["written"] - saved["oldest"]
        except (MemoryError, ValueError) as error:
            fatal = fatal or str(error)
    nbytes = sum(entry.nbytes for entry in state.entries)
    return Verdict(number, len(state.entries), nbytes, damage, lost, fatal)


def _look_at(disk: Disk, entry: _arrays.FileEntry, use: Use, watch: Progress) -> str:
    """What is wrong with a file; nothing if it is what was written."""
    try:
        _arrays.check(disk, entry, use.dtype, use.shape, watch)
    except (DamagedError, OSError) as error:
        return str(error).removeprefix(f"{entry.name}: ")
    return ""


def _uses(manifest: dict[str, Any]) -> Iterator[Use]:
    """Every file that a state needs, and what it should hold."""
    for number, ring in enumerate(manifest["rings"]):
        where = f"buffer {number}" if len(manifest["rings"]) > 1 else "the buffer"
        yield from _uses_of_ring(number, ring, where)
    for saved in manifest["arrays"]:
        what, dtype = f"the array {saved['path']!r}", dtype_from_json(saved["dtype"])
        yield Use(saved["file"], what, dtype, tuple(saved["shape"]))
    for lengths, data, n in manifest["objects"]:
        yield Use(lengths, "a list of Python objects", ROW_IDS, (n,))
        yield Use(data, "a list of Python objects", BYTE, (None,))


def _uses_of_ring(number: int, ring: dict[str, Any], where: str) -> Iterator[Use]:
    kinds = _kinds_of_parts(ring)
    items = {name: int(np.prod(shape, dtype=object)) for name, _, shape in ring["layout"]["fields"]}
    for segment in ring["segments"]:
        for part, (file, low, high) in segment["parts"].items():
            dtype, shape = kinds[part]
            what = f"{part} of rows {low} to {high - 1} of {where}"
            yield Use(file, what, dtype, (high - low, *shape), number)
        for name, (ids, values, n) in segment["overflow"].items():
            what = f"the overflow of {name.partition(' of ')[2]} of {where}"
            yield Use(ids, what, ROW_IDS, (n,), number)
            yield Use(values, what, BYTE, (n, None), number)
        for name, (lengths, data, low, high) in segment["objects"].items():
            what = f"field {name} of rows {low} to {high - 1} of {where}"
            yield Use(lengths, what, ROW_IDS, ((high - low) * items[name],), number)
            yield Use(data, what, BYTE, (None,), number)
    for name, (latest, seen) in ring["newest"].items():
        n_envs, what = ring["layout"]["n_envs"], f"the newest {name} of {where}"
        yield Use(latest, what, BYTE, (n_envs, None), number)
        yield Use(seen, what, BYTE, (n_envs,), number)


def _kinds_of_parts(ring: dict[str, Any]) -> dict[str, tuple[np.dtype[Any], tuple[int, ...]]]:
    """By name, the dtype and shape that a row has in the files of a part."""
    schema, dtypes = schema_of(ring), dtypes_in_files(ring)
    kinds = {"records": (dtype_from_json(ring["layout"]["record"]), ())}
    fields = {field.name: field for field in schema.fields}
    found: dict[str, tuple[np.dtype[Any], tuple[int, ...]]] = {**kinds}
    for field in schema.fields:
        found[f"field {field.name}"] = dtypes[field.name], field.shape
    for stack in schema.stacks:
        shape = fields[stack.name].shape
        frame = (*shape[: stack.axis], *shape[stack.axis + 1 :])
        found[f"frames of {stack.name}"] = dtypes[stack.name], frame
        found[f"runs of {stack.name}"] = BYTE, ()
    for name, _ in schema.next_of:
        found[f"marks of {name}"] = BYTE, ()
    return found
