"""A loaded checkpoint takes images in any form and gives the same answers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from vitreous.classifier import Classifier, Prediction, load
from vitreous.core.errors import VitreousError

from conftest import Reference, random_checkpoint

CLF = Classifier(
    random_checkpoint("ViT-B/16", width=24, depth=2, heads=3, mlp=24, image_size=32, classes=3, names=("ant", "bee", "cat"))
)
PIXELS = np.random.default_rng(0).integers(0, 256, (3, 40, 50, 3), dtype=np.uint8)


def test_every_form_of_image_gives_the_same(tmp_path: Path) -> None:
    paths = []
    for index, pixels in enumerate(PIXELS):
        Image.fromarray(pixels).save(tmp_path / f"{index}.png")
        paths.append(tmp_path / f"{index}.png")
    forms = [
        paths,
        [str(path) for path in paths],
        [Image.fromarray(pixels) for pixels in PIXELS],
        list(PIXELS),
        PIXELS,
        torch.from_numpy(PIXELS).permute(0, 3, 1, 2),
        torch.stack([CLF.preprocess(pixels) for pixels in PIXELS]),  # float: prepared already
    ]
    expected = CLF.features(paths)
    assert expected.shape == (3, 24)
    for form in forms:
        assert torch.allclose(CLF.features(form, batch_size=2), expected, atol=1e-5)
        assert CLF.attention(form).shape == (2, 3, 3, 5, 5)


def test_one_image_gives_one_prediction_and_several_a_list(tmp_path: Path) -> None:
    one = CLF.predict(PIXELS[0])
    assert isinstance(one, Prediction)
    assert sum(one.probabilities) == pytest.approx(1)
    assert list(one.probabilities) == sorted(one.probabilities, reverse=True)
    several = CLF.predict(list(PIXELS), top=1)
    assert [len(p.classes) for p in several] == [1, 1, 1]
    assert several[0].classes[0] == one.classes[0]


def test_probabilities_are_the_models_softmax() -> None:
    images = torch.stack([CLF.preprocess(pixels) for pixels in PIXELS])
    with torch.no_grad():
        expected = CLF.model(images).softmax(dim=1)
    for prediction, row in zip(CLF.predict(images), expected, strict=True):
        assert prediction.probabilities[0] == pytest.approx(float(row.max()))
        assert prediction.classes[0] == CLF.classes[int(row.argmax())]


@pytest.mark.parametrize(
    "bad", [np.zeros((4, 4), np.float64), np.zeros((4, 4, 7), np.uint8), torch.zeros(3, 4, 4, dtype=torch.uint8)]
)
def test_arrays_that_are_no_images_are_refused(bad: object) -> None:
    with pytest.raises(VitreousError, match="expected"):
        CLF.features(bad)  # type: ignore[arg-type]


def test_no_images() -> None:
    with pytest.raises(VitreousError, match="no images"):
        CLF.features([])


def test_features_are_after_the_representation_layer() -> None:
    reference = Reference("vt_representation")
    clf = load(reference.path)
    features = clf.features(reference.images())
    assert features.shape == (2, 24)
    assert float(features.abs().max()) <= 1
    assert torch.allclose(features @ clf.model.head.weight.T + clf.model.head.bias, reference.logits(), atol=1e-5)


def test_a_grey_model_takes_any_image() -> None:
    clf = Classifier(random_checkpoint("ViT-B/16", width=24, depth=1, heads=3, mlp=24, image_size=32, classes=3, channels=1))
    assert clf.prepare(PIXELS[0]).shape == (1, 1, 32, 32)


def test_a_model_in_another_precision_takes_images_all_the_same(tmp_path: Path) -> None:
    dtype = torch.float64  # half precisions die on machines that hide their AMX tiles
    clf = Classifier(random_checkpoint("ViT-B/16", width=24, depth=1, heads=3, mlp=24, image_size=32, classes=3))
    expected = clf.features(PIXELS)
    clf.model.to(dtype)
    assert torch.allclose(clf.features(PIXELS), expected, atol=1e-4)
    assert clf.attention(PIXELS).dtype == dtype
    for name, format in (("x.npz", "official"), ("t", "timm"), ("h", "huggingface"), ("v", "vitreous")):
        clf.save(tmp_path / name, format)  # type: ignore[arg-type]
        assert load(tmp_path / name).model.head.weight.dtype == torch.float32


def test_training_one_classifier_changes_no_other() -> None:
    checkpoint = random_checkpoint("ViT-B/16", width=24, depth=1, heads=3, mlp=24, image_size=32, classes=3)
    first, second = Classifier(checkpoint), Classifier(checkpoint)
    before = second.features(PIXELS)
    with torch.no_grad():
        first.model.embedding.weight.zero_()
    assert torch.equal(second.features(PIXELS), before)
    assert checkpoint.tensors["embedding.weight"].any()
    assert not first.checkpoint.tensors["embedding.weight"].any()  # what would be saved is what is there now


def test_predicting_turns_dropout_off_and_on_again() -> None:
    clf = Classifier(random_checkpoint("ViT-B/16", width=24, depth=1, heads=3, mlp=24, image_size=32, classes=3, dropout=0.5))
    clf.model.train()
    assert torch.equal(clf.features(PIXELS), clf.features(PIXELS))
    assert clf.model.training


def test_paths_from_a_generator(tmp_path: Path) -> None:
    for index, pixels in enumerate(PIXELS):
        Image.fromarray(pixels).save(tmp_path / f"{index}.png")
    found = CLF.predict(tmp_path.glob("*.png"), top=1)  # type: ignore[call-overload]
    assert len(found) == 3
    with pytest.raises(VitreousError, match="expected images"):
        CLF.predict(None)  # type: ignore[call-overload]
    with pytest.raises(VitreousError, match="top=0"):
        CLF.predict(PIXELS, top=0)


def test_assumptions_are_said_and_wishes_are_noted(caplog: pytest.LogCaptureFixture) -> None:
    clf = load(Reference("vt_noposition").path, classes=2)
    assert "no position table in the file" in caplog.text
    assert "replaced" not in caplog.text
    assert any("replaced by a zero one of 2 classes" in note for note in clf.notes)
    caplog.clear()
    load(Reference("vt_gap").path, image_size=32)
    assert "resized" not in caplog.text
