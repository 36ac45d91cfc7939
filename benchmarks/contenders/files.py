"""This package and its floors: checkpoints.

Saves are compared with what keeps the same promise: that of ``sync=False`` with those of peers,
which end when the system has the bytes, and that of the default, which ends when all is on the
disk, with those of peers and what puts their files there.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from contender import Contender
from data import KINDS, filling
from measure import Work

from cpprb_like import ReplayBuffer

from .common import after, give_memory_back, saving_and_loading, saving_to_folders
from .uniform import env_dict, fill, filled, floor, ours, shelf

__all__ = ["first", "large"]

first = Contender("first save", "The same buffer, saved to an empty folder.")


@ours.does_all("save", "save_synchronised", "load")
def files(rows: int) -> tuple[Work, Work, Work]:
    """``save`` to a new folder, with ``sync=False`` and without, and ``load``."""
    rb = shelf.get(filled, "small", rows)
    synchronised, load = _saving(rb)
    return saving_to_folders(lambda folder: rb.save(folder, sync=False)), synchronised, load


@floor.does_all("save", "save_synchronised", "load")
def files_floor(rows: int) -> tuple[Work, Work, Work]:
    """One write of as many bytes as were declared, and one read into memory that is there."""
    memory = np.zeros(rows * KINDS["small"].nbytes, np.uint8)
    return saving_and_loading(lambda file: file.write(memory), lambda file: file.readinto(memory))


def _saving(rb: ReplayBuffer) -> tuple[Work, Work]:
    folder = _folder()
    rb.save(folder)
    load = after(give_memory_back, lambda: ReplayBuffer.load(folder))
    return saving_to_folders(rb.save), load


def _folder() -> str:
    """A folder that is there as long as this process."""
    kept = tempfile.TemporaryDirectory()
    _kept.append(kept)
    return kept.name


_kept: list[Any] = []


def large(nbytes: int) -> ReplayBuffer:
    """A full buffer of images with so many bytes, about."""
    rows = nbytes // KINDS["images"].nbytes
    rb = ReplayBuffer(rows, env_dict("images"), seed=0)
    return fill(rb, filling(rows, "images"))


@ours.does_all("save_large", "load_large")
def large_files(nbytes: int) -> tuple[Work, Work]:
    """``save`` to a new folder, and ``load``."""
    return _saving(shelf.get(large, nbytes))


@floor.does_all("save_large", "load_large")
def large_files_floor(nbytes: int) -> tuple[Work, Work]:
    """A file of these bytes is copied, and synchronised."""
    rb = shelf.get(large, nbytes)
    path = Path(_folder()) / "rows"
    with path.open("wb", buffering=0) as file:
        rest = memoryview(rb._arena.data)
        while rest:
            rest = rest[file.write(rest[: 1 << 24]) :]

    def copy(folder: str) -> None:
        new = Path(folder) / "copy"
        shutil.copyfile(path, new)
        with new.open("rb") as file:
            os.fsync(file.fileno())

    return saving_to_folders(copy), saving_to_folders(copy)


@ours.does("save_again")
def save_again(nbytes: int) -> Work:
    """After one new row in a hundred."""
    rb = shelf.get(large, nbytes)
    folder = _folder()
    rb.save(folder)
    steps = filling(max(1, rb.capacity // 100), "images")
    return after(lambda: rb.add(**steps), lambda: rb.save(folder))


@first.does("save_again")
def save_first(nbytes: int) -> Work:
    """The first save."""
    return saving_to_folders(shelf.get(large, nbytes).save)
