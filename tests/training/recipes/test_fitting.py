"""A recipe fitted to other data: arithmetic done again by hand, and nothing changed without a word."""

from __future__ import annotations

import dataclasses
import math
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vitreous.core.errors import VitreousError
from vitreous.data.transforms.parse import Preprocess
from vitreous.training.recipes.fitting import fit
from vitreous.training.recipes.recipe import Recipe, replace_fields
from vitreous.training.recipes.tables import RECIPES, find_recipe, published_steps

SIZES = {"jft": 303_000_000, "imagenet21k": 14_200_000, "imagenet": 1_281_167}
FIELDS = [field.name for field in dataclasses.fields(Recipe)]


def differing(one: Recipe, other: Recipe) -> set[str]:
    return {name for name in FIELDS if getattr(one, name) != getattr(other, name)}


def named(sentences: tuple[str, ...]) -> set[str]:
    return {word for sentence in sentences for word in re.findall(r"[a-z_]+", sentence.partition(":")[0])}


def test_shards_of_unknown_length_keep_the_recipe_s_batch_and_rate() -> None:
    """Nobody knows how many images there are, so nothing is said of epochs, and nothing follows from a made-up number."""
    recipe = find_recipe("imagenet21k-ViT-L/16")
    fitted, said = fit(recipe, images=None, steps=300_000)
    assert (fitted.batch_size, fitted.lr, fitted.steps, fitted.warmup) == (4096, 1e-3, 300_000, 10_000)
    assert not [line for line in said if "epoch" in line.partition(":")[2]]
    with pytest.raises(VitreousError, match="give --steps"):
        fit(recipe, images=None)


@pytest.mark.parametrize(
    "name", [name for name, recipe in RECIPES.items() if recipe.epochs is not None and published_steps(name)]
)
def test_on_its_own_data_a_recipe_only_gets_its_steps(name: str) -> None:
    images = SIZES[name.removeprefix("augreg-").split("-")[0]]
    recipe, said = fit(find_recipe(name), images=images)
    assert recipe == dataclasses.replace(find_recipe(name), epochs=None, steps=published_steps(name))
    assert len(said) == 1
    assert recipe.steps == pytest.approx(find_recipe(name).epochs * images / 4096, abs=0.5)  # type: ignore[operator]


@pytest.mark.parametrize(("name", "images"), [("finetune-pets", 3_680), ("finetune-cifar10", 50_000), ("finetune-vtab", 1_000)])
def test_table_4_on_its_own_data_stays(name: str, images: int) -> None:
    assert fit(find_recipe(name), images=images) == (find_recipe(name), ())


@given(
    name=st.sampled_from(sorted(RECIPES)),
    images=st.integers(1, 2**30),
    batch_size=st.none() | st.integers(1, 2**14),
    length=st.sampled_from(["", "steps", "epochs"]),
    amount=st.floats(0.01, 1e3),
    size=st.none() | st.tuples(st.integers(8, 640), st.integers(8, 640)) | st.integers(8, 640).map(lambda n: (n, n)),
    keep=st.sets(st.sampled_from(["lr", "warmup", "batch_size", "steps", "sweep", "preprocess"])),
)
def test_nothing_is_changed_in_silence_and_twice_is_once(
    name: str,
    images: int,
    batch_size: int | None,
    length: str,
    amount: float,
    size: tuple[int, int] | None,
    keep: set[str],
) -> None:
    asked: dict[str, Any] = dict(images=images, batch_size=batch_size, image_size=size, keep=keep)
    if length:
        asked[length] = math.ceil(amount) if length == "steps" else amount
    recipe, said = fit(find_recipe(name), **asked)
    assert recipe.epochs is None
    assert recipe.steps is not None
    assert recipe.warmup <= max(0.2 * recipe.steps + 0.5, find_recipe(name).warmup if "warmup" in keep else 0)
    assert differing(recipe, find_recipe(name)) - {"epochs"} <= named(said)
    assert not differing(recipe, find_recipe(name)) & ({"lr", "warmup", "sweep", "preprocess"} & keep)
    if batch_size:
        assert recipe.batch_size == batch_size
    if size:
        assert Preprocess(recipe.evaluation).size == size
        assert "preprocess" in keep or Preprocess(recipe.preprocess).size == size
    assert all(("\n" not in sentence and ": " in sentence) or "consider" in sentence for sentence in said)
    again, repeated = fit(recipe, **asked)
    assert again == recipe
    assert all("consider" in sentence for sentence in repeated)


