"""Token boundaries are seen without hue: neighboring grounds differ in lightness, and texts can be read."""

from __future__ import annotations

import itertools
import re

import pytest

from packline.viewing.html import style

BOUNDARY = 1.2
"""Least contrast of neighboring grounds."""
TEXT = 4.5
"""Least contrast of text and ground (WCAG 2, AA)."""


def colors(scheme: int) -> dict[str, str]:
    """Colors of the light scheme, 0, or the dark one, 1, by name."""
    found = re.findall(r"--([a-z0-9-]+): light-dark\((#[0-9a-f]{6}), (#[0-9a-f]{6})\);", style())
    return {name: both[scheme] for name, *both in found}


def contrast(one: str, other: str) -> float:
    """Contrast of two colors by WCAG 2.

    >>> round(contrast("#ffffff", "#000000"))
    21
    """
    low, high = sorted(map(luminance, (one, other)))
    return (high + 0.05) / (low + 0.05)


def luminance(color: str) -> float:
    parts = [int(color[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_neighboring_grounds_differ_in_lightness(scheme: int) -> None:
    known = colors(scheme)
    grounds = [known[f"token-{number}"] for number in range(1, 5)]
    for one, other in itertools.pairwise([*grounds, grounds[0]]):
        assert contrast(one, other) >= BOUNDARY, (one, other)
    assert contrast(known["paper"], known["token-n"]) >= BOUNDARY
    for ground in (*grounds, known["token-n"], known["paper"]):
        for ink in ("ink", "quiet", "bad"):
            assert contrast(known[ink], ground) >= TEXT, (ink, ground)
    assert contrast(known["special-ink"], known["special"]) >= TEXT
