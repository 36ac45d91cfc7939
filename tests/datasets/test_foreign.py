"""Data sets of others that are ambiguous or wrong: refused, or reported and not misread."""

from __future__ import annotations

import json
import shutil
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dataset_cases import dump_lists
from optional import need

from cpprb_like import ReplayBuffer
from cpprb_like._machine import machine_memory
from cpprb_like.checkpoint import _npz
from cpprb_like.datasets import _dreamerv3, _tfrecord, describe
from cpprb_like.errors import DataLossWarning

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*the buffer does not know the observation_space:UserWarning"
)

CORE = "tensorflow_datasets.core.features."
UUID = "1" * 22


# ---------------------------------------------------------------------- HDF5


def write_hdf5(path: Path, **more: Any) -> Any:
    """A file of D4RL of three steps, with other data sets too; it is left open."""
    h5py = need("h5py")
    file = h5py.File(path, "w")
    steps = {
        "observations": np.arange(3.0),
        "actions": np.zeros((3, 1)),
        "rewards": np.zeros(3),
        "terminals": np.array([False, True, False]),
        "timeouts": np.zeros(3, bool),
    }
    for name, values in {**steps, **more}.items():
        file[name] = values
    return file


def test_what_d4rl_says_of_a_file_is_reported(tmp_path: Path) -> None:
    """Its group ``metadata``, as how it was made, was left out without a word."""
    write_hdf5(tmp_path / "x.hdf5", **{"metadata/algorithm": b"SAC", "metadata/w/b": [1.0]}).close()
    found = describe(tmp_path / "x.hdf5").left_out
    assert found[:-1] == ["metadata/algorithm (object)", "metadata/w/b (float64)"]
    with pytest.raises(ValueError, match=r"2 data sets .*metadata/algorithm"):
        ReplayBuffer.from_dataset(tmp_path / "x.hdf5", strict=True)


def test_numbers_of_d4rl_may_be_in_any_byte_order(tmp_path: Path) -> None:
    """Values are equal, next observations and flags too; fields are in the machine's order."""
    extra = np.arange(6).reshape(3, 2)
    with write_hdf5(tmp_path / "x.hdf5", more=extra.astype(">i2")) as file:
        for name in ("observations", "rewards", "terminals"):
            del file[name]
            file[name] = np.arange(3.0).astype(">f4")
        file["terminals"][:] = [0, 1, 1]

    rows = ReplayBuffer.from_dataset(tmp_path / "x.hdf5").get_all_transitions()

    assert rows["obs"].tolist() == rows["rew"].tolist() == [0, 1, 2]
    assert rows["next_obs"].tolist() == [1, 1, 2]
    assert rows["more"].tolist() == extra.tolist()
    assert {rows[name].dtype for name in ("obs", "rew", "next_obs")} == {np.dtype("f4")}


def test_groups_with_two_links_are_refused_soon(tmp_path: Path) -> None:
    """A file of 33 kB would have 2 ** 28 paths."""
    with write_hdf5(tmp_path / "x.hdf5") as file:
        group = file.create_group("infos")
        for _ in range(28):
            inner = group.create_group("a")
            group["b"] = inner
            group = inner
    with pytest.raises(ValueError, match="expected one link to each group, got two"):
        describe(tmp_path / "x.hdf5")


def test_a_group_that_has_itself_is_refused(tmp_path: Path) -> None:
    """The root of the file is a group too."""
    with write_hdf5(tmp_path / "x.hdf5") as file:
        file["a"] = file["/"]
    with pytest.raises(ValueError, match="expected one link to each group, got two"):
        describe(tmp_path / "x.hdf5")


