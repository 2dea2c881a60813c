"""Data sets in their original formats: every format against its writer and, where there is one, another reader."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import os
import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import originals
import pytest
from PIL import Image

from vitreous.core.errors import VitreousError
from vitreous.data.datasets import image_files as images
from vitreous.data.datasets import registry as named
from vitreous.data.datasets.registry import open_named
from vitreous.data.open import open_data
from vitreous.data.source import Dataset, Source
from vitreous.data.transforms.decode import decode


def source(data: Dataset, split: str) -> Source:
    found = data.source(split)
    assert isinstance(found, Source)
    return found


def same(data: Dataset, expected: originals.Images) -> None:
    assert set(data.splits) == set(expected)
    for split, items in expected.items():
        found = source(data, split)
        assert [(item.id, data.classes[item.labels[0]], item.content) for item in found.items()] == items
        assert found.targets().tolist() == [data.classes.index(name) for _, name, _ in items]
        assert found.split == split
        for index in range(len(found)):
            assert Path(found.path(index) or "").read_bytes() == items[index][2]


# Every set, packed and unpacked -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["as distributed", "unpacked"])
@pytest.mark.parametrize("name", originals.ARRAY_SETS)
def test_arrays_come_out_as_they_went_in(name: str, form: str, tmp_path: Path) -> None:
    expected = originals.ARRAY_SETS[name](tmp_path / "files")
    if form == "unpacked":
        originals.unpack_all(tmp_path / "files")
    before = sorted(path.name for path in (tmp_path / "files").iterdir())
    for _ in range(2):  # made, then found
        data = open_named(name, tmp_path / "files")
        assert set(data.splits) == {"train", "test"}
        for split, (pixels, labels) in expected.items():
            found = source(data, split)
            assert np.array_equal(np.stack([item.content for item in found.items()]), pixels)
            assert found.targets().tolist() == labels.tolist()
            assert [found.labels(i) for i in range(len(found))] == [(label,) for label in labels]
            assert found.counts().tolist() == np.bincount(labels, minlength=len(data.classes)).tolist()
    assert sorted(path.name for path in (tmp_path / "files").iterdir()) == before  # a user's directory is only read
    assert any("as published has 10,000" in note or "as published has 26,032" in note for note in data.notes)


@pytest.mark.parametrize("form", ["as distributed", "unpacked"])
@pytest.mark.parametrize("name", originals.IMAGE_SETS)
def test_images_come_out_as_they_went_in(name: str, form: str, tmp_path: Path) -> None:
    expected = originals.IMAGE_SETS[name](tmp_path / "files")
    if form == "unpacked":
        originals.unpack_all(tmp_path / "files")
    before = sorted(path.name for path in (tmp_path / "files").iterdir())
    for _ in range(2):
        same(open_named(name, tmp_path / "files"), expected)
    assert sorted(path.name for path in (tmp_path / "files").iterdir()) == before


def test_class_names_and_their_order(tmp_path: Path) -> None:
    for name, write in {**originals.ARRAY_SETS, **originals.IMAGE_SETS}.items():
        write(tmp_path / name)
    classes = {name: open_named(name, tmp_path / name).classes for name in named.dataset_names() if name != "imagenet"}
    assert classes["cifar10"][:3] == ("airplane", "automobile", "bird")
    assert classes["cifar100"][99] == "fine 99"
    assert classes["mnist"] == classes["svhn"] == tuple("0123456789")
    assert (classes["fashion-mnist"][0], classes["fashion-mnist"][9]) == ("T-shirt/top", "Ankle boot")
    assert classes["pets"] == ("Abyssinian", "american bulldog", "wheaten terrier")
    assert len(set(classes["flowers102"])) == 102
    assert classes["dtd"] == ("banded", "lined", "zigzagged")
    assert classes["caltech101"] == ("Faces", "accordion", "yin_yang")


def test_other_archives_of_the_same_images(tmp_path: Path) -> None:
    expected = originals.eurosat(tmp_path / "a")["all"]
    originals.zipped(tmp_path / "a" / "EuroSAT_RGB.zip", {f"EuroSAT_RGB/{path}": content for path, _, content in expected})
    (tmp_path / "a" / "EuroSAT.zip").unlink()
    same(open_named("eurosat", tmp_path / "a"), {"all": expected})
    originals.zipped(tmp_path / "b" / "EuroSAT.zip", {"EuroSATallBands/Forest/Forest_1.tif": b"?"})
    with pytest.raises(VitreousError, match=r"EuroSAT\.zip: no folder 2750 or EuroSAT_RGB in it"):
        open_named("eurosat", tmp_path / "b")
    expected = originals.caltech101(tmp_path / "c")["all"]
    files = {f"101_ObjectCategories/{path}": content for path, _, content in expected}
    originals.tar(tmp_path / "d" / "101_ObjectCategories.tar.gz", files)
    same(open_named("caltech101", tmp_path / "d"), {"all": expected})
    originals.zipped(tmp_path / "e" / "caltech-101.zip", {"caltech-101/Annotations.tar": b"?"})
    with pytest.raises(VitreousError, match=r"no 101_ObjectCategories\.tar\.gz in it"):
        open_named("caltech101", tmp_path / "e")


def test_sets_without_an_official_division_say_so(tmp_path: Path) -> None:
    for name in ("eurosat", "caltech101"):
        originals.IMAGE_SETS[name](tmp_path / name)
        notes = open_named(name, tmp_path / name).notes
        assert any("no official division" in note for note in notes)
    assert any("BACKGROUND_Google left out" in note for note in notes)


def test_sources_go_to_other_processes_small_and_whole(tmp_path: Path) -> None:
    expected = originals.cifar10(tmp_path / "files")
    found = source(open_named("cifar10", tmp_path / "files"), "train")
    sent = pickle.dumps(found)
    assert len(sent) < 2_000  # the images take 46,080 bytes
    again = pickle.loads(sent)
    assert np.array_equal(again.images, expected["train"][0])
    assert again.fingerprint() == found.fingerprint()


def test_splits_know_their_own_classes(tmp_path: Path) -> None:
    originals.dtd(tmp_path / "files")
    own = open_named("dtd", tmp_path / "files").own_classes
    assert own == {
        "train": ("banded", "zigzagged"),
        "validation": ("banded", "lined"),
        "test": ("banded", "lined", "zigzagged"),
    }


# Against other readers --------------------------------------------------------------------------------------------------------


def against(data: Dataset, split: str, theirs: Any) -> None:
    ours = source(data, split)
    assert len(ours) == len(theirs)
    found = {(np.asarray(image.convert("RGB")).tobytes(), int(label)) for image, label in theirs}
    assert {(np.asarray(decode(item.content)).tobytes(), item.labels[0]) for item in ours.items()} == found
    assert len(found) == len(ours)


def test_torchvision_reads_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the very folders that torchvision makes, which are understood too."""
    from torchvision import datasets

    places = {
        "pets": "oxford-iiit-pet",
        "dtd": "dtd",
        "eurosat": "eurosat",
        "caltech101": "caltech101",
        "flowers102": "flowers-102",
        "svhn": "",
        "mnist": "MNIST/raw",
        "fashion-mnist": "FashionMNIST/raw",
    }
    for name, folder in places.items():
        write = originals.IMAGE_SETS.get(name) or originals.ARRAY_SETS[name]
        write(tmp_path / name / folder)
        originals.unpack_all(tmp_path / name / folder)
        if name == "caltech101":
            (tmp_path / name / folder / "Annotations").mkdir()
            for path in (tmp_path / name / folder / "caltech-101" / "101_ObjectCategories").iterdir():
                shutil.copytree(path, tmp_path / name / folder / "101_ObjectCategories" / path.name)
                (tmp_path / name / folder / "Annotations" / path.name).mkdir()
            shutil.rmtree(tmp_path / name / folder / "caltech-101")
    monkeypatch.setattr(datasets.flowers102, "check_integrity", lambda *_: True)
    monkeypatch.setattr(datasets.svhn, "check_integrity", lambda *_: True)
    data = {name: open_named(name, tmp_path / name) for name in places}
    root = {name: str(tmp_path / name) for name in places}

    theirs: Any = datasets.OxfordIIITPet(root["pets"], split="trainval")
    against(data["pets"], "train", theirs)
    against(data["pets"], "test", datasets.OxfordIIITPet(root["pets"], split="test"))
    assert [name.lower() for name in data["pets"].classes] == [name.lower() for name in theirs.classes]

    for ours, split in (("train", "train"), ("validation", "val"), ("test", "test")):
        against(data["flowers102"], ours, datasets.Flowers102(root["flowers102"], split=split))
    assert list(data["flowers102"].classes) == [name.rstrip("?") for name in datasets.Flowers102.classes]

    theirs = datasets.DTD(root["dtd"], split="test")
    against(data["dtd"], "test", theirs)
    assert list(data["dtd"].classes) == theirs.classes

    theirs = datasets.EuroSAT(root["eurosat"])
    against(data["eurosat"], "all", theirs)
    assert list(data["eurosat"].classes) == theirs.classes

    theirs = datasets.Caltech101(root["caltech101"])
    against(data["caltech101"], "all", theirs)
    assert list(data["caltech101"].classes) == theirs.categories

    for split in ("train", "test"):
        against(data["svhn"], split, datasets.SVHN(root["svhn"], split=split))
        against(data["mnist"], split, datasets.MNIST(root["mnist"], train=split == "train"))
        against(data["fashion-mnist"], split, datasets.FashionMNIST(root["fashion-mnist"], train=split == "train"))
    assert list(data["fashion-mnist"].classes) == datasets.FashionMNIST.classes


