"""The table of documents: its choice and order are those of Python's own, and rows take the same choice."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from starlette.testclient import TestClient
from tests.viewing.parsed import Parsed, ids_shown
from tests.viewing.web.sites import client_of, get

import packline
from packline.facade import Store
from packline.viewing import columns
from packline.viewing.columns import bars_of
from packline.viewing.web import choosing

RECORDS: list[dict[str, Any]] = [
    {
        "text": f"text {number % 37} of some words",
        "id": f"n{number}",
        "score": None if number % 11 == 0 else (number * 7 % 50) / 10,
        "language": ("en", "de", "fr", None)[number % 4],
        "odd name": f"<b>{number % 3}</b>",
    }
    for number in range(90)
]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, tokenizer_json: Path) -> Store:
    folder = tmp_path_factory.mktemp("columns")
    file = folder / "in.jsonl"
    file.write_text("".join(json.dumps(one) + "\n" for one in RECORDS), "utf-8")
    columns = ["score: float", "language", "odd name"]
    return packline.build(
        file,
        tokenizer_json,
        out=folder / "store",
        columns=columns,
        eod="<|endoftext|>",
        workers=0,
        val_fraction=0.2,
    )


@pytest.fixture(scope="module")
def client(store: Store) -> TestClient:
    return client_of([store])


Params = dict[str, str]


def listed(client: TestClient, params: Params) -> list[int]:
    """Numbers of the documents on all pages of a table."""
    found: list[int] = []
    for page in range(20):
        parsed = get(client, "/documents", **params, page=str(page))
        hrefs = [one.get("href") or "" for one in parsed.all("a")]
        found += [int(there[1]) for href in hrefs if (there := re.match(r"/document/(\d+)", href))]
        if "next ›" not in parsed.of("a"):
            break
    return found


CONDITIONS: dict[str, Callable[[dict[str, Any]], bool]] = {
    "score >= 3": lambda one: one["score"] is not None and one["score"] >= 3,
    "language == 'de' or score is None": lambda one: one["language"] == "de" or one["score"] is None,
    "field('odd name') == '<b>1</b>'": lambda one: one["odd name"] == "<b>1</b>",
}


@pytest.mark.parametrize("where", CONDITIONS)
def test_a_condition_chooses_documents(client: TestClient, store: Store, where: str) -> None:
    chosen = {one["id"] for one in RECORDS if CONDITIONS[where](one)}
    every = range(len(store.documents))
    assert listed(client, {"where": where}) == [one for one in every if store.provenance(one).id in chosen]


@pytest.mark.parametrize("column", ["score", "id", "language", "file"])
@pytest.mark.parametrize("descending", [False, True])
def test_any_column_sorts(client: TestClient, store: Store, column: str, descending: bool) -> None:
    def key(document: int) -> tuple[bool, object]:
        one = store.provenance(document)
        value = one.columns[column] if column in one.columns else getattr(one, column)
        return value is None, value

    documents = range(len(store.documents))
    known = [one for one in documents if not key(one)[0]]
    expected = sorted(known, key=lambda one: key(one)[1], reverse=descending)  # type: ignore[arg-type, return-value]
    expected += [one for one in documents if key(one)[0]]
    assert listed(client, {"sort": column} | ({"desc": "1"} if descending else {})) == expected


def test_the_table_has_all_columns_and_their_distributions(client: TestClient) -> None:
    parsed = get(client, "/documents")
    found = client.get("/documents", params={"as": "json"}).json()["tables"][0]["head"]
    fixed = ["text_bytes", "split", "file", "position", "hash"]  # and no label: no document has one
    carried = ["score", "language", "odd name"]
    assert found == ["document", "begins", "tokens", "source", "id", *carried, *fixed]
    described = [one.get("aria-label") or "" for one in parsed.all("svg")]
    assert any(one.startswith("score: 0.0 to 4.9") for one in described)
    assert any(one.startswith("language: 3 values: ") for one in described)
    links = [one.get("href") or "" for one in parsed.all("a")]
    assert any("where=language+%3D%3D+%27de%27" in href for href in links)


def test_rows_take_the_same_choice(client: TestClient, store: Store) -> None:
    rows = store.rows(32, split="all", where="score >= 3", unique=True)
    params = {"seq_len": "32", "split": "all", "where": "score>=3", "unique": "1"}
    assert f"{len(rows):,} rows of 32 tokens" in get(client, "/rows", **params).of("main")
    assert ids_shown(get(client, "/row/1", **params)) == rows[1].tokens.tolist()
    text = get(client, "/batch", **params, batch_size="2")
    loader = packline.Loader(rows, batch_size=2, prefetch=0)
    expected = [one for row in loader.rows_of_step(0).rows for one in rows[int(row)].tokens.tolist()]
    assert ids_shown(text) == expected
    answer = client.get("/jump", params={"to": "row", "number": 1, **params})
    assert "where=score" in answer.headers["location"] and "unique=1" in answer.headers["location"]


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({"where": "scor > 3"}, "did you mean 'score'"),
        ({"where": "__import__('os')"}, "where"),
        ({"sort": "scor"}, "did you mean 'score'"),
        ({"unique": "/etc"}, "unique"),
    ],
)
def test_what_cannot_be_is_answered_with_the_form(
    client: TestClient, params: dict[str, str], expected: str
) -> None:
    parsed = get(client, "/documents", 400, **params)
    assert expected in parsed.of("main") and parsed.all("form")


def test_an_empty_result_is_no_error(client: TestClient) -> None:
    for path in ("/documents", "/rows", "/batch"):
        assert "no document is left" in get(client, path, where="score > 99").of("main")


def test_the_list_goes_on_in_its_documents(client: TestClient) -> None:
    """Neighbors are those of the list, in its order, and a link leads back to the page of the list."""
    params = {"where": "language == 'de'", "sort": "score", "desc": "1", "split": "train"}
    expected = listed(client, params)

    def links(parsed: Parsed) -> list[str]:
        return [one["href"] or "" for one in parsed.all("a")]

    ahead = [one for one in links(get(client, "/documents", **params)) if one.startswith("/document/")][:1]
    shown: list[int] = []
    while ahead:
        shown.append(int(re.findall(r"/document/(\d+)", ahead[0])[0]))
        parsed = Parsed(client.get(ahead[0]).text)
        assert f"{len(shown)} of {len(expected)}" in parsed.of("a")
        back = next(one for one in links(parsed) if one.startswith("/documents?where"))
        assert f"/document/{shown[-1]}?" in client.get(back).text
        ahead = [one for one in links(parsed) if one.endswith(f"place={len(shown)}")]
    assert shown == expected


def test_heads_show_the_selection(client: TestClient) -> None:
    described = [
        one.get("aria-label") or "" for one in get(client, "/documents", where="score >= 4").all("svg")
    ]
    assert any(one.startswith("score: 4.0 to 4.9") for one in described)


def test_tables_as_data(client: TestClient, store: Store) -> None:
    params = {"where": "score >= 4", "source": "in"}
    parsed = get(client, "/documents", **params)
    found = client.get("/documents", params=params | {"as": "json"}).json()["tables"][0]
    assert len(found["rows"]) > 4 and all(name in parsed.of("thead") for name in found["head"])
    assert all(cell in parsed.of("main") for row in found["rows"] for cell in row)
    command = shlex.split(next(one for one in parsed.texts("pre") if one.startswith("packline view")))
    assert command[2:4] == [str(store.path), "--where"]
    assert command[4:] == ["score >= 4", "--split", "all", "--source", "in"]


def test_large_stores_are_neither_filtered_nor_sorted(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choosing, "FILTERED_MOST", 10)
    monkeypatch.setattr(choosing, "SORTED_MOST", 10)
    client = client_of([store])
    assert "packline view" in get(client, "/documents", 400, where="score > 3").of("main")
    assert "docs.parquet" in get(client, "/documents", 400, sort="score").of("main")
    get(client, "/documents")


def test_heads_of_a_part_of_the_documents_say_so(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "of a sample" not in get(client_of([store]), "/documents").of("main")
    monkeypatch.setattr(columns, "MOST_COUNTED", 1)
    heads = re.findall("<th .*?</th>", client_of([store]).get("/documents").text, re.DOTALL)
    shown = [re.sub("<svg.*?</svg>|<[^>]*>", " ", head, flags=re.DOTALL) for head in heads]
    for name in ("tokens", "score", "language", "text_bytes"):
        assert [" of a sample" in head for head in shown if head.split()[0] == name] == [True]


def test_bars() -> None:
    words = bars_of([pa.array(["de", "en", "en"])])
    assert words is not None and words.described == "2 values: en 66.7%, de 33.3%"
    skewed = bars_of([pa.array([1] * 50 + [3] * 20 + [100_000])])
    assert skewed is not None and sum(skewed.counts) == 71 and skewed.counts[-1] == 1
    assert bars_of([pa.array([None, None], pa.string())]) is None
    assert bars_of([pa.array([1]), pa.array(["a"])]) is None
    nan = bars_of([pa.array([float("nan"), float("inf")])])
    assert nan is not None and nan.counts == ()
    ids = bars_of([pa.array([f"x{number}" for number in range(40)])])
    assert ids is not None and ids.top == () and ids.described == "each value once"
    many = bars_of([pa.array([f"x{number}" * (1 + number % 3) for number in range(3000)])])
    assert many is not None and sum(many.counts) == 3000 and "lengths" in many.described
