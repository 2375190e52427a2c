"""Units of an import: however a stream with a loss mask is cut into files, units and blocks, one result."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import xxhash
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.formats.stores import write_tokenizer

from packline.api import import_
from packline.formats import check, token_files
from packline.formats.format import DatasetReader, DocumentFormat, Options
from packline.formats.token_files import Numbers, ScannedReader, TokenFile
from packline.formats.types import DatasetFile, Edges, ExportPart, ExportPlan
from packline.store.report import Findings


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    return write_tokenizer(tmp_path / "tokenizer", 1000, 0)


class TokensOptions(Options, frozen=True):
    """Of the format below."""

    edges: Edges = "bos"
    marker: int | None = None


class Tokens(DocumentFormat):
    """`NAME.bin` and a loss mask `NAME.loss`, in units of any size: what several units do to one stream."""

    name = "tokens"
    title = "for tests"
    options = TokensOptions

    def recognises(self, path: Path) -> bool:
        return False

    def edges_of(self, options: TokensOptions) -> Edges:
        return options.edges

    def plan(self, view: Any, options: TokensOptions) -> ExportPlan:
        raise NotImplementedError

    def write(self, view: Any, part: ExportPart, target: Any, options: TokensOptions) -> dict[str, Any]:
        raise NotImplementedError

    def open(self, path: Path, options: TokensOptions, findings: Findings) -> DatasetReader:
        paths = [*sorted(path.glob("*.bin")), *sorted(path.glob("*.loss"))]
        files = [DatasetFile(one.name, str(one), one.stat().st_size) for one in paths]
        half = len(files) // 2
        sources = [
            TokenFile(
                files,
                number,
                np.dtype("<u4"),
                split="val" if files[number].name.startswith("val") else "train",
                loss=Numbers(half + number, files[half + number].path, np.dtype("u1")),
            )
            for number in range(half)
        ]
        return ScannedReader(
            files,
            sources,
            marker=options.marker,
            edges=options.edges,
            findings=findings,
        )


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.lists(st.integers(2, 20), max_size=9), min_size=1, max_size=12),
    st.integers(1, 40),
    st.integers(1, 9),
    st.integers(1, 3),
    st.sampled_from(["eod", "bos"]),
    st.integers(0, 2**32),
)
def test_units_and_blocks_of_any_size_give_the_same_documents_and_loss(
    tokenizer: Path,
    monkeypatch: pytest.MonkeyPatch,
    bodies: list[list[int]],
    unit_tokens: int,
    block_tokens: int,
    files: int,
    edges: Edges,
    seed: int,
) -> None:
    monkeypatch.setattr(token_files, "BLOCK_TOKENS", block_tokens)
    monkeypatch.setattr(token_files, "UNIT_TOKENS", unit_tokens)
    monkeypatch.setattr(check, "get_format", lambda name: Tokens())
    stored = np.array([token for body in bodies for token in (*body, 0)], "<u4")
    mask = np.random.default_rng(seed).integers(0, 2, len(stored)).astype("u1")
    stream, loss = (stored, mask) if edges == "eod" else (np.roll(stored, 1), np.append([0], mask[:-1]))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name, "data")
        folder.mkdir()
        for split in ("train", "val"):
            parts = zip(np.array_split(stream, files), np.array_split(loss, files), strict=True)
            for number, (tokens, bytes_) in enumerate(parts):
                tokens.astype("<u4").tofile(folder / f"{split}-{number}.bin")
                bytes_.astype("u1").tofile(folder / f"{split}-{number}.loss")
        options = {"edges": edges}
        store = import_(
            folder,
            from_="tokens",
            tokenizer=tokenizer,
            out=Path(name, "store"),
            eod=0,
            options=options,
            workers=0,
        )
        assert [one.tolist() for one in store.documents] == [[*body, 0] for body in bodies] * 2
        assert store.dtype == np.dtype("<u2")
        losses: dict[str, list[int]] = {"train": [], "val": []}
        for shard in store.shards:
            assert shard.loss is not None
            losses[shard.entry.split] += shard.loss.tolist()
        final = mask[-1] if edges == "eod" else loss[-1] if bodies[-1] else 0
        for receipt in Path(name, "store", "receipts").glob("*.json"):
            for piece in msgspec.json.decode(receipt.read_bytes())["inputs"]:
                read = (folder / piece["file"]).read_bytes()[piece["start"] : piece["stop"]]
                assert piece["checksum"] == xxhash.xxh3_128_hexdigest(read)
        for found in losses.values():
            assert found == [*mask[:-1].tolist(), final]
        report = store.verify(deep=True)
        assert report.ok, report.problems
