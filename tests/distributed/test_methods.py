"""Every method of the registry under DDP and FSDP2."""

import io
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD

from ssgd import SSGD
from ssgd.core.point_optimizer import PointOptimizer
from ssgd.methods import METHODS, SAM, EntropySGD

from ..problems import mlp, vectors
from .by_hand import (
    Weights,
    assert_same_on_every_rank,
    gradient,
    loss_at,
    mean_over_ranks,
    momenta,
    weights_of,
    whole,
)
from .spawn import Ranks
from .test_ddp import record_reduces

INNER_STEPS = 3  # of Entropy-SGD, instead of its 20


def build(name: str, net: nn.Module, model: nn.Module, **options: object) -> PointOptimizer:
    if name == "entropy-sgd":
        options["inner_steps"] = INNER_STEPS
    if name == "sam-10":
        options["interval"] = 2
    return METHODS[name].build(SGD(net.parameters(), lr=0.1, momentum=0.9), model, **options)


def step(name: str, opt: PointOptimizer, model: nn.Module, x: Tensor, y: Tensor) -> None:
    opt.zero_grad()
    for point, (xb, yb) in METHODS[name].batches(opt, x, y):
        with point:
            F.cross_entropy(model(xb), yb).backward()
    opt.step()


@pytest.mark.parametrize("name", METHODS)
def test_ddp_keeps_replicas_alike_and_reduces_no_more_than_it_must(ranks: Ranks, name: str) -> None:
    counts = ranks(2, under_ddp, name)
    every_pass = {
        "sam": 2,
        "asam": 2,
        "sam-10": 1.5,
        "entropy-sgd": INNER_STEPS,
    }  # of the steps, as these do
    assert counts == [40 * every_pass.get(name, 1)] * 2


def under_ddp(rank: int, name: str) -> int:
    torch.manual_seed(0)
    net = mlp(torch.float32)
    if METHODS[name].transform is not None:  # a transform comes before DDP, as with any change of modules
        METHODS[name].transform(net, 0.2)
        ddp = DistributedDataParallel(net)
        opt = METHODS["base"].build(SGD(net.parameters(), lr=0.1, momentum=0.9), ddp)
    else:
        ddp = DistributedDataParallel(net)
        opt = build(name, net, ddp)
    reduced = record_reduces(ddp)
    before = weights_of(net)
    for i in range(40):
        step(name, opt, ddp, *vectors(samples=7, dtype=torch.float32, seed=2 * i + rank))
    assert_same_on_every_rank(weights_of(net))
    assert_same_on_every_rank(momenta(net, opt))
    assert any(not torch.equal(before[k], w) for k, w in weights_of(net).items())
    if hasattr(opt, "averaged"):
        assert_same_on_every_rank(weights_of(opt.averaged.module))
    return len(reduced)


# --- the perturbation acts ------------------------------------------------------------------------------------------

IN_ONE_PASS = ("one-pass", "one-pass-batch")  # no weight moves there: see test_one_pass.py
WHOLE_WEIGHTS = ("mirror", "swa", "ema")  # methods that FSDP2 refuses
STAYS = ("base", "base-2x", "sgdr", "halves", "swa", "ema")
STARTS_AT_W = ("m-arwp", "sam", "asam", "sam-10", "entropy-sgd")  # the points after the first are moved
FIRST_STEP_AT_W = ("msam", "sam-10")


def data_parallel(net: nn.Module) -> nn.Module:
    return DistributedDataParallel(net)


def sharded(net: nn.Module) -> nn.Module:
    mesh = init_device_mesh("cpu", (2,))
    for layer in (net[0], net[2]):
        fully_shard(layer, mesh=mesh)
    return fully_shard(net, mesh=mesh)


def start(name: str, parallel: Callable[[nn.Module], nn.Module], p: float = 0.2) -> tuple[nn.Module, PointOptimizer]:
    """A transform comes before DDP and FSDP2, as with any change of modules; ``p`` is its share."""
    net = mlp(torch.float64)
    method = METHODS[name]
    if method.transform is not None:
        method.transform(net, p)
        model = parallel(net)
        return model, METHODS["base"].build(SGD(net.parameters(), lr=0.1, momentum=0.9), model)
    model = parallel(net)
    seed = {"seed": 3} if "noise" in {s.name for s in method.settings} else {}
    return model, build(name, net, model, **seed)


def plain_names(weights: Weights) -> Weights:
    """Those of the net without DDP and DropConnect around its weights."""
    changes = {"module.": "", "parametrizations.": "", ".original": ""}
    for old, new in changes.items():
        weights = {key.replace(old, new): w for key, w in weights.items()}
    return weights


@pytest.mark.parametrize("name", [n for n in METHODS if n not in IN_ONE_PASS])
def test_every_pass_under_ddp_sees_its_points_weights(ranks: Ranks, name: str) -> None:
    ranks(2, losses_at_points, name, data_parallel)


