"""``Part``: the rows of one memory of a host, as a learner knows them; and updates of priorities.

Not here: which hosts answer (``_directory``), and waits for updates (``_updates``).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpprb_like.processes import Mass
from cpprb_like.ray._calls import Host
from cpprb_like.ray._drawing import Drawer
from cpprb_like.ray._messages import About


class PartDownError(Exception):
    """A host does not answer: its rows cannot be drawn now."""


@dataclass(eq=False)
class Call:
    """A call of a host with several updates."""

    answer: Any  # reference of the answer
    # For each update the number of late priorities, or its error; None before the answer came.
    results: list[int | Exception] | None = None


@dataclass(eq=False)
class Update:
    """An update of priorities at a host."""

    number: int  # number from 1 on: the host makes the updates of a learner in this order
    rows: NDArray[np.int64]  # handles of the rows at the host
    priorities: NDArray[np.float64]
    largest: float  # greatest priority that the learner knows
    call: Call | None = None  # last call with the update; None before it was sent
    place: int = 0  # place of the update in this call


@dataclass(eq=False)
class Part:
    """The rows of one incarnation of a host, for one learner."""

    number: int  # number of the part in handles
    learner: str  # name of the learner
    host: Host
    about: About
    drawer: Drawer | None  # drawer of this process, if it is on the node of the host
    masses: dict[str, Mass] = field(default_factory=dict)  # last answer for each view
    # Question for a new mass of each view, and the time at which it was asked.
    renewals: dict[str, tuple[Any, float]] = field(default_factory=dict)
    told: float = 1.0  # greatest priority that was sent to the host
    down_until: float = 0.0
    # A call that asks a host where it is: one that is down, or one of this node now and then.
    question: Any = None
    asked_at: float = 0.0  # time of this question to a host of this node
    updated: int = 0  # the number of the last update that took effect
    waiting: deque[Update] = field(default_factory=deque)  # updates without an answer
    # Priorities that were given while the host was down, by row: sent when it answers again.
    unsent: dict[int, float] = field(default_factory=dict)
    given: int = 0
    late: int = 0
    waited: float = 0.0

    @property
    def identity(self) -> str:
        """The incarnation."""
        return self.about.identity

    def note(self, view: str, mass: Mass, asked: float) -> None:
        """Record a mass that was asked for at this time, unless a newer one is known."""
        known = self.masses.get(view)
        if known is None or known.moment <= asked:
            self.masses[view] = replace(mass, moment=asked)  # clocks of nodes differ

    def forget_masses(self) -> None:
        """Forget all masses, so that the next draw asks for them."""
        self.masses.clear()
        self.renewals.clear()

    def add_update(
        self, rows: NDArray[np.int64], priorities: NDArray[np.float64], largest: float
    ) -> None:
        """Put an update behind all others; ``send`` sends it."""
        number = (self.waiting[-1].number if self.waiting else self.updated) + 1
        self.waiting.append(Update(number, rows, priorities, largest))
        self.told = largest

    @property
    def calls(self) -> int:
        """Number of calls with updates on their way."""
        return len({id(update.call) for update in self.waiting if update.call is not None})

    def send(self) -> None:
        """Send the updates that were not sent, in one call."""
        updates = [update for update in self.waiting if update.call is None]
        if updates:
            given = [(one.number, one.rows, one.priorities, one.largest) for one in updates]
            call = Call(self.host.begin("update", self.learner, self.identity, given))
            for place, update in enumerate(updates):
                update.call, update.place = call, place

    def send_again(self, largest: float) -> None:
        """Send all updates without an answer, and what was given while the host was down.

        They come before any other update, as the host takes updates in their order.
        """
        for update in self.waiting:
            update.call = None
        if self.unsent:
            rows = np.fromiter(self.unsent.keys(), np.int64)
            self.add_update(rows, np.fromiter(self.unsent.values(), np.float64), largest)
            self.unsent = {}
        self.send()

    def count(self, given: int, late: int) -> None:
        """Count priorities that have taken effect, or came too late."""
        self.given += given
        self.late += late

    def complete(self, late: int) -> None:
        """Count the oldest update, which the host has made."""
        update = self.waiting[0]
        self.updated = update.number
        self.waiting.popleft()
        self.count(len(update.rows), late)
