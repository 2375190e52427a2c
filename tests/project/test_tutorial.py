"""Pages of "Getting started", and the notebook: run in order, they print what the pages show.

Output that a reader should see is below a command of a `console` block, and in a `text` block after Python;
`...` stands for lines that are left out. What depends on the machine and its Python is not compared: numbers,
bars, names of modules, and the text of documents.
"""

from __future__ import annotations

import ast
import io
import json
import re
import shlex
import shutil
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.seeds.workspace import write_lines

import packline
from packline.cli.main import main

DOCS = Path(__file__).resolve().parents[2] / "docs"
NOT_RUN = ("pip", "packline demo")
"""Beginnings of commands that are not run: the first needs a network, the second has a test of its own."""


def commands_of(console: str) -> list[tuple[str, list[str]]]:
    """Commands of a console block, each with the lines that are shown below it."""
    found: list[tuple[str, list[str]]] = []
    for line in console.replace("\\\n", " ").splitlines():
        if line.startswith("$ "):
            found.append((line[2:], []))
        else:
            found[-1][1].append(line)
    return found


def plain(line: str) -> str:
    """A line without what depends on the machine, and on the documents in a row."""
    kinds = {"text": "[│…]", "span": r": document \d", "place": r"^\s+\S+/\S+ at \d"}
    for kind, pattern in kinds.items():
        if re.search(pattern, line):
            return kind
    line = re.sub(r"\bspans\b", "span", line)
    line = re.sub(r"[\w/]+\.py\b(:\w+)?(#L\d+)?", "X", line)
    line = re.sub(r"\d[\d,.]*|[━·]+", "0", line)
    line = re.sub(r"0 (h 0 min|min 0 s)", "0 s", line)
    line = re.sub(r"\b0 [kMG]?(B)?(?![\w])", r"0 \1", line)
    return " ".join(line.split())


def missing(shown: list[str], printed: str) -> list[str]:
    """Lines of a page that a command did not print, or not in their order."""
    lines = [line for line in map(plain, printed.splitlines()) if line]
    at, anywhere, absent = 0, True, []
    for line in shown:
        if not line.strip():
            continue
        if line.strip() == "...":
            anywhere = True
            continue
        places = range(at, len(lines) if anywhere else min(at + 1, len(lines)))
        found = next((place for place in places if lines[place] == plain(line)), None)
        if found is None:
            absent.append(line)
        else:
            at = found + 1
        anywhere = False
    return absent


