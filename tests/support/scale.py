"""How many cases the long tests try: a few, or with ``CPPRB_LIKE_LONG=1`` those of a release.

``repeats`` is for tests that repeat one case at random times: with the Hypothesis profile
``thorough`` they repeat as often as before a release is prepared, with others less often.
"""

from __future__ import annotations

import os
import sys

LONG = os.environ.get("CPPRB_LIKE_LONG") == "1"
THOROUGH = LONG or os.environ.get("HYPOTHESIS_PROFILE") in ("thorough", "long")
# Processes that each test of mapped buffers kills.
KILLS = int(os.environ.get("CPPRB_LIKE_KILLS", "16"))
# Folders that a crash may leave of saves with files of the caller.
CRASH_IMAGES = int(os.environ.get("CPPRB_LIKE_CRASH_IMAGES", "100000" if LONG else "1500"))
# Moments at which a whole run is stopped, and the interpreters that go on with it in turn.
STOPS = int(os.environ.get("CPPRB_LIKE_STOPS", "200" if LONG else "2"))
PYTHONS = os.environ.get("CPPRB_LIKE_PYTHONS", sys.executable).split(os.pathsep)
# Processes that each test of random kills of a shared replay ends, at least.
PROCESS_KILLS = int(os.environ.get("CPPRB_LIKE_PROCESS_KILLS", "1000" if LONG else "36"))
# Random histories of rows on a device, of PyTorch; of JAX a quarter.
HISTORIES = int(os.environ.get("CPPRB_LIKE_HISTORIES", "20000" if LONG else "60"))


def repeats(thorough: int, few: int) -> int:
    """Repetitions of one case: ``thorough`` before a release, otherwise ``few``."""
    return thorough if THOROUGH else few
