"""From words on a command line to a recipe and how to carry it out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from ..train.execution import Execution
from ..train.recipe import Recipe, override
from ..train.rundir import RunDir
from .registry import get


def from_changes(name: str, changes: Sequence[str]) -> tuple[Recipe, Execution]:
    """The recipe of that name, or of a run's folder, with ``key=value`` texts applied to it or to the execution."""
    about_execution = {field.name for field in fields(Execution)}
    here = [change.partition("=")[0].replace("-", "_") in about_execution for change in changes]
    execution = override(Execution(), [change for change, mine in zip(changes, here, strict=True) if mine])
    recipe = _recipe(name).with_changes([change for change, mine in zip(changes, here, strict=True) if not mine])
    return recipe, execution


def from_command_line(name: str | None, arguments: Sequence[str], program: str) -> tuple[Recipe, Execution]:
    """The same, with options (``--lr 0.1 0.01``) as well as ``key=value``; ``--help`` explains every field."""
    if name is None:
        if not {"-h", "--help"} & set(arguments):
            raise ValueError(f"{program} needs the name of a recipe: `ssgd recipes` lists them, digits takes seconds")
        name = "digits"
    changes = [word for word in arguments if "=" in word and not word.startswith("-")]
    options = [word for word in arguments if word not in changes]
    recipe, execution = from_changes(name, changes)
    if not options:
        return recipe, execution
    try:
        import tyro
    except ImportError:
        raise ImportError(
            f"options such as {options[0]} need tyro: pip install 'ssgd[cli]', or write key=value"
        ) from None

    @dataclass(frozen=True)
    class Both:
        recipe: Recipe
        execution: Execution

    found = tyro.cli(
        Both,
        prog=f"{program} {name}",
        args=options,
        default=Both(recipe, execution),
        config=(tyro.conf.OmitArgPrefixes,),
        description="key=value works as well as --key value. method=split:0.15 gives name and level.",
    )
    return found.recipe, found.execution


def _recipe(name: str) -> Recipe:
    if (Path(name) / "recipe.json").is_file():
        return Recipe.from_json(RunDir(name).recipe() or {})
    return get(name)
