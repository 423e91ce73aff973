"""S-SGD in one forward and one backward: a small net learns the 8×8 digits that come with the package.

python examples/one_pass.py --noise 0.15
"""

import argparse

import torch
import torch.nn.functional as F

from ssgd import SSGD
from ssgd.lab.data import digits
from ssgd.lab.models import build

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--noise", type=float, default=0.15, help="the level ‖n‖ / ‖w‖; 0 is SGD (default: 0.15)")
parser.add_argument("--repeated", action="store_true", help="every sample at both points, as in the paper")
parser.add_argument("--batch-norm", choices=("halves", "batch"), default="halves", help="what it is normalised by")
parser.add_argument("--epochs", type=int, default=20)
options = parser.parse_args()

torch.manual_seed(0)
data = digits(train=1000, seed=0)
model = build("small-cnn", classes=10, channels=1)
opt = SSGD(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), noise=options.noise, model=model)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(opt, options.epochs)

for name, kind in opt.dry_run(model, data.train_images[:5]).items():
    print(f"{name}: {kind}")

for _ in range(options.epochs):
    model.train()
    for batch in torch.randperm(1000).split(50):
        x, y = data.train_images[batch], data.train_labels[batch]
        if options.repeated:
            x, y = opt.repeated(x, y)
        with opt.one_pass(batch_norm=options.batch_norm):  # half of the samples at w + n, the other half at w − n
            F.cross_entropy(model(x), y).backward()
        opt.step()
        opt.zero_grad()
    schedule.step()

model.eval()
with torch.no_grad():
    right = (model(data.test_images).argmax(1) == data.test_labels).float().mean()
print(f"{100 * right:.2f} % of the test digits")
