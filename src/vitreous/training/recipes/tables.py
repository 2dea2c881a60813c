"""Recipes by name: tables 2, 3, 4 and 7 of the paper, its masked patches (B.1.2), BiT-HyperRule and AugReg.

    DATA-MODEL[-EPOCHSep][-sgd]      pre-training: jft-ViT-B/16, imagenet21k-ViT-L/16-30ep, jft-R50x1-sgd
    DATA-masked-patch                pre-training without labels: jft-masked-patch
    augreg-DATA-MODEL[-EPOCHSep]     pre-training as in "How to train your ViT": augreg-imagenet-ViT-S/16
    finetune-DATA[-SIZE]             fine-tuning: finetune-cifar100, finetune-imagenet-512
    hyperrule-SIZE-CROP              fine-tuning by BiT's rule: hyperrule-small-384
    linear-probe                     the head alone, on frozen features: `finetune --train head`

DATA is jft, imagenet21k or imagenet. Where a table gives two lengths, the name without one is the run that later tables
compare with: 7 epochs of JFT, 90 of ImageNet-21k.

Images are made smaller as the authors did it, without averaging (`bilinear-plain`); before central crops, by area.
"""

from __future__ import annotations

from typing import Any

from vitreous.core.errors import VitreousError, did_you_mean
from vitreous.models.names import parse_name
from vitreous.training.recipes.recipe import Recipe, replace_fields

# Images to train on, with which the tables' epochs become steps.
DATA_IMAGES = {"jft": 303_000_000, "imagenet21k": 14_200_000, "imagenet": 1_281_167}
_TITLES = {"jft": "JFT-300M", "imagenet21k": "ImageNet-21k", "imagenet": "ImageNet"}

_PLAIN = "bilinear-plain"
_UPSTREAM: dict[str, Any] = dict(
    image_size=224,
    preprocess=f"inception_crop(224,{_PLAIN})|flip|range(-1,1)",
    evaluation="resize_small(256,box)|central_crop(224)|range(-1,1)",
)

# What all rows of table 3 share, and what the authors told afterwards of their loss.
_TABLE_3: dict[str, Any] = dict(
    _UPSTREAM,
    loss="sigmoid", head_bias=-10.0, batch_size=4096, warmup=10_000,
    optimizer="adam", beta1=0.9, beta2=0.999, decay="all",
)  # fmt: skip

# Models, epochs (the name's own first), learning rate, weight decay, dropout.
_JFT = (
    (("ViT-B/16", "ViT-B/32"), (7,), 8e-4, 0.1, 0.0),
    (("ViT-L/32",), (7,), 6e-4, 0.1, 0.0),
    (("ViT-L/16",), (7, 14), 4e-4, 0.1, 0.0),
    (("ViT-H/14",), (14,), 3e-4, 0.1, 0.0),
    (("R50x1", "R50x2"), (7,), 1e-3, 0.1, 0.0),
    (("R101x1",), (7,), 8e-4, 0.1, 0.0),
    (("R152x1", "R152x2"), (7,), 6e-4, 0.1, 0.0),
    (("R50+ViT-B/16", "R50+ViT-B/32"), (7,), 8e-4, 0.1, 0.0),
    (("R50+ViT-L/32",), (7,), 2e-4, 0.1, 0.0),
    (("R50+ViT-L/16",), (7, 14), 4e-4, 0.1, 0.0),
)
_IMAGENET21K = (
    (("ViT-B/16", "ViT-B/32"), (90,), 1e-3, 0.03, 0.1),
    (("ViT-L/16", "ViT-L/32"), (90, 30), 1e-3, 0.03, 0.1),
)
# The table says ViT-*: these are the four that table 5 reports; `for_pretraining` gives the row to any other ViT.
_IMAGENET = ((("ViT-B/16", "ViT-B/32", "ViT-L/16", "ViT-L/32"), (300,), 3e-3, 0.3, 0.1),)

_BY_DATA: dict[str, dict[str, Any]] = {
    "jft": dict(schedule="linear", lr_end=1e-5),
    "imagenet21k": dict(schedule="linear", lr_end=1e-5, smoothing=1e-4),
    "imagenet": dict(schedule="cosine", smoothing=1e-4, clip=1.0),
}


