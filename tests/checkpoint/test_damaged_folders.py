"""Folders that are damaged, and those that somebody has forged: refused, or loaded as they say.

No case ends the interpreter, hangs, takes memory that the files do not hold, or runs code.
"""

from __future__ import annotations

import contextlib
import json
import random
import re
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from crashing_disk import Folder, MemoryDisk
from forged_folders import damaged, forged, sealed
from forked import run_in_child
from saved_cases import add, digest, make, mixture, parts, small_segments, update
from scale import LONG

from cpprb_like import NotEnoughDataError
from cpprb_like.checkpoint import _saved, load
from cpprb_like.views import FrameStacks, NStep, Packed, Sequences

needs_linux = pytest.mark.skipif(
    not Path("/proc/self/statm").exists(), reason="asks the system for its memory"
)
CASES = 10_000 if LONG else 150  # of each kind of folder, damaged and forged
REFUSALS = (ValueError, TypeError, OSError, MemoryError)


def one(kind: str) -> Callable[[], Any]:
    """A buffer of the kind."""
    return lambda: make(kind, 60, seed=1)


def view() -> Any:
    """A view with layers of several kinds."""
    layers = FrameStacks({"obs": 2}), Sequences(3), NStep(2, 0.5)
    return make("prioritized", 60, seed=1).view(*layers)


def packed() -> Any:
    """A view that packs values of any length."""
    layout = Packed(positions="T", segments=True, multiple_of={"E": 4}, dtypes={"edges": "i8"})
    return make("narrow", 60, seed=1).view(layout, Sequences(2))


THINGS: dict[str, Callable[[], Any]] = {
    kind: one(kind)
    for kind in (
        "plain",
        "prioritized",
        "ranked+Nstep",
        "next_of+stacks+n_envs",
        "Nstep",
        "ragged",
        "narrow+next_of+n_envs",
    )
} | {"mixture": mixture, "view": view, "packed": packed}
by_thing = pytest.mark.parametrize("name", THINGS)


_small_segments = small_segments(3000)


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Callable[[MemoryDisk], None]:
    """Let all folders be on this disk."""
    return lambda disk: monkeypatch.setattr(_saved, "Disk", lambda *_: disk)


Use = Callable[[MemoryDisk], None]


