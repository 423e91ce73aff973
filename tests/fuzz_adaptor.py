"""What the fuzz says to the library. Every name of it that may change is here, and nowhere else in the fuzz."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from ssgd import SSGD
from ssgd.methods import NSO, RWP, SAM, OneSided, Plain

BASES: dict[str, Callable[[Any], Optimizer]] = {
    "momentum": lambda p: SGD(p, lr=0.05, momentum=0.9),
    "nesterov": lambda p: SGD(p, lr=0.05, momentum=0.9, nesterov=True, weight_decay=1e-3),
    "adam": lambda p: Adam(p, lr=0.01),
    "adamw": lambda p: AdamW(p, lr=0.01),
}

# Calls that may be refused while a batch has begun and has not ended, besides those that must be.
MAY_BE_REFUSED_HALF_WAY = {"load_state_dict", "add_param_group"}

MAY_WARN = r"step\(\) after points without a gradient: run|a forward pass ran inside a point, and no gradient came"

# What a refusal may say. The last two are torch's own.
SENTENCES = [
    r"points cannot be nested: leave the `with` block you are in first",
    r"zero_grad\(\), or a new points\(\), has ended this batch: call it before or after them",
    r"this point is over: take points in order, each once, from a new points\(\) or split\(\)",
    r"a backward\(\) ran after its point was left, or gradients were changed there: call backward\(\) inside",
    r"a point was passed over: wrap the passes in `with point:`",
    r"an exception cut the batch short: catch it outside of the loop over the points",
    r"no gradient came inside the last point: call backward\(\) inside `with point:`",
    r"step\(\) inside a point would see perturbed weights: leave the `with` block first",
    r"step\(\) without a new pass: run forward and backward inside points\(\), split\(\) or one_pass\(\), in a",
    r"add_param_group\(\) before the last point: the batch would go on without it; call it after",
    r"step\(\) after \d of \d points: run all that points\(\) or split\(\) gives before step\(\)",
    r"the last batch was left after \d of \d points: call zero_grad\(\) to drop it",
    r"an exception cut the batch short and its gradients were dropped: skip this step\(\)",
    r"zero_grad\(\) inside a point would drop the other points' gradients: call it before",
    r"(state_dict|load_state_dict|add_param_group)\(\) inside a point would see perturbed weights: leave the",
    r"a copy inside a point would see perturbed weights: leave the `with` block first",
    r"split\(\) has two halves for one pair of signs: use pairs=1, or points\(\)",
    r"split\(\) draws once for each half: use pairs=1, or points\(\)",
    r"one_pass\(\): the model is in eval mode inside the block: evaluate outside it",
    r"one_pass\(\): a batch of one sample has no two halves: drop it, or use points\(\)",
    r"one_pass\(\): signs= has \d entries for \d samples",
    r"one_pass\(\): a noisy weight cannot be copied or saved: leave the block first",
    r"one_pass\(\): [\w.]+: state_dict\(\) inside the block: leave it first",
    r"one_pass\(\): a backward\(\) came after its block: call it inside",
    r"one_pass\(\): [\w., ]+: a gradient came past the layers",  # or was cleared in place, with no backward() after
    r"(one_pass|dry_run)\(\) inside a point would see perturbed weights: leave the",
    r"loaded state dict has a different number of parameter groups",
    r"needed for gradient computation has been modified by an inplace operation",
]


@dataclass(frozen=True)
class Method:
    """A method as the oracle knows it.

    Attributes:
        build: wraps a base optimizer; takes the level and the model.
        signs: of the points of points(), where any group has a level above 0.
        shares: of each point's gradient in the mean.
        halves: the signs of split(); None: there is no split(); empty: split() is refused.
        half_shares: of each half's gradient in the mean; None: the half's share of the samples.
        one_pass: whether blocks of one_pass() are among the calls.
        noise: "norm": ‖n‖ = level · ‖w‖ in each tensor; "some": of another size; "climb": SAM's; "none".
        every_tensor: whether biases are moved too.
        level: the key of the level in a parameter group; None: there is none.
    """

    build: Callable[[Optimizer, float, nn.Module], Optimizer]
    signs: tuple[int, ...]
    shares: tuple[float, ...]
    halves: tuple[int, ...] | None
    noise: str
    every_tensor: bool = True
    level: str | None = "noise"
    half_shares: tuple[float, ...] | None = None
    one_pass: bool = False


METHODS = {
    "ssgd": Method(
        lambda base, level, model: SSGD(base, level, seed=1), (1, -1), (0.5, 0.5), (1, -1), "norm", every_tensor=False
    ),
    "one-pass": Method(
        lambda base, level, model: SSGD(base, level, model=model, seed=1),
        *((1, -1), (0.5, 0.5), (1, -1), "norm"),
        every_tensor=False,
        one_pass=True,
    ),
    "ssgd-x2": Method(
        lambda base, level, model: SSGD(base, level, model=model, pairs=2, seed=1),
        *((1, -1, 1, -1), (0.25,) * 4, (), "norm"),
        every_tensor=False,
    ),
    "one-sided": Method(
        lambda base, level, model: OneSided(base, level, seed=1), (1,), (1.0,), (1, 1), "norm", every_tensor=False
    ),
    "one-sided-x2": Method(
        lambda base, level, model: OneSided(base, level, model=model, pairs=2, seed=1),
        *((1, 1), (0.5, 0.5), (), "norm"),
        every_tensor=False,
    ),
    "nso": Method(lambda base, level, model: NSO(base, level, seed=1), (1, -1), (0.5, 0.5), (1, -1), "some"),
    "rwp": Method(
        lambda base, level, model: RWP(base, level, share=0.25, seed=1),
        *((0, 1), (0.75, 0.25), (0, 1), "some"),
        half_shares=(0.75, 0.25),
    ),
    "sam": Method(lambda base, level, model: SAM(base, level), (0, 1), (0.0, 1.0), None, "climb", level="rho"),
    "plain": Method(lambda base, level, model: Plain(base), (0,), (1.0,), (0, 0), "none", level=None),
}


def passes(opt: Any, way: str, x: Tensor, y: Tensor) -> Iterator[tuple[Any, tuple[Tensor, Tensor]]]:
    """(point, its part of the batch). The caller's is the only reference to what the library gave."""
    return opt.split(x, y) if way == "split" else WithBatch(opt.points(), (x, y))


