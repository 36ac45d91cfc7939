"""Folders with FIFOs, devices, the greatest number, and generators that are none; and URLs."""

from __future__ import annotations

import io
import json
import os
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from children import child

from cpprb_like import ReplayBuffer, checkpoint
from cpprb_like.checkpoint._disk import Disk
from cpprb_like.datasets import describe, detect_format

FIELDS: Any = {"x": {"shape": (), "dtype": "i8"}}
on_unix = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="FIFOs are of Unix")


def filled(**options: Any) -> ReplayBuffer:
    """A buffer of ten rows."""
    rb = ReplayBuffer(10, FIELDS, **({"seed": 0} | options))
    rb.add(x=np.arange(10))
    return rb


def put(path: Path, kind: str) -> None:
    """Something in place of a file that has no bytes of its own."""
    path.unlink(missing_ok=True)
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "zero":
        path.symlink_to("/dev/zero")
    else:
        path.mkdir()


def in_time(call: Callable[[], object]) -> None:
    """Call it in a child, which has to end by itself."""
    with child(call) as running:
        assert running.join() == 0


@on_unix
@pytest.mark.parametrize("kind", ["fifo", "zero", "folder"])
@pytest.mark.parametrize("name", ["state-000001.json", "s1-0.npy", "lock"])
def test_what_is_no_file_blocks_no_reader(name: str, kind: str, tmp_path: Path) -> None:
    """A FIFO was opened, and ``load`` and ``save`` waited for somebody to write to it."""
    filled().save(tmp_path)
    put(tmp_path / name, kind)

    def load_and_save() -> None:
        rb = filled()
        if name == "lock":
            with pytest.raises(OSError, match="lock"):
                rb.save(tmp_path)
            assert len(ReplayBuffer.load(tmp_path)) == 10
            return
        for attempt in (ReplayBuffer.load, rb.restore):
            with pytest.raises(ValueError, match=rf"{name}.*no regular file"):
                attempt(tmp_path)
        (verdict,) = checkpoint.verify(tmp_path)
        assert not verdict.is_in_order
        if kind != "folder":
            rb.save(tmp_path)
            assert len(ReplayBuffer.load(tmp_path)) == 10

    in_time(load_and_save)


@on_unix
def test_files_of_others_are_opened_without_a_wait(tmp_path: Path) -> None:
    """Files of transitions and chunks of data sets, too."""
    os.mkfifo(tmp_path / "rows.npz")
    os.mkfifo(tmp_path / "20200101T000000F000000-0-0-5.npz")

    def read() -> None:
        with pytest.raises(FileNotFoundError, match="no regular file"):
            filled().load_transitions(tmp_path / "rows.npz")
        detect_format(tmp_path)
        with pytest.raises((OSError, ValueError)):
            describe(tmp_path, format="dreamerv3")

    in_time(read)


class Endless(io.BytesIO):
    """A file that has more bytes whenever it is read, but its size of when it was opened."""

    def readinto(self, to: Any) -> int:
        """Bytes of the file, and then zeros without end."""
        n = super().readinto(to)
        to[n:] = bytes(len(to) - n)
        return len(to)

    def read(self, n: int | None = -1) -> bytes:
        """As ``readinto``."""
        found = super().read(n)
        assert n is not None
        assert n >= 0  # or it would never return
        return found + bytes(n - len(found))


