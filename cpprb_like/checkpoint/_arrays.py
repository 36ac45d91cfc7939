"""Arrays as ``.npy`` files: written and read piece by piece, with the checksum of the bytes.

A file that is read is compared with what the manifest says of it: its length, its checksum, and the
header that an array of this dtype and shape has. No header is parsed, so there is nothing in one
that could be believed. Not here: which arrays there are (``_segments``, ``_values``).
"""

from __future__ import annotations

import io
import lzma
import math
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from cpprb_like._arguments.arrays import Bytes
from cpprb_like._arguments.narrow_dtypes import descr_of
from cpprb_like._machine.crc32 import crc32
from cpprb_like.checkpoint._disk import Disk
from cpprb_like.checkpoint._options import Codec
from cpprb_like.checkpoint._state import File
from cpprb_like.errors import DamagedError

__all__ = [
    "CHUNK_NBYTES",
    "not_taken",
    "read",
    "read_array",
    "transcribe",
    "write",
]

CHUNK_NBYTES = 1 << 20  # stays in a cache; with 256 KiB the system takes a fifth longer to copy it
MAGIC = b"\x93NUMPY\x03\x00"
ALIGNMENT = 64


Watch = Callable[[int], None]  # called with the number of bytes just written or read


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
) -> tuple[File, Any]:
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
            output.reserve(len(start) + math.prod(shape) * dtype.itemsize)
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
    return File(name, sink.nbytes, sink.crc32, sink.codec, dtype, shape), output


class _Sink:
    """Compresses bytes on their way to a file, with their number and checksum."""

    def __init__(self, output: Any, codec: Codec) -> None:
        self._output = output
        self.codec: Any = codec.name
        self._compressor = None if codec.name is None else codec.compressor()
        self.nbytes = self.crc32 = 0

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
    file: File,
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
    expected = _expected_header(file)
    row, total = math.prod(file.shape[1:]) * file.dtype.itemsize, file.array_nbytes
    step = max(1, CHUNK_NBYTES // max(1, row)) * max(1, row)
    try:
        with disk.open(file.name) as opened:
            source = _Source(opened, file)
            if source.read_bytes(len(expected)) != expected:
                raise DamagedError(
                    f"{file.name}: not the header of {file.dtype} of shape {file.shape}"
                )
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
        raise _gone(file, error) from None
    except (zlib.error, lzma.LZMAError, EOFError) as error:
        raise DamagedError(f"{file.name}: {error}") from None


def read_array(disk: Disk, file: File, watch: Watch) -> NDArray[Any]:
    """Read an array whole."""
    _expected_header(file)  # before memory is allocated for bytes that the file cannot hold
    total = file.array_nbytes
    out = np.zeros(total, np.uint8)
    read(disk, file, not_taken, watch, lambda start, n: out[start : start + n])
    return out.view(file.dtype).reshape(file.shape) if total else np.zeros(file.shape, file.dtype)


def _expected_header(file: File) -> bytes:
    """The header of a file; ``DamagedError`` if the file has another length."""
    expected = header(file.dtype, file.shape)
    if file.codec is None and file.nbytes != file.array_nbytes + len(expected):
        raise DamagedError(
            f"{file.name}: {file.nbytes} bytes are no {file.dtype} of shape {file.shape}"
        )
    return expected


def not_taken(offset: int, piece: Bytes) -> None:
    """Take no piece: it lies in its place already, or the file is only checked."""


def transcribe(disk: Disk, file: File, to: Disk, codec: Codec | None, watch: Watch) -> File:
    """Copy a file to another folder, compressed in another way unless ``codec`` is None.

    Raises ``DamagedError``, and leaves no file, if it is not what was written.
    """
    chosen = Codec(file.codec) if codec is None else codec
    kind: Any = chosen.name
    plain = file if codec is not None else replace(file, codec=None)
    name = file.name.partition(".npy")[0] + ".npy" + (f".{chosen.name}" if chosen.name else "")
    output = to.create(name)
    try:
        try:
            sink = _Sink(output, chosen if codec is not None else Codec())
            with disk.open(file.name) as opened:
                source = _Source(opened, plain)
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
            raise _gone(file, error) from None
        if isinstance(error, (zlib.error, lzma.LZMAError, EOFError)):
            raise DamagedError(f"{file.name}: {error}") from None
        raise
    return replace(file, name=name, nbytes=sink.nbytes, crc32=sink.crc32, codec=kind)


def _gone(file: File, error: FileNotFoundError) -> DamagedError:
    """What is said where a file should be, and is none, or no regular one."""
    why = error.strerror if "regular" in str(error.strerror) else "there is no such file"
    return DamagedError(f"{file.name}: {why}")


class _Source:
    """Sums up and decompresses what is read from a file: no byte beyond those that it had at first.

    Raises ``DamagedError`` if it has another size than the manifest says.
    """

    def __init__(self, opened: BinaryIO, file: File) -> None:
        self._opened = opened
        self._file = file
        self._left = opened.seek(0, io.SEEK_END)
        opened.seek(0)
        if self._left != file.nbytes:
            raise DamagedError(f"{file.name}: expected {file.nbytes} bytes, got {self._left}")
        self._crc32 = 0
        self._decompressor: Any = None
        if file.codec == "zlib":
            self._decompressor = zlib.decompressobj()
        elif file.codec == "lzma":
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
                raise DamagedError(f"{self._file.name}: it ends too early")
            view = view[n:]

    def read_some(self, most: int) -> bytes:
        """At least one byte, and at most so many; none at the end."""
        found = np.empty(most, np.uint8)
        return found[: self._read(memoryview(found.data))].tobytes()

    def _read(self, view: memoryview) -> int:
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
        """At least one byte, and at most so many; none at the end."""
        while True:
            if self._file.codec == "zlib":
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
            if self._file.codec == "zlib" and self._rest:
                continue
            if self._file.codec == "lzma" and not (
                self._decompressor.eof or self._decompressor.needs_input
            ):
                continue
            self._rest = self._packed()
            if not self._rest:
                return b""

    def _packed(self) -> bytes:
        """The next bytes of the file; none at the end."""
        found = self._opened.read(min(CHUNK_NBYTES, self._left))
        self._left -= len(found)
        self._crc32 = crc32(found, self._crc32)
        return found

    def finish(self) -> None:
        """Raise unless the file ends here, and is what was written."""
        end = np.empty(1, np.uint8)
        if self._read(memoryview(end.data)):
            raise DamagedError(f"{self._file.name}: it holds more than its array")
        while self._packed():
            pass
        if self._crc32 != self._file.crc32:
            raise DamagedError(
                f"{self._file.name}: checksum {self._crc32:08x}, expected {self._file.crc32:08x}"
            )
