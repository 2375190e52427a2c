"""`estimate`: its figures against those of the build that it predicts."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.jobs.builds import build
from tests.viewing.parsed import text_of

import packline
from packline.cli.build import estimate_blocks
from packline.errors import InputError, TokenizerError
from packline.jobs import dry_run
from packline.jobs.dry_run import Estimate
from packline.jobs.events import Note
from packline.jobs.text_build import load_encoder, prepare
from packline.recipe import Recipe, RunOptions, Source
from packline.viewing.page import Page

EOD = "<|endoftext|>"


def write_input(folder: Path, kind: str, documents: list[str], write_jsonl: Callable[..., Path]) -> Path:
    import pyarrow as pa
    import pyarrow.parquet as pq
    import zstandard

    folder.mkdir()
    if kind == "parquet":
        pq.write_table(pa.table({"text": documents}), folder / "a.parquet", row_group_size=100)
    elif kind == "zstd":
        plain = write_jsonl(folder.parent / "plain.jsonl", documents)
        (folder / "a.jsonl.zst").write_bytes(zstandard.compress(plain.read_bytes()))
    elif kind == "files":
        for number, text in enumerate(documents[:60]):
            (folder / f"{number:03d}.txt").write_bytes(text.encode())
    else:
        write_jsonl(folder / "a.jsonl", documents)
    return folder


@pytest.mark.parametrize("kind", ["jsonl", "zstd", "parquet"])
def test_small_inputs_are_known_exactly(
    tmp_path: Path, documents: list[str], tokenizer_json: Path, write_jsonl: Callable[..., Path], kind: str
) -> None:
    source = write_input(tmp_path / "in", kind, documents, write_jsonl)
    found = packline.estimate(source, tokenizer_json, eod=EOD, workers=0)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        ["in", *(["plain.jsonl"] if kind == "zstd" else [])]
    )
    store = packline.build(source, tokenizer_json, eod=EOD, workers=0, out=tmp_path / "store")
    ledger = store.manifest.ledger
    assert (found.documents, found.text_bytes) == (ledger.documents, ledger.text_bytes)
    assert found.tokens == pytest.approx(ledger.tokens, rel=1e-3)
    size = sum(path.stat().st_size for path in (tmp_path / "store").rglob("*") if path.is_file())
    assert found.store_bytes == pytest.approx(size, rel=0.05)
    assert 0 < found.seconds <= found.seconds_cold + 1
    assert (found.eod_id, found.dtype, found.units) == (0, "uint16", 1)
    assert found.fields[0].text == "text"
    assert msgspec.json.decode(msgspec.json.encode(found), type=Estimate) == found


@pytest.mark.parametrize("kind", ["jsonl", "zstd", "parquet", "files"])
def test_what_was_not_read_is_taken_to_be_like_what_was(
    tmp_path: Path, documents: list[str], tokenizer_json: Path, write_jsonl: Callable[..., Path], kind: str
) -> None:
    source = write_input(tmp_path / "in", kind, documents * 12, write_jsonl)
    found = packline.estimate(source, tokenizer_json, eod=EOD, workers=0)
    texts = documents[:60] if kind == "files" else documents * 12
    assert found.sources["in"].sampled_documents < len(texts)
    assert found.documents == pytest.approx(len(texts), rel=0.25)
    assert found.text_bytes == pytest.approx(sum(len(text.encode()) for text in texts), rel=0.5)


def test_filters_limits_and_bad_records(
    tmp_path: Path, tokenizer_json: Path, write_jsonl: Callable[..., Path]
) -> None:
    records: list[Any] = ["a long enough text", "short", {"text": 1}, f"a control token {EOD} inside"] * 25
    source = write_jsonl(tmp_path / "a.jsonl", records)
    arguments: dict[str, Any] = {"eod": EOD, "workers": 0, "min_chars": 10}
    found = packline.estimate(source, tokenizer_json, **arguments)
    assert found.documents == 50
    assert found.sources["a"].bad_fraction == 0.25
    warnings = "\n".join(found.warnings)
    assert "25 special-token strings in the sample; they stay text" in warnings
    assert "25.00% bad records in the sample (not_a_string 25): more than the 1.0%" in warnings
    limited = packline.estimate(source, tokenizer_json, limit_documents=10, **arguments)
    assert limited.documents == 10
    assert limited.tokens == pytest.approx(found.tokens / 5, abs=1)
    assert (
        "the filters leave none"
        in packline.estimate(source, tokenizer_json, eod=EOD, min_chars=99).warnings[0]
    )


def test_a_small_disk_is_a_warning(
    tmp_path: Path, tokenizer_json: Path, write_jsonl: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("build_job", "dry_run"):
        monkeypatch.setattr(f"packline.jobs.{module}.free_disk", lambda folder: 500_000)
    source = write_jsonl(tmp_path / "a.jsonl", ["a text of some words"] * 90_000)
    told: list[Any] = []
    found = packline.estimate(source, tokenizer_json, eod=EOD)
    assert not found.enough_disk
    assert re.search(r"the disk is too small: [1-9]\S* MB needed, 0.5 MB free", found.warnings[0])
    build(tmp_path / "store", source, tokenizer_json, on_event=told.append)
    notes = [event.text for event in told if isinstance(event, Note)]
    assert re.search(
        r"^the store may need [1-9]\S* MB, and the disk has 0.5 MB free$", "\n".join(notes), re.M
    )


def test_what_stops_a_build_stops_its_estimate(tmp_path: Path, tokenizer_json: Path) -> None:
    with pytest.raises(InputError, match="cannot find"):
        packline.estimate(tmp_path / "none", tokenizer_json)
    (tmp_path / "a.txt").write_text("x")
    with pytest.raises(TokenizerError, match="no tokenizer"):
        packline.estimate(tmp_path / "a.txt", tmp_path / "none.json")


@pytest.mark.parametrize("beside", ["", "jsonl"])
def test_what_is_not_text_is_told_by_plan_and_build_alike(
    tmp_path: Path, documents: list[str], tokenizer_json: Path, beside: str
) -> None:
    folder = tmp_path / "notes"
    (folder / "deep").mkdir(parents=True)
    for number, text in enumerate(documents[:43]):
        (folder / f"{number:03d}.txt").write_bytes(text.encode())
    bad = {
        "paper.pdf": b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n",
        "scan.png": b"\x89PNG\r\n\x1a\n" + bytes(99),
        "letter.docx": b"PK\x03\x04\x14\x00" + bytes(range(256)),
        "deep/latin.txt": "Caf\xe9 und B\xe4r".encode("latin-1") * 99,
        "utf16.txt": "Hello".encode("utf-16"),
    }
    for name, data in bad.items():
        (folder / name).write_bytes(data)
    (folder / "long.md").write_text("x" + "\xe9" * (256 << 10))  # a character is cut where the look ends
    if beside:
        lines = "".join(msgspec.json.encode({"text": one}).decode() + "\n" for one in documents[50:70])
        (folder / "more.jsonl").write_text(lines)
    notes: list[str] = []
    store = packline.build(
        folder,
        tokenizer_json,
        out=tmp_path / "store",
        workers=0,
        engine="tokenizers",
        on_event=lambda event: notes.append(event.text) if isinstance(event, Note) else None,
    )
    found = packline.estimate(folder, tokenizer_json, engine="tokenizers")
    ledger = store.manifest.ledger
    assert ledger.documents == 44 + 20 * bool(beside)
    if not beside:  # documents of two kinds of files are estimated by bytes
        assert found.documents == ledger.documents
        assert found.sources["notes"].bad_fraction == pytest.approx(ledger.bad_fraction)
    assert ledger.rejected == {"invalid_utf8": 5}
    (note,) = [one for one in notes if "not UTF-8" in one]
    assert note in found.warnings and "source notes: 5 files are not UTF-8 text: deep/latin.txt, " in note
    assert all(name in note for name in bad) and "notes/**/*.txt" in note


def test_text_in_a_named_encoding_is_neither_noted_nor_counted_as_bad(
    tmp_path: Path, tokenizer_json: Path
) -> None:
    (tmp_path / "old.txt").write_bytes("Übermäßige Straßen. ".encode("latin-1") * 50)
    (tmp_path / "new.txt").write_text("Plain text.", "utf-8")
    unnamed = packline.estimate(tmp_path, tokenizer_json, engine="tokenizers")
    (note,) = [one for one in unnamed.warnings if "not UTF-8" in one]
    assert "--charset latin-1" in note and "glob" not in note  # a glob would not leave out old.txt
    named = packline.estimate(tmp_path, tokenizer_json, engine="tokenizers", charset="latin-1")
    assert (named.documents, next(iter(named.sources.values())).bad_fraction) == (2, 0.0)
    assert not [one for one in named.warnings if "UTF-8" in one]


def test_encodings_and_line_ends_are_noted_with_their_remedy(tmp_path: Path, tokenizer_json: Path) -> None:
    (tmp_path / "a.txt").write_bytes("Übermäßige Straßen. ".encode("utf-16"))
    (tmp_path / "b.txt").write_bytes("Übermäßige\r\nStraßen.\r\n".encode())
    notes = packline.estimate(tmp_path, tokenizer_json, engine="tokenizers").warnings
    assert any("--charset utf-16" in one and "1 file is not UTF-8 text: a.txt;" in one for one in notes)
    (dos,) = [one for one in notes if "1 file has line ends of DOS: b.txt;" in one]
    assert "newlines = 'unix' in a recipe" in dos
    mended = packline.estimate(tmp_path / "b.txt", tokenizer_json, engine="tokenizers", newlines="unix")
    assert not any("DOS" in one for one in mended.warnings)


def test_a_folder_without_any_text_is_told(tmp_path: Path, tokenizer_json: Path) -> None:
    (tmp_path / "a.bin").write_bytes(b"\xff\xfe\xfd")
    found = packline.estimate(tmp_path / "a.bin", tokenizer_json, engine="tokenizers")
    assert (found.documents, found.sources["a"].bad_fraction) == (0, 1.0)
    assert any("1 file is not UTF-8 text: a.bin" in one for one in found.warnings)


def test_times_are_a_range_and_rates_of_few_documents_are_left_out(
    tmp_path: Path, tokenizer_json: Path
) -> None:
    (tmp_path / "a.txt").write_text("Plain text.", "utf-8")
    found = packline.estimate(tmp_path, tokenizer_json, engine="tokenizers")
    rates = {"ascii": {"one": 121.0, "other": 0.3}, "wide": {"alone": 0.7}}
    busy = msgspec.structs.replace(found, seconds=7.8, seconds_cold=5.5, rates=rates)
    text = text_of(Page("plan", tuple(estimate_blocks(busy))), 120)
    assert "5.5 s to 7.8 s in one process of up to" in text
    shared = msgspec.structs.replace(busy, workers=2)
    assert "5.5 s to 7.8 s with 2 worker processes of up to" in text_of(
        Page("plan", tuple(estimate_blocks(shared))), 120
    )
    assert "ASCII: one 121 MB/s\n" in text and "other scripts: alone 1 MB/s" in text


def test_a_file_that_cannot_be_read_adds_nothing_and_the_others_count_for_it(
    tmp_path: Path, tokenizer_json: Path
) -> None:
    for name in "abcd":
        (tmp_path / f"{name}.txt").write_text("one\ntwo\n\nthree\n")
    source = Source(inputs=(str(tmp_path),), documents="line")
    recipe = Recipe(sources=(source,), tokenizer=str(tokenizer_json))
    work = prepare(recipe, RunOptions(engine="tokenizers"))
    encoder = load_encoder(work)
    (whole,) = dry_run.run_samples(work, encoder)
    (tmp_path / "b.txt").unlink()
    (sample,) = dry_run.run_samples(work, encoder)
    assert (whole.whole[:2].tolist(), whole.problems) == ([16, 12], [])
    assert sample.whole[:2].tolist() == [16, 12], "the missing file is taken to be like the others"
    assert sample.ledger.documents == 9
    (problem,) = sample.problems
    assert problem.startswith(f"{tmp_path / 'b.txt'}: ")
