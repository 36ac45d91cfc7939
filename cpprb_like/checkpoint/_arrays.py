"""Arrays as ``.npy`` files: written and read piece by piece, with the checksum of the bytes.

A file that is read is compared with what the manifest says of it: its length, its checksum, and the
header that an array of this dtype and shape has. No header is parsed, so there is nothing in one
that could be believed. Not here: which arrays there are (``_segments``, ``_values``).
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
from cpprb_like.checkpoint._state import File
from cpprb_like.errors import DamagedError

__all__ = ["CHUNK_NBYTES", "check", "read", "read_array", "transcribe", "write"]

CHUNK_NBYTES = 1 << 20  # stays in a cache; with 256 KiB the system takes a fifth longer to copy it
MAGIC = b"\x93NUMPY\x03\x00"
ALIGNMENT = 64


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
    pieces: Iterable[Bytes],
    codec: Codec,
) -> tuple[File, Output]:
    """Write an array, whose bytes come in ``pieces``, to a new file.

    Returns the open ``Output`` as well, to be synchronised and closed. If it raises, there is no
    file.
    """
    start = header(dtype, shape)
    if codec.name is not None:
        name += f".{codec.name}"
    nbytes, checksum, output = _write(
        disk,
        name,
        itertools.chain([start], (piece.data for piece in pieces)),
        codec,
        len(start) + math.prod(shape) * dtype.itemsize,
    )
    kind: Any = codec.name
    return File(name, nbytes, checksum, kind, dtype, shape), output


def _write(
    disk: Disk, name: str, pieces: Iterable[Any], codec: Codec, expected: int
) -> tuple[int, int, Output]:
    """Write a new file; its bytes, their checksum, and the open file. No file if it raises."""
    nbytes = checksum = 0
    compressor = codec.compressor()
    output: Output = disk.create(name)
    try:
        if compressor is None:
            output.reserve(expected)
        else:
            pieces = itertools.chain(map(compressor.compress, pieces), _flushed(compressor))
        for piece in pieces:
            view = memoryview(piece).cast("B")
            if len(view):
                checksum = crc32(view, checksum)
                nbytes += len(view)
                output.write(view)
    except BaseException:
        try:
            output.close()
        finally:
            disk.remove(name)
        raise
    return nbytes, checksum, output


def _flushed(compressor: Any) -> Iterator[bytes]:
    """The last bytes of a compressor, once they are asked for."""
    yield compressor.flush()


def read(
    disk: Disk, file: File, place: Callable[[int, int], Bytes | None] | None = None
) -> Iterator[tuple[int, Bytes]]:
    """Read an array in pieces, each with its offset.

    A piece is whole entries of the first axis, some MiB of them. ``place(offset, most)`` may give
    the memory that the next one goes to, of at most so many bytes. Such a piece is not yielded; the
    others lie in a buffer that is used again. Raises ``DamagedError``, at the end if the checksum
    is another one: all pieces are worth nothing then.
    """
    expected = _expected_header(file)
    row, total = math.prod(file.shape[1:]) * file.dtype.itemsize, file.array_nbytes
    step = max(1, CHUNK_NBYTES // max(1, row)) * max(1, row)
    with _opened(disk, file, file.codec) as source:
        if source.read_bytes(len(expected)) != expected:
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


def check(disk: Disk, file: File) -> None:
    """Read a file without storing it; ``DamagedError`` if it is not what was written."""
    for _ in read(disk, file):
        pass


def read_array(disk: Disk, file: File) -> NDArray[Any]:
    """Read an array whole."""
    _expected_header(file)  # before memory is allocated for bytes that the file cannot hold
    total = file.array_nbytes
    out = np.zeros(total, np.uint8)
    for _ in read(disk, file, lambda start, n: out[start : start + n]):
        pass
    return out.view(file.dtype).reshape(file.shape) if total else np.zeros(file.shape, file.dtype)


def _expected_header(file: File) -> bytes:
    """The header of a file; ``DamagedError`` if the file has another length."""
    expected = header(file.dtype, file.shape)
    if file.codec is None and file.nbytes != file.array_nbytes + len(expected):
        raise DamagedError(
            f"{file.name}: {file.nbytes} bytes are no {file.dtype} of shape {file.shape}"
        )
    return expected


def transcribe(disk: Disk, file: File, to: Disk, codec: Codec | None) -> File:
    """Copy a file to another folder, compressed in another way unless ``codec`` is None.

    Raises ``DamagedError``, and leaves no file, if it is not what was written.
    """
    if codec is None:
        *_, output = _write(to, file.name, _bytes_of(disk, file), Codec(), file.nbytes)
        copied = file
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


def _bytes_of(disk: Disk, file: File) -> Iterator[bytes]:
    """The bytes of a file as they are."""
    with _opened(disk, file, None) as source:
        while piece := source.read_some(CHUNK_NBYTES):
            yield piece
        source.finish()


@contextlib.contextmanager
def _opened(disk: Disk, file: File, codec: str | None) -> Iterator[_Source]:
    """An open file; what is wrong with it is a ``DamagedError``."""
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
    """Sums up and decompresses what is read from a file: no byte beyond those that it had at first.

    Raises ``DamagedError`` if it has another size than the manifest says.
    """

    def __init__(self, opened: BinaryIO, file: File, codec: str | None) -> None:
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
        stream = self._decompressor
        while not stream.eof:
            if self._file.codec == "zlib":
                packed = stream.unconsumed_tail or self._packed()
                is_over = not packed
            else:
                packed = self._packed() if stream.needs_input else b""
                is_over = stream.needs_input and not packed
            if is_over:
                break
            if data := stream.decompress(packed, most):
                return bytes(data)
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
