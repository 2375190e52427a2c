"""Train a tiny GPT on CPU in about a minute on the demo's store, stop half way, and resume exactly.

    packline demo                                            # makes packline-demo/store
    python examples/tiny_gpt.py packline-demo/store          # trains, and saves a checkpoint half way
    python examples/tiny_gpt.py packline-demo/store --resume # resumes from there, with the same losses

It uses these parts of packline:

- `store.rows(...)` packs whole documents into rows; `Loader` returns shuffled batches of them.
- `sdpa_mask(segment_ids)` prevents attention between the documents of a row, `position_ids` restart at each
  document, and `targets` are already shifted, and -100 without loss.
- `loader.state_dict()` is a few integers. With it and the weights, training resumes in the middle of an
  epoch. `--resume` compares each loss with that of the first run, bit for bit.

Nothing is tuned: four layers and 150 steps learn the look of code and prose, not their meaning.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import packline
from packline.torch import sdpa_mask, to_tensors

SEQ_LEN, BATCH_SIZE, SEED = 128, 8, 1
LAYERS, WIDTH, HEADS = 4, 128, 4
LEARNING_RATE, WARMUP_STEPS = 2e-3, 20


class Block(nn.Module):
    """Attention and a small network, each with a residual connection."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_attention, self.norm_mlp = nn.RMSNorm(width), nn.RMSNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor, turn: Tensor, mask: Tensor) -> Tensor:
        split = self.qkv(self.norm_attention(x)).unflatten(-1, (3, self.heads, -1))
        q, k, v = split.permute(2, 0, 3, 1, 4)  # each [B, H, L, W]
        seen = F.scaled_dot_product_attention(rotate(q, turn), rotate(k, turn), v, attn_mask=mask)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm_mlp(x))


class TinyGPT(nn.Module):
    """Tokens to logits; the token embedding is also the head."""

    def __init__(
        self, vocab_size: int, *, layers: int = LAYERS, width: int = WIDTH, heads: int = HEADS
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab_size, width)
        self.blocks = nn.ModuleList([Block(width, heads) for _ in range(layers)])
        self.norm = nn.RMSNorm(width)
        self.head_width = width // heads
        nn.init.normal_(self.tokens.weight, std=0.02)

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        """Compute the logits `[B, L, V]` of a batch `[B, L]`."""
        mask = sdpa_mask(batch["segment_ids"])
        turn = rotation(batch["position_ids"], self.head_width)
        x = self.tokens(batch["tokens"])
        for block in self.blocks:
            x = block(x, turn, mask)
        return F.linear(self.norm(x), self.tokens.weight)


def rotation(positions: Tensor, width: int) -> Tensor:
    """Rotary position embedding: rotation of each position as complex numbers `[B, 1, L, W/2]`."""
    rates = 10_000.0 ** -(torch.arange(0, width, 2, device=positions.device) / width)
    angles = positions[:, None, :, None] * rates
    return torch.polar(torch.ones_like(angles), angles)


def rotate(x: Tensor, turn: Tensor) -> Tensor:
    """Rotate queries or keys `[B, H, L, W]` by their positions."""
    return torch.view_as_real(torch.view_as_complex(x.unflatten(-1, (-1, 2))) * turn).flatten(-2)


