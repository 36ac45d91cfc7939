"""Takes of a robot recorder that was killed, as LeRobot and Minari read them."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from optional import need
from robot_cases import (
    EXAMPLE,
    OBSERVATIONS,
    check_takes,
    expected,
    killed_often,
    says,
    ticks_of,
)
from scale import KILLS
from test_lerobot import lerobot

pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="there is no SIGKILL"),
]
need("pyarrow")
need("PIL.Image")
FPS = EXAMPLE["RATE"]


def test_lerobot_reads_the_takes(tmp_path: Path) -> None:
    """Frames, time stamps and tasks are contiguous in each episode; no other take is there."""
    dataset_class = lerobot()
    takes = killed_often(tmp_path, max(2, KILLS // 8), most=8)
    numbers = check_takes(takes)
    assert numbers
    takes.export(tmp_path / "ours", "lerobot", about={"fps": FPS})

    found = dataset_class("some/name", root=tmp_path / "ours")

    lengths = [ticks_of(take) for take in numbers]
    assert (found.num_episodes, found.num_frames, found.fps) == (len(lengths), sum(lengths), FPS)
    assert [found.meta.episodes[k]["length"] for k in range(len(lengths))] == lengths
    index = 0
    for episode, take in enumerate(numbers):
        rows = expected(take)
        for tick in range(ticks_of(take)):
            item = found[index]
            assert (int(item["index"]), int(item["episode_index"])) == (index, episode)
            assert int(item["frame_index"]) == tick
            assert float(item["timestamp"]) == np.float32(tick / FPS)
            assert item["task"] == says(take)
            image = np.round(np.asarray(item["observation.images.camera"]) * 255)
            np.testing.assert_array_equal(image.transpose(1, 2, 0), rows["obs.camera"][tick])
            for name in ("joints", "goal", "camera_age"):
                np.testing.assert_array_equal(
                    item[f"observation.{name}"], rows[f"obs.{name}"][tick]
                )
            np.testing.assert_array_equal(item["action"], rows["act"][tick])
            for name in ("terminated", "truncated"):
                assert bool(item[f"next.{name}"]) == bool(rows[name][tick])
            index += 1


@pytest.mark.parametrize("format", ["minari", "minari-arrow"])
def test_minari_reads_the_takes(format: str, tmp_path: Path) -> None:  # noqa: A002
    """Each episode has the observation after its last step, and ends as it did."""
    minari = need("minari", "make test-datasets")
    takes = killed_often(tmp_path, max(2, KILLS // 8), most=8)
    numbers = check_takes(takes)
    takes.export(tmp_path / "ours-v0", format, strict=True, about=EXAMPLE["about"]())

    found: Any = minari.MinariDataset(tmp_path / "ours-v0" / "data")

    assert found.total_episodes == len(numbers) > 0
    assert found.total_steps == sum(map(ticks_of, numbers))
    for take, episode in zip(numbers, found.iterate_episodes(), strict=True):
        rows, n = expected(take), ticks_of(take)
        for name in OBSERVATIONS:
            values = episode.observations[name.removeprefix("obs.")]
            assert len(values) == n + 1
            np.testing.assert_array_equal(values[:-1], rows[name])
            np.testing.assert_array_equal(values[1:], rows[f"next_{name}"])
        np.testing.assert_array_equal(episode.actions, rows["act"])
        np.testing.assert_array_equal(episode.rewards, rows["rew"])
        np.testing.assert_array_equal(episode.terminations, rows["terminated"])
        np.testing.assert_array_equal(episode.truncations, rows["truncated"])
        texts = [getattr(one, "decode", one.__str__)() for one in episode.infos["instruction"]]
        assert texts[1:] == [says(take)] * n  # in HDF5 they are bytes
        assert (np.diff(episode.infos["time"][1:]) >= 0).all()
