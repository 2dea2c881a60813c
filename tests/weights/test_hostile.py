"""Foreign files that are truncated, corrupt, oversized, mislabelled or malicious: one clear line each, nothing executed."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import os
import pickle
import struct
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import timm
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from vitreous.classifier import Classifier, load
from vitreous.cli import main
from vitreous.core.errors import VitreousError
from vitreous.weights.arrays import open_arrays
from vitreous.weights.read import read_path

from conftest import FIXTURES, Reference, random_checkpoint, randomise

NPZ = (FIXTURES / "vt_layernorm_eps.npz").read_bytes()


def fails(path: Path, *words: str) -> None:
    with pytest.raises(VitreousError) as caught:
        read_path(path)
    message = str(caught.value)
    assert "\n" not in message
    assert str(path.name) in message or str(path.parent.name) in message, message
    for word in words:
        assert word in message, message


@pytest.mark.parametrize("name", ["x.npz", "x.safetensors", "x.pth", "x.pt", "x.txt"])
def test_no_file_an_empty_file_and_text(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    fails(path, "no such file")
    path.write_bytes(b"")
    fails(path, "empty")
    path.write_text("I am not a model.")
    fails(path)


def test_a_folder_without_weights_and_one_with_several(tmp_path: Path) -> None:
    fails(tmp_path, "no checkpoint here")
    (tmp_path / "a.npz").write_bytes(NPZ)
    (tmp_path / "b.npz").write_bytes(NPZ)
    fails(tmp_path, "several", "a.npz, b.npz")


@pytest.mark.parametrize("keep", [1, 100, len(NPZ) // 2, len(NPZ) - 30])
def test_a_truncated_npz(keep: int, tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    path.write_bytes(NPZ[:keep])
    fails(path)


@given(st.integers(0, len(NPZ) - 1), st.integers(1, 255))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_flipped_byte_is_noticed_or_harmless(tmp_path_factory: pytest.TempPathFactory, place: int, change: int) -> None:
    """Wherever the damage is: a clear error, or (in a date, say) the very same weights."""
    path = tmp_path_factory.mktemp("flip") / "x.npz"
    path.write_bytes(NPZ[:place] + bytes([NPZ[place] ^ change]) + NPZ[place + 1 :])
    try:
        found = read_path(path)
    except VitreousError as error:
        assert "\n" not in str(error)
    else:
        intact = read_path(FIXTURES / "vt_layernorm_eps.npz")
        for key, tensor in intact.tensors.items():
            assert torch.equal(found.tensors[key], tensor)


def test_an_npz_with_pickled_objects(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", **{"embedding/kernel": np.array([{"a": 1}], dtype=object)})
    fails(tmp_path / "x.npz", "pickled objects", "never loaded")


def npy(header: str, data: bytes) -> bytes:
    text = header.encode().ljust(118) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + data


def test_an_npz_whose_header_claims_more_than_there_is(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(
            "embedding/kernel.npy", npy("{'descr': '<f4', 'fortran_order': False, 'shape': (100000000000, 3)}", b"1234")
        )
    fails(path, "embedding/kernel", "another size")
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(
            "embedding/kernel.npy", npy("{'descr': '<f4', 'fortran_order': False, 'shape': __import__('os')}", b"")
        )
    fails(path, "corrupt")


@pytest.mark.parametrize(
    ("name", "shape", "words"),
    [
        ("head/kernel", (32, 8), ("head/bias",)),
        ("Transformer/encoderblock_0/MlpBlock_3/Dense_1/kernel", (64, 31), ("Dense_1/kernel", "(64, 31)", "(64, 32)")),
        ("Transformer/posembed_input/pos_embedding", (1, 18, 32), ("17 positions", "square")),
        ("embedding/kernel", (4, 4, 32), ("embedding/kernel", "4 axes")),
        ("cls", (1, 1, 16), ("cls", "(1, 1, 16)")),
        ("Transformer/encoderblock_0/MultiHeadDotProductAttention_1/query/kernel", (32, 5, 8), ("heads",)),
        ("Transformer/encoderblock_0/LayerNorm_0/scale", None, ("LayerNorm_0/scale", "missing")),
        ("Transformer/encoderblock_0/MlpBlock_3/Dense_0/kernel", None, ("Dense_0/kernel", "missing")),
    ],
)
def test_arrays_of_the_wrong_shape_or_missing(
    name: str, shape: tuple[int, ...] | None, words: tuple[str, ...], tmp_path: Path
) -> None:
    reference = Reference("vt_layernorm_eps")
    weights = {k.removeprefix("w:"): v for k, v in reference.arrays.items() if k.startswith("w:")}
    assert name in weights
    if shape is None:
        del weights[name]
    else:
        weights[name] = np.zeros(shape, np.float32)
    np.savez(tmp_path / "x.npz", **weights)  # type: ignore[arg-type]
    fails(tmp_path / "x.npz", *words)


def test_arrays_of_a_model_we_do_not_know(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", **{"mixer/kernel": np.zeros(3, np.float32)})
    fails(tmp_path / "x.npz", "not a model that this program knows", "mixer/kernel")
    model = timm.create_model("mixer_s32_224")
    safetensors.torch.save_file(model.state_dict(), tmp_path / "x.safetensors")
    fails(tmp_path / "x.safetensors")
    model = timm.create_model("vit_tiny_patch16_224", qk_norm=True)
    safetensors.torch.save_file(model.state_dict(), tmp_path / "y.safetensors")
    fails(tmp_path / "y.safetensors", "k_norm", "outputs would be wrong")


def test_safetensors_headers(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    good = safetensors.torch.save({"patch_embed.proj.weight": torch.zeros(2, 3, 4, 4)})
    for data in (
        struct.pack("<Q", 1 << 60) + good[8:],  # a header of an exabyte
        good[:20],
        good[:-4],
        struct.pack("<Q", 12) + b'{"a":{"b":1}' + b"\0" * 8,
    ):
        path.write_bytes(data)
        fails(path, "truncated or corrupt")


def test_hugging_face_folders_with_a_bad_config(tmp_path: Path) -> None:
    arrays = {"embeddings.patch_embeddings.projection.weight": torch.zeros(2, 3, 4, 4)}
    safetensors.torch.save_file(arrays, tmp_path / "model.safetensors")
    fails(tmp_path, "config.json")
    (tmp_path / "config.json").write_text("{")
    fails(tmp_path, "not valid JSON")
    (tmp_path / "config.json").write_text('{"model_type": "swin"}')
    fails(tmp_path, "swin", "dinov2")
    (tmp_path / "config.json").write_text('{"model_type": "vit"}')
    fails(tmp_path, "hidden_size")


def test_an_index_that_points_outside_its_folder(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "../../etc/passwd"}}))
    fails(tmp_path, "outside its folder")


# .pt and .pth ---------------------------------------------------------------------------------------------------------


def test_a_state_dict_in_a_pth_is_read_without_unpickling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = randomise(timm.create_model("vit_tiny_patch16_224", num_classes=3, depth=1)).eval()
    odd = {
        "plain.pth": model.state_dict(),
        "nested.pt": {"model": model.state_dict(), "epoch": 3, "note": "hello", "lr": [0.1, 0.2]},
        "parameters.pth": OrderedDict((k, torch.nn.Parameter(v)) for k, v in model.state_dict().items()),
        "half.pth": {k: v.half() for k, v in model.state_dict().items()},
        "strided.pth": {k: v.T.contiguous().T if v.ndim == 2 else v for k, v in model.state_dict().items()},
        "wrapped.pth": {f"module.{k}": v for k, v in model.state_dict().items()},
    }
    for name, content in odd.items():
        torch.save(content, tmp_path / name)

    def never(*_: Any, **__: Any) -> None:
        raise AssertionError("a pickle was loaded")

    monkeypatch.setattr(pickle, "load", never)
    monkeypatch.setattr(pickle, "Unpickler", never)
    monkeypatch.setattr(torch, "load", never)
    images = torch.randn(1, 3, 224, 224)
    for name in odd:
        clf = load(tmp_path / name)
        expected = model(images)
        assert torch.allclose(clf.model(images), expected, atol=1e-2 if name == "half.pth" else 1e-5), name


def test_averaged_weights_are_preferred(tmp_path: Path) -> None:
    models = [randomise(timm.create_model("vit_tiny_patch16_224", num_classes=3, depth=1), seed) for seed in (1, 2)]
    torch.save({"state_dict": models[0].state_dict(), "state_dict_ema": models[1].state_dict()}, tmp_path / "x.pth")
    assert torch.equal(load(tmp_path / "x.pth").model.head.weight, models[1].head.weight)


class Evil:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (open, (str(self.path), "w"))


def test_a_malicious_pth_is_refused_and_nothing_runs(tmp_path: Path) -> None:
    target = tmp_path / "owned"
    torch.save({"a": torch.zeros(2), "b": Evil(target)}, tmp_path / "x.pth")
    fails(tmp_path / "x.pth", "refused", "more than tensors", "open")
    assert not target.exists()


@pytest.mark.parametrize(
    ("content", "word"),
    [
        (torch.nn.Linear(2, 2), "torch.nn.modules.linear"),
        ({"args": __import__("argparse").Namespace(lr=1)}, "argparse.Namespace"),
        ({"a": np.float64(1.0)}, "numpy"),
        ({1, 2}, "refused"),
    ],
)
def test_anything_but_tensors_is_refused(content: Any, word: str, tmp_path: Path) -> None:
    torch.save(content, tmp_path / "x.pth")
    fails(tmp_path / "x.pth", word)


def test_a_legacy_pickle_is_refused(tmp_path: Path) -> None:
    torch.save({"a": torch.zeros(2)}, tmp_path / "x.pth", _use_new_zipfile_serialization=False)
    fails(tmp_path / "x.pth", "never loaded", "safetensors")


def test_a_torchscript_program_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "x.pt", "w") as archive:
        archive.writestr("x/data.pkl", pickle.dumps({}))
        archive.writestr("x/code/__torch__.py", "import os")
    fails(tmp_path / "x.pt", "TorchScript")


def forged(path: Path, change: Any) -> Path:
    """A torch file whose pickle has been rewritten."""
    buffer = io.BytesIO()
    torch.save({"a": torch.arange(6.0).reshape(2, 3)}, buffer)
    with zipfile.ZipFile(buffer) as source, zipfile.ZipFile(path, "w") as target:
        for entry in source.infolist():
            data = source.read(entry)
            target.writestr(entry.filename, change(data) if entry.filename.endswith("data.pkl") else data)
    return path


def test_a_tensor_that_reaches_beyond_its_data(tmp_path: Path) -> None:
    # BININT1 2, BININT1 3 is the shape: make it 2 x 200.
    path = forged(tmp_path / "x.pth", lambda data: data.replace(b"K\x02K\x03", b"K\x02K\xc8"))
    fails(path, "beyond its data")


@given(st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_damaged_pickle_never_escapes(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    def change(program: bytes) -> bytes:
        place = data.draw(st.integers(0, len(program) - 1))
        return program[:place] + bytes([data.draw(st.integers(0, 255))]) + program[place + 1 :]

    path = forged(tmp_path_factory.mktemp("forged") / "x.pth", change)
    try:
        for name, tensor in (arrays := open_arrays(path)).items():
            assert tensor.shape == arrays.shapes[name]
    except VitreousError as error:
        assert "\n" not in str(error)


def test_the_command_line_says_it_in_one_line_and_exits_with_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x.npz").write_bytes(NPZ[:1000])
    assert main(["convert", str(tmp_path / "x.npz"), str(tmp_path / "out")]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert "x.npz" in captured.err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "header",
    [
        "{'descr': '<f4', 'shape': (3",
        "{'descr': '<f4\\n",
        "  {",
        "{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': ()}",
    ],
)
def test_headers_that_are_no_python(header: str, tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("embedding/kernel.npy", npy(header, b"1234"))
    fails(path)


def test_lists_of_lists_do_not_unfold(tmp_path: Path) -> None:
    nested: Any = torch.zeros(1)
    for _ in range(40):
        nested = [nested] * 10
    torch.save({"a": nested}, tmp_path / "x.pth")
    fails(tmp_path / "x.pth", "not a model")


@pytest.mark.parametrize(
    "settings",
    [dict(pretrained_cfg=dict(input_size=5)), dict(pretrained_cfg=dict(crop_pct=0)), dict(pretrained_cfg=dict(mean=5)),
     dict(model_args=dict(img_size=224.5)), dict(model_args=[5]), dict(model_args=dict(act_layer=[5]))],
)  # fmt: skip
def test_timm_configs_with_nonsense(settings: dict[str, Any], tmp_path: Path) -> None:
    model = timm.create_model("vit_tiny_patch16_224", num_classes=3, depth=1)
    safetensors.torch.save_file(model.state_dict(), tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(dict(architecture="vit_tiny_patch16_224", **settings)))
    fails(tmp_path / "model.safetensors")


def test_more_layers_in_the_config_than_in_the_file(tmp_path: Path) -> None:
    import transformers

    kwargs = dict(hidden_size=12, num_hidden_layers=1, num_attention_heads=3, intermediate_size=24, image_size=32, patch_size=8)
    transformers.ViTModel(transformers.ViTConfig(**kwargs)).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 10**7}))
    fails(tmp_path, "1 layers", "10000000")


def test_a_name_that_is_too_long_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["convert", str(FIXTURES / "vt_gap.npz"), str(tmp_path / ("x" * 300))]) == 2
    assert main(["predict", str(tmp_path / ("y" * 300)), "a.png"]) == 2
    assert capsys.readouterr().err.count("\n") == 2


def test_two_models_in_one_file_are_refused_by_name(tmp_path: Path) -> None:
    state = timm.create_model("vit_tiny_patch16_224", num_classes=3, depth=1).state_dict()
    both = {f"{tower}.{key}": value for tower in ("encoder_q", "encoder_k") for key, value in state.items()}
    torch.save(both, tmp_path / "x.pth")
    fails(tmp_path / "x.pth", "several models", "'encoder_k.'", "'encoder_q.'")


# What is loaded must be of use ------------------------------------------------------------------------------------------


def test_weights_that_are_not_finite_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tiny = random_checkpoint("ViT-B/16", width=24, depth=1, heads=3, mlp=24, image_size=32, classes=3)
    for value in (float("nan"), float("inf")):
        bad = {name: torch.full_like(tensor, value) for name, tensor in tiny.tensors.items()}
        Classifier(dataclasses.replace(tiny, tensors=bad)).save(tmp_path / "c")
        assert main(["predict", str(tmp_path / "c"), "x.png"]) == 2
        assert "holds NaN or infinite numbers" in capsys.readouterr().err
    # Sums that overflow say nothing of the numbers themselves.
    large = {name: torch.full_like(tensor, 3e38) for name, tensor in tiny.tensors.items()}
    Classifier(dataclasses.replace(tiny, tensors=large)).save(tmp_path / "large")
    with pytest.raises(VitreousError, match="not finite"):
        load(tmp_path / "large").predict(np.zeros((32, 32, 3), np.uint8))
    Image.new("RGB", (32, 32), "red").save(tmp_path / "x.png")
    assert main(["predict", str(tmp_path / "large"), str(tmp_path / "x.png"), "--workers", "0"]) == 2
    assert "output is not finite" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["~nosuchuser/x.npz", "x" * 5000, "a/" * 3000, "x\0.npz", ""])
def test_names_that_no_file_can_have(name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(FIXTURES)  # `load("")` read the folder that one stood in
    with pytest.raises(VitreousError) as caught:
        load(name)
    assert len(str(caught.value)) < 500
    assert name or "no checkpoint was named" in str(caught.value)
    for words in (["predict", name, "a.png"], ["doctor", name, "--out", "x"], ["evaluate", name, "builtin:digits"]):
        if name:
            assert main(words) == 2
            assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("format", ["vitreous", "timm", "huggingface"])
def test_files_are_for_everyone_whom_the_umask_lets_read(format: Any, tmp_path: Path) -> None:
    tiny = random_checkpoint("ViT-B/16", width=24, depth=1, heads=3, mlp=24, image_size=32, classes=3)
    before = os.umask(0o022)
    try:
        Classifier(tiny).save(tmp_path / "c", format=format)
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "c").iterdir()} == {0o644}


def test_a_damaged_pth_is_one_line_wherever_the_damage_is(tmp_path: Path) -> None:
    """Flags, methods, versions and names of members, in the directory and before the data: six kinds of error in zipfile."""
    torch.save({"patch_embed.proj.weight": torch.zeros(4, 3, 2, 2)}, tmp_path / "good.pth")
    good = (tmp_path / "good.pth").read_bytes()
    headers = [at for mark in (b"PK\x01\x02", b"PK\x03\x04") for at in range(len(good)) if good.startswith(mark, at)]
    for at in headers:
        for offset in (*range(4, 14), 30, 46):
            for change in (0x01, 0x20, 0x80, 0xFF):
                data = bytearray(good)
                data[at + offset] ^= change
                (tmp_path / "x.pth").write_bytes(data)
                with contextlib.suppress(VitreousError):  # the damage may be harmless
                    assert not any(tensor.any() for tensor in open_arrays(tmp_path / "x.pth").values())
