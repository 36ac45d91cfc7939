"""``check_sampler``: tests that a sampler keeps the promises of ``samplers.Sampler``.

It does not know the distribution from which a sampler means to draw: that needs a test of its own.
"""

from __future__ import annotations

import io
import pickle
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpprb_like._core import Ring
from cpprb_like._store.episode_index import EpisodeIndex
from cpprb_like.buffers import ReplayBuffer
from cpprb_like.errors import NotEnoughDataError
from cpprb_like.samplers import Extra, Sampler, Slots
from cpprb_like.samplers._starts import Starts
from cpprb_like.typing import FieldSpec

__all__ = ["check_sampler"]

Draw = tuple[Slots, Extra]
Stages = Iterator[tuple[str, ReplayBuffer]]

FIELDS: dict[str, FieldSpec] = {
    "obs": {"shape": 2},
    "rew": {"shape": ()},
    "done": {"shape": (), "dtype": bool},
}

IN_FORM = "a draw returns a tuple of slots and a dict of columns"
OF_INTP = "slots are a C-contiguous array of intp, shape (n,)"
IN_USE = "slots are in use"
PRESENT = "absent rows are never drawn"
ELIGIBLE = "draw_starts returns starts only"
DISTINCT = "without replace no row comes twice"
ENOUGH = "n distinct rows are drawn where there are as many (else pass distinct=False)"
TOO_FEW = "NotEnoughDataError if n distinct rows are asked for and there are fewer"
COLUMNS = "extra columns are arrays of length n under names that are no fields"
FRESH = "arrays are fresh: no later draw writes to them, or comes from them"
RNG_ONLY = "what is random comes from rng only: the same rng and history give the same draw"
RING_ALONE = "the ring is only read"
UNMOVED = "a draw that raises leaves the sampler as it was"
PICKLED = "a sampler is pickled with its buffer, and the copy goes on with the same draws"
TOLD = "draw_state tells the attributes that a draw changes: with those from before, it is repeated"
WORKS = "a draw of n rows, n at least 0, works"


def check_sampler(
    make_sampler: Callable[[], Sampler], *, seed: int = 0, distinct: bool = True
) -> None:
    """Test that a sampler keeps the promises of ``samplers.Sampler``, on buffers of many kinds.

    Buffers of one environment or several: not full, full, wrapped around, cleared, of one row, with
    absent rows, and with deleted episodes. Batches of no row, one, all, and more than there are, by
    ``draw`` and by ``draw_starts`` for views of n-step returns and of sequences.

    Parameters
    ----------
    make_sampler : callable
        Returns a new sampler from each call, always with the same parameters.
    seed : int
        Seed of the generators that the sampler is given.
    distinct : bool
        Whether the sampler draws without replacement whenever there are enough rows. If false, it
        may refuse to with ``ValueError``, as ``Reverse`` has to, but for the empty batch. It must
        never draw a row twice when ``replace`` is false.

    Raises
    ------
    AssertionError
        A promise is broken. The message names it, the draw and the buffer.
    TypeError
        ``make_sampler`` is not callable.
    ValueError
        ``make_sampler`` gave the same object twice.

    Notes
    -----
    Not tested: that a sampler is random at all, and that it has no seeded generator of its own. The
    class of the sampler need not be importable, though pickling to another process requires that.

    Cost: less than a second for a sampler that draws in microseconds.

    Examples
    --------
    >>> from cpprb_like.samplers import LegacyUniform, Recency, Reverse
    >>> from cpprb_like.testing import check_sampler
    >>> check_sampler(lambda: Recency(least=3))
    >>> check_sampler(lambda: Reverse(3), distinct=False)
    >>> check_sampler(LegacyUniform)
    Traceback (most recent call last):
    AssertionError: LegacyUniform(), 3 rows of 7, draw(n=29, replace=True): what is random comes
    from rng only: the same rng and history give the same draw; it drew from the global generator
    of NumPy or of Python
    """
    if not callable(make_sampler):
        raise TypeError(f"make_sampler: expected a callable, got {make_sampler!r}")
    number = 0
    for history in HISTORIES:
        samplers = [make_sampler() for _ in range(4)]
        if len({id(sampler) for sampler in samplers}) < len(samplers):
            raise ValueError("make_sampler: expected a new sampler from each call, got one twice")
        for stages in zip(*map(history, samplers), strict=True):
            where, rb = stages[0]
            stage = _Stage(f"{rb.sampler!r}, {where}", [rb for _, rb in stages], distinct)
            for window in (None, *WINDOWS):
                if window is not None and window.rows * rb.n_envs > rb.ring.capacity:
                    continue
                for n, replace in _batches(len(_eligible(rb.ring, window))):
                    stage.draw(n, replace, [seed, number], window)
                    number += 1
            stage.end()


