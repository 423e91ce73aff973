"""The kernels that move weights on CUDA, run by Triton's interpreter: where the weights go, and with what noise."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim import SGD

import ssgd.kernels
from ssgd import SSGD, Distribution
from ssgd.core.weights import NoisyWeights
from ssgd.methods.rwp import RWP

from .interpreter import why_not
from .problems import mlp, run_passes, same, take_step, vectors, weights

if reason := why_not("tests/test_cuda.py"):
    pytest.skip(reason, allow_module_level=True)

from ssgd.kernels import noise as kernels

SHAPES = ((3, 5), (70, 100), (1, 1), (64, 64), (0, 3))  # a part of a block, several, one element, whole blocks, none
ROUNDING = {torch.float32: 1e-6, torch.bfloat16: 1e-2, torch.float16: 1e-3}


@pytest.fixture(autouse=True)
def interpreted(monkeypatch):
    monkeypatch.setattr(ssgd.kernels, "has_kernels", lambda device: True)


def make(*shapes, dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(s, generator=generator).to(dtype).requires_grad_() for s in shapes]


def test_kernels_follow_a_parameter_to_other_memory():
    (parameter,) = make((70, 100))
    opt = start([parameter], level=0.2)
    before, moved = parameter.detach().clone(), []
    for point in opt.points():
        with point:
            memory = torch.zeros(7003)  # not on a multiple of 16 bytes
            with torch.no_grad():
                parameter.set_(memory[3:].view(70, 100).copy_(parameter))
            parameter.sum().backward()
            moved.append((parameter - before).detach())
    assert torch.equal(parameter, before)
    torch.testing.assert_close(moved[0], -moved[1])
    torch.testing.assert_close(moved[0].norm() / before.norm(), torch.tensor(0.2))


def start(parameters, level=0.5, lr=0.0, **options):
    opt = SSGD(SGD(parameters, lr=lr), level, **{"seed": 1, "perturb": parameters, **options})
    assert isinstance(opt.rule.weights(opt), kernels.FusedWeights)
    return opt


def noises(opt, parameters):
    """n of the next batch at each point, w back bit for bit in between."""
    clean = [p.detach().clone() for p in parameters]
    found = []
    for point in opt.points():
        with point:
            found.append([(p.detach().double() - w) for p, w in zip(parameters, clean, strict=True)])
        assert same(parameters, clean)
    return found


def ratio(n, w):
    return (n.norm() / w.detach().double().norm()).item()


# --- where the weights go ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ROUNDING)
@pytest.mark.parametrize("distribution", ["sphere", "sign", "uniform", "gaussian"])
def test_the_pair_is_symmetric_and_fixed_distributions_have_exactly_the_level(distribution, dtype):
    parameters = make(*SHAPES, dtype=dtype)
    plus, minus = noises(start(parameters, distribution=distribution), parameters)
    for w, n, m in zip(parameters, plus, minus, strict=True):
        torch.testing.assert_close(n, -m, rtol=0, atol=4 * ROUNDING[dtype])
        if w.numel() and distribution in ("sphere", "sign"):
            assert ratio(n, w) == pytest.approx(0.5, rel=2 * ROUNDING[dtype])


def test_every_pair_is_symmetric_and_has_a_noise_of_its_own():
    (w,) = parameters = make((70, 100))
    (a,), (b,), (c,), (d,) = noises(SSGD(SGD(parameters, lr=0.1), 0.5, pairs=2), parameters)
    torch.testing.assert_close((a, c), (-b, -d), rtol=0, atol=4e-6)
    assert abs(F.cosine_similarity(a.flatten(), c.flatten(), dim=0)) < 0.1 and ratio(c, w) == pytest.approx(0.5)


def test_an_autocast_block_around_everything_sees_every_move():
    model, (x, _) = mlp(torch.float32), vectors(dtype=torch.float32)
    opt = start(list(model.parameters()))
    with torch.autocast("cpu", torch.bfloat16):
        seen = [model(x)]
        for point in opt.points():
            with point:
                seen.append(model(x))
            seen.append(model(x))
    clean, plus, rested, minus, back = seen
    assert torch.equal(clean, rested) and torch.equal(clean, back)
    assert not torch.equal(clean, plus) and not torch.equal(clean, minus) and not torch.equal(plus, minus)


@pytest.mark.parametrize("dtype", ROUNDING)
@pytest.mark.parametrize("distribution", ["sphere", "sign", "uniform", "gaussian"])
def test_both_points_at_once_are_those_in_turn(distribution, dtype):
    parameters = make(*SHAPES, dtype=dtype)
    clean = [p.detach().clone() for p in parameters]
    in_turn = []
    for point in start(parameters, distribution=distribution).points():
        with point:
            in_turn.append([p.detach().clone() for p in parameters])
    at_once = start(parameters, distribution=distribution).both_points()
    assert same(parameters, clean)
    for found, expected in zip(at_once, in_turn, strict=True):
        assert same([found[p] for p in parameters], expected)


def test_weights_at_odd_addresses():
    storage = torch.randn(4404)
    before = storage.clone()
    parameters = [storage[i : i + 2201].view(31, 71).requires_grad_() for i in (1, 2202)]
    for point in start(parameters).points():
        with point:
            n = storage.double() - before
            assert not n[0] and not n[-1]  # what lies around them stays
            for part, w in ((n[1:2202], before[1:2202]), (n[2202:-1], before[2202:-1])):
                assert ratio(part, w) == pytest.approx(0.5, rel=1e-6)
        assert torch.equal(storage, before)


def test_every_copy_begins_at_a_multiple_of_16_bytes():
    for dtype in ROUNDING:
        opt = start(make(*SHAPES, dtype=dtype))
        for point in opt.points():
            with point:
                (clean,) = opt.rule.weights(opt).kept
                assert same(clean, make(*SHAPES, dtype=dtype))
                assert all(copy.data_ptr() % 16 == 0 for copy in clean if copy.numel())


def test_a_layer_of_zeros_gets_zero_noise():
    zero, one = torch.zeros(3, 3, requires_grad=True), torch.ones(3, 3, requires_grad=True)
    plus, minus = noises(start([zero, one]), [zero, one])
    assert not plus[0].any() and not minus[0].any() and plus[1].all()


def test_how_a_tensor_is_cut_into_programs_does_not_matter(monkeypatch):
    parameters = make((100, 130), (30, 30))
    whole = noises(start(parameters), parameters)
    monkeypatch.setattr(kernels, "PIECES", 2)
    cut = noises(start(parameters), parameters)
    for a, b in zip(whole, cut, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("launch", range(1, 6))
def test_a_failing_launch_leaves_clean_weights(monkeypatch, launch, after):
    model = mlp(torch.float32)
    x, y = vectors(dtype=torch.float32)
    opt = SSGD(SGD(model.parameters(), lr=0.1), 0.5)
    before, real, calls = weights(model), kernels.BucketKernels._launch, []

    def failing(self, *arguments):
        calls.append(1)
        if len(calls) == launch and not after:
            raise torch.OutOfMemoryError
        real(self, *arguments)
        if len(calls) == launch:
            raise torch.OutOfMemoryError

    monkeypatch.setattr(kernels.BucketKernels, "_launch", failing)
    with pytest.raises(torch.OutOfMemoryError):
        run_passes(opt, "points", model, x, y)
    assert same(model, before)
    take_step(opt, "points", model, x, y)
    assert not same(model, before)


def test_a_late_backward_is_refused():
    model = mlp(torch.float32)
    x, y = vectors(dtype=torch.float32)
    opt = SSGD(SGD(model.parameters(), lr=0.1), 0.5)
    before = weights(model)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        for point in opt.points():
            with point:
                loss = F.cross_entropy(model(x), y)
            loss.backward()
    assert same(model, before)


# --- with what noise --------------------------------------------------------------------------------------------------


def test_normal_noise_is_normal_and_its_elements_independent():
    (w,) = make((200, 200))
    z = noises(start([w], 1.0, distribution="gaussian"), [w])[0][0].flatten()
    sigma = 1 / math.sqrt(len(z))
    assert abs(z.mean()) < 4 * sigma
    assert z.var() == pytest.approx(1, abs=4 * math.sqrt(2) * sigma)
    assert (z**4).mean() == pytest.approx(3, abs=4 * math.sqrt(96) * sigma)
    assert (z.abs() > 2).double().mean() == pytest.approx(0.0455, abs=4 * 0.21 * sigma)
    assert 3.5 < z.abs().max() < 6
    for lag in (1, 2, 3, 4, 512, 1024, 2048):  # neighbours in a call of Philox, in a block, and in two blocks
        assert abs((z[lag:] * z[:-lag]).mean()) < 4 * sigma
        assert abs((z[lag:] ** 2 * z[:-lag] ** 2).mean() - 1) < 4 * math.sqrt(8) * sigma


def test_the_sign_distribution_fixes_every_element():
    (w,) = make((60, 50))
    n = noises(start([w], 0.2, distribution="sign"), [w])[0][0]
    rms = w.detach().double().norm() / math.sqrt(w.numel())
    torch.testing.assert_close(n.abs(), (0.2 * rms).expand_as(n), rtol=0, atol=1e-6)
    assert abs((n > 0).double().mean() - 0.5) < 0.04


def test_the_uniform_distribution_has_the_level_on_average():
    (w,) = make((100, 100))
    n = noises(start([w], 0.2, distribution="uniform"), [w])[0][0]
    peak = 0.2 * math.sqrt(3) * w.detach().double().norm() / math.sqrt(w.numel())
    assert 0.99 * peak < n.abs().max() < peak + 1e-6
    assert abs(n.mean()) < 0.04 * peak and ratio(n, w) == pytest.approx(0.2, rel=0.02)


def test_noise_depends_on_no_neighbour():
    """Alone, beside another tensor, or in another dtype's bucket: position and element decide."""
    first, second = make((70, 100), (64, 64))
    together = noises(start([first, second], distribution="gaussian"), [first, second])[0]
    alone = SSGD(SGD([first, second], lr=0.0), 0.5, seed=1, perturb=[second], distribution="gaussian")
    assert torch.equal(noises(alone, [second])[0][0], together[1])


