"""Run one unit of supervised data: conversations of a file become documents with a loss mask.

    read ──> normal form ──> render ──> check ──> encode ──> cut ──> split ──> write ──> Receipt
    record   conversations   pieces     pieces    tokens     max_tokens        shards

A record that fails is a bad record, kept verbatim with its reason. The result depends only on the unit's
bytes, the tokenizer and the options. The caller publishes it (`StoreFolder.commit`).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np

from packline.chat.chat_template import ChatTemplate, strips_of
from packline.chat.conversations import Conversation, read_conversation
from packline.chat.pieces import Encoded, PieceEncoder, Rendered, check_pieces, mute, render_nanochat
from packline.chat.sources import ConversationSource, ConversationUnit
from packline.chat.tasks import GENERATORS, adapter_of, read_words
from packline.encoders.parity import audited
from packline.encoders.special_tokens import Boundary, SpecialTokenCounter
from packline.encoders.token_bytes import TextBytes
from packline.encoders.tokenizer import Tokenizer
from packline.fingerprint import hash_text, share_of, split_of
from packline.jobs.folder import StoreFolder, StoreOpening
from packline.jobs.job import Opening, ReportProgress, Runner
from packline.jobs.plan import Unit
from packline.jobs.text_unit import check_unchanged
from packline.jobs.val_documents import smallest
from packline.ragged import Ragged, offsets_of
from packline.sources.batch import RecordProblem, Reject, TemplateTimeout, Texts
from packline.sources.carried import fit_field, fitted_batch, pairs_of
from packline.sources.files import InputFile
from packline.sources.jsonl import has_raw, id_text, is_lost_id
from packline.sources.records import MAX_RECORD_BYTES, Record, read_records, read_whole
from packline.storage.inputs import hash_range
from packline.storage.local import disk_errors
from packline.store.ledger import Ledger, MaskCounts
from packline.store.manifest import InputPiece, Receipt
from packline.store.writer import RejectsWriter, ShardWriter

FORMAT = "conversations"
Scheme = Literal["template", "nanochat"]
Overflow = Literal["reject", "truncate"]
BATCH = 256
"""Conversations to encode together. No byte of a store depends on it."""


class SftOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options that decide how conversations become tokens."""

    scheme: Scheme
    template: str | None
    """Text of the chat template, for the scheme "template"."""
    variables: dict[str, str | None]
    """Variables of the template: bos_token, eos_token."""
    max_tokens: int | None
    overflow: Overflow
    sources: tuple[ConversationSource, ...]


class SftSettings(StoreOpening, msgspec.Struct, frozen=True):
    """Settings common to all units."""

    options: SftOptions
    tokenizer: Tokenizer
    boundary: Boundary
    vocab_size: int
    dtype: str
    names: list[str]
    """Names of the sources."""
    files: list[InputFile]
    units: list[ConversationUnit]
    seed: int
    val_fraction: float
    test_fraction: float
    out: str
    """Folder of the store."""

    def open(self) -> ConversationRunner:
        """Runner of the units."""
        return ConversationRunner(self)


class ConversationRunner(Runner[Unit, Receipt]):
    """Runs units of conversations."""

    def __init__(self, job: SftSettings) -> None:
        self.job = job
        self.folder = StoreFolder(job.out)
        tokenizer = job.tokenizer
        self.encoder = PieceEncoder(tokenizer, job.boundary, sum(file.size for file in job.files))
        self.text_bytes = TextBytes(tokenizer)
        self.special = SpecialTokenCounter(tokenizer.special_tokens)
        template = make_template(job.options, tokenizer.json)
        self.render = render_nanochat if template is None else template.render

    def run(self, unit: Unit, report: ReportProgress) -> Iterator[Receipt]:
        """Write a unit's files into the work folder.

        Raises:
            EncoderMismatch: an engine and the reference disagree.
            InputChanged: a file has changed since the build began.
            OutOfSpace: the disk is full.
        """
        with disk_errors(self.folder.parent):
            yield _Unit(self, unit, report).run()

    def source_of(self, unit: Unit) -> str:
        """One name for all."""
        return FORMAT

    def commit(self, unit: Unit, result: Receipt) -> None:
        """Move the unit's files into the store."""
        self.folder.commit(result)


def make_template(options: SftOptions, tokenizer_json: str) -> ChatTemplate | None:
    """Chat template, ready to render; None for nanochat's scheme.

    Raises:
        RecipeError: a template that cannot be used.
    """
    if options.scheme == "nanochat":
        return None
    assert options.template is not None
    return ChatTemplate(options.template, strips_of(tokenizer_json), options.variables)


class _Document(NamedTuple):
    """One good conversation."""

    record: Record
    encoded: Encoded
    hash: int
    """Hash of its rendered text."""
    values: list[Any]
    """Values of the carried columns."""


