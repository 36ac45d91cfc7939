"""Arrays of other libraries, as NumPy arrays over the same memory: where a batch is written to.

Not here: values that are added to a buffer, which may be copied (``casting``).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["as_out"]

CPU_DEVICES = (1, 3)  # DLPack's numbers of plain memory, and of that which a GPU can read too


def as_out(name: str, value: object) -> NDArray[Any]:
    """An array over the memory of ``value``: an array, or a tensor or buffer on the CPU.

    Tensors come by DLPack, other objects by the buffer protocol. ``TypeError`` for anything else,
    subclasses of arrays among it, for which writing may mean something else.
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
        array: NDArray[Any] | None = np.from_dlpack(tensor) if device in CPU_DEVICES else None
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise TypeError(f"{name}: expected a tensor that NumPy can share: {error}") from error
    if array is None:
        place = getattr(tensor, "device", "another device")
        raise TypeError(f"{name}: expected a tensor on the CPU, got one on {place}")
    if not array.flags.writeable:
        # NumPy takes what comes by an older DLPack as read-only; the tensor itself knows better.
        own = np.asarray(tensor)
        if own.ctypes.data == array.ctypes.data and own.flags.writeable:
            return own.reshape(array.shape)
    return array
