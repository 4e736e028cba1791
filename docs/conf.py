"""Sphinx's settings for the site: ``make docs`` builds it.

`tools/build_docs.py` first copies docs/ to build/site, with the pages that are generated, and then
calls Sphinx with this file.
"""

from __future__ import annotations

import re
from typing import Any

import equipoise

project = "Equipoise"
author = "The Equipoise authors"
copyright = author
version = release = equipoise.__version__
language = "en"

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
]

# Pages: Markdown as GitHub shows it, with the same anchors of headings.
myst_enable_extensions = ["attrs_inline", "colon_fence", "fieldlist"]
myst_heading_anchors = 6
# Pages of results begin with a title and go on as they need; a table may stand under any heading.
suppress_warnings = ["myst.header"]
exclude_patterns: list[str] = []

# The reference of the Python API.
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_member_order = "bysource"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_custom_sections = [("Settings of the run", "params_style")]
# Only names of the public API have a page. All other names of types are shown without a link.
nitpick_ignore_regex = [("py:.*", ".*")]

html_theme = "furo"
html_title = f"Equipoise {release}"
html_theme_options = {
    "sidebar_hide_name": False,
    "light_css_variables": {
        "color-brand-primary": "#0b5cad",
        "color-brand-content": "#0b5cad",
    },
    "dark_css_variables": {
        "color-brand-primary": "#7ab8ff",
        "color-brand-content": "#7ab8ff",
    },
}
highlight_language = "text"  # of a block that names no language
html_copy_source = False
html_show_sourcelink = False
html_static_path = ["static"]
html_js_files = ["scroll.js"]
html_css_files = ["site.css"]
html_favicon = "static/mark.svg"
# Both keep a contrast of 4.5 to their ground.
pygments_style = "default"
pygments_dark_style = "monokai"
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True


def without_substitutions(
    app: object, what: str, name: str, obj: object, options: object, lines: list[str]
) -> None:
    """Escape the bars of formulas such as |Q|, which docutils takes for substitutions."""
    for i, line in enumerate(lines):
        parts = re.split(r"(``.*?``)", line)
        lines[i] = "".join(p if n % 2 else p.replace("|", r"\|") for n, p in enumerate(parts))


def setup(app: Any) -> None:
    app.connect("autodoc-process-docstring", without_substitutions)
