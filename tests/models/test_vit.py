"""The parts of the ViT that no checkpoint of the authors' shows: dropout, stochastic depth, tokens, errors."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from vitreous.core.errors import VitreousError
from vitreous.models.build import create
from vitreous.models.vit import ViT

from conftest import randomise, relative

TINY: dict[str, Any] = dict(width=24, depth=2, heads=3, mlp=48, patch=4, image_size=16, classes=5)


def tiny(**options: Any) -> ViT:
    model = create("ViT-B/16", **{**TINY, **options})
    assert isinstance(model, ViT)
    randomise(model)
    return model.eval()


def test_equations_of_section_3_1_written_out() -> None:
    """One image through equations (1) to (8), one head and one token at a time, in float64."""
    model = tiny().double()
    image = torch.randn(1, 3, 16, 16, dtype=torch.float64)
    p, d, heads = 4, 24, 3
    dh = d // heads
    state = dict(model.named_parameters())
    patches = [image[0, :, r : r + p, c : c + p].reshape(-1) for r in range(0, 16, p) for c in range(0, 16, p)]
    e = state["embedding.weight"].reshape(d, -1).T  # columns of E, pixels in the order channel, row, column
    rows = [state["class_token"][0, 0]] + [x @ e + state["embedding.bias"] for x in patches]
    z = torch.stack(rows) + state["positions.0.table"]  # (1)

    def norm(x: torch.Tensor, name: str) -> torch.Tensor:
        mean, var = x.mean(-1, keepdim=True), x.var(-1, keepdim=True, unbiased=False)
        return (x - mean) / (var + 1e-6).sqrt() * state[f"{name}.weight"] + state[f"{name}.bias"]

    def gelu(x: torch.Tensor) -> torch.Tensor:
        return 0.5 * x * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3)))

    for layer in range(2):
        name = f"blocks.{layer}"
        x = norm(z, f"{name}.norm1")
        u, b = state[f"{name}.attention.qkv.weight"], state[f"{name}.attention.qkv.bias"]
        outputs = []
        for h in range(heads):
            q, k, v = (x @ u[part * d + h * dh : part * d + (h + 1) * dh].T + b[part * d + h * dh : part * d + (h + 1) * dh]
                       for part in range(3))  # (5)  # fmt: skip
            a = torch.softmax(q @ k.T / dh**0.5, dim=-1)  # (6)
            outputs.append(a @ v)  # (7)
        msa = torch.cat(outputs, dim=-1) @ state[f"{name}.attention.out.weight"].T + state[f"{name}.attention.out.bias"]  # (8)
        z = z + msa  # (2)
        hidden = gelu(norm(z, f"{name}.norm2") @ state[f"{name}.mlp.up.weight"].T + state[f"{name}.mlp.up.bias"])
        z = z + hidden @ state[f"{name}.mlp.down.weight"].T + state[f"{name}.mlp.down.bias"]  # (3)
    y = norm(z, "norm")[0]  # (4)
    expected = y @ state["head.weight"].T + state["head.bias"]
    assert relative(model(image)[0], expected) < 1e-12


def test_dropout_stands_where_the_paper_puts_it() -> None:
    """After positions, after attention's output, after GELU, after the second dense layer: and nowhere else."""
    model = tiny(dropout=0.5, representation=True).train()
    calls: list[str] = []
    for name, module in model.named_modules():
        if isinstance(module, nn.Dropout):
            module.register_forward_hook(lambda *_, name=name: calls.append(name))
    model(torch.randn(2, 3, 16, 16))
    block = ["attention.dropout", "mlp.dropout", "mlp.dropout"]
    assert calls == ["dropout"] + [f"blocks.{i}.{name}" for i in range(2) for name in block]


def test_attention_dropout_acts_only_in_training() -> None:
    model = tiny(attention_dropout=0.5)
    images = torch.randn(2, 3, 16, 16)
    assert torch.equal(model(images), model(images))
    model.train()
    assert not torch.equal(model(images), model(images))


def test_stochastic_depth_drops_whole_images_and_grows_with_depth() -> None:
    model = tiny(depth=5, stochastic_depth=0.4)
    assert [block.skip.rate for block in model.blocks] == pytest.approx([0.0, 0.1, 0.2, 0.3, 0.4])
    skip = model.blocks[4].skip.train()
    out = skip(torch.ones(4000, 3, 2), 4000)
    per_image = out.flatten(1)
    assert ((per_image == per_image[:, :1]).all(dim=1)).all()  # an image is kept whole or dropped whole
    assert out.unique().tolist() == pytest.approx([0.0, 1 / 0.6])
    assert float(out.mean()) == pytest.approx(1.0, abs=0.05)
    assert torch.equal(skip.eval()(torch.ones(3, 2), 3), torch.ones(3, 2))


@pytest.mark.parametrize("pool", ["token", "gap", "map", "token+mean"])
def test_pooling(pool: str) -> None:
    model = tiny(pool=pool, class_token=pool.startswith("token"))
    z = model.norm(model.tokens(torch.randn(2, 3, 16, 16)))
    prefix = model.prefix_tokens
    means = {"token": z[:, 0], "gap": z.mean(dim=1), "token+mean": torch.cat([z[:, 0], z[:, prefix:].mean(dim=1)], dim=1)}
    if pool in means:
        assert torch.allclose(model.pooled(z), means[pool])
    assert model.pooled(z).shape == (2, model.config.pooled_width)


