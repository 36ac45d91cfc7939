"""Rate limiters: Reverb's formulas, against their twin."""

from __future__ import annotations

import math
import pickle
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from reference_limiter import ReferenceLimiter

from cpprb_like.limiters import Backlog, MinSize, RateLimiter, SampleToInsertRatio
from cpprb_like.limiters._counters import Counters, Turn, shape_for

eighths = st.integers(1, 80).map(lambda k: k / 8)  # products of these are exact in float64


@st.composite
def limiters(draw: st.DrawFn) -> RateLimiter:
    """Any limiter."""
    kind = draw(st.sampled_from(["min", "queue", "ratio", "range"]))
    size = draw(st.integers(1, 30))
    if kind == "min":
        return MinSize(size)
    if kind == "queue":
        return Backlog(size)
    ratio = draw(eighths)
    least = max(1.0, ratio)
    if kind == "ratio":
        return SampleToInsertRatio(ratio, size, least + draw(eighths))
    low = ratio * size - draw(eighths)
    return SampleToInsertRatio(ratio, size, (low, low + 2 * least + draw(eighths)))


def twin_of(limiter: RateLimiter) -> ReferenceLimiter:
    """The twin, by the numbers of the limiter."""
    ratio, min_size, low, high = limiter.bounds
    return ReferenceLimiter(
        Fraction(ratio),
        int(min_size),
        None if math.isinf(low) else Fraction(low),
        None if math.isinf(high) else Fraction(high),
    )


def counters_of(limiter: RateLimiter, writers: int = 1, readers: int = 1) -> Counters:
    """Unused counters."""
    words = np.zeros(shape_for(writers + readers), np.int64)
    counters = Counters(words, writers, readers, *limiter.bounds)
    for line in range(writers + readers):
        counters.use(line)
    return counters


def done(counters: Counters, line: int, n: int, now: int) -> None:
    """A call of n items that was allowed, and ended at this time."""
    turn = Turn(counters, line, n)
    assert turn.begin()
    turn.end(now)


@given(
    limiters(),
    st.lists(st.tuples(st.sampled_from("isd"), st.integers(0, 40), st.integers(0, 2)), max_size=40),
)
def test_limits_are_those_of_the_twin(
    limiter: RateLimiter, calls: list[tuple[str, int, int]]
) -> None:
    """Whatever is inserted, sampled and deleted by whom, the same calls are allowed."""
    twin, counters = twin_of(limiter), counters_of(limiter, 3, 3)
    rows = [0, 0, 0]
    for kind, n, who in calls:
        if kind == "i":
            expected = twin.can_insert(n)
            turn = Turn(counters, who, n)
            assert turn.begin() == expected
            if expected:
                twin.i += n
                rows[who] += n
                counters.set_rows(who, rows[who])
                turn.end(1)
        elif kind == "s":
            expected = twin.can_sample(n)
            turn = Turn(counters, 3 + who, n)
            assert turn.begin() == expected
            if expected:
                twin.s += n
                turn.end(1)
        else:
            gone = min(n, rows[who])
            rows[who] -= gone
            twin.d += gone
            counters.set_rows(who, rows[who])
        assert counters.totals()[:3] == (twin.i, twin.s, twin.i - twin.d)


@pytest.mark.parametrize(
    ("limiter", "bounds"),
    [
        (MinSize(7), (1, 7, -math.inf, math.inf)),
        (Backlog(7), (1, 1, 0, 7)),
        (SampleToInsertRatio(4, 100, 10), (4, 100, 390, 410)),
        (SampleToInsertRatio(0.5, 10, (2, 9)), (0.5, 10, 2, 9)),
    ],
)
def test_the_numbers_are_those_of_reverb(limiter: RateLimiter, bounds: tuple[float, ...]) -> None:
    """As in the constructors of its classes."""
    assert limiter.bounds == bounds


