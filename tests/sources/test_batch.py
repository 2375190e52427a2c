"""Texts: what the buffers say is what the strings say."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from packline.sources.batch import Texts
from packline.sources.files import InputFile
from packline.sources.parquet import arrow_batch

FILE = InputFile(0, 0, "a.parquet", "a.parquet", 0, "", "parquet", "", "text")
some_texts = st.lists(st.text(max_size=12), max_size=8)


def agree(texts: Texts, strings: list[str]) -> None:
    encoded = [text.encode() for text in strings]
    assert len(texts) == len(strings)
    assert list(texts) == texts.to_list() == strings == [texts[place] for place in range(len(strings))]
    assert texts.raw() == encoded and texts.data.tobytes() == b"".join(encoded)
    assert texts.sizes.tolist() == [len(one) for one in encoded]
    assert texts.offsets.tolist() == [sum(map(len, encoded[:n])) for n in range(len(encoded) + 1)]
    assert texts.characters().tolist() == [len(text) for text in strings]


@given(strings=some_texts, data=st.data())
def test_views_slices_and_choices_say_what_the_strings_say(strings: list[str], data: st.DataObject) -> None:
    texts = Texts.of(strings)
    agree(texts, strings)
    agree(Texts(texts.array), strings)
    start = data.draw(st.integers(0, len(strings)))
    stop = data.draw(st.integers(start, len(strings)))
    agree(Texts(texts.array[start:stop]), strings[start:stop])
    places = data.draw(st.lists(st.integers(0, len(strings) - 1))) if strings else []
    for whole in (texts, Texts(texts.array)):
        agree(whole.take(np.array(places, np.int64)), [strings[place] for place in places])


@given(st.text())
def test_one_text_out_of_its_bytes(text: str) -> None:
    agree(Texts.one(text.encode()), [text])


@given(st.lists(st.binary(max_size=6) | st.text(max_size=3).map(str.encode) | st.none(), max_size=6))
def test_what_is_no_utf_8_is_told_apart_as_python_does(values: list[bytes | None]) -> None:
    binary = pa.array(values, pa.large_binary())
    column = pa.Array.from_buffers(pa.large_string(), len(values), binary.buffers())
    batch = arrow_batch(FILE, column, None, [], 10, 1 << 20)
    good: list[tuple[int, str]] = []
    bad: dict[int, tuple[str, bytes]] = {}
    for row, value in enumerate(values, 10):
        if value is None:
            bad[row] = ("not_a_string", b"null")
            continue
        try:
            good.append((row, value.decode("utf-8")))
        except UnicodeDecodeError:
            bad[row] = ("invalid_utf8", value)
    assert list(zip(batch.positions.tolist(), batch.texts, strict=True)) == good
    assert {one.position: (one.reason, one.raw) for one in batch.rejects} == bad
