"""Every code block of the documentation, and every example of a docstring, does what it says."""

from __future__ import annotations

import ast
import doctest
import importlib
import pkgutil
import re
from pathlib import Path

import pytest
from optional import need
from pages import BLOCK, blocks

import cpprb_like
from cpprb_like.buffers import _entry

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
MODULES = [
    "cpprb_like",
    *(module.name for module in pkgutil.walk_packages(cpprb_like.__path__, "cpprb_like.")),
]
APART = {"migrating.md"}  # each section of these is read by itself
SLOW = {"own-sampler.md", "CONTRIBUTING.md", "cpprb_like.testing"}  # a second or more
# Packages that examples need, but not all machines have: PyTorch is large, and dm_env has no wheels
# for musllinux.
NEEDED = {
    "From ReAgent": ("torch",),
    "migrating-from-tf-agents.md": ("dm_env",),
    "cluster.md": ("ray",),
    "command-line.md": ("click", "h5py"),
    "datasets.md": ("h5py", "pyarrow", "gymnasium"),
    "cpprb_like.cli._commands": ("click",),
    "cpprb_like.compat.reagent._buffer": ("torch",),
    "cpprb_like.compat.reagent._prioritized": ("torch",),
    "cpprb_like.compat.reagent.utils": ("torch", "pandas"),
    "cpprb_like.device._jax": ("jax",),
    "cpprb_like.device._jax_arrays": ("jax",),
    "cpprb_like.device._torch": ("torch",),
    "cpprb_like.device._torch_arrays": ("torch",),
    "cpprb_like.integrations.dm_env": ("dm_env",),
    "cpprb_like.integrations.rllib": ("ray",),
    "cpprb_like.integrations.rllib_cluster": ("ray",),
    "cpprb_like.integrations.stable_baselines3": ("torch", "stable_baselines3"),
    "cpprb_like.integrations.torch": ("torch",),
    "cpprb_like.integrations.tianshou": ("tianshou",),
    "cpprb_like.integrations.torchrl": ("torch", "tensordict"),
    "cpprb_like.ray": ("ray",),
    "first-agent.md": ("torch", "gymnasium", "matplotlib"),
    "learners.md": ("torch", "jax"),
    "on-device.md": ("torch", "jax"),
    "rllib.md": ("ray", "torch", "gymnasium"),
    "robots.md": ("h5py", "pyarrow", "PIL", "gymnasium"),
    "stable-baselines3.md": ("torch", "stable_baselines3"),
    "torchrl.md": ("torch", "tensordict"),
}
# Pages that show changes to a program.
CHANGES = {
    "libraries.md",
    "one-file-scripts.md",
    "rllib.md",
    "stable-baselines3.md",
    "tianshou.md",
    "torchrl.md",
}
# What a test runs for less time than a reader.
SHORTER = {"first-agent.md": ("STEPS = 20_000", "STEPS = 1_500")}


def marks(name: str) -> list[pytest.MarkDecorator]:
    """Of a page or a module."""
    return [
        *([pytest.mark.slow] if name in SLOW else []),
        *([pytest.mark.packages] if name in NEEDED else []),
    ]


READINGS = [
    pytest.param(
        text,
        title,
        id=f"{page.name}: {title}" if title != page.name else title,
        marks=marks(page.name),
    )
    for page in PAGES
    for title, text in (
        re.findall(r"^## (.+)\n((?:(?!^## ).*\n)*)", page.read_text(), re.MULTILINE)
        if page.name in APART
        else [(page.name, page.read_text())]
    )
]


def skip_what_cannot_run(name: str) -> None:
    """Skip a section or a module whose examples need a package that is not there."""
    for package in NEEDED.get(name, ()):
        need(package)


def declarations_without_a_shape(code: str) -> list[str]:
    """The fields that a dict of dicts declares without saying their shape; texts have none."""
    return [
        ast.unparse(field)
        for node in ast.walk(ast.parse(code))
        if isinstance(node, ast.Dict)
        for field in node.values
        if isinstance(field, ast.Dict)
        and all(isinstance(key, ast.Constant) and key.value == "dtype" for key in field.keys)
        and not any(isinstance(one, ast.Name) and one.id == "str" for one in field.values)
    ]


def test_fields_without_a_shape_are_found() -> None:
    """As they are written in examples."""
    code = 'rb = R(1, {"a": {}, "b": {"dtype": int}, "c": {"shape": ()}}, Nstep={"size": 3})'
    assert declarations_without_a_shape(code) == ["{}", "{'dtype': int}"]


@pytest.mark.parametrize(
    "page", [page for page in PAGES if "migrating" not in page.name], ids=lambda page: page.name
)
def test_pages_declare_scalars_as_scalars(page: Path) -> None:
    """No example leaves the shape of a field out.

    Such a field has shape 1, as in cpprb, and its batches (n, 1): times the ``weights`` of the
    batch, (n,), that is (n, n) without an error.
    """
    for code in blocks(page.read_text(), "python"):
        assert declarations_without_a_shape(code) == []


@pytest.mark.parametrize("name", [name for name in MODULES if ".compat" not in name])
def test_docstrings_declare_scalars_as_scalars(name: str) -> None:
    """No example of a docstring leaves the shape of a field out, for the same reason."""
    skip_what_cannot_run(name)
    module = importlib.import_module(name)
    tests = doctest.DocTestFinder().find(module)
    texts = [example.source for test in tests for example in test.examples]
    for code in texts:
        assert declarations_without_a_shape(code) == [], code


