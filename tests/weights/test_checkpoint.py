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
from vitreous.core.errors import VitreousError
from vitreous.weights.checkpoint import read_checkpoint, write_checkpoint
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
        dict(positions="rope", rope_base=50.0, key_bias=False),
        dict(embedding_norm=True),
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
    environment = {**os.environ, "PYTHONHASHSEED": "1"}
    tests = str(Path(__file__).parent.parent)
    subprocess.run([sys.executable, "-c", program, str(tmp_path / "1"), tests], env=environment, check=True)
    for name in ("2", "2.npz"):
        torch.manual_seed(0)
        Classifier(random_checkpoint("ViT-Ti/16", depth=1, classes=3, image_size=32)).save(tmp_path / name)
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
    assert load(tmp_path / "run").config.name == "ViT-24x1/16"
    assert load(tmp_path / "run" / "checkpoint" / "model.safetensors").config.width == 24


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
        assert checkpoint.preprocess.replace("|", "\\|") in text


class Death(BaseException):
    """Stands for kill -9: nothing may catch it and tidy up."""


@pytest.mark.parametrize("renames", [0, 1, 2, 3, 4])
def test_killed_while_overwriting_leaves_the_old_or_the_new(
    renames: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The writer dies before its nth rename; what is found afterwards is one checkpoint or the other, never a mixture."""
    old = random_checkpoint("ViT-B/16", **OPTIONS)
    new = random_checkpoint("ViT-B/16", **{**OPTIONS, "width": 48, "names": ("x", "y", "z")})
    write_checkpoint(old, tmp_path / "x")
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
        write_checkpoint(new, tmp_path / "x")
        os._exit(0)
    os.waitpid(child, 0)
    found = read_checkpoint(tmp_path / "x")
    assert found.config in (old.config, new.config)
    expected = old if found.config == old.config else new
    assert found.classes == expected.classes
    assert all(torch.equal(found.tensors[key], tensor) for key, tensor in expected.tensors.items())
    write_checkpoint(new, tmp_path / "x")  # and the next writer is not affected by what the dead one left
    assert read_checkpoint(tmp_path / "x").config == new.config
    assert not list((tmp_path / "x").glob("*.new"))


def test_a_full_disk_is_named_and_the_old_checkpoint_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = random_checkpoint("ViT-B/16", **OPTIONS)
    write_checkpoint(old, tmp_path / "x")
    before = (tmp_path / "x" / "model.safetensors").read_bytes()

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("safetensors.torch.save_file", full)
    with pytest.raises(VitreousError, match="No space left"):
        write_checkpoint(random_checkpoint("ViT-B/16", **{**OPTIONS, "width": 48}), tmp_path / "x")
    monkeypatch.undo()
    assert (tmp_path / "x" / "model.safetensors").read_bytes() == before
    assert read_checkpoint(tmp_path / "x").config == old.config
    assert sorted(p.name for p in (tmp_path / "x").iterdir()) == ["model.json", "model.safetensors"]


def damaged(tmp_path: Path, file: str, change: Any) -> Path:
    write_checkpoint(random_checkpoint("ViT-B/16", **OPTIONS), tmp_path / "x")
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
        ("model.json", lambda data: data.replace(b'"mlp": 48', b'"mlp": "48"'), "must be a whole number"),
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
    write_checkpoint(random_checkpoint("ViT-B/16", **OPTIONS), tmp_path / "x")
    (tmp_path / "x" / "model.json").rename(tmp_path / "model.json")
    with pytest.raises(VitreousError, match=r"model\.json is not beside them"):
        read_path(tmp_path / "x")
    (tmp_path / "model.json").rename(tmp_path / "x" / "model.json")
    (tmp_path / "x" / "model.safetensors").unlink()
    with pytest.raises(VitreousError, match=r"no model\.safetensors"):
        read_path(tmp_path / "x")


def test_two_crashes_in_a_row_lose_nothing(tmp_path: Path) -> None:
    """The first writer dies between its renames, the second before its first: the first one's checkpoint is still whole."""
    checkpoints = [random_checkpoint("ViT-B/16", **{**OPTIONS, "width": width}) for width in (24, 48, 72)]
    write_checkpoint(checkpoints[0], tmp_path / "x")
    real = os.replace
    # The renames of one write: weights into place as .new, document as .new, then the two that count.
    for checkpoint, allowed in ((checkpoints[1], 3), (checkpoints[2], 3)):
        child = os.fork()
        if child == 0:
            done = 0

            def replace(source: Any, target: Any, allowed: int = allowed) -> None:
                nonlocal done
                if done == allowed:
                    os._exit(9)
                done += 1
                real(source, target)

            os.replace = replace  # type: ignore[assignment]
            write_checkpoint(checkpoint, tmp_path / "x")
            os._exit(0)
        os.waitpid(child, 0)
    found = read_checkpoint(tmp_path / "x")
    assert found.config in [c.config for c in checkpoints[1:]]


def test_nobody_elses_files_are_overwritten(tmp_path: Path) -> None:
    clf = Classifier(random_checkpoint("ViT-Ti/16", depth=1, image_size=32, classes=3))
    (tmp_path / "package.json").write_text('{"name": "mine"}')
    with pytest.raises(VitreousError, match=r"package\.json: is not ours"):
        clf.save(tmp_path / "package.npz")
    assert (tmp_path / "package.json").read_text() == '{"name": "mine"}'
    for format in ("timm", "huggingface"):
        (tmp_path / format).mkdir()
        (tmp_path / format / "notes.txt").write_text("mine")
        with pytest.raises(VitreousError, match=r"notes\.txt"):
            clf.save(tmp_path / format, format)  # type: ignore[arg-type]
    (tmp_path / "v").mkdir()
    (tmp_path / "v" / "README.md").write_text("my own words")
    clf.save(tmp_path / "v")
    assert (tmp_path / "v" / "README.md").read_text() == "my own words"
    clf.save(tmp_path / "hub", "huggingface")
    with pytest.raises(VitreousError, match="another tool"):
        clf.save(tmp_path / "hub")
    with pytest.raises(VitreousError, match="no place"):
        clf.save("")


def test_an_export_replaces_an_earlier_one_as_a_whole(tmp_path: Path) -> None:
    first = Classifier(
        random_checkpoint("ViT-Ti/16", depth=1, image_size=32, classes=3, preprocess="resize(32,lanczos)|range(-1,1)")
    )
    second = Classifier(random_checkpoint("ViT-Ti/16", depth=2, image_size=32, classes=3, preprocess="range(-1,1)"))
    first.save(tmp_path / "hf", "huggingface")
    second.save(tmp_path / "hf", "huggingface")
    back = load(tmp_path / "hf")
    assert back.config.depth == 2
    assert "lanczos" not in str(back.preprocess)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["hf"]


def test_a_json_beside_other_weights_is_not_believed(tmp_path: Path) -> None:
    wrong = Classifier(
        random_checkpoint("ViT-Ti/16", depth=1, image_size=32, classes=3, activation="relu", names=("a", "b", "c"))
    )
    right = Classifier(random_checkpoint("ViT-Ti/16", depth=1, image_size=32, classes=3))
    wrong.save(tmp_path / "x.npz")
    right.save(tmp_path / "y.npz")
    (tmp_path / "x.npz").write_bytes((tmp_path / "y.npz").read_bytes())
    clf = load(tmp_path / "x.npz")
    assert clf.config.activation == "gelu-tanh"
    assert clf.classes == ("0", "1", "2")
    assert "x.json is about other weights, and was left out of account" in clf.notes


def test_saving_over_what_was_loaded(tmp_path: Path) -> None:
    """The weights are no window on the file: it may be overwritten while the model lives."""
    Classifier(random_checkpoint("ViT-B/16", **OPTIONS)).save(tmp_path / "x")
    clf = load(tmp_path / "x")
    before = {key: tensor.clone() for key, tensor in clf.checkpoint.tensors.items()}
    (tmp_path / "x" / "model.safetensors").write_bytes(b"")
    assert all(torch.equal(clf.checkpoint.tensors[key], tensor) for key, tensor in before.items())


@pytest.mark.parametrize(
    "change",
    [
        (b'"trunk": null', b'"trunk": "abc"'),
        (b'"layer_scale": null', b'"layer_scale": "x"'),
        (b'"representation": null', b'"representation": true'),
        (b'"parent": {}', b'"parent": "abc"'),
        (b'"metrics": {}', b'"metrics": [1]'),
        (b'"licence": null', b'"licence": 5'),
        (b'"family": "vitreous"', b'"family": "other"'),
    ],
)
def test_a_field_of_the_wrong_form_is_named(change: tuple[bytes, bytes], tmp_path: Path) -> None:
    folder = damaged(tmp_path, "model.json", lambda data: data.replace(*change))
    key = change[0].decode().split('"')[1]
    with pytest.raises(VitreousError, match=rf"model\.json.*{key}"):
        read_path(folder)


def test_a_random_string_is_not_stored() -> None:
    with pytest.raises(VitreousError, match="is random; a checkpoint keeps the string for evaluation"):
        random_checkpoint("ViT-Ti/16", depth=1, image_size=32, classes=3, preprocess="inception_crop(32)|flip|range(-1,1)")
