"""Nests of specs as fields.

A spec is whatever has a shape and a dtype, such as those of ``dm_env.specs`` or TF-Agents'
``ArraySpec``; neither package is imported. Dicts, lists, tuples and named tuples of specs are
nests. Not here: nests as such (``_nests``), and which values are recorded, and when
(``dm_env.py``).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from cpprb_like._fields.casting import as_array
from cpprb_like.integrations._nests import (
    Array,
    Branch,
    Flags,
    Leaf,
    Path,
    Tree,
    field_name,
    names_of,
)
from cpprb_like.typing import FieldSpec


class SpecLeaf(Leaf):
    """A spec: one field."""

    def read(self, value: object, root: str, n_rows: int | None) -> Array:
        """See ``Leaf.read``."""
        if type(value) is np.ndarray and not value.dtype.hasobject:
            array = value.copy()
        else:
            array = self._converted(value, root, n_rows)
        self.check_shape(array, root, n_rows)
        return array

    def _converted(self, value: object, root: str, n_rows: int | None) -> Array:
        """Return a new array of what is none, or holds objects."""
        if isinstance(value, tuple) and n_rows is not None:
            value = list(value)  # several Python objects, and not one
        try:
            array = as_array(value, self.dtype, one_item=self.shape in ((), (1,)))
            return copy.deepcopy(array) if array.dtype.hasobject else array.copy()
        except MemoryError:
            raise
        except Exception as error:
            name = self.name(root)
            raise ValueError(f"field {name!r}: the value is no array: {error}") from error


class SpecNest:
    """A nest of specs, and the fields that hold its values.

    Parameters
    ----------
    spec
        A spec, which is any object with a ``shape`` and a ``dtype``, or a dict, list, tuple or
        named tuple of nests. It is read once and not stored.
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
        self._root = name
        self.tree = _tree_of(spec, name, ())
        self.names = names_of(self.tree, name, "specs")

    @property
    def env_dict(self) -> dict[str, FieldSpec]:
        """Fields for ``ReplayBuffer``, of the specs' shapes and dtypes; a new dict each time."""
        return {
            name: {"shape": leaf.shape, "dtype": leaf.dtype}
            for name, leaf in zip(self.names, self.tree.leaves(), strict=True)
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
        return list(self.tree.collect(value, self._root, n_rows, unset))

    def restore(self, batch: Mapping[str, Array]) -> Any:
        """Return the columns of a batch in the nesting of the specs, the batch's own arrays.

        The batch may have further entries. ``KeyError`` if it lacks one of the fields.
        """
        return self.tree.restore(batch, self._root)


def _tree_of(spec: Any, root: str, path: Path) -> Tree:
    made_of: Callable[[Iterable[Any]], Any] | None
    if isinstance(spec, Mapping):
        keys, parts, made_of = tuple(spec), tuple(spec.values()), None
    elif isinstance(spec, (list, tuple)):
        keys, parts = getattr(spec, "_fields", tuple(range(len(spec)))), tuple(spec)
        made_of = getattr(type(spec), "_make", list if isinstance(spec, list) else tuple)
    else:
        return _leaf_of(spec, root, path)
    children = {
        key: _tree_of(part, root, (*path, key)) for key, part in zip(keys, parts, strict=True)
    }
    return Branch(path, children, made_of)


def _leaf_of(spec: Any, root: str, path: Path) -> Leaf:
    name = field_name(root, path)
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
    return SpecLeaf(path, shape, dtype)
