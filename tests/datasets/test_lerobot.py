"""LeRobot reads what is written here, and what it wrote is read here."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dataset_cases import assert_carried, of_any_length
from optional import need

from cpprb_like import ReplayBuffer
from cpprb_like.datasets import describe
from cpprb_like.datasets._lerobot import Feature, Statistics, _frames
from cpprb_like.datasets._model import Field
from cpprb_like.errors import DataLossWarning
from cpprb_like.views import Offsets

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*do not have the next observation:cpprb_like.errors.DataLossWarning"
)
pa = need("pyarrow")
parquet = need("pyarrow.parquet")
image_module = need("PIL.Image")

FLAG: dict[str, Any] = {"shape": (), "dtype": bool}
FIELDS: dict[str, Any] = {
    "obs.state": {"shape": 3, "dtype": "f4"},
    "obs.images.top": {"shape": (6, 5, 3), "dtype": "u1"},
    "obs.images.gray": {"shape": (6, 5), "dtype": "u1"},
    "obs.images.first": {"shape": (3, 6, 5), "dtype": "u1"},
    "obs.stack": {"shape": (4, 6, 5), "dtype": "u1"},
    "obs.n": {"shape": (), "dtype": "i8"},
    "act": {"shape": 2, "dtype": "f4"},
    "rew": {"shape": (), "dtype": "f4"},
    "terminated": FLAG,
    "truncated": FLAG,
    "log_prob": {"shape": (), "dtype": "f8"},
    "half": {"shape": (2, 2), "dtype": "f2"},
    "flags": {"shape": (2, 2), "dtype": bool},
    "timestamp": {"shape": (), "dtype": "f8"},
    "next.done": {"shape": (), "dtype": "i2"},
}
OBSERVATIONS = [name for name in FIELDS if name.startswith("obs.")]


def filled() -> ReplayBuffer:
    """A buffer of three episodes, one terminated, one truncated and one open."""
    rng = np.random.default_rng(0)

    def value(name: str) -> Any:
        field = rb.columns[name]
        if field.dtype.kind in "iu":
            info = np.iinfo(field.dtype)
            return rng.integers(info.min, info.max, field.shape, field.dtype, endpoint=True)
        if field.dtype.kind == "b":
            return rng.integers(0, 2, field.shape).astype(field.dtype)
        return rng.normal(size=field.shape)

    rb = ReplayBuffer(100, FIELDS, next_of=OBSERVATIONS)
    seen = {name: value(name) for name in OBSERVATIONS}
    for t in range(25):
        step = {name: value(name) for name in FIELDS if name not in OBSERVATIONS}
        step |= {**seen, "terminated": t == 9, "truncated": t == 19}
        seen = {name: value(name) for name in OBSERVATIONS}
        rb.add(**step, **{f"next_{name}": found for name, found in seen.items()})
    return rb


def lerobot() -> Any:
    """LeRobot's data sets, without what is compiled of torchvision: it may fit no PyTorch here."""
    need("lerobot", "make test-datasets")
    torch = need("torch")
    try:
        need("torchvision")
    except RuntimeError:
        for name in [name for name in sys.modules if name.startswith("torchvision")]:
            del sys.modules[name]
        for name in ("nms", "qnms"):
            schema = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
            torch.library.define(f"torchvision::{name}", schema)
    return need("lerobot.datasets.lerobot_dataset").LeRobotDataset


# ---------------------------------------------------------------------- with LeRobot as the judge


@pytest.mark.filterwarnings("ignore")
def test_offsets_are_the_delta_timestamps_of_lerobot(tmp_path: Path) -> None:
    """The same windows, padding and masks for each frame, at the ends of episodes too."""
    dataset_class = lerobot()
    rb = filled()
    rb.on_episode_end()  # LeRobot has no unfinished episodes
    rb.export(tmp_path / "ours", "lerobot", about={"fps": 10, "task": "reach"})
    offsets = {"obs.state": (-3, 0), "act": range(-1, 5)}
    keys = {"obs.state": "observation.state", "act": "action"}
    times = {keys[name]: [k / 10 for k in found] for name, found in offsets.items()}
    theirs = dataset_class("some/name", root=tmp_path / "ours", delta_timestamps=times)
    (batch,) = rb.view(Offsets(offsets)).epoch(25, shuffle=False)
    for k in range(25):
        for name, key in keys.items():
            np.testing.assert_array_equal(theirs[k][key], batch[name][k])
            np.testing.assert_array_equal(theirs[k][f"{key}_is_pad"], batch[f"{name}_is_pad"][k])


