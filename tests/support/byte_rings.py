"""The rule of places of byte rings for Python: the C functions that the package calls."""

from __future__ import annotations

import ctypes
from typing import Any

from cpprb_like._rows import byte_ring

MOST_RUNS = 64  # as in byte_ring.pxd


class Run(ctypes.Structure):
    """``Run`` of byte_ring.pxd."""

    _fields_ = (("start", ctypes.c_ssize_t), ("stop", ctypes.c_ssize_t))


class Places(ctypes.Structure):
    """``Places`` of byte_ring.pxd."""

    _fields_ = (
        ("units", ctypes.c_ssize_t),
        ("extent", ctypes.c_ssize_t),
        ("n_runs", ctypes.c_ssize_t),
        ("runs", Run * MOST_RUNS),
    )


def _function(name: str, result: Any) -> Any:
    """A C function of ``byte_ring`` with the arguments ``Places*`` and ``intp_t``."""
    functions: dict[str, object] = vars(byte_ring)["__pyx_capi__"]
    address, name_of = ctypes.pythonapi.PyCapsule_GetPointer, ctypes.pythonapi.PyCapsule_GetName
    address.restype, address.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    name_of.restype, name_of.argtypes = ctypes.c_char_p, [ctypes.py_object]
    capsule = functions[name]
    kind = ctypes.CFUNCTYPE(result, ctypes.POINTER(Places), ctypes.c_ssize_t)
    return kind(address(capsule, name_of(capsule)))


_put, _remove = _function("c_put", ctypes.c_ssize_t), _function("c_remove", None)


class ByteRing:
    """Places of entries in a ring of so many units."""

    def __init__(self, units: int) -> None:
        self.places = Places(units)

    @property
    def extent(self) -> int:
        """Units that have been used so far."""
        return int(self.places.extent)

    @property
    def runs(self) -> list[tuple[int, int]]:
        """Start and stop of each run, oldest first."""
        return [(run.start, run.stop) for run in self.places.runs[: self.places.n_runs]]

    def take(self, n: int) -> int:
        """As ``c_put``."""
        return int(_put(self.places, n))

    def leave(self, n: int) -> None:
        """As ``c_remove``."""
        _remove(self.places, n)