@pytest.mark.parametrize(("text", "title"), READINGS)
def test_python_blocks_run(
    text: str, title: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The Python blocks of a page run one after the other, as a reader would run them."""
    skip_what_cannot_run(title)
    monkeypatch.chdir(tmp_path)
    if title in SHORTER:
        long, short = SHORTER[title]
        assert long in text
        text = text.replace(long, short)
    namespace: dict[str, object] = {"__name__": "__main__"}
    for number, code in enumerate(blocks(text, "python")):
        exec(compile(code, f"{title}, block {number}", "exec"), namespace)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_blocks_have_a_language_that_is_tested(page: Path) -> None:
    """No block is left out: each is Python or a shell command.

    Of the changes to a program, those to whole files are tested by test_diffs.py.
    """
    languages = {name for name, _ in BLOCK.findall(page.read_text())}
    assert languages <= {"python", "bash"} | ({"diff"} if page.name in CHANGES else set())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_shell_blocks_name_commands_that_exist(page: Path) -> None:
    """Each line is a target of the Makefile, a script, installs this package, or is its command."""
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for line in "".join(blocks(page.read_text(), "bash")).splitlines():
        command = line.split("#")[0].split()
        if command[:2] == ["pip", "install"]:
            assert re.fullmatch(r"\.|'\.\[(\w+)\]'", command[2]), line  # in the tree
            continue
        if command[0] == "python" and command[1] != "-m":
            assert (ROOT / command[1]).exists(), line
            continue
        if command[0] == "cpprb_like":
            need("click")
            commands = importlib.import_module("cpprb_like.cli._commands").commands
            commands.commands[command[1]].make_context(command[1], command[2:])  # parses only
            continue
        if command[1:3] in (["-m", "venv"], ["-m", "pip"]) and command[0].endswith("python"):
            assert "pip" not in command or "cpprb_like" not in line, line
            continue
        assert command[0] == "make", line
        assert command[1] in targets, line


def test_one_page_says_how_to_install() -> None:
    """Until a version is released no page says that the name can be installed from the registry.

    Where the package is installed, its name with an extra can be: one page says so.
    """
    changelog = (ROOT / "CHANGELOG.md").read_text("utf-8")
    is_released = bool(re.search(r"^## \[?\d+\.\d+\.\d+", changelog, re.MULTILINE))
    named = r"pip install ['\"]?cpprb[_-]like"
    saying = {page.name for page in PAGES if re.search(named, page.read_text("utf-8"))}
    install = (ROOT / "docs" / "install.md").read_text("utf-8")

    assert saying == {"install.md"}
    assert bool(re.search(rf"{named}(?!\[)", install)) == is_released
    assert ("No version is released yet" in install) == (not is_released)


def test_extras_that_pages_name_exist() -> None:
    """Each extra of the page on installing, and each that another page links to it by."""
    tomllib = need("tomllib")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = {*project["optional-dependencies"]}
    install = (ROOT / "docs" / "install.md").read_text("utf-8")
    rows = re.findall(r"^\| (`.*?) \|", install, re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"`([\w-]+)`", row)}

    assert named == extras - {"test", "docs", "lint", "coverage", "release", "dev"}
    for page in PAGES:
        text = page.read_text("utf-8")
        assert {*re.findall(r"\(install\.md#extras\) `([\w-]+)`", text)} <= named, page


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    """To a file of the project, and to a heading of it; ``critics[0](obs)`` is no link."""
    links = re.findall(r"\]\((?!https?:)([^)#]*)(?:#([^)]*))?\)", BLOCK.sub("", page.read_text()))
    for target, heading in links:
        linked = page.parent / target if target else page
        assert linked.exists(), target
        if heading:
            assert heading in anchors(linked), f"{target}#{heading}"


def anchors(page: Path) -> set[str]:
    """The headings of a page, as links name them."""
    text = BLOCK.sub("", page.read_text())
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    named = {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}
    return named | set(re.findall(r'<a (?:id|name)="([^"]+)">', text))


def test_one_page_leads_to_every_page() -> None:
    """``docs/where.md`` says which page explains what, on GitHub and on the site."""
    linked = set(re.findall(r"\]\(([\w-]+\.md)", (ROOT / "docs" / "where.md").read_text()))
    assert linked | {"index.md", "where.md"} == {page.name for page in ROOT.glob("docs/*.md")}


@pytest.mark.parametrize("name", [pytest.param(name, marks=marks(name)) for name in MODULES])
def test_docstring_examples(name: str) -> None:
    """The examples in docstrings give what they show."""
    skip_what_cannot_run(name)
    module = importlib.import_module(name)
    result = doctest.testmod(module, optionflags=doctest.NORMALIZE_WHITESPACE)
    assert result.failed == 0


def test_examples_of_compiled_calls_are_found() -> None:
    """The calls of every step are compiled, and their examples run as well."""
    found = doctest.DocTestFinder().find(_entry)
    assert {test.name.removeprefix(f"{_entry.__name__}.") for test in found if test.examples} >= {
        "BufferBase.add",
        "BufferBase.add_where",
    }
