"""The card of a repository (README.md), made from the manifest of a store or the record of an export.

    front matter   YAML that the hub reads: tags, size, `configs` for its viewer, and counts under `packline`
    text           between two marks; what a user writes around them is kept by the next push

The viewer of the hub shows the files that `configs` names: for a store, the origin of every document. A card
contains no path of a machine, no credentials and no time.

Text of others in Markdown: escaped in one place, so that a name can neither format nor break a card.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import yaml  # type: ignore[import-untyped]

from packline.hub.publication import Publication, without_credentials
from packline.recipe import Recipe, Source
from packline.store.ledger import Ledger, losses
from packline.store.manifest import Manifest
from packline.store.unit_names import slug_of
from packline.viewing.text import visible


class Markdown(str):
    """Text that is Markdown already, and is not escaped again."""


def code(text: str) -> Markdown:
    """Text as code, whatever characters it has.

    >>> code("<|eot|>"), code("a b")
    ('<code>&#60;&#124;eot&#124;&#62;</code>', '<code>a b</code>')
    """
    return Markdown(f"<code>{escape_markdown(text)}</code>")


def fenced(text: str, language: str = "") -> str:
    """Text as a block of code, between fences that it does not contain.

    >>> fenced("a = 1", "toml")
    '```toml\\na = 1\\n```'
    """
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text}\n{fence}"


def escape_markdown(text: str) -> str:
    """Text on one line, without anything that Markdown, HTML or a table could read as its own.

    >>> escape_markdown("a_b | [c](d)")
    'a&#95;b &#124; &#91;c&#93;(d)'
    """
    plain = visible(" ".join(text.split()))
    return re.sub(r"[^\w .,:/()%+=-]|_", lambda match: f"&#{ord(match[0])};", plain)


def markdown_table(heads: Sequence[str], rows: Iterable[Sequence[str]], align: str = "") -> str:
    """A table; cells are escaped, except those that are `Markdown`.

    Args:
        align: `l` or `r` for each column; left by default.

    >>> print(markdown_table(("a", "b"), [("x", "1")], "lr"))
    | a | b |
    |:---|---:|
    | x | 1 |
    """
    align = align or "l" * len(heads)
    lines = [
        f"| {' | '.join(heads)} |",
        "|" + "|".join("---:" if each == "r" else ":---" for each in align) + "|",
    ]
    for row in rows:
        cells = [cell if isinstance(cell, Markdown) else escape_markdown(cell) for cell in row]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


BEGIN = "<!-- packline: made from the files; written again by the next push -->"
END = "<!-- packline: end -->"
MOST_CONFIGS = 30
"""Number of sources above which the viewer gets one table of all."""
_UNIT = "[0-9]" * 6
_VIEWER_SPLITS = {"train": "train", "val": "validation", "test": "test"}


def make_card(publication: Publication, place: str, earlier: str = "", licence: str | None = None) -> str:
    """The card of a folder that is pushed.

    Args:
        place: where it is pushed to.
        earlier: the card that is there; what is outside its marks is kept.
        licence: identifier of a licence as the hub writes them, such as `odc-by`.
    """
    if publication.manifest is not None:
        matter, text = (
            _store_matter(publication, publication.manifest),
            _store_text(publication.manifest, place),
        )
    elif publication.export is not None:
        matter, text = _export_card(publication, place)
    else:
        matter, text = _other_card(publication, place)
    if licence:
        matter["license"] = licence
    old_matter, old_text = split_card(earlier)
    tags = (
        [*old_matter.get("tags", []), *matter["tags"]] if isinstance(old_matter.get("tags"), list) else None
    )
    matter = {**old_matter, **matter, "tags": list(dict.fromkeys(tags or matter["tags"]))}
    made = f"{BEGIN}\n\n{text.strip()}\n\n{END}"
    before, found, rest = old_text.partition(BEGIN)
    if found:
        body = before + made + rest.partition(END)[2]
    else:
        title = f"# {place.rpartition('/')[2]}\n\n" if not old_text.strip() else old_text.rstrip() + "\n\n"
        body = title + made + "\n"
    front = yaml.safe_dump(matter, sort_keys=False, allow_unicode=True, width=100)
    return f"---\n{front}---\n\n{body.lstrip()}"


def split_card(card: str) -> tuple[dict[str, Any], str]:
    """Front matter and text of a card; front matter that cannot be read counts as text.

    >>> split_card("---\\nlicense: mit\\n---\\n# Title")
    ({'license': 'mit'}, '# Title')
    """
    match = re.match(r"---\n(.*?)\n---\n?", card, re.DOTALL)
    if match is None:
        return {}, card
    try:
        matter = yaml.safe_load(match[1])
    except yaml.YAMLError:
        return {}, card
    return (matter, card[match.end() :]) if isinstance(matter, dict) else ({}, card)


def size_category(count: int) -> str:
    """Category of the hub for a number of rows.

    >>> size_category(7), size_category(1000), size_category(25_000), size_category(10**13)
    ('n<1K', '1K<n<10K', '10K<n<100K', 'n>1T')
    """
    names = ("1K", "10K", "100K", "1M", "10M", "100M", "1B", "10B", "100B", "1T")
    place = len(str(count)) - 4
    if place < 0:
        return "n<1K"
    return f"{names[place]}<n<{names[place + 1]}" if place + 1 < len(names) else "n>1T"


# --------------------------------------------------------------------------------------------- stores


def _store_matter(publication: Publication, manifest: Manifest) -> dict[str, Any]:
    tokenizer = manifest.tokenizer
    return {
        "tags": ["packline", "tokenized"],
        "task_categories": ["text-generation"],
        "size_categories": [size_category(manifest.documents)],
        "configs": _configs(publication, manifest),
        "packline": {
            "kind": "store",
            "tokens": manifest.tokens,
            "documents": manifest.documents,
            "dtype": manifest.dtype,
            "tokenizer": without_credentials(tokenizer.name),
            "tokenizer_fingerprint": tokenizer.fingerprint,
            "vocab_size": tokenizer.vocab_size,
            "eod": tokenizer.eod,
            "eod_id": tokenizer.eod_id,
            "manifest_checksum": manifest.checksum,
        },
    }


def _configs(publication: Publication, manifest: Manifest) -> list[dict[str, Any]]:
    """Tables for the hub's viewer: the origin of the documents, per source since columns may differ."""
    names = publication.paths()
    there = {(shard.split, source) for shard, source in zip(manifest.shards, _sources(manifest), strict=True)}
    sources = list(dict.fromkeys(source for _, source in sorted(there)))
    folder = "*/" if any("/" in names[shard.files[0].name] for shard in manifest.shards) else ""
    chosen: Iterable[tuple[str, str]] = ((name, f"{slug_of(name)}-{_UNIT}") for name in sources)
    if len(sources) > MOST_CONFIGS:
        chosen = [("documents", "")]
    configs: list[dict[str, Any]] = []
    for name, part in chosen:
        splits = [
            split
            for split in _VIEWER_SPLITS
            if any(s == split and name in ("documents", of) for s, of in there)
        ]
        files = [
            {"split": _VIEWER_SPLITS[split], "path": f"{folder}{split}-{part}*.docs.parquet"}
            for split in splits
        ]
        configs.append({"config_name": re.sub(r"[<>:/\\|?*]", "_", name), "data_files": files})
    if configs:
        configs[0]["default"] = True
    return configs