class WithBatch:
    """Not a generator: dropping it drops the points, and an error in the points leaves nothing of its own."""

    def __init__(self, points: Iterator[Any], batch: tuple[Tensor, Tensor]) -> None:
        self.points, self.batch = points, batch

    def __iter__(self) -> WithBatch:
        return self

    def __next__(self) -> tuple[Any, tuple[Tensor, Tensor]]:
        return next(self.points), self.batch


def one_pass(opt: Any, signs: list[int] | None) -> Any:
    return opt.one_pass(signs=signs)


def both_values(model: nn.Module, opt: Any, step: int) -> tuple[list[Tensor], list[Tensor]]:
    """w + n and w − n of all parameters, with the noise of that step. It ends the batch of ``opt``: give a copy."""
    for group in opt.param_groups:
        group["noise_step"] = step
    plus, minus = opt.both_points()
    return [plus.get(p, p.detach()) for p in model.parameters()], [minus.get(p, p.detach()) for p in model.parameters()]


def step_of(opt: Any) -> int:
    """The number of the step whose noise the batch sees."""
    return opt.param_groups[0]["noise_step"]


def sign(point: Any) -> int:
    return point.sign


def add_group(opt: Any, method: Method, parameters: list[Tensor], level: float) -> None:
    group: dict[str, Any] = {"params": parameters}
    opt.add_param_group(group if method.level is None else {**group, method.level: level})


def set_level(opt: Any, method: Method, group: int, level: float) -> None:
    opt.param_groups[group][method.level] = level


def is_documented(error: BaseException) -> bool:
    return any(re.search(sentence, str(error)) for sentence in SENTENCES)
