"""AxialResNet against loops over single positions, formulas of its sizes, and its way through every command's machinery."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import vitreous
from vitreous.core.errors import VitreousError
from vitreous.core.progress import silence
from vitreous.inspection.attention_rollout import class_activation
from vitreous.models.axial import AxialBlock
from vitreous.models.axial_resnet import AxialAttention, AxialResNet, RowAttention
from vitreous.models.build import create
from vitreous.models.config import AxialResNetConfig
from vitreous.models.cost import cost
from vitreous.models.names import UNITS
from vitreous.weights.checkpoint import Checkpoint
from vitreous.weights.transfer import adapt
from vitreous.weights.write import save_checkpoint

from conftest import randomise, relative

TINY: dict[str, Any] = dict(units=(1, 2), width=32, image_size=(20, 28), classes=5)


def tiny(**options: Any) -> AxialResNet:
    model = create("AxialR26x1", **{**TINY, **options})
    assert isinstance(model, AxialResNet)
    randomise(model)
    return model.eval()


def normalise(x: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-4) -> Tensor:
    """Group norm of one map (C, rows, columns), 32 groups."""
    groups = x.reshape(32, -1)
    mean, variance = groups.mean(1, keepdim=True), groups.var(1, unbiased=False, keepdim=True)
    return ((groups - mean) / (variance + eps).sqrt()).reshape(x.shape) * weight[:, None, None] + bias[:, None, None]


def attend_by_hand(layer: RowAttention, image: Tensor) -> Tensor:
    """The module docstring's equations for one map (C, R, N), one head, row and position at a time."""
    state = {name: value.detach() for name, value in layer.named_parameters()}
    channels, rows, n = image.shape
    heads, wide = layer.heads, channels // layer.heads
    half = wide // 2
    qkv = torch.einsum("oc,crn->orn", state["qkv.weight"][:, :, 0, 0], image)
    qkv = normalise(qkv, state["qkv_norm.weight"], state["qkv_norm.bias"])
    tables = [state[f"{what}_positions.table"] for what in ("query", "key", "value")]
    out = torch.zeros_like(image)
    for head in range(heads):
        own = qkv[head * 2 * wide : (head + 1) * 2 * wide]
        for row in range(rows):
            q, k, v = own[:half, row].T, own[half:wide, row].T, own[wide:, row].T
            for i in range(n):
                logits = [q[i] @ k[j] + q[i] @ tables[0][i - j + n - 1] + k[j] @ tables[1][j - i + n - 1] for j in range(n)]
                weights = (torch.stack(logits) / math.sqrt(half)).softmax(0)
                mixed = sum(weights[j] * (v[j] + tables[2][i - j + n - 1]) for j in range(n))
                out[head * wide : (head + 1) * wide, row, i] = mixed
    return normalise(out, state["norm.weight"], state["norm.bias"])


@pytest.mark.parametrize("stride", [1, 2])
def test_attention_along_rows_then_columns_by_hand(stride: int) -> None:
    config = create("AxialR26x1", **TINY).config
    assert isinstance(config, AxialResNetConfig)
    layer = AxialAttention(config, 32 * stride, stride).double()  # in stage 1 or at the start of stage 2: 5 x 7 positions
    randomise(layer)
    maps = torch.randn(2, 32 * stride, 5, 7, dtype=torch.float64)
    found = layer(maps).detach()
    for one, image in zip(found, maps, strict=True):
        by_row = attend_by_hand(layer.rows, image)
        expected = attend_by_hand(layer.columns, by_row.transpose(1, 2)).transpose(1, 2)
        if stride == 2:  # means of squares, at the odd edges of what there is
            cells = [[expected[:, r : r + 2, c : c + 2].mean(dim=(1, 2)) for c in range(0, 7, 2)] for r in range(0, 5, 2)]
            expected = torch.stack([torch.stack(row, dim=1) for row in cells], dim=1)
        assert relative(one, expected) < 1e-10


