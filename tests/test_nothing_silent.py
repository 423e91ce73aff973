"""What is done wrong, or changes behind our back, is served right or told in a sentence: never silently different."""

import contextlib
import copy
import inspect
import warnings
from collections import UserDict, deque, namedtuple

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim import SGD, AdamW, Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.optim.swa_utils import AveragedModel

from ssgd import SSGD
from ssgd.methods.plain import Plain
from ssgd.methods.rwp import RWP
from ssgd.methods.sam import SAM

from .problems import mlp, same, vectors, weights


def start(noise=0.3, **options):
    model = mlp(torch.float32)
    return model, SSGD(SGD(model.parameters(), lr=0.1), noise, **options)


def both(*batch, opt=None):
    """The halves of a batch."""
    opt = opt or start()[1]
    found = []
    for point, half in opt.split(*batch):
        with point:
            found.append(half)
    opt.zero_grad()
    return found


@pytest.mark.parametrize("samples", [8, 7])
def test_split_adds_the_halves_of_a_summed_loss_up(samples):
    model, _ = start()
    x, y = vectors(samples, torch.float32)
    F.cross_entropy(model(x), y, reduction="sum").backward()
    whole = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    opt = Plain(SGD(model.parameters(), lr=0.1))
    for point, (xb, yb) in opt.split(x, y, reduction="sum"):
        with point:
            F.cross_entropy(model(xb), yb, reduction="sum").backward()
    for p, g in zip(model.parameters(), whole, strict=True):
        assert torch.allclose(p.grad, g, atol=1e-5)
    with pytest.raises(ValueError, match="reduction must be one of 'mean', 'sum', not 'none'"):
        next(opt.split(x, y, reduction="none"))
    with pytest.raises(ValueError, match="RWP weighs its halves by shares of its own: use the mean loss"):
        next(RWP(SGD(model.parameters(), lr=0.1), 0.1).split(x, y, reduction="sum"))


SUMS = [
    lambda out, y: F.cross_entropy(out, y, reduction="sum"),
    lambda out, y: F.cross_entropy(out, y, reduction="none").sum(),
    lambda out, y: F.mse_loss(out, out.detach() + 1, reduction="sum"),
]
MEANS = [
    lambda out, y: F.cross_entropy(out, y),
    lambda out, y: torch.stack([F.cross_entropy(out, y), F.mse_loss(out, out.detach() + 1)]).sum(),
    lambda out, y: F.cross_entropy(out, y, reduction="none").sum() / len(y),
]


@pytest.mark.parametrize(("loss", "warned"), [(loss, True) for loss in SUMS] + [(loss, False) for loss in MEANS])
def test_split_warns_of_a_loss_that_it_can_see_is_a_sum(loss, warned):
    model, opt = start()
    x, y = vectors(dtype=torch.float32)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for point, (xb, yb) in opt.split(x, y):
            with point:
                point.loss = loss(model(xb), yb)
                point.loss.backward()
    expected = {(True, __file__)} if warned else set()
    assert {("reduction='sum'" in str(w.message), w.filename) for w in told} == expected
    with pytest.warns(UserWarning, match=r"the loss of a half is a mean over its samples: call split\(..., reduction="):
        for point, (xb, yb) in opt.split(x, y, reduction="sum"):
            with point:
                point.loss = F.cross_entropy(model(xb), yb)
                point.loss.backward()


