"""Rows in the order of the images, as they come; what cannot be read is a row and never the end."""

from __future__ import annotations

import csv
import dataclasses
import faulthandler
import gc
import io
import json
import os
import signal
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import vitreous
from predicting import NAMES, make_image, photographs, small_checkpoint
from vitreous.classifier import Classifier, load
from vitreous.cli import main
from vitreous.core.errors import VitreousError
from vitreous.data.transforms.parse import Preprocess
from vitreous.inference.batches import AHEAD, CHUNK, DecodedImage, batches, decode_images
from vitreous.inference.image_list import NamedImage
from vitreous.inference.predictor import Predictor
from vitreous.inference.rows import AsCsv, AsJson, Row

from conftest import random_checkpoint

PREPROCESS = Preprocess("resize(32,32,bicubic)|range(-1,1)")


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    return small_checkpoint(tmp_path)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("size", [1, 7, 64])
def test_rows_are_what_the_classifier_says_in_the_order_given(checkpoint: str, tmp_path: Path, workers: int, size: int) -> None:
    names = photographs(tmp_path / "photos", 40)[::-1]
    names[5:5] = [str(tmp_path / "none.jpg")]
    found = vitreous.predict(checkpoint, names, top=2, workers=workers, batch_size=size).rows
    assert [row.path for row in found] == names
    assert [row.error for row in found if row.error] == ["no such image; check the path"]
    expected = load(checkpoint).predict([name for name in names if "none" not in name], top=2)
    for row, best in zip((row for row in found if not row.error), expected, strict=True):
        assert row.classes == best.classes
        assert row.probabilities == pytest.approx(best.probabilities, abs=1e-6)


@pytest.mark.parametrize("out", [False, True])
def test_files_of_a_folder_that_are_left_out_are_counted_and_named(
    checkpoint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], out: bool
) -> None:
    """At the end: before, nobody knows. What Pillow reads is tried, whatever it is called."""
    photographs(tmp_path / "photos", 1)
    make_image(tmp_path / "photos" / "b.png").rename(tmp_path / "photos" / "c.psd")
    for name in ("d.txt", "e.heic"):
        (tmp_path / "photos" / name).write_text("x")
    more = ["--out", str(tmp_path / "rows.csv")] if out else []
    assert main(["predict", checkpoint, str(tmp_path / "photos"), "--workers", "0", *more]) == 0
    printed = capsys.readouterr()
    rows = (tmp_path / "rows.csv").read_text() if out else printed.out
    assert "c.psd" in rows
    assert "e.heic" not in rows
    last = printed.err.splitlines()[-1]
    assert last.startswith("note: left out because of their names: 2 files (.txt 1, .heic 1): ")
    assert str(tmp_path / "photos" / "e.heic") in last
    assert "pip install pillow-heif" in last


@pytest.mark.parametrize(("bias", "order"), [((39.0, 41.0, 40.0), (1, 2, 0)), ((7.0, 7.0, 7.0), (0, 1, 2))])
@pytest.mark.parametrize("outputs", ["sigmoid", "softmax"])
def test_equal_probabilities_are_in_the_order_of_the_logits(
    tmp_path: Path, bias: tuple[float, ...], order: tuple[int, ...], outputs: str
) -> None:
    """As `evaluate` has them. A sigmoid of 39 is 1 in float32, as that of 41 is; of equal logits the first class is meant."""
    made = random_checkpoint("ViT-Ti/4", width=12, depth=1, heads=1, mlp=12, image_size=8, classes=3, names=NAMES)
    head = {"head.weight": torch.zeros(3, 12), "head.bias": torch.tensor(bias)}
    Classifier(dataclasses.replace(made, tensors={**made.tensors, **head}, outputs=outputs)).save(tmp_path / "c")
    name = str(make_image(tmp_path / "a.png"))
    expected = tuple(NAMES[number] for number in order)
    assert vitreous.predict(str(tmp_path / "c"), [name], top=3, workers=0).rows[0].classes == expected
    assert load(tmp_path / "c").predict(name, top=3).classes == expected


