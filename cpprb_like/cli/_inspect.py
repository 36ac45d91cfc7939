"""What ``inspect`` and ``report`` show of a checkpoint folder, a data set or a file of cpprb."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cpprb_like import ReplayBuffer, checkpoint
from cpprb_like._machine.opening import open_regular
from cpprb_like.checkpoint import describe_field, describe_transitions, reward_of, spread
from cpprb_like.cli._convert import CHECKPOINT, CPPRB, kind_of, read
from cpprb_like.datasets import describe as describe_dataset
from cpprb_like.errors import DataLossWarning
from cpprb_like.processes import SharedReplay
from cpprb_like.report import Description, describe_saved
from cpprb_like.report import describe as describe_rows

FILE_MAP = b"cpprb_like ring, version "


def inspect(path: Path, state: int | None = None, reward: str | None = None) -> dict[str, Any]:
    """The report of a checkpoint folder, a data set, or a file of cpprb."""
    kind = _kind_of(path, state)
    if kind == CHECKPOINT:
        return checkpoint.describe(path, state=state, reward=reward)
    return _transitions(path, reward) if kind == CPPRB else _dataset(path, kind, reward)


def describe(path: Path, state: int | None = None, reward: str | None = None) -> Description:
    """The description of the rows at a path, or of the running replay of this name."""
    try:
        kind = _kind_of(path, state)
    except FileNotFoundError as missing:
        if path.name != str(path) or path.exists():
            raise
        return _running(path.name, reward, missing)
    if kind == CHECKPOINT:
        return describe_saved(path, state=state, reward=reward)
    if kind == CPPRB:
        buffer, found, _ = read(path)
        if found.is_nstep:
            raise ValueError(f"{path}: its rows sum several steps, so they show no single ones")
        return describe_rows(buffer, about={"path": str(path), "kind": "cpprb file"}, reward=reward)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataLossWarning)  # ``inspect`` shows what is left out
        buffer = ReplayBuffer.from_dataset(path, format=kind, resume=True)
    about = {"path": str(path), "kind": "data set", "format": kind}
    return describe_rows(buffer, about=about, reward=reward)


def _running(name: str, reward: str | None, missing: FileNotFoundError) -> Description:
    """The description of the running replay of a name. ``missing``: it names no data set."""
    try:
        replay = SharedReplay.attach(name)
    except ValueError:  # replays have no such names
        raise missing from None
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{error.strerror}; and {missing}") from None
    try:
        return describe_rows(replay, about={"name": name}, reward=reward)
    finally:
        replay.close()


def _kind_of(path: Path, state: int | None) -> str:
    """The kind of what is at a path; raises an error that says why it cannot be read."""
    kind = kind_of(path)
    if state is not None and kind != CHECKPOINT and not path.is_dir():
        raise ValueError(f"--state: expected none, as {path} is no checkpoint")
    if kind == CPPRB and path.is_dir():
        return CHECKPOINT  # the error says that there is none
    if kind == CPPRB and path.is_file():
        with open_regular(path) as file:
            start = file.read(len(FILE_MAP))
        if start == FILE_MAP:
            raise ValueError(
                f"{path}: a file map knows its fields by a digest only; open it with the "
                f"constructor that made it, mmap_prefix={str(path.with_suffix(''))!r} and "
                "mmap_mode='r', and save() a checkpoint to inspect"
            )
    return kind


def _dataset(path: Path, kind: str, reward: str | None) -> dict[str, Any]:
    """The report of a data set. With a ``reward`` the rows are read, for returns of episodes."""
    found = describe_dataset(path, format=kind)
    statistics: dict[str, Any] = {}
    if reward is not None:
        numbers: Any = {name: one for name, one in found.fields.items() if one[0] is not str}
        reward_of(numbers, reward)
        ends = [name for name in ("done", "terminated", "truncated") if name in found.fields]
        fields: dict[str, Any] = {name: {} for name in dict.fromkeys([reward, *ends])}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DataLossWarning)  # the report has ``left_out``
            buffer = ReplayBuffer.from_dataset(path, format=kind, env_dict=fields, resume=True)
        statistics = checkpoint.statistics(buffer, reward)
    files = [file for file in (found.path, *found.path.rglob("*")) if file.is_file()]
    return {
        "path": str(path),
        "kind": "data set",
        "format": found.format,
        "files": len(files),
        "nbytes": sum(file.stat().st_size for file in files),
        "rows": found.rows,
        "left_out": found.left_out,
        "lacks": found.lacks,
        "about": found.about,
        **_fields(found.fields, found.rows),
        "episodes": {
            "number": len(found.episodes),
            "open": sum(episode.is_open for episode in found.episodes),
            "cut": sum(episode.is_cut for episode in found.episodes),
            "length": spread([episode.length for episode in found.episodes]),
        },
        "reward": reward,
        "returns": statistics.get("returns"),
    }


def _transitions(file: Path, reward: str | None) -> dict[str, Any]:
    """The report of a file of cpprb, without episodes if its rows are n-step rows."""
    path = file if file.is_file() else file.with_name(f"{file.name}.npz")
    found = describe_transitions(path)
    statistics: dict[str, Any] = {"rows": found.rows}
    if not found.is_nstep:
        buffer, found, _ = read(path)
        statistics = checkpoint.statistics(buffer, reward_of(found.fields, reward))
    return {
        "path": str(path),
        "kind": "cpprb file",
        "files": 1,
        "nbytes": path.stat().st_size,
        "next_of": list(found.next_of),
        "is_nstep": found.is_nstep,
        **_fields(found.fields, found.rows),
        **statistics,
    }


def _fields(fields: Mapping[str, tuple[Any, tuple[Any, ...]]], rows: int) -> dict[str, Any]:
    """The descriptions of fields, and the bytes of a row in all fields but those of any length."""
    found = []
    for name, (dtype, shape) in fields.items():
        if dtype is str or any(isinstance(length, str) for length in shape):
            kind: Any = "str" if dtype is str else dtype
            found.append(describe_field(name, kind, shape, 0, rows) | {"nbytes": None})
        else:
            nbytes = math.prod(shape) * dtype.itemsize
            found.append(describe_field(name, dtype, shape, nbytes, rows))
    return {"nbytes_per_step": sum(one["nbytes_per_step"] for one in found), "fields": found}
