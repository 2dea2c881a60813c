"""Tiny data sets in their original file formats, written from scratch."""

from __future__ import annotations

import gzip
import io
import shutil
import struct
import tarfile
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import scipy.io
from numpy.typing import NDArray
from PIL import Image


def make_image(seed: int, size: tuple[int, int] = (12, 9)) -> bytes:
    """A JPEG file; another seed, another image."""
    low = np.random.default_rng(seed).integers(0, 256, (3, 3, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(low).resize(size, Image.Resampling.BICUBIC).save(file, "JPEG", quality=95)
    return file.getvalue()


def tar(path: Path, files: Mapping[str, bytes], mode: str = "w:gz") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, mode) as archive:  # type: ignore[call-overload]
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))


def zipped(path: Path, files: Mapping[str, bytes]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)


def unpack_all(folder: Path) -> None:
    """What a person does with tar and unzip."""
    for path in sorted(folder.iterdir()):
        if path.suffix in (".tgz", ".zip") or path.name.endswith(".tar.gz"):
            shutil.unpack_archive(path, folder)
            path.unlink()
            if (folder / path.stem).is_dir():
                unpack_all(folder / path.stem)
        elif path.suffix == ".gz":
            path.with_suffix("").write_bytes(gzip.decompress(path.read_bytes()))
            path.unlink()


# Arrays ---------------------------------------------------------------------------------------------------------------------

Arrays = dict[str, tuple[NDArray[np.uint8], NDArray[np.int64]]]


def _arrays(shape: tuple[int, ...], classes: int, train: int = 15, test: int = 4) -> Arrays:
    rng = np.random.default_rng(0)
    return {
        split: (rng.integers(0, 256, (count, *shape), dtype=np.uint8), rng.integers(0, classes, count))
        for split, count in (("train", train), ("test", test))
    }


