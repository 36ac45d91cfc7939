"""A process that writes to a file map is killed at any time: nothing published is lost or torn."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import pytest
from file_map_cases import CASES, Case, twin_rows

from cpprb_like import ReplayBuffer

pytestmark = pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="there is no SIGKILL")

# Kills of all cases together; the long form has 200 and more.
KILLS = int(os.environ.get("CPPRB_LIKE_KILLS", "16"))
SUPPORT = Path(__file__).parents[1] / "support"


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_killed_writer_loses_no_row(tmp_path: Path, case: Case) -> None:
    """Whatever was told to the parent is there, and every row that is there is whole.

    The file goes from one killed process to the next, as a run that is started again does.
    """
    chance = random.Random(case.name)
    first = 0
    for kill in range(-(-KILLS // len(CASES))):
        command = [sys.executable, "-m", "file_map_cases", case.name, str(tmp_path), str(first)]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(SUPPORT), *sys.path])}
        with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as child:
            assert child.stdout is not None
            assert child.stdout.readline() == b"ready\n"
            time.sleep(chance.random() * 0.1)
            child.kill()
            told = child.stdout.read().split(b"\n")[:-1]  # the last line may be cut off
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # that rows are left out
            rb = case.open(tmp_path, "r+")
        published = int(told[-1]) if told else first
        first = check_after_kill(rb, case, published, kill)
        del rb


def check_after_kill(rb: ReplayBuffer, case: Case, published: int, kill: int) -> int:
    """The rows that are there are whole; returns the counter to go on from."""
    what = f"kill {kill} of case {case.name} after {published} steps"
    rb.check(**case.ids)
    newest = int(rb.ring.written) // rb.n_envs
    batch = rb.get_all_transitions()
    twin_rows(batch, case, what)
    counters = np.unique(batch["t"])
    if case.clears:
        return int(max(published, counters.max(initial=0)) + 1)
    assert newest >= published, what
    if len(counters):
        assert counters.max() >= published - case.n_step or case.deletes, what
    # At most the rows of one call are torn, beside those that were deleted on purpose.
    torn = case.most_call * rb.n_envs
    if not case.deletes and case.n_step == 1:
        assert len(rb) >= min(published * rb.n_envs, rb.capacity) - torn, what
    return newest
