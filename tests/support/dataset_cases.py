"""Buffers for tests of data sets, and what must be equal when one was written and read again."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from hypothesis import strategies as st

from cpprb_like import ReplayBuffer

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
]


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


def made(case: Case) -> ReplayBuffer:
    """The buffer of a case, with its rows."""
    rng = np.random.default_rng(case.seed)
    rb = ReplayBuffer(max(case.size, case.options["n_envs"]), case.fields, **case.options)
    fields = rb.schema.fields
    nexts = [field for field in fields if field.name.startswith("next_")]
    before: dict[str, Any] = {}
    for _ in range(case.steps):
        rows = {field.name: values_of(field, (rb.n_envs,), rng) for field in fields}
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


def streams(rb: ReplayBuffer) -> list[list[tuple[Any, dict[str, Any]]]]:
    """What must come back: the episodes of each environment, and their rows."""
    found: list[list[tuple[Any, dict[str, Any]]]] = [[] for _ in range(rb.n_envs)]
    for number, episode in enumerate(rb.episodes.list()):
        rows = rb.episodes.read(number)
        what = (episode.length, episode.terminated, episode.truncated, episode.complete)
        found[episode.env].append((what, rows))
    return found


def assert_same(expected: ReplayBuffer, got: ReplayBuffer) -> None:
    """The same fields, episodes and rows, byte for byte."""
    assert got.schema == expected.schema
    assert got.n_envs == expected.n_envs
    ours, theirs = streams(expected), streams(got)
    for env, (one, other) in enumerate(zip(ours, theirs, strict=True)):
        assert [what for what, _ in one] == [what for what, _ in other], env
        for (_, rows), (_, found) in zip(one, other, strict=True):
            assert rows.keys() == found.keys()
            for name, values in rows.items():
                assert found[name].dtype == values.dtype
                assert found[name].shape == values.shape
                assert found[name].tobytes() == values.tobytes(), name
        open_rows = [rb.get_current_episode_len(env) > 0 for rb in (expected, got)]
        assert open_rows[0] == open_rows[1] or not one


def place(folder: Path, format: str) -> Path:  # noqa: A002 (as the option is called)
    """A path for a data set of this format."""
    return folder / {"d4rl": "rows.hdf5", "rllib": "rows.parquet"}.get(format, "data")
