"""cpprb's buffer classes: each is a ``ReplayBuffer`` with a certain sampler.

Not here: the samplers (``samplers``, ``_reverse``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from cpprb_like.buffers._replay import ReplayBuffer
from cpprb_like.compat.cpprb._reverse import Reverse
from cpprb_like.samplers._prioritized import Prioritized, PrioritySampler
from cpprb_like.typing import BufferOptions, FieldSpec, PrioritizedOptions

if TYPE_CHECKING:
    from typing_extensions import Unpack


class PrioritizedReplayBuffer(ReplayBuffer):
    """Proportional prioritized experience replay (PER; Schaul et al., 2016): cpprb's class.

    New programs use ``ReplayBuffer(size, env_dict, sampler=Prioritized(alpha, ...), **options)``.
    This class differs in ``indexes``, which are slots by default, as in cpprb. A row i of priority
    ``p_i`` is drawn with probability ``P(i)`` proportional to ``(p_i + eps) ** alpha``. Batches
    have importance-sampling ``weights``, and ``indexes`` for ``update_priorities``.

    Parameters
    ----------
    size, env_dict
        As for ``ReplayBuffer``. No field may be called ``priorities``, ``weights`` or ``indexes``.
    alpha : float, optional
        Prioritization exponent, at least 0; 0 is uniform. See ``Prioritized`` for its default.
    eps : float, optional
        Added to each priority, so that rows of priority 0 can be drawn.
    check_for_update : bool, optional
        Whether ``indexes`` are permanent handles of rows, so that ``update_priorities`` skips rows
        that were overwritten after their draw. By default ``indexes`` are slots, and a priority
        goes to the row that is now in the slot.
    sampler : PrioritySampler, optional
        The sampler, ``Prioritized(...)`` or ``RankBased(...)``, in place of ``alpha``, ``eps`` and
        ``check_for_update``.
    **options
        As for ``ReplayBuffer``.

    Raises
    ------
    TypeError, ValueError, MemoryError
        As ``ReplayBuffer``; or a parameter of priorities has a wrong type or value.

    Notes
    -----
    New rows get the maximum priority so far, at least 1.0. ``add`` costs as much as in a uniform
    buffer. See ``Prioritized`` for importance-sampling weights, cost and source.

    Examples
    --------
    >>> from cpprb_like import PrioritizedReplayBuffer
    >>> rb = PrioritizedReplayBuffer(1000, {"obs": {"shape": 4}, "rew": {"shape": ()}}, seed=0)
    >>> for _ in range(10):
    ...     _ = rb.add(obs=[1, 2, 3, 4], rew=0.5)
    >>> batch = rb.sample(32, beta=0.4)
    >>> batch["obs"].shape, batch["weights"].shape
    ((32, 4), (32,))
    >>> rb.update_priorities(batch["indexes"], abs(batch["rew"] - 1))
    """

    sampler: PrioritySampler

    def __init__(
        self,
        size: float,
        env_dict: Mapping[str, FieldSpec],
        *,
        alpha: float | None = None,
        eps: float | None = None,
        check_for_update: bool | None = None,
        sampler: PrioritySampler | None = None,
        **options: Unpack[BufferOptions],
    ) -> None:
        given = {"alpha": alpha, "eps": eps, "check_for_update": check_for_update}
        given = {name: value for name, value in given.items() if value is not None}
        if sampler is None:
            sampler = Prioritized(**({"check_for_update": False} | given))  # type: ignore[arg-type]
        elif given:
            raise TypeError(f"{', '.join(given)}: expected as options of the sampler")
        elif not isinstance(sampler, PrioritySampler):
            raise TypeError(f"sampler: expected a PrioritySampler, got {sampler!r}")
        super().__init__(size, env_dict, sampler=sampler, **options)


class ReverseReplayBuffer(ReplayBuffer):
    """Reverse experience replay, from the newest step backwards: cpprb's class of this name.

    It is ``ReplayBuffer(size, env_dict, sampler=Reverse(stride), **options)``.

    Parameters
    ----------
    size, env_dict, **options
        As for ``ReplayBuffer``. The option ``sampler`` raises ``TypeError``.
    stride : int
        As for ``samplers.Reverse``, which describes the draws.

    Examples
    --------
    >>> from cpprb_like import ReverseReplayBuffer
    >>> rb = ReverseReplayBuffer(10, {"x": {"shape": (), "dtype": "i8"}}, stride=3)
    >>> rb.add(x=range(10))
    0
    >>> rb.sample(4)["x"].tolist(), rb.sample(4)["x"].tolist()
    ([9, 6, 3, 0], [8, 5, 2, 9])
    """

    def __init__(
        self,
        size: float,
        env_dict: Mapping[str, FieldSpec],
        *,
        stride: int = 300,
        **options: Unpack[BufferOptions],
    ) -> None:
        if "sampler" in options:
            raise TypeError(
                "sampler: ReverseReplayBuffer has its own; use ReplayBuffer for another"
            )
        super().__init__(size, env_dict, sampler=Reverse(stride), **options)


def create_buffer(
    size: float,
    env_dict: Mapping[str, FieldSpec],
    *,
    prioritized: bool = False,
    **options: Unpack[PrioritizedOptions],
) -> ReplayBuffer:
    """A ``PrioritizedReplayBuffer`` or a ``ReplayBuffer``: cpprb's function of this name.

    Parameters
    ----------
    size, env_dict, **options
        As for the class.
    prioritized : bool
        Whether to create a ``PrioritizedReplayBuffer``.

    Examples
    --------
    >>> from cpprb_like import create_buffer
    >>> len(create_buffer(100, {"obs": {"shape": 4}}))
    0
    """
    kind: Any = PrioritizedReplayBuffer if prioritized else ReplayBuffer
    made: ReplayBuffer = kind(size, env_dict, **options)
    return made
