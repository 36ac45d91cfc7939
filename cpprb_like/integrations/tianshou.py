"""``VectorReplayBuffer`` and ``PrioritizedVectorReplayBuffer`` of Tianshou, with less memory.

Tianshou's own arrays hold indices, rewards, episodes and priorities. Buffers of this package, one
for each environment, hold each observation once. Their slots are Tianshou's indices. Not here:
n-step returns, which Tianshou computes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

import cpprb_like.buffers as buffers
from cpprb_like._arguments.arrays import Array
from cpprb_like.integrations._libraries import missing
from cpprb_like.samplers import Sampler
from cpprb_like.typing import FieldSpec

try:
    from tianshou.data import Batch, ReplayBufferManager
    from tianshou.data import PrioritizedVectorReplayBuffer as TheirPrioritizedVectorReplayBuffer
    from tianshou.data import VectorReplayBuffer as TheirVectorReplayBuffer
except ImportError as error:
    raise missing(__name__, "Tianshou", "tianshou", error) from error

__all__ = ["PrioritizedVectorReplayBuffer", "VectorReplayBuffer"]

OBSERVED = ("obs", "obs_next")


class _Given(Sampler):
    """Sampler that returns ``slots``, which Tianshou has drawn."""

    slots = np.zeros(0, np.intp)

    def draw(self, *args: Any, **options: Any) -> tuple[Array, dict[str, Array]]:  # noqa: ARG002
        """See ``Sampler.draw``."""
        return self.slots, {}


def _refuse(*_args: Any, **_options: Any) -> Any:
    raise NotImplementedError(
        "save_hdf5, load_hdf5, from_data and set_batch would miss the observations: pickle the "
        "buffer, or add the steps"
    )


class _Observations(ReplayBufferManager):  # type: ignore[misc]
    """Tianshou's buffer, with observations in a ``ReplayBuffer`` for each environment."""

    _rings: list[buffers.ReplayBuffer]  # empty before the first step
    _columns: Mapping[str, buffers.ColumnSpec]  # columns of the rings, set by the first step
    _stack_compress: bool

    # ------------------------------------------------------------------ steps

    def add(self, batch: Any, buffer_ids: Any = None) -> tuple[Array, Array, Array, Array]:
        """Add a step of each environment, or of the environments ``buffer_ids``: see Tianshou.

        Raises
        ------
        ValueError, TypeError
            Observations differ in shape or type from the first ones. Nothing was added.
        """
        before, after = _parts(batch.obs, "obs"), _parts(batch.obs_next, "obs")
        rings = self._rings or self._open(before)
        before, after = (_read(values, rings[0]) for values in (before, after))
        ids = range(self.buffer_num) if buffer_ids is None else buffer_ids
        light = Batch()  # entries are set directly, as the constructor would check each of them
        light.__dict__.update((key, batch[key]) for key in batch.get_keys() if key not in OBSERVED)
        light.__dict__["obs"] = np.full(len(ids), np.nan, np.float16)  # Tianshou requires the key
        found: tuple[Array, Array, Array, Array] = super().add(light, buffer_ids)
        if not isinstance(self._meta.obs, _Elsewhere):
            self._meta.__dict__["obs"] = self._meta.obs.view(_Elsewhere)
            self._set_batch_for_children()
        if not self._rings:
            self._rings = rings
            self._columns = rings[0].columns
        steps = {**before, **{f"next_{name}": values for name, values in after.items()}}
        for place, number in enumerate(ids):
            rings[number].add(**{name: values[place] for name, values in steps.items()})
        return found

    def _open(self, parts: Mapping[str, Array]) -> list[buffers.ReplayBuffer]:
        """A buffer for each environment, for observations such as these."""
        fields: dict[str, FieldSpec] = {
            name: {"shape": values.shape[1:], "dtype": values.dtype}
            for name, values in parts.items()
        }
        stacks = list(fields) if self._stack_compress else None
        return [
            buffers.ReplayBuffer(
                self._part,
                fields,
                next_of=list(fields),
                stack_compress=stacks,
                sampler=_Given(),
                seed=0,
            )
            for _ in range(self.buffer_num)
        ]

    def reset(self, keep_statistics: bool = False) -> None:
        """Delete all steps."""
        super().reset(keep_statistics)
        for ring in self._rings:
            ring.clear()

    # ------------------------------------------------------------------ rows

    def _of_mask(self, index: Any) -> Any:
        """The indices of a mask. Other indexes are returned unchanged."""
        if isinstance(index, slice) or np.asarray(index).dtype != bool:
            return index
        if np.shape(index) != (self.maxsize,):
            raise IndexError(f"expected a mask of shape ({self.maxsize},), got {np.shape(index)}")
        return np.flatnonzero(index)

    def _numbers(self, index: Any) -> Any:
        """The indices of a slice. Other indexes are returned unchanged."""
        if not isinstance(index, slice):
            return index
        return self.sample_indices(0) if index == slice(None) else self._indices[: len(self)][index]

    def _rows(self, index: Any) -> dict[str, Array]:
        """Observations and next observations at an array of indices of any shape."""
        indices = np.asarray(index, np.intp)
        flat, order = indices.ravel(), None
        numbers = flat // self._part
        if (numbers[1:] < numbers[:-1]).any():
            order = np.argsort(numbers, kind="stable")
            flat, numbers = flat[order], numbers[order]
        if flat.size and -self.buffer_num <= numbers[0] < 0:  # negative indices count from the end
            return self._rows(np.where(indices < 0, indices + self.maxsize, indices))
        rows = self._gather(flat)
        if order is not None:
            for name, values in rows.items():
                rows[name] = np.empty_like(values)
                rows[name][order] = values
        return {
            name: values.reshape(*indices.shape, *values.shape[1:]) for name, values in rows.items()
        }

    @property
    def _part(self) -> int:
        """Number of indices of each environment."""
        part: int = self.buffers[0].maxsize
        return part

    def _gather(self, indices: Array) -> dict[str, Array]:
        """The rows of indices that are sorted by environment."""
        n = len(indices)
        stops: Array = indices.searchsorted(np.asarray(self._extend_offset))
        if stops[0] != 0 or stops[-1] != n:
            raise IndexError(f"expected indices from 0 to {self.maxsize - 1}, got {indices}")
        rows = {
            name: np.empty((n, *column.shape), column.dtype)
            for name, column in self._columns.items()
        }
        start = 0
        for ring, offset, stop in zip(
            self._rings, self._offset.tolist(), stops[1:].tolist(), strict=True
        ):
            if stop > start:
                if not len(ring):
                    raise IndexError(f"expected indices of steps, got {indices[start:stop]}")
                sampler: Any = ring.sampler
                sampler.slots = indices[start:stop] - offset
                ring.sample(stop - start, out={k: v[start:stop] for k, v in rows.items()})
                start = stop
        return rows

    def get(
        self, index: Any, key: str, default_value: Any = None, stack_num: int | None = None
    ) -> Any:
        """The values of a key at some indices, stacked by ``stack_num``: see Tianshou."""
        index = self._of_mask(index)
        if key not in OBSERVED or not self._rings:
            return super().get(index, key, default_value, stack_num)
        indices = np.asarray(index)
        found: list[Any] = []
        for _ in range(self.stack_num if stack_num is None else stack_num):
            found.insert(0, _nest(self._rows(indices), key))
            indices = np.asarray(self.prev(indices if indices.ndim else int(indices)))
        if len(found) == 1:
            return found[0]
        if isinstance(found[0], Batch):
            return Batch.stack(found, axis=indices.ndim)
        return np.stack(found, axis=indices.ndim)

    def __getitem__(self, index: Any) -> Any:
        """A batch of the rows of some indices, or of a slice: see Tianshou."""
        index = self._of_mask(index)
        if self.stack_num > 1 or not self._rings:
            return super().__getitem__(index)
        index = self._numbers(index)
        rows = self._rows(index)
        found = {key: _nest(rows, key) for key in OBSERVED}
        for key in ("info", "policy"):
            found[key] = super().get(index, key, Batch())
        for key, values in self._meta.items():
            if key not in found:
                found[key] = values[index]
        batch = Batch()  # entries are set directly, as the constructor would check each of them
        batch.__dict__.update(found)
        return batch

    @property
    def obs(self) -> Any:
        """Observations at all indices in use, in the order of the indices, as a copy."""
        return self[:].obs

    @property
    def obs_next(self) -> Any:
        """Next observations at all indices in use, as a copy."""
        return self[:].obs_next

    # ------------------------------------------------------------------ refused methods

    save_hdf5 = load_hdf5 = from_data = set_batch = staticmethod(_refuse)


