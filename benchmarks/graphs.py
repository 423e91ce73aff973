"""A whole step in one CUDA graph, and the proof that it is the eager step."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor

import ways
from measure import Row, interleaved, spread
from nets import small_conv_net
from ssgd import SSGD
from ways import Pass, Way

WARM_UP = 3


def rows(device: torch.device, repeats: int) -> list[Row]:
    """A small net's step as a graph and eagerly, once the two were found equal bit for bit."""
    found = []
    for name, way in (("points", ways.points), ("split", ways.split)):
        with deterministic_convolutions():
            check_equal(way, device)
        steps = {"graph": Trainer(way, device).captured(), "eager": Trainer(way, device).step}
        for kind, seconds in interleaved(steps, repeats, device).items():
            ms = [1000 * t for t in seconds]
            found.append(Row(f"{kind}_step_{name}", statistics.median(ms), "ms", repeats, spread(ms)))
    return found


def check_equal(way: Callable[..., Way], device: torch.device, steps: int = 5) -> None:
    """Raise unless replays, with lr and level changed between them, give the eager steps' weights and momentum."""
    graph, eager = Trainer(way, device), Trainer(way, device)
    replay = graph.captured()
    for _ in range(WARM_UP):
        eager.step()
    for i in range(steps):
        x, y = torch.randn_like(graph.x), torch.randint_like(graph.y, 10)
        for trainer in (graph, eager):
            trainer.x.copy_(x)
            trainer.y.copy_(y)
            trainer.lr.fill_(0.1 / (i + 1))
            trainer.level.fill_(0.05 * (i + 1))
        replay()
        eager.step()
        if not all(torch.equal(a, b) for a, b in zip(graph.tensors(), eager.tensors(), strict=True)):
            raise RuntimeError(f"step {i} of the CUDA graph ({way.__name__}) is not the eager step")


def captured(way: Way, run: Pass, x: Tensor, y: Tensor) -> Callable[[], None]:
    """A function that replays ``way.step(run, x, y)``, captured after some steps to warm up."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARM_UP):
            way.step(run, x, y)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    optimizer = way.optimizer
    if isinstance(optimizer, SSGD):
        optimizer.register_graph(graph)
    with torch.cuda.graph(graph):
        way.step(run, x, y)

    held = run, x, y  # the graph reads them by address

    def replay(held: object = held) -> None:
        if isinstance(optimizer, SSGD):
            optimizer.before_replay()
        graph.replay()

    return replay


class Trainer:
    """A small net with its batch and a way to train it, learning rate and level being tensors on the device."""

    def __init__(self, way: Callable[..., Way], device: torch.device) -> None:
        torch.manual_seed(0)
        self.net = small_conv_net().to(device)
        self.x = torch.randn(32, 1, 8, 8, device=device)
        self.y = torch.randint(10, (32,), device=device)
        self.lr = torch.tensor(0.1, device=device)
        self.level = torch.tensor(0.2, device=device)
        self.way = way(list(self.net.parameters()), level=self.level, lr=self.lr, momentum=0.9, fused=True)

    def step(self) -> None:
        self.way.step(self._run, self.x, self.y)

    def captured(self) -> Callable[[], None]:
        return captured(self.way, self._run, self.x, self.y)

    def tensors(self) -> list[Tensor]:
        """Weights, running statistics and momentum."""
        momentum = [state["momentum_buffer"] for state in self.way.optimizer.state.values()]
        return [*self.net.state_dict().values(), *momentum]

    def _run(self, x: Tensor, y: Tensor) -> Tensor:
        loss = F.cross_entropy(self.net(x), y)
        loss.backward()
        return loss.detach()


@contextmanager
def deterministic_convolutions() -> Iterator[None]:
    cudnn = torch.backends.cudnn
    before = cudnn.deterministic, cudnn.benchmark
    cudnn.deterministic, cudnn.benchmark = True, False
    try:
        yield
    finally:
        cudnn.deterministic, cudnn.benchmark = before
