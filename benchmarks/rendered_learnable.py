"""Are the rendered sets learnable, and not by looking at colours or single pixels? Prints a table of test accuracies.

    nice -n 10 python benchmarks/rendered_learnable.py

A small network sees each training picture a few times. A linear model and a forest get the same training pictures: ridge
regression on the pixels (halved to 32 x 32), a random forest on the colours alone (a histogram with 64 bins and each
channel's mean and spread).
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import torch
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import RidgeClassifier
from torch import Tensor, nn
from torch.nn import functional as F

import vitreous
from vitreous.data.datasets.builtin import open_builtin
from vitreous.data.source import Source


def load(source: Source, count: int) -> tuple[Tensor, Tensor]:
    pixels = np.stack([source.read(i) for i in range(count)])  # type: ignore[arg-type]
    return torch.from_numpy(pixels).permute(0, 3, 1, 2).contiguous(), torch.from_numpy(source.targets()[:count])


def colours(images: Tensor) -> np.ndarray:
    bins = (images >> 6).long()
    index = (bins[:, 0] * 16 + bins[:, 1] * 4 + bins[:, 2]).flatten(1)
    histogram = torch.stack([torch.bincount(row, minlength=64) for row in index]).float() / index.shape[1]
    channels = images.flatten(2).float() / 255
    return torch.cat([histogram, channels.mean(2), channels.std(2)], dim=1).numpy()


def halved(images: Tensor) -> np.ndarray:
    return (F.avg_pool2d(images.float(), 2).flatten(1) / 127.5 - 1).numpy()


class Convolutions(nn.Sequential):
    """Five layers, then a linear one on all 4 x 4 places that are left, or on the strongest answer anywhere."""

    def __init__(self, classes: int, places: bool) -> None:
        layers: list[nn.Module] = []
        for before, after, stride in ((3, 24, 2), (24, 48, 2), (48, 64, 2), (64, 96, 1), (96, 96, 2)):
            layers += [nn.Conv2d(before, after, 3, stride, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU()]
        if not places:
            layers.append(nn.AdaptiveMaxPool2d(1))
        super().__init__(*layers, nn.Flatten(), nn.Linear(96 * 16 if places else 96, classes))


def network(name: str, task: str, classes: int) -> nn.Module:
    torch.manual_seed(0)
    if name == "convolutions":
        return Convolutions(classes, places=task == "position")
    return vitreous.create("ViT-Ti/8", width=128, heads=4, mlp=512, depth=4, image_size=64, classes=classes)


def train(model: nn.Module, images: Tensor, targets: Tensor, epochs: int, lr: float, batch: int = 64) -> None:
    """AdamW with a warm-up and a linear decay."""
    optimiser = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.05)
    generator = torch.Generator().manual_seed(0)
    steps = epochs * len(images) // batch
    model.train()
    for step in range(steps):
        for group in optimiser.param_groups:
            group["lr"] = lr * min(1, (step + 1) / 100, (steps - step) / steps)
        if step * batch % len(images) < batch:
            order = torch.randperm(len(images), generator=generator)
        chosen = order[torch.arange(step * batch, (step + 1) * batch) % len(images)]
        loss = F.cross_entropy(model(images[chosen].float() / 127.5 - 1), targets[chosen])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()


@torch.no_grad()
def accuracy(model: nn.Module, images: Tensor, targets: Tensor) -> float:
    model.eval()
    found = torch.cat([model(part.float() / 127.5 - 1).argmax(1) for part in images.split(250)])
    return float((found == targets).float().mean())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--images", type=int, default=30_000, help="to train on")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--tasks", nargs="+", default=["shapes", "position", "orientation"])
    parser.add_argument("--networks", nargs="+", default=["convolutions"], choices=["convolutions", "ViT"])
    parser.add_argument("--threads", type=int, default=1)
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    for task in asked.tasks:
        data = open_builtin(f"{task}?count={asked.images}")
        begun = time.process_time()
        train_x, train_y = load(data.source("train"), asked.images)  # type: ignore[arg-type]
        rate = asked.images / (time.process_time() - begun)
        test_x, test_y = load(data.source("test"), 2_000)  # type: ignore[arg-type]
        print(f"{task}: {asked.images:,} pictures, {rate:.0f} rendered a second of CPU", flush=True)
        print(f"  chance              {1 / len(data.classes):.1%}", flush=True)
        forest = RandomForestClassifier(60, random_state=0, max_depth=12).fit(colours(train_x), train_y.numpy())
        print(f"  forest on colours   {forest.score(colours(test_x), test_y.numpy()):.1%}", flush=True)
        ridge = RidgeClassifier(alpha=1e3).fit(halved(train_x), train_y.numpy())
        print(f"  ridge on pixels     {ridge.score(halved(test_x), test_y.numpy()):.1%}", flush=True)
        for name in asked.networks:
            model = network(name, task, len(data.classes))
            begun = time.process_time()
            train(model, train_x, train_y, asked.epochs, 1e-3 if name == "ViT" else 3e-3)
            spent = time.process_time() - begun
            print(f"  {name:<19} {accuracy(model, test_x, test_y):.1%}  ({spent:.0f} s of CPU to train)", flush=True)


if __name__ == "__main__":
    main()