def test_sgd_goes_in_proportion_and_adam_with_the_root() -> None:
    sgd, _ = fit(find_recipe("finetune-imagenet"), images=10**6, batch_size=128)
    assert (sgd.lr, sgd.steps) == (pytest.approx(0.03 / 4), 80_000)
    assert sgd.sweep == pytest.approx((0.003 / 4, 0.01 / 4, 0.03 / 4, 0.06 / 4))
    assert sgd.warmup == 500
    adam, _ = fit(find_recipe("jft-ViT-B/16"), images=303_000_000, batch_size=1024)
    assert (adam.lr, adam.lr_end) == (pytest.approx(8e-4 / 2), pytest.approx(1e-5 / 2))
    assert adam.steps == pytest.approx(4 * 517_822, abs=2)
    larger, _ = fit(find_recipe("imagenet-ViT-B/16"), images=1_281_167, batch_size=16_384)
    assert larger.lr == pytest.approx(3e-3 * 2)


def test_a_shorter_run_has_a_shorter_warmup() -> None:
    assert fit(find_recipe("finetune-imagenet"), images=5_000, steps=2_000)[0].warmup == 200
    assert fit(find_recipe("finetune-imagenet"), images=5_000, steps=6_000)[0].warmup == 500  # not more than a tenth: kept
    assert fit(find_recipe("finetune-pets"), images=3_680, steps=250)[0].warmup == 50  # its published share is a fifth
    assert fit(find_recipe("jft-ViT-B/16"), images=60_000, steps=1_000)[0].warmup == 100
    assert fit(find_recipe("imagenet-ViT-B/16"), images=1_281_167, epochs=30)[0].warmup == pytest.approx(1_000, abs=1)
    assert fit(Recipe(steps=100, warmup=30), images=1_000)[0].warmup == 30  # somebody's own recipe is left alone
    assert fit(Recipe(steps=100, warmup=30), images=1_000, steps=50)[0].warmup == 15
    assert fit(Recipe(epochs=1, warmup=30, batch_size=10), images=1_000)[0].warmup == 10


def test_a_batch_larger_than_the_data() -> None:
    recipe, said = fit(find_recipe("finetune-pets"), images=300)
    assert (recipe.batch_size, recipe.steps, recipe.lr) == (256, 1_000, pytest.approx(0.0015))
    assert "only 300 images" in said[0]
    recipe, said = fit(find_recipe("finetune-pets"), images=300, batch_size=400)
    assert recipe.batch_size == 400  # somebody wants it
    assert "more than once" in said[0]
    assert fit(find_recipe("finetune-pets"), images=300, keep={"batch_size"})[0].batch_size == 512
    assert fit(find_recipe("finetune-pets"), images=1)[0].batch_size == 1


@pytest.mark.parametrize(
    ("images", "batch"), [(1_281_167, 4096), (409_600, 4096), (409_599, 2048), (60_000, 512), (5_000, 64), (40, 32)]
)
def test_recipes_in_epochs_keep_a_hundred_steps_an_epoch(images: int, batch: int) -> None:
    assert fit(find_recipe("imagenet-ViT-B/16"), images=images)[0].batch_size == batch


def test_a_run_much_shorter_or_longer_than_the_published_one_says_so() -> None:
    assert "517,822" in " ".join(fit(find_recipe("jft-ViT-B/16"), images=60_000)[1])
    assert "epochs of this data; consider fewer" in " ".join(fit(find_recipe("jft-masked-patch"), images=50_000)[1])
    assert "consider" not in " ".join(fit(find_recipe("jft-masked-patch"), images=50_000, epochs=10)[1])


def test_pictures_of_another_size() -> None:
    recipe, _ = fit(find_recipe("finetune-vtab"), images=1_000, image_size=(96, 96))
    assert recipe.image_size == 96
    assert Preprocess(recipe.preprocess) == Preprocess("resize(112,bilinear-plain)|random_crop(96)|flip|range(-1,1)")
    assert Preprocess(recipe.evaluation) == Preprocess("resize(96,bilinear-plain)|range(-1,1)")
    wide, said = fit(find_recipe("finetune-vtab"), images=1_000, image_size=(96, 192))
    assert Preprocess(wide.preprocess) == Preprocess("resize(112,224,bilinear-plain)|random_crop(96,192)|flip|range(-1,1)")
    assert "96 x 192" in said[0]


def test_what_was_set_by_hand_stays() -> None:
    mine = replace_fields(find_recipe("jft-ViT-B/16"), {"lr": 0.005, "warmup": 700})
    recipe, _ = fit(mine, images=60_000, epochs=10, keep={"lr", "warmup"})
    assert (recipe.lr, recipe.warmup) == (0.005, 700)
    steps = replace_fields(find_recipe("finetune-pets"), {"steps": 77})
    assert fit(steps, images=300, keep={"steps"})[0].steps == 77


def test_what_contradicts_itself() -> None:
    with pytest.raises(VitreousError, match="--steps 3 and --epochs 2"):
        fit(find_recipe("finetune-pets"), images=10, steps=3, epochs=2)
    with pytest.raises(VitreousError, match="batch_size"):
        fit(find_recipe("finetune-pets"), images=10, batch_size=0)
    with pytest.raises(VitreousError, match="steps"):
        fit(find_recipe("finetune-pets"), images=10, steps=0)
