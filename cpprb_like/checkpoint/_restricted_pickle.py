"""A restricted unpickler: numbers, texts, containers and NumPy arrays, and no code of the file.

``load`` reads pickles of untrusted files. It takes three precautions:

- A screen reads the opcodes first. It allows the opcodes that plain data need. It refuses pickles
  that could exhaust the stack or the memory: deep tuples, and memo places far beyond the end.
- The unpickler imports no function or class. NumPy's own classes would accept any state of an
  array, addresses included, so classes of this module replace them and check their arguments.
- Other classes are refused, except those in the allow-list ``objects``. Their instances become
  ``PickledObject``, which has the attributes of the original in ``state`` and none of its methods.

Values of ``load`` may be stand-ins for arrays; ``plain`` returns the array::

    tree = load(data, objects=("sum_tree.SumTree",))
    if not isinstance(tree, PickledObject):
        raise ValueError("expected a sum tree")
    nodes = [plain(level) for level in tree.state["nodes"]]

Not here: the file of the bytes (``_npz``), and the meaning of the values (``_cpprb_files``).
"""

from __future__ import annotations

import io
import math
import pickle
import pickletools
import re
import reprlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

OPCODES = re.compile(
    r"PROTO|FRAME|MARK|STOP|NONE|NEWTRUE|NEWFALSE|BININT[12]?|LONG1|BINFLOAT|(SHORT_)?BINUNICODE|"
    r"BINUNICODE8|(SHORT_)?BINBYTES|BINBYTES8|BYTEARRAY8|EMPTY_TUPLE|TUPLE[123]?|EMPTY_LIST|"
    r"APPENDS?|EMPTY_DICT|SETITEMS?|(STACK_)?GLOBAL|(LONG_)?BINPUT|MEMOIZE|(LONG_)?BINGET|REDUCE|"
    r"NEWOBJ|BUILD"
)
PUTS = ("BINPUT", "LONG_BINPUT", "MEMOIZE")
GETS = ("BINGET", "LONG_BINGET")
MOST_STACKED = 1 << 14  # values; a dict is pickled in lots of a thousand pairs
MOST_NESTED = 16  # nested tuples; the state of a dtype has four
MOST_AXES = 64
PLAIN = re.compile(r"b1|[iuf](?:[1248]|12|16)|c(?:8|16|24|32)|[SUV]\d{1,9}")
OBJECTS = "an array in it holds Python objects, which are not read"
MARK = -1


def load(data: bytes, objects: Sequence[str] = ()) -> Any:
    """The value of a pickle of protocol 3 or newer; arrays in it are stand-ins for ``plain``.

    ``objects`` has names ``"module.Class"``; leading packages may be omitted. Instances of these
    classes become ``PickledObject``. ``ValueError`` if the pickle is damaged or not allowed.
    """
    try:
        _screen(data)
        return _Unpickler(io.BytesIO(data), objects).load()
    except MemoryError:
        raise
    except Exception as error:  # a damaged pickle raises anything
        raise ValueError(f"no pickle of plain data: {error}") from error


def plain(value: Any) -> Any:
    """The array of a stand-in, or the object of an array of one object; other values unchanged.

    Arrays are views of the bytes of the pickle.
    """
    return value.values if isinstance(value, _Array) else value


# ---------------------------------------------------------------------- the screen


def _screen(data: bytes) -> None:
    """Raise ``ValueError`` for opcodes that plain data do not need.

    ``stack`` has the depth of nested tuples of each value, or ``MARK``. The depth is limited, as a
    hash of nested tuples recurses without a limit. The memo never returns a tuple, so all tuples
    together have no more values than the file.
    """
    stack: list[int] = []
    memo: dict[int, int] = {}
    arg: Any
    for code, arg, _ in pickletools.genops(data):
        name = code.name
        if not OPCODES.fullmatch(name):
            raise ValueError(f"the opcode {name} is not allowed")
        if name == "MARK":
            stack.append(MARK)
        elif name in PUTS:
            place = len(memo) if name == "MEMOIZE" else arg
            if place > len(memo) or not stack:
                raise ValueError("its memo has gaps")
            memo[place] = stack[-1]
        elif name in GETS:
            if memo.get(arg, 1):
                raise ValueError("it takes from its memo what is not there, or a tuple")
            stack.append(0)
        else:
            taken = _take(stack, code.stack_before)
            if name.startswith("TUPLE"):
                stack.append(1 + max(taken, default=0))
                if stack[-1] > MOST_NESTED:
                    raise ValueError("its tuples are nested too deep")
            elif code.stack_after:
                stack.append(0)
        if len(stack) > MOST_STACKED:
            raise ValueError(f"it has more than {MOST_STACKED} values at a time")
    if stack:
        raise ValueError("values are left when it ends")


def _take(stack: list[int], kinds: Sequence[pickletools.StackObject]) -> list[int]:
    """Remove the arguments of an opcode from the stack, and return them."""
    n = len(kinds)
    if pickletools.markobject in kinds:
        since = next((k for k, depth in enumerate(reversed(stack)) if depth == MARK), None)
        if since is None:
            raise ValueError("a mark is missing")
        n = n - 1 + since  # a container, the mark, and all values after the mark
    if n > len(stack):
        raise ValueError("a value is missing")
    taken = stack[len(stack) - n :]
    del stack[len(stack) - n :]
    return taken


