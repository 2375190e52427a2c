"""Run one unit of supervised data: conversations of a file become documents with a loss mask.

    read ──> normal form ──> render ──> check ──> encode ──> cut ──> split ──> write ──> Receipt
    record   conversations   pieces     pieces    tokens     max_tokens        shards

A record that fails is a bad record, kept verbatim with its reason. The result depends only on the unit's
bytes, the tokenizer and the options. The caller publishes it (`StoreFolder.commit`).
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Literal

import msgspec
import numpy as np

from packline.chat.chat_template import ChatTemplate, strips_of
from packline.chat.conversations import Conversation, read_conversation
from packline.chat.pieces import Encoded, PieceEncoder, Rendered, check_pieces, mute, render_nanochat
from packline.chat.sources import ConversationSource, ConversationUnit
from packline.chat.tasks import GENERATORS, adapter_of, read_words
from packline.encoders.parity import audited
from packline.encoders.token_bytes import TextBytes
from packline.fingerprint import shares_of
from packline.jobs.folder import StoreFolder
from packline.jobs.job import Opening, ReportProgress, Runner
from packline.jobs.plan import Unit
from packline.jobs.text_build import TextBuild
from packline.jobs.text_unit import KEEP, TextRunner, UnitRun, check_unchanged
from packline.jobs.totals import smallest
from packline.ragged import Ragged
from packline.sources.batch import Batch, RecordProblem, Reject, TemplateTimeout, Texts
from packline.sources.carried import fit_field, fitted_batch
from packline.sources.jsonl import has_raw, id_text, is_lost_id
from packline.sources.records import MAX_RECORD_BYTES, Record, read_bytes, read_records
from packline.storage.inputs import hash_range
from packline.storage.local import disk_errors
from packline.store.ledger import MaskCounts
from packline.store.manifest import InputPiece

FORMAT = "conversations"
Scheme = Literal["template", "nanochat"]
Overflow = Literal["reject", "truncate"]
BATCH = 256
"""Conversations to encode together. No byte of a store depends on it."""


class ChatOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options that decide how conversations become tokens."""

    scheme: Scheme
    template: str | None
    """Text of the chat template, for the scheme "template"."""
    variables: dict[str, str | None]
    """Variables of the template: bos_token, eos_token."""
    max_tokens: int | None
    overflow: Overflow
    sources: tuple[ConversationSource, ...]


class ConversationBuild(TextBuild, kw_only=True):
    """A build of conversations: what its units have in common."""

    chat: ChatOptions
    parts: list[ConversationUnit]
    """Part of a file that each unit reads, by its number."""

    def open(self) -> ConversationRunner:
        """Runner of the units."""
        return ConversationRunner(self)


class ConversationRunner(TextRunner):
    """Runs units of conversations."""

    def __init__(self, build: ConversationBuild) -> None:
        self.chat, self.parts, folder = build.chat, build.parts, StoreFolder(build.out)
        self.pieces = PieceEncoder(build.tokenizer, build.boundary, sum(file.size for file in build.files))
        super().__init__(build, self.pieces.encoder, folder.tmp, folder=folder)
        self.text_bytes = TextBytes(build.tokenizer)
        template = make_template(build.chat, build.tokenizer.json)
        self.render = render_nanochat if template is None else template.render

    def run(self, unit: Unit, report: ReportProgress) -> Iterator[Any]:
        """Write a unit's files into the work folder."""
        assert self.folder is not None
        with disk_errors(self.folder.parent):
            run, pieces = ConversationRun(self, unit, report), list[InputPiece]()
            yield run.run(run.read(pieces), pieces)

    def source_of(self, unit: Unit) -> str:
        """One name for all."""
        return FORMAT

    def commit(self, unit: Unit, result: Any) -> None:
        """Move the unit's files into the store."""
        assert self.folder is not None
        self.folder.commit(result)


def make_template(options: ChatOptions, tokenizer_json: str) -> ChatTemplate | None:
    """Chat template, ready to render; None for nanochat's scheme."""
    if options.scheme == "nanochat":
        return None
    assert options.template is not None
    return ChatTemplate(options.template, strips_of(tokenizer_json), options.variables)


