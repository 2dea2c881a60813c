"""The runner gives what the model itself gives, and leaves the model as it was."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from vitreous.core.errors import VitreousError
from vitreous.inference.outputs import Outputs
from vitreous.inference.predictions import top_classes, top_predictions
from vitreous.inference.runner import Runner
from vitreous.models.build import Model, create

SMALL = dict(image_size=8, width=12, depth=2, heads=2, mlp=8)


def vit(**changes: object) -> Model:
    torch.manual_seed(0)
    model = create("ViT-Ti/4", **{**SMALL, "classes": 3, **changes})  # type: ignore[arg-type]
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.3)
    return model


@pytest.mark.parametrize("lean", [False, True])
@pytest.mark.parametrize("changes", [{}, {"pool": "gap"}, {"classes": 0}, {"representation": 6}, {"distillation_token": True}])
def test_logits_and_features_are_the_models_own(changes: dict[str, object], lean: bool) -> None:
    model, images = vit(**changes).eval(), torch.randn(5, 3, 8, 8)
    with Runner(model, lean=lean) as runner:
        outputs = runner.run(images)
    torch.testing.assert_close(outputs.logits, model(images).detach())
    torch.testing.assert_close(outputs.features, model.features(images).detach())
    assert not outputs.logits.requires_grad


def test_the_model_comes_back_as_it_was() -> None:
    """Modules that are in eval mode by themselves stay so; dropout is off while the runner is open."""
    model, images = vit(dropout=0.5), torch.randn(2, 3, 8, 8)
    model.train()
    model.blocks.eval()
    before = [module.training for module in model.modules()]
    with Runner(model, lean=True) as runner:
        first, second = runner.run(images), runner.run(images)
        assert model.lean
    torch.testing.assert_close(first.logits, second.logits, rtol=0, atol=0)
    assert [module.training for module in model.modules()] == before
    assert not model.lean


def test_a_batch_that_does_not_fit_is_halved(monkeypatch: pytest.MonkeyPatch) -> None:
    model, images, sizes = vit().eval(), torch.randn(5, 3, 8, 8), []
    forward = Runner.run_once

    def small_memory(self: Runner, images: Tensor) -> Outputs:
        sizes.append(len(images))
        if len(images) > 2:
            raise torch.OutOfMemoryError
        return forward(self, images)

    monkeypatch.setattr(Runner, "run_once", small_memory)
    with Runner(model) as runner:
        outputs = runner.run(images)
        assert sizes == [5, 2, 3, 1, 2]
        torch.testing.assert_close(outputs.logits, model(images).detach())
        monkeypatch.setattr(Runner, "run_once", lambda *_: (_ for _ in ()).throw(torch.OutOfMemoryError()))
        with pytest.raises(VitreousError, match="one image does not fit into the memory of cpu"):
            runner.run(images)


def test_outputs_that_are_not_finite_are_reported_by_image() -> None:
    logits = torch.tensor([[1.0, 2.0], [float("nan"), 0.0], [float("inf"), 0.0]])
    assert Outputs(logits, logits).finite().tolist() == [True, False, False]


def test_of_equal_logits_the_lower_index_comes_first() -> None:
    logits = torch.tensor([[1.0, 3.0, 3.0, 0.0], [200.0, 300.0, 100.0, 0.0]])
    assert top_classes(logits, 3).tolist() == [[1, 2, 0], [1, 0, 2]]
    sure = top_predictions(logits, "abcd", 2, sigmoid=True)[1]
    assert (sure.classes, sure.probabilities) == (("b", "a"), (1.0, 1.0))  # the order is that of the logits
    softmax = top_predictions(logits, "abcd", 4, sigmoid=False)[0]
    assert sum(softmax.probabilities) == pytest.approx(1.0)
