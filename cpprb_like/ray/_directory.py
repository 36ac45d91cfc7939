"""``Directory``: the hosts of a cluster as one learner knows them, with their masses.

A host may be silent, come back, or have new memory: then the learner opens a new part. Not here:
what a part knows (``_parts``), and which host each item of a batch comes from (``_ahead``).
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import ray
from ray.exceptions import GetTimeoutError

from cpprb_like._machine.generators import Seed
from cpprb_like._machine.waiting import PAUSE, every, wait_until
from cpprb_like.errors import NotEnoughDataError
from cpprb_like.processes import Mass
from cpprb_like.ray._calls import GONE, Host, Unknown
from cpprb_like.ray._connection import Connection
from cpprb_like.ray._drawing import Drawer
from cpprb_like.ray._messages import About
from cpprb_like.ray._owners import values_of
from cpprb_like.ray._parts import Part, PartDownError
from cpprb_like.samplers import Sampler
from cpprb_like.views import Layer, Rule

MOST_PARTS = 1024  # incarnations of hosts that a learner can tell apart
DOWN = 0.2  # seconds before a host that did not answer is asked again
RENEW = 0.2  # age in seconds from which a mass of another node is asked for again
OLD = 0.5  # age in seconds from which a draw waits for the new mass
WATCH = 0.5  # seconds between two questions to a host of this node
RENEWAL = 0.1  # seconds of this wait, once for each question
OPEN = 10.0  # seconds in which a host opens a learner: it follows a million rows in 50 ms


class Directory:
    """The hosts of a cluster, for one learner, whose lock each caller holds.

    If a learner is restored, ``saved`` has folder and name of its state at each host. A call waits
    ``timeout`` seconds for a host.
    """

    def __init__(
        self,
        connection: Connection,
        learner: str,
        sampler: Sampler,
        seed: int,
        saved: Mapping[int, tuple[str, str]] | None,
        timeout: float,
    ) -> None:
        self.connection, self.timeout = connection, timeout
        self._learner, self._sampler, self._seed = learner, sampler, seed
        self._saved = saved  # until all hosts are known
        self.parts: dict[int, Part] = {}  # newest part of each host, by the number of the host
        self.known: list[Part] = []  # all parts, by their numbers
        self.views: dict[str, tuple[Layer, ...]] = {}  # views of the learner, by their names
        self.said: dict[str, tuple[Any, ...]] = {}  # values of functions of their rules
        self.largest = 1.0  # greatest priority of a row of any host
        self.late_of_gone = 0  # number of priorities whose rows were lost with a host
        self._questions: dict[int, tuple[float, Any]] = {}  # to hosts without a part, and when
        self.look_for_hosts()
        if saved is not None:
            wait_until(
                self._has_all,
                timeout,
                lambda: TimeoutError(
                    f"restore_learner: of {len(connection.hosts)} hosts {sorted(self.parts)} "
                    "answered"
                ),
                sleep=every(PAUSE),
            )
        self._saved = None

    def look_for_hosts(self) -> None:
        """Find the present hosts, and their new incarnations; silent hosts are left out."""
        for number, about in self.connection.abouts(self.timeout).items():
            known = self.parts.get(number)
            if known is None or known.identity != about.identity:
                self._open_part(number, about)

    def _has_all(self) -> bool:
        """Look for missing hosts; returns whether all hosts have a part now."""
        self._look_for_missing()
        return len(self.parts) == len(self.connection.hosts)

    def _look_for_missing(self) -> None:
        """Ask the hosts without a part whether they answer now, without a wait."""
        for host in self.connection.hosts:
            if host.number in self.parts:
                continue
            asked_at, question = self._questions.get(host.number, (-math.inf, None))
            now = time.monotonic()
            if question is None and now > asked_at + DOWN:
                self._questions[host.number] = now, host.begin("about")
            elif question is not None and ray.wait([question], timeout=0)[0]:
                self._questions[host.number] = now, None
                with contextlib.suppress(*GONE, TimeoutError):
                    self._open_part(host.number, ray.get(question))

    def _open_part(self, number: int, about: About) -> None:
        host, drawer = self.connection.hosts[number], None
        seed = np.random.SeedSequence([self._seed, len(self.known)])
        saved = None if self._saved is None else self._saved[number]
        try:
            if about.node == self.connection.node():
                replay = self.connection.opened(about)
                if saved is None:
                    drawer = Drawer(replay, self._sampler, seed)
                else:
                    drawer = Drawer.restored(replay, *saved)
                for view, layers in self.views.items():
                    drawer.open_view(view, layers)
            else:
                self._open_at(host, about.identity, seed, self.views, saved=saved)
        except (FileNotFoundError, TimeoutError):
            return  # it went away again
        if len(self.known) == MOST_PARTS:
            raise RuntimeError(f"hosts were started again {MOST_PARTS} times; make a new learner")
        before = self.parts.get(number)
        part = Part(len(self.known), self._learner, host, about, drawer)
        self.known.append(part)
        self.parts[number] = part
        if before is not None:
            self._give_up(before)

    def _open_at(
        self,
        host: Host,
        identity: str,
        seed: Seed,
        views: Mapping[str, tuple[Layer, ...]],
        updates: int = 0,
        saved: tuple[str, str] | None = None,
    ) -> None:
        """Open the learner, or more of its views, at an incarnation of a host.

        Raises ``TimeoutError`` if this incarnation gives no answer, or is gone.
        """
        known = self._learner, identity, self._sampler, seed, views, updates, saved
        asked = host.begin("open_learner", *known)
        try:
            self.connection.presence.answer(host, asked, min(self.timeout, OPEN))
        except (GetTimeoutError, *GONE, Unknown) as error:
            raise TimeoutError(f"open_learner: {host} gave no answer") from error

    def try_again(self, part: Part) -> None:
        """Test without a wait whether a silent host answers now, and with which incarnation."""
        if part.drawer is not None:
            return
        if part.question is None:
            if time.monotonic() < part.down_until:
                return
            part.question = part.host.begin("about")
        if not ray.wait([part.question], timeout=0)[0]:
            return
        question, part.question = part.question, None
        part.down_until = time.monotonic() + DOWN
        with contextlib.suppress(*GONE, TimeoutError):
            about: About = ray.get(question)
            if about.identity != part.identity:
                self._open_part(part.host.number, about)
                return
            self._open_at(part.host, part.identity, None, self.views, part.updated)
            part.forget_masses()
            part.down_until, part.told = 0.0, 1.0
            part.send_again(self.largest)

    def _watch(self, part: Part) -> None:
        """Ask a host of this node now and then, without a wait, whether it has other memory now.

        Its memory lasts as long as this process reads it, so no draw would notice.
        """
        if part.question is None:
            now = time.monotonic()
            if now > part.asked_at + WATCH:
                part.asked_at, part.question = now, part.host.begin("about")
        elif ray.wait([part.question], timeout=0)[0]:
            question, part.question = part.question, None
            with contextlib.suppress(*GONE, TimeoutError):
                about: About = ray.get(question)
                if about.identity != part.identity:
                    self._open_part(part.host.number, about)

    def only_part(self) -> Part | None:
        """The part with all rows, if the only host is on this node; else None."""
        if len(self.connection.hosts) > 1 or not self.parts:
            return None
        (part,) = self.parts.values()
        if part.drawer is not None:
            self._watch(part)
            (part,) = self.parts.values()
        return None if part.drawer is None else part

    def usable(self, view: str) -> list[Part]:
        """The hosts that answer, each with its mass."""
        if len(self.parts) < len(self.connection.hosts):
            self._look_for_missing()
        for part in list(self.parts.values()):
            if part.down_until:
                self.try_again(part)
            elif part.drawer is not None:
                self._watch(part)
        self._renew(view)
        found = []
        for part in self.parts.values():
            mass = part.masses.get(view)
            if part.drawer is not None or mass is None or mass.total == 0.0:
                with contextlib.suppress(PartDownError):
                    self.note(part, view, *self._mass(part, view))
            if not part.down_until:
                found.append(part)
        return found

    def _renew(self, view: str) -> None:
        """Ask again for old masses of other nodes, and note the answers that came."""
        now = time.monotonic()
        parts = [
            part
            for part in self.parts.values()
            if part.drawer is None and not part.down_until and view in part.masses
        ]
        missing = []
        for part in parts:
            age = now - part.masses[view].moment
            if age > RENEW and view not in part.renewals:
                question = self._ask_mass(part, view)
                part.renewals[view] = question, now
                missing += [question] if age > OLD else []
        if missing:
            ray.wait(missing, num_returns=len(missing), timeout=RENEWAL)
        for part in parts:
            if view in part.renewals and ray.wait([part.renewals[view][0]], timeout=0)[0]:
                question, asked = part.renewals.pop(view)
                with contextlib.suppress(PartDownError):
                    self.note(part, view, self._mass_of(part, question), asked)

    def ask_again(self, view: str) -> None:
        """Ask all hosts of other nodes for their present masses, at the same time."""
        asked = time.monotonic()
        questions = [
            (part, self._ask_mass(part, view))
            for part in self.parts.values()
            if part.drawer is None and not part.down_until
        ]
        for part, question in questions:
            with contextlib.suppress(PartDownError):
                self.note(part, view, self._mass_of(part, question), asked)

    def _mass(self, part: Part, view: str) -> tuple[Mass, float]:
        """The present mass of a host, and the time of the question."""
        if part.down_until:
            raise PartDownError(str(part.host))
        asked = time.monotonic()
        if part.drawer is not None:
            return part.drawer.mass(view, self.largest, self.said_of(view)), asked
        return self._mass_of(part, self._ask_mass(part, view)), asked

    def said_of(self, view: str) -> tuple[Any, ...]:
        """The values that ``say`` was called with last."""
        return self.said.get(view, ())

    def say(self, view: str, values: tuple[Any, ...]) -> None:
        """Draw a view by these values of ``Rules.ask``; masses by others are forgotten."""
        if values != self.said_of(view):
            self.said[view] = values
            for part in self.parts.values():
                part.masses.pop(view, None)
                part.renewals.pop(view, None)
            self.ask_again(view)

    def _ask_mass(self, part: Part, view: str) -> Any:
        """Ask a host of another node for its mass."""
        return part.host.begin("mass", self._learner, view, self.largest, self.said_of(view))

    def _mass_of(self, part: Part, question: Any) -> Mass:
        """The mass of a host by its answer."""
        identity, mass = self.answer(part, question)
        if identity != part.identity:
            raise self.is_down(part)
        found: Mass = mass
        return found

    def note(self, part: Part, view: str, mass: Mass, asked: float) -> None:
        """Record a mass of a host that was asked for at this time."""
        part.note(view, mass, asked)
        self.largest = max(self.largest, mass.largest)

    def answer(self, part: Part, reference: Any, until: float | None = None) -> Any:
        """The answer to a call; ``PartDownError`` if the host gives none.

        A host has half of the time-out, so that the others can replace its rows in the rest.
        """
        began = time.monotonic()
        left = self.timeout if until is None else max(0.0, until - began)
        try:
            return self.connection.presence.answer(
                part.host, reference, min(left, self.timeout / 2)
            )
        except (GetTimeoutError, *GONE, Unknown) as error:
            raise self.is_down(part) from error
        finally:
            part.waited += time.monotonic() - began

    def is_down(self, part: Part) -> PartDownError:
        """Note that a host does not answer; returns the error that says so."""
        part.down_until = time.monotonic()
        part.forget_masses()
        return PartDownError(str(part.host))

    def parts_with_mass(
        self,
        view: str,
        until: float,
        distinct: int = 0,
        shares_of: Callable[[set[Any]], object] | None = None,
    ) -> list[Part]:
        """The hosts that have rows to draw.

        Raises ``NotEnoughDataError`` if there is none, or if a view that counts draws has fewer
        than ``distinct`` items, or groups, left, or if ``shares_of`` gives the values of all rows
        no shares.
        """
        usable: list[Part] = []

        def look() -> list[Part]:
            usable[:] = self.usable(view)
            found = [part for part in usable if part.masses[view].total > 0.0]
            masses = [part.masses[view] for part in found]
            is_enough = bool(found) and sum(mass.left for mass in masses) >= distinct
            if is_enough and (shares_of is None or shares_of(values_of(masses))):
                return found
            if len(usable) == len(self.connection.hosts):
                raise self._no_rows(view, usable, distinct)
            return []

        return wait_until(
            look,
            until - time.monotonic(),
            lambda: self._no_rows(view, usable, distinct),
            sleep=self._wait_for_hosts,
        )

    def _no_rows(self, view: str, usable: list[Part], distinct: int) -> NotEnoughDataError:
        """The error of a draw from hosts with too few rows, of which some do not answer."""
        self.connection.check_open()
        hosts = {host.number for host in self.connection.hosts}
        down = sorted(hosts - {part.host.number for part in usable})
        waits = f"; hosts {down} do not answer" if down else ""
        wanted = f" {distinct} distinct items" if distinct else ""
        left = sum(part.masses[view].left for part in usable)
        found = f"the hosts have {left} to draw" if left else "no host has a row to draw"
        layers = self.views.get(view, ())
        rules = [type(layer).__name__ for layer in layers if isinstance(layer, Rule)]
        by = f" by {', '.join(rules)}" if rules else ""
        return NotEnoughDataError(f"cannot sample{wanted}: {found}{by}{waits}")

    def _wait_for_hosts(self, _: float) -> None:
        """Sleep, for the hosts that do not answer, and look for hosts again."""
        self.connection.check_open()
        for part in self.parts.values():
            part.waited += PAUSE if part.down_until else 0.0
        time.sleep(PAUSE)
        self.look_for_hosts()

    def _give_up(self, part: Part) -> None:
        """Count updates of a host that did not take effect as late, as their rows are gone."""
        self.late_of_gone += sum(len(update.rows) for update in part.waiting) + len(part.unsent)
        part.waiting.clear()
        part.unsent = {}

    def open_view(self, view: str, layers: tuple[Layer, ...]) -> None:
        """Open a view of the learner at all hosts."""
        self.views[view] = layers
        try:
            for part in list(self.parts.values()):
                self._open_view_at(part, view, layers)
        except BaseException:  # a host refused it: no host that comes later is asked for it
            del self.views[view]
            raise

    def _open_view_at(self, part: Part, view: str, layers: tuple[Layer, ...]) -> None:
        if part.drawer is not None:
            part.drawer.open_view(view, layers)
            return
        try:
            self._open_at(part.host, part.identity, None, {view: layers})
        except TimeoutError:
            self.is_down(part)

    def forget_masses(self) -> None:
        """Forget the masses of all hosts, so that the next draw asks for them."""
        for part in self.parts.values():
            part.forget_masses()
