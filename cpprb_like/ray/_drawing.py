"""Draws at one host: batches of its rows, and the masses that a draw over all hosts needs.

A host draws for learners on other nodes. A learner on the host's node uses the same class, without
a call of Ray. Not here: how many rows come from each host (``_learner``).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpprb_like._arguments.arrays import Batch
from cpprb_like._fields.schema import Schema, Stack
from cpprb_like._machine.generators import Seed
from cpprb_like.buffers._source import Source
from cpprb_like.errors import NotEnoughDataError
from cpprb_like.processes import Learner, Mass, SharedReplay
from cpprb_like.processes._mass import mass_of
from cpprb_like.ray._blocks import Pair, pairs_of, part
from cpprb_like.ray._items import for_the_way
from cpprb_like.ray._messages import Reply
from cpprb_like.samplers import Sampler
from cpprb_like.samplers._prioritized import ByPriority
from cpprb_like.samplers._shares import SharedRows
from cpprb_like.views import Layer
from cpprb_like.views._layer import stacks_of

UPDATES_KNOWN = 1024  # answers to calls of ``update`` that are stored: more than are on their way


def identity_of(replay: SharedReplay) -> str:
    """The identity of a host's memory, which differs from the identity of each later memory."""
    return replay._identity


def stacked_pairs(source: Source, schema: Schema, layers: tuple[Layer, ...]) -> list[Pair]:
    """The fields of a source's batches that are stacks and next stacks of the same frames."""
    shapes = {name: spec.shape for name, spec in source._field_specs(None).items()}
    found = {stack.name: (stack.depth, stack.axis) for stack in schema.stacks}
    for layer in layers:
        found.update(stacks_of(layer))
    stacks = {}
    for name, (depth, axis) in found.items():
        shape = shapes[name]  # a layer may have given it another one
        if -len(shape) <= axis < len(shape) and shape[axis] == depth:
            stacks[name] = Stack(name, axis % len(shape), depth)
    return pairs_of(shapes, stacks)


