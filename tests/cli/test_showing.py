"""What reaches the terminal: nothing that a document or a name holds, and no color where none is wanted."""

from __future__ import annotations

import io
import re
import sys
import unicodedata
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.cli.command import run, run_alone

import packline
from packline.cli.output import Output, plain, table
from packline.viewing import info as info_module
from packline.viewing.text import cells, cut, duration, pad, scaled, size, visible

EVIL = "\x1b[2J\x1b]0;title\x07 \x9b31m \u202egnp.exe\u2066 \r\x08\x7f \u2028 end"
ACTING = re.compile(r"[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")
any_letter = st.characters(codec="utf-8")
BYTES = tokenizers.Tokenizer(
    tokenizers.models.BPE(
        {f"<0x{byte:02X}>": byte for byte in range(256)}, [], byte_fallback=True, unk_token="<0x00>"
    )
)
"""A byte a token; decoding loses all of a run of bytes that ends within a character."""
BYTES.decoder = tokenizers.decoders.Sequence([tokenizers.decoders.ByteFallback(), tokenizers.decoders.Fuse()])
any_text = st.text(st.characters(codec=None), max_size=60)


@given(any_text)
def test_nothing_visible_acts_on_a_terminal(text: str) -> None:
    shown = visible(text)
    assert not ACTING.search(shown)
    assert all(unicodedata.category(character) not in ("Cc", "Cs", "Zl", "Zp") for character in shown)
    assert visible(shown) == shown


@given(st.text(st.characters(codec="utf-8", categories=["L", "N", "P", "S"]), max_size=40))
def test_letters_are_shown_as_they_are(text: str) -> None:
    assert visible(text) == text


@given(any_text, st.integers(1, 30))
def test_cutting_and_padding_keep_to_their_columns(text: str, width: int) -> None:
    shown = visible(text)
    assert cells(cut(shown, width)) <= width
    assert cells(pad(cut(shown, width), width)) == width


@given(st.lists(st.tuples(any_text, any_text), min_size=1, max_size=5), st.integers(30, 60))
def test_the_columns_of_a_table_are_straight(rows: list[tuple[str, str]], width: int) -> None:
    lines = table([[f"{one}|", f"|{other}"] for one, other in rows], "ll")
    bars = {cells(plain(line)[: plain(line).index("|", plain(line).index("|") + 1)]) for line in lines}
    starts = [visible(one).count("|") for one, _ in rows]
    assert len(bars) == 1 or any(starts)


def test_a_long_last_cell_goes_on_below_itself() -> None:
    lines = [plain(line) for line in table([["name", "some words " * 6], ["b", "c"]], "ll", width=40)]
    assert all(len(line) <= 40 for line in lines)
    assert lines[1].startswith(" " * 8 + "some")
    assert " ".join(" ".join(lines[:-1]).split()[1:]) == ("some words " * 6).strip()


@given(st.floats(0, 9.9e17))
def test_numbers_stay_short(number: float) -> None:
    assert len(scaled(number)) <= 6
    assert len(size(number)) <= 7
    value, _, unit = scaled(number).partition(" ")
    assert float(value) * 1000 ** " kMGTP".index(unit or " ") == pytest.approx(number, rel=0.06, abs=0.51)


@given(st.floats(0, 1e7))
def test_durations_stay_short(seconds: float) -> None:
    assert re.fullmatch(r"\d{1,2}\.\d s|\d{1,2} min \d\d s|\d+ h \d\d min", duration(seconds))


@settings(max_examples=200)
@given(
    text=st.text(st.sampled_from("ab é漢👍\n"), max_size=300) | st.text(any_letter, max_size=300),
    most=st.integers(1, 40),
    by_bytes=st.booleans(),
)
def test_the_beginning_of_a_text_is_that_of_the_whole_text(
    tokenizer_json: Path, text: str, most: int, by_bytes: bool
) -> None:
    tokenizer = BYTES if by_bytes else tokenizers.Tokenizer.from_file(str(tokenizer_json))
    ids = [*tokenizer.encode(text, add_special_tokens=False).ids, 0]
    entry = SimpleNamespace(tokenizer=SimpleNamespace(bos_id=None))
    store: Any = SimpleNamespace(manifest=entry, documents=[np.array(ids)], tokenizer=tokenizer)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(info_module, "CHARACTERS", most)
        assert (
            info_module.first_characters(store, 0)
            == tokenizer.decode(ids[:-1], skip_special_tokens=False)[:most]
        )


class Terminal(io.StringIO):
    """A stream that declares itself a terminal."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


@pytest.fixture
def store(tmp_path: Path, tokenizer_json: Path, write_jsonl: Callable[..., Path]) -> Path:
    path = write_jsonl(tmp_path / "corpus" / "evil\x1b[31m.jsonl", [{"text": EVIL, "id": EVIL}])
    packline.build(path, tokenizer_json, out=tmp_path / "store", workers=0)
    return tmp_path / "store"


def test_escape_sequences_in_documents_and_names_are_shown_and_not_obeyed(store: Path) -> None:
    done = run("info", store)
    assert done.returncode == 0, done.stderr
    assert "␛" in done.stdout and r"\u202e" in done.stdout
    assert not ACTING.search(done.stdout.replace("\n", ""))


@pytest.mark.parametrize("no_color", ["", "1"])
def test_a_terminal_gets_styles_and_no_color_if_asked(
    store: Path, monkeypatch: pytest.MonkeyPatch, no_color: str
) -> None:
    from packline.cli.main import main

    screen = Terminal()
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "90")
    monkeypatch.setenv("NO_COLOR", no_color)
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    assert main(["info", str(store)]) == 0
    shown = screen.getvalue()
    without_styles = re.sub(r"\x1b\[[0-9;]*m", "", shown)
    assert not ACTING.search(without_styles.replace("\n", ""))
    assert bool(re.search(r"\x1b\[[0-9;]*(3[0-9]|4[0-9])[;m]", shown)) == (not no_color)
    assert ("│" in shown) == bool(no_color)


def test_a_dumb_terminal_is_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    output = Output()
    monkeypatch.setattr(sys, "stdout", Terminal())
    for term, mode in (("xterm", "terminal"), ("dumb", "plain"), ("", "plain")):
        monkeypatch.setenv("TERM", term)
        output.configure()
        assert output.mode == mode
    output.configure(as_json=True)
    assert output.mode == "json"


def test_a_stream_that_knows_no_unicode_gets_escapes(store: Path) -> None:
    done = run_alone("info", store, PYTHONIOENCODING="ascii")
    assert done.returncode == 0, done.stderr
    assert done.stdout.isascii() and r"\u241b" in done.stdout
