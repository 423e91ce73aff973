"""What is done wrong, or changes behind our back, is served right or told in a sentence: never silently different."""

import warnings
from collections import UserDict, deque, namedtuple

import pytest
import torch
import torch.nn.functional as F
from torch.nn.utils.rnn import pack_padded_sequence
from torch.optim import SGD

from ssgd import SSGD
from ssgd.methods.plain import Plain
from ssgd.methods.rwp import RWP

from .problems import mlp, vectors


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
    with pytest.warns(UserWarning, match=r"the loss is a mean over the samples of a half: call split\(..., reduction="):
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


@pytest.mark.parametrize("kind", ["sparse_coo", "nested", "PackedSequence"])
def test_split_refuses_batches_that_cannot_be_cut(kind):
    batch = {
        "sparse_coo": lambda: torch.eye(4).to_sparse(),
        "nested": lambda: torch.nested.nested_tensor([torch.ones(n) for n in (2, 3, 1, 1)], layout=torch.jagged),
        "PackedSequence": lambda: pack_padded_sequence(torch.ones(4, 4, 2), torch.tensor([4, 3, 2, 1]), True),
    }[kind]()
    with pytest.raises(TypeError, match=rf"cannot halve a {kind}.*split\(torch.arange\(n\)\) for n samples"):
        both(batch, torch.arange(4))
