"""Bad use gets a sentence that says what to do, and leaves the weights as they were."""

import copy
import math
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from torch import nn
from torch.optim import LBFGS, SGD, Adadelta, Optimizer

from ssgd import SSGD, NoiseSchedule
from ssgd.methods.sam import SAM

from .problems import mlp, same, vectors, weights


def start(**options):
    model = mlp(torch.float32)
    return model, SSGD(SGD(model.parameters(), lr=0.1), 0.3, **options)


@pytest.mark.parametrize("level", [-0.1, math.nan, math.inf, "0.1", None, True, torch.tensor(-1.0), torch.ones(2)])
def test_bad_levels(level):
    with pytest.raises(ValueError, match="noise level"):
        SSGD(SGD(mlp().parameters(), lr=0.1), level)
    model, opt = start()
    opt.param_groups[0]["noise"] = level
    before = weights(model)
    with pytest.raises(ValueError, match="noise level"):
        next(opt.points())
    assert same(model, before)


@pytest.mark.parametrize("level", [0, 0.1, np.float32(0.1), np.int64(0), torch.tensor(0.1)])
def test_levels_are_numbers_of_any_kind(level):
    model = mlp(torch.float32)
    opt = SSGD(SGD(model.parameters(), lr=0.1), level)
    before = model[0].weight.detach().clone()
    for point in opt.points():
        with point:
            ratio = (model[0].weight - before).norm() / before.norm()
            assert ratio.item() == pytest.approx(float(level))


def test_a_level_on_a_device_is_taken_as_it_is():
    SSGD(SGD(mlp().parameters(), lr=0.1), torch.tensor(-1.0, device="meta"))  # looked at, it would fail


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"mode": "split"}, "mode must be one of 'both', 'mirror', not 'split'"),
        ({"mode": "mirror"}, "needs the data parallel module: pass model="),
        ({"distribution": "gauss"}, "no distribution called 'gauss'"),
        ({"pairs": 0}, "pairs must be a whole number of at least 1"),
        ({"pairs": 1.5}, "pairs must be a whole number"),
        ({"pairs": True}, "pairs must be a whole number"),
        ({"bn_stats": "twice"}, "bn_stats must be one of"),
        ({"bn_stats": "once"}, "needs the model: pass model="),
        ({"rng": "shared"}, "rng must be one of"),
        ({"nonfinite": "ignore"}, "nonfinite must be one of"),
        ({"seed": -1}, "seed must be a whole number"),
        ({"seed": 1.5}, "seed must be a whole number"),
        ({"seed": True}, "seed must be a whole number"),
        ({"seed": 2**63}, r"from 0 to 2\*\*63 - 1"),
        ({"perturb": []}, "nothing to perturb"),
        ({"perturb": [torch.ones(2, 2, requires_grad=True)]}, "in none of the base optimizer's parameter groups"),
    ],
)
def test_bad_options(options, sentence):
    with pytest.raises(ValueError, match=sentence):
        start(**options)


@pytest.mark.parametrize("seed", [0, 2**63 - 1, np.int64(5)])
def test_seeds_are_whole_numbers_of_any_kind(seed):
    assert start(seed=seed)[1].state_dict()["param_groups"][0]["noise_seed"] == seed


class Around(Optimizer):
    """As Lookahead and others have it."""

    def __init__(self, inside):
        self.inside = inside

    @property
    def param_groups(self):
        return self.inside.param_groups


class AroundTwo(Optimizer):
    def __init__(self, *inside):
        self.inside = inside

    @property
    def param_groups(self):
        return [group for one in self.inside for group in one.param_groups]


class NeedsClosure(SGD):
    def step(self, closure):
        return super().step(closure)


def test_a_group_added_to_the_optimizer_inside_is_named():
    _, opt = start()
    opt.base.add_param_group({"params": [torch.nn.Parameter(torch.ones(2, 2))]})
    with pytest.raises(RuntimeError, match="a parameter group has no 'noise': add groups to SSGD, not to the opt"):
        next(iter(opt.points()))


