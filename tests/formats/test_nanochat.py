"""nanochat: its reader's rules give back every text, and tiktoken the ids of the store."""

from __future__ import annotations

import json
import os
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tiktoken
from tests.cli.command import result, run
from tests.conftest import python_sources
from tests.formats.stores import make_store
from tests.seeds.workspace import write_lines

import packline
from packline.api import import_
from packline.encoders.token_bytes import ranks_of
from packline.encoders.tokenizer import load_tokenizer
from packline.errors import InputError, RecipeError
from packline.formats.check import check_dataset
from packline.formats.document_view import DocumentView
from packline.formats.format import recognise
from packline.recipe import Recipe, Source
from packline.vocabulary.trained_folder import SPECIALS, train_folder


def parquet_files(folder: Path) -> list[Path]:
    """nanochat's `list_parquet_files`."""
    return [folder / name for name in sorted(os.listdir(folder)) if name.endswith(".parquet")]


def texts_of_rank(folder: Path, split: str, rank: int = 0, ranks: int = 1) -> list[str]:
    """nanochat's `parquets_iter_batched`: row groups of a rank; the last file is for validation."""
    files = parquet_files(folder)
    texts = []
    for path in files[:-1] if split == "train" else files[-1:]:
        opened = pq.ParquetFile(path)
        for group in range(rank, opened.num_row_groups, ranks):
            texts += opened.read_row_group(group).column("text").to_pylist()
    return texts


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """A folder with a vocabulary for nanochat and a store, and all texts of the store."""
    root = tmp_path_factory.mktemp("made")
    pieces = [text[at : at + 200] for _, text in python_sources(300_000) for at in range(0, len(text), 200)]
    texts = [text for text in dict.fromkeys(pieces) if text.strip()]
    texts += ["", "日本語 🌍 é\u0301", "<|user_start|> in text, <|bos|> too", "\r\n \t x"]
    write_lines(root / "texts.jsonl", [{"text": text} for text in texts])
    recipe = Recipe(sources=(Source(inputs=(str(root / "texts.jsonl"),)),), tokenizer="")
    special, place = SPECIALS["nanochat"]
    train_folder(recipe, 700, root / "tok", pattern="nanochat", special_tokens=special, place=place)
    settings: dict[str, Any] = {"eod": "<|bos|>", "val_fraction": 0.3, "workers": 0}
    packline.build(root / "texts.jsonl", root / "tok", out=root / "store", **settings)
    return root, [text for text in texts if text]


@pytest.fixture(scope="module")
def exported(made: tuple[Path, list[str]]) -> Path:
    options = {"shard_tokens": 8_000}
    packline.export(made[0] / "store", to="nanochat", out=made[0] / "out", options=options, workers=2)
    return made[0] / "out"


def test_every_text_is_there_once_in_its_split(made: tuple[Path, list[str]], exported: Path) -> None:
    train, val = (texts_of_rank(exported, split) for split in ("train", "val"))
    assert sorted(train + val) == sorted(made[1])
    store = packline.open(made[0] / "store")
    view = DocumentView(store, edges="none")
    for split, texts in (("train", train), ("val", val)):
        stream = view.stream(split)
        (block,) = stream.blocks(0, stream.documents, store.dtype)
        documents = np.split(block.tokens, block.offsets[1:-1])
        assert texts == [store.decode(one) for one in documents]
    assert len(parquet_files(exported)) > 3 and len(val) > 64


def test_tiktoken_gives_the_ids_of_the_store(made: tuple[Path, list[str]], exported: Path) -> None:
    """As nanochat encodes: special tokens in texts are text."""
    found = ranks_of(load_tokenizer(str(made[0] / "tok")))
    encoding = tiktoken.Encoding(
        "nanochat",
        pat_str=found.pattern,
        mergeable_ranks=found.ranks,
        special_tokens=found.special_tokens,
    )
    store = packline.open(made[0] / "store")
    bos = encoding.encode_single_token("<|bos|>")
    stored = sorted(document.tolist() for document in store.documents)
    texts = texts_of_rank(exported, "train") + texts_of_rank(exported, "val")
    assert sorted([*encoding.encode_ordinary(text), bos] for text in texts) == stored


def test_ranks_share_the_row_groups(exported: Path) -> None:
    """Every rank of 8 nodes has something to validate on: nanochat would wait forever for one without."""
    whole = texts_of_rank(exported, "val")
    parts = [texts_of_rank(exported, "val", rank, 64) for rank in range(64)]
    assert all(parts) and sorted(text for part in parts for text in part) == sorted(whole)


def test_it_is_recognised_verified_and_not_imported(
    made: tuple[Path, list[str]], exported: Path, tmp_path: Path
) -> None:
    assert recognise(exported).name == recognise(parquet_files(exported)[0]).name == "nanochat"
    report = check_dataset(exported)
    assert report.ok and report.notes == ["text is not tokenized: checksums and headers were checked"]
    with pytest.raises(RecipeError, match="holds text") as caught:
        import_(exported, from_="nanochat", tokenizer=made[0] / "tok", out=tmp_path / "out")
    assert "packline build" in (caught.value.hint or "") and not (tmp_path / "out").exists()
    (tmp_path / "damaged").mkdir()
    other = pa.table({"words": ["a"]})
    pq.write_table(other, tmp_path / "damaged" / "shard_00000.parquet")
    assert not check_dataset(tmp_path / "damaged", "nanochat").ok
    (tmp_path / "damaged" / "shard_00000.parquet").write_bytes(b"PAR1")
    assert not check_dataset(tmp_path / "damaged", "nanochat").ok
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError):
        check_dataset(tmp_path / "empty", "nanochat")


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    """Documents of an import may end within a character."""
    letters = [one for one in range(300) if one != 257]
    rng = np.random.default_rng(0)
    documents = [rng.choice(letters, size).tolist() for size in (0, 3, 50, 7)] + [[257, 4]]
    store = make_store(tmp_path / "store", documents, vocab_size=300, eod_id=257)
    done = packline.export(store, to="nanochat", out=tmp_path / "out", workers=0)
    files = parquet_files(tmp_path / "out")
    found = [text for path in files for text in pq.read_table(path).column("text").to_pylist()]
    decode = store.tokenizer.decode
    assert found == [decode(one, skip_special_tokens=False) for one in documents]
    assert any("\ufffd" in text for text in found) and done.warnings


def test_what_is_lost_is_reported_and_lossy_tokenizers_are_refused(
    made: tuple[Path, list[str]], tmp_path: Path
) -> None:
    done = run("export", made[0] / "store", "--to", "nanochat", "--out", tmp_path / "out", "--json")
    values = result(done)
    assert [one["what"] for one in values["lost"]] == ["provenance"]
    assert "base_data_climbmix" in values["trainer_lines"][0]
    numbers = count()
    for field, value in (
        ("normalizer", {"type": "Lowercase"}),
        ("decoder", {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always"}),
    ):
        folder = tmp_path / str(next(numbers))
        contents = json.loads((made[0] / "tok" / "tokenizer.json").read_text("utf-8"))
        changed = contents | {field: value}
        folder.mkdir()
        (folder / "tokenizer.json").write_text(json.dumps(changed), "utf-8")
        (folder / "a.txt").write_text("some words")
        packline.build(
            folder / "a.txt", folder / "tokenizer.json", out=folder / "store", eod="<|bos|>", workers=0
        )
        with pytest.raises(RecipeError, match="cannot be recovered"):
            packline.export(folder / "store", to="nanochat", out=folder / "out", workers=0)
