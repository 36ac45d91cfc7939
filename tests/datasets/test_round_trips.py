"""What is written as a data set and read again is equal, byte for byte."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from dataset_cases import Case, assert_same, cases, made, place
from hypothesis import given
from optional import need

from cpprb_like import ReplayBuffer
from cpprb_like.datasets import FORMATS

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*the buffer does not know the observation_space:UserWarning"
)

every_format = pytest.mark.parametrize("format", FORMATS)


@every_format
@given(case=cases())
def test_what_was_written_is_read(format: str, case: Case) -> None:  # noqa: A002 (the option)
    """Rows, episodes and how they ended, environments, what is open and cut: for any history."""
    need("h5py")
    need("pyarrow")
    rb = made(case)
    with tempfile.TemporaryDirectory() as folder:
        path = place(Path(folder), format)
        if not len(rb):
            with pytest.raises(ValueError, match="expected a buffer with rows"):
                rb.export(path, format)
            return

        rb.export(path, format)
        got = ReplayBuffer.from_dataset(path)

    assert_same(rb, got)
