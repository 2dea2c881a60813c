"""docs/reference/recipes.md, to which the help of `--set` refers, has every field with its default and its choices."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

from vitreous.core.errors import VitreousError
from vitreous.models import config
from vitreous.models.names import parse_name
from vitreous.training.recipes.recipe import Recipe, parse_value

PAGE = (Path(__file__).parents[3] / "docs" / "reference" / "recipes.md").read_text(encoding="utf-8")
SECTION = PAGE.partition("## Fields\n")[2].partition("\n## ")[0]
# A row as the page has it: field, default, meaning. A bar inside a cell is written \|.
ROWS = [
    [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
    for line in SECTION.splitlines()
    if line.startswith("| `")
]


def test_the_table_has_every_field_in_the_order_of_the_dataclass() -> None:
    assert [row[0].strip("`") for row in ROWS] == [field.name for field in dataclasses.fields(Recipe)]
    assert all(meaning for _, _, meaning in ROWS)


@pytest.mark.parametrize(("name", "default", "meaning"), ROWS, ids=[row[0] for row in ROWS])
def test_a_default_typed_as_documented_is_the_default(name: str, default: str, meaning: str) -> None:
    field = next(field for field in dataclasses.fields(Recipe) if field.name == name.strip("`"))
    assert parse_value(field.name, default.strip("`")) == field.default
    choices = get_args(get_type_hints(Recipe)[field.name])
    words: set[Any] = {choice for choice in choices if isinstance(choice, str)}
    assert words <= set(re.findall("`([^`]*)`", f"{default} {meaning}"))


def test_fields_of_the_model_exist_and_have_the_choices_that_are_listed() -> None:
    names = re.findall(r"`model\.([a-z_]+)`", SECTION)
    assert {"width", "depth", "heads", "mlp", "patch", "pool", "positions", "activation", "registers"} <= set(names)
    known = {field.name for kind in (config.ViTConfig, config.ResNetConfig) for field in dataclasses.fields(kind)}
    assert set(names) - known == {"trunk_units", "trunk_width"}
    parse_name("R50+ViT-B/16", trunk_units=(2, 2, 2), trunk_width=32)
    with pytest.raises(VitreousError, match="trunk_widht"):
        parse_name("R50+ViT-B/16", trunk_widht=32)
    for name, kinds in (("pool", config.Pool), ("positions", config.PositionKind), ("activation", config.Activation)):
        (line,) = (line for line in SECTION.splitlines() if line.startswith(f"- `model.{name}`:"))
        assert set(re.findall("`([^`]*)`", line)) - {f"model.{name}"} == set(get_args(kinds))
