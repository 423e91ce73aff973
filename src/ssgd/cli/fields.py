"""A recipe's and its execution's fields on the command line: ``--key value``, ``--key=value`` and ``key=value``."""

from __future__ import annotations

import argparse
import hashlib
import re
import typing
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from ..imported import did_you_mean
from ..lab.experiments import get
from ..lab.train.fields import as_text, types_of
from ..lab.train.recipe import Execution, Recipe, setting_hint
from ..lab.train.rundir import RunDir
from ..methods import METHODS

USAGE = "ssgd {} [RECIPE] [key=value | --key value …]"
WORDS = "key=value works as well as --key value, and --no-key as key=no. method=split:0.15 gives name and level."
LONGEST = 60  # characters of a folder's name
GROUPS = {"the recipe, which decides the result": Recipe, "the execution, which does not": Execution}


def prepared(words: Sequence[str]) -> list[str]:
    """The words as argparse takes them: ``key=value`` as ``--key=value``, and keys with hyphens."""
    found: list[str] = []
    for word in words:
        key, equals, value = word.partition("=")
        is_value = found[-1:] == ["--vary"]  # which has the form key=A,B itself
        if word.startswith("--") or (equals and not word.startswith("-") and not is_value):
            key = "--" + key.removeprefix("--").replace("_", "-")
        found.append(f"{key}{equals}{value}")
    return sorted(found, key=lambda word: word in ("-h", "--help"))  # the help knows all other words


def add_fields(
    parser: argparse.ArgumentParser, recipe: Recipe | None = None, execution: Execution | None = None
) -> None:
    """Adds an option for every field; ``options.changes`` collects them as ``key=value`` texts, in their order.

    The help tells the values of ``recipe`` and ``execution`` as defaults.
    """
    name = parser.prog.split()[-1]
    parser.usage = USAGE.format(name)
    parser.epilog = WORDS
    parser.set_defaults(changes=[])
    parser.add_argument("recipe", nargs="?", metavar="RECIPE", help="A recipe by name, or a run's folder.")
    parser.add_argument("-h", "--help", action=_Help, nargs=0, help="Shows this help, with the values of the recipe.")
    given: Any
    for title, given in zip(GROUPS, (recipe or Recipe(), execution or Execution()), strict=True):
        group = parser.add_argument_group(title)
        for one in fields(given):
            kind, value = types_of(type(given))[one.name], getattr(given, one.name)
            option = f"--{one.name.replace('_', '-')}"
            help = f"{one.metadata['help']} (default: {as_text(value) or 'none'})".replace("%", "%%")
            if typing.get_origin(kind) is Mapping:
                names = dict.fromkeys(setting.name for method in METHODS.values() for setting in method.settings[1:])
                for index, inner in enumerate(names):
                    group.add_argument(
                        f"{option}.{inner.replace('_', '-')}",
                        action=_Change,
                        help=help if index == 0 else argparse.SUPPRESS,
                        metavar="NUMBER",
                    )
            elif bool in (kind, *typing.get_args(kind)):
                group.add_argument(option, action=_Change, nargs="?", const="yes", metavar="yes|no", help=help)
                no = option.replace("--", "--no-", 1)
                group.add_argument(no, action=_Change, nargs=0, const="no", dest=one.name, help=argparse.SUPPRESS)
            else:
                nargs: Any = "+" if typing.get_origin(kind) is tuple else None
                choices = "|".join(one.metadata["allowed"].choices)
                group.add_argument(option, action=_Change, nargs=nargs, metavar=choices or one.name.upper(), help=help)


def chosen(options: argparse.Namespace, program: str, varied: Sequence[str] = ()) -> tuple[Recipe, Execution]:
    """The recipe and the execution that the words say. Without a name they must give a model and a folder of images.

    A recipe with changed fields is named by them, unless ``name`` is given. The fields in ``varied`` are left out: what
    follows sets them.
    """
    begun_with = recipe = _custom(options, program) if options.recipe is None else recipe_of(options.recipe)
    if options.left:
        raise ValueError(f"cannot use {options.left[0].removeprefix('--')!r}: {_advice(options, program)}")
    about_execution = {field.name for field in fields(Execution)}
    mine = [change.partition("=")[0] in about_execution for change in options.changes]
    execution = Execution().with_changes(c for c, here in zip(options.changes, mine, strict=True) if here)
    recipe = recipe.with_changes(c for c, here in zip(options.changes, mine, strict=True) if not here)
    if options.recipe is None:
        from ..lab.experiments import custom

        custom.check(recipe)
    if value_of(options, "name") is None:
        recipe = replace(recipe, name=name_with_changes(recipe, begun_with, varied))
    return recipe, execution


