"""How many cases the long tests try: a few, or with ``CPPRB_LIKE_LONG=1`` those of a release."""

from __future__ import annotations

import os

LONG = os.environ.get("CPPRB_LIKE_LONG") == "1"
# Processes that each test of mapped buffers kills.
KILLS = int(os.environ.get("CPPRB_LIKE_KILLS", "16"))
# Processes that each test of random kills of a shared replay ends, at least.
PROCESS_KILLS = int(os.environ.get("CPPRB_LIKE_PROCESS_KILLS", "1000" if LONG else "36"))
