"""Pages show what is in the store, and wrong addresses are pages too."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import parse_qs, urlencode, urlsplit

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.testclient import TestClient
from tests.formats.stores import make_store, random_loss
from tests.viewing.browser.hostile import hostile_store
from tests.viewing.parsed import ids_shown
from tests.viewing.web.sites import client_of, get, small_store

import packline
from packline.facade import Store
from packline.loading.loader import Loader
from packline.packing.options import Packing, SplitChoice
from packline.viewing.web.site import number

ROWS = "seq_len=32"
OWN_ELEMENTS = """
html head meta title link script body a header nav ul li form label select option input button main h1 h2 h3 p
section div dl dt dd table caption thead tbody tr th td strong span figure figcaption i details summary
textarea svg desc g rect text line path circle polyline aside pre kbd footer
"""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return small_store(tmp_path_factory.mktemp("pages") / "store")


@pytest.fixture(scope="module")
def client(store: Store, tmp_path_factory: pytest.TempPathFactory) -> TestClient:
    other = make_store(
        tmp_path_factory.mktemp("pages") / "other", [[5, 6, 7], [8, 9]], vocab_size=300, eod_id=0
    )
    return client_of([store, other])


def test_every_link_of_every_page_leads_somewhere(client: TestClient) -> None:
    seen: set[str] = set()
    ahead = ["/", "/?store=1"]
    while ahead and len(seen) < 150:
        path = ahead.pop(0)
        if path in seen:
            continue
        seen.add(path)
        if "as=" in path:
            assert client.get(path).status_code == 200
            continue
        found = get(client, path)
        assert found.of("h1"), path
        ahead += [one["href"] for one in found.all("a") if one["href"] and not one["href"].startswith("#")]
    assert {urlsplit(path).path.split("/")[1] for path in seen} >= {
        "", "documents", "document", "rows", "row", "batch", "search", "compare",
    }  # fmt: skip


def test_a_document_is_its_tokens(client: TestClient, store: Store) -> None:
    for wanted in (0, 7, 119):
        found = get(client, f"/document/{wanted}")
        assert ids_shown(found) == store.documents[wanted].tolist()
        provenance = store.provenance(wanted)
        assert provenance.file in found.of("main") and str(provenance.id) in found.of("main")


def test_a_long_document_comes_in_parts(tmp_path: Path) -> None:
    body = [3 + number % 200 for number in range(3000)]
    store = make_store(tmp_path / "store", [body], vocab_size=300, eod_id=0)
    client, path, shown = client_of([store]), "/document/0", []
    for _ in range(10):
        found = get(client, path)
        shown += ids_shown(found)
        following = [one["href"] for one in found.all("a") if one["href"] and "first=" in one["href"]]
        later = [href for href in following if int(parse_qs(urlsplit(href).query)["first"][0]) >= len(shown)]
        if not later:
            break
        path = later[0]
    assert shown == [*body, 0]


@pytest.mark.parametrize("packing", ["concat", "best_fit", "pad"])
@pytest.mark.parametrize("split", ["train", "val", "all"])
def test_a_row_is_its_tokens(client: TestClient, store: Store, packing: Packing, split: SplitChoice) -> None:
    rows = store.rows(32, packing=packing, split=split)
    for wanted in (0, len(rows) // 2, len(rows) - 1):
        found = get(client, f"/row/{wanted}?{ROWS}&packing={packing}&split={split}")
        row = rows[wanted]
        assert ids_shown(found) == row.tokens[row.segment_ids >= 0].tolist()
        documents = [int(one["data-document"] or 0) for one in found.all("div") if "data-document" in one]
        assert documents == [span.document for span in row.spans]
    get(client, f"/row/{len(rows)}?{ROWS}&packing={packing}&split={split}", 404)


@pytest.mark.parametrize(("ranks", "rank"), [(1, None), (2, 0), (2, 1), (4, 3)])
def test_a_batch_is_the_loaders(client: TestClient, store: Store, ranks: int, rank: int | None) -> None:
    rows = store.rows(32)
    for step in (0, 3):
        asked = f"/batch?{ROWS}&step={step}&batch_size=4&seed=9&world_size={ranks}"
        found = get(client, asked + ("" if rank is None else f"&rank={rank}"))
        loader = Loader(rows, batch_size=4, seed=9, world_size=ranks, rank=rank or 0, prefetch=0)
        batch = loader.batch(step)
        expected = batch["tokens"][batch["segment_ids"] >= 0]
        assert ids_shown(found) == expected.tolist()


def test_text_that_is_searched_for_is_found(client: TestClient, store: Store) -> None:
    wanted = store.documents[8][2:5].tolist()
    found = get(client, f"/search?by=ids&q={'+'.join(map(str, wanted))}")
    assert "/document/8" in {(one["href"] or "").partition("?")[0] for one in found.all("a")}
    assert "The store has been searched to its end" in found.of("main")
    found = get(client, "/search?by=id&q=d77")
    (link,) = [one["href"] for one in found.all("a") if (one["href"] or "").startswith("/document/")]
    assert store.provenance(int(urlsplit(link or "").path.split("/")[2])).id == "d77"


@pytest.mark.parametrize(
    ("path", "status", "says"),
    [
        ("/document/120", 404, "no document 120: expected 0 to 119"),
        ("/document/-1", 400, "0 or more"),
        ("/document/99999999999999999999999", 400, "expected a whole number"),
        ("/document/3?first=999", 400, "first token is 999: expected 0 to"),
        ("/row/0?seq_len=1", 400, "expected 2 to"),
        ("/row/0?packing=magic", 400, "expected one of concat, best_fit, pad"),
        ("/batch?seq_len=32&batch_size=4&world_size=3", 400, "that 3 ranks can share"),
        ("/batch?seq_len=32&batch_size=4&step=9999", 400, "step is 9,999"),
        ("/batch?seq_len=32&batch_size=4&world_size=2&rank=2", 400, "rank is 2"),
        ("/search?by=ids&q=400", 400, "expected numbers from 0 to 399"),
        ("/search?q=a&after=99999999", 400, "after is"),
        ("/?store=2", 400, "store is 2: expected 0 to 1"),
        ("/jump?to=row&number=", 400, "no number of a row"),
        ("/jump?to=moon&number=1", 400, "expected one of document, row, step, token"),
        ("/compare/tokenizers?t0=7", 400, "expected 0 to 1"),
        ("/nowhere", 404, "There is no such page"),
    ],
)  # fmt: skip
def test_a_wrong_address_is_a_page_that_says_why(
    client: TestClient, path: str, status: int, says: str
) -> None:
    found = get(client, path, status)
    assert says in " ".join(found.of("main").split()), found.of("main")
    assert found.all("nav"), "navigation stays"


@pytest.mark.parametrize(
    ("asked", "leads"),
    [
        ("to=document&number=12", "/document/12"),
        ("to=document&number=1,2", "/document/12"),
        ("to=row&number=3&seq_len=32&packing=pad&seed=4", "/row/3?seq_len=32&packing=pad"),
        ("to=step&number=3&seq_len=32&batch_size=4&seed=4", "/batch?step=3&seq_len=32&batch_size=4&seed=4"),
        ("to=document&number=1&store=1", "/document/1?store=1"),
    ],
)
def test_a_jump_keeps_the_settings(client: TestClient, asked: str, leads: str) -> None:
    answer = client.get(f"/jump?{asked}")
    assert answer.status_code == 303
    target = answer.headers["location"]
    assert urlsplit(target).path == urlsplit(leads).path
    assert parse_qs(urlsplit(target).query) == parse_qs(urlsplit(leads).query)


def test_pages_of_another_store_stay_with_it(client: TestClient) -> None:
    found = get(client, "/documents?store=1")
    links = [one["href"] or "" for one in found.all("a") if (one["href"] or "").startswith("/")]
    assert links and all("store=1" in href for href in links)
    assert ids_shown(get(client, "/document/1?store=1")) == [8, 9, 0]


def test_two_tokenizers_cut_one_text(store: Store, tokenizer_json: Path) -> None:
    import tokenizers

    client = client_of([store], [str(tokenizer_json)])
    text = "import this, naïve 漢字\nend"
    found = get(client, "/compare/tokenizers?" + urlencode({"text": text}))
    own = store.tokenizer.encode(text, add_special_tokens=False).ids
    other = tokenizers.Tokenizer.from_file(str(tokenizer_json)).encode(text, add_special_tokens=False).ids
    assert ids_shown(found) == [*own, *other]
    assert found.of("textarea").strip("\n") == text
    assert str(len(other)) in found.of("td")


def test_a_typed_text_is_encoded_as_a_build_does_it(tmp_path: Path, tokenizer_json: Path) -> None:
    text = "a control token's name <|endoftext|> in prose"
    (tmp_path / "corpus.jsonl").write_text(json.dumps({"text": text}))
    packline.build(tmp_path / "corpus.jsonl", tokenizer_json, out=tmp_path / "store", workers=0)
    store = packline.open(tmp_path / "store")
    client = client_of([store], [str(tokenizer_json)])
    built, eod = store.documents[0][:-1].tolist(), int(store.documents[0][-1])
    asked = urlencode({"text": text})
    found = get(client, f"/compare/tokenizers?{asked}")
    assert ids_shown(found) == built and eod not in built, "the same tokenizer is shown once"
    found = get(client, f"/compare/tokenizers?{asked}&special=control")
    assert ids_shown(found).count(eod) == 1
    assert "are control tokens" in found.of("option")
    assert client.get("/compare/tokenizers?text=a&special=maybe").status_code == 400


def test_what_is_not_learned_is_marked(tmp_path: Path) -> None:
    bodies = [[5, 6, 7, 8], [9, 10, 11]]
    loss = random_loss(bodies)
    store = make_store(tmp_path / "store", bodies, vocab_size=300, eod_id=0, loss=loss)
    found = get(client_of([store]), "/document/0")
    marks = [one["data-loss"] for one in found.all("span") if one.get("data-ids") is not None]
    assert marks == [str(one) for one in loss[0]]


def test_an_empty_store_has_pages(tmp_path: Path) -> None:
    store = make_store(tmp_path / "store", [], vocab_size=300, eod_id=0)
    client = client_of([store])
    for path in ("/search", "/search?q=a", "/compare/tokenizers"):
        get(client, path)
    for path in ("/", "/documents", "/rows", "/batch"):
        assert "empty" in get(client, path).of("main"), path
    get(client, "/document/0", 404)
    get(client, "/row/0", 400)


def test_a_damaged_shard_is_told(tmp_path: Path) -> None:
    store = small_store(tmp_path / "store")
    (store.path / f"{store.shards[0].entry.name}.docs.parquet").write_bytes(b"PAR1 no")
    client = client_of([store])
    found = get(client, "/document/0", 500)
    assert "cannot read" in found.of("main") and "packline verify" in found.of("main")
    get(client, "/")


def test_an_id_outside_the_vocabulary_is_told(tmp_path: Path) -> None:
    store = small_store(tmp_path / "store")
    path = store.path / f"{store.shards[0].entry.name}.bin"
    tokens = np.fromfile(path, store.dtype)
    tokens[:] = 401
    tokens.tofile(path)
    wanted = int(np.argmax(store.shards[0].lengths))
    found = get(client_of([store]), f"/document/{wanted}", 500)
    assert "is 401: expected an id from 0 to 399" in found.of("main")


def test_an_error_of_ours_shows_nothing_of_itself(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    from packline.viewing.web import pages

    def broken(*_: object) -> None:
        raise ValueError("a secret of the inside")

    monkeypatch.setattr(pages, "group_table", broken)
    found = get(client, "/", 500)
    assert "secret" not in found.of("main") and "could not be made" in found.of("main")


def test_hostile_data_is_inert(tmp_path: Path, tokenizer_json: Path) -> None:
    store = hostile_store(tmp_path, tokenizer_json)
    client = client_of([store])
    known = set(OWN_ELEMENTS.split())
    paths = [
        "/",
        "/documents",
        "/rows?seq_len=64",
        "/row/0?seq_len=64",
        "/batch?seq_len=64&batch_size=2",
    ]
    paths += [f"/document/{number}" for number in range(len(store.documents))]
    paths += [f"/compare/tokenizers?document={number}" for number in range(len(store.documents))]
    attack = "%3Cscript%3Ealert(1)%3C/script%3E%22%20onfocus=%22alert(1)"
    paths += [
        "/search?q=a",
        f"/search?q={attack}",
        f"/search?by=file&q={attack}",
        f"/compare/tokenizers?text={attack}",
    ]
    for path in paths:
        found = get(client, path)
        assert {tag for tag, _ in found.tags} <= known, path
        (script,) = found.all("script")
        assert (script["src"] or "").startswith("/static/viewer.js") and found.of("script") == ""
        for _, attributes in found.tags:
            assert not any(name.startswith("on") or name in ("style", "srcdoc") for name in attributes)
            for name in ("href", "src", "action"):
                assert (attributes.get(name) or "/").startswith(("/", "#")), attributes
        text = client.get(path).text
        assert not set(text) & set("\x00\x1b\x07\x85\u2028\u202e\u2066\u2067\ufeff"), path
    for path in (f"/{attack}", f"/document/{attack}", f"/rows?seq_len={attack}", f"/rows?split={attack}"):
        answer = client.get(path)
        assert answer.status_code in (400, 404) and "<script>alert" not in answer.text


@given(st.text(max_size=20))
def test_any_word_is_a_number_or_an_error(word: str) -> None:
    from packline.errors import RecipeError

    try:
        found = number({"row": word}, "row", 7, most=10**6)
    except RecipeError:
        return
    digits = "".join(word.split()).replace(",", "").replace("_", "")
    assert found == (int(digits) if digits else 7)


def test_pages_wait_for_no_plan(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    from packline.viewing.web import choosing

    monkeypatch.setattr(choosing, "PACKED_MOST", 10)
    found = get(client_of([store]), f"/rows?{ROWS}&packing=best_fit", 400)
    assert "packline info" in found.of("main") and "--write" in found.of("main")
    store.rows(32, packing="best_fit", plans=store.path / "plans")
    get(client_of([store]), f"/rows?{ROWS}&packing=best_fit")
