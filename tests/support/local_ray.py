"""A Ray of this machine alone, which listens on the loopback."""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from optional import need

# Before Ray is imported: as on systems where it has no clusters, it uses the loopback alone.
os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
ray = need("ray", "make test-ray")


@contextmanager
def local_ray(cpus: int = 4) -> Iterator[None]:
    """Ray's processes, with so many processors by their count, until the end of the block."""
    folder = tempfile.mkdtemp(prefix="ray-")  # a short name, as paths of sockets are
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_AUTH_TOKEN", secrets.token_hex(32))
        try:
            ray.init(
                num_cpus=cpus,
                include_dashboard=False,
                object_store_memory=200 << 20,
                configure_logging=False,
                log_to_driver=False,
                _node_ip_address="127.0.0.1",
                _temp_dir=folder,
            )
            yield
        finally:
            ray.shutdown()
            shutil.rmtree(folder, ignore_errors=True)
