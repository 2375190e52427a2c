"""Names of work units, and of the files that a unit writes (docs/store.md, "Work units and names")."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from packline.errors import RecipeError
from packline.fingerprint import hash_bytes

STREAM = ".stream"
MOST_CHARACTERS = 80
_UNIT = re.compile(r"([A-Za-z0-9_][A-Za-z0-9_.-]*?)-(\d{6,})(?:-(\d{6,}))?")


class UnitName(NamedTuple):
    """Parts of the name of a unit."""

    slug: str
    number: int
    slice: int | None = None

    def __str__(self) -> str:
        return self.planned if self.slice is None else f"{self.planned}-{self.slice:06d}"

    @property
    def planned(self) -> str:
        """Name of the planned unit: for a slice, that of its stream."""
        return f"{self.slug}-{self.number:06d}"

    @property
    def place(self) -> tuple[int, int]:
        """Sort key within a source."""
        return self.number, -1 if self.slice is None else self.slice


def parse_unit(name: str) -> UnitName | None:
    """Parts of a unit's name; None if it is not one.

    >>> parse_unit("web-000007-000002")
    UnitName(slug='web', number=7, slice=2)
    >>> parse_unit("web-7") is None
    True
    """
    if (match := _UNIT.fullmatch(name)) is None:
        return None
    slug, number, piece = match.groups()
    return UnitName(slug, int(number), None if piece is None else int(piece))


def planned_name(name: str) -> str:
    """Name of the planned unit that a unit belongs to: for a slice, that of its stream."""
    unit = parse_unit(name)
    return name if unit is None else unit.planned


def slug_of(source: str) -> str:
    """Name of a source as part of file names: the name itself where it is plain, else with a hash of it.

    >>> slug_of("web"), slug_of("common crawl/de")
    ('web', 'common_crawl_de.ad9cab53')
    """
    slug = re.sub(r"[^A-Za-z0-9_.-]", "_", source)
    slug = f"_{slug}" if slug[:1] in ("", ".", "-") else slug
    if slug == source and len(slug) <= MOST_CHARACTERS and not re.search(r"-\d{6,}$", slug):
        return slug
    return f"{slug[:MOST_CHARACTERS]}.{hash_bytes(source.encode())[:8]}"


def source_slugs(names: Sequence[str]) -> list[str]:
    """Slugs of the sources of a recipe."""
    slugs: dict[str, str] = {}
    for name in names:
        slug = slug_of(name)
        if slug in slugs:
            raise RecipeError(
                f"sources {slugs[slug]!r} and {name!r} would write files of the same name {slug}",
                hint="rename one of them",
            )
        slugs[slug] = name
    return list(slugs)
