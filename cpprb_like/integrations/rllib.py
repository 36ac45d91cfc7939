"""``EpisodeReplayBuffer`` and ``PrioritizedEpisodeReplayBuffer``: RLlib's, with less memory.

Episodes come in and go out as RLlib's ``SingleAgentEpisode``; the steps lie in one buffer of this
package, in the order of their arrival. Chunks of episodes that run at the same time alternate
there, so arrays by slot link each step to the next one of its episode, and n-step returns follow
these links and not neighbouring rows. Not here: buffers over a Ray cluster (``rllib_cluster``), and
RLlib's multi-agent buffers.
"""

from __future__ import annotations

import pickle
from abc import ABCMeta
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import repeat
from typing import Any

import numpy as np

import cpprb_like.buffers as buffers
from cpprb_like._arguments.arrays import Array
from cpprb_like._arguments.checks import as_int
from cpprb_like.errors import NotEnoughDataError
from cpprb_like.integrations._libraries import missing
from cpprb_like.integrations._nests import Branch, Leaf, Path, Tree, field_name, names_of
from cpprb_like.samplers import Prioritized, Sampler, Uniform
from cpprb_like.typing import FieldSpec

try:
    from ray.rllib.core import DEFAULT_AGENT_ID, DEFAULT_MODULE_ID
    from ray.rllib.env.single_agent_episode import SingleAgentEpisode
    from ray.rllib.env.utils.infinite_lookback_buffer import InfiniteLookbackBuffer
    from ray.rllib.utils.replay_buffers import EpisodeReplayBuffer as TheirEpisodeReplayBuffer
    from ray.rllib.utils.replay_buffers import (
        PrioritizedEpisodeReplayBuffer as TheirPrioritizedEpisodeReplayBuffer,
    )
except ImportError as error:
    raise missing(__name__, "Ray's RLlib", "rllib", error) from error

__all__ = ["EpisodeReplayBuffer", "PrioritizedEpisodeReplayBuffer"]

NStep = int | tuple[int, int]

OBS, ACTION, REWARD, EXTRA, INFO = "obs", "action", "reward", "extra", "info"
# In place of the slot of the next step: the last step so far, or of the episode.
OPEN, TERMINATED, TRUNCATED = -1, -2, -3
LEAST_PRIORITY = 1e-12  # RLlib's
# Attributes that ``get_state`` pickles together.
STATE = (
    "rng", "_sampler", "_form", "_rows", "_following", "_previous", "_number", "_t", "_ends",
    "_episodes", "_by_id", "_last_indexes",
)  # fmt: skip


class _NamedType(ABCMeta):
    """Class of the buffers, which configurations of RLlib take for names of types.

    RLlib asks whether ``"EpisodeReplayBuffer" in config["type"]``, and SAC whether the type is in a
    list of names.
    """

    def __contains__(cls, part: str) -> bool:
        return part in cls.__name__

    def __eq__(cls, other: object) -> bool:
        if isinstance(other, str):
            return other in (cls.__name__, cls.__name__.removeprefix("Cluster"))
        return cls is other

    __hash__ = ABCMeta.__hash__


class _Episode:
    """The data of an episode with at least one stored step."""

    def __init__(self, number: int, chunk: Any) -> None:
        self.number = number
        self.id_: str = chunk.id_
        self.spaces = {
            "observation_space": chunk.observation_space,
            "action_space": chunk.action_space,
        }
        self.agent = {"agent_id": chunk.agent_id, "module_id": chunk.module_id}
        self.rows = 0
        self.first = self.last = OPEN  # slots of the oldest and the newest row
        self.t = chunk.t_started  # time step that a further chunk starts from
        self.is_done = False


class _Form:
    """The fields of the steps, as the first chunk of an episode has them."""

    def __init__(self, chunk: Any, has_infos: bool) -> None:
        extra = chunk.extra_model_outputs
        self.trees: dict[str, Tree] = {
            OBS: _tree_of(chunk.observations, OBS),
            ACTION: _tree_of(chunk.actions, ACTION),
            EXTRA: Branch((), {k: _tree_of(v, EXTRA, (k,), ()) for k, v in extra.items()}, None),
        }
        self.fields: dict[str, FieldSpec] = {REWARD: {"shape": (), "dtype": np.float64}}
        for root, tree in self.trees.items():
            leaves = zip(names_of(tree, root, root), tree.leaves(), strict=True)
            self.fields |= {
                name: {"shape": leaf.shape, "dtype": leaf.dtype} for name, leaf in leaves
            }
        if has_infos:
            self.fields[INFO] = {"shape": (), "dtype": object}
        self.following = [name for name in self.fields if name.split(".")[0] in (OBS, INFO)]

    @classmethod
    def of_fields(cls, leaves: Mapping[str, tuple[tuple[int, ...], np.dtype[Any]]]) -> _Form:
        """The form of stored steps, by the shape and dtype of each field.

        Nests are dicts, and tuples where the keys are numbers from 0 on.
        """
        form = cls.__new__(cls)
        form.trees = {root: _tree_of_fields(leaves, root, ()) for root in (OBS, ACTION, EXTRA)}
        names = [REWARD, *(name for root in form.trees for name in form.names(root))]
        form.fields = {name: {"shape": leaves[name][0], "dtype": leaves[name][1]} for name in names}
        form.following = [name for name in form.fields if name.split(".")[0] == OBS]
        return form

    def names(self, root: str) -> list[str]:
        """The fields of a part of the steps."""
        return [field_name(root, leaf.path) for leaf in self.trees[root].leaves()]

    def columns(self, chunk: Any) -> dict[str, Any]:
        """The values of a chunk by field; observations and infos have one more than others."""
        found = {REWARD: _values(chunk.rewards, ())}
        for root, values in ((OBS, chunk.observations), (ACTION, chunk.actions)):
            for leaf in self.trees[root].leaves():
                found[field_name(root, leaf.path)] = _values(values, leaf.path)
        if set(chunk.extra_model_outputs) != set(self.trees[EXTRA].children):  # type: ignore[union-attr]
            raise ValueError(
                f"extra_model_outputs: expected {list(self.trees[EXTRA].children)}, "  # type: ignore[union-attr]
                f"got {list(chunk.extra_model_outputs)}"
            )
        for leaf in self.trees[EXTRA].leaves():
            key, *path = leaf.path
            values = chunk.extra_model_outputs[key]
            found[field_name(EXTRA, leaf.path)] = _values(values, tuple(path))
        if INFO in self.fields:
            infos = chunk.infos.data[chunk.infos.lookback :]
            found[INFO] = np.fromiter(infos, object, len(infos))
        return found


