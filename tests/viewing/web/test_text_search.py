"""A search finds a text wherever it is: all that a search through the texts themselves finds."""

from __future__ import annotations

import json
import random
import unicodedata
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.viewing.parsed import Parsed
from tests.viewing.web.sites import client_of

import packline
import packline.viewing.web.search as searching
from packline.errors import CorruptStore
from packline.facade import Store
from packline.viewing.text import whole_characters
from packline.viewing.web.search import Found, Part, TextSearch
from packline.viewing.web.site import ServedStore, SiteTokenizer

ALPHABET = (
    "北京",
    "北",
    "京",
    "欢迎",
    "a",
    "ana",
    " ",
    "  ",
    "é",
    "e\u0301",
    "<|endoftext|>",
    "🧑\u200d🚀",
    "\n",
    "คน",
)
"""What repeats, overlaps, is parts of each other, and is cut within characters."""


def texts_of(count: int, seed: int) -> list[str]:
    draw = random.Random(seed)
    return ["".join(draw.choices(ALPHABET, k=draw.randint(1, 30))) for _ in range(count)]


TEXTS = texts_of(60, 5)


@pytest.fixture(scope="module")
def cut_anywhere(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """A store whose tokens hold several characters, parts of characters, and both."""
    folder = tmp_path_factory.mktemp("texts")
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=340,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
        max_token_length=9,
    )
    made.train_from_iterator([text.replace("<|endoftext|>", "") for text in texts_of(40, 6)], trainer)
    made.save(str(folder / "tokenizer.json"))
    return build(folder, TEXTS, folder / "tokenizer.json", val_fraction=0.2)


def build(folder: Path, texts: list[str], tokenizer: Path, **settings: Any) -> Store:
    corpus = folder / "corpus.jsonl"
    lines = (json.dumps({"text": text, "id": str(number)}) for number, text in enumerate(texts))
    corpus.write_text("".join(f"{line}\n" for line in lines))
    packline.build(corpus, tokenizer, out=folder / "store", workers=0, **settings)
    return packline.open(folder / "store")


def opened(store: Store) -> TextSearch:
    return ServedStore(store, SiteTokenizer.of_store(store)).texts


@pytest.fixture(scope="module")
def searcher(cut_anywhere: Store) -> TextSearch:
    return opened(cut_anywhere)


def pages(texts: TextSearch, store: Store, wanted: bytes, most: int, budget: float) -> Iterator[Found]:
    after: int | None = 0
    while after is not None:
        found = texts.find(store, wanted, Part(after, most=most, each=1 << 30, budget=budget))
        assert found.after is None or found.after > after
        yield found
        after = found.after


LETTERS = {
    letter: byte
    for byte, letter in zip(
        [*range(33, 127), *range(161, 173), *range(174, 256), *range(33), *range(127, 161), 173],
        [*map(chr, (*range(33, 127), *range(161, 173), *range(174, 256))), *map(chr, range(256, 324))],
        strict=True,
    )
}
"""GPT-2's letters for bytes, from its own rule."""


def bytes_before(store: Store, document: int, token: int) -> int:
    pieces = [store.tokenizer.id_to_token(one) for one in store.documents[document][:token].tolist()]
    return len(bytes(LETTERS[letter] for piece in pieces for letter in piece))


def places_in(text: bytes, wanted: bytes) -> list[int]:
    return [place for place in range(len(text)) if text.startswith(wanted, place)]


