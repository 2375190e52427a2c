"""Access to the viewer's pages, and what a page may do: checked before anything else.

    Host          must name this machine, so that another site's script cannot reach it under that site's name
                  (DNS rebinding)
    method        GET and HEAD only: there is nothing to change
    token         required if others can reach the port: once as ?token=..., then as a cookie
    headers       a content security policy that allows the viewer's own style and script, and nothing inline
                  or from elsewhere; no frames, no sniffing, no referrer

Starlette's TrustedHostMiddleware takes a list of names; here any address of the machine is valid, since
addresses cannot be rebound, and two Host headers are refused.

Limits: connections are not encrypted. On a network that others can monitor, use a tunnel (`ssh -L`).
"""

from __future__ import annotations

import hmac
import ipaddress
import re
from collections.abc import Callable
from urllib.parse import quote, urlencode

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

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
    """Name or address in a Host header, in lower case; None if the header is invalid.

    >>> host_name("LocalHost:8080"), host_name("[::1]:80"), host_name("a b")
    ('localhost', '::1', None)
    """
    found = re.fullmatch(r"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9._-]+))(?::[0-9]{1,5})?", header)
    return None if found is None else (found[1] or found[2]).lower().rstrip(".")


class Guard:
    """ASGI middleware that rejects requests that are not allowed.

    Args:
        app: application of the site.
        port: port that it is served on, part of the cookie's name.
        names: names of this machine accepted in a Host header, in addition to its addresses.
        token: token required of every reader; None if only this machine can connect.
        refuse: makes the page of a refusal.
    """

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
    """Compare tokens in constant time."""
    return hmac.compare_digest(given.encode("utf-8", "surrogatepass"), token.encode())
