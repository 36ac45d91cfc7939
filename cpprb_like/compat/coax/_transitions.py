"""coax's ``TransitionBatch``, and conversion of its trees of arrays to fields and back.

A tree is a pytree of jax: an array, None, or a dict, list or tuple of trees.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from cpprb_like._arguments.arrays import Array
from cpprb_like._arguments.checks import as_discount
from cpprb_like.schedules import check

__all__ = ["STORED", "Array", "Columns", "TransitionBatch", "read", "restore"]

Columns = dict[str, Array]

FIELDS = (
    *("S", "A", "logP", "Rn", "In", "S_next", "A_next", "logP_next", "W"),
    *("idx", "extra_info"),
)
STORED = tuple(field for field in FIELDS if field != "idx")
REAL = ("logP", "Rn", "In", "logP_next", "W")  # stored as floats


class TransitionBatch:
    """A batch of transitions, with coax's names for the parts.

    Parameters
    ----------
    S, S_next
        States before and after: an array, or arrays in dicts, lists and tuples.
    A, A_next : ndarray
        Actions in ``S`` and ``S_next``.
    logP, logP_next : ndarray
        Logarithms of the probabilities of the actions.
    Rn : ndarray
        Sums of the rewards of the transitions.
    In : ndarray
        Factors of the values of ``S_next``, 0 where the episode is over.
    W : ndarray, optional
        Weights, by default ones.
    idx : ndarray, optional
        Numbers of the transitions, by default from 0 on.
    extra_info
        Further values, in the same forms as ``S``.

    All arrays have the transitions along their first axis. ``None`` stands for a missing part.

    Examples
    --------
    >>> from cpprb_like.compat.coax import TransitionBatch
    >>> batch = TransitionBatch.from_single(
    ...     s=[0.0, 1.0], a=1, logp=-0.7, r=1.0, done=False, gamma=0.9, s_next=[1.0, 2.0]
    ... )
    >>> batch.batch_size, batch.In.tolist(), batch.W.tolist()
    (1, [0.9], [1.0])
    """

    __slots__ = FIELDS

    def __init__(
        self,
        S: Any,  # noqa: N803 (the names of coax)
        A: Any,  # noqa: N803
        logP: Any,  # noqa: N803
        Rn: Any,  # noqa: N803
        In: Any,  # noqa: N803
        S_next: Any,  # noqa: N803
        A_next: Any = None,  # noqa: N803
        logP_next: Any = None,  # noqa: N803
        W: Any = None,  # noqa: N803
        idx: Any = None,
        extra_info: Any = None,
    ) -> None:
        self.S, self.A, self.logP, self.Rn, self.In = S, A, logP, Rn, In
        self.S_next, self.A_next, self.logP_next = S_next, A_next, logP_next
        self.W = np.ones_like(Rn) if W is None else W
        self.idx = np.arange(self.batch_size) if idx is None else idx
        self.extra_info = extra_info

    @classmethod
    def from_single(
        cls,
        s: Any,
        a: Any,
        logp: Any,
        r: Any,
        done: bool,
        gamma: float,
        s_next: Any = None,
        a_next: Any = None,
        logp_next: Any = None,
        w: float = 1.0,
        idx: int | None = None,
        extra_info: Any = None,
    ) -> TransitionBatch:
        """A batch of one transition.

        Parameters
        ----------
        s, a, logp, r, s_next, a_next, logp_next, w, idx, extra_info
            As for the class, without the first axis. A list counts as an array.
        done : bool
            Whether the episode is over.
        gamma : float
            Discount factor of the whole transition, from 0 to 1.

        Raises
        ------
        TypeError, ValueError
            ``gamma`` is not a number from 0 to 1, ``w`` is not a number above 0, or a ``logp`` is
            above 0.
        """
        for name, value in (("logp", logp), ("logp_next", logp_next)):
            if value is not None and not (np.asarray(value) <= 0).all():
                raise ValueError(f"{name}: expected at most 0, got {value}")
        check("w", w, 0, above=True)
        factor = 0.0 if done else as_discount("gamma", gamma)
        values = (s, a, logp, r, factor, s_next, a_next, logp_next, float(w), idx, extra_info)
        return cls(*map(_expand, values))

    @property
    def batch_size(self) -> int:
        """Number of transitions."""
        shape = np.shape(self.Rn)
        if not shape:
            raise TypeError(f"Rn: expected an array with an axis of transitions, got {self.Rn!r}")
        return int(shape[0])

    def to_singles(self) -> Iterator[TransitionBatch]:
        """Yield each transition as a separate batch, from the first to the last."""
        for i in range(self.batch_size):
            leaves: Columns = {}
            tree = [_flatten(name, value, leaves) for name, value in self.items()]
            one = {name: leaf[i : i + 1] for name, leaf in leaves.items()}
            yield type(self)(*(restore(part, one) for part in tree))

    def items(self) -> Iterator[tuple[str, Any]]:
        """Yield names and values of the parts."""
        return zip(FIELDS, self, strict=True)

    def _asdict(self) -> dict[str, Any]:
        return dict(self.items())

    def copy(self, deep: bool = False) -> TransitionBatch:
        """A batch with the same arrays, or with copies of them."""
        return copy.deepcopy(self) if deep else copy.copy(self)

    def __iter__(self) -> Iterator[Any]:
        """The values of the parts."""
        return (getattr(self, name) for name in FIELDS)

    def __getitem__(self, index: Any) -> Any:
        return tuple(self)[index]

    def __eq__(self, other: object) -> bool:
        """Whether the other object is a batch of equal arrays."""
        if not isinstance(other, TransitionBatch):
            return NotImplemented
        ours: Columns = {}
        theirs: Columns = {}
        trees = [
            [_flatten(name, value, leaves) for name, value in batch.items()]
            for batch, leaves in ((self, ours), (other, theirs))
        ]
        return trees[0] == trees[1] and all(np.array_equal(ours[k], theirs[k]) for k in ours)

    __hash__ = None  # type: ignore[assignment]  # its arrays can be changed

    def __repr__(self) -> str:
        parts = ", ".join(f"{name}={value!r}" for name, value in self.items() if value is not None)
        return f"{type(self).__name__}({parts})"


def read(batch: Any) -> tuple[list[Any], Columns]:
    """The parts of a batch with names in place of arrays, and the arrays by name.

    Rewards, probabilities and weights become floats, also where they are integers in this batch.
    Raises ``TypeError`` or ``ValueError`` if parts are missing or arrays are not of one length.
    """
    missing = [name for name in STORED if not hasattr(batch, name)]
    if missing:
        raise TypeError(
            f"transition_batch: expected a TransitionBatch, got {type(batch).__name__} without "
            f"{missing}"
        )
    leaves: Columns = {}
    parts = [_flatten(name, getattr(batch, name), leaves) for name in STORED]
    if "Rn" not in leaves:
        raise TypeError(f"transition_batch.Rn: expected an array, got {batch.Rn!r}")
    for name in REAL:
        if name in leaves and leaves[name].dtype.kind in "iub":
            leaves[name] = leaves[name].astype(np.float64)
    n = leaves["Rn"].shape[:1]
    for name, leaf in leaves.items():
        if leaf.ndim == 0 or leaf.shape[:1] != n:
            raise ValueError(
                f"transition_batch.{name}: expected {n[0] if n else 'at least 1'} transitions "
                f"along the first axis, got shape {leaf.shape}"
            )
    return parts, leaves


def _flatten(name: str, tree: Any, leaves: Columns) -> Any:
    """The tree with the names of its arrays in their place; the arrays go into ``leaves``."""
    if tree is None:
        return None
    if isinstance(tree, Mapping):
        return {key: _flatten(f"{name}[{key!r}]", tree[key], leaves) for key in tree}
    if isinstance(tree, (list, tuple)):
        parts = [_flatten(f"{name}[{i}]", part, leaves) for i, part in enumerate(tree)]
        return _like(tree, parts)
    leaves[name] = np.asarray(tree)
    return name


def restore(tree: Any, leaves: Columns) -> Any:
    """The tree with the arrays in place of their names."""
    if isinstance(tree, dict):
        return {key: restore(part, leaves) for key, part in tree.items()}
    if isinstance(tree, (list, tuple)):
        return _like(tree, [restore(part, leaves) for part in tree])
    return None if tree is None else leaves[tree]


def _like(tree: Any, parts: list[Any]) -> Any:
    """The parts in a list, tuple or named tuple of the type of ``tree``."""
    return type(tree)(*parts) if hasattr(tree, "_fields") else type(tree)(parts)


def _expand(tree: Any) -> Any:
    """Each part of a single transition with a first axis of length 1."""
    if tree is None:
        return None
    if isinstance(tree, Mapping):
        return {key: _expand(part) for key, part in tree.items()}
    if isinstance(tree, tuple):
        return _like(tree, [_expand(part) for part in tree])
    return np.asarray(tree)[np.newaxis]
