"""Results of the benchmarks are reported as they are, in the table, the README and the pictures."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import report
from budgets import BEFORE, FLOOR, OURS
from cases import EFFORTS, cases
from reports.plots import PLOTS
from reports.tables import missed, page, table

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
PEER, UNABLE = "some-peer", "other"
ADD, GROWN = "add 1 small step", "sample 256 of 1e+08 small steps"
LOOP, IN_LOOP = "DQN on CartPole: an environment step", "DQN on CartPole: of it in the buffer"
HELD: dict[str, dict[str, Any]] = {
    case.name: {OURS: {"median": 1e-9}, FLOOR: {"median": 1e-9}} for case in cases(EFFORTS["full"])
}


def took(number: float, **more: float) -> dict[str, float]:
    """A result as a run writes it."""
    return {"median": number, **more}


def run(changes: dict[str, dict[str, Any]] | None = None) -> dict[str, Any]:
    """A run of all cases in which we are far ahead of one peer, and another can do nothing."""
    usual = {
        OURS: took(2e-6),
        FLOOR: took(1.9e-6),
        PEER: took(2e-3),
        UNABLE: {"cannot": "has nothing of the kind"},
    }
    found = {case.name: dict(usual) for case in cases(EFFORTS["full"])}
    for name, results in (changes or {}).items():
        found[name] |= results
    packages = {"numpy": "2.4.6", "Some_Peer": "1.2"}
    entrant = {"how": "As it is.", "python": "3.11.7", "packages": packages}
    return {
        "effort": "full",
        "machine": {"processor": "P", "cores": 2, "system": "Linux", "date": "2026-11-21"},
        "entrants": dict.fromkeys(usual, entrant),
        "absent": {"reverb": "does not install"},
        "cases": [{"name": name, "results": results} for name, results in found.items()],
    }


def row(text: str, name: str) -> list[str]:
    """The cells of a line of a table, after its name."""
    lines = [line for line in text.splitlines() if line.startswith(f"| {name} ")]
    assert len(lines) == 1, text
    return [cell.strip() for cell in lines[0].strip("|").split("|")][1:]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A tree with pages that have a place for the tables, and results that are in no page yet."""
    for name in report.PAGES:
        page = tmp_path / name
        page.parent.mkdir(exist_ok=True)
        page.write_text(f"before\n{report.BEGIN}\nold\n{report.END}\nafter\n", encoding="utf-8")
    write_results(tmp_path, run())
    for name, results in {"any-length.json": run, **OTHERS}.items():
        path = tmp_path / report.FOLDER / name
        path.write_text(json.dumps(results()), encoding="utf-8")
    return tmp_path


def measured_on_a_device() -> dict[str, Any]:
    """What calls on a device take, as a run writes it."""
    seconds = {OURS: 2e-5, PEER: 3e-5}
    row = {"task": "pixels", "fast_td3": 1000, "ours": 600.0, "ours_long": 550.0}
    return {
        "cases": [{"call": "sample", "rows": 256, "envs": 64, "seconds": seconds}],
        "nbytes": [row],
        "packages": {"torch": "2.13.0"},
        "rows": 1_000_000,
        "machine": run()["machine"] | {"load": None},
    }


def measured_of_a_run() -> dict[str, Any]:
    """What rollouts and checkpoints take, as a run writes it."""
    case = {"case": "GAE", "floor": "loop in C", "seconds": [3e-3, 2e-3]}
    return {"machine": run()["machine"] | {"load": None}, "numpy": "2.4.6", "cases": [case]}


def waited() -> dict[str, Any]:
    """How long a learner waited, as a run writes it."""
    times = {"least": 1e-3, "median": 2e-3, "whole": 0.1, "alone": 1.5e-3}
    about = {"python": "3.11.7", "torch": "2.13.0", "rows": 4000, "load": [1.0, 1.0, 1.0]}
    return {
        "about": {"stable_baselines3": about},
        "cases": [{"name": name, "batch": n, **times} for n in (256, 32) for name in (OURS, PEER)],
        "failed": {"torchrl": "does not run"},
        "machine": run()["machine"],
    }