def _table_3() -> list[Recipe]:
    return [
        Recipe(
            name=f"{data}-{model}" + (f"-{epochs}ep" if epochs != lengths[0] else ""),
            about=f"Table 3: {model} on {_TITLES[data]}",
            epochs=epochs, lr=lr, weight_decay=decay, dropout=dropout,
            representation="ViT" in model,  # a ResNet has no layer between pooling and head
            **_TABLE_3, **_BY_DATA[data],
        )
        for data, rows in (("jft", _JFT), ("imagenet21k", _IMAGENET21K), ("imagenet", _IMAGENET))
        for models, lengths, lr, decay, dropout in rows
        for model in models
        for epochs in lengths
    ]  # fmt: skip


def _table_7() -> list[Recipe]:
    """ResNets by SGD, as BiT pre-trained them: 0.03 for each 256 images of a batch, and the falls of its 40 epochs on JFT.

    The paper says no more than "the hyper-parameters of BiT, 7 epochs"; that the falls keep their shares is inferred.
    """
    return [
        Recipe(
            name=f"jft-{model}-sgd",
            about=f"Table 7: {model} on JFT-300M by SGD, as BiT; where the rate falls is inferred from BiT's 40 epochs",
            **{
                **_TABLE_3,
                **dict(epochs=7, optimizer="sgd", lr=0.03 * 4096 / 256, momentum=0.9, weight_decay=1e-4, warmup=5_000),
                **dict(schedule="staircase", milestones=(10 / 40, 23 / 40, 30 / 40, 37 / 40)),
            },
        )
        for model in ("R50x1", "R152x2")
    ]


def _masked_patch() -> Recipe:
    return Recipe(
        name="jft-masked-patch",
        about="B.1.2: ViT-B/16 on JFT-300M without labels, 79.9 % on ImageNet; "
        "the weight decay, which the paper does not state, is that of table 3",
        objective="masked-patch", mask_share=0.5, mask_target="mean", batch_size=4096, steps=1_000_000, warmup=10_000,
        optimizer="adam", lr=2e-4, schedule="cosine", weight_decay=0.1, **_UPSTREAM,
    )  # fmt: skip


# RandAugment's layers and magnitude, and mixup's alpha.
AUGMENTATIONS: dict[str, tuple[str, float]] = {
    "none": ("", 0.0), "light1": ("|randaug(2,0)", 0.0), "light2": ("|randaug(2,10)", 0.2), "medium1": ("|randaug(2,15)", 0.2),
    "medium2": ("|randaug(2,15)", 0.5), "strong1": ("|randaug(2,20)", 0.5), "strong2": ("|randaug(2,20)", 0.8),
}  # fmt: skip
# What big_vision takes for each model where nobody chooses: on ImageNet, on ImageNet-21k.
_AUGREG = {
    "ViT-Ti/16": ("light1", "none"),
    "ViT-S/32": ("medium1", "none"),
    "ViT-S/16": ("medium2", "light1"),
    "ViT-B/32": ("medium2", "light2"),
    "ViT-B/16": ("medium2", "light2"),
    "ViT-L/16": ("medium2", "medium2"),
}


def _augreg() -> list[Recipe]:
    return [
        Recipe(
            name=f"augreg-{data}-{model}" + (f"-{epochs}ep" if epochs != 300 else ""),
            about=f"AugReg: {model} on {_TITLES[data]}, augmentation {strength}; "
            "the study also has dropout and stochastic depth of 0.1, strengths none to strong2, and decay 0.03",
            # At -ln 1000 = -6.9 each of ImageNet's 1,000 classes begins about as likely as it is.
            loss="sigmoid", head_bias=-6.9 if data == "imagenet" else -10.0, representation=data == "imagenet",
            batch_size=4096, epochs=epochs, warmup=10_000, optimizer="adam", lr=1e-3, schedule="cosine",
            weight_decay=0.1, decay="kernels", clip=1.0, mixup=AUGMENTATIONS[strength][1],
            **{**_UPSTREAM, "preprocess": f"inception_crop(224,{_PLAIN})|flip{AUGMENTATIONS[strength][0]}|range(-1,1)"},
        )
        for model, (on_imagenet, on_imagenet21k) in _AUGREG.items()
        for data, epochs, strength in (
            ("imagenet", 300, on_imagenet),
            ("imagenet21k", 300, on_imagenet21k),
            ("imagenet21k", 30, on_imagenet21k),
        )
    ]  # fmt: skip


