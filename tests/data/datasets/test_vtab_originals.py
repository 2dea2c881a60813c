"""VTAB's tasks from original files: small ones, written here from scratch, with labels and order worked out by hand."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import pickle
import random
import struct
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import originals
import pytest
from numpy.typing import NDArray
from PIL import Image

from vitreous.core.errors import VitreousError
from vitreous.data.datasets.clevr import read_scenes
from vitreous.data.datasets.tfds_order import sort_as_tfds
from vitreous.data.datasets.vtab import find_tasks
from vitreous.data.datasets.vtab_rules import bin_by_thresholds
from vitreous.data.loading.loader import Loader
from vitreous.data.open import open_data
from vitreous.data.source import Dataset, Source
from vitreous.data.transforms.decode import decode


def refused(data: str, cache: Path) -> str:
    """The one line that is said; nothing half-made stays in the cache."""
    before = leftovers(cache)
    with pytest.raises(VitreousError) as caught:
        open_data(data)
    message = str(caught.value)
    assert "\n" not in message
    assert leftovers(cache) == before
    return message


def leftovers(cache: Path) -> list[str]:
    return sorted(path.name for path in (cache / "prepared").iterdir()) if (cache / "prepared").exists() else []


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def source(data: Dataset, split: str) -> Source:
    found = data.splits[split]
    assert isinstance(found, Source)
    return found


def listed(found: Source) -> list[tuple[str, int]]:
    return [(found.id(number), *found.labels(number)) for number in range(len(found))]


def by_digest(split: str, keys: list[Any]) -> list[Any]:
    """The order of TensorFlow Datasets, said in another way than in the program."""
    return sorted(keys, key=lambda key: int(hashlib.md5(f"{split}{key}".encode()).hexdigest(), 16))


# Order and thresholds -------------------------------------------------------------------------------------------------------


def test_the_order_is_that_of_tensorflow_datasets() -> None:
    """These numbers were printed by its own Hasher (tensorflow-datasets 4.9.10)."""
    assert sort_as_tfds("train", range(10)).tolist() == [6, 5, 4, 0, 8, 3, 1, 9, 7, 2]
    assert sort_as_tfds("test", range(10)).tolist() == [6, 1, 8, 9, 4, 3, 2, 7, 5, 0]
    assert sort_as_tfds("train", [f"{number:06d}.png" for number in range(10)]).tolist() == [9, 5, 6, 7, 1, 0, 4, 3, 8, 2]
    keys = [f"CLEVR_val_{number:06d}.png" for number in range(500)]
    assert [keys[number] for number in sort_as_tfds("validation", keys)] == by_digest("validation", keys)


def test_thresholds() -> None:
    edges = [0.0, 8.0, 8.5, 9.0]
    distances = [-1.0, 0.0, 0.1, 8.0, 8.0001, 8.5, 8.51, 50.0]
    by_hand = [max((n for n, edge in enumerate(edges) if edge < d), default=-1) for d in distances]
    assert by_hand == [-1, -1, 0, 0, 1, 1, 2, 3]
    assert bin_by_thresholds(np.array(distances), edges).tolist() == by_hand
    assert bin_by_thresholds(np.array([8 + 1e-10]), edges).tolist() == [0]  # in single precision this is 8


# dSprites -------------------------------------------------------------------------------------------------------------------

DSPRITES = "dsprites_ndarray_co1sh3sc6or40x32y32_64x64.npz"


def sprites(folder: Path, count: int = 60, **changes: NDArray[Any]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    rng = np.random.default_rng(1)
    images = rng.integers(0, 2, (count, 64, 64), dtype=np.uint8)
    factors = np.stack([rng.integers(0, size, count) for size in (1, 3, 6, 40, 32, 32)], axis=1)
    folder.mkdir(parents=True, exist_ok=True)
    arrays = {"imgs": images, "latents_values": factors.astype(np.float64), "latents_classes": factors, **changes}
    metadata = np.array({"date": "April 2017"}, dtype=object)  # pickled, as in the original; nobody may unpickle it
    np.savez_compressed(folder / DSPRITES, metadata=metadata, **arrays)
    return images, factors


def test_dsprites(tmp_path: Path) -> None:
    images, factors = sprites(tmp_path / "vtab")
    order = by_digest("train", list(range(60)))
    train, validation, test = order[:48], order[48:54], order[54:]
    for name, column, size in (("dsprites-location", 4, 2.0), ("dsprites-orientation", 3, 2.5)):
        data = open_data(f"vtab:{name}@{tmp_path / 'vtab'}")
        by_hand = {number: int(np.floor(factors[number, column] / size)) for number in order}
        assert listed(source(data, "train")) == [(f"{n:06d}", by_hand[n]) for n in train + validation]
        assert listed(source(data, "test")) == [(f"{n:06d}", by_hand[n]) for n in test]
        assert source(data, "test").targets().tolist() == [by_hand[n] for n in test]
        pixels = source(data, "test").read(2)
        assert isinstance(pixels, np.ndarray)
        assert np.array_equal(pixels, images[test[2]] * 255)
        rgb = np.asarray(decode(pixels))
        assert rgb.shape == (64, 64, 3)
        assert np.array_equal(rgb[..., 0], rgb[..., 2])
        sweep = open_data(f"vtab:{name}/sweep@{tmp_path / 'vtab'}")
        assert listed(source(sweep, "train")) == [(f"{n:06d}", by_hand[n]) for n in train]
        assert listed(source(sweep, "validation")) == [(f"{n:06d}", by_hand[n]) for n in validation]
        assert "test" not in sweep.splits


def test_dsprites_of_full_length_takes_the_first_800_and_200(tmp_path: Path) -> None:
    count = 12_000
    factors = np.zeros((count, 6), np.int64)
    factors[:, 4] = np.arange(count) % 32
    sprites(tmp_path, count, imgs=np.zeros((count, 4, 4), np.uint8), latents_classes=factors)
    data = open_data(f"vtab:dsprites-location@{tmp_path}")
    order = by_digest("train", list(range(count)))
    chosen = order[:800] + order[9600:9800]
    assert listed(source(data, "train")) == [(f"{n:06d}", n % 32 // 2) for n in chosen]
    assert listed(source(data, "test")) == [(f"{n:06d}", n % 32 // 2) for n in order[10_800:]]
    assert "test has 1,200 images; VTAB-1k's dSpr-Loc has 73,728" in data.notes[-1]


def test_dsprites_in_the_tasks_folder_and_in_another_process(tmp_path: Path) -> None:
    sprites(tmp_path / "dsprites_ori")
    found = source(open_data(f"vtab:dsprites-orientation@{tmp_path}"), "test")
    sent = pickle.dumps(found)
    assert len(sent) < 4096  # the way to the pixels, not the pixels
    copy = pickle.loads(sent)
    assert np.array_equal(copy.read(3), found.read(3))
    assert copy.fingerprint() == found.fingerprint()


def test_grey_images_reach_a_model_with_three_channels(tmp_path: Path) -> None:
    images, _ = sprites(tmp_path)
    found = source(open_data(f"vtab:dsprites-location@{tmp_path}"), "test")
    (batch,) = Loader(found, "resize(64)|range(-1,1)", 8, workers=2).once()
    assert batch.images.shape == (6, 3, 64, 64)
    assert batch.targets.tolist() == found.targets().tolist()
    expected = images[int(found.id(4))] * 2.0 - 1
    for channel in batch.images[4]:
        assert np.allclose(channel.numpy(), expected, atol=1e-6)


def test_dsprites_is_read_once(tmp_path: Path, cache: Path) -> None:
    sprites(tmp_path)
    open_data(f"vtab:dsprites-orientation@{tmp_path}")
    made = leftovers(cache)
    open_data(f"vtab:dsprites-location/sweep@{tmp_path}")
    assert leftovers(cache) == made
    assert len(made) == 1
    for path in (cache / "prepared" / made[0]).glob("test-images.npy"):
        path.write_bytes(b"?")
    assert "delete this folder" in refused(f"vtab:dsprites-location@{tmp_path}", cache)


def test_dsprites_cut_short(tmp_path: Path, cache: Path) -> None:
    sprites(tmp_path)
    whole = (tmp_path / DSPRITES).read_bytes()
    (tmp_path / DSPRITES).write_bytes(whole[: len(whole) // 2])
    assert f"{DSPRITES}: broken" in refused(f"vtab:dsprites-location@{tmp_path}", cache)


def test_dsprites_with_changed_bytes(tmp_path: Path, cache: Path) -> None:
    """Anything may be refused, nothing may crash, and images that changed are noticed by their checksum."""
    sprites(tmp_path, 30)
    whole = (tmp_path / DSPRITES).read_bytes()
    rng = random.Random(0)
    refusals = 0
    for _ in range(40):
        changed = bytearray(whole)
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
        (tmp_path / DSPRITES).write_bytes(changed)
        try:
            open_data(f"vtab:dsprites-location@{tmp_path}")
        except VitreousError as error:
            refusals += 1
            assert DSPRITES in str(error)
    assert refusals >= 20


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"imgs": np.full((60, 64, 64), 7, np.uint8)}, "imgs has values up to 7, not 0 and 1"),
        ({"imgs": np.zeros((59, 64, 64), np.uint8)}, "imgs is uint8 of (59, 64, 64) for 60 rows"),
        ({"imgs": np.zeros((60, 64, 64), np.int32)}, "imgs is int32"),
        ({"latents_classes": np.zeros((60, 5), np.int64)}, "latents_classes is int64 of (60, 5)"),
        ({"latents_classes": np.full((60, 6), 40)}, "gives label 20 of 16 classes"),
        ({"latents_classes": np.zeros((0, 6), np.int64), "imgs": np.zeros((0, 64, 64), np.uint8)}, "too few images"),
    ],
    ids=["values", "count", "type", "columns", "label", "empty"],
)
def test_dsprites_that_are_none(tmp_path: Path, changes: dict[str, NDArray[Any]], said: str) -> None:
    sprites(tmp_path, **changes)
    with pytest.raises(VitreousError) as caught:
        open_data(f"vtab:dsprites-location@{tmp_path}")
    assert said in str(caught.value)


def test_an_npz_without_the_arrays(tmp_path: Path, cache: Path) -> None:
    np.savez(tmp_path / DSPRITES, other=np.zeros(3))
    assert "has no array 'latents_classes'" in refused(f"vtab:dsprites-location@{tmp_path}", cache)


# smallNORB ------------------------------------------------------------------------------------------------------------------

TRAINING, TESTING = "smallnorb-5x46789x9x18x6x2x96x96-training", "smallnorb-5x01235x9x18x6x2x96x96-testing"


def matrix(array: NDArray[Any]) -> bytes:
    """The authors' format: magic number, number of dimensions, at least three sizes, values; little-endian."""
    magic = {"uint8": 0x1E3D4C55, "int32": 0x1E3D4C54}[array.dtype.name]
    sizes = [*array.shape, *[1] * (3 - array.ndim)]
    return struct.pack(f"<ii{len(sizes)}i", magic, array.ndim, *sizes) + array.tobytes()


