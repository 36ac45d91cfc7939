"""Report of ``inspect``: plain values that JSON has."""

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
    """Look at a checkpoint folder, at a data set, or at a file of cpprb's."""
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
    """The description of a data set; its rows are read for returns, of a given ``reward``."""
    said = describe(path, format=kind)
    statistics: dict[str, Any] = {}
    if reward is not None:
        reward_of(said.fields, reward)
        ends = [name for name in ("done", "terminated", "truncated") if name in said.fields]
        fields: dict[str, Any] = {name: {} for name in dict.fromkeys([reward, *ends])}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DataLossWarning)  # ``left_out`` says the same
            buffer = ReplayBuffer.from_dataset(path, format=kind, env_dict=fields)
        statistics = checkpoint.statistics(buffer, reward)
    files = [file for file in (said.path, *said.path.rglob("*")) if file.is_file()]
    return {
        "path": str(path),
        "kind": "data set",
        "format": said.format,
        "files": len(files),
        "nbytes": sum(file.stat().st_size for file in files),
        "rows": said.rows,
        "left_out": said.left_out,
        "lacks": said.lacks,
        "about": said.about,
        **_fields(said.fields, said.rows),
        "episodes": {
            "number": len(said.episodes),
            "open": sum(episode.is_open for episode in said.episodes),
            "cut": sum(episode.is_cut for episode in said.episodes),
            "length": spread([episode.length for episode in said.episodes]),
        },
        "reward": reward,
        "returns": statistics.get("returns"),
    }


def _transitions(file: Path, reward: str | None) -> dict[str, Any]:
    """The description of a file of cpprb's; of rows that sum steps without episodes."""
    path = file if file.is_file() else file.with_name(f"{file.name}.npz")
    said = describe_transitions(path)
    statistics: dict[str, Any] = {"rows": said.rows}
    if not said.is_nstep:
        buffer, said, _ = read(path)
        statistics = checkpoint.statistics(buffer, reward_of(said.fields, reward))
    return {
        "path": str(path),
        "kind": "cpprb file",
        "files": 1,
        "nbytes": path.stat().st_size,
        "next_of": list(said.next_of),
        "is_nstep": said.is_nstep,
        **_fields(said.fields, said.rows),
        **statistics,
    }


def _fields(
    fields: Mapping[str, tuple[np.dtype[Any], tuple[int, ...]]], rows: int
) -> dict[str, Any]:
    """The descriptions of fields, and the bytes of a row of all."""
    found = [
        describe_field(name, dtype, shape, math.prod(shape) * dtype.itemsize, rows)
        for name, (dtype, shape) in fields.items()
    ]
    return {"nbytes_per_step": sum(one["nbytes_per_step"] for one in found), "fields": found}
