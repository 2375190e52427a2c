"""Settings of the documentation site: `make docs` builds it, warnings are errors.

What the code declares is written while the site is built: a page for each command and each name of the API,
and layouts and options of formats into their page.
"""

from __future__ import annotations

import re
import sys
import textwrap
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "src"), str(HERE.parent)]

from docutils import nodes  # noqa: E402
from sphinx.ext.napoleon.docstring import GoogleDocstring  # noqa: E402
from tools.format_tables import with_sections  # noqa: E402

import packline  # noqa: E402

if TYPE_CHECKING:
    from sphinx.application import Sphinx

project = "packline"
author = "The packline authors"
copyright = "The packline authors, Apache-2.0"
version = release = packline.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
]
# Only commands and code are copied, without their prompts; blocks of text are outputs.
copybutton_selector = "div:not(.highlight-text) > div.highlight > pre"
copybutton_prompt_text = r"\$ |>>> |\.\.\. "
copybutton_prompt_is_regexp = True
copybutton_line_continuation_character = "\\"
copybutton_copy_empty_lines = False
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}
exclude_patterns = ["_build", "_templates"]
default_role = "code"
smartquotes = False

myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
autodoc_mock_imports = ["torch"]
templates_path = ["_templates"]  # of the pages that autosummary writes, one for each name of the API
napoleon_google_docstring = True
python_use_unqualified_type_names = True

html_theme = "furo"
html_title = "packline"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_favicon = "../src/packline/viewing/static/icon.svg"
html_show_sphinx = False
html_theme_options = {"navigation_with_keys": True}


def write_command_line_pages(_: Sphinx) -> None:
    """Write `reference/cli.md`, the commands by topic, and a page for each from its help text."""
    from packline.cli.main import make_app

    text = make_app().generate_docs(output_format="markdown", recursive=True)
    text = text.replace(" -m sphinx ", " ")  # from `python -m sphinx`, in the usage of subcommands
    text = re.sub(r"^## Table of Contents\n.*?(?=^\*\*)", "", text, flags=re.MULTILINE | re.DOTALL)
    index, *commands = re.split(r"^(?=## packline )", text, flags=re.MULTILINE)
    pages = {page.split(maxsplit=3)[2].lstrip("-"): page for page in commands}
    folder = HERE / "reference" / "cli"
    folder.mkdir(exist_ok=True)
    for name, page in pages.items():
        (folder / f"{name}.md").write_text(re.sub(r"^#(#+ )", r"\1", page, flags=re.MULTILINE), "utf-8")
    index = index.replace("# packline\n", "# Command line\n", 1)
    index = re.sub(r"^\*\*(.+)\*\*:$", r"## \1", index, flags=re.MULTILINE)
    index = re.sub(r"\(#packline-+([\w-]+)\)", r"(cli/\1.md)", index)
    listed = "".join(f"cli/{name}\n" for name in pages)
    folder.with_suffix(".md").write_text(f"{index}\n```{{toctree}}\n:hidden:\n\n{listed}```\n", "utf-8")


def write_formats(_: Sphinx, page: str, text: list[str]) -> None:
    """Add layout and options of each format to their page."""
    if page == "formats":
        text[0] = with_sections(text[0])


def mark_drawings(_: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
    """Show indented drawings and code in the docstring of a module as they are."""
    if what == "module":
        marked: list[str] = []
        for line in lines:
            drawn = line.startswith("    ") and len(marked) > 1 and not marked[-1]
            if drawn and not marked[-2].startswith("    "):
                marked += ["::", ""]
            marked.append(line)
        lines[:] = marked


def describe(
    _: Sphinx, name: str, template: str, context: dict[str, object], page: nodes.document | None
) -> None:
    """Give a page its first paragraph as the description that search engines show."""
    first = page.next_node(nodes.paragraph) if page else None
    if first:
        text = textwrap.shorten(first.astext(), 200, placeholder=" ...")
        context["metatags"] = f'{context["metatags"]}<meta name="description" content="{escape(text)}">\n'


def setup(app: Sphinx) -> None:
    """Connect to the build of the site."""
    app.connect("builder-inited", write_command_line_pages)
    app.connect("source-read", write_formats)
    app.connect("autodoc-process-docstring", mark_drawings)
    app.connect("html-page-context", describe)
    # A colon in the docstring of an attribute does not separate a type from a text.
    GoogleDocstring._consume_inline_attribute = lambda self: ("", self._dedent(self._consume_to_end()))