def test_a_unit_is_the_bottleneck_of_a_resnet_around_it() -> None:
    model = tiny()
    unit = model.trunk.stages[1][0]  # type: ignore[index]
    x = torch.randn(2, 128, 5, 7)
    shortcut = unit.shortcut_norm(unit.shortcut(x))
    y = F.relu(unit.norm1(unit.conv1(x)))
    y = F.relu(unit.conv2(y))
    assert y.shape == (2, 64, 3, 4)
    y = unit.norm3(unit.conv3(y))
    assert torch.equal(unit(x), F.relu(shortcut + y))


def test_the_axial_vit_is_rows_with_an_mlp_then_columns_with_an_mlp() -> None:
    """Appendix D.6: two attentions and two MLPs in a block, by loops over rows and over columns."""
    model = randomise(
        create("ViT-B/16", attention="axial", width=24, depth=1, heads=3, mlp=48, patch=4, image_size=(12, 16), classes=5)
    ).eval()
    block = model.blocks[0]
    assert isinstance(block, AxialBlock)
    z, grid = model.embed(torch.randn(2, 3, 12, 16))
    assert grid == (3, 4)
    expected = z.reshape(2, 3, 4, 24).clone()
    for row in range(3):
        expected[:, row] = block.rows(expected[:, row])  # an ordinary layer, equations (2) and (3), on a row's tokens
    for column in range(4):
        expected[:, :, column] = block.columns(expected[:, :, column])
    assert relative(block(z, grid), expected.reshape(2, 12, 24)) < 1e-6
    assert block.rows.mlp is not block.columns.mlp


