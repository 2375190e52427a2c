"""Evaluation sets on disk: one file per task, their questions, and config.json, which is written last.

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

Keys are those of stacks. `tokens` is uint16 or int32. Equal inputs give equal bytes. Every file appears under
its name only when it is complete. Only `pt` involves a pickle, and that one is only written.
"""

from __future__ import annotations

import io
import json
import os
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal, TypeAlias

import msgspec
import numpy as np

from packline.errors import PacklineError, RecipeError
from packline.evals.evaluation_texts import CONFIG, QUESTIONS, EvaluationText
from packline.evals.llmc_questions import llmc_questions
from packline.evals.task import LetterTask, ScoredTask
from packline.storage.local import disk_errors, publish_bytes, sync_folder

Task: TypeAlias = ScoredTask | LetterTask
EvalFormat = Literal["npz", "safetensors", "pt", "llmc"]
ENDINGS: dict[EvalFormat, str] = {"npz": "npz", "safetensors": "safetensors", "pt": "pt", "llmc": "bin"}
DTYPES = {"uint16": "U16", "int32": "I32", "int64": "I64"}
"""Names of dtypes in safetensors."""


class EvalsWriter:
    """Write tasks one by one, then config.json.

    Args:
        folder: output folder, created; one with a config.json is refused unless `force`.
        format: format of the tasks' files.
        max_seq_len: recorded in config.json.
        bos_id: recorded in config.json; None if no token begins a sequence.
        force: overwrite an existing folder.

    Raises:
        RecipeError: the folder has a config.json, or the format needs torch, which is not installed.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        format: EvalFormat = "npz",
        max_seq_len: int,
        bos_id: int | None,
        force: bool = False,
    ) -> None:
        self.folder, self.format = Path(folder), format
        if format == "pt":
            _torch()
        if (self.folder / CONFIG).exists():
            if not force:
                raise RecipeError(
                    f"{self.folder} holds evaluation sets already", hint="--force writes over them"
                )
            os.remove(self.folder / CONFIG)
        self.folder.mkdir(parents=True, exist_ok=True)
        self._texts: list[bytes] = []
        self._config: dict[str, Any] = {"max_seq_len": max_seq_len, "bos_id": bos_id, "tasks": []}

    def write(self, task: Task, texts: Iterable[EvaluationText] = ()) -> Path:
        """Write a task; return its file.

        Args:
            task: its arrays.
            texts: its questions, unless another task has written them.

        Raises:
            RecipeError: the task does not fit the format.
            OutOfSpace: the disk is full.
        """
        name = f"{task.label}.{ENDINGS[self.format]}"
        path = self.folder / name
        if self.format == "llmc":
            if isinstance(task, LetterTask):
                raise RecipeError("llm.c's file has no place for letters", hint="choose another --format")
            publish_bytes(path, llmc_questions(task))
        elif self.format == "safetensors":
            _publish(path, _safetensors(arrays_of(task), {**facts_of(task)}))
        elif self.format == "pt":
            with disk_errors(self.folder):
                waiting = path.with_name(f".{name}.tmp")
                _torch().save(dict_of(task), waiting)
                os.replace(waiting, path)
                sync_folder(self.folder)
        else:
            _publish(path, _npz(arrays_of(task)))
            publish_bytes(self.folder / f"{task.label}.json", _json(facts_of(task)))
        sequences = {"num_sequences": len(task.sequences)} if isinstance(task, ScoredTask) else {}
        entry = {"label": task.label, "file": name, "task_type": facts_of(task)["task_type"]}
        entry |= {"num_examples": facts_of(task)["num_examples"], **sequences}
        if isinstance(task, LetterTask):
            entry["random_baseline"] = task.random_baseline
        self._config["tasks"].append(entry)
        self._texts += (msgspec.json.encode(one._asdict()) + b"\n" for one in texts)
        return path

    def finish(self) -> None:
        """Write config.json, which completes the folder."""
        publish_bytes(self.folder / QUESTIONS, b"".join(self._texts))
        publish_bytes(self.folder / CONFIG, _json(self._config))


def facts_of(task: Task) -> dict[str, Any]:
    """Metadata of a task, in addition to its arrays."""
    if isinstance(task, LetterTask):
        kind, questions = "categorical", len(task.sequences)
    else:
        kind, questions = task.task_type, task.questions
    facts = {"task_type": kind, "label": task.label, "random_baseline": task.random_baseline}
    return {**facts, "num_examples": questions}


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


def _npz(arrays: dict[str, np.ndarray]) -> bytes | memoryview:
    file = io.BytesIO()
    np.savez(file, **arrays)  # type: ignore[arg-type]
    return file.getbuffer()


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


def _publish(path: Path, data: bytes | memoryview) -> None:
    publish_bytes(path, data)  # type: ignore[arg-type]


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
