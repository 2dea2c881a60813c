"""`vitreous inspect` from the command line: what is in the folder, that its numbers are right, and what goes wrong."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import vitreous
from html_page import Page
from vitreous import inspection
from vitreous.classifier import Classifier, load
from vitreous.cli import main
from vitreous.inspection import figures
from vitreous.inspection import inspect_model as whole_inspection
from vitreous.inspection import inspection_dir as folder_module
from vitreous.inspection.attention_rollout import class_activation
from vitreous.inspection.entropy import attention_entropy
from vitreous.inspection.head_view import class_token_attention
from vitreous.inspection.inspect_run import CLOSELY
from vitreous.inspection.tokens import token_change, token_norms, token_similarity
from vitreous.models.attention_maps import attention_maps

from conftest import random_checkpoint

NAMES = ("ant", "</script><b>bee", "cat")
SHAPE: dict[str, Any] = dict(image_size=(24, 32), width=24, depth=3, heads=3, mlp=32, classes=3, names=NAMES)


def saved(folder: Path, name: str = "ViT-Ti/8", **options: Any) -> str:
    Classifier(random_checkpoint(name, **{**SHAPE, **options})).save(folder)
    return str(folder)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return saved(tmp_path_factory.mktemp("models") / "vit")


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photos")
    for seed, name in enumerate(("a/cat.png", "b/cat.png", "c/dog.jpg")):
        make_image(folder / name, seed)
    return folder


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blank figures: drawing them takes most of the time, and other tests look at them."""

    class Blank:
        def __getattr__(self, name: str) -> Any:
            assert name == "save" or hasattr(figures, name)
            return self._save if name == "save" else lambda *values, **options: None

        @staticmethod
        def _save(figure: None, folder: Path, name: str) -> tuple[Path, Path]:
            folder.mkdir(exist_ok=True)
            Image.new("L", (4, 4)).save(folder / f"{name}.png")
            (folder / f"{name}.svg").write_text("<svg/>")
            return folder / f"{name}.png", folder / f"{name}.svg"

    monkeypatch.setattr(folder_module, "figures", Blank())


def make_image(path: Path, seed: int = 0, size: tuple[int, int] = (40, 50)) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, (*size, 3), dtype=np.uint8)).save(path)
    return path


