"""``check_layer``: it passes what is sound, and names the promise that a layer breaks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from own_layers import FIELDS, Advantages, ReturnsToGo

from cpprb_like.testing import check_layer
from cpprb_like.views import FrameStacks, Hindsight, Layer, NStep, Sequences, Windows

Array = npt.NDArray[Any]
SHARED = np.zeros(1000, np.float32)

SOUND: dict[str, tuple[Callable[[], Layer], dict[str, Any] | None]] = {
    "ReturnsToGo": (lambda: ReturnsToGo(0.9, 4), None),
    "Advantages": (lambda: Advantages(0.9, 0.8, 3), FIELDS),
    "NStep": (lambda: NStep(3, discount=True), None),
    "NStep, drawn n": (lambda: NStep((1, 3)), None),
    "Sequences": (lambda: Sequences(3), None),
    "Sequences, across": (lambda: Sequences(3, across_episodes=True), None),
    "FrameStacks": (lambda: FrameStacks({"obs": 3}), None),
    "FrameStacks, zeros": (lambda: FrameStacks({"obs": 2}, padding="zeros", axis=0), None),
    "Hindsight": (
        lambda: Hindsight(no_reward, goal="goal", achieved="at", relabelled=True),
        {"goal": {}, "at": {}, "rew": {}, "done": {"dtype": bool}},
    ),
}


def no_reward(achieved: Array, goal: Array, rows: Mapping[str, Array]) -> Array:
    """A reward for any goal."""
    del goal, rows
    return np.zeros(len(achieved))


@pytest.mark.parametrize("name", SOUND)
def test_sound_layers_pass(name: str) -> None:
    """Those of the package, and those of the example."""
    make, fields = SOUND[name]
    check_layer(make, fields)


class Column(Layer):
    """Makes the column ``x``; what its subclasses do is wrong."""

    def reads(self, fields: Mapping[str, Any]) -> list[str]:
        del fields
        return ["rew"]

    def around(self, fields: Mapping[str, Any]) -> tuple[int, int]:
        del fields
        return 1, 1

    def columns(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        del fields
        return {"x": (np.float32, ())}

    def fill(self, windows: Windows, wanted: Mapping[str, Any]) -> dict[str, Array]:
        del wanted
        return {"x": self.value(windows)}

    def value(self, windows: Windows) -> Array:
        """The column."""
        return windows.read("rew")[:, 1].copy()


class ReadsMore(Column):
    """Reads a field that it does not name."""

    def value(self, windows: Windows) -> Array:
        return windows.read("obs")[:, 1, 0].copy()


class Numbers(Column):
    """Numbers the rows of the batch."""

    def value(self, windows: Windows) -> Array:
        return np.arange(len(windows), dtype=np.float32)


class Mean(Column):
    """Subtracts a sum over the batch."""

    def value(self, windows: Windows) -> Array:
        rewards = windows.read("rew")[:, 1]
        return np.asarray(rewards - np.float32(rewards.sum()))


class NotForNone(Column):
    """Fails for no rows."""

    def value(self, windows: Windows) -> Array:
        rewards = windows.read("rew")[:, 1]
        return np.asarray(rewards - rewards.max() * 0)


class WritesWindows(Column):
    """Writes to what it is given."""

    def value(self, windows: Windows) -> Array:
        windows.counts[...] = 0
        return super().value(windows)


class Remembers(Column):
    """Counts batches."""

    def __init__(self) -> None:
        self.batches = 0

    def value(self, windows: Windows) -> Array:
        self.batches += 1
        return super().value(windows)


class Shares(Column):
    """Gives every batch the same memory."""

    def value(self, windows: Windows) -> Array:
        SHARED[: len(windows)] = windows.read("rew")[:, 1]
        return SHARED[: len(windows)]


class TakesViews(Column):
    """Gives an array of the windows."""

    def columns(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        del fields
        return {"x": (np.intp, ())}

    def value(self, windows: Windows) -> Array:
        return windows.slots


class Random(Column):
    """Draws from the global generator."""

    def value(self, windows: Windows) -> Array:
        return np.random.random(len(windows)).astype(np.float32)


class Draws(Column):
    """Moves the global generator on."""

    def value(self, windows: Windows) -> Array:
        np.random.random()
        return super().value(windows)


class WrongShape(Column):
    """Gives a window in place of a value."""

    def value(self, windows: Windows) -> Array:
        return windows.read("rew")


class Absent(Column):
    """Gives nothing."""

    def fill(self, windows: Windows, wanted: Mapping[str, Any]) -> dict[str, Array]:
        del windows, wanted
        return {}


class NotPickled(Column):
    """Is another one after pickling."""

    def __init__(self) -> None:
        self.scale = np.float32(1)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.scale = np.float32(2)

    def value(self, windows: Windows) -> Array:
        return np.asarray(super().value(windows) * self.scale + self.scale)


BROKEN: dict[type[Layer], str] = {
    ReadsMore: r"reads the fields that reads names, and no others; it read \['obs'\]",
    Numbers: "the rows of its window alone",
    Mean: "the rows of its window alone",
    NotForNone: "for any n, also 0",
    WritesWindows: "changes neither the layer nor what it is given; it wrote to the windows",
    Remembers: "changes neither the layer nor what it is given; its attributes changed",
    Shares: "arrays of its own",
    TakesViews: "arrays of its own",
    Random: "the rows of its window alone|what is random",
    Draws: "what is random comes from windows.rng",
    WrongShape: "an array of n rows for each wanted column.*expected shape",
    Absent: "an array of n rows for each wanted column.*got nothing",
    NotPickled: "copied with its view, and the copy reads the same",
}


@pytest.mark.parametrize("kind", BROKEN)
def test_each_broken_promise_is_named(kind: type[Layer]) -> None:
    """With the layer, the buffer, and what was found."""
    with pytest.raises(AssertionError, match=f"^{kind.__name__}.*{BROKEN[kind]}"):
        check_layer(kind)


def test_what_is_no_layer_is_refused() -> None:
    """By its name."""
    with pytest.raises(TypeError, match="make_layer: expected a callable, got"):
        check_layer(NStep(3))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="fields: expected none called 'row'"):
        check_layer(lambda: FrameStacks({"row": 2}), {"row": {"shape": 2}})


def test_next_values_are_those_of_the_last_step_beside_n_step_returns() -> None:
    """A layer that replaces a next field gives there what it gives for that step."""
    fields: dict[str, Any] = {"obs": {"shape": 2}, "rew": {}, "done": {"dtype": bool}}
    check_layer(lambda: FrameStacks({"obs": 3}), fields, next_of="obs")
    with pytest.raises(TypeError, match="make_layer: expected a callable that makes a Layer"):
        check_layer(lambda: 3)  # type: ignore[arg-type,return-value]
    with pytest.raises(ValueError, match="at most 8 rows"):
        check_layer(lambda: ReturnsToGo(0.9, 10))


def test_sums_that_round_by_the_size_of_a_batch_are_the_same() -> None:
    """A product of matrices adds in another order for one row than for several: no fault."""

    class Returns(Layer):
        def around(self, fields: object) -> tuple[int, int]:
            return 0, 3

        def reads(self, fields: object) -> list[str]:
            return ["rew"]

        def columns(self, fields: object) -> dict[str, Any]:
            return {"rtg": ("f8", ())}

        def fill(self, windows: Any, wanted: object) -> dict[str, Any]:
            rewards = windows.read("rew").astype("f8")
            return {"rtg": np.tensordot(0.9 ** np.arange(4), rewards, (0, 1))}

    check_layer(Returns)
