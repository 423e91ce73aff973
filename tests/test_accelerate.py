"""S-SGD in a loop that Accelerate drives is the same loop without it."""

import importlib
import sys
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch.optim import SGD
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, TensorDataset

pytest.importorskip("accelerate", reason="accelerate is missing: pip install 'ssgd[accelerate]'")

from accelerate import Accelerator, DistributedType
from accelerate.state import AcceleratorState, GradientState

from ssgd import SSGD
from ssgd.integrations import accelerate as integration
from ssgd.integrations.accelerate import prepare

from .problems import mlp, same, vectors, weights

WAYS = ("points", "split")


@pytest.fixture(autouse=True)
def fresh_state():
    """Accelerate keeps its settings for the life of the process."""
    forget()
    yield
    forget()


def forget():
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


def parts(noise=0.3):
    """A net, its optimizer, batches and a schedule."""
    model = mlp(torch.float32)
    base = SGD(model.parameters(), lr=0.1, momentum=0.9)
    opt = base if noise is None else SSGD(base, noise, seed=1)
    return model, opt, DataLoader(TensorDataset(*vectors(32, torch.float32)), batch_size=4), StepLR(opt, 2)


def passes(opt, way, model, backward, x, y):
    """One batch, by points() or split(), or plainly."""
    if way == "plain":
        backward(F.cross_entropy(model(x), y))
    elif way == "points":
        for point in opt.points():
            with point:
                backward(F.cross_entropy(model(x), y))
    else:
        for point, (xb, yb) in opt.split(x, y):
            with point:
                backward(F.cross_entropy(model(xb), yb))


def epoch(accelerator, model, opt, loader, schedule, way, clip=0.5):
    for x, y in loader:
        with accelerator.accumulate(model):
            passes(opt, way, model, accelerator.backward, x, y)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), clip)
            opt.step()
            schedule.step()
            opt.zero_grad()


def by_hand(way, accumulated, precision="no"):
    model, opt, loader, schedule = parts()
    for i, (x, y) in enumerate(loader, start=1):
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            passes(opt, way, model, lambda loss: (loss.float() / accumulated).backward(), x, y)
        if i % accumulated == 0:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            opt.step()
            schedule.step()
            opt.zero_grad()
    return model


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("accumulated", "precision"), [(1, "no"), (2, "no"), (2, "bf16")])
def test_is_the_loop_of_points_bitwise(way, accumulated, precision):
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=accumulated, mixed_precision=precision)
    model, opt, loader, schedule = prepare(accelerator, *parts())
    epoch(accelerator, model, opt, loader, schedule, way)
    assert same(model, by_hand(way, accumulated, precision))
    assert opt.param_groups[0]["noise_step"] == 8 // accumulated


@pytest.mark.parametrize("way", WAYS)
def test_level_zero_is_the_plain_run_bitwise(way):
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    plain, zero = accelerator.prepare(*parts(None)), prepare(accelerator, *parts(0.0))
    epoch(accelerator, *plain, "plain")
    epoch(accelerator, *zero, way)
    assert same(zero[0], plain[0]) and not same(plain[0], mlp(torch.float32))


def test_accelerates_own_prepare_serves_one_device():
    accelerator = Accelerator(cpu=True)
    model, opt, loader, schedule = accelerator.prepare(*parts())
    opt.points = opt.optimizer.points  # what prepare() does
    epoch(accelerator, model, opt, loader, schedule, "points")
    assert same(model, by_hand("points", 1))


@pytest.mark.parametrize("way", WAYS)
def test_resume_is_exact(way, tmp_path):
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model, opt, loader, schedule = prepare(accelerator, *parts())
    epoch(accelerator, model, opt, loader, schedule, way)
    accelerator.save_state(str(tmp_path))
    epoch(accelerator, model, opt, loader, schedule, way)
    whole = weights(model)

    forget()
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model, opt, loader, schedule = prepare(accelerator, *parts(noise=0.1))
    accelerator.load_state(str(tmp_path))
    epoch(accelerator, model, opt, loader, schedule, way)
    assert same(model, whole) and opt.param_groups[0]["noise"] == 0.3


@pytest.mark.parametrize("way", WAYS)
def test_a_grad_scaler(way):
    """As float16 has it on a GPU: an overflow skips the step, and the noise moves on."""
    accelerator = Accelerator(cpu=True)
    accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    model, opt, loader, _ = prepare(accelerator, *parts())
    plain_model, plain, *_ = parts()
    for i, (x, y) in enumerate(loader):
        passes(opt, way, model, accelerator.backward, x, y)
        passes(plain, way, plain_model, torch.Tensor.backward, x, y)
        if i == 2:
            model[0].weight.grad[0, 0] = float("inf")
        else:
            plain.step()
        opt.step()
        assert opt.step_was_skipped == (i == 2)
        opt.zero_grad()
        plain.zero_grad()
    for p, q in zip(model.parameters(), plain_model.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-7)


def test_a_step_without_points_is_refused():
    accelerator = Accelerator(cpu=True)
    with pytest.raises(RuntimeError, match=r"run forward and backward inside points\(\)"):
        epoch(accelerator, *prepare(accelerator, *parts()), "plain")


def test_each_optimizer_is_told_of_its_own_model():
    accelerator = Accelerator(cpu=True)
    one, first, *_ = parts()
    other, second, *_ = parts()
    _, first, _, second = prepare(accelerator, other, first, one, second)
    assert first.optimizer.model is one and second.optimizer.model is other


@pytest.mark.parametrize(
    ("kind", "remedy"),
    [
        (DistributedType.FSDP, "use FSDP2, with"),
        (DistributedType.DEEPSPEED, "DEEPSPEED steps on weights of its own.+use DDP or FSDP2"),
        (DistributedType.MEGATRON_LM, "use DDP or FSDP2"),
    ],
)
def test_weights_out_of_reach(kind, remedy):
    with pytest.raises(ValueError, match=remedy):
        prepare(SimpleNamespace(distributed_type=kind, is_fsdp2=False), *parts())


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "accelerate", None)
    with pytest.raises(ImportError, match=r"pip install 'ssgd\[accelerate\]'"):
        importlib.reload(integration)
