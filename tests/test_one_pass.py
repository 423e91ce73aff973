"""One forward and one backward: the same gradient as two passes over the halves, and nothing silent."""

import copy
import gc
import pickle
import random
import sys
import warnings
import weakref
from contextlib import nullcontext
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim import SGD
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from ssgd import SSGD, Unserved, recompute_bn
from ssgd.core import random_state

from .one_pass_cases import Use
from .problems import convnet, images, mlp, vectors

D = torch.float64


def optimizer(model, level=0.3, **options):
    return SSGD(SGD(model.parameters(), lr=0.1, momentum=0.9), level, model=model, seed=1, **options)


def normed(batch_norm=nn.BatchNorm2d, **options):
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), batch_norm(4, **options), nn.ReLU(), nn.Flatten(), nn.Linear(100, 3)
    ).double()


def pictures(samples=8):
    x, y = images(samples)
    return x.double(), y


def gradient(model):
    return [None if p.grad is None else p.grad.clone() for p in model.parameters()]


def is_plain(model):
    return all(type(p) is nn.Parameter and "_pair" not in p.__dict__ for p in model.parameters()) and not any(
        "weight" in m.__dict__ or m._forward_pre_hooks for m in model.modules()
    )


def same_as_split(model, x, y, loss=F.cross_entropy, steps=2, **options):
    """Train a copy by split(), and compare all that a step leaves behind."""
    other = copy.deepcopy(model)
    opt, split = optimizer(model, **options), optimizer(other, **options)
    for _ in range(steps):
        with opt.one_pass():
            loss(model(x), y).backward()
        opt.step()
        opt.zero_grad()
        for point, (some_x, some_y) in split.split(x, y):
            with point:
                loss(other(some_x), some_y).backward()
        split.step()
        split.zero_grad()
    for a, b in zip(model.state_dict().values(), other.state_dict().values(), strict=True):
        assert torch.allclose(a, b, rtol=1e-9, atol=1e-12)
    assert is_plain(model)
    return opt


@pytest.mark.parametrize("samples", [8, 7])
@pytest.mark.parametrize("bn_stats", ["both", "once", "first", "none"])
def test_steps_are_those_of_split(samples, bn_stats):
    same_as_split(normed(), *pictures(samples), bn_stats=bn_stats)


@pytest.mark.parametrize("distribution", ["sphere", "sign", "uniform"])
def test_every_distribution_is_served(distribution):
    same_as_split(mlp(), *vectors(7), distribution=distribution)


def test_every_parameter_may_have_noise():
    model = normed()
    other = copy.deepcopy(model)
    opt, split = optimizer(model, perturb=model.parameters()), optimizer(other, perturb=other.parameters())
    x, y = pictures(7)
    assert set(opt.dry_run(model, x).values()) == {"fast"}
    with opt.one_pass():
        F.cross_entropy(model(x), y).backward()
    for point, (a, b) in split.split(x, y):
        with point:
            F.cross_entropy(other(a), b).backward()
    for a, b in zip(gradient(model), gradient(other), strict=True):
        assert torch.allclose(a, b, rtol=1e-9, atol=1e-12)


def test_groups_have_levels_of_their_own():
    def groups(model):
        named = [dict(params=model[0].parameters()), dict(params=model[4].parameters(), noise=0.0)]
        return SSGD(SGD([*named, dict(params=model[1].parameters())], lr=0.1), 0.3, model=model, seed=1)

    model = normed()
    other = copy.deepcopy(model)
    opt, split = groups(model), groups(other)
    x, y = pictures()
    with opt.one_pass():
        assert type(model[4].weight) is nn.Parameter and type(model[0].weight) is not nn.Parameter
        F.cross_entropy(model(x), y).backward()
    for point, (a, b) in split.split(x, y):
        with point:
            F.cross_entropy(other(a), b).backward()
    assert all(torch.allclose(a, b) for a, b in zip(gradient(model), gradient(other), strict=True))


def test_weights_of_several_types():
    class Mixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(5, 8).double(), nn.Linear(8, 3).float()

        def forward(self, x):
            return self.b(self.a(x).tanh().float()).double()

    torch.manual_seed(0)
    model = Mixed()
    x, y = vectors()
    other = copy.deepcopy(model)
    opt, split = optimizer(model), optimizer(other)
    with opt.one_pass():
        F.cross_entropy(model(x), y).backward()
    for point, (a, b) in split.split(x, y):
        with point:
            F.cross_entropy(other(a), b).backward()
    assert all(
        torch.allclose(a, b, rtol=1e-4, atol=1e-6) for a, b in zip(gradient(model), gradient(other), strict=True)
    )


