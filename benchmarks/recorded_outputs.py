"""Record what a dozen commands give, byte for byte, so that a change that must not change numbers can prove it.

    python benchmarks/recorded_outputs.py before.json      # before the change
    python benchmarks/recorded_outputs.py after.json       # after it
    diff before.json after.json

Checkpoints, figures' numbers and exports are recorded as SHA-256 of their files, `--json` outputs as they are, without
what differs from run to run (times, speeds, paths). One thread, fixed seeds, built-in data.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import shlex
import sys
import tempfile
from pathlib import Path
from typing import Any

os.environ.update(OMP_NUM_THREADS="1", VITREOUS_CACHE="cache")

from vitreous.cli import main

HERE = "--batch-size 32 --workers 0 --device cpu --precision float32"
SMALL = f"--set model.width=32,model.depth=2,model.heads=2,model.mlp=64 {HERE}"
COMMANDS = f"""
pretrain builtin:digits --model ViT-Ti/2 {SMALL} --steps 30 --eval-every 10 --seed 1 --out base
pretrain builtin:digits --model ViT-Ti/2 --objective masked-patch {SMALL} --steps 10 --out masked
finetune builtin:digits --from base {HERE} --steps 10 --per-class 20 --out tuned
evaluate tuned builtin:digits:test --device cpu --workers 0
fewshot base builtin:digits --shots 1,5 --seeds 2 --device cpu --workers 0
shard builtin:digits shards
doctor builtin:digits --out checked
predict tuned pictures --device cpu --workers 0
inspect tuned pictures --out inside --device cpu
convert tuned official.npz
convert tuned timm --format timm
convert tuned huggingface --format huggingface
verify timm --against tuned
list models
list recipes
list data
"""
KEPT = ("*.safetensors", "*.npz", "*.npy", "*.csv", "findings.jsonl", "*.tar")  # numbers; pages and figures may look better
UNSTEADY = {"seconds", "images_per_second", "model_images_per_second", "out", "path", "finished_before", "cache", "peak_memory"}


def steady(value: Any) -> Any:
    """The value without what differs from run to run."""
    if isinstance(value, dict):
        return {key: steady(inner) for key, inner in value.items() if key not in UNSTEADY}
    return [steady(inner) for inner in value] if isinstance(value, list) else value


def run(line: str) -> dict[str, Any]:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main([*shlex.split(line), "--json"])
        except SystemExit:  # the parser refused it, and has said why
            code = 2
    if code not in (0, 1):
        sys.exit(f"{line}: exit code {code}: {err.getvalue()}")
    return {"exit_code": code, "json": [steady(json.loads(text)) for text in out.getvalue().splitlines()]}


def draw_pictures() -> None:
    import numpy as np
    from PIL import Image

    Path("pictures").mkdir()
    for number in range(3):
        pixels = np.random.default_rng(number).integers(0, 255, (20 + number, 30, 3)).astype(np.uint8)
        Image.fromarray(pixels).save(f"pictures/{number}.png")


if __name__ == "__main__":
    target = Path(sys.argv[1]).absolute()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        draw_pictures()
        found: dict[str, Any] = {line: run(line) for line in COMMANDS.strip().splitlines()}
        files = sorted({path for pattern in KEPT for path in Path().rglob(pattern) if path.parts[0] != "cache"})
        found["files"] = {
            str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files if "state" not in path.parts
        }
        os.chdir("/")
    target.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
    print(f"{len(found) - 1} commands, {len(found['files'])} files recorded in {target.name}")
