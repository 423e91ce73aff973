"""When two recipes are the same training, whatever they are called."""

from __future__ import annotations

import json
from dataclasses import fields, replace

from ...methods import registry
from ..train.phases import Phase
from ..train.recipe import Recipe

ASIDE = {"name", "seeds", "precision", "evaluate_every", "tolerance"}  # evaluating more often changes nothing
IN_THE_SCHEDULE = {"method", "level", "phases", "lr", "epochs", "anneal", "warm_up", "lr_for_batch"}
OF_POINTS = {"perturb", "bn_stats"}


def identity(recipe: Recipe) -> str:
    """Returns a text of all that decides the result but the seed and the precision.

    A field counts only where it has an effect: the distribution only where a method draws from one that can be chosen,
    so that SmoothOut, whose noise is uniform, is one training whatever the field says.
    """
    schedule = recipe.schedule
    methods = [registry.get(phase.method) for phase in schedule.phases]
    first = {method.settings[0].name if method.settings else "" for method in methods}
    used = set()
    if "noise" in first:
        used |= OF_POINTS | {"per_rank"}
    if "rho" in first:
        used |= OF_POINTS
    if any(method.name == "dropconnect" for method in methods):
        used |= {"perturb"}
    if any(method.takes_distribution() for method in methods):
        used |= {"distribution"}
    aside = ASIDE | IN_THE_SCHEDULE | ((OF_POINTS | {"per_rank", "distribution"}) - used)
    decided = {one.name: getattr(recipe, one.name) for one in fields(recipe) if one.name not in aside}
    phases = [vars(phase) for phase in _joined([_with_level(phase) for phase in schedule.phases])]
    decided |= {"phases": phases, "warm_up": float(schedule.warm_up), "peak": schedule.peak}
    return json.dumps(decided, sort_keys=True)


def _with_level(phase: Phase) -> Phase:
    """With the method's own level where none is given, none where it has none, and six digits of it."""
    level = registry.get(phase.method).settled_level(phase.level)
    return replace(phase, level=None if level is None else float(f"{level:.6g}"), lr=float(f"{phase.lr:.6g}"))


def _joined(phases: list[Phase]) -> list[Phase]:
    """Joins phases that differ in nothing but the cut between them.

    Noise goes by the number of its phase and an average begins anew with it, so a training that has either is left.
    """
    if any(_counts_phases(phase) for phase in phases):
        return phases
    found: list[Phase] = []
    for phase in phases:
        if found and replace(phase, epochs=found[-1].epochs) == found[-1] and not phase.period:
            found[-1] = replace(phase, epochs=found[-1].epochs + phase.epochs)
        else:
            found.append(phase)
    return found


def _counts_phases(phase: Phase) -> bool:
    settings = registry.get(phase.method).settings
    return phase.method in ("swa", "ema") or (bool(settings) and settings[0].name == "noise")
