"""``DmEnvRecorder`` adds the steps of a dm_env or TF-Agents environment to a buffer.

Single or batched, with any nests of specs; ``SpecNest`` makes fields of these. A spec is whatever
has a shape and a dtype. Only attributes of environments, specs and time steps are read: neither
dm_env nor TF-Agents is imported. Not here: nests as such (``_nests``).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import numpy as np

from cpprb_like._arguments.checks import as_int
from cpprb_like._fields.casting import as_array
from cpprb_like.buffers import ReplayBuffer
from cpprb_like.integrations._nests import (
    Array,
    Branch,
    Flags,
    FloatType,
    Leaf,
    Path,
    Tree,
    field_name,
    names_of,
    prepare,
    read_float_type,
    restored,
    stored_dtype,
)
from cpprb_like.typing import FieldSpec

__all__ = ["DmEnvRecorder", "SpecNest", "env_dict_from_spec"]

BufferT = TypeVar("BufferT", bound=ReplayBuffer)
FIRST, MID, LAST = range(3)  # types of steps, in dm_env and in TF-Agents


class SpecLeaf(Leaf):
    """A spec: one field."""

    def read(self, value: object, root: str, n_rows: int | None) -> Array:
        """See ``Leaf.read``."""
        if type(value) is np.ndarray and not value.dtype.hasobject:
            array = value.copy()
        else:
            array = self._converted(value, root, n_rows)
        self.check_shape(array, root, n_rows)
        return array

    def _converted(self, value: object, root: str, n_rows: int | None) -> Array:
        """Return a new array of what is none, or holds objects."""
        if isinstance(value, tuple) and n_rows is not None:
            value = list(value)  # several Python objects, and not one
        try:
            array = as_array(value, self.dtype, one_item=self.shape in ((), (1,)))
            return copy.deepcopy(array) if array.dtype.hasobject else array.copy()
        except MemoryError:
            raise
        except Exception as error:
            name = self.name(root)
            raise ValueError(f"field {name!r}: the value is no array: {error}") from error


class SpecNest:
    """A nest of specs, and the fields that hold its values.

    Parameters
    ----------
    spec
        A spec, which is any object with a ``shape`` and a ``dtype``, or a dict, list, tuple or
        named tuple of nests. It is read once and not stored.
    name : str
        First part of the names of the fields.

    Attributes
    ----------
    env_dict : dict
        Fields for ``ReplayBuffer``, of the shapes and dtypes of the specs. Each reading gives a new
        dict, to be changed at will.
    names : tuple of str
        Names of the fields, in the order of the specs.

    Raises
    ------
    TypeError
        A part is neither a spec nor a nest.
    ValueError
        A shape or a dtype is not fixed, two parts would share a name, or one would have none.

    Notes
    -----
    Fields are named by the path of keys, positions and names of tuple fields that leads to them:
    ``obs.camera``, ``obs.joints.0``. So names do not depend on the order of a dict.

    Examples
    --------
    >>> import numpy as np
    >>> from dm_env import specs
    >>> from cpprb_like import ReplayBuffer
    >>> from cpprb_like.integrations.dm_env import SpecNest
    >>> nest = SpecNest({"at": specs.Array((2,), np.float32), "id": specs.DiscreteArray(5)}, "obs")
    >>> rb = ReplayBuffer(100, nest.env_dict)
    >>> rb.add(**nest.flatten({"at": [0.5, 1.5], "id": 3}))
    0
    >>> nest.restore(rb.get_all_transitions())
    {'at': array([[0.5, 1.5]], dtype=float32), 'id': array([3], dtype=int32)}
    """

    def __init__(self, spec: object, name: str = "") -> None:
        self._root = name
        self.tree = _tree_of(spec, name, ())
        self.names = names_of(self.tree, name, "specs")

    @property
    def env_dict(self) -> dict[str, FieldSpec]:
        """Fields for ``ReplayBuffer``, of the specs' shapes and dtypes; a new dict each time."""
        return {
            name: {"shape": leaf.shape, "dtype": leaf.dtype}
            for name, leaf in zip(self.names, self.tree.leaves(), strict=True)
        }

    def flatten(self, value: object, *, n_envs: int | None = None) -> dict[str, Array]:
        """Return the parts of a value by field, as new arrays.

        Parameters
        ----------
        value
            As the specs say: in the same nesting, lists and tuples alike.
        n_envs : int, optional
            Length of the leading axis that each array has, one entry for each environment.

        Raises
        ------
        ValueError
            The value has another nesting or other shapes; the message names the field.
        """
        return dict(zip(self.names, self.collect(value, n_envs), strict=True))

    def collect(self, value: object, n_rows: int | None, unset: Flags | None = None) -> list[Array]:
        """Return the parts of a value in the order of ``names``; ``unset`` rows become 0."""
        return list(self.tree.collect(value, self._root, n_rows, unset))

    def restore(self, batch: Mapping[str, Array]) -> Any:
        """Return the columns of a batch in the nesting of the specs, the batch's own arrays.

        The batch may have further entries. ``KeyError`` if it lacks one of the fields.
        """
        return self.tree.restore(batch, self._root)