_SGD: dict[str, Any] = dict(loss="softmax", batch_size=512, optimizer="sgd", momentum=0.9)
_TABLE_4: dict[str, Any] = dict(_SGD, schedule="cosine", clip=1.0)
_RATES = (0.001, 0.003, 0.01, 0.03)
_RATES_IMAGENET = (0.003, 0.01, 0.03, 0.06)
_DROPOUT = "the authors' code had dropout 0.1 for L/16, H/14 and R50+B/16, none for the others"


def _image_fields(size: int) -> dict[str, Any]:
    """The whole image, squeezed into a square, is what fine-tuned models are tested on."""
    return dict(
        image_size=size,
        preprocess=f"inception_crop({size},{_PLAIN})|flip|range(-1,1)",
        evaluation=f"resize({size},{_PLAIN})|range(-1,1)",
    )


# Table 4, with the authors' warm-ups: steps, warm-up, rates tried, share of the training set they are
# evaluated on, and the rate without a sweep: the one that big_vision reports as best for its ViT-B/32.
_FINETUNING: dict[str, tuple[str, int, int, tuple[float, ...], float, float]] = {
    "imagenet": ("ImageNet", 20_000, 500, _RATES_IMAGENET, 0.01, 0.03),
    "cifar100": ("CIFAR-100", 10_000, 500, _RATES, 0.02, 0.01),
    "cifar10": ("CIFAR-10", 10_000, 500, _RATES, 0.02, 0.003),
    "pets": ("Oxford-IIIT Pets", 500, 100, _RATES, 0.1, 0.003),
    "flowers102": ("Oxford Flowers-102", 500, 100, _RATES, 0.1, 0.003),
    "vtab": ("each VTAB task", 2_500, 200, (0.01,), 0.2, 0.01),
}


def _table_4() -> list[Recipe]:
    *recipes, vtab = (
        Recipe(
            name=f"finetune-{data}", about=f"Table 4: {title}; {_DROPOUT}",
            steps=steps, warmup=warmup, lr=lr, sweep=rates, sweep_share=share, **_TABLE_4, **_image_fields(384),
        )
        for data, (title, steps, warmup, rates, share, lr) in _FINETUNING.items()
    )  # fmt: skip
    cropped = f"resize(448,{_PLAIN})|random_crop(384)|flip|range(-1,1)"
    about = f"{vtab.about}; some tasks forbid flips or crops"
    return [*recipes, replace_fields(vtab, dict(about=about, preprocess=cropped))]


def _table_2() -> list[Recipe]:
    base = next(recipe for recipe in _table_4() if recipe.name == "finetune-imagenet")
    return [
        replace_fields(
            base,
            dict(
                name=f"finetune-imagenet-{size}",
                about=f"Table 2: ImageNet at {size} pixels, for {model}, with Polyak averaging; {_DROPOUT}",
                average=0.9999,
                **_image_fields(size),
            ),
        )
        for size, model in ((512, "ViT-L/16"), (518, "ViT-H/14"))
    ]


# BiT-HyperRule: up to how many images, what that is called, steps, warm-up, mixup. The rate falls at 30, 60 and 90 % of the
# run, as the text of BiT has it for all three; its released code has 40, 60 and 80 % for the shortest.
_HYPERRULE: dict[str, tuple[float, str, int, int, float]] = {
    "small": (20_000, "below 20,000 images", 500, 100, 0.0),
    "medium": (500_000, "20,000 to 500,000 images", 10_000, 500, 0.1),
    "large": (float("inf"), "500,000 images or more", 20_000, 500, 0.1),
}
SMALL_IMAGES = 96 * 96  # pixels: below, BiT trains on 128 and not on 384