Norb = dict[str, tuple[NDArray[np.uint8], NDArray[np.int32]]]


def norb(folder: Path, packed: bool = True, train: int = 7, test: int = 12) -> Norb:
    rng = np.random.default_rng(2)
    folder.mkdir(parents=True, exist_ok=True)
    found = {}
    for stem, count in ((TRAINING, train), (TESTING, test)):
        images = rng.integers(0, 256, (count, 2, 96, 96), dtype=np.uint8)
        columns = [
            rng.integers(0, 10, count),
            rng.integers(0, 9, count),
            2 * rng.integers(0, 18, count),
            rng.integers(0, 6, count),
        ]
        info = np.stack(columns, axis=1).astype(np.int32)
        category = rng.integers(0, 5, count).astype(np.int32)
        for kind, array in (("dat", images), ("cat", category), ("info", info)):
            content = matrix(array)
            path = folder / f"{stem}-{kind}.mat"
            (path.with_name(f"{path.name}.gz") if packed else path).write_bytes(gzip.compress(content) if packed else content)
        found[stem] = images, info
    return found


@pytest.mark.parametrize("packed", [True, False])
def test_smallnorb(tmp_path: Path, packed: bool) -> None:
    files = norb(tmp_path, packed)
    train = [("train", n) for n in by_digest("train", list(range(7)))]
    order = by_digest("test", list(range(12)))
    validation, test = [("test", n) for n in order[:6]], [("test", n) for n in order[6:]]
    images = {"train": files[TRAINING][0], "test": files[TESTING][0]}
    info = {"train": files[TRAINING][1], "test": files[TESTING][1]}
    for name, column, step in (("smallnorb-azimuth", 2, 2), ("smallnorb-elevation", 1, 1)):
        data = open_data(f"vtab:{name}@{tmp_path}")
        for split, own in (("train", train + validation), ("test", test)):
            found = source(data, split)
            assert listed(found) == [(f"{part}/{n:05d}", info[part][n, column] // step) for part, n in own]
            for number in (0, len(own) - 1):
                part, n = own[number]
                pixels = found.read(number)
                assert np.array_equal(pixels, images[part][n, 0])  # the first of the pair
        sweep = open_data(f"vtab:{name}/sweep@{tmp_path}")
        assert [len(source(sweep, split)) for split in sweep.splits] == [7, 6]
        assert listed(source(sweep, "validation"))[0][0] == f"test/{order[0]:05d}"


def test_smallnorb_faults(tmp_path: Path, cache: Path) -> None:
    norb(tmp_path, packed=False)
    data, path = f"vtab:smallnorb-azimuth@{tmp_path}", tmp_path / f"{TESTING}-dat.mat"
    whole = path.read_bytes()
    path.write_bytes(b"\x00" + whole[1:])
    assert f"{path}: not a matrix file of smallNORB; it begins with 004c3d1e" in refused(data, cache)
    path.write_bytes(whole[:-5])
    assert f"{path}: truncated: row 23 of 24" in refused(data, cache)
    path.write_bytes(whole + b"?")
    assert f"{path}: has more after its 24 rows" in refused(data, cache)
    path.write_bytes(whole[:10])
    assert f"{path}: broken" in refused(data, cache)
    path.write_bytes(struct.pack("<6i", 0x1E3D4C55, 4, 12, 2, 1 << 20, 1 << 20) + whole[24:])
    assert "which is not believed" in refused(data, cache)
    path.write_bytes(matrix(np.zeros((11, 2, 96, 96), np.uint8)))
    assert "where 12 pairs of images should be" in refused(data, cache)
    path.write_bytes(gzip.compress(whole)[:-30])
    assert f"{path}: broken" in refused(data, cache)
    path.unlink()
    assert f"no {TESTING}-dat.mat.gz in {tmp_path}; it should hold" in refused(data, cache)


def test_smallnorb_with_the_wrong_info(tmp_path: Path, cache: Path) -> None:
    norb(tmp_path, packed=False)
    path = tmp_path / f"{TRAINING}-info.mat"
    path.write_bytes(matrix(np.zeros((7, 3), np.int32)))
    assert f"{path}: a matrix of int32 and (7, 3)" in refused(f"vtab:smallnorb-azimuth@{tmp_path}", cache)
    path.write_bytes(matrix(np.full((7, 4), 36, np.int32)))
    with pytest.raises(VitreousError, match=r"train/0000\d gives label 18 of 18 classes \(7 such items\)"):
        open_data(f"vtab:smallnorb-azimuth@{tmp_path}")


# CLEVR ----------------------------------------------------------------------------------------------------------------------


def png(seed: int) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, (6, 9, 3), dtype=np.uint8)).save(file, "PNG")
    return file.getvalue()