class Drawer:
    """The end of one learner at one host: a learner of its shared replay, and the learner's views.

    A copy of the sampler draws here without strata, so that any part of its draws is a fair draw.
    """

    def __init__(self, replay: SharedReplay, sampler: Sampler, seed: Seed) -> None:
        own = copy.deepcopy(sampler)
        if isinstance(own, ByPriority):
            own.probabilities = own.as_masses = True
            own.stratified = False
        self._begin(replay, replay.learner(own, seed=seed))

    @classmethod
    def restored(cls, replay: SharedReplay, folder: str, name: str) -> Drawer:
        """The drawer of a learner that the host saved: see ``SharedReplay.restore_learner``."""
        drawer = cls.__new__(cls)
        drawer._begin(replay, replay.restore_learner(folder, name))
        return drawer

    def _begin(self, replay: SharedReplay, learner: Learner) -> None:
        self.learner = learner
        self.identity = identity_of(replay)
        self._sources: dict[str, Any] = {"": learner}  # the learner and its views
        # The same sources, of values of any length as they travel; empty without such values.
        # Their rules have a state of their own: all masses and draws of a view are by these then.
        self._packing: dict[str, Any] = {}
        if learner.schema.axes:
            self._packing[""] = learner.view(*for_the_way(()))
        self._pairs = {"": stacked_pairs(learner, learner.schema, ())}
        self._shared: dict[str, SharedRows] = {}  # rows of views where values have shares
        self.updates = 0  # the number of the last call of ``update``
        self._late: dict[int, int] = {}  # the answers to the last calls
        self._largest = 0.0  # the greatest priority that was given

    def open_view(self, view: str, layers: tuple[Layer, ...]) -> None:
        """Open a view of the learner with this name."""
        if view not in self._sources:
            source = self.learner.view(*copy.deepcopy(layers))
            self._pairs[view] = stacked_pairs(source, self.learner.schema, layers)
            if self._packing:
                self._packing[view] = self.learner.view(*for_the_way(copy.deepcopy(layers)))
            starts = self._packing.get(view, source)._now.starts
            if isinstance(starts, SharedRows):
                self._shared[view] = starts
            self._sources[view] = source

    def mass(self, view: str = "", largest: float = 1.0, said: tuple[Any, ...] = ()) -> Mass:
        """The present mass of the host; ``largest`` and ``said`` as for ``draw``."""
        self._raise_largest(largest)
        self._say(view, said)
        if view in self._shared:
            return mass_of(self.learner._shards, self._shared[view], by_value=True)
        mass: Mass = self._packing.get(view, self._sources[view]).mass()
        return mass

    def draw(
        self,
        view: str,
        n: int,
        options: Mapping[str, Any],
        largest: float,
        asked: Sequence[tuple[Any, int]] | None = None,
        said: tuple[Any, ...] = (),
        mass: Mass | None = None,
    ) -> Reply:
        """Draw n items; new rows get the priority ``largest`` if it is the greatest one.

        ``said`` are the values of the functions of the view's rules, by ``Rules.ask``.

        Values of any length are as ``ItemsOfAnswers`` takes them. Of a view with ``Share`` the
        items are ``asked``: values and numbers, one after another.
        ``mass`` is the mass of the host, if the caller has just requested it.
        """
        self._raise_largest(largest)
        self._say(view, said)
        mass = self.mass(view, said=said) if mass is None else mass
        if view in self._shared:
            self._shared[view].asked = asked
        try:
            columns = self._packing.get(view, self._sources[view]).sample(n, **options)
        except NotEnoughDataError:
            columns = {}
            mass = replace(mass, total=0.0, least=math.inf, left=0, values={})
        masses = columns.pop("probabilities", None)
        columns.pop("weights", None)
        return Reply(self.identity, columns, masses, mass)

    def sample(
        self,
        view: str,
        n: int,
        largest: float,
        how: Mapping[str, Any],
        time: int = 0,
        said: tuple[Any, ...] = (),
    ) -> Batch:
        """A batch with weights, where this host has all rows; further arguments as for ``draw``.

        ``time`` is that of schedules of shares: the number of batches of the view so far.
        """
        self._raise_largest(largest)
        self._say(view, said)
        if view in self._shared:
            starts = self._sources[view]._now.starts
            starts.asked, self._sources[view].draws = None, time
        batch: Batch = self._sources[view].sample(n, **how)
        batch.pop("probabilities", None)
        return batch

    def update(
        self,
        number: int,
        indexes: NDArray[np.int64],
        priorities: NDArray[np.float64],
        largest: float,
    ) -> int:
        """Set priorities, as call ``number`` of the learner; returns how many came too late.

        A repeated call changes nothing and has the same answer. A call that raises is not repeated.
        """
        if number > self.updates:
            self.updates = number
            self._raise_largest(largest)
            before = self.learner.late_updates
            self.learner.update_priorities(indexes, priorities)
            self._late[number] = self.learner.late_updates - before
            self._late.pop(number - UPDATES_KNOWN, None)
        return self._late.get(number, 0)

    def for_the_way(self, reply: Reply, view: str) -> Reply:
        """The reply for a process of another node: frames that two stacks share travel once."""
        columns: Any = reply.columns
        return replace(reply, columns=part(columns, self._pairs[view]))

    def _say(self, view: str, said: tuple[Any, ...]) -> None:
        """Let the rules of a view have the values of the learner's functions."""
        if said:
            for sources in (self._sources, self._packing):
                if view in sources:
                    sources[view]._now.rules.say(said)

    def _raise_largest(self, largest: float) -> None:
        """Raise the priority of new rows to at least this one, the greatest of all hosts."""
        if largest > self._largest and self.learner.has_priorities:
            self.learner.raise_max_priority(largest)
            self._largest = largest

    def close(self) -> None:
        """Leave the replay."""
        self.learner.close()
