"""Gymnasium spaces as flat fields: names, shapes and dtypes; flattening and nesting of values.

A space is a tree: Dict and Tuple spaces are its branches; every other space is a leaf and becomes
one field. Not here: which values are recorded, and when (``gymnasium.py``).
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from cpprb_like.integrations._steps import MOST_AXES, Parts

Array: TypeAlias = npt.NDArray[Any]
Path: TypeAlias = tuple[Any, ...]

_NUMBERS = "biufc"  # kinds of dtype


class Leaf:
    """A space that becomes one field.

    Attributes
    ----------
    space : gymnasium.Space
    path : tuple
        Keys and positions from the root of the tree to here.
    suffix : str
        The path as the end of a field name: ``".position"``, ``".0"``; empty for a root.
    shape, dtype
        Of one value. Text becomes strings of fixed width; values of spaces without a fixed size
        become Python objects.
    """

    def __init__(self, space: spaces.Space[Any], path: Path) -> None:
        self.space = space
        self.path = path
        self.suffix = "".join(f".{key}" for key in path)
        self.shape, self.dtype = _shape_and_dtype(space)

    def parts(self, n_rows: int | None) -> Parts | None:
        """Return what the compiled path of a step expects of a value; None if Python has to do it.

        ``n_rows`` is the length of the leading axis, None for a single value.
        """
        shape = self.shape if n_rows is None else (n_rows, *self.shape)
        if self.dtype.kind not in _NUMBERS or len(shape) > MOST_AXES:
            return None
        return Parts(None, None, shape)

    def leaves(self) -> Iterator[Leaf]:
        """Yield every leaf below, in the order of the space."""
        yield self

    def collect(self, value: object, root: str, n_rows: int | None) -> list[Array]:
        """Return copies of a value's parts as arrays, leaf by leaf.

        ``n_rows`` is the length of the leading axis, None for a single value. Raises
        ``ValueError`` for what is no value of the space.
        """
        name = root + self.suffix
        if self.dtype.hasobject:
            return [_objects(value, name, n_rows)]
        try:
            array = np.array(value)
        except (TypeError, ValueError, RuntimeError) as error:
            raise ValueError(f"field {name!r}: the value is no array: {error}") from error
        shape = self.shape if n_rows is None else (n_rows, *self.shape)
        if array.shape != shape:
            raise ValueError(f"field {name!r}: expected shape {shape}, got {array.shape}")
        if self.dtype.kind == "U":
            return [self._strings(array, name)]
        if array.dtype.kind not in _NUMBERS:
            raise ValueError(f"field {name!r}: expected {self.dtype}, got {array.dtype}")
        return [array]

    def _strings(self, array: Array, name: str) -> Array:
        if array.dtype.kind != "U":
            raise ValueError(f"field {name!r}: expected strings, got {array.dtype}")
        if array.dtype.itemsize > self.dtype.itemsize:
            raise ValueError(
                f"field {name!r}: expected at most {self.dtype.itemsize // 4} characters, "
                f"got a string of {array.dtype.itemsize // 4}"
            )
        return array.astype(self.dtype)

    def restore(self, batch: Mapping[str, Array], root: str) -> Any:
        """Return the columns below in the nesting of the space."""
        return batch[root + self.suffix]


class Branch:
    """A Dict or a Tuple space. The methods are those of ``Leaf``."""

    def __init__(self, children: dict[Any, Tree], path: Path, *, is_dict: bool) -> None:
        self.children = children
        self.is_dict = is_dict
        self.suffix = "".join(f".{key}" for key in path)

    def parts(self, n_rows: int | None) -> Parts | None:
        """As ``Leaf.parts``: None if Python has to do one of the leaves."""
        children = [child.parts(n_rows) for child in self.children.values()]
        found = tuple(part for part in children if part is not None)
        if len(found) < len(children):
            return None
        return Parts(tuple(self.children) if self.is_dict else None, found, ())

    def leaves(self) -> Iterator[Leaf]:
        """Yield every leaf below, in the order of the space."""
        for child in self.children.values():
            yield from child.leaves()

    def collect(self, value: Any, root: str, n_rows: int | None) -> list[Array]:
        """Return copies of a value's parts as arrays, leaf by leaf."""
        if self.is_dict:
            fits = isinstance(value, Mapping) and value.keys() == self.children.keys()
            expected = f"a dict with the keys {list(self.children)}"
        else:
            fits = isinstance(value, (tuple, list)) and len(value) == len(self.children)
            expected = f"a tuple of length {len(self.children)}"
        if not fits:
            raise ValueError(
                f"field {root + self.suffix!r}: expected {expected}, got {_outline(value)}"
            )
        return [
            array
            for key, child in self.children.items()
            for array in child.collect(value[key], root, n_rows)
        ]

    def restore(self, batch: Mapping[str, Array], root: str) -> Any:
        """Return the columns below in the nesting of the space."""
        nested = {key: child.restore(batch, root) for key, child in self.children.items()}
        return nested if self.is_dict else tuple(nested.values())


