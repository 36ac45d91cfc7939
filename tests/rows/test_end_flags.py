"""Flags of rows, compared with the fields that end episodes: by the package, and by a slow twin."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from strategies import Array

from cpprb_like import ReplayBuffer
from cpprb_like._core import FLAG_ABSENT, FLAG_END, FLAG_TRUNCATED, WORD_ABSENT_ROWS
from cpprb_like._fields.layout import Layout
from cpprb_like.buffers import _checking

DTYPES = ["?", "u1", "i2", "i8", "f2", "f4", "f8", ">f4", ">i8", ">f8"]
ENDS = [
    ("done",),
    ("terminated",),
    ("truncated",),
    ("terminated", "truncated"),
    ("done", "truncated"),
    ("done", "terminated", "truncated"),
    (),
]
N = 700


def filled(ends: tuple[str, ...], dtype: str, rng: np.random.Generator, n_envs: int) -> Any:
    """A buffer that has wrapped, with deleted episodes and absent rows."""
    fields: dict[str, Any] = {"x": {"shape": 3}}
    fields |= {name: {"shape": (), "dtype": dtype} for name in ends}
    rb: Any = ReplayBuffer(N, fields, n_envs=n_envs)
    for _ in range(900 // n_envs):
        values: dict[str, Any] = {name: rng.random(n_envs) < 0.1 for name in ends}
        rb.add_where(rng.random(n_envs) < 0.9, x=np.zeros((n_envs, 3)), **values)
    if rng.random() < 0.5:
        rb.on_episode_end()
    if ends and len(rb.episodes) > 9:
        rb.episodes.delete(1)
    return rb


def verdict(layout: Layout, arena: Array) -> str:
    """The error message about an arena; empty if it is sound."""
    try:
        _checking.check_memory(layout, arena)
    except ValueError as error:
        return str(error)
    return ""


def flags_are_sound(layout: Layout, arena: Array) -> bool:
    """Whether flags agree with the fields, row by row, and the header counts the absent rows."""
    fields = layout.schema.fields
    values = {}
    for number, *_ in layout.schema.end_fields():
        dtype = np.dtype("u1") if fields[number].dtype == bool else fields[number].dtype
        values[fields[number].name] = layout.rows(arena, number).copy().view(dtype)[:, 0] != 0
    sound = True
    absent = 0
    for slot, flag in enumerate(layout.flags(arena).tolist()):
        ends = {name for name, is_set in values.items() if is_set[slot]}
        if flag & FLAG_ABSENT:
            absent += 1
            sound &= flag ^ FLAG_ABSENT in {0, FLAG_END, 1 | 2, 1 | 4, 1 | 2 | 4}
        elif not ends:
            sound &= flag in {0, FLAG_TRUNCATED}  # the second if the episode was cut off
        else:
            is_truncated = "truncated" in ends
            terminates = "terminated" if "terminated" in values else "done"
            is_terminated = terminates in ends and not (terminates == "done" and is_truncated)
            sound &= flag == FLAG_END | 2 * is_terminated | 4 * is_truncated
    return bool(sound) and absent == layout.state(arena)[WORD_ABSENT_ROWS]


@pytest.mark.once
@pytest.mark.parametrize("n_envs", [1, 4])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("ends", ENDS, ids=" ".join)
def test_flags_that_contradict_the_fields_are_found(
    ends: tuple[str, ...], dtype: str, n_envs: int, rng: np.random.Generator
) -> None:
    """Sound memory passes; a changed flag, value or count passes only if it contradicts nothing."""
    rb = filled(ends, dtype, rng, n_envs)
    layout = rb._layout
    assert verdict(layout, rb._arena) == ""
    assert flags_are_sound(layout, rb._arena)
    for _ in range(20):
        arena = rb._arena.copy()
        slot = int(rng.integers(N))
        numbers = [number for number, *_ in layout.schema.end_fields()]
        kind = rng.integers(4)
        if kind == 0:
            layout.flags(arena)[slot] = rng.integers(32)
        elif kind == 1:
            layout.flags(arena)[slot] ^= 1 << rng.integers(8)
        elif kind == 2 and numbers:
            value = layout.rows(arena, int(rng.choice(numbers)))[slot]
            value[rng.integers(len(value))] ^= 128 if rng.random() < 0.5 else rng.integers(1, 256)
        else:
            layout.state(arena)[WORD_ABSENT_ROWS] += rng.integers(-1, 2)
        said = verdict(layout, arena)
        finds_fault = "flags of the" in said or "absent rows" in said
        assert finds_fault == (not flags_are_sound(layout, arena)), said
