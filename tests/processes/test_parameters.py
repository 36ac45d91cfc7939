"""``Parameters``: what a learner publishes reaches actors whole, whichever process is killed."""

from __future__ import annotations

import os
import pickle
import random
import signal
import time
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from children import child, until

from cpprb_like.processes import SharedReplay
from cpprb_like.processes._parameters import Versions
from cpprb_like.processes._words import SLOTS
from cpprb_like.typing import FieldSpec

FIELDS: Mapping[str, FieldSpec] = {"x": {"shape": ()}}
forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")


@pytest.fixture
def replay() -> Any:
    """A replay without published parameters."""
    with SharedReplay(10, FIELDS, writers=1) as made:
        yield made


def weights(version: int, n: int = 20_000) -> dict[str, Any]:
    """Arrays that show of which version they are."""
    return {
        "first": np.full((n // 100, 100), version, np.float32),
        "second": np.full(n, version, np.int64),
        "last": np.array(version),
    }


def version_of(arrays: Mapping[str, Any]) -> int:
    """The one version that all arrays are of."""
    found = {int(value) for array in arrays.values() for value in np.unique(array)}
    assert len(found) == 1, f"torn: {found}"
    return found.pop()


def test_what_was_published_is_read(replay: SharedReplay) -> None:
    """With every kind of number and shape, as arrays of the reader's own."""
    arrays = {
        "f4": np.arange(6, dtype=np.float32).reshape(2, 3),
        "big-endian": np.arange(3, dtype=">i2"),
        "bool": np.array([True, False]),
        "complex": np.array(1 + 2j),
        "none": np.zeros((0, 3)),
        "half": np.ones((1, 1, 2), np.float16),
    }
    assert replay.parameters.version == 0
    assert replay.parameters.latest() is None
    assert replay.parameters.publish(arrays) == 1
    for reader in (replay.parameters, SharedReplay.attach(replay.name).parameters):
        found = reader.latest()
        assert found is not None
        assert found[0] == reader.version == 1
        assert found[1].keys() == arrays.keys()
        for name, array in arrays.items():
            np.testing.assert_array_equal(found[1][name], array, strict=True)
        assert reader.latest(after=1) is None
        found[1]["f4"][:] = 7
    assert replay.parameters.wait(1)[1]["f4"][0, 1] == 1


def test_one_array_is_enough(replay: SharedReplay) -> None:
    """No dict is made of it."""
    for version in (1, 2, 3, 4, 5):
        assert replay.parameters.publish([0.5, version]) == version
    assert replay.parameters.wait(2)[1].tolist() == [0.5, 5.0]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"w": np.zeros(3, np.float32)}, r"first version: 'b' missing or unknown"),
        (np.zeros(3), r"the array, 'b', 'w' missing or unknown"),
        ({"w": np.zeros(3, np.float32), "b": 1.0, "c": 1}, r"'c' missing or unknown"),
        ({"w": np.zeros(3), "b": 1.0}, r"'w': expected float32 of shape \(3,\), .* got float64"),
        ({"w": np.zeros((3, 1), np.float32), "b": 1.0}, r"'w': .* of shape \(3, 1\)"),
        ({}, "an empty dict"),
    ],
)
def test_parameters_are_those_of_the_first_version(
    replay: SharedReplay, wrong: Any, message: str
) -> None:
    """What differs is named, and the newest version stays what it was."""
    replay.parameters.publish({"w": np.ones(3, np.float32), "b": 1.0})
    with pytest.raises(ValueError, match=message):
        replay.parameters.publish(wrong)
    assert replay.parameters.version == 1


@pytest.mark.parametrize("wrong", [{"w": "text"}, {"w": [[1], [2, 3]]}, {1: 2.0}, {"w": object()}])
def test_what_is_no_number_is_refused(replay: SharedReplay, wrong: Any) -> None:
    """Before any memory is made."""
    with pytest.raises(TypeError, match=r"'w': expected|names of parameters, got 1"):
        replay.parameters.publish(wrong)
    assert replay.parameters.version == 0


def test_tensors_are_read_through_numpy(replay: SharedReplay) -> None:
    """Also those that require gradients; what is on a GPU is refused by its own words."""

    class Tensor:
        requires_grad = True

        def detach(self) -> Any:
            return np.arange(3.0)

    class OnGPU:
        def __array__(self, *_: Any, **__: Any) -> Any:
            raise TypeError("can't convert cuda:0 device type tensor to numpy")

    replay.parameters.publish({"w": Tensor()})
    assert replay.parameters.wait()[1]["w"].tolist() == [0, 1, 2]
    with pytest.raises(TypeError, match=r"'w': expected an array on the CPU: can't convert cuda"):
        replay.parameters.publish({"w": OnGPU()})


def test_a_wait_ends_and_says_what_is_there(replay: SharedReplay) -> None:
    """It is a ``TimeoutError``."""
    began = time.monotonic()
    with pytest.raises(TimeoutError, match=r"waited 0\.05 s for version 1 .*nothing was published"):
        replay.parameters.wait(timeout=0.05)
    replay.parameters.publish([1.0])
    with pytest.raises(
        TimeoutError, match=rf"version 2 .*: version 1 is there, of process {os.getpid()}$"
    ):
        replay.parameters.wait(2, timeout=0.05)
    assert time.monotonic() - began < 10
    with pytest.raises(ValueError, match="version"):
        replay.parameters.wait(0)


