"""Conversations to stores: masks that are the assistant's words, ledgers that balance, builds that go on.

What should be trained on is computed straight from the raw messages (`talks`), never by the code under test.
"""

from __future__ import annotations

import gzip
import json
import os
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash
from tests.chat import talks
from tests.chat.talks import CHATML, CHATML_TOKENS, LLAMA3, LLAMA3_TOKENS, PLAIN, contents, unmarked
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

import packline
from packline.chat import sources as sources_module
from packline.chat.sft_unit import ConversationRun
from packline.chat.sources import ConversationSource
from packline.errors import InputError, OutOfSpace, RecipeError, ResumeMismatch
from packline.jobs.folder import StoreFolder
from packline.recipe import SPLITS

Said = Callable[[Any], list[str]]
CASES: dict[str, tuple[tuple[str, ...], str | None, Said, dict[str, Any]]] = {
    "chatml": (CHATML_TOKENS, CHATML, talks.chatml_said, {}),
    "chatml without marks": (CHATML_TOKENS, unmarked(CHATML), talks.chatml_said, {}),
    "llama3": (LLAMA3_TOKENS, LLAMA3, talks.llama3_said, {"eod": "<|end_of_text|>"}),
    "llama3 without marks": (LLAMA3_TOKENS, unmarked(LLAMA3), talks.llama3_said, {"eod": "<|end_of_text|>"}),
    "nanochat": (talks.NANOCHAT_TOKENS, None, talks.nanochat_said, {"scheme": "nanochat"}),
}


def make_tokenizer(base: Path, folder: Path, case: str) -> Path:
    tokens, template, _, _ = CASES[case]
    return talks.with_tokens(base, folder, tokens, template, "<|begin_of_text|>" if "llama3" in case else "")


@pytest.mark.parametrize("case", CASES)
def test_what_is_trained_on_are_the_assistants_words(case: str, tokenizer_json: Path, tmp_path: Path) -> None:
    _, _, said, settings = CASES[case]
    records = [PLAIN, {"messages": talks.WEATHER}, [*PLAIN, *talks.WEATHER[1:]], PLAIN + PLAIN[:1]]
    folder = make_tokenizer(tokenizer_json, tmp_path / "tokenizer", case)
    store = talks.store_of(records, folder, tmp_path, **settings)
    assert talks.trained_texts(store) == [said(record) for record in records]
    assert store.verify().ok
    assert store.manifest.ledger.documents == len(records)
    hashes = [store.provenance(number).hash for number in range(len(records))]
    assert hashes == [xxhash.xxh3_64_intdigest(store.text(number).encode()) for number in range(len(records))]
    assert store.manifest.ledger.mask
    trained = sum(int(shard.loss.sum()) for shard in store.shards if shard.loss is not None)
    assert store.manifest.ledger.mask.trained_tokens == trained
    # Two conversations hold strings that look like control tokens, some of each scheme.
    own = {"chatml": 2, "llama3": 1, "nanochat": 2}[case.partition(" ")[0]]
    assert store.manifest.ledger.special_token_strings == 2 * own


@pytest.mark.parametrize("case", ["chatml", "llama3 without marks", "nanochat"])
def test_real_conversations_are_trained_on_word_by_word(case: str, shared: Path, tmp_path: Path) -> None:
    if not (shared / "evals" / "chat").is_dir():
        pytest.skip("no conversations beside the project")
    _, _, said, settings = CASES[case]
    lines = [
        line
        for path in sorted((shared / "evals" / "chat").glob("*.jsonl"))
        for line in path.read_text("utf-8").splitlines()[:20]
    ]
    records = [json.loads(line) for line in lines]
    base = shared / "tokenizers" / ("qwen3" if case == "chatml" else "gpt2") / "tokenizer.json"
    store = talks.store_of(records, make_tokenizer(base, tmp_path / "tokenizer", case), tmp_path, **settings)
    assert talks.trained_texts(store) == [said(record) for record in records]
    assert store.manifest.ledger.documents_in == len(records)
    assert store.verify().ok