def test_split_cuts_a_list_with_one_entry_a_sample_between_its_entries():
    pictures = [torch.randn(3, 20, 20) for _ in range(4)]
    boxes = [{"boxes": torch.randn(n, 4), "labels": torch.zeros(n)} for n in (1, 5, 2, 2)]
    labels = torch.arange(4)
    names = ["a", "b", "c", "d"]
    for batch in (
        (pictures, labels),
        (tuple(pictures), labels),
        (deque(pictures), labels),
        (pictures, boxes),  # no tensor counts the samples
        (tuple(pictures), tuple(boxes)),
        (pictures, [{"labels": torch.zeros(3)}] * 4),  # three boxes in each, and three channels
        ([torch.randn(n) for n in (5, 3, 9, 2)], labels),  # of different lengths
        (names, labels),
        (names, [0, 1, 2, 3]),
        ([[1, 2, 3], [4], [5, 6], [7, 8]], names),
        (names, [("a", "b")] * 4),
        (list(map(torch.tensor, range(4))), labels),
    ):
        halves = both(*batch)
        for part, one, other in zip(batch, *halves, strict=True):
            assert type(one) is type(other) is type(part)
            assert [len(one), len(other)] == [2, 2]
            assert all(a is b for a, b in zip([*one, *other], part, strict=True)) or isinstance(part, torch.Tensor)
    x = torch.randn(8, 5)  # a list of two dicts beside one of two tensors, which a third tensor shows to be columns
    assert [len(part) for part in both(x, [x, x], [{"x": x}, {"x": x}])[0]] == [4, 2, 2]
    one, other = both(boxes)  # samples that are not collated
    assert one == boxes[:2] and other == boxes[2:]
    (_, one), (_, other) = both(labels, {"beside": pictures})
    assert one["beside"] == pictures[:2] and other["beside"] == pictures[2:]


def test_split_keeps_lists_of_columns_and_what_has_no_entry_a_sample():
    x, y = torch.randn(8, 5), torch.arange(8)
    for batch in ([x, y], (x, y), [x], {"both": [x, y]}, [x, y, [str(i) for i in range(8)]], (x, x + 1)):
        one, other = both(batch)
        assert type(one) is type(other) is type(batch) and len(one) == len(batch)
    assert [len(t) for t in both([x, x + 1], y)[0][0]] == [4, 4]
    assert [len(t) for t in both([x[:2], y[:2]])[0]] == [1, 1]  # as many samples as columns
    for whole in ((32, 32), ["two", "words"], torch.Size([8, 8]), (0.5, 0.5, 0.5), None, {1, 2}):
        assert both(x, whole)[1][1] == whole


def test_split_refuses_a_list_that_may_be_of_samples_or_of_columns():
    x = torch.randn(8, 5)
    for batch in (
        ([torch.randn(3, 20, 20)] * 4,),  # images, or four columns of three samples
        ([x, x + 1],),
        ([{"x": x}, {"x": x}],),  # two samples that are not collated, or the batches of two loaders
        ([x, x], [x, x]),
        ([["a", "b", "c"], ["d", "e", "f"]],),
        ([torch.randn(3, 20, 20)] * 3, torch.arange(3)),  # as many images as channels
        (torch.arange(2), [x[:2], x[:2]]),
    ):
        with pytest.raises(TypeError, match=r"split\(\) cannot tell whether .* columns? .*split\(torch.arange\(n\)\)"):
            both(*batch)
    one, other = both(*[x, x + 1])  # the ways out
    assert torch.equal(torch.cat([one[1], other[1]]), x + 1)
    assert [i.tolist() for i in both(torch.arange(3))] == [[0, 1], [2]]


class Encoding(UserDict):
    """As Hugging Face's BatchEncoding."""

    def __init__(self, data, tokens):
        super().__init__(data)
        self.tokens = tokens

    def __getattr__(self, name):
        try:
            return self.data[name]
        except KeyError:
            raise AttributeError(name) from None


class Batch(dict):
    kind = "own"


class Boxes(list):
    def __init__(self, entries, size):
        super().__init__(entries)
        self.size = size


class Columns(tuple):
    pass


Pair = namedtuple("Pair", "x y")


def test_split_keeps_the_type_of_mappings_and_of_lists():
    x, y = torch.randn(5, 3), torch.arange(5)
    batch = Encoding({"input_ids": x, "more": Batch(labels=y)}, tokens=list("abcde"))
    one, other = both(batch)
    assert isinstance(one, Encoding) and [len(one.input_ids), len(other.input_ids)] == [3, 2]
    assert (one.tokens, other.tokens) == (["a", "b", "c"], ["d", "e"])
    assert isinstance(other.more, Batch) and other.more["labels"].tolist() == [3, 4]
    assert batch.input_ids is x and batch.more["labels"] is y
    one, other = both(Pair(x, y))
    assert isinstance(one, Pair) and other.y.tolist() == [3, 4]
    (_, one), (_, other) = both(y, Boxes(["a", "b", "c", "d", "e"], size=7))
    assert isinstance(one, Boxes) and (one.size, one, other) == (7, ["a", "b", "c"], ["d", "e"])
    (_, one), (_, other) = both(y, Columns((x, y)))
    assert isinstance(one, Columns) and [len(part) for part in other] == [2, 2]
    (_, one), (_, other) = both(y, Boxes([x, y], size=7))
    assert isinstance(one, Boxes) and [len(part) for part in other] == [2, 2]


