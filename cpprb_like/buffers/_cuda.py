"""Copies of batches to a CUDA device, beside what the learner computes there.

Memory that is pinned can be copied while both go on, but to pin it takes longer than a copy. So
there are two sets of pinned memory, made once, which are used in turn: one is copied while the next
batch is drawn into the other. A set is used again after the event of its copy. Not here: batches on
the CPU (``_tensors``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["CudaCopies"]

SETS = 2


class PinnedSet:
    """Pinned memory for one batch, by column."""

    def __init__(self) -> None:
        self.tensors: dict[str, Any] = {}
        self.copied: Any = None  # the event of the last copy out of it

    def wait(self) -> None:
        """Wait until it may be written to again."""
        if self.copied is not None:
            self.copied.synchronize()
            self.copied = None


class Begun(NamedTuple):
    """A batch whose copy has begun: its columns on the device, and the event of their arrival."""

    columns: dict[str, Any]
    arrived: Any


class CudaCopies:
    """Begins copies in the thread that draws, and hands them to the stream of the learner."""

    def __init__(self, torch: Any, device: Any, as_tensor: Callable[[NDArray[Any]], Any]) -> None:
        self._torch = torch
        self._as_tensor = as_tensor
        self._stream = torch.cuda.Stream(device)
        self._device = self._stream.device  # by its number: the current one may change
        self._sets = [PinnedSet() for _ in range(SETS)]
        self._turn = 0

    def room(self) -> dict[str, Any] | None:
        """The set that is next, for a batch to be drawn into; None before its first batch."""
        there = self._sets[self._turn]
        there.wait()
        return dict(there.tensors) or None

    def begin(self, batch: Mapping[str, NDArray[Any]]) -> Begun:
        """Have the columns of a batch copied; those without a dtype of PyTorch stay arrays."""
        torch, there = self._torch, self._sets[self._turn]
        self._turn = (self._turn + 1) % SETS
        there.wait()
        columns: dict[str, Any] = {}
        with torch.cuda.stream(self._stream):
            for name, values in batch.items():
                tensor = self._pinned(there, name, values)
                if not isinstance(tensor, np.ndarray):
                    tensor = tensor.to(self._device, non_blocking=True)
                columns[name] = tensor
            arrived = torch.cuda.Event()
            arrived.record(self._stream)
        there.copied = arrived
        return Begun(columns, arrived)

    def _pinned(self, there: PinnedSet, name: str, values: Any) -> Any:
        """The values in pinned memory: in that of the set, unless they lie there already."""
        known = there.tensors.get(name)
        if values is known:
            return known
        tensor = self._as_tensor(values)
        if tensor is values:
            return values
        if known is None or known.dtype != tensor.dtype or known.shape[1:] != tensor.shape[1:]:
            known = None
        if known is None or len(known) < len(tensor):
            known = self._torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
            there.tensors[name] = known
        part = known[: len(tensor)]
        part.copy_(tensor)
        return part

    def finish(self, begun: Begun) -> dict[str, Any]:
        """The columns, for what the learner's stream computes from now on."""
        stream = self._torch.cuda.current_stream(self._device)
        stream.wait_event(begun.arrived)
        for column in begun.columns.values():
            if not isinstance(column, np.ndarray):
                column.record_stream(stream)  # or its memory could be given away too early
        return begun.columns
