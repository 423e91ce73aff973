"""SSGD is an optimizer like any other: schedulers, hooks, scaling, groups, copies, checkpoints."""

import copy
import pickle
import warnings

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.optim import SGD, Adam, Optimizer, SparseAdam
from torch.optim.lr_scheduler import CosineAnnealingWarmRestarts, LinearLR, OneCycleLR, ReduceLROnPlateau, SequentialLR

from ssgd import SSGD
from ssgd.methods.plain import Plain
from ssgd.methods.sam import SAM

from .problems import WAYS, mlp, run_passes, same, take_step, vectors, weights


def start(base=SGD, noise=0.3, **options):
    model = mlp(torch.float32)
    options = {"lr": 0.1, "momentum": 0.9, **options} if base is SGD else {"lr": 0.01, **options}
    return model, SSGD(base(model.parameters(), **options), noise, seed=1)


def test_is_an_optimizer_that_shares_groups_and_state():
    model, opt = start()
    assert isinstance(opt, Optimizer)
    assert opt.param_groups is opt.base.param_groups and opt.state is opt.base.state
    take_step(opt, "points", model, *vectors(dtype=torch.float32))
    assert "momentum_buffer" in opt.state[model[0].weight]


def test_wrapping_keeps_state_the_base_already_has():
    model = mlp(torch.float32)
    base = SGD(model.parameters(), lr=0.1, momentum=0.9)
    x, y = vectors(dtype=torch.float32)
    take_step(base, "plain", model, x, y)
    momentum = base.state[model[0].weight]["momentum_buffer"].clone()
    opt = SSGD(base, 0.3)
    assert torch.equal(opt.state[model[0].weight]["momentum_buffer"], momentum)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "scheduler",
    [
        lambda o: CosineAnnealingWarmRestarts(o, 3),
        lambda o: SequentialLR(o, [LinearLR(o), CosineAnnealingWarmRestarts(o, 3)], [2]),
        lambda o: OneCycleLR(o, 0.5, total_steps=10),
        lambda o: ReduceLROnPlateau(o, patience=0),
    ],
)
def test_learning_rate_schedulers(way, scheduler):
    x, y = vectors(dtype=torch.float32)
    model, opt = start()
    plain_model = mlp(torch.float32)
    plain = SGD(plain_model.parameters(), lr=0.1, momentum=0.9)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # torch warns when a scheduler steps before its optimizer
        ours, theirs, rates = scheduler(opt), scheduler(plain), set()
        for _ in range(5):
            take_step(opt, way, model, x, y)
            take_step(plain, "plain", plain_model, x, y)
            for s in (ours, theirs):
                s.step(1.0) if isinstance(s, ReduceLROnPlateau) else s.step()
            rates.add(opt.param_groups[0]["lr"])
            assert opt.param_groups[0]["lr"] == plain.param_groups[0]["lr"] == opt.base.param_groups[0]["lr"]
    assert len(rates) > 2


def test_a_tensor_learning_rate():
    model = mlp(torch.float32)
    opt = SSGD(SGD(model.parameters(), lr=torch.tensor(0.1), foreach=False), 0.3)
    before = weights(model)
    take_step(opt, "points", model, *vectors(dtype=torch.float32))
    assert not same(model, before)


@pytest.mark.parametrize("way", WAYS)
def test_hooks_run_once_a_step(way):
    model, opt = start()
    ran = []
    opt.register_step_pre_hook(lambda *_: ran.append("pre"))
    opt.register_step_post_hook(lambda *_: ran.append("post"))
    opt.base.register_step_pre_hook(lambda *_: ran.append("base"))
    take_step(opt, way, model, *vectors(dtype=torch.float32))
    assert ran == ["pre", "base", "post"]
    opt.register_state_dict_post_hook(lambda o, d: {**d, "mark": 1})
    opt.register_load_state_dict_post_hook(lambda o: ran.append("loaded"))
    opt.load_state_dict({k: v for k, v in opt.state_dict().items() if k != "mark"})
    assert opt.state_dict()["mark"] == 1 and ran[-1] == "loaded"


