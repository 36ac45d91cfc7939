"""``ClusterParameters``: weights on their way from a learner to the actors of all nodes."""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
from collections.abc import Mapping
from typing import Any

import ray
from numpy.typing import ArrayLike

from cpprb_like._arguments.checks import as_int
from cpprb_like._machine.waiting import HOST_PATIENCE, PAUSE, every, wait_until
from cpprb_like.processes._parameters import TIMEOUT, read_parameters
from cpprb_like.ray._calls import GONE, call
from cpprb_like.ray._connection import Connection
from cpprb_like.ray._places import HostReplay
from cpprb_like.ray._presence import SILENT

ALONE = "the array of the cluster"  # name of parameters that are one array and no dict
INTERVAL = 0.02  # seconds between two questions of a process on a node without a host
VERSION = "the version of the cluster"  # name of their version among the parameters of a host


class ClusterParameters:
    """The newest version of an array, or of a dict of arrays: see ``Parameters``.

    ``publish`` copies the version to the shared memory of each host, once for each node. Actors on
    a node with a host read the version there. On other nodes a process asks one host every
    ``INTERVAL`` seconds, without a wait: so ``latest`` at each step costs a microsecond, and a new
    version comes that much later.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self._own: HostReplay | None = None
        self._read = 0, 0  # the last version of the own host: its number there, and in the cluster
        self._known: tuple[int, Any] | None = None  # the newest answer of a host, read-only
        self._question: Any = None
        self._look_at = self._asked_at = -math.inf
        self._asked: dict[int, Any] = {}  # the last call of ``publish`` at each host
        self._is_lost, self._turn = True, os.getpid()  # the own host; the host to be asked

    def publish(self, values: Mapping[str, Any] | ArrayLike) -> int:
        """Publish these values as the newest version: see ``Parameters.publish``.

        Waits until the hosts that are heard of have the version. A host that starts later, or was
        silent, takes it from the ledger.
        """
        self._connection.check_open()
        given = values if isinstance(values, Mapping) else {ALONE: values}
        arrays = read_parameters(given)
        ledger = self._connection.ledger
        reference = ray.put(arrays)
        version: int = call(ledger, "publish", [reference], timeout=HOST_PATIENCE)
        with self._lock:
            # One version for each host is on its way: a host that was silent would get them all.
            late = [one for one in self._asked.values() if not ray.wait([one], timeout=0)[0]]
            self._asked = {
                host.number: self._asked[host.number]
                if self._asked.get(host.number) in late
                else host.begin("publish", version, reference)
                for host in self._connection.hosts
            }
            asked = {number: one for number, one in self._asked.items() if one not in late}
            self._known, self._question, self._look_at = None, None, -math.inf
        self._connection.presence.answers(asked, HOST_PATIENCE)
        return version

    def latest(self, after: int = 0) -> tuple[int, Any] | None:
        """The newest version and its values, if it is newer than ``after``; else None.

        On a node without a host the answer is up to ``INTERVAL`` old, 20 ms. Only a call before the
        first answer waits for a host.
        """
        with self._lock:
            now = time.monotonic()
            if now >= self._look_at:
                self._look(now)
                self._look_at = time.monotonic() + INTERVAL
            if self._own is not None:
                return self._latest_here(self._own, after)
            if self._known is None or self._known[0] <= after:
                return None
            version, values = self._known  # those of Ray are read-only
            return version, _copies(values)

    def _latest_here(self, own: HostReplay, after: int) -> tuple[int, Any] | None:
        """The newest version in the memory of this node, if it is newer."""
        number, version = self._read
        found = own.parameters.latest(after=number if version <= after else 0)
        if found is None:
            return None
        self._read = found[0], int(found[1][VERSION])
        return split(found, after)

    def wait(self, version: int = 1, timeout: float | None = TIMEOUT) -> tuple[int, Any]:
        """Wait for a version or a newer one, and return the newest: see ``Parameters.wait``."""
        wanted = as_int("version", version, 1)

        def why() -> TimeoutError:
            newest = self.latest()
            there = "nothing was published yet" if newest is None else f"{newest[0]} is the newest"
            return TimeoutError(
                f"waited {timeout} s for version {wanted} of the parameters: {there}"
            )

        found = wait_until(lambda: self.latest(wanted - 1), timeout, why, sleep=every(PAUSE))
        assert found is not None
        return found

    # ------------------------------------------------------------------ what hosts say

    def _look(self, now: float) -> None:
        """Take the answer of a host, and ask again; the first time wait for an answer."""
        self._connection.check_open()
        if self._own is not None and not self._own.folder.exists():
            self._own, self._is_lost, self._read = None, True, (0, 0)
        if self._own is None and self._is_lost:
            self._is_lost = False
            self._look_for_own()
        if self._own is not None:
            return
        until = now + HOST_PATIENCE
        is_first = self._known is None and self._question is None
        while True:
            if self._question is None:
                host = self._connection.hosts[self._turn % len(self._connection.hosts)]
                after = 0 if self._known is None else self._known[0]
                self._question, self._asked_at = host.begin("parameters", after), time.monotonic()
            wait = min(SILENT, max(0.0, until - time.monotonic())) if is_first else 0.0
            if ray.wait([self._question], timeout=wait)[0]:
                question, self._question = self._question, None
                with contextlib.suppress(*GONE):
                    found = ray.get(question)
                    self._known = self._known if found is None else found
                    return
                self._turn += 1  # its process is started again: the next host
                time.sleep(PAUSE if is_first else 0.0)
            elif time.monotonic() > self._asked_at + SILENT:
                self._question, self._turn = None, self._turn + 1
            if not is_first:
                return
            if time.monotonic() > until:
                raise TimeoutError(f"parameters: no host answered within {HOST_PATIENCE:g} s")

    def _look_for_own(self) -> None:
        """Find the host of this node, if there is one that answers."""
        for about in self._connection.abouts(HOST_PATIENCE).values():
            if about.node == self._connection.node():
                with contextlib.suppress(FileNotFoundError):
                    self._own = self._connection.opened(about)


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
