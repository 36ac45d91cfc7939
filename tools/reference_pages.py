"""Write docs/reference: a page for each public module, and one for each public class.

The pages hold directives, and Sphinx takes the texts from the docstrings (``docs/conf.py``). They
are made at every build and are not tracked. Not here: how a docstring is shown.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

PACKAGE = "cpprb_like"
# Captions, and the modules below them, in the order of the pages.
MODULES = {
    "The package": ("cpprb_like",),
    "Buffers, draws and readings": (
        "cpprb_like.buffers",
        "cpprb_like.samplers",
        "cpprb_like.views",
        "cpprb_like.schedules",
        "cpprb_like.limiters",
        "cpprb_like.errors",
        "cpprb_like.testing",
        "cpprb_like.typing",
    ),
    "Several processes, several machines": ("cpprb_like.processes", "cpprb_like.ray"),
    "On the device": ("cpprb_like.device",),
    "Files, data sets, reports": (
        "cpprb_like.checkpoint",
        "cpprb_like.datasets",
        "cpprb_like.report",
        "cpprb_like.report.text",
        "cpprb_like.cli",
    ),
    "Environments and learning libraries": (
        "cpprb_like.integrations.gymnasium",
        "cpprb_like.integrations.dm_env",
        "cpprb_like.integrations.torch",
        "cpprb_like.integrations.stable_baselines3",
        "cpprb_like.integrations.torchrl",
        "cpprb_like.integrations.tianshou",
        "cpprb_like.integrations.rllib",
        "cpprb_like.integrations.rllib_cluster",
    ),
    "Names of other systems": (
        "cpprb_like.compat.cpprb",
        "cpprb_like.compat.coax",
        "cpprb_like.compat.dqn",
        "cpprb_like.compat.keras_gym",
        "cpprb_like.compat.reagent",
        "cpprb_like.compat.reagent.circular_replay_buffer",
        "cpprb_like.compat.reagent.prioritized_replay_buffer",
        "cpprb_like.compat.reagent.sum_tree",
        "cpprb_like.compat.reagent.utils",
    ),
}
NAMES = tuple(name for names in MODULES.values() for name in names)
# Classes that also describe what they inherit, as most readers look there. Each method and
# attribute has a page of its own: all of them on one page would be too long to read.
WHOLE = ("cpprb_like.ReplayBuffer",)
HEAD = """\
Reference
=========

Every public name, from the docstrings. The names of :py:mod:`cpprb_like` are imported from there:
``from cpprb_like import ReplayBuffer``. Others are imported from the module that describes them.

