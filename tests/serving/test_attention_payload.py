from __future__ import annotations

import base64
import io
import json
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from vitreous.classifier import Classifier
from vitreous.core.errors import VitreousError
from vitreous.inspection import component_colours, patch_components, patch_similarity
from vitreous.inspection.attention_rollout import probe_attention, rollout, select_head_rows
from vitreous.inspection.gradient_weights import gradient_rollout
from vitreous.models.attention_maps import attention_maps
from vitreous.serving.attention_payload import build_attention_payload, image_uri, quantise
from vitreous.serving.served_model import ServedModel

from conftest import random_checkpoint

TINY: dict[str, Any] = dict(image_size=(32, 24), patch=8, width=32, depth=3, heads=2, mlp=48, classes=7)
PIXELS = np.random.default_rng(0).integers(0, 256, (32, 24, 3), dtype=np.uint8)

KINDS = {
    "class token": {},
    "registers": dict(registers=2),
    "distilled": dict(distillation_token=True, distillation_head=True),
    "averaged": dict(pool="gap", class_token=False, position_prefix=0),
    "both": dict(pool="token+mean"),
    "attention pooling": dict(pool="map", class_token=False, position_prefix=0),
    "axial": dict(pool="gap", class_token=False, position_prefix=0, attention="axial"),
    "no head": dict(classes=0),
}


def tiny(**options: Any) -> ServedModel:
    return ServedModel("tiny", Classifier(random_checkpoint("ViT-Ti/16", **{**TINY, **options})))


def unpacked(part: dict[str, Any]) -> NDArray[Any]:
    return np.frombuffer(base64.b64decode(part["data"]), np.dtype(part["dtype"]).newbyteorder("<")).reshape(part["shape"])


def attention_in(answer: dict[str, Any]) -> NDArray[np.float64]:
    return unpacked(answer["attention"]) / 255.0 * unpacked(answer["maximum"]).astype(np.float64)[..., None]


@torch.no_grad()
def rolled_by_layer(model: Any, images: torch.Tensor, attention_LHNN: NDArray[np.float64]) -> NDArray[np.float64]:
    """Rollout stopped after each layer, in numpy, always for the tokens that the head reads at the end."""
    probe = None if model.pool is None else probe_attention(model.pool, model.norm(model.tokens(images))).mean(dim=1)
    product, found = np.eye(attention_LHNN.shape[-1]), []
    read = select_head_rows(model, torch.eye(len(product))[None], probe)[0].double().numpy()
    for layer in attention_LHNN:
        mixed = layer.mean(axis=0) + np.eye(len(product))
        product = (mixed / mixed.sum(axis=1, keepdims=True)) @ product
        found.append((read @ product)[model.prefix_tokens :].reshape(4, 3))
    return np.stack(found)


@pytest.mark.parametrize("kind", KINDS)
def test_every_number_agrees_with_the_functions_that_stand_alone(kind: str) -> None:
    loaded = tiny(**KINDS[kind])
    images = loaded.clf.prepare(PIXELS)
    answer = build_attention_payload(loaded, images)
    expected = attention_maps(loaded.clf.model, images)[:, 0].double().numpy()
    layers, heads, tokens, _ = expected.shape
    assert (answer["layers"], answer["heads"], answer["grid"], answer["image_size"]) == (layers, heads, [4, 3], [32, 24])
    assert tokens == answer["prefix_tokens"] + 12
    found, maximum = attention_in(answer), expected.max(axis=-1)
    assert np.abs(found - expected).max(axis=-1) == pytest.approx(0, abs=0.1)
    assert (np.abs(found - expected) <= maximum[..., None] / 510 + 1e-6).all()
    places = np.array([(8 * row, 8 * column) for row in range(4) for column in range(3)], float)
    apart = np.linalg.norm(places[:, None] - places[None], axis=-1)
    patches = expected[:, :, answer["prefix_tokens"] :, answer["prefix_tokens"] :]
    assert np.array(answer["distance"]) == pytest.approx((patches * apart).sum(axis=-1).mean(axis=-1), rel=1e-4)
    bits = -np.where(expected > 0, expected * np.log2(np.maximum(expected, 1e-300)), 0).sum(axis=-1).mean(axis=-1)
    assert np.array(answer["entropy"]) == pytest.approx(bits, rel=1e-4)
    assert answer["rollout"]["values"] == pytest.approx(rollout(loaded.clf, images)[0].reshape(-1), abs=1e-6)
    by_layer = rolled_by_layer(loaded.clf.model, images, expected)
    peaks = np.array(answer["rollout_by_layer"]["maximum"])
    rolled = unpacked(answer["rollout_by_layer"]) / 255 * peaks[:, None, None]
    assert rolled.shape == by_layer.shape
    assert (np.abs(rolled - by_layer) <= peaks[:, None, None] / 510 + 1e-6).all()
    assert answer["gradient_rollout"]["values"] == pytest.approx(gradient_rollout(loaded.clf, images)[0].reshape(-1), abs=1e-6)
    similarity = unpacked(answer["similarity"]) * answer["similarity"]["scale"]
    assert similarity.shape == (tokens, tokens)
    expected_similarity = patch_similarity(loaded.clf, images)[0].reshape(12, 12)
    prefix = answer["prefix_tokens"]
    assert np.abs(similarity[prefix:, prefix:] - expected_similarity).max() <= 0.5 / 127 + 1e-4
    assert np.diag(similarity) == pytest.approx(1)
    assert np.array_equal(similarity, similarity.T)
    assert np.array_equal(unpacked(answer["patch_colours"]), component_colours(patch_components(loaded.clf, images))[0])
    if kind == "no head":
        assert (answer["classes"], answer["probabilities"]) == ([], [])
    else:
        (guess,) = loaded.clf.predict(images, top=5)
        assert (tuple(answer["classes"]), answer["probabilities"]) == (guess.classes, pytest.approx(guess.probabilities))
    json.dumps(answer, allow_nan=False)


