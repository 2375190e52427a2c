"""Addresses of repositories on the hub.

hf://datasets/ORG/NAME             a dataset repository, its branch main
hf://datasets/ORG/NAME@REVISION    a branch, a tag or a commit
hf://ORG/NAME                      a model repository; tokenizers are kept in one
"""

from __future__ import annotations

import re
from typing import Literal

import msgspec

from packline.errors import RecipeError

SCHEME = "hf://"
RepositoryKind = Literal["dataset", "model"]
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,94}[A-Za-z0-9])?")
_HINT = "write hf://datasets/ORG/NAME or, for a tokenizer, hf://ORG/NAME; @REVISION may follow"


class HubPlace(msgspec.Struct, frozen=True):
    """A repository on the hub, and a revision of it."""

    kind: RepositoryKind
    repository: str
    """`ORG/NAME`."""
    revision: str | None = None
    """Branch, tag or commit; None for the branch main."""

    def __str__(self) -> str:
        return f"{self.unpinned}@{self.revision}" if self.revision else self.unpinned

    @property
    def unpinned(self) -> str:
        """The address without a revision."""
        return f"{SCHEME}datasets/{self.repository}" if self.kind == "dataset" else SCHEME + self.repository

    def at(self, revision: str) -> HubPlace:
        """The same repository at another revision."""
        return HubPlace(self.kind, self.repository, revision)


def is_hub(place: str) -> bool:
    """True for an address on the hub.

    >>> is_hub("hf://datasets/org/name"), is_hub("s3://bucket/name")
    (True, False)
    """
    return place.startswith(SCHEME)


def parse_place(text: str) -> HubPlace:
    """Parse the address of a repository.

    Raises:
        RecipeError: not an address of a dataset or model repository; `hint` shows the form.

    >>> parse_place("hf://datasets/org/tokens@v1")
    HubPlace(kind='dataset', repository='org/tokens', revision='v1')
    >>> str(parse_place("hf://org/tokenizer"))
    'hf://org/tokenizer'
    """
    if not is_hub(text):
        raise RecipeError(f"{text} is no address on the hub: expected it to begin with {SCHEME}", hint=_HINT)
    path, _, revision = text.removeprefix(SCHEME).partition("@")
    kind: RepositoryKind = "model"
    first, _, rest = path.partition("/")
    if first == "buckets":
        raise RecipeError(
            f"{text} is a bucket, which keeps no revisions: push and pull need a repository",
            hint="write hf://datasets/ORG/NAME",
        )
    if first in ("datasets", "models"):
        kind, path = ("dataset" if first == "datasets" else "model"), rest
    parts = path.strip("/").split("/")
    if first == "spaces" or len(parts) != 2 or not all(_NAME.fullmatch(part) for part in parts):
        raise RecipeError(f"{text} names no repository: expected two parts, ORG and NAME", hint=_HINT)
    return HubPlace(kind, "/".join(parts), revision or None)
