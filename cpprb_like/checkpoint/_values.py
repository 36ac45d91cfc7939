"""Python values <-> JSON: all of a checkpoint except rows and arrays.

JSON is made of numbers, texts, containers, NumPy's dtypes and generators, and objects of known
classes. A known class is one of this package (``_classes``), or one that the caller passes. A file
cannot cause an import, a call or an evaluation. A value without JSON, such as a function or an
environment, is *external*: the JSON has its path, and the caller of ``load`` passes the value.
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from cpprb_like._arguments.checks import as_int
from cpprb_like._files.json_codec import DEEPEST, dtype_from_json, dtype_to_json
from cpprb_like._machine.generators import read_seed
from cpprb_like._machine.prefetch_state import state_before, state_of_generator
from cpprb_like.checkpoint import _classes
from cpprb_like.checkpoint._nodes import OF_CALLER, join
from cpprb_like.checkpoint._savable import Savable, holds_rows
from cpprb_like.errors import DamagedError
from cpprb_like.samplers._base import Sampler
from cpprb_like.views._layer import Layer

INLINE_NBYTES = 1024
SCALARS = {cls.__name__: cls for cls in (bool, int, float, complex, str, bytes, object)}
MT_WORDS = 624
MOST_POOL = 1 << 10  # words; the time to fill a pool grows with the square of its size
BIT_GENERATORS = ("PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64")


class Objects(NamedTuple):
    """Python objects of the caller, which only ``encode=`` can turn into bytes."""

    values: list[Any]


class NotSaved(NamedTuple):
    """A value that the caller of ``load`` passes."""

    value: Any


def _is_own(cls: type) -> bool:
    """Whether any subclass can be saved; then the caller of ``load`` passes the class."""
    holds = issubclass(cls, Savable) and (cls.HOLDS_ROWS or bool(cls.OBJECTS))
    return holds or issubclass(cls, (Sampler, Layer))


def state_of(value: Any) -> dict[str, Any]:
    """The attributes of an object, or the result of its ``__getstate__``."""
    own = getattr(type(value), "__getstate__", None)
    state: dict[str, Any] = dict(value.__dict__)
    if own is not None and own is not getattr(object, "__getstate__", None):
        state = own(value)
    return state | (state_before(value) or {})


def give_state(value: Any, state: dict[str, Any]) -> None:
    """Set attributes as ``state_of`` returns them, by ``__setstate__`` if the class has one."""
    own = getattr(type(value), "__setstate__", None)
    if own is not None:
        own(value, state)
    else:
        value.__dict__.update(state)


class Encoder:
    """Makes JSON of values; collects arrays, holders of rows and Python objects."""

    def __init__(self, classes: Iterable[type] = ()) -> None:
        self._classes = frozenset(classes)
        self._seen: dict[int, int] = {}
        self._alive: list[Any] = []  # references, so that no id is reused
        self.arrays: list[tuple[str, NDArray[Any]]] = []
        self.objects: list[tuple[str, list[Any]]] = []
        self.holders: list[Any] = []
        self.elements: dict[str, Any] = {}  # objects that keep their identity, by path
        self.external: dict[str, Any] = {}
        self.unfit: list[str] = []  # paths of values that are neither saved nor external

    def encode(self, value: Any, path: str = "") -> Any:
        """The JSON of the value at ``path``."""
        if path.count(".") > DEEPEST:
            raise ValueError(f"{path}: nested too deeply to be saved")
        if value is None or type(value) in (bool, int, str):
            return value
        if type(value) is float:
            return value if math.isfinite(value) else {"$": "float", "value": repr(value)}
        if type(value) is list:
            return [self.encode(entry, join(path, str(k))) for k, entry in enumerate(value)]
        if type(value) is dict and all(type(key) is str for key in value) and "$" not in value:
            return {key: self.encode(entry, join(path, key)) for key, entry in value.items()}
        return self._other(value, path)

    def _other(self, value: Any, path: str) -> Any:
        if isinstance(value, Objects):
            self.objects.append((path, value.values))
            return {"$": "objects", "number": len(self.objects) - 1}
        if isinstance(value, NotSaved):
            return self._shared(value.value, path, is_external=True)
        if isinstance(value, tuple) and type(value) is tuple:
            return {"$": "tuple", "values": self.encode(list(value), path)}
        if isinstance(value, tuple) and self._name(type(value)) is not None:
            values = self.encode(list(value), path)
            return {"$": "named", "class": self._name(type(value)), "values": values}
        if type(value) is dict:
            pairs = [
                [self.encode(key, path), self.encode(entry, path)] for key, entry in value.items()
            ]
            return {"$": "dict", "pairs": pairs}
        if type(value) is deque:
            return {"$": "deque", "values": self.encode(list(value), path), "most": value.maxlen}
        if type(value) in (set, frozenset):
            values = [self.encode(entry, path) for entry in sorted(value, key=repr)]
            return {"$": type(value).__name__, "values": values}
        if type(value) is bytes:
            return {"$": "bytes", "hex": value.hex()}
        if isinstance(value, np.ndarray) and type(value) is np.ndarray:
            return self._array(value, path)
        if isinstance(value, np.generic) and not isinstance(value, np.void | np.object_):
            return {"$": "scalar", "value": self._inline(np.asarray(value))}
        if isinstance(value, np.dtype):
            return {"$": "dtype", "descr": dtype_to_json(value)}
        if isinstance(value, type) and self._name(value) is not None:
            return {"$": "class", "name": self._name(value)}
        if isinstance(value, type) and value in SCALARS.values():
            return {"$": "type", "name": value.__name__}
        if isinstance(value, type) and issubclass(value, np.generic) and value is not np.generic:
            return {"$": "type", "name": dtype_to_json(np.dtype(value))}
        return self._shared(value, path)

    def _name(self, cls: type) -> str | None:
        """The name of a class in files; names of the caller's classes have a prefix."""
        known = _classes.name_of(cls)
        if known is None and (cls in self._classes or _is_own(cls)):
            return OF_CALLER + cls.__name__
        return known

    def _shared(self, value: Any, path: str, *, is_external: bool = False) -> Any:
        """The JSON of an object that several paths may share."""
        if id(value) in self._seen:
            return {"$": "again", "number": self._seen[id(value)]}
        number = self._seen[id(value)] = len(self._seen)
        self._alive.append(value)
        if is_external:
            return self._external(number, value, path)
        if isinstance(value, np.random.Generator):
            self.elements[path] = value
            return {"$": "generator", "number": number, **self._generator(value, path)}
        if isinstance(value, np.random.RandomState):
            state = self.encode(value.get_state(legacy=False), path)
            return {"$": "random state", "number": number, "state": state}
        if type(value) is random.Random:
            return {"$": "random", "number": number, "state": self.encode(value.getstate(), path)}
        name = self._name(type(value))
        if holds_rows(value):
            self.holders.append(value)
            place = len(self.holders) - 1
            self.elements[path] = value
            state = self.encode(value._rows_to_save().attributes, path)
            return {"$": "rows", "number": number, "class": name, "ring": place, "state": state}
        if name is not None:
            self.elements[path] = value
            attributes = state_of(value)
            if isinstance(value, Savable):
                attributes |= {own: Objects(attributes[own]) for own in value.OBJECTS}
                attributes |= {own: NotSaved(attributes[own]) for own in value.NOT_SAVED}
            state = self.encode(attributes, path)
            return {"$": "object", "number": number, "class": name, "state": state}
        if not callable(value):
            self.unfit.append(path)
        return self._external(number, value, path)

    def _external(self, number: int, value: Any, path: str) -> Any:
        self.external[path] = value
        return {"$": "external", "number": number, "path": path, "type": type(value).__name__}

    def _generator(self, rng: np.random.Generator, path: str) -> dict[str, Any]:
        bits = rng.bit_generator
        kind = type(bits).__name__
        if kind not in BIT_GENERATORS:
            raise TypeError(f"{path}: a {kind} is not saved; expected one of {BIT_GENERATORS}")
        state = self.encode(state_of_generator(rng), path)
        seeds = getattr(bits, "seed_seq", None)
        saved: dict[str, Any] = {"class": kind, "state": state}
        if isinstance(seeds, np.random.SeedSequence):
            saved["seeds"] = {
                "entropy": self.encode(seeds.entropy, path),
                "spawn_key": [int(key) for key in seeds.spawn_key],
                "pool_size": seeds.pool_size,
                "spawned": seeds.n_children_spawned,
            }
        return saved

    def _array(self, value: NDArray[Any], path: str) -> Any:
        if value.dtype.hasobject:
            raise TypeError(f"{path}: an array of Python objects is not saved")
        if value.nbytes <= INLINE_NBYTES:
            return {"$": "small array", "value": self._inline(value)}
        self.arrays.append((path, np.array(value, order="C")))
        return {"$": "array", "number": len(self.arrays) - 1}

    @staticmethod
    def _inline(value: NDArray[Any]) -> list[Any]:
        return [dtype_to_json(value.dtype), list(value.shape), value.tobytes().hex()]


