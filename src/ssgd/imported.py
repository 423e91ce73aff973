"""Names that a user writes: functions of one's own, ``"package.module:function"``, and what a wrong name meant."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import Any


def imported(name: str, arguments: str = "") -> Callable[..., Any]:
    """Imports the function that ``name`` stands for; ``arguments`` tells the user how it should be defined."""
    path, _, function = name.partition(":")
    if not path or path.startswith(".") or not function:
        raise ValueError(f"{name!r} names no function: write 'package.module:function'")
    try:
        module = import_module(path)
    except ModuleNotFoundError as error:
        if not f"{path}.".startswith(f"{error.name}."):  # the module is there, and what it imports is not
            raise ImportError(f"{path} cannot be imported: {error}") from error
        raise ValueError(f"no module called {path!r}: install it, or put its folder into PYTHONPATH") from error
    found: Callable[..., Any] | None = getattr(module, function, None)
    if not callable(found):
        raise ValueError(f"{path} has no function called {function!r}: define {function}({arguments}) there")
    return found


def takes(function: Callable[..., Any], *positional: Any, **named: Any) -> bool:
    """Whether a function can be called with these arguments, as far as its signature is known."""
    try:
        inspect.signature(function).bind(*positional, **named)
    except TypeError:
        return False
    except ValueError:  # it has no signature to look at
        pass
    return True


def did_you_mean(name: str, known: Iterable[str], otherwise: str, words: Mapping[str, str] | None = None) -> str:
    """Asks for the names that are nearly ``name``, or says ``otherwise`` where there are none.

    ``words``: what people may call a known name instead.
    """
    from difflib import get_close_matches

    names = {one: one for one in known} | dict(words or {})
    near = dict.fromkeys(names[match] for match in get_close_matches(name.lower(), names, 3))
    return f"did you mean {' or '.join(near)}?" if near else otherwise
