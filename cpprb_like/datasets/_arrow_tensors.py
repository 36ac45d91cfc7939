"""Columns of tensors, which Ray has as types of extensions of Arrow.

Such a column is a flat list for each row, with the shape beside it. Ray takes nested lists for
arrays of Python objects, so what it is to read is written as a type of its own. What pyarrow makes
of that depends on what the process has imported: once Ray is there it is Ray's type, and else a
plain list without its shape. Not here: columns of Arrow's own types (``_arrow``).
"""

from __future__ import annotations

import json
import math
from functools import cache
from typing import Any

import numpy as np

from cpprb_like.datasets import _arrow
from cpprb_like.datasets._files import need
from cpprb_like.datasets._model import Array, Place, load_json

OF_RAY = ("ray.data.arrow_tensor", "ray.data.arrow_tensor_v2")
METADATA = b"ARROW:extension:metadata"


@cache
def _type_of_ray() -> Any:
    """A type of the name and the parts of Ray's, which is not imported."""
    pa = need("pyarrow", "arrow")

    class Tensor(pa.ExtensionType):  # type: ignore[misc, name-defined]
        """Flat lists, and the shape of each as JSON."""

        def __init__(self, values: Any, shape: tuple[int, ...]) -> None:
            self._shape = shape
            super().__init__(pa.large_list(values), OF_RAY[-1])

        def __arrow_ext_serialize__(self) -> bytes:
            return json.dumps(self._shape).encode()

        @classmethod
        def __arrow_ext_deserialize__(cls, storage: Any, serialized: bytes) -> Any:
            """The same again, as pyarrow lets go of instances whose columns are in use."""
            return cls(storage.value_type, json.loads(serialized))

    return Tensor


def column(values: Array) -> Any:
    """Values as an array of Arrow: numbers, or tensors of Ray."""
    pa = need("pyarrow", "arrow")
    n, shape = len(values), values.shape[1:]
    if not shape:
        return _arrow.column(values)
    offsets = np.arange(n + 1, dtype=np.int64) * math.prod(shape)
    flat = pa.array(np.ascontiguousarray(values).reshape(-1))
    stored = pa.LargeListArray.from_arrays(offsets, flat)
    return pa.ExtensionArray.from_storage(_type_of_ray()(flat.type, shape), stored)


def part(field: Any, found: Any, path: Place) -> Any:
    """The values at a path of a column, tensors as lists of a fixed size.

    The name of the extension, if it is another one, as its values are not known.
    """
    name = ".".join((field.name, *path))
    for key in path:
        kind = found.type
        found = _arrow.part(found, (key,), name)
        field = kind.field(kind.get_field_index(key))
    return _plain(field, found, name)


def _plain(field: Any, found: Any, name: str) -> Any:
    pa = need("pyarrow", "arrow")
    kind, metadata = field.type, field.metadata or {}
    if isinstance(kind, pa.BaseExtensionType):
        if kind.extension_name in OF_RAY and isinstance(kind, pa.ExtensionType):
            return _shaped(found.storage, _shape(kind.__arrow_ext_serialize__(), name), name)
        return kind.extension_name
    extension = metadata.get(_arrow.EXTENSION, b"").decode(errors="replace")
    if extension in OF_RAY:
        return _shaped(found, _shape(metadata.get(METADATA, b""), name), name)
    return extension or found


def _shape(text: bytes, name: str) -> list[int]:
    """The shape that Ray leaves beside a column, as JSON."""
    shape: Any = load_json(text, name)
    is_shape = isinstance(shape, list) and len(shape) <= _arrow.MOST_AXES
    if not is_shape or any(type(n) is not int or n < 0 for n in shape):
        raise ValueError(f"{name}: expected the shape of a tensor, got {json.dumps(shape)}")
    return list(shape)


def _shaped(storage: Any, shape: list[int], name: str) -> Any:
    """A flat list for each row as nested lists of a fixed size."""
    values, lengths = _arrow.flat(storage, name)
    size = math.prod(shape)
    if lengths != (size,) and len(storage):
        raise ValueError(
            f"{name}: expected {size} values of a tensor of shape {tuple(shape)}, got {lengths}"
        )
    return _arrow.column(values.reshape(len(storage), *shape))
