"""Features against the classifier's own, in the order of the data, and from a cache that is right or is not used."""

from __future__ import annotations

import copy
import io
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from vitreous.classifier import Classifier
from vitreous.core.distributed import World
from vitreous.core.errors import VitreousError
from vitreous.data.open import open_data
from vitreous.data.shards.reader import open_shards
from vitreous.data.shards.writer import write_shards
from vitreous.data.source import Content, Source, View
from vitreous.data.sources.arrays import Arrays
from vitreous.data.sources.relabelled import Relabelled
from vitreous.data.transforms.parse import Preprocess
from vitreous.inference import distributed_pass as shared_pass
from vitreous.inference import feature_cache, feature_file, features
from vitreous.inference.features import Features, compute_features
from vitreous.inference.runner import Runner

from conftest import random_checkpoint


def model(seed_of: int = 0, **options: object) -> Classifier:
    torch.manual_seed(0)
    sizes: dict[str, Any] = dict(width=24, depth=1, heads=3, mlp=48, image_size=8, classes=3, channels=1, representation=20)
    clf = Classifier(random_checkpoint("ViT-Ti/2", preprocess="resize(8)|range(-1,1)", **{**sizes, **options}))
    if seed_of:
        with torch.no_grad():
            next(clf.model.parameters()).add_(0.1)
    return clf


def some(count: int = 40, seed: int = 0) -> Arrays:
    rng = np.random.default_rng(seed)
    images = rng.integers(0, 256, (count, 8, 8)).astype(np.uint8)
    return Arrays("made", "train", ("a", "b", "c"), images, np.arange(count) % 3)


def expected(clf: Classifier, source: Arrays) -> np.ndarray[Any, Any]:
    return clf.features(list(source.images)).numpy()


