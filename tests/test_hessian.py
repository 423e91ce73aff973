"""Products with the Hessian, against exact Hessians, closed forms and curvlinops."""

import copy
import itertools
import warnings
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call, hessian
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.flop_counter import FlopCounterMode

from ssgd import models, select
from ssgd.analysis.hessian import Hessian
from ssgd.analysis.spectrum import spectrum
from ssgd.analysis.task import Task, evaluating

from .problems import mlp, same, vectors


def cross_entropy(model, batch):
    x, y = batch
    return F.cross_entropy(model(x), y)


def convnet():
    """Smooth, with batch-norm whose statistics are not those of the data, and dropout."""
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(1, 3, 3, stride=2), nn.BatchNorm2d(3), nn.Tanh(), nn.Dropout(0.5), nn.Flatten(), nn.Linear(12, 3)
    ).double()
    net[1].running_mean.normal_()
    net[1].running_var.uniform_(0.5, 2)
    return net


def images():
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(13, 1, 5, 5, generator=generator, dtype=torch.float64)
    return x, torch.randint(0, 3, (13,), generator=generator)


def ragged(data, sizes=(5, 5, 3)):
    return list(zip(*(t.split(sizes) for t in data), strict=True))


def task_of(kind):
    model, data = (mlp(), vectors(13)) if kind == "mlp" else (convnet(), images())
    return Task(model, cross_entropy, ragged(data)), data


def exact(task, data, tensors=None):
    """The Hessian of the loss over ``data`` at once, by forward over reverse differentiation."""
    names = {id(p): name for name, p in task.model.named_parameters()}
    tensors = list(task.model.parameters()) if tensors is None else tensors

    def loss(flat):
        cut = [part.view_as(p) for part, p in zip(flat.split([p.numel() for p in tensors]), tensors, strict=True)]
        values = {names[id(p)]: value for p, value in zip(tensors, cut, strict=True)}
        return task.loss(lambda *inputs: functional_call(task.model, values, inputs, tie_weights=False), data)

    return hessian(loss)(torch.cat([p.detach().reshape(-1) for p in tensors]))


def some(size, count=3, dtype=torch.float64):
    return torch.randn(count, size, generator=torch.Generator().manual_seed(2), dtype=torch.float64).to(dtype)


def apart(a, b):
    """The difference relative to the second, for the worst row."""
    return ((a.double() - b).norm(dim=-1) / b.norm(dim=-1)).max().item()


# --- right ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["mlp", "convnet"])
@pytest.mark.parametrize(("product", "tolerance"), [("forward", 1e-10), ("double", 1e-10), ("two-point", 1e-7)])
def test_products_are_the_exact_hessians(kind, product, tolerance):
    task, data = task_of(kind)
    with evaluating(task.model):
        full = exact(task, data)
    matrix = Hessian(task, product=product)
    v = some(matrix.size)
    assert matrix.size == len(full) and matrix.dtype == torch.float64
    assert apart(matrix.matmat(v), v @ full) < tolerance
    assert apart(matrix.matvec(v[0]), full @ v[0]) < tolerance
    assert apart(matrix.matvec(1e-6 * v[0]), full @ (1e-6 * v[0])) < tolerance
    assert matrix.samples == 13


@pytest.mark.parametrize("kind", ["mlp", "convnet"])
@pytest.mark.parametrize(("product", "tolerance"), [("forward", 1e-5), ("double", 1e-5), ("two-point", 3e-3)])
def test_single_precision(kind, product, tolerance):
    task, data = task_of(kind)
    with evaluating(task.model):
        full = exact(task, data)
    single = Task(copy.deepcopy(task.model).float(), task.loss, [(x.float(), y) for x, y in task.batches])
    matrix = Hessian(single, product=product)
    v = torch.cat([some(matrix.size), torch.linalg.eigh(full).eigenvectors[:, -1:].T])  # the sharpest direction too
    found = matrix.matmat(v)
    assert found.dtype == torch.float32
    assert apart(found, v @ full) < tolerance


