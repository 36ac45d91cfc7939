"""The benchmarks run: every case gives a number or a reason, and no contender harms another."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from math import isfinite
from pathlib import Path
from time import perf_counter, sleep
from typing import Any
from unittest.mock import Mock

import example_scores
import loop
import pytest
from budgets import BEFORE, FLOOR, OURS
from cases import ANY_LENGTH, EFFORTS, Case, cases
from cliffs import cliffs
from contender import Contender, Peer
from contenders import common, cpprb_calls
from contest import Contest, Party
from environments import MODULES, PEERS

FOLDER = Path(__file__).parents[2] / "benchmarks"
CONTENDERS = FOLDER / "contenders"
SMOKE = EFFORTS["smoke"]
NEED_TORCH = ("sample_torch_loaded", "sample_tensors")
OF_OURS = (  # operations that peers need not do
    *("sample_torch_loaded", "sequences_across", "memory_said"),
    *("add_one_", "sample_none", "sample_distinct", "sample_into", "prioritized_add_given"),
)
MADE_UP = """
import os
from contender import Cannot, Contender
from measure import statement

sound = Contender("sound", "adds")
sound.does("work")(lambda: statement("sum(range(100))"))
sound.does("size")(lambda: 5.0)
noisy = Contender("noisy", "prints")
noisy.does("work")(lambda: statement("print('hello')"))
noisy.cannot("size", "has none")
unable = Contender("unable", "says so when it is asked")


@unable.does("work")
def work():
    raise Cannot("not here")


wrong = Contender("wrong", "raises at work")
wrong.does("work")(lambda: statement("1 / 0"))
"""
DYING = """
import os
from contender import Contender
from measure import statement

dying = Contender("dying", "ends the process at its second turn")
turns = []
dying.does("work")(lambda: lambda calls: turns.append(0) or (os._exit(3) if len(turns) > 3 else 1))
"""


HELPED = """
import subprocess
import sys
from contender import Contender

