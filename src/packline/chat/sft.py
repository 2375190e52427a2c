"""Build a store with a loss mask from conversations, with the machinery of a build.

    look      files, tokenizer, boundary, chat template or scheme            writes nothing
    units     in worker processes, each committed with its receipt           (sft_unit)
    publish   the manifest; `imported` records scheme, template and limits

After an interruption, the same call resumes, and the bytes are the same for any number of processes. A
conversation that is malformed, too long, or whose mask is not exactly the assistant's words is kept in
rejects/ with its reason; the ledger counts them all.

Cost: 1.3 million tokens per second of processor time for chats of 540 tokens, start included; rendering takes
most of it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

import msgspec

from packline.chat.named_templates import TEMPLATES, nearest_template, resolve_template
from packline.chat.pieces import BOS, NANOCHAT_TOKENS
from packline.chat.sft_unit import (
    FORMAT,
    ChatOptions,
    ConversationBuild,
    ConversationScan,
    Overflow,
    Scheme,
    make_template,
)
from packline.chat.sources import (
    ConversationSource,
    check_sources,
    find_conversation_files,
    plan_conversations,
)
from packline.encoders.special_tokens import END_OF_TEXT, Boundary, resolve_boundary
from packline.encoders.tokenizer import Tokenizer, load_tokenizer, read_chat_template
from packline.errors import InputError, RecipeError
from packline.jobs.cut_inputs import number_units
from packline.jobs.engine import plan_job, run_job
from packline.jobs.events import Note, OnEvent
from packline.jobs.machines import On
from packline.jobs.store_job import Imported, NumberedStoreJob
from packline.jobs.totals import settle_share
from packline.recipe import Recipe, RunOptions, Source, check_recipe
from packline.sources.batch import Reason
from packline.sources.listing import pin_inputs
from packline.storage.results import Storage
from packline.store.ledger import source_names
from packline.store.manifest import ImportEntry, Manifest, Receipt
from packline.store.tables import REJECTS
from packline.store.writer import RejectEntry

UNTOLD: frozenset[Reason] = frozenset(("template", "mask"))
"""Reasons for which another template may help."""
SMALL_BYTES = 4 << 20
"""Maximum bytes of inputs for which starting processes would take longer than the work."""


class SftRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Arguments of a build of conversations."""

    sources: tuple[ConversationSource, ...]
    tokenizer: str
    out: str
    scheme: Scheme = "template"
    chat_template: str | None = None
    """Name of a template (`named_templates.TEMPLATES`), or its text; by default the tokenizer's own."""
    eod: str | int | None = None
    bos: str | int | None = None
    max_tokens: int | None = None
    overflow: Overflow = "reject"
    val_fraction: float = 0.0
    val_documents: int | None = None
    """Number of documents in the validation split, instead of val_fraction."""
    test_fraction: float = 0.0
    seed: int = 0
    workers: int | None = None


def run_sft(request: SftRequest, on_event: OnEvent | None = None, on: On = "local") -> Imported:
    """Run the build; return its result."""
    return run_job(_ChatBuild(request), on_event, on=on)


def plan_sft(request: SftRequest, on_event: OnEvent) -> None:
    """Report the plan of a build that has not begun; nothing is written."""
    plan_job(_ChatBuild(request), on_event)


