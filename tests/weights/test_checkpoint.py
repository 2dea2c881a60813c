"""Our own checkpoint: self-contained, the same bytes for the same weights, whole or not at all."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import safetensors
import torch

from vitreous.classifier import Classifier, load
from vitreous.errors import VitreousError
from vitreous.weights.checkpoint import read_folder, write_folder
from vitreous.weights.read import read_path

from conftest import random_checkpoint, relative

OPTIONS: dict[str, Any] = dict(depth=1, width=24, heads=3, mlp=48, image_size=(32, 48), classes=3, names=("ant", "bée", "cat"))


def test_everything_travels_with_the_weights(tmp_path: Path) -> None:
    checkpoint = random_checkpoint("ViT-B/16", **OPTIONS, norm_eps=1e-5, activation="gelu-erf", position_resize="bicubic")
    Classifier(checkpoint).save(tmp_path / "x")
    (tmp_path / "x").rename(tmp_path / "elsewhere")
    clf = load(tmp_path / "elsewhere")
    assert clf.config == checkpoint.config
    assert clf.classes == ("ant", "bée", "cat")
    assert str(clf.preprocess) == checkpoint.preprocess
    assert sorted(p.name for p in (tmp_path / "elsewhere").iterdir()) == ["README.md", "model.json", "model.safetensors"]
    fields = json.loads((tmp_path / "elsewhere" / "model.json").read_text())
    wanted = {"architecture", "grid", "preprocess", "classes", "numerics", "parent", "licence", "metrics"}
    assert wanted <= set(fields)
    assert fields["grid"] == [2, 3]
    assert fields["numerics"]["norm_eps"] == 1e-5


@pytest.mark.parametrize(
    "options",
    [
        dict(positions="relative", position_placement="shared"),
        dict(attention="axial"),
        dict(pool="map"),
        dict(positions="sincos"),
    ],
)
def test_every_variation_comes_back(options: dict[str, Any], tmp_path: Path) -> None:
    checkpoint = random_checkpoint("ViT-B/16", **OPTIONS, **options)
    Classifier(checkpoint).save(tmp_path / "x")
    back, images = load(tmp_path / "x"), torch.randn(1, 3, 32, 48)
    assert all(torch.equal(back.checkpoint.tensors[key], tensor) for key, tensor in checkpoint.tensors.items())
    with torch.no_grad():
        assert relative(back.model(images), Classifier(checkpoint).model(images)) < 1e-6


def test_equal_weights_give_equal_bytes(tmp_path: Path) -> None:
    """In another process too: hash seeds differ there, and so would the order of several metadata keys."""
    program = textwrap.dedent("""
        import sys; sys.path.insert(0, sys.argv[2])
        import torch; torch.manual_seed(0)
        from conftest import random_checkpoint
        from vitreous.classifier import Classifier
        Classifier(random_checkpoint("ViT-Ti/16", depth=1, classes=3, image_size=32)).save(sys.argv[1]); torch.manual_seed(0)
        Classifier(random_checkpoint("ViT-Ti/16", depth=1, classes=3, image_size=32)).save(sys.argv[1] + ".npz")
    """)
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        tests = str(Path(__file__).parent.parent)
        subprocess.run([sys.executable, "-c", program, str(tmp_path / seed), tests], env=environment, check=True)
    for name in ("1/model.safetensors", "1/model.json", "1.npz"):
        assert (tmp_path / name).read_bytes() == (tmp_path / name.replace("1", "2", 1)).read_bytes()
    with safetensors.safe_open(tmp_path / "1" / "model.safetensors", "pt") as file:
        assert len(file.metadata()) == 1


def test_loading_and_saving_again_changes_no_bit(tmp_path: Path) -> None:
    Classifier(random_checkpoint("ViT-B/16", **OPTIONS)).save(tmp_path / "a")
    load(tmp_path / "a").save(tmp_path / "b")
    assert (tmp_path / "a" / "model.safetensors").read_bytes() == (tmp_path / "b" / "model.safetensors").read_bytes()
    parent = json.loads((tmp_path / "b" / "model.json").read_text())["parent"]
    assert parent["source"] == "a/model.safetensors"
    assert len(parent["sha256"]) == 64


def test_a_runs_folder_loads_too(tmp_path: Path) -> None:
    Classifier(random_checkpoint("ViT-B/16", **OPTIONS)).save(tmp_path / "run" / "checkpoint")
    assert load(tmp_path / "run").config.name == "ViT-B/16"
    assert load(tmp_path / "run" / "checkpoint" / "model.safetensors").config.name == "ViT-B/16"


def test_an_export_carries_a_card_with_origin_and_licence(tmp_path: Path) -> None:
    import dataclasses

    checkpoint = dataclasses.replace(random_checkpoint("ViT-B/16", **OPTIONS), licence="Apache-2.0", metrics={"top1": 0.5})
    Classifier(checkpoint).save(tmp_path / "first")
    for target, format, card in (
        ("second", None, "second/README.md"),
        ("x.npz", None, "x.md"),
        ("hf", "huggingface", "hf/README.md"),
    ):
        load(tmp_path / "first").save(tmp_path / target, format)  # type: ignore[arg-type]
        text = (tmp_path / card).read_text()
        assert "first/model.safetensors" in text
        assert "Apache-2.0" in text
        assert "top1: 0.5" in text
        assert checkpoint.preprocess in text


class Death(BaseException):
    """Stands for kill -9: nothing may catch it and tidy up."""


@pytest.mark.parametrize("renames", [0, 1, 2, 3, 4])
def test_killed_while_overwriting_leaves_the_old_or_the_new(
    renames: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The writer dies before its nth rename; what is found afterwards is one checkpoint or the other, never a mixture."""
    old = random_checkpoint("ViT-B/16", **OPTIONS)
    new = random_checkpoint("ViT-B/16", **{**OPTIONS, "width": 48, "names": ("x", "y", "z")})
    write_folder(old, tmp_path / "x")
    done = 0
    real = os.replace

    def replace(source: Any, target: Any) -> None:
        nonlocal done
        if done == renames:
            os._exit(9)
        done += 1
        real(source, target)

    child = os.fork()
    if child == 0:
        os.replace = replace  # type: ignore[assignment]
        write_folder(new, tmp_path / "x")
        os._exit(0)
    os.waitpid(child, 0)
    found = read_folder(tmp_path / "x")
    assert found.config in (old.config, new.config)
    expected = old if found.config == old.config else new
    assert found.classes == expected.classes
    assert all(torch.equal(found.tensors[key], tensor) for key, tensor in expected.tensors.items())
    write_folder(new, tmp_path / "x")  # and the next writer is not disturbed by what the dead one left
    assert read_folder(tmp_path / "x").config == new.config
    assert not list((tmp_path / "x").glob("*.new"))


