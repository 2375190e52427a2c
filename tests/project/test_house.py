"""House rules that a linter does not know: of files, of words, of pins, of layers.

Each rule is also fed something that breaks it, so that a rule that has gone blind is noticed.
"""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from tools.house import mannerisms, modules

ROOT = Path(__file__).resolve().parents[2]

# One word an idea: these nouns have another name here (document, row, shard, unit).
OTHER_NOUNS = {"example", "examples", "instance", "instances"}

# A path below somebody's home or a mount of one machine. `/data/...` stands for the reader's own.
MACHINE_PATH = re.compile(r"(?<![\w./~-])/(?:home|root|Users|work|mnt|opt|srv)/[\w.]")
LOCAL_INDEX = re.compile(r"(?:--(?:extra-)?index-url|--find-links|https?://[\w.-]*(?:pypi|index|mirror))")


def project_files() -> list[Path]:
    """What is or would be committed: git's own list, or without git everything but caches."""
    command = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    git = shutil.which("git") and (ROOT / ".git").exists()
    if git:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        paths = [ROOT / name for name in done.stdout.split("\0") if name]
    else:
        hidden = re.compile(
            r"/(?:\.venv[^/]*|\.git|\.[a-z_]+cache|\.hypothesis|__pycache__|build|dist|data)/"
        )
        paths = [path for path in ROOT.rglob("*") if not hidden.search(f"/{path.relative_to(ROOT)}")]
    return sorted(path for path in paths if path.is_file())


def texts() -> Iterator[tuple[str, str]]:
    for path in project_files():
        data = path.read_bytes()
        if b"\0" not in data:
            yield path.relative_to(ROOT).as_posix(), data.decode("utf-8")


def strays(text: str) -> list[str]:
    """Lines that name a place of one machine."""
    places = {str(ROOT), str(ROOT.parent), str(Path.home())} - {"/"}
    return [
        line
        for line in text.splitlines()
        if MACHINE_PATH.search(line)
        or LOCAL_INDEX.search(line)
        or any(re.search(re.escape(place) + r"(?![\w-])/", line) for place in places)
    ]


def other_nouns(source: str) -> set[str]:
    """Names that a module defines and that hold a noun which has another name here."""
    defined = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            defined.add(node.name)
        elif isinstance(node, ast.arg):
            defined.add(node.arg)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            defined.add(node.id)
    words = {name: re.findall(r"[A-Z]?[a-z]+", name) for name in defined}
    return {name for name, parts in words.items() if OTHER_NOUNS & {part.lower() for part in parts}}


def test_nothing_names_a_place_of_one_machine() -> None:
    own = Path(__file__).relative_to(ROOT).as_posix()  # this file holds the patterns
    found = {name: lines for name, text in texts() if name != own and (lines := strays(text))}
    assert found == {}


@pytest.mark.parametrize(
    "line",
    [
        "open('" + "/" + "home/someone/corpus.jsonl')",
        f"cd {ROOT}/src",
        f"data = {Path.home()}/data",
        "pip install --index" + "-url somewhere",
    ],
)
def test_a_place_of_one_machine_is_noticed(line: str) -> None:
    assert strays(line) == [line]


def test_one_word_an_idea() -> None:
    sources = [(name, text) for name, text in texts() if name.startswith("src/") and name.endswith(".py")]
    found = {name: sorted(nouns) for name, text in sources if (nouns := other_nouns(text))}
    assert found == {}


def test_another_word_for_a_document_is_noticed() -> None:
    source = "def f(example): chunk_size = 1\nclass TextInstance: pass\nisinstance(a, b.chunks)"
    assert other_nouns(source) == {"example", "TextInstance"}


def pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    lines = [line for line in lines if line and not line.startswith("#")]
    assert all(re.fullmatch(r"[a-z0-9-]+==[0-9][0-9a-z.]*", line) for line in lines)
    return dict(line.split("==") for line in lines)


def test_every_requirement_is_pinned_within_its_bounds() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    named = [project["dependencies"], *project["optional-dependencies"].values()]
    pinned = pins()
    assert len(named[0]) > 10
    for requirement in (Requirement(line) for lines in named for line in lines):
        assert requirement.specifier.contains(pinned[requirement.name]), requirement


def lint_imports(folder: Path) -> subprocess.CompletedProcess[str]:
    """The layers contract on the packline that lies in `folder/src`."""
    code = "import sys; sys.path.insert(0, 'src'); from importlinter import cli; cli.lint_imports_command()"
    command = [sys.executable, "-c", code, "--no-cache"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_an_import_against_the_flow_is_noticed(tmp_path: Path) -> None:
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__"))
    done = lint_imports(tmp_path)
    assert done.returncode == 0, done.stdout
    broken = (
        ("errors.py", "from packline.storage import local", "packline.errors is not allowed to import"),
        ("errors.py", "from packline.recipe import Recipe", ".errors -> .recipe"),
        ("store/naming.py", "from packline.jobs import plan", "packline.store is not allowed to import"),
    )
    for file, line, _ in broken:
        with (tmp_path / "src/packline" / file).open("a", encoding="utf-8") as module:
            module.write(f"\n{line}\n")
    done = lint_imports(tmp_path)
    assert done.returncode == 1 and all(found in done.stdout for *_, found in broken), done.stdout


MOST = 21
"""Hits in all docstrings. Lower it when they become fewer; it never rises."""


def test_mannerisms_do_not_become_more() -> None:
    trees = {name: ast.parse(path.read_text("utf-8")) for name, path in modules().items()}
    hits = mannerisms(trees)
    habits = Counter(habit for habit, *_ in hits)
    assert len(hits) <= MOST, f"{len(hits)} hits ({dict(habits)}); python -m tools.house --list mannerisms"


@pytest.mark.parametrize(
    ("text", "habit"),
    [
        ("What came of an import.", "headless clause"),
        ("What a store says of itself.", "says"),
        ("Bytes a token.", "a for per"),
        ("An import, or go on with one that goes on.", "goes on"),
        ("Take so many rows.", "so many"),
    ],
)
def test_a_mannerism_is_noticed(text: str, habit: str) -> None:
    tree = ast.parse(f'def f() -> None:\n    """{text}"""\n')
    assert habit in {found for found, *_ in mannerisms({"m": tree})}


def test_plain_english_is_not_counted() -> None:
    tree = ast.parse('def f() -> None:\n    """Result of an import: bytes per token, rows per batch."""\n')
    assert mannerisms({"m": tree}) == []
