"""An LSTM reads a made-up language on and on, with its state carried from batch to batch.

Both passes of a step begin at the same state, and the next step at the mean of the two in which they ended: a state
handed from +n to −n would let the second pass read the batch after its own end.
"""

import argparse

import torch
import torch.nn.functional as F
from torch import nn

from ssgd import SSGD
from ssgd.lab.data.text import TextSource, fake_text

ROWS = 20  # places of the text that are read at once

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--noise", type=float, default=0.1, help="the level ‖n‖ / ‖w‖; 0 is SGD (default: 0.1)")
parser.add_argument("--epochs", type=int, default=20)
options = parser.parse_args()


class Words(nn.Module):
    def __init__(self, vocabulary: int, width: int = 64) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.lstm = nn.LSTM(width, width, batch_first=True)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, x, state):
        out, state = self.lstm(self.embedding(x), state)
        return self.head(out).flatten(0, 1), tuple(part.detach() for part in state)


torch.manual_seed(0)
text = TextSource(fake_text())
model = Words(text.classes)
opt = SSGD(torch.optim.SGD(model.parameters(), lr=2.0), noise=options.noise)  # on recurrent weights too

for _ in range(options.epochs):
    state = None
    for step in range(text.steps(ROWS)):
        x, y = text.epoch(seed=0, number=0).batch(step, ROWS)
        ends = []
        for point in opt.points():
            with point:
                logits, end = model(x, state)
                F.cross_entropy(logits, y.flatten()).backward()
            ends.append(end)
        state = tuple(torch.stack(parts).mean(0) for parts in zip(*ends, strict=True))
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        opt.zero_grad()

with torch.no_grad():
    (x, y), *_ = text.in_order("test", size=1)
    print(f"perplexity {F.cross_entropy(model(x, None)[0], y.flatten()).exp():.2f} of {text.classes} words")
