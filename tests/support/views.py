"""Views of buffers, in a line."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt

from cpprb_like import ReplayBuffer
from cpprb_like.views import NStep, Sequences, sequence_priorities

Array = npt.NDArray[Any]


def sample_sequences(
    rb: ReplayBuffer,
    batch_size: int,
    length: int,
    *,
    beta: Any = None,
    indexes: bool = False,
    fields: Any = None,
    **options: Any,
) -> dict[str, Array]:
    """Sequences of single steps, whatever ``Nstep`` the buffer has."""
    single = [NStep(1, discount=False)] if rb.is_Nstep() else []
    view = rb.view(Sequences(length, **options), *single)
    return view.sample(batch_size, beta, indexes=indexes, fields=fields)


def update_sequence_priorities(
    rb: ReplayBuffer, indexes: Any, td_errors: Any, mask: Any = None, **options: Any
) -> None:
    """Set the priorities of sequences."""
    rb.update_priorities(indexes, sequence_priorities(td_errors, mask, **options))