def test_leading_tokens_are_counted_and_left_out_of_the_mean() -> None:
    model = tiny(pool="gap", class_token=True, registers=2, position_prefix=1)
    assert model.prefix_tokens == 3
    z = model.tokens(torch.randn(1, 3, 16, 16))
    assert z.shape[1] == 3 + 16
    assert torch.allclose(model.pooled(z), z[:, 3:].mean(dim=1))


def test_registers_get_no_position() -> None:
    model = tiny(registers=2, position_prefix=1)
    with torch.no_grad():
        model.registers.zero_()
        model.class_token.zero_()
    z, _ = model.embed(torch.zeros(1, 3, 16, 16))
    assert torch.equal(z[0, 1:3], torch.zeros(2, 24))
    assert torch.equal(z[0, 0], model.positions[0].table[0])


def test_representation_layer_is_tanh_of_a_dense_layer() -> None:
    model = tiny(representation=7)
    bare = model.pooled(model.norm(model.tokens(images := torch.randn(2, 3, 16, 16))))
    expected = torch.tanh(bare @ model.representation.weight.T + model.representation.bias)
    assert torch.allclose(model.features(images), expected)


def test_another_image_size_interpolates_positions_on_the_fly() -> None:
    model = tiny()
    assert model(torch.randn(1, 3, 24, 32)).shape == (1, 5)


@pytest.mark.parametrize(
    ("shape", "words"),
    [((1, 3, 15, 16), ["height 15", "12 or 16"]), ((1, 1, 16, 16), ["3 channels", "1"]), ((3, 16, 16), ["4 axes"])],
)
def test_wrong_images_are_named(shape: tuple[int, ...], words: list[str]) -> None:
    with pytest.raises(VitreousError) as caught:
        tiny()(torch.zeros(shape))
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_masking_needs_a_mask_token() -> None:
    mask = torch.ones(1, 16, dtype=torch.bool)
    with pytest.raises(VitreousError, match="mask_token=True"):
        tiny().tokens(torch.zeros(1, 3, 16, 16), mask)
    model = tiny(mask_token=True)
    everything_hidden = [model.tokens(torch.randn(1, 3, 16, 16), mask) for _ in range(2)]
    assert torch.equal(*everything_hidden)


def test_the_models_of_the_paper_run() -> None:
    images = torch.randn(1, 3, 64, 64)
    for name in ("R+ViT-Ti/16", "R26+ViT-S/32", "R50+ViT-B/16"):
        model = create(name, image_size=64, depth=1, classes=3).eval()
        with torch.no_grad():
            assert model(images).shape == (1, 3)
            assert model.features(images).shape == (1, model.config.width)
    for form in ("pre", "post"):
        model = create("R26x1", image_size=64, classes=3, form=form).eval()
        with torch.no_grad():
            assert model(images).shape == (1, 3)


def test_stochastic_depth_of_axial_attention_drops_whole_images() -> None:
    model = tiny(attention="axial", pool="gap", depth=2, stochastic_depth=0.5).train()
    kept: list[torch.Tensor] = []
    block = model.blocks[1]
    for part in (block.rows, block.columns):
        part.skip.register_forward_hook(lambda _, inputs, out: kept.append((out != 0).flatten(1).any(dim=1)))
    model(torch.randn(8, 3, 16, 16))
    assert len(kept) == 4
    for mask in kept:
        per_image = mask.view(8, -1)
        assert (per_image == per_image[:, :1]).all()
    assert any(not mask.all() for mask in kept)


@pytest.mark.parametrize(
    "options", [{}, dict(pool="gap"), dict(registers=2), dict(positions="relative"), dict(positions="rope")]
)
def test_a_model_exports_with_any_number_of_images(options: dict[str, Any]) -> None:
    model = tiny(**options)
    images = torch.randn(2, 3, 16, 16)
    program = torch.export.export(model, (images,), dynamic_shapes=({0: torch.export.Dim("images", min=1, max=64)},))
    more = torch.randn(5, 3, 16, 16)
    assert relative(program.module()(more), model(more)) < 1e-5


def test_made_in_inference_mode_a_model_can_still_be_trained() -> None:
    with torch.inference_mode():
        model = create("ViT-B/16", **TINY)
    model(torch.randn(1, 3, 16, 16)).sum().backward()
    assert model.embedding.weight.grad is not None


WRONG_TYPES: list[dict[str, Any]] = [
    *(dict(image_size=224.0), dict(image_size=None), dict(patch=16.5)),
    *(dict(dropout="0.1"), dict(layer_scale="x"), dict(head_bias=None), dict(classes=2.5), dict(qkv_bias=1)),
    *(dict(norm_eps="a"), dict(norm_eps=-1.0), dict(norm_eps=float("nan"))),
]


@pytest.mark.parametrize("options", WRONG_TYPES, ids=str)
def test_an_option_of_the_wrong_type_is_named(options: dict[str, Any]) -> None:
    with pytest.raises(VitreousError, match=next(iter(options)).replace("image_size", "size").replace("patch", "size")):
        create("ViT-B/16", **{**TINY, **options})


@pytest.mark.parametrize("size", [0, -5])
def test_a_resnet_needs_pixels(size: int) -> None:
    with pytest.raises(VitreousError, match="between 1 and"):
        create("R26x1", image_size=size)
