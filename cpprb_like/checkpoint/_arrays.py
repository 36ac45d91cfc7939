"""Arrays as ``.npy`` files: written and read piece by piece, with the checksum of the bytes.

A file must have the length and the checksum of its manifest entry, and the header of an array of
that dtype and shape. No header is parsed, so a file cannot choose its dtype or shape. Not here:
which arrays a state has (``_segments``, ``_values``).
"""

from __future__ import annotations

import contextlib
import io
import itertools
import lzma
import math
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from cpprb_like._arguments.arrays import Bytes
from cpprb_like._arguments.narrow_dtypes import descr_of
from cpprb_like._machine.crc32 import crc32
from cpprb_like.checkpoint._disk import Disk, Output
from cpprb_like.checkpoint._options import Codec
from cpprb_like.checkpoint._state import File, StoredFile
from cpprb_like.errors import DamagedError

CHUNK_NBYTES = 1 << 20  # fits a cache; chunks of 256 KiB take a fifth longer to copy
MAGIC = b"\x93NUMPY\x03\x00"
ALIGNMENT = 64


def header(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    """The first bytes of the ``.npy`` file of a C-contiguous array.

    Values of ml_dtypes have a dtype of bytes; the manifest has the name of their dtype.
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
    pieces: Iterable[Bytes],
    codec: Codec,
) -> tuple[File, Output]:
    """Write the bytes of an array, given in ``pieces``, to a new file.

    Returns the open ``Output`` too, which the caller synchronises and closes. A write that raises
    leaves no file.
    """
    start = header(dtype, shape)
    if codec.name is not None:
        name += f".{codec.name}"
    pieces_of_file = itertools.chain([start], (piece.data for piece in pieces))
    with created(disk, name) as new:
        if codec.name is None:
            new.output.reserve(len(start) + math.prod(shape) * dtype.itemsize)
        for piece in codec.compressed(pieces_of_file):
            new.write(piece)
    kind: Any = codec.name
    return File(name, new.nbytes, new.crc32, kind, dtype, shape), new.output


class NewFile:
    """A file that is written, with its length and the checksum of its bytes."""

    def __init__(self, output: Output) -> None:
        self.output = output
        self.nbytes = self.crc32 = 0

    def write(self, piece: Any) -> None:
        """Write the next bytes."""
        view = memoryview(piece).cast("B")
        if len(view):
            self.crc32 = crc32(view, self.crc32)
            self.nbytes += len(view)
            self.output.write(view)


@contextlib.contextmanager
def created(disk: Disk, name: str) -> Iterator[NewFile]:
    """A new file. If the body raises, the file is closed and removed."""
    output: Output = disk.create(name)
    try:
        yield NewFile(output)
    except BaseException:
        try:
            output.close()
        finally:
            disk.remove(name)
        raise


def read(
    disk: Disk, file: File, place: Callable[[int, int], Bytes | None] | None = None
) -> Iterator[tuple[int, Bytes]]:
    """Read an array in pieces, each with its offset.

    A piece has whole entries of the first axis, about 1 MiB in all. ``place(offset, most)`` may
    return memory for the next piece, of at most ``most`` bytes. A piece with such memory is not
    yielded. The next piece overwrites the memory of a yielded one. Raises ``DamagedError``; a wrong
    checksum is found after the last piece, and makes all pieces invalid.
    """
    expected = _expected_header(file)
    row, total = math.prod(file.shape[1:]) * file.dtype.itemsize, file.array_nbytes
    step = max(1, CHUNK_NBYTES // max(1, row)) * max(1, row)
    with _opened(disk, file, file.codec) as source:
        head = np.empty(len(expected), np.uint8)
        source.read_into(head)
        if head.tobytes() != expected:
            raise DamagedError(f"{file.name}: not the header of {file.dtype} of shape {file.shape}")
        buffer = np.empty(min(total, step), np.uint8)
        offset = 0
        while offset < total:
            most = min(total - offset, len(buffer))
            placed = None if place is None else place(offset, most)
            piece = buffer[:most] if placed is None else placed
            source.read_into(piece)
            if placed is None:
                yield offset, piece
            offset += len(piece)
        source.finish()


def read_array(disk: Disk, file: File) -> NDArray[Any]:
    """The array of a file."""
    _expected_header(file)  # refuses a shape that the file cannot hold before memory is allocated
    total = file.array_nbytes
    out = np.zeros(total, np.uint8)
    for _ in read(disk, file, lambda start, n: out[start : start + n]):
        pass
    return out.view(file.dtype).reshape(file.shape) if total else np.zeros(file.shape, file.dtype)


def _expected_header(file: File) -> bytes:
    """The header of a file; ``DamagedError`` if its length does not fit its array."""
    expected = header(file.dtype, file.shape)
    if file.codec is None and file.nbytes != file.array_nbytes + len(expected):
        raise DamagedError(
            f"{file.name}: {file.nbytes} bytes are no {file.dtype} of shape {file.shape}"
        )
    return expected


def transcribe(disk: Disk, file: StoredFile, to: Disk, codec: Codec | None) -> StoredFile:
    """Copy a file to another folder; an array with another codec unless ``codec`` is None.

    Raises ``DamagedError``, and leaves no copy, if the file is damaged.
    """
    if codec is None or not isinstance(file, File):
        with created(to, file.name) as new:
            new.output.reserve(file.nbytes)
            for piece in bytes_of(disk, file):
                new.write(piece)
        copied: StoredFile = file
        output = new.output
    else:
        name = file.name.partition(".npy")[0] + ".npy"
        pieces = (piece for _, piece in read(disk, file))
        copied, output = write(to, name, file.dtype, file.shape, pieces, codec)
    try:
        with contextlib.closing(output):
            output.sync()
    except BaseException:
        to.remove(copied.name)
        raise
    return copied


def bytes_of(disk: Disk, file: StoredFile) -> Iterator[memoryview]:
    """The bytes of a file, not decompressed, in pieces that share one buffer: see ``read``."""
    buffer = memoryview(bytearray(CHUNK_NBYTES))
    with _opened(disk, file, None) as source:
        while n := source.read(buffer):
            yield buffer[:n]
        source.finish()


@contextlib.contextmanager
def _opened(disk: Disk, file: StoredFile, codec: str | None) -> Iterator[_Source]:
    """A file, open for reading; its faults are raised as ``DamagedError``."""
    try:
        opened = disk.open(file.name)
    except FileNotFoundError as error:
        why = error.strerror if "regular" in str(error.strerror) else "there is no such file"
        raise DamagedError(f"{file.name}: {why}") from None
    with opened:
        try:
            yield _Source(opened, file, codec)
        except (zlib.error, lzma.LZMAError, EOFError) as error:
            raise DamagedError(f"{file.name}: {error}") from None


class _Source:
    """Computes the checksum of a file as it is read, and decompresses the bytes.

    Bytes that are appended after the file was opened are not read. Raises ``DamagedError`` unless
    the file has the size of its manifest entry.
    """

    def __init__(self, opened: BinaryIO, file: StoredFile, codec: str | None) -> None:
        self._opened = opened
        self._file = file
        self._left = opened.seek(0, io.SEEK_END)
        opened.seek(0)
        if self._left != file.nbytes:
            raise DamagedError(f"{file.name}: expected {file.nbytes} bytes, got {self._left}")
        self._crc32 = 0
        self._decompressor: Any = None
        if codec is not None:
            self._decompressor = (
                zlib.decompressobj() if codec == "zlib" else lzma.LZMADecompressor()
            )

    def read_into(self, to: Bytes) -> None:
        """Fill an array with the next bytes; ``DamagedError`` if the file ends too early."""
        view = memoryview(to.data)
        while view:
            n = self.read(view)
            if n == 0:
                raise DamagedError(f"{self._file.name}: it ends too early")
            view = view[n:]

    def read(self, view: memoryview) -> int:
        """Put the next bytes into a view and return their number; 0 only at the end."""
        if self._decompressor is None:
            view = view[: self._left]
            n = int(self._opened.readinto(view))  # type: ignore[attr-defined]
            self._left -= n
            self._crc32 = crc32(view[:n], self._crc32)
            return n
        data = self._decompress(len(view))
        view[: len(data)] = data
        return len(data)

    def _decompress(self, most: int) -> bytes:
        """The next bytes of the content, at least one and at most ``most``; none at the end."""
        stream = self._decompressor
        while not stream.eof:
            rest = getattr(stream, "unconsumed_tail", b"")  # of zlib; LZMA keeps its rest itself
            is_empty = getattr(stream, "needs_input", not rest)
            packed = self._packed() if is_empty else rest
            if is_empty and not packed:
                break
            if data := stream.decompress(packed, most):
                return bytes(data)
        return b""

    def _packed(self) -> bytes:
        """The next compressed bytes; none at the end."""
        found = self._opened.read(min(CHUNK_NBYTES, self._left))
        self._left -= len(found)
        self._crc32 = crc32(found, self._crc32)
        return found

    def finish(self) -> None:
        """Raise ``DamagedError`` unless the file ends here with the right checksum."""
        if self.read(memoryview(bytearray(1))):
            raise DamagedError(f"{self._file.name}: it holds more than its array")
        while self._packed():
            pass
        if self._crc32 != self._file.crc32:
            raise DamagedError(
                f"{self._file.name}: checksum {self._crc32:08x}, expected {self._file.crc32:08x}"
            )
