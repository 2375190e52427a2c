"""The package: a description that renders without dead links, and lower bounds that can be pinned."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from tools.check_wheel import dead_links

ROOT = Path(__file__).resolve().parents[2]
CONFIG = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))


def description() -> str:
    """The README with the substitutions of the build backend."""
    text = (ROOT / "README.md").read_text("utf-8")
    for one in CONFIG["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]["substitutions"]:
        text = re.sub(one["pattern"], one["replacement"], text)
    return text


def test_the_description_renders_and_has_no_dead_link() -> None:
    markdown_it = pytest.importorskip("markdown_it")
    text = description()
    assert dead_links(text) == [] and dead_links((ROOT / "README.md").read_text("utf-8"))
    html = markdown_it.MarkdownIt("commonmark").enable("table").render(text)
    assert not re.search(r'(href|src)="(?!https://)', html)
    assert "<table>" in html and "<h1>packline</h1>" in html


def test_the_first_command_installs_packline() -> None:
    for page in ("README.md", "docs/quickstart.md"):
        commands = re.findall(r"^\$ (.*)$", (ROOT / page).read_text("utf-8"), re.MULTILINE)
        assert commands[0].startswith("pip install packline")
