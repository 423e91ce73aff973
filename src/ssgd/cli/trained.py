"""A net as a training has left it, to be used: with the data that say what its numbers mean."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from ..lab.solutions import net_of, solution
from ..lab.train.execution import Execution
from ..lab.train.job import Sources


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("solution", metavar="RUN", help="a run's folder, a checkpoint, or weights.safetensors")
    parser.add_argument("--folder", help="where the data lie; else $SSGD_DATA, else a cache folder")
    parser.add_argument(
        "--device", choices=("auto", "cpu", "cuda"), default="auto", help="default: a GPU where there is one"
    )


def trained(options: argparse.Namespace, kind: str) -> tuple[nn.Module, Any]:
    """The net of the run, in eval mode, and its data, which have to be of that kind."""
    found, execution = solution(options.solution), Execution(folder=options.folder, device=options.device)
    source: Any = Sources(execution).get(replace(found.recipe, precision="fp32"), torch.device(execution.kind))
    if source.kind != kind:
        raise ValueError(f"{found.name} learned from {found.recipe.data}, of the kind {source.kind}, not {kind}")
    return net_of(found, source).to(execution.kind).eval(), source
