"""Columns of tensors, which Arrow has as types of extensions: Ray's, and its own of a fixed shape.

Such a column is a list for each row, whose shape stands beside it. What pyarrow makes of it depends
on what the process has imported: once Ray is there it is a type of Ray's, and else a plain list
without its shape. Not here: columns of Arrow's own types (``_arrow``).
"""

from __future__ import annotations

import json
import math
from typing import Any

from cpprb_like.datasets import _arrow
from cpprb_like.datasets._files import need
from cpprb_like.datasets._model import load_json

__all__ = ["plain"]

OF_RAY = ("ray.data.arrow_tensor", "ray.data.arrow_tensor_v2")
NAME, METADATA = b"ARROW:extension:name", b"ARROW:extension:metadata"


def plain(field: Any, found: Any) -> Any:
    """The values of a column as Arrow's own types have them.

    Parameters
    ----------
    field : pyarrow.Field
    found : pyarrow.Array

    Returns
    -------
    pyarrow.Array or str
        As it is, if it is of no extension; a tensor of a fixed shape as lists of a fixed size; of
        others the name of the extension, as their values are not known.
    """
    pa = need("pyarrow", "arrow")
    kind, metadata = field.type, field.metadata or {}
    if isinstance(kind, pa.FixedShapeTensorType):
        order = kind.permutation
        is_plain = order is None or list(order) == list(range(len(order)))
        return _shaped(found.storage, kind.shape, field.name) if is_plain else kind.extension_name
    if isinstance(kind, pa.BaseExtensionType):
        if kind.extension_name in OF_RAY and isinstance(kind, pa.ExtensionType):
            return _shaped(found.storage, _shape(kind.__arrow_ext_serialize__()), field.name)
        return kind.extension_name
    name = metadata.get(NAME, b"").decode(errors="replace")
    if name in OF_RAY:
        return _shaped(found, _shape(metadata.get(METADATA, b"")), field.name)
    return name or found


def _shape(text: bytes) -> list[int]:
    """The shape that Ray leaves beside a column, as JSON."""
    shape: Any = load_json(text, METADATA.decode())
    is_shape = isinstance(shape, list) and len(shape) <= _arrow.MOST_AXES
    if not is_shape or any(type(n) is not int or n < 0 for n in shape):
        raise ValueError(f"expected the shape of a tensor, got {json.dumps(shape)}")
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