def test_bad_bases():
    model = mlp()
    with pytest.raises(TypeError, match=r"pass an optimizer instance, such as SGD\(model.parameters\(\)"):
        SSGD(SGD, 0.3)
    for misplaced in ((model, 0.3), (SGD(model.parameters(), lr=0.1), model), (model, SGD(model.parameters(), lr=0.1))):
        with pytest.raises(TypeError, match=r"^SSGD: the first argument is the optimizer.*the model goes to model=$"):
            SSGD(*misplaced)
    with pytest.raises(TypeError, match="Around is an optimizer around another: wrap the one inside it"):
        SSGD(Around(SGD(model.parameters(), lr=0.1)), 0.3)
    with pytest.raises(TypeError, match="AroundTwo is an optimizer around another: wrap the one inside it"):
        SSGD(AroundTwo(*(SGD(part.parameters(), lr=0.1) for part in (model[0], model[2]))), 0.3)
    holds = SGD(model.parameters(), lr=0.1)
    holds.base_optimizer = SGD(model.parameters(), lr=0.1)  # as pytorch_optimizer's SAM does
    with pytest.raises(TypeError, match="SGD is an optimizer around another: wrap the one inside it"):
        SSGD(holds, 0.3)
    holds.base_optimizer = [SGD(part.parameters(), lr=0.1) for part in (model[0], model[2])]  # as heavyball's SplitOpt
    with pytest.raises(TypeError, match="SGD is an optimizer around another: wrap the one inside it"):
        SSGD(holds, 0.3)
    with pytest.raises(TypeError, match=r"NeedsClosure is not served: its step\(\) needs a closure"):
        SSGD(NeedsClosure(model.parameters(), lr=0.1), 0.3)
    rate = torch.tensor(0.1, requires_grad=True)
    holds.base_optimizer = SGD([rate], lr=0.1)  # of its own rate, say
    SSGD(holds, 0.3)
    with pytest.raises(TypeError, match="LBFGS is not served"):
        SSGD(LBFGS(model.parameters()), 0.3)
    for name in ("AdaHessian", "SophiaH"):
        with pytest.raises(TypeError, match=f"{name} is not served: it differentiates gradients again"):
            SSGD(type(name, (SGD,), {})(model.parameters(), lr=0.1), 0.3)
    for name in ("ZeroRedundancyOptimizer", "PostLocalSGDOptimizer"):
        base = type(name, (SGD,), {})(model.parameters(), lr=0.1)
        base.optim = SGD(model.parameters(), lr=0.1)  # as both do
        with pytest.raises(TypeError, match=f"{name} is not served: "):
            SSGD(base, 0.3)
    with pytest.raises(TypeError, match="is a SSGD already: wrap the optimizer inside it"):
        SSGD(SSGD(SGD(model.parameters(), lr=0.1), 0.3), 0.3)
    with pytest.raises(ValueError, match=r"nothing to perturb.*perturb=select"):
        SSGD(SGD([model[0].bias], lr=0.1), 0.3)
    SSGD(SGD([model[0].bias], lr=0.1), 0.0)  # which is the base


@pytest.mark.parametrize("wrap", [lambda base, **options: SSGD(base, 0.3, **options), SAM], ids=["SSGD", "SAM"])
def test_flat_weights_of_the_old_fsdp_are_refused(wrap):
    """By the module's class or, where no model is given, by its parameters' mark."""
    flat = type("FullyShardedDataParallel", (nn.Sequential,), {})(nn.Linear(3, 3), nn.Linear(3, 3))
    model = nn.Sequential(flat, nn.Linear(3, 2))
    with pytest.raises(TypeError, match=r"FullyShardedDataParallel keeps the weights flat.*use FSDP2"):
        wrap(SGD(model.parameters(), lr=0.1), model=model)
    flat[0].weight._fsdp_flattened = True
    with pytest.raises(TypeError, match=r"FullyShardedDataParallel keeps the weights flat.*use FSDP2"):
        wrap(SGD(model.parameters(), lr=0.1), perturb=list(model.parameters()))


class Jittery(SGD):
    """It has noise of its own."""

    def __init__(self, params):
        super().__init__(params, lr=0.1)
        self.defaults["noise"] = self.param_groups[0]["noise"] = 0.5


@pytest.mark.parametrize(("wrap", "base", "key"), [(SAM, Adadelta, "rho"), (SSGD, Jittery, "noise")])
def test_a_setting_of_the_bases_own_is_not_taken_for_the_methods_level(wrap, base, key):
    base = base(mlp().parameters())
    groups = [dict(g) for g in base.param_groups]
    with pytest.raises(TypeError, match=f"{type(base).__name__} has a setting {key!r} of its own"):
        wrap(base, 0.05)
    assert base.param_groups == groups


