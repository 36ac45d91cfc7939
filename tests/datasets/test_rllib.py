"""RLlib's columns, as its offline reader takes them, and Parquet files that others wrote."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from optional import need

from cpprb_like import ReplayBuffer
from cpprb_like.datasets import describe
from cpprb_like.errors import DataLossWarning

pa = need("pyarrow")
parquet = need("pyarrow.parquet")

Table = dict[str, Any]


ids_are_told = pytest.mark.filterwarnings("ignore:.*eps_id:cpprb_like.errors.DataLossWarning")


def theirs() -> Table:
    """Steps as RLlib records them: two episodes, the second not ended."""
    return {
        "eps_id": ["a"] * 3 + ["b"] * 2,
        "obs": [[float(k), k + 0.5] for k in range(5)],
        "actions": [0, 1, 2, 0, 1],
        "rewards": [0.5] * 5,
        "terminateds": [False, False, True, False, False],
        "truncateds": [False] * 5,
    }


@ids_are_told
def test_next_observations_are_taken_within_an_episode(tmp_path: Path) -> None:
    """The last step of an episode has none: it is left out, unless it is terminated."""
    parquet.write_table(pa.table(theirs()), tmp_path / "x.parquet")

    with pytest.warns(DataLossWarning, match=r"; 1 of 5 steps are left out, .* their next_obs:"):
        rb = ReplayBuffer.from_dataset(tmp_path / "x.parquet")

    rows = rb.get_all_transitions()
    assert [one.length for one in rb.episodes.list()] == [3, 1]
    assert rows["next_obs"].tolist() == [[1, 1.5], [2, 2.5], [2, 2.5], [4, 4.5]]


def test_a_folder_of_files_is_read(tmp_path: Path) -> None:
    """Without ``t`` an episode ends where its file does; a column of bytes has no place."""
    table = {**theirs(), "new_obs": theirs()["obs"], "note": [b"x"] * 5}
    for k in range(2):
        parquet.write_table(pa.table(table), tmp_path / f"{k}.parquet")

    with pytest.warns(DataLossWarning, match="note"):
        rb = ReplayBuffer.from_dataset(tmp_path)

    assert [one.length for one in rb.episodes.list()] == [3, 2, 3, 2]
    assert rb.columns["obs"].shape == (2,)


@pytest.mark.parametrize("column", ["eps_id", "agent_id", "module_id"])
def test_names_of_episodes_and_agents_are_stored_or_reported(column: str, tmp_path: Path) -> None:
    """Numbers are a field, and text has no place; both were left out without a word."""
    table = {**theirs(), "eps_id": [3, 3, 3, 7, 7], column: [3, 3, 3, 7, 7]}
    table["new_obs"] = table["obs"]
    parquet.write_table(pa.table(table), tmp_path / "x.parquet")
    rb = ReplayBuffer.from_dataset(tmp_path / "x.parquet", strict=True)
    assert rb.get_all_transitions()[column].tolist() == [3, 3, 3, 7, 7]
    rb.export(tmp_path / "z.parquet")
    again = ReplayBuffer.from_dataset(tmp_path / "z.parquet", strict=True)
    assert again.get_all_transitions()[f"{column}_"].tolist() == [3, 3, 3, 7, 7]
    parquet.write_table(pa.table({**table, column: list("aaabb")}), tmp_path / "y.parquet")
    assert describe(tmp_path / "y.parquet").left_out == [f"{column} (string)"]
    with pytest.raises(ValueError, match=rf"{column} \(string\)"):
        ReplayBuffer.from_dataset(tmp_path / "y.parquet", strict=True)


def test_lists_of_several_lengths_at_two_levels_are_refused(tmp_path: Path) -> None:
    """The message names the file and the column; others of them are left out."""
    lists = [[[1.0], []], [[2.0]], [], [[3.0, 4.0]], []]
    parquet.write_table(pa.table({**theirs(), "obs": lists}), tmp_path / "x.parquet")
    with pytest.raises(ValueError, match=r"obs: expected numbers, got double in lists .*2 levels"):
        ReplayBuffer.from_dataset(tmp_path / "x.parquet")
    parquet.write_table(pa.table({**theirs(), "more": lists}), tmp_path / "y.parquet")
    assert "more (double in lists" in " ".join(describe(tmp_path / "y.parquet").left_out)


def test_ours_has_the_columns_of_rllib(tmp_path: Path) -> None:
    """A row a step, with nested observations as structs, and its own columns as they are."""
    flag: Any = {"shape": (), "dtype": bool}
    fields: Any = {
        "obs.a": {"shape": 2},
        "obs.b": {"shape": (), "dtype": "i8"},
        "act": {"shape": (), "dtype": "i8"},
        "rew": {"shape": 1},
        "terminated": flag,
        "truncated": flag,
        "logp": {"shape": ()},
    }
    rb = ReplayBuffer(10, fields, next_of=["obs.a", "obs.b"])
    for t in range(4):
        step = {"act": t, "rew": [t], "terminated": t == 1, "truncated": False, "logp": -t}
        following = {"next_obs.a": [t + 1, 1], "next_obs.b": t + 1}
        rb.add(**{"obs.a": [t, 0], "obs.b": t}, **step, **following)
    rb.export(tmp_path / "x.parquet")

    found = parquet.read_table(tmp_path / "x.parquet").to_pylist()

    assert found[2] == {
        "eps_id": "1",
        "t": 0,
        "obs": {"a": [2.0, 0.0], "b": 2},
        "new_obs": {"a": [3.0, 1.0], "b": 3},
        "actions": 2,
        "rewards": 2.0,
        "terminateds": False,
        "truncateds": False,
        "logp": -2.0,
    }
    np.testing.assert_array_equal([row["eps_id"] for row in found], ["0", "0", "1", "1"])


def timed(ids: list[str], times: list[int], **columns: Any) -> Any:
    """Rows whose observation tells the episode and the step."""
    n = len(ids)
    table: Table = {
        "eps_id": ids,
        "t": times,
        "obs": [[100.0 * int(name) + t] for name, t in zip(ids, times, strict=True)],
        "actions": [0.0] * n,
        "rewards": [1.0] * n,
        "terminateds": [False] * n,
        "truncateds": [False] * n,
    }
    return pa.table({**table, **columns})


@pytest.mark.parametrize(
    ("ids", "times", "match"),
    [
        (["0", "1"] * 2, [0, 0, 2, 2], "'0': expected t to count the steps, got 2 after 0"),
        (["0"] * 4, [3, 2, 1, 0], "t to count the steps, got 2 after 3"),
        (["0"] * 4, [0, 1, 7, 8], "got 7 after 1"),
    ],
)
@pytest.mark.parametrize("new_obs", [False, True])
def test_rows_out_of_order_are_refused(
    ids: list[str], times: list[int], match: str, new_obs: bool, tmp_path: Path
) -> None:
    """No transition is made of rows that do not follow one another."""
    more = {"new_obs": [[0.0]] * len(ids)} if new_obs else {}
    parquet.write_table(timed(ids, times, **more), tmp_path / "x.parquet")
    with pytest.raises(
        ValueError, match=rf"x\.parquet: .*{match}.*: sort .* by eps_id, agent_id and t$"
    ):
        ReplayBuffer.from_dataset(tmp_path / "x.parquet")


@ids_are_told
def test_rows_of_several_agents_are_distinguished(tmp_path: Path) -> None:
    """Those of one agent are an episode; side by side they are refused unless ``t`` goes on."""
    path = tmp_path / "x.parquet"
    parquet.write_table(timed(["0"] * 4, [0, 1, 0, 1], agent_id=["a", "a", "b", "b"]), path)
    assert [one.length for one in describe(path).episodes] == [2, 2]
    parquet.write_table(timed(["0"] * 4, [0, 0, 1, 1], agent_id=["a", "b"] * 2), path)
    assert [one.length for one in describe(path).episodes] == [2, 2]
    parquet.write_table(timed(["0"] * 4, [0, 0, 3, 1], agent_id=["a", "b"] * 2), path)
    with pytest.raises(ValueError, match=r"by eps_id, agent_id and t$"):
        ReplayBuffer.from_dataset(path)


def test_an_episode_goes_on_in_the_next_file(tmp_path: Path) -> None:
    """Where its ``t`` does; one of the same name that begins anew is another."""
    parquet.write_table(timed(["0", "1", "1"], [0, 0, 1]), tmp_path / "0.parquet")
    parquet.write_table(timed(["1", "1"], [2, 3]), tmp_path / "1.parquet")
    parquet.write_table(timed(["1", "1"], [0, 1]), tmp_path / "2.parquet")

    with pytest.warns(DataLossWarning, match="that 2 episodes before the newest have no end"):
        rb = ReplayBuffer.from_dataset(tmp_path)

    rows = rb.get_all_transitions()
    assert [one.length for one in rb.episodes.list()] == [3, 1]
    assert rows["next_obs"].ravel().tolist() == [101, 102, 103, 101]


def test_episodes_go_on_by_turns_where_t_does(tmp_path: Path) -> None:
    """In one file and over files: a step is of the episode whose count it goes on."""
    tables = (["0", "1"] * 2, [0, 0, 1, 1]), (["0", "1"], [2, 2])
    for number, (ids, times) in enumerate(tables):
        steps = [[float(10 * int(name) + t)] for name, t in zip(ids, times, strict=True)]
        parquet.write_table(timed(ids, times, obs=steps), tmp_path / f"{number}.parquet")

    with pytest.warns(DataLossWarning, match="2 of 6 steps are left out"):
        rb = ReplayBuffer.from_dataset(tmp_path)

    rows = rb.get_all_transitions()
    assert [one.length for one in rb.episodes.list()] == [2, 2]
    assert rows["obs"].ravel().tolist() == [0, 1, 10, 11]
    assert rows["next_obs"].ravel().tolist() == [1, 2, 11, 12]


def test_steps_without_names_of_episodes_begin_at_0(tmp_path: Path) -> None:
    """``t`` alone tells where an episode begins."""
    table = timed(["0"] * 5, [0, 1, 2, 0, 1]).drop_columns("eps_id")
    parquet.write_table(table, tmp_path / "x.parquet")
    assert [one.length for one in describe(tmp_path / "x.parquet").episodes] == [3, 2]


def test_without_names_of_episodes_next_observations_show_where_they_end(tmp_path: Path) -> None:
    """Two episodes were read as one where neither names, nor steps, nor flags tell them apart."""
    steps = np.r_[np.arange(4.0), np.arange(10.0, 13.0)]
    table = {"obs": steps, "new_obs": steps + 1, "actions": steps, "rewards": steps}
    parquet.write_table(pa.table(table), tmp_path / "x.parquet")
    with pytest.warns(DataLossWarning, match="1 episodes before the newest have no end"):
        rb = ReplayBuffer.from_dataset(tmp_path / "x.parquet")
    assert [one.length for one in rb.episodes.list()] == [4, 3]


def test_two_columns_of_one_name_are_reported(tmp_path: Path) -> None:
    """RLlib's own has the field; and no other has that of a next observation."""
    more = {"terminated": [True, False], "next_obs": [5.0, 6.0], "rewards": [1.0, 2.0]}
    table = timed(["0", "0"], [0, 1], **more)
    parquet.write_table(table, tmp_path / "x.parquet")

    with pytest.warns(DataLossWarning, match=r"terminated .*next_obs .*; 1 of 2 steps are left"):
        rb = ReplayBuffer.from_dataset(tmp_path / "x.parquet")

    rows = rb.get_all_transitions()
    assert not rows["terminated"].any()
    assert rows["next_obs"].ravel().tolist() == [1]


