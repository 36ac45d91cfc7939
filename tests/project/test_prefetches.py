"""Prefetches are in the compiled modules: GCC removes calls of functions that only prefetch."""

import platform
import re
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

READERS = (
    "_machine.blocks", "_rows.gather", "_rows.rings", "_segment_tree",
    "views._gather_windows", "views._walker",
)  # fmt: skip


@pytest.mark.skipif(
    platform.machine() != "x86_64" or not sys.platform.startswith("linux"),
    reason="the instruction is looked for as GCC and clang write it for x86-64",
)
@pytest.mark.parametrize("module", READERS)
def test_module_that_reads_rows_prefetches_them(module: str) -> None:
    """The module has instructions ``prefetcht1``, opcode 0F 18 /2."""
    spec = find_spec(f"cpprb_like.{module}")
    assert spec is not None
    assert spec.origin is not None
    code = Path(spec.origin).read_bytes()
    found = [byte[0] for byte in re.findall(rb"\x0f\x18(.)", code, re.DOTALL)]
    assert sum(byte >> 3 & 7 == 2 for byte in found) >= 4
