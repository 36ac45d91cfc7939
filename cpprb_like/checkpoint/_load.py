"""Loading: makes the object of a saved state, or restores an existing object.

Not here: the state (``_open_state``), and the methods that users call (``_saved``).
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from cpprb_like._machine.at_once import at_once, attributes_of, set_generator
from cpprb_like._machine.prefetch_state import halted
from cpprb_like.checkpoint._disk import Disk
from cpprb_like.checkpoint._open_state import decoded
from cpprb_like.checkpoint._options import LoadOptions, Target
from cpprb_like.checkpoint._restorable import check_restorable
from cpprb_like.checkpoint._savable import Change, Savable, holds_rows
from cpprb_like.checkpoint._values import Encoder, give_state, state_of
from cpprb_like.samplers._base import Sampler


def load(disk: Disk, options: LoadOptions, target: Target) -> Any:
    """A new object with a saved state."""
    root, _ = decoded(disk, options, {"": target}, options.replaced)
    if target != Target() and not holds_rows(root):
        raise ValueError(
            f"size, fields, room and mmap_prefix are for one buffer; a {type(root).__name__} was "
            "saved"
        )
    return root


def restore(disk: Disk, options: LoadOptions, root: Any) -> None:
    """Restore an object; the object and its parts keep their identity.

    All of the new state is prepared first. Then all objects change at once.
    """
    encoder = Encoder(options.classes)
    encoder.encode(root)
    old = encoder.elements
    holders = {path: one for path, one in old.items() if holds_rows(one)}
    layouts = {path: holder._rows_to_save().layout for path, holder in holders.items()}
    targets = {
        path: Target(size=layout.size, room=layout.schema.rooms, options=layout.options)
        for path, layout in layouts.items()
    }
    own = {type(value) for value in old.values()}
    classes = (*(own - {np.random.Generator}), *options.classes)
    given = {**encoder.external, **options.replaced}
    found, elements = decoded(disk, replace(options, classes=classes), targets, given)
    if type(found) is not type(root):
        raise TypeError(
            f"a {type(found).__name__} was saved, which cannot be given to a {type(root).__name__}"
        )
    pairs = [(path, old[path], value) for path, value in elements.items() if path in old]
    check_restorable(pairs)
    pairs = [pair for pair in pairs if type(pair[1]) is type(pair[2])]
    with halted(old.values()):
        _move([pair for pair in pairs if type(pair[1]) is type(pair[2])], [*holders.values()])


def _move(pairs: list[tuple[str, Any, Any]], holders: list[Any]) -> None:
    """Give each old part the state of the new part at its path: all parts at once, or none."""
    swap = _Swap(pairs)
    changes = [change for _, there, value in pairs for change in _changes(there, value, swap)]
    call = partial(at_once, changes)
    for holder in sorted(holders, key=id):
        call = partial(holder._hold, True, call)
    call()


class _Swap:
    """Gives, for each part of a new state, the old part at its path."""

    def __init__(self, pairs: list[tuple[str, Any, Any]]) -> None:
        self._staying = {id(value): (there, value) for _, there, value in pairs}

    def __call__(self, value: Any) -> Any:
        if id(value) in self._staying:
            return self._staying[id(value)][0]
        if type(value) is dict:
            return {key: self(entry) for key, entry in value.items()}
        if type(value) in (list, tuple):
            return type(value)(self(entry) for entry in value)
        return value


def _changes(there: Any, value: Any, swap: _Swap) -> list[Change]:
    """Calls for ``at_once`` that give ``there`` the state of ``value``; nothing changes yet."""
    if isinstance(value, np.random.Generator):
        return [partial(set_generator, there, dict(value.bit_generator.state))]
    if isinstance(value, Sampler):
        attributes = {key: swap(entry) for key, entry in value.__dict__.items()}
        return attributes_of(there, attributes)
    changes: list[Change] | None = None
    if isinstance(value, Savable):
        changes = there._to_take_over(value, swap)
    if changes is None:
        cls: Any = type(value)
        prepared = cls.__new__(cls)
        give_state(prepared, swap(state_of(value)))
        changes = attributes_of(there, prepared.__dict__)
    return changes
