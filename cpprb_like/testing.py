"""``check_sampler``: tests that a sampler keeps the promises of ``samplers.Sampler``.

It does not know the distribution from which a sampler means to draw: that needs a test of its own.
"""

from __future__ import annotations

import gc
import io
import pickle
import random
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from cpprb_like._core import Ring
from cpprb_like._rows.episode_index import EpisodeIndex
from cpprb_like._rows.row_handles import handles
from cpprb_like.buffers import PrioritizedReplayBuffer, ReplayBuffer
from cpprb_like.errors import NotEnoughDataError
from cpprb_like.samplers import Extra, PrioritySampler, Sampler, Slots
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
DECLARED = "columns are dtype and shape by name, and each draw has such columns"
ASKED = "check_draw raises nothing where a draw works"
ASIDE = "sync, check_draw, check_rows, row_weights and row_priorities change no draw"
HOOKED = "what a buffer calls when it is made, and when rows come and go, works"
NBYTES = "nbytes_for is a number of bytes"
KEEPS = "a sampler that keeps something for rows, in a file or not, says so by keeps_rows"
WEIGHED = "row_weights and row_priorities are None or float64 of shape (n,), at least 0"
SOUND = "check_rows finds nothing wrong with a buffer that is sound"
FILED = "open_in_file draws from a ring as open does; with maps_rows, what it keeps is in the file"
MOVED = "after move and open it draws rows that are there, with the priorities that they had"
PRIORITIES = "has_priorities is true of a PrioritySampler, and of no other"
INDEXES = "indexes are the slots, or with check_for_update the handles, of the drawn rows"
READ = "read_priorities gives float64 of shape (n,), and ValueError for what is negative or NaN"
GIVEN = "rows have the priorities that add and update_priorities were given"
NEWEST = "new rows have the priority that get_max_priority says"


