"""Names of the files beside the rows: no file of another buffer is taken for one of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cpprb_like import PrioritizedReplayBuffer, ReplayBuffer

FIELDS: Any = {"x": {"shape": (), "dtype": "i8"}}


def opened(prefix: Path, mode: Any) -> ReplayBuffer:
    """A buffer with all kinds of files."""
    return PrioritizedReplayBuffer(
        10, FIELDS | {"next_x": FIELDS["x"]}, next_of="x", mmap_prefix=prefix, mmap_mode=mode
    )


@pytest.mark.parametrize("mode", ["r+", "w"])
@pytest.mark.parametrize(
    "name",
    [
        *("replay.flushed.1000", "replay.sampler.7", "replay.dat"),
        *("replay.dat.flushed.1000", "replay.dat.sampler.7"),
        "replay.dat.0123456789abcdef.new",
    ],
)
def test_a_prefix_that_looks_like_a_file_of_another_buffer(
    name: str, mode: Any, tmp_path: Path
) -> None:
    """The buffer of the prefix ``replay`` deleted the rows of ``replay.flushed.1000``."""
    rb, other = opened(tmp_path / "replay", "x"), opened(tmp_path / name, "x")
    for buffer in (rb, other):
        buffer.add(x=range(5), next_x=[9] * 5)
        buffer.flush()
    del rb, other, buffer
    rb = opened(tmp_path / "replay", mode)
    for _ in range(3):
        rb.add(x=range(5), next_x=[8] * 5)
        rb.flush()
    del rb

    assert opened(tmp_path / name, "r+").get_all_transitions()["x"].ravel().tolist() == [*range(5)]
