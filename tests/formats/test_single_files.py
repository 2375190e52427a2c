"""One file per split: the files of all shards, one after another, with one index over them."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.formats.engines import bring_back, write
from tests.formats.stores import make_store, random_documents, random_loss

from packline.facade import Store

ENDINGS = {"megatron": ".bin", "olmo": ".npy", "datatrove": ".ds", "forager": ".bin"}


def store_of(folder: Path, shards: int) -> Store:
    documents = random_documents(40, 300, seed=5)
    loss = random_loss(documents)
    return make_store(folder, documents, vocab_size=300, eod_id=0, loss=loss, val=(1, 7, 30), shards=shards)


def tokens_of(out: Path, name: str, split: str) -> list[bytes]:
    """Contents of the token files of a split, in order of their names."""
    found = sorted(
        path for path in out.rglob(f"*{ENDINGS[name]}") if not {"masks", "index"} & set(path.parts)
    )
    return [path.read_bytes() for path in found if split in path.relative_to(out).as_posix()]


def documents_of(store: Store, folder: Path, name: str, out: Path) -> list[tuple[str, list[int]]]:
    """Documents with their splits that come back from an export."""
    back = bring_back(folder, name, store, out)
    return [(back.provenance(n).split, back.documents[n].tolist()) for n in range(len(back.documents))]


@pytest.mark.parametrize("name", ENDINGS)
def test_a_single_file_is_all_files_one_after_another(tmp_path: Path, name: str) -> None:
    store = store_of(tmp_path / "store", shards=4)
    many = write(store, name, tmp_path / "many")
    single = write(store, name, tmp_path / "single", {"files": "single"})
    for split in ("train", "val"):
        (whole,) = tokens_of(tmp_path / "single", name, split)
        parts = tokens_of(tmp_path / "many", name, split)
        assert len(parts) > 1 and b"".join(parts) == whole
    assert single.tokens == many.tokens and not single.shared
    came = [documents_of(store, tmp_path / how, name, tmp_path / f"{how}-back") for how in ("many", "single")]
    assert came[0] == came[1] and {split for split, _ in came[0]} == {"train", "val"}


@pytest.mark.parametrize("name", ENDINGS)
def test_the_only_shard_of_a_split_is_shared(tmp_path: Path, name: str) -> None:
    store = store_of(tmp_path / "store", shards=1)
    files = [write(store, name, tmp_path / how, {"files": how}).shared for how in ("single", "many")]
    assert files[0] == files[1] and files[0]["linked"] > 0


@pytest.mark.parametrize("name", ENDINGS)
def test_one_chosen_split_has_no_folder_and_comes_back_as_itself(tmp_path: Path, name: str) -> None:
    store = store_of(tmp_path / "store", shards=2)
    done = write(store, name, tmp_path / "out", split="val")
    assert done.folders == ()
    came = documents_of(store, tmp_path / "out", name, tmp_path / "back")
    assert [split for split, _ in came] == ["val"] * 3
