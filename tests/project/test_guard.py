"""The guard of the instruction counts: what it reads, compares, records and says."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import guard.__main__ as command
import numpy as np
import pytest
from guard.callgrind import CallgrindError, Count, count
from guard.counts import NoReasonError, Record, Recorded
from guard.paths import PAIRS, PATHS
from scale import THOROUGH

TOOLS = {"interpreter": "CPython 3.11.7", "compiler": "GCC 12.2.0"}
OTHER_TOOLS = TOOLS | {"compiler": "GCC 14.1.0"}
RECORD = Record(
    TOOLS,
    "2.4.6",
    "3.3.1",
    (),
    {"add": Recorded(Count(1000, 500)), "sample": Recorded(Count(20_000, 9000), ("earlier",))},
)
SAME = {name: path.count for name, path in RECORD.paths.items()}


# ---- what callgrind writes -----------------------------------------------------------------


@pytest.mark.skipif(not THOROUGH, reason="CPPRB_LIKE_LONG=1 runs it: NumPy under valgrind")
@pytest.mark.skipif(shutil.which("valgrind") is None, reason="needs valgrind")
def test_twice_the_work_is_twice_the_instructions(tmp_path: Path) -> None:
    """Under valgrind: a path that works twice costs twice, in NumPy and all in all."""
    program = tmp_path / "program.py"
    program.write_text(
        "import numpy as np\n"
        "from guard.runner import run\n"
        "from measure import statement\n"
        "work, names = 'np.cumsum(numbers)', {'np': np, 'numbers': np.ones(4096)}\n"
        "run({'once': lambda: statement(work, **names),\n"
        "     'twice': lambda: statement(f'{work}; {work}', **names)})\n"
    )

    counted = count(program, ["twice", "once"], Path(np.__file__).resolve().parent)

    assert list(counted) == ["twice", "once"]
    once, twice = counted["once"], counted["twice"]
    assert 4096 < once.compiled < once.all
    assert twice.compiled == pytest.approx(2 * once.compiled, rel=0.01)
    assert twice.all == pytest.approx(2 * once.all, rel=0.02)


@pytest.mark.skipif(os.name == "nt", reason="stands in for valgrind with a shell script")
def test_a_program_that_fails_is_an_error_with_its_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is compared if the program did not come to its end."""
    fake = tmp_path / "valgrind"
    fake.write_text("#!/bin/sh\necho it broke >&2\nexit 3\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CallgrindError, match="it broke"):
        count(tmp_path / "program.py", ["path"], tmp_path)


def test_without_valgrind_one_sentence_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without valgrind the message says so."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CallgrindError, match=r"No valgrind.*: install"):
        count(tmp_path / "program.py", ["path"], tmp_path)


# ---- what is recorded ----------------------------------------------------------------------


def test_a_rise_of_either_count_over_the_tolerance_is_found() -> None:
    """5 % is not too much; more is, in all instructions or in the compiled ones."""
    assert not RECORD.compare(SAME | {"add": Count(1050, 525)}).failed
    for dearer in (Count(1051, 500), Count(1000, 526), Count(900, 526)):
        verdict = RECORD.compare(SAME | {"add": dearer})

        assert verdict.failed
        assert verdict.dearer == ("add",)
        assert verdict.cheaper == ()


def test_paths_and_record_have_the_same_names() -> None:
    """A path without a record fails, and so does a record without a path."""
    verdict = RECORD.compare({"sample": SAME["sample"], "load": Count(1, 1)})

    assert verdict.failed
    assert (verdict.unknown, verdict.gone) == (("load",), ("add",))
    assert list(RECORD.brought_up_to_date({"load": Count(1, 1)}, "").paths) == ["load"]


def test_a_rise_is_recorded_with_its_reason() -> None:
    """Reasons add up; what changed little keeps its count, so that it cannot creep."""
    counted = {"add": Count(1040, 500), "sample": Count(30_000, 12_000)}

    paths = RECORD.brought_up_to_date(counted, "checks the dtype").paths

    assert paths["add"] == RECORD.paths["add"]
    assert paths["sample"].count == counted["sample"]
    reason = "20000 -> 30000, compiled 9000 -> 12000: checks the dtype"
    assert paths["sample"].why == ("earlier", reason)


def test_a_rise_is_not_recorded_without_a_reason() -> None:
    """A fall needs none."""
    with pytest.raises(NoReasonError, match="say why these cost more: add"):
        RECORD.brought_up_to_date(SAME | {"add": Count(2000, 500)}, "")

    cheaper = RECORD.brought_up_to_date(SAME | {"sample": Count(10_000, 9000)}, "")

    assert cheaper.paths["sample"] == Recorded(Count(10_000, 9000), ("earlier",))


def test_another_toolchain_replaces_all_counts() -> None:
    """That needs a reason, which stands by itself; those of the paths stay."""
    counted = {"add": Count(1, 1), "sample": Count(2, 2)}
    with pytest.raises(NoReasonError):
        RECORD.moved_to(OTHER_TOOLS, "2.5.0", counted, "")

    moved = RECORD.moved_to(OTHER_TOOLS, "2.5.0", counted, "new image")

    assert moved.compare(counted) == RECORD.compare(SAME)
    assert (moved.toolchain, moved.numpy) == (OTHER_TOOLS, "2.5.0")
    assert moved.paths["sample"].why == ("earlier",)
    assert len(moved.why) == 1
    assert moved.why[0].endswith("GCC 12.2.0 -> CPython 3.11.7, GCC 14.1.0: new image")


def test_every_hot_path_is_recorded() -> None:
    """The file in the tree has a count for each path, and is as the program writes it."""
    record = Record.read(command.FILE)

    assert set(record.paths) == set(PATHS)
    assert {*PAIRS, *PAIRS.values()} <= set(PATHS)
    assert all(path.count.all >= path.count.compiled > 0 for path in record.paths.values())


@pytest.mark.parametrize("name", PATHS)
def test_hot_path_runs(name: str) -> None:
    """Each path can be set up, and runs without valgrind as well."""
    PATHS[name]()(3)


# ---- what is said --------------------------------------------------------------------------


@pytest.fixture
def counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Count]:
    """What the command finds instead of counting; its record is ``RECORD``."""
    found = dict(SAME)
    monkeypatch.setattr(command, "FILE", tmp_path / "counts.json")
    monkeypatch.setattr(command, "count", lambda *_: found)
    monkeypatch.setattr(command, "toolchain", lambda: TOOLS)
    monkeypatch.setattr(command, "numpy_folders", lambda _: ())
    monkeypatch.setattr(command, "version", lambda _: "3.3.1")
    RECORD.write(command.FILE)
    return found


