"""Batches of values of any length, checked row by row against the rows that were added."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from cpprb_like import PrioritizedReplayBuffer, ReplayBuffer

Array = npt.NDArray[Any]
Values = dict[str, Any]

NUMBER, FLAG = {"shape": (), "dtype": "i8"}, {"shape": (), "dtype": bool}
FIELDS: dict[str, Any] = {
    "id": NUMBER,
    "nodes": {"shape": ("N", 2)},
    "edges": {"shape": (2, "E"), "dtype": "i8", "counts": "N"},
    "weight": {"shape": ("E",), "dtype": "f8"},
    "root": {"shape": (), "dtype": "i4", "counts": "N"},
    "ids": {"shape": ("T",), "dtype": "i4"},
    "chosen": {"shape": ("T",), "dtype": bool},
    "text": {"dtype": str},
    "obs": {"shape": (2,)},
    "rew": {"shape": ()},
    "goal": {"shape": (), "dtype": "f8"},
    "achieved": {"shape": (), "dtype": "f8"},
    "next_id": NUMBER,
    "next_ids": {"shape": ("U",), "dtype": "i4"},
    "terminated": FLAG,
}
ROOM = {"N": 2000, "E": 2000, "T": 2000, "U": 2000, "text": 8000}
# By axis: the fields, their dtypes, and the place of the axis.
RAGGED = {
    "nodes": ("N", 0),
    "edges": ("E", 1),
    "weight": ("E", 0),
    "ids": ("T", 0),
    "chosen": ("T", 0),
    "next_ids": ("U", 0),
}
LAST = ("next_ids", "next_id")  # read from the last row of an n-step return
DTYPES = {name: np.dtype(FIELDS[name].get("dtype", "f4")) for name in RAGGED}


@dataclass
class RaggedHistory:
    """A buffer with values of any length, and its rows by id."""

    rb: ReplayBuffer
    rng: np.random.Generator
    rows: list[Values] = field(default_factory=list)

    @classmethod
    def of(cls, steps: int = 50, seed: int = 0, **options: Any) -> RaggedHistory:
        """A history of some steps; ``options`` are those of the buffer."""
        kind = PrioritizedReplayBuffer if options.pop("prioritized", False) else ReplayBuffer
        size = options.pop("size", 40)
        rb = kind(size, FIELDS, room=ROOM, seed=seed, **options)
        history = cls(rb, np.random.default_rng(seed))
        history.play(steps)
        return history

    def play(self, steps: int) -> None:
        """Add steps, each of all environments."""
        n = self.rb.n_envs
        for _ in range(steps):
            step = [self.row(len(self.rows) + env) for env in range(n)]
            self.rows += step
            if n == 1:
                self.rb.add(**step[0])
            else:
                self.rb.add(**{name: [one[name] for one in step] for name in FIELDS})

    def row(self, number: int) -> Values:
        """Values of a row, of which some are empty."""
        rng, n = self.rng, int(self.rng.integers(1, 6))
        edges = int(rng.integers(0, 7))
        tokens, nexts = int(rng.integers(0, 9)), int(rng.integers(0, 4))
        return {
            "id": number,
            "nodes": rng.normal(size=(n, 2)).astype("f4"),
            "edges": rng.integers(0, n, (2, edges)),
            "weight": rng.normal(size=edges),
            "root": int(rng.integers(0, n)),
            "ids": rng.integers(1, 1000, tokens).astype("i4"),
            "chosen": rng.random(tokens) < 0.5,
            "text": "".join(rng.choice(list("aé漢 \0"), int(rng.integers(0, 7)))),
            "obs": rng.normal(size=2).astype("f4"),
            "rew": np.float32(rng.normal()),
            "goal": float(rng.integers(9)),
            "achieved": float(rng.integers(9)),
            "next_id": number + 1,
            "next_ids": rng.integers(1, 1000, nexts).astype("i4"),
            "terminated": bool(rng.random() < 0.1),
        }


@dataclass(frozen=True)
class Expected:
    """What a batch of a layout looks like."""

    packed: bool = False
    left: str = ""  # axes with padding on the left
    values: dict[str, Any] = field(default_factory=dict)
    multiple_of: int = 1
    length: dict[str, int] = field(default_factory=dict)  # or totals
    positions: bool = False
    segments: bool = False
    offsets: Any = np.int32
    dtypes: dict[str, Any] = field(default_factory=dict)


def check_batch(
    batch: Values,
    rows: list[Values],
    layout: Expected,
    *,
    single: tuple[str, ...] = (),
    fields: tuple[str, ...] = tuple(FIELDS),
    changed: tuple[str, ...] = (),
) -> None:
    """Compare each value of a batch with those of the rows that the columns of ids name."""
    ids = batch["id"]
    there = np.ones(ids.shape, bool)
    if ids.ndim == 2 and "mask" in batch:
        there = batch["mask"]
    every = [rows[k] if here else None for k, here in zip(ids.ravel(), there.ravel(), strict=True)]
    last = every
    if "next_id" in batch:
        flat = batch["next_id"].ravel()
        last = [rows[k - 1] if here else None for k, here in zip(flat, there.ravel(), strict=True)]
    assert "entry of T" not in batch
    shown = [name for name in fields if name in RAGGED and name not in changed]
    check = _check_packed if layout.packed else _check_padded
    axes = {RAGGED[name][0] for name in shown}
    if layout.packed and "edges" in shown + (["edges"] if "root" in fields else []):
        axes.add("N")
    marks = set()
    for axis in ("N", "E", "T", "U"):
        if axis not in axes:
            continue
        names = [name for name in shown if RAGGED[name][0] == axis]
        of_rows = last if axis == "U" else every
        lead = ids.shape
        if names and names[0] in single:
            of_rows, lead = of_rows[:: ids.shape[1]], ids.shape[:1]
        marks |= check(batch, axis, names, of_rows, lead, layout)
    if "root" in fields and "root" not in changed:
        _check_roots(batch["root"], every, layout)
    if "text" in fields:
        texts = [one["text"] if one else "" for one in every]
        if "text" in single:
            texts = texts[:: ids.shape[1]]
        assert batch["text"].ravel().tolist() == texts
    known = {name for name in batch if name[:2] in ("N_", "E_", "T_", "U_")}
    assert known == marks, (known, marks)


def _count(row: Values | None, axis: str) -> int:
    if row is None:
        return 0
    name = next(name for name, (own, _) in RAGGED.items() if own == axis)
    return int(row[name].shape[RAGGED[name][1]])


def _round_up(n: int, multiple: int) -> int:
    while n % multiple:
        n += 1
    return n


def _check_padded(
    batch: Values, axis: str, names: list[str], rows: list[Any], lead: Any, layout: Expected
) -> set[str]:
    counts = [_count(row, axis) for row in rows]
    length = layout.length.get(axis, _round_up(max(counts, default=0), layout.multiple_of))
    mask, is_left = batch[f"{axis}_mask"], axis in layout.left
    assert mask.dtype == layout.dtypes.get(f"{axis}_mask", np.dtype(bool))
    assert mask.shape == (*lead, length)
    for k, count in enumerate(counts):
        expected = [place < count for place in range(length)]
        assert mask.reshape(len(rows), length)[k].tolist() == (
            expected[::-1] if is_left else expected
        )
    for name in names:
        at, array = RAGGED[name][1], batch[name]
        shape = list(_items(rows, name).shape)
        shape[at] = length
        dtype = np.dtype(layout.dtypes.get(name, DTYPES[name]))
        assert (array.dtype, array.shape) == (dtype, (*lead, *shape))
        flat = array.reshape(len(rows), *shape)
        for k, row in enumerate(rows):
            own = np.full(shape, layout.values.get(name, 0), dtype)
            if row is not None:
                first = length - counts[k] if is_left else 0
                np.moveaxis(own, at, 0)[first : first + counts[k]] = np.moveaxis(row[name], at, 0)
            np.testing.assert_array_equal(flat[k], own, err_msg=f"{name} of row {k}")
    return {f"{axis}_mask"}


def _items(rows: list[Any], name: str) -> Array:
    """An array of a field, for its shape."""
    known = {"nodes": (0, 2), "edges": (2, 0)}.get(name, (0,))
    return np.zeros(known)


def _begins(rows: list[Any], axis: str) -> list[int]:
    found = [0]
    for row in rows:
        found.append(found[-1] + _count(row, axis))
    return found


def _check_packed(
    batch: Values, axis: str, names: list[str], rows: list[Any], lead: Any, layout: Expected
) -> set[str]:
    del lead
    begins = _begins(rows, axis)
    used = begins[-1]
    total = layout.length.get(axis, _round_up(used, layout.multiple_of))
    has_filler = axis in layout.length or layout.multiple_of > 1
    offsets = begins + ([total] if has_filler else [])
    marks = {f"{axis}_offsets", f"{axis}_longest"}
    assert batch[f"{axis}_offsets"].dtype == layout.offsets
    assert batch[f"{axis}_offsets"].tolist() == offsets
    assert batch[f"{axis}_longest"] == max(np.diff(offsets), default=0)
    segments = [k for k, n in enumerate(np.diff(offsets)) for _ in range(n)]
    positions = [j for n in np.diff(offsets) for j in range(n)]
    for kind, asked, expected in (
        ("positions", layout.positions, positions),
        ("segments", layout.segments, segments),
    ):
        if asked:
            marks.add(f"{axis}_{kind}")
            found = batch[f"{axis}_{kind}"]
            assert (found.dtype, found.tolist()) == (np.dtype(layout.offsets), expected)
    for name in names:
        at, dtype = RAGGED[name][1], np.dtype(layout.dtypes.get(name, DTYPES[name]))
        shape = list(_items(rows, name).shape)
        shape[at] = total
        whole = np.zeros(shape, dtype)
        along = np.moveaxis(whole, at, 0)
        shifts = _begins(rows, "N") if name == "edges" else [0] * (len(rows) + 1)
        for k, row in enumerate(rows):
            if row is not None:
                along[begins[k] : begins[k + 1]] = np.moveaxis(row[name], at, 0) + shifts[k]
        along[used:] = layout.values.get(name, 0)
        if name == "edges":
            full = layout.length.get("N", _round_up(shifts[-1], layout.multiple_of))
            along[used:] = shifts[-1] if full > shifts[-1] else 0
        assert batch[name].dtype == dtype
        np.testing.assert_array_equal(batch[name], whole, err_msg=name)
    return marks


def _check_roots(roots: Array, rows: list[Any], layout: Expected) -> None:
    begins = _begins(rows, "N")
    for k, (root, row) in enumerate(zip(roots.ravel().tolist(), rows, strict=True)):
        own = 0 if row is None else row["root"]
        assert root == own + (begins[k] if layout.packed and _count(row, "N") else 0)
