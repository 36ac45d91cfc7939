"""Batches from several buffers: demonstrations beside own experience, successes beside failures.

A mixture says how many rows of a batch come from which buffer. It owns no rows: users add to the
buffers themselves. Not here: which rows of a buffer are drawn (``samplers._base``,
``samplers._prioritized``).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from fractions import Fraction
from functools import lru_cache
from itertools import accumulate, pairwise
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cpprb_like._c.checks import as_int
from cpprb_like._c.generators import Seed, generator
from cpprb_like._store.row_handles import without_row
from cpprb_like.buffers._prioritized import PrioritizedReplayBuffer
from cpprb_like.buffers._replay import Batch, ReplayBuffer
from cpprb_like.errors import NotEnoughDataError
from cpprb_like.samplers._prioritized import ByPriority, read_indexes, read_priorities
from cpprb_like.schedules import Schedule, check, value_at

__all__ = ["Mixture"]

OWN_NAMES = ("source", "weights", "indexes")
RANDOM_BITS = 53  # of a number from Generator.random, which is a multiple of 2 ** -53
IN_PLACE_NBYTES = 2**16  # from here on buffers write into the batch; below, a copy is cheaper


class Mixture:
    """Draws each batch from several buffers, in given shares.

    Parameters
    ----------
    buffers : dict of str to ReplayBuffer
        At least one. All have the same fields; sizes, samplers and environments may differ. No
        field may be called ``source``, ``weights`` or ``indexes``.
    shares : dict of str to (float or schedule)
        For each buffer, how much of a batch comes from it: at least 0, and not all 0. They need not
        sum to 1, only their ratios count. The time of a schedule is the number of batches drawn so
        far. A number counts as the decimal that it prints as: 0.1 is a tenth.
    seed : int, SeedSequence, BitGenerator, Generator, optional
        Of the rounding of shares. The buffers have generators of their own. Without a seed,
        ``np.random.seed`` controls it.

    Attributes
    ----------
    buffers, shares : mapping
        As given, to be read only.
    draws : int
        Batches drawn so far.
    rng : numpy.random.Generator
        The generator in use.

    Raises
    ------
    TypeError, ValueError
        A parameter is of a wrong type or value, or the fields of two buffers differ; the message
        names the parameter or the field.

    Notes
    -----
    Where a share of a batch of n rows is no whole number of rows, it is rounded at random, down or
    up, so that ``n * share`` rows come on average, also where n is 1. All shares of a batch are
    rounded by the same random number (systematic sampling).

    A buffer that holds no rows has no share: the others get it, in the ratio of theirs. So training
    may begin on demonstrations alone, and go on by the shares as soon as there is experience.

    ``weights`` of prioritized buffers correct for uneven draws within each buffer. They do not
    correct for the shares, which are meant.

    A mixture is pickled and deep-copied with its buffers. Any number of threads may add to the
    buffers and draw; of draws at the same time two may count as one.

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

    def __init__(
        self,
        buffers: Mapping[str, ReplayBuffer],
        shares: Mapping[str, float | Schedule],
        *,
        seed: Seed = None,
    ) -> None:
        self._buffers = _read_buffers(buffers)
        self._shares = _read_shares(shares, list(self._buffers))
        self._first = next(iter(self._buffers.values()))
        by_priority = [b for b in self._buffers.values() if isinstance(b, PrioritizedReplayBuffer)]
        self._weights_dtype: np.dtype[Any] | None = None
        if by_priority:
            dtypes = [b.sampler.weights_dtype for b in by_priority]
            self._weights_dtype = np.result_type(np.float32, *dtypes)
        self.rng = generator(seed)
        # Of batches that could not be drawn, for the next ones: a call that raises changes nothing.
        self._numbers: list[float] = []
        self.draws = 0

    def __setstate__(self, state: dict[str, Any]) -> None:
        as_int("draws", state["draws"], 0)
        for number in state["_numbers"]:
            check("a number that was not used", number, 0, 1)
        self.__dict__.update(state)

    # ------------------------------------------------------------------ sampling

    def sample(
        self,
        batch_size: int,
        beta: float | Schedule | None = None,
        *,
        replace: bool = True,
        out: Batch | None = None,
        fields: str | Iterable[str] | None = None,
    ) -> Batch:
        """Draw rows from all buffers.

        Parameters
        ----------
        batch_size : int
            Rows to draw, at least 0.
        beta : float or schedule, optional
            As for ``PrioritizedReplayBuffer.sample``; for those of the buffers that are one.
        replace : bool
            Whether a row may be drawn more than once.
        out : dict of ndarray, optional
            Arrays for the fields, as for ``ReplayBuffer.sample``. The other columns are fresh
            arrays, which it gets under their names.
        fields : str or iterable of str, optional
            The fields to read; all.

        Returns
        -------
        dict of ndarray
            Each field, shape ``(batch_size, *shape)``, and further columns of shape
            ``(batch_size,)``. The rows of a buffer lie together, in the order of the buffers.

            source : intp
                Number of the buffer that the row is from, 0 for the first.
            weights : float32, or float64 if a buffer's sampler gives that
                1.0 for rows of buffers without priorities. Only if one of the buffers has some.
            indexes : int64
                For ``update_priorities``. Only if one of the buffers has priorities.

            Further columns, such as ``discount``, if all buffers give them.

        Raises
        ------
        NotEnoughDataError
            No buffer with a share above 0 holds rows; or ``replace`` is false and one holds fewer
            than its share; or all priorities of one are 0. It is a ``ValueError``.
        TypeError, ValueError, MemoryError
            As ``ReplayBuffer.sample``; or ``beta`` is no number of at least 0, or no buffer has
            priorities for it; or a schedule gives a number below 0, or all give 0; or the sampler
            of a buffer that is no ``PrioritizedReplayBuffer`` gives ``weights`` or ``indexes``; or
            one buffer gives a further column and another does not.

        Notes
        -----
        Cost: that of drawing the parts, and ten microseconds or so. Buffers write the rows of a
        large batch where they stay; those of a small one, and of ``out``, are copied once more,
        when all parts are drawn.

        A call that raises leaves ``out`` as it was. What can be known is checked before the first
        part is drawn, so that the generators of all buffers stay where they are, too; a sampler of
        your own that raises does so after those of earlier buffers have drawn.

        Examples
        --------
        >>> from cpprb_like import PrioritizedReplayBuffer, ReplayBuffer
        >>> from cpprb_like.buffers import Mixture
        >>> online = ReplayBuffer(10, {"x": {"shape": ()}}, seed=0)
        >>> demos = PrioritizedReplayBuffer(10, {"x": {"shape": ()}}, seed=1)
        >>> _ = online.add(x=[1, 2, 3]), demos.add(x=[4, 5, 6])
        >>> mixture = Mixture({"online": online, "demos": demos}, {"online": 1, "demos": 1}, seed=2)
        >>> batch = mixture.sample(4, beta=0.6, replace=False)
        >>> list(batch)
        ['x', 'source', 'weights', 'indexes']
        >>> (batch["x"] > 3).tolist(), batch["source"].tolist()
        ([False, False, True, True], [0, 0, 1, 1])
        """
        columns = self._first._columns(fields)
        n = self._first._check_batch_size(batch_size, columns)
        if beta is not None:
            check("beta", beta, 0)
            if self._weights_dtype is None:
                raise TypeError("beta: expected no value, for no buffer here has priorities")
        names = None if columns is None else [column.name for column in columns]
        to = None
        if out is not None:
            arrays = self._first._arrays_of(out, n, columns)
            to = dict(zip(names or self._first.schema.names, arrays, strict=True))
        ends = self._ends_of_shares()
        number = self._next_number()
        try:
            offset = int(number * 2**RANDOM_BITS) * ends[-1] >> RANDOM_BITS
            cuts = [(n * end + offset) // ends[-1] for end in ends]
            self._check_parts(cuts, beta, replace)
            batch = self._draw(cuts, names, to, beta=beta, replace=replace)
        except BaseException:
            self._numbers.append(number)
            raise
        self.draws += 1
        if out is None:
            return batch
        out.update(batch)
        return out

    def _next_number(self) -> float:
        """A random number from 0 to 1: that of a batch that could not be drawn, if there is one."""
        try:
            return self._numbers.pop()  # other threads may pop, too
        except IndexError:
            return float(self.rng.random())

    def _ends_of_shares(self) -> list[int]:
        """The sums of the shares of the buffers that hold rows: see ``_ends``."""
        shares = {
            name: share
            if isinstance(share, float)
            else value_at(share, self.draws, f"shares[{name!r}]", 0)
            for name, share in self._shares.items()
        }
        if not any(shares.values()):
            raise ValueError(f"shares: expected one above 0, got {shares} for batch {self.draws}")
        held = [share if len(self._buffers[name]) else 0.0 for name, share in shares.items()]
        if not any(held):
            empty = [name for name, share in shares.items() if share]
            raise NotEnoughDataError(f"cannot sample: buffers {empty} are empty")
        return _ends(tuple(held))

    def _check_parts(self, cuts: list[int], beta: float | Schedule | None, replace: bool) -> None:
        """Raise what drawing the parts would raise, as far as it is known, before any is drawn."""
        parts = {}
        for (name, buffer), (start, stop) in zip(
            self._buffers.items(), pairwise(cuts), strict=True
        ):
            if not replace and stop - start > len(buffer):
                raise NotEnoughDataError(
                    f"buffer {name!r}: cannot sample {stop - start} distinct rows: "
                    f"the buffer holds {len(buffer)}"
                )
            if stop > start:
                parts[name] = _columns_of(buffer)
                if isinstance(buffer.sampler, ByPriority):
                    buffer.sampler.check_draw(stop - start, replace=replace, beta=beta)
        _check_columns(parts)

    def _draw(
        self, cuts: list[int], names: list[str] | None, to: Batch | None, **options: Any
    ) -> Batch:
        """A batch that is parted at ``cuts``, of some fields or of all; those go into ``to``.

        What is given is written to when all parts are there, for drawing one may fail.
        """
        n, fields = cuts[-1], self._first.schema.fields
        if names is not None:
            fields = tuple(field for field in fields if field.name in names)
        in_place = to is None and n * sum(field.nbytes for field in fields) >= IN_PLACE_NBYTES
        batch: Batch = {}
        if to is None:
            batch = {field.name: np.empty((n, *field.shape), field.dtype) for field in fields}
        extra: Batch = {"source": np.empty(n, np.intp)}
        if self._weights_dtype is not None:
            extra["weights"] = np.empty(n, self._weights_dtype)
            extra["indexes"] = np.empty(n, np.int64)
        parts: list[tuple[int, int, Batch]] = []
        others = {}
        known = {*OWN_NAMES, *(field.name for field in fields)}
        for number, (name, (start, stop)) in enumerate(
            zip(self._buffers, pairwise(cuts), strict=True)
        ):
            if start == stop:
                continue
            views = None
            if in_place:
                views = {field: values[start:stop] for field, values in batch.items()}
            part = self._part(name, stop - start, names, views, **options)
            parts.append((start, stop, part))
            extra["source"][start:stop] = number
            if self._weights_dtype is not None:
                extra["weights"][start:stop] = part.get("weights", 1.0)
                index = part.get("indexes", 0) * len(self._buffers)
                extra["indexes"][start:stop] = index + number
            others[name] = {column: part[column] for column in part if column not in known}
        further = _join(others)
        if not in_place:
            for name, values in (batch if to is None else to).items():
                for start, stop, part in parts:
                    values[start:stop] = part[name]
        return batch | extra | further

    def _part(
        self,
        name: str,
        n: int,
        names: list[str] | None,
        out: Batch | None,
        *,
        beta: float | Schedule | None,
        replace: bool,
    ) -> Batch:
        """The rows of one buffer."""
        buffer = self._buffers[name]
        if isinstance(buffer, PrioritizedReplayBuffer):
            return buffer.sample(n, beta, replace=replace, out=out, fields=names)
        part = buffer.sample(n, replace=replace, out=out, fields=names)
        for column in ("weights", "indexes"):
            if column in part:
                raise ValueError(
                    f"buffer {name!r}: expected a PrioritizedReplayBuffer, because "
                    f"{buffer.sampler!r} gives {column}"
                )
        return part

    # ------------------------------------------------------------------ priorities

    def update_priorities(self, indexes: ArrayLike, priorities: ArrayLike) -> None:
        """Set the priorities of rows, each in the buffer that it was drawn from.

        Parameters
        ----------
        indexes : array_like of int, shape (n,)
            ``batch["indexes"]``, a part of it, or parts of several batches of this mixture, in any
            order. Of duplicates the last wins. Rows of buffers without priorities are passed over.
        priorities : array_like, shape (n,) or (n, 1)
            Finite, at least 0.

        Raises
        ------
        TypeError
            They are no integers, or no numbers.
        ValueError
            Not one priority for each index, or one that is negative, infinite or NaN, or too large
            for the sampler of its buffer.
        IndexError
            A row is not in its buffer. Whatever is raised, no priority has changed.

        Notes
        -----
        An index is ``index in its buffer * len(buffers) + source``. Cost: that of the buffers'
        updates.

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
        index, source = np.divmod(given, len(self._buffers))
        updates = []
        for number, (name, buffer) in enumerate(self._buffers.items()):
            if isinstance(buffer, PrioritizedReplayBuffer):
                places = np.flatnonzero(source == number)
                buffer.sampler.read_priorities(values[places])
                tagged = buffer.sampler.check_for_update
                wrong = places[without_row(buffer.ring, index[places], tagged)]
                if len(wrong):
                    raise IndexError(
                        f"indexes[{wrong[0]}]: expected that of a row of buffer {name!r}, which "
                        f"holds {len(buffer)}; got {given[wrong[0]]}"
                    )
                updates.append((name, buffer, places))
        for name, buffer, places in updates:
            _update(name, buffer, index[places], values[places])

    # ------------------------------------------------------------------ state

    @property
    def buffers(self) -> Mapping[str, ReplayBuffer]:
        """The buffers by name, in the order of ``source``."""
        return MappingProxyType(self._buffers)

    @property
    def shares(self) -> Mapping[str, float | Schedule]:
        """The shares by name, as given."""
        return MappingProxyType(self._shares)

    def __len__(self) -> int:
        """Rows that can be drawn, of all buffers."""
        return sum(len(buffer) for buffer in self._buffers.values())

    def __bool__(self) -> bool:
        """As a buffer, a mixture is a thing and not its rows: always true."""
        return True

    def __repr__(self) -> str:
        lines = [f"{type(self).__name__}(draws={self.draws})"]
        for number, (name, buffer) in enumerate(self._buffers.items()):
            kind = f"{type(buffer).__name__}(size={buffer.capacity}, stored={len(buffer)})"
            lines.append(f"  {number} {name!r}: {self._shares[name]!r} of {kind}")
        return "\n".join(lines)


def _read_buffers(buffers: object) -> dict[str, ReplayBuffer]:
    """The buffers, all of the same fields, or an error."""
    if not isinstance(buffers, Mapping):
        raise TypeError(f"buffers: expected a dict of buffers, got {type(buffers).__name__}")
    if not buffers:
        raise ValueError("buffers: expected at least one, got none")
    for name, buffer in buffers.items():
        if not isinstance(name, str):
            raise TypeError(f"buffers: expected names, got {name!r}")
        if not isinstance(buffer, ReplayBuffer):
            raise TypeError(
                f"buffers[{name!r}]: expected a ReplayBuffer, got {type(buffer).__name__}"
            )
    first, *others = buffers
    taken = [name for name in OWN_NAMES if name in buffers[first].schema.names]
    if taken:
        raise ValueError(f"buffers[{first!r}]: {taken} are names of columns of a mixture's batch")
    for other in others:
        _check_fields(first, buffers[first], other, buffers[other])
    for number, name in enumerate(others, 1):
        for earlier in list(buffers)[:number]:
            if buffers[name] is buffers[earlier]:
                raise ValueError(f"buffers[{name!r}] is the same buffer as buffers[{earlier!r}]")
    return dict(buffers)


def _check_fields(one: str, first: ReplayBuffer, two: str, second: ReplayBuffer) -> None:
    """Raise ``ValueError`` unless two buffers have the same fields, in whatever order."""
    mine, theirs = ({field.name: field for field in b.schema.fields} for b in (first, second))
    for name in [*mine, *theirs]:
        if name not in mine or name not in theirs:
            has, lacks = (one, two) if name in mine else (two, one)
            raise ValueError(f"field {name!r}: buffer {has!r} has it, buffer {lacks!r} has not")
        a, b = mine[name], theirs[name]
        if a != b:
            raise ValueError(
                f"field {name!r}: expected {a.dtype} of shape {a.shape} as in buffer {one!r}, "
                f"got {b.dtype} of shape {b.shape} in buffer {two!r}"
            )


def _read_shares(shares: object, names: list[str]) -> dict[str, float | Schedule]:
    """The shares, one for each name and in that order, or an error."""
    if not isinstance(shares, Mapping):
        raise TypeError(f"shares: expected a dict of shares, got {type(shares).__name__}")
    if set(shares) != set(names):
        raise ValueError(f"shares: expected one for each of {names}, got {list(shares)}")
    for name in names:
        check(f"shares[{name!r}]", shares[name], 0)
    if not any(callable(share) or share > 0 for share in shares.values()):
        raise ValueError(f"shares: expected one above 0, got {dict(shares)}")
    return {name: shares[name] if callable(shares[name]) else float(shares[name]) for name in names}


def _columns_of(buffer: ReplayBuffer) -> set[str]:
    """The further columns of a buffer's batches, as far as they are known without a batch."""
    columns = {"discount"} if buffer._nstep is not None and buffer._nstep.discount else set()
    if isinstance(buffer.sampler, ByPriority) and buffer.sampler.probabilities:
        columns.add("probabilities")
    return columns


def _check_columns(parts: Mapping[str, Collection[str]]) -> None:
    """Raise unless all parts of a batch have the same further columns."""
    for one, two in pairwise(parts):
        for column in {*parts[one]} ^ {*parts[two]}:
            has, lacks = (one, two) if column in parts[one] else (two, one)
            raise ValueError(f"column {column!r}: buffer {has!r} gives it, {lacks!r} does not")


def _join(parts: dict[str, Batch]) -> Batch:
    """The columns of the parts of a batch, which must be the same in each."""
    _check_columns(parts)
    names = next(iter(parts.values()), {})
    return {name: np.concatenate([part[name] for part in parts.values()]) for name in names}


@lru_cache(maxsize=64)
def _ends(shares: tuple[float, ...]) -> list[int]:
    """0 and the sums of the first shares, the first two, ..., in a unit that makes them whole.

    So counts of rows come from whole numbers, and are never off by the rounding of a sum of floats.
    A share is the number that its shortest decimal says: 1/10 for 0.1.
    """
    parts = [Fraction(repr(share)) for share in shares]
    unit = math.lcm(*(part.denominator for part in parts))
    return [0, *accumulate(part.numerator * (unit // part.denominator) for part in parts)]


def _update(
    name: str, buffer: PrioritizedReplayBuffer, index: NDArray[np.int64], values: NDArray[Any]
) -> None:
    """``buffer.update_priorities``, with the name of the buffer in an error."""
    try:
        buffer.update_priorities(index, values)
    except IndexError as error:
        raise IndexError(f"buffer {name!r}: {error}") from error