@pytest.mark.parametrize("name", [n for n in METHODS if n not in (*WHOLE_WEIGHTS, *IN_ONE_PASS)])
def test_every_pass_under_fsdp_sees_its_points_weights(ranks: Ranks, name: str) -> None:
    ranks(2, losses_at_points, name, sharded)


def losses_at_points(rank: int, name: str, parallel: Callable[[nn.Module], nn.Module]) -> None:
    """The loss is that of w + n, and not that of w, in a second step as in the first."""
    model, opt = start(name, parallel)
    for i in range(2):
        opt.zero_grad()
        clean = plain_names(weights_of(model))
        moved = []
        for point, batch in METHODS[name].batches(opt, *vectors(seed=2 * i + rank)):
            with point:
                here = plain_names(weights_of(model))
                loss = F.cross_entropy(model(batch[0]), batch[1])
                loss.backward()
            moved.append(abs(float(loss) - loss_at(mlp(), clean, batch)) > 1e-6)
            if METHODS[name].transform is None:
                assert float(loss) == pytest.approx(loss_at(mlp(), here, batch), rel=1e-12)
        opt.step()
        moves = name not in STAYS and (i > 0 or name not in FIRST_STEP_AT_W)
        assert moved == [moves and (k > 0 or name not in STARTS_AT_W) for k in range(len(moved))]
        assert any(moved) == moves


@pytest.mark.parametrize("parallel", [data_parallel, sharded])
def test_entropy_sgds_inner_steps_are_noisy(ranks: Ranks, parallel: Callable[[nn.Module], nn.Module]) -> None:
    ranks(2, thermal_noise, parallel)


def thermal_noise(rank: int, parallel: Callable[[nn.Module], nn.Module]) -> None:
    """The second point is w − η′ ∇f and noise of the size √η′ ε: the descent alone would move the loss too."""
    model, opt = start("entropy-sgd", parallel)
    settings = {s.name: s.default for s in METHODS["entropy-sgd"].settings}
    iterates = []
    for point in opt.points():
        with point:
            iterates.append(plain_names(weights_of(model)))
            x, y = vectors(seed=rank)
            F.cross_entropy(model(x), y).backward()
    w = iterates[0]
    slope = mean_over_ranks(gradient(mlp(), w, vectors(seed=rank)))
    noise = torch.cat([(iterates[1][k] - w[k] + settings["inner_lr"] * slope[k]).flatten() for k in w])
    assert float(noise.std()) == pytest.approx(settings["inner_lr"] ** 0.5 * settings["noise"], rel=0.3)


# --- SAM ------------------------------------------------------------------------------------------------------------


def test_sam_with_a_slope_of_its_own_on_each_rank_reduces_once(ranks: Ranks) -> None:
    assert ranks(2, own_slopes) == [10, 10]


def own_slopes(rank: int) -> int:
    net = mlp(torch.float32)
    ddp = DistributedDataParallel(net)
    opt = SAM(SGD(net.parameters(), lr=0.1, momentum=0.9), 0.1, model=ddp, reduce_slope=False)
    reduced = record_reduces(ddp)
    for i in range(10):
        step("sam", opt, ddp, *vectors(dtype=torch.float32, seed=2 * i + rank))
    assert_same_on_every_rank(weights_of(net))
    return len(reduced)


@pytest.mark.parametrize("set_to_none", [True, False])
def test_sams_slope_stays_out_of_gradients_that_lie_in_ddps_buckets(ranks: Ranks, set_to_none: bool) -> None:
    ranks(2, slopes_and_buckets, set_to_none)


def slopes_and_buckets(rank: int, set_to_none: bool) -> None:
    """With gradient_as_bucket_view, p.grad is memory that the next pass writes to."""
    trained = []
    for in_buckets in (False, True):
        net = mlp(torch.float64)
        ddp = DistributedDataParallel(net, gradient_as_bucket_view=in_buckets)
        opt = SAM(SGD(net.parameters(), lr=0.1), 0.1, model=ddp)
        for i in range(3):
            for x, y in (vectors(seed=4 * i + 2 * k + rank) for k in range(2)):
                for point in opt.points():
                    with point:
                        F.cross_entropy(ddp(x), y).backward()
            opt.step()
            opt.zero_grad(set_to_none=set_to_none)
        assert_same_on_every_rank(weights_of(net))
        trained.append(weights_of(net))
    for key, w in trained[0].items():
        torch.testing.assert_close(trained[1][key], w, rtol=1e-10, atol=1e-12)


WRAPPED = {
    "alone": lambda net, mesh: net,
    "DDP": lambda net, mesh: DistributedDataParallel(net),
    "DDP, bucket view": lambda net, mesh: DistributedDataParallel(net, gradient_as_bucket_view=True),
    "FSDP2": lambda net, mesh: fully_shard(net, mesh=mesh),
    "tensor parallel": lambda net, mesh: parallelize_module(
        net, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()}
    ),
}


@pytest.mark.parametrize("clear", ["to none", "in place", "never"])
@pytest.mark.parametrize("how", [how for how in WRAPPED if how != "alone"])
def test_sams_closure_may_clear_gradients_or_not(ranks: Ranks, how: str, clear: str) -> None:
    ranks(2, closure_that_clears, how, clear)


