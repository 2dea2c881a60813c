"""The pretrained checkpoints known by name: location, training data, and what the file cannot say.

    MODEL@TAG        one of Google's .npz files, named by its bucket's own words: ViT-B/16@imagenet21k+imagenet2012
    hf:OWNER/REPO    a repository on the Hugging Face hub

Hashes and sizes are not published: the server declares them, and every download is checked against what it declares.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from typing import Any
from urllib.parse import quote

STORAGE = "https://storage.googleapis.com"  # the buckets vit_models and bit_models
HUB = "https://huggingface.co"

_I21K, _I1K = "ImageNet-21k", "ImageNet-1k"
_TUNED = f"{_I21K}, then {_I1K}"
_I21K_CLASSES = 21_843


@dataclass(frozen=True)
class Entry:
    """One known checkpoint."""

    name: str  # what a person types
    model: str  # its architecture
    location: str  # bucket and path of the file, or OWNER/REPO on the hub
    trained_on: str
    image_size: int | None  # side of the images that its positions are for; None where it is not published
    classes: int  # 0: no head, gives features
    licence: str = "Apache-2.0"
    note: str = ""
    preprocess: str | None = None  # None: as read.py infers it

    @property
    def on_hub(self) -> bool:
        return self.name.startswith("hf:")

    @property
    def url(self) -> str:
        """The file at its official address, or the page of the repository."""
        return f"{HUB}/{self.location}" if self.on_hub else f"{STORAGE}/{quote(self.location)}"

    @property
    def known(self) -> dict[str, Any]:
        """Fields of a Checkpoint that reading the file cannot tell."""
        # A .npz has no class names; on the hub they come with the repository.
        names = imagenet_names() if self.classes == 1000 and not self.on_hub else None
        fields = {"licence": self.licence, "preprocess": self.preprocess, "classes": names}
        return {name: value for name, value in fields.items() if value is not None}


@functools.cache
def imagenet_names() -> tuple[str, ...]:
    """Names of ImageNet's 1,000 classes."""
    lines = resources.files("vitreous.weights").joinpath("imagenet1k.txt").read_text(encoding="utf-8").splitlines()
    return tuple(line for line in lines if not line.startswith("#"))


# The checkpoints of the paper: gs://vit_models/imagenet21k and imagenet21k+imagenet2012 -------------------------------

# Issues #10, #32 and #252 of google-research/vision_transformer: done on purpose, the files are for fine-tuning.
_ZERO_HEAD = "its head is all zeros, on purpose: gives features; load it with classes=... to fine-tune"
_LATER = "released after the paper; whether its head is zeroed like the others' is not documented"


def _original() -> Iterator[Entry]:
    notes = dict.fromkeys(("ViT-B/8", "R26+ViT-B/32", "R50+ViT-L/32"), _LATER)
    for model in ("ViT-B/32", "ViT-B/16", "ViT-B/8", "ViT-L/32", "ViT-L/16", "ViT-H/14", *_HYBRIDS):
        location = f"vit_models/imagenet21k/{_file(model)}.npz"
        yield Entry(f"{model}@imagenet21k", model, location, _I21K, 224, _I21K_CLASSES, note=notes.get(model, _ZERO_HEAD))
    tag = "imagenet21k+imagenet2012"
    for model in ("ViT-B/32", "ViT-B/16", "ViT-L/32", "ViT-L/16", "R50+ViT-B/16"):
        yield Entry(f"{model}@{tag}", model, f"vit_models/{tag}/{_file(model)}.npz", _TUNED, 384, 1000)
    note = "its image size is not documented; it is read from the file"
    yield Entry(f"ViT-B/8@{tag}", "ViT-B/8", f"vit_models/{tag}/ViT-B_8.npz", _TUNED, None, 1000, note=note)
    for model, accuracy in (("ViT-B/16", 81.2), ("ViT-L/16", 82.7)):
        note = f"{accuracy} % top-1 on ImageNet, say its authors"
        yield Entry(f"{model}@{tag}-224", model, f"vit_models/{tag}/{_file(model)}-224.npz", _TUNED, 224, 1000, note=note)


