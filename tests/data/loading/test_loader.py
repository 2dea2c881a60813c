from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from sample_images import encoded, photo, write

from vitreous.core.errors import VitreousError
from vitreous.data.loading.loader import Batch, Loader
from vitreous.data.loading.workers import WorkerDied
from vitreous.data.open import open_data
from vitreous.data.sampling import example_items, item_generator
from vitreous.data.shards.virtual_stream import RoundRobin
from vitreous.data.source import Content, Item, Source, Stream
from vitreous.data.sources.arrays import Arrays
from vitreous.data.transforms.decode import BadImage
from vitreous.data.transforms.image import to_tensor
from vitreous.data.transforms.parse import Preprocess

TRAINING = "inception_crop(16)|flip|range(-1,1)"


def arrays(count: int = 37) -> Arrays:
    images = np.random.default_rng(0).integers(0, 256, (count, 20, 24, 3), dtype=np.uint8)
    return Arrays("made", "train", ("a", "b", "c"), images, np.arange(count) % 3)


def same(first: Batch, second: Batch) -> bool:
    return torch.equal(first.images, second.images) and (first.ids, first.labels) == (second.ids, second.labels)


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("photos")
    for number in range(23):
        write(root / "ab"[number % 2] / f"{number:02d}.jpg", photo(40 + number, 60, seed=number), quality=90)
    return root


def source_of(root: Path) -> Source:
    source = open_data(root).source("all")
    assert isinstance(source, Source)
    return source


# One order ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_batches_do_not_depend_on_workers(photos: Path, workers: int) -> None:
    expected = list(islice(Loader(source_of(photos), TRAINING, 8, seed=5, workers=0).training(), 7))
    found = list(islice(Loader(source_of(photos), TRAINING, 8, seed=5, workers=workers).training(), 7))
    assert all(map(same, expected, found))
    assert [batch.step for batch in found] == list(range(7))


@pytest.mark.parametrize("processes", [2, 4])
def test_processes_share_one_batch(photos: Path, processes: int) -> None:
    whole = list(islice(Loader(source_of(photos), TRAINING, 8, seed=1, workers=0).training(), 5))
    for process in range(processes):
        own = Loader(source_of(photos), TRAINING, 8, seed=1, workers=0, rank=process, world_size=processes)
        for batch, part in zip(whole, own.training(), strict=False):
            assert torch.equal(part.images, batch.images[process::processes])
            assert part.ids == batch.ids[process::processes]


def test_any_step_by_itself(photos: Path) -> None:
    straight = list(islice(Loader(source_of(photos), TRAINING, 8, workers=0).training(), 9))
    resumed = list(islice(Loader(source_of(photos), TRAINING, 8, workers=2).training(start=6), 3))
    assert all(map(same, straight[6:], resumed))
    assert [batch.step for batch in resumed] == [6, 7, 8]


def test_every_item_once_in_every_epoch_and_never_twice_the_same_way() -> None:
    source = arrays(10)
    batches = list(islice(Loader(source, TRAINING, 4, workers=0).training(), 5))
    ids = [item for batch in batches for item in batch.ids]
    assert sorted(ids[:10]) == sorted(ids[10:]) == sorted(source.id(i) for i in range(10))
    photos = {
        (i, tuple(image.flatten().tolist())) for batch in batches for i, image in zip(batch.ids, batch.images, strict=True)
    }
    assert len(photos) == 20


