"""``check_sampler``, ``check_layer``, ``check_rule``: tests of what your own parts promise.

The distribution of a sampler, and the values of a layer or rule, need separate tests.
"""

from __future__ import annotations

import copy
import gc
import pickle
import random
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from cpprb_like._core import Ring
from cpprb_like._fields.axes import axes_of
from cpprb_like._fields.field import Field
from cpprb_like._fields.schema import ColumnSpec, read_env_dict
from cpprb_like._rows.episode_index import EpisodeIndex
from cpprb_like._rows.row_handles import find_rows, handles, public_slots
from cpprb_like.buffers import PrioritizedReplayBuffer, ReplayBuffer, View
from cpprb_like.errors import NotEnoughDataError
from cpprb_like.samplers import Extra, PrioritySampler, Sampler, Slots
from cpprb_like.samplers._rules import Rules, as_masses, defines
from cpprb_like.samplers._starts import Starts
from cpprb_like.typing import FieldSpec
from cpprb_like.views import Layer, Rule, Windows
from cpprb_like.views._windows import WalkedRows

__all__ = ["check_layer", "check_rule", "check_sampler"]

MOST_ITEMS = 5  # rows of ``check_layer`` have fewer items on each axis
Draw = tuple[Slots, Extra]
Stages = Iterator[tuple[str, ReplayBuffer]]
History = tuple[int, int, list[list[Any]]]

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
TOO_FEW = "NotEnoughDataError if n distinct rows are requested and there are fewer"
COLUMNS = "extra columns are arrays of length n under names that are no fields"
FRESH = "arrays are fresh: no later draw writes to them, or comes from them"
FROM_GLOBAL = "it drew from the global generator of NumPy or of Python"
RNG_ONLY = "what is random comes from rng only: the same rng and history give the same draw"
RING_ALONE = "the ring is only read"
UNMOVED = "a draw that raises leaves the sampler as it was"
COPIED = "a sampler is copied with its buffer, and the copy goes on with the same draws"
STATED = "draw_state has the attributes that a draw changes: with those from before, it is repeated"
WORKS = "a draw of n rows, n at least 0, works"
DECLARED = "columns are dtype and shape by name, and each draw has such columns"
CHECKED = "check_draw raises nothing where a draw works"
ASIDE = "check_draw, check_rows, row_weights and row_priorities change no draw"
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

    The test uses buffers of one environment or several: partly filled, full, wrapped around,
    cleared, of one row, with absent rows, with deleted episodes, in a file, and loaded into another
    capacity. It draws batches of zero rows, of one, of all, and of more than the buffer has. It
    calls ``draw``, and ``draw_starts`` for views of n-step returns and of sequences. It calls every
    other hook of ``Sampler`` too. The hooks of a ``PrioritySampler`` are called on buffers whose
    rows were given priorities.

    Parameters
    ----------
    make_sampler : callable
        Function that returns a new sampler from each call, always with the same parameters.
    seed : int
        Seed of the generators passed to the sampler.
    distinct : bool
        Whether the sampler draws without replacement whenever there are enough rows. If false, the
        sampler may raise ``ValueError`` for ``replace=False``, as ``Reverse`` has to, but not for
        an empty batch. With ``replace=False`` the sampler must never draw a row twice.

    Raises
    ------
    AssertionError
        A promise is broken. The message names the promise, the draw and the buffer.
    TypeError
        ``make_sampler`` is not callable.
    ValueError
        ``make_sampler`` returned the same object twice.

    Notes
    -----
    The test does not check that a sampler is random, or that it has no separate seeded generator.
    Nor does it check that the class and functions can be imported, as pickling requires.

    Cost: some seconds, for a few thousand draws.

    Examples
    --------
    >>> from cpprb_like.samplers import LegacyUniform, Recency, Reverse
    >>> from cpprb_like.testing import check_sampler
    >>> check_sampler(lambda: Recency(least=3))
    >>> check_sampler(lambda: Reverse(3), distinct=False)
    >>> check_sampler(LegacyUniform)
    Traceback (most recent call last):
    AssertionError: LegacyUniform(), 3 rows of 7, 3 written, draw(n=29, replace=True): what is
    random comes from rng only: the same rng and history give the same draw; it drew from the
    global generator of NumPy or of Python
    """
    if not callable(make_sampler):
        raise TypeError(f"make_sampler: expected a callable, got {make_sampler!r}")
    one = make_sampler()
    _check_declared(f"{one!r}, as it is made", one)
    number = 0
    histories: list[Callable[[Sampler], Stages]] = [partial(_stages, *one) for one in HISTORIES]
    if one.has_priorities:
        histories.insert(0, _given_priorities)
    for history in histories:
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
    """Check the declarations of a sampler that has no rows."""
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
    """Iterate over the stages of a history; an exception of a hook breaks a promise."""
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
    """Window that a view reads from each start on; see ``Starts``."""

    view: str
    rows: int
    least: int
    stride: int

    def starts(self, ring: Ring) -> Starts:
        """The rows at which the window can start, as a new object without state."""
        return Starts(
            EpisodeIndex(ring), rows=self.rows, least=self.least, across=False, stride=self.stride
        )


WINDOWS = (_Window("NStep(3)", 3, 1, 1), _Window("Sequences(2, stride=2)", 2, 2, 2))


def _eligible(ring: Ring, window: _Window | None) -> Slots:
    """Slots that a draw may return: all rows, or the starts of a window."""
    present = ring.present_slots()
    if window is None:
        return present
    eligible: Slots = present[window.starts(ring).tell(present) == 1]
    return eligible


class _Stage:
    """Five buffers with the same history, and a pickled copy, which must all give equal draws.

    Arrays drawn from ``spoiled`` are overwritten. ``patient`` skips the draws that ``rb`` refused.
    All other hooks are called on ``probed`` between the draws.
    """

    def __init__(self, place: str, buffers: list[ReplayBuffer], distinct: bool) -> None:
        self.place = place
        self.distinct = distinct
        self.rb, self.twin, self.spoiled, self.patient, self.probed = buffers
        self.copy = _copied(self.rb, place)
        self.earlier: list[tuple[str, Draw, Draw]] = []

    def draw(self, n: int, replace: bool, seed: list[int], window: _Window | None) -> None:
        """Draw from each buffer with equal generators; raise if two draws differ."""
        method = "draw" if window is None else f"{window.view}: draw_starts"
        where = f"{self.place}, {method}(n={n}, replace={replace})"

        def attempt(rb: ReplayBuffer) -> Draw | None:
            rng = np.random.default_rng(seed)
            return _attempt(where, rb, n, replace, rng, self.distinct, window)

        before, globals_ = self.rb.sampler.draw_state(), _global_states()
        drawn = attempt(self.rb)
        if _global_states() != globals_:
            raise _broken(where, RNG_ONLY, FROM_GLOBAL)
        _expect_same(where, RNG_ONLY, drawn, attempt(self.twin))
        _expect_same(where, COPIED, drawn, attempt(self.copy))
        if window is None:
            _check_probed(where, self.probed.sampler, n, replace, drawn)
        _expect_same(where, ASIDE, drawn, attempt(self.probed))
        spoiled = attempt(self.spoiled)
        _expect_same(where, FRESH, drawn, spoiled)
        if drawn is None or spoiled is None:
            if window is not None and type(self.rb.sampler).draw_starts is Sampler.draw_starts:
                attempt(self.patient)  # ``rb`` may have drawn several times before it gave up
            return
        _expect_same(where, UNMOVED, drawn, attempt(self.patient))
        again = _copied(self.rb, self.place)
        again.sampler.__dict__.update(before)
        _expect_same(where, STATED, drawn, attempt(again))
        for array in (spoiled[0], *spoiled[1].values()):  # as a caller may do
            if array.flags.writeable:
                array[...] = np.zeros((), array.dtype)
        self.earlier.append((where, drawn, _copy(drawn)))

    def end(self) -> None:
        """Check that no earlier draw was changed, and that the state by row is sound."""
        for where, drawn, before in self.earlier:
            _expect_same(where, FRESH, before, drawn)
        _check_state(self.place, self.probed)


def _check_probed(where: str, sampler: Sampler, n: int, replace: bool, drawn: Draw | None) -> None:
    """``check_draw`` refuses no draw that works."""
    try:
        sampler.check_draw(n, replace=replace)
    except Exception as error:
        if drawn is not None:
            found = f"it raised {type(error).__name__}: {error}"
            raise _broken(where, CHECKED, found) from error


def _check_state(where: str, rb: ReplayBuffer) -> None:
    """Check dtype, shape and soundness of the state by row of a sampler."""
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
    """Results of the hooks of a sampler for the rows in these slots, by name of the hook."""
    return {
        "row_weights": sampler.row_weights(slots),
        "row_priorities": sampler.row_priorities(slots),
    }


# ---- in a file, and in another ring --------------------------------------------------------------


def _check_files(make_sampler: Callable[[], Sampler]) -> None:
    """Check that in a file a sampler draws like on the heap, and restores its state."""
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
        gc.collect()  # closes the file, which is opened again
        again = _buffer(make_sampler(), 7, mmap_prefix=Path(folder) / "rows", mmap_mode="r+")
        # Weights may depend on earlier draws, such as those of ranks; priorities do not.
        name = "row_weights" if before["row_priorities"] is None else "row_priorities"
        after = _kept_for(again.sampler, slots)[name]
        if _value(after) != _value(before[name]):
            raise _broken(where, FILED, f"{name}: {before[name]} became {after}")
        del again
        gc.collect()


def _check_move(make_sampler: Callable[[], Sampler]) -> None:
    """Check that a sampler keeps its state of the rows in a ring of another capacity."""
    rb, smaller = _filled(make_sampler(), 7), _filled(None, 5)
    ring, where = smaller.ring, f"{rb.sampler!r}, moved from 7 slots to 5"
    slots = (ring.row_ids(np.arange(5)) % 7).astype(np.intp)
    slots[ring.absent_at(np.arange(5))] = -1
    there = slots[slots >= 0]
    before = rb.sampler.row_priorities(there)
    moved: Sampler = _copied(rb.sampler, where)
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
    """A buffer that has wrapped, with an absent row, and with priorities if it has them."""
    rb = _buffer(sampler, capacity, **options)
    for number in range(9):
        priorities = {"priorities": float(number % 4)} if rb.has_priorities else {}
        _add(rb, 1, [number != 6], **priorities)
    return rb


def _buffer(sampler: Sampler | None, capacity: int, **options: Any) -> ReplayBuffer:
    """A buffer of the class that fits a sampler."""
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
    """Draw and check the result; None if the sampler rightly refuses."""
    ring, sampler = rb.ring, rb.sampler
    rows = _picture(rb)
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
    """The ``indexes`` of the rows in these slots."""
    return handles(ring, slots) if sampler.check_for_update else slots.astype(np.int64)


def _batches(rows: int) -> Iterator[tuple[int, bool]]:
    """Batch sizes to test, with and without replacement, for a buffer of ``rows`` rows.

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
    """Type, dtype and shape of a value, for a message."""
    if not isinstance(value, np.ndarray):
        return f"{type(value).__name__} {value!r}"
    order = "an" if value.flags.c_contiguous else "a strided"
    return f"{order} array of {value.dtype}, shape {value.shape}"