def run_page(page: str, expected: dict[str, int]) -> tuple[dict[str, Any], dict[str, str]]:
    """Run all blocks of a page in the current folder, and compare what they print with what the page shows.

    Args:
        expected: exit code of the commands that contain a word; 0 for the others.

    Returns:
        Variables of the Python blocks, and the output of each command.
    """
    names: dict[str, Any] = {}
    outputs: dict[str, str] = {}
    printed = ""
    text = (DOCS / page).read_text("utf-8").replace("/your/folder", str(Path.cwd()))
    for language, code in re.findall(r"^```(console|python|text)\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        if language == "text":
            assert missing(code.splitlines(), printed) == [], f"{page}: not printed by Python: {printed}"
        elif language == "python":
            if code.startswith("# needs torch"):
                pytest.importorskip("torch", reason="the optional torch is not installed")
            with redirect_stdout(io.StringIO()) as out:
                exec(compile(code, page, "exec"), names)
            printed = out.getvalue()
        else:
            for line, shown in commands_of(code):
                if line.startswith(NOT_RUN):
                    continue
                program, *words = shlex.split(line, comments=True)
                assert program == "packline"
                with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
                    returned = main(words)
                wanted = next((code for word, code in expected.items() if word in line), 0)
                both = err.getvalue() + out.getvalue()
                assert returned == wanted, f"{line}: {both}"
                assert missing(shown, both) == [], f"{page}: not printed by {line}: {both}"
                outputs[" ".join(words)] = both
    return names, outputs


def test_shown_output_is_compared_but_for_what_depends_on_the_machine() -> None:
    assert commands_of("$ packline \\\n  -V  # which?\n0.1\n$ make demo") == [
        ("packline    -V  # which?", ["0.1"]),
        ("make demo", []),
    ]
    line = "  1,024 tokens, 3.5 kB  ━━━━  of ftplib.py:Some in 1 span"
    assert plain(line) == plain("12 tokens, 1.0 MB ·  of a/b.py in 3 spans")
    assert plain(line) != plain(line.replace("tokens", "documents"))
    assert plain("  web/part.jsonl at 3, id a.py") == plain("  code/0.jsonl at 1,007") == "place"
    assert plain(" 12  Some│ text") == plain("            of│ another│ document")
    printed = "first 1\nsecond\n\nthird\n"
    assert missing(["first 20", "...", "third"], printed) == missing(["second", "third"], printed) == []
    assert missing(["first 1", "third"], printed) == ["third"]
    assert missing(["third", "...", "second"], printed) == ["second"]


@pytest.mark.slow
@pytest.mark.parametrize("page", ["index.md", "quickstart.md"])
def test_the_first_pages(
    page: str,
    tmp_path: Path,
    tokenizer_json: Path,
    documents: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The reader has a corpus, and gpt2 in the cache of the hub."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("SHELL", "/bin/bash")
    records = [{"id": f"{number}.py", "text": text} for number, text in enumerate(documents)]
    write_lines(tmp_path / "corpus/code.jsonl", records * 2)
    (tmp_path / "gpt2").mkdir()
    shutil.copy(tokenizer_json, tmp_path / "gpt2/tokenizer.json")
    names, _ = run_page(page, {})
    assert names["batch"]["tokens"].shape == (8, names["rows"].seq_len)


@pytest.mark.slow
def test_the_tutorial_runs_from_top_to_bottom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names, outputs = run_page("tutorial.md", {})
    assert len(outputs) == 7
    assert "row 0" in next(text for line, text in outputs.items() if "--step 10" in line)
    assert "step" in next(text for line, text in outputs.items() if "--id bisect.py" in line)
    assert names["losses"][-1] < names["losses"][0] - 1


@pytest.mark.slow
def test_from_notes_to_nanogpt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names, outputs = run_page("nanogpt-from-notes.md", {})
    plan = next(text for line, text in outputs.items() if "--dry-run" in line)
    assert "2 files are not UTF-8 text: old.txt, scan.png" in plan
    assert packline.open("old").text(0) == "Übermäßige Straßen.\r\n"
    assert len(names["train"]) + len(names["val"]) == packline.open("store").manifest.tokens
    assert packline.open("store").sources["notes"].splits["val"] == 5


@pytest.mark.slow
def test_from_parquet_to_a_mixture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names, outputs = run_page("mixture-from-parquet.md", {})
    assert names["saved"]["step"] == 10
    assert names["span"].provenance.columns["url"].startswith("https://example.org/")
    first, later = (text for line, text in outputs.items() if line.startswith("trace"))
    assert "rows of 1,024 tokens" in first and "rows of 4,096 tokens" in later
    halves = np.concatenate([half.batch(10)["tokens"] for half in names["halves"]])
    assert (halves == names["loader"].batch(10)["tokens"]).all()


@pytest.mark.slow
def test_from_chats_to_a_checked_dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names, outputs = run_page("sft-from-chats.md", {"--against": 1})
    assert (len(names["store"]), len(names["rows"])) == (221, 201)  # 19 repeated, 1 leaked
    assert "bipartite" in next(text for line, text in outputs.items() if "--against" in line)


@pytest.mark.slow
def test_a_week_of_changing_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names, outputs = run_page("week.md", {"verify": 1, "diff": 1})  # questions found; stores that differ
    monday, tuesday = packline.open("monday"), packline.open("tuesday")
    # Tuesday: two of three files come over as they are, and the store is that of a build from nothing.
    shared = [path for path in Path("monday").glob("*.bin") if (Path("tuesday") / path.name).samefile(path)]
    assert len(shared) == len(list(Path("monday").glob("*.bin"))) == 4
    again = packline.build("recipe.toml", out="again")
    assert again.manifest.checksum == tuesday.manifest.checksum
    assert len(tuesday.documents) > len(monday.documents)
    # Wednesday: exactly the documents that a second way chooses.
    seen: set[str] = set()
    wanted = 0
    for number in range(len(tuesday.documents)):
        found = tuesday.provenance(number)
        if found.split == "train" and found.columns["score"] >= 1:
            text = tuesday.text(number)
            wanted += text not in seen
            seen.add(text)
    assert len(names["rows"].selection) == wanted
    assert "would train again" in names["refusal"] and "before step 3" in names["refusal"]
    read = [
        {span.document for row in packline.trace(names["stricter"], step).rows for span in row.spans}
        for step in range(10)
    ]
    assert not set().union(*read[:3]) & set().union(*read[3:])
    # Thursday: five leaked questions and every copy are left out.
    leaks = next(text for line, text in outputs.items() if "--against" in line)
    assert "5 questions found in 5 documents" in leaks
    stage = names["loader"].schedule.stages[0]
    kept = stage.mixture.rows[0].selection
    ids = {tuesday.provenance(int(one)).id for one in kept.documents(np.arange(len(kept)))}
    assert not ids & {record["id"] for record in names["leaked"]}
    # Friday.
    assert "web/" in outputs["trace run.toml --step 3 --row 0"]
    assert "2-tuesday.jsonl" in outputs["diff monday tuesday"]


NOTEBOOK = Path(__file__).resolve().parents[2] / "docs" / "notebook.ipynb"


def run_cell(source: str, names: dict[str, Any]) -> Any:
    """Run a cell; return the value of its last expression, which a notebook shows."""
    tree = ast.parse(source)
    last = tree.body[-1]
    if not isinstance(last, ast.Expr):
        exec(compile(tree, "notebook", "exec"), names)
        return None
    tree.body.pop()
    exec(compile(tree, "notebook", "exec"), names)
    return eval(compile(ast.Expression(last.value), "notebook", "eval"), names)


def run_all(notebook: dict[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Run all cells; return their variables, and the pictures by type."""
    names: dict[str, Any] = {}
    pictures: dict[str, str] = {}
    for cell in notebook["cells"]:
        if cell["cell_type"] != "code":
            continue
        assert cell["outputs"] == [] and cell["execution_count"] is None
        value = run_cell("".join(cell["source"]), names)
        if hasattr(value, "_repr_html_"):
            pictures[type(value).__name__] = value._repr_html_()
    return names, pictures


def test_the_cells_run_in_order_and_have_pictures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    notebook = json.loads(NOTEBOOK.read_text("utf-8"))
    assert notebook["nbformat"] == 4 and NOTEBOOK.stat().st_size < 20_000
    names, pictures = run_all(notebook)
    assert run_all(notebook)[1].keys() == pictures.keys(), "the second time, in the same folder"
    assert set(pictures) == {"Store", "Rows", "Row", "Mixture", "Loader"}
    assert "70.0%" in pictures["Mixture"] and "30.0%" in pictures["Mixture"]
    assert len(re.findall("<span", pictures["Row"])) > 100
    assert "bisect.txt" in capsys.readouterr().out
    assert {name: part.documents for name, part in names["store"].sources.items()} == {"short": 4, "long": 3}