def test_of_two_data_sets_of_one_name_d4rls_is_read(tmp_path: Path) -> None:
    """The other is reported, also where it has the name of a field that is made here."""
    more = {
        "infos/a.b": np.arange(3.0),
        "infos/a/b": np.arange(3.0) + 10,
        "terminated": np.array([True, False, False]),
        "next_obs": np.full(3, 7.0),
        "next_obs_2": np.full(3, 8.0),
    }
    write_hdf5(tmp_path / "x.hdf5", **more).close()

    with pytest.warns(DataLossWarning, match=r"^[^,]*: 3 data sets .*terminated \(another"):
        rb = ReplayBuffer.from_dataset(tmp_path / "x.hdf5")

    rows = rb.get_all_transitions()
    assert rows["terminated"].tolist() == [False, True]
    assert rows["info.a.b"].tolist() in ([0, 1], [10, 11])
    assert rows["next_obs"].tolist() == [1, 1]
    assert rows["next_obs_2"].tolist() == [8, 8]


def test_a_file_of_d4rl_without_rows_is_refused(tmp_path: Path) -> None:
    """As data sets of other formats are; the message names the file."""
    steps = ("observations", "actions", "rewards", "terminals", "timeouts")
    with need("h5py").File(tmp_path / "x.hdf5", "w") as file:
        for name in steps:
            file[name] = np.zeros(0)
    for read in (describe, ReplayBuffer.from_dataset):
        with pytest.raises(ValueError, match=r"x\.hdf5: expected an episode with rows, got none"):
            read(tmp_path / "x.hdf5")


def write_minari(path: Path, n: int = 1, **more: Any) -> None:
    """A data set of Minari's of n episodes of three steps."""
    h5py = need("h5py")
    (path / "data").mkdir(parents=True)
    metadata = {"total_episodes": n, "total_steps": 3 * n}
    (path / "data" / "metadata.json").write_text(json.dumps(metadata))
    steps = {
        "observations": np.arange(4.0),
        "actions": np.zeros((3, 1)),
        "rewards": np.ones(3),
        "terminations": np.array([False, False, True]),
        "truncations": np.zeros(3, bool),
    }
    with h5py.File(path / "data" / "main_data.hdf5", "w") as file:
        for k in range(n):
            group = file.create_group(f"episode_{k}")
            for name, values in {**steps, **more}.items():
                group[name] = values


def test_numbers_of_minari_may_be_in_any_byte_order(tmp_path: Path) -> None:
    """Values are equal, and the fields in the order of the machine."""
    more = {
        "observations": np.arange(4.0).astype(">f4"),
        "infos/x": np.arange(6, dtype=">i2").reshape(3, 2),
    }
    write_minari(tmp_path / "x", n=2, **more)

    rows = ReplayBuffer.from_dataset(tmp_path / "x").get_all_transitions()

    assert rows["obs"].tolist() == [0, 1, 2] * 2
    assert rows["next_obs"].tolist() == [1, 2, 3] * 2
    assert rows["info.x"].tolist() == [[0, 1], [2, 3], [4, 5]] * 2
    assert rows["obs"].dtype == np.float32
    assert rows["info.x"].dtype == np.int16


def test_infos_of_later_episodes_are_reported(tmp_path: Path) -> None:
    """What has no place in a buffer was left out without a word."""
    h5py = need("h5py")
    infos: Any = {"infos/height": np.arange(4.0)}
    write_minari(tmp_path / "x", n=3, **infos)
    with h5py.File(tmp_path / "x" / "data" / "main_data.hdf5", "r+") as file:
        file["episode_1/infos/later/deep"] = np.arange(4.0)
        file["episode_2/infos/later/deep"] = np.arange(4.0)
    found = describe(tmp_path / "x")
    assert found.left_out == ["infos/later/deep of 2 episodes"]
    with pytest.raises(ValueError, match="infos/later/deep of 2 episodes"):
        ReplayBuffer.from_dataset(tmp_path / "x", strict=True)


def test_what_was_said_of_resets_is_reported(tmp_path: Path) -> None:
    """Seeds, options and infos of resets were left out without a word; zeros say nothing."""
    h5py = need("h5py")
    height = {"infos/height": np.array([np.nan, 1, 2, 3]), "infos/x": np.zeros(4)}
    write_minari(tmp_path / "x", n=2, **height)
    assert describe(tmp_path / "x").left_out == []
    with h5py.File(tmp_path / "x" / "data" / "main_data.hdf5", "r+") as file:
        file["episode_0"].attrs["seed"] = file["episode_1"].attrs["seed"] = 3
        file["episode_1"].attrs["options/place"] = 1.0
        file["episode_1/infos/height"][0] = 7
    told = ["infos/height of resets", "options of 1 resets", "seed of 2 resets"]
    assert describe(tmp_path / "x").left_out == told
    with pytest.warns(DataLossWarning, match=", ".join(told)):
        rb = ReplayBuffer.from_dataset(tmp_path / "x")
    assert rb.get_all_transitions()["info.height"].tolist() == [1, 2, 3] * 2