@dataclass(slots=True)
class RenderedBatch(Batch):
    """Rendered conversations of one file, in order, and the records that they were."""

    records: list[Record] = field(default_factory=list)
    rendered: list[Rendered] = field(default_factory=list)


class ConversationRun(UnitRun):
    """State of one unit: a text unit whose documents are rendered, and encoded piece by piece."""

    def __init__(self, runner: ConversationRunner, unit: Unit, report: ReportProgress) -> None:
        super().__init__(runner, unit, unit.name, report)
        self._chat, self._part = runner, runner.parts[unit.number]
        self._file = self._build.files[self._part.file]
        self._given = runner.chat.sources[unit.source]
        self._split = self._given.split or msgspec.UNSET
        self._adapt = adapter_of(self._given.task)
        self.ledger.mask = self._mask = MaskCounts()
        self._met = 0
        """Number of rendered conversations."""

    def read(self, pieces: list[InputPiece]) -> Generator[Batch, None, None]:
        """Rendered conversations of the unit's file, or those that a task makes from it.

        `pieces` gets the checksum of the unit's part of the file, once that was read unchanged.
        """
        file, part, make = self._file, self._part, GENERATORS.get(self._given.task)
        records: Iterable[Record | Reject]
        if make is None:
            records = read_records(file, part.start, part.stop, MAX_RECORD_BYTES)
        else:
            made = make(read_words(read_bytes(file.path, file.state), file.path), self._given.options)
            records = (Record(number, one, None) for number, one in enumerate(made))
        wanted = islice(records, part.most)
        while some := list(islice(wanted, BATCH)):
            yield self._rendered(some)
        if not part.turn:
            checksum = hash_range(file.path, part.start, part.stop)
            check_unchanged(file)
            pieces.append(InputPiece(file.name, part.start, part.stop, checksum))

    def _rendered(self, records: list[Record | Reject]) -> RenderedBatch:
        columns = self._build.carried[self._unit.source]
        good: list[Record] = []
        rendered: list[Rendered] = []
        values: list[list[Any]] = []
        bad: list[Reject] = []
        for record in records:
            if isinstance(record, Reject):
                bad.append(record)
                continue
            try:
                one = self._render(record)
                values.append([fit_field(record.value, column) for column in columns])
            except RecordProblem as error:
                bad.append(record.reject(self._file.index, error.reason, error.detail))
                continue
            good.append(record)
            rendered.append(one)
        own = [one.value.get("id") if isinstance(one.value, dict) else None for one in good]
        lost = [one.lost_id or is_lost_id(id) for one, id in zip(good, own, strict=True)]
        return RenderedBatch(
            self._file.index,
            Texts.of([one.whole for one in rendered]),
            np.array([record.position for record in good], np.int64),
            list(map(id_text, own)),
            bad,
            columns=fitted_batch(columns, values) if columns else None,
            lost_ids=[one.position for one, gone in zip(good, lost, strict=True) if gone],
            records=good,
            rendered=rendered,
        )

    def take(self, batch: Batch) -> None:
        """Encode and write a batch; bad records go to rejects, in the order of the file."""
        assert isinstance(batch, RenderedBatch)
        audit = audited(self._met, self._met + len(batch))
        found = self._chat.pieces.encode(batch.rendered, [one - self._met for one in audit], self._file.path)
        self._met += len(batch)
        self._audited += audit
        documents: list[Encoded] = []
        kept: list[int] = []
        for place, (record, one) in enumerate(zip(batch.records, found, strict=True)):
            try:
                documents.append(self._fit(one))
                kept.append(place)
            except RecordProblem as error:
                batch.rejects.append(record.reject(self._file.index, error.reason, error.detail))
        if documents:
            good = batch.keep(np.array(kept))
            ragged = Ragged.of([one.tokens for one in documents], documents[0].tokens.dtype)
            loss = np.concatenate([one.loss for one in documents])
            with_bos = int(self._build.boundary.bos_id is not None)
            good.loss = Ragged(loss, ragged.offsets)
            good.decoded_bytes = self._chat.text_bytes.of(ragged.tokens, ragged.offsets, with_bos, 1)
            self._write(good, ragged)
            self._mask.trained_tokens += int(np.count_nonzero(loss))
            texts = [text for place in kept for text in batch.rendered[place].texts]
            self.ledger.special_token_strings += int(self._runner.special.count(Texts.of(texts)).sum())
        self._count(batch, np.full(len(documents), KEEP))

    def _checked(self) -> int:
        """Number of audited conversations, those included that are too long."""
        return len(self._audited)

    def settings(self) -> str:
        """Empty: no later build reuses units of conversations."""
        return ""

    def _render(self, record: Record) -> Rendered:
        try:
            adapted = self._adapt(record.value, self._given.options)
            conversation = read_conversation(adapted, self._given.field)
            if record.odd:
                _check_odd(conversation)
        except UnicodeEncodeError as error:
            detail = f"a lone surrogate \\u{ord(error.object[error.start]):04x}"
            raise RecordProblem("lone_surrogate", detail) from error
        try:
            pieces = self._chat.render(conversation)
        except TemplateTimeout as error:
            raise error.at(self._file.path, self._file.format, record.position) from error
        check_pieces(conversation, pieces)
        return Rendered.of(mute(conversation, pieces))

    def _fit(self, one: Encoded | RecordProblem) -> Encoded:
        """Cut the document to `max_tokens`, end included, if that is enabled."""
        if isinstance(one, RecordProblem):
            raise one
        options = self._chat.chat
        length, most = len(one.tokens), options.max_tokens
        if most is None or length <= most:
            return one
        detail = f"expected at most {most:,} tokens, found {length:,}"
        if options.overflow == "reject":
            raise RecordProblem("too_long", detail)
        tokens, loss = one.tokens[:most].copy(), one.loss[:most].copy()
        tokens[-1], loss[-1] = self._build.boundary.eod_id, 0
        if not loss.any():
            raise RecordProblem("too_long", f"{detail}; nothing that is trained on is among the first")
        self._mask.truncated += 1
        self._mask.truncated_tokens += length - most
        return Encoded(tokens, loss)