def images_of(side):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(5, 3, side, side, generator=generator, dtype=torch.float64)
    return [(x[:3], torch.tensor([0, 2, 1])), (x[3:], torch.tensor([3, 0]))]


@pytest.mark.parametrize("mode", ["eval", "train"])
@pytest.mark.parametrize(("name", "side"), [("resnet20", 8), ("resnet20-B", 8), ("wrn20-2", 8), ("small-cnn", 8)])
def test_the_librarys_nets_forward_over_reverse(name, side, mode):
    """Every kind of layer, in ragged batches, against double backward; for the convolutions alone too."""
    torch.manual_seed(0)
    net = models.build(name, 4, 3).double()
    task = Task(net, cross_entropy, images_of(side))
    for chosen in (None, select(net, "conv")):
        matrix = Hessian(task, chosen, mode=mode)
        assert matrix.product == "forward"
        v = some(matrix.size, 1)
        assert apart(matrix.matmat(v), Hessian(task, chosen, "double", mode=mode).matmat(v)) < 1e-10


def test_the_language_models_forward_over_reverse():
    torch.manual_seed(0)
    net = models.build("lstm-tiny", 11, 1).double()
    words = torch.randint(11, (5, 7), generator=torch.Generator().manual_seed(1))

    def loss(model, batch):
        model.reset(len(batch))
        return F.cross_entropy(model(batch).flatten(0, 1), batch.flatten())

    task = Task(net, loss, [words[:3], words[3:]])
    matrix = Hessian(task)
    v = some(matrix.size, 1)
    assert matrix.product == "forward"
    assert apart(matrix.matmat(v), Hessian(task, product="double").matmat(v)) < 1e-10


@pytest.mark.parametrize("together", [1, 2])
def test_attention(together):
    """torch's fused kernels for it have no second derivative."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(4, 2, 5, batch_first=True)
    net = nn.Sequential(nn.Embedding(3, 4), layer, nn.Linear(4, 3)).double()
    words = torch.randint(3, (5, 6))
    task = Task(net, lambda m, b: F.cross_entropy(m(b).flatten(0, 1), b.flatten()), [words[:3], words[3:]])
    matrix, double = Hessian(task, together=together), Hessian(task, product="double")
    assert matrix.product == "forward"
    v = some(matrix.size, 2)
    assert apart(matrix.matmat(v), double.matmat(v)) < 1e-10


@pytest.mark.parametrize("together", [1, 3])
def test_the_cost_in_operations(together):
    """That of the forward passes it counts: no convolution becomes one with kernels as large as the image."""
    torch.manual_seed(0)
    net = models.build("resnet20", 4, 3)
    x, y = images_of(8)[0]
    task = Task(net, cross_entropy, [(x.float(), y)])
    matrix = Hessian(task, product="forward", together=together)
    v = some(matrix.size, 3, torch.float32)
    with FlopCounterMode(display=False) as forward, torch.no_grad():
        net(x.float())
    matrix.passes = 0
    with FlopCounterMode(display=False) as product:
        matrix.matmat(v)
    assert product.get_total_flops() / forward.get_total_flops() == pytest.approx(matrix.passes, rel=0.02)


class ByHand(nn.BatchNorm2d):
    """Batch-norm over the batch in plain operations: torch.func's second derivatives of torch's are not symmetric."""

    def forward(self, x):
        variance, mean = torch.var_mean(x, (0, 2, 3), correction=0, keepdim=True)
        return (x - mean) / (variance + self.eps).sqrt() * self.weight[:, None, None] + self.bias[:, None, None]


def test_batch_statistics():
    """In train mode the loss of a batch has its own statistics; dropout stays off, the running statistics stay."""
    task, _ = task_of("convnet")
    before = copy.deepcopy(task.model.state_dict())
    oracle, _ = task_of("convnet")
    oracle.model[1] = ByHand(3).double()
    with evaluating(oracle.model):
        parts = [len(y) / 13 * exact(oracle, (x, y)) for x, y in task.batches]
    for product, tolerance in (("forward", 1e-10), ("double", 1e-10), ("two-point", 1e-7)):
        matrix = Hessian(task, product=product, mode="train")
        v = some(matrix.size)
        assert apart(matrix.matmat(v), v @ sum(parts)) < tolerance
    assert apart(Hessian(task).matmat(v), v @ sum(parts)) > 0.1
    assert all(torch.equal(value, before[name]) for name, value in task.model.state_dict().items())


def test_linear_regression():
    """H = 2 XᵀX / n."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(13, 4, generator=generator, dtype=torch.float64)
    model = nn.Linear(4, 1, bias=False).double()
    task = Task(model, lambda m, b: (m(b[0]) - b[1]).square().mean(), ragged((x, x.sum(1, keepdim=True))))
    for product in ("forward", "double", "two-point"):
        found = Hessian(task, product=product).matmat(torch.eye(4, dtype=torch.float64))
        torch.testing.assert_close(found, 2 * x.T @ x / 13, rtol=1e-8, atol=1e-8)


