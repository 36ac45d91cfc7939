"""``JaxReplay``: replay as pure functions of a state of JAX arrays.

Not here: the arithmetic of rows (``_rows``), and PyTorch (``_torch``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from cpprb_like._arguments.checks import as_int
from cpprb_like._machine.machine_memory import available_nbytes
from cpprb_like.device._plan import Options, Plan
from cpprb_like.device._readings import Reading
from cpprb_like.device._rows import Batch, Rows, State
from cpprb_like.samplers import Prioritized
from cpprb_like.views import Layer

try:
    import jax
    import jax.numpy as jnp
except ImportError as error:
    raise ImportError(f"JaxReplay needs JAX (pip install jax): {error}") from error

from cpprb_like.device._jax_arrays import JaxArrays, JaxRandom

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from cpprb_like.buffers import ReplayBuffer

__all__ = ["JaxReplay", "JaxView"]


class JaxView:
    """A replay read through layers: ``replay.view(*layers)``."""

    _rows: Rows
    _kinds: Any  # shapes and dtypes of a state
    _reading: Reading

    def __init__(self, replay: JaxReplay, layers: tuple[Layer, ...]) -> None:
        self._rows, self._kinds = replay._rows, replay._kinds
        self._reading = Reading.of(replay._rows.xp, replay._rows.plan, layers)

    def sample(
        self,
        state: State,
        key: Any,
        batch_size: int,
        *,
        fields: str | Iterable[str] | None = None,
        beta: Any = None,
    ) -> Batch:
        """Draw rows, as a dict of arrays.

        Parameters
        ----------
        state : dict
            The rows. It is not changed.
        key : key of ``jax.random``
            A key of its own for each draw.
        batch_size, fields
            As for ``DeviceReplay.sample``.
        beta : float or array, optional
            Importance-sampling exponent of this draw, in place of that of ``Prioritized``.

        Returns
        -------
        dict of array
            Each field, shape ``(batch_size, *shape)``, the columns of layers and of ``Prioritized``
            as on the host, and ``indexes``. If no row can be drawn, floats are NaN and indexes -1,
            as a compiled program cannot raise: see ``can_sample``.

        Raises
        ------
        TypeError, ValueError
            An argument has a wrong type or value.
        """
        rows = self._rows
        n = as_int("batch_size", batch_size, 1)
        batch, there = rows.sample(
            self._own(state), self._reading, n, fields, True, beta, JaxRandom(key)
        )
        for name, column in batch.items():
            if jnp.issubdtype(column.dtype, jnp.floating):
                batch[name] = jnp.where(there, column, jnp.asarray(jnp.nan, column.dtype))
        batch["indexes"] = jnp.where(there, batch["indexes"], -1)
        return batch

    def can_sample(self, state: State) -> Any:
        """Whether as many steps are stored as the layers need: a bool array."""
        return self._own(state)["stored"] > self._reading.ahead * self._rows.plan.n_envs

    def _own(self, state: State) -> State:
        """The state, if it is one of this replay."""
        kinds = _kinds(state)
        if kinds != self._kinds:
            raise ValueError(
                f"state: expected that of a replay with the same arguments, {self._kinds}, got "
                f"{kinds}"
            )
        return state

    def __repr__(self) -> str:
        return f"JaxView({', '.join(map(repr, self._reading.layers))})"


class JaxReplay(JaxView):
    """Replay of environments that step together, as pure functions of a state.

    The state is a dict of arrays. All methods with a state have fixed shapes, and work inside
    ``jit``, ``scan`` and ``vmap``. Donate the state to ``jit``, so that rows are written in place.

    Parameters
    ----------
    size, env_dict, n_envs, **options
        As for ``DeviceReplay``, without ``device`` and ``seed``. Dtypes are those of JAX; 64 bits
        need ``jax_enable_x64``.

    Raises
    ------
    TypeError, ValueError
        An argument has a wrong type or value; the message names it.

    Notes
    -----
    Rewards of n-step returns are summed in float32, or in float64 with ``jax_enable_x64``. Handles
    of int32 repeat after the ring was passed ``2**31 / size`` times.

    Examples
    --------
    >>> import jax
    >>> import jax.numpy as jnp
    >>> from cpprb_like.device import JaxReplay
    >>> fields = {"obs": {"shape": 3}, "rew": {"shape": ()}, "done": {"shape": (), "dtype": bool}}
    >>> replay = JaxReplay(8, fields, n_envs=2, next_of="obs")
    >>> step = {"obs": jnp.zeros((2, 3)), "next_obs": jnp.ones((2, 3)), "rew": jnp.ones(2)}
    >>> state = replay.add(replay.init(), step | {"done": jnp.array([False, True])})
    >>> batch = replay.sample(state, jax.random.key(0), 4)
    >>> batch["next_obs"].shape, batch["rew"].tolist()
    ((4, 3), [1.0, 1.0, 1.0, 1.0])
    """

    def __init__(
        self,
        size: float,
        env_dict: Mapping[str, Mapping[str, Any]],
        *,
        n_envs: int,
        **options: Unpack[Options],
    ) -> None:
        plan = Plan(size, env_dict, _dtypes, n_envs=n_envs, **options)
        sampler = plan.sampler
        if isinstance(sampler, Prioritized) and sampler.weights_dtype.itemsize > 4:
            _dtypes(sampler.weights_dtype)  # raises without 64 bits
        self._rows = Rows(JaxArrays(plan.index), plan)
        self._kinds = _kinds(jax.eval_shape(self._rows.init))
        self._reading = Reading.of(self._rows.xp, plan, ())

    def init(self) -> State:
        """The state without rows.

        Raises ``MemoryError``, with the bytes of each field, if the default device lacks memory.
        """
        device = jax.devices()[0]
        stats = device.memory_stats() or {}
        free = stats.get("bytes_limit", available_nbytes()) - stats.get("bytes_in_use", 0)
        self._rows.plan.require(free, device)
        return self._rows.init()

    def add(self, state: State, step: Mapping[str, Any], *, final: Any = True) -> State:
        """The state with a step of all environments, or a block of steps.

        ``step`` has an array of each field, of its dtype, shape ``(n_envs, *shape)`` or ``(T,
        n_envs, *shape)``. ``final`` and errors are those of ``DeviceReplay.add``.
        """
        for name, value in step.items():
            if not hasattr(value, "dtype"):
                raise TypeError(f"field {name!r}: expected an array, got {type(value).__name__}")
        return self._rows.add(self._own(state), *self._rows.block(step, final))

    def view(self, *layers: Layer) -> JaxView:
        """The rows read through ``NStep``, ``Sequences`` and ``FrameStacks``, one of each at most.

        Raises ``TypeError`` or ``ValueError`` as ``DeviceReplay.view``.
        """
        return JaxView(self, layers)

    def update(self, state: State, indexes: Any, /, **fields: Any) -> State:
        """The state with fields of rows replaced: see ``DeviceReplay.update``."""
        values = {name: jnp.asarray(value) for name, value in fields.items()}
        return self._rows.update(self._own(state), jnp.asarray(indexes), values)

    def update_priorities(self, state: State, indexes: Any, priorities: Any) -> State:
        """The state with the priorities of rows set: see ``DeviceReplay.update_priorities``.

        Priorities that are negative, NaN, or too large for the sums are skipped.
        """
        indexes, priorities = jnp.asarray(indexes), jnp.asarray(priorities)
        return self._rows.update_priorities(self._own(state), indexes, priorities)[0]

    def on_episode_end(self, state: State) -> State:
        """The state with the open episodes of all environments ended as truncated."""
        return self._rows.end_episodes(self._own(state))

    def clear(self, state: State) -> State:
        """The state without rows."""
        return self._rows.clear(self._own(state))

    def stats(self, state: State) -> dict[str, Any]:
        """Counts of a state, as of ``DeviceReplay.stats``."""
        return self._rows.stats(self._own(state))

    def to_host(self, state: State, **options: Any) -> ReplayBuffer:
        """A ``ReplayBuffer`` with the same rows: see ``DeviceReplay.to_host``."""
        from cpprb_like.device._host import to_host  # noqa: PLC0415 (on demand)

        return to_host(self._rows, self._own(state), options)

    @classmethod
    def from_host(
        cls, buffer: ReplayBuffer, *, finals: int | None = None
    ) -> tuple[JaxReplay, State]:
        """A replay with the fields and sampler of a buffer, and the state with its rows.

        Errors are those of ``DeviceReplay.from_host``.
        """
        from cpprb_like.device._host import blocks, declaration, with_priorities  # noqa: PLC0415

        size, fields, given = declaration(buffer, finals)
        replay = cls(size, fields, **given)
        state = replay.init()
        for block, flags in blocks(replay._rows, buffer):
            state = replay._rows.add(state, block, flags)
        return replay, with_priorities(replay._rows, state, buffer)

    @property
    def fields(self) -> tuple[str, ...]:
        """The names of the fields, in declared order; next values without a declaration last."""
        return self._rows.plan.names

    def __repr__(self) -> str:
        return f"JaxReplay(size={self._rows.plan.size}, n_envs={self._rows.plan.n_envs})"


def _kinds(state: Any) -> Any:
    """The shape and dtype of each array that all states of a replay have."""
    kinds = jax.tree.map(lambda one: (one.shape, str(one.dtype)), state)
    if isinstance(kinds, dict):
        kinds.pop("absent", None)
    return kinds


def _dtypes(wanted: Any) -> tuple[Any, np.dtype[Any]]:
    """A dtype of JAX, and one of NumPy of the same kind."""
    dtype = jnp.dtype(wanted)
    if jax.dtypes.canonicalize_dtype(dtype) != dtype:
        raise ValueError(f"{dtype} needs jax_enable_x64")
    if dtype.kind in "biufc":
        return dtype, dtype
    if not jnp.issubdtype(dtype, jnp.floating):
        raise TypeError(f"no numbers: {dtype}")
    return dtype, np.dtype(np.float16 if dtype.itemsize > 1 else np.float32)