def _tree_of(values: Any, root: str, path: Path = (), inner: Path = ()) -> Tree:
    """The nest of the values of a chunk, each with the shape and dtype of the first values.

    ``path`` is the path of the nest among the fields, ``inner`` its path among the values.
    """
    node = values.data if values.finalized else values.data[0]
    for key in inner:
        node = node[key]
    keys: Iterable[Any]
    match node:
        case Mapping():
            keys, made_of = node, None
        case tuple() | list():
            keys = range(len(node))
            made_of = getattr(type(node), "_make", type(node))  # ``_make`` of a named tuple
        case _:
            array = np.asarray(_values(values, inner))
            if array.dtype.hasobject:
                raise TypeError(f"{field_name(root, path)}: expected numbers, got {node!r}")
            return Leaf(path, array.shape[1:], array.dtype)
    return Branch(
        path,
        {key: _tree_of(values, root, (*path, key), (*inner, key)) for key in keys},
        made_of,
    )


def _tree_of_fields(
    leaves: Mapping[str, tuple[tuple[int, ...], np.dtype[Any]]], root: str, path: Path
) -> Tree:
    """The nest of the fields below a path."""
    name = field_name(root, path)
    if name in leaves:
        return Leaf(path, *leaves[name])
    below = [field[len(name) + 1 :] for field in leaves if field.startswith(f"{name}.")]
    keys = list(dict.fromkeys(rest.split(".")[0] for rest in below))
    is_tuple = bool(keys) and keys == [str(place) for place in range(len(keys))]
    children = {key: _tree_of_fields(leaves, root, (*path, key)) for key in keys}
    return Branch(path, children, tuple if is_tuple else None)


def _values(values: Any, path: Path) -> Any:
    """The part at a path of the values of a chunk, without lookback steps."""
    if values.finalized:
        found = values.data
        for key in path:
            found = found[key]
        return found[values.lookback :]
    items = values.data[values.lookback :]
    for key in path:
        items = [item[key] for item in items]
    return np.array(items)


def _items(tree: Tree, columns: Mapping[str, Any], root: str) -> Iterator[Any]:
    """The values of each row in the nesting of the tree."""
    if isinstance(tree, Leaf):
        return iter(columns[field_name(root, tree.path)])
    parts = zip(*(_items(child, columns, root) for child in tree.children.values()), strict=True)
    if tree.made_of is None:
        return (dict(zip(tree.children, part, strict=True)) for part in parts)
    return map(tree.made_of, parts)


def _bounds(n_step: NStep | None) -> tuple[int, int]:
    """The least number of steps of a return, and the first one that is too great."""
    if not isinstance(n_step, (tuple, list)):
        steps = as_int("n_step", 1 if n_step is None else n_step, 1)
        return steps, steps + 1
    low, stop = (as_int("n_step", bound, 1) for bound in n_step)
    if stop <= low:
        raise ValueError(f"n_step: expected a range of at least one number, got {n_step}")
    return low, stop


def check_joints(chunks: list[Any], reached: dict[str, int | None]) -> None:
    """Raise ``ValueError`` for a chunk that does not go on where its episode is.

    ``reached`` has the time step of each known episode, None after its end. It is changed.
    """
    for chunk in chunks:
        t = reached.get(chunk.id_, chunk.t_started)
        if t is None:
            raise ValueError(f"episode {chunk.id_}: got a further chunk of an ended episode")
        if chunk.t_started != t:
            raise ValueError(
                f"episode {chunk.id_}: expected a chunk from time step {t} on, "
                f"got one from {chunk.t_started} on"
            )
        reached[chunk.id_] = None if chunk.is_done else chunk.t


def _transitions(
    form: _Form,
    batch: Mapping[str, Any],
    after: Mapping[str, Any],
    returns: Array,
    taken: Array,
    starts: Array,
    terminated: Array,
    truncated: Array,
    about: Sequence[Mapping[str, Any]],
    weights: list[float] | None,
    to_numpy: bool,
) -> list[Any]:
    """Episodes of one transition each.

    ``taken`` are the steps of each return, ``starts`` the time steps, ``about`` further arguments
    of each episode. With weights the draw is prioritized, and extra model outputs are lists.
    """
    observations = _items(form.trees[OBS], batch, OBS)
    following = _items(form.trees[OBS], after, OBS)
    actions = _items(form.trees[ACTION], batch, ACTION)
    infos = batch.get(INFO)
    extras: Any = repeat({})
    if any(name in batch for name in form.names(EXTRA)):
        extras = _items(form.trees[EXTRA], batch, EXTRA)
    found = []
    columns = taken.tolist(), starts.tolist(), terminated.tolist(), truncated.tolist()
    for place, (steps, t, is_terminated, is_truncated) in enumerate(zip(*columns, strict=True)):
        extra = next(extras)
        n_steps: Any = [steps]
        weight: Any = [1.0] if weights is None else [weights[place]]
        if weights is None:
            n_steps, weight = (InfiniteLookbackBuffer(np.array(v)) for v in (n_steps, weight))
        item = SingleAgentEpisode(
            observations=[next(observations), next(following)],
            actions=[next(actions)],
            rewards=[returns[place]],
            infos=None if infos is None else [infos[place], after[INFO][place]],
            terminated=is_terminated,
            truncated=is_truncated,
            extra_model_outputs={
                **{key: [value] for key, value in extra.items()},
                "n_step": n_steps,
                "weights": weight,
            },
            t_started=t,
            len_lookback_buffer=0,
            **about[place],
        )
        found.append(item.to_numpy() if to_numpy else item)
    return found