_HYBRIDS = ("R26+ViT-B/32", "R50+ViT-B/16", "R50+ViT-L/32")


def _file(model: str) -> str:
    return model.replace("/", "_")


# "How to train your ViT?": gs://vit_models/augreg, the runs that its authors and timm recommend -----------------------

# Model; the upstream run; and for each image size it was fine-tuned at: the run it started from and the learning rate.
_WEAK, _LIGHT = "aug_none-wd_0.03-do_0.0-sd_0.0", "aug_light1-wd_0.03-do_0.0-sd_0.0"
_MEDIUM, _MEDIUM_DROP = "aug_medium1-wd_0.1-do_0.0-sd_0.0", "aug_medium1-wd_0.1-do_0.1-sd_0.1"
_B32, _R26, _R50 = (
    "aug_medium1-wd_0.03-do_0.0-sd_0.0",
    "aug_medium2-wd_0.03-do_0.0-sd_0.0",
    "aug_medium2-wd_0.1-do_0.0-sd_0.0",
)
_Tuned = dict[int, tuple[str, float]]
_I21K_RUNS: tuple[tuple[str, str, _Tuned], ...] = (
    ("ViT-Ti/16", _WEAK, {224: (_WEAK, 0.03), 384: (_WEAK, 0.03)}),
    ("ViT-S/32", _LIGHT, {224: (_LIGHT, 0.03), 384: (_LIGHT, 0.03)}),
    ("ViT-S/16", _LIGHT, {224: (_LIGHT, 0.03), 384: (_LIGHT, 0.03)}),
    ("ViT-B/32", _B32, {224: (_B32, 0.03), 384: ("aug_light1-wd_0.1-do_0.0-sd_0.0", 0.03)}),
    ("ViT-B/16", _MEDIUM, {224: (_MEDIUM, 0.01), 384: (_MEDIUM, 0.01)}),
    ("ViT-B/8", _MEDIUM, {224: (_MEDIUM, 0.01)}),
    ("ViT-L/16", _MEDIUM_DROP, {224: (_MEDIUM_DROP, 0.01), 384: (_MEDIUM_DROP, 0.01)}),
    ("R+ViT-Ti/16", _WEAK, {224: (_WEAK, 0.03), 384: (_WEAK, 0.03)}),
    ("R26+ViT-S/32", _R26, {224: ("aug_light0-wd_0.03-do_0.1-sd_0.1", 0.03), 384: (_R26, 0.03)}),
    ("R50+ViT-L/32", _R50, {224: (_MEDIUM_DROP, 0.01), 384: (_R50, 0.01)}),
)
_I1K_RUNS: tuple[tuple[str, str], ...] = (
    ("ViT-S/16", "aug_medium2-wd_0.1-do_0.0-sd_0.0"),
    ("ViT-B/32", "aug_medium2-wd_0.1-do_0.1-sd_0.1"),
    ("ViT-B/16", "aug_strong2-wd_0.1-do_0.1-sd_0.1"),
)


def _augreg() -> Iterator[Entry]:
    for model, upstream, _ in _I21K_RUNS:
        location = f"{_augreg_run(model, 'i21k', upstream)}.npz"
        note = f"300 epochs, {upstream}; has its real head"
        yield Entry(f"{model}@augreg-i21k", model, location, _I21K, 224, _I21K_CLASSES, note=note)
    for model, _, tuned in _I21K_RUNS:
        for side, (upstream, rate) in tuned.items():
            name, location = _tuned(model, "i21k", upstream, side, rate)
            yield Entry(name, model, location, _TUNED, side, 1000, note=f"300 epochs, {upstream}")
    for model, upstream in _I1K_RUNS:
        for side in (224, 384):
            name, location = _tuned(model, "i1k", upstream, side, 0.01)
            yield Entry(name, model, location, _I1K, side, 1000, note=f"300 epochs, {upstream}")


