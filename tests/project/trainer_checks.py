"""Programs that run behind those of the pages of docs/trainers: the trainer's own reader on what they wrote.

Where a trainer is a package, its code reads; where it is a repository, a reader that follows its rules. Both
are compared with rows and documents of the store. `OWN` names the modules without which a page is not run.
"""

from __future__ import annotations

CHANGE = "import os, sys\nos.chdir(arguments[0])\nsys.path.insert(0, arguments[0])\n"
TINY = """
import os
os.chdir(arguments[0])
size = dict(vocab_size=4200, hidden_size=16, intermediate_size=32, num_hidden_layers=1,
            num_attention_heads=2, num_key_value_heads=2, head_dim=8, max_position_embeddings=4096)
"""
OLMO = """
import os, sys, types
os.chdir(arguments[0])
# Names that olmo_core.io looks up in a library for downloads, which is not needed here.
clouds, schemes = types.ModuleType("cached_path"), types.ModuleType("cached_path.schemes")
clouds.cached_path = schemes.add_scheme_client = None
schemes.S3Client = schemes.SchemeClient = type("Client", (), {"recoverable_errors": ()})
sys.modules |= {"cached_path": clouds, "cached_path.schemes": schemes}
"""
PRELUDE = {
    "olmo.md": OLMO,
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

from torchtitan.components.loss import IGNORE_INDEX, cross_entropy_loss

assert inputs["input"].shape == labels.shape == (4, 256)

def read(rank, count, state=None):
    loader = ParallelAwareDataloader(PacklineData("store", 256, 4, rank, 2), rank, 2, batch_size=None)
    if state is not None:
        loader.load_state_dict(state)
    found = []
    for inputs, labels in loader:
        found.append((inputs["input"], labels, inputs["positions"]))
        if len(found) == count:
            return found, loader.state_dict()

rows = packline.open("store").rows(256, packing="best_fit")
for rank in range(2):
    whole, _ = read(rank, 7)
    first, state = read(rank, 3)
    rest, _ = read(rank, 4, state)  # resumed from torchtitan's own state
    of_rank = packline.Loader(rows, batch_size=8, seed=1, rank=rank, world_size=2)
    for step, (one, two) in enumerate(zip(whole, first + rest, strict=True)):
        batch = of_rank.batch(step)
        for name, a, b in zip(("tokens", "targets", "position_ids"), one, two, strict=True):
            assert torch.equal(a, b) and (a.numpy() == batch[name]).all()
logits = torch.zeros(4, 256, 4200)
learned = (whole[0][1] != IGNORE_INDEX).sum().item()
assert abs(cross_entropy_loss(logits, whole[0][1]).item() / learned - 8.3428) < 1e-3  # log 4,200
if "PacklineDataset" in globals():
    context = Namespace(max_context_length=256, num_tokens_per_batch=1024)
    policy = Namespace(seed=1, shuffle=True, repeat=True, dp_rank=1, dp_world_size=2)
    dataset = PacklineDataset(store="store").build(context=context, dataset_iteration_policy=policy)
    assert len(dataset) > 1000
"""
MEGATRON = """
import numpy as np
import packline

class Still(np.random.RandomState):
    def shuffle(self, values): pass  # Megatron-LM's order of documents and rows is not packline's

np.random.RandomState = Still
from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
from megatron.core.datasets.indexed_dataset import IndexedDataset
from megatron.core.datasets.utils import Split
from megatron.core.tokenizers import MegatronTokenizer

store = packline.open("store")
tokenizer = MegatronTokenizer.from_pretrained("data", metadata_path={"library": "huggingface"})
assert tokenizer.eod == store.manifest.tokenizer.eod_id
for split, name in (("train", Split.train), ("val", Split.valid)):
    path = f"data/{split}_text_document"
    config = GPTDatasetConfig(
        random_seed=1, sequence_length=256, split="1,0,0", path_to_cache="cache",
        tokenizer=tokenizer,
        reset_position_ids=True, reset_attention_mask=True, eod_mask_loss=True,
    )
    pair = IndexedDataset(path)
    numbers = np.arange(len(pair.document_indices) - 1, dtype=np.int32)
    found = GPTDataset(pair, path, numbers, None, name, config)
    rows = store.rows(256, split=split)
    batch = rows.read(np.arange(len(rows)), fields=("tokens", "targets", "position_ids", "segment_ids"))
    assert len(rows) - 1 <= len(found) <= len(rows)  # packline keeps half a row at the end, padded
    for number in range(len(found)):
        one = found[number]
        learned = batch["targets"][number] >= 0
        same = batch["segment_ids"][number][:, None] == batch["segment_ids"][number][None, :]
        assert (one["tokens"].numpy() == batch["tokens"][number]).all()
        assert (one["labels"].numpy()[learned] == batch["targets"][number][learned]).all()
        assert (one["loss_mask"].numpy().astype(bool) == learned).all()
        assert (one["position_ids"].numpy() == batch["position_ids"][number]).all()
        assert (~one["attention_mask"].numpy()[0] == (same & np.tri(256, dtype=bool))).all()
"""
NANOGPT = """
import glob
import numpy as np
import packline

store = packline.open("store")
whole = np.concatenate([np.asarray(one) for one in store.documents])
files = [np.memmap(f"data/mine/{split}.bin", np.uint16, "r") for split in ("train", "val")]
assert sorted(np.concatenate(files)) == sorted(whole) and min(map(len, files)) > 1024
eod = store.manifest.tokenizer.eod_id
by_split = [store.rows(64, split=split) for split in ("train", "val")]
for data, rows in zip(files, by_split):  # get_batch takes windows at random places; here at those of rows
    batch = rows.read(np.arange(len(rows)))
    for number in range(len(rows)):
        x, y = data[64 * number : 64 * number + 64], data[64 * number + 1 : 64 * number + 65]
        learned = batch["targets"][number] >= 0
        assert (x == batch["tokens"][number]).all()
        assert (y[learned] == batch["targets"][number][learned]).all()

# build-nanogpt's DataLoaderLite: shards by name; B * T tokens and one more, while a shard has so many
B, T = 2, 64
for split, stream in zip(("train", "val"), files):
    shards = sorted(name for name in glob.glob("edu_fineweb10B/*") if split in name.rpartition("/")[2])
    assert shards
    text = np.concatenate([np.load(name).astype(np.int32) for name in shards])
    assert text[0] == eod and (text[1:] == stream[:-1]).all()
    place, seen = 0, []
    while place + B * T + 1 <= len(text):
        piece = text[place : place + B * T + 1]
        seen.append(piece[:-1])
        place += B * T
    assert (np.concatenate(seen) == text[:place]).all()
"""
LLMC = """
import glob
import numpy as np
import packline

def shard(name):
    \"\"\"A header of 256 int32 (magic, version, tokens), then uint16.\"\"\"
    header = np.fromfile(name, np.int32, 256)
    assert header[0] == 20240520 and header[1] == 1
    tokens = np.fromfile(name, np.uint16, offset=1024)
    assert len(tokens) == header[2]
    return tokens

store = packline.open("store")
eod = store.manifest.tokenizer.eod_id
documents = sorted([eod, *map(int, one[:-1])] for one in store.documents)
found = []
for split in ("train", "val"):
    text = np.concatenate([shard(name) for name in sorted(glob.glob(f"fineweb/fineweb_{split}_*.bin"))])
    starts = np.flatnonzero(text == eod)  # where modded-nanogpt's align_to_bos lets rows begin
    assert starts[0] == 0
    found += [one.tolist() for one in np.split(text, starts[1:])]
    # llm.c: B * T tokens and one more for each rank in turn
    B, T, ranks = 2, 64, 2
    steps = (len(text) - 1) // (B * T * ranks)
    windows = [text[at * B * T : (at + 1) * B * T + 1] for at in range(steps * ranks)]
    assert steps > 10 and all(one[-1] == two[0] for one, two in zip(windows, windows[1:]))
assert sorted(found) == documents
"""
OLMO_ROWS = """
import glob
import numpy as np
import packline

store = packline.open("store")
built = dataset.build()
built.prepare()
files = [np.fromfile(name, np.uint16) for name in sorted(glob.glob("data/train/*.npy"))]
wanted = [one[at : at + 4096] for one in files for at in range(0, len(one) - 4095, 4096)]
assert len(built) == len(wanted) > 20
for number, row in enumerate(wanted):
    assert (built[number]["input_ids"].numpy() == row).all()
rows = store.rows(64)
tokens = rows.read(np.arange(len(rows)))["tokens"].ravel()
assert (np.concatenate(files)[: len(tokens)] == tokens).all()
"""
LITGPT = """
import numpy as np
import packline
from litgpt.data import LitData

assert len(row) == 2049
data = LitData(data_path="data", split_names=("train", "val"), num_workers=0)
data.connect(batch_size=2, max_seq_length=2048)
store = packline.open("store")
for split, batches in (("train", data.train_dataloader()), ("val", data.val_dataloader())):
    rows = store.rows(2048, split=split)
    batch = rows.read(np.arange(len(rows)))
    wanted = {one.tobytes() for one in batch["tokens"].astype(np.int32)}
    found = [one.numpy() for several in batches for one in several]
    assert len(found) == len(rows) // 2 * 2 > 8
    assert {one[:-1].astype(np.int32).tobytes() for one in found} <= wanted
    by_tokens = {one.tobytes(): y for one, y in zip(batch["tokens"].astype(np.int32), batch["targets"])}
    for one in found:
        y = by_tokens[one[:-1].astype(np.int32).tobytes()]
        assert (one[1:][y >= 0] == y[y >= 0]).all()
"""
MOSAIC = """
import importlib.machinery
import importlib.util
import packline

def stand_in(name, path=(), **names):
    \"\"\"A module that text_data.py imports, of which it needs only these names to read a data set.\"\"\"
    module = sys.modules[name] = types.ModuleType(name)
    module.__spec__, module.__path__ = importlib.machinery.ModuleSpec(name, None), list(path)
    for key, value in names.items():
        setattr(module, key, value)

(root,) = importlib.util.find_spec("llmfoundry").submodule_search_locations
stand_in("composer")
stand_in("composer.core")
stand_in("composer.core.data_spec", DataSpec=object)
stand_in("llmfoundry", [root], registry=None)
stand_in("llmfoundry.utils")
stand_in("llmfoundry.utils.registry_utils", construct_from_registry=None)
stand_in("llmfoundry.data", [f"{root}/data"])
stand_in("llmfoundry.data.data", SUPPORTED_MDS_ENCODING_TYPES=["int64"],
         stream_remote_local_validate=lambda *sources: None)

from llmfoundry.data.text_data import StreamingTextDataset
from transformers import AutoTokenizer

rows = packline.open("store").rows(2048, packing="best_fit")
loader = packline.Loader(rows, batch_size=1, seed=1)
found = StreamingTextDataset(
    tokenizer=AutoTokenizer.from_pretrained("data"), max_seq_len=2048,
    local="data", split="train", shuffle=False, batch_size=1,
)
assert len(found) == len(rows) > 8
for number in range(len(found)):
    assert (found[number].numpy() == loader.batch(number)["tokens"][0]).all()
"""
AXOLOTL = """
import numpy as np
import packline
from datasets import Dataset, load_from_disk

found = load_from_disk("prepared")
found = found["train"] if not isinstance(found, Dataset) else found
# Only with these columns does axolotl take a data set as tokenized.
assert {"input_ids", "attention_mask", "labels"} <= set(found.features)
store = packline.open("chats")
assert len(found) == len(store.documents)
for number in range(20):
    row = found[number]
    assert row["input_ids"] == np.asarray(store.documents[number]).tolist()
    assert row["attention_mask"] == [1] * len(row["input_ids"])
    learned = [one >= 0 for one in row["labels"]]
    assert any(learned) and not all(learned)
    assert [one for one in row["labels"] if one >= 0] == [
        one for one, flag in zip(row["input_ids"], learned) if flag]
"""
LIGHTNING = """
import warnings
import lightning

assert mask.shape == (8, 1, 256, 256)

class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(4200, 4200)
        self.seen = []

    def training_step(self, batch, number):
        self.seen.append(batch["tokens"].clone())
        logits = self.table(batch["tokens"].long())
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch["targets"].long().flatten())
        assert 7 < loss.item() < 12
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)

    def on_train_start(self):
        on_train_start(self)

    def on_save_checkpoint(self, checkpoint):
        on_save_checkpoint(self, checkpoint)

