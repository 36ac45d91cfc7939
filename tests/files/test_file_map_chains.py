"""Chained fields in file maps: opened again, they hold what a buffer on the heap holds."""

from __future__ import annotations

import errno
import random
import threading
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from strategies import assert_same

from cpprb_like import ReplayBuffer
from cpprb_like._files import file_maps

FIELDS: dict[str, Any] = {
    "x": {"shape": 200, "dtype": "i4"},
    "stack": {"shape": (50, 4), "dtype": "u1"},
    "done": {"shape": (), "dtype": bool},
}
OPTIONS: dict[str, Any] = {"next_of": ["x", "stack"], "stack_compress": "stack", "seed": 0}


def rows(rng: np.random.Generator, n: int, wild: float, last: Any) -> dict[str, Any]:
    """``n`` steps that follow ``last``, but for a share of them that follow nothing."""
    found: dict[str, list[Any]] = {name: [] for name in ("x", "stack", "next_x", "next_stack")}
    x, stack = last
    for _ in range(n):
        if rng.random() < wild:
            x, stack = rng.integers(0, 99, 200), rng.integers(0, 255, (50, 4))
        next_x = rng.integers(0, 99, 200)
        next_stack = np.concatenate([stack[:, 1:], rng.integers(0, 255, (50, 1))], axis=1)
        if rng.random() < wild:
            next_stack = rng.integers(0, 255, (50, 4))
        for name, value in zip(found, (x, stack, next_x, next_stack), strict=True):
            found[name].append(value)
        x, stack = next_x, next_stack
        if rng.random() < wild:
            x, stack = rng.integers(0, 99, 200), rng.integers(0, 255, (50, 4))
    last[:] = x, stack
    values = {name: np.array(parts) for name, parts in found.items()}
    return values | {"done": rng.random(n) < 0.2}


@pytest.mark.parametrize(("capacity", "n_envs"), [(1, 1), (7, 1), (60, 3), (300, 1)])
@pytest.mark.parametrize("wild", [0.0, 0.1, 1.0])
@pytest.mark.filterwarnings("ignore:.* do not follow:UserWarning")
def test_a_file_is_opened_again_with_all_that_is_read(
    tmp_path: Path, rng: np.random.Generator, capacity: int, n_envs: int, wild: float
) -> None:
    """Now and then the file is opened again; what is read is what the twin on the heap has."""
    twin = ReplayBuffer(capacity, FIELDS, n_envs=n_envs, **OPTIONS)
    files: dict[str, Any] = {"mmap_prefix": tmp_path / "a", **OPTIONS}
    rb = ReplayBuffer(capacity, FIELDS, n_envs=n_envs, **files)
    chance = random.Random(int(rng.integers(1 << 30)))
    last = [[np.zeros(200, int), np.zeros((50, 4), int)] for _ in range(n_envs)]
    for _ in range(40):
        n = chance.choice([1, 1, 2, 30])
        parts = [rows(rng, n, wild, one) for one in last]
        values = {name: np.stack([part[name] for part in parts], axis=1) for name in parts[0]}
        if n_envs == 1:
            values = {name: value[:, 0] for name, value in values.items()}
        rb.add(**values)
        twin.add(**values)
        if chance.random() < 0.05:
            rb.clear()
            twin.clear()
        if chance.random() < 0.1 and len(twin.episodes) and twin.episodes.list()[0].complete:
            rb.episodes.delete(0)
            twin.episodes.delete(0)
        if chance.random() < 0.3:
            rb.check()
            del rb
            rb = ReplayBuffer(capacity, FIELDS, n_envs=n_envs, mmap_mode="a", **files)
        for name, column in twin.get_all_transitions().items():
            assert_same(column, rb.get_all_transitions()[name], name)
    rb.check()
    del rb
    other = ReplayBuffer(capacity, FIELDS, n_envs=n_envs, mmap_mode="r", **files)
    for name, column in twin.get_all_transitions().items():
        assert_same(column, other.get_all_transitions()[name], name)