def _agree(one: NDArray[Any], other: NDArray[Any]) -> bool:
    """Whether values are equal up to rounding, as sums of floats depend on their order."""
    if one.dtype.kind in "fc":
        rtol = 64 * float(np.finfo(one.dtype).eps)
        return np.allclose(one, other, rtol=rtol, atol=rtol, equal_nan=True)
    return bool(_value(one) == _value(other))


def _value(column: NDArray[Any] | None) -> object:
    """A value to compare columns by, equal for two NaN of the same bits."""
    if column is None:
        return None
    if column.dtype.hasobject:  # objects, texts, or an array for each row
        return [_value(one) if isinstance(one, np.ndarray) else one for one in column.tolist()]
    return column.dtype, column.shape, column.tobytes()


def _copy(drawn: Draw) -> Draw:
    slots, extra = drawn
    return slots.copy(), {name: column.copy() for name, column in extra.items()}


def _global_states() -> tuple[object, ...]:
    """The states of the global generators of NumPy and Python."""
    return pickle.dumps(np.random.get_state(legacy=False)), random.getstate()


def _picture(rb: ReplayBuffer) -> tuple[object, ...]:
    """Values, flags and counts of the rows, which a sampler must not change."""
    ring = rb.ring
    rows = [_value(np.asarray(column)) for column in rb.get_all_transitions().values()]
    return ring.written, ring.clears, ring.absent, ring.flags().tobytes(), rows


