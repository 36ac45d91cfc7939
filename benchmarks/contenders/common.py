"""Operations that contenders share: files, imports, steps to store, memory in use."""

from __future__ import annotations

import ctypes
import gc
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from contender import Cannot, Contender
from data import CycleInputs, TreeInputs, taking_turns
from items import Rows, rows_of
from measure import Work, compiled, statement

STEPS = 100  # of an environment; all stay in the cache


def file_cases(
    contender: Contender,
    make: Callable[..., Any],
    save: Callable[[Any, Any], object],
    load: Callable[[Any, Any], object],
) -> None:
    """A file is written, written and synchronised, and read; the functions get it open.

    Each save writes a new file. A load runs as in a new program, with no memory from loads before.
    """

    def written(made: Any) -> Any:
        file = tempfile.TemporaryFile()  # noqa: SIM115 (open as long as the works live)
        save(made, file)
        return file

    def saving(made: Any) -> Work:
        file = written(made)
        return after(lambda: file.truncate(file.seek(0)), lambda: save(made, file))

    def to_disk(made: Any) -> Work:
        def write_new(folder: str) -> None:
            with (Path(folder) / "file").open("wb") as new:
                save(made, new)

        return synchronising(write_new)

    def loading(made: Any) -> Work:
        file = written(made)

        def prepare() -> None:
            file.seek(0)
            give_memory_back()

        return after(prepare, lambda: load(made, file))

    contender.works_on(make, save=saving, save_synchronised=to_disk, load=loading)


def folder_cases(
    contender: Contender, make: Callable[..., Any], save: Callable[[Any, str], object]
) -> None:
    """A new folder is written, and written and synchronised; there is no load."""
    contender.works_on(
        make,
        save=lambda made: saving_to_folders(partial(save, made)),
        save_synchronised=lambda made: synchronising(partial(save, made)),
    )


def priority_cases(
    contender: Contender,
    make: Callable[[int], tuple[Any, CycleInputs]],
    add: Callable[[Any], Work],
    draw: str,
    indexes: str,
    update: str,
    as_given: Callable[[Any], Any] = np.asarray,
) -> None:
    """Operations on a full buffer with priorities, and those to come, which ``make`` returns.

    ``draw`` is a statement about ``rb``, ``indexes`` what it drew, ``update`` the method that gets
    them with priorities, both as ``as_given`` of an array.
    """

    def updating(held: tuple[Any, CycleInputs]) -> Work:
        """New priorities for the rows of many batches in turn."""
        rb, inputs = held
        drawn: list[Any] = []
        statement(f"{draw}\nadd({indexes})", rb=rb, add=drawn.append)(len(inputs.fresh))
        fresh = taking_turns(as_given(np.array([*map(np.asarray, drawn)])), as_given(inputs.fresh))
        return statement(
            f"indexes, values = fresh()\n{update}(indexes, values)", rb=rb, fresh=fresh
        )

    def drawing_and_updating(held: tuple[Any, CycleInputs]) -> Work:
        """A batch with importance-sampling weights, and new priorities for its rows."""
        fresh = taking_turns(as_given(held[1].fresh))
        return statement(f"{draw}\n{update}({indexes}, fresh())", rb=held[0], fresh=fresh)

    contender.works_on(
        make,
        prioritized_add=lambda held: add(held[0]),
        prioritized_draw=lambda held: statement(draw, rb=held[0]),
        prioritized_update=updating,
        prioritized_cycle=drawing_and_updating,
    )


def tree_cases(
    contender: Contender, make: Callable[..., tuple[dict[str, Any], TreeInputs]], **does: str
) -> None:
    """Statements about trees, which ``make`` returns by their names, with inputs of calls.

    ``tree_find`` names ``targets``, the others ``slots`` and ``values``; all change with each call.
    """

    def working(source: str, is_find: bool, held: tuple[dict[str, Any], TreeInputs]) -> Work:
        trees, inputs = held
        fresh = taking_turns(*((inputs.targets,) if is_find else (inputs.slots, inputs.values)))
        names = "targets" if is_find else "slots, values"
        return statement(f"{names} = fresh()\n{source}", fresh=fresh, **trees)

    works = {name: partial(working, source, name == "tree_find") for name, source in does.items()}
    contender.works_on(make, **works)


def memory_cases(contender: Contender, **makes: Callable[[int, str], object]) -> None:
    """Memory in use for a row of what each function makes for a number of rows and a kind."""

    def nbytes(make: Callable[[int, str], object], rows: int, kind: str) -> float:
        contender.shelf.clear()
        return nbytes_of_row(lambda: make(rows, kind), rows)

    for operation, make in makes.items():
        contender.does(operation)(partial(nbytes, make))


def item_memory_case(contender: Contender, make: Callable[[Rows], object]) -> None:
    """Memory in use for a row of what ``make`` returns, less the bytes of its values."""

    @contender.does("item_memory")
    def nbytes(kind: str, rows: int) -> float:
        contender.shelf.clear()
        values = rows_of(kind, rows)
        return nbytes_of_row(lambda: make(values), rows) - values.nbytes / rows


def after(preparing: Callable[[], object], doing: Callable[[], object]) -> Work:
    """Work of which each call has a preparation that is not timed."""

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
    """Work that stores these steps of an environment in a cycle."""
    turns = cycle(steps)

    def work(calls: int) -> float:
        start = perf_counter()
        for step in islice(turns, calls):
            store(*step)
        return perf_counter() - start

    return work


def give_memory_back() -> None:
    """Return free memory of this process to the system."""
    gc.collect()
    with suppress(AttributeError):  # a C library that gives freed memory back by itself
        ctypes.CDLL(None).malloc_trim(0)


def saving_to_folders(save: Callable[[str], object]) -> Work:
    """Work that writes into a new folder with each call; its removal is not timed."""

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
    """``saving_to_folders``, which ends when all files are on the disk, as a checkpoint does.

    These files have no checksums, and no former state survives until the new one is whole.
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
    """Memory of this process in use. Raises Cannot where the system does not report it."""
    statm = Path("/proc/self/statm")
    if not statm.exists():
        raise Cannot("this system does not report the memory that a process has in use")
    give_memory_back()
    return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def nbytes_of_row(make: Callable[[], Any], rows: int) -> float:
    """Memory in use for each row of a full buffer, which ``make`` returns.

    The second of two buffers counts, without what the library compiles or loads for the first.
    """
    first = make()
    before = resident_nbytes()
    second = make()
    used = (resident_nbytes() - before) / rows
    assert first is not second  # both must be alive until here
    return used