def test_chatml_is_written_as_by_hand_and_encoded_as_the_reference_does(chatml: Path, tmp_path: Path) -> None:
    store = talks.store_of([PLAIN], chatml, tmp_path)
    asked = "<|im_start|>user\nSay a word.<|im_end|>\n"
    text = asked + "<|im_start|>assistant\nA word, then.<|im_end|>\n<|endoftext|>"
    assert talks.whole_texts(store) == [text]
    reference = Tokenizer.from_file(str(chatml / "tokenizer.json")).encode(text, add_special_tokens=False).ids
    assert store.documents[0].tolist() == reference
    said = "user\nSay a word.\nassistant\nA word, then.\n"  # control tokens are no text
    assert store.provenance(0).text_bytes == store.manifest.ledger.text_bytes == len(said)


def test_a_finished_store_is_that_of_conversations_that_were_touched_but_not_changed(
    chatml: Path, tmp_path: Path
) -> None:
    chat = talks.write(tmp_path / "chat.jsonl", [PLAIN])
    sources = [ConversationSource(inputs=(str(chat),), repeat=2)]
    packline.sft(sources, chatml, out=tmp_path / "store", workers=0)
    before, after = contents(tmp_path / "store"), time.time_ns() + 10**9
    os.utime(chat, ns=(after, after))
    packline.sft(sources, chatml, out=tmp_path / "store", workers=0)
    assert contents(tmp_path / "store") == before
    chat.write_text(chat.read_text().replace("Say", "Pay"))
    os.utime(chat, ns=(1, 1))
    with pytest.raises(ResumeMismatch, match=r"the content of input .*chat.jsonl"):
        packline.sft(sources, chatml, out=tmp_path / "store", workers=0)


BAD: list[tuple[Any, str]] = [
    ({"prompt": PLAIN[:1], "completion": PLAIN[1:], "label": False}, "preference_data"),
    ([PLAIN[0], {"role": "assistant", "content": "long " * 400}], "too_long"),
    ([PLAIN[0]], "nothing_to_train"),
    ([*PLAIN, {"role": "user", "content": None}], "empty_content"),
    (7, "not_a_conversation"),
]


def test_bad_conversations_are_kept_with_their_reason_and_the_ledger_balances(
    chatml: Path, tmp_path: Path
) -> None:
    records = [one for bad, _ in BAD for one in (bad, PLAIN)]
    path = talks.write(tmp_path / "chat.jsonl", records)
    path.write_bytes(path.read_bytes() + b"not json\n[1, 2\n")
    store = packline.sft(
        path,
        chatml,
        out=tmp_path / "store",
        max_tokens=300,
        workers=0,
    )
    ledger = store.manifest.ledger
    assert ledger.rejected == {"malformed_json": 2, **Counter(reason for _, reason in BAD)}
    assert ledger.documents == len(BAD)
    assert ledger.documents_in == 2 * len(BAD) + 2
    assert ledger.imbalance() == []
    kept, found = talks.rejects(store)
    assert [json.loads(one) for one in found[:-2]] == [bad for bad, _ in BAD]
    assert [one["reason"] for one in kept[:-2]] == [reason for _, reason in BAD]
    assert store.verify().ok


@pytest.mark.parametrize("over", [0, 1])
def test_what_is_cut_is_counted_and_the_rest_is_as_it_was(
    over: int, tokenizer_json: Path, tmp_path: Path
) -> None:
    records = [[PLAIN[0], {"role": "assistant", "content": "again and " * n}] for n in (1, 5, 40, 90)]
    path = talks.write(tmp_path / "chat.jsonl", records)
    folder = make_tokenizer(tokenizer_json, tmp_path / "tokenizer", "nanochat")
    build: dict[str, Any] = {"scheme": "nanochat", "workers": 0}
    whole = packline.sft(path, folder, out=tmp_path / "whole", **build)
    most = len(whole.documents[1]) - over
    cut = packline.sft(path, folder, out=tmp_path / "cut", max_tokens=most, overflow="truncate", **build)
    mask = cut.manifest.ledger.mask
    assert mask
    lost = sum(max(len(one) - most, 0) for one in whole.documents)
    assert (mask.truncated, mask.truncated_tokens) == (2 + over, lost)
    assert cut.manifest.tokens + lost == whole.manifest.tokens
    for one, other in zip(cut.documents, whole.documents, strict=True):
        assert one[-1] == cut.manifest.tokenizer.eod_id
        assert one[:-1].tolist() == other[: len(one) - 1].tolist()
    shard = cut.shards[0]
    assert shard.loss is not None
    ends = np.cumsum([len(one) for one in cut.documents]) - 1
    assert not shard.loss[ends].any()
    assert cut.verify().ok