class _Front(TheirEpisodeReplayBuffer, metaclass=_NamedType):  # type: ignore[misc]
    """Base class of all buffers for RLlib: arguments and metrics."""

    capacity: int
    _num_timesteps_added: int
    _num_episodes_evicted: int
    _form: _Form | None = None

    def __init__(self, capacity: int, batch_size: int, length: int, smoothing: int) -> None:
        # That of RLlib's prioritized buffer would allocate its trees.
        TheirEpisodeReplayBuffer.__init__(
            self,
            as_int("capacity", capacity, 1),
            batch_size_B=as_int("batch_size_B", batch_size, 1),
            batch_length_T=as_int("batch_length_T", length, 1),
            metrics_num_episodes_for_smoothing=smoothing,
        )

    @staticmethod
    def _chunks(episodes: Any) -> list[Any]:
        """The chunks of an ``add`` that have steps."""
        given = list(episodes) if isinstance(episodes, (list, tuple)) else [episodes]
        for chunk in given:
            if not isinstance(chunk, SingleAgentEpisode):
                raise TypeError(
                    f"add: expected episodes of one agent, got {type(chunk).__name__}; for several "
                    "agents take RLlib's MultiAgentEpisodeReplayBuffer"
                )
        return [chunk for chunk in given if len(chunk)]

    def _read_size(self, num_items: int | None, batch_size: int | None) -> int:
        """The number of items to draw: the argument that is given, or the default."""
        if num_items is not None and batch_size is not None:
            raise ValueError("sample: expected num_items or batch_size_B, got both")
        given = num_items or batch_size or self.batch_size_B
        return as_int("num_items", given, 1)

    def _names(self, include_infos: bool, include_extra: bool) -> list[str]:
        """The fields that a draw of transitions reads."""
        if self._form is None:
            return []
        if include_infos and INFO not in self._form.fields:
            raise ValueError("include_infos: expected a buffer made with store_infos=True")
        roots = [OBS, ACTION, *([EXTRA] if include_extra else [])]
        names = [name for root in roots for name in self._form.names(root)]
        return [*names, *([INFO] if include_infos else [])]

    def get_num_timesteps(self, module_id: Any = None) -> int:  # noqa: ARG002 (RLlib's)
        """Return the number of stored steps, as if a cluster evicted the oldest of all hosts."""
        return min(self._num_timesteps_added, self.capacity)

    # ------------------------------------------------------------------ metrics

    def _log_added(self, stored: int, evicted: int, added: int, new: int) -> None:
        """Log the metrics of an ``add``, from what there was before it."""
        steps = self._num_timesteps_added - added
        counts = {
            "episodes_added": new,
            "steps_added": steps,
            "episodes_evicted": self._num_episodes_evicted - evicted,
            "steps_evicted": stored + steps - len(self),
        }
        self._update_add_metrics(
            num_episodes_added=new,
            num_env_steps_added=steps,
            num_episodes_evicted=counts["episodes_evicted"],
            num_env_steps_evicted=counts["steps_evicted"],
            **_by_agent_and_module(counts),
        )

    def _log_drawn(self, n_episodes: int, n_starts: int, n: int, n_step: float | None) -> None:
        """Log the metrics of a ``sample`` of n steps with ``n_starts`` different starts."""
        self.sampled_timesteps += n
        counts: dict[str, Any] = {
            "steps_sampled": n,
            "episodes_per_sample": n_episodes,
            "steps_per_sample": n_starts,
            "num_resamples": 0,
        }
        by_name: dict[str, Any] = _by_agent_and_module(counts)
        by_name |= (
            {"agent_to_sampled_n_step": None, "module_to_sampled_n_step": None}
            if n_step is None
            else _by_agent_and_module({"sampled_n_step": n_step})
        )
        self._update_sample_metrics(
            num_env_steps_sampled=n,
            num_episodes_per_sample=counts["episodes_per_sample"],
            num_env_steps_per_sample=counts["steps_per_sample"],
            num_resamples=0,
            sampled_n_step=n_step,
            **by_name,
        )