@dataclass(frozen=True)
class _Window:
    """What a view reads from each start on; see ``Starts``."""

    view: str
    rows: int
    least: int
    stride: int

    def starts(self, ring: Ring) -> Starts:
        """The rows at which it can start, by an object that has kept nothing yet."""
        return Starts(
            EpisodeIndex(ring), rows=self.rows, least=self.least, across=False, stride=self.stride
        )


WINDOWS = (_Window("NStep(3)", 3, 1, 1), _Window("Sequences(2, stride=2)", 2, 2, 2))


def _eligible(ring: Ring, window: _Window | None) -> Slots:
    """The slots that may be drawn: all rows, or the starts."""
    present = ring.present_slots()
    if window is None:
        return present
    eligible: Slots = present[window.starts(ring).tell(present) == 1]
    return eligible


class _Stage:
    """Four buffers of the same history, and a pickled copy, whose draws must be equal.

    The arrays that ``spoiled`` draws are overwritten; ``patient`` does not get the draws that
    ``rb`` refused.
    """

    def __init__(self, place: str, buffers: list[ReplayBuffer], distinct: bool) -> None:
        self.place = place
        self.distinct = distinct
        self.rb, self.twin, self.spoiled, self.patient = buffers
        self.copy = _pickled(self.rb, place)
        self.kept: list[tuple[str, Draw, Draw]] = []

    def draw(self, n: int, replace: bool, seed: list[int], window: _Window | None) -> None:
        """Draw from each buffer with equal generators, and compare."""
        method = "draw" if window is None else f"{window.view}: draw_starts"
        where = f"{self.place}, {method}(n={n}, replace={replace})"

        def attempt(rb: ReplayBuffer) -> Draw | None:
            rng = np.random.default_rng(seed)
            return _attempt(where, rb, n, replace, rng, self.distinct, window)

        before = self.rb.sampler.draw_state()
        drawn = attempt(self.rb)
        _expect_same(where, RNG_ONLY, drawn, attempt(self.twin))
        _expect_same(where, PICKLED, drawn, attempt(self.copy))
        spoiled = attempt(self.spoiled)
        _expect_same(where, FRESH, drawn, spoiled)
        if drawn is None or spoiled is None:
            if window is not None and type(self.rb.sampler).draw_starts is Sampler.draw_starts:
                attempt(self.patient)  # that one draws several times, and may give up after some
            return
        _expect_same(where, UNMOVED, drawn, attempt(self.patient))
        again = _pickled(self.rb, self.place)
        again.sampler.__dict__.update(before)
        _expect_same(where, TOLD, drawn, attempt(again))
        _overwrite(spoiled)
        self.kept.append((where, drawn, _copy(drawn)))

    def end(self) -> None:
        """Check that no earlier draw was written to."""
        for where, drawn, before in self.kept:
            _expect_same(where, FRESH, before, drawn)


def _attempt(
    where: str,
    rb: ReplayBuffer,
    n: int,
    replace: bool,
    rng: np.random.Generator,
    distinct: bool,
    window: _Window | None,
) -> Draw | None:
    """A draw that keeps all promises; None if the sampler may refuse it, and did."""
    ring, sampler = rb.ring, rb.sampler
    rows, globals_ = _picture(rb), _global_states()
    eligible = _eligible(ring, window)
    too_few = n > len(eligible) and not (replace and len(eligible))
    drawn: Draw | None = None
    try:
        if window is None:
            drawn = sampler.draw(ring, n, rng, replace=replace)
        else:
            drawn = sampler.draw_starts(window.starts(ring), n, rng, replace=replace)
    except Exception as error:
        if too_few or (window is not None and (replace or len(eligible) == 0)):
            permitted = isinstance(error, NotEnoughDataError)
        else:
            permitted = isinstance(error, ValueError) and not (distinct or replace or n == 0)
        if not permitted:
            promise = TOO_FEW if too_few else WORKS if replace or n == 0 else ENOUGH
            raise _broken(where, promise, f"it raised {type(error).__name__}: {error}") from error
    else:
        if too_few:
            raise _broken(where, TOO_FEW, f"there are {len(eligible)}, and it drew {drawn!r}")
        _check_form(where, ring, rb.schema.names, n, replace, drawn)
        others = np.setdiff1d(drawn[0], eligible)
        if len(others):
            raise _broken(where, ELIGIBLE, f"got slot {others[0]}")
    if _global_states() != globals_:
        raise _broken(where, RNG_ONLY, "it drew from the global generator of NumPy or of Python")
    if _picture(rb) != rows:
        raise _broken(where, RING_ALONE, "rows, flags or counts of the buffer have changed")
    return drawn


