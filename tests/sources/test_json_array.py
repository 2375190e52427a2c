"""Arrays of records: documents are those of JSON lines, and bad elements take no good ones with them."""

from __future__ import annotations

import json
import tracemalloc
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.jobs.builds import build, rejects
from tests.sources.reading import collect, files_of, read_file, source_of

from packline.errors import RecipeError
from packline.fingerprint import Hasher
from packline.sources import json_array, sandbox
from packline.sources.reader import Span, read_span

RECORDS = st.lists(
    st.dictionaries(
        st.sampled_from(["text", "id", "other"]), st.text(max_size=9) | st.integers() | st.none()
    ),
    max_size=9,
)


@pytest.mark.parametrize("settings", [{"text": "text"}, {"template": "{{ text }}|{{ other }}"}], ids=str)
@given(records=RECORDS, indent=st.sampled_from([None, 1]), size=st.integers(1, 99), batch=st.integers(1, 99))
def test_an_array_gives_the_documents_of_json_lines(
    settings: dict[str, Any],
    tmp_path_factory: pytest.TempPathFactory,
    records: list[dict[str, Any]],
    indent: int | None,
    size: int,
    batch: int,
) -> None:
    folder = tmp_path_factory.mktemp("data")
    dumped = [json.dumps(one, indent=indent).encode() for one in records]
    data = b"[" + b" ,\n".join(dumped) + b"]\n"
    (folder / "a.json").write_bytes(data)
    (folder / "b.jsonl").write_bytes(b"".join(json.dumps(one).encode() + b"\n" for one in records))
    rare = {"rare_fields": ("text", "other")}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_array, "BLOCK_BYTES", size)
        patch.setattr(json_array, "BATCH_BYTES", batch)
        array = read_file(source_of(folder / "a.json", **settings, **rare))
    lines = read_file(source_of(folder / "b.jsonl", **settings, **rare))
    assert (array.texts, array.ids) == (lines.texts, lines.ids)
    assert [reject.reason for reject in array.rejects] == [reject.reason for reject in lines.rejects]
    found = array.positions + [reject.position for reject in array.rejects]
    assert sorted(found) == list(accumulate([1, *(len(one) + 3 for one in dumped[:-1])]))[: len(dumped)]
    assert all(data[reject.position :].startswith(reject.raw) for reject in array.rejects)


def test_bad_elements_are_located_kept_and_counted(tokenizer_json: Path, tmp_path: Path) -> None:
    long = b'{"text": "' + b"x" * 500 + b'"}'
    bad = {
        "malformed_json": [b'{"text": nope}'],
        "missing_field": [b'{"body": "a"}'],
        "not_a_string": [b'{"text": null}', b"7", b"[]"],
        "invalid_utf8": [b'{"text": "\xff"}'],
        "lone_surrogate": [b'{"text": "\\ud83d"}'],
        "too_large": [long],
    }
    each = [(reason, data) for reason, elements in bad.items() for data in elements]
    good = [b'{"text": "good %d"}' % number for number in range(len(each) + 1)]
    data = b"[" + good[0] + b"".join(b",\n" + b + b"," + g for (_, b), g in zip(each, good[1:], strict=True))
    path = tmp_path / "a.json"
    path.write_bytes(data + b', ,{"text": "last"}')  # an empty element, and no end
    store = build(tmp_path / "store", path, tokenizer_json, max_document_bytes=300, max_bad_fraction=1.0)
    ledger = store.manifest.ledger
    counts = {reason: len(elements) for reason, elements in bad.items()}
    counts["malformed_json"] += 2  # the empty element, and the one that the end of the file cuts
    assert (ledger.documents, ledger.rejected) == (len(good), counts)
    assert store.verify(deep=True).ok
    kept = rejects(tmp_path / "store")
    assert [entry["raw"].strip() for entry in kept] == [*(b for _, b in each), b"", b'{"text": "last"}']
    for entry in kept:
        assert entry["file"] == "a.json"
        assert path.read_bytes()[entry["position"] :].startswith(entry["raw"])
    assert "is not closed" in kept[-1]["detail"]


def test_memory_is_bounded_by_an_element(tmp_path: Path) -> None:
    with open(tmp_path / "a.json", "wb") as file:
        file.write(b'[{"text": "a"}')
        for number in range(40):
            file.write(b',{"text": "' + b"x" * (1 << 20 if number != 20 else 40 << 20) + b'"}')
        file.write(b"]")
    source = source_of(tmp_path / "a.json")
    (file_,) = files_of(source)
    tracemalloc.start()
    documents, rejected = 0, 0
    for batch in read_span(file_, source, Span(0, 0, file_.size), 2 << 20, Hasher()):
        documents += len(batch)
        rejected += sum(not reject.continued for reject in batch.rejects)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (documents, rejected) == (40, 1) and most < 24 << 20


@pytest.mark.parametrize(("name", "position"), [("a.json", 11), ("a.jsonl", 9)])
def test_a_template_that_does_not_end_stops_the_job_with_the_place_of_the_record(
    name: str, position: int, tokenizer_json: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = [{"n": 1}, {"n": 999_999}]
    lines = "\n".join(map(json.dumps, records))
    (tmp_path / name).write_text(json.dumps(records) if name == "a.json" else lines, "utf-8")
    monkeypatch.setattr(sandbox, "MOST_SECONDS", 0.1)
    template = "{% for i in 'a' * n %}{% if i == 'b' %}{% endif %}{% endfor %}text"
    with pytest.raises(
        RecipeError, match=f"{name}, byte {position}: the template took 0.1 seconds"
    ) as stopped:
        build(tmp_path / "store", tmp_path / name, tokenizer_json, template=template)
    assert "filter" in stopped.value.hint
    monkeypatch.undo()
    source = source_of(tmp_path / name, template="{{ n }}")
    (file,) = files_of(source)
    assert collect(read_span(file, source, Span(0, 0, file.size), 99, Hasher())).texts == ["1", "999999"]
