"""The notebook of the documentation: its cells run in order, and show what Jupyter would show."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path
from typing import Any

import pytest

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