def test_groups_can_be_added():
    model, opt = start()
    x, y = vectors(dtype=torch.float32)
    take_step(opt, "points", model, x, y)
    extra = torch.nn.Linear(3, 3)
    opt.add_param_group({"params": list(extra.parameters()), "lr": 0.5, "noise": 0.1})
    assert opt.param_groups[1]["noise_step"] == 1 and opt.param_groups[1]["noise_seed"] == 1
    assert opt.param_groups[1]["momentum"] == 0.9
    model.append(extra)
    before = weights(extra)
    for point in opt.points():
        with point:
            torch.testing.assert_close((extra.weight - before[0]).norm(), 0.1 * before[0].norm())
            F.cross_entropy(model(x), y).backward()
    opt.step()
    assert not same(extra, before)
    with pytest.raises(ValueError, match="noise level"):
        opt.add_param_group({"params": [torch.ones(2, 2, requires_grad=True)], "noise": -1.0})
    assert len(opt.param_groups) == 2


def test_named_parameters():
    model = mlp(torch.float32)
    opt = SSGD(SGD(model.named_parameters(), lr=0.1), 0.3)
    take_step(opt, "points", model, *vectors(dtype=torch.float32))
    assert opt.state_dict()["param_groups"][0]["param_names"][0] == "0.weight"


def test_repr_says_what_it_is():
    _, opt = start()
    text = repr(opt)
    assert "SSGD(mode='both', distribution='sphere'" in text and "noise: 0.3" in text and "momentum: 0.9" in text


def test_state_dict_carries_seed_and_counter_and_loads_where_they_are_missing():
    model, opt = start()
    x, y = vectors(dtype=torch.float32)
    take_step(opt, "points", model, x, y)
    saved = copy.deepcopy(opt.state_dict())
    group = saved["param_groups"][0]
    assert (group["noise"], group["noise_seed"], group["noise_step"]) == (0.3, 1, 1)

    plain = SGD(mlp(torch.float32).parameters(), lr=0.7, momentum=0.5)
    opt.load_state_dict(plain.state_dict())  # a checkpoint from before SSGD
    assert opt.param_groups[0]["lr"] == 0.7
    assert (opt.param_groups[0]["noise"], opt.param_groups[0]["noise_step"]) == (0.3, 1)
    plain.load_state_dict(saved)  # and back to a plain run
    assert plain.param_groups[0]["lr"] == 0.1


def test_loading_reaches_the_base():
    model, opt = start(Adam)
    take_step(opt, "points", model, *vectors(dtype=torch.float32))
    twin_model, twin = start(Adam)
    twin_model.load_state_dict(model.state_dict())
    twin.load_state_dict(opt.state_dict())
    assert twin.base.param_groups is twin.param_groups
    assert torch.equal(twin.base.state[twin_model[0].weight]["exp_avg"], opt.state[model[0].weight]["exp_avg"])


class Counting(SGD):
    """A base that keeps more than groups and state, and says how its state is loaded."""

    calls = 0

    def step(self, closure=None):
        self.calls += 1
        for group in self.param_groups:
            group["lr"] = 0.1 / self.calls
        return super().step(closure)

    def state_dict(self):
        return {**super().state_dict(), "calls": self.calls}

    def load_state_dict(self, state_dict):
        super().load_state_dict(state_dict)
        self.calls = state_dict["calls"]


def test_what_the_base_keeps_of_its_own_is_saved_and_loaded():
    x, y = vectors(dtype=torch.float32)
    model, opt = start(Counting)
    for _ in range(3):
        take_step(opt, "points", model, x, y)
    twin_model, twin = start(Counting)
    twin_model.load_state_dict(model.state_dict())
    twin.load_state_dict(copy.deepcopy(opt.state_dict()))
    for one, its_opt in ((model, opt), (twin_model, twin)):
        take_step(its_opt, "points", one, x, y)
    assert twin.base.calls == 4 and same(twin_model, weights(model))