def test_split_refuses_sets_and_containers_with_tensors_beside_their_entries():
    y = torch.arange(5)
    for unknown in ({1, 2, 3, 4, 5}, frozenset([y]), Boxes(["a"] * 5, size=y), Boxes([y, y.float()], size=y)):
        with pytest.raises(TypeError, match=rf"cannot halve a {type(unknown).__name__}: pass its tensors"):
            both(y, unknown)


@pytest.mark.parametrize("kind", ["sparse_coo", "nested"])
def test_split_refuses_batches_that_cannot_be_cut(kind):
    batch = {
        "sparse_coo": lambda: torch.eye(4).to_sparse(),
        "nested": lambda: torch.nested.nested_tensor([torch.ones(n) for n in (2, 3, 1, 1)], layout=torch.jagged),
    }[kind]()
    with pytest.raises(TypeError, match=rf"cannot halve a {kind} tensor.*split\(torch.arange\(n\)\) for n samples"):
        both(batch, torch.arange(4))


def backward(model, x, y):
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    return loss


BATCH = vectors(dtype=torch.float32)


def test_points_without_a_backward_are_told_at_the_step():
    model, opt = start()
    before = weights(model)

    def by_points():
        for point in opt.points():
            with point:
                F.cross_entropy(model(BATCH[0]), BATCH[1])

    def by_closure():
        with torch.no_grad():  # which step() lifts for the closure
            opt.step(lambda: F.cross_entropy(model(BATCH[0]), BATCH[1]))

    def without_gradients():
        with torch.no_grad():
            by_points()

    for run in (by_points, without_gradients, by_closure):
        with pytest.warns(UserWarning, match=r"without a gradient: run loss.backward\(\) inside `with"):
            run()
            opt.step()
    assert same(model, before)


def test_points_under_no_grad_say_so():
    model, opt = start()
    with torch.no_grad(), pytest.raises(RuntimeError, match=r"does not require grad.*take the points outside of it"):
        for point in opt.points():
            with point:
                backward(model, *BATCH)


def test_a_forward_before_its_point_is_told():
    model, opt = start()
    with pytest.raises(RuntimeError, match=r"(?s)inplace operation.*the forward pass ran before its point was entered"):
        for point in opt.points():
            loss = F.cross_entropy(model(BATCH[0]), BATCH[1])
            with point:
                loss.backward()


@pytest.mark.parametrize("early", ["loss", "output", "nothing"])
def test_a_forward_before_its_point_is_told_of_a_single_layer_too(early):
    """Its gradient needs no weight, so that autograd notices nothing."""
    model = nn.Linear(5, 3)
    opt = SSGD(SGD(model.parameters(), lr=0.1), 0.3)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for point in opt.points():
            out = model(BATCH[0])
            loss = F.cross_entropy(out, BATCH[1])
            with point:
                if early == "output":
                    loss = F.cross_entropy(out, BATCH[1])
                point.loss = loss if early != "nothing" else F.cross_entropy(model(BATCH[0]), BATCH[1])
                point.loss.backward()
    assert len(told) == (0 if early == "nothing" else 2)
    assert all("before its point was entered" in str(w.message) and w.filename == __file__ for w in told)


@pytest.mark.parametrize("back", [False, True])
def test_an_evaluation_inside_a_point_is_told(back):
    model, _ = start()
    opt = SSGD(SGD(model.parameters(), lr=0.1), 0.3, model=model)
    model.train(not back)
    with pytest.warns(
        UserWarning, match=r"from train\(\) to eval\(\), or back, inside a point: evaluate at clean weights"
    ):
        for point in opt.points():
            with point:
                backward(model, *BATCH)
                model.train(back)


