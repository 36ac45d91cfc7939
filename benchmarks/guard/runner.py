"""The program that is counted: it runs hot paths between calls that callgrind can see."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Mapping
from multiprocessing import get_context

import numpy as np
from measure import Work

SetUp = Callable[[], Work]

MARK = "getppid"  # a function of the C library that nothing else here calls
MARKS = 3  # calls of it for each path
WARM_UPS = 50  # after which the interpreter has specialized its code
CALLS = 20  # of the path, in the first loop ...
MORE_CALLS = 40  # ... and so many more in the second: the difference counts


def run(paths: Mapping[str, SetUp]) -> None:
    """Run the paths that the command line names, and print the number of each one's process.

    Each has a process of its own: it finds the heap as it was when the program began.
    """
    gc.disable()
    fork = get_context("fork")
    for name in sys.argv[1:]:
        process = fork.Process(target=_run, args=(paths[name],))
        process.start()
        process.join()
        if process.exitcode:
            sys.exit(f"{name} failed")
        print(process.pid)


def _run(set_up: SetUp) -> None:
    np.random.seed(0)
    work = set_up()
    for _ in range(WARM_UPS):
        work(1)
    os.getppid()
    work(CALLS)
    os.getppid()
    work(CALLS + MORE_CALLS)
    os.getppid()
