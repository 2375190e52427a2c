"""Take the pictures of docs/pictures: the report, the viewer and the terminal, as they are.

    packline demo ──> a store of Python's own library ──> report, serve, view ──> PNG

Nothing is drawn by hand and nothing needs a network: pages are opened in the Chromium of the browser tests,
and what the terminal shows is the command's own output, colors included. Costs a minute and Chromium, which
`make browser` installs. What the pictures show depends on the Python whose library the demo takes.

    python -m tools.pictures
"""

from __future__ import annotations

import io
import os
import pty
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text
from tests.cli.command import environment
from tests.viewing.browser.harness import Chrome, follow, serving, started

import packline

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from packline.packing.rows import Rows

ROOT = Path(__file__).resolve().parents[1]
PICTURES = ROOT / "docs" / "pictures"
WORK = ROOT / "build" / "pictures"
DEMO = Path("packline-demo")
STORE = DEMO / "store"
SMALL = DEMO / "small.json"
"""A second tokenizer, to compare with: the demo's, of fewer tokens."""
SMALL_VOCABULARY = 1024
LARGEST = 150_000
"""Bytes of a picture."""
COMPARED = '''def mean(numbers):
    """The arithmetic mean; naïve, but exact for integers."""
    return sum(numbers) / len(numbers)  # Σx ⁄ n
'''
ROW_TOKENS = 512
SHOWN_LINES = 34
COLUMNS = 100
TERMINAL = """<!doctype html><meta charset="utf-8"><style>
body {{ margin: 0; background: #16181d; }}
pre {{ margin: 0; padding: 14px 18px; width: max-content; color: #e6e9ed;
      font: 14px/1.4 "DejaVu Sans Mono", Menlo, Consolas, monospace; }}
pre span {{ padding: .08em 0 .14em; }} /* a terminal leaves no gap between lines */
</style><pre>{code}</pre>"""


def run(*words: str | Path) -> str:
    """What a command shows on a terminal, colors included."""
    controller, terminal = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "packline", *map(str, words)],
        stdin=subprocess.DEVNULL,
        stdout=terminal,
        stderr=subprocess.DEVNULL,
        cwd=WORK,
        env=environment(COLUMNS=str(COLUMNS), PAGER="cat"),
    ) as process:
        os.close(terminal)
        shown = bytearray()
        try:
            while data := os.read(controller, 1 << 16):
                shown += data
        except OSError:  # how Linux says that nobody holds the terminal any more
            pass
    os.close(controller)
    if process.returncode:
        raise SystemExit(f"packline {words[0]} failed:\n{shown.decode()}")
    return shown.decode().replace("\r\n", "\n")


def prepare() -> None:
    """The demo's store, a second tokenizer, the report."""
    from packline.vocabulary.training import train_bpe

    WORK.mkdir(parents=True, exist_ok=True)
    run("demo", "--out", DEMO)
    modules = (path.read_text("utf-8", "replace") for path in sorted(Path(io.__file__).parent.glob("*.py")))
    (WORK / SMALL).write_text(train_bpe(modules, SMALL_VOCABULARY, ("<|endoftext|>",)), "utf-8")
    run("info", STORE, "--html", "report.html", "--seq-len", "2048", "--against", SMALL)


def varied(rows: Rows) -> int:
    """A row in which there is much to see: several short documents.

    Raises:
        StopIteration: there is none.
    """
    for first in range(0, len(rows), 256):
        spans = rows.spans(np.arange(first, min(first + 256, len(rows))))
        for row in range(len(spans.offsets) - 1):
            of = slice(spans.offsets[row], spans.offsets[row + 1])
            lengths = spans.lengths[of].tolist()
            if 3 <= len(lengths) <= 5 and max(lengths) < ROW_TOKENS // 2:
                return first + row
    raise StopIteration


def save(page: Page, name: str, height: int) -> None:
    """The upper part of a page as a picture.

    Raises:
        SystemExit: it is larger than a picture in a repository should be.
    """
    path = PICTURES / f"{name}.png"
    size = page.viewport_size
    assert size is not None
    page.screenshot(path=path, clip={"x": 0, "y": 0, "width": size["width"], "height": height})
    found = path.stat().st_size
    print(f"{path.relative_to(ROOT)}: {size['width']} x {height}, {found:,} bytes")
    if found > LARGEST:
        raise SystemExit(f"{path.name} has {found:,} bytes: expected at most {LARGEST:,}")


def take_report(chrome: Chrome) -> None:
    """The beginning of the report."""
    page = chrome.open((WORK / "report.html").as_uri(), width=1000, height=1250)
    save(page, "report", 1250)


def take_viewer(chrome: Chrome, site: str) -> None:
    """A row with the card of a token, two tokenizers, a search in the dark."""
    rows = packline.open(WORK / STORE).rows(seq_len=ROW_TOKENS, packing="best_fit")
    page = chrome.open(
        f"{site}/row/{varied(rows)}?seq_len={ROW_TOKENS}&packing=best_fit", width=1000, height=1000
    )
    page.locator(".tokens .t").nth(12).hover()
    page.locator(".card").wait_for(state="visible")
    save(page, "row", 1000)

    page = chrome.open(f"{site}/compare/tokenizers", width=1000, height=800)
    page.get_by_role("textbox").last.fill(COMPARED)
    follow(page, page.locator("main form button"))
    save(page, "tokenizers", 800)

    page = chrome.open(f"{site}/search?q=for+example", width=1000, height=620, scheme="dark")
    save(page, "search", 620)


def take_terminal(chrome: Chrome) -> None:
    """`packline view` in a terminal."""
    rows = packline.open(WORK / STORE).rows(seq_len=ROW_TOKENS, packing="best_fit")
    words = [str(STORE), "--row", str(varied(rows)), "--seq-len", str(ROW_TOKENS), "--packing", "best_fit"]
    lines = run("view", *words).splitlines()[:SHOWN_LINES]
    console = Console(
        record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True, color_system="truecolor"
    )
    console.print(Text(f"$ packline view {shlex.join(words)}", style="bold"))
    console.print(Text.from_ansi("\n".join(lines)), soft_wrap=True)
    path = WORK / "terminal.html"
    text = console.export_html(theme=MONOKAI, inline_styles=True, code_format=TERMINAL)
    path.write_text(text, "utf-8")
    page = chrome.open(path.as_uri(), width=920, height=800)
    box = page.locator("pre").bounding_box()
    assert box is not None
    page.set_viewport_size({"width": round(box["width"]), "height": round(box["height"])})
    save(page, "terminal", round(box["height"]))


def main() -> None:
    """Make everything and take the pictures."""
    began = time.perf_counter()
    PICTURES.mkdir(parents=True, exist_ok=True)
    prepare()
    with started() as browser:
        chrome = Chrome(browser)
        take_report(chrome)
        with serving(STORE, "--tokenizer", SMALL, cwd=WORK) as site:
            take_viewer(chrome, site)
            take_terminal(chrome)
            if problems := chrome.close():
                raise SystemExit("\n".join(problems))
    print(f"{time.perf_counter() - began:.0f} seconds")


if __name__ == "__main__":
    main()
