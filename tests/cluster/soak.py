"""A soak of a cluster: hosts, players, learners and whole nodes are killed or stopped at random.

    python tests/cluster/soak.py --seconds 600 --kills 110

Several nodes of Ray run on this machine, on the loopback. Players add rows and learners draw them.
Each drawn row is checked. At the end the rows of all hosts are counted by their ids: none may be
there twice, and none may be missing but those that ``ClusterReplay.losses`` reports. This process
draws, too, and compares the priorities of rows with those that it sent.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

SUPPORT = Path(__file__).resolve().parents[1] / "support"
sys.path[:0] = [str(SUPPORT), str(SUPPORT.parents[1])]
os.environ["PYTHONPATH"] = os.pathsep.join(
    [str(SUPPORT), str(SUPPORT.parents[1]), os.environ.get("PYTHONPATH", "")]
)

import argparse
import contextlib
import math
import signal
import tempfile
import threading
import time
import traceback
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from local_ray import ray
from numpy.typing import NDArray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from soak_nodes import Memory, Node, Nodes, kill, nodes
from soak_rows import (
    FIELDS,
    PLAYER,
    REMOTE,
    STOP,
    Record,
    check,
    has_ended,
    learn,
    memory_of,
    play,
    records,
)

from cpprb_like.errors import NotEnoughDataError, RateLimitTimeoutError
from cpprb_like.limiters import SampleToInsertRatio
from cpprb_like.ray import ClusterReplay, Loss
from cpprb_like.ray._calls import answer_of, call
from cpprb_like.ray._ledger import Counts, Ledger
from cpprb_like.samplers import Prioritized

# With "stop" a host gets SIGSTOP for ``--stop`` seconds. With "leave" a host is killed, and the
# other processes of its node end regularly while it is down.
KINDS = {
    "host": 0.20,
    "leave": 0.15,
    "player": 0.23,
    "learner": 0.17,
    "node": 0.15,
    "ledger": 0.05,
    "stop": 0.05,
}
QUIET = 90.0  # seconds in which each process must have made a step: the longest time-out is 60
HEARD = (
    12.0  # seconds in which rows may be written at a node that a lost host was not heard of with
)
FRESH = 1.0  # seconds that counts of hosts are old at most, when the ledger is back
HOSTS, PLAYERS, LEARNERS = 3, 5, 2
KNOWN = 5000  # rows of a host whose priorities are remembered


@dataclass(eq=False)
class Job:
    """A process of the soak: its task, its journal, and the node on which it was started."""

    kind: str
    number: int
    task: Any
    journal: Path
    node: Node
    started: float = field(default_factory=time.time)

    def pid(self) -> int | None:
        """The process; None before it began."""
        if not self.journal.exists():
            return None
        seen = records(self.journal, 1)
        return seen[0].begun if seen else None

    def quiet_since(self) -> float:
        """When it made its last step."""
        return self.journal.stat().st_mtime if self.journal.exists() else self.started


class Soak:
    """The cluster, who plays and learns there, and what was found."""

    def __init__(self, given: argparse.Namespace, all_nodes: Nodes, folder: Path) -> None:
        self.given, self.nodes, self.folder = given, all_nodes, folder
        self.rng = np.random.default_rng(given.seed)
        self.faults: list[str] = []
        self.kills: Counter[str] = Counter()
        limiter = SampleToInsertRatio(8.0, 500, 200_000.0, timeout=60.0) if given.limit else None
        self.replay = ClusterReplay(
            given.rows * HOSTS,
            FIELDS,
            writers=8,
            hosts=[node.id for node in all_nodes.others[:HOSTS]],
            next_of="obs",
            limiter=limiter,
            checkpoints=folder / "checkpoints",
            checkpoint_seconds=given.checkpoint,
            resources={"num_cpus": 0, "resources": {"place": 1}},
        )
        self.jobs: list[Job] = []
        self.all_jobs: list[Job] = []
        self.pids: dict[str, int] = {}
        self.longest = 0.0
        self.losses: list[Loss] = []
        # From when to when there was no ledger, or a host was stopped.
        self.silent: list[tuple[float, float, int | None]] = []
        self.events: list[str] = []  # what was killed when
        self.timers: list[threading.Timer] = []  # which have stopped hosts go on
        for _ in range(PLAYERS):
            self.start("player")
        for _ in range(LEARNERS):
            self.start("learner")
        self.audit = Audit(self)

    # ------------------------------------------------------------------ processes

    def start(self, kind: str) -> None:
        """Start a player or a learner on any node."""
        number = len(self.all_jobs)
        node = [self.nodes.head, *self.nodes.others][self.rng.integers(len(self.nodes.others) + 1)]
        strategy = NodeAffinitySchedulingStrategy(node.id, soft=True)
        options = {"num_cpus": 0, "max_retries": 0, "scheduling_strategy": strategy}
        if kind == "player":
            arguments: Any = (self.replay, number, self.given.rate, self.folder)
            task = ray.remote(play).options(**options).remote(*arguments)
        else:
            task = ray.remote(learn).options(**options).remote(self.replay, number, self.folder)
        job = Job(kind, number, task, self.folder / f"{kind}-{number}", node)
        self.jobs.append(job)
        self.all_jobs.append(job)

    def look(self) -> None:
        """Start what ended again, and note what made no step for long, or raised."""
        for job in list(self.jobs):
            ended, _ = ray.wait([job.task], timeout=0)
            silent = time.time() - job.quiet_since()
            self.longest = max(self.longest, silent)
            if not ended and silent > QUIET:
                self.faults.append(f"{job.kind} {job.number} made no step for {silent:.0f} s")
                self.kill_job(job)
            if ended or silent > QUIET:
                self.jobs.remove(job)
                self.start(job.kind)

    def look_at_ledger(self) -> None:
        """Note when the hosts are heard of again after the death of the ledger."""
        for place, (began, until, host) in enumerate(self.silent):
            if host is None and math.isinf(until):
                with contextlib.suppress(Exception):
                    stats = ray.get(self.replay._connection.ledger.stats.remote(), timeout=0.5)
                    if stats["hosts"] == HOSTS and stats["age_of_counts"] < FRESH:
                        self.silent[place] = began, time.time(), None

    def kill_job(self, job: Job) -> bool:
        """Kill the process of a player or a learner; whether it had begun."""
        pid = job.pid()
        if pid is not None:
            kill(pid)
        return pid is not None

    def kill_one(self) -> None:
        """Kill a host, a player, a learner or a node."""
        kind = str(self.rng.choice(list(KINDS), p=list(KINDS.values())))
        if kind in ("host", "leave"):
            host = self.replay.hosts[self.rng.integers(HOSTS)]
            try:
                pid, node = host.call("pid", timeout=2.0), host.call("about", timeout=2.0).node
            except TimeoutError:
                return  # it is not back from the last kill
            kill(int(pid))
            if kind == "leave":
                self.have_leave(node)
        elif kind == "ledger":
            kill(int(call(self.replay._connection.ledger, "pid", timeout=20.0)))
            if all(math.isfinite(until) for _, until, _ in self.silent):
                self.silent.append((time.time(), math.inf, None))
        elif kind == "stop":
            self.stop_host(self.replay.hosts[self.rng.integers(HOSTS)])
        elif kind == "node":
            self.nodes.kill(self.nodes.others[self.rng.integers(len(self.nodes.others))])
            self.nodes.add()
        else:
            jobs = [job for job in self.jobs if job.kind == kind]
            if not self.kill_job(jobs[self.rng.integers(len(jobs))]):
                return
        self.kills[kind] += 1
        self.events.append(f"{time.time():.3f} {kind}")

    def have_leave(self, node: str) -> None:
        """Have the players and learners of a node end regularly; others are started for them."""
        for job in self.jobs:
            if job.node.id == node:
                (self.folder / f"{STOP}-{job.kind}-{job.number}").touch()

    def stop_host(self, host: Any) -> None:
        """Stop the process of a host for a while."""
        try:
            pid = int(host.call("pid", timeout=2.0))
        except TimeoutError:
            return
        now = time.time()
        kill(pid, signal.SIGSTOP)
        self.silent.append((now, now + self.given.stop, host.number))
        self.timers.append(threading.Timer(self.given.stop, kill, (pid, signal.SIGCONT)))
        self.timers[-1].start()

    def run(self) -> None:
        """Kill, look and draw, until the time is out."""
        given, began = self.given, time.monotonic()
        each = given.seconds / max(given.kills, 1)
        killed, audited = 0, began
        while time.monotonic() < began + given.seconds or sum(self.kills.values()) < given.kills:
            if time.monotonic() > began + 2 * given.seconds + 60:
                self.faults.append(f"{given.kills} kills were asked for: {dict(self.kills)}")
                break
            now = time.monotonic()
            if given.kills and now > began + killed * each + each / 2:
                self.kill_one()
                killed += 1
            self.look()
            self.look_at_ledger()
            if now > audited + given.audit:
                self.audit.step()
                audited = now
            self.pids = self.of_hosts()
            time.sleep(0.1)

    def of_hosts(self) -> dict[str, int]:
        """The processes whose memory is watched, as far as they answer at once."""
        found = dict(self.pids)
        for host in self.replay.hosts:
            with contextlib.suppress(Exception):
                found[f"host {host.number}"] = ray.get(host.begin("pid"), timeout=0.5)
        for job in self.jobs:
            pid = job.pid()
            if pid is not None and job.kind == "learner":
                found[f"{job.kind} {job.number}"] = pid
        return found

    def stop(self) -> None:
        """Have all processes end, and note those that do not, and what they raised.

        Players end first, as a limiter may have them wait for learners.
        """
        for timer in self.timers:
            timer.join()
        for kind in "player", "learner":
            (self.folder / f"{STOP}-{kind}").touch()
            jobs = {job.task: job for job in self.jobs if job.kind == kind}
            _, late = ray.wait(list(jobs), num_returns=len(jobs), timeout=QUIET)
            self.faults += [f"{kind} {jobs[task].number} did not end" for task in late]
        self.faults += [path.read_text() for path in sorted(self.folder.glob("*.error"))]
        self.faults += self.nodes.errors()

    # ------------------------------------------------------------------ counting

    def rows(self) -> NDArray[np.int64]:
        """The ids of all rows of all hosts, each row checked."""
        found = []
        for host in self.replay.hosts:
            about = host.call("about", timeout=60.0)
            strategy = NodeAffinitySchedulingStrategy(about.node, soft=False)
            task = ray.remote(_rows).options(num_cpus=0, scheduling_strategy=strategy)
            found.append(ray.get(task.remote(self.replay, about), timeout=120.0))
        return np.concatenate(found)

    def count(self) -> list[str]:
        """Compare the rows that are there with those that players added."""
        ids, counts = np.unique(self.rows(), return_counts=True)
        if (counts > 1).any():
            self.faults.append(f"{(counts > 1).sum()} rows are there twice: {ids[counts > 1][:10]}")
        of_ledger: Counts = call(
            self.replay._connection.ledger, "__ray_call__", _counts, timeout=60.0
        )
        self.losses = losses = of_ledger.losses()
        missing = Missing(of_ledger, self.silent)
        added = 0
        for job in self.all_jobs:
            if job.kind != "player" or not job.journal.exists():
                continue
            seen = records(job.journal)[1:]
            begun, done = max((one.begun for one in seen), default=0), 0
            own = ids[ids >> PLAYER == job.number] - (job.number << PLAYER)
            if len(own) and own[-1] >= begun:
                self.faults.append(f"player {job.number}: row {own[-1]} is there, of {begun} added")
            if seen:
                done = max(one.done for one in seen)
                ends = np.array([one.done for one in seen])
                size = self.replay._connection.options.size
                is_full = len(own) >= size  # older rows were written over
                for row in np.setdiff1d(np.arange(own[0] if is_full else 0, done), own).tolist():
                    place = int(np.searchsorted(ends, row, side="right"))
                    missing.note(job, row, seen, place)
            added += done
        self.faults += missing.faults()
        reported = sum(loss.rows for loss in losses)
        told = sum(map(len, missing.of_loss.values()))
        longest = max((loss.seconds for loss in losses), default=0.0)
        latest = f"{missing.latest:.3f} s after the host was heard of last"
        return [
            f"rows: {added} added for sure, {len(ids)} there",
            f"losses: {len(losses)}, of {reported} rows and {longest:.1f} s at most",
            f"rows added for sure that are missing: {told + missing.late}",
            f"{told} of these are among the losses; {missing.late} were written",
            f"on a node that died, or by a player that was killed, up to {latest}",
        ]

    def report(self, memory: Memory) -> list[str]:
        """What was done and found."""
        drawn = sum(
            max((one.begun for one in records(job.journal)[1:]), default=0)
            for job in self.all_jobs
            if job.kind == "learner" and job.journal.exists()
        )
        audit = self.audit
        return [
            f"kills: {sum(self.kills.values())}, {dict(self.kills)}",
            *self.count(),
            f"rows drawn and checked: {drawn} by learners, {audit.drawn} by the driver",
            f"priorities: {audit.sent} sent by the driver, {audit.compared} compared",
            f"the longest time without a step of a process: {self.longest:.1f} s",
            *memory.table(self.given.seconds / 3),
        ]


class Missing:
    """Rows that were added for sure and are not there, by the loss that explains them.

    A journal has the memory, the shard and the number of each row. The loss of a memory counts the
    rows of each shard up to a number: by the last report of the host, or by a writer of another
    node that came back. A missing row must be one of these, with two exceptions: a row that was
    written on the node of the host after its last report, and a row of a writer on another node
    that was killed before it came back.
    """

    def __init__(self, counts: Counts, silent: list[tuple[float, float, int | None]]) -> None:
        self._losses = {
            memory_of(identity): (one, counts.wrote.get(identity, {}))
            for identity, one in counts.lost.items()
        }
        self._silent_times = silent
        self.of_loss: dict[int, set[tuple[int, int]]] = {memory: set() for memory in self._losses}
        self.late, self.latest = 0, 0.0  # added after the host was heard of last, by how much
        self._faults: list[str] = []

    def note(self, job: Job, row: int, seen: list[Record], place: int) -> None:
        """A row is missing, which a player added between two records of its journal."""
        since, added = seen[max(0, place - 1)].moment, seen[place]
        if added.memory not in self._losses:
            self._fault(job, row, added, "and its host lost nothing")
            return
        lost, wrote = self._losses[added.memory]
        number, moment = added.number_of(row), lost.loss.moment
        if number < max(lost.written[added.shard], wrote.get(added.shard, 0)):
            self.of_loss[added.memory].add((added.shard, number))
            return
        self.late, self.latest = self.late + 1, max(self.latest, since - moment)
        is_remote, host = divmod(added.host, REMOTE)
        if is_remote and (has_ended(job.journal) or seen[-1].memory != added.memory):
            self._fault(job, row, added, f"and its player came back: {lost} {wrote}")
        if not is_remote and since > moment + HEARD + self._silent(host, moment, since):
            self._fault(job, row, added, f"long after {lost}")

    def _fault(self, job: Job, row: int, added: Record, why: str) -> None:
        self._faults.append(f"row {row} of player {job.number} is missing, {why}; {added}")

    def _silent(self, host: int, begin: float, end: float) -> float:
        """Seconds between two moments in which the ledger did not hear of a host."""
        return sum(
            max(0.0, min(end, until) - max(begin, since - HEARD))
            for since, until, stopped in self._silent_times
            if stopped in (None, host)
        )

    def faults(self) -> list[str]:
        """Rows without a loss, and losses that were more than was reported."""
        found = list(self._faults)
        for memory, (lost, wrote) in self._losses.items():
            loss, n = lost.with_rows(wrote), len(self.of_loss[memory])
            if n > loss.rows:
                found.append(f"{n} rows are missing, reported was {loss}: {lost} {wrote}")
        return found


def _counts(ledger: Ledger) -> Counts:
    """The counts of a ledger, with the rows of each shard of lost memories."""
    return ledger._counts


def _rows(replay: ClusterReplay, about: Any) -> NDArray[np.int64]:
    """The ids of the rows of a host, on its node."""
    with replay._connection.opened(about).learner() as learner:
        n = len(learner)
        if not n:
            return np.empty(0, np.int64)
        batch = learner.sample(n, replace=False)
        check(batch)
        found: NDArray[np.int64] = batch["id"]
    return found


class Audit:
    """A learner of this process, which knows the priority that each of its rows must have.

    A priority is the number of its update, so the newest is the greatest. Those of a host whose
    process was killed since are not compared, as they may be those of its checkpoint.
    """

    def __init__(self, soak: Soak) -> None:
        self.soak = soak
        sampler = Prioritized(alpha=1.0, eps=0.0)
        self.learner = soak.replay.learner(sampler, seed=0, ahead=1, batches=2)
        self.number = self.drawn = self.sent = self.compared = 0
        self.owners: dict[int, int] = {}  # the last known process of each host
        self.known: dict[int, tuple[str, dict[int, float]]] = {}  # of each host: process, rows

    def step(self) -> None:
        """Draw, update, and compare; a fault is noted."""
        try:
            self._step()
        except (NotEnoughDataError, RateLimitTimeoutError):
            pass
        except Exception:
            self.soak.faults.append(f"driver: {traceback.format_exc()}")

    def _step(self) -> None:
        learner = self.learner
        for host in self.soak.replay.hosts:
            owner = self._process(host)
            if owner is not None:  # else it is stopped, or is not back: its next answer says which
                self.owners[host.number] = owner
        owners = dict(self.owners)
        for _ in range(4):
            batch = learner.sample(64)
            check(batch)
            self.number += 1
            learner.update_priorities(batch["indexes"], np.full(64, float(self.number)))
            self.drawn, self.sent = self.drawn + 64, self.sent + 64
            for part, places, _ in learner._batches.names.split(batch["indexes"]):
                known = learner._directory.known[part]
                number = known.host.number
                process = f"{owners.get(number)} {known.identity}"
                if self.known.get(number, ("", {}))[0] != process:
                    self.known[number] = process, {}
                rows = self.known[number][1]
                for row in batch["id"][places].tolist():
                    rows.pop(row, None)
                    rows[row] = float(self.number)
                for row in list(rows)[:-KNOWN]:
                    del rows[row]
        learner.flush()
        for host in self.soak.replay.hosts:
            self._compare(host, owners.get(host.number))

    def _process(self, host: Any) -> int | None:
        """The process of a host; None if it does not answer."""
        try:
            return int(ray.get(host.begin("pid"), timeout=5.0))
        except Exception:
            return None

    def _compare(self, host: Any, owner: int | None) -> None:
        try:
            asked = host.begin("draw", self.learner.name, "", 128, {"indexes": True}, 1.0)
            reply = answer_of(asked, 60.0)
            now = self._process(host)
        except Exception:
            return  # it was killed just now
        if now is None or now != owner or not reply.columns:
            return
        process, rows = self.known.get(host.number, ("", {}))
        if process != f"{owner} {reply.identity}":
            return
        for row, mass in zip(reply.columns["id"].tolist(), reply.masses.tolist(), strict=True):
            expected = rows.get(row)
            if expected is not None:
                self.compared += 1
                if mass != expected:
                    self.soak.faults.append(
                        f"{host}: row {row} has priority {mass}, and {expected} was sent last"
                    )


def main() -> None:
    """Run the soak; fail with its faults."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--kills", type=int, default=110, help="0 for none: memory alone")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--rows", type=int, default=600_000, help="of each host; with kills, more than are added"
    )
    parser.add_argument("--rate", type=float, default=60.0, help="rows a second of a player")
    parser.add_argument("--checkpoint", type=float, default=5.0, help="seconds between two")
    parser.add_argument("--audit", type=float, default=2.0, help="seconds between two")
    parser.add_argument("--stop", type=float, default=25.0, help="seconds that a host is stopped")
    parser.add_argument("--limit", action="store_true", help="with a limiter")
    given = parser.parse_args()
    began = time.monotonic()
    with (
        tempfile.TemporaryDirectory(prefix="soak-") as folder,
        nodes(HOSTS) as all_nodes,
    ):
        soak = Soak(given, all_nodes, Path(folder))
        with soak.replay, Memory(all_nodes, lambda: soak.pids) as memory:
            soak.run()
            soak.stop()
            lines = soak.report(memory)
    print(*lines, f"{time.monotonic() - began:.0f} s in all", *soak.losses, sep="\n")
    if soak.faults:
        print(*soak.events, sep="\n")
        sys.exit("\n".join([f"{len(soak.faults)} faults:", *soak.faults[:20]]))


if __name__ == "__main__":
    main()