class _ChatBuild(NumberedStoreJob[Receipt, Imported]):
    """One build; made, it has inspected tokenizer, template and files."""

    result, small_bytes = Receipt, SMALL_BYTES

    def __init__(self, request: SftRequest) -> None:
        self._started = time.monotonic()
        _check_request(request)
        replace = msgspec.structs.replace
        pinned = (replace(source, inputs=pin_inputs(source.inputs)) for source in request.sources)
        self._request = request = replace(request, sources=tuple(pinned))
        tokenizer = load_tokenizer(request.tokenizer)
        boundary = _boundary(request, tokenizer)
        options = _options(request, tokenizer)
        self._template = make_template(options, tokenizer.json)
        self._doubt = self._template.unproven if self._template else ""
        files = find_conversation_files(request.sources)
        parts = plan_conversations(request.sources, files)
        recipe = check_recipe(
            Recipe(
                sources=tuple(
                    Source(
                        inputs=one.inputs,
                        name=one.name,
                        label=one.label,
                        columns=one.columns or msgspec.UNSET,
                    )
                    for one in request.sources
                ),
                tokenizer=request.tokenizer,
                eod=boundary.eod,
                bos=boundary.bos,
                val_fraction=request.val_fraction,
                val_documents=msgspec.UNSET if request.val_documents is None else request.val_documents,
                test_fraction=request.test_fraction or msgspec.UNSET,
                seed=request.seed,
            )
        )
        super().__init__(
            out=request.out,
            recipe=recipe,
            entry=ImportEntry(FORMAT, msgspec.to_builtins(options), tuple(source_names(recipe))),
            tokenizer=tokenizer,
            boundary=boundary,
            files=files,
            units=number_units(recipe, [files[part.file].source for part in parts]),
        )
        self.work = ConversationBuild(
            recipe, RunOptions(), files, tokenizer, boundary, out=self.folder.place, chat=options, parts=parts
        )
        scheme = "nanochat's scheme" if options.scheme == "nanochat" else "the chat template"
        self.title, self.given_workers = f"{FORMAT} by {scheme}", request.workers
        self.edges = "eod" if boundary.bos is None else "both"

    def finished(self) -> Imported | None:
        """Report a doubt about the template, and look for the store."""
        if self._doubt:
            hint = self._hint()
            hint = hint and f"; {hint}"
            self.tell(Note(f"conversations of several turns may be refused: {self._doubt}{hint}"))
        return super().finished()

    def unproven(self) -> set[int]:
        """Files of repetitions, where the first unit, which has a checksum of what both read, is missing."""
        units = [(unit.name, part) for unit, part in zip(self.units, self.work.parts, strict=True)]
        done = [part for name, part in units if name in self.receipts]
        first = {(part.file, part.start) for part in done if not part.turn}
        return {part.file for part in done if part.turn and (part.file, part.start) not in first}

    def opening(self) -> ConversationBuild:
        """Settings of the units."""
        return self.work

    def begin(self) -> Imported | None:
        """Start or resume, and choose the validation documents if their number is given."""
        if (summary := super().begin()) is not None:
            return summary
        if (count := self._request.val_documents) is not None:
            sources = self._request.sources
            units = [unit for unit in self.units if not sources[unit.source].split]
            self.val_share = share = settle_share(self, ConversationScan(self.work, count), units, count)
            self.work.recipe = msgspec.structs.replace(self.recipe, val_fraction=share)
        return None

    def done(self, manifest: Manifest, *, nothing_to_do: bool = False) -> Imported:
        """Summary of the build."""
        if (rejected := manifest.ledger.rejected) and not nothing_to_do:
            hint = self._hint() if rejected.keys() & UNTOLD and not self._doubt else ""
            reasons = f"{_counted(rejected)}{hint and f'; {hint}'}"
            self.tell(Note(f"bad records, kept in rejects/: {reasons}"))
        return Imported(manifest, 0, time.monotonic() - self._started, nothing_to_do)

    def accept(self, manifest: Manifest) -> None:
        """Refuse a store without any conversation."""
        ledger = manifest.ledger
        if ledger.documents or not ledger.documents_in:
            return
        message = f"none of {ledger.documents_in:,} records could be used: {_counted(ledger.rejected)}"
        message += f"; the first: {_first_reject(self.folder.storage)}"
        if ledger.rejected.keys() & UNTOLD and self._is_own():
            hint = self._hint() or f"choose a template by name: --chat-template {', '.join(TEMPLATES)}"
            raise RecipeError(message, hint=hint)
        raise InputError(message, hint="the documentation of sft has what is read, and the reasons")

    def _is_own(self) -> bool:
        """True if the template is the tokenizer's or the user's, so that a named one may help."""
        return self._template is not None and self._request.chat_template not in TEMPLATES

    def _hint(self) -> str:
        """Hint naming a template to use instead of the tokenizer's own or a file's; "" if none is similar."""
        if self._template is None or not self._is_own():
            return ""
        nearest = nearest_template(self._template, self.tokenizer.special_tokens)
        return nearest.hint() if nearest else ""


def _counted(rejected: Mapping[str, int]) -> str:
    return ", ".join(f"{reason} {count:,}" for reason, count in rejected.items())


def _first_reject(storage: Storage) -> str:
    """Location of the first bad record and its problem."""
    name = min(name for name in storage.list(REJECTS) if name.endswith(".jsonl"))
    first = msgspec.json.decode(storage.read(name).partition(b"\n")[0], type=RejectEntry)
    return f"{first.file} at {first.position:,}: {first.detail}"


def _check_request(request: SftRequest) -> None:
    check_sources(request.sources)
    if request.workers is not None and request.workers < 0:
        raise RecipeError(f"workers is {request.workers}: expected 0 or more")
    if request.max_tokens is not None and request.max_tokens < 3:
        raise RecipeError(f"max_tokens is {request.max_tokens}: expected at least 3")
    if request.val_documents is not None and all(source.split for source in request.sources):
        raise RecipeError("val_documents: expected a source whose documents are divided, found none")
    if request.scheme == "nanochat" and request.chat_template is not None:
        raise RecipeError("a chat template goes with scheme = template, not with nanochat's")
    if request.overflow == "truncate" and request.max_tokens is None:
        raise RecipeError(
            "overflow = truncate goes with max_tokens", hint="set the maximum tokens per document"
        )


def _boundary(request: SftRequest, tokenizer: Tokenizer) -> Boundary:
    """Boundary tokens; nanochat has one for both ends."""
    if request.scheme == "nanochat":
        missing = [token for token in NANOCHAT_TOKENS if token not in tokenizer.special_tokens]
        if missing:
            raise RecipeError(
                f"{tokenizer.name} is not a tokenizer for nanochat's scheme: it has no {', '.join(missing)}",
                hint="train one with packline tokenizer train --specials nanochat, or use --scheme template",
            )
        bos = BOS if request.bos is None else request.bos
        return resolve_boundary(tokenizer, BOS if request.eod is None else request.eod, bos)
    eod = request.eod
    if eod is None:
        # A chat tokenizer has ends of turns and an end of text. The template ends turns: take the latter.
        texts = [token for token in tokenizer.special_tokens if token in END_OF_TEXT]
        eod = texts[0] if len(texts) == 1 else None
    return resolve_boundary(tokenizer, eod, request.bos)


def _options(request: SftRequest, tokenizer: Tokenizer) -> ChatOptions:
    template = request.chat_template
    if template is not None:
        template = resolve_template(template, tokenizer.special_tokens)
    elif request.scheme == "template":
        template = read_chat_template(request.tokenizer)
        if template is None:
            raise RecipeError(
                f"{request.tokenizer} has no chat template",
                hint=f"choose one with --chat-template: {', '.join(TEMPLATES)}, or a file; or use "
                "--scheme nanochat",
            )
    return ChatOptions(
        scheme=request.scheme,
        template=template,
        variables={"bos_token": tokenizer.bos_token or "", "eos_token": tokenizer.eos_token or ""},
        max_tokens=request.max_tokens,
        overflow=request.overflow,
        sources=request.sources,
    )