@pytest.mark.parametrize("codec", [None, "zlib", "lzma"])
def test_no_byte_beyond_the_size_of_a_file_is_read(
    codec: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that grows while it is read is that of before; one without end takes no time."""
    filled().save(tmp_path, codec=codec)

    def endless(disk: Disk, name: str) -> Any:
        return Endless((disk.folder / name).read_bytes())

    monkeypatch.setattr(Disk, "open", endless)
    assert len(ReplayBuffer.load(tmp_path)) == 10
    assert checkpoint.verify(tmp_path)[0].is_in_order
    checkpoint.copy(tmp_path, tmp_path / "other")
    assert len(ReplayBuffer.load(tmp_path / "other")) == 10


@pytest.mark.parametrize("name", [f"state-{10**18 - 1}.json", f"s{10**18 - 1}-0.npy"])
def test_a_greatest_number_is_an_error_and_no_save_that_is_none(name: str, tmp_path: Path) -> None:
    """The state got a number of 19 digits, which no load looks for, and ``save`` returned."""
    (tmp_path / name).write_bytes(b"")
    before = sorted(tmp_path.iterdir())
    for save in (filled().save, lambda path: filled().save_async(path).result()):
        with pytest.raises(ValueError, match="no greater one for a new state"):
            save(tmp_path)
    assert sorted(path for path in tmp_path.iterdir() if path.name != "lock") == before


URL_CALLS: dict[str, Callable[[Any], object]] = {
    "save": lambda url: filled().save(url),
    "save_async": lambda url: filled().save_async(url),
    "load": ReplayBuffer.load,
    "restore": lambda url: filled().restore(url),
    "checkpoint.save": lambda url: checkpoint.save(filled(), url),
    "checkpoint.load": checkpoint.load,
    "verify": checkpoint.verify,
    "states": checkpoint.states,
    "copy": lambda url: checkpoint.copy(url, "other"),
    "copy to": lambda url: checkpoint.copy("folder", url),
    "save_transitions": lambda url: filled().save_transitions(url),
    "load_transitions": lambda url: filled().load_transitions(url),
    "export": lambda url: filled().export(url),
    "from_dataset": ReplayBuffer.from_dataset,
    "describe": describe,
    "detect_format": detect_format,
    "mmap_prefix": lambda url: ReplayBuffer(10, FIELDS, mmap_prefix=url),
}


@pytest.mark.parametrize("url", ["s3://bucket/rows", Path("gs://bucket/rows"), "file:///tmp/rows"])
@pytest.mark.parametrize("call", URL_CALLS)
def test_urls_are_refused_by_name(
    call: str, url: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``save("s3://...")`` made a folder ``s3:`` where the program ran, without an error."""
    monkeypatch.chdir(tmp_path)
    filled().save("folder")
    with pytest.raises(
        ValueError, match=r": expected a path of this machine, got the URL '(s3|gs|file):/"
    ):
        URL_CALLS[call](url)
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_a_path_is_no_number(tmp_path: Path) -> None:
    """What is no path is a ``TypeError`` that names the argument."""
    wrong: Any = 3
    with pytest.raises(TypeError, match="folder: expected a path, got 3"):
        filled().save(wrong)
    name = tmp_path / "a:b" / "c:"
    filled().save(name)
    assert len(ReplayBuffer.load(name)) == 10


# ---- generators


def with_state(folder: Path, edit: Callable[[Any], None]) -> None:
    """Change what the manifest says of the generator, and seal it."""
    (path,) = folder.glob("state-*.json")
    manifest = json.loads(path.read_bytes().split(b"\n")[0])
    edit(manifest["root"]["state"]["rng"])
    text = json.dumps(manifest).encode()
    path.write_bytes(text + f"\n{zlib.crc32(text):08x}\n".encode())


def set_pos(saved: Any) -> None:
    """Pos."""
    saved["state"]["state"]["pos"] = 625


def set_far(saved: Any) -> None:
    """Far."""
    saved["state"]["state"]["pos"] = 2**31 - 1


def set_no_number(saved: Any) -> None:
    """No number."""
    saved["state"]["state"]["pos"] = None


def set_small_key(saved: Any) -> None:
    """Small key."""
    saved["state"]["state"]["key"] = [1, 2]


def set_zeros(saved: Any) -> None:
    """Zeros."""
    saved["state"]["state"]["key"] = [0] * 624


def set_even(saved: Any) -> None:
    """Even."""
    saved["state"]["state"]["inc"] = 0


def set_buffer_pos(saved: Any) -> None:
    """Buffer pos."""
    saved["state"]["buffer_pos"] = -1


EDITS: list[tuple[str, Callable[[Any], None]]] = [
    ("MT19937", set_pos),
    ("MT19937", set_far),
    ("MT19937", set_no_number),
    ("MT19937", set_small_key),
    ("MT19937", set_zeros),
    ("PCG64", set_even),
    ("PCG64DXSM", set_even),
    ("Philox", set_buffer_pos),
]


@pytest.mark.parametrize(("kind", "edit"), EDITS)
def test_states_that_no_generator_has_are_damage(
    kind: str, edit: Callable[[Any], None], tmp_path: Path
) -> None:
    """MT19937 read beyond its words at a ``pos`` behind the last one: the process crashed."""
    filled(seed=getattr(np.random, kind)(0)).save(tmp_path)
    with_state(tmp_path, edit)
    with pytest.raises(ValueError, match=r"MT19937|increment|has the number|damaged"):
        ReplayBuffer.load(tmp_path)


@pytest.mark.parametrize("kind", ["MT19937", "PCG64", "PCG64DXSM", "Philox", "SFC64"])
def test_states_that_they_have_come_back(kind: str, tmp_path: Path) -> None:
    """At every place among the words, too."""
    rb = filled(seed=getattr(np.random, kind)(0))
    for _ in range(8):
        rb.sample(100)
        rb.save(tmp_path)
        other = ReplayBuffer.load(tmp_path)
        assert np.array_equal(rb.sample(100)["x"], other.sample(100)["x"])
