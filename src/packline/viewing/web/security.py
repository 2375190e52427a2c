"""Access to the viewer's pages, and what a page may do: checked before anything else.

    Host          must name this machine, so that another site's script cannot reach it under that site's name
                  (DNS rebinding)
    method        GET and HEAD only: there is nothing to change
    token         required if others can reach the port: once as ?token=..., then as a cookie
    headers       a content security policy that allows the viewer's own style and script, and nothing inline
                  or from elsewhere; no frames, no sniffing, no referrer

Limits: connections are not encrypted. On a network that others can monitor, use a tunnel (`ssh -L`).
"""

from __future__ import annotations

import hmac
import ipaddress
import re
from collections.abc import Callable
from http.cookies import CookieError, SimpleCookie
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, quote, urlencode

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
COOKIE = "packline_{port}"
"""Name of the cookie; it includes the port because all ports of a host share cookies."""
POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self' data:; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = (
    ("content-security-policy", POLICY),
    ("x-content-type-options", "nosniff"),
    ("x-frame-options", "DENY"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-opener-policy", "same-origin"),
    ("cross-origin-resource-policy", "same-origin"),
    ("permissions-policy", "camera=(), geolocation=(), microphone=()"),
)
OPEN = ("/static/", "/favicon.ico")
"""Paths that need no token: they are the same for everyone, and the refusal page uses them."""

Refuse = Callable[[int, str, str], str]
"""Function from a status, what is wrong and what to do to a page."""


def is_loopback(host: str) -> bool:
    """Return True if only this machine can reach a server on this host.

    >>> is_loopback("127.0.0.1"), is_loopback("localhost"), is_loopback("0.0.0.0")
    (True, True, False)
    """
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


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
        if scope["type"] != "http":
            return
        headers = _headers(scope)
        hosts = headers.get("host", [])
        if len(hosts) != 1 or not self._known(host_name(hosts[0])):
            text = "The address that was asked for does not name this machine."
            await self._answer(send, 421, text, "Use the address that packline serve printed.")
        elif scope["method"] not in ("GET", "HEAD"):
            await self._answer(
                send, 405, "Pages can be read, and nothing else.", "", (("allow", "GET, HEAD"),)
            )
        elif self._token is not None and not scope["path"].startswith(OPEN):
            await self._with_token(self._token, headers, scope, receive, send)
        else:
            await self._app(scope, receive, _with_headers(send))

    async def _with_token(
        self, token: str, headers: dict[str, list[str]], scope: Scope, receive: Receive, send: Send
    ) -> None:
        params = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        given = [value for name, value in params if name == "token"]
        if any(_equal(value, token) for value in given):
            rest = urlencode([(name, value) for name, value in params if name != "token"])
            path = "/" + quote(scope["path"].lstrip("/\\"))  # `//host` would lead elsewhere
            cookie = f"{self._cookie}={token}; Path=/; HttpOnly; SameSite=Lax"
            where = (("location", path + (f"?{rest}" if rest else "")), ("set-cookie", cookie))
            await self._answer(send, 303, "This way.", "", where)
        elif any(_equal(value, token) for value in _cookies(headers, self._cookie)):
            await self._app(scope, receive, _with_headers(send))
        else:
            text = "This viewer asks for its token." if not given else "That is not this viewer's token."
            await self._answer(
                send, 401, text, "Open the address that packline serve printed, ?token= and all."
            )

    def _known(self, name: str | None) -> bool:
        if name is None:
            return False
        if name in self._names:
            return True
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return False
        # Addresses cannot be rebound; any address is accepted if the viewer listens beyond this machine.
        return address.is_loopback or self._token is not None

    async def _answer(
        self, send: Send, status: int, text: str, hint: str, more: tuple[tuple[str, str], ...] = ()
    ) -> None:
        body = self._refuse(status, text, hint).encode()
        found = (("content-type", "text/html; charset=utf-8"), ("content-length", str(len(body))), *more)
        headers = [(name.encode(), value.encode("latin-1")) for name, value in found]
        await _with_headers(send)({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})


def _with_headers(send: Send) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = list(message.get("headers", []))
            names = {name.lower() for name, _ in headers}
            headers += [(name.encode(), value.encode()) for name, value in HEADERS]
            if b"cache-control" not in names:
                headers.append((b"cache-control", b"private, no-cache"))
            message = {**message, "headers": headers}
        await send(message)

    return sending


def _headers(scope: Scope) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, value in scope["headers"]:
        found.setdefault(name.decode("latin-1").lower(), []).append(value.decode("latin-1"))
    return found


def _cookies(headers: dict[str, list[str]], name: str) -> list[str]:
    """Values of a cookie."""
    found = []
    for header in headers.get("cookie", []):
        cookies: SimpleCookie = SimpleCookie()
        try:
            cookies.load(header)
        except CookieError:
            continue
        if name in cookies:
            found.append(cookies[name].value)
    return found


def _equal(given: str, token: str) -> bool:
    """Compare tokens in constant time."""
    return hmac.compare_digest(given.encode("utf-8", "surrogatepass"), token.encode())
