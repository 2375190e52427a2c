"""Record what commands write, or compare it with the record: SHA-256 of every file, by command.

A change that moves code must leave the bytes of stores, exports, baked rows, plans, batches and evaluation
sets as they are. This script runs the command line over real text in many languages and several tokenizers,
hashes all that it leaves, and compares with `tools/outputs.json`.

    python -m tools.outputs compare            # exit code 1 and the names of files that differ
    python -m tools.outputs compare build-gpt2 # only commands whose name begins so (and what they need)
    python -m tools.outputs record             # after a change that is meant to change bytes

It needs the folder of corpora beside the checkout (or where PACKLINE_SHARED says) and takes a few minutes.
All work is done in one folder of fixed name below the system's folder for temporary files, since some
metadata names files by their whole path.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

ROOT = Path(__file__).resolve().parents[1]
SHARED = Path(os.environ.get("PACKLINE_SHARED", ROOT.parent / "shared"))
WORK = Path(tempfile.gettempdir()) / "packline-outputs"
RECORD = Path(__file__).with_suffix(".json")

CORPORA = {
    "novels_en": 40, "imdb_en": 400, "code_mixed": 120, "wikipedia_zh": 120, "aozora_ja": 40,
    "reviews_ko": 300, "arabic_openiti": 40, "hindi": 60, "latex_math": 40, "linux_docs": 60,
    "unicode_stress": 200, "wikitext": 200,
}  # fmt: skip
"""Corpora and how many documents of each are taken."""

MOST_NAMED = 40
"""Files of a command that the record names one by one; of more, one checksum for each suffix."""

TIMED = {"report.json"}
"""Files that hold seconds: what training a tokenizer reports."""

TOKENIZERS = ("gpt2", "qwen3", "mistral", "gpt_neox", "t5", "bert")

RECIPE = """
tokenizer = "tok/qwen3/tokenizer.json"
eod = "<|endoftext|>"
val_fraction = 0.05
test_fraction = 0.02

[[sources]]
name = "prose"
inputs = ["imdb_en.jsonl", "novels_en.jsonl.gz"]
label = "en"
where = "source != 'nowhere'"

[[sources]]
name = "code"
inputs = ["code_mixed.parquet"]
label = "code"
template = "{{ source }}: {{ text }}"
min_chars = 20
"""

RUN = """
[loader]
batch_size = 8
seed = 3

[[stages]]
tokens = 65_536
seq_len = 256
[[stages.sources]]
store = "build-recipe"
sources = ["prose"]
weight = 0.7
max_epochs = 4
[[stages.sources]]
store = "build-recipe"
sources = ["code"]
weight = 0.3
max_epochs = 4

[[stages]]
tokens = 65_536
seq_len = 1024
packing = "best_fit"
[[stages.sources]]
store = "build-recipe"
max_epochs = 4
"""

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}{% generation %}"
    "{{ m.content }}<|im_end|>{% endgeneration %}{% else %}{{ m.content }}<|im_end|>{% endif %}\n{% endfor %}"
)

BATCHES = """
import hashlib, json, sys
import packline
out = {}
def add(name, arrays):
    digest = hashlib.sha256()
    for key in sorted(arrays):
        digest.update(key.encode() + str(arrays[key].dtype).encode() + str(arrays[key].shape).encode())
        digest.update(arrays[key].tobytes())
    out[name] = digest.hexdigest()
loader = packline.Loader.from_file("run.toml")
for step in (0, 1, 7, 30, 31, 32, 33, 35):
    add(f"run-{step}", loader.batch(step))
for packing in ("concat", "best_fit", "pad"):
    for shuffle in (None, 5):
        rows = packline.open("build-recipe").rows(seq_len=512, packing=packing, shuffle_documents=shuffle)
        add(f"rows-{packing}-{shuffle}", rows.read(range(min(len(rows), 64))))
        loader = packline.Loader(rows, batch_size=4, seed=1)
        for step in (0, 3):
            add(f"loader-{packing}-{shuffle}-{step}", loader.batch(step))
