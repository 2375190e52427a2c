"""Pieces: joining, trained ranges, the check of a mask, muting, and encoding piece by piece."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.chat import talks

from packline.chat.conversations import Conversation, Message
from packline.chat.pieces import (
    Encoded,
    Piece,
    PieceEncoder,
    Rendered,
    check_pieces,
    join_pieces,
    mute,
    render_nanochat,
    trained_runs,
)
from packline.encoders.special_tokens import Boundary
from packline.encoders.tokenizer import load_tokenizer
from packline.sources.batch import RecordProblem

pieces = st.lists(st.builds(Piece, st.text("ab ", max_size=3), st.booleans(), st.booleans()), max_size=10)
turns = st.lists(st.tuples(st.text("xyz", min_size=1, max_size=4), st.booleans()), min_size=1, max_size=5)


def letters(pieces: list[Piece]) -> list[tuple[str, bool, bool]]:
    return [(letter, one.trained, one.control) for one in pieces for letter in one.text]


def talk_of(turns: list[tuple[str, bool]]) -> Conversation:
    messages = [
        one
        for number, (said, trained) in enumerate(turns)
        for one in (Message("user", f"ask {number}"), Message("assistant", said, trained=trained))
    ]
    return Conversation(tuple(messages))


@given(pieces)
def test_joining_keeps_every_letter_with_its_loss_and_leaves_nothing_to_join(given_: list[Piece]) -> None:
    joined = join_pieces(given_)
    assert letters(joined) == letters(given_)
    assert join_pieces(joined) == joined and all(one.text for one in joined)
    controls = [one for one in given_ if one.control and one.text]
    assert [one for one in joined if one.control] == controls  # each one token, never joined
    kinds = [list(same) for _, same in groupby(joined, lambda one: (one.trained, one.control))]
    assert all(len(same) == 1 or same[0].control for same in kinds)
    present = [one for one in given_ if one.text]
    runs = ["".join(one.text for one in run) for on, run in groupby(present, lambda one: one.trained) if on]
    assert trained_runs(joined) == runs


@given(turns, st.data())
def test_a_mask_passes_just_if_every_turn_is_trained_on(
    turns: list[tuple[str, bool]], data: st.DataObject
) -> None:
    talk = talk_of(turns)
    rendered = render_nanochat(talk)
    check_pieces(talk, rendered)
    muted = mute(talk, rendered)
    assert [one.text for one in muted] == [one.text for one in rendered]
    assert trained_runs(muted) == [f"{said}<|assistant_end|>" for said, trained in turns if trained]
    places = [place for place, one in enumerate(rendered) if one.trained and not one.control]
    place = data.draw(st.sampled_from(places))
    rendered[place] = rendered[place]._replace(trained=False)
    with pytest.raises(RecordProblem, match="mask: "):
        check_pieces(talk, rendered)


def test_tokens_are_those_of_each_piece_alone_and_text_is_never_a_control_token(
    tokenizer_json: Path, tmp_path: Path
) -> None:
    folder = talks.with_tokens(tokenizer_json, tmp_path / "tokenizer", talks.NANOCHAT_TOKENS)
    tokenizer = load_tokenizer(str(folder))
    ids = tokenizer.special_tokens
    boundary = Boundary(0, "<|endoftext|>", ids["<|bos|>"], "<|bos|>")
    conversation = talk_of([("of <|bos|> and <|assistant_end|>", True), (" é日", True)])
    rendered = render_nanochat(conversation)
    (found,) = PieceEncoder(tokenizer, boundary).encode([Rendered.of(rendered)])
    assert isinstance(found, Encoded)
    reference = load_tokenizer(str(tokenizer_json)).reference()  # it has no such control tokens
    tokens, loss = [ids["<|bos|>"]], [0]
    for piece in rendered:
        own = (
            [ids[piece.text]] if piece.control else reference.encode(piece.text, add_special_tokens=False).ids
        )
        tokens += own
        loss += [int(piece.trained)] * len(own)
    assert found.tokens.tolist() == [*tokens, 0] and found.loss.tolist() == [*loss, 0]
    assert np.count_nonzero(found.tokens == ids["<|bos|>"]) == 1