# ---------------------------------------------------------------------- as RLlib records


class RayTensor(pa.ExtensionType):  # type: ignore[misc, name-defined]
    """What Ray makes known to pyarrow when it is imported."""

    def __init__(self, storage: Any = pa.large_list(pa.float32()), shape: Any = (1,)) -> None:  # noqa: B008
        self._shape = shape
        super().__init__(storage, "ray.data.arrow_tensor_v2")

    def __arrow_ext_serialize__(self) -> bytes:
        """The shape as JSON."""
        return json.dumps(self._shape).encode()

    @classmethod
    def __arrow_ext_deserialize__(cls, storage: Any, serialized: bytes) -> RayTensor:
        """The type of a shape."""
        return cls(storage, json.loads(serialized))


@pytest.fixture(params=[False, True], ids=["Ray not imported", "Ray imported"])
def has_ray(request: pytest.FixtureRequest) -> Iterator[bool]:
    """Whether pyarrow knows the type in the process that reads."""
    if request.param:
        pa.register_extension_type(RayTensor())
        yield True
        pa.unregister_extension_type("ray.data.arrow_tensor_v2")
    else:
        yield False


def as_ray(values: np.ndarray[Any, Any], shape: Any = None) -> Any:
    """Tensors as Ray has them: a flat list for each row, of a type that has the shape."""
    n, size = len(values), values[0].size
    stored = pa.LargeListArray.from_arrays(np.arange(n + 1) * size, pa.array(values.reshape(-1)))
    kind = RayTensor(stored.type, values.shape[1:] if shape is None else shape)
    return pa.ExtensionArray.from_storage(kind, stored)