def test_both_points_may_be_written_to_the_callers_tensors():
    parameters = make(*SHAPES)
    expected = start(parameters).both_points()
    out = [{p: torch.full_like(p, 7.0, requires_grad=False) for p in parameters} for _ in range(2)]
    given = start(parameters).both_points(out)
    for side, values, wanted in zip(out, given, expected, strict=True):
        assert all(values[p] is side[p] and torch.equal(side[p], wanted[p]) for p in parameters)


def test_noise_is_a_function_of_seed_step_and_draw():
    def drawn(seed=1, step=0, pair=0):
        (w,) = make((4, 4))
        opt = start([w], seed=seed, pairs=2)
        opt.param_groups[0]["noise_step"] = step
        return noises(opt, [w])[2 * pair][0]

    assert torch.equal(drawn(), drawn())
    assert all(not torch.allclose(drawn(), drawn(**other)) for other in ({"seed": 2}, {"step": 1}, {"pair": 1}))


def test_all_batches_of_a_step_see_the_same_noise_and_the_next_step_another():
    model = mlp(torch.float32)
    x, y = vectors(dtype=torch.float32)
    opt = SSGD(SGD(model.parameters(), lr=0.0), 0.5)
    seen = []
    model.register_forward_pre_hook(lambda m, _: seen.append(m[0].weight.detach().clone()))
    for _ in range(2):
        run_passes(opt, "split", model, x, y)
    opt.step()
    opt.zero_grad()
    run_passes(opt, "split", model, x, y)
    assert torch.equal(seen[0], seen[2]) and torch.equal(seen[1], seen[3]) and not torch.equal(seen[0], seen[4])