def test_a_refused_wrapper_leaves_the_base_as_it_was():
    model = mlp()
    base = SGD(model.parameters(), lr=0.1, momentum=0.9)
    groups = [dict(g) for g in base.param_groups]
    for bad in (
        {"noise": -1.0},
        {"noise": 0.1, "rng": "x"},
        {"noise": 0.1, "distribution": "x"},
        {"noise": 0.1, "nonfinite": "x"},
    ):
        with pytest.raises(ValueError):
            SSGD(base, **bad)
    assert base.param_groups == groups


@pytest.mark.parametrize(
    "refused",
    [
        lambda base: SSGD(base, 0.1, perturb=[torch.zeros(2, 2)]),
        lambda base: SSGD(base, 0.1),  # the second group's own level
        lambda base: SAM(base, 0.1, perturb=[torch.zeros(2, 2)]),
    ],
)
def test_a_wrapper_refused_late_leaves_groups_and_state(refused):
    model = mlp()
    halves = [{"params": model[0].parameters()}, {"params": model[2].parameters(), "noise": -1.0}]
    base = SGD(halves, lr=0.1, momentum=0.9)
    F.cross_entropy(model(vectors()[0]), vectors()[1]).backward()
    base.step()
    before = base.state_dict()
    with pytest.raises(ValueError):
        refused(base)
    assert len(base.param_groups) == 2 and len(base.state) == 4
    assert base.state_dict()["param_groups"] == before["param_groups"]


def test_a_base_is_wrapped_once_until_it_is_released():
    base = SGD(mlp().parameters(), lr=0.1)
    opt = SSGD(base, 0.1)
    with pytest.raises(ValueError, match=r"this SGD is wrapped by SSGD already.*release\(\)"):
        SSGD(base, 0.5)
    assert opt.param_groups[0]["noise"] == 0.1
    assert SAM(opt.release(), 0.2).param_groups[0]["rho"] == 0.2 and "noise" not in base.param_groups[0]


@pytest.mark.parametrize(
    "misuse",
    [
        lambda model, opt: next(opt.points()),
        lambda model, opt: next(opt.points()).__enter__(),
        lambda model, opt: opt.step(),
        lambda model, opt: opt.step(lambda: torch.tensor(0.0)),
        lambda model, opt: opt.zero_grad(),
        lambda model, opt: opt.state_dict(),
        lambda model, opt: opt.load_state_dict({}),
        lambda model, opt: opt.add_param_group({"params": [torch.ones(2, 2, requires_grad=True)]}),
        lambda model, opt: copy.deepcopy(opt),
        lambda model, opt: next(opt.split(*vectors(dtype=torch.float32))),
        lambda model, opt: opt.symmetric_excess(lambda: torch.tensor(0.0)),
        lambda model, opt: opt.as_ranks(2),
        lambda model, opt: opt.attach(model),
        lambda model, opt: opt.release(),
        lambda model, opt: opt._passes.points[opt._passes.done].__enter__(),
    ],
)
@pytest.mark.parametrize("sign", [1, -1])
def test_inside_a_point(misuse, sign):
    model, opt = start()
    x, y = vectors(dtype=torch.float32)
    before = weights(model)
    with pytest.raises(RuntimeError, match=r"nested|inside a point|of 2 points"):
        for point in opt.points():
            with point:
                F.cross_entropy(model(x), y).backward()
                if point.sign == sign:
                    misuse(model, opt)
    assert same(model, before)
    assert len(opt.param_groups) == 1


def test_a_closure_that_returns_nothing():
    model, opt = start()
    before = weights(model)
    with pytest.raises(TypeError, match="returned nothing: end it with `return loss`"):
        opt.step(lambda: None)
    assert same(model, before)


@pytest.mark.parametrize("returned", [lambda loss: (loss, 1), lambda loss: [loss], lambda loss: {"loss": loss}])
def test_a_closure_that_returns_more_than_the_loss(returned):
    model, opt = start()
    before = [p.detach().clone() for p in model.parameters()]

    def closure():
        loss = model(vectors(dtype=torch.float32)[0]).sum()
        loss.backward()
        return returned(loss)

    with pytest.raises(TypeError, match=r"the closure returned a (tuple|list|dict): end it with `return loss`"):
        opt.step(closure)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_zero_grad_between_the_points():
    model, opt = start()
    for cleared in (0, 1):
        with pytest.raises(RuntimeError, match=r"zero_grad\(\), or a new points\(\), has ended this batch"):
            for point in opt.points():
                if point.index == cleared:
                    opt.zero_grad()
                with point:
                    model(vectors(dtype=torch.float32)[0]).sum().backward()


