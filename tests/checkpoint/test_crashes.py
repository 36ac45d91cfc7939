"""Crashes of the machine during a save, at every operation: the old state is there, or the new.

And errors at every operation: the folder is as well off, the buffer is as it was, and the next save
is right.
"""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from crashing_disk import Folder, MemoryDisk, crashes
from forged_folders import files_in
from interruptions import Cut, cut_at, first_and_last
from saved_cases import add, digest, digest_of_copy, make, mixture, parts, small_segments, update
from scale import CRASH_IMAGES, LONG

import cpprb_like
from cpprb_like import ReplayBuffer
from cpprb_like.checkpoint import (
    DamagedError,
    _beside,
    _disk,
    _manifest,
    _open_state,
    _ring_writer,
    _saved,
    load,
    open_beside,
    read_folder,
)

pytestmark = pytest.mark.once

MOST = 300 if LONG else 100  # folders for each prefix of the operations
PACKAGE = Path(cpprb_like.__file__).parent
PURE = ("json_codec.py", "narrow_dtypes.py", "_state.py")
NONE = "no checkpoint"


_small_segments = small_segments(1100)


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Callable[[MemoryDisk], None]:
    """Let all folders be on this disk."""

    def use_it(disk: MemoryDisk) -> None:
        for module in (_saved, _open_state, _beside):
            monkeypatch.setattr(module, "Disk", lambda *_: disk)

    return use_it


Use = Callable[[MemoryDisk], None]


class Verdicts:
    """What folders hold; each state that has other files is loaded once."""

    def __init__(self, use: Use) -> None:
        self._use = use
        self._manifests: dict[bytes, list[str]] = {}
        self._states: dict[tuple[Any, ...], str] = {}
        self.total = 0

    def of(self, files: Folder) -> dict[int, str]:
        """The digest of each state, by number; the greatest number is the newest."""
        self.total += 1
        found = {}
        for name in files:
            if name.startswith("state-"):
                number = int(name[6:-5])
                # What a state is depends on its manifest and the files that this names.
                key = (name, files[name], *(files.get(n) for n in self._names(files[name])))
                if key not in self._states:
                    self._use(MemoryDisk(files))
                    self._states[key] = digest(load("memory", state=number))
                    check_beside(number, self._states[key])
                found[number] = self._states[key]
        return found

    def _names(self, manifest: bytes) -> list[str]:
        if manifest not in self._manifests:
            self._manifests[manifest] = []
            with suppress(ValueError, LookupError):
                text = json.loads(manifest.splitlines()[0])
                self._manifests[manifest] = [file["name"] for file in files_in(text)]
        return self._manifests[manifest]


def check_beside(number: int, rows: str) -> None:
    """The files beside the rows of a state are those that were saved with these rows, all of them.

    ``rows`` is the digest of what was loaded.
    """
    found = {
        file.label: open_beside("memory", file.label, state=number).read()
        for file in read_folder("memory", lambda opened: opened.state.beside, state=number)
    }
    assert found in ({}, {"model.pt": rows.encode() * 30, "env.pkl": ENV})


# ---------------------------------------------------------------------- what is saved over what

ENV = b"an environment" * 100


class Case:
    """A thing with states in a folder, and one save more to come."""

    def __init__(self, use: Use, thing: Any) -> None:
        self.use = use
        self.thing = thing
        self.files: Folder = {}
        self.states: dict[int, str] = {}  # what loads give, by number

    def save(self, **options: Any) -> MemoryDisk:
        """Save; returns the disk, with what was done to it."""
        disk = MemoryDisk(self.files)
        self.use(disk)
        self.thing.save("memory", **options)
        self.files = disk.files()
        self.states[_manifest.numbers(disk)[-1]] = digest_of_copy(self.thing)
        return disk

    def write_model(self, file: Any) -> None:
        """What belongs to the rows that the thing has now, in pieces."""
        rows = digest_of_copy(self.thing).encode()
        for _ in range(3):
            file.write(rows * 10)
            file.flush()