def test_everything_that_can_be_wrong_with_an_image_is_one_row(checkpoint: str, tmp_path: Path) -> None:
    folder = tmp_path / "photos"
    whole = make_image(folder / "fine.png")
    (folder / "truncated.png").write_bytes(whole.read_bytes()[:200])
    (folder / "zero.jpg").write_bytes(b"")
    (folder / "page.jpg").write_text("<html>not found</html>")
    (folder / "folder.jpg").mkdir()
    (folder / "link.jpg").symlink_to("nowhere.jpg")
    Image.new("1", (14_000, 13_000)).save(folder / "bomb.png")
    frames = [Image.new("RGB", (40, 40), colour) for colour in ("red", "blue")]
    frames[0].save(folder / "animated.gif", save_all=True, append_images=frames[1:])
    make_image(folder / "cmyk.jpg", mode="CMYK")
    Image.fromarray(np.arange(1600, dtype=np.uint16).reshape(40, 40) * 40).save(folder / "sixteen.png")
    make_image(folder / 'new\nline, "quoted".png')
    odd = os.fsencode(folder) + b"/\xe9t\xe9.png"
    os.rename(make_image(folder / "odd.png"), odd)  # noqa: PTH104
    if hasattr(os, "mkfifo"):
        os.mkfifo(folder / "pipe.png")  # nobody ever writes to it
    rows = {Path(row.path).name: row for row in vitreous.predict(checkpoint, [str(folder)], workers=0).rows}
    bad = {name: row.error for name, row in rows.items() if row.error}
    assert sorted(bad) == ["bomb.png", "folder.jpg", "link.jpg", "page.jpg", "pipe.png", "truncated.png", "zero.jpg"]
    for name, why in (
        ("bomb.png", "too many pixels"), ("folder.jpg", "is a folder"), ("link.jpg", "no such image"), ("zero.jpg", "empty"),
        ("page.jpg", "not an image"), ("truncated.png", "broken"),
    ):  # fmt: skip
        assert why in (bad[name] or ""), name
        assert str(folder) not in (bad[name] or "")  # the path is beside it already
    assert {
        "fine.png",
        "animated.gif",
        "cmyk.jpg",
        "sixteen.png",
        'new\nline, "quoted".png',
        "\udce9t\udce9.png",
    } == rows.keys() - bad


def test_a_file_that_may_not_be_opened_is_a_row(checkpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from vitreous.data.transforms import decode

    def guarded(image: Any, *more: Any, **options: Any) -> Any:
        if str(image).endswith("secret.png"):
            raise PermissionError(13, "Permission denied", image)
        return opened(image, *more, **options)

    opened = decode.check_file
    monkeypatch.setattr(decode, "check_file", guarded)
    names = [str(make_image(tmp_path / name)) for name in ("a.png", "secret.png", "z.png")]
    names.insert(1, str(tmp_path / ("x" * 300)))
    rows = vitreous.predict(checkpoint, names, workers=0).rows
    assert [row.error for row in rows] == [
        None,
        "cannot be read (File name too long)",
        "cannot be read (Permission denied)",
        None,
    ]


class _Deadly(Preprocess):
    """Kills the process that decodes a certain image, as a broken decoder does."""

    def transform(self, image: Any, *more: Any, **options: Any) -> Any:
        if str(image).endswith("0021.png"):
            faulthandler.disable()
            os.kill(os.getpid(), signal.SIGSEGV)
        return super().transform(image, *more, **options)


@pytest.mark.skipif(sys.platform != "linux", reason="workers are forked")
def test_a_image_that_kills_its_decoder_is_a_row(tmp_path: Path) -> None:
    names = photographs(tmp_path, 90)
    deadly = _Deadly(str(PREPROCESS))
    decoded = list(decode_images(iter(map(NamedImage, names)), deadly, workers=2))
    assert [image.path for image in decoded] == names
    errors = [image.error for image in decoded]
    assert errors[21] == "the process that decoded it died (killed by SIGSEGV), twice; replace it or leave it out"
    assert errors.count(None) == 89
    pixels = torch.stack([image.pixels for image in decoded if image.pixels is not None])
    torch.testing.assert_close(pixels, torch.stack([PREPROCESS(name) for name in names if "0021" not in name]))


def test_the_list_is_drawn_from_only_so_far(tmp_path: Path) -> None:
    name = photographs(tmp_path, 1)[0]
    drawn = 0

    def endless() -> Any:
        nonlocal drawn
        while True:
            drawn += 1
            yield NamedImage(name)

    for workers in (0, 2):
        drawn = 0
        going = batches(decode_images(endless(), PREPROCESS, workers), 8)
        for number in range(1, 20):
            assert len(next(going)) == 8
            assert drawn <= 8 * number + (AHEAD * workers + 2) * CHUNK
        going.close()  # type: ignore[attr-defined]


def test_memory_does_not_grow_with_the_number_of_images(checkpoint: str, tmp_path: Path) -> None:
    name = photographs(tmp_path / "photos", 1)[0]
    clf = load(checkpoint)

    def held(count: int) -> int:
        """What is alive at the end. Of three snapshots the least, because a forward pass may run meanwhile, in another thread;
        what Pillow leaves to the garbage collector does not count, nor does Python's table of interned strings, which
        pathlib makes grow by megabytes at once."""
        images = (
            NamedImage(name) if number % 100 == 0 else NamedImage(f"{number}.jpg", error="bad") for number in range(count)
        )
        rows = Predictor(clf, torch.device("cpu"), "float32", top=5, workers=0, batch_size=16).rows(images)
        next(rows)  # so that what is made once is not counted
        tracemalloc.start()
        sizes: list[int] = []
        done = 0
        for number, batch in enumerate(rows):
            done += len(batch)
            if number % 20 == 0:
                gc.collect()
                snapshot = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(False, "*pathlib.py")])
                sizes.append(sum(entry.size for entry in snapshot.statistics("filename")))
        tracemalloc.stop()
        assert count - 200 < done < count
        return min(sizes[-3:])

    held(1000)  # caches of torch and Python are filled once
    few, many = held(1000), held(10_000)
    assert many - few < 100_000  # kept, 9,000 rows would be two millions of bytes and more


