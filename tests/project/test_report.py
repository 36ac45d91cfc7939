"""Results of the benchmarks are reported as they are, in the table, the README and the pictures."""

from __future__ import annotations

import json
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
import report
from budgets import BEFORE, FLOOR, OURS
from cases import EFFORTS, cases
from reports.examples import examples_table
from reports.plots import PLOTS
from reports.processes import processes_tables
from reports.summary import brief, summary
from reports.tables import missed, page, table
from reports.waits import waits_table
from reports.wording import digits, quantity

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
    others = {
        "waiting-full.json": waited(),
        "processes.json": shared(),
        "examples.json": learned(),
    }
    for name, results in others.items():
        path = tmp_path / report.FOLDER / name
        path.write_text(json.dumps(results), encoding="utf-8")
    return tmp_path


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


def write_results(tree: Path, results: dict[str, Any]) -> None:
    """As a full run writes them."""
    path = tree / report.FOLDER / "full.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(results), encoding="utf-8")


@pytest.mark.parametrize(
    ("number", "unit", "text"),
    [
        (5.4666e-5, "s", "54.7 us"),
        (8.466e-8, "s", "84.7 ns"),
        (9.996e-7, "s", "1.00 us"),
        (1.5, "s", "1.50 s"),
        (2e-12, "s", "0.00200 ns"),
        (0.0, "s", "0.00 ns"),
        (-3e-6, "s", "-3.00 us"),
        (7300, "B", "7.30 kB"),
        (64, "B", "64.0 B"),
    ],
)
def test_numbers_have_three_digits_and_the_unit_of_their_size(
    number: float, unit: str, text: str
) -> None:
    """Whatever a case measures can be read."""
    assert quantity(number, unit) == text


def test_large_ratios_have_all_their_digits() -> None:
    """No exponents."""
    assert [*map(digits, (12345.6, 999.6, 178.2, 1))] == ["12,346", "1,000", "178", "1.00"]


def test_a_line_has_medians_ratios_and_promises() -> None:
    """Ours and the floor, how they compare; a peer's time as a multiple of both."""
    text = table(run({ADD: {OURS: took(1e-7), FLOOR: took(4e-8), PEER: took(1e-6)}}))
    ours, floor, ratio, peer, promised = row(text, ADD)
    assert (ours, floor, ratio) == ("100 ns", "40.0 ns", "2.50")
    assert peer == "1.00 us (10.0; 25.0)"
    assert promised == "<= 2 x floor: FAIL; >= 20 x ahead of every peer: FAIL"


def test_a_dash_has_its_reason_below_the_table() -> None:
    """The same reason is given once, by its number."""
    nothing, other = {"cannot": "adds one by one"}, {"cannot": "is too slow"}
    many, more = "add 64 small steps", "add 1024 small steps"
    text = table(run({ADD: {PEER: other}, many: {PEER: nothing}, more: {PEER: nothing}}))
    assert [row(text, name)[3] for name in (ADD, many, more)] == ["- [1]", "- [2]", "- [2]"]
    below = text.partition("add 1 pair of images")[2].partition("| Sampling")[0]
    assert "- [1] is too slow\n- [2] adds one by one\n" in below


def test_who_has_no_number_in_a_group_has_no_column_but_a_reason() -> None:
    """The table of trees is no wider for those that have none."""
    text = table(run())
    head = row(text, "Trees")
    assert head == [OURS, FLOOR, "x floor", PEER, "promised"]
    assert f"\n- {UNABLE}: has nothing of the kind\n" in text.partition("| Trees")[2]


def test_the_table_tells_who_took_part() -> None:
    """With releases, how each is used, and who could not come."""
    text = table(run())
    assert f"- {PEER} 1.2: As it is." in text
    assert "- reverb: not measured; does not install" in text
    assert "P, 2 cores, Linux, Python 3.11.7, NumPy 2.4.6; 2026-11-21" in text


def test_a_training_loop_is_reported_in_steps_per_second_and_shares() -> None:
    """In the table, and in the summary beside how many times slower a peer is."""
    results = run(
        {
            LOOP: {OURS: took(2e-4), PEER: took(2.5e-4)},
            IN_LOOP: {OURS: took(1e-5), PEER: took(5e-5)},
        }
    )
    text = table(results)
    assert row(text, "environment steps per second") == ["5,000/s", "", "", "4,000/s", ""]
    assert row(text, "share of the time in the buffer") == ["5.00 %", "", "", "20.0 %", ""]
    text = summary(results)
    assert row(text, "DQN on CartPole: environment steps") == ["**5,000/s**", "4,000/s (1.25 x)"]
    assert row(text, "DQN on CartPole: share in the buffer") == ["**5.00 %**", "20.0 %"]


