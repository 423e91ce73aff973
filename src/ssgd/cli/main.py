"""``ssgd COMMAND``: finds the command and runs it."""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Sequence

from .. import __version__
from . import (
    compare,
    doctor,
    line,
    methods,
    models,
    plane,
    recipes,
    report,
    reproduce,
    sample,
    sharpness,
    spectrum,
    tolerance,
    train,
    transcribe,
)

COMMANDS = {
    "train": train,
    "compare": compare,
    "reproduce": reproduce,
    "line": line,
    "plane": plane,
    "spectrum": spectrum,
    "sharpness": sharpness,
    "tolerance": tolerance,
    "sample": sample,
    "transcribe": transcribe,
    "report": report,
    "recipes": recipes,
    "methods": methods,
    "models": models,
    "doctor": doctor,
}
CONNECTIONS = "32"  # to a GPU, for kernels of runs side by side: the most there are; CUDA has 8 of its own accord
NEXT = """from nothing to your own data:
  ssgd doctor                                            what this machine offers, and what to do about the rest
  ssgd train digits                                      a training in seconds, on data that come along
  ssgd compare --model my.module:build --data folder/    SGD, S-SGD and split: your model, your images in folder/train
                                                         and folder/val, a folder in each for every class
"""


def main(arguments: Sequence[str] | None = None) -> int:
    if "" not in sys.path:
        sys.path.append("")  # models of your own are found in the current folder, as python -m ssgd finds them
    if os.environ.get("WORLD_SIZE", "1") == "1" and not _shares_the_device():
        os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", CONNECTIONS)  # read once, when CUDA starts
    parser = argparse.ArgumentParser(
        prog="ssgd",
        description="S-SGD around any PyTorch optimizer: train, compare, reproduce the paper, look at minima.",
        epilog=NEXT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"ssgd {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    for name, command in COMMANDS.items():
        help = (command.__doc__ or "").strip().split("\n")[0]
        takes_fields = name in ("train", "compare")  # every field of a recipe is an option, and --help explains them
        command.add_arguments(
            commands.add_parser(
                name, help=help, description=command.__doc__, add_help=not takes_fields, allow_abbrev=False
            )
        )
    options, rest = parser.parse_known_args(arguments)
    options.rest = rest
    if not hasattr(options, "run"):
        parser.print_help()
        return 2
    if options.rest and options.run not in (train.run, compare.run):
        parser.error(f"unrecognized arguments: {' '.join(options.rest)}")
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal may know no ±
    try:
        status = int(options.run(options) or 0)
        if sys.stdout is not None:  # closed by `>&-`
            sys.stdout.flush()
        return status
    except BrokenPipeError:  # `ssgd recipes | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as problem:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is left cannot be written either
        print(f"ssgd: {problem}", file=sys.stderr)
        return 1


def _shares_the_device() -> bool:
    """Under MPS, whose clients share the connections there are: the fourth with 32 finds the device busy."""
    return os.path.exists(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps"))


if __name__ == "__main__":
    sys.exit(main())
