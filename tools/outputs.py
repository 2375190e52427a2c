"""Record what commands write, or compare it with the record: SHA-256 of every file, by command.

A change that moves code must leave the bytes of stores, exports, baked rows, plans, batches and evaluation
sets as they are. This script runs the command line over real text in many languages and several tokenizers,
hashes all that it leaves, and compares with `tools/outputs.json`. Among the commands are builds of files that
cannot be cut, limits over them, slices, reuse, merges, selections, a build that is followed, and inputs and
results on an S3 server on loopback.

    python -m tools.outputs compare            # exit code 1 and the names of files that differ
    python -m tools.outputs compare build-gpt2 # only commands whose name begins so (and what they need)
    python -m tools.outputs record             # after a change that is meant to change bytes

It needs the folder of corpora beside the checkout (or where PACKLINE_SHARED says) and takes some ten minutes.
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
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

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

SEPARATOR = "<|next document|>"
"""Separator of the documents of one large file of plain text."""

S3 = {
    "AWS_ACCESS_KEY_ID": "AKIAPACKLINEOUTPUTS0",
    "AWS_SECRET_ACCESS_KEY": "secret-of-the-outputs-0000000000",
    "AWS_REGION": "us-east-1",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}
"""Variables with which packline and boto3 reach the server of this script, which checks no signatures."""

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

RECIPES = {
    "several": (
        "bos = 50256",
        'label = "all"\ninputs = ["imdb_en.jsonl"]',
        'label = "all"\ninputs = ["code_mixed.parquet"]',
        'label = "all"\ninputs = ["novels_en.jsonl.gz"]',
    ),
    "split": ("val_fraction = 0.1\ntest_fraction = 0.1\nseed = 7", 'inputs = ["mixed.jsonl"]'),
    "parse": ('special_tokens = "parse"', 'inputs = ["unicode_stress.jsonl"]'),
    "reject": ('special_tokens = "reject"\nrun.max_bad_fraction = 0.9', 'inputs = ["unicode_stress.jsonl"]'),
    "chars": ("run.workers = 1", 'inputs = ["mixed.jsonl"]\nmin_chars = 100\nmax_chars = 5000'),
    "big-val-documents": (
        "val_documents = 700\nseed = 3",
        'inputs = ["big.jsonl.zst"]',
        'inputs = ["mixed.jsonl"]',
    ),
}
"""Recipes by the name of their store: settings, and those of each source."""

WEEK = """
tokenizer = "tok/gpt2/tokenizer.json"
val_fraction = 0.05

[[sources]]
name = "web"
inputs = [INPUTS]
columns = ["score", "kind"]

[[sources]]
name = "code"
inputs = ["code_mixed.parquet"]
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
chosen = packline.open("reuse")
for name, choice in {
    "where": {"where": "score >= 40 and kind not in ['imdb_en', 'hindi']", "sources": "web"},
    "unique": {"unique": True},
    "unique-against": {"unique": "build-monday"},
    "lengths": {"min_tokens": 50, "max_tokens": 900},
    "exclude": {"exclude": "analyze/list.parquet"},
}.items():
    for packing in ("concat", "best_fit"):
        rows = chosen.rows(seq_len=256, packing=packing, **choice)
        out[f"select-{name}-{packing}-rows"] = str(len(rows))
        add(f"select-{name}-{packing}", rows.read(range(min(len(rows), 64))))
rows = packline.open("build-big-zstd").rows(seq_len=1024, packing="best_fit", pack_window=4)
loader = packline.Loader(rows, batch_size=16, seed=2, order="blocks", block_rows=32, window_blocks=8)
for step in (0, 100, 300):
    add(f"blocks-{step}", loader.batch(step))
sft = packline.open("sft-chatml").rows(seq_len=512, packing="best_fit", boundary_loss=True)
add("sft", sft.read(range(min(len(sft), 64))))
open("batches/digests.json", "w").write(json.dumps(out, indent=1, sort_keys=True))
"""

FOLLOW = """
import hashlib, json, subprocess, sys
import packline
words = "build big.jsonl.zst mixed.jsonl --tokenizer tok/gpt2/tokenizer.json --out follow/store --quiet"
build = subprocess.Popen([sys.executable, "-m", "packline", *words.split()])
settings = dict(batch_size=16, seed=5, order="blocks", block_rows=64, window_blocks=8)
def digest(loader):
    found, steps = hashlib.sha256(), 0
    for steps, batch in enumerate(loader, 1):
        for key in sorted(batch):
            found.update(batch[key].tobytes())
    return f"{steps} batches {found.hexdigest()}"