@pytest.mark.filterwarnings("ignore")
def test_lerobot_reads_ours(tmp_path: Path) -> None:
    """Each frame has the values of a row, with the neighbours that LeRobot finds by their time."""
    dataset_class = lerobot()
    rb = filled()
    rb.export(tmp_path / "ours", "lerobot", about={"fps": 10, "task": "reach"})

    found = dataset_class(
        "some/name", root=tmp_path / "ours", delta_timestamps={"action": [-0.1, 0, 0.1]}
    )

    rows = rb.get_all_transitions()
    assert (found.num_episodes, found.num_frames, found.fps) == (3, 25, 10)
    assert [found.meta.episodes[k]["length"] for k in range(3)] == [10, 10, 5]
    for k in range(25):
        item = found[k]
        assert item["task"] == "reach"
        for name in ("top", "gray"):
            image = np.round(np.asarray(item[f"observation.images.{name}"]) * 255)
            expected = rows[f"obs.images.{name}"][k]
            if name == "top":
                expected = expected.transpose(2, 0, 1)
            np.testing.assert_array_equal(image.reshape(expected.shape), expected)
        first = item["observation.images.first"]
        np.testing.assert_array_equal(first, rows["obs.images.first"][k])
        assert int(item["observation.n"]) == rows["obs.n"][k]
        for key, name in {"observation.state": "obs.state", "half": "half"}.items():
            np.testing.assert_array_equal(item[key], rows[name][k].astype(np.float32))
        for key, name in {"observation.stack": "obs.stack", "flags": "flags"}.items():
            np.testing.assert_array_equal(item[key], rows[name][k])
        np.testing.assert_array_equal(item["action"][1], rows["act"][k])
        assert bool(item["action_is_pad"][2]) == (k in (9, 19, 24))
        assert bool(item["next.done"]) == bool(rows["terminated"][k] or rows["truncated"][k])
        assert bool(item["next.truncated"]) == bool(rows["truncated"][k])
    mean = found.meta.stats["observation.images.top"]["mean"]
    np.testing.assert_allclose(
        mean[:, 0, 0], rows["obs.images.top"].mean(axis=(0, 1, 2)) / 255, rtol=1e-9
    )


@pytest.mark.filterwarnings("ignore")
def test_lerobot_reads_a_text_as_the_task(tmp_path: Path) -> None:
    """Each frame has the text of its row, and each episode those of its rows."""
    dataset_class = lerobot()
    rb = of_any_length(["put the 🙂 on 漢字", "a\0b", "stop"])
    rb.export(tmp_path / "ours", "lerobot")

    found = dataset_class("some/name", root=tmp_path / "ours")

    says = list(rb.get_all_transitions()["say"])
    assert [found[k]["task"] for k in range(20)] == says
    assert found.meta.total_tasks == 3
    assert list(found.meta.episodes[2]["tasks"]) == says[16:19]


FEATURES: dict[str, Any] = {
    "observation.state": {"dtype": "float32", "shape": (3,), "names": ["x", "y", "z"]},
    "observation.matrix": {"dtype": "float64", "shape": (2, 3), "names": None},
    "action": {"dtype": "int64", "shape": (1,), "names": None},
    "next.reward": {"dtype": "float32", "shape": (1,), "names": None},
    "next.done": {"dtype": "bool", "shape": (1,), "names": None},
    "note": {"dtype": "string", "shape": (1,), "names": None},
}


def frames_of(n: int, camera: str) -> list[dict[str, Any]]:
    """Frames as LeRobot takes them: a square, brighter at its right side and in each frame."""
    rng = np.random.default_rng(n)
    side = np.repeat(np.array([0, 64], np.uint8), 48)[:, np.newaxis]
    return [
        {
            "observation.state": rng.normal(size=3).astype(np.float32),
            "observation.matrix": rng.normal(size=(2, 3)),
            camera: np.full((64, 96, 3), 10 * t + 5 * n, np.uint8) + side,
            "action": np.array([t]),
            "next.reward": np.array([t / 2], np.float32),
            "next.done": np.array([t == n - 1]),
            "note": "x",
            "task": "a" if t else "b",
        }
        for t in range(n)
    ]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["image", "video"])
