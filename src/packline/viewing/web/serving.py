"""Listen on a port and serve the site until it is interrupted.

The socket is opened first, so that a port in use is reported at once; port 0 selects a free one. Requests are
not logged; errors go to standard error.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import ipaddress
import secrets
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING

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
        """Address to open in a browser."""
        name = "127.0.0.1" if self.host == "localhost" else self.host
        if name in ("0.0.0.0", "::"):
            name = socket.gethostname()
        shown = f"[{name}]" if ":" in name else name
        return f"http://{shown}:{self.port}/" + (f"?token={self.token}" if self.token else "")


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


def check_installed() -> None:
    """Check that the viewer's libraries are installed.

    Raises:
        PacklineError: a library is missing; the error names what to install.
    """
    try:
        for name in ("starlette", "uvicorn"):
            importlib.import_module(name)
    except ImportError as error:
        missing = error.name or str(error)
        raise PacklineError(f"the viewer needs {missing}, which is not installed", hint=INSTALL) from error


def listen(host: str = "127.0.0.1", port: int = PORT, *, names: tuple[str, ...] = ()) -> Listening:
    """Open the port.

    Args:
        host: host to listen on; if others can reach it, a token is made that every reader must present.
        port: port number; 0: any free port.
        names: additional names of this machine.

    Raises:
        RecipeError: the port number is invalid.
        PacklineError: the port is in use, or cannot be opened.

    >>> listening = listen(port=0)
    >>> listening.token is None and listening.url.startswith("http://127.0.0.1:")
    True
    >>> listening.socket.close()
    """
    if not 0 <= port < 65536:
        raise RecipeError(f"port is {port}: expected 0 to 65535")
    host = host.strip("[]")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            "127.0.0.1" if host == "localhost" else host, port, type=socket.SOCK_STREAM
        )[0]
    except (OSError, UnicodeError) as error:
        raise PacklineError(
            f"cannot listen on {host}: it is not an address of this machine",
            hint="--host 127.0.0.1 or 0.0.0.0",
        ) from error
    opened = socket.socket(family, kind, protocol)
    try:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        opened.bind(address)
        opened.listen(128)
    except OSError as error:
        opened.close()
        raise _cannot_listen(host, port, error) from error
    own = frozenset(name.lower().rstrip(".") for name in (host, *names))
    if is_loopback(host):
        return Listening(opened, host, opened.getsockname()[1], None, own | LOOPBACK_NAMES)
    own |= {socket.gethostname().lower()} | LOOPBACK_NAMES
    return Listening(opened, host, opened.getsockname()[1], secrets.token_urlsafe(24), own)


def _cannot_listen(host: str, port: int, error: OSError) -> PacklineError:
    if error.errno == errno.EADDRINUSE:
        return PacklineError(
            f"port {port} of {host} is in use by another program",
            hint="choose another with --port, or any that is free with --port 0",
        )
    if error.errno == errno.EACCES:
        return PacklineError(f"cannot open port {port}: {error.strerror}", hint="--port 1024 or above")
    return PacklineError(f"cannot listen on {host} at port {port}: {error.strerror}", hint="--host 127.0.0.1")


def run_server(site: Site, listening: Listening) -> None:
    """Serve pages until Ctrl-C or a termination signal, then return.

    Raises:
        PacklineError: the viewer's libraries are missing.
    """
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
