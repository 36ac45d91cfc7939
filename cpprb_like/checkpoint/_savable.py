"""``Savable``: base classes of objects that are saved, and the edits since a save.

Buffers derive from these, so they import nothing that writes or reads files (``_save``, ``_load``):
``save`` and ``load`` import it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from cpprb_like._arguments.arrays import Bytes
from cpprb_like._core import Ring, track
from cpprb_like._fields.schema import Layout
from cpprb_like._rows.edits import Tracker

if TYPE_CHECKING:
    from cpprb_like.checkpoint._options import Target
    from cpprb_like.checkpoint._ring_reader import RingReader
    from cpprb_like.checkpoint._state import State
    from cpprb_like.checkpoint._values import Node

__all__ = ["EditsSinceSave", "HoldsObjects", "HoldsRows", "RowsToSave", "Savable"]


class Savable:
    """Base class of everything that a checkpoint can hold by itself."""

    NOT_SAVED: ClassVar[tuple[str, ...]] = ()  # attributes that ``load`` takes from the caller


class HoldsRows:
    """Base class of holders of a ring: rows go to segments, attributes to the manifest."""

    def _rows_to_save(self) -> RowsToSave:
        """The layout, the memory, the ring, its edits, and the attributes."""
        raise NotImplementedError

    def _open_saved(self, attributes: dict[str, Any], reader: RingReader, target: Target) -> None:
        """Fill a blank object with the rows of a reader, in a target, and with these attributes."""
        raise NotImplementedError

    def _expect_no_file(self) -> None:
        """Raise ``ValueError`` if the rows lie in a file, which ``_take_over`` cannot replace."""
        raise NotImplementedError

    def _take_over(self, other: Any, swap: Callable[[Any], Any]) -> None:
        """Take all of another object. ``swap`` returns the part that replaces one of its parts."""
        raise NotImplementedError


class HoldsObjects:
    """Base class of holders of the caller's Python objects, which only ``encode`` can write."""

    OBJECTS: ClassVar[tuple[str, ...]] = ()  # attributes that are lists of objects


class RowsToSave(NamedTuple):
    """The content of a holder of rows."""

    layout: Layout
    arena: Bytes
    ring: Ring
    edits: EditsSinceSave
    attributes: dict[str, Any]


class EditsSinceSave:
    """Slots of a buffer that were edited since each of its last few saves, by id of the state.

    ``identity`` is that attribute of what is saved, if other processes write the rows. Their edits
    are counted and not recorded, so they are known only if there were none.
    """

    MOST = 3

    def __init__(self, identity: str = "") -> None:
        self._identity = identity
        self._since: dict[str, tuple[int, Tracker]] = {}
        self._running: list[Tracker] = []

    def since(
        self, state: State, root: Node, number: int, ring: Ring, absent: int
    ) -> Tracker | None:
        """Edits since a state in which the ring has this number; None if they are unknown.

        The ring of the state has the same fields, and was not cleared since.
        """
        if self._identity:
            # Ends of episodes are not counted. Without absent rows they mark one of the newest
            # rows, which are written again. The copy of a shard may have ended an episode before
            # rows that it left out; then the state has absent rows.
            saved = state.rings[number]
            is_same = root.attribute("identity") == self._identity
            is_same = is_same and saved.edits == ring.now().edits and not (absent or saved.absent)
            return Tracker(ring.capacity) if is_same else None
        known, tracker = self._since.get(state.id, (-1, None))
        return tracker if known == number else None

    def begin(self, ring: Ring, tracker: Tracker) -> None:
        """Record edits in a tracker from now on: a save begins."""
        self._running.append(tracker)
        self._track(ring)

    def end(self, ring: Ring, tracker: Tracker) -> None:
        """End the save of this tracker."""
        self._running = [other for other in self._running if other is not tracker]
        self._track(ring)

    def put(self, ring: Ring, state: str, number: int, tracker: Tracker, previous: str) -> None:
        """Keep a tracker for the state of this id, in place of that of ``previous``."""
        self._since.pop(previous, None)
        self._since[state] = number, tracker
        while len(self._since) > self.MOST:
            del self._since[next(iter(self._since))]
        self._track(ring)

    def _track(self, ring: Ring) -> None:
        since = [tracker for _, tracker in self._since.values()]
        track(ring, (*since, *self._running))