def folder_of(name: str, use: Use) -> Folder:
    """A folder with two states, of which the newer one takes over segments."""
    thing = THINGS[name]()
    disk = MemoryDisk()
    use(disk)
    for rb in parts(thing):
        add(rb, 70 // rb.n_envs)
        update(rb, 5)
    thing.save("memory", keep=2)
    for rb in parts(thing):
        update(rb, 2)
    thing.save("memory", keep=2)
    return disk.files()


def try_out(thing: Any) -> str | None:
    """Whether what was loaded can be used; what is wrong with it."""
    try:
        for rb in parts(thing):
            rb.check()
    except AssertionError as error:  # a byte of a field that holds neither 0 nor 1
        if "expected 0 or 1" not in str(error):
            raise
    with contextlib.suppress(NotEnoughDataError, MemoryError):  # of what is asked for too
        for source in (*parts(thing), thing):
            source.sample(20)
    for rb in parts(thing):
        rb.get_all_transitions()
    return None


@needs_linux
@pytest.mark.slow
@by_thing
def test_accidents_are_refused_or_harmless(name: str, use: Use) -> None:
    """Each folder is refused by the name of a file, or gives what was saved."""
    files = folder_of(name, use)
    use(MemoryDisk(files))
    whole, old = digest(load("memory")), digest(load("memory", state=1))

    def job(number: int) -> str | None:
        found, what = damaged(files, random.Random(number))
        use(MemoryDisk(found))
        try:
            same = digest(load("memory")) in (whole, old)
        except REFUSALS as error:
            return None if str(error) else f"{what}: {error!r} says nothing"
        except BaseException as error:
            return f"{what}: {error!r}"
        return None if same else f"{what}: other rows, and no error"

    told = run_in_child(job, CASES)
    assert not told, "\n".join(told)


@needs_linux
@pytest.mark.slow
@by_thing
def test_forgeries_are_refused_or_consistent(name: str, use: Use) -> None:
    """Whatever a manifest and the files say, if their checksums are right."""
    files = folder_of(name, use)

    def job(number: int) -> str | None:
        found, what = forged(files, random.Random(number))
        use(MemoryDisk(found))
        try:
            thing = load("memory")
        except REFUSALS as error:
            return None if str(error) else f"{what}: {error!r} says nothing"
        except BaseException as error:
            return f"{what}: {error!r} when loaded"
        try:
            return try_out(thing)
        except BaseException as error:
            place = traceback.extract_tb(error.__traceback__)[-1]
            return f"{what}: {error!r} when used, {place.name}:{place.lineno}"

    told = run_in_child(job, CASES)
    assert not told, "\n".join(told)


RING = ("rings", 0)
FIELDS = (*RING, "layout", "options", "schema", "fields")
RECORDS = (*RING, "segments", 0, "parts", "records")
SAMPLER = ("root", "state", "sampler")
# Lists of it would take all memory.
NO_NUMBERS = {"$": "small array", "value": ["<i8", [10**6, 10**6, 0], ""]}
NSTEP = {
    "size": 1,
    "gamma": 0.9,
    "rewards": ["nothing"],
    "last_step_fields": [],
    "discount": False,
    "discount_shape": [],
}
FORGERIES: list[tuple[tuple[Any, ...], Any, str]] = [
    ((*RING, "layout", "options", "size"), 10**15, ""),
    ((*RING, "layout", "options", "n_envs"), 10**6, ""),
    ((*RING, "layout", "options", "nstep"), 7, "nstep: expected an object with"),
    ((*RING, "layout", "options", "nstep"), NSTEP | {"gamma": float("inf")}, "gamma"),
    ((*RING, "layout", "options", "nstep"), NSTEP | {"size": 0}, ""),
    ((*RING, "layout", "options", "nstep"), NSTEP | {"size": 10**15}, ""),
    ((*RING, "layout", "options", "nstep"), NSTEP, "needs the fields \\['nothing'\\]"),
    ((*FIELDS, 1, "shape"), [10**15], ""),
    ((*FIELDS, 0, "dtype"), "|O", "dtype"),
    ((*FIELDS, 0, "name"), 7, r"fields\[0\]\.name: expected a str, got 7"),
    ((*RING, "written"), -1, "expected a number"),
    ((*RING, "written"), 10**15, ""),
    ((*RECORDS, "stop"), 10**15, "expected a number"),
    ((*RECORDS, "first"), "x", r"records\.first: expected a number from 0 to \d+, got 'x'"),
    ((*RING, "segments", 0), {}, r"segments\[0\]: expected an object with \['number', 'parts', "),
    ((*RING, "segments"), {}, r"memory.*state-000002.json: rings\[0\]\.segments: expected a list"),
    ((*RING, "episode_lens"), [1, 2], "expected one for each environment"),
    (("synchronised",), 1, "synchronised: expected a bool, got 1"),
    ((*RING, "segments"), [], "rows are lost: they are in no file"),
    ((*RECORDS, "file", "name"), "../../etc/passwd", "names a file .*passwd"),
    ((*RECORDS, "file", "name"), "/etc/passwd", "names a file .*passwd"),
    ((*RECORDS, "file", "nbytes"), -1, r"file\.nbytes: expected a number from 0 to"),
    ((*RECORDS, "file", "codec"), "pickle", r"file\.codec: expected .*, got 'pickle'"),
    ((*RECORDS, "file", "dtype"), "|O", "dtype"),
    ((*RECORDS, "file", "dtype"), "<f8", "bytes are no float64 of shape|expected .*, got float64"),
    ((*RECORDS, "file", "shape"), [10**15], "expected .* of shape"),
    (("root", "class"), "os.system", "'os.system' is no class of this package"),
    (("root", "class"), "caller's ReplayBuffer2", "hand it over as classes="),
    ((*SAMPLER, "class"), "subprocess.Popen", "is no class of this package"),
    ((*SAMPLER, "class"), "ReplayBuffer", "holds rows"),
    (("root", "state", "rng", "class"), "eval", "unknown generator 'eval'"),
    (("root",), "deep 100000", ""),
    (("root", "state", "sampler"), None, "sampler: expected one"),
    (("root", "state", "rng", "seeds", "pool_size"), 10**8, "a pool of 100000000 words"),
    (("root", "state", "rng", "seeds", "entropy"), NO_NUMBERS, "entropy: expected an integer"),
    (("format",), "zip", "not a manifest"),
    (("version",), 1, "version 1"),
]


ITEMS = (*RING, "segments", 0, "items")
AXES = (*RING, "layout", "options", "schema", "axes")
# Of values of any length.
ITEM_FORGERIES: list[tuple[tuple[Any, ...], Any, str]] = [
    (ITEMS, [], "rows are lost: they are in no file"),
    ((*ITEMS, 0), {}, r"items\[0\]: expected an object with \['axis', 'counts', 'values', "),
    ((*ITEMS, 0, "axis"), "Q", "rows are lost: they are in no file"),
    ((*ITEMS, 1, "axis"), "T", "its rows are in other files too"),
    ((*ITEMS, 0, "stop"), 10**15, "expected a number"),
    ((*ITEMS, 0, "first"), 10**15, "expected a number"),
    ((*ITEMS, 0, "counts", "shape"), [10**15], "expected int64 of shape"),
    ((*ITEMS, 0, "counts", "dtype"), "<i4", "expected int64 of shape"),
    ((*ITEMS, 0, "values"), {}, r"KeyError\('tokens'\)"),
    ((*ITEMS, 0, "values", "tokens", "shape"), [10**15], "expected int32 of shape"),
    ((*ITEMS, 0, "values", "tokens", "shape", 0), 10**15, "expected int32 of shape"),
    ((*ITEMS, 0, "values", "tokens", "dtype"), "<i8", "expected int32 of shape"),
    ((*RING, "left"), [0], "left: expected one for each axis"),
    ((*RING, "left", 0), 10**15, "items of axis 'T': rows that left: expected 0 to"),
    ((*AXES, 0, "room"), 1, r"room=\{'T': 1\}: a row has \d items"),
    ((*AXES, 0, "room"), 0, "room"),
    ((*AXES, 0, "room"), 2**32, "do not follow from the fields"),
    ((*AXES, 0, "room"), 2**60, ""),
    ((*AXES, 0, "fields"), [], "do not follow from the fields"),
    (AXES, [], "axes|axis"),
]


@needs_linux
@pytest.mark.parametrize(
    ("kind", "forgeries"), [("plain", FORGERIES), ("ragged", ITEM_FORGERIES)], ids=["rows", "items"]
)
def test_forgeries_one_by_one(
    kind: str, forgeries: list[tuple[tuple[Any, ...], Any, str]], use: Use
) -> None:
    """Each is refused at once; nothing is opened beside the folder, imported or run."""
    files = folder_of(kind, use)
    load("memory")  # so that its modules are imported
    name = max(name for name in files if name.startswith("state-"))

    def job(number: int) -> str | None:
        path, value, message = forgeries[number]
        manifest = json.loads(files[name].splitlines()[0])
        place = manifest
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = value
        use(MemoryDisk(files | {name: sealed(manifest)}))
        known = set(sys.modules)
        try:
            load("memory")
        except (ValueError, MemoryError) as error:
            if not re.search(message, str(error)):
                return f"{path}: {error}"
        else:
            return f"{path} = {value}: loaded"
        return f"imported {set(sys.modules) - known}" if set(sys.modules) - known else None

    told = run_in_child(job, len(forgeries))
    assert not told, "\n".join(told)
