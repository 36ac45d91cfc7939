"""``ClusterLearner``: batches from the hosts of a cluster, as from one buffer; and its views.

Not here: which hosts answer (``_directory``), batches that hosts are asked for (``_ahead``), and
updates of priorities on their way (``_updates``).
"""

from __future__ import annotations

import copy
import math
import threading
import time
import uuid
from collections.abc import Mapping
from typing import Any, NoReturn

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cpprb_like._arguments.checks import as_int
from cpprb_like._fields.schema import check_out
from cpprb_like._machine.generators import Seed, generator
from cpprb_like.buffers import ReplayBuffer
from cpprb_like.buffers._entry import SampleOptions
from cpprb_like.buffers._source import Batch, ModelledSource, Source, if_prioritized
from cpprb_like.errors import NotEnoughDataError
from cpprb_like.processes._draws import check_sampler
from cpprb_like.processes._folder import Closing
from cpprb_like.processes._rowless import Rowless
from cpprb_like.ray._ahead import Ahead, BatchKind
from cpprb_like.ray._connection import Connection
from cpprb_like.ray._directory import Directory
from cpprb_like.ray._drawing import stacked_pairs
from cpprb_like.ray._items import ItemsOfAnswers
from cpprb_like.ray._saving import SavedLearner
from cpprb_like.ray._updates import Updates
from cpprb_like.samplers import Sampler, Uniform
from cpprb_like.samplers._prioritized import ByPriority, read_indexes, read_priorities
from cpprb_like.samplers._priority_powers import importance
from cpprb_like.samplers._rules import Rules
from cpprb_like.schedules import value_at
from cpprb_like.views import Layer, Rule

