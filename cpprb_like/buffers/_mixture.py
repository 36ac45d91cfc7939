"""``Mixture``: batches from several sources, such as demonstrations and the agent's own experience.

A mixture decides how many items of a batch come from each source. It stores no rows: users add to
the buffers. Not here: which rows of a buffer are drawn (``samplers``).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cpprb_like._arguments.checks import as_int
from cpprb_like._fields.schema import check_out
from cpprb_like._machine.aligned import aligned, empty
from cpprb_like._machine.generators import Seed, generator
from cpprb_like._machine.prefetch_state import DrawCanceledError
from cpprb_like._machine.unreturned import part_begins
from cpprb_like._rows.rings import Parts
from cpprb_like.buffers._entry import SampleOptions
from cpprb_like.buffers._source import Batch, ColumnSpec, Source, if_prioritized
from cpprb_like.errors import NotEnoughDataError
from cpprb_like.samplers._prioritized import read_indexes, read_priorities
from cpprb_like.samplers._shares import ends_of
from cpprb_like.samplers._tree_draws import cut
from cpprb_like.schedules import Schedule, check, value_at
from cpprb_like.views._items_of_batch import ItemPlan

OWN_NAMES = ("source", "weights", "indexes")
IN_PLACE_NBYTES = 2**16  # least bytes of fields that sources write into the batch; fewer are copied


class Mixture(Source):
    """Draws each batch from several sources, in given ratios.

    Parameters
    ----------
    sources : dict of str to Source
        Buffers, views or mixtures; at least one. All have the same fields, of the same dtypes and
        shapes; sizes, samplers and environments may differ. No field may be called ``source``,
        ``weights`` or ``indexes``.
    shares : dict of str to (float or schedule)
        Sampling ratio of each source: at least 0, and not all 0. Ratios are normalised by their
        sum. The time of a schedule is the number of batches drawn so far. A float counts as its
        printed decimal: 0.1 is a tenth.
    seed : int, SeedSequence, BitGenerator, Generator, optional
        Seed of the rounding of shares; the buffers have their own generators. Without a seed,
        ``np.random.seed`` controls the rounding.

    Attributes
    ----------
    sources, shares : mapping
        As given, read-only.
    draws : int
        Batches drawn so far.
    rng : numpy.random.Generator
        The generator in use.

    Raises
    ------
    TypeError, ValueError
        A parameter has a wrong type or value, or the fields of two sources differ. The message
        names the parameter or the field.

    Notes
    -----
    Rounding: ``n * share`` is rounded down or up at random, so that the mean is exact, also for
    n = 1. One random number rounds all shares of a batch (systematic sampling). If a source is a
    view with ``Groups`` of k rows, the parts of all sources are multiples of k, and so is n.

    Empty sources: their share goes to the other sources, in the ratio of the other shares. So
    training may begin on demonstrations alone.

    Batches: the rows of a source are contiguous, in the order of the sources. The column
    ``source``, intp, is the number of the source of each row, 0 for the first. If a source has
    priorities, ``weights`` are 1.0 for rows of sources without priorities. They are float64 if the
    sampler of a source gives float64. Batches have further columns, such as ``discount``, that all
    sources give. Values of any length are padded to the longest row of all parts, or packed one
    part behind the other; all sources have the same layout.

    Importance-sampling ``weights`` correct for priorities within each source, not for the shares.

    ``sample`` also raises ``NotEnoughDataError`` if all sources with a share above 0 are empty. It
    raises ``ValueError`` if a schedule gives a share below 0 or all shares are 0; if the sampler of
    a buffer without priorities gives ``weights`` or ``indexes``; or if sources differ in a further
    column. A call that raises leaves ``out`` unchanged. All possible checks come before the first
    draw, so the generators of all sources keep their state, and rows that ``AtMost`` counts are not
    used up. Checked, too, is whether each source has enough rows for its part if it draws without
    replacement; parts by ``Share`` are rounded up for that. A user-defined sampler may raise after
    samplers of earlier sources have drawn. So may a source that lost rows meanwhile.

    Cost of a batch: the draws of the parts, and about ten microseconds. A view with layers whose
    part is drawn without replacement is asked first, for at most the time of a draw. Sources write
    the rows of a large batch in place. Rows of a small batch, and of ``out``, are copied once more,
    when all parts are drawn.

    There is no ``epoch``, as each row would come once for any shares.

    A mixture is pickled and deep-copied with its sources. Any number of threads may add to the
    buffers and draw; two draws at the same time may count as one in ``draws``.

    Source: half of each batch from demonstrations, in Ball, Smith, Kostrikov and Levine (2023),
    "Efficient Online Reinforcement Learning with Offline Data", section 4.1.

    Examples
    --------
    >>> from cpprb_like import ReplayBuffer
    >>> from cpprb_like.buffers import Mixture
    >>> fields = {"obs": {"shape": 4}, "rew": {"shape": ()}}
    >>> online, demos = ReplayBuffer(1000, fields, seed=0), ReplayBuffer(100, fields, seed=1)
    >>> _ = online.add(obs=[0, 0, 0, 0], rew=0), demos.add(obs=[1, 1, 1, 1], rew=1)
    >>> shares = {"online": 0.75, "demos": 0.25}
    >>> mixture = Mixture({"online": online, "demos": demos}, shares, seed=2)
    >>> batch = mixture.sample(4)
    >>> batch["obs"].shape, batch["rew"].tolist(), batch["source"].tolist()
    ((4, 4), [0.0, 0.0, 0.0, 1.0], [0, 0, 0, 1])
    """

    OF_ROWS = ("_sources",)

    def __init__(
        self,
        sources: Mapping[str, Source],
        shares: Mapping[str, float | Schedule],
        *,
        seed: Seed = None,
    ) -> None:
        self._sources = _read_sources(sources)
        self._shares = _read_shares(shares, list(self._sources))
        self.rng = generator(seed)
        # Unused numbers of failed draws, for the next ones: a call that raises changes nothing.
        self._numbers: list[float] = []
        self._is_ragged = self._item_plan(None) is not None
        self.draws = 0

    def __reduce__(self) -> tuple[Any, ...]:
        return _blank, (type(self),), self.__dict__ | {"_numbers": list(self._numbers)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        as_int("draws", state["draws"], 0)
        for number in state["_numbers"]:
            check("a number that was not used", number, 0, 1)
        if not isinstance(state["rng"], np.random.Generator):
            raise TypeError(f"rng: expected a generator, got {type(state['rng']).__name__}")
        _read_shares(state["_shares"], list(_read_sources(state["_sources"])))
        self.__dict__.update(state, _numbers=list(state["_numbers"]))
        self._is_ragged = self._item_plan(None) is not None

    # ------------------------------------------------------------------ sampling

    def _sample(self, batch_size: int, options: SampleOptions) -> Batch:
        if options.out is not None and self._is_ragged:
            return self._sample_into(batch_size, options)
        n, names = self._read_batch_size(batch_size, options.fields)
        out, options = options.out, options.but(fields=names, out=None)
        wanted = self._field_specs(names)
        items = self._item_plan(names) if self._is_ragged else None
        to = None
        if out is not None:
            to = dict(zip(wanted, check_out(out, n, wanted), strict=True))
        ends = self._ends_of_shares()
        number = self._next_number()
        try:
            cuts = self._cut(n, ends, number)
            self._check_parts(cuts, options)
            batch = self._draw(cuts, wanted, to, options, items)
        except DrawCanceledError:  # the source was reseeded: the number is void
            raise
        except BaseException:
            self._numbers.append(number)
            raise
        self.draws += 1
        if out is None:
            return batch
        out.update(batch)
        return out

    def _cut(self, n: int, ends: list[int], number: float) -> list[int]:
        """Where the parts of n rows begin and end. Of sources of groups parts are whole groups."""
        size = self._group_size()
        units, left = divmod(n, size)
        if left:
            raise ValueError(
                f"batch_size: expected a multiple of {size}, as sources draw groups, got {n}"
            )
        return [size * place for place in cut(units, ends, number)]

    def _next_number(self) -> float:
        """A random number from 0 to 1: an unused one of a failed draw, or a new one."""
        try:
            return self._numbers.pop()  # other threads may pop, too
        except IndexError:
            return float(self.rng.random())

    def _ends_of_shares(self) -> list[int]:
        """Cumulative shares of the sources that can be drawn from: see ``ends_of``."""
        shares = {
            name: share
            if isinstance(share, float)
            else value_at(share, self.draws, f"shares[{name!r}]", 0)
            for name, share in self._shares.items()
        }
        if not any(shares.values()):
            raise ValueError(f"shares: expected one above 0, got {shares} for batch {self.draws}")
        held = [
            share if share and self._sources[name]._can_draw() else 0.0
            for name, share in shares.items()
        ]
        if not any(held):
            empty = [name for name, share in shares.items() if share]
            raise NotEnoughDataError(f"cannot sample: sources {empty} are empty")
        return ends_of(tuple(held))

    def _check_parts(self, cuts: list[int], options: SampleOptions) -> None:
        """Raise errors that draws of the parts are known to raise, before the first draw."""
        parts = {}
        for (name, source), (start, stop) in zip(
            self._sources.items(), pairwise(cuts), strict=True
        ):
            if stop > start:
                columns = set(source._further_specs())
                if not source.has_priorities:
                    _check_plain(name, columns, ("weights", "indexes"))
                parts[name] = columns - {*OWN_NAMES}
                with _named(name):
                    source._check_draw(stop - start, _own(source, options))
        _check_columns(parts)

    def _draw(
        self,
        cuts: list[int],
        wanted: Mapping[str, ColumnSpec],
        to: Batch | None,
        options: SampleOptions,
        items: ItemPlan | None,
    ) -> Batch:
        """Draw a batch of the ``wanted`` fields into ``to``, with its parts between ``cuts``.

        ``to`` is written to after all parts were drawn, as a draw may fail. ``items`` joins values
        of any length.
        """
        n, fixed = cuts[-1], wanted
        if items is not None:
            fixed = {name: spec for name, spec in wanted.items() if name not in items.fields}
        nbytes = sum(spec.dtype.itemsize * math.prod(spec.shape) for spec in fixed.values())
        in_place = to is None and items is None and n * nbytes >= IN_PLACE_NBYTES
        batch: Batch = {}
        if to is None:
            batch = {name: empty((n, *spec.shape), spec.dtype) for name, spec in fixed.items()}
        extra: Batch = {"source": empty((n,), np.dtype(np.intp))}
        if self.has_priorities:
            extra["weights"] = empty((n,), self._weights_dtype)
        if self.has_priorities or options.indexes:
            extra["indexes"] = empty((n,), np.dtype(np.int64))
        parts: list[tuple[int, int, Batch]] = []
        others = {}
        for number, (name, (start, stop)) in enumerate(
            zip(self._sources, pairwise(cuts), strict=True)
        ):
            if start == stop:
                continue
            own_options = options
            if in_place:
                views = {field: values[start:stop] for field, values in batch.items()}
                own_options = options.but(out=views)
            with part_begins(start):
                part = self._part(name, stop - start, own_options)
            parts.append((start, stop, part))
            extra["source"][start:stop] = number
            if "weights" in extra:
                extra["weights"][start:stop] = part.get("weights", 1.0)
            if "indexes" in extra:
                own = part.get("indexes", np.zeros(stop - start, np.int64))
                own = np.ascontiguousarray(own, np.int64)  # of a user's sampler
                extra["indexes"][start:stop] = self._names.name(number, own)
            known = {*OWN_NAMES, *wanted, *(() if items is None else items.marks)}
            others[name] = {column: part[column] for column in part if column not in known}
        further = _join(others)
        whole = batch if to is None else {name: to[name] for name in fixed}
        if not in_place:
            for name, values in whole.items():
                for start, stop, part in parts:
                    values[start:stop] = part[name]
        if items is not None:
            batch = items.join([part for _, _, part in parts], whole)
        return batch | extra | further

    def _part(self, name: str, n: int, options: SampleOptions) -> Batch:
        """Draw the items of one source."""
        source = self._sources[name]
        with _named(name):
            part = source.sample(n, **_own(source, options).keywords)
        if not source.has_priorities:
            _check_plain(name, part, ("weights",) if options.indexes else ("weights", "indexes"))
        return part

    # ------------------------------------------------------------------ priorities

    @if_prioritized
    def update_priorities(self, indexes: ArrayLike, priorities: ArrayLike) -> None:
        """Set the priorities of rows, each in the buffer that it was drawn from.

        A mixture has this method if one of its sources has priorities.

        Parameters
        ----------
        indexes : array_like of int, shape (n,)
            ``batch["indexes"]``, a part of it, or parts of several batches of this mixture, in any
            order. The last of duplicates wins. Rows of buffers without priorities are skipped.
        priorities : array_like, shape (n,) or (n, 1)
            Finite, at least 0.

        Raises
        ------
        TypeError
            ``indexes`` are not integers, or ``priorities`` are not numbers.
        ValueError
            The numbers of indexes and priorities differ. Or a priority is negative, infinite, NaN,
            or too large for the sampler of its buffer.
        IndexError
            A row is not in its buffer. After any error all priorities are unchanged.

        Notes
        -----
        The low bits of an index are the number of the source: one bit for two sources, two bits for
        up to four. The bits above are the index in the source. Cost: the updates of the sources.

        Examples
        --------
        >>> from cpprb_like import PrioritizedReplayBuffer
        >>> from cpprb_like.buffers import Mixture
        >>> fields = {"x": {"shape": ()}}
        >>> a, b = (PrioritizedReplayBuffer(10, fields, seed=i) for i in range(2))
        >>> _ = a.add(x=1), b.add(x=2)
        >>> mixture = Mixture({"a": a, "b": b}, {"a": 0.5, "b": 0.5}, seed=2)
        >>> batch = mixture.sample(2)
        >>> mixture.update_priorities(batch["indexes"], [3.0, 4.0])
        >>> a.get_max_priority(), b.get_max_priority()
        (3.0, 4.0)
        """
        values = read_priorities(priorities)
        given = read_indexes(indexes, len(values))
        wrong = self._check_update(given, values)
        if len(wrong):
            ((number, _, _),) = self._names.split(given[wrong[:1]])
            what = "a source"
            if number < len(self._sources):
                name = list(self._sources)[number]
                what = f"source {name!r}, which holds {len(self._sources[name])}"
            raise IndexError(
                f"indexes[{wrong[0]}]: expected that of a row of {what}; got {given[wrong[0]]}"
            )
        names = list(self._sources)
        for number, places, own in self._names.split(given):
            source = self._sources[names[number]]
            if source.has_priorities:
                with _named(names[number]):
                    source.update_priorities(own, values[places])

    def _check_update(
        self, indexes: NDArray[np.int64], priorities: NDArray[np.float64]
    ) -> NDArray[np.intp]:
        wrong = [np.empty(0, np.intp)]
        sources = list(self._sources.values())
        for number, places, own in self._names.split(indexes):
            if number >= len(sources):
                wrong.append(places)
            elif sources[number].has_priorities:
                wrong.append(places[sources[number]._check_update(own, priorities[places])])
        return np.concatenate(wrong)

    def _check_draw(self, n: int, options: SampleOptions) -> None:
        if not options.replace and n > len(self):
            raise NotEnoughDataError(
                f"cannot sample {n} distinct rows: the sources hold {len(self)}"
            )
        self._check_beta(options.beta)
        ends, number = self._ends_of_shares(), self._next_number()
        try:
            self._check_parts(self._cut(n, ends, number), options)
        finally:
            self._numbers.append(number)  # for the draw, which has the same parts then

    def _check_epoch(self) -> None:
        raise TypeError("a mixture has no epoch: it would take each row once, whatever the shares")

    def _to_report(self) -> Iterator[tuple[str, Any, Any]]:
        for name, source in self._sources.items():
            for path, buffer, view in source._to_report():
                yield ".".join(filter(None, (name, path))), buffer, view

    def _can_draw(self) -> bool:
        return any(source._can_draw() for source in self._sources.values())

    def _read_batch_size(
        self, batch_size: int, fields: str | Iterable[str] | None = None
    ) -> tuple[int, tuple[str, ...] | None]:
        return next(iter(self._sources.values()))._read_batch_size(batch_size, fields)

    # ------------------------------------------------------------------ state

    def _stats(self) -> dict[str, float]:
        found: dict[str, float] = {"rows": len(self), "draws": self.draws}
        for name, source in self._sources.items():
            found |= {f"{name}.{key}": value for key, value in source.stats().items()}
        return found

    @property
    def sources(self) -> Mapping[str, Source]:
        """The sources by name, in the order of ``source``."""
        return MappingProxyType(self._sources)

    @property
    def shares(self) -> Mapping[str, float | Schedule]:
        """The shares by name, as given."""
        return MappingProxyType(self._shares)

    @property
    def fields(self) -> tuple[str, ...]:
        """The names of the fields, in the order of the first source."""
        return next(iter(self._sources.values())).fields

    @property
    def has_priorities(self) -> bool:
        """Whether a source has priorities."""
        return any(source.has_priorities for source in self._sources.values())

    def _field_specs(self, names: tuple[str, ...] | None) -> dict[str, ColumnSpec]:
        return next(iter(self._sources.values()))._field_specs(names)

    def _item_plan(self, names: tuple[str, ...] | None) -> ItemPlan | None:
        return next(iter(self._sources.values()))._item_plan(names)

    def _group_size(self) -> int:
        return math.lcm(*(source._group_size() for source in self._sources.values()))

    def _counts_draws(self) -> bool:
        return any(source._counts_draws() for source in self._sources.values())

    def _weighs_by_batch(self) -> bool:
        return any(source._weighs_by_batch() for source in self._sources.values())

    def _further_specs(self) -> dict[str, ColumnSpec]:
        found = next(iter(self._sources.values()))._further_specs()
        found = {name: spec for name, spec in found.items() if name not in OWN_NAMES}
        found["source"] = ColumnSpec(np.dtype(np.intp), ())
        if self.has_priorities:
            found["weights"] = ColumnSpec(self._weights_dtype, ())
            found["indexes"] = ColumnSpec(np.dtype(np.int64), ())
        return found

    @property
    def _names(self) -> Parts:
        """Names of rows: number of the source, and index in the source."""
        return Parts(len(self._sources))

    @property
    def _weights_dtype(self) -> np.dtype[Any]:
        """The dtype of the column ``weights``, common to all sources."""
        dtypes = [
            source._further_specs()["weights"].dtype
            for source in self._sources.values()
            if source.has_priorities
        ]
        return np.result_type(np.float32, *dtypes)

    def __len__(self) -> int:
        """Rows of all sources that can be drawn."""
        return sum(len(source) for source in self._sources.values())

    def __repr__(self) -> str:
        lines = [f"{type(self).__name__}(draws={self.draws})"]
        for number, (name, source) in enumerate(self._sources.items()):
            kind = f"{type(source).__name__}(stored={len(source)})"
            lines.append(f"  {number} {name!r}: {self._shares[name]!r} of {kind}")
        return "\n".join(lines)


def _blank(cls: type[Mixture]) -> Mixture:
    """An object without state, for ``__setstate__``."""
    return cls.__new__(cls)


def _read_sources(sources: object) -> dict[str, Source]:
    """The sources as a dict; raises unless all have the same fields."""
    if not isinstance(sources, Mapping):
        raise TypeError(f"sources: expected a dict of sources, got {type(sources).__name__}")
    if not sources:
        raise ValueError("sources: expected at least one, got none")
    for name, source in sources.items():
        if not isinstance(name, str):
            raise TypeError(f"sources: expected names, got {name!r}")
        if not isinstance(source, Source):
            raise TypeError(
                f"sources[{name!r}]: expected a buffer, a view or a mixture, "
                f"got {type(source).__name__}"
            )
    first, *others = sources
    taken = [name for name in OWN_NAMES if name in sources[first].fields]
    if taken:
        raise ValueError(f"sources[{first!r}]: {taken} are names of columns of a mixture's batch")
    for other in others:
        _check_fields(first, sources[first], other, sources[other])
        _check_items(first, sources[first], other, sources[other])
    for number, name in enumerate(others, 1):
        for earlier in list(sources)[:number]:
            if sources[name] is sources[earlier]:
                raise ValueError(
                    f"sources[{name!r}]: expected another source than sources[{earlier!r}]"
                )
    return dict(sources)


def _check_fields(one: str, first: Source, two: str, second: Source) -> None:
    """Raise ``ValueError`` unless two sources have the same fields, in any order."""
    mine, theirs = ({name: s.columns[name] for name in s.fields} for s in (first, second))
    for name in [*mine, *theirs]:
        if name not in mine or name not in theirs:
            has, lacks = (one, two) if name in mine else (two, one)
            raise ValueError(f"field {name!r}: source {has!r} has it, source {lacks!r} has not")
        a, b = mine[name], theirs[name]
        if a != b:
            raise ValueError(
                f"field {name!r}: expected {a.dtype} of shape {a.shape} as in source {one!r}, "
                f"got {b.dtype} of shape {b.shape} in source {two!r}"
            )


def _check_items(one: str, first: Source, two: str, second: Source) -> None:
    """Raise ``ValueError`` unless two sources give values of any length in the same layout."""
    mine, theirs = first._item_plan(None), second._item_plan(None)
    if mine is not None and theirs is not None and mine.laid.options != theirs.laid.options:
        raise ValueError(
            f"sources: {one!r} and {two!r} have other layouts of values of any length; expected "
            "views with the same Padded or Packed"
        )


def _own(source: Source, options: SampleOptions) -> SampleOptions:
    """The options for one source: ``beta`` only with priorities, ``indexes`` only without."""
    if source.has_priorities:
        return options.but(indexes=False)
    return options.but(beta=None)


def _check_plain(name: str, columns: Iterable[str], weighing: tuple[str, ...]) -> None:
    """Raise ``ValueError`` if a source without priorities has columns of prioritized ones."""
    for column in weighing:
        if column in columns:
            raise ValueError(
                f"source {name!r}: expected a PrioritizedReplayBuffer, because the sampler "
                f"gives {column}"
            )


@contextmanager
def _named(name: str) -> Iterator[None]:
    """Put the name of a source into the message of its errors."""
    try:
        yield
    except (IndexError, NotEnoughDataError) as error:
        raise type(error)(f"source {name!r}: {error}") from error


def _read_shares(shares: object, names: list[str]) -> dict[str, float | Schedule]:
    """The shares in the order of the names; raises unless each name has one."""
    if not isinstance(shares, Mapping):
        raise TypeError(f"shares: expected a dict of shares, got {type(shares).__name__}")
    if set(shares) != set(names):
        raise ValueError(f"shares: expected one for each of {names}, got {list(shares)}")
    for name in names:
        check(f"shares[{name!r}]", shares[name], 0)
    if not any(callable(share) or share > 0 for share in shares.values()):
        raise ValueError(f"shares: expected one above 0, got {dict(shares)}")
    return {name: shares[name] if callable(shares[name]) else float(shares[name]) for name in names}


def _check_columns(parts: Mapping[str, Collection[str]]) -> None:
    """Raise unless all parts of a batch have the same columns besides fields and weights."""
    for one, two in pairwise(parts):
        for column in {*parts[one]} ^ {*parts[two]}:
            has, lacks = (one, two) if column in parts[one] else (two, one)
            raise ValueError(f"column {column!r}: source {has!r} gives it, {lacks!r} does not")


def _join(parts: dict[str, Batch]) -> Batch:
    """Concatenated columns of the parts of a batch; raises unless all parts have the same."""
    _check_columns(parts)
    names = next(iter(parts.values()), {})
    return {
        name: aligned(np.concatenate([part[name] for part in parts.values()])) for name in names
    }
