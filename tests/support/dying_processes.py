"""Processes that add to a shared replay and draw from it until they are killed.

Every row has a checksum of its own values, so whoever draws it knows whether it is whole. Children
are forked, as that takes milliseconds; none of them ever returns to the test.
"""

from __future__ import annotations

import mmap
import os
import random
import signal
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from file_map_cases import unless_full
from forked import start

from cpprb_like.processes import Learner, SharedReplay
from cpprb_like.samplers import Sampler

SECONDS = 20.0  # that anything may take
PIXELS = 200  # of the image: a large field, which lies beside the records

FIELDS: dict[str, Any] = {
    "t": {"shape": (), "dtype": np.int64},
    "env": {"shape": (), "dtype": np.int64},
    "obs": {"shape": 8, "dtype": np.int32},
    "image": {"shape": PIXELS, "dtype": np.uint8},
    "mark": {"shape": (), "dtype": np.int64},  # is changed by updates, ...
    "same": {"shape": (), "dtype": np.int64},  # ... together with this one
    "rew": {"shape": (), "dtype": np.float64},
    "done": {"shape": (), "dtype": bool},
    "check": {"shape": (), "dtype": np.uint32},
}
PLAIN: dict[str, Any] = {"env_dict": FIELDS, "terminated": "done"}
RAGGED: dict[str, Any] = FIELDS | {
    "ids": {"shape": ("T",), "dtype": np.int32},
    "pairs": {"shape": (2, "T"), "dtype": np.float32},
    "say": {"dtype": str},
}
LONGEST = 22
CASES: dict[str, dict[str, Any]] = {
    "plain": PLAIN,
    "envs": PLAIN | {"n_envs": 2},
    "n-step": PLAIN | {"Nstep": {"size": 3, "gamma": 1.0, "rew": "rew"}},
    "chained": PLAIN
    | {"env_dict": FIELDS | {"next_obs": {"shape": 8, "dtype": np.int32}}, "next_of": "obs"},
    # Room for all rows of all tests.
    "ragged": PLAIN | {"env_dict": RAGGED, "room": {"T": 4000 * LONGEST, "say": 4000 * 20}},
}
# Rows leave early.
FULL: dict[str, Any] = PLAIN | {"env_dict": RAGGED, "room": {"T": 700, "say": 1000}}
# The same with next values, which a row may share with the one behind it.
FULL_CHAINED: dict[str, Any] = FULL | {
    "env_dict": RAGGED | {"next_obs": FIELDS["obs"]},
    "next_of": ["obs", "ids", "pairs", "say"],
}


def count(t: int, env: int) -> int:
    """The number of items of a row."""
    return (t * 13 + 5 * env) % (LONGEST + 1)


def items_of(t: int, env: int) -> dict[str, Any]:
    """The values of any length of a row."""
    ids = np.full(count(t, env), 10 * t + env, np.int32)
    return {"ids": ids, "pairs": np.stack([ids, -ids]), "say": f"{t} in {env}"}


def next_items_of(t: int, env: int) -> dict[str, Any]:
    """Those of the next row, or others where an episode ends."""
    return items_of(t + 1000 if t % 9 == 8 else t + 1, env)


def checksum(t: int, env: int, obs: np.ndarray[Any, Any], image: np.ndarray[Any, Any]) -> int:
    """Of what of a row never changes."""
    return zlib.crc32(image.tobytes(), zlib.crc32(obs.tobytes(), t * 64 + env))


def step(options: dict[str, Any], t: int) -> dict[str, Any]:
    """The values of a time step, for all environments."""
    n_envs = options.get("n_envs", 1)
    obs = (t * 7 + np.arange(8) + 1000 * np.arange(n_envs)[:, None]).astype(np.int32)
    image = ((t * 31 + np.arange(PIXELS) + 11 * np.arange(n_envs)[:, None]) % 251).astype(np.uint8)
    values: dict[str, Any] = {
        "t": np.full(n_envs, t),
        "env": np.arange(n_envs),
        "obs": obs,
        "image": image,
        "mark": np.full(n_envs, t),
        "same": np.full(n_envs, t),
        "rew": np.ones(n_envs),
        "done": np.full(n_envs, t % 9 == 8),
        "check": np.array(
            [checksum(t, env, obs[env], image[env]) for env in range(n_envs)], np.uint32
        ),
    }
    if "next_of" in options:
        values["next_obs"] = obs + 7
    if "room" in options:
        rows = [items_of(t, env) for env in range(n_envs)]
        if "next_of" in options:
            for env, row in enumerate(rows):
                row |= {f"next_{name}": one for name, one in next_items_of(t, env).items()}
        values |= {name: [row[name] for row in rows] for name in rows[0]}
    return values if n_envs > 1 else {name: value[0] for name, value in values.items()}


def torn(batch: dict[str, Any], options: dict[str, Any]) -> str | None:
    """What is wrong with the rows of a batch; None if each is whole."""
    for row in range(len(batch["check"])):
        t, env = int(batch["t"][row]), int(batch["env"][row])
        values = batch["obs"][row], batch["image"][row]
        if checksum(t, env, *values) != int(batch["check"][row]):
            return f"row {t} of environment {env} is torn: {values[0]}"
        if batch["mark"][row] != batch["same"][row]:
            return f"an update of row {t} is torn"
        if "next_of" in options and (batch["next_obs"][row] != values[0] + 7).any():
            return f"the next values of row {t} are torn: {batch['next_obs'][row]}"
        if "room" in options:
            expected = {"": items_of(t, env)}
            if "next_of" in options:
                expected["next_"] = next_items_of(t, env)
            for prefix, items in expected.items():
                mask = batch[f"{prefix}T_mask"][row]
                for name, values in items.items():
                    found = batch[prefix + name][row]
                    if not np.array_equal(found if name == "say" else found[..., mask], values):
                        return f"{prefix}{name} of row {t} is torn: {found}, expected {values}"
        steps = float(np.asarray(batch["rew"][row]))
        if steps not in ((1, 2, 3) if "Nstep" in options else (1,)):
            return f"the sum of row {t} is {steps}"
    return None