def test_a_reader_notices_that_its_slot_was_written_over() -> None:
    """The slots by hand: two further versions may come while one is read, and no third."""
    versions = Versions(np.zeros(1 + SLOTS, np.int64))
    assert versions.find() is None
    for expected in range(1, 10):
        version, slot = versions.begin()
        assert (version, slot) == (expected, expected % SLOTS)
        versions.end(version)
        assert versions.find() == (version, slot)
    version, slot = 9, 9 % SLOTS
    for _ in range(SLOTS - 1):
        versions.end(versions.begin()[0])
        assert versions.is_there(version)
    assert versions.begin()[1] == slot  # and its writer is killed here
    assert not versions.is_there(version)
    newest = versions.newest()
    assert versions.find() == (newest, newest % SLOTS)
    assert versions.begin() == (newest + 1, slot)  # who comes next begins it anew
    versions.end(newest + 1)
    assert versions.find() == (newest + 1, slot)


@forks
def test_no_version_is_torn(replay: SharedReplay) -> None:
    """While one process publishes as fast as it can, and two read."""
    stop = 300

    def read() -> None:
        reader = SharedReplay.attach(replay.name).parameters
        version = 0
        while version < stop:
            found = reader.latest(version)
            if found is not None:
                assert found[0] > version
                version = found[0]
                assert version_of(found[1]) == version

    with child(read) as one, child(read) as other:
        for version in range(1, stop + 1):
            assert replay.parameters.publish(weights(version)) == version
        assert (one.join(), other.join()) == (0, 0)


@pytest.mark.once
@forks
def test_publishers_and_readers_that_are_killed_leave_whole_versions(
    replay: SharedReplay,
) -> None:
    """At any moment; the next publisher goes on, and no process waits for the dead."""
    chance = random.Random(0)

    def publish() -> None:
        parameters = replay.parameters
        while True:
            parameters.publish(weights(parameters.version + 1))

    def read() -> None:
        while True:
            replay.parameters.latest()

    newest = 0
    for _ in range(20):
        with child(publish) as victim, child(read) as reader:
            replay.parameters.wait(newest + 1)
            time.sleep(chance.random() * 0.005)
            victim.kill()
            reader.kill()
        found = replay.parameters.latest()
        assert found is not None
        assert version_of(found[1]) == found[0] > newest
        newest = found[0]
    assert replay.parameters.publish(weights(newest + 1)) == newest + 1
    assert version_of(replay.parameters.wait()[1]) == newest + 1


@forks
def test_a_publisher_that_is_killed_while_it_makes_the_memory_is_followed(
    replay: SharedReplay,
) -> None:
    """What it had made of it is made anew."""

    def publish() -> None:
        parameters: Any = replay.parameters
        (parameters._folder / "values").write_bytes(b"half of it")
        os.kill(os.getpid(), signal.SIGKILL)

    with child(publish) as victim:
        victim.join()
    assert replay.parameters.version == 0
    replay.parameters.publish(weights(1))
    assert version_of(replay.parameters.wait()[1]) == 1


@forks
def test_who_is_stopped_while_it_publishes_is_named(
    replay: SharedReplay, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Readers go on; another publisher waits for a while."""
    monkeypatch.setattr("cpprb_like.processes._parameters.PATIENCE", 0.1)
    replay.parameters.publish(weights(1))

    def publish() -> None:
        parameters: Any = replay.parameters
        with parameters._publishing():
            parameters._versions.begin()
            os.kill(os.getpid(), signal.SIGSTOP)

    with child(publish) as stopped:
        until(lambda: os.waitpid(stopped.pid, os.WUNTRACED | os.WNOHANG)[0])
        assert version_of(replay.parameters.wait()[1]) == 1
        with pytest.raises(BlockingIOError, match=f"process {stopped.pid} has been at it"):
            replay.parameters.publish(weights(2))
    assert replay.parameters.publish(weights(2)) == 2


def test_parameters_outlive_the_object_that_they_are_of() -> None:
    """Whoever has them has the memory: it was removed with the last handle of the replay."""
    parameters = SharedReplay(10, FIELDS, writers=1).parameters
    assert parameters.publish([1.0]) == 1
    assert parameters.latest() is not None


def test_parameters_are_handed_on_with_the_replay(replay: SharedReplay) -> None:
    """By its name, as everything of it."""
    other = pickle.loads(pickle.dumps(replay))
    other.parameters.publish([1.0])
    assert replay.parameters.version == 1
    with pytest.raises(TypeError, match="hand on the SharedReplay"):
        pickle.dumps(replay.parameters)


def test_a_wait_ends_although_newer_versions_come_faster_than_one_is_read() -> None:
    """After its time-out, and a read that has begun: it tried a thousand times, 7.7 s of 64 MB."""
    with SharedReplay(10, {"x": {"shape": ()}}, writers=1) as replay:
        parameters: Any = replay.parameters
        parameters.publish(np.zeros(1 << 22))
        assert parameters.wait(timeout=0.0)[0] == 1
        torn = SimpleNamespace(newest=lambda: 1, find=lambda: (1, 1), is_there=lambda _: False)
        parameters._versions = torn
        begun = time.monotonic()
        with pytest.raises(TimeoutError, match=r"waited 0\.05 s .*faster than one can be read"):
            parameters.wait(timeout=0.05)
        assert time.monotonic() - begun < 3
