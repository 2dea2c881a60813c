"""A lean model leaves out of its last layer what nobody reads; logits, features and gradients must not notice."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from vitreous.models.build import create
from vitreous.models.vit import ViT


def _model(**options: Any) -> ViT:
    small: dict[str, Any] = dict(width=24, depth=3, heads=3, mlp=48, patch=4, image_size=16, classes=5)
    model = create("ViT-B/16", **(small | options))
    assert isinstance(model, ViT)
    for parameter in model.parameters():  # heads, biases and tokens too, or zeros would hide a difference
        torch.nn.init.normal_(parameter, std=0.2)
    return model.double()


def _run(model: ViT, images: Tensor, lean: bool) -> list[Tensor]:
    model.lean = lean
    model.zero_grad()
    torch.manual_seed(3)  # stochastic depth draws the same
    logits = model(images)
    (logits**2).sum().backward()
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    return [logits, model.features(images), *gradients]


@pytest.mark.parametrize(
    ("options", "leaner"),
    [
        ({}, True),
        (dict(representation=8, layer_scale=0.5, registers=2), True),
        (dict(positions="relative"), True),
        (dict(positions="rope", key_bias=False), True),
        (dict(positions="relative", position_placement="shared"), True),
        (dict(positions="1d", position_placement="every"), True),
        (dict(distillation_token=True, distillation_head=True), True),
        (dict(norm_after_pool=True), True),
        (dict(stochastic_depth=0.5), True),
        (dict(mlp_form="swiglu"), True),
        (dict(depth=1), True),
        (dict(pool="gap"), False),
        (dict(pool="token+mean"), False),
        (dict(pool="map", class_token=False), False),
        (dict(attention="axial", pool="gap", class_token=False), False),
    ],
    ids=str,
)
def test_lean_changes_the_work_and_nothing_else(options: dict[str, Any], leaner: bool) -> None:
    model = _model(**options).train()
    images = torch.randn(3, 3, 16, 16, dtype=torch.float64)
    whole, lean = _run(model, images, False), _run(model, images, True)
    assert len(whole) == len(lean) > 10
    for one, other in zip(whole, lean, strict=True):
        torch.testing.assert_close(other, one, rtol=1e-9, atol=1e-11)

    def work(lean: bool) -> int:
        model.lean = lean
        with FlopCounterMode(display=False) as counter:
            model(images).sum().backward()
        return counter.get_total_flops()

    assert (work(True) < work(False)) == leaner


def test_a_lean_model_still_gives_all_its_tokens() -> None:
    model = _model().eval()
    model.lean = True
    assert model.tokens(torch.randn(2, 3, 16, 16, dtype=torch.float64)).shape == (2, 17, 24)


def test_a_lean_model_spares_three_quarters_of_its_last_layer() -> None:
    """Of 12 D^2 multiply-adds for a token, q, k and v (3 D^2) remain; the fused attention of CPUs is not in torch's count."""
    model = create("ViT-B/16", width=24, depth=1, heads=3, mlp=96, patch=4, image_size=16, classes=5).eval()
    assert isinstance(model, ViT)
    images, found = torch.randn(1, 3, 16, 16), {}
    for lean in (False, True):
        model.lean = lean
        with FlopCounterMode(display=False) as counter:
            model(images)
        found[lean] = counter.get_total_flops() // 2
    assert found[False] - found[True] == 9 * 24**2 * 16  # all tokens but one of 17
