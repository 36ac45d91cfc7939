"""Files of TFRecord, and the ``tf.train.Example`` messages in them, without TensorFlow.

A record is its length, a checksum of that, its bytes, and a checksum of these; checksums are
CRC-32C, rotated and shifted ("masked"). An ``Example`` is a map of names to lists of bytes, floats
or integers; of protocol buffers no more is known here than that takes.
Formats: ``tensorflow/core/lib/io/record_writer.h`` and ``tensorflow/core/example/feature.proto``.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cpprb_like.checkpoint._disk import Disk
from cpprb_like.datasets._model import Array

__all__ = ["Record", "crc32c", "dump_example", "load_example", "read_record", "records", "write"]

POLYNOMIAL = 0x82F63B78  # of Castagnoli, reflected
LANES = 2048
FEW = 256  # bytes that a loop of Python is faster for
MASK = 0xA282EAD8
LENGTH = struct.Struct("<QI")
CHECKSUM = struct.Struct("<I")
BYTES, FLOATS, INTEGERS = 1, 2, 3  # kinds of lists, by their numbers in feature.proto

Registers = NDArray[np.uint32]
Feature = tuple[int, Any]  # a kind, and a list of bytes or an array


# ---------------------------------------------------------------------- checksums


def _table() -> Registers:
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = (table >> np.uint32(1)) ^ np.where(table & 1, np.uint32(POLYNOMIAL), np.uint32(0))
    return table


TABLE = _table()
NUMBERS = TABLE.tolist()
ONE_BITS = np.uint32(1) << np.arange(32, dtype=np.uint32)


def _apply(matrix: Registers, registers: Registers) -> Registers:
    """Each register times a matrix of bits, whose columns are given."""
    result = np.zeros_like(registers)
    for bit in range(32):
        result ^= np.where(registers >> np.uint32(bit) & np.uint32(1), matrix[bit], np.uint32(0))
    return result


@lru_cache(256)
def _zeros(n: int) -> Registers:
    """What n bytes of zeros do to a register, as a matrix."""
    if n == 1:
        moved: Registers = (ONE_BITS >> np.uint32(8)) ^ TABLE[ONE_BITS & np.uint32(255)]
        return moved
    half = _zeros(n // 2)
    whole = _apply(half, half)
    return _apply(_zeros(1), whole) if n % 2 else whole


def crc32c(data: bytes | memoryview) -> int:
    """The checksum CRC-32C of some bytes.

    The register is linear in the bytes. So those are cut into lanes that are processed side by
    side, and neighbours are put together: the left one moved on by the length of the right one.
    Cost: some 10 ns a byte.

    Examples
    --------
    >>> from cpprb_like.datasets._tfrecord import crc32c
    >>> hex(crc32c(b"123456789"))
    '0xe3069283'
    """
    n = len(data)
    if n < FEW:
        register = 0xFFFFFFFF
        for byte in bytes(data):
            register = (register >> 8) ^ NUMBERS[(register ^ byte) & 255]
        return register ^ 0xFFFFFFFF
    length = -(-n // LANES)
    padded = np.zeros(LANES * length, np.uint8)  # zeros in front leave a register of zeros alone
    padded[LANES * length - n :] = np.frombuffer(data, np.uint8)
    lanes = np.ascontiguousarray(padded.reshape(LANES, length).T)
    registers = np.zeros(LANES, np.uint32)
    for column in lanes:
        registers = (registers >> np.uint32(8)) ^ TABLE[(registers ^ column) & np.uint32(255)]
    while len(registers) > 1:
        registers = _apply(_zeros(length), registers[::2]) ^ registers[1::2]
        length *= 2
    first = _apply(_zeros(n), np.full(1, 0xFFFFFFFF, np.uint32))
    return int(registers[0] ^ first[0]) ^ 0xFFFFFFFF


def _masked(data: bytes | memoryview) -> int:
    checksum = crc32c(data)
    return ((checksum >> 15 | checksum << 17) + MASK) & 0xFFFFFFFF


# ---------------------------------------------------------------------- records


class Record(NamedTuple):
    """Where a record is."""

    path: Path
    start: int  # of its bytes
    length: int


def write(file: IO[bytes], data: bytes) -> None:
    """Write a record."""
    head = struct.pack("<Q", len(data))
    file.write(LENGTH.pack(len(data), _masked(head)))
    file.write(data)
    file.write(CHECKSUM.pack(_masked(data)))


def records(path: Path) -> Iterator[Record]:
    """The records of a file; ``ValueError`` if a length is wrong."""
    size = path.stat().st_size
    at = 0
    with Disk(path.parent).open(path.name) as file:
        while at < size:
            file.seek(at)
            head = file.read(LENGTH.size)
            if len(head) < LENGTH.size:
                raise ValueError(f"{path}: expected a record at byte {at}, got the end")
            length, checksum = LENGTH.unpack(head)
            if checksum != _masked(head[:8]):
                raise ValueError(f"{path}: the length of the record at byte {at} is damaged")
            start = at + LENGTH.size
            if length > size - start - CHECKSUM.size:
                raise ValueError(f"{path}: the record at byte {at} is cut off")
            yield Record(path, start, length)
            at = start + length + CHECKSUM.size


def read_record(record: Record) -> bytes:
    """The bytes of a record; ``ValueError`` if they are damaged."""
    with Disk(record.path.parent).open(record.path.name) as file:
        file.seek(record.start, os.SEEK_SET)
        data = file.read(record.length)
        checksum = file.read(CHECKSUM.size)
    if len(checksum) < CHECKSUM.size or CHECKSUM.unpack(checksum)[0] != _masked(data):
        raise ValueError(f"{record.path}: the record at byte {record.start} is damaged")
    return data


# ---------------------------------------------------------------------- messages


def _varint(number: int) -> bytes:
    digits = bytearray()
    while number > 127:
        digits.append(number & 127 | 128)
        number >>= 7
    digits.append(number)
    return bytes(digits)


def _field(number: int, data: bytes) -> bytes:
    """A field whose value is bytes, or another message."""
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def dump_example(features: Mapping[str, Array]) -> bytes:
    """An ``Example``.

    Arrays of float32, shape (n,), are lists of floats; of bool, lists of integers; and of uint8,
    shape (n, k), lists of n times k bytes.
    """
    entries = []
    for name, values in features.items():
        if values.dtype == np.bool_:
            kind, data = INTEGERS, _field(1, values.astype(np.uint8).tobytes())
        elif values.dtype == np.uint8:
            head = np.frombuffer(_varint(1 << 3 | 2) + _varint(values.shape[1]), np.uint8)
            heads = np.broadcast_to(head, (len(values), len(head)))
            kind, data = BYTES, np.concatenate([heads, values], axis=1).tobytes()
        else:
            kind, data = FLOATS, _field(1, values.astype("<f4", copy=False).tobytes())
        entries.append(_field(1, _field(1, name.encode()) + _field(2, _field(kind, data))))
    return _field(1, b"".join(entries))


def _fields(data: memoryview) -> Iterator[tuple[int, memoryview]]:
    """The fields of a message whose values are bytes; ``ValueError`` if there are others."""
    at, n = 0, len(data)
    while at < n:
        tag, at = _read_varint(data, at)
        length, at = _read_varint(data, at)
        if tag & 7 != 2 or length > n - at:
            raise ValueError(f"expected a field of bytes, got tag {tag} and length {length}")
        yield tag >> 3, data[at : at + length]
        at += length


def _read_varint(data: memoryview, at: int) -> tuple[int, int]:
    number = shift = 0
    while at < len(data) and shift < 64:
        byte = data[at]
        at += 1
        number |= (byte & 127) << shift
        if byte < 128:
            return number, at
        shift += 7
    raise ValueError("expected an integer, got the end")


def load_example(data: bytes) -> dict[str, Feature]:
    """The lists of an ``Example``, by name: of bytes, or an array of float32 or int64.

    Raises ``ValueError`` if it is none.
    """
    found: dict[str, Feature] = {}
    for _, features in _fields(memoryview(data)):
        for _, entry in _fields(features):
            parts = dict(_fields(entry))
            if 1 not in parts:
                raise ValueError("expected features with names")
            name = bytes(parts[1]).decode("utf-8", errors="replace")
            for kind, values in _fields(parts.get(2, memoryview(b""))):
                found[name] = kind, _list_of(kind, values)
    return found


def _list_of(kind: int, values: memoryview) -> Any:
    pieces = [piece for number, piece in _fields(values) if number == 1]
    if kind == BYTES:
        return pieces
    joined = pieces[0] if len(pieces) == 1 else b"".join(pieces)
    if kind == FLOATS:
        return np.frombuffer(joined, "<f4")
    if kind != INTEGERS:
        raise ValueError(f"expected a list of bytes, floats or integers, got kind {kind}")
    return _integers(np.frombuffer(joined, np.uint8))


def _integers(data: Array) -> NDArray[np.int64]:
    """Integers of 7 bits a byte, the lowest first, all but the last byte of each marked."""
    stops = np.flatnonzero(data < 128) + 1
    if not len(data):
        return np.zeros(0, np.int64)
    if not len(stops) or stops[-1] != len(data):
        raise ValueError("expected integers, got the end")
    starts = np.concatenate([[0], stops[:-1]])
    lengths = stops - starts
    if lengths.max() > 10:
        raise ValueError("expected integers of at most 10 bytes")
    places = np.arange(len(data)) - np.repeat(starts, lengths)
    digits = (data & 127).astype(np.uint64) << (places * 7).astype(np.uint64)
    return np.bitwise_or.reduceat(digits, starts).view(np.int64)
