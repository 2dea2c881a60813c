"""The tasks of VTAB-1k, and their data in the layouts that papers pass around: lists beside images, and tar shards."""

from __future__ import annotations

import json
import pickle
import re
from collections.abc import Callable
from pathlib import Path

import originals
import pytest

from vitreous.core.errors import VitreousError
from vitreous.data.datasets.vtab import find_tasks
from vitreous.data.datasets.vtab_tasks import GROUPS, TASKS, find_task
from vitreous.data.open import open_data
from vitreous.data.source import Dataset, Source, Stream

Entries = list[tuple[str, int]]


def refused(data: str) -> str:
    """The one line that is said."""
    with pytest.raises(VitreousError) as caught:
        open_data(data)
    message = str(caught.value)
    assert "\n" not in message
    return message


def source(data: Dataset, split: str) -> Source:
    found = data.splits[split]
    assert isinstance(found, Source)
    return found


# The table ------------------------------------------------------------------------------------------------------------------


def test_groups_have_the_benchmarks_sizes() -> None:
    assert len(TASKS) == 19
    assert [sum(task.group == group for task in TASKS) for group in GROUPS] == [7, 4, 8]


def test_switches_are_those_of_the_bit_paper() -> None:
    """Its appendix F lists what must not be flipped and what must not be cropped."""
    assert {task.title for task in TASKS if not task.flip} == {"dSpr-Ori", "sNORB-Azim", "dSpr-Loc"}
    assert {task.title for task in TASKS if not task.crop} == {"Clevr-Count", "Clevr-Dist", "DMLab", "KITTI-Dist", "dSpr-Loc"}


def test_every_class_has_one_name() -> None:
    for task in TASKS:
        assert len(set(task.names)) == task.classes, task.name


@pytest.mark.parametrize("spelling", ["clevr-distance", "clevr_dist", "CLEVR-Dist", "clevr_distance"])
def test_find_task(spelling: str) -> None:
    assert find_task(spelling).folder == "clevr_dist"


def test_a_misspelt_task() -> None:
    assert "did you mean 'smallnorb-azimuth'?" in refused("vtab:smallnorb-azimut@.")


def test_no_name_means_two_tasks() -> None:
    known = [{_plain(name) for name in (task.name, task.title, task.folder, *task.aliases)} for task in TASKS]
    assert sum(map(len, known)) == len(set().union(*known))
    assert all(find_task(name) is task for task, names in zip(TASKS, known, strict=True) for name in names)


def _plain(name: str) -> str:
    return name.casefold().replace("_", "-")


# Lists ----------------------------------------------------------------------------------------------------------------------


def layout(folder: Path, lists: dict[str, Entries], skip: tuple[str, ...] = ()) -> None:
    """A task folder: lists, and an image for every line of them."""
    for number, (name, entries) in enumerate(lists.items()):
        for line, (path, _) in enumerate(entries):
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            if path not in skip:
                (folder / path).write_bytes(originals.make_image(100 * number + line))
        (folder / f"{name}.txt").write_text("".join(f"{path} {label}\n" for path, label in entries))


def entries(name: str, labels: list[int]) -> Entries:
    return [(f"images/{name}/{number:06d}.jpg", label) for number, label in enumerate(labels)]


@pytest.fixture
def lists() -> dict[str, Entries]:
    train, validation = entries("train800", [4, 0, 7]), entries("val200", [1, 1])
    both = entries("train800val200", [4, 0, 7, 1, 1])
    return {"train800": train, "val200": validation, "train800val200": both, "test": entries("test", [2, 6, 0, 5])}


@pytest.fixture
def folder(tmp_path: Path, lists: dict[str, Entries]) -> Path:
    layout(tmp_path / "vtab" / "clevr_count", lists)
    return tmp_path / "vtab" / "clevr_count"


