"""A recipe for data that no table knows, by its size and its images, with a reason for every decision.

Fine-tuning follows table 4 and takes its length from BiT-HyperRule; training from scratch lies between table 3 and AugReg.
Both return sentences, to be shown before anything is trained. A decision begins with the fields that it is about, up to a
colon; what begins otherwise is a remark and decides nothing (too few images to begin from scratch, classes without any).
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any, Literal

from vitreous.training.options import ObjectiveName, Train
from vitreous.training.recipes.fitting import plain, sensible_batch
from vitreous.training.recipes.recipe import Loss, Optimizer, Recipe, replace_fields
from vitreous.training.recipes.tables import AUGMENTATIONS, RECIPES, SMALL_IMAGES, hyperrule

Size = tuple[int, int]
Weights = Literal["none", "balanced"]

UNEVEN = 3.0  # times as many images in the largest class as in the smallest: then classes are weighted
_MOST_EPOCHS = 50
_FEWEST_STEPS = 200
_FEWEST_STEPS_OF_STEM = 500
_TINY = 16  # pixels: the digits of 8 were learnt far better where they were (87 % against 52 % right after 20 epochs)
_FEW_IMAGES = 200_000  # below, training from scratch is warned of

# Sets of this package whose labels a mirror image or a crop would make wrong. (VTAB leaves them out for the same reasons:
# flips in dSprites and in smallNORB's azimuth, crops where things are counted or located.)
_NO_FLIP = ("builtin:position", "builtin:orientation", "builtin:letters")
_NO_CROP = ("builtin:position", "builtin:count", "builtin:objects")
_SIDED = re.compile(r"(?:^|[^a-z])(?:left|right|east|west|clockwise|anticlockwise)(?:[^a-z]|$)", re.IGNORECASE)


# By table 3, for so many images or more: epochs, and the rate for a batch of 4,096 and a width of up to 768, with whose they
# are. The larger the data, the fewer times it is seen and the lower the rate (ImageNet 3e-3, JFT 8e-4).
_BY_IMAGES = (
    (100_000_000, 7, "as JFT in table 3", 8e-4, "ViT-B's for JFT"),
    (5_000_000, 90, "as ImageNet-21k in table 3", 1e-3, "that for ImageNet-21k"),
    (500_000, 300, "as ImageNet in table 3", 3e-3, "that for ImageNet"),
    (
        0, 100, "enough to see what the data gives; ImageNet had 300 in table 3, and --epochs gives more",
        3e-3, "that for ImageNet",
    ),
)  # fmt: skip


def automatic_finetune(
    images: int,
    classes: int,
    image_size: Size,
    native: Size | None,
    counts: Sequence[int],
    *,
    batch_size: int | None = None,
    train: Train = "all",
    stem: bool = False,
    labels: float = 1.0,
    where: str = "",
    names: Sequence[str] = (),
) -> tuple[Recipe, tuple[str, ...]]:
    """For so many images at `image_size`; `native` is the images' own size where all have the same; perhaps behind a `stem`.

    `batch_size` is what somebody asked for, if anybody did: length and rate are for it then. `labels` an image has on average
    where `counts` cannot be had.
    `counts` are the images of each class, `where` is what the data is called and `names` are its classes: they tell whether
    classes are uneven, images have several labels, and mirror images keep their meaning.
    """
    rule = hyperrule(images, native or image_size)
    assert rule.steps is not None
    by_muon = stem and train == "all"  # as such a model was trained from scratch
    most = 64 if train == "lora" else 128 if by_muon else 512  # Adam and Muon do better with many small steps
    suits = min(most, max(32, 1 << (images // 8).bit_length() - 1)) if images >= 32 else 1 << images.bit_length() - 1
    batch = batch_size or suits
    an_epoch = f"{plain(images / batch)} steps an epoch"
    if batch_size is not None:
        chosen = f"as set, {an_epoch}"
    else:
        chosen = "as in table 4" if batch == 512 else f"{an_epoch}; with table 4's 512, {plain(images / 512)}"
    steps = min(rule.steps, max(_FEWEST_STEPS, round(_MOST_EPOCHS * images / batch)))
    epochs = f"{plain(steps * batch / images)} epochs"
    length = f"BiT-HyperRule for {images:,} images; {epochs}"
    if steps < rule.steps:
        length = (
            f"{epochs}; BiT-HyperRule's {rule.steps:,} steps would be {plain(rule.steps * batch / images)} epochs; no more "
            f"than {_MOST_EPOCHS} epochs or {_FEWEST_STEPS} steps are taken, to save time; --steps for another number"
        )
    warmup = min(500, steps // 10)
    base, origin = 0.01, "what the paper chose for all 19 tasks of VTAB together"
    optimizer: Optimizer = "sgd"
    how = "optimizer sgd, momentum 0.9, schedule cosine, clip 1, weight_decay 0: as in table 4"
    if train == "lora":
        base, origin = 0.0028, "0.001 for batches of 64, measured on photographs"
        optimizer = "adam"
        how = (
            "optimizer adam, schedule cosine, clip 1: for SGD the factors' first gradients, of which half are 0, are too small"
        )
    elif by_muon:
        base, origin = 0.003, "measured on digits, for models with a convolutional stem"
        optimizer = "muon"
        how = "optimizer muon, schedule linear, clip 1, weight_decay 0: as such models are trained from scratch"
    elif images >= 500_000:
        base, origin = 0.03, "the authors' rate for ImageNet"
    if batch != 512 and not by_muon:
        origin += f", times the square root of {batch}/512: {'less' if batch < 512 else 'more'} noise is averaged out"
    lr = base if by_muon else float(f"{base * math.sqrt(batch / 512):.2g}")
    said = [
        f"batch_size {batch}: {chosen}",
        f"steps {steps:,}: {length}",
        f"warmup {warmup}: a tenth of the run, at most the 500 of long runs",
        how,
        f"lr {lr:g}: {origin}; --sweep tries others",
    ]
    if train == "lora":
        said.append(
            "train lora: on few images its default rate does as well as a tuned one of --train all (docs/log.md); that trains "
            "every weight"
        )
    # Shards do not count their labels: all would have to be read first.
    ridge = bool(counts) and not by_muon
    if by_muon:
        said.append("head_start zero: from a closed-form head such a model overfits at this rate (docs/log.md)")
    elif ridge:
        said.append(
            "head_start ridge: the head begins in closed form on the frozen features; with a validation split the result is no "
            "worse than that"
        )
    loss, weights = _labels(images, counts, labels, said)
    if rule.mixup:
        said.append(f"mixup {rule.mixup:g}: BiT-HyperRule from 20,000 images on")
    preprocess, evaluation = _preprocessing(image_size, native, where, names, "", said, whole=True)
    recipe = Recipe(
        name="automatic-finetune",
        about=f"chosen for {images:,} images of {classes:,} classes",
        head_start="ridge" if ridge else "zero",
        loss=loss, class_weights=weights, batch_size=batch, steps=steps, warmup=warmup,
        optimizer=optimizer, momentum=0.9, lr=lr, schedule="linear" if by_muon else "cosine", clip=1.0, mixup=rule.mixup,
        train=train,
        image_size=_side(image_size), preprocess=preprocess, evaluation=evaluation,
        sweep=tuple(float(f"{factor * lr:.2g}") for factor in (0.1, 0.3, 1, 3)),
        sweep_share=0.1 if images < 20_000 else 0.02 if images < 500_000 else 0.01,
    )  # fmt: skip
    return recipe, tuple(said)


def automatic_probe(images: int, counts: Sequence[int], labels: float, string: str) -> tuple[Recipe, tuple[str, ...]]:
    """A linear probe; `string` is the checkpoint's own preprocessing, in which its features are known to be good."""
    base = RECIPES["linear-probe"]
    said = [f"recipe {base.name}: {base.about}", f"preprocess {string}: frozen features gain nothing from crops and flips"]
    loss, weights = _labels(images, counts, labels, said)
    fields = dict(loss=loss, class_weights=weights, preprocess=string, evaluation=string)
    return replace_fields(base, fields), tuple(said)