class Child:
    """A forked process that works until it is killed.

    ``beats`` is the number of rounds that it has done: whoever stands still hangs.
    """

    def __init__(self, kind: str, job: Callable[[Child], None]) -> None:
        self.kind = kind
        self._beats = mmap.mmap(-1, 8)
        self.pid = start(lambda: job(self), int(6 * SECONDS))

    def beat(self) -> None:
        """One more round is done."""
        self._beats[:8] = (self.beats + 1).to_bytes(8, "little")

    @property
    def beats(self) -> int:
        """Rounds so far."""
        return int.from_bytes(self._beats[:8], "little")

    def wait_for_beat(self, more: int = 1) -> None:
        """Wait until it has done more rounds than now."""
        self.wait_for_beats(self.beats + more)

    def wait_for_beats(self, wanted: int) -> None:
        """Wait until it has done so many rounds in all."""
        until = time.monotonic() + SECONDS
        while self.beats < wanted:
            self.must_live()
            if time.monotonic() > until:
                raise AssertionError(f"a {self.kind} stands still after {self.beats} rounds")
            time.sleep(0.001)

    def must_live(self) -> None:
        """Raise if it has ended by itself: it found something wrong."""
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        if pid:
            raise AssertionError(
                f"a {self.kind} ended with {os.waitstatus_to_exitcode(status)}: see standard error"
            )

    def signal(self, number: int) -> None:
        """Send it a signal."""
        os.kill(self.pid, number)

    def wait_until_stopped(self) -> None:
        """Wait until it has stopped itself."""
        self._wait(os.WUNTRACED)

    def end(self) -> int:
        """Wait for its end; negative: the signal that killed it."""
        return os.waitstatus_to_exitcode(self._wait(0))

    def _wait(self, options: int) -> int:
        until = time.monotonic() + SECONDS
        while True:
            pid, status = os.waitpid(self.pid, options | os.WNOHANG)
            if pid:
                return status
            if time.monotonic() > until:
                raise AssertionError(f"a {self.kind} hangs after {self.beats} rounds")
            time.sleep(0.001)

    def kill(self) -> None:
        """``kill -9``."""
        self.signal(signal.SIGKILL)
        assert self.end() == -signal.SIGKILL


@contextmanager
def ended(children: list[Child]) -> Iterator[None]:
    """None of these, or of those that are added, outlives the block."""
    try:
        yield
    finally:
        for child in children:
            with suppress(ProcessLookupError, ChildProcessError):  # it has ended by itself
                os.kill(child.pid, signal.SIGKILL)
                os.waitpid(child.pid, 0)


def act(
    replay: SharedReplay, options: dict[str, Any], seed: int, *, clears: bool = False
) -> Callable[[Child], None]:
    """A job: add rows without end, and now and then do all else that an actor does."""

    def job(child: Child) -> None:
        chance = random.Random(seed)
        actor = taken(replay)
        t = int(actor.get_all_transitions()["t"].max(initial=-1)) + 1
        while True:
            for _ in range(chance.randrange(1, 40)):
                actor.add(**step(options, t))
                t += 1
            if chance.random() < 0.2:
                actor.on_episode_end()
            if chance.random() < 0.2 and len(actor):
                slots = actor.sample(4, indexes=True)["indexes"]
                mark = np.full(len(slots), chance.randrange(1 << 30))
                actor.update(slots, mark=mark, same=mark)
            is_free = "room" in options and "next_of" not in options  # no row shares its items
            if is_free and chance.random() < 0.2 and len(actor):
                batch = actor.sample(4, indexes=True, fields="t")
                rows = [step(options, int(one)) for one in batch["t"]]
                moved = {name: [row[name] for row in rows] for name in ("ids", "pairs", "say")}
                with unless_full():
                    actor.update(batch["indexes"], **moved)  # as before, in other places
            if clears and chance.random() < 0.02:
                actor.clear()
            child.beat()

    return job


def taken(replay: SharedReplay) -> Any:
    """A shard that is free; a process that was killed may not have let go of it yet."""
    until = time.monotonic() + SECONDS
    while time.monotonic() < until:
        with suppress(BlockingIOError):
            return replay.actor()
        time.sleep(0.001)
    return replay.actor()


def learn(
    replay: SharedReplay,
    options: dict[str, Any],
    seed: int,
    sampler: Callable[[], Sampler],
    *,
    update: Callable[[Learner, dict[str, Any]], None] | None = None,
) -> Callable[[Child], None]:
    """A job: draw batches without end, and check each row."""

    def job(child: Child) -> None:
        learner = replay.learner(sampler(), seed=seed)
        while True:
            if len(learner) == 0:
                time.sleep(0.0005)
                child.beat()
                continue
            batch = learner.sample(16)
            wrong = torn(batch, options)
            if wrong:
                raise AssertionError(wrong)
            if update is not None:
                update(learner, batch)
            child.beat()

    return job


def shared_memory() -> set[str]:
    """What there is in shared memory of this package."""
    base = Path(os.environ["CPPRB_LIKE_SHARED_MEMORY"])  # of these tests alone: see conftest.py
    return {str(path) for path in base.glob("cpprb_like-*/*")}
