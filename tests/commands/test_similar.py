"""`vitreous similar`: nearest images and clusters of a file, as table, JSON and page; what does not fit is refused."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import vitreous
from embedding import embed, make_world, write_images
from vitreous.cli import main
from vitreous.inference.feature_file import FeatureFile, write_features


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return make_world(tmp_path, monkeypatch)


@pytest.fixture
def file(world: Path) -> FeatureFile:
    assert embed() == 0
    return FeatureFile(world / "f.safetensors")


def similar(*words: str) -> int:
    return main(["similar", "f.safetensors", *words, "--device", "cpu"])


def expected(file: FeatureFile, vector: np.ndarray) -> list[str]:
    values = np.asarray(file.values, np.float64)
    cosines = values @ vector / np.linalg.norm(values, axis=1) / np.linalg.norm(vector)
    return [file.id(int(row)) for row in np.argsort(-cosines)]


def test_an_image_that_is_in_the_file_is_most_similar_to_itself(file: FeatureFile, world: Path) -> None:
    shutil.copy(world / "photos" / "train" / "cat" / "04.png", world / "copy.png")
    found = vitreous.similar("f.safetensors", "copy.png", top=3)
    (matches,) = found.matches.values()
    row = file.find("train/cat/04.png")
    assert row is not None
    assert [match.id for match in matches] == expected(file, file.values[row])[:3]
    assert matches[0].id == "train/cat/04.png"
    assert matches[0].similarity == pytest.approx(1, abs=1e-5)
    assert (matches[0].labels, matches[0].split) == (("cat",), "train")


def test_an_id_needs_no_model_and_is_not_its_own_neighbour(
    file: FeatureFile, world: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree(world / "tiny")
    assert similar("test/dog/01.png", "train/cat/00.png", "--top", "4", "--json") == 0
    records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [record["query"] for record in records] == ["test/dog/01.png", "train/cat/00.png"]
    for record in records:
        row = file.find(record["query"])
        assert row is not None
        assert [match["id"] for match in record["similar"]] == expected(file, file.values[row])[1:5]
        assert set(record["similar"][0]) == {"id", "split", "labels", "similarity"}


def test_a_page_with_every_image(file: FeatureFile, world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert similar("photos/test/cat", "--top", "2", "--out", "page.html") == 0
    page = (world / "page.html").read_text()
    assert page.count("data:image/png;base64,") == 3 * (1 + 2)  # queries and what is similar to them
    assert "page.html: the same with thumbnails" in capsys.readouterr().out
    assert similar("--clusters", "3", "--top", "2", "--out", "clusters.html") == 0
    assert "Cluster 3" in (world / "clusters.html").read_text()


def test_images_that_came_since_do_not_shift_the_page(file: FeatureFile, world: Path) -> None:
    write_images(world / "photos" / "train", 2, seed=9)  # 00 and 01 are others now
    (world / "photos" / "train" / "cat" / "0.png").write_bytes((world / "photos" / "train" / "cat" / "04.png").read_bytes())
    assert similar("train/cat/04.png", "--top", "9", "--out", "page.html") == 0


def test_clusters(file: FeatureFile, world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = vitreous.similar("f.safetensors", clusters=4, top=2)
    sizes = [cluster.size for cluster in found.clusters]
    assert sum(sizes) == 15
    assert sizes == sorted(sizes, reverse=True)
    assert np.bincount(found.assignments, minlength=5)[1:].tolist() == sizes
    for cluster in found.clusters:
        assert all(found.assignments[match.row] == cluster.number for match in cluster.representatives)
        assert [m.similarity for m in cluster.representatives] == sorted(
            (m.similarity for m in cluster.representatives), reverse=True
        )
    assert similar("--clusters", "4", "--json") == 0
    records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [record["size"] for record in records] == sizes
    assert set(records[0]) == {"cluster", "size", "label", "share", "representatives"}


def test_refused_in_one_line(file: FeatureFile, world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def refused(code: int, *said: str) -> None:
        printed = capsys.readouterr()
        assert code == 2, printed
        assert all(word in printed.err.splitlines()[-1] for word in said), printed.err
        assert not (world / "page.html").exists()

    query = "photos/train/cat/00.png"
    refused(similar(query, "--checkpoint", "other"), "features come from other weights than those of other")
    refused(similar("none.png"), "none.png: no such image, and no id of f.safetensors")
    refused(similar(), "name images")
    refused(similar(query, "--clusters", "2"), "one of the two")
    refused(similar("--clusters", "16"), "--clusters 16: f.safetensors has 15 images")
    refused(similar(query, "--out", "page.png"), "ends in .html")
    (world / "bad.png").write_bytes(b"no image")
    refused(similar("bad.png"), "bad.png")
    shutil.move(world / "tiny", world / "moved")
    refused(similar(query), "its checkpoint is not found", "--checkpoint")
    assert similar(query, "--checkpoint", "moved") == 0
    shutil.copytree(world / "other", world / "tiny")
    refused(similar(query), "features come from other weights", "--checkpoint")
    (world / "photos" / "train" / "cat" / "00.png").rename(world / "photos" / "train" / "cat" / "new.png")
    refused(similar("test/cat/00.png", "--top", "14", "--out", "page.html"), "train/cat/00.png is not in", "--data")
    shutil.move(world / "photos", world / "elsewhere")
    refused(similar("test/cat/00.png", "--out", "page.html"), "its images are not found", "--data")
    assert similar("test/cat/02.png", "--top", "1", "--data", "elsewhere", "--out", "fine.html") == 0


def test_features_that_are_damaged(file: FeatureFile, world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = file.path.read_bytes()
    loaded, about = file.load(), file.about
    loaded.values[3, 2] = np.nan
    for words in (["--clusters", "2"], ["test/cat/00.png"]):
        write_features(file.path, loaded, about, "train")
        assert similar(*words) == 2
        assert "f.safetensors: its features are not finite" in capsys.readouterr().err
        file.path.write_bytes(content[:-100])
        assert similar(*words) == 2
        assert "not a file of features, or a truncated one" in capsys.readouterr().err
    tokens = replace(loaded, values=np.ones((15, 4, 12), np.float32))
    write_features(file.path, tokens, about, "train")
    assert similar("--clusters", "2") == 2
    assert "embed the images without --tokens" in capsys.readouterr().err
