"""A robot recorder: takes at 30 Hz in a file that outlives a kill, and data sets of the good ones.

Robot: a simulated arm with two joints, and a camera with a new image at every third tick. A script
  plays the operator. It drops a take whose hand did not reach the goal; ``--ask`` asks you instead.
Kill it at any time, also by ``kill -9``, and start it again: it goes on behind the last whole take.
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from cpprb_like import ReplayBuffer

RATE, CAMERA_EVERY = 30, 3  # ticks a second, ticks of an image: 10 Hz
SIDE, LONGEST = 48, 80  # of an image; bytes of an instruction
FIELDS: dict[str, Any] = {
    "obs.joints": {"shape": 2},
    "obs.goal": {"shape": 2},
    "obs.camera": {"shape": (SIDE, SIDE, 3), "dtype": np.uint8},
    "obs.camera_age": {"shape": (), "dtype": np.int32},  # ticks since the image was taken
    "act": {"shape": 2},
    "rew": {"shape": ()},
    "time": {"shape": (), "dtype": np.float64},  # seconds since the take began
    "instruction": {"dtype": str},
    "terminated": {"shape": (), "dtype": bool},
    "truncated": {"shape": (), "dtype": bool},
}
OBSERVATIONS = [name for name in FIELDS if name.startswith("obs.")]


class Arm:
    """Two joints, a goal, and a camera that sees the hand in red and the goal in green."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.reset()

    def reset(self) -> None:
        """Move to a random pose, with a new goal."""
        self.joints, self.goal = self.rng.uniform(-0.9, 0.9, (2, 2))
        self.ticks = 0

    def observe(self) -> dict[str, Any]:
        """What the sensors say. Between two images the camera repeats the last one."""
        if self.ticks % CAMERA_EVERY == 0:
            self.image = np.zeros((SIDE, SIDE, 3), np.uint8)
            for channel, place in enumerate((self.joints, self.goal)):
                x, y = np.clip((place + 1) * SIDE / 2, 1, SIDE - 2).astype(int)
                self.image[y - 1 : y + 2, x - 1 : x + 2, channel] = 255
        return {
            "obs.joints": self.joints,
            "obs.goal": self.goal,
            "obs.camera": self.image,
            "obs.camera_age": self.ticks % CAMERA_EVERY,
        }

    def demonstrate(self) -> Any:
        """The action of an operator whose hand is not steady."""
        return np.clip(3 * (self.goal - self.joints) + self.rng.normal(0, 0.5, 2), -1, 1)

    def move(self, act: Any) -> None:
        """One tick."""
        self.joints = np.clip(self.joints + act / 20, -1, 1)
        self.ticks += 1

    def is_there(self) -> bool:
        """Whether the hand is at the goal."""
        return bool(np.abs(self.joints - self.goal).max() < 0.06)


def open_takes(prefix: Path, rows: int) -> ReplayBuffer:
    """The buffer in a file: a new one, or what an earlier run left, without the take it was in."""
    takes = ReplayBuffer(
        rows,
        FIELDS,
        next_of=OBSERVATIONS,
        room={"instruction": rows * LONGEST},
        mmap_prefix=prefix,
        mmap_mode="r+" if Path(f"{prefix}.dat").exists() else "x",
    )
    drop_unfinished(takes)
    return takes


def drop_unfinished(takes: ReplayBuffer) -> None:
    """Delete each take whose last row does not say that it ended, and flush.

    Until the flush a power cut may cost rows beside the deleted ones, too.
    """
    takes.on_episode_end()
    for number in reversed(range(len(takes.episodes))):
        last = takes.episodes.read(number, fields=["terminated", "truncated"], start=-1)
        if not (last["terminated"] | last["truncated"]).any():
            takes.episodes.delete(number)
    takes.flush()


def record(
    takes: ReplayBuffer,
    robot: Any,
    instruction: str,
    keep: Callable[[bool], bool],
    *,
    most_ticks: int,
    rate: float | None = RATE,
) -> bool:
    """Record a take. Its last row waits for ``keep``, so a take is whole when it has this row."""
    stats = takes.stats()
    if stats["adds"] + most_ticks > stats["capacity"]:
        raise RuntimeError("no room for a take: it would take the place of the oldest one")
    if len(instruction.encode()) > LONGEST:
        raise ValueError(f"instruction: expected at most {LONGEST} bytes, got {instruction!r}")
    takes.on_episode_end()  # as the last take is still open if its ``drop_unfinished`` failed
    takes.prefault(most_ticks)  # so that no tick waits for memory
    try:
        begin = time.monotonic()
        before, now = robot.observe(), 0.0
        for tick in range(1, most_ticks + 1):
            act = robot.demonstrate()
            robot.move(act)
            if rate is not None:
                time.sleep(max(0.0, begin + tick / rate - time.monotonic()))
            after, is_there = robot.observe(), robot.is_there()
            row = {**before, **{f"next_{name}": value for name, value in after.items()}}
            row |= {"act": act, "rew": float(is_there), "time": now, "instruction": instruction}
            before, now = after, time.monotonic() - begin
            if is_there or tick == most_ticks:
                break
            takes.add(**row, terminated=False, truncated=False)
        is_kept = keep(is_there)
        if is_kept:
            takes.add(**row, terminated=is_there, truncated=not is_there)
    finally:  # a take that is not kept, and one that raised
        drop_unfinished(takes)
    return is_kept


def about() -> dict[str, Any]:
    """What a buffer does not know and Minari wants: the spaces. It needs Gymnasium."""
    from gymnasium import spaces  # noqa: PLC0415

    box = spaces.Box(-1, 1, (2,))
    parts: dict[str, Any] = {
        "joints": box,
        "goal": box,
        "camera": spaces.Box(0, 255, (SIDE, SIDE, 3), np.uint8),
        "camera_age": spaces.Box(0, CAMERA_EVERY - 1, (), np.int32),
    }
    return {"observation_space": spaces.Dict(parts), "action_space": box}


def main() -> None:
    """Record, and write data sets if asked to."""
    parser = argparse.ArgumentParser(description="Record takes of a simulated arm.")
    parser.add_argument("folder", type=Path, nargs="?", default=Path("takes"))
    parser.add_argument("--takes", type=int, default=5, help="takes of this run")
    parser.add_argument("--seconds", type=float, default=2.0, help="most seconds of a take")
    parser.add_argument("--rows", type=int, default=RATE * 600, help="room, fixed by the first run")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--ask", action="store_true", help="ask which takes to keep")
    parser.add_argument("--quick", action="store_true", help="do not wait for the clock")
    parser.add_argument("--lerobot", type=Path, help="new folder for a data set of LeRobot")
    parser.add_argument("--minari", type=Path, help="new folder for a data set of Minari")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)

    takes = open_takes(options.folder / "arm", options.rows)
    print(f"{len(takes.episodes)} takes in {options.folder}")

    def keep(is_there: bool) -> bool:
        return input("Keep? [y/n] ").startswith("y") if options.ask else is_there

    arm = Arm(options.seed)
    rate, most_ticks = None if options.quick else RATE, int(RATE * options.seconds)
    for _ in range(options.takes):
        arm.reset()
        kept = record(takes, arm, "reach the green square", keep, most_ticks=most_ticks, rate=rate)
        print(f"{'kept' if kept else 'dropped'} after {arm.ticks} ticks")
    print(f"{len(takes.episodes)} takes, {len(takes)} rows")
    if options.lerobot is not None:
        takes.export(options.lerobot, "lerobot", about={"fps": RATE})
    if options.minari is not None:
        takes.export(options.minari, "minari", about=about())


if __name__ == "__main__":
    main()