def test_a_call_that_is_at_work_counts_for_the_others() -> None:
    """Announced inserts leave no room for more, and cannot be sampled yet."""
    counters = counters_of(Backlog(2), 2, 2)
    first = Turn(counters, 0, 2)
    assert first.begin()
    assert not Turn(counters, 1, 1).begin()
    assert not Turn(counters, 2, 1).begin()
    counters.set_rows(0, 2)
    first.end(1)
    draw = Turn(counters, 2, 2)
    assert draw.begin()
    assert not Turn(counters, 3, 1).begin()
    assert not Turn(counters, 1, 1).begin()  # not before the draw has ended
    draw.end(1)
    done(counters, 1, 1, 1)


def test_a_call_that_failed_does_not_count() -> None:
    """As if it had never begun."""
    counters = counters_of(Backlog(2))
    turn = Turn(counters, 0, 2)
    assert turn.begin()
    turn.close()
    assert turn.begin()


def test_what_a_dead_call_announced_is_void() -> None:
    """When somebody finds that it is dead, or takes its line over."""
    counters = counters_of(Backlog(2), 2)
    dead = Turn(counters, 0, 2)
    assert dead.begin()
    assert counters.is_busy(0)
    assert not Turn(counters, 1, 1).begin()
    counters.void(0)
    assert not counters.is_busy(0)
    assert Turn(counters, 1, 2).begin()
    counters.renew()  # so that the end of ``dead`` takes nothing back


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: MinSize(0),
        lambda: Backlog(0),
        lambda: SampleToInsertRatio(0, 1, 10),
        lambda: SampleToInsertRatio(math.inf, 1, 10),
        lambda: SampleToInsertRatio(4, 0, 10),
        lambda: SampleToInsertRatio(4, 10, 3.9),  # 2 * 3.9 < 2 * max(1, 4)
        lambda: SampleToInsertRatio(0.5, 10, 0.9),
        lambda: SampleToInsertRatio(1, 10, (11, 20)),  # above 1 * 10: nothing would be drawn
        lambda: SampleToInsertRatio(1, 10, (1, 2, 3)),  # type: ignore[arg-type]
        lambda: MinSize(1, timeout=-1),
        lambda: MinSize(1, timeout=math.inf),
    ],
)
def test_impossible_limits_are_refused(wrong: Any) -> None:
    """When they are made, with the name of the argument."""
    with pytest.raises(ValueError, match=r"^(min_size|size|samples_per|error_buffer|timeout)"):
        wrong()


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: MinSize(1.5),  # type: ignore[arg-type]
        lambda: Backlog("7"),  # type: ignore[arg-type]
        lambda: SampleToInsertRatio("4", 1, 10),  # type: ignore[arg-type]
        lambda: SampleToInsertRatio(4, 1, "10"),  # type: ignore[arg-type]
        lambda: MinSize(1, timeout="1"),  # type: ignore[arg-type]
    ],
)
def test_what_is_no_number_is_refused(wrong: Any) -> None:
    """By type."""
    with pytest.raises(TypeError, match="expected"):
        wrong()


def test_limiters_are_values() -> None:
    """They compare, print, pickle, and cannot be changed."""
    limiter = SampleToInsertRatio(4, 100, (390, 410), timeout=3)
    assert pickle.loads(pickle.dumps(limiter)) == limiter
    assert eval(repr(limiter)) == limiter
    with pytest.raises(AttributeError):
        limiter.timeout = 4.0  # type: ignore[misc]


def test_wrong_lines_are_refused() -> None:
    """Compiled code checks what it is given."""
    counters = counters_of(MinSize(1))
    with pytest.raises(IndexError, match="line"):
        Turn(counters, 2, 1)
    with pytest.raises(ValueError, match="at least 0"):
        Turn(counters, 0, -1)
    with pytest.raises(ValueError, match="words: expected shape"):
        Counters(np.zeros((2, 3), np.int64), 1, 1, 1, 1, 1, 1)


