"""One process in place of several devices: parts of the batch with batch-norm and noise of their own.

That it ends as so many processes do is tested in distributed/test_train.py.
"""

from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.optim import SGD

from ssgd import methods
from ssgd.lab import models
from ssgd.lab.experiments import get
from ssgd.lab.train import Execution, Recipe, train
from ssgd.lab.train.kinds import Images
from ssgd.lab.train.steps import Step
from ssgd.methods.dropconnect import DroppedWeights

DIGITS = Recipe(model="small-cnn", data="digits", train_limit=96, test_limit=48, phases="1", lr=(0.1,), batch=24)


def start(name, devices=4, **options):
    torch.manual_seed(0)
    net = models.build("small-cnn", 10, 1)
    method = methods.get(name)
    options = {"noise": 0.2, "seed": 3, **options} if name != "base" else {}
    opt = method.build(SGD(net.parameters(), lr=0.1, momentum=0.9), net, **options)
    if name != "base":
        opt.as_ranks(devices)
    return net, opt, Step(method, opt, net, Images.objective, nullcontext, torch.zeros(3), devices=devices)


def batches(count=3, size=16):
    numbers = torch.Generator().manual_seed(1)
    for _ in range(count):
        yield torch.randn(size, 1, 8, 8, generator=numbers), torch.randint(10, (size,), generator=numbers)


def noises(opt, turns):
    """The first weight at +n in each batch of a step, and its gradients dropped."""
    found = []
    for _ in range(turns):
        for point in opt.points():
            with point:
                opt.selected[0].sum().backward()
                found += [opt.selected[0].detach().clone()] if point.sign > 0 else []
    opt.zero_grad()
    return found


def test_batches_of_a_step_see_the_noise_of_each_device_in_turn():
    one, two = start("both", 1)[1], start("both", 2)[1]
    alone, (first, second, again) = noises(one, 2), noises(two, 3)
    assert torch.equal(alone[0], alone[1])  # accumulated batches share a noise
    assert torch.equal(first, alone[0]) and torch.equal(again, first) and not torch.equal(second, first)
    assert not torch.equal(noises(two, 1)[0], first)  # another step, another noise
    three = noises(start("both", 3)[1], 3)
    assert torch.equal(three[1], second) and not torch.equal(three[2], second)


@pytest.mark.parametrize("name", ["base", "both", "split"])
def test_running_statistics_and_counters_are_those_of_the_first_device(name):
    net, _, step = start(name)
    other, _, quarter = start(name, 1)
    for x, y in batches(1):
        step(x, y)
        quarter(x[:4], y[:4])
    for (key, a), (_, b) in zip(net.named_buffers(), other.named_buffers(), strict=True):
        assert torch.equal(a, b), key
    assert step.sums[2] == 4 * quarter.sums[2] == 16 * (2 if name == "both" else 1)


def test_gradients_are_the_mean_over_devices_before_they_are_clipped():
    nets = []
    for devices, clip in ((4, 0.05), (1, 0.05)):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
        opt = methods.get("base").build(SGD(net.parameters(), lr=1.0), net)
        step = Step(methods.get("base"), opt, net, Images.objective, nullcontext, torch.zeros(3), clip, devices)
        before = net[1].weight.detach().clone()
        for batch in batches(1):
            step(*batch)
        nets.append(net[1].weight - before)
    torch.testing.assert_close(nets[0], nets[1])
    assert 0.04 < nets[0].norm() < 0.05


@pytest.mark.parametrize("name", ["both", "both-x2", "split", "smoothout"])
def test_what_a_cuda_graph_replays_is_the_eager_step(name, monkeypatch):
    """A replay runs without the host: all seeds are set before it, and none in between."""
    eager, _, step = start(name)
    for batch in batches():
        step(*batch)
    replayed, opt, captured = start(name)
    monkeypatch.setattr("ssgd.core.random_state.capturing", lambda: True)
    for batch in batches():
        opt.before_replay()
        captured(*batch)
    assert all(torch.equal(a, b) for a, b in zip(eager.parameters(), replayed.parameters(), strict=True))


def test_a_graph_holds_one_batch_for_each_device(monkeypatch):
    _, opt, _ = start("both", 2)
    monkeypatch.setattr("ssgd.core.random_state.capturing", lambda: True)
    opt.before_replay()
    with pytest.raises(RuntimeError, match="a CUDA graph holds one batch a step"):
        noises(opt, 3)


def test_a_graph_cannot_put_random_states_back(monkeypatch):
    _, opt, _ = start("both", rng="same")
    monkeypatch.setattr("ssgd.core.random_state.capturing", lambda: True)
    with pytest.raises(RuntimeError, match='rng="same" puts random states back on the host'):
        noises(opt, 1)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"devices": 0}, "devices must be a whole number of at least 1"),
        ({"devices": 3}, "batch=128 cannot be divided evenly among 3 devices: use a multiple of 3"),
        ({"devices": 4, "sync_batchnorm": True}, "no sync_batchnorm"),
        ({"devices": 4, "parallel": "fsdp"}, "and parallel=ddp"),
        ({"devices": 4, "method": "sam"}, "method=sam needs every pass's mean .* torchrun --nproc-per-node 4"),
    ],
)
def test_what_devices_cannot_do_is_refused(changes, sentence):
    with pytest.raises(ValueError, match=sentence):
        Recipe(**changes)


def test_devices_are_for_images(tmp_path):
    recipe = replace(get("words"), devices=2, data="fake-text", model="lstm-tiny", batch=4)
    with pytest.raises(ValueError, match="devices=2 is for images: fake-text needs torchrun and devices=1"):
        train(recipe, Execution(out=str(tmp_path), device="cpu", progress=False))


def test_a_row_tells_for_how_many_devices_it_stands(tmp_path):
    execution = Execution(out=str(tmp_path), device="cpu", progress=False)
    (row,) = train(replace(DIGITS, devices=4, method="both"), execution)
    assert row["devices"] == row["recipe"]["devices"] == 4


@pytest.mark.parametrize(("perturb", "kinds"), [("all", {nn.Linear}), ("dense", {nn.Linear}), ("conv", {nn.Conv2d})])
def test_dropconnect_is_put_on_the_layers_asked_for(tmp_path, monkeypatch, perturb, kinds):
    seen = set()

    def look(module, weight, forward=DroppedWeights.forward):
        seen.add(nn.Conv2d if weight.dim() == 4 else nn.Linear)
        return forward(module, weight)

    monkeypatch.setattr(DroppedWeights, "forward", look)
    recipe = replace(DIGITS, method="dropconnect", perturb=perturb)
    train(recipe, Execution(out=str(tmp_path), device="cpu", progress=False))
    assert seen == kinds