helped = Contender("helped", "has a process of its own")
helper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
helped.does("work")(lambda: helper.pid)
"""


def registered(found: Contender, module: str) -> tuple[set[str], set[str]]:
    """The operations that a contender's module does, and those that it has a reason against.

    The module is parsed, as its package is not here. A function ``*_cases`` registers what it
    registers of a contender of its own with the same keywords.
    """
    source = (CONTENDERS / f"{module}.py").read_text(encoding="utf-8")
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        words = [str(one.value) for one in node.args if isinstance(one, ast.Constant)]
        keywords = dict.fromkeys((one.arg or "" for one in node.keywords), Mock())
        if isinstance(node.func, ast.Attribute):
            if node.func.attr == "does":
                found.does(*words)(Mock())
            elif node.func.attr == "works_on":
                found.works_on(Mock(), **keywords)
            elif node.func.attr == "cannot":
                found.cannot(words[0], "")
        elif isinstance(node.func, ast.Name) and node.func.id.endswith(("_cases", "_case")):
            cases_of = next(
                vars(room)[node.func.id]
                for room in (common, cpprb_calls, loop)
                if node.func.id in vars(room)
            )
            cases_of(found, *(Mock() for _ in node.args[1:]), **keywords)
    return {*found.operations}, {*found.reasons}


@pytest.fixture
def parties(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Party]:
    """Contenders that behave, and such that do not, in two processes."""
    (tmp_path / "made_up.py").write_text(MADE_UP, encoding="utf-8")
    (tmp_path / "made_up_dying.py").write_text(DYING, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    python = Path(sys.executable)
    return [Party(python, ("made_up",)), Party(python, ("made_up_dying",))]


@pytest.mark.slow
def test_a_smoke_run_measures_every_case(tmp_path: Path) -> None:
    """A run with little effort has a number of ours for each case, whatever the machine does."""
    output = tmp_path / "results.json"
    command = [sys.executable, str(FOLDER / "run.py"), "--smoke", "--peers=none"]
    done = subprocess.run(
        [*command, f"--output={output}"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode in (0, 1), done.stderr  # 1: a promise was not held
    results = json.loads(output.read_text(encoding="utf-8"))
    assert [case["name"] for case in results["cases"]] == [case.name for case in cases(SMOKE)]
    for case, written in zip(cases(SMOKE), results["cases"], strict=True):
        if not case.operation.startswith(NEED_TORCH):
            ours: dict[str, Any] = written["results"][OURS]
            number = ours.get("value", ours.get("median", 0))
            # Small buffers are lost in what else a process has in use; not all systems tell that.
            assert number > 0 or case.operation in ("memory", "memory_compact"), (case.name, ours)
            assert case.name in done.stdout
    assert results["entrants"][FLOOR]["packages"]["numpy"]


def test_a_contender_that_fails_harms_no_other(parties: list[Party]) -> None:
    """Each contender has its number or its reason; what it prints is no answer."""
    with Contest(SMOKE, parties[:1], parties[1:]) as contest:
        results = contest.results(Case("group", "work", "work"))
        sizes = contest.results(Case("group", "size", "size", unit="B"))
        again = contest.results(Case("group", "work", "work"))
    assert results["sound"]["median"] > 0
    assert results["noisy"]["rounds"] == SMOKE.rounds
    assert results["unable"] == {"cannot": "not here"}
    assert results["wrong"] == {"cannot": "ZeroDivisionError: division by zero"}
    assert "ended with 3" in results["dying"]["cannot"]
    assert sizes == {"sound": {"value": 5.0}, "noisy": {"cannot": "has none"}}
    assert again["sound"]["median"] > 0


def test_alone_each_peer_is_beside_ours(parties: list[Party]) -> None:
    """Where memory counts, processes are fresh; a result names ours of the same turns."""
    with Contest(SMOKE, [], parties[:1]) as contest:
        results = contest.results(Case("group", "work", "work", alone=True))
    assert results["sound"]["median"] > 0
    assert "beside" not in results["sound"]  # as ours took no part


@pytest.mark.skipif(os.name == "nt", reason="asks for the processes of a group")
def test_what_a_contender_started_ends_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A library that starts helpers neither stalls the end nor leaves them behind."""
    (tmp_path / "made_up_helped.py").write_text(HELPED, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    start = perf_counter()
    with Contest(SMOKE, [], [Party(Path(sys.executable), ("made_up_helped",))]) as contest:
        number = contest.results(Case("group", "work", "work", unit="B"))["helped"]["value"]
    assert perf_counter() - start < 30  # the helper would sleep for a minute
    for _ in range(100):
        if not running(int(number)):
            break
        sleep(0.05)
    assert not running(int(number))


def running(number: int) -> bool:
    """Whether there is a process of this number that has not ended."""
    try:
        os.kill(number, 0)
    except ProcessLookupError:
        return False
    state = Path(f"/proc/{number}/stat")
    return not state.exists() or state.read_text(encoding="utf-8").split()[2] != "Z"


def test_a_party_that_cannot_start_has_a_reason(tmp_path: Path) -> None:
    """A missing module is reported, and is no error."""
    with Contest(SMOKE, [], [Party(Path(sys.executable), ("not_there",))]) as contest:
        (reason,) = contest.failures().values()
        assert "not_there" in reason
        assert contest.results(Case("group", "work", "work")) == {}


@pytest.mark.parametrize("peer", PEERS)
def test_a_peer_does_every_case_or_says_why_not(peer: str) -> None:
    """Each operation of the cases is done or has a reason, and not both; none is unknown."""
    if peer == "any_length":
        pytest.skip("its contenders are in one group only")
    found = Peer(peer, "")
    for module in MODULES.get(peer, (peer,)):
        done, refused = registered(found, module)
    operations = {case.operation for effort in EFFORTS.values() for case in cases(effort)}
    asked = {operation for operation in operations if not operation.startswith(OF_OURS)}
    assert not done & refused
    assert asked <= done | refused <= operations


@pytest.mark.parametrize("module", MODULES["any_length"])
def test_who_keeps_values_of_any_length_does_all_their_cases_or_says_why_not(module: str) -> None:
    """Packages that are no replay buffers are asked for nothing else."""
    done, refused = registered(Contender(module, ""), module)
    group = [case for case in cases(SMOKE) if case.group == ANY_LENGTH]
    assert not done & refused
    assert done | refused == {case.operation for case in group}


def test_case_names_are_unique() -> None:
    """A result is found by the name of its case."""
    for effort in EFFORTS.values():
        names = [case.name for case in cases(effort)]
        assert len(names) == len(set(names))


@pytest.mark.parametrize("effort", EFFORTS)
def test_a_learner_has_rows_for_its_largest_batch(effort: str) -> None:
    """Epochs of fewer rows had no whole batch, and a smoke run never ended."""
    assert EFFORTS[effort].learner_rows >= 256


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="floors need gcc or clang")
def test_a_quick_look_at_a_whole_run_measures_each_case(tmp_path: Path) -> None:
    """Beside its floor; what is computed is compared with the floor's."""
    command = [sys.executable, str(FOLDER / "whole_run.py"), "--quick", f"--folder={tmp_path}"]
    table = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300).stdout
    assert [table.count(one) for one in ("GAE", "Offsets", "save(beside", "loop in C")] == [
        2,
        3,
        1,
        1,
    ]


@pytest.mark.slow
def test_a_quick_look_at_rules_measures_each_case() -> None:
    """Beside the draws of all rows; and beside other libraries where these are installed."""
    command = [sys.executable, str(FOLDER / "rules.py"), "--quick"]
    table = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300).stdout
    assert [table.count(one) for one in ("Among", "Groups(", "Share(", "by priority")] == [
        6,
        3,
        6,  # three after an ``add``
        21,
    ]


