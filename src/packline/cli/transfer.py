"""`packline push` and `packline pull`: folders to and from the hub and object stores."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from msgspec import structs

from packline.cli.arguments import MAIN, option
from packline.cli.main import resumable
from packline.cli.output import Facts, output
from packline.cli.progress import some, watch_bytes
from packline.errors import RecipeError
from packline.formats.copying import copy
from packline.storage.places import HUB, is_remote, without_secrets
from packline.viewing.text import duration, plural, size

if TYPE_CHECKING:
    from packline.hub.push import Pushed


def push(
    folder: Annotated[
        str, Parameter(help="Folder of a finished store, export, tokenizer or evaluation sets, or a URI.")
    ],
    to: Annotated[
        str,
        Parameter(
            help="hf://datasets/ORG/NAME; for a tokenizer hf://ORG/NAME; @BRANCH may follow. Or s3://, gs://"
            " or az://: new, empty, or with a part of this copy."
        ),
    ],
    *,
    verify: Annotated[
        bool, option("Also read the target back and compare it. Not for the hub.", MAIN)
    ] = False,
    public: Annotated[
        bool,
        option(
            "Make a new repository of the hub public. Default: private. An existing one keeps its own.", MAIN
        ),
    ] = False,
    licence: Annotated[
        str | None,
        Parameter(name=["--license"], help="Licence for the hub's card, such as odc-by.", group=MAIN),
    ] = None,
) -> int:
    """Send a store, an export or a folder to the hub or an object store.

    TO is hf://, s3://, gs:// or az://. Files are compared with the
    checksums of the manifest, which comes last: what has one is complete. The same
    command continues an interrupted push.

    In an object store files are created, never overwritten. FOLDER may be a URI,
    too. Hidden files are left out. packline pull copies into a folder.

    To the hub go stores, exports, tokenizers and evaluation sets, with a card
    (README.md) that is made from the manifest; what you write around its marked
    part is kept. A new repository is private. Needs a token that may write:
    `hf auth login` or HF_TOKEN.

    Examples:

      packline push store hf://datasets/org/tokens
      packline push store hf://datasets/org/tokens@v2 --public --license odc-by
      packline push mytok hf://org/tokenizer
      packline push store s3://bucket/stores/web
      packline push s3://bucket/stores/web gs://other/stores/web --verify

    Exit codes: 0 done, 1 error, 2 wrong usage, 129, 130 or 143 interrupted.
    """
    if not to.startswith(HUB):
        for name, given in {"--public": public, "--license": licence}.items():
            if given:
                raise RecipeError(f"{name} is for the hub: {without_secrets(to)} is another place")
        if not is_remote(to):
            raise RecipeError(
                f"{to} is a folder: expected hf://datasets/ORG/NAME, s3://, gs:// or az://",
                hint=f"packline pull {without_secrets(folder)} {to} copies into a folder",
            )
        return _transfer("push", folder, to, verify=verify)
    if verify:
        raise RecipeError(
            "--verify is for folders and object stores: the hub compares the checksums of what is sent"
        )
    _hide_bars_of_hub()
    from packline.hub.push import push as push_folder

    with resumable(lambda: "what is committed is kept"):
        pushed = push_folder(folder, to, private=not public, licence=licence)
    for note in pushed.notes:
        output.note(("note: ", "warning"), note)
    output.facts(_pushed_facts(pushed, folder))
    return output.result("push", pushed, folder=folder)


def _pushed_facts(pushed: Pushed, folder: str) -> Facts:
    sent = f"{plural(pushed.sent_files, 'file')}, {size(pushed.sent_bytes)} in {duration(pushed.seconds)}"
    if pushed.removed_files:
        sent += f", {plural(pushed.removed_files, 'earlier file')} removed"
    if pushed.nothing_to_do:
        sent = "nothing to do: the repository has everything"
    made = {True: "new, private", False: "new, public", None: "existing"}[pushed.private]
    return {
        pushed.kind: (folder, "title"),
        "repository": f"{pushed.url} ({made})",
        "holds": f"{plural(pushed.files, 'file')}, {size(pushed.bytes)}",
        "sent": (sent, "good"),
        "revision": pushed.revision,
        "fetch it": f"packline pull {pushed.place.partition('@')[0]}@{pushed.revision} FOLDER",
    }


def pull(
    source: Annotated[
        str,
        Parameter(help="hf://datasets/ORG/NAME or hf://ORG/NAME, @REVISION may follow; s3://, gs://, az://."),
    ],
    out: Annotated[str, Parameter(help="Folder to make: absent, empty, or an interrupted pull.")],
    *,
    verify: Annotated[
        bool, option("Also read OUT back and compare it. From the hub always so.", MAIN)
    ] = False,
) -> int:
    """Fetch a store, an export or a folder from the hub or an object store.

    Compares every file with the checksums of the manifest. The same command
    continues an interrupted pull. From an object store the manifest comes last: a
    folder that has one is complete.

    From the hub the revision is resolved to a commit, and the folder is made in
    one step. Prints the commit: a run that names it reads the same bytes for ever.

    Examples:

      packline pull hf://datasets/org/tokens store
      packline pull hf://datasets/org/tokens@v1 store
      packline pull hf://org/tokenizer mytok
      packline pull s3://bucket/stores/web web --verify

    Exit codes: 0 done, 1 error, 2 wrong usage, 129, 130 or 143 interrupted.
    """
    if not source.startswith(HUB) or is_remote(out):
        return _transfer("pull", source, out, verify=verify)
    if verify:
        raise RecipeError(
            f"--verify is for object stores: files of {without_secrets(source)} are always compared"
        )
    _hide_bars_of_hub()
    from packline.hub.pull import pull as pull_folder

    with resumable(lambda: "the files that are complete are kept"):
        pulled = pull_folder(source, out)
    done = f"{plural(pulled.files, 'file')}, {size(pulled.bytes)}, checked, {duration(pulled.seconds)}"
    if pulled.nothing_to_do:
        done = "nothing to do: the folder is at this commit"
    look = f"packline info {out}" if pulled.kind == "store" else ""
    output.facts(
        {pulled.kind: (out, "title"), "done": (done, "good"), "pinned": pulled.place, "look at it": look}
    )
    values = structs.asdict(pulled) | {"folder": out, "source": source, "pinned": pulled.place}
    del values["place"]
    return output.result("pull", values)


def _hide_bars_of_hub() -> None:
    """Let the hub's client draw its bars on a terminal alone; before it is imported."""
    if output.quiet or not output.interactive:
        os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"


def _transfer(command: str, source: str, target: str, *, verify: bool) -> int:
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
