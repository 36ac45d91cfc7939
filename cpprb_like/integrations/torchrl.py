"""``TensorDictReplayBuffer``: a replay buffer for TorchRL, tensordicts in and tensordicts out.

The class has the methods that TorchRL's collectors, losses and training loops call. A
``ReplayBuffer`` stores its rows. Not here: TorchRL's storages, samplers and writers, which would
gather a batch field by field in Python; and its transforms, which are called unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

import cpprb_like.buffers as buffers
from cpprb_like._arguments.arrays import Array
from cpprb_like._arguments.checks import as_int
from cpprb_like.integrations._libraries import Resets, missing, refuse_bad
from cpprb_like.samplers import PrioritySampler, Sampler
from cpprb_like.typing import FieldSpec

try:
    import torch
    from tensordict import TensorDict, TensorDictBase, is_non_tensor, is_tensor_collection
except ImportError as error:
    raise missing(__name__, "TorchRL's tensordict", "torchrl", error) from error

__all__ = ["TensorDictReplayBuffer"]

Call = Callable[[Any], Any]
Path = tuple[str, ...]
NEXT = "next"
FLAGS = ("done", "terminated", "truncated")  # stored for both steps, as they may end episodes
ENDS = ("next_terminated", "next_truncated")
TRAJECTORY = "collector.traj_ids"
WEIGHTS, INDEXES, PRIORITY = "priority_weight", "index", "td_error"
STEPS, ORIGINAL_REWARD = "steps_to_next_obs", "original_reward"
# Entries that n-step batches add, and fields for them: numbers of steps, and a copy of rewards.
OF_NSTEP = frozenset(
    {"gamma", "discount", "nonterminal", STEPS, f"next_{STEPS}", f"next_{ORIGINAL_REWARD}"}
)
OF_PRIORITIES = frozenset({INDEXES, WEIGHTS, "indexes", "weights"})


class TensorDictReplayBuffer:
    """A replay buffer with the calls of TorchRL's ``TensorDictReplayBuffer``.

    Parameters
    ----------
    size : int
        Capacity in steps.
    batch_size : int, optional
        Number of steps in a batch if ``sample()`` is called without ``batch_size``.
    n_envs : int
        Number of environments that step together, by default 1. Above 1, ``extend`` takes
        tensordicts of shape ``(n_envs, T)``, as collectors return them. Otherwise the shape is
        ``(T,)``.
    sampler : Sampler, optional
        Sampler of the rows, by default ``Uniform()``. With a ``PrioritySampler``, drawn tensordicts
        have ``"index"`` and ``"priority_weight"``. ``update_tensordict_priority`` takes such a
        tensordict.
    n_steps : int
        Number of steps of an n-step return, by default 1. A return has fewer steps where the
        episode ends. Above 1, batches have the entries of TorchRL's ``MultiStepTransform``: see the
        notes.
    gamma : float
        Discount factor of the n-step returns. It must equal the discount factor of the loss
        module's value estimator.
    compress : bool
        Store a value of ``"next"`` only where it differs from the value of the following step.
    priority_key : str
        Entry that ``update_tensordict_priority`` reads.
    device : torch.device or str
        Device of the batches.
    seed : int, optional
        Seed of the draws. By default NumPy's global state gives a seed.

    Attributes
    ----------
    buffer : cpprb_like.ReplayBuffer or None
        Buffer of the rows. It is None until the first ``extend``, whose data determine the fields.
        The entry ``("a", "b")`` is the field ``a.b``, and ``("next", "a", "b")`` is ``next_a.b``.

    Raises
    ------
    TypeError, ValueError
        An option has a wrong type or value.

    Notes
    -----
    In a loop over a collector, pass the data of the collector to ``extend``. A ``Collector`` with
    ``replay_buffer=`` calls ``extend`` itself, after ``start`` in a separate thread. The rows are
    in the memory of one process. If collectors run in several processes, the learner passes their
    data to ``extend``.

    Episodes end by ``("next", "terminated")`` and ``("next", "truncated")``. If one of the two is
    missing, it follows from ``("next", "done")``. If both are missing, ``("next", "done")`` is a
    termination. Episodes also end, as truncated, where an environment was reset without such a
    mark. The buffer finds such a reset where ``("collector", "traj_ids")`` changes. It also finds
    one where the first observation of a call is not the next observation of the call before. n-step
    returns do not cross a reset.

    With ``n_steps``, ``("next", "reward")`` is the n-step return. ``("next", "original_reward")``
    is the reward of the first step. All other values of ``"next"`` come from the last step.
    ``"steps_to_next_obs"`` is the number m of steps, int64, of the shape of the rewards. TorchRL's
    losses read m and multiply the value of the next observation by ``gamma ** m``. ``"gamma"`` is
    this factor, or 0 where the episode was terminated. ``"nonterminal"`` is true where m is above
    1, of shape ``(n,)``, as in TorchRL.

    There is one difference from ``MultiStepTransform``. The transform keeps the flags of the first
    step. So the targets of steps shortly before a termination include the value of the final
    observation. Here the flags come from the last step, and such targets are the return alone.

    Examples
    --------
    >>> import torch
    >>> from tensordict import TensorDict
    >>> from cpprb_like.integrations.torchrl import TensorDictReplayBuffer
    >>> rb = TensorDictReplayBuffer(1000, batch_size=32, seed=0)
    >>> obs = torch.arange(10.0).reshape(10, 1)
    >>> steps = {"observation": obs, "next": {"observation": obs + 1}}
    >>> _ = rb.extend(TensorDict(steps, [10]))
    >>> batch = rb.sample()
    >>> bool((batch["next", "observation"] == batch["observation"] + 1).all())
    True
    """

    def __init__(
        self,
        size: int,
        *,
        batch_size: int | None = None,
        n_envs: int = 1,
        sampler: Sampler | None = None,
        n_steps: int = 1,
        gamma: float = 0.99,
        compress: bool = False,
        priority_key: str = PRIORITY,
        device: torch.device | str = "cpu",
        seed: int | None = None,
    ) -> None:
        self.size = as_int("size", size, 1)
        self.batch_size = None if batch_size is None else as_int("batch_size", batch_size, 1)
        self.n_envs = as_int("n_envs", n_envs, 1)
        self.n_steps, self.gamma = as_int("n_steps", n_steps, 1), gamma
        self.compress = bool(compress)
        self.priority_key = priority_key
        self.device = torch.device(device)
        self.buffer: buffers.ReplayBuffer | None = None
        self._sampler, self._seed = sampler, seed
        # Names that entries of steps cannot have.
        self._added = OF_NSTEP if self.n_steps > 1 else frozenset()
        if isinstance(sampler, PrioritySampler):
            self._added |= OF_PRIORITIES
        self._paths: dict[str, Path] = {}
        self._chained: list[str] = []  # fields with a next field of the same shape and dtype
        self._resets = Resets(self.n_envs)
        self._of_draws: list[Call] = []  # transforms of batches, in the order of their calls
        self._of_steps: list[Call] = []  # transforms of steps

    # ------------------------------------------------------------------ steps

    def extend(self, data: TensorDictBase) -> None:
        """Add steps in the order of time, of shape ``(T,)``, or ``(n_envs, T)``.

        Raises
        ------
        TypeError, ValueError
            The data have another shape, or their entries differ from the first call in name, shape
            or type. Two entries would be one field. An entry is not a tensor, has a dtype that
            NumPy lacks, or has the name of an entry that ``sample`` adds. Nothing was added.
        """
        _check_steps(data)
        for transform in self._of_steps:
            data = transform(data)
            if data is None:  # the transform waits for more steps
                return
        if self.n_envs > 1:
            if data.ndim != 2 or data.shape[0] != self.n_envs:
                expected = f"({self.n_envs}, T)"
                raise ValueError(f"extend: expected shape {expected}, got {tuple(data.shape)}")
            data = data.transpose(0, 1)
        elif data.ndim == 2 and data.shape[0] == 1:
            data = data[0]
        elif data.ndim != 1:
            raise ValueError(f"extend: expected shape (T,), got {tuple(data.shape)}")
        paths, values = _read(data)
        self._check_names(values)
        if self.n_steps > 1:
            self._add_nstep_fields(values, data.ndim)
        if self.buffer is None:
            self.buffer, self._paths = self._make(values, data.ndim), paths
        if len(data) == 0:
            self.buffer.add(**values)
            return
        resets = self._find_resets(values)
        if resets:  # all steps are checked before the first one is added
            self.buffer.schema.check_names(values)
            refuse_bad(self.buffer, values)
        start = 0
        for stop in (*sorted(resets), len(data)):
            if stop > start:
                self.buffer.add(**{name: value[start:stop] for name, value in values.items()})
            for env in resets.get(stop, ()):
                self.buffer.on_episode_end(env)
            start = stop
        followed = self._chained_pairs(values)
        self._resets.remember({name: values[following][-1] for name, following in followed})

    def add(self, data: TensorDictBase) -> None:
        """Add one step of each environment, a tensordict of shape ``()`` or ``(n_envs,)``."""
        _check_steps(data)
        self.extend(data.unsqueeze(-1))

    def _chained_pairs(self, values: Mapping[str, Array]) -> Iterator[tuple[str, str]]:
        """Yield pairs of fields: the second, of a step, equals the first of the step after.

        Rewards and flags are left out. So are entries such as ``_ou_prev_noise`` of TorchRL's
        modules, whose next values may differ from the values of the step after.
        """
        for name in self._chained:
            last = name.rpartition(".")[2]
            if last != "reward" and last not in FLAGS and not last.startswith("_"):
                yield name, f"next_{name}"
        if TRAJECTORY in values:
            yield TRAJECTORY, TRAJECTORY

    def _find_resets(self, values: Mapping[str, Array]) -> dict[int, list[int]]:
        """Environments that were reset before a step, by the number of the step in the call."""
        first = self._resets.find({name: value[0] for name, value in values.items()})
        found = {0: [env for env in first if self._rows().get_current_episode_len(env)]}
        if TRAJECTORY in values:
            ids = values[TRAJECTORY].reshape(-1, self.n_envs)
            changed = ids[1:] != ids[:-1]
            for name in ENDS:
                if name in values:
                    changed &= ~values[name][:-1].reshape(changed.shape).astype(bool)
            for time, env in np.argwhere(changed).tolist():
                found.setdefault(time + 1, []).append(env)
        return {time: envs for time, envs in found.items() if envs}

    def _check_names(self, values: Mapping[str, Array]) -> None:
        """Raise ``ValueError`` if an entry has the name of an entry that ``sample`` adds."""
        taken = sorted(self._added & values.keys())
        if taken:
            raise ValueError(
                f"extend: expected entries of other names than {taken}, which a batch of this "
                "buffer has of its own: rename them, or leave them out, by data.exclude()"
            )

    def _add_nstep_fields(self, values: dict[str, Array], ndim: int) -> None:
        """Add fields to ``values``: numbers of steps, numbers of next steps, and rewards."""
        rewards = values.get("next_reward")
        if rewards is None:
            raise ValueError('extend: n_steps: expected rewards, ("next", "reward"); got none')
        start = 0 if self.buffer is None else self.buffer.ring.written // self.n_envs
        numbers = np.arange(start, start + len(rewards))
        if ndim == 2:
            numbers = np.repeat(numbers[:, np.newaxis], self.n_envs, axis=1)
        values[STEPS], values[f"next_{STEPS}"] = numbers, numbers + 1
        values[f"next_{ORIGINAL_REWARD}"] = rewards

    def _make(self, values: dict[str, Array], ndim: int) -> buffers.ReplayBuffer:
        """A new buffer with the fields of these steps."""
        specs: dict[str, FieldSpec] = {
            name: {"shape": value.shape[ndim:], "dtype": value.dtype}
            for name, value in values.items()
        }
        self._chained = [
            name
            for name, spec in specs.items()
            if name not in (*FLAGS, STEPS) and specs.get(f"next_{name}") == spec
        ]
        chained = self._chained if self.compress else []
        if self.n_steps > 1:
            chained = [*chained, STEPS]
        of_first = "next_reward", f"next_{ORIGINAL_REWARD}"
        nstep: Any = {
            "size": self.n_steps,
            "gamma": self.gamma,
            "rew": "next_reward",
            "next": [name for name in specs if name.startswith("next_") and name not in of_first],
            "discount": True,
        }
        ends: Any = {name[5:]: name if name in specs else False for name in ENDS}
        names = {f"next_{name}" for name in chained}
        return buffers.ReplayBuffer(
            self.size,
            {name: spec for name, spec in specs.items() if name not in names},
            n_envs=self.n_envs,
            next_of=chained or None,
            Nstep=nstep if self.n_steps > 1 else None,
            sampler=self._sampler,
            seed=self._seed,
            **ends,
        )

    # ------------------------------------------------------------------ batches

    def sample(self, batch_size: int | None = None) -> TensorDict:
        """Draw a tensordict of ``batch_size`` steps.

        Raises
        ------
        ValueError
            ``batch_size`` is given neither here nor in the constructor. Or there are no steps
            (``NotEnoughDataError``).
        """
        n = self.batch_size if batch_size is None else batch_size
        if n is None:
            raise ValueError("sample: expected a batch_size, here or of the buffer")
        batch = self._rows().sample(n)
        found: dict[str, Any] = {}
        for name, path in self._paths.items():
            inner = found
            for part in path[:-1]:
                inner = inner.setdefault(part, {})
            inner[path[-1]] = torch.from_numpy(batch[name])
        if self.n_steps > 1:
            steps, factors = batch[f"next_{STEPS}"] - batch[STEPS], batch["discount"]
            found["gamma"] = torch.from_numpy(factors)
            found[STEPS] = torch.from_numpy(steps.reshape(factors.shape))
            found["nonterminal"] = torch.from_numpy(steps > 1)
            found[NEXT][ORIGINAL_REWARD] = torch.from_numpy(batch[f"next_{ORIGINAL_REWARD}"])
        for name, key in (("weights", WEIGHTS), ("indexes", INDEXES)):
            if name in batch and name not in self._paths:
                found[key] = torch.from_numpy(batch[name])
        device = None if self.device.type == "cpu" else self.device
        drawn = TensorDict(found, [n], device=device)
        for transform in self._of_draws:
            drawn = transform(drawn)
        return drawn

    def __iter__(self) -> Any:
        """Batches without end."""
        while True:
            yield self.sample()

    def update_priority(self, index: Any, priority: Any) -> None:
        """Set the priorities of drawn steps, by tensors on any device."""
        priority = torch.as_tensor(priority).detach().cpu().reshape(-1).numpy()
        self._rows().update_priorities(torch.as_tensor(index).cpu().numpy(), priority)

    def update_tensordict_priority(self, data: TensorDictBase) -> None:
        """Set the priorities of the steps in a drawn tensordict by its entry ``priority_key``.

        The method does nothing if rows have no priorities, as in TorchRL.
        """
        if self._rows().has_priorities:
            self.update_priority(data[INDEXES], data[self.priority_key])

    # ------------------------------------------------------------------ the rest

    def append_transform(self, transform: Any, *, invert: bool = False) -> TensorDictReplayBuffer:
        """Append a transform of batches to the present transforms, as TorchRL's buffers do.

        Parameters
        ----------
        transform : torchrl.envs.Transform or callable
            Transform that ``sample`` applies to the drawn tensordicts. ``extend`` and ``add`` apply
            the inverse of each transform to steps before they store them. They begin with the last
            transform. A function has no inverse.
        invert : bool
            If true, the transform is applied to steps, and its inverse to batches.

        Returns
        -------
        TensorDictReplayBuffer
            The buffer itself.

        Raises
        ------
        TypeError
            ``transform`` is neither a ``Transform`` nor callable.
        """
        from torchrl.envs import Transform  # noqa: PLC0415 (the rest needs tensordict alone)

        if not callable(transform):
            kind = type(transform).__name__
            raise TypeError(f"transform: expected a transform or a function, got {kind}")
        of_draws, of_steps = [transform], []
        if isinstance(transform, Transform):
            transform.eval()
            of_steps = [transform.inv]
        if invert:
            of_draws, of_steps = of_steps, of_draws
        self._of_draws += of_draws
        self._of_steps[:0] = of_steps
        return self

    @property
    def _storage(self) -> Any:
        """Raises ``AttributeError``: collectors of several processes would share its memory."""
        raise AttributeError(
            "the rows of this buffer are those of one process, and in no storage of TorchRL: leave "
            "replay_buffer= of a collector of several away, and hand what it gives to extend()"
        )

    def _rows(self) -> buffers.ReplayBuffer:
        if self.buffer is None:
            raise ValueError("the buffer is empty: nothing was added yet")
        return self.buffer

    def __len__(self) -> int:
        """Number of steps that can be drawn."""
        return 0 if self.buffer is None else len(self.buffer)

    @property
    def write_count(self) -> int:
        """Number of steps written so far."""
        return 0 if self.buffer is None else self.buffer.ring.written

    def empty(self) -> None:
        """Delete all steps."""
        self._resets.remember({})
        if self.buffer is not None:
            self.buffer.clear()


def _check_steps(data: object) -> None:
    if not is_tensor_collection(data):
        raise TypeError(f"expected a TensorDict of steps, got {type(data).__name__}")


def _no_array(path: Path, got: str) -> TypeError:
    key = repr(path[0] if len(path) == 1 else path)
    return TypeError(
        f"extend: {key}: expected a tensor of a dtype that NumPy has, got {got}: convert it, or "
        f"leave it out, by data.exclude({key})"
    )


def _read(data: TensorDictBase) -> tuple[dict[str, Path], dict[str, Array]]:
    """The paths and the values of the entries, by field. Missing flags follow from ``done``.

    Raises ``ValueError`` if two entries would be one field, and ``TypeError`` for an entry that is
    no tensor or has a dtype that NumPy lacks.
    """
    paths: dict[str, Path] = {}
    values: dict[str, Array] = {}
    for key in data.keys(include_nested=True):  # leaves_only omits non-tensors
        entry = data.get(key)
        path = (key,) if isinstance(key, str) else key
        if is_non_tensor(entry):
            raise _no_array(path, type(entry).__name__)
        if is_tensor_collection(entry):
            continue
        try:
            value = entry.numpy(force=True)
        except TypeError:
            raise _no_array(path, f"a tensor of {entry.dtype}") from None
        name = f"next_{'.'.join(path[1:])}" if path[0] == NEXT else ".".join(path)
        if name in paths:
            raise ValueError(f"extend: {paths[name]} and {path} would both be the field {name!r}")
        paths[name], values[name] = path, value
    if "next_done" in values:
        done = values["next_done"].astype(bool)
        for name, other in (ENDS, ENDS[::-1]):
            if name not in values:
                of_other = values.get(other)
                values[name] = done if of_other is None else done & ~of_other.astype(bool)
                break
    return paths, values
