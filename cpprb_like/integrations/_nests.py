"""Nests of values: conversion to fields and back.

Dicts, lists, tuples and named tuples are the branches of a nest. Any other part is a leaf, which is
one field. Not here: nests of spaces (``_spaces``) and of specs (``dm_env``).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeAlias

import numpy as np

from cpprb_like._arguments.arrays import Array, Flags
from cpprb_like._fields.casting import as_array
from cpprb_like.typing import FieldSpec

Path: TypeAlias = tuple[Any, ...]


class Leaf:
    """Leaf of a nest: one field of this shape and dtype, at a path of keys.

    Shape () and dtype ``str``, without a size, are a text of any length. ``space`` is the space of
    Gymnasium that the leaf was made of, if any.

    With ``axis`` a value has any number of items, of this shape each. The axis is named as the
    field at the path ``axis``. With ``counts`` the values count items of the axis that is named as
    the field at this path.
    """

    def __init__(
        self,
        path: Path,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        space: Any = None,
        *,
        axis: Path | None = None,
        counts: Path | None = None,
    ) -> None:
        self.path = path
        self.shape = shape
        self.dtype = dtype
        self.space = space
        self.axis = axis
        self.counts = counts

    @property
    def is_text(self) -> bool:
        """Whether the field is a text of any length."""
        return self.shape == () and self.dtype == np.dtype(str)

    def declaration(self, named: Callable[[Path], str], dtype: np.dtype[Any]) -> FieldSpec:
        """The field in ``env_dict``, with this dtype unless it is a text.

        ``named`` returns the name of the field at a path.
        """
        axis = () if self.axis is None else (named(self.axis),)
        spec: FieldSpec = {"shape": (*axis, *self.shape), "dtype": str if self.is_text else dtype}
        if self.counts is not None:
            spec["counts"] = named(self.counts)
        return spec

    def leaves(self) -> Iterator[Leaf]:
        """Yield every leaf of the nest, in its order."""
        yield self

    def collect(
        self, value: object, root: str, n_rows: int | None, unset: Flags | None = None
    ) -> Iterator[Array]:
        """Yield copies of a value's parts as arrays, leaf by leaf.

        ``n_rows`` is the length of the leading axis, None for a single value. Rows with any number
        of items are arrays in an array of objects. Rows in the mask ``unset`` become 0. Raises
        ``ValueError`` if the value does not fit the nest.
        """
        if self.axis is not None:
            yield self._collect_items(value, field_name(root, self.path), n_rows)
            return
        try:
            if (self.dtype.hasobject and not self.shape) or self.is_text:
                is_many = n_rows is not None and isinstance(value, (list, tuple, np.ndarray))
                items: Any = value if is_many else [value]
                array = np.fromiter(items, object).reshape(() if n_rows is None else -1)
            elif type(value) is np.ndarray:
                array = value  # faster than ``as_array``, which returns it too
            else:
                array = as_array(value, self.dtype, one_item=self.shape == (1,))
            array = copy.deepcopy(array) if array.dtype.hasobject else array.copy()
        except MemoryError:
            raise
        except Exception as error:
            name = field_name(root, self.path)
            raise ValueError(f"field {name!r}: the value is no array: {error}") from error
        shape = self.shape if n_rows is None else (n_rows, *self.shape)
        if array.shape != shape:
            name = field_name(root, self.path)
            raise ValueError(f"field {name!r}: expected shape {shape}, got {array.shape}")
        if unset is not None:
            array[unset] = "" if self.is_text else 0
        yield array

    def _collect_items(self, value: Any, name: str, n_rows: int | None) -> Array:
        if n_rows is None:
            return self._items(value, name)
        if not isinstance(value, (list, tuple, np.ndarray)) or len(value) != n_rows:
            raise ValueError(
                f"field {name!r}: expected {n_rows} values, one for each environment, got "
                f"{_outline(value)}"
            )
        return np.fromiter((self._items(one, name) for one in value), object, n_rows)

    def _items(self, value: object, name: str) -> Array:
        """A copy of the items of one row. Several may come as a list or tuple."""
        try:
            array = as_array(value, self.dtype, one_item=False)
        except MemoryError:
            raise
        except Exception as error:
            raise ValueError(f"field {name!r}: the value is no array: {error}") from error
        if array.shape == (0,):  # NumPy cannot know the shape of items that are not there
            return np.empty((0, *self.shape), self.dtype)
        if not array.ndim or array.shape[1:] != self.shape:
            length = ", ".join(["n", *map(str, self.shape)]) + ("" if self.shape else ",")
            raise ValueError(f"field {name!r}: expected shape ({length}), got {array.shape}")
        if self.dtype.kind in "iu" and np.can_cast(array.dtype, self.dtype):
            return array.astype(self.dtype)  # ``add`` takes this dtype in a tenth of the time
        return array.copy()

    def restore(self, columns: Mapping[str, Array], root: str) -> Any:
        """Return columns, nested like the nest."""
        return columns[field_name(root, self.path)]


class Branch:
    """A dict, list or tuple of nests, with the methods of ``Leaf``."""

    def __init__(
        self,
        path: Path,
        children: dict[Any, Tree],
        made_of: Callable[[Iterable[Any]], Any] | None,
    ) -> None:
        self.path = path
        self.children = children
        self.made_of = made_of  # makes the list or tuple; None for a dict

    def leaves(self) -> Iterator[Leaf]:
        for child in self.children.values():
            yield from child.leaves()

    def collect(
        self, value: Any, root: str, n_rows: int | None, unset: Flags | None = None
    ) -> Iterator[Array]:
        keys = tuple(self.children)
        if self.made_of is None:
            fits = isinstance(value, Mapping) and value.keys() == self.children.keys()
            expected = f"a dict with the keys {list(keys)}"
        else:
            fits = isinstance(value, (list, tuple)) and len(value) == len(keys)
            # A named tuple with other fields does not fit, whatever its length.
            fits = fits and getattr(value, "_fields", keys) == keys
            expected = f"a list or tuple of length {len(keys)}"
            if keys and isinstance(keys[0], str):
                expected = f"a named tuple or tuple of {list(keys)}"
        if not fits:
            name = field_name(root, self.path)
            raise ValueError(f"field {name!r}: expected {expected}, got {_outline(value)}")
        parts = [value[key] for key in keys] if self.made_of is None else value
        for child, part in zip(self.children.values(), parts, strict=True):
            yield from child.collect(part, root, n_rows, unset)

    def restore(self, columns: Mapping[str, Array], root: str) -> Any:
        parts = {key: child.restore(columns, root) for key, child in self.children.items()}
        return parts if self.made_of is None else self.made_of(parts.values())


Tree: TypeAlias = Leaf | Branch


def field_name(root: str, path: Path) -> str:
    """Name of a part of a nest: the root and the path, as ``obs.camera.0``."""
    return ".".join(map(str, (root, *path) if root else path))


def names_of(tree: Tree, root: str, nest: str) -> tuple[str, ...]:
    """The field name of each leaf; ``ValueError`` if two leaves would have the same name."""
    names = tuple(field_name(root, leaf.path) for leaf in tree.leaves())
    refuse_repeated(names, nest)
    return names


def refuse_repeated(names: tuple[str, ...], nest: str) -> None:
    """Raise ``ValueError`` if a name occurs twice."""
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise ValueError(f"several parts of the {nest} would be the fields {repeated}")


def _outline(value: object) -> str:
    """Short description of a value that does not fit, for a message."""
    if isinstance(value, Mapping):
        return f"a dict with the keys {list(value)}"
    shape = f"shape {value.shape}" if isinstance(value, np.ndarray) else ""
    if isinstance(value, (list, tuple)):
        shape = f"length {len(value)}"
    return f"{type(value).__name__} of {shape}" if shape else type(value).__name__
