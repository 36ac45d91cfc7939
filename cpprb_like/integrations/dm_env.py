"""``DmEnvRecorder`` adds the steps of a dm_env or TF-Agents environment to a buffer.

Environments may be single or batched, with any nests of specs; ``SpecNest`` makes fields of nests.
A spec is any object with a shape and a dtype. Only attributes of environments, specs and time steps
are read: neither dm_env nor TF-Agents is imported. Not here: nests of values (``_nests``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import numpy as np

from cpprb_like._arguments.arrays import Array, Flags
from cpprb_like._arguments.checks import as_int
from cpprb_like.integrations._nests import Branch, Leaf, Path, Tree, field_name, names_of
from cpprb_like.integrations._recorder import FloatType, Recorder
from cpprb_like.typing import FieldSpec

__all__ = ["DmEnvRecorder", "SpecNest", "env_dict_from_spec"]

FIRST, MID, LAST = range(3)  # types of steps, in dm_env and in TF-Agents


class SpecNest:
    """A nest of specs, and the fields that hold its values.

    Parameters
    ----------
    spec
        A spec, which is any object with a ``shape`` and a ``dtype``, or a dict, list, tuple or
        named tuple of nests. The constructor reads ``spec`` and does not store it.
    name : str
        First part of the names of the fields.

    Attributes
    ----------
    env_dict : dict
        Fields for ``ReplayBuffer``, with the shapes and dtypes of the specs. Each access returns a
        new dict, which may be changed.
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
    The name of a field is its path of keys, positions and names of tuple fields, such as
    ``obs.camera`` or ``obs.joints.0``. So names do not depend on the order of a dict.

    A ``StringArray`` of shape () and type ``str`` is a text of any length. Its buffer needs
    ``room``, in bytes of UTF-8.

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
        self._root, self._tree = name, _tree_of(spec, name)
        self.names = names_of(self._tree, name, "specs")

    @property
    def env_dict(self) -> dict[str, FieldSpec]:
        """Fields for ``ReplayBuffer``, with the specs' shapes and dtypes, as a new dict."""
        return {
            name: leaf.declaration(partial(field_name, self._root), leaf.dtype)
            for name, leaf in zip(self.names, self._tree.leaves(), strict=True)
        }

    def flatten(self, value: object, *, n_envs: int | None = None) -> dict[str, Array]:
        """Return the parts of a value by field, as new arrays.

        Parameters
        ----------
        value
            Value with the nesting of the specs. Lists and tuples count as equal.
        n_envs : int, optional
            Length of the leading axis of each array, with one entry for each environment.

        Raises
        ------
        ValueError
            The value has another nesting or other shapes. The message names the field.
        """
        return dict(zip(self.names, self._tree.collect(value, self._root, n_envs), strict=True))

    def restore(self, batch: Mapping[str, Array]) -> Any:
        """Return the columns of a batch, nested like the specs.

        The arrays of the batch are not copied. The batch may have further entries. Raises
        ``KeyError`` if the batch lacks one of the fields.
        """
        return self._tree.restore(batch, self._root)


def _tree_of(spec: Any, root: str, path: Path = ()) -> Tree:
    """The tree of a nest of specs."""
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
        # A dtype of TensorFlow has NumPy's dtype as an attribute.
        dtype = np.dtype(getattr(spec.dtype, "as_numpy_dtype", spec.dtype))
        shape = tuple(length.__index__() for length in spec.shape)
        if min(shape, default=0) < 0:
            raise ValueError("a length is negative")
    except (TypeError, ValueError, AttributeError) as error:
        raise ValueError(
            f"spec of {name!r}: expected a fixed shape and a dtype of NumPy, got {spec!r}: {error}"
        ) from None
    if shape == () and getattr(spec, "string_type", None) is str:  # StringArray: dtype is object
        dtype = np.dtype(str)
    return Leaf(path, shape, dtype)


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


