"""Hypothesis profiles, and fixtures that test files share."""

from __future__ import annotations

import gc
import os
import sys
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from optional import required

_SLOW_IS_FINE = [HealthCheck.too_slow, HealthCheck.data_too_large]

# Examples follow from the test alone, so a command that passed once passes on any day. "random" and
# "long" look for what no fixed example shows.
settings.register_profile(
    "dev",
    max_examples=12,
    stateful_step_count=20,
    deadline=None,
    derandomize=True,
    suppress_health_check=_SLOW_IS_FINE,
)
settings.register_profile(
    "thorough",
    max_examples=12,
    stateful_step_count=20,
    deadline=None,
    derandomize=True,
    suppress_health_check=_SLOW_IS_FINE,
)
settings.register_profile(
    "long",
    max_examples=500,
    stateful_step_count=60,
    deadline=None,
    suppress_health_check=_SLOW_IS_FINE,
)
settings.register_profile(
    "random",
    max_examples=12,
    stateful_step_count=20,
    deadline=None,
    suppress_health_check=_SLOW_IS_FINE,
)
settings.register_profile(
    "quick",
    max_examples=8,
    stateful_step_count=12,
    deadline=None,
    derandomize=True,
    suppress_health_check=_SLOW_IS_FINE,
)
# Fixtures of these tests import Ray.
collect_ignore = (
    [] if find_spec("ray") or "ray" in os.environ.get("CPPRB_LIKE_REQUIRE", "") else ["cluster"]
)

settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "dev"))


def pytest_configure() -> None:
    """Refuse a ``CPPRB_LIKE_REQUIRE`` that names no package: it would require nothing."""
    try:
        required()
    except ValueError as error:
        raise pytest.UsageError(str(error)) from error


def pytest_collection_finish() -> None:
    """Freeze the modules and items, as tests call the garbage collector and fork often.

    A collection took 0.2 s, most of it for the 330,000 objects of pytest and of all tests.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _shared_memory_of_its_own() -> Iterator[None]:
    """Shared memory of these tests alone."""
    base = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(prefix="cpprb_like-tests-", dir=base) as folder:
        os.environ["CPPRB_LIKE_SHARED_MEMORY"] = folder
        yield
        del os.environ["CPPRB_LIKE_SHARED_MEMORY"]


@pytest.fixture
def switch_often() -> Iterator[None]:
    """Let threads take turns a hundred times as often as usual."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(5e-5)
    yield
    sys.setswitchinterval(interval)


@pytest.fixture
def rng() -> np.random.Generator:
    """A generator with a new seed each time; pytest shows the printed seed when the test fails.

    ``CPPRB_LIKE_TEST_SEED`` repeats a failure.
    """
    given = os.environ.get("CPPRB_LIKE_TEST_SEED")
    seed = int(given) if given else int.from_bytes(os.urandom(4), "little")
    print(f"CPPRB_LIKE_TEST_SEED={seed}")
    return np.random.default_rng(seed)


@pytest.fixture(scope="session")
def local_ray() -> Iterator[None]:
    """One Ray for all tests of RLlib: a process that starts Ray's twice ends with a warning."""
    import local_ray as support  # noqa: PLC0415 (it needs Ray)

    with support.local_ray():
        yield