# ---------------------------------------------------------------------- the unpickler


class _Unpickler(pickle.Unpickler):
    """Unpickler that uses stand-ins in place of classes and functions."""

    def __init__(self, file: io.BytesIO, objects: Sequence[str]) -> None:
        super().__init__(file)
        self._objects = objects

    def find_class(self, module: str, name: str) -> Any:
        found = f"{module}.{name}"
        if found in STAND_INS:
            return STAND_INS[found]
        if any(found == allowed or found.endswith(f".{allowed}") for allowed in self._objects):
            return PickledObject
        raise ValueError(f"it asks for {found}, which is not allowed")


class _StandIn:
    """Base class of stand-ins.

    Without ``__setstate__`` the opcode BUILD would set any attribute, even of the class.
    """

    def __setstate__(self, state: Any) -> None:
        raise ValueError(f"a state that {type(self).__name__} does not take")


class PickledObject(_StandIn):
    """Stand-in for an instance of an allowed class."""

    state: dict[str, Any]  # attributes of the original; arrays are stand-ins, see ``plain``

    def __new__(cls) -> PickledObject:  # noqa: PYI034 (no Self before 3.11)
        found = super().__new__(cls)
        found.state = {}
        return found

    def __setstate__(self, state: Any) -> None:
        if type(state) is not dict or not all(type(name) is str for name in state):
            raise ValueError("expected attributes by name as the state of an object")
        self.state = state


class _Dtype(_StandIn):
    """Stand-in for ``numpy.dtype``: numbers, texts and bytes."""

    found: np.dtype[Any] | None = None  # None for Python objects

    def __init__(self, code: object, *_: object) -> None:
        if type(code) is not str or not (code in ("O8", "O4") or PLAIN.fullmatch(code)):
            raise ValueError(f"dtype {reprlib.repr(code)}: expected numbers, texts or bytes")
        if code[0] != "O":
            self.found = np.dtype(code)

    def __setstate__(self, state: Any) -> None:
        if type(state) is not tuple or len(state) not in (8, 9) or state[0] not in (3, 4):
            raise ValueError(f"expected the state of a dtype, got {reprlib.repr(state)}")
        _, order, subarray, names = state[:4]
        if order not in ("<", ">", "=", "|"):
            raise ValueError(f"unknown byte order {reprlib.repr(order)}")
        if subarray is not None or names is not None:
            raise ValueError("dtypes of several parts are not read")
        if self.found is not None:
            self.found = np.dtype(self.found.newbyteorder(order).str)


def _length(number: object) -> int:
    if type(number) is not int or not 0 <= number < 1 << 63:
        raise ValueError(f"expected a length, got {reprlib.repr(number)}")
    return number


def _values(data: Any, dtype: Any, shape: Any, order: Any) -> NDArray[Any]:
    """An array over bytes of a file; ``ValueError`` for a wrong number of bytes."""
    if not isinstance(dtype, _Dtype) or dtype.found is None:
        raise ValueError(OBJECTS)
    if type(shape) is not tuple or len(shape) > MOST_AXES or type(data) not in (bytes, bytearray):
        raise ValueError("expected the state of an array")
    lengths, found = tuple(map(_length, shape)), dtype.found
    expected = math.prod(lengths) * found.itemsize
    if len(data) != expected:
        raise ValueError(
            f"an array of {found} and shape {lengths} takes {expected} bytes, and has {len(data)}"
        )
    return np.ndarray(lengths, found, data, order=order)


class _Array(_StandIn):
    """Stand-in for an array, whose values are its pickled state."""

    values: Any = None

    def __init__(self, *_: object) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, is_fortran, data = state
        if isinstance(dtype, _Dtype) and dtype.found is None and shape == ():
            (self.values,) = data  # one Python object
        else:
            self.values = _values(data, dtype, shape, "F" if is_fortran else "C")


class _Buffer(_Array):
    """Stand-in for an array that is made of bytes, as in protocol 5."""

    def __init__(self, data: object, dtype: object, shape: object, order: object) -> None:
        if order not in ("C", "F"):
            raise ValueError(f"unknown order {reprlib.repr(order)}")
        self.values = _values(data, dtype, shape, order)


class _Scalar(_StandIn):
    """Stand-in for a NumPy scalar, which becomes a number or text of Python."""

    def __new__(cls, dtype: object, data: object) -> Any:
        return _values(data, dtype, (), "C").item()


STAND_INS: dict[str, type[_StandIn]] = {"numpy.ndarray": _Array, "numpy.dtype": _Dtype}
for _core in ("numpy.core", "numpy._core"):
    STAND_INS |= {
        f"{_core}.multiarray._reconstruct": _Array,
        f"{_core}.multiarray.scalar": _Scalar,
        f"{_core}.numeric._frombuffer": _Buffer,
    }
