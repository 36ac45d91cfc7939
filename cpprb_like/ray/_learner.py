"""``ClusterLearner``: batches from the hosts of a cluster, as from one buffer; and its views.

The learner draws the host of each item by the host's mass. The host draws the item. Not here: draws
at a host (``_drawing``), and hosts (``_hosts``).
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
import uuid
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import ray
from numpy.typing import ArrayLike, NDArray
from ray._private.state import available_resources_per_node
from ray.exceptions import GetTimeoutError, RayTaskError

from cpprb_like._arguments.checks import as_int
from cpprb_like._fields.schema import ColumnSpec, check_out
from cpprb_like._machine.aligned import empty
from cpprb_like._machine.generators import Seed, generator
from cpprb_like._machine.waiting import PAUSE
from cpprb_like._rows.rings import Parts
from cpprb_like.buffers._entry import SampleOptions
from cpprb_like.buffers._replay import ReplayBuffer
from cpprb_like.buffers._source import Batch, ModelledSource, Source, if_prioritized
from cpprb_like.errors import NotEnoughDataError
from cpprb_like.processes._draws import check_sampler
from cpprb_like.processes._folder import Closing
from cpprb_like.ray._blocks import Pair, join
from cpprb_like.ray._calls import GONE, Host, Unknown
from cpprb_like.ray._drawing import Drawer, Mass, Reply, stacked_pairs
from cpprb_like.ray._hosts import About
from cpprb_like.ray._saving import SavedLearner, state_of
from cpprb_like.samplers._base import Sampler
from cpprb_like.samplers._prioritized import ByPriority, read_indexes, read_priorities
from cpprb_like.samplers._priority_powers import importance
from cpprb_like.samplers._uniform import Uniform
from cpprb_like.schedules import value_at
from cpprb_like.views._layer import Layer

if TYPE_CHECKING:
    from cpprb_like.ray._cluster import ClusterReplay

__all__ = ["ClusterLearner"]

MOST_PARTS = 1024  # incarnations of hosts that a learner can tell apart
UPDATES_AHEAD = 8  # calls of ``update`` without an answer, of each host
MODEL_ROWS = 2**16  # of the buffer without rows that knows the columns of batches
DOWN = 0.2  # seconds before a host that did not answer is asked again
TELL = 0.5  # seconds between two messages of how much was drawn
STORE = 0.5  # seconds between two looks at what the object stores have left
INLINE = 100e3  # bytes of an answer that Ray carries without its object store
RENEW = 0.2  # age in seconds from which a mass of another node is asked for again
OLD = 0.5  # age in seconds from which a draw waits for the new mass
RENEWAL = 0.1  # seconds of this wait, once for each question
OPEN = 10.0  # seconds in which a host opens a learner: it follows a million rows in 50 ms


class PartDownError(Exception):
    """A host does not answer: its rows cannot be drawn now."""


@dataclass(eq=False)
class Update:
    """An update of priorities at a host.

    Attributes
    ----------
    number : int
        Number of the update, from 1 on. The host makes the updates of a learner in this order.
    rows, priorities : ndarray
        The rows by their handles at the host, and their priorities.
    largest : float
        The greatest priority that the learner knows.
    answer : ObjectRef or None
        Reference of the last call; None before the first call.
    """

    number: int
    rows: NDArray[np.int64]
    priorities: NDArray[np.float64]
    largest: float
    answer: Any = None


@dataclass(eq=False)
class Part:
    """The rows of one incarnation of a host, for one learner.

    Attributes
    ----------
    number : int
        Number of the part in handles.
    host : Host
        The host that has the rows.
    about : About
        The location of the host.
    drawer : Drawer or None
        The drawer of this process, if it is on the node of the host; None elsewhere.
    masses : dict of Mass
        The mass of the host for each view, by its last answer.
    renewals : dict of (ObjectRef, float)
        The question for a new mass of each view, and the time at which it was asked.
    told : float
        The greatest priority that was sent to the host.
    waiting : deque of Update
        Updates without an answer, oldest first.
    unsent : dict of float
        Priorities that were given while the host was down, by row. They are sent in one update when
        the host answers again.
    """

    number: int
    host: Host
    about: About
    drawer: Drawer | None
    masses: dict[str, Mass] = field(default_factory=dict)
    renewals: dict[str, tuple[Any, float]] = field(default_factory=dict)
    told: float = 1.0
    down_until: float = 0.0
    question: Any = None  # a call that asks a host that is down where it is
    updated: int = 0  # the number of the last update that took effect
    waiting: deque[Update] = field(default_factory=deque)
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


@dataclass(eq=False)
class Group:
    """Batches that were requested together.

    Attributes
    ----------
    owners : ndarray of intp, shape (batches, n)
        The place in ``parts`` of the host of each item.
    chances : dict of float
        The probability with which each part was drawn, by its number.
    parts : list of Part
        The hosts.
    masses : list of Mass
        The mass of each host by which its number of items was drawn.
    answers : list
        The ``Reply`` of each part, or the reference of the call; None without a request.
    """

    asked: float  # by ``time.monotonic``
    pairs: list[Pair]
    owners: NDArray[np.intp] = field(init=False)
    chances: NDArray[np.float64] = field(init=False)
    parts: list[Part] = field(init=False)
    masses: list[Mass] = field(init=False)
    answers: list[Any] = field(init=False)
    taken: NDArray[np.intp] = field(init=False)  # items of each part that were given so far
    next: int = 0  # the batch that is given next


class ClusterLearner(Closing, ModelledSource):
    """The end of a cluster that draws: ``ClusterReplay.learner``.

    One buffer with the rows of all hosts gives batches with the same distribution, columns and
    importance-sampling weights.

    Attributes
    ----------
    sampler : Sampler
        The sampler, which chooses the rows.
    rng : numpy.random.Generator
        The generator that draws the host of each item.
    draws : int
        Number of batches drawn so far.

    Notes
    -----
    The learner reads a host on its own node through shared memory. It asks other hosts for several
    batches in one call, ``ahead`` calls before the batches are needed. Batches on their way take at
    most ``nbytes`` bytes, and half of what the fullest object store has left. While the learner
    returns the batches of one call, Ray brings the next batches to this node.

    A batch requested ahead lacks rows and priorities that came after the request. The draw uses the
    masses of the hosts' previous answers. If the mass of a host is older than 0.2 seconds, the
    learner asks for it again, and a draw waits for a mass that is older than 0.5 seconds, at most
    0.1 seconds. ``stats()["age_of_batch"]`` is the time since the request in seconds, and
    ``["age_of_masses"]`` the age of the masses. With ``ahead=0`` each batch is requested when it is
    needed.

    Prioritized draws are independent, not stratified. New rows get the greatest priority that the
    learner knows of any host. The learner sends a greater priority to all hosts. Draws are with
    replacement.

    A host that does not answer is left out until it answers again. Batches then have rows of the
    other hosts. A host counts as silent two seconds after its last report, so one call of
    ``sample`` waits that long. Priorities of its rows are sent when it answers again.
    ``TimeoutError`` names the hosts for which the call waited.

    Cost of a batch: one copy of its rows from the answers to new, aligned arrays.

    Examples: see ``ClusterReplay``.
    """

    _model: ReplayBuffer

    def __init__(
        self,
        cluster: ClusterReplay,
        sampler: Sampler | None,
        seed: Seed,
        saved: SavedLearner | None = None,
        *,
        ahead: int = 2,
        batches: int = 16,
        nbytes: float = 64e6,
        timeout: float = 60.0,
    ) -> None:
        self.sampler = Uniform() if sampler is None else sampler
        check_sampler(self.sampler)
        self._cluster = cluster
        self._ahead, self._batches = as_int("ahead", ahead, 0), as_int("batches", batches, 1)
        self._nbytes, self._timeout = float(nbytes), float(timeout)
        self.rng = generator(seed) if saved is None else saved.rng()
        self._seed = int(self.rng.integers(2**63)) if saved is None else saved.seed
        self.name = uuid.uuid4().hex
        self.draws = 0 if saved is None else saved.draws
        self._saved = saved  # until all hosts are known
        few = cluster._options.resized(min(cluster._options.size, MODEL_ROWS))
        self._model = model = ReplayBuffer._of(few, Uniform(), np.random.default_rng(0))
        self.schema = model.schema
        self._names = Parts(MOST_PARTS)
        self._lock = threading.RLock()
        self._views: dict[str, tuple[Layer, ...]] = {}
        self._pairs = {"": stacked_pairs(self._model, ())}
        self._parts: dict[int, Part] = {}  # the newest of each host
        self._questions: dict[int, tuple[float, Any]] = {}  # to hosts without a part, and when
        self._known: list[Part] = []
        self._late_of_gone = 0
        self._largest = 1.0  # the greatest priority of a row of any host
        self._waited_for_inserts = 0.0
        self._drawn, self._told_at = 0, 0.0  # items that the ledger does not know yet
        self._age_of_masses = self._age_of_batch = math.nan
        self._groups: dict[tuple[Any, ...], deque[Group]] = {}
        self._ahead_now = self._ahead  # as far as the object stores have room
        self._store_at, self._store_left = -math.inf, math.inf
        self._look_for_hosts()
        until = time.monotonic() + self._timeout
        while saved is not None and len(self._parts) < len(cluster.hosts):
            if time.monotonic() < until:
                time.sleep(PAUSE)
                self._look_for_missing()
                continue
            found = sorted(self._parts)
            raise TimeoutError(f"restore_learner: of {len(cluster.hosts)} hosts {found} answered")
        self._saved = None

    # ------------------------------------------------------------------ hosts

    def _look_for_hosts(self) -> None:
        """Find the present hosts, and their new incarnations; silent hosts are left out."""
        for number, about in self._cluster._abouts(self._timeout).items():
            known = self._parts.get(number)
            if known is None or known.identity != about.identity:
                self._open_part(number, about)

    def _look_for_missing(self) -> None:
        """Ask the hosts without a part whether they answer now, without a wait."""
        for host in self._cluster.hosts:
            if host.number in self._parts:
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
        host, drawer = self._cluster.hosts[number], None
        seed = np.random.SeedSequence([self._seed, len(self._known)])
        saved = None
        if self._saved is not None:
            saved = self._saved.folders[number], self._saved.name
        try:
            if about.node == self._cluster._node():
                replay = self._cluster._opened(about)
                if saved is None:
                    drawer = Drawer(replay, self.sampler, seed)
                else:
                    drawer = Drawer.restored(replay, *saved)
                for view, layers in self._views.items():
                    drawer.open_view(view, layers)
            else:
                self._open_at(host, about.identity, seed, self._views, saved=saved)
        except (FileNotFoundError, TimeoutError):
            return  # it went away again
        if len(self._known) == MOST_PARTS:
            raise RuntimeError(f"hosts were started again {MOST_PARTS} times; make a new learner")
        before = self._parts.get(number)
        part = Part(len(self._known), host, about, drawer)
        self._known.append(part)
        self._parts[number] = part
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
        known = self.name, identity, self.sampler, seed, views, updates, saved
        asked = host.begin("open_learner", *known)
        try:
            self._cluster._presence.answer(host, asked, min(self._timeout, OPEN))
        except (GetTimeoutError, *GONE, Unknown) as error:
            raise TimeoutError(f"open_learner: {host} gave no answer") from error

    def _try_again(self, part: Part) -> None:
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
            self._open_at(part.host, part.identity, None, self._views, part.updated)
            part.forget_masses()
            part.down_until, part.told = 0.0, 1.0
            # Before any other update, as the host takes them in their order.
            for update in part.waiting:
                self._send(part, update)
            if part.unsent:
                rows = np.fromiter(part.unsent.keys(), np.int64)
                self._add_update(part, rows, np.fromiter(part.unsent.values(), np.float64))
                part.unsent = {}

    def _usable(self, view: str) -> list[Part]:
        """The hosts that answer, each with its mass."""
        if len(self._parts) < len(self._cluster.hosts):
            self._look_for_missing()
        for part in list(self._parts.values()):
            if part.down_until:
                self._try_again(part)
        self._renew(view)
        found = []
        for part in self._parts.values():
            mass = part.masses.get(view)
            if part.drawer is not None or mass is None or mass.total == 0.0:
                with contextlib.suppress(PartDownError):
                    self._note(part, view, *self._mass(part, view))
            if not part.down_until:
                found.append(part)
        return found

    def _renew(self, view: str) -> None:
        """Ask again for old masses of other nodes, and note the answers that came."""
        now = time.monotonic()
        parts = [
            part
            for part in self._parts.values()
            if part.drawer is None and not part.down_until and view in part.masses
        ]
        missing = []
        for part in parts:
            age = now - part.masses[view].moment
            if age > RENEW and view not in part.renewals:
                question = part.host.begin("mass", self.name, view, self._largest)
                part.renewals[view] = question, now
                missing += [question] if age > OLD else []
        if missing:
            ray.wait(missing, num_returns=len(missing), timeout=RENEWAL)
        for part in parts:
            if view in part.renewals and ray.wait([part.renewals[view][0]], timeout=0)[0]:
                question, asked = part.renewals.pop(view)
                with contextlib.suppress(PartDownError):
                    self._note(part, view, self._mass_of(part, question), asked)

    def _mass(self, part: Part, view: str) -> tuple[Mass, float]:
        """The present mass of a host, and the time of the question."""
        if part.down_until:
            raise PartDownError(str(part.host))
        asked = time.monotonic()
        if part.drawer is not None:
            return part.drawer.mass(view, self._largest), asked
        question = part.host.begin("mass", self.name, view, self._largest)
        return self._mass_of(part, question), asked

    def _mass_of(self, part: Part, question: Any) -> Mass:
        """The mass of a host by its answer."""
        identity, mass = self._answer(part, question)
        if identity != part.identity:
            raise self._is_down(part)
        found: Mass = mass
        return found

    def _note(self, part: Part, view: str, mass: Mass, asked: float) -> None:
        part.note(view, mass, asked)
        self._largest = max(self._largest, mass.largest)

    def _answer(self, part: Part, reference: Any, until: float | None = None) -> Any:
        """The answer to a call; ``PartDownError`` if the host gives none.

        A host has half of the time-out, so that the others can replace its rows in the rest.
        """
        began = time.monotonic()
        left = self._timeout if until is None else max(0.0, until - began)
        try:
            return self._cluster._presence.answer(
                part.host, reference, min(left, self._timeout / 2)
            )
        except (GetTimeoutError, *GONE, Unknown) as error:
            raise self._is_down(part) from error
        finally:
            part.waited += time.monotonic() - began

    def _is_down(self, part: Part) -> PartDownError:
        part.down_until = time.monotonic()
        part.forget_masses()
        return PartDownError(str(part.host))

    # ------------------------------------------------------------------ sampling

    def _sample(self, batch_size: int, options: SampleOptions) -> Batch:
        return self._draw("", self._model, batch_size, options)

    def _draw(self, view: str, model: Source, batch_size: int, options: SampleOptions) -> Batch:
        """A batch of a view; ``model`` has its columns, and no rows."""
        n, names = model._read_batch_size(batch_size, options.fields)
        if not options.replace:
            raise TypeError("replace: a cluster draws with replacement")
        specs = model._field_specs(names)
        arrays = None
        if options.out is not None:
            arrays = dict(zip(specs, check_out(options.out, n, specs), strict=True))
        with self._lock:
            beta = self._beta(options)
            batch = self._next(view, n, names, options, arrays, specs)
            self._weigh(view, batch, beta)
            self.draws += 1
            self._drawn += n
            if time.monotonic() > self._told_at + TELL:
                self._tell_drawn()
        if options.out is None:
            return batch
        options.out.update(batch)
        return options.out

    def _tell_drawn(self) -> None:
        """Report drawn items to the ledger, unless the limiter counts them."""
        if self._cluster._limiter is None and self._drawn:
            self._cluster._ledger.drew.remote(self._drawn)
        self._drawn, self._told_at = 0, time.monotonic()

    def _beta(self, options: SampleOptions) -> float:
        if not isinstance(self.sampler, ByPriority):
            return 0.0
        beta = self.sampler.beta if options.beta is None else options.beta
        return float(value_at(beta, self.draws, "beta", 0))

    def _next(
        self,
        view: str,
        n: int,
        names: tuple[str, ...] | None,
        options: SampleOptions,
        arrays: Batch | None,
        specs: Mapping[str, ColumnSpec],
    ) -> Batch:
        """The next batch, from earlier requests or from new ones."""
        key = view, n, names, options.indexes
        until = time.monotonic() + self._timeout
        asked = {"indexes": options.indexes} | ({} if names is None else {"fields": names})
        groups = self._groups.setdefault(key, deque())
        for other in [other for other in self._groups if other != key]:
            self._forget(other)  # the program went on to another kind of batch
        while True:
            if not groups:
                groups.append(self._ask(view, n, asked, specs, until))
            group = groups[0]
            self._collect(group, view, asked, until)
            while len(groups) <= self._ahead_now and self._is_far(group):
                groups.append(self._ask(view, n, asked, specs, until))
            if group.next == 0 and len(groups) > 1:
                self._pull(groups[1])
            batch = self._batch(group, specs, arrays)
            if group.next == len(group.owners):
                groups.popleft()
            return batch

    def _is_far(self, group: Group) -> bool:
        return self._ahead > 0 and any(part.drawer is None for part in group.parts)

    def _pull(self, group: Group) -> None:
        """Make Ray bring ready answers to this node now, and not when they are read."""
        asked = [answer for answer in group.answers if isinstance(answer, ray.ObjectRef)]
        if asked:
            ray.wait(asked, num_returns=len(asked), timeout=0)

    def _forget(self, key: tuple[Any, ...]) -> None:
        """Drop batches that were requested from hosts and will not be returned."""
        for group in self._groups.pop(key):
            left = group.owners[group.next :].size
            if left:
                self._cluster._give_back(left)

    def _ask(
        self,
        view: str,
        n: int,
        asked: Mapping[str, Any],
        specs: Mapping[str, ColumnSpec],
        until: float,
    ) -> Group:
        """Ask the hosts for the next batches."""
        most, self._ahead_now = 1, self._ahead
        if self._ahead and any(part.drawer is None for part in self._parts.values()):
            row = sum(spec.dtype.itemsize * math.prod(spec.shape) for spec in specs.values())
            room = self._room() / max(n * row, 1)  # batches on their way
            most = max(1, min(self._batches, int(room / (self._ahead + 1))))
            self._ahead_now = max(0, min(self._ahead, int(room / most) - 1))
        began = time.monotonic()
        count = self._cluster._take(n, most, until, self._timeout)
        self._waited_for_inserts += time.monotonic() - began
        group = Group(time.monotonic(), self._pairs[view])
        try:
            self._request(group, view, (count, n), asked, until)
        except BaseException:
            self._cluster._give_back(count * n)
            raise
        self._age_of_masses = time.monotonic() - min(mass.moment for mass in group.masses)
        return group

    def _room(self) -> float:
        """Bytes of batches that may be on their way: see ``nbytes``, and the object stores.

        Answers that are not read yet stay in the stores of both nodes. A store that is full writes
        to the disk, so they take half of what the fullest store has left. Ray carries small answers
        without the store.
        """
        now = time.monotonic()
        if now > self._store_at + STORE:
            self._store_at = now
            left = [
                one.get("object_store_memory") for one in available_resources_per_node().values()
            ]
            self._store_left = min((one for one in left if one is not None), default=0.0)
        return min(self._nbytes, max(self._store_left / 2, INLINE))

    def _request(
        self,
        group: Group,
        view: str,
        shape: tuple[int, ...],
        asked: Mapping[str, Any],
        until: float,
    ) -> None:
        """Draw the host of each item by its mass, and request the items of each host."""
        group.parts = self._parts_with_mass(view, until)
        group.masses = masses = [part.masses[view] for part in group.parts]
        totals = np.array([mass.total for mass in masses])
        group.chances = totals / totals.sum()
        group.owners = np.zeros(shape, np.intp)
        if len(masses) > 1:
            bounds = totals.cumsum()
            targets = self.rng.random(shape) * bounds[-1]
            group.owners = bounds[:-1].searchsorted(targets, side="right")
        counts = np.bincount(group.owners.ravel(), minlength=len(masses)).tolist()
        group.next, group.taken = 0, np.zeros(len(masses), np.intp)
        group.answers = [None] * len(masses)
        for place, (part, items) in enumerate(zip(group.parts, counts, strict=True)):
            if items and part.drawer is not None:
                drawn = part.drawer.draw(view, items, asked, self._largest, masses[place])
                group.answers[place] = drawn
            elif items:
                draw = self.name, view, items, asked, self._largest
                group.answers[place] = part.host.begin("draw", *draw)
            if items:
                part.told = self._largest
        self._tell_largest()

    def _parts_with_mass(self, view: str, until: float) -> list[Part]:
        """The hosts that have rows to draw; ``NotEnoughDataError`` if none has."""
        while True:
            usable = self._usable(view)
            parts = [part for part in usable if part.masses[view].total > 0.0]
            if parts:
                return parts
            if len(usable) == len(self._cluster.hosts) or time.monotonic() > until:
                down = sorted({*range(len(self._cluster.hosts))} - {p.host.number for p in usable})
                waits = f"; hosts {down} do not answer" if down else ""
                self._cluster._check_open()
                raise NotEnoughDataError(f"cannot sample: no host has a row to draw{waits}")
            self._cluster._check_open()
            for part in self._parts.values():
                part.waited += PAUSE if part.down_until else 0.0
            time.sleep(PAUSE)
            self._look_for_hosts()

    def _collect(self, group: Group, view: str, asked: Mapping[str, Any], until: float) -> None:
        """Wait for the answers, and replace the items of lost hosts by items of the others."""
        for place, part in enumerate(group.parts):
            answer = group.answers[place]
            if answer is None or isinstance(answer, Reply):
                continue
            try:
                reply: Reply = self._answer(part, answer, until)
                if reply.identity != part.identity:
                    raise self._is_down(part)
                group.answers[place] = reply
                self._note(part, view, reply.mass, group.asked)
            except PartDownError:
                group.answers[place] = None
        missing = [
            place
            for place, answer in enumerate(group.answers)
            if (answer is None or not answer.columns) and (group.owners == place).any()
        ]
        if missing:
            self._replace(group, view, asked, missing, until)

    def _replace(
        self,
        group: Group,
        view: str,
        asked: Mapping[str, Any],
        missing: list[int],
        until: float,
    ) -> None:
        """Draw all batches that were not returned yet again, from the hosts that answer."""
        if time.monotonic() > until:
            names = ", ".join(str(group.parts[place].host) for place in missing)
            raise TimeoutError(f"sample: {names} did not answer in {self._timeout:g} s")
        self._request(group, view, group.owners[group.next :].shape, asked, until)
        self._collect(group, view, asked, until)

    def _batch(self, group: Group, specs: Mapping[str, ColumnSpec], arrays: Batch | None) -> Batch:
        """One batch of a group: each row of the answers at the place of its item."""
        owners = group.owners[group.next]
        n = len(owners)
        # Of each part: its answer, the places of its items, which items, and how many.
        taken: list[tuple[int, Reply, slice | NDArray[np.intp], slice, int]] = []
        places: slice | NDArray[np.intp]
        for place, answer in enumerate(group.answers):
            places, count = slice(None), n
            if len(group.parts) > 1:
                places = np.flatnonzero(owners == place)
                count = len(places)
            if count:
                start = int(group.taken[place])
                taken.append((place, answer, places, slice(start, start + count), count))
        batch: Batch = {} if arrays is None else dict(arrays)
        first: Mapping[str, Any] = taken[0][1].columns if taken else {}
        is_own = len(taken) == 1 and group.parts[taken[0][0]].drawer is not None
        if is_own and not batch and len(group.owners) == 1:
            batch, first = dict(first), {}  # fresh arrays already
        for name, values in first.items():
            if name not in batch and name in specs:
                batch[name] = empty((n, *specs[name].shape), specs[name].dtype)
            elif name not in batch:
                batch[name] = empty((n, *values.shape[1:]), values.dtype)
            for _, answer, places, items, _ in taken:
                join(answer.columns, name, items, group.pairs, batch[name], places)
        if "indexes" in batch:
            for place, _, places, _, _ in taken:
                own = np.ascontiguousarray(batch["indexes"][places])
                batch["indexes"][places] = self._names.name(group.parts[place].number, own)
        if isinstance(self.sampler, ByPriority):
            chances = np.empty(n)
            least = math.inf
            for place, answer, places, items, _ in taken:
                assert answer.masses is not None
                scale = group.chances[place] / answer.mass.total
                chances[places] = answer.masses[items] * scale
            for place, answer in enumerate(group.answers):
                one = group.masses[place] if answer is None else answer.mass
                least = min(least, group.chances[place] * one.least / max(one.total, 1e-300))
            batch["probabilities"], batch["least"] = chances, np.array(least)
        for place, _, _, _, count in taken:
            group.taken[place] += count
        group.next += 1
        self._age_of_batch = time.monotonic() - group.asked
        return batch

    def _weigh(self, view: str, batch: Batch, beta: float) -> None:
        """Importance-sampling weights of the probabilities over all hosts."""
        if not isinstance(self.sampler, ByPriority):
            return
        chances, least = batch.pop("probabilities"), float(batch.pop("least"))
        unit = float(chances.min(initial=math.inf)) if view else self.sampler._unit(chances, least)
        single = self.sampler.weights_dtype.itemsize == 4
        batch["weights"] = importance(chances, unit, beta, single)
        if self.sampler.probabilities:
            batch["probabilities"] = chances

    # ------------------------------------------------------------------ views

    def view(self, *layers: Layer) -> ClusterView:
        """A view of the rows of all hosts: see ``ReplayBuffer.view``."""
        return ClusterView(self, layers)

    def _open_view(self, model: Source, layers: tuple[Layer, ...]) -> str:
        view = uuid.uuid4().hex
        with self._lock:
            self._pairs[view] = stacked_pairs(model, layers)
            self._views[view] = layers
            for part in list(self._parts.values()):
                if part.drawer is not None:
                    part.drawer.open_view(view, layers)
                else:
                    try:
                        self._open_at(part.host, part.identity, None, {view: layers})
                    except TimeoutError:
                        self._is_down(part)
        return view

    # ------------------------------------------------------------------ priorities

    @if_prioritized
    def update_priorities(self, indexes: ArrayLike, priorities: ArrayLike) -> None:
        """Set the priorities of drawn rows: see ``Learner.update_priorities``.

        Each update takes effect once, at the host of the row. The call does not wait for the host.
        An update of an overwritten or lost row changes nothing and is counted as late:
        ``stats()["late_updates"]``.
        """
        values = read_priorities(priorities)
        given = read_indexes(indexes, len(values))
        with self._lock:
            parts = self._names.split(given)
            for number, places, _ in parts:
                if number >= len(self._known):
                    raise IndexError(
                        f"indexes[{places[0]}]: expected that of a row of a batch, "
                        f"got {given[places[0]]}"
                    )
            if sum(len(places) for _, places, _ in parts) < len(given):
                raise IndexError("indexes: expected those of rows of a batch, got negative ones")
            self._largest = max(self._largest, float(values.max(initial=0.0)))
            for number, places, own in parts:
                self._update(self._known[number], own, values[places])
            self._tell_largest()

    def _tell_largest(self) -> None:
        """Send the greatest priority to the hosts that do not know it, as an update of no rows.

        A host with many updates on their way gets the priority with a later call.
        """
        for part in self._parts.values():
            has_room = not part.down_until and len(part.waiting) < UPDATES_AHEAD
            if part.told < self._largest and has_room:
                self._update(part, np.empty(0, np.int64), np.empty(0))

    def _update(self, part: Part, own: NDArray[np.int64], values: NDArray[np.float64]) -> None:
        if self._parts.get(part.host.number) is not part:
            self._late_of_gone += len(own)
            return
        if part.drawer is not None:
            part.told = self._largest
            part.updated += 1
            late = part.drawer.update(part.updated, own, values, self._largest)
            self._count(part, len(own), late)
            return
        if part.down_until:
            before = len(part.unsent)
            part.unsent.update(zip(own.tolist(), values.tolist(), strict=True))
            # Of several priorities of a row only the last one is sent; all of them count.
            self._count(part, len(own) - (len(part.unsent) - before), 0)
            self._try_again(part)
            return
        self._add_update(part, own, values)
        while len(part.waiting) > UPDATES_AHEAD and not part.down_until:
            self._confirm(part)

    def _add_update(self, part: Part, own: NDArray[np.int64], values: NDArray[np.float64]) -> None:
        """Send an update after all others."""
        number = (part.waiting[-1].number if part.waiting else part.updated) + 1
        part.waiting.append(Update(number, own, values, self._largest))
        self._send(part, part.waiting[-1])
        part.told = self._largest

    def _send(self, part: Part, update: Update) -> None:
        """Send an update, or send it again."""
        given = update.number, update.rows, update.priorities, update.largest
        update.answer = part.host.begin("update", self.name, part.identity, *given)

    def _count(self, part: Part, given: int, late: int) -> None:
        """Count priorities that have taken effect, or came too late."""
        part.given += given
        part.late += late

    def _confirm(self, part: Part) -> None:
        """Wait until the oldest update has taken effect, or the host is down.

        An error of the update is raised once.
        """
        update = part.waiting[0]
        if update.answer is None:  # the call that began to send it was interrupted
            self._send(part, update)
        late = len(update.rows)  # after an error, which the host raises once
        try:
            late = self._answer(part, update.answer)
        except PartDownError:
            return
        except RayTaskError as error:
            self._complete(part, late)
            raise error.cause from None
        self._complete(part, late)

    def _complete(self, part: Part, late: int) -> None:
        """Count the oldest update, which the host has made."""
        update = part.waiting[0]
        part.updated = update.number
        part.waiting.popleft()
        self._count(part, len(update.rows), late)

    def _settle(self, part: Part, until: float) -> None:
        """Wait until all updates have taken effect, or their rows are gone."""
        while part.waiting or part.unsent:
            if not part.down_until:
                self._confirm(part)
                continue
            self._try_again(part)
            if not part.down_until:
                continue
            if time.monotonic() > until:
                raise TimeoutError(
                    f"flush: {part.host} did not answer in {self._timeout:g} s; its updates wait"
                )
            part.waited += PAUSE
            time.sleep(PAUSE)

    def _give_up(self, part: Part) -> None:
        """Count updates of a host that did not take effect as late, as their rows are gone."""
        self._late_of_gone += sum(len(update.rows) for update in part.waiting) + len(part.unsent)
        part.waiting.clear()
        part.unsent = {}

    @if_prioritized
    def get_max_priority(self) -> float:
        """The priority of new rows: the greatest that this learner knows."""
        with self._lock:
            self._usable("")
            return self._largest

    def flush(self) -> None:
        """Wait until all updates have taken effect.

        Raises ``TimeoutError`` if a host does not answer within ``timeout`` seconds. Its updates
        wait until it answers again.
        """
        with self._lock:
            until = time.monotonic() + self._timeout
            for part in list(self._parts.values()):
                self._settle(part, until)

    # ------------------------------------------------------------------ state

    def _described(self) -> dict[str, Any]:
        """The saved state besides the priorities at the hosts: ``SavedLearner``."""
        with self._lock:
            self._look_for_hosts()
            self.flush()
            for key in list(self._groups):
                self._forget(key)
            for part in self._parts.values():
                part.forget_masses()  # this learner asks again, as a restored one does
            flags = ("probabilities", "as_masses", "stratified")
            return {
                "name": self.name,
                "draws": self.draws,
                "seed": self._seed,
                "generator": state_of(self.rng),
                "flags": {k: getattr(self.sampler, k) for k in flags if hasattr(self.sampler, k)},
            }

    def _drawers_here(self) -> dict[int, Drawer]:
        """The draws of this process, by the numbers of hosts."""
        found = {part.host.number: part.drawer for part in self._parts.values()}
        return {number: drawer for number, drawer in found.items() if drawer is not None}

    def _stats(self) -> dict[str, float]:
        """Counts and measures of the learner and of the hosts.

        - ``draws``: batches drawn. ``updates``: priorities that were sent and took effect or came
          too late. ``late_updates``: priorities that came too late.
        - ``age_of_batch``: seconds since the request of the last batch. ``age_of_masses``: age in
          seconds of the masses by which the last batch was drawn.
        - ``hosts``: hosts that answer. ``seconds_waiting_for_hosts``: time spent on waits for
          answers or restarts. ``seconds_waiting_for_host_0`` and so on: the same for each host.
        - ``seconds_waiting_for_inserts``: time spent on waits for the limiter.
        """
        with self._lock:
            waited = dict.fromkeys(sorted(self._parts), 0.0)
            for part in self._known:
                waited[part.host.number] += part.waited
            return {
                "draws": self.draws,
                "updates": sum(part.given for part in self._known) + self._late_of_gone,
                "late_updates": sum(part.late for part in self._known) + self._late_of_gone,
                "age_of_masses": self._age_of_masses,
                "age_of_batch": self._age_of_batch,
                "hosts": sum(not part.down_until for part in self._parts.values()),
                "seconds_waiting_for_inserts": self._waited_for_inserts,
                "seconds_waiting_for_hosts": sum(waited.values()),
                **{f"seconds_waiting_for_host_{k}": one for k, one in waited.items()},
            }

    def _to_report(self) -> NoReturn:
        raise TypeError("a learner of a cluster has drawn rows alone; see ClusterReplay.report")

    def _check_epoch(self) -> None:
        raise TypeError("a learner of a cluster has no epoch, as actors replace its rows")

    def __len__(self) -> int:
        """Number of rows of the hosts that answer, by their present counts."""
        with self._lock:
            self._look_for_hosts()
            for part in self._parts.values():
                part.forget_masses()
            return sum(part.masses[""].rows for part in self._usable(""))

    def close(self) -> None:
        """Leave the cluster, and free the places of this learner at the hosts."""
        with self._lock:
            for key in list(self._groups):
                self._forget(key)
            self._tell_drawn()
            for part in self._parts.values():
                if part.drawer is not None:
                    part.drawer.close()
                else:
                    part.host.begin("close_learner", self.name)

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError("a learner belongs to its process; hand on the ClusterReplay instead")

    def __repr__(self) -> str:
        return f"ClusterLearner(sampler={self.sampler!r}, hosts={len(self._parts)})"


class ClusterView(ModelledSource):
    """A view of the rows of all hosts: ``ClusterLearner.view``."""

    def __init__(self, learner: ClusterLearner, layers: tuple[Layer, ...]) -> None:
        self.buffer, self.layers, self.sampler = learner, layers, learner.sampler
        self._model = learner._model.view(*layers)
        self._view = learner._open_view(self._model, layers)

    def _sample(self, batch_size: int, options: SampleOptions) -> Batch:
        return self.buffer._draw(self._view, self._model, batch_size, options)

    @if_prioritized
    def update_priorities(self, indexes: ArrayLike, priorities: ArrayLike) -> None:
        """Set the priorities of drawn rows: see ``ClusterLearner.update_priorities``."""
        self.buffer.update_priorities(indexes, priorities)

    def _stats(self) -> dict[str, float]:
        return self.buffer.stats()

    def _check_epoch(self) -> None:
        self.buffer._check_epoch()

    def __len__(self) -> int:
        return len(self.buffer)

    def __repr__(self) -> str:
        return f"ClusterView({', '.join(map(repr, [self.buffer, *self.layers]))})"