# Names and places -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spelling", ["fashion-mnist", "Fashion_MNIST", "fashionmnist", "FashionMNIST"])
def test_spellings(spelling: str, tmp_path: Path) -> None:
    originals.mnist(tmp_path / "files")
    assert named.is_known(spelling)
    assert "Trouser" in open_named(spelling, tmp_path / "files").classes


def test_a_misspelt_name_gets_the_nearest() -> None:
    assert not named.is_known("cifar-11")
    with pytest.raises(VitreousError, match=r"unknown data set 'cifar-11'; did you mean 'cifar10'"):
        open_named("cifar-11")


def test_a_directory_of_data_sets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITREOUS_DATA", str(tmp_path / "sets"))
    with pytest.raises(VitreousError, match=r"VITREOUS_DATA is .*no directory"):
        open_named("pets")
    same(open_named("pets", made(tmp_path / "sets" / "Oxford-IIIT-Pet", "pets")), originals.pets(tmp_path / "again"))
    data = open_named("pets")  # found under another of its names
    assert data.where == "pets"
    assert str(source(data, "train").path(0)).startswith(str(tmp_path / "cache"))  # unpacked there, not beside the archives
    originals.mnist(tmp_path / "cache" / "data" / "mnist")
    assert len(source(open_named("mnist"), "train")) == 15  # put by hand where it would be fetched to
    (tmp_path / "sets" / "mnist").mkdir()
    with pytest.raises(VitreousError, match=r"mnist: no train-images-idx3-ubyte\.gz in .*sets/mnist; it should hold"):
        open_named("mnist")


