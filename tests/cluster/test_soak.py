"""The short form of the soak, in a process of its own: it starts nodes of Ray."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from scale import LONG

SOAK = Path(__file__).with_name("soak.py")
SECONDS, KILLS = (600, 110) if LONG else (20, 8)


def test_a_cluster_loses_nothing_that_it_does_not_report() -> None:
    """While hosts, actors, learners and nodes are killed; none hangs, and no row is wrong."""
    command = [sys.executable, str(SOAK), "--seconds", str(SECONDS), "--kills", str(KILLS)]
    done = subprocess.run(
        [*command, "--seed", str(int.from_bytes(os.urandom(2), "little"))],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=3 * SECONDS + 240,
        start_new_session=True,
        check=False,
    )
    print(done.args, done.stdout)
    assert done.returncode == 0
