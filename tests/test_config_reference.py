"""The reference of settings: every key of every class is in it, described, with what its class says of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import pytest
from pydantic import BaseModel, Field

from clawrl.config import Deployment
from clawrl.config_reference import MARK, Key, brought_up_to_date, main, markdown, sections, without_description
from clawrl.methods.registry import builtin_names
from clawrl.strict import StrictConfig

PAGE = Path(__file__).resolve().parent.parent / "docs" / "configuration.md"
KEYS = {(section.variant, key.path): key for section in sections() for key in section.keys}


class Small(StrictConfig):
    depth: int = Field(2, gt=0, le=9, description="how deep")


class Left(StrictConfig):
    when: Literal["left"] = "left"


class Right(StrictConfig):
    when: Literal["right"] = "right"
    far_s: float = Field(description="how | far")


class Example(StrictConfig):
    """An `example`."""

    names: tuple[str, ...] = Field((), min_length=1, description="some")
    small: Small = Small(depth=5)
    others: tuple[Small, ...] = ()
    either: Annotated[Left | Right, Field(discriminator="when")] = Left()
    maybe: Small | None = None


def key(path: str, variant: str = "") -> Key:
    found = {(s.variant, k.path): k for s in sections(Example) for k in s.keys}
    return found[variant, path]


def test_a_key_is_shown_with_type_default_limits_and_unit() -> None:
    assert key("names") == Key(path="names", type="list of text", default="[]", limits="not empty", description="some")
    assert key("either.far_s", "when: right") == Key(
        path="either.far_s", type="number", default="required", limits="seconds", description="how | far"
    )
    assert (key("maybe").type, key("maybe").default) == ("block or null", "null")
    assert key("others[].depth").limits == "> 0, ≤ 9"


def test_defaults_of_a_block_are_those_of_the_place_where_it_stands() -> None:
    assert key("small.depth").default == "5" and key("maybe.depth").default == "2"
    assert KEYS["", "policy.resources.num_cpus"].default != KEYS["", "judge.resources.num_cpus"].default


def test_keys_that_nobody_described_are_named() -> None:
    assert without_description(sections(Example)) == [
        "small", "others", "either", "maybe", "either.when", "either.when",
    ]  # fmt: skip


def test_a_table_survives_what_is_written_in_it() -> None:
    text = markdown(sections(Example))
    assert "| how \\| far |" in text and "## `either` with `when: right`" in text and "## `args`" in text


def test_every_key_of_a_deployment_has_a_description() -> None:
    lacking = without_description(sections())
    assert not lacking, f"give each a description in its class, with its unit if the name does not say it: {lacking}"


def test_every_key_of_a_deployment_is_in_the_reference() -> None:
    """Found in another way: by what pydantic says that a file may hold."""
    paths = {path.replace("[]", "") for _, path in KEYS}
    names = set(of_schema(Deployment.model_json_schema()))
    assert {path.rpartition(".")[2] for path in paths} >= names and len(names) > 120
    for name in builtin_names():
        assert (f"name: {name}", "trainer.method.name") in KEYS


def of_schema(schema: dict[str, Any]) -> Iterator[str]:
    for part in (schema, *schema.get("$defs", {}).values()):
        yield from part.get("properties", {})


def test_every_class_that_a_deployment_is_made_of_has_its_section() -> None:
    def classes(model: type[BaseModel]) -> Iterator[type[BaseModel]]:
        yield model
        for field in model.model_fields.values():
            yield from (inner for part in parts(field.annotation) for inner in classes(part))

    def parts(annotation: Any) -> Iterator[type[BaseModel]]:
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            yield annotation
        for argument in get_args(annotation):
            yield from parts(argument)

    wanted = sum(1 for _ in classes(Deployment))
    # Methods from elsewhere have a class that is not known here.
    assert len(list(sections())) == wanted - 1


def test_the_page_has_every_key_as_its_class_has_it_now() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert brought_up_to_date(page) == page, "a setting changed: run `make reference` and commit docs/configuration.md"


def test_only_what_stands_below_the_mark_of_a_page_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"# Mine\n\n{MARK}\n\nold\n")
    monkeypatch.setattr("sys.argv", ["config_reference", str(page)])
    main()
    text = page.read_text(encoding="utf-8")
    assert text.startswith(f"# Mine\n\n{MARK}\n\n## `args`") and "old\n" not in text
    with pytest.raises(ValueError, match="has no line"):
        brought_up_to_date("# Another\n")