class _Unit:
    """State of one unit."""

    def __init__(self, runner: ConversationRunner, unit: Unit, report: ReportProgress) -> None:
        self._runner, self._job, self._report = runner, runner.job, report
        self._name = unit.name
        self._unit = self._job.units[unit.number]
        self._file = self._job.files[self._unit.file]
        self._carried = self._file.carried or ()
        self._source = self._job.options.sources[self._file.source]
        self._adapt = adapter_of(self._source.task)
        self._ledger = Ledger(mask=MaskCounts())
        self._mask = MaskCounts()
        self._met = self._audited = 0
        self._writers: dict[str, ShardWriter] = {}
        self._rejects = RejectsWriter(runner.folder.tmp, self._name)

    def run(self) -> Receipt:
        try:
            for batch in self._batches():
                self._take(batch)
            pieces = () if self._unit.turn else (self._piece(),)
            shards = tuple(self._writers[split].close() for split in sorted(self._writers))
            rejects = self._rejects.close()
        except BaseException:
            for writer in self._writers.values():
                writer.abandon()
            self._rejects.abandon()
            raise
        self._ledger.mask = self._mask
        self._ledger.rejected = dict(sorted(self._ledger.rejected.items()))
        return Receipt(
            self._name,
            self._job.names[self._file.source],
            pieces,
            shards,
            rejects,
            self._ledger,
            self._audited,
            columns=dict(pairs_of(self._carried)) or msgspec.UNSET,
        )

    def _batches(self) -> Iterator[list[Record | Reject]]:
        batch: list[Record | Reject] = []
        read = self._read()
        for record in islice(read, self._unit.most):
            batch.append(record)
            if len(batch) == BATCH:
                yield batch
                batch = []
        if batch:
            yield batch

    def _read(self) -> Iterator[Record | Reject]:
        """Records of the unit's file, or those that a task makes from it."""
        file, unit, make = self._file, self._unit, GENERATORS.get(self._source.task)
        if make is None:
            yield from read_records(file, unit.start, unit.stop, MAX_RECORD_BYTES)
            return
        made = make(read_words(read_whole(file), file.path), self._source.options)
        yield from (Record(number, one, None) for number, one in enumerate(made))

    def _take(self, batch: list[Record | Reject]) -> None:
        """Encode and write a batch; bad records go to rejects, in the order of the file."""
        rendered: list[tuple[Record, Rendered, list[Any]]] = []
        bad: list[Reject] = []
        for record in batch:
            if isinstance(record, Reject):
                bad.append(record)
                continue
            try:
                conversation = self._render(record)
                fitted = [fit_field(record.value, column) for column in self._carried]
                rendered.append((record, conversation, fitted))
            except RecordProblem as error:
                bad.append(record.reject(self._file.index, error.reason, error.detail))
        audit = [number - self._met for number in audited(self._met, self._met + len(rendered))]
        self._met += len(rendered)
        self._audited += len(audit)
        encoded = self._runner.encoder.encode([one for _, one, _ in rendered], audit, self._file.path)
        good: dict[str, list[_Document]] = {}
        texts: list[str] = []
        for (record, conversation, values), one in zip(rendered, encoded, strict=True):
            try:
                document = self._fit(one)
            except RecordProblem as error:
                bad.append(record.reject(self._file.index, error.reason, error.detail))
                continue
            text = conversation.whole.encode("utf-8")
            written = _Document(record, document, hash_text(text), values)
            good.setdefault(self._split(text), []).append(written)
            texts += conversation.texts
        for split, documents in good.items():
            self._write(split, documents)
        self._ledger.special_token_strings += int(self._runner.special.count(Texts.of(texts)).sum())
        for reject in sorted(bad, key=lambda one: one.position):
            self._reject(reject)

    def _render(self, record: Record) -> Rendered:
        try:
            adapted = self._adapt(record.value, self._source.options)
            conversation = read_conversation(adapted, self._source.field)
            if record.odd:
                _check_odd(conversation)
        except UnicodeEncodeError as error:
            detail = f"a lone surrogate \\u{ord(error.object[error.start]):04x}"
            raise RecordProblem("lone_surrogate", detail) from error
        try:
            pieces = self._runner.render(conversation)
        except TemplateTimeout as error:
            raise error.at(self._file.path, self._file.format, record.position) from error
        check_pieces(conversation, pieces)
        return Rendered.of(mute(conversation, pieces))

    def _fit(self, one: Encoded | RecordProblem) -> Encoded:
        """Cut the document to `max_tokens`, end included, if that is enabled.

        Raises:
            RecordProblem: it is too long, or its mask is impossible.
        """
        if isinstance(one, RecordProblem):
            raise one
        options = self._job.options
        length, most = len(one.tokens), options.max_tokens
        if most is None or length <= most:
            return one
        detail = f"expected at most {most:,} tokens, found {length:,}"
        if options.overflow == "reject":
            raise RecordProblem("too_long", detail)
        tokens, loss = one.tokens[:most].copy(), one.loss[:most].copy()
        tokens[-1], loss[-1] = self._job.boundary.eod_id, 0
        if not loss.any():
            raise RecordProblem("too_long", f"{detail}; nothing that is trained on is among the first")
        self._mask.truncated += 1
        self._mask.truncated_tokens += length - most
        return Encoded(tokens, loss)

    def _split(self, text: bytes) -> str:
        if self._source.split is not None:
            return self._source.split
        job = self._job
        if not (job.val_fraction or job.test_fraction):
            return "train"
        return split_of(text, job.seed, job.val_fraction, job.test_fraction)

    def _write(self, split: str, documents: list[_Document]) -> None:
        job, ledger = self._job, self._ledger
        tokens = np.concatenate([one.encoded.tokens for one in documents]).astype(job.dtype)
        loss = np.concatenate([one.encoded.loss for one in documents])
        offsets = offsets_of(np.array([len(one.encoded.tokens) for one in documents], np.int64))
        with_bos = int(job.boundary.bos_id is not None)
        text_bytes = self._runner.text_bytes.of(tokens, offsets, with_bos, 1)
        positions = np.array([one.record.position for one in documents], np.int64)
        own = [_id_of(one.record.value) for one in documents]
        ids = list(map(id_text, own))
        ledger.add_lost_ids(
            sum(is_lost_id(id) or one.record.lost_id for id, one in zip(own, documents, strict=True))
        )
        hashes = np.array([one.hash for one in documents], np.uint64)
        writer = self._writers.get(split)
        if writer is None:
            writer = self._writers[split] = ShardWriter(
                self._runner.folder.tmp,
                f"{split}-{self._name}",
                split,
                job.names[self._file.source],
                self._source.label,
                np.dtype(job.dtype),
                with_loss=True,
                carried=pairs_of(self._carried),
            )
        named = ids if any(ids) else None
        columns = None
        if self._carried:
            columns = fitted_batch(self._carried, [document.values for document in documents])
        writer.append(
            Ragged(tokens, offsets), self._file.name, positions, named, text_bytes, hashes, loss, columns
        )
        count = len(documents)
        ledger.documents_in += count
        ledger.add_documents(count, int(text_bytes.sum()), len(tokens), with_bos=bool(with_bos))
        self._mask.trained_tokens += int(np.count_nonzero(loss))
        self._report(len(tokens))

    def _reject(self, reject: Reject) -> None:
        self._rejects.write(reject, self._file.name)
        if not reject.continued:
            self._ledger.add_rejected(reject.reason, reject.records)

    def _piece(self) -> InputPiece:
        """Checksum of the unit's part of its file, after checking that the file has not changed."""
        file, start, stop = self._file, self._unit.start, self._unit.stop
        checksum = hash_range(file.path, start, stop)
        check_unchanged(file)
        return InputPiece(file.name, start, stop, checksum)


