"""Files of ReAgent's buffer: ours, and those that ReAgent wrote."""

from __future__ import annotations

import gzip
import json
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from optional import need
from reagent_cases import check, made
from reagent_twin import Shape, Step, Twin, histories, shapes

from cpprb_like import checkpoint
from cpprb_like.compat.reagent import PrioritizedReplayBuffer, ReplayBuffer, SumTree
from cpprb_like.compat.reagent.circular_replay_buffer import CHECKPOINT_DURATION

torch = need("torch", "make test-torch")

CLASSES = [ReplayBuffer, PrioritizedReplayBuffer]
SHAPE = Shape(2, 2, 8)


def filled(kind: type[Any], n: int = 11) -> tuple[Any, Twin]:
    """A buffer of three episodes in a ring that has wrapped, and its twin."""
    rb, twin = made(kind, SHAPE), Twin(SHAPE)
    for t in range(n):
        rb.add(**twin.add(Step(t % 4 == 3, False, False)))
    return rb, twin


def written(folder: Path) -> dict[str, bytes]:
    """The files of a folder."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def priorities(rb: Any) -> Any:
    """Those of all slots, and the greatest."""
    slots = np.arange(rb._replay_capacity)
    return rb.get_priority(slots).tolist(), rb.sum_tree.max_recorded_priority


def change(path: Path, edit: Callable[[bytes], bytes]) -> None:
    """Change what a compressed file holds."""
    path.write_bytes(gzip.compress(edit(gzip.decompress(path.read_bytes()))))


# ---- ours --------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", CLASSES)
@given(shape=shapes(), history=histories(), later=histories())
def test_checkpoints_of_the_package_go_on(
    tmp_path_factory: pytest.TempPathFactory,
    kind: type[Any],
    shape: Shape,
    history: list[Step],
    later: list[Step],
) -> None:
    """The functions that save everything else save these buffers too, a second time as well."""
    folder = tmp_path_factory.mktemp("saved")
    rb, twin = made(kind, shape), Twin(shape)
    checkpoint.save(rb, folder)
    for step in history:
        rb.add(**twin.add(step))
    checkpoint.save(rb, folder)
    other = checkpoint.load(folder)
    assert type(other) is kind
    for step in later:
        other.add(**twin.add(step))
    check(other, twin)
    if later and kind is PrioritizedReplayBuffer:
        other.sum_tree.set(0, 7.0)  # draws follow it
        assert other.get_priority([0]) == 7.0


def test_lists_of_ids_are_saved_by_an_encoder(tmp_path: Path) -> None:
    """They are Python objects to a checkpoint."""
    rb = ReplayBuffer(replay_capacity=5)
    for t in range(3):
        ids = {"shop": [t, t + 1]}
        rb.add(observation=[0.0], action=t, reward=0.0, terminal=False, ids=ids)
    with pytest.raises(TypeError, match="encode"):
        checkpoint.save(rb, tmp_path)
    checkpoint.save(rb, tmp_path, encode=pickle.dumps)
    other = checkpoint.load(tmp_path, decode=pickle.loads)
    assert repr(other._store["ids"].tolist()) == repr(rb._store["ids"].tolist())


@pytest.mark.parametrize("kind", CLASSES)
@given(shape=shapes(), history=histories(), later=histories(), is_known=st.booleans())
def test_everything_is_restored(
    kind: type[Any],
    shape: Shape,
    history: list[Step],
    later: list[Step],
    is_known: bool,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """A loaded buffer has the same transitions, and goes on alike, fresh or used before."""
    folder = tmp_path_factory.mktemp("files")
    rb, twin, other = made(kind, shape), Twin(shape), made(kind, shape)
    for number, step in enumerate(history):
        more = {"priority": number % 5} if kind is PrioritizedReplayBuffer else {}
        rb.add(**twin.add(step), **more)
    if is_known:
        used = Twin(shape)
        for step in later:
            other.add(**used.add(step))
    rb.save(folder, 3)
    other.load(str(folder), "3")
    if twin.rows:
        check(other, twin)
    if kind is PrioritizedReplayBuffer:
        assert priorities(other) == priorities(rb)
    for step in later:
        fields = twin.add(step)
        rb.add(**fields)
        other.add(**fields)
    check(other, twin)
    if kind is PrioritizedReplayBuffer:
        assert priorities(other) == priorities(rb)


def test_flags_that_users_set_and_id_lists_are_restored(tmp_path: Path) -> None:
    """Validity is not found anew but read; lists keep their keys and lengths."""
    rb = ReplayBuffer(replay_capacity=4)
    for t in range(6):
        lists = {"ids": {"a": [t] * t, "b": []}, "x": {"c": ([t], [0.5 * t])}}
        rb.add(observation=1.0, action=t, reward=1.0, terminal=False, **lists)
    rb.set_index_valid_status(2, False)
    rb.save(tmp_path, 0)
    other = ReplayBuffer(replay_capacity=4)
    other.load(tmp_path, 0)
    assert other._is_index_valid.tolist() == rb._is_index_valid.tolist()
    one, two = (buffer.sample_all_valid_transitions() for buffer in (rb, other))
    assert one._fields == two._fields
    for name in ("ids", "next_ids", "x", "next_x"):
        for key, columns in getattr(one, name).items():
            assert [x.tolist() for x in getattr(two, name)[key]] == [x.tolist() for x in columns]


@pytest.mark.parametrize("kind", CLASSES)
def test_names_of_files(kind: type[Any], tmp_path: Path) -> None:
    """They are ReAgent's, there is one of JSON, and arrays are what NumPy reads."""
    rb, _ = filled(kind)
    rb.save(tmp_path, 7)
    names = {"$store$_observation", "$store$_action", "$store$_reward", "$store$_terminal"}
    names |= {"$store$_extra", "add_count", "is_index_valid", "row_flags", "$contents$"}
    names |= {"sum_tree"} if kind is PrioritizedReplayBuffer else set()
    assert set(written(tmp_path)) == {f"{name}_ckpt.7.gz" for name in names}
    for name in names - {"$contents$"}:
        with gzip.open(tmp_path / f"{name}_ckpt.7.gz") as file:
            array = np.load(file, allow_pickle=False)
        if name == "add_count":
            assert array == rb.add_count
        if name.startswith("$store$_"):
            np.testing.assert_array_equal(array, rb._store[name[8:]])


