"""One image from a new process to its classes: imports, weights, preprocessing and the model, as a user waits for them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from vitreous.bench.models import CHECKPOINT, PHOTOGRAPHS
from vitreous.bench.race import Failed, Work

# What a user of each library writes to have an image classified.
_TIMM = """
import sys
from vitreous.bench.torchvision_import import declare_torchvision
declare_torchvision()
import timm, torch
from PIL import Image
model = timm.create_model("local-dir:" + sys.argv[1], pretrained=True).eval()
transform = timm.data.create_transform(**timm.data.resolve_model_data_config(model))
with torch.inference_mode():
    probabilities = model(transform(Image.open(sys.argv[2]).convert("RGB"))[None]).softmax(-1)
print(probabilities.topk(min(5, probabilities.shape[1])))
"""
_TRANSFORMERS = """
import sys
from vitreous.bench.torchvision_import import declare_torchvision
declare_torchvision()
import torch, transformers
from PIL import Image
model = transformers.AutoModelForImageClassification.from_pretrained(sys.argv[1]).eval()
processor = transformers.AutoImageProcessor.from_pretrained(sys.argv[1])
with torch.inference_mode():
    inputs = processor(Image.open(sys.argv[2]).convert("RGB"), return_tensors="pt")
    probabilities = model(**inputs).logits.softmax(-1)
print(probabilities.topk(min(5, probabilities.shape[1])))
"""
SCRIPTS = {"timm": _TIMM, "transformers": _TRANSFORMERS}


def start_step(work: Work) -> Callable[[], Any]:
    folder = Path(work.folder)
    image = str(min((folder / PHOTOGRAPHS).rglob("*.jpg")))
    if work.library == "vitreous":
        command = [sys.executable, "-m", "vitreous", "predict", str(folder / CHECKPOINT), image]
    else:
        command = [sys.executable, "-c", SCRIPTS[work.library], str(folder / work.library), image]

    def step() -> None:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise Failed(done.stderr.strip().splitlines()[-1] if done.stderr.strip() else f"ended with code {done.returncode}")

    return step
