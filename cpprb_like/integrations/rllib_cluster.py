"""Buffers for RLlib whose steps lie in a ``ClusterReplay``, on all nodes of a Ray cluster.

The type of ``replay_buffer_config`` is one of these classes. The algorithm's process adds chunks of
episodes to the hosts; with ``AddAtRunners`` each env runner adds its own, on its node. Draws are as
from one buffer over all hosts. Not here: the buffers of one process (``rllib``).
"""

from __future__ import annotations

import hashlib
import math
import warnings
from collections import deque
from collections.abc import Mapping
from functools import partial
from typing import Any, NoReturn

import numpy as np

from cpprb_like.errors import NotEnoughDataError
from cpprb_like.integrations._libraries import missing
from cpprb_like.integrations.rllib import (
    REWARD,
    EpisodeReplayBuffer,
    NStep,
    PrioritizedEpisodeReplayBuffer,
    _bounds,
    _Form,
    _Front,
    _transitions,
    check_joints,
)
from cpprb_like.samplers import Prioritized, Sampler, Uniform
from cpprb_like.typing import FieldSpec
from cpprb_like.views import NStep as NStepReturns

try:
    import ray
    from ray.rllib.callbacks.callbacks import RLlibCallback
    from ray.rllib.env.single_agent_episode import SingleAgentEpisode
    from ray.rllib.utils.replay_buffers import (
        PrioritizedEpisodeReplayBuffer as TheirPrioritizedEpisodeReplayBuffer,
    )

    from cpprb_like.ray import ClusterActor, ClusterReplay
except ImportError as error:
    raise missing(__name__, "Ray's RLlib", "rllib", error) from error

__all__ = [
    "AddAtRunners",
    "ClusterEpisodeReplayBuffer",
    "ClusterPrioritizedEpisodeReplayBuffer",
]

ID, TIME = "episode", "t"
ENDS = "terminated", "truncated"
ID_NBYTES = 16
MOST_ENVIRONMENTS = 256  # taken for such by their ended episodes, as of a data set
PATIENCE = 60.0  # seconds in which the hosts of a loaded cluster give their counts
RUNNER = "_cpprb_like_lanes"  # attribute of an env runner


class _Lane:
    """A shard that the steps of one episode at a time are added to."""

    def __init__(self, actor: Any) -> None:
        self.actor = actor
        self.rows = 0
        self.id_: str | None = None  # of the episode that is open
        self.t = 0  # the time step that its next chunk starts from


