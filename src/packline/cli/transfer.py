"""`packline push` and `packline pull` between folders and object stores."""

from __future__ import annotations

from collections.abc import Callable

from packline.cli.main import DONE, interrupted
from packline.cli.output import Line, output, table
from packline.formats.copying import Copied, OnProgress
from packline.storage.places import without_secrets
from packline.stores import copy
from packline.viewing.text import bar, duration, plural, size


def transfer(command: str, source: str, target: str, *, verify: bool) -> int:
    """Copy between places of which the hub's own client serves neither; print the result.

    Args:
        command: `push` or `pull`, for the result.
    """

    def run(hear: OnProgress | None) -> Copied:
        return copy(source, target, verify=verify, on_progress=hear)

    try:
        copied = _with_bar(run)
    except KeyboardInterrupt as error:
        return interrupted(error, "the files that are copied are kept")
    source, target = without_secrets(source), without_secrets(target)
    output.lines(_lines(copied, source, target))
    values = {name: getattr(copied, name) for name in copied.__struct_fields__}
    output.result({"command": command, "source": source, "target": target, "exit_code": DONE, **values})
    return DONE


def _with_bar(run: Callable[[OnProgress | None], Copied]) -> Copied:
    done = [0, 1]

    def hear(read: int, whole: int) -> None:
        done[:] = [read, max(whole, 1)]

    def draw(width: int) -> list[Line]:
        full, rest = bar(done[0] / done[1], min(width - 50, 40))
        share = f" {done[0] / done[1]:4.0%}  {size(done[0])} of {size(done[1])}"
        return [["  copying  ", (full, "good"), (rest, "quiet"), share]]

    if not output.interactive:
        return run(None)
    with output.live(draw):
        return run(hear)


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
