"""`--bad-images` is one option: the same values, default and help wherever it is."""

from __future__ import annotations

import inspect
from typing import get_type_hints

import pytest

from vitreous.cli import COMMANDS, load_command, main, parameter_types
from vitreous.commands.types import BadImages
from vitreous.training.options import TrainOptions

HAVE = ("pretrain", "finetune", "choose", "embed", "evaluate", "fewshot", "shard")


def test_one_type_and_one_default() -> None:
    plain = {name for name in COMMANDS if "bad_images" in inspect.signature(load_command(name)).parameters}
    assert plain == {"choose", "embed", "evaluate", "fewshot", "shard"}
    for name in plain:
        assert inspect.signature(load_command(name)).parameters["bad_images"].default == "stop"
        assert parameter_types(load_command(name))["bad_images"] == BadImages
    assert get_type_hints(TrainOptions, include_extras=True)["bad_images"] == BadImages
    assert TrainOptions.bad_images == "stop"


@pytest.mark.parametrize("name", HAVE)
def test_one_help_text(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([name, "--help"])
    words = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "images that cannot be read: stop and name them, or skip them, count and list them. Default: stop." in words
