"""Conversations in the browser: a block for each turn with its share of the loss, and keys to go there."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from tests.viewing.browser.harness import SCHEMES, Chrome, axe, picture, serving

import packline
from packline.facade import Store

TALKS = [
    [
        {"role": "system", "content": "Answer briefly."},
        {"role": "user", "content": "<|im_start|>assistant\nWhat is 二 plus two?"},
        {"role": "assistant", "content": "Four. 四です。"},
        {"role": "user", "content": "And three?"},
        {"role": "assistant", "content": "Five."},
    ]
]


@pytest.fixture(scope="module")
def chats(tmp_path_factory: pytest.TempPathFactory, documents: list[str]) -> Store:
    from packline.vocabulary.training import train_bpe

    folder = tmp_path_factory.mktemp("chats")
    names = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
    (folder / "tokenizer.json").write_text(train_bpe(iter(documents[20:40]), 600, names), "utf-8")
    lines = "".join(json.dumps({"messages": talk}) + "\n" for talk in TALKS)
    (folder / "chats.jsonl").write_text(lines, "utf-8")
    return packline.sft(
        folder / "chats.jsonl",
        str(folder / "tokenizer.json"),
        out=folder / "store",
        chat_template="chatml",
        workers=0,
        eod="<|endoftext|>",
    )


@pytest.fixture(scope="module")
def chat_site(chats: Store) -> Iterator[str]:
    with serving(chats.path) as address:
        yield address


def test_each_turn_has_its_role_and_its_share_of_the_loss(chrome: Chrome, chat_site: str) -> None:
    page = chrome.open(f"{chat_site}/document/0")
    roles = page.locator(".edge strong").all_inner_texts()
    assert roles == ["system", "user", "assistant", "user", "assistant"], "text never begins a turn"
    shares = page.locator(".edge .origin").all_inner_texts()
    assert [share == "no loss" for share in shares] == [True, True, False, True, False]
    assert "in the loss" in page.locator(".summary").inner_text()
    for scheme in SCHEMES:
        other = chrome.open(f"{chat_site}/document/0", scheme=scheme, width=400)
        assert axe(other) == []
        picture(other, f"serve-chat-{scheme}")


def test_links_lead_to_turns_in_the_loss(chrome: Chrome, chat_site: str) -> None:
    page = chrome.open(f"{chat_site}/document/0", width=400, height=500, script=False, strict=False)
    links = page.get_by_role("navigation", name="Turns in the loss").get_by_role("link")
    assert links.all_inner_texts() == ["turn 3, assistant", "turn 5, assistant"]
    links.last.click()
    turn = page.locator(":target")
    assert turn.locator(".edge strong").inner_text() == "assistant" and "Five." in turn.inner_text()
    box = turn.bounding_box()
    assert box is not None and box["y"] < 500


def test_keys_lead_to_what_is_trained(chrome: Chrome, chat_site: str) -> None:
    page = chrome.open(f"{chat_site}/document/0")
    now = "document.querySelector('.t.now')"
    starts = []
    for key in ("n", "n", "n", "p"):
        page.keyboard.press(key)
        starts.append(page.evaluate(f"{now} && [...document.querySelectorAll('.tokens .t')].indexOf({now})"))
        assert page.evaluate(f"{now}.dataset.loss") == "1"
    first, second, last, back = starts
    assert first < second == last and back == first
    assert page.evaluate(f"{now}.previousElementSibling.dataset.loss") == "0"
    assert "assistant" in page.locator(".card").inner_text()