def automatic_pretrain(
    images: int,
    classes: int,
    image_size: Size,
    native: Size | None,
    counts: Sequence[int],
    *,
    width: int,
    stem: bool = False,
    objective: ObjectiveName = "classification",
    labels: float = 1.0,
    where: str = "",
    names: Sequence[str] = (),
) -> tuple[Recipe, tuple[str, ...]]:
    """From scratch, for a model of that width (of its tokens, or a ResNet's last features) and perhaps with a stem."""
    masked = objective == "masked-patch"
    said: list[str] = []
    terms = _terms_behind_stem(images, said) if stem and not masked else _terms(images, width, said)
    loss: Loss = "softmax"
    weights: Weights = "none"
    smoothing = head_bias = 0.0
    if not masked:
        if images < _FEW_IMAGES:
            said.insert(
                0,
                f"from scratch on {images:,} images: seldom as good as a pretrained model (CIFAR-10, 50,000 images: 98.95 % in "
                "table 5 after ImageNet-21k); with a checkpoint, try `vitreous finetune`",
            )
        loss, weights = _labels(images, counts, labels, said)
        if loss == "softmax":
            smoothing = 0.1
            few = "a small set is learnt by heart, and this keeps the model from being certain of it"
            many = "usual for ImageNet since Inception-v3; no label has to be matched with certainty"
            said.append(f"smoothing {smoothing:g}: {few if images < _FEW_IMAGES else many}")
        else:
            head_bias = float(f"{-math.log(max(2, classes)):.2g}")
            said.append(f"head_bias {head_bias:g}: at first, each of {classes:,} classes is as unlikely as it is")
    strength = "none" if masked or stem else _strength(images, width)
    randaug, mixup = AUGMENTATIONS[strength]
    preprocess, evaluation = _preprocessing(image_size, native, where, names, randaug, said, whole=False, border=not masked)
    if "randaug" not in preprocess:
        mixup = 0.0
    else:
        said.append(f"preprocess {randaug[1:]}, mixup {mixup:g}: AugReg's {strength}, for a width of {width}")
    recipe = Recipe(
        name="automatic-pretrain" if not masked else "automatic-masked-patch",
        about=f"chosen for {images:,} images" + ("" if masked else f" of {classes:,} classes"),
        objective=objective, loss=loss, class_weights=weights, smoothing=smoothing, head_bias=head_bias,
        weight_decay=0.1, decay="kernels", clip=1.0, mixup=mixup, **terms,
        image_size=_side(image_size), preprocess=preprocess, evaluation=evaluation,
    )  # fmt: skip
    return recipe, tuple(said)


