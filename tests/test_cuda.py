"""What only a CUDA device can show: graphs, compiled models, loss scaling, cuDNN's LSTM, synchronisation, memory.

Without pytest: PYTHONPATH=src python tests/test_cuda.py
"""

from __future__ import annotations

import copy
import gc
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD, Adam, Optimizer

from ssgd import SSGD, Distribution

try:
    import pytest

    pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
except ImportError:  # then the last lines run the tests
    pass

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # the same products on every stream

DEVICE = "cuda"
WARM_UP = 3


# --- graphs ---------------------------------------------------------------------------------------------------------


def test_graph_of_points_is_the_eager_step() -> None:
    graph_is_the_eager_step(mlp, "points")
    graph_is_the_eager_step(conv_net, "points")


def test_graph_of_split_is_the_eager_step() -> None:
    graph_is_the_eager_step(mlp, "split")
    graph_is_the_eager_step(conv_net, "split")


def test_graph_of_one_pass_is_the_eager_step() -> None:
    graph_is_the_eager_step(mlp, "one_pass")
    graph_is_the_eager_step(conv_net, "one_pass")
    graph_is_the_eager_step(mlp, "one_pass", stream="torch", distribution=Distribution("half", half_normal))


def test_graph_of_a_closure_is_the_eager_step() -> None:
    graph_is_the_eager_step(mlp, "closure")
    graph_is_the_eager_step(conv_net, "closure")


def test_graph_with_a_number_and_a_tensor_as_levels_is_the_eager_step() -> None:
    def two_groups(parameters: Any, lr: Tensor) -> Optimizer:
        first, *rest = parameters
        return SGD([{"params": [first], "noise": 0.3}, {"params": rest}], lr=lr, momentum=0.9, fused=True)

    graph_is_the_eager_step(mlp, "points", base=two_groups)


def test_what_a_graph_cannot_hold_is_refused_while_capturing() -> None:
    def refused(sentence: str, misuse: Callable[[Run], None], **options: Any) -> None:
        run = Run(mlp, "points", **options)
        run.step()
        run.opt.zero_grad()
        before = clones(run.net.parameters())
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        run.opt.register_graph(graph)
        try:
            with torch.cuda.graph(graph):
                misuse(run)
        except RuntimeError as error:
            assert sentence in str(error), error
        else:
            raise AssertionError(f"not refused: {sentence}")
        torch.cuda.synchronize()
        assert all_equal(before, run.net.parameters())

    def accumulate(run: Run) -> None:
        for _ in range(2):
            for point in run.opt.points():
                with point:
                    F.cross_entropy(run.net(run.x), run.y).backward()

    refused("a CUDA graph holds one batch a step", accumulate)
    refused("puts random states back on the host", Run.step, rng="same")
    refused("in a CUDA graph needs 'skip' and a fused base", Run.step, nonfinite="raise")


def test_graph_of_two_pairs_is_the_eager_step() -> None:
    graph_is_the_eager_step(mlp, "points", pairs=2)
    graph_is_the_eager_step(conv_net, "points", pairs=2)


def test_graph_of_every_distribution_is_the_eager_step() -> None:
    graph_is_the_eager_step(mlp, "points", distribution="sign")
    graph_is_the_eager_step(mlp, "points", distribution="uniform")


def test_graph_of_noise_made_by_torch_is_the_eager_step() -> None:
    graph_is_the_eager_step(mlp, "points", stream="torch", pairs=2, distribution=Distribution("half", half_normal))
    graph_is_the_eager_step(mlp, "split", stream="torch", distribution=Distribution("half", half_normal))


def test_graph_registered_before_the_warm_up_is_the_eager_step() -> None:
    graph_is_the_eager_step(mlp, "points", pairs=2, register_first=True)


