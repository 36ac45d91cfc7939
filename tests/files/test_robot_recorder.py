"""A robot recorder that is killed loses no whole take, and keeps none that was dropped or cut."""

from __future__ import annotations

import ast
import runpy
import shutil
import signal
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
from pages import blocks
from robot_cases import (
    EXAMPLE,
    Numbered,
    check_takes,
    is_kept,
    killed_often,
    open_takes,
    record,
    says,
    ticks_of,
)
from scale import KILLS

from cpprb_like._files import file_maps

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


class Failing(Numbered):
    """A robot that fails in the middle of take 3."""

    def move(self, act: Any) -> None:
        """On to the next tick."""
        if self.tick == 11:
            raise OSError("robot lost")
        super().move(act)


@pytest.mark.parametrize("where", ["robot", "keep", "the end"])
def test_a_take_that_raised_is_dropped(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rows are not in the next take; also if it could not be dropped at once."""

    def fail(_: Any) -> bool:
        raise OSError("robot lost")

    takes = open_takes(tmp_path)
    record(takes, 0)
    robot = Failing(3) if where == "robot" else Numbered(3)
    keep = fail if where == "keep" else lambda _: False
    if where == "the end":
        monkeypatch.setitem(EXAMPLE["record"].__globals__, "drop_unfinished", fail)
    with pytest.raises(OSError, match="robot lost"):
        EXAMPLE["record"](takes, robot, says(3), keep, most_ticks=ticks_of(3), rate=None)
    monkeypatch.undo()
    if where != "the end":
        assert check_takes(takes) == [0]
    record(takes, 5)
    assert check_takes(takes) == [0, 5]


def test_a_power_cut_takes_no_take_beside_a_deleted_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of a chunk with deleted rows were lost: the next run deletes, and is cut in its take."""
    (tmp_path / "run").mkdir()
    monkeypatch.setattr(file_maps, "_boot_id", lambda: b"before")
    takes = open_takes(tmp_path / "run")
    for take in (0, 2, 3):
        record(takes, take)
    last = takes.episodes.read(-1, start=-1)
    takes.add(**(last | {"terminated": [False], "truncated": [False]}))
    del takes  # which flushes the open take
    takes = open_takes(tmp_path / "run")
    shutil.copytree(tmp_path / "run", tmp_path / "cut")
    assert check_takes(takes) == [0, 2, 3]
    monkeypatch.setattr(file_maps, "_boot_id", lambda: b"after")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what is left out
        assert check_takes(open_takes(tmp_path / "cut")) == [0, 2, 3]


def test_the_page_has_the_functions_of_the_example() -> None:
    """Word for word, so that what holds here holds for a copy of the page."""
    root = Path(__file__).parents[2]
    page = "".join(blocks((root / "docs" / "robots.md").read_text("utf-8"), "python"))
    example = Path(EXAMPLE["__file__"]).read_text("utf-8")
    for name in ("open_takes", "drop_unfinished", "record"):
        here, there = (
            next(
                ast.get_source_segment(text, node)
                for node in ast.parse(text).body
                if isinstance(node, ast.FunctionDef) and node.name == name
            )
            for text in (page, example)
        )
        assert here == there


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
