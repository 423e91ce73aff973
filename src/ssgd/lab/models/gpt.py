"""Decoder-only transformers for text: pre-norm, GELU, learned positions, the embedding tied to the output."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

HEAD = 64  # the width of an attention head
CONTEXT = 128  # the most words that a net sees at once


class GPT(nn.Module):
    """A transformer of ``layers`` blocks of ``width``, without dropout and without batch-norm.

    ``net(x)`` takes words [rows, steps] and returns logits [rows, steps, vocabulary]. Every call begins anew: nothing
    is remembered from the batch before. Weights are normal with variance 1/(2 · width), divided by the number of
    additions where a block adds to what came in, as in GPT-2.
    """

    def __init__(self, layers: int, width: int, vocabulary: int, channels: int = 1) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(CONTEXT, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        for name, parameter in self.named_parameters():
            if parameter.dim() > 1:
                additions = 2 * layers if name.endswith(("out.weight", "down.weight")) else 1
                nn.init.normal_(parameter, std=1 / math.sqrt(2 * width * additions))
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[1] > CONTEXT:
            raise ValueError(f"this net sees {CONTEXT} words at once, not {x.shape[1]}: pass shorter windows")
        y = self.embedding(x) + self.positions(torch.arange(x.shape[1], device=x.device))
        for block in self.blocks:
            y = block(y)
        return F.linear(self.norm(y), self.embedding.weight)


class Block(nn.Module):
    """Causal self-attention and a layer of four times the width, each added to what came in."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = nn.Linear(width, 3 * width)  # queries, keys and values
        self.out = nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        rows, steps, width = x.shape
        parts = self.attention(self.first(x)).view(rows, steps, 3, width // HEAD, HEAD)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(rows, steps, width))
        added: Tensor = self.down(F.gelu(self.up(self.second(x))))
        return x + added
