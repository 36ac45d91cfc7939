"""Fields of ReAgent's buffer: inferred from an example, read, given out as tensors.

Also the errors that refuse values. Not here: the rows (``_rows``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from cpprb_like._arguments.arrays import Array

REQUIRED_KEYS = ["observation", "action", "reward", "terminal"]
RESERVED_KEYS = ("truncated", "priority")  # parameters of ``add``
PACKAGES = {"torch": "PyTorch", "pandas": "pandas"}
NUMBERS = "biufc"  # kinds of dtypes


class InputError(ValueError, AssertionError):
    """An argument is refused. ReAgent says most of this by ``assert``."""


class NamesError(InputError, KeyError):
    """Fields are missing, or there are fields that the buffer does not have."""

    __str__ = Exception.__str__  # that of KeyError puts quotes round the sentence


@cache
def need(package: str) -> Any:
    """Import an optional package; the ``ImportError`` says what needs the package."""
    try:
        return import_module(package)
    except ImportError as error:
        raise ImportError(
            f"cpprb_like.compat.reagent needs {PACKAGES[package]} (the package {package}) here, "
            f"and it cannot be imported: {error}"
        ) from error


class ReplayElement(NamedTuple):
    """A declared field: what ``extra_storage_types`` is a list of."""

    name: str
    shape: tuple[int, ...]
    type: DTypeLike


class InferredElement(NamedTuple):
    """A field that was inferred from the first step: ReAgent's present ``ReplayElement``."""

    name: str
    metadata: DenseMetadata


@dataclass(frozen=True)
class DenseMetadata:
    """Arrays, given out as a tensor of shape ``(n, *shape, stack)``, or without a stack of 1.

    ``dtype`` and ``shape`` are those of one step.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @classmethod
    def of(cls, value: Array) -> DenseMetadata:
        """The kind of an array, in the byte order of this machine."""
        return cls(value.shape, value.dtype.newbyteorder("="))

    def read(self, name: str, value: Any) -> Any:
        """The value of one step as the rows take it, or ``InputError``."""
        if isinstance(value, (np.ndarray, np.generic)):
            shape = value.shape
        else:  # the look at numbers first takes a third of the time
            is_number = isinstance(value, (int, float, complex))
            shape = () if is_number else _as_array(name, value).shape
        if shape != self.shape:
            raise InputError(f"{name}: expected shape {self.shape}, got {shape}")
        return value

    def output(self, stacks: Array) -> Any:
        """Values of shape ``(n, stack, *shape)`` as callers get them: of two axes or more."""
        is_number = stacks.shape[1] == 1 and not self.shape
        return need("torch").from_numpy(stacks if is_number else _frames_last(stacks))

    def output_lists(self, stacks: Array, lengths: NDArray[np.int64]) -> list[Any]:
        """Values of several lists, one behind another, each list by itself."""
        tensor = need("torch").from_numpy(_frames_last(stacks))
        return list(tensor.split(lengths.tolist())) if len(lengths) else []


def _frames_last(stacks: Array) -> Array:
    """The frames along the last axis; without that axis for one of them."""
    return stacks[:, 0] if stacks.shape[1] == 1 else np.moveaxis(stacks, 1, -1)


def column(values: Array) -> Any:
    """A tensor of at least two axes, a value to a row."""
    return need("torch").from_numpy(values[:, np.newaxis] if values.ndim == 1 else values)


def infer_step(fields: Mapping[str, Any]) -> dict[str, DenseMetadata]:
    """The fields of a first step: those that are required first. float64 becomes float32."""
    found = {}
    for name in dict.fromkeys([*(key for key in REQUIRED_KEYS if key in fields), *fields]):
        array = _as_array(name, fields[name])
        if array.dtype.kind not in NUMBERS:
            raise InputError(
                f"Unable to deduce type for {name}: expected numbers, got {array.dtype}"
            )
        is_double = array.dtype.newbyteorder("=") == np.float64
        found[name] = DenseMetadata.of(array.astype(np.float32) if is_double else array)
    return found


def check_elements(elements: Mapping[str, DenseMetadata]) -> None:
    """Refuse fields that no buffer can have, by an ``InputError``."""
    if not elements.keys() >= set(REQUIRED_KEYS):
        raise NamesError(f"Add expects {REQUIRED_KEYS} at least, got {list(elements)}")
    for name, kind in elements.items():
        if name in RESERVED_KEYS:
            raise InputError(f"{name}: it is a parameter of add, and no name for a field")
        try:
            need("torch").from_numpy(np.empty(0, kind.dtype))
        except TypeError:
            raise InputError(f"{name}: PyTorch has no tensors of {kind.dtype}") from None
        if name in ("reward", "terminal") and kind.dtype.kind not in "biuf":
            raise InputError(f"{name}: expected real numbers, got {kind.dtype}")
        if name == "terminal" and kind.shape != ():
            raise InputError(f"terminal: expected one number or bool, got shape {kind.shape}")


def _as_array(name: str, value: Any) -> Array:
    if isinstance(value, (Mapping, need("torch").Tensor)):
        raise InputError(
            f"Unable to deduce type for {name}: Input shouldn't be tensor or dict, nor lists of "
            f"ids, got {type(value).__name__}"
        )
    try:
        return np.asarray(value)
    except ValueError as error:
        raise InputError(
            f"Unable to deduce type for {name}: expected an array, got {value!r}: {error}"
        ) from None
