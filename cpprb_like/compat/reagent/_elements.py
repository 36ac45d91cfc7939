"""Fields of ReAgent's buffers: dense arrays, id lists and id-score lists; errors of their values.

A kind of field infers itself from an example, checks values, and makes tensors. Not here: the rows
(``_rows``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from itertools import chain
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from cpprb_like._arguments.arrays import Array
from cpprb_like._arguments.checks import as_int
from cpprb_like.typing import FieldSpec

REQUIRED_KEYS = ["observation", "action", "reward", "terminal"]
RESERVED = frozenset({"truncated", "final_observation"})  # further parameters of ``add``
PACKAGES = {"torch": "PyTorch", "pandas": "pandas"}
NUMBERS = "biufc"  # kinds of dtypes


class InputError(ValueError, AssertionError):
    """Error for a refused argument. ReAgent raises ``AssertionError`` in most of these cases."""


class NamesError(InputError, KeyError):
    """Error for missing fields, or for fields that the buffer does not have."""

    __str__ = Exception.__str__  # KeyError's puts quotes around the message


@cache
def need(package: str) -> Any:
    """Import an optional package. Raises ``ImportError`` that names this module and the package."""
    try:
        return import_module(package)
    except ImportError as error:
        raise ImportError(
            f"cpprb_like.compat.reagent needs {PACKAGES[package]} (the package {package}) here, "
            f"and it cannot be imported: {error}"
        ) from error


class ReplayElement(NamedTuple):
    """A declared field. ``extra_storage_types`` is a list of these."""

    name: str
    shape: tuple[int, ...]
    type: DTypeLike


class InferredElement(NamedTuple):
    """A field inferred from the first step. ReAgent's class ``ReplayElement`` since July 2020."""

    name: str
    metadata: ElementMetadata


class ElementMetadata:
    """A kind of field: how its values are inferred, stored and returned."""

    @classmethod
    def like(cls, name: str, example: Any) -> ElementMetadata:
        """The field of an example value. Raises ``InputError`` if the value is of another kind."""
        raise NotImplementedError

    def declaration(self) -> FieldSpec:
        """The declaration of the field in ``env_dict``."""
        return {"shape": (), "dtype": object}

    def read(self, name: str, value: Any) -> Any:
        """The value of one step, to be stored. Raises ``InputError`` if it does not fit."""
        raise NotImplementedError

    def output(self, stacks: Array) -> Any:
        """Tensors, of two axes or more, from values of shape ``(n, stack, *shape)``."""
        raise NotImplementedError

    def output_lists(self, stacks: Array, lengths: NDArray[np.int64]) -> list[Any]:
        """The tensors of consecutive parts of ``stacks``, of these lengths."""
        parts = np.split(stacks, np.cumsum(lengths)[:-1]) if len(lengths) else []
        return [self.output(part) for part in parts]


