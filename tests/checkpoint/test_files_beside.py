"""Files of the caller beside a saved object: one state with its rows, whatever is saved."""

from __future__ import annotations

import enum
import gc
import io
import os
import pickle
import re
import warnings
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pytest
from optional import need

from cpprb_like import (
    Mixture,
    PrioritizedReplayBuffer,
    RateLimited,
    ReplayBuffer,
    ReplayMemory,
    checkpoint,
)
from cpprb_like.checkpoint import CancelledError, DamagedError, _segments, open_beside
from cpprb_like.limiters import MinSize
from cpprb_like.processes import SharedReplay, _saving
from cpprb_like.processes._saving import Changed, SavedShard
from cpprb_like.samplers import Prioritized
from cpprb_like.views import NStep

FIELDS: Any = {"x": {"shape": ()}, "rew": {"shape": ()}, "done": {"shape": (), "dtype": bool}}


def filled(n: int = 10) -> PrioritizedReplayBuffer:
    """A buffer with rows 0 to ``n - 1``."""
    rb = PrioritizedReplayBuffer(50, FIELDS, seed=0)
    rb.add(x=np.arange(n), rew=np.zeros(n), done=np.zeros(n))
    return rb


def content(folder: Path, name: str, state: int | None = None) -> bytes:
    """The bytes of a file beside."""
    with open_beside(folder, name, state=state) as file:
        return file.read()


def names(folder: Path) -> list[str]:
    """The files of a folder, without its lock."""
    return sorted(path.name for path in folder.iterdir() if path.name != "lock")


# ---------------------------------------------------------------------- what is saved

THINGS: dict[str, Callable[[], Any]] = {
    "buffer": filled,
    "view": lambda: filled().view(NStep(2, rew="rew")),
    "mixture": lambda: Mixture({"a": filled(), "b": filled(5)}, {"a": 0.5, "b": 0.5}, seed=0),
    "rate limited": lambda: RateLimited(filled(), MinSize(1)),
    "objects": lambda: ReplayMemory(10),
}
SAVES: dict[str, Callable[..., Any]] = {
    "method": lambda thing, *given, **options: thing.save(*given, **options),
    "function": checkpoint.save,
    "thread": lambda thing, *given, **options: thing.save_async(*given, **options).result(),
}


@pytest.mark.parametrize("how", SAVES)
@pytest.mark.parametrize("what", THINGS)
def test_files_come_back(what: str, how: str, tmp_path: Path) -> None:
    """Bytes, and what callables write. A later save has its own files."""
    thing = THINGS[what]()
    beside: Any = {
        "model.npz": lambda file: np.savez(file, weights=np.arange(9.0), bias=np.ones(2)),
        "env.pkl": pickle.dumps({"t": 7}),
        "random state-1": bytearray(b"abc"),
        "empty": b"",
    }
    save = partial(SAVES[how], encode=bytes)
    save(thing, tmp_path, beside=beside)
    with open_beside(tmp_path, "model.npz") as file, np.load(file) as loaded:
        assert loaded["weights"].tolist() == list(range(9))
    assert pickle.loads(content(tmp_path, "env.pkl")) == {"t": 7}
    assert content(tmp_path, "random state-1") == b"abc"
    assert content(tmp_path, "empty") == b""
    assert type(checkpoint.load(tmp_path, decode=bytes)) is type(thing)

    save(thing, tmp_path, beside={"other": memoryview(b"1")})
    assert content(tmp_path, "other") == b"1"
    assert [name for name in names(tmp_path) if "beside" in name] == ["s2-beside-other"]
    with pytest.raises(ValueError, match=r"one of the files \['other'\] of state 2, got 'env.pkl'"):
        open_beside(tmp_path, "env.pkl")
    save(thing, tmp_path)
    with pytest.raises(ValueError, match=r"one of the files \[\] of state 3"):
        open_beside(tmp_path, "other")


