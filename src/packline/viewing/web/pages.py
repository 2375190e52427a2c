"""Pages about a store and its documents: overview, sources, a list of documents, one document.

Each function turns a `View` into a `Page`, in time that does not depend on the number of documents: totals
are sums over shards, and documents are found by searching in shards.
"""

from __future__ import annotations

import numpy as np

from packline.packing.documents import Selection
from packline.packing.packer import DocumentFilter
from packline.store.lookup import document_number
from packline.store.shard import Provenance
from packline.viewing.page import (
    Block,
    Facts,
    Field,
    Form,
    Heading,
    Histogram,
    Link,
    Links,
    Note,
    Page,
    Table,
    Value,
)
from packline.viewing.pages import document_facts
from packline.viewing.strips import describe_origin, document_strip
from packline.viewing.text import plural, size, whole_characters
from packline.viewing.vocabulary import Vocabulary
from packline.viewing.web.params import choice, number
from packline.viewing.web.site import View

A_PAGE = 25
BEGINNING = 24
"""Tokens shown of each document in a list."""
SHOWN_CHARACTERS = 60
TOKENS_A_PAGE = 1024
"""Tokens of a document on one page."""
ALL = "all"
Group = tuple[str, str, str | None]


def overview(view: View) -> Page:
    """Overview page of the store."""
    store, manifest = view.store, view.store.manifest
    entry, ledger = manifest.tokenizer, manifest.ledger
    rate = f"{ledger.text_bytes / ledger.text_tokens:.2f}" if ledger.text_tokens else "none"
    ends = f"{entry.eod} ({entry.eod_id})"
    facts: list[tuple[str, Value]] = [
        ("documents", Link(f"{manifest.documents:,}", view.href("/documents"))),
        ("tokens", f"{manifest.tokens:,}"),
        ("text", size(ledger.text_bytes)),
        ("bytes/token", rate),
        ("tokenizer", f"{entry.name}, {entry.vocab_size:,} tokens"),
        ("documents end", f"with {ends}"),
        ("on disk", f"{size(manifest.store_bytes)}, {manifest.dtype}"),
        ("shards", f"{len(store.shards):,}"),
        ("folder", str(store.path)),
    ]
    if entry.bos is not None:
        facts.insert(6, ("documents begin", f"with {entry.bos} ({entry.bos_id})"))
    blocks: list[Block] = [Facts(tuple(facts))]
    if not manifest.documents:
        blocks.append(Note("This store is empty: there is no document to show.", "warning"))
    else:
        blocks += [Heading("Sources"), groups_table(view), Heading("Lengths"), lengths_block(view)]
    if len(view.site.stores) > 1:
        others = [
            Link(f"{place}: {opened.name}", "/" if place == 0 else f"/?store={place}")
            for place, opened in enumerate(view.site.stores)
            if place != view.number
        ]
        compare = Link("compare them", view.href("/compare/stores"))
        blocks.append(Links("Other stores", ("Other stores:", *others, compare)))
    summary = f"{plural(manifest.documents, 'document')}, {plural(manifest.tokens, 'token')}"
    return Page(view.opened.name, tuple(blocks), tuple(warnings(view)), summary)


def warnings(view: View) -> list[str]:
    """Warnings to read first."""
    ledger = view.store.manifest.ledger
    found = []
    if ledger.bad:
        share = f"{100 * ledger.bad_fraction:.2g}%"
        found.append(f"{plural(ledger.bad, 'bad record')} ({share} of what was read) were left out.")
    if ledger.special_token_strings:
        count = plural(ledger.special_token_strings, "special-token string")
        found.append(f"{count} stood in the texts of documents.")
    return found


def groups(view: View) -> dict[Group, list[int]]:
    """Documents, tokens, shards and first document by split, source and label."""
    found: dict[Group, list[int]] = {}
    for shard, origin, first in zip(
        view.store.shards, view.opened.whence, view.store.firsts.tolist(), strict=False
    ):
        counts = found.setdefault((shard.entry.split, origin.source, origin.label), [0, 0, 0, first])
        for place, count in enumerate((shard.entry.documents, shard.entry.tokens, 1)):
            counts[place] += count
    return found


def groups_table(view: View) -> Table:
    """Table of documents and tokens by split, source and label."""
    total = view.store.manifest.tokens or 1
    rows = tuple(
        (
            Link(source, view.href("/documents", split=split, source=source)),
            label or "",
            split,
            f"{documents:,}",
            f"{tokens:,}",
            f"{100 * tokens / total:.1f}%",
            f"{tokens / documents:,.0f}" if documents else "",
        )
        for (split, source, label), (documents, tokens, _, _) in groups(view).items()
    )
    head = ("source", "label", "split", "documents", "tokens", "share", "tokens per document")
    return Table("Documents and tokens by source, label and split", head, rows, "lllrrrr")


