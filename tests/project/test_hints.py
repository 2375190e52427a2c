"""Remedies that are printed exist: every command and option that a text of the package names."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from packline.cli.main import COMMANDS, GLOBAL, NOW, make_app

SOURCES = Path(__file__).resolve().parents[2] / "src" / "packline"
NAMES = [name for commands in COMMANDS.values() for name in commands]
OF_PACKLINE = "--help --version --install-completion --shell"
OF_TRAINERS = (
    "--append-eod --data-path --train-data-path --valid-data-path --test-data-path --tokenizer-type "
    "--tokenizer-model --per-split-data-args-path --reset-position-ids --reset-attention-mask "
    "--eod-mask-loss --dataset --train"
)
OF_OTHERS = "--head --repo-type --local-dir"
"""Options of `ray start` and of the hub's client."""
ELSEWHERE = {*OF_PACKLINE.split(), *OF_TRAINERS.split(), *OF_OTHERS.split()}


OPTION = re.compile(r"(?<![\w-])--[a-z][\w-]*")


@cache
def options() -> dict[str, set[str]]:
    """Options of every command, `tokenizer train` and its like among them."""
    found: dict[str, set[str]] = {}
    app = make_app()
    for name in NAMES:
        command = app[name]
        inner = [word for word in command if not word.startswith("-")] if name == "tokenizer" else []
        for word, one in [(f"{name} {word}", command[word]) for word in inner] or [(name, command)]:
            arguments = one.assemble_argument_collection()
            found[word] = {option for argument in arguments for option in argument.names} | {*GLOBAL}
    return found


def texts(source: str) -> list[tuple[int, str]]:
    """Texts of a module, with their lines; a value within an f-string is `X`. Docstrings are among them."""
    found = []
    tree = ast.parse(source)
    inside = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts = (part.value if isinstance(part, ast.Constant) else "X" for part in node.values)
            found.append((node.lineno, "".join(map(str, parts))))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inside:
            found.append((node.lineno, node.value))
    return found


def wrong(text: str) -> list[str]:
    """Commands and options that a text names, and that the command line does not have."""
    found = []
    known = set().union(*options().values()) | ELSEWHERE
    found += [option for option in OPTION.findall(text) if option not in known]
    lines = text.replace("\\\n", " ")
    for words in re.findall(r"(?:^|[\s`(:])packline ((?:[a-z]+)(?: [^\n`;|]*)?)", lines):
        first, *rest = words.split()
        if first in NOW:
            found.append(first)
        if first not in NAMES:
            continue  # a sentence: "packline writes"
        command = f"{first} {rest[0]}" if first == "tokenizer" and rest else first
        if command in options():
            own = re.split(r"[,.)] |: | && ", words)[0]
            used = re.findall(r"(?<![\w-])--[a-z][\w-]*", own)
            found += [
                f"{command} {option}" for option in used if option not in options()[command] | ELSEWHERE
            ]
    return found


@pytest.mark.parametrize(
    "path", sorted(SOURCES.rglob("*.py")), ids=lambda path: path.relative_to(SOURCES).as_posix()
)
def test_commands_and_options_that_texts_name_exist(path: Path) -> None:
    found = {f"line {line}": names for line, text in texts(path.read_text("utf-8")) if (names := wrong(text))}
    assert found == {}


def test_an_option_that_does_not_exist_is_found() -> None:
    assert wrong("packline build --seeds 3") == ["--seeds", "build --seeds"]
    assert wrong("run packline info STORE --deep first") == ["info --deep"]
    assert wrong("packline tokenize STORE --seq-len 8") == ["tokenize"]
    assert wrong("packline verify STORE --deep, or packline info STORE --html FILE") == []
    (text,) = [text for _, text in texts('f"packline build {name} --reusing {old}"')]
    assert wrong(text) == ["--reusing", "build --reusing"]
