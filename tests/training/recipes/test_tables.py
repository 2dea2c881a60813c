"""The recipes are the paper's: its tables are typed here a second time, row by row, and compared field by field."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest

from vitreous.cli import main
from vitreous.core.errors import VitreousError
from vitreous.data.transforms.parse import Preprocess
from vitreous.models.names import parse_name
from vitreous.training.recipes.recipe import Recipe, from_json
from vitreous.training.recipes.tables import (
    RECIPES,
    find_recipe,
    for_finetuning,
    for_pretraining,
    hyperrule,
    published_steps,
    published_warmup,
)

# name | epochs | base rate | decay | weight decay | dropout: appendix B.1, table 3, a line for each model and length.
TABLE_3 = """
jft-ViT-B/16               7   8e-4 linear 0.1  0.0
jft-ViT-B/32               7   8e-4 linear 0.1  0.0
jft-ViT-L/32               7   6e-4 linear 0.1  0.0
jft-ViT-L/16               7   4e-4 linear 0.1  0.0
jft-ViT-L/16-14ep          14  4e-4 linear 0.1  0.0
jft-ViT-H/14               14  3e-4 linear 0.1  0.0
jft-R50x1                  7   1e-3 linear 0.1  0.0
jft-R50x2                  7   1e-3 linear 0.1  0.0
jft-R101x1                 7   8e-4 linear 0.1  0.0
jft-R152x1                 7   6e-4 linear 0.1  0.0
jft-R152x2                 7   6e-4 linear 0.1  0.0
jft-R50+ViT-B/16           7   8e-4 linear 0.1  0.0
jft-R50+ViT-B/32           7   8e-4 linear 0.1  0.0
jft-R50+ViT-L/32           7   2e-4 linear 0.1  0.0
jft-R50+ViT-L/16           7   4e-4 linear 0.1  0.0
jft-R50+ViT-L/16-14ep      14  4e-4 linear 0.1  0.0
imagenet21k-ViT-B/16       90  1e-3 linear 0.03 0.1
imagenet21k-ViT-B/32       90  1e-3 linear 0.03 0.1
imagenet21k-ViT-L/16       90  1e-3 linear 0.03 0.1
imagenet21k-ViT-L/16-30ep  30  1e-3 linear 0.03 0.1
imagenet21k-ViT-L/32       90  1e-3 linear 0.03 0.1
imagenet21k-ViT-L/32-30ep  30  1e-3 linear 0.03 0.1
imagenet-ViT-B/16          300 3e-3 cosine 0.3  0.1
imagenet-ViT-B/32          300 3e-3 cosine 0.3  0.1
imagenet-ViT-L/16          300 3e-3 cosine 0.3  0.1
imagenet-ViT-L/32          300 3e-3 cosine 0.3  0.1
"""

# name | steps | warm-up | size | held out for the sweep | rate without a sweep | rates of the sweep: table 4, warm-ups from the
# authors' code; without a sweep, the rate that big_vision reports as best for its ViT-B/32, and for VTAB the paper's only one.
TABLE_4 = """
finetune-imagenet     20000 500 384 0.01 0.03  0.003 0.01 0.03 0.06
finetune-cifar100     10000 500 384 0.02 0.01  0.001 0.003 0.01 0.03
finetune-cifar10      10000 500 384 0.02 0.003 0.001 0.003 0.01 0.03
finetune-pets         500   100 384 0.1  0.003 0.001 0.003 0.01 0.03
finetune-flowers102   500   100 384 0.1  0.003 0.001 0.003 0.01 0.03
finetune-vtab         2500  200 384 0.2  0.01  0.01
finetune-imagenet-512 20000 500 512 0.01 0.03  0.003 0.01 0.03 0.06
finetune-imagenet-518 20000 500 518 0.01 0.03  0.003 0.01 0.03 0.06
"""

# name | RandAugment | mixup: AugReg's strengths, as big_vision takes them for each model.
AUGREG = """
augreg-imagenet-ViT-Ti/16 2,0  0.0
augreg-imagenet-ViT-S/32  2,15 0.2
augreg-imagenet-ViT-S/16  2,15 0.5
augreg-imagenet-ViT-B/32  2,15 0.5
augreg-imagenet-ViT-B/16  2,15 0.5
augreg-imagenet-ViT-L/16  2,15 0.5
augreg-imagenet21k-ViT-Ti/16 -    0.0
augreg-imagenet21k-ViT-S/32  -    0.0
augreg-imagenet21k-ViT-S/16  2,0  0.0
augreg-imagenet21k-ViT-B/32  2,10 0.2
augreg-imagenet21k-ViT-B/16  2,10 0.2
augreg-imagenet21k-ViT-L/16  2,15 0.5
"""


def lines(table: str) -> list[list[str]]:
    return [line.split() for line in table.strip().splitlines()]


def model_of(name: str) -> str:
    return name.split("-", 1)[1].removesuffix("-14ep").removesuffix("-30ep")


@pytest.mark.parametrize(("name", "epochs", "lr", "schedule", "decay", "dropout"), lines(TABLE_3))
def test_table_3(name: str, epochs: str, lr: str, schedule: str, decay: str, dropout: str) -> None:
    recipe = find_recipe(name)
    assert recipe.name == name
    assert (recipe.epochs, recipe.steps) == (int(epochs), None)
    assert (recipe.lr, recipe.schedule) == (float(lr), schedule)
    assert (recipe.weight_decay, recipe.decay, recipe.dropout) == (float(decay), "all", float(dropout))
    assert (recipe.optimizer, recipe.beta1, recipe.beta2) == ("adam", 0.9, 0.999)
    assert (recipe.batch_size, recipe.warmup, recipe.image_size) == (4096, 10_000, 224)
    assert recipe.lr_end == (1e-5 if schedule == "linear" else 0.0)
    assert recipe.clip == (1.0 if name.startswith("imagenet-") else None)
    assert (recipe.objective, recipe.loss, recipe.head_bias) == ("classification", "sigmoid", -10.0)
    assert recipe.smoothing == (0.0 if name.startswith("jft") else 1e-4)
    assert recipe.representation is ("ViT" in name)
    assert (recipe.mixup, recipe.average, recipe.train, recipe.class_weights) == (0.0, 0.0, "all", "none")
    assert Preprocess(recipe.preprocess) == Preprocess("inception_crop(224,bilinear-plain)|flip|range(-1,1)")
    assert Preprocess(recipe.evaluation) == Preprocess("resize_small(256,box)|central_crop(224)|range(-1,1)")
    assert parse_name(model_of(name)).name == model_of(name)


def test_table_3_is_complete() -> None:
    ours = {name for name, recipe in RECIPES.items() if recipe.about.startswith("Table 3")}
    assert ours == {row[0] for row in lines(TABLE_3)}


@pytest.mark.parametrize("row", lines(TABLE_4), ids=lambda row: row[0])
def test_tables_2_and_4(row: list[str]) -> None:
    name, steps, warmup, size, share, lr, *rates = row
    recipe = find_recipe(name)
    assert (recipe.steps, recipe.epochs, recipe.warmup) == (int(steps), None, int(warmup))
    assert (recipe.sweep, recipe.sweep_share, recipe.lr) == (tuple(map(float, rates)), float(share), float(lr))
    assert (recipe.optimizer, recipe.momentum, recipe.schedule, recipe.lr_end) == ("sgd", 0.9, "cosine", 0.0)
    assert (recipe.batch_size, recipe.weight_decay, recipe.clip, recipe.dropout) == (512, 0.0, 1.0, 0.0)
    assert (recipe.loss, recipe.smoothing, recipe.head_bias, recipe.representation) == ("softmax", 0.0, 0.0, False)
    assert recipe.average == (0.9999 if name.endswith(("512", "518")) else 0.0)
    assert recipe.image_size == int(size)
    train = f"inception_crop({size},bilinear-plain)" if "vtab" not in name else "resize(448,bilinear-plain)|random_crop(384)"
    assert Preprocess(recipe.preprocess) == Preprocess(f"{train}|flip|range(-1,1)")
    assert Preprocess(recipe.evaluation) == Preprocess(f"resize({size},bilinear-plain)|range(-1,1)")


def test_table_7_is_bit_by_sgd() -> None:
    for name in ("jft-R50x1-sgd", "jft-R152x2-sgd"):
        recipe = find_recipe(name)
        assert (recipe.optimizer, recipe.momentum, recipe.lr) == ("sgd", 0.9, pytest.approx(0.03 * 16))
        assert (recipe.batch_size, recipe.warmup, recipe.epochs, recipe.weight_decay) == (4096, 5000, 7, 1e-4)
        assert recipe.schedule == "staircase"
        assert [40 * share for share in recipe.milestones] == pytest.approx([10, 23, 30, 37])
        assert (recipe.loss, recipe.head_bias, recipe.smoothing, recipe.representation) == ("sigmoid", -10, 0, False)
        assert recipe.clip is None


def test_masked_patches() -> None:
    recipe = find_recipe("jft-masked-patch")
    assert (recipe.objective, recipe.mask_share, recipe.mask_target) == ("masked-patch", 0.5, "mean")
    assert (recipe.steps, recipe.batch_size, recipe.warmup) == (1_000_000, 4096, 10_000)
    assert (recipe.optimizer, recipe.lr, recipe.schedule, recipe.lr_end) == ("adam", 2e-4, "cosine", 0.0)
    assert recipe.steps * recipe.batch_size / 303e6 == pytest.approx(14, abs=0.5)  # "1M steps, ca. 14 epochs"
    assert Preprocess(recipe.preprocess) == Preprocess("inception_crop(224,bilinear-plain)|flip|range(-1,1)")
    assert Preprocess(recipe.evaluation) == Preprocess("resize_small(256,box)|central_crop(224)|range(-1,1)")


@pytest.mark.parametrize(("name", "randaug", "mixup"), lines(AUGREG))
def test_augreg(name: str, randaug: str, mixup: str) -> None:
    small = "-imagenet-" in name
    for recipe, epochs in (
        [(find_recipe(name), 300)] if small else [(find_recipe(name), 300), (find_recipe(f"{name}-30ep"), 30)]
    ):
        assert (recipe.epochs, recipe.lr, recipe.schedule, recipe.warmup) == (epochs, 1e-3, "cosine", 10_000)
        assert (recipe.batch_size, recipe.clip, recipe.weight_decay, recipe.decay) == (4096, 1.0, 0.1, "kernels")
        assert (recipe.loss, recipe.smoothing, recipe.head_bias) == ("sigmoid", 0.0, -6.9 if small else -10.0)
        assert recipe.representation is small
        assert recipe.mixup == float(mixup)
        words = f"|randaug({randaug})" if randaug != "-" else ""
        assert Preprocess(recipe.preprocess) == Preprocess(f"inception_crop(224,bilinear-plain)|flip{words}|range(-1,1)")


@pytest.mark.parametrize(
    ("images", "side", "steps", "falls", "mixup", "before", "crop"),
    [
        (19_999, 96, 500, [150, 300, 450], 0.0, 448, 384),
        (20_000, 95, 10_000, [3000, 6000, 9000], 0.1, 160, 128),
        (499_999, 32, 10_000, [3000, 6000, 9000], 0.1, 160, 128),
        (500_000, 500, 20_000, [6000, 12_000, 18_000], 0.1, 448, 384),
        (50, 28, 500, [150, 300, 450], 0.0, 160, 128),
    ],
)
def test_hyperrule(images: int, side: int, steps: int, falls: list[int], mixup: float, before: int, crop: int) -> None:
    recipe = hyperrule(images, (side, side))
    assert (recipe.steps, recipe.mixup, recipe.schedule) == (steps, mixup, "staircase")
    assert [share * steps for share in recipe.milestones] == pytest.approx(falls)
    assert recipe.warmup == (100 if steps == 500 else 500)
    assert (recipe.lr, recipe.batch_size, recipe.weight_decay, recipe.clip) == (0.003, 512, 0.0, None)
    assert (recipe.optimizer, recipe.momentum, recipe.loss) == ("sgd", 0.9, "softmax")
    train = f"resize({before},bilinear-plain)|random_crop({crop})|flip|range(-1,1)"
    assert Preprocess(recipe.preprocess) == Preprocess(train)
    assert Preprocess(recipe.evaluation) == Preprocess(f"resize({crop},bilinear-plain)|range(-1,1)")


def test_steps_of_the_published_runs() -> None:
    expected = {  # thousands, as the authors tell them
        "jft-ViT-B/16": 517.8, "jft-ViT-H/14": 1036, "imagenet21k-ViT-B/16": 312, "imagenet-ViT-L/16": 93.8,
        "jft-masked-patch": 1000, "augreg-imagenet-ViT-S/16": 93.8, "finetune-pets": 0.5,
    }  # fmt: skip
    for name, thousands in expected.items():
        assert published_steps(name) == pytest.approx(1000 * thousands, rel=1e-3)
    assert published_steps("my own") is None
    assert published_warmup("my own") is None
    assert published_warmup("finetune-pets") == 0.2


def test_by_data_and_model() -> None:
    assert for_pretraining("ViT-L/16", "imagenet21k") is RECIPES["imagenet21k-ViT-L/16"]
    assert for_pretraining("ViT-L/16", "imagenet") is RECIPES["imagenet-ViT-L/16"]
    assert for_pretraining("ViT-H/14", "imagenet21k") is None
    assert for_pretraining("R200x3", "jft") is None
    assert for_pretraining("ViT-B/16", "cifar10") is None
    assert for_finetuning("cifar10") is RECIPES["finetune-cifar10"]
    assert for_finetuning("my photos") is None


def test_on_imagenet_the_row_is_for_every_vit() -> None:
    other, known = find_recipe("imagenet-ViT-S/16"), find_recipe("imagenet-ViT-B/16")
    assert other == for_pretraining("ViT-S/16", "imagenet")
    assert (other.name, other.lr, other.weight_decay, other.epochs) == ("imagenet-ViT-S/16", 3e-3, 0.3, known.epochs)
    assert published_steps("imagenet-ViT-S/16") == published_steps("imagenet-ViT-B/16")
    assert for_pretraining("R50x1", "imagenet") is None


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("jft-vit-b/16", "'jft-ViT-B/16'"), ("finetune-cifar-10", "'finetune-cifar10'"), ("imagenet-ViT-X/16", "'imagenet-ViT-")],
)
def test_a_typo_names_the_nearest(typed: str, meant: str) -> None:
    with pytest.raises(VitreousError) as caught:
        find_recipe(typed)
    assert meant in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("strings", sorted({(r.preprocess, r.evaluation, r.image_size or 224) for r in RECIPES.values()}))
def test_every_string_makes_pictures_of_the_recipe_s_size(strings: tuple[str, str, int]) -> None:
    picture = np.random.default_rng(0).integers(0, 256, (90, 70, 3), dtype=np.uint8)
    train, test, size = strings
    made = Preprocess(train)(picture, random.Random(0))
    assert made.shape == Preprocess(test)(picture).shape == (3, size, size)
    assert -1 <= made.min() < made.max() <= 1
    assert Preprocess(train).random == (train != test)  # a linear probe learns from what it is evaluated on
    assert not Preprocess(test).random


def test_the_command_prints_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "recipes"]) == 0
    text = capsys.readouterr().out
    rows = {line.split()[0]: line for line in text.splitlines() if line.strip()}
    assert set(RECIPES) <= set(rows)
    for word in ("300 epochs", "0.003", "cosine", "10,000", "0.3", "4,096", "224"):
        assert word in rows["imagenet-ViT-L/32"]
    assert main(["list", "recipes", "--json"]) == 0
    records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {record["name"]: from_json(record) for record in records} == RECIPES


def test_names_are_their_own() -> None:
    assert all(name == recipe.name for name, recipe in RECIPES.items())
    assert all(isinstance(recipe, Recipe) and recipe.about for recipe in RECIPES.values())