def test_no_block_of_any_tensor_has_the_noise_of_another():
    parameters = make((64, 64), (64, 64))
    plus, _ = noises(start(parameters, distribution="gaussian"), parameters)
    blocks = torch.cat(plus).view(-1, kernels.BLOCK)
    assert len(blocks) == 4
    alike = torch.corrcoef(blocks) - torch.eye(4)
    assert alike.abs().max() < 0.1


def test_a_copied_optimizer_draws_the_same_noise():
    (w,) = make((4, 4))
    opt = start([w])
    twin = copy.deepcopy(opt)
    assert torch.equal(noises(opt, [w])[0][0], noises(twin, twin.selected)[0][0])


def test_levels_differ_by_group_and_tensors_are_read_when_the_noise_is_made():
    parameters = make(*[(8, 8)] * 4)
    single, double = torch.tensor(0.1), torch.tensor(0.2, dtype=torch.float64)
    levels = [0.3, single, double, 1]
    groups = [{"params": [p], "noise": a} for p, a in zip(parameters, levels, strict=True)]
    opt = SSGD(SGD(groups, lr=0.0), 0.5)
    single.fill_(0.4)
    for p, n, level in zip(parameters, noises(opt, parameters)[0], (0.3, 0.4, 0.2, 1), strict=True):
        assert ratio(n, p) == pytest.approx(level, rel=1e-6)