class Source(Protocol):
    """The arrays, Python objects and rows of a state, by number."""

    def array(self, number: int) -> NDArray[Any]: ...
    def objects(self, number: int) -> list[Any]: ...
    def holder(self, cls: type, ring: int, path: str, attributes: dict[str, Any]) -> Any: ...


class Decoder:
    """Makes values of JSON.

    ``replace`` has all external values by path, and values that replace saved ones. After a missing
    external value no object gets its state, as its checks would refuse it; then ``finish`` raises.
    """

    def __init__(
        self,
        source: Source,
        classes: Iterable[type] = (),
        replace: Mapping[str, Any] | None = None,
    ) -> None:
        self._source = source
        self._classes = {OF_CALLER + cls.__name__: cls for cls in classes}
        self._replace = dict(replace or {})
        self._used: set[str] = set()
        self._missing: list[str] = []
        self._seen: dict[int, Any] = {}
        self.elements: dict[str, Any] = {}

    def finish(self) -> None:
        """Raise ``ValueError`` for a missing external value, or an unknown path of ``replace``."""
        if self._missing:
            raise ValueError(
                "functions and environments are not saved, so they are missing here: "
                f"{self._missing}; hand them over as replace={{path: value}}, or restore() an "
                "object that has them"
            )
        unknown = sorted(set(self._replace) - self._used)
        if unknown:
            raise ValueError(f"replace: nothing was saved at {unknown}")

    def decode(self, saved: Any, path: str = "", depth: int = 0) -> Any:
        """The value of the JSON at ``path``."""
        if depth > 4 * DEEPEST:
            raise DamagedError("nested too deeply")
        if path in self._replace:
            self._used.add(path)
            if isinstance(saved, dict) and "number" in saved:
                self._seen[saved["number"]] = self._replace[path]
            return self._replace[path]
        if isinstance(saved, list):
            return [
                self.decode(entry, join(path, str(k)), depth + 1) for k, entry in enumerate(saved)
            ]
        if not isinstance(saved, dict):
            return saved
        if "$" not in saved:
            return {
                key: self.decode(entry, join(path, key), depth + 1) for key, entry in saved.items()
            }
        try:
            return self._tagged(saved, path, depth + 1)
        except (DamagedError, MemoryError, RecursionError):
            raise
        except (ArithmeticError, AttributeError, LookupError) as error:
            raise DamagedError(f"{path or 'the object'} of the manifest: {error!r}") from error

    def _tagged(self, saved: dict[str, Any], path: str, depth: int) -> Any:
        kind = str(saved["$"])
        if kind in VALUES:
            return VALUES[kind](self.decode(saved["values"], path, depth))
        if kind in PLAIN:
            return PLAIN[kind](saved)
        if kind == "named":
            made: Any = self._class(saved["class"])
            return made(*self.decode(saved["values"], path, depth))
        if kind == "dict":
            pairs = saved["pairs"]
            return {self.decode(k, "$", depth): self.decode(v, path, depth) for k, v in pairs}
        if kind == "deque":
            return deque(self.decode(saved["values"], path, depth), saved["most"])
        if kind == "objects":
            return self._source.objects(saved["number"])
        if kind == "array":
            return self._source.array(saved["number"])
        if kind == "class":
            return self._class(saved["name"])
        if kind == "again":
            return self._seen[saved["number"]]
        if kind == "external":
            self._missing.append(f"{saved['path']} ({saved['type']})")
            self._seen[saved["number"]] = None
            return None
        return self._shared(kind, saved, path, depth)

    def _class(self, name: str) -> type:
        found = self._classes.get(name) or _classes.class_of(name)
        if found is None:
            raise ValueError(f"{name!r} is no class of this package; hand it over as classes=[...]")
        return found

    def _shared(self, kind: str, saved: dict[str, Any], path: str, depth: int) -> Any:
        number = saved["number"]
        value: Any = None
        if kind == "generator":
            value = self._generator(saved, path, depth)
        elif kind == "random state":
            value = np.random.RandomState()  # of the keras-gym buffer
            numbers = self.decode(saved["state"], "$", depth)
            _check_state(numbers, path)
            value.set_state(numbers)
        elif kind == "random":
            value = random.Random()
            value.setstate(self.decode(saved["state"], "$", depth))
        elif kind == "rows":
            state = self.decode(saved["state"], path, depth)
            cls = self._class(saved["class"])
            if not (issubclass(cls, Savable) and cls.HOLDS_ROWS):
                raise DamagedError(f"{path}: a {cls.__name__} holds no rows")
            if not self._missing:
                value = self._source.holder(cls, saved["ring"], path, state)
        elif kind == "object":
            value = self._object(saved, path, depth)
        else:
            raise DamagedError(f"{path}: unknown kind {kind!r}")
        self._seen[number] = value
        self.elements[path] = value
        return value

    def _object(self, saved: dict[str, Any], path: str, depth: int) -> Any:
        cls: Any = self._class(saved["class"])
        if issubclass(cls, Savable) and cls.HOLDS_ROWS:
            raise DamagedError(f"{path}: a {cls.__name__} holds rows")
        state = self.decode(saved["state"], path, depth)
        if not isinstance(state, dict):
            raise DamagedError(f"{path}: expected attributes, got {type(state).__name__}")
        value = cls.__new__(cls)
        if not self._missing:
            give_state(value, state)
        return value

    def _generator(self, saved: dict[str, Any], path: str, depth: int) -> np.random.Generator:
        if saved["class"] not in BIT_GENERATORS:
            raise DamagedError(f"{path}: unknown generator {saved['class']!r}")
        cls = getattr(np.random, saved["class"])
        seeds: Any = 0
        if "seeds" in saved:
            given = saved["seeds"]
            if type(given["pool_size"]) is not int or given["pool_size"] > MOST_POOL:
                raise DamagedError(f"{path}: a pool of {given['pool_size']!r} words")
            seeds = np.random.SeedSequence(
                read_seed("entropy", self.decode(given["entropy"], "$", depth)),
                spawn_key=tuple(as_int("spawn_key", key, 0) for key in given["spawn_key"]),
                pool_size=given["pool_size"],
                n_children_spawned=given["spawned"],
            )
        bits = cls(seeds)
        state = self.decode(saved["state"], "$", depth)
        _check_state(state, path)
        bits.state = state
        return np.random.Generator(bits)