class _Lanes:
    """The shards of a process's open episodes, one for each episode.

    A new episode takes a shard that this process has not taken yet, of the hosts in turns; then the
    shard to which it has added least. Without a free shard the algorithm's process ends the episode
    that was added to first, and an env runner, ``at_node``, gives up.
    """

    def __init__(self, replay: ClusterReplay, form: _Form, *, at_node: bool) -> None:
        self._replay, self._form, self._at_node = replay, form, at_node
        hosts = range(len(replay.hosts))
        self._open_at: deque[int | None] = deque([None] if at_node else hosts)
        self._lanes: list[_Lane] = []  # least recently used first
        self._warned = False

    def check(self, chunks: list[Any]) -> None:
        """Raise ``ValueError`` for a chunk that does not begin where its stored episode ends."""
        check_joints(chunks, {lane.id_: lane.t for lane in self._lanes if lane.id_ is not None})

    def add(self, chunk: Any, columns: dict[str, Any]) -> bool:
        """Add a chunk, whose values are ``columns``; return whether its episode is new here."""
        lane = next((lane for lane in self._lanes if lane.id_ == chunk.id_), None)
        is_new = lane is None
        if lane is None:
            lane = self._free()
        lane.actor.add(**columns)
        lane.id_, lane.t = (None if chunk.is_done else chunk.id_), chunk.t
        lane.rows += len(chunk)
        self._lanes.remove(lane)
        self._lanes.append(lane)
        return is_new

    def columns(self, chunk: Any) -> dict[str, Any]:
        """The values of a chunk by field of the cluster."""
        found: dict[str, Any] = {}
        for name, values in self._form.columns(chunk).items():
            if name in self._form.following:
                found[name], found[f"next_{name}"] = values[:-1], values[1:]
            else:
                found[name] = values
        n = len(chunk)
        times = np.arange(chunk.t_started, chunk.t_started + n + 1)
        found[TIME], found[f"next_{TIME}"] = times[:-1], times[1:]
        found[ID] = np.broadcast_to(_bytes_of(chunk.id_), (n, ID_NBYTES))
        for name, ended in zip(ENDS, (chunk.is_terminated, chunk.is_truncated), strict=True):
            found[name] = np.arange(1, n + 1) == (n if ended else 0)
        return found

    def _free(self) -> _Lane:
        """The lane for a new episode, chosen as the class says."""
        idle = [lane for lane in self._lanes if lane.id_ is None]
        if not (idle and self._at_node):  # other env runners need shards, too
            while self._open_at:
                host = self._open_at[0]
                self._open_at.rotate(-1)
                try:
                    lane = _Lane(self._replay.actor(host=host))
                except BlockingIOError:
                    if self._at_node:
                        raise
                    self._open_at.remove(host)
                else:
                    self._lanes.append(lane)
                    return lane
        if idle:
            return min(idle, key=lambda lane: lane.rows)
        if not self._lanes:
            raise BlockingIOError("all writers of the cluster are taken; give it more writers")
        if not self._warned:
            self._warned = True
            warnings.warn(
                f"more than {len(self._lanes)} episodes are open: some are cut; give the buffer as "
                "many writers as a host has environments",
                stacklevel=5,
            )
        lane = self._lanes[0]
        lane.actor.on_episode_end()
        lane.id_ = None
        return lane

    def send(self, wait: bool) -> None:
        """Send the steps that are not at their host yet."""
        for lane in self._lanes:
            if isinstance(lane.actor, ClusterActor):
                lane.actor.flush(wait=wait)

    def close(self) -> None:
        """Free the shards; open episodes end as truncated."""
        for lane in self._lanes:
            lane.actor.close()
        self._lanes, self._open_at = [], deque()


def _bytes_of(id_: str) -> Any:
    """The id of an episode as 16 bytes: the digits of RLlib's ids, or the digest of another id."""
    try:
        found = bytes.fromhex(id_)
    except ValueError:
        found = b""
    if len(found) != ID_NBYTES:
        found = hashlib.blake2b(id_.encode(), digest_size=ID_NBYTES).digest()
    return np.frombuffer(found, np.uint8)