def test_lists(folder: Path, lists: dict[str, Entries]) -> None:
    data = open_data(f"vtab:clevr-count@{folder.parent}")
    assert list(data.splits) == ["train", "test"]
    assert data.classes == tuple(f"{count} objects" for count in range(3, 11))
    for split, name in (("train", "train800val200"), ("test", "test")):
        found = source(data, split)
        assert [(found.id(n), *found.labels(n)) for n in range(len(found))] == lists[name]
        assert found.read(1) == (folder / lists[name][1][0]).read_bytes()
    assert [note.partition(": ")[2] for note in data.notes] == [
        "train has 5 images; VTAB-1k's Clevr-Count has 1,000",
        "test has 4 images; VTAB-1k's Clevr-Count has 15,000",
    ]


def test_the_sweep_sees_no_test_images(folder: Path, lists: dict[str, Entries]) -> None:
    data = open_data(f"vtab:clevr_count/sweep@{folder.parent}")
    assert list(data.splits) == ["train", "validation"]
    assert source(data, "train").targets().tolist() == [4, 0, 7]
    assert [source(data, "validation").id(n) for n in range(2)] == [path for path, _ in lists["val200"]]


def test_both_lists_are_joined_where_the_third_is_missing(folder: Path, lists: dict[str, Entries]) -> None:
    (folder / "train800val200.txt").unlink()
    train = source(open_data(f"vtab:clevr-count@{folder.parent}"), "train")
    assert [train.id(n) for n in range(len(train))] == [path for path, _ in lists["train800"] + lists["val200"]]
    assert train.targets().tolist() == [4, 0, 7, 1, 1]


def test_the_task_folder_itself_and_one_split_of_it(folder: Path) -> None:
    data = open_data(f"vtab:clevr-count@{folder}:test")
    assert list(data.splits) == ["test"]
    assert source(data, "test").counts().tolist() == [1, 0, 1, 0, 0, 1, 1, 0]


def test_a_folder_of_tasks_is_not_taken_for_a_task(folder: Path) -> None:
    (folder.parent / "train800.txt").write_text("images/0.jpg 0\n")
    said = refused(f"vtab:pets@{folder.parent}")
    assert "neither oxford_iiit_pet/train800.txt nor oxford_iiit_pet/train800-*.tar" in said
    assert said.endswith("; there are clevr-count")


def test_one_task_is_not_taken_for_another(folder: Path) -> None:
    """Its labels would fit: 0 to 7 of 37."""
    assert "neither oxford_iiit_pet/train800.txt" in refused(f"vtab:pets@{folder}")
    folder.rename(folder.with_name("mine"))  # a folder of any other name is believed
    assert open_data(f"vtab:pets@{folder.with_name('mine')}").count() == 9


def test_without_a_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VITREOUS_DATA", raising=False)
    assert "vtab:clevr-count@DIR" in refused("vtab:clevr-count")
    monkeypatch.setenv("VITREOUS_DATA", str(folder.parents[1]))
    assert "no folder" in refused("vtab:clevr-count")
    folder.parent.rename(folder.parents[1] / "vtab-1k")
    assert open_data("vtab:clevr-count").count() == 9


def test_found_tasks(folder: Path) -> None:
    layout(folder.parent / "oxford_iiit_pet", {"train800": entries("train800", [0])})
    (folder.parent / "dtd").mkdir()
    assert [task.name for task in find_tasks(folder.parent)] == ["pets", "clevr-count"]
    assert [task.name for task in find_tasks(folder)] == ["clevr-count"]


def test_to_another_process(folder: Path) -> None:
    found = source(open_data(f"vtab:clevr-count@{folder}"), "test")
    copy = pickle.loads(pickle.dumps(found))
    assert copy.fingerprint() == found.fingerprint()
    assert copy.read(2) == found.read(2)


def test_the_fingerprint_tells_another_label(folder: Path) -> None:
    before = source(open_data(f"vtab:clevr-count@{folder}"), "test").fingerprint()
    text = (folder / "test.txt").read_text()
    (folder / "test.txt").write_text(text.replace("000001.jpg 6", "000001.jpg 5"))
    assert source(open_data(f"vtab:clevr-count@{folder}"), "test").fingerprint() != before