def test_hooks_on_checkpoints_run_on_both():
    _, opt = start()
    told = []
    for which, name in ((opt, "outside"), (opt.base, "inside")):
        which.register_state_dict_pre_hook(lambda o, name=name: told.append(("save", name, o)))
        which.register_state_dict_post_hook(lambda o, d, name=name: {**d, name: 1})
        which.register_load_state_dict_pre_hook(lambda o, d, name=name: told.append(("load", name, o)))
        which.register_load_state_dict_post_hook(lambda o, name=name: told.append(("loaded", name, o)))
    saved = opt.state_dict()
    assert saved["outside"] == saved["inside"] == 1
    opt.register_load_state_dict_pre_hook(lambda o, d: d.update(outside=2))
    opt.load_state_dict(saved)
    assert saved["outside"] == 1
    order = [("save", "outside"), ("save", "inside"), ("load", "outside"), ("load", "inside")]
    assert [one[:2] for one in told] == [*order, ("loaded", "inside"), ("loaded", "outside")]
    assert all(o is (opt if name == "outside" else opt.base) for _, name, o in told)


def test_numbers_of_numpy_are_saved_as_pythons_own(tmp_path):
    model = mlp(torch.float32)
    opt = SSGD(SGD(model.parameters(), lr=0.1), np.float64(0.2), seed=np.int64(3), pairs=np.int64(2))
    torch.save(opt.state_dict(), tmp_path / "opt.pt")
    group = torch.load(tmp_path / "opt.pt", weights_only=True)["param_groups"][0]
    assert (group["noise"], group["noise_seed"]) == (0.2, 3)
    opt.param_groups[0]["noise"] = np.float32(0.5)
    torch.save(opt.state_dict(), tmp_path / "opt.pt")
    assert torch.load(tmp_path / "opt.pt", weights_only=True)["param_groups"][0]["noise"] == 0.5


def test_pickle_and_deepcopy_keep_options():
    model = mlp(torch.float32)
    opt = SSGD(
        SGD(model.parameters(), lr=0.1), 0.3, model=model, distribution="uniform", pairs=2, bn_stats="once", rng="same"
    )
    for twin in (pickle.loads(pickle.dumps(opt)), copy.deepcopy(opt)):
        assert (twin.distribution.name, twin.pairs, twin.bn_stats, twin.rng) == ("uniform", 2, "once", "same")
        assert twin.model is not model
        assert {id(p) for p in twin.model.parameters()} == {id(p) for g in twin.param_groups for p in g["params"]}


@pytest.mark.parametrize("wrap", [lambda base: SSGD(base, 0.3), lambda base: SAM(base, 0.1), Plain])
def test_copies_with_a_scheduler_attached_step_themselves(wrap):
    """A scheduler puts a step of its own into the optimizer it drives, which must not come along."""
    x, y = vectors(dtype=torch.float32)
    model = mlp(torch.float32)
    opt = wrap(SGD(model.parameters(), lr=0.1))
    LinearLR(opt)
    before = weights(model)
    for twin_model, twin in (pickle.loads(pickle.dumps((model, opt))), copy.deepcopy((model, opt))):
        take_step(twin, "points", twin_model, x, y)
        assert same(model, before) and not same(twin_model, before)


def test_copies_leave_hooks_behind_as_torchs_do():
    x, y = vectors(dtype=torch.float32)
    model, told = mlp(torch.float32), []
    opt = SSGD(SGD(model.parameters(), lr=0.1), 0.3)
    opt.register_step_post_hook(lambda *_: told.append("step"))  # which pickle could not take along
    opt.register_state_dict_pre_hook(lambda _: told.append("save"))
    for twin_model, twin in (pickle.loads(pickle.dumps((model, opt))), copy.deepcopy((model, opt))):
        take_step(twin, "points", twin_model, x, y)
        twin.state_dict()
    assert told == []


def test_deepcopy_follows_an_explicit_selection():
    model = mlp(torch.float32)
    opt = SSGD(SGD(model.parameters(), lr=0.1), 0.3, perturb=[model[2].weight])
    twin_model, twin = copy.deepcopy((model, opt))
    assert twin.selected[0] is twin_model[2].weight


