"""Word-level language models of LSTM layers (Zaremba et al., arXiv:1409.2329), which remember the text so far."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn

COLDEST = 1e-6  # the lowest temperature: divided by less, logits might overflow


def large_lstm(classes: int, channels: int = 1) -> LanguageModel:
    """Builds Zaremba's large model: 2 × 1500, dropout 0.65, all weights and biases from U(±0.04)."""
    return LanguageModel(classes, 1500, 2, 0.65, 0.04)


def small_lstm(classes: int, channels: int = 1) -> LanguageModel:
    """Builds 1 × 300; dropout 0.5 and U(±0.05), those of Zaremba's medium model, are ours."""
    return LanguageModel(classes, 300, 1, 0.5, 0.05)


def tiny_lstm(classes: int, channels: int = 1) -> LanguageModel:
    """Builds 2 × 32, for trying things out."""
    return LanguageModel(classes, 32, 2, 0.1, 0.3)


class Remembering(nn.Module):
    """A net with a state for each row of a batch, kept between steps and through the passes of one.

    ``reset(rows)`` comes first, and in training ``carry()`` after every step. In training all passes of a step begin at
    the same state. A pass takes the rows that follow those of the pass before, and after the last one the first again:
    so both signs have all rows, or a half each. ``carry()`` makes the mean of where the passes ended the state, row by
    row. Ends are summed up in two slots, in which passes take turns, so that two may run at the same time. The tensors
    stay where they are, as a CUDA graph needs it. In evaluation a call begins where the call before ended, in a state
    of its own.
    """

    _ddp_params_and_buffers_to_ignore: ClassVar[list[str]] = ["state", "ends", "passes"]
    state: Tensor | None
    ends: Tensor | None
    passes: Tensor | None

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self._shape = shape
        self._row, self._slot = 0, 0  # of the next pass
        self._evaluated: Tensor | None = None
        for name in ("state", "ends", "passes"):
            self.register_buffer(name, None, persistent=False)

    def reset(self, rows: int) -> None:
        """Forgets everything: a batch of so many rows begins. In eval mode, one of an evaluation."""
        if rows < 1:
            raise ValueError(f"a batch needs at least 1 row, not {rows}")
        if self.training:
            self._make(rows)
        else:
            self._evaluated = self._zeros(rows, *self._shape)

    def begin(self, rows: int) -> Tensor:
        """Returns the state in which the next pass over so many rows begins; an evaluation may end with fewer rows."""
        state = self.state if self.training else self._evaluated
        if state is None:
            raise ValueError(f"call reset({rows}) before the first batch: where the text begins, nothing is remembered")
        first = self._row if self.training else 0
        if first + rows > len(state):
            raise ValueError(
                f"a pass over {rows} rows does not fit after {first} of the batch's {len(state)}: pass over all rows or"
                " over parts that add up to them, and call reset() before a batch of another size"
            )
        return state[first : first + rows]

    @torch.no_grad()
    def end(self, state: Tensor) -> None:
        """Takes the state in which a pass ended."""
        if not self.training:
            self._evaluated = state
            return
        assert self.state is not None and self.ends is not None and self.passes is not None
        rows = slice(self._row, self._row + len(state))
        self.ends[self._slot, rows] += state
        self.passes[self._slot, rows] += 1
        self._row, self._slot = rows.stop % len(self.state), 1 - self._slot

    @torch.no_grad()
    def carry(self) -> None:
        """Ends a training step: the next begins at the mean of the ends; a row that no pass went over keeps its own."""
        assert self.state is not None and self.ends is not None and self.passes is not None
        passes = self.passes.sum(0).view(-1, *[1] * len(self._shape))
        self.state.copy_(torch.where(passes > 0, self.ends.sum(0) / passes.clamp_min(1), self.state))
        self.ends.zero_()
        self.passes.zero_()
        self._row = self._slot = 0

    def carried(self) -> Tensor:
        """Returns the state that training carries from step to step, rows first, for a checkpoint."""
        return torch.empty(0, *self._shape) if self.state is None else self.state.clone()

    def carry_from(self, carried: Tensor) -> None:
        """Lets training go on from a state that carried() returned."""
        if carried.shape[1:] != self._shape:
            raise ValueError(
                f"what was carried has rows of {tuple(carried.shape[1:])}, this net's have {self._shape}: take its own"
            )
        self._make(len(carried)).copy_(carried)

    def _make(self, rows: int) -> Tensor:
        """Sets all to zero, in new tensors only where the number of rows is another."""
        if self.state is None or self.ends is None or self.passes is None or len(self.state) != rows:
            self.state, self.ends = self._zeros(rows, *self._shape), self._zeros(2, rows, *self._shape)
            self.passes = self._zeros(2, rows)
        for tensor in (self.state, self.ends, self.passes):
            tensor.zero_()
        self._row = self._slot = 0
        return self.state

    def _zeros(self, *shape: int) -> Tensor:
        like = next(self.parameters())
        return torch.zeros(*shape, dtype=like.dtype, device=like.device)  # whole, though like be a shard


class LanguageModel(Remembering):
    """Embedding, LSTM layers and a linear layer, with dropout before each layer but the embedding: on forward paths.

    ``net(x)`` takes words [rows, steps] and returns logits [rows, steps, vocabulary]; it goes on from what the net
    remembers of each row.
    """

    def __init__(self, vocabulary: int, width: int, layers: int, dropout: float, initial_range: float) -> None:
        super().__init__(2, layers, width)
        self.embedding = nn.Embedding(vocabulary, width)
        # layer by layer: cuDNN's dropout between its own layers would not be a function of torch's seed
        self.layers = nn.ModuleList(nn.LSTM(width, width, batch_first=True) for _ in range(layers))
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(width, vocabulary)
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -initial_range, initial_range)

    def forward(self, x: Tensor) -> Tensor:
        state = self.begin(len(x))
        ends = []
        out = self.embedding(x)
        for i, layer in enumerate(self.layers):
            h, c = state[:, :, i].transpose(0, 1).unsqueeze(1).contiguous()
            out, end = layer(self.dropout(out), (h, c))
            ends.append(torch.cat(end))
        self.end(torch.stack(ends, 2).transpose(0, 1).detach())
        logits: Tensor = self.head(self.dropout(out))
        return logits


@torch.no_grad()
def generate(
    net: LanguageModel,
    vocabulary: Sequence[str],
    start: str = "",
    length: int = 30,
    temperature: float = 1.0,
    seed: int = 0,
) -> str:
    """Continues ``start`` by ``length`` words, a sentence a line; a low temperature keeps to likely words."""
    if not COLDEST <= temperature < math.inf or length < 1:
        raise ValueError(
            f"temperature must be at least {COLDEST:g} and finite, and length at least 1,"
            f" not {temperature} and {length}"
        )
    words = ["<eos>", *start.split()]
    if unknown := [word for word in words if word not in vocabulary]:
        raise ValueError(f"{unknown[0]!r} is not in the vocabulary: start with words of the training text")
    numbers, training, device = torch.Generator().manual_seed(seed), net.training, net.head.weight.device
    net.eval()
    net.reset(1)
    try:
        x = torch.tensor([[vocabulary.index(word) for word in words]], device=device)
        for _ in range(length):
            chances = (net(x)[0, -1].double().cpu() / temperature).softmax(0)
            word = int(torch.multinomial(chances, 1, generator=numbers))
            words.append(vocabulary[word])
            x = x.new_tensor([[word]])
    finally:
        net.train(training)
    return " ".join(words[1:]).replace(" <eos>", "\n").replace("\n ", "\n").strip()
