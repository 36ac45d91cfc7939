"""``NStep``: a layer that reads rows as n-step returns.

Not here: the option ``Nstep`` of a buffer, which is the default of its views (``_fields.derived``),
and the computation (``_rows``).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from cpprb_like._arguments.checks import as_discount, as_int
from cpprb_like._fields.derived import NStepReturns, read_nstep
from cpprb_like._fields.schema import Schema
from cpprb_like.views._layer import Layer, Steps, as_names, set_options


class NStep(Layer):
    """n-step returns, and next values n steps later to bootstrap from.

    The n-step return of the row at time t is ``sum(gamma ** k * rew[t + k] for k in range(m))``.
    The number m of steps is n, or fewer where the episode ends earlier. Next values and end flags
    come from row ``t + m - 1``. So the bootstrap target is
    ``rew + discount * value(next_obs)``.

    Omitted options default to the options of the buffer's ``Nstep``, if it has one.

    Parameters
    ----------
    size : int or (int, int)
        Number n of steps, at least 1. Or a range (least, greatest), from which n is drawn uniformly
        for each row.
    gamma : float, optional
        Discount factor, 0 to 1. Default 0.99.
    rew : str or iterable of str, optional
        Reward fields of floats, which are summed. By default ``rew``, ``reward`` or ``rewards``.
    next : str or iterable of str, optional
        Fields read from the last step. By default each ``next_x`` beside ``x``. End flags are
        always read from the last step.
    discount : bool, optional
        Add the float32 column ``discount``, the factor of the bootstrap: ``gamma ** m``, or 0 where
        the episode was terminated at the last step. Default False.

    Raises
    ------
    TypeError, ValueError
        A parameter is of a wrong type or value. By ``view``: the buffer has no such fields. The
        message names the parameter.

    Notes
    -----
    A row can be drawn when its n-step window is complete: all n steps are stored, or the episode
    has ended. If the buffer has an ``Nstep`` of at least n steps, all its rows are complete.
    Otherwise incomplete rows are rejected and drawn again, as for ``Sequences``.

    Cost: proportional to ``batch_size * n``.

    Source: Sutton and Barto (2018), "Reinforcement Learning: An Introduction", section 7.1.

    Examples
    --------
    >>> from cpprb_like import ReplayBuffer
    >>> from cpprb_like.views import NStep
    >>> fields = {"obs": {"shape": ()}, "rew": {"shape": ()}, "done": {"shape": (), "dtype": bool}}
    >>> rb = ReplayBuffer(100, fields, next_of="obs", seed=0)
    >>> for t in range(4):
    ...     _ = rb.add(obs=t, next_obs=t + 1, rew=1, done=t == 3)
    >>> batch = rb.view(NStep(3, gamma=0.5, discount=True)).sample(3)
    >>> batch["obs"].tolist(), batch["next_obs"].tolist()
    ([3.0, 2.0, 2.0], [4.0, 4.0, 4.0])
    >>> batch["rew"].tolist(), batch["discount"].tolist()
    ([1.0, 1.5, 1.5], [0.0, 0.0, 0.0])
    """

    def __init__(
        self,
        size: int | tuple[int, int],
        gamma: float | None = None,
        *,
        rew: str | Iterable[str] | None = None,
        next: str | Iterable[str] | None = None,  # noqa: A002 (the word of ``Nstep``)
        discount: bool | None = None,
    ) -> None:
        bounds = size if isinstance(size, tuple) else (size, size)
        if len(bounds) != 2:
            raise ValueError(f"size: expected a number, or the least and the most, got {size}")
        least = as_int("size", bounds[0], 1)
        self.size = least, as_int("size", bounds[1], least)
        self.gamma = None if gamma is None else as_discount("gamma", gamma)
        self.rew = as_names(rew)
        self.next = as_names(next)
        self.discount = discount

    def __setstate__(self, state: dict[str, Any]) -> None:
        set_options(self, NStep, state)

    def steps(self, schema: Schema, default: NStepReturns | None) -> Steps:
        """See ``Layer.steps``; ``default`` is ``Nstep`` of the buffer."""
        discount = default is not None and default.discount
        discount = discount if self.discount is None else self.discount
        if self.size == (1, 1) and not discount:
            return Steps(None)
        options: dict[str, Any] = {}
        if default is not None:
            options = {
                "gamma": default.gamma,
                "rew": default.rewards,
                "next": default.last_step_fields,
                "discount": default.discount,
            }
        own = {"gamma": self.gamma, "rew": self.rew, "next": self.next, "discount": self.discount}
        options |= {name: value for name, value in own.items() if value is not None}
        returns = read_nstep({"size": self.size[1], **options}, schema)
        if returns is None:
            raise ValueError(f"{self!r}: expected some steps")
        says = default is not None or self.discount is not None
        return Steps(returns, self.size[0], says)