@pytest.mark.slow
def test_each_cliff_has_a_usual_way(tmp_path: Path) -> None:
    """A case is measured beside the usual work, here and in the checkout of another interpreter."""
    output = tmp_path / "cliffs.json"
    options = ["--effort=smoke", f"--before={sys.executable}", f"--output={output}"]
    done = subprocess.run(
        [sys.executable, str(FOLDER / "cliffs.py"), *options],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode in (0, 1), done.stderr  # 1: a case takes more than is promised
    found = json.loads(output.read_text(encoding="utf-8"))["cases"]
    measured = {one["name"]: one["results"] for one in found}
    assert [*measured] == [case.name for case in cliffs(SMOKE)]
    contenders = [f"{checkout}{name}" for checkout in (BEFORE, "") for name in (OURS, FLOOR)]
    for name, results in measured.items():
        assert sorted(results) == sorted(contenders)
        assert name in done.stdout
        for result in results.values():
            number = result.get("value", result.get("median", 0))
            lacking = ("torch", "needs gcc or clang")
            assert number > 0 or any(what in result["cannot"] for what in lacking), (name, result)


@pytest.mark.parametrize("hosts", [1, 4, 64, 1024])
def test_the_calculator_of_a_cluster_agrees_with_its_simulation(hosts: int) -> None:
    """Within a tenth while all is well; slow hosts and deaths cost, and never add."""
    import cluster_calculator as calculator  # noqa: PLC0415

    costs, sizes = calculator.Costs(), (45.0, 256, 32)
    expected = min(calculator.draws(costs, hosts, *sizes).values())
    found = calculator.simulate(costs, hosts, *sizes)
    assert abs(found / expected - 1) < 0.1
    if hosts > 1:
        slow = calculator.simulate(costs, hosts, *sizes, slow=hosts // 4, slower=50.0)
        dying = calculator.simulate(costs, hosts, *sizes, deaths=10)
        assert max(slow, dying) <= 1.01 * found


@pytest.mark.parametrize("pattern", ["even", "longer", "bursts"])
def test_what_episodes_keep_aside_stays_the_same_over_long_runs(pattern: str) -> None:
    """A ring touches no more in the second half of a run, and at most a quarter above the needs."""
    import kept_aside  # noqa: PLC0415

    growth = kept_aside.simulate(pattern, 50_000, 2_500_000, 1000)

    half = kept_aside.PARTS // 2
    assert len(growth.ring) == kept_aside.PARTS
    assert growth.ring[-1] <= 1.1 * growth.ring[half]
    assert growth.ring[-1] <= 1.25 * growth.needed[-1]
    assert growth.ring[-1] <= growth.at_once[-1]


EXAMPLE = '''"""Adds up.

Algorithm: addition.
Score: at least 5 (sum of two numbers).
Time: no time.
"""

import argparse
import sys

parser = argparse.ArgumentParser()
parser.add_argument("--seed", type=int)
parser.add_argument("--quick", action="store_true")
options = parser.parse_args()
if options.seed == 2:
    sys.exit("not with this seed")
print("score: 1.0 (before)")
print(f"score: {options.seed + 5:.1f} (sum of two numbers)")
sys.exit(options.seed)
'''


@pytest.mark.once
def test_scores_of_examples_are_collected_and_stored(tmp_path: Path) -> None:
    """The last score counts, also of a program that fails afterwards; other results stay."""
    (tmp_path / "adds.py").write_text(EXAMPLE, encoding="utf-8")
    (tmp_path / "states_nothing.py").write_text('"""Nothing."""\n', encoding="utf-8")
    assert example_scores.statements(tmp_path) == {"adds.py": "at least 5"}
    output = tmp_path / "examples.json"
    command = [sys.executable, str(FOLDER / "example_scores.py"), f"--examples={tmp_path}"]

    def scores(*options: str) -> dict[int, Any]:
        subprocess.run(
            [*command, f"--output={output}", *options],
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
        found = json.loads(output.read_text(encoding="utf-8"))["examples"]
        assert found.keys() == {"adds.py"}
        assert found["adds.py"]["stated"] == "at least 5"
        return {run["seed"]: run for run in found["adds.py"]["runs"]}

    runs = scores("--seeds=0,2", "--jobs=2", "--quick")
    assert runs[0]["score"] == 5.0
    assert runs[0]["what"] == "sum of two numbers"
    assert 0 < runs[0]["seconds"] < 60
    assert runs[2] == {"seed": 2, "error": "not with this seed"}
    assert scores("--seeds=1", "--only=adds.py").keys() == {0, 1, 2}
    refused = subprocess.run(
        [*command, "--only=states_nothing.py"], capture_output=True, text=True, check=False
    )
    assert "no line 'Score: ...' in the docstring of states_nothing.py" in refused.stderr


def test_examples_state_a_score_that_can_be_parsed() -> None:
    """Those that train, each as a number and what it is."""
    stated = example_scores.statements(FOLDER.parent / "examples")
    assert {"action_chunks.py", "rlpd.py", "world_model.py", "cartpole_dqn.py"} <= stated.keys()
    for text in stated.values():
        assert text.split()[1] in ("least", "most")
        assert isfinite(float(text.split()[2]))
