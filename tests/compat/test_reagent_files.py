"""Files of ReAgent's buffer: ours, and those that ReAgent wrote."""

from __future__ import annotations

import gzip
import io
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


def priorities(rb: Any) -> Any:
    """Those of all slots, and the greatest."""
    slots = np.arange(rb._replay_capacity)
    return rb.get_priority(slots).tolist(), rb.sum_tree.max_recorded_priority


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


def test_old_saves_are_removed(tmp_path: Path) -> None:
    """Those of four iterations ago, if iterations are numbers; no others."""
    rb, _ = filled(ReplayBuffer)
    (tmp_path / "replay_buffer_ckpt.2.txt").touch()
    for iteration in (1, 2, "last", 1 + CHECKPOINT_DURATION):
        rb.save(tmp_path, iteration)
    names = {f"replay_buffer_ckpt.{x}" for x in ("2", "last", "5", "2.txt")}
    assert {path.name for path in tmp_path.iterdir()} == names
    for suffix in (5, "last"):
        ReplayBuffer(2, 8, 4, update_horizon=2).load(tmp_path, suffix)


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


def test_files_of_the_other_class_are_refused(tmp_path: Path) -> None:
    """The one has no priorities, and the other would lose them."""
    for number, kind in enumerate(CLASSES):
        filled(kind)[0].save(tmp_path, number)
        rb, twin = filled(CLASSES[1 - number], 5)
        with pytest.raises(ValueError, match=kind.__name__):
            rb.load(tmp_path, number)
        check(rb, twin)


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    """The buffer is as it was."""
    filled(ReplayBuffer)[0].save(tmp_path, 1)
    for path in (tmp_path / "replay_buffer_ckpt.1").rglob("*"):
        if path.is_file():
            path.write_bytes(path.read_bytes()[:-1])
    rb, twin = filled(ReplayBuffer, 5)
    with pytest.raises(ValueError):
        rb.load(tmp_path, 1)
    check(rb, twin)


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


def edited(data: bytes, edit: Callable[[bytes], bytes]) -> bytes:
    """A compressed file whose contents were changed."""
    return gzip.compress(edit(gzip.decompress(data)))


def array_file(values: Any) -> bytes:
    """An array as ReAgent writes it."""
    file = io.BytesIO()
    np.save(file, values)
    return gzip.compress(file.getvalue())


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:-12],
        lambda data: b"",
        lambda data: b"hello",
        lambda data: edited(data, lambda plain: plain[:-4]),
        lambda data: edited(data, lambda plain: plain + b"1234"),
        lambda data: edited(data, lambda plain: b"hello" + plain),
        lambda data: edited(data, lambda plain: pickle.dumps(3)),
        lambda data: edited(data, lambda plain: plain.replace(b"(8,)", b"(-8,)")),
        lambda data: edited(data, lambda plain: plain.replace(b"(8,)", b"(8, 99999999999999)")),
        lambda data: array_file(np.zeros(9, np.float32)),
        lambda data: array_file(np.zeros((8, 2), np.float32)),
        lambda data: array_file(np.zeros(8, np.float64)),
        lambda data: array_file(np.array([None] * 8)),
        lambda data: array_file(np.zeros(8, [("a", "f4")])),
    ],
)
def test_damaged_files_of_reagent_are_refused(
    damage: Callable[[bytes], bytes], tmp_path: Path
) -> None:
    """The buffer is as it was, and the file is named."""
    save_as_reagent(filled(ReplayBuffer)[0], tmp_path, 1)
    path = tmp_path / "$store$_reward_ckpt.1.gz"
    path.write_bytes(damage(path.read_bytes()))
    rb, twin = filled(ReplayBuffer, 5)
    with pytest.raises(ValueError, match="reward"):
        rb.load(tmp_path, 1)
    check(rb, twin)


@pytest.mark.parametrize("count", [-1, [3, 3], 1.5])
def test_counts_of_reagent_that_are_refused(count: Any, tmp_path: Path) -> None:
    """The number of rows is one integer."""
    save_as_reagent(filled(ReplayBuffer)[0], tmp_path, 1)
    (tmp_path / "add_count_ckpt.1.gz").write_bytes(array_file(count))
    with pytest.raises(ValueError, match="add_count"):
        made(ReplayBuffer, SHAPE).load(tmp_path, 1)


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


DOUBLED = b"".join(b"h%ch%c\x86\x94" % (n, n) for n in range(60))


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
        b"\x80\x04Nr\xff\xff\xff\x7f.",  # a memo of two thousand million places
        b"\x80\x04)" + b"\x85" * 100_000 + b"}\x8c\x01aNs.",  # a tuple in a tuple, and so on
        # A tuple of the same tuple twice, and so on, as a key.
        b"\x80\x04)\x85\x94"
        + b"".join(b"h%ch%c\x86\x94" % (n, n) for n in range(60))
        + b"}h\x3cNs.",
        b"\x80\x04cnumpy\nndarray\n}\x8c\x06valuesNsb.",  # new state for a class
        b"\x80\x04cnumpy\nndarray\nN}\x8c\x06valuesNs\x86b.",
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
