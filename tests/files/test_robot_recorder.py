"""A robot recorder that is killed loses no whole take, and keeps none that was dropped or cut."""

from __future__ import annotations

import runpy
import signal
import sys
from pathlib import Path

import pytest
from robot_cases import (
    EXAMPLE,
    check_takes,
    is_kept,
    killed_often,
    open_takes,
    record,
    ticks_of,
)
from scale import KILLS

needs_kills = pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="there is no SIGKILL")


def test_a_session_of_takes(tmp_path: Path) -> None:
    """What the operator kept is there, whole, after the file was closed and opened too."""
    takes = open_takes(tmp_path)
    for take in range(12):
        assert record(takes, take) == is_kept(take)
    kept = [take for take in range(12) if is_kept(take)]
    assert check_takes(takes) == kept
    del takes
    assert check_takes(open_takes(tmp_path)) == kept


def test_a_full_file_takes_the_place_of_no_take(tmp_path: Path) -> None:
    """The recorder says that there is no room, and has changed nothing."""
    takes = open_takes(tmp_path, 100)
    take = 0
    while takes.stats()["adds"] <= 77:
        record(takes, take)
        take += 1
    kept = check_takes(takes)
    take = next(more for more in range(take, take + 30) if ticks_of(more) == 23)
    with pytest.raises(RuntimeError, match="no room for a take"):
        record(takes, take)
    assert check_takes(takes) == kept
    with pytest.raises(ValueError, match="at most 80 bytes, got 'xxx"):
        EXAMPLE["record"](takes, None, "x" * 81, bool, most_ticks=0)


@pytest.mark.once
@needs_kills
def test_kills_at_any_time(tmp_path: Path) -> None:
    """All takes that were said to be whole are there; nothing else but one that was just done."""
    killed_often(tmp_path, max(4, KILLS // 4))


def test_the_program_goes_on_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The example, as it is started twice."""
    command = [EXAMPLE["__file__"], str(tmp_path / "takes"), "--quick", "--seconds", "0.8"]
    kept = 0
    for seed in ("1", "2"):
        monkeypatch.setattr(sys, "argv", [*command, "--takes", "4", "--seed", seed])
        runpy.run_path(EXAMPLE["__file__"], run_name="__main__")
        first, *takes, last = capsys.readouterr().out.splitlines()
        assert first.startswith(f"{kept} takes in")
        assert len(takes) == 4
        kept += sum(line.startswith("kept after") for line in takes)
        assert last.startswith(f"{kept} takes, ")
    assert 0 < kept < 8
