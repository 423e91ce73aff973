"""Nets that the recipes of the tests name as ``tests.distributed.nets:function``, some of them with an accident."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import nn

MARKERS = "SSGD_TEST_MARKERS"  # names the folder that remembers which accidents have happened


def plain(classes: int) -> nn.Module:
    """For the 8×8 digits, without batch-norm: its training does not depend on how a batch is cut."""
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, 2, 1),
        nn.Tanh(),
        nn.Conv2d(4, 8, 3, 2, 1),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(32, 16),
        nn.Tanh(),
        nn.Linear(16, classes),
    )


def with_dropout_before_batch_norm(classes: int) -> nn.Module:
    """Running statistics depend on the masks, which are different on every rank."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Dropout(), nn.BatchNorm1d(16), nn.Linear(16, classes))


def failing(classes: int) -> nn.Module:
    """Its second process fails in the third pass."""

    def fail() -> None:
        raise RuntimeError("out of luck")

    return with_accident(plain(classes), 3, fail, ranks=(1,))


def killed_once(classes: int) -> nn.Module:
    """Its second process is killed in the 30th pass, the first time."""
    return with_accident(plain(classes), 30, once(lambda: os.kill(os.getpid(), signal.SIGKILL)), ranks=(1,))


def stopped_once(classes: int) -> nn.Module:
    """Stopped in the 30th pass, the first time, as clusters do it: SIGTERM for everyone, and again from torchrun."""

    def stop() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
        if dist.get_rank() == 0:
            os.kill(os.getppid(), signal.SIGTERM)

    return with_accident(plain(classes), 30, once(stop), ranks=(0, 1))


def with_accident(net: nn.Module, number: int, accident: Callable[[], None], ranks: tuple[int, ...]) -> nn.Module:
    """``net``, in whose ``number``-th training pass something happens on some ranks."""
    passes = 0

    def count(module: nn.Module, _: Any) -> None:
        nonlocal passes
        passes += module.training
        if passes == number and module.training and dist.get_rank() in ranks:
            accident()

    net.register_forward_pre_hook(count)
    return net


def once(accident: Callable[[], None]) -> Callable[[], None]:
    """Not again in a process that is started later."""

    def happen() -> None:
        marker = Path(os.environ[MARKERS]) / str(dist.get_rank())
        if not marker.exists():
            marker.touch()
            accident()

    return happen
