"""The pages of the reference: a page for each public module, and every public name on one."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from types import ModuleType

import pytest
import reference_pages
from optional import need

import cpprb_like

need("gymnasium")  # without it, its names are no public names of the package
# Rooms that have no names of their own.
NAMELESS = {"cpprb_like.compat", "cpprb_like.integrations"}


def imported(name: str) -> list[ModuleType]:
    """A module, or nothing if its package is not installed."""
    try:
        return [importlib.import_module(name)]
    except ImportError:
        return []


MODULES = [module for name in reference_pages.NAMES for module in imported(name)]
REFERENCE = reference_pages.reference(MODULES)


def test_every_public_module_has_a_page() -> None:
    """A module is public if no part of its path begins with an underscore."""
    package = Path(cpprb_like.__file__).parent
    paths = [
        path.relative_to(package.parent).with_suffix("").parts for path in package.rglob("*.py")
    ]
    modules = {".".join(parts).removesuffix(".__init__") for parts in paths}
    public = {name for name in modules if not re.search(r"\._", name)}
    assert public - NAMELESS == {*reference_pages.NAMES}


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_every_public_name_is_on_a_page(module: ModuleType) -> None:
    """It has an entry, and the entry is made by a directive of one page."""
    for name, thing in reference_pages.public(module):
        full = REFERENCE.entries[f"{module.__name__}.{name}"]
        pattern = rf"^\.\. auto\w+:: {re.escape(full)}$"
        if reference_pages.is_data(thing):
            pattern = rf"^\.\. py:data:: {name}\n   :module: {re.escape(module.__name__)}$"
        found = [re.search(pattern, text, re.MULTILINE) for text in REFERENCE.pages.values()]
        assert len([entry for entry in found if entry]) == 1, full


def test_names_of_the_package_are_described_by_their_short_path() -> None:
    """As programs import them."""
    assert REFERENCE.entries["cpprb_like.buffers.ReplayBuffer"] == "cpprb_like.ReplayBuffer"
    assert REFERENCE.entries["cpprb_like.samplers.Recency"] == "cpprb_like.samplers.Recency"


def test_inherited_methods_lead_to_the_class_that_describes_them() -> None:
    """So ``ReplayBuffer.sample`` can be linked, too."""
    assert REFERENCE.entries["cpprb_like.ReplayBuffer.add"] == "cpprb_like.ReplayBuffer.add"
    assert REFERENCE.entries["cpprb_like.PrioritizedReplayBuffer.add"] == (
        "cpprb_like.ReplayBuffer.add"
    )
    page = REFERENCE.pages["cpprb_like.Mixture.rst"]
    assert "~cpprb_like.buffers.Source.sample\n" in page  # in the table
    assert ".. automethod:: cpprb_like.Mixture.sample\n" not in page


def test_the_page_of_the_buffer_leads_to_all_methods() -> None:
    """Readers look there first: also for those that it inherits."""
    page = REFERENCE.pages["cpprb_like.ReplayBuffer.rst"]
    for name in ("add", "sample", "save", "update_priorities"):
        method = f"cpprb_like.ReplayBuffer.{name}"
        assert f"   ~{method}\n" in page
        assert f".. automethod:: {method}\n" in REFERENCE.pages[f"{method}.rst"]


def test_pages_that_are_gone_are_removed(tmp_path: Path) -> None:
    """A folder has the pages of this build and no other."""
    reference_pages.write(tmp_path, {"a.rst": "a", "b.rst": "b"})
    reference_pages.write(tmp_path, {"b.rst": "c"})
    assert {file.name: file.read_text() for file in tmp_path.iterdir()} == {"b.rst": "c"}
