"""Flags of rows, compared with the fields that end episodes: compiled, and by the slow twin.

The twin is the check in Python that says what is wrong; it runs alone where the compiled one finds
fault.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from strategies import Array

from cpprb_like import ReplayBuffer
from cpprb_like._core import WORD_ABSENT_ROWS
from cpprb_like._rows.end_flags import count_absent
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
N = 700  # more than one chunk


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


def verdict(rb: Any, arena: Array, monkeypatch: pytest.MonkeyPatch, *, slow: bool) -> str:
    """What is said of an arena; nothing if it is sound."""
    with monkeypatch.context() as patch:
        if slow:
            patch.setattr(_checking, "_count_absent", lambda *_: -2)
        try:
            _checking.check_memory(rb._layout, arena)
        except ValueError as error:
            return str(error)
    return ""


@pytest.mark.parametrize("n_envs", [1, 4])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("ends", ENDS, ids=" ".join)
def test_both_say_the_same(
    ends: tuple[str, ...],
    dtype: str,
    n_envs: int,
    rng: np.random.Generator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of sound memory, and where a flag, a value or the number of absent rows was changed."""
    rb = filled(ends, dtype, rng, n_envs)
    layout = rb._layout
    assert verdict(rb, rb._arena, monkeypatch, slow=False) == ""
    for _ in range(40):
        arena = rb._arena.copy()
        slot = int(rng.integers(N))
        numbers = [number for number, _, _ in layout.schema.end_fields()]
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
        expected = verdict(rb, arena, monkeypatch, slow=True)
        assert verdict(rb, arena, monkeypatch, slow=False) == expected


def test_places_outside_of_the_arena_are_refused() -> None:
    """Nothing is read there, whatever the numbers are."""
    arena = np.zeros(1000, np.uint8)
    assert count_absent(arena, 9, 10, 100, [(0, 10, 4, -1, 3)]) == 0
    assert count_absent(arena, 0, 0, 0, []) == 0
    assert count_absent(arena, 999, 16, 1, [(996, 16, 4, -1, 3)]) == 0
    for offset, stride, n in ((10, 10, 100), (-1, 10, 100), (9, 10, 101), (9, -1, 2), (9, 1, -1)):
        with pytest.raises(ValueError, match="in the arena"):
            count_absent(arena, offset, stride, n, [])
    for field in ((0, 10, 9, -1, 3), (7, 10, 4, -1, 3), (-1, 10, 1, -1, 3), (0, 1 << 62, 1, -1, 3)):
        with pytest.raises(ValueError, match="in the arena"):
            count_absent(arena, 9, 10, 100, [field])
    with pytest.raises(ValueError, match="up to 8"):
        count_absent(arena, 9, 10, 100, [(0, 10, 1, -1, 3)] * 9)
