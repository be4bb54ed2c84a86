"""Which learning methods there are: every file of this folder that says ``METHOD = Class``, and anybody's own class.

A method is chosen by the ``name`` of its settings: a file's name, or ``package.module:Class`` for one that lives
elsewhere. Adding a file is all that it takes to add a method.
"""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, Discriminator, PlainValidator, SerializeAsAny, Tag

import clawrl.methods
from clawrl.methods.base import Method
from clawrl.plugins import is_dotted, load
from clawrl.strict import StrictConfig

DEFAULT = "binary_rl"
_ELSEWHERE = "package.module:Class"


@cache
def _builtin() -> dict[str, type[Any]]:
    found = {}
    for entry in pkgutil.iter_modules(clawrl.methods.__path__):
        # This module is being imported itself.
        if entry.name != "registry":
            method = getattr(importlib.import_module(f"clawrl.methods.{entry.name}"), "METHOD", None)
            if method is not None:
                found[method.name] = method
    return found


def builtin_names() -> tuple[str, ...]:
    return tuple(sorted(_builtin()))


def method_class(name: str) -> type[Any]:
    """The class behind a name or a dotted path. Raises `ValueError` with the choices."""
    if not is_dotted(name):
        if name not in _builtin():
            raise ValueError(f"there is no method {name!r}; choose one of {', '.join(builtin_names())} or {_ELSEWHERE}")
        return _builtin()[name]
    found = load(name)
    config = getattr(found, "Config", None)
    if not (isinstance(config, type) and issubclass(config, StrictConfig) and "name" in config.model_fields):
        raise ValueError(f"{name} needs a class attribute Config, a clawrl.strict.StrictConfig with a field `name`")
    return found  # type: ignore[no-any-return]


def build_method(config: StrictConfig) -> Method:
    method: Method = method_class(_name(config))(config)
    return method


def _name(value: Any) -> str:
    name = value.get("name", DEFAULT) if isinstance(value, dict) else getattr(value, "name", DEFAULT)
    return str(name)


def _kind(value: Any) -> str:
    name = _name(value)
    return _ELSEWHERE if is_dotted(name) else name


def _from_elsewhere(value: Any) -> StrictConfig:
    config: StrictConfig = method_class(_name(value)).Config.model_validate(value)
    return config


def _union() -> Any:
    """One branch per method, so that an error names the field of the method that was meant."""
    elsewhere: Any = Annotated[BaseModel, PlainValidator(_from_elsewhere), Tag(_ELSEWHERE)]
    union: Any = elsewhere
    for name, method in sorted(_builtin().items()):
        union = union | Annotated[method.Config, Tag(name)]
    unknown = f"there is no such method; set name to one of {', '.join(builtin_names())} or {_ELSEWHERE}"
    which = Discriminator(_kind, custom_error_type="unknown_method", custom_error_message=unknown)
    return Annotated[union, which, SerializeAsAny()]  # type: ignore[type-arg]


if TYPE_CHECKING:
    MethodConfig = StrictConfig
else:
    MethodConfig = _union()
