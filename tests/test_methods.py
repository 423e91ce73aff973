"""The optimizer's battery over every method of the registry."""

import copy
import io
import sys
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim import SGD, Adam
from torch.optim.lr_scheduler import CosineAnnealingWarmRestarts

from ssgd import methods
from ssgd.methods import METHODS

from .problems import same, vectors, weights
from .test_weights import InterruptAt

LOCAL = [name for name in METHODS if name != "mirror"]  # mirror needs ranks: tests/distributed
MASKED = ("dropconnect", "dropout")  # these draw their masks from the global stream, like any dropout
every_method = pytest.mark.parametrize("name", LOCAL)


def start(name, base=SGD, dtype=torch.float32, **options):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3)).to(dtype)
    settings = {"lr": 0.1, "momentum": 0.9} if base is SGD else {"lr": 0.01}
    settings |= {k: options.pop(k) for k in ("fused",) if k in options}
    if name == "entropy-sgd":
        options = {"inner_steps": 3, **options}
    if name == "sam-10":
        options = {"interval": 2, **options}
    seed = {"seed": 7} if "noise" in {s.name for s in METHODS[name].settings} else {}
    return model, METHODS[name].build(base(model.parameters(), **settings), model, **seed, **options)


def run(name, opt, model, x, y, scale=lambda loss: loss):
    for point, (xb, yb) in METHODS[name].batches(opt, x, y):
        with point:
            point.loss = F.cross_entropy(model(xb), yb)
            scale(point.loss).backward()


def step(name, opt, model, x, y):
    opt.zero_grad()
    torch.manual_seed(3)
    run(name, opt, model, x, y)
    opt.step()


def everything(model, opt):
    found = weights(model)
    if hasattr(opt, "averaged"):
        found += weights(opt.averaged)
    return found


@every_method
def test_weights_are_clean_between_and_after_the_points(name):
    if METHODS[name].one_pass:
        pytest.skip("the weights do not move, and a look at them inside the block sees pairs: see test_one_pass.py")
    model, opt = start(name)
    x, y = vectors(dtype=torch.float32)
    step(name, opt, model, x, y)
    opt.zero_grad()
    before = weights(model)
    moved = passes = 0
    for point, (xb, yb) in METHODS[name].batches(opt, x, y):
        assert same(model, before)
        with point:
            moved += not same(model, before)
            passes += len(xb) / len(x)
            F.cross_entropy(model(xb), yb).backward()
        assert same(model, before)
    assert passes == {"entropy-sgd": 3, "sam-10": 2}.get(name, METHODS[name].passes)
    still = ("base", "base-2x", "sgdr", "halves", "swa", "ema", *MASKED)
    assert bool(moved) == (name not in still)
    opt.step()
    assert not same(model, before)


@every_method
@pytest.mark.parametrize("base", [SGD, Adam])
def test_resume_is_bitwise(name, base):
    x, y = vectors(dtype=torch.float32)
    model, opt = start(name, base)
    for _ in range(3):
        step(name, opt, model, x, y)
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "opt": opt.state_dict()}, file)
    for _ in range(3):
        step(name, opt, model, x, y)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    resumed, resumed_opt = start(name, base)
    resumed.load_state_dict(saved["model"])
    resumed_opt.load_state_dict(saved["opt"])
    for _ in range(3):
        step(name, resumed_opt, resumed, x, y)
    assert same(everything(resumed, resumed_opt), everything(model, opt))


@every_method
def test_closure_equals_points_bitwise(name):
    if METHODS[name].halves or METHODS[name].one_pass:
        pytest.skip("a closure sees the whole batch: split() and one_pass() have no closure form")
    x, y = vectors(dtype=torch.float32)
    model, opt = start(name)
    other, other_opt = start(name)

    def closure():
        other_opt.zero_grad()
        loss = F.cross_entropy(other(x), y)
        loss.backward()
        return loss

    for _ in range(3):
        step(name, opt, model, x, y)
        torch.manual_seed(3)
        loss = other_opt.step(closure)
        assert loss.ndim == 0
    assert same(model, other)


