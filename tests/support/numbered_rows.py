"""A buffer whose rows are numbered."""

from __future__ import annotations

from typing import Any

import numpy as np

from cpprb_like import ReplayBuffer


def numbered(n: int, capacity: int | None = None, **options: Any) -> ReplayBuffer:
    """A buffer to which the rows 0 to n - 1 were added."""
    rb = ReplayBuffer(capacity or n, {"x": {"shape": (), "dtype": "i8"}}, **options)
    rb.add(x=np.arange(n))
    return rb