@pytest.mark.filterwarnings("ignore:.* do not follow:UserWarning")
def test_values_apart_and_threads(tmp_path: Path, rng: np.random.Generator) -> None:
    """A file in which more and more is used while threads add, draw and read it is always whole."""
    fields: dict[str, Any] = {"x": {"shape": 300, "dtype": "i8"}}
    options: dict[str, Any] = {"next_of": "x", "mmap_prefix": tmp_path / "a", "seed": 0}
    buffers = [ReplayBuffer(20000, fields, **options)]
    failed: list[BaseException] = []

    def write(first: int) -> None:
        try:
            for k in range(1000):
                value = np.full((3, 300), first + k)
                buffers[0].add(x=value, next_x=-value)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=write, args=(10**6 * k,)) for k in range(1, 4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        if len(buffers[0]):
            batch = buffers[0].sample(100)
            assert (batch["next_x"] == -batch["x"][:, :1]).all()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            other = ReplayBuffer(20000, fields, mmap_mode="r", **options)
        batch = other.get_all_transitions()
        assert (batch["next_x"] == -batch["x"][:, :1]).all()
        del other
    for thread in threads:
        thread.join()
    assert not failed
    buffers.clear()
    again = ReplayBuffer(20000, fields, mmap_mode="r+", **options)
    batch = again.get_all_transitions()
    assert len(batch["x"]) == 9000
    assert (batch["next_x"] == -batch["x"][:, :1]).all()
    again.check()


@pytest.mark.parametrize("damage", ["order", "twice", "extent", "far"])
def test_keys_of_chained_fields_that_were_damaged(
    tmp_path: Path, rng: np.random.Generator, damage: str
) -> None:
    """Rows in no order, and places outside of the ring, are an error that names the file."""
    files: dict[str, Any] = {"mmap_prefix": tmp_path / "a", **OPTIONS}
    rb = ReplayBuffer(50, FIELDS, **files)
    rb.add(**rows(rng, 40, 0.5, [np.zeros(200, int), np.zeros((50, 4), int)]))
    layout = rb._layout
    aside = layout.asides[0]
    assert layout.extent(rb._arena, aside) > 10
    del rb
    arena = np.memmap(tmp_path / "a.dat", np.uint8, "r+")
    keys = layout.keys(arena, aside)
    if damage == "order":
        keys[:] = np.roll(keys[::2].repeat(2)[: len(keys)], 1)
    elif damage == "twice":
        keys[3] = keys[7]
    else:
        layout.words(arena, aside)[0] = {"extent": -1, "far": aside.units + 1}[damage]
    del arena, keys
    for mode in ("r", "r+"):
        with pytest.raises(ValueError, match=r"a\.dat: "):
            ReplayBuffer(50, FIELDS, mmap_mode=mode, **files)


def test_a_file_is_as_long_as_its_values_may_need_and_has_holes(tmp_path: Path) -> None:
    """Disk space is taken by rows and by values that were stored, not by those that may come."""
    fields: dict[str, Any] = {"x": {"shape": 1000, "dtype": "u1"}}
    rb = ReplayBuffer(20000, fields, next_of="x", mmap_prefix=tmp_path / "a", seed=0)
    used = rb.nbytes
    for t in range(60000):  # an entry for each episode of 100 steps
        x = np.full(1000, t % 251)
        rb.add(x=x, next_x=x + 1 if t % 100 == 99 else np.full(1000, (t + 1) % 251))
    file = (tmp_path / "a.dat").stat()
    assert rb.nbytes - used <= 1.25 * 200 * 1008
    assert file.st_size > 60_000_000
    if hasattr(file, "st_blocks"):
        assert 512 * file.st_blocks < 21_000_000
    rb.check()


@pytest.mark.filterwarnings("ignore:.* do not follow:UserWarning")
@pytest.mark.parametrize("options", [{"next_of": "x"}, {"stack_compress": {"x": 0}}])
@pytest.mark.parametrize("n", [8, 20])
def test_values_that_replace_others_need_no_further_disk_space(
    options: dict[str, Any], n: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Space was reserved for the values of a call beside those that the same call removes.

    On a full disk, a call was refused whose values fit into the places of those that leave.
    """
    fields: Any = {"x": {"shape": (2, 8192), "dtype": np.int64}}
    fields |= {"next_x": fields["x"]} if "next_of" in options else {}
    rb = ReplayBuffer(8, fields, mmap_prefix=tmp_path / "a", **options)

    def is_full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "full")

    values = np.arange(44 * 2 * 8192).reshape(44, 2, 8192)

    def add(rows: NDArray[np.int64]) -> None:
        rb.add(**{name: rows + number for number, name in enumerate(fields)})

    for row in values[:24]:
        add(row)
    monkeypatch.setattr(file_maps, "use_file", is_full)
    add(values[24 : 24 + n])
    kept = rb.get_all_transitions()
    for number, name in enumerate(fields):
        slots = np.argsort(kept[name][:, 0, 0])
        np.testing.assert_array_equal(kept[name][slots], values[24 + n - 8 : 24 + n] + number)
