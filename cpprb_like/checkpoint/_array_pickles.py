"""Pickles of dicts of arrays, as NumPy writes them: read without ``pickle``, and written.

A pickle is a program for a machine with a stack. The machine here knows the instructions that a
dict of arrays takes, and five names: ``_reconstruct`` and ``scalar``, under their modules in NumPy
1 and 2, ``ndarray`` and ``dtype``. None of them is called: classes of this module stand for arrays
and dtypes, so nothing of NumPy believes what a file says. Python's own unpickler, with all other
names refused, would not do: a few bytes make it hash tuples until the stack of the process is full,
or allocate a memo of any size. Long strings of bytes are passed over: what is kept is where they
are. Not here: what the arrays mean (``_cpprb_files``), and the bytes of the file (``_npz``).
"""

from __future__ import annotations

import math
import pickle
import pickletools
import re
import reprlib
import struct
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cpprb_like.checkpoint._npz import Member

__all__ = [
    "Span",
    "StoredArray",
    "dump_array",
    "dump_dict",
    "dump_int",
    "dump_text",
    "load",
    "wrapped",
]

INLINE_NBYTES = 64  # longer strings of bytes are passed over
MOST_STACKED = 1 << 14  # a dict comes in lots of a thousand pairs
MOST_NAMES = 1 << 10  # texts, dtypes and names of modules
MOST_NBYTES = (1 << 63) - 1
PLAIN = re.compile(r"b1|[iuf](?:[1248]|12|16)|c(?:8|16|24|32)|[mM]8|[SUV]\d{1,9}")
UNITS = ("Y", "M", "W", "D", "h", "m", "s", "ms", "us", "ns", "ps", "fs", "as", "generic")
OBJECTS = "an array in it holds Python objects, which are not read"
MARK = object()


class Span(NamedTuple):
    """Where a long string of bytes lies in its member."""

    start: int
    nbytes: int


class _Global(NamedTuple):
    module: str
    name: str


RECONSTRUCT = [
    _Global(f"{core}.multiarray", "_reconstruct") for core in ("numpy.core", "numpy._core")
]
SCALAR = [_Global(f"{core}.multiarray", "scalar") for core in ("numpy.core", "numpy._core")]
NDARRAY = _Global("numpy", "ndarray")
DTYPE = _Global("numpy", "dtype")
NAMES = {*RECONSTRUCT, *SCALAR, NDARRAY, DTYPE}


class _Forgotten:
    """What nothing refers to a second time."""


FORGOTTEN = _Forgotten()


class _Dtype:
    """Stands for ``numpy.dtype``."""

    def __init__(self, code: object) -> None:
        if not isinstance(code, str):
            raise ValueError(f"expected the code of a dtype, got {reprlib.repr(code)}")
        self.is_object = code in ("O8", "O4")
        self.found: np.dtype[Any] | None = None
        self._code = code
        if not self.is_object:
            if not PLAIN.fullmatch(code):
                raise ValueError(f"dtype {code!r}: expected numbers, texts or bytes")
            self.found = np.dtype(code)

    def set_state(self, state: object) -> None:
        if not isinstance(state, tuple) or len(state) not in (8, 9) or state[0] not in (3, 4):
            raise ValueError(
                f"dtype {self._code!r}: expected a state of NumPy's, got {reprlib.repr(state)}"
            )
        _, order, subarray, names, fields, itemsize, _, _ = state[:8]
        if order not in ("<", ">", "=", "|"):
            raise ValueError(f"dtype {self._code!r}: unknown byte order {reprlib.repr(order)}")
        if self.is_object:
            return
        found: Any = self.found
        if subarray is not None:
            base, shape = subarray
            if not isinstance(shape, tuple):
                shape = (shape,)
            found = np.dtype((_plain(base), tuple(map(_length, shape))))
        elif names is not None:
            if not all(type(name) is str for name in (*names, *fields)):
                raise ValueError("expected texts as the names of fields")
            parts = dict(fields)
            found = np.dtype(
                {
                    "names": list(names),
                    "formats": [_plain(parts[name][0]) for name in names],
                    "offsets": [_length(parts[name][1]) for name in names],
                    "itemsize": _length(itemsize),
                }
            )
        elif found.kind in "mM":
            if len(state) == 9:
                found = np.dtype(f"{found.kind}8[{_unit(state[8])}]")
            found = found.newbyteorder(order)
        else:
            found = found.newbyteorder(order)
        self.found = found


