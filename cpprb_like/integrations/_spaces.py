"""Gymnasium spaces as nests of fields: Dict and Tuple spaces are branches, the others leaves."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from cpprb_like.integrations._nests import Branch, Leaf, Path, Tree
from cpprb_like.integrations._steps import Parts


def tree_of(space: spaces.Space[Any], path: Path = ()) -> Tree:
    """The tree of a space; ``NotImplementedError`` if it is not one of Gymnasium's."""
    parts: dict[Any, spaces.Space[Any]]
    match space:
        case spaces.Dict():
            parts = dict(space.spaces)
        case spaces.Tuple():
            parts = dict(enumerate(space.spaces))
        case spaces.Box() | spaces.Discrete() | spaces.MultiDiscrete() | spaces.MultiBinary():
            return Leaf(path, space.shape or (), np.dtype(space.dtype), space)
        case spaces.Text() if "\0" not in space.character_set:  # NumPy drops NULs at the end
            return Leaf(path, (), np.dtype(f"U{max(1, space.max_length)}"), space)
        case spaces.Text() | spaces.Graph() | spaces.Sequence() | spaces.OneOf():
            return Leaf(path, (), np.dtype(object), space)
        case _:
            raise NotImplementedError(
                f"cannot store values of {space!r}: expected one of Gymnasium's own spaces"
            )
    children = {key: tree_of(part, (*path, key)) for key, part in parts.items()}
    return Branch(path, children, None if isinstance(space, spaces.Dict) else tuple)


def parts_of(tree: Tree, n_rows: int | None) -> Parts | None:
    """What the compiled path looks for in a value; None if it is left to Python, as text is."""
    if isinstance(tree, Leaf):
        shape = tree.shape if n_rows is None else (n_rows, *tree.shape)
        return None if tree.dtype.kind in "OU" else Parts(None, None, shape)
    children = [parts_of(child, n_rows) for child in tree.children.values()]
    found = tuple(part for part in children if part is not None)
    if len(found) < len(children):
        return None
    return Parts(tuple(tree.children) if tree.made_of is None else None, found, ())