sft = packline.open("sft-chatml").rows(seq_len=512, packing="best_fit", boundary_loss=True)
add("sft", sft.read(range(min(len(sft), 64))))
open("batches/digests.json", "w").write(json.dumps(out, indent=1, sort_keys=True))
"""


def commands() -> dict[str, list[str]]:
    """Every command by its name; it writes into a folder of that name, and may read those before it."""
    words: dict[str, str] = {}

    def build(name: str, inputs: str, tokenizer: str, options: str = "") -> None:
        words[f"build-{name}"] = f"build {inputs} --tokenizer {tokenizer} --out build-{name} {options}"

    for tokenizer in TOKENIZERS:
        eod = {"mistral": "--eod '</s>'", "qwen3": "--eod '<|endoftext|>'", "bert": "--eod '[SEP]'"}
        build(tokenizer, "mixed.jsonl", f"tok/{tokenizer}/tokenizer.json", eod.get(tokenizer, ""))
    build("tiktoken", "imdb_en.jsonl", "tok/tiktoken/r50k_base.tiktoken")
    gpt2 = "tok/gpt2/tokenizer.json"
    build("gzip", "novels_en.jsonl.gz", gpt2)
    build("zstd", "wikipedia_zh.jsonl.zst", gpt2)
    build("parquet", "code_mixed.parquet", gpt2)
    build("texts", "texts", gpt2)
    build("lines", "lines.txt", gpt2, "--documents line")
    build("separator", "lines.txt", gpt2, "--format text --separator '\\n\\n'")
    build("bad", "bad.jsonl", gpt2, "--max-bad-fraction 0.9")
    build("several", "imdb_en.jsonl code_mixed.parquet novels_en.jsonl.gz", gpt2, "--label all --bos 50256")
    build("split", "mixed.jsonl", gpt2, "--val-fraction 0.1 --test-fraction 0.1 --seed 7")
    build("limit-documents", "mixed.jsonl", gpt2, "--limit-documents 333")
    build("limit-tokens", "wikipedia_zh.jsonl.zst imdb_en.jsonl", gpt2, "--limit-tokens 100000")
    build("parse", "unicode_stress.jsonl", gpt2, "--special-tokens parse")
    build("reject", "unicode_stress.jsonl", gpt2, "--special-tokens reject --max-bad-fraction 0.9")
    build("chars", "mixed.jsonl", gpt2, "--min-chars 100 --max-chars 5000 --workers 1")
    words["build-recipe"] = "build recipe.toml --out build-recipe"

    chat, qwen = "chat.jsonl", "tok/qwen3/tokenizer.json"
    words["sft-chatml"] = f"sft {chat} --tokenizer {qwen} --chat-template chatml.jinja --out sft-chatml"
    words["sft-split"] = (
        f"sft {chat} tools.jsonl --tokenizer {qwen} --chat-template chatml.jinja --out sft-split "
        "--val-fraction 0.1 --max-tokens 512 --overflow truncate --max-bad-fraction 1"
    )
    words["sft-reject"] = (
        f"sft tools.jsonl --tokenizer {qwen} --chat-template chatml.jinja --out sft-reject --label tools "
        "--max-tokens 256 --max-bad-fraction 1"
    )
    for name in ("qwen3", "qwen2.5"):
        words[f"sft-{name}"] = f"sft {chat} --tokenizer {qwen} --chat-template {name} --out sft-{name}"
    words["tokenizer-train"] = (
        "tokenizer train imdb_en.jsonl --vocab-size 2000 --pattern nanochat --specials nanochat "
        "--out tokenizer-train"
    )
    words["sft-nanochat"] = (
        f"sft {chat} --tokenizer tokenizer-train/tokenizer.json --scheme nanochat "
        "--out sft-nanochat --max-bad-fraction 1"
    )
    for name in (
        "megatron", "llmc", "nanogpt", "npy", "datatrove", "olmo", "forager", "arrow", "parquet", "stacks",
    ):  # fmt: skip
        source = "sft-nanochat" if name == "stacks" else "build-split"
        words[f"export-{name}"] = f"export {source} --to {name} --out export-{name}"
    words["export-olmo-loss"] = "export sft-split --to olmo --out export-olmo-loss"
    for name in ("npz", "pt", "litdata", "mds", "trl"):
        words[f"export-{name}"] = (
            f"export build-split --to {name} --out export-{name} --seq-len 256 --packing best_fit"
        )
    words["export-trl-loss"] = "export sft-split --to trl --out export-trl-loss --seq-len 512"
    words["export-run"] = "export run.toml --to litdata --out export-run --stage 0"
    words["bake"] = "bake build-split --out bake --seq-len 512 --seed 5 --epochs 2"
    words["bake-run"] = "bake run.toml --out bake-run --stage 1"
    for name in ("megatron", "llmc", "datatrove", "olmo", "forager", "arrow", "parquet"):
        words[f"import-{name}"] = (
            f"import export-{name} --from {name} --tokenizer {gpt2} --out import-{name} --eod 50256"
        )
    bundle = f"{SHARED}/evals/core_eval_bundle"
    words["evals-core"] = (
        f"evals core {bundle} --tokenizer {gpt2} --bos 50256 --task copa --task arc_easy --max-seq-len 512 "
        "--out evals-core"
    )
    words["evals-chat"] = (
        f"evals chat --mmlu {SHARED}/evals/mmlu/test --tokenizer tokenizer-train/tokenizer.json "
        "--max-seq-len 1024 --out evals-chat"
    )
    return {name: shlex.split(text) for name, text in words.items()}


def make_inputs() -> None:
    """Lay the inputs into the work folder: JSONL, gzip, zstd in two frames, Parquet, folders of text."""
    mixed: list[dict[str, str]] = []
    for name, count in CORPORA.items():
        records = list(records_of(SHARED / "corpora" / f"{name}.jsonl.zst", count))
        mixed += records
        text = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records).encode()
        if name == "novels_en":
            (WORK / f"{name}.jsonl.gz").write_bytes(gzip.compress(text, mtime=0))
        elif name == "wikipedia_zh":
            half = text.index(b"\n", len(text) // 2) + 1
            frames = [zstandard.compress(part) for part in (text[:half], text[half:])]
            (WORK / f"{name}.jsonl.zst").write_bytes(b"".join(frames))
        elif name == "code_mixed":
            pq.write_table(pa.Table.from_pylist(records), WORK / f"{name}.parquet", row_group_size=50)
            (WORK / "texts" / "deep").mkdir(parents=True)
            for number, record in enumerate(records):
                place = WORK / "texts" / ("deep" if number % 3 else "") / f"{number:04}.txt"
                place.write_text(record["text"], "utf-8", newline="")
        else:
            (WORK / f"{name}.jsonl").write_bytes(text)
    order = sorted(mixed, key=lambda record: hashlib.sha256(record["text"].encode()).digest())
    lines = [json.dumps(record, ensure_ascii=False) for record in order]
    (WORK / "mixed.jsonl").write_text("\n".join(lines) + "\n", "utf-8", newline="")
    bad = [b'{"text": 7}', b'{"text": "cut', b"\xff\xfe", b"[]", b'{"other": "x"}', b'{"text": ""}']
    (WORK / "bad.jsonl").write_bytes(
        b"".join(line.encode() + b"\n" + bad[i % len(bad)] + b"\n" for i, line in enumerate(lines[:200]))
    )
    (WORK / "lines.txt").write_text("\n".join(record["text"] for record in order[:300]), "utf-8", newline="")
    (WORK / "recipe.toml").write_text(RECIPE, "utf-8")
    (WORK / "run.toml").write_text(RUN, "utf-8")
    (WORK / "chatml.jinja").write_text(CHATML, "utf-8", newline="")
    chats = SHARED / "evals" / "chat"
    for name, source in (("chat", "sgd_messages"), ("tools", "tm4_tool_messages")):
        some = (chats / f"{source}.jsonl").read_bytes().splitlines(keepends=True)[:300]
        (WORK / f"{name}.jsonl").write_bytes(b"".join(some))
    shutil.copytree(SHARED / "tokenizers", WORK / "tok")
    (WORK / "batches").mkdir()


def records_of(path: Path, count: int) -> Iterator[dict[str, str]]:
    """The first records of a compressed JSONL file, texts cut to 40,000 characters."""
    with path.open("rb") as file, zstandard.ZstdDecompressor().stream_reader(file) as stream:
        text = stream.read(64 << 20)
    for line in text.splitlines()[:count]:
        record = json.loads(line)
        yield {**{key: str(value) for key, value in record.items()}, "text": record["text"][:40_000]}


def run(name: str, words: list[str]) -> dict[str, str]:
    """Run one command; SHA-256 of all files in the folder of its name, and its exit code."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "NO_COLOR": "1"}
    command = (
        [sys.executable, "-c", BATCHES] if name == "batches" else [sys.executable, "-m", "packline", *words]
    )
    done = subprocess.run(command, cwd=WORK, env=environment, capture_output=True, text=True, check=False)
    found = {"exit code": str(done.returncode)}
    if done.returncode not in (0, 3):
        print(f"{name}: exit code {done.returncode}: {done.stderr.strip()[-600:]}")
    files = {
        path.relative_to(WORK / name).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted((WORK / name).rglob("*"))
        if path.is_file() and path.name not in TIMED
    }
    if len(files) <= MOST_NAMED:
        return found | files
    by_suffix: dict[str, list[str]] = {}
    for file, checksum in files.items():
        by_suffix.setdefault(Path(file).suffix, []).append(f"{file} {checksum}\n")
    for suffix, lines in by_suffix.items():
        found[f"{len(lines)} files *{suffix}"] = hashlib.sha256("".join(lines).encode()).hexdigest()
    return found


