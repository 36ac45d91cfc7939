"""Members of an ``.npz`` file, read in pieces: what its headers say is held against what is there.

A zip file says the size of each member in several places, and a small one may unpack to any size.
So nothing is allocated because a header says so, and a member is refused if it is shorter or longer
than was said, overlaps another one, or has another checksum. Not here: what members hold.
"""

from __future__ import annotations

import re
import struct
import zipfile
import zlib
from typing import IO, Any, NamedTuple

__all__ = ["Archive", "ArrayHeader", "Member", "read_header"]

PIECE_NBYTES = 1 << 16
SMALL_NBYTES = 1 << 16  # the most that is read at once as bytes
LOCAL = struct.Struct("<4s5H3L2H")  # the header in front of a member
ELSEWHERE = 0xFFFFFFFF  # the size stands in an extra field, as it may take 8 bytes
MAGIC = b"\x93NUMPY\x01\x00"
HEADER = re.compile(
    rb"\{'descr': '([<>|=]?[A-Za-z]\d*)', 'fortran_order': (True|False), "
    rb"'shape': \(((?:\d{1,19}, ?)*(?:\d{1,19})?)\), \} *\n"
)


class ArrayHeader(NamedTuple):
    """What a ``.npy`` file says of its array."""

    descr: str
    is_fortran: bool
    shape: tuple[int, ...]


class Archive:
    """The members of a zip file, by name.

    Raises ``ValueError`` if there are more than ``most``, one is there twice, they overlap, or they
    are neither stored nor deflated.
    """

    def __init__(self, file: IO[bytes], most: int) -> None:
        self._file = file
        try:
            with zipfile.ZipFile(file) as opened:
                found = opened.infolist()
        except MemoryError:
            raise
        except Exception as error:  # of a damaged directory zipfile raises anything
            raise ValueError(f"no zip file: {error}") from error
        if len(found) > most:
            raise ValueError(f"expected at most {most} members, got {len(found)}")
        self._members: dict[str, tuple[zipfile.ZipInfo, int]] = {}
        end = 0
        for info in sorted(found, key=lambda info: info.header_offset):
            start = self._start(info)
            if info.header_offset < end:
                raise ValueError(f"{info.filename!r} lies in another member")
            if info.filename in self._members:
                raise ValueError(f"{info.filename!r} is there twice")
            end = start + info.compress_size
            self._members[info.filename] = info, start
        file.seek(0, 2)
        if end > file.tell():
            raise ValueError("the file ends before its last member does")

    def _start(self, info: zipfile.ZipInfo) -> int:
        """Where the bytes of a member begin."""
        self._file.seek(info.header_offset)
        data = self._file.read(LOCAL.size)
        if len(data) < LOCAL.size:
            raise ValueError(f"{info.filename!r}: the file ends before it begins")
        mark, _, flags, method, _, _, *sizes, n_name, n_extra = LOCAL.unpack(data)
        name = self._file.read(n_name)
        if mark != b"PK\x03\x04" or name != info.filename.encode():
            raise ValueError(f"{info.filename!r} is not where the directory says")
        if flags & 1 or info.flag_bits & 1:
            raise ValueError(f"{info.filename!r} is encrypted")
        if method != info.compress_type or method not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise ValueError(f"{info.filename!r}: expected a stored or deflated member")
        said = info.CRC, info.compress_size, info.file_size
        if not flags & 8 and any(
            here not in (there, ELSEWHERE) for here, there in zip(sizes, said, strict=True)
        ):
            raise ValueError(f"{info.filename!r}: its two headers contradict each other")
        if method == zipfile.ZIP_STORED and info.compress_size != info.file_size:
            raise ValueError(f"{info.filename!r}: it is stored, and two sizes are given")
        return info.header_offset + LOCAL.size + len(name) + int(n_extra)

    @property
    def names(self) -> list[str]:
        """The names of the members, in the order of the file."""
        return list(self._members)

    def open(self, name: str) -> Member:
        """A member, from its beginning; ``ValueError`` if there is none of this name."""
        if name not in self._members:
            raise ValueError(f"it has no {name!r}, but {self.names}")
        return Member(self._file, *self._members[name])


