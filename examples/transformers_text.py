"""A small transformer, built from a configuration, learns to add in words: AdamW, then S-SGD around it.

python examples/transformers_text.py --noise 0.1 --split
"""

from __future__ import annotations

import argparse
import random
import tempfile
from typing import Any

from torch import tensor
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments, set_seed

from ssgd.integrations.transformers import SymmetricTrainer

WORDS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"]
NAMES = WORDS + [f"twelve and {word}" for word in WORDS[1:]]
LENGTH = 40  # the longest sentence


def encoded(a: int, b: int) -> dict[str, Any]:
    """Bytes as tokens; what fills the line up does not count."""
    text = f"{NAMES[a]} plus {NAMES[b]} is {NAMES[a + b]}."
    tokens = tensor(list(text.ljust(LENGTH).encode()))
    labels = tokens.clone()
    labels[len(text) :] = -100
    return {"input_ids": tokens, "labels": labels}


def main(arguments: list[str] | None = None) -> dict[str, float]:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--noise", type=float, default=0.1, help="the level of S-SGD (default: 0.1)")
    parser.add_argument("--split", action="store_true", help="half of the batch at each sign: AdamW's work")
    parser.add_argument("--steps", type=int, default=150, help="updates (default: 150)")
    options = parser.parse_args(arguments)

    lines = [encoded(a, b) for a in range(13) for b in range(13)]
    random.Random(0).shuffle(lines)
    losses = {}
    for name in ("AdamW", "S-SGD"):
        set_seed(0)
        sizes = {"vocab_size": 128, "hidden_size": 64, "intermediate_size": 128, "max_position_embeddings": LENGTH}
        model = LlamaForCausalLM(LlamaConfig(**sizes, num_hidden_layers=2, num_attention_heads=4))
        with tempfile.TemporaryDirectory() as folder:
            steps = {"max_steps": options.steps, "per_device_train_batch_size": 20, "learning_rate": 3e-3}
            args = TrainingArguments(folder, **steps, logging_steps=30, save_strategy="no", report_to=[])
            given = {"model": model, "args": args, "train_dataset": lines[:120], "eval_dataset": lines[120:]}
            symmetric = {"noise": options.noise, "split": options.split}
            trainer = Trainer(**given) if name == "AdamW" else SymmetricTrainer(**given, **symmetric)
            trainer.train()
            losses[name] = trainer.evaluate()["eval_loss"]
    print("On sentences not seen:", ", ".join(f"{name} has loss {loss:.3f}" for name, loss in losses.items()))
    return losses


if __name__ == "__main__":
    main()
