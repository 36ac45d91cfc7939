"""Write docs/api.md: every public name with its signature and its docstring.

The page is made from the built package, so that it says what users get: ``make api``. With
``--check`` nothing is written, and the exit status tells whether the page is up to date.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import griffe

PAGE = Path(__file__).resolve().parent.parent / "docs" / "api.md"
# In the order of the page. ``compat.reagent`` has ReAgent's modules and needs PyTorch: its page is
# docs/migrating.md.
MODULES = (
    "cpprb_like.buffers",
    "cpprb_like.samplers",
    "cpprb_like.views",
    "cpprb_like.limiters",
    "cpprb_like.processes",
    "cpprb_like.checkpoint",
    "cpprb_like.schedules",
    "cpprb_like.datasets",
    "cpprb_like.report",
    "cpprb_like.errors",
    "cpprb_like.testing",
    "cpprb_like.typing",
    "cpprb_like.integrations.gymnasium",
    "cpprb_like.integrations.dm_env",
    "cpprb_like.compat.cpprb",
    "cpprb_like.compat.coax",
    "cpprb_like.compat.dqn",
    "cpprb_like.compat.keras_gym",
)
HEAD = """# API

Every public name, from the docstrings; `make api` writes this page. `from cpprb_like import ...`
gives the names of [cpprb_like](#cpprb_like); the others are imported from the module in whose
section they stand. What needs a library of others is on pages of its own: ReAgent's modules in
[From ReAgent](migrating.md#from-reagent), and `cpprb_like.integrations.stable_baselines3`,
`.torchrl`, `.tianshou`, `.rllib` and `.torch` in [Libraries](libraries.md).
"""


def main() -> int:
    """Write the page, or compare it with what is there."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing")
    options = parser.parse_args()
    page = render()
    if options.check:
        return int(not PAGE.exists() or PAGE.read_text(encoding="utf-8") != page)
    PAGE.write_text(page, encoding="utf-8")
    return 0


def render() -> str:
    """The page."""
    modules = [importlib.import_module(name) for name in MODULES]
    homes = {id(thing): module for module in modules for _, thing in public(module)}
    lines = (line for module in modules for line in section(module, homes))
    return "\n".join([HEAD, *top(homes), *lines])


def public(module: ModuleType) -> Iterator[tuple[str, Any]]:
    """The names of a module that are not another one's on the page, and what they are."""
    others = [name for name in MODULES if name != module.__name__]
    for name in module.__all__:
        thing = getattr(module, name)
        home = getattr(thing, "__module__", module.__name__)
        if not any(home == other or home.startswith(f"{other}._") for other in others):
            yield name, thing


def top(homes: dict[int, ModuleType]) -> Iterator[str]:
    """The names of the package itself, each with the sentence that its docstring begins with."""
    package = importlib.import_module("cpprb_like")
    yield from ("## cpprb_like", "", "| name | what it is |", "| --- | --- |")
    for name in package.__all__:
        thing = getattr(package, name)
        home = homes.get(id(thing))
        link = f"[`{name}`](#{anchor(home.__name__, name)})" if home else f"`{name}`"
        yield f"| {link} | {summary(thing)} |"
    yield ""


def anchor(module: str, name: str) -> str:
    """The anchor of a name's section."""
    return f"{module}.{name}".lower().replace(".", "-")


def summary(thing: Any) -> str:
    """The first paragraph of a docstring, on one line."""
    return plain(" ".join((inspect.getdoc(thing) or "").partition("\n\n")[0].split()))


def section(module: ModuleType, homes: dict[int, ModuleType]) -> Iterator[str]:
    """All public names of a module."""
    yield from (f"## {module.__name__}", "", plain(inspect.getdoc(module) or ""), "")
    for name, thing in public(module):
        if is_alias(thing):
            yield from (f"### {name}", "", f"`{name} = {spelled(thing)}`", "")
            continue
        yield from (f'<a id="{anchor(module.__name__, name)}"></a>', "", f"### {name}", "")
        if not isinstance(thing, type) or not issubclass(thing, BaseException):
            yield from ("```text", f"{name}{signature(thing)}", "```", "")
        yield from docstring(thing)
        if isinstance(thing, type):
            yield from members(name, thing, homes)


def is_alias(thing: Any) -> bool:
    """Whether a public name stands for a type that is written in other words."""
    return not isinstance(thing, type) and not inspect.isroutine(thing)


def spelled(alias: Any) -> str:
    """A type as it is written in the sources: NumPy spells ``NDArray`` out before version 2.5."""
    found = re.sub(
        r"numpy\.ndarray\[tuple\[typing\.Any, \.\.\.\], numpy\.dtype\[([\w.]+)\]\]",
        r"NDArray[\1]",
        str(alias),
    )
    return found.replace("typing.", "")


def signature(thing: Any) -> str:
    """Names and defaults of the parameters; the docstring has their types."""
    if getattr(thing, "__text_signature__", "") == "($self, object, /)":
        return "(...)"  # what CPython 3.14 says of a compiled method without a signature
    try:
        found = inspect.signature(thing)
    except (TypeError, ValueError):
        return "(...)"
    bare = [
        parameter.replace(annotation=inspect.Parameter.empty)
        for parameter in found.parameters.values()
        if parameter.name != "self"
    ]
    return re.sub(
        r"<(?:function|object|class) [^>]*>",
        "...",
        str(found.replace(parameters=bare, return_annotation=inspect.Signature.empty)),
    )


def members(owner: str, cls: type, homes: dict[int, ModuleType]) -> Iterator[str]:
    """The public methods and properties that a class has of its own, or from private bases."""
    found: dict[str, tuple[type, Any]] = {}
    on_page = [cls]  # of the classes so far; the last one that derives from a private base owns it
    for base in cls.__mro__:
        if base.__module__.partition(".")[0] != "cpprb_like":
            continue
        if id(base) in homes and base is not cls:
            on_page.append(base)
        home = next(known for known in reversed(on_page) if base in known.__mro__)
        for name, value in vars(base).items():
            if not name.startswith("_"):
                found.setdefault(name, (home, value))
    inherited: dict[str, list[str]] = {}
    for name, (base, value) in sorted(found.items()):
        if base is not cls:
            inherited.setdefault(base.__name__, []).append(name)
            continue
        thing = value.__func__ if isinstance(value, (staticmethod, classmethod)) else value
        if isinstance(thing, property) or inspect.isgetsetdescriptor(thing):
            yield from (f"#### {owner}.{name}", "")
        elif callable(thing):
            yield from (f"#### {owner}.{name}", "", "```text")
            yield from (f"{name}{signature(thing)}", "```", "")
        else:
            continue
        yield from docstring(thing)
    for base_name, names in inherited.items():
        yield from (f"From `{base_name}`: {', '.join(f'`{name}`' for name in names)}.", "")


def docstring(thing: Any) -> Iterator[str]:
    """A docstring in the form of NumPy's, as Markdown."""
    text = inspect.getdoc(thing) or ""
    for part in griffe.Docstring(text, lineno=1).parse("numpy", warnings=False):
        kind = part.kind.value
        if kind == "text":
            yield from (plain(part.value), "")
        elif kind == "examples":
            yield from ("Examples", "")
            for each, value in part.value:
                is_code = each.value == "examples"
                yield from (["```pycon", value, "```"] if is_code else [plain(value)])
            yield ""
        elif kind == "admonition":
            yield from (plain(f"{part.title}: {part.value.description}"), "")
        else:
            yield from (kind.capitalize(), "")
            for item in part.value:
                yield entry(item)
            yield ""


def entry(item: Any) -> str:
    """One parameter, result or error."""
    name = getattr(item, "name", "") or ""
    kind = str(item.annotation) if item.annotation is not None else ""
    label = " ".join(
        word for word in (f"**{name}**" if name else "", f"*{kind}*" if kind else "") if word
    )
    description = " ".join(item.description.split())
    return f"- {label}: {plain(description)}" if description else f"- {label}"


def plain(text: str) -> str:
    """Double backticks, as in docstrings, made single; a table cell ends at no bar of the text."""
    return text.replace("``", "`").replace("|", "\\|").strip()


if __name__ == "__main__":
    sys.exit(main())
