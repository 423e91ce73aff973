"""A training of seconds on the embedded digits, in variants: its recipe, its run and what it leaves."""

import argparse
from dataclasses import replace

import torch

from ssgd.cli.fields import add_fields, chosen, prepared
from ssgd.core.noise import mix
from ssgd.lab import models
from ssgd.lab.data import registry
from ssgd.lab.train import Recipe, train
from ssgd.lab.train.distributed import Ranks
from ssgd.lab.train.running import Run
from ssgd.methods import METHODS

CPU = torch.device("cpu")
SMALL = Recipe(
    name="small",
    model="small-cnn",
    data="digits",
    train_limit=200,
    test_limit=100,
    phases="2",
    lr=(0.1,),
    weight_decay=5e-4,
    batch=50,
)


def small(**changes):
    return replace(SMALL, **changes)


def source(recipe=SMALL):
    limits = {"train_limit": recipe.train_limit, "test_limit": recipe.test_limit}
    return registry.load(recipe.data, device=CPU, dtype=torch.float32, **limits)


def run_of(recipe, seed=0, data=None):
    return Run(recipe, seed, data or source(recipe), CPU, Ranks())


def folder(execution, recipe=SMALL, seed=0):
    return execution.run_folder(recipe, seed)


def trained(recipe, execution, seed=0):
    """The weights and the metrics that a run of the engine leaves, as bytes."""
    train(recipe, execution)
    place = folder(execution, recipe, seed)
    return (place / "weights.safetensors").read_bytes(), (place / "metrics.jsonl").read_bytes()


def fresh_net(seed=0):
    torch.manual_seed(mix(seed, 0))
    return models.build("small-cnn", 10, 1).to(memory_format=torch.channels_last)


def of(method):
    """A short recipe of any method."""
    restarts = {"phases": "1*1", "epochs": 2} if METHODS[method].warm_restarts else {}
    return small(method=method, name=method, train_limit=100, **restarts)


def read(*words):
    """The recipe and the execution that words of `ssgd train` stand for."""
    parser = argparse.ArgumentParser(prog="ssgd train", add_help=False, allow_abbrev=False)
    add_fields(parser)
    options, options.left = parser.parse_known_args(prepared(words))
    return chosen(options, "ssgd train")