@given(
    wanted=st.one_of(
        st.lists(st.sampled_from(ALPHABET), min_size=1, max_size=4).map("".join),
        st.tuples(st.integers(0, 59), st.integers(0, 80), st.integers(1, 8)).map(
            lambda part: TEXTS[part[0]][part[1] : part[1] + part[2]] or "京欢"
        ),
    ),
    most=st.integers(1, 30),
    block=st.sampled_from([1, 7, 64, 1 << 17]),
    budget=st.sampled_from([0.0, 10.0]),
)
@settings(max_examples=40)
def test_pages_together_find_every_place_in_the_texts(
    cut_anywhere: Store, searcher: TextSearch, wanted: str, most: int, block: int, budget: float
) -> None:
    store, texts = cut_anywhere, searcher
    data = texts.spell(wanted)
    assert data == wanted.encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(searching, "TEXT_BLOCK", block)
        found = list(pages(texts, store, data, most, budget))
    hits = [hit for page in found for hit in page.hits]
    origins = [int(store.provenance(number).id or "") for number in range(len(store.documents))]
    expected = [
        (number, place)
        for number, origin in enumerate(origins)
        for place in places_in(TEXTS[origin].encode(), data)
    ]
    assert [
        (hit.document, bytes_before(store, hit.document, hit.start) + hit.skip) for hit in hits
    ] == expected
    for hit in hits:
        assert (
            bytes_before(store, hit.document, hit.start + hit.length)
            >= (bytes_before(store, hit.document, hit.start) + hit.skip + len(data))
            > bytes_before(store, hit.document, hit.start + hit.length - 1)
        )
    assert all(len(page.hits) < most + 9 for page in found)  # all that begin in one token are on one page
    done = [page.done for page in found]
    assert done == sorted(done) and done[-1] == 1.0


def test_an_id_outside_the_vocabulary_is_reported(tmp_path: Path, cut_anywhere: Store) -> None:
    import shutil

    import numpy as np

    shutil.copytree(cut_anywhere.path, tmp_path / "store")
    path = tmp_path / "store" / f"{cut_anywhere.shards[0].entry.name}.bin"
    tokens = np.fromfile(path, "<u2")
    tokens[5] = 65_000
    tokens.tofile(path)
    store = packline.open(tmp_path / "store")
    with pytest.raises(CorruptStore, match="an id outside the vocabulary"):
        opened(store).find(store, b"a")


def test_the_page_lists_every_place_inside_of_tokens_and_across_them(
    tmp_path: Path, cut_anywhere: Store
) -> None:
    texts = ["北京", "京北京a", "a 北京", "北京北京", "(北京)", "北京\n", "北", "京", "é北京é"]
    store = build(tmp_path, texts, cut_anywhere.path / "tokenizer" / "tokenizer.json")
    found = Parsed(client_of([store]).get("/search", params={"q": "北京"}).text)
    assert "The store has been searched to its end." in found.of("main")
    ways = [link["href"] for link in found.all("a") if (link["href"] or "").startswith("/document/")]
    assert [int((way or "").split("/")[2].split("?")[0]) for way in ways] == [0, 1, 2, 3, 3, 4, 5, 8]
    (third,) = [way for way in ways if "/3?" in (way or "") and "at=0" not in (way or "")]
    hit = Parsed(client_of([store]).get(third or "").text)
    assert "hit 2 of 2: 北京" in hit.of("nav")
    marked = [one for one in hit.all("span") if one.get("data-ids") and " h" in (one["class"] or "")]
    assert [one.get("id") for one in marked if one.get("id")] == ["at"] and len(marked) >= 2
    assert "\\x" not in found.of("table")
    nothing = Parsed(client_of([store]).get("/search", params={"q": "<|endoftext|>"}).text)
    assert "Nothing was found." in nothing.of("main")  # the ends of documents are not text


def test_previews_are_cut_at_characters(tmp_path: Path, cut_anywhere: Store) -> None:
    text = "欢คนé🧑" * 40
    store = build(tmp_path, [text, f"ab{text}"], cut_anywhere.path / "tokenizer" / "tokenizer.json")
    for path in ("/documents", "/search?q=é"):
        found = Parsed(client_of([store]).get(path).text).of("td")
        assert "欢" in found and "\\x" not in found and "\ufffd" not in found


@given(st.text(st.sampled_from("aé欢🧑"), max_size=8), st.integers(0, 30), st.integers(0, 30))
def test_whole_characters_are_those_that_a_part_holds(text: str, start: int, stop: int) -> None:
    data = text.encode()
    held = b"".join(
        letter.encode()
        for place, letter in enumerate(text)
        if start <= len(text[:place].encode()) and len(text[: place + 1].encode()) <= stop
    )
    if start <= stop:
        assert whole_characters(data[start:stop]) == held.decode()