def test_old_files_are_removed(tmp_path: Path) -> None:
    """Those of four iterations ago, if iterations are numbers; no others."""
    rb, _ = filled(ReplayBuffer)
    (tmp_path / "add_count_ckpt.2.txt").touch()
    for iteration in (1, 2, "last", 1 + CHECKPOINT_DURATION):
        rb.save(tmp_path, iteration)
    suffixes = {name.split(".")[1] for name in written(tmp_path)}
    assert suffixes == {"2", "last", "5"}
    for suffix in (5, "last"):
        ReplayBuffer(2, 8, 4, update_horizon=2).load(tmp_path, suffix)


def test_a_save_that_fails_leaves_the_old_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """New files get their names when all are complete, and unfinished ones go away."""
    rb, _ = filled(ReplayBuffer)
    rb.save(tmp_path, 1)
    before = written(tmp_path)
    rb.add(**Twin(SHAPE).add(Step(False, False, False)))

    def fail(_: object) -> str:
        raise OSError("the disk is full")

    monkeypatch.setattr(json, "dumps", fail)
    with pytest.raises(OSError, match="full"):
        rb.save(tmp_path, 1)
    assert written(tmp_path) == before


def test_a_folder_that_is_missing_is_an_error(tmp_path: Path) -> None:
    """To save to, and to load from."""
    rb, twin = filled(ReplayBuffer)
    with pytest.raises(FileNotFoundError):
        rb.save(tmp_path / "none", 1)
    with pytest.raises(FileNotFoundError, match="Missing file"):
        rb.load(tmp_path / "none", 1)
    check(rb, twin)


