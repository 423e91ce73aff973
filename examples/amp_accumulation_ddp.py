"""Mixed precision, accumulation and DDP: torchrun --nproc-per-node 2 examples/amp_accumulation_ddp.py, or python."""

import argparse
import os
from contextlib import nullcontext

import torch
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

from ssgd import SSGD
from ssgd.lab.data import digits
from ssgd.lab.models import build

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--epochs", type=int, default=20)
options = parser.parse_args()

rank, ranks = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
cuda = torch.cuda.is_available()
device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0))) if cuda else torch.device("cpu")
if cuda:
    torch.cuda.set_device(device)
if ranks > 1:
    torch.distributed.init_process_group("nccl" if cuda else "gloo")

torch.manual_seed(0)
data = digits(train=1000, seed=0)
net = build("small-cnn", classes=10, channels=1).to(device)
model = DistributedDataParallel(net) if ranks > 1 else net
opt = SSGD(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), noise=0.29, model=model)
scaler = torch.amp.GradScaler(device.type, enabled=cuda)  # for float16 alone

for _ in range(options.epochs):
    for step in torch.randperm(1000).split(100):  # the same order on every rank, which takes its share
        parts = step[rank::ranks].chunk(2)
        for i, part in enumerate(parts, start=1):
            x, y = data.train_images[part].to(device), data.train_labels[part].to(device)
            with model.no_sync() if ranks > 1 and i < len(parts) else nullcontext():
                for point in opt.points():  # all parts of a step see both signs of the same noise
                    with point:
                        with torch.autocast(device.type, torch.float16 if cuda else torch.bfloat16):
                            loss = F.cross_entropy(model(x), y) / len(parts)
                        scaler.scale(loss).backward()
        scaler.unscale_(opt)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # p.grad is the mean over the points
        scaler.step(opt)
        scaler.update()
        opt.zero_grad()

if rank == 0:
    net.eval()
    right = (net(data.test_images.to(device)).argmax(1).cpu() == data.test_labels).float().mean()
    print(f"{100 * right:.2f} % of the test digits, {ranks} of {device.type}")
if ranks > 1:
    torch.distributed.barrier()  # a rank that leaves early may take the others' connections with it
    torch.distributed.destroy_process_group()
