"""What a release needs agrees: version, changelog, citation, addresses, and its notes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import release_notes
from optional import need

import cpprb_like

ROOT = Path(__file__).parents[2]


def text_of(name: str) -> str:
    """A file of the project; skips where the tests run without the whole tree."""
    path = ROOT / name
    if not path.exists():
        pytest.skip(f"there is no {name} beside these tests")
    return path.read_text(encoding="utf-8")


def test_citation_has_the_version() -> None:
    """The version of CITATION.cff is that of the package."""
    version = re.search(r"^version: (.+)$", text_of("CITATION.cff"), re.MULTILINE)
    assert version is not None
    assert version[1] == cpprb_like.__version__


def test_changelog_begins_with_what_is_to_come() -> None:
    """Its first section has changes that are not released, and names each version once."""
    titles = re.findall(r"^## (.+)$", text_of("CHANGELOG.md"), re.MULTILINE)
    assert titles[0] == "Unreleased"
    assert len(set(titles)) == len(titles)


def test_addresses_agree() -> None:
    """pyproject.toml, CITATION.cff, the issue forms and the notes name the same addresses."""
    need("tomllib")
    import tomllib  # noqa: PLC0415

    urls = tomllib.loads(text_of("pyproject.toml"))["project"]["urls"]
    citation = text_of("CITATION.cff")
    assert f'repository-code: "{urls["Source"]}"' in citation
    assert f'url: "{urls["Documentation"]}"' in citation
    assert urls["Source"] == release_notes.SOURCE
    forms = text_of(".github/ISSUE_TEMPLATE/config.yml")
    for address in re.findall(r"url: (.+)", forms):
        assert address.startswith((urls["Source"], urls["Documentation"]))


def test_notes_are_the_section_of_the_version() -> None:
    """Without the sections around it; links of the repository are of that version."""
    changelog = (
        "# Changelog\n\n## Unreleased\n\n- New.\n\n## 1.2.0 - 2030-01-01\n\n"
        "- A [page](docs/guide.md#adding), [theirs](https://example.org).\n\n## 1.1.0\n\n- Old.\n"
    )
    assert release_notes.notes(changelog, "v1.2.0") == (
        f"- A [page]({release_notes.SOURCE}/blob/v1.2.0/docs/guide.md#adding), "
        "[theirs](https://example.org)."
    )
    assert release_notes.notes(changelog, "v1.1.0") == "- Old."
    with pytest.raises(ValueError, match=r"no section '## 1.3.0'"):
        release_notes.notes(changelog, "v1.3.0")
