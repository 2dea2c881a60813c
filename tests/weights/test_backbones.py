"""Backbones for frozen features: read from transformers and timm with equal features at two grids, written back exactly."""

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
from torch import Tensor, nn

from vitreous.classifier import Classifier, load
from vitreous.core.errors import VitreousError
from vitreous.models.cost import cost

from conftest import random_checkpoint, randomise, relative

TINY = dict(hidden_size=48, num_hidden_layers=2, num_attention_heads=3, intermediate_size=96, image_size=32, patch_size=8)
GRIDS = [(32, 32), (24, 56)]


def save_transformers(kind: str, folder: Path, **options: Any) -> nn.Module:
    """A model of transformers with random weights, in a folder of its own."""
    config = getattr(transformers, f"{kind.removesuffix('Model')}Config")(**{**TINY, **options})
    model: nn.Module = randomise(getattr(transformers, kind)(config)).eval()
    model.save_pretrained(folder)  # type: ignore[operator]
    return model


def save_timm(name: str, folder: Path, **options: Any) -> nn.Module:
    model: nn.Module = randomise(timm.create_model(name, **options)).eval()
    folder.mkdir()
    safetensors.torch.save_file({k: v.contiguous() for k, v in model.state_dict().items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(dict(architecture=name, model_args=options)))
    return model


@torch.no_grad()
def pooled(model: nn.Module, images: Tensor, **options: Any) -> Tensor:
    found: Tensor = model(images, **options).pooler_output
    return found


def read_back(folder: Path, architecture: Any) -> nn.Module:
    """Built by transformers from our export, with no tensor missing and none too many."""
    model, report = architecture.from_pretrained(folder, output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    built: nn.Module = model.eval()
    return built


def assert_same_file(one: Path, other: Path) -> None:
    before, after = (safetensors.torch.load_file(folder / "model.safetensors") for folder in (one, other))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


# DINOv3 -------------------------------------------------------------------------------------------------------------

DINOV3: dict[str, dict[str, Any]] = {
    "registers": dict(num_register_tokens=4),
    "gated": dict(num_register_tokens=4, use_gated_mlp=True, hidden_act="silu"),
    "no registers": {},
    "key bias": dict(num_register_tokens=1, key_bias=True, rope_theta=37.0, layer_norm_eps=1e-3),
    "no biases": dict(num_register_tokens=2, query_bias=False, value_bias=False, hidden_act="gelu_pytorch_tanh"),
}


@pytest.mark.parametrize("case", DINOV3)
def test_dinov3_features_are_transformers_pooler_output(case: str, tmp_path: Path) -> None:
    theirs = save_transformers("DINOv3ViTModel", tmp_path / "hf", **DINOV3[case])
    clf = load(tmp_path / "hf")
    for grid in GRIDS:
        images = torch.rand(2, 3, *grid) * 2 - 1
        assert relative(clf.features(images), pooled(theirs, images)) < 1e-5
        assert relative(load(tmp_path / "hf", image_size=grid).features(images), pooled(theirs, images)) < 1e-5


@pytest.mark.parametrize("case", ["registers", "gated", "key bias", "no biases"])
def test_dinov3_goes_to_transformers_and_back_bit_by_bit(case: str, tmp_path: Path) -> None:
    theirs = save_transformers("DINOv3ViTModel", tmp_path / "hf", **DINOV3[case])
    load(tmp_path / "hf").save(tmp_path / "ours")
    load(tmp_path / "ours").save(tmp_path / "back", "huggingface")
    assert_same_file(tmp_path / "hf", tmp_path / "back")
    images = torch.rand(2, 3, 40, 32)
    rebuilt = read_back(tmp_path / "back", transformers.DINOv3ViTModel)
    assert relative(pooled(rebuilt, images), pooled(theirs, images)) < 1e-6


@pytest.mark.parametrize(
    "name", ["vit_small_patch16_dinov3", "vit_small_patch16_dinov3_qkvb", "vit_small_plus_patch16_dinov3_qkvb"]
)
@pytest.mark.parametrize("pool", ["token", "avg"])
def test_dinov3_of_timms_gives_timms_logits_and_returns(name: str, pool: str, tmp_path: Path) -> None:
    theirs = save_timm(name, tmp_path / "timm", depth=2, num_classes=5, global_pool=pool, img_size=64)
    clf = load(tmp_path / "timm")
    clf.save(tmp_path / "back", "timm")
    assert_same_file(tmp_path / "timm", tmp_path / "back")
    rebuilt = timm.create_model(f"local-dir:{tmp_path / 'back'}", pretrained=True).eval()
    for grid in ((64, 64), (48, 96)):
        images = torch.rand(2, 3, *grid)
        with torch.no_grad():
            expected = theirs(images)
            assert relative(clf.model(images), expected) < 1e-5
            assert relative(rebuilt(images), expected) < 1e-6


def test_dinov3_goes_from_timm_to_transformers_and_from_there_to_timm(tmp_path: Path) -> None:
    theirs = save_timm(
        "vit_small_patch16_dinov3_qkvb", tmp_path / "timm", depth=2, global_pool="token", img_size=64, num_classes=0
    )
    notes = load(tmp_path / "timm").save(tmp_path / "hf", "huggingface")
    assert any("mask token" in note for note in notes)
    images = torch.rand(2, 3, 64, 32)
    with torch.no_grad():
        expected = theirs(images)
    assert relative(pooled(read_back(tmp_path / "hf", transformers.DINOv3ViTModel), images), expected) < 1e-5
    notes = load(tmp_path / "hf").save(tmp_path / "back", "timm")
    assert any("mask token" in note for note in notes)
    assert_same_file(tmp_path / "timm", tmp_path / "back")


@pytest.mark.parametrize(
    ("name", "mlp", "form", "key_bias", "parameters"),
    [
        ("vit_small_patch16_dinov3_qkvb", 1536, "plain", False, 21_596_160),
        ("vit_base_patch16_dinov3", 3072, "plain", True, 85_641_216),
    ],
)
def test_dinov3_has_timms_parameters(name: str, mlp: int, form: str, key_bias: bool, parameters: int) -> None:
    with torch.device("meta"):
        theirs = timm.create_model(name, num_classes=0)
    assert sum(p.numel() for p in theirs.parameters()) == parameters
    options = dict(positions="rope", registers=4, layer_scale=1e-5, qkv_bias=key_bias is False, key_bias=key_bias)
    size = {1536: "ViT-S/16", 3072: "ViT-B/16"}[mlp]
    assert cost(size, classes=0, mlp_form=form, **options).parameters == parameters


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (dict(mlp_bias=False), "mlp_bias"),
        (dict(proj_bias=False), "proj_bias"),
        (dict(query_bias=False), "queries, keys and values"),
        (dict(use_gated_mlp=True), "silu"),
    ],
)
def test_a_dinov3_that_computes_otherwise_is_refused(change: dict[str, Any], word: str, tmp_path: Path) -> None:
    save_transformers("DINOv3ViTModel", tmp_path / "hf", **change)
    with pytest.raises(VitreousError, match=word):
        load(tmp_path / "hf")


