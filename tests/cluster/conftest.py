"""Ray, and what is left behind: for all tests of a cluster, which run in one process."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster_cases import ELSEWHERE, FIELDS, until
from local_ray import local_ray

from cpprb_like.processes import SharedReplay
from cpprb_like.ray._connection import Connection


@pytest.fixture(scope="session", autouse=True)
def _ray(_shared_memory_of_its_own: None) -> Iterator[None]:
    with local_ray():
        yield


@pytest.fixture(params=["here", ELSEWHERE])
def where(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Whether this process is on the node of the hosts, or asks them by calls of Ray."""
    if request.param == ELSEWHERE:
        monkeypatch.setattr(Connection, "node", lambda _: ELSEWHERE)
    return str(request.param)


@pytest.fixture(autouse=True)
def _no_cluster_is_left() -> Iterator[None]:
    base = Path(os.environ["CPPRB_LIKE_SHARED_MEMORY"])  # of these tests alone: see conftest.py
    yield

    def is_removed() -> bool:
        """Of a host that was killed a new replay removes the memory, when its process has ended."""
        if not list(base.glob("*/cluster-*")):
            return True
        gc.collect()  # what this process has open
        time.sleep(0.5)
        SharedReplay(1, FIELDS, writers=1).close()
        return not list(base.glob("*/cluster-*"))

    until(is_removed, 60.0)