def _tree_of(spec: Any, root: str, path: Path) -> Tree:
    made_of: Callable[[Iterable[Any]], Any] | None
    if isinstance(spec, Mapping):
        keys, parts, made_of = tuple(spec), tuple(spec.values()), None
    elif isinstance(spec, (list, tuple)):
        keys, parts = getattr(spec, "_fields", tuple(range(len(spec)))), tuple(spec)
        made_of = getattr(type(spec), "_make", list if isinstance(spec, list) else tuple)
    else:
        return _leaf_of(spec, root, path)
    children = {
        key: _tree_of(part, root, (*path, key)) for key, part in zip(keys, parts, strict=True)
    }
    return Branch(path, children, made_of)


def _leaf_of(spec: Any, root: str, path: Path) -> Leaf:
    name = field_name(root, path)
    if getattr(spec, "shape", None) is None or getattr(spec, "dtype", None) is None:
        raise TypeError(
            f"spec of {name!r}: expected an object with a shape and a dtype, or a dict, list or "
            f"tuple of them, got {spec!r}"
        )
    if not name:
        raise ValueError(f"{spec!r} is no nest, so its field needs a name")
    try:
        # TensorFlow's dtypes name NumPy's.
        dtype = np.dtype(getattr(spec.dtype, "as_numpy_dtype", spec.dtype))
        shape = tuple(length.__index__() for length in spec.shape)
        if min(shape, default=0) < 0:
            raise ValueError("a length is negative")
    except (TypeError, ValueError, AttributeError) as error:
        raise ValueError(
            f"spec of {name!r}: expected a fixed shape and a dtype of NumPy, got {spec!r}: {error}"
        ) from None
    return SpecLeaf(path, shape, dtype)


def env_dict_from_spec(spec: object, name: str = "") -> dict[str, FieldSpec]:
    """Return the fields of a nest of specs for ``ReplayBuffer``: ``SpecNest(spec, name).env_dict``.

    Examples
    --------
    >>> import numpy as np
    >>> from dm_env import specs
    >>> from cpprb_like.integrations.dm_env import env_dict_from_spec
    >>> list(env_dict_from_spec({"at": specs.Array((2,), float), "id": specs.DiscreteArray(5)}))
    ['at', 'id']
    """
    return SpecNest(spec, name).env_dict