@pytest.mark.parametrize(
    ("name", "arguments", "word"),
    [
        ("eva02_tiny_patch14_224", {}, "only DINOv3"),
        ("vit_small_patch16_dinov3", dict(rope_rotate_half=False), "rope_rotate_half"),
        ("vit_small_patch16_dinov3", dict(rope_grid_offset=0.5), "rope_grid_offset"),
    ],
)
def test_eva_models_that_compute_otherwise_are_refused(name: str, arguments: dict[str, Any], word: str, tmp_path: Path) -> None:
    save_timm(name, tmp_path / "timm", depth=1, **arguments)
    with pytest.raises(VitreousError, match=word):
        load(tmp_path / "timm")


def test_a_dinov3_with_a_head_goes_to_timm_and_not_to_transformers(tmp_path: Path) -> None:
    save_transformers("DINOv3ViTModel", tmp_path / "hf", num_register_tokens=4)
    clf = load(tmp_path / "hf", classes=3)
    with pytest.raises(VitreousError, match="a head, to be kept in timm's format"):
        clf.save(tmp_path / "x", "huggingface")
    clf.save(tmp_path / "timm", "timm")
    randomise(clf.model.head)
    images = torch.rand(1, 3, 32, 32)
    assert load(tmp_path / "timm").model(images).shape == (1, 3)