def _hyperrule() -> list[Recipe]:
    return [
        Recipe(
            name=f"hyperrule-{size}-{crop}", about=f"BiT-HyperRule: {many}, {large}",
            steps=steps, warmup=warmup, lr=0.003, schedule="staircase", milestones=(0.3, 0.6, 0.9), mixup=mixup,
            **_SGD,
            **{**_image_fields(crop), "preprocess": f"resize({before},{_PLAIN})|random_crop({crop})|flip|range(-1,1)"},
        )
        for size, (_, many, steps, warmup, mixup) in _HYPERRULE.items()
        for before, crop, large in ((448, 384, "larger images"), (160, 128, "images below 96 x 96 pixels"))
    ]  # fmt: skip


def _linear_probe() -> Recipe:
    """A frozen backbone: fixed images, and a rate at which a zero head comes to rest whatever the scale of its features.

    Chosen on features of DINOv2-S at 98 pixels (1,500 imagenette, 740 pets images) and of a ViT of width 32 after 30 steps on
    digits: 82.8, 37.2 and 49.0 % right; in closed form 82.6, 40.3 and 59.5 %; with a tenth of the rate 82.6, 41.0 and 38.0 %.
    """
    return Recipe(
        name="linear-probe",
        about="linear probe: the head alone learns, on the checkpoint's own evaluation preprocessing without augmentation",
        train="head", head_start="ridge", batch_size=512, epochs=20, warmup=100, optimizer="adam", lr=0.3, schedule="cosine",
        preprocess="resize(224)|range(-1,1)", evaluation="resize(224)|range(-1,1)", sweep=(0.03, 0.1, 0.3, 1.0),
    )  # fmt: skip


RECIPES: dict[str, Recipe] = {
    recipe.name: recipe
    for group in (_table_3(), _table_7(), [_masked_patch()], _augreg(), _table_4(), _table_2(), _hyperrule(), [_linear_probe()])
    for recipe in group
}


def find_recipe(name: str) -> Recipe:
    model = name.removeprefix("imagenet-")
    recipe = RECIPES.get(name) or (for_pretraining(model, "imagenet") if model != name else None)
    if recipe is None:
        close = did_you_mean(name, RECIPES, 3)
        raise VitreousError(f"unknown recipe {name!r}; {close}`vitreous list recipes` shows all")
    return recipe


def _is_vit(model: str) -> bool:
    try:
        return model.startswith("ViT-") and bool(parse_name(model))
    except VitreousError:
        return False


def for_pretraining(model: str, data: str) -> Recipe | None:
    """Table 3's row for a model and a data set, where it has one; the table's ViT-* on ImageNet means every ViT."""
    name = f"{data}-{model}"
    if name not in RECIPES and data == "imagenet" and _is_vit(model):
        return replace_fields(RECIPES["imagenet-ViT-B/16"], dict(name=name, about=f"Table 3: {model} on ImageNet"))
    return RECIPES.get(name)


def for_finetuning(data: str) -> Recipe | None:
    """Table 4's row for a data set known by name, where it has one."""
    return RECIPES.get(f"finetune-{data}")


def hyperrule(images: int, native_size: tuple[int, int]) -> Recipe:
    """What BiT-HyperRule says for so many images of that height and width."""
    size = next(size for size, (limit, *_) in _HYPERRULE.items() if images < limit)
    crop = 128 if native_size[0] * native_size[1] < SMALL_IMAGES else 384
    return RECIPES[f"hyperrule-{size}-{crop}"]


def published_steps(name: str) -> int | None:
    """How many steps a recipe takes on the data it was written for; nothing where the name is none of ours."""
    try:
        recipe = find_recipe(name)
    except VitreousError:
        return None
    if recipe.epochs is None or recipe.train == "head":
        return recipe.steps
    return round(recipe.epochs * DATA_IMAGES[name.removeprefix("augreg-").partition("-")[0]] / recipe.batch_size)


def published_warmup(name: str) -> float | None:
    """The share of a published run that its warm-up took."""
    steps = published_steps(name)
    return find_recipe(name).warmup / steps if steps else None