def _copied(one: Any, place: str) -> Any:
    """A copy by ``__reduce_ex__``, like a pickle; the class need not be importable."""
    try:
        return copy.deepcopy(one)
    except Exception as error:
        raise _broken(place, COPIED, f"{type(error).__name__}: {error}") from error


# ---- histories of buffers: the same each time, with a name for each stage ------------------------


def _add(rb: ReplayBuffer, rows: int, present: list[bool] | None = None, **others: Any) -> None:
    """Add numbered rows; every third ends an episode."""
    reward = np.arange(rows, dtype=np.float32) + rb.ring.written
    step = {"obs": np.stack([reward, -reward], axis=1), "rew": reward, "done": reward % 3 == 2}
    if present is None:
        rb.add(**step, **others)
    else:
        rb.add_where(present, **step, **others)


# Capacity and environments of a buffer; then the actions before each stage. A number adds that many
# rows, bools add a time step in which some environments have a step, None clears, and a digit in
# quotes deletes the episode of that number.
ONE, OTHER, BOTH, NEITHER = (True, False), (False, True), (True, True), (False, False)
HISTORIES: tuple[History, ...] = (
    (7, 1, [[3], [4], [2], [1], [12], [None, 2], [8], [None, 10]]),
    (1, 1, [[1], [3]]),
    (12, 3, [[3], [3, 3, 3], [3, 3, 3]]),
    (10, 2, [[ONE], [BOTH], [NEITHER], [OTHER], [BOTH], [BOTH], *([NEITHER],) * 4, [2] * 5]),
    (20, 1, [[25, "3"], ["5"], [3]]),
    (100, 1, [[60], [60], [250]]),
)


