"""`packline pull`: what is on the hub or in an object store becomes a folder, checked."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter
from msgspec import structs

from packline.cli.arguments import MAIN, option
from packline.cli.main import resumable
from packline.cli.output import output
from packline.cli.transfer import hide_bars_of_hub, transfer
from packline.errors import RecipeError
from packline.hub.pull import pull as pull_folder
from packline.storage.places import HUB, is_remote, without_secrets
from packline.viewing.text import duration, plural, size


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
        return transfer("pull", source, out, verify=verify)
    if verify:
        raise RecipeError(
            f"--verify is for object stores: files of {without_secrets(source)} are always compared"
        )
    hide_bars_of_hub()
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