def run_all(beginnings: list[str]) -> dict[str, dict[str, str]]:
    """Run all commands, two at a time where they do not need each other."""
    shutil.rmtree(WORK, ignore_errors=True)
    WORK.mkdir()
    make_inputs()
    table = commands()
    if beginnings:
        wanted = [name for name in table if any(name.startswith(one) for one in beginnings)]
        for name in reversed(list(table)):  # and the folders that these read
            if any(word.partition("/")[0] == name for one in wanted for word in table[one]):
                wanted.append(name)
        if any("run.toml" in table[one] for one in wanted):
            wanted.append("build-recipe")
        table = {name: words for name, words in table.items() if name in wanted}
    rounds = [("build", "tokenizer"), ("sft",), ("export", "bake", "evals"), ("import",)]
    found: dict[str, dict[str, str]] = {}
    with ThreadPoolExecutor(2) as threads:
        for kinds in rounds:
            names = [name for name in table if name.startswith(kinds)]
            found.update(zip(names, threads.map(lambda name: run(name, table[name]), names), strict=True))
    if not beginnings or "batches" in beginnings:
        found["batches"] = run("batches", [])
        found["batches"].update(json.loads((WORK / "batches" / "digests.json").read_text("utf-8")))
    return found


def differences(recorded: dict[str, dict[str, str]], found: dict[str, dict[str, str]]) -> list[str]:
    """Lines that name what differs, a line per file."""
    lines = []
    for name, files in found.items():
        before = recorded.get(name, {})
        lines += [f"{name}: {file} is new" for file in files if file not in before]
        lines += [f"{name}: {file} is missing" for file in before if file not in files]
        lines += [
            f"{name}: {file} differs" for file in files if file in before and files[file] != before[file]
        ]
    return lines


def main(arguments: list[str]) -> int:
    """Record or compare."""
    if not SHARED.is_dir() or not arguments or arguments[0] not in ("record", "compare"):
        print(__doc__)
        return 2
    found = run_all(arguments[1:])
    files = sum(len(one) for one in found.values())
    if arguments[0] == "record":
        RECORD.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n", "utf-8")
        print(f"recorded {len(found)} commands, {files} files")
        return 0
    lines = differences(json.loads(RECORD.read_text("utf-8")), found)
    print("\n".join([*lines[:200], f"{len(found)} commands, {files} files, {len(lines)} differences"]))
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
