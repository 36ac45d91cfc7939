"""Pages can be read: sentences are short, and each page takes ten minutes at most."""

from __future__ import annotations

from pathlib import Path

import page_words
import pytest

ROOT = Path(__file__).parents[2]
WORDS, MINUTES = 19.0, 10.0


@pytest.mark.parametrize("page", page_words.pages(ROOT), ids=lambda page: page.name)
def test_a_page_can_be_read(page: Path) -> None:
    """Its sentences have 19 words on average at most, and it takes ten minutes to read."""
    found = page_words.measured(page.read_text(encoding="utf-8"))
    assert found.sentence <= WORDS
    assert found.minutes <= MINUTES


def test_what_is_counted() -> None:
    """Prose counts; code, tables and headings do not, and code takes time to read."""
    text = "# A title\n\nOne two three. Four five six seven!\n\n- An item of\n  six words here.\n"
    plain = page_words.measured(text)
    assert (plain.words, round(plain.sentence, 2)) == (14, 4.67)
    more = page_words.measured(text + "\n| a | table |\n\n```python\nx = 1\n```\n")
    assert (more.words, more.sentence) == (plain.words, plain.sentence)
    assert more.minutes > plain.minutes