def _check_form(where: str, ring: Ring, fields: Any, n: int, replace: bool, drawn: Any) -> None:
    """Check types, shapes and slots of a draw."""
    if not (isinstance(drawn, tuple) and len(drawn) == 2 and isinstance(drawn[1], dict)):
        raise _broken(where, IN_FORM, f"it returned {drawn!r}")
    slots, extra = drawn
    if not (
        isinstance(slots, np.ndarray)
        and slots.dtype == np.intp
        and slots.shape == (n,)
        and slots.flags.c_contiguous
    ):
        raise _broken(where, OF_INTP, f"got {_kind(slots)}")
    outside = slots[(slots < 0) | (slots >= ring.stored)]
    if len(outside):
        raise _broken(where, IN_USE, f"in use are 0 to {ring.stored - 1}, got {outside[0]}")
    if ring.absent and ring.absent_at(slots).any():
        raise _broken(where, PRESENT, f"got slot {slots[ring.absent_at(slots)][0]}")
    if not replace and len(np.unique(slots)) < n:
        raise _broken(where, DISTINCT, f"got {slots.tolist()}")
    for name, column in extra.items():
        if name in fields:
            raise _broken(where, COLUMNS, f"{name!r} is a field")
        if not (isinstance(name, str) and isinstance(column, np.ndarray) and column.ndim):
            raise _broken(where, COLUMNS, f"got {_kind(column)} as {name!r}")
        if len(column) != n:
            raise _broken(where, COLUMNS, f"got length {len(column)} as {name!r}")


def _batches(rows: int) -> Iterator[tuple[int, bool]]:
    """Batch sizes for a buffer of so many rows that can be drawn, with and without replacement.

    A large batch comes first: two of them are not equal by chance.
    """
    for n in (3 * rows + 20, 0, 1, 3, rows, rows + 1):
        yield n, True
        yield n, False


def _expect_same(where: str, promise: str, one: Draw | None, other: Draw | None) -> None:
    """Raise unless two draws are equal to the last bit, or both were refused."""
    if one is None or other is None:
        if one is not other:
            raise _broken(where, promise, "one draw was refused and its twin was not")
        return
    if one[0].tolist() != other[0].tolist():
        raise _broken(where, promise, f"{one[0].tolist()} became {other[0].tolist()}")
    for name in [*one[1], *other[1]]:
        if _value(one[1].get(name)) != _value(other[1].get(name)):
            raise _broken(
                where, promise, f"{name!r}: {one[1].get(name)} became {other[1].get(name)}"
            )


def _broken(where: str, promise: str, found: str) -> AssertionError:
    return AssertionError(f"{where}: {promise}; {found}")


def _kind(value: object) -> str:
    """Type, dtype and shape of a value that should be an array, for a message."""
    if not isinstance(value, np.ndarray):
        return f"{type(value).__name__} {value!r}"
    order = "an" if value.flags.c_contiguous else "a strided"
    return f"{order} array of {value.dtype}, shape {value.shape}"


def _value(column: NDArray[Any] | None) -> object:
    """A value that is equal for equal columns, also where these have NaN."""
    if column is None or column.dtype.hasobject:
        return None if column is None else column.tolist()
    return column.dtype, column.shape, column.tobytes()


def _copy(drawn: Draw) -> Draw:
    slots, extra = drawn
    return slots.copy(), {name: column.copy() for name, column in extra.items()}


def _overwrite(drawn: Draw) -> None:
    """Write zeros into the arrays of a draw, as the caller may."""
    for array in (drawn[0], *drawn[1].values()):
        if array.flags.writeable:
            array[...] = np.zeros((), array.dtype)


def _global_states() -> bytes:
    """The states of the global generators of NumPy and Python."""
    return pickle.dumps((np.random.get_state(legacy=False), random.getstate()))


def _picture(rb: ReplayBuffer) -> tuple[object, ...]:
    """The values, flags and counts of the rows, which a sampler must not change."""
    ring = rb.ring
    rows = [np.asarray(column).tobytes() for column in rb.get_all_transitions().values()]
    return ring.written, ring.clears, ring.absent, ring.flags().tobytes(), rows


