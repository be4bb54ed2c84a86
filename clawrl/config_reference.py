"""Every key of a deployment's ``args:``, read off the config classes: what the configuration page of the docs shows.

In: a config class. Out: `Section`s in the order of the classes, one for each block at each place where it can stand,
and their rendering as Markdown. Nothing is written down twice: type, default, limits and description are those that
validate a file, the unit is the key's suffix. ``python -m clawrl.config_reference`` prints them, and with a page as its
argument puts them into it, below its `MARK`.
"""

from __future__ import annotations

import json
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from clawrl.config import Deployment

MARK = "<!-- every key: what follows is written by `make reference` -->"
_UNITS = {
    "_s": "seconds",
    "_mb": "MB",
    "_gib": "GiB",
    "_bytes": "bytes",
    "_tokens": "tokens",
    "_chars": "characters",
    "_words": "words",
    "_steps": "steps",
    "_days": "days",
    "_hours": "hours",
}
_NAMES: dict[Any, str] = {str: "text", int: "integer", float: "number", bool: "true or false", type(None): "null"}
_REQUIRED: Any = object()
_LIMITS = (("gt", "> {:g}"), ("ge", "≥ {:g}"), ("lt", "< {:g}"), ("le", "≤ {:g}"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """One line of a file. ``default`` is as it would be written in YAML; ``required`` where there is none."""

    path: str
    type: str
    default: str
    limits: str
    description: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A block of keys at one place. ``variant`` is what chooses it among several that may stand there."""

    path: str
    about: str
    keys: tuple[Key, ...]
    variant: str = ""


def sections(
    model: type[BaseModel] = Deployment, path: str = "", values: BaseModel | None = None, variant: str = ""
) -> Iterator[Section]:
    """The block ``model`` at ``path`` and those inside it. ``values`` are its defaults, if not those of its class."""
    fields = model.model_fields
    given = {name: _default(field, values, name) for name, field in fields.items()}
    yield Section(
        path=path,
        about=" ".join((model.__dict__.get("__doc__") or "").split()),
        keys=tuple(_key(_join(path, name), field, given[name]) for name, field in fields.items()),
        variant=variant,
    )
    for name, field in fields.items():
        blocks = _blocks(field.annotation)
        place = _join(path, name) + ("[]" if get_origin(field.annotation) is tuple else "")
        for block in blocks:
            default = given[name] if type(given[name]) is block else None
            yield from sections(block, place, default, _chooser(block) if len(blocks) > 1 else "")


def without_description(found: Iterator[Section]) -> list[str]:
    """The keys that nobody described."""
    return [key.path for section in found for key in section.keys if not key.description]


def markdown(found: Iterator[Section]) -> str:
    """Tables, a heading each; what a table cell cannot hold is escaped."""
    return "\n".join(line for section in found for line in _table(section))


def _table(section: Section) -> Iterator[str]:
    title = f"`{section.path or 'args'}`" + (f" with `{section.variant}`" if section.variant else "")
    yield f"## {title}\n"
    if section.about:
        yield section.about.replace("``", "`") + "\n"
    yield "| key | type | default | limits | what it is |"
    yield "|---|---|---|---|---|"
    for key in section.keys:
        name = key.path.removeprefix(f"{section.path}.")
        cells = (f"`{name}`", key.type, f"`{key.default}`" if key.default else "", key.limits, key.description)
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
    yield ""


def _key(path: str, field: FieldInfo, default: Any) -> Key:
    return Key(
        path=path,
        type=_type(field.annotation),
        default=_written(default),
        limits=_limits(path, field),
        description=field.description or "",
    )


def _default(field: FieldInfo, values: BaseModel | None, name: str) -> Any:
    if values is not None:
        return getattr(values, name)
    if field.is_required():
        return _REQUIRED
    return field.get_default(call_default_factory=True)


def _written(value: Any) -> str:
    if value is _REQUIRED:
        return "required"
    if isinstance(value, BaseModel):
        return ""
    return json.dumps(value, ensure_ascii=False)


def _type(annotation: Any) -> str:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _type(arguments[0])
    if origin is Literal:
        return " or ".join(f"`{json.dumps(value).strip(chr(34))}`" for value in arguments)
    if origin in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(_type(argument) for argument in arguments))
    if origin is tuple:
        if arguments[1:] == (Ellipsis,):
            return f"list of {_type(arguments[0])}"
        return f"list of {len(arguments)}: {', '.join(map(_type, arguments))}"
    if origin is dict:
        return f"map of text to {_type(arguments[1])}"
    return _NAMES.get(annotation, "block")


def _limits(path: str, field: FieldInfo) -> str:
    said = []
    unit = next((unit for suffix, unit in _UNITS.items() if path.endswith(suffix)), None)
    if unit is not None:
        said.append(unit)
    for limit in field.metadata:
        said += [words.format(getattr(limit, name)) for name, words in _LIMITS if hasattr(limit, name)]
        if (least := getattr(limit, "min_length", None)) is not None:
            said.append("not empty" if least == 1 else f"at least {least} long")
        if (pattern := getattr(limit, "pattern", None)) is not None:
            said.append(f"`{pattern}`")
    return ", ".join(said)


def _blocks(annotation: Any) -> list[type[BaseModel]]:
    """The config classes that may stand there; code of the user's own brings a class that is not known here."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [] if annotation is BaseModel else [annotation]
    return [block for argument in get_args(annotation) for block in _blocks(argument)]


def _chooser(block: type[BaseModel]) -> str:
    """The key that says which of several blocks is meant, with its value: the first that can have only one."""
    for name, field in block.model_fields.items():
        if get_origin(field.annotation) is Literal and len(get_args(field.annotation)) == 1:
            return f"{name}: {get_args(field.annotation)[0]}"
    return block.__name__


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def brought_up_to_date(page: str) -> str:
    """``page`` with all keys below its mark; ValueError where it has none."""
    above, mark, _ = page.partition(MARK)
    if not mark:
        raise ValueError(f"the page has no line {MARK!r}, below which the keys would stand")
    return f"{above}{MARK}\n\n{markdown(sections()).strip()}\n"


def main() -> None:
    if not sys.argv[1:]:
        sys.stdout.write(markdown(sections()) + "\n")
    for page in map(Path, sys.argv[1:]):
        page.write_text(brought_up_to_date(page.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
