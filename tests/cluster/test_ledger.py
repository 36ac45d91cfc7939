"""What a ledger counts as lost, when nodes die in turn and it dies itself."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any

from cpprb_like.ray._ledger import Copy, Counts, Ledger
from cpprb_like.ray._messages import About, Incarnation, Loss

A = Incarnation("a", (0,), 0.0, 50.0)
B, C = Incarnation("b", (6,), 90.0, 102.0), Incarnation("c", (20,), 110.0, 115.0)
OTHER = Incarnation("other", (0,), 0.0, 50.0)


def about(number: int, written: int, moment: float, *memories: Incarnation) -> About:
    """A host with one shard."""
    name = memories[-1].identity
    return About(number, "node", name, "folder", name, (written,), memories, moment)


def report(ledger: Ledger, found: About, copy: Copy | None = None) -> Copy:
    """The copy that a host gets: another object, as it went through Ray."""
    given: Any = found, sum(found.written), None, [], (0, 0.0), copy
    answer: Copy = pickle.loads(pickle.dumps(ledger.report(*given)[1]))
    return answer


def test_rows_are_lost_since_the_checkpoint_that_the_next_memory_began_with() -> None:
    """And not since the rows that this memory has by now."""
    ledger = Ledger(None, Counts())
    report(ledger, about(0, 10, 100.0, A))
    report(ledger, about(0, 30, 105.0, A, B))
    assert ledger.losses() == [Loss(0, 4, 10.0, 100.0)]
    assert (ledger.inserts, ledger.rows) == (34, 30)


def test_rows_are_lost_of_the_right_memory_after_two_deaths_without_a_ledger() -> None:
    """The checkpoint of the second memory had more rows than the first one was heard of with."""
    first = Ledger(None, Counts())
    copy = report(first, about(0, 10, 100.0, A))
    second = Ledger(None, Counts())
    report(second, about(1, 0, 120.0, OTHER), copy)
    report(second, about(0, 21, 121.0, A, B, C))
    assert second.losses() == [Loss(0, 4, 10.0, 100.0), Loss(0, 0, 0.0, 102.0)]


def test_a_memory_that_the_ledger_did_not_hear_of_is_a_loss_of_what_its_writers_know() -> None:
    """The ledger before it had died as well, and nothing said that rows were missing."""
    ledger = Ledger(None, Counts())
    report(ledger, about(0, 10, 100.0, A))
    after = Incarnation("c", (8,), 101.0, 115.0)
    report(ledger, about(0, 9, 121.0, A, B, after))
    assert ledger.losses() == [Loss(0, 4, 10.0, 100.0), Loss(0, 0, 1.0, 102.0)]
    ledger.wrote([("b", 0, 13)])
    assert ledger.losses()[1] == Loss(0, 5, 1.0, 102.0)
    assert ledger.inserts == 18


def test_an_older_copy_adds_no_loss_of_the_memory_that_a_host_has_now() -> None:
    """Hosts have copies of different moments, and the next ledger gets the older one first."""
    first = Ledger(None, Counts())
    old = report(first, about(0, 10, 100.0, A))
    first.started(about(0, 6, 101.0, A, B))
    new = report(first, about(0, 8, 101.1, A, B))
    assert new.moment > old.moment
    second = Ledger(None, Counts())
    report(second, about(1, 0, 102.0, OTHER), old)
    assert second.losses() == []
    report(second, about(0, 9, 102.1, A, B), new)
    assert second.losses() == [Loss(0, 4, 10.0, 100.0)]
    assert second.inserts == 13


def test_a_loss_counts_the_rows_of_the_newest_report() -> None:
    """The next ledger heard of more rows than were in the copy that comes after the loss."""
    first = Ledger(None, Counts())
    copy = report(first, about(0, 10, 100.0, A))
    later = replace(copy, moment=copy.moment + 1.0)
    second = Ledger(None, Counts())
    report(second, about(0, 12, 103.0, A), copy)
    report(second, about(0, 6, 104.0, A, B))
    assert second.losses() == [Loss(0, 6, 13.0, 103.0)]
    report(second, about(1, 0, 105.0, OTHER), later)
    assert second.losses() == [Loss(0, 6, 13.0, 103.0)]


def test_a_late_report_of_a_memory_that_is_gone_is_no_loss_of_the_next_one() -> None:
    """It was on its way when its node died."""
    ledger = Ledger(None, Counts())
    report(ledger, about(0, 10, 100.0, A))
    report(ledger, about(0, 7, 102.0, A, B))
    report(ledger, about(0, 11, 100.1, A))
    assert ledger.losses() == [Loss(0, 4, 10.0, 100.0)]
    assert (ledger.inserts, ledger.heard()[0][0].identity) == (11, "b")


def test_rows_that_their_writers_know_of_are_lost_besides_those_of_the_last_report() -> None:
    """They were written while the host was not heard of; the next ledger knows them, too."""
    first = Ledger(None, Counts())
    report(first, about(0, 10, 100.0, A))
    first.wrote([("a", 0, 17), ("a", 0, 15)])
    copy = report(first, about(0, 6, 104.0, A, B))
    assert first.losses() == [Loss(0, 11, 10.0, 100.0)]
    second = Ledger(None, Counts())
    report(second, about(0, 9, 105.0, A, B), copy)
    assert second.losses() == [Loss(0, 11, 10.0, 100.0)]
    assert second.inserts == 20
    second.wrote([("a", 0, 19)])
    assert second.losses() == [Loss(0, 13, 10.0, 100.0)]
