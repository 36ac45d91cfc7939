"""Arrays as ``.npy`` files: written and read piece by piece, with the checksum of the bytes.

A file that is read is compared with what the manifest says of it: its length, its checksum, and the
header that an array of this dtype and shape has. No header is parsed, so there is nothing in one
that could be believed. Not here: which arrays there are (``_rows``, ``_values``).
"""

from __future__ import annotations

import io
import lzma
import re
import zlib
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from cpprb_like._arguments.arrays import Bytes
from cpprb_like._arguments.narrow_dtypes import descr_of
from cpprb_like._machine.crc32 import crc32
from cpprb_like.checkpoint._disk import Disk
from cpprb_like.errors import DamagedError

__all__ = [
    "CHUNK_NBYTES",
    "CODECS",
    "Codec",
    "DamagedError",
    "FileEntry",
    "check",
    "read",
    "transcribe",
    "write",
]

CHUNK_NBYTES = 1 << 20  # stays in a cache; with 256 KiB the system takes a fifth longer to copy it
MAGIC = b"\x93NUMPY\x03\x00"
ALIGNMENT = 64
SHORT_HEADER = 128  # bytes of that of an array of bytes with two lengths
CODECS = ("zlib", "lzma")


class Codec(NamedTuple):
    """How files are compressed."""

    name: str | None = None  # one of CODECS, or None
    level: int | None = None

    def compressor(self) -> Any:
        """An object with ``compress`` and ``flush``."""
        if self.name == "zlib":
            return zlib.compressobj(-1 if self.level is None else self.level)
        return lzma.LZMACompressor(preset=self.level)

    def check(self) -> Codec:
        """Itself; ``ValueError`` unless there is such a codec and level."""
        if self.name not in (None, *CODECS):
            raise ValueError(f"codec: expected None or one of {list(CODECS)}, got {self.name!r}")
        if self.level is not None and (self.name is None or not 0 <= self.level <= 9):
            raise ValueError(f"level: expected 0 to 9, of a codec, got {self.level!r}")
        return self


class FileEntry(NamedTuple):
    """What a manifest says of a file."""

    name: str
    nbytes: int
    crc32: int
    codec: str | None

    def to_json(self) -> list[Any]:
        """As it stands in a manifest."""
        return [self.name, self.nbytes, self.crc32, self.codec]


Watch = Callable[[int], None]  # gets the number of bytes since its last call


