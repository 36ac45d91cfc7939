"""Priorities out of the pickle that ReAgent writes for its sum tree; no code in it is run.

A pickle is a program. It passes a screen of its instructions first, which bounds the memory and the
time that it can take. Then it is run by an unpickler that finds no names but those of functions and
classes of this module, which stand for those of NumPy and for the tree.
"""

from __future__ import annotations

import io
import pickle
import pickletools
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpprb_like.compat.reagent._errors import InputError

__all__ = ["read_sum_tree"]

MOST = 10_000  # instructions; a tree of 2 ** 40 leaves takes 1,200
MOST_OTHER = 1 << 20  # bytes that are not of priorities
OPCODES = """
    PROTO FRAME STOP MARK MEMOIZE BINPUT LONG_BINPUT BINGET LONG_BINGET NONE NEWTRUE NEWFALSE
    BININT BININT1 BININT2 LONG1 BINFLOAT BINUNICODE SHORT_BINUNICODE BINBYTES SHORT_BINBYTES
    BINBYTES8 BYTEARRAY8 EMPTY_LIST APPEND APPENDS EMPTY_DICT SETITEM SETITEMS EMPTY_TUPLE TUPLE
    TUPLE1 TUPLE2 TUPLE3 GLOBAL STACK_GLOBAL REDUCE NEWOBJ BUILD
"""
NEEDED = frozenset(OPCODES.split())


class _Array:
    """Stands for an array whose state comes later."""

    def __init__(self, *_: object) -> None:
        self.values: NDArray[Any] = np.empty(0)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, dtype, is_fortran, data = state
        self.values = _from_bytes(data, dtype, shape, "F" if is_fortran else "C").values


class _Dtype:
    """Stands for ``numpy.dtype``: numbers only."""

    def __init__(self, code: str, *_: object) -> None:
        self.numbers = np.dtype(str(code))
        if self.numbers.kind not in "biuf":
            raise pickle.UnpicklingError(f"a sum tree has no values of {code}")

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.numbers = self.numbers.newbyteorder(state[1])


class _Tree:
    """Stands for ReAgent's ``SumTree``."""

    nodes: Any
    max_recorded_priority: Any

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.nodes, self.max_recorded_priority = state["nodes"], state["max_recorded_priority"]


def _from_bytes(data: bytes, dtype: _Dtype, shape: Any, order: Any, *_: object) -> _Array:
    """Stands for ``numpy.core.numeric._frombuffer``."""
    array = _Array()
    array.values = np.frombuffer(data, dtype.numbers).reshape(shape, order=order)
    return array


def _scalar(dtype: _Dtype, data: bytes) -> _Array:
    """Stands for ``numpy.core.multiarray.scalar``."""
    return _from_bytes(data, dtype, (), "C")


STAND_INS: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Dtype,
}
for _core in ("numpy.core", "numpy._core"):
    STAND_INS |= {
        (f"{_core}.multiarray", "_reconstruct"): _Array,
        (f"{_core}.multiarray", "scalar"): _scalar,
        (f"{_core}.numeric", "_frombuffer"): _from_bytes,
    }


class _Reader(pickle.Unpickler):
    """An unpickler that finds nothing but the stand-ins."""

    def find_class(self, module: str, name: str) -> Any:
        if name == "SumTree" and module.rpartition(".")[2] == "sum_tree":
            return _Tree
        if (module, name) in STAND_INS:
            return STAND_INS[module, name]
        raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no sum tree needs")


def _screen(data: bytes) -> None:
    """Refuse instructions that no sum tree needs, and what costs more than its bytes.

    A memo of any size, and a tuple that is used twice: a key made of such tuples takes a time
    exponential in its length.
    """
    memo: set[int] = set()
    tuples: set[int] = set()
    before = ""
    for number, (opcode, argument, _) in enumerate(pickletools.genops(data)):
        name = opcode.name
        if name not in NEEDED or number == MOST:
            raise pickle.UnpicklingError(f"it has the instruction {name}, or too many of them")
        if name in ("MEMOIZE", "BINPUT", "LONG_BINPUT"):
            place = len(memo) if argument is None else argument
            if place > MOST:
                raise pickle.UnpicklingError(f"it has a memo of {place} values")
            memo.add(place)
            if before.startswith("TUPLE"):
                tuples.add(place)
        elif name in ("BINGET", "LONG_BINGET") and argument in tuples:
            raise pickle.UnpicklingError("it uses a tuple twice")
        before = name


def _plain(value: Any) -> Any:
    return value.values if isinstance(value, _Array) else value


def read_sum_tree(file: Any, capacity: int) -> tuple[NDArray[np.float64], float]:
    """The priorities of all slots, and the greatest one that was ever set.

    Raises ``InputError`` if it is not the pickle of a sum tree for so many slots.
    """
    try:
        data = file.read(64 * capacity + MOST_OTHER)
        _screen(data)
        tree = _Reader(io.BytesIO(data)).load()
        leaves = np.asarray(_plain(tree.nodes[-1]))
        greatest = float(_plain(tree.max_recorded_priority))
    except Exception as error:  # a damaged pickle raises anything
        raise InputError(f"sum_tree: no pickle of a sum tree: {error}") from error
    if leaves.dtype != np.float64 or leaves.shape != (1 << (capacity - 1).bit_length(),):
        raise InputError(
            f"sum_tree: expected priorities of {capacity} slots, got {leaves.dtype} of shape "
            f"{leaves.shape}"
        )
    return leaves[:capacity].astype(np.float64), greatest
