"""``TorchArrays``: the array functions of ``_rows`` and ``_weights`` for PyTorch.

No function waits for the device, and no shape depends on values. So calls can be captured in a CUDA
graph and compiled.
"""

from __future__ import annotations

import importlib
from functools import partial
from math import prod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

# SplitMix64 (Steele, Lea and Flood, 2014): its increment and multipliers, as signed integers.
GAMMA = 0x9E3779B97F4A7C15 - 2**64
FIRST, SECOND = 0xBF58476D1CE4E5B9 - 2**64, 0x94D049BB133111EB - 2**64
# ``index_copy_`` goes number by number, so large rows are copied as numbers of 16 bytes: 48 us for
# a step of 1 MB in place of 187.
LARGE, WIDE = 1 << 16, torch.complex128
BITS = {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.uint8}


class TorchArrays:
    """Functions of tensors on one device; ``put``, ``keep`` and the like write in place."""

    where, cat = staticmethod(torch.where), staticmethod(torch.cat)
    searchsorted, along = staticmethod(torch.searchsorted), staticmethod(torch.take_along_dim)
    argsort, least = partial(torch.argsort, stable=True), partial(torch.amin, dim=1)
    cast, keep = staticmethod(torch.Tensor.to), staticmethod(torch.Tensor.copy_)
    moveaxis, finfo = staticmethod(torch.moveaxis), staticmethod(torch.finfo)
    is_float = staticmethod(torch.is_floating_point)

    def __init__(self, device: torch.device, index: str) -> None:
        self.index, self.count, self.most = getattr(torch, index), torch.int64, 2**63 - 1
        self.bool, self.float, self.byte = torch.bool, torch.float32, torch.uint8
        # Of sums of rewards and targets of draws; devices of Apple have no float64.
        self.is_wide = device.type != "mps"
        self.wide = torch.float64 if self.is_wide else torch.float32
        self.device = device
        self.full = partial(torch.full, device=device)
        self.arange = partial(torch.arange, dtype=self.count, device=device)
        self.floats = partial(torch.tensor, dtype=self.wide, device=device)

    @staticmethod
    def differ(x: Any, y: Any) -> Any:
        """Whether rows of two tensors have different bytes."""
        # ``any`` of bools takes five times as long on processors.
        return (x.view(torch.uint8) ^ y.view(torch.uint8)).amax(1) != 0

    @staticmethod
    def take(x: Any, places: Any) -> Any:
        """Rows of x, in the shape of ``places``."""
        if places.ndim == 1:
            return x.index_select(0, places)
        return x.index_select(0, places.reshape(-1)).view(*places.shape, *x.shape[1:])

    @staticmethod
    def rows(values: list[Any], count: int) -> Any:
        """Values of fields side by side, in rows."""
        rows = [one.reshape(count, -1) for one in values]
        return torch.cat(rows, 1) if len(rows) > 1 else rows[0].contiguous()

    @staticmethod
    def columns(x: Any, start: int, shape: tuple[int, ...]) -> Any:
        """A field of rows of a table."""
        width = prod(shape)
        if width < x.shape[-1]:
            x = x.narrow(-1, start, width)
        return x if x.shape[x.ndim - 1 :] == shape else x.reshape(*x.shape[:-1], *shape)

    @staticmethod
    def put(x: Any, places: Any, values: Any) -> Any:
        """X with rows set to values."""
        if x.ndim == 1 or values.nbytes < LARGE:
            return x.index_copy_(0, places, values)
        sizes = (values.shape[1] * values.itemsize, values.storage_offset() * values.itemsize)
        is_plain = x.device.type == "mps" or torch.compiler.is_compiling()
        if is_plain or any(size % WIDE.itemsize for size in sizes):
            return x.index_copy_(0, places, values)
        x.view(WIDE).index_copy_(0, places, values.view(WIDE))
        return x

    @staticmethod
    def put_columns(x: Any, places: Any, start: int, values: Any) -> Any:
        """X with numbers of rows, from ``start`` on, set to values."""
        x.narrow(1, start, values.shape[1]).index_copy_(0, places, values)
        return x

    @classmethod
    def put_steps(cls, x: Any, slots: Any, values: Any, n: int) -> Any:
        """X with whole steps of n rows set to values; the ring is x from row 0 on."""
        if values.nbytes < LARGE:
            return x.index_copy_(0, slots, values)
        steps = x[: x.shape[0] // n * n].view(x.shape[0] // n, -1)
        cls.put(steps, slots[::n] // n, values.view(values.shape[0] // n, -1))
        return x

    @staticmethod
    def advance(x: Any, by: Any, most: int | None = None, period: int | None = None) -> Any:  # noqa: ARG004
        """X, counted on in place, up to the most. A period of 2**63 does not end."""
        x.add_(by)
        return x if most is None else x.clamp_(max=most)

    @staticmethod
    def wrap(x: Any, period: int) -> Any:  # noqa: ARG004
        """X modulo a period, which does not end."""
        return x

    @staticmethod
    def host_dtype(dtype: Any) -> np.dtype[Any]:
        """The same dtype for NumPy; those that it lacks are of ml_dtypes."""
        name = str(dtype).removeprefix("torch.")
        return (
            np.dtype(name)
            if hasattr(np, name) or name == "bool"
            else np.dtype(getattr(importlib.import_module("ml_dtypes"), name))
        )

    def to_host(self, x: Any) -> NDArray[Any]:
        """A tensor as an array."""
        dtype = self.host_dtype(x.dtype)
        plain = x.view(BITS[x.element_size()]) if dtype.kind == "V" else x
        found: NDArray[Any] = plain.cpu().numpy()
        return found.view(dtype) if dtype.kind == "V" else found

    def from_host(self, x: NDArray[Any], dtype: Any = None) -> Any:
        """An array as a tensor on the device, of the same bytes as ``dtype``."""
        plain = np.array(x) if x.dtype.kind != "V" else x.view(f"i{x.dtype.itemsize}").copy()
        found = torch.from_numpy(plain).to(self.device)
        return found if dtype is None or found.dtype == dtype else found.view(dtype)


class TorchRandom:
    """Random numbers from a counter on the device: the same ones on every device."""

    def __init__(self, counter: Any) -> None:
        self._counter = counter
        # Operations with numbers of Python take longer, as these become tensors first.
        numbers = torch.tensor((GAMMA, 30, FIRST, 27, SECOND, 31), device=counter.device)
        self._constants = numbers.unbind()

    @staticmethod
    def start(seed: int) -> int:
        """The counter of a seed."""
        x = seed % 2**64
        for shift, factor in ((30, FIRST), (27, SECOND), (31, 1)):
            x = (x ^ x >> shift) * factor % 2**64
        return x - 2**63

    def _bits(self, n: int) -> Any:
        """N integers of 63 bits."""
        gamma, k30, first, k27, second, k31 = self._constants
        x = torch.arange(1, n + 1, device=gamma.device).mul_(gamma).add_(self._counter)
        self._counter.add_((GAMMA * n + 2**63) % 2**64 - 2**63)
        x = (x ^ (x >> k30)).mul_(first)
        x = (x ^ (x >> k27)).mul_(second)
        return x ^ (x >> k31)

    def below(self, n: int, high: Any) -> Any:
        """N integers from 0 to ``high - 1``; the bias is at most ``high / 2**63``."""
        return self._bits(n) % high

    def unit(self, n: int, dtype: Any) -> Any:
        """N floats from 0 to less than 1."""
        digits = 53 if dtype == torch.float64 else 24
        bits = (self._bits(n) >> (64 - digits)) & (2**digits - 1)
        return bits.to(dtype) * 2.0**-digits
