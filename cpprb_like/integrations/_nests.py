"""Nests of values as flat fields: the way there and back.

Dicts, lists, tuples and named tuples are the branches of a nest; whatever else is declared is a
leaf, which becomes one field. Not here: what a leaf is, and which values fit it (``_spaces``,
``_specs``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeAlias

import numpy as np

from cpprb_like._arguments.arrays import Array, Flags

__all__ = [
    "Array",
    "Branch",
    "Flags",
    "Leaf",
    "Path",
    "Tree",
    "field_name",
    "outline",
    "refuse_repeated",
]

Path: TypeAlias = tuple[Any, ...]


class Leaf:
    """Leaf of a nest: one field of this shape and dtype, at a path of keys."""

    def __init__(self, path: Path, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self.path = path
        self.shape = shape
        self.dtype = dtype

    def name(self, root: str) -> str:
        """Name of the field, such as ``obs.camera.0``."""
        return field_name(root, self.path)

    def leaves(self) -> Iterator[Leaf]:
        """Yield every leaf of the nest, in its order."""
        yield self

    def collect(
        self, value: object, root: str, n_rows: int | None, unset: Flags | None = None
    ) -> Iterator[Array]:
        """Yield copies of a value's parts as arrays, leaf by leaf.

        ``n_rows`` is the length of the leading axis, None for a single value; rows that are
        ``unset`` become 0. Raises ``ValueError`` for what does not fit the nest.
        """
        array = self.read(value, root, n_rows)
        if unset is not None:
            array[unset] = 0
        yield array

    def read(self, value: object, root: str, n_rows: int | None) -> Array:
        """A copy of a value as an array, or ``ValueError``."""
        raise NotImplementedError

    def check_shape(self, array: Array, root: str, n_rows: int | None) -> None:
        """Raise ``ValueError`` unless an array has the shape of the values."""
        shape = self.shape if n_rows is None else (n_rows, *self.shape)
        if array.shape != shape:
            raise ValueError(
                f"field {self.name(root)!r}: expected shape {shape}, got {array.shape}"
            )

    def restore(self, columns: Mapping[str, Array], root: str) -> Any:
        """Return columns in the nesting of the nest."""
        return columns[self.name(root)]


class Branch:
    """A dict, list or tuple of nests. The methods are those of ``Leaf``."""

    def __init__(
        self,
        path: Path,
        children: dict[Any, Tree],
        made_of: Callable[[Iterable[Any]], Any] | None,
    ) -> None:
        self.path = path
        self.children = children
        self.made_of = made_of  # the list or tuple; None for a dict

    def leaves(self) -> Iterator[Leaf]:
        """Yield every leaf of the nest, in its order."""
        for child in self.children.values():
            yield from child.leaves()

    def collect(
        self, value: Any, root: str, n_rows: int | None, unset: Flags | None = None
    ) -> Iterator[Array]:
        """Yield copies of a value's parts as arrays, leaf by leaf."""
        keys = tuple(self.children)
        if self.made_of is None:
            fits = isinstance(value, Mapping) and value.keys() == self.children.keys()
            expected = f"a dict with the keys {list(keys)}"
        else:
            fits = isinstance(value, (list, tuple)) and len(value) == len(keys)
            # Named tuples of other fields are other things, whatever their length.
            fits = fits and getattr(value, "_fields", keys) == keys
            expected = f"a list or tuple of length {len(keys)}"
            if keys and isinstance(keys[0], str):
                expected = f"a named tuple or tuple of {list(keys)}"
        if not fits:
            name = field_name(root, self.path)
            raise ValueError(f"field {name!r}: expected {expected}, got {outline(value)}")
        parts = [value[key] for key in keys] if self.made_of is None else value
        for child, part in zip(self.children.values(), parts, strict=True):
            yield from child.collect(part, root, n_rows, unset)

    def restore(self, columns: Mapping[str, Array], root: str) -> Any:
        """Return columns in the nesting of the nest."""
        parts = {key: child.restore(columns, root) for key, child in self.children.items()}
        return parts if self.made_of is None else self.made_of(parts.values())


Tree: TypeAlias = Leaf | Branch


def field_name(root: str, path: Path) -> str:
    """Name of a part of a nest: its path behind the name of the root."""
    return ".".join(map(str, (root, *path) if root else path))


def refuse_repeated(names: tuple[str, ...], nest: str) -> None:
    """Raise ``ValueError`` if two parts of a nest would be the same field."""
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise ValueError(f"several parts of the {nest} would be the fields {repeated}")


def outline(value: object) -> str:
    """What a value is that does not fit, in few words."""
    if isinstance(value, np.ndarray):
        return f"an array of shape {value.shape}"
    if isinstance(value, Mapping):
        return f"a dict with the keys {list(value)}"
    if isinstance(value, (list, tuple)):
        return f"a {type(value).__name__} of length {len(value)}"
    return type(value).__name__
