"""From words on a command line to a recipe and how to carry it out."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields

from ..experiments.catalogue import get
from ..train.execution import Execution
from ..train.recipe import Recipe, override
from ..train.rundir import RunDir
from . import own


def from_changes(name: str, changes: Sequence[str]) -> tuple[Recipe, Execution]:
    """The recipe of that name, or of a run's folder, with ``key=value`` texts applied to it or to the execution."""
    return _changed(_recipe(name), changes)


def named(words: Sequence[str]) -> tuple[str | None, list[str]]:
    """The name of a recipe, if the words begin with one, and the other words."""
    first, *others = words or ("-",)
    return (None, list(words)) if first.startswith("-") or "=" in first else (first, others)


def from_command_line(
    name: str | None, arguments: Sequence[str], program: str, about: str = ""
) -> tuple[Recipe, Execution]:
    """The same, with options (``--lr 0.1 0.01``) as well as ``key=value``; ``--help`` explains every field.

    Without a name, a model and a folder of images must be among the arguments.
    """
    asks = bool({"-h", "--help"} & set(arguments))
    mine = name is None and not asks
    recipe = _own(arguments, program) if mine else _recipe(name or "digits")
    arguments = list(_as_words(arguments))
    changes = [word for word in arguments if "=" in word and not word.startswith("-")]
    recipe, execution = _changed(recipe, changes)
    if options := [word for word in arguments if word not in changes]:
        recipe, execution = _with_options(recipe, execution, options, f"{program} {name or '[RECIPE]'}", about)
    if mine:
        own.check(recipe)
    return recipe, execution


def _as_words(arguments: Sequence[str]) -> Iterator[str]:
    """Options that must fit others as ``key=value``, to be read with those.

    ``--method`` and ``--settings.NAME``: only there ``split:0.15`` is read, and a level let go. ``--phases`` and
    ``--lr``, which may have several values: a rate for each phase.
    """
    words = deque(arguments)
    while words:
        word = words.popleft()
        if not re.match(r"--((method|phases|lr)(=|$)|settings\.)", word):
            yield word
        elif "=" in word:
            yield word[2:]
        else:
            values: list[str] = []
            while words and not words[0].startswith("-") and "=" not in words[0] and (not values or word == "--lr"):
                values.append(words.popleft())
            if not values:
                raise ValueError(f"{word} needs a value behind it, as in --method split:0.15")
            yield f"{word[2:]}={','.join(values)}"


def _with_options(
    recipe: Recipe, execution: Execution, options: Sequence[str], program: str, about: str
) -> tuple[Recipe, Execution]:
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

    words = "key=value works as well as --key value. method=split:0.15 gives name and level."
    found = tyro.cli(
        Both,
        prog=program,
        args=options,
        default=Both(recipe, execution),
        config=(tyro.conf.OmitArgPrefixes,),
        description=f"{about}\n{words}".strip(),
    )
    return found.recipe, found.execution


def _own(arguments: Sequence[str], program: str) -> Recipe:
    model, data = (_value(arguments, key) for key in ("model", "data"))
    if model and data:
        return own.own(model, data)
    if model or data:
        raise ValueError(f"{program} needs both or neither: --model package.module:function and --data FOLDER")
    raise ValueError(
        f"{program} needs the name of a recipe: `ssgd recipes` lists them, digits takes seconds. For your own model and"
        " images give --model package.module:function --data FOLDER"
    )


def _value(arguments: Sequence[str], key: str) -> str | None:
    """What a field is given: ``key=value``, ``--key=value`` or ``--key value``."""
    for place, word in enumerate(arguments):
        name, equals, value = word.partition("=")
        if name in (key, f"--{key}") and equals:
            return value
        if word == f"--{key}":
            return next(iter(arguments[place + 1 :]), None)
    return None


def _changed(recipe: Recipe, changes: Sequence[str]) -> tuple[Recipe, Execution]:
    about_execution = {field.name for field in fields(Execution)}
    here = [change.partition("=")[0].replace("-", "_") in about_execution for change in changes]
    execution = override(Execution(), [change for change, mine in zip(changes, here, strict=True) if mine])
    return recipe.with_changes([change for change, mine in zip(changes, here, strict=True) if not mine]), execution


def _recipe(name: str) -> Recipe:
    of_a_run = RunDir(name).recipe()
    return get(name) if of_a_run is None else Recipe.from_json(of_a_run)