@every_method
def test_level_zero_is_the_base_bitwise(name):
    x, y = vectors(dtype=torch.float32)
    zero = {s.name: 0.0 for s in METHODS[name].settings if s.name in ("noise", "rho", "p")}
    if name in ("halves", "entropy-sgd"):
        pytest.skip("has no level that turns it off: halves are halves, and Langevin steps are taken without noise too")
    model, opt = start(name, **zero)
    plain = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3))
    plain.load_state_dict(start("base")[0].state_dict())
    plain_opt = SGD(plain.parameters(), lr=0.1, momentum=0.9)
    for _ in range(3):
        step(name, opt, model, x, y)
        plain_opt.zero_grad()
        F.cross_entropy(plain(x), y).backward()
        plain_opt.step()
    if name == "dropconnect":
        methods.remove_dropconnect(model)
    assert same(model, plain)


@every_method
def test_the_global_stream_is_left_alone(name):
    model, opt = start(name)
    x, y = vectors(dtype=torch.float32)
    stream = torch.get_rng_state()
    run(name, opt, model, x, y)
    opt.step()
    assert torch.equal(torch.get_rng_state(), stream) == (name not in MASKED)


@every_method
@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_exception_at_any_point_restores(name, error):
    x, y = vectors(dtype=torch.float32)
    for fail_at in range(20):
        model, opt = start(name)
        before = weights(model)
        try:
            for point, (xb, yb) in METHODS[name].batches(opt, x, y):
                with point:
                    F.cross_entropy(model(xb), yb).backward()
                    if getattr(point, "index", 0) == fail_at:
                        raise error("inside")
        except error:
            assert same(model, before) and all(p.grad is None for p in model.parameters())
            with pytest.raises(RuntimeError, match="cut the batch short"):
                opt.step()
            step(name, opt, model, x, y)
        else:
            break
    assert fail_at >= 1


@pytest.mark.parametrize(
    ("name", "level", "own"), [("sam", "noise", "rho"), ("both", "rho", "noise"), ("base", "p", "none")]
)
def test_a_level_by_another_methods_name_is_refused(name, level, own):
    model = nn.Linear(2, 2)
    with pytest.raises(TypeError, match=f"{name} has no setting '{level}'; its settings: {own}"):
        METHODS[name].build(SGD(model.parameters(), lr=0.1), model, **{level: 0.1})


@pytest.mark.parametrize("name", ["sam", "asam", "m-arwp", "nso", "smoothout-x2", "halves", "entropy-sgd", "ema"])
def test_ctrl_c_on_any_line_leaves_clean_weights(name):
    x, y = vectors(samples=4, dtype=torch.float32)
    options = {"inner_steps": 2} if name == "entropy-sgd" else {}
    model, opt = start(name, **options)
    before = weights(model)
    step(name, opt, model, x, y)
    after = weights(model)
    line, interrupted = 0, True
    while interrupted:
        line += 1
        model, opt = start(name, **options)
        tracer = InterruptAt(line, most=2)
        sys.settrace(tracer)
        try:
            step(name, opt, model, x, y)
            interrupted = False
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(None)
        assert same(model, before) or same(model, after), f"line {line}: {tracer.where}"
    assert line > 100


@every_method
def test_one_autocast_block_around_all_passes_equals_one_around_each(name):
    x, y = vectors(dtype=torch.float32)

    def train(around_all):
        model, opt = start(name)
        torch.manual_seed(3)
        with torch.autocast("cpu", torch.bfloat16, enabled=around_all):
            for point, (xb, yb) in METHODS[name].batches(opt, x, y):
                with point:
                    with torch.autocast("cpu", torch.bfloat16):
                        loss = F.cross_entropy(model(xb), yb)
                    loss.backward()
        opt.step()
        return model

    assert same(train(True), train(False))


@every_method
@pytest.mark.parametrize("fused", [False, True])
def test_grad_scaler_equals_training_without(name, fused):
    if name == "entropy-sgd":
        pytest.skip("refused, see test_entropy_sgd_refuses_a_grad_scaler")
    x, y = vectors(dtype=torch.float32)
    model, opt = start(name, fused=fused)
    plain, plain_opt = start(name)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    for i in range(4):
        opt.zero_grad()
        torch.manual_seed(3)
        run(name, opt, model, x, y, scaler.scale)
        if i == 2:
            model[0].bias.grad[0] = float("inf")
            before = weights(model)
        scaler.step(opt)
        scaler.update()
        if i == 2:
            assert same(model, before)
            run(name, plain_opt, plain, x, y)
            plain_opt.zero_grad()
        else:
            step(name, plain_opt, plain, x, y)
    for p, q in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-6)


