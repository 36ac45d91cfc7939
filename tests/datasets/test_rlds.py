"""TensorFlow Datasets reads what is written here, and what it wrote is read here."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from optional import need

from cpprb_like import ReplayBuffer
from cpprb_like.datasets import _tfrecord, describe

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


def slow_crc32c(data: bytes) -> int:
    """The checksum, bit by bit."""
    register = 0xFFFFFFFF
    for byte in data:
        register ^= byte
        for _ in range(8):
            register = register >> 1 ^ (0x82F63B78 if register & 1 else 0)
    return register ^ 0xFFFFFFFF


@pytest.mark.parametrize("n", [0, 1, 9, 255, 256, 257, 2047, 2048, 2049, 5000, 10_001])
def test_checksums_are_those_of_the_slow_twin(n: int, rng: np.random.Generator) -> None:
    """For bytes that a loop goes through, and for those that are cut into lanes."""
    data = rng.integers(0, 256, n, np.uint8).tobytes()
    assert _tfrecord.crc32c(data) == slow_crc32c(data)


def test_integers_of_any_size_are_read() -> None:
    """Negative ones take ten bytes."""
    numbers = [0, 1, 127, 128, 300, 2**40, 2**63 - 1, -1, -(2**63)]
    data = b"".join(_tfrecord._varint(number & (2**64 - 1)) for number in numbers)
    assert _tfrecord._integers(np.frombuffer(data, np.uint8)).tolist() == numbers
    with pytest.raises(ValueError, match="got the end"):
        _tfrecord._integers(np.frombuffer(data[:-1], np.uint8))
    with pytest.raises(ValueError, match="at most 10 bytes"):
        _tfrecord._integers(np.frombuffer(b"\xff" * 11 + b"\1", np.uint8))


def filled() -> ReplayBuffer:
    """A buffer of three episodes, one terminated, one truncated and one open."""
    rng = np.random.default_rng(0)
    flag: Any = {"shape": (), "dtype": bool}
    fields: Any = {
        "obs.image": {"shape": (6, 5, 3), "dtype": "u1"},
        "obs.state": {"shape": 3, "dtype": "f8"},
        "obs.n": {"shape": (), "dtype": "i8"},
        "act": {"shape": 2, "dtype": "f4"},
        "rew": {"shape": (), "dtype": "f4"},
        "terminated": flag,
        "truncated": flag,
        "logp": {"shape": (), "dtype": "f8"},
        "count": {"shape": (), "dtype": "u4"},
    }
    rb = ReplayBuffer(100, fields, next_of=["obs.image", "obs.state", "obs.n"])
    seen: dict[str, Any] = {}
    for t in range(25):
        step: dict[str, Any] = {"act": rng.normal(size=2), "rew": t, "count": t}
        step["logp"] = rng.normal()
        now = seen
        seen = {
            "obs.image": rng.integers(0, 256, (6, 5, 3), np.uint8),
            "obs.state": rng.normal(size=3),
            "obs.n": t,
        }
        following = {f"next_{name}": value for name, value in seen.items()}
        rb.add(**(now or seen), **step, **following, terminated=t == 9, truncated=t == 19)
    return rb


def test_tensorflow_datasets_reads_ours(tmp_path: Path) -> None:
    """Each step has the values of a row, and the last one the final observation."""
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    tfds = need("tensorflow_datasets", "make test-datasets")
    rb = filled()
    rb.export(tmp_path / "ours", "rlds")

    data = tfds.builder_from_directory(tmp_path / "ours").as_dataset(split="train")

    episodes = list(data)
    assert len(episodes) == 3
    for number, episode in enumerate(episodes):
        rows = rb.episodes.read(number)
        n = len(rows["rew"])
        assert int(episode["episode_id"]) == number
        steps = list(tfds.as_numpy(episode["steps"]))
        assert len(steps) == n + 1
        for k, step in enumerate(steps):
            for part, value in step["observation"].items():
                name = f"obs.{part}" if k < n else f"next_obs.{part}"
                np.testing.assert_array_equal(value, rows[name][min(k, n - 1)])
                assert value.dtype == rows[name].dtype
            if k < n:
                np.testing.assert_array_equal(step["action"], rows["act"][k])
                assert step["reward"] == rows["rew"][k]
                assert step["cpprb_like"]["logp"] == rows["logp"][k]
        assert [step["is_first"] for step in steps] == [True] + [False] * n
        ended = bool(rows["terminated"][-1] or rows["truncated"][-1])
        assert [step["is_last"] for step in steps] == [False] * n + [ended]
        assert bool(steps[-1]["is_terminal"]) == bool(rows["terminated"][-1])


def test_ours_reads_what_tensorflow_datasets_wrote(tmp_path: Path) -> None:
    """Lists of floats and integers, and observations in a dict."""
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    tfds = need("tensorflow_datasets", "make test-datasets")
    tf = need("tensorflow", "make test-datasets")
    example_serializer = need("tensorflow_datasets.core.example_serializer")

    scalar = tfds.features.Scalar
    steps: dict[str, Any] = {
        "observation": {
            "image": tfds.features.Tensor(shape=(4, 3, 3), dtype=np.uint8),
            "state": tfds.features.Tensor(shape=(2,), dtype=np.float32),
        },
        "action": scalar(np.int64),
        "reward": scalar(np.float32),
        "discount": scalar(np.float32),
        "language": tfds.features.Text(),
        **{name: scalar(np.bool_) for name in ("is_first", "is_last", "is_terminal")},
    }
    features = tfds.features.FeaturesDict({"steps": tfds.features.Dataset(steps)})
    serializer = example_serializer.ExampleSerializer(features.get_serialized_info())
    rng = np.random.default_rng(0)
    expected = []
    with tf.io.TFRecordWriter(str(tmp_path / "theirs-train.tfrecord-00000-of-00001")) as file:
        for number in range(3):
            made: list[dict[str, Any]] = [
                {
                    "observation": {
                        "image": rng.integers(0, 256, (4, 3, 3), np.uint8),
                        "state": rng.normal(size=2).astype(np.float32),
                    },
                    "action": int(rng.integers(-(2**40), 2**40)),
                    "reward": float(np.float32(rng.normal())),
                    "discount": 1.0,
                    "language": "go",
                    "is_first": t == 0,
                    "is_last": t == 5,
                    "is_terminal": t == 5 and number == 1,
                }
                for t in range(6)
            ]
            expected.append(made)
            file.write(serializer.serialize_example(features.encode_example({"steps": made})))
    features.save_config(str(tmp_path))

    with pytest.warns(UserWarning, match="language"):
        rb = ReplayBuffer.from_dataset(tmp_path)

    assert describe(tmp_path).format == "rlds"
    assert [one.terminated for one in rb.episodes.list()] == [False, True, False]
    assert [one.truncated for one in rb.episodes.list()] == [True, False, True]
    for made, rows in zip(expected, rb.episodes, strict=True):
        for name in ("image", "state"):
            values = np.stack([step["observation"][name] for step in made])
            np.testing.assert_array_equal(rows[f"obs.{name}"], values[:-1])
            np.testing.assert_array_equal(rows[f"next_obs.{name}"], values[1:])
        assert rows["act"].tolist() == [step["action"] for step in made[:-1]]
        assert rows["rew"].tolist() == [step["reward"] for step in made[:-1]]
