"""The engine against loops written by hand, bit for bit."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch.optim import SGD, AdamW
from torch.optim.swa_utils import AveragedModel, get_swa_multi_avg_fn, update_bn

from ssgd import SSGD
from ssgd.core.noise import mix
from ssgd.lab.train import RunDir, train
from ssgd.lab.train.checkpoint import read_safetensors

from .small_trainings import SMALL, folder, fresh_net, small, source


def sgd(net, lr=0.1):
    return SGD(net.parameters(), lr, momentum=0.9, weight_decay=5e-4, fused=True)


def batches(epochs, seed=0, rates=lambda moment: 0.1, base=None):
    """What the engine trains on, with the rate of each step set."""
    data = source()
    for epoch in epochs:
        for step in range(4):
            for group in base.param_groups:
                group["lr"] = rates(epoch + step / 4)
            yield data.epoch(seed, epoch).batch(step, 50)


def plain_step(net, base, x, y):
    loss = F.cross_entropy(net(x), y)
    loss.backward()
    base.step()
    base.zero_grad()
    return loss.item()


def noisy_step(net, opt, x, y, split=False):
    for point, (xb, yb) in opt.split(x, y) if split else ((point, (x, y)) for point in opt.points()):
        with point:
            F.cross_entropy(net(xb), yb).backward()
    opt.step()
    opt.zero_grad()


def assert_ends_as(net, execution, recipe=SMALL, seed=0):
    found = read_safetensors(folder(execution, recipe, seed) / "weights.safetensors")
    expected = net.state_dict()
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor), name


def judged(net, part="test"):
    """Mean loss and accuracy."""
    data = source()
    net.eval()
    with torch.no_grad():
        found = [(net(x), y) for x, y in (data.in_order("test") if part == "test" else data.in_order("train"))]
    logits, labels = torch.cat([logits for logits, _ in found]), torch.cat([y for _, y in found])
    return F.cross_entropy(logits, labels).item(), 100 * (logits.argmax(1) == labels).float().mean().item()


@pytest.mark.parametrize("seed", [0, 7])
def test_sgd_is_a_plain_torch_loop(quiet, seed):
    """In weights and running statistics bit for bit, and in what is said about them."""
    row = train(small(phases="1-2", lr=(0.1, 0.02), seeds=(seed,)), quiet)[0]
    net = fresh_net(seed)
    base = sgd(net)
    steps = batches(range(3), seed, rates=lambda moment: 0.1 if moment < 1 else 0.02, base=base)
    losses = [plain_step(net, base, x, y) for x, y in steps]
    assert_ends_as(net, quiet, seed=seed)
    metrics = RunDir(folder(quiet, seed=seed)).metrics()
    means = [sum(losses[i : i + 4]) / 4 for i in (0, 4, 8)]
    assert [line["loss"] for line in metrics] == pytest.approx(means, rel=1e-5)
    assert [line["lr"] for line in metrics] == [0.1, 0.02, 0.02]
    assert (row["test_loss"], row["test_accuracy"]) == pytest.approx(judged(net), rel=1e-5)
    assert (row["train_loss"], row["train_accuracy"]) == pytest.approx(judged(net, "train"), rel=1e-5)


def test_the_rate_falls_within_epochs(quiet):
    train(small(anneal="cosine", warm_up=0.5), quiet)
    net = fresh_net()
    base = sgd(net)

    def rates(moment):
        return 0.1 * (1 + math.cos(math.pi * moment / 2)) / 2 * min(1.0, moment / 0.5)

    for x, y in batches(range(2), rates=rates, base=base):
        plain_step(net, base, x, y)
    assert_ends_as(net, quiet)


def test_another_base(quiet):
    train(small(optimizer="adamw", lr=(0.003,), weight_decay=0.1), quiet)
    net = fresh_net()
    base = AdamW(net.parameters(), 0.003, weight_decay=0.1, fused=True)
    for x, y in batches(range(2), rates=lambda moment: 0.003, base=base):
        plain_step(net, base, x, y)
    assert_ends_as(net, quiet)


def test_weight_decay_may_leave_norms_and_biases_alone(quiet):
    train(small(weight_decay=0.1, decayed="weights", method="both", level=0.3), quiet)
    net = fresh_net()
    weights, others = ([p for p in net.parameters() if (p.dim() > 1) is heavy] for heavy in (True, False))
    groups = [{"params": weights, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    opt = SSGD(SGD(groups, 0.1, 0.9, fused=True), 0.3, model=net, seed=mix(0, 1, 0))
    for x, y in batches(range(2), base=opt):
        noisy_step(net, opt, x, y)
    assert_ends_as(net, quiet, small(weight_decay=0.1, decayed="weights", method="both", level=0.3))
    with pytest.raises(ValueError, match="decayed"):
        small(decayed="biases")


@pytest.mark.parametrize(("method", "split"), [("both", False), ("split", True)])
def test_noise_is_that_of_the_optimizer_by_hand(quiet, method, split):
    train(small(method=method, level=0.3, distribution="uniform"), quiet)
    net = fresh_net()
    opt = SSGD(sgd(net), 0.3, model=net, distribution="uniform", seed=mix(0, 1, 0))
    for x, y in batches(range(2), base=opt):
        noisy_step(net, opt, x, y, split)
    assert_ends_as(net, quiet)


@pytest.mark.parametrize("mark", ["S", "(split:0.3)"])
def test_a_phase_changes_the_method_and_keeps_the_momentum(quiet, mark):
    method = {"method": "both", "level": 0.3} if mark == "S" else {}
    train(small(phases=f"1-1{mark}-1", lr=(0.1, 0.05, 0.01), **method), quiet)
    net = fresh_net()
    base = sgd(net)
    for x, y in batches(range(1), base=base):
        plain_step(net, base, x, y)
    opt = SSGD(base, 0.3, model=net, seed=mix(0, 1, 1))
    for x, y in batches(range(1, 2), rates=lambda moment: 0.05, base=base):
        noisy_step(net, opt, x, y, split=mark != "S")
    for x, y in batches(range(2, 3), rates=lambda moment: 0.01, base=base):
        plain_step(net, base, x, y)
    assert_ends_as(net, quiet)
    found = [(line["method"], line["level"]) for line in RunDir(folder(quiet)).metrics()]
    assert found == [("base", None), ("both" if mark == "S" else "split", 0.3), ("base", None)]


def test_neighbouring_phases_of_one_method_are_one_training(quiet):
    """Only the rate changes; the noise goes on."""
    train(small(phases="1-1", lr=(0.1, 0.02), method="both", level=0.3), quiet)
    net = fresh_net()
    opt = SSGD(sgd(net), 0.3, model=net, seed=mix(0, 1, 0))
    for x, y in batches(range(2), rates=lambda moment: 0.1 if moment < 1 else 0.02, base=opt):
        noisy_step(net, opt, x, y)
    assert_ends_as(net, quiet)


def test_swa_is_judged_and_kept_as_the_average_with_statistics_of_its_own(quiet):
    row = train(small(method="swa"), quiet)[0]
    net = fresh_net()
    base = sgd(net)
    average = AveragedModel(net, multi_avg_fn=get_swa_multi_avg_fn())
    for x, y in batches(range(2), base=base):
        plain_step(net, base, x, y)
        average.update_parameters(net)
    data = source()
    update_bn((data.epoch(0, 1).batch(step, 50)[0] for step in range(4)), average.module)
    assert (row["test_loss"], row["test_accuracy"]) == pytest.approx(judged(average.module), rel=1e-5)
    assert (row["train_loss"], row["train_accuracy"]) == pytest.approx(judged(average.module, "train"), rel=1e-5)
    assert_ends_as(average.module, quiet)