@pytest.mark.parametrize("is_first", [False, True])
def test_ours_reads_what_lerobot_wrote(kind: str, tmp_path: Path, *, is_first: bool) -> None:
    """Numbers and PNG exactly, frames of videos as its encoder left them, and channels last."""
    dataset_class = lerobot()
    camera = "observation.images.top"
    names, shape = ["height", "width", "channels"], (64, 96, 3)
    if is_first:
        names, shape = ["channels", "height", "width"], (3, 64, 96)
    features = {**FEATURES, camera: {"dtype": kind, "shape": shape, "names": names}}
    root = tmp_path / "theirs"
    theirs = dataset_class.create("some/name", 10, features, root=root, use_videos=kind == "video")
    lengths = (7, 5)
    for n in lengths:
        for frame in frames_of(n, camera):
            image = frame[camera].transpose(2, 0, 1) if is_first else frame[camera]
            theirs.add_frame({**frame, camera: image})
        theirs.save_episode()
    theirs.finalize()

    with pytest.warns(DataLossWarning, match="note"):
        rb = ReplayBuffer.from_dataset(root)

    assert describe(root).format == "lerobot"
    assert [one.length for one in rb.episodes.list()] == list(lengths)
    for number, n in enumerate(lengths):
        rows, frames = rb.episodes.read(number), frames_of(n, camera)
        for key, name in {
            "observation.state": "obs.state",
            "observation.matrix": "obs.matrix",
            camera: "obs.images.top",
        }.items():
            expected = np.stack([frame[key] for frame in frames])
            away = 3 if key == camera and kind == "video" else 0
            np.testing.assert_allclose(rows[name].astype(float), expected, rtol=0, atol=away)
            np.testing.assert_array_equal(rows[f"next_{name}"][:-1], rows[name][1:])
        assert rows["act"].tolist() == list(range(n))
        assert rows["rew"].tolist() == [t / 2 for t in range(n)]
        assert rows["done"].tolist() == [False] * (n - 1) + [True]
        assert len(set(rows["task_index"].tolist())) == 2
        assert list(rows["task"]) == [frame["task"] for frame in frames]


# ---------------------------------------------------------------------- with pyarrow alone


def test_one_text_is_the_task(tmp_path: Path) -> None:
    """A task that says something is read; of several texts none could be meant."""
    rb = ReplayBuffer(
        4, {"obs": {}, "say": {"dtype": str}, "note": {"dtype": str}}, room={"say": 9, "note": 9}
    )
    rb.add(obs=1, say="go", note="x")
    with pytest.raises(ValueError, match=r"one field of text.*got \['say', 'note'\]; formats 'rll"):
        rb.export(tmp_path / "x", "lerobot")
    assert not list(tmp_path.iterdir())
    one = ReplayBuffer(4, {"obs": {}, "say": {"dtype": str}}, room={"say": 9})
    one.add(obs=1, say="go")
    with pytest.raises(ValueError, match="about: task: expected none, as 'say' is the task"):
        one.export(tmp_path / "x", "lerobot", about={"task": "stop"})
    one.export(tmp_path / "x", "lerobot")
    rows = ReplayBuffer.from_dataset(tmp_path / "x", env_dict={"task": {}}).get_all_transitions()
    assert list(rows["task"]) == ["go"]
    table = parquet.read_table(tmp_path / "x/meta/tasks.parquet")
    column = table.schema.get_field_index("task_index")
    parquet.write_table(
        table.set_column(column, "task_index", [[7]]), tmp_path / "x/meta/tasks.parquet"
    )
    with pytest.raises(ValueError, match=r"task_index: expected a task of meta/tasks.*, got 0"):
        ReplayBuffer.from_dataset(tmp_path / "x")