def test_an_evaluation_inside_a_point_that_returns_to_train_mode_is_told():
    model, _ = start()
    opt = SSGD(SGD(model.parameters(), lr=0.1), 0.3, model=torch.compile(model, backend="eager"))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for point in opt.points():
            with point:
                backward(model, *BATCH)
                model.train()  # as it is
                twin = copy.deepcopy(model)
                model.eval()
                with torch.no_grad():
                    model(BATCH[0])
                model.train()
        for net in (model, twin):
            net.eval().train()
    assert len(told) == 4 and all("evaluate at clean weights" in str(w.message) for w in told)
    assert {w.filename for w in told} == {__file__}
    assert "train" not in model.__dict__


def test_an_average_inside_a_point_would_be_of_moved_weights():
    model, opt = start()
    averaged, own = AveragedModel(model), AveragedModel(other := mlp())
    before = weights(model)
    with pytest.raises(RuntimeError, match=r"would average moved weights: call it after opt.step\(\)"):
        for point in opt.points():
            with point:
                own.update_parameters(other)
                averaged.update_parameters(model)
    assert same(model, before)
    opt.zero_grad()
    averaged.update_parameters(model)
    assert same(averaged.module, before)
    assert AveragedModel.update_parameters.__module__ == AveragedModel.__module__


def test_a_backward_to_come_after_its_point_is_told_on_leaving_it():
    model, opt = start()
    with pytest.raises(RuntimeError, match="inplace operation"):
        for point in opt.points():
            with (
                pytest.warns(UserWarning, match=r"call backward\(\) inside `with point:`. Afterwards the weights"),
                point,
            ):
                loss = F.cross_entropy(model(BATCH[0]), BATCH[1])
            loss.backward()


def test_a_model_without_the_optimizers_parameters_is_refused():
    model, opt = start()
    other = mlp()
    for use in (lambda: SSGD(SGD(model.parameters(), lr=0.1), 0.3, model=other), lambda: opt.attach(other)):
        with pytest.raises(ValueError, match="this Sequential has none of the parameters that the optimizer updates"):
            use()
    assert opt.model is None


def test_a_level_set_on_the_optimizer_itself_is_refused():
    model, opt = start()
    with pytest.raises(AttributeError, match=r'opt.param_groups\[0\]\["noise"\] = 0.5'):
        opt.noise = 0.5
    climb = SAM(SGD(model.parameters(), lr=0.1), 0.05)
    with pytest.raises(AttributeError, match=r'opt.param_groups\[0\]\["rho"\] = 0.5'):
        climb.rho = 0.5
    assert not hasattr(opt, "noise") and opt.param_groups[0]["noise"] == 0.3


def test_a_level_in_percent_is_refused():
    model, opt = start()
    for use in (lambda: SSGD(SGD(model.parameters(), lr=0.1), 20), lambda: next(opt.points())):
        with pytest.raises(ValueError, match=r"\|\|n\|\| / \|\|w\|\|: 20 would drown the weights; 20 % is 0.2"):
            opt.param_groups[0]["noise"] = 20
            use()
    SAM(SGD(model.parameters(), lr=0.1), 20)  # a length


@pytest.mark.parametrize("knows", ["both", "first", "second"])
def test_points_of_two_optimizers_that_average_the_same_gradients_are_refused(knows):
    model, _ = start()
    before = weights(model)
    one, other = (
        SSGD(SGD(part.parameters(), lr=0.1), 0.3, seed=seed, model=model if knows in ("both", name) else None)
        for part, seed, name in ((model[0], 1, "first"), (model[2], 2, "second"))
    )
    with pytest.raises(
        RuntimeError, match=r"another optimizer is inside a point and averages the same gradients: leave out"
    ):
        for a, b in zip(one.points(), other.points(), strict=True):
            with a, b:
                backward(model, *BATCH)
    assert same(model, before)
    for opt in (one, other):  # one after the other
        opt.zero_grad()
        for point in opt.points():
            with point:
                backward(model, *BATCH)
        opt.step()


