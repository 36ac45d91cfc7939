"""Print how far a call goes: ``python tools/walks.py``, by its frames, functions and files.

A *walk* is what a reader goes through who follows a call from its first line to its last. The
second call is followed, so imports and what is made on first use do not count. Only code of the
package counts: Python's, and that of compiled modules if they were built with the directive
``profile``, but for functions that hold no interpreter lock.
"""

from __future__ import annotations

import itertools
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

import cpprb_like
from cpprb_like import ReplayBuffer
from cpprb_like.samplers import Prioritized
from cpprb_like.views import FrameStacks, NStep

PACKAGE = str(Path(cpprb_like.__file__).parent)
FIELDS: dict[str, Any] = {
    "obs": {"shape": 4},
    "act": {"shape": (), "dtype": np.int64},
    "rew": {"shape": ()},
    "done": {"shape": (), "dtype": np.bool_},
}
Walks = dict[str, Callable[[], object]]


def walk(call: Callable[[], object]) -> tuple[int, int, int, int]:
    """Frames of a call, those of compiled functions among them, its functions and its files."""
    frames: list[tuple[str, str, int]] = []

    def follow(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        name = code.co_filename
        if event == "call" and (PACKAGE in name or name.startswith("cpprb_like")):
            frames.append((name, code.co_name, code.co_firstlineno))

    call()
    sys.setprofile(follow)
    try:
        call()
    finally:
        sys.setprofile(None)
    compiled = [frame for frame in frames if frame[0].endswith((".pyx", ".pxd"))]
    return len(frames), len(compiled), len(set(frames)), len({name for name, *_ in frames})


def filled(**options: Any) -> ReplayBuffer:
    """A buffer of 1,000 steps in episodes of 20."""
    rb = ReplayBuffer(1000, FIELDS, next_of="obs", seed=0, **options)
    rng = np.random.default_rng(0)
    obs, rew = rng.random((1001, 4), np.float32), rng.random(1000, np.float32)
    done = np.arange(1, 1001) % 20 == 0
    rb.add(obs=obs[:-1], act=np.arange(1000), rew=rew, next_obs=obs[1:], done=done)
    return rb


def local_walks(folder: str) -> Walks:
    """The calls of an agent, and of a program that keeps its rows."""
    rb, weighed = filled(), filled(sampler=Prioritized())
    view = rb.view(NStep(3, 0.99), FrameStacks({"obs": 4}))
    step = {"obs": np.zeros(4, np.float32), "act": 1, "rew": 0.5, "done": False}
    step["next_obs"] = np.zeros(4, np.float32)
    batch = weighed.sample(32)
    episodes, numbers = filled(), itertools.count()
    return {
        "add": lambda: rb.add(**step),
        "sample": lambda: rb.sample(32),
        "sample, prioritized": lambda: weighed.sample(32),
        "update_priorities": lambda: weighed.update_priorities(batch["indexes"], np.ones(32)),
        "sample of stacked 3-step rows": lambda: view.sample(32),
        "episodes.delete": lambda: episodes.episodes.delete(next(numbers)),
        "save": lambda: rb.save(folder),
        "load": lambda: ReplayBuffer.load(folder),
    }


def main() -> None:
    """Print a line for each walk."""
    print(" frames  compiled  functions  files")
    with tempfile.TemporaryDirectory() as folder:
        for name, call in local_walks(f"{folder}/replay").items():
            frames, compiled, functions, files = walk(call)
            print(f"{frames:7,} {compiled:9,} {functions:10,} {files:6,}  {name}")


if __name__ == "__main__":
    main()
