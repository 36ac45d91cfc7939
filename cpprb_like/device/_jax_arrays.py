"""``JaxArrays``: the array functions of ``_rows`` and ``_weights`` for JAX.

All functions are pure. Not here: what JAX's own functions do.
"""

from __future__ import annotations

from functools import partial
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax


class JaxArrays:
    """Functions of arrays; ``put``, ``keep`` and the like return new arrays."""

    where, cat = staticmethod(jnp.where), staticmethod(jnp.concatenate)
    searchsorted, along = staticmethod(jnp.searchsorted), staticmethod(jnp.take_along_axis)
    argsort, least = partial(jnp.argsort, stable=True), partial(jnp.min, axis=1)
    cast, full = staticmethod(lax.convert_element_type), staticmethod(jnp.full)
    moveaxis, finfo = staticmethod(jnp.moveaxis), staticmethod(jnp.finfo)
    host_dtype, to_host = staticmethod(np.dtype), staticmethod(np.array)
    from_host = staticmethod(jnp.asarray)

    def __init__(self, index: str) -> None:
        self.index = jnp.dtype(index)
        self.bool, self.float, self.byte = jnp.bool_, jnp.float32, jnp.uint8
        self.is_wide = jax.config.jax_enable_x64
        self.wide = jnp.float64 if self.is_wide else jnp.float32
        self.count = jnp.int64 if self.is_wide else jnp.int32
        self.most = int(jnp.iinfo(self.count).max)
        self.arange = partial(jnp.arange, dtype=self.count)
        self.floats = partial(jnp.asarray, dtype=self.wide)

    @staticmethod
    def is_float(x: Any) -> bool:
        """Whether an array holds floats."""
        return bool(jnp.issubdtype(x.dtype, jnp.floating))

    @staticmethod
    def differ(x: Any, y: Any) -> Any:
        """Whether rows of two arrays have different bytes."""
        rows = []
        for one in (x, y):
            if jnp.issubdtype(one.dtype, jnp.complexfloating):
                one = jnp.stack([one.real, one.imag], -1)
            if jnp.issubdtype(one.dtype, jnp.floating):
                one = lax.bitcast_convert_type(one, jnp.dtype(f"uint{8 * one.dtype.itemsize}"))
            rows.append(one.reshape(len(x), -1))
        return (rows[0] != rows[1]).any(1)

    @staticmethod
    def take(x: Any, places: Any) -> Any:
        """Rows of x, in the shape of ``places``."""
        return x.at[places].get(mode="promise_in_bounds")

    @staticmethod
    def rows(values: list[Any], count: int) -> Any:
        """Values of fields side by side, in rows."""
        return jnp.concatenate([one.reshape(count, -1) for one in values], 1)

    @staticmethod
    def columns(x: Any, start: int, shape: tuple[int, ...]) -> Any:
        """A field of rows of a table."""
        return x[..., start : start + prod(shape)].reshape(*x.shape[:-1], *shape)

    @staticmethod
    def put(x: Any, places: Any, values: Any) -> Any:
        """X with rows set to values."""
        return x.at[places].set(values, mode="promise_in_bounds")

    @staticmethod
    def put_columns(x: Any, places: Any, start: int, values: Any) -> Any:
        """X with numbers of rows, from ``start`` on, set to values."""
        columns = slice(start, start + values.shape[1])
        return x.at[places, columns].set(values, mode="promise_in_bounds")

    @staticmethod
    def put_steps(x: Any, slots: Any, values: Any, n: int) -> Any:
        """X with whole steps of n rows set to values; the ring is x from row 0 on."""
        if len(values) == n:  # one copy, in place where the array is donated
            return lax.dynamic_update_slice_in_dim(x, values, slots[0], 0)
        return x.at[slots].set(values, mode="promise_in_bounds")

    @staticmethod
    def advance(x: Any, by: Any, most: int | None = None, period: int | None = None) -> Any:
        """X, counted on, up to the most, or modulo a period."""
        return (x + by) % period if most is None else (x + by).clip(None, most)

    @staticmethod
    def wrap(x: Any, period: int) -> Any:
        """X modulo a period."""
        return x % period

    @staticmethod
    def keep(old: Any, new: Any) -> Any:
        """The new value, of the dtype of the old one."""
        return jnp.asarray(new, old.dtype)


class JaxRandom:
    """Random numbers of one key."""

    def __init__(self, key: Any) -> None:
        self._key = key

    def _next(self) -> Any:
        self._key, key = jax.random.split(self._key)
        return key

    def below(self, n: int, high: Any) -> Any:
        """N integers from 0 to ``high - 1``."""
        return jax.random.randint(self._next(), (n,), 0, high)

    def unit(self, n: int, dtype: Any) -> Any:
        """N floats from 0 to less than 1."""
        return jax.random.uniform(self._next(), (n,), dtype)
