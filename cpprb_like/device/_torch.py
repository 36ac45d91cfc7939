"""``DeviceReplay``: replay in tensors of PyTorch, on the device of the simulator.

Not here: the arithmetic of rows (``_rows``), and JAX (``_jax``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from cpprb_like._arguments.checks import as_int
from cpprb_like._machine.machine_memory import available_nbytes
from cpprb_like.device._plan import Options, Plan
from cpprb_like.device._readings import Reading
from cpprb_like.device._rows import NO_ROWS, Batch, Rows
from cpprb_like.errors import NotEnoughDataError
from cpprb_like.views import Layer

try:
    import torch
except ImportError as error:
    raise ImportError(f"DeviceReplay needs PyTorch (pip install torch): {error}") from error

from cpprb_like.device._torch_arrays import TorchArrays, TorchRandom

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from cpprb_like.buffers import ReplayBuffer

__all__ = ["DeviceReplay", "DeviceView"]


class DeviceView:
    """A replay on a device, read through layers: ``replay.view(*layers)``. It holds no rows."""

    def __init__(self, replay: DeviceReplay, layers: tuple[Layer, ...]) -> None:
        self._replay = replay
        self._reading = Reading.of(replay._rows.xp, replay._rows.plan, layers)

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def sample(
        self,
        batch_size: int,
        *,
        fields: str | Iterable[str] | None = None,
        indexes: bool = False,
        beta: Any = None,
    ) -> Batch:
        """Draw rows, as a dict of new tensors on the device.

        Parameters
        ----------
        batch_size : int
            Number of rows, at least 1.
        fields : str or iterable of str, optional
            Fields of the batch; by default all.
        indexes : bool
            Add ``indexes``, int64 of shape ``(batch_size,)``: handles of rows for ``update`` and
            ``update_priorities``. Prioritized draws always have them.
        beta : float or tensor of one float, optional
            Importance-sampling exponent of this draw, in place of that of ``Prioritized``.

        Returns
        -------
        dict of tensor
            Each field, shape ``(batch_size, *shape)``, and the columns of layers and of
            ``Prioritized`` as on the host. Small fields are columns of one tensor.

        Raises
        ------
        TypeError, ValueError
            An argument has a wrong type or value.
        NotEnoughDataError
            Fewer steps were added than the layers need.
        RuntimeError
            No row can be drawn, though there are steps, or so few that none was among those that
            were tried, an eighth more than ``batch_size`` and 64. On CUDA this is an assertion of
            the device, which is reported later.

        Notes
        -----
        Cost: an ``index_select`` of each large field, and of small ones of a dtype together; and
        some 30 operations on ``batch_size`` numbers.
        """
        replay, reading = self._replay, self._reading
        if replay._added <= reading.ahead:
            raise NotEnoughDataError(
                f"sample: expected at least {1 + reading.ahead} steps of all environments, got "
                f"{replay._added}"
            )
        rows = replay._rows
        n = as_int("batch_size", batch_size, 1)
        batch, there = rows.sample(replay._state, reading, n, fields, indexes, beta, replay._random)
        torch._assert_async(there, NO_ROWS)
        return batch

    def __repr__(self) -> str:
        return f"DeviceView({self._replay!r}, {', '.join(map(repr, self._reading.layers))})"


class DeviceReplay(DeviceView):
    """Replay of environments that step together, in tensors where the simulator is.

    Rows lie in rings of tensors of whole steps. ``add``, ``sample``, ``update`` and
    ``update_priorities`` never wait for the device, and their shapes depend on no value. So they
    can be captured in a CUDA graph, and compiled by ``torch.compile(fullgraph=True)``.

    Parameters
    ----------
    size : int
        Capacity in rows, a multiple of ``n_envs``.
    env_dict : dict
        ``{name: {"shape": int or tuple, "dtype": torch.dtype or anything NumPy takes}}``, as for
        ``ReplayBuffer``. Fields of fixed shape only.
    n_envs : int
        Environments that step together. Each call of ``add`` has a step of all of them.
    device : str or torch.device
        Device of the rows. Default ``"cpu"``.
    seed : int
        Seed of the draws, which are the same on every device. Default 0.
    next_of : str or iterable of str, optional
        Fields with a next value, the field ``next_<name>``. It is the value of the next row, and
        takes memory of its own only where it differs, as at ends of episodes.
    sampler : Uniform or Prioritized, optional
        Sampler of the rows. Default ``Uniform()``. The sums of ``Prioritized`` have its
        ``weights_dtype``: float32 by default, and exact to rounding in float64. ``beta`` is a
        number. Rows whose next values are lost or unknown get the weight 0.
    finals : int, optional
        Room for next values that differ from the next row, a multiple of ``n_envs``; others are
        rounded down. All environments have the same room, by default enough for episodes of 16
        steps and more. Where a newer one takes the place of an old one, the row of the old one is
        not drawn any more by what reads next values, and ``stats`` counts it.
    default_dtype : dtype, optional
        Dtype of fields without one. Default float32.
    terminated, truncated : str or False, optional
        Names of the end fields, as for ``ReplayBuffer``.

    Raises
    ------
    TypeError, ValueError
        An argument has a wrong type or value; the message names it.
    MemoryError
        The device lacks free memory; the message lists the bytes of each field. Nothing was
        allocated.

    Notes
    -----
    A row can be drawn through layers when the steps that they read follow it, also where its
    episode ends earlier. So a row waits for ``n - 1`` more steps with ``NStep(n)``, and for
    ``T - 1`` with ``Sequences(T)``. With ``FrameStacks`` the oldest rows of a full ring, as many as
    a stack has frames before its newest, are not drawn.

    Not here: environments without a step, deletions, values of any length, several processes.
    ``to_host`` gives a ``ReplayBuffer``, which has them.

    Examples
    --------
    >>> import torch
    >>> from cpprb_like.device import DeviceReplay
    >>> fields = {"obs": {"shape": 3}, "rew": {"shape": ()}, "done": {"shape": (), "dtype": bool}}
    >>> replay = DeviceReplay(8, fields, n_envs=2, next_of="obs")
    >>> step = {"rew": torch.ones(2), "done": torch.tensor([False, True])}
    >>> replay.add(obs=torch.zeros(2, 3), next_obs=torch.ones(2, 3), **step)
    >>> batch = replay.sample(4)
    >>> batch["next_obs"].shape, batch["rew"].tolist()
    (torch.Size([4, 3]), [1.0, 1.0, 1.0, 1.0])
    """

    def __init__(
        self,
        size: float,
        env_dict: Mapping[str, Mapping[str, Any]],
        *,
        n_envs: int,
        device: str | torch.device = "cpu",
        seed: int = 0,
        **options: Unpack[Options],
    ) -> None:
        plan = Plan(size, env_dict, _dtypes, n_envs=n_envs, **options)
        self.device = torch.empty(0, device=device).device  # "cuda" with its number
        plan.require(_free_nbytes(self.device), self.device)
        self._rows = Rows(TorchArrays(self.device, plan.index), plan)
        self._state = self._rows.init()
        start = TorchRandom.start(as_int("seed", seed))
        self._state["random"] = torch.tensor(start, device=self.device)
        self._random = TorchRandom(self._state["random"])
        tensors = [one for one in self.state_dict().values() if isinstance(one, torch.Tensor)]
        self._memory = {one.untyped_storage().data_ptr() for one in tensors}
        self._added = 0  # steps since the last clear, up to a full ring
        self._reading = Reading.of(self._rows.xp, plan, ())

    @property
    def _replay(self) -> DeviceReplay:  # type: ignore[override]  # no attribute: that is a cycle
        return self

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def add(self, /, *, final: Any = True, **step: Any) -> None:
        """Add a step of all environments, or a block of steps.

        Parameters
        ----------
        final : bool, or tensor of bool of shape (n_envs,) or (T, n_envs)
            Whether next values at ends of episodes are those of the episode that ended. If not,
            they are those of the next episode, as Isaac Lab gives by default. Rows that were
            truncated without them are not drawn by what bootstraps: batches with next values, and
            ``NStep``.
        **step : tensor
            Each field, of its dtype, shape ``(n_envs, *shape)`` or ``(T, n_envs, *shape)``, on the
            device of the replay.

        Raises
        ------
        TypeError, ValueError
            A field is missing or unknown, or its value has another device, dtype or shape. Nothing
            is changed.

        Notes
        -----
        Cost: a copy of the values, a comparison of observations with the next ones of the step
        before, and some 40 operations on ``n_envs`` numbers.
        """
        for name, value in step.items():
            self._expect_tensor(f"field {name!r}", value)
        if not isinstance(final, bool):
            self._expect_tensor("final", final)
        block, flags = self._rows.block(step, final)
        if not torch.compiler.is_compiling():
            for name, values in block.items():  # rows that are overwritten are copied before
                if values.untyped_storage().data_ptr() in self._memory:
                    block[name] = values.clone()
        self._add_flagged(block, flags)

    def _add_flagged(self, block: Batch, flags: Any) -> None:
        self._rows.add(self._state, block, flags)
        most = self._rows.plan.steps
        # A program that is compiled or captured is not counted: the device then tells if rows lack.
        is_counted = not (torch.compiler.is_compiling() or _is_captured(self.device))
        self._added = (
            min(self._added + len(flags) // self._rows.plan.n_envs, most) if is_counted else most
        )

    def _expect_tensor(self, what: str, value: Any) -> None:
        if not isinstance(value, torch.Tensor):
            raise TypeError(f"{what}: expected a tensor, got {type(value).__name__}")
        if value.device != self.device:
            raise ValueError(f"{what}: expected a tensor on {self.device}, got {value.device}")

    def view(self, *layers: Layer) -> DeviceView:
        """The rows read through ``NStep``, ``Sequences`` and ``FrameStacks``, one of each at most.

        The layers are those of ``cpprb_like.views``, with the same options and columns.

        Raises ``TypeError`` or ``ValueError`` for another layer, one that does not fit the fields,
        or windows longer than the ring.

        Examples
        --------
        >>> import torch
        >>> from cpprb_like.device import DeviceReplay
        >>> from cpprb_like.views import NStep
        >>> fields = {"rew": {"shape": ()}, "done": {"shape": (), "dtype": bool}}
        >>> replay = DeviceReplay(8, fields, n_envs=1)
        >>> replay.add(rew=torch.ones(3, 1), done=torch.zeros(3, 1, dtype=torch.bool))
        >>> replay.view(NStep(2, gamma=0.5)).sample(2)["rew"].tolist()
        [1.5, 1.5]
        """
        return DeviceView(self, layers)

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def update(self, indexes: Any, /, **fields: Any) -> None:
        """Replace fields of rows: ``indexes`` of a batch, and values of shape ``(n, *shape)``.

        Rows that were overwritten are skipped. If a row comes twice, its last value counts.

        Raises ``TypeError`` or ``ValueError``, and changes nothing, for other dtypes, shapes or
        devices, for end fields, and for fields of ``next_of``, which rows share.
        """
        self._expect_indexes(indexes)
        for name, value in fields.items():
            self._expect_tensor(f"field {name!r}", value)
        self._rows.update(self._state, indexes, fields)

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def update_priorities(self, indexes: Any, priorities: Any) -> None:
        """Set the priorities of rows, such as absolute TD errors.

        Parameters
        ----------
        indexes : tensor of int64, shape (n,)
            ``indexes`` of a batch. Rows that were overwritten are skipped. If a row comes twice,
            its last priority counts.
        priorities : tensor of floats, shape (n,)
            Finite numbers of at least 0.

        Raises
        ------
        TypeError, ValueError
            The sampler is not ``Prioritized``, or a tensor has another dtype, shape or device.
        RuntimeError
            A priority is negative, NaN, or too large for the sums; others are set. On CUDA as for
            ``sample``.
        """
        self._expect_indexes(indexes)
        self._expect_tensor("priorities", priorities)
        if len(indexes):
            _, are_right = self._rows.update_priorities(self._state, indexes, priorities)
            expected = "priorities: expected finite numbers of at least 0"
            torch._assert_async(are_right, expected)

    def _expect_indexes(self, indexes: Any) -> None:
        self._expect_tensor("indexes", indexes)
        if indexes.dtype != torch.int64 or indexes.ndim != 1:
            raise ValueError(
                f"indexes: expected int64 of shape (n,), got {indexes.dtype} of shape "
                f"{tuple(indexes.shape)}"
            )

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def on_episode_end(self) -> None:
        """End the open episodes of all environments as truncated, as before a reset amid them."""
        self._rows.end_episodes(self._state)

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def clear(self) -> None:
        """Forget all rows. Memory stays allocated, and the generator keeps its state."""
        self._rows.clear(self._state)
        self._added = 0

    @property
    def fields(self) -> tuple[str, ...]:
        """The names of the fields, in declared order; next values without a declaration last."""
        return self._rows.plan.names

    def __len__(self) -> int:
        """Number of rows. This waits for the device."""
        return int(self.stats()["stored"])

    def stats(self) -> dict[str, float]:
        """Counts of the replay. This waits for the device.

        ``size``, rows at most; ``stored``, rows now; ``nbytes``, of all tensors. With ``next_of``
        also ``finals``, room for next values beside the ring, and ``lost``, stored rows
        whose next values were overwritten or never known.
        """
        return {name: int(count) for name, count in self._rows.stats(self._state).items()}

    def state_dict(self) -> dict[str, Any]:
        """Rows, priorities and generator as tensors by name, which share memory with the replay."""
        state = {name: one for name, one in self._state.items() if name != "values"}
        state |= {f"values.{name}": one for name, one in self._state["values"].items()}
        return {**state, "declaration": self._rows.plan.declaration}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over the state of a replay with the same arguments.

        Raises ``ValueError``, and changes nothing, if the arguments differ.
        """
        own = self.state_dict()
        own.pop("absent", None)
        declared = state.get("declaration")
        if declared != own.pop("declaration") or not own.keys() < state.keys():
            raise ValueError(
                f"state: expected that of a replay with the same arguments, "
                f"{self._rows.plan.declaration}; got {declared}"
            )
        for name, one in own.items():
            one.copy_(state[name])
        if "absent" in state:
            self._state["absent"] = state["absent"].to(self.device, copy=True)
        self._added = min(int(state["stored"]), self._rows.plan.size) // self._rows.plan.n_envs

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def to_host(self, **options: Any) -> ReplayBuffer:
        """A ``ReplayBuffer`` with the same rows, for ``save``, ``report``, ``export`` and the like.

        Rows whose next values are lost or unknown are absent, and the row before such a row ends
        its episode as truncated; ``state_dict`` has all rows. Priorities are those of the rows to
        rounding.

        ``options`` are those of ``ReplayBuffer``: ``seed``, ``mmap_prefix``, ``mmap_mode``. Raises
        ``ImportError`` if a dtype that NumPy lacks, such as bfloat16, needs ml_dtypes.

        Cost: one copy in pieces of some 16 MB; step by step where a row is absent.
        """
        from cpprb_like.device._host import to_host  # noqa: PLC0415 (on demand)

        return to_host(self._rows, self._state, options)

    @classmethod
    @torch.no_grad()  # type: ignore[untyped-decorator]
    def from_host(
        cls,
        buffer: ReplayBuffer,
        *,
        device: str | torch.device = "cpu",
        seed: int = 0,
        finals: int | None = None,
    ) -> DeviceReplay:
        """A replay with the rows of a ``ReplayBuffer``, its fields and its sampler.

        Episodes end where they end in the buffer. Absent rows are left out, and each environment
        has its own rows, the newest ones side by side. Where an environment has fewer rows than
        others, its first steps are absent: they take memory, and are not drawn or counted. By
        default ``finals`` has also room for an end in each row that has one. Raises ``ValueError``
        for fields that have no fixed shape or no dtype of PyTorch, for a capacity that is no
        multiple of ``n_envs``, and if ``finals`` has too little room; ``RuntimeError`` if rows are
        added meanwhile.
        """
        from cpprb_like.device._host import blocks, declaration, with_priorities  # noqa: PLC0415

        size, fields, given = declaration(buffer, finals)
        replay = cls(size, fields, device=device, seed=seed, **given)
        for block, flags in blocks(replay._rows, buffer):
            replay._add_flagged(block, flags)
        replay._state = with_priorities(replay._rows, replay._state, buffer)
        return replay

    def __repr__(self) -> str:
        plan = self._rows.plan
        return f"DeviceReplay(size={plan.size}, n_envs={plan.n_envs}, device='{self.device}')"


def _dtypes(wanted: Any) -> tuple[Any, np.dtype[Any]]:
    """A dtype of PyTorch, and one of NumPy of the same kind."""
    dtype = wanted
    if not isinstance(wanted, torch.dtype):
        dtype = getattr(torch, np.dtype(wanted).name)
    value = torch.empty(1, dtype=dtype)
    try:
        value.index_copy_(0, torch.zeros(1, dtype=torch.int64), value.clone())
    except RuntimeError as error:  # floats of 8 bits, wide unsigned integers
        raise TypeError(f"PyTorch cannot write single rows of {dtype}") from error
    try:
        return dtype, torch.empty(0, dtype=dtype).numpy().dtype
    except TypeError:  # NumPy has no such numbers: bfloat16
        return dtype, np.dtype(np.float16)


def _is_captured(device: torch.device) -> bool:
    """Whether calls are captured in a CUDA graph now."""
    return device.type == "cuda" and bool(torch.cuda.is_current_stream_capturing())


def _free_nbytes(device: torch.device) -> int:
    """Bytes that can be allocated on a device."""
    if device.type == "cuda":
        kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0] + kept)
    return available_nbytes()