def test_graph_outlives_a_change_of_the_weights_that_move() -> None:
    def two_groups(parameters: Any, lr: Tensor) -> Optimizer:
        first, *rest = parameters
        return SGD([{"params": [first], "noise": 0.3}, {"params": rest}], lr=lr, momentum=0.9, fused=True)

    with deterministic():
        changed, plain = (Run(mlp, "points", two_groups) for _ in range(2))
        replays = [run.captured() for run in (changed, plain)]
        group = changed.opt.param_groups[0]
        for level in (0.0, 0.3):  # what the graph reads is now made anew, twice
            group["noise"] = level
            changed.opt.realised_ratios()
        gc.collect()
        junk = [torch.full((64,), -1, device=DEVICE) for _ in range(1000)]  # where it was, if it was freed
        for replay in replays:
            replay()
        assert all_equal(everything(changed.opt, changed.net), everything(plain.opt, plain.net))
        del junk


def test_graph_that_skips_nonfinite_gradients_is_the_eager_step() -> None:
    graph_is_the_eager_step(mlp, "points", nonfinite="skip")


def test_graph_of_capturable_adam_is_the_eager_step() -> None:
    def adam(parameters: Any, lr: Tensor) -> Optimizer:
        return Adam(parameters, lr=lr, fused=True, capturable=True)

    graph_is_the_eager_step(mlp, "points", base=adam)


def test_graph_follows_learning_rate_and_level() -> None:
    run = Run(mlp, "points")
    replay = run.captured()

    run.lr.fill_(0.0)
    before = clones(run.net.parameters())
    replay()
    assert all_equal(before, run.net.parameters())
    run.lr.fill_(0.1)
    replay()
    assert not any(torch.equal(a, b) for a, b in zip(before, run.net.parameters(), strict=True))

    run.lr.fill_(0.0)
    plain = torch.autograd.grad(F.cross_entropy(run.net(run.x), run.y), list(run.net.parameters()))
    run.level.fill_(0.0)
    replay()
    for gradient, parameter in zip(plain, run.net.parameters(), strict=True):
        torch.testing.assert_close(parameter.grad, gradient)
    run.level.fill_(0.5)
    replay()
    weights = [(g, p) for g, p in zip(plain, run.net.parameters(), strict=True) if p.dim() > 1]
    assert not any(torch.allclose(g, p.grad) for g, p in weights if p.grad is not None)


def test_graph_draws_new_noise_at_every_replay() -> None:
    run = Run(mlp, "points")
    replay = run.captured()
    run.lr.fill_(0.0)
    gradients = []
    for _ in range(2):
        replay()
        gradients.append(clones(p.grad for p in run.net.parameters() if p.grad is not None))
    assert not any(torch.equal(a, b) for a, b in zip(*gradients, strict=True))


# --- noise ----------------------------------------------------------------------------------------------------------


def test_noise_has_its_distribution_and_the_pair_is_symmetric() -> None:
    for distribution in ("sphere", "sign", "uniform", "gaussian"):
        for dtype, rounding in ((torch.float32, 1e-6), (torch.bfloat16, 1e-2), (torch.float16, 1e-3)):
            found = [
                noise
                for shift in (0, 1)
                for noise in pairs_of_noise(odd_tensors(dtype, shift), distribution=distribution)
            ]
            for w, plus, minus in found:
                n, m = plus - w, minus - w
                torch.testing.assert_close(n, -m, rtol=0, atol=8 * rounding)
                norm, rms = w.norm(), w.norm() / w.numel() ** 0.5
                if distribution != "gaussian" and not norm:
                    assert not n.any()
                elif distribution in ("sphere", "sign"):
                    assert abs(n.norm() / norm - 0.2) < rounding, (distribution, dtype, n.norm() / norm)
                if distribution == "sign":
                    torch.testing.assert_close(n.abs(), (0.2 * rms).expand_as(n), rtol=0, atol=8 * rounding)
                if distribution == "uniform":
                    assert (n.abs() <= 0.2 * 3**0.5 * rms + 8 * rounding).all()


def test_normal_noise_is_normal_and_its_elements_independent() -> None:
    w = torch.zeros(1000, 1003, device=DEVICE, requires_grad=True)
    ((_, plus, _),) = pairs_of_noise([w], 1.0, distribution="gaussian")
    z = plus.flatten()
    sigma = len(z) ** -0.5
    assert abs(z.mean()) < 5 * sigma
    assert abs(z.var() - 1) < 5 * 2**0.5 * sigma
    assert abs((z**4).mean() - 3) < 5 * 96**0.5 * sigma
    assert 4 < z.abs().max() < 7
    for lag in (1, 2, 3, 4, 8, 128, 512, 1024, 2048):
        assert abs((z[lag:] * z[:-lag]).mean()) < 5 * sigma, lag
        assert abs((z[lag:] ** 2 * z[:-lag] ** 2).mean() - 1) < 5 * 8**0.5 * sigma, lag


