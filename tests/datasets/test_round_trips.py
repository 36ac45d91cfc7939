"""What a format has a place for is read as it was written, for any history of a buffer."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from dataset_cases import CHAINED, Case, assert_carried, cases, is_broken, made, place
from hypothesis import given
from optional import need

from cpprb_like import ReplayBuffer
from cpprb_like.datasets import FORMATS

pytestmark = [
    pytest.mark.filterwarnings(
        "ignore:.*the buffer does not know the observation_space:UserWarning"
    ),
    pytest.mark.filterwarnings("ignore::cpprb_like.errors.DataLossWarning"),
]

every_format = pytest.mark.parametrize("format", FORMATS)


@every_format
@given(case=cases())
def test_what_was_written_is_read(format: str, case: Case) -> None:  # noqa: A002 (the option)
    """Values, episodes, how they ended and their order; what is open, and cut where it is said."""
    need("h5py")
    need("pyarrow")
    rb = made(case)
    with tempfile.TemporaryDirectory() as folder:
        path = place(Path(folder), format)
        if not len(rb):
            with pytest.raises(ValueError, match="expected a buffer with rows"):
                rb.export(path, format)
            return
        if format in CHAINED and is_broken(rb):
            with pytest.raises(ValueError, match="expected next observations that are"):
                rb.export(path, format)
            assert not list(Path(folder).iterdir())
            return

        rb.export(path, format)
        got = ReplayBuffer.from_dataset(path, resume=True)

    assert_carried(rb, got, format)
