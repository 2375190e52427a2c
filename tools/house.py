"""Measure the structure of the code: size, direction, circles, path of a document, names, language.

    python -m tools.house            # the table
    python -m tools.house --json     # the same as one JSON object
    python -m tools.house --list mannerisms   # the lines behind a figure; also circles, names, path

Everything is counted from the source itself. `path` runs one small build and reads one batch under a profiler
and counts the files of packline whose functions ran.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import shutil
import sys
import tempfile
import threading
import tomllib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src"

MANNERISMS = {
    "headless clause": r"^(?:What|Of|How|Where|Which|That|Those|Whether)\b(?![^.\n]*\?)",
    "says": r"\b(?:says?|tells? of) (?:of )?(?:itself|themselves|so|what|which|how|where|nothing)\b"
    r"|\bsaid\b",
    "asked for": r"\b(?:is|was|are|were|be|been) asked\b|\basks? for\b|\basked for\b",
    "a for per": r"(?i)\b(?:bytes|tokens|rows?|documents|records|seconds|files|lines|MB|copy|core|GB) an? "
    r"(?:token|row|document|record|file|shard|batch|second|core|worker|unit|line|source|command|word|byte)\b",
    "stands": r"\bstands?\b(?! for)",
    "told": r"\btold\b|\btells\b",
    "What it does not do": r"What it does not do",
    "goes on": r"\b(?:goes?|going|went) on\b",
    "drawn": r"\b(?:drawn|draws)\b",
    "stretch": r"\bstretch(?:es)?\b",
    "so many": r"\bso many\b",
    "other": r"\bbeside\b|\bby itself\b|\bof its own\b|\bnobody\b|\bwhoever\b|\bsomebody\b|\bbeforehand\b"
    r"|\blikewise\b|\bheld against\b|\blaid aside\b|\ba must\b|\bforetell\b",
}
"""Habits of language that the field does not have, as patterns over docstrings."""


def modules() -> dict[str, Path]:
    """Modules of packline by dotted name."""
    found = {}
    for path in sorted(SOURCE.rglob("*.py")):
        if path.name == "conftest.py":
            continue
        parts = list(path.relative_to(SOURCE).with_suffix("").parts)
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports(tree: ast.AST, known: dict[str, Path]) -> set[str]:
    """Modules of packline that a module imports, inside functions and for types too."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names] + [node.module]
        else:
            continue
        found.update(name for name in names if name in known)
    return {name for name in found if name != "packline"}


def circles(edges: dict[str, set[str]]) -> list[list[str]]:
    """Groups of modules that all need each other (strongly connected, Tarjan's algorithm)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    groups: list[list[str]] = []

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for other in sorted(edges[name]):
            if other not in index:
                visit(other)
                low[name] = min(low[name], low[other])
            elif other in stack:
                low[name] = min(low[name], index[other])
        if low[name] == index[name]:
            group: list[str] = []
            while not group or group[-1] != name:
                group.append(stack.pop())
            if len(group) > 1:
                groups.append(sorted(group))

    sys.setrecursionlimit(10_000)
    for name in sorted(edges):
        if name not in index:
            visit(name)
    return groups


def layer_of() -> Callable[[str], int]:
    """Height of a module's package in the order of pyproject.toml; the highest package first."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    contracts = project["tool"]["importlinter"]["contracts"]
    layers = next(contract["layers"] for contract in contracts if contract["type"] == "layers")
    heights = {}
    for number, layer in enumerate(reversed(layers)):
        for name in re.findall(r"\w+", layer):
            heights[name] = number
    return lambda module: heights.get(module.split(".")[1] if "." in module else "", len(layers))


def docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Docstrings of a module with their lines, those of fields included."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            for part in node.body:
                value = part.value if isinstance(part, ast.Expr) else None
                if isinstance(value, ast.Constant) and isinstance(value.value, str):
                    yield part.lineno, value.value


def mannerisms(trees: dict[str, ast.Module]) -> list[tuple[str, str, int, str]]:
    """Every hit: habit, module, line, words."""
    hits = []
    for name, tree in trees.items():
        for line, text in docstrings(tree):
            prose = re.split(r"\n\s*>>> ", text)[0]
            for habit, pattern in MANNERISMS.items():
                for match in re.finditer(pattern, prose):
                    hits.append((habit, name, line, match.group()))
    return hits


def names_in_two(trees: dict[str, ast.Module]) -> dict[str, list[str]]:
    """Public functions and classes by name, where several modules define one."""
    homes: dict[str, list[str]] = defaultdict(list)
    for module, tree in trees.items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_"):
                homes[node.name].append(module)
    pairs = {name: found for name, found in homes.items() if len(found) > 1}
    return dict(sorted(pairs.items()))