def test_ours_has_the_columns_that_its_info_says(tmp_path: Path) -> None:
    """Lists of the lengths in info.json, images as PNG, and a row for each episode."""
    rb = filled()
    rb.export(tmp_path / "ours", "lerobot")

    info = json.loads((tmp_path / "ours/meta/info.json").read_text())
    table = parquet.read_table(tmp_path / "ours/data/chunk-000/file-000.parquet")
    assert set(table.column_names) == set(info["features"])
    for name, feature in info["features"].items():
        if feature["dtype"] == "image":
            data = table.column(name)[0].as_py()["bytes"]
            with image_module.open(io.BytesIO(data)) as image:
                assert image.format == "PNG"
                assert [image.height, image.width] == feature["shape"][:2]
        else:
            value = np.asarray(table.column(name)[0].as_py())
            assert list(value.shape or (1,)) == feature["shape"], name
    episodes = parquet.read_table(tmp_path / "ours/meta/episodes/chunk-000/file-000.parquet")
    assert episodes.column("dataset_from_index").to_pylist() == [0, 10, 20]
    tasks = parquet.read_table(tmp_path / "ours/meta/tasks.parquet")
    assert tasks.column("task_index").to_pylist() == [0]
    assert table.column("next.done").to_pylist() == [k in (9, 19) for k in range(25)]
    with pytest.warns(DataLossWarning, match="2 of 25 steps are left out"):
        read = ReplayBuffer.from_dataset(tmp_path / "ours", resume=True)
    ours, rows = rb.get_all_transitions(), read.get_all_transitions()
    kept = ~np.isin(np.arange(25), (19, 24))
    assert [one.length for one in read.episodes.list()] == [10, 9, 4]
    assert read.get_current_episode_len() == 4
    for name in OBSERVATIONS:
        expected = ours[name][kept]
        expected = expected.reshape(rows[name].shape)
        np.testing.assert_array_equal(rows[name], expected)
        same = np.flatnonzero(~rows["terminated"][:-1] & ~rows["truncated"][:-1])
        same = same[~np.isin(same, (9, 18))]
        np.testing.assert_array_equal(rows[f"next_{name}"][same], rows[name][same + 1])
    for name in ("act", "rew", "log_prob", "half", "flags", "terminated"):
        np.testing.assert_array_equal(rows[name], ours[name][kept])
    for name in ("timestamp", "next.done"):  # LeRobot has columns of these names
        np.testing.assert_array_equal(rows[f"{name}_"], ours[name][kept])


def test_what_lerobot_cannot_hold_is_reported(tmp_path: Path) -> None:
    """Final observations, unsigned integers of 64 bits, arrays of more than five axes."""
    fields: Any = {"obs": {}, "act": {}, "rew": {}, "big": {"dtype": "u8"}}
    fields["six"] = {"shape": (1, 2, 1, 2, 1, 1)}
    rb = ReplayBuffer(10, fields, next_of="obs")
    rb.add(obs=1, next_obs=2, act=0, rew=0, big=2**64 - 1, six=np.zeros((1, 2, 1, 2, 1, 1)))
    with pytest.raises(ValueError, match=r"2 fields cannot be held.*'big' \(uint64\), 'six'"):
        rb.export(tmp_path / "x", "lerobot", strict=True)
    with pytest.warns(DataLossWarning, match=r"next observation of the last step.* \(1 episodes\)"):
        rb.export(tmp_path / "x", "lerobot")
    assert describe(tmp_path / "x").episodes[0].is_open


def test_next_observations_of_other_rows_are_features(tmp_path: Path) -> None:
    """Where they are not the observations of the rows after: none is lost."""
    rb = ReplayBuffer(10, {"obs": {}, "next_obs": {}, "act": {}, "rew": {}})
    for t in range(4):
        rb.add(obs=t, next_obs=10 * t, act=0, rew=0)
    rb.export(tmp_path / "x", "lerobot", strict=True)
    read = ReplayBuffer.from_dataset(tmp_path / "x", strict=True, resume=True)
    assert_carried(rb, read, "lerobot")