def expected_sizes(units: tuple[int, ...], width: int, image: tuple[int, int], classes: int) -> tuple[int, int]:
    """Parameters and multiply-adds, layer by layer from the formulas; 8 heads, 3 channels."""

    def shrink(size: tuple[int, int]) -> tuple[int, int]:
        return math.ceil(size[0] / 2), math.ceil(size[1] / 2)

    half = shrink(image)
    parameters, macs = 147 * width + 2 * width, 147 * width * half[0] * half[1]
    size, inputs = shrink(half), width
    for stage, count in enumerate(units):
        c = width * 2**stage
        for index in range(count):
            area = size[0] * size[1]
            after = shrink(size) if stage and not index else size
            parameters += inputs * c + 2 * c
            macs += inputs * c * area
            for n in size:  # a row has as many positions as there are columns, and the other way about
                k = c // 8
                parameters += 2 * c * c + 4 * c + 2 * c + (2 * n - 1) * (k // 2 + k // 2 + k)
                products = n * k // 2 + 2 * (2 * n - 1) * k // 2 + 2 * n * k  # q k; q r, k r for all offsets; A v, A r
                macs += area * (2 * c * c + 8 * products)
            size = after
            parameters += 4 * c * c + 8 * c
            macs += 4 * c * c * size[0] * size[1]
            if not index:
                parameters += 4 * inputs * c + 8 * c
                macs += 4 * inputs * c * size[0] * size[1]
            inputs = 4 * c
    return parameters + inputs * classes + classes, macs + inputs * classes


@pytest.mark.parametrize(
    ("name", "image", "options"),
    [
        ("AxialR50x1", (224, 224), {}),
        ("AxialR26x2", (64, 96), {}),
        ("AxialR26x1", (32, 32), dict(units=(1, 1), width=32)),
        ("AxialR26x1", (20, 28), dict(units=(1, 2), width=32)),
    ],
)
def test_parameters_and_multiply_adds(name: str, image: tuple[int, int], options: dict[str, Any]) -> None:
    found = cost(name, image, classes=10, **options)
    depth, _, times = name.removeprefix("AxialR").partition("x")
    units, width = options.get("units", UNITS[int(depth)]), options.get("width", 64 * int(times))
    assert (found.parameters, found.macs) == expected_sizes(units, width, image, 10)


def test_every_parameter_gets_a_gradient_and_a_fresh_unit_is_its_shortcut() -> None:
    fresh = create("AxialR26x1", **TINY)
    x = torch.randn(1, 256, 3, 4)
    assert torch.equal(fresh.trunk.stages[1][1](x), F.relu(x))  # type: ignore[index]
    model = tiny().train()
    model(torch.randn(3, 3, 20, 28)).square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert float(parameter.grad.abs().max()) > 0, name


def test_another_image_size_interpolates_offsets_at_their_displacement() -> None:
    """On the fly and by `adapt` alike; a table that is linear in the offset stays linear, from end to end."""
    model = tiny(image_size=32)
    for name, parameter in model.named_parameters():
        if name.endswith("positions.table"):
            parameter.data = torch.linspace(-1, 1, len(parameter))[:, None].expand_as(parameter).clone()
    given = Checkpoint(model.config, dict(model.state_dict()), preprocess="resize(32)|range(-1,1)", outputs="softmax")
    adapted = adapt(given, image_size=(48, 64))
    table = adapted.tensors["trunk.stages.0.0.conv2.rows.query_positions.table"]
    assert torch.allclose(table[:, 0], torch.linspace(-1, 1, 2 * 16 - 1), atol=1e-6)
    assert adapted.notes == ("relative positions resized for images of 48x64",)
    larger = create("AxialR26x1", **{**TINY, "image_size": (48, 64)}).eval()
    larger.load_state_dict(adapted.tensors)
    images = torch.randn(2, 3, 48, 64)
    assert relative(model(images), larger(images)) < 1e-5


def test_other_formats_refuse_it(tmp_path: Path) -> None:
    model = tiny()
    checkpoint = Checkpoint(model.config, dict(model.state_dict()), preprocess="resize(20,28)|range(-1,1)", outputs="softmax")
    for format in ("official", "timm", "huggingface"):
        with pytest.raises(VitreousError, match="no other format has axial ResNets; keep it as a vitreous checkpoint"):
            save_checkpoint(checkpoint, tmp_path / f"{format}.npz", format)  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("options", "words"),
    [(dict(heads=12), "try heads=8"), (dict(form="pre"), "form='pre': must be"), (dict(width=40), "32 groups")],
)
def test_configs_that_cannot_be(options: dict[str, Any], words: str) -> None:
    with pytest.raises(VitreousError, match=words):
        create("AxialR50x1", **options)


def test_it_is_pretrained_fine_tuned_inspected_and_predicts(tmp_path: Path) -> None:
    common: dict[str, Any] = dict(batch_size=32, workers=0, precision="float32")
    first, second = str(tmp_path / "first"), str(tmp_path / "second")
    with silence():
        vitreous.pretrain(
            "builtin:digits", "AxialR26x1", set=("model.units=1,1", "model.width=32"), steps=2, out=first, **common
        )
        vitreous.finetune("builtin:digits", from_=first, image_size=20, steps=2, out=second, **common)
    document = json.loads((tmp_path / "first/checkpoint/model.json").read_text())
    assert (document["architecture"]["kind"], document["architecture"]["name"]) == ("axial-resnet", "AxialR8x0.5")
    clf = vitreous.load(second)
    assert isinstance(clf.model, AxialResNet)
    assert clf.config.image_size == (20, 20)
    images = torch.randn(2, clf.config.channels, 20, 20)
    assert torch.allclose(clf.model(images), vitreous.load(second).model(images))
    # Of a ResNet there are class activation maps instead of attention: the mean over places is the logit without its bias.
    found = class_activation(clf.model, images, torch.tensor([3, 4]))
    logits = clf.model(images).detach()[[0, 1], [3, 4]] - clf.model.head.bias.detach()[[3, 4]]  # type: ignore[union-attr, index]
    assert torch.allclose(found.mean(dim=(1, 2)), logits, atol=1e-5)
