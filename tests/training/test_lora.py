"""`vitreous finetune --train lora`: factors beside frozen matrices; what leaves a run is an ordinary model."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from runs import child, digest, finished, states, together, wait_for
from safetensors.numpy import load_file
from torch import nn

import vitreous
from vitreous.classifier import Classifier
from vitreous.core.errors import VitreousError
from vitreous.models.build import create
from vitreous.training.lora import add_lora, is_factor, merged

from conftest import random_checkpoint

SIZES: dict[str, Any] = dict(width=24, depth=2, heads=3, mlp=48, image_size=8, classes=10, channels=1)
LAYERS = ("attention.qkv", "mlp.up", "mlp.down")


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    torch.manual_seed(0)
    Classifier(random_checkpoint("ViT-Ti/2", preprocess="resize(8)|range(-1,1)", **SIZES)).save(tmp_path / "checkpoint")
    return str(tmp_path / "checkpoint")


OPTIONS: dict[str, Any] = dict(train="lora", subset=200, steps=8, batch_size=32, eval_every=4, workers=0, device="cpu")
OPTIONS |= dict(save_every=2, set=("lora_rank=3", "lora_scale=1.5", "dropout=0.1", "average=0.5"), precision="float32")


def finetune(checkpoint: str, out: Path, **options: Any) -> Any:
    return vitreous.finetune("builtin:digits", from_=checkpoint, out=str(out), **(OPTIONS | options))


def words(checkpoint: str, out: Path) -> list[str]:
    """The same as a command."""
    listed = [f"--{name.replace('_', '-')}={value}" for name, value in OPTIONS.items() if name != "set"]
    return [
        "finetune",
        "builtin:digits",
        "--from",
        checkpoint,
        "--out",
        str(out),
        *listed,
        *(f"--set={s}" for s in OPTIONS["set"]),
    ]


def test_factors_that_are_zero_change_nothing_and_alone_learn() -> None:
    model = create("ViT-Ti/2", **SIZES)
    images = torch.randn(2, 1, 8, 8)
    before = model(images)
    add_lora(model, rank=4, scale=2.0)
    assert torch.equal(model(images), before)
    sizes = {name: parameter.numel() for name, parameter in model.named_parameters() if is_factor(name)}
    # Each of two layers: r (in + out) of U_qkv, 24 to 72, and of the MLP, 24 to 48 and back.
    assert sum(sizes.values()) == 2 * 4 * ((24 + 72) + (24 + 48) + (48 + 24))


def test_outputs_are_those_of_the_sum_of_both_matrices() -> None:
    """By hand, into a second model; peft's outputs and merged weights were compared once (docs/log.md)."""
    torch.manual_seed(0)
    ours, plain = create("ViT-Ti/2", **SIZES), create("ViT-Ti/2", **SIZES)
    nn.init.normal_(ours.head.weight)
    state = {name: tensor.clone() for name, tensor in ours.state_dict().items()}
    add_lora(ours, rank=4, scale=2.0)
    factors = {name: nn.init.normal_(factor, std=0.1) for name, factor in ours.named_parameters() if is_factor(name)}
    for layer in {name.removesuffix(".lora.a") for name in factors if name.endswith(".a")}:
        a, b = (factors[f"{layer}.lora.{name}"].detach().double() for name in "ab")
        state[f"{layer}.weight"] = (state[f"{layer}.weight"].double() + 2.0 * torch.einsum("or,ri->oi", b, a)).float()
    assert {name.partition(".lora")[0].partition(".")[2][2:] for name in factors} == {*LAYERS}
    plain.load_state_dict(state)
    images = torch.randn(2, 1, 8, 8)
    expected = plain(images)
    assert torch.allclose(ours(images), expected, atol=1e-5)
    with merged(ours):
        assert torch.allclose(ours(images), expected, atol=1e-5)
        assert ours.state_dict().keys() == state.keys()
        assert all(torch.allclose(tensor, state[name], atol=1e-6) for name, tensor in ours.state_dict().items())


def test_merging_is_undone_to_the_bit() -> None:
    model = create("ViT-Ti/2", **SIZES)
    add_lora(model, rank=4, scale=2.0)
    for name, parameter in model.named_parameters():
        if is_factor(name):
            nn.init.normal_(parameter)
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    kept = dict(model.named_parameters())
    with merged(model):
        assert not any(map(is_factor, model.state_dict()))
    after = dict(model.named_parameters())
    assert list(after) == list(before)
    assert all(after[name] is kept[name] and torch.equal(after[name], before[name]) for name in before)


