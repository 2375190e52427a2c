"""docs/trainers against the code: packline commands run, and so does Python whose library is installed.

Commands run in one folder per page, with small files under the page's names. Python blocks run in the
environment of other projects (`make peers`), a page as one program, with tiny models in place of named ones.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from tests.formats.peers import missing_peers, peers_python, run_peer
from tests.seeds.workspace import make_workspace, write_lines

from packline.cli.main import main

PAGES = sorted((Path(__file__).resolve().parents[2] / "docs" / "trainers").glob("*.md"))
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
STORE = "$ packline build texts.jsonl --tokenizer gpt2 --val-fraction 0.2 --out store"
EOD = "--chat-template qwen3 --eod '<|endoftext|>'"
"""The small tokenizer has two candidates for the end of document; the real one declares it."""
CHATS = f"$ packline sft chats.jsonl --tokenizer Qwen/Qwen3-8B {EOD} --out chats"

CHANGE = "import os, sys\nos.chdir(arguments[0])\nsys.path.insert(0, arguments[0])\n"
TINY = """
import os
os.chdir(arguments[0])
size = dict(vocab_size=4200, hidden_size=16, intermediate_size=32, num_hidden_layers=1,
            num_attention_heads=2, num_key_value_heads=2, head_dim=8, max_position_embeddings=4096)
"""
PRELUDE = {
    "transformers.md": TINY
    + "from transformers import LlamaConfig, LlamaForCausalLM\n"
    + "model = LlamaForCausalLM(LlamaConfig(**size))\n",
    "trl.md": TINY
    + "from transformers import Qwen3Config, Qwen3ForCausalLM\n"
    + "Qwen3ForCausalLM(Qwen3Config(**size)).save_pretrained('Qwen/Qwen3-8B')\n",
}
NANOCHAT = """
import glob, json, pickle
import pyarrow.parquet

with open("base/tokenizer/tokenizer.pkl", "rb") as file:
    encoding = pickle.load(file)
with open("base/tokenizer/token_bytes.pt", "rb") as file:
    sizes = torch.load(file)
files = sorted(glob.glob("base/base_data_climbmix/*.parquet"))
for split, paths in (("train", files[:-1]), ("val", files[-1:])):
    texts = [text for path in paths for text in pyarrow.parquet.read_table(path)["text"].to_pylist()]
    bos = encoding.encode_single_token("<|bos|>")
    documents = sorted([*ids, bos] for ids in encoding.encode_ordinary_batch(texts))
    assert sum(sizes[torch.tensor(ids)].sum().item() for ids in documents) == sum(
        len(text.encode()) for text in texts)

    class Tokenizer:
        def get_bos_token_id(self): return bos

    import itertools
    run = list(itertools.islice(batches_with_state(Tokenizer(), 2, 256, split, "cpu"), 40))
    first, epoch = {}, []
    for inputs, targets, state in run:
        assert inputs.dtype == targets.dtype == torch.int64 and inputs.shape == targets.shape == (2, 256)
        assert (inputs[:, 0] == bos).all() and (targets[targets < 0] == -1).all()
        inner = targets[:, :-1]
        assert (inputs[:, 1:][inner >= 0] == inner[inner >= 0]).all()
        pieces = [row[row >= 0].tolist() for row in targets]
        epoch += pieces
    # The pieces between bos are documents, or parts of those longer than a row.
    whole = {tuple(ids[:-1]) for ids in documents}
    for row in epoch:
        at = 0
        for end in (place for place, token in enumerate(row) if token == bos):
            piece = tuple(row[at:end])
            assert piece in whole or any(one[-len(piece):] == piece for one in whole), piece
            at = end + 1
    again = batches_with_state(Tokenizer(), 2, 256, split, "cpu", json.loads(json.dumps(run[7][2])))
    for (inputs, targets, state), (x, y, other) in zip(run[7:20], again):
        assert torch.equal(inputs, x) and torch.equal(targets, y) and state == other