def scene(split: str, number: int, distances: list[float]) -> dict[str, Any]:
    objects = [{"size": "small", "shape": "cube", "pixel_coords": [10, 20, z], "3d_coords": [0, 0, 0]} for z in distances]
    return {"image_index": number, "image_filename": f"CLEVR_{split}_{number:06d}.png", "objects": objects, "split": split}


DISTANCES = [
    [7.9, 12.0, 11.0], [8.0, 9.0, 30.0, 10.0], [8.01, 9.0, 9.0], [11.0, 9.2, 9.6, 12.0, 13.0], [9.7, 9.8, 9.9],
    [10.5, 11.0, 12.0], [9.5, 10.0, 10.0], [8.5, 9, 9, 9, 9, 9, 9, 9, 9, 9],
]  # fmt: skip
COUNTS = [0, 1, 0, 2, 0, 0, 0, 7]  # minus three
CLOSEST = [0, 0, 1, 3, 4, 5, 3, 1]  # the last of 0, 8, 8.5, 9, 9.5, 10, 100 below the smallest


def clevr(root: Path, scenes: Mapping[str, list[dict[str, Any]]] | None = None) -> dict[str, bytes]:
    """CLEVR_v1.0 as a mapping from paths to contents, and written to `root`."""
    files: dict[str, bytes] = {"CLEVR_v1.0/README.txt": b"read me"}
    for split, count in (("train", 20), ("val", 8)):
        own = (scenes or {}).get(split) or [scene(split, n, DISTANCES[n % len(DISTANCES)]) for n in range(count)]
        document = {"info": {"version": "1.0", "split": split}, "scenes": own}
        files[f"CLEVR_v1.0/scenes/CLEVR_{split}_scenes.json"] = json.dumps(document).encode()
        for n in range(count):
            files[f"CLEVR_v1.0/images/{split}/CLEVR_{split}_{n:06d}.png"] = png(n + len(split))
    files["CLEVR_v1.0/images/test/CLEVR_test_000000.png"] = b"without a description"
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)
    return files


