"""Damaged folders: refused by the name of the file, or loaded without the rows that it had."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from saved_cases import add, check_rows, digest, make, small_segments, update, versions_of

from cpprb_like import ReplayBuffer
from cpprb_like.checkpoint import DamagedError, _manifest
from cpprb_like.checkpoint._disk import Disk
from cpprb_like.checkpoint._state import File

KINDS = (
    "plain",
    "prioritized",
    "ranked",
    "next_of",
    "stacks",
    "n_envs",
    "Nstep",
    "next_of+stacks",
    "next_of+stacks+n_envs",
    "prioritized+Nstep",
    "ranked+Nstep",
    "next_of+prioritized+n_envs",
    "ragged",
    "ragged+next_of+prioritized+n_envs",
)
by_kind = pytest.mark.parametrize("kind", KINDS)


_small_segments = small_segments(6000)


def saved(kind: str, folder: Path) -> ReplayBuffer:
    """A buffer with segments of several saves, and arrays beside them."""
    rb = make(kind, 150, seed=3)
    add(rb, 200 // rb.n_envs)
    rb.save(folder)
    update(rb, 8)
    rb.save(folder)
    add(rb, 60 // rb.n_envs)
    update(rb, 8)
    rb.save(folder)
    return rb


def files_of(folder: Path) -> dict[str, list[str]]:
    """The files of the newest state, by what they hold."""
    disk = Disk(folder)
    state = _manifest.read(disk, _manifest.numbers(disk)[-1])
    found: dict[str, list[str]] = {}

    def note(kind: str, *files: File) -> None:
        found.setdefault(kind, []).extend(file.name for file in files)

    for ring in state.rings:
        for segment in ring.segments:
            for part in segment.parts.values():
                note("segment", part.file)
            for overflow in segment.overflow.values():
                note("overflow", overflow.ids, overflow.values)
            for items in segment.items:
                note("counts", items.counts)
                note("items", *items.values.values())
        for newest in ring.newest.values():
            note("newest", newest.values, newest.is_there)
    for array in state.arrays:
        note("array", array.file)
    assert {name for some in found.values() for name in some} == {f.name for f in state.files}
    return found


def damage(path: Path, how: str) -> None:
    """Spoil a file."""
    data = bytearray(path.read_bytes())
    if how == "gone":
        path.unlink()
        return
    if how == "flipped":
        data[len(data) * 2 // 3] ^= 4
    elif how == "cut":
        del data[-1]
    path.write_bytes(data)


def salvage(folder: Path) -> tuple[ReplayBuffer, str]:
    """What is left, and what is said."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        rb = ReplayBuffer.load(folder, salvage=True)
    (warning,) = caught
    return rb, str(warning.message)


def there(rb: ReplayBuffer) -> int:
    """Rows that are there, complete or not."""
    return rb.ring.stored - rb.ring.absent


@pytest.mark.slow
@by_kind
def test_one_damaged_file_costs_its_rows_and_no_others(kind: str, tmp_path: Path) -> None:
    """Whatever the file holds; the rest is right, and so is what is added afterwards."""
    rb = saved(kind, tmp_path)
    versions, n = versions_of(rb), there(rb)
    own = digest(ReplayBuffer.load(tmp_path))
    tried = 0
    for what, names in files_of(tmp_path).items():
        chosen = list(dict.fromkeys(names))
        for k, name in enumerate(chosen[:: max(1, len(chosen) // 4)] + chosen[-1:]):
            path = tmp_path / name
            data = path.read_bytes()
            damage(path, ("flipped", "cut", "gone")[k % 3])
            with pytest.raises(DamagedError, match=re.escape(name)):
                ReplayBuffer.load(tmp_path)
            left, message = salvage(tmp_path)
            path.write_bytes(data)
            tried += 1
            assert name in message
            lost = n - there(left)
            told = re.search(r"(\d+) of \d+ rows are lost", message)
            assert lost == (int(told[1]) if told else 0), (what, message)
            # All items of a file may be next ones of the rows before, which are in another file.
            if what != "items" or "ragged+next_of" not in kind:
                assert (lost == 0) == (what == "array"), (what, message)
            assert lost < n // 2, (what, message)
            left.check()
            check_rows(left, versions)
            if len(left):
                drawn = left.sample(200)
                assert set(drawn["id"].tolist()) <= set(versions)
                update(left, 5)
            known = versions_of(left)
            for steps in (1, 90):
                add(left, steps)
                left.check()
                check_rows(left)
                ids = set(left.get_all_transitions()["id"].tolist())
                assert {i: v for i, v in versions_of(left).items() if v} == {
                    i: v for i, v in known.items() if v and i in ids
                }
            if tried % 4 == 0:
                left.save(tmp_path / "again")
                assert digest(ReplayBuffer.load(tmp_path / "again")) == digest(left)
    assert digest(ReplayBuffer.load(tmp_path)) == own
    assert tried >= 5


@pytest.mark.slow
@pytest.mark.parametrize("kind", [*KINDS, "narrow", "narrow+ranked+Nstep"])
def test_several_damaged_files(kind: str, tmp_path: Path) -> None:
    """Also what one file alone would not cost; with another capacity, and fewer fields."""
    rb = saved(kind, tmp_path)
    versions = versions_of(rb)
    names = sorted({name for some in files_of(tmp_path).values() for name in some})
    rng = np.random.default_rng(7)
    for _ in range(12):
        some = [str(name) for name in rng.choice(names, rng.integers(2, 6), replace=False)]
        data = {name: (tmp_path / name).read_bytes() for name in some}
        for name in some:
            damage(tmp_path / name, str(rng.choice(["flipped", "cut", "gone"])))
        options: dict[str, Any] = {}
        if rng.random() < 0.5:
            options["size"] = int(rng.choice([20, 100, 300]))
        if "tokens" in rb.schema.names and rng.random() < 0.5:
            options["room"] = {"E": int(rng.choice([20, 100, 900])), "text": 300}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            left = ReplayBuffer.load(tmp_path, salvage=True, **options)
        for name in some:
            (tmp_path / name).write_bytes(data[name])
        left.check()
        check_rows(left, versions)
        for steps in (1, 40):
            add(left, steps)
            left.check()
            check_rows(left)


def test_a_save_over_a_damaged_state_writes_all_anew(tmp_path: Path) -> None:
    """A file that it would have used again is gone, or has another length."""
    for how in ("gone", "cut"):
        folder = tmp_path / how
        rb = saved("next_of", folder)
        damage(folder / files_of(folder)["segment"][0], how)
        rb.save(folder)
        assert digest(ReplayBuffer.load(folder)) == digest(rb)


def test_an_older_state_takes_the_place_of_a_damaged_manifest(tmp_path: Path) -> None:
    """With ``salvage``; without it the message says so."""
    rb = make("plain")
    add(rb, 10)
    rb.save(tmp_path, keep=2)
    add(rb, 10)
    rb.save(tmp_path, keep=2)
    damage(tmp_path / "state-000002.json", "flipped")
    with pytest.raises(DamagedError, match=r"state-000002.*salvage=True"):
        ReplayBuffer.load(tmp_path)
    left, message = salvage(tmp_path)
    assert "state-000002" in message
    assert len(left) == 10
    rb.save(tmp_path, keep=2)
    assert len(ReplayBuffer.load(tmp_path)) == 20
