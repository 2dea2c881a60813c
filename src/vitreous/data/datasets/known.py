"""The table of known data sets: title, size, licence, original files and how to open them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from vitreous.data.datasets.cifar import CIFAR10, CIFAR100, open_cifar
from vitreous.data.datasets.class_folders import open_caltech101, open_eurosat
from vitreous.data.datasets.dataset_dir import DatasetDir
from vitreous.data.datasets.dtd import open_dtd
from vitreous.data.datasets.flowers import open_flowers102
from vitreous.data.datasets.imagenet import open_imagenet
from vitreous.data.datasets.mnist import CLOTHES, DIGITS, open_mnist
from vitreous.data.datasets.pets import open_pets
from vitreous.data.datasets.svhn import open_svhn
from vitreous.data.source import ALL, Dataset


@dataclass(frozen=True)
class OriginalFile:
    """One file as its authors distribute it. md5 where they or others have published no better."""

    url: str
    sha256: str | None = None
    md5: str | None = None

    @property
    def name(self) -> str:
        return self.url.rpartition("/")[2]


@dataclass(frozen=True)
class KnownDataset:
    name: str
    title: str
    classes: int
    images: Mapping[str, int]  # of each split, as published
    terms: str  # the licence, or what the authors' page says
    page: str
    open: Callable[[DatasetDir], Dataset]
    files: tuple[OriginalFile, ...] = ()  # to fetch; none where the terms forbid that
    by_hand: str = ""  # what to put into the directory, where it is not the files above
    megabytes: int = 0  # to fetch
    aliases: tuple[str, ...] = ()
    installed: tuple[str, ...] = ()  # where packages of the system put it
    # Paths that are together in this set's original layout and in no other: a folder that holds one of these groups is the set.
    signs: tuple[tuple[str, ...], ...] = ()
    kind: str = "real"  # photographs, scans, satellite images; the rendered sets are the built-in ones

    @property
    def needed(self) -> str:
        return self.by_hand or ", ".join(file.name for file in self.files)


_KRIZHEVSKY = "https://www.cs.toronto.edu/~kriz"
_MNIST = "https://ossci-datasets.s3.amazonaws.com/mnist"  # a copy; the authors' own server refuses most requests
_FASHION = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com"
_OXFORD = "https://www.robots.ox.ac.uk/~vgg/data"
_STANFORD = "http://ufldl.stanford.edu/housenumbers"
_IDX = tuple((f"{at}train-images{sign}idx3-ubyte{ending}",) for at in ("", "raw/") for sign in "-." for ending in ("", ".gz"))

SETS: tuple[KnownDataset, ...] = (
    KnownDataset(
        name="cifar10",
        title="CIFAR-10",
        classes=10,
        images={"train": 50_000, "test": 10_000},
        terms="no licence stated; cite Krizhevsky 2009",
        page=f"{_KRIZHEVSKY}/cifar.html",
        open=partial(open_cifar, version=CIFAR10),
        files=(
            OriginalFile(
                f"{_KRIZHEVSKY}/cifar-10-binary.tar.gz",
                sha256="c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
            ),
        ),
        megabytes=170,
        signs=(("cifar-10-batches-bin",), ("data_batch_1.bin", "test_batch.bin", "batches.meta.txt")),
    ),
    KnownDataset(
        name="cifar100",
        title="CIFAR-100",
        classes=100,
        images={"train": 50_000, "test": 10_000},
        terms="no licence stated; cite Krizhevsky 2009",
        page=f"{_KRIZHEVSKY}/cifar.html",
        open=partial(open_cifar, version=CIFAR100),
        files=(
            OriginalFile(
                f"{_KRIZHEVSKY}/cifar-100-binary.tar.gz",
                sha256="58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
            ),
        ),
        megabytes=169,
        signs=(("cifar-100-binary",), ("train.bin", "test.bin", "fine_label_names.txt")),
    ),
    KnownDataset(
        name="mnist",
        title="MNIST",
        classes=10,
        images={"train": 60_000, "test": 10_000},
        terms="no licence stated; cite LeCun et al. 1998",
        page="http://yann.lecun.com/exdb/mnist/",
        open=partial(open_mnist, classes=DIGITS, nested="MNIST/raw"),
        files=(
            OriginalFile(
                f"{_MNIST}/train-images-idx3-ubyte.gz",
                sha256="440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
            ),
            OriginalFile(
                f"{_MNIST}/train-labels-idx1-ubyte.gz",
                sha256="3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
            ),
            OriginalFile(
                f"{_MNIST}/t10k-images-idx3-ubyte.gz",
                sha256="8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
            ),
            OriginalFile(
                f"{_MNIST}/t10k-labels-idx1-ubyte.gz",
                sha256="f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
            ),
        ),
        megabytes=12,
        signs=(*_IDX, ("MNIST/raw",)),
    ),
    KnownDataset(
        name="fashion-mnist",
        title="Fashion-MNIST",
        classes=10,
        images={"train": 60_000, "test": 10_000},
        terms="MIT",
        page="https://github.com/zalandoresearch/fashion-mnist",
        open=partial(open_mnist, classes=CLOTHES, nested="FashionMNIST/raw"),
        files=(
            OriginalFile(f"{_FASHION}/train-images-idx3-ubyte.gz", md5="8d4fb7e6c68d591d4c3dfef9ec88bf0d"),
            OriginalFile(f"{_FASHION}/train-labels-idx1-ubyte.gz", md5="25c81989df183df01b3e8a0aad5dffbe"),
            OriginalFile(f"{_FASHION}/t10k-images-idx3-ubyte.gz", md5="bef4ecab320f06d8554ea6380940ec79"),
            OriginalFile(f"{_FASHION}/t10k-labels-idx1-ubyte.gz", md5="bb300cfdad3c16e7a12a480ee83cd310"),
        ),
        megabytes=31,
        installed=("/usr/share/datasets/fashion-mnist",),  # Debian's package dataset-fashion-mnist
        signs=(*_IDX, ("FashionMNIST/raw",)),
    ),
    KnownDataset(
        name="pets",
        title="Oxford-IIIT Pets",
        classes=37,
        images={"train": 3_680, "test": 3_669},
        terms="CC BY-SA 4.0; the photographs belong to their owners",
        page=f"{_OXFORD}/pets/",
        open=open_pets,
        files=(
            OriginalFile(
                f"{_OXFORD}/pets/data/images.tar.gz",
                sha256="67195c5e1c01f1ab5f9b6a5d22b8c27a580d896ece458917e61d459337fa318d",
            ),
            OriginalFile(
                f"{_OXFORD}/pets/data/annotations.tar.gz",
                sha256="52425fb6de5c424942b7626b428656fcbd798db970a937df61750c0f1d358e91",
            ),
        ),
        megabytes=811,
        aliases=("oxford-iiit-pet", "oxford-iiit-pets", "oxford-pets", "oxford-pet"),
        signs=tuple(
            (f"{at}images", f"{at}annotations/trainval.txt", f"{at}annotations/test.txt") for at in ("", "oxford-iiit-pet/")
        ),
    ),
    KnownDataset(
        name="flowers102",
        title="Oxford Flowers-102",
        classes=102,
        images={"train": 1_020, "validation": 1_020, "test": 6_149},
        terms="no licence stated; cite Nilsback and Zisserman 2008",
        page=f"{_OXFORD}/flowers/102/",
        open=open_flowers102,
        files=(
            OriginalFile(
                f"{_OXFORD}/flowers/102/102flowers.tgz",
                sha256="2d01ecc807db462958cfe3d92f57a8c252b4abd240eb955770201e45f783b246",
            ),
            OriginalFile(
                f"{_OXFORD}/flowers/102/imagelabels.mat",
                sha256="4903e94206bac23bf772aadf06451916df56b58fc483a62db32a97b82656651d",
            ),
            OriginalFile(
                f"{_OXFORD}/flowers/102/setid.mat",
                sha256="46b8678f91fd95d3c8f4feab80d271a6c834a1dd896fe29fd3e6ad9ce5c8dccd",
            ),
        ),
        megabytes=345,
        aliases=("flowers", "oxford-flowers102", "oxford-flowers-102"),
        signs=(("imagelabels.mat", "setid.mat"), ("flowers-102/imagelabels.mat", "flowers-102/setid.mat")),
    ),
    KnownDataset(
        name="imagenet",
        title="ImageNet (ILSVRC 2012)",
        classes=1_000,
        images={"train": 1_281_167, "validation": 50_000},
        terms="non-commercial research and education, after registering",
        page="https://image-net.org/download-images.php",
        open=open_imagenet,
        by_hand="train/ and val/ as unpacked, and ILSVRC2012_devkit_t12.tar.gz",
        aliases=("imagenet1k", "imagenet2012", "ilsvrc2012"),
        signs=(
            *((split, f"ILSVRC2012_devkit_t12{ending}") for split in ("train", "val") for ending in ("", ".tar.gz")),
            ("val/ILSVRC2012_val_00000001.JPEG",),
            ("ILSVRC/Data/CLS-LOC",),
        ),
    ),
    KnownDataset(
        name="svhn",
        title="Street View House Numbers, cropped digits",
        classes=10,
        images={"train": 73_257, "test": 26_032},
        terms="non-commercial use only",
        page=f"{_STANFORD}/",
        open=open_svhn,
        files=(
            OriginalFile(
                f"{_STANFORD}/train_32x32.mat",
                sha256="435e94d69a87fde4fd4d7f3dd208dfc32cb6ae8af2240d066de1df7508d083b8",
            ),
            OriginalFile(
                f"{_STANFORD}/test_32x32.mat",
                sha256="cdce80dfb2a2c4c6160906d0bd7c68ec5a99d7ca4831afa54f09182025b6a75b",
            ),
        ),
        megabytes=246,
        aliases=("svhn-cropped",),
        signs=(("train_32x32.mat", "test_32x32.mat"),),
    ),
    KnownDataset(
        name="eurosat",
        title="EuroSAT, RGB",
        classes=10,
        images={ALL: 27_000},
        terms="MIT; contains Copernicus Sentinel data",
        page="https://github.com/phelber/EuroSAT",
        open=open_eurosat,
        files=(
            OriginalFile(  # the authors' server is gone; this copy is theirs, unchanged
                "https://huggingface.co/datasets/torchgeo/eurosat/resolve/c877bcd43f099cd0196738f714544e355477f3fd/EuroSAT.zip",
                md5="c8fa014336c82ac7804f0398fcb19387",
            ),
        ),
        by_hand="EuroSAT.zip or EuroSAT_RGB.zip",
        megabytes=94,
        aliases=("eurosat-rgb",),
        signs=tuple((f"{at}/AnnualCrop", f"{at}/SeaLake") for at in ("2750", "EuroSAT_RGB", "eurosat/2750", "EuroSAT/2750")),
    ),
    KnownDataset(
        name="caltech101",
        title="Caltech-101",
        classes=101,
        images={ALL: 8_677},
        terms="CC BY 4.0",
        page="https://data.caltech.edu/records/mzrjq-6wc02",
        open=open_caltech101,
        files=(
            OriginalFile(
                "https://data.caltech.edu/records/mzrjq-6wc02/files/caltech-101.zip",
                md5="3138e1922a9193bfa496528edbbc45d0",
            ),
        ),
        by_hand="caltech-101.zip or 101_ObjectCategories.tar.gz",
        megabytes=137,
        signs=(
            *((f"{at}101_ObjectCategories/accordion",) for at in ("", "caltech-101/", "caltech101/")),
            ("accordion", "BACKGROUND_Google"),
        ),
    ),
    KnownDataset(
        name="dtd",
        title="Describable Textures",
        classes=47,
        images={"train": 1_880, "validation": 1_880, "test": 1_880},
        terms="for research purposes",
        page=f"{_OXFORD}/dtd/",
        open=open_dtd,
        files=(
            OriginalFile(
                f"{_OXFORD}/dtd/download/dtd-r1.0.1.tar.gz",
                sha256="e42855a52a4950a3b59612834602aa253914755c95b0cff9ead6d07395f8e205",
            ),
        ),
        megabytes=625,
        signs=tuple((f"{at}images", f"{at}labels/train1.txt", f"{at}labels/test1.txt") for at in ("", "dtd/")),
    ),
)
