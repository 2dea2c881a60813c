"""Which classes of the model are right: by name, by number where nothing else is known, by a file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from vitreous.core.errors import VitreousError
from vitreous.evaluation.class_mapping import ClassMapping, align_classes, read_mapping

MODEL = ("tench, Tinca tinca", "mountain bike", "tandem bicycle, tandem", "analog clock", "digital clock", "crane", "crane")


def test_by_name_whatever_the_order() -> None:
    found = align_classes(("dog", "cat"), ("cat", "bird", "dog"))
    assert found.to == ((2,), (0,))
    assert found.labels((1, 0)) == (0, 2)
    assert "has 2 of the model's 3 classes" in found.notes[0]
    assert align_classes(("cat", "dog"), ("cat", "dog")).notes == ()


def test_case_spacing_and_synonyms_where_they_are_clear() -> None:
    found = align_classes(("Mountain_bike", "tench", "Digital  Clock"), MODEL)
    assert found.to == ((1,), (0,), (4,))
    assert align_classes(("Cat", "dog"), ("cat", "Cat", "dog")).to == ((1,), (2,))  # as it is spelt, if that is there
    with pytest.raises(VitreousError, match="'CAT'"):
        align_classes(("CAT", "dog"), ("cat", "Cat", "dog"))
    with pytest.raises(VitreousError, match="'crane'"):
        align_classes(("crane", "tench"), MODEL)  # two of that name
    with pytest.raises(VitreousError, match="'New York'"):  # two data classes for one of the model's
        align_classes(("New York", "new_york"), ("new york", "x"))
    assert align_classes(MODEL, MODEL).to == tuple((number,) for number in range(7))


def test_classes_without_images_need_not_be_known() -> None:
    assert align_classes(("dog", "unicorn", "cat"), ("cat", "dog"), there=(0, 2)).to == ((1,), (), (0,))


def test_the_note_tells_how_many_it_chooses_among() -> None:
    """Classes of the data compete whether they have images or not."""
    found = align_classes(("cat", "dog", "ant"), ("ant", "bee", "cat", "dog"), there=(0, 1), among="mapped")
    assert found.among == (0, 2, 3)
    assert found.notes == ("the data: has 2 of the model's 4 classes; it chooses among the 3 that the data names",)


def test_unknown_classes_are_named_with_the_nearest() -> None:
    with pytest.raises(
        VitreousError, match=r"photos: classes that the model does not know: 'catt' .nearest: 'cat'.; .*--mapping"
    ):
        align_classes(("catt", "dog"), ("cat", "dog"), where="photos")
    names = tuple("pqrstu")
    with pytest.raises(VitreousError, match="and 3 more"):
        align_classes(names, ("cat", "dog"))


def test_numbers_only_where_there_is_nothing_else() -> None:
    numbers = ("0", "1", "2")
    plain = align_classes(("ant", "bee", "cow"), numbers, model_named=False)
    assert plain.to == ((0,), (1,), (2,))
    assert "have no names" in plain.notes[0]
    given = align_classes(("0", "2"), ("ant", "bee", "cow"))
    assert given.to == ((0,), (2,))
    assert "its classes are numbers" in given.notes[0]
    assert align_classes(("2", "0"), numbers, model_named=False).to == ((2,), (0,))
    with pytest.raises(VitreousError, match=r"a model of 3 whose names are not known; .*--mapping"):
        align_classes(("ant", "bee"), numbers, model_named=False)
    with pytest.raises(VitreousError, match="'7'"):
        align_classes(("0", "7"), ("ant", "bee", "cow"))
    with pytest.raises(VitreousError, match="does not know"):  # as many, but of other names: no guess
        align_classes(("x", "y", "z"), ("ant", "bee", "cow"))


def test_wordnet_ids_are_imagenet_in_its_order() -> None:
    ids = tuple(f"n{number:08d}" for number in range(1000))
    words = tuple(f"word {number}" for number in range(1000))
    found = align_classes(ids, words)
    assert found.to[999] == (999,)
    assert "WordNet" in found.notes[0]
    with pytest.raises(VitreousError, match="'n00000000'"):
        align_classes(ids[:10], words)


@pytest.mark.parametrize("ending", ["json", "toml", "csv"])
def test_a_file_says_it(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"map.{ending}"
    path.write_text(
        {
            "json": '{"Bicycle": ["mountain bike", 2], "clock": "analog clock; digital clock", "kettle": []}',
            "toml": 'Bicycle = ["mountain bike", 2]\nclock = "analog clock; digital clock"\nkettle = []\n',
            "csv": "data,model\nBicycle,mountain bike\nBicycle,2\nclock,analog clock;digital clock\nkettle,\n",
        }[ending]
    )
    found = read_mapping(path, ("bicycle", "clock", "kettle", "sofa"), MODEL)
    assert found == ClassMapping(("bicycle", "clock", "kettle", "sofa"), MODEL, ((1, 2), (3, 4), (), ()), None, found.notes)
    assert "2 of the data's 4 classes map to nothing and are left out (kettle, sofa)" in found.notes[0]
    among = read_mapping(path, ("bicycle", "clock", "kettle", "sofa"), MODEL, among="mapped")
    assert among.among == (1, 2, 3, 4)
    assert among.competing == 4


def test_entries_for_other_data_are_noted(tmp_path: Path) -> None:
    path = tmp_path / "map.json"
    path.write_text('{"clock": [3], "whale": [0]}')
    assert "1 of its entries are no classes of the data (whale)" in read_mapping(path, ("clock",), MODEL).notes[0]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("map.yaml", "a: b", r"\.json, \.toml or \.csv"),
        ("map.json", "[1]", "should be an object"),
        ("map.json", "{", "not JSON"),
        ("map.json", "[" * 100_000, "not JSON"),
        ("map.json", "{}", "maps nothing"),
        ("map.json", '{"clock": 7}', "class 7; the model's are 0 to 6"),
        ("map.json", '{"clock": -1}', "class -1"),
        ("map.json", '{"clock": true}', "neither a name nor a number"),
        ("map.json", '{"clock": {"a": 1}}', "neither a name nor a number"),
        ("map.json", '{"clock": "sundial"}', "'sundial', which is no class of the model; it has tench"),
        ("map.json", '{"clock": "crane"}', "several are called so; give its number"),
        ("map.json", '{"clock": 3, "clock": 4}', "stands there twice"),
        ("map.json", '{"clock": 3, "Clock": 4}', "both 'clock'"),
        ("map.json", '{"clock": [], "sofa": []}', "maps none of the data's classes"),
        ("map.toml", "clock = ", "not TOML"),
        ("map.csv", "clock,3\n", "columns data and model"),
        ("map.csv", "data,model\nclock\n", "line 2"),
        ("map.csv", "data,model\nclock,3,4\n", "line 2"),
    ],
)
def test_files_that_say_nothing(tmp_path: Path, name: str, content: str, said: str) -> None:
    path = tmp_path / name
    path.write_text(content)
    with pytest.raises(VitreousError, match=said) as caught:
        read_mapping(path, ("clock", "sofa"), MODEL)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(VitreousError, match="cannot be read"):
        read_mapping(tmp_path / "none.json", ("a",), ("a",))


def test_one_class_is_no_choice(tmp_path: Path) -> None:
    path = tmp_path / "map.json"
    path.write_text(json.dumps({"clock": 3}))
    with pytest.raises(VitreousError, match="one class to choose from"):
        read_mapping(path, ("clock", "sofa"), MODEL, among="mapped")
