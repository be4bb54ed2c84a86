"""Finding a user's own code by name: ``package.module:name``, imported like any other module.

The user's folder must be importable where the code runs (installed, or on ``PYTHONPATH`` of every machine). Whatever
is wrong is one `PluginError` that quotes the path and says what to do; an error inside the user's module is chained.
"""

from __future__ import annotations

import importlib
from typing import Any


class PluginError(ValueError):
    """The path does not lead to something that can be called."""

    def __init__(self, path: str, problem: str, remedy: str) -> None:
        super().__init__(f"{path!r}: {problem}; {remedy}")


def is_dotted(text: str) -> bool:
    """True for a path to a user's code, false for the name of something built in."""
    return ":" in text


def load(path: str) -> Any:
    """The function or class at ``package.module:name`` (``name`` may have dots). Raises `PluginError`."""
    module_name, colon, name = path.partition(":")
    if not (colon and module_name and name):
        raise PluginError(path, "this is not a path to code", "write it as package.module:name")
    found = _module(path, module_name)
    walked = module_name
    for part in name.split("."):
        if not hasattr(found, part):
            raise PluginError(path, f"{walked} has no {part!r}", "check the spelling of what follows the colon")
        found, walked = getattr(found, part), f"{walked}.{part}"
    if not callable(found):
        raise PluginError(path, f"{walked} is a {type(found).__name__}", "name a function or a class")
    return found


def _module(path: str, name: str) -> Any:
    try:
        return importlib.import_module(name)
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and error.name and f"{name}.".startswith(f"{error.name}."):
            remedy = "install it, or put its folder on PYTHONPATH on every machine"
            raise PluginError(path, f"there is no module {error.name!r}", remedy) from error
        problem = f"importing {name} failed with {type(error).__name__}: {error}"
        raise PluginError(path, problem, f"make `python -c 'import {name}'` work") from error