MODEL_ROWS = 2**16  # of the buffer without rows that knows the columns of batches
TELL = 0.5  # seconds between two messages of how much was drawn


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
        connection: Connection,
        sampler: Sampler | None,
        seed: Seed,
        saved: SavedLearner | None = None,
        folders: Mapping[int, str] | None = None,
        *,
        ahead: int = 2,
        batches: int = 16,
        nbytes: float = 64e6,
        timeout: float = 60.0,
    ) -> None:
        self.sampler = Uniform() if sampler is None else sampler
        check_sampler(self.sampler)
        self._connection = connection
        ahead, batches = as_int("ahead", ahead, 0), as_int("batches", batches, 1)
        self.rng = generator(seed) if saved is None else saved.rng
        self._seed = int(self.rng.integers(2**63)) if saved is None else saved.seed
        self.name = uuid.uuid4().hex
        self.draws = 0 if saved is None else saved.draws
        options = connection.options
        few = options.resized(min(options.size, MODEL_ROWS))
        self._model = model = Rowless._of(few, Uniform(), np.random.default_rng(0))
        self.schema = model.schema
        self._lock = threading.RLock()
        self._pairs = {"": stacked_pairs(self._model, self._model.schema, ())}
        self._rules: dict[str, Rules] = {}  # of the views that have some
        self._drawn, self._told_at = 0, 0.0  # items that the ledger does not know yet
        at_hosts = None
        if saved is not None:
            at_hosts = {number: (one, saved.name) for number, one in (folders or {}).items()}
        known = self.name, self.sampler, self._seed, at_hosts, float(timeout)
        self._directory = Directory(connection, *known)
        self._updates = Updates(self._directory)
        self._batches = Ahead(
            self._directory,
            self._updates,
            self.name,
            self.rng,
            is_weighted=isinstance(self.sampler, ByPriority),
            items=ItemsOfAnswers(options) if self.schema.axes else None,
            ahead=ahead,
            batches=batches,
            nbytes=float(nbytes),
        )

    # ------------------------------------------------------------------ sampling

    _asks_ahead = True

    def _sample(self, batch_size: int, options: SampleOptions) -> Batch:
        return self._draw("", self._model, batch_size, options)

    def _draw(self, view: str, model: Source, batch_size: int, options: SampleOptions) -> Batch:
        """A batch of a view; ``model`` has its columns, and no rows."""
        n, names = model._read_batch_size(batch_size, options.fields)
        plan = model._item_plan(names)
        size, counts = model._group_size(), model._counts_draws()
        rules = self._rules.get(view)
        if not options.replace:
            raise TypeError("replace: a cluster draws with replacement")
        if n % size:
            raise ValueError(
                f"batch_size: expected a multiple of {size}, the rows of a group, got {n}"
            )
        if options.out is not None and plan is not None:
            wanted = model._field_specs(names)
            to = plan.laid.check_out(options.out, n, wanted)
            drawn = self._draw(view, model, n, options.but(out=None))
            return plan.laid.put_out(drawn, options.out, to, wanted)
        asked = {"indexes": options.indexes} | ({} if names is None else {"fields": names})
        with self._lock:
            beta = self._beta(options)
            batch = None
            if size == 1 and not counts:  # rules of groups and counts have one state at a host
                batch = self._draw_here(view, n, options.out, asked, beta)
            if batch is None:
                specs, arrays = model._field_specs(names), None
                if options.out is not None:
                    arrays = dict(zip(specs, check_out(options.out, n, specs), strict=True))
                kind = BatchKind(
                    view, n, asked, specs, self._pairs[view], plan, size, counts, rules
                )
                batch = self._batches.next(kind, arrays)
                self._weigh(view, batch, beta)
            self.draws += 1
            if rules is not None:
                rules.draws += 1
            self._drawn += n
            if time.monotonic() > self._told_at + TELL:
                self._tell_drawn()
        if options.out is None or batch is options.out:
            return batch
        options.out.update(batch)
        return options.out

    def _draw_here(
        self, view: str, n: int, out: Batch | None, asked: Mapping[str, Any], beta: float
    ) -> Batch | None:
        """A batch of the only host, if it is on this node and has rows; else None."""
        part = self._directory.only_part()
        if part is None or "probabilities" in self.sampler.columns:
            return None
        how = {**asked, "out": out} | ({"beta": beta} if self.has_priorities else {})
        rules, time_of_shares = self._rules.get(view), 0
        if rules is not None:
            time_of_shares = rules.draws
            self._directory.say(view, rules.ask())
        batch = self._batches.sample_here(part, view, n, how, time_of_shares)
        if batch is not None and "indexes" in batch:
            batch["indexes"] = self._batches.names.name(part.number, batch["indexes"])
        return batch

    def _tell_drawn(self) -> None:
        """Report drawn items to the ledger, unless the limiter counts them."""
        if self._connection.limiter is None and self._drawn:
            self._connection.ledger.drew.remote(self._drawn)
        self._drawn, self._told_at = 0, time.monotonic()

    def _beta(self, options: SampleOptions) -> float:
        if not isinstance(self.sampler, ByPriority):
            return 0.0
        beta = self.sampler.beta if options.beta is None else options.beta
        return float(value_at(beta, self.draws, "beta", 0))

    def _weigh(self, view: str, batch: Batch, beta: float) -> None:
        """Importance-sampling weights of the probabilities over all hosts."""
        if not isinstance(self.sampler, ByPriority):
            return
        found = self._batches.corrected
        unit = float(found.min(initial=math.inf))
        if not view:
            unit = self.sampler._unit(found, self._batches.least)
        single = self.sampler.weights_dtype.itemsize == 4
        batch["weights"] = importance(found, unit, beta, single)
        if self.sampler.probabilities:
            batch["probabilities"] = self._batches.chances

    # ------------------------------------------------------------------ views

    def view(self, *layers: Layer) -> ClusterView:
        """A view of the rows of all hosts: see ``ReplayBuffer.view``."""
        return ClusterView(self, layers)

    def _open_view(self, model: Any, layers: tuple[Layer, ...]) -> str:
        view = uuid.uuid4().hex
        with self._lock:
            pairs = stacked_pairs(model, self._model.schema, layers)
            own = [one.at_hosts() if isinstance(one, Rule) else one for one in layers]
            self._directory.open_view(view, tuple(own))
            self._pairs[view] = pairs
            rules = model._now.rules
            if rules is not None:
                self._rules[view] = rules
        return view

    def _left(self, view: str) -> int:
        """Items that a view that counts draws can draw now, of the hosts that answer."""
        with self._lock:
            self._directory.say(view, self._rules[view].ask())
            self._directory.ask_again(view)
            return sum(part.masses[view].left for part in self._directory.usable(view))

    # ------------------------------------------------------------------ priorities

    @if_prioritized
    def update_priorities(self, indexes: ArrayLike, priorities: ArrayLike) -> None:
        """Set the priorities of drawn rows: see ``Learner.update_priorities``.

        Each update takes effect once, at the host of the row. The call does not wait for the host.
        Beside two calls to a host on their way, further updates wait for the next call of this
        method, the next request of batches, or ``flush``, and travel together.
        An update of an overwritten or lost row changes nothing and is counted as late:
        ``stats()["late_updates"]``.
        """
        values = read_priorities(priorities)
        given = read_indexes(indexes, len(values))
        wrong = self._check_update(given, values)
        if len(wrong):
            raise IndexError(
                f"indexes[{wrong[0]}]: expected that of a row of a batch, got {given[wrong[0]]}"
            )
        with self._lock:
            parts, known = self._batches.names.split(given), self._directory.known
            largest = max(self._directory.largest, float(values.max(initial=0.0)))
            self._directory.largest = largest
            for number, places, own in parts:
                self._updates.update(known[number], own, values[places])
            self._updates.send_ready()
            self._updates.tell_largest()

    def _check_update(
        self,
        indexes: NDArray[np.int64],
        priorities: NDArray[np.float64],  # noqa: ARG002 (checked by the caller)
    ) -> NDArray[np.intp]:
        is_wrong = np.full(len(indexes), True)
        with self._lock:
            for number, places, _ in self._batches.names.split(indexes):
                is_wrong[places] = number >= len(self._directory.known)
        return np.flatnonzero(is_wrong)

    def _check_draw(self, n: int, options: SampleOptions) -> None:
        self._check_left(n, len(self), options)

    @staticmethod
    def _check_left(n: int, left: int, options: SampleOptions) -> None:
        """Raise ``NotEnoughDataError`` unless n rows can be drawn of so many."""
        if not left or (n > left and not options.replace):
            wanted = "" if options.replace else f" {n} distinct rows"
            raise NotEnoughDataError(f"cannot sample{wanted}: the hosts that answer hold {left}")

    @if_prioritized
    def get_max_priority(self) -> float:
        """The priority of new rows: the greatest that this learner knows."""
        with self._lock:
            self._directory.usable("")
            return self._directory.largest

    def flush(self) -> None:
        """Wait until all updates have taken effect.

        Raises ``TimeoutError`` if a host does not answer within ``timeout`` seconds. Its updates
        wait until it answers again.
        """
        with self._lock:
            self._updates.flush()

    # ------------------------------------------------------------------ state

    def _to_save(self) -> SavedLearner:
        """The state of the learner, besides the priorities at the hosts."""
        with self._lock:
            self._directory.look_for_hosts()
            self._updates.flush()
            self._batches.forget_all()
            self._directory.forget_masses()  # this learner asks again, as a restored one does
            rng, sampler = copy.deepcopy((self.rng, self.sampler))
            return SavedLearner(self.name, self.draws, self._seed, rng, sampler)

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
            parts, known = self._directory.parts, self._directory.known
            waited, late_of_gone = dict.fromkeys(sorted(parts), 0.0), self._directory.late_of_gone
            for part in known:
                waited[part.host.number] += part.waited
            return {
                "draws": self.draws,
                "updates": sum(part.given for part in known) + late_of_gone,
                "late_updates": sum(part.late for part in known) + late_of_gone,
                "age_of_masses": self._batches.age_of_masses,
                "age_of_batch": self._batches.age_of_batch,
                "hosts": sum(not part.down_until for part in parts.values()),
                "seconds_waiting_for_inserts": self._batches.waited_for_inserts,
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
            self._directory.look_for_hosts()
            self._directory.forget_masses()
            return sum(part.masses[""].rows for part in self._directory.usable(""))

    def close(self) -> None:
        """Leave the cluster, and free the places of this learner at the hosts."""
        with self._lock:
            self._batches.forget_all()
            self._updates.send()
            self._tell_drawn()
            for part in self._directory.parts.values():
                if part.drawer is not None:
                    part.drawer.close()
                else:
                    part.host.begin("close_learner", self.name)

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError("a learner belongs to its process; hand on the ClusterReplay instead")

    def __repr__(self) -> str:
        return f"ClusterLearner(sampler={self.sampler!r}, hosts={len(self._directory.parts)})"


class ClusterView(ModelledSource):
    """A view of the rows of all hosts: ``ClusterLearner.view``.

    Each host follows the rules of the view for its own rows; shares of ``Share`` are those of the
    rows of all hosts, and so are half-lives of ``Newest``. A function of ``Newest`` is called by
    the process of the learner, when hosts are asked for rows. With ``AtMost``, ``stats`` has
    ``rows_left``.
    """

    def __init__(self, learner: ClusterLearner, layers: tuple[Layer, ...]) -> None:
        self.buffer, self.layers, self.sampler = learner, layers, learner.sampler
        self._model = learner._model.view(*layers)
        rules = self._model._now.rules
        for name, _, rule in () if rules is None else rules.parts:
            if not rule.by_host:
                refused = next(layer for layer in layers if type(layer).__name__ == name)
                raise TypeError(
                    f"view: {refused!r} is not for a cluster, whose hosts draw apart by their own "
                    "rows"
                )
        self._view = learner._open_view(self._model, layers)

    _asks_ahead = True

    def _weighs_by_batch(self) -> bool:
        return self.has_priorities

    def _sample(self, batch_size: int, options: SampleOptions) -> Batch:
        return self.buffer._draw(self._view, self._model, batch_size, options)

    @if_prioritized
    def update_priorities(self, indexes: ArrayLike, priorities: ArrayLike) -> None:
        """Set the priorities of drawn rows: see ``ClusterLearner.update_priorities``."""
        self.buffer.update_priorities(indexes, priorities)

    def _group_size(self) -> int:
        return self._model._group_size()

    def _counts_draws(self) -> bool:
        return self._model._counts_draws()

    def _check_draw(self, n: int, options: SampleOptions) -> None:
        if self._counts_draws():
            groups, left = n // self._group_size(), self.buffer._left(self._view)
            self.buffer._check_left(groups, left, options.but(replace=False))
        else:
            self.buffer._check_draw(n, options)

    def _check_update(
        self, indexes: NDArray[np.int64], priorities: NDArray[np.float64]
    ) -> NDArray[np.intp]:
        return self.buffer._check_update(indexes, priorities)

    def _fewer(self, n: int) -> int:
        return min(n - 1, self.buffer._left(self._view))

    def _stats(self) -> dict[str, float]:
        found: dict[str, float] = self.buffer.stats()
        if self._counts_draws():
            found["rows_left"] = self._group_size() * self.buffer._left(self._view)
        return found

    def _check_epoch(self) -> None:
        self.buffer._check_epoch()

    def __len__(self) -> int:
        return len(self.buffer)

    def __repr__(self) -> str:
        return f"ClusterView({', '.join(map(repr, [self.buffer, *self.layers]))})"
