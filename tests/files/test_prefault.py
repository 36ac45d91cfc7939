"""``prefault`` touches the memory of the rows that come next, and changes no value."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from forked import outcome
from helpers import refused
from optional import need

from cpprb_like import ReplayBuffer
from cpprb_like.samplers import Prioritized

FIELDS: dict[str, Any] = {
    "obs": {"shape": (64, 64, 4), "dtype": "u1"},
    "image": {"shape": 50_000, "dtype": "u1"},
    "rew": {"shape": ()},
    "note": {"shape": (), "dtype": object},
}


def step(t: int, **more: Any) -> dict[str, Any]:
    """A row."""
    obs = np.full((64, 64, 4), t % 251)
    return {"obs": obs, "next_obs": obs + 1, "image": np.full(50_000, t % 13), "rew": t, **more}


@pytest.mark.parametrize("in_file", [False, True])
@pytest.mark.parametrize(
    "options", [{}, {"next_of": "obs"}, {"next_of": "obs", "stack_compress": "obs"}, {"n_envs": 2}]
)
def test_no_value_changes(options: dict[str, Any], tmp_path: Path, *, in_file: bool) -> None:
    """At each number of rows, behind the end of the ring too, and beyond its size."""
    fields = {name: spec for name, spec in FIELDS.items() if not (in_file and name == "note")}
    if in_file:
        options = options | {"mmap_prefix": tmp_path / "x"}
    if "next_of" not in options:
        fields |= {"next_obs": FIELDS["obs"]}
    rb = ReplayBuffer(10, fields, sampler=Prioritized(), **options)
    more = {} if in_file else {"note": {"any": 1}}
    for t in range(25):
        before = rb.get_all_transitions()
        for rows in (0, 1, 7, 10**9):
            rb.prefault(rows)
        np.testing.assert_equal(rb.get_all_transitions(), before)
        rb.check()
        if rb.n_envs == 1:
            rb.add(**step(t, **more))
        else:
            both = [step(t, **more), step(t + 1, **more)]
            rb.add(**{name: [row[name] for row in both] for name in both[0]})


def test_rows_do_not_wait_for_memory(tmp_path: Path) -> None:
    """Rows that were touched take hardly a page fault; rows behind them take theirs."""
    resource = need("resource")
    fields: dict[str, Any] = {"image": {"shape": 2**20, "dtype": "u1"}}
    rb = ReplayBuffer(64, fields, mmap_prefix=tmp_path / "x")
    image = np.ones(2**20, np.uint8)

    def faults_of(rows: int) -> int:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for _ in range(rows):
            rb.add(image=image)
        return int(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)

    rb.prefault(32)
    touched, others = faults_of(32), faults_of(32)
    assert touched < others / 2


def test_the_last_page_of_each_field_is_touched(tmp_path: Path) -> None:
    """Rows begin anywhere in a page, so steps of a page from there may end before the last one."""
    resource = need("resource")
    page = resource.getpagesize()
    fields: dict[str, Any] = {f"x{k}": {"shape": page - 96, "dtype": "u1"} for k in range(32)}
    rb = ReplayBuffer(128, fields, mmap_prefix=tmp_path / "x")  # an even number of pages each
    row = {name: np.ones(page - 96, np.uint8) for name in fields}

    def faults() -> int:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        rb.add(**row)
        return int(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)

    others = faults()
    rb.prefault(1)
    assert faults() < 16 < others


def test_misuse_and_read_only(tmp_path: Path) -> None:
    """Numbers are checked. A file that is open to read, and that of a parent, are left alone."""
    fields: dict[str, Any] = {"rew": {"shape": ()}}
    rb = ReplayBuffer(10, fields)
    for wrong, error in ((-1, ValueError), (1.5, TypeError), (None, TypeError)):
        with refused(rb, error, "rows"):
            rb.prefault(wrong)  # type: ignore[arg-type]
    mapped = ReplayBuffer(10, fields, mmap_prefix=tmp_path / "x")
    mapped.add(rew=1)
    reader = ReplayBuffer(10, fields, mmap_prefix=tmp_path / "x", mmap_mode="r")
    reader.prefault(10)
    assert reader[0] == mapped[0] == {"rew": 1.0}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_child_does_not_touch_the_file_of_its_parent(tmp_path: Path) -> None:
    """It could undo what the parent writes at the same time."""
    rb = ReplayBuffer(10, {"rew": {"shape": ()}}, mmap_prefix=tmp_path / "x")

    def job() -> None:
        with pytest.raises(RuntimeError, match="the parent process writes to this file"):
            rb.prefault(10)

    assert outcome(job) == 0
