"""Values of any length in files: their memory, kills at each store, readers beside a writer.

Kills and crashes at random moments are those of all buffers: ``test_file_map_kills``,
``test_file_map_crashes`` and ``test_file_map_crash_images`` have cases of ragged fields.
"""

from __future__ import annotations

import copy
import os
import pickle
import re
import signal
import threading
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from file_map_cases import Case, items_of, joined, room_for, step, twin_rows, updated
from forked import outcome, start

from cpprb_like import ReplayBuffer
from cpprb_like._core import FLAG_ABSENT, WORD_ABSENT_ROWS, WORD_WRITTEN, stop_at
from cpprb_like._fields.item_places import LEFT, laps_of
from cpprb_like._files import dirty_chunks, file_maps
from cpprb_like._files.dirty_chunks import DirtyChunks
from cpprb_like._rows.item_ring import memory_of

pytestmark = pytest.mark.once

CASE = Case("items", room=200, capacity=30, wide=4)
ROWS_FIRST = Case("rows-first", room=2000, capacity=30, wide=4)
ENVS = Case("envs", room=150, capacity=40, n_envs=3, n_step=3, wide=4)
CHAINED = Case("chained", room=150, capacity=40, chained=True, wide=4)
NEXT = Case("next", room=150, capacity=30, has_next_items=True, wide=4)
CASES = [CASE, ROWS_FIRST, ENVS, CHAINED]
forking = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
reserving = pytest.mark.skipif(
    not hasattr(os, "posix_fallocate"), reason="no disk space is reserved here"
)


def add(rb: ReplayBuffer, case: Case, first: int, n: int) -> None:
    """Add time steps, one call for each."""
    for t in range(first, first + n):
        rb.add(**joined([step(case, t)], case))


def numbers(rb: ReplayBuffer, case: Case) -> list[int]:
    """The step numbers of the rows, each of which is whole; a buffer is sound."""
    rb.check()
    batch = rb.get_all_transitions()
    twin_rows(batch, case, "rows")
    found: list[int] = sorted(batch["t"].tolist())
    return found


def change(rb: ReplayBuffer) -> None:
    """Give some rows more items, which places them anew."""
    slots = rb.ring.newest_slots(3)  # for older ones there may be no room
    rb.update(slots, **updated(rb[slots]))


# ---------------------------------------------------------------------- copies


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_pickles_and_copies_go_on_as_their_original(tmp_path: Path, case: Case) -> None:
    """A copy has the same rows, and then the same rows leave, from a file as from memory."""
    rb = case.open(tmp_path, "x")
    for t in range(120):
        add(rb, case, t, 1)
        if t % 5 == 4 and case.n_envs == 1:
            change(rb)
        if t % 30 == 29:
            rows = numbers(rb, case)
            copies = [pickle.loads(pickle.dumps(rb)), copy.copy(rb), copy.deepcopy(rb)]
            copies.append(pickle.loads(pickle.dumps(copies[0])))
            assert all(numbers(one, case) == rows for one in copies)
            for later in range(t + 1, t + 25, 3):
                for one in copies:
                    add(one, case, later, 3)
                    assert numbers(one, case) == numbers(copies[0], case)
            assert numbers(rb, case) == rows
    stored = len(pickle.dumps(rb))
    layout = rb._layout
    assert stored < layout.nbytes + layout.items_nbytes + 20_000


def test_a_pickle_while_another_thread_adds(tmp_path: Path) -> None:
    """Rows and items are of one moment."""
    rb = CASE.open(tmp_path, "x")
    add(rb, CASE, 0, 50)
    stop = threading.Event()

    def write() -> None:
        t = 50
        while not stop.is_set():
            add(rb, CASE, t, 1)
            t += 1

    thread = threading.Thread(target=write)
    thread.start()
    try:
        for _ in range(50):
            rows = numbers(pickle.loads(pickle.dumps(rb)), CASE)
            assert rows == list(range(rows[0], rows[-1] + 1))
    finally:
        stop.set()
        thread.join()


# ---------------------------------------------------------------------- files


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_file_is_opened_again_and_goes_on(tmp_path: Path, case: Case) -> None:
    """Its buffer keeps the rows that a buffer in memory keeps, which is never opened anew."""
    twin = case.open(tmp_path, "x", mmap_prefix=None)
    rb: Any = case.open(tmp_path, "w")
    for t in range(200):
        add(rb, case, t, 1)
        add(twin, case, t, 1)
        assert [one.left for one in rb.ring.items] == [one.left for one in twin.ring.items]
        assert sorted(rb.get_all_transitions()["t"]) == sorted(twin.get_all_transitions()["t"])
        if t % 17 == 16:
            assert numbers(rb, case) == numbers(twin, case)
            rows = numbers(twin, case)
            assert numbers(case.open(tmp_path, "r"), case) == rows  # a copy beside the writer
            del rb
            assert numbers(case.open(tmp_path, "r"), case) == rows
            rb = case.open(tmp_path, "r+")


