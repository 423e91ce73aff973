"""A small transformer in plain torch learns the letters of Python's own manual: AdamW, then S-SGD around it."""

import argparse
from pydoc_data.topics import topics  # a text that every Python has

import torch
import torch.nn.functional as F
from torch import nn

from ssgd import SSGD, select

LENGTH, WIDTH, BATCH = 64, 64, 32


class Letters(nn.Module):
    def __init__(self, letters: int) -> None:
        super().__init__()
        self.letter, self.place = nn.Embedding(letters, WIDTH), nn.Embedding(LENGTH, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, 0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, letters)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(LENGTH))

    def forward(self, x):
        out = self.letter(x) + self.place(torch.arange(LENGTH, device=x.device))
        return self.head(self.layers(out, self.mask, is_causal=True)).flatten(0, 1)


def train(text, letters: int, noise: float, steps: int) -> float:
    """The loss on the last tenth of the text, which is not trained on."""
    torch.manual_seed(0)
    model, end = Letters(letters), len(text) * 9 // 10
    base = torch.optim.AdamW(model.parameters(), lr=3e-3)
    opt = SSGD(base, noise=noise, perturb=select(model, "dense"))  # embeddings are left alone

    def batch(first: int, last: int):
        windows = text.unfold(0, LENGTH + 1, 1)[torch.randint(first, last - LENGTH - 1, (BATCH,))]
        return windows[:, :-1], windows[:, 1:].flatten()

    for _ in range(steps):
        x, y = batch(0, end)
        for point in opt.points():
            with point:
                F.cross_entropy(model(x), y).backward()
        opt.step()
        opt.zero_grad()
    model.eval()
    with torch.no_grad():
        return sum(F.cross_entropy(model(x), y).item() for x, y in (batch(end, len(text)) for _ in range(10))) / 10


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--noise", type=float, default=0.1, help="the level ‖n‖ / ‖w‖ (default: 0.1)")
    parser.add_argument("--steps", type=int, default=300)
    options = parser.parse_args()
    text = "".join(topics.values()).encode("ascii", "ignore")
    for name, noise in (("AdamW", 0.0), ("S-SGD", options.noise)):
        print(f"{name} {train(torch.tensor(list(text)), 128, noise, options.steps):.3f} nats a letter")
