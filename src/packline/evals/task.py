"""A task as arrays, and folders of tasks: one file per task, their questions, and config.json, written last.

    ScoredTask    several sequences per question; tokens start to end of each are scored (CORE, HellaSwag)
    LetterTask    one sequence per question; the letters' tokens are compared at its last position (chat)

    npz          LABEL.npz with arrays, LABEL.json with the rest          (the default)
    safetensors  LABEL.safetensors: the same arrays, the rest in its metadata
    pt           LABEL.pt: a dict of lists, the format of stacks          (needs torch)
    llmc         LABEL.bin: llm.c's questions                              (tasks of four choices)

    questions.jsonl: one line per question, {set, number, text}: its text with the right answer, in the order
    of its original file. `packline verify --against` reads this file of such a folder.

    scored   tokens [T], offsets int64 [S+1], start_idx, end_idx, example_idx, seq_idx int32 [S],
             num_seqs_per_example, gold_labels int32 [Q] (-1 if the sequence itself is right)
    letters  tokens [T], offsets int64 [S+1], answer_pos, gold, example_idx int32 [S],
             letter_token_ids int32 [N], letter_offsets int64 [S+1]

`S` sequences, `Q` questions. Keys are those of stacks. `tokens` is uint16 or int32. Equal inputs give equal
bytes. Every file appears under its name only when it is complete. Only `pt` involves a pickle, and that one
is only written.
"""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeAlias

import msgspec
import numpy as np

from packline.encoders.encoder import Encoder
from packline.encoders.tokenizer import Tokenizer
from packline.errors import PacklineError, RecipeError
from packline.ragged import Ragged
from packline.storage.local import LocalFolder
from packline.storage.places import refuse_remote
from packline.storage.results import Publication

CONFIG, QUESTIONS = "config.json", "questions.jsonl"
"""Files of a folder written by `packline evals`."""
EvalFormat = Literal["npz", "safetensors", "pt", "llmc"]
SUFFIXES: dict[EvalFormat, str] = {"npz": "npz", "safetensors": "safetensors", "pt": "pt", "llmc": "bin"}
DTYPES = {"uint16": "U16", "int32": "I32", "int64": "I64"}
"""Names of dtypes in safetensors."""
LLMC_MAGIC, LLMC_VERSION, LLMC_HEADER_BYTES = 20240522, 1, 1024
LLMC_MARK = 65_535
LLMC_ENDINGS = 4
CACHE_BYTES = 256 << 20
"""Bytes of text after which engines are loaded anew: few-shot prompts of CORE are a gigabyte."""


def text_encoder(tokenizer: Tokenizer) -> Encoder:
    """Build the encoder of evaluation texts: special tokens in them are text."""
    return Encoder(tokenizer, cache_bytes=CACHE_BYTES)


class EvaluationText(msgspec.Struct, frozen=True):
    """A question with its answer."""

    set: str
    number: int
    """Number in its file, or among all CSV files of a folder, from 0."""
    text: str


def texts_of(label: str, questions: Sequence[Any], delimiter: str = " ") -> list[EvaluationText]:
    """Texts of questions, each with its right answer."""
    answers = (question.answered(delimiter) for question in questions)
    return [EvaluationText(label, number, text) for number, text in enumerate(answers)]


@dataclass(frozen=True, slots=True)
class ScoredTask:
    """Sequences of which a range of tokens is scored."""

    label: str
    task_type: str
    random_baseline: float
    """Accuracy of guessing, in percent, from the bundle's table."""
    sequences: Ragged
    """Tokens of each sequence, uint16 or int32 `[T]`."""
    start: np.ndarray
    """int32 `[S]`: first token to score."""
    end: np.ndarray
    """int32 `[S]`: end of the tokens to score (exclusive)."""
    question: np.ndarray
    """int32 `[S]`: number of the question, from 0."""
    place: np.ndarray
    """int32 `[S]`: number of the sequence within its question, from 0."""
    gold: np.ndarray
    """int32 `[Q]`: number of the right sequence; -1 if the sequence itself is right."""
    truncated: int = 0
    """Sequences that lost tokens on the left."""
    skipped: ClassVar = 0

    @property
    def questions(self) -> int:
        """Number of questions."""
        return len(self.gold)

    @property
    def sequences_of_question(self) -> np.ndarray:
        """Number of sequences of each question, int64 `[Q]`."""
        return np.bincount(self.question, minlength=self.questions)

    @property
    def unscored(self) -> int:
        """Sequences without a token to score: a choice that is a prefix of another one."""
        return int((self.start >= self.end).sum())


