"""Every example that the help shows is run as it stands, on small stand-ins for what it names."""

from __future__ import annotations

import inspect
import re
import shlex
import shutil
from pathlib import Path

import httpx
import numpy as np
import pytest
from PIL import Image

from data import originals
from vitreous.cli import COMMANDS, _overview, _parse, load_command, main
from vitreous.weights.checkpoint import write_checkpoint
from vitreous.weights.write import save_checkpoint

from conftest import random_checkpoint

EXAMPLES = {
    "overview": re.findall(r"Example: vitreous (.*)", _overview()),
    **{name: re.findall(r"Example: vitreous (.*)", inspect.getdoc(load_command(name)) or "") for name in COMMANDS},
}
SMALLER = {  # appended, where the example itself would take long, or meet what else listens on its port
    "pretrain": "--epochs 1 --subset 16 --workers 0",
    "finetune": "--steps 1 --batch-size 2 --workers 0",
    "evaluate": "--workers 0",
    "fewshot": "--workers 0",
    "vtab": "--tasks camelyon --workers 0",
    "predict": "--workers 0",
    "embed": "--workers 0",
    "choose": "--workers 0",
    "bench": "--image-size 32 --batch-size 1",
    "inspect": "--count 2 --projection none",
    "serve": "--port 0 --examples photos",
}
PETS = ("Abyssinian", "american bulldog", "wheaten terrier")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as the examples' reader has it, and a cache in which the named weights and data lie."""
    folder = tmp_path_factory.mktemp("world")
    rng = np.random.default_rng(0)
    for label in ("cat", "dog"):
        (folder / "photos" / label).mkdir(parents=True)
        for number in range(36):  # of which 25 remain where 30 % are held out
            Image.fromarray(rng.integers(0, 256, (32, 40, 3), np.uint8)).save(folder / "photos" / label / f"{number}.png")
    shutil.copy(folder / "photos" / "cat" / "0.png", folder / "cat.jpg")
    shutil.copytree(folder / "photos" / "dog", folder / "more-photos")
    tiny = random_checkpoint("ViT-B/16", width=24, depth=1, heads=3, mlp=24, image_size=32, classes=3, names=PETS)
    for place in ("runs/pets/checkpoint", "runs/older/checkpoint"):
        write_checkpoint(tiny, folder / place)
    weights = folder / "cache" / "vit_models" / "imagenet21k" / "ViT-B_16.npz"
    for place in (folder / "ViT-B_16.npz", weights):
        save_checkpoint(tiny, place, "official")
    save_checkpoint(tiny, folder / "cache" / "hf" / "google" / "vit-base-patch16-224", "huggingface")
    originals.pets(folder / "cache" / "data" / "pets")
    for split in ("train800", "val200", "test"):
        (folder / "vtab-1k" / "patch_camelyon" / split).mkdir(parents=True)
        names = [f"{split}/{number}.png" for number in range(4)]
        for number, name in enumerate(names):
            shutil.copy(folder / "photos" / "cat" / f"{number}.png", folder / "vtab-1k" / "patch_camelyon" / name)
        lines = [f"{name} {number % 2}\n" for number, name in enumerate(names)]
        (folder / "vtab-1k" / "patch_camelyon" / f"{split}.txt").write_text("".join(lines))
    return folder


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_example_runs(name: str, world: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    (example,) = EXAMPLES[name]
    monkeypatch.chdir(world)
    monkeypatch.setenv("VITREOUS_CACHE", str(world / "cache"))
    command, *words = shlex.split(f"{example} {SMALLER.get(name, '')}")
    if command in ("demo", "serve", "study"):
        call, *_ = _parse(command, words)
        if command == "serve":  # until a signal, if it were not for `with`
            with call() as serving:  # type: ignore[attr-defined]
                assert httpx.get(f"{serving.url}/models").status_code == 200
        return  # the demo takes minutes (make demo runs it), a study hours (tests/studies run small ones)
    if command == "similar" and not Path("features.safetensors").exists():
        assert main([*shlex.split(EXAMPLES["embed"][0]), "--workers", "0"]) == 0
    code = main([command, *words])
    printed = capsys.readouterr()
    assert code == 0, printed.err
    assert printed.out