class _ClusterSteps(_Front):
    """Episodes of RLlib in the hosts of a cluster: what both classes share."""

    def __init__(
        self,
        capacity: int,
        batch_size: int,
        smoothing: int,
        writers: int | None,
        cluster: ClusterReplay | Mapping[str, Any] | None,
        seed: int | None,
        sampler: Sampler,
    ) -> None:
        _Front.__init__(self, capacity, batch_size, 1, smoothing)
        self.replay: ClusterReplay | None = None
        self._writers, self._sampler, self._seed = writers, sampler, seed
        self._options: dict[str, Any] = {}
        self._lanes: _Lanes | None = None
        self._learner: Any = None
        self._views: dict[Any, Any] = {}
        self._starts: deque[int] = deque()  # steps that were there before each episode
        self._last_indexes: Any = None
        self._about = dict.fromkeys(("observation_space", "action_space"))
        self._agent = dict.fromkeys(("agent_id", "module_id"))
        if isinstance(cluster, ClusterReplay):
            self._take(cluster)
        else:
            self._options = dict(cluster or {})

    def _take(self, replay: ClusterReplay) -> None:
        """Use a cluster with the rows of a saved buffer, and count them.

        Ended episodes are counted as if all of them had the same length.
        """
        learner = replay.learner(self._sampler, seed=self._seed)
        leaves = {one.name: (one.shape, one.dtype) for one in learner.schema.fields}
        missing_names = {REWARD, TIME, ID, *ENDS} - leaves.keys()
        if missing_names:
            learner.close()
            raise ValueError(
                f"cluster: expected the fields of a saved buffer, with {sorted(missing_names)}, "
                f"got {list(leaves)}"
            )
        self.replay, self._form = replay, _Form.of_fields(leaves)
        self.capacity = replay.capacity
        self._learner = learner
        rows = self._num_timesteps_added = len(self._learner)
        counts = [host.call("stats", timeout=PATIENCE) for host in replay.hosts]
        episodes = int(sum(one["episodes"] for one in counts))
        self._starts.extend(rows * number // episodes for number in range(min(episodes, rows)))

    # ------------------------------------------------------------------ steps

    def _add(self, episodes: Any, priority: float | None = None) -> None:
        chunks = self._chunks(episodes)
        before = len(self), self._num_episodes_evicted, self._num_timesteps_added
        n_new = 0
        if chunks:
            lanes = self._opened(chunks)
            own = [chunk for chunk in chunks if not isinstance(chunk, _Added)]
            lanes.check(own)
            columns = {id(chunk): lanes.columns(chunk) for chunk in own}
            for chunk in chunks:
                if isinstance(chunk, _Added):
                    is_new = chunk.is_new
                else:
                    values = columns[id(chunk)]
                    if priority is not None:
                        values["priorities"] = np.full(len(chunk), priority)
                    is_new = lanes.add(chunk, values)
                if is_new:
                    self._starts.append(self._num_timesteps_added)
                n_new += is_new
                self._num_timesteps_added += len(chunk)
            lanes.send(wait=False)
        oldest = self._num_timesteps_added - self.capacity
        while len(self._starts) > 1 and self._starts[1] <= oldest:
            self._starts.popleft()
            self._num_episodes_evicted += 1
        self._log_added(*before, n_new)

    def _opened(self, chunks: list[Any]) -> _Lanes:
        """The shards; the first chunk gives the fields of the cluster."""
        if self._lanes is not None:
            return self._lanes
        form = _Form(chunks[0], has_infos=False)
        self._about = {
            "observation_space": chunks[0].observation_space,
            "action_space": chunks[0].action_space,
        }
        self._agent = {"agent_id": chunks[0].agent_id, "module_id": chunks[0].module_id}
        if self.replay is None:
            writers = self._writers
            if writers is None:
                writers = math.ceil(_environments(chunks) / _count(self._options.get("hosts")))
            fields: dict[str, FieldSpec] = {
                **form.fields,
                TIME: {"shape": (), "dtype": np.int64},
                ID: {"shape": ID_NBYTES, "dtype": np.uint8},
                **{name: {"shape": (), "dtype": np.bool_} for name in ENDS},
            }
            self.replay = ClusterReplay(
                self.capacity, fields, writers=writers, next_of=(*form.following, TIME),
                **self._options,
            )  # fmt: skip
        self.capacity = self.replay.capacity
        self._form, self._lanes = form, _Lanes(self.replay, form, at_node=False)
        return self._lanes

    def expect(self, environments: int) -> None:
        """Set the writers of each host by the number of environments, unless the user has."""
        if self._writers is None:
            self._writers = math.ceil(environments / _count(self._options.get("hosts")))

    # ------------------------------------------------------------------ draws

    def _with_priorities(self) -> Any:
        """The object that holds the priorities of the last draw."""
        return self._learner

    def _draw(
        self,
        n: int,
        n_step: NStep | None,
        gamma: float,
        names: list[str],
        to_numpy: bool,
        **options: Any,
    ) -> list[Any]:
        """Episodes of one transition each."""
        source = self._source(n_step, gamma)
        form: Any = self._form
        names = [*names, *(f"next_{name}" for name in form.following)]
        names += [REWARD, TIME, f"next_{TIME}", ID, *ENDS]
        batch = source.sample(n, fields=names, **options)
        after = {name: batch[f"next_{name}"] for name in form.following}
        taken = batch[f"next_{TIME}"] - batch[TIME]
        about: list[dict[str, Any]] = [self._about] * n
        weights = None
        if self._sampler.has_priorities:
            self._last_indexes, weights = batch["indexes"], batch["weights"].tolist()
        else:
            ids = batch[ID]
            about = [{**self._about, **self._agent, "id_": bytes(id_).hex()} for id_ in ids]
        found = _transitions(
            form, batch, after, batch[REWARD], taken, batch[TIME], batch[ENDS[0]], batch[ENDS[1]],
            about, weights, to_numpy,
        )  # fmt: skip
        starts = np.column_stack([batch[ID], batch[TIME].view(np.uint8).reshape(n, -1)])
        n_starts, n_episodes = (len({bytes(row) for row in rows}) for rows in (starts, batch[ID]))
        self._log_drawn(n_episodes, n_starts, n, float(taken.mean()))
        return found

    def _source(self, n_step: NStep | None, gamma: float) -> Any:
        """The learner, or its view, that draws returns of ``n_step`` steps."""
        if self._learner is None and (self._lanes is None or self.replay is None):
            raise NotEnoughDataError("sample: no step was added")
        if self._learner is None:
            assert self._lanes is not None
            assert self.replay is not None
            self._lanes.send(wait=True)
            self._learner = self.replay.learner(self._sampler, seed=self._seed)
        low, stop = _bounds(n_step)
        if stop == 2:
            return self._learner
        key = low, stop, gamma
        if key not in self._views:
            form: Any = self._form
            following = [f"next_{name}" for name in (*form.following, TIME)]
            # ``next_t`` says how many steps a return has, in place of a discount.
            options: dict[str, Any] = {"rew": REWARD, "next": following, "discount": False}
            layer = NStepReturns((low, stop - 1), gamma, **options)
            self._views[key] = self._learner.view(layer)
        return self._views[key]

    # ------------------------------------------------------------------ what there is

    def get_num_episodes(self, module_id: Any = None) -> int:  # noqa: ARG002 (RLlib's)
        """Return the number of stored episodes, as if the oldest step of all hosts went first."""
        return len(self._starts)

    def get_state(self) -> dict[str, Any]:
        """Raise ``TypeError``: ``replay.save(folder)`` saves the rows of a cluster."""
        raise TypeError(
            "get_state: the hosts have the rows; save them by algo.local_replay_buffer.replay.save "
            "and give a new buffer cluster=ClusterReplay.load(folder)"
        )

    def set_state(self, state: Mapping[str, Any]) -> None:  # noqa: ARG002 (RLlib's)
        """Raise ``TypeError``: see ``get_state``."""
        self.get_state()

    def let_go(self) -> None:
        """Free the shards of this process for env runners; later chunks take free shards again."""
        if self._lanes is not None and self.replay is not None and self._form is not None:
            self._lanes.close()
            self._lanes = _Lanes(self.replay, self._form, at_node=False)

    def close(self) -> None:
        """End the cluster, which otherwise ends with the algorithm's process."""
        if self._lanes is not None:
            self._lanes.close()
        if self._learner is not None:
            self._learner.close()
        if self.replay is not None:
            self.replay.close()
        self._lanes = self._learner = None
        self._views = {}


def _environments(chunks: list[Any]) -> int:
    """An upper bound of the number of environments that made these chunks.

    An environment whose episode ended with its last step has no open episode. All environments
    make the same number of steps, resets aside: at least the length of the longest chunk. So their
    number is at most twice the number of all steps divided by this length.
    """
    n_open = len({chunk.id_ for chunk in chunks if not chunk.is_done})
    n_episodes = len({chunk.id_ for chunk in chunks})
    lengths = [len(chunk) for chunk in chunks]
    most = min(n_episodes, 2 * sum(lengths) // max(1, *lengths), MOST_ENVIRONMENTS)
    return max(1, n_open, most)


def _count(hosts: Any) -> int:
    """The number of hosts of a cluster with this argument."""
    if hosts is None:
        return sum(bool(node["Alive"]) for node in ray.nodes())
    return hosts if isinstance(hosts, int) else len(hosts)


class ClusterEpisodeReplayBuffer(_ClusterSteps):
    """Uniform replay for RLlib's new API stack, over the nodes of a Ray cluster.

    The interface follows ``rllib.EpisodeReplayBuffer``. The buffer draws transitions, and no
    sequences.

    Parameters
    ----------
    capacity : int
        Number of steps to store in all. Each writer of each host has an equal part. A full part
        overwrites its oldest step.
    batch_size_B : int
        Number of items that ``sample`` draws by default.
    writers : int, optional
        Number of episodes open at the same time on each host. By default the number of environments
        divided by the number of hosts. With ``AddAtRunners`` this number is that of the config.
        Otherwise it is the greatest one that the lengths of the first episodes allow. With fewer
        writers than environments episodes are cut, and their n-step returns too.
    cluster : dict or ClusterReplay, optional
        Further arguments of ``ClusterReplay``, such as ``hosts``, ``checkpoints`` and
        ``resources``. Or a cluster that ``ClusterReplay.load`` made from a saved buffer.
    beta : None
        Not used. It is accepted for configurations written for the prioritized buffer.
    metrics_num_episodes_for_smoothing : int
        Window of the metrics that are means. RLlib passes the number if the config has the type.
    seed : int, optional
        Seed of the draws. By default the operating system gives a seed.

    Attributes
    ----------
    replay : ClusterReplay or None
        The cluster; None before the first ``add``.

    Notes
    -----
    An algorithm uses the buffer with
    ``replay_buffer_config={"type": ClusterEpisodeReplayBuffer, "capacity": 1_000_000}``. The first
    chunk determines the fields. Hosts end with the algorithm's process, or by ``close``.

    Counts of steps and episodes assume that the oldest step of all hosts is evicted first. They
    include the rows of a cluster that was loaded, and of these the episodes that had ended.

    A step of an open episode can be drawn when all ``n_step`` steps of its return are stored.
    Episode ids are expected to be RLlib's: 32 hexadecimal digits. Another id is replaced by a
    digest of the same length. ``sample`` refuses sequences, arrays in place of episodes, and infos.

    Memory: the hosts take the fields and 42 bytes for each step.
    """

    def __init__(
        self,
        capacity: int = 10000,
        *,
        batch_size_B: int = 16,  # noqa: N803 (RLlib's name)
        writers: int | None = None,
        cluster: ClusterReplay | Mapping[str, Any] | None = None,
        beta: float | None = None,  # noqa: ARG002 (of configs that are written for both)
        metrics_num_episodes_for_smoothing: int = 100,
        seed: int | None = None,
    ) -> None:
        super().__init__(
            capacity, batch_size_B, metrics_num_episodes_for_smoothing, writers, cluster, seed,
            Uniform(),
        )  # fmt: skip

    add, sample = EpisodeReplayBuffer.add, EpisodeReplayBuffer.sample

    def _sequences(self, *_: Any) -> NoReturn:
        raise ValueError(
            "sample: a cluster draws transitions; take rllib.EpisodeReplayBuffer for sequences "
            "(batch_length_T) and for sample_episodes=False"
        )

    _rows_of_arrays = _sequences


class ClusterPrioritizedEpisodeReplayBuffer(_ClusterSteps, TheirPrioritizedEpisodeReplayBuffer):  # type: ignore[misc]
    """Prioritized replay for RLlib's new API stack, over the nodes of a Ray cluster.

    The interface follows ``rllib.PrioritizedEpisodeReplayBuffer``.

    Parameters
    ----------
    capacity, batch_size_B, writers, cluster, metrics_num_episodes_for_smoothing, seed
        As for ``ClusterEpisodeReplayBuffer``.
    alpha : float
        Prioritization exponent, at least 0. With 0 draws are uniform.
    beta : float
        Importance-sampling exponent of ``sample`` without ``beta``. RLlib passes ``beta`` of its
        config to ``sample``.

    Notes
    -----
    See the notes of ``ClusterEpisodeReplayBuffer``. New steps get the greatest priority so far,
    initially 1.0. If ``n_step`` is above 1, importance-sampling weights are divided by the greatest
    weight of the batch, and not by the greatest weight of all steps.
    """

    def __init__(
        self,
        capacity: int = 10000,
        *,
        batch_size_B: int = 16,  # noqa: N803 (RLlib's name)
        writers: int | None = None,
        cluster: ClusterReplay | Mapping[str, Any] | None = None,
        alpha: float = 1.0,
        beta: float = 0.0,
        metrics_num_episodes_for_smoothing: int = 100,
        seed: int | None = None,
    ) -> None:
        sampler = Prioritized(alpha, beta=beta, eps=0.0, stratified=False, weights_dtype=np.float64)
        super().__init__(
            capacity, batch_size_B, metrics_num_episodes_for_smoothing, writers, cluster, seed,
            sampler,
        )  # fmt: skip

    add = PrioritizedEpisodeReplayBuffer.add
    sample = PrioritizedEpisodeReplayBuffer.sample
    update_priorities = PrioritizedEpisodeReplayBuffer.update_priorities


class _Added(SingleAgentEpisode):  # type: ignore[misc]
    """A chunk whose steps an env runner has added: its name and its length."""

    def __init__(self, chunk: Any, is_new: bool) -> None:
        super().__init__(id_=chunk.id_, len_lookback_buffer=0)
        self.t_started, self.t = chunk.t_started, chunk.t
        self.is_terminated, self.is_truncated = chunk.is_terminated, chunk.is_truncated
        self.is_new = is_new


class AddAtRunners(RLlibCallback):  # type: ignore[misc]
    """Callback by which env runners add episodes to the host of their node, without the driver.

    Use ``config.callbacks(AddAtRunners)`` with one of the buffers of this module. From the second
    iteration of training on, remote env runners pass on only the names and lengths of episodes. An
    env runner without a free writer passes on its steps as before.
    """

    def on_algorithm_init(self, *, algorithm: Any, **others: Any) -> None:  # noqa: ARG002 (RLlib's)
        """Give the buffer the number of environments."""
        buffer, config = algorithm.local_replay_buffer, algorithm.config
        if isinstance(buffer, _ClusterSteps):
            runners = max(1, config.num_env_runners)
            buffer.expect(runners * config.num_envs_per_env_runner)

    def on_train_result(self, *, algorithm: Any, **others: Any) -> None:  # noqa: ARG002 (RLlib's)
        """Pass the cluster to new env runners."""
        buffer = algorithm.local_replay_buffer
        if not isinstance(buffer, _ClusterSteps):
            return
        if buffer.replay is not None and buffer._form is not None:
            give = partial(_give, replay=buffer.replay, form=buffer._form)
            if any(algorithm.env_runner_group.foreach_env_runner(give, local_env_runner=False)):
                buffer.let_go()

    def on_sample_end(self, *, env_runner: Any, samples: list[Any], **others: Any) -> None:  # noqa: ARG002
        """Add the chunks of this env runner, and replace each by its name and length."""
        lanes: _Lanes | None = getattr(env_runner, RUNNER, None)
        if lanes is None:
            return
        for place, chunk in enumerate(samples):
            if len(chunk):
                try:
                    samples[place] = _Added(chunk, lanes.add(chunk, lanes.columns(chunk)))
                except BlockingIOError:
                    continue
        lanes.send(wait=False)


def _give(env_runner: Any, replay: ClusterReplay, form: _Form) -> bool:
    """Have an env runner add its episodes; whether it did not before."""
    if hasattr(env_runner, RUNNER):
        return False
    setattr(env_runner, RUNNER, _Lanes(replay, form, at_node=True))
    return True