# ------------------------------------------------------------------ tokenizers that do not keep texts


def word_piece(folder: Path) -> Path:
    words = ["the", "cafe", "was", "open", "##ed", "北", "京", "##s", "'", "don", "t"]
    vocab = {word: number for number, word in enumerate(["[UNK]", "[SEP]", *words])}
    made = tokenizers.Tokenizer(tokenizers.models.WordPiece(vocab, unk_token="[UNK]"))
    made.normalizer = tokenizers.normalizers.BertNormalizer()
    made.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    made.decoder = tokenizers.decoders.WordPiece(cleanup=False)
    made.add_special_tokens(["[UNK]", "[SEP]"])
    made.save(str(folder / "tokenizer.json"))
    return folder / "tokenizer.json"


def test_a_tokenizer_that_changes_texts_changes_what_is_searched_for(tmp_path: Path) -> None:
    store = build(
        tmp_path, ["The CAFÉ was opened", "北京cafes", "open Zeppelin"], word_piece(tmp_path), eod="[SEP]"
    )
    texts = opened(store)
    assert not texts.kept

    def places(wanted: str) -> list[tuple[int, int, int, int]]:
        hits = texts.find(store, texts.spell(wanted)).hits
        return [(hit.document, hit.start, hit.length, hit.skip) for hit in hits]

    assert places("Café") == [(0, 1, 1, 1), (1, 2, 1, 1)]  # behind the space that decoding puts there
    assert places("CAFES") == [(1, 2, 2, 1)]
    assert places("北京") == [(1, 0, 2, 1)]
    assert places(" the") == []  # the space before a whole text is the tokenizer's
    assert places("pened") == [(0, 3, 2, 2)]  # a part of a word, for which alone there are no tokens
    assert places("Zeppelin") == places("épp") == []  # one of these words was unknown, and is lost
    client = client_of([store])
    page = Parsed(client.get("/search", params={"q": "CAFÉ"}).text).of("main")
    assert "as the tokenizer writes it: cafe" in page and "does not keep texts" in page
    lost = Parsed(client.get("/search", params={"q": "Zeppelin"}).text).of("main")
    assert "Nothing was found." in lost and "cannot be found then" in lost


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpt2", "qwen3", "mistral", "t5"])
def test_real_tokenizers_and_texts(tmp_path: Path, shared: Path, name: str) -> None:
    zstandard = pytest.importorskip("zstandard")
    tokenizer = shared / "tokenizers" / name / "tokenizer.json"
    corpora = [
        shared / "corpora" / f"{one}.jsonl.zst" for one in ("wikipedia_zh", "novels_en", "unicode_stress")
    ]
    if not all(path.exists() for path in (tokenizer, *corpora)):
        pytest.skip("no shared tokenizers and corpora")
    sources = []
    for path in corpora:
        with zstandard.open(path, "rt", encoding="utf-8") as file:
            sources += [json.loads(line)["text"][:2000] for line in islice(file, 8)]
    eod = {"mistral": "</s>", "t5": "</s>"}.get(name, "<|endoftext|>")
    store = build(tmp_path, [text for text in sources if text], tokenizer, eod=eod)
    texts = opened(store)
    decoded = [store.text(number).replace("<unk>", "\ufffe") for number in range(len(store.documents))]
    draw = random.Random(3)
    wanted = ["的", "the", "and", "a", "。", " ", "中国"]
    for text in decoded:
        start = draw.randrange(max(len(text) - 1, 1))
        wanted.append(text[start : start + draw.randint(1, 6)])
    for one in (part for part in wanted if part and not {*part} & {*"\ufffe\ufffd"}):
        data = texts.spell(one)
        assert data == one.encode() or name == "t5" or unicodedata.normalize("NFC", one).encode() == data
        hits = [hit.document for page in pages(texts, store, data, 500, 10.0) for hit in page.hits]
        expected = [number for number, text in enumerate(decoded) for _ in places_in(text.encode(), data)]
        assert hits == expected, one
