"""Debian's Chromium, kept off the network, with everything that goes wrong in it written down.

    Chrome          starts the browser and opens pages of any width, scheme, with or without script and policy
    Watch           what one page asked for, complained of and popped up
    serving(...)    `packline serve` in a process of its own
    axe(page)       what axe-core finds wrong, of serious and critical impact

Pages are served on 127.0.0.1 or opened as files; every other host resolves to nothing, so a page that asks
for one fails twice: by the request that is written down and by the error on its console. Screenshots of all
pages go to `build/screenshots`, for people to look at.
"""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

import axe_playwright_python
import pytest
from tests.cli.command import environment

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page

ROOT = Path(__file__).resolve().parents[3]
SCREENSHOTS = ROOT / "build" / "screenshots"
AXE = Path(axe_playwright_python.__file__).with_name("axe.min.js")
RULES = ("wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice")
PAGES = (
    "/",
    "/sources",
    "/?page=9",
    "/documents",
    "/documents?split=val",
    "/documents?where=tokens+%3E+50&sort=tokens&desc=1",
    "/documents?where=scor+%3E+3",
    "/document/3",
    "/rows?seq_len=512&packing=best_fit",
    "/row/2?seq_len=512&packing=pad",
    "/batch?step=1&seq_len=512&batch_size=4&seed=3",
    "/run?step=1",
    "/run?step=1&row=0",
    "/run?step=1&ranks=2&rank=1",
    "/search",
    "/search?q=import",
    "/search?q=zzzzzzzz",
    "/search?q=0&by=ids",
    "/search?q=tokens+%3E+50&by=where",
    "/compare/tokenizers",
    "/compare/tokenizers?document=30",
    "/jump?to=row",
    "/document/99999999",
    "/nowhere",
)
"""Pages of the viewer, those of wrong addresses among them."""
WIDTHS = (400, 800, 1600)
SCHEMES: tuple[Scheme, ...] = ("light", "dark")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--no-proxy-server",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)
WAIT = 10_000
"""Milliseconds that anything in a page may take on a busy machine."""

FORBIDDEN = (
    "script, img, iframe, object, embed, form, input, base, dialog, link, frame, video, audio, "
    "[href^='javascript:' i], [srcdoc], [autofocus]"
)
VIEWER_OWN = (
    "script[src^='/static/viewer.js?']:empty, link[rel=stylesheet][href^='/static/viewer.css?'], "
    "form[action^='/'], input:not([onfocus])"
)
ACTING = (
    "[\\u0000-\\u0008\\u000b-\\u001f\\u007f-\\u009f"
    "\\u061c\\u200b\\u200e\\u200f\\u2028-\\u202e\\u2060-\\u2069]"
)

FOUND = """({forbidden, own, acting}) => {
    const elements = [...document.querySelectorAll(forbidden)].filter(one => !own || !one.matches(own));
    const names = [...document.querySelectorAll("*")].flatMap(one => one.getAttributeNames());
    const shown = [...document.querySelectorAll("main")].map(one => {
        const box = one.getBoundingClientRect();
        return box.width > 0 && box.height > 0 && getComputedStyle(one).visibility === "visible";
    });
    return {
        elements: elements.map(one => one.outerHTML),
        handlers: names.filter(name => name.startsWith("on")),
        acting: document.documentElement.textContent.match(new RegExp(acting, "gu")),
        shown: shown,
    };
}"""
"""Asked at once: a question takes 20 milliseconds, and the first one by a locator much more."""

Scheme = Literal["light", "dark"]


@dataclass
class Watch:
    """What a page did beside showing itself."""

    page: Page
    asked: list[str] = field(default_factory=list)
    """URLs of all requests."""
    visited: list[str] = field(default_factory=list)
    """URLs of pages."""
    complaints: list[str] = field(default_factory=list)
    """Errors and warnings of the console, uncaught exceptions, breaches of the content security policy."""
    dialogs: list[str] = field(default_factory=list)

    def start(self) -> None:
        self.page.on("request", self._note)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("console", self._hear)
        self.page.on("dialog", self._dismiss)

    def problems(self) -> list[str]:
        """What must not have happened."""
        foreign = [f"asked for {url}" for url in self.asked if is_foreign(url)]
        ran = ["a script of the data ran"] if self.page.evaluate("window.__hacked !== undefined") else []
        return [*foreign, *self.complaints, *(f"dialog: {text}" for text in self.dialogs), *ran]

    def _note(self, request: Any) -> None:
        self.asked.append(request.url)
        if request.is_navigation_request():
            self.visited.append(request.url)

    def _hear(self, message: Any) -> None:
        # Chromium also says of the page itself that it is one of a wrong address.
        of_page = "status of 4" in message.text and message.location.get("url") in self.visited
        if message.type in ("error", "warning") and not of_page:
            self.complaints.append(f"{message.type}: {message.text}")

    def _dismiss(self, dialog: Any) -> None:
        self.dialogs.append(dialog.message)
        dialog.dismiss()


def is_foreign(url: str) -> bool:
    parts = urlsplit(url)
    return parts.scheme not in ("file", "data", "about", "blob") and parts.hostname != "127.0.0.1"


