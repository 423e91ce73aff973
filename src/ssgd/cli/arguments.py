"""Arguments that several commands have in common, and the objects they name."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn

    from ..lab.solutions import Solution
    from ..lab.train.recipe import Execution

RUN = "A run's folder, one of its checkpoints, or its weights.safetensors."


def add_data_and_device(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--folder", help="The folder of the data; without it $SSGD_DATA, or else a cache folder.")
    add_device(parser)


def add_device(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--device",
        choices=("auto", "cpu", "cuda"),
        default="auto",
        help="The device; auto is a GPU where there is one.",
    )


def add_on(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--on", choices=("here", "ray"), default="here", help="Where the runs are made; ray is over a Ray cluster."
    )


def add_solutions(parser: argparse.ArgumentParser, help: str) -> None:
    """Adds the runs that a command of the analysis looks at, their data, and where its results go."""
    parser.add_argument(
        "solutions", nargs="+", metavar="RUN", help=f"{RUN} The folder of a training stands for all its seeds. {help}"
    )
    out = Path("analysis", parser.prog.split()[-1])
    parser.add_argument("--out", type=Path, default=out, help=f"The folder that gets the results (default: {out}).")
    parser.add_argument("--limit", type=int, help="Takes only this many training and test samples.")
    add_data_and_device(parser)
    parser.add_argument("--quiet", action="store_true", help="Shows no progress bar.")


def add_precision(parser: argparse.ArgumentParser, bf16: bool) -> None:
    others, digits = ("tf32 and bf16 are", "3 and to 2 digits") if bf16 else ("tf32 is", "3 digits")
    where = "faster, tf32 on a GPU alone" if bf16 else "faster on a GPU"
    parser.add_argument(
        "--precision",
        choices=("fp32", "tf32", "bf16") if bf16 else ("fp32", "tf32"),
        default="fp32",
        help=f"The arithmetic; {others} {where}, right to {digits} (default: fp32).",
    )


def add_graph(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--graph", action="store_true", help="Runs the passes as CUDA graphs, for nets too small to keep a GPU busy."
    )


def file_of(found: Solution, options: argparse.Namespace) -> Path:
    """Returns the place for the results of one solution, named by its path: ``runs-digits-seed-0`` in the folder."""
    path = Path(found.name)
    return Path(options.out, "-".join(part for part in path.parts if part not in (path.anchor, "..")))


def short_names(names: Sequence[str]) -> list[str]:
    """Returns paths without the folders at their beginning that all have in common."""
    parts = [Path(name).parts for name in names]
    common = 0
    while all(path[:common] == parts[0][:common] and len(path) > common for path in parts):
        common += 1
    return ["/".join(path[common - 1 :]) for path in parts]


def execution(options: argparse.Namespace) -> Execution:
    from ..lab.train.recipe import Execution

    return Execution(folder=options.folder, device=options.device)


def refuse_several_processes(command: str) -> None:
    """Every process would do, and write, all of it."""
    if os.environ.get("WORLD_SIZE", "1") != "1":
        raise ValueError(f"ssgd {command} works in one process: start it without torchrun")


def net_and_preprocess(options: argparse.Namespace, kind: type[Any]) -> tuple[nn.Module, Any]:
    """The net of the run ``options.solution``, on the device that is asked for, and its preprocessing of that kind."""
    from ..lab.solutions import load
    from ..lab.train.recipe import Execution

    net, preprocess = load(options.solution)
    if not isinstance(preprocess, kind):
        learned = "inputs as they are" if preprocess is None else type(preprocess).__name__.lower()
        raise ValueError(f"{options.solution} learned from {learned}, not from {kind.__name__.lower()}")
    return net.to(Execution(device=options.device).kind), preprocess