@dataclass(frozen=True, slots=True)
class LetterTask:
    """Sequences after which the next token is a letter."""

    label: str
    random_baseline: float
    """Accuracy of guessing, from 0 to 1."""
    sequences: Ragged
    letters: Ragged
    """Tokens of the letters that may be the answer, by sequence, int32."""
    gold: np.ndarray
    """int32 `[S]`: number of the right letter."""
    question: np.ndarray
    """int32 `[S]`: number of the question; questions that are too long are absent."""
    skipped: int = 0
    """Questions that are too long."""
    task_type: ClassVar = "categorical"
    truncated: ClassVar = 0
    unscored: ClassVar = 0

    @property
    def questions(self) -> int:
        """Number of questions."""
        return len(self.gold)

    @property
    def answer_pos(self) -> np.ndarray:
        """int32 `[S]`: position whose next token is the answer, the last one."""
        return (self.sequences.lengths - 1).astype(np.int32)


Task: TypeAlias = ScoredTask | LetterTask


class EvalsWriter:
    """Write tasks one by one, then config.json."""

    def __init__(
        self,
        folder: str | Path,
        *,
        format: EvalFormat = "npz",
        max_seq_len: int,
        bos_id: int | None,
        force: bool = False,
    ) -> None:
        refuse_remote(folder, "an evaluation set")
        self.folder, self.format = Path(folder), format
        if format == "pt":
            _torch()
        if (self.folder / CONFIG).exists() and not force:
            raise RecipeError(f"{self.folder} holds evaluation sets already", hint="--force writes over them")
        self.folder.mkdir(parents=True, exist_ok=True)
        self._result = Publication(LocalFolder(self.folder), CONFIG)
        self._result.clear([QUESTIONS])
        self._texts: list[bytes] = []
        self._config: dict[str, Any] = {"max_seq_len": max_seq_len, "bos_id": bos_id, "tasks": []}

    def write(self, task: Task, texts: Iterable[EvaluationText] = ()) -> Path:
        """Write a task; return its file."""
        name = f"{task.label}.{SUFFIXES[self.format]}"
        path = self.folder / name
        if self.format == "llmc":
            if isinstance(task, LetterTask):
                raise RecipeError("llm.c's file has no place for letters", hint="choose another --format")
            self._put(name, llmc_questions(task))
        elif self.format == "safetensors":
            self._put(name, _safetensors(arrays_of(task), {**facts_of(task)}))
        elif self.format == "pt":
            _torch().save(dict_of(task), data := io.BytesIO())
            self._put(name, data.getvalue())
        else:
            self._put(name, _npz(arrays_of(task)))
            self._put(f"{task.label}.json", _json(facts_of(task)))
        entry = {"label": task.label, "file": name, "task_type": task.task_type}
        if isinstance(task, LetterTask):
            rest = {"random_baseline": task.random_baseline}
        else:
            rest = {"num_sequences": len(task.sequences)}
        self._config["tasks"].append({**entry, "num_examples": task.questions, **rest})
        self._texts += (msgspec.json.encode(one) + b"\n" for one in texts)
        return path

    def _put(self, name: str, data: bytes) -> None:
        """Create a file; what an earlier run left under its name is replaced."""
        self._result.storage.delete([name])
        self._result.storage.put_new(name, data)

    def finish(self) -> None:
        """Write config.json, which completes the folder."""
        self._result.publish({QUESTIONS: b"".join(self._texts), CONFIG: _json(self._config)})


def facts_of(task: Task) -> dict[str, Any]:
    """Metadata of a task, in addition to its arrays."""
    facts = {"task_type": task.task_type, "label": task.label, "random_baseline": task.random_baseline}
    return {**facts, "num_examples": task.questions}


def arrays_of(task: Task) -> dict[str, np.ndarray]:
    """Arrays of a task by their keys."""
    arrays = {"tokens": task.sequences.tokens, "offsets": task.sequences.offsets}
    if isinstance(task, LetterTask):
        arrays |= {"answer_pos": task.answer_pos, "gold": task.gold, "example_idx": task.question}
        return arrays | {"letter_token_ids": task.letters.tokens, "letter_offsets": task.letters.offsets}
    arrays |= {"start_idx": task.start, "end_idx": task.end}
    arrays |= {"example_idx": task.question, "seq_idx": task.place}
    counts = task.sequences_of_question.astype(np.int32)
    return arrays | {"num_seqs_per_example": counts, "gold_labels": task.gold}