@pytest.mark.parametrize("way", ["points", "split"])
@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("unscale", [False, True])
@pytest.mark.parametrize("base", [SGD, Adam])
def test_grad_scaler(way, fused, unscale, base):
    """Scaled training gives what unscaled training gives; an overflow skips the step and moves the noise on."""
    x, y = vectors(dtype=torch.float32)
    model, opt = start(base, fused=fused)
    plain_model, plain = start(base)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    for step in range(4):
        opt.zero_grad()
        run_passes(opt, way, model, x, y, scale=scaler.scale)
        if step == 2:
            model[0].weight.grad[0, 0] = float("inf")
            before = weights(model)
        if unscale:
            scaler.unscale_(opt)
        scaler.step(opt)
        scaler.update()
        if step == 2:
            assert same(model, before)
            plain.zero_grad()
            run_passes(plain, way, plain_model, x, y)
            plain.zero_grad()  # the same noise is used up
        else:
            take_step(plain, way, plain_model, x, y)
    assert scaler.get_scale() == 2.0**9
    for p, q in zip(model.parameters(), plain_model.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-7)
    assert opt.param_groups[0]["noise_step"] >= 3
    assert not hasattr(opt.base, "found_inf") and not hasattr(opt.base, "grad_scale")


@pytest.mark.parametrize("policy", ["skip", "raise"])
def test_where_a_scaler_judges_the_gradients_nobody_else_does(policy):
    """It looks for the scale that overflows: no reason to raise, also where a fused base is called to skip."""
    x, y = vectors(dtype=torch.float32)
    model = mlp(torch.float32)
    opt = SSGD(SGD(model.parameters(), lr=0.1, fused=True), 0.3, nonfinite=policy)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    for overflow in (True, False):
        before = weights(model)
        run_passes(opt, "points", model, x, y, scale=scaler.scale)
        if overflow:
            model[0].weight.grad[0, 0] = float("inf")
        scaler.step(opt)
        scaler.update()
        opt.zero_grad()
        assert same(model, before) == overflow
    assert scaler.get_scale() == 2.0**9 and all(p.isfinite().all() for p in model.parameters())


def test_grad_scaler_refuses_closures():
    """torch's own rule; its sentence names the scaler."""
    _, opt = start()
    scaler = torch.amp.GradScaler("cpu")
    with pytest.raises(RuntimeError, match="Closure use is not currently supported if GradScaler is enabled"):
        scaler.step(opt, closure=lambda: torch.tensor(0.0))


NO_POINTS = r"step\(\) without a new pass: run forward.*one_pass\(\).*ssgd\.integrations.*opt\.base\.step\(\)"


@pytest.mark.parametrize("begun", [False, True], ids=["", "points that were not entered"])
@pytest.mark.parametrize("wrap", [lambda base: SSGD(base, 0.3), lambda base: SAM(base, 0.1)], ids=["SSGD", "SAM"])
def test_step_without_points_is_refused_with_the_remedy(begun, wrap):
    x, y = vectors(dtype=torch.float32)
    model, plain_model = mlp(torch.float32), mlp(torch.float32)
    opt, plain = (SGD(m.parameters(), lr=0.1, momentum=0.9) for m in (model, plain_model))
    opt = wrap(opt)
    before = weights(model)
    opt.step()  # nothing to step with: trainers do that
    for _ in opt.points() if begun else ():
        break
    F.cross_entropy(model(x), y).backward()
    with pytest.raises(RuntimeError, match=NO_POINTS):
        opt.step()
    assert same(model, before)
    F.cross_entropy(plain_model(x), y).backward()
    opt.base.step(), plain.step()
    assert same(model, plain_model)


@pytest.mark.parametrize("harmless", ["no gradient", "rate 0", "gradients of zeros"])
def test_a_step_that_only_makes_the_bases_state_is_the_bases(harmless):
    """As torch's helpers for distributed checkpoints take it."""
    model, opt = start()
    before = weights(model)
    for group in opt.param_groups:
        group["lr"] = 0.0 if harmless == "rate 0" else group["lr"]
    for p in model.parameters() if harmless != "no gradient" else ():
        p.grad = torch.zeros_like(p) if harmless == "gradients of zeros" else torch.ones_like(p)
    opt.step()
    assert same(model, before) and opt.param_groups[0]["noise_step"] == 0
    assert bool(opt.state) == (harmless != "no gradient")


def test_after_a_step_that_a_scaler_skipped_there_is_nothing_to_refuse():
    model, opt = start()
    x, y = vectors(dtype=torch.float32)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    run_passes(opt, "points", model, x, y, scale=scaler.scale)
    model[0].weight.grad[0, 0] = float("inf")
    before = weights(model)
    scaler.step(opt)
    scaler.update()
    opt.zero_grad()
    opt.step()
    assert same(model, before)