def name_with_changes(recipe: Recipe, begun_with: Recipe, varied: Sequence[str] = ()) -> str:
    """The name that the recipe began with, and what was changed: ``digits/split-0.15_lr-0.1``.

    So runs of different recipes have different folders, and the same recipe finds its own again.
    """
    parts = []
    for key in recipe.differences(begun_with):
        value = getattr(recipe, key)
        if key in ("name", "seeds", *varied) or (key == "level" and recipe.method != begun_with.method):
            continue
        if key == "settings":
            parts += [in_name(inner, str(one)) for inner, one in value.items() if begun_with.settings.get(inner) != one]
        elif key == "method" and recipe.level is not None:
            parts.append(in_name(key, f"{value}:{recipe.level}"))
        else:
            parts.append(in_name(key, as_text(value)))
    return f"{begun_with.name}/{short('_'.join(parts))}" if parts else begun_with.name


def in_name(key: str, text: str) -> str:
    """A field and its value as they stand in a name: ``lr-0.1``. A method stands for itself: ``split-0.15``."""
    words = text if key == "method" else f"{key.replace('_', '-')}-{text.rstrip('/')}"
    return re.sub(r"[^\w.,+-]+", "-", words)


def short(name: str) -> str:
    """A part of a name, which ends in a hash of itself where it would be too long."""
    return name if len(name) <= LONGEST else f"{name[: LONGEST - 9]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def _advice(options: argparse.Namespace, program: str) -> str:
    """Says how to write the first word that is no field."""
    first, *others = options.left
    key, equals, text = first.removeprefix("--").partition("=")
    if not first.startswith("--"):
        return "write key=value, after the name of a recipe"
    method = (value_of(options, "method") or "split").partition(":")[0]
    hint = setting_hint(key, text if equals else "".join(others[:1]), {"method": method})
    known = [one.name for kind in GROUPS.values() for one in fields(kind)]
    return hint or did_you_mean(key.replace("-", "_"), known, f"`{program} --help` lists the fields")


def _custom(options: argparse.Namespace, program: str) -> Recipe:
    from ..lab.experiments import custom

    model, data = value_of(options, "model"), value_of(options, "data")
    if model and data:
        return custom.custom(model, data, with_test=value_of(options, "held_out") in (None, "0"))
    if model or data:
        raise ValueError(f"{program} needs both or neither: --model package.module:function and --data FOLDER")
    raise ValueError(
        f"{program} needs the name of a recipe: `ssgd recipes` lists them, digits is the shortest. For your own model "
        "and images give --model package.module:function --data FOLDER"
    )


def recipe_of(name: str) -> Recipe:
    """The recipe of that name, or of a run's folder."""
    of_a_run = RunDir(name).recipe()
    return get(name) if of_a_run is None else Recipe.from_json(of_a_run)


def value_of(options: argparse.Namespace, key: str) -> str | None:
    """The last value that a field is given."""
    values = [change.partition("=")[2] for change in options.changes if change.startswith(f"{key}=")]
    return values[-1] if values else None


class _Change(argparse.Action):
    """Collects ``key=value`` texts in ``options.changes``."""

    def __call__(self, parser: Any, options: Any, values: Any, option: str | None = None) -> None:
        text = self.const if values == [] else ",".join(values) if isinstance(values, list) else values
        options.changes = [*options.changes, f"{self.dest}={text}"]


class _Help(argparse.Action):
    """Prints the help with the values of the recipe that is named."""

    def __call__(self, parser: Any, options: Any, values: Any, option: str | None = None) -> None:
        shown = argparse.ArgumentParser(prog=parser.prog, description=parser.description, add_help=False)
        for action in parser._actions:
            if not isinstance(action, _Help | _Change) and action.dest != "recipe":
                shown._add_action(action)
        own = options.recipe is None and value_of(options, "model") and value_of(options, "data")
        try:
            recipe = _custom(options, parser.prog) if own else recipe_of(options.recipe) if options.recipe else None
        except (ValueError, OSError) as problem:
            parser.error(str(problem))
        add_fields(shown, recipe)
        shown.print_help()
        parser.exit()
