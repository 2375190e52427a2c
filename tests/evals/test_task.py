"""Files of evaluation sets: every format read back by another program, equal arrays, nothing half written."""

from __future__ import annotations

import json
import struct
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.cli.command import result, run
from tests.evals.test_chat_evals import chat_json, mmlu_hub
from tests.evals.test_core import CHOICES, GOES_ON, SCHEMAS, write_bundle
from tests.formats.peers import run_peer

from packline.encoders.tokenizer import load_tokenizer
from packline.errors import InputError, RecipeError
from packline.evals.core import read_hellaswag
from packline.evals.making import EvalsSettings, make_core, make_hellaswag
from packline.evals.task import EvalsWriter, LetterTask, ScoredTask, Task, arrays_of, facts_of, llmc_questions
from packline.ragged import Ragged

__all__ = ["chat_json"]  # a fixture


def ragged(*rows: list[int], dtype: str = "uint16") -> Ragged:
    offsets = np.cumsum([0, *map(len, rows)])
    return Ragged(np.array([one for row in rows for one in row], dtype), offsets.astype(np.int64))


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


SCORED = ScoredTask(
    "pairs", "multiple_choice", 50.0, ragged([1, 2, 3], [1, 2, 4, 5], [1, 6], [1, 7]),
    ints(2, 2, 1, 1), ints(3, 4, 2, 2), ints(0, 0, 1, 1), ints(0, 1, 0, 1), ints(1, 0),
)  # fmt: skip
GOING_ON = ScoredTask(
    "on", "language_modeling", 0.0, ragged([1, 2], [70_000], dtype="int32"), ints(1, 0), ints(2, 1),
    ints(0, 1), ints(0, 0), ints(-1, -1),
)  # fmt: skip
LETTERS = LetterTask(
    "MMLU",
    0.25,
    ragged([1, 2, 3], [1, 4]),
    ragged([5, 6], [5, 6, 7], dtype="int32"),
    ints(1, 2),
    ints(0, 2),
    1,
)
DICTS: dict[str, Any] = {
    "pairs": {
        "task_type": "multiple_choice",
        "label": "pairs",
        "random_baseline": 50.0,
        "num_examples": 2,
        "sequences": [
            {"tokens": [1, 2, 3], "start_idx": 2, "end_idx": 3, "example_idx": 0, "seq_idx": 0},
            {"tokens": [1, 2, 4, 5], "start_idx": 2, "end_idx": 4, "example_idx": 0, "seq_idx": 1},
            {"tokens": [1, 6], "start_idx": 1, "end_idx": 2, "example_idx": 1, "seq_idx": 0},
            {"tokens": [1, 7], "start_idx": 1, "end_idx": 2, "example_idx": 1, "seq_idx": 1},
        ],
        "num_seqs_per_example": {0: 2, 1: 2},
        "gold_labels": {0: 1, 1: 0},
    },
    "on": {
        "task_type": "language_modeling",
        "label": "on",
        "random_baseline": 0.0,
        "num_examples": 2,
        "sequences": [
            {"tokens": [1, 2], "start_idx": 1, "end_idx": 2, "example_idx": 0, "seq_idx": 0},
            {"tokens": [70_000], "start_idx": 0, "end_idx": 1, "example_idx": 1, "seq_idx": 0},
        ],
        "num_seqs_per_example": {0: 1, 1: 1},
        "gold_labels": {},
    },
    "MMLU": {
        "task_type": "categorical",
        "label": "MMLU",
        "num_examples": 2,
        "random_baseline": 0.25,
        "sequences": [
            {"tokens": [1, 2, 3], "answer_pos": 2, "letter_token_ids": [5, 6], "gold": 1, "example_idx": 0},
            {"tokens": [1, 4], "answer_pos": 1, "letter_token_ids": [5, 6, 7], "gold": 2, "example_idx": 2},
        ],
    },
}


def write(folder: Path, format: Any, *tasks: Task) -> dict[str, Any]:
    writer = EvalsWriter(folder, format=format, max_seq_len=9, bos_id=1)
    for task in tasks:
        writer.write(task)
    assert not (folder / "config.json").exists()
    writer.finish()
    config: dict[str, Any] = json.loads((folder / "config.json").read_text())
    return config