def test_the_bases_own_modes_are_reached():
    _, opt = start()
    modes = []
    opt.train(), opt.eval()  # a base without them
    opt.base.train, opt.base.eval = (lambda: modes.append("train")), (lambda: modes.append("eval"))
    opt.train(), opt.eval()
    assert modes == ["train", "eval"]
    with next(opt.points()), pytest.raises(RuntimeError, match=r"eval\(\) inside a point"):
        opt.eval()


@pytest.mark.parametrize("level", [0.0, 0.3])
def test_one_pass_where_no_weight_moves(level):
    model = mlp(torch.float32)
    groups = [{"params": [p for p in model.parameters() if p.dim() > 1], "noise": level}]
    groups += [{"params": [p for p in model.parameters() if p.dim() < 2]}]  # has the level, and nothing to move
    opt = SSGD(SGD(groups, lr=0.1), 0.3)
    assert [point.sign for point in taken(opt)] == ([1, -1] if level else [0])
    model.requires_grad_(False)
    assert [point.sign for point in taken(opt)] == [0]


def taken(opt):
    found = []
    for point in opt.points():
        with point:
            found.append(point)
    opt.zero_grad()
    return found


@pytest.mark.parametrize("wrap", [lambda base: SSGD(base, 0.0), lambda base: SAM(base, 0.0), Plain])
def test_step_without_points_is_the_bases_where_no_weight_would_move(wrap):
    x, y = vectors(dtype=torch.float32)
    model, plain_model = mlp(torch.float32), mlp(torch.float32)
    plain = SGD(plain_model.parameters(), lr=0.1, momentum=0.9)
    opt = wrap(SGD(model.parameters(), lr=0.1, momentum=0.9))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for m, o in ((model, opt), (plain_model, plain)):
            F.cross_entropy(m(x), y).backward()
            o.step()
    assert same(model, plain_model)


def test_several_optimizers_at_once():
    x, y = vectors(dtype=torch.float32)
    model = mlp(torch.float32)
    a = SSGD(SGD(model[0].parameters(), lr=0.1), 0.3, seed=1)
    b = SSGD(SGD(model[2].parameters(), lr=0.1), 0.3, seed=2)
    before, moved = weights(model), copy.deepcopy(model)
    at = []
    for point_a, point_b in zip(a.points(), b.points(), strict=True):
        with point_a, point_b:
            at.append(weights(model))
            F.cross_entropy(model(x), y).backward()
    assert same(model, before)
    found = [p.grad.clone() for p in model.parameters()]
    each = []
    for there in at:
        torch.nn.utils.vector_to_parameters(torch.cat([w.flatten() for w in there]), moved.parameters())
        each.append(torch.autograd.grad(F.cross_entropy(moved(x), y), list(moved.parameters())))
    torch.testing.assert_close(found, [(plus + minus) / 2 for plus, minus in zip(*each, strict=True)])
    a.step()
    b.step()
    assert not same(model, before)


@pytest.mark.parametrize(("wrap", "way"), [*((SSGD, way) for way in WAYS), (SAM, "points"), (SAM, "closure")])
@pytest.mark.parametrize("known", [True, False], ids=["model", "no model"])
def test_what_another_optimizer_trains_gets_the_mean_if_the_model_is_known(way, known, wrap):
    x, y = vectors(dtype=torch.float32)
    model = mlp(torch.float32)
    F.cross_entropy(model(x), y).backward()
    clean = model[0].weight.grad.clone()
    opt = wrap(SGD(model[2].parameters(), lr=0.1), 1e-9, model=model if known else None)
    model.zero_grad()
    passes_of(opt, way, model, x, y)
    torch.testing.assert_close(model[0].weight.grad, clean if known else 2 * clean)


def test_a_layer_that_comes_later_is_beside_too():
    x, y = vectors(dtype=torch.float32)
    model = mlp(torch.float32)
    opt = SSGD(SGD(model[0].parameters(), lr=0.1), 1e-9, model=model)
    take_step(opt, "points", model, x, y)
    model.zero_grad()
    opt.zero_grad()
    model[2] = torch.nn.Linear(model[2].in_features, model[2].out_features)
    clean = torch.autograd.grad(F.cross_entropy(model(x), y), model[2].weight)[0]
    run_passes(opt, "points", model, x, y)
    torch.testing.assert_close(model[2].weight.grad, clean)