@every_method
def test_accumulation_adds_the_batches_gradients(name):
    first, second = vectors(dtype=torch.float64, seed=1), vectors(dtype=torch.float64, seed=2)

    def gradients(*batches):
        model, opt = start(name, dtype=torch.float64)
        for x, y in batches:
            torch.manual_seed(3)
            run(name, opt, model, x, y)
        return [p.grad.clone() for p in model.parameters()]

    if name == "entropy-sgd":
        with pytest.raises(RuntimeError, match="does not accumulate"):
            gradients(first, second)
        return
    for both, a, b in zip(gradients(first, second), gradients(first), gradients(second), strict=True):
        torch.testing.assert_close(both, a + b, rtol=1e-10, atol=1e-12)


@every_method
def test_copies_go_on_alike(name):
    x, y = vectors(dtype=torch.float32)
    model, opt = start(name)
    step(name, opt, model, x, y)
    twin, twin_opt = copy.deepcopy((model, opt))
    for m, o in ((model, opt), (twin, twin_opt)):
        step(name, o, m, x, y)
    assert same(everything(twin, twin_opt), everything(model, opt))


@every_method
def test_schedulers_and_hooks(name):
    x, y = vectors(dtype=torch.float32)
    model, opt = start(name)
    ran = []
    opt.register_step_post_hook(lambda *_: ran.append(1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        scheduler = CosineAnnealingWarmRestarts(opt, 10)
        for _ in range(3):
            step(name, opt, model, x, y)
            scheduler.step()
    assert len(ran) == 3 and opt.base.param_groups[0]["lr"] < 0.1


@every_method
def test_no_recompilation_on_the_second_step(name):
    torch._dynamo.reset()
    x, y = vectors(dtype=torch.float32)
    model, opt = start(name)
    compiled = torch.compile(model, backend="aot_eager")
    if METHODS[name].one_pass:
        opt.attach(compiled)
    step(name, opt, compiled, x, y)
    assert torch._dynamo.utils.counters["frames"]["ok"] > 0
    with torch._dynamo.config.patch(error_on_recompile=True):
        for _ in range(2):
            step(name, opt, compiled, x, y)


@every_method
def test_misuse_inside_a_point(name):
    x, y = vectors(dtype=torch.float32)
    for misuse in ("state_dict", "step", "zero_grad"):
        model, opt = start(name)
        before = weights(model)
        with pytest.raises(RuntimeError, match=r"inside a point|of \d+ points"):
            for point, (xb, yb) in METHODS[name].batches(opt, x, y):
                with point:
                    F.cross_entropy(model(xb), yb).backward()
                    getattr(opt, misuse)()
        assert same(model, before)


@pytest.mark.parametrize("name", [name for name in LOCAL if METHODS[name].settings])
def test_bad_settings_get_a_sentence(name):
    for setting in METHODS[name].settings:
        with pytest.raises(ValueError, match=r"not .*(-1|2\.0)"):
            start(name, **{setting.name: -1.0 if setting.name not in ("decay", "beta") else 2.0})


def test_an_unknown_method_is_named():
    with pytest.raises(ValueError, match=r"no method called 'adagrad-sam': use one of base, "):
        methods.get("adagrad-sam")


def test_defaults_lie_in_their_ranges():
    for method in METHODS.values():
        assert method.description and method.make.__doc__
        for s in method.settings:
            assert s.low <= s.default <= s.high and s.help


def test_the_command_lists_every_method(capsys):
    import json

    from ssgd.cli.main import main

    assert main(["methods"]) == 0
    table = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in table[1:]] == list(methods.METHODS)
    assert main(["methods", "sam"]) == 0
    assert "arXiv:2010.01412" in capsys.readouterr().out
    main(["methods", "--json"])
    assert [m["name"] for m in json.loads(capsys.readouterr().out)] == list(methods.METHODS)
    assert main([]) == 2
    with pytest.raises(SystemExit):
        main(["methods", "nothing"])