def check_sampler(
    make_sampler: Callable[[], Sampler], *, seed: int = 0, distinct: bool = True
) -> None:
    """Test that a sampler keeps the promises of ``samplers.Sampler``, on buffers of many kinds.

    Buffers of one environment or several: not full, full, wrapped around, cleared, of one row, with
    absent rows, with deleted episodes, in a file, and saved for another capacity. Batches of no
    row, one, all, and more than there are, by ``draw`` and by ``draw_starts`` for views of n-step
    returns and of sequences. Every other hook of ``Sampler`` is tried too, and of
    ``PrioritySampler``, if it is one: on buffers whose rows were given priorities.

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

    Cost: some seconds, for a few thousand draws.

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
    one = make_sampler()
    _check_declared(f"{one!r}, as it is made", one)
    number = 0
    for history in (*(PRIORITY_HISTORIES if one.has_priorities else ()), *HISTORIES):
        samplers = [make_sampler() for _ in range(5)]
        if len({id(sampler) for sampler in (one, *samplers)}) <= len(samplers):
            raise ValueError("make_sampler: expected a new sampler from each call, got one twice")
        for stages in zip(*(_working(history, sampler) for sampler in samplers), strict=True):
            where, rb = stages[0]
            stage = _Stage(f"{rb.sampler!r}, {where}", [rb for _, rb in stages], distinct)
            for window in (None, *WINDOWS):
                if window is not None and window.rows * rb.n_envs > rb.ring.capacity:
                    continue
                for n, replace in _batches(len(_eligible(rb.ring, window))):
                    stage.draw(n, replace, [seed, number], window)
                    number += 1
            stage.end()
    _check_files(make_sampler)
    _check_move(make_sampler)


def _check_declared(where: str, sampler: Sampler) -> None:
    """What a sampler says of itself, before it has rows."""
    if sampler.has_priorities is not isinstance(sampler, PrioritySampler):
        raise _broken(where, PRIORITIES, f"got {sampler.has_priorities}")
    if sampler.maps_rows and not sampler.keeps_rows:
        raise _broken(where, KEEPS, "maps_rows is true, and keeps_rows is not")
    nbytes: object = sampler.nbytes_for(100)
    if not isinstance(nbytes, int) or nbytes < 0:
        raise _broken(where, NBYTES, f"of 100 rows it is {nbytes!r}")
    columns: object = sampler.columns
    if not isinstance(columns, Mapping):
        raise _broken(where, DECLARED, f"got {columns!r}")


def _working(history: Callable[[Sampler], Stages], sampler: Sampler) -> Stages:
    """The stages of a history; what a hook raises meanwhile is a broken promise."""
    where, stages = "as it is made", history(sampler)
    while True:
        try:
            stage = next(stages, None)
        except AssertionError:
            raise
        except Exception as error:
            found = f"it raised {type(error).__name__}: {error}"
            raise _broken(f"{sampler!r}, after: {where}", HOOKED, found) from error
        if stage is None:
            return
        where = stage[0]
        yield stage


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
    """Five buffers of the same history, and a pickled copy, whose draws must be equal.

    The arrays that ``spoiled`` draws are overwritten; ``patient`` does not get the draws that
    ``rb`` refused; ``asked`` is asked by all other hooks between the draws.
    """

    def __init__(self, place: str, buffers: list[ReplayBuffer], distinct: bool) -> None:
        self.place = place
        self.distinct = distinct
        self.rb, self.twin, self.spoiled, self.patient, self.asked = buffers
        self.copy = _pickled(self.rb, place)
        self.earlier: list[tuple[str, Draw, Draw]] = []

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
        if window is None:
            _check_asked(where, self.asked.sampler, n, replace, drawn)
        _expect_same(where, ASIDE, drawn, attempt(self.asked))
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
        self.earlier.append((where, drawn, _copy(drawn)))

    def end(self) -> None:
        """Check that no earlier draw was written to, and what is kept for the rows."""
        for where, drawn, before in self.earlier:
            _expect_same(where, FRESH, before, drawn)
        _check_kept(self.place, self.asked)


def _check_asked(where: str, sampler: Sampler, n: int, replace: bool, drawn: Draw | None) -> None:
    """``check_draw`` refuses no draw that works; ``sync`` works at any time."""
    sampler.sync()
    try:
        sampler.check_draw(n, replace=replace)
    except Exception as error:
        if drawn is not None:
            found = f"it raised {type(error).__name__}: {error}"
            raise _broken(where, ASKED, found) from error


def _check_kept(where: str, rb: ReplayBuffer) -> None:
    """What a sampler keeps for rows is of the right kind, and sound."""
    sampler, slots = rb.sampler, rb.ring.present_slots()
    values: Any
    for name, values in _kept_for(sampler, slots).items():
        if values is None:
            continue
        if not sampler.keeps_rows:
            raise _broken(where, KEEPS, f"{name} is {_kind(values)}")
        is_array = isinstance(values, np.ndarray) and values.dtype == np.float64
        if not is_array or values.shape != slots.shape or not (values >= 0).all():
            raise _broken(where, WEIGHED, f"{name} is {_kind(values)}: {values!r}")
    try:
        rb.check()
    except AssertionError as error:
        raise _broken(where, SOUND, f"it raised {error}") from error


def _kept_for(sampler: Sampler, slots: Slots) -> dict[str, NDArray[np.float64] | None]:
    """What a sampler keeps for the rows in these slots, by the names of its hooks."""
    return {
        "row_weights": sampler.row_weights(slots),
        "row_priorities": sampler.row_priorities(slots),
    }


# ---- in a file, and in another ring --------------------------------------------------------------


def _check_files(make_sampler: Callable[[], Sampler]) -> None:
    """In a file a sampler draws as on the heap; what it keeps there is there again."""
    heap, sampler = _filled(make_sampler(), 7), make_sampler()
    where = f"{sampler!r}, in a file"
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        try:
            rb = _filled(sampler, 7, mmap_prefix=Path(folder) / "rows")
        except Exception as error:
            found = f"it raised {type(error).__name__}: {error}"
            raise _broken(where, HOOKED, found) from error
        drawn = [
            _attempt(where, one, 20, True, np.random.default_rng(0), True, None)
            for one in (heap, rb)
        ]
        _expect_same(where, FILED, *drawn)
        if not sampler.maps_rows:
            return
        slots = rb.ring.present_slots()
        before = _kept_for(sampler, slots)
        del rb, sampler
        gc.collect()  # so that the file is free to be opened again
        again = _buffer(make_sampler(), 7, mmap_prefix=Path(folder) / "rows", mmap_mode="r+")
        # What rows weigh may follow from the draws, as that of ranks does; priorities do not.
        name = "row_weights" if before["row_priorities"] is None else "row_priorities"
        after = _kept_for(again.sampler, slots)[name]
        if _value(after) != _value(before[name]):
            raise _broken(where, FILED, f"{name}: {before[name]} became {after}")
        del again
        gc.collect()


def _check_move(make_sampler: Callable[[], Sampler]) -> None:
    """Over a ring of another capacity a sampler goes on with what it kept for the rows there."""
    rb, smaller = _filled(make_sampler(), 7), _filled(None, 5)
    ring, where = smaller.ring, f"{rb.sampler!r}, moved from 7 slots to 5"
    slots = (ring.row_ids(np.arange(5)) % 7).astype(np.intp)
    slots[ring.absent_at(np.arange(5))] = -1
    there = slots[slots >= 0]
    before = rb.sampler.row_priorities(there)
    moved: Sampler = _through_pickle(rb.sampler, where)
    try:
        moved.move(slots, ring)
        moved.open(ring)
        drawn = moved.draw(ring, 20, np.random.default_rng(0), replace=True)
    except Exception as error:
        raise _broken(where, MOVED, f"it raised {type(error).__name__}: {error}") from error
    _check_form(where, ring, smaller.schema.names, 20, True, drawn)
    _check_columns(where, moved, ring, 20, drawn)
    after = moved.row_priorities(np.flatnonzero(slots >= 0))
    if before is not None and (after is None or not np.allclose(before, after)):
        raise _broken(where, MOVED, f"{before} became {after}")


def _filled(sampler: Sampler | None, capacity: int, **options: Any) -> ReplayBuffer:
    """A buffer around which rows have gone, with an absent one, and with priorities if it can."""
    rb = _buffer(sampler, capacity, **options)
    for number in range(9):
        priorities = {"priorities": float(number % 4)} if rb.has_priorities else {}
        _add(rb, 1, [number != 6], **priorities)
    return rb


def _buffer(sampler: Sampler | None, capacity: int, **options: Any) -> ReplayBuffer:
    """A buffer of the class that a sampler is for."""
    make: Any = ReplayBuffer
    if sampler is not None and sampler.has_priorities:
        make = PrioritizedReplayBuffer
    made: ReplayBuffer = make(capacity, FIELDS, sampler=sampler, seed=0, **options)
    return made


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
        _check_columns(where, sampler, ring, n, drawn)
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


def _check_columns(where: str, sampler: Sampler, ring: Ring, n: int, drawn: Draw) -> None:
    """Check the columns that a sampler declares."""
    slots, extra = drawn
    for name, (dtype, shape) in sampler.columns.items():
        if name not in extra:
            raise _broken(where, DECLARED, f"{name!r} is not there")
        column = extra[name]
        if column.dtype != dtype or column.shape != (n, *shape):
            found = f"expected {dtype}, shape {(n, *shape)}, got {_kind(column)}"
            raise _broken(where, DECLARED, f"{name!r}: {found}")
    if isinstance(sampler, PrioritySampler):
        expected = _names(sampler, ring, slots)
        if not np.array_equal(extra["indexes"], expected):
            raise _broken(where, INDEXES, f"expected {expected}, got {extra['indexes']}")


def _names(sampler: PrioritySampler, ring: Ring, slots: Slots) -> NDArray[np.int64]:
    """What names the rows in these slots for ``update_priorities``."""
    return handles(ring, slots) if sampler.check_for_update else slots.astype(np.int64)


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


def _global_states() -> tuple[object, ...]:
    """The states of the global generators of NumPy and Python."""
    return pickle.dumps(np.random.get_state(legacy=False)), random.getstate()


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
    return cast("ReplayBuffer", _through_pickle(rb, place))


def _through_pickle(one: Any, place: str) -> Any:
    file = io.BytesIO()
    try:
        pickler = _Pickler(file)
        pickler.dump(one)
        file.seek(0)
        return _Unpickler(file, pickler.classes).load()
    except Exception as error:
        raise _broken(place, PICKLED, f"{type(error).__name__}: {error}") from error


# ---- histories of buffers: the same each time, with a name for each stage ------------------------


def _add(rb: ReplayBuffer, rows: int, present: list[bool] | None = None, **others: Any) -> None:
    """Add numbered rows; every third ends an episode."""
    reward = np.arange(rows, dtype=np.float32) + rb.ring.written
    step = {"obs": np.stack([reward, -reward], axis=1), "rew": reward, "done": reward % 3 == 2}
    if present is None:
        rb.add(**step, **others)
    else:
        rb.add_where(present, **step, **others)


def _one_environment(sampler: Sampler) -> Stages:
    rb = _buffer(sampler, 7)
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
    rb = _buffer(sampler, 1)
    _add(rb, 1)
    yield "capacity 1", rb
    _add(rb, 3)
    yield "capacity 1, wrapped", rb


def _three_environments(sampler: Sampler) -> Stages:
    rb = _buffer(sampler, 12, n_envs=3)
    for steps, where in [(1, "not full"), (3, "full"), (3, "wrapped")]:
        for _ in range(steps):
            _add(rb, 3)
        yield f"3 environments, {where}", rb


def _absent_rows(sampler: Sampler) -> Stages:
    rb = _buffer(sampler, 10, n_envs=2)
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
    rb = _buffer(sampler, 20)
    _add(rb, 25)
    for number in (3, 5):
        rb.episodes.delete(number)
        yield f"without episode {number}", rb
    _add(rb, 3)
    yield "without episodes, 3 rows more", rb


def _many_rows(sampler: Sampler) -> Stages:
    rb = _buffer(sampler, 100)
    for rows in (60, 60, 250):
        _add(rb, rows)
        yield f"{rb.ring.written} rows written to 100", rb


def _given_priorities(sampler: Sampler) -> Stages:
    rb = _buffer(sampler, 20)
    assert isinstance(sampler, PrioritySampler)
    where = f"{sampler!r}, of rows with priorities"
    _check_reading(where, sampler)
    _add(rb, 5, priorities=[1.0, 2.0, 0.5, 0.0, 4.0])
    _expect_priorities(where, GIVEN, rb, np.arange(5), [1.0, 2.0, 0.5, 0.0, 4.0])
    yield "5 rows with priorities", rb
    slots = np.array([3, 0, 3], np.intp)
    rb.update_priorities(_names(sampler, rb.ring, slots), [9.0, 3.0, 2.5])
    _expect_priorities(where, GIVEN, rb, np.arange(5), [3.0, 2.0, 0.5, 2.5, 4.0])
    yield "priorities updated, one of them twice", rb
    greatest = sampler.get_max_priority()
    _add(rb, 20)
    _expect_priorities(where, NEWEST, rb, rb.ring.newest_slots(20), [greatest] * 20)
    yield "all rows overwritten by rows without priorities", rb


def _check_reading(where: str, sampler: PrioritySampler) -> None:
    """Priorities are read as an array, or refused."""
    read = sampler.read_priorities([1, 0.5])
    if _value(read) != _value(np.array([1, 0.5])):
        raise _broken(where, READ, f"[1, 0.5] became {read!r}")
    for wrong in (-1.0, np.nan):
        try:
            read = sampler.read_priorities([1.0, wrong])
        except ValueError:
            continue
        raise _broken(where, READ, f"{[1.0, wrong]} became {read!r}")


def _expect_priorities(
    where: str, promise: str, rb: ReplayBuffer, slots: NDArray[Any], expected: list[float]
) -> None:
    """Rows have these priorities, as far as the sampler tells."""
    found = rb.sampler.row_priorities(slots.astype(np.intp))
    if found is not None and not np.allclose(found, expected):
        raise _broken(where, promise, f"expected {expected}, got {found.tolist()}")


HISTORIES: tuple[Callable[[Sampler], Stages], ...] = (
    _one_environment,
    _one_row,
    _three_environments,
    _absent_rows,
    _deleted_episodes,
    _many_rows,
)

PRIORITY_HISTORIES = (_given_priorities,)