def _sources(manifest: Manifest) -> list[str]:
    return list(manifest.shards.table["source"].to_pylist())


def _store_text(manifest: Manifest, place: str) -> str:
    tokenizer, ledger = manifest.tokenizer, manifest.ledger
    bos = (
        []
        if tokenizer.bos is None
        else [("begin of document", Markdown(f"{code(tokenizer.bos)}, id {tokenizer.bos_id}"))]
    )
    facts = [
        ("tokens", f"{manifest.tokens:,}"),
        ("documents", f"{manifest.documents:,}"),
        ("text", f"{ledger.text_bytes:,} bytes of UTF-8" if ledger.text_bytes else "imported as tokens"),
        ("token type", Markdown(f"`{manifest.dtype}`, little-endian")),
        ("tokenizer", Markdown(f"{code(without_credentials(tokenizer.name))}, {tokenizer.vocab_size:,} ids")),
        ("its fingerprint", code(tokenizer.fingerprint)),
        ("end of document", Markdown(f"{code(tokenizer.eod)}, id {tokenizer.eod_id}, after every document")),
        *bos,
        ("text from tokens", _ROUND_TRIPS.get(tokenizer.round_trip, tokenizer.round_trip)),
        ("files", f"{manifest.totals.shards:,} shards, {manifest.store_bytes:,} bytes"),
    ]
    first = manifest.shards[0].name if len(manifest.shards) else "NAME"
    documents, tokens = manifest.shards.by_split("documents"), manifest.shards.by_split("tokens")
    splits = [(split, f"{documents[split]:,}", f"{tokens[split]:,}") for split in documents]
    labels = {source.name: source.label or "" for source in manifest.recipe.sources}
    sources = [
        (
            name,
            labels.get(name, ""),
            f"{one.documents:,}",
            f"{one.tokens:,}",
            f"{one.left_out:,}",
            f"{one.bad:,}",
        )
        for name, one in manifest.sources.items()
    ]
    return "\n\n".join(
        [
            f"Tokens for training language models, made by packline {manifest.packline}.",
            markdown_table(("property", "value"), facts),
            "## Splits",
            markdown_table(("split", "documents", "tokens"), splits, "lrr"),
            "## Sources",
            markdown_table(
                ("source", "label", "documents", "tokens", "left out", "bad records"), sources, "llrrrr"
            ),
            *_ledger(ledger),
            "## Files",
            "The table that the viewer shows is the origin of every document: source, file, position, id, "
            "number of tokens, and a hash of its text. The tokens themselves are in `NAME.bin`.",
            "## How to read it",
            _usage(manifest, place, first),
            "## Recipe",
            "Inputs are shown without the folders of the machine that read them.",
            fenced(recipe_text(manifest.recipe), "toml"),
        ]
    )