def lengths_block(view: View) -> Block:
    """Histogram of the lengths of documents, once they are counted."""
    lengths = view.opened.lengths
    if lengths is None:
        return Note("Lengths are being counted; this page shows them when it is loaded again.")
    first = next((place for place, count in enumerate(lengths.histogram) if count), 0)
    counts = tuple(lengths.histogram[first:])
    labels = tuple(
        f"{2**power:,}" if power == 0 else f"{2**power:,} to {2 ** (power + 1) - 1:,}"
        for power in range(first, len(lengths.histogram))
    )
    marks = tuple(
        (name, value.bit_length() - 1 - first)
        for name, value in (("median", lengths.median), ("99%", lengths.p99))
        if value
    )
    caption = (
        f"Tokens a document: shortest {lengths.shortest:,}, median {lengths.median:,}, "
        f"mean {lengths.mean:,.0f}, 99% at most {lengths.p99:,}, longest {lengths.longest:,}"
    )
    return Histogram(caption, labels, counts, "documents", marks)


def sources(view: View) -> Page:
    """Page of the sources, and the files that they were read from."""
    manifest = view.store.manifest
    page = number(view.params, "page", 0)
    first, count = page * A_PAGE, len(manifest.inputs)
    rows = tuple(
        (
            Link(entry.name, view.href("/search", by="file", q=entry.name)),
            entry.format,
            entry.compression or "none",
            f"{entry.bytes:,}",
        )
        for entry in manifest.inputs[first : first + A_PAGE]
    )
    blocks: list[Block] = [groups_table(view), Heading("Files")]
    if rows:
        caption = f"Files {first:,} to {first + len(rows) - 1:,} of {count:,}, as they were read"
        blocks.append(Table(caption, ("file", "format", "compression", "bytes"), rows, "lllr"))
    else:
        blocks.append(Note("There is no file on this page."))
    blocks += steps(view, "/sources", page, count, {})
    summary = f"{plural(len(manifest.sources), 'source')}, {plural(count, 'file')}"
    return Page("Sources", tuple(blocks), summary=summary)