class DmEnvRecorder(Recorder):
    """Adds the transitions of a dm_env or TF-Agents environment, single or batched, to a buffer.

    The recorder remembers the observation before each step. So ``add`` takes the action and the
    ``TimeStep`` that ``env.step`` returned. A step of type LAST terminates its episode if its
    discount is 0, and truncates it otherwise. From LAST to FIRST an environment only resets. The
    recorder never stores this step, so no recorded transition crosses a reset.

    Parameters
    ----------
    env : dm_env.Environment, tf_agents PyEnvironment or TFEnvironment
        Environment to record. The recorder reads only its specs and its batch size.
    n_envs : int, optional
        Number of environments, which is the length of the leading axis of every array. Pass it for
        a batched environment without the attributes ``batched`` and ``batch_size`` of TF-Agents.
    float_type : dtype or "spec", optional
        Dtype of all floating-point values in ``env_dict``. By default each field has the dtype of
        its spec, as TF-Agents' policies require. Specs of the DeepMind Control Suite are float64,
        which PyTorch refuses to mix with float32 networks. Pass ``float_type=np.float32`` then.
        ``add`` refuses a number that is too large for the dtype.

    Attributes
    ----------
    env_dict : dict
        Fields for ``ReplayBuffer``: ``obs``, ``act``, ``rew``, ``discount`` and ``next_obs`` with
        the shapes and dtypes of their specs, and ``terminated`` and ``truncated`` (bool).
        ``float_type`` overrides floating-point dtypes. Each part of a nested spec is a separate
        field, such as ``obs.position`` or ``act.0``: see ``SpecNest``. Each access returns a new
        dict.
    buffer : ReplayBuffer or None
        Attached buffer; None before ``attach``.
    n_envs : int
        Number of environments, 1 for a single environment.

    Raises
    ------
    TypeError
        ``env`` has no specs, one of them is neither a spec nor a nest, or ``float_type`` is not a
        dtype.
    ValueError
        ``float_type`` is not a floating-point dtype, two parts of a spec would share a name, the
        discount is not a single number, or ``n_envs`` differs from the environment's number.

    Notes
    -----
    ``discount`` is the discount that the environment returns for each step, 0 after a termination.
    So the bootstrapped target is ``rew + gamma * discount * V(next_obs)``, also at episode ends.

    In a batched environment some environments may reset while others step. The rows of environments
    that reset are absent: each takes a slot, but is never drawn. A call in which all environments
    reset adds nothing.

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

    _nest, _keeps_floats, _restored = "specs", "spec", ("obs", "act", "rew", "next_obs")
    _optional = ("discount",)
    _begin_hint = "call reset(time_step) with what env.reset() gave before the first step"
    _reset_hint = (
        ", but no step of type FIRST followed: before the next step call env.reset() and "
        "reset(time_step), or let the environment reset itself"
    )

    def __init__(
        self, env: Any, *, n_envs: int | None = None, float_type: FloatType = "spec"
    ) -> None:
        observation, action, reward, discount = _specs_of(env)
        specs = {"obs": observation, "act": action, "rew": reward, "discount": discount}
        specs["next_obs"] = observation
        trees = {root: _tree_of(spec, root) for root, spec in specs.items()}
        self._set_up(trees, _batch_size_of(env, n_envs), float_type, "NEXT_STEP")
        shapes = [(leaf.path, leaf.shape) for leaf in trees["discount"].leaves()]
        if shapes != [((), ())]:
            raise ValueError(
                f"discount_spec: expected a single number, whose 0 ends the task, got {discount!r}"
            )

    def reset(self, time_step: Any) -> None:
        """End open episodes and begin new ones, after each ``env.reset``.

        An environment that resets in ``step`` after an end needs this call only for its first
        ``TimeStep``.

        Parameters
        ----------
        time_step : TimeStep
            Result of ``env.reset``, of type FIRST for all environments.

        Raises
        ------
        RuntimeError
            No buffer is attached.
        TypeError, ValueError
            ``time_step`` is not a ``TimeStep`` or not of type FIRST, or the observation does not
            fit the specs. Any of these errors leaves buffer and recorder unchanged.
        """
        self._attached()
        step_type, _, _, observation = self._parts(time_step)
        if np.any(step_type != FIRST):
            raise ValueError(
                f"reset: expected a TimeStep of type FIRST, as env.reset() gives, got step_type "
                f"{time_step.step_type!r}"
            )
        self._begin(self._collect("obs", observation), ~self._steps.none)

    def add(self, action: object, time_step: Any, /, **extra: object) -> int | None:
        """Record one step: ``recorder.add(action, env.step(action))``.

        Parameters
        ----------
        action
            Action that the program passed to ``env.step``.
        time_step : TimeStep
            Result of ``env.step``. Where its type is FIRST a new episode begins, and action, reward
            and discount are ignored. An episode that was still open ends as truncated.
        **extra
            Values for further fields of the buffer. A batched environment needs one value of each
            field for each of its environments.

        Returns
        -------
        int or None
            Result of ``add`` of the buffer. None if all environments began new episodes, so that
            nothing was written.

        Raises
        ------
        RuntimeError, ValueError, TypeError
            As for ``GymnasiumRecorder.add``. Also if ``time_step`` is not a ``TimeStep``, or if a
            discount is outside of [0, 1].
        """
        buffer, steps = self._attached(), self._steps
        step_type, reward, discount, observation = self._parts(time_step)
        first, last = step_type == FIRST, step_type == LAST
        before = self._before_step(steps.waiting & ~first)
        n_first = np.count_nonzero(first)  # faster than np.any for a scalar
        if n_first == self.n_envs:
            self._begin(self._collect("obs", observation), first)
            return None
        unset = first if n_first else None
        discounts = self._discounts(discount, unset)
        arrived = self._collect("next_obs", observation)
        terminated = last & (discounts[()] == 0)
        values = [*before, *self._collect("act", action, unset)]
        values += [*self._collect("rew", reward, unset), discounts]
        slot = self._store([*values, *arrived, terminated, last & ~terminated], extra, unset)
        if n_first:
            for env in np.flatnonzero(first).tolist():
                buffer.on_episode_end(env)
        steps.obs, steps.waiting = arrived, last
        return slot

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
        shape = self._steps.waiting.shape
        if types.shape != shape:
            raise ValueError(f"step_type: expected shape {shape}, got {types.shape}")
        step_type = types[()]
        if types.dtype.kind not in "iu" or np.count_nonzero((step_type < 0) | (step_type > 2)):
            raise ValueError(f"step_type: expected FIRST (0), MID (1) or LAST (2), got {given!r}")
        return step_type, *others

    def _discounts(self, value: object, unset: Flags | None) -> Array:
        """The discounts of a step, numbers from 0 to 1."""
        (discounts,) = self._collect("discount", value, unset)
        numbers = discounts[()]
        try:
            n_fits = int(np.count_nonzero((numbers >= 0) & (numbers <= 1)))
        except TypeError:
            n_fits = 0
        if n_fits < self.n_envs:
            raise ValueError(f"field 'discount': expected numbers from 0 to 1, got {value!r}")
        return discounts


def _specs_of(env: Any) -> tuple[Any, Any, Any, Any]:
    """Return the specs of observations, actions, rewards and discounts."""
    try:
        if not hasattr(env, "time_step_spec"):
            return env.observation_spec(), env.action_spec(), env.reward_spec(), env.discount_spec()
        # reward_spec of TF-Agents' batched environments ignores the environments inside;
        # time_step_spec is right. Environments of TensorFlow have no discount_spec.
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
