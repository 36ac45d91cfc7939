"""``Connection``: the hosts and the ledger of a cluster, for one process that has the cluster open.

A replay, its learners and its parameters share one. Not here: the start and the end of hosts
(``_cluster``), and which hosts are silent (``_presence``).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import ray

from cpprb_like._fields.checked_options import CheckedOptions
from cpprb_like._machine.waiting import every, wait_until
from cpprb_like.errors import RateLimitTimeoutError
from cpprb_like.ray._calls import Host, call
from cpprb_like.ray._messages import About, HostPlan
from cpprb_like.ray._places import HostReplay
from cpprb_like.ray._presence import Presence

LOOK = 0.01  # seconds between two questions for credit


class Connection:
    """The hosts and the ledger of a cluster; ``options`` are those of a shard."""

    def __init__(self, plan: HostPlan, options: CheckedOptions, ledger: Any) -> None:
        self.plan, self.options, self.ledger = plan, options, ledger
        self.name, self.limiter = plan.cluster, plan.limiter
        self.hosts: list[Host] = []  # hosts by their numbers
        self.presence = Presence(ledger)  # hosts that are heard of
        self.is_closed = False  # whether this process closed the cluster
        # Opened replays of hosts of this node, by their identity.
        self.replays: dict[str, HostReplay] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "replays": {}}

    def check_open(self) -> None:
        """Raise ``RuntimeError`` if this process closed the cluster."""
        if self.is_closed:
            raise RuntimeError(f"the cluster {self.name!r} was closed")

    # ------------------------------------------------------------------ hosts

    def node(self) -> str:
        """The node of this process."""
        return str(ray.get_runtime_context().get_node_id())

    def opened(self, about: About) -> HostReplay:
        """The shared replay of a host of this node; ``FileNotFoundError`` if it is gone."""
        replay = self.replays.get(about.identity)
        if replay is None:
            known = about.replay, about.base, self.limiter, about.identity
            replay = HostReplay.on_node(*known)
            self.replays[about.identity] = replay
        return replay

    def abouts(self, timeout: float, hosts: Sequence[Host] | None = None) -> dict[int, About]:
        """The locations of the hosts that answer, by their numbers."""
        return self.answers("about", timeout=timeout, hosts=hosts)

    def answers(
        self, method: str, *arguments: Any, timeout: float, hosts: Sequence[Host] | None = None
    ) -> dict[int, Any]:
        """The answers of the hosts that are neither silent nor gone, by their numbers."""
        asked = {host.number: host.begin(method, *arguments) for host in hosts or self.hosts}
        return self.presence.answers(asked, timeout)

    # ------------------------------------------------------------------ the limiter

    def take(self, n: int, most: int, until: float, timeout: float) -> int:
        """How many batches of n items may be drawn, at least one."""
        limiter = self.limiter
        if limiter is None:
            return most
        began, waited = time.monotonic(), 0.0

        def look() -> int:
            nonlocal waited
            count: int = call(self.ledger, "take", n, most, timeout=timeout)
            waited = waited if count else time.monotonic() - began
            return count

        def why() -> RateLimitTimeoutError:
            reason = call(self.ledger, "why", timeout=timeout)
            return RateLimitTimeoutError(
                f"sample of {n}: waited {waited:.1f} s for inserts: {reason}"
            )

        left = min(until - began, limiter.timeout or timeout)
        count = wait_until(look, left, why, sleep=every(LOOK))
        if waited:
            self.ledger.waited.remote(waited)
        return count

    def give_back(self, n: int) -> None:
        """Take n items out of the counts of the limiter, as they were not drawn after all."""
        if self.limiter is not None:
            self.ledger.give_back.remote(n)
