"""The processes of a soak of a cluster: they add rows, draw rows, and keep a journal of both.

The values of a row follow from its id, so every row of a batch is checked. A journal is a file of
fixed records, each written by one call, so that a kill leaves whole records.
"""

from __future__ import annotations

import os
import struct
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpprb_like.errors import NotEnoughDataError, RateLimitTimeoutError
from cpprb_like.ray import ClusterActor, ClusterReplay
from cpprb_like.samplers import Prioritized
from cpprb_like.views import NStep

__all__ = [
    "FIELDS",
    "GAMMA",
    "REMOTE",
    "Journal",
    "Record",
    "check",
    "has_ended",
    "learn",
    "memory_of",
    "play",
    "records",
    "rows_of",
]

PIXELS = 512  # so that the answers to learners of other nodes pass the object stores of Ray
FIELDS: dict[str, Any] = {
    "id": {"shape": (), "dtype": np.int64},
    "sum": {"shape": (), "dtype": np.uint64},
    "obs": {"shape": 3},
    "next_obs": {"shape": 3},
    "image": {"shape": PIXELS, "dtype": np.uint8},
    "rew": {"shape": ()},
    "done": {"shape": (), "dtype": bool},
}
EPISODE = 10  # rows
PLAYER = 32  # bits of an id for the number of a row; above them is the number of its player
GAMMA, STEPS = 0.5, 3  # of n-step returns
BATCH = 32
REMOTE = 1000  # more than there are hosts
ENDED = ".ended"  # suffix of the file that a player leaves that ended regularly
STOP = "stop"  # first word of the files that end players and learners
RECORD = struct.Struct("<dqqqqqq")
_SHIFTS = np.arange(PIXELS, dtype=np.uint64) % np.uint64(57)


@dataclass(frozen=True)
class Record:
    """A line of a journal.

    Attributes
    ----------
    moment : float
        As ``time.time`` gives it.
    begun, done : int
        Of a player, rows that it has begun to add, and rows that are added for sure. Of a learner,
        rows that it drew and checked, and priorities that it sent.
    host : int
        That has the rows, plus ``REMOTE`` if it is on another node; of a learner 0.
    memory, shard, rows : int
        Of a player, the memory of the host (``memory_of``), its shard there, and the rows of the
        shard when it had the ``done`` rows. All rows since the record before are in this shard.
    """

    moment: float
    begun: int
    done: int
    host: int
    memory: int
    shard: int
    rows: int

    def number_of(self, row: int) -> int:
        """The number in its shard of a row of this player, added since the record before."""
        return self.rows - self.done + row