def foreign(root: Path, **changed: Any) -> Path:
    """A data set of one image and one number, two episodes of two rows, as LeRobot lays it out."""
    out = io.BytesIO()
    image_module.fromarray(np.full((4, 6, 3), 7, np.uint8)).save(out, "PNG")
    columns = {
        "observation.images.top": [{"bytes": out.getvalue(), "path": None}] * 4,
        "action": [0.0, 1.0, 2.0, 3.0],
        "timestamp": pa.array([0.0, 0.1] * 2, pa.float32()),
        "episode_index": [0, 0, 1, 1],
        **changed.get("columns", {}),
    }
    features = {
        "observation.images.top": {
            "dtype": "image",
            "shape": [3, 4, 6],
            "names": ["channels", "height", "width"],
        },
        "action": {"dtype": "float32", "shape": [1], "names": None},
        "timestamp": {"dtype": "float32", "shape": [1], "names": None},
        "episode_index": {"dtype": "int64", "shape": [1], "names": None},
        **changed.get("features", {}),
    }
    info = {"codebase_version": "v3.0", "fps": 10, "total_tasks": 1, "features": features}
    info |= changed.get("info", {})
    episodes = {
        "episode_index": [0, 1],
        "dataset_from_index": [0, 2],
        "dataset_to_index": [2, 4],
        **changed.get("episodes", {}),
    }
    tables = {"data": columns, "meta/episodes": episodes}
    for folder, found in tables.items():
        place = root / folder / "chunk-000"
        place.mkdir(parents=True)
        parquet.write_table(pa.table(found), place / "file-000.parquet")
    (root / "meta/info.json").write_text(json.dumps(info))
    return root


@pytest.mark.parametrize("name", ["next.done", "next.truncated"])
def test_an_end_flag_inside_an_episode_parts_it(name: str, tmp_path: Path) -> None:
    """The row at the flag got the observation of another episode as its next one."""
    flag = {"dtype": "bool", "shape": [1], "names": None}
    number = {"dtype": "float32", "shape": [1], "names": None}
    changed: Any = {
        "columns": {
            "observation.state": [0.0, 1.0, 10.0, 11.0],
            "episode_index": [0] * 4,
            name: [False, True, False, False],
        },
        "features": {"observation.state": number, name: flag},
        "episodes": {
            "episode_index": [0],
            "dataset_from_index": [0],
            "dataset_to_index": [4],
        },
    }
    with pytest.warns(DataLossWarning, match="steps are left out"):
        rb = ReplayBuffer.from_dataset(foreign(tmp_path, **changed))
    rows = rb.get_all_transitions()
    found = zip(rows["obs.state"].tolist(), rows["next_obs.state"].tolist(), strict=True)
    # A terminated step has no next observation. That of a truncated step is unknown.
    assert list(found) == [(0, 1), *([(1, 1)] if name == "next.done" else []), (10, 11)]


def test_channels_are_last_whatever_the_info_says(tmp_path: Path) -> None:
    """As they are in the files; an observation that is not alone keeps its name."""
    with pytest.warns(DataLossWarning, match="2 of 4 steps are left out"):
        rb = ReplayBuffer.from_dataset(foreign(tmp_path / "x"))
    assert rb.fields == ("obs.images.top", "act", "next_obs.images.top")
    assert rb.get_all_transitions()["act"].ravel().tolist() == [0, 2]
    assert rb.columns["obs.images.top"].shape == (4, 6, 3)
    assert (rb.get_all_transitions()["obs.images.top"] == 7).all()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"info": {"codebase_version": "v2.1"}}, "convert_dataset_v21_to_v30"),
        ({"info": {"features": []}}, "an object with features"),
        ({"features": {"action": {"dtype": "float32", "shape": [10**9]}}}, "expected float32 of"),
        ({"features": {"action": {"dtype": "float32", "shape": [-1]}}}, "expected a shape"),
        ({"features": {"action": {"dtype": "bool", "shape": [1]}}}, "expected bool of shape"),
        ({"features": {"action": {"dtype": "int64", "shape": [2**32, 2**32]}}}, "expected int64"),
        ({"features": {"action": 3}}, "expected features"),
        ({"features": {"more": {"dtype": "int64", "shape": [1]}}}, "more"),
        (
            {"features": {"observation.images.top": {"dtype": "image", "shape": [9, 9, 3]}}},
            r"expected an image: size \(9, 9\), got \(4, 6\)",
        ),
        (
            {"features": {"observation.images.top": {"dtype": "image", "shape": [4, 6]}}},
            "height, width and channels",
        ),
        ({"episodes": {"dataset_to_index": [2, 9]}}, "rows of 0 to 4, got 2 to 9"),
        ({"episodes": {"dataset_from_index": [-1, 2]}}, "rows of 0 to 4"),
        ({"episodes": {"episode_index": [0, 5]}}, "episode_index: expected 5"),
        ({"episodes": {"dataset_from_index": [2, 4], "dataset_to_index": [2, 4]}}, "got none"),
    ],
)
def test_what_does_not_fit_is_refused(changed: Any, message: str, tmp_path: Path) -> None:
    """Before memory is taken for it; the message names the folder."""
    path = foreign(tmp_path / "x", **changed)
    with pytest.raises(ValueError, match=message) as caught:
        ReplayBuffer.from_dataset(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("dtype", "values"),
    [
        ("int32", pa.array([2**40, 2**40 + 1, 2**40 + 2, 0])),
        ("int64", pa.array([2**64 - 1, 0, 0, 0], pa.uint64())),
        ("float32", pa.array([2**40 + 1, 2**40 + 2, 0, 0])),
        ("float64", pa.array([2**53 + 1, 0, 0, 0])),
        ("float32", pa.array([0.1, 1e300, 0, 0])),
    ],
)
def test_numbers_that_their_feature_cannot_hold_are_refused(
    dtype: str, values: Any, tmp_path: Path
) -> None:
    """A cast of the same kind wrapped integers and rounded floats, also with ``strict=True``."""
    more = {"more": {"dtype": dtype, "shape": [1], "names": None}}
    path = foreign(tmp_path / "x", features=more, columns={"more": values})
    with pytest.raises(ValueError, match=rf"more: expected numbers of {dtype}, got \[") as caught:
        ReplayBuffer.from_dataset(path, strict=True)
    assert str(values[0].as_py()) in str(caught.value)


