"""Automatic recipes: what they choose for known cases, and that every choice is explained."""

from __future__ import annotations

import dataclasses
import random
import re
from collections.abc import Sequence

import numpy as np
import pytest

from vitreous.data.transforms.parse import Preprocess
from vitreous.training.recipes.automatic import automatic_finetune, automatic_pretrain
from vitreous.training.recipes.fitting import fit
from vitreous.training.recipes.recipe import Recipe, to_json

AMOUNTS = (1, 7, 31, 32, 60, 255, 1_097, 5_000, 19_999, 20_000, 60_000, 499_999, 500_000, 1_281_167, 14_200_000, 303_000_000)
FIELDS = {field.name for field in dataclasses.fields(Recipe)}
# Chosen without a sentence: they only repeat what was asked, or follow from a field that has one.
WITHOUT_A_SENTENCE = {"name", "about", "image_size", "evaluation", "sweep", "sweep_share", "objective"}
ALWAYS_DECIDED = {"batch_size", "steps", "warmup", "optimizer", "schedule", "clip", "lr", "weight_decay", "preprocess", "flip"}


def heads(said: Sequence[str]) -> list[str]:
    """What each decision is about, before its colon. Other sentences are remarks."""
    return [sentence.partition(":")[0] for sentence in said if sentence.split()[0] in FIELDS]


def unexplained(recipe: Recipe, said: Sequence[str]) -> set[str]:
    """Fields, and operations of the string for training, that no sentence speaks for."""
    plain = to_json(Recipe(steps=1))
    decided = {field for field, value in to_json(recipe).items() if value != plain[field]} - WITHOUT_A_SENTENCE
    decided |= ALWAYS_DECIDED | ({"loss"} if recipe.objective == "classification" else set())
    decided |= set(re.findall(r"[a-z_]+", recipe.preprocess)) - {"range"}  # that is the same for every recipe
    return decided - {word for head in heads(said) for word in re.findall(r"[a-z_]+", head)}


def test_the_rate_follows_the_batch_that_is_asked_for() -> None:
    """One rule, whoever chooses the batch: 0.01 for 512, with the square root."""
    for batch in (64, 128, 512, 2048):
        recipe, said = automatic_finetune(1000, 5, (224, 224), None, [200] * 5, batch_size=batch)
        assert not unexplained(recipe, said)
        assert recipe.batch_size == batch
        assert recipe.lr == pytest.approx(0.01 * (batch / 512) ** 0.5, rel=0.05)
        fitted, _ = fit(recipe, images=1000, batch_size=batch)
        assert fitted.lr == recipe.lr