def test_the_noise_goes_on_where_the_base_steps_and_gradients_are_zeroed_in_place():
    model, opt = start()
    seen = []
    for _ in range(3):
        for point in opt.points():
            with point:
                seen.append(opt.param_groups[0]["noise_step"])
                backward(model, *BATCH)
        opt.base.step()
        opt.base.zero_grad(set_to_none=False)
    assert seen == [0, 0, 1, 1, 2, 2]
    for point in opt.points():  # and accumulation is one step
        with point:
            seen.append(opt.param_groups[0]["noise_step"])
            backward(model, *BATCH)
    for point in opt.points():
        with point:
            seen.append(opt.param_groups[0]["noise_step"])
            backward(model, *BATCH)
    assert seen[6:] == [3, 3, 3, 3]


def test_a_call_as_of_torchs_optimizers_shows_the_right_line():
    model = mlp()
    parameters = list(model.parameters())
    for given in (parameters, iter(parameters), model.named_parameters(), [{"params": parameters}]):
        with pytest.raises(TypeError) as told:
            SSGD(given, lr=0.1, momentum=0.9, noise=0.2)
        assert "\n    SSGD(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), noise=0.2)" in str(told.value)
    with pytest.raises(TypeError, match=r"SAM\(AdamW\(model.parameters\(\), lr=0.001\), rho=0.1\)"):
        SAM(AdamW, lr=0.001, rho=0.1)
    with pytest.raises(TypeError, match=r"SSGD\(torch.optim.SGD\(model.parameters\(\), lr=0.1\), \.\.\.\)"):
        SSGD(parameters, 0.2)
    assert list(inspect.signature(SSGD).parameters)[:2] == ["base", "noise"]


def test_complex_weights_are_served_whatever_their_shape():
    parameters = [nn.Parameter(torch.randn(2, n, dtype=torch.complex64)) for n in (1, 3)]
    opt = SSGD(SGD(parameters, lr=0.1), 0.1)
    before = [p.detach().clone() for p in parameters]
    moved = []
    for point in opt.points():
        with point:
            moved.append([p.detach().clone() for p in parameters])
            sum(p.abs().sum() for p in parameters).backward()
    assert len(opt.selected) == 2 and same(before, [p.detach() for p in parameters])
    for w, plus, minus in zip(before, *moved, strict=True):
        assert torch.allclose((plus - w).norm() / w.norm(), torch.tensor(0.1))
        assert torch.allclose(plus + minus, 2 * w)


@pytest.mark.parametrize("distribution", ["sphere", "sign", "uniform"])
def test_large_weights_in_half_precision_stay_finite_at_both_points(distribution):
    w = nn.Parameter(torch.full((2, 3), 40_000.0, dtype=torch.float16))
    opt = SSGD(SGD([w], lr=0.1), 0.1, distribution=distribution)
    for point in opt.points():
        with point:
            assert bool(w.isfinite().all()) and bool((w != 40_000).any())
            w.mean().backward()
    assert bool((w == 40_000).all())


@pytest.mark.parametrize("level", [0.3, 0.0])
def test_a_step_inside_a_point_has_a_sentence_of_its_own(level):
    model, opt = start(level)
    before = weights(model)
    with pytest.raises(RuntimeError, match=r"step\(\) inside a point would see perturbed weights: leave the `with"):
        for point in opt.points():
            with point:
                backward(model, *BATCH)
                opt.step()
    assert same(model, before)


class Several(Optimizer):
    """As heavyball's SplitOpt."""

    def __init__(self, *inside):
        self.optimizers = list(inside)
        super().__init__([p for one in inside for group in one.param_groups for p in group["params"]], {})


class Asks(SGD):
    def step(self, closure):
        with torch.enable_grad():
            loss = closure()
        super().step()
        return loss


def test_bases_that_hold_several_optimizers_or_need_a_closure_are_refused():
    model = mlp()
    parts = [SGD(part.parameters(), lr=0.1) for part in (model[0], model[2])]
    with pytest.raises(TypeError, match="Several is an optimizer around another: wrap the one inside it"):
        SSGD(Several(*parts), 0.3)
    with pytest.raises(TypeError, match=r"Asks is not served: its step\(\) needs a closure"):
        SSGD(Asks(model.parameters(), lr=0.1), 0.3)


