"""Navigation of the web viewer as HTML: links and forms that work without a script.

A form sends its fields in the address of its target page, so every page can be linked to, revisited and
reloaded, and forms never change anything.
"""

from __future__ import annotations

from packline.viewing.markup import Markup, element, safe_href
from packline.viewing.page import Field, Form, Link, Links

LONGEST_TEXT = 8000
"""Maximum characters of a text area, limited by the length of an address."""


def links(block: Links) -> Markup:
    """Links in a line; entries that are not links are plain text.

    >>> links(Links("Pages", (Link("next", "/rows?page=2"), "last")))
    '<nav class="links" aria-label="Pages"><a href="/rows?page=2">next</a><span>last</span></nav>'
    """
    items: list[Markup] = []
    for one in block.links:
        href = safe_href(one.href) if isinstance(one, Link) else None
        text = one.text if isinstance(one, Link) else one
        items.append(element("a", text, href=href) if href else element("span", text))
    return element("nav", items, class_="links", aria_label=block.label)


def form(block: Form, *, prefix: str = "field") -> Markup:
    """Render a form.

    Args:
        prefix: prefix of the ids that connect labels with fields, unique for each form of a page.
    """
    rows = [_field(one, f"{prefix}-{one.name}") for one in block.fields]
    button = element("button", block.submit, type="submit")
    wide = " wide" if any(one.kind == "area" for one in block.fields) else ""
    return element(
        "form",
        rows,
        button,
        method="get",
        action=safe_href(block.action) or "/",
        class_=f"form{wide}",
        aria_label=block.label,
    )


def _field(field: Field, name: str) -> Markup:
    if field.kind == "hidden":
        return element("input", type="hidden", name=field.name, value=field.value)
    label = element("label", field.label, for_=name)
    if field.kind == "choice":
        choices = [
            element("option", text, value=value, selected=value == field.value)
            for value, text in field.choices
        ]
        control = element("select", choices, id=name, name=field.name)
    elif field.kind == "area":
        # HTML drops a line end at the beginning of a text area.
        control = element(
            "textarea",
            Markup("\n"),
            _as_typed(field.value),
            id=name,
            name=field.name,
            rows=5,
            maxlength=LONGEST_TEXT,
            spellcheck="false",
        )
    else:
        control = element(
            "input",
            type="text",
            id=name,
            name=field.name,
            value=field.value,
            inputmode="numeric" if field.kind == "number" else None,
            autocomplete="off",
            spellcheck="false",
            class_=field.kind,
        )
    return element("div", label, control, class_="field")


def _as_typed(text: str) -> Markup:
    """Escape a text to be edited: line ends and tabs are kept, all else is escaped as usual."""
    from packline.viewing.markup import escaped

    lines = text.replace("\r\n", "\n").split("\n")
    return Markup("\n".join("\t".join(map(escaped, line.split("\t"))) for line in lines))