def test_seeds_of_resets_are_reported_with_arrow(tmp_path: Path) -> None:
    """The same, of the files of episodes."""
    write_minari_arrow(tmp_path, 2)
    (tmp_path / "data" / "1" / "metadata.json").write_text(json.dumps({"id": 1, "seed": 5}))
    assert "seed of 1 resets" in describe(tmp_path).left_out


def test_infos_of_later_episodes_are_reported_with_arrow(tmp_path: Path) -> None:
    """The same."""
    pa, parquet = need("pyarrow"), need("pyarrow.parquet")
    write_minari_arrow(tmp_path, 2)
    for k, infos in enumerate([{"height": 0.0}, {"height": 0.0, "later": {"deep": 1.0}}]):
        path = tmp_path / "data" / str(k) / "part-0.parquet"
        table = parquet.read_table(path).to_pydict()
        table["terminations"] = [False, True, False]
        parquet.write_table(pa.table({**table, "infos": [infos] * 3}), path)
    found = describe(tmp_path)
    assert found.left_out == ["infos/later/deep of 1 episodes"]


def test_of_two_data_sets_of_one_name_minaris_is_read(tmp_path: Path) -> None:
    """The other is reported."""
    more: Any = {
        "rew": np.full(3, 7.0),
        "next_obs": np.full(3, 7.0),
        "terminated": np.ones(3, bool),
    }
    write_minari(tmp_path / "x", **more)

    with pytest.warns(DataLossWarning, match=r": 3 data sets .*next_obs .*rew .*terminated "):
        rb = ReplayBuffer.from_dataset(tmp_path / "x")

    rows = rb.get_all_transitions()
    assert rows["rew"].tolist() == [1, 1, 1]
    assert rows["next_obs"].tolist() == [1, 2, 3]
    assert rows["terminated"].tolist() == [False, False, True]


def test_of_two_columns_of_one_name_minaris_is_read(tmp_path: Path) -> None:
    """With Arrow too."""
    pa, parquet = need("pyarrow"), need("pyarrow.parquet")
    folder = tmp_path / "data" / "0"
    folder.mkdir(parents=True)
    metadata = {"total_episodes": 1, "total_steps": 3, "data_format": "parquet"}
    (tmp_path / "data" / "metadata.json").write_text(json.dumps(metadata))
    columns = {
        "next_obs": [7.0] * 4,
        "rew": [7.0] * 4,
        "observations": [0.0, 1.0, 2.0, 3.0],
        "actions": [0.0] * 4,
        "rewards": [1.0, 1.0, 1.0, 0.0],
        "terminations": [False, False, True, False],
        "truncations": [False] * 4,
    }
    parquet.write_table(pa.table(columns), folder / "part-0.parquet")

    with pytest.warns(DataLossWarning, match=r": 2 data sets .*next_obs .*rew "):
        rb = ReplayBuffer.from_dataset(tmp_path)

    rows = rb.get_all_transitions()
    assert rows["rew"].ravel().tolist() == [1, 1, 1]
    assert rows["next_obs"].ravel().tolist() == [1, 2, 3]


# ---------------------------------------------------------------------- RLDS


def feature(dtype: str) -> dict[str, Any]:
    """A feature of one number."""
    tensor = {"dtype": dtype, "encoding": "none", "shape": {}}
    return {"pythonClassName": CORE + "tensor_feature.Tensor", "tensor": tensor}