import torch
model = Model()
trainer = lightning.Trainer(
    max_steps=3, accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False,
    use_distributed_sampler=False, default_root_dir="lightning",
)
trainer.fit(model, batches)
again = packline.Loader(rows, batch_size=8, seed=1)
assert len(model.seen) == 3
for step, tokens in enumerate(model.seen):
    assert (tokens.numpy() == again.batch(step)["tokens"]).all()
saved = torch.load(next(iter(__import__("glob").glob("lightning/**/*.ckpt", recursive=True))))
again.load_state_dict(saved["loader"])
assert again.step == 3
"""
LEVANTER = """
import glob
import pyarrow.parquet
import packline

rows = packline.open("store").rows(1024, packing="best_fit")
loader = packline.Loader(rows, batch_size=1, seed=1)
files = sorted(glob.glob("rows/train/*.parquet"))
records = [one for name in files for one in pyarrow.parquet.read_table(name).to_pylist()]
assert len(records) == len(rows) > 20 and glob.glob("rows/val/*.parquet")
for record, batch in zip(records, loader):
    assert record["input_ids"] == batch["tokens"][0].tolist()
    # A causal loss learns position t from t + 1, and nothing at the last position.
    assert record["loss_weights"][:-1] == (batch["targets"][0] >= 0).tolist()[:-1]