def test_an_items_augmentation_is_its_own() -> None:
    """What happens to an item depends on seed, epoch and id; not on the batch or the others."""
    source = arrays(10)
    chain = Preprocess(TRAINING)
    for size in (2, 5):
        for batch in islice(Loader(source, TRAINING, size, seed=3, workers=0).training(), 20 // size):
            items, epochs = example_items(np.arange(batch.step * size, (batch.step + 1) * size), 10, 3)
            for row, (item, epoch) in enumerate(zip(items, epochs, strict=True)):
                alone = chain.transform(source.images[item], item_generator(3, int(epoch), source.id(int(item))), quick=True)
                assert torch.equal(batch.images[row], chain.scale(to_tensor(alone)))


# Once -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(("batch_size", "processes"), [(1, 1), (8, 1), (8, 2), (9, 3), (100, 4)])
def test_every_example_counted_once(workers: int, batch_size: int, processes: int) -> None:
    source, ids = arrays(37), []
    for process in range(processes):
        loader = Loader(source, "resize(16)|range(-1,1)", batch_size, workers=workers, rank=process, world_size=processes)
        for batch in loader.once():
            assert len(batch) <= batch_size // processes
            assert len(batch.images) == len(batch.labels) == len(batch)
            ids += batch.ids
    assert sorted(ids) == [source.id(i) for i in range(37)]


@pytest.mark.parametrize(
    "text",
    [
        "resize(16)|range(-1,1)",
        "resize(20,12,bilinear-plain)|range(-1,1)",
        "resize_small(20,bicubic,floor)|central_crop(16,round)|normalise(imagenet)",
        "resize(16,lanczos)|range(0,1)|normalise(0.4,0.5,0.6,0.1,0.2,0.3)",
        "resize(16)",
    ],
)
@pytest.mark.parametrize("workers", [0, 1])
def test_evaluation_is_exact(photos: Path, text: str, workers: int) -> None:
    source, chain = source_of(photos), Preprocess(text)
    found = torch.cat([batch.images for batch in Loader(source, text, 8, workers=workers).once()])
    assert torch.equal(found, torch.stack([chain(source.read(i)) for i in range(len(source))]))
    assert found.dtype == torch.float32
    assert found.is_contiguous()


def test_grey_models() -> None:
    images = np.random.default_rng(0).integers(0, 256, (5, 8, 8), dtype=np.uint8)
    source = Arrays("digits", "all", ("0",), images, np.zeros(5))
    (batch,) = Loader(source, Preprocess("resize(8)|range(0,255)", channels=1), 8, workers=0).once()
    assert np.array_equal(batch.images[:, 0].numpy(), images)


def test_nothing_to_load() -> None:
    empty = arrays(0)
    assert list(Loader(empty, "resize(8)", 4, workers=2).once()) == []
    with pytest.raises(VitreousError, match="made: there are no images to train on"):
        Loader(empty, TRAINING, 4, workers=0).training()


def test_labels_come_as_they_are(tmp_path: Path) -> None:
    for name in ("1.jpg", "2.jpg", "3.jpg"):
        write(tmp_path / name)
    (tmp_path / "list.jsonl").write_text(
        '{"path": "1.jpg", "label": ["x", "y"]}\n{"path": "2.jpg", "label": "y"}\n{"path": "3.jpg"}\n'
    )
    (batch,) = Loader(source_of(tmp_path / "list.jsonl"), "resize(8)", 4, workers=1).once()
    assert batch.labels == ((0, 1), (1,), ())
    assert batch.targets.tolist() == [0, 1, -1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"preprocess": "resize_small(8)"}, "leaves images of different sizes"),
        ({"batch_size": 0}, "--batch-size 0"),
        ({"batch_size": 9, "world_size": 2}, "--batch-size 9 cannot be divided among 2 processes"),
        ({"preprocess": "resize(8)|normalise(0.5,0.5)"}, "is for 1 channels, the images have 3"),
    ],
)
def test_bad_options(options: dict[str, object], message: str) -> None:
    settings: dict[str, object] = {"preprocess": "resize(8)", "batch_size": 8, **options}
    with pytest.raises(VitreousError) as error:
        Loader(arrays(), **settings)  # type: ignore[arg-type]
    assert message in str(error.value)


# Trouble --------------------------------------------------------------------------------------------------------------


def damaged(root: Path) -> Source:
    for number in range(20):
        write(root / "a" / f"{number:02d}.jpg", photo(50, 50, seed=number))
    cut = root / "a" / "07.jpg"
    cut.write_bytes(cut.read_bytes()[:-200])
    (root / "a" / "11.jpg").write_bytes(b"")
    (root / "a" / "13.jpg").write_text("not an image")
    source = source_of(root)
    (root / "a" / "17.jpg").unlink()
    return source


@pytest.mark.parametrize("workers", [0, 2])
def test_a_bad_image_stops_with_its_name(tmp_path: Path, workers: int) -> None:
    with pytest.raises(BadImage, match=r"a/07\.jpg: broken image"):
        list(Loader(damaged(tmp_path), "resize(16)", 4, workers=workers).once())