def test_logistic_regression():
    """H = Xᵀ diag(p (1 − p)) X / n."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(13, 4, generator=generator, dtype=torch.float64)
    y = torch.randint(0, 2, (13, 1), generator=generator).double()
    model = nn.Linear(4, 1, bias=False).double()
    task = Task(model, lambda m, b: F.binary_cross_entropy_with_logits(m(b[0]), b[1]), ragged((x, y)))
    p = model(x).sigmoid().detach()
    for product, tolerance in (("forward", 1e-12), ("double", 1e-12), ("two-point", 1e-8)):
        found = Hessian(task, product=product).matmat(torch.eye(4, dtype=torch.float64))
        torch.testing.assert_close(found, x.T @ (p * (1 - p) * x) / 13, rtol=tolerance, atol=tolerance)


def test_curvlinops_agrees():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        curvlinops = pytest.importorskip("curvlinops", reason="the oracle curvlinops-for-pytorch is not installed")
        task, _ = task_of("convnet")
        with evaluating(task.model):
            parameters = list(task.model.parameters())
            theirs = curvlinops.HessianLinearOperator(
                task.model, nn.CrossEntropyLoss(), parameters, task.batches, check_deterministic=False
            )
            v = some(sum(p.numel() for p in parameters))
            expected = (theirs @ v.T).T
    assert apart(Hessian(task).matmat(v), expected) < 1e-10


@pytest.mark.parametrize("product", ["forward", "double", "two-point"])
def test_a_layer_and_a_selection(product):
    task, data = task_of("convnet")
    with evaluating(task.model):
        head, kernels = exact(task, data, list(task.model[5].parameters())), exact(task, data, [task.model[0].weight])
    v = some(39)
    assert apart(Hessian(task, task.model[5], product).matmat(v), v @ head) < 1e-7
    v = some(27)
    assert apart(Hessian(task, select(task.model, "conv"), product).matmat(v), v @ kernels) < 1e-7


class Tied(nn.Module):
    """A layer with two names, a weight in two layers, a frozen layer and an idle weight."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.a = nn.Linear(3, 3, bias=False)
        self.again = self.a
        self.sharing = nn.Linear(3, 3, bias=False)
        self.frozen = nn.Linear(3, 3).requires_grad_(False)
        self.idle = nn.Parameter(torch.ones(2))
        self.double()
        self.sharing.weight = self.a.weight

    def forward(self, x):
        return self.frozen(self.sharing(self.again(self.a(x).tanh()).tanh()))


@pytest.mark.parametrize("compile", [False, True])
@pytest.mark.parametrize("product", ["forward", "double", "two-point"])
def test_tied_frozen_and_idle_weights(monkeypatch, product, compile):
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    x = vectors(13)[0][:, :3]
    task = Task(Tied(), lambda m, b: m(b).square().mean(), list(x.split(5)))
    weight = task.model.a.weight

    def loss(w):
        return task.model.frozen((x @ w.T).tanh().matmul(w.T).tanh() @ w.T).square().mean()

    full = hessian(loss)(weight.detach()).reshape(9, 9)
    matrix = Hessian(task, product=product, compile=compile)
    assert matrix.size == 11
    v = some(11)
    found = matrix.matmat(v)
    assert apart(found[:, 2:], v[:, 2:] @ full) < 1e-8  # a module's own weights, here the idle one, come first
    assert not found[:, :2].any()
    assert task.model.a.weight is task.model.sharing.weight is weight


