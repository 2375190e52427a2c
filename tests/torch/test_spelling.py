"""A small model, trained for a minute on spelling through packed rows, spells words it has never seen."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from tests.conftest import python_sources  # noqa: E402
from tests.torch.transformer import Layer, sdpa  # noqa: E402
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers  # noqa: E402
from torch import Tensor, nn  # noqa: E402

import packline  # noqa: E402
import packline.torch  # noqa: E402
from packline.chat.pieces import NANOCHAT_TOKENS  # noqa: E402
from packline.chat.sources import ConversationSource  # noqa: E402

SECONDS = 60.0
"""Of one core, whatever else the machine has to do."""
WIDTH, SEQ_LEN, BATCH = 96, 96, 16


class Speller(nn.Module):  # type: ignore[misc]
    """Two layers of the transformer beside, in float32."""

    def __init__(self, vocab_size: int) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.tokens, self.positions = nn.Embedding(vocab_size, WIDTH), nn.Embedding(SEQ_LEN, WIDTH)
        self.layers = nn.ModuleList([Layer(WIDTH, 4) for _ in range(2)])
        self.head = nn.Linear(WIDTH, vocab_size)

    def loss(self, batch: dict[str, np.ndarray]) -> Tensor:
        """Mean over what is trained on."""
        tokens, targets, positions, segments = (
            torch.from_numpy(np.ascontiguousarray(batch[name])).long()
            for name in ("tokens", "targets", "position_ids", "segment_ids")
        )
        x = self.tokens(tokens) + self.positions(positions)
        attend = sdpa(segments)
        for layer in self.layers:
            x = layer(x, attend)
        return F.cross_entropy(self.head(x).flatten(0, 1), targets.flatten(), ignore_index=-100)


def make_tokenizer(words: list[str], path: Path) -> Path:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=[AddedToken(token, special=True, normalized=False) for token in NANOCHAT_TOKENS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator((f" {word}" for word in words), trainer)
    tokenizer.save(str(path))
    return path


@pytest.mark.slow
def test_a_model_learns_to_spell_words_that_it_has_never_seen(tmp_path: Path) -> None:
    found = re.findall(r"\b[a-z]{3,9}\b", "\n".join(text for _, text in python_sources(1_500_000)))
    words = sorted(set(found))
    assert len(words) > 3000
    (tmp_path / "words.txt").write_text("\n".join(words))
    common: dict[str, Any] = {"inputs": (str(tmp_path / "words.txt"),), "task": "spelling"}
    store = packline.sft(
        [
            ConversationSource(**common, name="train", split="train", options={"count": 30_000}),
            ConversationSource(**common, name="val", split="val", options={"count": 400, "of": "held_out"}),
        ],
        make_tokenizer(words, tmp_path / "tokenizer.json"),
        out=tmp_path / "store",
        scheme="nanochat",
        workers=0,
    )
    torch.set_num_threads(1)
    train = store.rows(seq_len=SEQ_LEN, packing="best_fit", split="train")
    val = store.rows(seq_len=SEQ_LEN, packing="best_fit", split="val")
    held_out = val.read(np.arange(len(val)), ["tokens", "targets", "position_ids", "segment_ids"])
    trained = held_out["targets"][held_out["targets"] != -100]
    shares = np.unique(trained, return_counts=True)[1] / len(trained)
    chance = float(-(shares * np.log(shares)).sum())  # of guessing by how frequent each token is
    model = Speller(store.manifest.tokenizer.vocab_size)
    before = float(model.loss(held_out).detach())
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
    started, steps = time.process_time(), 0
    for batch in packline.Loader(train, batch_size=BATCH, seed=1, epochs=1000):
        loss = model.loss(batch)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        steps += 1
        if time.process_time() - started > SECONDS:
            break
        if steps % 50 == 0:
            with torch.no_grad():
                if float(model.loss(held_out)) < 0.3 * chance:
                    break
    after = float(model.loss(held_out).detach())
    assert before > chance
    assert after < 0.5 * chance, (before, chance, after, steps)
