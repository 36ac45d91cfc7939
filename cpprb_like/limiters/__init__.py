"""Rate limiters: limits on how fast rows are added and drawn, so that neither side runs ahead.

A call of ``add`` or ``sample`` announces its items in the counters (``_counters``), which say
whether the limiter (``_policies``) allows them; where it does not, the call takes them back, sleeps
for a moment and looks again (``_gates``), until its time is out. ``RateLimited`` puts that in front
of a buffer that threads share; a replay that processes share has such gates at both ends.

May import the rooms below: buffers, checkpoint, views, samplers and what that may.
Not here: which rows are drawn (``samplers``), and memory that processes share (``processes``).
"""

from cpprb_like.limiters._gates import LimiterStats
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
    "LimiterStats",
    "MinSize",
    "RateLimited",
    "RateLimiter",
    "SampleToInsertRatio",
]