def _terms(images: int, width: int, said: list[str]) -> dict[str, Any]:
    """Batch, length and optimiser between table 3 and AugReg."""
    batch = sensible_batch(images, 4096)
    _, epochs, why, base, whose = next(row for row in _BY_IMAGES if images >= row[0])
    steps = max(1, round(epochs * images / batch))
    warmup = min(10_000, steps // 10)
    lr = float(f"{base * math.sqrt(batch / 4096) * min(1.0, 768 / width):.2g}")
    smaller = "" if batch == 4096 else f", times the square root of {batch:,}/4,096"
    wider = "" if width <= 768 else f", times 768/{width:,} for the model's width"
    said += [
        f"batch_size {batch:,}: {plain(images / batch)} steps an epoch; ImageNet in table 3 has 312, of 4,096",
        f"steps {steps:,}: {epochs} epochs; {why}",
        f"warmup {warmup:,}: a tenth of the run, at most the paper's 10,000",
        "optimizer adam, schedule cosine, clip 1: as ImageNet in table 3",
        f"lr {lr:g}: {base:g} in table 3, {whose}{smaller}{wider}",
        "weight_decay 0.1, decay kernels: as AugReg; biases, norms, tokens and positions are spared",
    ]
    return dict(batch_size=batch, steps=steps, warmup=warmup, optimizer="adam", beta2=0.999, lr=lr, schedule="cosine")


def _terms_behind_stem(images: int, said: list[str]) -> dict[str, Any]:
    """What was measured for small images with a convolutional stem: docs/log.md, 2026-11-18."""
    batch = 128 if images >= 20_000 else min(64, sensible_batch(images, 64))
    epochs = max(20.0, round(_FEWEST_STEPS_OF_STEM * batch / images, 1))
    steps = max(1, round(epochs * images / batch))
    warmup = min(100, steps // 20)
    lr = 4e-3 if batch == 128 else 3e-3
    said += [
        f"batch_size {batch}: {plain(images / batch)} steps an epoch; many small steps go further in a short time",
        f"steps {steps:,}: {epochs:g} epochs; --minutes or --flops for the time you have",
        f"warmup {warmup}: a twentieth of the run, at most 100",
        "optimizer muon, beta2 0.99, schedule linear, clip 1: to zero at the last step; Adam needed more steps (docs/log.md)",
        f"lr {lr:g}: measured for models with a convolutional stem",
        "weight_decay 0.1, decay kernels: biases, norms and positions are spared",
    ]
    return dict(batch_size=batch, steps=steps, warmup=warmup, optimizer="muon", beta2=0.99, lr=lr, schedule="linear")


def _strength(images: int, width: int) -> str:
    """AugReg's table of what suits which model: a model that is small for its data has no need of harder images."""
    if images >= 5_000_000:
        return "none" if width < 384 else "light1" if width < 768 else "light2" if width < 1024 else "medium2"
    return "none" if width < 192 else "light1" if width < 384 else "medium1" if width < 768 else "medium2"


def _labels(images: int, counts: Sequence[int], labels: float, said: list[str]) -> tuple[Loss, Weights]:
    """`labels` of an image, on average, where those of each class are not counted."""
    labels = sum(counts) / images if counts else labels
    if labels > 1.01:
        said.append(f"loss sigmoid: images have {plain(labels)} labels on average, each a question of its own")
        return "sigmoid", "none"
    said.append("loss softmax: one label for each image")
    present = [count for count in counts if count]
    if len(present) < len(counts):
        said.append(f"{len(counts) - len(present):,} of {len(counts):,} classes have no images and will not be learnt")
    if present and max(present) >= UNEVEN * min(present):
        ratio = plain(max(present) / min(present))
        said.append(
            f"class_weights balanced: the largest class has {ratio} times the images of the smallest ({max(present):,} and "
            f"{min(present):,}); where large classes matter more, --set class_weights=none"
        )
        return "softmax", "balanced"
    return "softmax", "none"


def _preprocessing(
    image_size: Size, native: Size | None, where: str, names: Sequence[str], randaug: str, said: list[str], *, whole: bool,
    border: bool = True,
) -> tuple[str, str]:  # fmt: skip
    """For training and for evaluation. `randaug` is left out where it would change labels.

    `whole`: tested on whole images, as fine-tuned. Without `border`, no black pixels are added around small images: pixels
    that are to be predicted must be the image's own.
    """
    size = _text(image_size)
    small = native is not None and native[0] * native[1] < SMALL_IMAGES
    crops, mirrors = not _is_one_of(where, _NO_CROP), not _is_one_of(where, _NO_FLIP)
    first, why = _first_ops(image_size, native, where, border)
    flip, why_flip = _flip(where, names)
    said += [f"preprocess {first}{why}", f"preprocess {'flip' if flip else 'without flip'}: {why_flip}"]
    preprocess = f"{first}{'|flip' if flip else ''}{randaug if crops and mirrors else ''}|range(-1,1)"
    if crops and not small and not whole and image_size[0] == image_size[1]:
        # Rounded as transformers and torchvision do, so that an export gives the same pixels.
        return preprocess, f"resize_small({_scaled(image_size, 8 / 7)[0]},floor)|central_crop({size})|range(-1,1)"
    return preprocess, f"resize({size})|range(-1,1)"


def _first_ops(image_size: Size, native: Size | None, where: str, border: bool) -> tuple[str, str]:
    """How a training image comes to its size, and why."""
    size = _text(image_size)
    if _is_one_of(where, _NO_CROP):
        return f"resize({size})", f", no crop: in {where} it would cut off what the labels speak of"
    if native is None or native[0] * native[1] >= SMALL_IMAGES:
        return f"inception_crop({size})", ": any part of a photograph from a twentieth of its area up, as in the paper"
    if max(image_size) < _TINY:
        shift = f"a shift by one pixel is 1/{min(image_size)} of the image"
        return f"resize({size})", f", no crop: of {image_size[0]} x {image_size[1]} pixels, {shift}"
    if not border:
        why = ": moved by a few pixels; the black border of pad() would be predicted, too"
        return f"resize({_text(_scaled(image_size, 9 / 8))})|random_crop({size})", why
    return f"resize({size})|pad({max(1, max(image_size) // 8)})|random_crop({size})", (
        f": images of {native[0]} x {native[1]} are moved by a few pixels; a twentieth of their area, as photographs are "
        "cropped to, would show nothing"
    )


def _flip(where: str, names: Sequence[str]) -> tuple[bool, str]:
    """Whether training images may be mirrored, and why."""
    sided = next((name for name in names if _SIDED.search(name)), None)
    if _is_one_of(where, _NO_FLIP):
        return False, f"in {where} a mirror image has another label"
    if sided is not None:
        return False, f"class {sided!r} sounds as if it had a side; if not, --set preprocess=...|flip|..."
    if len(names) >= 10 and all(len(name) == 1 for name in names):
        return False, "classes that look like letters or digits have no mirror images"
    return True, "a mirror image has the same label; if not, --set preprocess= without it"


def _is_one_of(where: str, names: Sequence[str]) -> bool:
    return any(where == name or where.startswith((f"{name}?", f"{name}:")) for name in names)


def _scaled(size: Size, factor: float) -> Size:
    return math.ceil(size[0] * factor), math.ceil(size[1] * factor)


def _text(size: Size) -> str:
    return f"{size[0]}" if size[0] == size[1] else f"{size[0]},{size[1]}"


def _side(size: Size) -> int | None:
    return size[0] if size[0] == size[1] else None