def test_a_tensor_of_many_blocks_has_exactly_the_level() -> None:
    w = torch.randn(3001, 1999, device=DEVICE, requires_grad=True)  # more blocks than programs
    for clean, *ends in pairs_of_noise([w]):
        assert all(abs((end - clean).norm() / clean.norm() - 0.2) < 1e-6 for end in ends)


def test_a_late_backward_is_refused() -> None:
    net, (x, y) = mlp().to(DEVICE), batch()
    opt = fused(SSGD(SGD(net.parameters(), lr=0.1), 0.1))
    before = clones(net.parameters())
    try:
        for point in opt.points():
            with point:
                loss = F.cross_entropy(net(x), y)
            loss.backward()
    except RuntimeError as error:
        assert "modified by an inplace operation" in str(error), error
    else:
        raise AssertionError("not refused")
    assert all_equal(before, net.parameters())


def test_ratios_are_those_of_the_noise() -> None:
    net, (x, y) = mlp().to(DEVICE), batch()
    opt = fused(SSGD(SGD(net.parameters(), lr=0.1), 0.1))
    before = clones(net.parameters())
    for ratio in opt.realised_ratios():
        assert abs(ratio - 0.1) < 1e-6
    opt.symmetric_excess(lambda: F.cross_entropy(net(x), y))
    assert all_equal(before, net.parameters())


# --- compiled models ------------------------------------------------------------------------------------------------


def test_second_step_of_points_does_not_recompile() -> None:
    second_step_does_not_recompile("points")


def test_second_step_of_split_does_not_recompile() -> None:
    second_step_does_not_recompile("split")


# --- precision ------------------------------------------------------------------------------------------------------


def test_loss_scaling_with_a_foreach_base() -> None:
    loss_scaling_skips_an_overflow({"foreach": True})


def test_loss_scaling_with_a_fused_base() -> None:
    loss_scaling_skips_an_overflow({"fused": True})


