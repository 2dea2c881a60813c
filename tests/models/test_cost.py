"""What a model costs, against the facts of the paper and against what autograd really keeps."""

from __future__ import annotations

import pytest
import torch

from vitreous.models.build import create
from vitreous.models.cost import cost


@pytest.mark.parametrize(
    ("name", "gmacs"),
    [("ViT-B/32", 4.408), ("ViT-B/16", 17.563), ("ViT-L/32", 15.377), ("ViT-L/16", 61.554), ("ViT-H/14", 167.294)],
)
def test_multiply_adds_without_head(name: str, gmacs: float) -> None:
    assert cost(name, image_size=224, classes=0).macs == pytest.approx(gmacs * 1e9, rel=2e-4)


@pytest.mark.parametrize(("name", "size"), [("ViT-Ti/16", 64), ("R26+ViT-S/32", 64), ("R26x1", 64), ("AxialR26x1", 32)])
def test_activation_memory_is_what_autograd_keeps(name: str, size: int) -> None:
    """The estimate comes from fake tensors; here real ones are kept and counted, for four images more."""
    model = create(name, image_size=size, classes=10).train()
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}

    def kept(images: int) -> int:
        found: dict[int, torch.Tensor] = {}  # holding the tensors keeps their addresses from being used again

        def keep(tensor: torch.Tensor) -> torch.Tensor:
            found[tensor.untyped_storage().data_ptr()] = tensor
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
            out = model(torch.zeros(images, 3, size, size))
        total = sum(t.untyped_storage().nbytes() for pointer, t in found.items() if pointer not in weights)
        del out
        return total

    expected = (kept(6) - kept(2)) / 4
    assert cost(name, size, classes=10).activation_bytes == pytest.approx(expected, rel=0.01)


def test_the_callers_mode_does_not_matter() -> None:
    expected = cost("ViT-Ti/16", 32, depth=1)
    with torch.no_grad():
        assert cost("ViT-Ti/16", 32, depth=1) == expected
    with torch.inference_mode():
        assert cost("ViT-Ti/16", 32, depth=1) == expected


def test_cost_follows_overrides_and_rectangles() -> None:
    assert cost("ViT-B/16", (224, 320)).tokens == 14 * 20 + 1
    assert cost("ViT-B/16", depth=1).parameters < cost("ViT-B/16", depth=2).parameters