@pytest.mark.parametrize("has_to_begin_again", [False, True])
def test_files_of_a_shared_replay(
    has_to_begin_again: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Callables run once, before rows are copied: rows of meanwhile are saved, and none is lost."""
    monkeypatch.setattr(_saving, "WHOLE_NBYTES", 0)
    oldest_intact, calls = SavedShard._oldest_intact, []

    def changed_once(shard: SavedShard) -> int:
        calls.append(shard)
        if has_to_begin_again and len(calls) == 2:
            raise Changed
        return oldest_intact(shard)

    monkeypatch.setattr(SavedShard, "_oldest_intact", changed_once)
    fields = FIELDS | {"wide": {"shape": 300}}
    with SharedReplay(50, fields, writers=1) as replay, replay.actor() as actor:
        learner = replay.learner(Prioritized(), seed=0)

        def add(first: int, n: int) -> None:
            x = np.arange(first, first + n)
            actor.add(x=x, rew=x, done=x < 0, wide=np.repeat(x[:, None], 300, 1))

        def write(file: BinaryIO) -> None:
            add(50, 40)
            file.write(b"model")

        add(0, 50)
        replay.save(tmp_path, beside={"model": write}, learners={"main": learner})
        assert len(calls) > (2 if has_to_begin_again else 1)
    assert content(tmp_path, "model") == b"model"
    assert [name for name in names(tmp_path) if "model" in name] == ["s1-beside-model"]
    assert checkpoint.verify(tmp_path)[0].is_in_order
    with SharedReplay.load(tmp_path) as again:
        rows = again.learner(seed=0).sample(2000)
        assert set(rows["x"].astype(int)) == set(range(40, 90))
        assert (rows["wide"] == rows["x"][:, None]).all()
        assert len(again.restore_learner(tmp_path, "main")) == 50


def test_what_callables_get(tmp_path: Path) -> None:
    """A binary file with a buffer that tells its place and cannot seek; it may be closed."""

    def write(file: BinaryIO) -> None:
        assert isinstance(file, io.BufferedIOBase)
        assert (file.writable(), file.readable(), file.seekable()) == (True, False, False)
        assert file.write(b"12345") == 5
        assert file.tell() == 5
        with pytest.raises(io.UnsupportedOperation):
            file.seek(0)
        with pytest.raises(io.UnsupportedOperation):
            file.fileno()
        pickle.dump(list(range(100_000)), file)
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr("a.txt", "text")
        file.close()

    filled().save(tmp_path, beside={"all": write})
    with open_beside(tmp_path, "all") as file:
        assert file.read(5) == b"12345"
        assert pickle.load(file) == list(range(100_000))
        with zipfile.ZipFile(file) as archive:
            assert archive.read("a.txt") == b"text"


def test_what_is_empty_or_not_contiguous(tmp_path: Path) -> None:
    """Empty bytes, written or given, and views of any strides, as ``tobytes`` has them."""
    x: Any = np.arange(12).reshape(3, 4)
    beside: Any = {
        "nothing": lambda file: file.write(b""),
        "empty": memoryview(x[:0]),
        "strided": memoryview(x[:, ::2]),
        "transposed": memoryview(x.T),
        "a" * 200: b"1",
    }
    rb = filled()
    for _ in range(10):
        rb.save(tmp_path, beside=beside, sync=False)
    assert content(tmp_path, "strided") == x[:, ::2].tobytes()
    assert content(tmp_path, "transposed") == x.T.tobytes()
    assert all(content(tmp_path, name) == b"" for name in ("nothing", "empty"))
    assert content(tmp_path, "a" * 200) == b"1"


class Name(str, enum.Enum):
    """Names that a caller declares."""

    MODEL = "model.pt"


def test_a_member_of_an_enum_is_a_name(tmp_path: Path) -> None:
    """By its value: the file was ``Name.MODEL``, which ``open_beside`` did not find."""
    filled().save(tmp_path, beside={Name.MODEL: b"1"})
    assert content(tmp_path, Name.MODEL) == content(tmp_path, "model.pt") == b"1"


def test_models_of_torch(tmp_path: Path) -> None:
    """What the first example of the page does."""
    torch = need("torch", "make test-torch")
    model = torch.nn.Linear(3, 2)
    filled().save(tmp_path, beside={"model.pt": lambda file: torch.save(model.state_dict(), file)})
    with open_beside(tmp_path, "model.pt") as file:
        found = torch.load(file, weights_only=True)
    assert all((found[name] == value).all() for name, value in model.state_dict().items())


def test_a_save_in_a_thread_has_the_model_of_its_call(tmp_path: Path) -> None:
    """Callables run before the call returns, and their bytes count in the progress."""
    rb, model = filled(), bytearray(b"before")
    saving = rb.save_async(tmp_path, beside={"model": lambda file: file.write(model)})
    model[:] = b"after!"
    rb.add(x=99, rew=0, done=0)
    saving.result()
    assert content(tmp_path, "model") == b"before"
    assert len(ReplayBuffer.load(tmp_path, classes=[PrioritizedReplayBuffer])) == 10
    assert saving.progress.done == saving.progress.total > 6

    cancelled = rb.save_async(tmp_path, beside={"model": b"x" * (1 << 20)})
    cancelled.cancel()
    try:
        cancelled.result()
    except CancelledError:
        assert content(tmp_path, "model") == b"before"
    else:  # all but its manifest was written
        assert content(tmp_path, "model") == b"x" * (1 << 20)


def test_a_callable_may_use_the_buffer_and_other_threads(tmp_path: Path) -> None:
    """It runs before the rows are copied, and no thread waits for it."""
    rb = filled()

    def write(file: BinaryIO) -> None:
        rb.add(x=10, rew=0, done=0)
        file.write(str(len(rb)).encode())

    rb.save(tmp_path, beside={"rows": write})
    assert int(content(tmp_path, "rows")) == len(PrioritizedReplayBuffer.load(tmp_path)) == 11


# ---------------------------------------------------------------------- errors


def _fails(file: BinaryIO) -> None:
    file.write(b"1" * 3_000_000)
    raise KeyError("of the callable")


KEPT: list[io.TextIOWrapper] = []


def _keeps_a_wrapper(file: BinaryIO) -> None:
    KEPT.append(io.TextIOWrapper(file))
    KEPT[-1].write("never flushed")


@pytest.mark.parametrize(
    ("beside", "error", "message"),
    [
        ([], TypeError, r"beside: expected a dict of files by name, got \[\]"),
        ({"model": "text"}, TypeError, r"beside\['model'\]: expected bytes, .* got str"),
        ({"model": {}}, TypeError, r"beside\['model'\]: expected bytes, .* got dict"),
        ({"model": lambda _: b"1"}, TypeError, r"\['model'\]: .* wrote nothing and returned a byt"),
        (
            {"model": lambda _: False},
            TypeError,
            r"\['model'\]: .* wrote nothing and returned a bool",
        ),
        ({"ok": b"1", "model": _fails}, KeyError, "of the callable"),
        ({"ok": b"1", "model": lambda: 1}, TypeError, "positional argument"),
        (
            {"model": _keeps_a_wrapper},
            TypeError,
            "wrote nothing .* NoneType; .* closed",
        ),
        ({"a" * 201: b"1"}, ValueError, "names of at most 200 bytes, got 'a{201}'"),
        ({"é" * 101: b"1"}, ValueError, "names of at most 200 bytes, got 'é{101}'"),
        ({"M.pt": b"1", "m.pt": b"2"}, ValueError, "more than capitals, got 'M.pt' and 'm.pt'"),
    ],
)
@pytest.mark.parametrize("how", SAVES)
def test_an_error_leaves_the_state_before(
    how: str, beside: Any, error: type[Exception], message: str, tmp_path: Path
) -> None:
    """Nothing is torn, open, or left behind by the next save."""
    rb = filled()
    rb.save(tmp_path, beside={"model": b"old"})
    rb.add(x=99, rew=0, done=0)
    with pytest.raises(error, match=message):
        SAVES[how](rb, tmp_path, beside=beside)
    assert checkpoint.states(tmp_path) == [1]
    assert content(tmp_path, "model") == b"old"
    assert len(PrioritizedReplayBuffer.load(tmp_path)) == 10
    SAVES[how](rb, tmp_path, beside={"model": b"new"})
    state = checkpoint.states(tmp_path)[-1]
    assert [name for name in names(tmp_path) if "beside" in name] == [f"s{state}-beside-model"]
    assert len(PrioritizedReplayBuffer.load(tmp_path)) == 11


@pytest.mark.parametrize(
    "name", ["", ".", "..", ".x", "x.", "a/b", "/a", "a\\b", "c:x", " x", "a\n", "a*", 3]
)
def test_names_that_would_be_elsewhere_are_refused(name: Any, tmp_path: Path) -> None:
    """On every system: paths, hidden names, and those that Windows changes."""
    message = f"expected names of letters, .* as 'model.pt', got {re.escape(repr(name))}"
    with pytest.raises(ValueError, match=message):
        filled().save(tmp_path / "new", beside={"ok": b"1", name: b"1"})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("where", ["file", "manifest"])
def test_a_damaged_file_is_no_other_one(where: str, tmp_path: Path) -> None:
    """Neither it nor that of the state before is opened, with salvaged rows or without."""
    rb = filled()
    rb.save(tmp_path, keep=2, beside={"model": b"of 10 rows"})
    rb.add(x=99, rew=0, done=0)
    rb.save(tmp_path, keep=2, beside={"model": b"of 11 rows"})
    path = tmp_path / {"file": "s2-beside-model", "manifest": "state-000002.json"}[where]
    path.write_bytes(path.read_bytes().replace(b"1", b"2", 1))
    with pytest.raises(DamagedError, match=path.name):
        open_beside(tmp_path, "model")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        rows = PrioritizedReplayBuffer.load(tmp_path, salvage=True)
    # The warning names the state of the rows, and the caller has to ask for its model.
    state = 1 if where == "manifest" else 2
    assert len(rows) == 9 + state
    said = [str(warning.message) for warning in caught]
    assert ["state 1 was loaded without" in text for text in said] == [True] * (state == 1)
    assert content(tmp_path, "model", state=1) == b"of 10 rows"
    if where == "file":
        path.unlink()
        with pytest.raises(DamagedError, match="s2-beside-model: there is no such file"):
            open_beside(tmp_path, "model")


def test_salvaged_rows_have_the_model_of_their_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the newest state rows are lost: what is left of it and its model are given."""
    monkeypatch.setattr(_segments, "SEGMENT_NBYTES", 200)
    rb = filled()
    for _ in range(2):
        rb.add(x=np.arange(10), rew=np.zeros(10), done=np.zeros(10))
        rb.save(tmp_path, keep=2, beside={"model": f"of {len(rb)} rows".encode()})
    path = tmp_path / "s2-0.npy"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.warns(UserWarning, match="state 2 was loaded without what is damaged: s2-0"):
        left = PrioritizedReplayBuffer.load(tmp_path, salvage=True)
    assert 0 < len(left) < 30
    assert content(tmp_path, "model") == b"of 30 rows"


def test_a_checkpoint_that_is_not_there(tmp_path: Path) -> None:
    """As for a load, so that a program begins anew."""
    with pytest.raises(FileNotFoundError, match="there is no checkpoint"):
        open_beside(tmp_path, "model")
    filled().save(tmp_path, beside={"model": b""})
    with pytest.raises(FileNotFoundError, match="there is no state 7"):
        open_beside(tmp_path, "model", state=7)


# ---------------------------------------------------------------------- states


def test_older_states_keep_their_files(tmp_path: Path) -> None:
    """As many as ``keep``, and with them their rows; files of the owner stay."""
    rb = filled(5)
    (tmp_path / "beside-model.pt").write_bytes(b"mine")
    (tmp_path / "model.pt").write_bytes(b"mine")
    for number in range(1, 6):
        rb.add(x=number, rew=0, done=0)
        rb.save(tmp_path, keep=3, beside={"model.pt": bytes([number])}, sync=number != 4)
    assert checkpoint.states(tmp_path) == [3, 4, 5]
    for number in (3, 4, 5):
        assert content(tmp_path, "model.pt", state=number) == bytes([number])
        assert len(PrioritizedReplayBuffer.load(tmp_path, state=number)) == 5 + number
    assert [name for name in names(tmp_path) if "-beside-" in name] == [
        f"s{number}-beside-model.pt" for number in (3, 4, 5)
    ]
    rb.save(tmp_path)
    assert [name for name in names(tmp_path) if "model" in name] == ["beside-model.pt", "model.pt"]
    assert (tmp_path / "beside-model.pt").read_bytes() == b"mine"


@pytest.mark.parametrize("how", SAVES)
def test_a_save_that_fails_removes_no_state(how: str, tmp_path: Path) -> None:
    """Also one that would have kept fewer states; the next one keeps so many."""
    rb = filled()
    for number in range(4):
        rb.save(tmp_path, keep=5, beside={"model": bytes([number])})
    (tmp_path / "s9-beside-model").write_bytes(b"of a save that was killed")
    with pytest.raises(KeyError):
        SAVES[how](rb, tmp_path, beside={"model": _fails})
    assert checkpoint.states(tmp_path) == [1, 2, 3, 4]
    assert [content(tmp_path, "model", state=n) for n in (1, 4)] == [b"\0", b"\3"]
    assert "s9-beside-model" not in names(tmp_path)
    SAVES[how](rb, tmp_path)
    assert checkpoint.states(tmp_path) == [5]


@pytest.mark.parametrize("how", SAVES)
def test_a_saved_buffer_is_freed_with_its_last_reference(how: str, tmp_path: Path) -> None:
    """Else a mapped buffer stays locked until the garbage collector runs."""
    rb = ReplayBuffer(50, FIELDS, mmap_prefix=tmp_path / "rows")
    rb.add(x=1, rew=0, done=0)
    gc.collect()
    gc.disable()
    try:
        saving = rb.save_async(tmp_path / "saved") if how == "thread" else None
        if saving is None:
            SAVES[how](rb, tmp_path / "saved", beside={"model": b"1"})
        else:
            saving.result()
        del rb
        assert len(ReplayBuffer(50, FIELDS, mmap_prefix=tmp_path / "rows", mmap_mode="r+")) == 1
    finally:
        gc.enable()


@pytest.mark.skipif(os.name == "nt", reason="an open file cannot be removed")
def test_an_open_file_outlives_its_state(tmp_path: Path) -> None:
    """A reader beside a run that saves."""
    rb = filled()
    rb.save(tmp_path, beside={"model": b"old"})
    with open_beside(tmp_path, "model") as file:
        rb.save(tmp_path, beside={"model": b"new"})
        assert file.read() == b"old"
    assert content(tmp_path, "model") == b"new"


@pytest.mark.parametrize("codec", [checkpoint.AS_IT_IS, None, "zlib"])
def test_copies_have_the_files(codec: str | None, tmp_path: Path) -> None:
    """As they are, whatever the codec of the rows."""
    rb = filled()
    for number in (1, 2):
        rb.save(tmp_path / "a", keep=2, codec="lzma", beside={"model": b"1" * 1000 * number})
    checkpoint.copy(tmp_path / "a", tmp_path / "b", codec=codec, state=1)
    assert content(tmp_path / "b", "model") == b"1" * 1000
    path = tmp_path / "a" / "s2-beside-model"
    assert path.read_bytes() == b"1" * 2000
    path.write_bytes(b"1" * 1999 + b"2")
    with pytest.raises(DamagedError, match="s2-beside-model: checksum"):
        checkpoint.copy(tmp_path / "a", tmp_path / "c")
    assert names(tmp_path / "c") == []


def test_restore_and_the_next_save(tmp_path: Path) -> None:
    """A restored buffer and its files go on in the same folder."""
    rb = filled()
    rb.save(tmp_path, beside={"model": b"1"})
    other = filled(3)
    other.restore(tmp_path)
    assert (len(other), content(tmp_path, "model")) == (10, b"1")
    other.save(tmp_path, beside={"model": b"2"})
    assert content(tmp_path, "model") == b"2"


# ---------------------------------------------------------------------- descriptions


def test_files_are_shown_and_checked(tmp_path: Path) -> None:
    """By the functions; for the commands see their tests."""
    filled().save(tmp_path / "a", beside={"model.pt": b"1" * 5000, "env.pkl": b"2"})
    found = checkpoint.describe(tmp_path / "a")
    assert found["beside"] == {"model.pt": {"nbytes": 5000}, "env.pkl": {"nbytes": 1}}
    assert checkpoint.inspect(tmp_path / "a").beside == {"model.pt": 5000, "env.pkl": 1}
    (verdict,) = checkpoint.verify(tmp_path / "a")
    assert verdict.is_in_order
    assert (verdict.files, verdict.nbytes) == (found["files"], found["nbytes"])
    assert verdict.nbytes > 5001

    (tmp_path / "a" / "s1-beside-model.pt").write_bytes(b"1" * 4999)
    (verdict,) = checkpoint.verify(tmp_path / "a")
    (damage,) = verdict.damage
    assert damage == (
        "s1-beside-model.pt",
        "'model.pt' beside the rows",
        "expected 5000 bytes, got 4999",
    )
    assert (verdict.lost, verdict.fatal) == ({}, "")
