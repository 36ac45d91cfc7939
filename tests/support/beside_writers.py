"""Fronts that are read while other threads write: their frames, and the threads."""

from __future__ import annotations

from typing import Any

import numpy as np
from strategies import Array
from threads import run_together

from cpprb_like import NotEnoughDataError

FRAME = (20, 30)
SIZE = 40  # steps held by fronts: so few that they are soon overwritten


def frames_of(x: Array) -> Array:
    """A frame for each number, all of it that number."""
    return np.broadcast_to(x[..., None, None], (*x.shape, *FRAME))


def check_together(place: Any, change: Any, read: Any, seconds: float) -> None:
    """Two threads read while one changes."""

    def reading() -> None:
        try:
            read(place)
        except NotEnoughDataError:
            pass  # cleared a moment ago
        except RuntimeError as error:  # keras-gym's of the same, and coax's of an iteration
            if "cannot sample" not in str(error) and "during the iteration" not in str(error):
                raise

    run_together(lambda: change(place), reading, reading, seconds=seconds)