def test_ratios_and_excess_are_those_of_the_noise():
    (w,) = make((20, 20))
    opt = start([w])
    before = w.detach().clone()
    assert opt.realised_ratios()[0].item() == pytest.approx(0.5, rel=1e-5)
    excess = opt.symmetric_excess(lambda: w.detach().double().square().sum())
    assert torch.equal(w, before)
    n = noises(opt, [w])[0][0]
    torch.testing.assert_close(excess, n.square().sum(), rtol=1e-4, atol=0)


# --- who gets them ----------------------------------------------------------------------------------------------------


def test_what_the_kernels_do_not_serve_is_left_to_torch():
    def form(parameters, kind=SSGD, **options):
        opt = kind(SGD(parameters, lr=0.1), 0.1, **options)
        return type(opt.rule.weights(opt))

    flat, strided = make((4, 4)), nn.Parameter(torch.randn(4, 8)[:, ::2])
    assert form(flat) is kernels.FusedWeights
    assert form([*flat, strided]) is NoisyWeights
    assert form(make((4, 4), dtype=torch.float64)) is NoisyWeights
    assert form([*flat, *make((4, 4), dtype=torch.float64)]) is NoisyWeights
    assert form(flat, distribution=Distribution("sphere", lambda z, generator: z.fill_(1))) is NoisyWeights
    assert not issubclass(form(flat, kind=RWP), kernels.FusedWeights)
    opt = SSGD(SGD(flat, lr=0.1), 0.1)
    flat[0].requires_grad_(False)  # with nothing to move, Triton is not asked for
    assert type(opt.rule.weights(opt)) is NoisyWeights


def test_where_triton_cannot_build_torch_takes_over(monkeypatch):
    monkeypatch.undo()
    assert not ssgd.kernels.has_kernels(torch.device("cpu"))
    kernels.check(torch.device("cpu"))  # raises nothing in the interpreter

    def no_compiler(device):
        raise RuntimeError("no C compiler")

    monkeypatch.setattr(kernels, "check", no_compiler)
    with pytest.warns(UserWarning, match=r"torch's operations.*no C compiler"):
        assert not ssgd.kernels.has_kernels.__wrapped__(torch.device("cuda"))
