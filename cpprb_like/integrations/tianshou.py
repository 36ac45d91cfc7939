"""``VectorReplayBuffer``: a replay buffer for Tianshou that keeps each observation once.

Tianshou's own does what it does with indices, rewards, episodes and returns; observations, which
are nearly all of the bytes, lie in buffers of this package, one for each environment, whose slots
are Tianshou's indices. Not here: which rows are drawn, and n-step returns, which Tianshou computes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

import cpprb_like.buffers as buffers
from cpprb_like.integrations._missing import missing
from cpprb_like.typing import FieldSpec

try:
    from tianshou.data import Batch
    from tianshou.data import VectorReplayBuffer as TheirVectorReplayBuffer
except ImportError as error:
    raise missing(__name__, "Tianshou", "tianshou", error) from error

__all__ = ["VectorReplayBuffer"]

Array = NDArray[Any]
OBSERVED = ("obs", "obs_next")


class VectorReplayBuffer(TheirVectorReplayBuffer):  # type: ignore[misc]
    """A replay buffer for the collectors and algorithms of Tianshou.

    An observation is stored once, and not again as the next one of the step before; those that
    differ, such as the last of an episode, are kept. With the same ``random_seed`` batches are
    those of Tianshou's ``VectorReplayBuffer``.

    Parameters
    ----------
    total_size : int
        Capacity in steps, of all environments together.
    buffer_num : int
        Number of environments.
    stack_num : int
        Observations of a batch are stacks of those of so many steps; 1.
    stack_compress : bool
        Observations are frame stacks as they come: only the newest frame of each is kept.
    random_seed : int
        Seed of the draws.

    Raises
    ------
    TypeError, ValueError
        An option is of a wrong type or value.

    Notes
    -----
    It is pickled by value. Tianshou's ``save_hdf5``, ``load_hdf5``, ``from_data`` and ``set_batch``
    would miss the observations and raise ``NotImplementedError``. So do ``update`` of another
    buffer by it, which may have moved the indices of that one, and observations asked of a part,
    as ``buffer.buffers[0]``: index this buffer.

    A slot in which no step was stored is an ``IndexError``, where Tianshou gives zeros.

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

    # ------------------------------------------------------------------ steps

    def add(self, batch: Any, buffer_ids: Any = None) -> tuple[Array, Array, Array, Array]:
        """Add a step of each environment, or of those of ``buffer_ids``: see Tianshou.

        Raises
        ------
        ValueError, TypeError
            Observations of another shape or type than the first ones; nothing was added.
        """
        before, after = _parts(batch.obs, "obs"), _parts(batch.obs_next, "obs")
        rings = self._rings or self._open(before)
        before, after = (_read(values, rings[0]) for values in (before, after))
        light = Batch(**{key: batch[key] for key in batch.get_keys() if key not in OBSERVED})
        ids = range(self.buffer_num) if buffer_ids is None else buffer_ids
        light.obs = np.full(len(ids), np.nan, np.float16)  # a place, as Tianshou asks for one
        found: tuple[Array, Array, Array, Array] = super().add(light, buffer_ids)
        if not isinstance(self._meta.obs, _Elsewhere):
            self._meta.__dict__["obs"] = self._meta.obs.view(_Elsewhere)
            self._set_batch_for_children()
        self._rings = rings
        for place, number in enumerate(ids):
            step = {name: values[place] for name, values in before.items()}
            step |= {f"next_{name}": values[place] for name, values in after.items()}
            rings[number].add(**step)
        return found

    def _open(self, parts: Mapping[str, Array]) -> list[buffers.ReplayBuffer]:
        """A buffer for each environment, for observations such as these."""
        fields: dict[str, FieldSpec] = {
            name: {"shape": values.shape[1:], "dtype": values.dtype}
            for name, values in parts.items()
        }
        stacks = list(fields) if self._stack_compress else None
        size = self.buffers[0].maxsize
        return [
            buffers.ReplayBuffer(size, fields, next_of=list(fields), stack_compress=stacks, seed=0)
            for _ in range(self.buffer_num)
        ]

    def reset(self, keep_statistics: bool = False) -> None:
        """Forget all steps."""
        super().reset(keep_statistics)
        for ring in self._rings:
            ring.clear()

    # ------------------------------------------------------------------ rows

    def _of_mask(self, index: Any) -> Any:
        """The indices that a mask stands for; anything else as it is."""
        if isinstance(index, slice) or np.asarray(index).dtype != bool:
            return index
        if np.shape(index) != (self.maxsize,):
            raise IndexError(f"expected a mask of shape ({self.maxsize},), got {np.shape(index)}")
        return np.flatnonzero(index)

    def _rows(self, index: Any) -> dict[str, Array]:
        """Observations and next ones of some indices, of any shape."""
        indices = np.asarray(index)
        numbers, slots = np.divmod(indices.ravel(), self.buffers[0].maxsize)
        if self.buffer_num == 1 or (numbers == numbers[:1]).all():
            number = int(numbers[0]) if numbers.size else 0
            rows: dict[str, Array] = self._rings[number][slots]
        else:
            rows = {}
            for number in np.unique(numbers):
                here = np.flatnonzero(numbers == number)
                for name, values in self._rings[number][slots[here]].items():
                    if name not in rows:
                        rows[name] = np.empty((numbers.size, *values.shape[1:]), values.dtype)
                    rows[name][here] = values
        return {
            name: values.reshape(*indices.shape, *values.shape[1:]) for name, values in rows.items()
        }

    def get(
        self, index: Any, key: str, default_value: Any = None, stack_num: int | None = None
    ) -> Any:
        """The values of a key at some indices, stacked if ``stack_num`` says so: see Tianshou."""
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
        if isinstance(index, slice):
            every = index == slice(None)
            index = self.sample_indices(0) if every else self._indices[: len(self)][index]
        rows = self._rows(index)
        found = {key: _nest(rows, key) for key in OBSERVED}
        for key in ("info", "policy"):
            found[key] = self.get(index, key, Batch())
        for key in self._meta.get_keys():
            if key not in found:
                found[key] = self._meta[key][index]
        return Batch(found)

    @property
    def obs(self) -> Any:
        """All observations, a copy: those of the indices in use, in their order."""
        return self[:].obs

    @property
    def obs_next(self) -> Any:
        """All next observations, a copy."""
        return self[:].obs_next

    # ------------------------------------------------------------------ what it does not have

    def save_hdf5(self, path: str, compression: str | None = None) -> None:
        """Not there: pickle the buffer."""
        raise NotImplementedError("save_hdf5 would miss the observations; pickle the buffer")

    @classmethod
    def load_hdf5(cls, path: str, device: str | None = None) -> Any:
        """Not there: pickle the buffer."""
        raise NotImplementedError("load_hdf5 would miss the observations; pickle the buffer")

    @classmethod
    def from_data(cls, *args: Any, **options: Any) -> Any:
        """Not there: ``add`` the steps."""
        raise NotImplementedError("from_data would miss the observations; add the steps")

    def set_batch(self, batch: Any) -> None:
        """Not there: ``add`` the steps."""
        raise NotImplementedError("set_batch would miss the observations; add the steps")


class _Elsewhere(np.ndarray):
    """In place of the observations in Tianshou's arrays: whoever would read it is told so."""

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):  # as Tianshou shares an array among parts of a buffer
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
    """What ``_parts`` took apart."""
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
    """Arrays that a ring takes without fail, so that it stays in step with Tianshou's indices."""
    columns = {column.name: column for column in ring.ring.columns}
    for name, values in parts.items():
        if name not in columns:
            raise TypeError(f"add: unknown part {name!r} of an observation")
        if values.shape[1:] != columns[name].shape:
            raise ValueError(
                f"add: {name!r}: expected shape {columns[name].shape}, got {values.shape[1:]}"
            )
    if len(parts) * 2 != len(columns):
        raise TypeError(
            f"add: expected observations of {len(columns) // 2} parts, got {len(parts)}"
        )
    return {
        name: values.astype(columns[name].dtype, casting="same_kind", copy=False)
        for name, values in parts.items()
    }