def test_a_conversation_of_which_nothing_trained_is_left_is_too_long(
    tokenizer_json: Path, tmp_path: Path
) -> None:
    record = [{"role": "user", "content": "on and on " * 99}, PLAIN[1]]
    folder = make_tokenizer(tokenizer_json, tmp_path / "tokenizer", "nanochat")
    cut: dict[str, Any] = {"scheme": "nanochat", "max_tokens": 64, "overflow": "truncate"}
    store = talks.store_of([record, PLAIN], folder, tmp_path, **cut)
    assert store.manifest.ledger.rejected == {"too_long": 1}


def test_jsonl_compressed_parquet_and_any_number_of_processes_give_the_same_tokens(
    chatml: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages = [[PLAIN[0], {"role": "assistant", "content": f"{n} times"}] for n in range(300)]
    path = talks.write(
        tmp_path / "chat.jsonl", [{"id": f"a{n}", "messages": one} for n, one in enumerate(messages)]
    )
    with gzip.open(tmp_path / "chat.jsonl.gz", "wb") as file:
        file.write(path.read_bytes())
    pq.write_table(pa.table({"messages": messages}), tmp_path / "chat.parquet", row_group_size=130)
    monkeypatch.setattr(sources_module, "UNIT_BYTES", 1 << 14)
    made = {}
    for name, given, workers in (
        ("plain", path, 0),
        ("two", path, 2),
        ("gzip", tmp_path / "chat.jsonl.gz", 0),
        ("parquet", tmp_path / "chat.parquet", 0),
    ):
        made[name] = packline.sft(given, chatml, out=tmp_path / name, workers=workers)
        assert made[name].verify().ok, name
    tokens = {name: b"".join(one.tobytes() for one in store.documents) for name, store in made.items()}
    assert len(set(tokens.values())) == 1
    assert contents(made["plain"].path) == contents(made["two"].path)
    receipt = json.loads((made["gzip"].path / "receipts" / "chat-000000.json").read_bytes())
    assert receipt["settings"] == ""  # nothing may reuse conversations
    assert receipt["audited"] == 3  # of 300: 0, 8, 64, however they are batched
    provenance = made["plain"].provenance(3)
    assert provenance.id == "a3"
    line = path.read_bytes()[provenance.position :].split(b"\n")[0]
    assert json.loads(line)["messages"] == messages[3]


def test_an_interrupted_build_goes_on_and_gives_the_same_bytes(
    chatml: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = talks.write(tmp_path / "chat.jsonl", [PLAIN, {"messages": talks.WEATHER}] * 100)
    monkeypatch.setattr(sources_module, "UNIT_BYTES", 1 << 15)
    packline.sft(path, chatml, out=tmp_path / "whole", workers=0)
    commit = StoreFolder.commit
    done: list[str] = []

    def full(self: StoreFolder, receipt: Any) -> None:
        if len(done) == 2:
            raise OutOfSpace("the disk is full")
        done.append(receipt.unit)
        commit(self, receipt)

    monkeypatch.setattr(StoreFolder, "commit", full)
    with pytest.raises(OutOfSpace):
        packline.sft(path, chatml, out=tmp_path / "again", workers=0)
    monkeypatch.setattr(StoreFolder, "commit", commit)
    assert not (tmp_path / "again" / "manifest.json").exists()
    before = {name: (tmp_path / "again" / f"receipts/{name}.json").stat().st_mtime_ns for name in done}
    with pytest.raises(ResumeMismatch, match="max_tokens"):
        packline.sft(path, chatml, out=tmp_path / "again", workers=0, max_tokens=4000)
    plans: list[Any] = []
    packline.sft(path, chatml, out=tmp_path / "again", workers=0, on_event=plans.append)
    assert contents(tmp_path / "again") == contents(tmp_path / "whole")
    after = {name: (tmp_path / "again" / f"receipts/{name}.json").stat().st_mtime_ns for name in done}
    assert before == after
    assert plans[0].units_done == 2


@pytest.mark.parametrize("case", ["chatml", "llama3 without marks", "nanochat"])
def test_what_has_the_weight_0_is_read_and_not_learned(
    case: str, tokenizer_json: Path, tmp_path: Path
) -> None:
    _, _, said, settings = CASES[case]
    weather = cast("list[dict[str, Any]]", talks.WEATHER)
    records: list[list[dict[str, Any]]] = [
        [*PLAIN[:1], {**PLAIN[1], "weight": 0}, *weather[1:]],
        [*weather[:2], {**weather[2], "weight": 0}, *weather[3:4], {**weather[4], "weight": 1}, *weather[5:]],
        [*weather[:6], {**weather[6], "weight": 0.0}],
    ]
    plain = [[{**one, "weight": 1} for one in record] for record in records]
    folder = make_tokenizer(tokenizer_json, tmp_path / "tokenizer", case)
    stores = [
        packline.sft(talks.write(tmp_path / f"{name}.jsonl", given), folder, out=tmp_path / name, **settings)
        for name, given in (("weighed", records), ("plain", plain))
    ]
    wanted = [
        [text for text, one in zip(said(record), _assistants(record), strict=True) if one.get("weight", 1)]
        for record in records
    ]
    assert talks.trained_texts(stores[0]) == wanted
    assert talks.trained_texts(stores[1]) == [said(record) for record in records]
    documents = [[one.tolist() for one in store.documents] for store in stores]
    assert documents[0] == documents[1]
    assert stores[0].verify().ok


def _assistants(record: Any) -> list[Any]:
    return [one for one in record if one["role"] == "assistant"]


def test_what_arrow_fills_up_with_nulls_is_not_in_calls(chatml: Path, tmp_path: Path) -> None:
    # Calls of two tools share one column of structs, so each has the other's arguments as nulls.
    def talk(name: str, arguments: dict[str, Any]) -> list[dict[str, Any]]:
        calls = [{"id": "c0", "type": "function", "function": {"name": name, "arguments": arguments}}]
        output = {"role": "tool", "content": "done", "tool_call_id": "c0"}
        return [PLAIN[0], {"role": "assistant", "content": "", "tool_calls": calls}, output]

    records = [talk("find", {"city": "Rome"}), talk("add", {"a": 1, "b": [None, 2]})]
    pq.write_table(pa.table({"messages": records}), tmp_path / "chat.parquet")
    lines = talks.write(tmp_path / "chat.jsonl", records)
    stores = [
        packline.sft(path, chatml, out=tmp_path / f"store{n}", workers=0)
        for n, path in enumerate((tmp_path / "chat.parquet", lines))
    ]
    texts = [talks.whole_texts(store) for store in stores]
    assert texts[0] == texts[1]
    assert '"arguments": {"city": "Rome"}}' in texts[0][0]


def test_equal_conversations_are_in_one_split_and_shares_are_about_what_was_asked_for(
    chatml: Path, tmp_path: Path
) -> None:
    talks_made = [[PLAIN[0], {"role": "assistant", "content": f"{n} times"}] for n in range(200)]
    path = talks.write(tmp_path / "chat.jsonl", talks_made * 2)
    shares = {"two": {"val_fraction": 0.2}, "three": {"val_fraction": 0.2, "test_fraction": 0.3}}
    made = {
        name: packline.sft(path, chatml, out=tmp_path / name, workers=0, **cast("Any", share))
        for name, share in shares.items()
    }
    texts = {
        name: {
            split: [text for shard in store.shards if shard.entry.split == split for text in _texts(shard)]
            for split in SPLITS
        }
        for name, store in made.items()
    }
    assert [len(texts["three"][split]) for split in SPLITS] == pytest.approx([200, 80, 120], rel=0.25)
    assert sum(len(set(one)) for one in texts["three"].values()) == 200
    assert texts["two"]["val"] == texts["three"]["val"]
    assert made["three"].verify().ok
    assert made["two"].manifest.recipe.test_fraction is msgspec.UNSET
    with pytest.raises(RecipeError, match=r"test_fraction 0\.9: expected at most 1"):
        packline.sft(path, chatml, out=tmp_path / "no", val_fraction=0.2, test_fraction=0.9)


def _texts(shard: Any) -> list[bytes]:
    return [shard.document(number).tobytes() for number in range(len(shard))]


def test_rows_carry_the_mask(chatml: Path, tmp_path: Path) -> None:
    records = [[PLAIN[0], {"role": "assistant", "content": "word " * n}] for n in range(1, 30)]
    store = talks.store_of(records, chatml, tmp_path)
    rows = store.rows(seq_len=96, packing="best_fit")
    batch = rows.read(np.arange(len(rows)), ["tokens", "targets"])
    mask = store.manifest.ledger.mask
    assert mask
    # The first token of a document is predicted by nothing, and it is never one of the assistant's.
    assert int((batch["targets"] != -100).sum()) == mask.trained_tokens


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"scheme": "nanochat"}, "not a tokenizer for nanochat's scheme"),
        ({"overflow": "truncate"}, "goes with max_tokens"),
        ({"max_tokens": 2}, "expected at least 3"),
        ({"scheme": "nanochat", "chat_template": "x"}, "goes with scheme"),
        ({"scheme": "other"}, "scheme is 'other': expected "),
        ({"workers": -1}, "expected 0 or more"),
    ],
)
def test_settings_that_make_no_sense_are_refused(
    settings: dict[str, Any], message: str, chatml: Path, tmp_path: Path
) -> None:
    path = talks.write(tmp_path / "chat.jsonl", [PLAIN])
    with pytest.raises(RecipeError, match=message):
        packline.sft(path, chatml, out=tmp_path / "store", **settings)
    assert not (tmp_path / "store").exists()