class VectorReplayBuffer(_Observations, TheirVectorReplayBuffer):  # type: ignore[misc]
    """A replay buffer for the collectors and algorithms of Tianshou.

    The buffer stores an observation once, and not again as the next observation of the step before.
    Next observations that differ, such as the last of an episode, are stored. With the same
    ``random_seed`` batches equal the batches of Tianshou's ``VectorReplayBuffer``.

    Parameters
    ----------
    total_size : int
        Capacity in steps, of all environments together.
    buffer_num : int
        Number of environments.
    stack_num : int
        Number of steps whose observations a batch stacks. Default: 1.
    stack_compress : bool
        Added observations are frame stacks, and only the newest frame of each is stored.
    random_seed : int
        Seed of the draws.

    Raises
    ------
    TypeError, ValueError
        An option has a wrong type or value.

    Notes
    -----
    The buffer is pickled by value. Tianshou's ``save_hdf5``, ``load_hdf5``, ``from_data`` and
    ``set_batch`` would miss the observations, so they raise ``NotImplementedError``.
    ``other.update(buffer)`` also raises, and may have moved the indices of ``other`` before.
    Observations of a part such as ``buffer.buffers[0]`` raise too: index the whole buffer.

    A slot without a stored step raises ``IndexError``, where Tianshou returns zeros.

    Examples
    --------
    >>> import numpy as np
    >>> from tianshou.data import Batch
    >>> from cpprb_like.integrations.tianshou import VectorReplayBuffer
    >>> buffer = VectorReplayBuffer(1000, buffer_num=2)
    >>> for t in range(10):
    ...     step = {"obs": np.full((2, 4), t), "obs_next": np.full((2, 4), t + 1)}
    ...     flags = {"terminated": np.zeros(2, bool), "truncated": np.zeros(2, bool)}
    ...     _ = buffer.add(Batch(**step, **flags, act=np.zeros(2), rew=np.ones(2)))
    >>> batch, indices = buffer.sample(32)
    >>> bool((batch.obs_next == batch.obs + 1).all())
    True
    """

    def __init__(
        self,
        total_size: int,
        buffer_num: int,
        *,
        stack_num: int = 1,
        stack_compress: bool = False,
        random_seed: int = 42,
    ) -> None:
        super().__init__(total_size, buffer_num, stack_num=stack_num, random_seed=random_seed)
        self._stack_compress = bool(stack_compress)
        self._rings: list[buffers.ReplayBuffer] = []

    def sample_indices(self, batch_size: int | None) -> Array:
        """Draw the indices that Tianshou's buffer draws, with fewer calls of NumPy."""
        lengths = self._lengths
        if not batch_size or batch_size < 0 or not lengths.any():
            found: Array = super().sample_indices(batch_size)
            return found
        shares = (lengths / lengths.sum()).cumsum()
        shares /= shares[-1]
        numbers = shares.searchsorted(self._random_state.random_sample(batch_size), side="right")
        counts = np.bincount(numbers, minlength=self.buffer_num)
        found = np.concatenate(
            [
                part._random_state.randint(0, part._size, count)
                for part, count in zip(self.buffers, counts.tolist(), strict=True)
                if count
            ]
        )
        found += np.repeat(self._offset, counts)
        return found