@pytest.mark.parametrize("workers", [0, 2])
def test_bad_images_are_skipped_and_written_down(tmp_path: Path, workers: int) -> None:
    source, log = damaged(tmp_path / "photos"), tmp_path / "run" / "bad_images.jsonl"
    loader = Loader(source, TRAINING, 5, workers=workers, bad_images="skip", bad_log=log)
    batches = list(islice(loader.training(), 12))
    ids = [Path(item).name for batch in batches for item in batch.ids]
    assert len(ids) == 3 * 16
    assert {name: ids.count(name) for name in ids} == {f"{n:02d}.jpg": 3 for n in range(20) if n not in (7, 11, 13, 17)}
    assert all(len(batch.images) == len(batch.ids) for batch in batches)
    written = [json.loads(line) for line in log.read_text().splitlines()]
    kinds = {Path(record["path"]).name: record["kind"] for record in written}
    assert kinds == {"07.jpg": "unreadable", "11.jpg": "empty-file", "13.jpg": "not-an-image", "17.jpg": "missing"}
    assert len(written) == 4, "each once, not once an epoch"
    assert {Path(place).name for place in loader.bad} == set(kinds)


def test_nothing_readable_is_an_error_and_not_an_endless_search(tmp_path: Path) -> None:
    for number in range(5):
        (tmp_path / "a").mkdir(exist_ok=True)
        (tmp_path / "a" / f"{number}.jpg").write_bytes(b"")
    with pytest.raises(VitreousError, match=r"could be read; the last: .*an empty file"):
        for _ in Loader(source_of(tmp_path), TRAINING, 2, workers=0, bad_images="skip").training():
            pass


def test_a_batch_without_a_readable_image_is_empty_and_keeps_its_step(tmp_path: Path) -> None:
    source = damaged(tmp_path / "photos")
    log = tmp_path / "bad.jsonl"
    for _ in range(2):  # started again, it does not write the same lines again
        loader = Loader(source, TRAINING, 1, workers=0, bad_images="skip", bad_log=log)
        batches = list(islice(loader.training(), 40))
        assert [batch.step for batch in batches] == list(range(40))
        assert sum(len(batch) for batch in batches) == 32
        assert all(batch.images.shape[1:] == (3, 16, 16) for batch in batches)
        assert len(log.read_text().splitlines()) == 4


def test_a_preprocessing_that_does_not_fit_names_the_item(tmp_path: Path) -> None:
    write(tmp_path / "a" / "1.jpg", photo(20, 30))
    with pytest.raises(VitreousError, match=r"1\.jpg: central_crop\(24\) does not fit into an image of 20 x 30"):
        list(Loader(source_of(tmp_path), "central_crop(24)", 1, workers=1).once())


class Deadly(Arrays):
    """Kills whichever process reads item 9."""

    def read(self, index: int) -> Content:
        if index == 9:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().read(index)


def test_a_dying_worker_names_the_item() -> None:
    made = arrays()
    deadly = Deadly(made.where, made.split, made.classes, made.images, made.targets())
    with pytest.raises(WorkerDied, match=r"made: train/000009: the process .* died \(killed by SIGKILL\)"):
        list(Loader(deadly, "resize(16)", 8, workers=2).once())


