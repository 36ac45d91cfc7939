"""Print how far a call goes: ``python tools/walks.py``, by its frames, functions and files.

A *walk* is what a reader goes through who follows a call from its first line to its last. The
second call is followed, so imports and what is made on first use do not count. Only code of the
package counts: Python's, and that of compiled modules if they were built with the directive
``profile``, but for functions that hold no interpreter lock.

With Ray installed, the walks of a step to the learner of a cluster are printed, too: ``add`` of an
actor, ``sample`` of a learner, and all together. On the host's node both use its shared memory. On
another node the walk includes the flush of the actor and the draw at the host, but not the host's
``add``. These numbers vary by some frames, as a learner looks for hosts at intervals.
"""

from __future__ import annotations

import importlib.util
import itertools
import os
import secrets
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any
from unittest.mock import patch

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


@contextmanager
def local_ray() -> Iterator[None]:
    """Ray on this machine alone, until the end of the block."""
    os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")  # it uses the loopback alone
    os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    import ray  # noqa: PLC0415 (it reads these variables)

    ray.init(
        address="local",
        num_cpus=2,
        include_dashboard=False,
        configure_logging=False,
        log_to_driver=False,
        _node_ip_address="127.0.0.1",
    )
    try:
        yield
    finally:
        ray.shutdown()


@contextmanager
def cluster_walks(where: str) -> Iterator[Walks]:
    """A step's way to the learner of a cluster, for both on the ``same node`` or ``other node``."""
    from cpprb_like.ray import ClusterActor, ClusterReplay  # noqa: PLC0415 (it needs Ray)
    from cpprb_like.ray._connection import Connection  # noqa: PLC0415
    from cpprb_like.ray._drawing import Drawer  # noqa: PLC0415

    rng = np.random.default_rng(0)
    step: dict[str, Any] = {"obs": np.zeros(4, np.float32), "act": 1, "rew": 0.5, "done": False}
    steps: dict[str, Any] = {"obs": rng.random((200, 4), np.float32), "act": np.arange(200)}
    steps |= {"rew": rng.random(200, np.float32), "done": np.arange(1, 201) % 20 == 0}
    with ClusterReplay(1000, FIELDS, hosts=1, writers=1) as replay:
        connection = replay._connection
        node = connection.node() if where == "same node" else where
        with patch.object(Connection, "node", lambda _: node):
            actor = replay.actor()
            actor.add(**steps)
            learner = replay.learner(Prioritized(), seed=0, ahead=0)
            drawer = Drawer(connection.opened(connection.abouts(20.0)[0]), Prioritized(), 1)

            def add() -> None:
                actor.add(**step)
                if isinstance(actor, ClusterActor):
                    actor.flush()

            def sample() -> None:
                learner.sample(32)

            def draw() -> None:
                drawer.for_the_way(drawer.draw("", 32, {"indexes": True}, 1.0), "")

            add()
            while len(learner) <= len(steps["rew"]):
                time.sleep(0.01)
            sample()  # learners find their hosts with the first batch
            parts: Walks = {"add": add, "sample": sample}
            if isinstance(actor, ClusterActor):
                parts["draw at the host"] = draw
            whole = {"step to batch": lambda: [call() for call in parts.values()]}
            yield {f"cluster, {where}: {name}": call for name, call in (parts | whole).items()}
            drawer.close()
            learner.close()
            actor.close()


def print_walks(walks: Walks) -> None:
    """Print a line for each walk."""
    for name, call in walks.items():
        frames, compiled, functions, files = walk(call)
        print(f"{frames:7,} {compiled:9,} {functions:10,} {files:6,}  {name}")


def main() -> None:
    """Print all walks."""
    print(" frames  compiled  functions  files")
    with tempfile.TemporaryDirectory() as folder:
        print_walks(local_walks(f"{folder}/replay"))
    if importlib.util.find_spec("ray") is None:
        print("Ray is not installed: the walks of a cluster are left out")
        return
    with local_ray():
        for where in ("same node", "other node"):
            with cluster_walks(where) as walks:
                print_walks(walks)


if __name__ == "__main__":
    main()