def _stages(capacity: int, n_envs: int, stages: list[list[Any]], sampler: Sampler) -> Stages:
    rb = _buffer(sampler, capacity, n_envs=n_envs)
    for actions in stages:
        for action in actions:
            if action is None:
                rb.clear()
            elif isinstance(action, str):
                rb.episodes.delete(int(action))
            elif isinstance(action, tuple):
                _add(rb, n_envs, list(action))
            else:
                _add(rb, action)
        envs = f"{n_envs} environments, " if n_envs > 1 else ""
        absent = f", {rb.ring.absent} absent" if rb.ring.absent else ""
        yield f"{envs}{len(rb)} rows of {capacity}{absent}, {rb.ring.written} written", rb


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
    """Check that ``prepare`` reads priorities, and refuses wrong ones."""
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
    """Check the priorities of rows, if the sampler returns any."""
    found = rb.sampler.row_priorities(slots.astype(np.intp))
    if found is not None and not np.allclose(found, expected):
        raise _broken(where, promise, f"expected {expected}, got {found.tolist()}")


# ---- layers -------------------------------------------------------------------------------------

READS = "fill reads the fields that reads names, and no others"
MADE = "fill gives an array of n rows for each wanted column, for any n, also 0"
OWN_ARRAYS = "fill gives arrays of its own, to which no later batch is written"
LOOKS_ONLY = "fill changes neither the layer nor what it is given"
BY_WINDOW = "the value of a row follows from the rows of its window alone"
LAYER_COPIED = "a layer is copied with its view, and the copy reads the same"
NO_RANDOM = "what is random comes from windows.rng"
CHANGED = "a layer changes only the fields that columns or changes names"


def check_layer(
    make_layer: Callable[[], Layer],
    fields: Mapping[str, FieldSpec] | None = None,
    *,
    next_of: str | None = None,
    seed: int = 0,
) -> None:
    """Test that a layer keeps the promises of ``views.Layer``, on random buffers of many kinds.

    The test uses buffers of one environment or three: partly filled, wrapped around, cleared, with
    absent rows, and copied. Their episodes are terminated, truncated, ended by ``on_episode_end``
    or deleted. The test reads rows alone, and in batches of any size and order.

    Parameters
    ----------
    make_layer : callable
        Function that returns a new layer from each call, always with the same parameters. The layer
        may need at most 8 rows before and behind each row.
    fields : dict of FieldSpec, optional
        Fields of the buffers. They must be numbers, which the test draws at random, or texts. An
        axis such as ``"T"`` gets 1 to 4 items. A field of one
        bool named ``done``, ``terminated`` or ``truncated`` ends episodes. By default ``obs`` of 2
        numbers, ``rew`` and ``done``.
    next_of : str, optional
        Field whose next value is a field too, as for ``ReplayBuffer``.
    seed : int
        Seed of the buffers.

    Raises
    ------
    AssertionError
        A promise is broken. The message names the promise and the buffer.
    TypeError, ValueError
        ``make_layer`` is not callable or returns no layer, or the layer does not fit the fields.

    Notes
    -----
    The test cannot know whether the values of the layer are correct. They need a separate test.

    Cost: some seconds.

    Examples
    --------
    >>> import numpy as np
    >>> from cpprb_like.testing import check_layer
    >>> from cpprb_like.views import FrameStacks, Layer
    >>> check_layer(lambda: FrameStacks({"obs": 3}))
    >>> class Rank(Layer):
    ...     def columns(self, fields):
    ...         return {"rank": (np.int64, ())}
    ...     def fill(self, windows, wanted):
    ...         return {"rank": np.arange(len(windows))}
    >>> check_layer(Rank)
    Traceback (most recent call last):
    AssertionError: Rank(), 5 rows: the value of a row follows from the rows of its window alone;
    'rank' of slot 1 is 1 in a batch, and 0 alone
    """
    if not callable(make_layer):
        raise TypeError(f"make_layer: expected a callable, got {make_layer!r}")
    if not isinstance(make_layer(), Layer):
        raise TypeError(f"make_layer: expected a callable that makes a Layer, got {make_layer()!r}")
    for n_envs in (1, 3):
        history = _LayerHistory(dict(FIELDS if fields is None else fields), n_envs, next_of, seed)
        for where in history.stages():
            _LayerStage(make_layer, history.rb, where).check()


