"""Nodes of a Ray cluster on this machine, each with memory of its own, and their deaths.

All processes listen on the loopback alone. The memory of a node that is killed is removed, as that
of a machine that loses its power would be.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from local_ray import ray

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Memory", "Node", "Nodes", "kill", "nodes", "resident"]

MEMORY = "CPPRB_LIKE_SHARED_MEMORY"
KNOWN_DEAD = {  # a node is taken for dead after two seconds in place of fifteen
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_failure_threshold": "4",
}
STORE = 80 << 20  # bytes of the object store of each node
LOOK = 2.0  # seconds between two looks at the memory


@dataclass(eq=False)
class Node:
    """A node: its id in Ray, its processes, and the folder that is its memory."""

    id: str
    processes: Any
    memory: Path


@dataclass(eq=False)
class Nodes:
    """The nodes of a cluster: ``head``, with this process, and others, which can be killed."""

    cluster: Any
    head: Node
    folder: Path
    files: Path
    others: list[Node] = field(default_factory=list)
    _count: int = 0

    def add(self) -> Node:
        """Start another node, with empty memory."""
        self._count += 1
        memory = self.folder / f"node-{self._count}"
        memory.mkdir()
        processes = self.cluster.add_node(
            num_cpus=1,
            node_ip_address="127.0.0.1",
            object_store_memory=STORE,
            resources={"place": 1000},
            env_vars={MEMORY: str(memory)},
        )
        node = Node(processes.node_id, processes, memory)
        self.others.append(node)
        return node

    def kill(self, node: Node) -> None:
        """Kill all processes of a node at once, and remove its memory."""
        self.others.remove(node)
        own = [one.process.pid for two in node.processes.all_processes.values() for one in two]
        for pid in [*own, *_descendants(own)]:
            kill(pid)
        self.cluster.remove_node(node.processes, allow_graceful=False)
        shutil.rmtree(node.memory, ignore_errors=True)

    def errors(self) -> list[str]:
        """What threads of all processes raised, as their logs say."""
        found = []
        for path in self.files.glob("session_2*/logs/worker-*.err"):
            text = path.read_text(encoding="utf-8", errors="replace")
            if "Exception in thread" in text:
                found.append(text[text.index("Exception in thread") :][:3000])
        return found

    def stored(self) -> float:
        """Megabytes of the object stores of all nodes: the most that each has held so far."""
        found = 0.0
        for node in [self.head, *self.others]:
            for one in node.processes.all_processes.get("raylet", ()):
                with contextlib.suppress(OSError, ProcessLookupError):  # it was killed just now
                    found += resident(one.process.pid, "RssShmem")
        return found


def _descendants(pids: list[int]) -> list[int]:
    """Processes that were started by these, by those, and so on."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parent = int(path.read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(path.parent.name))
    found, new = [], list(pids)
    while new:
        new = [child for pid in new for child in children.get(pid, [])]
        found += new
    return found


def kill(pid: int, by: signal.Signals = signal.SIGKILL) -> None:
    """Kill a process, or send another signal to it, unless it has ended."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, by)


@contextmanager
def nodes(count: int) -> Iterator[Nodes]:
    """A cluster of a head, to which this process belongs, and so many other nodes."""
    from ray.cluster_utils import Cluster  # noqa: PLC0415 (after Ray's variables)

    memory = Path("/dev/shm") if Path("/dev/shm").is_dir() else None
    with (
        tempfile.TemporaryDirectory(prefix="soak-", dir=memory) as folder,
        tempfile.TemporaryDirectory(prefix="ray-") as files,  # a short name, for sockets
    ):
        own = Path(folder) / "head"
        own.mkdir()
        os.environ.update(KNOWN_DEAD | {MEMORY: str(own)})
        os.environ.update(
            RAY_USAGE_STATS_ENABLED="0", RAY_AUTH_TOKEN=secrets.token_hex(32), OMP_NUM_THREADS="1"
        )
        # Ray notes there which cluster is the newest.
        Path(tempfile.gettempdir(), "ray").mkdir(exist_ok=True)
        cluster = Cluster(
            initialize_head=True,
            head_node_args={
                "num_cpus": 1,
                "node_ip_address": "127.0.0.1",
                "object_store_memory": STORE,
                "include_dashboard": False,
                "temp_dir": files,
            },
        )
        try:
            ray.init(
                address=cluster.address,
                configure_logging=False,
                log_to_driver=False,
                _node_ip_address="127.0.0.1",
            )
            head = Node(cluster.head_node.node_id, cluster.head_node, own)
            found = Nodes(cluster, head, Path(folder), Path(files))
            for _ in range(count):
                found.add()
            yield found
        finally:
            ray.shutdown()
            cluster.shutdown()


def resident(pid: int, kind: str = "RssAnon") -> float:
    """Megabytes of a process: those that no other process shares, or its shared memory."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{kind}:"):
            return int(line.split()[1]) / 1024
    raise ProcessLookupError(pid)


class Memory:
    """Looks at the memory of some processes, and at the object stores, until the block ends."""

    def __init__(self, nodes: Nodes, pids: Callable[[], dict[str, int]]) -> None:
        self._nodes, self._pids = nodes, pids
        self._done = threading.Event()
        self._began = time.monotonic()
        self._found: dict[str, list[tuple[float, float]]] = {}
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        while not self._done.wait(LOOK):
            self._note("driver, MB", resident(os.getpid()))
            for name, pid in self._pids().items():
                with contextlib.suppress(OSError):
                    self._note(f"{name}, process {pid}, MB", resident(pid))
            self._note("object stores, MB", self._nodes.stored())

    def _note(self, what: str, value: float) -> None:
        self._found.setdefault(what, []).append((time.monotonic() - self._began, value))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._done.set()
        self._thread.join()

    def table(self, seconds: float) -> list[str]:
        """Lines with first, greatest and last values, and growth an hour after the warm-up.

        Of what was seen for so many seconds; the first fifth of these is the warm-up.
        """
        lines = []
        for what, seen in self._found.items():
            times, values = np.array(seen).T
            late = times > times[0] + (times[-1] - times[0]) / 5
            if times[-1] - times[0] >= seconds and late.sum() > 2:
                growth = np.polyfit(times[late], values[late], 1)[0] * 3600
                first, last = values[late][:5].mean(), values[-5:].mean()
                lines.append(
                    f"{what}: {values[0]:.1f} at first, {first:.1f} after the warm-up, "
                    f"{values.max():.1f} at most, {last:.1f} at the end, {growth:+.1f} an hour"
                )
        return lines
