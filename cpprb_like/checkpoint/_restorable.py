"""What ``restore`` compares before it changes anything: parts, and settings that rows depend on.

The options of a buffer are compared where its rows are read (``_open_state``). Here are the classes
of parts, which stay the same objects, and attributes of fronts, views and layers.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from cpprb_like.checkpoint import _classes
from cpprb_like.checkpoint._savable import Savable, holds_rows
from cpprb_like.samplers._base import Sampler
from cpprb_like.views._layer import Layer

PARTS = (Savable, Sampler, Layer, np.random.Generator)


def check_restorable(pairs: list[tuple[str, Any, Any]]) -> None:
    """Raise for a part that cannot take its saved state. No part has changed yet.

    ``pairs`` have the path of each part, the part, and the part that was saved.
    """
    for path, there, value in pairs:
        name = path or "the object"
        are_parts = isinstance(there, PARTS) and isinstance(value, PARTS)
        if are_parts and type(there) is not type(value):
            raise TypeError(
                f"{name}: a {type(value).__name__} was saved, which cannot be given to a "
                f"{type(there).__name__}"
            )
        if isinstance(value, np.random.Generator):
            own, saved = type(there.bit_generator), type(value.bit_generator)
            if own is not saved:
                raise TypeError(
                    f"{name}: a generator of {saved.__name__} was saved, which cannot be given to "
                    f"one of {own.__name__}"
                )
        elif holds_rows(value):
            there._expect_no_file()
        if isinstance(value, Savable):
            for attribute in value.OF_ROWS:
                here, saved = vars(there)[attribute], vars(value)[attribute]
                if not _is_same(here, saved):
                    where = f"{path}." if path else ""
                    raise ValueError(
                        f"{where}{attribute.strip('_')}: {_named(here)} here, {_named(saved)} in "
                        "the checkpoint"
                    )


def _is_same(one: Any, two: Any) -> bool:
    """Whether two settings are equal.

    Of samplers, generators and saved objects only the class counts, as their state is restored.
    """
    if type(one) is not type(two):
        return False
    if isinstance(one, dict):
        return list(one) == list(two) and all(_is_same(one[name], two[name]) for name in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(two) and all(map(_is_same, one, two))
    if isinstance(one, np.ndarray):
        return np.array_equal(one, two)
    if isinstance(one, Layer):  # a layer of the caller may have state of its own
        return _classes.name_of(type(one)) is None or _is_same(vars(one), vars(two))
    if isinstance(one, PARTS):
        return True
    if _classes.name_of(type(one)) is not None and not isinstance(one, tuple):
        return _is_same(vars(one), vars(two))
    return one is two or bool(one == two)


def _named(value: Any) -> str:
    """The text of a setting for a message; for a dict, the list of its keys."""
    return str(list(value)) if isinstance(value, dict) else repr(value)