def test_loss_scaling_is_the_same_with_fused_and_foreach_bases() -> None:
    fused, foreach = ScaledRun({"fused": True}), ScaledRun({"foreach": True})
    for i in range(6):
        for run in (fused, foreach):
            run.step(factor=float("inf") if i == 3 else 1.0)
    assert fused.scaler.get_scale() == foreach.scaler.get_scale()
    for a, b in zip(fused.net.parameters(), foreach.net.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_one_autocast_block_around_both_points() -> None:
    gradients = []
    for around_both in (True, False):
        torch.manual_seed(0)
        net, (x, y) = mlp().to(DEVICE), batch()
        opt = SSGD(SGD(net.parameters(), lr=0.1), 0.3, seed=0)
        with torch.autocast(DEVICE, torch.bfloat16, enabled=around_both):
            for point in opt.points():
                with point, torch.autocast(DEVICE, torch.bfloat16):
                    F.cross_entropy(net(x), y).backward()
        gradients.append([p.grad for p in net.parameters()])
    assert all_equal(*gradients)


def test_several_devices_and_dtypes() -> None:
    torch.manual_seed(0)
    net = Mixed()
    x, y = torch.randn(16, 8), torch.randint(4, (16,), device=DEVICE)
    opt = SSGD(SGD(net.parameters(), lr=0.1, momentum=0.9, foreach=True), 0.2)
    clean = clones(net.parameters())
    expected = [torch.zeros_like(p) for p in clean]
    ends = []
    for point in opt.points():
        with point:
            ends.append(clones(net.parameters()))
            F.cross_entropy(net(x), y).backward()
            twin = copy.deepcopy(net)
            gradients = torch.autograd.grad(F.cross_entropy(twin(x), y), list(twin.parameters()))
            for total, gradient in zip(expected, gradients, strict=True):
                total += gradient / 2
        assert all_equal(clean, net.parameters())
    for w, plus, minus in zip(clean, *ends, strict=True):
        rounding = 1e-2 if w.dtype == torch.bfloat16 else 1e-5
        if w.dim() < 2:
            assert torch.equal(w, plus) and torch.equal(w, minus)
            continue
        assert abs((plus - w).float().norm() / w.float().norm() - 0.2) < rounding
        torch.testing.assert_close((plus - w).float(), (w - minus).float(), rtol=0, atol=rounding)
    for parameter, gradient in zip(net.parameters(), expected, strict=True):
        rounding = 2e-2 if parameter.dtype == torch.bfloat16 else 1e-4
        torch.testing.assert_close(parameter.grad, gradient, rtol=rounding, atol=rounding)
    opt.step()
    assert not any(torch.equal(a, b) for a, b in zip(clean, net.parameters(), strict=True))


# --- layers ---------------------------------------------------------------------------------------------------------


def test_cudnn_lstm_runs_with_the_moved_weights() -> None:
    torch.manual_seed(0)
    lstm = nn.LSTM(16, 32, num_layers=2).to(DEVICE)
    on_cpu = nn.LSTM(16, 32, num_layers=2)
    x = torch.randn(5, 8, 16, device=DEVICE)
    opt = SSGD(SGD(lstm.parameters(), lr=0.1), 0.5)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*contiguous chunk of memory.*")
        clean, addresses = lstm(x)[0].detach(), [p.data_ptr() for p in lstm._flat_weights]
        outputs = []
        for point in opt.points():
            with point:
                output = lstm(x)[0]
                output.square().mean().backward()
                outputs.append(output.detach())
                on_cpu.load_state_dict(lstm.state_dict())
                torch.testing.assert_close(output.detach().cpu(), on_cpu(x.cpu())[0].detach(), rtol=0, atol=1e-2)
        assert torch.equal(lstm(x)[0], clean)
        opt.step()
        assert not torch.equal(lstm(x)[0], clean)
    assert [p.data_ptr() for p in lstm._flat_weights] == addresses
    assert all((output - clean).abs().max() > 0.05 for output in outputs)


def test_dropout_masks_are_the_same_or_independent() -> None:
    for rng in ("same", "independent"):
        torch.manual_seed(0)
        net, (x, y) = mlp().to(DEVICE), batch()
        opt = SSGD(SGD(net.parameters(), lr=0.1), 0.1, rng=rng)
        masks = []
        for point in opt.points():
            with point:
                masks.append(F.dropout(torch.ones(1000, device=DEVICE)))
                F.cross_entropy(net(x), y).backward()
        assert torch.equal(*masks) == (rng == "same")


def test_an_lstm_that_lays_out_its_weights_in_every_pass_gets_them_back() -> None:
    torch.manual_seed(0)
    lstm = nn.LSTM(16, 32, num_layers=2).to(DEVICE)
    opt = SSGD(SGD(lstm.parameters(), lr=0.0), 0.5)
    before = [p.detach().clone() for p in lstm.parameters()]
    x = torch.randn(5, 3, 16, device=DEVICE)
    moved: list[Tensor] = []
    for _ in range(3):
        for point in opt.points():
            with point:
                lstm.flatten_parameters()  # new memory for all of them
                lstm(x)[0].square().sum().backward()
                moved.append(lstm.weight_hh_l1.detach().clone())
        opt.step()
        opt.zero_grad()
    assert all(torch.equal(p, b) for p, b in zip(lstm.parameters(), before, strict=True))
    clean = dict(lstm.named_parameters())["weight_hh_l1"].detach()
    torch.testing.assert_close(moved[0] - clean, clean - moved[1])
    assert not torch.equal(moved[0], clean)


def test_noise_does_not_draw_from_the_global_stream() -> None:
    net, (x, y) = mlp().to(DEVICE), batch()
    opt = SSGD(SGD(net.parameters(), lr=0.1), 0.1)
    before = torch.cuda.get_rng_state()
    take_step(opt, net, x, y, "points")
    assert torch.equal(before, torch.cuda.get_rng_state())


# --- synchronisation and memory -------------------------------------------------------------------------------------


def test_points_and_split_do_not_make_the_host_wait() -> None:
    cases: list[dict[str, Any]] = [{}, {"distribution": "sign"}, {"distribution": "uniform"}]
    for kernel in ({"foreach": True}, {"fused": True}):
        for level in (0.1, torch.tensor(0.1, device=DEVICE)):
            for options in cases:
                net, (x, y) = mlp().to(DEVICE), batch()
                opt = SSGD(SGD(net.parameters(), lr=0.1, momentum=0.9, **kernel), level, **options)
                for way in ("points", "split"):
                    take_step(opt, net, x, y, way)
                with no_synchronisation():
                    for way in ("points", "split"):
                        take_step(opt, net, x, y, way)


def test_skipping_with_a_fused_base_does_not_make_the_host_wait() -> None:
    net, (x, y) = mlp().to(DEVICE), batch()
    opt = SSGD(SGD(net.parameters(), lr=0.1, momentum=0.9, fused=True), 0.1, nonfinite="skip")
    good, bad = torch.tensor(1.0, device=DEVICE), torch.tensor(float("nan"), device=DEVICE)
    take_step(opt, net, x, y, "points", factor=good)
    before = clones(everything(opt, net))
    with no_synchronisation():
        take_step(opt, net, x, y, "points", factor=bad)
    assert all_equal(before, everything(opt, net))
    with no_synchronisation():
        take_step(opt, net, x, y, "points", factor=good)
    assert not any(torch.equal(a, b) for a, b in zip(before, everything(opt, net), strict=True))


def test_a_pass_holds_one_copy_of_the_selected_weights() -> None:
    net, (x, y) = mlp(width=512).to(DEVICE), batch()
    opt = SSGD(SGD(net.parameters(), lr=0.1, momentum=0.9), 0.1)
    selected = sum(p.numel() * p.element_size() for p in opt.selected)
    take_step(opt, net, x, y, "points")
    opt.zero_grad()
    gc.collect()
    between_steps = requested_bytes()
    gradients = sum(p.numel() * p.element_size() for p in net.parameters())
    for point in opt.points():
        with point:
            assert requested_bytes() - between_steps - point.index * gradients <= selected
            F.cross_entropy(net(x), y).backward()
    opt.step()
    opt.zero_grad()
    gc.collect()
    assert requested_bytes() == between_steps


def test_two_points_never_hold_more_than_one_copy_of_the_selected_weights() -> None:
    net = nn.Sequential(*[nn.Linear(4096, 4096) for _ in range(3)]).to(DEVICE)  # 50 million
    opt = fused(SSGD(SGD(net.parameters(), lr=0.1), 0.1))
    selected = sum(p.numel() * p.element_size() for p in opt.selected)
    for counted in (False, True):  # the first round builds what stays
        before = requested_bytes()
        torch.cuda.reset_peak_memory_stats()
        for point in opt.points():
            with point:
                pass
        opt.zero_grad()
        peak = torch.cuda.memory_stats()["requested_bytes.all.peak"] - before
        assert not counted or selected <= peak <= 1.05 * selected, peak / selected
        assert not counted or requested_bytes() == before


# --- below here: how ------------------------------------------------------------------------------------------------


def graph_is_the_eager_step(
    make_net: Callable[[], nn.Module],
    way: str,
    base: Callable[[Any, Tensor], Optimizer] | None = None,
    steps: int = 5,
    stream: str = "philox",
    register_first: bool = False,
    **options: Any,
) -> None:
    """Replays equal eager steps bit for bit, with another batch, learning rate and level at each."""
    with deterministic():
        graph, eager = (Run(make_net, way, base, **options) for _ in range(2))
        assert graph.opt.state_dict()["noise_stream"] == stream
        replay = graph.captured(register_first)
        for _ in range(WARM_UP):
            eager.step()
        for i in range(steps):
            x, y = torch.randn_like(graph.x), torch.randint_like(graph.y, 10)
            for run in (graph, eager):
                run.x.copy_(x)
                run.y.copy_(y)
                run.lr.fill_(0.1 / (i + 1))
                run.level.fill_(0.05 * (i + 1))
            replay()
            eager.step()
            assert all_equal(everything(graph.opt, graph.net), everything(eager.opt, eager.net)), f"step {i}"
            assert graph.opt.param_groups[0]["noise_step"] == eager.opt.param_groups[0]["noise_step"]


class Run:
    """A net, a batch and S-SGD, learning rate and level being tensors on the device."""

    def __init__(
        self,
        make_net: Callable[[], nn.Module],
        way: str,
        base: Callable[[Any, Tensor], Optimizer] | None = None,
        **options: Any,
    ) -> None:
        torch.manual_seed(0)
        self.net = make_net().to(DEVICE)
        self.x, self.y = batch()
        self.lr, self.level = torch.tensor(0.1, device=DEVICE), torch.tensor(0.2, device=DEVICE)
        make_base = base or fused_sgd
        self.opt = SSGD(make_base(self.net.parameters(), self.lr), self.level, model=self.net, seed=0, **options)
        self.way = way

    def step(self) -> None:
        take_step(self.opt, self.net, self.x, self.y, self.way)

    def captured(self, register_first: bool = False) -> Callable[[], None]:
        """Replays one step; WARM_UP steps are taken before."""
        graph = torch.cuda.CUDAGraph()
        if register_first:
            self.opt.register_graph(graph)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARM_UP):
                self.step()
        torch.cuda.current_stream().wait_stream(side)
        if not register_first:
            self.opt.register_graph(graph)
        with torch.cuda.graph(graph):
            self.step()

        def replay() -> None:
            self.opt.before_replay()
            graph.replay()

        return replay


