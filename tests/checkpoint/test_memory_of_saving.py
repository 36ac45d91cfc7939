"""Saving and loading take little memory besides the buffer."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from optional import need

START = """
import resource, sys
import numpy as np
from cpprb_like import ReplayBuffer

def peak():
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

"""
ROWS = """
fields = {"obs": {"shape": (84, 84), "dtype": "u1"}, "done": {"shape": (), "dtype": bool}}
rb = ReplayBuffer(40_000, fields, next_of="obs")
images = np.random.default_rng(0).integers(0, 255, (500, 84, 84), np.uint8)
for _ in range(90):
    rb.add(obs=images, next_obs=np.roll(images, -1, axis=0), done=np.zeros(500, bool))
"""
ITEMS = """
rng = np.random.default_rng(0)
fields = {"tokens": {"shape": ("T",), "dtype": "i4"}, "logits": {"shape": ("T", 3)}}
rb = ReplayBuffer(400_000, fields, room={"T": 19_000_000})
for _ in range(450):
    counts = rng.integers(0, 100, 1000)
    offsets = np.append(0, np.cumsum(counts))
    values = rng.integers(0, 9, offsets[-1], np.int32)
    rb.add(tokens=(values, offsets), logits=(np.ones((offsets[-1], 3), np.float32), offsets))
"""
END = """
before = peak()
rb.save(sys.argv[1])
saved = peak()
other = ReplayBuffer.load(sys.argv[1])
print(saved - before, peak() - saved - other.nbytes, other.nbytes)
"""


@pytest.mark.slow
@pytest.mark.parametrize("rows", [ROWS, ITEMS], ids=["rows", "items"])
def test_a_buffer_is_saved_and_loaded_in_little_memory(rows: str, tmp_path: Path) -> None:
    """Less than 64 MB beside a buffer of 300 MB, by the peak of what was resident."""
    need("resource")
    command = [sys.executable, "-c", START + rows + END, str(tmp_path / "rb")]
    found = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    saving, loading, nbytes = map(int, found)
    assert nbytes > 280e6
    assert saving < 64e6
    assert loading < 64e6
