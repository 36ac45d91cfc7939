"""``OpenState``: a state of a folder, open for reading while another save may replace it.

Not here: the rows of a ring (``_ring_reader``), and restoring existing objects (``_load``).
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from cpprb_like._arguments.checks import warn
from cpprb_like._files import json_codec
from cpprb_like.checkpoint import _manifest
from cpprb_like.checkpoint._arrays import read_array
from cpprb_like.checkpoint._disk import Disk, OpenFiles
from cpprb_like.checkpoint._nodes import Node
from cpprb_like.checkpoint._options import LoadOptions, Target
from cpprb_like.checkpoint._ring_reader import RingReader, read_objects
from cpprb_like.checkpoint._saved_layout import differences
from cpprb_like.checkpoint._state import State
from cpprb_like.checkpoint._values import Decoder
from cpprb_like.errors import DamagedError

Found = TypeVar("Found")

ATTEMPTS = 50  # each attempt reads a newer state than the one before
CLUSTER = "cluster"  # folder of the checkpoint in the folder of a saved ``ClusterReplay``
UNSYNCHRONISED = "the state was saved with sync=False, so a crash of the machine may have cost it"


class OpenState:
    """One state of a folder, open for reading by ``read_state``: a ``Source`` of decoders."""

    def __init__(self, disk: Disk, options: LoadOptions) -> None:
        self.disk = disk
        self._options = options
        self.damage: list[str] = []  # messages about damaged files that ``salvage`` skipped
        self._targets: Mapping[str, Target] = {}  # by the path of a holder of rows
        self.state = self._choose()

    @property
    def root(self) -> Node:
        """The JSON of the object."""
        return Node("", self.state.root)

    @property
    def hosts(self) -> dict[Path, int]:
        """Of a saved cluster the number of the state of each host, by its folder."""
        if self.root.cls != "ray.SavedCluster":
            return {}
        states, hosts = (self.part(self.root.attribute(n), {}) for n in ("states", "hosts"))
        found = {}
        for name, state in hosts.items():
            if not re.fullmatch(r"\w+/host-\d+", f"{states}/{name}"):
                raise DamagedError(f"the manifest names a folder {states}/{name}")
            folder = self.disk.folder.parent / states / name
            found[folder] = json_codec.number("state", state, 1)
        return found

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Open all files, so that they can be read although another save removes them."""
        files = OpenFiles(self.disk, [file.name for file in self.state.files])
        with contextlib.closing(files):
            self.disk = files
            yield

    def _choose(self) -> State:
        there = _manifest.numbers(self.disk)
        if not there:
            is_cluster = (self.disk.folder / CLUSTER).is_dir()
            where = "; ClusterReplay.load() loads a saved cluster" if is_cluster else ""
            raise FileNotFoundError(f"{self.disk.folder}: there is no checkpoint{where}")
        wanted = self._options.state
        if wanted is not None:
            if wanted not in there:
                raise FileNotFoundError(
                    f"{self.disk.folder}: there is no state {wanted}, only {there}"
                )
            return _manifest.read(self.disk, int(wanted))
        for newest in reversed(there):
            try:
                return _manifest.read(self.disk, newest)
            except DamagedError as error:  # noqa: PERF203 (there are few)
                if not self._options.salvage:
                    raise DamagedError(
                        f"{error}; load(salvage=True) takes the newest state that is in order, of "
                        f"{there}, and state= chooses one"
                    ) from None
                self.damage.append(str(error))
        raise DamagedError(f"{self.disk.folder}: no state is in order: {self.damage}")

    def decode(
        self,
        replacing: Mapping[str, Any],
        targets: Mapping[str, Target],
        without: str | None = None,
    ) -> tuple[Any, dict[str, Any]]:
        """The object, and its parts by path.

        ``targets`` are the memories of holders of rows, by path. ``without`` names an attribute of
        the object that is not decoded.
        """
        self._targets = targets
        decoder = Decoder(self, self._options.classes, replacing)
        root = self.state.root if without is None else self.root.without(without)
        try:
            value = decoder.decode(root)
        except DamagedError as error:
            if self.state.synchronised:
                raise
            others = [n for n in _manifest.numbers(self.disk) if n != self.state.number]
            choice = f"; state= chooses another one, of {others}" if others else ""
            raise DamagedError(f"{error}; {UNSYNCHRONISED}{choice}") from None
        decoder.finish()
        if self.damage:
            damage = "; ".join(self.damage)
            loaded = f"state {self.state.number} was loaded without what is damaged"
            warn(f"{self.disk.folder}: {loaded}: {damage}")
        return value, decoder.elements

    def part(self, saved: Any, replacing: Mapping[str, Any]) -> Any:
        """The value of a part of the JSON. Paths of ``replacing`` begin at this part."""
        return Decoder(self, (), replacing).decode(saved)

    def whole_part(self, saved: Any, path: str) -> Any:
        """The value of the JSON at a path of the object, with the options of this load."""
        decoder = Decoder(self, self._options.classes, self._options.replaced)
        value = decoder.decode(saved, path)
        decoder.finish()
        return value

    def holder(self, cls: type, ring: int, path: str, attributes: dict[str, Any]) -> Any:
        """See ``Source``: a holder of rows, with the target of this path."""
        target = self._targets.get(path, Target())
        saved = self.state.rings[json_codec.number("ring", ring, 0, len(self.state.rings) - 1)]
        if target.options is not None:
            found = differences(target.options, saved.layout.native())
            if found:
                where = f"{path}: " if path else ""
                raise ValueError(f"{where}the rows differ: " + "; ".join(found))
        salvage = self.damage.append if self._options.salvage else None
        return self.open_ring(cls, attributes, target, self.reader(ring, salvage))

    def reader(self, ring: int, salvage: Callable[[str], None] | None) -> RingReader:
        """The reader of the rows of a ring."""
        return RingReader(self.disk, self.state, ring, self._options, salvage)

    @staticmethod
    def open_ring(
        kind: type, attributes: dict[str, Any], target: Target, reader: RingReader
    ) -> Any:
        """An object of the class ``kind`` with the rows of a reader and these attributes."""
        blank: Any = kind.__new__
        holder = blank(kind)
        holder._open_saved(attributes, reader, target)
        return holder

    def array(self, number: int) -> NDArray[Any]:
        saved, options = self.state.arrays[number], self._options
        try:
            return read_array(self.disk, saved.file)
        except DamagedError as error:
            if not options.salvage or saved.file.dtype.kind != "f":
                raise
            self.damage.append(f"{error}, so all of {saved.path} is lost")
            return np.full(saved.file.shape, math.nan, saved.file.dtype)

    def objects(self, number: int) -> list[Any]:
        return read_objects(self.disk, self.state.objects[number], 1, self._options.decode)


