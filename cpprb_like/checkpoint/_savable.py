"""``Savable``: base class of objects that are saved, and the edits since a save.

Buffers derive from this class without importing what writes or reads files (``_save``,
``_load``): the methods ``save`` and ``load`` import it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeGuard

from cpprb_like._arguments.arrays import Bytes
from cpprb_like._core import Ring, track
from cpprb_like._fields.layout import Layout
from cpprb_like._rows.edits import Tracker

if TYPE_CHECKING:
    from cpprb_like.checkpoint._nodes import Node
    from cpprb_like.checkpoint._options import Target
    from cpprb_like.checkpoint._ring_reader import RingReader
    from cpprb_like.checkpoint._state import State

Change = Callable[[], Any]  # a call of compiled code: see ``at_once``


class Savable:
    """Base class of everything that a checkpoint can hold by itself."""

    HOLDS_ROWS: ClassVar[bool] = False  # whether it has a ring, whose rows are saved as segments
    NOT_SAVED: ClassVar[tuple[str, ...]] = ()  # attributes that the caller of ``load`` passes
    # Attributes that are lists of the caller's objects, which ``encode`` turns into bytes.
    OBJECTS: ClassVar[tuple[str, ...]] = ()
    # Attributes that ``restore`` expects to equal those of the checkpoint, as rows depend on them.
    OF_ROWS: ClassVar[tuple[str, ...]] = ()

    def _to_take_over(self, other: Any, swap: Callable[[Any], Any]) -> list[Change] | None:  # noqa: ARG002
        """Calls for ``at_once`` that take over the state of another object, which then ends.

        ``swap`` replaces each part by the part to use. Nothing changes before the calls are made.
        None: all attributes are taken over. Holders of rows return calls.
        """
        return None

    # ------------------------------------------------------------------ of holders of rows

    def _rows_to_save(self) -> RowsToSave:
        """The layout, memory, ring, edits and attributes of this holder."""
        raise NotImplementedError

    def _oldest_intact(self) -> int:
        """Id of the oldest row that no other process has overwritten during the save."""
        return 0

    def _open_saved(self, attributes: dict[str, Any], reader: RingReader, target: Target) -> None:
        """Fill an object from ``__new__`` with these attributes and the rows of a reader."""
        raise NotImplementedError

    def _expect_no_file(self) -> None:
        """Raise ``ValueError`` if the rows lie in a file, which a restore cannot replace."""
        raise NotImplementedError


def holds_rows(value: object) -> TypeGuard[Savable]:
    """Whether an object has a ring, whose rows are saved as segments."""
    return isinstance(value, Savable) and value.HOLDS_ROWS


class RowsToSave(NamedTuple):
    """The content of a holder of rows."""

    layout: Layout
    arena: Bytes
    ring: Ring
    edits: EditsSinceSave
    attributes: dict[str, Any]


class EditsSinceSave:
    """The slots of a buffer that were edited since each of its last saves, by id of the state.

    If other processes write the rows, ``identity`` is set to the id of their shared replay, which
    the root of the state has too. Their edits are counted without their slots, so the slots are
    known only if the count is the same.
    """

    MOST_STATES = 3

    def __init__(self) -> None:
        self.identity = ""
        self._since: dict[str, tuple[int, Tracker]] = {}
        # Trackers of running saves, each with the object that saves. A save that was interrupted at
        # its beginning is never ended, and its object dies.
        self._running: list[tuple[weakref.ref[Any], Tracker]] = []

    def since(
        self, state: State, root: Node, number: int, ring: Ring, absent: int
    ) -> Tracker | None:
        """Edits since a state in which the ring has this number; None if they are unknown.

        The caller has checked that the ring has the same fields and was not cleared since.
        """
        if self.identity:
            # Ends of episodes are not counted. Without absent rows, an end is in one of the newest
            # rows, which are written again. With absent rows, the copy of a shard may have ended
            # an episode earlier.
            saved = state.rings[number]
            is_same = root.attribute("identity") == self.identity
            is_same = is_same and saved.edits == ring.now().edits and not (absent or saved.absent)
            return Tracker(ring.capacity) if is_same else None
        known, tracker = self._since.get(state.id, (-1, None))
        return tracker if known == number else None

    def begin(self, ring: Ring, tracker: Tracker, saving: object) -> None:
        """Begin the save of an object, whose tracker records edits from now on."""
        self._running.append((weakref.ref(saving), tracker))
        self._track(ring)

    def end(self, ring: Ring, tracker: Tracker) -> None:
        """End the save of this tracker."""
        self._running = [running for running in self._running if running[1] is not tracker]
        self._track(ring)

    def put(self, ring: Ring, state: str, number: int, tracker: Tracker, previous: str) -> None:
        """Use a tracker for the state of this id, in place of the tracker of ``previous``."""
        self._since.pop(previous, None)
        self._since[state] = number, tracker
        while len(self._since) > self.MOST_STATES:
            del self._since[next(iter(self._since))]
        self._track(ring)

    def _track(self, ring: Ring) -> None:
        self._running = [running for running in self._running if running[0]() is not None]
        since = [tracker for _, tracker in self._since.values()]
        track(ring, (*since, *(tracker for _, tracker in self._running)))
