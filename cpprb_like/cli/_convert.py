"""Files of other programs as a buffer: those of cpprb, data sets, and checkpoints."""

from __future__ import annotations

import re
import warnings
from collections.abc import Collection
from pathlib import Path
from typing import Any

from cpprb_like import ReplayBuffer, checkpoint
from cpprb_like.checkpoint import Transitions, describe_transitions, reward_of
from cpprb_like.datasets import FORMATS, describe, detect_format

CHECKPOINT, CPPRB, MINARI = "checkpoint", "cpprb", "minari"
SUFFIX = re.compile(r"\.[A-Za-z]\w*")  # and not the .5 of run-0.5
KINDS = (CHECKPOINT, CPPRB, *FORMATS)


def kind_of(path: Path) -> str:
    """The kind of a path: a checkpoint, a data set of some format, or else a file of cpprb.

    ``FileNotFoundError`` that says where it was looked for, if there is none.
    """
    if path.is_dir() and checkpoint.states(path):
        return CHECKPOINT
    is_found = path.exists() or path.with_name(f"{path.name}.npz").is_file()
    return detect_format(path) or (CPPRB if is_found else describe(path).format)  # raises


def written_as(path: Path, kind: str | None) -> str:
    """The kind of a new file: ``kind``, or the kind of its suffix, or else a checkpoint."""
    if kind is None and path.suffix == ".npz":
        return CPPRB
    found = kind or detect_format(path, is_new=True)
    if found is None and SUFFIX.fullmatch(path.suffix):
        raise ValueError(
            f"{path}: the suffix {path.suffix!r} tells no kind of file: expected .npz, .hdf5, "
            ".parquet, or none for a checkpoint; --to names the kind"
        )
    return found or CHECKPOINT


def check_options(given: Collection[str], source: str, written: str) -> None:
    """Raise ``ValueError`` for an option that neither the source nor the new file has."""
    is_read, is_written = (kind in FORMATS for kind in (source, written))
    sums, what = "nstep" in given, "file of cpprb's" if written == CPPRB else "data set"
    readers = {
        "split": (is_read, "SOURCE is no data set, so it has no splits"),
        "strict": (is_read or is_written, "no data set is read or written, so nothing is lost"),
        "observation": (is_written, "NEW is no data set, so a field is no observation there"),
        "action": (is_written, "NEW is no data set, so a field is no action there"),
        "nstep": (source == CPPRB, "SOURCE is no file of cpprb's, whose rows may sum steps"),
        "gamma": (sums, "it is the discount of --nstep, which is not given"),
        "reward": (is_written or sums, "NEW is no data set, and no --nstep sums rewards"),
        "no-sync": (written == CHECKPOINT, f"NEW is a {what}, which is always put on the disk"),
    }
    for name, (is_used, why) in readers.items():
        if name in given and not is_used:
            raise ValueError(f"--{name}: expected none, as {why}")


def read_saved(folder: Path, size: int | None, state: int | None) -> ReplayBuffer:
    """The buffer of a state of a checkpoint."""
    found = checkpoint.load(folder, size=size, state=state)
    if not isinstance(found, ReplayBuffer):
        raise ValueError(f"{folder}: expected a buffer, got a {type(found).__name__}")
    return found


def read_dataset(
    path: Path, kind: str, size: int | None, split: str | None, *, strict: bool
) -> tuple[ReplayBuffer, list[str]]:
    """The buffer of a data set, or of a split of it, and warnings."""
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        buffer = ReplayBuffer.from_dataset(
            path, format=kind, capacity=size, split=split, strict=strict, resume=True
        )
    return buffer, [str(warning.message) for warning in warned]


def about_of(source: Path, kind: str, written: str, split: str | None) -> dict[str, Any] | None:
    """The metadata to copy to a new data set: those of Minari, if both are of Minari."""
    if not (kind.startswith(MINARI) and written.startswith(MINARI)):
        return None
    return describe(source, format=kind, split=split).about


def write_transitions(buffer: ReplayBuffer, path: Path) -> Path:
    """Write a new file of cpprb, and return its path with the suffix ``.npz``."""
    file = path if path.suffix == ".npz" else path.with_name(f"{path.name}.npz")
    if file.exists():
        raise FileExistsError(f"{file}: there is something of this name already")
    buffer.save_transitions(file)
    return file


def read(
    file: Path,
    size: int | None = None,
    *,
    nstep: int | None = None,
    gamma: float = 0.99,
    reward: str | None = None,
) -> tuple[ReplayBuffer, Transitions, list[str]]:
    """A new buffer with the rows of a file, the description of the file, and warnings.

    A file lacks the options of n-step returns. ``ValueError`` if its rows need these options and
    ``nstep`` is missing, or do not need them and ``nstep`` is given.
    """
    found = describe_transitions(file)
    if found.is_nstep and nstep is None:
        raise ValueError(
            f"{file}: its rows sum several steps, and no file says how many: give --nstep and "
            "--gamma of the buffer that it was saved from"
        )
    if not found.is_nstep and nstep is not None:
        raise ValueError(f"{file}: it was saved without Nstep, so --nstep is not for it")
    fields: dict[str, Any] = {
        name: {"shape": shape, "dtype": dtype} for name, (dtype, shape) in found.fields.items()
    }
    options: dict[str, Any] = {}
    if found.next_of:
        options["next_of"] = list(found.next_of)
    if nstep is not None:
        rewards = reward_of(found.fields, reward)
        if rewards is None:
            raise ValueError(f"{file}: which of {list(fields)} has the rewards? give --reward")
        following = [name for name in fields if name.startswith("next_")]
        options["Nstep"] = {"size": nstep, "gamma": gamma, "rew": rewards, "next": following}
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        buffer = ReplayBuffer(max(1, found.rows) if size is None else size, fields, **options)
        buffer.load_transitions(file)
    return buffer, found, [str(warning.message) for warning in warned]