def test_complex_weights():
    model = Use(lambda s, x: F.linear(x.to(torch.complex128), s.w).abs(), w=(3, 5))
    model.w = nn.Parameter(torch.randn(3, 5, dtype=torch.complex128))
    same_as_split(model, *vectors(7))


def test_vectors_as_the_weights_of_a_linear_layer():
    """Also that of a batch-norm, which is a pair without noise."""

    def columns(s, x):
        return torch.stack([F.linear(x, s.w), F.linear(s.n(x), s.n.weight), x[:, 0]], 1)

    model, (x, y) = Use(columns, w=(5,), n=nn.BatchNorm1d(5)).double(), vectors(7)
    other = copy.deepcopy(model)
    opt, split = optimizer(model, perturb=[model.w]), optimizer(other, perturb=[other.w])
    assert opt.dry_run(model, x) == {"w": "pair"}
    with opt.one_pass():
        F.cross_entropy(model(x), y).backward()
    for point, (a, b) in split.split(x, y):
        with point:
            F.cross_entropy(other(a), b).backward()
    for a, b in zip(gradient(model), gradient(other), strict=True):
        assert torch.allclose(a, b, rtol=1e-9, atol=1e-12)


def test_level_0_is_the_base_bitwise_and_at_its_cost():
    model = normed()
    other = copy.deepcopy(model)
    opt, base = optimizer(model, level=0.0), SGD(other.parameters(), lr=0.1, momentum=0.9)
    x, y = pictures()
    assert opt.repeated(x, y)[0] is x
    for _ in range(3):
        with opt.one_pass():
            assert is_plain(model)
            F.cross_entropy(model(x), y).backward()
        F.cross_entropy(other(x), y).backward()
        for o in (opt, base):
            o.step()
            o.zero_grad()
    assert all(map(torch.equal, model.state_dict().values(), other.state_dict().values()))


def test_micro_batches_see_one_noise_and_the_step_makes_a_new_one():
    model, (x, y) = mlp(), vectors(8)
    opt = optimizer(model)

    def block(a, b):
        with opt.one_pass():
            loss = F.cross_entropy(model(a), b)
            loss.backward()
        return loss.item()

    assert block(x, y) == block(x, y)
    opt.step()
    opt.zero_grad()
    opt.param_groups[0]["lr"] = 0.0
    after = block(x, y)
    opt.zero_grad()
    assert block(x, y) != after


def test_several_forwards_in_one_block():
    model, (x, y) = mlp(), vectors(8)
    opt = optimizer(model)
    with opt.one_pass():
        F.cross_entropy(model(x), y).backward()
        F.cross_entropy(model(x), y).backward()
    twice = gradient(model)
    opt.zero_grad()
    opt.param_groups[0]["noise_step"] = 0
    with opt.one_pass():
        (2 * F.cross_entropy(model(x), y)).backward()
    assert all(torch.allclose(a, b) for a, b in zip(twice, gradient(model), strict=True))


def test_the_repeated_batch_gives_the_papers_gradient():
    model, (x, y) = normed(), pictures(5)
    other = copy.deepcopy(model)
    opt, both = optimizer(model), optimizer(other)
    twice = opt.repeated(x, {"y": y, "n": 3})
    assert twice[0].shape[0] == 10 and twice[1]["n"] == 3
    with opt.one_pass():
        F.cross_entropy(model(twice[0]), twice[1]["y"]).backward()
    for point in both.points():
        with point:
            F.cross_entropy(other(x), y).backward()
    assert all(torch.allclose(a, b, atol=1e-12) for a, b in zip(gradient(model), gradient(other), strict=True))
    assert all(torch.allclose(a, b) for a, b in zip(model.buffers(), other.buffers(), strict=True))


def test_a_batch_is_repeated_along_its_samples():
    opt = optimizer(normed())
    x, y = opt.repeated(torch.arange(6).view(3, 2), torch.arange(2), dim=1)
    assert x.tolist() == [[0, 1, 0, 1], [2, 3, 2, 3], [4, 5, 4, 5]] and y.tolist() == [0, 1, 0, 1]


# --- what the loss means ----------------------------------------------------------------------------------------------


def test_a_mean_of_unequal_weights_is_that_of_the_whole_batch():
    model, (x, y) = mlp(), vectors(8)
    y[:3] = -100
    opt = optimizer(model)
    plus, minus = opt.both_points()
    opt.zero_grad()
    opt.param_groups[0]["noise_step"] = 0
    with opt.one_pass():
        F.cross_entropy(model(x), y).backward()  # over 5 samples: 1 at w + n and 4 at w − n
    outs = [
        torch.func.functional_call(model, {k: v.get(p, p) for k, p in model.named_parameters()}, (x,))
        for v in (plus, minus)
    ]
    mean = F.cross_entropy(torch.cat([outs[0][:4], outs[1][4:]]), y)
    found = gradient(model)
    for p, g in zip(model.parameters(), found, strict=True):
        if p not in plus:
            assert torch.allclose(g, torch.autograd.grad(mean, p, retain_graph=True)[0])


