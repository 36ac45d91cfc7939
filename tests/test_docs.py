"""Every code block of the documentation, and every example of a docstring, does what it says."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
import re
from pathlib import Path

import pytest

import cpprb_like

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
MODULES = [
    "cpprb_like",
    *(module.name for module in pkgutil.walk_packages(cpprb_like.__path__, "cpprb_like.")),
]


def blocks(page: Path, language: str) -> list[str]:
    """The blocks of a page that are in one language."""
    return [text for name, text in BLOCK.findall(page.read_text()) if name == language]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The Python blocks of a page run one after the other, as a reader would run them."""
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {"__name__": "__main__"}
    for number, text in enumerate(blocks(page, "python")):
        exec(compile(text, f"{page.name}, block {number}", "exec"), namespace)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_blocks_have_a_language_that_is_tested(page: Path) -> None:
    """No block is left out: each is Python, a shell command, or the list of rooms."""
    languages = {name for name, _ in BLOCK.findall(page.read_text())}
    assert languages <= ({"python", "bash", ""} if page.name == "design.md" else {"python", "bash"})


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_shell_blocks_name_commands_that_exist(page: Path) -> None:
    """Each line of a shell block is a target of the Makefile, or installs this package."""
    targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for line in "".join(blocks(page, "bash")).splitlines():
        command = line.split("#")[0].split()
        if command == ["pip", "install", "cpprb_like"]:  # the wheel check does that
            continue
        assert command[0] == "make", line
        assert command[1] in targets, line


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    """A link to a file of the project names one that exists."""
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
        assert (page.parent / target).exists(), target


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples(name: str) -> None:
    """The examples in docstrings give what they show."""
    module = importlib.import_module(name)
    result = doctest.testmod(module, optionflags=doctest.NORMALIZE_WHITESPACE)
    assert result.failed == 0


def test_examples_of_compiled_calls_are_found() -> None:
    """The calls of every step are compiled, and their examples run as well."""
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
    for method in (cpprb_like.ReplayBuffer.add, cpprb_like.ReplayBuffer.add_where):
        text = method.__doc__
        assert text is not None
        test = doctest.DocTestParser().get_doctest(text, {}, method.__name__, None, None)
        assert test.examples
        runner.run(test)
    assert runner.failures == 0
