"""Texts to train on are those of a build's split train; a user's own are plain files or documents."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from pyarrow import parquet
from tests.cli.command import result, run

import packline
from packline.errors import InputError, TokenizerError
from packline.facade import Store
from packline.recipe import load_recipe
from packline.vocabulary.texts import TEXT_BYTES, TrainingTexts, read_text
from packline.vocabulary.trained_folder import train_folder

ROWS: list[dict[str, Any]] = [
    {"id": str(n), "title": f"Title {n}", "body": "word " * (n % 9) + str(n), "score": n % 5, "lang": "en"}
    for n in range(200)
] + [{"id": "bad", "body": "no title", "score": 4}, {"id": "worse", "title": "T", "body": "x", "score": "4"}]

SOURCES = {
    "template": 'template = "# {{ title }}\\n\\n{{ body | upper }}"\n',
    "where": 'text = "body"\nwhere = "score >= 2"\n',
    "both": 'template = "{{ title }}"\nwhere = "score > 3"\nmin_chars = 8\n',
    "length": 'text = "body"\nmin_chars = 10\nmax_chars = 30\n',
}
JOBS = {
    "plain": "",
    "splits": "val_fraction = 0.2\ntest_fraction = 0.1\nseed = 3\n",
    "limit": "limit_documents = 37\nval_fraction = 0.5\n",
}


def write(folder: Path, kind: str, job: str, source: str, tokenizer: Path) -> Path:
    if kind == "parquet":
        table = pa.Table.from_pylist([row | {"score": 1} if row["id"] == "worse" else row for row in ROWS])
        pq.write_table(table, folder / "a.parquet", row_group_size=50)
    else:
        (folder / f"a.{kind}").write_text("".join(json.dumps(row) + "\n" for row in ROWS) + "nonsense\n")
    path = folder / "recipe.toml"
    path.write_text(f'tokenizer = "{tokenizer}"\n{job}\n[[sources]]\ninputs = ["a.{kind}"]\n{source}')
    return path


def train_texts(store: Store) -> list[str]:
    """The split train, decoded, in the order of the input."""
    found = [
        (store.provenance(index).position, store.tokenizer.decode(tokens[:-1].tolist()))
        for index, tokens in enumerate(store.documents)
        if store.provenance(index).split == "train"
    ]
    return [text for _, text in sorted(found)]


@pytest.mark.parametrize(
    ("kind", "source", "job"),
    [
        *(("jsonl", source, "splits") for source in SOURCES),
        *(("parquet", source, "splits") for source in ("template", "where")),
        ("jsonl", "both", "plain"),
        ("jsonl", "length", "limit"),
    ],
)
def test_the_texts_are_those_of_the_split_train(
    tmp_path: Path, tokenizer_json: Path, kind: str, source: str, job: str
) -> None:
    path = write(tmp_path, kind, JOBS[job], SOURCES[source], tokenizer_json)
    store = packline.build(path, out=tmp_path / "out", workers=0, engine="tokenizers", max_bad_fraction=1)
    reading = TrainingTexts(load_recipe(path)[0])
    assert [text for batch in reading.batches() for text in batch] == train_texts(store)
    ledger = store.manifest.ledger
    assert reading.documents + reading.held_out == ledger.documents
    if job != "limit":  # counts beyond a limit are nobody's
        assert reading.left_out == ledger.left_out
        assert dict(reading.bad_records) == ledger.rejected


def test_a_split_that_was_published_is_not_learned_from(tmp_path: Path, tokenizer_json: Path) -> None:
    path = write(tmp_path, "jsonl", "", 'text = "body"\nsplit = "test"\n', tokenizer_json)
    (tmp_path / "b.jsonl").write_text('{"text": "only this"}\n' * 20)
    path.write_text(path.read_text() + '[[sources]]\ninputs = ["b.jsonl"]\nsplit = "train"\n')
    reading = TrainingTexts(load_recipe(path)[0])
    assert {text for batch in reading.batches() for text in batch} == {"only this"}
    assert (reading.documents, reading.held_out) == (20, 202)


def test_a_recipe_at_the_command(tmp_path: Path, tokenizer_json: Path) -> None:
    path = write(tmp_path, "jsonl", "val_fraction = 0.2\n", SOURCES["template"], tokenizer_json)
    done = run("tokenizer", "train", path.name, "--vocab-size", "300", "--out", "tok", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    said = result(done)
    assert said["held_out"] > 10 and said["documents"] + said["held_out"] == 201
    assert said["bad_records"] == {"template": 1, "malformed_json": 1}
    words = ("tokenizer", "train", path.name, "--vocab-size", "300", "--out", "tok", "--force")
    assert f"{said['held_out']} documents for validation and testing" in run(*words, cwd=tmp_path).stdout
    vocabulary = json.loads((tmp_path / "tok/tokenizer.json").read_text())["model"]["vocab"]
    assert "WORD" in vocabulary and "word" not in vocabulary  # the template's texts, not the field's


def test_refusals_are_those_of_a_build(tmp_path: Path, tokenizer_json: Path) -> None:
    (tmp_path / "a.txt").write_text("plain")
    path = tmp_path / "recipe.toml"
    path.write_text('tokenizer = "t"\n[[sources]]\ninputs = ["a.txt"]\ntemplate = "{{ a }}"\n')
    with pytest.raises(InputError, match="plain text"):
        TrainingTexts(load_recipe(path)[0])
    path = write(tmp_path, "jsonl", "", SOURCES["where"].replace(">= 2", ">= 9"), tokenizer_json)
    with pytest.raises(TokenizerError, match=r"201 left out by length or by where"):
        train_folder(load_recipe(path)[0], 300, tmp_path / "tok")


def test_a_file_is_read_at_whole_characters(tmp_path: Path) -> None:
    long = tmp_path / "long.txt"
    long.write_text("x" * (TEXT_BYTES - 1) + "한국", "utf-8")
    assert read_text(str(long)) == "x" * (TEXT_BYTES - 1)
    (tmp_path / "bad.txt").write_bytes(b"ab\xff")
    (tmp_path / "empty.txt").write_bytes(b"")
    for name, said in (("bad.txt", "byte 2"), ("empty.txt", "is empty"), ("none.txt", "cannot read")):
        with pytest.raises(InputError, match=said):
            read_text(str(tmp_path / name))


def test_documents_are_read_as_a_build_reads_them(tmp_path: Path) -> None:
    texts = ["첫째 문서", "second\ndocument", "third"]
    lines = "".join(json.dumps({"id": 7, "text": text}) + "\n" for text in texts)
    (tmp_path / "a.jsonl").write_text(lines + "{broken\n", "utf-8")
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    (tmp_path / "a.txt.zst").write_bytes(zstandard.compress("\n".join(texts).encode()))
    parquet.write_table(pa.table({"text": texts}), tmp_path / "a.parquet")
    (tmp_path / "folder").mkdir()
    for number, text in enumerate(texts):
        (tmp_path / "folder" / f"{number}.txt").write_text(text, "utf-8")
    for name in ("a.jsonl", "a.jsonl.gz", "a.txt.zst", "a.parquet", "folder"):
        assert read_text(str(tmp_path / name)) == "\n".join(texts), name


def test_long_documents_are_cut_at_whole_characters(tmp_path: Path) -> None:
    path = tmp_path / "long.jsonl"
    path.write_text((json.dumps({"text": "x" + "한" * (TEXT_BYTES // 6)}) + "\n") * 4)
    found = read_text(str(path))
    assert TEXT_BYTES - 3 < len(found.encode()) <= TEXT_BYTES
    assert set(found) == set("x한\n")


def test_files_without_text_are_refused_with_a_reason(tmp_path: Path) -> None:
    (tmp_path / "other.jsonl").write_text('{"body": "x"}\n')
    (tmp_path / "none.jsonl").write_text('{"text": ""}\n{"text": 5}\n')
    with pytest.raises(InputError, match="has no text field") as raised:
        read_text(str(tmp_path / "other.jsonl"))
    assert "--text" not in raised.value.hint
    with pytest.raises(InputError, match="has no text"):
        read_text(str(tmp_path / "none.jsonl"))
