"""Turns of a conversation: found in its tokens, by the control tokens that chat formats begin them with.

A store keeps tokens and a loss mask, no messages. Only control tokens begin a turn, never text that looks
like one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby, pairwise

from packline.viewing.page import Cell, DocumentOrigin, Link, Links, TokenStrip
from packline.viewing.text import percent, plural

BEFORE_ROLE = frozenset({"<|im_start|>", "<|start_header_id|>", "<start_of_turn>", "<|start|>"})
"""Control tokens that a role follows as text."""
WITH_ROLE = re.compile(
    r"<[|｜](system|developer|user|assistant|tool|observation|ipython|python|output)(?:_start)?[|｜]>",
    re.IGNORECASE,
)
"""Control tokens that contain a role."""
MISTRAL = {"[INST]": "user", "[/INST]": "assistant", "[SYSTEM_PROMPT]": "system", "[TOOL_RESULTS]": "tool"}
ROLE = re.compile(r"\s*([A-Za-z][\w .-]{0,30}?)\s*(?:\n|$)")
ROLE_CELLS = 8
UNKNOWN = "before the first turn"
MOST_LINKS = 8
"""Most turns of a page that have links."""


def turns_in(cells: Sequence[Cell]) -> list[tuple[int, str]]:
    """First cell and role of each turn, in order; empty for what is no conversation."""
    found: list[tuple[int, str]] = []
    for place, cell in enumerate(cells):
        if not cell.special:
            continue
        if cell.text in BEFORE_ROLE:
            text = ""
            for after in cells[place + 1 : place + 1 + ROLE_CELLS]:
                if after.special:
                    break
                text += after.text
            if match := ROLE.match(text):
                found.append((place, match[1]))
        elif match := WITH_ROLE.fullmatch(cell.text):
            found.append((place, match[1].lower()))
        elif cell.text in MISTRAL:
            found.append((place, MISTRAL[cell.text]))
    return found


def with_turns(strip: TokenStrip, document: int | None = None) -> TokenStrip:
    """Strip with a block for each turn of its conversations; a strip without turns as it is."""
    named = {origin.segment: origin for origin in strip.origins}
    cells: list[Cell] = []
    origins: list[DocumentOrigin] = []
    any_turns = False
    for segment, group in groupby(strip.cells, lambda cell: cell.segment):
        part = list(group)
        whole = named.get(segment, DocumentOrigin(segment, document, ""))
        turns = turns_in(part)
        any_turns |= bool(turns)
        places, roles = [place for place, _ in turns], [role for _, role in turns]
        if not turns or places[0]:
            places, roles = [0, *places], [UNKNOWN if turns else whole.title, *roles]
        for role, (start, stop) in zip(roles, pairwise([*places, len(part)]), strict=True):
            number = -1 if segment < 0 else len(origins)
            cells += [replace(cell, segment=number) for cell in part[start:stop]]
            if segment >= 0:
                title = role
                if role and strip.headings and not start and whole.document is not None:
                    title = f"document {whole.document:,}: {role}"  # the first turn names its document
                note = in_loss(part[start:stop]) if role else whole.note
                href = "" if start else whole.href
                origins.append(replace(whole, segment=number, title=title, note=note, href=href))
    if not any_turns:
        return strip
    return replace(strip, cells=tuple(cells), origins=tuple(origins), headings=True)


def with_loss_links(strip: TokenStrip) -> tuple[TokenStrip, tuple[Links, ...]]:
    """Strip whose turns in the loss have anchors, and links to the first of them; no links without turns."""
    learned = {cell.segment for cell in strip.cells if cell.loss}
    origins = tuple(
        replace(one, anchor=f"turn-{one.segment + 1}") if one.title and one.segment in learned else one
        for one in strip.origins
    )
    turns = [one for one in origins if one.anchor]
    if not turns:
        return strip, ()
    links: list[str | Link] = [
        Link(f"turn {one.segment + 1}, {one.title.rpartition(': ')[2]}", f"#{one.anchor}")
        for one in turns[:MOST_LINKS]
    ]
    links += [f"and {plural(len(turns) - MOST_LINKS, 'more turn')}"] if len(turns) > MOST_LINKS else []
    return replace(strip, origins=origins), (Links("Turns in the loss", ("In the loss:", *links)),)


def in_loss(cells: Sequence[Cell]) -> str:
    if any(cell.loss is None for cell in cells):
        return ""
    count = sum(len(cell.ids) for cell in cells)
    learned = sum(len(cell.ids) for cell in cells if cell.loss)
    return f"{percent(learned / count)} in the loss" if learned else "no loss"
