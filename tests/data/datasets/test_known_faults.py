"""Original files that are broken, hostile or other than they seem: one line that names the file, and nothing left behind."""

from __future__ import annotations

import gzip
import io
import signal
import stat
import struct
import subprocess
import sys
import tarfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import originals
import pytest
import scipy.io
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from vitreous.core.errors import VitreousError
from vitreous.data.datasets import archive
from vitreous.data.datasets import pixel_arrays as pixels
from vitreous.data.datasets.matlab import read_mat
from vitreous.data.datasets.mnist import read_idx
from vitreous.data.datasets.registry import find_dataset, open_named

PACKED = [
    ("cifar10", "cifar-10-binary.tar.gz"),
    ("cifar100", "cifar-100-binary.tar.gz"),
    ("mnist", "t10k-images-idx3-ubyte.gz"),
    ("fashion-mnist", "train-labels-idx1-ubyte.gz"),
    ("pets", "images.tar.gz"),
    ("pets", "annotations.tar.gz"),
    ("flowers102", "102flowers.tgz"),
    ("flowers102", "imagelabels.mat"),
    ("flowers102", "setid.mat"),
    ("svhn", "test_32x32.mat"),
    ("eurosat", "EuroSAT.zip"),
    ("caltech101", "caltech-101.zip"),
    ("dtd", "dtd-r1.0.1.tar.gz"),
]


def refused(name: str, folder: Path, cache: Path) -> str:
    """The one line that is said; nothing half-made stays in the cache."""
    with pytest.raises(VitreousError) as caught:
        open_named(name, folder)
    message = str(caught.value)
    assert "\n" not in message
    assert leftovers(cache) == []
    return message


