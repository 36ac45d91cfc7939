"""Loading: makes the object of a saved state, or restores an existing object.

Not here: the state (``_open_state``), and the methods that users call (``_saved``).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from cpprb_like._machine.prefetch_state import halted
from cpprb_like.checkpoint._disk import Disk
from cpprb_like.checkpoint._open_state import decoded
from cpprb_like.checkpoint._options import LoadOptions, Target
from cpprb_like.checkpoint._savable import HoldsRows
from cpprb_like.checkpoint._values import Encoder, give_state, state_of
from cpprb_like.samplers._base import Sampler

__all__ = ["load", "restore"]


def load(disk: Disk, options: LoadOptions, target: Target) -> Any:
    """A new object with a saved state."""
    root, _ = decoded(disk, options, {"": target}, options.replaced)
    if target != Target() and not isinstance(root, HoldsRows):
        raise ValueError(
            f"size, fields and mmap_prefix are for one buffer; a {type(root).__name__} was saved"
        )
    return root


def restore(disk: Disk, options: LoadOptions, root: Any) -> None:
    """Restore an object; the object and its parts keep their identity."""
    encoder = Encoder(options.classes)
    encoder.encode(root)
    targets = {
        path: Target(size=holder.capacity, schema=holder.schema)
        for path, holder in encoder.elements.items()
        if issubclass(type(holder), HoldsRows)
    }
    own = {type(value) for value in encoder.elements.values()}
    classes = (*(own - {np.random.Generator}), *options.classes)
    given = {**encoder.external, **options.replaced}
    found, elements = decoded(disk, replace(options, classes=classes), targets, given)
    if type(found) is not type(root):
        raise TypeError(
            f"a {type(found).__name__} was saved, which cannot be given to a {type(root).__name__}"
        )
    old = encoder.elements
    pairs = [
        (path, old[path], value)
        for path, value in elements.items()
        if path in old and type(old[path]) is type(value)
    ]
    _check_kinds(pairs)
    with halted(old.values()):
        _move(pairs)


def _check_kinds(pairs: list[tuple[str, Any, Any]]) -> None:
    """Raise for a part that cannot take its saved values. No part has changed yet."""
    for path, there, value in pairs:
        if isinstance(value, np.random.Generator):
            own, saved = type(there.bit_generator), type(value.bit_generator)
            if own is not saved:
                raise TypeError(
                    f"{path}: a generator of {saved.__name__} was saved, which cannot be given to "
                    f"one of {own.__name__}"
                )
        elif isinstance(value, HoldsRows):
            there._expect_no_file()


def _move(pairs: list[tuple[str, Any, Any]]) -> None:
    """Give each old part the state of the new part at its path."""
    staying = {id(value): there for _, there, value in pairs}

    def swap(value: Any) -> Any:
        if id(value) in staying:
            return staying[id(value)]
        if type(value) is dict:
            return {key: swap(entry) for key, entry in value.items()}
        if type(value) in (list, tuple):
            return type(value)(swap(entry) for entry in value)
        return value

    for _, there, value in pairs:
        if isinstance(value, np.random.Generator):
            with there.bit_generator.lock:
                there.bit_generator.state = value.bit_generator.state
        elif isinstance(value, HoldsRows):
            there._take_over(value, swap)
        elif isinstance(value, Sampler):
            there.__dict__.clear()
            there.__dict__.update({key: swap(entry) for key, entry in value.__dict__.items()})
        else:
            give_state(there, swap(state_of(value)))
