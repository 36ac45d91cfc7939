"""docs/api.md has every public name, as the docstrings of the built package describe it."""

from __future__ import annotations

import importlib
import re

import pytest
from optional import need

need("griffe", "it reads docstrings")
need("gymnasium")
need("dm_env")

import api_page


def test_the_page_is_what_the_docstrings_say() -> None:
    """``make api`` after a change of a docstring."""
    assert api_page.PAGE.read_text(encoding="utf-8") == api_page.render(), "run make api"


@pytest.mark.parametrize("name", ["cpprb_like", *api_page.MODULES])
def test_every_public_name_is_on_the_page(name: str) -> None:
    """In the table of the package, or under a heading."""
    page = api_page.PAGE.read_text(encoding="utf-8")
    found = set(re.findall(r"^### (\w+)$", page, re.MULTILINE))
    found |= set(re.findall(r"^\| \[?`(\w+)`", page, re.MULTILINE))
    assert set(importlib.import_module(name).__all__) <= found
