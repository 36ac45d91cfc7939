"""``View``: a source that reads the rows of a buffer through layers.

Not here: reads through layers (``_reading``, ``views``), and which rows are drawn
(``samplers``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cpprb_like._arguments.checks import as_int
from cpprb_like._fields.schema import check_out
from cpprb_like._machine.machine_memory import CHECKED_NBYTES
from cpprb_like.buffers._entry import SampleOptions
from cpprb_like.buffers._epochs import EpochOrder
from cpprb_like.buffers._reading import NO_SLOTS, Choose, Opened, ReadPlan
from cpprb_like.buffers._source import (
    Batch,
    ColumnSpec,
    MomentSource,
    Source,
    if_prioritized,
    order_generator,
)
from cpprb_like.samplers import Extra, Slots
from cpprb_like.samplers._rules import Choice
from cpprb_like.views._layer import Layer, check_layers

if TYPE_CHECKING:
    from cpprb_like.buffers._explain import Explanation
    from cpprb_like.views._items_of_batch import ItemPlan


class View(Source):
    """A buffer, read in another way: ``rb.view(*layers)``.

    A view holds no rows. It draws rows of the buffer, with the sampler and the generator of the
    buffer. New rows of the buffer can be drawn from all its views, of which there may be many.

    Parameters
    ----------
    buffer : ReplayBuffer
        The rows.
    layers : Layer
        Layers, which process drawn rows: ``NStep``, ``Sequences``, ``FrameStacks``, ``Hindsight``,
        or user-defined ones; at most one of each kind, in any order.

    Attributes
    ----------
    buffer, layers
        As given.
    draws : int
        Batches drawn so far: the time of a schedule of a layer.

    Raises
    ------
    TypeError, ValueError
        An argument is not a layer, or a layer comes twice, or does not fit the fields.

    Notes
    -----
    Batches have the shapes of ``columns``, and the columns of the layers. ``sample`` also raises
    ``NotEnoughDataError`` if no row has the surrounding rows that the layers need. It raises
    ``ValueError`` or ``TypeError`` if a function of a layer returns an unsuitable value. The
    generator has then changed, as after a draw. If the layers need rows that may be missing,
    importance-sampling weights are normalised by the maximum over the batch.

    A view is pickled and copied with its buffer. Its functions must then support pickling.

    Examples
    --------
    >>> from cpprb_like import ReplayBuffer
    >>> from cpprb_like.views import NStep, Sequences
    >>> fields = {"rew": {"shape": ()}, "done": {"shape": (), "dtype": bool}}
    >>> rb = ReplayBuffer(100, fields, seed=0)
    >>> rb.add(rew=[1, 1, 1, 1], done=[0, 0, 0, 1])
    0
    >>> view = rb.view(Sequences(2), NStep(3, gamma=0.5))
    >>> view.sample(3)["rew"].tolist()
    [[1.0, 0.0], [1.5, 1.0], [1.5, 1.0]]
    """

    OF_ROWS = ("layers",)
    _OPENED: ClassVar[type[Opened]] = Opened

    def __init__(self, buffer: MomentSource, layers: Iterable[Layer]) -> None:
        self.buffer: Any = buffer  # Any: with all methods of its class
        self.layers = tuple(layers)
        self.draws = 0
        # State of the rules that was restored, for the ring that is there then; and ``draws``.
        self._restored: tuple[dict[str, Any], int] = {}, 0
        check_layers(self.layers)
        self._whole = self._OPENED(buffer, self.layers).plan(None)

    @property
    def _now(self) -> Opened:
        """The reader of the present ring of the buffer."""
        return self._all.now

    @property
    def _all(self) -> ReadPlan:
        """The plan that reads batches of all columns."""
        if self._whole.now.ring is not self.buffer.ring:  # the buffer was initialised again
            self._whole = self._OPENED(self.buffer, self.layers).plan(None)
            self._restore_rules()
        return self._whole

    def _restore_rules(self) -> None:
        """Give the rules the state that was restored, unless a batch was drawn since."""
        state, draws = self._restored
        rules = self._whole.now.rules
        if rules is not None and draws == self.draws:
            rules.restore(state)

    # ------------------------------------------------------------------ sampling

    def _sample(self, batch_size: int, options: SampleOptions) -> Batch:
        plan, buffer = self._whole, self.buffer
        if plan.now.ring is not buffer.ring:
            plan = self._all
        now = plan.now
        if now.rules is not None:
            now.rules.draws = self.draws
        fields, out = options.fields, options.out
        if out is not None and now.laid is not None:
            return self._sample_into(batch_size, options)
        columns = None if fields is None else now.read_columns(fields)
        n = buffer._check_batch_size(batch_size, columns)
        if n * now.item_nbytes >= CHECKED_NBYTES:
            now.require_memory(n, columns)
        arrays = None
        if out is not None:
            chosen = now.columns if columns is None else columns
            wanted = {column.name: now.specs[column.name] for column in chosen}
            arrays = dict(zip(wanted, check_out(out, n, wanted), strict=True))
        if columns is not None:
            plan = now.plan(columns)
        if plan.take is not None and out is None and not options.indexes:
            starts = None if now.draws_all else now.starts
            batch: Batch = buffer._draw_rows(n, options, starts, plan.take, columns, now.further)
            self.draws += 1
            return batch
        if options.indexes:
            now.check_indexes()
        rules = now.rules
        if rules is None or not rules.shape_draws:
            draw = partial(now.draw, n, options)
            batch = self._draw(plan, draw, n, arrays, options.indexes)
        else:
            choice = Choice()
            draw = partial(now.draw_shaped, rules, n, options, choice)
            rules.check_turn()
            with rules.turn, rules.choices.holding(rules.turn, choice):
                batch = self._draw(plan, draw, n, arrays, options.indexes)
                rules.drawn(choice)
        if out is None or arrays is None:
            return batch
        out.update({name: values for name, values in batch.items() if name not in arrays})
        return out

    def _draw(
        self, plan: ReadPlan, choose: Choose, n: int | None, arrays: Batch | None, located: bool
    ) -> Batch:
        """Items of the rows that ``choose`` returns, consistent with one state of the buffer.

        ``n`` is the number of rows, or None if unknown. ``located`` adds the column ``indexes``.
        """
        while True:
            one = plan.reading(plan, choose, n, arrays, self.draws, located=located)
            batch: Batch = self.buffer.consistently(one.attempt)
            if not one.later or one.finish(batch):
                self.draws += 1
                if n is not None:
                    self.buffer._note_draw(one.slots, plan.now.draws_all)
                return batch

    def explain(self, index: int) -> Explanation:
        """Place and episode of a row, the rows that its draw reads, and whether it can be drawn.

        Parameters
        ----------
        index : int
            One of ``batch["indexes"]``, or a slot. -1 is the newest row, -2 the row before.

        Returns
        -------
        Explanation
            A dict that ``print`` shows line by line: ``row``, its number since the last clear;
            ``slot``; ``index``, its permanent handle; ``environment``; ``age``, rows added since;
            ``episode``, rows of its episode in the buffer; ``step_of_episode``, number of earlier
            rows of the episode; ``end``; ``reads``, the rows that a draw reads, with purpose;
            ``mass``, with ``Among`` or another rule; ``priority``, ``weight`` and ``probability``,
            if known; ``can_be_drawn``; and ``reasons``. Mass and weight of a row of ``Groups`` are
            those of its group. For a lost row only index, ``can_be_drawn`` and reason.

        Raises
        ------
        TypeError, IndexError
            ``index`` is not an integer, or there is no such row.

        Notes
        -----
        Cost: some 100 microseconds; with priorities also a read of all weights.

        Examples
        --------
        >>> from cpprb_like import ReplayBuffer
        >>> from cpprb_like.views import Sequences
        >>> rb = ReplayBuffer(100, {"x": {"shape": ()}, "done": {"shape": ()}}, seed=0)
        >>> rb.add(x=range(10), done=[0, 0, 0, 1] + [0] * 6)
        0
        >>> rb.view(Sequences(4)).explain(8)["reasons"]
        ['the view needs 3 rows behind it; 1 follow so far']
        >>> print(rb.explain(2))
        row              2
        slot             2
        index            102
        environment      0
        age              7
        episode          rows 0 to 3
        step of episode  2
        end              terminated 1 rows later
        reads            its own values: row 2
        probability      0.1
        can be drawn     True
        reasons          all rows that are read of it are there
        """
        from cpprb_like.buffers._explain import explain  # noqa: PLC0415 (on demand)

        return explain(self._now, index)

    def _stats(self) -> dict[str, float]:
        found: dict[str, float] = self.buffer.stats()
        now = self._now
        ruled: Any = now.starts
        if now.rules is not None and now.rules.has_stats:
            found |= self.buffer.consistently(lambda: (NO_SLOTS, ruled.stats()))
        return found

    def read_at(self, slots: Slots, fields: str | Iterable[str] | None) -> Batch | None:
        """The items that the layers make of given rows, each of which can be drawn.

        Returns None if rows were overwritten meanwhile. The caller checks with ``ring.holds``
        whether all rows are still present.
        """
        plan = self._all
        columns = plan.now.read_columns(fields)
        if columns is not None:
            plan = plan.now.plan(columns)
        one = plan.reading(plan, lambda: (slots, {}), len(slots), None, self.draws, located=False)
        found = one.attempt()
        return found[1] if found is not None and one.finish(found[1]) else None

    def _begin_epoch(
        self, fields: tuple[str, ...] | None, shuffle: bool, rng: np.random.Generator | None
    ) -> EpochOrder | None:
        now, buffer = self._now, self.buffer
        if len(buffer) == 0:
            return None
        clears = now.ring.clears
        columns = now.read_columns(fields)

        def is_gone() -> bool:
            return now.ring.clears != clears or buffer.ring is not now.ring

        def still_there(chosen: Slots) -> tuple[Slots, Extra]:
            if is_gone():
                raise RuntimeError("the buffer was cleared or made anew while its rows were read")
            return now.drawable(chosen), {}

        def read(slots: Slots) -> Batch:
            plan = self._all if columns is None else self._now.plan(columns)
            return self._draw(plan, partial(still_there, slots), None, None, False)

        return EpochOrder(now.epoch(order_generator(shuffle, rng, buffer.rng)), read, is_gone)

    @if_prioritized
    def update_priorities(self, indexes: ArrayLike, priorities: ArrayLike) -> None:
        """Set the priorities of drawn rows: see ``PrioritizedReplayBuffer.update_priorities``.

        Only views of buffers with priorities have this method. For sequences, the priorities
        belong to the first rows: see ``sequence_priorities``.
        """
        self.buffer.update_priorities(indexes, priorities)

    def _read_batch_size(
        self, batch_size: int, fields: str | Iterable[str] | None = None
    ) -> tuple[int, tuple[str, ...] | None]:
        now = self._now
        columns = now.read_columns(fields)
        names = None if columns is None else tuple(column.name for column in columns)
        n = self.buffer._check_batch_size(batch_size, columns)
        now.require_memory(n, columns)
        return n, names

    def _to_report(self) -> Iterator[tuple[str, Any, Any]]:
        for path, buffer, _ in self.buffer._to_report():
            yield path, buffer, self if buffer is self.buffer else None

    def _can_draw(self) -> bool:
        return len(self.buffer) > 0 and self._now.has_starts()

    def _check_draw(self, n: int, options: SampleOptions) -> None:
        self.buffer._check_draw(n, options)
        now = self._now
        rules = now.rules
        is_distinct = not options.replace
        if rules is not None:
            rules.draws = self.draws
            n, is_distinct = rules.groups_of(n), is_distinct or rules.counts
        if is_distinct and not now.draws_all:
            self.buffer.consistently(partial(now.check_distinct, n))

    def _check_update(
        self, indexes: NDArray[np.int64], priorities: NDArray[np.float64]
    ) -> NDArray[np.intp]:
        source: MomentSource = self.buffer
        return source._check_update(indexes, priorities)

    # ------------------------------------------------------------------ state

    @property
    def fields(self) -> tuple[str, ...]:
        """The names of the fields, in declared order."""
        source: MomentSource = self.buffer
        return source.fields

    @property
    def has_priorities(self) -> bool:
        """Whether rows are drawn by priority."""
        return bool(self.buffer.has_priorities)

    def _field_specs(self, names: tuple[str, ...] | None) -> dict[str, ColumnSpec]:
        now = self._now
        columns = now.read_columns(names) or now.columns
        return {column.name: now.specs[column.name] for column in columns}

    def _further_specs(self) -> dict[str, ColumnSpec]:
        return {**self._now.further, **self.buffer.sampler.columns}

    def _item_plan(self, names: tuple[str, ...] | None) -> ItemPlan | None:
        now = self._now
        return None if now.laid is None else now.laid.plan(names or self.fields, now.replaced_by)

    def _group_size(self) -> int:
        rules = self._now.rules
        return 1 if rules is None else rules.group_size

    def _counts_draws(self) -> bool:
        rules = self._now.rules
        return rules is not None and rules.counts

    def _weighs_by_batch(self) -> bool:
        is_of_batch = not self._now.draws_all or self.buffer.sampler._weighs_by_batch
        return self.has_priorities and is_of_batch

    def __len__(self) -> int:
        """Number of rows that the buffer can draw; layers may exclude some."""
        return len(self.buffer)

    def __getstate__(self) -> dict[str, Any]:
        state = {"buffer": self.buffer, "layers": self.layers, "draws": self.draws}
        rules = self._now.rules
        return state if rules is None else state | {"rules": rules.state()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["buffer"], state["layers"])  # type: ignore[misc]
        self.draws = as_int("draws", state["draws"], 0)
        self._restored = state.get("rules", {}), self.draws
        self._restore_rules()

    def __repr__(self) -> str:
        layers = ", ".join(map(repr, self.layers))
        buffer = f"{type(self.buffer).__name__}(size={self.buffer.capacity}, stored={len(self)})"
        return f"View({buffer}, {layers})"
