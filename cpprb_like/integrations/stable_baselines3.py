"""Replay buffers for Stable-Baselines3: ``DQN(..., replay_buffer_class=ReplayBuffer)``.

``ReplayBuffer`` is for observations of any space, ``HerReplayBuffer`` for goal environments. The
loss of ``PrioritizedDQN`` uses importance-sampling weights. The buffers convert steps of
Stable-Baselines3 to steps of ``cpprb_like``, and batches to tensors. They derive from classes of
Stable-Baselines3, which its algorithms check, and allocate none of their arrays. Not here: rows,
samplers and views, which all buffers share.
"""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

import cpprb_like.buffers as buffers
from cpprb_like._arguments.arrays import Array
from cpprb_like._arguments.checks import as_int
from cpprb_like._machine.machine_memory import require
from cpprb_like.integrations._env_uniform import EnvUniform
from cpprb_like.integrations._libraries import Resets, missing, refuse_bad
from cpprb_like.samplers import Prioritized, PrioritySampler, Sampler, Uniform
from cpprb_like.typing import FieldSpec
from cpprb_like.views import Hindsight
from cpprb_like.views._stacking import read_stacks

try:
    import torch
    from gymnasium import spaces
    from stable_baselines3 import DQN
    from stable_baselines3 import HerReplayBuffer as TheirHerReplayBuffer
    from stable_baselines3.common.buffers import ReplayBuffer as TheirReplayBuffer
    from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
    from stable_baselines3.common.preprocessing import get_action_dim, get_obs_shape
    from stable_baselines3.common.type_aliases import DictReplayBufferSamples, ReplayBufferSamples
    from stable_baselines3.common.utils import get_device
    from stable_baselines3.common.vec_env import VecEnv, VecNormalize
    from torch.nn.functional import smooth_l1_loss
except ImportError as error:
    raise missing(__name__, "Stable-Baselines3", "stable-baselines3", error) from error

__all__ = [
    "EnvUniform",
    "HerReplayBuffer",
    "PrioritizedDQN",
    "PrioritizedReplayBufferSamples",
    "ReplayBuffer",
]

Nested = Any  # an array, or a dict of arrays where observations are dicts
INFOS = "infos"
END, TERMINATED = 1, 2  # flags of a row
READ_ONLY = (
    "a read-only copy of the stored steps; change these by buffer.update(slots, field=values) "
    "of the attribute buffer, or copy the array"
)
UNPRIORITIZED = ("stable_baselines3", "sb3_contrib", "sbx")  # no train() of these uses priorities


class PrioritizedReplayBufferSamples(NamedTuple):
    """A batch of Stable-Baselines3 with importance-sampling weights and indexes.

    ``weights`` are importance-sampling weights of shape ``(n, 1)``, at most 1.0. Pass ``indexes``
    to ``update_priorities``.
    """

    observations: Any
    actions: torch.Tensor
    next_observations: Any
    dones: torch.Tensor
    rewards: torch.Tensor
    discounts: torch.Tensor | None
    weights: torch.Tensor
    indexes: NDArray[np.int64]


class _Part(NamedTuple):
    """An observation, or one entry of a dict observation, and its fields."""

    key: str | None  # key in the dict
    field: str
    next_field: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    is_number: bool  # Stable-Baselines3 omits the last axis of a Discrete observation


class _Stored:
    """An attribute of ``ReplayBuffer`` that copies what is stored, as a read-only array."""

    def __init__(self, field: str | None) -> None:
        self._field = field

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, held: ReplayBuffer | None, owner: type) -> Any:
        if held is None:
            return self
        if self._field is None:
            values = held._read_ends(self._name == "timeouts")
        elif self._field.endswith("obs"):
            values = held._observations(self._field)
        else:
            values = held._read(self._field)
            values = values[..., 0] if self._field == "rew" else values
        if isinstance(values, dict):
            return {key: self._read_only(value, held) for key, value in values.items()}
        return self._read_only(values, held)

    def _read_only(self, values: Array, held: ReplayBuffer) -> _StoredArray:
        array = values.view(_StoredArray)
        array.flags.writeable = False
        array.held, array.name = held if self._name == "dones" else None, self._name
        return array

    def __set__(self, held: ReplayBuffer, values: object) -> None:
        raise AttributeError(f"{self._name}: {READ_ONLY}")