def test_the_dicts_of_stacks_are_what_its_trainer_reads(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    config = write(tmp_path, "pt", SCORED, GOING_ON, LETTERS)
    for label, expected in DICTS.items():
        assert torch.load(tmp_path / f"{label}.pt", weights_only=True) == expected
    assert config == {
        "max_seq_len": 9,
        "bos_id": 1,
        "tasks": [
            {"label": "pairs", "file": "pairs.pt", "task_type": "multiple_choice", "num_examples": 2,
             "num_sequences": 4},
            {"label": "on", "file": "on.pt", "task_type": "language_modeling", "num_examples": 2,
             "num_sequences": 2},
            {"label": "MMLU", "file": "MMLU.pt", "task_type": "categorical", "num_examples": 2,
             "random_baseline": 0.25},
        ],
    }  # fmt: skip


def test_without_torch_pt_is_refused_before_any_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "torch", None)
    with pytest.raises(Exception, match="needs torch"):
        EvalsWriter(tmp_path / "out", format="pt", max_seq_len=9, bos_id=1)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("task", [SCORED, GOING_ON, LETTERS], ids=lambda task: task.label)
def test_npz_holds_the_arrays_and_json_the_rest(tmp_path: Path, task: Task) -> None:
    write(tmp_path, "npz", task)
    with np.load(tmp_path / f"{task.label}.npz", allow_pickle=False) as found:
        check_arrays(dict(found), task)
    facts = json.loads((tmp_path / f"{task.label}.json").read_text())
    expected = DICTS[task.label]
    assert facts == {key: expected[key] for key in facts} and len(facts) == 4


def check_arrays(found: dict[str, np.ndarray], task: Task) -> None:
    """That arrays say what the dict says."""
    expected = DICTS[task.label]
    offsets, tokens = found["offsets"].tolist(), found["tokens"].tolist()
    rows = [tokens[a:b] for a, b in pairwise(offsets)]
    assert rows == [one["tokens"] for one in expected["sequences"]]
    for key in ("start_idx", "end_idx", "example_idx", "seq_idx", "answer_pos", "gold"):
        if key in expected["sequences"][0]:
            assert found[key].tolist() == [one[key] for one in expected["sequences"]], key
    if "letter_offsets" in found:
        bounds, letters = found["letter_offsets"].tolist(), found["letter_token_ids"].tolist()
        rows = [letters[a:b] for a, b in pairwise(bounds)]
        assert rows == [one["letter_token_ids"] for one in expected["sequences"]]
    else:
        counts = found["num_seqs_per_example"].tolist()
        assert dict(enumerate(counts)) == expected["num_seqs_per_example"]
        golds = {number: gold for number, gold in enumerate(found["gold_labels"].tolist()) if gold >= 0}
        assert golds == expected["gold_labels"]


def test_safetensors_by_its_own_package(tmp_path: Path) -> None:
    write(tmp_path, "safetensors", SCORED, GOING_ON, LETTERS)
    load = "from safetensors import safe_open\nanswer = {}\n"
    load += "for path in arguments:\n with safe_open(path, 'np') as file:\n  answer[path] = [file.metadata(),"
    load += " {name: file.get_tensor(name).tolist() for name in file.keys()}]"
    tasks: tuple[Task, ...] = (SCORED, GOING_ON, LETTERS)
    paths = [str(tmp_path / f"{task.label}.safetensors") for task in tasks]
    found = run_peer(load, *paths, modules=("safetensors",))
    for task, path in zip(tasks, paths, strict=True):
        facts = {key: str(value) for key, value in facts_of(task).items()}
        assert found[path] == [facts, {name: array.tolist() for name, array in arrays_of(task).items()}]
        check_arrays(arrays_of(task), task)
        # Each array begins at a multiple of its items' size.
        data = Path(path).read_bytes()
        (size,) = struct.unpack("<Q", data[:8])
        for name, entry in json.loads(data[8 : 8 + size]).items():
            if name != "__metadata__":
                assert (8 + size + entry["data_offsets"][0]) % arrays_of(task)[name].itemsize == 0


def test_what_is_there_is_not_written_over_unless_told(tmp_path: Path) -> None:
    write(tmp_path, "npz", SCORED)
    with pytest.raises(RecipeError, match="holds evaluation sets already"):
        EvalsWriter(tmp_path, max_seq_len=9, bos_id=1)
    before = (tmp_path / "pairs.npz").read_bytes()
    writer = EvalsWriter(tmp_path, max_seq_len=9, bos_id=1, force=True)
    assert not (tmp_path / "config.json").exists()  # half new is not a set
    writer.write(SCORED)
    writer.finish()
    assert (tmp_path / "pairs.npz").read_bytes() == before


# ------------------------------------------------------------------ HellaSwag, llm.c

HELLASWAG: list[dict[str, Any]] = [
    {"ctx": f"A man number {n} sits down. he", "endings": [f"gets {n} up", "is", "a cat", "runs away fast"],
     "label": n % 4}
    for n in range(5)
]  # fmt: skip


