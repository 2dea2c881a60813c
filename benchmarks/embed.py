"""`vitreous embed` against a plain loop with timm and a DataLoader: the same ViT-Ti/16 weights, images and workers.

    python benchmarks/embed.py DATA [--workers 2] [--runs 3] [--engine onnx]

Both are timed in turn in one process, so that a busy machine slows both; processor seconds, of workers too, are compared as
well. The plain loop is what timm's documentation shows:
its own transform of the same size and filter, batches of 32, `forward_features` and the class token, features gathered in
memory. Ours also writes the file, with ids, labels and checksum. Both models must give the same features of one batch.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import torch
from fewshot_save import clocks
from PIL import Image
from safetensors.torch import load_file

import vitreous
from vitreous.bench.torchvision_import import declare_torchvision
from vitreous.core.progress import silence
from vitreous.weights.checkpoint import Checkpoint, write_checkpoint
from vitreous.weights.write import save_checkpoint

SIZE, BATCH = 224, 32


class Files(torch.utils.data.Dataset):  # type: ignore[type-arg]
    def __init__(self, folder: Path) -> None:
        self.files = sorted(path for path in folder.rglob("*") if path.suffix.lower() in (".jpg", ".jpeg", ".png"))
        mean = std = (0.5, 0.5, 0.5)
        from timm.data import create_transform

        self.transform = create_transform(SIZE, interpolation="bicubic", mean=mean, std=std, crop_pct=0.875)

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> torch.Tensor:
        with Image.open(self.files[index]) as image:
            found: torch.Tensor = self.transform(image.convert("RGB"))
            return found


@torch.inference_mode()
def plain_loop(model: torch.nn.Module, folder: Path, workers: int) -> torch.Tensor:
    loader = torch.utils.data.DataLoader(Files(folder), BATCH, num_workers=workers)
    return torch.cat([model.forward_features(batch)[:, 0] for batch in loader])  # type: ignore[operator]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--engine", default="torch", help="of ours")
    options = parser.parse_args()
    declare_torchvision()
    import timm

    torch.manual_seed(0)
    ours = vitreous.create("ViT-Ti/16", classes=10, norm_eps=1e-6, activation="gelu-erf")
    preprocess = "resize_small(256,bicubic)|central_crop(224)|range(-1,1)"
    checkpoint = Checkpoint(config=ours.config, tensors=dict(ours.state_dict()), preprocess=preprocess)
    with tempfile.TemporaryDirectory() as folder, silence():
        write_checkpoint(checkpoint, Path(folder) / "ours")
        save_checkpoint(checkpoint, Path(folder) / "timm", "timm")
        model = timm.create_model("vit_tiny_patch16_224", num_classes=10).eval()
        model.load_state_dict(load_file(Path(folder) / "timm" / "model.safetensors"))
        images = torch.randn(2, 3, SIZE, SIZE)
        with torch.inference_mode():
            difference = (model.forward_features(images)[:, 0] - ours.eval().features(images)).abs().max()
        print(f"largest difference of features: {difference:.1e}")
        for run in range(options.runs):
            began = clocks()
            count = len(plain_loop(model, options.data, options.workers))
            middle = clocks()
            out = Path(folder) / f"{run}.safetensors"
            embedded = vitreous.embed(
                str(Path(folder) / "ours"), str(options.data), str(out), workers=options.workers, engine=options.engine
            )
            end = clocks()
            theirs, own = count / (middle[0] - began[0]), embedded.images / (end[0] - middle[0])
            work = (middle[1] - began[1]) / (end[1] - middle[1])
            print(f"timm {theirs:.1f} images/s, vitreous embed {own:.1f} images/s: {own / theirs:.2f} times", end="; ")
            print(f"images per processor second: {work:.2f} times", flush=True)


if __name__ == "__main__":
    main()