class PrioritizedVectorReplayBuffer(
    _Observations,
    TheirPrioritizedVectorReplayBuffer,  # type: ignore[misc]
):
    """A ``VectorReplayBuffer`` with prioritized experience replay.

    Priorities, draws and importance-sampling weights are as in Tianshou's
    ``PrioritizedVectorReplayBuffer``. So are ``update_weight``, ``get_weight`` and ``set_beta``.
    After the same ``np.random.seed`` batches are the same.

    Parameters
    ----------
    total_size, buffer_num, stack_num, stack_compress, random_seed
        As for ``VectorReplayBuffer``.
    alpha : float
        Prioritization exponent, greater than 0.
    beta : float
        Importance-sampling exponent, at least 0.
    weight_norm : bool
        Divide the weights of a batch by the greatest weight of the batch.

    Raises
    ------
    TypeError, ValueError
        An option has a wrong type or value.

    Notes
    -----
    See the notes of ``VectorReplayBuffer``.

    Examples
    --------
    >>> from cpprb_like.integrations.tianshou import PrioritizedVectorReplayBuffer
    >>> buffer = PrioritizedVectorReplayBuffer(1000, buffer_num=2, alpha=0.6, beta=0.4)
    >>> buffer.set_beta(1.0)
    >>> len(buffer)
    0
    """

    def __init__(
        self,
        total_size: int,
        buffer_num: int,
        *,
        alpha: float,
        beta: float,
        weight_norm: bool = True,
        stack_num: int = 1,
        stack_compress: bool = False,
        random_seed: int = 42,
    ) -> None:
        for name, value, is_right in (("alpha", alpha, alpha > 0), ("beta", beta, beta >= 0)):
            if not is_right:
                least = "more than 0" if name == "alpha" else "at least 0"
                raise ValueError(f"{name}: expected {least}, got {value}")
        super().__init__(
            total_size, buffer_num, alpha=alpha, beta=beta, weight_norm=weight_norm,
            stack_num=stack_num, random_seed=random_seed,
        )  # fmt: skip
        self._stack_compress = bool(stack_compress)
        self._rings = []

    def reset(self, keep_statistics: bool = False) -> None:
        """Delete all steps and their priorities."""
        super().reset(keep_statistics)
        self.weight[self._indices] = 0.0

    def sample_indices(self, batch_size: int | None) -> Array:
        """Draw indices by priority, as Tianshou's buffer does."""
        found: Array = super().sample_indices(batch_size)
        while batch_size and (wrong := np.flatnonzero(self.weight[found] == 0)).size:
            found[wrong] = super().sample_indices(wrong.size)  # sums are rounded
        return found

    def set_beta(self, beta: float) -> None:
        """Set the importance-sampling exponent of later batches."""
        super().set_beta(beta)
        self._beta = beta  # Tianshou sets only that of its parts, which has no effect

    def __getitem__(self, index: Any) -> Any:
        """A batch of the rows of some indices, or of a slice, with their weights: see Tianshou."""
        index = self._numbers(self._of_mask(index))
        batch = super().__getitem__(index)
        weight = self.get_weight(index)
        batch.weight = weight / np.max(weight) if self._weight_norm else weight
        return batch