def test_buffers_that_were_never_used(tmp_path: Path) -> None:
    """They are saved and loaded too, also into one that was used."""
    ReplayBuffer(2, 8, 4, update_horizon=2).save(tmp_path, 1)
    rb, _ = filled(ReplayBuffer)
    rb.load(tmp_path, 1)
    assert (rb.size, rb.add_count) == (0, 0)
    other = made(ReplayBuffer, SHAPE)
    other.load(tmp_path, 1)
    assert other.get_storage_signature() == []


def damage(folder: Path) -> dict[str, Callable[[], object]]:
    """What may happen to files of iteration 1 and 2; the former are loaded."""

    def path(name: str, iteration: int = 1) -> Path:
        return folder / f"{name}_ckpt.{iteration}.gz"

    def edit(key: str, value: object) -> None:
        change(
            path("$contents$"), lambda text: json.dumps(json.loads(text) | {key: value}).encode()
        )

    rewards = path("$store$_reward")
    return {
        "missing": rewards.unlink,
        "other save": lambda: rewards.write_bytes(path("$store$_reward", 2).read_bytes()),
        "cut": lambda: rewards.write_bytes(rewards.read_bytes()[:-12]),
        "empty": lambda: rewards.write_bytes(b""),
        "not compressed": lambda: rewards.write_bytes(b"hello"),
        "short": lambda: change(rewards, lambda data: data[:-4]),
        "long": lambda: change(rewards, lambda data: data + b"1234"),
        "no array": lambda: change(rewards, lambda data: b"hello" + data),
        "pickle": lambda: change(path("add_count"), lambda _: pickle.dumps(3)),
        "other count": lambda: path("add_count").write_bytes(path("is_index_valid").read_bytes()),
        "no json": lambda: change(path("$contents$"), lambda _: b"{"),
        "no object": lambda: change(path("$contents$"), lambda _: b"3"),
        "format": lambda: edit("version", 2),
        "settings": lambda: edit("settings", {"replay_capacity": 9}),
        "kinds": lambda: edit("elements", [["observation", {"kind": "other"}]]),
        "no elements": lambda: edit("elements", 3),
        "fields": lambda: edit(
            "elements", [["observation", {"kind": "dense", "shape": [], "dtype": "f4"}]]
        ),
        "no words": lambda: edit("words", {}),
        "checksums": lambda: edit("checksums", {}),
    }


@pytest.mark.parametrize("what", list(damage(Path())))
@pytest.mark.parametrize("is_known", [True, False])
def test_damaged_files_are_refused(what: str, is_known: bool, tmp_path: Path) -> None:
    """The buffer is as it was, and the file is named."""
    for iteration, n in ((1, 11), (2, 9)):
        filled(ReplayBuffer, n)[0].save(tmp_path, iteration)
    damage(tmp_path)[what]()
    rb, twin = filled(ReplayBuffer, 5) if is_known else (made(ReplayBuffer, SHAPE), Twin(SHAPE))
    with pytest.raises((ValueError, FileNotFoundError), match=r"ckpt|Missing file"):
        rb.load(tmp_path, 1)
    check(rb, twin)


@pytest.mark.parametrize("n_steps", [0, 9])
def test_files_of_two_calls_of_save_are_told_apart(n_steps: int, tmp_path: Path) -> None:
    """Any one file of another call is noticed, as after a crash between two renames."""
    folders = tmp_path / "1", tmp_path / "2"
    for folder, n in zip(folders, (n_steps, 11), strict=True):
        folder.mkdir()
        filled(PrioritizedReplayBuffer, n)[0].save(folder, 1)
    before, later = map(written, folders)
    for name in before:
        (folders[0] / name).write_bytes(later[name])
        rb = made(PrioritizedReplayBuffer, SHAPE)
        with pytest.raises((ValueError, FileNotFoundError), match=r"ckpt|Missing file"):
            rb.load(folders[0], 1)
        assert rb.is_empty()
        (folders[0] / name).write_bytes(before[name])
    made(PrioritizedReplayBuffer, SHAPE).load(folders[0], 1)


