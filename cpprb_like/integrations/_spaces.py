"""Gymnasium spaces as nests of fields.

Dict and Tuple spaces are the branches; every other space is a leaf. Not here: nests as such
(``_nests``), and which values are recorded, and when (``gymnasium.py``).
"""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
from gymnasium import spaces

from cpprb_like.integrations._nests import Array, Branch, Leaf, Path, Tree, outline
from cpprb_like.integrations._steps import MOST_AXES, Parts

_NUMBERS = "biufc"  # kinds of dtype


class SpaceLeaf(Leaf):
    """A space that becomes one field.

    Text becomes strings of fixed width; values of spaces without a fixed size become Python
    objects.
    """

    def __init__(self, space: spaces.Space[Any], path: Path) -> None:
        super().__init__(path, *_shape_and_dtype(space))
        self.space = space

    def read(self, value: object, root: str, n_rows: int | None) -> Array:
        """See ``Leaf.read``."""
        name = self.name(root)
        if self.dtype.hasobject:
            return _objects(value, name, n_rows)
        try:
            array = np.array(value)
        except (TypeError, ValueError, RuntimeError) as error:
            raise ValueError(f"field {name!r}: the value is no array: {error}") from error
        self.check_shape(array, root, n_rows)
        if self.dtype.kind == "U":
            return self._strings(array, name)
        if array.dtype.kind not in _NUMBERS:
            raise ValueError(f"field {name!r}: expected {self.dtype}, got {array.dtype}")
        return array

    def _strings(self, array: Array, name: str) -> Array:
        if array.dtype.kind != "U":
            raise ValueError(f"field {name!r}: expected strings, got {array.dtype}")
        if array.dtype.itemsize > self.dtype.itemsize:
            raise ValueError(
                f"field {name!r}: expected at most {self.dtype.itemsize // 4} characters, "
                f"got a string of {array.dtype.itemsize // 4}"
            )
        return array.astype(self.dtype)


def tree_of(space: spaces.Space[Any], path: Path = ()) -> Tree:
    """The tree of a space; ``NotImplementedError`` if it is not one of Gymnasium's."""
    parts: dict[Any, spaces.Space[Any]]
    if isinstance(space, spaces.Dict):
        parts = dict(space.spaces)
    elif isinstance(space, spaces.Tuple):
        parts = dict(enumerate(space.spaces))
    else:
        return SpaceLeaf(space, path)
    children = {key: tree_of(part, (*path, key)) for key, part in parts.items()}
    return Branch(path, children, None if isinstance(space, spaces.Dict) else tuple)


def leaves_of(space: spaces.Space[Any]) -> list[SpaceLeaf]:
    """Return the spaces below a space that become fields, in its order."""
    return [leaf for leaf in tree_of(space).leaves() if isinstance(leaf, SpaceLeaf)]


def parts_of(tree: Tree, n_rows: int | None) -> Parts | None:
    """What the compiled path looks for in a value; None if it is left to Python."""
    if isinstance(tree, Leaf):
        shape = tree.shape if n_rows is None else (n_rows, *tree.shape)
        if tree.dtype.kind not in _NUMBERS or len(shape) > MOST_AXES:
            return None
        return Parts(None, None, shape)
    children = [parts_of(child, n_rows) for child in tree.children.values()]
    found = tuple(part for part in children if part is not None)
    if len(found) < len(children):
        return None
    return Parts(tuple(tree.children) if tree.made_of is None else None, found, ())


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
        raise ValueError(f"field {name!r}: expected {n_rows} values, got {outline(value)}")
    array = np.empty(len(items), object)
    for row, item in enumerate(items):
        array[row] = copy.deepcopy(item)
    return array.reshape(()) if n_rows is None else array