def frames(n: int) -> np.ndarray[Any, Any]:
    """Images that differ."""
    return np.random.default_rng(n).integers(0, 256, (n, 4, 5, 3), np.uint8)


def uid(number: int) -> str:
    """A name as RLlib gives them."""
    return f"{number:032x}"


def recorded(episodes: list[tuple[int, int, int, bool]], steps: int = 99) -> Any:
    """Rows as RLlib records them: of episodes by number, from one step to before another.

    Each episode has observations of its own; its step tells where in them a row is.
    """
    rows: dict[str, list[Any]] = {}
    for number, start, stop, ends in episodes:
        obs = np.random.default_rng(number).normal(size=(steps + 1, 3)).astype(np.float32)
        for t in range(start, stop):
            row = {
                "eps_id": uid(number),
                "agent_id": None,
                "obs": obs[t],
                "actions": t,
                "rewards": float(number),
                "new_obs": obs[t + 1],
                "terminateds": ends and t == stop - 1,
                "truncateds": False,
            }
            for name, value in row.items():
                rows.setdefault(name, []).append(value)
    tensors = {name: as_ray(np.stack(rows[name])) for name in ("obs", "new_obs")}
    return pa.table({**rows, **tensors})


def record(path: Path, run: int, blocks: list[Any]) -> Path:
    """The files of one run of a recorder, in its folders."""
    folder = path / "cartpoleenv" / f"run-000000-{run:05}"
    folder.mkdir(parents=True)
    for k, block in enumerate(blocks):
        parquet.write_table(block, folder / f"035_18ca_{k:06}-0.parquet")
    return path


