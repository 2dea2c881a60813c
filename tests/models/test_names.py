"""The grammar of names, and what happens to those that are not in it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from vitreous.core.errors import VitreousError
from vitreous.models.build import build_on_meta, create
from vitreous.models.config import ResNetConfig, ViTConfig, config_from_json, config_to_json
from vitreous.models.names import KNOWN, SIZES, UNITS, name_resnet, name_vit, parse_name
from vitreous.models.vit import ViT


@pytest.mark.parametrize("name", KNOWN)
def test_a_config_is_described_by_the_name_it_came_from(name: str) -> None:
    config = parse_name(name)
    assert (name_vit(config) if isinstance(config, ViTConfig) else name_resnet(config)) == name
    assert config_from_json(config_to_json(config)) == config


@given(st.sampled_from(sorted(SIZES)), st.integers(1, 32), st.integers(1, 6), st.integers(1, 6))
def test_any_patch_and_any_grid(size: str, patch: int, rows: int, columns: int) -> None:
    config = parse_name(f"ViT-{size}/{patch}", image_size=(rows * patch, columns * patch), classes=3)
    assert isinstance(config, ViTConfig)
    assert config.grid == (rows, columns)


@pytest.mark.parametrize("depth", UNITS)
@pytest.mark.parametrize("width", [1, 2, 3, 4])
def test_every_resnet(depth: int, width: int) -> None:
    config = parse_name(f"R{depth}x{width}")
    assert isinstance(config, ResNetConfig)
    assert (config.form, config.width, config.units) == ("pre", 64 * width, UNITS[depth])
    assert parse_name(f"R{depth}x{width}", form="post").form == "post"  # type: ignore[union-attr]


def test_both_ways_of_forming_the_sequence() -> None:
    stage4, stage3 = parse_name("R50+ViT-B/32"), parse_name("R50+ViT-B/16")
    assert isinstance(stage4, ViTConfig)
    assert isinstance(stage3, ViTConfig)
    assert stage4.trunk is not None
    assert stage3.trunk is not None
    assert (stage4.trunk.units, stage4.trunk.out_channels) == ((3, 4, 6, 3), 2048)
    assert (stage3.trunk.units, stage3.trunk.out_channels) == ((3, 4, 9), 1024)
    assert stage3.grid == (14, 14)
    assert stage4.grid == (7, 7)


@pytest.mark.parametrize(
    ("name", "stem", "patch"), [("C4x32+ViT-256x4/8", (32, 64, 128, 256), 1), ("C2x16+ViT-Ti/4", (16, 32), 2)]
)
def test_a_stem_of_convolutions(name: str, stem: tuple[int, ...], patch: int) -> None:
    config = parse_name(name, image_size=32, classes=10)
    assert isinstance(config, ViTConfig)
    assert (config.name, config.stem, config.patch) == (name, stem, (patch, patch))
    assert config.grid == (32 // int(name.rpartition("/")[2]),) * 2
    assert config_from_json(config_to_json(config)) == config
    with pytest.raises(VitreousError, match="4 convolutions halve 3 times; /12 must be a multiple of 8"):
        parse_name("C4x32+ViT-256x4/12")
    with pytest.raises(VitreousError, match="in groups of 16; use multiples of 16"):
        parse_name("C1x40+ViT-Ti/4")


def test_a_residual_stem() -> None:
    plain, residual = (create(f"C3x16{form}+ViT-64x2/4", image_size=16, classes=10) for form in ("", "r"))
    assert residual.config.name == "C3x16r+ViT-64x2/4"
    assert config_from_json(config_to_json(residual.config)) == residual.config
    more = sum(map(torch.numel, residual.parameters())) - sum(map(torch.numel, plain.parameters()))
    assert more == sum(9 * channels**2 + 2 * channels for channels in (32, 64))  # a kernel without bias, and a norm
    with pytest.raises(VitreousError, match="a residual stem needs two convolutions"):
        parse_name("C1x16r+ViT-64x2/4")
    # Beside kernels of zeros a skip connection changes nothing.
    images = torch.randn(2, 3, 16, 16)
    with torch.no_grad():
        for convolution in residual.trunk.residual_convolutions:
            convolution.weight.zero_()
        plain.load_state_dict({name: residual.state_dict()[name] for name in plain.state_dict()})
        assert torch.equal(plain.features(images), residual.features(images))


def test_overrides() -> None:
    model = create("ViT-B/16", width=24, depth=3, heads=4, mlp=40, patch=8, channels=1, classes=5, image_size=(16, 24))
    config = model.config
    assert (config.width, config.depth, config.heads, config.mlp, config.patch) == (24, 3, 4, 40, (8, 8))
    assert model.embedding.weight.shape == (24, 1, 8, 8)
    assert config.grid == (2, 3)
    assert config.name == "ViT-24x3/8"  # no longer a ViT-B/16, and it does not say that it is
    assert create("ViT-B/16", patch=8, image_size=16, classes=0).config.name == "ViT-B/8"
    assert parse_name("R50x1", units=(1, 1), width=32).name == "R8x0.5"
    assert parse_name("ViT-S/16", pool="gap", classes=3).name == "ViT-S/16"


def test_a_trunk_of_ones_own() -> None:
    """For small images: two stages of two units on a narrow root, a position for every 8 pixels."""
    model = create("R+ViT-Ti/2", trunk_units=(2, 2), trunk_width=32, classes=5, image_size=64)
    config = model.config
    assert isinstance(model, ViT)
    assert (config.name, config.trunk.name, config.grid) == ("R14x0.5+ViT-Ti/8", "R14x0.5", (8, 8))
    assert model.embedding.weight.shape == (192, 256, 1, 1)
    assert model(torch.zeros(2, 3, 64, 64)).shape == (2, 5)
    assert parse_name("R+ViT-Ti/2", trunk_units=1, image_size=32).trunk.units == (1,)
    assert parse_name("R26+ViT-S/32").trunk.units == (2, 2, 2, 2)


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("ViT-B_16", {}, ["ViT-B/16"]),
        ("ViT-X/16", {}, ["unknown model", "ViT-", "list models"]),
        ("vit-b/16", {}, ["ViT-B/16"]),
        ("R51x1", {}, ["R50x1"]),
        ("R50+ViT-B/24", {}, ["/24", "multiple of 16"]),
        ("resnet50", {}, ["unknown model"]),
        ("ViT-B/16", dict(image_size=225), ["225", "224 or 240"]),
        ("ViT-B/16", dict(image_size=(224, 10)), ["width 10", "16"]),
        ("ViT-B/16", dict(image_size=0), ["0"]),
        ("ViT-B/16", dict(heads=5), ["heads", "4"]),
        ("ViT-B/16", dict(width=770), ["770", "heads"]),
        ("ViT-B/16", dict(hedas=5), ["hedas", "heads"]),
        ("ViT-B/16", dict(pool="tokn"), ["tokn", "token"]),
        ("ViT-B/16", dict(pool="token", class_token=False), ["class token", "gap"]),
        ("ViT-B/16", dict(attention="axial", pool="token", class_token=True), ["axial", "gap"]),
        ("ViT-B/16", dict(positions="relative", position_placement="stem"), ["relative", "every"]),
        ("ViT-B/16", dict(depth=0), ["depth", "between 1 and"]),
        ("ViT-B/16", dict(classes=-1), ["classes"]),
        ("ViT-B/16", dict(dropout=1.5), ["dropout", "1.5"]),
        ("ViT-B/16", dict(patch=0), ["patch"]),
        ("R50x1", dict(form="both"), ["form", "pre", "post"]),
        ("R50x1", dict(width=100), ["32", "96"]),
        ("R50x1", dict(units="34"), ["units", "whole numbers"]),
        ("R+ViT-Ti/2", dict(trunk_units=(2, "x")), ["units", "whole numbers"]),
        ("R+ViT-Ti/2", dict(trunk_width=40), ["32 groups", "width=32"]),
        ("ViT-Ti/4", dict(trunk_units=(2, 2)), ["trunk_units", "ViT-Ti/4"]),
        ("R50+ViT-B/16", dict(image_size=(230, 64)), []),
    ],
)
def test_a_wrong_name_or_size_says_what_is_right(name: str, options: dict[str, Any], words: list[str]) -> None:
    if not words:  # a hybrid's trunk pads, so that sizes between multiples are possible
        assert parse_name(name, **options).grid == (15, 4)  # type: ignore[union-attr]
        return
    with pytest.raises(VitreousError) as caught:
        build_on_meta(parse_name(name, **options))
    assert all(word in str(caught.value) for word in words), str(caught.value)


@pytest.mark.parametrize(
    "change", [dict(kind="mlp"), dict(wdith=3), dict(width="3"), dict(width=True), dict(image_size=[1, 2, 3]), dict(depth=2.5)]
)
def test_json_with_a_wrong_field_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(VitreousError):
        config_from_json({**config_to_json(parse_name("ViT-Ti/16")), **change})
