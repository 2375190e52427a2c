"""How large a document may be: refused where it does not fit; no byte of a store depends on the memory."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import python_sources
from tests.jobs.builds import SRC, build, digests, rejects

import packline
from packline.errors import OutOfMemory
from packline.jobs.dry_run import estimate_build
from packline.recipe import Recipe, RunOptions, Source
from packline.store import reencode_audit
from packline.store.verify import verify

MIB = 1 << 20
SMALL: dict[str, Any] = {"workers": 1, "memory_bytes": 256 * MIB, "engine": "gigatoken"}
LARGE: dict[str, Any] = {"workers": 1, "memory_bytes": 4096 * MIB, "engine": "gigatoken"}


def long_text(size: int) -> str:
    """Real text with a number in each line of it, so that no part of it is like another."""
    parts, held, number = [], 0, 0
    sources = [text for _, text in python_sources(1_500_000)]
    while held < size:
        parts.append(sources[number % len(sources)].replace("\n    ", f"\n  {number} "))
        held += len(parts[-1])
        number += 1
    return "".join(parts)[:size]


def write(path: Path, texts: list[str]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return path


def test_a_document_that_does_not_fit_stops_the_build_and_more_memory_resumes_it(
    tmp_path: Path, tokenizer_json: Path
) -> None:
    write(tmp_path / "in/a.jsonl", ["before"] + ["one more " * 9] * 60_000)
    path = write(tmp_path / "in/b.jsonl", [long_text(12 * MIB), "after"])
    with pytest.raises(OutOfMemory, match=f"{path.name} at 0: a document of 12.* MB does not fit") as caught:
        build(tmp_path / "out", tmp_path / "in", tokenizer_json, **SMALL)
    assert "--memory" in caught.value.hint and "max_document_bytes = " in caught.value.hint
    assert list((tmp_path / "out/receipts").glob("*.json")), "what is committed is kept"
    build(tmp_path / "out", tmp_path / "in", tokenizer_json, **LARGE)
    build(tmp_path / "whole", tmp_path / "in", tokenizer_json, **LARGE)
    assert digests(tmp_path / "out") == digests(tmp_path / "whole")


def test_a_file_that_is_one_document_is_refused_before_any_unit_runs(
    tmp_path: Path, tokenizer_json: Path
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.txt").write_text("short")
    (tmp_path / "in/b.txt").write_text(long_text(20 * MIB))
    with pytest.raises(OutOfMemory, match=r"b\.txt: a document of 21\.0 MB"):
        build(tmp_path / "out", tmp_path / "in", tokenizer_json, **SMALL)
    assert not list((tmp_path / "out/receipts").glob("*.json"))
    recipe = Recipe(sources=(Source(inputs=(str(tmp_path / "in"),)),), tokenizer=str(tokenizer_json))
    with pytest.raises(OutOfMemory):
        estimate_build(recipe, RunOptions(**SMALL))


@pytest.mark.parametrize("kind", ["jsonl", "txt"])
def test_what_the_recipe_calls_too_large_is_the_same_reject_for_any_memory(
    kind: str, tmp_path: Path, tokenizer_json: Path
) -> None:
    text = long_text(30 * MIB)
    if kind == "jsonl":
        write(tmp_path / "in/a.jsonl", ["before", text, "after", "x" * 100])
    else:
        (tmp_path / "in").mkdir()
        (tmp_path / "in/a.txt").write_text(text)
        (tmp_path / "in/b.txt").write_text("after")
    found = []
    for name, run in (("small", SMALL), ("large", LARGE)):
        store = build(tmp_path / name, tmp_path / "in", tokenizer_json, max_document_bytes=25 * MIB, **run)
        assert store.manifest.ledger.rejected == {"too_large": 1}
        assert [entry["reason"] for entry in rejects(tmp_path / name)] == ["too_large"]
        found.append(digests(tmp_path / name))
    assert found[0] == found[1]


def test_the_plan_says_which_documents_would_stop_the_build(tmp_path: Path, tokenizer_json: Path) -> None:
    write(tmp_path / "a.jsonl", [text for _, text in python_sources(1_500_000)] * 20)
    recipe = Recipe(sources=(Source(inputs=(str(tmp_path / "a.jsonl"),)),), tokenizer=str(tokenizer_json))
    plenty = estimate_build(recipe, RunOptions(workers=1, memory_bytes=64 << 30, engine="gigatoken"))
    assert plenty.largest_document == recipe.max_document_bytes
    assert not [line for line in plenty.warnings if "would stop" in line]
    little = estimate_build(recipe, RunOptions(**SMALL))
    assert little.largest_document < (256 * MIB) // 16
    assert [line for line in little.warnings if "would stop the build" in line and "--memory" in line]


CROWDED = """
import sys
if "packline.jobs.host" in sys.orig_argv:
    from packline.jobs import text_unit
    measured = [text_unit.resident_memory]  # what the process that is forked holds, once
    def resident():
        if measured:
            return measured.pop()()
        sys.stderr.write("asked for room\\n")
        return {resident}
    text_unit.resident_memory = resident
"""


def test_a_worker_without_room_is_replaced_and_its_unit_begun_again(
    tmp_path: Path,
    tokenizer_json: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    for number in range(3):
        write(tmp_path / f"in/{number}.jsonl", [long_text(5 * MIB)[number:], f"after {number}"])
    (tmp_path / "site").mkdir()
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path / "site"), str(SRC)]))
    found = []
    for resident in (0, 1 << 60):
        (tmp_path / "site/sitecustomize.py").write_text(CROWDED.format(resident=resident))
        told: list[Any] = []
        monkeypatch.setattr("packline.jobs.cut_inputs.UNIT_BYTES", ())
        monkeypatch.setattr("packline.jobs.cut_inputs.LARGEST_UNIT", 6 << 20)
        out = tmp_path / f"out-{resident}"
        packline.build(tmp_path / "in", tokenizer_json, out=out, on_event=told.append, **LARGE)
        done = [event.unit for event in told if type(event).__name__ == "UnitDone"]
        assert sorted(done) == ["in-000000", "in-000001", "in-000002"]
        assert capfd.readouterr().err.count("asked for room") == 2  # by a worker that has run a unit
        text = sum(event.text_bytes for event in told if type(event).__name__ == "Progress")
        found.append((digests(out), text))
    assert found[0] == found[1]


def test_deep_verification_passes_over_a_large_document_and_says_so(
    tmp_path: Path, tokenizer_json: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "in/a.jsonl", ["before", long_text(1 * MIB), "after"])
    build(tmp_path / "out", tmp_path / "in", tokenizer_json)
    whole = verify(tmp_path / "out", deep=True)
    assert whole.deep is not None and whole.deep.documents == 3 and not whole.deep.notes
    # A text that is passed over by its size, and one whose record alone is too large.
    for largest, record in ((1 << 19, 1 << 22), (1 << 22, 1 << 19)):
        monkeypatch.setattr(reencode_audit, "LARGEST", largest)
        monkeypatch.setattr(reencode_audit, "LARGEST_RECORD", record)
        report = verify(tmp_path / "out", deep=True)
        assert report.ok and report.deep is not None and report.deep.documents == 2
        assert [note for note in report.deep.notes if note.startswith("1 documents not compared")]
