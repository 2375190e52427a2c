"""`packline pull`: a repository on the hub becomes a folder, checked."""

from __future__ import annotations

import os
from typing import Annotated

from cyclopts import Parameter

from packline.cli.arguments import Flags
from packline.cli.main import DONE, interrupted
from packline.cli.output import Line, output, table
from packline.hub.pull import Pulled
from packline.hub.pull import pull as pull_folder
from packline.viewing.text import duration, plural, size

_FLAGS = Flags()


def pull(
    source: Annotated[str, Parameter(help="hf://datasets/ORG/NAME or hf://ORG/NAME; @REVISION may follow.")],
    out: Annotated[str, Parameter(help="Folder to make: absent, empty, or an interrupted pull.")],
    *,
    flags: Flags = _FLAGS,
) -> int:
    """Pull a folder; see `help_texts`."""
    if output.quiet or not output.interactive:
        os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
    try:
        pulled = pull_folder(source, out)
    except KeyboardInterrupt as error:
        return interrupted(error, "the files that are complete are kept")
    output.lines(_lines(pulled, out))
    output.result(
        {
            "command": "pull",
            "source": source,
            "folder": out,
            "exit_code": DONE,
            "pinned": pulled.place,
            "revision": pulled.revision,
            "kind": pulled.kind,
            "files": pulled.files,
            "bytes": pulled.bytes,
            "fetched_files": pulled.fetched_files,
            "nothing_to_do": pulled.nothing_to_do,
            "seconds": pulled.seconds,
        }
    )
    return DONE


def _lines(pulled: Pulled, out: str) -> list[Line]:
    done = f"{plural(pulled.files, 'file')}, {size(pulled.bytes)}, checked, {duration(pulled.seconds)}"
    if pulled.nothing_to_do:
        done = "nothing to do: the folder is at this commit"
    rows: list[Line] = [
        [(pulled.kind, "quiet"), (out, "title")],
        [("done", "quiet"), (done, "good")],
        [("pinned", "quiet"), pulled.place],
    ]
    if pulled.kind == "store":
        rows.append([("look at it", "quiet"), f"packline info {out}"])
    return table(rows, "ll", width=output.wrap)
