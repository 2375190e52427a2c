"""An analysis as a page: warnings first, then the contents.

The terminal and the report show the same blocks. Counting is done by `analysis`.
"""

from __future__ import annotations

from packline.viewing.analysis import FEW, MANY, Analysis, Suspicious, TokenCount
from packline.viewing.page import Block, Facts, Heading, Histogram, Note, Page, Table
from packline.viewing.text import percent, plural, size


def analysis_page(analysis: Analysis) -> Page:
    """Page of a whole analysis."""
    blocks: list[Block] = [overview(analysis)]
    if not analysis.documents:
        return Page(f"Analysis of {analysis.path}", (*blocks, Note("There is no document in it.", "warning")))
    blocks += [groups_table(analysis), lengths_histogram(analysis)]
    blocks += [block for block in (prices_table(analysis),) if block is not None]
    blocks += [*token_tables(analysis), Heading("Documents that look wrong"), *suspicious_blocks(analysis)]
    blocks += [Heading("Duplicated documents"), *duplicate_blocks(analysis)]
    return Page(f"Analysis of {analysis.path}", tuple(blocks), warnings=warnings_of(analysis))


def warnings_of(analysis: Analysis) -> tuple[str, ...]:
    """Findings to check before training, one line each."""
    found = []
    twice = analysis.duplicates
    if twice.across_splits:
        what = plural(twice.across_splits, "text")
        found.append(f"{what} in several splits: what is validated on was trained on")
    if twice.documents and twice.documents >= 0.01 * analysis.documents:
        found.append(
            f"{percent(twice.documents / analysis.documents)} of the documents are there more than once"
        )
    for one in analysis.suspicious:
        if one.count and one.count >= 0.01 * analysis.documents:
            found.append(
                f"{one.reason}: {percent(one.count / analysis.documents)} of the documents ({one.rule})"
            )
    for token in analysis.special:
        if count := token.count - analysis.boundary.get(token.id, 0):
            found.append(f"the special token {token.text} stands {plural(count, 'time')} inside documents")
    return tuple(found)


def overview(analysis: Analysis) -> Facts:
    """Totals: documents, tokens, bytes of text."""
    lengths, never = analysis.lengths, analysis.never_used
    return Facts(
        (
            ("documents", f"{analysis.documents:,}"),
            ("tokens", f"{analysis.tokens:,}, of text {analysis.text_tokens:,}"),
            ("text", size(analysis.text_bytes)),
            ("bytes a token", f"{analysis.bytes_per_token:.2f}"),
            ("tokenizer", f"{analysis.tokenizer}, {analysis.vocab_size:,} tokens"),
            (
                "never used",
                f"{plural(never, 'token')}, {percent(never / analysis.vocab_size)} of the vocabulary",
            ),
            (
                "tokens a document",
                f"{lengths.shortest:,} to {lengths.longest:,}, median {lengths.median:,}, "
                f"mean {lengths.mean:,.0f}, 99% have at most {lengths.p99:,}",
            ),
        )
    )


def groups_table(analysis: Analysis) -> Table:
    """Table of totals by split, source and label."""
    labels = any(group.label is not None for group in analysis.groups)
    rows = tuple(
        (
            group.split,
            group.source,
            *([group.label or ""] if labels else []),
            f"{group.documents:,}",
            f"{group.tokens:,}",
            percent(group.tokens / max(analysis.tokens, 1)),
            f"{group.text_bytes / max(group.tokens, 1):.2f}",
        )
        for group in analysis.groups
    )
    head = (
        "split",
        "source",
        *(["label"] if labels else []),
        "documents",
        "tokens",
        "share",
        "bytes a token",
    )
    return Table("By source", head, rows, "lllrrrr" if labels else "llrrrr")


def lengths_histogram(analysis: Analysis) -> Histogram:
    """Histogram of tokens per document by powers of two, from the first class that is not empty."""
    counts = analysis.lengths.histogram
    first = next((place for place, count in enumerate(counts) if count), 0)
    labels = [
        f"{2**power:,}" if not power else f"{2**power:,} to {2 ** (power + 1) - 1:,}"
        for power in range(len(counts))
    ]
    place = max(analysis.lengths.median, 1).bit_length() - 1 - first
    marks = (("median", place),) if 0 <= place < len(counts) - first else ()
    return Histogram("Tokens a document", tuple(labels[first:]), tuple(counts[first:]), "documents", marks)


