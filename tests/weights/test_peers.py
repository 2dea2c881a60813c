"""The same weights give the same logits in timm and in transformers, read from theirs and written for them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import timm
import torch
import transformers
from PIL import Image
from torch import Tensor

from vitreous.classifier import Classifier, load
from vitreous.core.errors import VitreousError

from conftest import random_checkpoint, randomise, relative


@torch.no_grad()
def logits(model: Any, images: Tensor) -> Tensor:
    out = model.eval()(images)
    return getattr(out, "logits", out)  # type: ignore[no-any-return]


def saved(model: torch.nn.Module, folder: Path, **config: object) -> Path:
    folder.mkdir()
    safetensors.torch.save_file({k: v.contiguous() for k, v in model.state_dict().items()}, folder / "model.safetensors")
    if config:
        (folder / "config.json").write_text(json.dumps(config))
    return folder


# timm ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "vit_tiny_patch16_224",
        "vit_base_patch16_224",
        "vit_base_r50_s16_224",
        "vit_small_r26_s32_224",
        "vit_tiny_r_s16_p8_224",
        "resnetv2_50x1_bit",
        "vit_small_patch14_reg4_dinov2",  # registers, layer scale, class token without position
        "vit_medium_patch16_gap_240",  # no class token, norm after pooling
        "deit_tiny_distilled_patch16_224",
    ],
)
def test_timm_models_give_timms_logits(name: str, tmp_path: Path) -> None:
    shallow = {} if name.startswith("resnet") else dict(depth=2)
    model = randomise(timm.create_model(name, num_classes=11, **shallow))
    side = model.patch_embed.img_size[0] if hasattr(model, "patch_embed") else 224
    clf = load(saved(model, tmp_path / "timm", architecture=name))
    images = torch.rand(1, 3, side, side) * 2 - 1
    assert relative(logits(clf.model, images), logits(model, images)) < 1e-4


def test_timm_state_dict_without_config_says_what_it_assumed(tmp_path: Path) -> None:
    model = randomise(timm.create_model("vit_tiny_patch16_224", num_classes=3))
    clf = load(saved(model, tmp_path / "timm"))
    assert clf.config.heads == 3
    assert any("heads" in note for note in clf.notes)
    assert any("does not state its preprocessing" in note for note in clf.notes)


def test_timm_positions_are_resized_as_timm_does(tmp_path: Path) -> None:
    model = randomise(timm.create_model("vit_tiny_patch16_224", num_classes=3, img_size=64))
    folder = saved(model, tmp_path / "timm", architecture="vit_tiny_patch16_224")
    larger = timm.create_model("vit_tiny_patch16_224", num_classes=3, img_size=96)
    state = timm.models.vision_transformer.checkpoint_filter_fn(model.state_dict(), larger)
    larger.load_state_dict(state)
    images = torch.rand(2, 3, 96, 96) * 2 - 1
    assert relative(logits(load(folder, image_size=96).model, images), logits(larger, images)) < 1e-5


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("ViT-Ti/16", dict(depth=2, image_size=64)),
        ("ViT-Ti/16", dict(depth=2, image_size=(32, 64))),
        ("ViT-Ti/16", dict(depth=2, image_size=64, activation="gelu-erf", width=96, heads=6, mlp=200, patch=8)),
        ("ViT-Ti/16", dict(depth=2, image_size=64, pool="gap", norm_after_pool=True)),
        ("ViT-Ti/16", dict(depth=2, image_size=64, pool="gap")),
        ("ViT-Ti/16", dict(depth=2, image_size=64, registers=3, layer_scale=0.1, position_prefix=0, classes=0)),
        ("R26+ViT-S/32", dict(depth=1, image_size=64)),
        ("R50x1", dict(image_size=64)),
    ],
)
def test_timm_builds_our_export_and_agrees(name: str, options: dict[str, Any], tmp_path: Path) -> None:
    clf = Classifier(random_checkpoint(name, **{"classes": 5, **options}))
    clf.save(tmp_path / "export", "timm")
    theirs = timm.create_model(f"local-dir:{tmp_path / 'export'}", pretrained=True)
    images = torch.rand(2, 3, *clf.config.image_size) * 2 - 1
    # ResNets run with timm's own epsilons (their config has no place for others).
    tolerance = 1e-5 if "R" not in name else 1e-2
    assert relative(logits(theirs, images), logits(clf.model, images)) < tolerance


def test_timm_export_keeps_preprocessing_and_class_names(tmp_path: Path) -> None:
    checkpoint = random_checkpoint(
        "ViT-Ti/16",
        depth=1,
        image_size=64,
        classes=3,
        names=("cat", "dog", "eel"),
        preprocess="resize_small(80,bicubic,floor)|central_crop(64,round)|normalise(imagenet)",
    )
    Classifier(checkpoint).save(tmp_path / "export", "timm")
    config = timm.data.resolve_model_data_config(timm.create_model(f"local-dir:{tmp_path / 'export'}", pretrained=True))
    assert tuple(config["mean"]) == (0.485, 0.456, 0.406)
    assert config["interpolation"] == "bicubic"
    assert int(config["input_size"][1] / config["crop_pct"]) == 80
    back = load(tmp_path / "export")
    assert back.classes == ("cat", "dog", "eel")
    assert str(back.preprocess) == checkpoint.preprocess


# transformers -------------------------------------------------------------------------------------------------------

TINY = dict(
    hidden_size=48, num_hidden_layers=2, num_attention_heads=3, intermediate_size=96, image_size=32, patch_size=8, num_labels=5
)
TINY_DINO = {**TINY, "mlp_ratio": 2, "layerscale_value": 0.5}
TINY_DINO.pop("intermediate_size")

THEIRS = {
    "vit": lambda: transformers.ViTForImageClassification(transformers.ViTConfig(**TINY)),
    "vit-tanh": lambda: transformers.ViTForImageClassification(
        transformers.ViTConfig(**TINY, hidden_act="gelu_pytorch_tanh", layer_norm_eps=1e-3, qkv_bias=False)
    ),
    "deit": lambda: transformers.DeiTForImageClassification(transformers.DeiTConfig(**TINY)),
    "deit-teacher": lambda: transformers.DeiTForImageClassificationWithTeacher(transformers.DeiTConfig(**TINY)),
    "dinov2": lambda: transformers.Dinov2ForImageClassification(transformers.Dinov2Config(**TINY_DINO)),
    "dinov2-gated": lambda: transformers.Dinov2ForImageClassification(
        transformers.Dinov2Config(**TINY_DINO, use_swiglu_ffn=True)
    ),
    "dinov2-registers": lambda: transformers.Dinov2WithRegistersForImageClassification(
        transformers.Dinov2WithRegistersConfig(**TINY_DINO, num_register_tokens=3)
    ),
}


@pytest.mark.parametrize("kind", THEIRS)
def test_hugging_face_folders_give_transformers_logits(kind: str, tmp_path: Path) -> None:
    theirs = randomise(THEIRS[kind]())
    theirs.save_pretrained(tmp_path / "hf")
    clf = load(tmp_path / "hf")
    images = torch.rand(2, 3, 32, 32) * 2 - 1
    assert relative(logits(clf.model, images), logits(theirs, images)) < 1e-5
    wide = torch.rand(2, 3, 32, 56) * 2 - 1
    with torch.no_grad():
        extra = {} if kind.startswith("dinov2") else {"interpolate_pos_encoding": True}
        expected = theirs(wide, **extra).logits
    assert relative(logits(clf.model, wide), expected) < 1e-5


@pytest.mark.parametrize("kind", THEIRS)
def test_there_and_back_to_hugging_face_is_bit_identical(kind: str, tmp_path: Path) -> None:
    randomise(THEIRS[kind]()).save_pretrained(tmp_path / "hf")
    load(tmp_path / "hf").save(tmp_path / "ours")
    load(tmp_path / "ours").save(tmp_path / "back", "huggingface")
    before = safetensors.torch.load_file(tmp_path / "hf" / "model.safetensors")
    after = safetensors.torch.load_file(tmp_path / "back" / "model.safetensors")
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    model = getattr(transformers, json.loads((tmp_path / "back" / "config.json").read_text())["architectures"][0])
    rebuilt, report = model.from_pretrained(tmp_path / "back", output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    images = torch.rand(1, 3, 32, 32)
    assert relative(logits(rebuilt, images), logits(load(tmp_path / "ours").model, images)) < 1e-5


def test_dinov2_body_gives_transformers_class_token_and_masks_patches_alike(tmp_path: Path) -> None:
    theirs = randomise(transformers.Dinov2Model(transformers.Dinov2Config(**TINY_DINO))).eval()
    theirs.save_pretrained(tmp_path / "hf")
    clf = load(tmp_path / "hf")
    images, mask = torch.rand(2, 3, 32, 32), torch.rand(2, 16) < 0.5
    with torch.no_grad():
        plain = theirs(images).last_hidden_state[:, 0]
        hidden = theirs(images, bool_masked_pos=mask).last_hidden_state
        ours = clf.model.norm(clf.model.tokens(images, mask))
    assert relative(clf.features(images), plain) < 1e-5
    assert relative(ours, hidden) < 1e-5


def test_vit_body_with_pooler_is_our_representation_layer(tmp_path: Path) -> None:
    theirs = randomise(transformers.ViTModel(transformers.ViTConfig(**TINY))).eval()
    theirs.save_pretrained(tmp_path / "hf")
    images = torch.rand(2, 3, 32, 32)
    with torch.no_grad():
        expected = theirs(images).pooler_output
    assert relative(load(tmp_path / "hf").features(images), expected) < 1e-5


def test_names_in_the_memory_of_transformers_are_understood(tmp_path: Path) -> None:
    theirs = randomise(THEIRS["vit"]())
    folder = saved(theirs, tmp_path / "memory", **theirs.config.to_dict())
    images = torch.rand(2, 3, 32, 32)
    assert relative(logits(load(folder).model, images), logits(theirs, images)) < 1e-5


def test_class_names_and_preprocessing_come_from_the_folder(tmp_path: Path) -> None:
    labels = dict(enumerate(("ant", "bee", "cow", "doe", "eel")))
    config = transformers.ViTConfig(**{**TINY, "id2label": labels, "label2id": {v: k for k, v in labels.items()}})
    transformers.ViTForImageClassification(config).save_pretrained(tmp_path / "hf")
    settings = dict(
        do_resize=True,
        size={"shortest_edge": 40},
        resample=3,
        do_center_crop=True,
        crop_size=32,
        do_normalize=True,
        image_mean=[0.1, 0.2, 0.3],
        image_std=[0.4, 0.5, 0.6],
        do_rescale=True,
    )
    (tmp_path / "hf" / "preprocessor_config.json").write_text(json.dumps(settings))
    clf = load(tmp_path / "hf")
    assert clf.classes == ("ant", "bee", "cow", "doe", "eel")
    assert str(clf.preprocess) == "resize_small(40,bicubic,floor)|central_crop(32)|normalise(0.1,0.2,0.3,0.4,0.5,0.6)"
    clf.save(tmp_path / "back", "huggingface")
    processor = json.loads((tmp_path / "back" / "preprocessor_config.json").read_text())
    assert (processor["size"], processor["crop_size"], processor["resample"]) == (
        {"shortest_edge": 40},
        {"height": 32, "width": 32},
        3,
    )
    assert json.loads((tmp_path / "back" / "config.json").read_text())["id2label"]["4"] == "eel"


@pytest.mark.parametrize(
    ("format", "name", "options", "word"),
    [
        ("huggingface", "ViT-Ti/16", dict(pool="gap"), "gap"),
        ("huggingface", "R26+ViT-S/32", {}, "trunk"),
        ("huggingface", "R50x1", {}, "ResNets"),
        ("huggingface", "ViT-Ti/16", dict(representation=True), "representation"),
        ("timm", "ViT-Ti/16", dict(representation=True), "representation"),
        ("timm", "ViT-Ti/16", dict(positions="sincos"), "sincos"),
        ("timm", "ViT-Ti/16", dict(norm_eps=1e-12), "epsilon"),
        ("official", "ViT-Ti/16", dict(layer_scale=0.1), "layer scale"),
        ("official", "ViT-Ti/16", dict(attention="axial"), "axial"),
    ],
)
def test_a_format_refuses_what_it_cannot_express(
    format: Any, name: str, options: dict[str, Any], word: str, tmp_path: Path
) -> None:
    clf = Classifier(random_checkpoint(name, classes=3, image_size=64, **({"depth": 1} if "ViT" in name else {}), **options))
    target = tmp_path / ("x.npz" if format == "official" else "x")
    with pytest.raises(VitreousError, match=word):
        clf.save(target, format)
    assert not target.exists()


@pytest.mark.parametrize("small", [73, 80, 91, 249])
def test_timm_crops_come_back_exactly(small: int, tmp_path: Path) -> None:
    text = f"resize_small({small},bicubic,floor)|central_crop(64,round)|range(-1,1)"
    Classifier(random_checkpoint("ViT-Ti/16", depth=1, image_size=64, classes=3, preprocess=text)).save(tmp_path / "x", "timm")
    assert str(load(tmp_path / "x").preprocess) == text


def test_a_squashed_image_and_grey_channels_come_back_from_timm(tmp_path: Path) -> None:
    text = "resize(32,64,bicubic)|range(-1,1)"
    checkpoint = random_checkpoint("ViT-Ti/16", depth=1, image_size=(32, 64), classes=3, channels=1, preprocess=text)
    for format in ("timm", "huggingface"):
        Classifier(checkpoint).save(tmp_path / format, format)  # type: ignore[arg-type]
        back = load(tmp_path / format)
        assert str(back.preprocess) == text
        assert back.config.channels == 1


@pytest.mark.parametrize("size", [(90, 140), (71, 71), (65, 64), (140, 91), (300, 200)])
def test_timms_own_transform_gives_the_same_pixels(size: tuple[int, int], tmp_path: Path) -> None:
    model = timm.create_model("vit_tiny_patch16_224", depth=1, img_size=64)
    config = dict(architecture="vit_tiny_patch16_224", model_args=dict(depth=1, img_size=64))
    pretrained = dict(mean=[0.1, 0.2, 0.3], std=[0.5, 0.6, 0.7], crop_pct=0.9, interpolation="bicubic", input_size=[3, 64, 64])
    clf = load(saved(model, tmp_path / "t", **config, pretrained_cfg=pretrained))
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (*size, 3), dtype=np.uint8))
    expected = timm.data.create_transform(**{**pretrained, "input_size": (3, 64, 64)})(image)
    assert torch.allclose(clf.prepare(image)[0], expected, atol=1e-5)


@pytest.mark.parametrize("change", [dict(pooler_act="relu"), dict(hidden_act="mish")])
def test_hugging_face_options_that_would_change_outputs_are_refused(change: dict[str, str], tmp_path: Path) -> None:
    transformers.ViTModel(transformers.ViTConfig(**TINY, **change)).save_pretrained(tmp_path / "hf")
    with pytest.raises(VitreousError, match=next(iter(change.values()))):
        load(tmp_path / "hf")


def test_heads_that_are_left_out_are_noted(tmp_path: Path) -> None:
    theirs = randomise(transformers.ViTForMaskedImageModeling(transformers.ViTConfig(**TINY, encoder_stride=8))).eval()
    theirs.save_pretrained(tmp_path / "hf")
    clf = load(tmp_path / "hf")
    assert "left out: decoder.0.bias, decoder.0.weight" in clf.notes
    images = torch.rand(1, 3, 32, 32)
    with torch.no_grad():
        expected = theirs.vit(images).last_hidden_state[:, 0]
    assert relative(clf.features(images), expected) < 1e-5


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (dict(global_pool="max"), "max"),
        (dict(global_pool="prr"), "prr"),
        (dict(global_pool="avg", pool_include_prefix=True), "pool_include_prefix"),
        (dict(pre_norm=True), "pre_norm"),
        (dict(act_layer="mish"), "mish"),
    ],
)
def test_timm_options_that_would_change_outputs_are_refused(arguments: dict[str, Any], word: str, tmp_path: Path) -> None:
    plain = timm.create_model("vit_tiny_patch16_224", depth=1, img_size=64)
    folder = saved(
        plain, tmp_path / "t", architecture="vit_tiny_patch16_224", model_args=dict(depth=1, img_size=64, **arguments)
    )
    with pytest.raises(VitreousError, match=word):
        load(folder)


@pytest.mark.parametrize("arguments", [dict(fc_norm=True), dict(global_pool="avg", fc_norm=False), dict(global_pool="avg")])
def test_timms_ways_of_pooling(arguments: dict[str, Any], tmp_path: Path) -> None:
    arguments = dict(depth=2, img_size=64, num_classes=5, **arguments)
    model = randomise(timm.create_model("vit_tiny_patch16_224", **arguments))
    clf = load(saved(model, tmp_path / "t", architecture="vit_tiny_patch16_224", model_args=arguments))
    images = torch.rand(2, 3, 64, 64)
    assert relative(logits(clf.model, images), logits(model, images)) < 1e-5


def test_a_resnet_of_timms_that_is_no_bit_is_refused(tmp_path: Path) -> None:
    model = timm.create_model("resnetv2_50x1_bit", num_classes=3)
    with pytest.raises(VitreousError, match="no BiT ResNet"):
        load(saved(model, tmp_path / "a", architecture="resnetv2_50"))
    assert any("taken as BiT" in note for note in load(saved(model, tmp_path / "b")).notes)


def test_other_channels_survive_timms_own_loader(tmp_path: Path) -> None:
    clf = Classifier(random_checkpoint("ViT-Ti/16", depth=1, image_size=32, classes=3, channels=4))
    clf.save(tmp_path / "x", "timm")
    images = torch.rand(1, 4, 32, 32)
    theirs = timm.create_model(f"local-dir:{tmp_path / 'x'}", pretrained=True)
    assert relative(logits(theirs, images), logits(clf.model, images)) < 1e-5


def test_what_an_export_cannot_say_is_noted(tmp_path: Path) -> None:
    import dataclasses

    checkpoint = random_checkpoint(
        "ViT-Ti/16", depth=1, image_size=32, classes=3, preprocess="resize(32,bilinear-plain)|range(-1,1)"
    )
    clf = Classifier(dataclasses.replace(checkpoint, outputs="sigmoid"))
    said = " ".join(clf.save(tmp_path / "t", "timm"))
    assert "plain bilinear" in said
    assert "sigmoid" in said
    assert "bicubic-antialias" in said
    clf.save(tmp_path / "h", "huggingface")
    assert json.loads((tmp_path / "h" / "config.json").read_text())["problem_type"] == "multi_label_classification"
    assert load(tmp_path / "h").checkpoint.outputs == "sigmoid"
    erf = Classifier(random_checkpoint("ViT-Ti/16", depth=1, image_size=(32, 48), classes=3, activation="gelu-erf"))
    said = " ".join(erf.save(tmp_path / "x.npz"))
    assert "tanh" in said
    assert "2x3" in said
    padded = Classifier(random_checkpoint("R50x1", classes=3, root_padding="-inf"))
    with pytest.raises(VitreousError, match="minus infinity"):
        padded.save(tmp_path / "r", "timm")


# Prepared alike -----------------------------------------------------------------------------------------------------

ODD = [(400, 534), (534, 400), (213, 746), (97, 60), (61, 61), (60, 97), (83, 251), (45, 300)]


def _noise(size: tuple[int, int]) -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (*size, 3), dtype=np.uint8))


@pytest.mark.parametrize("crop_mode", ["center", "squash"])
@pytest.mark.parametrize("target", [(48, 160), (160, 48), (64, 64)])
def test_timm_prepares_rectangles_as_we_do(target: tuple[int, int], crop_mode: str, tmp_path: Path) -> None:
    """timm covers (53, 177) and crops (48, 160): most of the image is kept, whatever its shape."""
    arguments = dict(depth=1, img_size=target, embed_dim=32, num_heads=2)
    pretrained = dict(mean=[0.5] * 3, std=[0.5] * 3, crop_pct=0.9, interpolation="bicubic", crop_mode=crop_mode)
    config = dict(architecture="vit_tiny_patch16_224", model_args=arguments)
    model = timm.create_model("vit_tiny_patch16_224", **arguments)
    clf = load(saved(model, tmp_path / "t", **config, pretrained_cfg={**pretrained, "input_size": [3, *target]}))
    theirs = timm.data.create_transform(**pretrained, input_size=(3, *target))
    clf.save(tmp_path / "back", "timm")
    assert str(load(tmp_path / "back").preprocess) == str(clf.preprocess)
    for size in ODD:
        assert torch.allclose(clf.prepare(_noise(size))[0], theirs(_noise(size)), atol=1e-5), size


def test_a_rectangle_of_the_issue_keeps_what_timm_keeps(tmp_path: Path) -> None:
    from vitreous.weights import preprocessing

    text = preprocessing.timm(dict(crop_pct=0.9), (192, 672))
    assert text == "resize_small(213,746,bilinear)|central_crop(192,672,round)|range(-1,1)"
    assert preprocessing.timm(dict(crop_mode="border"), (192, 672)) == ""


@pytest.mark.parametrize("text", ["resize_small(64,bilinear,floor)|central_crop(56)|range(-1,1)", "resize(56)|range(-1,1)"])
def test_an_export_to_hugging_face_is_prepared_as_here(text: str, tmp_path: Path) -> None:
    clf = Classifier(random_checkpoint("ViT-Ti/14", depth=1, image_size=56, classes=3, preprocess=text))
    assert not [note for note in clf.save(tmp_path / "hf", "huggingface") if "prepare" in note]
    theirs = transformers.AutoImageProcessor.from_pretrained(tmp_path / "hf", use_fast=False)
    for size in ODD:
        expected = theirs(_noise(size), return_tensors="pt")["pixel_values"][0]
        assert torch.allclose(clf.prepare(_noise(size))[0], expected, atol=1e-5), size


def test_an_export_to_timm_is_prepared_as_here(tmp_path: Path) -> None:
    text = "resize_small(64,bilinear,floor)|central_crop(48,round)|range(-1,1)"
    clf = Classifier(random_checkpoint("ViT-Ti/16", depth=1, image_size=48, classes=3, preprocess=text))
    assert not [note for note in clf.save(tmp_path / "t", "timm") if "prepare" in note]
    model = timm.create_model(f"local-dir:{tmp_path / 't'}", pretrained=True)
    theirs = timm.data.create_transform(**timm.data.resolve_model_data_config(model))
    for size in ODD:
        assert torch.allclose(clf.prepare(_noise(size))[0], theirs(_noise(size)), atol=1e-5), size


@pytest.mark.parametrize("format", ["timm", "huggingface"])
def test_an_export_says_where_the_other_side_rounds_otherwise(format: Any, tmp_path: Path) -> None:
    text = "resize_small(64)|central_crop(48)|range(-1,1)"  # 400 x 534: here 85 wide, there cut off
    clf = Classifier(random_checkpoint("ViT-Ti/16", depth=1, image_size=48, classes=3, preprocess=text))
    said = " ".join(clf.save(tmp_path / "x", format))
    assert "prepares images as resize_small(64,bilinear,floor)" in said
    assert "this checkpoint as resize_small(64,bilinear)" in said


# Guesses, heads and leftovers ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("dinov2", "resize_small(37,bicubic,floor)|central_crop(32)|normalise(imagenet)"),
        ("deit", "resize_small(37,bicubic,floor)|central_crop(32)|normalise(imagenet)"),
        ("vit", "resize_small(37,bilinear,floor)|central_crop(32)|range(-1,1)"),
    ],
)
def test_a_guess_keeps_the_shape_is_marked_and_is_not_exported(kind: str, expected: str, tmp_path: Path) -> None:
    THEIRS[kind]().save_pretrained(tmp_path / "hf")
    clf = load(tmp_path / "hf")
    assert (str(clf.preprocess), clf.checkpoint.preprocess_guessed) == (expected, True)
    clf.save(tmp_path / "ours")
    assert json.loads((tmp_path / "ours" / "model.json").read_text())["preprocess_guessed"] is True
    notes = load(tmp_path / "ours").save(tmp_path / "back", "huggingface")
    assert any("guessed" in note for note in notes)
    assert not (tmp_path / "back" / "preprocessor_config.json").exists()


def test_dinov2_is_guessed_at_256_and_224() -> None:
    from vitreous.weights import preprocessing

    text = preprocessing.huggingface_guess("dinov2", (518, 518))
    assert text == "resize_small(256,bicubic,floor)|central_crop(224)|normalise(imagenet)"


def test_a_timm_guess_is_not_exported_and_old_documents_are_facts(tmp_path: Path) -> None:
    model = timm.create_model("vit_tiny_patch16_224", depth=1, img_size=32, num_classes=3)
    clf = load(saved(model, tmp_path / "t"))
    assert clf.checkpoint.preprocess_guessed
    clf.save(tmp_path / "back", "timm")
    assert "mean" not in json.loads((tmp_path / "back" / "config.json").read_text())["pretrained_cfg"]
    clf.save(tmp_path / "ours")
    document = json.loads((tmp_path / "ours" / "model.json").read_text())
    del document["preprocess_guessed"]  # as version 1 was written before
    (tmp_path / "ours" / "model.json").write_text(json.dumps(document))
    assert not load(tmp_path / "ours").checkpoint.preprocess_guessed


@pytest.mark.parametrize("kind", ["dinov2", "dinov2-registers"])
def test_a_dinov2_classifier_of_ours_goes_to_transformers(kind: str, tmp_path: Path) -> None:
    """transformers' head reads class token and patch mean; ours the token alone: zeros for the other half are exact."""
    body = {"dinov2": "Dinov2", "dinov2-registers": "Dinov2WithRegisters"}[kind]
    settings = {**TINY_DINO, **({"num_register_tokens": 3} if "registers" in kind else {})}
    theirs = getattr(transformers, f"{body}Model")(getattr(transformers, f"{body}Config")(**settings))
    randomise(theirs).save_pretrained(tmp_path / "hf")
    clf = load(tmp_path / "hf", classes=4)
    randomise(clf.model.head)
    notes = clf.save(tmp_path / "back", "huggingface")
    assert any("zero weights" in note for note in notes)
    rebuilt = getattr(transformers, f"{body}ForImageClassification").from_pretrained(tmp_path / "back")
    images = torch.rand(2, 3, 32, 32)
    assert relative(logits(rebuilt, images), logits(clf.model, images)) < 1e-5
    assert relative(logits(load(tmp_path / "back").model, images), logits(clf.model, images)) < 1e-6