@pytest.mark.parametrize("zipped", [False, True])
def test_clevr(tmp_path: Path, cache: Path, zipped: bool) -> None:
    files = clevr(tmp_path / "unpacked")
    root = tmp_path / "unpacked"
    if zipped:
        root = tmp_path / "zipped"
        originals.zipped(root / "CLEVR_v1.0.zip", files)
    train = by_digest("train", [f"CLEVR_train_{n:06d}.png" for n in range(20)])
    test = by_digest("validation", [f"CLEVR_val_{n:06d}.png" for n in range(8)])
    for name, labels in (("clevr-count", COUNTS), ("clevr-distance", CLOSEST)):
        data = open_data(f"vtab:{name}@{root}")
        for split, folder, own in (("train", "train", train), ("test", "val", test)):
            found = source(data, split)
            assert listed(found) == [(f"images/{folder}/{key}", labels[int(key[-10:-4]) % 8]) for key in own]
            assert found.read(1) == files[f"CLEVR_v1.0/images/{folder}/{own[1]}"]
        sweep = open_data(f"vtab:{name}/sweep@{root}")
        assert [source(sweep, "validation").id(n)[-22:] for n in range(2)] == train[18:]
    if zipped:
        assert not list((cache / "prepared").rglob("CLEVR_test_*"))