@pytest.mark.parametrize("product", ["forward", "double", "two-point"])
def test_a_loss_without_curvature_and_a_vector_without_length(product):
    task, _ = task_of("mlp")
    assert not Hessian(task, product=product).matvec(torch.zeros(75)).any()
    flat = Task(nn.Linear(5, 3).double(), lambda m, b: m(b[0]).mean(), task.batches)
    assert Hessian(flat).product == "forward"
    assert Hessian(flat, product=product).matvec(torch.ones(18)).abs().max() < 1e-9


# --- which product --------------------------------------------------------------------------------------------------


class Reader(nn.Module):
    """Two recurrent layers with dropout between them, and a label for every step."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.lstm = nn.LSTM(2, 3, num_layers=2, dropout=0.5)
        self.head = nn.Linear(3, 3)
        self.double()

    def forward(self, x):
        return self.head(self.lstm(x.transpose(0, 1))[0]).log_softmax(-1)


STEPS, SPOKEN = 4, (1, 2)


def ctc(model, x):
    lengths = torch.full((len(x),), STEPS), torch.full((len(x),), len(SPOKEN))
    return F.ctc_loss(model(x), torch.tensor([SPOKEN] * len(x)), *lengths, reduction="sum") / len(x)


def ctc_by_hand(model, x):
    """The probability of every path of labels that reads as the target, added up."""
    paths = itertools.product(range(3), repeat=STEPS)
    paths = [path for path in paths if tuple(label for label, _ in itertools.groupby(path) if label) == SPOKEN]
    scores = model(x)
    along = [sum(scores[step, :, label] for step, label in enumerate(path)) for path in paths]
    return -torch.stack(along).logsumexp(0).mean()


def test_ctc_has_no_second_derivative_and_gets_two_points(capsys):
    x = torch.randn(7, STEPS, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    model = Reader()
    theirs, ours = Task(model, ctc, [x[:5], x[5:]]), Task(model, ctc_by_hand, [x[:5], x[5:]])
    assert ctc(model.eval(), x).item() == pytest.approx(ctc_by_hand(model, x).item())
    matrix, oracle = Hessian(theirs), Hessian(ours)
    assert (matrix.product, oracle.product) == ("two-point", "forward")
    told = capsys.readouterr().err
    assert told.startswith("products with the Hessian come from the two-point difference (not forward over reverse: ")
    assert "; double backward: derivative for aten::_ctc_loss_backward" in told and told.count("\n") == 1
    v = some(matrix.size)
    assert apart(matrix.matmat(v), oracle.matmat(v)) < 1e-7
    with pytest.raises(
        ValueError, match=r"twice \(derivative for aten::_ctc_loss_backward is not.*product='two-point'"
    ):
        Hessian(theirs, product="double")


def test_recurrent_layers_without_their_dropout():
    model = Reader()
    x = torch.randn(7, STEPS, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    seen = set()

    def loss(m, batch):
        seen.add((m.lstm.training, m.lstm.dropout))
        return -m(batch)[..., 0].mean()

    task = Task(model, loss, [x[:5], x[5:]])
    v = some(Hessian(task).size)
    ways = ("forward", "forward", "double", "two-point")
    forward, again, double, two = (Hessian(task, product=p).matmat(v) for p in ways)
    assert torch.equal(forward, again)
    assert apart(forward, double) < 1e-10 and apart(two, double) < 1e-7
    assert seen == {(True, 0.0)}  # in eval mode cuDNN would refuse to differentiate
    assert model.lstm.dropout == 0.5


class Once(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, slope):
        return 3 * slope * ctx.saved_tensors[0] ** 2


class CudnnCtcLoss(torch.autograd.Function):
    """As cuDNN's: it makes the gradient on its way forward, and takes it for a constant ever after."""

    @staticmethod
    def forward(ctx, x):
        ctx.slope = 3 * x.detach() ** 2
        return x**3

    @staticmethod
    def backward(ctx, slope):
        return slope * ctx.slope