def passes_of(opt, way, model, x, y):
    """Also by a closure, which takes the step as well."""

    def closure():
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        return loss

    opt.step(closure) if way == "closure" else run_passes(opt, way, model, x, y)


@pytest.mark.parametrize("wrap", [SSGD, SAM])
def test_a_sparse_gradient_of_another_optimizer_is_averaged_too(wrap):
    torch.manual_seed(0)
    words, y = torch.randint(9, (8, 3)), torch.randint(3, (8,))
    for way in ("points", "closure"):
        embedding, head = torch.nn.EmbeddingBag(9, 4, sparse=True), torch.nn.Linear(4, 3)
        model = torch.nn.Sequential(embedding, head)
        F.cross_entropy(model(words), y).backward()
        clean = embedding.weight.grad.to_dense()
        model.zero_grad()
        other = SparseAdam(embedding.parameters())
        opt = wrap(SGD(head.parameters(), lr=0.0), 1e-9, model=model)
        passes_of(opt, way, model, words, y)
        torch.testing.assert_close(embedding.weight.grad.to_dense(), clean)
        passes_of(opt, way, model, words, y)
        torch.testing.assert_close(embedding.weight.grad.to_dense(), 2 * clean)
        other.step()


@pytest.mark.parametrize("wrap", [SSGD, SAM])
@pytest.mark.parametrize("to_none", [True, False])
def test_a_closure_that_clears_drops_another_optimizers_sparse_gradient_too(wrap, to_none):
    torch.manual_seed(0)
    words, y = torch.randint(9, (8, 3)), torch.randint(3, (8,))
    embedding, head = torch.nn.EmbeddingBag(9, 4, sparse=True), torch.nn.Linear(4, 3)
    model = torch.nn.Sequential(embedding, head)
    F.cross_entropy(model(words), y).backward()  # from an earlier batch
    clean = embedding.weight.grad.to_dense()
    opt = wrap(SGD(head.parameters(), lr=0.1), 1e-9, model=model)

    def closure():
        model.zero_grad(set_to_none=to_none)
        loss = F.cross_entropy(model(words), y)
        loss.backward()
        return loss

    opt.step(closure)
    torch.testing.assert_close(embedding.weight.grad.to_dense(), clean)


def test_of_a_batch_that_failed_nothing_is_left_to_another_optimizer():
    x, y = vectors(dtype=torch.float32)
    model = mlp(torch.float32)
    opt = SSGD(SGD(model[2].parameters(), lr=0.1), 0.3, model=model)
    with pytest.raises(ZeroDivisionError):
        for point in opt.points():
            with point:
                F.cross_entropy(model(x), y).backward()
                1 / (point.sign + 1)
    assert all(p.grad is None for p in model.parameters())


def test_a_group_that_is_added_is_its_own():
    x, y = vectors(dtype=torch.float32)
    model = mlp(torch.float32)
    opt = SSGD(SGD(model[2].parameters(), lr=0.1), 1e-9, model=model)
    take_step(opt, "points", model, x, y)
    opt.add_param_group({"params": list(model[0].parameters())})
    model.zero_grad()
    F.cross_entropy(model(x), y).backward()
    clean = model[0].weight.grad.clone()
    model.zero_grad()
    run_passes(opt, "points", model, x, y)
    torch.testing.assert_close(model[0].weight.grad, clean)


def test_a_base_with_the_noise_of_a_checkpoint_says_that_it_goes_on():
    model = mlp(torch.float32)
    saved = SSGD(SGD(model.parameters(), lr=0.1), 0.1, seed=1).state_dict()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        SSGD(SGD(model.parameters(), lr=0.1), 0.3)
    base = SGD(model.parameters(), lr=0.1)
    base.load_state_dict(saved)
    with pytest.warns(UserWarning, match=r"goes on instead of the level and seed given here: wrap the base first"):
        opt = SSGD(base, 0.3, seed=7)
    assert opt.param_groups[0]["noise"] == 0.1 and opt.param_groups[0]["noise_seed"] == 1