class _StoredArray(np.ndarray[Any, np.dtype[Any]]):
    """A copy of stored values. An assignment to it says that they are not changed by it."""

    held: ReplayBuffer | None = None  # of ``dones`` alone: Stable-Baselines3 marks its last step
    name = "array"

    def __array_finalize__(self, base: Any) -> None:
        self.name = getattr(base, "name", "array")

    def __setitem__(self, place: Any, value: Any) -> None:
        if self.flags.writeable:
            super().__setitem__(place, value)
        elif self.held is None or not self.held._mark_done(place, value):
            raise ValueError(f"{self.name}: {READ_ONLY}")


class ReplayBuffer(TheirReplayBuffer):  # type: ignore[misc]
    """A replay buffer of Stable-Baselines3, for its argument ``replay_buffer_class``.

    The buffer works with DQN, DDPG, TD3, SAC and their subclasses. It takes every observation space
    that these algorithms take, Dict spaces too, and any number of environments. After the same
    ``np.random.seed`` its batches equal the batches of Stable-Baselines3's own buffer bit for bit.
    With an option below ``handle_timeout_termination`` the batches may differ.

    Parameters
    ----------
    buffer_size : int
        Capacity in steps, of all environments together.
    observation_space, action_space : gymnasium.Space
        Spaces of one environment.
    device : torch.device or str
        Device of the batches.
    n_envs : int
        Number of environments.
    optimize_memory_usage : bool
        Store a next observation only where it differs from the observation of the next step. The
        option works with all others, and does not change the batches.
    handle_timeout_termination : bool
        ``dones`` of a batch are 0 where a time limit ended the episode. So the target bootstraps
        from the last observation.
    sampler : Sampler, optional
        Sampler of the rows, for example ``Prioritized(alpha=0.6)``. The buffer takes a copy. By
        default rows are drawn uniformly from NumPy's global state, as in Stable-Baselines3. With a
        ``PrioritySampler`` batches are ``PrioritizedReplayBufferSamples``, for an algorithm such
        as ``PrioritizedDQN``. Stable-Baselines3's own algorithms do not update priorities, so the
        buffer refuses these algorithms then.
    n_steps : int
        Number of steps of an n-step return, by default 1. A return has fewer steps where the
        episode ends. Above 1, batches have ``discounts``: ``gamma ** steps``, or 0 where the
        episode was terminated. A row can be drawn when all steps of its return are stored.
    gamma : float, optional
        Discount factor of the n-step returns, by default ``gamma`` of the algorithm that makes the
        buffer. It must equal that. Without an algorithm it is required if ``n_steps`` is above 1.
    stack_compress : bool
        Treat every observation with three axes as a frame stack, and every such part of a Dict
        observation too. Only the newest frame of each step is stored. The option implies
        ``optimize_memory_usage``.
    seed : int, optional
        Seed of a separate generator for the draws.
    mmap_prefix, mmap_mode
        Store the rows in a file, for buffers larger than memory: see ``cpprb_like.ReplayBuffer``.

    Attributes
    ----------
    buffer : cpprb_like.ReplayBuffer
        Buffer of the rows. Its fields are ``obs``, ``next_obs``, ``act``, ``rew``, ``terminated``
        and ``truncated``. Dict observations have the fields ``obs.<key>`` and ``next_obs.<key>``.
    source : cpprb_like.buffers.Source
        Source of the batches: the buffer, or a view of it.
    observations, next_observations, actions : ndarray
        Copies of all stored steps in the order of Stable-Baselines3, read-only, with shape
        ``(buffer_size, n_envs, ...)``: a step of the place ``pos`` is written next, and places that
        were never written are zeros. Dict observations are dicts of arrays. Each access copies the
        whole array, so read it once. ``buffer.update`` changes stored values.
    rewards, dones, timeouts : ndarray
        Likewise, with shape ``(buffer_size, n_envs)`` and dtype float32. Rewards are those of
        single steps. ``dones`` marks each last step of an episode, ``timeouts`` those that were not
        terminal.

    Raises
    ------
    TypeError, ValueError
        An option has a wrong type or value, or Stable-Baselines3 has no buffer for the space. Or
        the algorithm has another ``gamma``, or does not use priorities.
    MemoryError
        The machine has not enough free memory. The message lists the bytes of each field.

    Notes
    -----
    ``model.save_replay_buffer`` and ``load_replay_buffer`` pickle the buffer. ``save`` and
    ``restore`` of ``model.replay_buffer.buffer`` write only what is new since the last time.

    If the observation of a step differs from the next observation of the step before, the
    environment was reset in between, for example by a second ``learn``. N-step returns and
    relabelled goals do not cross that point.

    Examples
    --------
    >>> from stable_baselines3 import DQN
    >>> from cpprb_like.integrations.stable_baselines3 import ReplayBuffer
    >>> model = DQN("MlpPolicy", "CartPole-v1", replay_buffer_class=ReplayBuffer, seed=0)
    >>> _ = model.learn(200)
    >>> model.replay_buffer.sample(32).observations.shape
    torch.Size([32, 4])
    """

    observation_space: spaces.Space[Any]
    action_space: spaces.Space[Any]

    def __init__(
        self,
        buffer_size: int,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        device: torch.device | str = "auto",
        n_envs: int = 1,
        optimize_memory_usage: bool = False,
        handle_timeout_termination: bool = True,
        *,
        sampler: Sampler | None = None,
        n_steps: int = 1,
        gamma: float | None = None,
        stack_compress: bool = False,
        seed: int | None = None,
        mmap_prefix: str | Path | None = None,
        mmap_mode: Any = "x",
    ) -> None:
        # TheirReplayBuffer.__init__ would allocate arrays. Its other attributes are set here.
        self.observation_space, self.action_space = observation_space, action_space
        self.obs_shape = _obs_shape(observation_space)
        # A MultiDiscrete and a MultiBinary may have any number of axes.
        is_multi = isinstance(action_space, (spaces.MultiDiscrete, spaces.MultiBinary))
        dim = math.prod(action_space.shape or ()) if is_multi else get_action_dim(action_space)
        self.action_dim = int(dim)
        self.n_envs = as_int("n_envs", n_envs, 1)
        self.buffer_size = max(as_int("buffer_size", buffer_size, 1) // self.n_envs, 1)
        self.device = get_device(device)
        self.handle_timeout_termination = bool(handle_timeout_termination)
        self.n_steps = as_int("n_steps", n_steps, 1)
        if gamma is None and self.n_steps > 1:
            model = _calling_algorithm()
            if model is None:
                raise TypeError(
                    f"gamma: expected a number, as n_steps is {n_steps} and no algorithm of "
                    "Stable-Baselines3 makes the buffer"
                )
            gamma = model.gamma
        self._has_gamma, self.gamma = gamma is not None, 1.0 if gamma is None else gamma
        self._parts = _read_space(observation_space, self.obs_shape)
        if not isinstance(stack_compress, bool):
            raise TypeError(f"stack_compress: expected a bool, got {stack_compress!r}")
        images = [part.field for part in self._parts if len(part.shape) == 3]
        stacks = images if stack_compress else []
        if stack_compress and not images:
            shape = self.obs_shape
            raise ValueError(f"stack_compress: expected observations of three axes, got {shape}")
        self.optimize_memory_usage = bool(optimize_memory_usage) or bool(stacks)
        if sampler is None:
            is_theirs = seed is None and self.n_steps == 1 and not self._is_hindsight
            sampler, seed = (EnvUniform(), 0) if is_theirs else (Uniform(), seed)
        self._follows_episodes = self.n_steps > 1 or self._is_hindsight
        self._check_algorithm(sampler)
        names = [part.field for part in self._parts]
        nstep: Any = {"size": self.n_steps, "gamma": self.gamma, "rew": "rew", "discount": True}
        self.buffer = buffers.ReplayBuffer(
            self.buffer_size * self.n_envs,
            self._fields(),
            n_envs=self.n_envs,
            next_of=names if self.optimize_memory_usage else None,
            stack_compress=stacks or None,
            Nstep=nstep if self.n_steps > 1 else None,
            sampler=copy.deepcopy(sampler),  # the model saves its arguments
            seed=seed,
            mmap_prefix=mmap_prefix,
            mmap_mode=mmap_mode,
        )
        self._none = np.zeros((self.n_envs, 1), bool)
        self._is_checked = not self.buffer.has_priorities and not self._has_gamma
        self._resets = Resets(self.n_envs)
        self.source = self._open_source()

    _is_hindsight = False  # whether goals of batches are relabelled

    def _fields(self) -> dict[str, FieldSpec]:
        """The fields of a step."""
        fields: dict[str, FieldSpec] = {
            part.field: {"shape": part.shape, "dtype": part.dtype} for part in self._parts
        }
        if not self.optimize_memory_usage:
            fields |= {f"next_{name}": dict(spec) for name, spec in fields.items()}  # type: ignore[misc]
        act_dtype = self._maybe_cast_dtype(self.action_space.dtype)
        return {
            **fields,
            "act": {"shape": (self.action_dim,), "dtype": act_dtype},
            "rew": {"shape": (1,), "dtype": np.float32},
            "terminated": {"shape": (1,), "dtype": np.float32},
            "truncated": {"shape": (1,), "dtype": bool},
        }

    def _open_source(self) -> buffers.Source:
        """The source of batches."""
        return self.buffer

    # ------------------------------------------------------------------ names of Stable-Baselines3

    @property
    def pos(self) -> int:
        """Time steps written since the buffer was last full, as in Stable-Baselines3."""
        return self.buffer.ring.written // self.n_envs % self.buffer_size

    @property
    def full(self) -> bool:
        """Whether the capacity has been reached."""
        return self.buffer.ring.written // self.n_envs >= self.buffer_size

    observations = _Stored("obs")
    next_observations = _Stored("next_obs")
    actions = _Stored("act")
    rewards = _Stored("rew")
    dones = _Stored(None)
    timeouts = _Stored(None)

    def _observations(self, field: str) -> Nested:
        """All stored values of ``obs`` or ``next_obs``."""
        prefix = field.removesuffix("obs")
        parts = {part.key: self._read(prefix + part.field) for part in self._parts}
        return parts.get(None, parts)

    def _read(self, field: str) -> Array:
        """All stored values of a field, with shape ``(buffer_size, n_envs, ...)``."""
        ring = self.buffer.ring
        (column,) = (column for column in ring.columns if column.name == field)
        require(self.buffer_size * self.n_envs * column.nbytes, f"a copy of {field}")

        def attempt() -> tuple[Array, Array]:
            slots = self._slots()
            return slots[slots >= 0], read_stacks(ring, column, slots, 0)

        return self.buffer.consistently(attempt)

    def _read_ends(self, timeouts: bool) -> Array:
        """1.0 for the last step of each episode; with ``timeouts``, only if it is not terminal."""

        def attempt() -> tuple[Array, Array]:
            slots = self._slots()
            stored = slots[slots >= 0]
            flags = self.buffer.ring.windows(stored, 0, 0)[2]
            ends = np.zeros(slots.shape, np.float32)
            ends[slots >= 0] = flags & (END | TERMINATED) == END if timeouts else flags & END
            return stored, ends

        return self.buffer.consistently(attempt)

    def _slots(self) -> Array:
        """The slots of the steps in the order of Stable-Baselines3; -1 where there is none."""
        n, envs, ring = self.buffer_size, self.n_envs, self.buffer.ring
        written = ring.written // envs
        age = (written - 1 - np.arange(n)) % n
        step = written - 1 - age  # the newest of each place
        slots = (step[:, np.newaxis] * envs + np.arange(envs)) % ring.capacity
        return np.where(step[:, np.newaxis] < 0, -1, slots)

    def _mark_done(self, place: Any, is_done: Any) -> bool:
        """Whether ``dones[place] = is_done`` marks the newest steps as their episodes' last.

        Stable-Baselines3 does so before each ``learn``. Then the open episodes end.
        """
        newest = (self.pos - 1) % self.buffer_size
        is_newest = np.ndim(place) == 0 and place in (newest, newest - self.buffer_size)
        if is_newest and np.all(is_done) and self.size():
            self.buffer.on_episode_end()
            return True
        return False

    def __repr__(self) -> str:
        options = [f"buffer_size={self.buffer_size}", f"n_envs={self.n_envs}"]
        options.append(f"stored={self.size()}")
        if self.n_steps > 1:
            options.append(f"n_steps={self.n_steps}, gamma={self.gamma}")
        options += [f"sampler={self.buffer.sampler}", *self._further()]
        table = repr(self.buffer).partition("\n")[2]
        return f"{type(self).__name__}({', '.join(options)})\n{table}"

    def _further(self) -> list[str]:
        """More options for ``repr``."""
        return []

    def size(self) -> int:
        """Time steps in the buffer."""
        return self.buffer_size if self.full else self.pos

    def reset(self) -> None:
        """Delete all steps."""
        self.buffer.clear()
        self._resets.remember({})

    # ------------------------------------------------------------------ steps

    def add(
        self,
        obs: Nested,
        next_obs: Nested,
        action: Array,
        reward: Array,
        done: Array,
        infos: list[dict[str, Any]],
    ) -> None:
        """Add a step of every environment.

        After the last step of an episode ``next_obs`` is the last observation, and not the first
        one of the next episode. ``"TimeLimit.truncated"`` in one of ``infos`` says that a time
        limit ended the episode. Raises ``TypeError`` or ``ValueError`` if a value is not in its
        space. Then nothing was added.

        Algorithms of Stable-Baselines3 take the last observation from ``infos``. Where an
        environment resets within its own ``step``, they pass the first one, which is stored as in
        Stable-Baselines3's buffers. ``describe`` of the attribute ``buffer`` finds it.
        """
        n_envs = self.n_envs
        step: dict[str, Any] = {
            "act": action.reshape(n_envs, self.action_dim),
            "rew": reward.reshape(n_envs, 1),
            "terminated": self._none,
            "truncated": self._none,
        }
        nexts: dict[str, Array] = {}
        for key, name, next_name, shape, _, is_number in self._parts:
            before, after = (obs, next_obs) if key is None else (obs[key], next_obs[key])
            if is_number:
                before, after = before.reshape(n_envs, *shape), after.reshape(n_envs, *shape)
            step[name] = before
            step[next_name] = nexts[name] = after
        if any(done.tolist()):
            ended = done.reshape(n_envs, 1).astype(bool)
            if self.handle_timeout_termination:
                cut = [[bool(info.get("TimeLimit.truncated", False))] for info in infos]
                step["truncated"] = ended & np.array(cut)
            step["terminated"] = ended & ~step["truncated"]
        self._add(step, nexts, infos)

    def _add(self, step: dict[str, Any], nexts: dict[str, Array], infos: list[Any]) -> None:  # noqa: ARG002
        if self._follows_episodes:
            reset = self._resets.find(step)
            if reset:
                refuse_bad(self.buffer, step)
            for env in reset:
                self.buffer.on_episode_end(env)
        self.buffer.add(**step)
        if self._follows_episodes:
            self._resets.remember(nexts)

    # ------------------------------------------------------------------ batches

    def sample(self, batch_size: int, env: VecNormalize | None = None) -> Any:
        """Draw a batch.

        A ``VecNormalize`` normalizes observations and rewards by its present statistics.

        Returns
        -------
        ReplayBufferSamples or DictReplayBufferSamples or PrioritizedReplayBufferSamples
            Tensors on ``device``. ``dones`` and ``rewards`` have shape ``(n, 1)``.

        Raises
        ------
        NotEnoughDataError
            No row can be drawn yet. This error is a ``ValueError``.
        TypeError, ValueError
            The algorithm that draws does not use priorities, or has another ``gamma``.
        """
        if not self._is_checked:
            self._is_checked = self._check_algorithm(self.buffer.sampler)
        batch = self.source.sample(batch_size)
        obs, next_obs = self._nest(batch, ""), self._nest(batch, "next_")
        rewards, discounts = batch["rew"], batch.get("discount")
        if env is not None:
            obs, next_obs = env.normalize_obs(obs), env.normalize_obs(next_obs)
            rewards = self._normalize_returns(rewards, discounts, env)
        columns = {
            "observations": self._tensors(obs),
            "actions": self._tensors(batch["act"]),
            "next_observations": self._tensors(next_obs),
            "dones": self._tensors(batch["terminated"]),
            "rewards": self._tensors(rewards),
            "discounts": None if discounts is None else self._tensors(discounts),
        }
        if self.buffer.has_priorities:
            weights = self._tensors(batch["weights"][:, np.newaxis])
            return PrioritizedReplayBufferSamples(
                **columns, weights=weights, indexes=batch["indexes"]
            )
        if isinstance(self.obs_shape, dict):
            return DictReplayBufferSamples(**columns)
        return ReplayBufferSamples(**columns)

    def _check_algorithm(self, sampler: Sampler) -> bool:
        """Whether an algorithm makes this call. Raises if the algorithm does not suit the buffer.

        A buffer gets no reference to its algorithm, so the algorithm is found in the call stack.
        """
        model = _calling_algorithm()
        if model is None:
            return False
        kind = type(model).__name__
        library = model.train.__module__.partition(".")[0]
        if isinstance(sampler, PrioritySampler) and library in UNPRIORITIZED:
            remedy = (
                "use PrioritizedDQN of cpprb_like.integrations.stable_baselines3"
                if isinstance(model, DQN)
                else f"leave the sampler out, or use a subclass of {kind} whose train() multiplies "
                "the loss by batch.weights and calls update_priorities(), as PrioritizedDQN's does"
            )
            raise TypeError(
                f"sampler: expected one without priorities, as {kind} never updates them and every "
                f"row would be drawn alike; got {sampler}: {remedy}"
            )
        if self._has_gamma and self.gamma != model.gamma:
            raise ValueError(
                f"gamma: expected {model.gamma} as the model has it; "
                f"got {self.gamma} in replay_buffer_kwargs"
            )
        return True

    def _nest(self, batch: Mapping[str, Array], prefix: str) -> Nested:
        """The observations of a batch: an array, or a dict of arrays."""
        if self._parts[0].key is None:
            return batch[f"{prefix}obs"]
        return {part.key: batch[prefix + part.field] for part in self._parts}

    def _tensors(self, values: Nested) -> Any:
        """Tensors on the device. On the CPU they share the memory of the batch."""
        if isinstance(values, dict):
            return {key: self._tensors(value) for key, value in values.items()}
        return torch.as_tensor(values, device=self.device)

    def _normalize_returns(
        self, rewards: Array, discounts: Array | None, env: VecNormalize
    ) -> Array:
        """Normalized rewards. An n-step return is clipped to the discounted sum of n bounds."""
        if discounts is None or not env.norm_reward:
            return np.asarray(env.normalize_reward(rewards), np.float32)
        bound = env.clip_reward * sum(self.gamma**k for k in range(self.n_steps))
        scaled = rewards / np.sqrt(env.ret_rms.var + env.epsilon)
        return np.asarray(np.clip(scaled, -bound, bound), np.float32)

    def update_priorities(self, indexes: ArrayLike, priorities: ArrayLike | torch.Tensor) -> None:
        """Set the priorities of drawn rows, such as their absolute TD errors.

        Works as ``PrioritizedReplayBuffer.update_priorities``. Priorities may also be a tensor on
        any device, of shape ``(n,)`` or ``(n, 1)``. Raises ``TypeError`` if the buffer has none.
        """
        if not self.buffer.has_priorities:
            raise TypeError(f"{type(self).__name__}: there are no priorities")
        if isinstance(priorities, torch.Tensor):
            priorities = priorities.detach().cpu().numpy()
        self.source.update_priorities(indexes, priorities)

    # ------------------------------------------------------------------ pickles

    def __getstate__(self) -> dict[str, Any]:
        """State without ``source``, which ``__setstate__`` rebuilds."""
        state = self.__dict__.copy()
        del state["source"]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._is_checked = not self.buffer.has_priorities and not self._has_gamma
        self.source = self._open_source()


class HerReplayBuffer(ReplayBuffer, TheirHerReplayBuffer):  # type: ignore[misc]
    """Hindsight experience replay for Stable-Baselines3, for its argument ``replay_buffer_class``.

    The buffer stores steps once. A view ``Hindsight`` relabels them when they are drawn.

    Parameters
    ----------
    buffer_size, observation_space, action_space, device, n_envs
        As for ``ReplayBuffer``. Observations are dicts with ``observation``, ``achieved_goal`` and
        ``desired_goal``.
    optimize_memory_usage, handle_timeout_termination
        As for ``ReplayBuffer``.
    env : VecEnv
        Training environment, which the algorithm passes. The buffer calls its ``compute_reward``.
    n_sampled_goal : int
        Number of relabelled rows for each row with its original goal, by default 4.
    goal_selection_strategy : {"future", "final", "episode"} or GoalSelectionStrategy
        Strategy that selects the goal of a relabelled row: see ``Hindsight``.
    copy_info_dict : bool
        Store ``infos`` and pass copies of them to ``compute_reward``. If false,
        ``compute_reward`` gets empty dicts.
    **options
        Options of ``ReplayBuffer``, such as a sampler or n-step returns.

    Raises
    ------
    TypeError, ValueError, MemoryError
        As for ``ReplayBuffer``.

    Notes
    -----
    Three things differ from Stable-Baselines3. Rows of unfinished episodes are drawn too, with
    goals from the steps so far. Each row is relabelled with the probability ``n_sampled_goal /
    (n_sampled_goal + 1)``; Stable-Baselines3 relabels a fixed share of each batch. If the first
    steps of an episode were overwritten, the other steps can still be drawn. With n-step returns
    the rewards of all steps are recomputed.

    Examples
    --------
    >>> from stable_baselines3 import SAC
    >>> from stable_baselines3.common.envs import BitFlippingEnv
    >>> from cpprb_like.integrations.stable_baselines3 import HerReplayBuffer
    >>> env = BitFlippingEnv(n_bits=4, continuous=True)
    >>> model = SAC("MultiInputPolicy", env, replay_buffer_class=HerReplayBuffer, seed=0)
    >>> _ = model.learn(110)
    >>> sorted(model.replay_buffer.sample(32).observations)
    ['achieved_goal', 'desired_goal', 'observation']
    """

    env: VecEnv | None
    _is_hindsight = True

    def __init__(
        self,
        buffer_size: int,
        observation_space: spaces.Dict,
        action_space: spaces.Space[Any],
        env: VecEnv,
        device: torch.device | str = "auto",
        n_envs: int = 1,
        optimize_memory_usage: bool = False,
        handle_timeout_termination: bool = True,
        n_sampled_goal: int = 4,
        goal_selection_strategy: Any = "future",
        copy_info_dict: bool = False,
        **options: Any,
    ) -> None:
        self.env = env
        self.n_sampled_goal = as_int("n_sampled_goal", n_sampled_goal, 0)
        self.her_ratio = 1 - 1 / (self.n_sampled_goal + 1)
        self.goal_selection_strategy = goal_selection_strategy
        self.copy_info_dict = bool(copy_info_dict)
        super().__init__(
            buffer_size,
            observation_space,
            action_space,
            device,
            n_envs,
            optimize_memory_usage,
            handle_timeout_termination,
            **options,
        )

    def _fields(self) -> dict[str, FieldSpec]:
        fields = super()._fields()
        if self.copy_info_dict:
            fields[INFOS] = {"shape": (), "dtype": object}
        return fields

    def _open_source(self) -> buffers.Source:
        strategy = self.goal_selection_strategy
        name: Any = strategy if isinstance(strategy, str) else strategy.name
        layer = Hindsight(self._compute_reward, strategy=name.lower(), relabel_ratio=self.her_ratio)
        return self.buffer.view(layer)

    def _compute_reward(self, achieved: Array, goal: Array, rows: Mapping[str, Array]) -> Array:
        if self.env is None:
            raise RuntimeError(
                "HerReplayBuffer: rewards of new goals need the environment; call set_env"
            )
        if self.copy_info_dict:
            infos = copy.deepcopy(list(rows[INFOS]))
        else:
            infos = [{} for _ in range(len(goal))]
        (rewards,) = self.env.env_method("compute_reward", achieved, goal, infos, indices=[0])
        return np.asarray(rewards, np.float32)

    def _add(self, step: dict[str, Any], nexts: dict[str, Array], infos: list[Any]) -> None:
        if self.copy_info_dict:
            step[INFOS] = np.empty(self.n_envs, object)
            step[INFOS][:] = infos
        super()._add(step, nexts, infos)

    def _further(self) -> list[str]:
        return [f"n_sampled_goal={self.n_sampled_goal}", f"strategy={self.goal_selection_strategy}"]

    def set_env(self, env: VecEnv) -> None:
        """Set the environment of an unpickled buffer, once.

        Raises ``ValueError`` if the buffer has an environment already.
        """
        if self.env is not None:
            raise ValueError("set_env: expected a buffer without an environment; it has one")
        self.env = env

    def truncate_last_trajectory(self) -> None:
        """End the episodes that are still open, as truncated."""
        self.buffer.on_episode_end()

    def __getstate__(self) -> dict[str, Any]:
        """Without the environment: see ``set_env``."""
        return {**super().__getstate__(), "env": None}


class PrioritizedDQN(DQN):  # type: ignore[misc]
    """DQN with prioritized experience replay (Schaul et al., 2016).

    The loss of each row is multiplied by its importance-sampling weight, and the priority of a row
    becomes its absolute TD error.

    Parameters
    ----------
    *args, **options
        As for ``stable_baselines3.DQN``.
    replay_buffer_class : type
        ``ReplayBuffer`` or a subclass.
    replay_buffer_kwargs : dict, optional
        Options of the buffer, by default ``{"sampler": Prioritized()}``.

    Raises
    ------
    TypeError
        The buffer has no priorities.
    ValueError
        ``gamma`` of the n-step returns differs from ``gamma`` of the model.

    Examples
    --------
    >>> from cpprb_like.integrations.stable_baselines3 import PrioritizedDQN
    >>> from cpprb_like.samplers import Prioritized
    >>> from cpprb_like.schedules import Linear
    >>> options = {"sampler": Prioritized(alpha=0.6, beta=Linear(0.4, 1.0, 10_000))}
    >>> model = PrioritizedDQN("MlpPolicy", "CartPole-v1", replay_buffer_kwargs=options, seed=0)
    >>> _ = model.learn(200)
    """

    def __init__(
        self,
        *args: Any,
        replay_buffer_class: type[ReplayBuffer] = ReplayBuffer,
        replay_buffer_kwargs: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(
            *args,
            replay_buffer_class=replay_buffer_class,
            replay_buffer_kwargs={"sampler": Prioritized(), **(replay_buffer_kwargs or {})},
            **options,
        )

    def _setup_model(self) -> None:
        super()._setup_model()
        held = self.replay_buffer
        if not isinstance(held, ReplayBuffer) or not held.buffer.has_priorities:
            raise TypeError(
                "PrioritizedDQN: expected a replay buffer with priorities, as with "
                f"replay_buffer_kwargs={{'sampler': Prioritized()}}; got {type(held).__name__}"
            )

    def train(self, gradient_steps: int, batch_size: int = 100) -> None:
        """Draw batches and take an optimizer step for each batch; DQN calls this method."""
        self.policy.set_training_mode(True)
        self._update_learning_rate(self.policy.optimizer)
        losses = []
        for _ in range(gradient_steps):
            batch = self.replay_buffer.sample(batch_size, env=self._vec_normalize_env)
            discounts = self.gamma if batch.discounts is None else batch.discounts
            with torch.no_grad():
                following = self.q_net_target(batch.next_observations).amax(1, keepdim=True)
                target = batch.rewards + (1 - batch.dones) * discounts * following
            value = self.q_net(batch.observations).gather(1, batch.actions.long())
            loss = (batch.weights * smooth_l1_loss(value, target, reduction="none")).mean()
            self.policy.optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.policy.parameters(), self.max_grad_norm)
            self.policy.optimizer.step()
            self.replay_buffer.update_priorities(batch.indexes, (value - target).abs())
            losses.append(loss.item())
        self._n_updates += gradient_steps
        self.logger.record("train/n_updates", self._n_updates, exclude="tensorboard")
        self.logger.record("train/loss", np.mean(losses))


def _calling_algorithm() -> OffPolicyAlgorithm | None:
    """The algorithm with the innermost method in the call stack; None if there is none."""
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_code.co_varnames[:1] == ("self",):
            caller = frame.f_locals.get("self")
            if isinstance(caller, OffPolicyAlgorithm):
                return caller
        frame = frame.f_back
    return None


def _obs_shape(space: Any) -> Any:
    """As ``get_obs_shape``; a MultiDiscrete may have any number of axes."""
    if isinstance(space, spaces.Dict):
        return {key: _obs_shape(inner) for key, inner in space.spaces.items()}
    return space.shape if isinstance(space, spaces.MultiDiscrete) else get_obs_shape(space)


def _read_space(space: Any, shape: Any) -> tuple[_Part, ...]:
    """The parts of an observation space."""
    found: dict[str | None, Any] = {None: (space, shape)}
    if isinstance(space, spaces.Dict):
        found = {key: (inner, shape[key]) for key, inner in space.spaces.items()}
    parts = []
    for key, (inner, lengths) in found.items():
        field = "obs" if key is None else f"obs.{key}"
        is_number = isinstance(inner, spaces.Discrete)
        dtype = np.dtype(inner.dtype)
        parts.append(_Part(key, field, f"next_{field}", lengths, dtype, is_number))
    return tuple(parts)