_ROUND_TRIPS = {
    "exact": "ids decode to the exact text",
    "normalized": "ids decode to the normalized text",
    "lossy": "ids do not decode to the whole text",
}


def _ledger(ledger: Ledger) -> list[str]:
    rows = [("records read", f"{ledger.documents_in:,}"), ("documents", f"{ledger.documents:,}")]
    rows += [(what, f"{count:,}") for what, count in losses(ledger)]
    rows += [
        ("tokens of text", f"{ledger.text_tokens:,}"),
        ("end-of-document tokens", f"{ledger.eod_tokens:,}"),
    ]
    return ["## Ledger", "Every record is accounted for.", markdown_table(("what", "count"), rows, "lr")]


def _usage(manifest: Manifest, place: str, first: str) -> str:
    kind = "<u2" if manifest.dtype == "uint16" else "<i4"
    return f"""With packline, at a commit that `pull` prints, so that a run can pin it:

```bash
pip install packline
packline pull {place} store
packline verify store
```

```python
import packline

store = packline.open("store")
rows = store.rows(seq_len=2048, packing="best_fit")
for batch in packline.Loader(rows, batch_size=32, seed=1):
    ...  # tokens, targets, position_ids, segment_ids
```

With Megatron-LM, whose index the `.idx` files are (after `pull` or `hf download`):

```bash
--data-path store/{first} ...
```

With NumPy alone:

```python
import numpy as np

tokens = np.memmap("store/{first}.bin", dtype="{kind}", mode="r")
```"""


def recipe_text(recipe: Recipe) -> str:
    """A recipe as TOML, without default values, folders of a machine or credentials.

    >>> web = Source(inputs=("/corpora/web.jsonl",), name="web")
    >>> print(recipe_text(Recipe(sources=(web,), tokenizer="gpt2")))
    tokenizer = "gpt2"
    <BLANKLINE>
    [[sources]]
    inputs = ["web.jsonl"]
    name = "web"
    """
    plain = Recipe(sources=(), tokenizer="")
    lines = [f"tokenizer = {_toml(without_credentials(recipe.tokenizer))}"]
    lines += _changed(recipe, plain, ("sources", "tokenizer"))
    for source in recipe.sources:
        inputs = [without_credentials(place) for place in source.inputs]
        lines += ["", "[[sources]]", f"inputs = {_toml(inputs)}"]
        lines += _changed(source, Source(inputs=()), ("inputs",))
    return "\n".join(lines)


def _changed(value: msgspec.Struct, plain: msgspec.Struct, without: Sequence[str]) -> list[str]:
    lines = []
    for name in value.__struct_fields__:
        found = getattr(value, name)
        if name not in without and found != getattr(plain, name) and found not in (None, msgspec.UNSET):
            lines.append(f"{name} = {_toml(found)}")
    return lines


def _toml(value: Any) -> str:
    """A text, number, truth value or list as TOML, which writes them as JSON does."""
    return json.dumps(list(value) if isinstance(value, tuple) else value, ensure_ascii=False)


# ------------------------------------------------------------------------------------- everything else