def made(folder: Path, name: str) -> Path:
    (originals.IMAGE_SETS.get(name) or originals.ARRAY_SETS[name])(folder)
    return folder


def test_where_the_system_installs_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert named.find_dataset("fashion-mnist").installed == ("/usr/share/datasets/fashion-mnist",)  # Debian's package
    known = dataclasses.replace(named.find_dataset("fashion-mnist"), installed=(str(made(tmp_path / "usr", "fashion-mnist")),))
    monkeypatch.setattr(named, "SETS", (known,))
    assert len(source(open_named("fashion-mnist"), "test")) == 4


@pytest.mark.parametrize("name", ["cifar10", "svhn", "pets", "eurosat"])
def test_a_folder_of_that_name_with_the_original_files_is_the_set(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    there = open_named(name, made(tmp_path / name, name))
    found = open_data(name)
    assert found.classes == there.classes
    assert {split: len(source(found, split)) for split in found.splits} == {
        split: len(source(there, split)) for split in there.splits
    }


@pytest.mark.parametrize("name", ["cifar10", "pets", "eurosat", "imagenet"])
def test_a_folder_of_that_name_with_images_is_a_folder(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for split in ("train", "test"):
        for label in ("cat", "dog"):
            (tmp_path / name / split / label).mkdir(parents=True)
            Image.new("RGB", (8, 8)).save(tmp_path / name / split / label / "1.jpg")
    assert open_data(name).classes == ("cat", "dog")


def test_a_directory_that_is_not_there_or_empty(tmp_path: Path) -> None:
    with pytest.raises(VitreousError, match=r"svhn@.*/gone: no such directory; it should hold train_32x32\.mat, test_32x32"):
        open_named("svhn", tmp_path / "gone")
    for name in named.dataset_names():
        (tmp_path / name).mkdir()
        with pytest.raises(VitreousError) as caught:
            open_named(name, tmp_path / name)
        message = str(caught.value)
        assert str(tmp_path / name) in message
        assert named.find_dataset(name).page in message
        assert "\n" not in message


def test_a_changed_archive_is_read_anew(tmp_path: Path) -> None:
    originals.mnist(tmp_path)
    before = source(open_named("mnist", tmp_path), "train").targets().tolist()
    path = tmp_path / "train-labels-idx1-ubyte.gz"
    path.write_bytes(originals.gzip.compress(originals.idx(np.full(15, 7, np.uint8))))
    os.utime(path, ns=(0, 0))
    after = source(open_named("mnist", tmp_path), "train").targets().tolist()
    assert before != after == [7] * 15


def test_many_at_once_unpack_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = originals.dtd(tmp_path / "files")
    calls: list[Path] = []
    unpack = images.unpack
    monkeypatch.setattr(images, "unpack", lambda archive, *rest: (calls.append(archive), unpack(archive, *rest)))
    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        for data in pool.map(lambda _: open_named("dtd", tmp_path / "files"), range(6)):
            same(data, expected)
    assert len(calls) == 1


# ImageNet -------------------------------------------------------------------------------------------------------------------

SYNSETS = [("n02119789", "kit fox, Vulpes macrotis"), ("n01440764", "tench, Tinca tinca"), ("n02012849", "crane"),
           ("n03126707", "crane"), ("n03710637", "maillot"), ("n03710721", "maillot, tank suit")]  # fmt: skip
TRUTH = ["n03126707", "n01440764", "n02119789", "n01440764"]
NAMES = ("tench", "crane (bird)", "kit fox", "crane (machine)", "maillot", "maillot, tank suit")


def imagenet(root: Path, flat: bool) -> None:
    for number, synset in enumerate(["n02119789", "n01440764", "n01440764"]):
        path = root / "train" / synset / f"{synset}_{number}.JPEG"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(originals.make_image(number))
    for number, synset in enumerate(TRUTH, 1):
        path = root / "val" / ("" if flat else synset) / f"ILSVRC2012_val_{number:08d}.JPEG"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(originals.make_image(100 + number))


@pytest.mark.parametrize("unpacked", [False, True])
def test_imagenet_with_flat_validation_images(unpacked: bool, tmp_path: Path) -> None:
    imagenet(tmp_path, flat=True)
    originals.devkit(tmp_path, SYNSETS, TRUTH)
    if unpacked:
        originals.unpack_all(tmp_path)
    data = open_named("imagenet", tmp_path)
    assert data.classes == NAMES
    validation, train = source(data, "validation"), source(data, "train")
    assert [data.classes[i] for i in validation.targets()] == ["crane (machine)", "tench", "kit fox", "tench"]
    assert validation.id(2) == "val/ILSVRC2012_val_00000003.JPEG"
    assert validation[2].content == originals.make_image(103)
    assert [(train.id(i), train.labels(i)) for i in range(3)] == [
        ("train/n01440764/n01440764_1.JPEG", (0,)),
        ("train/n01440764/n01440764_2.JPEG", (0,)),
        ("train/n02119789/n02119789_0.JPEG", (2,)),
    ]
    assert train.counts().tolist() == [2, 0, 1, 0, 0, 0]
    assert train.targets().tolist() == [0, 0, 2]
    assert train[0].content == originals.make_image(1)
    assert pickle.loads(pickle.dumps(train)).fingerprint() == train.fingerprint() != validation.fingerprint()


def test_torchvision_reads_the_same_devkit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from torchvision.datasets import imagenet as theirs

    from vitreous.data.datasets.imagenet import read_devkit

    originals.devkit(tmp_path, SYNSETS, TRUTH)
    monkeypatch.setattr(theirs, "_verify_archive", lambda *_: None)
    theirs.parse_devkit_archive(tmp_path)
    words, truth = theirs.load_meta_file(tmp_path)
    originals.unpack_all(tmp_path)
    ours = read_devkit(tmp_path / "ILSVRC2012_devkit_t12")
    assert list(ours.synsets) == sorted(words)
    assert [ours.synsets[label] for label in ours.truth] == truth


def test_names_are_those_of_the_weights(tmp_path: Path) -> None:
    """timm's synsets and lemmas, as a devkit, in a shuffled order, lead to the names that our weights have."""
    import timm.data

    from vitreous.data.datasets.imagenet import read_devkit
    from vitreous.weights.catalogue import imagenet_names

    info = Path(timm.data.__file__).parent / "_info"
    synsets = (info / "imagenet_synsets.txt").read_text().split()
    lemmas = dict(line.split("\t") for line in (info / "imagenet_synset_to_lemma.txt").read_text().splitlines())
    order = np.random.default_rng(0).permutation(1000)
    originals.devkit(tmp_path, [(synsets[i], lemmas[synsets[i]]) for i in order], synsets[:3])
    originals.unpack_all(tmp_path)
    found = read_devkit(tmp_path / "ILSVRC2012_devkit_t12")
    assert list(found.synsets) == sorted(synsets)
    assert found.truth.tolist() == [0, 1, 2]
    assert found.names == tuple(imagenet_names())


def test_imagenet_in_folders_needs_no_devkit(tmp_path: Path) -> None:
    imagenet(tmp_path, flat=False)
    (tmp_path / "val" / "n01440764" / "notes.txt").write_text("?")
    data = open_named("imagenet", tmp_path)
    assert data.classes == ("n01440764", "n02119789", "n03126707")
    assert [source(data, "validation").labels(i) for i in range(4)] == [(0,), (0,), (1,), (2,)]
    assert source(data, "validation").id(0) == "val/n01440764/ILSVRC2012_val_00000002.JPEG"
    assert any("3 synsets, so that class numbers are not those of ImageNet's" in note for note in data.notes)
    assert data.left_out == (("val/n01440764/notes.txt", "not an image, by its name", "left-out"),)
    originals.devkit(tmp_path, SYNSETS, TRUTH)
    data = open_named("imagenet", tmp_path)
    assert data.classes == NAMES
    assert [source(data, "validation").labels(i) for i in range(4)] == [(0,), (0,), (2,), (3,)]


def test_imagenet_faults(tmp_path: Path) -> None:
    imagenet(tmp_path / "a", flat=True)
    with pytest.raises(VitreousError, match=r"labels are in the devkit alone; put ILSVRC2012_devkit_t12\.tar\.gz in"):
        open_named("imagenet", tmp_path / "a")
    originals.devkit(tmp_path / "a", SYNSETS, TRUTH[:3])
    with pytest.raises(VitreousError, match=r"00000004\.JPEG: the devkit has labels for 3 images only"):
        open_named("imagenet", tmp_path / "a")
    imagenet(tmp_path / "b", flat=False)
    originals.devkit(tmp_path / "b", SYNSETS[1:], TRUTH[:2])
    with pytest.raises(VitreousError, match=r"n02119789 in .* is not among the devkit's 5 synsets"):
        open_named("imagenet", tmp_path / "b")
    (tmp_path / "c" / "train" / "cat").mkdir(parents=True)
    Image.new("RGB", (4, 4)).save(tmp_path / "c" / "train" / "cat" / "1.jpg")
    with pytest.raises(VitreousError, match=r"train/cat in .* is not a synset"):
        open_named("imagenet", tmp_path / "c")
    (tmp_path / "d" / "train").mkdir(parents=True)
    Image.new("RGB", (4, 4)).save(tmp_path / "d" / "train" / "1.jpg")
    with pytest.raises(VitreousError, match="no folders of synsets"):
        open_named("imagenet", tmp_path / "d")


def test_imagenet_is_never_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(named, "fetch", lambda *_, **__: pytest.fail("fetched"))
    with pytest.raises(
        VitreousError, match=r"imagenet: not found, and its terms .* see https://image-net\.org.*put train/ and"
    ):
        open_named("imagenet")


# Recognised by content --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["as distributed", "unpacked"])
@pytest.mark.parametrize("name", [*originals.ARRAY_SETS, *originals.IMAGE_SETS])
def test_a_folder_in_an_original_layout_is_that_set_under_any_name(name: str, form: str, tmp_path: Path) -> None:
    """Read as class folders, Pets had the two classes `images` and `annotations`."""
    folder = tmp_path / "downloads"
    {**originals.ARRAY_SETS, **originals.IMAGE_SETS}[name](folder)
    if form == "unpacked":
        originals.unpack_all(folder)
    expected = open_named(name, folder)
    if "mnist" in name:  # the two have the same files
        with pytest.raises(VitreousError, match=rf"mnist@{folder} or fashion-mnist@{folder} \(folder:{folder} reads it as"):
            open_data(folder)
        return
    found = open_data(folder)
    assert found.where == f"{name}@{folder}"
    assert found.classes == expected.classes
    assert {split: source(found, split).fingerprint() for split in found.splits} == {
        split: source(expected, split).fingerprint() for split in expected.splits
    }
    assert f"read as {name}@{folder}; folder:{folder} reads it as a plain folder" in found.notes[0]
    assert f"{len(found.classes)} classes ({found.classes[0]}, {found.classes[1]}" in found.summary()[0]
    if "test" in found.splits:
        assert open_data(f"{folder}:test").where == f"{name}@{folder}:test"


def test_a_folder_in_an_original_layout_can_be_read_as_a_plain_one(tmp_path: Path) -> None:
    originals.pets(tmp_path)
    originals.unpack_all(tmp_path)
    assert open_data(f"folder:{tmp_path}").classes == ("annotations", "images")
    (tmp_path / "images" / "Abyssinian_1.jpg").unlink()
    with pytest.raises(VitreousError, match=rf"Abyssinian_1\.jpg.*; folder:{tmp_path} reads it as a plain folder"):
        open_data(tmp_path)
    with pytest.raises(VitreousError, match="folder:nowhere: no such folder"):
        open_data("folder:nowhere")


def test_imagenet_is_recognised_by_its_devkit(tmp_path: Path) -> None:
    originals.devkit(tmp_path, [("n02", "dog"), ("n01", "cat")], ["n01", "n02"])
    assert not named.recognise(tmp_path)
    (tmp_path / "val").mkdir()
    assert [known.name for known in named.recognise(tmp_path)] == ["imagenet"]


def test_ordinary_folders_are_not_taken_for_a_known_set(tmp_path: Path) -> None:
    for name in ("images/a.jpg", "annotations/b.jpg", "train/cat/a.jpg", "labels/c.jpg", "AnnualCrop/d.jpg"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(originals.make_image(1))
    originals.cifar10(tmp_path)  # an archive beside class folders
    assert not named.recognise(tmp_path)
