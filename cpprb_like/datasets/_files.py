"""Files of data sets: optional packages, errors of damaged files, atomic creation, dtypes."""

from __future__ import annotations

import importlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from cpprb_like._arguments.checks import as_path
from cpprb_like._machine.file_systems import InRoom
from cpprb_like.checkpoint._disk import Disk
from cpprb_like.datasets._model import Array

# Errors of h5py, pyarrow and the parsers here for damaged files, in addition to ValueError.
DAMAGES = ArithmeticError, AttributeError, LookupError, OSError, RuntimeError, TypeError


def need(package: str, format: str) -> Any:  # noqa: A002 (the argument of the user)
    """Import an optional package. Raises ``ImportError`` that says how to install it."""
    try:
        return importlib.import_module(package)
    except ImportError as error:
        name = package.partition(".")[0]
        raise ImportError(
            f"data sets of format {format!r} need {name}: pip install 'cpprb_like[datasets]' "
            f"({error})"
        ) from None


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn a library's errors about a damaged file into a ``ValueError`` that names the file."""
    try:
        yield
    except (FileNotFoundError, FileExistsError, IsADirectoryError, PermissionError):
        raise
    except ValueError as error:
        if str(error).startswith(str(path)):
            raise
        raise ValueError(f"{path}: {error}") from error
    except DAMAGES as error:
        raise ValueError(f"{path}: expected a sound data set: {error!r}") from error


@contextmanager
def new_place(path: str | os.PathLike[str], *, is_file: bool) -> Iterator[Path]:
    """Yield a temporary path, whose file or folder is renamed to ``path`` once it is synchronized.

    Raises ``FileExistsError`` if the name is taken. After any error, nothing is left.
    """
    target = as_path("path", path).absolute()
    if target.exists():
        raise FileExistsError(f"{target}: there is something of this name already")
    Disk(target.parent).make()
    unfinished = target.parent / f".{target.name}.{os.getpid()}-{os.urandom(4).hex()}.new"
    try:
        with InRoom(target):
            if not is_file:
                unfinished.mkdir()
            yield unfinished
        for folder, _, names in os.walk(unfinished):
            for name in names:
                _sync(Path(folder, name))
            Disk(folder).sync_names()
        if is_file:
            _sync(unfinished)
        if target.exists():
            raise FileExistsError(f"{target}: something of this name was made during the write")
        Disk(target.parent).rename(unfinished.name, target.name)
        Disk(target.parent).sync_names()
    except OSError as error:
        if error.errno is None or not _is_below(error.filename, unfinished):
            raise
        # A name that the user knows, in place of none or of the temporary one.
        reason = f"{os.strerror(error.errno)}: it was not written"
        raise OSError(error.errno, reason, str(target)) from error
    finally:
        if unfinished.is_dir():
            shutil.rmtree(unfinished, ignore_errors=True)
        else:
            unfinished.unlink(missing_ok=True)


def _is_below(name: object, folder: Path) -> bool:
    """Whether an error names no file, or one in a folder, or the folder."""
    return name is None or (isinstance(name, str) and name.startswith(str(folder)))


def _sync(path: Path) -> None:
    with path.open("rb+") as file:
        os.fsync(file.fileno())


# ---------------------------------------------------------------------- dtypes


def is_native(dtype: np.dtype[Any]) -> bool:
    """Whether every format has this dtype, and its byte order is that of the machine."""
    return dtype.kind in "biuf" and dtype.itemsize <= 8 and dtype.isnative


def converted(values: Array, dtype: np.dtype[Any], name: str) -> Array:
    """Numbers cast to another dtype; ``ValueError`` if the cast changes a value."""
    with np.errstate(invalid="ignore", over="ignore"):
        numbers: Array = values.astype(dtype)
        back = numbers.astype(values.dtype)  # 2 ** 53 + 1 compares equal to its float64
    are_nan = (numbers != numbers) & (values != values)
    changed = ((numbers != values) | (back != values)) & ~are_nan
    if changed.any():
        wrong = values[changed][:5].tolist()
        raise ValueError(f"{name}: expected numbers of {dtype}, got {wrong}")
    return numbers