def test_at_level_zero_parameters_of_one_dimension_are_the_base():
    biases, others = (nn.Parameter(torch.ones(3)) for _ in range(2))
    opt, base = SSGD(SGD([biases], lr=0.1), 0.0), SGD([others], lr=0.1)
    for point in opt.points():
        with point:
            biases.square().sum().backward()
    others.square().sum().backward()
    opt.step()
    base.step()
    assert torch.equal(biases, others)
    SSGD(SGD([nn.Parameter(torch.ones(3))], lr=0.1), 0.0).state_dict()
    opt.param_groups[0]["noise"] = 0.1
    with pytest.raises(ValueError, match="nothing to perturb: no trainable tensor of two or more dimensions"):
        next(opt.points())


def test_lazy_layers_are_refused_until_they_have_weights():
    model = nn.Sequential(nn.LazyLinear(3))
    with pytest.raises(ValueError, match="a lazy layer has no weights yet: run one batch through the model"):
        SSGD(SGD(model.parameters(), lr=0.1), 0.3)
    model(torch.ones(2, 5))
    SSGD(SGD(model.parameters(), lr=0.1), 0.3)


class Quantised(torch.Tensor):
    """As torchao's weights of quantised training: of the operations it knows, none are those that noise needs."""

    @staticmethod
    def __new__(cls, values):
        return torch.Tensor._make_wrapper_subclass(cls, values.shape, dtype=values.dtype)

    def __init__(self, values):
        self.values = values

    @classmethod
    def __torch_dispatch__(cls, func, types, args, kwargs=None):
        if func in (torch.ops.aten.detach.default, torch.ops.aten.clone.default):
            return cls(func(args[0].values))
        raise NotImplementedError(f"{func} is not there")


def test_quantised_weights_are_refused_by_name():
    parameters = [nn.Parameter(Quantised(torch.ones(2, 2))), nn.Parameter(torch.ones(2, 2))]
    with pytest.raises(TypeError, match=r"weights of class Quantised, .* leave them out by perturb=select\(model, whe"):
        SSGD(SGD(parameters, lr=0.1), 0.3)
    SSGD(SGD(parameters, lr=0.1), 0.3, perturb=parameters[1:])


# --- what hooks see ---------------------------------------------------------------------------------------------------


def test_a_post_accumulate_hook_sees_the_gradient_of_one_pass():
    """What it makes of each enters the mean: clamped at 0.01 in each, it stays so."""
    model, opt = start()
    seen = []

    def clamp(p):
        seen.append(p.grad.abs().max().item())
        p.grad.clamp_(-0.01, 0.01)

    model[0].weight.register_post_accumulate_grad_hook(clamp)
    alone = []
    for point in opt.points():
        with point:
            (g,) = torch.autograd.grad(F.cross_entropy(model(BATCH[0]), BATCH[1]), [model[0].weight])
            alone.append(g)
            backward(model, *BATCH)
    assert seen == [g.abs().max().item() for g in alone]
    assert torch.allclose(model[0].weight.grad, sum(g.clamp(-0.01, 0.01) for g in alone) / 2)


@pytest.mark.parametrize("level", [0.3, 0.0])
def test_global_step_hooks_run_once_a_step(level):
    model, opt = start(level)
    seen = []
    handles = [
        register_optimizer_step_pre_hook(lambda *_: seen.append("before")),
        register_optimizer_step_post_hook(lambda *_: seen.append("after")),
    ]
    try:
        for point in opt.points():
            with point:
                backward(model, *BATCH)
        opt.step()
        opt.step(lambda: backward(model, *BATCH))
    finally:
        for handle in handles:
            handle.remove()
    assert seen == ["before", "after"] * 2