def test_a_full_disk_is_named_and_the_old_checkpoint_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = random_checkpoint("ViT-B/16", **OPTIONS)
    write_folder(old, tmp_path / "x")
    before = (tmp_path / "x" / "model.safetensors").read_bytes()

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("safetensors.torch.save_file", full)
    with pytest.raises(VitreousError, match="No space left"):
        write_folder(random_checkpoint("ViT-B/16", **{**OPTIONS, "width": 48}), tmp_path / "x")
    monkeypatch.undo()
    assert (tmp_path / "x" / "model.safetensors").read_bytes() == before
    assert read_folder(tmp_path / "x").config == old.config
    assert sorted(p.name for p in (tmp_path / "x").iterdir()) == ["model.json", "model.safetensors"]


def damaged(tmp_path: Path, file: str, change: Any) -> Path:
    write_folder(random_checkpoint("ViT-B/16", **OPTIONS), tmp_path / "x")
    path = tmp_path / "x" / file
    path.write_bytes(change(path.read_bytes()))
    return tmp_path / "x"


@pytest.mark.parametrize(
    ("file", "change", "words"),
    [
        ("model.safetensors", lambda data: data[:-1], "does not match model.json"),
        ("model.safetensors", lambda data: data[:1000] + bytes([data[1000] ^ 1]) + data[1001:], "does not match model.json"),
        ("model.json", lambda data: data[: len(data) // 2], "not valid JSON"),
        ("model.json", lambda data: b"[]", "not a model.json"),
        ("model.json", lambda data: b"\xff\xfe\x00", "not valid JSON"),
        ("model.json", lambda data: data.replace(b'"version": 1', b'"version": 2'), "version 2 is not known"),
        ("model.json", lambda data: data.replace(b'"width": 24', b'"width": 48'), "asks for"),
        ("model.json", lambda data: data.replace(b'"width"', b'"wdith"'), "did you mean 'width'"),
        ("model.json", lambda data: data.replace(b'"mlp": 48', b'"mlp": "48"'), "should be int"),
        ("model.json", lambda data: data.replace(b'"preprocess"', b'"prep"'), "'preprocess' is missing"),
        ("model.json", lambda data: data.replace(b"resize(32", b"reisze(32"), "did you mean 'resize'"),
        ("model.json", lambda data: data.replace(b'"ant",\n', b""), "2 class names"),
    ],
)
def test_damage_is_one_clear_line(file: str, change: Any, words: str, tmp_path: Path) -> None:
    folder = damaged(tmp_path, file, change)
    with pytest.raises(VitreousError) as caught:
        read_path(folder)
    assert words in str(caught.value), str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_pieces_are_named(tmp_path: Path) -> None:
    write_folder(random_checkpoint("ViT-B/16", **OPTIONS), tmp_path / "x")
    (tmp_path / "x" / "model.json").rename(tmp_path / "model.json")
    with pytest.raises(VitreousError, match=r"model\.json is not beside them"):
        read_path(tmp_path / "x")
    (tmp_path / "model.json").rename(tmp_path / "x" / "model.json")
    (tmp_path / "x" / "model.safetensors").unlink()
    with pytest.raises(VitreousError, match=r"no model\.safetensors"):
        read_path(tmp_path / "x")