class DmEnvRecorder:
    """Adds the transitions of a dm_env or TF-Agents environment, single or batched, to a buffer.

    It remembers the observation before each step, so ``add`` takes the action and the ``TimeStep``
    that ``env.step`` returned. A step of type LAST terminates its episode if its discount is 0, and
    truncates it otherwise. The step from LAST to FIRST, in which an environment only resets, is
    never stored, so no recorded transition crosses a reset.

    Parameters
    ----------
    env : dm_env.Environment, tf_agents PyEnvironment or TFEnvironment
        Only its specs and its batch size are read.
    n_envs : int, optional
        Number of environments, which is the length of the leading axis of every array, for a
        batched environment that has no ``batched`` and ``batch_size`` as TF-Agents' have.
    float_type : dtype or "spec", optional
        Dtype of all floating-point values in ``env_dict``; by default those of their specs, which
        TF-Agents' policies insist on. Specs of the DeepMind Control Suite say float64, and PyTorch
        refuses to mix that with float32 networks: give ``float_type=np.float32`` then. A number
        that is too large for the dtype is refused by ``add``.

    Attributes
    ----------
    env_dict : dict
        Fields for ``ReplayBuffer``: ``obs``, ``act``, ``rew``, ``discount`` and ``next_obs``, of
        the shapes of their specs and their dtypes, but for ``float_type``;
        ``terminated`` and ``truncated`` (bool). Parts of
        nested specs are fields of their own, such as ``obs.position`` or ``act.0``; see
        ``SpecNest``. Each reading gives a new dict, to be changed at will.
    n_envs : int
        Number of environments, 1 for a single one.

    Raises
    ------
    TypeError
        ``env`` has no specs, one of them is neither a spec nor a nest, or ``float_type`` is no
        dtype.
    ValueError
        ``float_type`` is no floating-point dtype.
        Two parts of a spec would share a name, the discount is not a single number, or ``n_envs``
        is not that of the environment.

    Notes
    -----
    ``discount`` is that of the environment, for each step: 0 after a termination. So the
    bootstrapped target is ``rew + gamma * discount * V(next_obs)``, also at episode ends.

    In a batched environment some environments may reset while others step. The rows of those that
    reset are absent: each takes a slot, but is never drawn. A call in which all of them reset adds
    nothing.

    Examples
    --------
    >>> import dm_env
    >>> import numpy as np
    >>> from dm_env import specs
    >>> from cpprb_like import ReplayBuffer
    >>> from cpprb_like.integrations.dm_env import DmEnvRecorder
    >>> class Stairs(dm_env.Environment):
    ...     def observation_spec(self):
    ...         return {"height": specs.Array((), np.int32)}
    ...
    ...     def action_spec(self):
    ...         return specs.DiscreteArray(2)
    ...
    ...     def reset(self):
    ...         self.height = 0
    ...         return dm_env.restart({"height": 0})
    ...
    ...     def step(self, action):
    ...         self.height += action
    ...         make = dm_env.termination if self.height == 3 else dm_env.transition
    ...         return make(1.0, {"height": self.height})
    >>> env = Stairs()
    >>> recorder = DmEnvRecorder(env)
    >>> rb = recorder.attach(ReplayBuffer(1000, recorder.env_dict))
    >>> time_step = env.reset()
    >>> recorder.reset(time_step)
    >>> while not time_step.last():
    ...     time_step = env.step(1)
    ...     slot = recorder.add(1, time_step)
    >>> rb.get_all_transitions()["next_obs.height"].tolist()
    [1, 2, 3]
    >>> rb.get_all_transitions()["discount"].tolist()
    [1.0, 1.0, 0.0]
    """

    def __init__(
        self, env: Any, *, n_envs: int | None = None, float_type: FloatType = "spec"
    ) -> None:
        self._float_type = read_float_type(float_type, "spec")
        observation, action, reward, discount = _specs_of(env)
        self._n_rows = _batch_size_of(env, n_envs)  # leading axis, if any
        self.n_envs: int = 1 if self._n_rows is None else self._n_rows
        specs = {"obs": observation, "act": action, "rew": reward, "discount": discount}
        specs["next_obs"] = observation
        self._nests = {root: SpecNest(spec, root) for root, spec in specs.items()}
        fields = self._nests["discount"].env_dict
        shapes = {name: spec["shape"] for name, spec in fields.items()}
        if shapes != {"discount": ()}:
            raise ValueError(
                f"discount_spec: expected a single number, whose 0 ends the task, got {discount!r}"
            )
        self._names: tuple[str, ...] = ()  # of the buffer's fields, in the order of ``add``
        self._buffer: ReplayBuffer | None = None
        self._obs: list[Array] | None = None  # before the next step, leaf by leaf
        self._waiting = self._no_env()  # whose episode ended and that are not reset yet

    @property
    def env_dict(self) -> dict[str, FieldSpec]:
        """Fields for ``ReplayBuffer``; a new dict each time."""
        fields: dict[str, FieldSpec] = {
            name: {**spec, "dtype": stored_dtype(np.dtype(spec["dtype"]), self._float_type)}
            for nest in self._nests.values()
            for name, spec in nest.env_dict.items()
        }
        for name in ("terminated", "truncated"):
            fields[name] = {"shape": (), "dtype": np.dtype(np.bool_)}
        return fields

    def attach(self, buffer: BufferT) -> BufferT:
        """Record into ``buffer`` from the next ``reset`` on, and return it.

        As ``GymnasiumRecorder.attach``; the field ``discount`` may be left out.
        """
        prepare(buffer, [name for name in self.env_dict if name != "discount"], self.n_envs)
        self._names = tuple(name for name in self.env_dict if name in buffer.schema.names)
        self._buffer = buffer
        self._obs = None
        return buffer

    def reset(self, time_step: Any) -> None:
        """Begin new episodes, after each ``env.reset``. Episodes that are still open end here.

        An environment that resets in ``step``, after an end, needs this for its first ``TimeStep``
        only.

        Parameters
        ----------
        time_step : TimeStep
            What ``env.reset`` returned: of type FIRST, for all environments.

        Raises
        ------
        RuntimeError
            No buffer is attached.
        TypeError, ValueError
            It is no ``TimeStep``, not of type FIRST, or the observation does not fit the specs.
            Whatever is raised, buffer and recorder are as they were.
        """
        buffer = self._attached()
        step_type, _, _, observation = self._parts(time_step)
        if np.count_nonzero(step_type != FIRST):
            raise ValueError(
                f"reset: expected a TimeStep of type FIRST, as env.reset() gives, got step_type "
                f"{time_step.step_type!r}"
            )
        self._begin(buffer, observation)

    def add(self, action: object, time_step: Any, /, **extra: object) -> int | None:
        """Record one step: ``recorder.add(action, env.step(action))``.

        Parameters
        ----------
        action
            What was given to ``env.step``.
        time_step : TimeStep
            What ``env.step`` returned. Where it is of type FIRST a new episode begins, and action,
            reward and discount are not looked at; an episode that was still open ends as truncated.
        **extra
            Values for further fields of the buffer; of each environment, if it is batched.

        Returns
        -------
        int or None
            What ``add`` of the buffer returned; None if nothing was written, as all environments
            began new episodes.

        Raises
        ------
        RuntimeError
            No buffer is attached, or ``reset`` is missing: at the start, or after an episode that
            the environment does not reset by itself.
        ValueError
            A value does not fit its spec, or a discount is not from 0 to 1.
        TypeError
            It is no ``TimeStep``, or a field is missing, unknown or given twice.
            Whatever is raised, buffer and recorder are as they were.
        """
        buffer = self._attached()
        step_type, reward, discount, observation = self._parts(time_step)
        before, first = self._before_step(step_type), step_type == FIRST
        n_first = np.count_nonzero(first)
        if n_first == self.n_envs:
            self._begin(buffer, observation)
            return None
        unset, last = first if n_first else None, step_type == LAST
        act = self._nests["act"].collect(action, self._n_rows, unset)
        rew = self._nests["rew"].collect(reward, self._n_rows, unset)
        discount = self._discount(discount, unset)
        arrived = self._nests["next_obs"].collect(observation, self._n_rows)
        terminated = last & (discount[()] == 0)
        discounts = [discount] if "discount" in self._names else []
        values = [*before, *act, *rew, *discounts, *arrived, terminated, last & ~terminated]
        fields: dict[str, Any] = dict(zip(self._names, values, strict=True))
        if unset is None:
            slot = buffer.add(**fields, **extra)
        else:
            slot = buffer.add_where(~first, **fields, **extra)
            for env in np.flatnonzero(first).tolist():
                buffer.on_episode_end(env)
        self._obs, self._waiting = arrived, last
        return slot

    def restore(self, batch: Mapping[str, Array]) -> dict[str, Any]:
        """Return a batch in the nesting of the specs: ``obs``, ``act``, ``rew`` and ``next_obs``.

        As ``GymnasiumRecorder.restore``: every other entry is as it was.
        """
        trees = {root: nest.tree for root, nest in self._nests.items() if root != "discount"}
        return restored(batch, trees)

    def _no_env(self) -> Flags:
        return np.zeros(() if self._n_rows is None else self._n_rows, np.bool_)[()]

    def _attached(self) -> ReplayBuffer:
        if self._buffer is None:
            raise RuntimeError("no buffer to record into: call attach(buffer) first")
        return self._buffer

    def _begin(self, buffer: ReplayBuffer, observation: object) -> None:
        """Begin a new episode in every environment."""
        arrived = self._nests["obs"].collect(observation, self._n_rows)
        named = dict(zip(self._nests["obs"].names, arrived, strict=True))
        for field in buffer.schema.fields:  # the next step must not find that it cannot be stored
            if field.name in named:
                field.convert(named[field.name], self.n_envs)
        buffer.on_episode_end()
        self._obs, self._waiting = arrived, self._no_env()

    def _before_step(self, step_type: Array) -> list[Array]:
        """Return the observations before this step, if a step may come now."""
        if self._obs is None:
            raise RuntimeError(
                "call reset(time_step) with what env.reset() gave before the first step"
            )
        stuck = self._waiting & (step_type != FIRST)
        if np.count_nonzero(stuck):
            raise RuntimeError(
                f"the episode of environments {np.flatnonzero(stuck).tolist()} has ended, but "
                "no step of type FIRST followed: before the next step call env.reset() and "
                "reset(time_step), or let the environment reset itself"
            )
        return self._obs

    def _parts(self, time_step: Any) -> tuple[Array, Any, Any, Any]:
        """Return step type, reward, discount and observation.

        The types of a single environment are a scalar of NumPy, which is much faster to compare
        than an array of shape ().
        """
        try:
            given = time_step.step_type
            others = (time_step.reward, time_step.discount, time_step.observation)
        except AttributeError as error:
            raise TypeError(
                f"time_step: expected a TimeStep, got {type(time_step).__name__}: {error}"
            ) from error
        types = np.array(given)
        if types.shape != self._waiting.shape:
            raise ValueError(f"step_type: expected shape {self._waiting.shape}, got {types.shape}")
        step_type = types[()]
        if types.dtype.kind not in "iu" or np.count_nonzero((step_type < 0) | (step_type > 2)):
            raise ValueError(f"step_type: expected FIRST (0), MID (1) or LAST (2), got {given!r}")
        return step_type, *others

    def _discount(self, value: object, unset: Flags | None) -> Array:
        """Return the discounts of a step, numbers from 0 to 1."""
        (discount,) = self._nests["discount"].collect(value, self._n_rows, unset)
        numbers = discount[()]
        try:
            n_fits = int(np.count_nonzero((numbers >= 0) & (numbers <= 1)))
        except TypeError:
            n_fits = 0
        if n_fits < self.n_envs:
            raise ValueError(f"field 'discount': expected numbers from 0 to 1, got {value!r}")
        return discount


def _specs_of(env: Any) -> tuple[Any, Any, Any, Any]:
    """Return the specs of observations, actions, rewards and discounts."""
    try:
        if not hasattr(env, "time_step_spec"):
            return env.observation_spec(), env.action_spec(), env.reward_spec(), env.discount_spec()
        # Batched environments of TF-Agents have the default reward_spec, whatever those in them
        # have; time_step_spec is right. Environments of TensorFlow have no discount_spec.
        steps = env.time_step_spec()
        discount = env.discount_spec() if hasattr(env, "discount_spec") else steps.discount
        return env.observation_spec(), env.action_spec(), steps.reward, discount
    except AttributeError as error:
        raise TypeError(
            f"expected a dm_env or TF-Agents environment, got {type(env).__name__}: {error}"
        ) from error


def _batch_size_of(env: Any, given: int | None) -> int | None:
    """Return the length of the leading axis; None for a single environment."""
    own = as_int("batch_size", env.batch_size, 1) if getattr(env, "batched", False) else None
    n_envs = own if given is None else as_int("n_envs", given, 1)
    if own is not None and own != n_envs:
        raise ValueError(f"n_envs: the environment has batch_size={own}, got {given}")
    return n_envs
