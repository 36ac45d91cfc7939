"""Print how long each page is, and how long its sentences are: ``python tools/page_words.py``.

Prose counts; code, tables, headings and directives of the site do not. The time to read is that of
the prose at 220 words a minute, and 2 seconds for each line of code or of a table.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path

WORDS_A_MINUTE, SECONDS_A_LINE = 220, 2.0
CODE = re.compile(r"^(```|:::+).*?^\1\n?", re.MULTILINE | re.DOTALL)
APART = re.compile(r"^\|.*$|^#.*$|<!--.*?-->", re.MULTILINE)  # tables, headings, markers
ENDS = re.compile(r"(?<=[.?!])\s+|\n\s*\n|\n(?=- |\d+\. )")


@dataclass(frozen=True)
class Page:
    """A page in numbers.

    Attributes
    ----------
    words : int
        Words of prose.
    sentence : float
        Words of a sentence, on average. A point, an item of a list and a
        paragraph end a sentence.
    minutes : float
        The time to read the page.
    """

    words: int
    sentence: float
    minutes: float


def measured(text: str) -> Page:
    """The numbers of a page's text."""
    code = "".join(found.group(0) for found in CODE.finditer(text))
    rest = CODE.sub("\n\n", text)
    lines = code.count("\n") + sum(line.startswith("|") for line in rest.splitlines())
    prose = re.sub(r"\]\([^)]*\)", "]", APART.sub("\n", rest))
    words = len(prose.split())
    lengths = [n for one in ENDS.split(prose) if (n := len(one.split())) > 2]
    minutes = words / WORDS_A_MINUTE + lines * SECONDS_A_LINE / 60
    return Page(words, sum(lengths) / max(1, len(lengths)), minutes)


def pages(root: Path) -> list[Path]:
    """All pages of a tree."""
    return sorted([*root.glob("*.md"), *root.glob("docs/*.md")])


def main(arguments: list[str]) -> None:
    """Print the table."""
    root = Path(arguments[0]) if arguments else Path(__file__).resolve().parents[1]
    print(f"{'page':36}{'words':>7}{'a sentence':>12}{'minutes':>9}")
    for path in pages(root):
        page = measured(path.read_text(encoding="utf-8"))
        name = str(path.relative_to(root))
        print(f"{name:36}{page.words:7,}{page.sentence:12.1f}{page.minutes:9.1f}")


if __name__ == "__main__":
    main(sys.argv[1:])
