"""A recipe refuses what cannot be meant, in one line, and survives being written down and typed."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from vitreous.core.errors import VitreousError
from vitreous.training.recipes.recipe import Recipe, from_json, parse_set, parse_value, replace_fields, to_json
from vitreous.training.recipes.tables import RECIPES


def said(call: Any) -> str:
    with pytest.raises(VitreousError) as caught:
        call()
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        (dict(), "steps or epochs"),
        (dict(steps=1, epochs=1.0), "steps or epochs"),
        (dict(steps=0), "steps=0 must lie between 1"),
        (dict(steps=10**400), "steps=1000"),
        (dict(steps=5.0), "steps=5.0 must be a whole number"),
        (dict(steps=True), "steps=True must be a whole number"),
        (dict(steps=1, lr=float("nan")), "lr=nan must be a finite number"),
        (dict(steps=1, lr=10**400), "must be a finite number"),
        (dict(steps=1, lr=-0.1), "lr=-0.1 must lie between 0"),
        (dict(steps=1, lr="0.1"), "lr='0.1' must be a finite number"),
        (dict(steps=1, lr=True), "lr=True"),
        (dict(steps=1, lr=0.1, lr_end=0.2), "lr_end=0.2 is above lr=0.1"),
        (dict(steps=1, dropout=1.0), "dropout=1.0 must lie between"),
        (dict(steps=1, clip=0.0), "clip=0.0 must lie between"),
        (dict(steps=1, smoothing=1.0), "smoothing"),
        (dict(steps=1, mixup=-1.0), "mixup"),
        (dict(steps=1, representation=1), "representation=1 must be true or false"),
        (dict(steps=1, name=3), "name=3 must be text"),
        (dict(steps=1, loss="softmx"), "'softmax'"),
        (dict(steps=1, schedule="cosin"), "'cosine'"),
        (dict(steps=1, optimizer=["adam"]), "optimizer"),
        (dict(steps=1, schedule="staircase"), "milestones=0.3:0.6:0.9"),
        (dict(steps=1, schedule="staircase", milestones=(0.6, 0.3)), "rising"),
        (dict(steps=1, schedule="staircase", milestones=(0.5, 1.0)), "rising"),
        (dict(steps=1, milestones=[0.3]), "finite numbers"),
        (dict(steps=1, sweep=(0.1, float("inf"))), "finite numbers"),
        (dict(steps=1, sweep=(0.1, 0.0)), "above 0"),
        (dict(steps=1, objective="masked-patch", mixup=0.1), "for classification"),
        (dict(steps=1, objective="masked-patch", train="head"), "for classification"),
        (dict(steps=1, objective="masked-patch", class_weights="balanced"), "for classification"),
        (dict(steps=1, evaluation="random_crop(8)|range(-1,1)"), "is random"),
        (dict(steps=1, preprocess="inception_crp(8)"), "'inception_crop'"),
        (dict(steps=1, sweep_share=1.0), "sweep_share"),
    ],
)
def test_what_cannot_be_meant_is_refused(fields: dict[str, Any], word: str) -> None:
    assert word in said(lambda: Recipe(**fields))


def test_steps_replace_epochs_and_the_reverse() -> None:
    recipe = Recipe(epochs=3)
    assert (replace_fields(recipe, {"steps": 7}).steps, replace_fields(recipe, {"steps": 7}).epochs) == (7, None)
    back = replace_fields(replace_fields(recipe, {"steps": 7}), {"epochs": 2.5})
    assert (back.steps, back.epochs) == (None, 2.5)
    assert replace_fields(recipe, {"lr": 1.0}).epochs == 3
    assert "steps or epochs" in said(lambda: replace_fields(recipe, {"steps": 7, "epochs": 1}))
    assert "'warmup'" in said(lambda: replace_fields(recipe, {"warmpu": 7}))


def test_what_is_typed() -> None:
    words = ["lr=3e-4,warmup=100", "sweep=0.01,0.03", "preprocess=resize(36,36)|random_crop(32)|flip|range(-1,1),clip=none"]
    words += ["epochs=2.5", "representation=yes", "milestones=0.3:0.6", "loss=sigmoid", "evaluation = resize(32)|range(-1,1)"]
    values = {name: parse_value(name, text) for name, text in parse_set(words).items()}
    assert values == {
        "lr": 3e-4,
        "warmup": 100,
        "sweep": (0.01, 0.03),
        "preprocess": "resize(36,36)|random_crop(32)|flip|range(-1,1)",
        "clip": None,
        "epochs": 2.5,
        "representation": True,
        "milestones": (0.3, 0.6),
        "loss": "sigmoid",
        "evaluation": "resize(32)|range(-1,1)",
    }
    assert replace_fields(Recipe(steps=1, clip=1.0), values).clip is None


@pytest.mark.parametrize(
    ("name", "text", "word"),
    [
        ("lr", "fast", "must be a finite number"),
        ("steps", "1e4", "must be a whole number"),
        ("warmup", "none", "must be a whole number"),
        ("representation", "perhaps", "must be true or false"),
        ("sweep", "0.1:x", "must be finite numbers"),
        ("lrr", "1", "'lr'"),
    ],
)
def test_what_is_mistyped(name: str, text: str, word: str) -> None:
    assert word in said(lambda: parse_value(name, text))


def test_set_needs_names_and_values_once() -> None:
    assert "field=value" in said(lambda: parse_set(["lr"]))
    assert "field=value" in said(lambda: parse_set(["=3"]))
    assert "twice" in said(lambda: parse_set(["lr=1", "lr=2"]))
    assert "twice" in said(lambda: parse_set(["lr=1,lr=2"]))


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(Recipe)])
def test_every_field_can_be_typed(field: str) -> None:
    """The value that is there, written as text, is read back as the same value."""
    for recipe in (RECIPES["jft-R50x1-sgd"], RECIPES["finetune-cifar10"]):
        value = getattr(recipe, field)
        text = ":".join(map(repr, value)) if isinstance(value, tuple) else "none" if value is None else str(value)
        assert parse_value(field, text) == value
        assert type(parse_value(field, text)) is type(value) or isinstance(value, int)


@pytest.mark.parametrize("name", RECIPES)
def test_through_json(name: str) -> None:
    assert from_json(json.loads(json.dumps(to_json(RECIPES[name])))) == RECIPES[name]


def test_json_of_others() -> None:
    fields = to_json(RECIPES["finetune-pets"])
    assert "'momentum'" in said(lambda: from_json({**fields, "momentun": 0.9}))
    assert "batch_size" in said(lambda: from_json({**fields, "batch_size": "512"}))
    assert "batch_size" in said(lambda: from_json({**fields, "batch_size": [512]}))
    assert "preprocess" in said(lambda: from_json({**fields, "preprocess": None}))
    assert "loss" in said(lambda: from_json({**fields, "loss": {}}))
