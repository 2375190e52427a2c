"""No file of an export names a folder of the machine on which it was made."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.formats.stores import EOD, write_tokenizer

import packline
from packline.formats.export import run_export
from packline.formats.format import DOCUMENT_FORMATS, NAMES
from packline.packing.options import ExportChoice

OPTIONS: dict[str, dict[str, Any]] = {
    "arrow": {"provenance": True},
    "parquet": {"provenance": True, "compression": "none"},
    "nanogpt": {"meta_pkl": True},
}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with inputs, a tokenizer, a list of documents and their store."""
    home = tmp_path_factory.mktemp("private home")
    tokenizer = write_tokenizer(home / "models", 300, 0)
    (home / "texts").mkdir()
    for name in ("a", "b"):
        records = [{"text": f"Document {n} of {name}. " * 9, "id": f"{name}{n}"} for n in range(30)]
        lines = b"".join(msgspec.json.encode(record) + b"\n" for record in records)
        (home / "texts" / f"{name}.jsonl").write_bytes(lines)
    store = packline.build(
        [home / "texts" / "a.jsonl", home / "texts" / "b.jsonl"],
        tokenizer=tokenizer,
        eod=EOD,
        val_documents=5,
        out=home / "store",
        workers=0,
    )
    first = store.provenance(0)
    place = {"source": [first.source], "file": [first.file], "position": [first.position]}
    excluded = pa.table({**place, "hash": pa.array([first.hash], pa.uint64())})
    pq.write_table(excluded, home / "excluded.parquet")
    return home


def plain(path: Path) -> bytes:
    """Content of a file, and the text of compressed ones and of columns."""
    data = path.read_bytes()
    if path.suffix == ".gz":
        data += gzip.decompress(data)
    if path.suffix == ".parquet":
        data += str(pq.read_table(path).to_pydict()).encode()
    return data


@pytest.mark.parametrize("name", NAMES)
def test_no_file_names_a_folder_of_this_machine(home: Path, tmp_path: Path, name: str) -> None:
    rows = None if name in DOCUMENT_FORMATS else 64
    choice = ExportChoice(exclude=(str(home / "excluded.parquet"),), seq_len=rows)
    out = tmp_path / "out"
    first, done = (
        run_export(home / "store", to=name, out=out, choice=choice, options=OPTIONS.get(name), workers=0)
        for _ in range(2)
    )
    assert done.nothing_to_do and not first.nothing_to_do
    folders = [str(home), str(tmp_path), str(Path.home()) + "/"]
    written = [path for path in out.rglob("*") if path.is_file()]
    assert len(written) == done.files + 1
    for path in written:
        found = [folder for folder in folders if folder.encode() in plain(path)]
        assert not found, f"{path.relative_to(out)} names {found}"