def test_a_gradient_assigned_inside_a_point_is_that_points():
    model, opt = start()
    for point in opt.points():
        with point:
            gradients = torch.autograd.grad(F.cross_entropy(model(BATCH[0]), BATCH[1]), list(model.parameters()))
            for p, g in zip(model.parameters(), gradients, strict=True):
                p.grad = g
    by_hand = [p.grad for p in model.parameters()]
    opt.zero_grad()
    opt.param_groups[0]["noise_step"] = 0
    for point in opt.points():
        with point:
            backward(model, *BATCH)
    assert same(by_hand, [p.grad for p in model.parameters()])


def test_observers_of_quantised_weights_record_the_moved_ones_until_they_look_again():
    """What docs/howto.md tells of quantisation-aware training, and its remedy."""
    layer = pytest.importorskip("torch.ao.nn.qat").Linear(
        64, 64, qconfig=pytest.importorskip("torch.ao.quantization").get_default_qat_qconfig("x86")
    )
    opt = SSGD(SGD(layer.parameters(), lr=1e-9), 0.5)
    for _ in range(20):
        for point in opt.points():
            with point:
                layer(torch.ones(2, 64)).sum().backward()
        opt.step()
        opt.zero_grad()
    found = layer.weight_fake_quant.calculate_qparams()[0]
    clean = layer.weight.detach().abs().amax(1) / 127.5
    assert bool((found > 1.05 * clean).float().mean() > 0.9)
    for module in layer.modules():
        if hasattr(module, "reset_min_max_vals"):
            module.reset_min_max_vals()
    with torch.no_grad():
        layer(torch.ones(2, 64))
    assert torch.allclose(layer.weight_fake_quant.calculate_qparams()[0], clean)


# --- another optimizer on the same model ------------------------------------------------------------------------------


def test_a_second_optimizer_whose_gradients_are_a_sum_is_told():
    """Its first step shows which parameters it has; from the next batch on the points see what comes to them."""
    x, y = vectors(dtype=torch.float32)
    model = mlp(torch.float32)
    opt, head = SSGD(SGD(model[0].parameters(), lr=0.1), 0.2), SGD(model[2].parameters(), lr=0.1)

    def step():
        for point in opt.points():
            with point:
                F.cross_entropy(model(x), y).backward()
        for one in (opt, head):
            one.step()
            one.zero_grad()

    step()
    with pytest.warns(UserWarning, match=r"their sum, not their mean: pass model="):
        step()


def test_other_optimizers_are_not_told_where_their_gradients_are_right():
    x, y = vectors(dtype=torch.float32)
    model, other = mlp(torch.float32), mlp(torch.float32)
    opt, head = SSGD(SGD(model[0].parameters(), lr=0.1), 0.2, model=model), SGD(model[2].parameters(), lr=0.1)
    apart = SGD(other.parameters(), lr=0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(3):
            for point in opt.points():
                with point:
                    F.cross_entropy(model(x), y).backward()
            F.cross_entropy(other(x), y).backward()
            for one in (opt, head, apart):
                one.step()
                one.zero_grad()


def test_an_exception_caught_between_the_points_is_told_as_what_it_is():
    net = mlp()
    x, y = vectors()
    opt = SSGD(SGD(net.parameters(), lr=0.1), 0.2)
    with pytest.raises(RuntimeError, match="catch it outside of the loop over the points"):
        for point in opt.points():
            with contextlib.suppress(MemoryError), point:
                F.cross_entropy(net(x), y).backward()
                raise MemoryError


@pytest.mark.parametrize("way", ["points", "split"])
def test_a_hook_that_replaces_the_gradient_sees_that_of_one_pass(way):
    """The mean of the replaced gradients is what the hook makes of each pass's own."""
    found = []
    for replaces in (False, True):
        net = mlp()
        x, y = vectors()
        opt = SSGD(SGD(net.parameters(), lr=0.1), 0.2, seed=1)
        if replaces:
            for p in net.parameters():
                p.register_post_accumulate_grad_hook(lambda p: setattr(p, "grad", 3 * p.grad))
        for point, (a, b) in opt.split(x, y) if way == "split" else ((point, (x, y)) for point in opt.points()):
            with point:
                F.cross_entropy(net(a), b).backward()
        found.append([p.grad for p in net.parameters()])
    torch.testing.assert_close(found[1], [3 * g for g in found[0]])