def dict_of(task: Task) -> dict[str, Any]:
    """A task in the form of stacks: only lists and ints."""
    # Equal ids share one object: a list of 100 million takes 800 MB instead of four times that.
    highest = int(task.sequences.tokens.max(initial=0))
    numbers = np.arange(highest + 1).astype(object)
    tokens = [numbers[task.sequences[place]].tolist() for place in range(len(task.sequences))]
    if isinstance(task, LetterTask):
        letters = [task.letters[place].tolist() for place in range(len(task.letters))]
        keys = ("tokens", "answer_pos", "letter_token_ids", "gold", "example_idx")
        columns = (tokens, task.answer_pos.tolist(), letters, task.gold.tolist(), task.question.tolist())
        return {**facts_of(task), "sequences": _dicts(keys, columns)}
    keys = ("tokens", "start_idx", "end_idx", "example_idx", "seq_idx")
    scored = (task.start.tolist(), task.end.tolist(), task.question.tolist(), task.place.tolist())
    return {
        **facts_of(task),
        "sequences": _dicts(keys, (tokens, *scored)),
        "num_seqs_per_example": dict(enumerate(task.sequences_of_question.tolist())),
        "gold_labels": {number: gold for number, gold in enumerate(task.gold.tolist()) if gold >= 0},
    }


def _dicts(keys: tuple[str, ...], columns: Iterable[list[Any]]) -> list[dict[str, Any]]:
    return [dict(zip(keys, values, strict=True)) for values in zip(*columns, strict=True)]


def _npz(arrays: dict[str, np.ndarray]) -> bytes:
    file = io.BytesIO()
    np.savez(file, **arrays)  # type: ignore[arg-type]
    return file.getvalue()


def _safetensors(arrays: dict[str, np.ndarray], facts: dict[str, Any]) -> bytes:
    """Encode as safetensors: length of the header in eight bytes, JSON header, then all arrays."""
    header: dict[str, Any] = {"__metadata__": {name: str(value) for name, value in facts.items()}}
    at = 0
    # Wide dtypes first, so that every array is aligned.
    ordered = sorted(arrays.items(), key=lambda item: -item[1].itemsize)
    for name, array in ordered:
        entry = {"dtype": DTYPES[array.dtype.name], "shape": list(array.shape)}
        header[name] = {**entry, "data_offsets": [at, at + array.nbytes]}
        at += array.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    data = [array.astype(array.dtype.newbyteorder("<")).tobytes() for _, array in ordered]
    return b"".join([struct.pack("<Q", len(text)), text, *data])


def _json(value: dict[str, Any]) -> bytes:
    return json.dumps(value, indent=2, ensure_ascii=False).encode() + b"\n"


def _torch() -> Any:
    try:
        import torch
    except ImportError as error:
        raise PacklineError(
            "--format pt needs torch, which is not installed",
            hint="pip install 'packline[torch]', or take npz",
        ) from error
    return torch


def llmc_questions(task: ScoredTask) -> bytes:
    """Encode a task as a question file of llm.c, read by its HellaSwag evaluation.

        0     int32   20240522
        4     int32   1
        8     int32   questions
        12    int32   bytes of the longest question
        1024  uint16  for each question: 65535, its bytes, its number, gold, 4, then the number of tokens of
                      the context and these tokens, then the same for each of the four endings

    Ids are below 65,535, a question has fewer than 65,536 bytes, a file fewer than 65,536 questions, and each
    question four sequences with one context.
    """

    def refuse(reason: str) -> RecipeError:
        return RecipeError(
            f"task {task.label} does not fit into llm.c's file: {reason}",
            hint="choose another --format, or other tasks",
        )

    if task.task_type != "multiple_choice" or set(task.sequences_of_question.tolist()) != {LLMC_ENDINGS}:
        raise refuse(f"expected {LLMC_ENDINGS} choices a question")
    if task.questions >= LLMC_MARK + 1:
        raise refuse(f"{task.questions:,} questions")
    if len(task.sequences.tokens) and int(task.sequences.tokens.max()) >= LLMC_MARK:
        raise refuse(f"ids of {LLMC_MARK:,} and more")
    parts: list[np.ndarray] = []
    longest = 0
    for number in range(task.questions):
        places = range(number * LLMC_ENDINGS, (number + 1) * LLMC_ENDINGS)
        starts = [int(task.start[place]) for place in places]
        context = task.sequences[places[0]][: starts[0]]
        if any(
            start != starts[0] or not np.array_equal(task.sequences[place][:start], context)
            for place, start in zip(places, starts, strict=True)
        ):
            raise refuse(f"question {number} has no common context, as it was cut")
        endings = [task.sequences[place][starts[0] : task.end[place]] for place in places]
        size = 2 * (6 + len(context) + sum(1 + len(one) for one in endings))
        if size > LLMC_MARK:
            raise refuse(f"question {number} takes {size:,} bytes")
        longest = max(longest, size)
        parts += [np.array([LLMC_MARK, size, number, task.gold[number], LLMC_ENDINGS, len(context)]), context]
        for one in endings:
            parts += [np.array([len(one)]), one]
    header = np.zeros(LLMC_HEADER_BYTES // 4, "<i4")
    header[:4] = LLMC_MAGIC, LLMC_VERSION, task.questions, longest
    return header.tobytes() + np.concatenate(parts).astype("<u2").tobytes()
