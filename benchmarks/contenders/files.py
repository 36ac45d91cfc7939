"""This package and its floors: checkpoints.

Saves are compared with those that keep the same promise. A save with ``sync=False``, like those of
peers, ends when the system has the bytes. The default ends when all is on the disk; peers' files
are then put there too.
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

from .common import after, file_cases, give_memory_back, saving_to_folders
from .uniform import env_dict, fill, filled, floor, ours

first = Contender("first save", "The same buffer, saved to an empty folder.", ours.shelf)
folders: list[Any] = []  # which are removed with this process


def new_folder() -> str:
    """A folder that is there as long as this process."""
    folders.append(tempfile.TemporaryDirectory())
    name: str = folders[-1].name
    return name


def large(nbytes: int) -> ReplayBuffer:
    """A full buffer of images with so many bytes, about."""
    rows = nbytes // KINDS["images"].nbytes
    return fill(ReplayBuffer(rows, env_dict("images"), seed=0), filling(rows, "images"))


def saving(rb: ReplayBuffer) -> Work:
    """``save`` to a new folder."""
    return saving_to_folders(rb.save)


def loading(rb: ReplayBuffer) -> Work:
    """``load``."""
    folder = new_folder()
    rb.save(folder)
    return after(give_memory_back, lambda: ReplayBuffer.load(folder))


def saving_again(rb: ReplayBuffer) -> Work:
    """``save`` after one new row in a hundred."""
    folder = new_folder()
    rb.save(folder)
    steps = filling(max(1, rb.capacity // 100), "images")
    return after(lambda: rb.add(**steps), lambda: rb.save(folder))


def copying(rb: ReplayBuffer) -> Work:
    """A file of these bytes is copied, and synchronised."""
    path = Path(new_folder()) / "rows"
    with path.open("wb", buffering=0) as file:
        rest = memoryview(rb._arena.data)
        while rest:
            rest = rest[file.write(rest[: 1 << 24]) :]

    def copy(folder: str) -> None:
        new = Path(folder) / "copy"
        shutil.copyfile(path, new)
        with new.open("rb") as file:
            os.fsync(file.fileno())

    return saving_to_folders(copy)


ours.works_on(
    filled,
    save=lambda rb: saving_to_folders(lambda folder: rb.save(folder, sync=False)),
    save_synchronised=saving,
    load=loading,
)
# One write of the declared bytes, and one read into new memory, as that of a loaded buffer is.
file_cases(
    floor,
    lambda rows: np.zeros(rows * KINDS["small"].nbytes, np.uint8),
    save=lambda memory, file: file.write(memory),
    load=lambda memory, file: file.readinto(np.empty_like(memory)),
)
ours.works_on(large, save_large=saving, load_large=loading, save_again=saving_again)
floor.works_on(large, save_large=copying, load_large=copying)
first.works_on(large, save_again=saving)
