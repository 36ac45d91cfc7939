"""TensorFlow Datasets reads what is written here, and what it wrote is read here."""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dataset_cases import ANY_LENGTH, LISTS, dump_lists, of_any_length, rows_of, same_rows
from optional import need

from cpprb_like import ReplayBuffer
from cpprb_like._machine.crc32 import crc32c
from cpprb_like.datasets import _tfrecord, describe
from cpprb_like.errors import DataLossWarning

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


def slow_crc32c(data: bytes) -> int:
    """The checksum, bit by bit."""
    register = 0xFFFFFFFF
    for byte in data:
        register ^= byte
        for _ in range(8):
            register = register >> 1 ^ (0x82F63B78 if register & 1 else 0)
    return register ^ 0xFFFFFFFF


@pytest.mark.parametrize("n", [0, 1, 9, 255, 256, 257, 5000])
def test_checksums_are_those_of_the_slow_twin(n: int, rng: np.random.Generator) -> None:
    """CRC-32C of any bytes."""
    data = rng.integers(0, 256, n, np.uint8).tobytes()
    assert crc32c(data) == slow_crc32c(data)


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
    }
    rb = ReplayBuffer(100, fields, next_of=["obs.image", "obs.state", "obs.n"])
    seen: dict[str, Any] = {}
    for t in range(25):
        step: dict[str, Any] = {"act": rng.normal(size=2), "rew": t}
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
                assert step["logp"] == rows["logp"][k]
        assert [step["is_first"] for step in steps] == [True] + [False] * n
        ended = bool(rows["terminated"][-1] or rows["truncated"][-1])
        assert [step["is_last"] for step in steps] == [False] * n + [ended]
        assert bool(steps[-1]["is_terminal"]) == bool(rows["terminated"][-1])


def test_what_an_episode_of_rlds_says_is_read(tmp_path: Path) -> None:
    """Whether it is cut and open, and the discount of each step; TensorFlow has no uint32."""
    fields: Any = {"obs": {}, "act": {}, "rew": {}, "n": {"dtype": "u4"}}
    rb = ReplayBuffer(4, fields, next_of="obs")
    for t in range(6):
        rb.add(obs=t, act=0, rew=t, next_obs=t + 1, n=2**32 - 1)
    with pytest.raises(ValueError, match=r"1 fields cannot be held.*'n' \(uint32\)"):
        rb.export(tmp_path / "x", "rlds", strict=True)
    with pytest.warns(DataLossWarning, match=r"'n' \(uint32\)"):
        rb.export(tmp_path / "x", "rlds")
    (episode,) = describe(tmp_path / "x").episodes
    assert (episode.length, episode.is_cut, episode.is_open) == (4, True, True)
    read = ReplayBuffer.from_dataset(tmp_path / "x", strict=True)
    assert not read.episodes.list()[0].complete
    read.update([1], discount=[0.5])
    read.export(tmp_path / "y", "rlds", strict=True)
    again = ReplayBuffer.from_dataset(tmp_path / "y", strict=True).get_all_transitions()
    assert again["discount"].tolist() == [1, 0.5, 1, 1]
    with pytest.raises(ValueError, match=r"about: expected some of \['description', 'cit.*'who'"):
        rb.export(tmp_path / "z", "rlds", about={"who": "us"})


def test_a_step_that_is_truncated_too_is_reported(tmp_path: Path) -> None:
    """RLDS has one mark for an end that is terminal and one for any end."""
    flag: Any = {"shape": (), "dtype": bool}
    fields: Any = {"obs": {}, "act": {}, "rew": {}, "terminated": flag, "truncated": flag}
    rb = ReplayBuffer(4, fields, next_of="obs")
    rb.add(obs=1, act=0, rew=0, next_obs=2, terminated=True, truncated=True)
    with pytest.warns(UserWarning, match="do not say that a step is truncated as well"):
        rb.export(tmp_path / "x", "rlds")
    rows = ReplayBuffer.from_dataset(tmp_path / "x", strict=True).get_all_transitions()
    assert (rows["terminated"].tolist(), rows["truncated"].tolist()) == ([True], [False])


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
            "wrist": tfds.features.Image(shape=(6, 5, 3), encoding_format="png"),
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
                        "wrist": rng.integers(0, 256, (6, 5, 3), np.uint8),
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

    rb = ReplayBuffer.from_dataset(tmp_path)

    assert describe(tmp_path).format == "rlds"
    assert [one.terminated for one in rb.episodes.list()] == [False, True, False]
    assert [one.truncated for one in rb.episodes.list()] == [True, False, True]
    for made, rows in zip(expected, rb.episodes, strict=True):
        for name in ("image", "state", "wrist"):
            values = np.stack([step["observation"][name] for step in made])
            np.testing.assert_array_equal(rows[f"obs.{name}"], values[:-1])
            np.testing.assert_array_equal(rows[f"next_obs.{name}"], values[1:])
        assert list(rows["language"]) == ["go"] * 5
        assert rows["act"].tolist() == [step["action"] for step in made[:-1]]
        assert rows["rew"].tolist() == [step["reward"] for step in made[:-1]]


