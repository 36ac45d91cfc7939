"""Arrays and tensors of other libraries, as NumPy arrays over the same memory.

Not here: casts of their values (``_fields.casting``, ``_rows.column``).
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpprb_like._arguments.narrow_dtypes import HERE, named

__all__ = ["as_out", "read_argument", "read_array"]

CPU_DEVICES = (1, 3)  # DLPack: plain memory, and memory that a GPU can read too


def read_array(value: Any) -> NDArray[Any]:
    """``np.asarray(value)``, also for tensors.

    A tensor that requires gradients is read as its ``detach()``. Floats that NumPy lacks, such as
    bfloat16, are read as float32. An object that has only DLPack is read by DLPack. The array may
    share memory with ``value``. Exceptions of the value's own methods pass, such as those of a
    tensor on another device.
    """
    if getattr(value, "requires_grad", False) is True:
        value = value.detach()
    kind = type(value)
    if hasattr(kind, "__array__"):
        try:
            array = value.__array__()  # np.asarray tries four other protocols first: 0.4 us
        except TypeError:
            if not hasattr(kind, "is_floating_point") or not value.is_floating_point():
                raise
            array = value.float().__array__()
        if type(array) is np.ndarray:
            return array
    elif hasattr(kind, "__dlpack__") and hasattr(kind, "__dlpack_device__"):
        return _read_by_dlpack(value)
    return np.asarray(value)


def read_argument(name: str, value: Any) -> NDArray[Any]:
    """``read_array`` whose ``ValueError``, such as for a ragged list, names the argument."""
    try:
        return read_array(value)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def _read_by_dlpack(tensor: Any) -> NDArray[Any]:
    device, _ = tensor.__dlpack_device__()
    if device not in CPU_DEVICES:
        raise TypeError(
            f"expected one on the CPU, as tensor.cpu() is, got one on {_place_of(tensor)}"
        )
    return np.from_dlpack(tensor)


def _place_of(tensor: Any) -> object:
    return getattr(tensor, "device", "another device")


def as_out(name: str, value: object) -> NDArray[Any]:
    """An array over the memory of ``value``: an array, or a tensor or buffer on the CPU.

    Tensors are read by DLPack, other objects by the buffer protocol. ``TypeError`` for other
    values, and for subclasses of arrays, as writes may have another meaning for them.
    """
    if type(value) is np.ndarray:
        return value
    if not isinstance(value, np.ndarray):
        if hasattr(value, "__dlpack__") and hasattr(value, "__dlpack_device__"):
            return _by_dlpack(name, value)
        try:
            return np.asarray(memoryview(value))  # type: ignore[arg-type]  # or it is refused
        except TypeError:
            pass
    raise TypeError(f"{name}: expected an array, got {type(value).__name__}")


def _by_dlpack(name: str, tensor: Any) -> NDArray[Any]:
    try:
        device, _ = tensor.__dlpack_device__()
        plain, dtype = _plain(tensor)
        array: NDArray[Any] | None = np.from_dlpack(plain) if device in CPU_DEVICES else None
    except (BufferError, ImportError, RuntimeError, TypeError, ValueError) as error:
        raise TypeError(f"{name}: expected a tensor that NumPy can share: {error}") from error
    if array is None:
        raise TypeError(f"{name}: expected a tensor on the CPU, got one on {_place_of(tensor)}")
    if not array.flags.writeable:
        # Arrays of an older DLPack are read-only in NumPy, although the tensor may be writable.
        own = np.asarray(plain)
        if own.ctypes.data == array.ctypes.data and own.flags.writeable:
            array = own.reshape(array.shape)
    return array if dtype is None else array.view(dtype)


def _plain(tensor: Any) -> tuple[Any, np.dtype[Any] | None]:
    """Tensor that NumPy can share, and None.

    For bfloat16 and float8: a view of the same bytes as integers, and the dtype of the values.
    """
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(tensor, torch.Tensor):
        return tensor, None
    nbytes = tensor.element_size()
    dtype = named((HERE if nbytes > 1 else "|") + str(tensor.dtype).removeprefix("torch."))
    if dtype is None:
        return tensor, None
    return tensor.view(getattr(torch, f"int{8 * nbytes}")), dtype