def test_another_room_is_refused(tmp_path: Path) -> None:
    """The error names the rooms, as the items of the file lie elsewhere."""
    rb: Any = CASE.open(tmp_path, "x")
    add(rb, CASE, 0, 5)
    del rb
    for mode in ("r", "r+"):
        with pytest.raises(ValueError, match=r"items\.dat was written by.* another room than .*17"):
            CASE.open(tmp_path, mode, room={"T": 17, "E": 200, "say": 400})
    assert numbers(CASE.open(tmp_path, "r+"), CASE) == list(range(5))


@reserving
def test_a_file_takes_disk_space_as_items_come(tmp_path: Path) -> None:
    """A room of many items is a hole, and an axis that is full needs no more."""
    case = Case("items", room=10**8, capacity=30, wide=4)
    rb = case.open(tmp_path, "x")
    path = tmp_path / "items.dat"
    assert path.stat().st_size > 4 * 10**9
    empty = path.stat().st_blocks * 512
    assert empty < 100_000
    add(rb, case, 0, 400)
    used = path.stat().st_blocks * 512 - empty
    assert used < 1_000_000
    del rb
    rb = CASE.open(tmp_path, "w")
    add(rb, CASE, 0, 100)
    used = path.stat().st_blocks
    add(rb, CASE, 100, 400)
    assert path.stat().st_blocks == used


@reserving
@pytest.mark.parametrize("calls", range(4))
@pytest.mark.parametrize("case", [CASE, CHAINED], ids=lambda case: case.name)
def test_a_disk_that_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: Case, calls: int
) -> None:
    """``add`` names what needs room, and changes nothing; it goes on when there is room."""
    rb = case.open(tmp_path, "x")
    rb.add(**joined([step(case, 0)], case))
    lacks = 0
    for t in range(1, 60):
        rows, lefts = numbers(rb, case), [one.left for one in rb.ring.items]
        with monkeypatch.context() as patch:
            patch.setattr(os, "posix_fallocate", room_for(calls if t % 2 else 0))
            said = ""
            try:
                add(rb, case, t, 1)
            except MemoryError as error:
                said = str(error)
        if said:
            lacks += 1
            assert re.search(r"(room=|keep aside).* needs [\d,]+ bytes .*make room", said)
            assert numbers(rb, case) == rows
            assert [one.left for one in rb.ring.items] == lefts
            add(rb, case, t, 1)
    assert lacks
    assert numbers(rb, case)[-1] == 59


# ---------------------------------------------------------------------- kills


@forking
@pytest.mark.parametrize("place", ["reserved", "amid", "written", "editing"])
@pytest.mark.parametrize("case", [*CASES, NEXT], ids=lambda case: case.name)
def test_a_kill_at_each_store(tmp_path: Path, case: Case, place: Any) -> None:
    """Of a process that is killed in ``add`` or ``update``, all published rows are there."""
    first, published = 0, tmp_path / "published"
    for turn in range(6):

        def job(first: int = first, turn: int = turn) -> None:
            rb = case.open(tmp_path, "r+" if (tmp_path / f"{case.name}.dat").exists() else "x")
            for t in range(first, first + 60):
                if t == first + 17 + 5 * turn:
                    stop_at(place, signal.SIGKILL)
                add(rb, case, t, 1)
                published.write_text(str(t))
                if t % 4 == 3 and case.n_envs == 1 and not case.has_next_items:
                    change(rb)
                elif t % 4 == 3:
                    rb.on_episode_end(0)

        assert outcome(job) == -signal.SIGKILL
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            rb = case.open(tmp_path, "r+")
        rows = numbers(rb, case)
        newest, stored = int(published.read_text()), int(rb._layout.state(rb._arena)[WORD_WRITTEN])
        first = stored // case.n_envs
        assert first >= newest + 1
        if rows and case.n_envs == 1:
            assert rows == list(range(rows[0], first)), "rows that left are the oldest ones"
        del rb


