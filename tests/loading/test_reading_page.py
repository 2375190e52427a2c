"""docs/reading.md against the code: its program runs, its drawn rows are right, no setting is missing."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import packline
from packline.loading.run_file import SourceSettings, StageSettings
from packline.packing.options import LoaderOptions
from packline.testing import make_store

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "reading.md").read_text("utf-8")
FIELDS = ("tokens", "targets", "position_ids", "segment_ids", "loss_mask")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def test_the_program_of_the_page_runs(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    tokenizer_json: Path,
    documents: list[str],
    write_jsonl: Callable[..., Path],
) -> None:
    for number, label in enumerate(("web", "code")):
        write_jsonl(tmp_path / f"{label}.jsonl", documents[number::2])
    sources = "".join(
        f'[[sources]]\nname = "{label}"\ninputs = ["{label}.jsonl"]\nlabel = "{label}"\n'
        for label in ("web", "code")
    )
    (tmp_path / "recipe.toml").write_text(f'tokenizer = "{tokenizer_json}"\n{sources}', "utf-8")
    packline.build(tmp_path / "recipe.toml", out=tmp_path / "store", workers=0)
    run, change = blocks("toml")
    (tmp_path / "run.toml").write_text(run, "utf-8")
    begun = "[[stages]]".join(run.split("[[stages]]")[:2])
    (tmp_path / "changed.toml").write_text(begun + change, "utf-8")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    code = blocks("python")
    assert len(code) > 10
    for block in code:
        if block.startswith("# needs torch"):
            try:
                import torch  # noqa: F401
            except ImportError:
                continue
        exec(compile(block, "reading.md", "exec"), names)
    assert names["state"]["step"] == 6
    before, after = (packline.Loader.from_file(f"{name}.toml") for name in ("run", "changed"))
    after.load_state_dict(before.state_at(12))
    assert next(iter(after))["tokens"].shape == (8, 256)


def drawn() -> list[dict[str, list[str]]]:
    """The rows that the page draws, a field a list."""
    drawing = PAGE.partition("    row 0\n")[2].partition("\n\n")[0]
    rows = drawing.split("    row 1\n")
    return [{name: values for name, *values in map(str.split, row.splitlines())} for row in rows]


def test_the_rows_that_the_page_draws_are_those_of_the_code(tmp_path: Path) -> None:
    store = make_store(tmp_path / "store", [[4, 2, 6]])
    letters = dict(
        zip("abcdefghi", (t for tokens in store.documents for t in tokens[:-1].tolist()), strict=True)
    )
    letters["."] = store.eod_id
    rows = store.rows(8)
    assert len(rows) == 2
    for row, right in zip(rows, drawn(), strict=True):
        assert set(right) == set(FIELDS)
        for name in FIELDS:
            values = [letters[text] if text in letters else int(text) for text in right[name]]
            assert np.array_equal(getattr(row, name), values), (name, row.index)


@pytest.mark.parametrize("kind", [LoaderOptions, StageSettings, SourceSettings])
def test_every_setting_of_a_run_file_is_in_the_page(kind: Any) -> None:
    section = PAGE.split("## Run files\n")[1].split("\n## ")[0]
    assert set(kind.__struct_fields__) <= set(re.findall(r"`(\w+)`", section))