def read_llmc(data: bytes) -> list[tuple[int, list[int], list[list[int]]]]:
    """Gold, context and endings of each question: a reader of the layout, with all its checks."""
    magic, version, count, longest = struct.unpack("<4i", data[:16])
    assert (magic, version) == (20240522, 1) and not any(data[16:1024])
    stream = np.frombuffer(data[1024:], "<u2").tolist()
    found: list[tuple[int, list[int], list[list[int]]]] = []
    at = most = 0
    while at < len(stream):
        mark, size, number, gold, endings, length = stream[at : at + 6]
        assert (mark, number, endings) == (65535, len(found), 4)
        place = at + 6 + length
        context, parts = stream[at + 6 : place], []
        for _ in range(endings):
            parts.append(stream[place + 1 : place + 1 + stream[place]])
            place += 1 + stream[place]
        assert 2 * (place - at) == size
        most = max(most, size)
        found.append((gold, context, parts))
        at = place
    assert (len(found), most) == (count, longest)
    return found


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"sequences": ragged([1, 2], [1, 3], [1, 4], [1, 65_535])}, "ids of 65,535"),
        ({"sequences": ragged([1, 2], [1, 3], [9, 4], [1, 5])}, "question 0 has no common context"),
        ({"task_type": "schema"}, "expected 4 choices"),
        ({"question": ints(0, 0, 0, 1), "gold": ints(0, 0)}, "expected 4 choices"),
        (
            {"sequences": ragged([1, 2], [1, 3], [1, 4], [1] + [5] * 40_000), "end": ints(2, 2, 2, 40_001)},
            "bytes",
        ),
    ],
)
def test_what_does_not_fit_into_llmc_is_refused(change: dict[str, Any], said: str) -> None:
    fits: dict[str, Any] = {
        "label": "t",
        "task_type": "multiple_choice",
        "random_baseline": 25.0,
        "sequences": ragged([1, 2], [1, 3], [1, 4], [1, 5]),
        "start": ints(1, 1, 1, 1),
        "end": ints(2, 2, 2, 2),
        "question": ints(0, 0, 0, 0),
        "place": ints(0, 1, 2, 3),
        "gold": ints(2),
    }
    assert read_llmc(llmc_questions(ScoredTask(**fits))) == [(2, [1], [[2], [3], [4], [5]])]
    with pytest.raises(RecipeError, match=said):
        llmc_questions(ScoredTask(**{**fits, **change}))


def test_of_core_what_fits_is_written_and_the_rest_named(tmp_path: Path, tokenizer_json: Path) -> None:
    four = [{"query": f"n {n}", "choices": ["a", "b", "c", "d"], "gold": 0} for n in range(3)]
    kinds = [("a", "multiple_choice", four), ("b", "schema", SCHEMAS), ("c", "language_modeling", GOES_ON)]
    tasks = [{"label": label, "icl_task_type": kind, "lines": lines} for label, kind, lines in kinds]
    table = "Eval Task,Random baseline\na,25\nb,50\nc,0\n"
    bundle = write_bundle(tmp_path / "bundle", *tasks, table=table)
    settings = EvalsSettings(tokenizer=str(tokenizer_json), out=str(tmp_path / "o"), bos=0, format="llmc")
    reports = make_core(str(bundle), settings)
    assert [bool(report.file) for report in reports] == [True, False, False]
    assert all("llm.c" in report.reason for report in reports[1:])
    assert [task["label"] for task in json.loads((tmp_path / "o" / "config.json").read_text())["tasks"]] == [
        "a"
    ]


# ------------------------------------------------------------------ the command


def test_the_command_makes_core_chat_and_hellaswag(
    tmp_path: Path, tokenizer_json: Path, chat_json: Path
) -> None:
    task = {"label": "a", "icl_task_type": "multiple_choice", "lines": CHOICES}
    bundle = write_bundle(tmp_path / "bundle", task)
    words = ("--tokenizer", chat_json, "--max-seq-len", "64")
    done = run("evals", "core", bundle, *words, "--out", tmp_path / "core")
    assert done.returncode == 0, done.stderr
    assert "a     multiple_choice          6         18" in done.stdout
    again = run("evals", "core", bundle, *words, "--out", tmp_path / "core", "--json")
    assert (again.returncode, result(again)["error"]["kind"]) == (2, "RecipeError")
    assert json.loads((tmp_path / "core" / "config.json").read_text())["max_seq_len"] == 64
    (tmp_path / "mmlu").mkdir()
    mmlu_hub(tmp_path / "mmlu")
    chat = run("evals", "chat", "--mmlu", tmp_path / "mmlu", *words, "--out", tmp_path / "chat", "--json")
    (facts,) = result(chat)["tasks"]
    assert (facts["label"], facts["questions"] + facts["skipped"], facts["file"]) == ("MMLU", 9, "MMLU.npz")
    path = tmp_path / "h.jsonl"
    path.write_text("".join(f"{json.dumps(one)}\n" for one in HELLASWAG))
    swag = run("evals", "hellaswag", path, "--tokenizer", tokenizer_json, "--out", tmp_path / "h", "--json")
    assert result(swag)["tasks"][0]["sequences"] == 20
    assert json.loads((tmp_path / "h" / "config.json").read_text())["bos_id"] is None


