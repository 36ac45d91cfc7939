"""How Sphinx makes the site from these pages and from the docstrings: ``make docs``.

The build needs the packages of the extra ``docs`` and no network. With ``CPPRB_LIKE_ONLINE=1`` it
also links to the documentation of NumPy, Gymnasium and PyTorch. ``tools/sphinx_site.py`` writes the
pages under docs/reference at the start of each build.
"""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "tools")]
sys.path.append(str(HERE.parent))  # behind the wheel, if one is installed

import cpprb_like  # noqa: E402

project = "cpprb_like"
author = "the cpprb_like authors"
project_copyright = "the cpprb_like authors, MIT license"
version = release = cpprb_like.__version__
is_online = os.environ.get("CPPRB_LIKE_ONLINE") == "1"

extensions = [
    "myst_nb" if find_spec("myst_nb") else "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.intersphinx",
    "numpydoc",
    "sphinx_design",
    "sphinx_copybutton",
    "sphinx_site",
]
exclude_patterns = ["_*", "**/.*"]
suppress_warnings = ["autosummary.import_cycle"]  # tables name classes by their full paths
nitpicky = True

# Pages: Markdown whose links work on GitHub too.
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4
nb_execution_mode = "force"
nb_execution_timeout = 300
nb_execution_raise_on_error = True

# Reference: docstrings in NumPy's form. Their signatures have names and defaults, and the text has
# the types.
autodoc_typehints = "none"
autodoc_preserve_defaults = True
autosummary_generate = False
numpydoc_show_class_members = False
# Stand-ins take the place of these packages, so all machines get the same pages.
autodoc_mock_imports = [
    "dm_env",
    "gymnasium",
    "jax",
    "pandas",
    "ray",
    "stable_baselines3",
    "tensordict",
    "tianshou",
    "torch",
    "torchrl",
]
toc_object_entries_show_parents = "hide"

intersphinx_mapping = (
    {
        "python": ("https://docs.python.org/3", None),
        "numpy": ("https://numpy.org/doc/stable", None),
        "gymnasium": ("https://gymnasium.farama.org", None),
        "torch": ("https://docs.pytorch.org/docs/stable", None),
    }
    if is_online
    else {}
)

html_theme = "furo"
html_title = "cpprb_like"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_logo = "_static/logo.svg"
html_favicon = "_static/logo.svg"
html_search_scorer = str(HERE / "_static" / "scorer.js")
html_show_sourcelink = False
html_copy_source = False
templates_path: list[str] = []
