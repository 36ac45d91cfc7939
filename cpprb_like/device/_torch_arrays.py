"""``TorchArrays``: the array functions of ``_rows`` and ``_weights`` for PyTorch.

No function waits for the device, and no shape depends on values. So calls can be captured in a CUDA
graph and compiled.
"""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

# SplitMix64 (Steele, Lea and Flood, 2014): its increment and multipliers, as signed integers.
GAMMA = 0x9E3779B97F4A7C15 - 2**64
FIRST, SECOND = 0xBF58476D1CE4E5B9 - 2**64, 0x94D049BB133111EB - 2**64
BITS = {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.uint8}


class TorchArrays:
    """Functions of tensors on one device; ``put`` and ``keep`` write in place."""

    where = staticmethod(torch.where)
    cat = staticmethod(torch.cat)
    searchsorted = staticmethod(torch.searchsorted)
    moveaxis = staticmethod(torch.moveaxis)

    def __init__(self, device: torch.device, index: str) -> None:
        self.device = device
        self.index = getattr(torch, index)
        self.bool, self.float, self.byte = torch.bool, torch.float32, torch.uint8
        # Of sums of rewards and targets of draws; devices of Apple have no float64.
        self.wide = torch.float32 if device.type == "mps" else torch.float64
        self.is_wide = self.wide == torch.float64
        self.count, self.most = torch.int64, 2**63 - 1

    def full(self, shape: tuple[int, ...], value: float, dtype: Any) -> Any:
        """A new tensor of one value."""
        return torch.full(shape, value, dtype=dtype, device=self.device)

    def arange(self, n: int) -> Any:
        """The integers from 0 to n - 1."""
        return torch.arange(n, dtype=self.count, device=self.device)

    def floats(self, values: tuple[float, ...]) -> Any:
        """A new tensor of numbers."""
        return torch.tensor(values, dtype=self.wide, device=self.device)

    @staticmethod
    def cast(x: Any, dtype: Any) -> Any:
        """A tensor of another dtype."""
        return x.to(dtype)

    @staticmethod
    def greatest(dtype: Any) -> float:
        """The greatest finite number of a dtype."""
        return float(torch.finfo(dtype).max)

    @staticmethod
    def is_float(x: Any) -> bool:
        """Whether a tensor holds floats."""
        return bool(x.is_floating_point())

    @staticmethod
    def differ(x: Any, y: Any) -> Any:
        """Whether rows of two tensors of shape (T, n, ...) have different bytes: shape (T * n,)."""
        rows = []
        for one in (x, y):
            numbers = torch.view_as_real(one) if one.is_complex() else one
            if not numbers.dtype.is_signed or numbers.is_floating_point():
                numbers = numbers.view(BITS[numbers.element_size()])
            rows.append(numbers.reshape(x.shape[0] * x.shape[1], -1))
        bits = rows[0] ^ rows[1]
        # ``any`` of bools takes five times as long on processors.
        return (bits.amax(1) | bits.amin(1)) != 0

    @staticmethod
    def take(x: Any, places: Any) -> Any:
        """Rows of x, in the shape of ``places``."""
        if places.ndim == 1:
            return x.index_select(0, places)
        return x.index_select(0, places.reshape(-1)).view(*places.shape, *x.shape[1:])

    @staticmethod
    def least(x: Any) -> Any:
        """The least value of each row of x."""
        return x.amin(1)

    @staticmethod
    def along(x: Any, columns: Any) -> Any:
        """The value of one column of each row of x."""
        return x.gather(1, columns[:, None])[:, 0]

    @staticmethod
    def put(x: Any, places: Any, values: Any, start: int = 0) -> Any:
        """X with rows, counted from ``start`` on, set to values."""
        (x[start:] if start else x).index_copy_(0, places, values)
        return x

    @staticmethod
    def put_steps(x: Any, times: Any, values: Any) -> Any:
        """X with whole steps set to values, shape (T, n_envs, ...); the ring is x from row 0 on."""
        n = values.shape[1]
        steps = x[: (len(x) - 1) // n * n].view(-1, *values.shape[1:])
        steps.index_copy_(0, times, values)
        return x

    @staticmethod
    def put_block(x: Any, start: int, values: Any) -> Any:
        """X with the rows from ``start`` on set to values."""
        x[start : start + len(values)].copy_(values)
        return x

    @staticmethod
    def keep(old: Any, new: Any) -> Any:
        """The new value in the memory of the old one."""
        return old.copy_(new)

    @staticmethod
    def order(x: Any) -> tuple[Any, Any]:
        """X in ascending order, and the places of the values; equal ones keep their order."""
        values, places = torch.sort(x, stable=True)
        return values, places

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

    @staticmethod
    def start(seed: int) -> int:
        """The counter of a seed."""
        x = seed % 2**64
        for shift, factor in ((30, FIRST), (27, SECOND), (31, 1)):
            x = (x ^ x >> shift) * factor % 2**64
        return x - 2**63

    def _bits(self, n: int) -> Any:
        """N integers of 63 bits."""
        counter = self._counter
        x = torch.arange(1, n + 1, device=counter.device).mul_(GAMMA).add_(counter)
        counter.add_((GAMMA * n + 2**63) % 2**64 - 2**63)
        x ^= (x >> 30) & (2**34 - 1)
        x *= FIRST
        x ^= (x >> 27) & (2**37 - 1)
        x *= SECOND
        x ^= (x >> 31) & (2**33 - 1)
        return x

    def below(self, n: int, high: Any) -> Any:
        """N integers from 0 to ``high - 1``; the bias is at most ``high / 2**63``."""
        return self._bits(n) % high

    def unit(self, n: int, dtype: Any) -> Any:
        """N floats from 0 to less than 1."""
        digits = 53 if dtype == torch.float64 else 24
        bits = (self._bits(n) >> (64 - digits)) & (2**digits - 1)
        return bits.to(dtype) * 2.0**-digits