@pytest.mark.parametrize(
    "words",
    [
        ["core"],
        ["hellaswag"],
        ["chat", "somewhere"],
        ["chat"],
        ["core", "b", "--mmlu", "m"],
        ["hellaswag", "h", "--task", "copa"],
        ["essay", "b"],
        ["core", "b", "--format", "pickle"],
    ],
)
def test_a_command_that_makes_no_sense_is_refused(tmp_path: Path, words: list[str]) -> None:
    done = run("evals", *words, "--tokenizer", "t", "--out", "o", cwd=tmp_path)
    assert done.returncode == 2
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("layout", ["published", "hub", "core"])
def test_hellaswag_for_llmc(tmp_path: Path, tokenizer_json: Path, layout: str) -> None:
    lines: list[dict[str, Any]] = HELLASWAG
    if layout == "hub":
        lines = [{**one, "label": str(one["label"])} for one in HELLASWAG]
    elif layout == "core":
        lines = [{"query": one["ctx"], "choices": one["endings"], "gold": one["label"]} for one in HELLASWAG]
    path = tmp_path / "hellaswag_val.jsonl"
    path.write_text("".join(f"{json.dumps(one)}\n" for one in lines))
    settings = EvalsSettings(tokenizer=str(tokenizer_json), out=str(tmp_path / "out"), format="llmc")
    make_hellaswag(str(path), settings)
    reference = load_tokenizer(str(tokenizer_json)).reference()

    def encode(text: str) -> list[int]:
        return list(reference.encode(text, add_special_tokens=False).ids)

    expected = [
        (one["label"], encode(one["ctx"]), [encode(" " + ending) for ending in one["endings"]])
        for one in HELLASWAG
    ]
    assert read_llmc((tmp_path / "out" / "hellaswag.bin").read_bytes()) == expected


def test_hellaswag_with_a_beginning_and_cut_on_the_left(tmp_path: Path, tokenizer_json: Path) -> None:
    path = tmp_path / "h.jsonl"
    path.write_text("".join(f"{json.dumps(one)}\n" for one in HELLASWAG))
    for number, longest in enumerate((2048, 9)):
        out = str(tmp_path / f"out{number}")
        settings = EvalsSettings(tokenizer=str(tokenizer_json), out=out, bos=0, max_seq_len=longest)
        make_hellaswag(str(path), settings)
    reference = load_tokenizer(str(tokenizer_json)).reference()
    whole = np.load(tmp_path / "out0" / "hellaswag.npz")
    cut = np.load(tmp_path / "out1" / "hellaswag.npz")
    for place, (a, b) in enumerate(zip(whole["offsets"], whole["offsets"][1:], strict=False)):
        line = HELLASWAG[place // 4]
        endings: Any = line["endings"]
        context = [0, *reference.encode(line["ctx"], add_special_tokens=False).ids]
        ending = reference.encode(" " + endings[place % 4], add_special_tokens=False).ids
        assert whole["tokens"][a:b].tolist() == context + ending
        bounds = [int(whole["start_idx"][place]), int(whole["end_idx"][place])]
        assert bounds == [len(context), len(context) + len(ending)]
        short = cut["tokens"][cut["offsets"][place] : cut["offsets"][place + 1]].tolist()
        assert short == (context + ending)[-9:]
        scored = short[cut["start_idx"][place] : cut["end_idx"][place]]
        assert scored == ending
    with pytest.raises(InputError, match="tokens are scored, which do not fit into 2"):
        make_hellaswag(
            str(path), EvalsSettings(tokenizer=str(tokenizer_json), out=str(tmp_path / "n"), max_seq_len=2)
        )


def test_hellaswag_without_answers_is_refused(tmp_path: Path) -> None:
    (tmp_path / "test.jsonl").write_text(json.dumps({**HELLASWAG[0], "label": ""}))
    with pytest.raises(InputError, match=r"line 1: the right ending is not among 4"):
        read_hellaswag(str(tmp_path / "test.jsonl"))


@pytest.mark.parametrize(
    "change",
    [{"label": 4}, {"label": -1}, {"label": "1.0"}, {"endings": []}, {"endings": "four"}, {"ctx": 3}],
)
def test_a_damaged_question_is_refused_with_its_line(tmp_path: Path, change: dict[str, Any]) -> None:
    path = tmp_path / "h.jsonl"
    path.write_text("\n".join(json.dumps(one) for one in [*HELLASWAG, {**HELLASWAG[0], **change}]))
    with pytest.raises(InputError, match=rf"h\.jsonl, line {len(HELLASWAG) + 1}: "):
        read_hellaswag(str(path))