def documents(view: View) -> Page:
    """Page of a list of documents: all, or those of a split and a source."""
    params = view.params
    split = choice(params, "split", (ALL, *view.opened.splits), ALL)
    known = tuple(dict.fromkeys(origin.source for origin in view.opened.whence))
    source = choice(params, "source", (ALL, *known), ALL)
    form = Form(
        "Which documents",
        "/documents",
        (
            Field("source", "Source", source, "choice", tuple((one, one) for one in (ALL, *known))),
            Field("split", "Split", split, "choice", tuple((one, one) for one in (ALL, *view.opened.splits))),
            Field("page", "Page", "0", "hidden"),
            *store_field(view),
        ),
    )
    if not len(view.store.documents):
        return Page("Documents", (Note("This store is empty: there is no document to show.", "warning"),))
    selection = Selection(view.store, DocumentFilter(split=split, sources=None if source == ALL else source))
    count = len(selection)
    page = number(params, "page", 0, most=(count - 1) // A_PAGE)
    numbers = selection.documents(
        np.arange(page * A_PAGE, min((page + 1) * A_PAGE, count), dtype=np.int64)
    ).tolist()
    chosen = {"source": "" if source == ALL else source, "split": "" if split == ALL else split}
    found = view.opened.origins.of(numbers)
    rows = tuple(_listed(view, one, found.get(one)) for one in numbers)
    head = ("document", "begins", "tokens", "bytes", "source")
    first = page * A_PAGE
    caption = f"{first:,} to {first + len(rows) - 1:,} of {plural(count, 'document')}"
    blocks: tuple[Block, ...] = (
        form,
        Table(caption, head, rows, "llrrl"),
        *steps(view, "/documents", page, count, chosen),
    )
    return Page("Documents", blocks, summary=f"{count:,} of {plural(len(view.store.documents), 'document')}")


def _listed(view: View, document: int, provenance: Provenance | None) -> tuple[Value, ...]:
    tokens = view.store.documents[document]
    return (
        Link(f"{document:,}", view.document(document)),
        beginning(view.vocabulary, tokens),
        f"{len(tokens):,}",
        f"{provenance.text_bytes:,}" if provenance else "",
        provenance.source if provenance else "",
    )


def beginning(vocabulary: Vocabulary, tokens: np.ndarray) -> str:
    """Beginning of a document, in one line."""
    ids = [one for one in tokens[:BEGINNING].tolist() if one not in vocabulary.special]
    cut = len(tokens) > BEGINNING
    text = " ".join(whole_characters(plain_bytes(vocabulary, ids), first=False, last=cut).split())
    more = cut or len(text) > SHOWN_CHARACTERS
    return text[:SHOWN_CHARACTERS] + ("…" if more else "")


def plain_text(vocabulary: Vocabulary, ids: list[int]) -> str:
    """Tokens as text, special ones by name, with bytes that are not UTF-8 as `\\xNN`."""
    return plain_bytes(vocabulary, ids).decode("utf-8", "backslashreplace")


def plain_bytes(vocabulary: Vocabulary, ids: list[int]) -> bytes:
    """Tokens as bytes, special ones by name."""
    parts: list[bytes] = []
    for one in ids:
        known = one < len(vocabulary)
        parts.append(vocabulary.special[one].encode() if one in vocabulary.special else b"")
        parts.append(vocabulary.data[one] if known else f"id {one}".encode())
    return b"".join(parts)


def document(view: View, wanted: int) -> Page:
    """Page of one document: its origin, and one range of its tokens.

    Raises:
        StoreError: the document does not exist.
    """
    store = view.store
    wanted = document_number(store, wanted)
    count = len(store.documents[wanted])
    first = number(view.params, "first", 0, most=count - 1, what="first token")
    provenance = view.opened.origins.of([wanted])[wanted]
    strip = document_strip(store, wanted, first=first, most=TOKENS_A_PAGE, provenance=provenance)
    facts: list[tuple[str, Value]] = [*document_facts(provenance)]
    seq_len = default_seq_len(view, provenance.split)
    if seq_len is not None:
        found = view.opened.rows(seq_len, "concat", provenance.split).rows_of(wanted)
        if len(found):
            row = int(found[0])
            href = view.href(f"/row/{row}", seq_len=seq_len, split=split_of(provenance.split))
            facts.append(("in row", Link(f"{row:,}, rows of {seq_len:,} tokens", href)))
    neighbors = (
        _numbered(view, "‹ document", wanted - 1),
        _numbered(view, "document", wanted + 1, " ›"),
    )
    blocks: list[Block] = [Links("Neighbors", neighbors), Facts(tuple(facts)), strip]
    if count > TOKENS_A_PAGE or first:
        path = f"/document/{wanted}"
        before, after = max(first - TOKENS_A_PAGE, 0), first + TOKENS_A_PAGE
        ways: tuple[Value, ...] = (
            Link("‹ tokens before", view.href(path, first=before or None)) if first else "first tokens",
            f"tokens {first:,} to {min(after, count) - 1:,} of {count:,}",
            Link("tokens after ›", view.href(path, first=after)) if after < count else "last tokens",
        )
        blocks.append(Links("Parts of the document", ways))
    compare = view.href("/compare/tokenizers", document=wanted)
    blocks.append(Links("More", (Link("compare with another tokenizer", compare),)))
    summary = (
        f"{plural(count, 'token')}, {size(provenance.text_bytes)} of text, {describe_origin(provenance)}"
    )
    return Page(f"Document {wanted:,}", tuple(blocks), summary=summary)


def _numbered(view: View, word: str, document: int, end: str = "") -> Value:
    if 0 <= document < len(view.store.documents):
        return Link(f"{word} {document:,}{end}", view.document(document))
    return "first document" if document < 0 else "last document"


def default_seq_len(view: View, split: str) -> int | None:
    """Row length if the address has none; None for a split that is too small for rows."""
    shards = (shard.entry for shard in view.store.shards)
    tokens = sum(shard.tokens for shard in shards if split in (ALL, shard.split))
    return min(2048, tokens) if tokens >= 2 else None


def split_of(split: str) -> str | None:
    """Parameter for a split in an address; None for the default split."""
    return None if split == "train" else split


def store_field(view: View) -> tuple[Field, ...]:
    """Hidden field that keeps the store in a form."""
    return (Field("store", "store", str(view.number), "hidden"),) if view.number else ()


def steps(view: View, path: str, page: int, count: int, params: dict[str, str]) -> tuple[Links, ...]:
    """Links to the neighbouring pages of a list; none if there is only one page."""
    last = max((count - 1) // A_PAGE, 0)
    if last == 0 and page == 0:
        return ()

    def to(text: str, target: int, there: bool) -> Value:
        return Link(text, view.href(path, page=target or None, **params)) if there else text

    pages = Links(
        "Pages",
        (
            to("« first", 0, page > 0),
            to("‹ before", page - 1, page > 0),
            f"page {page:,} of {last:,}",
            to("next ›", page + 1, page < last),
            to("last »", last, page < last),
        ),
    )
    return (pages,)
