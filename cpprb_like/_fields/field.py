"""One field: name, dtype, shape and axis of a value, and its conversion to an array.

Not here: ``env_dict`` and the fields of a buffer together (``schema``), named axes and their rooms
(``axes``), and casts of values (``casting``).
"""

from __future__ import annotations

import dataclasses
import math
import sys
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpprb_like._arguments.checks import warn
from cpprb_like._arguments.narrow_dtypes import kind_of
from cpprb_like._fields import casting

__all__ = ["LEFT_OUT", "NEXT", "Field"]

NEXT = "next_"  # first part of the names of next values and of their axes
LEFT_OUT = {"left_out": True}  # metadata: JSON leaves an attribute with its default value out


@dataclass(frozen=True)
class Field:
    """One named value of a step. In a buffer the dtype has the machine's byte order.

    The values of a *ragged* field have a named axis, whose length differs from row to row. In
    ``shape`` this length is 0, so the field takes no bytes of a row.
    """

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    # The name of the axis; of an entry, the axis whose items it finds.
    axis: str | None = dataclasses.field(default=None, metadata=LEFT_OUT)
    # Place of the named axis in the shape.
    axis_at: int = dataclasses.field(default=0, metadata=LEFT_OUT)
    # The axis whose items the values count, such as the nodes that are the ends of an edge.
    counts: str | None = dataclasses.field(default=None, metadata=LEFT_OUT)
    # Whether the items are bytes of a text in UTF-8.
    is_text: bool = dataclasses.field(default=False, metadata=LEFT_OUT)
    # Whether this is the hidden field of an axis.
    is_entry: bool = dataclasses.field(default=False, metadata=LEFT_OUT)

    @property
    def is_ragged(self) -> bool:
        """Whether the field has a named axis."""
        return self.axis is not None and not self.is_entry

    @property
    def item_shape(self) -> tuple[int, ...]:
        """Shape of one item along the named axis; of a field without one, the shape of a step."""
        if not self.is_ragged:
            return self.shape
        return self.shape[: self.axis_at] + self.shape[self.axis_at + 1 :]

    @property
    def item_nbytes(self) -> int:
        """Bytes of one item along the named axis."""
        return self.dtype.itemsize * math.prod(self.item_shape)

    @property
    def declared_shape(self) -> tuple[int | str, ...]:
        """The shape as it was declared, with the name of the axis, such as ``("N", 11)``."""
        if not self.is_ragged or self.axis is None:
            return self.shape
        if self.is_text:
            return ()
        return *self.shape[: self.axis_at], self.axis, *self.shape[self.axis_at + 1 :]

    @property
    def declared_dtype(self) -> str:
        """The dtype as text: ``str`` for texts."""
        return "str" if self.is_text else str(self.dtype)

    @property
    def following(self) -> Field:
        """The field of the next values, with axes of their own."""
        axis, counts = (one and NEXT + one for one in (self.axis, self.counts))
        return replace(self, name=NEXT + self.name, axis=axis, counts=counts)

    @property
    def nbytes(self) -> int:
        """Bytes of one step, where a Python object counts as a reference."""
        nbytes = self.dtype.itemsize
        for length in self.shape:
            nbytes *= length
        return nbytes

    @property
    def can_end(self) -> bool:
        """Whether the field can be an end flag: one bool, integer or float of up to 8 bytes."""
        return self.nbytes == self.dtype.itemsize <= 8 and kind_of(self.dtype) in "biuf"

    @property
    def is_single(self) -> bool:
        """Whether a step has one item, so that scalars are accepted."""
        return self.shape in ((), (1,))

    def convert(self, value: object, n_envs: int) -> NDArray[Any]:
        """Convert values to a C-contiguous array of the declared dtype, ``(n, *shape)``.

        The array may share memory with ``value``, unless the field holds Python objects. The
        message of a ``ValueError`` names the field, the expected values and the given ones.
        """
        try:
            array = casting.as_array(value, self.dtype, one_item=self.is_single)
        except MemoryError:
            raise
        except Exception as error:
            how = "; name the axis that differs, such as shape ('T',)" if _is_ragged(error) else ""
            raise ValueError(
                f"field {self.name!r}: expected {self.dtype} of shape {self.shape}, "
                f"got {type(value).__name__}: {error}{how}"
            ) from error
        came = str(array.dtype)
        if not isinstance(value, (np.ndarray, np.generic)):
            came = type(value).__name__
        rows = self._as_rows(array, n_envs, came)
        try:
            rows = casting.cast(rows, self.dtype)
        except MemoryError:
            raise
        except Exception as error:
            raise ValueError(
                f"field {self.name!r}: expected {self.dtype}, got {came}: {error}"
            ) from error
        if self.dtype == object:
            _warn_of_graphs(self.name, rows)
        return rows.copy() if self.dtype.hasobject else np.ascontiguousarray(rows)

    def _as_rows(self, array: NDArray[Any], n_envs: int, came: str) -> NDArray[Any]:
        """A value with the leading axis of time or environments, or with both axes of a block.

        ``Column.c_rows`` accepts the same shapes.
        """
        shape, lead = array.shape, array.ndim - len(self.shape)
        if self.shape == (1,) and (array.ndim < 2 or shape[-1] != 1):
            lead = array.ndim
        elif lead < 0 or shape[lead:] != self.shape:
            lead = -1
        if lead == 2 and n_envs == shape[1] > 1:
            return array.reshape(*shape[:2], *self.shape)
        if (lead == 1 and n_envs in (1, shape[0])) or (lead == 2 and n_envs == shape[1]):
            return array.reshape(math.prod(shape[:lead]), *self.shape)
        if lead == 0 and n_envs == 1:
            return array.reshape(1, *self.shape)
        if n_envs > 1:
            expected = f"{(n_envs, *self.shape)}, one row for each environment"
        else:
            several = ", ".join(["n", *map(str, self.shape)])
            expected = f"{self.shape} or ({several}{',' if not self.shape else ''})"
            if self.dtype.hasobject and self.is_single:
                expected += ", as an array is several steps (a list of one array is one step)"
        raise ValueError(
            f"field {self.name!r}: expected shape {expected}, got {came} of shape {shape}"
        )


def _is_ragged(error: Exception) -> bool:
    """Whether NumPy found lists of different lengths."""
    return "inhomogeneous" in str(error)


def _warn_of_graphs(name: str, objects: NDArray[Any]) -> None:
    """Warn of tensors of PyTorch that require grad, also within a tuple, list or dict."""
    torch: Any = sys.modules.get("torch")
    for one in objects.flat if torch is not None else ():
        items = one.values() if isinstance(one, dict) else one
        for item in items if isinstance(items, (tuple, list, type({}.values()))) else (one,):
            if isinstance(item, torch.Tensor) and item.requires_grad:
                warn(
                    f"field {name!r}: a tensor requires grad, so the buffer keeps the whole graph "
                    "that computed it in memory: add tensor.detach()"
                )
                return
