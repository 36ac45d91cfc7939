"""Report of ``inspect``, as JSON values."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from cpprb_like import ReplayBuffer, checkpoint
from cpprb_like.checkpoint import describe_field, describe_transitions, reward_of, spread
from cpprb_like.cli._convert import CHECKPOINT, CPPRB, kind_of, read
from cpprb_like.datasets import describe
from cpprb_like.errors import DataLossWarning

FILE_MAP = b"cpprb_like ring, version "


def inspect(path: Path, state: int | None = None, reward: str | None = None) -> dict[str, Any]:
    """The report of a checkpoint folder, a data set, or a file of cpprb."""
    kind = kind_of(path)
    if state is not None and kind != CHECKPOINT and not path.is_dir():
        raise ValueError(f"--state: expected none, as {path} is no checkpoint")
    if kind not in (CHECKPOINT, CPPRB):
        return _dataset(path, kind, reward)
    if path.is_dir():
        return checkpoint.describe(path, state=state, reward=reward)
    if path.is_file():
        with path.open("rb") as file:
            start = file.read(len(FILE_MAP))
        if start == FILE_MAP:
            raise ValueError(
                f"{path}: a file map knows its fields by a digest only; open it with the "
                f"constructor that made it, mmap_prefix={str(path.with_suffix(''))!r} and "
                "mmap_mode='r', and save() a checkpoint to inspect"
            )
    elif not path.with_name(f"{path.name}.npz").is_file():
        raise FileNotFoundError(f"{path}: there is no such file or folder")
    return _transitions(path, reward)


def _dataset(path: Path, kind: str, reward: str | None) -> dict[str, Any]:
    """The report of a data set. With a ``reward`` the rows are read, for returns of episodes."""
    found = describe(path, format=kind)
    statistics: dict[str, Any] = {}
    if reward is not None:
        reward_of(found.fields, reward)
        ends = [name for name in ("done", "terminated", "truncated") if name in found.fields]
        fields: dict[str, Any] = {name: {} for name in dict.fromkeys([reward, *ends])}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DataLossWarning)  # the report has ``left_out``
            buffer = ReplayBuffer.from_dataset(path, format=kind, env_dict=fields)
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


def _fields(
    fields: Mapping[str, tuple[np.dtype[Any], tuple[int, ...]]], rows: int
) -> dict[str, Any]:
    """The descriptions of fields, and the bytes of a row in all fields."""
    found = [
        describe_field(name, dtype, shape, math.prod(shape) * dtype.itemsize, rows)
        for name, (dtype, shape) in fields.items()
    ]
    return {"nbytes_per_step": sum(one["nbytes_per_step"] for one in found), "fields": found}
