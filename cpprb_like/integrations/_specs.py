"""Nests of specs as flat fields: names, shapes and dtypes; flattening and nesting of values.

A spec is whatever has a shape and a dtype, such as those of ``dm_env.specs`` or TF-Agents'
``ArraySpec``; neither package is imported. Dicts, lists, tuples and named tuples of specs are
nests. Not here: which values are recorded, and when (``dm_env.py``).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from cpprb_like._store.casting import as_array
from cpprb_like.typing import FieldSpec

Array: TypeAlias = npt.NDArray[Any]
Flags: TypeAlias = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Leaf:
    """A spec: one field."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    def leaves(self) -> Iterator[Leaf]:
        """Yield every leaf of the nest, in its order."""
        yield self

    def collect(
        self, value: object, n_rows: int | None, unset: Flags | None = None
    ) -> Iterator[Array]:
        """Yield copies of a value's parts as arrays, leaf by leaf.

        ``n_rows`` is the length of the leading axis, None for a single value; rows that are
        ``unset`` become 0. Raises ``ValueError`` for what does not fit the nest.
        """
        if type(value) is np.ndarray and not value.dtype.hasobject:
            array = value.copy()
        else:
            array = self._converted(value, n_rows)
        shape = self.shape if n_rows is None else (n_rows, *self.shape)
        if array.shape != shape:
            raise ValueError(f"field {self.name!r}: expected shape {shape}, got {array.shape}")
        if unset is not None:
            array[unset] = 0
        yield array

    def _converted(self, value: object, n_rows: int | None) -> Array:
        """Return a new array of what is none, or holds objects."""
        if isinstance(value, tuple) and n_rows is not None:
            value = list(value)  # several Python objects, and not one
        try:
            array = as_array(value, self.dtype, one_item=self.shape in ((), (1,)))
            return copy.deepcopy(array) if array.dtype.hasobject else array.copy()
        except MemoryError:
            raise
        except Exception as error:
            raise ValueError(f"field {self.name!r}: the value is no array: {error}") from error

    def restore(self, columns: Mapping[str, Array]) -> Any:
        """Return columns in the nesting of the specs."""
        return columns[self.name]


@dataclass(frozen=True)
class Branch:
    """A dict, list or tuple of nests. The methods are those of ``Leaf``."""

    name: str
    keys: tuple[Any, ...]
    children: tuple[Tree, ...]
    made_of: Callable[[Iterable[Any]], Any] | None  # the list or tuple; None for a dict

    def leaves(self) -> Iterator[Leaf]:
        """Yield every leaf of the nest, in its order."""
        for child in self.children:
            yield from child.leaves()

    def collect(
        self, value: Any, n_rows: int | None, unset: Flags | None = None
    ) -> Iterator[Array]:
        """Yield copies of a value's parts as arrays, leaf by leaf."""
        if self.made_of is None:
            fits = isinstance(value, Mapping) and value.keys() == set(self.keys)
            expected = f"a dict with the keys {list(self.keys)}"
        else:
            fits = isinstance(value, (list, tuple)) and len(value) == len(self.keys)
            # Named tuples of other fields are other things, whatever their length.
            fits = fits and getattr(value, "_fields", self.keys) == self.keys
            expected = f"a list or tuple of length {len(self.keys)}"
            if self.keys and isinstance(self.keys[0], str):
                expected = f"a named tuple or tuple of {list(self.keys)}"
        if not fits:
            raise ValueError(f"field {self.name!r}: expected {expected}, got {_outline(value)}")
        parts = [value[key] for key in self.keys] if self.made_of is None else value
        for child, part in zip(self.children, parts, strict=True):
            yield from child.collect(part, n_rows, unset)

    def restore(self, columns: Mapping[str, Array]) -> Any:
        """Return columns in the nesting of the specs."""
        parts = [child.restore(columns) for child in self.children]
        return (
            dict(zip(self.keys, parts, strict=True))
            if self.made_of is None
            else self.made_of(parts)
        )


Tree: TypeAlias = Leaf | Branch


