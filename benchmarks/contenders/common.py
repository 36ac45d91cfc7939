"""What contenders have in common: files, imports, steps to store, memory that is in use."""

from __future__ import annotations

import ctypes
import gc
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import cycle, islice
from pathlib import Path
from time import perf_counter
from typing import Any

from contender import Cannot
from measure import Work, compiled

__all__ = [
    "STEPS",
    "after",
    "first_batch",
    "give_memory_back",
    "importing",
    "nbytes_of_row",
    "saving_and_loading",
    "saving_to_folders",
    "storing",
    "synchronising",
]

STEPS = 100  # of an environment, stored one behind the other: few enough to stay in the cache


def saving_and_loading(
    save: Callable[[Any], None], load: Callable[[Any], Any]
) -> tuple[Work, Work, Work]:
    """Works that write a file, that write and synchronise it, and that read it.

    The functions are given an open file. It is written anew each time; and it is read as by a
    program that has just started, with no memory from loads before.
    """
    file = tempfile.TemporaryFile()  # noqa: SIM115 (open as long as the works live)

    def write() -> None:
        file.seek(0)
        save(file)

    def emptied() -> None:
        file.seek(0)
        file.truncate()

    def read() -> None:
        file.seek(0)
        load(file)

    def write_new(folder: str) -> None:
        with (Path(folder) / "file").open("wb") as new:
            save(new)

    write()
    return after(emptied, write), synchronising(write_new), after(give_memory_back, read)


def after(preparing: Callable[[], object], doing: Callable[[], object]) -> Work:
    """Work of which each call is prepared by something that is no part of the time."""

    def work(calls: int) -> float:
        seconds = 0.0
        for _ in range(calls):
            preparing()
            start = perf_counter()
            doing()
            seconds += perf_counter() - start
        return seconds

    return work


def storing(store: Callable[..., object], steps: Iterable[tuple[Any, ...]]) -> Work:
    """Work that stores such steps of an environment one behind the other, again and again."""
    turns = cycle(steps)

    def work(calls: int) -> float:
        start = perf_counter()
        for step in islice(turns, calls):
            store(*step)
        return perf_counter() - start

    return work


def give_memory_back() -> None:
    """What is free in this process goes to the system."""
    gc.collect()
    with suppress(AttributeError):  # a C library that gives freed memory back by itself
        ctypes.CDLL(None).malloc_trim(0)


def saving_to_folders(save: Callable[[str], object]) -> Work:
    """Work that writes into a new folder with each call; to remove it is no part of the time."""

    def work(calls: int) -> float:
        seconds = 0.0
        for _ in range(calls):
            with tempfile.TemporaryDirectory() as folder:
                start = perf_counter()
                save(folder)
                seconds += perf_counter() - start
        return seconds

    return work


def synchronising(save: Callable[[str], object]) -> Work:
    """``saving_to_folders``, with all that was written on the disk in the end.

    So after a crash of the machine the files are there, as those of a checkpoint are. They have no
    checksums, and one that was there before is not kept until the new one is whole.
    """

    def save_to_disk(folder: str) -> None:
        save(folder)
        for path in (*Path(folder).rglob("*"), Path(folder)):
            opened = os.open(path, os.O_RDONLY)
            try:
                os.fsync(opened)
            finally:
                os.close(opened)

    return saving_to_folders(save_to_disk)


def importing(module: str, then: str = "") -> Work:
    """A new interpreter that imports a module, and does more, less one that imports nothing."""

    def starting(source: str) -> Work:
        def run(calls: int) -> None:
            for _ in range(calls):
                subprocess.run([sys.executable, "-c", source], check=True)

        return compiled(run)

    loading, nothing = starting(f"import {module}; {then}"), starting("pass")
    return lambda calls: loading(calls) - nothing(calls)


def first_batch(module: str) -> str:
    """A program that makes a buffer of this package or of cpprb, adds a step and draws a batch."""
    fields = {"obs": {"shape": 4}, "rew": {"shape": 1}, "done": {"shape": 1}}
    return (
        f"rb = {module}.ReplayBuffer(1000, {fields}); rb.add(obs=[1, 2, 3, 4], rew=1, done=0); "
        "rb.sample(1)"
    )


def resident_nbytes() -> int:
    """Memory of this process that is in use. Raises Cannot where the system does not tell."""
    statm = Path("/proc/self/statm")
    if not statm.exists():
        raise Cannot("this system does not tell how much memory a process has in use")
    give_memory_back()
    return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def nbytes_of_row(make: Callable[[], Any], rows: int) -> float:
    """Memory that a process has in use for each row of what is made, full.

    It is that of a second one beside the first: what the library compiles or loads for the first
    one does not count.
    """
    first = make()
    before = resident_nbytes()
    second = make()
    used = (resident_nbytes() - before) / rows
    assert first is not second  # both alive until they were looked at
    return used