def ran(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Counts the images that a model is run on."""
    counted: list[int] = []
    real = Runner.run

    def counting(self: Runner, images: Any) -> Any:
        counted.append(len(images))
        return real(self, images)

    monkeypatch.setattr(Runner, "run", counting)
    return counted


def test_values_in_the_order_of_the_data_whatever_the_batch_and_the_workers() -> None:
    clf, source = model(), some()
    for batch_size, workers in ((7, 0), (64, 1)):
        found = compute_features(clf, source, batch_size=batch_size, workers=workers, cache=False)
        np.testing.assert_allclose(found.values, expected(clf, source), atol=1e-5)
        assert found.values.dtype == np.float32
        assert found.values.shape == (40, 20)  # after the representation layer
        assert found.labels == tuple((i % 3,) for i in range(40))
        assert found.ids == tuple(source.id(i) for i in range(40))
        assert found.numbers.tolist() == list(range(40))
        assert (found.classes, found.bad, found.notes, found.cached) == (("a", "b", "c"), (), (), False)


def test_the_second_time_the_model_is_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = ran(monkeypatch)
    source = Relabelled(some(), [(), (0, 2), *[(i % 3,) for i in range(38)]])
    first = compute_features(model(), source, workers=0)
    second = compute_features(model(), source, workers=0)
    assert sum(counted) == 40
    assert (first.cached, second.cached) == (False, True)
    assert np.array_equal(first.values, second.values)
    assert np.array_equal(first.numbers, second.numbers)
    assert (first.labels, first.ids, first.bad) == (second.labels, second.ids, second.bad)
    assert second.labels[:2] == ((), (0, 2))
    compute_features(model(), source, workers=0, cache=False)
    assert sum(counted) == 80


@pytest.mark.parametrize("changed", ["pixels", "labels", "classes", "ids", "weights", "config", "preprocess", "precision"])
def test_whatever_the_numbers_follow_from_makes_another_entry(changed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    counted, clf, source = ran(monkeypatch), model(), some()
    compute_features(clf, source, workers=0)
    options: dict[str, Any] = {}
    if changed == "pixels":
        source.images[39, 7, 7] ^= 1
    elif changed == "labels":
        source = Arrays("made", "train", source.classes, source.images, (np.arange(40) + 1) % 3)
    elif changed == "classes":
        source = Arrays("made", "train", ("a", "b", "d"), source.images, source.targets())
    elif changed == "ids":
        source = Arrays("made", "train", source.classes, source.images, source.targets(), [f"x{i}" for i in range(40)])
    elif changed == "weights":
        clf = model(1)
    elif changed == "config":
        clf = model(norm_eps=1e-3)
    elif changed == "preprocess":
        options["preprocess"] = Preprocess("resize(8)|range(0,1)", 1)
    else:
        options["precision"] = "bfloat16"
        monkeypatch.setattr(torch, "autocast", lambda *args, **kwargs: torch.no_grad())  # not every processor survives it
    assert not compute_features(clf, source, workers=0, **options).cached
    assert sum(counted) == 80


def folder_of(path: Path, count: int = 6) -> Path:
    rng = np.random.default_rng(0)
    for number in range(count):
        place = path / ("a" if number % 2 else "b") / f"{number}.png"
        place.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (8, 8)).astype(np.uint8)).save(place)
    return path


def whole(path: Path) -> Source:
    source = next(iter(open_data(path).splits.values()))
    assert isinstance(source, Source)
    return source


def test_files_are_known_by_size_and_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clf, photos = model(), folder_of(tmp_path / "photos")
    first = compute_features(clf, whole(photos), workers=0)
    monkeypatch.setattr(Path, "read_bytes", lambda path: pytest.fail(f"{path} was read"))
    assert compute_features(clf, whole(photos), workers=0).cached
    monkeypatch.undo()
    monkeypatch.setenv("VITREOUS_CACHE", str(tmp_path / "cache"))
    changed = photos / "a" / "1.png"
    before = changed.stat()
    pixels = np.asarray(Image.open(changed)).copy()
    out = io.BytesIO()
    Image.fromarray(255 - pixels).save(out, "PNG")
    content = out.getvalue()
    changed.write_bytes(content)
    os.utime(changed, ns=(before.st_atime_ns, before.st_mtime_ns))  # as if it had never been written
    again = compute_features(clf, whole(photos), workers=0)
    assert not again.cached
    row = again.ids.index(next(name for name in again.ids if name.endswith("a/1.png")))
    assert not np.allclose(first.values[row], again.values[row])


def test_a_damaged_entry_is_computed_again_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    clf, source = model(), some()
    first = compute_features(clf, source, workers=0)
    (entry,) = feature_cache.folder().glob("*.safetensors")
    content = entry.read_bytes()
    spoilt = bytearray(content)
    spoilt[-40] ^= 1  # one bit of one number
    for broken in (content[:100], content[:-8], b"", bytes(spoilt)):
        entry.write_bytes(broken)
        found = compute_features(clf, source, workers=0)
        assert not found.cached
        assert np.array_equal(found.values, first.values)
        assert f"{entry}: a damaged cache entry" in found.notes[0]
        assert entry.read_bytes() == content  # and is whole again
    assert compute_features(clf, source, workers=0).cached


def test_a_cache_that_cannot_be_written_is_said_and_no_more(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    in_the_way = tmp_path / "file"
    in_the_way.write_text("")
    monkeypatch.setenv("VITREOUS_CACHE", str(in_the_way))
    found = compute_features(model(), some(), workers=0)
    np.testing.assert_allclose(found.values, expected(model(), some()), atol=1e-5)
    assert "could not be kept" in found.notes[0]

    def full(*args: object, **kwargs: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setenv("VITREOUS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(feature_file, "finish_file", full)
    assert "No space left" in compute_features(model(), some(), workers=0).notes[0]
    assert not list((tmp_path / "cache" / "features").iterdir())


def test_what_was_not_used_for_longest_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    clf = model()
    compute_features(clf, some(seed=0), workers=0)
    (first,) = feature_cache.folder().iterdir()
    compute_features(clf, some(seed=1), workers=0)
    (second,) = set(feature_cache.folder().iterdir()) - {first}
    os.utime(first, (1, 1))
    os.utime(second, (2, 2))
    assert compute_features(clf, some(seed=0), workers=0).cached  # used: the last to go
    monkeypatch.setattr(feature_cache, "MOST_BYTES", 2.5 * first.stat().st_size)
    compute_features(clf, some(seed=2), workers=0)
    assert first.exists()
    assert not second.exists()
    monkeypatch.setattr(feature_cache, "MOST_BYTES", 0)
    compute_features(clf, some(seed=3), workers=0)
    assert len(list(feature_cache.folder().iterdir())) == 1


class Broken(View):
    """Every third image cannot be read."""

    encoded = True

    def read(self, index: int) -> Content:
        out = io.BytesIO()
        Image.fromarray(np.asarray(self.parent.read(index))).save(out, "PNG")
        return out.getvalue() if index % 3 else b"\x89PNG\r\n\x1a\n broken"


def test_images_that_cannot_be_read_are_left_out_and_named() -> None:
    clf, source = model(), some()
    for cached in (False, True):
        found = compute_features(clf, Broken(source), workers=0, batch_size=5, bad_images="skip")
        assert found.cached == cached
        assert found.numbers.tolist() == [i for i in range(40) if i % 3]
        np.testing.assert_allclose(found.values, expected(clf, source)[found.numbers], atol=1e-5)
        assert [place for place, _ in found.bad] == [source.place(i) for i in range(0, 40, 3)]
        assert all(why for _, why in found.bad)
    # Also where an entry without them lies in the cache.
    with pytest.raises(VitreousError, match=r"train/000000.*vitreous doctor"):
        compute_features(clf, Broken(source), workers=0)


def test_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counted, clf = ran(monkeypatch), model()
    digits = open_data("builtin:digits")
    write_shards(digits.only("test"), tmp_path / "shards", shard_bytes=60_000)
    stream = open_shards(str(tmp_path / "shards")).source("test")
    items = list(stream.items())
    found = compute_features(clf, stream, workers=0, batch_size=33)
    assert len(stream.shards) > 2  # type: ignore[union-attr]
    assert found.ids == tuple(item.id for item in items)  # in the order of the shards, not of the virtual streams
    assert found.labels == tuple(item.labels for item in items)
    assert found.numbers.tolist() == list(range(len(items)))
    np.testing.assert_allclose(found.values, clf.features([item.content for item in items]).numpy(), atol=1e-5)
    assert compute_features(clf, stream, workers=0).cached
    assert sum(counted) == 2 * len(items)  # once, and once for what was expected
    shard = Path(stream.shards[0])  # type: ignore[union-attr]
    os.utime(shard, (1, 1))
    assert not compute_features(clf, stream, workers=0).cached


def test_two_processes_get_what_one_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads stand for processes: they wait for each other where processes would."""
    barrier, boxes, clf = threading.Barrier(2), {}, model()
    source = Broken(some(41))
    alone = compute_features(clf, source, workers=0, cache=False, bad_images="skip")

    def gathered(world: World, value: Any) -> list[Any]:
        boxes[world.rank] = value
        barrier.wait(20)
        everyone = [boxes[0], boxes[1]]
        barrier.wait(20)  # until both have read
        return everyone

    def told(world: World, value: Any) -> Any:
        return gathered(world, value)[0]

    for module in (features, shared_pass):
        monkeypatch.setattr(module, "all_gather", gathered)
    monkeypatch.setattr(features, "broadcast", told)
    results: dict[int, Features] = {}

    def run(process: int) -> None:
        world = World(process, 2, torch.device("cpu"))
        options = dict(batch_size=4, world=world, cache=False, bad_images="skip")
        results[process] = compute_features(copy.deepcopy(clf), source, workers=0, **options)  # type: ignore[arg-type]

    threads = [threading.Thread(target=run, args=(process,)) for process in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for process in (0, 1):
        assert results[process].ids == alone.ids
        assert results[process].labels == alone.labels
        assert results[process].bad == alone.bad
        np.testing.assert_allclose(results[process].values, alone.values, atol=1e-5)


def test_the_classifier_comes_back_as_it_was() -> None:
    clf = model(dropout=0.5)
    clf.model.train()
    state = {name: tensor.clone() for name, tensor in clf.model.state_dict().items()}
    first, second = (compute_features(clf, some(), workers=0, cache=False).values for _ in range(2))
    assert np.array_equal(first, second)  # without dropout
    assert clf.model.training
    assert not clf.model.lean  # type: ignore[union-attr]
    assert all(torch.equal(tensor, state[name]) for name, tensor in clf.model.state_dict().items())


def test_some_of_them() -> None:
    found = compute_features(model(), some(), workers=0, cache=False).some([3, 1])
    assert (found.ids, found.labels, found.numbers.tolist()) == (("train/000003", "train/000001"), ((0,), (1,)), [3, 1])
    assert found.targets().tolist() == [0, 1]
    assert len(found) == 2


def test_nothing_and_refusals() -> None:
    assert len(compute_features(model(), some().subset([]), workers=0)) == 0
    with pytest.raises(VitreousError, match="is random"):
        compute_features(model(), some(), preprocess=Preprocess("inception_crop(8)|range(-1,1)", 1))
    with pytest.raises(VitreousError, match="--batch-size 0"):
        compute_features(model(), some(), batch_size=0)
