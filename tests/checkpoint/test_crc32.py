"""The checksum of files is zlib's, whatever the length and place of the bytes."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cpprb_like._machine.crc32 import crc32


@given(st.binary(max_size=400), st.integers(0, 2**32 - 1), st.integers(0, 17))
def test_it_is_that_of_zlib(data: bytes, value: int, start: int) -> None:
    """Of any bytes, going on from any value, at any address."""
    assert crc32(data, value) == zlib.crc32(data, value)
    assert crc32(memoryview(data)[start:], value) == zlib.crc32(data[start:], value)


@pytest.mark.parametrize("n", [*range(130), 255, 256, 4096, 65_537, 1_000_003])
def test_of_every_length(n: int) -> None:
    """Also in two parts."""
    data: Any = np.random.default_rng(n).integers(0, 256, n, np.uint8)
    data.flags.writeable = False
    expected = zlib.crc32(data)
    assert crc32(data) == expected
    assert crc32(data[n // 3 :], crc32(data[: n // 3])) == expected


def test_what_is_no_dense_memory_is_refused() -> None:
    """Neither every second byte nor other numbers."""
    with pytest.raises(ValueError, match="contiguous"):
        crc32(np.zeros(10, np.uint8)[::2])
    with pytest.raises(ValueError, match="uint8_t"):
        crc32(np.zeros(10))