def _records(images: NDArray[np.uint8], labels: NDArray[np.int64], coarse: bool) -> bytes:
    parts = []
    for image, label in zip(images, labels, strict=True):
        planes = b"".join(image[:, :, channel].tobytes() for channel in range(3))  # red, green, blue, each row by row
        parts.append((bytes([int(label) // 5]) if coarse else b"") + bytes([int(label)]) + planes)
    return b"".join(parts)


def cifar10(root: Path) -> Arrays:
    data = _arrays((32, 32, 3), 10)
    images, labels = data["train"]
    files = {
        f"cifar-10-batches-bin/data_batch_{n + 1}.bin": _records(images[3 * n : 3 * n + 3], labels[3 * n : 3 * n + 3], False)
        for n in range(5)
    }
    files["cifar-10-batches-bin/test_batch.bin"] = _records(*data["test"], False)
    names = "airplane automobile bird cat deer dog frog horse ship truck".replace(" ", "\n")
    files["cifar-10-batches-bin/batches.meta.txt"] = f"{names}\n\n".encode()
    files["cifar-10-batches-bin/readme.html"] = b"<html>"
    tar(root / "cifar-10-binary.tar.gz", files)
    return data


def cifar100(root: Path) -> Arrays:
    data = _arrays((32, 32, 3), 100)
    files = {
        "cifar-100-binary/train.bin": _records(*data["train"], True),
        "cifar-100-binary/test.bin": _records(*data["test"], True),
        "cifar-100-binary/fine_label_names.txt": "\n".join(f"fine {n}" for n in range(100)).encode(),
        "cifar-100-binary/coarse_label_names.txt": "\n".join(f"coarse {n}" for n in range(20)).encode(),
    }
    tar(root / "cifar-100-binary.tar.gz", files)
    return data


def idx(array: NDArray[np.uint8]) -> bytes:
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()


def mnist(root: Path) -> Arrays:
    data = _arrays((28, 28), 10)
    root.mkdir(parents=True, exist_ok=True)
    for split, stem in (("train", "train"), ("test", "t10k")):
        images, labels = data[split]
        (root / f"{stem}-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(images)))
        (root / f"{stem}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(labels.astype(np.uint8))))
    return data


def svhn(root: Path) -> Arrays:
    data = _arrays((32, 32, 3), 10)
    root.mkdir(parents=True, exist_ok=True)
    for split, (images, labels) in data.items():
        column = np.where(labels == 0, 10, labels).astype(np.uint8)[:, None]
        variables = {"X": images.transpose(1, 2, 3, 0), "y": column}
        scipy.io.savemat(root / f"{split}_32x32.mat", variables, do_compression=True)
    return data


ARRAY_SETS: dict[str, Callable[[Path], Arrays]] = {
    "cifar10": cifar10,
    "cifar100": cifar100,
    "mnist": mnist,
    "fashion-mnist": mnist,
    "svhn": svhn,
}

# Images: for each split, the id, the name of the class and the bytes of each item, in its order --------------------------

Images = dict[str, list[tuple[str, str, bytes]]]


def pets(root: Path) -> Images:
    breeds = ["Abyssinian", "american_bulldog", "wheaten_terrier"]
    lists = {"train": [(1, 1), (1, 2), (2, 10), (3, 7)], "test": [(3, 1), (2, 1), (1, 100)]}
    found: Images = {}
    images, texts = {"images/stray.mat": b"?"}, {"annotations/README": b"read me", "annotations/trimaps/a.png": b"?"}
    for split, file in (("train", "trainval"), ("test", "test")):
        lines = []
        found[split] = []
        for label, number in lists[split]:
            name = f"{breeds[label - 1]}_{number}"
            images[f"images/{name}.jpg"] = content = make_image(100 * label + number)
            lines.append(f"{name} {label} {1 if label == 1 else 2} {label}")
            found[split].append((f"images/{name}.jpg", breeds[label - 1].replace("_", " "), content))
        texts[f"annotations/{file}.txt"] = ("\n".join(lines) + "\n").encode()
    texts["annotations/list.txt"] = b"#Image CLASS-ID SPECIES BREED ID\n"
    texts["annotations/._test.txt"] = b"\0clutter"
    tar(root / "images.tar.gz", images)
    tar(root / "annotations.tar.gz", texts)
    return found


FLOWERS = {1: "pink primrose", 51: "petunia", 102: "blackberry lily"}


def flowers102(root: Path) -> Images:
    labels = [1, 51, 102, 51, 1, 102, 102, 1]
    sets = {"train": [8, 4, 3], "validation": [1, 2], "test": [5, 6, 7]}
    files = {f"jpg/image_{n:05d}.jpg": make_image(n) for n in range(1, 9)}
    tar(root / "102flowers.tgz", files)
    scipy.io.savemat(root / "imagelabels.mat", {"labels": np.array([labels], np.uint8)})
    keys = {"trnid": sets["train"], "valid": sets["validation"], "tstid": sets["test"]}
    scipy.io.savemat(root / "setid.mat", {key: np.array([value], np.uint16) for key, value in keys.items()})
    return {
        split: [(f"jpg/image_{n:05d}.jpg", FLOWERS[labels[n - 1]], files[f"jpg/image_{n:05d}.jpg"]) for n in numbers]
        for split, numbers in sets.items()
    }


def dtd(root: Path) -> Images:
    lists = {
        "train": ["banded/banded_0002.jpg", "zigzagged/zigzagged_0001.jpg"],
        "validation": ["banded/banded_0004.jpg", "lined/lined_0003.jpg"],
        "test": ["zigzagged/zigzagged_0009.jpg", "lined/lined_0001.jpg", "banded/banded_0001.jpg"],
    }
    files: dict[str, bytes] = {"dtd/imdb/imdb.mat": b"?", "dtd/labels/train2.txt": b"banded/banded_0001.jpg\n"}
    found: Images = {}
    for split, short in (("train", "train"), ("validation", "val"), ("test", "test")):
        files[f"dtd/labels/{short}1.txt"] = ("\n".join(lists[split]) + "\n").encode()
        found[split] = []
        for line in lists[split]:
            files[f"dtd/images/{line}"] = make_image(sum(line.encode()))
            found[split].append((f"images/{line}", line.split("/")[0], files[f"dtd/images/{line}"]))
    tar(root / "dtd-r1.0.1.tar.gz", files)
    return found


def eurosat(root: Path) -> Images:
    names = [("AnnualCrop", 1), ("AnnualCrop", 2), ("Forest", 1), ("SeaLake", 1), ("SeaLake", 10), ("SeaLake", 2)]
    listed = [(f"{name}/{name}_{n}.jpg", name, make_image(n + len(name), (64, 64))) for name, n in names]
    zipped(root / "EuroSAT.zip", {f"2750/{path}": content for path, _, content in listed})
    return {"all": listed}


def caltech101(root: Path) -> Images:
    names = [("Faces", 1), ("Faces", 2), ("accordion", 1), ("accordion", 2), ("accordion", 3), ("yin_yang", 1)]
    listed = [(f"{name}/image_{n:04d}.jpg", name, make_image(n + len(name))) for name, n in names]
    inner = root / "inner.tar.gz"
    files = {f"101_ObjectCategories/{path}": content for path, _, content in listed}
    files["101_ObjectCategories/BACKGROUND_Google/image_0001.jpg"] = make_image(5)
    files["101_ObjectCategories/BACKGROUND_Google/tmp"] = b"a stray file that is really there"
    tar(inner, files)
    content = {
        "caltech-101/show_annotation.m": b"",
        "caltech-101/101_ObjectCategories.tar.gz": inner.read_bytes(),
        "caltech-101/Annotations.tar": b"?",
        "__MACOSX/caltech-101/._101_ObjectCategories.tar.gz": b"?",
    }
    zipped(root / "caltech-101.zip", content)
    inner.unlink()
    return {"all": listed}


IMAGE_SETS: dict[str, Callable[[Path], Images]] = {
    "pets": pets,
    "flowers102": flowers102,
    "dtd": dtd,
    "eurosat": eurosat,
    "caltech101": caltech101,
}

# ImageNet -------------------------------------------------------------------------------------------------------------------


def devkit(root: Path, synsets: list[tuple[str, str]], truth: list[str]) -> None:
    """`synsets` in the devkit's own order, with an inner node at the end; `truth` by synset."""
    fields = ["ILSVRC2012_ID", "WNID", "words", "gloss", "num_children", "children", "wordnet_height", "num_train_images"]
    table = np.empty((len(synsets) + 1, 1), dtype=[(field, object) for field in fields])
    for row, (synset, words) in enumerate([*synsets, ("n00001740", "entity")]):
        inner = row == len(synsets)
        children = np.array([[1, 2]], np.uint8) if inner else np.zeros((1, 0), np.uint8)
        values = (row + 1, synset, words, "what it is", 2 if inner else 0, children, 0, 1300)
        for field, value in zip(fields, values, strict=True):
            table[row, 0][field] = value
    meta = io.BytesIO()
    scipy.io.savemat(meta, {"synsets": table}, do_compression=True)
    number = {synset: row + 1 for row, (synset, _) in enumerate(synsets)}
    lines = "".join(f"{number[synset]}\n" for synset in truth)
    files = {
        "ILSVRC2012_devkit_t12/data/meta.mat": meta.getvalue(),
        "ILSVRC2012_devkit_t12/data/ILSVRC2012_validation_ground_truth.txt": lines.encode(),
        "ILSVRC2012_devkit_t12/readme.txt": b"read me",
    }
    tar(root / "ILSVRC2012_devkit_t12.tar.gz", files)
