"""Report of ``inspect``: plain values that JSON has, and the numbers behind the pictures."""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cpprb_like import ReplayBuffer
from cpprb_like.checkpoint import Held, Look, Rows, describe_transitions, rows_of, states
from cpprb_like.cli._convert import CHECKPOINT, CPPRB, kind_of, read, reward_field
from cpprb_like.datasets import Description, describe
from cpprb_like.errors import DataLossWarning

__all__ = ["Found", "inspect"]

FILE_MAP = b"cpprb_like ring, version "
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


class Found(NamedTuple):
    """Result of a look: plain values, and the rows of each buffer by its path."""

    document: dict[str, Any]
    rows: dict[str, Rows]


def inspect(
    path: Path, state: int | None = None, reward: str | None = None, *, reads_rows: bool = False
) -> Found:
    """Look at a checkpoint folder, at a data set, or at a file of cpprb's.

    ``reads_rows`` is whether the rows of a data set are wanted too.
    """
    kind = kind_of(path)
    if state is not None and kind != CHECKPOINT and not path.is_dir():
        raise ValueError(f"--state: expected none, as {path} is no checkpoint")
    if kind not in (CHECKPOINT, CPPRB):
        return _dataset(path, kind, reward, reads_rows=reads_rows or reward is not None)
    if path.is_dir():
        return _checkpoint(path, state, reward)
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


# ---------------------------------------------------------------------- checkpoints


def _checkpoint(folder: Path, state: int | None, reward: str | None) -> Found:
    look = Look(folder, state)
    codecs = sorted({file.codec or "none" for file in look.files})
    rows: dict[str, Rows] = {}
    buffers = []
    for held in look.buffers:
        names = [field.name for field in held.fields]
        chosen = reward if reward is not None else _default_reward(held, names)
        rows[held.path] = look.rows(held, chosen)
        buffers.append(_buffer(held, rows[held.path], chosen))
    document = {
        "path": str(folder),
        "kind": "checkpoint",
        "class": look.kind,
        "state": look.number,
        "states": states(folder),
        "files": len(look.files),
        "nbytes": sum(file.nbytes for file in look.files),
        "codecs": codecs,
        "not_saved": look.external,
        "python_objects": look.objects,
        "buffers": buffers,
    }
    return Found(document, rows)


def _default_reward(held: Held, names: list[str]) -> str | None:
    """A field that is called so and has one number a row."""
    name = reward_field(names, None)
    fits = [
        field.name
        for field in held.fields
        if field.dtype.kind in "biuf" and math.prod(field.shape) == 1
    ]
    return name if name in fits else None


def _buffer(held: Held, rows: Rows, reward: str | None) -> dict[str, Any]:
    fields = [
        _field(field.name, field.dtype, field.shape, field.nbytes, held.size)
        for field in held.fields
    ]
    return {
        "path": held.path,
        "class": held.kind,
        "class_of_caller": held.caller_kind,
        "capacity": held.size,
        "rows": len(rows.ages),
        "written": held.written,
        "n_envs": held.n_envs,
        "ends": list(held.ends),
        "next_of": list(held.next_of),
        "stack_compress": list(held.stacks),
        "nstep": held.nstep,
        "sampler": held.sampler,
        "nbytes_per_step": sum(field.nbytes for field in held.fields),
        "nbytes": held.nbytes,
        "fields": fields,
        **_statistics(rows, reward),
    }


def _field(
    name: str, dtype: np.dtype[Any], shape: tuple[int, ...], nbytes: int, n: int
) -> dict[str, Any]:
    return {
        "name": name,
        "dtype": str(dtype),
        "shape": list(shape),
        "nbytes_per_step": nbytes,
        "nbytes": nbytes * n,
    }


# ---------------------------------------------------------------------- data sets


def _dataset(path: Path, kind: str, reward: str | None, *, reads_rows: bool) -> Found:
    said = describe(path, format=kind)
    if reward is not None and reward not in said.fields:
        raise ValueError(f"reward: expected one of {list(said.fields)}, got {reward!r}")
    rows: dict[str, Rows] = {}
    statistics: dict[str, Any] = {"episodes": _episodes(said), "reward": None, "returns": None}
    if reads_rows:
        chosen = reward_field(list(said.fields), reward)
        if reward is None and chosen is not None and not _is_one_number(*said.fields[chosen]):
            chosen = None
        ends = [name for name in ("done", "terminated", "truncated") if name in said.fields]
        names = dict.fromkeys([*([] if chosen is None else [chosen]), *ends])
        fields: dict[str, Any] = {name: {} for name in names or list(said.fields)[:1]}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DataLossWarning)  # ``left_out`` says the same
            buffer = ReplayBuffer.from_dataset(path, format=kind, env_dict=fields)
        rows[""] = rows_of(buffer, chosen)
        found = _statistics(rows[""], chosen)
        statistics |= {name: found[name] for name in ("reward", "returns")}
    columns = [
        _field(name, dtype, shape, math.prod(shape) * dtype.itemsize, said.rows)
        for name, (dtype, shape) in said.fields.items()
    ]
    files = [file for file in (said.path, *said.path.rglob("*")) if file.is_file()]
    document = {
        "path": str(path),
        "kind": "data set",
        "format": said.format,
        "files": len(files),
        "nbytes": sum(file.stat().st_size for file in files),
        "rows": said.rows,
        "left_out": said.left_out,
        "lacks": said.lacks,
        "about": said.about,
        "nbytes_per_step": sum(field["nbytes_per_step"] for field in columns),
        "fields": columns,
        **statistics,
    }
    return Found(document, rows)


