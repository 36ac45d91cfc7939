"""``ClusterParameters``: weights on their way from a learner to the actors of all nodes."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import ray
from numpy.typing import ArrayLike

from cpprb_like._machine.waiting import HOST_PATIENCE, PAUSE
from cpprb_like.processes._parameters import read_parameters
from cpprb_like.ray._calls import call
from cpprb_like.ray._places import HostReplay

if TYPE_CHECKING:
    from cpprb_like.ray._cluster import ClusterReplay

__all__ = ["ClusterParameters"]

ALONE = "the array of the cluster"  # name of parameters that are one array and no dict
VERSION = "the version of the cluster"  # name of their version among the parameters of a host


class ClusterParameters:
    """The newest version of an array, or of a dict of arrays: see ``Parameters``.

    ``publish`` copies the version to the shared memory of each host, once for each node. Actors on
    a node with a host read the version there. Other actors ask a host.
    """

    def __init__(self, cluster: ClusterReplay) -> None:
        self._cluster = cluster
        self._own: HostReplay | None = None

    def publish(self, values: Mapping[str, Any] | ArrayLike) -> int:
        """Publish these values as the newest version: see ``Parameters.publish``.

        Waits until all hosts that answer have the version. A host that starts later gets it, too.
        """
        given = values if isinstance(values, Mapping) else {ALONE: values}
        arrays = read_parameters(given)
        ledger = self._cluster._ledger
        reference = ray.put(arrays)
        version: int = call(ledger, "publish", [reference], timeout=HOST_PATIENCE)
        asked = [host.begin("publish", version, reference) for host in self._cluster.hosts]
        ray.wait(asked, num_returns=len(asked), timeout=HOST_PATIENCE)
        return version

    def latest(self, after: int = 0) -> tuple[int, Any] | None:
        """The newest version and its values, if it is newer than ``after``; else None."""
        self._look_for_own()
        if self._own is not None:
            return split(self._own.parameters.latest(), after)
        for host in self._cluster.hosts:
            with contextlib.suppress(TimeoutError):
                found: Any = host.call("parameters", after, timeout=HOST_PATIENCE)
                if found is None:
                    return None
                version, values = found  # those of Ray are read-only
                return version, _copies(values)
        raise TimeoutError(f"parameters: no host answered within {HOST_PATIENCE:g} s")

    def wait(self, after: int = 0, timeout: float | None = 60.0) -> tuple[int, Any]:
        """Wait for a version, and return the newest as ``latest``: see ``Parameters.wait``."""
        began = time.monotonic()
        while True:
            found = self.latest(after)
            if found is not None:
                return found
            if timeout is not None and time.monotonic() - began > timeout:
                raise TimeoutError(f"parameters: no version after {after} in {timeout:g} s")
            time.sleep(PAUSE)

    def _look_for_own(self) -> None:
        """Find the host of this node, if there is one."""
        if self._own is None:
            for about in self._cluster._abouts(HOST_PATIENCE).values():
                if about.node == self._cluster._node():
                    with contextlib.suppress(FileNotFoundError):
                        self._own = self._cluster._opened(about)


def split(found: tuple[int, Any] | None, after: int) -> tuple[int, Any] | None:
    """Split the arrays of a host into the version and the values."""
    if found is None:
        return None
    values = dict(found[1])
    version = int(values.pop(VERSION))
    if version <= after:
        return None
    return version, values.get(ALONE, values) if set(values) == {ALONE} else values


def _copies(values: Any) -> Any:
    if isinstance(values, dict):
        return {name: array.copy() for name, array in values.items()}
    return values.copy()
