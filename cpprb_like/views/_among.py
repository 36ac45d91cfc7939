"""``Among``: draws among the rows for which a condition is true, as a layer of a view.

Not here: the draw (``samplers._ruled``).
"""

from __future__ import annotations

from collections.abc import Callable

from numpy.typing import ArrayLike

from cpprb_like._arguments.arrays import Array, Batch, Slots
from cpprb_like.samplers._where import is_true
from cpprb_like.views._layer import Fields
from cpprb_like.views._rule import Rule, check_number


class Among(Rule):
    """Draws among the rows for which a condition is true.

    Parameters
    ----------
    condition : str or callable
        Name of a field of one bool or number a row; the condition is true where it is not 0. Or a
        function: ``condition(rows)`` gives a bool for each of n rows, shape ``(n,)``. ``rows`` is a
        dict of the values of ``fields``, each of shape ``(n, *shape)``.
    *fields : str
        Fields that the function reads.

    Raises
    ------
    TypeError, ValueError
        A parameter is of a wrong type or value. By ``view``: there is no such field, or it is not
        one bool or number a row. By ``sample``: the function returns anything but n bools.

    Notes
    -----
    Rows are drawn in the proportions of the buffer's sampler. The condition is computed once for
    each row, before the first draw after the row was added or updated. So it follows ``rb.update``,
    and may depend on nothing but the fields: where something else changes, make a new view. The
    condition applies to the first row of ``Sequences``, and to the drawn row of n-step returns.

    Cost: that of a draw by priority, however few rows fit; and of the condition for each new or
    updated row. Memory: 17 bytes a row for each view. A learner of several processes computes the
    condition for all rows of a shard whose actor has updated or deleted rows. Sequences and n-step
    returns try rows; if few of those that fit can begin one, the draw looks at all that fit.

    Examples
    --------
    >>> from cpprb_like import Mixture, ReplayBuffer
    >>> from cpprb_like.views import Among
    >>> fields = {"x": {"shape": ()}, "is_demo": {"shape": (), "dtype": bool}}
    >>> rb = ReplayBuffer(100, fields, seed=0)
    >>> rb.add(x=range(10), is_demo=[True] * 2 + [False] * 8)
    0
    >>> demos = rb.view(Among("is_demo"))
    >>> demos.sample(4)["x"].tolist()
    [1.0, 0.0, 0.0, 0.0]
    >>> late = rb.view(Among(lambda rows: (rows["x"] > 5) & ~rows["is_demo"], "x", "is_demo"))
    >>> sorted(late.sample(4, replace=False)["x"].tolist())
    [6.0, 7.0, 8.0, 9.0]
    >>> mixture = Mixture({"demos": demos, "late": late}, {"demos": 1, "late": 3}, seed=0)
    >>> mixture.sample(8)["source"].tolist()
    [0, 0, 1, 1, 1, 1, 1, 1]
    """

    def __init__(self, condition: str | Callable[[Batch], ArrayLike], *fields: str) -> None:
        if isinstance(condition, str):
            if fields:
                raise ValueError(f"fields: expected none beside a name, got {fields}")
        elif not callable(condition):
            raise TypeError(f"condition: expected a name or a function, got {condition!r}")
        elif not fields:
            raise ValueError("fields: expected the names of the fields that the function reads")
        for name in fields:
            if not isinstance(name, str):
                raise TypeError(f"fields: expected names of fields, got {name!r}")
        self.by = condition
        self.fields = fields

    def follows(self, fields: Fields) -> tuple[str, ...]:
        condition = self.by
        names = (condition,) if isinstance(condition, str) else self.fields
        for name in names:
            if name not in fields:
                raise ValueError(f"Among: expected some of the fields {list(fields)}, got {name!r}")
        if isinstance(condition, str):
            check_number("Among", condition, fields)
        return names

    def masses(self, rows: Batch, slots: Slots) -> Array:
        if isinstance(self.by, str):
            found: Array = rows[self.by].reshape(-1) != 0
            return found
        return is_true(self.by(rows), len(slots))

    def __repr__(self) -> str:
        return f"Among({', '.join(map(repr, (self.by, *self.fields)))})"
