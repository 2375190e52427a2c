"""`packline merge`: several stores become one, by links."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from packline.cli.main import resumable
from packline.cli.output import Facts, output
from packline.jobs.events import Event, Note
from packline.jobs.merging import Merged, run_merge
from packline.viewing.text import duration, plural, size


def merge(
    stores: Annotated[list[str], Parameter(help="Folders of two or more finished stores.", negative="")],
    /,
    *,
    out: Annotated[
        str, Parameter(help="Output folder: new, empty, or with this merge unfinished.", alias="-o")
    ],
) -> int:
    """Combine several stores into one, by hard links.

    STORES have different sources, and the same tokenizer and common settings. Files
    are hard links, or copies on another disk; no token is read. The result is what
    one build of all the sources gives, byte for byte, with the sources of the first
    store first. Checked are all settings, the sizes of all files and the checksums
    of manifests and tables. After an interruption the same command resumes.

    Examples:

      packline merge books web --out both
      packline merge monday tuesday wednesday --out week

    Exit codes: 0 done, 1 error, 2 wrong usage, 129, 130 or 143 interrupted.
    """
    notes: list[str] = []

    def hear(event: Event) -> None:
        if isinstance(event, Note):
            notes.append(event.text)
            output.note(event.text)

    with resumable(lambda: "the units that are linked are kept"):
        merged = run_merge(stores, out, on_event=hear)
    output.facts(_facts(merged, stores, out))
    manifest = merged.manifest
    return output.result(
        "merge",
        stores=stores,
        store=out,
        nothing_to_do=merged.nothing_to_do,
        documents=manifest.documents,
        tokens=manifest.tokens,
        sources=list(manifest.sources),
        shards=len(manifest.shards),
        store_bytes=manifest.store_bytes,
        linked_bytes=merged.linked_bytes,
        copied_bytes=merged.copied_bytes,
        seconds=merged.seconds,
        notes=notes,
    )


def _facts(merged: Merged, stores: list[str], out: str) -> Facts:
    manifest = merged.manifest
    counts = f"{plural(manifest.documents, 'document')}, {plural(manifest.tokens, 'token')}"
    shared = f"{size(merged.linked_bytes)} linked"
    if merged.copied_bytes:
        shared += f", {size(merged.copied_bytes)} copied"
    checked = "sizes of all files, checksums of manifests and tables"
    done = f"{shared}, {duration(merged.seconds)}"
    if merged.nothing_to_do:
        done, checked = "nothing to do: the store is complete", "settings, manifests and tables"
    return {
        "store": (out, "title"),
        "holds": f"{counts} of {plural(len(manifest.sources), 'source')}",
        "merged": ", ".join(stores),
        "done": (done, "good"),
        "checked": checked,
        "check it": f"packline verify {out}",
    }