def run(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    code = main(["inspect", *map(str, words), "--device", "cpu"])
    shown = capsys.readouterr()
    return code, shown.out, shown.err


def columns(path: Path) -> dict[str, list[str]]:
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    return {name: [row[name] for row in rows] for name in rows[0]}


def files(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_the_folder_holds_what_the_functions_give(
    model: str, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "inside"
    code, text, err = run(capsys, model, photos, "--out", out)
    assert code == 0
    assert "report.html" in text
    assert "means over so few images (3)" in err
    each = {f"{kind}/{stem}.{ending}" for kind in ("rollout", "gradient_rollout") for stem in ("cat", "cat-2", "dog")
            for ending in ("npy", "png")}  # fmt: skip
    each |= {f"{kind}/{stem}.{ending}" for kind in ("attention", "patch_similarity") for stem in ("cat", "cat-2", "dog")
             for ending in ("npy", "png", "svg")}  # fmt: skip
    each |= {f"patch_components/{stem}.{ending}" for stem in ("cat", "cat-2", "dog") for ending in ("npy", "png")}
    each |= {f"animation/{stem}.webp" for stem in ("cat", "cat-2", "dog")}
    drawn = ("rollout", "attention_distance", "entropy", "filters", "position_similarity", "token_norms", "token_similarity",
             "patch_components", "patch_similarity")  # fmt: skip
    each |= {f"figures/{name}.{ending}" for name in drawn for ending in ("png", "svg")}
    tables = {"attention_distance.csv", "entropy.csv", "token_norms.csv", "token_similarity.csv"}
    assert files(out) == each | tables | {"filters.npy", "position_similarity.npy", "inspect.json", "report.html"}
    assert [entry.name for entry in tmp_path.iterdir() if entry.name != "cache"] == ["inside"]

    clf = load(model)
    paths = [str(photos / name) for name in ("a/cat.png", "b/cat.png", "c/dog.jpg")]
    for name in drawn:
        with Image.open(out / "figures" / f"{name}.png") as opened:
            assert min(opened.size) > 200
    found = columns(out / "attention_distance.csv")
    assert list(found) == ["layer", "head", "distance"]
    assert [*zip(found["layer"], found["head"], strict=True)] == [(str(k), str(h)) for k in range(3) for h in range(3)]
    distance = np.array(found["distance"], float).reshape(3, 3)
    assert np.allclose(distance, vitreous.attention_distance(clf, paths), rtol=1e-6)
    assert np.allclose(distance, distance_by_hand(clf, paths), rtol=1e-5)
    entropy = np.array(columns(out / "entropy.csv")["entropy"], float).reshape(3, 3)
    assert np.allclose(entropy, attention_entropy(clf, paths), rtol=1e-6)
    norms = token_norms(clf, paths)
    lengths = columns(out / "token_norms.csv")
    patches = norms[:, :, 1:].reshape(4, -1)
    for name, share in (("minimum", 0), ("quarter", 25), ("median", 50), ("three_quarters", 75), ("maximum", 100)):
        assert np.allclose(np.array(lengths[name], float), np.percentile(patches, share, axis=1), rtol=1e-5), name
    assert np.allclose(np.array(lengths["leading_0"], float), norms[:, :, 0].mean(axis=1), rtol=1e-6)
    alike = columns(out / "token_similarity.csv")
    assert np.allclose(np.array(alike["similarity"], float), token_similarity(clf, paths), rtol=1e-5)
    assert alike["change"][0] == ""
    assert np.allclose(np.array(alike["change"][1:], float), token_change(clf, paths), rtol=1e-5)

    assert np.array_equal(np.load(out / "filters.npy"), vitreous.filters(clf))
    assert np.array_equal(np.load(out / "position_similarity.npy"), vitreous.position_similarity(clf))
    components = inspection.patch_components(clf, paths)
    for stem, path in zip(("cat", "cat-2", "dog"), paths, strict=True):
        assert np.allclose(np.load(out / "rollout" / f"{stem}.npy"), vitreous.rollout(clf, path)[0], atol=1e-6)
        gradient = np.load(out / "gradient_rollout" / f"{stem}.npy")
        assert np.allclose(gradient, vitreous.gradient_rollout(clf, path)[0], atol=1e-6)
        alike = np.load(out / "patch_similarity" / f"{stem}.npy")
        assert alike.dtype == np.float16
        assert np.allclose(alike, inspection.patch_similarity(clf, path)[0], atol=1e-3)
        own = np.load(out / "patch_components" / f"{stem}.npy")
        assert np.allclose(own, components[paths.index(path)], atol=1e-4)
        heads = np.load(out / "attention" / f"{stem}.npy")
        assert heads.dtype == np.float16
        assert np.allclose(heads, class_token_attention(clf.model, clf.prepare(path))[:, 0], atol=1e-3)
        with Image.open(out / "animation" / f"{stem}.webp") as moving:
            assert moving.n_frames == 3

    numbers = json.loads((out / "inspect.json").read_text())
    assert numbers["survey"]["distance"] == distance.tolist()
    assert numbers["survey"]["names"] == paths
    assert set(numbers["files"]) == files(out)
    assert (numbers["grid"], numbers["step"], numbers["layers"], numbers["heads"]) == ([3, 4], [8, 8], 3, 3)
    guess = clf.predict(paths[2])
    assert numbers["looks"][2]["classes"] == list(guess.classes)
    assert numbers["looks"][2]["probabilities"] == pytest.approx(guess.probabilities, rel=1e-5)


def distance_by_hand(clf: Classifier, paths: list[str]) -> np.ndarray[Any, Any]:
    """Loops over queries and keys; 8 pixels from patch to patch."""
    maps = attention_maps(clf.model, clf.prepare(paths)).numpy().astype(np.float64)
    places = [(8 * row, 8 * column) for row in range(3) for column in range(4)]
    found = np.zeros((3, 3))
    for layer, head in np.ndindex(3, 3):
        total = 0.0
        for image in range(len(paths)):
            for i, a in enumerate(places):
                for j, b in enumerate(places):
                    total += maps[layer, image, head, 1 + i, 1 + j] * ((a[0] - b[0]) ** 2 + (a[1] - b[1]) ** 2) ** 0.5
        found[layer, head] = total / len(places) / len(paths)
    return found


@pytest.mark.usefixtures("undrawn")
def test_twice_the_same(model: str, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("one", "two"):
        assert run(capsys, model, photos / "a", "--data", photos, "--out", tmp_path / name)[0] == 0
    assert files(tmp_path / "one") == files(tmp_path / "two")
    for name in sorted(files(tmp_path / "one")):
        one, two = ((tmp_path / place / name).read_bytes() for place in ("one", "two"))
        if name == "inspect.json":
            one, two = ({**json.loads(content), "seconds": 0} for content in (one, two))
        assert one == two, name
    before = (tmp_path / "one" / "inspect.json").read_bytes()
    assert run(capsys, model, photos / "c", "--out", tmp_path / "one")[0] == 0  # an earlier result is replaced
    assert (tmp_path / "one" / "inspect.json").read_bytes() != before
    assert not (tmp_path / "one" / "rollout" / "cat.npy").exists()


@pytest.mark.usefixtures("undrawn")
def test_the_record(model: str, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "inside"
    code, text, _ = run(capsys, model, photos / "c" / "dog.jpg", "--out", out, "--json", "--count", "2")
    assert code == 0
    (line,) = text.splitlines()
    found = json.loads(line)
    assert found["preprocess"] == str(load(model).preprocess)
    assert found["out"] == str(out)
    assert (found["images"], found["layers"], found["heads"]) == (1, 3, 3)
    assert found["looks"] == [str(photos / "c" / "dog.jpg")]
    survey = json.loads((out / "inspect.json").read_text())["survey"]
    assert found["distance"]["first"]["max"] == max(survey["distance"][0])
    assert found["entropy"]["last"]["mean"] == pytest.approx(np.mean(survey["entropy"][-1]))
    assert survey["distance_error"] == [[None] * 3] * 3  # of one image nobody knows
    assert set(found["files"]) == files(out)


@pytest.mark.usefixtures("undrawn")
def test_a_map_of_the_data(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = tmp_path / "data"
    for seed in range(9):
        make_image(data / "test" / ("=cmd()", "<b>bold", "c")[seed % 3] / f"{seed}.png", seed, (30, 40 + seed))
        make_image(data / "train" / ("=cmd()", "<b>bold", "c")[seed % 3] / f"{seed + 100}.png", seed + 100)
    (data / "test" / "c" / "broken.png").write_bytes(b"no image")
    out = tmp_path / "inside"
    code, text, err = run(capsys, model, "--data", data, "--out", out, "--images", "5", "--projection", "pca")
    assert code == 0
    assert f"5 images of {data} (test)" in text
    assert "the map leaves out 1 images that cannot be read" in err
    found = columns(out / "data_map.csv")
    assert list(found) == ["id", "class", "x", "y"]
    assert sorted(found["class"]) == ["'=cmd()"] * 3 + ["<b>bold"] * 3 + ["c"] * 3
    clf = load(model)
    names = [name.lstrip("'") for name in found["id"]]
    paths = [data / name if (data / name).exists() else data / "test" / name for name in names]
    values = clf.features([str(path) for path in paths]).double().numpy()
    points = np.array([found["x"], found["y"]], float).T
    centred = values - values.mean(axis=0)
    strengths = np.sqrt(np.linalg.eigvalsh(centred @ centred.T)[::-1][:2])  # PCA's scores have the lengths of these
    assert np.allclose(np.linalg.norm(points, axis=0), strengths, rtol=1e-4)
    text = (out / "report.html").read_text(encoding="utf-8")
    page = Page(text)
    assert len(page.of("g", "p")) == len(page.of("circle")) == 9
    assert "<b>bold" not in text
    assert "&lt;b&gt;bold" in text
    assert {"figures/data_map.png", "figures/data_map.svg"} <= files(out)
    numbers = json.loads((out / "inspect.json").read_text())
    assert numbers["data_map"] == {"data": f"{data} (test)", "images": 9, "method": "pca"}
    assert numbers["survey"]["images"] == 5
    assert len(numbers["looks"]) == 5

    code, _, _ = run(capsys, model, "--data", f"{data}:train", "--out", out, "--projection", "none")
    assert code == 0
    assert "data_map.csv" not in files(out)


@pytest.mark.usefixtures("undrawn")
def test_shards(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They can only be read from their beginnings: some of each."""
    for seed in range(20):
        make_image(tmp_path / "photos" / ("a", "b")[seed % 2] / f"{seed}.png", seed)
    assert main(["shard", str(tmp_path / "photos"), str(tmp_path / "shards"), "--shard-size", "40KB"]) == 0
    shards = len(list((tmp_path / "shards").glob("*.tar")))
    assert shards > 2
    out = tmp_path / "inside"
    code, _, _ = run(capsys, model, "--data", tmp_path / "shards", "--out", out, "--count", "6", "--projection", "pca")
    assert code == 0
    numbers = json.loads((out / "inspect.json").read_text())
    assert len(set(numbers["survey"]["names"])) == 6
    assert numbers["data_map"]["images"] == 20
    assert sorted(columns(out / "data_map.csv")["class"]) == ["a"] * 10 + ["b"] * 10
    assert set(numbers["survey"]["names"]) <= set(columns(out / "data_map.csv")["id"])


@pytest.mark.usefixtures("undrawn")
def test_nothing_given(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Drawn scenes; here for a model of grey images of 8 pixels, without a head, whose preprocessing names no size."""
    model = saved(
        tmp_path / "m", "ViT-Ti/4", image_size=8, channels=1, classes=0, names=None, preprocess="range(-1,1)", depth=1
    )
    code, text, err = run(capsys, model, "--out", tmp_path / "inside", "--count", "20", "--batch-size", "7")
    assert code == 0
    assert "20 images of builtin:objects" in text
    assert "drawn scenes" in err
    assert "resized to 8 x 8" in err
    numbers = json.loads((tmp_path / "inside" / "inspect.json").read_text())
    assert len(numbers["looks"]) == 3
    assert numbers["looks"][0]["classes"] == []
    assert np.load(next((tmp_path / "inside" / "rollout").glob("*.npy"))).shape == (2, 2)
    assert np.load(tmp_path / "inside" / "filters.npy").shape[1:] == (4, 4, 1)


def test_a_resnet_has_filters_and_class_activation(photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = dict(image_size=64, units=(1, 1), width=32, depth=None, heads=None, mlp=None)
    options = {key: value for key, value in {**SHAPE, **options}.items() if value is not None}
    Classifier(random_checkpoint("R50x1", **options)).save(tmp_path / "r")
    out = tmp_path / "inside"
    code, text, err = run(capsys, tmp_path / "r", photos / "a" / "cat.png", "--out", out)
    assert code == 0
    assert "is a ResNet" in err
    assert "report.html" in text
    expected = {"filters.npy", "figures/filters.png", "figures/filters.svg", "inspect.json", "report.html"}
    assert files(out) == expected | {"class_activation/cat.npy", "class_activation/cat.png"}
    clf = load(tmp_path / "r")
    expected_map = class_activation(clf.model, clf.prepare(str(photos / "a" / "cat.png")))[0]
    assert np.allclose(np.load(out / "class_activation" / "cat.npy"), expected_map, atol=1e-5)
    code, text, _ = run(capsys, tmp_path / "r", photos / "a" / "cat.png", "--out", out, "--json")
    assert (code, json.loads(text)["layers"], json.loads(text)["distance"]) == (0, 0, {})

    Classifier(random_checkpoint("R50x1", **{**options, "classes": 0, "names": None})).save(tmp_path / "bare")
    code, _, err = run(capsys, tmp_path / "bare", photos / "a" / "cat.png", "--out", out)
    assert code == 0
    assert "has no head" in err
    assert files(out) == expected


@pytest.mark.usefixtures("undrawn")
def test_a_hybrid_counts_pixels_of_the_input(photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = dict(trunk_units=(1, 1), trunk_width=32, image_size=64, depth=1)
    model = saved(tmp_path / "h", "R+ViT-Ti/2", **options)
    assert run(capsys, model, photos / "a" / "cat.png", "--out", tmp_path / "inside")[0] == 0
    numbers = json.loads((tmp_path / "inside" / "inspect.json").read_text())
    assert (numbers["step"], numbers["grid"]) == ([8, 8], [8, 8])
    clf = load(model)
    distance = np.array(columns(tmp_path / "inside" / "attention_distance.csv")["distance"], float)
    maps = attention_maps(clf.model, clf.prepare(str(photos / "a" / "cat.png")))[0, 0, :, 1:, 1:].numpy()
    places = 8.0 * np.indices((8, 8)).reshape(2, -1)
    apart = np.linalg.norm(places[:, :, None] - places[:, None], axis=0)
    assert np.allclose(distance, (maps * apart).sum(axis=2).mean(axis=1), rtol=1e-5)
    kernels = np.load(tmp_path / "inside" / "filters.npy")
    assert kernels.shape == (28, 7, 7, 3)
    assert np.allclose(kernels[0], clf.model.trunk.root.standardised()[0].permute(1, 2, 0).detach().numpy())


@pytest.mark.usefixtures("undrawn")
def test_a_model_without_positions(photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = saved(tmp_path / "m", positions="none", position_prefix=0, class_token=False, pool="gap")
    code, _, err = run(capsys, model, photos / "a" / "cat.png", "--out", tmp_path / "inside")
    assert code == 0
    assert "positions='none'" in err
    assert "position_similarity.npy" not in files(tmp_path / "inside")
    assert "leading_0" not in columns(tmp_path / "inside" / "token_norms.csv")


@pytest.mark.usefixtures("undrawn")
def test_images_of_another_size_than_the_model_was_built_for(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As DINOv2's: a table of positions for 518 pixels, and a preprocessing that makes 224."""
    model = saved(tmp_path / "m", preprocess="resize(16,24)|range(-1,1)")
    out = tmp_path / "inside"
    assert run(capsys, model, photos / "a" / "cat.png", "--out", out)[0] == 0
    numbers = json.loads((out / "inspect.json").read_text())
    assert (numbers["image_size"], numbers["grid"]) == ([16, 24], [2, 3])
    assert np.load(out / "rollout" / "cat.npy").shape == (2, 3)
    assert np.load(out / "position_similarity.npy").shape == (3, 4, 3, 4)
    said = Page((out / "report.html").read_text(encoding="utf-8")).said
    assert "uniform attention is 2.81" in said  # log2 of 6 patches and the class token
    far = np.mean([8 * np.hypot(a - c, b - d) for a, b in np.ndindex(2, 3) for c, d in np.ndindex(2, 3)]) * 6 / 7
    assert f"uniform attention would be {far:.3g}" in said


@pytest.mark.usefixtures("undrawn")
def test_another_size_and_many_images(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(CLOSELY + 4):
        make_image(tmp_path / "many" / f"{number:02d}.png", number)
    out = tmp_path / "inside"
    code, _, err = run(capsys, model, tmp_path / "many", "--out", out, "--image-size", "40,16", "--count", "14", "--seed", "3")
    assert code == 0
    assert "16 images are named; 14 of them, drawn by --seed 3" in err
    assert "12 of 14 images are looked at closely" in err
    assert len(list((out / "rollout").glob("*.npy"))) == CLOSELY
    assert np.load(next((out / "rollout").glob("*.npy"))).shape == (5, 2)
    names = json.loads((out / "inspect.json").read_text())["survey"]["names"]
    assert len(set(names)) == 14
    assert names != sorted(names)


@pytest.mark.usefixtures("undrawn")
def test_a_bad_image_is_named_and_left_out(
    model: str, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = tmp_path / "broken.png"
    broken.write_bytes((photos / "a" / "cat.png").read_bytes()[:90])
    code, _, err = run(capsys, model, broken, photos / "a" / "cat.png", tmp_path / "none.png", "--out", tmp_path / "inside")
    assert code == 0
    assert str(broken) in err
    assert "none.png (no such image" in err
    assert "looked at closely" not in err  # all that can be read are
    assert len(json.loads((tmp_path / "inside" / "inspect.json").read_text())["looks"]) == 1
    code, _, err = run(capsys, model, broken, tmp_path / "none.png", "--out", tmp_path / "other")
    assert code == 2
    assert "none of the 2 images can be read" in err
    assert not (tmp_path / "other").exists()


@pytest.mark.usefixtures("undrawn")
def test_hostile_names(tmp_path: Path, photos: Path, capsys: pytest.CaptureFixture[str], model: str) -> None:
    names = ["<img src=x onerror=alert(1)>.png", ".hidden.png", "con.png", "-rf.png", "caf\udce9.png", "a b\n.png"]
    for seed, name in enumerate(names):
        make_image(tmp_path / "photos" / f"{seed}" / "x.png", seed).rename(tmp_path / "photos" / name)
    out = tmp_path / "inside"
    code, _, _ = run(capsys, model, *(tmp_path / "photos" / name for name in names), "--out", out)
    assert code == 0
    stems = sorted(path.stem for path in (out / "rollout").glob("*.npy"))
    assert stems == sorted(["img_src_x_onerror_alert_1", "hidden", "image-con", "rf", "caf", "a_b"])
    text = (out / "report.html").read_text(encoding="utf-8")
    page = Page(text)  # its tags nest
    assert "onerror" not in {name for _, attributes in page.elements for name in attributes}
    assert "<img src=x" not in text
    assert "</script><b>" not in text  # the name of a class
    assert len([tag for tag, _ in page.elements if tag == "script"]) == 1
    assert json.loads((out / "inspect.json").read_text())["looks"][4]["image"].endswith("caf\udce9.png")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--count", "0"], "--count 0: must be at least 1"),
        (["--images", "0"], "--count 0: must be at least 1"),
        (["--batch-size", "0"], "--batch-size 0"),
        (["--projection", "pca"], "give --data DATA too"),
        (["--data", "nowhere/at/all"], "nowhere/at/all: no such file or folder"),
        (["--device", "abacus"], "--device abacus"),
        (["--image-size", "30"], "30"),
    ],
)
def test_bad_options(
    model: str, photos: Path, tmp_path: Path, words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", model, str(photos), "--out", str(tmp_path / "inside"), *words]) == 2
    err = capsys.readouterr().err
    assert said in err
    assert len([line for line in err.splitlines() if line.startswith("vitreous: ")]) == 1
    assert not (tmp_path / "inside").exists()


def test_an_unknown_projection(model: str, photos: Path, tmp_path: Path) -> None:
    assert main(["inspect", model, "--data", str(photos), "--out", str(tmp_path / "inside"), "--projection", "umap"]) == 2
    with pytest.raises(vitreous.VitreousError, match="pca"):
        vitreous.inspect(model, data=str(photos), out=str(tmp_path / "inside"), projection="pcs")  # type: ignore[arg-type]
    assert not (tmp_path / "inside").exists()


@pytest.mark.usefixtures("undrawn")
def test_bad_places(model: str, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    image = photos / "a" / "cat.png"
    code, _, err = run(capsys, tmp_path / "no-such-model", image, "--out", tmp_path / "inside")
    assert code == 2
    assert "no-such-model" in err
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("years of work")
    code, _, err = run(capsys, model, image, "--out", tmp_path / "mine")
    assert code == 2
    assert "thesis.tex" in err
    for inside in (photos / "a" / "out", photos / "out"):
        code, _, err = run(capsys, model, photos, "--out", inside)
        assert code == 2
        assert "lies inside the data" in err
        assert not inside.exists()
    assert run(capsys, model, image, "--out", tmp_path / "inside")[0] == 0
    (tmp_path / "inside" / "figures" / "mine.png").write_bytes(b"drawn by hand")
    code, _, err = run(capsys, model, image, "--out", tmp_path / "inside")
    assert code == 2
    assert "figures/mine.png" in err
    assert (tmp_path / "inside" / "figures" / "mine.png").exists()


@pytest.mark.usefixtures("undrawn")
def test_ended_midway(
    model: str, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out, image = tmp_path / "inside", photos / "a" / "cat.png"
    assert run(capsys, model, image, "--out", out)[0] == 0
    before = {name: (out / name).read_bytes() for name in files(out)}

    def interrupted(*args: object) -> None:
        raise KeyboardInterrupt

    for module, name in (
        (folder_module, "animation"),
        (folder_module, "render_inspection_report"),
        (whole_inspection, "compute_statistics"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(module, name, interrupted)
            assert run(capsys, model, image, "--out", out)[0] == 130
            assert run(capsys, model, image, "--out", tmp_path / "new")[0] == 130
        assert {name: (out / name).read_bytes() for name in files(out)} == before
        assert [path.name for path in tmp_path.iterdir() if path.name != "cache"] == ["inside"]


def test_weights_that_are_no_numbers(photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checkpoint = random_checkpoint("ViT-Ti/8", **SHAPE)
    checkpoint.tensors["blocks.0.norm1.weight"].fill_(torch.nan)
    Classifier(checkpoint).save(tmp_path / "m")
    code, _, err = run(capsys, tmp_path / "m", photos / "a" / "cat.png", "--out", tmp_path / "inside")
    assert code == 2
    assert "blocks.0.norm1.weight" in err
    assert not (tmp_path / "inside").exists()


@pytest.mark.usefixtures("undrawn")
def test_from_python(model: str, photos: Path, tmp_path: Path) -> None:
    found = vitreous.inspect(model, [photos / "a" / "cat.png"], out=str(tmp_path / "inside"))  # type: ignore[list-item]
    assert found.exit_code == 0
    assert found.numbers["survey"]["images"] == 1
    assert "layer" in found.text()
