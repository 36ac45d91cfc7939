"""Fields of ReAgent's buffer: declared or inferred from the first step, read, given out as tensors.

Also the errors that refuse values. Not here: the rows (``_rows``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from cpprb_like._arguments.arrays import Array
from cpprb_like._arguments.checks import as_int

REQUIRED_KEYS = ["observation", "action", "reward", "terminal"]
RESERVED_KEYS = ("truncated", "priority")  # parameters of ``add``
PACKAGES = {"torch": "PyTorch", "pandas": "pandas"}
NUMBERS = "biufc"  # kinds of dtypes


class InputError(ValueError, AssertionError):
    """An argument is refused. ReAgent says most of this by ``assert``."""


class NamesError(InputError, KeyError):
    """Fields are missing, or there are fields that the buffer does not have."""

    __str__ = Exception.__str__  # KeyError.__str__ would put quotes round the sentence


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
        """Shape and dtype of ``value``, in the byte order of this machine."""
        return cls(value.shape, value.dtype.newbyteorder("="))

    def read(self, name: str, value: Any) -> Any:
        """``value`` of one step; ``InputError`` if its shape is not that of the field."""
        if isinstance(value, (np.ndarray, np.generic)):
            shape = value.shape
        else:  # testing for numbers first takes a third of the time
            is_number = isinstance(value, (int, float, complex))
            shape = () if is_number else _as_array(name, value).shape
        if shape != self.shape:
            raise InputError(f"{name}: expected shape {self.shape}, got {shape}")
        return value

    def output(self, stacks: Array) -> Any:
        """A tensor for callers, of two axes or more, of values of shape ``(n, stack, *shape)``."""
        is_number = stacks.shape[1] == 1 and not self.shape
        return need("torch").from_numpy(stacks if is_number else _frames_last(stacks))

    def output_lists(self, stacks: Array, lengths: NDArray[np.int64]) -> list[Any]:
        """A list of tensors: ``lengths`` are the numbers of values in each."""
        tensor = need("torch").from_numpy(_frames_last(stacks))
        return list(tensor.split(lengths.tolist())) if len(lengths) else []


def _frames_last(stacks: Array) -> Array:
    """Stacks with the axis of frames last; without that axis if a stack is one frame."""
    return stacks[:, 0] if stacks.shape[1] == 1 else np.moveaxis(stacks, 1, -1)


def column(values: Array) -> Any:
    """A tensor of ``values`` with at least two axes, of which the first is that of the batch."""
    return need("torch").from_numpy(values[:, np.newaxis] if values.ndim == 1 else values)


def infer_step(fields: Mapping[str, Any]) -> dict[str, DenseMetadata]:
    """The fields of a first step, required fields first. float64 becomes float32."""
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


def declared(
    observation_shape: tuple[int, ...],
    extra_storage_types: Iterable[tuple[str, tuple[int, ...], DTypeLike]] | None = None,
    observation_dtype: DTypeLike = np.uint8,
    action_shape: tuple[int, ...] = (),
    action_dtype: DTypeLike = np.int32,
    reward_shape: tuple[int, ...] = (),
    reward_dtype: DTypeLike = np.float32,
    terminal_dtype: DTypeLike = np.uint8,
    **sizes: Any,
) -> tuple[dict[str, DenseMetadata], dict[str, Any]]:
    """The fields that the arguments declare, and the other arguments."""
    elements: dict[str, DenseMetadata] = {}
    for name, shape, dtype in [
        ("observation", observation_shape, observation_dtype),
        ("action", action_shape, action_dtype),
        ("reward", reward_shape, reward_dtype),
        ("terminal", (), terminal_dtype),
        *(extra_storage_types or ()),
    ]:
        if name in elements:
            raise InputError(f"extra_storage_types: the field {name} is declared twice")
        if not isinstance(shape, tuple):
            raise InputError(f"{name}: expected a tuple as its shape, got {shape!r}")
        lengths = tuple(as_int(f"{name}: shape", length) for length in shape)
        elements[name] = DenseMetadata(lengths, np.dtype(dtype).newbyteorder("="))
    return elements, sizes


def check_elements(elements: Mapping[str, DenseMetadata]) -> None:
    """Raise ``InputError`` if required fields are missing or a field cannot be stored."""
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