"""
TITAN = """
from types import SimpleNamespace as Namespace

assert inputs["input"].shape == labels.shape == (4, 256)
if "PacklineDataset" in globals():
    context = Namespace(max_context_length=256, num_tokens_per_batch=1024)
    policy = Namespace(seed=1, shuffle=True, repeat=True, dp_rank=1, dp_world_size=2)
    dataset = PacklineDataset(store="store").build(context=context, dataset_iteration_policy=policy)
    assert len(dataset) > 1000
"""
CHECK = {
    "nanochat.md": NANOCHAT,
    "jax.md": "assert batch['tokens'].shape == (8, 256)",
    "torchtitan.md": TITAN,
    "transformers.md": "assert 7 < loss.item() < 10 and len(dataset) == len(rows)",
    "mlx.md": "table = mx.zeros((4200, 4200))\n"
    "assert abs(loss_of(lambda ids: table[ids], loader.batch(0)).item() - 8.3428) < 1e-3",  # log 4,200
    "litgpt.md": "assert len(row) == 2049",
    "lightning.md": "assert mask.shape == (8, 1, 256, 256)",
    "trl.md": "assert trainer.state.global_step > 0",
}


@pytest.fixture
def folder(
    tmp_path: Path, tokenizer_json: Path, documents: list[str], monkeypatch: pytest.MonkeyPatch
) -> Path:
    """Folder in which a page's commands run."""
    texts = [text for text in documents if text.strip()][:200]
    make_workspace(tmp_path, tokenizer_json, texts)
    pieces = [text[at : at + 700] for text in texts for at in range(0, len(text), 700)][:2500]
    write_lines(tmp_path / "texts.jsonl", [{"text": piece} for piece in pieces])
    talk = [{"role": "user", "content": "What is one and one?"}, {"role": "assistant", "content": "Two."}]
    write_lines(tmp_path / "chats.jsonl", [{"messages": talk} for _ in range(300)])
    (tmp_path / "Qwen/Qwen3-1.7B").rename(tmp_path / "Qwen/Qwen3-8B")
    (tmp_path / "data").rename(tmp_path / "other")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Run a packline command of a page; commands of trainers are passed over."""
    dollar, *words = shlex.split(line.replace("\\\n", " "))
    assert dollar == "$"
    if words[0] == "packline":
        code = main(words[1:])
        printed = capsys.readouterr()
        assert code == 0, f"{line}\n{printed.out}\n{printed.err}"


def needs(block: str) -> tuple[str, ...]:
    """Module without which a program does not run: the first skips its page, another is left out."""
    found = re.search(r"^# needs (\w+)", block, re.MULTILINE)
    return (found[1],) if found else ()


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_command_and_program_of_a_page_runs(
    page: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = page.read_text("utf-8")
    blocks = FENCE.findall(text)
    typed = [
        f"${line}"
        for language, block in blocks
        if language == "console"
        for line in ("\n" + block).split("\n$")[1:]
    ]
    if page.name != "index.md" and "packline build" not in text:
        run(STORE, capsys)
    if " chats " in text and "packline sft" not in text:
        run(CHATS, capsys)
    for line in typed:
        run(line.replace("--chat-template qwen3", EOD), capsys)
    code = [block for language, block in blocks if language == "python"]
    assert typed or code
    if code:
        for block in code:
            if named := re.match(r"# (\w+\.py)\n", block):
                (folder / named[1]).write_text(block)
        python, modules = peers_python(), needs(code[0])
        there = [block for block in code if block == code[0] or not missing_peers(python, needs(block))]
        prelude = PRELUDE.get(page.name, CHANGE)
        program = "\n".join([prelude, *there, CHECK.get(page.name, ""), "answer = True"])
        program = program.replace(
            "SFTConfig(", "SFTConfig(use_cpu=True, bf16=False, max_steps=2, report_to=[],"
        )
        assert run_peer(program, folder, modules=modules, with_packline=True)
