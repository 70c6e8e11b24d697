"""Sphinx reads this: `make docs` builds the site into build/docs. Nothing is fetched, neither to build nor to read it.

Pages are Markdown (MyST). Notebooks are shown with the outputs that are committed; none is run. The reference is made
from docstrings by `docs.make.reference` before the first page is read. docs/design/documentation.md says why this
builder was chosen.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from docs.make.notebooks import copy_notebooks  # noqa: E402  (the path above makes it importable)
from docs.make.reference import write_reference  # noqa: E402

project = "Agent RL Workbench"
author = "The Agent RL Workbench authors"
copyright = author
extensions = ["myst_nb"]
exclude_patterns = ["make", "evidence/data"]

# Pages.
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
suppress_warnings = [
    "ref.python",  # a class name that occurs twice in the package: tests/test_glossary.py counts those
    "myst.xref_missing",  # links to files of the repository; tests/test_docs.py checks every link itself
    "myst.header",  # a docstring or a notebook may begin below the first level
    "mystnb.unknown_mime_type",  # a figure that plotly draws in JupyterLab is shown here by the PNG beside it
]

# Notebooks as they are committed. Their pictures hold inline styles only; no widget script is asked for.
nb_execution_mode = "off"
nb_ipywidgets_js = {}

# The look: system fonts, no external address, light only (the notebooks' pictures are drawn for a light page).
html_theme = "pydata_sphinx_theme"
html_title = project
html_context = {"default_mode": "light"}
html_theme_options = {
    "navbar_end": [],
    "navbar_align": "left",
    "header_links_before_dropdown": 8,
    "show_toc_level": 2,
    "navigation_with_keys": False,
    "footer_start": [],
    "footer_end": [],
}
html_static_path = ["static"]
html_css_files = ["wide.css"]
html_show_sourcelink = False
html_copy_source = False


def links_to_copies(app: object, page: str, source: list[str]) -> None:
    """A page links to notebooks/ beside docs/, which is right in the repository; in the site its copy is meant."""
    source[0] = source[0].replace("](../../notebooks/", "](../notebooks/")


def setup(app: object) -> None:
    """Make the pages that are made: the reference from docstrings, the notebooks from notebooks/."""
    write_reference(ROOT, ROOT / "docs/reference/made")
    copy_notebooks(ROOT / "notebooks", ROOT / "docs/notebooks")
    app.connect("source-read", links_to_copies)
