"""Damage of every kind to every sort of file of a store: `verify` notices it, and reading misreads nothing.

Reading gives the values that were stored, or an error of packline that names the damage; no other error.
The one exception is documented: a token in `NAME.bin`, or a flag in `NAME.loss`, that became another valid
one. Reading does not compare checksums of tokens; `packline verify` and `packline.open(path, verify=True)`
do. It is counted apart.
"""

from __future__ import annotations

import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.faults.damage import KINDS, damage, files_of, link_copy
from tests.formats.stores import make_store

import packline
from packline.errors import PacklineError
from packline.facade import Store
from packline.packing.batch import ALL_FIELDS
from packline.store.lookup import find_by_id
from packline.store.reader import provenance_of, shard_labels
from packline.store.verify import verify

UNSEEN = (".bin", ".loss")
"""Files in which reading cannot tell one valid value from another."""


@pytest.fixture(scope="module")
def stores(
    tmp_path_factory: pytest.TempPathFactory,
    documents: list[str],
    tokenizer_json: Path,
    write_jsonl: Callable[..., Path],
) -> list[Path]:
    """One with splits, rejects, ids, labels and two sources; one of int32 with a loss mask and BOS."""
    folder = tmp_path_factory.mktemp("whole")
    records: list[Any] = [
        {"text": text, "id": f"d{n}"} for n, text in enumerate(text[:400] for text in documents[:60])
    ]
    web = write_jsonl(folder / "web.jsonl", [*records[:40], {"text": 7}])
    books = write_jsonl(folder / "books.jsonl", records[40:])
    recipe = folder / "recipe.toml"
    recipe.write_text(
        f'tokenizer = "{tokenizer_json}"\neod = "<|endoftext|>"\nval_fraction = 0.3\n'
        f'[[sources]]\ninputs = ["{web}"]\nname = "web"\nlabel = "w"\n'
        f'[[sources]]\ninputs = ["{books}"]\nname = "books"\n'
    )
    packline.build(recipe, out=folder / "built", workers=0)
    texts = [[5 + (7 * one + place) % 900 for place in range(3 + one)] for one in range(12)]
    loss = [[int(place % 3 > 0) for place in range(len(text) + 2)] for text in texts]
    make_store(
        folder / "masked", texts, vocab_size=70_000, eod_id=0, bos_id=1, loss=loss, val=(3, 7), shards=3
    )
    for name in ("built", "masked"):
        assert verify(folder / name).ok
    return [folder / "built", folder / "masked"]


Ask = Callable[[Store], Any]


def questions(path: Path) -> list[tuple[str, Ask]]:
    """Everything that is read of a store, each by itself."""
    whole = Store(path)
    count = len(whole.documents)
    asked: list[tuple[str, Ask]] = []
    for number in range(0, count, 11):
        asked += [
            (f"document {number}", partial(read_document, number=number)),
            (f"text {number}", partial(Store.text, index=number)),
            (f"provenance {number}", partial(Store.provenance, index=number)),
        ]
    asked += [
        ("provenances", partial(provenance_of, documents=np.arange(0, count, 3))),
        ("find", partial(find_by_id, id="d5")),
        ("origins", shard_labels),
        ("loader", read_loader),
    ]
    settings: dict[str, dict[str, Any]] = {
        "concat": {},
        "pad": {"packing": "pad"},
        "best_fit": {"packing": "best_fit"},
        "shuffled": {"shuffle_documents": 3},
        "filtered": {"min_tokens": 4},
        "of one source": {"sources": next(iter(whole.manifest.sources))},
    }
    return asked + [(f"rows, {name}", partial(read_rows, settings=one)) for name, one in settings.items()]


def read_document(store: Store, number: int) -> bytes:
    return store.documents[number].tobytes()


def read_rows(store: Store, settings: dict[str, Any]) -> list[bytes]:
    rows = store.rows(64, **settings)
    found = rows.read(np.arange(len(rows)), ALL_FIELDS)
    return [found[name].tobytes() for name in ALL_FIELDS]


def read_loader(store: Store) -> list[bytes]:
    loader = packline.Loader(store.rows(16), batch_size=4, seed=5)
    return [loader.batch(step)["tokens"].tobytes() for step in range(min(len(loader), 3))]


def read(path: Path, asked: list[tuple[str, Ask]]) -> Iterator[tuple[str, Any]]:
    """Each answer, or the error of packline; any other error ends the test."""
    try:
        store = Store(path)
    except PacklineError as error:
        yield from ((name, error) for name, _ in asked)
        return
    for name, ask in asked:
        try:
            yield name, ask(store)
        except PacklineError as error:
            yield name, error
        except Exception as error:
            raise AssertionError(f"{name} raises {error!r}") from error


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("which", [0, 1])
def test_no_damage_is_overlooked_or_misread(stores: list[Path], tmp_path: Path, which: int) -> None:
    outcomes: Counter[str] = Counter()
    unseen: Counter[str] = Counter()
    for path in stores[which : which + 1]:
        asked = questions(path)
        right = [found for _, found in read(path, asked)]
        assert not any(isinstance(found, PacklineError) for found in right)
        files = files_of(path)
        sorts = {file: re.sub(r"(train|val)-\w+-\d+|(web|books|made)-\d+", "NAME", file) for file in files}
        # A table beside those of the store may be a list of documents that a user keeps there.
        own = ("manifest.json", "shards.parquet", "inputs.parquet", "units.parquet")
        wanted = [(kind, sort) for kind in KINDS for sort in sorted({*sorts.values()})]
        wanted = [(kind, sort) for kind, sort in wanted if kind != "stray" or sort not in own]
        for seed, (kind, sort) in enumerate(wanted):
            copy = link_copy(path, tmp_path / "store")
            alike = [file for file in files if sorts[file] == sort]
            done = damage(copy, seed, kinds=[kind], files=alike)
            told = f"{path.name}: {done}"
            try:
                report = verify(copy)
                assert not report.ok and report.problems, f"verify overlooks {told}"
            except PacklineError:
                assert done.file == "manifest.json", told  # no manifest, no store
            outcomes["damages"] += 1
            some = slice(seed % 3, None, 3)  # each question meets each kind of damage
            for (name, found), expected in zip(read(copy, asked[some]), right[some], strict=True):
                if isinstance(found, PacklineError):
                    assert str(found), told
                    outcomes["refused"] += 1
                elif found == expected:
                    outcomes["right"] += 1
                else:
                    assert done.file.endswith(UNSEEN), f"{name} is misread after {told}"
                    unseen[done.kind] += 1
            if done.file.endswith(UNSEEN) and done.kind in ("bit", "byte", "zero"):
                with pytest.raises(PacklineError):
                    packline.open(copy, verify=True)
            shutil.rmtree(copy)
    assert set(unseen) <= {"bit", "byte", "zero", "swap"}, unseen
    print(dict(outcomes), "another valid token:", dict(unseen))


def test_one_damage_of_each_kind(stores: list[Path], tmp_path: Path) -> None:
    for number, kind in enumerate(KINDS):
        for path in stores:
            shard = next(name for name in files_of(path) if name.endswith(".idx"))
            copy = link_copy(path, tmp_path / f"{path.name}-{number}")
            expected = read_document(Store(path), 0)
            done = damage(copy, number, kinds=[kind], files=[shard])
            assert not verify(copy).ok, done
            ((_, found),) = read(copy, [("document", partial(read_document, number=0))])
            assert found == expected or isinstance(found, PacklineError), done
