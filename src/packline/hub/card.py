"""The card of a repository (README.md), made from the manifest of a store or the record of an export.

    front matter   YAML that the hub reads: tags, size, `configs` for its viewer, and counts under `packline`
    text           between two marks; what a user writes around them is kept by the next push

The viewer of the hub shows the files that `configs` names: for a store, the origin of every document. A card
contains no path of a machine, no credentials and no time.

`card.jinja` is the text. Everything that it inserts is escaped, so that a name can neither format nor break
a card.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

import jinja2
import msgspec
import yaml  # type: ignore[import-untyped]
from markupsafe import Markup

from packline.formats.export_folder import ExportRecord
from packline.hub.repository import Pushable, without_credentials
from packline.recipe import Recipe, Source
from packline.store.ledger import losses
from packline.store.manifest import Manifest
from packline.store.naming import slug_of
from packline.viewing.text import visible


def code(text: str) -> Markup:
    """Text as code, whatever characters it has.

    >>> code("<|eot|>"), code("a b")
    (Markup('<code>&#60;&#124;eot&#124;&#62;</code>'), Markup('<code>a b</code>'))
    """
    return Markup(f"<code>{escape_markdown(text)}</code>")


def fenced(text: str, language: str = "") -> Markup:
    """Text as a block of code, between fences that it does not contain.

    >>> print(fenced("a = 1", "toml"))
    ```toml
    a = 1
    ```
    """
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return Markup(f"{fence}{language}\n{text}\n{fence}")


def escape_markdown(text: str) -> Markup:
    """Text on one line, without anything that Markdown, HTML or a table could read as its own."""
    plain = visible(" ".join(text.split()))
    return Markup(re.sub(r"[^\w .,:/()%+=-]|_", lambda match: f"&#{ord(match[0])};", plain))


@cache
def _template() -> jinja2.Template:
    """Template of the text: what it inserts is escaped, unless it is `Markup`."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("packline.hub", ""),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        finalize=lambda value: value if isinstance(value, Markup) else escape_markdown(str(value)),
    )
    public = {"public": without_credentials, "n": "{:,}".format, "code": code, "fenced": fenced}
    environment.globals |= public
    return environment.get_template("card.jinja")


BEGIN = "<!-- packline: made from the files; written again by the next push -->"
END = "<!-- packline: end -->"
MOST_CONFIGS = 30
"""Number of sources above which the viewer gets one table of all."""
_UNIT = "[0-9]" * 6
_VIEWER_SPLITS = {"train": "train", "val": "validation", "test": "test"}


def make_card(publication: Pushable, place: str, earlier: str = "", licence: str | None = None) -> str:
    """The card of a folder that is pushed."""
    matter, values = _contents(publication)
    name = place.removeprefix("hf://").removeprefix("datasets/")
    text = _template().render(place=place, name=name, **values)
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
    """Front matter and text of a card; front matter that cannot be read counts as text."""
    match = re.match(r"---\n(.*?)\n---\n?", card, re.DOTALL)
    if match is None:
        return {}, card
    try:
        matter = yaml.safe_load(match[1])
    except yaml.YAMLError:
        return {}, card
    return (matter, card[match.end() :]) if isinstance(matter, dict) else ({}, card)


# --------------------------------------------------------------------------------------------- stores


def _store_matter(publication: Pushable, manifest: Manifest) -> dict[str, Any]:
    tokenizer = manifest.tokenizer
    return {
        "tags": ["packline", "tokenized"],
        "task_categories": ["text-generation"],
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


def _configs(publication: Pushable, manifest: Manifest) -> list[dict[str, Any]]:
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


def _store_values(manifest: Manifest) -> dict[str, Any]:
    ledger = manifest.ledger
    documents, tokens = manifest.shards.by_split("documents"), manifest.shards.by_split("tokens")
    labels = {source.name: source.label or "" for source in manifest.recipe.sources}
    counts = [("records read", ledger.documents_in), ("documents", ledger.documents), *losses(ledger)]
    counts += [("tokens of text", ledger.text_tokens), ("end-of-document tokens", ledger.eod_tokens)]
    round_trip = manifest.tokenizer.round_trip
    return {
        "kind": "store",
        "manifest": manifest,
        "ledger": ledger,
        "round_trip": _ROUND_TRIPS.get(round_trip, round_trip),
        "splits": [(split, *_counts(documents[split], tokens[split])) for split in documents],
        "sources": [
            (name, labels.get(name, ""), *_counts(one.documents, one.tokens, one.left_out, one.bad))
            for name, one in manifest.sources.items()
        ],
        "counts": [(what, *_counts(count)) for what, count in counts],
        "first": manifest.shards[0].name if len(manifest.shards) else "NAME",
        "recipe": recipe_text(manifest.recipe),
    }


def _counts(*numbers: int) -> list[str]:
    return [f"{number:,}" for number in numbers]


_ROUND_TRIPS = {
    "exact": "ids decode to the exact text",
    "normalized": "ids decode to the normalized text",
    "lossy": "ids do not decode to the whole text",
}


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


def _export_card(publication: Pushable, record: ExportRecord) -> tuple[dict[str, Any], dict[str, Any]]:
    tokenizer = record.tokenizer
    matter: dict[str, Any] = {
        "tags": ["packline", "tokenized"],
        "task_categories": ["text-generation"],
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
    data = [entry.name for entry in publication.files if not entry.name.endswith((".json", ".jinja"))]
    values = {
        "kind": "export",
        "record": record,
        "options": json.dumps(record.options),
        "lost": [(one.what, f"{one.count:,} {one.unit}", one.why) for one in record.lost],
        "first": data[0] if data else publication.record,
    }
    return matter, values


def _contents(publication: Pushable) -> tuple[dict[str, Any], dict[str, Any]]:
    """Front matter of a card, and the values of its text."""
    if publication.manifest is not None:
        return _store_matter(publication, publication.manifest), _store_values(publication.manifest)
    if publication.export is not None:
        return _export_card(publication, publication.export)
    if publication.kind == "tokenizer":
        from packline.encoders.tokenizer import load_tokenizer

        tokenizer = load_tokenizer(str(publication.folder))
        facts = {
            "kind": "tokenizer",
            "vocab_size": tokenizer.vocab_size,
            "fingerprint": tokenizer.fingerprint,
        }
        matter = {"tags": ["packline", "tokenizer"], "library_name": "transformers", "packline": facts}
        return matter, {"kind": "tokenizer", "tokenizer": tokenizer}
    names = sorted(entry.name for entry in publication.files if not entry.name.endswith((".json", ".jsonl")))
    files = [(entry.name, f"{entry.bytes:,}") for entry in publication.files if entry.name in names]
    matter = {"tags": ["packline", "evaluation"], "packline": {"kind": "evaluation", "tasks": len(names)}}
    return matter, {"kind": "evaluation", "files": files}
