"""Listen on a port, serve the site until it is interrupted, and decide who may read it.

    Host          must name this machine, so that another site's script cannot reach it under that site's name
                  (DNS rebinding); Starlette's TrustedHostMiddleware takes names only, and no address
    method        GET and HEAD only: there is nothing to change
    token         required if others can reach the port: once as ?token=..., then as a cookie
    headers       a content security policy that allows the viewer's own style and script, and nothing inline
                  or from elsewhere; no frames, no sniffing, no referrer

Limits: connections are not encrypted. On a network that others can monitor, use a tunnel (`ssh -L`).
"""

from __future__ import annotations

import contextlib
import hmac
import importlib
import ipaddress
import re
import secrets
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import quote, urlencode

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from packline.errors import PacklineError, RecipeError

if TYPE_CHECKING:
    from packline.viewing.web.site import Site


PORT = 8642
REQUEST_BYTES = 128 << 10
"""Maximum size of a request's first line and headers: room for a text of 8,000 characters in an address."""
INSTALL = "pip install 'packline[web]'"
LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})


@dataclass(frozen=True)
class Listening:
    """A listening socket, and the conditions for access."""

    socket: socket.socket
    host: str
    port: int
    token: str | None
    names: frozenset[str]

    @property
    def url(self) -> str:
        name = "127.0.0.1" if self.host == "localhost" else self.host
        if name in ("0.0.0.0", "::"):
            name = socket.gethostname()
        shown = f"[{name}]" if ":" in name else name
        return f"http://{shown}:{self.port}/" + (f"?token={self.token}" if self.token else "")


def is_loopback(host: str) -> bool:
    """Return True if only this machine can reach a server on this host."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def check_installed() -> None:
    try:
        for name in ("starlette", "uvicorn"):
            importlib.import_module(name)
    except ImportError as error:
        missing = error.name or str(error)
        raise PacklineError(f"the viewer needs {missing}, which is not installed", hint=INSTALL) from error


def listen(host: str = "127.0.0.1", port: int = PORT, *, names: tuple[str, ...] = ()) -> Listening:
    """Open the port."""
    if not 0 <= port < 65536:
        raise RecipeError(f"port is {port}: expected 0 to 65535")
    host = host.strip("[]")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    both = family == socket.AF_INET6 and socket.has_dualstack_ipv6()
    place = ("127.0.0.1" if host == "localhost" else host, port)
    try:
        opened = socket.create_server(place, family=family, backlog=128, dualstack_ipv6=both)
    except (OSError, UnicodeError) as error:
        raise PacklineError(
            f"cannot listen on {host} at port {port}: {error}",
            hint="--port 0 takes any free port; --host is an address of this machine, or 0.0.0.0",
        ) from error
    own = frozenset(name.lower().rstrip(".") for name in (host, *names))
    if is_loopback(host):
        return Listening(opened, host, opened.getsockname()[1], None, own | LOOPBACK_NAMES)
    own |= {socket.gethostname().lower()} | LOOPBACK_NAMES
    return Listening(opened, host, opened.getsockname()[1], secrets.token_urlsafe(24), own)


def run_server(site: Site, listening: Listening) -> None:
    check_installed()
    import uvicorn

    from packline.viewing.web.app import make_site_app

    app = make_site_app(site, port=listening.port, names=listening.names, token=listening.token)
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        http="h11",
        ws="none",
        lifespan="off",
        server_header=False,
        proxy_headers=False,
        h11_max_incomplete_event_size=REQUEST_BYTES,
        timeout_graceful_shutdown=1,
    )
    with contextlib.suppress(KeyboardInterrupt), listening.socket:
        uvicorn.Server(config).run(sockets=[listening.socket])


COOKIE = "packline_{port}"
"""Name of the cookie; it includes the port because all ports of a host share cookies."""
POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}
OPEN = ("/static/", "/favicon.ico")
"""Paths that need no token: they are the same for everyone, and the refusal page uses them."""

Refuse = Callable[[int, str, str], str]
"""Function from a status, the problem and the remedy to a page."""


def host_name(header: str) -> str | None:
    """Name or address in a Host header, in lower case; None if the header is invalid."""
    found = re.fullmatch(r"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9._-]+))(?::[0-9]{1,5})?", header)
    return None if found is None else (found[1] or found[2]).lower().rstrip(".")


class Guard:
    """ASGI middleware that rejects requests that are not allowed."""

    def __init__(
        self, app: ASGIApp, *, port: int, names: frozenset[str], token: str | None, refuse: Refuse
    ) -> None:
        self._app, self._names, self._token, self._refuse = app, names, token, refuse
        self._cookie = COOKIE.format(port=port)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            answer = self._check(Request(scope)) or self._app
            await answer(scope, receive, _with_headers(send))

    def _check(self, request: Request) -> Response | None:
        """Answer to a request that is not passed on; None for one that is."""
        hosts = request.headers.getlist("host")
        if len(hosts) != 1 or not self._is_own(host_name(hosts[0])):
            text = "The address of the request does not name this machine."
            return self._answer(421, text, "Use the address that packline serve printed.")
        if request.method not in ("GET", "HEAD"):
            return self._answer(405, "Pages can only be read.", allow="GET, HEAD")
        if self._token is None or request.url.path.startswith(OPEN):
            return None
        params = request.query_params.multi_items()
        given = [value for name, value in params if name == "token"]
        if any(_equal(value, self._token) for value in given):
            rest = urlencode([(name, value) for name, value in params if name != "token"])
            path = "/" + quote(request.scope["path"].lstrip("/\\"))  # `//host` would lead elsewhere
            answer = self._answer(303, "See the address without the token.")
            answer.headers["location"] = path + (f"?{rest}" if rest else "")
            answer.set_cookie(self._cookie, self._token, httponly=True, samesite="lax")
            return answer
        if _equal(request.cookies.get(self._cookie, ""), self._token):
            return None
        text = "That is not this viewer's token." if given else "This viewer requires its token."
        return self._answer(401, text, "Open the whole address that packline serve printed, with ?token=.")

    def _is_own(self, name: str | None) -> bool:
        if name is None or name in self._names:
            return name is not None
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return False
        # Addresses cannot be rebound; any address is accepted if the viewer listens beyond this machine.
        return address.is_loopback or self._token is not None

    def _answer(self, status: int, text: str, hint: str = "", **headers: str) -> Response:
        return HTMLResponse(self._refuse(status, text, hint), status, headers)


def _with_headers(send: Send) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            headers.update(HEADERS)
            headers.setdefault("cache-control", "private, no-cache")
        await send(message)

    return sending


def _equal(given: str, token: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "surrogatepass"), token.encode())