class NoRoom(Once):
    @staticmethod
    def backward(ctx, slope):
        return Full.apply(slope * ctx.saved_tensors[0])


class Full(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, slope):
        raise torch.OutOfMemoryError("no room")


@pytest.mark.parametrize("operation", [Once, CudnnCtcLoss])
def test_operations_that_can_be_differentiated_once(operation):
    x = torch.randn(13, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    model = mlp()
    matrix = Hessian(Task(model, lambda m, b: operation.apply(m(b)).square().mean(), [x]))
    oracle = Hessian(Task(model, lambda m, b: (m(b) ** 3).square().mean(), [x]))
    assert (matrix.product, oracle.product) == ("two-point", "forward")
    v = some(matrix.size)
    assert apart(matrix.matmat(v), oracle.matmat(v)) < 1e-7
    with pytest.raises(ValueError, match=r"no second derivative to rely on: .*use product='two-point'"):
        Hessian(matrix.task, product="double")


def test_weight_norm_whose_second_derivative_is_wrong_in_torch():
    model, (x, y) = mlp(), vectors(13)
    nn.utils.parametrizations.weight_norm(model[0])
    task = Task(model, cross_entropy, [(x, y)])

    def plain(values, batch):  # g v / ‖v‖ of operations that torch knows how to differentiate
        bias, g, v, *rest = values
        hidden = (batch[0] @ (g * v / v.norm(dim=1, keepdim=True)).T + bias).tanh()
        return F.cross_entropy(hidden @ rest[0].T + rest[1], batch[1])

    weights = list(model.parameters())
    matrix = Hessian(task)
    assert plain(weights, (x, y)).item() == pytest.approx(cross_entropy(model, (x, y)).item())
    assert matrix.product == "two-point"
    sizes = [p.numel() for p in weights]

    def loss(vector):
        return plain([part.view_as(p) for part, p in zip(vector.split(sizes), weights, strict=True)], (x, y))

    v = some(matrix.size)
    assert apart(matrix.matmat(v), v @ hessian(loss)(torch.cat([p.detach().flatten() for p in weights]))) < 1e-7


def test_a_full_memory_is_not_taken_for_a_missing_derivative():
    task = Task(mlp(), lambda m, b: NoRoom.apply(m(b[0])).square().mean(), [vectors(5)])
    with pytest.raises(torch.OutOfMemoryError):
        Hessian(task)


def test_a_loss_that_takes_weights_past_the_model(capsys):
    """A penalty on weights that were listed before: handed-in ones would not reach it."""
    task, data = task_of("mlp")
    weights = list(task.model.parameters())
    penalised = Task(task.model, lambda m, b: cross_entropy(m, b) + sum(p.square().sum() for p in weights), [data])
    matrix = Hessian(penalised)
    assert matrix.product == "double" and "takes weights from elsewhere" in capsys.readouterr().err
    v = some(matrix.size)
    assert apart(matrix.matmat(v), Hessian(task).matmat(v) + 2 * v) < 1e-10
    with pytest.raises(ValueError, match="takes weights from elsewhere"):
        Hessian(penalised, product="forward")


def test_products_that_are_no_hessians_are_noticed(capsys):
    class Crooked(torch.autograd.Function):
        """Its backward is no gradient, so that what follows from it is not symmetric."""

        generate_vmap_rule = True

        @staticmethod
        def forward(x):
            return x.clone()

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(*inputs)
            ctx.save_for_forward(*inputs)

        @staticmethod
        def backward(ctx, slope):
            return slope * ctx.saved_tensors[0].roll(1, -1)

        @staticmethod
        def jvp(ctx, step):
            return step.clone()

    task, _ = task_of("mlp")
    matrix = Hessian(Task(task.model, lambda m, b: Crooked.apply(m(b[0])).square().mean(), task.batches))
    assert matrix.product == "two-point"
    assert capsys.readouterr().err.count("its second derivatives are not symmetric") == 2


@pytest.mark.parametrize("kind", ["mlp", "convnet"])
@pytest.mark.parametrize("mode", ["eval", "train"])
@pytest.mark.parametrize("together", [2, 3, 9])
@pytest.mark.parametrize("product", ["forward", "double"])
def test_several_vectors_in_one_pass(kind, mode, together, product):
    """Also where they do not come out even, and for a layer alone."""
    task, _ = task_of(kind)
    matrix = Hessian(task, product=product, mode=mode, together=together)
    plain = Hessian(task, product="double", mode=mode)
    v = some(matrix.size, 5)
    assert apart(matrix.matmat(v), plain.matmat(v)) < 1e-10
    head = task.model[-1]
    matrix = Hessian(task, head, product=product, mode=mode, together=together)
    plain = Hessian(task, head, product="double", mode=mode)
    v = some(matrix.size, 5)
    assert apart(matrix.matmat(v), plain.matmat(v)) < 1e-10


@pytest.mark.parametrize(
    ("product", "mode", "together"),
    [("forward", "eval", 1), ("forward", "train", 2), ("double", "eval", 2), ("two-point", "train", 1)],
)
def test_compiled(monkeypatch, capsys, product, mode, together):
    """For the batches of 5, not for the last one of 3."""
    torch._dynamo.reset()
    sizes = []

    def compiler(function, **_):
        fast = original(function, backend="aot_eager", fullgraph=True)
        return lambda *arguments: sizes.append(len(arguments[1][1])) or fast(*arguments)

    original = torch.compile
    monkeypatch.setattr(torch, "compile", compiler)
    task, _ = task_of("convnet")
    compiled = Hessian(task, product=product, compile=True, mode=mode, together=together)
    v = some(compiled.size)
    tolerance = 1e-8 if product == "two-point" else 1e-10
    for _ in range(2):
        assert apart(compiled.matmat(v), Hessian(task, product=product, mode=mode).matmat(v)) < tolerance
    assert set(sizes) == ({5, 3} if product == "two-point" else {5})
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("product", ["forward", "double"])
def test_what_cannot_be_captured_goes_without(capsys, product):
    task, _ = task_of("convnet")
    matrix = Hessian(task, product=product, graph=True, together=3)
    v = some(matrix.size)
    for _ in range(2):
        assert apart(matrix.matmat(v), Hessian(task).matmat(v)) < 1e-10
    message = "a CUDA graph does not work here, all goes on without, slower (ValueError: not all of a batch"
    assert capsys.readouterr().err.count(message) == 1


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("product", ["forward", "double"])
@pytest.mark.parametrize("compile", [False, True])
def test_captured(capsys, compile, product):
    task, _ = task_of("convnet")
    task = replace(task, model=task.model.cuda(), batches=[(x.cuda(), y.cuda()) for x, y in task.batches])
    matrix = Hessian(task, product=product, graph=True, compile=compile, together=2)
    for seed in range(3):
        v = (seed + 1) * some(matrix.size)
        assert apart(matrix.matmat(v).cpu(), Hessian(task, product="double").matmat(v).cpu()) < 1e-10
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("dtype", "precision", "eps"),
    [(torch.float32, "fp32", 2**-23), (torch.float64, "fp32", 2**-52), (torch.float32, "tf32", 2**-10)],
)
@pytest.mark.parametrize(("weight", "reach"), [(3.0, 6.0), (0.1, 1.0)])
def test_the_two_points(dtype, precision, eps, weight, reach):
    """They lie ¼ ∛(eps · max(1, ‖w‖)) from w on either side along v, whatever its length."""
    model = nn.Linear(4, 1, bias=False).to(dtype)
    nn.init.constant_(model.weight, weight)
    seen = []

    def loss(m, batch):
        seen.append(m.weight.detach().clone().flatten())
        return m(batch).square().mean()

    task = Task(model, loss, [torch.ones(1, 4, dtype=dtype)])
    Hessian(task, product="two-point", precision=precision).matvec(torch.tensor([5.0, 0, 0, 0]))
    length = 0.25 * (eps * reach) ** (1 / 3)
    moves = [(point - weight)[0].item() for point in seen]
    assert moves == pytest.approx([length, -length], rel=1e-3)
    assert not (seen[0] - seen[1])[1:].any()