def test_batches_hold_so_many_readable_images() -> None:
    images = [DecodedImage(f"{n}", None, torch.tensor(n)) if n % 3 else DecodedImage(f"{n}", "bad", None) for n in range(50)]
    made = list(batches(images, 10))
    assert [sum(image.error is None for image in batch) for batch in made] == [10, 10, 10, 3]
    assert [image for batch in made for image in batch] == images
    bad = [DecodedImage(f"{n}", "bad", None) for n in range(50)]
    assert [len(batch) for batch in batches(bad, 2)] == [16, 16, 16, 2]


# What is printed ---------------------------------------------------------------------------------------------------------


def test_csv_on_the_command_line(checkpoint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = [str(make_image(tmp_path / name, seed)) for seed, name in enumerate(("a.png", 'b, "c"\n.png'))]
    (tmp_path / "bad.jpg").write_bytes(b"")
    words = [checkpoint, *names, str(tmp_path / "bad.jpg"), "--csv"]
    assert main(["predict", *words, "--top", "2"]) == 0
    table = list(csv.DictReader(io.StringIO(capsys.readouterr().out, newline="")))
    assert list(table[0]) == ["path", "class1", "probability1", "class2", "probability2", "error"]
    assert [row["path"] for row in table] == [*names, str(tmp_path / "bad.jpg")]
    expected = load(checkpoint).predict(names[1], top=2)
    assert (table[1]["class1"], table[1]["class2"]) == expected.classes
    assert [float(table[1][f"probability{n}"]) for n in (1, 2)] == pytest.approx(expected.probabilities, abs=1e-6)
    assert ("empty" in table[2]["error"], table[2]["class1"]) == (True, "")
    assert main(["predict", *words, "--top", "1"]) == 0
    assert capsys.readouterr().out.splitlines()[0] == "path,class,probability,error"
    assert main(["predict", *words, "--json"]) == 2
    assert "leave one out" in capsys.readouterr().err


def test_rows_are_printed_while_they_are_made(checkpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = photographs(tmp_path / "photos", 40)
    printed: list[str] = []
    seen: list[int] = []

    class Out(io.StringIO):
        def write(self, text: str) -> int:
            printed.append(text)
            return len(text)

    going = Preprocess.transform

    def watched(self: Preprocess, image: Any, *more: Any, **options: Any) -> Any:
        seen.append(sum(text.count("{") for text in printed))
        return going(self, image, *more, **options)

    monkeypatch.setattr(Preprocess, "transform", watched)
    monkeypatch.setattr(sys, "stdout", Out())
    assert main(["predict", checkpoint, *names, "--json", "--workers", "0", "--batch-size", "4"]) == 0
    assert seen[-1] >= 40 - CHUNK - 4  # the last image was decoded when most rows had been printed
    assert [json.loads(text)["path"] for text in printed if text.strip()] == names


def test_an_image_and_names_on_standard_input(
    checkpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = make_image(tmp_path / "a.png")
    for given, name in ((file.read_bytes(), "-"), (f"{file}\n".encode(), str(file))):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(given)))
        assert main(["predict", checkpoint, "-", "--json"]) == 0
        row = json.loads(capsys.readouterr().out)
        assert row["path"] == name
        assert row["probabilities"] == pytest.approx(load(checkpoint).predict(file).probabilities, abs=1e-6)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"")))
    assert main(["predict", checkpoint, "-"]) == 2
    assert "standard input is empty" in capsys.readouterr().err