class Training:
    """Model, optimizer and loader, saved as arrays and JSON, without pickle."""

    def __init__(self, store_path: Path, out: Path) -> None:
        torch.manual_seed(SEED)
        torch.use_deterministic_algorithms(True)
        store = packline.open(store_path)
        rows = store.rows(seq_len=SEQ_LEN, packing="best_fit")
        self.out = out
        self.loader = packline.Loader(rows, batch_size=BATCH_SIZE, seed=SEED)
        self.model = TinyGPT(store.manifest.tokenizer.vocab_size)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), LEARNING_RATE, betas=(0.9, 0.95))

    @property
    def step(self) -> int:
        return int(self.loader.state_dict()["step"])

    def run(self, steps: int) -> Iterator[tuple[int, float]]:
        """Train until `steps` steps are done; yield each step and its loss."""
        batches = iter(self.loader)
        while self.step < steps:
            step = self.step
            batch = to_tensors(next(batches), int64=["targets"])
            for group in self.optimizer.param_groups:
                group["lr"] = LEARNING_RATE * min(1.0, (step + 1) / WARMUP_STEPS)
            logits = self.model(batch)
            loss = F.cross_entropy(logits.flatten(0, 1), batch["targets"].flatten())
            self.optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            yield step, loss.item()

    def save(self) -> None:
        """Save weights and the optimizer's moments as arrays, and the loader's state as JSON."""
        arrays = {f"model/{name}": value.numpy() for name, value in self.model.state_dict().items()}
        for number, moments in self.optimizer.state_dict()["state"].items():
            arrays |= {f"optimizer/{number}/{name}": value.numpy() for name, value in moments.items()}
        np.savez(self.out / "weights.npz", **arrays)
        (self.out / "loader.json").write_text(json.dumps(self.loader.state_dict()), encoding="utf-8")

    def restore(self) -> None:
        """Load what `save` wrote."""
        model: dict[str, Tensor] = {}
        moments: dict[int, dict[str, Tensor]] = {}
        with np.load(self.out / "weights.npz", allow_pickle=False) as arrays:
            for key, value in arrays.items():
                kind, _, name = key.partition("/")
                if kind == "model":
                    model[name] = torch.from_numpy(value)
                else:
                    number, _, moment = name.partition("/")
                    moments.setdefault(int(number), {})[moment] = torch.from_numpy(value)
        self.model.load_state_dict(model)
        groups = self.optimizer.state_dict()["param_groups"]
        self.optimizer.load_state_dict({"state": moments, "param_groups": groups})
        self.loader.load_state_dict(json.loads((self.out / "loader.json").read_text("utf-8")))


def main() -> None:
    """Train, or resume and compare."""
    parser = argparse.ArgumentParser(description="Train a tiny GPT on a store.")
    parser.add_argument("store", type=Path, help="a store, such as packline-demo/store")
    parser.add_argument(
        "--steps", type=int, default=150, help="saved when half of them are done (default 150)"
    )
    parser.add_argument("--out", type=Path, default=Path("tiny-gpt"), help="folder of what is saved")
    parser.add_argument("--resume", action="store_true", help="go on from what was saved, and compare")
    settings = parser.parse_args()

    settings.out.mkdir(parents=True, exist_ok=True)
    training = Training(settings.store, settings.out)
    print(f"{sum(one.numel() for one in training.model.parameters()):,} parameters, {training.loader!r}")
    if settings.resume:
        training.restore()
        print(f"resumed after step {training.step} of {len(training.loader):,} of this epoch")

    history = settings.out / "losses.jsonl"
    before = read_losses(history) if settings.resume else {}
    compared, same = 0, 0
    started = time.perf_counter()
    with history.open("a" if settings.resume else "w", encoding="utf-8") as file:
        for step, loss in training.run(settings.steps):
            if step in before:
                compared, same = compared + 1, same + (loss == before[step])
            else:
                file.write(json.dumps({"step": step, "loss": loss}) + "\n")
            if step % 10 == 0 or step + 1 == settings.steps:
                print(
                    f"step {step:>4}   loss {loss:6.3f}   {time.perf_counter() - started:5.1f} s", flush=True
                )
            if step + 1 == settings.steps // 2 and not settings.resume:
                training.save()
                print(f"saved after {step + 1} steps into {settings.out}")
    if settings.resume:
        print(f"{same} of {compared} losses are those of the first run, bit for bit")
        if same != compared:
            raise SystemExit(1)


def read_losses(history: Path) -> dict[int, float]:
    """Losses of an earlier run by step. JSON preserves every bit of a number."""
    lines = map(json.loads, history.read_text("utf-8").splitlines())
    return {line["step"]: line["loss"] for line in lines}


if __name__ == "__main__":
    main()
