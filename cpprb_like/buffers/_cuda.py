"""Copies of batches to a CUDA device, beside what the learner computes there.

Memory that is pinned can be copied while both go on, but to pin it takes longer than a copy. So
there are two sets of pinned memory, made once, which are used in turn: one is copied while the next
batch is drawn into the other. A set is used again after the event of its copy. Not here: batches on
the CPU (``_tensors``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpprb_like.buffers._tensors import Conversion, TensorBatch

__all__ = ["OnCuda"]

SETS = 2


class OnCuda(Conversion):
    """Tensors of PyTorch: copies begin in the thread that draws, and end in the learner's stream.

    ``as_tensor`` makes a tensor over an array, or returns the array if none has its dtype.
    """

    def __init__(self, torch: Any, device: Any, as_tensor: Callable[[NDArray[Any]], Any]) -> None:
        self._torch = torch
        self._as_tensor = as_tensor
        self._stream = torch.cuda.Stream(device)
        self._device = self._stream.device  # by its number: the current one may change
        self._sets: list[dict[str, Any]] = [{} for _ in range(SETS)]  # pinned tensors by column
        self._copied: list[Any] = [None] * SETS  # event of the last copy out of each set
        self._turn = 0

    def _next_set(self) -> dict[str, Any]:
        """The set in turn, when it may be written to again."""
        if self._copied[self._turn] is not None:
            self._copied[self._turn].synchronize()
            self._copied[self._turn] = None
        return self._sets[self._turn]

    def room(self) -> dict[str, Any] | None:
        """The set that is next, for a batch to be drawn into; None before its first batch."""
        return dict(self._next_set()) or None

    def make(self, batch: Mapping[str, NDArray[Any]]) -> Any:
        """Begin copies. Columns without a dtype of PyTorch stay arrays."""
        pinned = self._next_set()
        columns: dict[str, Any] = {}
        with self._torch.cuda.stream(self._stream):
            for name, values in batch.items():
                tensor = self._pinned(pinned, name, values)
                if not isinstance(tensor, np.ndarray):
                    tensor = tensor.to(self._device, non_blocking=True)
                columns[name] = tensor
            arrived = self._torch.cuda.Event()
            arrived.record(self._stream)
        self._copied[self._turn] = arrived
        self._turn = (self._turn + 1) % SETS
        return columns, arrived

    def _pinned(self, pinned: dict[str, Any], name: str, values: Any) -> Any:
        """The values in pinned memory: in that of the set, unless they lie there already."""
        known = pinned.get(name)
        if values is known:
            return known
        tensor = self._as_tensor(values)
        if tensor is values:
            return values
        if (
            known is None
            or known.dtype != tensor.dtype
            or known.shape[1:] != tensor.shape[1:]
            or len(known) < len(tensor)
        ):
            known = self._torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
            pinned[name] = known
        part = known[: len(tensor)]
        part.copy_(tensor)
        return part

    def hand_out(self, made: Any) -> TensorBatch:
        """The columns, for what the learner's stream computes from now on."""
        columns, arrived = made
        stream = self._torch.cuda.current_stream(self._device)
        stream.wait_event(arrived)
        for column in columns.values():
            if not isinstance(column, np.ndarray):
                column.record_stream(stream)  # or its memory could be given away too early
        return TensorBatch(columns)