# --- nothing is moved -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("product", ["forward", "double", "two-point"])
@pytest.mark.parametrize("mode", ["eval", "train"])
@pytest.mark.parametrize("fails", [False, True])
def test_the_model_is_left_as_it_was(product, mode, fails):
    task, _ = task_of("convnet")
    model = task.model.train()
    model[1].eval()
    gradients = [torch.randn_like(p) for p in model.parameters()]
    for p, gradient in zip(model.parameters(), gradients, strict=True):
        p.grad = gradient
    before = [t.clone() for t in (*model.parameters(), *model.buffers(), *gradients)]
    modes, storages = [m.training for m in model.modules()], [p.data_ptr() for p in model.parameters()]
    calls = []

    def loss(m, batch):
        calls.append(batch)
        torch.rand(3)
        if fails and len(calls) == 3:
            raise KeyboardInterrupt
        return cross_entropy(m, batch)

    torch.manual_seed(5)
    stream = torch.get_rng_state()
    try:
        matrix = Hessian(Task(model, loss, task.batches), product=product, mode=mode)
        matrix.matvec(some(matrix.size)[0])
        assert not fails
    except KeyboardInterrupt:
        assert fails
    assert same([*model.parameters(), *model.buffers(), *(p.grad for p in model.parameters())], before)
    assert all(p.grad is gradient for p, gradient in zip(model.parameters(), gradients, strict=True))
    assert [m.training for m in model.modules()] == modes
    assert [p.data_ptr() for p in model.parameters()] == storages
    assert model[1].track_running_stats
    assert torch.equal(torch.get_rng_state(), stream)


