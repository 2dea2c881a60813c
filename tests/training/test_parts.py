"""The parts of the loop by themselves, each against an independent computation."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from vitreous.core.errors import VitreousError
from vitreous.models.build import create
from vitreous.training.ema import PolyakAverage
from vitreous.training.objectives.classification import Classification, balanced_weights
from vitreous.training.optim import freeze, groups, optimizer, prepare_state, set_rate
from vitreous.training.recipes.recipe import Recipe
from vitreous.training.schedule import learning_rate

# The schedule ----------------------------------------------------------------------------------------------------------


def authors_rate(base: float, total: int, decay: str, warmup: int, step: int, end: float) -> float:
    """As vision_transformer's `create_learning_rate_schedule` has it: counted from 1, linear_end for linear decay only."""
    progress = np.clip((step - warmup) / float(total - warmup), 0.0, 1.0)
    linear, cosine = end + (base - end) * (1.0 - progress), base * 0.5 * (1.0 + np.cos(np.pi * progress))
    rate = linear if decay == "linear" else cosine
    return float(rate * np.minimum(1.0, step / warmup)) if warmup else float(rate)


@pytest.mark.parametrize(("decay", "end"), [("linear", 1e-5), ("cosine", 0.0)])
@pytest.mark.parametrize("warmup", [0, 5, 30])
def test_the_learning_rate_is_the_authors(decay: Any, end: float, warmup: int) -> None:
    recipe = Recipe(steps=100, lr=0.03, schedule=decay, lr_end=end, warmup=warmup)
    for step in range(100):
        theirs = authors_rate(0.03, 100, decay, warmup, step + 1, end)
        assert learning_rate(recipe, step, 100) == pytest.approx(theirs, rel=1e-12)


def test_bit_hyperrule_s_staircase() -> None:
    """Schedules as in BiT: warm-up to 500, then a tenth after 3,000, 6,000 and 9,000 of 10,000 steps."""
    recipe = Recipe(steps=10_000, lr=0.003, schedule="staircase", milestones=(0.3, 0.6, 0.9), warmup=500)
    expected = {250: 0.0015, 500: 0.003, 3000: 0.003, 3001: 3e-4, 6000: 3e-4, 6001: 3e-5, 9001: 3e-6, 10_000: 3e-6}
    for step, rate in expected.items():
        assert learning_rate(recipe, step - 1, 10_000) == pytest.approx(rate, rel=1e-9), step


# Losses ----------------------------------------------------------------------------------------------------------------


class Fixed(nn.Module):
    """A "model" that answers with given logits."""

    def __init__(self, logits: torch.Tensor) -> None:
        super().__init__()
        self.logits = nn.Parameter(logits)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.logits


def test_sigmoid_loss_is_summed_over_classes_and_smoothed_as_the_paper_does() -> None:
    logits = torch.randn(6, 7)
    targets = torch.zeros(6, 7)
    targets[range(6), [0, 3, 2, 2, 6, 5]] = 1
    targets[1, 4] = 1  # two labels
    losses, extras = Classification(Fixed(logits), "sigmoid", 1e-4)(torch.zeros(6, 3, 8, 8), targets)  # type: ignore[arg-type]
    wanted = []
    for row in range(6):
        total = 0.0
        for column in range(7):
            y = 0.9999 if targets[row, column] else 0.0001
            p = 1 / (1 + math.exp(-float(logits[row, column])))
            total -= y * math.log(p) + (1 - y) * math.log(1 - p)
        wanted.append(total)
    assert losses.tolist() == pytest.approx(wanted, rel=1e-5)
    right = sum(int(logits[row].argmax()) in targets[row].nonzero().flatten().tolist() for row in range(6))
    assert int(extras["top1"]) == right


