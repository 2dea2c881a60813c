from __future__ import annotations

import os
import pickle
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from sample_images import write
from torchvision.datasets import ImageFolder

from vitreous.core.errors import VitreousError
from vitreous.data.open import open_data
from vitreous.data.source import Source
from vitreous.data.sources import folder as module
from vitreous.data.sources.file_source import FileSource
from vitreous.data.splits import choose_training_splits, split_stratified
from vitreous.data.transforms.decode import BadImage


def make(root: Path, *names: str) -> Path:
    for name in names:
        write(root / name)
    return root


def listed(root: Path, split: str = "all") -> list[tuple[str, tuple[int, ...]]]:
    source = open_data(root).source(split)
    assert isinstance(source, Source)
    return [(source.id(i), source.labels(i)) for i in range(len(source))]


@pytest.fixture
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Folders need not lie still for seconds before their index is kept."""
    monkeypatch.setattr(module, "_SETTLED", -1.0)


def test_same_classes_and_order_as_torchvision(tmp_path: Path) -> None:
    make(tmp_path, "b/2.jpg", "b/1.png", "a/x.JPEG", "C/1.webp", "b/deeper/still/0.jpg", "10/1.png", "9/1.png")
    theirs = ImageFolder(str(tmp_path), allow_empty=True)
    ours = open_data(tmp_path)
    assert list(ours.classes) == theirs.classes
    expected = {os.path.relpath(path, tmp_path): label for path, label in theirs.samples}
    assert {name: labels[0] for name, labels in listed(tmp_path)} == expected


def test_splits_share_their_classes(tmp_path: Path) -> None:
    make(tmp_path, "train/a/1.jpg", "train/c/1.jpg", "val/b/1.jpg", "test/c/1.jpg")
    data = open_data(tmp_path)
    assert data.classes == ("a", "b", "c")
    assert list(data.splits) == ["train", "validation", "test"]
    assert listed(tmp_path, "validation") == [("val/b/1.jpg", (1,))]
    assert data.own_classes == {"train": ("a", "c"), "validation": ("b",), "test": ("c",)}
    with pytest.raises(
        VitreousError, match=r"different classes \(only in validation: b; only in train: a, c\).*vitreous doctor"
    ):
        choose_training_splits(data)


def test_an_empty_class_shifts_nothing(tmp_path: Path) -> None:
    make(tmp_path, "train/a/1.jpg", "train/c/1.jpg", "val/a/1.jpg", "val/c/1.jpg")
    before = open_data(tmp_path).classes
    (tmp_path / "train" / "b").mkdir()
    data = open_data(tmp_path)
    assert data.classes == before == ("a", "c")
    assert data.left_out == (("b", "a class folder without images", "empty-class"),)
    choose_training_splits(data)


def test_hidden_things_are_no_classes(tmp_path: Path) -> None:
    make(tmp_path, "a/1.jpg", ".ipynb_checkpoints/1.jpg", "a/.hidden.jpg", "a/.git/2.jpg", "__MACOSX/a/1.jpg")
    (tmp_path / "a" / "Thumbs.db").write_bytes(b"x")
    data = open_data(tmp_path)
    assert data.classes == ("a",)
    assert [name for name, _ in listed(tmp_path)] == ["a/1.jpg"]
    assert data.left_out == ()


def test_a_class_may_be_called_train(tmp_path: Path) -> None:
    make(tmp_path, "car/1.jpg", "train/1.jpg", "plane/1.jpg")
    assert open_data(tmp_path).classes == ("car", "plane", "train")
    assert list(open_data(make(tmp_path / "other", "train/a/1.jpg")).splits) == ["train"]


def test_train_beside_folders_without_images_is_a_split(tmp_path: Path) -> None:
    make(tmp_path, "train/cat/1.jpg", "train/dog/1.jpg")
    (tmp_path / "annotations").mkdir()
    (tmp_path / "annotations" / "x.json").write_text("{}")
    data = open_data(tmp_path)
    assert data.classes == ("cat", "dog")
    assert list(data.splits) == ["train"]
    make(tmp_path, "extra/1.jpg")
    with pytest.raises(VitreousError, match="is 'train' a split, beside 'extra', or a class"):
        open_data(tmp_path)


def test_numbers_are_in_their_order(tmp_path: Path) -> None:
    make(tmp_path, *(f"{number}/1.jpg" for number in range(12)))
    assert open_data(tmp_path).classes == tuple(map(str, range(12)))


def test_an_archive_left_beside_class_folders_is_not_the_data(tmp_path: Path) -> None:
    make(tmp_path, "a/1.jpg", "b/1.jpg")
    (tmp_path / "photos.tar.gz").write_bytes(b"x")
    assert open_data(tmp_path).classes == ("a", "b")


def test_one_split_alone(tmp_path: Path) -> None:
    make(tmp_path, "train/a/1.jpg", "val/a/2.jpg")
    data = open_data(f"{tmp_path}:val")
    assert list(data.splits) == ["validation"]
    assert data.where.endswith(":validation")
    with pytest.raises(VitreousError, match="there is no split 'test'; it has train, validation"):
        open_data(f"{tmp_path}:test")


def test_a_pipe_is_no_image(tmp_path: Path) -> None:
    make(tmp_path, "a/1.jpg")
    os.mkfifo(tmp_path / "a" / "2.jpg")
    source = open_data(tmp_path).source("all")
    assert isinstance(source, Source)
    with pytest.raises(BadImage, match=r"2\.jpg: is not a file") as error:
        source.read(1)
    assert error.value.kind == "not-an-image"


def test_validation_without_labels_cannot_be_used(tmp_path: Path) -> None:
    make(tmp_path, "train/a/1.jpg", "val/1.jpg")
    with pytest.raises(VitreousError, match="validation has no labels to validate on"):
        choose_training_splits(open_data(tmp_path))


def test_a_flat_folder_has_no_labels(tmp_path: Path) -> None:
    make(tmp_path, "2.jpg", "1.jpg")
    assert open_data(tmp_path).classes == ()
    assert listed(tmp_path) == [("1.jpg", ()), ("2.jpg", ())]


def test_a_test_split_may_be_unlabelled(tmp_path: Path) -> None:
    make(tmp_path, "train/a/1.jpg", "val/a/2.jpg", "test/1.jpg")
    assert listed(tmp_path, "test") == [("test/1.jpg", ())]
    choose_training_splits(open_data(tmp_path))


def test_what_is_left_out_is_listed(tmp_path: Path) -> None:
    make(tmp_path, "a/1.jpg", "b/1.jpg", "outside.jpg")
    (tmp_path / "a" / "notes.txt").write_text("hello")
    (tmp_path / "a" / "folder.jpg").mkdir()
    (tmp_path / "README.md").write_text("belongs here")
    (tmp_path / "b" / "back").symlink_to(tmp_path)
    (tmp_path / "b" / "self.jpg").symlink_to(tmp_path / "b" / "self.jpg")
    data = open_data(tmp_path)
    assert sorted(data.left_out) == [
        ("a/folder.jpg", "a folder with the name of an image", "not-an-image"),
        ("a/notes.txt", "not an image, by its name", "left-out"),
        ("b/back", "a link that leads in a circle", "symlink-loop"),
        ("b/self.jpg", "a link to nothing", "unreadable"),
        ("outside.jpg", "outside any class folder", "left-out"),
    ]
    assert data.notes == ()
    assert "left out a/folder.jpg (a folder with the name of an image) and 3 more" in data.summary()[-1]
    assert "1 file (.txt 1): a/notes.txt" in data.summary()[-1]
    assert [name for name, _ in listed(tmp_path)] == ["a/1.jpg", "b/1.jpg"]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ((), r"no images found; expected .*/CLASS/IMAGE"),
        (("val/a/1.jpg", "validation/a/1.jpg"), r"val, validation mean the same split"),
    ],
)
def test_bad_folders(tmp_path: Path, names: tuple[str, ...], message: str) -> None:
    make(tmp_path, *names)
    with pytest.raises(VitreousError, match=message):
        open_data(tmp_path)


def test_odd_names(tmp_path: Path) -> None:
    folder = tmp_path / "a b"
    folder.mkdir()
    raw = os.fsencode(folder) + b"/\xff\xfe.jpg"
    write(tmp_path / "x.jpg").rename(os.fsdecode(raw))
    source = open_data(tmp_path).source("all")
    assert isinstance(source, Source)
    assert os.fsencode(source.id(0)) == b"a b/\xff\xfe.jpg"
    assert source.read(0) == Path(os.fsdecode(raw)).read_bytes()
    assert len(source.fingerprint()) == 64


# The cache ------------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("settled")
def test_index_is_kept_until_the_folder_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = make(tmp_path / "photos", "train/a/1.jpg", "train/b/1.jpg", "val/a/1.jpg", "val/b/2.jpg")
    first = open_data(root)
    walked = module._walk_folder
    with monkeypatch.context() as patch:
        patch.setattr(module, "_walk_folder", lambda root: pytest.fail("walked again"))
        again = open_data(root)
    for split, source in first.splits.items():
        other = again.splits[split]
        assert isinstance(source, FileSource)
        assert isinstance(other, FileSource)
        assert source.fingerprint() == other.fingerprint()
        assert [other.id(i) for i in range(len(other))] == [source.id(i) for i in range(len(source))]
        assert len(pickle.dumps(other)) < 1000, "a worker gets the way to the index, not a copy"
        assert pickle.loads(pickle.dumps(other)).id(0) == source.id(0)
    for change in (
        lambda: write(root / "train" / "a" / "2.jpg"),
        lambda: (root / "val" / "b" / "2.jpg").rename(root / "val" / "b" / "3.jpg"),
        lambda: (root / "train" / "c").mkdir(),
        lambda: (root / "train" / "a" / "1.jpg").unlink(),
        lambda: _in_secret(root / "train" / "a", lambda: write(root / "train" / "a" / "7.jpg")),
    ):
        change()
        fresh = walked(root.resolve())
        assert listed(root, "train") == [(fresh.table.path(i), fresh.table.labels[i]) for i in range(*fresh.ranges["train"])]
        open_data(root)


def _in_secret(folder: Path, change: Callable[[], object]) -> None:
    """As unpacking does, which sets times back to what they were."""
    before = folder.stat()
    change()
    os.utime(folder, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.usefixtures("settled")
@pytest.mark.skipif(not hasattr(os, "getuid") or os.getuid() == 0, reason="root may look into every folder")
def test_a_folder_that_could_not_be_read_is_looked_at_again(tmp_path: Path) -> None:
    make(tmp_path, "a/1.jpg", "b/1.jpg")
    (tmp_path / "b").chmod(0)
    assert open_data(tmp_path).classes == ("a",)
    (tmp_path / "b").chmod(0o755)
    assert open_data(tmp_path).classes == ("a", "b")


@pytest.mark.usefixtures("settled")
def test_a_link_to_nothing_is_reported_and_looked_at_again(tmp_path: Path) -> None:
    make(tmp_path / "photos", "a/1.jpg")
    (tmp_path / "photos" / "b").symlink_to(tmp_path / "disk" / "b")
    data = open_data(tmp_path / "photos")
    assert data.classes == ("a",)
    assert data.left_out == (("b", "a link to nothing", "unreadable"),)
    make(tmp_path / "disk", "b/1.jpg")
    assert open_data(tmp_path / "photos").classes == ("a", "b")


@pytest.mark.usefixtures("settled")
def test_a_source_from_before_a_change_does_not_mix_with_the_new_index(tmp_path: Path) -> None:
    root = make(tmp_path / "photos", "b/1.jpg")
    packed = pickle.dumps(open_data(root).source("all"))
    make(root, "a/1.jpg")
    open_data(root)
    with pytest.raises(VitreousError, match="the folder changed while it was in use"):
        pickle.loads(packed)


def test_a_young_folder_is_not_kept(tmp_path: Path) -> None:
    root = make(tmp_path / "photos", "a/1.jpg")
    open_data(root)
    assert not (tmp_path / "cache" / "index").exists()


@pytest.mark.parametrize("damage", ["names.npy", "ends.npy", "index.json"])
@pytest.mark.usefixtures("settled")
def test_a_damaged_index_is_made_anew(tmp_path: Path, damage: str) -> None:
    root = make(tmp_path / "photos", "a/1.jpg", "b/1.jpg")
    source = open_data(root).source("all")
    assert isinstance(source, Source)
    expected = source.fingerprint()
    (kept,) = (tmp_path / "cache" / "index").iterdir()
    (kept / damage).write_bytes((kept / damage).read_bytes()[:20])
    again = open_data(root).source("all")
    assert isinstance(again, Source)
    assert again.fingerprint() == expected


@pytest.mark.usefixtures("settled")
def test_a_cache_that_cannot_be_written_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = make(tmp_path / "photos", "a/1.jpg")
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("VITREOUS_CACHE", str(tmp_path / "file"))
    assert listed(root) == [("a/1.jpg", (0,))]


def test_memory_per_file(tmp_path: Path) -> None:
    count = 20_000
    for number in range(4):
        folder = tmp_path / f"class{number}"
        folder.mkdir()
        for index in range(count // 4):
            os.mknod(folder / f"photograph-{number}-{index:08d}.jpg")
    tracemalloc.start()
    data = open_data(tmp_path)
    kept, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    source = data.source("all")
    assert isinstance(source, Source)
    assert len(source) == count
    assert kept / count < 100
    assert peak / count < 300
    assert source.counts().tolist() == [count // 4] * 4


# Splitting ------------------------------------------------------------------------------------------------------------


def test_stratified_split_is_said_and_stays(tmp_path: Path) -> None:
    for number in range(20):
        write(tmp_path / "photos" / "many" / f"{number}.jpg")
    for number in range(3):
        write(tmp_path / "photos" / "few" / f"{number}.jpg")
    write(tmp_path / "photos" / "one" / "0.jpg")
    data = open_data(tmp_path / "photos")
    train, held, said = choose_training_splits(data, seed=7, share=0.25)
    assert isinstance(train, Source)
    assert isinstance(held, Source)
    assert "held out 6 of 24" in said
    assert "seed 7" in said
    assert held.counts().tolist() == [1, 5, 0]
    ids = {part.split: {part.id(i) for i in range(len(part))} for part in (train, held)}
    assert not ids["train"] & ids["validation"]
    assert len(ids["train"] | ids["validation"]) == 24
    again = choose_training_splits(open_data(tmp_path / "photos"), seed=7, share=0.25)[1]
    other = choose_training_splits(data, seed=8, share=0.25)[1]
    assert isinstance(again, Source)
    assert isinstance(other, Source)
    assert {again.id(i) for i in range(len(again))} == ids["validation"]
    assert {other.id(i) for i in range(len(other))} != ids["validation"]
    (tmp_path / "photos").rename(tmp_path / "moved")
    moved = choose_training_splits(open_data(tmp_path / "moved"), seed=7, share=0.25)[1]
    assert isinstance(moved, Source)
    assert {moved.id(i) for i in range(len(moved))} == ids["validation"]


def test_share_must_be_a_share(tmp_path: Path) -> None:
    source = open_data(make(tmp_path, "a/1.jpg")).source("all")
    assert isinstance(source, Source)
    with pytest.raises(VitreousError, match="between 0 and 1"):
        split_stratified(source, 0, 1.0)


def test_subset_keeps_the_meaning(tmp_path: Path) -> None:
    source = open_data(make(tmp_path, "a/1.jpg", "b/1.jpg", "c/1.jpg")).source("all")
    assert isinstance(source, Source)
    part = source.subset([2, 0])
    assert [part.id(i) for i in range(2)] == ["c/1.jpg", "a/1.jpg"]
    assert part.targets().tolist() == [2, 0]
    assert part.counts().tolist() == [1, 0, 1]
    assert part.classes == source.classes
    assert part[0].content == source[2].content
    assert part.fingerprint() != source.fingerprint()
    assert np.array_equal(source.subset(np.arange(3)).targets(), source.targets())


def test_data_is_described_and_printed_in_a_line(tmp_path: Path) -> None:
    """A `repr` once held every path and class: hundreds of kilobytes."""
    make(tmp_path, *(f"train/class-{number:04d}-{'x' * 60}/{number}.jpg" for number in range(300)), "val/a/1.jpg")
    data = open_data(tmp_path)
    line = data.describe()
    assert line.startswith(f"{tmp_path}: 301 classes (a, class-0000-xxx")
    assert line.endswith(" and 296 more); train: 300 images, validation: 1 image")
    assert data.summary()[0] == line
    for shown in (data, data.source("train"), data.source("train").subset([1, 2]), data.source("train")[0]):  # type: ignore[union-attr, index]
        assert len(repr(shown)) < 600
        assert "\n" not in repr(shown)
    assert line in repr(data)
    assert "300 images, 301 classes" in repr(data.source("train"))
    assert len(repr(data.source("train").table)) < 300  # type: ignore[union-attr]