:doc:`../where` says which page explains what.
"""


@dataclass(frozen=True)
class Reference:
    """All pages, by file name, and for each public name the name under which it is described."""

    pages: dict[str, str]
    entries: dict[str, str]


def reference(modules: Iterable[ModuleType]) -> Reference:
    """The pages of these modules, in the order of ``NAMES``."""
    there = {module.__name__: module for module in modules}
    names = Names(there)
    pages = {"index.rst": index(there)}
    for module in there.values():
        pages[f"{module.__name__}.rst"] = "\n".join(module_page(module, names))
        for name, thing in names.own(module):
            if is_class(thing):
                full = names.entries[f"{module.__name__}.{name}"]
                pages[f"{full}.rst"] = "\n".join(class_page(full, thing, names))
                if full in WHOLE:
                    pages |= dict(member_pages(full, thing, names))
    of_classes = {
        f"{path}.{member}": f"{home}.{member}"
        for cls, full in names.classes.items()
        for path in (path for path, other in names.entries.items() if other == full)
        for member, (home, _) in members(cls, names).items()
    }
    return Reference(pages, names.entries | of_classes)


class Names:
    """Where each public name is described."""

    def __init__(self, modules: dict[str, ModuleType]) -> None:
        self.modules = modules
        self.entries: dict[str, str] = {}
        self.classes: dict[type, str] = {}
        homes: dict[int, str] = {}
        for module in modules.values():
            for _, thing in public(module):
                if not is_data(thing) and module.__name__ != PACKAGE:
                    homes.setdefault(id(thing), self.home_of(thing))
        top = {id(thing): name for name, thing in self.of_package()}
        for module in modules.values():
            for name, thing in public(module):
                full = f"{module.__name__}.{name}"
                if id(thing) in homes and not is_data(thing):
                    short = top.get(id(thing)) == name
                    full = f"{PACKAGE if short else homes[id(thing)]}.{name}"
                self.entries[f"{module.__name__}.{name}"] = full
                if isinstance(thing, type) and not is_data(thing):
                    self.classes[thing] = full
        self.homes = homes

    def of_package(self) -> list[tuple[str, Any]]:
        """The names of the package itself."""
        return public(self.modules[PACKAGE])

    def home_of(self, thing: Any) -> str:
        """The module that describes a class or function: the one that is nearest to its source."""
        source = getattr(thing, "__module__", "")
        listing = [
            name
            for name, module in self.modules.items()
            if name != PACKAGE and any(other is thing for _, other in public(module))
        ]
        return min(listing, key=lambda name: not (source == name or source.startswith(f"{name}._")))

    def own(self, module: ModuleType) -> Iterator[tuple[str, Any]]:
        """The names of a module that no other module describes, and what they are."""
        for name, thing in public(module):
            if is_data(thing) or self.homes.get(id(thing), module.__name__) == module.__name__:
                yield name, thing


def public(module: ModuleType) -> list[tuple[str, Any]]:
    """The public names of a module without the modules among them, and what they are."""
    found = [(name, getattr(module, name)) for name in module.__all__]
    return [(name, thing) for name, thing in found if not isinstance(thing, ModuleType)]


def is_class(thing: Any) -> bool:
    """Whether a public name has a page of its own."""
    return isinstance(thing, type) and not is_data(thing) and not is_error(thing)


def is_error(thing: Any) -> bool:
    """Whether it is an exception or a warning, which its module's page describes."""
    return isinstance(thing, type) and not is_data(thing) and issubclass(thing, BaseException)


def is_data(thing: Any) -> bool:
    """Whether it is a constant, or stands for a type that is written in other words."""
    alias = type(thing).__name__ == "GenericAlias"  # in Python 3.10 it passes for a type
    return alias or not (isinstance(thing, type) or inspect.isroutine(thing))


def index(modules: dict[str, ModuleType]) -> str:
    """The first page: every module, with the first sentence of its docstring."""
    lines = [HEAD, *title("Names of the package", "-")]
    lines += [*summary(f"{PACKAGE}.{name}" for name, _ in public(modules[PACKAGE])), ""]
    for caption, names in MODULES.items():
        there = [name for name in names if name in modules]
        if there:
            lines += [*title(caption, "-"), *summary(there), ""]
            lines += [".. toctree::", "   :hidden:", "", *(f"   {name}" for name in there), ""]
    return "\n".join(lines)


def module_page(module: ModuleType, names: Names) -> Iterator[str]:
    """What a module is for, tables of its names, and all of them that are no classes."""
    own = dict(names.own(module))
    listed = [
        (name, thing, names.entries[f"{module.__name__}.{name}"]) for name, thing in public(module)
    ]
    yield from title(module.__name__, "=")
    yield from (f".. automodule:: {module.__name__}", "   :no-members:", "")
    classes = [full for _, thing, full in listed if is_class(thing)]
    if classes:
        yield from (*title("Classes", "-"), *summary(classes), "")
    pages = [
        names.entries[f"{module.__name__}.{name}"] for name, thing in own.items() if is_class(thing)
    ]
    if pages:
        yield from (".. toctree::", "   :hidden:", "", *(f"   {page}" for page in pages), "")
    functions = [full for _, thing, full in listed if inspect.isroutine(thing)]
    if functions:
        yield from (*title("Functions", "-"), *summary(functions), "")
    for name, thing in own.items():
        if inspect.isroutine(thing):
            yield from directive("autofunction", names.entries[f"{module.__name__}.{name}"])
    errors = [full for _, thing, full in listed if is_error(thing)]
    if errors:
        yield from (*title("Errors", "-"), *summary(errors), "")
    for name, thing in own.items():
        if is_error(thing):
            yield from directive("autoexception", names.entries[f"{module.__name__}.{name}"])
    data = [(name, thing) for name, thing, _ in listed if is_data(thing)]
    if data:
        yield from title("Types and constants", "-")
    for name, thing in data:
        yield from (f".. py:data:: {name}", f"   :module: {module.__name__}")
        yield from (f"   :value: {spelled(thing)}", "")