def test_clevr_scenes_are_read_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With any size of the pieces that are read, the same scenes."""
    path = tmp_path / "scenes.json"
    scenes = [scene("train", n, DISTANCES[n % 8]) | {"note": '], [ é \\" }'} for n in range(9)]
    path.write_text(json.dumps({"info": {}, "scenes": scenes}, indent=1, ensure_ascii=False), encoding="utf-8")
    for size in (40, 57, 1000, 1 << 20):
        monkeypatch.setattr("vitreous.data.datasets.clevr._CHUNK", size)
        assert list(read_scenes(path)) == scenes


def test_clevr_faults(tmp_path: Path, cache: Path) -> None:
    data, path = f"vtab:clevr-count@{tmp_path}", tmp_path / "CLEVR_v1.0/scenes/CLEVR_train_scenes.json"
    clevr(tmp_path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-40])
    assert f"{path}: broken" in refused(data, cache)
    path.write_bytes(whole.replace(b'"scenes"', b'"other"'))
    assert f"{path}: no list of scenes in it" in refused(data, cache)
    path.write_bytes(whole.replace(b"pixel_coords", b"coords", 1))
    assert f"{path}: scene 0 lacks image_filename or objects" in refused(data, cache)
    path.write_bytes(whole.replace(b"CLEVR_train_000003.png", b"../../secret.png"))
    assert f"{path}: scene 3 names the image '../../secret.png'" in refused(data, cache)
    path.write_bytes(whole.replace(b"CLEVR_train_000003.png", b"CLEVR_train_000004.png"))
    assert f"{path}: describes an image twice" in refused(data, cache)
    path.write_bytes(whole)
    missing = path.parents[1] / "images/val/CLEVR_val_000002.png"
    missing.unlink()
    with pytest.raises(VitreousError, match=f"{missing.name} of the test list are not there"):
        open_data(data)
    path.unlink()
    (path.parent / "CLEVR_val_scenes.json").unlink()
    assert "CLEVR_v1.0.zip" in refused(data, cache)


@pytest.mark.parametrize(
    ("task", "distances", "said"),
    [
        ("clevr-count", [], "CLEVR_val_000001.png gives label -3 of 8 classes (1 such items)"),
        ("clevr-count", [9.0] * 11, "CLEVR_val_000001.png gives label 8 of 8 classes"),
        ("clevr-distance", [], "CLEVR_val_000001.png gives label 6 of 6 classes"),
        ("clevr-distance", [-0.5, 9.0, 9.0], "CLEVR_val_000001.png gives label -1 of 6 classes"),
    ],
)
def test_clevr_scenes_that_have_no_class(tmp_path: Path, task: str, distances: list[float], said: str) -> None:
    clevr(tmp_path, scenes={"val": [scene("val", n, distances if n == 1 else DISTANCES[0]) for n in range(3)]})
    with pytest.raises(VitreousError) as caught:
        open_data(f"vtab:{task}@{tmp_path}")
    assert said in str(caught.value)


# KITTI ----------------------------------------------------------------------------------------------------------------------


def thing(kind: str, z: float) -> str:
    return f"{kind} 0.00 0 -1.57 599.41 156.40 629.75 189.25 2.85 2.63 12.34 0.47 1.49 {z:.2f} -1.56"


NOTHING = "DontCare -1 -1 -10 503.89 169.71 590.61 190.13 -1 -1 -1 -1000 -1000 -1000 -10"
STREETS = [
    ([thing("Car", 30.0), thing("Van", 7.9), NOTHING], 0),
    ([thing("Truck", 8.0), thing("Pedestrian", 2.0)], 0),
    ([thing("Car", 8.01), thing("Car", 44.0)], 1),
    ([thing("Van", 20.0)], 1),
    ([thing("Car", 69.44), thing("Cyclist", 3.0), NOTHING], 2),
    ([thing("Pedestrian", 5.0), thing("Tram", 5.0), thing("Misc", 9.0), thing("Person_sitting", 9.0)], 3),
    ([NOTHING], 3),
    ([thing("Car", -1.5)], 0),
]
FRAMES, DRIVES = 60, 20


def kitti(root: Path, kit: bool = True) -> dict[str, dict[str, bytes]]:
    """The three zip files as mappings, and their content written to `root`."""
    images = {f"training/image_2/{n:06d}.png": png(n) for n in range(FRAMES)} | {"testing/image_2/000000.png": b"?"}
    labels = {f"training/label_2/{n:06d}.txt": ("\n".join(STREETS[n % 8][0]) + "\n").encode() for n in range(FRAMES)}
    lines = [f"2011_09_26 2011_09_26_drive_{n // 3:04d}_sync {n:010d}" for n in range(FRAMES)]
    rand = ",".join(str(n + 1) for n in shuffled())
    mapping = {"mapping/train_mapping.txt": "\n".join(lines).encode() + b"\n", "mapping/train_rand.txt": rand.encode() + b"\n"}
    archives = {"data_object_image_2.zip": images, "data_object_label_2.zip": labels}
    if kit:
        archives["devkit_object.zip"] = mapping
    for files in archives.values():
        for name, content in files.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_bytes(content)
    return archives


def shuffled() -> list[int]:
    """Frame n of the object set is line shuffled()[n] of the mapping."""
    return np.random.default_rng(5).permutation(FRAMES).tolist()


def dealt() -> dict[str, list[str]]:
    """TensorFlow Datasets' way, with numpy's global generator as it does: two draws of a tenth of the drives."""
    drives: dict[str, list[int]] = {}
    for frame, line in enumerate(shuffled()):
        drives.setdefault(f"2011_09_26_drive_{line // 3:04d}_sync", []).append(frame)
    np.random.seed(123)
    test = set(np.random.choice(sorted(drives), 2, replace=False))
    validation = set(np.random.choice(sorted(set(drives) - test), 2, replace=False))
    found: dict[str, list[str]] = {"train": [], "validation": [], "test": []}
    for drive, frames in drives.items():
        split = "test" if drive in test else "validation" if drive in validation else "train"
        found[split] += [f"{frame:06d}.png" for frame in frames]
    return {split: by_digest(split, own) for split, own in found.items()}


@pytest.mark.parametrize("zipped", [False, True])
def test_kitti(tmp_path: Path, cache: Path, zipped: bool) -> None:
    root = tmp_path / "unpacked" / "kitti"
    archives = kitti(root)
    if zipped:
        root = tmp_path / "zipped"
        for name, files in archives.items():
            originals.zipped(root / name, files)
    splits = dealt()
    data = open_data(f"vtab:kitti-distance@{root}")
    for split, own in (("train", splits["train"] + splits["validation"]), ("test", splits["test"])):
        found = source(data, split)
        assert listed(found) == [(f"training/image_2/{name}", STREETS[int(name[:6]) % 8][1]) for name in own]
        assert found.read(2) == archives["data_object_image_2.zip"][f"training/image_2/{own[2]}"]
    sweep = open_data(f"vtab:kitti/sweep@{root if zipped else root.parent}")
    assert [source(sweep, "validation").id(n)[-10:] for n in range(6)] == splits["validation"]
    assert not any("one by one" in note for note in data.notes)
    assert not list((cache / "prepared").rglob("testing"))


def test_kitti_without_the_development_kit(tmp_path: Path) -> None:
    kitti(tmp_path, kit=False)
    data = open_data(f"vtab:kitti@{tmp_path}")
    assert any("frames are assigned to splits one by one" in note for note in data.notes)
    train, test = ({found.id(n) for n in range(len(found))} for found in (source(data, "train"), source(data, "test")))
    assert len(train | test) == FRAMES
    assert len(test) == FRAMES - FRAMES * 6770 // 7481


def test_kitti_faults(tmp_path: Path, cache: Path) -> None:
    kitti(tmp_path)
    data = f"vtab:kitti@{tmp_path}"
    path = tmp_path / "training/label_2" / f"{dealt()['test'][0][:6]}.txt"
    whole = path.read_bytes()
    path.write_text(f"{thing('Car', 3.0)}\n{thing('Car', 3.0)} 0.99\n")
    assert f"{path}: line 2: 'Car 0.00" in refused(data, cache)
    path.write_text(thing("Car", 3.0).replace("3.00", "near"))
    assert f"{path}: line 1: 'Car 0.00" in refused(data, cache)
    path.write_text(thing("Lorry", 3.0))
    assert f"{path}: line 1: 'Lorry 0.00" in refused(data, cache)
    path.write_text(thing("Car", -100.5))
    assert f"{path.stem} gives label -1 of 4 classes" in refused(data, cache)
    path.write_bytes(whole)
    mapping = tmp_path / "mapping/train_rand.txt"
    text = mapping.read_text()
    mapping.write_text("1,2,3")
    assert "tells the drives of 3 frames, not of 000059" in refused(data, cache)
    mapping.write_text(text.replace("60", "61"))
    assert f"{mapping}: does not number the lines" in refused(data, cache)
    mapping.write_text(text)
    (tmp_path / "training/image_2" / f"{path.stem}.png").unlink()
    assert f"{path.stem}.png of the test list are not there" in refused(data, cache)
    for label in path.parent.glob("*.txt"):
        label.unlink()
    assert "no label files" in refused(data, cache)


def test_a_zip_that_is_cut_short(tmp_path: Path, cache: Path) -> None:
    for name, files in kitti(tmp_path / "unpacked").items():
        originals.zipped(tmp_path / "kitti" / name, files)
    path = tmp_path / "kitti" / "data_object_label_2.zip"
    path.write_bytes(path.read_bytes()[:-100])
    assert f"{path}: broken, truncated or another file" in refused(f"vtab:kitti@{tmp_path}", cache)
    assert zipfile.is_zipfile(tmp_path / "kitti" / "devkit_object.zip")


# Known data sets ------------------------------------------------------------------------------------------------------------

# The key of an image in TensorFlow Datasets by its id, and where validation and test begin in the train split.
RULES: dict[str, tuple[Callable[[str], Any], tuple[int, ...]]] = {
    "pets": (lambda path: path.split("/")[1], (80,)),
    "flowers102": (lambda path: path.split("/")[1], ()),
    "dtd": (lambda path: "/".join(path.split("/")[1:]), ()),
    "eurosat": (lambda path: "_".join(path.split("/")), (60, 80)),
}


@pytest.mark.parametrize("form", ["as distributed", "unpacked"])
@pytest.mark.parametrize("name", RULES)
def test_photographs_of_known_sets(name: str, form: str, tmp_path: Path) -> None:
    """Examples, labels and bytes are those of the original, in the benchmark's order."""
    written = originals.IMAGE_SETS[name](tmp_path / "vtab")
    if form == "unpacked":
        originals.unpack_all(tmp_path / "vtab")
    key, edges = RULES[name]
    items = {path: (label, content) for own in written.values() for path, label, content in own}

    def ordered(split: str, tfds: str) -> list[str]:
        paths = {key(path): path for path, *_ in written[split]}
        return [paths[own] for own in by_digest(tfds, list(paths))]

    pool = ordered("all" if name == "eurosat" else "train", "train")
    cuts = [len(pool) * edge // 100 for edge in edges]
    parts = [part.tolist() for part in np.split(np.array(pool, object), cuts)]
    train = parts[0]
    validation = parts[1] if edges else ordered("validation", "validation")
    test = parts[2] if name == "eurosat" else [path for path, *_ in written["test"]]
    data = open_data(f"vtab:{name}@{tmp_path / 'vtab'}")
    for split, paths in (("train", train + validation), ("test", test)):
        found = source(data, split)
        assert [(item.id, data.classes[item.labels[0]], item.content) for item in found.items()] == [
            (path, *items[path]) for path in paths
        ]
    sweep = open_data(f"vtab:{name}/sweep@{tmp_path / 'vtab'}")
    assert [item.id for item in source(sweep, "train").items()] == train
    assert [item.id for item in source(sweep, "validation").items()] == validation
    assert "test" not in sweep.splits
    assert any("as published has" in note for note in data.notes)
    copy = pickle.loads(pickle.dumps(source(data, "train")))
    assert copy.read(0) == source(data, "train").read(0)
    assert copy.fingerprint() == source(data, "train").fingerprint()


@pytest.mark.parametrize("name", ["cifar100", "svhn"])
def test_arrays_of_known_sets(name: str, tmp_path: Path) -> None:
    written = originals.ARRAY_SETS[name](tmp_path / "vtab")
    images, labels = written["train"]
    order = by_digest("train", list(range(len(images))))
    first = len(images) * 90 // 100
    data, sweep = (open_data(f"vtab:{name}{part}@{tmp_path / 'vtab'}") for part in ("", "/sweep"))
    for found, numbers in (
        (source(data, "train"), order),
        (source(sweep, "train"), order[:first]),
        (source(sweep, "validation"), order[first:]),
    ):
        assert np.array_equal(np.stack([np.asarray(found.read(n)) for n in range(len(found))]), images[numbers])
        assert found.targets().tolist() == labels[numbers].tolist()
    test = source(data, "test")
    assert np.array_equal(np.stack([np.asarray(test.read(n)) for n in range(len(test))]), written["test"][0])


def test_of_a_known_set_the_first_800_and_200(tmp_path: Path) -> None:
    names = [f"{name}_{number}.jpg" for name in ("AnnualCrop", "SeaLake") for number in range(1000)]
    for name in names:
        path = tmp_path / "eurosat" / "2750" / name.partition("_")[0] / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    order = by_digest("train", [f"{name.partition('_')[0]}_{name}" for name in names])
    data = open_data(f"vtab:eurosat@{tmp_path}")
    found = [source(data, "train").id(n).replace("/", "_") for n in range(1000)]
    assert found == order[:800] + order[1200:1400]
    assert [source(data, "test").id(n).replace("/", "_") for n in range(400)] == order[1600:]


def test_a_known_set_is_unpacked_once_for_itself_and_for_vtab(tmp_path: Path, cache: Path) -> None:
    originals.pets(tmp_path / "pets")
    open_data(f"vtab:pets@{tmp_path}")
    before = leftovers(cache)
    assert before
    open_data(f"pets@{tmp_path / 'pets'}")
    assert leftovers(cache) == before


def test_caltech101_is_refused_because_its_draw_is_not_known(tmp_path: Path, cache: Path) -> None:
    originals.caltech101(tmp_path / "vtab")
    message = refused(f"vtab:caltech101@{tmp_path / 'vtab'}", cache)
    assert "30 of each class were drawn at random" in message
    assert "caltech101/train800.txt" in message
    assert find_tasks(tmp_path / "vtab") == ()


def test_what_is_missing_is_named(tmp_path: Path, cache: Path) -> None:
    originals.pets(tmp_path / "vtab")
    assert [task.name for task in find_tasks(tmp_path / "vtab")] == ["pets"]
    message = refused(f"vtab:svhn@{tmp_path / 'vtab'}", cache)
    assert "nor the original train_32x32.mat, test_32x32.mat; there are pets" in message
    assert "its originals are not read here" in refused(f"vtab:sun397@{tmp_path / 'vtab'}", cache)
    (tmp_path / "vtab" / "images.tar.gz").unlink()
    message = refused(f"vtab:pets@{tmp_path / 'vtab'}", cache)
    assert "nor the original images.tar.gz, annotations.tar.gz" in message
    (tmp_path / "half" / "images").mkdir(parents=True)
    (tmp_path / "half" / "annotations").mkdir()
    for name in ("trainval", "test"):
        (tmp_path / "half" / "annotations" / f"{name}.txt").write_text("Abyssinian_1 1 1 1\n")
    message = refused(f"vtab:pets@{tmp_path / 'half'}", cache)
    assert "Abyssinian_1.jpg of the train list are not there" in message