def _episodes(said: Description) -> dict[str, Any]:
    lengths = np.array([episode.length for episode in said.episodes], np.float64)
    return {
        "number": len(said.episodes),
        "open": sum(episode.is_open for episode in said.episodes),
        "cut": sum(episode.is_cut for episode in said.episodes),
        "length": _spread(lengths),
    }


# ---------------------------------------------------------------------- cpprb's files


def _transitions(file: Path, reward: str | None) -> Found:
    path = file if file.is_file() else file.with_name(f"{file.name}.npz")
    said = describe_transitions(path)
    chosen = reward
    statistics: dict[str, Any] = {}
    rows: dict[str, Rows] = {}
    if not said.is_nstep:
        buffer, said, _ = read(path)
        if chosen is None:
            chosen = reward_field(list(said.fields), None)
            if chosen is not None and not _is_one_number(*said.fields[chosen]):
                chosen = None
        rows[""] = rows_of(buffer, chosen)
        statistics = _statistics(rows[""], chosen)
    fields = [
        _field(name, dtype, shape, math.prod(shape) * dtype.itemsize, said.rows)
        for name, (dtype, shape) in said.fields.items()
    ]
    document = {
        "path": str(path),
        "kind": "cpprb file",
        "files": 1,
        "nbytes": path.stat().st_size,
        "rows": said.rows,
        "next_of": list(said.next_of),
        "is_nstep": said.is_nstep,
        "nbytes_per_step": sum(field["nbytes_per_step"] for field in fields),
        "fields": fields,
        **statistics,
    }
    return Found(document, rows)


def _is_one_number(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bool:
    return dtype.kind in "biuf" and math.prod(shape) == 1


# ---------------------------------------------------------------------- statistics


def _statistics(rows: Rows, reward: str | None) -> dict[str, Any]:
    lengths = np.array([episode.length for episode in rows.episodes], np.float64)
    complete = [episode for episode in rows.episodes if episode.complete]
    returns = np.array([episode.return_ for episode in complete], np.float64)
    return {
        "ages": _spread(rows.ages.astype(np.float64)),
        "episodes": {
            "number": len(rows.episodes),
            "complete": len(complete),
            "terminated": sum(episode.terminated for episode in rows.episodes),
            "truncated": sum(episode.truncated for episode in rows.episodes),
            "length": _spread(lengths),
        },
        "reward": reward,
        "returns": None if reward is None else _spread(returns),
        "priorities": _priorities(rows),
    }


def _spread(values: NDArray[np.float64]) -> dict[str, float | None] | None:
    if not len(values):
        return None
    with np.errstate(all="ignore"):
        found = {"mean": values.mean(), "min": values.min(), "max": values.max()}
    return {name: _finite(value) for name, value in found.items()}


def _finite(value: Any) -> float | None:
    """Value for JSON, which has no infinity and no NaN: None for these."""
    number = float(value)
    return number if math.isfinite(number) else None


def _priorities(rows: Rows) -> dict[str, Any] | None:
    """Statistics of the priorities of rows that can be drawn; None without priorities."""
    if rows.weights is None:
        return None
    weights = rows.weights[rows.weights > 0]
    total = weights / weights.max() if len(weights) else weights
    effective = _finite(total.sum() ** 2 / (total**2).sum()) if len(total) else 0.0
    found: dict[str, Any] = {"rows": len(weights), "effective_sample_size": effective}
    if rows.priorities is None or not len(weights):
        return found | {"mean": None, "min": None, "max": None, "quantiles": None}
    priorities = rows.priorities[rows.weights > 0]
    quantiles = np.quantile(priorities, QUANTILES).tolist()
    pairs = zip(QUANTILES, quantiles, strict=True)
    of_priorities = _spread(priorities)
    assert of_priorities is not None
    return found | of_priorities | {"quantiles": {str(q): _finite(value) for q, value in pairs}}
