"""stacks' shards of conversations: what a reader written from its rules finds in them."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.formats.engines import files_of
from tests.formats.steps import read_all, write_all
from tests.formats.stores import CASES, EOD, Case, random_loss, write_tokenizer

from packline.api import import_
from packline.facade import Store
from packline.formats import stacks
from packline.formats.types import ExportPlan

SMALL = {name: case for name, case in CASES.items() if case.vocab_size <= 65_536}


def load_shard(path: Path) -> np.ndarray:
    """A file as the trainer takes it: magic, version, count and size have to be right."""
    data = path.read_bytes()
    head = struct.unpack("<256i", data[:1024])
    assert head[:2] == (20240520, 1) and set(head[3:]) == {0}
    assert len(data) == 1024 + 2 * head[2]
    return np.frombuffer(data, "<u2", offset=1024)


def load(folder: Path, split: str) -> tuple[list[int], list[int]]:
    """Tokens and masks of a split, files in the order of their names."""
    tokens, masks = [], []
    for path in sorted(folder.glob(f"sft_{split}_*.bin")):
        if not path.stem.endswith("_mask"):
            tokens += load_shard(path).tolist()
            masks += load_shard(path.with_name(f"{path.stem}_mask.bin")).tolist()
    return tokens, masks


def by_hand(case: Case, split: str, limit: int) -> tuple[list[int], list[int]]:
    """What `load` is to give: every document behind its marker, cut, with the mask that belongs to it."""
    tokens: list[int] = []
    masks: list[int] = []
    before, cut = 0, False  # of the first marker: it ends nothing
    for number, body in enumerate(case.documents):
        if (number in case.val) != (split == "val"):
            continue
        boundary = 1 + (case.bos_id is not None)
        mask = [1] * (len(body) + boundary) if case.loss is None else list(case.loss[number])
        if case.bos_id is None:  # the end of the one before stands in front
            document, flags = [case.eod_id, *body], [before, *mask[:-1]]
            before = mask[-1]
        else:
            document, flags = [case.bos_id, *body], mask[:-1]
            flags[0] = flags[0] if tokens else 0
        if cut:
            flags[0] = 0
        cut = len(document) > limit
        tokens += document[:limit]
        masks += flags[:limit]
    return tokens, masks


def write(store: Store, folder: Path, **options: Any) -> ExportPlan:
    return write_all(store, "stacks", folder, options)


@pytest.mark.parametrize("limit", [1, 7, 2048])
@pytest.mark.parametrize("case", SMALL.values(), ids=SMALL)
def test_a_reader_finds_every_conversation_and_its_mask(tmp_path: Path, case: Case, limit: int) -> None:
    size = 50
    plan = write(case.make(tmp_path / "store"), tmp_path / "out", max_seq_len=limit, shard_size=size)
    cut = 0
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    for split in ("val", "train"):
        wanted = by_hand(case, split, limit)
        assert load(tmp_path / "out", split) == wanted
        lengths = [len(body) + 1 for number, body in enumerate(case.documents)
                   if (number in case.val) == (split == "val")]  # fmt: skip
        cut += sum(max(length - limit, 0) for length in lengths)
        shards = -(-len(wanted[0]) // size)
        assert config[f"{split}_conversations"] == len(lengths)
        assert config[f"{split}_tokens"] == len(wanted[0])
        assert config[f"{split}_shards"] == shards
        assert config[f"{split}_truncated"] == sum(length > limit for length in lengths)
        assert config[f"{split}_source_counts"] == ({"made": len(lengths)} if lengths else {})
    lost = {one.what: one.count for one in plan.lost}
    assert lost.get("truncated tokens", 0) == cut
    facts = {"max_seq_len": limit, "shard_size": size, "vocab_size": case.vocab_size}
    assert {key: config[key] for key in facts} == facts
    assert config["bos_id"] == (case.eod_id if case.bos_id is None else case.bos_id)


def test_val_is_numbered_first_and_shards_are_full_but_for_the_last(tmp_path: Path) -> None:
    write(CASES["splits"].make(tmp_path / "store"), tmp_path / "out", shard_size=50)
    names = sorted(path.name for path in (tmp_path / "out").glob("*.bin") if "mask" not in path.name)
    val, train = [n for n in names if "_val_" in n], [n for n in names if "_train_" in n]
    assert val == [f"sft_val_{number:06d}.bin" for number in range(len(val))] and len(val) > 1
    assert train == [f"sft_train_{len(val) + number:06d}.bin" for number in range(len(train))]
    for split in (val, train):
        sizes = [len(load_shard(tmp_path / "out" / name)) for name in split]
        assert set(sizes[:-1]) == {50} and 0 < sizes[-1] <= 50


@settings(max_examples=20, deadline=None)
@given(
    st.lists(st.lists(st.integers(2, 299), max_size=12), min_size=1, max_size=12),
    st.integers(1, 14),
    st.integers(1, 40),
    st.booleans(),
    st.booleans(),
    st.integers(1, 3),
)
def test_any_documents(
    tmp_path_factory: pytest.TempPathFactory,
    bodies: list[list[int]],
    limit: int,
    size: int,
    with_bos: bool,
    masked: bool,
    shards: int,
) -> None:
    folder = tmp_path_factory.mktemp("law")
    loss = random_loss(bodies, 1 + with_bos) if masked else None
    case = Case("law", tuple(map(tuple, bodies)), 300, 0, 1 if with_bos else None, loss, shards=shards)
    store = case.make(folder / "store")
    write(store, folder / "out", max_seq_len=limit, shard_size=size)
    assert load(folder / "out", "train") == by_hand(case, "train", limit)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stacks, "BLOCK_DOCUMENTS", 2)
        write(store, folder / "again", max_seq_len=limit, shard_size=size)
    assert files_of(folder / "out") == files_of(folder / "again")
    found = read_all("stacks", folder / "out", {"marker": 1 if with_bos else 0})
    marker = 1 if with_bos else 0
    assert found.problems == [] and found.reader.facts == {"vocab_size": 300, "bos_id": marker}
    assert found.documents == {"train": [[marker, *body][:limit] for body in bodies]}


def test_files_of_the_script_itself(tmp_path: Path) -> None:
    """As `sft_dataset.py` writes them, conversations going on in the next shard."""
    tokens = [1, 10, 11, 20, 1, 12, 21, 22, 1, 13]
    masks = [0, 0, 0, 1, 0, 0, 1, 1, 0, 0]
    (tmp_path / "in").mkdir()
    for number, begin in enumerate(range(0, 10, 6)):
        for name, values in (("", tokens), ("_mask", masks)):
            part = np.array(values[begin : begin + 6], np.uint16)
            header = np.zeros(256, np.int32)
            header[:3] = 20240520, 1, len(part)
            path = tmp_path / "in" / f"sft_train_{number:06d}{name}.bin"
            path.write_bytes(header.tobytes() + part.tobytes())
    config = {"max_seq_len": 2048, "shard_size": 6, "bos_id": 1, "vocab_size": 300}
    (tmp_path / "in" / "config.json").write_text(json.dumps(config))
    tokenizer = write_tokenizer(tmp_path, 300, 0, 1)
    store = import_(
        tmp_path / "in", from_="stacks", tokenizer=tokenizer, out=tmp_path / "out", eod=EOD, workers=0
    )
    assert [document.tolist() for document in store.documents] == [
        [1, 10, 11, 20, 0],
        [1, 12, 21, 22, 0],
        [1, 13, 0],
    ]
    loss = np.concatenate([shard.loss for shard in store.shards if shard.loss is not None])
    assert loss.tolist() == [0, 0, 0, 1, 1, 0, 0, 1, 1, 1, 0, 0, 0]
    assert store.verify().ok
