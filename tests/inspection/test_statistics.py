"""One pass over many images gives what the single functions give; and whoever looks inside, changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from known_attention import ALL_ALIKE, KINDS, hybrid, itself, looking, pictures, small
from scipy import stats
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn import functional as F

from vitreous.classifier import Classifier
from vitreous.core.errors import VitreousError
from vitreous.inspection.attention_rollout import rollout
from vitreous.inspection.distance import attention_distance
from vitreous.inspection.entropy import attention_entropy
from vitreous.inspection.gradient_weights import compute_gradient_rollout, gradient_rollout
from vitreous.inspection.head_view import class_token_attention
from vitreous.inspection.statistics import compute_statistics
from vitreous.inspection.tokens import outliers, token_change, token_norms, token_similarity
from vitreous.models.build import create
from vitreous.models.vit import Attention

from conftest import random_checkpoint


@pytest.mark.parametrize("kind", [*KINDS, "hybrid"])
def test_the_same_as_the_single_functions(kind: str) -> None:
    model = hybrid() if kind == "hybrid" else small(**KINDS[kind])
    images, prefix = pictures(model, 5), model.prefix_tokens
    found = compute_statistics(model, images.split(2))
    assert found.images == 5
    assert np.allclose(found.distance, attention_distance(model, images), rtol=1e-6)
    assert np.allclose(found.entropy, attention_entropy(model, images), rtol=1e-6)
    assert np.allclose(found.similarity, token_similarity(model, images), atol=1e-6)
    assert np.allclose(found.change, token_change(model, images), atol=1e-6)
    norms = token_norms(model, images)
    lengths = norms[:, :, prefix:].reshape(len(norms), -1)
    five = [lengths.min(1), *np.percentile(lengths, [25, 50, 75], axis=1), lengths.max(1)]
    assert np.allclose(found.norms_quantiles, np.stack(five, axis=1), rtol=1e-5)
    assert found.leading_norms.shape == (len(norms), prefix)
    assert np.allclose(found.leading_norms, norms[:, :, :prefix].mean(axis=1), rtol=1e-5)
    assert found.outlier_share == outliers(norms, prefix).mean()


def test_the_standard_error() -> None:
    model = small()
    images = pictures(model, 6)
    each = [attention_distance(model, images[i : i + 1]) for i in range(6)]
    assert np.allclose(compute_statistics(model, images.split(4)).distance_error, stats.sem(each, axis=0), rtol=1e-3)
    assert np.isnan(compute_statistics(model, images[:1].split(1)).distance_error).all(), "one image says nothing of others"


def test_known_attention_is_without_error() -> None:
    model = looking([itself, ALL_ALIKE], [ALL_ALIKE, itself])
    found = compute_statistics(model, [pictures(model, 4)])
    assert np.allclose(found.distance_error, 0, atol=1e-6)
    assert np.allclose(found.entropy, [[0, np.log2(7)], [np.log2(7), 0]])
    assert np.allclose(found.norms_quantiles, 1)
    assert found.outlier_share == 0


def test_an_outlier_counts_by_its_share() -> None:
    model = looking([itself])
    with torch.no_grad():
        model.positions[0].table[3, 0] = 50  # one of six patches
    assert compute_statistics(model, [pictures(model)]).outlier_share == pytest.approx(1 / 6)


def test_batches_of_several_sizes() -> None:
    """Every size by itself, then together: means weighed by images."""
    model = small()
    wide, high = torch.randn(1, 3, 8, 16), torch.randn(3, 3, 12, 8)
    together, one, three = (
        compute_statistics(model, iter([wide, high])),
        compute_statistics(model, [wide]),
        compute_statistics(model, [high]),
    )
    for name in ("distance", "entropy", "similarity", "change", "leading_norms"):
        expected = (getattr(one, name) + 3 * getattr(three, name)) / 4
        assert np.allclose(getattr(together, name), expected, rtol=1e-6), name
    assert np.allclose(together.norms_quantiles[:, 4], np.maximum(one.norms_quantiles[:, 4], three.norms_quantiles[:, 4]))


def test_a_classifiers_images() -> None:
    classifier = Classifier(random_checkpoint("ViT-Ti/4", image_size=8, width=24, depth=2, heads=3, mlp=32, classes=4))
    made = np.random.default_rng(0).integers(0, 256, size=(3, 20, 20, 3), dtype=np.uint8)
    found = compute_statistics(classifier, classifier.batches(list(made), 2))
    assert np.allclose(found.distance, attention_distance(classifier, made), rtol=1e-6)
    assert np.allclose(found.distance, attention_distance(classifier.model, classifier.prepare(made)), rtol=1e-6)


def test_survey_faults() -> None:
    model = small()
    for batches in ([], iter(())):
        with pytest.raises(VitreousError, match="at least one"):
            compute_statistics(model, batches)
    with pytest.raises(VitreousError, match="no attention"):
        compute_statistics(create("R26x1", classes=2, image_size=32), [torch.randn(1, 3, 32, 32)])


# What holds of every function that looks inside.

LOOKS: dict[str, Callable[[Any, torch.Tensor], Any]] = {
    "distance": attention_distance,
    "entropy": attention_entropy,
    "norms": token_norms,
    "similarity": token_similarity,
    "change": token_change,
    "rollout": rollout,
    "gradient rollout": gradient_rollout,
    "gradient rollout of tensors": lambda model, images: compute_gradient_rollout(model, images).numpy(),
    "seen by head": lambda model, images: class_token_attention(model, images).numpy(),
    "survey": lambda model, images: compute_statistics(model, images.split(8)).distance,
}


def hooks(model: nn.Module) -> list[Any]:
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return [hook for module in model.modules() for kind in kinds for hook in getattr(module, kind).values()]


@pytest.mark.parametrize("name", LOOKS)
def test_to_look_changes_nothing(name: str) -> None:
    model = small(dropout=0.4, attention_dropout=0.4, stochastic_depth=0.4)
    images = pictures(model)
    expected = LOOKS[name](model, images)
    weights = {key: value.clone() for key, value in model.state_dict().items()}
    model.train()
    drawn = torch.random.get_rng_state()
    assert np.array_equal(LOOKS[name](model, images), expected), "dropout is off while one looks"
    assert torch.equal(torch.random.get_rng_state(), drawn)
    assert all(module.training for module in model.modules())
    assert not hooks(model)
    assert all(parameter.grad is None and parameter.requires_grad for parameter in model.parameters())
    assert all(torch.equal(value, weights[key]) for key, value in model.state_dict().items())


@pytest.mark.parametrize("name", LOOKS)
def test_nothing_is_left_behind_by_an_error(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = small().train()
    images = pictures(model)
    calls = []

    def fail(*arguments: Any, **options: Any) -> Any:
        calls.append(1)
        raise MemoryError("no more")

    monkeypatch.setattr(model.blocks[1].mlp, "forward", fail)
    with pytest.raises(MemoryError):
        LOOKS[name](model, images)
    assert calls
    assert not hooks(model)
    assert all(module.training for module in model.modules())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert torch.is_grad_enabled()


@pytest.mark.parametrize("kind", ["token", "map", "axial", "relative"])
@pytest.mark.parametrize("name", LOOKS)
def test_every_layer_runs_on_fused_attention_and_no_two_are_in_memory(
    name: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of all the probabilities that were ever written out, not one is alive when the next layer's are made."""
    model = small(**KINDS[kind], depth=4)
    images = pictures(model)
    fused: list[int] = []
    written: list[StorageWeakRef] = []
    real, probabilities = F.scaled_dot_product_attention, Attention.probabilities

    def counted(*arguments: Any, **options: Any) -> Any:
        fused.append(1)
        return real(*arguments, **options)

    def watched(self: Attention, z: torch.Tensor, *more: Any) -> torch.Tensor:
        assert all(reference.expired() for reference in written)
        found = probabilities(self, z, *more)
        written.append(StorageWeakRef(found.untyped_storage()))
        return found

    monkeypatch.setattr(F, "scaled_dot_product_attention", counted)
    monkeypatch.setattr(Attention, "probabilities", watched)
    LOOKS[name](model, images)
    layers, pools = (8 if kind == "axial" else 4), (1 if kind == "map" else 0)
    assert len(written) == (0 if name in ("norms", "similarity", "change") else layers)
    back_and_forth = 2 * layers + pools
    passes = {"gradient rollout": back_and_forth, "gradient rollout of tensors": back_and_forth, "rollout": layers + pools}
    twice = layers if name == "rollout by layer" and kind == "map" else 0
    assert len(fused) == passes.get(name, layers + twice)