def leftovers(cache: Path) -> list[str]:
    return sorted(path.name for path in (cache / "prepared").iterdir()) if (cache / "prepared").exists() else []


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "cut": lambda content: content[: len(content) * 2 // 3],
    "last byte gone": lambda content: content[:-1],
    "emptied": lambda _: b"",
    "text": lambda _: b"<html><body>404 Not Found</body></html>\n" * 20,
    "garbage": lambda content: content[:8] + np.random.default_rng(0).bytes(len(content)),
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize(("name", "file"), PACKED)
def test_a_damaged_file_is_named(name: str, file: str, damage: str, tmp_path: Path) -> None:
    (originals.IMAGE_SETS.get(name) or originals.ARRAY_SETS[name])(tmp_path / "files")
    path = tmp_path / "files" / file
    path.write_bytes(DAMAGES[damage](path.read_bytes()))
    if (name, file, damage) in (
        ("flowers102", "setid.mat", "last byte gone"),
        ("flowers102", "imagelabels.mat", "last byte gone"),
    ):
        path.write_bytes(path.read_bytes()[:-8])  # an uncompressed .mat ends in padding, which may be missing
    with pytest.raises(VitreousError) as caught:
        open_named(name, tmp_path / "files")
    message = str(caught.value)
    assert str(path) in message
    assert "\n" not in message
    assert not [left for left in leftovers(tmp_path / "cache") if left.endswith((".part", ".lock"))]
    if name != "flowers102":  # whose images are whole here, and may be kept
        assert leftovers(tmp_path / "cache") == []


# Archives that mean harm ------------------------------------------------------------------------------------------------------


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.linkname = kind, link
    return made


HOSTILE = {
    "up": member("../../escaped.jpg"),
    "up from within": member("jpg/../../../escaped.jpg"),
    "absolute": member("/tmp/vitreous-escaped.jpg"),
    "backslashes": member("jpg\\..\\..\\escaped.jpg"),
    "a drive": member("C:escaped.jpg"),
    "a link out": member("jpg/image_00009.jpg", tarfile.SYMTYPE, "/etc/passwd"),
    "a hard link": member("jpg/image_00009.jpg", tarfile.LNKTYPE, "jpg/image_00001.jpg"),
    "a pipe": member("jpg/image_00009.jpg", tarfile.FIFOTYPE),
    "a device": member("jpg/image_00009.jpg", tarfile.CHRTYPE),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_tar_writes_nothing(kind: str, tmp_path: Path) -> None:
    originals.flowers102(tmp_path / "files")
    path = tmp_path / "files" / "102flowers.tgz"
    with tarfile.open(path, "w:gz") as made:
        made.addfile(HOSTILE[kind], io.BytesIO())
    message = refused("flowers102", tmp_path / "files", tmp_path / "cache")
    assert message.startswith(str(path))
    assert message.endswith("not the original archive, refused")
    assert not list(tmp_path.rglob("*escaped*"))
    assert not Path("/tmp/vitreous-escaped.jpg").exists()


def test_a_link_to_a_folder_is_no_way_out(tmp_path: Path) -> None:
    originals.flowers102(tmp_path / "files")
    with tarfile.open(tmp_path / "files" / "102flowers.tgz", "w:gz") as made:
        made.addfile(member("jpg", tarfile.SYMTYPE, str(tmp_path / "outside")))  # skipped: nobody wants it
        inside = member("jpg/image_00001.jpg")
        inside.size = 4
        made.addfile(inside, io.BytesIO(b"JPEG"))
    (tmp_path / "outside").mkdir()
    with pytest.raises(VitreousError):  # the other images are not there
        open_named("flowers102", tmp_path / "files")
    assert list((tmp_path / "outside").iterdir()) == []


@pytest.mark.parametrize("kind", ["up", "link"])
def test_a_hostile_zip_writes_nothing(kind: str, tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    with zipfile.ZipFile(tmp_path / "files" / "EuroSAT.zip", "w") as made:
        if kind == "up":
            made.writestr("2750/../../../escaped.jpg", b"JPEG")
        else:
            info = zipfile.ZipInfo("2750/Forest/Forest_1.jpg")
            info.external_attr = (stat.S_IFLNK | 0o777) << 16
            made.writestr(info, "/etc/passwd")
    assert "refused" in refused("eurosat", tmp_path / "files", tmp_path / "cache")
    assert not list(tmp_path.rglob("*escaped*"))


def test_a_bomb_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "_ROOM", 1 << 20)
    originals.tar(tmp_path / "files" / "EuroSAT.zip", {})
    originals.zipped(tmp_path / "files" / "EuroSAT.zip", {"2750/Forest/Forest_1.jpg": bytes(20 << 20)})
    assert "grows far beyond its size" in refused("eurosat", tmp_path / "files", tmp_path / "cache")


def test_modes_in_an_archive_are_not_restored(tmp_path: Path) -> None:
    originals.flowers102(tmp_path / "files")
    files = {f"jpg/image_{n:05d}.jpg": originals.make_image(n) for n in range(1, 9)}
    with tarfile.open(tmp_path / "files" / "102flowers.tgz", "w:gz") as made:
        for name, content in files.items():
            info = member(name)
            info.size, info.mode = len(content), 0o4777
            made.addfile(info, io.BytesIO(content))
    path = open_named("flowers102", tmp_path / "files").source("train").path(0)  # type: ignore[union-attr]
    assert path is not None
    assert not Path(path).stat().st_mode & 0o6111


# Interrupted, or no room ------------------------------------------------------------------------------------------------------


def test_a_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    originals.svhn(tmp_path / "files")
    save, calls = np.save, []

    def full(path: Any, array: Any) -> None:
        calls.append(path)
        if len(calls) == 3:
            raise OSError(28, "No space left on device")
        save(path, array)

    monkeypatch.setattr(pixels.np, "save", full)
    message = refused("svhn", tmp_path / "files", tmp_path / "cache")
    assert "No space left on device" in message
    assert "VITREOUS_CACHE" in message
    open_named("svhn", tmp_path / "files")


def test_a_killed_process_is_forgotten(tmp_path: Path) -> None:
    expected = originals.dtd(tmp_path / "files")
    program = f"""
import time
from pathlib import Path
from vitreous.data.datasets import archive
from vitreous.data.datasets.registry import open_named
write = archive.write_member
def slow(target, *rest):
    write(target, *rest)
    Path({str(tmp_path / "begun")!r}).touch()
    time.sleep(60)
archive.write_member = slow
open_named("dtd", Path({str(tmp_path / "files")!r}))
"""
    process = subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.DEVNULL)
    try:
        for _ in range(600):
            if (tmp_path / "begun").exists():
                break
            time.sleep(0.05)
        process.send_signal(signal.SIGKILL)
        process.wait()
    finally:
        process.kill()
    assert (tmp_path / "begun").exists()
    assert any(name.endswith(".part") for name in leftovers(tmp_path / "cache"))
    data = open_named("dtd", tmp_path / "files")
    assert {split: len(source) for split, source in data.splits.items()} == {k: len(v) for k, v in expected.items()}  # type: ignore[arg-type]
    assert len(leftovers(tmp_path / "cache")) == 1
    assert not leftovers(tmp_path / "cache")[0].endswith((".part", ".lock"))


def test_a_damaged_cache_is_named(tmp_path: Path) -> None:
    originals.mnist(tmp_path / "files")
    open_named("mnist", tmp_path / "files")
    made = tmp_path / "cache" / "prepared" / leftovers(tmp_path / "cache")[0]
    for damage in (b"", b"\x93NUMPY\x01\x00", b"text"):
        (made / "train-images.npy").write_bytes(damage)
        with pytest.raises(VitreousError, match="delete this folder, and it is made again") as caught:
            open_named("mnist", tmp_path / "files")
        assert str(made) in str(caught.value)


# Files that are other than they seem ----------------------------------------------------------------------------------------


def test_the_pickled_cifar_is_not_read(tmp_path: Path) -> None:
    originals.tar(tmp_path / "cifar-10-python.tar.gz", {"cifar-10-batches-py/data_batch_1": b"\x80\x03"})
    with pytest.raises(VitreousError, match=r"cifar-10-python\.tar\.gz is the Python version, a pickle.*cifar-10-binary"):
        open_named("cifar10", tmp_path)


def test_cifar_records(tmp_path: Path) -> None:
    originals.cifar10(tmp_path)
    originals.unpack_all(tmp_path)
    path = tmp_path / "cifar-10-batches-bin" / "data_batch_2.bin"
    content = path.read_bytes()
    path.write_bytes(content[:-1])
    with pytest.raises(VitreousError, match=r"data_batch_2\.bin has 9,218 bytes, not a multiple of 3,073"):
        open_named("cifar10", tmp_path)
    path.write_bytes(b"\x0a" + content[1:])
    with pytest.raises(VitreousError, match=r"data_batch_2\.bin has the label 10 of 10 classes"):
        open_named("cifar10", tmp_path)
    path.unlink()
    with pytest.raises(VitreousError, match=r"no data_batch_2\.bin in"):
        open_named("cifar10", tmp_path)
    originals.tar(tmp_path / "b" / "cifar-10-binary.tar.gz", {"cifar-10-batches-bin/test_batch.bin": content})
    with pytest.raises(VitreousError, match=r"lacks data_batch_1\.bin"):
        open_named("cifar10", tmp_path / "b")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (struct.pack(">BBBBI", 0, 0, 8, 1, 5) + b"12345", None),
        (struct.pack(">BBBBI", 0, 0, 8, 1, 5) + b"1234", "holds 5 bytes and has 4"),
        (struct.pack(">BBBBI", 0, 0, 8, 1, 5) + b"123456", "holds 5 bytes and has more"),
        (struct.pack(">BBBBI", 0, 0, 0xD, 1, 1) + b"1234", "begins with 00000d01"),  # floats
        (struct.pack(">BBBBII", 0, 0, 8, 2, 1, 1) + b"1", "begins with 00000802"),
        (struct.pack(">BBBBI", 0, 0, 8, 1, 2**32 - 1), "claims 4,294,967,295 bytes"),
        (b"\0\0\x08\x01\0", "truncated"),
        (b"", "begins with nothing"),
    ],
)
def test_idx_headers(content: bytes, said: str | None, tmp_path: Path) -> None:
    for path, data in ((tmp_path / "plain", content), (tmp_path / "zipped.gz", gzip.compress(content))):
        path.write_bytes(data)
        if said is None:
            assert read_idx(path, 1).tobytes() == b"12345"
            continue
        with pytest.raises(VitreousError, match=said) as caught:
            read_idx(path, 1)
        assert str(path) in str(caught.value)


