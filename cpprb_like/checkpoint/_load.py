"""Loading: makes the object of a saved state, or restores its values in an existing one.

Not here: rows (``_rows_back``), other values (``_values``), and the methods that users call
(``_saved``).
"""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from cpprb_like._fields.schema import Schema
from cpprb_like._machine.prefetch_state import halted
from cpprb_like.checkpoint import _arrays, _manifest
from cpprb_like.checkpoint._arrays import DamagedError, FileEntry
from cpprb_like.checkpoint._disk import Disk, OpenFiles
from cpprb_like.checkpoint._held import HoldsRows
from cpprb_like.checkpoint._rows_back import RingReader, differences, read_objects, schema_of
from cpprb_like.checkpoint._values import (
    Decoder,
    Encoder,
    dtype_from_json,
    give_state,
    state_of,
)
from cpprb_like.samplers._base import Sampler

__all__ = ["Options", "State", "Target", "decoded", "load", "restore", "retried"]

Found = TypeVar("Found")

ATTEMPTS = 50  # each one has a state that was newer than that of the last one
UNSYNCHRONISED = "the state was saved with sync=False, so a crash of the machine may have cost it"


class Target(NamedTuple):
    """Where the rows of one buffer go."""

    size: int | None = None
    fields: tuple[str, ...] | None = None
    mmap_prefix: str | Path | None = None
    mmap_mode: Any = "x"
    schema: Schema | None = None  # which the saved one has to be


class Options(NamedTuple):
    """How to load."""

    classes: tuple[type, ...]
    replace: dict[str, Any]
    decode: Callable[[bytes], Any] | None
    salvage: bool
    state: int | None
    watch: Callable[[int], None]