def _plain(dtype: object) -> np.dtype[Any]:
    if isinstance(dtype, _Dtype) and dtype.is_object:
        raise ValueError(OBJECTS)
    if not isinstance(dtype, _Dtype) or dtype.found is None:
        raise ValueError("expected a dtype without Python objects")
    return dtype.found


def _length(number: object) -> int:
    if type(number) is not int or not 0 <= number <= MOST_NBYTES:
        raise ValueError(f"expected a length, got {reprlib.repr(number)}")
    return number


def _unit(metadata: object) -> str:
    """The unit of times, as ``25s``, from what NumPy keeps of it."""
    unit, count, numerator, _ = metadata[1]  # type: ignore[index]
    name = unit.decode() if isinstance(unit, bytes) else unit
    if name not in UNITS or numerator != 1 or not 1 <= _length(count) < 1 << 31:
        raise ValueError(f"unknown unit of time {reprlib.repr(metadata)}")
    return f"{count}{name}"


class StoredArray:
    """Stands for an array: what it is, and where its bytes are; or one Python object."""

    def __init__(self) -> None:
        self.dtype: np.dtype[Any] | None = None
        self.shape: tuple[int, ...] = ()
        self.is_fortran = False
        self.data: bytes | Span = b""
        self.item: Any = None  # of an array of one Python object
        self.is_filled = False

    @property
    def nbytes(self) -> int:
        """Bytes of its values."""
        return math.prod(self.shape) * (0 if self.dtype is None else self.dtype.itemsize)

    def set_state(self, state: object) -> None:
        if not isinstance(state, tuple) or len(state) != 5 or state[0] != 1 or self.is_filled:
            raise ValueError("expected the state of an array")
        _, shape, dtype, is_fortran, data = state
        if not isinstance(shape, tuple) or type(is_fortran) is not bool or len(shape) > 32:
            raise ValueError("expected the state of an array")
        self.shape, self.is_fortran = tuple(map(_length, shape)), is_fortran
        self.is_filled = True
        if isinstance(dtype, _Dtype) and dtype.is_object and shape == () and type(data) is list:
            (self.item,) = data
            return
        self.dtype, self.data = _plain(dtype), data
        found = data.nbytes if isinstance(data, Span) else len(data) if type(data) is bytes else -1
        if found != self.nbytes:
            raise ValueError(
                f"an array of {self.dtype} and shape {self.shape} takes {self.nbytes} bytes, "
                f"and has {found}"
            )