def test_a_loader_that_shuffles_gives_the_same_matrix_each_time():
    model, data = convnet(), images()
    loader = DataLoader(TensorDataset(*data), batch_size=5, shuffle=True)
    matrix = Hessian(Task(model, cross_entropy, loader), mode="train")  # where it matters which samples meet
    v = some(matrix.size)[0]
    first = matrix.matvec(v)
    torch.rand(7)
    assert torch.equal(matrix.matvec(v), first)
    torch.manual_seed(99)
    assert not torch.equal(Hessian(matrix.task, mode="train").matvec(v), first)


def test_inside_no_grad_and_inference_mode():
    task, _ = task_of("mlp")
    matrix = Hessian(task)
    v = some(matrix.size)[0]
    expected = matrix.matvec(v)
    with torch.no_grad():
        assert torch.equal(matrix.matvec(v), expected)
    with torch.inference_mode():
        assert torch.equal(Hessian(task).matvec(v), expected)
    assert not expected.requires_grad


def test_single_precision_is_not_rounded_further():
    conv = torch.backends.cudnn.conv
    before, seen = conv.fp32_precision, []

    def loss(m, batch):
        seen.append({torch.backends.cuda.matmul.fp32_precision, conv.fp32_precision})
        return cross_entropy(m, batch)

    task, _ = task_of("mlp")
    try:
        conv.fp32_precision = "tf32"
        Hessian(Task(task.model, loss, task.batches)).matvec(torch.ones(75))
        assert seen and all(precisions == {"ieee"} for precisions in seen)
        assert conv.fp32_precision == "tf32"
    finally:
        conv.fp32_precision = before


def test_tf32_where_it_is_asked_for():
    """By torch's newer settings and its older ones, which torch.compile reads and which may not contradict them."""
    settings = lambda: (  # noqa: E731
        torch.backends.cuda.matmul.fp32_precision,
        torch.backends.cudnn.conv.fp32_precision,
        torch.backends.cudnn.allow_tf32,
        torch.get_float32_matmul_precision(),
    )
    before, seen = settings(), []

    def loss(m, batch):
        seen.append(settings())
        return cross_entropy(m, batch)

    task, _ = task_of("mlp")
    spectrum(Hessian(Task(task.model, loss, task.batches), precision="tf32"), steps=2, probes=1)
    assert set(seen) == {("tf32", "tf32", True, "high")}
    seen.clear()
    Hessian(Task(task.model, loss, task.batches))
    assert set(seen) == {("ieee", "ieee", False, "highest")}
    assert settings() == before


