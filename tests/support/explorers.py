"""What explorers do, in processes of every kind: these import it."""

from __future__ import annotations

from typing import Any

import numpy as np


def explore(rb: Any, start: int, n: int) -> None:
    """Add rows that prove themselves, one by one."""
    for number in range(start, start + n):
        rb.add(id=number, same=np.full(50, number), done=number % 7 == 6)
    rb.on_episode_end()