@pytest.mark.parametrize(
    "other",
    [
        {"stack_size": 1},
        {"update_horizon": 3},
        {"replay_capacity": 9},
        {"observation_shape": (2,), "observation_dtype": np.uint8},
    ],
)
def test_files_of_other_buffers_are_refused(other: dict[str, Any], tmp_path: Path) -> None:
    """Of another capacity, stack size or horizon, or with other fields."""
    filled(ReplayBuffer)[0].save(tmp_path, 1)
    options = {"stack_size": 2, "replay_capacity": 8, "batch_size": 4, "update_horizon": 2}
    rb = ReplayBuffer(**options | other)
    with pytest.raises(ValueError):
        rb.load(tmp_path, 1)
    assert rb.is_empty()


def test_priorities_are_checked(tmp_path: Path) -> None:
    """A file without them, or with what is none, is refused."""
    filled(ReplayBuffer)[0].save(tmp_path, 1)
    rb, twin = filled(PrioritizedReplayBuffer, 5)
    before = priorities(rb)
    with pytest.raises(FileNotFoundError, match="sum_tree"):
        rb.load(tmp_path, 1)
    filled(PrioritizedReplayBuffer)[0].save(tmp_path, 2)
    with gzip.open(tmp_path / "sum_tree_ckpt.2.gz", "wb") as file:
        np.save(file, np.full(8, -1.0))
    with pytest.raises(ValueError):
        rb.load(tmp_path, 2)
    check(rb, twin)
    assert priorities(rb) == before


# ---- those of ReAgent --------------------------------------------------------------------


def save_as_reagent(rb: Any, folder: Path, suffix: int) -> None:
    """The files that ReAgent would write: rows that were never written hold anything."""
    arrays = {f"$store$_{name}": column.numpy().copy() for name, column in rb._store.items()}
    for array in arrays.values():
        array[int(rb.add_count) :] = 77
    for name, array in {**arrays, "add_count": rb.add_count}.items():
        with gzip.open(folder / f"{name}_ckpt.{suffix}.gz", "wb") as file:
            np.save(file, array, allow_pickle=False)
    if isinstance(rb, PrioritizedReplayBuffer):
        with gzip.open(folder / f"$store$_priority_ckpt.{suffix}.gz", "wb") as file:
            np.save(file, np.full(rb._replay_capacity, np.nan))
        with gzip.open(folder / f"sum_tree_ckpt.{suffix}.gz", "wb") as file:
            file.write(tree_pickle(rb.sum_tree))


def tree_pickle(
    tree: SumTree, module: str = "reagent.replay_memory.sum_tree", **more: Any
) -> bytes:
    """The pickle of a sum tree of ReAgent's."""
    kind = type("SumTree", (), {"__module__": module})
    theirs = kind()
    theirs.__dict__ |= {
        "nodes": [level.copy() for level in tree.nodes],
        "max_recorded_priority": tree.max_recorded_priority,
        **more,
    }
    names = module.split(".")
    stand_ins = {".".join(names[: n + 1]): ModuleType(names[n]) for n in range(len(names))}
    stand_ins[module].SumTree = kind  # type: ignore[attr-defined]
    with mock.patch.dict(sys.modules, stand_ins):
        return pickle.dumps(theirs)


