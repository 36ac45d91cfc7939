"""Print the notes of a release: its section of CHANGELOG.md.

    python tools/release_notes.py v0.1.0

The section is the one with this version as its title, such as ``## 0.1.0 - 2027-01-31``. Links to
pages of the repository become links to the pages as they were at this version.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

CHANGELOG = Path(__file__).resolve().parents[1] / "CHANGELOG.md"
SOURCE = "https://github.com/cpprb-like/cpprb_like"


def notes(changelog: str, tag: str) -> str:
    """The text below the title of a version; ``ValueError`` if there is none."""
    version = tag.removeprefix("v")
    sections = re.split(r"^## ", changelog, flags=re.MULTILINE)[1:]
    for section in sections:
        title, _, text = section.partition("\n")
        if title.split(" ")[0].strip("[]") == version:
            return re.sub(
                r"\]\((?!https?:|#)([^)]+)\)", rf"]({SOURCE}/blob/{tag}/\1)", text.strip()
            )
    raise ValueError(f"CHANGELOG.md has no section '## {version}'")


def main() -> None:
    """Print the notes, or say what is missing."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tag", help="such as v0.1.0")
    try:
        print(notes(CHANGELOG.read_text(encoding="utf-8"), parser.parse_args().tag))
    except ValueError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
