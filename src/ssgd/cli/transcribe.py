"""Write down what is said in audio files, by a trained speech model.

A file has to be of the kind the model was trained on: sound at the same rate, or cepstra (.mfc) for AN4. Where the
training normalised by speaker, each file is normalised by itself.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from .arguments import RUN, add_device, net_and_preprocess


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("solution", metavar="RUN", help=RUN)
    add_device(parser)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="An audio file to write down.")
    parser.add_argument(
        "--beam", type=int, help="Searches with this many prefixes; without it, the best path is taken."
    )


def run(options: argparse.Namespace) -> int:
    import torch

    from ..lab.data.preprocess import Recordings
    from ..lab.data.speech import Alphabet, beam_search, greedy

    net, preprocess = net_and_preprocess(options, Recordings)
    device = next(net.parameters()).device
    for file in options.files:
        with torch.no_grad():
            log_probs, frames = net(*(tensor.to(device) for tensor in preprocess(file)))
        beam = options.beam
        (numbers,) = greedy(log_probs, frames) if beam is None else beam_search(log_probs, frames, beam)
        text = Alphabet().decoded(numbers)
        print(f"{file}: {text}" if len(options.files) > 1 else text)
    return 0