def test_tensorflow_datasets_reads_values_of_any_length(tmp_path: Path) -> None:
    """Tensors with an unknown dimension, of the dtypes of the buffer, and texts as bytes."""
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    tfds = need("tensorflow_datasets", "make test-datasets")
    rb = of_any_length()
    rb.export(tmp_path / "ours", "rlds")

    data = tfds.builder_from_directory(tmp_path / "ours").as_dataset(split="train")

    for number, episode in enumerate(data):
        rows, steps = rb.episodes.read(number), list(tfds.as_numpy(episode["steps"]))
        for name in LISTS:
            found = [step[name] for step in steps]
            assert same_rows(found[:-1], rows_of(rb, rows, name))
            assert found[-1].size == 0
        assert [step["say"].decode() for step in steps] == [*rows["say"], ""]
    assert number == 2


def test_ours_reads_sequences_and_texts_of_tensorflow_datasets(tmp_path: Path) -> None:
    """Ragged tensors of numbers and of vectors, and tensors with an unknown dimension."""
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    tfds = need("tensorflow_datasets", "make test-datasets")
    tf = need("tensorflow", "make test-datasets")
    serializer_of = need("tensorflow_datasets.core.example_serializer").ExampleSerializer
    own = tfds.features
    steps: dict[str, Any] = {
        "ids": own.Sequence(np.int32),
        "chosen": own.Sequence(np.bool_),
        "nodes": own.Sequence(own.Tensor(shape=(11,), dtype=np.float32)),
        "edges": own.Tensor(shape=(2, None), dtype=np.int64, encoding="bytes"),
        "say": own.Text(),
        "words": own.Sequence(own.Text()),
        "action": own.Scalar(np.int64),
        "observation": own.Tensor(shape=(3,), dtype=np.float32),
        **{name: own.Scalar(np.bool_) for name in ("is_first", "is_last", "is_terminal")},
    }
    features = own.FeaturesDict({"steps": own.Dataset(steps)})
    rb = of_any_length()
    with tf.io.TFRecordWriter(str(tmp_path / "theirs-train.tfrecord-00000-of-00001")) as file:
        for rows in rb.episodes:
            names = [name for name in steps if name in ANY_LENGTH]
            columns = {name: [*rows_of(rb, rows, name)] for name in names}
            made = [{name: columns[name][k] for name in names} for k in range(len(rows["rew"]))]
            made.append(made[-1])
            for k, step in enumerate(made):
                marks = {"is_first": k == 0, "is_last": k == len(made) - 1, "is_terminal": False}
                vector = np.full(3, k, np.float32)
                made[k] = {**step, **marks, "action": k, "observation": vector, "words": ["x"] * k}
            serializer = serializer_of(features.get_serialized_info())
            file.write(serializer.serialize_example(features.encode_example({"steps": made})))
    features.save_config(str(tmp_path))

    with pytest.warns(DataLossWarning, match="1 data sets .* words"):
        read = ReplayBuffer.from_dataset(tmp_path)

    assert len(read.episodes) == 3
    for expected, rows in zip(rb.episodes, read.episodes, strict=True):
        for name in ("ids", "chosen", "nodes", "edges", "say"):
            assert same_rows(rows_of(read, rows, name), rows_of(rb, expected, name)), name


CORE = "tensorflow_datasets.core.features."


def tensor(dtype: str) -> dict[str, Any]:
    """The feature of a number."""
    feature = {"dtype": dtype, "encoding": "none", "shape": {}}
    return {"pythonClassName": CORE + "scalar.Scalar", "tensor": feature}


def image(shape: Sequence[int], dtype: str = "uint8") -> dict[str, Any]:
    """The feature of an image, as TensorFlow Datasets writes it; -1 is an unknown length."""
    dimensions = {"dimensions": [str(length) for length in shape]}
    feature = {"shape": dimensions, "dtype": dtype, "encodingFormat": "png"}
    return {"pythonClassName": CORE + "image_feature.Image", "image": feature}