def test_numbers_that_their_feature_can_hold_are_read(tmp_path: Path) -> None:
    """Of another width than the file's, but the same numbers."""
    more = {
        name: {"dtype": name, "shape": [1], "names": None}
        for name in ("int32", "uint64", "float32")
    }
    columns = {
        "int32": pa.array([-1, 2**31 - 1, 0, 1]),
        "uint64": pa.array([2**64 - 1, 1, 2, 3], pa.uint64()),
        "float32": pa.array([float("nan"), float("-inf"), 0.5, 2.0**40]),
    }
    path = foreign(tmp_path / "x", features=more, columns=columns)
    fields: Any = {name: {} for name in columns}
    rb = ReplayBuffer.from_dataset(path, strict=True, env_dict=fields)
    rows = rb.get_all_transitions()
    assert rows["int32"].tolist() == [-1, 2**31 - 1, 0, 1]
    assert rows["uint64"].tolist() == [2**64 - 1, 1, 2, 3]
    np.testing.assert_array_equal(rows["float32"], [np.nan, -np.inf, 0.5, 2.0**40])


def test_videos_without_their_reader_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a warning that names the extra."""
    monkeypatch.setitem(sys.modules, "av", None)
    video = {"dtype": "video", "shape": [4, 6, 3], "names": ["height", "width", "channels"]}
    path = foreign(tmp_path / "x", features={"observation.images.side": video})
    with pytest.warns(DataLossWarning, match=r"images\.side \(video.*cpprb_like\[video\]"):
        rb = ReplayBuffer.from_dataset(path)
    assert "obs.images.side" not in rb.fields


def write_video(path: Path, levels: list[int]) -> None:
    """A video of grey frames, ten a second."""
    av = need("av", "make test-datasets")
    path.parent.mkdir(parents=True)
    with av.open(str(path), "w") as container:
        options = {"bf": "2", "g": "12"}  # the order of decoding is another one
        stream = container.add_stream("mpeg4", rate=10, options=options)
        stream.width, stream.height, stream.pix_fmt = 64, 32, "yuv420p"
        stream.bit_rate = 8_000_000
        for level in levels:
            frame = av.VideoFrame.from_ndarray(np.full((32, 64, 3), level, np.uint8), "rgb24")
            container.mux(stream.encode(frame))
        container.mux(stream.encode())


def test_frames_of_videos_are_found_by_their_time(tmp_path: Path) -> None:
    """Of episodes in any order in the file; and a file that is no video, or ends too early."""
    need("av", "make test-datasets")
    camera = "observation.images.side"
    video = {"dtype": "video", "shape": [32, 64, 3], "names": ["height", "width", "channels"]}
    places = {
        f"videos/{camera}/{key}": values
        for key, values in {
            "chunk_index": [0, 0],
            "file_index": [0, 0],
            "from_timestamp": [0.5, 0.1],
        }.items()
    }
    path = foreign(tmp_path / "x", features={camera: video}, episodes=places)
    file = path / "videos" / camera / "chunk-000/file-000.mp4"
    write_video(file, [0, 30, 60, 90, 120, 150, 180])

    rb = ReplayBuffer.from_dataset(path, env_dict={"obs.images.side": {}})

    levels = rb.get_all_transitions()["obs.images.side"].mean(axis=(1, 2, 3))
    np.testing.assert_allclose(levels, [150, 180, 30, 60], atol=3)
    file.write_bytes(b"#EXTM3U\n#EXTINF:1,\n/etc/passwd\n")
    with pytest.raises(ValueError, match="expected a video"):
        ReplayBuffer.from_dataset(path)
    file.unlink()
    file.parent.rmdir()
    write_video(file, [0, 30, 60])
    with pytest.raises(ValueError, match=r"a frame at 0\.5000 s, got the end"):
        ReplayBuffer.from_dataset(path)


def test_frames_of_videos_are_found_from_each_frame_on(tmp_path: Path) -> None:
    """Times may come in pieces; one without a frame, one before the last, and NaN are refused."""
    need("av", "make test-datasets")
    path = tmp_path / "x/video.mp4"
    write_video(path, list(range(0, 240, 6)))
    for start in range(39):
        times = [start / 10]
        found = _frames(path, (32, 64, 3), times, 10)
        levels = [next(found).mean()]
        times.append((start + 1) / 10)
        levels.append(next(found).mean())
        np.testing.assert_allclose(levels, [6 * start, 6 * start + 6], atol=2)
    for wrong in (np.nan, 1.8, -1.0, 4.0):
        with pytest.raises(ValueError, match="expected a frame at"):
            list(_frames(path, (32, 64, 3), [2.0, wrong], 10))
    with pytest.raises(ValueError, match=r"expected images of \(32, 65\)"):
        list(_frames(path, (32, 65, 3), [2.0], 10))
    video = {"dtype": "video", "shape": [32, 64, 3], "names": None}
    changed: Any = {"features": {"observation.images.side": video}, "info": {"fps": 0}}
    with pytest.raises(ValueError, match=r"info\.json: expected fps above 0, got 0"):
        ReplayBuffer.from_dataset(foreign(tmp_path / "y", **changed))


def test_pillow_is_named_where_it_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not needed where there are no images."""
    rb = filled()
    monkeypatch.setitem(sys.modules, "PIL", None)
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(ImportError, match=r"need PIL: pip install 'cpprb_like\[datasets\]'"):
        rb.export(tmp_path / "x", "lerobot")
    assert list(tmp_path.iterdir()) == []
    plain = ReplayBuffer(10, {"obs": {"shape": 2}, "act": {}, "rew": {}})
    plain.add(obs=[1, 2], act=3, rew=4)
    plain.export(tmp_path / "x", "lerobot")
    fields: Any = {"obs": {}, "act": {}, "rew": {}}
    read = ReplayBuffer.from_dataset(tmp_path / "x", env_dict=fields, strict=True)
    assert read.get_all_transitions()["obs"].tolist() == [[1, 2]]


@pytest.mark.parametrize("about", [{"fps": 0}, {"fps": True}, {"fps": 2.5}, {"task": ""}])
def test_what_it_is_about_is_checked(about: Any, tmp_path: Path) -> None:
    """Frames a second are an integer, and the task is text."""
    with pytest.raises(ValueError, match="about: "):
        filled().export(tmp_path / "x", "lerobot", about=about)
    assert list(tmp_path.iterdir()) == []


def test_statistics_are_those_of_all_samples(rng: np.random.Generator) -> None:
    """However they are cut into pieces."""
    samples = rng.normal(1e6, 3, (1000, 4))
    found = Statistics()
    for piece in np.split(samples, [1, 2, 500]):
        found.add(piece)
    made = found.to_json(Feature("x", Field("x", np.dtype("f8"), (4,))))
    assert made["count"] == [1000]
    np.testing.assert_allclose(made["mean"], samples.mean(axis=0), rtol=1e-13)
    np.testing.assert_allclose(made["std"], samples.std(axis=0), rtol=1e-9)
    np.testing.assert_array_equal(made["min"], samples.min(axis=0))
    np.testing.assert_array_equal(made["max"], samples.max(axis=0))