def pairs_of_noise(parameters: list[Tensor], level: float = 0.2, **options: Any) -> list[tuple[Tensor, ...]]:
    """w, w + n and w − n of each parameter in double precision, w back bit for bit after each."""
    opt = fused(SSGD(SGD(parameters, lr=0.1), level, perturb=parameters, seed=0, **options))
    clean = clones(parameters)
    ends = []
    for point in opt.points():
        with point:
            ends.append([p.detach().double() for p in parameters])
        assert all_equal(clean, parameters)
    return list(zip([w.double() for w in clean], *ends, strict=True))


def odd_tensors(dtype: torch.dtype, shift: int) -> list[Tensor]:
    """One element, parts of a block, whole blocks, zeros, none; all begin ``shift`` elements off an even address."""
    torch.manual_seed(0)
    found = []
    for shape in ((1, 1), (3, 5), (64, 64), (101, 103), (7, 7), (0, 3)):
        values = torch.randn(shape, device=DEVICE) * (shape != (7, 7))
        room = torch.empty(values.numel() + shift, dtype=dtype, device=DEVICE)
        found.append(room[shift:].view(shape).copy_(values).requires_grad_())
    return found


def fused(opt: SSGD) -> SSGD:
    assert opt.state_dict()["noise_stream"] == "philox", "the kernels are not used"
    return opt


