"""Few-shot accuracy of frozen features, to compare a checkpoint loaded here with figures from another library.

    python benchmarks/fewshot_figures.py CHECKPOINT IMAGES.tar [--shots 5,10,150]

IMAGES.tar holds SPLIT/CLASS/FILE with splits train and val. The first n images of each class in archive order train a
ridge (lambda 1024, targets -1 and 1) on features standardised over that subset; all of val tests it.
"""

from __future__ import annotations

import argparse
import io
import tarfile

import torch
from PIL import Image

import vitreous


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint")
    parser.add_argument("images")
    parser.add_argument("--shots", default="5,10,150")
    options = parser.parse_args()

    images: dict[str, list[Image.Image]] = {"train": [], "val": []}
    labels: dict[str, list[str]] = {"train": [], "val": []}
    with tarfile.open(options.images) as archive:
        for member in archive:
            file = archive.extractfile(member) if member.isfile() else None
            if file is not None:
                split, name = member.name.split("/")[-3:-1]
                images[split].append(Image.open(io.BytesIO(file.read())).copy())
                labels[split].append(name)
    classes = sorted(set(labels["train"]))
    clf = vitreous.load(options.checkpoint)
    print(clf, *clf.notes, sep="\n  ")
    x = {split: clf.features(pictures).double() for split, pictures in images.items()}
    y = {split: torch.tensor([classes.index(name) for name in names]) for split, names in labels.items()}
    for shots in map(int, options.shots.split(",")):
        chosen = torch.cat([(y["train"] == k).nonzero().flatten()[:shots] for k in range(len(classes))])
        mean, std = x["train"][chosen].mean(dim=0), x["train"][chosen].std(dim=0, correction=0) + 1e-5
        train, test = (x["train"][chosen] - mean) / std, (x["val"] - mean) / std
        targets = 2.0 * torch.nn.functional.one_hot(y["train"][chosen], len(classes)).double() - 1
        weight = torch.linalg.solve(train.T @ train + 1024 * torch.eye(train.shape[1]), train.T @ targets)
        accuracy = float(((test @ weight).argmax(dim=1) == y["val"]).double().mean())
        print(f"{shots}-shot {accuracy:.1%}")


if __name__ == "__main__":
    main()