class SpecNest:
    """A nest of specs, and the fields that hold its values.

    Parameters
    ----------
    spec
        A spec, which is any object with a ``shape`` and a ``dtype``, or a dict, list, tuple or
        named tuple of nests. It is read once and not kept.
    name : str
        First part of the names of the fields.

    Attributes
    ----------
    env_dict : dict
        Fields for ``ReplayBuffer``, of the shapes and dtypes of the specs. Each reading gives a new
        dict, to be changed at will.
    names : tuple of str
        Names of the fields, in the order of the specs.

    Raises
    ------
    TypeError
        A part is neither a spec nor a nest.
    ValueError
        A shape or a dtype is not fixed, two parts would share a name, or one would have none.

    Notes
    -----
    Fields are named by the path of keys, positions and names of tuple fields that leads to them:
    ``obs.camera``, ``obs.joints.0``. So names do not depend on the order of a dict.

    Examples
    --------
    >>> import numpy as np
    >>> from dm_env import specs
    >>> from cpprb_like import ReplayBuffer
    >>> from cpprb_like.integrations.dm_env import SpecNest
    >>> nest = SpecNest({"at": specs.Array((2,), np.float32), "id": specs.DiscreteArray(5)}, "obs")
    >>> rb = ReplayBuffer(100, nest.env_dict)
    >>> rb.add(**nest.flatten({"at": [0.5, 1.5], "id": 3}))
    0
    >>> nest.restore(rb.get_all_transitions())
    {'at': array([[0.5, 1.5]], dtype=float32), 'id': array([3], dtype=int32)}
    """

    def __init__(self, spec: object, name: str = "") -> None:
        self._tree = _tree_of(spec, name)
        self.names = tuple(leaf.name for leaf in self._tree.leaves())
        repeated = sorted({name for name in self.names if self.names.count(name) > 1})
        if repeated:
            raise ValueError(f"several parts of the specs would be the fields {repeated}")

    @property
    def env_dict(self) -> dict[str, FieldSpec]:
        """Fields for ``ReplayBuffer``, of the specs' shapes and dtypes; a new dict each time."""
        return {
            leaf.name: {"shape": leaf.shape, "dtype": leaf.dtype} for leaf in self._tree.leaves()
        }

    def flatten(self, value: object, *, n_envs: int | None = None) -> dict[str, Array]:
        """Return the parts of a value by field, as new arrays.

        Parameters
        ----------
        value
            As the specs say: in the same nesting, lists and tuples alike.
        n_envs : int, optional
            Length of the leading axis that each array has, one entry for each environment.

        Raises
        ------
        ValueError
            The value has another nesting or other shapes; the message names the field.
        """
        return dict(zip(self.names, self.collect(value, n_envs), strict=True))

    def collect(self, value: object, n_rows: int | None, unset: Flags | None = None) -> list[Array]:
        """Return the parts of a value in the order of ``names``; ``unset`` rows become 0."""
        return list(self._tree.collect(value, n_rows, unset))

    def restore(self, batch: Mapping[str, Array]) -> Any:
        """Return the columns of a batch in the nesting of the specs.

        Parameters
        ----------
        batch : mapping of str to ndarray
            As drawn from a buffer; it may have further entries.

        Returns
        -------
        nest of ndarray
            The batch's own arrays in dicts, lists, tuples and named tuples like those of the specs.

        Raises
        ------
        KeyError
            The batch lacks one of the fields.
        """
        return self._tree.restore(batch)


def _tree_of(spec: Any, name: str) -> Tree:
    made_of: Callable[[Iterable[Any]], Any] | None
    if isinstance(spec, Mapping):
        keys, parts, made_of = tuple(spec), tuple(spec.values()), None
    elif isinstance(spec, (list, tuple)):
        keys, parts = getattr(spec, "_fields", tuple(range(len(spec)))), tuple(spec)
        made_of = getattr(type(spec), "_make", list if isinstance(spec, list) else tuple)
    else:
        return _leaf_of(spec, name)
    start = f"{name}." if name else ""
    children = (_tree_of(part, f"{start}{key}") for key, part in zip(keys, parts, strict=True))
    return Branch(name, keys, tuple(children), made_of)


def _leaf_of(spec: Any, name: str) -> Leaf:
    if getattr(spec, "shape", None) is None or getattr(spec, "dtype", None) is None:
        raise TypeError(
            f"spec of {name!r}: expected an object with a shape and a dtype, or a dict, list or "
            f"tuple of them, got {spec!r}"
        )
    if not name:
        raise ValueError(f"{spec!r} is no nest, so its field needs a name")
    try:
        # TensorFlow's dtypes name NumPy's.
        dtype = np.dtype(getattr(spec.dtype, "as_numpy_dtype", spec.dtype))
        shape = tuple(length.__index__() for length in spec.shape)
        if min(shape, default=0) < 0:
            raise ValueError("a length is negative")
    except (TypeError, ValueError, AttributeError) as error:
        raise ValueError(
            f"spec of {name!r}: expected a fixed shape and a dtype of NumPy, got {spec!r}: {error}"
        ) from None
    return Leaf(name, shape, dtype)


def _outline(value: object) -> str:
    if isinstance(value, np.ndarray):
        return f"an array of shape {value.shape}"
    if isinstance(value, Mapping):
        return f"a dict with the keys {list(value)}"
    if isinstance(value, (list, tuple)):
        return f"a {type(value).__name__} of length {len(value)}"
    return type(value).__name__
