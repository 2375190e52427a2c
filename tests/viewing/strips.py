"""What the tests of drawing share: hostile texts, vocabularies made of any bytes, strips of them."""

from __future__ import annotations

import itertools
import re
import unicodedata
from typing import Literal, get_args, get_type_hints

import numpy as np
from hypothesis import strategies as st

from packline.viewing.page import (
    Bar,
    ColumnHead,
    CopyText,
    DocumentOrigin,
    Form,
    FormField,
    Heading,
    KeyValues,
    Link,
    Links,
    Note,
    Page,
    Panel,
    Table,
    Timeline,
    TokenStrip,
)
from packline.viewing.tokens import Vocabulary, cells_of

HOSTILE = (
    "<script>window.hacked = 1</script>",
    "\"><img src=x onerror='alert(1)'>",
    "</style></p></textarea><h1>",
    "javascript:alert(1)",
    "\u202egnp.exe\u2066\u200f",
    "\x1b[2J\x1b]0;title\x07\x9b31m\x00\r\x08\x7f",
    "Z" + "\u0351\u036b\u0353" * 40,
    "\u0301 begins with a mark",
    "w" * 300,
    "\u2028\u2029\x85\ufeff\u00ad\U000e0041",
    "&lt;b&gt; &amp;amp;",
)
ACTING = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff]")
any_text = st.one_of(st.text(st.characters(codec="utf-8"), max_size=40), st.sampled_from(HOSTILE))


def acts(text: str) -> bool:
    """Whether anything in it does more than stand there; line ends, which the renderer makes, aside."""
    categories = {unicodedata.category(one) for one in text if one not in "\n\u200c\u200d"}
    return bool(ACTING.search(text)) or bool(categories & {"Cc", "Cf", "Cs", "Zl", "Zp"})


@st.composite
def cut_texts(draw: st.DrawFn) -> tuple[bytes, Vocabulary, np.ndarray]:
    """A text's bytes cut anywhere, characters included: its bytes, a vocabulary, and its ids."""
    data = "".join(draw(st.lists(any_text, min_size=1, max_size=4))).encode()
    cuts = sorted(draw(st.sets(st.integers(0, len(data)), max_size=30)) | {0, len(data)})
    pieces = [data[start:stop] for start, stop in itertools.pairwise(cuts)]
    return data, Vocabulary("cut", pieces, {}), np.arange(len(pieces))


@st.composite
def byte_strips(draw: st.DrawFn) -> tuple[Vocabulary, np.ndarray, np.ndarray]:
    """Tokens of any bytes at all with special ones between: vocabulary, ids, segments with padding."""
    data = draw(st.lists(st.one_of(st.binary(min_size=1, max_size=4), any_text.map(str.encode)), min_size=1))
    data = [one or b"." for one in data]
    vocabulary = Vocabulary("bytes", [*data, b""], {len(data): draw(any_text)})
    ids = np.array(draw(st.lists(st.integers(0, len(data)), max_size=40)), np.int32)
    steps = np.array(draw(st.lists(st.integers(0, 1), min_size=len(ids), max_size=len(ids))), np.int32)
    segments = np.cumsum(steps)
    segments[len(ids) - draw(st.integers(0, len(ids))) :] = -1
    return vocabulary, ids, segments


def a_page(text: str, strip: TokenStrip) -> Page:
    """Every block there is, with a text wherever a text may stand."""
    row = (text, Link(text, text))
    kinds: tuple[Literal["text", "number", "area", "choice", "hidden", "range", "check"], ...] = get_args(
        get_type_hints(FormField)["kind"]
    )
    fields = tuple(FormField(kind + text, text, text, kind, ((text, text),)) for kind in kinds)
    head = ColumnHead(text, text, "ascending", (1.0, 0.5), text, (Link(text, text),))
    return Page(
        text,
        (
            Heading(text),
            Note(text, "warning"),
            KeyValues(((text, text), (text, Link(text, "/x?" + text)))),
            Table(text, (text, text), (row, row), "lr"),
            Table(text, (), ((text, Bar(text, 1.0, "bad")), (text, Bar(text, 0.0))), "lr"),
            Panel("live", ((Note(text),),)),
            CopyText(text, text),
            Timeline(text, ((text, 0.5, True), (text, 0.5, False)), 0.25),
            Table(text, (head,), ((text,),), "l", form="data"),
            Table(text, (text, text, text), ((text, Bar(text, 1.0), Bar(text, 0.0)),), "lrr"),
            strip,
            Links(text, (Link(text, text), text)),
            Form(text, text, fields, text),
            Panel("facts", ((KeyValues(((text, text),)),), (Note(text),))),
            Panel("beside", ((Heading(text), Note(text)), (strip, Table(text, (text,), ((text,),), "l")))),
        ),
        warnings=(text, text),
        summary=text,
    )


def a_strip(vocabulary: Vocabulary, ids: np.ndarray, segments: np.ndarray, text: str) -> TokenStrip:
    cells = cells_of(vocabulary, ids, segment_ids=segments)
    numbers = sorted({cell.segment for cell in cells} - {-1})
    return TokenStrip(
        text, cells, tuple(DocumentOrigin(number, number, text, text) for number in numbers), more=3
    )
