"""A large batch, taken in parts that fit into memory: SGD, S-SGD and split with the same gradient of 500 images.

Both signs go over every part. In split each part is halved: +n sees one half of it, −n the other, and batch-norm sees
half a part. So the parts decide what batch-norm sees; the noise is one for the whole batch, whatever the parts.
"""

import argparse

import torch
import torch.nn.functional as F

from ssgd import SSGD
from ssgd.lab.data import digits
from ssgd.lab.models import build

BATCH = 500


def train(noise: float, split: bool, epochs: int, part: int) -> float:
    """Test accuracy in percent after the last epoch."""
    torch.manual_seed(0)
    data = digits(train=1000, seed=0)
    model = build("small-cnn", classes=10, channels=1)
    opt = SSGD(torch.optim.SGD(model.parameters(), lr=0.4, momentum=0.9), noise=noise)
    schedule = torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=0.4, total_steps=epochs * (1000 // BATCH))

    for _ in range(epochs):
        model.train()
        for batch in torch.randperm(1000).split(BATCH):
            for chosen in batch.split(part):
                x, y = data.train_images[chosen], data.train_labels[chosen]
                share = len(chosen) / len(batch)  # parts add up to the mean over the batch
                points = opt.split(x, y) if split else ((point, (x, y)) for point in opt.points())
                for point, (xb, yb) in points:
                    with point:
                        (share * F.cross_entropy(model(xb), yb)).backward()
            opt.step()
            opt.zero_grad()
            schedule.step()

    model.eval()
    with torch.no_grad():
        return 100 * (model(data.test_images).argmax(1) == data.test_labels).float().mean().item()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--part", type=int, default=100, help="images that fit into memory (default: 100)")
    options = parser.parse_args()
    for name, noise, split in (("SGD", 0.0, False), ("S-SGD", 0.2, False), ("split", 0.2, True)):
        print(f"{name:6} {train(noise, split, options.epochs, options.part):.2f} % of the test digits")