SECOND = 1_000_000_000


def waiting(counters: Counters, line: int, n: int, since: int, *, wanted: bool = True) -> Turn:
    """A turn that has waited since some time."""
    turn = Turn(counters, line, n)
    turn.wait(since, wanted)
    return turn


@pytest.mark.parametrize("line", [1, 2], ids=["of the same line", "of another line"])
def test_who_has_waited_longer_goes_first(line: int) -> None:
    """A small batch that is allowed steps back for a larger one that waits for more rows."""
    counters = counters_of(SampleToInsertRatio(1, 1, (0, 100)), 1, 2)
    large = waiting(counters, 1, 8, 5)
    counters.set_rows(0, 4)
    done(counters, 0, 4, 6)
    small = Turn(counters, line, 2)
    assert not large.begin(7)
    assert not small.begin()
    assert small.behind == 8
    done(counters, 0, 4, 9)
    assert not small.begin(10)
    assert large.begin(11)
    large.end(12)
    done(counters, 0, 4, 13)
    assert small.begin(14)
    assert counters.waits(1, 20)[:3] == (1, 6, 0)


def test_small_batches_step_back_beside_a_call_that_may_go_on() -> None:
    """A writer that waits, and is allowed by now, is no reason to draw before a larger batch.

    Such a writer had not looked yet. Small batches took all that it had inserted until it did, so
    a large one waited for ever on a busy machine.
    """
    counters = counters_of(SampleToInsertRatio(1, 1, (0, 100)), 1, 3)
    counters.set_rows(0, 100)
    done(counters, 0, 100, 1)
    actor = waiting(counters, 0, 4, 2)
    assert not actor.begin(3)
    first = Turn(counters, 2, 50)
    assert first.begin(4), "nothing else lets the writer go on"
    first.end(5)
    large = waiting(counters, 1, 64, 6)
    assert not large.begin(7)
    small = Turn(counters, 3, 4)
    assert not small.begin(8)
    assert small.behind == 64
    assert actor.begin(9)
    actor.end(10)
    large.close()
    assert small.begin(11)


def test_courtesy_ends() -> None:
    """Who waits longer is passed: after a second without a row, or if it could go and does not."""
    counters = counters_of(SampleToInsertRatio(1, 1, (0, 100)), 1, 2)
    large = waiting(counters, 1, 8, 5)
    counters.set_rows(0, 4)
    done(counters, 0, 4, 6)
    small = Turn(counters, 2, 1)
    assert not small.begin(SECOND)
    done(counters, 0, 1, 7)
    assert not small.begin(2 * SECOND + 1)  # rows come
    assert not small.begin(3 * SECOND)
    assert small.begin(3 * SECOND + 2)
    small.end(8)
    assert Turn(counters, 2, 1).begin(), "the same one is passed at once from then on"
    large.close()
    other = waiting(counters, 1, 2, 9)
    small = Turn(counters, 2, 1)
    assert not small.begin(SECOND)
    done(counters, 0, 4, 7)
    assert small.begin(2 * SECOND + 1), "it could have gone: its process was stopped"
    other.close()


def test_calls_that_step_back_for_none() -> None:
    """For a batch that no caller wants yet, and where only they let the other side go on."""
    counters = counters_of(SampleToInsertRatio(1, 1, (0, 100)), 2, 2)
    counters.set_rows(0, 4)
    done(counters, 0, 4, 6)
    ahead = waiting(counters, 2, 8, 5, wanted=False)
    first = Turn(counters, 3, 1)
    assert first.begin()
    first.end(1)
    ahead.wait(9, wanted=True)
    second = Turn(counters, 3, 1)
    assert not second.begin()
    actor = waiting(counters, 1, 200, 7)
    assert second.begin()
    actor.close()
    ahead.close()
    assert not any(counters.is_busy(line) for line in range(3))
