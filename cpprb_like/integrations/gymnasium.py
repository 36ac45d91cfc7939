"""Record the steps of a Gymnasium environment, single or vector, whatever its spaces and resets.

``GymnasiumRecorder`` decides what goes into the buffer. How spaces become fields is the matter of
``_spaces.py``, what environments say about resets that of ``_autoreset.py``; cpprb's helpers, which
are public here too, are in ``_env_dict.py``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import numpy as np
from gymnasium.vector import AutoresetMode

from cpprb_like.buffers import ReplayBuffer
from cpprb_like.integrations._autoreset import Flags, final_observations, mode_of, with_final
from cpprb_like.integrations._env_dict import create_before_add_func, create_env_dict
from cpprb_like.integrations._spaces import Array, field_names, tree_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    import gymnasium
    import numpy.typing as npt

    AnyEnv: TypeAlias = gymnasium.Env[Any, Any] | gymnasium.vector.VectorEnv[Any, Any, Any]

__all__ = ["GymnasiumRecorder", "create_before_add_func", "create_env_dict"]

BufferT = TypeVar("BufferT", bound=ReplayBuffer)


class GymnasiumRecorder:
    """Puts the steps of a Gymnasium environment into a buffer.

    It remembers the observation before each step, so ``add`` takes what ``env.step`` gave. No
    recorded step crosses a reset, and the last ``next_obs`` of an episode is its true final
    observation, in each of Gymnasium's autoreset modes.

    Parameters
    ----------
    env : gymnasium.Env or gymnasium.vector.VectorEnv
        Only its spaces, its number of environments and its metadata are read.
    autoreset_mode : gymnasium.vector.AutoresetMode or str, optional
        How ended episodes are reset, in place of ``env.metadata["autoreset_mode"]``:
        ``"NEXT_STEP"``, ``"SAME_STEP"`` or ``"DISABLED"``. A single environment is ``"DISABLED"``;
        say ``"NEXT_STEP"`` for one that is wrapped in ``gymnasium.wrappers.Autoreset``.

    Attributes
    ----------
    env_dict : dict
        Fields for ``ReplayBuffer``: ``obs``, ``act``, ``rew`` (float32), ``next_obs``,
        ``terminated`` and ``truncated`` (bool). Observations and actions have the shape and dtype
        of their space. Parts of Dict and Tuple spaces are fields of their own, such as
        ``obs.position`` or ``act.0``. Text is a string of fixed width; values of Graph, Sequence
        and OneOf spaces are Python objects. Each reading gives a new dict, to be changed at will.
    n_envs : int
        Number of environments, 1 for a single one.
    autoreset_mode : gymnasium.vector.AutoresetMode

    Raises
    ------
    TypeError
        ``env`` has no spaces.
    ValueError
        A vector environment does not say how it resets, or two parts of a space share a name.
    NotImplementedError
        A space is not one of Gymnasium's own.

    Notes
    -----
    In NEXT_STEP mode the step that a vector environment spends on a reset becomes an absent row:
    it takes a slot, but is never drawn. In SAME_STEP mode Gymnasium hands final observations out
    after the reset: environments that overwrite their observations must not be used in it.

    Examples
    --------
    >>> import gymnasium
    >>> from cpprb_like import ReplayBuffer
    >>> from cpprb_like.integrations.gymnasium import GymnasiumRecorder
    >>> env = gymnasium.make_vec("CartPole-v1", num_envs=4)
    >>> recorder = GymnasiumRecorder(env)
    >>> rb = recorder.attach(ReplayBuffer(1000, recorder.env_dict, n_envs=recorder.n_envs))
    >>> obs, info = env.reset(seed=0)
    >>> recorder.reset(obs)
    >>> for _ in range(10):
    ...     action = env.action_space.sample()
    ...     obs, reward, terminated, truncated, info = env.step(action)
    ...     slot = recorder.add(action, obs, reward, terminated, truncated, info)
    >>> rb.sample(32)["next_obs"].shape
    (32, 4)
    """

    def __init__(self, env: AnyEnv, *, autoreset_mode: AutoresetMode | str | None = None) -> None:
        single = "single_" if hasattr(env, "single_observation_space") else ""
        try:
            observation_space = getattr(env, f"{single}observation_space")
            action_space = getattr(env, f"{single}action_space")
        except AttributeError as error:
            raise TypeError(
                f"expected a Gymnasium environment, got {type(env).__name__}: {error}"
            ) from None
        self.n_envs: int = getattr(env, "num_envs", 1)
        self._n_rows = self.n_envs if hasattr(env, "num_envs") else None  # leading axis, if any
        self.autoreset_mode = mode_of(env, autoreset_mode)
        self._obs_tree = tree_of(observation_space)
        self._act_tree = tree_of(action_space)
        self._names = (
            *field_names(self._obs_tree, "obs"),
            *field_names(self._act_tree, "act"),
            "rew",
            *field_names(self._obs_tree, "next_obs"),
            "terminated",
            "truncated",
        )
        self._buffer: ReplayBuffer | None = None
        self._obs: list[Array] | None = None  # before the next step, leaf by leaf
        self._waiting = self._no_env()  # whose episode ended and that are not reset yet
        self._n_waiting = 0

    @property
    def env_dict(self) -> dict[str, dict[str, Any]]:
        """Fields for ``ReplayBuffer``; a new dict each time."""
        obs = [(leaf.shape, leaf.dtype) for leaf in self._obs_tree.leaves()]
        act = [(leaf.shape, leaf.dtype) for leaf in self._act_tree.leaves()]
        number, flag = ((), np.dtype(np.float32)), ((), np.dtype(np.bool_))
        types = [*obs, *act, number, *obs, flag, flag]
        return {
            name: {"shape": shape, "dtype": dtype}
            for name, (shape, dtype) in zip(self._names, types, strict=True)
        }

    def attach(self, buffer: BufferT) -> BufferT:
        """Record into ``buffer`` from the next ``reset`` on, and return it.

        Parameters
        ----------
        buffer : ReplayBuffer
            With the fields of ``env_dict`` and as many environments. It may have further fields,
            and other dtypes or shapes where they suit the values.

        Raises
        ------
        ValueError
            A field is missing, or the number of environments differs.
        """
        missing = [name for name in self._names if name not in buffer.schema.names]
        if missing:
            raise ValueError(f"the buffer lacks the fields {missing}")
        if buffer.n_envs != self.n_envs:
            raise ValueError(f"expected a buffer of n_envs={self.n_envs}, got {buffer.n_envs}")
        self._buffer = buffer
        self._obs = None
        return buffer

    def reset(self, obs: object, mask: npt.ArrayLike | None = None) -> None:
        """Begin new episodes, after each ``env.reset``. Episodes that are still open end here.

        Parameters
        ----------
        obs
            The observation that ``env.reset`` returned.
        mask : array_like of bool, shape (n_envs,), optional
            The environments that were reset, if not all:
            ``env.reset(options={"reset_mask": mask})``.

        Raises
        ------
        RuntimeError
            No buffer is attached, or a mask is given before all environments were reset once.
        ValueError
            The observation is not of its space, or the mask has another shape or dtype.
            Whatever is raised, buffer and recorder are as they were.
        """
        buffer = self._attached()
        arrived = self._obs_tree.collect(obs, "obs", self._n_rows)
        chosen = ~self._no_env()
        if mask is not None:
            chosen = self._flags(mask, "mask")
            if self._obs is None:
                raise RuntimeError("the first reset is of all environments: reset(obs), no mask")
            for column, before in zip(arrived, self._obs, strict=True):
                column[~chosen] = before[~chosen]
        for env in np.flatnonzero(chosen).tolist():
            buffer.on_episode_end(env)
        self._obs = arrived
        self._wait_for(self._waiting & ~chosen)

    def add(
        self,
        action: object,
        obs: object,
        reward: object,
        terminated: object,
        truncated: object,
        info: object,
        /,
        **extra: object,
    ) -> int | None:
        """Record one step: ``recorder.add(action, *env.step(action))``.

        Parameters
        ----------
        action
            What was given to ``env.step``.
        obs, reward, terminated, truncated, info
            What ``env.step`` returned. The recorder keeps copies only.
        **extra
            Values for further fields of the buffer; of each environment, if they are several.

        Returns
        -------
        int or None
            What ``add`` of the buffer returned.

        Raises
        ------
        RuntimeError
            No buffer is attached, or ``reset`` is missing: at the start, or after an episode that
            the environment does not reset by itself.
        ValueError
            A value is not of its space, or flags or ``info`` contradict the autoreset mode.
        TypeError
            A field is missing, unknown or given twice.
            Whatever is raised, buffer and recorder are as they were.
        """
        buffer = self._attached()
        before = self._before_step()
        act = self._act_tree.collect(action, "act", self._n_rows)
        arrived = self._obs_tree.collect(obs, "next_obs", self._n_rows)
        ends = [self._flags(terminated, "terminated"), self._flags(truncated, "truncated")]
        ended = ends[0] | ends[1]
        final = self._final(arrived, ended, info)
        values = [*before, *act, reward, *final, *ends]
        fields: dict[str, Any] = dict(zip(self._names, values, strict=True))
        if self._n_waiting:
            slot = self._add_where(buffer, fields, extra)
        else:
            slot = buffer.add(**fields, **extra)
        self._obs = arrived
        if not self._resets_at_once:
            self._wait_for(ended)
        return slot

    def restore(self, batch: Mapping[str, Array]) -> dict[str, Any]:
        """Return a batch with observations and actions in the nesting of their spaces.

        Parameters
        ----------
        batch : mapping of str to ndarray
            As drawn from the buffer.

        Returns
        -------
        dict
            ``obs``, ``act`` and ``next_obs``: dicts and tuples of the batch's own arrays, or one
            array for a plain space. Every other entry as it was.

        Raises
        ------
        KeyError
            The batch lacks one of these fields.
        """
        trees = {"obs": self._obs_tree, "act": self._act_tree, "next_obs": self._obs_tree}
        flat = {root + leaf.suffix for root, tree in trees.items() for leaf in tree.leaves()}
        return {
            **{root: tree.restore(batch, root) for root, tree in trees.items()},
            **{name: column for name, column in batch.items() if name not in flat},
        }

    @property
    def _resets_at_once(self) -> bool:
        return self.autoreset_mode is AutoresetMode.SAME_STEP

    def _no_env(self) -> Flags:
        return np.zeros(() if self._n_rows is None else self._n_rows, np.bool_)

    def _wait_for(self, envs: Flags) -> None:
        self._waiting = envs
        self._n_waiting = int(np.count_nonzero(envs))

    def _attached(self) -> ReplayBuffer:
        if self._buffer is None:
            raise RuntimeError("no buffer to record into: call attach(buffer) first")
        return self._buffer

    def _before_step(self) -> list[Array]:
        """Return the observations before this step, if a step may come now."""
        if self._obs is None:
            raise RuntimeError("call reset(obs) with what env.reset() gave before the first step")
        if self._n_waiting and self.autoreset_mode is AutoresetMode.DISABLED:
            raise RuntimeError(
                f"the episode of {_those(self._waiting)} has ended: before the next step call "
                "env.reset() and reset(obs), or give the autoreset_mode that the environment has"
            )
        return self._obs

    def _flags(self, value: object, name: str) -> Flags:
        flags: Array = np.array(value)
        if flags.shape != self._waiting.shape:
            raise ValueError(
                f"field {name!r}: expected shape {self._waiting.shape}, got {flags.shape}"
            )
        if flags.dtype.kind != "b":
            if flags.dtype.kind not in "iuf" or not np.isin(flags, (0, 1)).all():
                raise ValueError(f"field {name!r}: expected bool, got {value!r}")
            flags = flags.astype(np.bool_)
        return flags

    def _final(self, arrived: list[Array], ended: Flags, info: object) -> list[Array]:
        """Return the observations that this step led to, before any reset that it contains."""
        if self._n_waiting and np.any(ended & self._waiting):
            raise ValueError(
                f"{_those(ended & self._waiting)} ended in the step after an end, which is the "
                f"reset in autoreset mode {self.autoreset_mode.name}: the environment has another"
            )
        if self._n_rows is None and not self._resets_at_once:
            return arrived
        final = final_observations(info, ended, self._obs_tree, self._n_rows)
        if final.keys() != (set(np.flatnonzero(ended).tolist()) if self._resets_at_once else set()):
            raise ValueError(
                f"{_those(ended)} ended and info has final_obs of {list(final)}: the environment "
                f"has another autoreset mode than {self.autoreset_mode.name}"
            )
        if not final:
            return arrived
        return final[0] if self._n_rows is None else with_final(arrived, final)

    def _add_where(
        self, buffer: ReplayBuffer, fields: dict[str, Any], extra: dict[str, Any]
    ) -> int | None:
        """Add a step in which some environments only reset."""
        present = ~np.atleast_1d(self._waiting)
        if self._n_rows is None:
            fields = {name: np.expand_dims(value, 0) for name, value in fields.items()}
            extra = {name: np.expand_dims(value, 0) for name, value in extra.items()}
        return buffer.add_where(present, **fields, **extra)


def _those(envs: Flags) -> str:
    return f"environments {np.flatnonzero(envs).tolist()}"
