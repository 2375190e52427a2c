"""`packline serve`: stores as pages in a browser."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Group, Parameter

from packline.cli.arguments import option
from packline.cli.output import output
from packline.conversion import is_toml
from packline.viewing.text import plural

SERVER = Group("Server", sort_key=5)
SHOWN = Group("Contents", sort_key=10)


def serve(
    *stores: Annotated[str, Parameter(help="Folders of finished stores, and run files (.toml).")],
    port: Annotated[int, Parameter(help="Port number; 0: any free port.", group=SERVER)] = 8642,
    host: Annotated[
        str,
        Parameter(help="Host to listen on. Beyond this machine, pages require a token.", group=SERVER),
    ] = "127.0.0.1",
    allow_host: Annotated[
        list[str] | None,
        option("Further name of this machine, such as that of a proxy. May be repeated.", SERVER),
    ] = None,
    tokenizer: Annotated[
        list[str] | None,
        option("Tokenizer to compare with. May be repeated.", SHOWN),
    ] = None,
) -> int:
    """Show stores and runs in a browser.

    Pages of sources, documents, rows, batches and runs with every token as the
    tokenizer split it; search; comparison of tokenizers. Only this machine can
    open them by default; with --host, pages require a token. Writes nothing.
    Needs packline[web].

    Examples:

      packline serve store
      packline serve run.toml
      packline serve store --tokenizer Qwen/Qwen3-8B
      packline serve old new --port 0
      packline serve store --host 0.0.0.0
    """
    from packline.errors import RecipeError
    from packline.viewing.web.serving import check_installed, listen, run_server

    if not stores:
        raise RecipeError("no store was named", hint="packline serve STORE, or packline serve run.toml")
    check_installed()
    listening = listen(host, port, names=tuple(allow_host or ()))
    with listening.socket:
        from packline.viewing.web.app import warm_up
        from packline.viewing.web.site import Site

        runs = [one for one in stores if is_toml(one)]
        folders = [one for one in stores if one not in runs]
        site = Site(folders, tokenizer or (), runs=runs)
        warm_up(site)
        documents = sum(len(opened.store.documents) for opened in site.stores)
        held = plural(documents, "document")
        output.line("  ", ("packline serve", "title"), f"  {plural(len(site.stores), 'store')}, {held}")
        output.line()
        output.line("  ", (listening.url, "number"))
        output.line()
        if listening.token is not None:
            output.line(
                "  ", ("others can reach this port; the pages require the token of this address", "quiet")
            )
        output.line("  ", ("Ctrl-C stops it", "quiet"))
        code = output.result("serve", url=listening.url, port=listening.port, token=listening.token)
        run_server(site, listening)
    return code