def test_the_command_passes_when_nothing_costs_more(
    counted: dict[str, Count], capsys: pytest.CaptureFixture[str]
) -> None:
    """It prints each path with both counts."""
    with pytest.raises(SystemExit) as end:
        command.main([])

    assert not end.value.code
    assert capsys.readouterr().out.splitlines()[2].split() == [
        *("sample", "20,000", "20,000", "+0.0%", "9,000", "9,000", "+0.0%")
    ]


def test_the_command_fails_and_names_what_costs_more(
    counted: dict[str, Count],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It says what to do, and that the code generator is another one."""
    counted["sample"] = Count(21_001, 9000)
    monkeypatch.setattr(command, "version", lambda _: "3.4.0")
    with pytest.raises(SystemExit) as end:
        command.main([])

    said = capsys.readouterr().out
    assert end.value.code
    assert "cost over 5% more than recorded" in said
    assert said.partition("These paths")[2].count("\n  ") == 1
    assert "\n  sample\n" in said
    assert "--record --because" in said
    assert "Cython was 3.3.1 then, and is 3.4.0 now." in said


def test_the_command_fails_if_a_learner_costs_too_much(
    counted: dict[str, Count],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It prints the ratio of each pair of draws, and names those above 1.5."""
    monkeypatch.setattr("guard.paths.PAIRS", {"sample": "add"})
    counted |= {"sample": Count(20_000, 9000), "add": Count(1000, 500)}
    with pytest.raises(SystemExit) as end:
        command.main([])

    said = capsys.readouterr().out
    assert end.value.code
    assert "sample: 20.00 times add\n" in said
    assert "These paths cost over 1.5 times as much as on a buffer" in said


def test_what_is_dearer_is_counted_with_memory_laid_out_in_other_ways(
    counted: dict[str, Count], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bad luck of one layout is no rise: the least of each count is compared."""
    layouts = {0: Count(22_000, 9000), 1: Count(20_500, 9600), 2: Count(21_500, 9100)}
    asked = []

    def count_again(
        program: Path, names: list[str], package: Path, libraries: list[Path], placement: int = 0
    ) -> dict[str, Count]:
        asked.append((placement, tuple(names)))
        return {**counted, "sample": layouts[placement]}

    monkeypatch.setattr(command, "count", count_again)
    with pytest.raises(SystemExit) as end:
        command.main([])

    assert not end.value.code
    assert asked == [(0, tuple(PATHS)), (1, ("sample",))]


def test_the_command_records(counted: dict[str, Count]) -> None:
    """``--record`` refuses a rise without a reason, and keeps the reason it is given."""
    counted["add"] = Count(2000, 500)
    with pytest.raises(SystemExit, match="say why these cost more: add"):
        command.main(["--record"])
    assert Record.read(command.FILE) == RECORD

    command.main(["--record", "--because", "it is worth it"])

    assert Record.read(command.FILE).paths["add"].count == counted["add"]
    assert Record.read(command.FILE).paths["add"].why[0].endswith(": it is worth it")


def test_another_toolchain_is_not_compared(
    counted: dict[str, Count],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The counts are printed, and that they were not compared; that is no failure."""
    counted["add"] = Count(2000, 500)
    monkeypatch.setattr(command, "toolchain", lambda: OTHER_TOOLS)

    command.main([])

    said = capsys.readouterr().out
    assert "2,000" in said
    assert said.endswith("recorded with GCC 12.2.0; this is GCC 14.1.0: not compared\n")
