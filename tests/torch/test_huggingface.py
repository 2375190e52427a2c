"""Models of transformers on packed rows, called as `docs/trainers/transformers.md` says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.formats.peers import run_peer

from packline.testing import make_store

VOCAB, LENGTH = 211, 48
LENGTHS = [[9, 1, 30, 14, 48, 3, 121, 5], [22, 70, 11, 2, 26, 17, 8, 40]]
NAMES = ["llama", "qwen3", "gpt2"]
ATTENTIONS = ["sdpa", "eager"]

pytestmark = pytest.mark.slow

MODELS = f"""
import packline, packline.torch, torch, transformers
from packline.errors import MixedDocuments, RecipeError

torch.set_num_threads(1)
store = packline.open(arguments[0])
loader = packline.Loader(store.rows(seq_len={LENGTH}), batch_size=4, keys="huggingface", prefetch=0)

def make(name, attention):
    torch.manual_seed(1)
    sizes = dict(vocab_size={VOCAB}, attn_implementation=attention)
    if name == "gpt2":
        config = transformers.GPT2Config(n_embd=32, n_layer=2, n_head=2, n_positions=64, **sizes)
        model = transformers.GPT2LMHeadModel(config)
    else:
        sizes.update(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2)
        sizes.update(num_key_value_heads=2, max_position_embeddings=64)
        prefix = name.capitalize()
        config = getattr(transformers, prefix + "Config")(**sizes)
        model = getattr(transformers, prefix + "ForCausalLM")(config)
    with torch.no_grad():
        for parameter in model.parameters():  # away from the beginning, at which everything looks alike
            if parameter.ndim > 1:
                parameter.mul_(5)
    return model
"""

APART = """
answer = {}
for name in %r:
    for attention in %r:
        model = make(name, attention).train()
        frozen = next(model.children())
        frozen.training = False  # such parts stay as they are
        batch = packline.torch.to_tensors(loader.batch(0))
        found = {"types": {key: str(values.dtype) for key, values in batch.items()}}
        try:
            packline.torch.check_packing(model, loader.batch(0))
            found["with a cache"] = ""
        except MixedDocuments as error:
            found["with a cache"], found["hint"] = str(error), error.hint
        try:
            mask = torch.ones_like(batch["input_ids"])
            packline.torch.check_packing(model, {**batch, "attention_mask": mask}, use_cache=False)
        except MixedDocuments as error:
            found["hint for a mask"] = error.hint
        found["checked"] = packline.torch.check_packing(model, batch, use_cache=False)
        found["modes"] = [model.training, frozen.training]
        found["gradients"] = sum(parameter.grad is not None for parameter in model.parameters())

        # By hand: a document is what stands between two places 0.
        model.eval()
        with torch.no_grad():
            packed = model(**batch, use_cache=False)
            mixed = model(**batch).logits
            worst = difference = documents = 0
            for row, places in enumerate(batch["position_ids"].tolist()):
                ends = [place for place in range(1, len(places)) if places[place] == 0] + [len(places)]
                begin = 0
                for end in ends:
                    alone = model(batch["input_ids"][row : row + 1, begin:end], use_cache=False).logits[0]
                    worst = max(worst, (packed.logits[row, begin:end] - alone).abs().max().item())
                    difference = max(difference, (mixed[row, begin:end] - alone).abs().max().item())
                    begin, documents = end, documents + 1
        found.update(worst=worst, mixed=difference, documents=documents)

        model.train()
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
        losses = []
        rows = packline.torch.RowsDataset(store.rows(seq_len=48), keys="huggingface")
        for again in torch.utils.data.DataLoader(rows, batch_size=4):
            loss = model(**again, use_cache=False).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        found["losses"] = losses
        answer[f"{name} {attention}"] = found
"""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("huggingface") / "store"
    make_store(path, LENGTHS, vocab_size=VOCAB)
    return path


@pytest.fixture(scope="module")
def answer(store: Path) -> dict[str, Any]:
    code = MODELS + APART % (NAMES, ATTENTIONS)
    found: dict[str, Any] = run_peer(code, store, modules=("torch", "transformers"), with_packline=True)
    return found


@pytest.mark.parametrize("attention", ATTENTIONS)
@pytest.mark.parametrize("name", NAMES)
def test_documents_of_a_row_are_as_if_alone_without_a_cache(
    answer: dict[str, Any], name: str, attention: str
) -> None:
    found = answer[f"{name} {attention}"]
    assert found["documents"] > 8 and found["worst"] < 1e-5
    assert found["checked"] < 1e-5
    assert found["modes"] == [True, False] and found["gradients"] == 0


@pytest.mark.parametrize("attention", ATTENTIONS)
@pytest.mark.parametrize("name", NAMES)
def test_check_packing_finds_that_a_cache_or_a_mask_mixes_them(
    answer: dict[str, Any], name: str, attention: str
) -> None:
    found = answer[f"{name} {attention}"]
    assert found["mixed"] > 1e-2
    assert "documents of a row see each other: row" in found["with a cache"]
    assert "use_cache=False" in found["hint"]
    assert "leave attention_mask out" in found["hint for a mask"]


@pytest.mark.parametrize("name", NAMES)
def test_batches_of_these_keys_train(answer: dict[str, Any], name: str) -> None:
    """int32 labels are an error of torch's loss: expected target dtype to be Long."""
    found = answer[f"{name} sdpa"]
    assert found["types"]["labels"] == "torch.int64"
    assert len(found["losses"]) > 1 and found["losses"][-1] < found["losses"][0]


TRAINER = """
rows = packline.torch.RowsDataset(store.rows(seq_len=48), keys="huggingface")
settings = transformers.TrainingArguments(
    output_dir=arguments[1], max_steps=6, per_device_train_batch_size=4, learning_rate=3e-3, use_cpu=True,
    logging_steps=1, report_to=[], save_strategy="no", disable_tqdm=True,
)
trainer = transformers.Trainer(model=make("llama", "sdpa"), args=settings, train_dataset=rows)
trainer.train()
answer = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
"""


def test_the_trainer_of_transformers_takes_rows_as_they_are(store: Path, tmp_path: Path) -> None:
    modules = ("torch", "transformers", "accelerate")
    losses = run_peer(MODELS + TRAINER, store, tmp_path, modules=modules, with_packline=True)
    assert len(losses) == 6 and losses[-1] < losses[0]
