"""Let a trained language model write.

Sentences end where the model ends them; a low temperature keeps to likely words. The vocabulary is kept with the run.
"""

from __future__ import annotations

import argparse

from .arguments import RUN, add_device, net_and_preprocess


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("solution", metavar="RUN", help=RUN)
    add_device(parser)
    parser.add_argument("--words", default="", help='The words that the text begins with, such as "the company".')
    parser.add_argument("--length", type=int, default=40, help="The number of words to write (default: 40).")
    parser.add_argument(
        "--temperature", type=float, default=0.8, help="A low temperature keeps to likely words (default: 0.8)."
    )
    parser.add_argument("--seed", type=int, default=0, help="The seed; another writes another text (default: 0).")


def run(options: argparse.Namespace) -> int:
    from ..core.checks import check_seed
    from ..lab.data.preprocess import Words
    from ..lab.models.lstm import LanguageModel, generate

    check_seed(options.seed)
    net, text = net_and_preprocess(options, Words)
    if not isinstance(net, LanguageModel):
        raise ValueError(f"{options.solution} is of a model of your own: only ssgd's LSTMs write")
    print(generate(net, text.vocabulary, options.words, options.length, options.temperature, options.seed))
    return 0