def test_arrays_outside_the_model_are_noted_and_a_head_there_is_refused(tmp_path: Path) -> None:
    state = timm.create_model("vit_tiny_patch16_224", depth=1, img_size=32, num_classes=0).state_dict()
    nested = {f"encoder.{name}": tensor for name, tensor in state.items()}
    extra = {"head.weight": torch.rand(5, 192), "head.bias": torch.rand(5)}
    safetensors.torch.save_file({**nested, "projector.0.weight": torch.rand(7, 192)}, tmp_path / "noted.safetensors")
    assert "left out: projector.0.weight" in load(tmp_path / "noted.safetensors").notes
    safetensors.torch.save_file({**nested, **extra}, tmp_path / "head.safetensors")
    with pytest.raises(VitreousError, match=r"'head\.weight', 5 x 192, could be the head"):
        load(tmp_path / "head.safetensors")
    sized = {"state_dict." + name: tensor for name, tensor in state.items()} | {
        f"optimizer.{i}": torch.rand(3) for i in range(20)
    }
    safetensors.torch.save_file(sized, tmp_path / "trained.safetensors")
    assert "left out 20 arrays: optimizer (20)" in load(tmp_path / "trained.safetensors").notes


def test_loading_within_inference_mode(tmp_path: Path) -> None:
    Classifier(random_checkpoint("ViT-Ti/16", depth=1, image_size=32, classes=3)).save(tmp_path / "x")
    images = torch.rand(1, 3, 32, 32)
    with torch.inference_mode():
        clf = load(tmp_path / "x", image_size=48, classes=2)
        clf.predict(images)
    logits_ = clf.model(torch.rand(1, 3, 48, 48))
    logits_.sum().backward()  # and it can be trained afterwards
    assert clf.model.head.weight.grad is not None
