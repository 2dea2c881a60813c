"""Fresh weights are drawn as in the authors' code (the facts' section 1.2)."""

from __future__ import annotations

import math

import pytest
import torch

from vitreous.models.build import create

MODEL = create("ViT-B/16", depth=1, representation=True, classes=10, head_bias=-10.0)
STATE = MODEL.state_dict()


def std(name: str) -> float:
    return float(STATE[name].double().std())


def test_zero_and_one() -> None:
    for name in (
        "class_token",
        "head.weight",
        "embedding.bias",
        "blocks.0.attention.qkv.bias",
        "representation.bias",
        "norm.bias",
    ):
        assert not STATE[name].any(), name
    assert (STATE["norm.weight"] == 1).all()
    assert (STATE["head.bias"] == -10).all()


def test_lecun_normal_is_truncated_and_keeps_its_variance() -> None:
    for name, fan_in in (("embedding.weight", 16 * 16 * 3), ("representation.weight", 768)):
        expected = 1 / math.sqrt(fan_in)
        assert std(name) == pytest.approx(expected, rel=0.01)
        assert float(STATE[name].abs().max()) <= 2 * expected / 0.87962566 * (1 + 1e-6)


def test_q_k_v_are_three_xavier_matrices() -> None:
    bound = math.sqrt(6 / (768 + 768))
    for matrix in STATE["blocks.0.attention.qkv.weight"].chunk(3):
        assert float(matrix.abs().max()) == pytest.approx(bound, rel=1e-3)
        assert float(matrix.std()) == pytest.approx(bound / math.sqrt(3), rel=0.01)
    assert float(STATE["blocks.0.attention.out.weight"].abs().max()) == pytest.approx(bound, rel=1e-3)


def test_mlp() -> None:
    bound = math.sqrt(6 / (768 + 3072))
    assert float(STATE["blocks.0.mlp.up.weight"].abs().max()) == pytest.approx(bound, rel=1e-3)
    assert std("blocks.0.mlp.up.bias") == pytest.approx(1e-6, rel=0.1)


def test_positions() -> None:
    assert std("positions.0.table") == pytest.approx(0.02, rel=0.02)


def test_a_fresh_hybrid_unit_of_the_post_form_is_the_identity_branch() -> None:
    model = create("R26x1", form="post", classes=3)
    units = [unit for stage in model.trunk.stages for unit in stage]
    assert all(not unit.norm3.weight.any() for unit in units)
    assert all((unit.norm1.weight == 1).all() for unit in units)


def test_the_seed_decides() -> None:
    draws = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        draws.append(create("ViT-Ti/16", depth=1).blocks[0].mlp.up.weight)
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])
