"""`packline push` and `packline pull` between folders and object stores."""

from __future__ import annotations

import os

from packline.cli.main import DONE, interrupted
from packline.cli.output import Line, output, table
from packline.cli.progress import watch_bytes
from packline.formats.copying import Copied
from packline.storage.places import without_secrets
from packline.stores import copy
from packline.viewing.text import duration, plural, size


def hide_bars_of_hub() -> None:
    """Let the hub's client draw its bars on a terminal alone; before it is imported."""
    if output.quiet or not output.interactive:
        os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"


def transfer(command: str, source: str, target: str, *, verify: bool) -> int:
    """Copy between places of which the hub's own client serves neither; print the result.

    Args:
        command: `push` or `pull`, for the result.
    """
    try:
        with watch_bytes("copying") as hear:
            copied = copy(source, target, verify=verify, on_progress=hear)
    except KeyboardInterrupt as error:
        return interrupted(error, "the files that are copied are kept")
    source, target = without_secrets(source), without_secrets(target)
    output.lines(_lines(copied, source, target))
    values = {name: getattr(copied, name) for name in copied.__struct_fields__}
    output.result({"command": command, "source": source, "target": target, "exit_code": DONE, **values})
    return DONE


def _lines(copied: Copied, source: str, target: str) -> list[Line]:
    whole = f"{plural(copied.files, 'file')}, {size(copied.bytes)}"
    if copied.found_files == copied.files:
        done = "nothing to do: all files are there"
    else:
        parts = [duration(copied.seconds)]
        if copied.linked_bytes:
            parts.insert(0, f"{size(copied.linked_bytes)} linked")
        if copied.found_files:
            parts.insert(0, f"{plural(copied.found_files, 'file')} there already")
        done = ", ".join(parts)
    checked = {
        "store": "checksums of the manifest while reading",
        "export": "checksums of packline.json while reading",
        "folder": "sizes, and checksums of what was read",
    }[copied.kind]
    if copied.linked_bytes and not copied.verified:
        checked = "sizes of linked files, checksums of the others"
    rows: list[Line] = [
        [("copied", "quiet"), (f"{source} -> {target}", "title")],
        [("holds", "quiet"), f"{'an export' if copied.kind == 'export' else f'a {copied.kind}'} of {whole}"],
        [("done", "quiet"), (done, "good")],
        [("checked", "quiet"), f"{checked}, and the target read back" if copied.verified else checked],
    ]
    if copied.left_out:
        rows.append([("left out", "quiet"), plural(copied.left_out, "hidden file")])
    return table(rows, "ll", width=output.wrap)