MASSES = "masses works, and gives bools or finite numbers of at least 0"
BY_ROW = "the mass of a row follows from its values, unless the rule defines moved"
FOLLOWED = "the masses of rows that were followed are those of a view that is made now"
RULE_COPIED = "a copy of a view, or a pickled one, has the same masses"
NEVER = "a row of mass 0 is never drawn"
TOLD = "moved tells each mass that a draw changed"
BACK = "given_back has rows drawn again as before drawn"
COUNTED = "a copy of a view, or a pickled one, knows what was drawn: state keeps it"
UNCOUNTED = "a new row has not been drawn, whatever row its slot had before"


def check_rule(
    make_rule: Callable[[], Rule],
    fields: Mapping[str, FieldSpec] | None = None,
    *,
    seed: int = 0,
) -> None:
    """Test that a rule keeps the promises of ``views.Rule``, on random buffers of many kinds.

    The buffers are those of ``check_layer``; between draws, values of the fields that the rule
    follows are updated too. Rules with ``drawn`` are told of draws, and new rows replace the drawn
    ones; rules with ``given_back`` get a row back.

    Parameters
    ----------
    make_rule : callable
        Function that returns a new rule from each call, always with the same parameters.
    fields, seed
        As for ``check_layer``.

    Raises
    ------
    AssertionError
        A promise is broken. The message names the promise and the buffer.
    TypeError, ValueError
        ``make_rule`` is not callable or returns no rule, or the rule does not fit the fields.

    Notes
    -----
    The test cannot know whether the masses are those that you want. Cost: some seconds.

    Examples
    --------
    >>> from cpprb_like.testing import check_rule
    >>> from cpprb_like.views import Among, Rule
    >>> check_rule(lambda: Among(lambda rows: rows["rew"] > 0, "rew"))
    >>> class Better(Rule):
    ...     def follows(self, fields):
    ...         return ["rew"]
    ...     def masses(self, rows, slots):
    ...         return rows["rew"] > rows["rew"].mean()
    >>> check_rule(Better)
    Traceback (most recent call last):
    AssertionError: Better(), 5 rows: the mass of a row follows from its values, unless the rule
    defines moved; that of slot 0 is False alone, and True among others
    """
    if not callable(make_rule):
        raise TypeError(f"make_rule: expected a callable, got {make_rule!r}")
    if not isinstance(make_rule(), Rule):
        raise TypeError(f"make_rule: expected a callable that makes a Rule, got {make_rule()!r}")
    for n_envs in (1, 3):
        history = _LayerHistory(dict(FIELDS if fields is None else fields), n_envs, None, seed)
        view = history.rb.view(make_rule())
        for where in history.stages():
            stage = _RuleStage(make_rule, view, f"{make_rule()!r}, {where}")
            stage.check()
            history.update(view._now.parts[0].follows)
            stage.check()
            stage.check_counts(history)