@pytest.mark.parametrize("samples", [8, 7])
def test_dropout_draws_one_mask_for_the_batch(samples):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 8), nn.Dropout(0.5), nn.Linear(8, 3)).double()
    x, y = vectors(samples)
    opt = optimizer(model)
    torch.manual_seed(3)
    with opt.one_pass():
        F.cross_entropy(model(x), y).backward()
    found = gradient(model)
    opt.zero_grad()
    opt.param_groups[0]["noise_step"] = 0
    torch.manual_seed(3)
    mask = F.dropout(torch.ones(samples, 8, dtype=D), 0.5)
    for point, (a, b, m) in opt.split(x, y, mask):
        with point:
            F.cross_entropy(model[2](model[0](a) * m), b).backward()
    assert all(torch.allclose(a, b) for a, b in zip(found, gradient(model), strict=True))


def test_a_penalty_counts_by_the_shares_also_for_a_scaler():
    model, (x, y) = mlp(), vectors(7)
    opt = optimizer(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    with opt.one_pass():
        loss = F.cross_entropy(model(x), y) + 0.1 * model[0].weight.norm()
        scaler.scale(loss).backward()
    scaler.unscale_(opt)
    found = gradient(model)
    opt.zero_grad()
    opt.param_groups[0]["noise_step"] = 0
    for point, (a, b) in opt.split(x, y):
        with point:
            (F.cross_entropy(model(a), b) + 0.1 * model[0].weight.norm()).backward()
    assert all(torch.allclose(a, b) for a, b in zip(found, gradient(model), strict=True))


def test_signs_serve_views_joined():
    model, (x, y) = normed(), pictures(8)
    order = torch.tensor([0, 2, 4, 6, 1, 3, 5, 7])
    opt = optimizer(model)
    with opt.one_pass():
        F.cross_entropy(model(x), y).backward()
    found = gradient(model)
    opt.zero_grad()
    opt.param_groups[0]["noise_step"] = 0
    mixed = torch.empty_like(x).index_copy_(0, order, x), torch.empty_like(y).index_copy_(0, order, y)
    with opt.one_pass(signs=[1, -1] * 4):
        out = model(mixed[0])
        F.cross_entropy(out, mixed[1]).backward()
    assert all(torch.allclose(a, b) for a, b in zip(found, gradient(model), strict=True))
    with pytest.raises(ValueError, match="some of both"), opt.one_pass(signs=torch.ones(8)):
        pass
    with pytest.raises(Unserved, match="4 entries for 8 samples"), opt.one_pass(signs=[1, -1, 1, -1]):
        model(x)


# --- batch-norm -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("own", [False, True])
def test_batch_norm_over_the_whole_batch_sees_both_points(own):
    """Whether or not its own weights get noise."""
    model, (x, y) = normed(), pictures(7)
    chosen = list(model.parameters()) if own else [model[0].weight, model[4].weight]
    with torch.no_grad():
        model[1].bias += 0.1
    opt = optimizer(model, perturb=chosen)
    plus, minus = opt.both_points()
    opt.zero_grad()
    opt.param_groups[0]["noise_step"] = 0
    before = copy.deepcopy(model)
    with opt.one_pass(batch_norm="batch"):
        out = model(x)
        F.cross_entropy(out, y).backward()

    def halves(f, name, *rest):
        w = dict(before.named_parameters())
        of = dict(model.named_parameters())
        return [
            f({k: v.get(of[k], w[k]) for k in w if k.startswith(name)}, part)
            for v, part in zip((plus, minus), *rest, strict=True)
        ]

    parts = halves(lambda w, a: F.conv2d(a, w["0.weight"], w["0.bias"]), "0", x.split([4, 3]))
    normal = F.batch_norm(torch.cat(parts), None, None, None, None, True)

    def scaled(w, a):
        return (a * w["1.weight"].view(-1, 1, 1) + w["1.bias"].view(-1, 1, 1)).relu().flatten(1)

    parts = halves(scaled, "1", normal.split([4, 3]))
    expected = torch.cat(halves(lambda w, a: F.linear(a, w["4.weight"], w["4.bias"]), "4", parts))
    assert torch.allclose(out, expected)
    assert model[1].num_batches_tracked == 1


def test_batch_norm_of_either_kind_differs_and_goes_by_halves_by_default():
    outs = {}
    for kind in ("halves", "batch", None):
        model, (x, _) = normed(), pictures()
        with optimizer(model).one_pass(**({} if kind is None else {"batch_norm": kind})):
            outs[kind] = model(x).detach()
    assert torch.equal(outs["halves"], outs[None]) and not torch.allclose(outs["halves"], outs["batch"])


@pytest.mark.parametrize("bn_stats", ["both", "none"])
def test_running_statistics_over_the_whole_batch(bn_stats):
    model, (x, y) = normed(), pictures()
    before = copy.deepcopy(model[1])
    with optimizer(model, bn_stats=bn_stats).one_pass(batch_norm="batch"):
        F.cross_entropy(model(x), y).backward()
    moved = not torch.equal(before.running_mean, model[1].running_mean)
    assert moved == (bn_stats == "both") == (model[1].num_batches_tracked == 1)


@pytest.mark.parametrize("options", [dict(track_running_stats=False), dict(affine=False), dict(momentum=None)])
def test_batch_norm_of_all_kinds(options):
    same_as_split(normed(**options), *pictures(7))


def test_frozen_batch_norm_is_left_alone():
    model = normed()
    recompute_bn(model, [pictures()[0]])
    model[1].eval()
    same_as_split(model, *pictures(7))


def test_sync_batch_norm_is_refused_by_name():
    model = normed(nn.SyncBatchNorm)
    with (
        pytest.raises(Unserved, match=r"1: a SyncBatchNorm is not served: use points\(\) or split\(\)"),
        optimizer(model).one_pass(),
    ):
        pass


# --- what is refused, and the way out ---------------------------------------------------------------------------------


class Two(nn.Module):
    """Its first layer is not served."""

    def __init__(self):
        super().__init__()
        self.l, self.m = nn.Linear(5, 8).double(), nn.Linear(8, 3).double()

    def forward(self, x):
        return self.m(F.linear(x, self.l.weight.data + self.l.weight).tanh())


def test_a_weight_not_served_goes_without_noise_named_once():
    torch.manual_seed(0)
    model, (x, y) = Two(), vectors()
    opt = optimizer(model)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        for _ in range(2):
            with opt.one_pass():
                F.cross_entropy(model(x), y).backward()
            opt.step()
            opt.zero_grad()
    (warning,) = (str(w.message) for w in found)
    assert (
        warning.startswith("l.weight: without noise in one pass, which split() gives")
        and "data of a noisy weight is not served" in warning
    )
    assert opt.state_dict()["param_groups"][0]["without_noise"] == ["l.weight"]
    assert opt.dry_run(model, x)["l.weight"].startswith("refused: one_pass(): l.weight")
    with pytest.raises(Unserved, match=r"l\.weight"), optimizer(model).one_pass(strict=True):
        model(x)
    with pytest.raises(Unserved, match=r"l\.weight"), optimizer(model, perturb=[model.l.weight]).one_pass():
        model(x)
    assert is_plain(model)


def data(s, x):
    return F.linear(x, s.w.data)


def writes(s, x):
    s.w.mul_(1.0)
    return F.linear(x, s.w)


def into_a_plain_tensor(s, x):
    return F.linear(x, s.w) * torch.zeros(()).add_(s.w.sum())


def unbound(s, x):
    return torch.func.vmap(lambda row: F.linear(row, s.w))(x)


REFUSED = {
    "data": (data, "w: data of a noisy weight is not served: use split"),
    "a write": (writes, r"mul_ writes to a noisy weight, or both .* write before the block"),
    "a write to a plain tensor": (into_a_plain_tensor, r"add_ writes .* both of its values to one place"),
    "vmap": (unbound, r"vmap and torch.func are not served: use points\(\) or split"),
    "max_norm": (
        lambda s, x: F.embedding(x.long() % 3, s.w, max_norm=1.0).mean(1),
        r"max_norm or sparse=True is not served: use split\(\)",
    ),
    "sparse": (lambda s, x: F.embedding(x.long() % 3, s.w, sparse=True).mean(1), "max_norm or sparse=True"),
    "routing by data": (
        lambda s, x: torch.cat([F.linear(x[x[:, 0] > 0], s.w), F.linear(x[x[:, 0] <= 0], s.w)]),
        "mixes the samples|depends on the number of samples|both with samples",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_refused_by_name(what):
    torch.manual_seed(0)
    use, message = REFUSED[what]
    model, (x, y) = Use(use, w=(3, 5)).double(), vectors()
    opt = optimizer(model, perturb=[model.w])
    with pytest.raises(Unserved, match=message), opt.one_pass():
        F.cross_entropy(model(x), y).backward()
    assert is_plain(model) and torch.equal(model.w.detach(), model.w)


def test_a_dry_run_can_be_shown_the_loss():
    class Prototypes(nn.Module):
        def __init__(self):
            super().__init__()
            self.l, self.p = nn.Linear(5, 4).double(), nn.Parameter(torch.randn(3, 4, dtype=D))

        def forward(self, x):
            return self.l(x)

    torch.manual_seed(0)
    model, (x, y) = Prototypes(), vectors()
    opt = optimizer(model)

    def loss(x, y):
        return F.cross_entropy(-torch.cdist(model(x), model.p), y)

    with pytest.raises(Unserved, match=r"p: cdist of .* not seen in the dry run.*opt.dry_run\(lambda"), opt.one_pass():
        loss(x, y)
    opt.zero_grad()
    assert opt.dry_run(loss, x, y) == {"l.weight": "fast", "p": "pair"}
    with opt.one_pass():
        loss(x, y).backward()
    opt.step()


def test_the_table_names_what_is_not_used():
    model = nn.ModuleDict({"a": nn.Linear(5, 3), "b": nn.Linear(5, 3)}).double()
    model.forward = lambda x: model["a"](x)
    opt, (x, y) = optimizer(model), vectors()
    assert opt.dry_run(model, x) == {"a.weight": "fast", "b.weight": "not used"}
    with opt.one_pass():
        F.cross_entropy(model(x), y).backward()


@pytest.mark.parametrize(
    ("options", "message"),
    [(dict(pairs=2), "pairs=1, or points"), (dict(rng="same"), r'rng="independent", or split\(\)')],
)
def test_options_that_mean_nothing_here(options, message):
    opt = optimizer(mlp(), **options)
    with pytest.raises(ValueError, match=message), opt.one_pass():
        pass


def test_the_model_is_needed():
    model = mlp()
    with pytest.raises(ValueError, match="pass model="), SSGD(SGD(model.parameters(), lr=0.1), 0.3).one_pass():
        pass


def test_data_parallel_and_scripts_are_refused():
    model = mlp()
    opt = SSGD(SGD(model.parameters(), lr=0.1), 0.3, model=nn.DataParallel(model))
    with pytest.raises(Unserved, match="DataParallel is not served: use DistributedData"), opt.one_pass():
        pass
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        script = torch.jit.script(nn.Linear(5, 3).double())
    with (
        pytest.raises(Unserved, match="weight: a weight of a TorchScript module is not served"),
        optimizer(script).one_pass(),
    ):
        pass


def test_weights_of_another_class_are_refused_by_its_name():
    class Params4bit(nn.Parameter):
        pass

    model = mlp()
    model[0].weight = Params4bit(model[0].weight.detach())
    with (
        pytest.raises(Unserved, match=r"0\.weight: a weight of a Params4bit is not served"),
        optimizer(model).one_pass(),
    ):
        pass


def test_twins_are_refused():
    model = mlp()
    model.append(nn.Linear(8, 3).double())
    model[3].weight = nn.Parameter(model[2].weight.data)
    with pytest.raises(Unserved, match="two parameters share memory"), optimizer(model).one_pass():
        pass


def test_a_gradient_past_the_layers_is_an_error():
    model = mlp()
    opt = optimizer(model)
    with pytest.raises(Unserved, match=r"0\.weight, 2\.weight: a gradient came past the layers"), opt.one_pass():
        for p in model.parameters():
            p.grad = torch.zeros(p.shape, dtype=D)
    assert is_plain(model)


def test_one_sample_and_eval_mode_are_refused():
    model, (x, _) = mlp(), vectors()
    opt = optimizer(model)
    with pytest.raises(Unserved, match="one sample has no two halves"), opt.one_pass():
        model(x[:1])
    opt.zero_grad()
    model.eval()
    with pytest.raises(Unserved, match="eval mode inside the block"), opt.one_pass():
        model(x)
    assert is_plain(model)


def test_inputs_of_different_sizes_are_refused():
    model = Use(lambda s, a: F.linear(a[0], s.w) + a[1].sum(), w=(3, 5)).double()
    opt, (x, _) = optimizer(model), vectors()
    with pytest.raises(Unserved, match=r"sizes \[3, 8\]"), opt.one_pass():
        model((x, x[:3]))


# --- traps ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_dry_run_inside_a_checkpoint_leaves_no_trace(reentrant):
    """Nothing saved, drawn, counted by hooks, or gathered by batch-norm."""
    model = nn.Sequential(normed(), nn.Dropout(0.5), nn.Linear(3, 3).double())
    calls = []
    model[2].register_forward_hook(lambda *_: calls.append(1))
    model[2].register_forward_pre_hook(lambda *_: calls.append(2))
    x, y = pictures()
    x.requires_grad_()
    opt = optimizer(model)

    def step():
        opt.param_groups[0]["noise_step"] = 0
        torch.manual_seed(5)
        random.seed(5)
        calls.clear()
        saved = []
        with (
            opt.one_pass(),
            torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t.shape) or t, lambda t: t),
        ):
            loss = F.cross_entropy(checkpoint(model, x, use_reentrant=reentrant), y)
            loss.backward()
        found = gradient(model), random.random(), torch.rand(1), len(calls), len(saved)
        opt.zero_grad()
        return found

    statistics = copy.deepcopy(model[0][1].state_dict())
    first = step()
    gathered = copy.deepcopy(model[0][1].state_dict())
    model[0][1].load_state_dict(statistics)
    again = step()
    assert all(map(torch.equal, first[0], again[0])) and first[1:] == again[1:] and first[3] in (3, 4)
    assert all(map(torch.equal, gathered.values(), model[0][1].state_dict().values()))


def test_a_hook_that_changes_what_passes_is_refused():
    model, (x, _) = mlp(), vectors()
    model[1].register_forward_hook(lambda module, args, out: out * 2)
    with pytest.raises(Unserved, match="a forward hook of 1 changes what passes it"), optimizer(model).one_pass():
        model(x)


def test_a_branch_that_the_dry_run_did_not_see_is_refused():
    class Branch(nn.Module):
        def __init__(self):
            super().__init__()
            self.l = nn.Linear(5, 3).double()

        def forward(self, x):
            return self.l(x) * self.l.weight.exp().mean() if self.training else self.l(x)

    model, (x, _) = Branch(), vectors()
    with (
        pytest.raises(Unserved, match=r"l\.weight: mul of .* was not seen in the dry run"),
        optimizer(model).one_pass(),
    ):
        model(x)


def test_a_backward_after_the_block_is_refused():
    model, (x, y) = mlp(), vectors()
    opt = optimizer(model)
    with opt.one_pass():
        loss, other = F.cross_entropy(model(x), y), model(x).sum()
    with pytest.raises(Unserved, match=r"a backward\(\) came after its block"):
        loss.backward()
    opt.zero_grad()
    with pytest.raises(Unserved, match=r"a backward\(\) came after its block"), opt.one_pass():
        other.backward()


@pytest.mark.parametrize(("reentrant", "sentence"), [(False, "came after its block"), (True, "ran after its point")])
def test_a_late_backward_that_computes_again_is_refused(reentrant, sentence):
    """By itself, or by the step() that would take its gradients: it computes with the clean weights."""
    model, (x, y) = mlp(), vectors()
    opt = optimizer(model)
    with opt.one_pass():
        loss = F.cross_entropy(checkpoint(model, x.requires_grad_(), use_reentrant=reentrant), y)
    with pytest.raises(RuntimeError, match=sentence):
        loss.backward()
        opt.step()


def test_a_function_of_the_users_own_that_computes_again_is_refused():
    class Again(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, w):
            ctx.w = w
            ctx.save_for_backward(x)
            return F.linear(x, w)

        @staticmethod
        def backward(ctx, g):
            return g @ ctx.w, g.t() @ ctx.saved_tensors[0]

    model, (x, y) = Use(lambda s, x: Again.apply(x, s.w), w=(3, 5)).double(), vectors()
    opt = optimizer(model, perturb=[model.w])
    with pytest.raises(Unserved, match=r"w: matmul of .* was not seen"), opt.one_pass():
        F.cross_entropy(model(x.requires_grad_()), y).backward()


def test_a_value_kept_from_an_earlier_block_is_refused():
    model, (x, _) = Use(lambda s, x: F.linear(x, s.kept), w=(3, 5)).double(), vectors()
    opt = optimizer(model)
    model.f = lambda s, x: F.linear(x, s.w * 2)
    with opt.one_pass():
        model(x)
        kept = model.w * 2
    with pytest.raises(Unserved, match="kept from an earlier block"):
        kept + 1
    opt.zero_grad()
    with pytest.raises(Unserved, match="kept from an earlier block"), opt.one_pass():
        F.linear(x, kept)


def test_a_call_of_a_known_kind_is_still_checked():
    """How a kind of call is served is found once; what each call is given is looked at every time."""
    model, (x, _) = Use(lambda s, x: x @ s.w.t(), w=(3, 5)).double(), vectors()
    opt = optimizer(model)
    for _ in range(2):
        with opt.one_pass():
            y = model(x)
            turned, doubled = model.w.t(), (model.w * 2).t()
            assert torch.equal(x @ doubled, 2 * y)
            y.square().mean().backward()
        opt.step()
    with pytest.raises(Unserved, match="kept from an earlier block"), opt.one_pass():
        model(x)
        x @ turned
    with pytest.raises(Unserved, match="vmap"), opt.one_pass():
        model(x)
        turned = model.w.t()
        torch.func.vmap(lambda rows: rows @ turned)(x[None])


def test_a_gradient_of_a_gradient_is_refused():
    model, (x, _) = mlp(), vectors()
    x.requires_grad_()
    with pytest.raises(Unserved, match=r"create_graph=True\) is not served: use points"), optimizer(model).one_pass():
        torch.autograd.grad(model(x).sum(), x, create_graph=True)


def test_checkpoints_of_forwards_of_several_sizes_are_refused():
    model, (x, _) = mlp(), vectors(7)
    opt = optimizer(model)
    with pytest.raises(Unserved, match="different numbers of samples"), opt.one_pass():
        first = checkpoint(model, torch.cat([x, x]), use_reentrant=False)
        checkpoint(model, x, use_reentrant=False).sum().backward()
        first.sum().backward()


@pytest.mark.parametrize("what", ["copy", "pickle", "state_dict", "copy of opt", "state_dict of opt", "step", "points"])
def test_nothing_leaves_the_block(what):
    model = mlp()
    opt = optimizer(model)
    do = {
        "copy": partial(copy.deepcopy, model),
        "pickle": partial(pickle.dumps, model),
        "state_dict": model.state_dict,
        "copy of opt": partial(copy.deepcopy, opt),
        "state_dict of opt": opt.state_dict,
        "step": opt.step,
        "points": lambda: next(opt.points()),
    }[what]
    with pytest.raises(RuntimeError, match=r"leave|inside|step|block"), opt.one_pass():
        do()
    assert is_plain(model)
    opt.zero_grad()
    copy.deepcopy(opt), opt.state_dict(), copy.deepcopy(model)


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, GeneratorExit])
def test_classes_are_restored_whatever_happens(error):
    model, (x, y) = normed(), pictures()
    opt = optimizer(model)
    with pytest.raises(error), opt.one_pass():
        F.cross_entropy(model(x), y).backward()
        raise error
    assert is_plain(model) and all(p.grad is None for p in model.parameters())
    with pytest.raises(RuntimeError, match="an exception cut the batch short"):
        opt.step()
    opt.zero_grad()
    with opt.one_pass():
        F.cross_entropy(model(x), y).backward()
    opt.step()