def _check_state(state: Any, path: str) -> None:
    """Raise ``DamagedError`` for a generator state with which NumPy's draws crash or hang.

    With a ``pos`` after the last word of MT19937, NumPy reads beyond its memory. A key of zeros, or
    an even increment of PCG64, may yield only zeros; a draw that rejects zeros never ends.
    """
    _check_natural(state, path)
    kind, numbers = state["bit_generator"], state["state"]
    if kind == "MT19937":
        key, pos = np.asarray(numbers["key"]), numbers["pos"]
        if key.dtype != np.uint32 or key.shape != (MT_WORDS,) or not key[1:].any():
            raise DamagedError(f"{path}: no state of MT19937 has this key")
        if type(pos) is not int or pos > MT_WORDS:
            raise DamagedError(f"{path}: a place {pos!r} among {MT_WORDS} words of MT19937")
    if kind.startswith("PCG64") and not numbers["inc"] & 1:
        raise DamagedError(f"{path}: no state of {kind} has the increment {numbers['inc']}")


def _check_natural(state: Any, path: str) -> None:
    """Raise ``DamagedError`` if the state of a generator has a negative number."""
    if isinstance(state, dict):
        for value in state.values():
            _check_natural(value, path)
    elif isinstance(state, int) and state < 0:
        raise DamagedError(f"{path}: no state of a generator has the number {state}")


def _from_inline(saved: list[Any]) -> NDArray[Any]:
    descr, shape, data = saved
    raw = bytes.fromhex(data)
    if len(raw) > INLINE_NBYTES:
        raise DamagedError("an array in the manifest is too large")
    return np.frombuffer(raw, dtype_from_json(descr)).reshape(tuple(shape)).copy()


# By tag: containers of decoded values, and values of the JSON alone.
VALUES: dict[str, Callable[[list[Any]], Any]] = {"tuple": tuple, "set": set, "frozenset": frozenset}
PLAIN: dict[str, Callable[[dict[str, Any]], Any]] = {
    "float": lambda saved: {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}[saved["value"]],
    "bytes": lambda saved: bytes.fromhex(saved["hex"]),
    "small array": lambda saved: _from_inline(saved["value"]),
    "scalar": lambda saved: _from_inline(saved["value"])[()],
    "dtype": lambda saved: dtype_from_json(saved["descr"]),
    "type": lambda saved: SCALARS.get(saved["name"]) or dtype_from_json(saved["name"]).type,
}