def shared() -> dict[str, Any]:
    """What processes that share a replay did, as a run writes it."""
    rates = {OURS: 2e6, "one process": 2.5e6, "copy": 1e6, "cpprb": 5e3}
    cases: list[dict[str, Any]] = [
        {"package": name, "case": case, "actors": actors, "what": "adds", "adds": rate / actors}
        for name, rate in rates.items()
        for case in ("small", "images")
        for actors in (1, 2, 4)
    ]
    failed = {"package": "reverb", "case": "small", "actors": 2, "what": "adds"}
    latency = {"package": OURS, "case": "small", "actors": 1, "what": "latency", "latency": 5e-6}
    draws = {f"uniform {shards} sample 256": 1e-5 * (1 + shards / 8) for shards in (0, 1, 2, 4)}
    drawn = {"package": OURS, "case": "small", "actors": 0, "what": "draws", **draws}
    return {
        "about": {"cpprb": {"python": "3.11.7", "release": "cpprb 11.0.0"}},
        "cases": [*cases, latency, drawn, failed | {"error": "no end within 120 s"}],
        "machine": run()["machine"],
    }


def learned() -> dict[str, Any]:
    """What examples learned with two seeds, as a run writes it."""
    what = "mean return of 20 episodes"

    def scores(stated: str, *found: float) -> dict[str, Any]:
        runs = [
            {"seed": seed, "score": score, "what": what, "seconds": 60.0 + 20 * seed}
            for seed, score in enumerate(found)
        ]
        return {"stated": stated, "machine": run()["machine"], "runs": runs}

    failing = scores("at most 5")
    failing["runs"] = [{"seed": 0, "error": "ImportError: no"}]
    examples = {
        "one.py": scores("at least -200", -150.4, -160.2),
        "other.py": scores("at least 0.9", 1.0, 0.85),
        "third.py": failing,
    }
    return {"packages": {"torch": "2.13.0"}, "examples": examples}


# Results that are not of the cases of ``full.json``, each as a run writes it.
OTHERS: dict[str, Callable[[], dict[str, Any]]] = {
    "waiting-full.json": waited,
    "processes.json": shared,
    "examples.json": learned,
    "device.json": measured_on_a_device,
    "rules.json": measured_of_a_run,
    "whole-run.json": measured_of_a_run,
}


def write_results(tree: Path, results: dict[str, Any]) -> None:
    """As a full run writes them."""
    path = tree / report.FOLDER / "full.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(results), encoding="utf-8")


def test_a_line_has_medians_ratios_and_promises() -> None:
    """Ours and the floor, how they compare; a peer's time as a multiple of both."""
    text = table(run({ADD: {OURS: took(1e-7), FLOOR: took(4e-8), PEER: took(1e-6)}}))
    ours, floor, ratio, peer, promised = row(text, ADD)
    assert (ours, floor, ratio) == ("100 ns", "40.0 ns", "2.50")
    assert peer == "1.00 us (10.0; 25.0)"
    assert promised == "<= 2 x floor: FAIL; >= 20 x ahead of every peer: FAIL"


def test_results_of_a_case_that_is_gone_are_refused() -> None:
    """Its promise would be lost."""
    results = run()
    results["cases"][0]["name"] = "add 1 huge step"
    with pytest.raises(ValueError, match="no such case any more, measure again: add 1 huge step"):
        missed(results)


def test_cases_that_are_newer_than_the_results_are_named() -> None:
    """A page without a case says so; with all cases it says nothing of the kind."""
    results = run()
    assert page(results) == table(results)
    left = {ADD, "add 1 graph"}  # the second one has a page of its own
    results["cases"] = [found for found in results["cases"] if found["name"] not in left]
    below = page(results).removeprefix(table(results))
    assert below.split("\n\n")[1:] == [
        "Cases that are newer than these results, not yet measured:",
        f"- {ADD}",
    ]


def test_no_line_where_promises_are_held_or_others_are_not_there() -> None:
    """Of those who did not come nothing was promised."""
    assert missed(run(HELD)) == []
    alone = {name: {who: {"cannot": "fails"} for who in (FLOOR, PEER)} for name in HELD}
    kept = {OURS: {"median": 1e-9}}
    assert missed(run({name: others | kept for name, others in alone.items()})) == []


def test_a_case_that_ours_failed_is_missed() -> None:
    """A promise is not held by not doing it."""
    (line,) = missed(run(HELD | {ADD: {OURS: {"cannot": "MemoryError: no"}}}))
    assert line == f"{ADD}: {OURS} did not do it: MemoryError: no"


def test_what_the_floor_lacks_too_is_no_failure() -> None:
    """A package that is not installed keeps both from the case."""
    lacking = {"cannot": "there is no torch here"}
    assert missed(run(HELD | {ADD: {OURS: lacking, FLOOR: lacking}})) == []
    assert len(missed(run(HELD | {ADD: {OURS: lacking, FLOOR: {"cannot": "fails"}}}))) == 1