def test_one_process_stands_for_one_rank_at_least():
    with pytest.raises(ValueError, match="ranks must be a whole number of at least 1, not 0"):
        start()[1].as_ranks(0)


def test_names_for_tensors_and_for_the_model():
    model = mlp()
    for names in ("conv", ["0.weight"]):
        with pytest.raises(TypeError, match=r'perturb is a list of tensors, not of names: select\(model, "conv"\)'):
            SSGD(SGD(model.parameters(), lr=0.1), 0.3, perturb=names)
    with pytest.raises(TypeError, match=r"model must be the nn.Module that is trained, not str"):
        SSGD(SGD(model.parameters(), lr=0.1), 0.3, model="net")


def test_a_course_is_a_function():
    with pytest.raises(TypeError, match=r"a course says the level's factor at each step.*not 0.5"):
        NoiseSchedule(start()[1], 0.5)


def test_split_refuses_what_it_cannot_halve():
    x, y = vectors(dtype=torch.float32)
    model, opt = start()
    before = weights(model)
    with pytest.raises(ValueError, match="at least two samples"):
        next(opt.split(x[:1], y[:1]))
    with pytest.raises(ValueError, match=r"different first dimensions, \[3, 8\]"):
        next(opt.split(x, y[:3]))
    with pytest.raises(ValueError, match="at least one tensor"):
        next(opt.split("text"))
    with pytest.raises(ValueError, match="use pairs=1"):
        next(start(pairs=2)[1].split(x, y))
    held = (Labelled(x, y), SimpleNamespace(x=x), SimpleNamespace(parts={"x": x}), Slotted(x), AndMore(x), x.numpy())
    for unknown in held:  # would go whole to both signs
        with pytest.raises(TypeError, match=rf"cannot halve a {type(unknown).__name__}: pass its tensors"):
            next(opt.split(x, {"beside": unknown}))
    captions, pictures = ["one a sample"] * len(x), [Image.new("L", (2, 2))] * len(x)
    for entries in (captions, tuple(captions), pictures, tuple(pictures), list(range(8))):
        assert next(opt.split(x, {"beside": entries}))[1][1] == {"beside": entries[:4]}
        opt.zero_grad()
    assert same(model, before)
    size = tuple(range(8))
    assert next(opt.split(x, size))[1][1] == size
    opt.zero_grad()
    assert next(opt.split(x, ["other", "words"], nn.CrossEntropyLoss(torch.ones(3))))[1][1] == ["other", "words"]
    opt.zero_grad()
    assert next(opt.split(x, "a name", 3, None, np.float32(0.5)))[1][1:] == ("a name", 3, None, np.float32(0.5))


@dataclass(slots=True)
class Slotted:
    x: torch.Tensor


@dataclass(slots=True)
class AndMore(Slotted):
    more: int = 0


@dataclass
class Labelled:
    x: torch.Tensor
    y: torch.Tensor


def test_split_of_one_sample_at_level_zero_is_the_whole_batch():
    x, y = vectors(dtype=torch.float32)
    model = mlp(torch.float32)
    opt = SSGD(SGD(model.parameters(), lr=0.1), 0.0)
    for point, (xb, _) in opt.split(x[:1], y[:1]):
        with point:
            assert xb.shape == (1, 5)


def test_excess_and_ratios_need_noise():
    model = mlp(torch.float32)
    opt = SSGD(SGD(model.parameters(), lr=0.1), 0.0)
    with pytest.raises(RuntimeError, match="every noise level is 0"):
        opt.realised_ratios()


def test_only_ssgd_has_a_noise_level_to_schedule():
    with pytest.raises(TypeError, match="SGD has no noise level"):
        NoiseSchedule(SGD(nn.Linear(2, 2).parameters(), lr=0.1), lambda t: 1.0)


def test_a_point_of_a_batch_that_was_given_up_cannot_be_entered():
    x, y = vectors(dtype=torch.float32)
    model, opt = start()
    before = weights(model)
    old = next(opt.points())  # held, and never entered
    for point in opt.points():
        with point:
            F.cross_entropy(model(x), y).backward()
    with pytest.raises(RuntimeError, match=r"a new points\(\), has ended this batch"), old:
        pass
    assert same(model, before)
    opt.step()
