"""Sources of conversations: files, their purpose, and how they are cut into units.

An uncompressed JSONL file is cut every `UNIT_BYTES`; a line belongs to the unit in which it begins. Any
other file is one unit. A repeated source has its units once per repetition. Units are a function of the
files alone, and each accounts for its bytes, so that `verify` finds gaps.

Presets are named mixtures of datasets, repetitions and validation parts:

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
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, Literal, cast

import msgspec

from packline.chat.tasks import GENERATORS, file_kind
from packline.errors import InputError, RecipeError
from packline.recipe import Split, parse_columns
from packline.sources.carried import Column
from packline.sources.compression import DecompressedStream, detect_compression
from packline.sources.fields import look_at, refuse_strange, resolve_columns
from packline.sources.files import InputFile, plain_name
from packline.sources.json_array import first_element, starts_array
from packline.sources.listing import list_inputs, map_files
from packline.sources.records import MAX_RECORD_BYTES, first_objects, read_records
from packline.storage.inputs import ListedFile, read_fully, read_start

UNIT_BYTES = 16 << 20
"""Bytes of JSONL per unit: rendering and encoding them takes a few seconds."""
HEAD_BYTES = 64
LOOKED_RECORDS = 256
"""Number of records per file in which a named field of messages is looked up."""
ARRAY_HEAD_BYTES = 1 << 20
"""Bytes in which the first element of a JSON array is looked up."""


class ConversationSource(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Files of conversations of one kind.

    >>> ConversationSource(inputs=("gsm8k/train.jsonl",), task="gsm8k", repeat=2).name
    ''
    """

    inputs: tuple[str, ...]
    """Files, folders, globs or URIs: JSONL or a JSON array (also compressed), or Parquet."""
    name: str = ""
    """Name in provenance and counts; by default the common name of its inputs."""
    label: str | None = None
    field: str | None = None
    """Field of the messages, if it is not one of the known ones."""
    columns: tuple[str, ...] = ()
    """Fields of the records carried along in provenance, as in a recipe: `score: float`, `meta.language`."""
    split: Split | None = None
    """Split of all its conversations; by default `val_fraction` and `test_fraction` decide."""
    task: str = "conversations"
    """Conversion of records to conversations: a name of `packline.chat.tasks`."""
    options: dict[str, Any] = {}
    """Options of the task."""
    repeat: int = 1
    """Number of times each conversation is included."""
    limit: int | None = None
    """Read only the first `limit` records."""


class ConversationUnit(msgspec.Struct, frozen=True):
    """A range of one file: the unit of work and of resume."""

    file: int
    start: int
    stop: int
    """End of the range in bytes (exclusive); the size of a file that cannot be cut."""
    turn: int = 0
    """Number of the repetition; only the first accounts for the file's bytes."""
    most: int | None = None
    """Stop after this number of records."""


def check_sources(sources: tuple[ConversationSource, ...]) -> None:
    """Refuse values that no build can use.

    >>> check_sources((ConversationSource(inputs=("a",), repeat=0),))
    Traceback (most recent call last):
    packline.errors.RecipeError: a: repeat is 0: expected at least 1
    """
    if not sources:
        raise RecipeError("no conversations: expected at least one source", hint="name a file or a folder")
    for source in sources:
        if not source.inputs:
            raise RecipeError("a source of conversations has no inputs", hint="name a file or a folder")
        where = source.name or source.inputs[0]
        for name in ("repeat", "limit"):
            value: int | None = getattr(source, name)
            if value is not None and value < 1:
                raise RecipeError(f"{where}: {name} is {value}: expected at least 1")


def find_conversation_files(sources: tuple[ConversationSource, ...]) -> list[InputFile]:
    """All files of all sources, in order."""
    files: list[InputFile] = []
    for number, source in enumerate(sources):
        found = map_files(partial(_describe, number, source), list_inputs(source.inputs))
        files += [msgspec.structs.replace(file, index=index) for index, file in enumerate(found, len(files))]
        own = [file for file in files if file.source == number]
        if source.field is not None:
            asked = [("the messages", source.field)]
            refuse_strange((), source.name or source.inputs[0], look_at(own, _first_records), asked)
        if source.columns:
            carried = _columns_of(source, own)
            for file in own:
                files[file.index] = msgspec.structs.replace(file, carried=carried)
    return files


def _columns_of(source: ConversationSource, files: list[InputFile]) -> tuple[Column, ...]:
    where = source.name or source.inputs[0]
    if source.task in GENERATORS or any(plain_name(file.name).endswith(".csv") for file in files):
        raise RecipeError(
            f"{where}: columns: the records of task {source.task!r} have no fields of their own"
        )
    looked = look_at(files, _first_records)
    refuse_strange((), where, looked, [("columns", name) for name, _ in parse_columns(source.columns, where)])
    return resolve_columns(source.columns, where, files, _first_records)


def _first_records(file: InputFile) -> list[dict[str, Any]]:
    return first_objects(file, LOOKED_RECORDS)[0]


def _describe(number: int, source: ConversationSource, listed: ListedFile) -> InputFile:
    path, name = listed.path, listed.name
    state, head = read_start(path, HEAD_BYTES)
    compression = detect_compression(head)
    kind: Literal["jsonl", "parquet", "text"] = "parquet" if head.startswith(b"PAR1") else "jsonl"
    plain = plain_name(name)
    if kind == "jsonl":
        kind = file_kind(source.task, plain)
    found = InputFile(0, number, name, path, state.size, state.modified, kind, compression)
    if kind == "jsonl" and plain.endswith(".json") and _is_array(found):
        return msgspec.structs.replace(found, format="text")
    return found