def assert_inert(watch: Watch, own: str = "") -> None:
    """Nothing ran, nothing was asked for, and the page holds no element or attribute of the data's making.

    Args:
        own: a selector of what the viewer itself has of such elements.
    """
    assert watch.problems() == []
    found = watch.page.evaluate(FOUND, {"forbidden": FORBIDDEN, "own": own, "acting": ACTING})
    assert found == {"elements": [], "handlers": [], "acting": None, "shown": [True]}


class Chrome:
    """A running browser; its pages are watched, and judged when they are closed."""

    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        self._watches: list[Watch] = []

    def open(
        self,
        url: str = "",
        *,
        width: int = 1200,
        height: int = 900,
        scheme: Scheme = "light",
        script: bool = True,
        policy: bool = True,
        strict: bool = True,
    ) -> Page:
        """A page in a fresh context.

        Args:
            script: whether scripts run at all.
            policy: whether the page's content security policy counts; without it only escaping protects.
            strict: whether `close` judges it.
        """
        context = self._browser.new_context(
            viewport={"width": width, "height": height},
            color_scheme=scheme,
            java_script_enabled=script,
            bypass_csp=not policy,
            reduced_motion="reduce",
        )
        context.set_default_timeout(WAIT)
        page = context.new_page()
        watch = Watch(page)
        watch.start()
        if strict:
            self._watches.append(watch)
        if url:
            page.goto(url)
        return page

    def watch_of(self, page: Page) -> Watch:
        return next(watch for watch in self._watches if watch.page is page)

    def close(self) -> list[str]:
        """Close all pages; what went wrong in them."""
        problems = [f"{watch.page.url}: {problem}" for watch in self._watches for problem in watch.problems()]
        self._watches.clear()
        for context in self._browser.contexts:
            context.close()
        return problems


@contextmanager
def started() -> Iterator[Browser]:
    """Debian's Chromium; skips where it or Playwright is absent."""
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    path = shutil.which("chromium")
    if path is None:
        pytest.skip("no chromium: `make browser` installs it")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(FLAGS), chromium_sandbox=False)
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def serving(*words: str | Path, cwd: Path | None = None) -> Iterator[str]:
    """`packline serve WORDS... --port 0` while the block runs; the address that it printed."""
    command = [sys.executable, "-m", "packline", "serve", *map(str, words), "--port", "0"]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        encoding="utf-8",
        cwd=cwd,
        env=environment(PYTHONUNBUFFERED="1"),
    )
    assert process.stdout is not None
    printed: list[str] = []
    try:
        for line in process.stdout:
            printed.append(line)
            if found := re.search(r"http://127\.0\.0\.1:\d+", line):
                yield found[0]
                break
        else:
            pytest.fail(f"packline serve ended: {''.join(printed)}")
    finally:
        process.send_signal(signal.SIGINT)
        try:
            printed += process.communicate(timeout=20)[0].splitlines()
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            raise


def fits(page: Page) -> str:
    """The widest thing beyond the right edge of the window, empty where nothing is.

    Boxes that scroll by themselves may hold what is wider.
    """
    return str(
        page.evaluate(
            """() => {
                const room = document.documentElement.clientWidth;
                if (document.documentElement.scrollWidth <= room) return "";
                const inner = (one) => one && one !== document.documentElement &&
                    (getComputedStyle(one).overflowX !== "visible" || inner(one.parentElement));
                let widest = document.documentElement, most = room;
                for (const one of document.querySelectorAll("body *")) {
                    const right = one.getBoundingClientRect().right;
                    if (right > most && !inner(one.parentElement)) [widest, most] = [one, right];
                }
                return `${widest.outerHTML.slice(0, 120)} ends at ${most} of ${room}`;
            }"""
        )
    )


def axe(
    page: Page, rules: Sequence[str] = RULES, *, impacts: Sequence[str] | None = ("serious", "critical")
) -> list[str]:
    """Findings of axe-core, each as rule, number and first place; of these impacts, or of any if None."""
    page.evaluate(AXE.read_text("utf-8"))
    found = page.evaluate(
        "rules => axe.run(document, {runOnly: {type: 'tag', values: rules}, resultTypes: ['violations']})",
        list(rules),
    )
    assert found["passes"], "axe looked at nothing"
    return [
        f"{one['id']} ({one['impact']}), {len(one['nodes'])} times: {one['nodes'][0]['failureSummary']} "
        f"{one['nodes'][0]['html'][:200]}"
        for one in found["violations"]
        if impacts is None or one["impact"] in impacts
    ]


def follow(page: Page, way: Locator) -> None:
    """Click a link or a button, and wait until the page that it leads to has loaded.

    A script that rewrites the address of the page, as a live form does, is a navigation, but not a new page.
    """
    with page.expect_event("load"):
        way.click()


def until(page: Page, holds: Callable[[], bool]) -> None:
    for _ in range(WAIT // 50):
        if holds():
            return
        page.wait_for_timeout(50)
    raise AssertionError("it did not happen")


def picture(page: Page, name: str, *, whole: bool = True) -> Path:
    """A screenshot to look at, `build/screenshots/NAME.png`."""
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    path = SCREENSHOTS / f"{name}.png"
    page.screenshot(path=path, full_page=whole)
    return path
