"""Inference side by side: vitreous, timm and transformers, the same architecture, the same batch, interleaved in one run.

    python benchmarks/inference.py [--model ViT-B/16] [--batch 8] [--rounds 12] [--activation gelu-tanh]

Prints images per second (median over rounds), each peer's ratio to vitreous, and the share of the machine's own
matrix-multiply peak, measured in the same rounds. A shared machine is noisy: only compare within one run.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torchvision_schemas import declare_torchvision

import vitreous

declare_torchvision()  # timm imports torchvision

# The same GELU for all. The authors' is the tanh form, which torch computes three times slower than erf on a CPU; the
# peers' default is erf, whatever the weights were trained with.
ACTIVATIONS = {"gelu-tanh": ("gelu_tanh", "gelu_pytorch_tanh"), "gelu-erf": ("gelu", "gelu")}


def contenders(name: str, activation: str) -> dict[str, torch.nn.Module]:
    import timm
    import transformers

    ours = vitreous.create(name, activation=activation)
    for_timm, for_transformers = ACTIVATIONS[activation]
    c = ours.config
    out: dict[str, torch.nn.Module] = {"vitreous": ours}
    common = dict(
        img_size=c.image_size,
        patch_size=c.patch,
        embed_dim=c.width,
        depth=c.depth,
        num_heads=c.heads,
        mlp_ratio=c.mlp / c.width,
    )
    out["timm"] = timm.create_model("vit_base_patch16_224", act_layer=for_timm, **common)
    config = transformers.ViTConfig(
        hidden_size=c.width,
        num_hidden_layers=c.depth,
        num_attention_heads=c.heads,
        intermediate_size=c.mlp,
        image_size=c.image_size[0],
        patch_size=c.patch[0],
        num_labels=c.classes,
        hidden_act=for_transformers,
    )
    out["transformers"] = transformers.ViTForImageClassification(config)
    return {engine: model.eval() for engine, model in out.items()}


def timed(function: Callable[[], Any]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="ViT-B/16")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--activation", choices=sorted(ACTIVATIONS), default="gelu-tanh")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()

    models = contenders(options.model, options.activation)
    side = models["vitreous"].config.image_size  # type: ignore[union-attr]
    images = torch.randn(options.batch, 3, *side)  # type: ignore[misc]
    square = torch.randn(2048, 2048)
    work: dict[str, Callable[[], Any]] = {"matmul": lambda: square @ square}
    work |= {engine: (lambda model=model: model(images)) for engine, model in models.items()}
    seconds: dict[str, list[float]] = {what: [] for what in work}
    for function in work.values():
        function()
    for turn in range(options.rounds):
        order = list(work.items())
        for what, function in order[turn % len(order) :] + order[: turn % len(order)]:  # nobody is always first
            seconds[what].append(timed(function))

    peak = 2 * 2048**3 / statistics.median(seconds.pop("matmul"))
    flops = 2 * vitreous.cost(options.model).macs
    speed = {engine: options.batch / statistics.median(s) for engine, s in seconds.items()}
    best_peer = max(value for engine, value in speed.items() if engine != "vitreous")
    for engine, value in speed.items():
        # Ratios round by round, so that a slow moment of the machine weighs on both.
        ratio = statistics.median(own / other for own, other in zip(seconds[engine], seconds["vitreous"], strict=True))
        record = dict(
            what=f"inference {options.model} {options.activation}",
            engine=engine,
            precision="float32",
            batch=options.batch,
            images_per_second=round(value, 2),
            ratio_to_best_peer=round(value / best_peer, 3),
            vitreous_is_faster_by=round(ratio, 3),
            share_of_peak=round(value * flops / peak, 3),
        )
        print(json.dumps(record) if options.json else "  ".join(f"{key}={value}" for key, value in record.items()))


if __name__ == "__main__":
    main()
