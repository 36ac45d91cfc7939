"""Files of TFRecord, and the ``tf.train.Example`` messages in them, without TensorFlow.

A record is its length, a checksum of the length, its bytes, and a checksum of the bytes. Checksums
are CRC-32C, rotated and shifted ("masked"). An ``Example`` maps names to lists of bytes, floats or
integers. Only the parts of protocol buffers that this needs are implemented.
Formats: ``tensorflow/core/lib/io/record_writer.h`` and ``tensorflow/core/example/feature.proto``.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cpprb_like._machine.crc32 import crc32c
from cpprb_like._machine.opening import open_regular
from cpprb_like.datasets._model import Array
from cpprb_like.datasets._ragged import bytes_of_rows

MASK = 0xA282EAD8
LENGTH = struct.Struct("<QI")
CHECKSUM = struct.Struct("<I")
BYTES, FLOATS, INTEGERS = 1, 2, 3  # field numbers of the kinds of lists in feature.proto

Feature = tuple[int, Any]  # a kind, and a list of bytes or an array


def _masked(data: bytes | memoryview) -> int:
    checksum = crc32c(data)
    return ((checksum >> 15 | checksum << 17) + MASK) & 0xFFFFFFFF


# ---------------------------------------------------------------------- records


class Record(NamedTuple):
    """Position of a record's bytes."""

    path: Path
    start: int
    length: int


def write(file: IO[bytes], data: bytes) -> None:
    """Write a record."""
    head = struct.pack("<Q", len(data))
    file.write(LENGTH.pack(len(data), _masked(head)))
    file.write(data)
    file.write(CHECKSUM.pack(_masked(data)))


def records(path: Path) -> Iterator[Record]:
    """Positions of the records of a file; ``ValueError`` if a length is wrong."""
    size = path.stat().st_size
    at = 0
    with open_regular(path) as file:
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
    with open_regular(record.path) as file:
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
    """An ``Example`` with the bytes of each value of some columns."""
    entries = []
    for name, values in features.items():
        if values.dtype == object:
            listed = b"".join(_field(1, data) for data in bytes_of_rows(values))
        else:
            flat = np.ascontiguousarray(values).reshape(len(values), -1).view(np.uint8)
            head = np.frombuffer(_varint(1 << 3 | 2) + _varint(flat.shape[1]), np.uint8)
            heads = np.broadcast_to(head, (len(flat), len(head)))
            listed = np.concatenate([heads, flat], axis=1).tobytes()
        data = _field(BYTES, listed)
        entries.append(_field(1, _field(1, name.encode()) + _field(2, data)))
    return _field(1, b"".join(entries))


def _fields(data: memoryview) -> Iterator[tuple[int, memoryview]]:
    """The fields of a message; ``ValueError`` unless all values are bytes or messages."""
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
    """The lists of an ``Example`` by name: a list of bytes, or an array of float32 or int64.

    Raises ``ValueError`` if ``data`` is no ``Example``.
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
    """Decode varints: 7 bits in each byte, lowest first; bit 8 marks all bytes but the last."""
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