@pytest.mark.parametrize("first", [True, False])
def test_ctrl_c_on_any_line_leaves_plain_classes(first):
    """On every so many lines of the package, with the dry run and without it; prime numbers reach them all in time."""
    x, y = pictures(4)
    model = normed()
    opt = optimizer(model)

    def step(at):
        seen = 0

        def trace(frame, event, arg):
            nonlocal seen
            if event == "line" and "ssgd" in frame.f_code.co_filename:
                seen += 1
                if seen == at:
                    sys.settrace(None)
                    raise KeyboardInterrupt
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            with opt.one_pass():
                F.cross_entropy(model(x), y).backward()
        except KeyboardInterrupt:
            return False
        finally:
            sys.settrace(before)
        return True

    if not first:
        assert step(0)
        opt.zero_grad()
    at = 1
    while not step(at):
        assert is_plain(model) and all(m.training for m in model.modules())
        assert torch.is_grad_enabled() and torch.overrides._get_current_function_mode() is None
        opt.zero_grad()
        if first:
            opt = optimizer(model)
        at += 61 if first else 13
    assert is_plain(model) and at > 1000


def test_an_error_in_the_dry_run_changes_nothing():
    model, (x, _) = normed(), pictures()

    def broken(x):
        raise KeyboardInterrupt

    opt = optimizer(model)
    model[4].forward = broken
    with pytest.raises(KeyboardInterrupt), opt.one_pass():
        model(x)
    assert is_plain(model) and model.training and model[1].training and model[1].num_batches_tracked == 0