class _Machine:
    """Runs a pickle. ``keeps`` says which numbers may stay as keys of a dict."""

    def __init__(self, member: Member, budget: int, keeps: Callable[[int], bool]) -> None:
        self._member = member
        self._left = budget
        self._keeps = keeps
        self._stack: list[Any] = []
        self._memo: list[Any] = []
        self._texts: dict[str, str] = {}
        self._made = 0

    def run(self) -> Any:
        read, stack, run = self._member.read, self._stack, INSTRUCTIONS
        while True:
            code = read(1)
            if code == b".":
                if len(stack) != 1:
                    raise ValueError("it ends with other than one value")
                return stack[0]
            instruction = run.get(code)
            if instruction is None:
                raise ValueError(f"it has the instruction {code!r}, which no dict of arrays needs")
            instruction(self)
            self._left -= 1
            if self._left < 0 or len(stack) > MOST_STACKED:
                raise ValueError("it has more instructions than its rows need")

    # ------------------------------------------------------------------ values

    def push(self, value: Any) -> None:
        self._stack.append(value)

    def number(self, form: str) -> int:
        n: int
        (n,) = struct.unpack(form, self._member.read(struct.calcsize(form)))
        return n

    def push_long(self) -> None:
        n = self.number("<B")
        if n > 8:
            raise ValueError(f"an integer of {n} bytes")
        self.push(int.from_bytes(self._member.read(n), "little", signed=True))

    def push_text(self, form: str) -> None:
        text = self._member.read(self.number(form)).decode()
        known = self._texts.setdefault(text, text)
        if len(self._texts) > MOST_NAMES:
            raise ValueError("it has too many texts")
        self.push(known)

    def push_bytes(self, form: str) -> None:
        n = self.number(form)
        if n <= INLINE_NBYTES:
            self.push(self._member.read(n))
            return
        self._member.expect(n)
        self.push(Span(self._member.position, n))
        self._member.skip(n)

    def frame(self) -> None:
        self._member.expect(self.number("<Q"))

    def protocol(self) -> None:
        if self.number("<B") not in (2, 3, 4):
            raise ValueError("expected a pickle of protocol 2, 3 or 4")

    def line(self) -> str:
        found = bytearray()
        while (byte := self._member.read(1)) != b"\n":
            found += byte
            if len(found) > 100:
                raise ValueError("a name of more than 100 bytes")
        return found.decode()

    def pop(self) -> Any:
        if not self._stack or self._stack[-1] is MARK:
            raise ValueError("a value is missing")
        return self._stack.pop()

    def popped(self) -> list[Any]:
        """What was pushed since the last mark."""
        stack = self._stack
        for place in range(len(stack) - 1, -1, -1):
            if stack[place] is MARK:
                found = stack[place + 1 :]
                del stack[place:]
                return found
        raise ValueError("a mark is missing")

    def push_tuple(self, n: int) -> None:
        self.push(tuple(reversed([self.pop() for _ in range(n)])))

    # ------------------------------------------------------------------ names and the memo

    def named(self, module: str, name: str) -> None:
        found = _Global(module, name)
        if found not in NAMES:
            raise ValueError(f"it asks for {module}.{name}, which no dict of arrays needs")
        self.push(found)

    def stack_global(self) -> None:
        name, module = self.pop(), self.pop()
        if type(module) is not str or type(name) is not str:
            raise ValueError("a name is no text")
        self.named(module, name)

    def put(self, place: int) -> None:
        value = self.pop()
        self.push(value)
        if not isinstance(value, (_Global, _Dtype, str)) and not (
            type(value) is bytes and len(value) <= 1  # Python has each of these once
        ):
            value = FORGOTTEN
        if place == len(self._memo):
            self._memo.append(value)
        elif place < len(self._memo):
            self._memo[place] = value
        else:
            raise ValueError("a value is remembered out of order")

    def get(self, place: int) -> None:
        if place >= len(self._memo) or self._memo[place] is FORGOTTEN:
            raise ValueError("it refers to a value that no dict of arrays has twice")
        value = self._memo[place]
        if isinstance(value, _Dtype) and value.is_object:  # that of the array round everything
            raise ValueError(OBJECTS)
        self.push(value)

    # ------------------------------------------------------------------ objects

    def append(self, items: list[Any]) -> None:
        target = self.top(list)
        if len(target) + len(items) > 1:
            raise ValueError("a list of more than one item")
        target.extend(items)

    def set_items(self, items: list[Any]) -> None:
        target = self.top(dict)
        if len(items) % 2:
            raise ValueError("a key without a value")
        for key, value in zip(items[::2], items[1::2], strict=True):
            if type(key) not in (str, int):
                raise ValueError(f"a key that is neither text nor integer: {reprlib.repr(key)}")
            if type(key) is int and not self._keeps(key):
                continue
            if key in target:
                raise ValueError(f"the key {reprlib.repr(key)} comes twice")
            target[key] = value

    def top(self, kind: type) -> Any:
        if not self._stack or type(self._stack[-1]) is not kind:
            raise ValueError(f"expected a {kind.__name__}")
        return self._stack[-1]

    def pair(self) -> list[Any]:
        value, key = self.pop(), self.pop()
        return [key, value]

    def reduce(self) -> None:
        arguments, called = self.pop(), self.pop()
        if not isinstance(called, _Global) or type(arguments) is not tuple:
            raise ValueError("a call of what is no name")
        if called in RECONSTRUCT:
            if arguments != (NDARRAY, (0,), b"b"):
                raise ValueError("an array of an unknown class")
            self.push(StoredArray())
        elif called == DTYPE:
            self._made += 1
            if self._made > MOST_NAMES or len(arguments) != 3 or arguments[1:] != (False, True):
                raise ValueError("too many dtypes, or one that NumPy would not write so")
            self.push(_Dtype(arguments[0]))
        elif called in SCALAR:
            self.push(self._scalar(*arguments))
        else:
            raise ValueError(f"a call of {called.module}.{called.name}")

    def _scalar(self, dtype: object, data: object) -> Any:
        """A number or text of NumPy, as one of Python."""
        plain = _plain(dtype)
        if type(data) is not bytes or len(data) != plain.itemsize or plain.kind not in "biuU":
            raise ValueError("a scalar that is neither text nor integer")
        return np.frombuffer(data, plain)[0].item()

    def build(self) -> None:
        state = self.pop()
        target = self.pop()
        if not isinstance(target, (StoredArray, _Dtype)):
            raise ValueError("a state of what is no array")
        target.set_state(state)
        self.push(target)


