"""Saves with ``sync=False``: a kill leaves the old state or the new, a crash of the machine less.

Then the state that was synchronised is there, and of the others none is loaded torn.
"""

from __future__ import annotations

import contextlib
import copy
import os
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from crashing_disk import Folder, MemoryDisk, UnsynchronisedMemoryDisk, crashes, kills
from saved_cases import add, digest, digest_of_copy, make, mixture, parts, small_segments, update

from cpprb_like import ReplayBuffer, checkpoint
from cpprb_like.checkpoint import DamagedError, _disk, _manifest, _saved, load
from cpprb_like.checkpoint._disk import Disk
from cpprb_like.processes import SharedReplay

pytestmark = pytest.mark.once

_small_segments = small_segments(1100)


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Callable[[MemoryDisk], None]:
    """Let all folders be on this disk."""

    def use_it(disk: MemoryDisk) -> None:
        def disk_for(_: object, synchronises: bool = True) -> MemoryDisk:
            return disk if synchronises else UnsynchronisedMemoryDisk(disk)

        monkeypatch.setattr(_saved, "Disk", disk_for)

    return use_it


Use = Callable[[MemoryDisk], None]


class History:
    """A disk on which a thing is saved again and again, and what it was then."""

    def __init__(self, use: Use, thing: Any) -> None:
        self.disk = MemoryDisk()
        self.states: dict[int, str] = {}
        self.synchronised: dict[int, int] = {}  # by number of a state, operations until it was safe
        self.lengths: dict[int, int] = {}  # operations until each was saved
        self.thing = thing
        self._use = use
        self._known: dict[tuple[tuple[str, bytes], ...], str | None] = {}
        self._named: dict[bytes, list[str]] = {}  # files, by manifest

    def save(self, **options: Any) -> None:
        """Save, after some changes."""
        for rb in parts(self.thing):
            add(rb, 17)
            update(rb, 2)
        self._use(self.disk)
        self.thing.save("memory", **options)
        number = _manifest.numbers(self.disk)[-1]
        self.states[number] = digest_of_copy(self.thing)
        self.lengths[number] = len(self.disk.log)
        if options.get("sync", True):
            self.synchronised[number] = len(self.disk.log)

    def look(self, folder: Folder) -> dict[int, str | None]:
        """What a folder holds: the digest of each state, None if it is damaged."""
        return {
            number: self._state(folder, number) for number in _manifest.numbers(MemoryDisk(folder))
        }

    def _state(self, folder: Folder, number: int) -> str | None:
        """Of a state; each that has other bytes is loaded once."""
        manifest = _manifest.manifest_name(number)
        own = {manifest: folder[manifest]}
        if folder[manifest] not in self._named:
            self._named[folder[manifest]] = []
            with contextlib.suppress(DamagedError):
                files = _manifest.read(MemoryDisk(own), number).files
                self._named[folder[manifest]] = [file.name for file in files]
        named = self._named[folder[manifest]]
        own |= {name: folder[name] for name in named if name in folder}
        key = tuple(sorted(own.items()))
        if key not in self._known:
            self._use(MemoryDisk(own))
            self._known[key] = None
            with contextlib.suppress(DamagedError):
                self._known[key] = digest(load("memory"))
        return self._known[key]


THINGS: dict[str, Callable[[], Any]] = {
    "plain": lambda: make("plain"),
    "prioritized": lambda: make("prioritized", 60),
    "derived": lambda: make("next_of+stacks+n_envs", 40),
    "ragged": lambda: make("ragged", 30),
    "two": mixture,
}
by_thing = pytest.mark.parametrize("thing", THINGS)


@by_thing
def test_a_kill_leaves_the_old_state_or_the_new(thing: str, use: Use) -> None:
    """Whatever was done is there, in the order in which it was done; no save is torn."""
    history = History(use, THINGS[thing]())
    for sync in (False, False, True, False):
        history.save(sync=sync)
    for length, folder in kills(history.disk):
        found = history.look(folder)
        saved = max((n for n, at in history.lengths.items() if at <= length), default=0)
        assert max(found, default=0) in (saved, saved + 1), length
        assert found == {n: history.states[n] for n in found}, length
    assert max(found) == 4


@by_thing
def test_a_crash_costs_no_synchronised_state_and_tears_none(thing: str, use: Use) -> None:
    """Of what was not synchronised any part may be gone: what loads is whole, or it raises."""
    history = History(use, THINGS[thing]())
    for sync in (True, False, False, True, False):
        history.save(sync=sync)
    damaged = whole = 0
    for length, folders in crashes(history.disk, 4, 3):
        safe = max((n for n, at in history.synchronised.items() if at <= length), default=0)
        for files in folders if length % 4 == 0 or length == len(history.disk.log) else ():
            found = history.look(files)
            for number, what in found.items():
                assert what in (None, history.states[number]), (length, number)
                damaged += what is None
                whole += what is not None
            there = [n for n in history.synchronised if n >= safe and found.get(n) is not None]
            assert there or not safe, (length, safe, found)
    assert damaged > 10
    assert whole > 10


