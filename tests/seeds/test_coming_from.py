"""docs/coming-from.md against the code: all of its commands run, and no script of the guides is missing."""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.seeds.workspace import HUB, make_workspace

import packline
from packline.chat import sources as mixture
from packline.cli.main import UNCHECKED, main

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "coming-from.md").read_text("utf-8")
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
OPTION = re.compile(r"--[a-z][\w-]*")
TORCH = importlib.util.find_spec("torch") is not None
TEXTS = 800_000
"""Characters that the commands run on: enough for rows of 32,768 tokens."""


BEGINNING = PAGE.partition("\n## ")[0]
SECTIONS = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL))


def lines(block: str) -> list[str]:
    """Commands of a block, those over several lines joined."""
    return [line.strip() for line in block.replace("\\\n", " ").splitlines() if line.strip()]


@pytest.fixture
def workspace(
    tmp_path: Path, tokenizer_json: Path, documents: list[str], monkeypatch: pytest.MonkeyPatch
) -> Path:
    """The folder in which a section's commands are run, from its first to its last."""
    texts, volume = [], 0
    for text in documents:
        if volume < TEXTS and text.strip():
            texts.append(text)
            volume += len(text)
    make_workspace(tmp_path, tokenizer_json, texts)
    monkeypatch.chdir(tmp_path)
    for part in mixture.PARTS:
        if part.source.options:
            monkeypatch.setitem(part.source.options, "count", 20)  # and not 280,000
    return tmp_path