class _RuleStage:
    """A view with a rule, at one stage of a history."""

    def __init__(self, make_rule: Callable[[], Rule], view: View, where: str) -> None:
        self.make, self.view, self.where = make_rule, view, where

    def check(self) -> None:
        """Check masses, and a draw."""
        slots = self.view.buffer.ring.present_slots()
        self._check_rows(slots)
        masses = self._masses_of(self.view, slots)
        self._check_same(masses, self.view, slots, MASSES)
        if not self._rules(self.view).state():
            fresh = self.view.buffer.view(self.make())
            self._check_same(masses, fresh, slots, FOLLOWED)
        copied = cast("View", _copied(self.view, self.where))
        self._check_same(masses, copied, slots, RULE_COPIED)
        n = min(8, len(np.flatnonzero(masses)))
        if n and self._rules(copied).group is None:
            batch = copied.sample(n, indexes=True)  # of a copy, as some rules count draws
            drawn, _ = find_rows(copied.buffer.ring, batch["indexes"])
            wrong = drawn[~np.isin(drawn, slots[masses > 0])]
            if wrong.size:
                raise _broken(self.where, NEVER, f"slot {wrong[0]} was drawn")

    def check_counts(self, history: _LayerHistory) -> None:
        """Check what a rule says of drawn rows, and of new rows in their place, in a copy."""
        view = cast("View", _copied(self.view, self.where))
        rules, ring = self._rules(view), view.buffer.ring
        if not rules.counts or rules.group is not None:
            return
        slots = ring.present_slots()
        masses = self._masses_of(view, slots)
        for _ in range(16):  # half of the rows that are left
            if n := np.count_nonzero(masses) // 2:
                view.sample(int(n))
                masses = self._masses_of(view, slots)
        if np.any(masses) and all(defines(rule, "given_back") for *_, rule in rules.parts):
            batch = view.sample(1, indexes=True)
            rules.given_back.append(batch["indexes"])
            self._check_same(masses, view, slots, BACK)
        rules.begun += 1  # now ``masses`` is called for all rows
        self._check_same(masses, view, slots, TOLD)
        self._check_same(masses, cast("View", _copied(view, self.where)), slots, COUNTED)
        if ring.n_envs > 1:
            return
        later = copy.copy(history)
        later.rb = view.buffer
        for _ in range(ring.capacity):  # equal rows, as those of other values may have other masses
            later.rng = np.random.default_rng(0)
            later.add(1)
        slots = ring.present_slots()
        masses = self._masses_of(view, slots)
        if masses.any():  # else the draws of other rows of their values may count
            self._check_same(masses, view.buffer.view(self.make()), slots, UNCOUNTED)
        self._check_same(masses, cast("View", _copied(view, self.where)), slots, COUNTED)

    def _rules(self, view: View) -> Rules:
        rules = view._now.rules
        assert rules is not None
        return rules

    def _check_rows(self, slots: Slots) -> None:
        """Check that a row has the same mass alone, for a rule of values only."""
        part = self.view._now.parts[0]
        rule = part.layer
        assert isinstance(rule, Rule)
        if defines(rule, "moved") or not len(slots):
            return
        read = self.view._now._reader_of(part.follows)
        every = self._try(rule, read(slots), slots)
        for k, slot in enumerate(slots.tolist()):
            one = slots[k : k + 1]
            alone = self._try(rule, read(one), one)
            if alone[0] != every[k]:
                where = f"that of slot {slot} is {alone[0]} alone, and {every[k]} among others"
                raise _broken(self.where, BY_ROW, where)

    def _try(self, rule: Rule, values: dict[str, NDArray[Any]], slots: Slots) -> NDArray[Any]:
        try:
            return as_masses("masses", rule.masses(values, slots), len(slots))
        except Exception as error:
            raise _broken(
                self.where, MASSES, f"it raised {type(error).__name__}: {error}"
            ) from error

    def _masses_of(self, view: View, slots: Slots) -> NDArray[np.float64]:
        try:
            ruled: Any = view._now.starts
            return np.asarray(ruled.masses(slots), np.float64)
        except Exception as error:
            raise _broken(
                self.where, MASSES, f"it raised {type(error).__name__}: {error}"
            ) from error

    def _check_same(
        self, masses: NDArray[np.float64], view: View, slots: Slots, promise: str
    ) -> None:
        other = self._masses_of(view, slots)
        masses, other = (one / max(one.max(initial=0.0), 1e-300) for one in (masses, other))
        wrong = np.flatnonzero(~np.isclose(masses, other))
        if wrong.size:
            k = int(wrong[0])
            found = f"that of slot {slots[k]} is {masses[k]:g} of the greatest, and {other[k]:g}"
            raise _broken(self.where, promise, found)


