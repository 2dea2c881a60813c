"""Every ViT, DeiT, hybrid and BiT of timm, by structure: read as timm builds it, or refused; never something else.

Small numeric differences (another GELU, other heads) hide below any tolerance on logits, so the parts themselves are
compared: timm builds each model without memory, and its names and shapes alone are given to our reader.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import timm
import torch
from torch import nn

from vitreous.core.errors import VitreousError
from vitreous.models.config import ResNetConfig, ViTConfig
from vitreous.weights import timm as reader
from vitreous.weights.arrays import Arrays

FAMILIES = ["vit_*", "deit*", "flexivit*", "beit*", "eva*", "test_vit*", "resnetv2_*"]
# Too slow to lay out one by one: towers of more than a billion parameters.
NAMES = [
    name
    for name in timm.list_models(FAMILIES)
    if not any(word in name for word in ("enormous", "_7b", "gigantic", "eva02_enorm"))
]


def shapes_of(model: nn.Module) -> Arrays:
    """Names and shapes without data."""

    def read(name: str) -> torch.Tensor:
        raise AssertionError("data is not needed to recognise a model")

    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    return Arrays(Path("folder/model.safetensors"), shapes, read)


def activation(module: nn.Module) -> str:
    kind = type(module).__name__
    if kind == "GELU":
        return "gelu-tanh" if getattr(module, "approximate", "none") == "tanh" else "gelu-erf"
    return {"GELUTanh": "gelu-tanh", "QuickGELU": "gelu-quick", "SiLU": "silu"}.get(kind, kind)


def read(name: str) -> tuple[nn.Module, ViTConfig | ResNetConfig] | None:
    with torch.device("meta"):
        try:
            model = timm.create_model(name)
        except (RuntimeError, NotImplementedError, AssertionError):  # a few cannot be laid out without memory
            return None
    try:
        found = reader.recognise(shapes_of(model), {"architecture": name})
    except VitreousError as error:
        assert "\n" not in str(error)
        return None
    if found is None or any(theirs not in found.arrays.shapes for rule in found.rules for theirs in rule.theirs):
        return None  # a tensor is missing, which read_tensors refuses
    return model, found.checkpoint.config


# In slices, so that the test processes share the work.
@pytest.mark.parametrize("part", range(8))
def test_every_architecture_is_read_as_built_or_refused(part: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # Drawing values that nothing holds would take three quarters of the time.
    monkeypatch.setattr("timm.layers.weight_init._trunc_normal_", lambda tensor, *rest: tensor)
    known = 0
    for name in NAMES[part::8]:
        pair = read(name)
        if pair is None:
            continue
        known += 1
        model, config = pair
        if isinstance(config, ResNetConfig):
            assert name.endswith("_bit"), name
            continue
        block = model.blocks[0]
        assert type(block).__name__ == ("EvaBlock" if config.positions == "rope" else "Block"), name
        assert (getattr(model, "rope", None) is not None) == (config.positions == "rope"), name
        assert block.attn.num_heads == config.heads, name
        assert activation(block.mlp.act) == ("silu" if config.mlp_form == "swiglu" else config.activation), name
        assert block.norm1.eps == config.norm_eps, name
        assert {"token": "token", "avg": "gap", "map": "map"}[model.global_pool] == config.pool, name
        assert not getattr(model, "pool_include_prefix", False), name
        assert isinstance(model.norm_pre, nn.LayerNorm) == config.embedding_norm, name
        if config.pool == "map":
            assert activation(model.attn_pool.mlp.act) == config.activation, name
            assert model.attn_pool.num_heads == config.heads, name
        assert config.grid == tuple(model.patch_embed.grid_size), name
        assert config.prefix_tokens == model.num_prefix_tokens, name
        if config.trunk is not None:
            assert model.patch_embed.backbone.__class__.__name__ in ("ResNetV2", "Sequential"), name
    assert known >= 5