@forking
@pytest.mark.parametrize("case", [CASE, NEXT], ids=lambda case: case.name)
@pytest.mark.parametrize("flags", [1, 2, 3])
def test_a_kill_between_the_flags_of_rows_that_leave(
    tmp_path: Path, case: Case, flags: int
) -> None:
    """The other rows are there, with their items, and leave when they would have left.

    All rows that leave were counted before the first got its flag; the number of flags lags behind.
    """
    twin = case.open(tmp_path, "x", mmap_prefix=None)
    add(twin, case, 0, 60)

    def job() -> None:
        rb = case.open(tmp_path, "x")
        add(rb, case, 0, 60)
        layout, arena = rb._layout, rb._arena
        layout.item_words(arena, layout.item_rings[0])[LEFT] += 4
        layout.flags(arena)[rb.ring.newest_slots(30)[:flags]] |= FLAG_ABSENT
        layout.state(arena)[WORD_ABSENT_ROWS] += flags - 1
        os.kill(os.getpid(), signal.SIGKILL)

    assert outcome(job) == -signal.SIGKILL
    rb, gone = case.open(tmp_path, "r+"), numbers(twin, case)[:flags]
    for t in range(60, 70):
        assert numbers(rb, case) == [row for row in numbers(twin, case) if row not in gone]
        add(rb, case, t, 1)
        add(twin, case, t, 1)


@forking
def test_kills_between_the_words_of_two_axes(tmp_path: Path) -> None:
    """Places that a killed process took, and no row has, are free again when items go round."""
    rb: Any = CASE.open(tmp_path, "x")
    add(rb, CASE, 0, 40)
    rows = numbers(rb, CASE)
    layout, arena = rb._layout, rb._arena
    for items in layout.item_rings[:2]:
        words = layout.item_words(arena, items)
        laps = laps_of(words)
        valid = int(words[0]) & 1 ^ 1
        words[1 + 3 * valid : 4 + 3 * valid] = laps.head + 30, laps.base, laps.previous
        words[0] = valid
    del arena, words
    del rb
    rb = CASE.open(tmp_path, "r+")
    assert numbers(rb, CASE) == rows
    add(rb, CASE, 40, 100)
    assert numbers(rb, CASE)[-1] == 139


# ---------------------------------------------------------------------- crashes


