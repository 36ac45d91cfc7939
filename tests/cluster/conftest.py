"""Ray, and what is left behind: for all tests of a cluster, which run in one process."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster_cases import ELSEWHERE, FIELDS, until
from local_ray import local_ray

from cpprb_like.processes import SharedReplay
from cpprb_like.ray import ClusterReplay


@pytest.fixture(scope="session", autouse=True)
def _ray(_shared_memory_of_its_own: None) -> Iterator[None]:
    with local_ray():
        yield


@pytest.fixture(params=["here", ELSEWHERE])
def where(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Whether this process is on the node of the hosts, or asks them by calls of Ray."""
    if request.param == ELSEWHERE:
        monkeypatch.setattr(ClusterReplay, "_node", lambda _: ELSEWHERE)
    return str(request.param)


@pytest.fixture(autouse=True)
def _no_cluster_is_left() -> Iterator[None]:
    base = Path(os.environ["CPPRB_LIKE_SHARED_MEMORY"])  # of these tests alone: see conftest.py
    yield
    if list(base.glob("*/cluster-*")):  # of a host that was killed: the next replay removes it
        time.sleep(2.0)
        SharedReplay(1, FIELDS, writers=1).close()
    until(lambda: not list(base.glob("*/cluster-*")), 30.0)