def class_page(full: str, cls: type, names: Names) -> Iterator[str]:
    """A class, the table of its methods and attributes, and each of them or a link to its page."""
    yield from title(re.sub(r"^cpprb_like\.(compat\.|integrations\.)?", "", full), "=")
    found = members(cls, names)
    yield from (f".. autoclass:: {full}", "   :no-members:", "")
    if found:
        yield from ("   .. rubric:: Methods and attributes", "")
        listed = (f"{home}.{name}" for name, (home, _) in found.items())
        yield from (f"   {line}" for line in summary(listed))
        yield ""
    if full in WHOLE:
        yield from (".. toctree::", "   :hidden:", "", *(f"   {full}.{name}" for name in found), "")
        return
    for name, (home, kind) in found.items():
        if home == full:
            yield from (f"   {line}" for line in directive(kind, f"{full}.{name}"))


def member_pages(full: str, cls: type, names: Names) -> Iterator[tuple[str, str]]:
    """A page for each method and attribute of a class."""
    for name, (_, kind) in members(cls, names).items():
        heading = title(f"{cls.__name__}.{name}", "=")
        yield f"{full}.{name}.rst", "\n".join((*heading, *directive(kind, f"{full}.{name}")))


def members(cls: type, names: Names) -> dict[str, tuple[str, str]]:
    """The public members of a class: the class that describes each, and the directive for it.

    A class describes its own members and those of its private bases; one of ``WHOLE`` all.
    """
    whole = next((base for base in cls.__mro__ if names.classes.get(base) in WHOLE), None)
    found: dict[str, tuple[type, Any]] = {}
    described = [cls]  # of the classes so far; the last that derives from a private base has it
    for base in cls.__mro__:
        if base.__module__.partition(".")[0] != PACKAGE:
            continue
        if base in names.classes and base is not cls:
            described.append(base)
        home = next(known for known in reversed(described) if base in known.__mro__)
        if whole is not None and base in whole.__mro__:
            home = whole
        for name, value in vars(base).items():
            if not name.startswith("_"):
                found.setdefault(name, (home, value))
    listed: dict[str, tuple[str, str]] = {}
    for name, (home, value) in sorted(found.items()):
        thing = value.__func__ if isinstance(value, (staticmethod, classmethod)) else value
        if isinstance(thing, property):
            listed[name] = names.classes[home], "autoproperty"
        elif inspect.isgetsetdescriptor(thing):
            listed[name] = names.classes[home], "autoattribute"
        elif callable(thing) or inspect.isfunction(getattr(cls, name)):
            listed[name] = names.classes[home], "automethod"
    return listed


def title(text: str, line: str) -> list[str]:
    """A heading."""
    return [text, line * len(text), ""]


def directive(kind: str, full: str) -> list[str]:
    """A directive without content."""
    return [f".. {kind}:: {full}", ""]


def summary(names: Iterable[str]) -> list[str]:
    """A table of names, each with the first sentence of its docstring."""
    return [".. autosummary::", "   :nosignatures:", "", *(f"   ~{name}" for name in names)]


def spelled(thing: Any) -> str:
    """A constant, or a type as it is written in the sources."""
    if type(thing).__name__ != "GenericAlias" and not hasattr(thing, "__origin__"):
        return repr(thing)
    arrays = r"numpy\.ndarray\[tuple\[typing\.Any, \.\.\.\], numpy\.dtype\[([\w.]+)\]\]"
    return re.sub(arrays, r"NDArray[\1]", str(thing)).replace("typing.", "")


def write(folder: Path, pages: dict[str, str]) -> None:
    """Make a folder hold these pages and no other, and leave unchanged files alone."""
    folder.mkdir(exist_ok=True)
    for file in folder.iterdir():
        if file.name not in pages:
            file.unlink()
    for name, text in pages.items():
        file = folder / name
        if not file.exists() or file.read_text(encoding="utf-8") != text:
            file.write_text(text, encoding="utf-8")


def import_all() -> list[ModuleType]:
    """All modules; a package that one of them needs must be there, or stand for it."""
    return [importlib.import_module(name) for name in NAMES]
