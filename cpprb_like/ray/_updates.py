"""``Updates``: updates of priorities on their way from a learner to the hosts.

A host takes the updates of a learner in their order, and each takes effect once. Beside two calls
on their way, further updates wait, and travel together. The updates of a host that is down wait
until it answers again. Not here: how they are sent (``_parts``).
"""

from __future__ import annotations

import time

import numpy as np
import ray
from numpy.typing import NDArray
from ray.exceptions import RayTaskError

from cpprb_like._machine.waiting import PAUSE
from cpprb_like.ray._directory import Directory
from cpprb_like.ray._parts import Part, PartDownError

CALLS_AHEAD = 2  # calls of ``update`` of a host beside which further updates wait for one call
UPDATES_AHEAD = 32  # updates without an answer, of each host


class Updates:
    """The updates of a learner, whose lock each caller holds."""

    def __init__(self, directory: Directory) -> None:
        self._directory = directory

    def update(self, part: Part, own: NDArray[np.int64], values: NDArray[np.float64]) -> None:
        """Set the priorities of rows of a part, by their handles at the host, without a wait."""
        if self._directory.parts.get(part.host.number) is not part:
            self._directory.late_of_gone += len(own)
            return
        if part.drawer is not None:
            part.told = self._directory.largest
            part.updated += 1
            late = part.drawer.update(part.updated, own, values, self._directory.largest)
            part.count(len(own), late)
            return
        if part.down_until:
            before = len(part.unsent)
            part.unsent.update(zip(own.tolist(), values.tolist(), strict=True))
            # Of several priorities of a row only the last one is sent; all of them count.
            part.count(len(own) - (len(part.unsent) - before), 0)
            self._directory.try_again(part)
            return
        part.add_update(own, values, self._directory.largest)
        if part.calls >= CALLS_AHEAD:
            self._note_answers(part)
        if part.calls < CALLS_AHEAD and not part.down_until:
            part.send()
        while len(part.waiting) > UPDATES_AHEAD and not part.down_until:
            self._confirm(part)

    def send(self) -> None:
        """Send all updates, so that draws which are asked for later come after them."""
        for part in self._directory.parts.values():
            if not part.down_until:
                part.send()

    def send_ready(self) -> None:
        """Send the updates that wait for a host which has answered earlier ones by now."""
        for part in list(self._directory.parts.values()):
            if part.waiting and part.waiting[-1].call is None and not part.down_until:
                self._note_answers(part)
                if part.calls < CALLS_AHEAD and not part.down_until:
                    part.send()

    def _note_answers(self, part: Part) -> None:
        """Note the updates that have taken effect, without a wait."""
        while part.waiting and not part.down_until:
            call = part.waiting[0].call
            if call is None:
                return
            if call.results is None and not ray.wait([call.answer], timeout=0)[0]:
                return
            self._confirm(part)

    def tell_largest(self) -> None:
        """Send the greatest priority to the hosts that do not know it, as an update of no rows.

        A host with many updates on their way gets the priority with a later call.
        """
        for part in self._directory.parts.values():
            has_room = not part.down_until and len(part.waiting) < UPDATES_AHEAD
            if part.told < self._directory.largest and has_room:
                self.update(part, np.empty(0, np.int64), np.empty(0))

    def flush(self) -> None:
        """Wait until all updates have taken effect; ``TimeoutError`` if a host does not answer."""
        until = time.monotonic() + self._directory.timeout
        for part in list(self._directory.parts.values()):
            self._settle(part, until)

    def _confirm(self, part: Part) -> None:
        """Wait until the oldest update has taken effect, or the host is down.

        An error of the update is raised once.
        """
        update = part.waiting[0]
        if update.call is None:
            part.send()
        assert update.call is not None
        try:
            if update.call.results is None:
                update.call.results = self._directory.answer(part, update.call.answer)
            result = update.call.results[update.place]
        except PartDownError:
            return
        except RayTaskError as error:
            part.complete(len(update.rows))
            raise error.cause from None
        part.complete(len(update.rows) if isinstance(result, Exception) else result)
        if isinstance(result, Exception):
            raise result

    def _settle(self, part: Part, until: float) -> None:
        """Wait until all updates have taken effect, or their rows are gone."""
        while part.waiting or part.unsent:
            if not part.down_until:
                self._confirm(part)
                continue
            self._directory.try_again(part)
            if not part.down_until:
                continue
            if time.monotonic() > until:
                raise TimeoutError(
                    f"flush: {part.host} did not answer in {self._directory.timeout:g} s; "
                    "its updates wait"
                )
            part.waited += PAUSE
            time.sleep(PAUSE)