@dataclass(frozen=True)
class DenseMetadata(ElementMetadata):
    """An array, returned as a tensor of shape ``(n, *shape, stack)``, or without a stack of 1.

    ``dtype`` and ``shape`` describe one step.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @classmethod
    def like(cls, name: str, example: Any) -> DenseMetadata:
        array = _as_array(name, example)
        if array.dtype.kind not in NUMBERS:
            raise InputError(f"{name}: expected numbers, got {array.dtype}")
        dtype = array.dtype.newbyteorder("=")
        return cls(array.shape, np.dtype(np.float32) if dtype == np.float64 else dtype)

    def declaration(self) -> FieldSpec:
        return {"shape": self.shape, "dtype": self.dtype}

    def read(self, name: str, value: Any) -> Any:
        if isinstance(value, (np.ndarray, np.generic)):
            shape = value.shape
        else:  # the check for numbers takes a third of the time of an array
            is_number = isinstance(value, (int, float, complex))
            shape = () if is_number else _as_array(name, value).shape
        if shape != self.shape:
            raise InputError(f"{name}: expected shape {self.shape}, got {shape}")
        return value

    def output(self, stacks: Array) -> Any:
        is_number = stacks.shape[1] == 1 and not self.shape
        return need("torch").from_numpy(stacks if is_number else _frames_last(stacks))

    def output_lists(self, stacks: Array, lengths: NDArray[np.int64]) -> list[Any]:
        tensor = need("torch").from_numpy(_frames_last(stacks))
        return list(tensor.split(lengths.tolist())) if len(lengths) else []


def _frames_last(stacks: Array) -> Array:
    """Move the axis of frames to the end. A stack of one frame loses the axis."""
    return stacks[:, 0] if stacks.shape[1] == 1 else np.moveaxis(stacks, 1, -1)


@dataclass(frozen=True)
class _ListsMetadata(ElementMetadata):
    """A dict with fixed keys of lists of any length. Each list has one column or two."""

    keys: tuple[str, ...]

    DTYPES: ClassVar[tuple[type, ...]]

    @classmethod
    def like(cls, name: str, example: Any) -> ElementMetadata:
        if not isinstance(example, Mapping) or not all(isinstance(key, str) for key in example):
            raise InputError(f"{name}: expected a dict with keys of type str, got {example!r}")
        kind = cls(tuple(example))
        kind.read(name, example)
        return kind

    def read(self, name: str, value: Any) -> dict[str, list[list[Any]]]:
        """The columns of each list, in types of JSON."""
        if not isinstance(value, Mapping):
            raise InputError(f"{name}: expected a dict of lists, got {type(value).__name__}")
        if set(value) != set(self.keys):
            raise InputError(f"{name}: expected the keys {list(self.keys)}, got {list(value)}")
        return {key: self._columns(f"{name}[{key!r}]", value[key]) for key in self.keys}

    def _columns(self, name: str, value: Any) -> list[list[Any]]:
        """A copy of the columns of the list of one key. Raises ``InputError`` if it is no list."""
        return [_ids(name, value)]

    def output(self, stacks: Array) -> Any:
        rows: list[Any] = stacks.reshape(-1).tolist()
        found = {}
        for key in self.keys:
            lists = [row[key] if row else [[]] * len(self.DTYPES) for row in rows]
            ends = np.cumsum([0, *(len(columns[0]) for columns in lists)], dtype=np.int32)
            columns: list[Array] = [
                np.fromiter(chain.from_iterable(row[place] for row in lists), dtype)
                for place, dtype in enumerate(self.DTYPES)
            ]
            found[key] = tuple(map(need("torch").from_numpy, (ends[:-1], *columns)))
        return found


class IDListMetadata(_ListsMetadata):
    """A list of ids under each key, returned as ``{key: (offsets int32, ids int64)}``."""

    DTYPES = (np.int64,)


class IDScoreListMetadata(_ListsMetadata):
    """Ids and their scores under each key, returned as ``{key: (offsets, ids, scores float32)}``.

    A value is a tuple of two lists of the same length.
    """

    DTYPES = (np.int64, np.float32)

    def _columns(self, name: str, value: Any) -> list[list[Any]]:
        if not isinstance(value, tuple) or len(value) != 2:
            raise InputError(f"{name}: expected a tuple of ids and scores, got {value!r}")
        ids, scores = _ids(name, value[0]), _as_array(name, value[1])
        if scores.ndim != 1 or (scores.size and scores.dtype.kind not in "fiu"):
            raise InputError(f"{name}: expected a list of scores, got {value[1]!r}")
        if len(ids) != len(scores):
            raise InputError(
                f"{name}: expected a score for each of {len(ids)} ids, got {len(scores)}"
            )
        return [ids, scores.astype(np.float32).tolist()]


KINDS = (DenseMetadata, IDListMetadata, IDScoreListMetadata)


def column(values: Array) -> Any:
    """A tensor of at least two axes, with one value in each row."""
    return need("torch").from_numpy(values[:, np.newaxis] if values.ndim == 1 else values)


def _infer(name: str, example: Any) -> ElementMetadata:
    """The field of an example value, of the first kind that takes it; else ``InputError``."""
    reasons = []
    for kind in KINDS:
        try:
            return kind.like(name, example)
        except InputError as error:  # noqa: PERF203 (three kinds at most)
            reasons.append(str(error))
    raise InputError(f"Unable to deduce type for {name}: {'; '.join(dict.fromkeys(reasons))}")


def infer_step(fields: Mapping[str, Any]) -> dict[str, ElementMetadata]:
    """The fields of a first step, required fields first."""
    names = dict.fromkeys([*(name for name in REQUIRED_KEYS if name in fields), *fields])
    return {name: _infer(name, fields[name]) for name in names}


def read_signature(
    signature: Iterable[tuple[str, tuple[int, ...], DTypeLike]],
) -> dict[str, ElementMetadata]:
    """The fields of a signature of ``ReplayElement``s. Raises ``InputError`` for bad ones."""
    elements: dict[str, ElementMetadata] = {}
    for name, shape, dtype in signature:
        if name in elements:
            raise InputError(f"extra_storage_types: the field {name} is declared twice")
        if not isinstance(shape, tuple):
            raise InputError(f"{name}: expected a tuple as its shape, got {shape!r}")
        lengths = tuple(as_int(f"{name}: shape", length) for length in shape)
        elements[name] = DenseMetadata(lengths, np.dtype(dtype).newbyteorder("="))
    return elements


def check_elements(elements: Mapping[str, ElementMetadata], stack_size: int) -> None:
    """Raise ``InputError`` if a buffer with stacks of this size cannot have these fields."""
    if not elements.keys() >= set(REQUIRED_KEYS):
        raise NamesError(f"Add expects {REQUIRED_KEYS} at least, got {list(elements)}")
    for name, kind in elements.items():
        if name in RESERVED:
            raise InputError(f"{name}: it is a parameter of add, and no name for a field")
        if not isinstance(kind, DenseMetadata):
            if name in REQUIRED_KEYS:
                raise InputError(f"{name}: expected an array, got {kind}")
            if stack_size > 1:
                raise InputError(f"{name}: id lists need stack_size=1, got {stack_size}")
            continue
        try:
            need("torch").from_numpy(np.empty(0, kind.dtype))
        except TypeError:
            raise InputError(f"{name}: PyTorch has no tensors of {kind.dtype}") from None
        if name in ("reward", "terminal") and kind.dtype.kind not in "biuf":
            raise InputError(f"{name}: expected real numbers, got {kind.dtype}")
        if name == "terminal" and kind.shape != ():
            raise InputError(f"terminal: expected one number or bool, got shape {kind.shape}")


def describe(elements: Mapping[str, ElementMetadata]) -> list[list[Any]]:
    """Fields as lists of JSON values, for checkpoints."""
    return [
        [name, type(kind).__name__, kind.shape, kind.dtype.str]
        if isinstance(kind, DenseMetadata)
        else [name, type(kind).__name__, vars(kind)["keys"]]
        for name, kind in elements.items()
    ]


def described(items: Iterable[list[Any]]) -> dict[str, ElementMetadata]:
    """The inverse of ``describe``."""
    kinds: dict[str, Any] = {kind.__name__: kind for kind in KINDS}
    return {
        name: kinds[kind](tuple(first), *map(np.dtype, dtype))
        for name, kind, first, *dtype in items
    }


def _as_array(name: str, value: Any) -> Array:
    if isinstance(value, (Mapping, need("torch").Tensor)):
        raise InputError(f"{name}: Input shouldn't be tensor or dict, got {type(value).__name__}")
    try:
        return np.asarray(value)
    except ValueError as error:
        raise InputError(f"{name}: expected an array, got {value!r}: {error}") from None


def _ids(name: str, value: Any) -> list[int]:
    """A copy of a list of ids. Raises ``InputError`` if it is none."""
    ids = _as_array(name, value)
    if ids.ndim != 1 or (ids.size and ids.dtype.kind not in "iu"):
        raise InputError(f"{name}: expected a list of ids, got {value!r}")
    if ids.size and ids.max() > np.iinfo(np.int64).max:
        raise InputError(f"{name}: expected ids that int64 holds, got {ids.max()}")
    found: list[int] = ids.astype(np.int64).tolist()
    return found