def test_bytes_are_as_near_as_bytes_can_be() -> None:
    rows = torch.rand(3, 5, 200, generator=torch.Generator().manual_seed(0)) ** 6 + 1e-9
    rows = rows / rows.sum(dim=-1, keepdim=True)
    rows[0, 0] = 0
    rows[0, 0, 7] = 1
    coded, maximum = quantise(rows)
    assert coded.dtype == np.uint8
    assert maximum == pytest.approx(rows.numpy().max(axis=-1))
    assert (np.abs(coded / 255 * maximum[..., None] - rows.numpy()) <= maximum[..., None] / 510 * 1.001).all()
    assert coded[0, 0, 7] == 255
    assert coded[0, 0].sum() == 255


def test_beyond_the_limit_heads_are_averaged_and_then_it_is_refused() -> None:
    loaded = tiny()
    images = loaded.clf.prepare(PIXELS)
    tokens = 13
    whole = build_attention_payload(loaded, images, most=3 * 2 * tokens**2)
    averaged = build_attention_payload(loaded, images, most=3 * 2 * tokens**2 - 1)
    assert (whole["averaged_heads"], averaged["averaged_heads"], averaged["heads"]) == (False, True, 1)
    assert averaged["attention"]["shape"] == [3, 1, tokens, tokens]
    expected = attention_maps(loaded.clf.model, images)[:, 0].mean(dim=1, keepdim=True).numpy()
    assert np.abs(attention_in(averaged) - expected).max() <= expected.max() / 500
    assert averaged["distance"] == whole["distance"]  # of every head all the same
    with pytest.raises(VitreousError, match="smaller --image-size"):
        build_attention_payload(loaded, images, most=3 * tokens**2 - 1)


def test_the_image_is_what_the_model_saw() -> None:
    answer = build_attention_payload(tiny(), tiny().clf.prepare(PIXELS))
    head, _, data = answer["picture"].partition(",")
    assert head == "data:image/png;base64"
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(base64.b64decode(data)))), PIXELS)
    assert image_uri(np.zeros((100, 100, 3), np.uint8)).startswith("data:image/jpeg;base64,")


def test_sigmoid_heads_and_inference_mode() -> None:
    """A server may run everything in inference mode, whose tensors have no gradient."""
    import dataclasses

    clf = Classifier(dataclasses.replace(random_checkpoint("ViT-Ti/16", **TINY), outputs="sigmoid"))
    loaded = ServedModel("tiny", clf)
    with torch.inference_mode():
        answer = build_attention_payload(loaded, clf.prepare(PIXELS))
    logits = clf.model(clf.prepare(PIXELS)).detach()[0]
    assert answer["probabilities"] == pytest.approx(sorted(logits.sigmoid().tolist(), reverse=True)[:5])


def test_looking_leaves_the_model_as_it_was() -> None:
    loaded = tiny()
    loaded.clf.model.train()
    before = {name: tensor.clone() for name, tensor in loaded.clf.model.state_dict().items()}
    build_attention_payload(loaded, loaded.clf.prepare(PIXELS))
    assert loaded.clf.model.training
    assert all(torch.equal(before[name], tensor) for name, tensor in loaded.clf.model.state_dict().items())
    assert all(parameter.grad is None for parameter in loaded.clf.model.parameters())
    assert not any(module._forward_pre_hooks or module._forward_hooks for module in loaded.clf.model.modules())


def test_faults_are_reported() -> None:
    resnet = ServedModel("resnet", Classifier(random_checkpoint("R26x1", width=32, units=(1, 1), image_size=32, classes=3)))
    with pytest.raises(VitreousError, match="no attention"):
        build_attention_payload(resnet, torch.zeros(1, 3, 32, 32))
    broken = tiny()
    with torch.no_grad():
        broken.clf.model.head.bias.fill_(float("nan"))
    with pytest.raises(VitreousError, match="no numbers"):
        build_attention_payload(broken, broken.clf.prepare(PIXELS))