INSTRUCTIONS: dict[bytes, Callable[[_Machine], None]] = {
    b"\x80": _Machine.protocol,
    b"\x95": _Machine.frame,
    b"(": lambda vm: vm.push(MARK),
    b"N": lambda vm: vm.push(None),
    b"\x88": lambda vm: vm.push(True),
    b"\x89": lambda vm: vm.push(False),
    b"K": lambda vm: vm.push(vm.number("<B")),
    b"M": lambda vm: vm.push(vm.number("<H")),
    b"J": lambda vm: vm.push(vm.number("<i")),
    b"\x8a": _Machine.push_long,
    b"\x8c": lambda vm: vm.push_text("<B"),
    b"X": lambda vm: vm.push_text("<I"),
    b"C": lambda vm: vm.push_bytes("<B"),
    b"B": lambda vm: vm.push_bytes("<I"),
    b"\x8e": lambda vm: vm.push_bytes("<Q"),
    b")": lambda vm: vm.push(()),
    b"\x85": lambda vm: vm.push_tuple(1),
    b"\x86": lambda vm: vm.push_tuple(2),
    b"\x87": lambda vm: vm.push_tuple(3),
    b"t": lambda vm: vm.push(tuple(vm.popped())),
    b"]": lambda vm: vm.push([]),
    b"a": lambda vm: vm.append([vm.pop()]),
    b"e": lambda vm: vm.append(vm.popped()),
    b"}": lambda vm: vm.push({}),
    b"s": lambda vm: vm.set_items(vm.pair()),
    b"u": lambda vm: vm.set_items(vm.popped()),
    b"c": lambda vm: vm.named(vm.line(), vm.line()),
    b"\x93": _Machine.stack_global,
    b"q": lambda vm: vm.put(vm.number("<B")),
    b"r": lambda vm: vm.put(vm.number("<I")),
    b"\x94": lambda vm: vm.put(len(vm._memo)),
    b"h": lambda vm: vm.get(vm.number("<B")),
    b"j": lambda vm: vm.get(vm.number("<I")),
    b"R": _Machine.reduce,
    b"b": _Machine.build,
}


def load(member: Member, budget: int, keeps: Callable[[int], bool]) -> Any:
    """The object in an array of one, which the rest of a member pickles.

    Arrays are ``StoredArray``; items whose keys are integers that ``keeps`` does not take are left
    out. Raises ``ValueError`` if it is anything else, or takes more than ``budget`` instructions.
    """
    try:
        outer = _Machine(member, budget, keeps).run()
        if not isinstance(outer, StoredArray) or outer.dtype is not None or not outer.is_filled:
            raise ValueError("expected one object in an array")
    except (ArithmeticError, LookupError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"{member.name!r}: no pickle of arrays: {error}") from error
    return outer.item


# ---------------------------------------------------------------------- writing


def wrapped(item: list[bytes | memoryview]) -> list[bytes | memoryview]:
    """The pickle of an array of one object, given what pushes the object."""
    head = b"\x80\x04" + _array_of(b")", _dtype(np.dtype(object))) + b"\x89]"
    return [head, *item, b"atb."]


def dump_dict(items: list[tuple[bytes, list[bytes | memoryview]]]) -> list[bytes | memoryview]:
    """What pushes a dict, given what pushes its keys and its values."""
    found: list[bytes | memoryview] = [b"}"]
    for key, value in items:
        found += [key, *value, b"s"]
    return found


def dump_text(text: str) -> bytes:
    """What pushes a text."""
    data = text.encode()
    return b"X" + struct.pack("<I", len(data)) + data


def dump_int(number: int) -> bytes:
    """What pushes an integer."""
    if 0 <= number < 256:
        return b"K" + struct.pack("<B", number)
    return b"\x8a\x08" + struct.pack("<q", number)


def dump_array(values: NDArray[Any]) -> list[bytes | memoryview]:
    """What pushes an array; its values are not copied if they lie side by side."""
    values = np.ascontiguousarray(values).reshape(values.shape)
    shape = b"(" + b"".join(map(dump_int, values.shape)) + b"t"
    n = values.nbytes
    length = b"B" + struct.pack("<I", n) if n < 1 << 32 else b"\x8e" + struct.pack("<Q", n)
    data = values.reshape(-1).view(np.uint8).data if n else b""
    return [_array_of(shape, _dtype(values.dtype)) + b"\x89" + length, data, b"tb"]


def _array_of(shape: bytes, dtype: bytes) -> bytes:
    """A new array, and its state as far as the order of its values.

    The module has the name that all versions of NumPy know.
    """
    made = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85C\x01b\x87R"
    return made + b"(K\x01" + shape + dtype


def _dtype(dtype: np.dtype[Any]) -> bytes:
    """What pushes a dtype: as Python pickles it, without what begins and ends a pickle."""
    return pickletools.optimize(pickle.dumps(dtype, 3))[2:-1]
