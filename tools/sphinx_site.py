"""An extension of Sphinx for this site: reference, links of names, sources, words of the search.

- It writes the pages of the reference, and pages of the source files that other pages link to.
- Each public name has an entry, by every path that it can be imported from; else it warns.
- A public name in backticks becomes a link, once in each section.
- Words that people type are index entries, which the search finds first (``docs/search_words.py``).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import reference_pages
from docutils import nodes
from search_words import WORDS
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.domains.python import ObjectEntry
from sphinx.environment import BuildEnvironment
from sphinx.ext.autodoc.mock import mock
from sphinx.ext.intersphinx import InventoryAdapter
from sphinx.transforms import SphinxTransform
from sphinx.util import logging

log = logging.getLogger(__name__)
REFERENCE, SOURCES = "reference", "sources"
SOURCE_LINK = re.compile(r"\]\(\.\./([\w/]+\.py)\)")
# Files at the top of the tree that are pages of the site.
AT_THE_TOP = {
    "CHANGELOG.md": "changes.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "README.md": "index.md",
}
# Types of other packages, as docstrings write them.
ELSEWHERE = {
    "ndarray": "numpy.ndarray",
    "array": "numpy.ndarray",
    "Generator": "numpy.random.Generator",
}
NOT_LINKED = (nodes.reference, nodes.title, addnodes.pending_xref, addnodes.desc_signature)


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect everything; called by Sphinx."""
    site = Site(Path(app.srcdir))
    app.connect("builder-inited", site.write_pages)
    app.connect("source-read", site.link_sources)
    app.connect("autodoc-process-docstring", cut_imports)
    app.connect("env-updated", site.note_names)
    app.connect("doctree-resolved", site.link_names)
    app.add_transform(SearchWords)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


class Site:
    """The state of a build: which names there are."""

    def __init__(self, docs: Path) -> None:
        self.docs = docs
        self.entries: dict[str, str] = {}
        self.links: dict[str, str] = {}

    def write_pages(self, app: Sphinx) -> None:
        """Write the generated pages, before Sphinx looks which pages there are."""
        with mock(app.config.autodoc_mock_imports):
            found = reference_pages.reference(reference_pages.import_all())
        self.entries = found.entries
        self.links = spellings(found.entries)
        reference_pages.write(self.docs / REFERENCE, found.pages)
        reference_pages.write(self.docs / SOURCES, dict(self.source_pages()))

    def source_pages(self) -> Iterator[tuple[str, str]]:
        """A page for each Python file that a page links to."""
        texts = [page.read_text(encoding="utf-8") for page in self.docs.glob("*.md")]
        for path in sorted({path for text in texts for path in SOURCE_LINK.findall(text)}):
            lines = [":orphan:", ":nosearch:", "", path, "=" * len(path), ""]
            lines += [f".. literalinclude:: ../../{path}", "   :language: python", ""]
            yield f"{page_of(path)}.rst", "\n".join(lines)

    def link_sources(self, app: Sphinx, docname: str, source: list[str]) -> None:  # noqa: ARG002
        """Lead links to files of the tree to their pages of the site."""
        if "/" in docname:
            return
        text = SOURCE_LINK.sub(lambda found: f"]({SOURCES}/{page_of(found[1])}.rst)", source[0])
        for name, page in AT_THE_TOP.items():
            text = text.replace(f"](../{name}", f"]({page}")
        source[0] = text

    def note_names(self, app: Sphinx, env: BuildEnvironment) -> list[str]:  # noqa: ARG002
        """Make every path of a public name a name that can be linked."""
        objects = env.domains["py"].data["objects"]
        for name, full in self.entries.items():
            if full not in objects:
                log.warning("public name without an entry: %s", full)
            elif name != full:
                found = objects[full]
                objects[name] = ObjectEntry(found.docname, found.node_id, found.objtype, True)
        return []

    def link_names(self, app: Sphinx, doctree: nodes.document, docname: str) -> None:
        """Make the first mention of a public name in each section a link to its entry."""
        if docname.startswith(SOURCES):
            return
        objects = app.env.domains["py"].data["objects"]
        linked: set[tuple[int, str]] = set()
        for literal in list(doctree.findall(nodes.literal)):
            full = self.links.get(literal.astext().removesuffix("()"))
            if full is None or full not in objects or is_within(literal, NOT_LINKED):
                continue
            entry = objects[full]
            section = next(above_of(literal, (nodes.section, nodes.document)), None)
            place = id(section), full
            if entry.docname == docname or place in linked:
                continue
            linked.add(place)
            link = self.link(app, docname, full)
            literal.replace_self(link)
            link += literal
        for classifier in doctree.findall(nodes.classifier):
            self.link_types(app, classifier, docname)

    def link_types(self, app: Sphinx, classifier: nodes.classifier, docname: str) -> None:
        """Make the classes in the type of a parameter links, those of other packages too."""
        others = InventoryAdapter(app.env).main_inventory.get("py:class", {})
        for text in list(classifier.findall(nodes.Text)):
            if is_within(text, (*NOT_LINKED, nodes.literal)):
                continue
            parts: list[nodes.Node] = []
            for word in re.split(r"([A-Za-z_][\w.]*)", text.astext()):
                full = self.links.get(word)
                other = others.get(ELSEWHERE.get(word, word))
                if full is not None:
                    parts.append(self.link(app, docname, full))
                elif other is not None:
                    parts.append(nodes.reference("", "", internal=False, refuri=other.uri))
                elif word:
                    parts.append(nodes.Text(word))
                if full is not None or other is not None:
                    parts[-1] += nodes.Text(word)
            text.parent.replace(text, parts)

    def link(self, app: Sphinx, docname: str, full: str) -> nodes.reference:
        """A link to the entry of a public name, without its text."""
        entry = app.env.domains["py"].data["objects"][full]
        uri = app.builder.get_relative_uri(docname, entry.docname)
        refuri = f"{uri}#{entry.node_id}"
        return nodes.reference("", "", internal=True, refuri=refuri, reftitle=full)