@ids_are_told
def test_tensors_of_ray_keep_their_shape(has_ray: bool, tmp_path: Path) -> None:
    """Images were flat, and left out where Ray was imported."""
    images = frames(6)
    table = {**theirs(), "obs": as_ray(images[:5]), "new_obs": as_ray(images[1:])}
    table["actions"] = as_ray(np.arange(10, dtype=np.float16).reshape(5, 2) / 4)
    table["mask"] = as_ray(images[:5, 0, :2, 0] > 99)
    parquet.write_table(pa.table(table), tmp_path / "x.parquet")

    assert (
        pa.types.is_large_list(parquet.read_schema(tmp_path / "x.parquet").field("obs").type)
    ) != has_ray
    rows = ReplayBuffer.from_dataset(tmp_path / "x.parquet").get_all_transitions()

    np.testing.assert_array_equal(rows["obs"], images[:5])
    np.testing.assert_array_equal(rows["next_obs"], images[1:])
    assert [rows[name].dtype.char for name in ("obs", "act", "mask")] == ["B", "e", "?"]
    assert rows["act"].tolist() == [[0, 0.25], [0.5, 0.75], [1, 1.25], [1.5, 1.75], [2, 2.25]]
    np.testing.assert_array_equal(rows["mask"], images[:5, 0, :2, 0] > 99)


