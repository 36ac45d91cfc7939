"""``ClusterReplay``: a replay that processes of all nodes of a Ray cluster add to and draw from.

Not here: the hosts (``_hosts``), adds on nodes without a host (``_adding``), and batches
(``_learner``).
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import ray
from numpy.typing import DTypeLike
from ray.exceptions import GetTimeoutError, RayTaskError
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import (
    NodeAffinitySchedulingStrategy,
    PlacementGroupSchedulingStrategy,
)

from cpprb_like._arguments.checks import as_int
from cpprb_like._fields.checked_options import CheckedOptions
from cpprb_like._files.json_codec import from_json, to_json
from cpprb_like._machine.generators import Seed
from cpprb_like._machine.waiting import HOST_PATIENCE, PAUSE, every, wait_until
from cpprb_like.buffers import _reported
from cpprb_like.buffers._reported import Ranges
from cpprb_like.checkpoint import CLUSTER, Beside, SaveOptions, begun
from cpprb_like.limiters import RateLimiter
from cpprb_like.processes import Actor, Learner, Member
from cpprb_like.processes._folder import Closing, check_name, memory_path, remove_left
from cpprb_like.processes._limits import limiter_from_json, limiter_to_json
from cpprb_like.processes._replay import options_of_each
from cpprb_like.ray._adding import ClusterActor
from cpprb_like.ray._calls import GONE, Host, call
from cpprb_like.ray._connection import Connection
from cpprb_like.ray._hosts import ShardHost
from cpprb_like.ray._learner import ClusterLearner
from cpprb_like.ray._ledger import Counts, Ledger
from cpprb_like.ray._messages import NAMESPACE, HostPlan, Loss
from cpprb_like.ray._parameters import ClusterParameters
from cpprb_like.ray._saving import STATES, SavedCluster, save_host
from cpprb_like.samplers import Sampler
from cpprb_like.typing import FieldSpec, RowOptions

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from cpprb_like.report import Description

START = 120.0  # seconds in which the hosts have to come
LEFT = 1.0  # seconds in which the processes of killed hosts end
ASKED = 10.0  # seconds in which a host names its members
READ = 600.0  # seconds in which a host reads its rows for a report
CLOSE = 30.0  # seconds in which they free their memory, before they are killed
# What actors reserve by default: one byte. If they reserve nothing, Ray asks any node where to put
# them, and a new node takes them itself. Then one death ends the ledger and a host.
LITTLE: dict[str, Any] = {"num_cpus": 0, "memory": 1}


class ClusterReplay(Closing):
    """A replay on a Ray cluster, with the methods of ``SharedReplay``, over several machines.

    On each participating node a Ray actor, the *host*, holds a shared replay. Processes on this
    node add to its memory without a call of Ray. Processes on other nodes send blocks of steps.
    Learners draw from all hosts as from one buffer.

    Parameters
    ----------
    capacity : int
        Steps stored in all. Each writer of each host has an equal part, rounded up, as of ``room``.
    env_dict, default_dtype, n_envs, **options
        As for ``SharedReplay``.
    writers : int
        Greatest number of processes that add to one host at the same time.
    hosts : int or sequence of str, optional
        Number of hosts, spread over the nodes. Or the node of each host, by its name in Ray. By
        default one host on each live node.
    limiter : RateLimiter, optional
        As for ``SharedReplay``, over all hosts.
    checkpoints : str or path, optional
        Folder in which each host saves its rows every ``checkpoint_seconds``. All nodes share the
        folder, or each node has its own. After the death of a node, its host restarts from the last
        checkpoint of this cluster. The folder has no checkpoints of another cluster.
    checkpoint_seconds : float
        Seconds between two checkpoints of a host, by default 60.
    name : str, optional
        Name of the cluster, which no other running cluster has. By default a random one.
    resources : dict, optional
        Resources that Ray reserves for each host, in the form of ``ActorClass.options``. By default
        no processor.

    Raises
    ------
    TimeoutError
        Some hosts did not start within two minutes. The message says how many started.
    FileExistsError
        A cluster of this name runs in this Ray. Or ``checkpoints`` has rows of another cluster.
    MemoryError
        The shared memory of a node has no room for a host.
    TypeError, ValueError
        A parameter has a wrong type or value.

    Notes
    -----
    The process that creates the cluster owns it. The hosts end with this process. The object can be
    pickled: pass it to tasks and actors of Ray.

    A Ray cluster trusts its network, and so does this class. A program that reaches a port of Ray
    can run code. Arrays and small tuples travel over Ray's own transport.

    Source: Horgan et al. (2018), "Distributed Prioritized Experience Replay", for actors, learner
    and first priorities.

    Examples
    --------
    >>> import ray
    >>> from cpprb_like.ray import ClusterReplay
    >>> _ = ray.init(address="local", num_cpus=1, include_dashboard=False)  # doctest: +SKIP
    >>> replay = ClusterReplay(1000, {"x": {"shape": ()}}, writers=1)       # doctest: +SKIP
    >>> with replay.actor() as actor:                                       # doctest: +SKIP
    ...     actor.add(x=[1, 2, 3])
    >>> replay.learner(seed=0).sample(8)["x"].shape                         # doctest: +SKIP
    (8,)
    """

    def __init__(
        self,
        capacity: float,
        env_dict: Mapping[str, FieldSpec],
        *,
        writers: int,
        hosts: int | Sequence[str] | None = None,
        default_dtype: DTypeLike | None = None,
        n_envs: int = 1,
        limiter: RateLimiter | None = None,
        checkpoints: str | Path | None = None,
        checkpoint_seconds: float = 60.0,
        name: str | None = None,
        resources: Mapping[str, Any] | None = None,
        **options: Unpack[RowOptions],
    ) -> None:
        nodes = _nodes(hosts)
        shards = as_int("writers", writers, 1) * len(nodes)
        keywords: dict[str, Any] = {"default_dtype": default_dtype, "n_envs": n_envs, **options}
        rows = options_of_each(CheckedOptions.read(capacity, env_dict, **keywords), shards)
        size, rooms = rows.size, rows.schema.rooms  # of a shard
        if rooms:
            keywords["room"] = {axis: writers * room for axis, room in rooms.items()}
        if limiter is not None:
            limiter._check_capacity(size * shards)
        plan = HostPlan(
            *_names(name),
            0,
            size * writers,
            writers,
            dict(env_dict),
            keywords,
            limiter,
            None if checkpoints is None else str(Path(checkpoints).resolve()),
            float(checkpoint_seconds),
        )
        self._begin(plan, rows, nodes, dict(resources or LITTLE))

    def _begin(
        self,
        plan: HostPlan,
        options: CheckedOptions,
        nodes: list[str],
        resources: dict[str, Any],
        begin: Mapping[str, tuple[str, int]] | None = None,
        counts: Counts | None = None,
    ) -> None:
        """Start the ledger and the hosts, and wait until all of them run."""
        self._placed: list[Any] = []
        self._parameters: ClusterParameters | None = None  # of this process
        restarts: dict[str, Any] = {"max_restarts": -1, "max_task_retries": 0}
        node = str(ray.get_runtime_context().get_node_id())
        here = NodeAffinitySchedulingStrategy(node, soft=True)
        named = {"name": plan.ledger, "namespace": NAMESPACE}
        ledger = ray.remote(Ledger).options(**restarts, **named, **LITTLE, scheduling_strategy=here)
        try:
            handle = ledger.remote(plan.limiter, counts or Counts())
        except ValueError as error:  # of Ray, for a name that is taken
            raise FileExistsError(
                f"name: there is a cluster of the name {plan.cluster!r} in this Ray"
            ) from error
        self._connection = Connection(plan, options, handle)
        try:
            self._start(plan, nodes, {**restarts, **resources}, begin)
        except BaseException:  # Ray would keep what it reserved until this process ends
            self._end(LEFT)
            raise

    def _start(
        self,
        plan: HostPlan,
        nodes: list[str],
        options: dict[str, Any],
        begin: Mapping[str, tuple[str, int]] | None,
    ) -> None:
        """Start the hosts, with these options of Ray, and wait until all of them run."""
        plans = []
        for number in range(len(nodes)):
            own = f"host-{number}"
            plans.append(
                replace(
                    plan,
                    number=number,
                    folder=None if plan.folder is None else str(Path(plan.folder) / own),
                    begin=None if begin is None else begin[own],
                )
            )
        kind = ray.remote(concurrency_groups={"adds": 1, "draws": 1})(ShardHost)
        # In a placement group of its own a host whose process dies comes back where its memory is,
        # also when it had moved there as its first node died.
        for plan, node in zip(plans, nodes, strict=True):
            group = placement_group([_bundle(options)], "STRICT_PACK", _soft_target_node_id=node)
            self._placed.append(group)
            actor = kind.options(
                **options,
                max_concurrency=4,
                scheduling_strategy=PlacementGroupSchedulingStrategy(group, 0),
            ).remote(plan)
            self.hosts.append(Host(plan.number, actor))
        until, found = time.monotonic() + START, 0
        for host in self.hosts:
            left = max(0.0, until - time.monotonic())
            try:
                ray.get(host.begin("about"), timeout=left)
                found += 1
            except RayTaskError as error:
                raise error.cause from None
            except GetTimeoutError:
                raise TimeoutError(
                    f"{found} of {len(self.hosts)} hosts came within {START:g} s: is there a node "
                    "with the resources that they ask for?"
                ) from None

    # ------------------------------------------------------------------ the two ends

    def actor(self, *, host: int | None = None, timeout: float = 60.0) -> Actor | ClusterActor:
        """The end that adds: on a node with a host, an ``Actor`` of the host's shared replay.

        On other nodes a ``ClusterActor`` sends blocks of steps to the host that has written least,
        or to the next one if all writers of that host are taken. So it is on a node whose own host
        has no free writer. ``host`` chooses the host by its number. Hosts that are silent are left
        out. Raises ``BlockingIOError`` if all writers are taken, and ``TimeoutError`` if no host
        answers.
        """
        self._connection.check_open()
        hosts = self.hosts
        if host is not None:
            hosts = [hosts[as_int("host", host, 0, len(hosts) - 1)]]
        until = time.monotonic() + timeout
        names = ", ".join(map(str, hosts))
        abouts = wait_until(  # their processes may be started again
            lambda: self._connection.abouts(max(0.0, until - time.monotonic()), hosts),
            timeout,
            lambda: TimeoutError(f"actor: none of {names} answered within {timeout:g} s"),
            sleep=every(PAUSE),
        )
        taken: BlockingIOError | None = None
        own = [about for about in abouts.values() if about.node == self._connection.node()]
        for about in own:
            with contextlib.suppress(FileNotFoundError):
                try:
                    return self._connection.opened(about).actor()
                except BlockingIOError as error:
                    taken = error
        known = self._connection.options, timeout, self._connection.limiter
        for about in sorted(abouts.values(), key=lambda about: sum(about.written)):
            if about not in own or taken is None:
                try:
                    return ClusterActor(self.hosts[about.number], *known)
                except BlockingIOError as error:
                    taken = error
        assert taken is not None
        raise taken

    def learner(
        self,
        sampler: Sampler | None = None,
        *,
        seed: Seed = None,
        ahead: int = 2,
        batches: int = 16,
        nbytes: float = 64e6,
        timeout: float = 60.0,
    ) -> ClusterLearner:
        """The end that draws: a ``Source`` of batches from the rows of all hosts.

        Parameters
        ----------
        sampler : Sampler, optional
            As for ``SharedReplay.learner``.
        seed : int, SeedSequence, BitGenerator, Generator, optional
            Seed of the draws.
        ahead : int
            How many calls ahead of need a host on another node is asked. 0 asks when a batch is
            needed.
        batches : int
            Greatest number of batches in one call.
        nbytes : float
            Greatest size in bytes of all batches on their way. It is less beside object stores that
            are nearly full. A call has at least one batch.
        timeout : float
            Seconds that a call waits for hosts, and for the limiter.
        """
        self._connection.check_open()
        return ClusterLearner(
            self._connection,
            sampler,
            seed,
            ahead=ahead,
            batches=batches,
            nbytes=nbytes,
            timeout=timeout,
        )

    @property
    def parameters(self) -> ClusterParameters:
        """Weights on their way from a learner to the actors, as ``SharedReplay.parameters``."""
        if self._parameters is None:
            self._parameters = ClusterParameters(self._connection)
        return self._parameters

    # ------------------------------------------------------------------ who is there

    def members(self) -> list[tuple[int, Member]]:
        """The actors and learners of each host that answers, by the number of the host."""
        self._connection.check_open()
        found = self._connection.answers("members", timeout=ASKED)
        return [(number, one) for number in sorted(found) for one in found[number]]

    def stats(self) -> dict[str, float]:
        """The counts of all hosts together.

        Returns
        -------
        dict of (int or float)
            A new, flat dict by name:

            - ``inserts``: rows added, lost rows included. ``samples``: items that learners drew.
              ``rows``: rows held now. ``rows_lost``: see ``losses``.
            - ``hosts``: number of hosts. ``age_of_counts``: seconds since the oldest of the hosts'
              last reports. A host sends no reports from its death to its restart.
            - ``waits_for_inserts``: calls of ``sample`` that waited for the limiter.
              ``seconds_waiting_for_inserts``: total time of these waits.
            - ``waits_for_samples`` and ``seconds_waiting_for_samples``: the same for ``add``. All
              four include only completed waits.
            - ``left_for_room``: with values of any length, rows that left early as a room was full.
              ``left_for_room_of_host_0`` and so on: the same for each host.
        """
        self._connection.check_open()
        found: dict[str, float] = call(self._connection.ledger, "stats", timeout=HOST_PATIENCE)
        return found

    report = _reported.report

    def _to_report(self) -> NoReturn:
        raise TypeError("the rows of ClusterReplay are with its hosts; see ClusterReplay.describe")

    def describe(
        self,
        *,
        reward: str | None = None,
        ranges: Ranges | None = None,
        draws: Any = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> Description:
        """A description of the rows of all hosts: see ``ReplayBuffer.describe``.

        Each host reads its own rows while actors and learners continue. ``progress(done, total)``
        gets numbers of hosts. Raises ``TypeError`` for ``draws``, and ``TimeoutError`` if a host
        does not answer within ten minutes.
        """
        from cpprb_like.report._describe import joined  # noqa: PLC0415 (on demand)

        self._connection.check_open()
        if draws is not None:
            raise TypeError("draws: handles belong to a learner, and hosts cannot read them")
        asked = {host: host.begin("describe", reward, ranges) for host in self.hosts}
        found, until = {}, time.monotonic() + READ
        for host, reference in asked.items():
            try:
                description = ray.get(reference, timeout=max(0.0, until - time.monotonic()))
            except RayTaskError as error:
                raise error.cause from None
            except (GetTimeoutError, *GONE) as error:
                raise TimeoutError(f"describe: {host} gave no answer: {error}") from error
            found[f"host-{host.number}"] = description
            if progress is not None:
                progress(len(found), len(asked))
        return joined(found, {"class": type(self).__name__, "stats": self.stats()})

    def losses(self) -> list[Loss]:
        """The losses of rows by deaths of nodes, oldest first."""
        self._connection.check_open()
        found: list[Loss] = call(self._connection.ledger, "losses", timeout=HOST_PATIENCE)
        return found

    @property
    def name(self) -> str:
        """The name of the cluster."""
        return self._connection.name

    @property
    def hosts(self) -> list[Host]:
        """The hosts, by their numbers."""
        return self._connection.hosts

    @property
    def capacity(self) -> int:
        """Steps stored in all."""
        return self._connection.options.size * self._connection.plan.writers * len(self.hosts)

    # ------------------------------------------------------------------ saving

    def save(
        self,
        folder: str | Path,
        *,
        learners: Mapping[str, ClusterLearner] | None = None,
        timeout: float = 600.0,
        beside: Beside | None = None,
    ) -> None:
        """Save the rows of all hosts to a folder that all nodes see, while actors continue.

        Each host saves its own rows. Then one file names the states of all hosts. So after a crash
        the folder has the whole old state or the whole new one. The newest parameters and the
        counts of the limiter are saved, too.

        Parameters
        ----------
        folder : str or path
            The folder, which is created if it does not exist.
        learners : dict of str to ClusterLearner, optional
            Learners of this process, by names that you choose. Their priorities, samplers and
            generators are saved. Batches that they requested ahead are dropped.
            ``restore_learner`` restores these learners.
        timeout : float
            Seconds that hosts may take. After a ``TimeoutError`` the folder has the old state.
        beside : dict of str to bytes or callable, optional
            As for ``ReplayBuffer.save``. Callables run in this process, before the hosts save.

        Raises
        ------
        BlockingIOError
            Another save to this folder is running.
        TypeError, ValueError, OSError
            As for ``ReplayBuffer.save``.
        """
        self._connection.check_open()
        options = SaveOptions(beside=beside)
        base = Path(folder).resolve()
        base.mkdir(parents=True, exist_ok=True)
        given: dict[str, Any] = dict(learners or {})
        for name, learner in given.items():
            if not isinstance(learner, ClusterLearner) or learner._connection.name != self.name:
                raise TypeError(
                    f"learners[{name!r}]: expected a learner of {self}, got {learner!r}"
                )
        with begun(base / CLUSTER, options) as save_object:
            save_object(self._save_hosts(base, given, timeout))

    def _save_hosts(
        self, base: Path, given: Mapping[str, ClusterLearner], timeout: float
    ) -> SavedCluster:
        """Save the rows of all hosts; the object that names their states."""
        saved = {str(name): learner._to_save() for name, learner in given.items()}
        own: dict[int, dict[str, Learner]] = {}  # of hosts of this node
        for learner in given.values():
            for number, part in learner._directory.parts.items():
                if part.drawer is not None:
                    own.setdefault(number, {})[learner.name] = part.drawer.learner
        states = STATES[0]
        with contextlib.suppress(FileNotFoundError):
            states = next(name for name in STATES if name != SavedCluster.read(base).states)
        folders = {host.number: str(base / states / f"host-{host.number}") for host in self.hosts}
        asked = {
            host.number: host.begin("save", folders[host.number])
            for host in self.hosts
            if host.number not in own
        }
        try:
            found = {number: ray.get(one, timeout=timeout) for number, one in asked.items()}
        except (GetTimeoutError, *GONE) as error:
            raise TimeoutError(f"save: a host gave no answer: {error}") from error
        for number, some in own.items():
            about = self.hosts[number].call("about", timeout=timeout)
            found[number] = save_host(self._connection.opened(about), folders[number], some)
        newest = self.parameters.latest()
        return SavedCluster(
            self._described(),
            states,
            {f"host-{number}": found[number] for number in sorted(found)},
            saved,
            call(self._connection.ledger, "counts", timeout=timeout),
            None if newest is None else newest[1],
        )

    def _described(self) -> dict[str, Any]:
        """The description of the cluster that ``load`` needs besides the states of its hosts."""
        return {
            "options": to_json(self._connection.options),
            "capacity": self._connection.plan.capacity,
            "writers": self._connection.plan.writers,
            "limiter": limiter_to_json(self._connection.limiter),
        }

    @classmethod
    def load(
        cls,
        folder: str | Path,
        *,
        hosts: Sequence[str] | None = None,
        checkpoints: str | Path | None = None,
        checkpoint_seconds: float = 60.0,
        name: str | None = None,
        resources: Mapping[str, Any] | None = None,
        state: int | None = None,
    ) -> ClusterReplay:
        """A new cluster with the saved rows and the saved number of hosts.

        ``checkpoints`` may be the folder of a cluster that has ended. Its checkpoints are not read,
        and those of the new cluster replace them. ``state`` is the number of the state that is
        expected; the folder has one, the newest.

        Raises ``FileNotFoundError`` if the folder has no saved cluster, or none of this ``state``.
        Raises ``DamagedError`` if the file that names the states is damaged or of another format.
        Raises ``FileExistsError`` if ``checkpoints`` is the folder of a running cluster.
        """
        base = Path(folder).resolve()
        saved = SavedCluster.read(base, state)
        cluster, states = saved.description, saved.hosts
        nodes = _nodes(len(states) if hosts is None else hosts)
        if len(nodes) != len(states):
            raise ValueError(f"hosts: expected {len(states)}, as were saved, got {len(nodes)}")
        self = cls.__new__(cls)
        options: CheckedOptions = from_json(CheckedOptions, cluster["options"], "options")
        plan = HostPlan(
            *_names(name),
            0,
            int(cluster["capacity"]),
            int(cluster["writers"]),
            {},
            {},
            limiter_from_json(cluster["limiter"]),
            None if checkpoints is None else str(Path(checkpoints).resolve()),
            float(checkpoint_seconds),
        )
        given = dict(resources or LITTLE)
        begin = {name: (str(base / saved.states / name), states[name]) for name in states}
        self._begin(plan, options, nodes, given, begin, Counts(**saved.counts))
        try:
            abouts = self._connection.abouts(START, self.hosts)
            written = sum(sum(about.written) for about in abouts.values())
            ray.get(self._connection.ledger.begin_balanced.remote(written), timeout=START)
            if saved.parameters is not None:
                self.parameters.publish(saved.parameters)
        except BaseException:
            self.close()
            raise
        return self

    def restore_learner(
        self,
        folder: str | Path,
        name: str,
        *,
        ahead: int = 2,
        batches: int = 16,
        nbytes: float = 64e6,
        timeout: float = 60.0,
        state: int | None = None,
    ) -> ClusterLearner:
        """A learner with the priorities, sampler and generator of a saved learner.

        Parameters
        ----------
        folder : str or path
            Folder from which this cluster was loaded.
        name : str
            Name of the learner in ``save``.
        ahead, batches, nbytes, timeout
            As for ``learner``.
        state : int, optional
            As for ``load``.

        Raises
        ------
        ValueError
            The folder has no learner with this name, or the rows of another cluster.
        TimeoutError
            A host does not answer.
        """
        base = Path(folder).resolve()
        cluster = SavedCluster.read(base, state)
        saved = cluster.learner(name)
        folders = {host.number: cluster.folder(base, host.number) for host in self.hosts}
        how: dict[str, Any] = {"ahead": ahead, "batches": batches, "nbytes": nbytes}
        given = self._connection, saved.sampler, None, saved, folders
        return ClusterLearner(*given, timeout=timeout, **how)

    # ------------------------------------------------------------------ the end

    def close(self) -> None:
        """End the hosts, and free their memory when no process of their nodes has it open.

        Actors and learners of this process keep the rows that they have mapped. Other methods raise
        ``RuntimeError`` from now on, in processes of other nodes after a second.
        """
        if self._connection.is_closed:
            return
        self._connection.is_closed = True
        for replay in self._connection.replays.values():
            replay.close()
        self._end(CLOSE)

    def _end(self, seconds: float) -> None:
        """End the hosts; they have ``seconds`` to free their memory before."""
        with contextlib.suppress(RayTaskError):
            self._connection.answers("close", timeout=seconds)
        for host in self.hosts:
            ray.kill(host.actor)
        ray.kill(self._connection.ledger)
        for group in self._placed:
            remove_placement_group(group)
        # Memory of this node that a host did not free, as its process was not there.
        plans = [replace(self._connection.plan, number=host.number) for host in self.hosts]
        folders = {memory_path() / plan.replay for plan in plans}
        folders |= {replay.folder for replay in self._connection.replays.values()}
        wait_until(lambda: _are_removed(folders), LEFT)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_parameters": None}

    def __repr__(self) -> str:
        return (
            f"ClusterReplay(capacity={self.capacity}, hosts={len(self.hosts)}, name={self.name!r})"
        )


def _names(name: str | None) -> tuple[str, str]:
    """The name of a new cluster, and its identity."""
    token = secrets.token_hex(6)
    if name is None:
        return f"cluster-{token}", f"cluster-{token}"
    return check_name(name), f"{name}-{token}"


def _bundle(resources: Mapping[str, Any]) -> dict[str, float]:
    """The resources that a placement group reserves for a host."""
    names = {"num_cpus": "CPU", "num_gpus": "GPU", "memory": "memory"}
    found = {word: float(resources.get(name) or 0) for name, word in names.items()}
    found |= {name: float(value) for name, value in dict(resources.get("resources") or {}).items()}
    return {name: value for name, value in found.items() if value} or {"memory": 1.0}


def _are_removed(folders: set[Path]) -> bool:
    """Remove the folders that no process has open; returns whether all of them are gone."""
    for folder in folders:
        if folder.exists():
            remove_left(folder, is_awaited=False)
    return not any(folder.exists() for folder in folders)


def _nodes(hosts: int | Sequence[str] | None) -> list[str]:
    """The nodes of the hosts, by their names in Ray."""
    if not ray.is_initialized():
        raise RuntimeError("Ray was not started here: call ray.init() first")
    alive = [node["NodeID"] for node in ray.nodes() if node["Alive"]]
    if hosts is None:
        return alive
    if isinstance(hosts, int):
        count = as_int("hosts", hosts, 1)
        return [alive[number % len(alive)] for number in range(count)]
    unknown = [node for node in hosts if node not in alive]
    if unknown or not hosts:
        raise ValueError(f"hosts: expected names of nodes {alive}, got {list(hosts)}")
    return list(hosts)