class ConversationScan(Opening, msgspec.Struct, frozen=True):
    """Settings of a scan of conversations, for `val_documents`."""

    build: ConversationBuild
    count: int
    """Number of validation documents."""

    def open(self) -> ConversationScanner:
        """Runner of the units."""
        return ConversationScanner(self)


class ConversationScanner(Runner[Unit, list[float]]):
    """Finds the smallest shares among the documents that a build of conversations keeps."""

    def __init__(self, scan: ConversationScan) -> None:
        self._runner, self._count = ConversationRunner(scan.build), scan.count

    def run(self, unit: Unit, report: ReportProgress) -> Iterator[list[float]]:
        """Render all conversations of a unit; write nothing."""
        scan = _Scan(self._runner, unit, report)
        for batch in scan.read([]):
            scan.take(batch)
        yield smallest(scan.shares, self._count)


class _Scan(ConversationRun):
    """A unit that writes nothing, and collects the shares of its documents' texts."""

    def __init__(self, runner: ConversationRunner, unit: Unit, report: ReportProgress) -> None:
        super().__init__(runner, unit, report)
        self.shares = list[np.ndarray]()

    def _write(self, batch: Batch, ragged: Ragged) -> None:
        self.shares.append(shares_of(batch.texts.hashes(self._recipe.seed)))

    def _count(self, batch: Batch, verdicts: np.ndarray) -> None:
        pass


def _check_odd(conversation: Conversation) -> None:
    """Refuse values that cannot be written, in the used part of a record marked odd."""
    msgspec.json.encode(conversation)
    if has_raw([call.arguments for message in conversation.messages for call in message.calls]) or has_raw(
        list(conversation.tools)
    ):
        raise RecordProblem("malformed_json", "a number that is out of range")