def test_another_checkout_is_no_peer() -> None:
    """Its times stand in columns of their own; neither they nor its floors are promised against."""
    before = {f"{BEFORE}{OURS}": took(1e-6), f"{BEFORE}{FLOOR}": took(1e-7), PEER: took(1e-3)}
    results = run({ADD: before | {OURS: took(2e-6), FLOOR: took(1.9e-6)}})
    results["entrants"] |= dict.fromkeys(before, results["entrants"][OURS])
    text = table(results)
    assert row(text, ADD)[-1].endswith(">= 20 x ahead of every peer: pass")
    assert "1.00 us (0.500; 0.526)" in row(text, ADD)
    assert "took less" not in text


def test_a_missed_promise_is_reported_with_its_numbers() -> None:
    """The case, the promise, ours, and those that it was not held against: one line each."""
    bad: dict[str, dict[str, Any]] = {
        ADD: {OURS: took(1e-7), FLOOR: took(4e-8), PEER: took(1e-6), UNABLE: took(1)},
        "memory of a small step, as its repr says": {OURS: {"value": 70}, FLOOR: {"value": 45}},
    }
    floor = f"{ADD}: promised <= 2 x floor"
    peers = f"{ADD}: promised >= 20 x ahead of every peer"
    assert missed(run(HELD | bad)) == [
        f"{floor}; {OURS} takes 100 ns; floor takes 40.0 ns, ours is 2.50 x that",
        f"{peers}; {OURS} takes 100 ns; {PEER} takes 1.00 us, 10.0 x ours",
        f"memory of a small step, as its repr says: promised <= 64.0 B; {OURS} takes 70.0 B",
    ]


def test_a_peer_is_compared_with_the_run_of_ours_beside_it() -> None:
    """Where peers come one by one, the machine may have been slower when another came."""
    grown = {OURS: took(2e-6, beside=2e-6), PEER: took(3e-6, beside=4e-6)}
    results = run({GROWN: grown})
    assert row(table(results), GROWN)[3].startswith("1.50 us (0.750; ")  # and not 1.5 times
    (line,) = (line for line in missed(results) if line.startswith(GROWN))
    assert line.endswith(f"{OURS} takes 2.00 us; {PEER} takes 1.50 us, ours is 1.33 x that")


def test_the_report_is_written_where_it_belongs(tree: Path) -> None:
    """Between the marks, and nowhere else; writing it again changes nothing."""
    report.update(tree)
    pages = [tree / name for name in report.PAGES]
    texts = [page.read_text(encoding="utf-8") for page in pages]
    for text in texts:
        assert text.startswith(f"before\n{report.BEGIN}\n\n")
        assert text.endswith(f"\n\n{report.END}\nafter\n")
        assert "\nold\n" not in text
    held = [name for name, text in zip(report.PAGES, texts, strict=True) if ADD in text]
    assert held == [name for name, (file, _) in report.PAGES.items() if file not in OTHERS]
    assert "waited for" in texts[4]
    assert "beside a learner" in texts[5]
    assert "FastTD3" in texts[6]
    assert row(texts[8], "GAE") == ["3.00 ms", "loop in C", "2.00 ms", "1.50"]
    report.update(tree)
    assert texts == [page.read_text(encoding="utf-8") for page in pages]


def test_a_page_without_a_place_is_refused(tree: Path) -> None:
    """A report that is written nowhere would not be noticed."""
    (tree / "README.md").write_text("Nothing.", encoding="utf-8")
    with pytest.raises(ValueError, match=r"README\.md has no lines"):
        report.update(tree)


def test_other_results_are_noticed(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each table and each picture that shows other numbers is named; then there is no success."""
    monkeypatch.setattr(report, "ROOT", tree)
    everything = [*report.PAGES, *(f"{report.FOLDER}/{name}" for name in PLOTS)]
    assert report.outdated(tree) == everything
    report.update(tree)
    assert report.outdated(tree) == []
    write_results(tree, run({ADD: {PEER: took(4e-3)}}))
    assert report.outdated(tree) == [
        *everything[1:3],  # the README does not name this peer
        everything[len(report.PAGES)],
    ]  # growth is of other cases
    monkeypatch.setattr(sys, "argv", ["report.py", "--check"])
    names = r"docs/performance\.md, docs/benchmarks\.md, .*ratios\.svg"
    with pytest.raises(SystemExit, match=names):
        report.main()
    monkeypatch.setattr(sys, "argv", ["report.py"])
    report.main()
    assert report.outdated(tree) == []


def test_the_report_of_this_tree_is_of_its_results() -> None:
    """The tables of README.md and of pages under docs, and the pictures."""
    assert report.outdated(ROOT) == []