class SearchWords(SphinxTransform):  # type: ignore[misc]
    """Index entries at the head of a page or a section: the words by which people look for it."""

    default_priority = 400

    def apply(self, **options: Any) -> None:  # noqa: ARG002
        """Add them to the page that is read."""
        sections = list(self.document.findall(nodes.section))
        for place, words in WORDS.items():
            page, _, heading = place.partition("#")
            if page != self.env.docname:
                continue
            section = next((one for one in sections if not heading or heading in one["ids"]), None)
            if section is None:
                log.warning("search words for a section that is not there: %s", place)
                continue
            entries = [("single", word, section["ids"][0], "main", None) for word in words]
            section.insert(1, addnodes.index(entries=entries))


def page_of(path: str) -> str:
    """The name of the page that shows a source file."""
    return path.removesuffix(".py").replace("/", "-")


def spellings(entries: dict[str, str]) -> dict[str, str]:
    """How pages write public names, and the entries that are meant; nothing that is ambiguous."""
    rooms = [
        (name.split("."), full)
        for name, full in entries.items()
        if ".compat." not in name and ".integrations." not in name
    ]
    found: dict[str, set[str]] = {}
    for parts, full in rooms:
        for first in range(len(parts)):
            words = parts[first:]
            if words[0][:1].isupper() or (first < 2 and len(words) > 1):
                found.setdefault(".".join(words), set()).add(full)
    return {word: next(iter(full)) for word, full in found.items() if len(full) == 1}


def above_of(node: nodes.Node, kinds: tuple[type, ...]) -> Iterator[nodes.Node]:
    """The nodes of these kinds that hold a node, innermost first."""
    parent = node.parent
    while parent is not None:
        if isinstance(parent, kinds):
            yield parent
        parent = parent.parent


def is_within(node: nodes.Node, kinds: tuple[type, ...]) -> bool:
    """Whether a node is part of one of these kinds."""
    return next(above_of(node, kinds), None) is not None


def cut_imports(_: Sphinx, what: str, *rest: Any) -> None:
    """Leave out of the docstring of a module what is for maintainers: imports and neighbours."""
    if what == "module":
        lines = rest[-1]
        pattern = r"\s*\b(?:May import|Not here):.*?(?=\n\n|\Z)"
        text = re.sub(pattern, "", "\n".join(lines), flags=re.DOTALL)
        lines[:] = text.splitlines()