def test_the_checkpoint_holds_merged_weights_which_were_validated(checkpoint: str, tmp_path: Path) -> None:
    out = tmp_path / "run"
    finetune(checkpoint, out, set=("lora_rank=3", "lora_scale=1.5", "head_start=zero"))
    start, result = load_file(f"{checkpoint}/model.safetensors"), load_file(out / "checkpoint" / "model.safetensors")
    assert result.keys() == start.keys()
    assert all(array.dtype == np.float32 for array in result.values())
    (shard,) = sorted((out / "state").glob("step-*"))[-1].glob("*.safetensors")
    state = load_file(shard)
    changed = []
    for name, before in start.items():
        expected = state[f"objective.model.{name}"]
        factors = [state.get(f"objective.model.{name.removesuffix('.weight')}.lora.{factor}") for factor in "ab"]
        if factors[0] is not None:
            assert np.array_equal(expected, before)  # frozen
            expected = before + 1.5 * factors[1] @ factors[0]
            changed.append(name)
        np.testing.assert_allclose(result[name], expected, atol=1e-6, err_msg=name)
    assert len(changed) == 6
    assert all(not np.array_equal(result[name], start[name]) for name in changed)
    (found,) = vitreous.evaluate(out, "builtin:digits:validation", workers=0).records()
    assert found["top1"] == pytest.approx(json.loads((out / "checkpoint" / "model.json").read_text())["metrics"]["top1"])


def test_killed_it_ends_with_the_same_bytes(checkpoint: str, tmp_path: Path) -> None:
    finetune(checkpoint, tmp_path / "whole")
    out = tmp_path / "killed"
    process = child(out, {"RANK": "0"}, words(checkpoint, out))
    assert wait_for(lambda: max(states(out), default=0) >= 4, process)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert not (out / "checkpoint" / "model.safetensors").exists()
    finetune(checkpoint, out)
    for name in ("", "raw/", "best/"):
        assert digest(out, f"checkpoint/{name}model.safetensors") == digest(
            tmp_path / "whole", f"checkpoint/{name}model.safetensors"
        )


def test_a_tiny_model_is_warned_of(checkpoint: str, tmp_path: Path) -> None:
    finetune(checkpoint, tmp_path / "run", steps=1)
    assert "LoRA lost on a model 32 wide" in (tmp_path / "run" / "log.txt").read_text()
    finetune(checkpoint, tmp_path / "all", steps=1, train="all", set=())
    assert "LoRA" not in (tmp_path / "all" / "log.txt").read_text()


def test_two_processes_train_as_one(checkpoint: str, tmp_path: Path) -> None:
    plain: dict[str, Any] = dict(set=("lora_rank=3",))
    finetune(checkpoint, tmp_path / "one", **plain)
    listed = [word for word in words(checkpoint, tmp_path / "two") if not word.startswith("--set=")]
    finished(together(tmp_path / "two", words=[*listed, "--set=lora_rank=3"]))
    one, two = (load_file(tmp_path / name / "checkpoint" / "model.safetensors") for name in ("one", "two"))
    assert all(np.allclose(one[name], two[name], atol=1e-4) for name in one)


def test_what_it_is_not_for_is_refused_in_one_line(checkpoint: str, tmp_path: Path) -> None:
    with pytest.raises(VitreousError, match="--parallel fsdp: --train lora merges whole matrices"):
        finetune(checkpoint, tmp_path / "run", parallel="fsdp")
    with pytest.raises(VitreousError, match=r"--train lora: a model from scratch .* give --from"):
        finetune("scratch", tmp_path / "run", model="ViT-Ti/2")
    with pytest.raises(VitreousError, match=r"--set lora_rank=0"):
        finetune(checkpoint, tmp_path / "run", set=("lora_rank=0",))
    sizes = dict(units=(1, 1, 1, 1), width=32, image_size=32, classes=10, channels=1)
    Classifier(random_checkpoint("R50x1", preprocess="resize(32)|range(-1,1)", **sizes)).save(tmp_path / "resnet")
    with pytest.raises(VitreousError, match=r"--train lora is for models with attention; R14x0\.5"):
        finetune(str(tmp_path / "resnet"), tmp_path / "run", set=())
    assert not (tmp_path / "run").exists()