class SftScan(Opening, msgspec.Struct, frozen=True):
    """Settings of a scan of conversations, for `val_documents`."""

    settings: SftSettings
    count: int
    """Number of validation documents."""

    def open(self) -> ConversationScanner:
        """Runner of the units."""
        return ConversationScanner(self)


class ConversationScanner(Runner[Unit, list[float]]):
    """Finds the smallest shares among the documents that a build of conversations keeps."""

    def __init__(self, scan: SftScan) -> None:
        self._runner, self._count = ConversationRunner(scan.settings), scan.count

    def run(self, unit: Unit, report: ReportProgress) -> Iterator[list[float]]:
        """Render all conversations of a unit; write nothing."""
        yield smallest([_Scan(self._runner, unit, report).scan()], self._count)


class _Scan(_Unit):
    """A unit that writes nothing, and collects the shares of its documents' texts."""

    def __init__(self, runner: ConversationRunner, unit: Unit, report: ReportProgress) -> None:
        super().__init__(runner, unit, report)
        self._shares = list[float]()

    def scan(self) -> list[float]:
        """The shares."""
        if self._source.split is None:
            for batch in self._batches():
                self._take(batch)
            check_unchanged(self._file)
        return self._shares

    def _split(self, text: bytes) -> str:
        self._shares.append(share_of(text, self._job.seed))
        return "train"

    def _write(self, split: str, documents: list[_Document]) -> None:
        pass

    def _reject(self, reject: Reject) -> None:
        pass


def _id_of(value: Any) -> Any:
    """Own id of a record, if it has one."""
    return value.get("id") if isinstance(value, dict) else None


def _check_odd(conversation: Conversation) -> None:
    """Refuse values that cannot be written, in the used part of a record marked odd.

    Raises:
        UnicodeEncodeError: a lone surrogate.
        RecordProblem: a number that is out of range.
    """
    msgspec.json.encode(conversation)
    if has_raw([call.arguments for message in conversation.messages for call in message.calls]) or has_raw(
        list(conversation.tools)
    ):
        raise RecordProblem("malformed_json", "a number that is out of range")