class Member:
    """The bytes of a member, unpacked piece by piece."""

    def __init__(self, file: IO[bytes], info: zipfile.ZipInfo, start: int) -> None:
        self.name = info.filename
        self.nbytes = info.file_size  # as the directory says
        self.packed_nbytes = info.compress_size
        self.position = 0
        self._file = file
        self._next, self._end = start, start + info.compress_size
        is_deflated = info.compress_type == zipfile.ZIP_DEFLATED
        self._inflate: Any = zlib.decompressobj(-15) if is_deflated else None
        self._checksum, self._found = info.CRC, 0
        self._unpacked = 0
        self._piece: bytes | memoryview = b""
        self._at = 0

    def _packed(self) -> bytes:
        self._file.seek(self._next)
        data = self._file.read(min(PIECE_NBYTES, self._end - self._next))
        if not data and self._next < self._end:
            raise ValueError(f"{self.name!r}: the file ends before it does")
        self._next += len(data)
        return data

    def _unpack(self) -> bytes:
        """The next bytes, at most ``PIECE_NBYTES``; none at the end."""
        if self._inflate is None:
            data = self._packed()
        else:
            data = b""
            while not data and not self._inflate.eof:
                packed = self._inflate.unconsumed_tail or self._packed()
                try:
                    data = self._inflate.decompress(packed, PIECE_NBYTES)
                except zlib.error as error:
                    raise ValueError(f"{self.name!r}: it cannot be unpacked: {error}") from error
                if not (packed or data or self._inflate.eof):
                    raise ValueError(f"{self.name!r}: its compressed bytes end too early")
        self._unpacked += len(data)
        self._found = zlib.crc32(data, self._found)
        if self._unpacked > self.nbytes:
            raise ValueError(f"{self.name!r}: it says {self.nbytes} bytes, and has more")
        return data

    def _refill(self, missing: int) -> None:
        self._piece, self._at = self._unpack(), 0
        if not self._piece:
            raise ValueError(f"{self.name!r}: it ends {missing} bytes too early")

    def read(self, n: int) -> bytes:
        """The next n bytes, at most ``SMALL_NBYTES``; ``ValueError`` if there are fewer."""
        at = self._at
        if at + n <= len(self._piece):
            self._at = at + n
            self.position += n
            return bytes(self._piece[at : at + n])
        self.expect(n, SMALL_NBYTES)
        data = bytearray(n)
        self.read_into(memoryview(data))
        return bytes(data)

    def expect(self, n: int, most: int | None = None) -> None:
        """Raise ``ValueError`` if n bytes cannot follow, or are more than ``most``."""
        if n > self.nbytes - self.position or (most is not None and n > most):
            raise ValueError(
                f"{self.name!r}: {n} bytes are said to follow byte {self.position} of {self.nbytes}"
            )

    def read_into(self, out: memoryview) -> None:
        """Fill ``out``, bytes, with the next ones."""
        filled = 0
        while filled < len(out):
            if self._at == len(self._piece):
                self._refill(len(out) - filled)
            n = min(len(out) - filled, len(self._piece) - self._at)
            out[filled : filled + n] = self._piece[self._at : self._at + n]
            self._at += n
            filled += n
        self.position += filled

    def skip(self, n: int) -> None:
        """Pass over the next n bytes."""
        self.expect(n)
        left = n
        while left:
            if self._at == len(self._piece):
                self._refill(left)
            passed = min(left, len(self._piece) - self._at)
            self._at += passed
            left -= passed
        self.position += n

    def finish(self) -> None:
        """Raise ``ValueError`` unless this is the end, and all was what the headers say."""
        if self.position != self.nbytes or self._at < len(self._piece) or self._unpack():
            raise ValueError(
                f"{self.name!r}: it says {self.nbytes} bytes, of which {self.position} have a "
                "meaning"
            )
        if self._inflate is not None and (self._inflate.unused_data or self._next < self._end):
            raise ValueError(f"{self.name!r}: bytes follow its compressed ones")
        if self._found != self._checksum:
            raise ValueError(f"{self.name!r}: its checksum is wrong")


def read_header(member: Member) -> ArrayHeader:
    """The header of a ``.npy`` file, of the first version and as NumPy writes it."""
    start = member.read(len(MAGIC) + 2)
    if not start.startswith(MAGIC):
        raise ValueError(f"{member.name!r}: expected a .npy file of version 1.0")
    text = member.read(int.from_bytes(start[-2:], "little"))
    found = HEADER.fullmatch(text)
    if found is None:
        raise ValueError(f"{member.name!r}: expected a header of one array, got {text[:200]!r}")
    shape = tuple(int(length) for length in found[3].replace(b" ", b"").split(b",") if length)
    return ArrayHeader(found[1].decode(), found[2] == b"True", shape)