def closure_that_clears(rank: int, how: str, clear: str) -> None:
    """As in one process with the same batch."""
    trained = []
    for here in ("alone", how):
        net = mlp(torch.float64)
        model = WRAPPED[here](net, init_device_mesh("cpu", (2,)))
        opt = SAM(SGD(net.parameters(), lr=0.1), 0.1, model=model)

        def closure(net: nn.Module = net, model: nn.Module = model) -> Tensor:
            if clear != "never":
                net[0].zero_grad(set_to_none=clear == "to none")
                net[2].zero_grad(set_to_none=clear == "to none")
            x, y = vectors()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            return loss

        for _ in range(3):
            opt.step(closure)
        assert not any(p._backward_hooks or p._post_accumulate_grad_hooks for p in net.parameters())
        trained.append([whole(p) for p in net.parameters()])
    for p, q in zip(*trained, strict=True):
        torch.testing.assert_close(p, q, rtol=1e-9, atol=1e-11)


def test_both_points_of_sharded_weights_are_refused(ranks: Ranks) -> None:
    ranks(2, both_points_refused)


def both_points_refused(rank: int) -> None:
    net = fully_shard(mlp(torch.float32), mesh=init_device_mesh("cpu", (2,)))
    opt = SSGD(SGD(net.parameters(), lr=0.1), 0.1, model=net)
    with pytest.raises(ValueError, match=r"both_points\(\) needs whole tensors"):
        opt.both_points()


# --- FSDP2 ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [n for n in METHODS if n not in (*WHOLE_WEIGHTS, *IN_ONE_PASS)])
def test_fsdp_trains_and_restores(ranks: Ranks, name: str) -> None:
    ranks(2, under_fsdp, name)


def under_fsdp(rank: int, name: str) -> None:
    """Weights bitwise clean after the passes, and resume bitwise."""
    net, opt = start(name, sharded)
    batches = [vectors(seed=2 * i + rank) for i in range(4)]
    for batch in batches[:2]:
        step(name, opt, net, *batch)
    opt.zero_grad()
    before = weights_of(net)
    for point, (xb, yb) in METHODS[name].batches(opt, *batches[2]):
        with point:
            F.cross_entropy(net(xb), yb).backward()
    for key, w in weights_of(net).items():
        assert torch.equal(w, before[key]), key
    opt.zero_grad()

    file = io.BytesIO()
    torch.save(opt.state_dict(), file)
    file.seek(0)
    again, again_opt = start(name, sharded)
    with torch.no_grad():
        for p, q in zip(again.parameters(), net.parameters(), strict=True):
            p.copy_(q)
    again_opt.load_state_dict(torch.load(file, weights_only=True))
    for n, o in ((net, opt), (again, again_opt)):
        torch.manual_seed(rank)  # dropout's masks
        step(name, o, n, *batches[3])
    for p, q in zip(net.parameters(), again.parameters(), strict=True):
        assert torch.equal(whole(p), whole(q))


@pytest.mark.parametrize("name", ["base", "sam", "asam", "halves", "dropout", "dropconnect"])
def test_fsdp_without_noise_trains_as_a_whole_net_does(ranks: Ranks, name: str) -> None:
    ranks(2, beside_a_whole_net, name)


def beside_a_whole_net(rank: int, name: str) -> None:
    """The same batch on both ranks: the mean over ranks is what one process gets. Nothing is dropped."""
    net, opt = start(name, sharded, p=0.0)
    alone = mlp(torch.float64)
    plain = name if METHODS[name].transform is None else "base"
    alone_opt = METHODS[plain].build(SGD(alone.parameters(), lr=0.1, momentum=0.9), alone)
    for i in range(5):
        step(name, opt, net, *vectors(seed=i))
        step(plain, alone_opt, alone, *vectors(seed=i))
    trained = plain_names(weights_of(net))
    for key, p in alone.named_parameters():
        torch.testing.assert_close(trained[key], p, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("name", ["swa", "ema"])
def test_averages_of_sharded_models_are_refused_by_name(ranks: Ranks, name: str) -> None:
    ranks(2, averages_refused, name)


def averages_refused(rank: int, name: str) -> None:
    net = fully_shard(mlp(torch.float32), mesh=init_device_mesh("cpu", (2,)))
    with pytest.raises(ValueError, match="averages of sharded models are not served"):
        build(name, net, net)


def entropy_sgd_alone(rank: int) -> None:
    net = nn.Linear(3, 2)
    with pytest.raises(ValueError, match="with whom it shares its noise: pass model="):
        EntropySGD(SGD(net.parameters(), lr=0.1), 0.1)
    EntropySGD(SGD(net.parameters(), lr=0.1), 0.1, seed=1)


def test_entropy_sgd_must_know_with_whom_it_shares_its_noise(ranks: Ranks) -> None:
    ranks(2, entropy_sgd_alone)
