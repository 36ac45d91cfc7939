"""Rate limiters: limits on how fast rows are added and drawn, so that neither side runs ahead.

A call of ``add`` or ``sample`` announces its items in the counters (``_counters``), which apply the
formulas of the limiter (``_policies``). A call that is not allowed takes back its announcement,
sleeps, and tries again until its time-out (``_gates``). ``RateLimited`` puts such gates before a
buffer that threads share. Actors and learners of a shared replay have them too.

May import: ``buffers`` and the rooms that ``buffers`` may import.
Not here: which rows are drawn (``samplers``), and memory that processes share (``processes``).
"""

from cpprb_like.limiters._policies import (
    Backlog,
    Bounds,
    MinSize,
    RateLimiter,
    SampleToInsertRatio,
)
from cpprb_like.limiters._rate_limited import RateLimited

__all__ = [
    "Backlog",
    "Bounds",
    "MinSize",
    "RateLimited",
    "RateLimiter",
    "SampleToInsertRatio",
]