def test_a_dropped_generator_leaves_the_block():
    model = mlp()
    opt = optimizer(model)

    def loop():
        with opt.one_pass():
            yield

    steps = loop()
    next(steps)
    assert not is_plain(model)
    del steps
    gc.collect()
    assert is_plain(model)


class Unread(TorchDispatchMode):
    """Refuses what a CUDA graph cannot hold: numbers that the host reads."""

    def __torch_dispatch__(self, f, types, args=(), kwargs=None):
        assert f.name().partition(".")[0] not in ("aten::_local_scalar_dense", "aten::equal", "aten::is_nonzero"), f
        return f(*args, **(kwargs or {}))


class Graph:
    """In place of a CUDA graph: what was registered."""

    def __init__(self):
        self.generators = []

    def register_generator_state(self, generator):
        self.generators.append(generator)


@pytest.mark.parametrize("options", [{}, dict(batch_norm="batch")])
def test_steps_as_a_cuda_graph_holds_them_are_the_eager_ones(monkeypatch, options):
    """After the first step the host reads nothing and makes no generator, and a replay draws the next step's noise."""
    x, y = pictures(7)

    def step(opt, model):
        opt.zero_grad()
        with opt.one_pass(**options):
            F.cross_entropy(model(x), y).backward()
        opt.step()

    model = normed()
    other = copy.deepcopy(model)
    opt, eager = optimizer(model), optimizer(other)
    for _ in range(4):
        step(eager, other)
    step(opt, model)
    graph = Graph()
    opt.register_graph(graph)
    monkeypatch.setattr(random_state, "capturing", lambda: True)
    monkeypatch.setattr(torch, "Generator", None)
    opt.zero_grad()
    for _ in range(3):
        opt.before_replay()
        with Unread():
            step(opt, model)
    assert len(graph.generators) == 2
    assert all(map(torch.equal, model.state_dict().values(), other.state_dict().values()))
    with pytest.raises(Unserved, match="signs= is read by the host"), opt.one_pass(signs=[1, -1] * 4):
        pass
    opt.zero_grad()
    with pytest.raises(Unserved, match="cannot hold the dry run"), opt.one_pass():
        model(x.flatten(1))