# --- costs and refusals ---------------------------------------------------------------------------------------------


def test_the_cost_in_forward_passes():
    task, _ = task_of("mlp")
    for product, together, one, three in (
        ("forward", 1, 9, 27),
        ("forward", 2, 9, 24),
        ("double", 1, 9, 21),
        ("two-point", 1, 6, 18),
    ):
        matrix = Hessian(task, product=product, together=together)
        matrix.matvec(torch.ones(75))
        assert matrix.passes == one
        matrix.matmat(torch.ones(3, 75))
        assert matrix.passes == one + three


def test_refusals():
    task, _ = task_of("mlp")
    with pytest.raises(ValueError, match="product must be one of 'auto', 'forward', 'double', 'two-point', not 'hvp'"):
        Hessian(task, product="hvp")
    with pytest.raises(ValueError, match="mode must be one of 'eval', 'train', not 'test'"):
        Hessian(task, mode="test")
    with pytest.raises(ValueError, match="precision must be one of 'fp32', 'tf32', not 'bf16'"):
        Hessian(task, precision="bf16")
    with pytest.raises(ValueError, match=r"not of the task's model: take them from task\.model"):
        Hessian(task, mlp())
    with pytest.raises(ValueError, match="no weights to differentiate by"):
        Hessian(task, [])
    for empty in ([], iter(())):
        with pytest.raises(ValueError, match="the task has no batches"):
            Hessian(Task(task.model, task.loss, empty))
    once = Task(task.model, task.loss, iter(task.batches))
    matrix = Hessian(once, product="two-point")
    matrix.matvec(torch.ones(75))
    with pytest.raises(ValueError, match="can be gone through more than once"):
        matrix.matvec(torch.ones(75))
    frozen = copy.deepcopy(task.model).requires_grad_(False)
    with pytest.raises(ValueError, match="some of the weights are frozen"):
        Hessian(Task(frozen, task.loss, task.batches), frozen.parameters())
    half = copy.deepcopy(task.model).bfloat16()
    with pytest.raises(ValueError, match=r"more precision than torch.bfloat16: call model.float\(\)"):
        Hessian(Task(half, task.loss, task.batches))
    crooked = nn.ParameterList([torch.ones(2, 2, dtype=torch.complex64), torch.ones(2)])
    with pytest.raises(ValueError, match="some of the weights are complex, which are not served: leave them out"):
        Hessian(Task(crooked, lambda m, b: m[0].abs().sum(), task.batches))
    with pytest.raises(TypeError, match=r"needs a Task, such as Task\(model, loss, batches\), not a Sequential"):
        Hessian(task.model)
    half[0].float()
    with pytest.raises(ValueError, match="one dtype and be on one device"):
        Hessian(Task(half, task.loss, task.batches))


class Checkpointed(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = mlp()

    def forward(self, x):
        return checkpoint(self.net, x.clone().requires_grad_(), use_reentrant=True)


@pytest.mark.parametrize("product", ["auto", "forward", "double", "two-point"])
@pytest.mark.parametrize(
    ("model", "loss", "sentence"),
    [
        (Checkpointed, cross_entropy, r"no gradient reaches the weights: .* use_reentrant=False"),
        (mlp, lambda m, b: cross_entropy(m, b).detach(), "no gradient reaches the weights"),
        (mlp, lambda m, b: F.cross_entropy(m(b[0]), b[1], reduction="none"), r"a single number, .* of shape \(13,\)"),
    ],
    ids=["checkpointed", "detached", "one a sample"],
)
def test_losses_without_a_gradient(product, model, loss, sentence):
    with pytest.raises(ValueError, match=sentence):
        Hessian(Task(model(), loss, [vectors(13)]), product=product).matvec(torch.ones(75))
