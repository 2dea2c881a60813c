from __future__ import annotations

import json
from pathlib import Path

import pytest
from sample_images import write

from vitreous.core.errors import VitreousError
from vitreous.data.open import open_data
from vitreous.data.source import Source


def rows(path: Path, split: str) -> list[tuple[str, tuple[str, ...]]]:
    source = open_data(path).source(split)
    assert isinstance(source, Source)
    return [(source.id(i), tuple(source.classes[x] for x in source.labels(i))) for i in range(len(source))]


def test_csv(tmp_path: Path) -> None:
    write(tmp_path / "a" / "1.jpg")
    path = tmp_path / "list.csv"
    path.write_text('\ufeffpath,label,split\na/1.jpg,dog,train\n"b, c.jpg",cat;dog,val\nd.jpg,,test\n', encoding="utf-8")
    assert open_data(path).classes == ("cat", "dog")
    assert rows(path, "train") == [("a/1.jpg", ("dog",))]
    assert rows(path, "validation") == [("b, c.jpg", ("cat", "dog"))]
    assert rows(path, "test") == [("d.jpg", ())]
    train = open_data(path).source("train")
    assert isinstance(train, Source)
    assert train.read(0) == (tmp_path / "a" / "1.jpg").read_bytes()
    assert train.path(0) == str(tmp_path.resolve() / "a" / "1.jpg")


def test_json_lines(tmp_path: Path) -> None:
    path = tmp_path / "list.jsonl"
    lines = [{"path": "1.jpg", "label": ["b", "a"]}, {"path": "2.jpg", "label": 7, "width": 3}, {"path": "/abs/3.jpg"}]
    path.write_text("\n".join(map(json.dumps, lines)) + "\n\n")
    assert open_data(path).classes == ("7", "a", "b")
    assert rows(path, "all") == [("1.jpg", ("b", "a")), ("2.jpg", ("7",)), ("/abs/3.jpg", ())]
    source = open_data(path).source("all")
    assert isinstance(source, Source)
    assert source.place(2) == "/abs/3.jpg"
    assert source.targets().tolist() == [2, 0, -1]
    assert source.counts().tolist() == [1, 1, 1]


def test_a_correction_stands_in_place_of_the_label(tmp_path: Path) -> None:
    """What `vitreous evaluate` writes to relabel.csv, after somebody filled in the empty column where a label was wrong."""
    table = tmp_path / "relabel.csv"
    table.write_text("path,label,new_label\n1.jpg,cat,dog\n2.jpg,cat,\n3.jpg,cat, \n4.jpg,,dog\n5.jpg,cat,cat;dog\n")
    labels = ["dog"], ["cat"], ["cat"], ["dog"], ["cat", "dog"]
    assert rows(table, "all") == [(f"{number}.jpg", tuple(own)) for number, own in enumerate(labels, 1)]
    assert not any("new_label" in note for note in open_data(table).notes)
    lines = tmp_path / "relabel.jsonl"
    lines.write_text('{"path": "1.jpg", "label": 1, "new_label": 0}\n{"path": "2.jpg", "label": 1, "new_label": null}\n')
    assert rows(lines, "all") == [("1.jpg", ("0",)), ("2.jpg", ("1",))]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("x.csv", "", "line 1: no `path` among nothing"),
        ("x.csv", "file,label\n1.jpg,a\n", "line 1: no `path` among file, label"),
        ("x.csv", "path,labels\n1.jpg,a\n", "'labels'; did you mean 'label'"),
        ("x.csv", "path,lable,split\n1.jpg,a,train\n", "'lable'; did you mean 'label'"),
        ("x.csv", "path,label\n1.jpg,a\n./1.jpg,b\n", "line 3: 1.jpg stands on line 2 already"),
        ("x.jsonl", '{"path": "a\\u0000.jpg"}\n', "characters that no file name can have"),
        ("x.jsonl", '{"path": "\\ud800.jpg"}\n', "characters that no file name can have"),
        ("x.jsonl", '{"path": "1.jpg", "label": "\\ud800"}\n', "is not UTF-8 text"),
        ("x.csv", "path,label\n", "lists no images"),
        ("x.csv", "path,label\n1.jpg,a,b\n", "line 2: more fields than the header"),
        ("x.csv", "path,label\n,a\n", "line 2: no path"),
        ("x.csv", "path,label\n1.jpg,a\n1.jpg,b\n", "line 3: 1.jpg stands on line 2 already"),
        ("x.csv", "path,split\n1.jpg,trian\n", "split 'trian'; did you mean 'train'"),
        ("x.csv", "path,split\n1.jpg,train\n2.jpg,\n", "some rows name a split and some do not"),
        ("x.csv", 'path,label\n"1.jpg,a\n', "not a CSV file"),
        ("x.jsonl", "{\n", "line 1: not JSON"),
        ("x.jsonl", "[1]\n", "line 1: expected an object"),
        ("x.jsonl", '{"path": "1.jpg", "label": 1.5}\n', "label 1.5; a label is a name or a whole number"),
        ("x.jsonl", '{"path": 3}\n', "line 1: no path"),
        ("x.txt", "hello\n", "neither a folder nor a manifest"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, name: str, text: str, message: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(VitreousError) as error:
        open_data(tmp_path / name)
    assert message in str(error.value)
    assert str(tmp_path / name) in str(error.value)
    assert "\n" not in str(error.value)


def test_a_manifest_of_a_folder_means_the_same(tmp_path: Path) -> None:
    for name in ("train/b/1.jpg", "train/a/2.jpg", "val/a/3.jpg", "val/b/1.jpg"):
        write(tmp_path / name)
    folder = open_data(tmp_path)
    lines = ["path,label,split"]
    for split, source in folder.splits.items():
        assert isinstance(source, Source)
        lines += [f"{source.id(i)},{source.classes[source.labels(i)[0]]},{split}" for i in range(len(source))]
    (tmp_path / "list.csv").write_text("\n".join(lines) + "\n")
    listed = open_data(tmp_path / "list.csv")
    assert listed.classes == folder.classes
    for split, source in folder.splits.items():
        other = listed.splits[split]
        assert isinstance(source, Source)
        assert isinstance(other, Source)
        assert [other[i].content for i in range(len(other))] == [source[i].content for i in range(len(source))]
        assert other.targets().tolist() == source.targets().tolist()


def test_names_are_brought_to_one_form(tmp_path: Path) -> None:
    folder = tmp_path.resolve()
    (folder / "list.csv").write_text(f"path,label,width\n./a/../1.jpg,10,3\n{folder}/b/2.jpg,9,3\n../3.jpg,11,3\n")
    assert rows(folder / "list.csv", "all") == [("1.jpg", ("10",)), ("b/2.jpg", ("9",)), (f"{folder.parent}/3.jpg", ("11",))]
    data = open_data(folder / "list.csv")
    assert data.classes == ("9", "10", "11"), "whole numbers are in their order"
    assert data.notes == (f"{folder}/list.csv: columns that are not used: width",)


def test_latin_1_is_not_taken_for_a_name(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_bytes("path,label\n1.jpg,caf\xe9\n".encode("latin-1"))
    with pytest.raises(VitreousError, match=r"line 2: label .* is not UTF-8 text; save the file as UTF-8"):
        open_data(tmp_path / "x.csv")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nowhere/", "nowhere/: no such file or folder"),
        ("cifar11", "did you mean 'cifar1"),
        ("photos.csv", "no such file or folder"),
    ],
)
def test_data_that_is_not_there(text: str, message: str) -> None:
    with pytest.raises(VitreousError) as error:
        open_data(text)
    assert message in str(error.value)