def test_the_summary_shows_who_is_ahead() -> None:
    """A peer that is faster is bold, with a ratio below 1; one that cannot has a dash."""
    images, sequences = "sample 32 pairs of images", "sequences of steps, 64 x 80"
    text = summary(run({images: {PEER: took(1e-6)}, sequences: {PEER: {"cannot": "has none"}}}))
    assert row(text, ADD) == ["**2.00 us**", "1,000 x"]
    assert row(text, images) == ["2.00 us", "**0.500 x**"]
    assert row(text, sequences) == ["**2.00 us**", "-"]
    assert f"| {PEER} 1.2" in text.splitlines()[0]
    assert "2026-11-21" in text
    assert "`make bench`" in text


def test_the_summary_wants_all_its_cases() -> None:
    """A table with a line less would not be noticed."""
    results = run()
    results["cases"] = results["cases"][1:]
    with pytest.raises(ValueError, match="measure again"):
        summary(results)


def test_the_table_of_the_readme_has_few_cases_and_peers() -> None:
    """Those that many people know; all its cases must be there."""
    results = run()
    text = brief(results)
    assert row(text, ADD)[0].startswith("**")
    assert "DQN" not in text
    assert len(text.splitlines()) < 12
    results["cases"] = [found for found in results["cases"] if found["name"] != ADD]
    with pytest.raises(ValueError, match="measure again"):
        brief(results)


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
    results["cases"] = [found for found in results["cases"] if found["name"] != ADD]
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


def test_who_takes_less_than_ours_is_named() -> None:
    """Where a peer is ahead, the table says so in words as well; floors are no peers."""
    results = run({ADD: {OURS: took(2e-6), FLOOR: took(1e-6), PEER: took(1.5e-6)}})
    assert f"- {ADD}: {OURS} takes 2.00 us; {PEER} takes 1.50 us, 0.750 times that" in table(
        results
    )
    assert "took less" not in table(run({ADD: {OURS: took(2e-6), PEER: took(3e-6)}}))


def test_the_report_is_written_where_it_belongs(tree: Path) -> None:
    """Between the marks, and nowhere else; writing it again changes nothing."""
    report.update(tree)
    pages = [tree / name for name in report.PAGES]
    texts = [page.read_text(encoding="utf-8") for page in pages]
    for text in texts:
        assert text.startswith(f"before\n{report.BEGIN}\n\n")
        assert text.endswith(f"\n\n{report.END}\nafter\n")
        assert "\nold\n" not in text
    assert [ADD in text for text in texts] == [True, True, True, False, False, False]
    assert "waited for" in texts[3]
    assert "beside a learner" in texts[4]
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


@pytest.mark.parametrize("name", PLOTS)
def test_a_picture_is_small_and_always_the_same(name: str) -> None:
    """Well-formed, with names as text, and no trace of when and with what it was drawn."""
    text = PLOTS[name].svg(run())
    assert ET.fromstring(text).tag == "{http://www.w3.org/2000/svg}svg"
    assert len(text) < 60_000
    assert f">{PEER}</text>" in text
    assert UNABLE not in text
    assert text == PLOTS[name].svg(run())


def test_waits_of_a_learner_are_reported_with_their_share() -> None:
    """Small batches first; who could not be measured, and why."""
    text = waits_table(waited())
    assert [line.split()[1] for line in text.splitlines()[2:6]] == ["32", "32", "256", "256"]
    assert "| 1.50 ms   | 1.00 ms           | 2.00 ms | 100 ms          | 2.0%        |" in text
    assert "PyTorch 2.13.0 for ours and stable_baselines3; 4,000 rows; 2026-11-21" in text
    assert text.endswith("torchrl was not measured: does not run.")


def test_scores_of_examples_have_their_range_and_what_was_missed() -> None:
    """Mean, least, greatest, what is stated; below, the seeds that missed it or failed."""
    text = examples_table(learned())
    assert row(text, "`one.py`") == ["-155", "-160", "-150", "at least -200", "70"]
    assert row(text, "`other.py`") == ["0.925", "0.85", "1", "at least 0.9", "70"]
    assert "third.py" not in text.partition("\n\n")[0]
    *_, missed_line, failed_line = text.splitlines()
    assert missed_line == "`other.py`, seed 1, missed what is stated."
    assert failed_line == "`third.py`, seed 0, failed: ImportError: no"


def test_shared_replays_are_reported_with_the_targets_that_they_miss() -> None:
    """Rates and ratios; what was aimed at, and whether it was reached; what failed, and why."""
    text = processes_tables(shared())
    assert "| `SharedReplay`                      | 2,000,000 | 1,000,000 | 500,000 | -" in text
    assert "| small steps: uniform `sample` | 256  | 10.0 us" in text
    assert "| 1.12    | 1.25     | 1.50     |" in text
    assert "time relative to a `ReplayBuffer` in each process: 1.25, wanted" in text
    assert "uniform `sample(256)` of small steps, in times of a buffer's: 1.50" in text
    assert "wanted at most 1.3: **missed**." in text
    assert "- `add` of small steps, speed relative to cpprb: 400, wanted at least 50: met." in text
    assert "Reverb, adds of small steps with 2 actors: no end within 120 s." in text
    assert "cpprb's `MPReplayBuffer` with cpprb 11.0.0, CPython 3.11.7" in text
