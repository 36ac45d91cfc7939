"""Values of any length in data sets: carried, or left out by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dataset_cases import (
    ANY_LENGTH,
    HAS_LISTS,
    HAS_TEXTS,
    LISTS,
    ROOM,
    STRINGS,
    name_in,
    of_any_length,
    place,
    rows_of,
    same_rows,
)
from optional import need

from cpprb_like import ReplayBuffer
from cpprb_like.datasets import FORMATS, describe
from cpprb_like.errors import DataLossWarning

pytestmark = [
    pytest.mark.filterwarnings(
        "ignore:.*the buffer does not know the observation_space:UserWarning"
    ),
    pytest.mark.filterwarnings("ignore:lerobot. the files do not have:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*steps are left out:UserWarning"),
]
every_format = pytest.mark.parametrize("format", FORMATS)
NUMBER: Any = {"shape": ()}


def held(format: str) -> list[str]:  # noqa: A002 (the option)
    """The fields of any length that a format holds."""
    return [*(LISTS if format in HAS_LISTS else []), *(["say"] if format in HAS_TEXTS else [])]


@every_format
def test_what_a_format_holds_is_read_and_the_rest_is_named(format: str, tmp_path: Path) -> None:  # noqa: A002
    """Each value is that of the buffer, and the warning names the others, with a remedy."""
    need("h5py")
    need("pyarrow")
    rb, path = (
        of_any_length(STRINGS if format != "minari" else ["", "a", "🙂 漢"]),
        place(tmp_path, format),
    )
    lost = [name for name in (*LISTS, "say") if name not in held(format)]
    if lost:
        with pytest.raises(
            ValueError, match=rf"{len(lost)} fields cannot.*'{lost[-1]}' \(.* of any"
        ):
            rb.export(path, format, strict=True)
        assert not list(tmp_path.iterdir())
        with pytest.warns(DataLossWarning, match="'rllib' and 'rlds' hold values of any length"):
            rb.export(path, format)
    else:
        rb.export(path, format)

    found = describe(path)
    read = ReplayBuffer.from_dataset(path, resume=True)

    for name in (*LISTS, "say"):
        other = name_in(format, name)
        assert (other in read.fields) == (name in held(format))
        if name in held(format):
            axes = {"nodes": ("nodes", 11), "edges": (2, "edges"), "say": ()}
            dtype = str if name == "say" else np.dtype(ANY_LENGTH[name].get("dtype", "f4"))
            assert found.fields[other] == (dtype, axes.get(name, (name,)))
            for number, rows in enumerate(read.episodes):
                own = rows_of(rb, rb.episodes.read(number), name)
                assert same_rows(own[: len(rows["rew"])], rows_of(read, rows, other))
    assert [len(rows["rew"]) for rows in read.episodes] == [8, 8, 4 - (format == "lerobot")]


def test_texts_that_hdf5_would_cut_are_refused(tmp_path: Path) -> None:
    """It ends a text at a zero byte; the error names the column and the format that holds it."""
    need("h5py")
    rb = ReplayBuffer(
        9, {"obs": {}, "act": {}, "rew": {}, "say": {"dtype": str}}, room={"say": 9}, next_of="obs"
    )
    rb.add(obs=0, next_obs=1, act=0, rew=0, say="a\0b")
    with pytest.raises(
        ValueError, match=r"infos/say: expected texts without zero .* 'minari-arrow'"
    ):
        rb.export(tmp_path / "x", "minari")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("format", HAS_LISTS)
def test_the_room_is_that_of_the_rows(format: str, tmp_path: Path) -> None:  # noqa: A002
    """By default each axis holds all items; ``env_dict`` joins axes, and ``room`` is an option."""
    need("pyarrow")
    rb, path = of_any_length(), place(tmp_path, format)
    rb.export(path, format)
    every = ReplayBuffer.from_dataset(path).schema.rooms
    texts = sum(len(STRINGS[t % len(STRINGS)].encode()) for t in range(20))
    assert every == {"ids": 190, "logp": 190, "chosen": 190, "nodes": 39, "edges": 37, "say": texts}
    chosen: Any = {name: {"shape": ("T",)} for name in ("ids", "logp")}
    few = ReplayBuffer.from_dataset(path, env_dict={"rew": {}, **chosen}, room={"T": 50})
    assert few.schema.rooms == {"T": 50}
    assert few.get_all_transitions()["rew"].tolist() == [16, 17, 18, 19]  # of 38 tokens
    with pytest.raises(ValueError, match="fields of axis 'T' disagree on the number of items"):
        ReplayBuffer.from_dataset(
            path, env_dict={"ids": chosen["ids"], "nodes": {"shape": ("T", 11)}}
        )
    dense = ReplayBuffer.from_dataset(path, env_dict={"obs": {"shape": ("K",)}, "act": {}})
    assert dense.schema.rooms == {"K": 60}
    with pytest.raises(ValueError, match=r"field 'ids': expected int32 of shape \(3,\)"):
        ReplayBuffer.from_dataset(path, env_dict={"ids": {"shape": 3}})


@pytest.mark.parametrize("format", [*HAS_LISTS, "lerobot"])
def test_observations_of_any_length_have_next_ones(format: str, tmp_path: Path) -> None:  # noqa: A002
    """Tokens and a text of the state, whose next values are those of the row after."""
    need("pyarrow")
    tokens: Any = {"shape": ("T",), "dtype": "i4"}
    fields: Any = {"obs.ids": tokens, "obs.say": {"dtype": str}, "act": NUMBER, "rew": NUMBER}
    fields |= {"next_obs.ids": {"shape": ("U",), "dtype": "i4"}, "next_obs.say": {"dtype": str}}
    if format == "lerobot":
        fields = {"obs.x": NUMBER, "next_obs.x": NUMBER, **fields}
        del fields["obs.ids"], fields["next_obs.ids"]
    room = {"T": 99, "U": 99, "obs.say": 99, "next_obs.say": 99}
    axes = [axis for axis in room if axis not in "TU" or format != "lerobot"]
    rb = ReplayBuffer(9, fields, room={axis: room[axis] for axis in axes})
    ids, says = [np.arange(n) for n in (0, 3, 1, 2)], ["", "a", "🙂", "x\0"]
    for t in range(3):
        step = {"obs.ids": ids[t], "next_obs.ids": ids[t + 1], "obs.x": t, "next_obs.x": t + 1}
        step |= {"obs.say": says[t], "next_obs.say": says[t + 1], "act": t, "rew": t}
        rb.add(**{name: step[name] for name in fields})
    path = place(tmp_path, format)
    rb.export(path, format)
    read = ReplayBuffer.from_dataset(path, resume=True)
    if format == "lerobot":  # the task of each frame; no frame follows the last one
        assert list(read.episodes[0]["task"]) == says[:2]
        return
    for name in ("obs.ids", "next_obs.ids", "obs.say", "next_obs.say"):
        assert same_rows(rows_of(rb, rb.episodes[0], name), rows_of(read, read.episodes[0], name))
    broken = ReplayBuffer(9, fields, room=room)
    step |= {"obs.x": 0, "next_obs.x": 0}
    for _ in range(2):
        broken.add(**{name: step[name] for name in fields})
    if format == "rlds":
        with pytest.raises(
            ValueError, match="expected next observations that are the observations"
        ):
            broken.export(tmp_path / "b", format)
    else:
        broken.export(tmp_path / "b.parquet")
        again = ReplayBuffer.from_dataset(tmp_path / "b.parquet", strict=True)
        assert list(again.episodes[0]["next_obs.say"]) == ["x\0"] * 2


def test_rows_that_were_overwritten_have_no_items(tmp_path: Path) -> None:
    """An episode that is cut is read as one."""
    rb = ReplayBuffer(
        4,
        {"ids": ANY_LENGTH["ids"], "obs": NUMBER, "act": NUMBER, "rew": NUMBER},
        room={"T": 99},
        next_of="obs",
    )
    for t in range(6):
        rb.add(ids=np.arange(t), obs=t, next_obs=t + 1, act=t, rew=t)
    rb.export(tmp_path / "x", "rlds")
    read = ReplayBuffer.from_dataset(tmp_path / "x")
    assert not read.episodes.list()[0].complete
    assert [len(row) for row in rows_of(read, read.episodes[0], "ids")] == [2, 3, 4, 5]


def graphs() -> ReplayBuffer:
    """Twelve steps of three episodes, with states of any length and their next ones."""
    state: Any = {"obs.ids": {"shape": ("obs.ids",), "dtype": "i8"}, "obs.say": {"dtype": str}}
    fields = {**state, "act": NUMBER, "rew": NUMBER, "terminated": {"shape": (), "dtype": bool}}
    rb = ReplayBuffer(20, fields, room={"obs.ids": 999, "obs.say": 999}, next_of=list(state))
    for t in range(12):
        step: Any = {"act": t, "rew": t, "terminated": t % 4 == 3}
        for name, n in (("obs", t), ("next_obs", t + 1)):
            step |= {f"{name}.ids": np.arange(n % 5), f"{name}.say": "é" * (n % 3)}
        rb.add(**step)
    return rb


@pytest.mark.parametrize("format", HAS_LISTS)
def test_next_values_have_room_beside_their_source(format: str, tmp_path: Path) -> None:  # noqa: A002
    """By default no row leaves early, whether ``env_dict`` names the axes or not."""
    need("pyarrow")
    rb, path = graphs(), place(tmp_path, format)
    rb.export(path, format)
    shapes = {name: shape for name, (_, shape) in describe(path).fields.items()}
    assert shapes["obs.ids"] == ("obs.ids",)  # as recorders name it
    assert shapes["next_obs.ids"] == ("next_obs.ids",)
    joined: Any = {"obs.ids": {"shape": ("T",)}, "obs.say": {}, "rew": {}, "terminated": {}}
    for env_dict in (None, joined, {**joined, "next_obs.ids": {"shape": ("next_T",)}}):
        names = iter(["obs.ids", "obs.say"])
        read = ReplayBuffer.from_dataset(path, env_dict=env_dict, next_of=names)
        assert len(read) == 12
        assert read.stats()["left_for_room"] == 0
        for one, other in zip(rb.episodes, read.episodes, strict=True):
            for name in ("obs.ids", "next_obs.ids", "obs.say", "next_obs.say"):
                assert same_rows(rows_of(rb, one, name), rows_of(read, other, name))


# ---------------------------------------------------------------------- Arrow


def test_libraries_of_arrow_read_ours(tmp_path: Path) -> None:
    """pyarrow: lists of numbers, and strings."""
    parquet = need("pyarrow.parquet")
    rb, path = of_any_length(), tmp_path / "rows.parquet"
    rb.export(path)
    table = parquet.read_table(path)
    types = {name: str(table.schema.field(name).type) for name in (*LISTS, "say")}
    assert types["ids"] == "list<element: int32>"
    assert types["say"] == "string"
    expected = {
        name: [row for rows in rb.episodes for row in rows_of(rb, rows, name)] for name in types
    }
    for name, rows in expected.items():
        found = table.column(name).to_pylist()
        assert len(found) == len(rows) == 20
        for one, other in zip(found, rows, strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.filterwarnings("ignore")
def test_hugging_face_reads_ours(tmp_path: Path) -> None:
    """Its data sets have lists of the dtypes of the buffer."""
    kind = need("datasets.arrow_dataset", "make test-datasets").Dataset
    rb, path = of_any_length(), tmp_path / "rows.parquet"
    fields = ["rew", *LISTS, "say"]
    few = ReplayBuffer(50, {name: ANY_LENGTH[name] for name in fields}, room=ROOM)
    for rows in rb.episodes:
        few.add(**{name: rows_of(rb, rows, name) for name in fields})
    few.export(path)

    found = kind.from_parquet(str(path), cache_dir=str(tmp_path / "cache"))

    assert found.features["ids"].feature.dtype == "int32"
    assert found.features["say"].dtype == "string"
    for name in fields[1:]:
        expected = [row for rows in rb.episodes for row in rows_of(rb, rows, name)]
        assert len(found) == len(expected) == 20
        for one, other in zip(found[name], expected, strict=True):
            np.testing.assert_array_equal(one, other if name == "say" else other.tolist())


def test_lists_that_others_wrote_are_read(tmp_path: Path) -> None:
    """Lists of lists, large and of a fixed size; of one length in all rows they are arrays."""
    pa, parquet = need("pyarrow"), need("pyarrow.parquet")
    nested = [[[1.0, 2.0]], [], [[3.0, 4.0], [5.0, 6.0]]]
    columns = {
        "eps_id": pa.array(["a"] * 3),
        "rewards": pa.array([0.0, 1.0, 2.0]),
        "nested": pa.array(nested),
        "large": pa.array([[1], [], [2, 3]], pa.large_list(pa.int16())),
        "same": pa.array([[1, 2], [3, 4], [5, 6]]),
        "note": pa.array(["x", "", "y"]).dictionary_encode(),
        "holes": pa.array([[1], None, [2, 3]]),
        "blanks": pa.array(["x", None, "y"]),
    }
    parquet.write_table(pa.table(columns), tmp_path / "x.parquet")
    with pytest.warns(DataLossWarning, match=r"eps_id .* holes \(.*1 nulls.* blanks \(.*1 nulls"):
        rb = ReplayBuffer.from_dataset(tmp_path / "x.parquet", resume=True)
    shapes = {name: field.shape for name, field in rb.columns.items()}
    assert shapes["nested"] == ("nested", 2)
    assert shapes["large"] == ("large",)
    assert shapes["same"] == (2,)
    rows = rb.episodes[0]
    assert [row.tolist() for row in rows_of(rb, rows, "nested")] == nested
    assert [row.tolist() for row in rows_of(rb, rows, "large")] == [[1], [], [2, 3]]
    assert list(rows["note"]) == ["x", "", "y"]


def write_steps(path: Path, obs: Any, new_obs: Any) -> None:
    """A file of steps without names of episodes, of which the last one is terminated."""
    pa, parquet = need("pyarrow"), need("pyarrow.parquet")
    n = len(obs)
    columns = {"obs": pa.array(obs), "new_obs": pa.array(new_obs), "actions": [0] * n}
    columns |= {"rewards": [1.0] * n, "terminateds": [k == n - 1 for k in range(n)]}
    parquet.write_table(pa.table(columns), path)


@pytest.mark.parametrize("is_swapped", [False, True])
def test_next_observations_have_the_axes_of_observations(is_swapped: bool, tmp_path: Path) -> None:
    """Also if the lists of one of them happen to have the same length; else episodes merged."""
    lists = [[1], [2, 3], [4, 4, 4]], [[7, 7], [7, 7], [8, 8]]
    write_steps(tmp_path / "x.parquet", *(lists[::-1] if is_swapped else lists))
    with pytest.warns(DataLossWarning, match="2 episodes before the newest have no end"):
        rb = ReplayBuffer.from_dataset(tmp_path / "x.parquet")
    assert len(rb.episodes) == 3
    shapes = {name: field.shape for name, field in rb.columns.items()}
    assert shapes["obs"] == ("obs",)
    assert shapes["next_obs"] == ("next_obs",)


def test_parts_of_observations_are_compared_one_by_one(tmp_path: Path) -> None:
    """Items of one part do not pass for items of the next one, so two episodes stay two."""
    obs = [{"a": [9, 9, 9], "b": [9]}, {"a": [1], "b": [2, 3]}]
    new = [{"a": [1, 2], "b": [3]}, {"a": [5], "b": [5, 6]}]
    write_steps(tmp_path / "x.parquet", obs, new)
    with pytest.warns(DataLossWarning, match="1 episodes before the newest have no end"):
        rb = ReplayBuffer.from_dataset(tmp_path / "x.parquet")
    assert len(rb.episodes) == 2


def test_long_rows_are_read_few_at_a_time(tmp_path: Path) -> None:
    """Of 400 rows of 200 kB, in groups of ten, some megabytes are in memory at once."""
    pa, parquet = need("pyarrow"), need("pyarrow.parquet")
    ids = pa.array(np.arange(10 * 50_000, dtype="i4"))
    offsets = pa.array([*range(0, 10 * 50_000, 50_000), len(ids) - 1], pa.int32())
    table = pa.table({"rewards": np.zeros(10), "ids": pa.ListArray.from_arrays(offsets, ids)})
    with parquet.ParquetWriter(
        tmp_path / "x.parquet", table.schema, use_dictionary=False, compression="none"
    ) as file:
        for _ in range(40):
            file.write_table(table)
    own = pa.default_memory_pool()
    pa.set_memory_pool(counting := pa.proxy_memory_pool(own))
    try:
        assert describe(tmp_path / "x.parquet").rows == 400
    finally:
        pa.set_memory_pool(own)
    assert counting.max_memory() < 20e6


def test_a_long_row_does_not_slow_the_export_of_others(tmp_path: Path) -> None:
    """Rows are read many at a time but for the long one: batches are padded."""
    need("pyarrow")
    fields: Any = {"ids": {"shape": ("T",), "dtype": "i4"}, "rew": {}, "done": NUMBER}
    rb, path = ReplayBuffer(1200, fields, room={"T": 300_000}, n_envs=2), tmp_path / "x.parquet"
    ids = [np.arange(k % 50) for k in range(1000)]
    ids[603] = np.arange(200_000)
    for k in range(0, 1000, 2):
        here = [True, k % 3 > 0]
        rb.add_where(here, ids=ids[k : k + 2], rew=[k, k + 1], done=[k % 200 == 0 or k == 998] * 2)
    seen: list[int] = []
    rb.export(path, progress=lambda done, _: seen.append(done))
    assert len(seen) < 40  # of 11 episodes
    read = ReplayBuffer.from_dataset(path)
    for one, other in zip(rb.episodes, read.episodes, strict=True):
        for k, row in zip(one["rew"].ravel().astype(int), rows_of(read, other, "ids"), strict=True):
            np.testing.assert_array_equal(row, ids[k])


# ---------------------------------------------------------------------- tasks of LeRobot


def with_tasks(path: Path) -> None:
    """A data set of LeRobot with two tasks."""
    rb = ReplayBuffer(9, {"obs": {}, "task": {"dtype": str}, "done": {}}, room={"task": 99})
    rb.add(obs=np.arange(4), task=["go", "go", "", ""], done=[0, 1, 0, 1])
    rb.export(path, "lerobot")


def test_tasks_keep_their_fields_when_written_again(tmp_path: Path) -> None:
    """The number of a task follows from its text, so it is no column more."""
    need("pyarrow")
    with_tasks(tmp_path / "0")
    first = ReplayBuffer.from_dataset(tmp_path / "0")
    first.export(tmp_path / "1", "lerobot")
    again = ReplayBuffer.from_dataset(tmp_path / "1")
    assert again.fields == first.fields
    assert list(again.get_all_transitions()["task"]) == ["go", "go", "", ""]
    assert again.get_all_transitions()["task_index"].tolist() == [0, 0, 1, 1]


def test_texts_of_tasks_are_found_by_their_name(tmp_path: Path) -> None:
    """Beside another column; where none is meant, they are left out by name."""
    pa, parquet = need("pyarrow"), need("pyarrow.parquet")
    with_tasks(tmp_path / "x")
    path = tmp_path / "x/meta/tasks.parquet"
    table = parquet.read_table(path).append_column("notes", pa.array(["a", "b"]))
    parquet.write_table(table, path)
    rb = ReplayBuffer.from_dataset(tmp_path / "x")
    assert list(rb.get_all_transitions()["task"]) == ["go", "go", "", ""]
    parquet.write_table(table.rename_columns(["task_index", "words", "notes"]), path)
    with pytest.warns(DataLossWarning, match=r"task \(.* texts in meta/tasks.* 'notes'\]\)"):
        rb = ReplayBuffer.from_dataset(tmp_path / "x")
    assert "task" not in rb.fields
