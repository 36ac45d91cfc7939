"""Options of saves and loads, which are checked once and passed on as one value.

Not here: the documentation of the options (``_saved``).
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from cpprb_like._arguments.checks import as_int, as_path
from cpprb_like._fields.checked_options import CheckedOptions
from cpprb_like._fields.schema import read_size

CODECS = ("zlib", "lzma")

NAME_BESIDE = r"\w(?:[\w .+=@-]*\w)?"  # of files beside: in one folder, on every system
MOST_NBYTES_OF_NAME = 200  # a name in the folder has up to 255, with the number of the state

Encode = Callable[[Any], bytes]
Decode = Callable[[bytes], Any]
Beside = Mapping[str, bytes | bytearray | memoryview | Callable[[BinaryIO], object]]


@dataclass(frozen=True)
class Codec:
    """Compression of files."""

    name: str | None = None  # one of CODECS
    level: int | None = None

    def __post_init__(self) -> None:
        if self.name not in (None, *CODECS):
            raise ValueError(f"codec: expected None or one of {list(CODECS)}, got {self.name!r}")
        level = 0 if self.level is None else as_int("level", self.level)
        if self.level is not None and (self.name is None or not 0 <= level <= 9):
            raise ValueError(f"level: expected 0 to 9, of a codec, got {self.level!r}")

    def compressed(self, pieces: Iterable[Any]) -> Iterator[Any]:
        """Pieces of bytes, compressed; the pieces themselves without a codec."""
        compressor: Any
        if self.name is None:
            yield from pieces
            return
        if self.name == "zlib":
            compressor = zlib.compressobj(-1 if self.level is None else self.level)
        else:
            import lzma  # noqa: PLC0415 (few programs need it)

            compressor = lzma.LZMACompressor(preset=self.level)
        yield from map(compressor.compress, pieces)
        yield compressor.flush()


@dataclass(frozen=True)
class SaveOptions:
    """Options of a save: see ``Checkpointed.save``."""

    keep: int = 1
    codec: Codec = Codec()
    sync: bool = True
    encode: Encode | None = None
    classes: tuple[type, ...] = ()
    beside: Beside | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.sync, bool):
            raise TypeError(f"sync: expected a bool, got {self.sync!r}")
        as_int("keep", self.keep, 1)
        check_beside(self.beside)


def check_beside(beside: Beside | None) -> None:
    """Raise ``TypeError`` or ``ValueError`` unless these are files to save beside an object."""
    given: Any = {} if beside is None else beside
    if not isinstance(given, Mapping):
        raise TypeError(f"beside: expected a dict of files by name, got {given!r}")
    taken: dict[str, Any] = {}
    for name, content in given.items():
        if not isinstance(name, str) or not re.fullmatch(NAME_BESIDE, name):
            raise ValueError(
                "beside: expected names of letters, digits and, inside of a name, of ' .+=@_-', as "
                f"'model.pt', got {name!r}"
            )
        if len(name.encode()) > MOST_NBYTES_OF_NAME:
            raise ValueError(
                f"beside: expected names of at most {MOST_NBYTES_OF_NAME} bytes, got {name!r}"
            )
        other = taken.setdefault(name.casefold(), name)
        if other != name:
            raise ValueError(
                f"beside: expected names that differ in more than capitals, got {other!r} and "
                f"{name!r}"
            )
        if not isinstance(content, (bytes, bytearray, memoryview)) and not callable(content):
            raise TypeError(
                f"beside[{name!r}]: expected bytes, or a function that writes to a file, got "
                f"{type(content).__name__}"
            )


@dataclass(frozen=True)
class LoadOptions:
    """Options of a load: see ``Checkpointed.load``."""

    classes: tuple[type, ...] = ()
    replaced: Mapping[str, Any] = field(default_factory=dict)
    decode: Decode | None = None
    salvage: bool = False
    state: int | None = None  # None: the newest state

    def __post_init__(self) -> None:
        given: object = self.replaced
        if not isinstance(given, Mapping):
            raise TypeError(f"replace: expected a dict of values by path, got {given!r}")
        if self.state is not None:
            as_int("state", self.state, 0)


@dataclass(frozen=True)
class Target:
    """The memory of a loaded buffer: its capacity, its fields, its rooms, and its file."""

    size: int | None = None
    fields: tuple[str, ...] | None = None
    room: Mapping[str, float] | None = None  # of some axes; the others keep their rooms
    mmap_prefix: str | Path | None = None
    mmap_mode: Any = "x"
    options: CheckedOptions | None = None  # what the saved options have to equal, but for the size

    def __post_init__(self) -> None:
        if self.size is not None:
            read_size(self.size)
        if self.mmap_prefix is not None:
            as_path("mmap_prefix", self.mmap_prefix)
