"""Other packages' optimizers as bases: themselves at level 0, fed the mean gradient with noise, and resumed bitwise."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from ssgd import SSGD

NAMES = {  # a package that may be missing, and its optimizers that are asked for most
    "torch.optim": ["Adafactor", "Adagrad", "Adam", "AdamW", "Muon", "NAdam", "RAdam", "RMSprop", "Rprop", "SGD"],
    "pytorch_optimizer": [
        *(
            "ADOPT",
            "Adan",
            "AdaBelief",
            "AdamP",
            "AdEMAMix",
            "AdaFactor",
            "DAdaptAdam",
            "Lamb",
            "LARS",
            "Lion",
            "MADGRAD",
        ),
        *("MARS", "NovoGrad", "Prodigy", "RAdam", "Ranger", "ScheduleFreeAdamW", "SGDW", "Shampoo", "SOAP", "Tiger"),
    ],
    "timm.optim": [
        *("Adafactor", "AdaBelief", "AdamWLegacy", "Adan", "Adopt", "Lamb", "LaProp", "Lars", "Lion", "MADGRAD"),
        *("Mars", "Muon", "NAdamW", "NvNovoGrad", "RMSpropTF", "SGDP"),
    ],
    "schedulefree": ["AdamWScheduleFree", "RAdamScheduleFree", "SGDScheduleFree"],
    "torchao.optim": ["AdamW4bit", "AdamW8bit", "AdamWFp8"],
    "bitsandbytes.optim": ["AdamW8bit", "Lion8bit"],
}
ALL = [pytest.param(package, name, id=f"{package}.{name}") for package, names in NAMES.items() for name in names]
NOISE = {"noise": 0.2, "seed": 3}


def made(package, name, model):
    """The optimizer with its defaults, at a rate of 0.01."""
    try:
        kind = getattr(pytest.importorskip(package), name)
    except AttributeError:
        pytest.skip(f"this {package} has no {name}")
    parameters = [p for p in model.parameters() if p.dim() > 1 or "Muon" not in name]  # Muon is for matrices
    opt = kind(parameters, lr=0.01)
    if callable(getattr(opt, "train", None)):
        opt.train()
    return opt


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 4))


def batches(count=7):  # RAdam does not move before the sixth step
    numbers = torch.Generator().manual_seed(1)
    return [(torch.randn(8, 64, generator=numbers), torch.randint(4, (8,), generator=numbers)) for _ in range(count)]


def train(model, opt, data):
    for x, y in data:
        torch.manual_seed(len(x))  # some draw in a step
        for point in opt.points():
            with point:
                F.cross_entropy(model(x), y).backward()
        opt.step()
        opt.zero_grad()


def train_by_hand(model, opt, data, noise=None):
    """``noise`` tells n of each weight at every step."""
    for x, y in data:
        torch.manual_seed(len(x))
        own = dict(model.named_parameters())
        gradients = []
        for sign in (1, -1) if noise else (0,):
            at = {name: p + sign * noise[name] if noise and name in noise else p for name, p in own.items()}
            loss = F.cross_entropy(torch.func.functional_call(model, at, x), y)
            gradients.append(torch.autograd.grad(loss, own.values()))
        for p, *found in zip(own.values(), *gradients, strict=True):
            p.grad = sum(found) / len(found)
        opt.step()
        opt.zero_grad()


def same(ours, theirs):
    return all(torch.equal(a, b) for a, b in zip(ours.parameters(), theirs.parameters(), strict=True))


@pytest.mark.parametrize(("package", "name"), ALL)
def test_at_level_zero_it_is_itself_bitwise(package, name):
    ours, theirs = net(), net()
    base = made(package, name, theirs)
    train_by_hand(theirs, base, batches())
    assert not same(theirs, net())
    train(ours, SSGD(made(package, name, ours), 0.0), batches())
    assert same(ours, theirs)


@pytest.mark.parametrize(("package", "name"), ALL)
def test_with_noise_it_is_fed_the_mean_of_both_gradients(package, name):
    """Of one step, whose noise a second instance of the same seed tells."""
    ours, theirs = net(), net()
    opt = SSGD(made(package, name, ours), **NOISE)
    matrices = {name: p for name, p in theirs.named_parameters() if p.dim() > 1}
    plus, _ = SSGD(torch.optim.SGD(opt_order(opt, ours, theirs), lr=0.1), **NOISE).both_points()
    noise = {name: plus[p] - p.detach() for name, p in matrices.items()}
    train(ours, opt, batches(1))
    train_by_hand(theirs, made(package, name, theirs), batches(1), noise)
    for a, b, start in zip(ours.parameters(), theirs.parameters(), net().parameters(), strict=True):
        moved = (b - start).abs().max().item()
        torch.testing.assert_close(a, b, rtol=0, atol=max(2e-2 * moved, 1e-6))


def opt_order(opt, ours, theirs):
    """Theirs in the order of the optimizer's, by which noise is drawn."""
    other = dict(zip(ours.parameters(), theirs.parameters(), strict=True))
    return [other[p] for group in opt.param_groups for p in group["params"]]


@pytest.mark.parametrize(("package", "name"), ALL)
def test_resume_is_bitwise(package, name):
    def begun():
        model = net()
        return model, SSGD(made(package, name, model), **NOISE)

    model, opt = begun()
    train(model, opt, batches())
    first, opt = begun()
    train(first, opt, batches()[:4])
    again, fresh = begun()
    again.load_state_dict(first.state_dict())
    fresh.load_state_dict(opt.state_dict())
    train(again, fresh, batches()[4:])
    assert same(again, model)


def test_adapters_of_peft_are_trained_and_what_is_frozen_stays():
    peft = pytest.importorskip("peft")

    def adapted():
        return peft.get_peft_model(net(), peft.LoraConfig(target_modules=["0"], r=4))

    ours, theirs = adapted(), adapted()
    ours.load_state_dict(theirs.state_dict())
    train(ours, SSGD(torch.optim.AdamW(ours.parameters(), lr=0.01), 0.0), batches())
    base = torch.optim.AdamW(theirs.parameters(), lr=0.01)
    for x, y in batches():
        F.cross_entropy(theirs(x), y).backward()
        base.step()
        base.zero_grad()
    assert same(ours, theirs)
    before = {name: p.clone() for name, p in ours.named_parameters()}
    opt = SSGD(torch.optim.AdamW(ours.parameters(), lr=0.01), **NOISE)
    assert all(0.1 < ratio < 0.3 for ratio in opt.realised_ratios())
    train(ours, opt, batches())
    changed = {name for name, p in ours.named_parameters() if not torch.equal(p, before[name])}
    assert changed == {name for name in before if "lora_" in name}