def test_opening_asks_for_no_file_by_name(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With 73,728 of them on a network's disk, that would take minutes."""
    asked: list[str] = []
    stat = Path.stat

    def counted(path: Path, **options: bool) -> object:
        asked.append(path.suffix)
        return stat(path, **options)

    monkeypatch.setattr(Path, "stat", counted)
    open_data(f"vtab:clevr-count@{folder}")
    assert ".txt" in asked
    assert ".jpg" not in asked


FAULTS: list[tuple[str, Callable[[str], str], str]] = [
    ("label too high", lambda text: text.replace(".jpg 6", ".jpg 8"), "line 2: label 8; Clevr-Count has the classes 0 to 7"),
    ("label below zero", lambda text: text.replace(".jpg 6", ".jpg -1"), "test.txt: line 2: label -1"),
    ("no label", lambda text: text.replace(".jpg 6", ".jpg"), "line 2: 'images/test/000001.jpg' is not PATH LABEL"),
    ("no number", lambda text: text.replace(".jpg 6", ".jpg six"), "is not PATH LABEL"),
    ("empty", lambda text: "\n\n", "test.txt: lists no images"),
    ("twice", lambda text: text + "\n" + text.splitlines()[1], "line 6: images/test/000001.jpg stands on line 2 already"),
    ("twice, in disguise", lambda text: text + "images//test/./000000.jpg 1", "000000.jpg stands on line 1 already"),
    ("out of the folder", lambda text: text + "images/../../../secret.jpg 1", "'images/../../../secret.jpg' leads out of"),
    ("absolute", lambda text: text + "/etc/passwd 1", "'/etc/passwd' leads out of the task's folder"),
    ("a drive", lambda text: text + "C:\\secret.jpg 1", "leads out of the task's folder"),
    ("missing", lambda text: text + "images/test/9.jpg 1\nimages/x/8.jpg 1", "images/test/9.jpg and 1 others of the test list"),
    ("in both", lambda text: text + "images/train800val200/000001.jpg 1", "is in train and in test (1 such images)"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "said"), [fault[1:] for fault in FAULTS], ids=[fault[0] for fault in FAULTS])
def test_a_bad_list(folder: Path, change: Callable[[str], str], said: str) -> None:
    (folder / "test.txt").write_text(change((folder / "test.txt").read_text()))
    assert said in refused(f"vtab:clevr-count@{folder}")


def test_a_list_that_is_missing_or_no_text(folder: Path) -> None:
    (folder / "test.txt").write_bytes(b"\xff\xfe\x00")
    assert "test.txt: cannot be read as text" in refused(f"vtab:clevr-count@{folder}")
    (folder / "test.txt").unlink()
    assert f"no {folder / 'test.txt'}" in refused(f"vtab:clevr-count@{folder}")
    assert open_data(f"vtab:clevr-count/sweep@{folder}").count() == 5


def test_windows_ends_of_lines_tabs_and_spaces_in_names(folder: Path) -> None:
    (folder / "images/test/a b.jpg").write_bytes(originals.make_image(1))
    (folder / "test.txt").write_bytes("\ufeffimages/test/a b.jpg\t3\r\nimages/test/000000.jpg  0\r\n".encode())
    found = source(open_data(f"vtab:clevr-count@{folder}"), "test")
    assert [(found.id(n), *found.labels(n)) for n in range(2)] == [("images/test/a b.jpg", 3), ("images/test/000000.jpg", 0)]


def test_what_is_typed_wrong(folder: Path) -> None:
    assert "vtab:clevr-count/sweep" in refused(f"vtab:clevr-count/swep@{folder}")
    assert "no folder" in refused("vtab:clevr-count@/no/such/place")
    assert "it has train, validation" in refused(f"vtab:clevr-count/sweep@{folder}:test")


# Shards ---------------------------------------------------------------------------------------------------------------------


def shard(path: Path, samples: list[tuple[str, str]]) -> dict[str, bytes]:
    """Writes `NAME.jpg` and `NAME.cls`, and gives the images."""
    images = {name: originals.make_image(sum(name.encode()) + len(path.name)) for name, _ in samples}
    members = {}
    for name, label in samples:
        members[f"{name}.jpg"], members[f"{name}.cls"] = images[name], label.encode()
    originals.tar(path, members, "w")
    return images


def test_classes_of_orientations_say_which_they_hold() -> None:
    names = find_task("dsprites-orientation").names
    assert len(set(names)) == 16
    for orientation in range(40):
        low, high = re.fullmatch(r"orientation (\d+)-(\d+) of 40", names[int(orientation / 2.5)]).groups()  # type: ignore[union-attr]
        assert int(low) <= orientation <= int(high)


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    root = tmp_path / "odd [name] {1}" / "smallnorb_ele"
    shard(root / "train800-000.tar", [("a", "8"), ("b", "0")])
    shard(root / "train800-001.tar", [("a", "2")])
    shard(root / "val200-000.tar", [("c", "1")])
    shard(root / "test-000.tar", [("a", "3"), ("b", "3"), ("c", "7")])
    return root.parent


def items(data: Dataset, split: str) -> list[tuple[str, int]]:
    stream = data.splits[split]
    assert isinstance(stream, Stream)
    return [(item.id, *item.labels) for item in stream.items()]


def test_shards(sharded: Path) -> None:
    data = open_data(f"vtab:smallnorb-elevation@{sharded}")
    assert data.classes[8] == "elevation 70 degrees"
    assert items(data, "train") == [
        ("train800-000.tar/a", 8), ("train800-000.tar/b", 0), ("train800-001.tar/a", 2), ("val200-000.tar/c", 1),
    ]  # fmt: skip
    assert items(data, "test") == [("test-000.tar/a", 3), ("test-000.tar/b", 3), ("test-000.tar/c", 7)]
    assert data.count() == 7
    sweep = open_data(f"vtab:smallnorb-elevation/sweep@{sharded}")
    assert list(sweep.splits) == ["train", "validation"]
    assert items(sweep, "validation") == [("val200-000.tar/c", 1)]


def test_shards_with_an_index(sharded: Path) -> None:
    names = [f"camera {number}" for number in range(9)]
    (sharded / "smallnorb_ele" / "index.json").write_text(json.dumps({"classes": names}))
    data = open_data(f"vtab:smallnorb-elevation@{sharded}")
    assert data.classes == tuple(names)
    assert items(data, "test")[2] == ("test-000.tar/c", 7)


def test_shards_with_names_for_labels(sharded: Path) -> None:
    root = sharded / "patch_camelyon"
    shard(root / "train800-0.tar", [("a", "tumour")])
    shard(root / "val200-0.tar", [("a", "healthy")])
    shard(root / "test-0.tar", [("a", "tumour"), ("b", "healthy")])
    data = open_data(f"vtab:camelyon@{sharded}")
    assert data.classes == ("healthy", "tumour")
    assert [label for _, label in items(data, "train")] == [1, 0]
    assert [label for _, label in items(data, "test")] == [1, 0]


def test_shards_of_another_task(sharded: Path) -> None:
    shard(sharded / "smallnorb_ele" / "test-001.tar", [("z", "17")])
    assert "the shards have 18 classes, sNORB-Elev has 9" in refused(f"vtab:smallnorb-elevation@{sharded}")


def test_a_shard_that_is_missing_or_cut(sharded: Path) -> None:
    path = sharded / "smallnorb_ele" / "test-000.tar"
    path.write_bytes(path.read_bytes()[:700])
    assert "test-000.tar" in refused(f"vtab:smallnorb-elevation@{sharded}")
    path.unlink()
    assert "no test-*.tar in" in refused(f"vtab:smallnorb-elevation@{sharded}")
    assert open_data(f"vtab:smallnorb-elevation/sweep@{sharded}").count() == 4