class State:
    """One state of a folder, open for reading."""

    def __init__(self, disk: Disk, options: Options) -> None:
        self.disk = disk
        self._options = options
        self.damage: list[str] = []
        self.manifest = self._choose()
        self.entries = [_entry(saved) for saved in self.manifest["files"]]

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Have all files open, so that they can be read while another save removes them."""
        files = OpenFiles(self.disk, [entry.name for entry in self.entries])
        with contextlib.closing(files):
            self.disk = files
            yield

    def _choose(self) -> dict[str, Any]:
        there = _manifest.numbers(self.disk)
        if not there:
            raise FileNotFoundError(f"{self.disk.folder}: there is no checkpoint")
        wanted = self._options.state
        if wanted is not None:
            if wanted not in there:
                raise FileNotFoundError(
                    f"{self.disk.folder}: there is no state {wanted}, only {there}"
                )
            return _manifest.read(self.disk, wanted)
        for number in reversed(there):
            try:
                return _manifest.read(self.disk, number)
            except DamagedError as error:  # noqa: PERF203 (there are few)
                if not self._options.salvage:
                    raise DamagedError(
                        f"{error}; salvage=True loads the newest state that is in order, of {there}"
                    ) from None
                self.damage.append(str(error))
        raise DamagedError(f"{self.disk.folder}: no state is in order: {self.damage}")

    def decode(
        self, targets: Mapping[str, Target], replace: Mapping[str, Any]
    ) -> tuple[Any, Decoder]:
        """The saved object, and the decoder, which has its parts by path."""
        options = self._options
        salvage = self.damage.append if options.salvage else None

        def make_rows(cls: type, ring: int, path: str, attributes: dict[str, Any]) -> Any:
            target = targets.get(path, Target())
            if target.schema is not None:
                found = differences(target.schema, schema_of(self.manifest["rings"][ring]))
                if found:
                    raise ValueError("the fields differ: " + "; ".join(found))
            return self.open_ring(cls, ring, attributes, target, self.reader(ring, salvage))

        decoder = Decoder(self._array, self._objects, make_rows, options.classes, replace)
        try:
            root = decoder.decode(self.manifest["root"])
        except DamagedError as error:
            if _manifest.is_synchronised(self.manifest):
                raise
            others = [n for n in _manifest.numbers(self.disk) if n != self.manifest["number"]]
            choice = f"; state= chooses another one, of {others}" if others else ""
            raise DamagedError(f"{error}; {UNSYNCHRONISED}{choice}") from None
        decoder.finish()
        return root, decoder

    def reader(self, ring: int, salvage: Callable[[str], None] | None) -> RingReader:
        """What reads the rows of a ring."""
        saved, options = self.manifest["rings"][ring], self._options
        return RingReader(self.disk, saved, self.entries, salvage, options.decode, options.watch)

    def open_ring(
        self,
        cls: type,
        ring: int,
        attributes: dict[str, Any],
        target: Target,
        reader: RingReader,
    ) -> Any:
        """An object of this class that holds the rows of a ring, with these attributes."""
        blank: Any = cls.__new__
        holder = blank(cls)
        holder._open_saved(attributes, reader, target, (str(self.manifest["id"]), ring))
        return holder

    def part(self, saved: Any, replace: Mapping[str, Any]) -> Any:
        """What some JSON of the manifest is by itself; it holds no rows.

        ``replace``: by path in it, what takes the place of what was saved.
        """
        return Decoder(self._array, self._objects, _refuse_rows, (), replace).decode(saved)

    def whole_part(self, saved: Any, path: str) -> Any:
        """As ``part``, of what is at a path, and may have classes and functions of the caller."""
        options = self._options
        decoder = Decoder(
            self._array, self._objects, _refuse_rows, options.classes, options.replace
        )
        value = decoder.decode(saved, path)
        decoder.finish()
        return value

    def _read(self, number: Any, dtype: np.dtype[Any], shape: tuple[int, ...]) -> NDArray[Any]:
        entry = self.entries[number]
        out = np.zeros(0, np.uint8)
        total = int(np.prod(shape, dtype=object)) * dtype.itemsize
        if entry.codec is None and entry.nbytes < total:
            raise DamagedError(f"{entry.name}: shorter than {total} bytes")
        out = np.zeros(total, np.uint8)

        def take(offset: int, piece: NDArray[np.uint8]) -> None:
            out[offset : offset + len(piece)] = piece

        _arrays.read(self.disk, entry, dtype, shape, take, self._options.watch)
        return out.view(dtype).reshape(shape) if total else np.zeros(shape, dtype)

    def _array(self, number: int) -> NDArray[Any]:
        saved = self.manifest["arrays"][number]
        dtype = dtype_from_json(saved["dtype"])
        try:
            return self._read(saved["file"], dtype, tuple(saved["shape"]))
        except DamagedError as error:
            if not self._options.salvage or dtype.kind != "f":
                raise
            self.damage.append(f"{error}, so all of {saved['path']} is lost")
            return np.full(saved["shape"], math.nan, dtype)

    def _objects(self, number: int) -> list[Any]:
        lengths, data, n = self.manifest["objects"][number]
        entry = self.entries[lengths]
        if entry.codec is None and entry.nbytes < 8 * n:
            raise DamagedError(f"{entry.name}: shorter than {8 * n} bytes")

        def take(*arguments: Any) -> bool:
            file, dtype, shape, put = arguments
            watch = self._options.watch
            _arrays.read(self.disk, self.entries[file], dtype, shape, put, watch)
            return True

        found = read_objects(take, self.entries, (lengths, data, n), self._options.decode)
        assert found is not None
        return found


def _refuse_rows(*_: Any) -> Any:
    raise DamagedError("rows where there can be none")


def _entry(saved: Any) -> FileEntry:
    name, nbytes, crc32, codec = saved
    well = isinstance(name, str) and _manifest.OURS.fullmatch(name)
    numbers = type(nbytes) is int and type(crc32) is int and nbytes >= 0
    if not well or not numbers or codec not in (None, *_arrays.CODECS):
        raise DamagedError(f"the manifest names a file {saved!r}")
    return FileEntry(name, nbytes, crc32, codec)


def decoded(
    disk: Disk,
    options: Options,
    targets: Mapping[str, Target],
    replace: Mapping[str, Any],
    without: str | None = None,
) -> tuple[Any, Decoder]:
    """Decode the state that the options name; again if a save replaces it by a newer one.

    ``without``: an attribute of the whole that is left out.
    """
    return retried(disk, partial(_decoded, disk, options, targets, replace, without))


def _decoded(
    disk: Disk,
    options: Options,
    targets: Mapping[str, Target],
    replace: Mapping[str, Any],
    without: str | None,
) -> tuple[Any, Decoder]:
    try:
        state = State(disk, options)
        if without is not None:
            state.manifest["root"]["state"].pop(without, None)
        with state.held():
            found = state.decode(targets, replace)
    except (AttributeError, AssertionError, LookupError, TypeError) as error:
        if isinstance(error, TypeError) and "hand over" in str(error):
            raise
        raise ValueError(f"{disk.folder}: the manifest is damaged: {error!r}") from error
    if state.damage:
        warnings.warn(
            f"{disk.folder}: loaded without what is damaged: {'; '.join(state.damage)}",
            stacklevel=6,
        )
    return found


def retried(disk: Disk, attempt: Callable[[], Found]) -> Found:
    """``attempt()``; again if it failed, and a save has replaced the state that it read."""
    for left in reversed(range(ATTEMPTS)):
        there = _manifest.numbers(disk)
        try:
            return attempt()
        except (DamagedError, FileNotFoundError) as error:
            if left and _manifest.numbers(disk) != there:
                continue
            folder, text = str(disk.folder), str(error)
            if isinstance(error, FileNotFoundError) or folder in text:
                raise
            raise DamagedError(f"{folder}: {text}") from None
    raise AssertionError("not reached")


def load(disk: Disk, options: Options, target: Target) -> Any:
    """A new object with what was saved."""
    root, decoder = decoded(disk, options, {"": target}, options.replace)
    if target != Target() and not isinstance(root, HoldsRows):
        raise ValueError(
            f"size, fields and mmap_prefix are for one buffer; a {type(root).__name__} was saved"
        )
    del decoder
    return root


def restore(disk: Disk, options: Options, root: Any) -> None:
    """Give an object what was saved; it, and its parts, stay the same objects."""
    encoder = Encoder(options.classes, lambda holder: holder._attributes_to_save())
    encoder.encode(root)
    targets = {
        path: Target(size=holder.capacity, schema=holder.schema)
        for path, holder in encoder.elements.items()
        if issubclass(type(holder), HoldsRows)
    }
    own = {type(value) for value in encoder.elements.values()}
    classes = tuple(own - {np.random.Generator}) + options.classes
    given = _External(encoder.external, options.replace)
    found, decoder = decoded(disk, options._replace(classes=classes), targets, given)
    if type(found) is not type(root):
        raise TypeError(
            f"a {type(found).__name__} was saved, which cannot be given to a {type(root).__name__}"
        )
    _check_kinds(encoder.elements, decoder.elements)
    with halted(encoder.elements.values()):
        _move(encoder.elements, decoder.elements)


class _External(dict[str, Any]):
    """By path, what the caller names, and the functions and environments that an object has."""

    def __init__(self, own: Mapping[str, Any], named: Mapping[str, Any]) -> None:
        super().__init__(own)
        self.update(named)


def _check_kinds(old: dict[str, Any], new: dict[str, Any]) -> None:
    """Raise for a part that cannot be given what was saved, before any part has changed."""
    for path, value in new.items():
        there = old.get(path)
        if type(there) is not type(value):
            continue
        if isinstance(value, np.random.Generator):
            own, saved = type(there.bit_generator), type(value.bit_generator)  # type: ignore[union-attr]
            if own is not saved:
                raise TypeError(
                    f"{path}: a generator of {saved.__name__} was saved, which cannot be given to "
                    f"one of {own.__name__}"
                )
        elif isinstance(value, HoldsRows):
            there._expect_no_file()  # type: ignore[union-attr]


def _move(old: dict[str, Any], new: dict[str, Any]) -> None:
    """Give each of the old parts what the new one at the same path has."""
    existing: dict[int, Any] = {}
    for path, value in new.items():
        if path in old and type(old[path]) is type(value):
            existing[id(value)] = old[path]

    def swap(value: Any) -> Any:
        if id(value) in existing:
            return existing[id(value)]
        if type(value) is dict:
            return {key: swap(entry) for key, entry in value.items()}
        if type(value) in (list, tuple):
            return type(value)(swap(entry) for entry in value)
        return value

    for path, value in new.items():
        there = old.get(path)
        if id(value) not in existing:
            continue
        if isinstance(value, np.random.Generator):
            _set_generator(there, value)
        elif isinstance(value, HoldsRows):
            there._take_over(value, swap)  # type: ignore[union-attr]
        elif isinstance(value, Sampler):
            there.__dict__.clear()
            there.__dict__.update({key: swap(entry) for key, entry in value.__dict__.items()})
        else:
            give_state(there, swap(state_of(value)))


def _set_generator(there: Any, value: np.random.Generator) -> None:
    with there.bit_generator.lock:
        there.bit_generator.state = value.bit_generator.state