@pytest.mark.parametrize("kind", CLASSES)
@given(
    shape=shapes(),
    history=histories(truncation=False),
    later=histories(),
    is_known=st.booleans(),
)
def test_files_that_reagent_wrote_are_read(
    kind: type[Any],
    shape: Shape,
    history: list[Step],
    later: list[Step],
    is_known: bool,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Which slots are valid follows from the terminal flags; the buffer goes on where it was."""
    folder = tmp_path_factory.mktemp("files")
    rb, twin, other = made(kind, shape), Twin(shape), made(kind, shape)
    for number, step in enumerate(history):
        more = {"priority": number % 5} if kind is PrioritizedReplayBuffer else {}
        rb.add(**twin.add(step), **more)
    if not history:
        return
    save_as_reagent(rb, folder, 3)
    if is_known:
        other.add(**Twin(shape).add(Step(False, False, False)))
    other.load(folder, 3)
    check(other, twin)
    if kind is PrioritizedReplayBuffer:
        assert priorities(other) == priorities(rb)
    for step in later:
        other.add(**twin.add(step))
    check(other, twin)


def test_a_plain_buffer_reads_files_of_one_by_priority(tmp_path: Path) -> None:
    """Without the field of priorities, which ReAgent never filled."""
    rb, twin = filled(PrioritizedReplayBuffer)
    save_as_reagent(rb, tmp_path, 1)
    other = made(ReplayBuffer, SHAPE)
    other.load(tmp_path, 1)
    assert set(other._store) == set(rb._store)
    check(other, twin)


@pytest.mark.parametrize("name", ["add_count", "sum_tree", "$store$_reward"])
def test_files_of_reagent_that_are_missing(name: str, tmp_path: Path) -> None:
    """All are looked for before anything is read."""
    rb, twin = filled(PrioritizedReplayBuffer)
    save_as_reagent(rb, tmp_path, 1)
    (tmp_path / f"{name}_ckpt.1.gz").unlink()
    for other, its in ((rb, twin), (made(PrioritizedReplayBuffer, SHAPE), Twin(SHAPE))):
        with pytest.raises(FileNotFoundError, match="Missing file"):
            other.load(tmp_path, 1)
        check(other, its)


class Evil:
    """What a pickle must not do."""

    def __reduce__(self) -> tuple[Any, ...]:
        return print, ("evil",)


class Pointers:
    """A dtype that says it holds no references, although it does: NumPy believes it."""

    def __reduce__(self) -> tuple[Any, ...]:
        fields = {"a": (np.dtype("O"), 0)}
        return np.dtype, ("V8", False, True), (3, "|", None, ("a",), fields, 8, 1, 0)


class Address:
    """A number that is an object somewhere in memory: to look at it ends the interpreter."""

    def __reduce__(self) -> tuple[Any, ...]:
        return np.float64(1).__reduce__()[0], (Pointers(), b"A" * 8)


@pytest.mark.parametrize(
    "data",
    [
        pickle.dumps(Evil()),
        tree_pickle(SumTree(8), max_recorded_priority=Address()),
        tree_pickle(SumTree(8), extra=Evil()),
        tree_pickle(SumTree(8), module="other.tree"),
        tree_pickle(SumTree(8), extra=print),
        tree_pickle(SumTree(8), extra=np.load),
        tree_pickle(SumTree(8), nodes=3),
        tree_pickle(SumTree(8), nodes=[[1.0]]),
        tree_pickle(SumTree(20)),
        tree_pickle(SumTree(8), nodes=[np.full(8, -1.0)]),
        tree_pickle(SumTree(8), nodes=[np.full(8, np.nan)]),
        pickle.dumps(3),
        b"",
    ],
)
def test_pickles_that_are_no_sum_tree(
    data: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing in them is run, and the buffer is as it was."""
    rb, twin = filled(PrioritizedReplayBuffer)
    save_as_reagent(rb, tmp_path, 1)
    (tmp_path / "sum_tree_ckpt.1.gz").write_bytes(gzip.compress(data))
    with pytest.raises(ValueError):
        rb.load(tmp_path, 1)
    check(rb, twin)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("protocol", range(3, pickle.HIGHEST_PROTOCOL + 1))
def test_pickles_of_all_protocols(
    protocol: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that Pythons of ReAgent's time wrote, and later ones."""
    rb, _ = filled(PrioritizedReplayBuffer)
    rb.set_priority([0, 1, 2], [3, 4, 5])
    plain = pickle.dumps
    monkeypatch.setattr(pickle, "dumps", lambda value: plain(value, protocol=protocol))
    save_as_reagent(rb, tmp_path, 1)
    other = made(PrioritizedReplayBuffer, SHAPE)
    other.load(tmp_path, 1)
    assert priorities(other) == priorities(rb)
