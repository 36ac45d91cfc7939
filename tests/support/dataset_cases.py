"""Buffers for tests of data sets, and what of them a format carries to another buffer."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from hypothesis import strategies as st

from cpprb_like import ReplayBuffer
from cpprb_like.datasets import _tfrecord

FLAG: dict[str, Any] = {"shape": (), "dtype": bool}


class Case(NamedTuple):
    """A buffer as it is made, and what happens to it."""

    fields: dict[str, Any]
    options: dict[str, Any]
    size: int
    steps: int
    seed: int
    delete: bool
    ends: bool  # by on_episode_end too
    breaks: bool  # next values that are not those of the row after


Fields = dict[str, Any]
OBSERVATIONS: list[Fields] = [
    {"obs": {"shape": 3, "dtype": "f4"}},
    {"obs": {"shape": (), "dtype": "i8"}},
    {"obs": {"shape": (2, 3), "dtype": "f8"}},
    {"obs": {"shape": (8, 6, 3), "dtype": "u1"}},
    {"obs.position": {"shape": 2, "dtype": "f8"}, "obs.image": {"shape": (5, 4, 3), "dtype": "u1"}},
    {"obs.0": {"shape": 1, "dtype": "i4"}, "obs.1": {"shape": (), "dtype": bool}},
    {"obs.a.b": {"shape": 2, "dtype": "f2"}, "obs.c": {"shape": 1, "dtype": "i2"}},
]
ACTIONS: list[Fields] = [
    {"act": {"shape": (), "dtype": "i8"}},
    {"act": {"shape": 2, "dtype": "f4"}},
    {"act": {"shape": 1, "dtype": "i4"}},
    {"act.0": {"shape": (), "dtype": "i8"}, "act.1": {"shape": 3, "dtype": "f4"}},
]
REWARDS: list[Fields] = [
    {"rew": {"shape": (), "dtype": "f4"}},
    {"rew": {"shape": 1, "dtype": "f8"}},
]
ENDS: list[Fields] = [
    {"terminated": FLAG, "truncated": FLAG},
    {"done": FLAG},
    {"done": {"shape": 1, "dtype": "f4"}, "truncated": FLAG},
    {"terminated": {"shape": 1, "dtype": bool}},
    {},
]
EXTRAS: list[Fields] = [
    {},
    {"log_prob": {"shape": (), "dtype": "f4"}, "step/id": {"shape": (), "dtype": "i8"}},
    {"name": {"shape": (), "dtype": "U4"}, "z": {"shape": 2, "dtype": "c8"}},
    {"when": {"shape": (), "dtype": "M8[s]"}, "raw": {"shape": 3, "dtype": "S3"}},
    {"be": {"shape": 2, "dtype": ">f4"}, "half": {"shape": 1, "dtype": "f2"}},
    {"count": {"shape": 2, "dtype": "u4"}},
    {"nothing": {"shape": 0, "dtype": "f4"}, "..": {"shape": (), "dtype": "u2"}},
    {"ids": {"shape": ("T",), "dtype": "i2"}, "log.p": {"shape": ("T",)}, "say": {"dtype": str}},
    {"nodes": {"shape": ("N", 3), "dtype": "f8"}, "edges": {"shape": (2, "E"), "dtype": "i8"}},
]
ROOMS = {"say": {"T": 500, "say": 500}, "nodes": {"N": 500, "E": 500}}  # of buffers with a field
TEXTS = ["", "a", "é漢", "🙂 b"]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """A buffer, and its history."""
    observations = draw(st.sampled_from(OBSERVATIONS))
    fields: Fields = {
        **observations,
        **draw(st.sampled_from(ACTIONS)),
        **draw(st.sampled_from(REWARDS)),
        **draw(st.sampled_from(ENDS)),
        **draw(st.sampled_from(EXTRAS)),
    }
    options: dict[str, Any] = {"n_envs": draw(st.sampled_from([1, 1, 2, 3]))}
    options["room"] = next((room for name, room in ROOMS.items() if name in fields), None)
    if draw(st.booleans()):
        options["next_of"] = list(observations)
    else:
        fields |= {f"next_{name}": spec for name, spec in observations.items()}
    return Case(
        fields,
        options,
        draw(st.integers(4, 60)),
        draw(st.integers(1, 60)),
        draw(st.integers(0, 1 << 30)),
        draw(st.booleans()),
        draw(st.booleans()),
        draw(st.booleans()),
    )


def values_of(field: Any, shape: tuple[int, ...], rng: np.random.Generator) -> Any:
    """Random values of a field: every byte counts."""
    whole = (*shape, *field.shape)
    if field.dtype.kind == "b":
        return rng.random(whole) < 0.2
    if field.dtype.kind in "fc":
        return rng.normal(size=whole).astype(field.dtype)
    if field.dtype.kind in "SU":
        return rng.choice(["a", "bc", "", "xyz"], whole).astype(field.dtype)
    info = np.iinfo(field.dtype) if field.dtype.kind in "iu" else np.iinfo(np.int32)
    return rng.integers(info.min, info.max, whole, endpoint=True).astype(field.dtype)


def ragged_values(field: Any, counts: list[int], rng: np.random.Generator) -> list[Any]:
    """Random values of a field of any length: a text, or an array with so many items, each."""
    if field.is_text:
        return [str(rng.choice(TEXTS)) for _ in counts]
    shapes = [
        [n if length == field.axis else length for length in field.declared_shape] for n in counts
    ]
    return [rng.normal(size=shape, scale=99).astype(field.dtype) for shape in shapes]


def rows_of(rb: ReplayBuffer, batch: dict[str, Any], name: str) -> list[Any]:
    """The rows of a field in a padded batch, without padding."""
    field = rb.schema.fields[rb.schema.names.index(name)]
    if field.is_text or not field.is_ragged:
        return list(batch[name])
    counts = batch[f"{field.axis}_mask"].sum(axis=1).tolist()
    rows = zip(batch[name], counts, strict=True)
    return [
        np.moveaxis(np.moveaxis(row, field.axis_at, 0)[:n], 0, field.axis_at) for row, n in rows
    ]


def made(case: Case) -> ReplayBuffer:
    """The buffer of a case, with its rows."""
    rng = np.random.default_rng(case.seed)
    rb = ReplayBuffer(max(case.size, case.options["n_envs"]), case.fields, **case.options)
    fields = rb.schema.declared
    nexts = [field for field in fields if field.name.startswith("next_")]
    before: dict[str, Any] = {}
    for _ in range(case.steps):
        counts = {axis.name: rng.integers(0, 4, rb.n_envs).tolist() for axis in rb.schema.axes}
        rows = {
            field.name: ragged_values(field, counts[str(field.axis)], rng)
            if field.is_ragged
            else values_of(field, (rb.n_envs,), rng)
            for field in fields
        }
        for field in nexts:
            source = field.name.removeprefix("next_")
            if field.name in before and not case.breaks:
                rows[source] = before[field.name]
            before[field.name] = rows[field.name]
        present = rng.random(rb.n_envs) < 0.9
        if rb.n_envs > 1 and not present.all():
            rb.add_where(present, **rows)
        else:
            rb.add(**rows)
        if case.ends and rng.random() < 0.2:
            rb.on_episode_end(int(rng.integers(rb.n_envs)))
    if case.delete:
        ended = [
            number
            for number, episode in enumerate(rb.episodes.list())
            if (episode.terminated or episode.truncated) and rng.random() < 0.3
        ]
        for number in reversed(ended):
            rb.episodes.delete(number)
    return rb


CHAINED = ("minari", "minari-arrow", "rlds", "dreamerv3")  # one observation more than steps
HAS_LISTS = ("rllib", "rlds")  # values of any length
HAS_TEXTS = (*HAS_LISTS, "minari", "minari-arrow", "lerobot")
SAYS_CUT = ("rlds", "dreamerv3")


def name_in(format: str, name: str) -> str:  # noqa: A002 (as the option is called)
    """The name that an extra field has when it is read."""
    if format.startswith("minari"):
        return f"info.{name.removeprefix('info.')}"
    if format == "lerobot" and name == "say":
        return "task"
    if format == "dreamerv3":
        return f"log_{name.removeprefix('log_')}"
    return name


def expected_streams(rb: ReplayBuffer, format: str) -> list[tuple[Any, dict[str, Any]]]:  # noqa: A002
    """The episodes that must be read of a buffer that was written, in their order.

    Each is its length, whether it is terminated, and whether truncated; and its rows by name.
    """
    listed = list(enumerate(rb.episodes.list()))
    if format == "dreamerv3":  # which has a stream for each environment
        envs = list(dict.fromkeys(episode.env for _, episode in listed))
        listed.sort(key=lambda item: envs.index(item[1].env))
    newest = {episode.env: number for number, episode in listed}
    found: list[tuple[Any, dict[str, Any]]] = []
    for k, (number, episode) in enumerate(listed):
        is_open = newest[episode.env] == number and rb.get_current_episode_len(episode.env) > 0
        is_open = is_open and not (episode.terminated or episode.truncated)
        terminated, truncated = episode.terminated, episode.truncated
        if format in SAYS_CUT:
            truncated = truncated and not terminated
        if not terminated and (k < len(listed) - 1 or not is_open):
            truncated = True
        rows, n = rb.episodes.read(number), episode.length
        has_next = any(name.startswith("next_") for name in rows)
        if format == "lerobot" and has_next and not terminated and not is_broken(rb):
            n -= 1  # the next observation of its last step is not in the files
        if n:
            found.append(((n, terminated, truncated), {k: rows[k][:n] for k in rows}))
    return found


def is_broken(rb: ReplayBuffer) -> bool:
    """Whether a next observation is not the observation of the row after."""
    for rows in rb.episodes:
        for name, values in rows.items():
            source = name.removeprefix("next_")
            if source != name and values[:-1].tobytes() != rows[source][1:].tobytes():
                return True
    return False


def assert_carried(expected: ReplayBuffer, got: ReplayBuffer, format: str) -> None:  # noqa: A002
    """The episodes, how they ended, their order, and each value that the format has a place for."""
    streams = expected_streams(expected, format)
    listed = got.episodes.list()
    assert got.n_envs == 1
    told = [(one.length, one.terminated, one.truncated) for one in listed]
    assert told == [what for what, _ in streams]
    if listed and format in SAYS_CUT and expected.n_envs == 1:
        assert listed[0].complete == expected.episodes.list()[0].complete
    ends = {"terminated", "truncated", "done"}
    for number, (what, rows) in enumerate(streams):
        found = got.episodes.read(number)
        for name, values in rows.items():
            if name in ends or name.endswith("_mask"):
                continue
            is_extra = not name.startswith(("obs", "next_obs", "act", "rew"))
            other = name_in(format, name) if is_extra else name
            dtype = values.dtype
            if expected.schema.fields[expected.schema.names.index(name)].is_ragged:
                if format not in (HAS_TEXTS if name == "say" else HAS_LISTS):
                    assert other not in found
                    continue
                assert same_rows(rows_of(expected, rows, name), rows_of(got, found, other)), name
                continue
            is_held = format != "rlds" or dtype != np.uint32  # which TensorFlow does not decode
            if dtype.kind not in "biuf" or not values[:1].size or not is_held:
                assert other not in found
                continue
            assert found[other].dtype == dtype, name
            is_last_known = format != "lerobot" or not name.startswith("next_") or is_broken(got)
            n = len(values) if is_last_known else len(values) - what[1]
            same = found[other][:n].reshape(n, *values.shape[1:])
            assert same.tobytes() == values[:n].astype(dtype).tobytes(), name
        is_last = np.arange(what[0]) == what[0] - 1
        np.testing.assert_array_equal(found["terminated"].ravel(), is_last & what[1])
        assert (found["truncated"].ravel() <= (is_last & what[2])).all()


ANY_LENGTH: dict[str, Any] = {
    "obs": {"shape": 3},
    "act": {"shape": (), "dtype": "i8"},
    "rew": {"shape": ()},
    "ids": {"shape": ("T",), "dtype": "i4"},
    "logp": {"shape": ("T",), "dtype": "f8"},
    "chosen": {"shape": ("T",), "dtype": bool},
    "nodes": {"shape": ("N", 11)},
    "edges": {"shape": (2, "E"), "dtype": "i8", "counts": "N"},
    "say": {"dtype": str},
    "terminated": {"shape": (), "dtype": bool},
}
ROOM = {"T": 1000, "N": 1000, "E": 1000, "say": 1000}
LISTS = ["ids", "logp", "chosen", "nodes", "edges"]
STRINGS = ["", "a", "\0", "a\0b\0", "put the 🙂 on 漢字", "é" * 40]


def of_any_length(texts: list[str] | None = None, steps: int = 20) -> ReplayBuffer:
    """Two episodes and an open one, with rows without items, of one and of many, and NaN."""
    rb, rng = ReplayBuffer(50, ANY_LENGTH, next_of="obs", room=ROOM), np.random.default_rng(0)
    texts = texts or STRINGS
    for t in range(steps):
        n, nodes, edges = (0, 1, 7, 30)[t % 4], 1 + t % 3, (0, 1, 5)[t % 3]
        logp = rng.normal(size=n)
        logp[:1] = np.nan
        rb.add(
            obs=np.full(3, t),
            next_obs=np.full(3, t + 1),
            act=t,
            rew=t,
            ids=rng.integers(-9, 9, n),
            logp=logp,
            chosen=np.arange(n) % 2 == 0,
            nodes=rng.normal(size=(nodes, 11)),
            edges=rng.integers(0, nodes, (2, edges)),
            say=texts[t % len(texts)],
            terminated=t % 8 == 7,
        )
    return rb


def same_rows(one: list[Any], other: list[Any]) -> bool:
    """Whether texts, or arrays of one dtype, are the same, byte for byte."""
    return len(one) == len(other) and all(
        a == b
        if isinstance(a, str)
        else (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes())
        for a, b in zip(one, other, strict=True)
    )


def place(folder: Path, format: str) -> Path:  # noqa: A002 (as the option is called)
    """A path for a data set of this format."""
    return folder / {"d4rl": "rows.hdf5", "rllib": "rows.parquet"}.get(format, "data")


def dump_lists(features: dict[str, Any]) -> bytes:
    """An ``Example`` of TensorFlow with lists of numbers: of floats, or of bools as integers."""
    field, entries = _tfrecord._field, []
    for name, values in features.items():
        is_flag = values.dtype == np.bool_
        data = field(1, values.astype(np.uint8 if is_flag else "<f4").tobytes())
        listed = field(_tfrecord.INTEGERS if is_flag else _tfrecord.FLOATS, data)
        entries.append(field(1, field(1, name.encode()) + field(2, listed)))
    return field(1, b"".join(entries))
