"""The parts of a training, as functions of its recipe: net, base optimizer and method."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from ...core.noise import mix
from ...core.point_optimizer import PointOptimizer
from ...core.selection import select
from ...methods import registry
from ...methods.dropconnect import dropconnect
from ...methods.sam import SAM
from .. import models
from ..data.registry import Source
from ..models.registry import set_dropout
from .phases import Schedule
from .recipe import Recipe


def build_net(recipe: Recipe, seed: int, source: Source) -> nn.Module:
    """The net with the first weights of that seed, on the CPU."""
    check_kind(recipe.model, recipe.data, source.kind)
    if recipe.devices > 1 and source.kind != "images":
        raise ValueError(f"devices={recipe.devices} is for images: {recipe.data} needs torchrun and devices=1")
    torch.manual_seed(mix(seed, 0))
    net = models.build(recipe.model, source.classes, source.channels)
    if recipe.dropout is not None:
        set_dropout(net, recipe.dropout)
    _transform(net, recipe.schedule, recipe.perturb)
    return net


def check_kind(model: str, data: str, kind: str) -> None:
    """Refuses a model of ssgd's for data of another kind; of a user's model nothing is known."""
    known = models.MODELS.get(model)
    if known is not None and known.kind != kind:
        raise ValueError(f"{model} is for {known.kind}, and {data} is {kind}: choose another of `ssgd models`")


def _transform(net: nn.Module, schedule: Schedule, perturb: str) -> None:
    """Dropout and its like are part of the model, in all phases or none."""
    kinds = dict.fromkeys((phase.method, phase.level) for phase in schedule.phases)
    for name, level in kinds:
        method = registry.get(name)
        if method.transform is None:
            continue
        if len(kinds) > 1:
            raise ValueError(f"{name} changes the model and so needs all phases for itself, at one level")
        share = method.settings[0].default if level is None else level
        if method.transform is dropconnect and perturb != "all":
            dropconnect(net, share, perturb)
        else:
            method.transform(net, share)


def base_options(recipe: Recipe, device: torch.device, sharded: bool) -> dict[str, Any]:
    """The base's options: fused where its tensors are whole, and Adam so that a CUDA graph can hold it."""
    adam = {} if recipe.optimizer == "sgd" else {"capturable": not sharded and device.type == "cuda"}
    return {"fused": not sharded, **adam}


def build_base(recipe: Recipe, net: nn.Module, lr: Tensor | float, options: dict[str, Any]) -> Optimizer:
    """The base optimizer; parameters without weight decay are in a group of their own."""
    groups: list[Any] = list(net.parameters())
    if recipe.decayed == "weights":
        weights, others = ([p for p in groups if (p.dim() > 1) is heavy] for heavy in (True, False))
        groups = [{"params": weights}, {"params": others, "weight_decay": 0.0}]
    options = {"weight_decay": recipe.weight_decay, **options}
    if recipe.optimizer == "sgd":
        return SGD(groups, lr, recipe.momentum, nesterov=recipe.nesterov, **options)
    return (Adam if recipe.optimizer == "adam" else AdamW)(groups, lr, **options)


def build_method(
    recipe: Recipe, seed: int, phase: int, base: Optimizer, model: nn.Module, net: nn.Module
) -> PointOptimizer:
    """The method of that phase of the schedule around ``base``. ``model`` is the net as it is called, under DDP say."""
    this = recipe.schedule.phases[phase]
    method = registry.get(this.method)
    if method.transform is not None:
        return method.make(base, model=model, **method.fixed)
    options: dict[str, Any] = {}
    if method.settings:
        options = dict(recipe.settings) if this.method == recipe.method else {}
        options[method.settings[0].name] = method.settled_level(this.level)
    noisy = any(setting.name == "noise" for setting in method.settings)
    if noisy:
        options["seed"] = mix(seed, 1, phase)
        if method.takes_distribution():
            options["distribution"] = recipe.distribution
        if recipe.per_rank is not None:
            options["per_rank"] = recipe.per_rank
    if noisy or method.make is SAM:
        if recipe.perturb != "all":
            options["perturb"] = select(net, recipe.perturb)
        if recipe.bn_stats != "both":
            options["bn_stats"] = recipe.bn_stats
    return method.build(base, model, **options)


def autocast(device: torch.device, precision: str) -> AbstractContextManager[None]:
    return torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16", cache_enabled=False)