def first_save(use: Use) -> tuple[Case, dict[str, Any]]:
    """An empty folder."""
    case = Case(use, make("plain"))
    add(case.thing, 55)
    return case, {}


def incremental(use: Use) -> tuple[Case, dict[str, Any]]:
    """Some segments stay, and those with edited rows are written again."""
    case, _ = first_save(use)
    case.save()
    add(case.thing, 17)
    update(case.thing, 2)
    return case, {}


def edited_again(use: Use) -> tuple[Case, dict[str, Any]]:
    """Edited rows, and nothing else."""
    case, _ = incremental(use)
    case.save()
    update(case.thing, 2)
    return case, {}


def kept_states(use: Use) -> tuple[Case, dict[str, Any]]:
    """Two states stay."""
    case, _ = incremental(use)
    case.save(keep=2)
    add(case.thing, 13)
    return case, {"keep": 2}


def fewer_states(use: Use) -> tuple[Case, dict[str, Any]]:
    """Three states, of which one is to stay."""
    case, _ = kept_states(use)
    case.save(keep=3)
    add(case.thing, 13)
    return case, {"keep": 1}


def priorities(use: Use) -> tuple[Case, dict[str, Any]]:
    """An array beside the rows changes."""
    case = Case(use, make("prioritized", 200))
    add(case.thing, 200)
    update(case.thing, 9)
    case.save()
    update(case.thing, 5)
    return case, {}


def derived_values(use: Use) -> tuple[Case, dict[str, Any]]:
    """Frames, overflows and newest values."""
    case = Case(use, make("next_of+stacks+n_envs", 40))
    add(case.thing, 15)
    case.save()
    add(case.thing, 11)
    return case, {}


def items(use: Use) -> tuple[Case, dict[str, Any]]:
    """Values of any length; rows left early, and others were moved."""
    case = Case(use, make("narrow", 30))
    add(case.thing, 25)
    case.save(keep=2)
    add(case.thing, 6)
    update(case.thing, 4)
    return case, {"keep": 2}


def compressed(use: Use) -> tuple[Case, dict[str, Any]]:
    """Files of several codecs."""
    case = Case(use, make("Nstep", 40))
    add(case.thing, 15)
    case.save(codec="lzma")
    add(case.thing, 11)
    return case, {"codec": "zlib"}


def two_buffers(use: Use) -> tuple[Case, dict[str, Any]]:
    """Two rings in one state."""
    case = Case(use, mixture())
    for rb in parts(case.thing):
        add(rb, 40)
    case.save()
    first, second = parts(case.thing)
    update(first, 3)
    add(second, 9)
    return case, {}


def with_files(use: Use, kind: str = "prioritized") -> tuple[Case, dict[str, Any]]:
    """Files of the caller beside the rows, over a state with others, and one without."""
    case = Case(use, make(kind, 30))
    beside = {"model.pt": case.write_model, "env.pkl": ENV}
    for options in ({}, {"beside": beside}):
        add(case.thing, 15)
        case.save(keep=2, **options)
    add(case.thing, 6)
    update(case.thing, 3)
    return case, {"keep": 2, "beside": beside}


def leftovers(use: Use) -> tuple[Case, dict[str, Any]]:
    """A crash at the rename, which came through without the names before it being old."""
    case, _ = incremental(use)
    disk = MemoryDisk(case.files)
    use(disk)
    copy.deepcopy(case.thing).save("memory")
    at = next(k for k, operation in enumerate(disk.log) if operation[0] == "rename")
    for length, folders in crashes(disk, 1, 0):
        if length == at:
            case.files = next(folders)
    case.files["s7-0.npy"] = b"torn"
    use(MemoryDisk(case.files))
    case.thing = load("memory")  # the program is another one now
    add(case.thing, 15)
    return case, {}