def test_a_tokenizer_without_a_template_and_an_array_of_messages_are_refused(
    chatml: Path, tokenizer_json: Path, tmp_path: Path
) -> None:
    path = talks.write(tmp_path / "chat.jsonl", [PLAIN])
    with pytest.raises(RecipeError, match="has no chat template"):
        packline.sft(path, tokenizer_json, out=tmp_path / "store")
    (tmp_path / "chat.json").write_text(json.dumps(PLAIN))
    with pytest.raises(InputError, match="an array of messages"):
        packline.sft(tmp_path / "chat.json", chatml, out=tmp_path / "store")


def test_a_count_of_trained_tokens_that_is_wrong_is_noticed(
    chatml: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = ConversationRun._write

    def miscount(self: ConversationRun, *given: Any) -> None:
        write(self, *given)
        self._mask.trained_tokens += 1

    monkeypatch.setattr(ConversationRun, "_write", miscount)
    report = talks.store_of([PLAIN], chatml, tmp_path).verify()
    assert any("trained tokens" in str(problem) for problem in report.problems)


def test_a_tokenizer_that_puts_a_space_before_texts_does_so_only_where_there_is_one(tmp_path: Path) -> None:
    # Words that touch what is before them are encoded with it, and cut where a token begins.
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="always")
    trainer = trainers.BpeTrainer(vocab_size=200, special_tokens=["</s>"], show_progress=False)
    words = [one["content"] for one in PLAIN] * 3 + ["[INST] Say x [/INST] yes, glued"]
    tokenizer.train_from_iterator(words, trainer)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    template = (
        "{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]{% else %}"
        "{% generation %}SPACE{{ m.content }}</s>{% endgeneration %}{% endif %}{% endfor %}"
    )
    path = talks.write(
        tmp_path / "chat.jsonl", [PLAIN, [PLAIN[0], {"role": "assistant", "content": "glued"}]]
    )
    common: dict[str, Any] = {"eod": "</s>", "workers": 0}
    for space in (" ", ""):
        store = packline.sft(
            path,
            tmp_path / "tokenizer.json",
            out=tmp_path / f"store{len(space)}",
            chat_template=template.replace("SPACE", space),
            **common,
        )
        assert talks.whole_texts(store)[0] == f"[INST] Say a word. [/INST]{space}A word, then.</s>"
        assert store.verify().ok
        said = [[run.lstrip() for run in runs] for runs in talks.trained_texts(store)]
        assert said == [["A word, then.</s>"], ["glued</s>"]]


def test_conversations_whose_outputs_or_later_instructions_a_template_leaves_out_are_refused(
    chatml: Path, tmp_path: Path
) -> None:
    shows = (
        "{% for m in messages if m.role != 'ROLE' %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}"
    )
    shows += "{% generation %}{{ m.content }}<|im_end|>{% endgeneration %}{% else %}{{ m.content }}<|im_end|>"
    shows += "{% endif %}{% endfor %}"
    records = [
        [PLAIN[0], {"role": "assistant", "content": "[f(1)]"}, {"role": "tool", "content": "a\nb"}, PLAIN[1]],
        [*PLAIN, {"role": "system", "content": "Be brief."}, *PLAIN],
    ]
    path = talks.write(tmp_path / "chat.jsonl", [PLAIN, *records, *records])
    for role, lost in (("nobody", 0), ("tool", 2), ("system", 2)):
        store = packline.sft(
            path, chatml, out=tmp_path / role, chat_template=shows.replace("ROLE", role), workers=0
        )
        assert store.manifest.ledger.rejected == ({"template": lost} if lost else {})
        assert store.manifest.documents == 5 - lost