def path_of_a_document() -> tuple[set[str], set[str]]:
    """Files whose functions run in a build of one file, and in one batch of the store."""
    import tokenizers

    import packline

    seen: set[str] = set()

    def profile(frame: object, event: str, _: object) -> None:
        if event == "call":
            seen.add(frame.f_code.co_filename)  # type: ignore[attr-defined]

    def files(run: Callable[[], object]) -> set[str]:
        seen.clear()
        threading.setprofile(profile)
        sys.setprofile(profile)
        try:
            run()
        finally:
            sys.setprofile(None)
            threading.setprofile(None)
        below = str(SOURCE / "packline")
        return {file[len(below) + 1 :] for file in seen if file.startswith(below)}

    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        tokenizer = place / "tokenizer.json"
        texts = [path.read_text("utf-8") for path in sorted((SOURCE / "packline").glob("*.py"))]
        trained = tokenizers.ByteLevelBPETokenizer()
        trained.train_from_iterator(texts, 400, special_tokens=["<|endoftext|>"], show_progress=False)
        trained.save(str(tokenizer))
        lines = [json.dumps({"text": text}) for text in texts]
        (place / "in.jsonl").write_text("\n".join(lines) + "\n", "utf-8")

        def build() -> None:
            packline.build(
                place / "in.jsonl", tokenizer=tokenizer, out=place / "store", workers=0, engine="tokenizers"
            )

        def batch() -> None:
            packline.Loader(packline.open(place / "store").rows(seq_len=64), batch_size=4, seed=1).batch(0)

        build()
        batch()  # twice, so that what runs while modules load is not counted
        shutil.rmtree(place / "store")
        return files(build), files(batch)


@dataclass(frozen=True)
class Figures:
    """What was counted."""

    packages: dict[str, tuple[int, int]]
    """Files and lines by package."""
    circles: list[list[str]]
    against: list[tuple[str, str]]
    """Imports against the direction."""
    processes: list[str]
    """Modules that start processes."""
    names: dict[str, list[str]]
    """Public names that several modules define."""
    mannerisms: list[tuple[str, str, int, str]]
    path: dict[str, list[str]]

    def table(self) -> dict[str, int]:
        """The figures as numbers."""
        habits = Counter(habit for habit, *_ in self.mannerisms)
        return {
            "files": sum(files for files, _ in self.packages.values()),
            "lines": sum(lines for _, lines in self.packages.values()),
            "circles": len(self.circles),
            "files in the largest circle": max(map(len, self.circles), default=0),
            "imports against the direction": len(self.against),
            "modules that start processes": len(self.processes),
            "files on the path of a document": len({*self.path["build"], *self.path["batch"]}),
            "  of a build": len(self.path["build"]),
            "  of a batch": len(self.path["batch"]),
            "public names in two modules": len(self.names),
            "mannerisms": len(self.mannerisms),
            **{f"  {habit}": count for habit, count in habits.most_common()},
        }


def measure() -> Figures:
    """Count everything."""
    known = modules()
    texts = {name: path.read_text("utf-8") for name, path in known.items()}
    trees = {name: ast.parse(text) for name, text in texts.items()}
    edges = {name: imports(tree, known) - {name} for name, tree in trees.items()}
    height = layer_of()
    packages: dict[str, tuple[int, int]] = {}
    for name, text in texts.items():
        package = name.split(".")[1] if name.count(".") else ""
        package = package if (SOURCE / "packline" / package).is_dir() and package else "(top)"
        files, lines = packages.get(package, (0, 0))
        packages[package] = (files + 1, lines + len(text.splitlines()))
    against = [
        (name, other)
        for name, others in edges.items()
        for other in others
        if name.count(".") and other.count(".") and height(other) > height(name)
    ]
    starts = re.compile(r"subprocess\.Popen\(|\.Process\(\s|ProcessPoolExecutor\(|os\.fork\(\)")
    build, batch = path_of_a_document()
    return Figures(
        packages=dict(sorted(packages.items())),
        circles=circles(edges),
        against=sorted(against),
        processes=sorted(name for name, text in texts.items() if starts.search(text)),
        names=names_in_two(trees),
        mannerisms=mannerisms(trees),
        path={"build": sorted(build), "batch": sorted(batch)},
    )


def main() -> int:
    """Print the table, or the lines behind one figure."""
    lists = ("circles", "against", "processes", "names", "mannerisms", "path")
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="everything as one JSON object")
    parser.add_argument("--list", choices=lists, help="the lines behind a figure")
    wanted = parser.parse_args()
    figures = measure()
    if wanted.json:
        print(json.dumps({**asdict(figures), "table": figures.table()}, indent=1))
    elif wanted.list:
        part = getattr(figures, wanted.list)
        print("\n".join(str(row) for row in (part.items() if isinstance(part, dict) else part)))
    else:
        for name, (files, lines) in figures.packages.items():
            print(f"{name:<12} {files:>4} files {lines:>7,} lines")
        print()
        for name, value in figures.table().items():
            print(f"{name:<34} {value:>7,}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