def test_arrays_are_written_as_tensors_of_ray(
    has_ray: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Images, as nested lists, were arrays of Python objects in RLlib; they come back here too."""
    number: Any = {"shape": ()}
    image: Any = {"shape": (4, 5, 3), "dtype": "u1"}
    fields: Any = {"obs.a": image, "obs.b": {"shape": 2}, "act": number, "rew": number}
    fields |= {"mask": {"shape": (2, 3), "dtype": bool}}
    rb = ReplayBuffer(8, fields, next_of=["obs.a", "obs.b"])
    rng = np.random.default_rng(0)
    for images in frames(10).reshape(5, 2, 4, 5, 3):
        parts = {"obs.a": images[0], "next_obs.a": images[1], "obs.b": [1, 2], "next_obs.b": [3, 4]}
        rb.add(**parts, act=1, rew=2, mask=rng.random((2, 3)) > 0.5)
    monkeypatch.setattr("cpprb_like.datasets._from_buffer.CHUNK_NBYTES", 1)  # a row in each group
    rb.export(tmp_path / "x.parquet")

    schema = parquet.read_schema(tmp_path / "x.parquet")
    if not has_ray:
        assert schema.field("mask").metadata == {
            b"ARROW:extension:name": b"ray.data.arrow_tensor_v2",
            b"ARROW:extension:metadata": b"[2, 3]",
        }
        assert (
            schema.field("obs").type.field("a").metadata[b"ARROW:extension:metadata"]
            == b"[4, 5, 3]"
        )
        assert schema.field("mask").type == pa.large_list(pa.bool_())
    again = ReplayBuffer.from_dataset(tmp_path / "x.parquet", strict=True).get_all_transitions()
    for name, values in rb.get_all_transitions().items():
        assert again[name].dtype == values.dtype
        np.testing.assert_array_equal(again[name], values)


@pytest.mark.usefixtures("has_ray")
@pytest.mark.parametrize(
    ("shape", "words"),
    [
        ([7], r"obs: expected 7 values of a tensor of shape \(7,\), got \(60,\)"),
        ([1 << 40, 1 << 40], "obs: expected .* values of a tensor"),
        ([-4, -15], r"expected the shape of a tensor, got \[-4, -15\]"),
        ("shape", r"expected the shape of a tensor, got \"shape\""),
    ],
)
def test_a_wrong_shape_of_a_tensor_is_refused(shape: Any, words: str, tmp_path: Path) -> None:
    """Whatever is written beside the values."""
    table = pa.table({**theirs(), "obs": as_ray(frames(5))})
    written = {b"ARROW:extension:name": b"ray.data.arrow_tensor_v2"}
    written[b"ARROW:extension:metadata"] = json.dumps(shape).encode()
    plain = table.column("obs").combine_chunks().storage
    place = table.schema.get_field_index("obs")
    table = table.set_column(place, pa.field("obs", plain.type, metadata=written), plain)
    parquet.write_table(table, tmp_path / "x.parquet")
    with pytest.raises(ValueError, match=rf"x\.parquet: .*{words}"):
        describe(tmp_path / "x.parquet")


def test_what_ray_pickles_is_left_out_by_its_name(tmp_path: Path) -> None:
    """Tensors of several shapes came as two fields that say nothing."""
    several = pa.array([{"data": [1.0] * 4, "shape": [2, 2]}] * 5)
    kinds = {
        "several": (several, b"ray.data.arrow_variable_shaped_tensor"),
        "pickled": (pa.array([b"?"] * 5), b"ray.data.arrow_pickled_object"),
    }
    fixed = pa.FixedShapeTensorArray.from_numpy_ndarray(np.zeros((5, 2, 2)))
    known = {**theirs(), "eps_id": [0, 0, 0, 1, 1], "new_obs": theirs()["obs"]}
    table = pa.table({**known, "nothing": pa.nulls(5)})
    for name, (values, kind) in kinds.items():
        field = pa.field(name, values.type, metadata={b"ARROW:extension:name": kind})
        table = table.append_column(field, values)
    table = table.append_column("fixed", fixed)
    parquet.write_table(table, tmp_path / "x.parquet")
    assert describe(tmp_path / "x.parquet").left_out == [
        "several (ray.data.arrow_variable_shaped_tensor)",
        "pickled (ray.data.arrow_pickled_object)",
        "fixed (arrow.fixed_shape_tensor)",
    ]


@pytest.mark.parametrize("column", ["obs", "actions", "new_obs"])
def test_observations_that_rllib_packed_are_refused(column: str, tmp_path: Path) -> None:
    """A buffer without them was made, with a warning."""
    table = {**theirs(), "new_obs": theirs()["obs"], column: ["BCJNGGhAjwAAAAAAAAAdigAA"] * 5}
    parquet.write_table(pa.table(table), tmp_path / "x.parquet")
    with pytest.raises(ValueError, match=rf"{column}: .*string.*output_compress_columns=\[\]"):
        describe(tmp_path / "x.parquet")


def test_episodes_that_rllib_packed_are_refused(tmp_path: Path) -> None:
    """They are what it records by default."""
    parquet.write_table(pa.table({"item": [b"\xde\x00\x12"]}), tmp_path / "x.parquet")
    with pytest.raises(ValueError, match=r"item: .*whole episodes.*output_write_episodes=False"):
        describe(tmp_path / "x.parquet")


def lengths(path: Path) -> list[tuple[int, bool]]:
    """Of the episodes, with whether they are open."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataLossWarning)
        rb = ReplayBuffer.from_dataset(path)
    for number in range(len(rb.episodes.list())):
        rows = rb.episodes.read(number)
        np.testing.assert_array_equal(rows["next_obs"][:-1], rows["obs"][1:])
        np.testing.assert_array_equal(np.diff(rows["act"]), 1)
        assert len(set(rows["rew"].tolist())) == 1
    return [(one.length, one.is_open) for one in describe(path).episodes]


@pytest.mark.usefixtures("has_ray")
def test_an_episode_goes_on_in_the_files_of_a_recorder(tmp_path: Path) -> None:
    """Which has no ``t``: each row of 200 files of a run was an episode of its own."""
    blocks = [recorded([(1, t, t + 1, t == 6)]) for t in range(7)]
    record(tmp_path, 1, [*blocks, recorded([(2, 0, 3, False)])])
    record(tmp_path, 2, [recorded([(2, 3, 5, True), (3, 0, 2, False)])])
    assert lengths(tmp_path) == [(7, False), (5, False), (2, True)]
    assert lengths(tmp_path / "cartpoleenv") == lengths(tmp_path)
    assert lengths(tmp_path / "cartpoleenv" / "run-000000-00001") == [(7, False), (3, True)]


def test_episodes_of_a_recorder_go_on_by_turns(tmp_path: Path) -> None:
    """Those of several environments, in one file and over runs."""
    one = recorded([(1, 0, 4, False), (2, 0, 4, False), (1, 4, 6, True), (3, 0, 1, False)])
    record(tmp_path, 1, [one])
    record(
        tmp_path, 2, [recorded([(2, 4, 9, False), (3, 1, 7, True)]), recorded([(2, 9, 11, True)])]
    )
    assert lengths(tmp_path) == [(6, False), (11, False), (7, False)]


def test_a_gap_in_what_was_recorded_is_no_transition(tmp_path: Path) -> None:
    """RLlib loses rows when a sample fills several files; what follows is another episode."""
    record(tmp_path, 1, [recorded([(1, 0, 4, False)])])
    record(tmp_path, 2, [recorded([(1, 6, 9, True)])])
    with pytest.warns(DataLossWarning, match="that 1 episodes before the newest have no end"):
        ReplayBuffer.from_dataset(tmp_path)
    assert lengths(tmp_path) == [(4, False), (3, False)]


def test_rows_that_are_recorded_twice_are_refused(tmp_path: Path) -> None:
    """RLlib records all earlier rows with each run unless an option limits the rows of a file."""
    record(tmp_path, 1, [recorded([(1, 0, 4, True)])])
    record(tmp_path, 2, [recorded([(1, 0, 4, True), (2, 0, 3, False)])])
    with pytest.raises(ValueError, match=r"again.*output_max_rows_per_file") as error:
        describe(tmp_path)
    assert str(error.value).count(".parquet") == 1
    assert str(error.value).startswith(str(tmp_path / "cartpoleenv" / "run-000000-00002"))
    last = tmp_path / "cartpoleenv" / "run-000000-00002"
    assert lengths(last) == [(4, False), (3, True)]


def test_many_files_are_read_with_one_open(tmp_path: Path) -> None:
    """As a recorder leaves more of them than a process may have open."""
    resource = need("resource")
    record(tmp_path, 1, [recorded([(1, t, t + 1, False)]) for t in range(90)])
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.dup(0)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free + 20, hard))
    try:
        assert lengths(tmp_path) == [(90, True)]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