def read_state(disk: Disk, options: LoadOptions, use: Callable[[OpenState], Found]) -> Found:
    """``use(state)`` of the state that the options choose, whose files are all open.

    This is the one way to read a state. The call is repeated if it fails because a save has removed
    the state; ``use`` then gets a newer one.
    """

    def attempt() -> Found:
        with reading(disk.folder):
            state = OpenState(disk, options)
        with state.held():
            return use(state)

    for left in reversed(range(ATTEMPTS)):
        there = _manifest.numbers(disk)
        try:
            return attempt()
        except (DamagedError, FileNotFoundError):
            if not left or _manifest.numbers(disk) == there:
                raise
    raise AssertionError("not reached")


def read_folder(folder: str | Path, use: Callable[[OpenState], Found], **options: Any) -> Found:
    """As ``read_state``, of a folder, with these ``LoadOptions``."""
    return read_state(disk_of(folder), LoadOptions(**options), use)


def disk_of(folder: str | Path) -> Disk:
    """The folder with the states: that of ``save``, or of a saved cluster a folder in it."""
    disk = Disk(folder)
    inner = Disk(disk.folder / CLUSTER)
    return inner if _manifest.numbers(inner) and not _manifest.numbers(disk) else disk


def decoded(
    disk: Disk, options: LoadOptions, targets: Mapping[str, Target], replacing: Mapping[str, Any]
) -> tuple[Any, dict[str, Any]]:
    """Read and decode the state that the options choose: the object, and its parts by path."""

    def use(state: OpenState) -> tuple[Any, dict[str, Any]]:
        with reading(disk.folder):
            return state.decode(replacing, targets)

    return read_state(disk, options, use)


@contextlib.contextmanager
def reading(folder: str | Path) -> Iterator[None]:
    """Raise errors of missing or wrong values as a ``DamagedError`` that names this folder."""
    try:
        yield
    except DamagedError as error:
        if str(folder) in str(error):
            raise
        raise DamagedError(f"{folder}: {error}") from None
    except (AttributeError, AssertionError, LookupError, TypeError) as error:
        if isinstance(error, TypeError) and "hand over" in str(error):
            raise
        raise DamagedError(f"{folder}: the manifest is damaged: {error!r}") from error
