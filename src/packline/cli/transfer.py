"""`packline push` and `packline pull` between folders and object stores."""

from __future__ import annotations

import os

from packline.cli.main import resumable
from packline.cli.output import output
from packline.cli.progress import some, watch_bytes
from packline.formats.copying import copy
from packline.storage.places import without_secrets
from packline.viewing.text import duration, plural, size


def hide_bars_of_hub() -> None:
    """Let the hub's client draw its bars on a terminal alone; before it is imported."""
    if output.quiet or not output.interactive:
        os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"


def transfer(command: str, source: str, target: str, *, verify: bool) -> int:
    """Copy between places of which the hub's own client serves neither; print the result."""
    with resumable(lambda: "the files that are copied are kept"), watch_bytes("copying") as hear:
        copied = copy(source, target, verify=verify, on_progress=hear)
    source, target = without_secrets(source), without_secrets(target)
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
    output.facts(
        {
            "copied": (f"{source} -> {target}", "title"),
            "holds": f"{'an export' if copied.kind == 'export' else f'a {copied.kind}'} of {whole}",
            "done": (done, "good"),
            "checked": f"{checked}{some(copied.verified, ', and the target read back')}",
            "left out": some(copied.left_out, plural(copied.left_out, "hidden file")),
        }
    )
    return output.result(command, copied, source=source, target=target)