FLAT = """
import resource, sys
import numpy as np, torch
from vitreous.data.loading.loader import Loader
from vitreous.data.sources.arrays import Arrays
images = np.zeros((64, 64, 64, 3), np.uint8)
source = Arrays("made", "all", ("a",), images, np.zeros(64))
loader = Loader(source, "inception_crop(64)|flip|range(-1,1)", 32, workers=int(sys.argv[1]))
batches = loader.training()
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()
for epoch in range(200):
    for _ in range(2):
        next(batches)
    if epoch == 40:
        early = resident()
print(resident() - early)
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs Linux's /proc")
@pytest.mark.parametrize("workers", ["0", "2"])
def test_memory_stays_flat(workers: str) -> None:
    grown = int(subprocess.run([sys.executable, "-c", FLAT, workers], capture_output=True, text=True, check=True).stdout)
    assert grown < 16e6, "160 epochs with 3 MB of batches each"


# Streams --------------------------------------------------------------------------------------------------------------


class Memory(Stream):
    """Shards in memory, of uneven length."""

    def __init__(self, shards: int, exact: bool = False) -> None:
        self.where, self.split, self.classes = "memory", "train", ("a", "b")
        self.shards = tuple(f"{shard:03d}.tar" for shard in range(shards))
        self.skipped = []
        self.exact = exact
        self.log: Path | None = None  # where reads are counted, also those in other processes
        self.reads: list[int] = []

    def length(self, shard: int) -> int:
        return 5 + shard % 4

    def shard_lengths(self) -> tuple[int, ...] | None:
        return tuple(map(self.length, range(len(self.shards)))) if self.exact else None

    def read(self, shard: int) -> Iterator[Item]:
        self.reads.append(shard)
        if self.log is not None:
            with self.log.open("a") as file:
                file.write(f"{shard}\n")
        for number in range(self.length(shard)):
            pixels = np.full((12, 12, 3), (shard * 16 + number) % 256, np.uint8)
            yield Item(f"{shard:03d}/{number}", (number % 2,), pixels, f"{shard:03d}.tar: {number}")


def all_ids(stream: Memory) -> list[str]:
    return sorted(item.id for item in stream.items())


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("workers", [1, 2, 3, 5])
def test_streams_do_not_depend_on_workers(workers: int, exact: bool) -> None:
    text = "random_crop(8)|flip|range(-1,1)"
    expected = list(islice(Loader(Memory(13, exact), text, 6, workers=0, streams=8).training(), 30))
    found = list(islice(Loader(Memory(13, exact), text, 6, workers=workers, streams=8).training(), 30))
    assert all(map(same, expected, found))
    assert all(len(batch) == 6 for batch in found)


@pytest.mark.parametrize(("processes", "exact"), [(2, False), (4, False), (2, True), (3, True), (6, True)])
def test_streams_are_dealt_to_processes(processes: int, exact: bool) -> None:
    text = "random_crop(8)|flip|range(-1,1)"
    whole = list(islice(Loader(Memory(13, exact), text, 12, workers=0, streams=8).training(), 20))
    parts = [
        list(islice(Loader(Memory(13, exact), text, 12, workers=0, streams=8, rank=p, world_size=processes).training(), 20))
        for p in range(processes)
    ]
    for step, batch in enumerate(whole):
        assert sorted(batch.ids) == sorted(item for part in parts for item in part[step].ids)
        photos = {item: image for part in parts for item, image in zip(part[step].ids, part[step].images, strict=True)}
        assert all(torch.equal(photos[item], image) for item, image in zip(batch.ids, batch.images, strict=True))


@pytest.mark.parametrize("exact", [False, True])
def test_a_stream_resumes_anywhere(exact: bool) -> None:
    text = "random_crop(8)|flip|range(-1,1)"
    straight = list(islice(Loader(Memory(6, exact), text, 4, workers=0, streams=3).training(), 40))
    for start in (1, 17, 36):
        stream = Memory(6, exact)
        resumed = list(islice(Loader(stream, text, 4, workers=0, streams=3).training(start), 4))
        assert all(map(same, straight[start:], resumed))
        if exact and start == 36:
            assert len(stream.reads) <= 12, "epochs that lie behind are not read"


def test_a_stream_shuffles_and_repeats() -> None:
    ids = [
        item for batch in islice(Loader(Memory(6), "resize(8)", 3, workers=0, streams=3).training(), 200) for item in batch.ids
    ]
    by_stream = [[item for item in ids if int(item[:3]) % 3 == stream] for stream in range(3)]
    for own in by_stream:
        size = len(set(own))
        assert sorted(own[:size]) == sorted(own[size : 2 * size]), "an epoch of the stream holds each item once"
        assert own[:size] != own[size : 2 * size]
        assert own[:size] != sorted(own[:size])


@pytest.mark.parametrize(("shards", "streams"), [(1, 32), (4, 32), (33, 32), (7, 3)])
def test_uneven_shards_still_give_every_item_once_an_epoch(shards: int, streams: int) -> None:
    """Streams take turns, and one that has ended is passed over; else short shards would be trained on more often."""
    stream = Memory(shards, exact=True)
    items = all_ids(stream)
    batches = islice(Loader(stream, "resize(8)", 5, workers=0, streams=streams).training(), 3 * len(items))
    ids = [item for batch in batches for item in batch.ids][: 3 * len(items)]
    for epoch in range(3):
        assert sorted(ids[epoch * len(items) : (epoch + 1) * len(items)]) == items


def test_turns_against_taking_them() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        lengths = rng.integers(0, 9, rng.integers(1, 7)).tolist()
        expected = [(stream, k) for k in range(max(lengths)) for stream, length in enumerate(lengths) if k < length]
        streams, positions = RoundRobin(lengths)(np.arange(sum(lengths)))
        assert list(zip(streams.tolist(), positions.tolist(), strict=True)) == expected


@pytest.mark.parametrize("shards", [1, 2, 7])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_shard_is_read_once(tmp_path: Path, shards: int, workers: int) -> None:
    stream = Memory(shards)
    stream.log = tmp_path / "reads"
    assert sum(len(batch) for batch in Loader(stream, "resize(8)", 4, workers=workers).once()) == len(all_ids(Memory(shards)))
    assert sorted(map(int, stream.log.read_text().split())) == list(range(shards))


@pytest.mark.parametrize("workers", [0, 2, 3])
@pytest.mark.parametrize("processes", [1, 2])
def test_a_stream_once(workers: int, processes: int) -> None:
    ids: list[str] = []
    for process in range(processes):
        loader = Loader(Memory(7), "resize(8)", 10, workers=workers, streams=4, rank=process, world_size=processes)
        batches = [batch.ids for batch in loader.once()]
        assert all(len(batch) == 10 // processes for batch in batches[:-1])
        ids += [item for batch in batches for item in batch]
    assert sorted(ids) == all_ids(Memory(7))


def test_the_order_of_a_stream_once_does_not_depend_on_workers() -> None:
    orders = [
        [item for batch in Loader(Memory(7), "resize(8)", 10, workers=workers, streams=4).once() for item in batch.ids]
        for workers in (0, 1, 3)
    ]
    assert orders[0] == orders[1] == orders[2]


def test_streams_that_cannot_be_dealt() -> None:
    with pytest.raises(VitreousError, match="as 7 streams, cannot be divided among 2 processes"):
        next(Loader(Memory(7), "resize(8)", 4, workers=0, world_size=2).training())
    assert len(next(Loader(Memory(7, exact=True), "resize(8)", 4, workers=0, world_size=2).training())) == 2


def test_real_shards_arrive_like_the_folder(tmp_path: Path) -> None:
    from vitreous.data.shards.writer import write_shards

    for number in range(30):
        write(tmp_path / "photos" / "ab"[number % 2] / f"{number:02d}.png", photo(20, 20, seed=number))
    write_shards(open_data(tmp_path / "photos"), tmp_path / "shards", shard_bytes=6000)
    stream = open_data(tmp_path / "shards").source("all")
    assert isinstance(stream, Stream)
    assert len(stream.shards) > 2
    folder = source_of(tmp_path / "photos")
    expected = {encoded(Image.open(tmp_path / "photos" / folder.id(i)), "PNG"): folder.labels(i) for i in range(30)}
    for workers in (0, 2):
        batches = list(Loader(stream, "resize(20)|range(0,255)", 8, workers=workers).once())
        found = {
            encoded(Image.fromarray(image.permute(1, 2, 0).numpy().astype(np.uint8)), "PNG"): labels
            for batch in batches
            for image, labels in zip(batch.images, batch.labels, strict=True)
        }
        assert found == expected


def test_broken_shards_are_counted(tmp_path: Path) -> None:
    from vitreous.data.shards.writer import write_shards

    for number in range(30):
        write(tmp_path / "photos" / "a" / f"{number:02d}.png", photo(20, 20, seed=number))
    write_shards(open_data(tmp_path / "photos"), tmp_path / "shards", shard_bytes=6000)
    broken = sorted((tmp_path / "shards").glob("*.tar"))[1]
    broken.write_bytes(broken.read_bytes()[:2000])
    with pytest.raises(VitreousError, match=broken.name):
        list(Loader(open_data(tmp_path / "shards").source("all"), "resize(8)", 8, workers=2).once())
    loader = Loader(open_data(tmp_path / "shards", bad_shards="skip").source("all"), "resize(8)", 8, workers=2)
    assert 0 < sum(len(batch) for batch in loader.once()) < 30
    (skipped,) = loader.skipped
    assert broken.name in skipped.shard
