"""Write down what is said in audio files, by a trained speech model.

A file has to be of the kind the model was trained on: sound at the same rate, or cepstra (.mfc) for AN4. Where the
training normalised by speaker, each file is normalised by itself.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from ..lab.train.terminal import ended
from . import trained


def add_arguments(parser: argparse.ArgumentParser) -> None:
    trained.add_arguments(parser)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="what is to be heard")
    parser.add_argument("--beam", type=int, help="search with so many prefixes; without it, the best path is taken")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    return ended(lambda: work(options), kept=None)


def work(options: argparse.Namespace) -> int:
    from ..lab.data.speech import beam_search, greedy

    net, speech = trained.trained(options, "speech")
    for file in options.files:
        with torch.no_grad():
            log_probs, frames = net(*speech.features_of(file))
        beam = options.beam
        (numbers,) = greedy(log_probs, frames) if beam is None else beam_search(log_probs, frames, beam)
        text = speech.alphabet.decoded(numbers)
        print(f"{file}: {text}" if len(options.files) > 1 else text)
    return 0
