"""`packline sft`: build a store with a loss mask from conversations."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from packline.chat.named_templates import TEMPLATES
from packline.chat.sft import SftRequest, plan_sft, run_sft
from packline.chat.sources import ConversationSource, preset_sources
from packline.cli.arguments import (
    DOCUMENTS,
    MAIN,
    RUNNING,
    SPLITS,
    TOKENS,
    PlaceArguments,
    make_options,
    option,
)
from packline.cli.init import SEQ_LEN
from packline.cli.output import output
from packline.cli.progress import (
    finished_facts,
    imported_values,
    show_plan,
    warn_of_bad,
    warn_of_splits,
    watch,
)
from packline.conversion import refuse_toml
from packline.errors import RecipeError, unknown_name
from packline.storage.places import is_remote
from packline.store.manifest import split_warnings
from packline.store.reader import StoreReader
from packline.viewing.info import length_blocks
from packline.viewing.text import plural

OF_CONVERSATIONS = {
    MAIN: {
        "tokenizer": "A tokenizer.json, a folder with one, a hub id, ...",
        "scheme": "The tokenizer's chat template (default), or nanochat's nine tokens.",
        "chat_template": f"{', '.join(TEMPLATES)}; or a file. Default: the tokenizer's own.",
    },
    DOCUMENTS: {
        "max_tokens": "Maximum tokens per document, boundary tokens included. Default: unlimited.",
        "overflow": "Treatment of longer documents. Default: reject.",
        "field": "Field of the messages. Default: messages, conversations or conversation.",
        "label": "Label stored with every document.",
        "columns": 'Fields to carry along: "score: float,meta.language".',
    },
    TOKENS: {
        "eod": "End-of-document token: its string or id. Default: the end of text.",
        "bos": "Begin-of-document token, if the template writes none. Default: none.",
    },
    SPLITS: {
        "val_fraction": "Fraction of documents for validation. Default: 0.",
        "val_documents": "Number of documents for validation, instead of a fraction; reads the inputs twice.",
        "test_fraction": "Fraction of documents for testing. Default: 0.",
        "seed": "Seed of the split. Default: 0.",
    },
    RUNNING: {"workers": "Number of processes. Default: one per usable core; 0 for little data."},
}


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class ChatSettings(make_options((SftRequest, ConversationSource), OF_CONVERSATIONS)):  # type: ignore[misc]
    """Settings of a build of conversations; None for those not given."""


_PLACE, _SETTINGS = PlaceArguments(), ChatSettings()


def sft(
    *inputs: Annotated[
        str, Parameter(help="Files, folders, globs or URIs of JSONL, JSON arrays or Parquet.")
    ],
    out: Annotated[
        str, Parameter(help="Output folder, or URI: new, empty, or with this build unfinished.", alias="-o")
    ],
    dry_run: Annotated[
        bool, option("Check tokenizer, template and inputs, and show the plan; write nothing.", MAIN)
    ] = False,
    preset: Annotated[
        Literal["nanochat-sft"] | None, option("A mixture by name, instead of inputs.", MAIN)
    ] = None,
    data: Annotated[str | None, option("Folder with the datasets of the preset.", MAIN)] = None,
    without: Annotated[
        list[str] | None, option("Leave out this part of the preset. May be repeated.", MAIN)
    ] = None,
    hub: Annotated[
        bool, option("Take parts of the preset that the folder lacks from the hub.", MAIN)
    ] = False,
    max_bad_fraction: Annotated[
        float, Parameter(help="Fraction of bad records above which the exit code is 3.", group=RUNNING)
    ] = 0.01,
    settings: ChatSettings = _SETTINGS,
    place: PlaceArguments = _PLACE,
) -> int:
    r"""Turn conversations into a token store with a loss mask.

    INPUTS are JSONL or Parquet: OpenAI's messages, ShareGPT, plain lists of
    messages, or prompt and response. They are formatted by the tokenizer's own
    chat template, by another template or by nanochat's scheme. Only the replies
    of the assistant are trained on. What is malformed, too long or refused by the
    template is kept in rejects/, and so are data for DPO, KTO, GRPO or reward
    models, which TRL's trainers read as they are.

    Examples:

      packline sft chat.jsonl --tokenizer Qwen/Qwen3-8B --chat-template qwen3 \
          --eod '<|endoftext|>' --out store
      packline sft chat/ --tokenizer qwen --chat-template chat.jinja \
          --eod '<|endoftext|>' --max-tokens 4096 --out store
      packline sft chat.jsonl --tokenizer mine --scheme nanochat \
          --max-tokens 2048 --overflow truncate --out store
      packline sft --preset nanochat-sft --data data --hub --tokenizer mine \
          --scheme nanochat --max-tokens 2049 --overflow truncate --out store
      packline view store --document 0

    Exit codes: 0 done, 1 error, 2 wrong usage, 3 done with more bad records than
    --max-bad-fraction, 129, 130 or 143 interrupted by a signal.
    """
    given = settings.given()
    if "tokenizer" not in given:
        raise RecipeError("no tokenizer", hint="name one with --tokenizer")
    if (not inputs) == (preset is None):
        hint = "name a file or folder of conversations, or --preset nanochat-sft --data FOLDER"
        raise RecipeError("expected either inputs or a preset", hint=hint)
    for path in inputs:
        refuse_toml(path, "conversations, as JSONL or Parquet")
    of_source = {name: given.pop(name) for name in ("label", "field", "columns") if name in given}
    if preset is not None and (data is None or of_source):
        raise RecipeError("a preset goes with --data, and has its own labels, fields and columns")
    if "chat_template" in given:
        given["chat_template"] = read_template(given["chat_template"])
    sources = (
        (ConversationSource(inputs=inputs, **of_source),)
        if preset is None
        else tuple(preset_sources(preset, data or ".", without=without or (), hub=hub))
    )
    request = SftRequest(sources=sources, out=out, **given)
    if dry_run:
        return show_plan("sft", partial(plan_sft, request))
    with watch() as (tally, hear):
        done = run_sft(request, hear, place.place())
    output.facts(finished_facts(done, out))
    ledger = done.manifest.ledger
    code = warn_of_bad(ledger, max_bad_fraction, out)
    missing = split_warnings(done.manifest)
    warn_of_splits(missing)
    if request.max_tokens is None and not is_remote(out) and (long := too_long(out)):
        output.warning(long, "--max-tokens N leaves longer ones out, and with --overflow truncate cuts them")
        missing = [*missing, long]
    return output.result(
        "sft",
        imported_values(done, tally, out),
        code=code,
        bad_records=ledger.bad,
        ledger=ledger,
        sources=done.manifest.sources,
        warnings=missing,
    )


def too_long(store: str) -> str:
    """Warning about conversations that do not fit a row of usual length; empty if there are none."""
    longer = [lengths[lengths > SEQ_LEN] for lengths in length_blocks(StoreReader(store))]
    if not (count := sum(map(len, longer))):
        return ""
    longest = max(int(lengths.max()) for lengths in longer if len(lengths))
    return (
        f"{plural(count, 'conversation')} of more than {SEQ_LEN:,} tokens, the longest of {longest:,}: "
        "rows of that length cut them, and parts without a reply teach nothing"
    )


def read_template(given: str) -> str:
    """The name of a template unchanged, or the text of a template file.

    A name takes precedence over a file of that name, which can be given as ./NAME.
    """
    if given in TEMPLATES:
        return given
    try:
        return Path(given).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        message = f"cannot read the chat template {given}: {reason}"
        raise unknown_name(message, given, TEMPLATES) from error