class _Steps(_Front):
    """Base class of both buffers of one process: episodes of RLlib in a buffer of this package."""

    def __init__(
        self,
        capacity: int,
        batch_size: int,
        length: int,
        smoothing: int,
        store_infos: bool,
        seed: int | None,
        sampler: Sampler,
    ) -> None:
        _Front.__init__(self, capacity, batch_size, length, smoothing)
        of_rows, of_steps = np.random.SeedSequence(seed).spawn(2)
        self.rng = np.random.default_rng(of_steps)
        self._seed, self._sampler = of_rows, sampler
        self._store_infos = bool(store_infos)
        self._rows: buffers.ReplayBuffer | None = None  # none before the first step
        # By slot: the slots of the next and the previous step, the episode, and its time step.
        self._following, self._previous, self._number, self._t = (
            np.full(self.capacity, OPEN, np.int32) for _ in range(4)
        )
        self._ends: dict[int, list[Any]] = {}  # what follows on last steps, by slot
        self._episodes: dict[int, _Episode] = {}  # by number
        self._by_id: dict[str, _Episode] = {}
        self._last_indexes: Array | None = None

    # ------------------------------------------------------------------ steps

    def _add(self, episodes: Any, priority: float | None = None) -> None:
        """Add chunks of episodes, or none of them if one is refused."""
        chunks = self._chunks(episodes)
        known = [self._by_id[chunk.id_] for chunk in chunks if chunk.id_ in self._by_id]
        check_joints(chunks, {one.id_: None if one.is_done else one.t for one in known})
        before = len(self), self._num_episodes_evicted, self._num_timesteps_added
        n_new = 0
        if chunks:
            form = self._form or _Form(chunks[0], self._store_infos)
            columns = [form.columns(chunk) for chunk in chunks]
            steps = {name: self._joined(name, form, columns) for name in form.fields}
            rows = self._rows
            if rows is None:
                rows = buffers.ReplayBuffer(
                    self.capacity, form.fields, terminated=False, truncated=False,
                    sampler=self._sampler, seed=self._seed,
                )  # fmt: skip
            if priority is not None:
                steps["priorities"] = np.full(len(steps[REWARD]), priority)
            rows.add(**steps)
            self._form, self._rows = form, rows
            for chunk, values in zip(chunks, columns, strict=True):
                n_new += self._place(chunk, [values[name][-1] for name in form.following])
        self._log_added(*before, n_new)

    def _joined(self, name: str, form: _Form, columns: list[dict[str, Any]]) -> Any:
        """The values of a field in the steps of all chunks."""
        parts = [values[name] for values in columns]
        if name in form.following:
            parts = [part[:-1] for part in parts]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _place(self, chunk: Any, end: list[Any]) -> bool:
        """Link the rows of a chunk, and return whether its episode is new.

        ``end`` are the values that follow on the last row, such as its next observation.
        """
        n = min(len(chunk), self.capacity)
        stop = self._num_timesteps_added + len(chunk)
        slots = np.arange(stop - n, stop) % self.capacity
        self._evict(n)
        episode = self._by_id.get(chunk.id_)
        is_new = episode is None
        if episode is None:
            # Numbers are those of the first rows, and so grow.
            episode = _Episode(self._next_number(), chunk)
            self._by_id[chunk.id_] = self._episodes[episode.number] = episode
            episode.first = int(slots[0])
        else:
            self._following[episode.last] = slots[0]
            del self._ends[episode.last]
        self._following[slots[:-1]] = slots[1:]
        self._previous[slots[1:]] = slots[:-1]
        self._previous[slots[0]] = episode.last
        episode.last = last = int(slots[-1])
        self._following[last] = (
            TERMINATED if chunk.is_terminated else TRUNCATED if chunk.is_truncated else OPEN
        )
        self._number[slots] = episode.number
        self._t[slots] = np.arange(chunk.t - n, chunk.t)
        self._ends[last] = [
            np.array(value) if isinstance(value, np.ndarray) else value for value in end
        ]
        episode.rows += n
        episode.t, episode.is_done = chunk.t, chunk.is_done
        self._num_timesteps_added = stop
        return is_new

    def _next_number(self) -> int:
        return next(reversed(self._episodes), -1) + 1

    def _evict(self, n: int) -> None:
        """Evict the oldest rows, which the next n rows will overwrite."""
        written = self._num_timesteps_added
        stored = min(written, self.capacity)
        n_gone = max(0, stored + n - self.capacity)
        if not n_gone:
            return
        slots = np.arange(written - stored, written - stored + n_gone) % self.capacity
        rows = (slots, self._number[slots], self._following[slots])
        for slot, number, following in zip(*(values.tolist() for values in rows), strict=True):
            episode = self._episodes[number]
            episode.rows -= 1
            episode.first = following
            if following < 0:
                del self._ends[slot]
            if episode.rows == 0:
                del self._episodes[number], self._by_id[episode.id_]
                self._num_episodes_evicted += 1

    # ------------------------------------------------------------------ draws

    def _with_priorities(self) -> Any:
        """What has the priorities of the last draw."""
        return self._rows

    def _drawn(self, n: int, fields: Sequence[str], **options: Any) -> tuple[Array, dict[str, Any]]:
        """The slots of drawn steps, and the batch of their fields."""
        if self._rows is None:
            raise NotEnoughDataError("sample: no step was added")
        batch = self._rows.sample(n, indexes=True, fields=[REWARD, *fields], **options)
        return batch["indexes"] % self.capacity, batch

    def _walk(self, slots: Array, steps: Array) -> Array:
        """The slots of windows of at most ``steps`` steps each, padded with -1."""
        paths = np.full((len(slots), steps.max()), OPEN, np.intp)
        paths[:, 0] = slots
        for k in range(1, paths.shape[1]):
            before = paths[:, k - 1]
            goes_on = (before >= 0) & (k < steps)
            paths[goes_on, k] = np.maximum(self._following[before[goes_on]], OPEN)
        return paths

    def _after(self, last: Array, rows: buffers.ReplayBuffer) -> dict[str, Array]:
        """The observations and infos that follow on steps, by field."""
        form: Any = self._form
        following = self._following[last]
        at_end = np.flatnonzero(following < 0).tolist()
        slots = np.where(following < 0, last, following)[:, np.newaxis]
        found = {}
        for place, name in enumerate(form.following):
            values = found[name] = rows.stack(name, slots, axis=0)[:, 0]
            for row in at_end:
                values[row] = self._ends[int(last[row])][place]
        return found

    def _draw(
        self,
        n: int,
        n_step: NStep | None,
        gamma: float,
        names: list[str],
        to_numpy: bool,
        **options: Any,
    ) -> list[Any]:
        """Episodes of one transition each, with these fields.

        Without weights they have the names of their episodes, as in RLlib's buffers.
        """
        low, stop = _bounds(n_step)
        steps = np.full(n, low) if stop == low + 1 else self.rng.integers(low, stop, n)
        slots, batch = self._drawn(n, names, **options)
        weights = None
        if self._sampler.has_priorities:
            self._last_indexes, weights = batch["indexes"], batch["weights"].tolist()
        form: Any = self._form
        rows: Any = self._rows
        paths = self._walk(slots, steps)
        rewards = rows.stack(REWARD, paths)
        returns = rewards[:, -1]
        for k in reversed(range(rewards.shape[1] - 1)):
            returns = rewards[:, k] + gamma * returns
        taken = (paths >= 0).sum(axis=1)
        last = paths[np.arange(len(slots)), taken - 1]
        ends = self._following[last]
        after = self._after(last, rows)
        episodes = [self._episodes[number] for number in self._number[slots].tolist()]
        about = [
            {"id_": one.id_, **one.agent, **one.spaces} if weights is None else one.spaces
            for one in episodes
        ]
        found = _transitions(
            form, batch, after, returns, taken, self._t[slots], ends == TERMINATED,
            ends == TRUNCATED, about, weights, to_numpy,
        )  # fmt: skip
        self._log_starts(slots, len(slots), float(taken.mean()))
        return found

    def _log_starts(self, slots: Array, n: int, n_step: float | None) -> None:
        """Log the metrics of a ``sample`` from these slots."""
        self._log_drawn(len(np.unique(self._number[slots])), len(np.unique(slots)), n, n_step)

    # ------------------------------------------------------------------ what there is

    def get_num_episodes(self, module_id: Any = None) -> int:  # noqa: ARG002 (RLlib's)
        """Return the number of episodes with at least one stored step."""
        return len(self._episodes)

    @property
    def nbytes(self) -> int:
        """Bytes of all rows, full or empty, and of the values that follow on last steps."""
        beside = [self._following, self._previous, self._number, self._t]
        ends = sum(getattr(value, "nbytes", 0) for end in self._ends.values() for value in end)
        rows = 0 if self._rows is None else self._rows.nbytes
        return rows + sum(values.nbytes for values in beside) + ends

    # ------------------------------------------------------------------ state

    def get_state(self) -> dict[str, Any]:
        """Return the state of the buffer: rows, priorities and generators, as bytes and numbers.

        The rows are pickled, like everything in a checkpoint of RLlib.
        """
        return {
            "rows": pickle.dumps({name: getattr(self, name) for name in STATE}, protocol=5),
            "capacity": self.capacity,
            "_num_timesteps_added": self._num_timesteps_added,
            "_num_episodes_evicted": self._num_episodes_evicted,
            "sampled_timesteps": self.sampled_timesteps,
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Set the state to a result of ``get_state`` from a buffer of this class and capacity.

        Raises
        ------
        ValueError
            The state comes from another class, or from a buffer of another capacity, other fields
            or another ``store_infos``. Nothing has changed then.
        """
        if "rows" not in state:
            raise ValueError(f"state: expected that of a {type(self).__name__}, got {list(state)}")
        if state["capacity"] != self.capacity:
            raise ValueError(
                f"state: expected that of a buffer of capacity {self.capacity}, "
                f"got {state['capacity']}"
            )
        held = pickle.loads(state["rows"])  # as RLlib does its checkpoints
        if type(held["_sampler"]) is not type(self._sampler):
            raise ValueError(f"state: expected that of a {type(self).__name__}")
        self._check_form(held["_form"])
        counts = ("_num_timesteps_added", "_num_episodes_evicted", "sampled_timesteps")
        held |= {name: state[name] for name in counts}
        # Some attributes are slots of RLlib's class. One call of C sets all, or none at Ctrl-C.
        deque(map(partial(setattr, self), held, held.values()), maxlen=0)

    def _check_form(self, form: _Form | None) -> None:
        """Raise ``ValueError`` for the form of other steps than this buffer has or expects."""
        if form is None:
            return
        has_infos = INFO in form.fields
        if has_infos != self._store_infos:
            raise ValueError(
                f"state: store_infos: {self._store_infos} here, {has_infos} in the state"
            )
        here = form.fields if self._form is None else self._form.fields
        others = sorted(
            name
            for name in {*here, *form.fields}
            if repr(here.get(name)) != repr(form.fields.get(name))
        )
        if others:
            named = {name: (here.get(name), form.fields.get(name)) for name in others}
            raise ValueError(f"state: fields (here, in the state) differ: {named}")


def _by_agent_and_module(counts: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Counts as RLlib's metrics take them: all are of the only agent and the only module."""
    found = {}
    for name, count in counts.items():
        infix = name if name.startswith(("num_", "sampled_")) else f"num_{name}"
        found[f"agent_to_{infix}"] = {DEFAULT_AGENT_ID: count}
        found[f"module_to_{infix}"] = {DEFAULT_MODULE_ID: count}
    return found


class EpisodeReplayBuffer(_Steps):
    """Uniform replay for RLlib's new API stack, in place of RLlib's ``EpisodeReplayBuffer``.

    The buffer stores each step once, and joins the chunks of an episode.

    Parameters
    ----------
    capacity : int
        Number of steps to store. The buffer evicts the oldest steps, and RLlib's buffer whole
        episodes.
    batch_size_B : int
        Number of items that ``sample`` draws by default.
    batch_length_T : int
        Default number of steps in each row of ``sample(sample_episodes=False)``.
    store_infos : bool
        Store the info dicts of the environment, by reference, for ``sample(include_infos=True)``.
        Otherwise sampled episodes have empty info dicts.
    beta : None
        Not used. It is accepted for configurations written for the prioritized buffer.
    metrics_num_episodes_for_smoothing : int
        Window of the metrics that are means. RLlib passes the number if the config has the type.
    seed : int, optional
        Seed of the draws. By default the operating system gives a seed.

    Raises
    ------
    TypeError, ValueError
        A parameter has a wrong type or value.

    Notes
    -----
    An algorithm uses the buffer with
    ``replay_buffer_config={"type": EpisodeReplayBuffer, "capacity": 100_000}``. Counters and
    metrics have RLlib's names. The attribute ``episodes`` stays empty.

    The first chunk determines the fields: shapes and dtypes of observations, actions and extra
    model outputs. These may be dicts and tuples of arrays. Rewards are float64.

    Memory: the fields and 16 bytes for each step, and one observation for each episode end.
    The buffer is pickled by value, and is for one thread.

    Examples
    --------
    >>> from ray.rllib.env.single_agent_episode import SingleAgentEpisode
    >>> from cpprb_like.integrations.rllib import EpisodeReplayBuffer
    >>> buffer = EpisodeReplayBuffer(capacity=1000, seed=0)
    >>> episode = SingleAgentEpisode(
    ...     observations=[[0.0], [1.0], [2.0], [3.0]],
    ...     actions=[0, 1, 0],
    ...     rewards=[1.0, 1.0, 1.0],
    ...     terminated=True,
    ...     len_lookback_buffer=0,
    ... )
    >>> buffer.add(episode)
    >>> item = buffer.sample(1, n_step=2, gamma=0.5, sample_episodes=True)[0]
    >>> len(item), len(item.get_observations())
    (1, 2)
    """

    def __init__(
        self,
        capacity: int = 10000,
        *,
        batch_size_B: int = 16,  # noqa: N803 (RLlib's name)
        batch_length_T: int = 64,  # noqa: N803 (RLlib's name)
        store_infos: bool = False,
        beta: float | None = None,  # noqa: ARG002 (of configs that are written for both)
        metrics_num_episodes_for_smoothing: int = 100,
        seed: int | None = None,
    ) -> None:
        super().__init__(
            capacity, batch_size_B, batch_length_T, metrics_num_episodes_for_smoothing,
            store_infos, seed, Uniform(),
        )  # fmt: skip

    def add(self, episodes: Any) -> None:
        """Add an episode or a list of episodes, or chunks of these.

        Parameters
        ----------
        episodes : SingleAgentEpisode or list of SingleAgentEpisode
            Episodes to add. The buffer copies their steps, but no lookback steps. A chunk with the
            ``id_`` of a stored episode continues this episode.

        Raises
        ------
        TypeError, ValueError
            An episode has several agents. Or its values differ in shape or dtype from the values of
            the first episode. Or a chunk does not begin where its episode stopped. Nothing was
            added.
        """
        self._add(episodes)

    def sample(
        self,
        num_items: int | None = None,
        *,
        batch_size_B: int | None = None,  # noqa: N803 (RLlib's name)
        batch_length_T: int | None = None,  # noqa: N803 (RLlib's name)
        n_step: NStep | None = None,
        beta: float | None = None,  # noqa: ARG002 (RLlib passes it to each buffer)
        gamma: float = 0.99,
        include_infos: bool = False,
        include_extra_model_outputs: bool = False,
        sample_episodes: bool | None = False,
        to_numpy: bool = False,
        lookback: int = 0,
        min_batch_length_T: int = 0,  # noqa: N803 (RLlib's name)
    ) -> Any:
        """Draw steps uniformly.

        Parameters
        ----------
        num_items, batch_size_B : int, optional
            Number of items to draw. Pass one of the two. By default ``batch_size_B`` of the
            constructor.
        batch_length_T : int, optional
            Number of steps in a sequence. With ``sample_episodes``, None and 0 draw transitions.
        n_step : int or (int, int), optional
            Number of steps of each return, by default 1. With a pair, each return draws its number
            from the range between the two, the second excluded.
        gamma : float
            Discount factor of the returns.
        beta : float, optional
            Not used.
        include_infos, include_extra_model_outputs : bool
            Add the infos of the environment and the extra outputs of the model to transitions.
        sample_episodes : bool
            Return episodes, and not a dict of arrays.
        to_numpy : bool
            Return episodes of arrays, and not of lists.
        lookback : int
            Number of steps before each sequence, as far as they are stored.
        min_batch_length_T : int
            Sequences start only at steps that more than ``min_batch_length_T`` steps follow.

        Returns
        -------
        list of SingleAgentEpisode
            Result with ``sample_episodes``. A transition has two observations, the action, the
            n-step return and the flags. Its extra model outputs are ``n_step`` and ``weights``,
            which is 1.0. A return has fewer steps where its episode ends, or where later steps are
            not stored yet. The output ``n_step`` is the actual number of steps.
        dict of ndarray
            Otherwise: ``obs``, ``actions``, ``rewards``, ``is_first``, ``is_last``,
            ``is_terminated`` and ``is_truncated``. Each has shape ``(B, T, ...)``, as in RLlib.

        Raises
        ------
        NotEnoughDataError
            No step or no sequence of this length is stored. This error is a ``ValueError``.
        ValueError
            Both numbers of items are given, ``n_step`` is invalid or not 1 for sequences, or infos
            were not stored.

        Notes
        -----
        RLlib's buffer reports ``n_step`` also for returns with fewer steps. It takes extra model
        outputs from the first step of an episode. Here both belong to the transition.
        """
        n = self._read_size(num_items, batch_size_B)
        if not sample_episodes:
            return self._rows_of_arrays(n, batch_length_T or self.batch_length_T)
        if batch_length_T:
            return self._sequences(
                n, n_step, batch_length_T, lookback, min_batch_length_T, to_numpy
            )
        names = self._names(include_infos, include_extra_model_outputs)
        return self._draw(n, n_step, gamma, names, to_numpy)

    def _sequences(
        self,
        n: int,
        n_step: NStep | None,
        length: int,
        lookback: int,
        least: int,
        to_numpy: bool,
    ) -> list[Any]:
        """Episodes of at most ``length`` steps each, with n observations together."""
        if n_step not in (None, 1):
            raise ValueError(f"n_step: expected 1 for sequences, got {n_step}")
        if least and all(episode.rows <= least for episode in self._episodes.values()):
            raise NotEnoughDataError(f"sample: no episode has more than {least} steps")
        starts: list[int] = []
        count = 0
        while count < n:
            slots, _ = self._drawn(max(1, (n - count) // (length + 1)), [])
            for slot in slots.tolist():
                left = self._episodes[int(self._number[slot])].t - int(self._t[slot])
                if count < n and (not least or left > least):
                    starts.append(slot)
                    count += min(length, left) + 1
        found = [self._sequence(slot, length, lookback) for slot in starts]
        self._log_starts(np.array(starts), n, 1.0)
        return [item.to_numpy() for item in found] if to_numpy else found

    def _sequence(self, start: int, length: int, lookback: int) -> Any:
        """An episode of the steps from a slot on, with lookback steps."""
        form: Any = self._form
        rows: Any = self._rows
        episode = self._episodes[int(self._number[start])]
        slots = self._chain(start, length)
        for _ in range(lookback):
            slot = self._before(slots[0])
            if slot == OPEN:
                break
            slots.insert(0, slot)
        lookback_there = slots.index(start)
        columns = {name: rows.stack(name, [slots], axis=0)[0] for name in form.fields}
        after = self._after(np.array(slots[-1:]), rows)
        for name, value in after.items():
            columns[name] = np.concatenate([columns[name], value])
        n = len(slots) - lookback_there
        end = self._following[slots[-1]]
        extra: dict[str, list[Any]] = {key: [] for key in form.trees[EXTRA].children}
        for values in _items(form.trees[EXTRA], columns, EXTRA) if extra else ():
            for key, value in values.items():
                extra[key].append(value)
        of_steps = {"n_step": np.full(n + lookback, 1), "weights": np.ones(n + lookback)}
        return SingleAgentEpisode(
            id_=episode.id_,
            observations=list(_items(form.trees[OBS], columns, OBS)),
            actions=list(_items(form.trees[ACTION], columns, ACTION)),
            rewards=list(columns[REWARD]),
            infos=list(columns[INFO]) if INFO in columns else None,
            terminated=bool(end == TERMINATED),
            truncated=bool(end == TRUNCATED),
            extra_model_outputs={
                **extra,
                **{
                    name: InfiniteLookbackBuffer(values, lookback)
                    for name, values in of_steps.items()
                },
            },
            t_started=int(self._t[start]),
            len_lookback_buffer=lookback_there,
            **episode.spaces,
            **episode.agent,
        )

    def _chain(self, slot: int, most: int) -> list[int]:
        """A slot and the slots of the steps that follow it, at most ``most`` in all."""
        slots: list[int] = []
        while slot >= 0 and len(slots) < most:
            slots.append(slot)
            slot = int(self._following[slot])
        return slots

    def _before(self, slot: int) -> int:
        """The slot of the previous step of the same episode, ``OPEN`` if it is not stored."""
        previous = int(self._previous[slot])
        is_there = (
            previous >= 0
            and self._number[previous] == self._number[slot]
            and self._t[previous] == self._t[slot] - 1
        )
        return previous if is_there else OPEN

    def _rows_of_arrays(self, n: int, length: int) -> dict[str, Array]:
        """Rows of consecutive steps and final observations: see RLlib.

        Where an episode stops in a row, the row goes on with a drawn episode from its start.
        """
        form: Any = self._form
        for root in (OBS, ACTION) if form else ():
            if not isinstance(form.trees[root], Leaf):
                raise ValueError(f"sample: expected sample_episodes=True, as {root} is a nest")
        # By place of a row: the slots that observations, actions and rewards are of.
        obs, actions, rewards = (np.full((n, length), OPEN, np.intp) for _ in range(3))
        first, last, terminated, truncated = (np.zeros((n, length), np.bool_) for _ in range(4))
        finals: list[tuple[int, int, int]] = []
        starts: list[int] = []
        for row in range(n):
            place = 0
            while place < length:
                slots, _ = self._drawn(1, [])
                slot = int(slots[0])
                if place:
                    slot = self._episodes[int(self._number[slot])].first
                starts.append(slot)
                chain = self._chain(slot, length - place)
                stop = place + len(chain)
                first[row, place] = True
                obs[row, place:stop] = actions[row, place:stop] = chain
                before = OPEN if place else self._before(slot)
                rewards[row, place:stop] = [before, *chain[:-1]]
                end = int(self._following[chain[-1]])
                if end < 0 and stop < length:  # what follows on the last step has a place too
                    finals.append((row, stop, chain[-1]))
                    obs[row, stop] = actions[row, stop] = rewards[row, stop] = chain[-1]
                    terminated[row, stop], truncated[row, stop] = (
                        end == TERMINATED,
                        end == TRUNCATED,
                    )
                    stop += 1
                last[row, stop - 1] = True
                place = stop
        self._log_starts(np.array(starts), n * length, None)
        return self._arrays(obs, actions, rewards, finals) | {
            "is_first": first,
            "is_last": last,
            "is_terminated": terminated,
            "is_truncated": truncated,
        }

    def _arrays(
        self, obs: Array, actions: Array, rewards: Array, finals: list[tuple[int, int, int]]
    ) -> dict[str, Array]:
        """The values of slots; of the places of finals what follows on their slots."""
        stored: Any = self._rows
        observations = stored.stack(OBS, obs, axis=0)
        for row, place, slot in finals:
            observations[row, place] = self._ends[slot][0]
        return {
            "obs": observations,
            "actions": stored.stack(ACTION, actions, axis=0),
            "rewards": stored.stack(REWARD, rewards),
        }


class PrioritizedEpisodeReplayBuffer(_Steps, TheirPrioritizedEpisodeReplayBuffer):  # type: ignore[misc]
    """Prioritized replay for RLlib's new API stack, in place of RLlib's class of this name.

    A step of priority ``p`` is drawn with a probability proportional to ``p ** alpha``.

    Parameters
    ----------
    capacity, batch_size_B, store_infos, metrics_num_episodes_for_smoothing, seed
        As for ``EpisodeReplayBuffer``.
    batch_length_T : int
        Not used, because the buffer draws transitions.
    alpha : float
        Prioritization exponent, at least 0. With 0 draws are uniform.
    beta : float
        Importance-sampling exponent of ``sample`` without ``beta``. RLlib passes ``beta`` of its
        config to ``sample``.

    Raises
    ------
    TypeError, ValueError
        A parameter has a wrong type or value.

    Notes
    -----
    See the notes of ``EpisodeReplayBuffer``. New steps get the greatest priority so far, initially
    1.0.

    The buffer also draws steps near the end of their episode, with returns of fewer steps. RLlib's
    buffer draws another step instead.

    Examples
    --------
    >>> from ray.rllib.env.single_agent_episode import SingleAgentEpisode
    >>> from cpprb_like.integrations.rllib import PrioritizedEpisodeReplayBuffer
    >>> buffer = PrioritizedEpisodeReplayBuffer(capacity=1000, alpha=0.6, seed=0)
    >>> buffer.add(
    ...     SingleAgentEpisode(
    ...         observations=[[0.0], [1.0], [2.0]],
    ...         actions=[0, 1],
    ...         rewards=[1.0, 1.0],
    ...         len_lookback_buffer=0,
    ...     )
    ... )
    >>> items = buffer.sample(32, n_step=1, beta=0.4)
    >>> items[0].get_extra_model_outputs("weights")
    [1.0]
    >>> buffer.update_priorities([2.0] * 32)
    """

    def __init__(
        self,
        capacity: int = 10000,
        *,
        batch_size_B: int = 16,  # noqa: N803 (RLlib's name)
        batch_length_T: int = 1,  # noqa: N803 (RLlib's name)
        alpha: float = 1.0,
        beta: float = 0.0,
        store_infos: bool = False,
        metrics_num_episodes_for_smoothing: int = 100,
        seed: int | None = None,
    ) -> None:
        sampler = Prioritized(alpha, beta=beta, eps=0.0, stratified=False, weights_dtype=np.float64)
        super().__init__(
            capacity, batch_size_B, batch_length_T, metrics_num_episodes_for_smoothing,
            store_infos, seed, sampler,
        )  # fmt: skip

    def add(self, episodes: Any, weight: float | None = None) -> None:
        """Add an episode or a list of episodes, or chunks of these.

        Parameters
        ----------
        episodes : SingleAgentEpisode or list of SingleAgentEpisode
            As for ``EpisodeReplayBuffer.add``.
        weight : float, optional
            Priority of these steps, at least 0. By default the greatest priority so far.

        Raises
        ------
        TypeError, ValueError
            As for ``EpisodeReplayBuffer.add``, or the weight is invalid. Nothing was added.
        """
        self._add(episodes, weight)

    def sample(
        self,
        num_items: int | None = None,
        *,
        batch_size_B: int | None = None,  # noqa: N803 (RLlib's name)
        batch_length_T: int | None = None,  # noqa: ARG002, N803 (RLlib's name)
        n_step: NStep | None = None,
        beta: float | None = None,
        gamma: float = 0.99,
        include_infos: bool = False,
        include_extra_model_outputs: bool = False,
        to_numpy: bool = False,
        **others: Any,  # noqa: ARG002 (of the other buffers of RLlib)
    ) -> list[Any]:
        """Draw transitions by priority.

        Parameters
        ----------
        num_items, batch_size_B, n_step, gamma, include_infos, include_extra_model_outputs, to_numpy
            As for ``EpisodeReplayBuffer.sample``.
        beta : float, optional
            Importance-sampling exponent, at least 0. By default ``beta`` of the constructor.
        batch_length_T, **others
            Not used.

        Returns
        -------
        list of SingleAgentEpisode
            As from ``EpisodeReplayBuffer.sample(sample_episodes=True)``, with importance-sampling
            weights. A weight is the float ``(P(i) / min P) ** -beta``, at most 1.0. Each episode
            has a new ``id_``, as in RLlib.

        Raises
        ------
        NotEnoughDataError, ValueError
            As for ``EpisodeReplayBuffer.sample``.
        """
        n = self._read_size(num_items, batch_size_B)
        names = self._names(include_infos, include_extra_model_outputs)
        options = {} if beta is None else {"beta": beta}
        return self._draw(n, n_step, gamma, names, to_numpy, **options)

    def update_priorities(self, priorities: Any, module_id: Any = None) -> None:  # noqa: ARG002
        """Set the priorities of the steps of the last ``sample``, in the order of its episodes.

        Parameters
        ----------
        priorities : array_like, shape (n,)
            Finite priorities, usually absolute TD errors. Priorities below 1e-12 become 1e-12.
        module_id : str, optional
            Not used.

        Raises
        ------
        ValueError
            A priority is not finite, or ``n`` is not the number of steps of the last ``sample``, as
            in a second call.
        """
        values = np.asarray(priorities, np.float64)
        n = 0 if self._last_indexes is None else len(self._last_indexes)
        if values.shape != (n,):
            raise ValueError(f"priorities: expected shape ({n},), got {values.shape}")
        if n:
            self._with_priorities().update_priorities(
                self._last_indexes, np.maximum(values, LEAST_PRIORITY)
            )
        self._last_indexes = None