def test_what_a_synchronised_state_takes_over_is_synchronised(use: Use) -> None:
    """Segments of the one before, which was not: after a crash the new state is there, whole."""
    history = History(use, make("plain", 400))
    for sync in (False, False, True):
        history.save(sync=sync)
    assert len({name.partition("-")[0] for name in history.disk.files()} - {"state"}) == 3

    *_, (_, folders) = crashes(history.disk, 40, 1)

    for files in folders:
        assert history.look(files)[3] == history.states[3]


def test_a_state_that_a_crash_has_cost_says_so(use: Use) -> None:
    """And which others there are; after that it goes on in the same folder."""
    history = History(use, make("plain"))
    for sync in (True, False):
        history.save(sync=sync)
    *_, (_, folders) = crashes(history.disk, 600, 1)
    damaged = [files for files in folders if history.look(files).get(2, "") is None]
    by_data = [files for files in damaged if is_in_order(files["state-000002.json"])]
    assert len(damaged) > len(by_data) > 0
    for files in damaged:
        disk = MemoryDisk(files)
        use(disk)
        with pytest.raises(DamagedError, match=r"s2-|state-000002|salvage=True"):
            load("memory")
        thing = load("memory", state=1)
        thing.save("memory", sync=False)
        assert digest(load("memory")) == digest(load("memory", state=1)) == history.states[1]
    use(MemoryDisk(by_data[0]))
    with pytest.raises(DamagedError, match=r"saved with sync=False.* another one, of \[1\]$"):
        load("memory")
    use(MemoryDisk({n: data for n, data in by_data[0].items() if n != "state-000001.json"}))
    with pytest.raises(DamagedError, match=r"may have cost it$"):
        load("memory")


def is_in_order(manifest: bytes) -> bool:
    """Whether the checksum of a manifest is right."""
    text, _, checksum = manifest.rstrip(b"\n").rpartition(b"\n")
    return checksum == f"{zlib.crc32(text):08x}".encode()


@pytest.mark.parametrize(
    ("keep", "kept"),
    [(1, [[1], [1, 2], [1, 3], [4], [4, 5]]), (2, [[1], [1, 2], [1, 2, 3], [3, 4], [4, 5]])],
)
def test_the_newest_synchronised_state_stays(keep: int, kept: list[list[int]], use: Use) -> None:
    """Until another one is, beside those that ``keep`` asks for."""
    history = History(use, make("plain"))
    for sync, expected in zip((True, False, False, True, False), kept, strict=True):
        history.save(sync=sync, keep=keep)
        assert history.look(history.disk.files()) == {n: history.states[n] for n in expected}


def of_buffer(folder: Path, sync: bool) -> None:
    """``save``."""
    rb = make("plain")
    add(rb, 30)
    rb.save(folder, sync=sync)


def of_thread(folder: Path, sync: bool) -> None:
    """``save_async``."""
    rb = make("plain")
    add(rb, 30)
    rb.save_async(folder, sync=sync).result()


def of_function(folder: Path, sync: bool) -> None:
    """``checkpoint.save``."""
    rb = make("plain")
    add(rb, 30)
    checkpoint.save(rb, folder, sync=sync)


def of_processes(folder: Path, sync: bool) -> None:
    """``SharedReplay.save``."""
    with SharedReplay(100, {"x": {"shape": ()}}, writers=1) as replay:
        with replay.actor() as actor:
            actor.add(x=[1, 2, 3])
        replay.save(folder, learners={"one": replay.learner()}, sync=sync)


@pytest.mark.parametrize("save", [of_buffer, of_thread, of_function, of_processes])
def test_the_disk_is_waited_for_or_not(
    save: Callable[[Path, bool], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By each way to save; nothing else differs."""
    waits: list[int] = []
    start, fsync = _disk._start, os.fsync

    def counted_start(*of: int) -> int:
        waits.append(of[0])
        return start(*of)

    def counted_fsync(file: int) -> None:
        waits.append(file)
        fsync(file)

    monkeypatch.setattr(_disk, "STARTED_NBYTES", 1)
    monkeypatch.setattr(_disk, "_start", counted_start)
    monkeypatch.setattr(os, "fsync", counted_fsync)
    tmp_path = tmp_path / "saved"
    tmp_path.mkdir()
    save(tmp_path, False)
    assert not waits
    assert _manifest.read(Disk(tmp_path), 1).synchronised is False
    save(tmp_path, True)
    assert len(waits) > 3
    assert _manifest.read(Disk(tmp_path), 2).synchronised is True


def test_sync_is_a_bool(tmp_path: Path) -> None:
    """Another value is refused before anything is written."""
    rb = make("plain")
    with pytest.raises(TypeError, match=r"^sync: expected a bool, got 'no'$"):
        rb.save(tmp_path / "folder", sync="no")  # type: ignore[arg-type]
    assert not (tmp_path / "folder").exists()


def test_a_copy_is_synchronised(tmp_path: Path) -> None:
    """Of a state that was not."""
    rb = make("plain")
    add(rb, 30)
    rb.save(tmp_path / "one", sync=False)
    checkpoint.copy(tmp_path / "one", tmp_path / "two")
    assert _manifest.read(Disk(tmp_path / "two"), 1).synchronised is True
    assert digest(ReplayBuffer.load(tmp_path / "two")) == digest(copy.deepcopy(rb))
