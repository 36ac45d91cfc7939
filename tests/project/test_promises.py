"""The page of promises: each line is held by tests that are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "promises.md").read_text(encoding="utf-8")
LINES = [line for line in PAGE.splitlines() if line.startswith("| ") and "---" not in line][1:]


@pytest.mark.parametrize("line", LINES, ids=range(len(LINES)))
def test_each_promise_names_modules_with_tests(line: str) -> None:
    """A link to a module of tests that was moved or emptied fails here."""
    modules = re.findall(r"\]\(\.\./(tests/[^)]+)\)", line)
    assert modules
    for module in modules:
        assert re.search(
            r"^ *def test_|^Test\w+ = |^@rule",
            (ROOT / module).read_text(encoding="utf-8"),
            re.MULTILINE,
        )