def _is_array(file: InputFile) -> bool:
    """True if a file named `.json` is one array of conversations, not JSON lines."""
    path = file.path
    with file.open() as raw:
        stream = DecompressedStream(raw, file.compression) if file.compression else raw
        head = read_fully(cast("BinaryIO", stream), ARRAY_HEAD_BYTES)
    if not starts_array(head):
        return False
    first = first_element(head)
    if isinstance(first, dict) and {"role", "from"} & set(first):
        raise InputError(
            f"{path} begins with an array of messages: expected an array of conversations",
            hint="JSON lines, a conversation each, have a name that ends in .jsonl",
        )
    return True


def plan_conversations(
    sources: tuple[ConversationSource, ...], files: list[InputFile]
) -> list[ConversationUnit]:
    """Plan the units of all files, in order.

    Cost: for a source with a limit and several files, these are read up to the limit.
    """
    units = []
    left = [source.limit for source in sources]
    several = {number for number in range(len(sources)) if sum(one.source == number for one in files) > 1}
    for file in files:
        source, most = sources[file.source], left[file.source]
        if most is not None and file.source in several:
            left[file.source] = most - sum(
                1 for _ in islice(read_records(file, 0, file.size, MAX_RECORD_BYTES), most)
            )
        whole = file.format != "jsonl" or file.compression or most is not None
        step = max(file.size, 1) if whole else UNIT_BYTES
        for turn in range(source.repeat):
            units += [
                ConversationUnit(file.index, start, min(start + step, file.size), turn, most)
                for start in range(0, max(file.size, 1), step)
            ]
    return units


PRESETS = ("nanochat-sft",)
WORDS = ("words*.txt", "words/*.txt")
SMOLTALK, MMLU, GSM8K = (
    f"hf://datasets/{name}" for name in ("HuggingFaceTB/smol-smoltalk/data", "cais/mmlu", "openai/gsm8k/main")
)


class MixturePart(msgspec.Struct, frozen=True):
    """One dataset of a mixture."""

    source: ConversationSource
    """Its inputs are globs below the folder of the data; the first with any match is used."""
    hub: str | None = None
    """Files on the hub."""


def _part(name: str, *files: str, hub: str | None = None, **settings: Any) -> MixturePart:
    label = name.removesuffix("-val")
    split: Split = "train" if label == name else "val"
    return MixturePart(ConversationSource(inputs=files, name=name, label=label, split=split, **settings), hub)


PARTS = (
    _part("smoltalk", "smoltalk/train*", "smoltalk-train*", hub=f"{SMOLTALK}/train-*.parquet"),
    _part(
        "mmlu",
        "mmlu/auxiliary_train*",
        "mmlu/dev",
        hub=f"{MMLU}/auxiliary_train/train-*.parquet",
        task="mmlu",
    ),
    _part("gsm8k", "gsm8k/train*", hub=f"{GSM8K}/train-*.parquet", task="gsm8k", repeat=2),
    _part("identity", "identity_conversations.jsonl", "*/identity_conversations.jsonl", repeat=2),
    _part("spelling", *WORDS, task="spelling", options={"count": 200_000}),
    _part("spelling_bee", *WORDS, task="spelling_bee", options={"count": 80_000}),
    _part("smoltalk-val", "smoltalk/test*", "smoltalk-test*", hub=f"{SMOLTALK}/test-*.parquet"),
    _part("mmlu-val", "mmlu/test*", hub=f"{MMLU}/all/test-*.parquet", task="mmlu", limit=5200),
    _part("gsm8k-val", "gsm8k/test*", hub=f"{GSM8K}/test-*.parquet", task="gsm8k", limit=420),
)


def preset_sources(
    preset: str, data: str | Path, *, without: Sequence[str] = (), hub: bool = False
) -> list[ConversationSource]:
    """Sources of a mixture.

    >>> preset_sources("nanochat-sft", "nowhere")
    Traceback (most recent call last):
    packline.errors.InputError: nowhere has no data for smoltalk, mmlu, gsm8k, identity, ...
    """
    if preset not in PRESETS:
        raise RecipeError(f"unknown preset {preset!r}: expected {', '.join(PRESETS)}")
    names = [part.source.name for part in PARTS]
    if unknown := [name for name in without if name not in names]:
        raise RecipeError(f"the preset has no part {unknown[0]!r}: expected one of {', '.join(names)}")
    sources, missing = [], []
    for part in PARTS:
        if {part.source.name, part.source.label} & {*without}:
            continue
        if (found := _find(part, Path(data), hub)) is None:
            missing.append(part.source)
        else:
            sources.append(msgspec.structs.replace(part.source, inputs=(found,)))
    if missing:
        where = "; ".join(f"{part.name} as {' or '.join(part.inputs)}" for part in missing)
        raise InputError(
            f"{data} has no data for {', '.join(part.name for part in missing)}: expected {where}",
            hint="put them there, leave parts out (--without NAME), or allow the hub for some (--hub)",
        )
    return sources


def _find(part: MixturePart, folder: Path, hub: bool) -> str | None:
    for pattern in part.source.inputs:
        whole = str(folder / pattern)
        if found := glob.glob(whole):
            return found[0] if len(found) == 1 else whole
    return part.hub if hub else None
