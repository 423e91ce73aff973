"""Texts, speech and folders of images on a CUDA device.

Without pytest: PYTHONPATH=src python tests/test_cuda_sequences.py
"""

from __future__ import annotations

import tempfile
from dataclasses import replace

import torch

from ssgd.lab.data import load
from ssgd.lab.data.augment import cut
from ssgd.lab.data.speech.ctc import ctc_loss
from ssgd.lab.experiments import get
from ssgd.lab.models import build
from ssgd.lab.train import Execution, train
from ssgd.lab.train.distributed import Ranks
from ssgd.lab.train.engine import set_up
from ssgd.lab.train.job import Sources
from ssgd.lab.train.recipe import Recipe
from ssgd.lab.train.running import Run
from ssgd.lab.train.steps import GraphSteps

try:
    import pytest

    pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
except ImportError:  # then the last lines run the tests
    pass

WORDS = replace(get("words"), phases="1-1", train_limit=3000)
UTTERANCES = replace(get("utterances"), phases="1-1")


def test_a_language_models_step_is_one_graph_and_the_eager_step() -> None:
    """With dropout, clipping, the carried state and cuDNN's flat weights, over the end of an epoch."""
    for method in ("base", "both", "split"):
        said: list[str] = []
        eager, graph = (a_run(method, captured, said) for captured in (False, True))
        in_step(eager, graph)
        assert isinstance(graph._step, GraphSteps), said
        assert graph.history[0]["test_perplexity"] < 30
        for a, b in zip(everything(eager), everything(graph), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_speech_hears_on_the_gpu_what_it_hears_on_the_cpu() -> None:
    """Whatever frames are added at the end of a batch."""
    data = load("fake-speech", device="cpu", dtype=torch.float32)
    net = build("sgcn-small", data.classes, data.channels).eval()
    x, lengths, _, _ = data.epoch(0, 0).batch(0, 8)
    with torch.no_grad():
        expected, frames = net(x, lengths)
        found, same_frames = net.cuda()(torch.nn.functional.pad(x, (0, 40)).cuda(), lengths.cuda())
    assert same_frames.tolist() == frames.tolist() and len(found) >= len(expected)
    for i, count in enumerate(frames.tolist()):
        torch.testing.assert_close(found[:count, i].cpu(), expected[:count, i], rtol=1e-2, atol=1e-2)


def test_ctc_is_torchs() -> None:
    draws = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(200, 16, 29, generator=draws)
    targets = torch.randint(1, 29, (16, 64), generator=draws)
    frames, lengths = torch.randint(100, 201, (16,), generator=draws), torch.randint(0, 65, (16,), generator=draws)
    found = []
    for device, dtype in (("cuda", torch.float32), ("cuda", torch.float32), ("cpu", torch.float64)):
        x = logits.to(device, dtype).requires_grad_()
        loss = ctc_loss(x.log_softmax(2), *(t.to(device) for t in (frames, targets, lengths)))
        found.append((loss.item(), *torch.autograd.grad(loss, x)))
    assert found[0][0] == found[1][0] and torch.equal(found[0][1], found[1][1])
    assert abs(found[0][0] - found[2][0]) < 1e-4 * found[2][0]
    torch.testing.assert_close(found[0][1].cpu().double(), found[2][1], rtol=1e-3, atol=1e-5)


def test_steps_of_speech_are_graphs_one_a_shape_and_the_eager_steps() -> None:
    for method in ("base", "both", "split"):
        said: list[str] = []
        eager, graph = (a_run(method, captured, said, UTTERANCES) for captured in (False, True))
        in_step(eager, graph)
        assert isinstance(graph._step, GraphSteps) and len(graph._step._graphs) > 1, said
        for a, b in zip(everything(eager), everything(graph), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)


def test_speech_gives_the_same_bits_every_time() -> None:
    runs = [a_run("both", True, [], UTTERANCES, deterministic=True) for _ in range(2)]
    in_step(*runs)
    for a, b in zip(*map(everything, runs), strict=True):
        assert torch.equal(a, b)


def test_speech_is_learned() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for method in ("base", "both", "split"):
            recipe = replace(get("utterances"), name=method, method=method)
            (result,) = train(recipe, Execution(out=folder, progress=False))
            assert result["test_cer"] < 30, result


def test_images_are_cut_as_on_the_cpu() -> None:
    images = torch.randint(256, (50, 61, 47, 3), dtype=torch.uint8)
    parts = torch.stack([torch.randint(0, 20, (50,)) for _ in range(2)], 1)
    parts = torch.cat([parts, parts + torch.randint(1, 27, (50, 2))], 1)
    flips = torch.rand(50) < 0.5
    for size in (8, 32, 64):
        found = cut(images.cuda(), parts.cuda(), flips.cuda(), size)
        assert torch.equal(found.cpu(), cut(images, parts, flips, size))


def in_step(*runs: Run) -> None:
    for _ in range(runs[0].steps + 2):
        for run in runs:
            run.step()
            if run.epoch_is_over:
                run.finish_epoch()
    torch.cuda.synchronize()


def a_run(method: str, captured: bool, said: list[str], recipe: Recipe = WORDS, deterministic: bool = False) -> Run:
    recipe = replace(recipe, method=method, level=None if method == "base" else 0.2)
    execution = Execution(progress=False, deterministic=deterministic)
    set_up(recipe, execution)
    device = torch.device("cuda", 0)
    source = Sources(execution).get(recipe, device)
    return Run(recipe, 0, source, device, Ranks(), Execution(graph=captured, pair=True), said.append)


def everything(run: Run) -> list[torch.Tensor]:
    return [*run.net.parameters(), *run.net.buffers(), run.sums]


if __name__ == "__main__":
    for name, test in list(globals().items()):
        if name.startswith("test_"):
            test()
            print(f"pass {name}", flush=True)
