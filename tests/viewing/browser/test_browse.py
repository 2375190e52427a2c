"""The viewer as a person uses it with a mouse: from the overview to a token, by links, forms and pointing."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tests.viewing.browser.harness import PAGES, Chrome, fits, follow, picture, until

from packline.facade import Store

if TYPE_CHECKING:
    from playwright.sync_api import Page


def go(page: Page, entry: str) -> None:
    follow(page, page.get_by_role("navigation", name="Viewer").get_by_role("link", name=entry, exact=True))


def card_of(page: Page) -> dict[str, str]:
    card = page.locator(".card")
    card.wait_for(state="visible")
    names = card.locator("dt").all_inner_texts()
    return dict(zip(names, card.locator("dd").all_inner_texts(), strict=True))


def number_in(title: str) -> int:
    found = re.search(r"[\d,]+", title)
    assert found is not None, title
    return int(found[0].replace(",", ""))


def test_from_the_overview_to_a_document(chrome: Chrome, site: str, store: Store) -> None:
    page = chrome.open(site)
    assert f"{len(store.documents):,}" in page.locator("main").inner_text()
    follow(page, page.locator("main").get_by_role("link", name="prose").first)
    page.wait_for_url("**/documents?*")
    first = page.locator("main tbody th a").first
    wanted = number_in(first.inner_text())
    assert store.provenance(wanted).source == "prose"
    follow(page, first)
    assert number_in(page.locator("h1").inner_text()) == wanted
    assert store.provenance(wanted).file in page.locator("main").inner_text()
    page.keyboard.press("j")
    page.wait_for_url("**place=1")
    following = number_in(page.locator("h1").inner_text())
    assert following > wanted and store.provenance(following).source == "prose"
    follow(page, page.get_by_role("link", name="2 of "))
    assert page.get_by_label("Source", exact=True).input_value() == "prose"


def test_pointing_at_a_token_says_what_it_is(chrome: Chrome, site: str, store: Store) -> None:
    page = chrome.open(f"{site}/row/3?seq_len=512&packing=best_fit")
    row = store.rows(seq_len=512, packing="best_fit", split="train")[3]
    assert not page.locator(".card").is_visible()
    for place in (0, 7):
        token = page.locator(".tokens .t").nth(place)
        token.hover()
        said = card_of(page)
        provenance = store.provenance(row.spans[0].document)
        assert said["id"] == str(token.get_attribute("data-ids")).replace(" ", ", ")
        assert said["bytes"] == token.get_attribute("data-bytes")
        assert said["segment"] == "0"
        assert int(said["position"].replace(",", "")) == row.spans[0].start + int(row.position_ids[place])
        assert int(said["id"].split(",")[0]) == row.tokens[place]
        # A token is learned where some position has it as its target. Of the first of a row, which goes on
        # with a document, the row does not say.
        assert said.get("loss") == (
            "in the loss" if place else None if row.spans[0].start else "no loss (never a target)"
        )
        assert int(said["document"].replace(",", "")) == row.spans[0].document
        assert provenance.file in said["from"] and f"{provenance.position:,}" in said["from"]
    inside = page.locator(".card").bounding_box()
    assert inside is not None and inside["x"] >= 0 and inside["x"] + inside["width"] <= 1200
    picture(page, "serve-card", whole=False)
    page.mouse.move(2, 2)
    page.locator(".card").wait_for(state="hidden")


def test_tokens_that_share_a_box_share_a_card(chrome: Chrome, site: str) -> None:
    page = chrome.open(f"{site}/compare/tokenizers?text=e%CC%81e%CC%81&t0=1&t1=0")
    mark, letter = page.locator(".tokens .t.z1").first, page.locator(".tokens .t").first
    both = f"e {letter.get_attribute('data-ids')}, \u25cc\u0301 {mark.get_attribute('data-ids')}"
    letter.hover()
    assert card_of(page)["in this box"] == both
    box = mark.bounding_box()
    assert box is not None and box["width"] < 1, "the mark itself has no width, its tick can be pointed at"
    page.mouse.move(box["x"] - 2, box["y"] + box["height"] + 2)
    until(page, lambda: card_of(page)["text"] == "\u0301")
    assert card_of(page)["in this box"] == both


def test_columns_can_be_hidden_and_the_first_stays(chrome: Chrome, site: str) -> None:
    page = chrome.open(f"{site}/documents", width=700)
    page.get_by_text("Columns", exact=True).click()
    page.get_by_role("checkbox", name="text_bytes").uncheck()
    page.reload()
    heads = page.locator(".data thead th").locator("visible=true").all_inner_texts()
    names = [text.split("\n")[0] for text in heads]
    assert names[:5] == ["document", "begins", "tokens", "source", "id"] and "text_bytes" not in names
    page.locator(".data").evaluate("one => { one.scrollLeft = 500 }")
    first = page.locator(".data tbody th").first.bounding_box()
    assert first is not None and 0 <= first["x"] < 100


def test_a_long_paste_is_cut_and_the_page_says_so(chrome: Chrome, site: str) -> None:
    page = chrome.open(f"{site}/compare/tokenizers")
    area = page.get_by_role("textbox", name="Text, at most 8,000 characters")
    area.fill("x" * 30_000)
    assert page.get_by_text("first 8,000 of 30,000 characters").is_visible()
    assert len(area.input_value()) == 8000
    area.fill("short")
    assert not page.locator(".note.cut").is_visible()


def test_a_phone_has_one_line_of_header_and_whole_hits(chrome: Chrome, site: str) -> None:
    page = chrome.open(f"{site}/search?q=import+sys", width=400, height=860)
    header, menu = page.locator("header.top"), page.get_by_role("button", name="Menu")
    box = header.bounding_box()
    assert box is not None and box["height"] < 70
    for cell in page.locator("main tbody tr").first.locator("th, td").all():
        inside = cell.bounding_box()
        assert inside is not None and inside["x"] + inside["width"] <= 400
    assert menu.get_attribute("aria-expanded") == "false"
    menu.click()
    assert menu.get_attribute("aria-expanded") == "true"
    go(page, "Rows")
    page.goto(f"{site}/document/3")
    first = page.locator(".tokens").first.bounding_box()
    assert first is not None and first["y"] < 430, "the text is on the first screen"


def test_the_text_comes_first(chrome: Chrome, site: str) -> None:
    for path in ("/document/3", "/row/2?seq_len=512"):
        first = chrome.open(site + path, width=1280).locator(".tokens").first.bounding_box()
        assert first is not None and first["y"] < 400


def test_the_switch_leads_to_another_store(chrome: Chrome, site: str, other: Store) -> None:
    page = chrome.open(f"{site}/documents")
    form = page.get_by_role("form", name="Store")
    with page.expect_event("load"):
        form.get_by_label("Store").select_option(index=1)
    assert page.url.endswith("/documents?store=1")
    assert f"{len(other.documents):,} documents" in page.locator(".summary").inner_text()
    with page.expect_event("load"):
        form.get_by_label("Store").select_option(label="run.toml")
    assert page.url.endswith("/run?run=0") and not form.get_by_role("button").is_visible()
    assert form.get_by_label("Store").evaluate("one => one.selectedOptions[0].text") == "run.toml"


def test_errors_lead_onward(chrome: Chrome, site: str, store: Store) -> None:
    page = chrome.open(f"{site}/document/99999999")
    follow(page, page.get_by_role("link", name="last document"))
    assert number_in(page.locator("h1").inner_text()) == len(store.documents) - 1
    page.goto(f"{site}/documents?store=9")
    ways = page.get_by_role("navigation", name="Ways on").get_by_role("link")
    assert ways.count() >= 5


def test_the_card_fits_a_narrow_window(chrome: Chrome, site: str) -> None:
    page = chrome.open(f"{site}/document/3", width=400, height=700)
    for place in range(0, 40, 5):
        page.locator(".tokens .t").nth(place).hover()
        card_of(page)
        assert fits(page) == ""


def test_rows_and_batches(chrome: Chrome, site: str, store: Store) -> None:
    page = chrome.open(site)
    go(page, "Rows")
    form = page.get_by_role("form", name="Which rows")
    form.get_by_label("Tokens per row").fill("256")
    form.get_by_label("Packing").select_option("pad")
    follow(page, form.get_by_role("button"))
    rows = store.rows(seq_len=256, packing="pad", split="train")
    assert f"{len(rows):,} rows of 256 tokens, pad" in page.locator(".summary").inner_text()
    follow(page, page.locator("main tbody th a").nth(2))
    assert number_in(page.locator("h1").inner_text()) == 2
    padding = int((rows[2].segment_ids < 0).sum())
    assert (f"padding, {padding:,} token" in page.locator("main").inner_text()) == (padding > 0)
    go(page, "Batch")
    form = page.get_by_role("form", name="Which batch")
    for label, value in (
        ("Step", "2"),
        ("Rows per batch", "4"),
        ("Seed", "5"),
        ("Ranks", "2"),
        ("Rank", "1"),
        ("Tokens per row", "256"),
    ):
        form.get_by_label(label, exact=True).fill(value)
    follow(page, form.get_by_role("button"))
    assert page.locator("h1").inner_text() == "Batch of step 2, rank 1"
    shown = [
        number_in(text.split("row ")[-1]) for text in page.locator(".strip figcaption").all_inner_texts()
    ]
    assert shown == expected_rows(store, step=2)[2:]
    follow(page, page.get_by_role("link", name="next step"))
    assert page.locator("h1").inner_text() == "Batch of step 3, rank 1"


def expected_rows(store: Store, step: int) -> list[int]:
    import packline

    rows = store.rows(seq_len=256, packing="concat", split="train")
    loader = packline.Loader(rows, batch_size=4, seed=5, world_size=2, prefetch=0)
    return [int(row) for row in loader.rows_of_step(step).rows]


def test_a_jump_keeps_the_settings(chrome: Chrome, site: str) -> None:
    page = chrome.open(f"{site}/rows?seq_len=256")
    form = page.get_by_role("search", name="Jump")
    form.get_by_label("Go to").select_option("row")
    form.get_by_label("its number").fill("4")
    follow(page, form.get_by_role("button"))
    assert page.locator("h1").inner_text() == "Row 4" and "seq_len=256" in page.url


def test_search_finds_text_and_leads_there(chrome: Chrome, site: str, store: Store) -> None:
    page = chrome.open(site)
    go(page, "Search")
    form = page.get_by_role("form", name="Search")
    form.get_by_label("Search for").fill("raise ValueError")
    follow(page, form.get_by_role("button"))
    found = page.locator("main tbody tr")
    assert found.count() >= 5
    for line in found.all()[:5]:
        document = number_in(line.locator("th").inner_text())
        assert "raise ValueError" in store.tokenizer.decode(store.documents[document].tolist())
    follow(page, found.first.locator("th a"))
    assert "raise ValueError" in page.locator(".tokens").first.inner_text()
    assert page.locator("#at").evaluate("one => one.getBoundingClientRect().top < innerHeight")
    marked = page.locator(".tokens .t.h")
    assert "raise ValueError" in "".join(marked.all_inner_texts()).replace("·", " ")
    page.keyboard.press("n")
    card_of(page)
    assert page.locator(".tokens .t.now.h").count() == 1


def test_search_finds_nothing_and_says_so(chrome: Chrome, site: str) -> None:
    """By itself, until the end of the store."""
    page = chrome.open(f"{site}/search?q=qzxqzxqzx+no+such+words")
    page.get_by_text("searched to its end").wait_for()
    assert "Nothing was found" in page.locator("main").inner_text()


def test_tokenizers_side_by_side(chrome: Chrome, site: str, store: Store, other: Store) -> None:
    page = chrome.open(site)
    go(page, "Tokenizers")
    text = "def naïve(x):\n\treturn x + 1  # 漢字"
    page.get_by_role("textbox").last.fill(text)
    follow(page, page.locator("main form button"))
    strips = page.locator(".strip")
    assert strips.count() == 2
    for strip, one in zip(strips.all(), (store, other), strict=True):
        ids = one.tokenizer.encode(text, add_special_tokens=False).ids
        cells = strip.locator(".tokens .t").evaluate_all("all => all.map(one => one.dataset.ids).join(' ')")
        assert cells == " ".join(map(str, ids))
    left, right = (strip.bounding_box() for strip in strips.all())
    assert left and right and abs(left["y"] - right["y"]) < 2 and right["x"] >= left["x"] + left["width"]
    assert page.get_by_role("textbox").last.input_value() == text


def test_tokenizers_live(chrome: Chrome, site: str, store: Store) -> None:
    page = chrome.open(f"{site}/compare/tokenizers")
    assert page.locator(".strip").count() == 0
    area = page.get_by_role("textbox", name="Text, at most 8,000 characters")
    area.press_sequentially("import 漢字", delay=5)
    page.locator(".strip").nth(1).wait_for()
    ids = store.tokenizer.encode("import 漢字", add_special_tokens=False).ids
    cells = page.locator(".strip").first.locator(".tokens .t")
    shown = "all => all.map(one => one.dataset.ids).join(' ')"
    until(page, lambda: cells.evaluate_all(shown) == " ".join(map(str, ids)))
    until(page, lambda: "text=import" in page.url)
    assert area.input_value() == "import 漢字"
    assert page.evaluate("document.activeElement.tagName") == "TEXTAREA"
    page.locator("details.copy summary").first.click()
    assert page.locator("details.copy pre").first.inner_text() == " ".join(map(str, ids))
    assert page.locator("[data-copy]").first.is_visible()
    page.get_by_role("checkbox").nth(1).uncheck()
    until(page, lambda: page.locator(".strip").count() == 1)
    follow(page, page.get_by_role("link", name="Hindi"))
    assert page.locator(".strip").count() >= 1


def test_a_conversation_in_the_format_of_a_tokenizer(chrome: Chrome, site: str) -> None:
    page = chrome.open(f"{site}/compare/tokenizers")
    follow(page, page.get_by_role("link", name="conversation"))
    assert page.get_by_label("Names of control tokens").input_value() == "control"
    assert "assistant" in page.get_by_role("textbox", name="Text, at most 8,000 characters").input_value()


def test_copied_tokens_are_the_text(chrome: Chrome, site: str) -> None:
    page = chrome.open(f"{site}/compare/tokenizers?text=a%20%20%20%09b%0Ac&t0=1&t1=0")
    copied = page.evaluate(
        """() => {
            getSelection().selectAllChildren(document.querySelector(".tokens"));
            const data = new DataTransfer();
            document.dispatchEvent(new ClipboardEvent("copy", {clipboardData: data, cancelable: true}));
            return data.getData("text/plain");
        }"""
    )
    assert copied == "a   \tb\nc"


def test_without_a_script_all_of_it_works(chrome: Chrome, site: str) -> None:
    page = chrome.open(site, script=False, strict=False)
    for entry in ("Documents", "Rows", "Batch", "Search", "Tokenizers"):
        go(page, entry)
        assert page.locator("h1").count() == 1
    form = page.get_by_role("search", name="Jump")
    form.get_by_label("its number").fill("12")
    follow(page, form.get_by_role("button"))
    assert page.locator("h1").inner_text() == "Document 12"


def test_nothing_is_asked_of_another_host(chrome: Chrome, site: str) -> None:
    """By escaping alone; with the policy every test of a page shows it."""
    page = chrome.open(policy=False)
    for path in PAGES:
        page.goto(site + path)
    asked = chrome.watch_of(page).asked
    assert len(asked) >= len(PAGES)
    assert [url for url in asked if not url.startswith(f"{site}/")] == []