CASES = [
    first_save,
    incremental,
    edited_again,
    kept_states,
    fewer_states,
    priorities,
    derived_values,
    items,
    compressed,
    two_buffers,
    with_files,
    leftovers,
]
by_case = pytest.mark.parametrize("build", CASES, ids=lambda case: case.__name__)


@pytest.mark.slow
@by_case
def test_a_crash_leaves_the_old_state_or_the_new(
    build: Callable[[Use], tuple[Case, dict[str, Any]]], use: Use
) -> None:
    """Every prefix of the operations, with any part of what was not synchronised."""
    case, options = build(use)
    old = dict(case.states)
    before = max(old, default=0)
    disk = case.save(**options)
    now = max(case.states)
    renamed = 1 + next(k for k, operation in enumerate(disk.log) if operation[0] == "rename")
    synced = 1 + next(k for k, o in enumerate(disk.log) if k >= renamed and o[0] == "sync_names")
    keep = options.get("keep", 1)

    verdicts = Verdicts(use)
    newest_seen = set()
    for length, folders in crashes(disk, MOST, 1):
        for folder in folders:
            found = verdicts.of(folder)
            newest = max(found, default=0)
            newest_seen.add(newest)
            assert newest in {before, now}, (length, sorted(found))
            assert newest == before or length >= renamed, length
            assert newest == now or length < synced, length
            assert {n: case.states[n] for n in found} == found, length
            wanted = [n for n in sorted(case.states) if n <= newest][-keep:]
            assert set(wanted) <= set(found), (length, wanted, sorted(found))
    assert newest_seen == {before, now}
    assert verdicts.total > 500


def test_a_crash_leaves_rows_and_files_of_one_state(use: Use) -> None:
    """Both or neither, in each of so many folders."""
    verdicts, seed = Verdicts(use), 0
    newest_seen = set()
    while verdicts.total < CRASH_IMAGES:
        case, options = with_files(use, ("prioritized", "next_of", "narrow")[seed % 3])
        disk = case.save(**options)
        before, now = sorted(case.states)[-2:]
        assert [len(_manifest.read(disk, number).beside) for number in (before, now)] == [2, 2]
        for length, folders in crashes(disk, MOST, seed):
            for folder in folders:
                found = verdicts.of(folder)
                newest_seen.add(max(found))
                assert max(found) in (before, now), length
                assert {n: case.states[n] for n in found} == found, length
        seed += 1
    assert newest_seen == {before, now}
    print(f"{verdicts.total} folders")


