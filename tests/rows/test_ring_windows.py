"""The rows around a row in its episode: ``Ring.windows``."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from reference import ReferenceBuffer

from cpprb_like import ReplayBuffer

FIELDS: dict[str, Any] = {
    "x": {"shape": (), "dtype": "i8"},
    "first": {"shape": (), "dtype": bool},
    "terminated": {"shape": (), "dtype": bool},
    "truncated": {"shape": (), "dtype": bool},
    "note": {"shape": (), "dtype": object},
}
MOVES = ["add"] * 6 + ["pause", "end", "delete", "clear"]


class Pair:
    """A buffer and its twin, and the moves that both make."""

    def __init__(self, size: int, n_envs: int, seed: int) -> None:
        self.rb = ReplayBuffer(size, FIELDS, n_envs=n_envs)
        self.twin = ReferenceBuffer(size, list(FIELDS), n_envs)
        self.rng = np.random.default_rng(seed)

    def move(self, kind: str) -> None:
        """Make it."""
        if kind in ("add", "pause"):
            rng, n = self.rng, self.rb.n_envs
            values: dict[str, Any] = {
                "x": rng.integers(0, 99, n),
                "first": rng.random(n) < 0.3,
                "terminated": rng.random(n) < 0.2,
                "truncated": rng.random(n) < 0.1,
                "note": np.full(n, None),
            }
            present = [True] * n if kind == "add" else (rng.random(n) < 0.5).tolist()
            self.rb.add_where(present, **values)
            rows = [{name: column[k : k + 1] for name, column in values.items()} for k in range(n)]
            self.twin.add(rows, present)
        elif kind == "end":
            env = int(self.rng.integers(self.rb.n_envs))
            self.rb.on_episode_end(env)
            self.twin.on_episode_end(env)
        elif kind == "clear":
            self.rb.clear()
            self.twin.clear()
        else:
            episodes = self.rb.episodes
            ended = [k for k, one in enumerate(episodes.list()) if one.terminated or one.truncated]
            if not ended:
                return
            before = self.rb.ring.flags()
            episodes.delete(int(self.rng.choice(ended)))
            gone = np.flatnonzero(self.rb.ring.flags() & ~before & 8)
            for slot, row in self.twin.slots().items():
                row.absent |= slot in gone


@given(
    size=st.integers(1, 14),
    n_envs=st.integers(1, 3),
    moves=st.lists(st.sampled_from(MOVES), min_size=1, max_size=50),
    lengths=st.tuples(st.integers(0, 6), st.integers(0, 6)),
    starts=st.sampled_from([None, "first"]),
    seed=st.integers(0, 99),
)
def test_a_window_holds_the_rows_around_one_in_its_episode(
    size: int,
    n_envs: int,
    moves: list[str],
    lengths: tuple[int, int],
    starts: str | None,
    seed: int,
) -> None:
    """Whatever was added, ended, paused and deleted, it is clipped where the twin clips it."""
    pair = Pair(max(size, n_envs), n_envs, seed)
    before, after = lengths
    for kind in moves:
        pair.move(kind)
        ring, twin = pair.rb.ring, pair.twin
        slots = np.arange(ring.stored)
        rows, counts, flags = ring.windows(slots, before, after, starts=starts)
        marked, same_counts, same_flags = ring.windows(
            slots, before, after, starts=starts, repeat=False
        )

        assert rows.shape == marked.shape == (len(slots), before + 1 + after)
        assert same_counts.tolist() == counts.tolist()
        assert same_flags.tolist() == flags.tolist()
        for k, slot in enumerate(slots.tolist()):
            earlier, later = twin.window(slot, before, after, starts)
            window = [*reversed(earlier), slot, *later]
            left, right = before - len(earlier), after - len(later)
            assert counts[k].tolist() == [len(earlier), len(later)]
            assert rows[k].tolist() == [*[window[0]] * left, *window, *[window[-1]] * right]
            assert marked[k].tolist() == [*[-1] * left, *window, *[-1] * right]
        assert flags.tolist() == ring.flags_at(np.ascontiguousarray(rows[:, -1])).tolist()


def test_windows_refuse_what_they_cannot_read() -> None:
    """Slots, lengths and names of fields are checked before anything is read."""
    rb = ReplayBuffer(4, FIELDS, next_of="x")
    rb.add(x=1, first=0, terminated=0, truncated=0, note=None, next_x=2)
    windows: Any = rb.ring.windows
    slots = np.zeros(2, np.intp)
    with pytest.raises(IndexError, match="slots: expected 0 to 0, got 0 to 1"):
        windows(np.array([0, 1]), 1, 1)
    for wrong in ([0], slots.astype(np.int32), slots[::2][:1].reshape(1, 1), None):
        with pytest.raises(TypeError):
            windows(wrong, 1, 1)
    for before, after in ((-1, 0), (0, -1), (1 << 30, 0), (0, 1 << 62)):
        with pytest.raises(ValueError, match="before, after: expected 0 to"):
            windows(slots, before, after)
    with pytest.raises(ValueError, match="starts: expected a field of one byte, got 8 of 'x'"):
        windows(slots, 1, 1, starts="x")
    for name in ("nothing", "note", "next_x"):
        with pytest.raises(TypeError, match=f"starts: .* got '{name}'"):
            windows(slots, 1, 1, starts=name)
    assert windows(slots[:0], 2, 1)[0].shape == (0, 4)
