"""FIFOs, sockets, devices and folders in place of a file: each reader refuses them at once."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dataset_cases import place
from forked import outcome
from optional import need

from cpprb_like import DrawLog, LoggedDraws, PrioritizedReplayBuffer, ReplayBuffer, checkpoint
from cpprb_like._files.peek import counts_of
from cpprb_like.compat.reagent import ReplayBuffer as ReagentBuffer
from cpprb_like.compat.reagent._elements import REQUIRED_KEYS
from cpprb_like.compat.reagent._files import STORE_FILENAME_PREFIX
from cpprb_like.datasets import FORMATS, describe
from cpprb_like.processes._words import mapped

pytestmark = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="FIFOs are of Unix")
FIELDS: Any = {
    "obs": {"shape": 3},
    "act": {"shape": (), "dtype": "i8"},
    "rew": {"shape": ()},
    "done": {"shape": (), "dtype": bool},
}
KINDS: dict[str, Callable[[Path], object]] = {
    "a FIFO": os.mkfifo,
    "a socket": lambda path: os.mknod(path, stat.S_IFSOCK | 0o600),
    "a device": lambda path: path.symlink_to("/dev/zero"),
    "a folder": lambda path: path.mkdir(),
}
PACKAGES = {"d4rl": "h5py", "minari": "h5py"}  # of formats that do without pyarrow
ALONE = ("rlds", "dreamerv3")


def filled(kind: Any = ReplayBuffer, **options: Any) -> Any:
    """A buffer of two episodes and an open one, 20 rows."""
    rb = kind(100, FIELDS, next_of="obs", **options)
    for t in range(20):
        obs = {"obs": np.full(3, t), "next_obs": np.full(3, t + 1)}
        rb.add(**obs, act=t, rew=t, done=t % 8 == 7)
    return rb


def refused(call: Callable[[], object], path: Path) -> None:
    """Each kind of file in place of this one is refused at once, with the name of its folder."""
    content = path.read_bytes() if path.exists() else None
    for kind, make in KINDS.items():
        path.unlink(missing_ok=True)
        make(path)

        def job() -> None:
            with pytest.raises((OSError, ValueError), match=re.escape(path.parent.name)):
                call()

        assert outcome(job) == 0, kind
        path.rmdir() if path.is_dir() else path.unlink()
    if content is not None:
        path.write_bytes(content)
        call()


@pytest.mark.parametrize("mode", ["r", "r+", "w"])
def test_the_rows_of_a_mapped_buffer(mode: Any, tmp_path: Path) -> None:
    """The rows file of each mode that opens one, which waited for a writer of the FIFO."""
    refused(
        lambda: ReplayBuffer(10, FIELDS, mmap_prefix=tmp_path / "replay", mmap_mode=mode),
        tmp_path / "replay.dat",
    )


@pytest.mark.parametrize("part", ["sampler", "flushed"])
@pytest.mark.parametrize("mode", ["r", "r+"])
def test_the_files_beside_the_rows(mode: Any, part: str, tmp_path: Path) -> None:
    """Priorities and the file of flushes."""
    prefix = tmp_path / "replay"
    filled(PrioritizedReplayBuffer, mmap_prefix=prefix).flush()
    (path,) = tmp_path.glob(f"replay.*{part}*")
    if part == "flushed" and mode == "r":
        return  # not read
    refused(
        lambda: PrioritizedReplayBuffer(
            100, FIELDS, next_of="obs", mmap_prefix=prefix, mmap_mode=mode
        ),
        path,
    )


def test_logs_transitions_and_memory(tmp_path: Path) -> None:
    """Logs of draws, files of transitions, counts of mapped buffers, memory of processes."""
    rb = filled()
    with LoggedDraws(rb, tmp_path / "draws") as logged:
        logged.sample(3)
    rb.save_transitions(tmp_path / "rows.npz")
    refused(lambda: DrawLog(tmp_path / "draws"), tmp_path / "draws")
    refused(lambda: filled().load_transitions(tmp_path / "rows"), tmp_path / "rows.npz")
    filled(mmap_prefix=tmp_path / "replay")
    refused(lambda: counts_of(tmp_path / "replay.dat"), tmp_path / "replay.dat")
    (tmp_path / "words").write_bytes(bytes(8))
    refused(lambda: mapped(tmp_path / "words", np.int64), tmp_path / "words")


def test_checkpoints(tmp_path: Path) -> None:
    """The manifest and the rows of a checkpoint, for each program that reads one."""
    filled().save(tmp_path)
    for path in sorted(tmp_path.glob("s*")):
        refused(lambda: ReplayBuffer.load(tmp_path), path)
        refused(lambda: filled().restore(tmp_path), path)
        refused(lambda: checkpoint.describe(tmp_path) and ReplayBuffer.load(tmp_path), path)


def test_files_of_reagent(tmp_path: Path) -> None:
    """Files of ReAgent's checkpoints."""
    need("torch")
    rb = ReagentBuffer(replay_capacity=10)
    for name in REQUIRED_KEYS:
        (tmp_path / f"{STORE_FILENAME_PREFIX}{name}_ckpt.2.gz").touch()
    refused(lambda: rb.load(str(tmp_path), 2), tmp_path / "add_count_ckpt.2.gz")


@pytest.mark.filterwarnings("ignore:.*the buffer does not know the observation_space:UserWarning")
@pytest.mark.filterwarnings("ignore:lerobot. the files do not have:UserWarning")
@pytest.mark.filterwarnings("ignore::cpprb_like.errors.DataLossWarning")
@pytest.mark.parametrize("format", FORMATS)
def test_data_sets(format: str, tmp_path: Path) -> None:  # noqa: A002 (as the option is called)
    """Each file of each format; pyarrow waited for a FIFO, and not even Ctrl-C ended it."""
    if format not in ALONE:
        need(PACKAGES.get(format, "pyarrow"))
    rb, path = filled(), place(tmp_path, format)
    rb.export(path, format)

    def read() -> None:
        describe(path, format=format)
        ReplayBuffer.from_dataset(path, format=format).get_all_transitions()

    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    unread = ("stats.json", "tasks.parquet", "dataset_info.json")
    read_ones = [file for file in files if file.name not in unread]
    if format == "minari-arrow":
        read_ones = read_ones[:1] + [file for file in read_ones if file.suffix == ".arrow"][:1]
    for file in read_ones:
        refused(read, file)


@pytest.mark.skipif(not find_spec("click"), reason="click is not installed")
def test_the_command(tmp_path: Path) -> None:
    """``inspect`` and ``top`` of what is no file: one line, and exit code 1."""
    from click.testing import CliRunner  # noqa: PLC0415 (may be missing)

    from cpprb_like.cli._commands import commands  # noqa: PLC0415

    os.mkfifo(tmp_path / "rows.npz")
    os.mkfifo(tmp_path / "rows.dat")

    def job() -> None:
        for arguments in (["inspect", "rows.npz"], ["inspect", "rows.dat"], ["top", "rows"]):
            done = CliRunner().invoke(commands, [arguments[0], str(tmp_path / arguments[1])])
            assert done.exit_code == 1, done.output
            assert "rows" in done.stderr

    assert outcome(job) == 0
