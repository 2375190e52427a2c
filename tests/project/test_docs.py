"""The documents tell the truth: their commands exist, their code parses, their links lead somewhere.

A command in a `console` block is asked for its help, and every option that the document gives it must be in
that help. Commands are not run as they stand. The README is also the package's description.
"""

from __future__ import annotations

import contextlib
import doctest
import io
import re
import shlex
import tomllib
from functools import cache
from pathlib import Path

import pytest
from tools.check_wheel import dead_links

import packline
from packline.cli.main import main

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?<!!)\[[^\]\n]+\]\(([^)\s#]+)(?:#[^)\s]*)?\)|!\[[^\]\n]*\]\(([^)\s]+)\)")


def blocks(page: Path, language: str) -> list[str]:
    return [code for found, code in FENCE.findall(page.read_text("utf-8")) if found == language]


def commands(console: str) -> list[list[str]]:
    """The commands typed in a console block, as words. Output, comments and variables are left out.

    >>> commands("$ A=1 packline build x --out y | head  # why\\n15 documents\\n$ make \\\\\\n  demo")
    [['packline', 'build', 'x', '--out', 'y'], ['head'], ['make', 'demo']]
    """
    found = []
    for line in console.replace("\\\n", " ").splitlines():
        if not line.startswith("$ "):
            continue
        lexer = shlex.shlex(line[2:], posix=True, punctuation_chars="|;&")
        lexer.whitespace_split = True
        words: list[str] = []
        for word in [*lexer, ";"]:
            if set(word) <= set("|;&"):
                found.append(words)
                words = []
            elif words or not re.match(r"\w+=", word):
                words.append(word)
    return [words for words in found if words]


def typed() -> list[tuple[str, list[str]]]:
    """Every command of every page, with the page's name."""
    return [
        (page.name, words) for page in PAGES for block in blocks(page, "console") for words in commands(block)
    ]


@cache
def help_of(command: str) -> str:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        code = main([*command.split(), "--help"])
    assert code == 0, f"`packline {command} --help` failed: {printed.getvalue()}"
    return printed.getvalue()


def test_the_readme_begins_with_the_two_commands() -> None:
    readme = [words for page, words in typed() if page == "README.md"]
    assert ["make", "demo"] in readme
    assert ["make", "test"] in readme


def test_every_packline_command_in_the_documents_exists_with_its_options() -> None:
    checked = 0
    for page, words in typed():
        if words[0] != "packline":
            continue
        command = words[1] if len(words) > 1 and not words[1].startswith("-") else ""
        if command == "tokenizer":  # its commands have options of their own
            command = " ".join(words[1:3])
        known = set(re.findall(r"--?[a-z][\w-]*", help_of(command))) | {"--help"}
        used = {word.partition("=")[0] for word in words[1:] if re.match(r"--?[a-z]", word)}
        assert used <= known, f"{page}: `packline {command}` has no {sorted(used - known)}"
        checked += 1
    assert checked, "no document shows a packline command in a console block"


def test_a_command_that_does_not_exist_is_noticed() -> None:
    with pytest.raises(AssertionError, match="no-such-command"):
        help_of("no-such-command")


def test_every_public_name_has_a_page_in_the_reference() -> None:
    listed = re.findall(
        r"^   packline\.(\w+)$", (ROOT / "docs/reference/api.md").read_text("utf-8"), re.MULTILINE
    )
    assert {*packline.__all__} - {"PacklineError"} <= set(listed)


def test_every_make_target_in_the_documents_exists() -> None:
    targets = set(re.findall(r"^([a-z][\w-]*):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    wanted = {word for _, words in typed() if words[0] == "make" for word in words[1:] if "=" not in word}
    assert {"demo", "test"} <= wanted <= targets


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_code_in_a_page_parses_and_its_links_lead_somewhere(page: Path) -> None:
    for code in blocks(page, "python"):
        parts = doctest.DocTestParser().get_examples(code) if ">>>" in code else []
        compile("".join(part.source for part in parts) if parts else code, page.name, "exec")
    for code in blocks(page, "toml"):
        tomllib.loads(code)
    links = [path or image for path, image in LINK.findall(page.read_text("utf-8"))]
    local = [link for link in links if not re.match(r"[a-z]+:", link)]
    assert [link for link in local if not (page.parent / link).exists()] == []


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