@pytest.mark.parametrize("most", [0, 2, 50])
def test_files_are_synchronised_while_the_next_ones_are_written(
    most: int, use: Use, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So many of them wait and are open, no more; and none does when the manifest is written."""
    monkeypatch.setattr(_ring_writer, "MOST_OPEN", most)
    case = Case(use, make("next_of+stacks", 400))
    add(case.thing, 400)
    disk = case.save()
    waiting: set[int] = set()
    still_open: set[int] = set()
    waited = []
    for kind, *rest in disk.log:
        if kind == "create":
            waited.append(len(waiting))
            assert len(still_open) <= most
            assert rest[0] != _manifest.UNFINISHED or not still_open
            waiting.add(rest[-1])
            still_open.add(rest[-1])
        elif kind == "sync":
            waiting.remove(rest[0])
        elif kind == "close":
            still_open.remove(rest[0])
    assert not waiting
    assert not still_open
    assert len(waited) > 100
    assert max(waited) == most


@pytest.mark.parametrize("what", ["sync", "sync_names"])
def test_a_crash_would_tell_of_what_is_not_synchronised(what: str, use: Use) -> None:
    """Else the test above would say nothing."""
    case, options = incremental(use)
    disk = case.save(**options)
    disk.log = [operation for operation in disk.log if operation[0] != what]
    verdicts = Verdicts(use)
    left = [folder for _, folders in crashes(disk, 40, 1) for folder in folders]
    with pytest.raises(DamagedError):
        any(verdicts.of(folder) is None for folder in left)


@pytest.mark.slow
@by_case
def test_after_a_crash_it_goes_on(
    build: Callable[[Use], tuple[Case, dict[str, Any]]], use: Use
) -> None:
    """Whatever a crash left: what is loaded is saved there again, once and once more."""
    case, options = build(use)
    disk = case.save(**options)
    for length, folders in crashes(disk, 1, 2):
        for folder in folders if length % (3 if LONG else 9) == 0 else ():
            after = MemoryDisk(folder)
            use(after)
            thing = load("memory") if _manifest.numbers(after) else build(use)[0].thing
            case.thing = thing
            use(after)
            for _ in range(2):
                for rb in parts(thing):
                    add(rb, 3)
                    update(rb, 2)
                thing.save("memory", **options)
                saved = digest(load("memory"))
                assert saved == digest_of_copy(thing)
                check_beside(_manifest.numbers(after)[-1], saved)
            left = after.names()
            named = {
                name
                for n in _manifest.numbers(after)
                for name in [file.name for file in _manifest.read(after, n).files]
            }
            assert set(left) == named | {
                _manifest.manifest_name(n) for n in _manifest.numbers(after)
            }


def test_the_disk_in_memory_is_as_a_real_one(use: Use, tmp_path: Path) -> None:
    """Else the tests above would say nothing: the same names, of the same lengths."""
    for build in CASES:
        case, options = build(use)
        if build is leftovers:
            continue
        folder = tmp_path / build.__name__
        folder.mkdir()
        for name, data in case.files.items():
            (folder / name).write_bytes(data)
        use(_disk.Disk(folder))  # type: ignore[arg-type]
        copied = load(folder) if case.files else copy.deepcopy(case.thing)
        for rb in parts(copied):
            add(rb, 1)
        twin = copy.deepcopy(copied) if not case.files else load(folder)
        for rb in parts(twin) if case.files else ():
            add(rb, 1)
        copied.save(folder, **options)
        disk = MemoryDisk(case.files)
        use(disk)
        twin.save("memory", **options)
        sizes = {path.name: path.stat().st_size for path in folder.iterdir() if path.name != "lock"}
        found = {name: len(data) for name, data in disk.files().items()}
        assert sizes.keys() == found.keys()
        for name, size in sizes.items():
            # In a manifest is the entropy of a generator, of which NumPy 1.26 makes copies anew.
            assert size == found[name] or _manifest.NAME.fullmatch(name)
        use(_disk.Disk(folder))  # type: ignore[arg-type]
        assert digest(load(folder)) == digest(twin)


# ---------------------------------------------------------------------- errors

ERRORS = {
    "full": OSError,
    "broken": OSError,
    "cut before": KeyboardInterrupt,
    "cut after": KeyboardInterrupt,
}


@pytest.mark.slow
@pytest.mark.parametrize("what", ERRORS)
@by_case
def test_an_error_leaves_the_old_state_or_the_new(
    build: Callable[[Use], tuple[Case, dict[str, Any]]], what: str, use: Use
) -> None:
    """At each operation: it is raised, the buffer is as before, and the next save is right."""
    n_operations = len(build(use)[0].save(**build(use)[1]).log)
    case, options = build(use)
    thing, unchanged = case.thing, digest_of_copy(case.thing)
    disk = MemoryDisk(case.files)
    use(disk)
    verdicts = Verdicts(use)
    first, step = (0, 1) if LONG else (2 * [*ERRORS].index(what), 8)
    for at in range(first, n_operations, step):
        disk.log.clear()
        disk.before = lambda number, _, at=at: what if number == at else None  # type: ignore[misc]
        try:
            thing.save("memory", **options)
        except ERRORS[what]:
            renamed = any(o[0] == "rename" for o in disk.log[: at + (what == "cut after")])
            assert len(disk.log) > at
        else:
            # It went another way than the first time; or what failed was to tidy up.
            renamed = True
            assert len(disk.log) <= at
        assert not disk.is_locked
        disk.before = lambda *_: None
        assert digest_of_copy(thing) == unchanged, at
        newest = max(_manifest.numbers(disk), default=0)
        if newest == max(case.states, default=0):
            assert not renamed
            if newest:
                assert verdicts.of(disk.files())[newest] == case.states[newest], at
                use(disk)
        else:
            assert renamed
            assert digest(load("memory")) == unchanged, at
            case.states[newest] = unchanged
        if at // step % 5 == 0:
            for rb in parts(thing):
                add(rb, 1)
            unchanged = digest_of_copy(thing)
            thing.save("memory", **options)
            assert digest(load("memory")) == unchanged, at
            case.states[_manifest.numbers(disk)[-1]] = unchanged


@pytest.mark.slow
def test_a_save_that_is_cut_at_any_line_leaves_no_trace(use: Use) -> None:
    """As by Ctrl-C: the folder opens, the buffer goes on, and the next save is right."""
    case, _ = incremental(use)
    old = case.states[max(case.states)]

    def start() -> tuple[MemoryDisk, ReplayBuffer]:
        disk = MemoryDisk(case.files)
        use(disk)
        return disk, copy.deepcopy(case.thing)

    def has_effects(path: str) -> bool:
        """Whether lines of a file may leave something behind: all but those of the JSON codec."""
        return str(PACKAGE) in path and not path.endswith(PURE)

    _, rb = start()
    new, verdicts = digest_of_copy(rb), Verdicts(use)
    beside: Any = {"env.pkl": ENV, "model.pt": lambda file: file.write(new.encode() * 30)}
    lines = first_and_last(lambda: rb.save("memory", beside=beside), has_effects)
    if LONG:
        lines = [*range(1, lines[-1] + 1, 3)]
    assert len(lines) > 300
    n_cut = 0
    for line in lines:
        disk, rb = start()
        try:
            with cut_at(line, only=has_effects):
                rb.save("memory", beside=beside)
        except Cut:
            n_cut += 1
        assert not disk.is_locked
        assert digest_of_copy(rb) == new, line
        states = verdicts.of(disk.files())
        assert states[max(states)] in (old, new), line
        use(disk)
        add(rb, 1)
        update(rb, 1)
        rb.save("memory")
        assert digest(load("memory")) == digest_of_copy(rb), line
    assert n_cut > 0.95 * len(lines)


class ShortFile:
    """A file of which the system takes a few bytes at a time."""

    name = "short"

    def __init__(self) -> None:
        self.taken = b""

    def write(self, data: memoryview) -> int:
        """Take at most three bytes, and none after 40."""
        n = min(3, len(data), 40 - len(self.taken))
        self.taken += bytes(data[:n])
        return n


def test_short_writes_are_gone_on_with(tmp_path: Path) -> None:
    """And a file that takes nothing more is an error."""
    output = _disk.Output(tmp_path / "file")
    output.close()
    output._file = ShortFile()
    output.write(bytes(range(38)))
    assert output._file.taken == bytes(range(38))
    with pytest.raises(OSError, match="no byte was written"):
        output.write(b"12345")


def test_a_real_disk_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``fsync`` may fail, too; nothing is left open, and the folder has its old state."""
    rb = make("next_of")
    add(rb, 10)
    rb.save(tmp_path)
    old = digest_of_copy(rb)
    add(rb, 10)

    def fail(number: int) -> None:
        raise OSError(5, "input/output error (a test)")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        with pytest.raises(OSError, match="a test"):
            rb.save(tmp_path)
    assert digest(ReplayBuffer.load(tmp_path)) == old
    rb.save(tmp_path)
    assert digest(ReplayBuffer.load(tmp_path)) == digest(rb)