class _LayerHistory:
    """A buffer of random steps, in stages."""

    def __init__(
        self, fields: dict[str, FieldSpec], n_envs: int, next_of: str | None, seed: int
    ) -> None:
        if "row" in fields:
            raise ValueError("fields: expected none called 'row', which check_layer adds")
        fields = {"row": {"shape": (), "dtype": np.int64}, **fields}
        self.rng = np.random.default_rng(seed)
        axes = axes_of(read_env_dict(fields, None))
        self.rb = ReplayBuffer(
            24 * n_envs,
            fields,
            n_envs=n_envs,
            next_of=next_of,
            room=dict.fromkeys(axes, 24 * n_envs * MOST_ITEMS),
            seed=seed,
        )
        self.count = 0

    def add(self, steps: int, *, absent: bool = False) -> None:
        """Add n steps of each environment."""
        n = self.rb.n_envs
        for _ in range(steps):
            lengths = {
                axis.name: self.rng.integers(1, MOST_ITEMS, n) for axis in self.rb.schema.axes
            }
            values: dict[str, Any] = {
                field.name: self._items(field, lengths)
                if field.is_ragged
                else self._values(field.name, n, field.dtype, field.shape)
                for field in self.rb.schema.declared
            }
            for field in self.rb.schema.declared:
                if field.counts is not None and not field.is_ragged:
                    values[field.name] = (values[field.name].T % lengths[field.counts]).T
            values["row"] = np.arange(self.count, self.count + n)
            self.count += n
            if absent:
                self.rb.add_where(self.rng.random(n) < 0.7, **values)
            else:
                self.rb.add(**values)
            if self.rng.random() < 0.05:
                self.rb.on_episode_end()

    def _values(
        self, name: str, n: int, dtype: np.dtype[Any], shape: tuple[int, ...]
    ) -> NDArray[Any]:
        if name in ("done", "terminated", "truncated"):
            return (self.rng.random((n, *shape)) < 0.15).astype(dtype)
        if dtype.kind in "biu":
            return self.rng.integers(0, 2 if dtype.kind == "b" else 100, (n, *shape)).astype(dtype)
        return self.rng.normal(size=(n, *shape)).astype(dtype)

    def _items(self, field: Field, lengths: Mapping[str, NDArray[np.int64]]) -> list[Any]:
        """Random values of any length, one for each environment."""
        found: list[Any] = []
        for row, length in enumerate(lengths[str(field.axis)].tolist()):
            items = self._values("", length, field.dtype, field.item_shape)
            if field.counts is not None:
                items %= lengths[field.counts][row]
            found.append(np.moveaxis(items, 0, field.axis_at))
        return ["a" * len(items) for items in found] if field.is_text else found

    def update(self, names: Collection[str]) -> None:
        """Update some rows: the fields of these names that have a fixed size."""
        slots = self.rb.ring.present_slots()
        chosen = np.unique(self.rng.choice(slots, 4)) if len(slots) else slots
        specs = {field.name: field for field in self.rb.schema.declared if not field.is_ragged}
        values = {
            name: self._values(name, len(chosen), specs[name].dtype, specs[name].shape)
            for name in sorted(names)
            if name in specs and name not in ("done", "terminated", "truncated")
        }
        if values and len(chosen):
            self.rb.update(public_slots(self.rb.ring, chosen), **values)

    def stages(self) -> Iterator[str]:
        """Yield a name of each stage, after the steps of the stage were added."""
        where = "" if self.rb.n_envs == 1 else f" of {self.rb.n_envs} environments"
        yield f"no rows{where}"
        self.add(5)
        yield f"5 rows{where}"
        self.add(15)
        yield f"20 rows{where}"
        self.add(11)
        yield f"wrapped{where}"
        for number, episode in list(enumerate(self.rb.episodes.list()))[1:4:2]:
            if episode.complete:
                self.rb.episodes.delete(number)
        yield f"with deleted episodes{where}"
        if self.rb.n_envs > 1:
            self.add(20, absent=True)
            yield f"with absent rows{where}"
        self.rb.clear()
        self.add(7)
        yield f"cleared, and 7 rows added{where}"


class _Spy(Windows):
    """Windows that record which fields were read."""

    __slots__ = ("names",)
    names: set[str]

    def read(self, name: str) -> NDArray[Any]:
        self.names.add(name)
        return super().read(name)