class _Pickler(pickle.Pickler):
    """Passes classes by reference, so that local classes of tests and notebooks work."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self.classes: list[type] = []

    def persistent_id(self, obj: object) -> int | None:
        if not isinstance(obj, type):
            return None
        self.classes.append(obj)
        return len(self.classes) - 1


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, classes: list[type]) -> None:
        super().__init__(file)
        self.classes = classes

    def persistent_load(self, number: int) -> type:
        return self.classes[number]


def _pickled(rb: ReplayBuffer, place: str) -> ReplayBuffer:
    """A copy of the buffer that went through pickle."""
    file = io.BytesIO()
    try:
        pickler = _Pickler(file)
        pickler.dump(rb)
        file.seek(0)
        copy: ReplayBuffer = _Unpickler(file, pickler.classes).load()
    except Exception as error:
        raise _broken(place, PICKLED, f"{type(error).__name__}: {error}") from error
    return copy


# ---- histories of buffers: the same each time, with a name for each stage ------------------------


def _add(rb: ReplayBuffer, rows: int, present: list[bool] | None = None) -> None:
    """Add numbered rows; every third ends an episode."""
    reward = np.arange(rows, dtype=np.float32) + rb.ring.written
    step = {"obs": np.stack([reward, -reward], axis=1), "rew": reward, "done": reward % 3 == 2}
    if present is None:
        rb.add(**step)
    else:
        rb.add_where(present, **step)


def _one_environment(sampler: Sampler) -> Stages:
    rb = ReplayBuffer(7, FIELDS, sampler=sampler, seed=0)
    for rows, where in [
        (3, "3 rows of 7"),
        (4, "full, 7 rows"),
        (2, "wrapped by 2 rows"),
        (1, "one row more"),
        (12, "all rows overwritten at once"),
    ]:
        _add(rb, rows)
        yield where, rb
    rb.clear()
    _add(rb, 2)
    yield "2 rows after clear", rb
    _add(rb, 8)
    yield "wrapped after clear", rb
    rb.clear()
    _add(rb, 10)
    yield "cleared and as many rows added at once", rb


def _one_row(sampler: Sampler) -> Stages:
    rb = ReplayBuffer(1, FIELDS, sampler=sampler, seed=0)
    _add(rb, 1)
    yield "capacity 1", rb
    _add(rb, 3)
    yield "capacity 1, wrapped", rb


def _three_environments(sampler: Sampler) -> Stages:
    rb = ReplayBuffer(12, FIELDS, n_envs=3, sampler=sampler, seed=0)
    for steps, where in [(1, "not full"), (3, "full"), (3, "wrapped")]:
        for _ in range(steps):
            _add(rb, 3)
        yield f"3 environments, {where}", rb


def _absent_rows(sampler: Sampler) -> Stages:
    rb = ReplayBuffer(10, FIELDS, n_envs=2, sampler=sampler, seed=0)
    for present, where in [
        ([True, False], "1 row and 1 absent"),
        ([True, True], "the oldest rows present and absent"),
        ([False, False], "the newest rows absent"),
        ([False, True], "most rows absent"),
        ([True, True], "full, with absent rows"),
        ([True, True], "wrapped, with absent rows"),
        ([False, False], "wrapped, the newest rows absent"),
        ([False, False], "more rows absent"),
        ([False, False], "the absent rows are the newest and most"),
        ([False, False], "2 rows between absent ones"),
    ]:
        _add(rb, 2, present)
        yield f"2 environments, {where}", rb
    for _ in range(5):
        _add(rb, 2, [True, True])
    yield "2 environments, no absent row left", rb


def _deleted_episodes(sampler: Sampler) -> Stages:
    rb = ReplayBuffer(20, FIELDS, sampler=sampler, seed=0)
    _add(rb, 25)
    for number in (3, 5):
        rb.episodes.delete(number)
        yield f"without episode {number}", rb
    _add(rb, 3)
    yield "without episodes, 3 rows more", rb


def _many_rows(sampler: Sampler) -> Stages:
    rb = ReplayBuffer(100, FIELDS, sampler=sampler, seed=0)
    for rows in (60, 60, 250):
        _add(rb, rows)
        yield f"{rb.ring.written} rows written to 100", rb


HISTORIES: tuple[Callable[[Sampler], Stages], ...] = (
    _one_environment,
    _one_row,
    _three_environments,
    _absent_rows,
    _deleted_episodes,
    _many_rows,
)