@pytest.mark.parametrize("images", AMOUNTS)
def test_for_any_amount_every_choice_is_explained_and_already_fits(images: int) -> None:
    counts = (images - images // 10, images // 10)
    for recipe, said in (
        automatic_finetune(images, 2, (384, 384), None, counts),
        automatic_pretrain(images, 2, (32, 32), (32, 32), counts, width=384),
        automatic_pretrain(images, 2, (224, 224), None, counts, width=768, objective="masked-patch"),
    ):
        assert not unexplained(recipe, said)
        decisions = [sentence for sentence in said if sentence.split()[0] in FIELDS]
        assert all(unexplained(recipe, [other for other in said if other != sentence]) for sentence in decisions)
        remarks = [sentence for sentence in said if sentence not in decisions]
        assert all(remark.startswith("from scratch on") or "have no images" in remark for remark in remarks)
        assert all("\n" not in sentence for sentence in said)
        assert recipe.batch_size <= images
        assert recipe.steps is not None
        assert recipe.warmup <= recipe.steps / 10
        assert fit(recipe, images=images, image_size=(recipe.image_size or 0,) * 2) == (recipe, ())


@pytest.mark.parametrize(
    ("images", "batch", "steps"),
    [
        (60, 32, 200),  # fifty epochs would be 94 steps
        (200, 32, 312),  # fifty epochs
        (1_000, 64, 500),
        (3_680, 256, 500),
        (19_999, 512, 500),
        (20_000, 512, 1_953),  # fifty epochs, where BiT-HyperRule would have 256
        (256_000, 512, 10_000),
        (1_281_167, 512, 20_000),
    ],
)
def test_finetuning_by_size(images: int, batch: int, steps: int) -> None:
    recipe, said = automatic_finetune(images, 2, (384, 384), None, (images // 2, images - images // 2))
    assert (recipe.batch_size, recipe.steps) == (batch, steps)
    assert recipe.warmup == min(500, steps // 10)
    assert (recipe.optimizer, recipe.momentum, recipe.schedule, recipe.clip) == ("sgd", 0.9, "cosine", 1.0)
    assert (recipe.weight_decay, recipe.head_bias, recipe.smoothing, recipe.representation) == (0.0, 0.0, 0.0, False)
    assert recipe.lr == pytest.approx((0.01 if images < 500_000 else 0.03) * (batch / 512) ** 0.5, rel=0.05)
    assert recipe.mixup == (0.1 if images >= 20_000 else 0.0)
    assert any(f"{steps * batch / images:.3g} epochs" in sentence for sentence in said)


def test_uneven_classes_are_weighted_and_the_ratio_is_said() -> None:
    recipe, said = automatic_finetune(1_000, 3, (224, 224), None, (700, 250, 50))
    assert recipe.class_weights == "balanced"
    assert any("14 times" in sentence for sentence in said)
    assert automatic_finetune(1_000, 2, (224, 224), None, (600, 400))[0].class_weights == "none"
    recipe, said = automatic_finetune(1_000, 3, (224, 224), None, (500, 500, 0))
    assert recipe.class_weights == "none"  # a class without images makes nothing uneven
    assert any("1 of 3 classes have no images" in sentence for sentence in said)


def test_several_labels_for_an_image_mean_the_sigmoid_loss() -> None:
    recipe, said = automatic_finetune(1_000, 3, (224, 224), None, (900, 900, 100))
    assert (recipe.loss, recipe.class_weights) == ("sigmoid", "none")
    assert any("1.9 labels" in sentence for sentence in said)
    scratch, said = automatic_pretrain(1_000, 100, (224, 224), None, (20,) * 100, width=192)
    assert not unexplained(scratch, said)
    assert (scratch.loss, scratch.smoothing) == ("sigmoid", 0.0)
    assert scratch.head_bias == pytest.approx(-np.log(100), abs=0.05)


def test_a_model_with_a_stem_is_fine_tuned_as_it_was_trained() -> None:
    recipe, said = automatic_finetune(1_000, 2, (8, 8), (8, 8), (500, 500), stem=True)
    assert (recipe.optimizer, recipe.schedule, recipe.lr, recipe.head_start) == ("muon", "linear", 0.003, "zero")
    assert any(line.startswith("head_start zero:") for line in said)
    assert automatic_finetune(1_000, 2, (8, 8), (8, 8), (500, 500), stem=True, batch_size=512)[0].lr == 0.003
    lora, _ = automatic_finetune(1_000, 2, (8, 8), (8, 8), (500, 500), stem=True, train="lora")
    assert (lora.optimizer, lora.head_start) == ("adam", "ridge")


def test_small_pictures_are_moved_and_photographs_cropped() -> None:
    small, _ = automatic_pretrain(50_000, 10, (32, 32), (32, 32), (5_000,) * 10, width=96)
    assert Preprocess(small.preprocess) == Preprocess("resize(32)|pad(4)|random_crop(32)|flip|range(-1,1)")
    tiny, said = automatic_pretrain(1097, 10, (8, 8), (8, 8), [110] * 10, width=64)
    assert "crop" not in tiny.preprocess
    assert any("a shift by one pixel is 1/8 of the image" in sentence for sentence in said)
    assert Preprocess(small.evaluation) == Preprocess("resize(32)|range(-1,1)")
    enlarged, _ = automatic_finetune(50_000, 10, (224, 224), (32, 32), (5_000,) * 10)
    assert Preprocess(enlarged.preprocess) == Preprocess("resize(224)|pad(28)|random_crop(224)|flip|range(-1,1)")
    photos, _ = automatic_finetune(50_000, 10, (224, 224), None, (5_000,) * 10)
    assert Preprocess(photos.preprocess) == Preprocess("inception_crop(224)|flip|range(-1,1)")
    assert Preprocess(photos.evaluation) == Preprocess("resize(224)|range(-1,1)")
    scratch, _ = automatic_pretrain(50_000, 10, (224, 224), (500, 400), (5_000,) * 10, width=96)
    assert Preprocess(scratch.evaluation) == Preprocess("resize_small(256,floor)|central_crop(224)|range(-1,1)")


@pytest.mark.parametrize("native", [None, (8, 8), (28, 30), (300, 200)])
@pytest.mark.parametrize("size", [(8, 8), (28, 28), (64, 48), (224, 224)])
def test_the_strings_make_pictures_of_that_size(size: tuple[int, int], native: tuple[int, int] | None) -> None:
    picture = np.random.default_rng(0).integers(0, 256, (*(native or (40, 50)), 3), dtype=np.uint8)
    for recipe, _ in (
        automatic_finetune(100, 2, size, native, (50, 50)),
        automatic_pretrain(100, 2, size, native, (50, 50), width=768),
    ):
        assert Preprocess(recipe.preprocess)(picture, random.Random(0)).shape == (3, *size)
        assert Preprocess(recipe.evaluation)(picture).shape == (3, *size)
        assert recipe.image_size == (size[0] if size[0] == size[1] else None)


@pytest.mark.parametrize(
    ("where", "names", "flip", "crop"),
    [
        ("photos/", ("cat", "dog"), True, True),
        ("builtin:position", (), False, False),
        ("builtin:position?size=32&seed=3", (), False, False),
        ("builtin:orientation:train", (), False, True),
        ("builtin:letters?size=16", (), False, True),
        ("builtin:count", tuple("12345678"), True, False),
        ("builtin:digits", tuple("0123456789"), False, True),
        ("signs/", ("turn-left", "turn-right"), False, True),
        ("signs/", ("Left", "ahead"), False, True),
        ("animals/", ("cleft lip", "bright"), True, True),
        ("builtin:positions-of-mine/", ("a", "b"), True, True),
    ],
)
def test_flips_and_crops_that_would_change_labels_are_left_out(
    where: str, names: tuple[str, ...], flip: bool, crop: bool
) -> None:
    for recipe, said in (
        automatic_finetune(1_000, 2, (64, 64), (64, 64), (500, 500), where=where, names=names),
        automatic_pretrain(1_000, 2, (64, 64), (64, 64), (500, 500), width=768, where=where, names=names),
    ):
        assert ("flip" in recipe.preprocess) == flip
        assert ("crop" in recipe.preprocess) == crop
        assert any("without flip" in sentence for sentence in said) != flip
        assert any("no crop" in sentence for sentence in said) != crop
        if "builtin:po" in where and not flip:
            assert "randaug" not in recipe.preprocess  # it turns and moves images too


def test_from_scratch_follows_table_3_where_it_can() -> None:
    def chosen(images: int, width: int = 768) -> Recipe:
        return automatic_pretrain(images, 2, (224, 224), None, (images // 2,) * 2, width=width)[0]

    imagenet = chosen(1_281_167)
    assert (imagenet.lr, imagenet.batch_size, imagenet.steps, imagenet.optimizer) == (3e-3, 4096, 93_835, "adam")
    assert chosen(14_200_000).steps == pytest.approx(312_012, abs=1)
    assert chosen(303_000_000).steps == pytest.approx(517_822, abs=1)
    assert chosen(303_000_000).lr == 8e-4
    assert chosen(303_000_000, 1280).lr < chosen(303_000_000, 768).lr
    assert chosen(50_000).lr == pytest.approx(3e-3 / 4)  # 256 at a time
    assert "randaug(2,15)" in chosen(1_281_167).preprocess
    assert "randaug" not in chosen(1_281_167, 96).preprocess


@pytest.mark.parametrize(
    ("images", "width", "words"),
    [
        (1_281_167, 768, "lr 0.003: 0.003 in table 3, that for ImageNet"),
        (50_000, 192, "lr 0.00075: 0.003 in table 3, that for ImageNet, times the square root of 256/4,096"),
        (14_200_000, 768, "lr 0.001: 0.001 in table 3, that for ImageNet-21k"),
        (303_000_000, 1280, "lr 0.00048: 0.0008 in table 3, ViT-B's for JFT, times 768/1,280 for the model's width"),
    ],
)
def test_the_rate_from_scratch_is_told_as_it_is_reckoned(images: int, width: int, words: str) -> None:
    assert words in automatic_pretrain(images, 2, (224, 224), None, (images // 2,) * 2, width=width)[1]


def test_only_a_small_set_is_said_to_be_learnt_by_heart() -> None:
    for images, small in ((199_999, True), (200_000, False), (303_000_000, False)):
        recipe, said = automatic_pretrain(images, 2, (224, 224), None, (images // 2,) * 2, width=768)
        (sentence,) = (sentence for sentence in said if sentence.startswith("smoothing"))
        assert recipe.smoothing == 0.1
        assert ("a small set is learnt by heart" in sentence) == small


def test_small_data_from_scratch_is_warned_of() -> None:
    assert "vitreous finetune" in automatic_pretrain(5_000, 2, (32, 32), (32, 32), (2_500, 2_500), width=96)[1][0]
    said = automatic_pretrain(1_281_167, 2, (224, 224), None, (640_583, 640_584), width=768)[1]
    assert not any("vitreous finetune" in sentence for sentence in said)


def test_masked_patches_need_no_labels() -> None:
    recipe, _ = automatic_pretrain(5_000, 0, (32, 32), (32, 32), (), width=768, objective="masked-patch")
    assert (recipe.objective, recipe.mixup, recipe.smoothing) == ("masked-patch", 0.0, 0.0)
    assert "randaug" not in recipe.preprocess  # its colours are what is to be predicted


@pytest.mark.parametrize("size", [(16, 16), (28, 28), (32, 32), (48, 64)])
def test_masked_patches_of_small_images_have_no_border_to_predict(size: tuple[int, int]) -> None:
    """Of a white image every pixel stays white, however it is moved; and things do move."""
    import random

    import numpy as np

    from vitreous.data.transforms.parse import Preprocess

    recipe, said = automatic_pretrain(5_000, 0, size, size, (), width=64, objective="masked-patch")
    made = Preprocess(recipe.preprocess)
    assert made.random
    assert made.size == size
    white = np.full((*size, 3), 255, np.uint8)
    for seed in range(20):
        assert float(made(white, random.Random(seed)).min()) == 1.0
    assert any("border" in line for line in said)
    supervised, _ = automatic_pretrain(5_000, 2, size, size, (), width=64)
    assert "pad(" in supervised.preprocess  # there a border does no harm: labels are predicted, not pixels


def test_lora_takes_adam_small_batches_and_a_rate_for_them() -> None:
    recipe, said = automatic_finetune(3_000, 10, (224, 224), None, (300,) * 10, train="lora")
    assert (recipe.train, recipe.optimizer, recipe.batch_size, recipe.lr) == ("lora", "adam", 64, 0.00099)
    assert recipe.head_start == "ridge"
    assert any(line.startswith("train lora: ") for line in said)
    plain, _ = automatic_finetune(3_000, 10, (224, 224), None, (300,) * 10)
    assert (plain.train, plain.optimizer, plain.batch_size) == ("all", "sgd", 256)
    shards, _ = automatic_finetune(3_000, 10, (224, 224), None, ())
    assert shards.head_start == "zero"