def run(line: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """A command of the page, with a folder in place of the hub; what it printed."""
    dollar, *words = shlex.split(line)
    assert (dollar, words[0]) == ("$", "packline"), line
    served = f"file://{folder}/{HUB}/"
    code = main([word.replace("hf://", served) for word in words[1:]])
    said = capsys.readouterr()
    # The bundle of the workspace has a few short questions, which cannot be checked.
    expected = UNCHECKED if "--against" in words and words[1] == "verify" else 0
    assert code == expected, f"{line}\n{said.out}\n{said.err}"
    for recipe in folder.glob("*.toml"):
        recipe.write_text(recipe.read_text("utf-8").replace("hf://", served), "utf-8")
    return said.out


@pytest.mark.parametrize(
    "section",
    # A vocabulary is trained, judged and checked there.
    [pytest.param(name, marks=pytest.mark.slow if name == "stacks" else ()) for name in SECTIONS],
)
def test_every_command_and_program_of_a_section_runs(
    section: str, workspace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ran = 0
    names: dict[str, Any] = {}
    for language, block in [*FENCE.findall(BEGINNING), *FENCE.findall(SECTIONS[section])]:
        if language == "toml":
            (workspace / block.splitlines()[0].removeprefix("# ")).write_text(block, "utf-8")
        elif language == "python" and (TORCH or not block.startswith("# needs torch")):
            exec(compile(block, "coming-from.md", "exec"), names)
        elif language == "console":
            for line in lines(block):
                run(line, workspace, capsys)
                ran += 1
    assert ran >= 3
    CHECKS[section](workspace, names)


# ------------------------------------------------------- what the commands of a section have to have left


def check_datatrove(folder: Path, names: dict[str, Any]) -> None:
    store, again = packline.open(folder / "store"), packline.open(folder / "imported")
    assert store.manifest.tokens == again.manifest.tokens and len(store) == len(again) > 50
    assert sorted(path.suffix for path in (folder / "tokens").rglob("*.ds*"))


def check_megatron(folder: Path, names: dict[str, Any]) -> None:
    store = packline.open(folder / "store")
    assert packline.open(folder / "from-pairs").manifest.tokens == store.manifest.tokens
    folders = (folder / "data/shared", folder / "store")
    shared, own = ({path.stat().st_ino for path in one.glob("*.bin")} for one in folders)
    assert shared == own
    pairs = {path.name for path in (folder / "data/single").glob("*.bin")}
    assert pairs == {"my_train_text_document.bin", "my_val_text_document.bin"}


def check_dolma(folder: Path, names: dict[str, Any]) -> None:
    store, again = packline.open(folder / "store"), packline.open(folder / "from-dolma")
    assert store.manifest.tokens == again.manifest.tokens
    assert {path.name for path in (folder / "olmo").rglob("part-*")} >= {
        "part-0-00000.npy",
        "part-0-00000.csv.gz",
    }


def check_nanochat(folder: Path, names: dict[str, Any]) -> None:
    made = {path.name for path in (folder / "base/tokenizer").iterdir()}
    assert {"tokenizer.pkl", "token_bytes.pt"} <= made
    assert packline.open(folder / "chat").manifest.tokenizer.eod == "<|bos|>"


def check_litdata(folder: Path, names: dict[str, Any]) -> None:
    data = json.loads((folder / "chunks/train/index.json").read_bytes())
    rows = packline.open(folder / "store").rows(2048)
    assert sum(chunk["dim"] for chunk in data["chunks"]) == len(rows) * 2049


def check_mds(folder: Path, names: dict[str, Any]) -> None:
    data = json.loads((folder / "mds/train/index.json").read_bytes())
    rows = packline.open(folder / "store").rows(2048)
    assert sum(shard["samples"] for shard in data["shards"]) == len(rows)
    assert {shard["compression"] for shard in data["shards"]} == {"zstd"}


def check_datasets(folder: Path, names: dict[str, Any]) -> None:
    windows, joined = names["windows"].counts, names["joined"].counts
    assert windows.tokens == joined.tokens == names["texts"].manifest.tokens
    assert windows.dropped_tokens == windows.truncated_tokens == 0 and windows.split_documents > 0
    assert joined.dropped_tokens < 512 and joined.padding_tokens <= 512


def check_chuk_mlx(folder: Path, names: dict[str, Any]) -> None:
    with np.load(folder / "output/sample/batches/sample_batch_0001.npz") as batch:
        found = {key: batch[key] for key in batch.files}
    assert sorted(found) == ["attention_mask_tensor", "input_tensor", "lengths", "target_tensor"]
    assert found["input_tensor"].shape == (30, 8096) and found["input_tensor"].dtype == np.int32
    assert [packline.open(folder / "mixed").text(number) for number in (30, 31)] == [
        "a line",
        "is a document",
    ]


def check_eigenstate(folder: Path, names: dict[str, Any]) -> None:
    data = json.loads((folder / "tokenized/finewebedu/metadata.json").read_bytes())
    chunks = sorted((folder / "tokenized/finewebedu").glob("chunk_*.pt"))
    assert data["num_chunks"] == len(chunks) > 2 and data["dataset"] == "finewebedu"
    assert data["total_tokens"] == len(chunks) * data["chunk_size"] == len(chunks) * 32_768
    whole, preset = (packline.open(folder / name).manifest for name in ("fineweb-edu", "from-preset"))
    assert whole.tokens == preset.tokens and preset.recipe.val_fraction > 0
    assert whole.tokens - data["total_tokens"] < 32_768


def check_stacks(folder: Path, names: dict[str, Any]) -> None:
    made = folder / "fineweb_edu_32k"
    assert np.load(made / "tokenizer/token_bytes.npy")[-9:].tolist() == [0] * 9
    shards = sorted(path.name for path in (made / "shards").glob("*.bin"))
    assert shards == ["train_000001.bin", "val_000000.bin"] or shards == ["train_000000.bin"]
    tasks = json.loads((made / "core_eval/config.json").read_bytes())["tasks"]
    assert [task["label"] for task in tasks] == ["copa", "wsc", "jeopardy"]
    for path in made.rglob("*.npz"):
        with np.load(path) as arrays:  # refuses to unpickle
            assert all(len(arrays[key].shape) > 0 or arrays[key].size for key in arrays.files), path
    masked = sorted(path.name for path in (made / "sft").glob("sft_train_*.bin"))
    assert [name.replace("_mask", "") for name in masked] == [masked[0], masked[0]]
    counts = packline.open(made / "sft_store").manifest.sources
    assert [counts[name].documents for name in ("smoltalk", "gsm8k", "identity", "spelling")] == [
        8,
        16,
        8,
        20,
    ]
    answered = json.loads((made / "chat_eval/config.json").read_bytes())["tasks"]
    assert {task["label"] for task in answered} == {"MMLU", "ARC-Easy", "ARC-Challenge"}


def check_forager(folder: Path, names: dict[str, Any]) -> None:
    store = packline.open(folder / "agentic")
    assert store.manifest.tokenizer.eod == "<|endoftext|>" and store.provenance(0).source == "corpus"
    index = np.fromfile(folder / "forager/index/sample_locations.bin", "<u8").reshape(-1, 3)
    assert index[:, 2].tolist() == [2 * 32_768] * len(index) and len(index) == store.manifest.tokens // 32_768
    assert len(names["short"]) == 8 * len(names["rows"])


CHECKS = dict(
    zip(SECTIONS, [one for name, one in globals().items() if name.startswith("check_")], strict=True)
)
"""By section: the functions above are in the order of the page."""


# ------------------------------------------------------------------------------ the page against the guides


def test_every_script_of_the_guides_has_its_counterpart(shared: Path) -> None:
    guides = sorted((shared / "seeds").glob("*.txt"))
    assert len(guides) == 5
    found = 0
    for guide in guides:
        for _, block in FENCE.findall(guide.read_text("utf-8")):
            for line in lines(block):
                if script := re.match(r"python3? (?:\S*/)?(\w[\w-]*\.py)(.*)", line):
                    assert f"`{script[1]}`" in PAGE, f"{guide.name}: {line}"
                    unknown = {option for option in OPTION.findall(script[2]) if option not in PAGE}
                    assert not unknown or script[1].startswith("train"), f"{guide.name}: {line}"
                    found += 1
    assert found > 10


def test_every_option_of_the_guides_has_its_counterpart(shared: Path) -> None:
    told = {option for row in PAGE.splitlines() if row.startswith("|") for option in OPTION.findall(row)}
    for part in re.split(r"^## ", (shared / "reference/systems.md").read_text("utf-8"), flags=re.MULTILINE):
        if re.match("[1345] ", part):
            scripts = re.findall(r"^(?:Flags|mlpug CLI).*", part, re.MULTILINE)
            assert scripts, part[:40]
            asked = {option for line in scripts for option in OPTION.findall(line)}
            assert asked - told == set()
