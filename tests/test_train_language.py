"""A language model through the engine: perplexity, the carried state, resume in the middle of an epoch."""

import math
from dataclasses import replace

import pytest
import torch

from ssgd.lab.data import load
from ssgd.lab.experiments import get
from ssgd.lab.models import build
from ssgd.lab.models.registry import set_dropout
from ssgd.lab.train import Execution, train
from ssgd.lab.train.distributed import Ranks
from ssgd.lab.train.job import Job, Sources
from ssgd.lab.train.phases import parse
from ssgd.lab.train.running import Run

WORDS = replace(get("words"), phases="1-1", train_limit=3000, test_limit=500)


def ended(folder, name):
    place = folder / name / "seed-0"
    return (place / "weights.safetensors").read_bytes(), (place / "metrics.jsonl").read_bytes()


def cut_it_ends_the_same(folder, recipe, stretches):
    """Cut after each of some stretches of steps, in the middle of an epoch, and trained to its end."""
    whole = Execution(out=str(folder / "whole"), progress=False)
    cut = Execution(out=str(folder / "cut"), progress=False, checkpoint_seconds=0.0)
    train(recipe, whole)
    for steps in stretches:
        job = Job(recipe, 0, cut, Ranks(), print)
        job.begin(Sources(cut))
        for _ in range(steps):
            job.advance()
        assert job.run is not None and job.run.step_in_epoch
        job.close()
    train(recipe, cut)
    assert ended(folder / "whole", recipe.name) == ended(folder / "cut", recipe.name)


@pytest.mark.parametrize("method", ["base", "both", "split", "sam", "swa"])
def test_it_learns_and_tells_perplexity(tmp_path, method):
    (result,) = train(replace(WORDS, method=method, phases="2-1"), Execution(out=str(tmp_path), progress=False))
    assert 1 < result["test_perplexity"] < 29  # thirty words, one of them the end of a line
    assert result["test_perplexity"] == pytest.approx(math.exp(result["test_loss"]))
    assert {"valid_perplexity", "valid_loss"} <= set(result) and "test_accuracy" not in result


@pytest.mark.parametrize("method", ["base", "both", "split"])
def test_cut_in_mid_epoch_it_ends_the_same(tmp_path, method):
    cut_it_ends_the_same(tmp_path, replace(WORDS, method=method), (2, 3))


def test_both_passes_begin_where_the_last_step_ended(tmp_path):
    execution = Execution(out=str(tmp_path), progress=False)
    job = Job(replace(WORDS, method="both", level=0.2), 0, execution, Ranks(), print)
    job.begin(Sources(execution))
    net = job.run.net
    seen = []
    inner = net.forward

    def watched(x):
        seen.append(net.carried().clone())
        return inner(x)

    net.forward = watched
    for _ in range(3):
        job.advance()
    plus, minus = seen[0::2], seen[1::2]
    assert all(torch.equal(a, b) for a, b in zip(plus, minus, strict=True))
    assert not torch.equal(plus[1], plus[2])
    job.close()


def test_the_rate_is_zarembas():
    schedule = parse("55", (1.0,), "base", decay=1.15, decay_after=14)
    rates = [schedule.lr(epoch) for epoch in range(55)]
    assert rates[:14] == [1.0] * 14
    assert rates[14:] == pytest.approx([1.15**-k for k in range(1, 42)])


def test_gradients_are_clipped(tmp_path):
    """With a bound so low that every step is cut to it, plain SGD moves by lr times the bound."""
    execution = Execution(out=str(tmp_path), progress=False)
    job = Job(replace(WORDS, clip=1e-3, lr=(0.5, 0.5)), 0, execution, Ranks(), print)
    job.begin(Sources(execution))
    before = torch.cat([p.detach().flatten().clone() for p in job.run.net.parameters()])
    job.advance()
    after = torch.cat([p.detach().flatten() for p in job.run.net.parameters()])
    assert (after - before).norm().item() == pytest.approx(0.5e-3, rel=1e-2)
    job.close()


def test_the_dropout_of_the_recipe_is_that_of_the_model():
    source = load("fake-text", device="cpu", dtype=torch.float32)
    run = Run(replace(WORDS, dropout=0.25), 0, source, torch.device("cpu"), Ranks())
    assert {layer.p for layer in run.net.modules() if isinstance(layer, torch.nn.Dropout)} == {0.25}


def test_a_dropout_that_cannot_be_is_refused():
    with pytest.raises(ValueError, match="below 1"):
        set_dropout(build("lstm-tiny", 10), 1.0)
    with pytest.raises(ValueError, match=r"no dropout layers: method=dropout:0\.5"):
        set_dropout(build("resnet20", 10), 0.5)
