"""The reference of the site has every public name."""

from __future__ import annotations

import importlib
import re
import zlib
from pathlib import Path

import pytest
import reference_pages


@pytest.fixture(scope="session")
def inventory(site: Path) -> dict[str, str]:
    """The names that other sites can link, and where each is described."""
    head, _, rest = (site / "objects.inv").read_bytes().partition(b"zlib.\n")
    assert head.startswith(b"# Sphinx inventory version 2")
    lines = zlib.decompress(rest).decode().splitlines()
    found = [re.match(r"(\S+) py:\w+ -?\d+ (\S+) ", line) for line in lines]
    return {line[1]: line[2].replace("$", line[1]) for line in found if line}


@pytest.mark.parametrize("name", reference_pages.NAMES)
def test_every_public_name_is_in_the_inventory(inventory: dict[str, str], name: str) -> None:
    """By each path that it can be imported from."""
    assert name in inventory
    try:
        module = importlib.import_module(name)
    except ImportError as error:
        pytest.skip(f"{error}")
    public = {f"{name}.{thing}" for thing, _ in reference_pages.public(module)}
    assert public - {*inventory} == set()


def test_entries_are_on_pages(inventory: dict[str, str], site: Path) -> None:
    """A name leads to an element of a page."""
    pages: dict[str, str] = {}
    for name, uri in inventory.items():
        file, _, anchor = uri.partition("#")
        text = pages.setdefault(file, (site / file).read_text(encoding="utf-8"))
        assert f'id="{anchor}"' in text, name


@pytest.mark.parametrize(
    "name",
    ["ReplayBuffer.add", "ReplayBuffer.sample", "buffers.ReplayBuffer.sample", "samplers.Recency"],
)
def test_methods_are_in_the_inventory(inventory: dict[str, str], name: str) -> None:
    """Also those of a base, and by the path of a room."""
    assert f"cpprb_like.{name}" in inventory


def test_members_of_the_buffer_have_pages_of_their_own(inventory: dict[str, str]) -> None:
    """The page of ``ReplayBuffer`` lists them, and is short enough to be read."""
    buffer = "cpprb_like.ReplayBuffer"
    found = {name: uri for name, uri in inventory.items() if name.startswith(f"{buffer}.")}
    assert len(found) > 20
    assert {name: uri.partition("#")[0] for name, uri in found.items()} == {
        name: f"reference/{name}.html" for name in found
    }
