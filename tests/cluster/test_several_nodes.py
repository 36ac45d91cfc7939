"""Programs that start several nodes of Ray, each in a process of its own: the soak's short form."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from scale import LONG

SECONDS, KILLS, STOPPED = (600, 110, 25) if LONG else (20, 8, 5)


def run(program: str, *arguments: object, timeout: float) -> None:
    """Run a program that ends with an error if something is wrong."""
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name(program)), *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout,
        start_new_session=True,
        check=False,
    )
    print(done.args, done.stdout)
    assert done.returncode == 0


def test_a_cluster_loses_nothing_that_it_does_not_report() -> None:
    """While hosts, actors, learners and nodes are killed or stopped; none hangs, none is wrong."""
    seed = int.from_bytes(os.urandom(2), "little")
    options = {"--seconds": SECONDS, "--kills": KILLS, "--seed": seed, "--stop": STOPPED}
    run("soak.py", *sum(options.items(), ()), timeout=3 * SECONDS + 240)


def test_answers_of_another_node_come_before_they_are_read() -> None:
    """Asking ahead brings the bytes, too: Ray begins to when they are read, and that was a wait."""
    run("other_node.py", timeout=240)
