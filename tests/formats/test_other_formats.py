"""Formats of other distributions: installed by pip, found by name, listed, or refused with the reason."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.formats.other_formats import install, make_wheel
from tests.formats.stores import CASES

from packline.errors import RecipeError
from packline.formats.format import get_format, other_names

CHILD = """
import sys
import packline
from packline.cli.main import main
from packline.formats.format import get_format, recognise
store, out, back, again = sys.argv[1:]
packline.export(store, to="megatron", out=out + ".own", workers=0)
assert recognise(__import__("pathlib").Path(out + ".own")).name == "megatron"
assert "packline_lines" not in sys.modules
packline.export(store, to="Lines", out=out, workers=2)
assert "packline_lines" in sys.modules
made = packline.import_(out, tokenizer=store + "/tokenizer", out=back, workers=2)
stored = [document.tolist() for document in packline.open(store).documents]
assert [document.tolist() for document in made.documents] == stored
packline.export(back, to="lines", out=again, options={"shard_tokens": "300"}, workers=0)
sys.exit(main(["verify", again, "--from", "lines"]) or main(["formats"]) or main(["formats", "lines"]))
"""


def test_an_installed_format_is_used_by_name_and_imported_only_then(tmp_path: Path) -> None:
    site = install(make_wheel(tmp_path / "wheel"))
    store = CASES["shards"].make(tmp_path / "store").path
    path = os.pathsep.join([str(site), os.environ.get("PYTHONPATH", ""), *filter(None, sys.path)])
    places = [str(store), *(str(tmp_path / name) for name in ("out", "back", "again"))]
    done = subprocess.run(
        [sys.executable, "-c", CHILD, *places], capture_output=True, text=True, check=False,
        env=os.environ | {"PYTHONPATH": path},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "lines of numbers: SPLIT-0.lines" in done.stdout and "megatron" in done.stdout
    assert "Documents as lines of numbers" in done.stdout and "Tokens per file, up to" in done.stdout
    assert (tmp_path / "out" / "train-000000.lines").read_text().count("\n") == len(CASES["shards"].documents)
    assert len(list((tmp_path / "again").glob("*.lines"))) > 1


MODULE = """
from packline.formats.format import DocumentFormat, Options
from packline_lines import Lines

class Half(DocumentFormat):
    name, title = "half", "one that lacks its methods"

class Other(Lines):
    name = "another"

class Choosy(Lines):
    name = "choosy"
    def __init__(self, needed): ...

thing = 5
"""

REFUSED = {
    "megatron": (":Lines", "a format of this name is packline's own"),
    "twice": (":Other", "of bad-formats and worse-formats cannot be used: a format of this name can only be"),
    "half": (
        ":Half",
        "cannot be used: expected a subclass of DocumentFormat or RowFormat with the name 'half'",
    ),
    "other": (":Other", "with the name 'other', a title and options, found bad_formats:Other"),
    "choosy": (":Choosy", "cannot be loaded: TypeError"),
    "thing": (":thing", "a title and options, found bad_formats:thing"),
    "gone": (":Gone", "of bad-formats cannot be loaded: AttributeError"),
}


def test_a_format_that_cannot_be_used_is_refused_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    from packline.cli.main import main

    entries = {name: f"bad_formats{kind}" for name, (kind, _) in REFUSED.items()}
    monkeypatch.syspath_prepend(make_wheel(tmp_path))
    monkeypatch.syspath_prepend(make_wheel(tmp_path, "bad-formats", entries, MODULE))
    monkeypatch.syspath_prepend(make_wheel(tmp_path, "worse-formats", {"twice": "x:y"}, MODULE))
    assert other_names() == tuple(sorted([*REFUSED, "lines"]))
    assert main(["formats"]) == 0
    listed = " ".join(capfd.readouterr().out.split())
    assert " lines lines of numbers" in listed
    for name, (_, words) in REFUSED.items():
        assert words in listed
        if name != "megatron":
            with pytest.raises(RecipeError, match=f"the format {name} of") as caught:
                get_format(name)
            assert words in str(caught.value) and "ask its authors, or uninstall" in caught.value.hint
    assert type(get_format("megatron")).__module__ == "packline.formats.megatron"
    with pytest.raises(RecipeError, match="no format 'line'") as caught:
        get_format("line")
    assert "did you mean 'lines'" in caught.value.hint