def test_images_and_labels_of_different_sets(tmp_path: Path) -> None:
    originals.mnist(tmp_path / "files")
    one = gzip.compress(originals.idx(np.zeros(14, np.uint8)))
    (tmp_path / "files" / "train-labels-idx1-ubyte.gz").write_bytes(one)
    assert "15 images but 14 labels" in refused("mnist", tmp_path / "files", tmp_path / "cache")
    (tmp_path / "files" / "train-labels-idx1-ubyte.gz").write_bytes(gzip.compress(originals.idx(np.full(15, 10, np.uint8))))
    assert "labels from 10 to 10 of 10 classes" in refused("mnist", tmp_path / "files", tmp_path / "cache")


def test_lists_that_name_what_is_not_there(tmp_path: Path) -> None:
    originals.pets(tmp_path)
    originals.unpack_all(tmp_path)
    (tmp_path / "images" / "Abyssinian_1.jpg").unlink()
    (tmp_path / "images" / "Abyssinian_2.jpg").unlink()
    with pytest.raises(VitreousError, match=r"images/Abyssinian_1\.jpg and 1 others of the train list are not there"):
        open_named("pets", tmp_path)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("Abyssinian_7 2 1 1", "class 2 is both 'american bulldog' and 'Abyssinian'"),
        ("Abyssinian_7 one 1 1", "is not NAME CLASS SPECIES BREED"),
        ("../../etc/passwd_7 1 1 1", "is not NAME CLASS SPECIES BREED"),
        ("beagle_1 9 2 9", "not numbered from 1 to 4"),
    ],
)
def test_pet_lists(line: str, said: str, tmp_path: Path) -> None:
    originals.pets(tmp_path)
    originals.unpack_all(tmp_path)
    with (tmp_path / "annotations" / "trainval.txt").open("a") as file:
        file.write(f"{line}\n")
    with pytest.raises(VitreousError, match=said):
        open_named("pets", tmp_path)


