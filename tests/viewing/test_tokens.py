"""Cells: every token in one, every byte kept, characters whole where they can be."""

from __future__ import annotations

import unicodedata
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tests.viewing.strips import acts, byte_strips, cut_texts

from packline.encoders.tokenizer import load_tokenizer
from packline.errors import TokenizerError
from packline.viewing.page import Cell
from packline.viewing.text import MARKS_MOST
from packline.viewing.tokens import Vocabulary, cells_of, learned_of, visible_pieces


def is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def cell_of(data: bytes) -> Cell:
    return Cell(data.decode("utf-8", "backslashreplace"), (0,), data, 0)


@given(cut_texts())
def test_a_text_cut_anywhere_comes_back_in_the_fewest_tokens_a_cell(
    cut: tuple[bytes, Vocabulary, np.ndarray],
) -> None:
    data, vocabulary, ids = cut
    cells = cells_of(vocabulary, ids)
    assert b"".join(cell.data for cell in cells) == data
    assert "".join(cell.text for cell in cells) == data.decode()
    assert [one for cell in cells for one in cell.ids] == ids.tolist()
    for cell in cells:
        parts = [vocabulary.data[one] for one in cell.ids]
        assert not any(is_text(b"".join(parts[:count])) for count in range(1, len(parts)))


@given(byte_strips())
def test_any_bytes_at_all_keep_every_token_and_every_byte(
    strip: tuple[Vocabulary, np.ndarray, np.ndarray],
) -> None:
    vocabulary, ids, segments = strip
    cells = cells_of(vocabulary, ids, segment_ids=segments)
    assert [one for cell in cells for one in cell.ids] == ids.tolist()
    place = 0
    for cell in cells:
        held = range(place, place + len(cell.ids))
        assert {int(segments[one]) for one in held} == {cell.segment}
        assert cell.position == place
        assert cell.padding == (cell.segment < 0)
        assert cell.starts == (not cell.padding and (place == 0 or segments[place - 1] != segments[place]))
        if not cell.padding:
            assert cell.data == b"".join(vocabulary.data[one] for one in cell.ids)
            assert cell.special == (cell.ids[0] in vocabulary.special)
        if cell.special or cell.padding:
            assert len(cell.ids) == 1
        else:
            assert cell.text == cell.data.decode("utf-8", "backslashreplace")
        place += len(cell.ids)
    assert place == len(ids)


@given(cut_texts(), cut_texts())
def test_a_broken_byte_costs_its_neighbours_nothing(
    before: tuple[bytes, Vocabulary, np.ndarray], after: tuple[bytes, Vocabulary, np.ndarray]
) -> None:
    pieces = [*before[1].data, b"\xff", b"\xe6\xbc", *after[1].data]
    cells = cells_of(Vocabulary("broken", pieces, {}), np.arange(len(pieces)))
    texts = "".join(cell.text for cell in cells)
    assert texts == before[0].decode() + "\\xff\\xe6\\xbc" + after[0].decode()
    place = len(before[1].data)
    assert [cell.text for cell in cells if cell.ids == (place,)] == ["\\xff"]
    assert [cell.text for cell in cells if cell.ids == (place + 1,)] == ["\\xe6\\xbc"]


def test_characters_do_not_reach_over_the_edge_of_a_document_or_a_special_token() -> None:
    vocabulary = Vocabulary("halves", [b"\xe6\xbc", b"\xa2", b""], {2: "</s>"})
    assert [cell.text for cell in cells_of(vocabulary, np.array([0, 1]))] == ["漢"]
    edges = cells_of(vocabulary, np.array([0, 1]), segment_ids=np.array([0, 1]))
    assert [cell.text for cell in edges] == ["\\xe6\\xbc", "\\xa2"]
    special = cells_of(vocabulary, np.array([0, 2, 1]))
    assert [cell.text for cell in special] == ["\\xe6\\xbc", "</s>", "\\xa2"]


def test_real_tokens_are_the_bytes_of_their_text(tokenizer_json: Path, hard_texts: list[str]) -> None:
    reference = tokenizers.Tokenizer.from_file(str(tokenizer_json))
    vocabulary = Vocabulary.of_tokenizer(load_tokenizer(str(tokenizer_json)))
    assert vocabulary.special == {0: "<|endoftext|>"}
    for text in [text.replace("<|endoftext|>", "") for text in hard_texts]:
        cells = cells_of(vocabulary, np.array(reference.encode(text).ids, np.uint16))
        assert "".join(cell.text for cell in cells) == text
        assert b"".join(cell.data for cell in cells) == text.encode()


@pytest.mark.parametrize("wrong", [-1, 2, 70_000])
def test_an_id_outside_the_vocabulary_is_refused(wrong: int) -> None:
    vocabulary = Vocabulary("two", [b"a", b"b"], {})
    with pytest.raises(TokenizerError, match=r"token id .* outside the vocabulary of two: expected 0 to 1"):
        cells_of(vocabulary, np.array([0, wrong]))


def test_an_id_without_a_token_is_named_and_not_lost() -> None:
    (cell,) = cells_of(Vocabulary("hole", [b""], {}), np.array([0]))
    assert (cell.text, cell.special) == ("id 0", True)


@given(st.lists(st.booleans(), min_size=1, max_size=20), st.integers(0, 3))
def test_a_token_is_learned_where_the_position_before_has_it_as_target(has: list[bool], place: int) -> None:
    targets = np.where(has, 7, -100)
    found = learned_of(targets, np.arange(place, place + len(has)))
    assert found[0] == (0 if place == 0 else -1)
    assert found[1:].tolist() == [int(one) for one in has[:-1]]
    cells = cells_of(Vocabulary("a", [b"a"], {}), np.zeros(len(has), np.int32), learned=found)
    assert [cell.loss for cell in cells] == [{1: True, 0: False, -1: None}[one] for one in found.tolist()]


@given(st.one_of(st.binary(max_size=30), cut_texts().map(lambda cut: cut[0])))
def test_what_is_shown_of_a_cell_acts_on_nothing_and_stacks_no_marks(data: bytes) -> None:
    pieces = visible_pieces(cell_of(data))
    text = "".join(text for text, _ in pieces)
    assert not acts(text) and "\n" not in text
    marks = 0
    for character in text.replace("\u200c", "").replace("\u200d", ""):
        marks = marks + 1 if unicodedata.category(character)[0] == "M" else 0
        assert marks <= MARKS_MOST
    assert not text or unicodedata.category(text[0]) not in ("Mn", "Me")
    assert sum(kind == "break" for _, kind in pieces) == (data.count(b"\n"))


@given(st.text(st.characters(codec="utf-8", categories=["L", "N", "P", "S"]), min_size=1, max_size=20))
def test_letters_are_shown_as_they_are(text: str) -> None:
    assert visible_pieces(cell_of(text.encode())) == [(text, "text")]


def test_an_escape_differs_from_a_text_that_reads_the_same() -> None:
    assert visible_pieces(cell_of(b"\\x9f")) == [("\\x9f", "text")]
    assert visible_pieces(cell_of(b"\x9f")) == [("\\x9f", "escape")]
    assert visible_pieces(cell_of("\x9f".encode())) == [("\\u009f", "escape")]
    assert visible_pieces(cell_of(b"  ")) == [("··", "space")]
    assert visible_pieces(cell_of(b" a\n\n")) == [(" a", "text"), ("↵", "break"), ("↵", "break")]
