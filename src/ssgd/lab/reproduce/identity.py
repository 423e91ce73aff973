"""When two recipes are the same training, whatever they are called."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

from ...methods import registry
from ...methods.averaging import Averaging
from ...methods.sam import SAM
from ..train.phases import Phase
from ..train.recipe import Recipe

ASIDE = ("name", "seeds", "precision", "evaluate_every")  # looking more often changes nothing
IN_THE_SCHEDULE = ("method", "level", "phases", "lr", "epochs", "anneal", "warm_up", "lr_for_batch")
OF_POINTS = ("perturb", "bn_stats")
OF_NOISE = ("distribution", "per_rank")


def identity(recipe: Recipe) -> str:
    """What decides the result but for seed and precision, which a recipe may leave to the machine."""
    schedule = recipe.schedule
    phases = [asdict(phase) for phase in _joined([_settled(phase, recipe.distribution) for phase in schedule.phases])]
    aside = {*ASIDE, *IN_THE_SCHEDULE, *OF_POINTS, *OF_NOISE}
    if any(map(_noisy, schedule.phases)):
        aside -= {*OF_POINTS, *OF_NOISE}
    if any(registry.get(phase.method).make is SAM for phase in schedule.phases):
        aside -= {*OF_POINTS}
    if any(phase.method == "dropconnect" for phase in schedule.phases):
        aside.discard("perturb")  # it says which layers
    rest = {key: value for key, value in recipe.to_json().items() if key not in aside}
    return json.dumps({**rest, "phases": phases, "warm_up": schedule.warm_up, "peak": schedule.peak}, sort_keys=True)


def _settled(phase: Phase, distribution: str) -> Phase:
    """With the method's own level where none is given, and none where it has none."""
    return replace(phase, level=registry.get(phase.method).settled_level(phase.level, distribution))


def _joined(phases: list[Phase]) -> list[Phase]:
    """Two phases that are one but for the cut between them. Noise goes by the number of its phase, an average begins
    anew with it: a training that has either is left as it is."""
    if any(_noisy(phase) or registry.get(phase.method).make is Averaging for phase in phases):
        return phases
    found: list[Phase] = []
    for phase in phases:
        if found and replace(phase, epochs=found[-1].epochs) == found[-1] and not phase.period:
            found[-1] = replace(phase, epochs=found[-1].epochs + phase.epochs)
        else:
            found.append(phase)
    return found


def _noisy(phase: Phase) -> bool:
    return any(setting.name == "noise" for setting in registry.get(phase.method).settings)