def test_what_a_graph_reads_outlives_a_change_of_the_weights_with_noise(monkeypatch):
    model, (x, y) = mlp(), vectors()
    groups = [dict(params=model[0].parameters()), dict(params=model[2].parameters())]
    opt = SSGD(SGD(groups, lr=0.1), 0.3, model=model, seed=1)
    with opt.one_pass():
        F.cross_entropy(model(x), y).backward()
    opt.zero_grad()
    monkeypatch.setattr(random_state, "capturing", lambda: True)
    with opt.one_pass():
        rooms = [weakref.ref(p._pair.two.untyped_storage()) for p in opt.selected]
        F.cross_entropy(model(x), y).backward()
    opt.zero_grad()
    monkeypatch.undo()
    opt.param_groups[1]["noise"] = 0.0
    with opt.one_pass():
        F.cross_entropy(model(x), y).backward()
    gc.collect()
    assert all(room() is not None for room in rooms)


def test_a_gradient_past_the_layers_is_an_error_in_the_first_block_too():
    """As of make_graphed_callables(), whose forward is another one in training than in the dry run."""

    def past(s, x):
        with torch._C.DisableTorchFunctionSubclass() if s.training else nullcontext():
            return F.linear(x, s.w)

    model, (x, y) = Use(past, w=(3, 5)).double(), vectors()
    with (
        pytest.raises(Unserved, match=r"w: a gradient came past the layers.*make_graphed"),
        optimizer(model).one_pass(),
    ):
        F.cross_entropy(model(x), y).backward()