def test_the_preprocessing_of_dinov3_is_read_and_gives_its_pixels(tmp_path: Path) -> None:
    save_transformers("DINOv3ViTModel", tmp_path / "hf", num_register_tokens=4)
    assert str(load(tmp_path / "hf").preprocess) == "resize(32,bilinear)|normalise(imagenet)"
    assert load(tmp_path / "hf").checkpoint.preprocess_guessed
    processor = transformers.DINOv3ViTImageProcessor(size={"height": 40, "width": 40})
    processor.save_pretrained(tmp_path / "hf")
    clf = load(tmp_path / "hf")
    assert str(clf.preprocess) == "resize(40,bilinear)|normalise(imagenet)"
    assert not clf.checkpoint.preprocess_guessed
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (97, 60, 3), dtype=np.uint8))
    expected = processor(image, return_tensors="pt")["pixel_values"][0]
    # It resizes before rounding to 8 bits, Pillow rounds after each axis: one level of 255, over the smallest deviation.
    assert float((clf.prepare(image)[0] - expected).abs().max()) < 1 / 255 / 0.224


# CLIP and SigLIP ------------------------------------------------------------------------------------------------------

TOWERS: dict[str, tuple[str, dict[str, Any]]] = {
    "clip": ("CLIPVisionModel", {}),
    "clip, erf": ("CLIPVisionModel", dict(hidden_act="gelu", layer_norm_eps=1e-3)),
    "siglip": ("SiglipVisionModel", {}),
    "siglip, quick": ("SiglipVisionModel", dict(hidden_act="quick_gelu", layer_norm_eps=1e-3)),
}
TEXT = dict(hidden_size=48, num_hidden_layers=1, num_attention_heads=3, intermediate_size=64, vocab_size=100)


@pytest.mark.parametrize("case", TOWERS)
def test_a_towers_features_are_transformers_pooler_output_there_and_back(case: str, tmp_path: Path) -> None:
    kind, options = TOWERS[case]
    theirs = save_transformers(kind, tmp_path / "hf", **options)
    clf = load(tmp_path / "hf")
    assert sum(p.numel() for p in clf.model.parameters()) == sum(p.numel() for p in theirs.parameters())
    clf.save(tmp_path / "ours")
    load(tmp_path / "ours").save(tmp_path / "back", "huggingface")
    rebuilt = read_back(tmp_path / "back", getattr(transformers, kind))
    assert all(torch.equal(rebuilt.state_dict()[name], tensor) for name, tensor in theirs.state_dict().items())
    for grid in GRIDS:
        images = torch.rand(2, 3, *grid) * 2 - 1
        expected = pooled(theirs, images, interpolate_pos_encoding=True)
        assert relative(clf.features(images), expected) < 1e-5
        assert relative(load(tmp_path / "back", image_size=grid).features(images), expected) < 1e-5


@pytest.mark.parametrize("family", ["CLIP", "Siglip"])
def test_a_tower_is_read_from_the_file_of_both_and_the_rest_is_noted(family: str, tmp_path: Path) -> None:
    config = getattr(transformers, f"{family}Config")(text_config=TEXT, vision_config=TINY)
    theirs = getattr(transformers, f"{family}Model")(config).eval()
    randomise(theirs.vision_model)
    theirs.save_pretrained(tmp_path / "hf")  # type: ignore[operator]
    clf = load(tmp_path / "hf")
    images = torch.rand(2, 3, 32, 32)
    assert relative(clf.features(images), pooled(theirs.vision_model, images)) < 1e-5  # type: ignore[arg-type]
    (note,) = [note for note in clf.notes if note.startswith("left out")]
    assert "text_model" in note
    assert "vision_model" not in note


