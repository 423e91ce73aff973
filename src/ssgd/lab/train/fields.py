"""Dataclasses whose fields are declared once.

A field's type, default, help and range stand in its declaration. The command line, the check of values, JSON and the
table in the documentation are derived from it.
"""

from __future__ import annotations

import math
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import lru_cache
from typing import Any, TypeVar

from ...imported import did_you_mean

Config = TypeVar("Config")
TRUE, FALSE = ("true", "yes", "1"), ("false", "no", "0")


@dataclass(frozen=True)
class Allowed:
    """The values that a field may have besides None. A bound holds for each number of a tuple."""

    choices: tuple[str, ...] = ()
    least: float = -math.inf
    most: float = math.inf
    above: float = -math.inf
    below: float = math.inf

    def __contains__(self, value: Any) -> bool:
        if isinstance(value, str):
            return not self.choices or value in self.choices
        return math.isfinite(value) and self.least <= value <= self.most and self.above < value < self.below

    def __str__(self) -> str:
        if self.choices:
            return f"one of {', '.join(map(repr, self.choices))}"
        bounds = {"of at least": self.least, "above": self.above, "of at most": self.most, "below": self.below}
        return " and ".join(f"{words} {bound}" for words, bound in bounds.items() if math.isfinite(bound))


def declared(default: Any, help: str, **allowed: Any) -> Any:
    """A field of a dataclass. ``help`` is a sentence; ``allowed`` are the arguments of ``Allowed``."""
    metadata = {"help": help, "allowed": Allowed(**allowed)}
    if isinstance(default, Mapping):
        return field(default_factory=lambda: dict(default), metadata=metadata)
    return field(default=default, metadata=metadata)


@lru_cache
def _types_of(config: type) -> dict[str, Any]:
    return typing.get_type_hints(config)


def types_of(config: Any) -> dict[str, Any]:
    """The type of every field, by name."""
    return _types_of(config)


def check(config: Any) -> None:
    """Raises a ValueError where a field has another type than declared, or a value that is not allowed."""
    kinds = types_of(type(config))
    for one in fields(config):
        value, allowed = getattr(config, one.name), one.metadata["allowed"]
        if not _is(kinds[one.name], value):
            raise ValueError(f"{one.name} must be {_described(kinds[one.name])}, not {value!r}")
        if isinstance(value, bool) or value is None:
            continue
        numbers = value.values() if isinstance(value, Mapping) else value if isinstance(value, tuple) else [value]
        for number in numbers:
            if number not in allowed:
                words = "" if allowed.choices else _described(kinds[one.name]).partition(" or ")[0] + " "
                raise ValueError(f"{one.name} must be {words}{allowed}, not {value!r}")


def table(config: Any) -> list[tuple[str, str, str]]:
    """Name, help and value of every field."""
    return [(one.name, one.metadata["help"], as_text(getattr(config, one.name))) for one in fields(config)]


# --- words and values -------------------------------------------------------------------------------------------------


Hint = Callable[[str, str, Mapping[str, Any]], str | None]


def read_changes(config: Any, changes: Iterable[str], hint: Hint | None = None) -> dict[str, Any]:
    """The values that ``key=value`` texts give to fields, each read by its field's type.

    ``settings.NAME=value`` changes one entry of a mapping. ``hint(key, text, values)`` may say what to write instead of
    a key that is no field; ``values`` are those read so far.
    """
    kinds = types_of(type(config))
    mappings = {name for name, kind in kinds.items() if typing.get_origin(kind) is Mapping}
    values: dict[str, Any] = {}
    for change in changes:
        key, equals, text = change.partition("=")
        name, _, inner = key.strip().replace("-", "_").partition(".")
        if equals and name in kinds and bool(inner) == (name in mappings):
            value = read(key, float if inner else kinds[name], text)
            values[name] = {**values.get(name, getattr(config, name)), inner: value} if inner else value
            continue
        keys = ", ".join(f"{one}.NAME" if one in mappings else one for one in kinds)
        unknown = name if equals and name not in kinds else ""
        advice = (hint and unknown and hint(unknown, text, values)) or did_you_mean(
            unknown, kinds, f"write key=value with one of the keys {keys}"
        )
        raise ValueError(f"cannot use {change!r}: {advice}")
    return values


def read(name: str, kind: Any, text: str) -> Any:
    """``text`` as a value of type ``kind``."""
    text, options = text.strip(), typing.get_args(kind)
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        if text.lower() == "none":
            return None
        return read(name, next(option for option in options if option is not type(None)), text)
    if typing.get_origin(kind) is tuple:
        return tuple(read(name, options[0], part) for part in text.strip("()").split(",") if part.strip())
    if kind is bool:
        if text.lower() not in TRUE + FALSE:
            raise ValueError(f"{name} is true or false, not {text!r}")
        return text.lower() in TRUE
    try:
        return kind(text)
    except (TypeError, ValueError):
        raise ValueError(f"{name} takes {_described(kind)}, not {text!r}") from None


def as_text(value: Any) -> str:
    """A value as ``read`` takes it."""
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) or value is None else str(value)


# --- JSON -------------------------------------------------------------------------------------------------------------


def to_json(config: Any) -> dict[str, Any]:
    return {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(config).items()}


def from_json(config: type[Config], found: Mapping[str, Any]) -> Config:
    """Rebuilds what ``to_json`` wrote; a field that is not there has its default."""
    kinds = types_of(config)
    if unknown := [key for key in found if key not in kinds]:
        raise ValueError(f"a {config.__name__.lower()} has no field {unknown[0]!r}: it comes from another ssgd")
    return config(**{key: tuple(value) if isinstance(value, list) else value for key, value in found.items()})


def _is(kind: Any, value: Any) -> bool:
    """Whether a value is of a field's type."""
    origin, options = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return any(_is(option, value) for option in options)
    if origin is tuple:
        return isinstance(value, tuple) and all(_is(options[0], one) for one in value)
    if kind in (int, float):
        return isinstance(value, int | kind) and not isinstance(value, bool)
    return isinstance(value, origin or kind)


def _described(kind: Any) -> str:
    """A field's type in words."""
    words = {int: "a whole number", float: "a finite number", bool: "true or false", str: "a text", type(None): "none"}
    options = typing.get_args(kind)
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        return " or ".join(map(_described, options))
    if typing.get_origin(kind) is tuple:
        return {int: "whole numbers", float: "finite numbers"}.get(options[0], "texts")
    return words.get(kind, "names with numbers")
