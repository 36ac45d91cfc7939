"""Nests of values as flat fields: the way there and back.

Dicts, lists, tuples and named tuples are the branches of a nest; whatever else is declared is a
leaf, which becomes one field. What recorders share is here too: dtypes of floats, and the check of
a buffer. Not here: what a leaf is, and which values fit it (``_spaces``, ``dm_env``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from cpprb_like._arguments.arrays import Array, Flags
from cpprb_like.buffers import ReplayBuffer

__all__ = [
    "Array",
    "Branch",
    "Flags",
    "FloatType",
    "Leaf",
    "Path",
    "Tree",
    "field_name",
    "names_of",
    "outline",
    "prepare",
    "read_float_type",
    "refuse_repeated",
    "restored",
    "stored_dtype",
]

Path: TypeAlias = tuple[Any, ...]
FloatType: TypeAlias = npt.DTypeLike | None


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


def names_of(tree: Tree, root: str, nest: str) -> tuple[str, ...]:
    """The field name of each leaf; ``ValueError`` if two leaves would share one."""
    names = tuple(leaf.name(root) for leaf in tree.leaves())
    refuse_repeated(names, nest)
    return names


def restored(batch: Mapping[str, Array], trees: Mapping[str, Tree]) -> dict[str, Any]:
    """A batch with the columns of each tree in its nesting, by the name of its root."""
    flat = {leaf.name(root) for root, tree in trees.items() for leaf in tree.leaves()}
    return {
        **{root: tree.restore(batch, root) for root, tree in trees.items()},
        **{name: column for name, column in batch.items() if name not in flat},
    }


def prepare(buffer: Any, names: Iterable[str], n_envs: int) -> None:
    """Give a buffer the recorder's number of environments.

    Raises ``ValueError`` if it lacks a field, or has another number of environments.
    """
    missing = [name for name in names if name not in buffer.schema.names]
    if missing:
        raise ValueError(f"the buffer lacks the fields {missing}")
    if buffer.n_envs != n_envs and isinstance(buffer, ReplayBuffer):
        buffer._take_n_envs(n_envs)
    if buffer.n_envs != n_envs:
        raise ValueError(f"expected a buffer of n_envs={n_envs}, got {buffer.n_envs}")


def read_float_type(float_type: FloatType, keep: str) -> np.dtype[Any] | None:
    """The dtype that floating-point values are stored as; None, for the word ``keep``, as they are.

    Raises ``TypeError`` for what is no dtype, and ``ValueError`` for one that is no float.
    """
    if isinstance(float_type, str) and float_type == keep:
        return None
    try:
        dtype = np.dtype(np.float32 if float_type is None else float_type)
    except TypeError as error:
        raise TypeError(f"float_type: expected a dtype or {keep!r}, got {float_type!r}") from error
    if dtype.kind != "f":
        raise ValueError(f"float_type: expected a floating-point dtype or {keep!r}, got {dtype}")
    return dtype


def stored_dtype(dtype: np.dtype[Any], float_type: np.dtype[Any] | None) -> np.dtype[Any]:
    """The dtype of a field for values of a dtype."""
    return dtype if float_type is None or dtype.kind != "f" else float_type
