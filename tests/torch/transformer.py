"""A small transformer to prove isolation with: learned absolute positions and four ways to attend.

Positions are absolute, not rotary, because rotary attention sees differences only: positions that do not
restart at a document would go unnoticed. In float64, so that 1e-9 is far above rounding and far below
what one wrongly visible token does.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import packline.torch

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Queries, keys and values `[B, H, L, W]` to `[B, H, L, W]`."""


def causal(segment_ids: Tensor) -> Attend:
    """No document mask: what the others are told from."""
    return lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True)


def sdpa(segment_ids: Tensor) -> Attend:
    mask = packline.torch.sdpa_mask(segment_ids)
    return lambda q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def flex(segment_ids: Tensor) -> Attend:
    from torch.nn.attention.flex_attention import flex_attention

    mask = packline.torch.block_mask(segment_ids, block_size=16)
    return lambda q, k, v: flex_attention(q, k, v, block_mask=mask)


def varlen(segment_ids: Tensor) -> Attend:
    """What a kernel of variable lengths does, written with a loop over the flattened batch."""
    boundaries, longest = packline.torch.varlen(segment_ids)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        rows, heads, length, width = q.shape
        flat = [part.transpose(1, 2).reshape(rows * length, heads, width) for part in (q, k, v)]
        found = torch.zeros_like(flat[0])
        for start, stop in pairwise(boundaries.tolist()):
            assert stop - start <= longest
            one_q, one_k, one_v = (part[start:stop].transpose(0, 1) for part in flat)
            seen = F.scaled_dot_product_attention(one_q, one_k, one_v, is_causal=True)
            found[start:stop] = seen.transpose(0, 1)
        return found.view(rows, length, heads, width).transpose(1, 2)

    return attend


class Layer(nn.Module):  # type: ignore[misc]
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x: Tensor, attend: Attend) -> Tensor:
        q, k, v = self.qkv(self.before_attention(x)).unflatten(-1, (3, self.heads, -1)).unbind(-3)
        found = attend(*(part.transpose(1, 2) for part in (q, k, v)))
        x = x + self.out(found.transpose(1, 2).flatten(2))
        return x + self.mlp(self.before_mlp(x))


class Transformer(nn.Module):  # type: ignore[misc]
    """Two layers in float64 with weights large enough that every visible token changes the logits."""

    def __init__(self, vocab_size: int, longest: int) -> None:
        super().__init__()
        torch.manual_seed(5)
        width, heads = 32, 2
        self.tokens, self.positions = nn.Embedding(vocab_size, width), nn.Embedding(longest, width)
        self.layers = nn.ModuleList([Layer(width, heads) for _ in range(2)])
        self.head = nn.Linear(width, vocab_size)
        self.double()

    def forward(self, tokens: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """Tokens and positions `[B, L]` to logits `[B, L, V]`."""
        x = self.tokens(tokens) + self.positions(positions)
        for layer in self.layers:
            x = layer(x, attend)
        return self.head(x)

    def alone(self, tokens: list[int]) -> Tensor:
        """Logits `[n, V]` of one sequence with nothing beside it."""
        row = torch.tensor([tokens])
        return self(row, torch.arange(len(tokens))[None], causal(row))[0]


def losses(logits: Tensor, targets: Any) -> Tensor:
    """Cross-entropy at every place, 0 where the target is -100."""
    flat = F.cross_entropy(logits.flatten(0, -2), targets.flatten().long(), reduction="none")
    return flat.view(targets.shape)