def write_rlds(
    path: Path, *, dtype: str = "float32", actions: Any = (1, 2, 0), **more: Any
) -> Path:
    """A data set of TensorFlow Datasets' of one episode of two steps; its file of records."""
    names = {"observation": "float32", "action": dtype, "reward": "float32"}
    flags = dict.fromkeys(("is_first", "is_last", "is_terminal"), "bool")
    kinds = {**names, **flags, **dict.fromkeys(more, "float32")}
    steps: Any = {"featuresDict": {"features": {name: feature(kinds[name]) for name in kinds}}}
    found = {"featuresDict": {"features": {"steps": {"sequence": {"feature": steps}}}}}
    path.mkdir()
    (path / "features.json").write_text(json.dumps(found))
    values: dict[str, Any] = {
        "observation": np.arange(3, dtype=np.float32),
        "action": np.array(actions, np.float32),
        "reward": np.ones(3, np.float32),
        "is_first": np.arange(3) == 0,
        "is_last": np.arange(3) == 2,
        "is_terminal": np.arange(3) == 2,
        **more,
    }
    file = path / "x-train.tfrecord-00000-of-00001"
    with file.open("wb") as out:
        example = {f"steps/{name}": np.asarray(value) for name, value in values.items()}
        _tfrecord.write(out, dump_lists(example))
    return file


def test_splits_are_not_read_as_one(tmp_path: Path) -> None:
    """Those of a test would be trained on; shards of one split are one data set."""
    file = write_rlds(tmp_path / "x")
    shutil.copy(file, file.with_name("x-train.tfrecord-00001-of-00002"))
    assert describe(tmp_path / "x").rows == 4
    shutil.copy(file, file.with_name("x-test.tfrecord-00000-of-00001"))
    with pytest.raises(
        ValueError, match=r"one split, got those of \['test', 'train'\]: say split="
    ):
        describe(tmp_path / "x")
    assert describe(tmp_path / "x", split="train").rows == 4
    assert len(ReplayBuffer.from_dataset(tmp_path / "x", split="test")) == 2
    with pytest.raises(ValueError, match=r"split: expected one of \['test', 'train'\], got 'dev'"):
        describe(tmp_path / "x", split="dev")


def test_other_formats_have_no_splits(tmp_path: Path) -> None:
    """So none can be asked for."""
    none = [0] * 4
    chunk(tmp_path, is_first=none, is_last=none, is_terminal=none)
    with pytest.raises(ValueError, match="'dreamerv3' have no splits; got 'train'"):
        ReplayBuffer.from_dataset(tmp_path, split="train")


@pytest.mark.parametrize(
    ("dtype", "actions", "got"),
    [
        ("uint8", [0.5, 1.5, 300], r"\[0.5, 1.5, 300.0\]"),
        ("uint8", [1, 2, -1], r"\[-1.0\]"),
        ("int64", [1, np.nan, 2], r"\[nan\]"),
        ("bool", [0, 1, 2], r"\[2.0\]"),
        ("float16", [0, 1, 1e6], r"\[1000000.0\]"),
    ],
)
def test_numbers_that_a_feature_cannot_hold_are_refused(
    dtype: str, actions: list[float], got: str, tmp_path: Path
) -> None:
    """Nothing wraps, and nothing is cut off."""
    write_rlds(tmp_path / "x", dtype=dtype, actions=actions)
    match = rf"x-train.*: steps/action: expected numbers of {dtype}, got {got}"
    with pytest.raises(ValueError, match=match):
        ReplayBuffer.from_dataset(tmp_path / "x")


def test_numbers_that_a_feature_can_hold_are_read(tmp_path: Path) -> None:
    """A list of floats may hold integers; nan is one of the floats."""
    write_rlds(tmp_path / "x", dtype="uint8", actions=[3, 255, 0])
    rows = ReplayBuffer.from_dataset(tmp_path / "x").get_all_transitions()
    assert rows["act"].tolist() == [3, 255]
    write_rlds(tmp_path / "y", dtype="float64", actions=[np.nan, np.inf, 0])
    rows = ReplayBuffer.from_dataset(tmp_path / "y").get_all_transitions()
    np.testing.assert_array_equal(rows["act"], [np.nan, np.inf])