def test_a_flush_that_begins_before_rows_leave(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It knows nothing of their marks, so these are set again, for it, before the rows leave.

    Items of the flush were overwritten in chunks without a mark.
    """
    monkeypatch.setattr(file_maps, "_boot_id", lambda: b"before")
    monkeypatch.setattr(dirty_chunks, "CHUNKS", 8)
    case = Case("items", room=100, capacity=60, wide=4)
    (tmp_path / "live").mkdir()
    rb: Any = case.open(tmp_path / "live", "x")
    add(rb, case, 0, 30)
    rb.flush()
    flushed: list[bytes] = []
    mark_for = DirtyChunks.mark_for

    def mark_and_flush(chunks: DirtyChunks, stop: int) -> None:
        mark_for(chunks, stop)
        if not flushed:
            flushed.append(b"")
            rb.flush()
            flushed[0] = (tmp_path / "live/items.dat").read_bytes()

    monkeypatch.setattr(DirtyChunks, "mark_for", mark_and_flush)
    t = 30
    while not flushed:
        add(rb, case, t, 1)
        t += 1
    assert len(flushed[0])
    path = tmp_path / "live/items.dat"
    late = path.read_bytes()
    layout = rb._layout
    (tmp_path / "crash").mkdir()
    for file in (tmp_path / "live").iterdir():
        (tmp_path / "crash" / file.name).write_bytes(file.read_bytes())
    image = bytearray(flushed[0])  # all but the items is of the flush
    begin = layout.item_rings[0].columns[0][2]
    image[begin:] = late[begin:]
    (tmp_path / "crash/items.dat").write_bytes(image)
    monkeypatch.setattr(file_maps, "_boot_id", lambda: b"after")
    with pytest.warns(RuntimeWarning, match="rows that may have changed"):
        again = case.open(tmp_path / "crash", "r+")
    assert 0 < len(numbers(again, case)) < len(rb)


# ---------------------------------------------------------------------- readers


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_reading_beside_a_writer(tmp_path: Path, case: Case) -> None:
    """A reader has whole rows of one time, though each ``add`` has older rows leave."""
    rb = case.open(tmp_path, "x")
    add(rb, case, 0, 60)
    stop = threading.Event()

    def write() -> None:
        t = 60
        while not stop.is_set():
            add(rb, case, t, 1)
            t += 1

    thread = threading.Thread(target=write)
    thread.start()
    try:
        for _ in range(10):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", RuntimeWarning)
                before = int(rb.ring.written) // case.n_envs
                other = case.open(tmp_path, "r")
            rows = numbers(other, case)
            if case.n_envs == 1 and rows:
                assert rows == list(range(rows[0], rows[-1] + 1))
                assert rows[-1] >= before - 2
            del other
    finally:
        stop.set()
        thread.join()


@forking
def test_a_child_reads_until_the_parent_writes(tmp_path: Path) -> None:
    """The items of the fork's rows are there until then; afterwards each read says so."""
    rb = CASE.open(tmp_path, "x")
    add(rb, CASE, 0, 60)
    rows = numbers(rb, CASE)
    (asked, ask), (told, tell) = os.pipe(), os.pipe()

    def job() -> None:
        for _ in range(3):
            batch = rb.get_all_transitions()
            twin_rows(batch, CASE, "child")
            assert sorted(batch["t"].tolist()) == rows
            assert numbers(pickle.loads(pickle.dumps(rb)), CASE) == rows
            twin_rows(rb.sample(9), CASE, "child")
        os.write(tell, b".")
        os.read(asked, 1)
        with pytest.raises(RuntimeError, match=r"items\.dat"):
            rb.sample(9)
        with pytest.raises(RuntimeError, match=r"items\.dat"):
            pickle.dumps(rb)

    child = start(job)
    os.read(told, 1)
    add(rb, CASE, 60, 1)
    os.write(ask, b".")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    for end in (asked, ask, told, tell):
        os.close(end)


# ---------------------------------------------------------------------- damage

DAMAGES: list[tuple[int, int, str]] = [  # place in the entry, new value, what is said
    (1, 2**31 - 1, "number: expected at most 200"),
    (0, 2**32 - 1, "place: expected within"),
    (0, 1, "place: expected behind"),
]
LAPS = [[0, -1], [0, 2**62], [0, 500, 0, 0], [0, 50, 90, 0], [1, 0, 0, 0, 7, 9]]


@pytest.mark.parametrize("mode", ["r", "r+"])
@pytest.mark.parametrize(("place", "value", "expected"), DAMAGES)
def test_an_entry_that_was_damaged(
    tmp_path: Path, mode: str, place: int, value: int, expected: str
) -> None:
    """The file is refused, and the error names it and the row; ``check`` says the same."""
    rb: Any = CASE.open(tmp_path, "x")
    add(rb, CASE, 0, 6)
    row = next(t for t in range(3, 6) if len(items_of(t, 0)["token"]))
    entries = rb._layout.rows(rb._arena, [c.is_entry for c in rb.ring.columns].index(True))
    entry = entries[row].view(np.uint32)
    entry[place] = value
    entries[row] = entry.view(np.uint8)
    del entry
    with pytest.raises(AssertionError, match=rf"items of axis 'T': {expected}"):
        rb.check()
    del rb, entries
    with pytest.raises(ValueError, match=rf"items\.dat: .*row \d.*items of axis 'T': {expected}"):
        CASE.open(tmp_path, mode)


@pytest.mark.parametrize("words", LAPS)
def test_laps_that_were_damaged(tmp_path: Path, words: list[int]) -> None:
    """The file is refused before a place is computed from them."""
    rb: Any = CASE.open(tmp_path, "x")
    add(rb, CASE, 0, 6)
    block = rb._layout.item_words(rb._arena, rb._layout.item_rings[0])
    block[: len(words)] = words
    del rb, block
    for mode in ("r", "r+"):
        with pytest.raises(ValueError, match=r"items\.dat: .*items of axis 'T'"):
            CASE.open(tmp_path, mode)


@pytest.mark.parametrize("field", ["edge", "say"])
def test_check_finds_items_that_were_damaged(tmp_path: Path, field: str) -> None:
    """Numbers of items that are not there, and texts that are none; a pickle of them is refused."""
    rb = CASE.open(tmp_path, "x")
    add(rb, CASE, 0, 9)
    (memory,) = [one for one in rb.ring.items if field in one.names]
    memory_of(memory, 0)[10] = 0xFF
    match = "numbers of items of axis 'T'" if field == "edge" else "a text in UTF-8"
    with pytest.raises(AssertionError, match=rf"row \d .*field '{field}': expected {match}"):
        rb.check()
    with pytest.raises(ValueError, match=rf"field '{field}': expected {match}"):
        pickle.loads(pickle.dumps(rb))