def test_autocast_and_low_precision():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.GELU(), nn.Flatten(), nn.Linear(100, 3))
    x, y = images(8)
    other = copy.deepcopy(model)
    opt, split = optimizer(model), optimizer(other)
    with torch.autocast("cpu", torch.bfloat16):
        with opt.one_pass():
            F.cross_entropy(model(x), y).backward()
        for point, (a, b) in split.split(x, y):
            with point:
                F.cross_entropy(other(a), b).backward()
    for a, b in zip(gradient(model), gradient(other), strict=True):
        assert a.dtype == torch.float32 and (a - b).norm() < 0.02 * b.norm()
    half = copy.deepcopy(model).bfloat16()
    with optimizer(half).one_pass():
        F.cross_entropy(half(x.bfloat16()).float(), y).backward()
    assert all(p.grad.dtype == torch.bfloat16 for p in half.parameters())


def test_channels_last_weights_stay_so():
    model, (x, y) = convnet(), images()
    model(x)
    model = model.to(memory_format=torch.channels_last).double()
    model[6] = nn.Identity()
    same_as_split(model, x.double(), y)


def test_tied_weights_are_one():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(7, 4), nn.Flatten(1), nn.Linear(8, 4), nn.Linear(4, 7, bias=False)).double()
    model[3].weight = model[0].weight
    words = torch.randint(7, (7, 2))
    opt = same_as_split(model, words, words[:, 0])
    assert opt.dry_run(model, words) == {"0.weight": "fast", "2.weight": "fast"}


def test_resume_is_bitwise():
    def steps(model, opt, count):
        for _ in range(count):
            with opt.one_pass():
                F.cross_entropy(model(x), y).backward()
            opt.step()
            opt.zero_grad()

    x, y = vectors()
    model = mlp()
    opt = optimizer(model)
    steps(model, opt, 2)
    other = copy.deepcopy(model)
    resumed = optimizer(other)
    resumed.load_state_dict(copy.deepcopy(opt.state_dict()))
    steps(model, opt, 2)
    steps(other, resumed, 2)
    assert all(map(torch.equal, model.parameters(), other.parameters()))