followed = digest(packline.follow("follow/store", seq_len=1024, **settings))
assert build.wait() == 0
finished = digest(packline.Loader(packline.open("follow/store").rows(seq_len=1024), **settings))
open("follow/digests.json", "w").write(json.dumps({"followed": followed, "finished": finished}))
"""

S3_BATCHES = """
import hashlib, json, tempfile
import packline
out = {}
with tempfile.TemporaryDirectory() as cache:
    store = packline.open("s3://results/s3-build", cache=cache)
    for order in ("global", "blocks"):
        rows = store.rows(seq_len=512, packing="best_fit")
        loader = packline.Loader(rows, batch_size=8, seed=1, order=order)
        for step in (0, 1, 9, 40):
            found = hashlib.sha256()
            for key, array in sorted(loader.batch(step).items()):
                found.update(key.encode() + array.tobytes())
            out[f"{order}-{step}"] = found.hexdigest()
open("s3-batches/digests.json", "w").write(json.dumps(out, indent=1, sort_keys=True))
"""

SCRIPTS = {
    "batches": (BATCHES, "build-recipe", "build-split", "build-big-zstd", "reuse", "analyze", "sft-chatml"),
    "follow": (FOLLOW,),
    "s3-batches": (S3_BATCHES, "s3-build"),
}
"""Programs that use the Python API and leave `digests.json` in the folder of their name; what they read."""


def commands() -> dict[str, list[list[str]]]:
    """Commands by the name of the folder that they write; they may read those before it."""
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
    build("limit-documents", "mixed.jsonl", gpt2, "--limit-documents 333")
    build("limit-tokens", "wikipedia_zh.jsonl.zst imdb_en.jsonl", gpt2, "--limit-tokens 100000")
    for name in RECIPES:
        words[f"build-{name}"] = f"build {name}.toml --out build-{name}"
    words["build-recipe"] = "build recipe.toml --out build-recipe"

    separated = f"--format text --separator '{SEPARATOR}'"
    build("big-gzip", "big.jsonl.gz", gpt2)
    build("big-zstd", "big.jsonl.zst", gpt2, "--val-fraction 0.01")
    build("big-separator", "big.txt", gpt2, separated)
    build("big-row-group", "big.parquet", gpt2)
    build("big-limit-tokens", "imdb_en.jsonl big.jsonl.gz big.jsonl.zst", gpt2, "--limit-tokens 20000000")
    build("big-limit-documents", "big.txt", gpt2, f"{separated} --limit-documents 4000")
    build("big-limit-val", "big.parquet big.jsonl.gz", gpt2, "--val-fraction 0.02 --limit-documents 25000")
    build("folder", "'folder/*.jsonl' 'folder/*.gz' folder/deep 'folder/*.parquet' folder/list.json", gpt2)
    words["build-monday"] = "build monday.toml --out build-monday"
    words["build-slices"] = "\n".join(
        f"build sliced.toml --out build-slices --slice {one}/3" for one in (2, 0, 1)
    )
    words["reuse"] = "build tuesday.toml --out reuse --reuse build-monday"
    words["merge"] = "merge build-gzip build-parquet build-big-gzip --out merge"
    words["analyze"] = "analyze reuse --write analyze/list.parquet"

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
    words["bake"] = "export build-split --to baked --out bake --seq-len 512 --seed 5 --epochs 2"
    words["bake-run"] = "export run.toml --to baked --out bake-run --stage 1"
    for name in ("megatron", "llmc", "datatrove", "olmo", "forager", "arrow", "parquet"):
        words[f"import-{name}"] = (
            f"import export-{name} --from {name} --tokenizer {gpt2} --out import-{name} --eod 50256"
        )
    words["s3-build"] = (
        "build 's3://inputs/big.*' 's3://inputs/*.parquet' s3://inputs/imdb_en.jsonl "
        f"--tokenizer {gpt2} --out s3://results/s3-build"
    )
    words["s3-inputs"] = (
        f"build 's3://inputs/*.gz' s3://inputs/imdb_en.jsonl --tokenizer {gpt2} --out s3-inputs"
    )
    words["s3-slices"] = "\n".join(
        f"build sliced.toml --out s3://results/s3-slices --slice {one}/2" for one in (1, 0)
    )
    words["s3-export"] = "export s3://results/s3-build --to megatron --out s3://results/s3-export"
    words["s3-bake"] = (
        "export s3://results/s3-build --to baked --out s3://results/s3-bake --seq-len 512 --seed 5"
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
    return {name: [shlex.split(line) for line in text.splitlines()] for name, text in words.items()}


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
    for name, (settings, *sources) in RECIPES.items():
        tables = (f"[[sources]]\n{table}\n" for table in sources)
        recipe = f'tokenizer = "tok/gpt2/tokenizer.json"\n{settings}\n{"".join(tables)}'
        (WORK / f"{name}.toml").write_text(recipe, "utf-8")
    sliced = RECIPE.replace('"novels_en.jsonl.gz"', '"novels_en.jsonl.gz", "big.jsonl.zst"')
    (WORK / "sliced.toml").write_text(sliced, "utf-8")
    scored = [
        json.dumps({"score": number % 97, **record, "kind": record["source"]})
        for number, record in enumerate(order)
    ]
    for week, part in {"a": scored[:900], "b": scored[600:1200], "c": scored[1200:]}.items():
        (WORK / f"week-{week}.jsonl").write_text("\n".join(part) + "\n", "utf-8", newline="")
    monday, tuesday = '"week-a.jsonl", "week-b.jsonl"', '"week-b.jsonl", "week-c.jsonl"'
    (WORK / "monday.toml").write_text(WEEK.replace("INPUTS", monday), "utf-8")
    (WORK / "tuesday.toml").write_text(WEEK.replace("INPUTS", tuesday), "utf-8")
    make_big_inputs()
    make_folder(lines)
    (WORK / "run.toml").write_text(RUN, "utf-8")
    (WORK / "chatml.jinja").write_text(CHATML, "utf-8", newline="")
    chats = SHARED / "evals" / "chat"
    for name, source in (("chat", "sgd_messages"), ("tools", "tm4_tool_messages")):
        some = (chats / f"{source}.jsonl").read_bytes().splitlines(keepends=True)[:300]
        (WORK / f"{name}.jsonl").write_bytes(b"".join(some))
    shutil.copytree(SHARED / "tokenizers", WORK / "tok")
    (WORK / "analyze").mkdir()


def make_big_inputs() -> None:
    """Files of all corpora that cannot be cut: gzip, zstd, separated text, a row group above 128 MiB."""
    records = [
        record
        for path in sorted((SHARED / "corpora").glob("*.jsonl.zst"))
        for record in records_of(path, 1 << 30, characters=1 << 30)
    ]
    records.sort(key=lambda record: hashlib.sha256(record["text"].encode()).digest())
    data = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records).encode()
    (WORK / "big.jsonl.gz").write_bytes(gzip.compress(data, 3, mtime=0))
    (WORK / "big.jsonl.zst").write_bytes(zstandard.compress(data))
    texts = [record["text"] for record in records]
    (WORK / "big.txt").write_text(SEPARATOR.join(texts[::2]), "utf-8", newline="")
    twice = [*texts, *(text[::-1] for text in texts)]
    table = pa.table({"id": [f"{number:06}" for number in range(len(twice))], "text": twice})
    pq.write_table(table, WORK / "big.parquet", row_group_size=len(twice), use_dictionary=False)


def make_folder(lines: list[str]) -> None:
    """A folder of several kinds of files."""
    folder = WORK / "folder"
    (folder / "deep").mkdir(parents=True)
    for number in range(3):
        some = "\n".join(lines[number * 100 : number * 100 + 100]) + "\n"
        (folder / f"{number}.jsonl").write_text(some, "utf-8", newline="")
        (folder / f"{number}.jsonl.gz").write_bytes(gzip.compress(some.encode(), mtime=0))
        (folder / "deep" / f"{number}.txt").write_text(some[:20_000], "utf-8", newline="")
    (folder / "list.json").write_text(f"[{','.join(lines[300:400])}]", "utf-8", newline="")
    shutil.copy(WORK / "code_mixed.parquet", folder / "code.parquet")


def records_of(path: Path, count: int, characters: int = 40_000) -> Iterator[dict[str, str]]:
    """The first records of a compressed JSONL file, long texts cut."""
    with path.open("rb") as file, zstandard.ZstdDecompressor().stream_reader(file) as stream:
        text = stream.read(64 << 20)
    for line in text.splitlines()[:count]:
        record = json.loads(line)
        yield {**{key: str(value) for key, value in record.items()}, "text": record["text"][:characters]}


def run(name: str, commands: list[list[str]]) -> dict[str, str]:
    """Run commands in turn; SHA-256 of all files in the folder of their name, and their exit codes."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "NO_COLOR": "1"}
    environment["PACKLINE_SCRATCH"] = "scratch"
    if name in SCRIPTS:
        (WORK / name).mkdir()
        commands = [["-c", SCRIPTS[name][0]]]
    else:
        commands = [["-m", "packline", *words] for words in commands]
    codes, place = [], WORK / name
    for words in commands:
        done = subprocess.run(
            [sys.executable, *words], cwd=WORK, env=environment, capture_output=True, text=True, check=False
        )
        codes.append(str(done.returncode))
        if done.returncode not in (0, 3):
            print(f"{name}: exit code {done.returncode}: {done.stderr.strip()[-600:]}")
        if f"s3://results/{name}" in words:
            place = WORK / "downloaded" / name
    if place != WORK / name:
        download(name, place)
    files = {
        path.relative_to(place).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(place.rglob("*"))
        if path.is_file() and path.name not in TIMED and path.name != "digests.json"
    }
    found = {"exit code": " ".join(codes)}
    if (place / "digests.json").exists():
        found |= json.loads((place / "digests.json").read_text("utf-8"))
    if len(files) <= MOST_NAMED:
        return found | files
    by_suffix: dict[str, list[str]] = {}
    for file, checksum in files.items():
        by_suffix.setdefault(Path(file).suffix, []).append(f"{file} {checksum}\n")
    for suffix, lines in by_suffix.items():
        found[f"{len(lines)} files *{suffix}"] = hashlib.sha256("".join(lines).encode()).hexdigest()
    return found