def half_normal(z: Tensor, generator: torch.Generator) -> None:
    z.normal_(generator=generator).abs_()


def second_step_does_not_recompile(way: str) -> None:
    torch.compiler.reset()
    torch.manual_seed(0)
    net = conv_net().to(DEVICE)
    compiled = torch.compile(net)
    x, y = batch()
    opt = SSGD(SGD(net.parameters(), lr=0.1, momentum=0.9, fused=True), 0.1)
    take_step(opt, compiled, x, y, way)
    with torch.compiler.set_stance("fail_on_recompile"):
        for _ in range(3):
            take_step(opt, compiled, x, y, way)
    torch.compiler.reset()


class ScaledRun:
    """fp16 autocast with a GradScaler."""

    def __init__(self, kernel: dict[str, bool]) -> None:
        torch.manual_seed(0)
        self.net, (self.x, self.y) = mlp().to(DEVICE), batch()
        self.opt = SSGD(SGD(self.net.parameters(), lr=0.1, momentum=0.9, **kernel), 0.1, seed=0)
        self.scaler = torch.amp.GradScaler(DEVICE, init_scale=2.0**10)

    def step(self, factor: float = 1.0) -> None:
        """``factor`` multiplies the loss of the second point."""
        for point in self.opt.points():
            with point:
                with torch.autocast(DEVICE, torch.float16):
                    loss = F.cross_entropy(self.net(self.x), self.y)
                self.scaler.scale(loss * (factor if point.index else 1.0)).backward()
        self.scaler.step(self.opt)
        self.scaler.update()
        self.opt.zero_grad()