class _Elsewhere(np.ndarray):
    """Placeholder of the observations in Tianshou's arrays. A read raises, with advice."""

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):  # Tianshou slices arrays for the parts of a buffer
            return super().__getitem__(index)
        return self._refuse()

    def __array_ufunc__(self, *args: Any, **options: Any) -> Any:
        return self._refuse()

    def __array_function__(self, *args: Any, **options: Any) -> Any:
        return self._refuse()

    def __repr__(self) -> str:
        return "<observations, which are read from the VectorReplayBuffer itself>"

    def _refuse(self) -> Any:
        raise NotImplementedError(
            "the observations are not in Tianshou's arrays: index the VectorReplayBuffer itself, "
            "and not a part of it; and add its steps to another buffer one by one"
        )


def _parts(values: Any, name: str) -> dict[str, Array]:
    """An observation, or the entries of a dict of them, by field."""
    if not isinstance(values, (Batch, Mapping)):
        return {name: np.asarray(values)}
    return {f"{name}.{key}": np.asarray(values[key]) for key in values.keys()}  # noqa: SIM118


def _nest(rows: Mapping[str, Array], key: str) -> Any:
    """The inverse of ``_parts``: an observation from its fields in ``rows``."""
    start = "obs" if key == "obs" else "next_obs"
    if start in rows:
        return rows[start]
    found = {
        name[len(start) + 1 :]: values
        for name, values in rows.items()
        if name.startswith(f"{start}.")
    }
    return Batch(found)


def _read(parts: Mapping[str, Array], ring: buffers.ReplayBuffer) -> dict[str, Array]:
    """The observations of a step, converted to the fields of a ring. Raises before any is added."""
    fields = {field.name: field for field in ring.schema.fields}
    for name, values in parts.items():
        if name not in fields:
            raise TypeError(f"add: unknown part {name!r} of an observation")
        if values.shape[1:] != fields[name].shape:
            raise ValueError(
                f"add: {name!r}: expected shape {fields[name].shape}, got {values.shape[1:]}"
            )
    if len(parts) * 2 != len(fields):
        raise TypeError(f"add: expected observations of {len(fields) // 2} parts, got {len(parts)}")
    return {
        name: values if values.dtype == fields[name].dtype else fields[name].convert(values, 1)
        for name, values in parts.items()
    }