def write_foreign(
    folder: Path, features: dict[str, Any], files: dict[str, list[bytes]], action: Any = None
) -> None:
    """One episode with these features of observations, of which each step has a file."""
    n = len(next(iter(files.values())))
    scalars = {"action": np.arange(n, dtype=np.float32), "reward": np.ones(n, np.float32)}
    marks = np.arange(n) == n - 1
    scalars |= {"is_first": np.arange(n) == 0, "is_last": marks, "is_terminal": marks}
    steps: dict[str, Any] = {
        "observation": {"featuresDict": {"features": features}},
        "action": action or tensor("float32"),
        "reward": tensor("float32"),
        **{name: tensor("bool") for name in ("is_first", "is_last", "is_terminal")},
    }
    feature = {"sequence": {"feature": {"featuresDict": {"features": steps}}}}
    text = json.dumps({"featuresDict": {"features": {"steps": feature}}})
    (folder / "features.json").write_text(text, encoding="utf-8")
    entries = b""
    for name, values in files.items():
        held = b"".join(_tfrecord._field(1, value) for value in values)
        key = _tfrecord._field(1, f"steps/observation/{name}".encode())
        entries += _tfrecord._field(1, key + _tfrecord._field(2, _tfrecord._field(1, held)))
    plain = dump_lists({f"steps/{name}": found for name, found in scalars.items()})
    _, inner = next(_tfrecord._fields(memoryview(plain)))
    with (folder / "theirs-train.tfrecord-00000-of-00001").open("wb") as file:
        _tfrecord.write(file, _tfrecord._field(1, bytes(inner) + entries))


def encoded(values: np.ndarray[Any, Any], kind: str) -> bytes:
    """A file of an image."""
    module = need("PIL.Image", "data sets of RLDS with images")
    out = io.BytesIO()
    module.fromarray(values[:, :, 0] if values.shape[2] == 1 else values).save(out, kind)
    return out.getvalue()


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_images_as_png_are_read_byte_for_byte(
    channels: int, tmp_path: Path, rng: np.random.Generator
) -> None:
    """They were left out; others of dtypes or sizes that a field cannot have still are."""
    images = rng.integers(0, 256, (4, 6, 5, channels), np.uint8)
    files = [encoded(one, "PNG") for one in images]
    features = {"camera": image((6, 5, channels)), "deep": image((6, 5, channels), "uint16")}
    features["any"] = image((-1, -1, channels))
    write_foreign(tmp_path, features, dict.fromkeys(features, files))
    with pytest.warns(UserWarning, match="observation/deep.*observation/any"):
        rb = ReplayBuffer.from_dataset(tmp_path)
    rows = rb.get_all_transitions()
    np.testing.assert_array_equal(rows["obs.camera"], images[:-1])
    np.testing.assert_array_equal(rows["next_obs.camera"], images[1:])
    assert set(rb.fields) >= {"obs.camera", "next_obs.camera", "act", "rew"}
    assert not {"obs.deep", "obs.any"} & set(rb.fields)


def test_images_as_jpeg_are_read_as_pillow_reads_them(
    tmp_path: Path, rng: np.random.Generator
) -> None:
    """JPEG has changed them before; they are not changed again."""
    module = need("PIL.Image", "data sets of RLDS with images")
    files = [encoded(rng.integers(0, 256, (8, 8, 3), np.uint8), "JPEG") for _ in range(3)]
    write_foreign(tmp_path, {"camera": image((8, 8, 3))}, {"camera": files})
    rows = ReplayBuffer.from_dataset(tmp_path).get_all_transitions()
    for read, file in zip(rows["obs.camera"], files, strict=False):
        np.testing.assert_array_equal(read, np.asarray(module.open(io.BytesIO(file))))


@pytest.mark.parametrize("wrong", ["size", "bytes", "numbers"])
def test_what_is_no_such_image_is_named(
    wrong: str, tmp_path: Path, rng: np.random.Generator
) -> None:
    """The message names the feature, what was expected and what came."""
    whole = encoded(rng.integers(0, 256, (6, 5, 3), np.uint8), "PNG")
    other = {"size": encoded(np.zeros((5, 6, 3), np.uint8), "PNG"), "bytes": b"no image"}
    files = [whole, other.get(wrong, whole), whole]
    action = image((6, 5, 3)) if wrong == "numbers" else tensor("float32")
    write_foreign(tmp_path, {"camera": image((6, 5, 3))}, {"camera": files}, action)
    said = {
        "size": r"camera: expected an image: size \(6, 5\), got \(5, 6\)",
        "bytes": "camera: expected an image: ",
        "numbers": "action: expected an image for each step, got numbers",
    }
    with pytest.raises(ValueError, match=said[wrong]):
        ReplayBuffer.from_dataset(tmp_path)


def test_images_without_pillow_are_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says what to install."""
    write_foreign(tmp_path, {"camera": image((6, 5, 3))}, {"camera": [b"", b""]})
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(ImportError, match=r"format 'rlds' need PIL: pip install 'cpprb_like\[dat"):
        ReplayBuffer.from_dataset(tmp_path)