def test_clips_projection_is_left_out_and_noted(tmp_path: Path) -> None:
    config = transformers.CLIPVisionConfig(**TINY, projection_dim=24)
    theirs = randomise(transformers.CLIPVisionModelWithProjection(config)).eval()
    theirs.save_pretrained(tmp_path / "hf")  # type: ignore[operator]
    clf = load(tmp_path / "hf")
    assert "left out: visual_projection.weight" in clf.notes
    images = torch.rand(2, 3, 32, 32)
    with torch.no_grad():
        embeds = theirs(images).image_embeds
        assert relative(theirs.visual_projection(clf.features(images)), embeds) < 1e-5  # type: ignore[operator]


@pytest.mark.parametrize("family", ["CLIP", "Siglip"])
def test_classifiers_of_transformers_on_towers_are_refused(family: str, tmp_path: Path) -> None:
    config = getattr(transformers, f"{family}Config")(text_config=TEXT, vision_config=TINY)
    getattr(transformers, f"{family}ForImageClassification")(config).save_pretrained(tmp_path / "hf")
    with pytest.raises(VitreousError, match="classifiers on CLIP and SigLIP"):
        load(tmp_path / "hf")


def test_what_a_towers_config_leaves_out_is_transformers_default(tmp_path: Path) -> None:
    """google/siglip-base-patch16-224 says nothing but the model type of its vision tower."""
    options = dict(num_hidden_layers=12, num_attention_heads=12, hidden_size=768, intermediate_size=64)
    theirs = save_transformers("SiglipVisionModel", tmp_path / "hf", **{**options, "patch_size": 16, "image_size": 224})
    short = dict(model_type="siglip", vision_config=dict(model_type="siglip_vision_model"))
    (tmp_path / "hf" / "config.json").write_text(json.dumps(short))
    images = torch.rand(1, 3, 224, 224)
    assert relative(load(tmp_path / "hf").features(images), pooled(theirs, images)) < 1e-5


HALF = [0.5] * 3
CLIP_MEAN = "0.48145466,0.4578275,0.40821073,0.26862954,0.26130258,0.27577711"


@pytest.mark.parametrize(
    ("kind", "said", "expected"),
    [
        ("CLIPVisionModel", {}, f"resize_small(32,bicubic,floor)|central_crop(32)|normalise({CLIP_MEAN})"),
        (
            "CLIPVisionModel",  # as openai/clip-vit-base-patch32 says it
            dict(feature_extractor_type="CLIPFeatureExtractor", size=40, crop_size=32, do_center_crop=True),
            "resize_small(40,bicubic,floor)|central_crop(32)|normalise(0.1,0.2,0.3,0.4,0.5,0.6)",
        ),
        ("SiglipVisionModel", {}, "resize(32,bicubic)|range(-1,1)"),
        (
            "SiglipVisionModel",
            dict(
                image_processor_type="SiglipImageProcessor",
                size=dict(height=40, width=40),
                image_mean=[0.5] * 3,
                image_std=[0.5] * 3,
            ),
            "resize(40,bicubic)|range(-1,1)",
        ),
    ],
)
def test_the_preprocessing_of_towers(kind: str, said: dict[str, Any], expected: str, tmp_path: Path) -> None:
    save_transformers(kind, tmp_path / "hf")
    if said:
        values = dict(resample=3, image_mean=[0.1, 0.2, 0.3], image_std=[0.4, 0.5, 0.6])
        (tmp_path / "hf" / "preprocessor_config.json").write_text(json.dumps({**values, **said}))
    clf = load(tmp_path / "hf")
    assert str(clf.preprocess) == expected
    assert clf.checkpoint.preprocess_guessed == (not said)


@pytest.mark.parametrize(
    "name",
    [
        "vit_base_patch32_clip_224",
        "vit_base_patch32_clip_quickgelu_224",
        "vit_base_patch16_siglip_224",
        "vit_so400m_patch16_siglip_256",
    ],
)
def test_a_tower_of_timms_gives_timms_logits_and_returns(name: str, tmp_path: Path) -> None:
    options = dict(embed_dim=64, num_heads=2, depth=2, num_classes=5, img_size=64)
    theirs = save_timm(name, tmp_path / "timm", **options)
    clf = load(tmp_path / "timm")
    clf.save(tmp_path / "back", "timm")
    assert_same_file(tmp_path / "timm", tmp_path / "back")
    images = torch.rand(2, 3, 64, 64)
    larger = timm.create_model(name, **{**options, "img_size": 96}).eval()
    larger.load_state_dict(timm.models.vision_transformer.checkpoint_filter_fn(theirs.state_dict(), larger))
    rebuilt = timm.create_model(f"local-dir:{tmp_path / 'back'}", pretrained=True).eval()
    with torch.no_grad():
        assert relative(clf.model(images), theirs(images)) < 1e-5
        assert relative(rebuilt(images), theirs(images)) < 1e-6
        images = torch.rand(2, 3, 96, 96)
        assert relative(load(tmp_path / "timm", image_size=96).model(images), larger(images)) < 1e-5