def loss_scaling_skips_an_overflow(kernel: dict[str, bool]) -> None:
    run = ScaledRun(kernel)
    run.step()  # the first step makes the momentum
    before = clones(everything(run.opt, run.net))
    run.step(factor=float("inf"))
    assert all_equal(before, everything(run.opt, run.net))
    assert run.scaler.get_scale() == 2.0**9
    assert run.opt.param_groups[0]["noise_step"] == 2
    run.step()
    after = everything(run.opt, run.net)
    assert all(t.isfinite().all() for t in after)
    assert not any(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def take_step(
    opt: SSGD, net: Callable[[Tensor], Tensor], x: Tensor, y: Tensor, way: str, factor: Tensor | None = None
) -> None:
    """One step; gradients are cleared before it and stay after it."""
    opt.zero_grad()
    if way == "closure":

        def closure() -> Tensor:
            opt.zero_grad()
            loss = F.cross_entropy(net(x), y)
            loss.backward()
            return loss

        opt.step(closure)
        return
    if way == "one_pass":
        with opt.one_pass():
            F.cross_entropy(net(x), y).backward()
        opt.step()
        return
    parts = opt.split(x, y) if way == "split" else ((point, (x, y)) for point in opt.points())
    for point, (part_x, part_y) in parts:
        with point:
            loss = F.cross_entropy(net(part_x), part_y)
            (loss if factor is None else loss * factor).backward()
    opt.step()


def mlp(width: int = 64) -> nn.Module:
    hidden = [nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()]
    return nn.Sequential(nn.Flatten(), *hidden, nn.Linear(width, 10))


def conv_net() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(8 * 64, 10),
    )


class Mixed(nn.Module):
    """One layer on the CPU, one on the device, one there in half precision."""

    def __init__(self) -> None:
        super().__init__()
        self.on_cpu = nn.Linear(8, 32)
        self.on_device = nn.Linear(32, 32).to(DEVICE)
        self.in_half = nn.Linear(32, 4).to(DEVICE, torch.bfloat16)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.on_device(self.on_cpu(x).relu().to(DEVICE)).relu()
        return self.in_half(hidden.bfloat16()).float()


def batch() -> tuple[Tensor, Tensor]:
    """32 images of one channel and 8×8 pixels, with labels."""
    return torch.randn(32, 1, 8, 8, device=DEVICE), torch.randint(10, (32,), device=DEVICE)


def fused_sgd(parameters: Any, lr: Tensor) -> Optimizer:
    return SGD(parameters, lr=lr, momentum=0.9, fused=True)


def everything(opt: Optimizer, net: nn.Module) -> list[Tensor]:
    """Parameters and the base's state."""
    state = [value for one in opt.state.values() for value in one.values() if isinstance(value, Tensor)]
    return [*net.parameters(), *state]


def clones(tensors: Any) -> list[Tensor]:
    return [t.detach().clone() for t in tensors]


def all_equal(these: Any, those: Any) -> bool:
    return all(torch.equal(a, b) for a, b in zip(these, those, strict=True))


def requested_bytes() -> int:
    """What was asked of the allocator and not given back, without its rounding."""
    return int(torch.cuda.memory_stats()["requested_bytes.all.current"])


@contextmanager
def no_synchronisation() -> Iterator[None]:
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@contextmanager
def deterministic() -> Iterator[None]:
    cudnn = torch.backends.cudnn
    before = cudnn.deterministic, cudnn.benchmark
    cudnn.deterministic, cudnn.benchmark = True, False
    try:
        yield
    finally:
        cudnn.deterministic, cudnn.benchmark = before


def main() -> int:
    """Every test in turn; the number of failures decides the exit status."""
    if not torch.cuda.is_available():
        print("skipped: needs a CUDA device")
        return 0
    failures = 0
    for name, test in list(globals().items()):
        if not name.startswith("test_"):
            continue
        try:
            test()
        except Exception:
            failures += 1
            traceback.print_exc()
            print(f"FAIL {name}", flush=True)
        else:
            print(f"pass {name}", flush=True)
    return min(failures, 1)


if __name__ == "__main__":
    sys.exit(main())
