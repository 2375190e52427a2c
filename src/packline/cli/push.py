"""`packline push`: a store, an export or another folder to the hub or an object store."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from packline.cli.arguments import MAIN, option
from packline.cli.main import resumable
from packline.cli.output import Facts, output
from packline.cli.transfer import hide_bars_of_hub, transfer
from packline.errors import RecipeError
from packline.hub.push import Pushed
from packline.hub.push import push as push_folder
from packline.storage.places import HUB, is_remote, without_secrets
from packline.viewing.text import duration, plural, size


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
        return transfer("push", folder, to, verify=verify)
    if verify:
        raise RecipeError(
            "--verify is for folders and object stores: the hub compares the checksums of what is sent"
        )
    hide_bars_of_hub()
    with resumable(lambda: "what is committed is kept"):
        pushed = push_folder(folder, to, private=not public, licence=licence)
    for note in pushed.notes:
        output.note(("note: ", "warning"), note)
    output.facts(_facts(pushed, folder))
    return output.result("push", pushed, folder=folder)


def _facts(pushed: Pushed, folder: str) -> Facts:
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
