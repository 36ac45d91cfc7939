"""One Ray for all tests of RLlib: a process that starts Ray's twice ends with a warning."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from local_ray import local_ray


@pytest.fixture(scope="session")
def _ray() -> Iterator[None]:
    with local_ray():
        yield