"""
CHECK = {
    "megatron.md": MEGATRON,
    "nanogpt.md": NANOGPT,
    "llmc.md": LLMC,
    "olmo.md": OLMO_ROWS,
    "litgpt.md": LITGPT,
    "llm-foundry.md": MOSAIC,
    "axolotl.md": AXOLOTL,
    "lightning.md": LIGHTNING,
    "levanter.md": LEVANTER,
    "nanochat.md": NANOCHAT,
    "jax.md": "assert batch['tokens'].shape == (8, 256)",
    "torchtitan.md": TITAN,
    "transformers.md": "assert 7 < loss.item() < 10 and trainer.state.global_step == len(loader) > 10\n"
    "saved = json.loads(Path(get_last_checkpoint('out'), 'loader.json').read_text())\n"
    "assert saved['step'] == loader.step == len(loader)",
    "mlx.md": "table = mx.zeros((4200, 4200))\n"
    "assert abs(loss_of(lambda ids: table[ids], loader.batch(0)).item() - 8.3428) < 1e-3",  # log 4,200
    "trl.md": "assert trainer.state.global_step > 0",
}
OWN: dict[str, tuple[str, ...]] = {
    "megatron.md": ("megatron", "torch", "transformers"),
    "olmo.md": ("olmo_core", "bettermap", "dataclass_extensions"),
    "litgpt.md": ("litgpt", "lightning", "litdata"),
    "llm-foundry.md": ("llmfoundry", "streaming", "transformers"),
    "axolotl.md": ("datasets",),
    "torchtitan.md": ("torchtitan", "torchdata", "tyro", "spmd_types"),
    "lightning.md": ("lightning", "torch"),
    "jax.md": ("jax", "grain"),
}
"""Modules of the trainer's own, by page; else those that the first program of the page needs."""
