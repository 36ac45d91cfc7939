"""``GymnasiumRecorder`` adds the steps of a Gymnasium environment, single or vector, to a buffer.

All autoreset modes work: after an episode end the environment resets in the following step
(NEXT_STEP), in the same step (SAME_STEP), or only by a call of ``reset`` (DISABLED). Not here: the
compiled path of most steps (``_steps``), and fields of spaces and cpprb's helpers (``_spaces``).
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias, overload

import numpy as np

from cpprb_like._arguments.arrays import Array, Flags
from cpprb_like.integrations._libraries import missing, refuse_bad

try:
    import gymnasium
    from gymnasium.vector import AutoresetMode, VectorEnv, VectorWrapper
except ImportError as error:
    raise missing(__name__, "gymnasium 1.1 or newer", "gymnasium", error) from error

from cpprb_like.integrations._infos import InfoFields, copied, with_first
from cpprb_like.integrations._nests import Leaf, Tree
from cpprb_like.integrations._recorder import FloatType, Recorder, names_of_envs
from cpprb_like.integrations._spaces import (
    create_before_add_func,
    create_env_dict,
    parts_of,
    tree_of,
)
from cpprb_like.integrations._steps import FINAL_NAMES

if TYPE_CHECKING:
    import numpy.typing as npt

    AnyEnv: TypeAlias = gymnasium.Env[Any, Any] | VectorEnv[Any, Any, Any]

    class _Wrappable(gymnasium.Env[Any, Any], VectorEnv[Any, Any, Any]):  # type: ignore[misc]
        """One of the two classes, by the environment: see ``GymnasiumRecorder.__new__``."""

else:
    _Wrappable = object

__all__ = ["GymnasiumRecorder", "create_before_add_func", "create_env_dict"]

NOT_GIVEN: Any = object()


class GymnasiumRecorder(Recorder, _Wrappable):  # type: ignore[misc]
    """Wraps a Gymnasium environment, single or vector, and adds its transitions to a buffer.

    Use the recorder in place of the environment. ``reset`` and ``step`` work as in Gymnasium. After
    an episode end ``step`` resets an environment that does not reset itself. So ``step`` always
    returns the observation to act on next. No recorded transition crosses a reset. In each of
    Gymnasium's autoreset modes, the last ``next_obs`` of an episode is its final observation.

    A program that steps and resets the environment itself calls ``add`` after each step and
    ``reset(obs)`` after each reset.

    Parameters
    ----------
    env : gymnasium.Env or gymnasium.vector.VectorEnv
        The recorder stores the actions, observations and rewards of this environment. Apply a
        wrapper to ``env`` first if its observations, actions or rewards are to be stored. Other
        wrappers go around the recorder, which is a ``gymnasium.Env`` or a ``VectorEnv`` itself.
    autoreset_mode : gymnasium.vector.AutoresetMode or str, optional
        Autoreset mode: ``"NEXT_STEP"``, ``"SAME_STEP"`` or ``"DISABLED"``. The argument overrides
        ``env.metadata["autoreset_mode"]``. The mode of a single environment is ``"DISABLED"``. Pass
        ``"NEXT_STEP"`` for an environment wrapped in ``gymnasium.wrappers.Autoreset``, and
        ``"SAME_STEP"`` for one that resets within ``step``, with ``info["final_obs"]``. Without
        ``"SAME_STEP"``, ``add`` refuses an end with such an ``info``.
    float_type : dtype or "space", optional
        Dtype of floating-point observations, actions and rewards in ``env_dict``, by default
        float32. The default holds for float64 spaces too, such as MuJoCo's. Networks are float32,
        and PyTorch refuses to mix the two dtypes. ``add`` refuses a number that is too large for
        the dtype. With ``"space"``, observations and actions keep the dtype of their space, and
        rewards are float32.
    info_fields : dict of str to str, optional
        Fields that are read from ``info``, with their keys: ``{"mask": "action_mask"}``. A row has
        the value that came with its observation, from ``reset`` or the step before. If the buffer
        has a field ``next_mask``, as by ``next_of``, the row has there the value that came with its
        next observation. At the end of an episode this is the value of the final observation, which
        in mode SAME_STEP is in ``info["final_info"]``. Declare the fields in the buffer:
        ``env_dict`` lacks them, as no space describes an info. Every info needs every key, of each
        environment.

    Attributes
    ----------
    env : gymnasium.Env or gymnasium.vector.VectorEnv
        Environment as given. Do not step or reset it while the recorder does.
    buffer : ReplayBuffer or None
        Attached buffer; None before ``attach``.
    observation_space, action_space : gymnasium.Space
        Spaces of the environment. The spaces of a vector environment are batched.
    single_observation_space, single_action_space : gymnasium.Space
        Spaces of each single environment.
    env_dict : dict
        Fields for ``ReplayBuffer``: ``obs``, ``act``, ``rew``, ``next_obs``, ``terminated`` and
        ``truncated`` (bool). Observations and actions have the shape and the dtype of their space.
        For floating-point spaces ``float_type`` gives the dtype. Each part of a Dict or Tuple space
        is a separate field, such as ``obs.position`` or ``act.0``. Values of Text, Sequence and
        Graph spaces have any length: see Notes. Each access returns a new dict.
    n_envs : int
        Number of environments, 1 for a single environment. ``attach`` sets the number of an empty
        buffer that was made without ``n_envs``.
    autoreset_mode : gymnasium.vector.AutoresetMode

    Raises
    ------
    TypeError
        ``env`` has no spaces, or ``float_type`` is not a dtype.
    ValueError
        A vector environment does not declare its autoreset mode, two parts of a space share a name,
        ``info_fields`` has the name of another field, or ``float_type`` is not a floating-point
        dtype.
    NotImplementedError
        A space is not one of Gymnasium's own.

    Notes
    -----
    In NEXT_STEP mode a vector environment spends one step on a reset. That step takes a slot, but
    is never drawn. In SAME_STEP mode Gymnasium returns final observations after the reset. Do not
    use this mode with environments that overwrite their observations.

    Some wrappers around the recorder count episodes, such as ``RecordEpisodeStatistics``. They
    begin the next episode when ``reset`` is called, as with every single environment. Directly
    after an end, ``reset()`` of the recorder returns the observation that ``step`` returned, and
    does not reset the environment again. The recorder resets a vector environment in mode DISABLED
    in the same step, and ``metadata`` of the recorder says SAME_STEP. A subclass that is to be
    wrapped also derives from ``gymnasium.Wrapper`` or ``VectorWrapper``.

    Values of any length need ``room`` of the buffer, in items of each field that names an axis:

    - Text spaces: a field of dtype ``str``. Its room counts bytes of UTF-8.
    - Sequence spaces, of Box, Discrete, MultiDiscrete or MultiBinary spaces: one field of shape
      ``(name, ...)``, where the axis has the name of the field.
    - Graph spaces of such spaces: ``obs.nodes`` with an axis of its own, ``obs.edges`` with another
      one, and ``obs.edge_links`` of shape ``("obs.edges", 2)``, whose values count nodes. A space
      without edges gives ``obs.nodes`` alone.

    Next observations have axes of their own, such as ``next_obs.nodes``. Values of other Sequence
    and Graph spaces, and of OneOf spaces, are Python objects.

    If observations and actions are arrays of numbers, or dicts and tuples of such arrays, a step
    costs two or three times as much as ``add`` of the buffer. Values of any length and Python
    objects are gathered in Python, which takes ten times as long or more.

    Examples
    --------
    >>> import gymnasium
    >>> from cpprb_like import ReplayBuffer
    >>> from cpprb_like.integrations.gymnasium import GymnasiumRecorder
    >>> env = GymnasiumRecorder(gymnasium.make_vec("CartPole-v1", num_envs=4))
    >>> rb = env.attach(ReplayBuffer(1000, env.env_dict))
    >>> obs, info = env.reset(seed=0)
    >>> for _ in range(10):
    ...     action = env.action_space.sample()
    ...     obs, reward, terminated, truncated, info = env.step(action)
    >>> rb.sample(32)["next_obs"].shape
    (32, 4)
    """

    _nest, _keeps_floats, _restored = "spaces", "space", ("obs", "act", "next_obs")
    _begin_hint = (
        "call reset(), or reset(obs) with what env.reset() gave, before the first step and after "
        "one that raised"
    )
    _reset_hint = (
        ": before the next step call env.reset() and reset(obs), or give the autoreset_mode that "
        "the environment has; step(action) of the recorder resets by itself"
    )

    def __new__(cls, env: Any = None, **options: Any) -> GymnasiumRecorder:  # noqa: ARG004, PYI034
        """A recorder that is an ``Env`` or a ``VectorEnv`` too, so that wrappers accept it."""
        made: type[GymnasiumRecorder] = cls
        if cls is GymnasiumRecorder and isinstance(env, gymnasium.Env):
            made = _EnvRecorder
        elif cls is GymnasiumRecorder and isinstance(env, VectorEnv):
            made = _VectorRecorder
        return super().__new__(made)

    def __init__(
        self,
        env: AnyEnv,
        *,
        autoreset_mode: AutoresetMode | str | None = None,
        float_type: FloatType = None,
        info_fields: Mapping[str, str] | None = None,
    ) -> None:
        single = "single_" if hasattr(env, "single_observation_space") else ""
        try:
            self.single_observation_space = getattr(env, f"{single}observation_space")
            self.single_action_space = getattr(env, f"{single}action_space")
        except AttributeError as error:
            raise TypeError(
                f"expected a Gymnasium environment, got {type(env).__name__}: {error}"
            ) from None
        self.env = env
        self.observation_space: gymnasium.Space[Any] = env.observation_space
        self.action_space: gymnasium.Space[Any] = env.action_space
        self.autoreset_mode = _mode_of(env, autoreset_mode)
        self._first: tuple[Any, Any, dict[str, Any]] | None = None  # result of a reset by ``step``
        obs, act = tree_of(self.single_observation_space), tree_of(self.single_action_space)
        rew = Leaf((), (), np.dtype(np.float32))
        trees = {"obs": obs, "act": act, "rew": rew, "next_obs": obs}
        n_rows = getattr(env, "num_envs", None)
        parts = parts_of(obs, n_rows), parts_of(obs, None), parts_of(act, n_rows)
        self._set_up(trees, n_rows, float_type, self.autoreset_mode.name, parts)
        self._infos = InfoFields(info_fields, self._names, n_rows) if info_fields else None

    def render(self) -> Any:
        """Return the result of ``render`` of the environment."""
        return self.env.render()

    def close(self, **options: Any) -> None:
        """Close the environment."""
        self.env.close(**options)

    def __repr__(self) -> str:
        return f"<GymnasiumRecorder{self.env}>"

    __str__ = __repr__

    @overload
    def reset(
        self, *, seed: int | list[int | None] | None = ..., options: dict[str, Any] | None = ...
    ) -> tuple[Any, dict[str, Any]]: ...

    @overload
    def reset(self, obs: object, mask: npt.ArrayLike | None = ..., *, info: Any = ...) -> None: ...

    def reset(
        self,
        obs: object = NOT_GIVEN,
        mask: npt.ArrayLike | None = None,
        *,
        seed: int | list[int | None] | None = None,
        options: dict[str, Any] | None = None,
        info: Any = None,
    ) -> tuple[Any, dict[str, Any]] | None:
        """Reset the environment, end open episodes and begin new ones.

        If ``step`` has just reset a single environment because its episode ended, this method does
        not reset it again.

        Call ``reset(obs)`` if the program has reset the environment itself. The recorder then only
        begins new episodes.

        An error leaves the buffer unchanged. An error of ``reset(obs)`` leaves the recorder
        unchanged, too.

        Parameters
        ----------
        obs
            The observation that ``env.reset`` returned.
        mask : array_like of bool, shape (n_envs,), optional
            Mask of the environments that ``env.reset(options={"reset_mask": mask})`` reset. By
            default all were reset.
        seed, options
            Arguments for ``reset`` of the environment, if no ``obs`` is given.
        info
            The info that ``env.reset`` returned with ``obs``, for a recorder with ``info_fields``.

        Returns
        -------
        tuple or None
            Observation and info from ``reset`` of the environment. None if ``obs`` is given.

        Raises
        ------
        RuntimeError
            No buffer is attached, or a mask is given before all environments were reset once.
        TypeError
            ``obs`` is given together with ``seed`` or ``options``; ``mask`` or ``info`` without
            ``obs``; or ``info`` is lacking, and the recorder has ``info_fields``.
        ValueError
            The observation is not in its space, the mask has another shape or dtype, or ``info``
            lacks a key of ``info_fields``.
        """
        if obs is not NOT_GIVEN:
            if seed is not None or options is not None:
                raise TypeError("reset: expected obs of a reset that is done, or seed and options")
            if self._infos is not None and info is None:
                raise TypeError(f"reset: expected info=, for the fields {list(self._infos.keys)}")
            self._reset(obs, mask, info)
            return None
        if mask is not None or info is not None:
            raise TypeError(
                "reset: expected mask and info with obs; or options={'reset_mask': mask}"
            )
        self._attached()
        first, self._first = self._first, None
        if first is not None and first[0] is self._steps.obs and seed is None and options is None:
            return first[1], dict(first[2])
        given: dict[str, Any] = {} if seed is None else {"seed": seed}
        if options is not None:
            given["options"] = options
            mask = options.get("reset_mask")
            mask = None if mask is None else np.array(mask)
        try:
            obs, info = self.env.reset(**given)
            self._reset(obs, mask, info)
        except BaseException:
            self._steps.obs = None  # the state of the environment is unknown
            raise
        return obs, info

    def step(  # type: ignore[override]  # Gymnasium names the action in two ways
        self, action: Any, /, **extra: object
    ) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step the environment and record it; in mode DISABLED, reset environments that ended.

        Parameters
        ----------
        action
            Action for ``step`` of the environment.
        **extra
            Values for further fields of the buffer. A vector environment needs one value of each
            field for each environment.

        Returns
        -------
        tuple
            Observation, reward, terminated, truncated and info, as from ``step`` of the
            environment. Single environments have mode DISABLED. In this mode, the observation after
            an episode end is the first of the next episode. Then info has the entries of the step,
            such as ``episode`` of ``RecordEpisodeStatistics``. Entries of the reset override them,
            in a vector environment those of the environments that were reset. ``final_obs`` and
            ``final_info`` hold the observation and the info of the step. For a vector environment
            ``_final_obs`` and ``_final_info`` are the mask of the ended environments.

        Raises
        ------
        RuntimeError
            No buffer is attached, or ``reset`` was not called.
        ValueError, TypeError
            As for ``add``. Nothing was recorded. The environment has moved on, so call ``reset``
            next. Call ``reset`` also after any error of the environment.
        TypeError
            A vector environment in mode DISABLED returned an info that is not a dict at an episode
            end. Wrap the recorder in ``DictInfoToList``, not the environment.

        Examples
        --------
        >>> import gymnasium
        >>> from cpprb_like import GymnasiumRecorder, ReplayBuffer
        >>> env = GymnasiumRecorder(gymnasium.make("CartPole-v1", max_episode_steps=3))
        >>> rb = env.attach(ReplayBuffer(100, env.env_dict))
        >>> obs, info = env.reset(seed=0)
        >>> for _ in range(7):
        ...     obs, reward, terminated, truncated, info = env.step(env.action_space.sample())
        >>> rb.get_all_transitions()["truncated"].tolist()
        [False, False, True, False, False, True, False]
        """
        self._attached()
        self._observed()
        try:
            result = self.env.step(action)
            self.add(action, *result, **extra)
            if not self._steps.n_waiting or self.autoreset_mode is not AutoresetMode.DISABLED:
                return result
            return self._next_episodes(*result)
        except BaseException:
            self._steps.obs = None
            raise

    def _next_episodes(
        self, obs: Any, reward: Any, terminated: Any, truncated: Any, info: dict[str, Any]
    ) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Reset the environments that ended, and return the result of ``step``."""
        if not isinstance(info, Mapping):
            raise TypeError(
                f"info: expected a dict, got {type(info).__name__}: in autoreset mode DISABLED "
                "wrap the recorder in DictInfoToList, not the environment"
            )
        # A reset may overwrite the arrays of both.
        final = {"final_obs": copy.deepcopy(obs), "final_info": (info := copied(info))}
        if self._n_rows is None:
            obs, first_info = self.reset()
            self._first = self._steps.obs, obs, first_info
            info = {**info, **first_info}
        else:
            ended = np.array(self._steps.waiting)
            final["_final_obs"] = final["_final_info"] = ended
            obs, first_info = self.reset(options={"reset_mask": ended.copy()})
            info = with_first(info, first_info, ended)
        return obs, reward, terminated, truncated, {**info, **final}

    def _reset(self, obs: object, mask: npt.ArrayLike | None, info: Any) -> None:
        """Begin new episodes with these observations, and values of their info."""
        if self._infos is None:
            self._begin_with(obs, mask)
            return
        chosen = ~self._steps.none if mask is None else self._flags(mask, "mask")
        values = self._infos.begin(info, chosen)
        refuse_bad(self._attached(), self._infos.as_given(values))
        self._begin_with(obs, mask)
        self._infos.now = values

    def _begin_with(self, obs: object, mask: npt.ArrayLike | None) -> None:
        if self._steps.begin(obs, mask) is not NotImplemented:
            return
        self._attached()
        arrived, steps = self._collect("obs", obs), self._steps
        chosen = ~steps.none
        if mask is not None:
            chosen = self._flags(mask, "mask")
            if steps.obs is None:
                raise RuntimeError("the first reset is of all environments: reset(obs), no mask")
            if self._n_rows is None:
                arrived = arrived if chosen else steps.obs
            else:
                arrived = _with_old(arrived, steps.obs, ~chosen)
        self._begin(arrived, chosen)

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
        """Record one step that the program has made: ``recorder.add(action, *env.step(action))``.

        Parameters
        ----------
        action
            Action that the program passed to ``env.step``.
        obs, reward, terminated, truncated, info
            Results of ``env.step``. The recorder keeps only copies.
        **extra
            Values for further fields of the buffer. A vector environment needs one value of each
            field for each environment.

        Returns
        -------
        int or None
            The result of ``add`` of the buffer.

        Raises
        ------
        RuntimeError
            No buffer is attached, or ``reset`` was not called: at the start, or after an episode
            that the environment does not reset by itself.
        ValueError
            A value is not in its space, or flags or ``info`` contradict the autoreset mode.
        TypeError
            A field is missing, unknown or given twice.
            Any of these errors leaves buffer and recorder unchanged.
        """
        infos = None if self._steps.obs is None else self._infos
        if infos is not None:
            extra, after = self._with_infos(infos, info, terminated, truncated, extra)
        slot: int | None = self._steps.add(action, obs, reward, terminated, truncated, info, extra)
        if slot is NotImplemented:
            slot = self._add(action, obs, reward, terminated, truncated, info, extra)
        if infos is not None:
            infos.now = after
        return slot

    def _with_infos(
        self,
        infos: InfoFields,
        info: object,
        terminated: object,
        truncated: object,
        extra: dict[str, Any],
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """The further fields of a step with those of infos, and the values to act on next."""
        final = self._steps.none
        if self._is_same_step and infos.nexts:
            final = self._flags(terminated, "terminated") | self._flags(truncated, "truncated")
        following, after = infos.step(info, final)
        return infos.with_fields(extra, following), after

    def _add(
        self,
        action: object,
        obs: object,
        reward: object,
        terminated: object,
        truncated: object,
        info: object,
        extra: dict[str, Any],
    ) -> int | None:
        """Record a step that the compiled path does not take."""
        self._attached()
        before, arrived = self._observed(), self._collect("next_obs", obs)
        ends = [self._flags(terminated, "terminated"), self._flags(truncated, "truncated")]
        ended = ends[0] | ends[1]
        final = self._final(arrived, ended, info)
        values = [*before, *self._collect("act", action), reward, *final, *ends]
        steps = self._steps
        slot = self._store(values, extra, steps.waiting if steps.n_waiting else None)
        steps.obs = arrived
        if not self._is_same_step:
            steps.wait_for(ended)
        return slot

    @property
    def _is_same_step(self) -> bool:
        return self.autoreset_mode is AutoresetMode.SAME_STEP

    def _observed(self) -> list[Array]:
        """The observations before a step: see ``_before_step``."""
        disabled = self.autoreset_mode is AutoresetMode.DISABLED
        return self._before_step(self._steps.waiting if disabled else self._steps.none)

    def _flags(self, value: object, name: str) -> Flags:
        flags: Array = np.array(value)
        if flags.shape != self._steps.waiting.shape:
            raise ValueError(
                f"field {name!r}: expected shape {self._steps.waiting.shape}, got {flags.shape}"
            )
        if flags.dtype.kind != "b":
            if flags.dtype.kind not in "iuf" or not np.isin(flags, (0, 1)).all():
                raise ValueError(f"field {name!r}: expected bool, got {value!r}")
            flags = flags.astype(np.bool_)
        return flags

    def _final(self, arrived: list[Array], ended: Flags, info: object) -> list[Array]:
        """Return the next observations of a step: final observations where episodes ended."""
        twice = ended & self._steps.waiting
        if self._steps.n_waiting and np.any(twice):
            raise ValueError(
                f"{names_of_envs(twice)} ended in the step after an end, which is the reset in "
                f"autoreset mode {self.autoreset_mode.name}: the environment has another"
            )
        if self._n_rows is None and not self._is_same_step:
            if np.any(ended):
                self._refuse_final(info)
            return arrived
        final = _final_observations(info, ended, self._trees["obs"], self._n_rows)
        if final.keys() != (set(np.flatnonzero(ended).tolist()) if self._is_same_step else set()):
            raise ValueError(
                f"{names_of_envs(ended)} ended and info has final_obs of {list(final)}: the "
                f"environment has another autoreset mode than {self.autoreset_mode.name}"
            )
        if not final:
            return arrived
        return final[0] if self._n_rows is None else _with_final(arrived, final)

    def _refuse_final(self, info: object) -> None:
        """Raise ``ValueError`` if a single environment has reset in the step that ended."""
        final = [
            name for name in FINAL_NAMES if isinstance(info, Mapping) and info.get(name) is not None
        ]
        if final:
            raise ValueError(
                f"the episode ended and info has {final[0]}: the environment has reset within "
                "step, so obs is the first observation of the next episode. Give "
                "autoreset_mode='SAME_STEP', with the final observation as info['final_obs']; the "
                f"mode is {self.autoreset_mode.name}"
            )


if TYPE_CHECKING:
    _VectorWrapper = VectorWrapper[Any, Any, Any, Any, Any]
else:
    _VectorWrapper = VectorWrapper  # which Gymnasium 1.3 and older cannot subscript


# Type checkers see a recorder as Env and VectorEnv, which conflicts with each of these classes.
class _EnvRecorder(  # type: ignore[misc, override]
    GymnasiumRecorder, gymnasium.Wrapper[Any, Any, Any, Any]
):
    """Recorder of a single environment."""

    def __init__(self, env: gymnasium.Env[Any, Any], **options: Any) -> None:
        gymnasium.Wrapper.__init__(self, env)
        GymnasiumRecorder.__init__(self, env, **options)

    @property
    def spec(self) -> Any:  # type: ignore[override]
        """Spec of the wrapped environment: ``gymnasium.make`` cannot make a recorder."""
        return self.env.spec


class _VectorRecorder(GymnasiumRecorder, _VectorWrapper):  # type: ignore[misc]
    """Recorder of a vector environment."""

    def __init__(self, env: VectorEnv[Any, Any, Any], **options: Any) -> None:
        VectorWrapper.__init__(self, env)
        GymnasiumRecorder.__init__(self, env, **options)

    @property  # type: ignore[misc]
    def metadata(self) -> dict[str, Any]:  # type: ignore[override]
        """Metadata of the environment, with the autoreset mode of ``step`` of the recorder."""
        disabled = self.autoreset_mode is AutoresetMode.DISABLED
        mode = AutoresetMode.SAME_STEP if disabled else self.autoreset_mode
        return {**self.env.metadata, "autoreset_mode": mode}

    # VectorEnv.__del__ of older versions closes the environment, which the program may still use.
    # ``object.__hash__`` is a C function without effect, so no signal handler runs in it.
    __del__ = object.__hash__


def _mode_of(env: object, given: AutoresetMode | str | None) -> AutoresetMode:
    """The autoreset mode of an environment: ``given``, or else the mode in its metadata.

    Raises ``ValueError`` if a vector environment declares none, or an unknown one.
    """
    if given is not None:
        return _parsed(given)
    if not hasattr(env, "num_envs"):
        return AutoresetMode.DISABLED
    metadata = getattr(env, "metadata", None) or {}
    mode = metadata.get("autoreset_mode")
    base = getattr(env, "unwrapped", env)
    if getattr(base, "metadata", None) is metadata:
        # Vector environments of Gymnasium 1.1 write their mode to metadata that all instances of
        # the environment's class share. Their attribute ``autoreset_mode`` is right.
        mode = getattr(base, "autoreset_mode", mode)
    if mode is None:
        raise ValueError(
            "the vector environment does not say how it resets: its metadata has no "
            "'autoreset_mode'; give autoreset_mode='NEXT_STEP', 'SAME_STEP' or 'DISABLED'"
        )
    return _parsed(mode)


def _final_observations(
    info: object, ended: Flags, tree: Tree, n_rows: int | None
) -> dict[int, list[Array]]:
    """Return the final observations in ``info``, by environment and leaf of the space.

    ``info`` is a dict, or one dict for each environment. A vector environment holds them under
    ``final_obs``: as an array of objects, None where there is none, or batched like observations.
    """
    if n_rows is not None and isinstance(info, Mapping):
        values = info.get("final_obs")
        if values is None:
            return {}
        if not (isinstance(values, np.ndarray) and values.dtype == object):
            columns = list(tree.collect(values, "final_obs", n_rows))
            present = np.flatnonzero(info.get("_final_obs", ended)).tolist()
            return {env: [column[env, ...] for column in columns] for env in present}
    else:
        infos = [info] if n_rows is None else info
        if not isinstance(infos, (list, tuple)) or not all(isinstance(i, Mapping) for i in infos):
            raise ValueError(f"info: expected a dict, got {type(info).__name__}")
        values = [one.get("final_obs") for one in infos]
    if len(values) != ended.size:
        raise ValueError(f"info: expected {ended.size} environments, got {len(values)}")
    return {
        env: list(tree.collect(value, "final_obs", None))
        for env, value in enumerate(values)
        if value is not None
    }


def _with_old(columns: list[Array], old: list[Any], kept: Flags) -> list[Array]:
    """Return batched observations, with the old ones of some environments."""
    replaced = []
    for column, one in zip(columns, old, strict=True):
        before = np.asarray(one)  # ``one`` may be a number
        # A column has the dtype of its values. The common dtype holds the old values too.
        column = column.astype(np.result_type(column, before))
        column[kept] = before[kept]
        replaced.append(column)
    return replaced


def _with_final(columns: list[Array], final: dict[int, list[Array]]) -> list[Array]:
    """Return batched observations, with the final observations of some environments."""
    replaced = []
    for number, column in enumerate(columns):
        parts = {env: leaves[number] for env, leaves in final.items()}
        column = column.astype(np.result_type(column, *parts.values()))
        for env, part in parts.items():
            column[env] = part[()]
        replaced.append(column)
    return replaced


def _parsed(mode: object) -> AutoresetMode:
    if isinstance(mode, AutoresetMode):
        return mode
    for known in AutoresetMode:
        if str(mode).replace("_", "").lower() == known.value.lower():
            return known
    names = [known.name for known in AutoresetMode]
    raise ValueError(f"autoreset_mode: expected one of {names}, got {mode!r}")
