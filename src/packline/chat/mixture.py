"""Named mixtures of supervised data: datasets, repetitions, and validation parts.

    nanochat-sft    train: smoltalk, mmlu (auxiliary), gsm8k twice, identity twice, 200,000 spellings,
                    80,000 counts of letters
                    val:   smoltalk's test set, the first 5,200 of mmlu's, the first 420 of gsm8k's

Each part is looked up in a folder, by the names in `PARTS`; a missing one is taken from the hub, if it has an
address and that is allowed, or named in the error. The reader decides the order of rows (`Loader`,
`export --shuffle-documents 42`); counts by part are in the manifest, under `sources`.
"""

from __future__ import annotations

import glob
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from packline.chat.sources import ConversationSource
from packline.errors import InputError, RecipeError
from packline.recipe import Split

PRESETS = ("nanochat-sft",)
WORDS = ("words*.txt", "words/*.txt")
SMOLTALK, MMLU, GSM8K = (
    f"hf://datasets/{name}" for name in ("HuggingFaceTB/smol-smoltalk/data", "cais/mmlu", "openai/gsm8k/main")
)


class MixturePart(msgspec.Struct, frozen=True):
    """One dataset of a mixture."""

    name: str
    files: tuple[str, ...]
    """Globs below the folder; the first with any match is used."""
    hub: str | None = None
    task: str = "conversations"
    split: Split = "train"
    repeat: int = 1
    limit: int | None = None
    options: dict[str, Any] = {}


PARTS = (
    MixturePart("smoltalk", ("smoltalk/train*", "smoltalk-train*"), f"{SMOLTALK}/train-*.parquet"),
    MixturePart(
        "mmlu", ("mmlu/auxiliary_train*", "mmlu/dev"), f"{MMLU}/auxiliary_train/train-*.parquet", "mmlu"
    ),
    MixturePart("gsm8k", ("gsm8k/train*",), f"{GSM8K}/train-*.parquet", "gsm8k", repeat=2),
    MixturePart("identity", ("identity_conversations.jsonl", "*/identity_conversations.jsonl"), repeat=2),
    MixturePart("spelling", WORDS, task="spelling", options={"count": 200_000}),
    MixturePart("spelling_bee", WORDS, task="spelling_bee", options={"count": 80_000}),
    MixturePart(
        "smoltalk-val", ("smoltalk/test*", "smoltalk-test*"), f"{SMOLTALK}/test-*.parquet", split="val"
    ),
    MixturePart("mmlu-val", ("mmlu/test*",), f"{MMLU}/all/test-*.parquet", "mmlu", "val", limit=5200),
    MixturePart("gsm8k-val", ("gsm8k/test*",), f"{GSM8K}/test-*.parquet", "gsm8k", "val", limit=420),
)


def preset_sources(
    preset: str, data: str | Path, *, without: Sequence[str] = (), hub: bool = False
) -> list[ConversationSource]:
    """Sources of a mixture.

    Args:
        preset: name of the mixture.
        data: folder with its datasets.
        without: names of parts to leave out, with their validation sets.
        hub: True to take parts missing from the folder from the hub.

    Raises:
        RecipeError: no such preset, or part.
        InputError: parts that cannot be found; the message lists all.

    >>> preset_sources("nanochat-sft", "nowhere")
    Traceback (most recent call last):
    packline.errors.InputError: nowhere has no data for smoltalk, mmlu, gsm8k, identity, ...
    """
    if preset not in PRESETS:
        raise RecipeError(f"unknown preset {preset!r}: expected {', '.join(PRESETS)}")
    names = [part.name for part in PARTS]
    if unknown := [name for name in without if name not in names]:
        raise RecipeError(f"the preset has no part {unknown[0]!r}: expected one of {', '.join(names)}")
    sources, missing = [], []
    for part in PARTS:
        if part.name in without or part.name.removesuffix("-val") in without:
            continue
        inputs = _find(part, Path(data), hub)
        if inputs is None:
            missing.append(part)
            continue
        sources.append(
            ConversationSource(
                inputs=(inputs,),
                name=part.name,
                label=part.name.removesuffix("-val"),
                split=part.split,
                task=part.task,
                options=part.options,
                repeat=part.repeat,
                limit=part.limit,
            )
        )
    if missing:
        where = "; ".join(f"{part.name} as {' or '.join(part.files)}" for part in missing)
        raise InputError(
            f"{data} has no data for {', '.join(part.name for part in missing)}: expected {where}",
            hint="put them there, leave parts out (--without NAME), or allow the hub for some (--hub)",
        )
    return sources


def _find(part: MixturePart, folder: Path, hub: bool) -> str | None:
    for pattern in part.files:
        whole = str(folder / pattern)
        if found := glob.glob(whole):
            return found[0] if len(found) == 1 else whole
    return part.hub if hub else None