def test_predictions_can_be_read_once_or_kept(checkpoint: str, tmp_path: Path) -> None:
    names = photographs(tmp_path / "photos", 3)
    kept = vitreous.predict(checkpoint, names)
    assert kept.rows == kept.rows == tuple(kept)
    assert kept.text().count("\n") == 3
    assert kept.exit_code == 0
    once = vitreous.predict(checkpoint, tmp_path / "photos" / "0000.png")
    assert len(list(once)) == 1
    with pytest.raises(VitreousError, match="read before"):
        list(once)
    assert once.exit_code == 0
    assert vitreous.predict(checkpoint, ["nowhere.jpg"]).exit_code == 2


def test_bad_options(checkpoint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = str(make_image(tmp_path / "a.png"))
    for words, why in (
        (["--batch-size", "0"], "--batch-size 0"), (["--workers", "-1"], "--workers -1"), (["--top", "0"], "--top 0"),
        (["--out", "rows.txt"], ".jsonl or .csv"), (["--out", "rows.csv", "--csv"], "leave one out"),
        (["--device", "cuda:99"], "--device cuda:99"),
    ):  # fmt: skip
        assert main(["predict", checkpoint, name, *words]) == 2
        said = capsys.readouterr().err
        assert why in said
        assert said.count("\n") == 1


def test_another_image_size(checkpoint: str, tmp_path: Path) -> None:
    name = str(make_image(tmp_path / "a.png"))
    row = vitreous.predict(checkpoint, [name], image_size=(48, 64)).rows[0]
    assert row.probabilities == pytest.approx(load(checkpoint, image_size=(48, 64)).predict(name).probabilities, abs=1e-6)
    assert row.probabilities != vitreous.predict(checkpoint, [name]).rows[0].probabilities


# Rows as text ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", [AsJson(), AsCsv(2), AsCsv(1)])
@pytest.mark.parametrize("path", ["a.jpg", 'with, "quotes"', "two\nlines\r", " spaces ", "\udce9.jpg", "日本.png", "-"])
def test_a_row_comes_back_as_it_was(way: Any, path: str) -> None:
    room = getattr(way, "top", 2)
    for row in (
        Row(path, NAMES[:room], (0.75, 1 / 3)[:room]),
        Row(path, error='broken, "very"\nso'),
        Row(path, NAMES[:1], (1.0,)),
    ):
        line = way.line(row)
        line.encode()  # valid Unicode
        back = way.row(line)
        assert back.path == way.named(path)
        assert (back.classes, back.probabilities, back.error) == (row.classes, row.probabilities, row.error)


@pytest.mark.parametrize("name", ["=cmd|'/c calc'!A1", "+1", "-1+2", "@sum(a1)", "\t=1", "'=1", "''=1", "'quoted'", "'"])
def test_csv_holds_no_formula(name: str) -> None:
    way = AsCsv(1)
    for row in (Row(name, (name,), (0.5,)), Row(name, error=name)):
        line = way.line(row)
        cells = next(csv.reader(io.StringIO(line, newline="")))
        assert not any(cell.startswith(("=", "+", "-", "@", "\t")) for cell in cells)
        assert way.row(line) == row
    assert way.line(Row("-", ("-",), (0.5,))) == "-,-,0.5,\n"


def test_json_has_no_nan() -> None:
    line = AsJson().line(Row("a", NAMES[:1], (float("nan"),)))
    assert json.loads(line, parse_constant=lambda word: pytest.fail(word)) == {
        "path": "a",
        "classes": ["ant"],
        "probabilities": [None],
    }
