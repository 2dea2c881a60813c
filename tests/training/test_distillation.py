"""`--teacher CHECKPOINT`: the loss by torch's own KL divergence, the teacher's view of the images, resume and refusals."""

from __future__ import annotations

import dataclasses
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from runs import child, digest, pretrain, states, wait_for
from safetensors import safe_open
from torch.nn import functional as F

from vitreous.classifier import Classifier
from vitreous.core.errors import VitreousError
from vitreous.data.transforms.parse import Preprocess
from vitreous.training.distillation import Teacher
from vitreous.weights.checkpoint import Checkpoint

from conftest import random_checkpoint

DIGITS = tuple("0123456789")
OPTIONS: dict[str, Any] = dict(steps=6, eval_every=3, save_every=2)


def make_teacher(names: tuple[str, ...] = DIGITS, **changes: Any) -> Checkpoint:
    torch.manual_seed(1)
    sizes: dict[str, Any] = dict(width=24, depth=1, heads=3, mlp=48, image_size=8, channels=1) | changes
    scale = "normalise(0.3,0.4)" if sizes["channels"] == 1 else "normalise(imagenet)"
    size = sizes["image_size"]
    return random_checkpoint("ViT-Ti/2", names=names, classes=len(names), preprocess=f"resize({size})|{scale}", **sizes)


@pytest.fixture
def teacher(tmp_path: Path) -> str:
    Classifier(make_teacher()).save(tmp_path / "teacher")
    return str(tmp_path / "teacher")


def test_the_loss_is_a_mean_of_cross_entropy_and_torchs_kl_divergence() -> None:
    checkpoint = make_teacher()
    student = Preprocess("resize(8)|range(-1,1)", 1)
    teacher = Teacher(checkpoint, DIGITS, student, 0.3, 4.0)
    pixels = torch.randint(0, 256, (5, 1, 8, 8)).float()
    images = pixels / 127.5 - 1  # as the student gets them
    logits, targets = torch.randn(5, 10), F.one_hot(torch.tensor([0, 3, 3, 9, 1]), 10).float()
    labels = F.cross_entropy(logits, targets.argmax(1), reduction="none")
    theirs = Classifier(checkpoint).model((pixels / 255 - 0.3) / 0.4)  # as its own preprocessing scales them
    assert torch.allclose(teacher.logits(images), theirs, atol=1e-4)
    kl = F.kl_div((logits / 4).log_softmax(1), (theirs / 4).softmax(1), reduction="none").sum(1)
    assert torch.allclose(teacher.losses(labels, logits, images, targets), 0.7 * labels + 0.3 * 16 * kl, atol=1e-4)


def test_another_order_of_classes_and_unknown_ones_are_minded() -> None:
    student, images = Preprocess("resize(8)|range(-1,1)", 1), torch.rand(3, 1, 8, 8) * 2 - 1
    whole = Teacher(make_teacher(), DIGITS, student, 0.5, 1.0).logits(images)
    turned = Teacher(make_teacher(), ("7", "x", "2"), student, 0.5, 1.0)
    assert torch.equal(turned.logits(images), whole[:, [7, 2]])
    labels, logits = torch.rand(3), torch.randn(3, 3)
    losses = turned.losses(labels, logits, images, torch.eye(3))
    assert losses[1] == labels[1]  # of class x the teacher knows nothing
    assert (losses != labels)[[0, 2]].all()


def test_a_teacher_of_another_size_and_in_colour_sees_the_same_images() -> None:
    teacher = Teacher(make_teacher(image_size=16, channels=3), DIGITS, Preprocess("resize(8)|range(-1,1)", 1), 0.5, 1.0)
    pixels = torch.full((2, 1, 8, 8), 200.0)
    expected = teacher._clf.model(teacher._clf.preprocess.scales[0](torch.full((2, 3, 16, 16), 200.0)))
    assert torch.allclose(teacher.logits(pixels / 127.5 - 1), expected, atol=1e-4)


def test_a_killed_run_with_a_teacher_ends_with_the_same_bytes(teacher: str, tmp_path: Path) -> None:
    options: dict[str, Any] = dict(**OPTIONS, teacher=teacher, set=("mixup=0.2", "teacher_weight=0.8"))
    pretrain(tmp_path / "whole", **options)
    pretrain(tmp_path / "without", **{**OPTIONS, "set": ("mixup=0.2",)})
    assert digest(tmp_path / "whole") != digest(tmp_path / "without")
    out = tmp_path / "killed"
    process = child(out, **options)
    assert wait_for(lambda: max(states(out), default=0) >= 2, process)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    pretrain(out, **options)
    assert digest(out) == digest(tmp_path / "whole")
    (shard,) = sorted((out / "state").glob("step-*"))[-1].glob("*.safetensors")
    with safe_open(shard, "pt") as file:
        assert not [name for name in file.keys() if "teacher" in name]  # noqa: SIM118
    Classifier(dataclasses.replace(make_teacher(), tensors=make_teacher(depth=1, mlp=48).tensors)).save(tmp_path / "same")
    pretrain(out, **{**options, "teacher": str(tmp_path / "same")})  # the same weights elsewhere
    Classifier(make_teacher(width=48)).save(tmp_path / "another")
    with pytest.raises(VitreousError, match=r"teacher\.sha256"):
        pretrain(out, **{**options, "teacher": str(tmp_path / "another")})


def test_what_does_not_go_together_is_refused_in_one_line(teacher: str, tmp_path: Path) -> None:
    with pytest.raises(VitreousError, match=r"teacher_weight=0\.5: is for --teacher CHECKPOINT, which is missing"):
        pretrain(tmp_path / "run", set=("teacher_weight=0.5",))
    with pytest.raises(VitreousError, match="--objective masked-patch learns none"):
        pretrain(tmp_path / "run", teacher=teacher, objective="masked-patch")
    with pytest.raises(VitreousError, match="not for loss=sigmoid"):
        pretrain(tmp_path / "run", teacher=teacher, set=("loss=sigmoid",))
    Classifier(make_teacher(("cat", "dog"))).save(tmp_path / "pets")
    with pytest.raises(VitreousError, match="knows 0 of this data's 10 classes by name"):
        pretrain(tmp_path / "run", teacher=str(tmp_path / "pets"))
    assert not (tmp_path / "run").exists()
