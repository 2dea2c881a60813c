"""Few-shot accuracy of frozen features, to compare a checkpoint loaded here with figures from another library.

    python benchmarks/fewshot_figures.py CHECKPOINT IMAGES.tar [--shots 5,10,150]

IMAGES.tar holds SPLIT/CLASS/FILE with splits train and val. The first n images of each class in archive order train the
few-shot classifier (l2 1024) on the checkpoint's own preprocessing; all of val tests it. What another library's figures leave
out, the constant feature, changes no answer here: the features are centred and the classes have equally many images.
"""

from __future__ import annotations

import argparse
import tarfile
import time

import vitreous
from vitreous.data.source import Content, Source
from vitreous.evaluation.fewshot import FewshotTask, fewshot
from vitreous.inference.features import compute_features


class Archive(Source):
    """The files of one split, in the order of the archive, held in memory."""

    def __init__(self, where: str, split: str) -> None:
        self.where, self.split = where, split
        self.files: list[tuple[str, str, bytes]] = []
        with tarfile.open(where) as archive:
            for member in archive:
                file = archive.extractfile(member) if member.isfile() else None
                words = member.name.split("/")
                if file is not None and words[-3] == split:
                    self.files.append((member.name, words[-2], file.read()))
        self.classes = tuple(sorted({name for _, name, _ in self.files}))

    def __len__(self) -> int:
        return len(self.files)

    def id(self, index: int) -> str:
        return self.files[index][0]

    def labels(self, index: int) -> tuple[int, ...]:
        return (self.classes.index(self.files[index][1]),)

    def read(self, index: int) -> Content:
        return self.files[index][2]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint")
    parser.add_argument("images")
    parser.add_argument("--shots", default="5,10,150")
    options = parser.parse_args()

    clf = vitreous.load(options.checkpoint)
    print(clf, *clf.notes, sep="\n  ")
    began = time.perf_counter()
    train, test = (compute_features(clf, Archive(options.images, split), workers=0) for split in ("train", "val"))
    print(f"features of {len(train):,} and {len(test):,} images: {time.perf_counter() - began:.1f} s")
    shots = tuple(map(int, options.shots.split(",")))
    began = time.perf_counter()
    for found in fewshot([FewshotTask(options.images, train, test)], shots=shots, l2=1024.0, draw="first"):
        print(f"{found.shots}-shot {found.accuracy:.1%}")
    print(f"few-shot fits: {time.perf_counter() - began:.2f} s")


if __name__ == "__main__":
    main()
