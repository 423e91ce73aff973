"""Let a trained language model write.

Sentences end where the model ends them; a low temperature keeps to likely words. The vocabulary is read from the text
that the model was trained on.
"""

from __future__ import annotations

import argparse

from ..lab.train.terminal import ended
from . import trained


def add_arguments(parser: argparse.ArgumentParser) -> None:
    trained.add_arguments(parser)
    parser.add_argument("--words", default="", help='how the text begins, such as "the company"')
    parser.add_argument("--length", type=int, default=40, help="words to write (default: 40)")
    parser.add_argument("--temperature", type=float, default=0.8, help="default: 0.8")
    parser.add_argument("--seed", type=int, default=0, help="another seed writes another text (default: 0)")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    return ended(lambda: work(options), kept=None)


def work(options: argparse.Namespace) -> int:
    from ..core.checks import check_seed
    from ..lab.models.lstm import LanguageModel, generate

    check_seed(options.seed)
    net, text = trained.trained(options, "language")
    if not isinstance(net, LanguageModel):
        raise ValueError(f"{options.solution} is of a model of your own: only ssgd's LSTMs write")
    print(generate(net, text.vocabulary, options.words, options.length, options.temperature, options.seed))
    return 0