def _export_card(publication: Publication, place: str) -> tuple[dict[str, Any], str]:
    record = publication.export
    assert record is not None
    tokenizer = record.tokenizer
    facts = [
        ("format", code(record.format)),
        ("tokens", f"{record.tokens:,}"),
        ("documents", f"{record.documents:,}"),
        *(
            [("rows", f"{record.rows:,} of {record.seq_len:,} tokens")]
            if record.rows and record.seq_len
            else []
        ),
        ("tokenizer", Markdown(f"{code(without_credentials(tokenizer.name))}, {tokenizer.vocab_size:,} ids")),
        ("its fingerprint", code(tokenizer.fingerprint)),
        ("end of document", Markdown(f"{code(tokenizer.eod)}, id {tokenizer.eod_id}")),
        ("options", code(json.dumps(record.options))),
    ]
    lost = [(one.what, f"{one.count:,} {one.unit}", one.why) for one in record.lost]
    parts = [f"Tokens in the layout of `{record.format}`, made by packline {record.packline}."]
    parts += [markdown_table(("property", "value"), facts)]
    if lost:
        parts += ["## What the layout cannot hold", markdown_table(("what", "how much", "why"), lost)]
    parts += ["## How to read it", _export_usage(publication, place)]
    matter: dict[str, Any] = {
        "tags": ["packline", "tokenized"],
        "task_categories": ["text-generation"],
        "size_categories": [size_category(record.rows or record.documents)],
        "packline": {
            "kind": "export",
            "format": record.format,
            "tokens": record.tokens,
            "documents": record.documents,
            "tokenizer": without_credentials(tokenizer.name),
            "tokenizer_fingerprint": tokenizer.fingerprint,
        },
    }
    splits = {
        split: [entry.name for entry in record.files if re.fullmatch(rf"{split}-.*\.parquet", entry.name)]
        for split in ("train", "validation", "test")
    }
    files = [{"split": split, "path": f"{split}-*.parquet"} for split, names in splits.items() if names]
    if files:
        matter["configs"] = [{"config_name": "default", "data_files": files}]
    return matter, "\n\n".join(parts)


def _export_usage(publication: Publication, place: str) -> str:
    data = [entry.name for entry in publication.files if not entry.name.endswith((".json", ".jinja"))]
    first = data[0] if data else publication.record
    usage = f"""```bash
packline pull {place} data
```

A trainer that fetches single files gets them by name:

```python
from huggingface_hub import hf_hub_download

path = hf_hub_download("{place.removeprefix("hf://datasets/")}", "{first}", repo_type="dataset")
```"""
    if first.endswith(".parquet"):
        usage += f"""

```python
from datasets import load_dataset

rows = load_dataset("{place.removeprefix("hf://datasets/")}", split="train")
```"""
    return usage


def _other_card(publication: Publication, place: str) -> tuple[dict[str, Any], str]:
    name = place.removeprefix("hf://")
    if publication.kind == "tokenizer":
        from packline.encoders.tokenizer import load_tokenizer

        tokenizer = load_tokenizer(str(publication.folder))
        facts = [
            ("ids", f"{tokenizer.vocab_size:,}"),
            ("fingerprint", code(tokenizer.fingerprint)),
            ("end of text", code(tokenizer.eos_token) if tokenizer.eos_token else "not declared"),
            ("special tokens", Markdown(", ".join(map(code, tokenizer.special_tokens)) or "none")),
        ]
        text = f"""A tokenizer, trained or kept with packline.

{markdown_table(("property", "value"), facts)}

```python
from transformers import AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("{name}")
```

```bash
packline build corpus/ --tokenizer {name} --out store
```"""
        packline = {
            "kind": "tokenizer",
            "vocab_size": tokenizer.vocab_size,
            "fingerprint": tokenizer.fingerprint,
        }
        return {"tags": ["packline", "tokenizer"], "library_name": "transformers", "packline": packline}, text
    tasks = sorted(entry.name for entry in publication.files if not entry.name.endswith((".json", ".jsonl")))
    rows = [(e.name, f"{e.bytes:,}") for e in publication.files if e.name in tasks]
    text = f"""Evaluation sets as tokens, made by packline.

{markdown_table(("file", "bytes"), rows, "lr")}

`config.json` describes tasks and tokenizer; `questions.jsonl` has every question as text, with which a
training set is searched for leaks:

```bash
packline pull {place} evals
packline verify store --against evals
```"""
    return {"tags": ["packline", "evaluation"], "packline": {"kind": "evaluation", "tasks": len(tasks)}}, text
