"""``Rule``: the base class of layers that say how rows are drawn, by what the rows say.

Not here: how masses are followed and drawn by (``samplers._rules``, ``samplers._ruled``).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from numpy.typing import ArrayLike

from cpprb_like._arguments.arrays import Batch, Slots
from cpprb_like.views._layer import Fields, Layer

Moved = tuple[Slots, ArrayLike]


class Rule(Layer):
    """Base class of rules, which give each row of a view a mass by what the row says.

    A row is drawn in proportion to its mass times the sampler's weight, and never with mass 0. The
    masses of several rules are multiplied. Importance-sampling weights correct priorities, and not
    masses. A simple rule defines ``follows`` and ``masses``.

    Notes
    -----
    Masses are kept in a sum tree. ``masses`` is called before a draw, for the rows that were added
    or edited since the last draw: so ``add`` and ``update`` cost nothing, and a draw costs the same
    however few rows have a mass. A rule must depend on nothing but the values of ``follows``,
    unless it defines ``moved`` too.

    A rule with a state, such as counts of versions, returns a new object from ``open``, which holds
    the state of one view. Its methods are called by one thread at a time. Slots are numbers of at
    least 0. A slot holds one row at a time; a row in a slot that had another row has replaced it.

    ``cpprb_like.testing.check_rule`` tests that a rule follows these rules.

    Examples
    --------
    >>> from cpprb_like import ReplayBuffer
    >>> from cpprb_like.views import Rule
    >>> class Rewarded(Rule):
    ...     def follows(self, fields):
    ...         return ["rew"]
    ...     def masses(self, rows, slots):
    ...         return rows["rew"]
    >>> rb = ReplayBuffer(100, {"rew": {"shape": ()}}, seed=0)
    >>> rb.add(rew=[0, 0, 1, 3])
    0
    >>> rb.view(Rewarded()).sample(8)["rew"].tolist()
    [3.0, 3.0, 1.0, 1.0, 3.0, 3.0, 3.0, 3.0]
    """

    # Whether each host of a cluster may draw by the rule of its own rows, apart from the others.
    by_host = True
    # Rows of a drawn group; more than 1 for a rule that draws groups: see ``Groups``.
    group_size = 1
    # Whether each batch has quotas of rows by the rule: see ``Share``.
    has_shares = False
    # Whether masses are relative to a reference of the rows of one host: see ``Newest``.
    has_reference = False
    # Whether masses depend on a value that the process which draws says: see ``Newest``.
    has_said_value = False
    # Whether ``moved`` has rows only after ``masses``, ``leave`` or ``drawn``.
    moves_with_rows = False

    def follows(self, fields: Fields) -> Iterable[str]:  # noqa: ARG002 (for subclasses)
        """Names of the fields whose values say the masses; by default none."""
        return ()

    def at_hosts(self) -> Rule:
        """This layer as it goes to the hosts of a cluster."""
        return self

    def masses(self, rows: Batch, slots: Slots) -> ArrayLike:
        """The masses of n rows that are new, or were edited: a row may come again.

        Parameters
        ----------
        rows : dict of ndarray
            Values of the fields of ``follows``, each of shape ``(n, *shape)``, as they were added.
        slots : ndarray of intp, shape (n,)
            The slots of the rows, oldest rows first. An edited row may come twice.

        Returns
        -------
        array, shape (n,)
            Bools, or finite numbers of at least 0.
        """
        raise NotImplementedError

    def begin(self) -> None:
        """Forget all rows: ``masses`` is called for all of them next. An interrupt is a reason."""

    def leave(self, slots: Slots) -> None:
        """Note that these slots hold no row: it was deleted, is too old, or was never told of."""

    def moved(self) -> Moved | None:
        """Slots of rows whose masses changed since the last call, and their masses.

        Of rows that ``masses`` was called for, and that are there. ``masses`` of later rows,
        ``leave`` and ``drawn`` may be reasons. None, the default: no row.
        """
        return None

    def drawn(self, slots: Slots) -> None:
        """Note that a batch has been made of these rows.

        A rule with this method draws no row twice within a batch, as with ``replace=False``.
        """

    def given_back(self, slots: Slots) -> None:
        """Note that a batch with these rows, of ``drawn``, was dropped and not returned.

        Such as one that waited as its iterator was closed. A row may come twice. By default it
        stays drawn.
        """

    def stats(self) -> dict[str, float]:
        """Counts for ``stats`` of the view, when all rows have been told of; by default none."""
        return {}

    def state(self) -> Any:
        """What a save of the view keeps, of what does not follow from the rows; None: nothing.

        Arrays, numbers, texts, lists and dicts. Rows are named by their ``handles``.
        """
        return None

    def restore(self, state: Any) -> None:
        """Restore what ``state`` returned, before rows are told of."""

    def reason(self, slot: int) -> str:  # noqa: ARG002 (for subclasses)
        """Why the row in this slot has mass 0, for ``explain``."""
        return f"{type(self).__name__} leaves it out"


def check_number(rule: str, name: object, fields: Fields) -> None:
    """Raise ``ValueError`` unless there is such a field, of one bool or number a row."""
    spec = fields.get(name) if isinstance(name, str) else None
    if spec is None:
        raise ValueError(f"{rule}: expected one of the fields {list(fields)}, got {name!r}")
    if spec.shape not in ((), (1,)) or spec.dtype.kind not in "biuf":
        raise ValueError(
            f"{rule}: expected a field of one bool or number a row, got {name!r} of shape "
            f"{spec.shape} and {spec.dtype}"
        )