class Journal:
    """The journal of this process; its first record has the process's number in ``begun``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self.write(os.getpid(), 0, 0)

    def write(
        self, begun: int, done: int, host: int, place: tuple[int, int, int] = (0, 0, 0)
    ) -> None:
        """Add a record; ``place`` are its memory, shard and rows."""
        os.write(self._file, RECORD.pack(time.time(), begun, done, host, *place))


def records(path: Path, count: int = -1) -> list[Record]:
    """The records of a journal, oldest first; the first ones, or all."""
    with path.open("rb") as file:
        data = file.read(count * RECORD.size if count >= 0 else -1)
    whole = len(data) // RECORD.size * RECORD.size
    return [Record(*values) for values in RECORD.iter_unpack(data[:whole])]


def memory_of(identity: str) -> int:
    """The number of a memory of a host in records."""
    return int(identity, 16) % 2**62


def has_ended(journal: Path) -> bool:
    """Whether the player of a journal ended regularly."""
    return journal.with_suffix(ENDED).exists()


def _hash(ids: NDArray[np.int64]) -> NDArray[np.uint64]:
    """The finalizer of splitmix64."""
    with np.errstate(over="ignore"):
        found = ids.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
        found = (found ^ (found >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        found = (found ^ (found >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        mixed: NDArray[np.uint64] = found ^ (found >> np.uint64(31))
    return mixed


def _obs(ids: NDArray[np.int64]) -> NDArray[np.float32]:
    parts = _hash(ids)[:, np.newaxis] >> np.array([0, 20, 40], np.uint64)
    found: NDArray[np.float32] = (parts & np.uint64(0xFFFFF)).astype(np.float32)
    return found


def rows_of(ids: NDArray[np.int64]) -> dict[str, Any]:
    """The rows with these ids."""
    return {
        "id": ids,
        "sum": _hash(ids),
        "obs": _obs(ids),
        "next_obs": _obs(ids + 1),
        "image": (_hash(ids)[:, np.newaxis] >> _SHIFTS).astype(np.uint8),
        "rew": (ids % 7).astype(np.float32),
        "done": ids % EPISODE == EPISODE - 1,
    }


def check(batch: dict[str, Any], steps: int = 1) -> None:
    """Raise ``AssertionError`` unless each row of a batch has the values of its id.

    A return of n steps may be shorter, as episodes are truncated when a player or a host dies.
    """
    ids = batch["id"]
    expected = rows_of(ids)
    names = ("sum", "obs", "image") if steps > 1 else tuple(FIELDS)
    for name in names:
        wrong = np.flatnonzero((batch[name] != expected[name]).reshape(len(ids), -1).any(axis=1))
        assert not len(wrong), f"{name} of rows {ids[wrong][:5]}: {batch[name][wrong][:5]}"
    if steps > 1:
        fits, rewards = np.zeros(len(ids), np.bool_), np.zeros(len(ids))
        for k in range(steps):
            rewards += GAMMA**k * ((ids + k) % 7)
            ends = (batch["next_obs"] == _obs(ids + k + 1)).all(axis=1)
            fits |= ends & (np.abs(batch["rew"] - rewards) < 1e-4)
        assert fits.all(), f"n-step returns of rows {ids[~fits][:5]}: {batch['rew'][~fits][:5]}"


def _until_stopped(folder: Path, kind: str, number: int) -> Iterator[None]:
    """Go on until all processes of a kind are to end, or this one."""
    files = folder / f"{STOP}-{kind}", folder / f"{STOP}-{kind}-{number}"
    while not any(file.exists() for file in files):
        yield


def _report(folder: Path, name: str) -> None:
    """Keep the error that is being handled, which the soak counts as a fault."""
    (folder / f"{name}.error").write_text(traceback.format_exc(), encoding="utf-8")


def play(replay: ClusterReplay, number: int, rate: float, folder: Path) -> None:
    """Add rows, so many a second, until the soak ends."""
    journal = Journal(folder / f"player-{number}")
    try:
        _play(replay, number, rate, folder, journal)
    except Exception:
        _report(folder, f"player-{number}")


def _play(replay: ClusterReplay, number: int, rate: float, folder: Path, journal: Journal) -> None:
    rng = np.random.default_rng(number)
    actor: Any = None
    for _ in _until_stopped(folder, "player", number):
        try:
            actor = replay.actor(timeout=30.0)
            break
        except BlockingIOError:  # places of players that were killed are free after a while
            journal.write(0, 0, 0)
            time.sleep(0.5)
    if actor is None:
        return
    player = Remote(actor) if isinstance(actor, ClusterActor) else Local(actor)
    first, begun, flush_at = number << PLAYER, 0, 0

    def note() -> None:
        journal.write(begun, player.done, player.host, player.place)

    player.before_moves(note)
    with actor:
        for _ in _until_stopped(folder, "player", number):
            n = int(rng.choice([1, 1, 1, 4, 16]))
            ids = np.arange(first + begun, first + begun + n)
            begun += n
            note()
            try:
                actor.add(**rows_of(ids))
                if begun > flush_at:
                    player.flush()
                    flush_at = begun + int(rng.integers(1, 400))
            except RateLimitTimeoutError:  # no learner came: the rows of this call were not added
                begun = player.begun
                continue
            note()
            time.sleep(float(rng.exponential(n / rate)))
    note()
    journal.path.with_suffix(ENDED).touch()


class Local:
    """A player on the node of its host: what the host has of its rows."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor
        self._first = int(actor.ring.written)
        self._memory = memory_of(actor._folder.identity)
        self.host = int(actor._folder.path.name.rpartition("-")[2])

    @property
    def done(self) -> int:
        """Rows that are added for sure."""
        return int(self._actor.ring.written) - self._first

    begun = done  # rows of calls that did not raise

    @property
    def place(self) -> tuple[int, int, int]:
        """The memory, the shard, and its rows."""
        return self._memory, self._actor.number, int(self._actor.ring.written)

    def flush(self) -> None:
        """Nothing waits."""

    def before_moves(self, note: Callable[[], None]) -> None:
        """It stays in its shard."""


class Remote:
    """A player on another node: what the host has of its rows, by its answers."""

    def __init__(self, actor: ClusterActor) -> None:
        self._actor = actor
        self.host = REMOTE + actor._host.number
        self.flush = actor.flush

    @property
    def done(self) -> int:
        """Rows that are added for sure."""
        return self._actor._sent_rows - sum(block.rows for block, _ in self._actor._sent)

    @property
    def begun(self) -> int:
        """Rows of calls that did not raise."""
        return self._actor._sent_rows + self._actor._count

    @property
    def place(self) -> tuple[int, int, int]:
        """The memory, the shard, and its rows that are added for sure."""
        identity, shard, rows = self._actor._wrote()
        return memory_of(identity), shard, rows

    def before_moves(self, note: Callable[[], None]) -> None:
        """Call ``note`` before each time that the actor takes a shard again."""
        resend = self._actor._resend

        def noted(until: float) -> None:
            note()
            resend(until)

        self._actor._resend = noted  # type: ignore[method-assign]


def learn(replay: ClusterReplay, number: int, folder: Path) -> None:
    """Draw, check and update, until the soak ends."""
    journal = Journal(folder / f"learner-{number}")
    try:
        rng = np.random.default_rng(number)
        ahead = int(rng.integers(3))
        learner = replay.learner(Prioritized(alpha=1.0, eps=0.0), seed=number, ahead=ahead)
        view = learner.view(NStep(STEPS, gamma=GAMMA, rew="rew", next="next_obs"))
        drawn = sent = 0
        for _ in _until_stopped(folder, "learner", number):
            source: Any = view if drawn // BATCH // 20 % 2 else learner
            try:
                batch = source.sample(BATCH)
            except (NotEnoughDataError, RateLimitTimeoutError):
                time.sleep(0.1)
                continue
            check(batch, STEPS if source is view else 1)
            learner.update_priorities(batch["indexes"], 0.1 + rng.random(BATCH))
            drawn, sent = drawn + BATCH, sent + BATCH
            journal.write(drawn, sent, 0)
            time.sleep(0.02)
        learner.flush()
        stats = learner.stats()
        journal.write(drawn, sent, 0)
        assert stats["updates"] == sent, f"{sent} updates were sent, {stats}"
        learner.close()
    except Exception:
        _report(folder, f"learner-{number}")