def test_of_two_features_of_one_name_that_of_rlds_is_read(tmp_path: Path) -> None:
    """The other is reported."""
    ones = np.full(3, 7, np.float32)
    write_rlds(tmp_path / "x", rew=ones, terminated=ones, next_obs=ones)

    with pytest.warns(DataLossWarning, match=r": 3 data sets .*rew .*terminated .*next_obs "):
        rb = ReplayBuffer.from_dataset(tmp_path / "x")

    rows = rb.get_all_transitions()
    assert rows["rew"].tolist() == [1, 1]
    assert rows["next_obs"].tolist() == [1, 2]
    assert rows["terminated"].tolist() == [False, True]


# ---------------------------------------------------------------------- DreamerV3


def chunk(path: Path, uuid: str = UUID, dtype: str = "f4", **flags: list[int]) -> Path:
    """A chunk of a stream whose steps count up."""
    n = len(flags["is_first"])
    steps = np.arange(n, dtype=dtype)
    marks: Any = {name: np.array(values, bool) for name, values in flags.items()}
    file = path / f"20260101T000000F00000{uuid[0]}-{uuid}-{'0' * 22}-{n}.npz"
    np.savez_compressed(file, vec=steps[:, None], action=steps[:, None], reward=steps, **marks)
    return file


@pytest.mark.parametrize("dtype", ["f4", ">f4"])
def test_what_follows_an_end_is_another_episode(dtype: str, tmp_path: Path) -> None:
    """With is_first or without: no transition goes over a reset. Numbers have any byte order."""
    ends = [0, 0, 1, 0, 0, 1]
    chunk(tmp_path, dtype=dtype, is_first=[1, 0, 0, 0, 0, 0], is_last=ends, is_terminal=ends)

    rb = ReplayBuffer.from_dataset(tmp_path)

    rows = rb.get_all_transitions()
    assert rows["obs.vec"].ravel().tolist() == [0, 1, 3, 4]
    assert rows["next_obs.vec"].ravel().tolist() == [1, 2, 4, 5]
    assert rows["obs.vec"].dtype == np.float32
    assert [(one.length, one.terminated) for one in rb.episodes.list()] == [(2, True), (2, True)]


def test_streams_that_begin_within_an_episode_are_reported(tmp_path: Path) -> None:
    """But for the oldest one, whose episode is not complete in the buffer."""
    for k in "12":
        chunk(tmp_path, k * 22, is_first=[0, 0, 1, 0], is_last=[0, 1, 0, 1], is_terminal=[0] * 4)
    with pytest.warns(DataLossWarning, match="that the first steps of 1 episodes are lacking"):
        rb = ReplayBuffer.from_dataset(tmp_path)
    assert [one.complete for one in rb.episodes.list()] == [False, True, True, True]
    with pytest.raises(ValueError, match="first steps of 1 episodes"):
        ReplayBuffer.from_dataset(tmp_path, strict=True)


def test_nothing_is_allocated_because_a_directory_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few bytes cannot unpack to many times as many."""
    none = [0] * 5000
    chunk(tmp_path, is_first=none, is_last=none, is_terminal=none)
    monkeypatch.setattr(_npz, "MOST_RATIO", 2)
    with pytest.raises(ValueError, match=r"'is_first\.npy': \d+ bytes cannot unpack to 5128"):
        describe(tmp_path)


def test_a_chunk_that_the_memory_has_no_room_for_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Zeros pack to a thousandth, so a small folder may want more than the machine has."""
    none = [0] * 5000
    chunk(tmp_path, is_first=none, is_last=none, is_terminal=none)
    monkeypatch.setattr(machine_memory, "CHECKED_NBYTES", 6000)
    monkeypatch.setattr(machine_memory, "available_nbytes", lambda: 10_000)
    with pytest.raises(MemoryError, match=r"'vec\.npy' needs 19.7 KiB of memory"):
        ReplayBuffer.from_dataset(tmp_path)