# MAE ------------------------------------------------------------------------------------------------------------------


def test_mae_features_are_the_class_token_of_all_patches_and_the_decoder_is_noted(tmp_path: Path) -> None:
    decoder = dict(
        decoder_hidden_size=32, decoder_num_hidden_layers=1, decoder_num_attention_heads=2, decoder_intermediate_size=64
    )
    config = transformers.ViTMAEConfig(**TINY, **decoder, mask_ratio=0.0)
    theirs = randomise(transformers.ViTMAEForPreTraining(config)).eval()
    theirs.save_pretrained(tmp_path / "hf")  # type: ignore[operator]
    clf = load(tmp_path / "hf")
    assert any("decoder" in note for note in clf.notes if note.startswith("left out"))
    for grid in GRIDS:
        images = torch.rand(2, 3, *grid)
        with torch.no_grad():
            expected = theirs.vit(images, interpolate_pos_encoding=True).last_hidden_state[:, 0]  # type: ignore[operator]
        assert relative(clf.features(images), expected) < 1e-5
    clf.save(tmp_path / "back", "huggingface")
    rebuilt = transformers.ViTModel.from_pretrained(tmp_path / "back", add_pooling_layer=False).eval()
    with torch.no_grad():
        images = torch.rand(2, 3, 32, 32)
        assert relative(rebuilt(images).last_hidden_state[:, 0], clf.features(images)) < 1e-5


# Others -------------------------------------------------------------------------------------------------------------

LOOKALIKES: dict[str, dict[str, Any]] = {
    "Siglip2VisionModel": dict(num_patches=16),
    "MetaClip2VisionModel": {},
    "ChineseCLIPVisionModel": {},
    "BlipVisionModel": {},
    "IJepaModel": {},
    "ViTMSNModel": {},
    "BeitModel": {},
    "Aimv2VisionModel": {},
    "PixtralVisionModel": {},
}


@pytest.mark.parametrize("kind", LOOKALIKES)
def test_models_with_similar_arrays_that_compute_otherwise_are_refused_by_name(kind: str, tmp_path: Path) -> None:
    theirs = save_transformers(kind, tmp_path / "hf", **LOOKALIKES[kind])
    with pytest.raises(VitreousError, match=f"'{theirs.config.model_type}'"):  # type: ignore[union-attr]
        load(tmp_path / "hf")


# Rotary positions ---------------------------------------------------------------------------------------------------


def test_rotary_models_of_ours_are_exported_or_refused_by_name(tmp_path: Path) -> None:
    options: dict[str, Any] = dict(image_size=32, depth=1, classes=3, positions="rope", norm_eps=1e-5, activation="gelu-erf")
    clf = Classifier(random_checkpoint("ViT-Ti/16", key_bias=False, **options))
    clf.save(tmp_path / "timm", "timm")
    images = torch.rand(1, 3, 32, 48)
    theirs = timm.create_model(f"local-dir:{tmp_path / 'timm'}", pretrained=True).eval()
    with torch.no_grad():
        assert relative(theirs(images), clf.model(images)) < 1e-5
        assert relative(load(tmp_path / "timm").model(images), clf.model(images)) < 1e-6
    keyed = Classifier(random_checkpoint("ViT-Ti/16", **options))
    for format, word in (("timm", "a bias on keys"), ("huggingface", "a head"), ("official", "rope positions")):
        with pytest.raises(VitreousError, match=word):
            keyed.save(tmp_path / ("x.npz" if format == "official" else "x"), format)  # type: ignore[arg-type]