Tree: TypeAlias = Leaf | Branch


def tree_of(space: spaces.Space[Any], path: Path = ()) -> Tree:
    """Return the tree of a space.

    Raises
    ------
    NotImplementedError
        For a space that is not one of Gymnasium's.
    """
    parts: dict[Any, spaces.Space[Any]]
    if isinstance(space, spaces.Dict):
        parts = dict(space.spaces)
    elif isinstance(space, spaces.Tuple):
        parts = dict(enumerate(space.spaces))
    else:
        return Leaf(space, path)
    children = {key: tree_of(part, (*path, key)) for key, part in parts.items()}
    return Branch(children, path, is_dict=isinstance(space, spaces.Dict))


def field_names(tree: Tree, root: str) -> tuple[str, ...]:
    """Return the field name of each leaf.

    Raises
    ------
    ValueError
        Two leaves would share a name, as the keys ``"a.b"``, and ``"b"`` below ``"a"``.
    """
    names = tuple(root + leaf.suffix for leaf in tree.leaves())
    refuse_repeated(names)
    return names


def refuse_repeated(names: tuple[str, ...]) -> None:
    """Raise ``ValueError`` if two fields have the same name."""
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise ValueError(f"several parts of the spaces would be the fields {repeated}")


def _shape_and_dtype(space: spaces.Space[Any]) -> tuple[tuple[int, ...], np.dtype[Any]]:
    match space:
        case spaces.Box() | spaces.Discrete() | spaces.MultiDiscrete() | spaces.MultiBinary():
            return space.shape or (), np.dtype(space.dtype)
        case spaces.Text() if "\0" not in space.character_set:  # NumPy drops NULs at the end
            return (), np.dtype(f"U{max(1, space.max_length)}")
        case spaces.Text() | spaces.Graph() | spaces.Sequence() | spaces.OneOf():
            return (), np.dtype(object)
        case _:
            raise NotImplementedError(
                f"cannot store values of {space!r}: expected one of Gymnasium's own spaces"
            )


def _objects(value: object, name: str, n_rows: int | None) -> Array:
    """Copy Python objects into an array, one for each row."""
    if n_rows is None:
        items = [value]
    elif isinstance(value, (tuple, list, np.ndarray)) and len(value) == n_rows:
        items = list(value)
    else:
        raise ValueError(f"field {name!r}: expected {n_rows} values, got {_outline(value)}")
    array = np.empty(len(items), object)
    for row, item in enumerate(items):
        array[row] = copy.deepcopy(item)
    return array.reshape(()) if n_rows is None else array


def _outline(value: object) -> str:
    if isinstance(value, np.ndarray):
        return f"an array of shape {value.shape}"
    if isinstance(value, Mapping):
        return f"a dict with the keys {list(value)}"
    if isinstance(value, (tuple, list)):
        return f"a {type(value).__name__} of length {len(value)}"
    return type(value).__name__