def test_steps_behind_those_that_count_take_no_memory(tmp_path: Path) -> None:
    """The name says how many steps count."""
    file = chunk(tmp_path, is_first=[1, 0, 0, 1], is_last=[0, 0, 1, 0], is_terminal=[0] * 4)
    file.rename(file.with_name(file.name.replace("-4.npz", "-3.npz")))
    rb = ReplayBuffer.from_dataset(tmp_path)
    assert rb.get_all_transitions()["obs.vec"].ravel().tolist() == [0, 1]
    with _dreamerv3._opened(next(tmp_path.glob("*.npz"))) as archive:
        assert _dreamerv3._array(archive, "vec", 3).base is None


# ---------------------------------------------------------------------- episodes without an end


def write_minari_arrow(path: Path, n: int, **more: Any) -> None:
    """Episodes of two steps as Parquet, none of which has ended."""
    pa, parquet = need("pyarrow"), need("pyarrow.parquet")
    columns: Any = {name: [0.0, 1.0, 2.0] for name in ("observations", "actions", "rewards")}
    columns |= {name: [False] * 3 for name in ("terminations", "truncations")}
    columns |= more
    for k in range(n):
        (path / "data" / str(k)).mkdir(parents=True)
        parquet.write_table(pa.table(columns), path / "data" / str(k) / "part-0.parquet")
    metadata = {"total_episodes": n, "total_steps": 2 * n, "data_format": "parquet"}
    (path / "data" / "metadata.json").write_text(json.dumps(metadata))


def three_without_an_end(path: Path, format: str) -> None:  # noqa: A002 (as the option is called)
    """Three episodes, none of which has a mark of its end."""
    if format == "dreamerv3":
        path.mkdir()
        for k in "123":
            chunk(path, k * 22, is_first=[1, 0, 0], is_last=[0] * 3, is_terminal=[0] * 3)
    elif format == "minari":
        write_minari(path, n=3, terminations=np.zeros(3, bool))
    elif format == "minari-arrow":
        write_minari_arrow(path, 3)
    elif format == "rlds":
        file = write_rlds(path, is_last=np.zeros(3, bool), is_terminal=np.zeros(3, bool))
        for number in (1, 2):
            shutil.copy(file, file.with_name(f"x-train.tfrecord-{number:05}-of-00003"))
    else:
        pa, parquet = need("pyarrow"), need("pyarrow.parquet")
        flags: Any = dict.fromkeys(("terminateds", "truncateds"), [False] * 6)
        steps = {name: [0.0] * 6 for name in ("obs", "new_obs", "actions", "rewards")}
        parquet.write_table(pa.table({"eps_id": [1, 1, 2, 2, 3, 3], **steps, **flags}), path)


@pytest.mark.parametrize("format", ["dreamerv3", "minari", "minari-arrow", "rlds", "rllib"])
def test_an_end_that_is_made_is_reported(format: str, tmp_path: Path) -> None:  # noqa: A002
    """A buffer has one open episode, its newest: others became truncated without a word."""
    path = tmp_path / "x"
    three_without_an_end(path, format)

    with pytest.warns(DataLossWarning, match="that 2 episodes before the newest have no end"):
        rb = ReplayBuffer.from_dataset(path, resume=True)

    assert [one.truncated for one in rb.episodes.list()] == [True, True, False]
    assert rb.get_current_episode_len() > 0
    assert len(describe(path).left_out) == 1
    with pytest.raises(ValueError, match="2 episodes before the newest"):
        ReplayBuffer.from_dataset(path, strict=True)


@pytest.mark.parametrize("format", ["dreamerv3", "minari", "minari-arrow", "rlds", "rllib"])
@pytest.mark.filterwarnings("ignore::cpprb_like.errors.DataLossWarning")
def test_steps_that_are_added_to_a_data_set_begin_an_episode(
    format: str,  # noqa: A002
    tmp_path: Path,
) -> None:
    """The first steps of a run joined the newest episode of the files, unless it goes on."""
    path = tmp_path / "x"
    three_without_an_end(path, format)
    *before, newest = [one.length for one in describe(path).episodes]
    for resume, after in ((False, [newest, 2]), (True, [newest + 2])):
        rb = ReplayBuffer.from_dataset(path, capacity=100, resume=resume)
        row = rb[0]
        for _ in range(2):
            rb.add(**row)
        listed = rb.episodes.list()
        assert [one.length for one in listed] == [*before, *after]
        assert [one.truncated for one in listed] == [True] * (len(listed) - 1) + [False]


