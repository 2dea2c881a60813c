"""`verify` names the first operation that differs, and the likely cause: each usual mistake is made on purpose."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import vitreous
from vitreous.classifier import Classifier, load
from vitreous.cli import main
from vitreous.models.config import replace_config
from vitreous.weights.checkpoint import Checkpoint
from vitreous.weights.transfer import adapt

from conftest import Reference, random_checkpoint

OPTIONS: dict[str, Any] = dict(depth=2, width=48, heads=3, mlp=96, image_size=64, classes=5)


def config_change(**fields: Any) -> Callable[[Checkpoint], Checkpoint]:
    return lambda checkpoint: dataclasses.replace(checkpoint, config=replace_config(checkpoint.config, **fields))


def tensor_change(name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Checkpoint], Checkpoint]:
    return lambda checkpoint: dataclasses.replace(
        checkpoint, tensors={**checkpoint.tensors, name: change(checkpoint.tensors[name])}
    )


def preprocess_change(text: str) -> Callable[[Checkpoint], Checkpoint]:
    return lambda checkpoint: dataclasses.replace(checkpoint, preprocess=text)


def everything_half(checkpoint: Checkpoint) -> Checkpoint:
    return dataclasses.replace(checkpoint, tensors={k: v.half().float() for k, v in checkpoint.tensors.items()})


MISTAKES: list[tuple[Callable[[Checkpoint], Checkpoint], str, str]] = [
    (config_change(norm_eps=1e-12), "blocks.0.norm1", "layer-norm epsilon: 1e-06 against 1e-12"),
    (config_change(norm_eps=1e-5), "blocks.0.norm1", "layer-norm epsilon: 1e-06 against 1e-05"),
    (config_change(activation="gelu-erf"), "blocks.0.mlp.activation", "GELU form: tanh approximation against erf"),
    (
        preprocess_change("resize(64,bicubic)|normalise(imagenet)"),
        "preprocessing",
        "input range: range(-1,1) against normalise",
    ),
    (preprocess_change("resize(64,bicubic)|range(0,1)"), "preprocessing", "input range"),
    (preprocess_change("resize(64,bilinear)|range(-1,1)"), "preprocessing", "resize filter: bicubic against bilinear"),
    (preprocess_change("resize_small(64,bicubic)|central_crop(64)|range(-1,1)"), "preprocessing", "resize and crop"),
    (tensor_change("head.bias", lambda b: b - 10), "head", "head bias: the second's is -10 everywhere"),
    (tensor_change("head.bias", lambda b: b * 2), "head", "head bias: values differ, the kernel is the same"),
    (tensor_change("embedding.weight", lambda w: w.flip(1)), "embedding", "channel order: RGB against BGR"),
    (tensor_change("blocks.1.attention.out.weight", lambda w: w.T.contiguous()), "blocks.1.attention.out", "transposed"),
    (tensor_change("blocks.1.mlp.up.weight", lambda w: w + 1e-4), "blocks.1.mlp.up", "weights: weight differ, by up to 0.0001"),
    (tensor_change("class_token", lambda w: w + 1), "class_token", "class token"),
    (tensor_change("positions.0.table", lambda w: w + 1), "positions", "position embeddings differ"),
    (everything_half, "embedding", "rounded to float16"),
    (config_change(heads=6), "architecture", "heads: 3 against 6"),
    (config_change(pool="gap"), "architecture", "pool: token against gap"),
]


@pytest.mark.parametrize(("change", "operation", "cause"), MISTAKES, ids=lambda value: value if isinstance(value, str) else "")
def test_the_first_difference_and_its_cause(change: Any, operation: str, cause: str, tmp_path: Path) -> None:
    checkpoint = random_checkpoint("ViT-B/16", **OPTIONS)
    Classifier(checkpoint).save(tmp_path / "a")
    Classifier(change(checkpoint)).save(tmp_path / "b")
    result = vitreous.verify(str(tmp_path / "a"), against=str(tmp_path / "b"))
    assert not result.equal
    assert result.first is not None
    assert result.first.operation == operation
    assert cause in result.first.cause, result.first.cause
    assert result.exit_code == 1


def test_two_mistakes_are_both_found(tmp_path: Path) -> None:
    checkpoint = random_checkpoint("ViT-B/16", **OPTIONS)
    Classifier(checkpoint).save(tmp_path / "a")
    wrong = config_change(norm_eps=1e-5, activation="gelu-erf")(checkpoint)
    Classifier(wrong).save(tmp_path / "b")
    causes = {
        finding.cause.split(":")[0] for finding in vitreous.verify(str(tmp_path / "a"), against=str(tmp_path / "b")).findings
    }
    assert causes == {"layer-norm epsilon", "GELU form"}


@pytest.mark.parametrize("mode", ["bicubic", "bicubic-antialias", "bicubic-aligned", "bilinear"])
def test_a_wrongly_resized_position_table_is_recognised(mode: Any, tmp_path: Path) -> None:
    checkpoint = random_checkpoint("ViT-B/16", **OPTIONS)
    Classifier(checkpoint).save(tmp_path / "a.npz")
    Classifier(adapt(checkpoint, image_size=96, position_resize=mode)).save(tmp_path / "b")
    result = vitreous.verify(str(tmp_path / "a.npz"), against=str(tmp_path / "b"))
    assert result.first is not None
    assert result.first.operation == "positions"
    assert (
        result.first.cause
        == f"position resize: the second's table is the first's resized {mode}, where bilinear-aligned is due"
    )
    Classifier(adapt(checkpoint, image_size=96)).save(tmp_path / "c")
    assert vitreous.verify(str(tmp_path / "a.npz"), against=str(tmp_path / "c")).equal


@pytest.mark.parametrize("name", ["ViT-B/16", "R26+ViT-S/32", "R26x1"])
def test_equal_checkpoints_in_two_formats(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = dict(image_size=64, classes=3, **({"depth": 1, "width": 48, "heads": 3, "mlp": 64} if "ViT" in name else {}))
    Classifier(random_checkpoint(name, **options)).save(tmp_path / "a")
    load(tmp_path / "a").save(tmp_path / "b.npz")
    assert main(["verify", str(tmp_path / "a"), "--against", str(tmp_path / "b.npz")]) == 0
    assert "equal" in capsys.readouterr().out


def test_epsilons_of_a_hybrids_trunk(tmp_path: Path) -> None:
    checkpoint = random_checkpoint("R26+ViT-S/32", depth=1, image_size=64, classes=3)
    Classifier(checkpoint).save(tmp_path / "a")
    trunk = replace_config(checkpoint.config.trunk, standardise="sqrt(var+eps)", standardise_eps=1e-8)
    Classifier(config_change(trunk=trunk)(checkpoint)).save(tmp_path / "b")
    first = vitreous.verify(str(tmp_path / "a"), against=str(tmp_path / "b")).first
    assert first is not None
    assert first.operation == "trunk.root"
    assert "weight standardisation" in first.cause


def test_a_step_between_operations(tmp_path: Path) -> None:
    checkpoint = random_checkpoint("R26x1", image_size=64, classes=3)
    Classifier(checkpoint).save(tmp_path / "a")
    Classifier(config_change(root_padding="-inf")(checkpoint)).save(tmp_path / "b")
    first = vitreous.verify(str(tmp_path / "a"), against=str(tmp_path / "b")).first
    assert first is not None
    assert "max pool" in first.cause


def test_recorded_outputs_of_the_authors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reference = Reference("vt_representation")
    load(reference.path).save(tmp_path / "ours")
    assert main(["verify", str(tmp_path / "ours"), "--against", str(reference.path)]) == 0
    wrong = load(reference.path)
    wrong.model.config = replace_config(wrong.config, activation="gelu-erf")  # type: ignore[assignment]
    bad = dataclasses.replace(wrong.checkpoint, config=wrong.model.config)
    Classifier(bad).save(tmp_path / "wrong")
    capsys.readouterr()
    assert main(["verify", str(tmp_path / "wrong"), "--against", str(reference.path), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["first"]["operation"] == "logits"
    assert found["first"]["cause"] == "GELU form: gelu-erf against gelu-tanh"


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        (lambda arrays: {**arrays, "logits": arrays["logits"] - 10, "logits_big": arrays["logits_big"] - 10}, "head bias"),
        (lambda arrays: {**arrays, "images": arrays["images"] * 2 - 1}, "input range"),
        (lambda arrays: {**arrays, "images": arrays["images"][..., ::-1]}, "channel order"),
    ],
)
def test_recorded_outputs_tell_the_cause(change: Any, cause: str, tmp_path: Path) -> None:
    reference = Reference("vt_gap")
    np.savez(tmp_path / "recorded.npz", **change(reference.arrays))
    first = vitreous.verify(str(reference.path), against=str(tmp_path / "recorded.npz")).first
    assert first is not None
    assert cause in first.cause, first.cause


@pytest.mark.parametrize("swapped", [False, True])
def test_not_a_number_is_never_equal(swapped: bool, tmp_path: Path) -> None:
    checkpoint = random_checkpoint("ViT-B/16", **OPTIONS)
    Classifier(checkpoint).save(tmp_path / "good")
    Classifier(tensor_change("head.bias", lambda b: b * float("nan"))(checkpoint)).save(tmp_path / "bad")
    names = ["bad", "good"] if swapped else ["good", "bad"]
    with pytest.raises(vitreous.VitreousError, match=r"head\.bias.*NaN"):
        vitreous.verify(str(tmp_path / names[0]), against=str(tmp_path / names[1]))
    reference = Reference("vt_gap")
    np.savez(tmp_path / "nan.npz", **{**reference.arrays, "logits": reference.arrays["logits"] * np.nan})  # type: ignore[arg-type]
    assert not vitreous.verify(str(reference.path), against=str(tmp_path / "nan.npz")).equal


def test_different_answers_from_the_same_logits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checkpoint = random_checkpoint("ViT-B/16", **OPTIONS)
    Classifier(checkpoint).save(tmp_path / "a")
    Classifier(dataclasses.replace(checkpoint, outputs="sigmoid", classes=tuple("vwxyz"))).save(tmp_path / "b")
    assert main(["verify", str(tmp_path / "a"), "--against", str(tmp_path / "b"), "--json"]) == 1
    captured = capsys.readouterr()
    found = json.loads(captured.out, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
    assert found["first"]["cause"] == "probabilities: softmax against sigmoid"
    assert "class names differ" in captured.err


def test_one_recorded_image_is_not_blamed_on_the_head(tmp_path: Path) -> None:
    reference = Reference("vt_gap")
    one = {
        key: array[:1] if key in ("images", "logits") else array for key, array in reference.arrays.items() if "_big" not in key
    }
    one["images"] = one["images"][..., ::-1]
    np.savez(tmp_path / "one.npz", **one)
    first = vitreous.verify(str(reference.path), against=str(tmp_path / "one.npz")).first
    assert first is not None
    assert "channel order" in first.cause
    noisy = {**reference.arrays, "logits": reference.arrays["logits"] + np.float32([[3e-4] * 7, [-2e-4] * 7])}
    np.savez(tmp_path / "noisy.npz", **noisy)  # type: ignore[arg-type]
    first = vitreous.verify(str(reference.path), against=str(tmp_path / "noisy.npz")).first
    assert first is not None
    assert "no single usual mistake" in first.cause


def test_comparing_leaves_the_models_alone(tmp_path: Path) -> None:
    from vitreous.inspection.compare import compare_checkpoints

    a, b = (Classifier(random_checkpoint("ViT-B/16", **OPTIONS)) for _ in range(2))
    compare_checkpoints(a, b, [np.zeros((8, 8, 3), np.uint8)])
    assert a.features([np.zeros((8, 8, 3), np.uint8)]).dtype == torch.float32
    assert next(a.model.parameters()).dtype == torch.float32


def test_a_senseless_tolerance_is_refused(tmp_path: Path) -> None:
    path = str(Reference("vt_gap").path)
    assert main(["verify", path, "--against", path, "--tolerance", "nan"]) == 2