def _augreg_run(model: str, data: str, upstream: str) -> str:
    """ViT-B/16 is B_16 in this folder, and R50+ViT-L/32 is R50_L_32."""
    short = model.replace("+ViT-", "_").replace("ViT-", "").replace("/", "_")
    return f"vit_models/augreg/{short}-{data}-300ep-lr_0.001-{upstream}"


def _tuned(model: str, data: str, upstream: str, side: int, rate: float) -> tuple[str, str]:
    run = _augreg_run(model, data, upstream)
    return f"{model}@augreg-{data}-imagenet2012-{side}", f"{run}--imagenet2012-steps_20k-lr_{rate}-res_{side}.npz"


def _sam() -> Iterator[Entry]:
    """Trained on ImageNet alone with sharpness-aware minimisation (arXiv 2106.01548)."""
    for model in ("ViT-B/32", "ViT-B/16"):
        note = "sharpness-aware minimisation, no strong augmentation"
        yield Entry(f"{model}@sam", model, f"vit_models/sam/{_file(model)}.npz", _I1K, 224, 1000, note=note)


# Big Transfer: gs://bit_models ------------------------------------------------------------------------------------------


def _bit() -> Iterator[Entry]:
    # The BiT-HyperRule fine-tunes on crops of 480 and tests on the whole image at that size; a ResNet's file has no
    # positions from which its size could be told.
    tuned = "resize(480,bilinear-plain)|range(-1,1)"
    for tag, file, data, side, classes, preprocess in (
        ("bit-s", "BiT-S-{}", _I1K, 224, 1000, None),
        ("bit-m", "BiT-M-{}", _I21K, 224, _I21K_CLASSES, None),
        ("bit-m-imagenet2012", "BiT-M-{}-ILSVRC2012", _TUNED, 480, 1000, tuned),
    ):
        for model in ("R50x1", "R50x3", "R101x1", "R101x3", "R152x2", "R152x4"):
            location = f"bit_models/{file.format(model)}.npz"
            yield Entry(f"{model}@{tag}", model, location, data, side, classes, preprocess=preprocess)


# The Hugging Face hub ---------------------------------------------------------------------------------------------------


def _vit_on_hub() -> Iterator[Entry]:
    note = "with the tanh layer of pre-training as its pooler; gives features"
    for words, model in (
        ("base-patch32", "ViT-B/32"),
        ("base-patch16", "ViT-B/16"),
        ("large-patch32", "ViT-L/32"),
        ("large-patch16", "ViT-L/16"),
        ("huge-patch14", "ViT-H/14"),
    ):
        yield _hub(f"google/vit-{words}-224-in21k", model, _I21K, 224, 0, note)
        if model in ("ViT-B/16", "ViT-L/16"):
            yield _hub(f"google/vit-{words}-224", model, _TUNED, 224, 1000)
        if model != "ViT-H/14":
            yield _hub(f"google/vit-{words}-384", model, _TUNED, 384, 1000)


def _deit_on_hub() -> Iterator[Entry]:
    for size, model in (("tiny", "ViT-Ti/16"), ("small", "ViT-S/16"), ("base", "ViT-B/16")):
        for side in (224, 384) if size == "base" else (224,):
            yield _hub(f"facebook/deit-{size}-patch16-{side}", model, _I1K, side, 1000)
            note = "with a distillation token and a head for it"
            yield _hub(f"facebook/deit-{size}-distilled-patch16-{side}", model, _I1K, side, 1000, note)


