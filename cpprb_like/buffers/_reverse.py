"""``ReverseReplayBuffer``: a ``ReplayBuffer`` with the sampler ``Reverse``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from cpprb_like.buffers._replay import ReplayBuffer
from cpprb_like.samplers._reverse import Reverse
from cpprb_like.typing import BufferOptions, FieldSpec

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["ReverseReplayBuffer"]


class ReverseReplayBuffer(ReplayBuffer):
    """A buffer that is replayed from the newest step back in time: cpprb's class of this name.

    It is ``ReplayBuffer(size, env_dict, sampler=Reverse(stride), **options)``.

    Parameters
    ----------
    size, env_dict, **options
        As for ``ReplayBuffer``, but for ``sampler``.
    stride : int
        Rows from one row of a batch to the next, at least 1.

    Raises
    ------
    TypeError, ValueError, MemoryError
        As ``ReplayBuffer``; also if ``sampler`` is given, or ``stride`` is no integer of at least
        1.

    See Also
    --------
    samplers.Reverse : which rows are drawn.

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