class _LayerStage:
    """A layer over the present rows of a buffer."""

    def __init__(self, make_layer: Callable[[], Layer], rb: ReplayBuffer, where: str) -> None:
        self.make, self.rb = make_layer, rb
        self.where = f"{make_layer()!r}, {where}"
        self.view = rb.view(make_layer())
        self.now = self.view._now
        self.part = self.now.parts[0]
        self.own = self.part.changes | set(self.part.columns)
        self.slots = np.ascontiguousarray(self.now.drawable(rb.ring.present_slots()))

    def check(self) -> None:
        """Check each hook."""
        around: Any = self.part.around
        if max(around) > 8:
            raise ValueError(f"make_layer: expected at most 8 rows around a row, got {around}")
        before, picture = _global_states(), _picture(self.rb)
        whole = self._read(self.view, self.slots)
        self._check_others(whole)
        is_random = self.now.least < self.now.most
        if self.own:
            is_random |= self._check_fill()
        if not is_random and self.now.items is None:
            self._check_batches(whole)
            self._check_calls(whole)
        if _global_states() != before:
            raise _broken(self.where, NO_RANDOM, "it drew from a global generator")
        if _picture(self.rb) != picture:
            raise _broken(self.where, RING_ALONE, "rows or flags changed")

    def _read(self, view: View, slots: Slots, fields: Any = None) -> dict[str, NDArray[Any]]:
        """The batch of a view at these slots; an exception of a hook breaks a promise."""
        try:
            found = view.read_at(slots, fields)
        except Exception as error:
            where = f"it raised {type(error).__name__} for {len(slots)} rows: {error}"
            raise _broken(self.where, MADE, where) from error
        assert found is not None
        return found

    def _check_others(self, whole: dict[str, NDArray[Any]]) -> None:
        """Check that other columns than those of the layer equal the columns without the layer."""
        layer = self.part.layer
        others = layer.steps(self.rb.schema, None), layer.items(), layer.item_layout()
        if any(found is not None for found in others):
            return
        plain = self.rb[self.slots] if len(self.slots) else {}
        for name, values in plain.items():
            if name not in self.own and _value(values) != _value(whole[name]):
                raise _broken(self.where, CHANGED, f"{name!r} changed")

    def _check_fill(self) -> bool:
        """Call ``fill`` with windows that record reads; returns whether it drew random numbers."""
        wanted = {name: self.now.row_specs[name] for name in sorted(self.own)}
        is_random = False
        for n in {0, len(self.slots)}:
            slots = self.slots[:n]
            state = _pickle_bytes(self.part.layer)
            spy = self._windows(slots)
            rng_state = _value(np.frombuffer(pickle.dumps(spy.rng), np.uint8))
            given = [array.copy() for array in (spy.slots, spy.rows, spy.counts)]
            found = self._fill(spy, wanted)
            is_random |= _value(np.frombuffer(pickle.dumps(spy.rng), np.uint8)) != rng_state
            more = sorted(spy.names - self.part.reads)
            if more:
                raise _broken(self.where, READS, f"it read {more}")
            arrays = (spy.slots, spy.rows, spy.counts)
            if any(not np.array_equal(*pair) for pair in zip(given, arrays, strict=True)):
                raise _broken(self.where, LOOKS_ONLY, "it wrote to the windows")
            if state is not None and _pickle_bytes(self.part.layer) != state:
                raise _broken(self.where, LOOKS_ONLY, "its attributes changed")
            other = self._fill(self._windows(slots), wanted)
            for name in wanted:
                if name not in found:
                    raise _broken(self.where, MADE, f"{name!r} is not there")
                if _value(np.asarray(found[name])) != _value(np.asarray(other[name])):
                    raise _broken(self.where, BY_WINDOW, f"{name!r} is not the same twice")
                array = found[name]
                if any(np.shares_memory(array, one) for one in arrays) or (
                    len(array) and np.shares_memory(array, other[name])
                ):
                    raise _broken(self.where, OWN_ARRAYS, f"got a view as {name!r}")
        return is_random

    def _fill(self, windows: Windows, wanted: Mapping[str, ColumnSpec]) -> Mapping[str, Any]:
        """What ``fill`` returns, or the function that it returns."""
        found = self.part.layer.fill(windows, wanted)
        return found() if callable(found) else found

    def _windows(self, slots: Slots) -> _Spy:
        """The windows of rows, with the same random numbers in each call."""
        now, plan = self.now, self.now.plan(None)
        attempt = plan.reading(plan, lambda: (slots, {}), len(slots), None, 0, located=False)
        attempt.moment, attempt.is_gone = now.ring.now(), False
        attempt.rng = np.random.default_rng(0)
        walk: WalkedRows | None = None
        if self.part.changes:
            values, walk = plan.rows.read(slots, None, None, attempt)
        elif now.walks:
            values, rows, counts, steps = now.walk(slots, None, None, plan.rows.base)
            walk = rows, now.before, counts, steps
        else:
            values = now.rows.take(slots, None, None, plan.rows.base)
        around, last = self.part.around, now.rows.last_fields
        found = _Spy(attempt, slots, walk, around, last, values, {}, None, plan.stored)
        found.names = set()
        return found

    def _check_batches(self, whole: dict[str, NDArray[Any]]) -> None:
        """Check that rows are read alone, and in any order, like in a batch of all."""
        n = len(self.slots)
        order = np.random.default_rng(n).permutation(n)
        mixed = self._read(self.view, self.slots[order])
        self._read(self.view, self.slots[:0])
        for k in range(0, n, 1 if n < 10 else 3):
            alone = self._read(self.view, self.slots[k : k + 1])
            for name in self.own:
                where = f"{name!r} of slot {self.slots[k]} is {whole[name][k]} in a batch"
                if not _agree(alone[name][:1], whole[name][k : k + 1]):
                    raise _broken(self.where, BY_WINDOW, f"{where}, and {alone[name][0]} alone")
        for name in self.own:
            if not _agree(mixed[name], whole[name][order]):
                raise _broken(self.where, BY_WINDOW, f"{name!r} depends on the order of rows")

    def _check_calls(self, whole: dict[str, NDArray[Any]]) -> None:
        """Check that a copy reads equal batches, and that later batches change no earlier one."""
        if len(self.slots) == 0:
            return
        copied = cast("View", _copied(self.view, self.where))
        for name, values in self._read(copied, self.slots).items():
            if _value(values) != _value(whole[name]):
                raise _broken(self.where, LAYER_COPIED, f"{name!r} changed")
        first = self.view.sample(9)
        copies = {name: values.copy() for name, values in first.items()}
        self.view.sample(9)
        for name in self.own:
            if _value(first[name]) != _value(copies[name]):
                raise _broken(self.where, OWN_ARRAYS, f"{name!r} of an earlier batch changed")


def _pickle_bytes(layer: Layer) -> bytes | None:
    """The pickled state of a layer, as far as it can be pickled."""
    try:
        return pickle.dumps(layer.__dict__)
    except (pickle.PicklingError, TypeError, AttributeError):
        return None