def _dinov2_on_hub() -> Iterator[Entry]:
    data = "LVD-142M, without labels"
    models = (("small", "ViT-S/14"), ("base", "ViT-B/14"), ("large", "ViT-L/14"), ("giant", "ViT-g/14"))
    for family, registers in (("dinov2", ""), ("dinov2-with-registers", "4 registers; ")):
        for size, model in models:
            # Its g is not big_vision's: 1536 wide, 24 heads.
            note = registers + ("1536 wide, gated MLP; " if size == "giant" else "") + "positions for 518, fed 224"
            yield _hub(f"facebook/{family}-{size}", model, data, 518, 0, note)
            linear = f"{data}; linear head on {_I1K}"
            yield _hub(f"facebook/{family}-{size}-imagenet1k-1-layer", model, linear, 518, 1000, note)


def _dinov3_on_hub() -> Iterator[Entry]:
    """Meta's repositories ask for an account that has accepted the licence; timm's copies do not, but pool by the mean."""
    lvd, sat, licence = "LVD-1689M, without labels", "SAT-493M, satellite images without labels", "DINOv3 License"
    for short, words, model, note in (
        ("s", "small", "ViT-S/16", ""),
        ("splus", "small_plus", "ViT-S/16", "gated MLP; "),
        ("b", "base", "ViT-B/16", ""),
        ("l", "large", "ViT-L/16", ""),
        ("hplus", "huge_plus", "ViT-1280x32/16", "gated MLP; "),
        ("7b", "7b", "ViT-4096x40/16", "gated MLP; "),
    ):
        short = f"vit{short}16"
        for tag, data in (("lvd1689m", lvd), ("sat493m", sat)) if short in ("vitl16", "vit7b16") else (("lvd1689m", lvd),):
            gated = f"{note}rotary positions, 4 registers; set HF_TOKEN, its licence has to be accepted"
            yield _hub(f"facebook/dinov3-{short}-pretrain-{tag}", model, data, 224, 0, gated, licence)
            mean = f"{note}rotary positions, 4 registers; features are the mean of the patches"
            yield _hub(f"timm/vit_{words}_patch16_dinov3.{tag}", model, data, 256, 0, mean, licence)


def _towers_on_hub() -> Iterator[Entry]:
    note = "vision tower; its projection to the text's space is left out"
    for words, model, side in (
        ("base-patch32", "ViT-B/32", 224),
        ("base-patch16", "ViT-B/16", 224),
        ("large-patch14", "ViT-L/14", 224),
        ("large-patch14-336", "ViT-L/14", 336),
    ):
        yield _hub(f"openai/clip-vit-{words}", model, "WIT-400M, with captions", side, 0, note, "MIT")
    for words, model, sides in (
        ("base-patch16", "ViT-B/16", (224, 256, 384, 512)),
        ("large-patch16", "ViT-L/16", (256, 384)),
        ("so400m-patch14", "ViT-So400m/14", (224, 384)),
    ):
        for family, side in itertools.product(("siglip", "siglip2"), sides):
            note = "vision tower, attention pooling"
            yield _hub(f"google/{family}-{words}-{side}", model, "WebLI, with captions", side, 0, note)


def _mae_on_hub() -> Iterator[Entry]:
    for size, model in (("base", "ViT-B/16"), ("large", "ViT-L/16"), ("huge", "ViT-H/14")):
        note = "masked autoencoder without its decoder; for fine-tuning rather than frozen features"
        yield _hub(f"facebook/vit-mae-{size}", model, f"{_I1K}, without labels", 224, 0, note)


def _hub(repository: str, model: str, data: str, side: int, classes: int, note: str = "", licence: str = "Apache-2.0") -> Entry:
    return Entry(f"hf:{repository}", model, repository, data, side, classes, licence, note)


ENTRIES = {
    entry.name: entry
    for entries in (
        *(_original(), _augreg(), _sam(), _bit()),
        *(_vit_on_hub(), _deit_on_hub(), _dinov2_on_hub(), _dinov3_on_hub(), _towers_on_hub(), _mae_on_hub()),
    )
    for entry in entries
}
"""Every known checkpoint by its name, in the order to list them."""
