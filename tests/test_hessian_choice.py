"""Which product with the Hessian is taken where a loss has no second derivative, or a wrong one."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import hessian

from ssgd.analysis import Hessian, Task

from .hessian_problems import apart, cross_entropy, some, task_of
from .problems import mlp, vectors


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
