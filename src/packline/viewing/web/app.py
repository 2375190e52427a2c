"""The site: addresses, the header of every page, and the handling of errors.

An error of packline becomes a page with the problem and its remedy; any other is logged and becomes a page
without its details.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import re
import shlex
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING
from urllib.parse import urlencode

import msgspec
from markupsafe import Markup
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from packline.errors import CorruptStore, PacklineError, RecipeError, StoreError
from packline.viewing.html import Assets, macro, read_static, render_file, style
from packline.viewing.page import Block, CopyText, Link, Links, Note, Page, Table, page_values
from packline.viewing.web import documents, finding, pages, rows, tokenizers
from packline.viewing.web.pages import ALL, PAGE_ITEMS, default_seq_len
from packline.viewing.web.serving import Guard
from packline.viewing.web.site import InvalidForm, Moved, Site, View, address, choice, number

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import ASGIApp

STATUS = {
    400: "Invalid request",
    401: "A token is needed",
    404: "Not found",
    405: "Not possible",
    421: "Not this machine",
    500: "Error",
}
NAVIGATION = (
    ("Overview", "/"),
    ("Documents", "/documents"),
    ("Rows", "/rows"),
    ("Batch", "/batch"),
    ("Run", "/run"),
    ("Search", "/search"),
    ("Tokenizers", "/compare/tokenizers"),
)
JUMPS = ("document", "row", "step", "token")
SWITCHED = ("/documents", "/rows", "/batch", "/search")
KEPT = ("seq_len", "packing", "split", "where", "unique", "batch_size", "seed", "world_size")
"""Parameters kept by a jump to a row or a step."""
WAIT = 1.0
"""Seconds to wait at startup for the lengths of each store."""
FOREVER = "public, max-age=31536000, immutable"

log = logging.getLogger("packline.serve")


@cache
def static(name: str) -> tuple[str, str]:
    """Content of a file of the viewer, and its short hash, which is part of its address."""
    text = read_static(name)
    if name == "viewer.css":
        text = style() + text
    return text, hashlib.sha256(text.encode()).hexdigest()[:12]


def assets() -> Assets:
    return Assets(*(f"/static/{name}?v={static(name)[1]}" for name in ("viewer.css", "viewer.js")))


def make_site_app(
    site: Site, *, port: int = 0, names: frozenset[str] = frozenset({"localhost"}), token: str | None = None
) -> ASGIApp:
    def route(path: str, render: Callable[[View, Request], Page]) -> Route:
        def endpoint(request: Request) -> Response:
            return _respond(site, request, lambda view: render(view, request))

        return Route(path, endpoint, methods=["GET"])

    routes = [
        route("/", lambda view, _: pages.overview(view)),
        route("/documents", lambda view, _: documents.documents_table(view)),
        route(
            "/document/{number}",
            lambda view, request: documents.document(view, _path_number(request, "document")),
        ),
        route("/rows", lambda view, _: rows.rows(view)),
        route("/row/{number}", lambda view, request: rows.row(view, _path_number(request, "row"))),
        route("/batch", lambda view, _: rows.batch(view)),
        route("/run", lambda view, _: rows.run_page(view)),
        route("/search", lambda view, _: finding.search_page(view)),
        route("/compare/tokenizers", lambda view, _: tokenizers.tokenizers(view)),
        Route("/sources", lambda request: RedirectResponse(f"/?{request.url.query}", 303), methods=["GET"]),
        Route("/jump", lambda request: _jump(site, request), methods=["GET"]),
        Route("/static/{name}", _static, methods=["GET"]),
        Route("/favicon.ico", _icon, methods=["GET"]),
    ]
    handlers = {HTTPException: lambda request, error: _missing(site, request, error)}
    app = Starlette(routes=routes, exception_handlers=handlers)
    return Guard(app, port=port, names=names, token=token, refuse=_refusal)


def warm_up(site: Site) -> None:
    """Prepare what the first pages would wait for: libraries loaded on demand, and data read once per store.

    A store found damaged here is served nevertheless, and its pages report the damage.
    """
    site.wait(WAIT)
    for place in range(len(site.stores)):
        view = View(site, place, {})
        for render in (pages.overview, documents.documents_table, rows.rows, rows.batch):
            with contextlib.suppress(PacklineError):
                render_file(render(view), assets=assets(), header=header(view, "/"))


def _respond(site: Site, request: Request, render: Callable[[View], Page]) -> Response:
    view = View(site, 0, request.query_params)
    status = 200
    try:
        view = _view(site, request)
        page = render(view)
    except Moved as moved:
        return RedirectResponse(moved.href, 303)
    except InvalidForm as error:
        status, page = error.status, error.page
    except (PacklineError, IndexError) as error:
        status = _status(error)
        page = _error_page(status, str(error), getattr(error, "hint", ""), _ways(view, request.url.path))
    except Exception:
        log.exception("while making %s", request.url.path)
        status = 500
        page = _error_page(
            500, "This page could not be made", "The terminal of packline serve shows the reason."
        )
    path = request.url.path
    if status == 200 and view.params.get("as") == "json":
        return Response(msgspec.json.encode(page_values(page)), media_type="application/json")
    if status == 200:
        page = replace(page, blocks=(*page.blocks, *_as_data(view, path, page)))
    return _html(view, path, page, status)


def _as_data(view: View, path: str, page: Page) -> list[Block]:
    """A link to the page as JSON, and the command that prints it, if there is one."""
    link = Link("This page as JSON", f"{path}?{urlencode({**view.params, 'as': 'json'})}")
    links = [Links("Data", (link,))] if any(isinstance(block, Table) for block in page.flat_blocks()) else []
    command = command_of(view, path)
    return [*links, *([CopyText("Command", command)] if command else [])]


def command_of(view: View, path: str) -> str:
    """Command that prints the content of a page; empty if there is none."""
    params, place = view.params, str(view.store.place)
    section, _, number_of = path.strip("/").partition("/")
    words: list[str] = ["view", place]
    options = {name: params.get(name, "") for name in ("where", "split")}
    if path == "/":
        return shlex.join(["packline", "info", place])
    if path == "/documents" and not params.get("sort"):
        words += _given(first=f"{PAGE_ITEMS * number(params, 'page', 0) or ''}")
        options["source"] = "" if params.get("source") == ALL else params.get("source", "")
        options["split"] = options["split"] or ALL
    elif section == "document":
        return shlex.join(["packline", *words, "--document", number_of, *_given(first=params.get("first"))])
    elif section == "row" or path == "/batch":
        words += ["--row", number_of] if section == "row" else ["--step", params.get("step") or "0"]
        seq_len = params.get("seq_len") or default_seq_len(view, params.get("split") or "train") or ""
        options |= {"seq-len": str(seq_len), "packing": params.get("packing", "")}
        if path == "/batch":
            names = ("batch_size", "seed", "world_size", "rank")
            options |= {name.replace("_", "-"): params.get(name, "") for name in names}
            options["batch-size"] = options["batch-size"] or "32"
    else:
        return ""
    unique = ["--unique"] if params.get("unique") else []
    return shlex.join(["packline", *words, *_given(**options), *unique])


def _given(**options: str | None) -> list[str]:
    return [word for name, value in options.items() if value for word in (f"--{name}", value)]


def _view(site: Site, request: Request) -> View:
    if run := re.fullmatch("run-([0-9]+)", request.query_params.get("store", "")):
        raise Moved(address("/run", run=run[1]))
    most = len(site.stores) - 1
    return View(site, number(request.query_params, "store", 0, most=most), request.query_params)


def _status(error: Exception) -> int:
    if isinstance(error, CorruptStore):
        return 500
    if isinstance(error, StoreError | IndexError):
        return 404
    return 400 if isinstance(error, RecipeError) else 500


def _ways(view: View, path: str) -> Links:
    site, last = view.site, len(view.store.documents) - 1
    links = [Link("overview", view.href("/"))]
    if path.startswith("/document") and last >= 0:
        links += [
            Link("first document", view.document(0)),
            Link(f"last document, {last:,}", view.document(last)),
        ]
    elif path.startswith(("/row", "/batch")):
        links.append(Link("rows", view.href("/rows")))
    elif path.startswith("/run") and site.runs:
        links.append(Link("first step", "/run"))
    links += [Link("documents", view.href("/documents")), Link("search", view.href("/search"))]
    if len(site.stores) > 1:
        links += [
            Link(one.name, f"/?store={place}" if place else "/") for place, one in enumerate(site.stores)
        ]
    return Links("Ways on", ("Go on with:", *links))


def _error_page(status: int, text: str, hint: str, ways: Links | None = None) -> Page:
    text = text if text.endswith((".", "!", "?")) else f"{text}."
    notes = (Note(text, "bad"), *((Note(f"Hint: {hint}"),) if hint else ()))
    return Page(STATUS.get(status, "Error"), (*notes, *((ways,) if ways else ())))


def _html(view: View, path: str, page: Page, status: int = 200) -> Response:
    title = f"{page.title} · {view.opened.name}" if page.title != view.opened.name else page.title
    text = render_file(page, assets=assets(), header=header(view, path), title=title)
    return Response(text.encode("utf-8", "backslashreplace"), status, media_type="text/html")


def header(view: View, path: str) -> Markup:
    links = [
        (text, view.href(target), target == _section(path))
        for text, target in NAVIGATION
        if target != "/run" or view.site.runs
    ]
    kept = [(name, view.params[name]) for name in KEPT if view.params.get(name)]
    in_document = path.startswith("/document/")
    if in_document:
        kept.append(("document", path.removeprefix("/document/")))
    if view.number:
        kept.append(("store", str(view.number)))
    kind = "row" if path.startswith("/row") else "step" if path in ("/batch", "/run") else "document"
    stores, runs = enumerate(view.site.stores), enumerate(view.site.runs)
    run = view.params.get("run") or "0"
    if path == "/run":
        kept = [("run", run), *kept]
    found: Markup = macro("viewer_header")(
        view.opened.name,
        view.href("/"),
        links,
        JUMPS if in_document else JUMPS[:-1],
        kind,
        kept,
        [
            *((f"{place}", one.name, path != "/run" and place == view.number) for place, one in stores),
            *((f"run-{place}", one.name, path == "/run" and f"{place}" == run) for place, one in runs),
        ],
        _section(path) if _section(path) in SWITCHED else "/",
    )
    return found


def _section(path: str) -> str:
    for kind in ("document", "row"):
        if path.startswith(f"/{kind}/"):
            return f"/{kind}s"
    return path


def _path_number(request: Request, what: str) -> int:
    return number({"number": request.path_params["number"]}, "number", 0, what=what)


def _jump(site: Site, request: Request) -> Response:
    try:
        view = _view(site, request)
        to = choice(request.query_params, "to", JUMPS, "document")
        if not request.query_params.get("number", "").strip():
            raise RecipeError(f"no number of a {to} was given")
        wanted = number(request.query_params, "number", 0, what=to)
    except RecipeError as error:
        return _html(
            View(site, 0, request.query_params),
            "/jump",
            _error_page(400, error.message, error.hint, _ways(View(site, 0, {}), "/jump")),
            400,
        )
    kept = {name: request.query_params[name] for name in KEPT if request.query_params.get(name)}
    if to == "document":
        target = view.document(wanted)
    elif to == "token":
        inside = number(request.query_params, "document", 0)
        target = view.href(f"/document/{inside}", at=wanted) + "#at"
    elif to == "row":
        target = view.href(f"/row/{wanted}", **{name: kept[name] for name in KEPT[:5] if name in kept})
    elif "run" in request.query_params:
        target = address("/run", run=request.query_params["run"], step=wanted)
    else:
        target = view.href("/batch", step=wanted, **kept)
    return RedirectResponse(target, 303)


def _static(request: Request) -> Response:
    name = request.path_params["name"]
    kinds = {"viewer.css": "text/css", "viewer.js": "text/javascript"}
    if name not in kinds:
        raise HTTPException(404)
    return Response(static(name)[0], media_type=kinds[name], headers={"cache-control": FOREVER})


def _icon(request: Request) -> Response:
    return Response(static("icon.svg")[0], media_type="image/svg+xml", headers={"cache-control": FOREVER})


def _missing(site: Site, request: Request, error: HTTPException) -> Response:
    text = "There is no such page" if error.status_code == 404 else str(error.detail)
    page = _error_page(error.status_code, text, "", _ways(View(site, 0, {}), request.url.path))
    return _html(View(site, 0, {}), request.url.path, page, error.status_code)


def _refusal(status: int, text: str, hint: str) -> str:
    return render_file(_error_page(status, text, hint), assets=assets())