@given(st.floats(0, 0.9), st.integers(2, 9), st.integers(0, 1000))
def test_softmax_loss_is_torch_s(smoothing: float, classes: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits, labels = torch.randn(5, classes, generator=generator), torch.randint(classes, (5,), generator=generator)
    objective = Classification(Fixed(logits), "softmax", smoothing)  # type: ignore[arg-type]
    losses, _ = objective(torch.zeros(5, 3, 8, 8), F.one_hot(labels, classes).float())
    expected = F.cross_entropy(logits, labels, label_smoothing=smoothing, reduction="none")
    torch.testing.assert_close(losses.detach(), expected, rtol=1e-5, atol=1e-6)


def test_an_image_without_a_label_teaches_softmax_nothing() -> None:
    losses, _ = Classification(Fixed(torch.randn(2, 4)), "softmax", 0.1)(torch.zeros(2, 3, 8, 8), torch.zeros(2, 4))  # type: ignore[arg-type]
    assert losses.tolist() == [0.0, 0.0]


def test_balanced_weights_are_scikit_learn_s() -> None:
    from sklearn.utils.class_weight import compute_class_weight

    labels = np.repeat(np.arange(4), [50, 5, 20, 1])
    expected = compute_class_weight("balanced", classes=np.arange(4), y=labels)
    np.testing.assert_allclose(balanced_weights([50, 5, 20, 1]).numpy(), expected, rtol=1e-6)
    assert balanced_weights([10, 0, 10]).tolist() == [1.0, 0.0, 1.0]


def test_weighted_losses_are_torch_s() -> None:
    logits, labels, weights = torch.randn(8, 3), torch.randint(3, (8,)), torch.tensor([0.5, 2.0, 1.0])
    losses, _ = Classification(Fixed(logits), "softmax", 0.0, weights)(torch.zeros(8, 3, 8, 8), F.one_hot(labels, 3).float())  # type: ignore[arg-type]
    torch.testing.assert_close(losses.detach(), F.cross_entropy(logits, labels, weights, reduction="none"))


# Optimisers ------------------------------------------------------------------------------------------------------------


def objective(**options: Any) -> Classification:
    return Classification(create("ViT-Ti/4", image_size=8, width=16, depth=3, heads=2, mlp=32, classes=5, **options), "softmax")


def test_every_parameter_is_in_one_group() -> None:
    model = objective()
    recipe = Recipe(steps=1, layer_decay=0.7, weight_decay=0.1, decay="kernels")
    names = [name for group in groups(model, recipe) for name in group.names]
    assert sorted(names) == sorted(name for name, _ in model.named_parameters())


def test_decay_of_kernels_spares_biases_norms_tokens_and_positions() -> None:
    model = objective()
    decayed = {n for g in groups(model, Recipe(steps=1, weight_decay=0.1, decay="kernels")) if g.decay for n in g.names}
    assert decayed == {n for n, p in model.named_parameters() if n.endswith("weight") and p.ndim >= 2}
    assert "model.positions.0.table" not in decayed
    everything = groups(model, Recipe(steps=1, weight_decay=0.1))
    assert [group.decay for group in everything] == [0.1]  # as the paper's code did


def test_layer_decay_is_a_power_for_each_layer() -> None:
    rates = {name: group.rate for group in groups(objective(), Recipe(steps=1, layer_decay=0.5)) for name in group.names}
    assert rates["model.head.weight"] == rates["model.norm.weight"] == 1.0
    assert [rates[f"model.blocks.{i}.mlp.up.weight"] for i in range(3)] == [0.125, 0.25, 0.5]
    assert rates["model.embedding.weight"] == rates["model.class_token"] == 0.0625


def test_a_linear_probe_trains_the_head_alone() -> None:
    model = objective()
    freeze(model, Recipe(steps=1, train="head"))
    assert [name for name, p in model.named_parameters() if p.requires_grad] == ["model.head.weight", "model.head.bias"]
    with pytest.raises(VitreousError, match="nothing would learn"):
        groups(Classification(create("ViT-Ti/4", image_size=8, classes=0), "softmax"), Recipe(steps=1, train="head"))


@pytest.mark.parametrize("kind", ["adam", "sgd"])
def test_steps_are_those_of_the_formula(kind: Any) -> None:
    """p -= lr * (update + decay * p) for Adam; for SGD the decay joins the gradient and goes through the momentum."""
    recipe = Recipe(steps=3, optimizer=kind, lr=0.1, weight_decay=0.2, momentum=0.9)
    model = objective()
    parameter = model.model.head.weight
    nn.init.normal_(parameter)
    made = optimizer(model, recipe)
    prepare_state(made, recipe)
    p = parameter.detach().double().numpy().copy()
    m, v = np.zeros_like(p), np.zeros_like(p)
    for step in range(1, 4):
        gradient = torch.randn(parameter.shape)
        for other in model.parameters():
            other.grad = torch.zeros_like(other)
        parameter.grad = gradient.clone()
        set_rate(made, 0.1 / step)
        made.step()
        g, lr = gradient.double().numpy(), 0.1 / step
        if kind == "adam":
            m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
            p = p - lr * 0.2 * p - lr * (m / (1 - 0.9**step)) / (np.sqrt(v / (1 - 0.999**step)) + 1e-8)
        else:
            m = 0.9 * m + (g + 0.2 * p)
            p = p - lr * m
    np.testing.assert_allclose(parameter.detach().numpy(), p, rtol=2e-5, atol=1e-6)


def test_muon_steps_along_a_matrix_of_equal_singular_values_and_adam_trains_the_rest() -> None:
    """Against numpy: momentum 0.95 with a look ahead, then Newton and Schulz five times on the matrix (kernels: a row each)."""
    recipe = Recipe(steps=2, optimizer="muon", lr=0.1, weight_decay=0.2, decay="kernels")
    model = objective(stem=(16, 16), patch=2)
    made = optimizer(model, recipe)
    prepare_state(made, recipe)
    kernels = {name: p for name, p in model.named_parameters() if name.startswith(("model.blocks.", "model.trunk."))}
    kernels = {name: p for name, p in kernels.items() if p.ndim > 1}
    assert len(kernels) == 2 + 3 * 4
    moments = {name: {*made.state[p]} for name, p in model.named_parameters()}
    assert all(
        moments[name] == ({"momentum_buffer"} if name in kernels else {"step", "exp_avg", "exp_avg_sq"}) for name in moments
    )
    name = "model.trunk.convolutions.1.weight"
    p, momentum = kernels[name].detach().double().numpy().reshape(16, -1).copy(), np.zeros((16, 16 * 9))
    head = model.model.head.weight
    for step in range(1, 3):
        for other in model.parameters():
            other.grad = torch.randn_like(other)
        g = kernels[name].grad.double().numpy().reshape(16, -1)  # type: ignore[union-attr]
        set_rate(made, 0.1 / step)
        before = head.detach().clone()
        made.step()
        momentum = 0.95 * momentum + 0.05 * g
        x = 0.05 * g + 0.95 * momentum
        x = x / np.linalg.norm(x)
        for _ in range(5):
            gram = x @ x.T
            x = 3.4445 * x + (-4.775 * gram + 2.0315 * gram @ gram) @ x
        p = p - 0.1 / step * 0.2 * p - 0.1 / step * 0.2 * math.sqrt(144) * x
        assert not torch.equal(head, before)
    moved = kernels[name].detach().numpy().reshape(16, -1)
    np.testing.assert_allclose(moved, p, atol=0.01)  # torch computes it in bfloat16
    assert np.abs(p).max() > 0.1


def test_the_average_is_a_weighted_mean_of_the_steps_alone() -> None:
    """Whatever it began with is forgotten: weights (1 - k) k^i, divided by their sum."""
    layer = nn.Linear(2, 1)
    average, seen = PolyakAverage(layer, 0.9), []
    for step in range(6):
        nn.init.normal_(layer.weight)
        average.update(layer, step)
        seen.append(layer.weight.detach().double().numpy().copy())
    weights = np.array([0.9 ** (5 - i) for i in range(6)])
    expected = sum(w * x for w, x in zip(weights / weights.sum(), seen, strict=True))
    np.testing.assert_allclose(average.tensors["weight"].numpy(), expected, rtol=1e-5)