def prices_table(analysis: Analysis) -> Table | None:
    """Table of the costs of packings; None without row lengths."""
    if not analysis.prices:
        return None
    rows = tuple(
        (
            f"{price.seq_len:,}",
            price.name,
            f"{price.counts.rows:,}",
            f"{price.counts.padding_tokens:,}",
            percent(price.padding),
            percent(price.lost),
            percent(price.split),
        )
        for price in analysis.prices
    )
    head = ("seq_len", "packing", "rows", "padding", "of rows", "tokens lost", "documents split")
    return Table("Padding", head, rows, "rlrrrrr")


def token_tables(analysis: Analysis) -> list[Block]:
    """Tables of special tokens, the most used tokens, and some that are never used."""
    blocks: list[Block] = []
    if analysis.special:
        rows = tuple(
            (f"{one.id:,}", one.text, f"{one.count:,}", f"{one.count - analysis.boundary.get(one.id, 0):,}")
            for one in analysis.special
        )
        head = ("id", "special token", "times", "inside documents")
        blocks.append(Table("Special tokens", head, rows, "rlrr"))
    rows = tuple(
        (f"{one.id:,}", quoted(one), f"{one.count:,}", percent(one.count / max(analysis.text_tokens, 1)))
        for one in analysis.most_used
    )
    blocks.append(Table("Most used tokens", ("id", "token", "times", "share"), rows, "rlrr"))
    if analysis.never_used:
        some = " ".join(quoted(one) for one in analysis.never_used_first)
        more = " …" if analysis.never_used > len(analysis.never_used_first) else ""
        blocks.append(Note(f"Never used: {plural(analysis.never_used, 'token')}, as {some}{more}"))
    return blocks


def quoted(token: TokenCount) -> str:
    """Text of a token with visible white space.

    >>> quoted(TokenCount(262, " the", 3))
    '␣the'
    """
    return token.text.replace(" ", "␣")


def suspicious_blocks(analysis: Analysis) -> list[Block]:
    """Number of suspicious documents of each kind, and the worst of them."""
    rows = tuple((one.reason, f"{one.count:,}", one.rule) for one in analysis.suspicious)
    blocks: list[Block] = [Table("How many", ("what", "documents", "rule"), rows, "lrl")]
    for kind in analysis.suspicious:
        if kind.documents:
            found = tuple(
                (f"{one.document:,}", value_of(kind, one.value), analysis.places.get(one.document, ""))
                for one in kind.documents
            )
            caption = kind.reason.capitalize()
            blocks.append(Table(caption, ("document", "value", "where it is from"), found, "rrl"))
    return blocks


def value_of(kind: Suspicious, value: float) -> str:
    """Severity of a suspicious document, in the unit of its kind."""
    if kind.reason in (FEW, MANY):
        return f"{value:.2f} bytes a token"
    return plural(int(value), "token") if kind.reason == "long run" else percent(value)


def duplicate_blocks(analysis: Analysis) -> list[Block]:
    """Amount of duplicates, and the groups that take the most space."""
    found = analysis.duplicates
    if not found.groups:
        return [Note("No two documents have the same tokens.", "good")]
    share = percent(found.tokens / max(analysis.tokens, 1))
    said = (
        f"{plural(found.groups, 'text')} more than once: {plural(found.documents, 'document')} beyond the "
        f"first of each, {plural(found.tokens, 'token')}, {share} of all."
    )
    rows = tuple(
        (
            f"{group.copies:,}",
            f"{group.tokens:,}",
            ", ".join(f"{one:,}" for one in group.documents)
            + (" …" if group.copies > len(group.documents) else ""),
            analysis.places.get(group.documents[0], ""),
        )
        for group in found.largest
    )
    head = ("copies", "tokens each", "documents", "where the first is from")
    return [Note(said), Table("What takes the most room", head, rows, "rrll")]
