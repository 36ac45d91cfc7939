"""The notebook of the documentation runs, and is stored without what it printed."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from optional import need

need("gymnasium", "the notebook plays Gymnasium's CartPole")
need("matplotlib", "the notebook draws")

import matplotlib.pyplot as plt

NOTEBOOK = Path(__file__).parents[2] / "docs" / "tour.ipynb"
CELLS: list[dict[str, Any]] = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
CODE = [cell for cell in CELLS if cell["cell_type"] == "code"]


def test_the_notebook_has_no_outputs() -> None:
    """The build of the site makes them, so that a change of the notebook is a change of text."""
    assert len(CODE) > 10
    for cell in CODE:
        assert cell["outputs"] == []
        assert cell["execution_count"] is None


def test_links_of_the_notebook_lead_to_pages() -> None:
    """Pages beside it."""
    texts = ["".join(cell["source"]) for cell in CELLS if cell["cell_type"] == "markdown"]
    links = re.findall(r"\]\(([^)#]+)", "".join(texts))
    assert len(links) > 3
    for link in links:
        assert (NOTEBOOK.parent / link).exists(), link


def test_the_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cell after cell in one namespace; each cell that draws leaves a picture that is not blank."""
    monkeypatch.chdir(tmp_path)
    plt.switch_backend("Agg")
    namespace: dict[str, object] = {"__name__": "__main__"}
    try:
        for cell in CODE:
            before = len(plt.get_fignums())
            source = "".join(cell["source"])
            exec(compile(source, f"tour.ipynb, {cell['id']}", "exec"), namespace)
            assert len(plt.get_fignums()) - before == source.count("plt.subplots("), cell["id"]
        assert len(plt.get_fignums()) >= 6
        for number in plt.get_fignums():
            for axes in plt.figure(number).axes:
                assert axes.has_data()
    finally:
        plt.close("all")
