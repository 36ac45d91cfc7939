"""The changes to whole scripts that the documentation shows are those between two files."""

from __future__ import annotations

from difflib import unified_diff
from pathlib import Path

import pytest
from pages import blocks

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "one-file-scripts.md"
SCRIPTS = {
    "DQN": ("tests/libraries/scripts/dqn_before.py", "examples/one_file_dqn.py"),
    "TD3": ("tests/libraries/scripts/td3_before.py", "examples/one_file_td3.py"),
}
MOST_CHANGES = 25  # lines that are new, of scripts of 120 and more


def code(name: str) -> list[str]:
    """The lines of a script behind its docstring."""
    return (ROOT / name).read_text(encoding="utf-8").partition('"""\n\n')[2].splitlines()


def changes(before: str, after: str) -> list[str]:
    """The lines that differ, with one around them, as a page shows them."""
    lines = [*unified_diff(code(before), code(after), n=1, lineterm="")][2:]
    return [line for line in lines if not line.startswith("@@") and line not in ("+", "-", " ")]


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_page_shows_what_changes_in_a_script(name: str) -> None:
    """A line that was forgotten would leave the reader with a script that does not run."""
    shown = changes(*SCRIPTS[name])
    assert "\n".join(shown) + "\n" in blocks(PAGE.read_text(encoding="utf-8"), "diff")
    assert sum(line.startswith("+") for line in shown) < MOST_CHANGES
