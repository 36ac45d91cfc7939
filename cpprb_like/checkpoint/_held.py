"""``Savable``: base classes of objects that are saved, and the edits since a save.

Buffers are made of these, so they need nothing of what writes and reads files (``_save``,
``_load``): that is imported by those who save or load.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from cpprb_like._arguments.arrays import Bytes
from cpprb_like._core import Ring, track
from cpprb_like._fields.schema import Layout
from cpprb_like._rows.edits import Tracker

if TYPE_CHECKING:
    from cpprb_like.checkpoint._save import Before
    from cpprb_like.checkpoint._segments import Part

__all__ = ["HoldsObjects", "HoldsRows", "RowsToSave", "Savable", "Saves"]


class Savable:
    """Base class of what can be all of a checkpoint, and not just a part of one."""

    NOT_SAVED: ClassVar[tuple[str, ...]] = ()  # attributes that are handed over again, by path


class HoldsRows:
    """Base class of what holds a ring: its rows go to segments, the rest to the manifest."""

    def _rows_to_save(self) -> Any:
        """The layout, the memory and the ring: ``RowsToSave``."""
        raise NotImplementedError

    def _attributes_to_save(self) -> dict[str, Any]:
        """The attributes that belong to what is saved."""
        raise NotImplementedError

    def _open_saved(
        self, attributes: dict[str, Any], reader: Any, target: Any, state: tuple[str, int]
    ) -> None:
        """Hold the rows that a reader reads, with these attributes; of a blank object.

        ``target`` says where they go, ``state`` is the name of the state and the number of the
        ring in it.
        """
        raise NotImplementedError

    def _expect_no_file(self) -> None:
        """Raise ``ValueError`` if the rows lie in a file, which ``_take_over`` cannot replace."""
        raise NotImplementedError

    def _take_over(self, other: Any, swap: Callable[[Any], Any]) -> None:
        """Take over the state of another object; ``swap`` gives the object in place of a part."""
        raise NotImplementedError


class HoldsObjects:
    """Base class of what holds Python objects of the caller, of which only he can make bytes."""

    OBJECTS: ClassVar[tuple[str, ...]] = ()  # the attributes that are lists of them


class RowsToSave(NamedTuple):
    """What something that holds rows gives to be saved."""

    layout: Layout
    arena: Bytes
    ring: Ring
    saves: Saves


class Saves:
    """What was edited in a buffer since it was saved: of the last few states, by their names."""

    MOST = 3

    def __init__(self) -> None:
        self._since: dict[str, tuple[int, Tracker]] = {}
        self._running: list[Tracker] = []

    def since(
        self,
        before: Before,
        number: int,
        saved: dict[str, Any],  # noqa: ARG002 (of those who compare with it)
        parts: list[Part],  # noqa: ARG002
        ring: Ring,  # noqa: ARG002
    ) -> Tracker | None:
        """What was edited since the state before, in which the ring had this number.

        None if unknown. ``saved`` is what that state says of the ring, which has the same
        fields and was not cleared.
        """
        known, tracker = self._since.get(before.name, (-1, None))
        return tracker if known == number else None

    def begin(self, ring: Ring, tracker: Tracker) -> None:
        """Tell a tracker from now on: a save begins."""
        self._running.append(tracker)
        self._tell(ring)

    def end(self, ring: Ring, tracker: Tracker) -> None:
        """The save of this tracker has ended."""
        self._running = [other for other in self._running if other is not tracker]
        self._tell(ring)

    def put(self, ring: Ring, name: str, number: int, tracker: Tracker, before: str) -> None:
        """There is a state of this name, in place of that of the name ``before``."""
        self._since.pop(before, None)
        self._since[name] = number, tracker
        while len(self._since) > self.MOST:
            del self._since[next(iter(self._since))]
        self._tell(ring)

    def _tell(self, ring: Ring) -> None:
        since = [tracker for _, tracker in self._since.values()]
        track(ring, (*since, *self._running))
