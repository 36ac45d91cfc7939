"""docs/combinations.md is made from the list of combinations that are tested."""

from __future__ import annotations

import re

import combinations_page


def test_the_page_is_what_is_tested() -> None:
    """``make pages`` after a change of tests/support/combinations.py."""
    page = combinations_page.PAGE.read_text(encoding="utf-8")
    assert page == combinations_page.render(), "run make pages"


def test_no_cell_is_empty() -> None:
    """Each says yes, and maybe why not for some samplers."""
    lines = combinations_page.render().splitlines()
    rows = [line.split(" | ") for line in lines if line.startswith("| ")][2:]
    cells = [cell.strip(" |") for row in rows for cell in row[1:]]
    assert len(cells) > 200
    assert [cell for cell in cells if not re.fullmatch(r"yes( \[\d\])*", cell)] == []