def test_texture_lists(tmp_path: Path) -> None:
    originals.dtd(tmp_path)
    originals.unpack_all(tmp_path)
    path = tmp_path / "dtd" / "labels" / "val1.txt"
    path.write_text("../../secret.jpg\n")
    with pytest.raises(VitreousError, match=r"val1\.txt: '../../secret\.jpg' is not CLASS/IMAGE"):
        open_named("dtd", tmp_path)
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(VitreousError, match=r"val1\.txt: cannot be read as text"):
        open_named("dtd", tmp_path)


# Matlab files -----------------------------------------------------------------------------------------------------------------


def test_wrong_variables(tmp_path: Path) -> None:
    originals.svhn(tmp_path)
    path = tmp_path / "train_32x32.mat"
    image = np.zeros((32, 32, 3, 2), np.uint8)
    for variables, said in (
        ({"X": image}, "no variable 'y'"),
        ({"X": image.astype(float), "y": np.ones((2, 1))}, r"X is float64 \(32, 32, 3, 2\)"),
        ({"X": image[..., 0], "y": np.ones((2, 1))}, r"X is uint8 \(32, 32, 3\)"),
        ({"X": image, "y": np.array([[0], [1]])}, "'y' goes from 0 to 1, not 1 to 10"),
        ({"X": image, "y": np.array([[1.5], [1]])}, "not whole numbers"),
        ({"X": image, "y": "ab"}, "not whole numbers"),
        ({"X": image, "y": np.ones((3, 1))}, "2 images but 3 labels"),
    ):
        scipy.io.savemat(path, variables)
        with pytest.raises(VitreousError, match=said):
            open_named("svhn", tmp_path)