# ---------------------------------------------------------------------- flags inside


@pytest.mark.parametrize("name", ["terminations", "truncations"])
@pytest.mark.parametrize("storage", ["hdf5", "arrow"])
def test_end_flags_inside_an_episode_of_minari_are_refused(
    storage: str, name: str, tmp_path: Path
) -> None:
    """The row at the flag got the first observation of another episode as its next one."""
    path, flags = tmp_path / "x", {name: np.array([True, False, False])}
    if storage == "hdf5":
        write_minari(path, n=2, **flags)
    else:
        write_minari_arrow(path, 2, **flags)
    for read in (describe, ReplayBuffer.from_dataset):
        with pytest.raises(ValueError, match=rf"x: episode_0/{name}: .*, only; .* step 0 too"):
            read(path)


def test_flags_inside_a_record_of_rlds_part_episodes(tmp_path: Path) -> None:
    """A row went from the final observation of one episode to the first one of the next.

    A last, a terminal or a first step in the middle of a record parts it.
    """
    last = np.array([0, 0, 1, 0, 0, 0, 1], bool)
    first, none = np.roll(last, 1), np.zeros(7, bool)
    more: Any = {name: np.arange(7, dtype="f4") for name in ("observation", "reward")}
    for name, flags in {
        "both": (first, last, none),
        "last": (first & (np.arange(7) == 0), last, none),
        "terminal": (first & (np.arange(7) == 0), none, last),
        "first": (first, np.arange(7) == 6, none),
    }.items():
        marks = dict(zip(("is_first", "is_last", "is_terminal"), flags, strict=True))
        write_rlds(tmp_path / name, actions=np.zeros(7), **more, **marks)
        with warnings.catch_warnings():
            warnings.simplefilter("error" if name != "first" else "ignore")
            rb = ReplayBuffer.from_dataset(tmp_path / name)
        rows = rb.get_all_transitions()
        assert rows["obs"].tolist() == [0, 1, 3, 4, 5]
        assert rows["next_obs"].tolist() == [1, 2, 4, 5, 6]
        assert rows["rew"].tolist() == [0, 1, 3, 4, 5]
        ends = [(one.length, one.terminated) for one in rb.episodes.list()]
        assert ends == [(2, name == "terminal"), (3, name == "terminal")]


def test_a_terminal_step_of_dreamerv3_is_a_last_one(tmp_path: Path) -> None:
    """A row went on from it to the first observation of the next episode."""
    terminal, none = [0, 0, 1, 0, 0, 1], [0] * 6
    chunk(tmp_path, is_first=[1, 0, 0, 0, 0, 0], is_last=none, is_terminal=terminal)
    rows = ReplayBuffer.from_dataset(tmp_path).get_all_transitions()
    assert rows["obs.vec"].ravel().tolist() == [0, 1, 3, 4]
    assert rows["next_obs.vec"].ravel().tolist() == [1, 2, 4, 5]


# ---------------------------------------------------------------------- several environments


def test_episodes_that_are_cut_do_not_become_complete_in_silence(tmp_path: Path) -> None:
    """A buffer of one environment can say it of its oldest episode only."""
    number: Any = {"shape": ()}
    fields: Any = {"obs": number, "act": number, "rew": number, "done": number}
    rb = ReplayBuffer(20, fields, n_envs=2, next_of="obs")
    for t in range(14):
        ends = [t % 6 == 5, t % 7 == 6]
        rb.add(obs=[t, t], next_obs=[t + 1, t + 1], act=[0, 0], rew=[t, t], done=ends)
    path = tmp_path / "x"
    rb.export(path, "dreamerv3", strict=True)
    assert [one.complete for one in rb.episodes.list()].count(False) > 1

    with pytest.warns(DataLossWarning, match="that the first steps of 1 episodes are lacking"):
        read = ReplayBuffer.from_dataset(path)

    assert len(read) == len(rb)
    with pytest.raises(ValueError, match="first steps of 1 episodes"):
        ReplayBuffer.from_dataset(path, strict=True)
