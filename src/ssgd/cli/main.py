"""``ssgd COMMAND``: finds the command, runs it, and tells how it ended."""

from __future__ import annotations

import argparse
import io
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

from .. import __version__
from ..imported import did_you_mean

COMMANDS = (
    "train",
    "compare",
    "tune",
    "reproduce",
    "line",
    "plane",
    "spectrum",
    "sharpness",
    "tolerance",
    "sample",
    "transcribe",
    "report",
    "recipes",
    "methods",
    "models",
    "doctor",
)
CONNECTIONS = "32"  # to a GPU, for kernels of runs side by side: the most there are; CUDA has 8 of its own accord
NEXT = """from nothing to your own data:
  ssgd doctor                                            what this machine offers, and what to do about the rest
  ssgd train digits                                      a training in seconds, on data that come along
  ssgd compare --model my.module:build --data folder/    SGD, S-SGD and split: your model, your images in folder/train
                                                         and folder/val, a folder in each for every class
"""
TIMED_OUT = 124  # as the command timeout has it


def command(name: str) -> ModuleType:
    """The module of a command: ``add_arguments(parser)``, ``run(options)``, and a docstring that is its help.

    Its ``KEPT``, if it has one, names what the same command goes on from when it was interrupted.
    """
    return import_module(f".{name}", __package__)


def main(arguments: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if arguments is None else arguments)
    if "" not in sys.path:
        sys.path.append("")  # models of your own are found in the current folder, as python -m ssgd finds them
    if os.environ.get("WORLD_SIZE", "1") == "1" and not _shares_the_device():
        os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", CONNECTIONS)  # read once, when CUDA starts
    called = command(words[0]) if words and words[0] in COMMANDS else None
    parser = _parser(COMMANDS if called is None else words[:1])
    if called is None and words and not words[0].startswith("-"):
        parser.error(f"no command called {words[0]!r}: {did_you_mean(words[0], COMMANDS, 'see ssgd --help')}")
    takes_fields = called is not None and hasattr(called, "prepared")
    options, left = parser.parse_known_args(called.prepared(words) if called and takes_fields else words)
    if called is None:
        parser.print_help()
        return 2
    if left and not takes_fields:
        parser.error(f"unrecognized arguments: {' '.join(left)}")
    options.left = left  # the command says what to write instead
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal may know no ±
    try:
        status = exit_status(lambda: _run(called, options), getattr(called, "KEPT", None))
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


def _run(called: ModuleType, options: argparse.Namespace) -> int:
    """Runs a command, unless a package is missing that it would ask for after long work."""
    missing = [package for package in getattr(called, "NEEDS", ()) if find_spec(package) is None]
    if missing:
        raise ImportError(f"this command needs {' and '.join(missing)}: pip install 'ssgd[analysis]'")
    return int(called.run(options) or 0)


def exit_status(work: Callable[[], int], kept: str | None) -> int:
    """Calls ``work`` and returns its exit status. What a user can mend ends with a sentence instead of a traceback.

    ``kept``: what the same command goes on from when it was interrupted, if there is anything.
    """
    try:
        return work()
    except KeyboardInterrupt:
        return _interrupted(kept)
    except BrokenPipeError:
        raise  # whoever read the output has gone, and needs no sentence
    except Exception as problem:
        from ..lab.train.distributed import is_first_process
        from ..lab.train.engine import TIME_IS_UP, Stopped, explain
        from ..lab.train.running import Diverged

        if isinstance(problem, Stopped):
            if is_first_process():
                kept = "; all is saved" if problem.saved else ", going back to the last checkpoint"
                print(f"{problem}{kept}. {_how_to_go_on()}", file=sys.stderr)
            return TIMED_OUT if problem.number == TIME_IS_UP else 128 + problem.number
        if isinstance(problem, (ValueError, ImportError, OSError, Diverged)):
            print(f"ssgd: {explain(problem)}", file=sys.stderr)
            return 2 if isinstance(problem, ValueError) else 1
        if "KeyboardInterrupt" in str(problem):  # what torch makes of one inside its own scripts
            return _interrupted(kept)
        raise


def _parser(names: Sequence[str]) -> argparse.ArgumentParser:
    """The parser of these commands."""
    parser = argparse.ArgumentParser(
        prog="ssgd",
        description="S-SGD around any PyTorch optimizer: train, compare, reproduce the paper, look at minima.",
        epilog=NEXT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"ssgd {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    for name in names:
        module = command(name)
        text = (module.__doc__ or "").strip()
        add_help = not hasattr(module, "prepared")  # those explain the fields with the recipe's values
        found = commands.add_parser(
            name, help=text.split("\n")[0], description=text, add_help=add_help, allow_abbrev=False
        )
        module.add_arguments(found)
    return parser


def _interrupted(kept: str | None) -> int:
    told = "interrupted" if kept is None else f"interrupted, going back to {kept}. {_how_to_go_on()}"
    print(told, file=sys.stderr)
    return 130


def _how_to_go_on() -> str:
    """The command, where this process knows it: ``torchrun`` gave it another than its own."""
    return (
        "The same torchrun command goes on."
        if "RANK" in os.environ
        else f"The same command goes on: {shlex.join(sys.orig_argv)}"
    )


def _shares_the_device() -> bool:
    """Under MPS, whose clients share the connections there are: the fourth with 32 finds the device busy."""
    return os.path.exists(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps"))


if __name__ == "__main__":
    sys.exit(main())