def header(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    """The first bytes of the ``.npy`` file of a C-contiguous array.

    Values of ml_dtypes are bytes there; the manifest has the name of their dtype.
    """
    descr = descr_of(dtype, as_bytes=True)
    text = f"{{'descr': {descr!r}, 'fortran_order': False, 'shape': {shape!r}, }}".encode()
    pad = -(len(MAGIC) + 4 + len(text) + 1) % ALIGNMENT
    text += b" " * pad + b"\n"
    return MAGIC + len(text).to_bytes(4, "little") + text


def write(
    disk: Disk,
    name: str,
    dtype: np.dtype[Any],
    shape: tuple[int, ...],
    pieces: Iterator[Bytes],
    codec: Codec,
    watch: Watch,
) -> tuple[FileEntry, Any]:
    """Write an array, whose bytes come in ``pieces``, to a new file.

    Returns the open ``Output`` as well, to be synchronised and closed. If it raises, there is no
    file.
    """
    if codec.name is not None:
        name += f".{codec.name}"
    output = disk.create(name)
    try:
        sink = _Sink(output, codec)
        start = header(dtype, shape)
        if codec.name is None:
            output.reserve(len(start) + int(np.prod(shape, dtype=object)) * dtype.itemsize)
        sink.write(start)
        for piece in pieces:
            sink.write(piece.data)
            watch(piece.nbytes)
        sink.finish()
    except BaseException:
        try:
            output.close()
        finally:
            disk.remove(name)
        raise
    return FileEntry(name, sink.nbytes, sink.crc32, codec.name), output


class _Sink:
    """Counts, sums up and compresses what is written to a file."""

    def __init__(self, output: Any, codec: Codec) -> None:
        self._output = output
        self._compressor = None if codec.name is None else codec.compressor()
        self.nbytes = 0
        self.crc32 = 0

    def write(self, data: Any) -> None:
        if self._compressor is not None:
            data = self._compressor.compress(data)
        self._put(data)

    def finish(self) -> None:
        if self._compressor is not None:
            self._put(self._compressor.flush())

    def _put(self, data: Any) -> None:
        view = memoryview(data).cast("B")
        if len(view):
            self.crc32 = crc32(view, self.crc32)
            self.nbytes += len(view)
            self._output.write(view)


def read(
    disk: Disk,
    entry: FileEntry,
    dtype: np.dtype[Any],
    shape: tuple[int, ...],
    take: Callable[[int, Bytes], None],
    watch: Watch,
    place: Callable[[int, int], Bytes | None] | None = None,
) -> None:
    """Read an array in pieces: ``take(offset, piece)``.

    A piece is whole entries of the first axis, some MiB of them. ``place(offset, most)`` may give
    the memory that the next one goes to, of at most so many bytes, in place of a buffer that is
    used again; such a piece is not taken. Raises ``DamagedError``, at the end if the checksum is
    another one: what was taken is worth nothing then.
    """
    expected = header(dtype, shape)
    row = int(np.prod(shape[1:], dtype=object)) * dtype.itemsize
    total = row * shape[0] if shape else row
    step = max(1, CHUNK_NBYTES // max(1, row)) * max(1, row)
    if entry.codec is None and entry.nbytes != total + len(expected):
        raise DamagedError(f"{entry.name}: {entry.nbytes} bytes are no {dtype} of shape {shape}")
    try:
        with disk.open(entry.name) as file:
            source = _Source(file, entry)
            if source.read_bytes(len(expected)) != expected:
                raise DamagedError(f"{entry.name}: not the header of {dtype} of shape {shape}")
            buffer = np.empty(min(total, step), np.uint8)
            offset = 0
            while offset < total:
                most = min(total - offset, len(buffer))
                piece = None if place is None else place(offset, most)
                if piece is not None:
                    source.read_into(piece)
                else:
                    piece = buffer[:most]
                    source.read_into(piece)
                    take(offset, piece)
                watch(piece.nbytes)
                offset += len(piece)
            source.finish()
    except FileNotFoundError as error:
        raise _gone(entry, error) from None
    except (zlib.error, lzma.LZMAError, EOFError) as error:
        raise DamagedError(f"{entry.name}: {error}") from None


def check(
    disk: Disk,
    entry: FileEntry,
    dtype: np.dtype[Any],
    shape: tuple[int | None, ...],
    watch: Watch,
) -> None:
    """Raise ``DamagedError`` unless a file is what was written: length, checksum and header.

    One length of ``shape`` may be None, which its header says then, of an array of bytes.
    """
    lengths = tuple(-1 if length is None else length for length in shape)
    if -1 in lengths:
        try:
            with disk.open(entry.name) as file:
                start = _Source(file, entry).read_bytes(SHORT_HEADER).decode("latin-1")
        except FileNotFoundError as error:
            raise _gone(entry, error) from None
        except (zlib.error, lzma.LZMAError, EOFError) as error:
            raise DamagedError(f"{entry.name}: {error}") from None
        text = re.escape(f"'shape': {lengths!r}").replace(re.escape("-1"), r"(\d{1,18})")
        found = re.search(text, start)
        if found is None:
            raise DamagedError(
                f"{entry.name}: not the header of {dtype} in {len(shape)} dimensions"
            )
        lengths = tuple(int(found[1]) if length == -1 else length for length in lengths)
    read(disk, entry, dtype, lengths, lambda *_: None, watch)


def transcribe(
    disk: Disk, entry: FileEntry, to: Disk, codec: Codec | None, watch: Watch
) -> FileEntry:
    """Copy a file to another folder, compressed in another way unless ``codec`` is None.

    Raises ``DamagedError``, and leaves no file, if it is not what was written.
    """
    chosen = Codec(entry.codec) if codec is None else codec
    plain = entry if codec is not None else entry._replace(codec=None)
    name = entry.name.partition(".npy")[0] + ".npy" + (f".{chosen.name}" if chosen.name else "")
    output = to.create(name)
    try:
        try:
            sink = _Sink(output, chosen if codec is not None else Codec())
            with disk.open(entry.name) as file:
                source = _Source(file, plain)
                while piece := source.read_some(CHUNK_NBYTES):
                    sink.write(piece)
                    watch(len(piece))
                source.finish()
            sink.finish()
            output.sync()
        finally:
            output.close()
    except BaseException as error:
        to.remove(name)
        if isinstance(error, FileNotFoundError):
            raise _gone(entry, error) from None
        if isinstance(error, (zlib.error, lzma.LZMAError, EOFError)):
            raise DamagedError(f"{entry.name}: {error}") from None
        raise
    return FileEntry(name, sink.nbytes, sink.crc32, chosen.name)


def _gone(entry: FileEntry, error: FileNotFoundError) -> DamagedError:
    """What is said where a file should be, and is none, or no regular one."""
    why = error.strerror if "regular" in str(error.strerror) else "there is no such file"
    return DamagedError(f"{entry.name}: {why}")


class _Source:
    """Sums up and decompresses what is read from a file: no byte beyond those that it had at first.

    Raises ``DamagedError`` if it has another size than the manifest says.
    """

    def __init__(self, file: BinaryIO, entry: FileEntry) -> None:
        self._file = file
        self._entry = entry
        self._left = file.seek(0, io.SEEK_END)
        file.seek(0)
        if self._left != entry.nbytes:
            raise DamagedError(f"{entry.name}: expected {entry.nbytes} bytes, got {self._left}")
        self._crc32 = 0
        self._decompressor: Any = None
        if entry.codec == "zlib":
            self._decompressor = zlib.decompressobj()
        elif entry.codec == "lzma":
            self._decompressor = lzma.LZMADecompressor()
        self._rest = b""

    def read_bytes(self, n: int) -> bytes:
        found = np.empty(n, np.uint8)
        self.read_into(found)
        return found.tobytes()

    def read_into(self, to: Bytes) -> None:
        view = memoryview(to.data)
        while view:
            n = self._read(view)
            if n == 0:
                raise DamagedError(f"{self._entry.name}: it ends too early")
            view = view[n:]

    def read_some(self, most: int) -> bytes:
        """At least one byte, and at most so many; none at the end."""
        found = np.empty(most, np.uint8)
        return found[: self._read(memoryview(found.data))].tobytes()

    def _read(self, view: memoryview) -> int:
        if self._decompressor is None:
            view = view[: self._left]
            n = int(self._file.readinto(view))  # type: ignore[attr-defined]
            self._left -= n
            self._crc32 = crc32(view[:n], self._crc32)
            return n
        data = self._decompress(len(view))
        view[: len(data)] = data
        return len(data)

    def _decompress(self, most: int) -> bytes:
        """At least one byte, and at most so many; none at the end."""
        while True:
            if self._entry.codec == "zlib":
                data = self._decompressor.decompress(self._rest, most)
                self._rest = self._decompressor.unconsumed_tail
            else:
                needs = self._decompressor.needs_input
                data = b""
                if not self._decompressor.eof:
                    data = self._decompressor.decompress(self._rest if needs else b"", most)
                    self._rest = b"" if needs else self._rest
            if data:
                return bytes(data)
            if self._entry.codec == "zlib" and self._rest:
                continue
            if self._entry.codec == "lzma" and not (
                self._decompressor.eof or self._decompressor.needs_input
            ):
                continue
            self._rest = self._packed()
            if not self._rest:
                return b""

    def _packed(self) -> bytes:
        """The next bytes of the file; none at the end."""
        found = self._file.read(min(CHUNK_NBYTES, self._left))
        self._left -= len(found)
        self._crc32 = crc32(found, self._crc32)
        return found

    def finish(self) -> None:
        """Raise unless the file ends here, and is what was written."""
        end = np.empty(1, np.uint8)
        if self._read(memoryview(end.data)):
            raise DamagedError(f"{self._entry.name}: it holds more than its array")
        while self._packed():
            pass
        if self._crc32 != self._entry.crc32:
            raise DamagedError(
                f"{self._entry.name}: checksum {self._crc32:08x}, expected {self._entry.crc32:08x}"
            )