@contextmanager
def s3_server() -> Iterator[None]:
    """An S3 server on loopback with the bucket of inputs filled, ended afterwards; variables name it."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    os.environ.update(S3, AWS_ENDPOINT_URL=f"http://127.0.0.1:{port}")
    program = "from moto.server import main; main()"
    words = [sys.executable, "-c", program, "-H", "127.0.0.1", "-p", str(port)]
    server = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(600):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.1)
        bucket = client()
        for name in ("inputs", "results"):
            bucket.create_bucket(Bucket=name)
        for path in (*WORK.glob("big.*"), *WORK.glob("*.parquet"), WORK / "imdb_en.jsonl"):
            if path.name != "big.txt":
                bucket.put_object(Bucket="inputs", Key=path.name, Body=path.read_bytes())
        yield
    finally:
        server.terminate()
        server.wait()


def client() -> Any:
    """A client of the S3 server."""
    import boto3

    return boto3.client("s3")


def download(name: str, place: Path) -> None:
    """Copy a folder of the bucket of results to a local folder."""
    bucket = client()
    for page in bucket.get_paginator("list_objects_v2").paginate(Bucket="results", Prefix=f"{name}/"):
        for entry in page.get("Contents", []):
            path = place / entry["Key"].removeprefix(f"{name}/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(bucket.get_object(Bucket="results", Key=entry["Key"])["Body"].read())


def run_all(beginnings: list[str]) -> dict[str, dict[str, str]]:
    """Run all commands, two at a time where they do not need each other."""
    shutil.rmtree(WORK, ignore_errors=True)
    WORK.mkdir()
    make_inputs()
    table = commands() | {name: [list(read)] for name, (_, *read) in SCRIPTS.items()}
    if beginnings:
        wanted = {name for name in table if any(name.startswith(one) for one in beginnings)}
        for name in reversed(list(table)):  # and the folders that these read
            words = {word for one in wanted for line in table[one] for word in line}
            read = {part for word in words for part in word.split("/")}
            if name in read or ("run.toml" in words and name == "build-recipe"):
                wanted.add(name)
        table = {name: lines for name, lines in table.items() if name in wanted}
    rounds = [
        ("build", "tokenizer"),
        ("sft", "reuse", "merge", "s3-build", "s3-inputs", "s3-slices"),
        ("export", "bake", "evals", "analyze", "s3-export", "s3-bake"),
        ("import",),
        ("batches", "s3-batches"),
        ("follow",),
    ]
    found: dict[str, dict[str, str]] = {}
    with ThreadPoolExecutor(2) as threads, s3_server():
        for kinds in rounds:
            names = [name for name in table if name.startswith(kinds)]
            found.update(zip(names, threads.map(lambda name: run(name, table[name]), names), strict=True))
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