def test_flower_numbers_beyond_the_labels(tmp_path: Path) -> None:
    originals.flowers102(tmp_path)
    sets = {"trnid": np.array([[1]]), "valid": np.array([[2]]), "tstid": np.array([[9]])}
    scipy.io.savemat(tmp_path / "setid.mat", sets)
    with pytest.raises(VitreousError, match=r"setid\.mat: 'tstid' goes from 9 to 9, not 1 to 8"):
        open_named("flowers102", tmp_path)


VARIABLES = {
    "labels": np.arange(1, 60, dtype=np.uint8)[None],
    "table": {"number": 3, "words": "kit fox, Vulpes macrotis", "inner": {"text": "größer"}},
    "real": np.linspace(0, 1, 7),
}
NUMERIC = [np.dtype(code) for code in ("f8", "f4", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8")]


@pytest.mark.parametrize("packed", [False, True])
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_mat_files_of_scipy_are_read(packed: bool, data: st.DataObject, tmp_path: Path) -> None:
    shape = tuple(data.draw(st.lists(st.integers(0, 5), min_size=2, max_size=4)))
    array = np.random.default_rng(0).integers(0, 100, shape).astype(data.draw(st.sampled_from(NUMERIC)))
    text = data.draw(st.text(st.characters(codec="latin-1", exclude_characters="\0"), min_size=1, max_size=20))
    rows = np.empty((2, 1), dtype=[("a", object), ("bcd", object)])
    rows[0, 0], rows[1, 0] = (array, text), (text, 1.5)
    path = tmp_path / "x.mat"
    scipy.io.savemat(path, {"other": 1, "array": array, "text": text, "rows": rows}, do_compression=packed)
    found, said, table = read_mat(path, "array", "text", "rows")
    theirs = scipy.io.loadmat(path)
    assert found.dtype == theirs["array"].dtype
    assert np.array_equal(found, theirs["array"])
    assert said == theirs["text"][0] == text
    assert np.array_equal(table[0]["a"], array)
    assert (table[0]["bcd"], table[1]["a"], table[1]["bcd"].item()) == (text, text, 1.5)


@pytest.mark.parametrize("packed", [False, True])
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(changes=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), min_size=1, max_size=6))
def test_a_mat_file_with_any_bytes_changed_is_read_or_refused(
    packed: bool, changes: list[tuple[float, int]], tmp_path: Path
) -> None:
    """scipy's own reader crashes the process on some of these, which is why it is not used."""
    file = io.BytesIO()
    scipy.io.savemat(file, VARIABLES, do_compression=packed)
    content = bytearray(file.getvalue())
    for place, value in changes:
        content[116 + int(place * (len(content) - 116))] = value
    path = tmp_path / "x.mat"
    path.write_bytes(bytes(content))
    try:
        found, table, _ = read_mat(path, "labels", "table", "real")
        assert isinstance(found, (np.ndarray, str, list))
        assert isinstance(table, (np.ndarray, str, list))
    except VitreousError as error:
        assert str(error).startswith(str(path))


def test_matlab_versions_that_are_not_read(tmp_path: Path) -> None:
    scipy.io.savemat(tmp_path / "4.mat", {"labels": np.ones((1, 3))}, format="4")
    (tmp_path / "73.mat").write_bytes(b"MATLAB 7.3 MAT-file".ljust(124) + b"\x00\x02IM" + b"\x89HDF\r\n\x1a\n")
    for name in ("4.mat", "73.mat"):
        with pytest.raises(VitreousError, match="no Matlab file of version 5"):
            read_mat(tmp_path / name, "labels")


def test_every_set_says_whose_it_is() -> None:
    for known in map(find_dataset, ("cifar10", "pets", "imagenet")):
        assert known.page.startswith("http")
        assert known.terms
    assert find_dataset("imagenet").files == ()
    for name, _ in PACKED:
        for file in find_dataset(name).files:
            assert (file.sha256 and len(file.sha256) == 64) or (file.md5 and len(file.md5) == 32)
