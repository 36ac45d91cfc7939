"""``ShardHost``: a Ray actor with the shared replay of one node, and methods for other processes.

Ray restarts a host whose process dies. If the node lives, the host attaches to its memory, which
outlives the process. Otherwise it loads its last checkpoint and reports the loss. Not here: the
choice of a host (``_learner``, ``_adding``), and draws at a host (``_drawing``).
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import ray
from numpy.typing import NDArray
from ray.exceptions import RayError

from cpprb_like._fields.entries import Entries
from cpprb_like._machine.generators import Seed
from cpprb_like._machine.waiting import every, wait_until
from cpprb_like.checkpoint import manifest_name, states
from cpprb_like.errors import DamagedError
from cpprb_like.processes import Actor, Mass, Member, SharedReplay
from cpprb_like.processes._folder import is_any_awaited, memory_path
from cpprb_like.ray._blocks import Block, Steps, unpack
from cpprb_like.ray._calls import Unknown, answers, call
from cpprb_like.ray._credit import (
    CREDIT_LEASE,
    GIVEN,
    HEARD,
    NANOSECONDS,
    WAITS,
    WANTED,
    note_wait,
)
from cpprb_like.ray._drawing import Drawer, identity_of
from cpprb_like.ray._messages import (
    NAMESPACE,
    NOBODY,
    SILENT_WRITER,
    About,
    HostPlan,
    Opened,
    Reply,
)
from cpprb_like.ray._parameters import VERSION, split
from cpprb_like.ray._places import COMES_BACK, Checkpoints, HostReplay, WriterPlace
from cpprb_like.ray._saving import save_host
from cpprb_like.samplers import Sampler
from cpprb_like.views import Layer

BEAT = 0.05  # seconds between two reports to the ledger
LEASE = 30.0  # seconds after which the place of a silent writer or learner may be given to another


@dataclass
class HostedWriter:
    """A writer of another node, at its host."""

    actor: Actor  # actor that adds the steps of the writer
    about: WriterPlace  # record of this place
    used: float = field(default_factory=time.monotonic)  # time of the last call
    waits_since: float | None = None  # time at which the writer began to ask for credit


def _add_steps(actor: Actor, steps: Steps, begin: int, stop: int) -> None:
    """Add some steps of a block."""
    n_envs = actor.n_envs
    some: dict[str, Any] = {
        name: values.rows(begin * n_envs, stop * n_envs)
        if isinstance(values, Entries)
        else values[begin:stop]
        for name, values in steps.items()
    }
    if "present" in some:
        actor.add_where(some.pop("present").reshape(-1, n_envs), **some)
    else:
        actor.add(**some)


class ShardHost:
    """The Ray actor of a node: see the head of this module.

    Ray runs the methods for adds in one thread, those for draws in another, and all others in four.
    Calls of one caller for adds, or for draws, keep their order. An exception are calls that were
    made before the process was there. The plan is the same at each start.
    """

    def __init__(self, plan: HostPlan) -> None:
        self._plan = plan
        self._refusal: Exception | None = None
        try:
            self._begin(plan)
        except Exception as error:
            if ray.get_runtime_context().was_current_actor_reconstructed:
                raise
            self._refusal = error  # for ``about``: of errors here Ray tells the text alone

    def _begin(self, plan: HostPlan) -> None:
        """Open the replay, and begin to report."""
        self._ledger = ledger = ray.get_actor(plan.ledger, namespace=NAMESPACE)
        self._lock = threading.Lock()
        self._writers: dict[str, HostedWriter] = {}
        self._drawers: dict[str, Drawer] = {}
        self._used: dict[str, float] = {}
        self._wrote: list[tuple[str, int, int]] = []  # of lost memories, for the ledger
        self._saved_at = 0.0
        self._checkpoints = None
        if plan.folder is not None:
            self._checkpoints = Checkpoints(plan.folder, plan.identity, plan.ledger)
        replay = wait_until(self._open_with_room, COMES_BACK, sleep=every(BEAT))
        self._replay = replay or self._open()
        self._replay.keep()
        self._identity = identity_of(self._replay)
        self._memories = self._replay.memories(self._saved_at, self._checkpoints)
        for number, about in self._replay.writers_of_nodes().items():
            # Shards of writers of other nodes: their memory outlived this process.
            with contextlib.suppress(BlockingIOError):
                self._hold(self._replay.actor(number), about)
        self._credit = None
        if plan.limiter is not None:
            self._credit = self._replay.credit()
            self._credit[:, GIVEN] = np.maximum(self._credit[:, GIVEN], self.about().written)
        with contextlib.suppress(TimeoutError):  # then ``report`` tells the ledger
            call(ledger, "started", self.about(), timeout=LEASE)
        self._version = 0  # of the parameters that were looked for
        self._publishing = threading.Lock()
        self._take_parameters()
        self._closing = threading.Event()
        self._threads = [threading.Thread(target=self._report, daemon=True)]
        if plan.folder is not None:
            self._threads.append(threading.Thread(target=self._keep_saving, daemon=True))
        for thread in self._threads:
            thread.start()

    def _open_with_room(self) -> HostReplay | None:
        """As ``_open``; None while the memory of another cluster takes the room.

        That cluster may have ended. Only its own processes know, so its memory is kept for a time.
        """
        try:
            return self._open()
        except MemoryError:
            if is_any_awaited(memory_path()):
                return None
            raise

    def _open(self) -> HostReplay:
        """The replay from the memory of the node, from the last checkpoint, or a new one."""
        plan = self._plan
        replay = None
        with contextlib.suppress(FileNotFoundError):
            replay = HostReplay._open(plan.replay, left=True)
        if replay is None and self._checkpoints is not None:
            self._take_checkpoints(self._checkpoints)
            if self._checkpoints.has_newest():
                replay = self._load(self._checkpoints.folder, None)
        if replay is None and plan.begin is not None:
            replay = self._load(*plan.begin)
        if replay is None:
            replay = HostReplay(
                plan.capacity, plan.fields, writers=plan.writers, name=plan.replay, **plan.options
            )
        assert isinstance(replay, HostReplay)
        replay.limiter = plan.limiter
        return replay

    def _take_checkpoints(self, checkpoints: Checkpoints) -> None:
        """Make the folder of checkpoints one of this cluster.

        Raises ``FileExistsError`` at the first start if the folder has rows that would be lost: of
        a cluster that is alive, or of any one if this cluster does not begin with saved rows.
        """
        owner = checkpoints.owner()
        if owner is None or checkpoints.are_ours:
            if owner is None:
                checkpoints.take()
            return
        if not ray.get_runtime_context().was_current_actor_reconstructed:
            whose = f"checkpoints: {checkpoints.folder} has the rows of another cluster"
            if self._plan.begin is None:
                raise FileExistsError(
                    f"{whose}: give another folder, or remove it; SharedReplay.load reads its rows"
                )
            if owner[1] != self._plan.ledger and _is_alive(owner[1]):
                raise FileExistsError(f"{whose}, which runs ({owner[0]}): give another folder")
        checkpoints.take()

    def _load(self, folder: str, state: int | None) -> SharedReplay | None:
        """The replay of a checkpoint; None without a checkpoint."""
        try:
            replay = HostReplay.load(folder, name=self._plan.replay, state=state)
        except FileNotFoundError:
            return None
        number = states(folder)[-1] if state is None else state
        self._saved_at = (Path(folder) / manifest_name(number)).stat().st_mtime
        return replay

    # ------------------------------------------------------------------ who and how much

    def about(self) -> About:
        """The location of the host, and how many rows were written."""
        if self._refusal is not None:
            raise self._refusal
        replay, moment = self._replay, time.time()
        counts = replay._adds()
        node = ray.get_runtime_context().get_node_id()
        return About(
            self._plan.number,
            node,
            replay.name,
            str(replay.folder.parent),
            identity_of(replay),
            counts,
            self._memories,
            moment,
        )

    def pid(self) -> int:
        """The process of the host."""
        return os.getpid()

    def members(self) -> list[Member]:
        return self._replay.members()

    def stats(self) -> dict[str, float]:
        return self._replay.stats()

    def describe(self, reward: str | None, ranges: Mapping[str, tuple[float, float]] | None) -> Any:
        """See ``SharedReplay.describe``: a ``Description``."""
        no_bar = {"progress": lambda done, total: None}  # noqa: ARG005 (what is called has both)
        return self._replay.describe(reward=reward, ranges=ranges, **no_bar)

    def _report(self) -> None:
        """Report the written rows to the ledger at short intervals, and take its credit."""
        copy = None  # of its state, for the next ledger
        version = 0  # of the parameters, a report ago: a call with them may be on its way
        while not self._closing.wait(BEAT):
            with contextlib.suppress(RayError, FileNotFoundError):  # the ledger is started again
                self._replay.keep()
                about, wanted, waits = self.about(), [], (0, 0.0)
                if self._credit is not None:
                    wanted = self._wanted(self._credit)
                    calls, nanoseconds = self._credit.sum(axis=0)[[WAITS, NANOSECONDS]].tolist()
                    waits = calls, nanoseconds / 1e9
                stats = self._replay.stats()
                rows, left = int(stats["rows"]), stats.get("left_for_room")
                given = about, rows, left, wanted, waits, copy
                credit, copy = ray.get(self._ledger.report.remote(*given), timeout=10.0)
                if self._wrote:
                    wrote = list(self._wrote)
                    ray.get(self._ledger.wrote.remote(wrote), timeout=10.0)
                    del self._wrote[: len(wrote)]
                if version > self._version:
                    self._take_parameters()
                version = copy.counts.version
                if self._credit is not None:
                    self._credit[:, GIVEN] = credit
                    self._credit[:, HEARD] = time.time_ns()

    def _wanted(self, credit: NDArray[np.int64]) -> list[int]:
        """Rows that the waiting call of each shard adds.

        ``NOBODY`` stands for a shard without a living writer, and ``SILENT_WRITER`` for a writer on
        another node without a recent call. This process holds the lock of its shard, so the lock
        does not tell whether that writer lives. A waiting writer calls every 10 ms: one without a
        call has ended, or needs no credit. It gets new credit with its next call.
        """
        alive = {one.number for one in self.members() if one.kind == "actor" and one.alive}
        wanted = [
            int(credit[number, WANTED]) if number in alive else NOBODY
            for number in range(self._plan.writers)
        ]
        for place in list(self._writers.values()):
            if time.monotonic() - place.used > CREDIT_LEASE:
                wanted[place.actor.number] = SILENT_WRITER
        return wanted

    def why(self) -> str:
        """The reason why calls wait for the limiter, as the ledger knows it."""
        return str(call(self._ledger, "why", timeout=CREDIT_LEASE))

    # ------------------------------------------------------------------ adds of other nodes

    @ray.method(concurrency_group="adds")  # type: ignore[untyped-decorator]
    def open_writer(
        self, writer: str, shard: int | None, known: int, wrote: tuple[str, int, int] | None
    ) -> Opened:
        """A place for a writer of another node, which may have had a place in this shard before.

        ``known`` is the number of the former place, 0 without one. ``wrote`` has the memory of that
        place, the shard, and the rows that it had for sure. If the answer is lost, or the process
        of the host ends, a repeated call returns the same place.
        """
        self._note_wrote(wrote)
        place = self._writers.get(writer)
        if place is None:
            actor = self._free_actor(shard)
            left = self._replay.left(writer)
            loaded = self._memories[-1].loaded
            done = loaded[shard or 0] if left is None else left.rows_of(known)
            place = self._hold(actor, WriterPlace(writer, known + 1, done))
        place.used = time.monotonic()
        rows = int(place.actor.ring.written)
        done = replace(place.about, rows=rows).rows_of(known)
        return Opened(place.actor.number, place.about.number, rows, done, self._identity)

    def _note_wrote(self, wrote: tuple[str, int, int] | None) -> None:
        """Tell the ledger of rows of a lost memory, as it may not have heard of all of them.

        The writer gets its answer after the ledger has it, so that no death of this process can
        lose it. While the ledger is started again for long, ``_report`` tells it later.
        """
        if wrote is None or wrote[0] == self._identity or wrote in self._wrote:
            return
        try:
            call(self._ledger, "wrote", [wrote], timeout=CREDIT_LEASE)
        except (TimeoutError, RuntimeError):
            self._wrote.append(wrote)

    def _hold(self, actor: Actor, about: WriterPlace) -> HostedWriter:
        """Give a place to a writer, and record the place for the next process of the host."""
        self._replay.note_writer(actor.number, about)
        self._writers[about.writer] = HostedWriter(actor, about)
        return self._writers[about.writer]

    def _free_actor(self, shard: int | None) -> Actor:
        """This shard; or a free shard; or the shard of the writer that fell silent first."""
        if shard is not None:
            with contextlib.suppress(BlockingIOError, IndexError):
                return self._replay.actor(shard)
        try:
            return self._replay.actor()
        except BlockingIOError:
            used = {place.used: name for name, place in self._writers.items()}
            if not used or time.monotonic() - min(used) < LEASE:
                raise
            place = self._writers.pop(used[min(used)])
            place.actor.close()
            return self._replay.actor(place.actor.number)

    @answers
    @ray.method(concurrency_group="adds")  # type: ignore[untyped-decorator]
    def add(self, writer: str, number: int, block: Block) -> int:
        """Add the missing steps of a block, and return how many rows were ever written.

        ``number`` is the number of the writer's place for which the block was numbered. An answer
        below ``block.first`` says that rows before the block are missing, and nothing was added.
        """
        place = self._writers.get(writer)
        if place is None or place.about.number != number:
            raise Unknown(f"writer {writer}")
        place.used = time.monotonic()
        actor = place.actor
        n_envs = actor.n_envs
        there = (actor.ring.written - block.first) // n_envs
        if there < 0:
            return int(actor.ring.written)
        steps = unpack(block)
        for start, stop, ends in block.parts():
            if stop > there:
                _add_steps(actor, steps, max(start, there), stop)
            if stop >= there:
                for env in ends:
                    actor.on_episode_end(env)
        return int(actor.ring.written)

    @answers
    @ray.method(concurrency_group="adds")  # type: ignore[untyped-decorator]
    def has_credit(self, writer: str, rows: int) -> bool:
        """Whether a writer may add ``rows`` rows now, rows on their way included."""
        place = self._writers.get(writer)
        if place is None:
            raise Unknown(f"writer {writer}")
        assert self._credit is not None
        words = self._credit[place.actor.number]
        there = bool(words[GIVEN] - place.actor.ring.written >= rows)
        words[WANTED] = 0 if there else rows
        now = place.used = time.monotonic()
        if not there and place.waits_since is None:
            place.waits_since = now
        elif there and place.waits_since is not None:
            note_wait(words, now - place.waits_since)
            place.waits_since = None
        return there

    @ray.method(concurrency_group="adds")  # type: ignore[untyped-decorator]
    def close_writer(self, writer: str, wrote: tuple[str, int, int] | None = None) -> None:
        """Free the shard of a writer that has ended; ``wrote`` is as for ``open_writer``."""
        self._note_wrote(wrote)
        place = self._writers.pop(writer, None)
        if place is not None:
            self._replay.note_writer(place.actor.number, None)
            place.actor.close()

    # ------------------------------------------------------------------ draws of other nodes

    @answers
    @ray.method(concurrency_group="draws")  # type: ignore[untyped-decorator]
    def open_learner(
        self,
        learner: str,
        identity: str,
        sampler: Sampler,
        seed: Seed,
        views: Mapping[str, tuple[Layer, ...]],
        updates: int,
        saved: tuple[str, str] | None = None,
    ) -> None:
        """Open a drawer for a learner of another node, with the views of this learner.

        ``identity`` names the memory that the learner knows. The learner awaits no answers to its
        first ``updates`` updates of this memory. ``saved`` has the folder and the name of the saved
        learner, if it was restored.
        """
        if identity != self._identity:  # else the first updates of this memory would be passed over
            raise Unknown(f"rows of {identity}")
        with self._lock:
            if learner not in self._drawers:
                self._leave_silent()
                found = None if saved is None else Drawer.restored(self._replay, *saved)
                found = found or self._restored(learner) or Drawer(self._replay, sampler, seed)
                self._drawers[learner] = found
        drawer = self._drawers[learner]
        drawer.updates = max(drawer.updates, updates)
        for view, layers in views.items():
            drawer.open_view(view, layers)
        self._used[learner] = time.monotonic()

    def _restored(self, learner: str) -> Drawer | None:
        """The drawer of a learner that was in the last checkpoint."""
        if self._plan.folder is None:
            return None
        try:
            return Drawer.restored(self._replay, self._plan.folder, learner)
        except (FileNotFoundError, ValueError, DamagedError):
            return None

    def _leave_silent(self) -> None:
        """Give up the drawers of learners that fell silent, which have ended."""
        for name, used in list(self._used.items()):
            if time.monotonic() - used > 10 * LEASE and name in self._drawers:
                self._drawers.pop(name).close()
                del self._used[name]

    def _drawer(self, learner: str) -> Drawer:
        self._used[learner] = time.monotonic()
        try:
            return self._drawers[learner]
        except KeyError:
            raise Unknown(f"learner {learner}") from None

    @answers
    @ray.method(concurrency_group="draws")  # type: ignore[untyped-decorator]
    def mass(
        self, learner: str, view: str, largest: float, said: tuple[Any, ...] = ()
    ) -> tuple[str, Mass]:
        return self._identity, self._drawer(learner).mass(view, largest, said)

    @answers
    @ray.method(concurrency_group="draws")  # type: ignore[untyped-decorator]
    def draw(
        self,
        learner: str,
        view: str,
        n: int,
        options: Mapping[str, Any],
        largest: float,
        asked: Sequence[tuple[Any, int]] | None = None,
        said: tuple[Any, ...] = (),
    ) -> Reply:
        drawer = self._drawer(learner)
        return drawer.for_the_way(drawer.draw(view, n, options, largest, asked, said), view)

    @answers
    @ray.method(concurrency_group="draws")  # type: ignore[untyped-decorator]
    def update(
        self,
        learner: str,
        identity: str,
        updates: list[tuple[int, NDArray[np.int64], NDArray[np.float64], float]],
    ) -> list[int | Exception]:
        """For each update the answer of ``Drawer.update``, or its error.

        ``identity`` names the memory with the rows.
        """
        drawer = self._drawer(learner)
        if identity != self._identity:  # its node died: the learner is in the checkpoint
            raise Unknown(f"rows of {identity}")
        first = updates[0][0]
        if first > drawer.updates + 1:  # the calls between were lost with a process of the host
            raise Unknown(f"update {first - 1} of learner {learner}")
        return [_late_of(drawer, *given) for given in updates]

    @ray.method(concurrency_group="draws")  # type: ignore[untyped-decorator]
    def close_learner(self, learner: str) -> None:
        """Free the place of a learner that has ended."""
        with self._lock:
            drawer = self._drawers.pop(learner, None)
            self._used.pop(learner, None)
        if drawer is not None:
            drawer.close()

    # ------------------------------------------------------------------ parameters

    def _take_parameters(self) -> None:
        """Publish the newest parameters here, if this host does not have them yet."""
        with contextlib.suppress(RayError, TimeoutError):  # the publisher has ended
            version, held = call(self._ledger, "parameters", timeout=LEASE)
            self._version = version
            if held and self.parameters(version - 1) is None:
                self.publish(version, ray.get(held[0], timeout=10.0))

    def publish(self, version: int, values: Mapping[str, Any]) -> None:
        """Publish these as the newest parameters of the node, unless it has newer ones."""
        with self._publishing:
            self._version = max(self._version, version)
            if self.parameters(version - 1) is not None:
                return
            self._replay.parameters.publish({**values, VERSION: np.int64(version)})

    def parameters(self, after: int) -> tuple[int, Any] | None:
        """The newest parameters, if their version is newer."""
        return split(self._replay.parameters.latest(), after)

    # ------------------------------------------------------------------ saving

    def _keep_saving(self) -> None:
        checkpoints = self._checkpoints
        assert checkpoints is not None
        while not self._closing.wait(self._plan.seconds):
            if not checkpoints.are_ours:
                warnings.warn(
                    f"checkpoints: another cluster took {checkpoints.folder}: none are written",
                    stacklevel=2,
                )
                return
            with contextlib.suppress(BlockingIOError):  # a shard was being edited, or another saves
                self.save(checkpoints.folder)

    def save(self, folder: str) -> int:
        """Save the rows and the learners of other nodes; returns the number of the saved state."""
        with self._lock:
            learners = {name: drawer.learner for name, drawer in self._drawers.items()}
        return save_host(self._replay, folder, learners)

    def close(self) -> None:
        """Close the replay; the memory is freed when no process of the node has it open."""
        if self._refusal is not None:
            return
        self._closing.set()
        for writer in list(self._writers):
            self.close_writer(writer)
        for learner in list(self._drawers):
            self.close_learner(learner)
        for thread in self._threads:
            thread.join(timeout=1.0)
        self._replay._folder.keep_until(0)
        self._replay.close()


def _late_of(drawer: Drawer, *given: Any) -> int | Exception:
    """The answer of ``Drawer.update``, or its error: updates after it have their effect."""
    try:
        return drawer.update(*given)
    except Exception as error:  # noqa: BLE001 (the learner raises it)
        return error


def _is_alive(ledger: str) -> bool:
    """Whether a ledger of this name runs."""
    try:
        ray.get_actor(ledger, namespace=NAMESPACE)
    except ValueError:
        return False
    return True
